//! A client that reads its own frames and the server's, and knows from RFC 9113 what is permitted.

use std::collections::{BTreeMap, VecDeque};

use fakes::http2::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, PREFACE, RST_STREAM,
    SETTINGS, WINDOW_UPDATE,
};

/// Greatest window, in bytes.
const WINDOW_BYTES_MAX: i64 = (1 << 31) - 1;

/// The byte at this place of every file.
pub(crate) fn content(at: u64) -> u8 {
    (at % 251) as u8
}

/// Values of one SETTINGS frame.
#[derive(Debug, Default)]
struct Settings {
    /// All of SETTINGS_HEADER_TABLE_SIZE, in their order.
    table_bytes: Vec<usize>,
    window_bytes: Option<i64>,
    frame_bytes: Option<usize>,
}

/// A frame that begins some bytes.
struct Frame<'a> {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: &'a [u8],
}

/// Splits a whole frame off.
fn split_frame(bytes: &[u8]) -> Option<(Frame<'_>, &[u8])> {
    let (header, rest) = bytes.split_first_chunk::<9>()?;
    let [a, b, c, kind, flags, stream @ ..] = *header;
    let length = u32::from_be_bytes([0, a, b, c]) as usize;
    let (payload, rest) = rest.split_at_checked(length)?;
    let stream = u32::from_be_bytes(stream) & ((1 << 31) - 1);
    let frame = Frame {
        kind,
        flags,
        stream,
        payload,
    };
    Some((frame, rest))
}

/// The number of 31 bits that begins these bytes.
fn number(bytes: &[u8]) -> u32 {
    let four = bytes.first_chunk().copied().unwrap_or_default();
    u32::from_be_bytes(four) & ((1 << 31) - 1)
}

/// A stream that the client has opened.
#[derive(Debug, Default)]
struct Stream {
    /// Sum of the increments of its window, in bytes.
    increments: i64,
    received_bytes: i64,
    head: Option<Head>,
    has_ended: bool,
    is_reset: bool,
    /// The client has reset it.
    is_cancelled: bool,
}

/// The fields of a response that describe its body.
#[derive(Debug)]
struct Head {
    content_bytes: Option<u64>,
    /// Where the body begins in its file, if it is part of one.
    start: Option<u64>,
}

/// See the [module documentation](self).
pub(crate) struct Client {
    /// Sent bytes that are not a whole frame yet.
    sent: Vec<u8>,
    has_preface: bool,
    /// A field block of the client is not complete.
    opens: Option<u32>,
    last_id: u32,
    pings: usize,
    streams: BTreeMap<u32, Stream>,
    /// Increments of the connection's window, and bytes received.
    increments: i64,
    received_bytes: i64,
    /// SETTINGS that the server has not acknowledged.
    settings: VecDeque<Settings>,
    window_bytes: i64,
    frame_bytes: usize,
    /// SETTINGS_HEADER_TABLE_SIZE, and the least value that came after the last field block.
    table_bytes: usize,
    table_bytes_least: usize,
    /// Size of the server's table as it has announced it, in bytes.
    announced_bytes: usize,
    decoder: loona_hpack::Decoder<'static>,
    /// Received bytes that are not a whole frame yet.
    received: Vec<u8>,
    /// The server's field block that is not complete, and whether it ends its stream.
    block: Option<(u32, bool, Vec<u8>)>,
    /// Last stream ID and code of the last GOAWAY.
    goaway: Option<(u32, u32)>,
    end: Option<End>,
}

/// How the server has ended the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Finished,
    Aborted,
}

impl Default for Client {
    fn default() -> Self {
        Client {
            sent: Vec::new(),
            has_preface: false,
            opens: None,
            last_id: 0,
            pings: 0,
            streams: BTreeMap::new(),
            increments: 65_535,
            received_bytes: 0,
            settings: VecDeque::new(),
            window_bytes: 65_535,
            frame_bytes: 16_384,
            table_bytes: 4096,
            table_bytes_least: usize::MAX,
            announced_bytes: 4096,
            decoder: loona_hpack::Decoder::new(),
            received: Vec::new(),
            block: None,
            goaway: None,
            end: None,
        }
    }
}

impl Client {
    /// The ID of the next request.
    pub(crate) fn next_id(&self) -> u32 {
        match self.last_id {
            0 => 1,
            last => last.saturating_add(2),
        }
    }

    /// The client sends bytes. After a frame that is not whole or not permitted, the rest means
    /// nothing: the server ends the connection.
    pub(crate) fn note_sent(&mut self, bytes: &[u8]) {
        self.sent.extend_from_slice(bytes);
        if !self.has_preface {
            if !self.sent.starts_with(PREFACE) {
                return;
            }
            self.has_preface = true;
            self.sent.drain(..PREFACE.len());
        }
        let sent = std::mem::take(&mut self.sent);
        let mut rest = &sent[..];
        while let Some((frame, behind)) = split_frame(rest) {
            rest = behind;
            self.note_frame(&frame);
        }
        self.sent = rest.to_vec();
    }

