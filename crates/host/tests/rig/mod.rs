//! A host stack between a client and a NIC stack that are both played by the test, in virtual time.

#![allow(
    dead_code,
    reason = "each test program uses a part of what all of them share"
)]

pub(crate) mod intruder;

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use contract::channel::in_memory;
use fakes::content::content;
use fakes::nic::{FakeNic, Work};
use host::app::{AppEvent, Application, FileHandle, Io, Owner, StreamId, StreamMemory};
use host::{Growth, Link, Stack, StackConfig};
use netdev::memory::{self, MemoryPort, pair};
use netdev::{Offload, Port, Superpacket};
use tcp::{Connection, ConnectionEvent, Instant, IsnGenerator, Limits};
use wire::frame::{self, Received, TcpTemplate};
use wire::tcp::Flags;
use wire::{arp, ethernet};

pub(crate) const SERVER: &str = "10.77.0.2:80";
pub(crate) const CLIENT: &str = "10.77.0.1";
const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// An application that answers every request line `size\n` with a two-byte header and a file of
/// this size, `quit\n` with a FIN, and `idle\n` with nothing. `rate 100000\n` limits its stream
/// from then on, `rate -\n` no longer. `lowat 5000\n` has it told when no more waits to be sent.
/// `hold size\n` opens a file that `drop\n` closes. `bye\n` closes the stream.
#[derive(Default)]
pub(crate) struct FileServer {
    pub(crate) events: Vec<AppEvent>,
    /// Streams that were accepted.
    pub(crate) accepted: Vec<StreamId>,
    requests: HashMap<StreamId, Vec<u8>>,
    held: Option<FileHandle>,
    /// The metadata may be lies.
    pub(crate) lenient: bool,
    /// It reads nothing.
    pub(crate) deaf: bool,
    /// It closes its side when the peer has.
    pub(crate) follows: bool,
    /// It reads so long after data has arrived.
    pub(crate) reads_after: Option<Duration>,
    /// Memory that it has for streams.
    pub(crate) memory: HashMap<StreamId, StreamMemory>,
    /// The response to a request without TLS.
    pub(crate) plain_http: Vec<u8>,
    /// What it does with its streams when it next gets an event.
    pub(crate) does: Option<Deed>,
}

/// Something that a test has the application do.
pub(crate) type Deed = Box<dyn FnOnce(&mut dyn Io)>;

impl Application for FileServer {
    fn on_plain_http(&mut self, _unix_time: Duration, _is_head: bool) -> Vec<u8> {
        self.plain_http.clone()
    }

    fn on_event(&mut self, io: &mut dyn Io, stream: StreamId, event: AppEvent) {
        if let Some(deed) = self.does.take() {
            deed(io);
        }
        match event {
            AppEvent::Readable if self.reads_after.is_some() => {
                io.set_timer(stream, self.reads_after);
            }
            AppEvent::Accepted { .. } => self.accepted.push(stream),
            AppEvent::Timer => self.on_readable(io, stream),
            AppEvent::Readable if !self.deaf => self.on_readable(io, stream),
            AppEvent::Opened { file, meta } => {
                let header = io.write(stream, b"ok");
                let body = io.write_file(stream, file, 0..meta.size);
                let past_the_end = io.write_file(stream, file, 0..meta.size.saturating_add(1));
                let expected = (2, meta.size, 0);
                assert!(self.lenient || (header, body, past_the_end) == expected);
                io.close_file(file);
            }
            AppEvent::Listed { ref part, .. } => {
                if part.has_changed {
                    io.write(stream, b"! ");
                }
                for entry in &part.entries {
                    io.write(stream, entry.name);
                    io.write(stream, b" ");
                }
                match part.next {
                    None => {
                        io.write(stream, b".");
                    }
                    place => {
                        io.list(stream, b"dir", place);
                    }
                }
            }
            AppEvent::OpenFailed { .. } => {
                io.write(stream, b"no");
            }
            AppEvent::PeerFinished if self.follows => io.shutdown(stream),
            _ => {}
        }
        self.events.push(event);
    }

