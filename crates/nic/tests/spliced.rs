//! Splices: what leaves on one leg for what has come on the other, and what the host hears.

mod support;

use contract::splicing::{
    Splice, SpliceEndReason, SpliceLeg, SpliceNumbers, SpliceOutcome, SpliceRefusal,
    SpliceTimestamps, UnspliceKind,
};
use contract::{Command, Event, FlowId};
use fakes::recording_port::{Answer, Packet};
use netdev::steering::Target;
use nic::{Config, Sleep};
use support::{Stage, content, small_config};
use wire::frame::TcpTemplate;
use wire::ip::Ecn;
use wire::tcp::{Flags, Header, Options, Segment, Timestamps};

/// RCV.NXT and SND.NXT of the legs: the client's stream soon wraps around.
const CLIENT: (u32, u32) = (u32::MAX - 1000, 5000);
const BACKEND: (u32, u32) = (700_000, 90);

const PUSH: Flags = Flags(Flags::PSH.0 | Flags::ACK.0);
const FIN: Flags = Flags(Flags::FIN.0 | Flags::ACK.0);

/// The way to the client.
fn to_client() -> TcpTemplate {
    TcpTemplate::new(
        [2, 0, 0, 0, 0, 2],
        [2, 0, 0, 0, 0, 1],
        "10.77.0.2:80".parse().unwrap(),
        "10.77.0.1:4000".parse().unwrap(),
    )
}

/// The way to the backend, over IPv6.
fn to_backend() -> TcpTemplate {
    TcpTemplate::new(
        [2, 0, 0, 0, 0, 2],
        [2, 0, 0, 0, 0, 3],
        "[fd77::2]:50000".parse().unwrap(),
        "[fd77::3]:8080".parse().unwrap(),
    )
}

fn header_of(template: &TcpTemplate) -> Vec<u8> {
    let mut buffer = [0; wire::frame::HEADER_BYTES_MAX];
    let len = template.write(&Header::default(), &mut buffer).unwrap();
    buffer[..len].to_vec()
}

/// A splice of the two, with timestamps, SACK and ECN on both, windows scaled.
fn splice_of(headers: &[Vec<u8>; 2]) -> Splice<'_> {
    let leg = |(rcv_nxt, snd_nxt), header, ts: (u32, u32), shifts: (u8, u8)| SpliceLeg {
        rcv_nxt,
        snd_nxt,
        snd_window_bytes: 60_000,
        rcv_window_bytes: 100_000,
        snd_shift: shifts.0,
        rcv_shift: shifts.1,
        mss: 1448,
        sack: true,
        ecn: true,
        fin_end: None,
        timestamps: Some(SpliceTimestamps {
            value: ts.0,
            recent: ts.1,
        }),
        header,
    };
    Splice {
        flow: FlowId(7),
        legs: [
            leg(CLIENT, &headers[0], (1_000, 30), (7, 8)),
            leg(BACKEND, &headers[1], (80_000, 555), (2, 10)),
        ],
        is_again: false,
        passed_bytes: [0, 0],
        idle_ms: 0,
        life_ms: 0,
    }
}

fn headers() -> [Vec<u8>; 2] {
    [header_of(&to_client()), header_of(&to_backend())]
}