    fn note_frame(&mut self, frame: &Frame<'_>) {
        let has = |flag| frame.flags & flag != 0;
        match frame.kind {
            HEADERS | CONTINUATION => {
                if frame.kind == HEADERS && frame.stream % 2 == 1 && frame.stream > self.last_id {
                    self.opens = Some(frame.stream);
                }
                if has(END_HEADERS)
                    && let Some(id) = self.opens.take()
                {
                    self.last_id = id;
                    self.streams.entry(id).or_default();
                }
            }
            SETTINGS if !has(ACK) => self.settings.push_back(read_settings(frame.payload)),
            PING if !has(ACK) => self.pings += 1,
            RST_STREAM => {
                if let Some(stream) = self.streams.get_mut(&frame.stream) {
                    stream.is_cancelled = true;
                }
            }
            WINDOW_UPDATE if frame.stream == 0 => {
                self.increments += i64::from(number(frame.payload))
            }
            WINDOW_UPDATE => {
                if let Some(stream) = self.streams.get_mut(&frame.stream) {
                    stream.increments += i64::from(number(frame.payload));
                }
            }
            _ => {}
        }
    }

    /// The client receives bytes.
    pub(crate) fn receive(&mut self, bytes: &[u8]) {
        self.received.extend_from_slice(bytes);
        let received = std::mem::take(&mut self.received);
        let mut rest = &received[..];
        while let Some((frame, behind)) = split_frame(rest) {
            rest = behind;
            self.take(&frame);
        }
        self.received = rest.to_vec();
    }

    fn take(&mut self, frame: &Frame<'_>) {
        let has = |flag| frame.flags & flag != 0;
        assert!(
            frame.payload.len() <= self.frame_bytes,
            "SETTINGS_MAX_FRAME_SIZE"
        );
        let continues = frame.kind == CONTINUATION;
        assert_eq!(
            self.block.is_some(),
            continues,
            "nothing interrupts a field block"
        );
        match frame.kind {
            DATA => self.take_data(frame),
            HEADERS => {
                let block = frame.payload.to_vec();
                self.block = Some((frame.stream, has(END_STREAM), block));
            }
            CONTINUATION => {
                let (id, _, block) = self.block.as_mut().expect("HEADERS first");
                assert_eq!(*id, frame.stream);
                block.extend_from_slice(frame.payload);
            }
            RST_STREAM => {
                // Also one that a later stream has closed (RFC 9113 §5.1.1).
                assert!(frame.stream <= self.last_id, "a stream that was open");
                let stream = self.streams.entry(frame.stream).or_default();
                assert!(!stream.is_reset, "reset once");
                stream.is_reset = true;
            }
            SETTINGS if has(ACK) => self.apply_settings(),
            PING => {
                assert!(has(ACK));
                self.pings = self.pings.checked_sub(1).expect("an answer to a PING");
            }
            GOAWAY => {
                let (last, code) = (number(frame.payload), number(&frame.payload[4..]));
                let never_increases = self.goaway.is_none_or(|(before, _)| last <= before);
                assert!(never_increases, "RFC 9113 §6.8");
                self.goaway = Some((last, code));
            }
            SETTINGS | WINDOW_UPDATE => {}
            kind => panic!("type {kind}"),
        }
        if matches!(frame.kind, HEADERS | CONTINUATION)
            && has(END_HEADERS)
            && let Some((id, ends, block)) = self.block.take()
        {
            self.take_head(id, ends, &block);
        }
    }

    fn take_head(&mut self, id: u32, ends: bool, block: &[u8]) {
        self.take_table_sizes(block);
        let fields = self.decoder.decode(block).expect("a field block");
        let value_of = |wanted: &str| {
            let mut fields = fields.iter();
            let (_, value) = fields.find(|(name, _)| name == wanted.as_bytes())?;
            str::from_utf8(value).ok()
        };
        assert_eq!(fields[0].0, b":status");
        assert_eq!(
            value_of("server"),
            Some("splitway"),
            "the tables are in step"
        );
        assert!(
            fields
                .iter()
                .all(|(name, _)| !name.is_empty() && !name.iter().any(u8::is_ascii_uppercase))
        );
        let start = match fields[0].1[..] {
            [b'2', b'0', b'0'] => Some(0),
            [b'2', b'0', b'6'] => value_of("content-range").and_then(|range| {
                let (start, _) = range.strip_prefix("bytes ")?.split_once('-')?;
                start.parse().ok()
            }),
            _ => None,
        };
        let head = Head {
            content_bytes: value_of("content-length").and_then(|bytes| bytes.parse().ok()),
            start,
        };
        let stream = self.streams.get_mut(&id).expect("a response to a request");
        assert!(!stream.is_reset && stream.head.is_none(), "one response");
        stream.head = Some(head);
        stream.has_ended = ends;
    }

