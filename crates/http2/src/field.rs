//! Size of a field in a section and in a table.

/// Overhead of each field, in bytes (RFC 7541 §4.1, RFC 9113 §6.5.2, RFC 9114 §4.2.2).
pub const FIELD_BYTES: usize = 32;
