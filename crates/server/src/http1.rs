//! HTTP/1.1 (RFC 9112): parsing and framing on a byte stream, and the life of a connection.

pub(crate) mod connection;
pub(crate) mod head;
pub(crate) mod plain;
pub(crate) mod request;
