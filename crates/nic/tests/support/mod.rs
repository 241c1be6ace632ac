//! A worker on a stage: the test is the host, the port writes down what leaves, time stands still
//! unless moved.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test program uses a part of what all of them share"
)]

pub mod tls;

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

use contract::channel::{HostChannel, in_memory};
use contract::{Command, Event, FileId, FileMeta, FlowId, Growth, Segment, Segments, Send, SendId};
use netdev::{Frame, Offload, Port, SendError, Superpacket};
use nic::reader::Reader;
use nic::reader::memory::MemoryDisk;
use nic::{Config, Counters, Progress, Worker};
use wire::frame::{HeaderMut, Received, TcpTemplate};
use wire::tcp::{self, Flags, Options, Timestamps};

/// Sequence number of the first payload byte of every flow: the stream soon wraps around.
pub const FIRST_SEQ: u32 = u32::MAX - 1000;

pub const MSS: u16 = 1448;

/// A packet that was handed to the port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    pub header: Vec<u8>,
    pub payload: Vec<u8>,
    pub tcp_offset: usize,
    pub mss: u16,
}

impl Packet {
    /// The header, parsed.
    pub fn parsed(&self) -> (u32, Flags, Option<u32>) {
        let mut bytes = self.header.clone();
        let header = HeaderMut::parse(&mut bytes).expect("a header");
        (header.seq(), header.flags(), header.timestamp_value())
    }

    pub fn seq(&self) -> u32 {
        self.parsed().0
    }

    pub fn flags(&self) -> Flags {
        self.parsed().1
    }

    pub fn timestamp(&self) -> u32 {
        self.parsed().2.expect("a timestamps option")
    }

    /// Which flow it is of: tests put the flow's id into the destination port.
    pub fn flow(&self) -> FlowId {
        let at = self.tcp_offset + 2;
        FlowId(u16::from_be_bytes([self.header[at], self.header[at + 1]]).into())
    }

    /// Offset in the stream of the first payload byte.
    pub fn stream_offset(&self) -> usize {
        self.seq().wrapping_sub(FIRST_SEQ) as usize
    }

    /// Does what the port does, and checks that a receiver would take the result.
    pub fn check(&self) {
        let mut frame = self.header.clone();
        frame.extend_from_slice(&self.payload);
        let mut sum = 0u32;
        for pair in frame[self.tcp_offset..].chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        let at = self.tcp_offset + 16;
        frame[at..at + 2].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        match wire::frame::parse(&frame, false) {
            Ok(Received::Tcp(packet)) => assert_eq!(packet.segment.payload, self.payload),
            other => panic!("not a TCP packet: {other:?}"),
        }
    }
}

/// What the port will answer.
#[derive(Debug)]
pub enum Answer {
    Busy,
    Drop,
    Fail,
}

#[derive(Debug, Default)]
struct Tap {
    packets: Vec<Packet>,
    answers: VecDeque<Answer>,
    closed: bool,
    lenient: bool,
}

/// Sees what leaves, and decides what the port answers.
#[derive(Clone, Debug, Default)]
pub struct Wire(Arc<Mutex<Tap>>);

impl Wire {
    pub fn packets(&self) -> Vec<Packet> {
        self.0.lock().unwrap().packets.clone()
    }

    pub fn take(&self) -> Vec<Packet> {
        std::mem::take(&mut self.0.lock().unwrap().packets)
    }

    /// The next packets meet with these answers.
    pub fn answer(&self, answers: impl IntoIterator<Item = Answer>) {
        self.0.lock().unwrap().answers.extend(answers);
    }

    /// The port is busy until opened again.
    pub fn close(&self, closed: bool) {
        self.0.lock().unwrap().closed = closed;
    }

    /// Packets need not be such that a receiver would take them.
    pub fn be_lenient(&self) {
        self.0.lock().unwrap().lenient = true;
    }

    /// The streams that a receiver would put together, by flow. Bytes sent twice must be the same.
    pub fn streams(&self) -> BTreeMap<u64, Vec<u8>> {
        let mut streams: BTreeMap<u64, Vec<Option<u8>>> = BTreeMap::new();
        for packet in self.packets() {
            let stream = streams.entry(packet.flow().0).or_default();
            let start = packet.stream_offset();
            let end = start + packet.payload.len();
            stream.resize(stream.len().max(end), None);
            for (place, byte) in stream[start..end].iter_mut().zip(&packet.payload) {
                assert!(place.is_none_or(|old| old == *byte), "content has changed");
                *place = Some(*byte);
            }
        }
        let whole = |stream: Vec<Option<u8>>| -> Vec<u8> {
            stream
                .into_iter()
                .map(|byte| byte.expect("no hole"))
                .collect()
        };
        streams
            .into_iter()
            .map(|(flow, stream)| (flow, whole(stream)))
            .collect()
    }
}

