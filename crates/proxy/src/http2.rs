//! HTTP/2 from clients, and to backends (RFC 9113). To a session, each stream is a client or a
//! backend of its own.
//!
//! A session knows no frames: through [`SessionIo`](session_io::SessionIo) it reads a stream's
//! message as HTTP/1.1, and the message in HTTP/1.1 that it writes becomes frames. So pools,
//! retries, timeouts and shares are the same for both versions, and each version of a client goes
//! with each of a backend.
//!
//! ```text
//!  frames ─▶ connection ─▶ stream.incoming ─▶ SessionIo::read  ─▶ session
//!  frames ◀─ writer ◀───── stream.outgoing ◀─ SessionIo::write ◀─ session
//! ```
//!
//! A session asks `Shared::wanted` for a stream to a backend. Connections carry such streams once
//! the backend's SETTINGS are here, and more than one if it permits.
//!
//! A stream holds at most a window of the peer's message and 64 KiB of the session's: the windows
//! of HTTP/2 and TCP carry a receiver's slowness to the sender.

pub(crate) mod connection;
pub(crate) mod names;
mod outgoing;
mod request;
mod response;
pub(crate) mod session_io;
mod stream;
pub(crate) mod table;
pub(crate) mod wanted;
mod writer;
