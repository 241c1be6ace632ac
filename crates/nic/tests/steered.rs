//! Frames of connections that a worker has taken over, at its own port: what leaves for them, and
//! what goes to the host.

mod support;

use contract::limits::{FRAME_BYTES_MAX, HEADER_BYTES_MAX};
use contract::parting::{Part, PartLimits, PartStage};
use contract::splicing::{Splice, SpliceEndReason, SpliceLeg, UnspliceKind};
use contract::{Command, Event, FlowId};
use fakes::recording_port::{Packet, Recording, RecordingPort};
use netdev::steering::Target;
use nic::reader::memory::MemoryDisk;
use support::{Stage, content, small_config};
use wire::frame::{TcpTemplate, parse_segment};
use wire::tcp::{Flags, Header, Segment};

const MSS: u16 = 1440;
const WINDOW_BYTES: u32 = 1 << 20;

/// RCV.NXT and SND.NXT of the legs.
const NUMBERS: [(u32, u32); 2] = [(u32::MAX - 5000, 77), (700_000, 90)];

/// The ways to both peers: IPv4 on one leg, IPv6 on the other.
fn ways() -> [TcpTemplate; 2] {
    let way = |local: &str, remote: &str| {
        let (local, remote) = (local.parse().unwrap(), remote.parse().unwrap());
        TcpTemplate::new([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1], local, remote)
    };
    [
        way("10.77.0.2:80", "10.77.0.1:4000"),
        way("[fd77::2]:50000", "[fd77::3]:8080"),
    ]
}

/// A frame of the peer of a leg.
fn frame(side: usize, flags: Flags, at: usize, acks: usize, payload: &[u8]) -> Vec<u8> {
    let way = ways()[side];
    let (from, to) = (way.destination, way.source);
    let back = TcpTemplate::new(way.destination_mac, way.source_mac, from, to);
    let header = Header {
        seq: NUMBERS[side].0.wrapping_add(at as u32),
        ack: NUMBERS[side].1.wrapping_add(acks as u32),
        flags: flags | Flags::ACK,
        window: u16::MAX,
        ..Header::default()
    };
    back.to_frame(&header, payload)
}

/// A worker whose port is steered, or is not.
fn stage(target: Option<Target>) -> Stage {
    let wire = Recording::default();
    let mut port = RecordingPort::new(&wire, 65_535);
    port.set_target(target);
    Stage::on_port(&small_config(), Box::new(MemoryDisk::new()), port, wire)
}

/// The same with a splice, whose first acknowledgments have left.
fn spliced(target: Option<Target>) -> Stage {
    let mut stage = stage(target);
    let headers = ways().map(|way| {
        let mut buffer = [0; HEADER_BYTES_MAX];
        let len = way.write(&Header::default(), &mut buffer).unwrap();
        buffer[..len].to_vec()
    });
    let leg = |side: usize| SpliceLeg {
        rcv_nxt: NUMBERS[side].0,
        snd_nxt: NUMBERS[side].1,
        snd_window_bytes: WINDOW_BYTES,
        rcv_window_bytes: WINDOW_BYTES,
        snd_shift: 5,
        rcv_shift: 5,
        mss: MSS,
        sack: false,
        ecn: false,
        fin_end: None,
        timestamps: None,
        header: &headers[side],
    };
    let splice = Splice {
        flow: FlowId(7),
        legs: [leg(0), leg(1)],
        is_again: false,
        passed_bytes: [0; 2],
        idle_ms: 0,
        life_ms: 0,
    };
    stage.tell(&Command::Splice(splice));
    stage.settle();
    assert_eq!(stage.wire.take().len(), 2);
    stage
}

fn some_target() -> Option<Target> {
    Target::new(9)
}

fn taken(flow: u64) -> Event {
    Event::FlowsTaken {
        flows: [FlowId(flow)].into(),
    }
}

fn arrive(stage: &mut Stage, frame: Vec<u8>) {
    stage.wire.arrive(frame);
    stage.settle();
}

/// What has left since the last look, which receivers would take.
fn left(stage: &Stage) -> Vec<Packet> {
    let packets = stage.wire.take();
    packets.iter().for_each(Packet::check);
    packets
}

fn header(packet: &Packet) -> Header {
    Segment::parse(&packet.header[packet.tcp_offset..])
        .unwrap()
        .header
}

/// xorshift64*
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % bound as u64) as usize
    }
}

