//! A NIC stack: a worker with files in memory that take their time, and a port that is often busy.

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use contract::FileId;
use contract::channel::{self, HostChannel};
use fakes::content::content;
use netdev::memory::{Link, MemoryPort, pair};
use netdev::steering::Target;
use netdev::{Frame, Offload, Port, SendError, Superpacket};
use nic::reader::delay::{DelayReader, ReadDelay};
use nic::reader::memory::MemoryDisk;
use nic::{Config, Counters, Progress, Usage, Worker};
use wire::datagram::{self, DatagramHeader, HEADERS_BYTES_MAX};
use wire::ip::Ecn;

/// Length of each file, in bytes.
pub(crate) const FILE_BYTES: u64 = 1_600_000;

/// The files that there are.
pub(crate) const FILES: [FileId; 2] = [FileId(1), FileId(2)];

/// Path of a file.
pub(crate) fn path(file: FileId) -> Vec<u8> {
    file.0.to_string().into_bytes()
}

/// The content of all files.
pub(crate) fn contents() -> Vec<(Vec<u8>, Vec<u8>)> {
    let of = |file: FileId| {
        let bytes = (0..FILE_BYTES).map(|offset| content(file.0.into(), offset));
        (path(file), bytes.collect())
    };
    FILES.into_iter().map(of).collect()
}

/// What a NIC stack is like.
pub(crate) struct Plan {
    pub(crate) cache_bytes: usize,
    pub(crate) read_us_max: u64,
    pub(crate) seed: u64,
}

/// A NIC stack: what dies, and is another one then.
pub(crate) struct Nic {
    pub(crate) number: u64,
    worker: Worker<BusyPort>,
    /// The other end of its port.
    wire: MemoryPort,
    room: Rc<Cell<u64>>,
    clock_us: Rc<Cell<u64>>,
}

impl Nic {
    pub(crate) fn start(
        number: u64,
        files: &[(Vec<u8>, Vec<u8>)],
        clock_us: &Rc<Cell<u64>>,
        plan: &Plan,
    ) -> (HostChannel, Nic) {
        let disk = MemoryDisk::new();
        for (path, content) in files {
            disk.put(path, content.clone());
        }
        let delay = ReadDelay {
            us: 0..=plan.read_us_max,
            seed: plan.seed,
        };
        let clock = Rc::clone(clock_us);
        let reader = DelayReader::new(Box::new(disk), delay, Box::new(move || clock.get()));
        let (inner, wire) = pair(Link::default());
        let room = Rc::new(Cell::new(0));
        let port = BusyPort {
            inner,
            room: Rc::clone(&room),
        };
        let config = Config {
            cache_bytes: plan.cache_bytes,
            ..Config::default()
        };
        let (host, channel) = channel::in_memory();
        let worker = Worker::new(&config, channel, port, Box::new(reader));
        let nic = Nic {
            number,
            worker: worker.expect("memory"),
            wire,
            room,
            clock_us: Rc::clone(clock_us),
        };
        (host, nic)
    }

    /// A datagram of a client has arrived at its port.
    pub(crate) fn arrive(&mut self, source: SocketAddr, destination: SocketAddr, payload: &[u8]) {
        let header = DatagramHeader {
            source_mac: [4; 6],
            destination_mac: [2; 6],
            source,
            destination,
            ecn: Ecn::NotEct,
        };
        let frame = header.to_frame(payload).expect("one family");
        let packet = Superpacket {
            header: &frame,
            payload: &[],
            offload: Offload::None,
        };
        self.wire.send(&packet).expect("memory takes all");
    }

    /// Does what can be done, until the port has taken so many superpackets.
    pub(crate) fn work(&mut self, superpackets: u64) {
        self.room.set(superpackets);
        let now_us = self.clock_us.get();
        while self.worker.turn(&|| now_us) == Ok(Progress::Busy) {}
    }

    /// True if the port may have refused something.
    pub(crate) fn is_port_busy(&self) -> bool {
        self.room.get() == 0
    }

    pub(crate) fn next_timeout_us(&self) -> Option<u64> {
        self.worker.next_timeout_us()
    }

    pub(crate) fn counters(&self) -> Counters {
        self.worker.counters()
    }

    pub(crate) fn usage(&self) -> Usage {
        self.worker.usage()
    }

    /// What has left, and where to. Lengths and checksums are right.
    pub(crate) fn take_datagrams(&mut self) -> Vec<(SocketAddr, Vec<u8>)> {
        let mut datagrams = Vec::new();
        let mut take = |frame: Frame<'_>| datagrams.push(parse(frame.bytes));
        let received = self.wire.receive(usize::MAX, &mut take);
        received.expect("memory does not fail");
        datagrams
    }
}

/// Ethernet, IP and UDP header of datagrams from a server to a client.
pub(crate) fn header(source: SocketAddr, destination: SocketAddr) -> Vec<u8> {
    let header = DatagramHeader {
        source_mac: [2; 6],
        destination_mac: [4; 6],
        source,
        destination,
        ecn: Ecn::NotEct,
    };
    let mut bytes = [0; HEADERS_BYTES_MAX];
    let len = header.write(&mut bytes).expect("it fits");
    bytes[..len].to_vec()
}

/// Where a datagram in a frame goes, and its payload.
fn parse(frame: &[u8]) -> (SocketAddr, Vec<u8>) {
    let datagram = datagram::parse(frame, false).expect("sound");
    let datagram = datagram.expect("a datagram");
    (datagram.destination, datagram.payload.to_vec())
}

/// A port that takes so many superpackets, and is busy then.
pub(crate) struct BusyPort {
    inner: MemoryPort,
    room: Rc<Cell<u64>>,
}

impl Port for BusyPort {
    fn target(&self) -> Option<Target> {
        Target::new(1)
    }

    fn mac(&self) -> [u8; 6] {
        self.inner.mac()
    }

    fn mtu(&self) -> usize {
        self.inner.mtu()
    }

    fn superpacket_max(&self, ipv6: bool) -> usize {
        self.inner.superpacket_max(ipv6)
    }

    fn send(&mut self, packet: &Superpacket<'_>) -> Result<(), SendError> {
        let left = self.room.get().checked_sub(1);
        self.room.set(left.ok_or(SendError::WouldBlock)?);
        self.inner.send(packet)
    }

    fn receive(&mut self, budget: usize, handle: &mut dyn FnMut(Frame<'_>)) -> io::Result<usize> {
        self.inner.receive(budget, handle)
    }

    fn receive_fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn send_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
