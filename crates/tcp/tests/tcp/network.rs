//! Two connections, their NIC stacks and applications, and a bad network between them, in virtual
//! time.
//!
//! One seed decides everything. Every byte is compared, and everything sent is held against what
//! TCP promises.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;
use std::time::Duration;

use tcp::{
    CloseReason, Config, Connection, ConnectionEvent, Instant, Keepalive, Limits, Piece, State,
    Transmit,
};
use wire::ip::Ecn;
use wire::tcp::{Flags, Header, Segment};

use crate::intruder::Victim;

/// Where decisions come from: bytes that a fuzzer has chosen, as long as they last, then
/// SplitMix64.
pub(crate) struct Random {
    chosen: VecDeque<u8>,
    state: u64,
}

impl Random {
    pub(crate) fn seeded(seed: u64) -> Random {
        Random {
            chosen: VecDeque::new(),
            state: seed,
        }
    }

    #[allow(dead_code, reason = "for fuzz/fuzz_targets/connections.rs")]
    pub(crate) fn chosen(bytes: &[u8]) -> Random {
        Random {
            chosen: bytes.iter().copied().collect(),
            state: 0,
        }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.draw(8)
    }

    /// A number of so many bytes at least.
    fn draw(&mut self, bytes: usize) -> u64 {
        if !self.chosen.is_empty() {
            let fold = |number: u64, byte: u8| number << 8 | u64::from(byte);
            let bytes = bytes.min(self.chosen.len());
            return self.chosen.drain(..bytes).fold(0, fold);
        }
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In `range`, which is not empty.
    pub(crate) fn within(&mut self, range: Range<u64>) -> u64 {
        let width = range.end - range.start;
        // What a fuzzer chooses should decide as much as possible.
        let bytes = match width {
            0..=0x100 => 1,
            0x101..=0x1_0000 => 2,
            _ => 8,
        };
        range.start + self.draw(bytes) % width
    }

    pub(crate) fn percent(&mut self, chance: u64) -> bool {
        self.within(0..100) < chance
    }

    pub(crate) fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.within(0..from.len() as u64) as usize].clone()
    }
}

/// What the network and the NIC stacks do to packets.
#[derive(Clone, Debug)]
pub(crate) struct Faults {
    pub(crate) loss_percent: u64,
    pub(crate) duplicate_percent: u64,
    pub(crate) mark_percent: u64,
    /// One-way delay of each packet; a wide range reorders.
    pub(crate) delay_us: Range<u64>,
    /// From a SEND to its departure.
    pub(crate) read_us: Range<u64>,
    /// From a departure to its report.
    pub(crate) report_us: Range<u64>,
    /// Packets merged on reception, at most.
    pub(crate) merged_max: u64,
    /// How often an attacker interferes when a packet arrives: [`World::interfere`].
    pub(crate) interference_percent: u64,
    /// How often an application sets an option when it looks at the connection.
    pub(crate) options_percent: u64,
}

/// A part of what an application sends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Chunk {
    Real(usize),
    Virtual { object: u32, offset: u64, len: u64 },
}

/// How an end behaves.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) config: Config,
    pub(crate) limits: Limits,
    pub(crate) isn: u32,
    pub(crate) chunks: Vec<Chunk>,
    /// Time between looks at the connection by the application.
    pub(crate) think_us: Range<u64>,
    /// Most bytes read at one look.
    pub(crate) read_max: u64,
}

/// A byte of an object.
fn object_byte(object: u32, offset: u64) -> u8 {
    let mix = (u64::from(object) << 40 ^ offset).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mix >> 37) as u8
}

struct Packet {
    header: Header,
    payload: Vec<u8>,
    ecn: Ecn,
}

/// A SEND in the queue of a NIC stack.
struct Send {
    transmit: Transmit,
    content: Vec<Content>,
}

enum Content {
    Inline(Vec<u8>),
    File { object: u32, offset: u64, len: u64 },
}

enum Happening {
    Arrival {
        to: usize,
        packet: Packet,
    },
    Departure {
        of: usize,
    },
    Report {
        to: usize,
        transmission: u64,
        at: Instant,
    },
    Thought {
        of: usize,
    },
}

