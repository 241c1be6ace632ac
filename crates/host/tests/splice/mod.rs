//! Splices: what the NIC stack is given, what the application hears, and how connections come back
//! or end.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use client_address::Prefix;
use contract::splicing::{
    SpliceEndReason, SpliceNumbers, SpliceOutcome, SpliceProgress, SpliceRefusal, UnspliceKind,
};
use contract::{Event, FlowId};
use fakes::nic::SeenMss;
use host::StackConfig;
use host::app::{AppEvent, CloseReason, Io, StreamId};
use host::splicing::{SpliceEnd, SpliceError, SpliceEvent, SpliceLimits};
use netdev::Port;
use tcp::{Connection, ConnectionEvent, Instant, Limits};
use wire::frame::{Received, TcpTemplate, parse};
use wire::tcp::{Flags, Header, Options};

use crate::rig::{CLIENT, Rig, SERVER, connect};

const PORTS: [u16; 2] = [50_001, 50_002];
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// A peer of one of the two streams.
struct Peer {
    tcp: Connection,
    address: SocketAddr,
    received: Vec<u8>,
    /// It hears, and says nothing.
    is_mute: bool,
    closed: Option<tcp::CloseReason>,
}

impl Peer {
    fn new(port: u16, now_us: u64) -> Peer {
        let address = SocketAddr::new(CLIENT.parse().unwrap(), port);
        Peer {
            tcp: connect(address, now_us),
            address,
            received: Vec::new(),
            is_mute: false,
            closed: None,
        }
    }

    fn frames(&mut self, now: Instant, mac: [u8; 6]) -> Vec<Vec<u8>> {
        self.tcp.on_timeout(now);
        let limits = Limits {
            bytes_max: 1400,
            pieces_max: 8,
            real_bytes_max: 1400,
            direct_bytes_max: 0,
        };
        let template = TcpTemplate::new(MAC, mac, self.address, SERVER.parse().unwrap());
        let mut frames = Vec::new();
        while let Some(transmit) = self.tcp.poll_transmit(now, &limits) {
            let mut payload = Vec::new();
            for piece in self.tcp.pieces(transmit.range.clone()) {
                if let tcp::Piece::Real(bytes) = piece {
                    payload.extend_from_slice(bytes);
                }
            }
            frames.push(template.to_frame(&transmit.header, &payload));
            if let Some(transmission) = transmit.transmission {
                self.tcp.on_departed(transmission, now);
            }
        }
        frames
    }

    fn hear(&mut self, now: Instant, frame: &[u8]) {
        let Ok(Received::Tcp(packet)) = parse(frame, false) else {
            panic!("no segment");
        };
        self.tcp.on_segment(now, &packet.segment);
        let mut buffer = [0; 4096];
        loop {
            let count = self.tcp.read(&mut buffer);
            if count == 0 {
                break;
            }
            self.received.extend_from_slice(&buffer[..count]);
        }
        while let Some(event) = self.tcp.poll_event() {
            if let ConnectionEvent::Closed { reason } = event {
                self.closed = Some(reason);
            }
        }
    }
}

/// Two streams of an application, and their peers.
struct Pair {
    /// Its client has a third stream, at whose events the application does what a test says.
    rig: Rig,
    peers: [Peer; 2],
    streams: [StreamId; 2],
    /// When the splice was asked for.
    asked_us: u64,
}

impl Pair {
    fn new() -> Pair {
        Pair::with(1, |_| {})
    }

    fn with(nics: usize, configure: impl FnOnce(&mut StackConfig)) -> Pair {
        let mut rig = Rig::with_nics(nics, configure);
        rig.to_others = Some(Vec::new());
        rig.app.deaf = true;
        let now_us = rig.now_us;
        let mut pair = Pair {
            rig,
            peers: PORTS.map(|port| Peer::new(port, now_us)),
            streams: [StreamId(0); 2],
            asked_us: 0,
        };
        pair.run_until(|pair| pair.rig.app.accepted.len() == 3);
        let events = pair.rig.app.events.iter();
        let ports = events.filter_map(|event| match event {
            AppEvent::Accepted { peer, .. } => Some(peer.port()),
            _ => None,
        });
        for (port, stream) in ports.zip(&pair.rig.app.accepted) {
            if let Some(side) = PORTS.iter().position(|it| *it == port) {
                pair.streams[side] = *stream;
            }
        }
        pair.quiet();
        pair
    }