/// The same frames, to one worker by FRAME and to another at its port: the same leaves, and the
/// host hears the same.
#[test]
fn what_arrives_at_the_port_passes_as_what_the_host_hands_on() {
    let seed = u64::from(std::process::id()) << 16 | 1;
    println!("seed {seed}");
    let mut random = Random(seed);
    let (mut handed_on, mut steered) = (spliced(None), spliced(some_target()));
    assert_eq!(handed_on.take_events(), []);
    assert_eq!(steered.take_events(), [taken(7)]);
    let stream = content(1 << 20);
    let (mut at, mut passed) = ([0; 2], 0);
    for _ in 0..2_000 {
        let side = random.below(2);
        let from = at[side] - random.below(3) * random.below(1000).min(at[side]) / 2;
        let len = random.below(1_400);
        let flags = match random.below(50) {
            0 => Flags::SYN,
            1 => Flags::PSH,
            _ => Flags::ACK,
        };
        let bytes = frame(side, flags, from, at[1 - side], &stream[from..from + len]);
        handed_on.tell(&Command::Frame { bytes: &bytes });
        handed_on.settle();
        arrive(&mut steered, bytes);
        let [expected, got] = [&handed_on, &steered].map(left);
        assert_eq!(expected, got);
        if flags != Flags::SYN && !got.is_empty() {
            at[side] = at[side].max(from + len);
        }
        passed += got.iter().map(|packet| packet.payload.len()).sum::<usize>();
        let now_us = handed_on.now_us.get() + random.below(200_000) as u64;
        handed_on.now_us.set(now_us);
        steered.now_us.set(now_us);
        assert_eq!(handed_on.take_events(), steered.take_events());
        if at.iter().any(|at| *at > (1 << 20) - 2_000) {
            break;
        }
    }
    assert!(passed > 500_000, "{passed}");
    let counters = steered.counters();
    assert!(counters.frames_received > 500 && counters.frames_taken == 0);
    assert_eq!((counters.frames_handed_up, counters.frames_dropped), (0, 0));
}

/// Frames as GRO makes them, as long as they can be. Headers of IPv6 are longer than those of IPv4.
#[test]
fn a_merged_frame_passes_whole() {
    for side in [0, 1] {
        let mut stage = spliced(some_target());
        let headers = if side == 0 { 40 } else { 60 };
        let payload = content(65_535 - headers);
        let flags = Flags::PSH | Flags::FIN;
        arrive(&mut stage, frame(side, flags, 0, 0, &payload));
        let packets = left(&stage);
        assert!((1..=2).contains(&packets.len()), "{}", packets.len());
        let mut expected = NUMBERS[1 - side].1;
        let mut bytes = Vec::new();
        for (number, packet) in packets.iter().enumerate() {
            let header = header(packet);
            assert_eq!((header.seq, packet.mss), (expected, MSS));
            let is_last = number + 1 == packets.len();
            assert_eq!(header.flags.contains(Flags::FIN), is_last);
            assert!(is_last || packet.payload.len() % usize::from(MSS) == 0);
            expected = expected.wrapping_add(packet.payload.len() as u32);
            bytes.extend_from_slice(&packet.payload);
        }
        assert!(bytes == payload, "every byte passes");
        // A NIC stack that takes the place of this one has to know of the FIN: the report is due.
        let [first, Event::SpliceProgress { progress }] = &stage.take_events()[..] else {
            panic!("the host hears");
        };
        assert_eq!(*first, taken(7));
        assert!(progress[0].has_finished[side]);
        assert_eq!(progress[0].passed_bytes[side], payload.len() as u64);
    }
}

#[test]
fn what_waits_for_a_busy_port_is_kept_where_it_arrives() {
    let mut stage = spliced(some_target());
    let stream = content(100_000);
    stage.wire.close(true);
    for at in 0..50 {
        let bytes = frame(0, Flags::ACK, at * 1000, 0, &stream[at * 1000..][..1000]);
        arrive(&mut stage, bytes);
    }
    assert_eq!(stage.wire.arriving(), 49, "the first packet waits");
    stage.wire.close(false);
    stage.settle();
    let bytes: Vec<u8> = left(&stage)
        .iter()
        .flat_map(|it| it.payload.clone())
        .collect();
    assert!(bytes == stream[..50_000], "every byte passes, in order");
}

