//! Field blocks (RFC 7541), with a dynamic table in both directions.
//!
//! Both directions share integers and Huffman codes with QPACK. The decoder must bound the fields
//! that a block yields while the table takes every one, and the encoder writes into the frame;
//! the crates for HPACK do neither.

pub mod decode;
pub mod encode;
mod static_table;
mod table;

/// Greatest dynamic table of either direction, in bytes: SETTINGS_HEADER_TABLE_SIZE at its initial
/// value.
pub const TABLE_BYTES_MAX: usize = 4096;