    fn step(&mut self) {
        let now = Instant::from_us(self.rig.now_us);
        let mac = self.rig.port.mac();
        for peer in &mut self.peers {
            if !peer.is_mute {
                for frame in peer.frames(now, mac) {
                    self.rig.inject(&frame);
                }
            }
        }
        self.rig.step();
        let frames = self.rig.to_others.as_mut().expect("they are taken");
        for frame in std::mem::take(frames) {
            let Ok(Received::Tcp(packet)) = parse(&frame, false) else {
                panic!("no segment");
            };
            let to = packet.segment.header.destination_port;
            if let Some(side) = PORTS.iter().position(|port| *port == to) {
                self.peers[side].hear(now, &frame);
            }
        }
    }

    fn run_until(&mut self, mut done: impl FnMut(&Pair) -> bool) {
        for _ in 0..600_000 {
            if done(self) {
                return;
            }
            self.step();
        }
        panic!(
            "not done after a minute: {:?}, {:?}",
            self.rig.app.events,
            self.rig.stack.counters()
        );
    }

    /// Lets acknowledgments come that are on their way, or delayed.
    fn quiet(&mut self) {
        for _ in 0..1000 {
            self.step();
        }
    }

    /// Has the application do something.
    fn act(&mut self, deed: impl FnOnce(&mut dyn Io) + 'static) {
        self.rig.app.does = Some(Box::new(deed));
        self.rig.client.write(b"now");
        self.run_until(|pair| pair.rig.app.does.is_none());
    }

    /// Asks for a splice; what the stack answers.
    fn splice_with(&mut self, limits: SpliceLimits) -> Result<(), SpliceError> {
        let [first, second] = self.streams;
        let answer = Rc::new(Cell::new(None));
        let answered = Rc::clone(&answer);
        self.act(move |io| answered.set(Some(io.splice(first, second, limits))));
        self.asked_us = self.rig.now_us;
        answer.get().expect("an answer")
    }

    fn splice(&mut self) -> Result<(), SpliceError> {
        self.splice_with(SpliceLimits::default())
    }

    /// A splice that the NIC stack has.
    fn joined() -> Pair {
        let mut pair = Pair::new();
        assert_eq!(pair.splice(), Ok(()));
        pair.run_until(|pair| !pair.rig.nic.splices.is_empty());
        pair.step();
        pair
    }

    fn flow(&self) -> FlowId {
        self.rig.nic.splices.last().expect("a splice").flow
    }

    /// What the application has heard of the splice.
    fn heard(&self) -> Vec<SpliceEvent> {
        let events = self.rig.app.events.iter();
        let heard = events.filter_map(|event| match event {
            AppEvent::Splice(event) => Some(*event),
            _ => None,
        });
        heard.collect()
    }

    /// How streams have ended, in the order in which the application has heard of it.
    fn closed(&self) -> Vec<CloseReason> {
        let events = self.rig.app.events.iter();
        let closed = events.filter_map(|event| match event {
            AppEvent::Closed { reason, .. } => Some(*reason),
            _ => None,
        });
        closed.collect()
    }

    fn tell(&mut self, event: &Event) {
        self.rig.nic.channel.send(event).expect("room for an event");
        self.rig.nic.channel.flush();
        self.step();
    }

    fn progress(&mut self, passed_bytes: [u64; 2]) {
        let flow = self.flow();
        let progress = [SpliceProgress {
            flow,
            passed_bytes,
            has_finished: [false; 2],
        }]
        .into();
        self.tell(&Event::SpliceProgress { progress });
    }

    /// The application copies what the first peer says.
    fn copies(&mut self, bytes: &'static [u8]) {
        let before = self.peers[1].received.len();
        self.peers[0].tcp.write(bytes);
        self.quiet();
        let [first, second] = self.streams;
        self.act(move |io| {
            let mut buffer = [0; 64];
            let count = io.read(first, &mut buffer);
            assert_eq!(io.write(second, &buffer[..count]), bytes.len());
        });
        self.run_until(|pair| pair.peers[1].received.len() >= before + bytes.len());
        assert_eq!(&self.peers[1].received[before..], bytes);
    }