#[test]
fn a_worker_hands_up_what_it_has_no_connection_for() {
    let mut stage = spliced(some_target());
    stage.take_events();
    let unknown = |side: usize, payload: &[u8]| {
        let mut bytes = frame(side, Flags::PSH, 0, 0, payload);
        let way = ways()[side];
        let mut from = way.destination;
        from.set_port(5);
        let header = parse_segment(&bytes, false).unwrap().segment.header;
        bytes =
            TcpTemplate::new([2; 6], way.source_mac, from, way.source).to_frame(&header, payload);
        bytes
    };
    let short = unknown(0, b"data");
    arrive(&mut stage, short.clone());
    let up = Event::Frame {
        bytes: short.clone().into(),
    };
    assert_eq!(stage.take_events(), [up]);
    // One that is damaged goes nowhere.
    let mut damaged = short.clone();
    damaged[56] ^= 1;
    arrive(&mut stage, damaged);
    assert_eq!(stage.take_events(), []);
    assert_eq!(stage.counters().frames_dropped, 1);
    // Of a long one the beginning goes up.
    let payload = content(9000);
    arrive(&mut stage, unknown(1, &payload));
    let [Event::Frame { bytes }] = &stage.take_events()[..] else {
        panic!("it goes up");
    };
    assert_eq!(bytes.len(), FRAME_BYTES_MAX);
    let cut = parse_segment(bytes, true).unwrap();
    assert!(payload.starts_with(cut.segment.payload));
    assert!(!cut.segment.header.flags.contains(Flags::PSH));

    let mut up = 2;
    for _ in 0..2_000 {
        arrive(&mut stage, short.clone());
        up += stage.take_events().len();
    }
    assert_eq!(up, 1_000, "in a second");
    stage.now_us.set(stage.now_us.get() + 1_000_000);
    arrive(&mut stage, short);
    assert_eq!(stage.take_events().len(), 1);
    let counters = stage.counters();
    assert_eq!(counters.frames_handed_up, 1_001);
    assert_eq!(
        counters.frames_received,
        counters.frames_handed_up + 1 + 1_002
    );
}

/// A frame that comes when its splice is over is behind the report of its end.
#[test]
fn what_comes_late_is_handed_up_behind_the_end() {
    let mut stage = spliced(some_target());
    let kind = UnspliceKind::Return;
    let flow = FlowId(7);
    stage.tell(&Command::Unsplice { flow, kind });
    for side in [0, 1] {
        stage.wire.arrive(frame(side, Flags::PSH, 0, 0, b"late"));
    }
    let events = stage.take_events();
    let [
        Event::FlowsTaken { .. },
        Event::Unspliced { outcome },
        Event::Frame { .. },
        Event::Frame { .. },
    ] = &events[..]
    else {
        panic!("{events:?}");
    };
    assert_eq!(outcome.passed_bytes, [0; 2]);
}

/// The host may hand on what it has received before a RST behind it. That brings no splice back
/// whose peers are gone; what was sent later does.
#[test]
fn a_frame_from_before_a_reset_changes_nothing() {
    for later in [false, true] {
        let mut stage = spliced(some_target());
        let stream = content(10_000);
        arrive(&mut stage, frame(0, Flags::PSH, 0, 0, &stream[..6000]));
        arrive(&mut stage, frame(1, Flags::PSH, 0, 6000, &stream[..3000]));
        arrive(&mut stage, frame(0, Flags::RST, 6000, 3000, &[]));
        let old = [
            frame(0, Flags::ACK, 6000, 1000, &[]),
            frame(0, Flags::PSH, 3000, 0, &stream[3000..6000]),
            frame(1, Flags::ACK, 3000, 6000, &[]),
        ];
        for bytes in &old {
            stage.tell(&Command::Frame { bytes });
        }
        if later {
            arrive(&mut stage, frame(0, Flags::PSH, 6000, 3000, b"more"));
        }
        stage.take_events();
        for _ in 0..4 {
            stage.now_us.set(stage.now_us.get() + 500_000);
            stage.settle();
        }
        let is_over = stage.take_events().iter().any(|event| {
            let by_first = SpliceEndReason::ResetByFirst;
            matches!(event, Event::SpliceEnded { reason, .. } if *reason == by_first)
        });
        assert_eq!(
            (is_over, stage.worker.usage().spliced),
            (!later, later.into())
        );
    }
}

