//! Two connections of any shape that a NIC worker joins and gives back, over links that do anything
//! to packets.
//!
//! Spliced is as good as copied: each peer reads what the other has sent and nothing else, and
//! all of it when packets arrive again.

#![no_main]

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use contract::channel::{Capacity, HostChannel, in_memory_of};
use contract::limits::FRAME_BYTES_MAX;
use contract::splicing::{
    Splice, SpliceEndReason, SpliceLeg, SpliceNumbers, SpliceOutcome, SpliceTimestamps,
    UnspliceKind,
};
use contract::{Command, Event, FlowId};
use fakes::recording_port::{Recording, RecordingPort};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use nic::reader::memory::MemoryDisk;
use nic::{Config as NicConfig, Progress, Worker};
use tcp::{
    CloseReason, Config, Connection, ConnectionEvent, EcnPolicy, Instant, JoinNumbers, Limits,
    Piece, RejoinNumbers,
};
use wire::frame::{Received, TcpPacket, TcpTemplate, parse, pieces};
use wire::tcp::{Flags, Header};

const FLOW: FlowId = FlowId(1);

/// Packets and timers until nothing more may be left to do.
const TURNS_MAX: usize = 50_000;

/// Steps let so much time pass in all, in milliseconds: less than what ends a connection.
const WAITED_MS_MAX: u64 = 60_000;

#[derive(Arbitrary, Debug)]
struct Shape {
    peer_isn: u32,
    host_isn: u32,
    ts_offset: u32,
    ipv6: bool,
    window_scaling: bool,
    sack: bool,
    offers_ecn: bool,
    mss: u8,
    buffer: u8,
    merges: bool,
}

#[derive(Arbitrary, Debug)]
struct Input {
    shapes: [Shape; 2],
    timestamps: bool,
    superpackets: bool,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Fate {
    Deliver,
    Lose,
    Double,
}

#[derive(Arbitrary, Debug)]
enum Step {
    Write {
        second: bool,
        bytes: u16,
    },
    Read {
        second: bool,
        bytes: u16,
    },
    Shutdown {
        second: bool,
    },
    Abort {
        second: bool,
    },
    /// What becomes of a packet on its way, which need not be the first.
    Packet {
        to_peer: bool,
        second: bool,
        which: u8,
        fate: Fate,
    },
    /// All that is on its way arrives in order.
    Calm,
    Wait {
        ms: u16,
    },
    WaitForTimer,
    Unsplice,
    Splice,
    /// A worker takes the place of another.
    Replace,
}

fuzz_target!(|input: Input| {
    let mut world = World::new(&input);
    for step in &input.steps {
        world.step(step);
        world.settle();
    }
    world.finish();
});

/// Byte `at` of the stream that the peer of a side sends.
fn byte_of(side: usize, at: u64) -> u8 {
    let mixed = (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ (side as u64) << 40);
    (mixed >> 56) as u8 ^ (mixed >> 32) as u8
}

/// One end of a connection.
struct End {
    tcp: Connection,
    way: TcpTemplate,
    packet_bytes_max: usize,
    peer_has_finished: bool,
    has_finished: bool,
    closed: Option<CloseReason>,
    answers: Vec<Header>,
}

impl End {
    fn new(tcp: Connection, way: TcpTemplate, merges: bool) -> End {
        End {
            tcp,
            way,
            packet_bytes_max: if merges { 20_000 } else { 1 },
            peer_has_finished: false,
            has_finished: false,
            closed: None,
            answers: Vec::new(),
        }
    }

    fn on_packet(&mut self, now: Instant, packet: &TcpPacket<'_>) {
        if self.tcp.is_closed() {
            self.answers.extend(tcp::reset_for(&packet.segment));
        }
        self.tcp.on_segment(now, &packet.segment);
        self.hear();
    }

    fn hear(&mut self) {
        while let Some(event) = self.tcp.poll_event() {
            match event {
                ConnectionEvent::PeerFinished => self.peer_has_finished = true,
                ConnectionEvent::Closed { reason } => self.closed = Some(reason),
                _ => {}
            }
        }
    }