struct End {
    plan: Plan,
    tcp: Option<Connection>,
    nic: VecDeque<Send>,
    nic_busy_until: Instant,
    /// Chunks not queued yet; a real one may have been queued in part.
    chunks: VecDeque<Chunk>,
    chunk_written: usize,
    stream_written: u64,
    /// What the other end sends.
    expected: Vec<u8>,
    read: usize,
    released: VecDeque<(u32, u64)>,
    shut_down: bool,
    /// The application may write more.
    writable: bool,
    /// A thought is scheduled.
    thinking: bool,
    peer_finished: bool,
    closed: Option<CloseReason>,
    /// Relative to our ISN: the furthest that the peer has allowed to send, by what was delivered.
    edge: u64,
    /// Relative to our ISN: behind the last byte or FIN sent.
    sent: u64,
    peer_shift: u8,
    acked: u64,
    retransmissions: u64,
    retransmitted_bytes: u64,
}

pub(crate) struct World {
    pub(crate) now: Instant,
    random: Random,
    faults: Faults,
    ends: [End; 2],
    future: BinaryHeap<Reverse<(Instant, u64)>>,
    happenings: std::collections::HashMap<u64, Happening>,
    scheduled: u64,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) elapsed: Duration,
    pub(crate) closed: [Option<CloseReason>; 2],
    pub(crate) retransmissions: [u64; 2],
    pub(crate) retransmitted_bytes: [u64; 2],
    pub(crate) timeouts: [u32; 2],
    pub(crate) smoothed_rtt: [Option<Duration>; 2],
}

fn stream_of(chunks: &[Chunk]) -> Vec<u8> {
    let mut stream = Vec::new();
    for chunk in chunks {
        match *chunk {
            Chunk::Real(len) => {
                let start = stream.len() as u64;
                stream.extend(
                    (start..start + len as u64).map(|offset| object_byte(u32::MAX, offset)),
                );
            }
            Chunk::Virtual {
                object,
                offset,
                len,
            } => {
                stream.extend((offset..offset + len).map(|offset| object_byte(object, offset)));
            }
        }
    }
    stream
}

impl World {
    /// `both_open`: simultaneous open. Otherwise the first end connects to the second.
    pub(crate) fn new(random: Random, faults: Faults, plans: [Plan; 2], both_open: bool) -> World {
        let now = Instant::from_us(1_000_000);
        let streams = [stream_of(&plans[0].chunks), stream_of(&plans[1].chunks)];
        let [first, second] = plans;
        let end = |plan: Plan, local: u16, remote: u16, opens: bool, expected: &Vec<u8>| {
            let tcp = opens.then(|| {
                Connection::connect(&plan.config, local, remote, plan.isn, plan.isn / 3, now)
            });
            End {
                tcp,
                nic: VecDeque::new(),
                nic_busy_until: now,
                chunks: plan.chunks.iter().copied().collect(),
                chunk_written: 0,
                stream_written: 0,
                expected: expected.clone(),
                read: 0,
                released: VecDeque::new(),
                shut_down: false,
                writable: true,
                thinking: false,
                peer_finished: false,
                closed: None,
                edge: 0,
                sent: 0,
                peer_shift: 0,
                acked: 0,
                retransmissions: 0,
                retransmitted_bytes: 0,
                plan,
            }
        };
        let mut world = World {
            now,
            random,
            faults,
            ends: [
                end(first, 1, 2, true, &streams[1]),
                end(second, 2, 1, both_open, &streams[0]),
            ],
            future: BinaryHeap::new(),
            happenings: std::collections::HashMap::new(),
            scheduled: 0,
        };
        for of in 0..2 {
            world.settle(of);
        }
        world
    }

    fn schedule(&mut self, at: Instant, happening: Happening) {
        self.scheduled += 1;
        self.happenings.insert(self.scheduled, happening);
        self.future
            .push(Reverse((at.max(self.now), self.scheduled)));
    }

    fn after(&mut self, range: Range<u64>) -> Instant {
        self.now + Duration::from_micros(self.random.within(range))
    }