    /// Where the legs are when so much of each peer has passed.
    fn outcome(&self, passed_bytes: [u64; 2]) -> Box<SpliceOutcome> {
        let legs = self.rig.nic.splices[0].legs;
        let numbers = |side: usize| {
            let (snd_nxt, rcv_nxt) = legs[side];
            let now = Instant::from_us(self.rig.now_us);
            let peer = self.peers[side].tcp.join_numbers(now);
            let (recent, value) = peer.and_then(|it| it.timestamps).unwrap_or_default();
            SpliceNumbers {
                snd_nxt: snd_nxt.wrapping_add(passed_bytes[1 - side] as u32),
                rcv_nxt: rcv_nxt.wrapping_add(passed_bytes[side] as u32),
                snd_window_bytes: 60_000,
                rcv_window_bytes: 60_000,
                ts_value: value,
                ts_recent: recent,
            }
        };
        Box::new(SpliceOutcome {
            flow: self.flow(),
            passed_bytes,
            legs: [numbers(0), numbers(1)],
        })
    }

    fn ended(&mut self, reason: SpliceEndReason) {
        let outcome = self.outcome([0, 0]);
        self.tell(&Event::SpliceEnded { outcome, reason });
    }

    /// A segment that claims to come from a peer, beyond what it has sent.
    fn inject(&mut self, side: usize, flags: Flags, beyond: u32, payload: &[u8]) {
        let numbers = self.peers[side]
            .tcp
            .join_numbers(Instant::from_us(self.rig.now_us));
        let numbers = numbers.expect("the peer is quiet");
        let header = Header {
            seq: numbers.snd_nxt.wrapping_add(beyond),
            ack: numbers.rcv_nxt,
            flags,
            window: 1000,
            options: Options {
                timestamps: numbers
                    .timestamps
                    .map(|(value, echo_reply)| wire::tcp::Timestamps { value, echo_reply }),
                ..Options::default()
            },
            ..Header::default()
        };
        let from = self.peers[side].address;
        self.rig.inject_segment(from, &header, payload);
    }
}

#[test]
fn two_quiet_streams_go_to_the_nic_stack_with_their_numbers() {
    let mut pair = Pair::new();
    // Not read by the application: it goes on to the other peer.
    pair.peers[0].tcp.write(b"unread");
    pair.quiet();
    let limits = SpliceLimits {
        idle: Some(Duration::from_secs(60)),
        life: Some(Duration::from_millis(5)),
    };
    assert_eq!(pair.splice_with(limits), Ok(()));
    pair.run_until(|pair| pair.heard() == [SpliceEvent::Joined]);
    assert_eq!(pair.peers[1].received, b"unread");
    let [splice] = pair.rig.nic.splices[..] else {
        panic!("{:?}", pair.rig.nic.splices);
    };
    assert_eq!(splice.flow.0, pair.streams[0].0);
    assert_eq!((splice.limits_ms, splice.is_again), ([60_000, 5], false));
    for side in [0, 1] {
        let now = Instant::from_us(pair.rig.now_us);
        let peer = pair.peers[side].tcp.join_numbers(now).expect("it is quiet");
        assert_eq!(splice.legs[side], (peer.rcv_nxt, peer.snd_nxt));
    }
    // What the peers say goes to the NIC stack, and nowhere else.
    pair.inject(0, Flags::ACK | Flags::PSH, 0, b"from the first");
    pair.inject(1, Flags::ACK | Flags::PSH, 0, b"from the second");
    pair.run_until(|pair| pair.rig.nic.frames.len() == 2);
    let counters = pair.rig.stack.counters();
    assert_eq!((counters.frames_handed_on, counters.resets_sent), (2, 0));
    assert_eq!((counters.splices_begun, counters.splices_joined), (1, 1));
    pair.progress([14, 15]);
    let bytes = [6 + 14, 15];
    assert_eq!(pair.heard()[1..], [SpliceEvent::Progress { bytes }]);
    assert_eq!(pair.rig.stack.counters().spliced_bytes, 29);
}