/// A port that writes down what it is given.
#[derive(Debug)]
pub struct TestPort {
    wire: Wire,
    superpacket_max: usize,
    /// Packets until it is closed.
    takes: Option<usize>,
}

impl TestPort {
    pub fn new(wire: &Wire, superpacket_max: usize) -> TestPort {
        let wire = wire.clone();
        TestPort {
            wire,
            superpacket_max,
            takes: None,
        }
    }

    /// Takes so many packets and is busy then, until opened again.
    pub fn close_after(&mut self, packets: usize) {
        self.takes = Some(packets);
    }
}

impl Port for TestPort {
    fn mac(&self) -> [u8; 6] {
        [2, 0, 0, 0, 0, 1]
    }

    fn mtu(&self) -> usize {
        1500
    }

    fn superpacket_max(&self, _ipv6: bool) -> usize {
        self.superpacket_max
    }

    fn send(&mut self, packet: &Superpacket<'_>) -> Result<(), SendError> {
        let mut tap = self.wire.0.lock().unwrap();
        if tap.closed {
            return Err(SendError::WouldBlock);
        }
        match tap.answers.pop_front() {
            Some(Answer::Busy) => return Err(SendError::WouldBlock),
            Some(Answer::Drop) => return Err(SendError::Dropped),
            Some(Answer::Fail) => return Err(SendError::Failed(io::ErrorKind::NetworkDown.into())),
            None => {}
        }
        let Offload::Tcp {
            tcp_offset, mss, ..
        } = packet.offload
        else {
            panic!("a SEND makes TCP packets");
        };
        let payload: Vec<u8> = packet.payload.iter().flat_map(|s| s.to_vec()).collect();
        assert!(packet.header.len() - 14 + payload.len() <= self.superpacket_max);
        let packet = Packet {
            header: packet.header.to_vec(),
            payload,
            tcp_offset: tcp_offset.into(),
            mss,
        };
        if !tap.lenient {
            packet.check();
        }
        tap.packets.push(packet);
        if let Some(takes) = &mut self.takes {
            *takes -= 1;
            if *takes == 0 {
                tap.closed = true;
                self.takes = None;
            }
        }
        Ok(())
    }

