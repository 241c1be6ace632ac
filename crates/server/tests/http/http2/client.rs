//! A client: what it sends, and the streams that it reads.

use std::collections::BTreeMap;

use host::app::StreamId;

use crate::lab::{Lab, Response};

pub(crate) use fakes::http2::*;

pub(crate) const NO_ERROR: u32 = 0;
pub(crate) const PROTOCOL_ERROR: u32 = 1;
pub(crate) const FLOW_CONTROL_ERROR: u32 = 3;
pub(crate) const SETTINGS_TIMEOUT: u32 = 4;
pub(crate) const STREAM_CLOSED: u32 = 5;
pub(crate) const FRAME_SIZE_ERROR: u32 = 6;
pub(crate) const REFUSED_STREAM: u32 = 7;
pub(crate) const CANCEL: u32 = 8;
pub(crate) const COMPRESSION_ERROR: u32 = 9;
pub(crate) const ENHANCE_YOUR_CALM: u32 = 11;

/// Bytes of a file of which no two neighbouring pieces are equal.
pub(crate) fn content(length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| (at % 251) as u8 ^ (at / 251) as u8)
        .collect()
}

/// The fields of a request as most clients send them, with further ones.
pub(crate) fn request<'a>(
    method: &'a str,
    path: &'a str,
    more: &[(&'a str, &'a str)],
) -> Vec<(&'a str, &'a str)> {
    let pseudo = [
        (":method", method),
        (":scheme", "https"),
        (":authority", "example.org"),
        (":path", path),
    ];
    [&pseudo, more].concat()
}

/// A frame that has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

/// A stream as the client has read it.
#[derive(Debug, Default)]
pub(crate) struct Received {
    /// The fields of interim responses.
    pub(crate) interim: Vec<Vec<(String, String)>>,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<(String, String)>,
    pub(crate) has_ended: bool,
    pub(crate) reset: Option<u32>,
}

/// See the [module documentation](self).
pub(crate) struct Client {
    pub(crate) stream: StreamId,
    /// Bytes of the TCP stream that are read.
    read_bytes: usize,
    decoder: loona_hpack::Decoder<'static>,
    next_id: u32,
    streams: BTreeMap<u32, Received>,
    /// All frames in their order.
    pub(crate) frames: Vec<Frame>,
    /// Field block fragments of a stream, up to its end.
    fragments: Vec<u8>,
}

impl Client {
    /// A connection whose windows are as large as they may be.
    pub(crate) fn open(lab: &mut Lab) -> Client {
        Client::open_on(lab, Client::silent)
    }

    /// The same on a connection that `connect` begins.
    pub(crate) fn open_on(lab: &mut Lab, connect: impl FnOnce(&mut Lab) -> Client) -> Client {
        let client = connect(lab);
        client.begin(lab, &[(4, (1 << 31) - 1)]);
        client.send(lab, window_update(0, (1 << 31) - 1 - 65_535));
        client
    }

    /// A connection with these settings of the client.
    pub(crate) fn connect(lab: &mut Lab, values: &[(u16, u32)]) -> Client {
        let client = Client::silent(lab);
        client.begin(lab, values);
        client
    }

    /// Sends the preface, and these settings.
    fn begin(&self, lab: &mut Lab, values: &[(u16, u32)]) {
        let ack = frame(SETTINGS, ACK, 0, b"");
        self.send(lab, [PREFACE, &settings(values), &ack].concat());
    }

    /// A connection without TLS on which the client has sent nothing.
    pub(crate) fn without_tls(lab: &mut Lab) -> Client {
        Client::on(lab.connect())
    }

    /// A connection on which the client has sent nothing.
    pub(crate) fn silent(lab: &mut Lab) -> Client {
        Client::on(lab.connect_with_alpn("h2"))
    }

    /// A client on a connection.
    pub(crate) fn on(stream: StreamId) -> Client {
        Client {
            stream,
            read_bytes: 0,
            decoder: loona_hpack::Decoder::new(),
            next_id: 1,
            streams: BTreeMap::new(),
            frames: Vec::new(),
            fragments: Vec::new(),
        }
    }

    /// Sends bytes.
    pub(crate) fn send(&self, lab: &mut Lab, bytes: impl AsRef<[u8]>) {
        lab.send(self.stream, bytes);
    }

    /// The ID of the next request.
    pub(crate) fn next_id(&mut self) -> u32 {
        self.next_id += 2;
        self.next_id - 2
    }

    /// Sends the head of a request, and END_STREAM if `ends`; returns the stream's ID.
    pub(crate) fn send_request(
        &mut self,
        lab: &mut Lab,
        fields: &[(&str, &str)],
        ends: bool,
    ) -> u32 {
        let id = self.next_id();
        let flags = if ends { END_STREAM } else { 0 };
        self.send_block(lab, id, flags, &block(fields));
        id
    }

    /// Sends HEADERS with these flags, and CONTINUATION for a long field block.
    pub(crate) fn send_block(&self, lab: &mut Lab, id: u32, flags: u8, block: &[u8]) {
        self.send(lab, headers(id, flags, block));
    }

    /// Sends a GET; returns the stream's ID.
    pub(crate) fn send_get(&mut self, lab: &mut Lab, path: &str) -> u32 {
        self.send_request(lab, &request("GET", path, &[]), true)
    }