    fn memory(&self, _owner: Owner, stream: StreamId) -> StreamMemory {
        self.memory.get(&stream).copied().unwrap_or_default()
    }
}

impl FileServer {
    fn on_readable(&mut self, io: &mut dyn Io, stream: StreamId) {
        let mut buffer = [0; 512];
        loop {
            let count = io.read(stream, &mut buffer);
            if count == 0 {
                return;
            }
            let request = self.requests.entry(stream).or_default();
            for &byte in &buffer[..count] {
                if byte != b'\n' {
                    request.push(byte);
                    continue;
                }
                let line = std::mem::take(request);
                match &line[..] {
                    b"quit" => io.shutdown(stream),
                    b"bye" => io.close(stream),
                    b"idle" => io.set_idle(stream, true),
                    line if line.starts_with(b"rate ") => {
                        let rate = std::str::from_utf8(&line[5..]).unwrap();
                        io.set_max_pacing_rate(stream, rate.parse().ok());
                    }
                    line if line.starts_with(b"lowat ") => {
                        let bytes = std::str::from_utf8(&line[6..]).unwrap();
                        io.set_notsent_lowat(stream, bytes.parse().unwrap());
                    }
                    line if line.starts_with(b"real ") => {
                        let count = std::str::from_utf8(&line[5..]).unwrap();
                        let bytes = vec![b'r'; count.parse().unwrap()];
                        assert_eq!(io.write(stream, &bytes), bytes.len());
                    }
                    line if line.starts_with(b"hold ") => {
                        self.held = Some(io.open(stream, &line[5..], Growth::Forbidden));
                    }
                    b"list" => {
                        io.list(stream, b"dir", None);
                    }
                    b"drop" => io.close_file(self.held.take().expect("one is held")),
                    path => {
                        io.open(stream, path, Growth::Forbidden);
                    }
                }
            }
        }
    }

    /// How often an event of this kind was told.
    pub(crate) fn count(&self, kind: fn(&AppEvent) -> bool) -> usize {
        self.events.iter().filter(|event| kind(event)).count()
    }
}

/// Everything together.
pub(crate) struct Rig {
    pub(crate) now_us: u64,
    pub(crate) stack: Stack,
    pub(crate) port: MemoryPort,
    pub(crate) app: FileServer,
    pub(crate) nic: FakeNic,
    /// Further NIC stacks, or workers of the same: number 1 and so on.
    pub(crate) others: Vec<FakeNic>,
    pub(crate) client: Connection,
    client_address: SocketAddr,
    pub(crate) client_port: MemoryPort,
    pub(crate) received: Vec<u8>,
    pub(crate) client_closed: Option<tcp::CloseReason>,
    /// The NIC stack takes commands from its ring.
    pub(crate) nic_takes: bool,
    /// The NIC stack carries out what it takes.
    pub(crate) nic_works: bool,
    /// The client hears, and says nothing.
    pub(crate) client_is_mute: bool,
    /// Headers of the frames that reached the client, with their payload's length.
    pub(crate) trace: Vec<(wire::tcp::Header, usize)>,
    /// The last header that went to another peer, by port.
    pub(crate) strangers: HashMap<u16, wire::tcp::Header>,
    /// Frames to other peers, where a test takes them.
    pub(crate) to_others: Option<Vec<Vec<u8>>>,
}

impl Rig {
    pub(crate) fn new() -> Rig {
        Rig::with(|_| {})
    }

    /// With a configuration of its own. The client is also the gateway to the rest of the world.
    pub(crate) fn with(configure: impl FnOnce(&mut StackConfig)) -> Rig {
        Rig::with_nics(1, configure)
    }

    /// The same with so many NIC stacks, of one worker each.
    pub(crate) fn with_nics(nics: usize, configure: impl FnOnce(&mut StackConfig)) -> Rig {
        Rig::with_workers(&vec![1; nics], configure)
    }

