//! HTTP/2 from clients (RFC 9113). Each stream is a client of its own to a session.
//!
//! A session knows no frames: through [`ClientIo`](client_io::ClientIo) it reads a stream's request
//! as HTTP/1.1, and the response in HTTP/1.1 that it writes becomes frames. So pools, retries,
//! timeouts and shares are the same for both versions.
//!
//! ```text
//!  frames ─▶ connection ─▶ stream.request ─▶ ClientIo::read ─▶ session ─▶ backend
//!  frames ◀─ writer ◀──── stream.reply ◀─── ClientIo::write ◀─ session ◀─ backend
//! ```
//!
//! A stream holds at most a window of its request and 64 KiB of its response: the windows of HTTP/2
//! and TCP carry a receiver's slowness to the sender.

pub(crate) mod client_io;
pub(crate) mod connection;
pub(crate) mod names;
mod reply;
mod request;
mod stream;
pub(crate) mod table;
mod writer;