#[test]
fn what_cannot_be_joined_is_refused_and_goes_on() {
    // None may be.
    let mut pair = Pair::with(1, |config| config.splices_max = 0);
    assert_eq!(pair.splice(), Err(SpliceError::Full));
    // One of them twice.
    let mut pair = Pair::new();
    pair.streams[1] = pair.streams[0];
    assert_eq!(pair.splice(), Err(SpliceError::NotOpen));
    // A peer has closed.
    let mut pair = Pair::new();
    pair.peers[1].tcp.shutdown();
    pair.quiet();
    assert_eq!(pair.splice(), Err(SpliceError::NotOpen));
    // No NIC stack is there.
    let mut pair = Pair::new();
    pair.rig.lose_nic(0);
    assert_eq!(pair.splice(), Err(SpliceError::NoNicStack));
    // They are joined.
    let mut pair = Pair::joined();
    let [first, second] = pair.streams;
    pair.act(move |io| {
        for (first, second) in [(first, second), (second, first)] {
            let again = io.splice(first, second, SpliceLimits::default());
            assert_eq!(again, Err(SpliceError::NotOpen));
            assert_eq!(
                (io.read(first, &mut [0; 9]), io.write(second, b"no")),
                (0, 0)
            );
        }
    });
    assert_eq!(pair.rig.stack.counters().splices_begun, 1);
}

/// The second peer does not acknowledge what the first has said, so that they do not become quiet.
fn joining() -> Pair {
    let mut pair = Pair::new();
    pair.peers[1].is_mute = true;
    pair.peers[0].tcp.write(b"x");
    pair.quiet();
    assert_eq!(pair.splice(), Ok(()));
    pair.quiet();
    assert!(pair.rig.nic.splices.is_empty());
    pair
}

#[test]
fn frames_that_bring_more_are_held_and_follow() {
    let mut pair = joining();
    pair.peers[0].tcp.write(b"held");
    pair.run_until(|pair| pair.rig.stack.counters().splice_frames_held == 1);
    pair.peers[1].is_mute = false;
    pair.run_until(|pair| !pair.rig.nic.frames.is_empty());
    assert_eq!(pair.rig.nic.splices.len(), 1);
    assert!(pair.rig.nic.frames[0].ends_with(b"held"));
    assert_eq!(pair.peers[1].received, b"x", "it has not passed here");
}

#[test]
fn what_is_beyond_the_bound_of_held_frames_is_as_if_lost() {
    const PAYLOAD: [u8; 1400] = [1; 1400];
    let mut pair = joining();
    for index in 0..200 {
        pair.inject(0, Flags::ACK, index * PAYLOAD.len() as u32, &PAYLOAD);
        pair.step();
    }
    // 256 KiB, headers and all.
    let counters = pair.rig.stack.counters();
    let held = counters.splice_frames_held;
    let frame_bytes = PAYLOAD.len() as u64 + 14 + 20 + 32;
    assert_eq!(held, (256 << 10) / frame_bytes);
    assert_eq!(counters.frames_not_handed_on, 200 - held);
    pair.peers[1].is_mute = false;
    pair.run_until(|pair| pair.rig.nic.frames.len() as u64 == held);
}

#[test]
fn streams_that_do_not_become_quiet_come_back_with_what_was_held() {
    let mut pair = joining();
    pair.peers[0].tcp.write(b"held");
    pair.run_until(|pair| !pair.heard().is_empty());
    let (error, bytes) = (Some(SpliceError::NotQuiet), [1, 0]);
    assert_eq!(pair.heard(), [SpliceEvent::Returned { error, bytes }]);
    let waited_us = pair.rig.now_us - pair.asked_us;
    assert!((3_000_000..3_001_000).contains(&waited_us), "{waited_us}");
    let [first, _] = pair.streams;
    pair.act(move |io| {
        let mut buffer = [0; 9];
        let count = io.read(first, &mut buffer);
        assert_eq!(&buffer[..count], b"held");
    });
    pair.peers[1].is_mute = false;
    pair.run_until(|pair| pair.peers[1].received == b"x");
    let counters = pair.rig.stack.counters();
    assert_eq!((counters.splices_given_up, counters.splices_joined), (1, 0));
}

