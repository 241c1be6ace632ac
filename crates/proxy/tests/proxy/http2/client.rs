//! A client of HTTP/2 that sends what the test says, and a backend that does.

use std::collections::BTreeMap;

use host::app::StreamId;
use http2::frame::{self, HEADER_BYTES, Header, flag, kind};
use http2::frame_reader::{FrameReader, Incoming, Step};
use http2::hpack::decode::Decoder;
use http2::hpack::encode::Encoder;
use proxy::Config;

use crate::world::{World, config};

/// What a client knows of one response.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Heard {
    /// Each field block, as lines: of 1xx, of the response, and of trailers.
    pub(super) blocks: Vec<String>,
    pub(super) content: Vec<u8>,
    pub(super) has_ended: bool,
    /// The code of RST_STREAM.
    pub(super) reset: Option<u32>,
}

/// See the [module documentation](self).
pub(super) struct Client {
    pub(super) stream: StreamId,
    encoder: Encoder,
    decoder: Decoder,
    reader: FrameReader,
    data_of: u32,
    rest: Vec<u8>,
    pub(super) streams: BTreeMap<u32, Heard>,
    /// Increments of windows, by stream.
    pub(super) updates: BTreeMap<u32, u32>,
    /// Last ID and code of each GOAWAY.
    pub(super) goaways: Vec<(u32, u32)>,
    pub(super) pings: usize,
}

/// A proxy with one pool, whose clients may begin with HTTP/2.
pub(super) fn with_http2(ports: &[u16]) -> Config {
    let mut config = config(ports);
    config.listeners[0].http2_prior_knowledge = true;
    config
}

pub(super) const GET: [(&str, &str); 4] = [
    (":method", "GET"),
    (":scheme", "http"),
    (":path", "/"),
    (":authority", "h"),
];

pub(super) const POST: [(&str, &str); 4] = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/"),
    (":authority", "h"),
];

const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

fn settings_of(values: &[(u16, u32)]) -> Vec<u8> {
    let (mut out, mut payload) = (Vec::new(), Vec::new());
    for (identifier, value) in values {
        payload.extend_from_slice(&identifier.to_be_bytes());
        payload.extend_from_slice(&value.to_be_bytes());
    }
    frame::settings(&mut out, &payload);
    out
}

impl Client {
    /// A client that has connected, with these settings.
    pub(super) fn new(world: &mut World, settings: &[(u16, u32)]) -> Client {
        let mut client = Client::on(world.connect());
        let mut bytes = PREFACE.to_vec();
        bytes.extend(settings_of(settings));
        frame::settings_ack(&mut bytes);
        world.send(client.stream, bytes);
        client.hear(world);
        client
    }

    /// The backend of the last connection to this port, with these settings. What comes before the
    /// preface is returned.
    pub(super) fn backend(
        world: &mut World,
        port: u16,
        settings: &[(u16, u32)],
    ) -> (Client, Vec<u8>) {
        let stream = world.backend(port);
        Client::backend_of(world, stream, settings)
    }

    /// The same on this connection.
    pub(super) fn backend_of(
        world: &mut World,
        stream: StreamId,
        settings: &[(u16, u32)],
    ) -> (Client, Vec<u8>) {
        let mut backend = Client::on(stream);
        let bytes = world.take_bytes(backend.stream);
        let at = bytes.windows(24).position(|it| it == PREFACE);
        let at = at.expect("the preface of a client");
        backend.rest = bytes[at + 24..].to_vec();
        let mut reply = settings_of(settings);
        frame::settings_ack(&mut reply);
        world.send(backend.stream, reply);
        backend.hear(world);
        (backend, bytes[..at].to_vec())
    }

    fn on(stream: StreamId) -> Client {
        Client {
            stream,
            encoder: Encoder::default(),
            decoder: Decoder::default(),
            reader: FrameReader::default(),
            data_of: 0,
            rest: Vec::new(),
            streams: BTreeMap::new(),
            updates: BTreeMap::new(),
            goaways: Vec::new(),
            pings: 0,
        }
    }

    /// HEADERS of a stream.
    pub(super) fn block(&mut self, id: u32, fields: &[(&str, &str)], ends: bool) -> Vec<u8> {
        let mut out = vec![0; HEADER_BYTES];
        self.encoder.begin(&mut out);
        for (name, value) in fields {
            self.encoder.field(&mut out, name, value.as_bytes());
        }
        frame::finish_block(&mut out, 0, id, ends);
        out
    }

