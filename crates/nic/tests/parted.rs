//! Connections that the host has parted with: what leaves for them, and what the host hears.

mod support;

use contract::limits::PART_ENDS_MAX;
use contract::parting::{
    Part, PartEnd, PartEndReason, PartLimits, PartRefusal, PartStage, PartTimestamps,
};
use contract::{Command, Event, FlowId};
use fakes::recording_port::Answer;
use nic::{Config, Sleep};
use support::{Stage, content, departed, range, small_config};
use wire::frame::TcpTemplate;
use wire::tcp::{Flags, Header, Options, Timestamps};

const FIN_SEQ: u32 = 5000;
const RCV_NXT: u32 = 900;

/// The way to the client of a flow.
fn template(flow: u64) -> TcpTemplate {
    TcpTemplate::new(
        [2, 0, 0, 0, 0, 2],
        [2, 0, 0, 0, 0, 1],
        "10.77.0.2:80".parse().unwrap(),
        format!("10.77.0.1:{flow}").parse().unwrap(),
    )
}

fn header_of(flow: u64) -> Vec<u8> {
    let mut buffer = [0; wire::frame::HEADER_BYTES_MAX];
    let template = template(flow);
    let len = template.write(&Header::default(), &mut buffer).unwrap();
    buffer[..len].to_vec()
}

fn part(flow: u64, stage: PartStage, header: &[u8]) -> Part<'_> {
    Part {
        flow: FlowId(flow),
        issued_us: 1_000_000,
        stage,
        owes_ack: false,
        fin_seq: FIN_SEQ,
        rcv_nxt: RCV_NXT,
        rcv_window_bytes: 1000,
        rcv_shift: 0,
        snd_window_bytes: 1000,
        snd_window_bytes_max: 1000,
        snd_shift: 0,
        mss: 1460,
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
        header,
    }
}

fn part_with(stage: &mut Stage, flow: u64, at: PartStage) {
    let header = header_of(flow);
    stage.tell(&Command::Part(part(flow, at, &header)));
    stage.settle();
}

/// The client of a flow says this.
fn hear(stage: &mut Stage, flow: u64, flags: Flags, seq: u32, ack: u32, payload: &[u8]) {
    let header = Header {
        seq,
        ack,
        flags: flags | Flags::ACK,
        window: 1000,
        ..Header::default()
    };
    hear_header(stage, flow, &header, payload);
}

fn hear_header(stage: &mut Stage, flow: u64, header: &Header, payload: &[u8]) {
    let way = template(flow);
    let back = TcpTemplate::new(
        way.destination_mac,
        way.source_mac,
        way.destination,
        way.source,
    );
    let bytes = back.to_frame(header, payload);
    stage.tell(&Command::Frame { bytes: &bytes });
    stage.settle();
}

/// Flags, sequence number and acknowledgment of what has left since the last look.
fn left(stage: &Stage) -> Vec<(Flags, u32, u32)> {
    let packets = stage.wire.take();
    let ack = |packet: &fakes::recording_port::Packet| {
        let at = packet.tcp_offset + 8;
        u32::from_be_bytes(*packet.header[at..].first_chunk().unwrap())
    };
    let of = |packet| {
        let packet: &fakes::recording_port::Packet = packet;
        packet.check();
        (packet.flags(), packet.seq(), ack(packet))
    };
    packets.iter().map(of).collect()
}

fn pass_until_due(stage: &mut Stage) {
    let due_us = stage.worker.next_timeout_us().expect("something is due");
    stage.now_us.set(due_us.max(stage.now_us.get()));
    stage.settle();
}

fn ends(events: &[Event]) -> Vec<(u64, PartEndReason)> {
    let ends = events.iter().filter_map(|event| match event {
        Event::PartEnded { ends } => Some(ends.iter()),
        _ => None,
    });
    ends.flatten()
        .map(|PartEnd { flow, reason }| (flow.0, *reason))
        .collect()
}

const FIN: Flags = Flags(Flags::FIN.0 | Flags::ACK.0);

