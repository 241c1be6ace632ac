//! Field sections (RFC 9204), without a dynamic table: this side neither permits nor uses one.

pub(crate) mod decode;
pub(crate) mod encode;
mod huffman;
pub(crate) mod integer;
mod static_table;