    pub(super) fn request(
        &mut self,
        world: &mut World,
        id: u32,
        fields: &[(&str, &str)],
        ends: bool,
    ) {
        let block = self.block(id, fields, ends);
        world.send(self.stream, block);
    }

    pub(super) fn data(&self, world: &mut World, id: u32, content: &[u8], ends: bool) {
        let mut out = Vec::new();
        frame::data(&mut out, id, content, ends);
        world.send(self.stream, out);
    }

    /// A frame of any kind.
    pub(super) fn raw(kind: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let header = Header {
            payload_bytes: payload.len() as u32,
            kind,
            flags: 0,
            stream,
        };
        let mut out = Vec::new();
        header.write(&mut out);
        out.extend_from_slice(payload);
        out
    }

    /// Sends it.
    pub(super) fn frame(&self, world: &mut World, kind: u8, stream: u32, payload: &[u8]) {
        world.send(self.stream, Client::raw(kind, stream, payload));
    }

    /// Resets a stream with this code.
    pub(super) fn refuse(&self, world: &mut World, id: u32, code: u32) {
        self.frame(world, kind::RST_STREAM, id, &code.to_be_bytes());
    }

    pub(super) fn goaway(&self, world: &mut World, last: u32) {
        let payload = [last.to_be_bytes(), [0; 4]].concat();
        self.frame(world, kind::GOAWAY, 0, &payload);
    }

    pub(super) fn reset(&self, world: &mut World, id: u32) {
        self.frame(world, kind::RST_STREAM, id, &8_u32.to_be_bytes());
    }

    pub(super) fn update(&self, world: &mut World, id: u32, increment: u32) {
        self.frame(world, kind::WINDOW_UPDATE, id, &increment.to_be_bytes());
    }

    /// Takes what has arrived.
    pub(super) fn hear(&mut self, world: &mut World) {
        self.rest.extend(world.take_bytes(self.stream));
        loop {
            let step = self.reader.step(&self.rest).expect("frames of the proxy");
            let bytes = match step {
                Step::Partial => return,
                Step::Consumed(bytes) => bytes,
                Step::Content(bytes) => {
                    let content = &self.rest[..bytes];
                    let heard = self.streams.entry(self.data_of).or_default();
                    heard.content.extend_from_slice(content);
                    bytes
                }
                Step::Frame(bytes, frame) => {
                    self.take(frame);
                    bytes
                }
            };
            self.rest.drain(..bytes);
        }
    }

    fn take(&mut self, frame: Incoming) {
        match frame {
            Incoming::Data {
                stream,
                ends_stream,
                ..
            } => {
                self.data_of = stream;
                self.streams.entry(stream).or_default().has_ended |= ends_stream;
            }
            Incoming::Block {
                stream,
                ends_stream,
                ..
            } => {
                let mut text = String::new();
                let each = |name: &[u8], value: &[u8]| {
                    let line = [name, b": ", value, b"\n"].concat();
                    text += str::from_utf8(&line).unwrap();
                };
                let block = self.reader.block();
                self.decoder.decode(block, &mut Vec::new(), each).unwrap();
                let heard = self.streams.entry(stream).or_default();
                heard.blocks.push(text);
                heard.has_ended |= ends_stream;
            }
            Incoming::Whole(header) => self.take_whole(header),
            Incoming::Unknown(header) => panic!("{header:?}"),
        }
    }

    fn take_whole(&mut self, header: Header) {
        let payload = self.reader.payload();
        let number = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().unwrap());
        match header.kind {
            kind::RST_STREAM => {
                let code = number(0);
                self.streams.entry(header.stream).or_default().reset = Some(code);
            }
            kind::WINDOW_UPDATE => {
                let increment = number(0);
                *self.updates.entry(header.stream).or_default() += increment;
            }
            kind::GOAWAY => {
                let last = (number(0), number(4));
                self.goaways.push(last);
            }
            kind::PING => self.pings += usize::from(header.has(flag::ACK)),
            _ => {}
        }
    }

    /// What has arrived of a stream.
    #[track_caller]
    pub(super) fn heard(&self, id: u32) -> &Heard {
        self.streams.get(&id).expect("something of the stream")
    }
}