#[test]
fn last_ack_ends_with_the_acknowledgment_of_fin() {
    let mut stage = Stage::new();
    part_with(&mut stage, 7, PartStage::LastAck);
    assert_eq!(left(&stage), [(FIN, FIN_SEQ, RCV_NXT)]);
    assert_eq!(stage.worker.usage().parted, 1);

    hear(&mut stage, 7, Flags::ACK, RCV_NXT, FIN_SEQ + 1, &[]);
    let events = stage.take_events();
    assert_eq!(ends(&events), [(7, PartEndReason::Finished)]);
    assert_eq!(left(&stage), []);
    assert_eq!(stage.worker.usage().parted, 0);
    assert_eq!(stage.worker.next_timeout_us(), None);
}

#[test]
fn fin_goes_again_until_it_is_given_up() {
    let mut stage = Stage::new();
    part_with(&mut stage, 7, PartStage::FinWait1);
    let begun_us = stage.now_us.get();
    let mut at_ms = vec![];
    while stage.worker.usage().parted > 0 {
        assert_eq!(left(&stage), [(FIN, FIN_SEQ, RCV_NXT)]);
        pass_until_due(&mut stage);
        at_ms.push((stage.now_us.get() - begun_us) / 1000);
    }
    assert_eq!(at_ms, [1000, 3000, 7000, 15_000]);
    let events = stage.take_events();
    assert_eq!(ends(&events), [(7, PartEndReason::TimedOut)]);
}

#[test]
fn time_wait_is_kept_and_answers() {
    let mut stage = Stage::new();
    part_with(&mut stage, 7, PartStage::FinWait2);
    assert_eq!(left(&stage), []);
    for _ in 0..2 {
        hear(&mut stage, 7, Flags::FIN, RCV_NXT, FIN_SEQ + 1, &[]);
        assert_eq!(left(&stage), [(Flags::ACK, FIN_SEQ + 1, RCV_NXT + 1)]);
    }
    // In the window, and without ACK.
    let header = Header {
        seq: RCV_NXT + 1,
        flags: Flags::FIN,
        window: 1000,
        ..Header::default()
    };
    hear_header(&mut stage, 7, &header, &[]);
    assert_eq!(left(&stage), []);
    assert_eq!(stage.worker.usage().parted_time_waits, 1);
    assert_eq!(ends(&stage.take_events()), []);
    let begun_us = stage.now_us.get();
    pass_until_due(&mut stage);
    assert_eq!(stage.now_us.get() - begun_us, 60_000_000);
    assert_eq!(ends(&stage.take_events()), [(7, PartEndReason::Finished)]);
}

#[test]
fn simultaneous_close_goes_through_closing() {
    let mut stage = Stage::new();
    part_with(&mut stage, 7, PartStage::FinWait1);
    hear(&mut stage, 7, Flags::FIN, RCV_NXT, FIN_SEQ, &[]);
    assert_eq!(
        left(&stage),
        [
            (FIN, FIN_SEQ, RCV_NXT),
            (Flags::ACK, FIN_SEQ + 1, RCV_NXT + 1)
        ]
    );
    hear(&mut stage, 7, Flags::ACK, RCV_NXT + 1, FIN_SEQ + 1, &[]);
    assert_eq!(stage.worker.usage().parted_time_waits, 1);
}

#[test]
fn data_after_close_is_reset() {
    let mut stage = Stage::new();
    part_with(&mut stage, 7, PartStage::FinWait2);
    hear(&mut stage, 7, Flags::PSH, RCV_NXT, FIN_SEQ + 1, b"more");
    let reset = Flags::RST | Flags::ACK;
    assert_eq!(left(&stage), [(reset, FIN_SEQ + 1, RCV_NXT)]);
    assert_eq!(ends(&stage.take_events()), [(7, PartEndReason::Aborted)]);
}

/// A guess ends nothing.
///
/// Covers: RFC 5961 §3.2
#[test]
fn a_reset_ends_it_at_the_next_sequence_number_alone() {
    let mut stage = Stage::new();
    part_with(&mut stage, 7, PartStage::FinWait2);
    hear(&mut stage, 7, Flags::RST, RCV_NXT + 1, 0, &[]);
    hear(&mut stage, 7, Flags::SYN, RCV_NXT + 500, 0, &[]);
    hear(&mut stage, 7, Flags::RST, RCV_NXT + 5000, 0, &[]);
    assert_eq!(left(&stage), [(Flags::ACK, FIN_SEQ + 1, RCV_NXT); 2]);
    hear(&mut stage, 7, Flags::RST, RCV_NXT, 0, &[]);
    assert_eq!(ends(&stage.take_events()), [(7, PartEndReason::Reset)]);
}