    /// Sends a GET and returns the whole response.
    pub(crate) fn get(&mut self, lab: &mut Lab, path: &str) -> Response {
        let id = self.send_get(lab, path);
        self.response(lab, id)
    }

    /// Reads what has arrived.
    pub(crate) fn read(&mut self, lab: &Lab) {
        let bytes = lab.received(self.stream);
        while let Some((header, rest)) = bytes[self.read_bytes..].split_first_chunk::<9>() {
            let length = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
            let Some(payload) = rest.get(..length) else {
                break;
            };
            let stream = u32::from_be_bytes([header[5], header[6], header[7], header[8]]);
            let frame = Frame {
                kind: header[3],
                flags: header[4],
                stream,
                payload: payload.to_vec(),
            };
            self.read_bytes += 9 + length;
            self.take(&frame);
            self.frames.push(frame);
        }
    }

    fn take(&mut self, frame: &Frame) {
        let has = |flag| frame.flags & flag != 0;
        assert!(
            self.fragments.is_empty() || frame.kind == CONTINUATION,
            "nothing interrupts a field block"
        );
        match frame.kind {
            DATA => {
                let stream = self.streams.get_mut(&frame.stream).expect("HEADERS first");
                assert!(!stream.has_ended && stream.reset.is_none(), "{frame:?}");
                assert!(!frame.payload.is_empty(), "no frame for nothing");
                stream.body.extend_from_slice(&frame.payload);
                stream.has_ended = has(END_STREAM);
            }
            HEADERS | CONTINUATION => {
                let stream = self.streams.entry(frame.stream).or_default();
                assert!(!stream.has_ended || frame.kind == CONTINUATION, "{frame:?}");
                assert!(stream.reset.is_none(), "{frame:?}");
                stream.has_ended |= frame.kind == HEADERS && has(END_STREAM);
                self.fragments.extend_from_slice(&frame.payload);
                if has(END_HEADERS) {
                    let fields = self.decoder.decode(&self.fragments).expect("a block");
                    let text = |bytes| String::from_utf8(bytes).expect("text");
                    let fields = fields.into_iter();
                    let fields: Vec<_> = fields.map(|(n, v)| (text(n), text(v))).collect();
                    let status = fields.iter().find(|(name, _)| name == ":status");
                    match status {
                        None => {
                            assert!(!stream.headers.is_empty() && stream.has_ended, "trailers");
                            stream.trailers = fields;
                        }
                        Some((_, status)) if status.starts_with('1') => {
                            assert!(stream.headers.is_empty() && !stream.has_ended);
                            stream.interim.push(fields);
                        }
                        Some(_) => {
                            assert!(stream.headers.is_empty(), "one response");
                            stream.headers = fields;
                        }
                    }
                    self.fragments.clear();
                }
            }
            RST_STREAM => {
                let code = u32::from_be_bytes(frame.payload[..].try_into().expect("a code"));
                self.streams.entry(frame.stream).or_default().reset = Some(code);
            }
            _ => {}
        }
    }

    /// A stream as far as it has arrived.
    pub(crate) fn received(&mut self, lab: &Lab, id: u32) -> &Received {
        self.read(lab);
        self.streams.entry(id).or_default()
    }

    /// The response on a stream, which has to be complete.
    pub(crate) fn response(&mut self, lab: &mut Lab, id: u32) -> Response {
        let received = self.received(lab, id);
        let (head, bytes) = (&received.headers, received.body.len());
        assert!(
            received.has_ended,
            "{:?} ends {bytes} bytes of {head:?}",
            received.reset
        );
        let mut headers = received.headers.clone();
        let (name, status) = headers.remove(0);
        assert_eq!(name, ":status");
        assert!(headers.iter().all(|(name, _)| !name.starts_with(':')));
        Response {
            interim: received.interim.clone(),
            status: status.parse().expect("a number"),
            headers,
            body: received.body.clone(),
            trailers: received.trailers.clone(),
        }
    }

    /// The server has reset a stream before its end.
    pub(crate) fn is_reset(&self, lab: &Lab, id: u32) -> bool {
        let mut reader = Client::on(self.stream);
        let received = reader.received(lab, id);
        received.reset.is_some() && !received.has_ended || lab.is_aborted(self.stream)
    }

    /// The code with which the server has reset a stream.
    pub(crate) fn reset_code(&mut self, lab: &Lab, id: u32) -> Option<u32> {
        self.received(lab, id).reset
    }

    /// The last stream ID and code of the last GOAWAY.
    pub(crate) fn goaway(&mut self, lab: &Lab) -> Option<(u32, u32)> {
        self.read(lab);
        let last = self.frames.iter().rfind(|frame| frame.kind == GOAWAY)?;
        let number = |at: usize| {
            let bytes = last.payload[at..at + 4].try_into().expect("four bytes");
            u32::from_be_bytes(bytes)
        };
        Some((number(0), number(4)))
    }

    /// Frames of a type that have arrived.
    pub(crate) fn frames_of(&mut self, lab: &Lab, kind: u8) -> Vec<Frame> {
        self.read(lab);
        let frames = self.frames.iter();
        frames.filter(|frame| frame.kind == kind).cloned().collect()
    }
}