    fn on_timeout(&mut self, now: Instant) {
        if self.tcp.next_timeout().is_some_and(|at| at <= now) {
            self.tcp.on_timeout(now);
        }
        self.hear();
    }

    fn shutdown(&mut self) {
        if !std::mem::replace(&mut self.has_finished, true) {
            self.tcp.shutdown();
        }
    }

    fn frames(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let bytes_max = self.packet_bytes_max.max(self.tcp.mss().into());
        let limits = Limits {
            bytes_max,
            pieces_max: 8,
            real_bytes_max: bytes_max,
            direct_bytes_max: 0,
        };
        let answers = self.answers.drain(..);
        let mut frames: Vec<_> = answers.map(|it| self.way.to_frame(&it, &[])).collect();
        while let Some(transmit) = self.tcp.poll_transmit(now, &limits) {
            let mut payload = Vec::new();
            for piece in self.tcp.pieces(transmit.range.clone()) {
                let Piece::Real(bytes) = piece else {
                    panic!("nothing virtual was written");
                };
                payload.extend_from_slice(bytes);
            }
            self.way.traffic_class = transmit.ecn as u8;
            frames.push(self.way.to_frame(&transmit.header, &payload));
            if let Some(transmission) = transmit.transmission {
                self.tcp.on_departed(transmission, now);
            }
        }
        self.hear();
        frames
    }
}

/// What the host knows of a splice.
struct Joined {
    numbers: [JoinNumbers; 2],
    passed_bytes: [u64; 2],
    fin_ends: [Option<u32>; 2],
    is_again: bool,
    is_returning: bool,
}

struct World {
    now: Instant,
    peers: [End; 2],
    hosts: [End; 2],
    to_hosts: [VecDeque<Vec<u8>>; 2],
    to_peers: [VecDeque<Vec<u8>>; 2],
    channel: HostChannel,
    worker: Worker<RecordingPort>,
    wire: Recording,
    superpackets: bool,
    joined: Option<Joined>,
    wants_splice: bool,
    written: [u64; 2],
    read: [u64; 2],
    waited_ms: u64,
    was_aborted: bool,
    was_replaced: bool,
    was_unspliced: bool,
}

fn worker(wire: &Recording, superpackets: bool) -> (HostChannel, Worker<RecordingPort>) {
    let config = NicConfig {
        cache_bytes: NicConfig::CACHE_BYTES_MIN,
        ..NicConfig::default()
    };
    let (host, channel) = in_memory_of(Capacity::LEAST);
    let port = RecordingPort::new(wire, if superpackets { 65_535 } else { 9_000 });
    let disk = Box::new(MemoryDisk::new());
    let worker = Worker::new(&config, channel, port, disk).expect("memory");
    (host, worker)
}

/// Where the host and the peer of a side are.
fn addresses(side: usize, ipv6: bool) -> (SocketAddr, SocketAddr) {
    let (host, peer) = match ipv6 {
        true => ("fd77::2", "fd77::1"),
        false => ("10.77.0.2", "10.77.0.1"),
    };
    let [host_port, peer_port] = [[80, 4000], [50_000, 8080]][side];
    let at = |ip: &str, port| SocketAddr::new(ip.parse().expect("an address"), port);
    (at(host, host_port), at(peer, peer_port))
}

fn config(shape: &Shape, timestamps: bool) -> Config {
    let buffer = [4 << 10, 16 << 10, 64 << 10, 1 << 20][usize::from(shape.buffer % 4)];
    Config {
        mss: [300, 536, 1220, 1460, 8900][usize::from(shape.mss % 5)],
        ipv6: shape.ipv6,
        window_scaling: shape.window_scaling,
        timestamps,
        sack: shape.sack,
        ecn: match shape.offers_ecn {
            true => EcnPolicy::Offer,
            false => EcnPolicy::Accept,
        },
        receive_buffer_bytes: buffer,
        receive_buffer_bytes_max: buffer,
        fin_wait_2: Some(Duration::from_secs(3600)),
        ..Config::default()
    }
}

/// A connection that the peer has opened, as both ends are behind the handshake.
fn established(side: usize, shape: &Shape, timestamps: bool, now: Instant) -> (End, End) {
    let (local, remote) = addresses(side, shape.ipv6);
    let config = config(shape, timestamps);
    let host_config = Config {
        mss: 1460,
        receive_buffer_bytes: 64 << 10,
        receive_buffer_bytes_max: 1 << 20,
        window_scaling: true,
        sack: true,
        ..config
    };
    let (host_mac, peer_mac) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2 + side as u8]);
    let peer_way = TcpTemplate::new(peer_mac, host_mac, remote, local);
    let host_way = TcpTemplate::new(host_mac, peer_mac, local, remote);
    let tcp = Connection::connect(
        &config,
        remote.port(),
        local.port(),
        shape.peer_isn,
        shape.ts_offset,
        now,
    );
    let mut peer = End::new(tcp, peer_way, shape.merges);
    let syn = peer.frames(now).remove(0);
    let syn = packet_in(&syn);
    let tcp = Connection::accept(&host_config, &syn.segment, shape.host_isn, 7, now);
    let mut host = End::new(tcp.expect("a good SYN"), host_way, true);
    for _ in 0..4 {
        for frame in host.frames(now) {
            peer.on_packet(now, &packet_in(&frame));
        }
        for frame in peer.frames(now) {
            host.on_packet(now, &packet_in(&frame));
        }
    }
    (peer, host)
}

