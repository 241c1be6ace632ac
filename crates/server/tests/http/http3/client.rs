//! What a client sends and reads.

use host::app::{QuicConnection, StreamId};

use crate::lab::{Lab, Response};

pub(crate) use fakes::http3::*;

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
