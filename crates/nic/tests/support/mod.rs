//! A worker on a stage: the test is the host, the port writes down what leaves, time stands still
//! unless moved.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test program uses a part of what all of them share"
)]

pub mod quic;
pub mod quic_peer;
pub mod tls;

use std::cell::Cell;
use std::net::SocketAddr;

use contract::channel::{HostChannel, in_memory};
use contract::{Command, Event, FileId, FileMeta, FlowId, Growth, Segment, Segments, Send, SendId};
use fakes::recording_port::{FIRST_SEQ, Recording, RecordingPort};
use nic::reader::Reader;
use nic::reader::memory::MemoryDisk;
use nic::{Config, Counters, Progress, Worker};
use wire::frame::TcpTemplate;
use wire::tcp::{self, Flags, Options, Timestamps};

pub const MSS: u16 = 1448;

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
    pub worker: Worker<RecordingPort>,
    pub wire: Recording,
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
        let wire = Recording::default();
        let port = RecordingPort::new(&wire, superpacket_max);
        Stage::on_port(config, reader, port, wire)
    }

    /// The same with a port that writes to `wire`.
    pub fn on_port(
        config: &Config,
        reader: Box<dyn Reader>,
        port: RecordingPort,
        wire: Recording,
    ) -> Stage {
        let (host, channel) = in_memory();
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

    /// The host process dies, and all its connections are ended. Returns how many the worker
    /// knows.
    pub fn lose_host(&mut self) -> usize {
        let now_us = self.now_us.get();
        let connections = self.worker.orphan_all(&|| now_us);
        while self.worker.end_orphans(1, &|| now_us) {}
        connections
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
