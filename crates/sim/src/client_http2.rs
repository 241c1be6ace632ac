//! A client's HTTP/2: requests become streams, and their responses those of HTTP/1.1, in the order
//! of the requests, so that one check compares both.

use std::collections::VecDeque;

use fakes::http2::{
    self, ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, RST_STREAM,
    SETTINGS, WINDOW_UPDATE,
};

use crate::violation::{Check, Violation, ensure, violation};

/// SETTINGS_HEADER_TABLE_SIZE
const HEADER_TABLE_SIZE: u16 = 1;
/// SETTINGS_INITIAL_WINDOW_SIZE
const INITIAL_WINDOW_SIZE: u16 = 4;

/// Window of the connection before the first WINDOW_UPDATE, in bytes.
const CONNECTION_BYTES: u32 = 65_535;

/// A request's stream.
#[derive(Debug)]
struct Stream {
    id: u32,
    /// Its response as text, as far as it has not been handed on.
    text: Vec<u8>,
    has_head: bool,
    has_ended: bool,
    is_reset: bool,
    /// Bytes that the server may still send.
    window: i64,
}

/// A part of the responses in their order.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Bytes of HTTP/1.1.
    Bytes(Vec<u8>),
    /// The response ends here, before its end.
    Reset,
}

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct ClientHttp2 {
    /// Window of each stream, in bytes. It is refilled as bytes arrive.
    window_bytes: u32,
    next_id: u32,
    streams: VecDeque<Stream>,
    /// Received bytes of an incomplete frame.
    incoming: Vec<u8>,
    /// Fragments of an incomplete field block, and its stream.
    block: Vec<u8>,
    /// Bytes of the connection that the server may still send.
    window: i64,
    /// Frames to send.
    outgoing: Vec<u8>,
}

impl ClientHttp2 {
    /// Begins a connection with windows of this length, in bytes.
    pub(crate) fn new(window_bytes: u32) -> Self {
        let values = [(HEADER_TABLE_SIZE, 0), (INITIAL_WINDOW_SIZE, window_bytes)];
        let settings = http2::settings(&values);
        let mut outgoing = [http2::PREFACE, &settings].concat();
        let more = window_bytes.saturating_sub(CONNECTION_BYTES);
        if more > 0 {
            outgoing.extend(http2::window_update(0, more));
        }
        ClientHttp2 {
            window_bytes,
            next_id: 1,
            streams: VecDeque::new(),
            incoming: Vec::new(),
            block: Vec::new(),
            window: i64::from(CONNECTION_BYTES + more),
            outgoing,
        }
    }

