//! Field blocks (RFC 7541), with a dynamic table in both directions.
//!
//! Both directions share integers and Huffman codes with QPACK. A decoder must bound the fields
//! that a block yields while it goes on with the table, and an encoder writes into the frame itself;
//! the crates for HPACK do neither.

pub(crate) mod decode;
pub(crate) mod encode;
mod static_table;
mod table;

/// Greatest dynamic table of either direction, in bytes: SETTINGS_HEADER_TABLE_SIZE at its initial
/// value.
pub(crate) const TABLE_BYTES_MAX: usize = 4096;
