//! `uri-host [ ":" port ]`, as `Host` and targets in absolute-form carry it (RFC 9110 §7.2, RFC
//! 3986 §3.2).
//!
//! RFC 3986 permits nearly any text as a registered name. Two parties that read an odd one in two
//! ways may take it for two hosts, so only possible hosts are accepted: an IP literal in brackets,
//! or labels separated by single dots.

use std::net::Ipv6Addr;

/// True if the text names a host, with a port or without.
pub fn is_valid(text: &[u8]) -> bool {
    let (host_is_valid, port) = match text.strip_prefix(b"[") {
        Some(rest) => {
            let Some(end) = rest.iter().position(|&byte| byte == b']') else {
                return false;
            };
            (is_ipv6(&rest[..end]), &rest[end + 1..])
        }
        None => {
            let end = text.iter().position(|&byte| byte == b':');
            let (name, port) = text.split_at(end.unwrap_or(text.len()));
            (is_name(name), port)
        }
    };
    host_is_valid && is_port(port)
}

fn is_ipv6(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok_and(|text| text.parse::<Ipv6Addr>().is_ok())
}

/// Unreserved characters and sub-delims (RFC 3986 §2.2, §2.3) but for the dot.
const IS_LABEL_BYTE: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 128 {
        table[byte] = (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    let others = b"-_~!$&'()*+,;=";
    let mut at = 0;
    while at < others.len() {
        table[others[at] as usize] = true;
        at += 1;
    }
    table
};

/// Labels of unreserved characters, sub-delims and escapes (RFC 3986 §3.2.2); a dot may end the
/// last one (RFC 1034 §3.1).
fn is_name(mut name: &[u8]) -> bool {
    if name.is_empty() {
        return false;
    }
    let mut label_is_empty = true;
    while let Some((&byte, rest)) = name.split_first() {
        name = match (byte, rest) {
            _ if IS_LABEL_BYTE[usize::from(byte)] => rest,
            (b'.', _) if !label_is_empty => rest,
            (b'%', [high, low, rest @ ..])
                if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                rest
            }
            _ => return false,
        };
        label_is_empty = byte == b'.';
    }
    true
}

/// Nothing, or a colon and digits, of which there may be none (RFC 3986 §3.2.3).
fn is_port(text: &[u8]) -> bool {
    match text.split_first() {
        None => true,
        Some((b':', digits)) => digits.len() <= 5 && digits.iter().all(u8::is_ascii_digit),
        Some(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_name_or_an_address_with_a_port_or_without() {
        for text in [
            "h",
            "example.org",
            "example.org.",
            "example.org:8080",
            "example.org:",
            "a_b.example",
            "caf%C3%A9.example",
            "10.77.0.2:80",
            "[fd77::2]",
            "[fd77::2]:443",
            "[::ffff:192.0.2.1]",
        ] {
            assert!(is_valid(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn what_names_no_host_is_refused() {
        for text in [
            "",
            ".",
            "..",
            "a..b",
            ".a",
            ":80",
            ":",
            "a:b",
            "a:80:80",
            "a:123456",
            "fd77::2",
            "[",
            "[]",
            "[fd77::2",
            "fd77::2]",
            "[fd77::2]80",
            "[h]",
            "[v1.x]",
            "@",
            "u@h",
            "u:p@h",
            "a b",
            "a/b",
            "a%",
            "a%4",
            "a%zz",
            "h\u{e9}",
            "[fe80::1%25eth0]",
        ] {
            assert!(!is_valid(text.as_bytes()), "{text}");
        }
    }
}