/// The host gets the SYN, and has heard before that the connection is over.
///
/// Covers: RFC 6191 §2
#[test]
fn a_syn_that_may_take_the_place_of_time_wait_is_handed_up() {
    let mut stage = Stage::new();
    part_with(&mut stage, 7, PartStage::FinWait2);
    hear(&mut stage, 7, Flags::FIN, RCV_NXT, FIN_SEQ + 1, &[]);
    left(&stage);
    let syn = |seq| Header {
        seq,
        flags: Flags::SYN,
        window: 1000,
        ..Header::default()
    };
    hear_header(&mut stage, 7, &syn(RCV_NXT - 10), &[]);
    assert_eq!(left(&stage), [(Flags::ACK, FIN_SEQ + 1, RCV_NXT + 1)]);
    assert_eq!(stage.take_events(), []);
    hear_header(&mut stage, 7, &syn(RCV_NXT + 100_000), &[]);
    let events = stage.take_events();
    assert_eq!(ends(&events), [(7, PartEndReason::Replaced)]);
    let [Event::PartEnded { .. }, Event::Frame { bytes }] = &events[..] else {
        panic!("{events:?}");
    };
    let packet = wire::frame::parse_segment(bytes, false).unwrap();
    assert_eq!(packet.segment.header.seq, RCV_NXT + 100_000);
    assert_eq!((left(&stage), stage.worker.usage().parted), (vec![], 0));
}

#[test]
fn timestamps_go_on_by_the_clock_of_the_worker() {
    let mut stage = Stage::new();
    let header = header_of(7);
    // The worker's clock is half a second further, or that of another machine.
    stage.now_us.set(1_500_700);
    stage.tell(&Command::Part(Part {
        timestamps: Some(PartTimestamps {
            value: 80_000,
            recent: 33,
        }),
        ..part(7, PartStage::LastAck, &header)
    }));
    stage.settle();
    let [fin] = &stage.wire.take()[..] else {
        panic!("a FIN");
    };
    assert_eq!(fin.timestamp(), 80_500);
    let old = Header {
        seq: RCV_NXT,
        ack: FIN_SEQ + 1,
        flags: Flags::ACK,
        options: Options {
            timestamps: Some(Timestamps {
                value: 32,
                echo_reply: 80_500,
            }),
            ..Options::default()
        },
        ..Header::default()
    };
    hear_header(&mut stage, 7, &old, &[]);
    assert_eq!(ends(&stage.take_events()), [], "PAWS");
}

#[test]
fn part_again_changes_nothing_and_partgone_ends_it_silently() {
    let mut stage = Stage::new();
    part_with(&mut stage, 7, PartStage::FinWait1);
    part_with(&mut stage, 7, PartStage::FinWait1);
    assert_eq!(left(&stage).len(), 1);
    stage.tell(&Command::PartGone { flow: FlowId(7) });
    stage.tell(&Command::PartGone { flow: FlowId(8) });
    assert_eq!(stage.take_events(), []);
    assert_eq!(stage.worker.usage().parted, 0);
    assert_eq!(stage.worker.next_timeout_us(), None);
    hear(&mut stage, 7, Flags::ACK, RCV_NXT, FIN_SEQ + 1, &[]);
    assert_eq!((stage.take_events(), left(&stage)), (vec![], vec![]));
    assert_eq!(stage.counters().frames_unknown, 1);
    // The host may part with it again.
    part_with(&mut stage, 7, PartStage::FinWait1);
    assert_eq!(left(&stage).len(), 1);
}

#[test]
fn what_cannot_be_taken_is_refused() {
    let config = Config {
        parted_max: 3,
        parted_open_max: 2,
        ..small_config()
    };
    let mut stage = Stage::with(&config);
    part_with(&mut stage, 1, PartStage::FinWait2);
    let header = header_of(1);
    stage.tell(&Command::Part(part(2, PartStage::FinWait1, &header)));
    stage.tell(&Command::Part(part(3, PartStage::FinWait1, b"no header")));
    part_with(&mut stage, 4, PartStage::FinWait2);
    part_with(&mut stage, 5, PartStage::FinWait2);
    let refused = |flow, reason| Event::PartRefused {
        flow: FlowId(flow),
        reason,
    };
    assert_eq!(
        stage.take_events(),
        [
            refused(2, PartRefusal::AddressesInUse),
            refused(3, PartRefusal::BadHeader),
            refused(5, PartRefusal::Full),
        ]
    );
    // One in TIME-WAIT takes less, and there may be more of these.
    for flow in [1, 4] {
        hear(&mut stage, flow, Flags::FIN, RCV_NXT, FIN_SEQ + 1, &[]);
    }
    part_with(&mut stage, 5, PartStage::FinWait2);
    assert_eq!(stage.take_events(), []);
    part_with(&mut stage, 6, PartStage::FinWait2);
    assert_eq!(stage.take_events(), [refused(6, PartRefusal::Full)]);
    assert_eq!(stage.counters().parts_refused, 4);
}

