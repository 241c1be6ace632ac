//! The address of a client whose connection comes from a proxy, without I/O.
//!
//! | Module | Its one idea |
//! |---|---|
//! | [`prefix`] | networks, from which proxies are trusted |
//! | [`proxy_protocol`] | a header at the beginning of a connection |
//! | [`forwarded`] | fields of a request: `X-Forwarded-For`, and `Forwarded` (RFC 7239) |
//!
//! Anyone can write such a header or field, so it counts only if its sender is trusted.
//! The crate touches only its arguments.

#![forbid(unsafe_code)]

pub mod forwarded;
pub mod prefix;
pub mod proxy_protocol;

pub use prefix::Prefix;
