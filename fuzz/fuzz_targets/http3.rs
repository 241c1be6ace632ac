//! Streams of QUIC connections that carry HTTP/3, whatever comes on them and in whatever order:
//! nothing breaks, what leaves is made of whole frames, and nothing is left when all are gone.

#![no_main]

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Duration;

use host::app::{
    AppEvent, Application, CloseReason, FileHandle, FileMeta, Io, ListPlace, QuicCloseReason,
    QuicConnection, QuicEvent, QuicStream, StreamId, TlsAgreed, TlsCipher, TlsIdentity, TlsSuite,
    TlsVersion,
};
use host::{Growth, PassedId};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use server::{Config, Server};

const FILE_BYTES: u64 = 1000;
const CONNECTION: QuicConnection = QuicConnection(1);
const PEER: ([u8; 4], u16) = ([10, 0, 0, 1], 40_000);

#[derive(Arbitrary, Debug)]
enum Act<'a> {
    /// A stream, with bytes on it.
    Open {
        is_unidirectional: bool,
        bytes: &'a [u8],
    },
    /// A GET whose field section is well-formed, with a frame behind it.
    Request {
        path: &'a str,
        kind: u8,
        payload: &'a [u8],
    },
    /// A control stream with SETTINGS, and bytes behind these.
    Control(&'a [u8]),
    /// More bytes on a stream, perhaps the last ones.
    Send {
        stream: u8,
        bytes: &'a [u8],
        is_last: bool,
    },
    Reset(u8),
    Stop(u8),
    Acknowledge(u8),
    AnswerOpens(bool),
    Pass(u16),
}

fuzz_target!(|acts: Vec<Act<'_>>| {
    let mut server = Server::new(Config::default());
    let mut net = Net::default();
    let tls = Box::new(TlsAgreed {
        suite: TlsSuite {
            version: TlsVersion::Tls13,
            cipher: TlsCipher::Aes128Gcm,
        },
        alpn: Some(b"h3".to_vec()),
        is_resumed: false,
        identity: TlsIdentity::default(),
    });
    let opened = QuicEvent::Opened {
        peer: SocketAddr::from(PEER),
        tls,
        is_early: false,
    };
    server.on_quic(&mut net, CONNECTION, opened);
    for act in acts.into_iter().take(200) {
        net.act(act);
        net.deliver(&mut server);
    }
    net.end(&mut server);
});

/// One connection, and files that are all the same.
#[derive(Default)]
struct Net {
    streams: BTreeMap<StreamId, Wire>,
    events: VecDeque<(StreamId, AppEvent)>,
    /// By which stream each is open.
    files: BTreeMap<FileHandle, StreamId>,
    waiting: VecDeque<(StreamId, FileHandle)>,
    files_opened: u64,
    now: Duration,
    opened: [u64; 2],
    is_closed: bool,
}

struct Wire {
    quic: QuicStream,
    inbox: VecDeque<u8>,
    /// Bytes that are sent; those of files are zeros.
    sent: Vec<u8>,
    acknowledged: u64,
    has_ended: bool,
    is_shut_down: bool,
    is_reset: bool,
    is_short: bool,
    timer: Option<Duration>,
}

impl Net {
    fn act(&mut self, act: Act<'_>) {
        match act {
            _ if self.is_closed => {}
            Act::Open {
                is_unidirectional,
                bytes,
            } => self.begin(is_unidirectional, bytes),
            Act::Request {
                path,
                kind,
                payload,
            } => {
                let mut section = b"\0\0\xd1\xd7\x50\x01h\x51".to_vec();
                let path = &path.as_bytes()[..path.len().min(100)];
                section.push(path.len() as u8 + 1);
                section.push(b'/');
                section.extend_from_slice(path);
                let bytes = [frame(1, &section), frame(kind % 64, payload)].concat();
                self.begin(false, &bytes);
            }
            Act::Control(bytes) => self.begin(true, &[&[0, 4, 0], bytes].concat()),
            Act::Send {
                stream,
                bytes,
                is_last,
            } => self.send(stream, bytes, is_last),
            Act::Reset(stream) => {
                if let Some((stream, wire)) = self.find(stream)
                    && !wire.has_ended
                {
                    wire.has_ended = true;
                    wire.inbox.clear();
                    let event = AppEvent::PeerReset { code: 0x10c };
                    self.events.push_back((stream, event));
                }
            }
            Act::Stop(stream) => {
                if let Some((stream, _)) = self.find(stream) {
                    let event = AppEvent::PeerStopped { code: 0x10c };
                    self.events.push_back((stream, event));
                }
            }
            Act::Acknowledge(stream) => {
                if let Some((stream, wire)) = self.find(stream) {
                    wire.acknowledged = wire.sent.len() as u64;
                    if std::mem::take(&mut wire.is_short) {
                        self.events.push_back((stream, AppEvent::Writable));
                    }
                    self.events.push_back((stream, AppEvent::Drained));
                }
            }
            Act::AnswerOpens(are_there) => self.answer_opens(are_there),
            Act::Pass(milliseconds) => {
                self.now += Duration::from_millis(milliseconds.into());
                let now = self.now;
                for (&stream, wire) in &mut self.streams {
                    if wire.timer.take_if(|at| *at <= now).is_some() {
                        self.events.push_back((stream, AppEvent::Timer));
                    }
                }
            }
        }
    }

