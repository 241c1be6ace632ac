//! What a client sends and reads: frames (RFC 9114 §7) and field sections (RFC 9204 §4.5).

use host::app::{QuicConnection, StreamId};

use crate::lab::{Lab, Response};

/// RFC 9204 Appendix A: a line for each entry, name and value with a tab between.
const STATIC_TABLE: &str = include_str!("static_table.txt");

/// Types of frames.
pub(crate) const DATA: u64 = 0;
pub(crate) const HEADERS: u64 = 1;
pub(crate) const CANCEL_PUSH: u64 = 3;
pub(crate) const SETTINGS: u64 = 4;
pub(crate) const PUSH_PROMISE: u64 = 5;
pub(crate) const GOAWAY: u64 = 7;
pub(crate) const MAX_PUSH_ID: u64 = 0xd;
pub(crate) const PRIORITY_UPDATE: u64 = 0xf0700;
pub(crate) const PRIORITY_UPDATE_PUSH: u64 = 0xf0701;
/// One that means nothing (RFC 9114 §7.2.8).
pub(crate) const RESERVED: u64 = 0x1f * 7 + 0x21;

/// An integer of variable length (RFC 9000 §16).
pub(crate) fn varint(value: u64) -> Vec<u8> {
    match value {
        0..64 => vec![value as u8],
        64..16_384 => (0x4000 | value as u16).to_be_bytes().to_vec(),
        16_384..1_073_741_824 => (0x8000_0000 | value as u32).to_be_bytes().to_vec(),
        _ => (0xc000_0000_0000_0000 | value).to_be_bytes().to_vec(),
    }
}

/// Takes such an integer from the beginning of some bytes.
pub(crate) fn take_varint(bytes: &mut &[u8]) -> u64 {
    let length = 1 << (bytes[0] >> 6);
    let (number, rest) = bytes.split_at(length);
    *bytes = rest;
    let value = number
        .iter()
        .fold(0, |value, &byte| value << 8 | u64::from(byte));
    value & (u64::MAX >> (64 - 8 * length + 2))
}

/// A frame.
pub(crate) fn frame(kind: u64, payload: impl AsRef<[u8]>) -> Vec<u8> {
    let payload = payload.as_ref();
    [&varint(kind)[..], &varint(payload.len() as u64), payload].concat()
}

/// An integer with a prefix (RFC 7541 §5.1).
fn prefixed(pattern: u8, bits: u32, value: usize) -> Vec<u8> {
    let mask = (1 << bits) - 1;
    if value < mask {
        return vec![pattern | value as u8];
    }
    let mut bytes = vec![pattern | mask as u8];
    let mut rest = value - mask;
    while rest > 127 {
        bytes.push(rest as u8 | 128);
        rest /= 128;
    }
    bytes.push(rest as u8);
    bytes
}

fn take_prefixed(bytes: &mut &[u8], bits: u32) -> usize {
    let mask = (1 << bits) - 1;
    let mut value = usize::from(bytes[0]) & mask;
    *bytes = &bytes[1..];
    if value < mask {
        return value;
    }
    for shift in (0..).step_by(7) {
        let byte = bytes[0];
        *bytes = &bytes[1..];
        value += usize::from(byte & 127) << shift;
        if byte < 128 {
            break;
        }
    }
    value
}

/// A field section: each field a literal, name included.
pub(crate) fn section(fields: &[(&str, &str)]) -> Vec<u8> {
    let fields: Vec<(&[u8], &[u8])> = fields
        .iter()
        .map(|(name, value)| (name.as_bytes(), value.as_bytes()))
        .collect();
    raw_section(&fields)
}

/// The same of any bytes.
pub(crate) fn raw_section(fields: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut section = vec![0, 0];
    for (name, value) in fields {
        section.extend(prefixed(0b0010_0000, 3, name.len()));
        section.extend_from_slice(name);
        section.extend(prefixed(0, 7, value.len()));
        section.extend_from_slice(value);
    }
    section
}

/// The fields of a section that makes use of the static table and literals that are not coded.
pub(crate) fn fields(mut section: &[u8]) -> Vec<(String, String)> {
    let table: Vec<(&str, &str)> = STATIC_TABLE
        .lines()
        .map(|line| line.split_once('\t').expect("a name and a value"))
        .collect();
    assert_eq!(table.len(), 99);
    assert_eq!(section[..2], [0, 0], "no dynamic table");
    section = &section[2..];
    let mut fields = Vec::new();
    let take = |section: &mut &[u8], bits| {
        assert_eq!(section[0] >> bits & 1, 0, "not coded");
        let length = take_prefixed(section, bits);
        let (text, rest) = section.split_at(length);
        *section = rest;
        String::from_utf8(text.to_vec()).expect("text")
    };
    while let Some(&first) = section.first() {
        let (name, value) = if first >> 6 == 0b11 {
            let (name, value) = table[take_prefixed(&mut section, 6)];
            (name.to_owned(), value.to_owned())
        } else if first >> 4 == 0b0101 {
            let name = table[take_prefixed(&mut section, 4)].0.to_owned();
            (name, take(&mut section, 7))
        } else {
            assert_eq!(first >> 5, 0b001, "a literal");
            let name = take(&mut section, 3);
            (name, take(&mut section, 7))
        };
        assert_eq!(name, name.to_ascii_lowercase());
        fields.push((name, value));
    }
    fields
}

