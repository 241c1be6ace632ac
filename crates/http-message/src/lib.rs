//! HTTP/1.1 messages (RFC 9112), without I/O: what the content server and the proxy have in common.
//!
//! | Module | Its one idea |
//! |---|---|
//! | [`request`] | from bytes to a request head, or to a refusal |
//! | [`response`] | from bytes to a response head |
//! | [`framing`] | where a message's body ends, and what becomes of its connection |
//! | [`chunked`] | the chunked transfer coding |
//! | [`authority`] | which texts name a host |
//! | [`number`] | sizes in header fields |
//! | [`access`] | records of exchanges, and the log that they wait in |
//!
//! Whatever two parties could understand in two ways is refused (smuggling, RFC 9112 §11.2). It may
//! touch its arguments.

#![forbid(unsafe_code)]

pub mod access;
pub mod authority;
pub mod chunked;
pub mod framing;
pub mod number;
pub mod request;
pub mod response;
