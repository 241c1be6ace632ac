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
    let mut response = Response::default();
    while response.status == 0 {
        let mut headers = fields(&take_frame(&mut rest, HEADERS));
        let status: u16 = headers[0].1.parse().expect("a number");
        assert_eq!(headers[0].0, ":status");
        assert!(headers[1..].iter().all(|(name, _)| !name.starts_with(':')));
        if status < 200 {
            response.interim.push(headers);
            continue;
        }
        headers.remove(0);
        (response.status, response.headers) = (status, headers);
    }
    if rest.first() == Some(&(DATA as u8)) {
        response.body = take_frame(&mut rest, DATA);
        assert!(!response.body.is_empty(), "no frame for nothing");
    }
    if !rest.is_empty() {
        response.trailers = fields(&take_frame(&mut rest, HEADERS));
        let names = response.trailers.iter().map(|(name, _)| name);
        assert!(names.clone().count() > 0 && names.into_iter().all(|it| !it.starts_with(':')));
    }
    assert_eq!(rest, b"", "nothing behind it");
    response
}

/// Takes the payload of a whole frame of this kind.
fn take_frame(rest: &mut &[u8], expected: u64) -> Vec<u8> {
    let kind = take_varint(rest);
    assert_eq!(kind, expected);
    let length = take_varint(rest) as usize;
    let (payload, behind) = rest.split_at_checked(length).expect("a whole frame");
    *rest = behind;
    payload.to_vec()
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
