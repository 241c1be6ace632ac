//! Numbers in header fields: sizes and offsets.

/// Digits only, and at least one. What 64 bits do not hold is as much as they do: beyond every
/// limit, and the end of every file.
pub fn saturating(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |number, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        Some(number.saturating_mul(10).saturating_add(digit))
    })
}
