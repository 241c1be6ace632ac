//! Addresses of clients, as proxies name them, and clients that may connect, without I/O.
//!
//! | Module | Its one idea |
//! |---|---|
//! | [`prefix`] | networks: addresses with a common prefix |
//! | [`networks`] | a table of networks, each with a value |
//! | [`access`] | which clients may connect |
//! | [`proxy_protocol`] | a header at the beginning of a connection |
//! | [`forwarded`] | fields of a request: `X-Forwarded-For`, and `Forwarded` (RFC 7239) |
//!
//! Anyone can write such a header or field, so it counts only if its sender is trusted.
//! The crate touches only its arguments.

#![forbid(unsafe_code)]

pub mod access;
pub mod forwarded;
pub mod networks;
pub mod prefix;
pub mod proxy_protocol;

pub use access::AccessList;
pub use networks::Networks;
pub use prefix::Prefix;
