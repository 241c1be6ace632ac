//! The trailer section of a chunked response, for clients of HTTP/2 (RFC 9110 §6.5).

use http_message::trailers::may_have;
use http2::field::is_token;

/// Appends the forwarded fields of a trailer section, which a decoder has kept.
pub(crate) fn pass_on(out: &mut Vec<u8>, section: &[u8]) {
    for line in section.split(|&byte| byte == b'\n') {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else {
            continue;
        };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        let is_name = !name.is_empty() && name.iter().all(|&byte| is_token(byte));
        if is_name && may_have(name) {
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
