//! HTTP/1.1 (RFC 9112): parsing and framing on a byte stream, and the life of a connection.

pub(crate) mod connection;
pub(crate) mod input;
pub(crate) mod output;
pub(crate) mod request;
pub(crate) mod response;
pub(crate) mod watch;
