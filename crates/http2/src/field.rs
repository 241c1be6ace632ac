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
#[inline]
pub fn check(name: &[u8], value: &[u8]) -> Result<(), Invalid> {
    let is_name_byte = |&byte: &u8| IS_NAME_BYTE[usize::from(byte)];
    if name.is_empty() || !name.iter().all(is_name_byte) {
        return Err(Invalid);
    }
    check_value(value)
}

/// Checks the value of a field.
///
/// # Errors
/// It has a control character.
#[inline]
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
#[inline]
pub fn check_ends(value: &[u8]) -> Result<(), Invalid> {
    let is_space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    match is_space(value.first()) || is_space(value.last()) {
        true => Err(Invalid),
        false => Ok(()),
    }
}

/// True for a connection-specific field, whose message is malformed (RFC 9113 §8.2.2, RFC 9114
/// §4.2).
pub fn is_connection_specific(name: &[u8], value: &[u8]) -> bool {
    match name {
        b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding" | b"upgrade" => {
            true
        }
        b"te" => !value.eq_ignore_ascii_case(b"trailers"),
        _ => false,
    }
}

/// `tchar` of RFC 9110 §5.6.2.
pub const fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#'..=b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~'
        )
}

/// Bytes of names, by value: tokens without upper-case letters.
static IS_NAME_BYTE: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < table.len() {
        table[byte] = is_token(byte as u8) && !(byte as u8).is_ascii_uppercase();
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_the_connection_are_those_of_the_rfc() {
        for name in [
            "connection",
            "keep-alive",
            "proxy-connection",
            "transfer-encoding",
            "upgrade",
        ] {
            assert!(is_connection_specific(name.as_bytes(), b""), "{name}");
        }
        assert!(is_connection_specific(b"te", b"trailers, gzip"));
        assert!(!is_connection_specific(b"te", b"Trailers"));
        assert!(!is_connection_specific(b"cookie", b"upgrade"));
    }

    #[test]
    fn tokens_are_those_of_the_grammar() {
        for byte in 0..=u8::MAX {
            let is_special = b"!#$%&'*+-.^_`|~".contains(&byte);
            assert_eq!(
                is_token(byte),
                byte.is_ascii_alphanumeric() || is_special,
                "{byte}"
            );
            let is_name = check(&[byte], b"").is_ok();
            assert_eq!(is_name, is_token(byte) && !byte.is_ascii_uppercase());
        }
    }
}
