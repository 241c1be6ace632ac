//! The host process has died: how the worker ends its connections.

mod support;

use contract::{Command, FlowId, Segment};
use fakes::recording_port::FIRST_SEQ;
use nic::Config;
use support::quic::packets;
use support::{Stage, content, header, header_v6, range, small_config};
use wire::tcp::Flags;

const RESET: Flags = Flags(Flags::RST.0 | Flags::ACK.0);

/// Larger than a superpacket.
const FILE_BYTES: usize = 200_000;

fn stage_with_file() -> Stage {
    let mut stage = Stage::new();
    stage.disk.put(b"a", content(FILE_BYTES));
    stage.open(1, b"a");
    stage
}

/// What has been sent does not count.
fn forget_sent(stage: &mut Stage) {
    stage.settle();
    stage.wire.take();
    stage.wire.take_datagrams();
}

/// Flow, flags and sequence number of the packets that have left.
fn left(stage: &Stage) -> Vec<(u64, Flags, u32)> {
    let packets = stage.wire.take();
    let of = |packet: fakes::recording_port::Packet| {
        packet.check();
        assert!(packet.payload.is_empty());
        (packet.flow().0, packet.flags(), packet.seq())
    };
    packets.into_iter().map(of).collect()
}

fn at(stream_offset: usize) -> u32 {
    FIRST_SEQ.wrapping_add(stream_offset as u32)
}

#[test]
fn a_reset_stands_behind_all_that_has_departed_and_one_where_acknowledgments_have_stopped() {
    let mut stage = stage_with_file();
    stage.send(5, 0, [range(1, 0, 20_000)]);
    let header = header_v6(6, 0, Flags::ACK, 1);
    stage.send_with(6, 0, &header, [range(1, 0, 30_000)].into());
    stage.acked(5, 8_000, false);
    forget_sent(&mut stage);
    assert_eq!(stage.lose_host(), 2);
    let mut resets = left(&stage);
    resets.sort_by_key(|reset| (reset.0, std::cmp::Reverse(reset.2.wrapping_sub(FIRST_SEQ))));
    let wanted = [
        (5, RESET, at(20_000)),
        (5, RESET, at(8_000)),
        (6, RESET, at(30_000)),
        (6, RESET, at(0)),
    ];
    assert_eq!(resets, wanted);
    assert_eq!(stage.counters().orphans_reset, 2);
}

#[test]
fn a_retransmission_moves_no_reset() {
    let mut stage = stage_with_file();
    stage.send(5, 0, [range(1, 0, 20_000)]);
    stage.send(5, 1448, [range(1, 1448, 1448)]);
    forget_sent(&mut stage);
    assert_eq!(stage.lose_host(), 1);
    assert_eq!(left(&stage)[0], (5, RESET, at(20_000)));
}

#[test]
fn a_reset_stands_behind_the_superpacket_that_has_departed_of_a_send() {
    let mut stage = stage_with_file();
    stage.send(5, 0, [range(1, 0, 10_000)]);
    forget_sent(&mut stage);
    stage.worker.port().close_after(1);
    let fin = header(5, 10_000, Flags::ACK | Flags::FIN, 1);
    stage.send_with(5, 10_000, &fin, [range(1, 10_000, 150_000)].into());
    stage.settle();
    let departed: usize = stage.wire.take().iter().map(|it| it.payload.len()).sum();
    assert!((1..150_000).contains(&departed));
    stage.wire.close(false);
    assert_eq!(stage.lose_host(), 1);
    let wanted = [(5, RESET, at(10_000 + departed)), (5, RESET, at(0))];
    assert_eq!(left(&stage), wanted, "FIN has not departed");
}

#[test]
fn a_reset_stands_behind_fin() {
    let mut stage = stage_with_file();
    let fin = header(5, 0, Flags::ACK | Flags::FIN, 1);
    stage.send_with(5, 0, &fin, [range(1, 0, 1000)].into());
    stage.settle();
    stage.acked(5, 1000, false);
    forget_sent(&mut stage);
    stage.lose_host();
    let wanted = [(5, RESET, at(1001)), (5, RESET, at(1000))];
    assert_eq!(left(&stage), wanted);
}

/// A client whose window is full waits, with everything acknowledged.
#[test]
fn a_flow_of_which_all_is_acknowledged_is_reset_as_well() {
    let mut stage = stage_with_file();
    for flow in [5, 6] {
        stage.send(flow, 0, [range(1, 0, 20_000)]);
        stage.settle();
        stage.acked(flow, 20_000, false);
    }
    stage.acked(6, 20_000, true);
    forget_sent(&mut stage);
    let usage = stage.worker.usage();
    assert_eq!((usage.flows, usage.flows_idle), (0, 1));
    assert_eq!(stage.lose_host(), 1);
    assert_eq!(left(&stage), [(5, RESET, at(20_000))]);
    assert_eq!(stage.worker.usage().flows_idle, 0);
}

/// The host sends short responses itself; ACKD covers them.
#[test]
fn a_reset_stands_behind_what_the_host_has_sent_after_the_worker() {
    let mut stage = stage_with_file();
    for flow in [5, 6] {
        stage.send(flow, 0, [range(1, 0, 1000)]);
        stage.settle();
    }
    stage.acked(5, 5000, false);
    // Idle already.
    stage.acked(6, 1000, false);
    stage.acked(6, 5000, false);
    forget_sent(&mut stage);
    assert_eq!(stage.lose_host(), 2);
    let resets = left(&stage);
    for flow in [5, 6] {
        assert!(resets.contains(&(flow, RESET, at(5000))), "{resets:?}");
    }
}