    /// Runs until both ends have said that they are closed.
    pub(crate) fn run(mut self) -> Outcome {
        let start = self.now;
        for _ in 0..3_000_000 {
            if self
                .ends
                .iter()
                .all(|end| end.closed.is_some() && end.is_idle())
            {
                return Outcome {
                    elapsed: self.now.since(start),
                    closed: [self.ends[0].closed, self.ends[1].closed],
                    retransmissions: [0, 1].map(|i| self.ends[i].retransmissions),
                    retransmitted_bytes: [0, 1].map(|i| self.ends[i].retransmitted_bytes),
                    timeouts: [0, 1].map(|i| {
                        let tcp = self.ends[i].tcp.as_mut();
                        tcp.map_or(0, |tcp| tcp.take_stats().timeouts)
                    }),
                    smoothed_rtt: [0, 1]
                        .map(|i| self.ends[i].tcp.as_ref().and_then(Connection::smoothed_rtt)),
                };
            }
            let timer = (0..2)
                .filter_map(|i| Some((self.ends[i].tcp.as_ref()?.next_timeout()?, i)))
                .min();
            let event = self.future.peek().map(|Reverse((at, _))| *at);
            match (timer, event) {
                (Some((at, of)), event) if event.is_none_or(|event| at <= event) => {
                    self.now = self.now.max(at);
                    let now = self.now;
                    self.ends[of]
                        .tcp
                        .as_mut()
                        .expect("it has a timer")
                        .on_timeout(now);
                    self.settle(of);
                }
                (_, Some(at)) => {
                    self.now = at;
                    let Reverse((_, number)) = self.future.pop().expect("peeked");
                    let happening = self.happenings.remove(&number).expect("scheduled");
                    self.happen(happening);
                }
                _ => panic!("nothing will ever happen again: {:?}", self.states()),
            }
        }
        panic!("does not end: {:?}", self.states());
    }