fn spliced_with(config: &Config, change: impl FnOnce(&mut Splice<'_>)) -> Stage {
    let mut stage = Stage::with(config);
    let headers = headers();
    let mut splice = splice_of(&headers);
    change(&mut splice);
    stage.tell(&Command::Splice(splice));
    stage.settle();
    stage
}

/// A splice whose first acknowledgments have left.
fn spliced() -> Stage {
    let stage = spliced_with(&small_config(), |_| {});
    assert_eq!(left(&stage).len(), 2);
    stage
}

/// A peer says this.
fn hear(stage: &mut Stage, way: &TcpTemplate, header: &Header, payload: &[u8]) {
    hear_marked(stage, way, header, payload, Ecn::NotEct);
}

fn hear_marked(stage: &mut Stage, way: &TcpTemplate, header: &Header, payload: &[u8], ecn: Ecn) {
    let mut back = TcpTemplate::new(
        way.destination_mac,
        way.source_mac,
        way.destination,
        way.source,
    );
    back.traffic_class = ecn as u8;
    let bytes = back.to_frame(header, payload);
    stage.tell(&Command::Frame { bytes: &bytes });
    stage.settle();
}

/// A segment of the client: so far behind the join, acknowledging so much.
fn of_client(flags: Flags, at: i32, acks: i32) -> Header {
    Header {
        seq: CLIENT.0.wrapping_add(at as u32),
        ack: CLIENT.1.wrapping_add(acks as u32),
        flags,
        window: 400,
        options: timestamps(31, 1_000),
        ..Header::default()
    }
}

/// The same of the backend.
fn of_backend(flags: Flags, at: i32, acks: i32) -> Header {
    Header {
        seq: BACKEND.0.wrapping_add(at as u32),
        ack: BACKEND.1.wrapping_add(acks as u32),
        flags,
        window: 20_000,
        options: timestamps(560, 80_000),
        ..Header::default()
    }
}

fn timestamps(value: u32, echo_reply: u32) -> Options {
    Options {
        timestamps: Some(Timestamps { value, echo_reply }),
        ..Options::default()
    }
}

/// What has left since the last look.
fn left(stage: &Stage) -> Vec<Packet> {
    let packets = stage.wire.take();
    packets.iter().for_each(Packet::check);
    packets
}

/// The only packet that has left, and its header.
fn one(stage: &Stage) -> (Packet, Header) {
    let [packet] = &left(stage)[..] else {
        panic!("one packet leaves");
    };
    (packet.clone(), parsed(packet))
}

fn parsed(packet: &Packet) -> Header {
    Segment::parse(&packet.header[packet.tcp_offset..])
        .expect("a TCP header")
        .header
}

/// Where a packet goes.
fn way(packet: &Packet) -> TcpTemplate {
    let mut template = TcpTemplate::parse(&packet.header).expect("a header");
    template.traffic_class = 0;
    template
}

fn pass_until_due(stage: &mut Stage) {
    let due_us = stage.worker.next_timeout_us().expect("something is due");
    stage.now_us.set(due_us.max(stage.now_us.get()));
    stage.settle();
}

/// The end of the only splice, after what the host hears before.
fn end(stage: &mut Stage) -> (SpliceEndReason, SpliceOutcome) {
    let events = stage.take_events();
    match events.last() {
        Some(Event::SpliceEnded { outcome, reason }) => (*reason, **outcome),
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_peer_hears_at_the_join_what_is_acknowledged_and_the_window_of_the_other() {
    let stage = spliced_with(&small_config(), |_| {});
    let [first, second] = &left(&stage)[..] else {
        panic!("two acknowledgments");
    };
    assert_eq!((way(first), way(second)), (to_client(), to_backend()));
    let (first, second) = (parsed(first), parsed(second));
    assert_eq!((first.seq, first.ack), (CLIENT.1, CLIENT.0));
    assert_eq!((second.seq, second.ack), (BACKEND.1, BACKEND.0));
    assert_eq!((first.window, second.window), (60_000 >> 8, 60_000 >> 10));
    assert_eq!(first.options, timestamps(1_000, 30));
    assert_eq!(second.options, timestamps(80_000, 555));
    assert_eq!(stage.worker.usage().spliced, 1);
}

/// Covers: RFC 7323 §2.3, RFC 7323 §3.2
#[test]
fn data_goes_to_the_other_peer_with_every_number_translated() {
    let mut stage = spliced();
    let data = content(1200);
    hear(&mut stage, &to_client(), &of_client(PUSH, 0, 0), &data);
    let (packet, header) = one(&stage);
    assert_eq!(way(&packet), to_backend());
    assert_eq!(packet.payload, data);
    assert_eq!((header.seq, header.ack), (BACKEND.1, BACKEND.0));
    assert_eq!(header.flags, PUSH);
    // 400 << 7 bytes, of which the backend hears as multiples of 1024.
    assert_eq!(header.window, 50);
    assert_eq!(header.options, timestamps(80_001, 555));

    hear(
        &mut stage,
        &to_backend(),
        &of_backend(PUSH, 0, 1200),
        b"yes",
    );
    let (packet, header) = one(&stage);
    assert_eq!(way(&packet), to_client());
    assert_eq!(packet.payload, b"yes");
    assert_eq!(
        (header.seq, header.ack),
        (CLIENT.1, CLIENT.0.wrapping_add(1200))
    );
    assert_eq!(header.window, (80_000u32 >> 8) as u16);
    assert_eq!(header.options, timestamps(1_005, 30));

    // Around the end of the sequence space.
    hear(&mut stage, &to_client(), &of_client(PUSH, 1200, 3), b"more");
    let (_, header) = one(&stage);
    assert_eq!((header.seq, header.ack), (BACKEND.1 + 1200, BACKEND.0 + 3));
    let counters = stage.counters();
    assert_eq!(
        (counters.spliced_bytes, counters.spliced_packets),
        (1207, 5)
    );
}

/// Covers: RFC 2018 §2, RFC 2018 §3
#[test]
fn sack_blocks_are_of_the_other_stream_and_go_only_to_a_peer_that_takes_them() {
    for takes in [true, false] {
        let mut stage = spliced_with(&small_config(), |splice| splice.legs[1].sack = takes);
        left(&stage);
        hear(
            &mut stage,
            &to_backend(),
            &of_backend(PUSH, 500, 0),
            &[1; 100],
        );
        left(&stage);
        let mut header = of_client(Flags::ACK, 0, 0);
        header.options.sack[0] = Some((CLIENT.1 + 500, CLIENT.1 + 600));
        hear(&mut stage, &to_client(), &header, &[]);
        let (_, header) = one(&stage);
        let block = takes.then_some((BACKEND.0 + 500, BACKEND.0 + 600));
        assert_eq!(header.options.sack, [block, None, None, None]);
    }
}

#[test]
fn a_payload_that_is_too_long_for_the_other_leg_is_cut() {
    let mut stage = spliced_with(&small_config(), |splice| splice.legs[1].mss = 500);
    left(&stage);
    hear(&mut stage, &to_client(), &of_client(PUSH, 0, 0), &[5; 1200]);
    assert_eq!(one(&stage).0.mss, 500);
    // SACK blocks take of it.
    hear(
        &mut stage,
        &to_backend(),
        &of_backend(PUSH, 500, 0),
        &[1; 100],
    );
    left(&stage);
    let mut header = of_client(PUSH, 1200, 0);
    header.options.sack[0] = Some((CLIENT.1 + 500, CLIENT.1 + 600));
    hear(&mut stage, &to_client(), &header, &[6; 1200]);
    assert_eq!(one(&stage).0.mss, 500 - 12);
}

/// An attacker off the path does not know which data is in flight.
///
/// Covers: RFC 5927 §4
#[test]
fn a_packet_is_too_big_only_if_the_message_quotes_data_in_flight() {
    let mut stage = spliced();
    hear(&mut stage, &to_client(), &of_client(PUSH, 0, 0), &[1; 1200]);
    hear(
        &mut stage,
        &to_client(),
        &of_client(PUSH, 1200, 0),
        &[2; 1200],
    );
    hear(
        &mut stage,
        &to_backend(),
        &of_backend(Flags::ACK, 0, 1200),
        &[],
    );
    left(&stage);
    let too_big = |stage: &mut Stage, flow: u64, leg: u8, mss: u16, at: u32| {
        let (_, snd_nxt) = [CLIENT, BACKEND][usize::from(leg)];
        stage.tell(&Command::SpliceMss {
            flow: FlowId(flow),
            leg,
            mss,
            seq: snd_nxt.wrapping_add(at),
        });
        stage.take_events()
    };
    // Acknowledged; not sent; of the other leg, where nothing is in flight; of no splice.
    for (flow, leg, at) in [
        (7, 1, 0),
        (7, 1, 1199),
        (7, 1, 2400),
        (7, 1, 1 << 31),
        (7, 0, 1200),
        (99, 1, 1200),
    ] {
        assert_eq!(
            too_big(&mut stage, flow, leg, 400, at),
            [],
            "{flow} {leg} {at}"
        );
    }
    assert_eq!(too_big(&mut stage, 7, 1, 1448, 1200), [], "no smaller");
    assert_eq!(stage.counters().splice_mss_ignored, 7);
    hear(
        &mut stage,
        &to_client(),
        &of_client(PUSH, 2400, 0),
        &[3; 1200],
    );
    assert_eq!(one(&stage).0.mss, 1448);

    let flow = FlowId(7);
    let (leg, mss) = (1, 400);
    let reduced = [Event::SpliceMssReduced { flow, leg, mss }];
    assert_eq!(too_big(&mut stage, 7, 1, 400, 2399), reduced);
    hear(
        &mut stage,
        &to_client(),
        &of_client(PUSH, 3600, 0),
        &[4; 1200],
    );
    assert_eq!(one(&stage).0.mss, 400);
}

/// A mark reaches a sender that reacts to it, or is a loss.
///
/// Covers: RFC 3168 §6.1, RFC 3168 §9.1.1
#[test]
fn ecn_goes_through_only_if_both_legs_have_it() {
    let echo = PUSH | Flags::ECE | Flags::CWR;
    for both in [true, false] {
        let mut stage = spliced_with(&small_config(), |splice| splice.legs[1].ecn = both);
        left(&stage);
        let header = of_client(echo, 0, 0);
        hear_marked(&mut stage, &to_client(), &header, b"data", Ecn::Ect0);
        let (packet, header) = one(&stage);
        let class = TcpTemplate::parse(&packet.header).unwrap().traffic_class;
        let expected = if both {
            (Ecn::Ect0, echo)
        } else {
            (Ecn::NotEct, PUSH)
        };
        assert_eq!((Ecn::of(class), header.flags), expected);
        let header = of_client(PUSH, 4, 0);
        hear_marked(&mut stage, &to_client(), &header, b"data", Ecn::Ce);
        assert_eq!(left(&stage).len(), usize::from(both));
    }
}

/// The update of the client's window is lost.
///
/// Covers: RFC 9293 §3.8.4, RFC 9293 §3.8.6.1
#[test]
fn a_probe_stays_one_below_what_the_other_peer_expects() {
    let mut stage = spliced();
    hear(
        &mut stage,
        &to_backend(),
        &of_backend(PUSH, 0, 0),
        &[1; 500],
    );
    let shut = Header {
        window: 0,
        ..of_client(Flags::ACK, 0, 500)
    };
    hear(&mut stage, &to_client(), &shut, &[]);
    left(&stage);
    for _ in 0..3 {
        let probe = of_backend(Flags::ACK, 499, 0);
        hear(&mut stage, &to_backend(), &probe, &[]);
        let (packet, header) = one(&stage);
        assert_eq!(packet.payload.len(), 0);
        assert_eq!(header.seq, CLIENT.1 + 499);
    }
    // The answer opens the window.
    let open = of_client(Flags::ACK, 0, 500);
    hear(&mut stage, &to_client(), &open, &[]);
    assert!(one(&stage).1.window > 0);
    // A probe that acknowledges more is taken at once, and the next one is answered.
    hear(&mut stage, &to_client(), &of_client(PUSH, 0, 500), &[2; 9]);
    left(&stage);
    for seq in [CLIENT.1 + 500, CLIENT.1 + 499] {
        let probe = of_backend(Flags::ACK, 499, 9);
        hear(&mut stage, &to_backend(), &probe, &[]);
        assert_eq!(one(&stage).1.seq, seq);
    }
}

/// Covers: RFC 5961 §5.2, RFC 7323 §3.2
#[test]
fn what_the_other_peer_would_not_take_is_dropped() {
    let mut stage = spliced();
    let drops = [
        // Beyond its window, and more than ours.
        of_client(PUSH, 60_001, 0),
        of_client(Flags::ACK, 100_001, 0),
        of_client(PUSH, i32::MIN, 0),
        // It acknowledges what was not sent.
        of_client(Flags::ACK, 0, 1),
        of_client(Flags::ACK, 0, i32::MIN),
        // PAWS could not look at it.
        Header {
            options: Options::default(),
            ..of_client(PUSH, 0, 0)
        },
        of_client(Flags::PSH, 0, 0),
    ];
    for header in drops {
        hear(&mut stage, &to_client(), &header, b"data");
        assert_eq!(left(&stage), [], "{header:?}");
    }
    assert_eq!(stage.counters().spliced_frames_dropped, 7);
    // A probe of a window that is shut, and an old segment, are answered by the other peer.
    for at in [60_000, -1] {
        hear(
            &mut stage,
            &to_client(),
            &of_client(Flags::ACK, at, 0),
            b"x",
        );
        let (_, header) = one(&stage);
        assert_eq!(header.seq, BACKEND.1.wrapping_add(at as u32));
    }
}

/// A client may have sent what the host took, and the backend does not: its acknowledgments come
/// from behind it, and go through.
#[test]
fn what_is_acknowledged_from_beyond_the_window_goes_through() {
    let mut stage = spliced();
    let data = content(500);
    hear(&mut stage, &to_backend(), &of_backend(PUSH, 0, 0), &data);
    left(&stage);
    let ahead = of_client(Flags::ACK, 90_000, 500);
    hear(&mut stage, &to_client(), &ahead, &[]);
    let (_, header) = one(&stage);
    assert_eq!((header.seq, header.ack), (BACKEND.1, BACKEND.0 + 500));
    // Again, as the answer to what comes again; and once more with data, which says nothing new.
    hear(&mut stage, &to_client(), &ahead, &[]);
    assert_eq!(left(&stage).len(), 1);
    hear(&mut stage, &to_client(), &ahead, b"data");
    assert_eq!(left(&stage), []);
}

#[test]
fn a_successor_knows_of_a_fin_that_was_seen_before() {
    let mut stage = spliced_with(&small_config(), |splice| {
        splice.is_again = true;
        splice.passed_bytes = [100, 0];
        splice.legs[0].fin_end = Some(CLIENT.0.wrapping_add(101));
    });
    hear(
        &mut stage,
        &to_backend(),
        &of_backend(Flags::ACK, 0, 101),
        &[],
    );
    hear(
        &mut stage,
        &to_client(),
        &of_client(Flags::ACK, 101, 0),
        &[],
    );
    let [Event::SpliceProgress { progress }] = &stage.take_events()[..] else {
        panic!("the host hears that FIN has passed");
    };
    assert_eq!(progress[0].passed_bytes, [100, 0]);
    assert_eq!(progress[0].has_finished, [true, false]);
    stage.tell(&Command::Unsplice {
        flow: FlowId(7),
        kind: UnspliceKind::Return,
    });
    assert_eq!(stage.take_events(), [], "it is half closed");
    hear(&mut stage, &to_backend(), &of_backend(FIN, 0, 101), &[]);
    hear(
        &mut stage,
        &to_client(),
        &of_client(Flags::ACK, 101, 1),
        &[],
    );
    let (reason, outcome) = end(&mut stage);
    assert_eq!(reason, SpliceEndReason::Finished);
    assert_eq!(outcome.passed_bytes, [100, 0]);
}

/// Covers: RFC 9293 §3.6
#[test]
fn both_fins_end_it() {
    let mut stage = spliced();
    hear(&mut stage, &to_client(), &of_client(FIN, 0, 0), b"bye");
    assert_eq!(one(&stage).1.flags, FIN);
    hear(
        &mut stage,
        &to_backend(),
        &of_backend(PUSH, 0, 4),
        &[9; 1000],
    );
    hear(&mut stage, &to_backend(), &of_backend(FIN, 1000, 4), &[]);
    left(&stage);
    hear(
        &mut stage,
        &to_client(),
        &of_client(Flags::ACK, 4, 1001),
        &[],
    );
    assert_eq!(one(&stage).1.ack, BACKEND.0 + 1001);
    let (reason, outcome) = end(&mut stage);
    assert_eq!(reason, SpliceEndReason::Finished);
    assert_eq!(outcome.passed_bytes, [3, 1000]);
    let [client, backend] = outcome.legs;
    assert_eq!(client.rcv_nxt, CLIENT.0.wrapping_add(4));
    assert_eq!(client.snd_nxt, CLIENT.1 + 1001);
    assert_eq!(backend.rcv_nxt, BACKEND.0 + 1001);
    assert_eq!(backend.snd_nxt, BACKEND.1 + 4);
    assert_eq!(stage.worker.next_timeout_us(), None);
    hear(
        &mut stage,
        &to_client(),
        &of_client(Flags::ACK, 4, 1001),
        &[],
    );
    assert_eq!((left(&stage), stage.counters().frames_unknown), (vec![], 1));
}

/// A guess ends nothing.
///
/// Covers: RFC 5961 §3.2
#[test]
fn a_reset_ends_it_at_the_next_sequence_number_alone() {
    let mut stage = spliced();
    hear(&mut stage, &to_client(), &of_client(PUSH, 0, 0), &[1; 100]);
    left(&stage);
    let reset = |at| Header {
        options: Options::default(),
        ..of_client(Flags::RST, at, 0)
    };
    for at in [-1, 60_001] {
        hear(&mut stage, &to_client(), &reset(at), &[]);
        assert_eq!(left(&stage), [], "out of the window");
    }
    // In the window: the backend challenges it.
    hear(&mut stage, &to_client(), &reset(50), &[]);
    assert_eq!(one(&stage).1.seq, BACKEND.1 + 50);
    hear(
        &mut stage,
        &to_backend(),
        &of_backend(Flags::ACK, 0, 100),
        &[],
    );
    assert_eq!(left(&stage).len(), 1);
    stage.now_us.set(stage.now_us.get() + 5_000_000);
    stage.settle();
    assert_eq!(stage.worker.usage().spliced, 1);

    hear(&mut stage, &to_client(), &reset(100), &[]);
    let (packet, header) = one(&stage);
    assert_eq!(way(&packet), to_backend());
    assert_eq!((header.flags, header.seq), (Flags::RST, BACKEND.1 + 100));
    pass_until_due(&mut stage);
    let (reason, outcome) = end(&mut stage);
    assert_eq!(reason, SpliceEndReason::ResetByFirst);
    assert_eq!(outcome.passed_bytes, [100, 0]);
}

#[test]
fn a_peer_that_goes_on_was_not_the_one_that_reset() {
    let mut stage = spliced();
    let reset = Header {
        options: Options::default(),
        ..of_backend(Flags::RST, 0, 0)
    };
    hear(&mut stage, &to_backend(), &reset, &[]);
    hear(&mut stage, &to_backend(), &of_backend(PUSH, 0, 0), b"data");
    stage.now_us.set(stage.now_us.get() + 5_000_000);
    stage.settle();
    assert_eq!((left(&stage).len(), stage.worker.usage().spliced), (2, 1));
    hear(
        &mut stage,
        &to_backend(),
        &Header {
            seq: BACKEND.0 + 4,
            ..reset
        },
        &[],
    );
    while stage.worker.usage().spliced > 0 {
        pass_until_due(&mut stage);
    }
    assert_eq!(end(&mut stage).0, SpliceEndReason::ResetBySecond);
}

/// Covers: RFC 5961 §4.2, RFC 5961 §7
#[test]
fn a_syn_is_challenged_and_not_too_often() {
    let mut stage = spliced();
    hear(&mut stage, &to_client(), &of_client(PUSH, 0, 0), b"data");
    hear(
        &mut stage,
        &to_backend(),
        &of_backend(Flags::ACK, 0, 4),
        &[],
    );
    left(&stage);
    let syn = of_client(Flags::SYN, 123_456_789, 0);
    hear(&mut stage, &to_client(), &syn, b"fast open");
    let (packet, header) = one(&stage);
    assert_eq!((way(&packet), packet.payload.len()), (to_client(), 0));
    assert_eq!(header.flags, Flags::ACK);
    assert_eq!(
        (header.seq, header.ack),
        (CLIENT.1, CLIENT.0.wrapping_add(4))
    );
    hear(&mut stage, &to_client(), &syn, &[]);
    assert_eq!(left(&stage), []);
    stage.now_us.set(stage.now_us.get() + 500_000);
    hear(&mut stage, &to_client(), &syn, &[]);
    assert_eq!(left(&stage).len(), 1);
}

#[test]
fn unsplice_holds_back_what_is_new_and_returns_when_the_rest_is_acknowledged() {
    let mut stage = spliced();
    hear(&mut stage, &to_client(), &of_client(PUSH, 0, 0), &[1; 100]);
    left(&stage);
    let unsplice = Command::Unsplice {
        flow: FlowId(7),
        kind: UnspliceKind::Return,
    };
    stage.tell(&unsplice);
    stage.tell(&unsplice);
    stage.settle();
    let probes = left(&stage);
    assert_eq!(probes.len(), 2);
    assert_eq!(parsed(&probes[0]).seq, CLIENT.1 - 1);

    // Half of it is known, the rest and FIN are not.
    hear(&mut stage, &to_client(), &of_client(FIN, 50, 0), &[1; 100]);
    let (packet, header) = one(&stage);
    assert_eq!((packet.payload.len(), header.flags), (50, Flags::ACK));
    hear(&mut stage, &to_client(), &of_client(PUSH, 100, 0), &[2; 10]);
    assert_eq!(left(&stage), []);
    // New data that acknowledges goes as an acknowledgment.
    hear(
        &mut stage,
        &to_backend(),
        &of_backend(PUSH, 0, 100),
        &[3; 10],
    );
    let (packet, header) = one(&stage);
    assert_eq!((packet.payload.len(), header.seq), (0, CLIENT.1));
    assert_eq!(header.ack, CLIENT.0.wrapping_add(100));

    let [Event::Unspliced { outcome }] = &stage.take_events()[..] else {
        panic!("it returns");
    };
    assert_eq!(outcome.passed_bytes, [100, 0]);
    assert_eq!(
        outcome.legs[0],
        SpliceNumbers {
            snd_nxt: CLIENT.1,
            rcv_nxt: CLIENT.0.wrapping_add(100),
            snd_window_bytes: 400 << 7,
            rcv_window_bytes: (80_000 >> 8) << 8,
            ts_value: 1_005,
            ts_recent: 31,
        }
    );
    assert_eq!(outcome.legs[1].snd_nxt, BACKEND.1 + 100);
    assert_eq!(
        (outcome.legs[1].ts_value, outcome.legs[1].ts_recent),
        (80_001, 560)
    );
    assert_eq!(stage.worker.usage().spliced, 0);
}

/// Covers: RFC 9293 §3.8.6 (MUST-34)
#[test]
fn acknowledgments_go_where_a_peer_takes_them_that_has_taken_back_window() {
    let mut stage = spliced();
    hear(&mut stage, &to_client(), &of_client(PUSH, 0, 0), &[1; 100]);
    let full = Header {
        window: 0,
        ..of_backend(PUSH, 0, 50)
    };
    hear(&mut stage, &to_backend(), &full, &[3; 10]);
    left(&stage);
    hear(
        &mut stage,
        &to_client(),
        &of_client(Flags::ACK, 100, 10),
        &[],
    );
    let (_, header) = one(&stage);
    assert_eq!(header.seq, BACKEND.1 + 50);
    assert_eq!(header.ack, BACKEND.0.wrapping_add(10));
    hear(&mut stage, &to_client(), &of_client(PUSH, 50, 10), &[1; 50]);
    assert_eq!(one(&stage).1.seq, BACKEND.1 + 50);
    let open = of_backend(Flags::ACK, 10, 100);
    hear(&mut stage, &to_backend(), &open, &[]);
    left(&stage);
    hear(
        &mut stage,
        &to_client(),
        &of_client(Flags::ACK, 100, 10),
        &[],
    );
    assert_eq!(one(&stage).1.seq, BACKEND.1 + 100);
}

#[test]
fn a_fin_that_is_lost_has_not_passed_though_acknowledgments_stand_behind_it() {
    let mut stage = spliced();
    hear(&mut stage, &to_client(), &of_client(PUSH, 0, 0), &[1; 100]);
    hear(
        &mut stage,
        &to_backend(),
        &of_backend(PUSH, 0, 100),
        &[3; 10],
    );
    hear(
        &mut stage,
        &to_client(),
        &of_client(Flags::ACK, 101, 10),
        &[],
    );
    left(&stage);
    stage.tell(&Command::Unsplice {
        flow: FlowId(7),
        kind: UnspliceKind::Return,
    });
    stage.settle();
    let [Event::Unspliced { outcome }] = &stage.take_events()[..] else {
        panic!("it returns");
    };
    assert_eq!(outcome.passed_bytes, [100, 10]);
    assert_eq!(outcome.legs[0].rcv_nxt, CLIENT.0.wrapping_add(100));
}

/// An echo that has no room for what has passed, until more of its answer is taken.
#[test]
fn unsplice_holds_back_nothing_that_a_peer_without_room_waits_for() {
    let mut stage = spliced();
    hear(&mut stage, &to_client(), &of_client(PUSH, 0, 0), &[1; 100]);
    left(&stage);
    stage.tell(&Command::Unsplice {
        flow: FlowId(7),
        kind: UnspliceKind::Return,
    });
    stage.settle();
    left(&stage);
    let full = Header {
        window: 0,
        ..of_backend(PUSH, 0, 50)
    };
    hear(&mut stage, &to_backend(), &full, &[3; 10]);
    let (packet, header) = one(&stage);
    assert_eq!((packet.payload.len(), header.window), (10, 0));
    assert_eq!(header.ack, CLIENT.0.wrapping_add(50));
    // FIN does not pass: what is closed cannot return.
    let last = Header { flags: FIN, ..full };
    hear(&mut stage, &to_backend(), &last, &[3; 10]);
    assert_eq!(one(&stage).1.flags, Flags::ACK);
    // Of the other direction, nothing new passes.
    hear(&mut stage, &to_client(), &of_client(PUSH, 100, 10), &[2; 9]);
    assert_eq!(one(&stage).0.payload.len(), 0);
    assert_eq!(stage.take_events(), []);

    hear(
        &mut stage,
        &to_backend(),
        &of_backend(PUSH, 10, 100),
        &[4; 9],
    );
    assert_eq!(one(&stage).0.payload.len(), 0);
    let [Event::Unspliced { outcome }] = &stage.take_events()[..] else {
        panic!("it returns");
    };
    assert_eq!(outcome.passed_bytes, [100, 10]);
}

#[test]
fn what_is_not_acknowledged_in_time_after_unsplice_is_reset() {
    let mut stage = spliced();
    hear(&mut stage, &to_client(), &of_client(PUSH, 0, 0), &[1; 100]);
    stage.tell(&Command::Unsplice {
        flow: FlowId(7),
        kind: UnspliceKind::Return,
    });
    stage.settle();
    left(&stage);
    let begun_us = stage.now_us.get();
    while stage.worker.usage().spliced > 0 {
        pass_until_due(&mut stage);
    }
    assert_eq!(stage.now_us.get() - begun_us, 180_000_000);
    assert_eq!(resets(&stage), (vec![0], vec![100, 0]));
    assert_eq!(end(&mut stage).0, SpliceEndReason::NotReturned);
}

#[test]
fn a_splice_of_which_a_peer_has_closed_does_not_return_and_can_be_aborted() {
    let mut stage = spliced();
    hear(&mut stage, &to_client(), &of_client(FIN, 0, 0), &[]);
    stage.tell(&Command::Unsplice {
        flow: FlowId(7),
        kind: UnspliceKind::Return,
    });
    stage.settle();
    left(&stage);
    hear(
        &mut stage,
        &to_backend(),
        &of_backend(PUSH, 0, 1),
        b"still here",
    );
    assert_eq!(one(&stage).0.payload, b"still here");
    stage.tell(&Command::Unsplice {
        flow: FlowId(7),
        kind: UnspliceKind::Abort,
    });
    stage.settle();
    assert_eq!(resets(&stage), (vec![10, 0], vec![1]));
    assert_eq!(end(&mut stage).0, SpliceEndReason::Aborted);
    // No other is meant.
    stage.tell(&Command::Unsplice {
        flow: FlowId(7),
        kind: UnspliceKind::Abort,
    });
    assert_eq!(stage.take_events(), []);
}

#[test]
fn idle_and_life_limits_reset_both() {
    let mut stage = spliced_with(&small_config(), |splice| splice.idle_ms = 3_000);
    left(&stage);
    stage.now_us.set(stage.now_us.get() + 2_000_000);
    hear(&mut stage, &to_client(), &of_client(PUSH, 0, 0), b"data");
    left(&stage);
    let begun_us = stage.now_us.get();
    while stage.worker.usage().spliced > 0 {
        pass_until_due(&mut stage);
    }
    assert_eq!(stage.now_us.get() - begun_us, 3_000_000);
    assert_eq!(resets(&stage), (vec![0], vec![4, 0]));
    assert_eq!(end(&mut stage).0, SpliceEndReason::Idle);

    let mut stage = spliced_with(&small_config(), |splice| splice.life_ms = 500);
    left(&stage);
    let begun_us = stage.now_us.get();
    while stage.worker.usage().spliced > 0 {
        hear(&mut stage, &to_client(), &of_client(Flags::ACK, 0, 0), &[]);
        left(&stage);
        pass_until_due(&mut stage);
    }
    assert_eq!(stage.now_us.get() - begun_us, 500_000);
    assert_eq!(end(&mut stage).0, SpliceEndReason::Overdue);
}

/// However fast a splice is, a successor knows of all but what it believes anyway.
#[test]
fn the_host_hears_of_each_256_mib_that_pass_within_a_second() {
    const FRAME_BYTES: usize = 48_000;
    const WANTED: u64 = 256 << 20;
    let mut stage = spliced();
    stage.worker.port().set_target(Target::new(5));
    let back = |way: TcpTemplate| {
        let (from, to) = (way.destination_mac, way.source_mac);
        TcpTemplate::new(from, to, way.destination, way.source)
    };
    let payload = vec![7; FRAME_BYTES];
    let mut reported = Vec::new();
    let mut passed = 0u64;
    while passed < 2 * WANTED + (WANTED >> 1) {
        let frame = back(to_client()).to_frame(&of_client(PUSH, passed as i32, 0), &payload);
        stage.wire.arrive(frame);
        passed += FRAME_BYTES as u64;
        let ack = of_backend(Flags::ACK, 0, passed as i32);
        stage.wire.arrive(back(to_backend()).to_frame(&ack, &[]));
        stage.settle();
        stage.wire.take();
        for event in stage.events.drain(..) {
            if let Event::SpliceProgress { progress } = event {
                reported.push(progress[0].passed_bytes[0]);
            }
        }
    }
    let whole = WANTED.next_multiple_of(FRAME_BYTES as u64);
    assert_eq!(reported, [whole, 2 * whole]);
}

#[test]
fn the_host_hears_once_a_second_what_has_passed() {
    let mut stage = spliced();
    for at in 0..10 {
        hear(
            &mut stage,
            &to_client(),
            &of_client(PUSH, at * 100, 0),
            &[1; 100],
        );
    }
    // Sent again.
    hear(&mut stage, &to_client(), &of_client(PUSH, 0, 0), &[1; 100]);
    assert_eq!(stage.take_events(), []);
    pass_until_due(&mut stage);
    let [Event::SpliceProgress { progress }] = &stage.take_events()[..] else {
        panic!("it hears");
    };
    assert_eq!((progress.len(), progress[0].passed_bytes), (1, [1000, 0]));
    assert_eq!(stage.worker.next_timeout_us(), None, "nothing more passes");
}

#[test]
fn a_successor_learns_from_frames_where_the_peers_are() {
    let far = 500_000_000;
    let mut stage = spliced_with(&small_config(), |splice| {
        splice.is_again = true;
        splice.passed_bytes = [1000, 2000];
    });
    assert_eq!(
        left(&stage),
        [],
        "nothing is known that is worth being said"
    );
    hear(
        &mut stage,
        &to_client(),
        &of_client(PUSH, far, far),
        &[1; 100],
    );
    let (packet, header) = one(&stage);
    assert_eq!(packet.payload.len(), 100);
    assert_eq!(header.seq, BACKEND.1.wrapping_add(far as u32));
    hear(
        &mut stage,
        &to_backend(),
        &of_backend(PUSH, far, far + 100),
        &[2; 50],
    );
    left(&stage);
    // From here on it is known what the backend takes.
    hear(
        &mut stage,
        &to_client(),
        &of_client(PUSH, far + 80_101, far),
        &[],
    );
    assert_eq!(left(&stage), []);
    hear(
        &mut stage,
        &to_client(),
        &of_client(PUSH, far + 100, far + 50),
        b"x",
    );
    assert_eq!(left(&stage).len(), 1);
    stage.tell(&Command::Unsplice {
        flow: FlowId(7),
        kind: UnspliceKind::Return,
    });
    hear(
        &mut stage,
        &to_backend(),
        &of_backend(Flags::ACK, far + 50, far + 101),
        &[],
    );
    let Some(Event::Unspliced { outcome }) = stage.take_events().pop() else {
        panic!("it returns");
    };
    assert_eq!(outcome.passed_bytes, [far as u64 + 101, far as u64 + 50]);
}

#[test]
fn a_successor_that_has_heard_nothing_does_not_know_where_to_return_to() {
    let mut stage = spliced_with(&small_config(), |splice| splice.is_again = true);
    stage.tell(&Command::Unsplice {
        flow: FlowId(7),
        kind: UnspliceKind::Return,
    });
    stage.settle();
    assert_eq!(left(&stage).len(), 2, "it asks");
    assert_eq!(stage.take_events(), []);
    hear(&mut stage, &to_client(), &of_client(Flags::ACK, 9, 5), &[]);
    assert_eq!(stage.take_events(), []);
    hear(
        &mut stage,
        &to_backend(),
        &of_backend(Flags::ACK, 5, 9),
        &[],
    );
    let [Event::Unspliced { outcome }] = &stage.take_events()[..] else {
        panic!("it returns");
    };
    assert_eq!(outcome.legs[0].snd_nxt, CLIENT.1 + 5);
    assert_eq!(outcome.legs[1].snd_nxt, BACKEND.1 + 9);
}

#[test]
fn a_full_table_bad_headers_and_taken_addresses_are_refused() {
    let config = Config {
        spliced_max: 1,
        ..small_config()
    };
    let mut stage = spliced_with(&config, |_| {});
    let headers = headers();
    let refused = |stage: &mut Stage, splice: Splice<'_>| {
        stage.tell(&Command::Splice(splice));
        match stage.take_events().pop() {
            Some(Event::SpliceRefused { flow, reason }) => Some((flow.0, reason)),
            None => None,
            other => panic!("{other:?}"),
        }
    };
    let mut other = splice_of(&headers);
    assert_eq!(refused(&mut stage, other), None, "it has it");
    other.flow = FlowId(8);
    let in_use = Some((8, SpliceRefusal::AddressesInUse));
    assert_eq!(refused(&mut stage, other), in_use);
    let elsewhere = TcpTemplate {
        destination: "10.77.0.1:4001".parse().unwrap(),
        ..to_client()
    };
    let elsewhere = header_of(&elsewhere);
    other.legs[0].header = &elsewhere;
    assert_eq!(refused(&mut stage, other), in_use, "one leg is enough");
    other.legs[1].header = &elsewhere;
    assert_eq!(refused(&mut stage, other), in_use, "both are the same");
    let further = TcpTemplate {
        destination: "10.77.0.1:4002".parse().unwrap(),
        ..to_client()
    };
    let further = header_of(&further);
    other.legs[1].header = &further;
    assert_eq!(refused(&mut stage, other), Some((8, SpliceRefusal::Full)));
    other.legs[1].header = &further[1..];
    assert_eq!(
        refused(&mut stage, other),
        Some((8, SpliceRefusal::BadHeader))
    );
    assert_eq!(stage.counters().splices_refused, 5);
}

#[test]
fn what_a_busy_port_does_not_take_waits_in_order() {
    let mut stage = spliced();
    stage.wire.close(true);
    for at in 0..3 {
        hear(
            &mut stage,
            &to_client(),
            &of_client(PUSH, at * 4, 0),
            b"data",
        );
    }
    assert_eq!(left(&stage), []);
    assert_eq!(stage.worker.prepare_sleep(), Sleep::Briefly);
    stage.worker.finish_sleep();
    stage.wire.close(false);
    stage.settle();
    let at = |packet: &Packet| packet.seq().wrapping_sub(BACKEND.1);
    let ats = left(&stage).iter().map(at).collect::<Vec<_>>();
    assert_eq!(ats, [0, 4, 8]);

    stage.wire.close(true);
    for _ in 0..1100 {
        hear(&mut stage, &to_client(), &of_client(PUSH, 12, 0), b"data");
    }
    stage.wire.close(false);
    stage.settle();
    assert_eq!(left(&stage).len(), 1024, "as many as may wait");
    let drops = stage.counters().port_drops;
    stage.wire.answer([Answer::Drop, Answer::Fail]);
    for _ in 0..3 {
        hear(&mut stage, &to_client(), &of_client(PUSH, 12, 0), b"data");
    }
    assert_eq!(left(&stage).len(), 1);
    let counters = stage.counters();
    assert_eq!(
        (counters.port_drops - drops, counters.port_failures),
        (1, 1)
    );
}

const SECOND_US: u64 = 1_000_000;

/// What has left after so long, by its sequence number at the client and at the backend.
fn asked_after(stage: &mut Stage, us: u64) -> [Option<u32>; 2] {
    stage.now_us.set(stage.now_us.get() + us);
    stage.settle();
    let packets = left(stage);
    let port = |packet: &Packet| packet.flow().0;
    [to_client(), to_backend()].map(|way| {
        let to = u64::from(way.destination.port());
        let mut asked = packets.iter().filter(|packet| port(packet) == to);
        asked.next().map(|packet| packet.seq())
    })
}

#[test]
fn a_successor_asks_peers_that_are_silent() {
    let mut stage = spliced_with(&small_config(), |splice| splice.is_again = true);
    let asked = [CLIENT.1, BACKEND.1].map(|snd_nxt| Some(snd_nxt.wrapping_sub(1)));
    assert_eq!(asked_after(&mut stage, SECOND_US - 1), [None, None]);
    assert_eq!(asked_after(&mut stage, 1), asked, "an old segment");
    // What has been heard of one goes to the other, and it is asked no more.
    hear(&mut stage, &to_client(), &of_client(Flags::ACK, 9, 5), &[]);
    assert_eq!(left(&stage).len(), 1);
    assert_eq!(asked_after(&mut stage, 2 * SECOND_US - 1), [None, None]);
    let [of_client, of_backend] = asked_after(&mut stage, 1);
    assert_eq!((of_client, of_backend.is_some()), (None, true));
    for seconds in [4, 8, 16, 32, 64, 64, 64] {
        let us = seconds * SECOND_US;
        assert_eq!(asked_after(&mut stage, us - 1), [None, None]);
        assert!(asked_after(&mut stage, 1)[1].is_some(), "{seconds} s");
    }
    hear(
        &mut stage,
        &to_backend(),
        &self::of_backend(Flags::ACK, 5, 9),
        &[],
    );
    left(&stage);
    assert_eq!(asked_after(&mut stage, 1000 * SECOND_US), [None, None]);
}

/// It answers with what the probe acknowledges (RFC 9293 §3.10.7.1).
#[test]
fn a_peer_that_is_gone_ends_the_splice_of_a_successor() {
    let mut stage = spliced_with(&small_config(), |splice| splice.is_again = true);
    asked_after(&mut stage, SECOND_US);
    let reset = Header {
        flags: Flags::RST,
        ..of_client(Flags::ACK, 0, 0)
    };
    hear(&mut stage, &to_client(), &reset, &[]);
    assert_eq!(left(&stage).len(), 1, "the other peer hears it");
    asked_after(&mut stage, 60 * SECOND_US);
    assert_eq!(end(&mut stage).0, SpliceEndReason::ResetByFirst);
}

/// The last acknowledgment has gone through, and the report of it has not.
#[test]
fn peers_that_have_closed_end_the_splice_of_a_successor_in_order() {
    let mut stage = spliced_with(&small_config(), |splice| {
        splice.is_again = true;
        splice.passed_bytes = [100, 50];
        splice.legs[0].fin_end = Some(CLIENT.0.wrapping_add(101));
        splice.legs[1].fin_end = Some(BACKEND.0.wrapping_add(51));
    });
    asked_after(&mut stage, SECOND_US);
    // The client is in TIME-WAIT, and the backend's connection is gone.
    hear(
        &mut stage,
        &to_client(),
        &of_client(Flags::ACK, 101, 51),
        &[],
    );
    assert_eq!(left(&stage).len(), 1);
    let reset = Header {
        flags: Flags::RST,
        ..of_backend(Flags::ACK, 51, 0)
    };
    hear(&mut stage, &to_backend(), &reset, &[]);
    asked_after(&mut stage, 60 * SECOND_US);
    let (reason, outcome) = end(&mut stage);
    assert_eq!(reason, SpliceEndReason::Finished);
    assert_eq!(outcome.passed_bytes, [100, 50]);
}

/// Where a RST that leaves stands: for the client, or for the backend, so far behind the join.
fn resets(stage: &Stage) -> (Vec<u32>, Vec<u32>) {
    let (mut to_client, mut to_backend) = (Vec::new(), Vec::new());
    for packet in left(stage) {
        assert_eq!(packet.flags(), Flags::RST | Flags::ACK);
        match packet.flow().0 {
            4000 => to_client.push(packet.seq().wrapping_sub(CLIENT.1)),
            _ => to_backend.push(packet.seq().wrapping_sub(BACKEND.1)),
        }
    }
    (to_client, to_backend)
}

#[test]
fn resets_stand_behind_what_has_passed_and_where_acknowledgments_have_stopped() {
    let end: [fn(&mut Stage); 2] = [
        |stage| {
            stage.lose_host();
        },
        |stage| {
            stage.tell(&Command::Unsplice {
                flow: FlowId(7),
                kind: UnspliceKind::Abort,
            });
            stage.settle();
        },
    ];
    for end in end {
        let mut stage = spliced();
        hear(&mut stage, &to_client(), &of_client(PUSH, 0, 0), &[1; 300]);
        hear(
            &mut stage,
            &to_backend(),
            &of_backend(PUSH, 0, 100),
            &[2; 1000],
        );
        left(&stage);
        end(&mut stage);
        assert_eq!(resets(&stage), (vec![1000, 0], vec![300, 100]));
    }
}
