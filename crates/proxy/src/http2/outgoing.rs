//! A session's message in HTTP/1.1, as the parts that become frames: a response for a client, or a
//! request for a backend.
//!
//! The text is the proxy's own: an error in it is a fault of the proxy.

use http_message::chunked::Decoder;
use http_message::framing::{Body, Framing};
use http_message::number;
use http_message::response::{self, Head};

use crate::buffer::Buffer;

/// Where the message stands.
#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// A head follows: of 1xx, or of the message.
    Head,
    Length(u64),
    Chunked(Decoder),
    /// The trailer section is here, and not written.
    Trailers(Vec<u8>),
    Ended,
}

/// The next part of a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// A field block. Trailers have no pseudo-header fields.
    Block {
        pseudo: Vec<(&'static str, Vec<u8>)>,
        /// Names in lower case.
        fields: Vec<(String, Vec<u8>)>,
        ends_stream: bool,
    },
    /// Content, which begins the buffer and leaves it with [`Outgoing::content_written`].
    Content { bytes: usize, ends_stream: bool },
}

/// Why there is no next part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nothing {
    /// The session has written no more yet.
    Yet,
    /// There is content, and no room for it.
    Room,
    /// The message is written, or unreadable.
    Ended,
}

/// See the [module documentation](self).
#[derive(Debug)]
pub(super) struct Outgoing {
    kind: Kind,
    state: State,
    /// The request's method is HEAD.
    is_head: bool,
    bytes: Buffer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Request,
    Response,
}

impl Outgoing {
    /// A response to a request, whose method may be HEAD.
    pub(super) fn response(is_head: bool) -> Self {
        Outgoing {
            kind: Kind::Response,
            state: State::Head,
            is_head,
            bytes: Buffer::default(),
        }
    }

    pub(super) fn request() -> Self {
        Outgoing {
            kind: Kind::Request,
            ..Outgoing::response(false)
        }
    }

    /// The request's method is HEAD.
    pub(super) fn is_head(&self) -> bool {
        self.is_head
    }

    /// Nothing more is written.
    pub(super) fn discard(&mut self) {
        self.state = State::Ended;
        self.bytes.clear();
    }

    /// Where the session's bytes are appended.
    pub(super) fn tail(&mut self) -> &mut Vec<u8> {
        self.bytes.tail()
    }

