//! From a field block to the head of a request in HTTP/1.1 (RFC 9113 §8.2, §8.3).
//!
//! Names and values have no line ends, so that no field becomes two. The body's framing is the
//! proxy's own: by `Content-Length`, or chunked.

use http_message::chunked::TRAILER_BYTES_MAX;
use http_message::number;
use http2::field::{self, FIELD_BYTES};
use http2::hpack::decode::Decoder;
use http2::priority::Priority;

/// Why there is no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// The block cannot be decoded, for the whole connection (RFC 9113 §4.3).
    Block,
    /// The message is malformed (RFC 9113 §8.1.1).
    Message,
}

impl From<field::Invalid> for Unreadable {
    fn from(_: field::Invalid) -> Self {
        Unreadable::Message
    }
}

/// The framing of the peer's message in HTTP/1.1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Framing {
    pub(super) is_chunked: bool,
    /// Content that has to arrive, by `Content-Length`, in bytes.
    pub(super) content_bytes: Option<u64>,
}

/// The head of a request.
#[derive(Debug)]
pub(super) struct Head {
    /// In HTTP/1.1. An overlong head has no end, and the session answers 431.
    pub(super) text: Vec<u8>,
    pub(super) is_head: bool,
    pub(super) framing: Framing,
    /// `Priority`, if present.
    pub(super) priority: Option<Priority>,
}

/// Most pseudo-header fields of a request, of 32 bytes each beside their text.
const PSEUDO_MAX: usize = 4;