#[test]
fn an_idle_flow_goes_on_where_it_was() {
    let mut stage = stage_with_file();
    stage.send(5, 0, [range(1, 0, 20_000)]);
    stage.settle();
    stage.acked(5, 20_000, false);
    stage.acked_offset = 20_000;
    // A retransmission of what the peer has acknowledged meanwhile.
    stage.send(5, 10_000, [range(1, 10_000, 10_000)]);
    forget_sent(&mut stage);
    assert_eq!(stage.lose_host(), 1);
    assert_eq!(left(&stage), [(5, RESET, at(20_000))]);
}

#[test]
fn what_the_host_has_said_last_counts_as_far_as_it_is_the_end_of_flows() {
    let mut stage = stage_with_file();
    stage.send(5, 0, [range(1, 0, 1000)]);
    stage.send(6, 0, [range(1, 0, 1000)]);
    forget_sent(&mut stage);
    // The worker has not read these yet.
    stage.send(5, 1000, [range(1, 1000, 1000)]);
    stage.send(7, 0, [Segment::Inline(b"new")]);
    stage.acked(6, 1000, true);
    assert_eq!(stage.lose_host(), 1);
    let wanted = [(5, RESET, at(1000)), (5, RESET, at(0))];
    assert_eq!(left(&stage), wanted);
}

#[test]
fn idle_flows_are_bounded() {
    let mut stage = Stage::with(&Config {
        flows_max: 3,
        ..small_config()
    });
    for flow in 1..=8 {
        stage.send(flow, 0, [Segment::Inline(b"all of it")]);
        stage.settle();
        stage.acked(flow, 9, false);
    }
    assert_eq!(stage.take_events().len(), 8, "no SEND is refused for them");
    assert_eq!(stage.worker.usage().flows_idle, 3);
}

#[test]
fn connections_end_in_turns_as_the_port_takes_them() {
    let mut stage = stage_with_file();
    for flow in 1..=100 {
        stage.send(flow, 0, [range(1, 0, 1000)]);
    }
    forget_sent(&mut stage);
    let now_us = stage.now_us.get();
    assert_eq!(stage.worker.orphan_all(&|| now_us), 100);
    assert!(stage.worker.end_orphans(30, &|| now_us));
    assert_eq!(left(&stage).len(), 60);
    stage.wire.close(true);
    for _ in 0..3 {
        assert!(stage.worker.end_orphans(30, &|| now_us));
    }
    assert_eq!(left(&stage).len(), 0);
    stage.wire.close(false);
    while stage.worker.end_orphans(30, &|| now_us) {}
    assert_eq!(left(&stage).len(), 140);
    assert_eq!(stage.counters().orphans_reset, 100);
}

#[test]
fn packets_are_repeated_in_turns_as_well() {
    const FLOWS: usize = 1000;
    let mut stage = Stage::with(&Config {
        flows_max: FLOWS,
        ..small_config()
    });
    for flow in 1..=FLOWS as u64 {
        stage.send(flow, 0, [Segment::Inline(b"all of it")]);
        stage.settle();
        stage.acked(flow, 9, false);
    }
    forget_sent(&mut stage);
    assert_eq!(stage.lose_host(), FLOWS);
    let mut first = left(&stage);
    assert_eq!(first.len(), FLOWS);
    stage.worker.repeat_orphans();
    let now_us = stage.now_us.get();
    let mut repeated = Vec::new();
    loop {
        let is_any_left = stage.worker.end_orphans(128, &|| now_us);
        let packets = left(&stage);
        assert!(packets.len() <= 128, "{}", packets.len());
        repeated.extend(packets);
        if !is_any_left {
            break;
        }
    }
    first.sort_unstable_by_key(|reset| reset.0);
    repeated.sort_unstable_by_key(|reset| reset.0);
    assert_eq!(repeated, first);
}

/// CONNECTION_CLOSE of type 0x1c with INTERNAL_ERROR (RFC 9000 §19.19).
const CLOSE: [u8; 4] = [0x1c, 0x01, 0x00, 0x00];

#[test]
fn a_quic_connection_is_closed_by_a_packet_with_an_unused_number() {
    let mut stage = stage_with_file();
    for flow in [1, 2] {
        stage.tell_quic_key(flow, 0, 0);
        stage.quic_send(flow, packets(2, 1, 0, 5_000, 1000));
    }
    // It has a key, and no address.
    stage.tell_quic_key(3, 0, 0);
    // The host is through with this one.
    stage.acked(2, 0, true);
    forget_sent(&mut stage);
    // Numbered, and not read.
    stage.quic_send(1, packets(7, 1, 0, 5_000, 1000));
    assert_eq!(stage.lose_host(), 2);
    assert_eq!(stage.opened(), [(1, 7 + (1 << 30), CLOSE.to_vec())]);
    assert_eq!(stage.counters().orphans_closed, 1);
    assert_eq!(stage.lose_host(), 2);
    let numbers: Vec<u64> = stage
        .opened()
        .into_iter()
        .map(|(_, number, _)| number)
        .collect();
    assert!(
        numbers.iter().all(|number| *number > 7 + (1 << 30)),
        "{numbers:?}"
    );
}

#[test]
fn a_connection_whose_key_is_gone_is_not_closed() {
    let mut stage = stage_with_file();
    stage.tell_quic_key(1, 0, 0);
    stage.quic_send(1, packets(2, 1, 0, 5_000, 1000));
    forget_sent(&mut stage);
    stage.tell(&Command::QuicKeyGone {
        flow: FlowId(1),
        generation: 0,
    });
    stage.settle();
    assert_eq!(stage.lose_host(), 1);
    assert_eq!(stage.opened(), []);
}