fn packet_in(frame: &[u8]) -> TcpPacket<'_> {
    // The port has checked those of the worker.
    let checksum_valid = true;
    match parse(frame, checksum_valid) {
        Ok(Received::Tcp(packet)) => packet,
        other => panic!("not a TCP packet: {other:?}"),
    }
}

impl World {
    fn new(input: &Input) -> World {
        let now = Instant::from_us(1_000_000);
        let of = |side: usize| established(side, &input.shapes[side], input.timestamps, now);
        let ((client, to_client), (backend, to_backend)) = (of(0), of(1));
        let wire = Recording::default();
        let (channel, worker) = worker(&wire, input.superpackets);
        World {
            now,
            peers: [client, backend],
            hosts: [to_client, to_backend],
            to_hosts: Default::default(),
            to_peers: Default::default(),
            channel,
            worker,
            wire,
            superpackets: input.superpackets,
            joined: None,
            wants_splice: true,
            written: [0; 2],
            read: [0; 2],
            waited_ms: 0,
            was_aborted: false,
            was_replaced: false,
            was_unspliced: false,
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Write { second, bytes } => self.write(second.into(), bytes.into()),
            Step::Read { second, bytes } => self.read(second.into(), bytes.into()),
            Step::Shutdown { second } => self.peers[usize::from(second)].shutdown(),
            Step::Abort { second } => {
                self.was_aborted = true;
                self.peers[usize::from(second)].tcp.abort();
            }
            Step::Packet {
                to_peer,
                second,
                which,
                fate,
            } => {
                let ways = if to_peer {
                    &mut self.to_peers
                } else {
                    &mut self.to_hosts
                };
                let way = &mut ways[usize::from(second)];
                let index = usize::from(which).min(way.len().saturating_sub(1));
                let frame = match fate {
                    Fate::Deliver | Fate::Lose => way.remove(index),
                    Fate::Double => way.get(index).cloned(),
                };
                if let (Some(frame), Fate::Deliver | Fate::Double) = (frame, fate) {
                    self.arrive(to_peer, second.into(), &frame);
                }
            }
            Step::Calm => {
                self.deliver_all();
            }
            Step::Wait { ms } => {
                let ms = u64::from(ms).min(WAITED_MS_MAX - self.waited_ms);
                self.waited_ms += ms;
                self.now = self.now + Duration::from_millis(ms);
            }
            Step::WaitForTimer => {
                let at = self.next_timeout().unwrap_or(self.now);
                let ms = at.as_us().saturating_sub(self.now.as_us()).div_ceil(1000);
                if self.waited_ms + ms <= WAITED_MS_MAX {
                    self.waited_ms += ms;
                    self.now = self.now.max(at);
                }
            }
            Step::Unsplice => self.unsplice(),
            Step::Splice => self.wants_splice = true,
            Step::Replace => self.replace(),
        }
    }