    fn states(&self) -> [(Option<State>, Option<CloseReason>); 2] {
        self.ends
            .each_ref()
            .map(|end| (end.tcp.as_ref().map(Connection::state), end.closed))
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Arrival { to, packet } => self.arrive(to, packet),
            Happening::Departure { of } => self.depart(of),
            Happening::Report {
                to,
                transmission,
                at,
            } => {
                if let Some(tcp) = &mut self.ends[to].tcp {
                    tcp.on_departed(transmission, at);
                }
                self.settle(to);
            }
            Happening::Thought { of } => {
                self.ends[of].thinking = false;
                self.think(of);
                self.settle(of);
            }
        }
    }

    fn arrive(&mut self, to: usize, mut packet: Packet) {
        if self.random.percent(self.faults.interference_percent) {
            self.interfere(to, &mut packet);
        }
        let (now, end) = (self.now, &mut self.ends[to]);
        let segment = Segment {
            header: packet.header,
            payload: &packet.payload,
            ecn: packet.ecn,
        };
        end.note_window(&packet.header);
        match &mut end.tcp {
            Some(tcp) => tcp.on_segment(now, &segment),
            None => {
                let isn = end.plan.isn;
                end.tcp = Connection::accept(&end.plan.config, &segment, isn, isn / 3, now);
                assert!(end.tcp.is_some() || !packet.header.flags.contains(Flags::SYN));
            }
        }
        self.settle(to);
    }

    /// An attacker has a hand in what arrives: a segment that must not be believed goes before it,
    /// or it lies.
    fn interfere(&mut self, to: usize, packet: &mut Packet) {
        let (now, peer_isn) = (self.now, self.ends[1 - to].plan.isn);
        let end = &mut self.ends[to];
        let Some(tcp) = &mut end.tcp else { return };
        if matches!(tcp.state(), State::SynSent | State::Closed) {
            return;
        }
        let received = 1 + (end.read + tcp.unread_bytes()) as u32 + u32::from(end.peer_finished);
        let victim = Victim {
            genuine: packet.header,
            rcv_nxt: peer_isn.wrapping_add(received),
            snd_una: end.plan.isn.wrapping_add(end.acked as u32),
            snd_max: end.plan.isn.wrapping_add(end.sent as u32),
            synchronized: tcp.state() != State::SynReceived,
        };
        if self.random.percent(50) {
            return victim.lie(&mut self.random, &mut packet.header);
        }
        if self.random.percent(20) {
            // Routers say whatever they like about whatever was sent.
            let seq = victim.quote(&mut self.random);
            let mtu = self.random.within(0..2000) as u32;
            tcp.on_icmp_too_big(now, mtu, seq);
            tcp.on_icmp_unreachable(self.random.percent(50), seq);
            return self.settle(to);
        }
        let (header, payload) = victim.forge(&mut self.random);
        let segment = Segment {
            header,
            payload: &payload,
            ecn: packet.ecn,
        };
        tcp.on_segment(now, &segment);
        self.settle(to);
    }

    /// Some socket option gets some value. None of them may lose a byte, or end a connection that
    /// makes progress.
    fn set_option(&mut self, of: usize) {
        let (now, random) = (self.now, &mut self.random);
        let Some(tcp) = &mut self.ends[of].tcp else {
            return;
        };
        match random.within(0..9) {
            0 => tcp.set_nodelay(random.percent(50)),
            1 => tcp.set_cork(random.percent(70)),
            2 => tcp.expect_more(),
            3 => tcp.set_quickack(random.percent(50)),
            4 => tcp.set_receive_buffer_bytes(random.within(500..200_000) as usize),
            5 => tcp.set_send_buffer_bytes(random.within(1..200_000) as usize),
            6 => {
                let bytes = random.within(1..50_000);
                tcp.set_virtual_bytes_max(Some(bytes).filter(|_| random.percent(80)));
            }
            7 => {
                let keepalive = Keepalive {
                    idle: Duration::from_millis(random.within(0..5_000)),
                    interval: Duration::from_millis(random.within(100..5_000)),
                    probes: u8::MAX,
                };
                tcp.set_keepalive(now, Some(keepalive).filter(|_| random.percent(70)));
            }
            _ => tcp.set_user_timeout(Some(Duration::from_secs(10_000))),
        }
        self.settle(of);
    }

    /// The application: writes what fits, reads a little.
    fn think(&mut self, of: usize) {
        if self.faults.options_percent > 0 && self.random.percent(self.faults.options_percent) {
            self.set_option(of);
        }
        let end = &mut self.ends[of];
        let Some(tcp) = &mut end.tcp else { return };
        end.writable = false;
        while let Some(&chunk) = end.chunks.front() {
            match chunk {
                Chunk::Real(len) => {
                    let start = end.stream_written;
                    let left = (start..start + (len - end.chunk_written) as u64)
                        .map(|offset| object_byte(u32::MAX, offset))
                        .collect::<Vec<_>>();
                    let written = tcp.write(&left);
                    end.chunk_written += written;
                    end.stream_written += written as u64;
                    if written < left.len() {
                        break;
                    }
                }
                Chunk::Virtual {
                    object,
                    offset,
                    len,
                } => {
                    let queued = tcp.write_virtual(object, offset, len);
                    end.stream_written += queued;
                    if queued > 0 {
                        end.released.push_back((object, end.stream_written));
                    }
                    if queued < len {
                        end.chunks[0] = Chunk::Virtual {
                            object,
                            offset: offset + queued,
                            len: len - queued,
                        };
                        break;
                    }
                }
            }
            end.chunks.pop_front();
            end.chunk_written = 0;
        }
        if end.chunks.is_empty() && !end.shut_down {
            tcp.shutdown();
            end.shut_down = true;
        }
        let want = self.random.within(0..end.plan.read_max + 1) as usize;
        let want = want.min(tcp.unread_bytes() + 1);
        let mut buffer = vec![0; want];
        let count = tcp.read(&mut buffer);
        assert_eq!(
            buffer[..count],
            end.expected[end.read..end.read + count],
            "at byte {}",
            end.read
        );
        end.read += count;
    }

    /// Makes the application look at the connection soon, if there is anything to see.
    fn wake(&mut self, of: usize) {
        let end = &mut self.ends[of];
        let Some(tcp) = &end.tcp else { return };
        if !end.thinking && (end.writable || tcp.unread_bytes() > 0) {
            end.thinking = true;
            let range = end.plan.think_us.clone();
            let at = self.after(range);
            self.schedule(at, Happening::Thought { of });
        }
    }

    /// Takes what the connection has to say and to send.
    fn settle(&mut self, of: usize) {
        let now = self.now;
        loop {
            let end = &mut self.ends[of];
            let Some(tcp) = &mut end.tcp else { return };
            while let Some(event) = tcp.poll_event() {
                assert!(end.closed.is_none(), "{event:?} after the end");
                match event {
                    ConnectionEvent::Released { object, stream_end } => {
                        assert_eq!(end.released.pop_front(), Some((object, stream_end)));
                        assert!(tcp.acknowledged_bytes() >= stream_end);
                    }
                    ConnectionEvent::PeerFinished => {
                        assert_eq!(
                            end.read + tcp.unread_bytes(),
                            end.expected.len(),
                            "FIN comes last"
                        );
                        end.peer_finished = true;
                    }
                    ConnectionEvent::Writable => end.writable = true,
                    ConnectionEvent::Closed { reason } => end.closed = Some(reason),
                    ConnectionEvent::Connected
                    | ConnectionEvent::Readable
                    | ConnectionEvent::Drained => {}
                }
            }
            let Some(transmit) = tcp.poll_transmit(now, &end.plan.limits) else {
                return self.wake(of);
            };
            end.check(&transmit);
            self.send(of, transmit);
        }
    }

    fn send(&mut self, of: usize, transmit: Transmit) {
        let end = &mut self.ends[of];
        let tcp = end.tcp.as_mut().expect("it has sent something");
        let content = tcp
            .pieces(transmit.range.clone())
            .map(|piece| match piece {
                Piece::Real(bytes) => Content::Inline(bytes.to_vec()),
                Piece::Virtual {
                    object,
                    offset,
                    len,
                } => Content::File {
                    object,
                    offset,
                    len,
                },
            })
            .collect();
        let send = Send { transmit, content };
        let not_before = send.transmit.not_before.unwrap_or(self.now);
        let held =
            send.transmit.has_virtual || send.transmit.follows_undeparted || not_before > self.now;
        match send.transmit.transmission {
            Some(_) if held => {
                let range = self.faults.read_us.clone();
                let read = Duration::from_micros(self.random.within(range));
                let end = &mut self.ends[of];
                let at = (end.nic_busy_until.max(self.now) + read).max(not_before);
                end.nic_busy_until = at;
                end.nic.push_back(send);
                self.schedule(at, Happening::Departure { of });
            }
            transmission => {
                if let Some(transmission) = transmission {
                    tcp.on_departed(transmission, self.now);
                }
                self.emit(of, send);
            }
        }
    }

    fn depart(&mut self, of: usize) {
        let mut send = self.ends[of].nic.pop_front().expect("it was queued");
        let transmit = &mut send.transmit;
        if let Some(timestamps) = &mut transmit.header.options.timestamps {
            let waited_us = self.now.since(transmit.issued).as_micros() as u64;
            let ticks = (waited_us + u64::from(transmit.tsval_fraction_us)) / 1000;
            timestamps.value = timestamps.value.wrapping_add(ticks as u32);
        }
        let transmission = transmit
            .transmission
            .expect("only these go through the NIC stack");
        let (at, range) = (self.now, self.faults.report_us.clone());
        let report = self.after(range);
        self.schedule(
            report,
            Happening::Report {
                to: of,
                transmission,
                at,
            },
        );
        self.emit(of, send);
    }

    /// Cuts into packets, and gives them to the network.
    fn emit(&mut self, of: usize, send: Send) {
        let mut bytes = Vec::new();
        for content in send.content {
            match content {
                Content::Inline(inline) => bytes.extend(inline),
                Content::File {
                    object,
                    offset,
                    len,
                } => {
                    bytes.extend((offset..offset + len).map(|offset| object_byte(object, offset)));
                }
            }
        }
        let Flags(last_flags) = send.transmit.header.flags;
        let Flags(only_last) = Flags::PSH | Flags::FIN;
        let mut start = 0;
        loop {
            let merged = self.random.within(1..self.faults.merged_max + 1) as usize;
            let end = bytes
                .len()
                .min(start + merged * usize::from(send.transmit.mss));
            let mut header = send.transmit.header;
            header.seq = header.seq.wrapping_add(start as u32);
            let last = end == bytes.len();
            header.flags = Flags(if last {
                last_flags
            } else {
                last_flags & !only_last
            });
            let copies = 1 + u64::from(self.random.percent(self.faults.duplicate_percent));
            for _ in 0..copies {
                // A router that speaks ECN marks where another would drop.
                let marked = self.random.percent(self.faults.mark_percent);
                let ecn = match send.transmit.ecn {
                    Ecn::Ect0 | Ecn::Ect1 if marked => Ecn::Ce,
                    unmarked => unmarked,
                };
                if !self.random.percent(self.faults.loss_percent) {
                    let range = self.faults.delay_us.clone();
                    let at = self.after(range);
                    let packet = Packet {
                        header,
                        payload: bytes[start..end].to_vec(),
                        ecn,
                    };
                    self.schedule(at, Happening::Arrival { to: 1 - of, packet });
                }
            }
            start = end;
            if last {
                return;
            }
        }
    }
}