    fn begin(&mut self, is_unidirectional: bool, bytes: &[u8]) {
        let count = &mut self.opened[usize::from(is_unidirectional)];
        let id = *count * 4 + if is_unidirectional { 2 } else { 0 };
        *count += 1;
        let stream = self.insert(id);
        let accepted = AppEvent::Accepted {
            peer: PEER.into(),
            proxied: None,
            tls: None,
        };
        self.events.push_back((stream, accepted));
        if let Some(wire) = self.streams.get_mut(&stream) {
            wire.inbox.extend(bytes);
        }
        self.events.push_back((stream, AppEvent::Readable));
    }

    fn insert(&mut self, id: u64) -> StreamId {
        let stream = StreamId(id + 1);
        let wire = Wire {
            quic: QuicStream {
                connection: CONNECTION,
                id,
            },
            inbox: VecDeque::new(),
            sent: Vec::new(),
            acknowledged: 0,
            has_ended: false,
            is_shut_down: false,
            is_reset: false,
            is_short: false,
            timer: None,
        };
        self.streams.insert(stream, wire);
        stream
    }

    /// The stream of this number, counted around, but for the server's own.
    fn find(&mut self, number: u8) -> Option<(StreamId, &mut Wire)> {
        let streams = self.streams.iter_mut();
        let mut own = streams.filter(|(_, wire)| !wire.quic.is_local());
        own.nth(usize::from(number))
            .map(|(&stream, wire)| (stream, wire))
    }

    fn send(&mut self, number: u8, bytes: &[u8], is_last: bool) {
        if let Some((stream, wire)) = self.find(number)
            && !wire.has_ended
        {
            wire.inbox.extend(bytes);
            wire.has_ended = is_last;
            let event = match is_last {
                true => AppEvent::PeerFinished,
                false => AppEvent::Readable,
            };
            self.events.push_back((stream, event));
        }
    }

    fn answer_opens(&mut self, are_there: bool) {
        for (stream, file) in std::mem::take(&mut self.waiting) {
            if !self.streams.contains_key(&stream) {
                continue;
            }
            let event = if are_there {
                let meta = FileMeta {
                    size: FILE_BYTES,
                    ..FileMeta::default()
                };
                AppEvent::Opened { file, meta }
            } else {
                self.files.remove(&file);
                AppEvent::OpenFailed { file, errno: 2 }
            };
            self.events.push_back((stream, event));
        }
    }

    fn deliver(&mut self, server: &mut Server) {
        while let Some((stream, event)) = self.events.pop_front() {
            let is_over = matches!(event, AppEvent::Closed { .. });
            if self.streams.contains_key(&stream) {
                server.on_event(self, stream, event);
            }
            if is_over {
                self.streams.remove(&stream);
                self.files.retain(|_, by| *by != stream);
            }
        }
    }

    fn end(mut self, server: &mut Server) {
        for wire in self.streams.values() {
            if wire.is_shut_down && !wire.is_reset && !wire.quic.is_unidirectional() {
                check(&wire.sent);
            }
        }
        let streams: Vec<StreamId> = self.streams.keys().copied().collect();
        streams.into_iter().for_each(|stream| self.close(stream));
        self.deliver(server);
        let closed = QuicEvent::Closed(QuicCloseReason::TimedOut);
        server.on_quic(&mut self, CONNECTION, closed);
        assert_eq!(server.connections(), 0);
        assert!(self.files.is_empty());
        let counters = server.counters();
        assert_eq!(counters.connections_accepted, counters.connections_closed);
    }

    fn close(&mut self, stream: StreamId) {
        if let Some(wire) = self.streams.get(&stream) {
            let closed = AppEvent::Closed {
                reason: CloseReason::Aborted,
                acknowledged: wire.acknowledged,
                retransmissions: 0,
            };
            self.events.push_back((stream, closed));
        }
    }
}

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let payload = &payload[..payload.len().min(16_000)];
    let length = (payload.len() as u16 | 0x4000).to_be_bytes();
    [&[kind], &length[..], payload].concat()
}

/// A response is HEADERS, and DATA perhaps.
fn check(sent: &[u8]) {
    let mut rest = sent;
    let mut kinds = Vec::new();
    while let Some((&kind, behind)) = rest.split_first() {
        let bytes = 1 << (behind[0] >> 6);
        let length = behind[..bytes]
            .iter()
            .fold(0, |length: u64, &byte| length << 8 | u64::from(byte));
        let length = length & (u64::MAX >> (64 - 8 * bytes + 2));
        kinds.push(kind);
        rest = &behind[bytes + length as usize..];
    }
    assert!(matches!(kinds[..], [1] | [1, 0]), "{kinds:?}");
}