    fn write(&mut self, side: usize, bytes: u64) {
        if self.peers[side].has_finished {
            return;
        }
        let from = self.written[side];
        let bytes: Vec<u8> = (from..from + bytes).map(|at| byte_of(side, at)).collect();
        self.written[side] += self.peers[side].tcp.write(&bytes) as u64;
    }

    fn read(&mut self, side: usize, bytes: usize) {
        let mut buffer = vec![0; bytes];
        let count = self.peers[side].tcp.read(&mut buffer);
        for byte in &buffer[..count] {
            let at = self.read[side];
            assert_eq!(*byte, byte_of(1 - side, at), "byte {at} to side {side}");
            self.read[side] += 1;
        }
        assert!(self.read[side] <= self.written[1 - side]);
    }

    /// A packet arrives at a peer, or at this end of the connection to it.
    fn arrive(&mut self, to_peer: bool, side: usize, frame: &[u8]) {
        self.run_timers();
        if to_peer {
            self.peers[side].on_packet(self.now, &packet_in(frame));
            return;
        }
        let Some(joined) = &mut self.joined else {
            self.hosts[side].on_packet(self.now, &packet_in(frame));
            return self.copy();
        };
        let segment = packet_in(frame).segment;
        if segment.header.flags.contains(Flags::FIN) {
            let bytes = segment.payload.len() as u32 + 1;
            joined.fin_ends[side] = Some(segment.header.seq.wrapping_add(bytes));
        }
        if frame.len() <= FRAME_BYTES_MAX {
            self.tell(&Command::Frame { bytes: frame });
        } else {
            let mss = usize::from(joined.numbers[1 - side].mss).min(FRAME_BYTES_MAX - 114);
            for piece in pieces(frame, mss) {
                self.tell(&Command::Frame { bytes: &piece });
            }
        }
    }

    fn tell(&mut self, command: &Command<'_>) {
        while self.channel.send(command).is_err() {
            self.turn_worker();
        }
        self.channel.flush();
        self.turn_worker();
    }