#[test]
fn a_peer_that_resets_gives_the_other_stream_back() {
    let mut pair = joining();
    pair.peers[0].tcp.abort();
    pair.run_until(|pair| pair.closed() == [CloseReason::Reset]);
    let (error, bytes) = (Some(SpliceError::Ended), [1, 0]);
    assert_eq!(pair.heard(), [SpliceEvent::Returned { error, bytes }]);
    pair.peers[1].is_mute = false;
    pair.run_until(|pair| pair.peers[1].received == b"x");
    // The third client's is there as well.
    assert_eq!(pair.rig.stack.usage().connections, 2);
}

/// A FIN is held as any frame that brings more, and follows SPLICE.
#[test]
fn a_peer_that_closes_while_the_join_goes_on_closes_through_the_nic_stack() {
    let mut pair = joining();
    pair.peers[0].tcp.shutdown();
    pair.quiet();
    pair.peers[1].is_mute = false;
    pair.run_until(|pair| !pair.rig.nic.frames.is_empty());
    let packet = wire::frame::parse_segment(&pair.rig.nic.frames[0], true).unwrap();
    assert!(packet.segment.header.flags.contains(Flags::FIN));
    let end = packet.segment.header.seq.wrapping_add(1);
    pair.rig.restart_nic();
    pair.run_until(|pair| !pair.rig.nic.splices.is_empty());
    assert_eq!(pair.rig.nic.splices[0].fin_ends, [Some(end), None]);
}

#[test]
fn an_application_that_goes_back_on_a_join_has_its_streams_at_once() {
    let mut pair = joining();
    let [first, second] = pair.streams;
    pair.act(move |io| io.unsplice(second));
    pair.step();
    let (error, bytes) = (Some(SpliceError::Cancelled), [1, 0]);
    assert_eq!(pair.heard(), [SpliceEvent::Returned { error, bytes }]);

    // An abort is that of one stream.
    let mut pair = joining();
    pair.act(move |io| io.abort(second));
    pair.run_until(|pair| pair.peers[1].closed == Some(tcp::CloseReason::Reset));
    assert_eq!(pair.closed(), [CloseReason::Aborted]);
    assert_eq!(pair.peers[0].closed, None);

    // A close sends FIN behind what waits; the application hears no more of it.
    let mut pair = joining();
    pair.act(move |io| io.close(first));
    pair.peers[1].is_mute = false;
    pair.run_until(|pair| pair.peers[0].tcp.state() == tcp::State::CloseWait);
    assert_eq!(pair.closed(), []);
    assert_eq!(pair.peers[1].received, b"x");
}

#[test]
fn a_nic_stack_that_refuses_leaves_the_streams_to_the_application() {
    let mut pair = Pair::joined();
    let (flow, reason) = (pair.flow(), SpliceRefusal::Full);
    pair.tell(&Event::SpliceRefused { flow, reason });
    let (error, bytes) = (Some(SpliceError::Full), [0, 0]);
    let returned = SpliceEvent::Returned { error, bytes };
    assert_eq!(pair.heard(), [SpliceEvent::Joined, returned]);
    pair.copies(b"more");
    // For a second, the worker is offered no other.
    assert_eq!(pair.splice(), Err(SpliceError::Full));
    pair.rig.now_us += 1_000_000;
    assert_eq!(pair.splice(), Ok(()));
    let counters = pair.rig.stack.counters();
    assert_eq!((counters.splices_refused, counters.events_invalid), (1, 0));
}