impl Io for Net {
    fn quic_stream(&self, stream: StreamId) -> Option<QuicStream> {
        Some(self.streams.get(&stream)?.quic)
    }

    fn open_unidirectional(&mut self, _: QuicConnection) -> Option<StreamId> {
        Some(self.insert(3))
    }

    fn peer_streams_max(&mut self, _: QuicConnection) -> u64 {
        self.opened.iter().sum::<u64>() + 100
    }

    fn reset_stream(&mut self, stream: StreamId, _: u64) {
        if let Some(wire) = self.streams.get_mut(&stream) {
            wire.is_reset = true;
        }
    }

    fn stop_sending(&mut self, stream: StreamId, _: u64) {
        if let Some(wire) = self.streams.get_mut(&stream) {
            wire.has_ended = true;
            wire.inbox.clear();
        }
    }

    fn close_quic(&mut self, _: QuicConnection, _: u64, _: &[u8]) {
        assert!(!self.is_closed, "closed once");
        self.is_closed = true;
    }

    fn read(&mut self, stream: StreamId, buffer: &mut [u8]) -> usize {
        let Some(wire) = self.streams.get_mut(&stream) else {
            return 0;
        };
        let count = wire.inbox.len().min(buffer.len());
        for (into, from) in buffer.iter_mut().zip(wire.inbox.drain(..count)) {
            *into = from;
        }
        count
    }

    fn write(&mut self, stream: StreamId, bytes: &[u8]) -> usize {
        let Some(wire) = self.streams.get_mut(&stream) else {
            return 0;
        };
        assert!(!wire.is_shut_down, "nothing follows the end");
        // Little at a time, until all is acknowledged.
        let room = 300_usize.saturating_sub(wire.sent.len() - wire.acknowledged as usize);
        let count = bytes.len().min(room);
        wire.sent.extend_from_slice(&bytes[..count]);
        wire.is_short |= count < bytes.len();
        count
    }

    fn write_file(&mut self, stream: StreamId, file: FileHandle, range: Range<u64>) -> u64 {
        assert_eq!(self.files.get(&file), Some(&stream), "a file that is open");
        assert!(range.start < range.end && range.end <= FILE_BYTES);
        let Some(wire) = self.streams.get_mut(&stream) else {
            return 0;
        };
        let count = range.end - range.start;
        wire.sent.resize(wire.sent.len() + count as usize, 0);
        count
    }

    fn open(&mut self, stream: StreamId, _: &[u8], _: Growth) -> FileHandle {
        self.files_opened += 1;
        let file = FileHandle(self.files_opened);
        self.files.insert(file, stream);
        self.waiting.push_back((stream, file));
        file
    }

    fn open_passed(&mut self, _: StreamId, _: PassedId) -> FileHandle {
        unreachable!("the server opens files by path")
    }

    fn list(&mut self, _: StreamId, _: &[u8], _: Option<ListPlace>) -> FileHandle {
        unreachable!("directories are not listed")
    }

    fn close_file(&mut self, file: FileHandle) {
        assert!(self.files.remove(&file).is_some(), "closed once");
    }

    fn shutdown(&mut self, stream: StreamId) {
        if let Some(wire) = self.streams.get_mut(&stream) {
            assert!(!wire.is_shut_down, "shut down once");
            wire.is_shut_down = true;
        }
    }

    fn abort(&mut self, stream: StreamId) {
        self.close(stream);
    }

    fn set_timer(&mut self, stream: StreamId, after: Option<Duration>) {
        let now = self.now;
        if let Some(wire) = self.streams.get_mut(&stream) {
            wire.timer = after.map(|after| now + after);
        }
    }

    fn set_idle(&mut self, _: StreamId, _: bool) {}

    fn set_max_pacing_rate(&mut self, _: StreamId, _: Option<u64>) {}

    fn set_notsent_lowat(&mut self, _: StreamId, _: u64) {}

    fn acknowledged(&self, stream: StreamId) -> u64 {
        self.streams
            .get(&stream)
            .map_or(0, |wire| wire.acknowledged)
    }

    fn unacknowledged(&self, stream: StreamId) -> u64 {
        let wire = self.streams.get(&stream);
        wire.map_or(0, |wire| wire.sent.len() as u64 - wire.acknowledged)
    }

    fn unsent(&self, stream: StreamId) -> u64 {
        self.unacknowledged(stream)
    }

    fn usable_window(&self, _: StreamId) -> u64 {
        0
    }

    fn waits_for_peer(&self, stream: StreamId) -> bool {
        self.unacknowledged(stream) > 0
    }

    fn retransmissions(&self, _: StreamId) -> u32 {
        0
    }

    fn now_us(&self) -> u64 {
        self.now.as_micros() as u64
    }

    fn unix_time(&self) -> Duration {
        self.now
    }
}
