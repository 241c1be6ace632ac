//! HTTP/2 (RFC 9113) without I/O, for the content server and the proxy.
//!
//! | Module | Its one idea |
//! |---|---|
//! | [`frame`] | frame headers, and frames of a connection |
//! | [`frame_reader`] | received bytes as frames |
//! | [`field`] | size of a field |
//! | [`hpack`] | field blocks (RFC 7541): `decode`, `encode`, `table`, `static_table` |
//! | [`settings`] | SETTINGS |
//! | [`stream_ids`] | IDs of streams: new, skipped, reset |
//! | [`window`], [`in_flight`] | flow-control windows; bytes of streams that are not acknowledged |
//! | [`priority`], [`scheduler`] | which response comes first (RFC 9218); which stream writes next |
//! | [`budget`], [`bounds`] | a bound on work beyond responses; other bounds and times |
//! | [`code`] | error codes, and the end of a stream or a connection |
//! | [`integer`], [`huffman`] | integers and strings (RFC 7541 §5), which QPACK shares |
//!
//! The life of connections, streams and requests belongs to their users. The crate touches only its
//! arguments.

#![forbid(unsafe_code)]

pub mod bounds;
pub mod budget;
pub mod code;
pub mod field;
pub mod frame;
pub mod frame_reader;
pub mod hpack;
pub mod huffman;
pub mod in_flight;
pub mod integer;
pub mod priority;
pub mod scheduler;
pub mod settings;
pub mod stream_ids;
pub mod window;