/// A HEADERS frame.
pub(crate) fn headers(fields: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, section(fields))
}

/// The head of a request as most clients send it, with further fields.
pub(crate) fn request(method: &str, path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let pseudo = [
        (":method", method),
        (":scheme", "https"),
        (":authority", "example.org"),
        (":path", path),
    ];
    headers(&[&pseudo, more].concat())
}

/// A GET.
pub(crate) fn get(path: &str) -> Vec<u8> {
    request("GET", path, &[])
}

/// A response, of which all has been received; its framing is checked.
pub(crate) fn response(bytes: &[u8]) -> Response {
    let mut rest = bytes;
    let mut take_frame = || {
        let kind = take_varint(&mut rest);
        let length = take_varint(&mut rest) as usize;
        let (payload, behind) = rest.split_at_checked(length).expect("a whole frame");
        rest = behind;
        (kind, payload.to_vec())
    };
    let (kind, section) = take_frame();
    assert_eq!(kind, HEADERS);
    let mut headers = fields(&section);
    let (name, status) = headers.remove(0);
    assert_eq!(name, ":status");
    let mut body = Vec::new();
    if bytes.len() > varint(HEADERS).len() + 2 + section.len() {
        let (kind, data) = take_frame();
        assert_eq!(kind, DATA);
        assert!(!data.is_empty(), "no frame for nothing");
        body = data;
    }
    assert_eq!(rest, b"", "nothing behind it");
    assert!(headers.iter().all(|(name, _)| !name.starts_with(':')));
    Response {
        status: status.parse().expect("a number"),
        headers,
        body,
    }
}

impl Lab {
    /// A connection whose client has sent its SETTINGS.
    pub(crate) fn http3(&mut self) -> QuicConnection {
        let connection = self.open_quic(false);
        self.unidirectional(connection, &[&[0][..], &frame(SETTINGS, b"")].concat());
        connection
    }

    /// A stream in one direction that begins with these bytes.
    pub(crate) fn unidirectional(&mut self, connection: QuicConnection, bytes: &[u8]) -> StreamId {
        let stream = self.open_stream(connection, true);
        self.send(stream, bytes);
        stream
    }

    /// A request stream with these bytes, and perhaps more to come.
    pub(crate) fn begin(&mut self, connection: QuicConnection, bytes: &[u8]) -> StreamId {
        let stream = self.open_stream(connection, false);
        self.send(stream, bytes);
        stream
    }

    /// A request stream with these bytes and nothing else.
    pub(crate) fn send_all(&mut self, connection: QuicConnection, bytes: &[u8]) -> StreamId {
        let stream = self.begin(connection, bytes);
        self.finish(stream);
        stream
    }

    /// The same on a stream whose peer acknowledges nothing by itself.
    pub(crate) fn send_held(&mut self, connection: QuicConnection, bytes: &[u8]) -> StreamId {
        let stream = self.begin(connection, b"");
        self.acknowledges(stream, false);
        self.send(stream, bytes);
        self.finish(stream);
        stream
    }

    /// The response on a stream, which has to be complete.
    pub(crate) fn response3(&self, stream: StreamId) -> Response {
        assert!(self.is_shut_down(stream), "a response that ends");
        response(&self.received(stream))
    }

    /// Sends a request and returns its response.
    pub(crate) fn ask3(&mut self, connection: QuicConnection, bytes: &[u8]) -> Response {
        let stream = self.send_all(connection, bytes);
        self.response3(stream)
    }

    /// What the server has said on its control stream, by frames, behind the stream's type.
    pub(crate) fn control_frames(&self, connection: QuicConnection) -> Vec<(u64, Vec<u8>)> {
        let bytes = self.received(self.control_stream(connection));
        let mut rest = &bytes[..];
        assert_eq!(take_varint(&mut rest), 0, "a control stream");
        let mut frames = Vec::new();
        while !rest.is_empty() {
            let kind = take_varint(&mut rest);
            let length = take_varint(&mut rest) as usize;
            frames.push((kind, rest[..length].to_vec()));
            rest = &rest[length..];
        }
        frames
    }
}
