//! HTTP/3 (RFC 9114): frames on the streams of a QUIC connection, and the life of both.

pub(crate) mod code;
pub(crate) mod connection;
pub(crate) mod frame;
pub(crate) mod head;
pub(crate) mod qpack;
pub(crate) mod request;
pub(crate) mod request_stream;
pub(crate) mod settings;
pub(crate) mod unidirectional;
pub(crate) mod varint;