#[test]
fn a_connection_that_was_parted_with_is_answered_at_the_port() {
    let mut stage = stage(some_target());
    let way = ways()[0];
    let mut buffer = [0; HEADER_BYTES_MAX];
    let len = way.write(&Header::default(), &mut buffer).unwrap();
    stage.tell(&Command::Part(Part {
        flow: FlowId(3),
        issued_us: stage.now_us.get(),
        stage: PartStage::FinWait2,
        owes_ack: false,
        fin_seq: NUMBERS[0].1.wrapping_sub(1),
        rcv_nxt: NUMBERS[0].0,
        rcv_window_bytes: WINDOW_BYTES,
        rcv_shift: 5,
        snd_window_bytes: WINDOW_BYTES,
        snd_window_bytes_max: WINDOW_BYTES,
        snd_shift: 5,
        mss: MSS,
        timestamps: None,
        srtt_us: 0,
        rttvar_us: 0,
        backoff: 0,
        limits: PartLimits {
            rto_initial_ms: 1000,
            rto_min_ms: 200,
            rto_max_ms: 60_000,
            user_timeout_ms: 0,
            time_wait_ms: 60_000,
            fin_wait_2_ms: 60_000,
            challenge_acks_max: 10,
            challenge_acks_interval_ms: 5000,
            fin_retries: 3,
        },
        header: &buffer[..len],
    }));
    assert_eq!(stage.take_events(), [taken(3)]);
    arrive(&mut stage, frame(0, Flags::FIN, 0, 0, &[]));
    let [answer] = &left(&stage)[..] else {
        panic!("FIN is answered");
    };
    assert_eq!(header(answer).ack, NUMBERS[0].0.wrapping_add(1));
    assert_eq!(stage.worker.usage().parted_time_waits, 1);
    // A long SYN in its place goes up, cut, behind the report of the end.
    let syn = frame(0, Flags::SYN, 1 << 20, 0, &content(9000));
    let mut syn = syn;
    syn[14 + 20 + 13] = Flags::SYN.0;
    let parsed = parse_segment(&syn, true).unwrap();
    let again = TcpTemplate::new(
        way.destination_mac,
        way.source_mac,
        way.destination,
        way.source,
    );
    let syn = again.to_frame(&parsed.segment.header, parsed.segment.payload);
    arrive(&mut stage, syn);
    let events = stage.take_events();
    let [Event::PartEnded { .. }, Event::Frame { bytes }] = &events[..] else {
        panic!("{events:?}");
    };
    assert_eq!(bytes.len(), FRAME_BYTES_MAX);
}

/// A successor has to know of a FIN that has left.
#[test]
fn a_fin_leaves_when_its_report_is_in_the_ring() {
    let mut stage = spliced(some_target());
    stage.listen();
    // Frames of a connection that the worker does not have fill the ring.
    let way = ways()[0];
    let stranger = TcpTemplate::new(
        way.destination_mac,
        way.source_mac,
        "10.77.0.1:4001".parse().unwrap(),
        way.source,
    );
    let header = Header {
        flags: Flags::ACK,
        ..Header::default()
    };
    let strange = stranger.to_frame(&header, &[0; 1400]);
    for _ in 0..10_000 {
        stage.wire.arrive(strange.clone());
        stage.turn();
    }
    stage.wire.arrive(frame(0, Flags::PSH, 0, 0, b"text"));
    stage.wire.arrive(frame(0, Flags::FIN, 4, 0, b"end"));
    stage.wire.arrive(frame(1, Flags::PSH, 0, 0, b"back"));
    stage.wire.arrive(frame(0, Flags::FIN, 4, 0, b"end"));
    stage.wire.arrive(frame(1, Flags::FIN, 4, 0, b"bye"));
    for _ in 0..10 {
        stage.turn();
    }
    let payloads = |packets: Vec<Packet>| -> Vec<Vec<u8>> {
        packets.into_iter().map(|packet| packet.payload).collect()
    };
    assert_eq!(payloads(left(&stage)), [&b"text"[..], b"back"]);
    stage.settle();
    assert_eq!(payloads(left(&stage)), [b"end", b"end", b"bye"]);
    // The second FIN as well, although what leaves is held back already.
    let events = stage.take_events();
    for finished in [[true, false], [true, true]] {
        let is_report = |event: &Event| match event {
            Event::SpliceProgress { progress } => {
                progress.iter().any(|it| it.has_finished == finished)
            }
            _ => false,
        };
        assert!(events.iter().any(is_report), "{finished:?}");
    }
}