    /// Takes the frames to be sent.
    pub(crate) fn take_outgoing(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.outgoing)
    }

    /// Sends a GET, and GOAWAY if it is the last one and the server is to close.
    pub(crate) fn get(&mut self, path: &str, accept: Option<&str>, is_last: bool) {
        let mut fields = vec![
            (":method", "GET"),
            (":scheme", "https"),
            (":authority", "sim.example"),
            (":path", path),
        ];
        fields.extend(accept.map(|accept| ("accept", accept)));
        let block = http2::block(&fields);
        self.outgoing
            .extend(http2::headers(self.next_id, END_STREAM, &block));
        self.streams.push_back(Stream {
            id: self.next_id,
            text: Vec::new(),
            has_head: false,
            has_ended: false,
            is_reset: false,
            window: self.window_bytes.into(),
        });
        self.next_id += 2;
        if is_last {
            self.outgoing.extend(http2::frame(GOAWAY, 0, 0, [0; 8]));
        }
    }

    /// Takes received bytes; returns parts of the responses in the order of the requests.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<Vec<Part>, Violation> {
        self.incoming.extend_from_slice(bytes);
        let incoming = std::mem::take(&mut self.incoming);
        let mut rest = &incoming[..];
        while let Some((header, behind)) = rest.split_first_chunk::<9>() {
            let [a, b, c, kind, flags, stream @ ..] = *header;
            let length = u32::from_be_bytes([0, a, b, c]) as usize;
            let Some((payload, behind)) = behind.split_at_checked(length) else {
                break;
            };
            self.take_frame(kind, flags, u32::from_be_bytes(stream), payload)?;
            rest = behind;
        }
        self.incoming = rest.to_vec();
        Ok(self.parts())
    }

    /// Hands on responses, up to the first one that is not complete.
    fn parts(&mut self) -> Vec<Part> {
        let mut parts = Vec::new();
        while let Some(first) = self.streams.front_mut() {
            if !first.text.is_empty() {
                parts.push(Part::Bytes(std::mem::take(&mut first.text)));
            }
            if first.is_reset {
                parts.push(Part::Reset);
            } else if !first.has_ended {
                break;
            }
            self.streams.pop_front();
        }
        parts
    }

    fn take_frame(&mut self, kind: u8, flags: u8, id: u32, payload: &[u8]) -> Check {
        match kind {
            SETTINGS if flags & ACK == 0 => {
                self.outgoing.extend(http2::frame(SETTINGS, ACK, 0, b""));
                Ok(())
            }
            PING if flags & ACK == 0 => {
                self.outgoing.extend(http2::frame(PING, ACK, 0, payload));
                Ok(())
            }
            GOAWAY => {
                let code = payload.get(4..8).unwrap_or_default();
                ensure(code == [0; 4], || format!("GOAWAY with {payload:?}"))
            }
            HEADERS | CONTINUATION => self.take_fragment(flags, id, payload, kind == HEADERS),
            DATA => self.take_data(flags, id, payload),
            RST_STREAM => {
                let stream = self.streams.iter_mut().find(|stream| stream.id == id);
                let Some(stream) = stream.filter(|stream| !stream.has_ended) else {
                    return violation(format!("RST_STREAM of stream {id}"));
                };
                stream.is_reset = true;
                Ok(())
            }
            SETTINGS | PING | WINDOW_UPDATE => Ok(()),
            _ => violation(format!("a frame of type {kind}")),
        }
    }

    fn open_stream(&mut self, id: u32) -> Result<&mut Stream, Violation> {
        let is_it = |stream: &&mut Stream| stream.id == id && !stream.has_ended && !stream.is_reset;
        match self.streams.iter_mut().find(is_it) {
            Some(stream) => Ok(stream),
            None => violation(format!("a frame of stream {id}, which is not open")),
        }
    }

    fn take_fragment(&mut self, flags: u8, id: u32, payload: &[u8], is_first: bool) -> Check {
        self.block.extend_from_slice(payload);
        let ends_stream = is_first && flags & END_STREAM != 0;
        self.open_stream(id)?.has_ended |= ends_stream;
        if flags & END_HEADERS == 0 {
            return Ok(());
        }
        let block = std::mem::take(&mut self.block);
        let mut text = String::new();
        for (name, value) in http2::fields(&block) {
            match &name[..] {
                ":status" => text += &format!("HTTP/1.1 {value} \r\n"),
                "content-length" => text += &format!("Content-Length: {value}\r\n"),
                _ => text += &format!("{name}: {value}\r\n"),
            }
        }
        text += "\r\n";
        let stream = self.streams.iter_mut().find(|stream| stream.id == id);
        let Some(stream) = stream.filter(|stream| !stream.has_head) else {
            return violation(format!("a second head on stream {id}"));
        };
        stream.has_head = true;
        stream.text.extend_from_slice(text.as_bytes());
        Ok(())
    }

    fn take_data(&mut self, flags: u8, id: u32, payload: &[u8]) -> Check {
        let window_bytes = i64::from(self.window_bytes);
        let bytes = payload.len() as i64;
        self.window -= bytes;
        let stream = self.open_stream(id)?;
        stream.window -= bytes;
        let (is_exceeded, has_head) = (stream.window < 0, stream.has_head);
        stream.text.extend_from_slice(payload);
        stream.has_ended = flags & END_STREAM != 0;
        let refill = window_bytes - stream.window;
        let refills = !stream.has_ended && refill >= window_bytes / 2;
        if refills {
            stream.window += refill;
        }
        ensure(has_head, || format!("DATA before HEADERS on stream {id}"))?;
        ensure(!is_exceeded && self.window >= 0, || {
            format!("DATA beyond a window on stream {id}")
        })?;
        if refills {
            self.outgoing
                .extend(http2::window_update(id, refill as u32));
        }
        let connection_bytes = window_bytes.max(CONNECTION_BYTES.into());
        let refill = connection_bytes - self.window;
        if refill >= connection_bytes / 2 {
            self.window += refill;
            self.outgoing.extend(http2::window_update(0, refill as u32));
        }
        Ok(())
    }
}