    /// Bytes that are not written.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes.memory_bytes()
    }

    /// The next bytes belong to a head.
    pub(super) fn is_in_head(&self) -> bool {
        self.state == State::Head
    }

    /// Its last part is written.
    pub(super) fn is_ended(&self) -> bool {
        self.state == State::Ended
    }

    /// Takes the next part, with at most `room` bytes of content.
    pub(super) fn next(&mut self, room: usize) -> Result<Part, Nothing> {
        loop {
            match &mut self.state {
                State::Head => {
                    return match self.kind {
                        Kind::Response => self.take_response(),
                        Kind::Request => self.take_request(),
                    };
                }
                State::Ended => return Err(Nothing::Ended),
                State::Trailers(section) => {
                    let section = std::mem::take(section);
                    self.state = State::Ended;
                    return Ok(trailers(&section));
                }
                State::Length(left) => {
                    let here = usize::try_from(*left).unwrap_or(usize::MAX);
                    let here = here.min(self.bytes.len());
                    let bytes = here.min(room);
                    if bytes == 0 {
                        return Err(if here == 0 {
                            Nothing::Yet
                        } else {
                            Nothing::Room
                        });
                    }
                    *left -= bytes as u64;
                    let ends_stream = *left == 0;
                    if ends_stream {
                        self.state = State::Ended;
                    }
                    return Ok(Part::Content { bytes, ends_stream });
                }
                State::Chunked(decoder) => {
                    if decoder.is_done() {
                        self.state = State::Trailers(decoder.take_trailers());
                        continue;
                    }
                    if self.bytes.is_empty() {
                        return Err(Nothing::Yet);
                    }
                    let Ok(step) = decoder.step_within(self.bytes.bytes(), room) else {
                        debug_assert!(false, "the session's own framing");
                        self.state = State::Ended;
                        return Err(Nothing::Ended);
                    };
                    let (bytes, is_done) = (step.content.len(), decoder.is_done());
                    self.bytes.consume(step.content.start);
                    if bytes > 0 {
                        return Ok(Part::Content {
                            bytes,
                            ends_stream: false,
                        });
                    }
                    if !is_done && !self.bytes.is_empty() {
                        return Err(Nothing::Room);
                    }
                }
            }
        }
    }

    /// The content of the last part, of this length, which leaves the buffer.
    pub(super) fn content(&self, bytes: usize) -> &[u8] {
        &self.bytes.bytes()[..bytes]
    }

    /// The content of the last part is written.
    pub(super) fn content_written(&mut self, bytes: usize) {
        self.bytes.consume(bytes);
    }

    fn take_request(&mut self) -> Result<Part, Nothing> {
        let bytes = self.bytes.bytes();
        let end = bytes.windows(4).position(|it| it == b"\r\n\r\n");
        let Some(end) = end else {
            return Err(Nothing::Yet);
        };
        let head = request_of(&bytes[..end]);
        self.bytes.consume(end + 4);
        let Some((pseudo, fields, body)) = head else {
            debug_assert!(false, "the session's own head");
            self.state = State::Ended;
            return Err(Nothing::Ended);
        };
        self.is_head = pseudo.first().is_some_and(|(_, method)| method == b"HEAD");
        let ends_stream;
        (self.state, ends_stream) = state_of(body);
        Ok(Part::Block {
            pseudo,
            fields,
            ends_stream,
        })
    }

    fn take_response(&mut self) -> Result<Part, Nothing> {
        let is_head = self.is_head;
        let parsed = response::parse(self.bytes.bytes(), usize::MAX, |head| {
            let (state, ends_stream) = after(head, is_head);
            let fields = head.headers.iter().filter(|it| !is_of_connection(it.name));
            let fields = fields.map(|it| (it.name.to_ascii_lowercase(), it.value.to_vec()));
            let block = Part::Block {
                pseudo: vec![(":status", head.status.to_string().into_bytes())],
                fields: fields.collect(),
                ends_stream,
            };
            Ok((head.head_bytes, state, block))
        });
        match parsed {
            Ok(None) => Err(Nothing::Yet),
            Ok(Some((head_bytes, state, block))) => {
                self.bytes.consume(head_bytes);
                self.state = state;
                Ok(block)
            }
            Err(_) => {
                debug_assert!(false, "the session's own head");
                self.state = State::Ended;
                Err(Nothing::Ended)
            }
        }
    }
}

/// What follows a head, and whether the stream ends with it.
fn after(head: &Head<'_>, is_head: bool) -> (State, bool) {
    if head.status < 200 {
        return (State::Head, false);
    }
    if is_head || [204, 304].contains(&head.status) {
        return (State::Ended, true);
    }
    let mut framing = Framing::default();
    for header in head.headers {
        let noted = framing.note(header);
        debug_assert!(noted.is_ok(), "the session's own framing");
    }
    state_of(framing.body(head.is_http_1_0).ok().flatten())
}

/// What follows a head with this body, and whether the stream ends with it.
fn state_of(body: Option<Body>) -> (State, bool) {
    match body {
        Some(Body::Chunked) => (State::Chunked(Decoder::with_trailers()), false),
        Some(Body::Bytes(bytes)) if bytes > 0 => (State::Length(bytes), false),
        _ => (State::Ended, true),
    }
}

