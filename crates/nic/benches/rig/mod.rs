//! A worker that the benchmark is the host of, with a file in memory and a port that takes packets
//! and does nothing with them.

#![allow(
    dead_code,
    reason = "each benchmark uses a part of what all of them share"
)]

pub(crate) mod quic;

use contract::channel::{HostChannel, in_memory};
use contract::{Command, Event, FileId, FlowId, Growth, Segment, Send, SendId};
use fakes::null_port::NullPort;
use nic::reader::memory::MemoryDisk;
use nic::{Config, Worker};
use wire::frame::{HEADER_BYTES_MAX, TcpTemplate};
use wire::tcp::{self, Flags};

/// The one file, so long, in bytes.
pub(crate) const FILE: FileId = FileId(1);
pub(crate) const FILE_BYTES: usize = 1 << 20;

pub(crate) const MSS: u16 = 1448;

/// The worker, and the host's end of its rings.
pub(crate) struct Rig {
    pub(crate) host: HostChannel,
    pub(crate) worker: Worker<NullPort>,
    header: Vec<u8>,
}

/// What a SEND is about.
pub(crate) struct Wanted {
    pub(crate) id: u64,
    pub(crate) flow: u64,
    pub(crate) stream_offset: u64,
    pub(crate) acked_offset: u64,
    pub(crate) segment: Segment<'static>,
}

impl Rig {
    /// A worker that has opened the file.
    pub(crate) fn new(superpacket_max: usize) -> Rig {
        let disk = MemoryDisk::new();
        disk.put(b"file", vec![5; FILE_BYTES]);
        let (host, channel) = in_memory();
        let port = NullPort { superpacket_max };
        let worker = Worker::new(&Config::default(), channel, port, Box::new(disk));
        let template = TcpTemplate::new(
            [2; 6],
            [4; 6],
            "10.0.0.1:443".parse().expect("an address"),
            "10.0.0.2:5000".parse().expect("an address"),
        );
        let header = tcp::Header {
            flags: Flags::ACK,
            ..tcp::Header::default()
        };
        let mut bytes = [0; HEADER_BYTES_MAX];
        let len = template.write(&header, &mut bytes).expect("it fits");
        let mut rig = Rig {
            host,
            worker: worker.expect("memory"),
            header: bytes[..len].to_vec(),
        };
        rig.tell(&Command::Open {
            file: FILE,
            growth: Growth::Forbidden,
            path: b"file",
        });
        rig.run_until(0);
        rig
    }

    pub(crate) fn tell(&mut self, command: &Command<'_>) {
        self.host.send(command).expect("room in the ring");
        self.host.flush();
    }

    pub(crate) fn send(&mut self, wanted: Wanted) {
        let header = std::mem::take(&mut self.header);
        self.tell(&Command::Send(Send {
            id: SendId(wanted.id),
            flow: FlowId(wanted.flow),
            stream_offset: wanted.stream_offset,
            acked_offset: wanted.acked_offset,
            issued_us: 0,
            not_before_us: 0,
            tsval_fraction_us: 0,
            follow_bytes: 0,
            mss: MSS,
            header: &header,
            segments: [wanted.segment].into(),
        }));
        self.header = header;
    }

    /// Turns until so many SENDs have departed.
    pub(crate) fn run_until(&mut self, departures: u64) {
        let mut departed = 0;
        loop {
            let progress = self.worker.turn(&|| 0).expect("the ring is sound");
            departed += self.departures();
            if departed >= departures && progress == nic::Progress::Idle {
                return;
            }
        }
    }

    /// Takes in what the worker has reported: how many SENDs have departed.
    pub(crate) fn departures(&mut self) -> u64 {
        let mut departed = 0;
        while let Some(event) = self.host.receive().expect("the ring is sound") {
            assert!(!matches!(event, Event::Rejected { .. }), "{event:?}");
            departed += u64::from(matches!(event, Event::Departed { .. }));
        }
        departed
    }
}
