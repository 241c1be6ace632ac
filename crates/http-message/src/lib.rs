//! HTTP/1.1 messages (RFC 9112), without I/O, for the content server and the proxy.
//!
//! | Module | Its one idea |
//! |---|---|
//! | [`request`] | from bytes to a request head, or to a refusal |
//! | [`response`] | from bytes to a response head |
//! | [`framing`] | the end of a message's body, and the persistence of its connection |
//! | [`chunked`] | the chunked transfer coding |
//! | [`trailers`] | fields that a trailer section may have |
//! | [`authority`] | validation of host names |
//! | [`number`] | sizes in header fields |
//! | [`access`] | records of exchanges, and the log that they wait in |
//!
//! Input that two parties could understand in two ways is refused (smuggling, RFC 9112 §11.2). The
//! crate touches only its arguments.

#![forbid(unsafe_code)]

pub mod access;
pub mod authority;
pub mod chunked;
pub mod framing;
pub mod number;
pub mod request;
pub mod response;
pub mod trailers;