    fn turn_worker(&mut self) {
        loop {
            let now_us = self.now.as_us();
            let progress = self.worker.turn(&|| now_us).expect("the ring is sound");
            for packet in self.wire.take() {
                let mut frame = packet.header;
                frame.extend_from_slice(&packet.payload);
                let side = usize::from(packet_in(&frame).segment.header.destination_port == 8080);
                let cut = pieces(&frame, packet.mss.into());
                self.to_peers[side].extend(cut);
            }
            let mut is_quiet = progress == Progress::Idle;
            while let Some(event) = self.channel.receive().expect("the ring is sound") {
                is_quiet = false;
                self.on_event(event);
            }
            if is_quiet {
                return;
            }
        }
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::SpliceProgress { progress } => {
                let joined = self.joined.as_mut().expect("a splice");
                for it in &progress {
                    for side in [0, 1] {
                        let known = &mut joined.passed_bytes[side];
                        *known = it.passed_bytes[side].max(*known);
                        if it.has_finished[side] {
                            let passed = it.passed_bytes[side] as u32;
                            let rcv_nxt = joined.numbers[side].rcv_nxt;
                            joined.fin_ends[side] = Some(rcv_nxt.wrapping_add(passed + 1));
                        }
                    }
                }
            }
            Event::SpliceEnded { outcome, reason } => {
                self.joined = None;
                self.on_ended(&outcome, reason);
            }
            Event::Unspliced { outcome } => {
                self.joined = None;
                for side in [0, 1] {
                    let numbers = rejoin_numbers(&outcome.legs[side]);
                    self.hosts[side].tcp.rejoin(self.now, &numbers);
                }
            }
            Event::FlowsTaken { .. } => {}
            other => panic!("{other:?} was not asked for"),
        }
    }

    fn on_ended(&mut self, outcome: &SpliceOutcome, reason: SpliceEndReason) {
        let was_reset = matches!(
            reason,
            SpliceEndReason::ResetByFirst | SpliceEndReason::ResetBySecond
        );
        match reason {
            SpliceEndReason::Finished => {}
            _ if was_reset => assert!(self.may_break(), "{reason:?}"),
            SpliceEndReason::NotReturned => assert!(self.may_break()),
            _ => panic!("{reason:?} for no reason"),
        }
        for side in [0, 1] {
            let host = &mut self.hosts[side];
            if reason == SpliceEndReason::Finished {
                let numbers = rejoin_numbers(&outcome.legs[side]);
                host.tcp.finish_joined(self.now, &numbers);
                (host.has_finished, host.peer_has_finished) = (true, true);
            } else {
                host.tcp.break_joined(CloseReason::Reset);
            }
            host.hear();
        }
    }

    /// Peers may see their connection end otherwise than in order: a worker that takes the place of
    /// another cannot give back what it does not know.
    fn may_break(&self) -> bool {
        self.was_aborted || self.was_replaced && self.was_unspliced
    }

    /// The host copies between two connections that are not spliced, and has them spliced when
    /// they are quiet.
    fn copy(&mut self) {
        if self.joined.is_some() {
            return;
        }
        for side in [0, 1] {
            let room = self.hosts[1 - side].tcp.write_room();
            let mut scratch = vec![0; room.min(16 << 10)];
            loop {
                let room = self.hosts[1 - side].tcp.write_room().min(scratch.len());
                let count = self.hosts[side].tcp.read(&mut scratch[..room]);
                if count == 0 {
                    break;
                }
                let taken = self.hosts[1 - side].tcp.write(&scratch[..count]);
                assert_eq!(taken, count, "there is room");
            }
            let host = &self.hosts[side];
            if host.peer_has_finished && host.tcp.unread_bytes() == 0 {
                self.hosts[1 - side].shutdown();
            }
            if self.hosts[side]
                .closed
                .is_some_and(|it| it != CloseReason::Finished)
            {
                self.hosts[1 - side].tcp.abort();
                self.hosts[1 - side].hear();
            }
        }
        if self.wants_splice {
            self.splice();
        }
    }

    fn splice(&mut self) {
        let numbers = self
            .hosts
            .each_ref()
            .map(|it| it.tcp.join_numbers(self.now));
        let [Some(first), Some(second)] = numbers else {
            return;
        };
        self.joined = Some(Joined {
            numbers: [first, second],
            passed_bytes: [0; 2],
            fin_ends: [None; 2],
            is_again: false,
            is_returning: false,
        });
        for host in &mut self.hosts {
            host.tcp.stand_still();
        }
        self.tell_splice();
    }

    fn tell_splice(&mut self) {
        let joined = self.joined.as_ref().expect("a splice");
        let headers = self.hosts.each_ref().map(|host| {
            let mut bytes = [0; wire::frame::HEADER_BYTES_MAX];
            let len = host.way.write(&Header::default(), &mut bytes);
            bytes[..len.expect("addresses of one family")].to_vec()
        });
        let leg = |side: usize| {
            let numbers = &joined.numbers[side];
            SpliceLeg {
                rcv_nxt: numbers.rcv_nxt,
                snd_nxt: numbers.snd_nxt,
                snd_window_bytes: numbers.snd_window_bytes,
                rcv_window_bytes: numbers.rcv_window_bytes,
                snd_shift: numbers.snd_shift,
                rcv_shift: numbers.rcv_shift,
                mss: numbers.mss,
                sack: numbers.sack,
                ecn: numbers.ecn,
                fin_end: joined.fin_ends[side],
                timestamps: (numbers.timestamps)
                    .map(|(value, recent)| SpliceTimestamps { value, recent }),
                header: &headers[side],
            }
        };
        let splice = Splice {
            flow: FLOW,
            legs: [leg(0), leg(1)],
            is_again: joined.is_again,
            passed_bytes: joined.passed_bytes,
            idle_ms: 0,
            life_ms: 0,
        };
        self.tell(&Command::Splice(splice));
    }

    fn unsplice(&mut self) {
        self.wants_splice = false;
        self.was_unspliced |= self.joined.is_some();
        if let Some(joined) = &mut self.joined
            && !std::mem::replace(&mut joined.is_returning, true)
        {
            self.tell_unsplice();
        }
    }

    fn tell_unsplice(&mut self) {
        let kind = UnspliceKind::Return;
        self.tell(&Command::Unsplice { flow: FLOW, kind });
    }

    fn replace(&mut self) {
        (self.channel, self.worker) = worker(&self.wire, self.superpackets);
        let Some(joined) = &mut self.joined else {
            return;
        };
        self.was_replaced = true;
        joined.is_again = true;
        let is_returning = joined.is_returning;
        self.tell_splice();
        if is_returning && self.joined.is_some() {
            self.tell_unsplice();
        }
    }

    fn run_timers(&mut self) {
        for peer in &mut self.peers {
            peer.on_timeout(self.now);
        }
        if self.joined.is_none() {
            for host in &mut self.hosts {
                host.on_timeout(self.now);
            }
        }
        self.turn_worker();
    }

    /// Everything is done that is due.
    fn settle(&mut self) {
        self.run_timers();
        self.copy();
        for side in [0, 1] {
            let frames = self.peers[side].frames(self.now);
            self.to_hosts[side].extend(frames);
            if self.joined.is_none() {
                let frames = self.hosts[side].frames(self.now);
                self.to_peers[side].extend(frames);
            }
        }
    }

    /// True if something was on its way.
    fn deliver_all(&mut self) -> bool {
        let mut some = false;
        for side in [0, 1] {
            for to_peer in [false, true] {
                let ways = if to_peer {
                    &mut self.to_peers
                } else {
                    &mut self.to_hosts
                };
                for frame in std::mem::take(&mut ways[side]) {
                    some = true;
                    self.arrive(to_peer, side, &frame);
                }
            }
        }
        some
    }

    fn next_timeout(&self) -> Option<Instant> {
        let worker = self.worker.next_timeout_us().map(Instant::from_us);
        let hosts = match self.joined {
            Some(_) => [None; 2],
            None => self.hosts.each_ref().map(|it| it.tcp.next_timeout()),
        };
        let peers = self.peers.each_ref().map(|it| it.tcp.next_timeout());
        let all = [hosts, peers].concat().into_iter().chain([worker]);
        all.flatten().min()
    }

    /// All that was written has been read, and ends have been heard.
    fn is_done(&self) -> bool {
        [0, 1].into_iter().all(|side| {
            let other = &self.peers[1 - side];
            self.read[side] == self.written[1 - side]
                && (!other.has_finished || self.peers[side].peer_has_finished)
        })
    }

    fn has_broken(&self) -> bool {
        let closed = self.peers.iter().filter_map(|peer| peer.closed);
        closed
            .into_iter()
            .any(|reason| reason != CloseReason::Finished)
    }

    /// Every packet arrives from now on.
    fn finish(&mut self) {
        for _ in 0..TURNS_MAX {
            self.settle();
            for side in [0, 1] {
                self.read(side, 1 << 20);
            }
            if self.has_broken() {
                assert!(
                    self.may_break(),
                    "{:?}",
                    self.peers.each_ref().map(|it| it.closed)
                );
                return;
            }
            if self.is_done() {
                return;
            }
            if !self.deliver_all() {
                let at = self.next_timeout().expect("something is due");
                self.now = self.now.max(at);
            }
        }
        panic!("{:?} of {:?} after all this", self.read, self.written);
    }
}

fn rejoin_numbers(numbers: &SpliceNumbers) -> RejoinNumbers {
    RejoinNumbers {
        snd_nxt: numbers.snd_nxt,
        rcv_nxt: numbers.rcv_nxt,
        snd_window_bytes: numbers.snd_window_bytes,
        rcv_window_bytes: numbers.rcv_window_bytes,
        ts_value: numbers.ts_value,
        ts_recent: numbers.ts_recent,
    }
}
