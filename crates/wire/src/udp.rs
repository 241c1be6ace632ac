//! UDP headers (RFC 768).

/// Length of the header, in bytes.
pub const HEADER_BYTES: usize = 8;

/// Offset of the length field, in bytes.
pub const LENGTH_OFFSET: usize = 4;

/// Offset of the checksum field, in bytes.
pub const CHECKSUM_OFFSET: usize = 6;