    /// The same with NIC stacks of so many workers.
    pub(crate) fn with_workers(nics: &[usize], configure: impl FnOnce(&mut StackConfig)) -> Rig {
        let (port, client_port) = pair(memory::Link::default());
        let addresses = vec![("10.77.0.2".parse().unwrap(), 24)];
        let mut config = StackConfig {
            gateways: vec![CLIENT.parse().unwrap()],
            connections_max: 16,
            ..StackConfig::new(addresses, vec![80], [7; 16])
        };
        configure(&mut config);
        let now_us = 1_000_000;
        let mut stack = Stack::awaiting(config, Link::of(&port), nics.len(), now_us);
        let mut others = VecDeque::new();
        for (nic, &workers) in nics.iter().enumerate() {
            let (host_channels, channels): (_, Vec<_>) = (0..workers).map(|_| in_memory()).unzip();
            stack.on_nic_come(now_us, nic, host_channels).unwrap();
            others.extend(channels.into_iter().map(FakeNic::new));
        }
        let nic = others.pop_front().expect("a NIC stack has workers");
        let client_address = SocketAddr::new(CLIENT.parse().unwrap(), 40_000);
        Rig {
            now_us,
            stack,
            port,
            app: FileServer::default(),
            nic,
            others: others.into(),
            client: connect(client_address, now_us),
            client_address,
            client_port,
            received: Vec::new(),
            client_closed: None,
            nic_takes: true,
            nic_works: true,
            client_is_mute: false,
            trace: Vec::new(),
            strangers: HashMap::new(),
            to_others: None,
        }
    }

    /// A new NIC worker takes the place of the old one, and knows nothing.
    pub(crate) fn restart_nic(&mut self) {
        let (host_channel, channel) = in_memory();
        self.nic = FakeNic::new(channel);
        self.stack.on_nic_restarted(self.now_us, 0, host_channel);
    }

    /// One of the NIC stacks, or of the workers of the only one.
    pub(crate) fn nic(&mut self, number: usize) -> &mut FakeNic {
        match number.checked_sub(1) {
            None => &mut self.nic,
            Some(other) => &mut self.others[other],
        }
    }

    /// A NIC stack is gone, with all that it knew.
    pub(crate) fn lose_nic(&mut self, number: usize) {
        let nic = self.nic(number);
        nic.is_there = false;
        nic.work.clear();
        nic.lists.clear();
        nic.sizes.clear();
        self.stack.on_nic_lost(self.now_us, number);
    }

    /// It is back, with the files that it had.
    pub(crate) fn bring_nic(&mut self, number: usize) {
        let (host_channel, channel) = in_memory();
        let nic = self.nic(number);
        let (lacks, meta) = (std::mem::take(&mut nic.lacks), nic.meta);
        let names = std::mem::take(&mut nic.names);
        *nic = FakeNic {
            lacks,
            meta,
            names,
            ..FakeNic::new(channel)
        };
        let come = self
            .stack
            .on_nic_come(self.now_us, number, vec![host_channel]);
        come.unwrap();
    }

    /// The only NIC stack is gone, with all its workers.
    pub(crate) fn lose_all_workers(&mut self) {
        for number in 0..=self.others.len() {
            let nic = self.nic(number);
            nic.is_there = false;
            nic.work.clear();
            nic.sizes.clear();
        }
        self.stack.on_nic_lost(self.now_us, 0);
    }

    /// It is back.
    pub(crate) fn bring_all_workers(&mut self) {
        let mut host_channels = Vec::new();
        for number in 0..=self.others.len() {
            let (host_channel, channel) = in_memory();
            *self.nic(number) = FakeNic::new(channel);
            host_channels.push(host_channel);
        }
        self.stack
            .on_nic_come(self.now_us, 0, host_channels)
            .unwrap();
    }

