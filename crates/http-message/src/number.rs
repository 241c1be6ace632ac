//! Numbers in header fields: sizes and offsets.

/// Parses digits, of which there must be at least one. A number beyond 64 bits saturates: it
/// exceeds every limit, and the end of every file.
pub fn saturating(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        Some(number.saturating_mul(10).saturating_add(digit))
    })
}