#[test]
fn streams_come_back_where_the_nic_stack_says_that_they_are() {
    let mut pair = Pair::joined();
    let flow = pair.flow();
    let [_, second] = pair.streams;
    pair.act(move |io| io.unsplice(second));
    pair.act(move |io| io.unsplice(second));
    pair.step();
    let asked = [(flow, UnspliceKind::Return)];
    assert_eq!(pair.rig.nic.unsplices, asked, "once");
    let outcome = pair.outcome([0, 0]);
    pair.tell(&Event::Unspliced { outcome });
    let (error, bytes) = (None, [0, 0]);
    let returned = SpliceEvent::Returned { error, bytes };
    assert_eq!(pair.heard(), [SpliceEvent::Joined, returned]);
    pair.copies(b"as before");
    assert_eq!(pair.rig.stack.counters().splices_returned, 1);
    assert_eq!(pair.rig.stack.usage().splices, 0);
}

#[test]
fn an_application_that_ends_a_splice_has_both_peers_reset() {
    for stage in ["joined", "returning"] {
        for lets_go in [false, true] {
            let mut pair = Pair::joined();
            let (flow, [first, second]) = (pair.flow(), pair.streams);
            if stage == "returning" {
                pair.act(move |io| io.unsplice(first));
            }
            pair.act(move |io| {
                if lets_go {
                    io.close(first);
                } else {
                    io.abort(second);
                }
            });
            pair.step();
            let asked = pair.rig.nic.unsplices.last();
            assert_eq!(asked, Some(&(flow, UnspliceKind::Abort)), "{stage}");
            pair.ended(SpliceEndReason::Aborted);
            // Of a stream that it has let go the application hears nothing.
            let closed = if lets_go { 1 } else { 2 };
            assert_eq!(pair.closed(), vec![CloseReason::Aborted; closed], "{stage}");
            let (end, bytes) = (SpliceEnd::Aborted, [0, 0]);
            let ended = SpliceEvent::Ended { end, bytes };
            assert_eq!(pair.heard().contains(&ended), !lets_go, "{stage}");
            assert_eq!(pair.rig.stack.usage().connections, 1);
        }
    }
}

#[test]
fn each_end_has_its_own_reason() {
    use CloseReason::{Aborted, DataPlaneFailed, Finished, Reset, TimedOut};
    for (reason, end, closed) in [
        (SpliceEndReason::Idle, SpliceEnd::Idle, [TimedOut, TimedOut]),
        (
            SpliceEndReason::Overdue,
            SpliceEnd::Overdue,
            [TimedOut, TimedOut],
        ),
        (
            SpliceEndReason::ResetByFirst,
            SpliceEnd::Reset { by_second: false },
            [Reset, Aborted],
        ),
        (
            SpliceEndReason::ResetBySecond,
            SpliceEnd::Reset { by_second: true },
            [Aborted, Reset],
        ),
        (
            SpliceEndReason::NotReturned,
            SpliceEnd::DataPlaneFailed,
            [DataPlaneFailed, DataPlaneFailed],
        ),
        (
            SpliceEndReason::Finished,
            SpliceEnd::Finished,
            [Finished, Finished],
        ),
    ] {
        let mut pair = Pair::joined();
        let outcome = pair.outcome([100, 30]);
        pair.tell(&Event::SpliceEnded { outcome, reason });
        let bytes = [100, 30];
        let ended = SpliceEvent::Ended { end, bytes };
        assert_eq!(pair.heard(), [SpliceEvent::Joined, ended]);
        assert_eq!(pair.closed(), closed, "{reason:?}");
        let counters = pair.rig.stack.counters();
        let finished = u64::from(end == SpliceEnd::Finished);
        assert_eq!(
            (counters.splices_finished, counters.splices_broken),
            (finished, 1 - finished)
        );
        assert_eq!(counters.spliced_bytes, 130);
        // Those that have ended in order are in TIME-WAIT, and answer a FIN that comes again.
        let usage = pair.rig.stack.usage();
        assert_eq!(usage.time_waits as u64, 2 * finished);
    }
}

