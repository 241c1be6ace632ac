//! Fields of a section: their size, and the characters that they may have.

/// Overhead of each field, in bytes (RFC 7541 §4.1, RFC 9113 §6.5.2, RFC 9114 §4.2.2).
pub const FIELD_BYTES: usize = 32;

/// A name or a value has a character that no field may have: the message is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalid;

/// Checks a field (RFC 9113 §8.2.1, RFC 9114 §4.2, §10.3).
///
/// # Errors
/// The name is empty or has an upper-case letter, or one of the two has another invalid character.
pub fn check(name: &[u8], value: &[u8]) -> Result<(), Invalid> {
    let is_name_byte = |&byte: &u8| is_token(byte) && !byte.is_ascii_uppercase();
    if name.is_empty() || !name.iter().all(is_name_byte) {
        return Err(Invalid);
    }
    check_value(value)
}

/// Checks the value of a field.
///
/// # Errors
/// It has a control character.
pub fn check_value(value: &[u8]) -> Result<(), Invalid> {
    let is_value_byte = |&byte: &u8| byte == b'\t' || byte >= b' ' && byte != 0x7f;
    match value.iter().all(is_value_byte) {
        true => Ok(()),
        false => Err(Invalid),
    }
}

/// Checks the ends of a value of HTTP/2 (RFC 9113 §8.2.1), which HTTP/3 does not restrict.
///
/// # Errors
/// It starts or ends with whitespace.
pub fn check_ends(value: &[u8]) -> Result<(), Invalid> {
    let is_space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    match is_space(value.first()) || is_space(value.last()) {
        true => Err(Invalid),
        false => Ok(()),
    }
}

/// `tchar` of RFC 9110 §5.6.2.
pub fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
