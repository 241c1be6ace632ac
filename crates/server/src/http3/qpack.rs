//! Field sections (RFC 9204), without a dynamic table: this side permits none, and makes use of
//! none.

pub(crate) mod decode;
pub(crate) mod encode;
mod huffman;
pub(crate) mod integer;
mod static_table;