/// A router's message about a packet to a peer.
fn too_big(pair: &mut Pair, side: usize, mtu: u16) {
    let template = TcpTemplate::new(
        pair.rig.port.mac(),
        MAC,
        SERVER.parse().unwrap(),
        pair.peers[side].address,
    );
    let quoted = template.to_frame(&Header::default(), &[0; 8]);
    let mut icmp = vec![3, 4, 0, 0, 0, 0];
    icmp.extend(mtu.to_be_bytes());
    icmp.extend_from_slice(&quoted[14..14 + 28]);
    let sum = wire::checksum::of(&icmp);
    icmp[2..4].copy_from_slice(&sum.to_be_bytes());
    let header = wire::ip::Header {
        addresses: wire::ip::Addresses::V4 {
            source: CLIENT.parse().unwrap(),
            destination: "10.77.0.2".parse().unwrap(),
        },
        protocol: wire::ip::ICMP,
        ttl: wire::ip::TTL,
        traffic_class: 0,
        identification: 0,
    };
    let link = wire::ethernet::Header {
        destination: pair.rig.port.mac(),
        source: MAC,
        ether_type: wire::ethernet::IPV4,
    };
    let mut frame = link.to_bytes().to_vec();
    frame.resize(14 + 20, 0);
    header.write(icmp.len() as u16, &mut frame[14..]);
    frame.extend_from_slice(&icmp);
    pair.rig.inject(&frame);
    pair.step();
    pair.step();
}

#[test]
fn what_is_too_big_for_the_way_to_a_peer_has_the_connections_come_back() {
    let mut pair = Pair::joined();
    let flow = pair.flow();
    too_big(&mut pair, 1, 1500);
    assert_eq!(pair.rig.nic.unsplices, [], "nothing is as long as that");
    // Whether a message quotes data in flight, the NIC worker knows.
    too_big(&mut pair, 1, 1350);
    let options = 12;
    let mss_of = |mtu: u16| mtu - 40 - options;
    let asked = |mtu: u16| SeenMss {
        flow,
        leg: 1,
        mss: mss_of(mtu),
        seq: Header::default().seq,
    };
    assert_eq!(std::mem::take(&mut pair.rig.nic.splice_mss), [asked(1350)]);
    assert_eq!(pair.rig.nic.unsplices, []);
    assert_eq!(pair.rig.stack.counters().mtus_reduced, 0);
    for mtu in [1400, 1450, 1300, 100] {
        too_big(&mut pair, 1, mtu);
        for SeenMss { flow, leg, mss, .. } in pair.rig.nic.splice_mss.clone() {
            pair.tell(&Event::SpliceMssReduced { flow, leg, mss });
        }
    }
    let unspliced = [(flow, UnspliceKind::Return)];
    assert_eq!(pair.rig.nic.unsplices, unspliced);
    // What passes until it is back fits. No MTU below 552 bytes is believed.
    assert_eq!(pair.rig.nic.splice_mss, [1400, 1300, 552].map(asked));
    assert_eq!(pair.rig.stack.counters().mtus_reduced, 3);
    assert_eq!(pair.rig.nic.splices.len(), 1);
    assert_eq!(pair.rig.stack.counters().splices_repeated, 0);
    let outcome = pair.outcome([0, 0]);
    pair.tell(&Event::Unspliced { outcome });
    pair.copies(b"in smaller pieces");
}

#[test]
fn a_nic_stack_that_takes_the_place_of_another_gets_what_had_passed() {
    let mut pair = Pair::joined();
    pair.progress([1000, 20]);
    let before = pair.rig.nic.splices[0];
    pair.rig.restart_nic();
    pair.run_until(|pair| !pair.rig.nic.splices.is_empty());
    let again = pair.rig.nic.splices[0];
    assert_eq!((again.is_again, again.passed_bytes), (true, [1000, 20]));
    assert_eq!((again.flow, again.legs), (before.flow, before.legs));
    // One that is to come back is asked for again as well.
    let [first, _] = pair.streams;
    pair.act(move |io| io.unsplice(first));
    pair.rig.restart_nic();
    pair.run_until(|pair| !pair.rig.nic.unsplices.is_empty());
    assert_eq!(pair.rig.nic.splices.len(), 1);
    assert_eq!(pair.rig.stack.counters().splices_repeated, 2);
    // What passes is counted once.
    pair.progress([900, 20]);
    pair.progress([1100, 20]);
    assert_eq!(pair.rig.stack.counters().spliced_bytes, 1120);
    // A successor that refuses leaves nothing to go on from.
    let (flow, reason) = (pair.flow(), SpliceRefusal::Full);
    pair.tell(&Event::SpliceRefused { flow, reason });
    assert_eq!(pair.closed(), [CloseReason::DataPlaneFailed; 2]);
}