    fn receive(&mut self, _: usize, _: &mut dyn FnMut(Frame<'_>)) -> io::Result<usize> {
        Ok(0)
    }

    fn receive_fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn send_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A header as the host makes it for a SEND of this flow.
pub fn header(flow: u64, stream_offset: u64, flags: Flags, timestamp: u32) -> Vec<u8> {
    header_between(
        "10.77.0.2:80".parse().unwrap(),
        SocketAddr::new("10.77.0.1".parse().unwrap(), flow as u16),
        stream_offset,
        flags,
        timestamp,
    )
}

pub fn header_v6(flow: u64, stream_offset: u64, flags: Flags, timestamp: u32) -> Vec<u8> {
    header_between(
        "[fd77::2]:80".parse().unwrap(),
        SocketAddr::new("fd77::1".parse().unwrap(), flow as u16),
        stream_offset,
        flags,
        timestamp,
    )
}

fn header_between(
    source: SocketAddr,
    destination: SocketAddr,
    stream_offset: u64,
    flags: Flags,
    timestamp: u32,
) -> Vec<u8> {
    let template = TcpTemplate::new([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1], source, destination);
    let header = tcp::Header {
        seq: FIRST_SEQ.wrapping_add(stream_offset as u32),
        ack: 77,
        flags,
        window: 512,
        options: Options {
            timestamps: Some(Timestamps {
                value: timestamp,
                echo_reply: 5,
            }),
            ..Options::default()
        },
        ..tcp::Header::default()
    };
    let mut buffer = [0; wire::frame::HEADER_BYTES_MAX];
    let len = template.write(&header, &mut buffer).expect("it fits");
    buffer[..len].to_vec()
}

/// A worker, and the host's end of its channel.
pub struct Stage {
    pub host: HostChannel,
    pub worker: Worker<TestPort>,
    pub wire: Wire,
    pub disk: MemoryDisk,
    pub now_us: Cell<u64>,
    /// All events so far that were not taken.
    pub events: Vec<Event>,
    /// What SENDs say is acknowledged, of any flow.
    pub acked_offset: u64,
    /// How far SENDs say that the stream goes on in the last file.
    pub follow_bytes: u32,
    /// How long after they are issued SENDs may leave; 0 for at once.
    pub held_us: u64,
    sends: u64,
}

/// A flow that needs little memory.
pub fn small_config() -> Config {
    Config {
        cache_bytes: 16 << 20,
        ..Config::default()
    }
}

impl Stage {
    pub fn new() -> Stage {
        Stage::with(&small_config())
    }

    pub fn with(config: &Config) -> Stage {
        let disk = MemoryDisk::new();
        let mut stage = Stage::on(config, Box::new(disk.clone()), 65_535);
        stage.disk = disk;
        stage
    }

    pub fn on(config: &Config, reader: Box<dyn Reader>, superpacket_max: usize) -> Stage {
        let (host, channel) = in_memory();
        let wire = Wire::default();
        let port = TestPort::new(&wire, superpacket_max);
        Stage {
            host,
            worker: Worker::new(config, channel, port, reader).expect("memory"),
            wire,
            disk: MemoryDisk::new(),
            now_us: Cell::new(1_000_000),
            events: Vec::new(),
            acked_offset: 0,
            follow_bytes: 0,
            held_us: 0,
            sends: 0,
        }
    }

    /// Gives a command to the worker, which takes it at its next turn.
    pub fn tell(&mut self, command: &Command<'_>) {
        while self.host.send(command).is_err() {
            self.turn();
            self.listen();
        }
        self.host.flush();
    }

    /// One turn of the worker.
    pub fn turn(&mut self) -> Progress {
        let now = &self.now_us;
        self.worker.turn(&|| now.get()).expect("the ring is sound")
    }

    /// Takes the events that have come.
    pub fn listen(&mut self) {
        while let Some(event) = self.host.receive().expect("the ring is sound") {
            self.events.push(event);
        }
    }

    /// Turns until nothing more can be done.
    pub fn settle(&mut self) -> &mut Stage {
        loop {
            let progress = self.turn();
            let before = self.events.len();
            self.listen();
            if progress == Progress::Idle && self.events.len() == before {
                return self;
            }
        }
    }

    pub fn take_events(&mut self) -> Vec<Event> {
        self.settle();
        std::mem::take(&mut self.events)
    }

    pub fn counters(&self) -> Counters {
        self.worker.counters()
    }

    pub fn tell_open(&mut self, file: u32, path: &[u8]) {
        let file = FileId(file);
        self.tell(&Command::Open {
            file,
            growth: Growth::Forbidden,
            path,
        });
    }

    /// Opens a file that is there.
    pub fn open(&mut self, file: u32, path: &[u8]) -> FileMeta {
        self.tell_open(file, path);
        self.settle();
        let mut opened = None;
        self.events.retain(|event| match event {
            Event::Opened { file: id, meta } if id.0 == file => {
                opened = Some(*meta);
                false
            }
            _ => true,
        });
        opened.unwrap_or_else(|| panic!("not opened: {:?}", self.events))
    }

    /// A SEND with header and all; returns its id.
    pub fn send(
        &mut self,
        flow: u64,
        stream_offset: u64,
        segments: impl Into<Segments<'static>>,
    ) -> SendId {
        let flags = Flags::ACK | Flags::PSH;
        let header = header(flow, stream_offset, flags, 1);
        self.send_with(flow, stream_offset, &header, segments.into())
    }

    pub fn send_with(
        &mut self,
        flow: u64,
        stream_offset: u64,
        header: &[u8],
        segments: Segments<'_>,
    ) -> SendId {
        self.sends += 1;
        let id = SendId(self.sends);
        let send = Send {
            id,
            flow: FlowId(flow),
            stream_offset,
            acked_offset: self.acked_offset,
            issued_us: self.now_us.get(),
            not_before_us: match self.held_us {
                0 => 0,
                held_us => self.now_us.get() + held_us,
            },
            tsval_fraction_us: 0,
            follow_bytes: self.follow_bytes,
            mss: MSS,
            header,
            segments,
        };
        self.tell(&Command::Send(send));
        id
    }

    pub fn acked(&mut self, flow: u64, stream_offset: u64, last: bool) {
        self.tell(&Command::Acked {
            flow: FlowId(flow),
            stream_offset,
            last,
        });
    }
}

/// A range of a file, as a segment.
pub fn range(file: u32, offset: u64, len: u32) -> Segment<'static> {
    Segment::File {
        file: FileId(file),
        offset,
        len,
    }
}

/// Bytes of which no two places look alike.
pub fn content(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64 ^ len as u64;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

/// The ids of departures among events, in order.
pub fn departed(events: &[Event]) -> Vec<SendId> {
    events
        .iter()
        .filter_map(|event| match event {
            Event::Departed { send, .. } => Some(*send),
            _ => None,
        })
        .collect()
}