    /// Lets 100 µs pass, in which everybody does what there is to do.
    pub(crate) fn step(&mut self) {
        self.now_us += 100;
        let now = Instant::from_us(self.now_us);
        if !self.client_is_mute {
            self.client_speaks(now);
        }
        let (stack, now_us) = (&mut self.stack, self.now_us);
        self.port
            .receive(usize::MAX, &mut |frame| stack.on_frame(now_us, frame))
            .unwrap();
        self.stack
            .on_channels(now_us, usize::MAX)
            .expect("a sane ring");
        self.stack.on_time(now_us);
        self.stack.serve(now_us, &mut self.port, &mut self.app);
        for number in 0..=self.others.len() {
            let nic_takes = self.nic_takes;
            let nic = self.nic(number);
            if nic_takes && nic.is_there && !nic.is_stuck {
                nic.take();
                if !nic.holds_lists {
                    nic.list();
                }
            }
            while self.nic_works
                && let Some(work) = self.nic(number).work.pop_front()
            {
                self.carry_out_at(number, work);
            }
        }
        let mut frames = Vec::new();
        self.client_port
            .receive(usize::MAX, &mut |frame| frames.push(frame.bytes.to_vec()))
            .unwrap();
        for frame in frames {
            self.client_hears(&frame);
        }
    }

    /// Steps until `done`, for at most a minute of virtual time.
    pub(crate) fn run_until(&mut self, mut done: impl FnMut(&Rig) -> bool) {
        for _ in 0..600_000 {
            if done(self) {
                return;
            }
            self.step();
        }
        panic!(
            "not done after a minute: {} bytes received, {:?}, {:?}",
            self.received.len(),
            self.client.state(),
            self.stack.counters()
        );
    }

    /// The NIC stack answers an OPEN, and nothing after it.
    pub(crate) fn answer_open_only(&mut self) {
        self.nic_works = false;
        self.run_until(|rig| !rig.nic.work.is_empty());
        let open = self.nic.work.pop_front().unwrap();
        self.carry_out(open);
    }

    /// A while in which the NIC stack opens files and keeps every SEND. Returns how many bytes came
    /// inline.
    pub(crate) fn inline_bytes_of_sends_kept(&mut self) -> usize {
        self.nic_works = false;
        let mut kept = 0;
        for _ in 0..200 {
            self.step();
            while let Some(work) = self.nic.work.pop_front() {
                match work {
                    Work::Open(..) => self.carry_out(work),
                    Work::Send { inline_bytes, .. } => kept += inline_bytes,
                }
            }
        }
        kept
    }

    /// Does what a NIC stack does with a command.
    pub(crate) fn carry_out(&mut self, work: Work) {
        self.carry_out_at(0, work);
    }

    /// The same, one of several NIC stacks.
    pub(crate) fn carry_out_at(&mut self, number: usize, work: Work) {
        let now_us = self.now_us;
        for frame in self.nic(number).carry_out(work, now_us) {
            self.client_hears(&frame);
        }
    }

    pub(crate) fn client_hears(&mut self, bytes: &[u8]) {
        match frame::parse(bytes, false).expect("the stack sends sane frames") {
            Received::Tcp(packet)
                if packet.segment.header.destination_port != self.client_address.port() =>
            {
                let header = packet.segment.header;
                self.strangers.insert(header.destination_port, header);
                if let Some(frames) = &mut self.to_others {
                    frames.push(bytes.to_vec());
                }
            }
            Received::Tcp(packet) => {
                let segment = &packet.segment;
                self.trace.push((segment.header, segment.payload.len()));
                self.client
                    .on_segment(Instant::from_us(self.now_us), segment);
                let mut buffer = [0; 4096];
                loop {
                    let count = self.client.read(&mut buffer);
                    if count == 0 {
                        break;
                    }
                    self.received.extend_from_slice(&buffer[..count]);
                }
                while let Some(event) = self.client.poll_event() {
                    if let ConnectionEvent::Closed { reason } = event {
                        self.client_closed = Some(reason);
                    }
                }
            }
            Received::Arp(request) if request.operation == arp::Operation::Request => {
                let reply = arp::Packet {
                    operation: arp::Operation::Reply,
                    sender_mac: CLIENT_MAC,
                    sender: request.target,
                    target_mac: request.sender_mac,
                    target: request.sender,
                };
                self.inject(&reply.to_frame(request.sender_mac));
            }
            // Answers to strangers.
            Received::Arp(_) | Received::Icmp4(_) | Received::Icmp6(_) => {}
            other => panic!("unexpected {other:?}"),
        }
    }

