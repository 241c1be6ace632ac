//! From a field block to the head of a response in HTTP/1.1 (RFC 9113 §8.2, §8.3.2).

use http_message::number;
use http2::field;
use http2::hpack::decode::Decoder;

use super::request::{self, Framing, Unreadable, line, take_content_length};

/// The head of a response.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// In HTTP/1.1.
    pub(super) text: Vec<u8>,
    /// `None` for 1xx: another head follows.
    pub(super) framing: Option<Framing>,
}

/// Reads the field block of a response to a request, whose method may be HEAD.
///
/// # Errors
/// Why there is none. The dynamic table has taken the block, unless it cannot be decoded.
pub(super) fn read(
    decoder: &mut Decoder,
    block: &[u8],
    (is_head, ends_stream): (bool, bool),
    head_bytes_max: usize,
) -> Result<Head, Unreadable> {
    let mut reader = Reader::default();
    request::decode(decoder, block, |name, value| {
        reader.take(name, value, head_bytes_max)
    })?;
    reader.end(is_head, ends_stream)
}

/// A response that is read in part.
#[derive(Debug, Default)]
struct Reader {
    status: Option<u16>,
    lines: Vec<u8>,
    has_fields: bool,
    content_bytes: Option<u64>,
}

impl Reader {
    fn take(&mut self, name: &[u8], value: &[u8], head_bytes_max: usize) -> Result<(), Unreadable> {
        field::check_ends(value)?;
        if name == b":status" && !self.has_fields && self.status.is_none() {
            self.status = Some(status(value).ok_or(Unreadable::Message)?);
            return Ok(());
        }
        self.has_fields = true;
        // No other pseudo-header field passes.
        field::check(name, value)?;
        match name {
            _ if field::is_connection_specific(name, value) => return Err(Unreadable::Message),
            b"content-length" => return take_content_length(&mut self.content_bytes, value),
            _ => {}
        }
        line(&mut self.lines, name, value);
        match self.lines.len() <= head_bytes_max {
            true => Ok(()),
            false => Err(Unreadable::Message),
        }
    }

    fn end(self, is_head: bool, ends_stream: bool) -> Result<Head, Unreadable> {
        let status = self.status.ok_or(Unreadable::Message)?;
        // RFC 9113 §8.6: there is no 101.
        let is_interim = status < 200;
        if status == 101 || is_interim && ends_stream {
            return Err(Unreadable::Message);
        }
        let mut text = format!("HTTP/1.1 {status} \r\n").into_bytes();
        text.extend_from_slice(&self.lines);
        let has_body = !is_interim && !is_head && ![204, 304].contains(&status);
        // RFC 9113 §8.1.1: only a response without content may announce some.
        if has_body && ends_stream && self.content_bytes.is_some_and(|bytes| bytes > 0) {
            return Err(Unreadable::Message);
        }
        let length = self.content_bytes;
        let length = length.or_else(|| (has_body && ends_stream).then_some(0));
        let is_chunked = has_body && length.is_none();
        match length {
            Some(bytes) if !is_interim => {
                line(&mut text, b"content-length", bytes.to_string().as_bytes());
            }
            _ if is_chunked => line(&mut text, b"transfer-encoding", b"chunked"),
            _ => {}
        }
        text.extend_from_slice(b"\r\n");
        let framing = Framing {
            is_chunked,
            content_bytes: if has_body { length } else { Some(0) },
        };
        Ok(Head {
            text,
            framing: (!is_interim).then_some(framing),
        })
    }
}

/// Three digits, of which the first is one of a class.
fn status(value: &[u8]) -> Option<u16> {
    let is_status = value.len() == 3 && value.iter().all(u8::is_ascii_digit);
    let number = is_status.then(|| number::saturating(value)).flatten()?;
    u16::try_from(number).ok().filter(|status| *status >= 100)
}

#[cfg(test)]
mod tests {
    use http2::hpack::encode::Encoder;

    use super::*;

    fn read_fields(
        fields: &[(&str, &str)],
        is_head: bool,
        ends_stream: bool,
    ) -> Result<(String, Option<Framing>), Unreadable> {
        let mut block = Vec::new();
        let mut encoder = Encoder::default();
        encoder.begin(&mut block);
        for (name, value) in fields {
            encoder.field(&mut block, name, value.as_bytes());
        }
        let how = (is_head, ends_stream);
        let head = read(&mut Decoder::default(), &block, how, 400)?;
        Ok((String::from_utf8(head.text).unwrap(), head.framing))
    }

    fn framing(is_chunked: bool, content_bytes: Option<u64>) -> Option<Framing> {
        Some(Framing {
            is_chunked,
            content_bytes,
        })
    }

    #[test]
    fn responses_become_heads_of_http_1_1_with_the_framing_of_their_body() {
        let head = |status: &str, more: &str| format!("HTTP/1.1 {status} \r\n{more}\r\n");
        let chunked = head("200", "x: y\r\ntransfer-encoding: chunked\r\n");
        let fields = [(":status", "200"), ("x", "y")];
        let read = read_fields(&fields, false, false);
        assert_eq!(read, Ok((chunked, framing(true, None))));
        // Trailers only.
        let empty = head("200", "x: y\r\ncontent-length: 0\r\n");
        let read = read_fields(&fields, false, true);
        assert_eq!(read, Ok((empty, framing(false, Some(0)))));
        let of_length = [(":status", "200"), ("content-length", "7")];
        let text = head("200", "content-length: 7\r\n");
        let read = read_fields(&of_length, false, false);
        assert_eq!(read, Ok((text.clone(), framing(false, Some(7)))));
        let read = read_fields(&of_length, true, true);
        assert_eq!(read, Ok((text, framing(false, Some(0)))));
        let read = read_fields(&[(":status", "304"), ("content-length", "7")], false, true);
        let text = head("304", "content-length: 7\r\n");
        assert_eq!(read, Ok((text, framing(false, Some(0)))));
        let read = read_fields(&[(":status", "103"), ("link", "a")], false, false);
        assert_eq!(read, Ok((head("103", "link: a\r\n"), None)));
    }

    /// Covers: RFC 9113 §8.1.1, RFC 9113 §8.2.1, RFC 9113 §8.2.2, RFC 9113 §8.3.2, RFC 9113 §8.6
    #[test]
    fn malformed_responses_are_refused() {
        let ok = (":status", "200");
        let long = "v".repeat(400);
        let malformed: [&[(&str, &str)]; 18] = [
            &[],
            &[("x", "y")],
            &[("x", "y"), ok],
            &[ok, ok],
            &[ok, (":path", "/")],
            &[(":status", "20")],
            &[(":status", "2000")],
            &[(":status", "+20")],
            &[(":status", "099")],
            &[(":status", "101")],
            &[ok, ("connection", "close")],
            &[ok, ("transfer-encoding", "chunked")],
            &[ok, ("X", "y")],
            &[ok, ("x", "a\r\nb: c")],
            &[ok, ("x", " y")],
            &[ok, ("content-length", "1"), ("content-length", "1")],
            &[ok, ("content-length", "-1")],
            &[ok, ("x", &long)],
        ];
        for fields in malformed {
            let read = read_fields(fields, false, false);
            assert_eq!(read, Err(Unreadable::Message), "{fields:?}");
        }
        let read = read_fields(&[ok, ("content-length", "1")], false, true);
        assert_eq!(read, Err(Unreadable::Message));
        let read = read_fields(&[(":status", "100")], false, true);
        assert_eq!(read, Err(Unreadable::Message));
    }
}