/// Pseudo-header fields, fields and body of a request.
type Request = (
    Vec<(&'static str, Vec<u8>)>,
    Vec<(String, Vec<u8>)>,
    Option<Body>,
);

/// Reads a request's head, without its end (RFC 9113 §8.3.1). The connection to the backend has no
/// TLS, and so the scheme is `http`.
fn request_of(head: &[u8]) -> Option<Request> {
    let mut lines = head.split(|&byte| byte == b'\n');
    let mut words = lines.next()?.trim_ascii_end().split(|&byte| byte == b' ');
    let (method, target) = (words.next()?.to_vec(), words.next()?.to_vec());
    let (mut authority, mut fields, mut body) = (Vec::new(), Vec::new(), None);
    for line in lines {
        let colon = line.iter().position(|&byte| byte == b':')?;
        let name = str::from_utf8(&line[..colon]).ok()?.to_ascii_lowercase();
        let value = line[colon + 1..].trim_ascii().to_vec();
        match &*name {
            "host" => authority = value,
            "transfer-encoding" => body = Some(Body::Chunked),
            "connection" => {}
            _ => {
                if name == "content-length" {
                    body = Some(Body::Bytes(number::saturating(&value)?));
                }
                fields.push((name, value));
            }
        }
    }
    let pseudo = vec![
        (":method", method),
        (":scheme", b"http".to_vec()),
        (":authority", authority),
        (":path", target),
    ];
    Some((pseudo, fields, body))
}

/// Fields of HTTP/1.1's connection, which HTTP/2 must not have (RFC 9113 §8.2.2).
fn is_of_connection(name: &str) -> bool {
    ["connection", "transfer-encoding"]
        .iter()
        .any(|it| name.eq_ignore_ascii_case(it))
}

/// The field block of a trailer section, or an end without one.
fn trailers(section: &[u8]) -> Part {
    let lines = section.split(|&byte| byte == b'\n');
    let fields = lines.filter_map(|line| {
        let colon = line.iter().position(|&byte| byte == b':')?;
        let (name, value) = line.split_at(colon);
        let name = str::from_utf8(name).ok()?.to_ascii_lowercase();
        Some((name, value[1..].trim_ascii().to_vec()))
    });
    let fields: Vec<_> = fields.collect();
    match fields.is_empty() {
        true => Part::Content {
            bytes: 0,
            ends_stream: true,
        },
        false => Part::Block {
            pseudo: Vec::new(),
            fields,
            ends_stream: true,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All parts of a response that comes in pieces of this length, with this much room: statuses
    /// and fields of blocks, the content, and whether the stream has ended.
    fn parts(text: &str, is_head: bool, piece: usize, room: usize) -> (Vec<String>, String, bool) {
        parts_of(Outgoing::response(is_head), text, piece, room)
    }

    fn parts_of(
        mut outgoing: Outgoing,
        text: &str,
        piece: usize,
        room: usize,
    ) -> (Vec<String>, String, bool) {
        let (mut blocks, mut content, mut has_ended) = (Vec::new(), Vec::new(), false);
        for piece in text.as_bytes().chunks(piece) {
            outgoing.tail().extend_from_slice(piece);
            loop {
                assert!(!has_ended || outgoing.is_ended());
                match outgoing.next(room) {
                    Ok(Part::Block {
                        pseudo,
                        fields,
                        ends_stream,
                    }) => {
                        let fields = fields.iter().map(|(name, value)| {
                            format!(" {name}={}", String::from_utf8_lossy(value))
                        });
                        let pseudo = pseudo
                            .iter()
                            .map(|(_, value)| str::from_utf8(value).unwrap());
                        let pseudo = pseudo.collect::<Vec<_>>().join(" ");
                        blocks.push(format!("{pseudo}{}", fields.collect::<String>()));
                        has_ended |= ends_stream;
                    }
                    Ok(Part::Content { bytes, ends_stream }) => {
                        assert!(bytes <= room);
                        content.extend_from_slice(outgoing.content(bytes));
                        outgoing.content_written(bytes);
                        has_ended |= ends_stream;
                    }
                    Err(_) => break,
                }
            }
        }
        (blocks, String::from_utf8(content).unwrap(), has_ended)
    }

    #[test]
    fn responses_become_parts_however_they_are_cut() {
        let interim = "HTTP/1.1 103 Hints\r\nLink: a\r\n\r\n";
        let plain = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nA: B\r\n\r\n\
                       3\r\nhel\r\n2\r\nlo\r\n0\r\n";
        let (with, without) = (format!("{chunked}Sum: 7\r\n\r\n"), format!("{chunked}\r\n"));
        for (piece, room) in [(1, 1), (1, 9), (7, 2), (1000, 1), (1000, 1000)] {
            let of = |text: &str| parts(text, false, piece, room);
            let (blocks, content, has_ended) = of(&format!("{interim}{plain}"));
            assert_eq!(blocks, ["103 link=a", "200 content-length=5"]);
            assert_eq!((&*content, has_ended), ("hello", true));
            let (blocks, content, has_ended) = of(&with);
            assert_eq!(blocks, ["200 a=B", " sum=7"]);
            assert_eq!((&*content, has_ended), ("hello", true));
            let (blocks, content, has_ended) = of(&without);
            assert_eq!((blocks.len(), &*content, has_ended), (1, "hello", true));
            let cut = &plain[..plain.len() - 1];
            let (_, content, has_ended) = of(cut);
            assert_eq!((&*content, has_ended), ("hell", false));
        }
    }

    /// Covers: RFC 9113 §8.3.1
    #[test]
    fn requests_become_parts_however_they_are_cut() {
        let head = "POST /a?b HTTP/1.1\r\nHost: h:1\r\nTE: trailers\r\n";
        let chunked = format!(
            "{head}Transfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\nSum: 7\r\n\r\n"
        );
        let plain = format!("{head}Connection: Upgrade\r\nContent-Length: 5\r\n\r\nhello");
        let first = "POST http h:1 /a?b te=trailers";
        for (piece, room) in [(1, 1), (1, 9), (7, 2), (1000, 1000)] {
            let of = |text: &str| parts_of(Outgoing::request(), text, piece, room);
            let blocks = vec![first.to_owned(), " sum=7".to_owned()];
            assert_eq!(of(&chunked), (blocks, "hello".to_owned(), true));
            let blocks = vec![format!("{first} content-length=5")];
            assert_eq!(of(&plain), (blocks, "hello".to_owned(), true));
            let blocks = vec![first.to_owned()];
            assert_eq!(of(&format!("{head}\r\n")), (blocks, String::new(), true));
            let (_, _, has_ended) = of(&chunked[..chunked.len() - 1]);
            assert!(!has_ended);
        }
    }

    #[test]
    fn responses_without_a_body_end_with_their_head() {
        for (text, is_head) in [
            ("HTTP/1.1 204 No\r\n\r\n", false),
            ("HTTP/1.1 304 No\r\nContent-Length: 5\r\n\r\n", false),
            ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", false),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", true),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
                true,
            ),
        ] {
            let (blocks, content, has_ended) = parts(text, is_head, 1000, 1000);
            assert_eq!(
                (blocks.len(), &*content, has_ended),
                (1, "", true),
                "{text}"
            );
        }
    }

    #[test]
    fn content_without_room_waits_and_ends_need_none() {
        let mut outgoing = Outgoing::response(false);
        let text = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n";
        outgoing.tail().extend_from_slice(text);
        assert!(matches!(outgoing.next(0), Ok(Part::Block { .. })));
        assert_eq!(outgoing.next(0), Err(Nothing::Room));
        let content = Part::Content {
            bytes: 1,
            ends_stream: false,
        };
        assert_eq!(outgoing.next(1), Ok(content));
        outgoing.content_written(1);
        let end = Part::Content {
            bytes: 0,
            ends_stream: true,
        };
        assert_eq!(outgoing.next(0), Ok(end));
        assert_eq!(outgoing.next(0), Err(Nothing::Ended));
    }
}
