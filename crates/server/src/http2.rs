//! HTTP/2 (RFC 9113): frames on one TCP connection, and the life of its streams.
//!
//! No byte of content passes the host: a DATA frame is a frame header of nine bytes and a range of
//! a file. Frames leave in the order in which the connection writes them, so it writes no more than
//! the TCP stream is about to send: a response of a higher priority then waits for few bytes.

pub(crate) mod connection;
pub(crate) mod frame_writer;
pub(crate) mod head;
pub(crate) mod request;
pub(crate) mod stream;
pub(crate) mod stream_io;
