//! HTTP/2 (RFC 9113) without I/O, for the content server and the proxy.
//!
//! | Module | Its one idea |
//! |---|---|
//! | [`frame`] | frame headers, and frames of a connection |
//! | [`frame_reader`] | received bytes as frames |
//! | [`field`] | size of a field |
//! | [`hpack`] | field blocks (RFC 7541): `decode`, `encode`, `table`, `static_table` |
//! | [`settings`] | SETTINGS |
//! | [`window`] | flow-control windows |
//! | [`priority`], [`scheduler`] | which response comes first (RFC 9218); which stream writes next |
//! | [`budget`] | a bound on work beyond responses |
//! | [`code`] | error codes, and the end of a stream or a connection |
//! | [`integer`], [`huffman`] | integers and strings (RFC 7541 §5), which QPACK shares |
//!
//! The life of connections, streams and requests belongs to their users. The crate touches only its
//! arguments.

#![forbid(unsafe_code)]

pub mod budget;
pub mod code;
pub mod field;
pub mod frame;
pub mod frame_reader;
pub mod hpack;
pub mod huffman;
pub mod integer;
pub mod priority;
pub mod scheduler;
pub mod settings;
pub mod window;