    /// RFC 7541 §4.2: a block announces the least size since the last one, if it is smaller.
    fn take_table_sizes(&mut self, mut block: &[u8]) {
        let must_shrink = self.table_bytes_least < self.announced_bytes;
        let mut sizes = Vec::new();
        while let Some(&first) = block.first()
            && first >> 5 == 1
        {
            let (size, bytes) = read_integer(block, 5);
            sizes.push(size);
            block = &block[bytes..];
        }
        assert!(!must_shrink || !sizes.is_empty(), "the table shrinks");
        if let (Some(first), Some(last)) = (sizes.first(), sizes.last()) {
            assert!(*first <= self.table_bytes_least, "the least size first");
            assert!(*last <= self.table_bytes);
            self.announced_bytes = *last;
        }
        self.table_bytes_least = usize::MAX;
    }

    fn take_data(&mut self, frame: &Frame<'_>) {
        let ends = frame.flags & END_STREAM != 0;
        let bytes = frame.payload.len() as i64;
        assert!(bytes > 0 || ends, "no frame for nothing");
        self.received_bytes += bytes;
        assert!(
            self.received_bytes <= self.increments,
            "window of the connection"
        );
        let stream = self.streams.get_mut(&frame.stream).expect("HEADERS first");
        assert!(
            !stream.has_ended && !stream.is_reset,
            "nothing follows the end"
        );
        let head = stream.head.as_ref().expect("HEADERS first");
        let place = stream.received_bytes as u64;
        stream.received_bytes += bytes;
        let window = self.window_bytes + stream.increments;
        assert!(stream.received_bytes <= window, "window of the stream");
        if let Some(start) = head.start {
            let expected = (start + place..).map(content);
            assert!(
                frame
                    .payload
                    .iter()
                    .copied()
                    .zip(expected)
                    .all(|(a, b)| a == b)
            );
        }
        stream.has_ended = ends;
        if ends && let Some(content_bytes) = head.content_bytes {
            assert_eq!(content_bytes, stream.received_bytes as u64);
        }
    }

    /// The server has acknowledged SETTINGS.
    fn apply_settings(&mut self) {
        let settings = self.settings.pop_front().expect("SETTINGS to acknowledge");
        for bytes in settings.table_bytes {
            self.table_bytes = bytes;
            self.table_bytes_least = self.table_bytes_least.min(bytes);
        }
        self.window_bytes = settings.window_bytes.unwrap_or(self.window_bytes);
        self.frame_bytes = settings.frame_bytes.unwrap_or(self.frame_bytes);
    }

    /// The server ends the connection.
    pub(crate) fn note_end(&mut self, end: End) {
        self.end = Some(end);
    }

    /// The server has done everything that it can: what is open waits for the client.
    pub(crate) fn check_settled(&self) {
        assert!(
            self.received.is_empty() && self.block.is_none(),
            "whole frames"
        );
        assert!(self.settings.is_empty(), "SETTINGS are acknowledged");
        assert_eq!(self.pings, 0, "PINGs are answered");
        let window = self.increments - self.received_bytes;
        assert!(window <= WINDOW_BYTES_MAX, "window of the connection");
        for (id, stream) in &self.streams {
            if stream.has_ended || stream.is_reset || stream.is_cancelled {
                continue;
            }
            assert!(stream.head.is_some(), "{id} has no response");
            let own = self.window_bytes + stream.increments - stream.received_bytes;
            assert!(own <= 0 || window == 0, "{id} waits: {stream:?}");
            assert!(own <= WINDOW_BYTES_MAX, "window of {id}");
        }
    }

    /// The connection is over. Unless the client has made a mistake or has stalled, each request
    /// that the server has accepted has its response or its reset.
    pub(crate) fn check_over(&self) {
        let end = self.end.expect("the server has ended it");
        let (last, code) = self.goaway.unwrap_or((u32::MAX, 0));
        if end == End::Aborted || code != 0 {
            return;
        }
        for (&id, stream) in self.streams.range(..=last) {
            let is_over = stream.has_ended || stream.is_reset || stream.is_cancelled;
            assert!(is_over, "{id}: {stream:?}");
        }
    }
}

fn read_settings(payload: &[u8]) -> Settings {
    let (values, _) = payload.as_chunks::<6>();
    let mut settings = Settings::default();
    for &[a, b, value @ ..] in values {
        let value = u32::from_be_bytes(value);
        match u16::from_be_bytes([a, b]) {
            1 => settings.table_bytes.push(value as usize),
            4 => settings.window_bytes = Some(value.into()),
            5 => settings.frame_bytes = Some(value as usize),
            _ => {}
        }
    }
    settings
}

/// An integer with a prefix of this length in bits (RFC 7541 §5.1), and its length in bytes.
fn read_integer(bytes: &[u8], prefix_bits: u32) -> (usize, usize) {
    let mask = (1 << prefix_bits) - 1;
    let mut value = usize::from(bytes[0]) & mask;
    if value < mask {
        return (value, 1);
    }
    for (place, byte) in bytes[1..].iter().enumerate() {
        value += usize::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return (value, place + 2);
        }
    }
    panic!("an integer that does not end");
}