/// Largest field section, as SETTINGS_MAX_HEADER_LIST_SIZE counts: large enough for every head that
/// HTTP/1.1 accepts.
pub(super) fn section_bytes_max(head_bytes_max: usize) -> u32 {
    let fields_max = http_message::request::HEADER_COUNT_MAX + PSEUDO_MAX;
    let bytes = head_bytes_max.saturating_add(fields_max * FIELD_BYTES);
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Reads the field block of a request.
///
/// # Errors
/// Why there is none. The dynamic table has taken the block, unless it cannot be decoded.
pub(super) fn read(
    decoder: &mut Decoder,
    block: &[u8],
    ends_stream: bool,
    head_bytes_max: usize,
) -> Result<Head, Unreadable> {
    let mut reader = Reader::default();
    decode(decoder, block, |name, value| {
        reader.take(name, value, head_bytes_max)
    })?;
    reader.end(ends_stream, head_bytes_max)
}

/// Reads the field block of trailers, as lines of HTTP/1.1. Those that cannot be trailers are left
/// out later.
///
/// # Errors
/// As [`read`]; also, the section is longer than a chunked body can have.
pub(super) fn read_trailers(decoder: &mut Decoder, block: &[u8]) -> Result<Vec<u8>, Unreadable> {
    let mut lines = Vec::new();
    decode(decoder, block, |name, value| {
        field::check(name, value)?;
        field::check_ends(value)?;
        if lines.len() <= TRAILER_BYTES_MAX {
            line(&mut lines, name, value);
        }
        Ok(())
    })?;
    match lines.len() <= TRAILER_BYTES_MAX {
        true => Ok(lines),
        false => Err(Unreadable::Message),
    }
}

/// Hands the fields of a block to `take`, up to one that it refuses. The dynamic table takes the
/// whole block.
///
/// # Errors
/// The block cannot be decoded, or what `take` returned.
pub(super) fn decode(
    decoder: &mut Decoder,
    block: &[u8],
    mut take: impl FnMut(&[u8], &[u8]) -> Result<(), Unreadable>,
) -> Result<(), Unreadable> {
    let mut result = Ok(());
    let decoded = decoder.decode(block, &mut Vec::new(), |name, value| {
        if result.is_ok() {
            result = take(name, value);
        }
    });
    decoded.map_err(|_| Unreadable::Block)?;
    result
}

/// Takes the value of `Content-Length` (RFC 9110 §8.6).
///
/// # Errors
/// It is no number, or the second one.
pub(super) fn take_content_length(
    content_bytes: &mut Option<u64>,
    value: &[u8],
) -> Result<(), Unreadable> {
    let bytes = number::saturating(value).ok_or(Unreadable::Message)?;
    match content_bytes.replace(bytes) {
        Some(_) => Err(Unreadable::Message),
        None => Ok(()),
    }
}

/// A request that is read in part.
#[derive(Debug, Default)]
struct Reader {
    method: Option<Vec<u8>>,
    scheme: Option<Vec<u8>>,
    authority: Option<Vec<u8>>,
    path: Option<Vec<u8>>,
    host: Option<Vec<u8>>,
    /// Field lines, without `Host` and `Cookie`.
    lines: Vec<u8>,
    cookie: Vec<u8>,
    has_fields: bool,
    content_bytes: Option<u64>,
    priority: Option<Priority>,
}

impl Reader {
    fn take(&mut self, name: &[u8], value: &[u8], head_bytes_max: usize) -> Result<(), Unreadable> {
        field::check_ends(value)?;
        if name.starts_with(b":") {
            return self.take_pseudo(name, value);
        }
        self.has_fields = true;
        field::check(name, value)?;
        match name {
            _ if field::is_connection_specific(name, value) => return Err(Unreadable::Message),
            b"host" => {
                let is_second = self.host.replace(value.to_vec()).is_some();
                return match is_second || value.is_empty() {
                    true => Err(Unreadable::Message),
                    false => Ok(()),
                };
            }
            b"content-length" => return take_content_length(&mut self.content_bytes, value),
            b"priority" => self.priority = Some(Priority::parse(value)),
            _ => {}
        }
        // The session refuses a longer head at its limit.
        if self.lines.len() + self.cookie.len() > head_bytes_max {
            return Ok(());
        }
        // RFC 9113 §8.2.3: crumbs become one field.
        if name == b"cookie" {
            if !self.cookie.is_empty() {
                self.cookie.extend_from_slice(b"; ");
            }
            self.cookie.extend_from_slice(value);
            return Ok(());
        }
        line(&mut self.lines, name, value);
        Ok(())
    }

    /// RFC 9113 §8.3: each appears once, before all other fields.
    fn take_pseudo(&mut self, name: &[u8], value: &[u8]) -> Result<(), Unreadable> {
        let place = match name {
            _ if self.has_fields => return Err(Unreadable::Message),
            b":method" => &mut self.method,
            b":scheme" => &mut self.scheme,
            b":authority" => &mut self.authority,
            b":path" => &mut self.path,
            _ => return Err(Unreadable::Message),
        };
        field::check_value(value)?;
        match place.replace(value.to_vec()) {
            Some(_) => Err(Unreadable::Message),
            None => Ok(()),
        }
    }

    /// Method and target (RFC 9113 §8.3.1, §8.5).
    fn request_line(&self) -> Result<[&[u8]; 2], Unreadable> {
        let method = self.method.as_deref().ok_or(Unreadable::Message)?;
        let is_connect = method == b"CONNECT";
        let target = match is_connect {
            true if self.scheme.is_some() || self.path.is_some() => None,
            true => self.authority.as_deref(),
            false => self.path.as_deref().filter(|_| self.scheme.is_some()),
        };
        let target = target.ok_or(Unreadable::Message)?;
        let is_asterisk = method == b"OPTIONS" && target == b"*";
        let is_target = is_connect || target.starts_with(b"/") || is_asterisk;
        let has_only_visible = target.iter().all(|&byte| byte > b' ' && byte != 0x7f);
        let is_method = !method.is_empty() && method.iter().all(|&byte| field::is_token(byte));
        match is_method && is_target && has_only_visible {
            true => Ok([method, target]),
            false => Err(Unreadable::Message),
        }
    }

    fn end(self, ends_stream: bool, head_bytes_max: usize) -> Result<Head, Unreadable> {
        let [method, target] = self.request_line()?;
        let host = match (&self.authority, &self.host) {
            // RFC 9113 §8.3.1: both must be equal.
            (Some(authority), Some(host)) if authority != host => return Err(Unreadable::Message),
            (Some(host), _) | (None, Some(host)) if !host.is_empty() => host,
            _ => return Err(Unreadable::Message),
        };
        if ends_stream && self.content_bytes.is_some_and(|bytes| bytes > 0) {
            return Err(Unreadable::Message);
        }
        let mut text = [method, b" ", target, b" HTTP/1.1\r\n"].concat();
        line(&mut text, b"host", host);
        text.extend_from_slice(&self.lines);
        if !self.cookie.is_empty() {
            line(&mut text, b"cookie", &self.cookie);
        }
        // RFC 9110 §8.6: content of no bytes has a length, where the method gives it a meaning.
        let has_meaning = [&b"POST"[..], b"PUT", b"PATCH"].contains(&method);
        let length = self.content_bytes;
        let length = length.or_else(|| (ends_stream && has_meaning).then_some(0));
        let is_chunked = length.is_none() && !ends_stream;
        if let Some(bytes) = length {
            line(&mut text, b"content-length", bytes.to_string().as_bytes());
        } else if is_chunked {
            line(&mut text, b"transfer-encoding", b"chunked");
        }
        if text.len() <= head_bytes_max {
            text.extend_from_slice(b"\r\n");
        }
        Ok(Head {
            is_head: method == b"HEAD",
            framing: Framing {
                is_chunked,
                content_bytes: self.content_bytes,
            },
            priority: self.priority,
            text,
        })
    }
}

pub(super) fn line(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    for piece in [name, b": ", value, b"\r\n"] {
        out.extend_from_slice(piece);
    }
}

#[cfg(test)]
mod tests {
    use http2::hpack::encode::Encoder;

    use super::*;

    const GET: [(&str, &str); 4] = [
        (":method", "GET"),
        (":scheme", "https"),
        (":path", "/a?b"),
        (":authority", "h:1"),
    ];

    fn read_fields(fields: &[(&str, &str)], ends_stream: bool) -> Result<String, Unreadable> {
        let mut block = Vec::new();
        let mut encoder = Encoder::default();
        encoder.begin(&mut block);
        for (name, value) in fields {
            encoder.field(&mut block, name, value.as_bytes());
        }
        let head = read(&mut Decoder::default(), &block, ends_stream, 400)?;
        Ok(String::from_utf8(head.text).unwrap())
    }

    /// Covers: RFC 9113 §8.2.3, RFC 9113 §8.3.1
    #[test]
    fn a_request_becomes_one_of_http_1_1_with_one_cookie() {
        let more = [
            ("cookie", "a=1"),
            ("x", "y"),
            ("te", "trailers"),
            ("cookie", "b=2"),
        ];
        let text = read_fields(&[&GET[..], &more].concat(), true);
        let lines =
            "GET /a?b HTTP/1.1\r\nhost: h:1\r\nx: y\r\nte: trailers\r\ncookie: a=1; b=2\r\n";
        assert_eq!(text, Ok(format!("{lines}\r\n")));
        let chunked = read_fields(&GET, false).unwrap();
        assert!(chunked.ends_with("host: h:1\r\ntransfer-encoding: chunked\r\n\r\n"));
        let of_length = [&GET[..], &[("content-length", "7")]].concat();
        let of_length = read_fields(&of_length, false).unwrap();
        assert!(of_length.ends_with("host: h:1\r\ncontent-length: 7\r\n\r\n"));
        let mut post = GET;
        post[0].1 = "POST";
        let post = read_fields(&post, true).unwrap();
        assert!(post.ends_with("\r\ncontent-length: 0\r\n\r\n"), "{post}");
    }

    #[test]
    fn an_overlong_head_has_no_end() {
        let long = "v".repeat(400);
        let text = read_fields(&[&GET[..], &[("x", &*long), ("y", "z")]].concat(), true).unwrap();
        assert!(text.len() > 400 && !text.ends_with("\r\n\r\n"), "{text}");
    }

    /// Covers: RFC 9113 §8.1.1, RFC 9113 §8.2.1, RFC 9113 §8.2.2, RFC 9113 §8.3, RFC 9113 §8.5
    #[test]
    fn malformed_requests_are_refused() {
        let malformed: [&[(&str, &str)]; 21] = [
            &[("x", " y")],
            &[("x", "y\t")],
            &[("connection", "close")],
            &[("transfer-encoding", "chunked")],
            &[("upgrade", "h2c")],
            &[("keep-alive", "5")],
            &[("proxy-connection", "close")],
            &[("te", "gzip")],
            &[("X", "y")],
            &[("x y", "z")],
            &[("", "z")],
            &[("x", "a\r\nhost: b")],
            &[("x", "a\0b")],
            &[("host", "other")],
            &[("content-length", "1"), ("content-length", "1")],
            &[("content-length", "+1")],
            &[("content-length", "1")],
            &[(":method", "GET")],
            &[(":status", "200")],
            &[(":protocol", "websocket")],
            &[("x", "y"), (":path", "/")],
        ];
        for more in malformed {
            let fields = [&GET[..], more].concat();
            assert_eq!(
                read_fields(&fields, true),
                Err(Unreadable::Message),
                "{more:?}"
            );
        }
        for (at, value) in [(0, "G T"), (0, ""), (2, ""), (2, "a"), (2, "/a b"), (3, "")] {
            let mut fields = GET;
            fields[at].1 = value;
            assert_eq!(
                read_fields(&fields, true),
                Err(Unreadable::Message),
                "{fields:?}"
            );
        }
        for left_out in 0..4 {
            let mut fields = GET.to_vec();
            fields.remove(left_out);
            assert_eq!(
                read_fields(&fields, true),
                Err(Unreadable::Message),
                "{fields:?}"
            );
        }
    }
}
