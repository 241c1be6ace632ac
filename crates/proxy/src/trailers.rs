//! The trailer section of a chunked response, for clients of HTTP/2 (RFC 9110 §6.5).

use http2::field::is_token;

/// Fields that a trailer section cannot have: of connections, framing, routing, authentication, and
/// content (RFC 9110 §6.5.1).
const FORBIDDEN: [&str; 22] = [
    "authorization",
    "cache-control",
    "connection",
    "content-encoding",
    "content-length",
    "content-range",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "max-forwards",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "range",
    "set-cookie",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
    "www-authenticate",
];

/// Appends the forwarded fields of a trailer section, which a decoder has kept.
pub(crate) fn pass_on(out: &mut Vec<u8>, section: &[u8]) {
    for line in section.split(|&byte| byte == b'\n') {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else {
            continue;
        };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        let is_forbidden = FORBIDDEN
            .iter()
            .any(|known| name.eq_ignore_ascii_case(known.as_bytes()));
        let is_name = !name.is_empty() && name.iter().all(|&byte| is_token(byte));
        if is_name && !is_forbidden {
            for piece in [name, b": ", value, b"\r\n"] {
                out.extend_from_slice(piece);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_framing_routing_or_content_go_no_further() {
        let mut out = Vec::new();
        let section = b"Sum: 1\r\nContent-Length: 5\r\nhost: h\r\nTE: x\r\na b: c\r\nx:y\r\n";
        pass_on(&mut out, section);
        assert_eq!(out, b"Sum: 1\r\nx: y\r\n");
    }
}