#[test]
fn packets_wait_for_a_port_that_is_busy() {
    let mut stage = Stage::new();
    stage.wire.close(true);
    part_with(&mut stage, 7, PartStage::LastAck);
    assert_eq!(left(&stage), []);
    // The recording port has no descriptor that would wake the worker.
    assert_eq!(stage.worker.prepare_sleep(), Sleep::Briefly);
    stage.worker.finish_sleep();
    stage.wire.close(false);
    stage.settle();
    assert_eq!(left(&stage), [(FIN, FIN_SEQ, RCV_NXT)]);
    assert_eq!(stage.counters().parted_packets, 1);
    stage.wire.answer([Answer::Drop]);
    pass_until_due(&mut stage);
    assert_eq!(stage.counters().port_drops, 1);
}

#[test]
fn ends_come_in_batches_and_wait_for_room() {
    let mut stage = Stage::new();
    let count = 5000u64;
    for flow in 1..=count {
        part_with(&mut stage, flow, PartStage::FinWait2);
    }
    let due_us = stage.worker.next_timeout_us().unwrap();
    stage.now_us.set(due_us + 1_000_000);
    let events = stage.take_events();
    let ended = ends(&events);
    let flows: Vec<u64> = ended.iter().map(|(flow, _)| *flow).collect();
    assert_eq!(flows, (1..=count).collect::<Vec<_>>());
    let least = count as usize / PART_ENDS_MAX;
    assert!(
        (least..2 * least).contains(&events.len()),
        "{}",
        events.len()
    );
    assert_eq!(stage.worker.usage(), Stage::new().worker.usage());
}

#[test]
fn sends_go_on_beside() {
    let mut stage = Stage::new();
    stage.disk.put(b"a", content(100_000));
    stage.open(1, b"a");
    part_with(&mut stage, 9, PartStage::FinWait1);
    let send = stage.send(7, 0, [range(1, 0, 100_000)]);
    assert_eq!(departed(&stage.take_events()), [send]);
    assert_eq!(stage.wire.packets()[0].flags(), FIN);
    stage.acked(7, 100_000, true);
    stage.settle();
    assert_eq!(stage.worker.usage().parted, 1);
    // The end of a flow's SENDs is not the end of what was parted with under its name.
    stage.acked(9, 0, true);
    stage.settle();
    assert_eq!(stage.worker.usage().parted, 1);
}

/// Each gets the end that it still needs: a FIN that is not acknowledged goes once more, and a peer
/// that goes on is reset.
#[test]
fn without_a_host_process_fin_goes_once_more_and_a_peer_that_goes_on_is_reset() {
    let stages = [
        (PartStage::FinWait1, vec![(FIN, FIN_SEQ, RCV_NXT)]),
        (PartStage::LastAck, vec![(FIN, FIN_SEQ, RCV_NXT)]),
        (
            PartStage::FinWait2,
            vec![(Flags::RST | Flags::ACK, FIN_SEQ + 1, RCV_NXT)],
        ),
    ];
    for (at, wanted) in stages {
        let mut stage = Stage::new();
        part_with(&mut stage, 7, at);
        left(&stage);
        assert_eq!(stage.lose_host(), 1);
        assert_eq!(left(&stage), wanted, "{at:?}");
    }
    let mut stage = Stage::new();
    part_with(&mut stage, 7, PartStage::FinWait2);
    hear(&mut stage, 7, Flags::FIN, RCV_NXT, FIN_SEQ + 1, &[]);
    left(&stage);
    stage.lose_host();
    assert_eq!(left(&stage), [], "TIME-WAIT: both have closed");
}