#[test]
fn another_nic_stack_that_is_there_gets_what_one_that_is_lost_has_had() {
    let mut pair = Pair::with(2, |_| {});
    assert_eq!(pair.splice(), Ok(()));
    pair.run_until(|pair| pair.heard() == [SpliceEvent::Joined]);
    pair.step();
    let first = usize::from(pair.rig.nic.splices.is_empty());
    pair.rig.lose_nic(first);
    pair.step();
    pair.step();
    let [again] = pair.rig.nic(1 - first).splices[..] else {
        panic!("one splice");
    };
    assert!(again.is_again);
}

#[test]
fn a_nic_stack_that_stays_away_ends_both_connections_and_the_peers_hear_it() {
    let mut pair = Pair::joined();
    pair.rig.lose_nic(0);
    pair.inject(0, Flags::ACK, 0, b"lost");
    pair.step();
    pair.step();
    assert_eq!(pair.rig.stack.counters().frames_not_handed_on, 1);
    assert_eq!(pair.closed(), [], "it may come back");
    pair.rig.now_us += 6_000_000;
    pair.run_until(|pair| pair.closed() == [CloseReason::DataPlaneFailed; 2]);
    let (end, bytes) = (SpliceEnd::DataPlaneFailed, [0, 0]);
    let ended = SpliceEvent::Ended { end, bytes };
    assert_eq!(pair.heard(), [SpliceEvent::Joined, ended]);
    // Each answers the probe, and gets RST for its answer.
    pair.run_until(|pair| {
        let closed = pair.peers.each_ref().map(|peer| peer.closed);
        closed == [Some(tcp::CloseReason::Reset); 2]
    });
    assert_eq!(pair.rig.stack.counters().splices_broken, 1);
}

#[test]
fn a_splice_that_an_application_ends_while_its_nic_stack_is_away_has_both_peers_reset() {
    let mut pair = Pair::joined();
    let [first, _] = pair.streams;
    pair.rig.lose_nic(0);
    pair.act(move |io| io.abort(first));
    pair.run_until(|pair| {
        let closed = pair.peers.each_ref().map(|peer| peer.closed);
        closed == [Some(tcp::CloseReason::Reset); 2]
    });
    assert_eq!(pair.closed(), [CloseReason::Aborted; 2]);
}

#[test]
fn what_a_nic_stack_says_of_others_is_not_believed() {
    let mut pair = Pair::new();
    let flow = FlowId(99);
    let reason = SpliceRefusal::Full;
    pair.tell(&Event::SpliceRefused { flow, reason });
    let passed_bytes = [7, 7];
    let progress = [SpliceProgress {
        flow,
        passed_bytes,
        has_finished: [false; 2],
    }]
    .into();
    pair.tell(&Event::SpliceProgress { progress });
    assert_eq!(pair.rig.stack.counters().events_invalid, 2);
    assert_eq!(pair.rig.stack.counters().spliced_bytes, 0);
}

#[test]
fn a_client_that_is_denied_ends_its_splice() {
    for stage in ["joining", "joined"] {
        let mut pair = match stage {
            "joining" => joining(),
            _ => Pair::joined(),
        };
        let now_us = pair.rig.now_us;
        let clients = Prefix::network(CLIENT.parse().unwrap(), 24);
        // Of the two that are spliced, either stands for both.
        let ended = pair.rig.stack.deny(now_us, clients, None);
        assert_eq!(ended, Ok(3), "{stage}");
        if stage == "joined" {
            pair.step();
            let asked = pair.rig.nic.unsplices.last();
            assert_eq!(
                asked,
                Some(&(FlowId(pair.streams[0].0), UnspliceKind::Abort))
            );
            pair.ended(SpliceEndReason::Aborted);
        }
        pair.run_until(|pair| pair.rig.stack.usage().connections == 0);
        let closed = pair.closed();
        assert_eq!(closed, vec![CloseReason::Aborted; closed.len()], "{stage}");
    }
}
