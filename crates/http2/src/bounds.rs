//! Bounds and times of connections that the content server and the proxy share.

use std::time::Duration;

/// The first bytes of a client (RFC 9113 §3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Time for which a server still accepts requests after the first GOAWAY: they may be in flight
/// (RFC 9113 §6.8).
pub const ANNOUNCED_FOR: Duration = Duration::from_secs(1);

/// Bytes in the TCP stream that it cannot send yet, from which on no stream writes. A stream that
/// becomes urgent waits for these.
pub const UNSENT_BYTES_MAX: u64 = 64 << 10;

/// Unsent bytes at which streams write again.
pub const UNSENT_BYTES_LOW: u64 = 32 << 10;

/// Frames of the connection that the TCP stream has not taken, in bytes, from which on nothing is
/// read.
pub const PENDING_BYTES_MAX: usize = 16 << 10;