impl End {
    /// Nothing is left but to wait for the end of TIME-WAIT.
    fn is_idle(&self) -> bool {
        let state = self.tcp.as_ref().map(Connection::state);
        matches!(state, Some(State::Closed | State::TimeWait)) && self.read == self.expected.len()
    }

    /// Remembers what an arriving segment allows us to send.
    fn note_window(&mut self, header: &Header) {
        if header.flags.contains(Flags::SYN) {
            self.peer_shift = if self.plan.config.window_scaling {
                header.options.window_scale.unwrap_or(0)
            } else {
                0
            };
        }
        if header.flags.contains(Flags::ACK) && !header.flags.contains(Flags::RST) {
            let shift = if header.flags.contains(Flags::SYN) {
                0
            } else {
                self.peer_shift
            };
            let acked = u64::from(header.ack.wrapping_sub(self.plan.isn));
            self.acked = self.acked.max(acked);
            self.edge = self.edge.max(acked + (u64::from(header.window) << shift));
        }
    }

    /// What must hold for everything that is sent.
    fn check(&mut self, transmit: &Transmit) {
        let tcp = self.tcp.as_ref().expect("it has sent something");
        let Range { start, end } = transmit.range;
        let limits = &self.plan.limits;
        assert!(end - start <= limits.bytes_max as u64);
        assert!(transmit.mss > 0);
        if transmit.retransmission {
            self.retransmissions += 1;
            self.retransmitted_bytes += end - start;
        }
        if transmit.transmission.is_some() {
            let Flags(flags) = transmit.header.flags;
            let controls = (flags & (Flags::SYN | Flags::FIN).0).count_ones();
            let seq = transmit.header.seq.wrapping_sub(self.plan.isn);
            // No stream of these tests is longer than the sequence space.
            let behind = u64::from(seq) + (end - start) + u64::from(controls);
            self.sent = self.sent.max(behind);
        }
        let mut len = 0;
        let mut pieces = 0;
        let mut real = 0;
        let mut has_virtual = false;
        for piece in tcp.pieces(transmit.range.clone()) {
            pieces += 1;
            match piece {
                Piece::Real(bytes) => {
                    real += bytes.len();
                    len += bytes.len() as u64;
                }
                Piece::Virtual {
                    len: virtual_len, ..
                } => {
                    has_virtual = true;
                    len += virtual_len;
                }
            }
        }
        assert_eq!(len, end - start);
        assert_eq!(has_virtual, transmit.has_virtual);
        let is_direct = !has_virtual
            && !transmit.follows_undeparted
            && transmit.not_before.is_none()
            && real <= limits.direct_bytes_max;
        assert!(pieces <= limits.pieces_max && (real <= limits.real_bytes_max || is_direct));
        if len > 0 {
            assert!(
                start >= tcp.acknowledged_bytes(),
                "never what is acknowledged"
            );
            assert_eq!(
                transmit.header.seq,
                self.plan.isn.wrapping_add(1).wrapping_add(start as u32)
            );
            let fin = u64::from(transmit.header.flags.contains(Flags::FIN));
            assert!(
                1 + end + fin <= self.edge,
                "{} beyond the window {}",
                1 + end + fin,
                self.edge
            );
        }
        if transmit.header.flags.contains(Flags::FIN) {
            assert!(
                self.shut_down && end == self.stream_written,
                "FIN comes last"
            );
        }
    }
}
