//! Integers and Huffman-coded strings (RFC 7541 §5), which HPACK and QPACK share.

pub(crate) mod huffman;
pub(crate) mod integer;