    fn client_speaks(&mut self, now: Instant) {
        for frame in self.client_frames(now) {
            self.inject(&frame);
        }
    }

    /// What the client has to say, which is on no link yet.
    pub(crate) fn client_frames(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        if self.client.next_timeout().is_some_and(|at| at <= now) {
            self.client.on_timeout(now);
        }
        let limits = Limits {
            bytes_max: 1400,
            pieces_max: 8,
            real_bytes_max: 1400,
            direct_bytes_max: 0,
        };
        while let Some(transmit) = self.client.poll_transmit(now, &limits) {
            let template = TcpTemplate::new(
                CLIENT_MAC,
                self.port.mac(),
                self.client_address,
                SERVER.parse().unwrap(),
            );
            let mut payload = Vec::new();
            for piece in self.client.pieces(transmit.range.clone()) {
                if let tcp::Piece::Real(bytes) = piece {
                    payload.extend_from_slice(bytes);
                }
            }
            frames.push(template.to_frame(&transmit.header, &payload));
            if let Some(transmission) = transmit.transmission {
                self.client.on_departed(transmission, now);
            }
        }
        frames
    }

    /// Puts a frame on the link towards the stack.
    pub(crate) fn inject(&mut self, frame: &[u8]) {
        assert!(frame.len() >= ethernet::HEADER_BYTES);
        let packet = Superpacket {
            header: frame,
            payload: &[],
            offload: Offload::None,
        };
        self.client_port.send(&packet).unwrap();
    }

    /// A new client takes the place of the old one, which falls silent.
    pub(crate) fn reconnect(&mut self) {
        self.reconnect_from(self.client_address.port() + 1);
    }

    pub(crate) fn reconnect_from(&mut self, port: u16) {
        self.reconnect_as(SocketAddr::new(self.client_address.ip(), port));
    }

    pub(crate) fn reconnect_as(&mut self, address: SocketAddr) {
        self.client_address = address;
        self.client = connect(self.client_address, self.now_us);
        self.received.clear();
        self.client_closed = None;
    }

    /// A SYN whose answer is not awaited.
    pub(crate) fn inject_syn(&mut self, from: SocketAddr) {
        let header = wire::tcp::Header {
            seq: 7,
            flags: Flags::SYN,
            window: 1000,
            ..wire::tcp::Header::default()
        };
        self.inject_segment(from, &header, &[]);
    }

    /// A segment that claims to come from there.
    pub(crate) fn inject_segment(
        &mut self,
        from: SocketAddr,
        header: &wire::tcp::Header,
        payload: &[u8],
    ) {
        let server = SERVER.parse().unwrap();
        let template = TcpTemplate::new(CLIENT_MAC, self.port.mac(), from, server);
        self.inject(&template.to_frame(header, payload));
    }

    /// Where the client speaks from.
    pub(crate) fn client_address(&self) -> SocketAddr {
        self.client_address
    }

    /// The client asks for files of these sizes, in one go.
    pub(crate) fn ask(&mut self, lines: &[&str]) {
        for line in lines {
            let line = format!("{line}\n");
            assert_eq!(self.client.write(line.as_bytes()), line.len());
        }
    }
}

/// A client that opens a connection to the stack.
pub(crate) fn connect(local: SocketAddr, now_us: u64) -> Connection {
    let remote: SocketAddr = SERVER.parse().unwrap();
    let isn = IsnGenerator::new([9; 16]);
    let now = Instant::from_us(now_us);
    let config = tcp::Config {
        receive_buffer_bytes: 1 << 20,
        ..tcp::Config::default()
    };
    Connection::connect(
        &config,
        local.port(),
        remote.port(),
        isn.isn(local, remote, now),
        isn.ts_offset(local, remote),
        now,
    )
}

/// What the server should answer to a request for a file of this size.
pub(crate) fn answer(size: u64) -> Vec<u8> {
    let mut answer = b"ok".to_vec();
    answer.extend((0..size).map(|at| content(size, at)));
    answer
}
