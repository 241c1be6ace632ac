//! The host stack against a client and a NIC stack that the test plays.

mod access;
mod admission;
mod fast_open;
mod orphans;
mod proxied;
mod rig;
mod setup;
mod splice;
mod teardown;

use contract::listing::Part;
use contract::{Event, FileId, FileMeta, FlowId, RejectReason, SendId};
use fakes::nic::Work;
use host::CongestionAlgorithm;
use host::app::{AppEvent, CloseReason};
use proptest::prelude::*;
use rig::{Rig, answer};
use wire::tcp::Flags;

#[test]
fn a_file_is_served_although_the_host_has_none_of_its_bytes() {
    let mut rig = Rig::new();
    rig.ask(&["500000"]);
    let expected = answer(500_000);
    rig.run_until(|rig| rig.received.len() >= expected.len());
    assert!(rig.received == expected, "every byte as in the file");
    let counters = rig.stack.counters();
    assert_eq!(counters.virtual_bytes, 500_000);
    assert_eq!(counters.real_bytes, 2);
    assert_eq!(counters.retransmissions, 0);
}

#[test]
fn a_listener_and_a_stream_have_the_congestion_control_chosen_for_them() {
    let mut rig = Rig::new();
    rig.stack
        .set_listener_congestion(80, CongestionAlgorithm::NewReno);
    rig.stack
        .set_listener_congestion(81, CongestionAlgorithm::Cubic);
    rig.ask(&["100000"]);
    rig.run_until(|rig| rig.received.len() > 50_000);
    let stream = rig.app.accepted[0];
    assert_eq!(
        rig.stack.congestion(stream),
        Some(CongestionAlgorithm::NewReno)
    );
    assert!(
        rig.stack
            .set_congestion(rig.now_us, stream, CongestionAlgorithm::Cubic)
    );
    assert_eq!(
        rig.stack.congestion(stream),
        Some(CongestionAlgorithm::Cubic)
    );
    let expected = answer(100_000);
    rig.run_until(|rig| rig.received.len() >= expected.len());
    assert!(rig.received == expected, "every byte as in the file");
}

#[test]
fn an_application_limits_the_rate_of_its_stream() {
    let mut rig = Rig::new();
    rig.ask(&["rate 100000", "100000"]);
    rig.run_until(|rig| !rig.received.is_empty());
    let began_us = rig.now_us;
    rig.run_until(|rig| {
        // This NIC stack does not wait for what is issued ten milliseconds ahead. Two packets may
        // leave at once.
        let bytes = (rig.now_us - began_us + 10_000) / 10 + 2 * 1460;
        let received = rig.received.len() as u64;
        assert!(received <= bytes, "{received} bytes instead of {bytes}");
        received >= 50_000
    });
    let took_us = rig.now_us - began_us;
    assert!((400_000..600_000).contains(&took_us), "{took_us} us");
    rig.ask(&["rate -"]);
    let lifted_us = rig.now_us;
    let expected = answer(100_000);
    rig.run_until(|rig| rig.received.len() >= expected.len());
    assert!(rig.now_us - lifted_us < 20_000, "as fast as the path is");
    assert!(rig.received == expected, "every byte as in the file");
}

#[test]
fn an_application_gets_one_event_when_little_waits_to_be_sent() {
    let mut rig = Rig::new();
    let told = |rig: &Rig| rig.app.count(|it| matches!(it, AppEvent::Writable));
    rig.ask(&["lowat 0"]);
    rig.run_until(|rig| told(rig) == 1);
    rig.ask(&["500000"]);
    rig.run_until(|rig| !rig.received.is_empty());
    rig.ask(&["lowat 100000"]);
    let expected = answer(500_000);
    rig.run_until(|rig| told(rig) == 2);
    let received = rig.received.len();
    assert!((200_000..500_000).contains(&received), "{received}");
    rig.run_until(|rig| rig.received.len() >= expected.len());
    assert!(rig.received == expected, "every byte as in the file");
    assert_eq!(told(&rig), 2);
}

#[test]
fn the_response_header_rides_with_the_first_file_bytes() {
    let mut rig = Rig::new();
    rig.ask(&["1000"]);
    rig.run_until(|rig| rig.received.len() == 1002);
    let with_data: Vec<_> = rig.trace.iter().filter(|(_, len)| *len > 0).collect();
    assert_eq!(with_data.len(), 1, "one packet: {with_data:?}");
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let mut rig = Rig::new();
    rig.ask(&["100", "0", "70000", "nonsense", "1"]);
    let mut expected = Vec::new();
    for size in [100, 0, 70_000] {
        expected.extend(answer(size));
    }
    expected.extend(b"no");
    expected.extend(answer(1));
    rig.run_until(|rig| rig.received.len() >= expected.len());
    assert!(rig.received == expected);
}

/// Covers: IO-TCP §3.5
#[test]
fn a_fin_behind_virtual_bytes_goes_through_the_nic_stack_and_stays_behind_them() {
    let mut rig = Rig::new();
    rig.ask(&["20000"]);
    rig.run_until(|rig| rig.app.count(|event| matches!(event, AppEvent::Readable)) > 0);
    rig.answer_open_only();
    rig.ask(&["quit"]);
    // The congestion window holds the first part only; wherever FIN comes, it is not sent directly.
    for _ in 0..100 {
        rig.step();
    }
    assert!(
        rig.trace
            .iter()
            .all(|(header, _)| !header.flags.contains(Flags::FIN)),
        "FIN has overtaken bytes that are still with the NIC stack"
    );
    rig.nic_works = true;
    rig.run_until(|rig| rig.received.len() == 20_002);
    assert!(rig.received == answer(20_000));
}

/// Covers: IO-TCP §3.5
#[test]
fn real_bytes_behind_virtual_ones_go_through_the_nic_stack() {
    let mut rig = Rig::new();
    rig.ask(&["3000", "nonsense"]);
    assert_eq!(
        rig.inline_bytes_of_sends_kept(),
        4,
        "the header `ok`, and `no` behind the file"
    );
    assert!(rig.received.is_empty());
}

/// Covers: IO-TCP §3.5
#[test]
fn acknowledged_bytes_are_reported_every_32_kib_and_at_the_end() {
    let mut rig = Rig::new();
    rig.ask(&["300000"]);
    rig.run_until(|rig| rig.received.len() == 300_002);
    rig.ask(&["quit"]);
    rig.client.shutdown();
    rig.run_until(|rig| {
        rig.app
            .count(|event| matches!(event, AppEvent::Closed { .. }))
            > 0
    });
    rig.step();
    let offsets = &rig.nic.acked;
    assert!(offsets.is_sorted(), "{offsets:?}");
    let gap = offsets.windows(2).map(|pair| pair[1] - pair[0]).max();
    assert!(gap.unwrap() < 128 << 10, "{offsets:?}");
    assert!(rig.nic.ackds.len() < 5, "SENDs tell most of it");
    let last: Vec<bool> = rig.nic.ackds.iter().map(|ackd| ackd.2).collect();
    assert_eq!(last.iter().filter(|&&last| last).count(), 1);
    assert!(last.last().unwrap());
}

#[test]
fn a_file_is_closed_below_only_when_it_is_acknowledged() {
    let mut rig = Rig::new();
    rig.ask(&["50000"]);
    rig.run_until(|rig| rig.received.len() > 10_000);
    assert!(rig.nic.closed.is_empty());
    rig.run_until(|rig| !rig.nic.closed.is_empty());
    assert_eq!(rig.received.len(), 50_002);
    assert!(rig.nic.sizes.is_empty());
}

/// Covers: IO-TCP §3.5
#[test]
fn rto_does_not_run_while_the_nic_stack_reads() {
    let mut rig = Rig::new();
    rig.ask(&["1000"]);
    rig.answer_open_only();
    rig.run_until(|rig| !rig.nic.work.is_empty());
    // Five seconds for a read: many times the RTO.
    for _ in 0..50_000 {
        rig.step();
    }
    assert_eq!(rig.nic.work.len(), 1, "no second SEND");
    assert_eq!(rig.stack.counters().retransmissions, 0);
    rig.nic_works = true;
    rig.run_until(|rig| rig.received.len() == 1002);
}

/// Covers: IO-TCP §3.5
#[test]
fn a_send_that_departs_and_is_lost_is_sent_again() {
    let mut rig = Rig::new();
    rig.ask(&["1000"]);
    rig.answer_open_only();
    rig.run_until(|rig| !rig.nic.work.is_empty());
    let Some(Work::Send { id, flow, .. }) = rig.nic.work.pop_front() else {
        panic!("a SEND");
    };
    let departed_us = rig.now_us;
    rig.nic.report(&Event::Departed {
        send: id,
        flow,
        departed_us,
    });
    rig.nic_works = true;
    rig.run_until(|rig| rig.received.len() == 1002);
    assert!(rig.received == answer(1000));
    assert_eq!(rig.stack.counters().retransmissions, 1);
}

#[test]
fn a_failed_read_aborts_this_response_and_says_why() {
    let mut rig = Rig::new();
    rig.ask(&["60000"]);
    rig.run_until(|rig| rig.received.len() > 2);
    rig.nic_works = false;
    rig.run_until(|rig| {
        rig.nic
            .work
            .iter()
            .any(|work| matches!(work, Work::Send { .. }))
    });
    let Some(Work::Send { id, flow, .. }) = rig.nic.work.pop_front() else {
        panic!("a SEND");
    };
    let file = *rig.nic.sizes.keys().next().unwrap();
    rig.nic.report(&Event::ReadFailed {
        send: id,
        flow,
        file,
        offset: 4096,
        errno: 5,
    });
    rig.run_until(|rig| rig.client_closed.is_some());
    assert_eq!(rig.client_closed, Some(tcp::CloseReason::Reset));
    let closed = rig.app.events.iter().rev().find_map(|event| match event {
        AppEvent::Closed { reason, .. } => Some(*reason),
        _ => None,
    });
    assert_eq!(closed, Some(CloseReason::DataPlaneFailed));
    assert_eq!(rig.stack.connections(), 0);
    rig.step();
    assert!(rig.nic.sizes.is_empty(), "its file is closed");
}

/// Covers: RFC 5961 §3.2
#[test]
fn a_broken_response_ends_with_a_reset_that_a_silent_client_takes() {
    let mut rig = Rig::new();
    rig.ask(&["600000"]);
    rig.run_until(|rig| rig.received.len() > 2);
    rig.nic_works = false;
    rig.run_until(|rig| !rig.nic.work.is_empty());
    // All that has left is acknowledged, also with delay.
    for _ in 0..1000 {
        rig.step();
    }
    // It asks back for nothing.
    rig.client_is_mute = true;
    let Some(Work::Send { id, flow, .. }) = rig.nic.work.pop_front() else {
        panic!("a SEND");
    };
    let file = *rig.nic.sizes.keys().next().unwrap();
    rig.nic.report(&Event::ReadFailed {
        send: id,
        flow,
        file,
        offset: 4096,
        errno: 116,
    });
    for _ in 0..3 {
        rig.step();
    }
    assert_eq!(rig.client_closed, Some(tcp::CloseReason::Reset));
}

/// Covers: RFC 9293 §3.10.7.1, RFC 5961 §3.2
#[test]
fn at_its_end_the_stack_answers_its_peers_whatever_the_limit_on_resets() {
    let mut rig = Rig::with(|config| config.resets_per_second = 1);
    rig.ask(&["600000"]);
    rig.run_until(|rig| rig.received.len() > 20_000);
    let header = wire::tcp::Header {
        flags: Flags::ACK,
        window: 1000,
        ..wire::tcp::Header::default()
    };
    let stranger = "10.77.0.1:50000".parse().unwrap();
    let ten_segments = |rig: &mut Rig| {
        for ack in 0..10 {
            let header = wire::tcp::Header { ack, ..header };
            rig.inject_segment(stranger, &header, &[]);
        }
        rig.step();
        rig.stack.counters()
    };
    let counters = ten_segments(&mut rig);
    assert_eq!((counters.resets_sent, counters.resets_suppressed), (1, 9));
    let abort_all = |rig: &mut Rig| {
        let now_us = rig.now_us;
        rig.stack.abort_all(now_us, &mut rig.port, &mut rig.app)
    };
    assert!(abort_all(&mut rig).is_some(), "a response is in flight");
    let counters = ten_segments(&mut rig);
    assert!(counters.resets_sent >= 11, "{counters:?}");
    assert_eq!(counters.resets_suppressed, 9);
    assert_eq!(rig.client_closed, Some(tcp::CloseReason::Reset));
    assert_eq!(abort_all(&mut rig), None);
}

#[test]
fn the_nic_stack_learns_when_nothing_is_left_to_be_sent_again() {
    let mut rig = Rig::new();
    rig.ask(&["100"]);
    rig.run_until(|rig| !rig.nic.ackds.is_empty());
    let (_, stream_offset, last) = rig.nic.ackds[0];
    assert_eq!((stream_offset, last), (102, false), "far less than 32 KiB");
    for _ in 0..1000 {
        rig.step();
    }
    assert_eq!(rig.nic.ackds.len(), 1, "once is enough");
}

/// Covers: RFC 9293 §3.8.6.2.2, RFC 9293 §3.10.7.4
#[test]
fn what_needs_no_ring_leaves_though_the_ring_is_full() {
    let mut rig = Rig::new();
    rig.ask(&["quit"]);
    rig.run_until(|rig| rig.client.state() == tcp::State::CloseWait);
    rig.nic_takes = false;
    while rig.stack.usage().commands_waiting == 0 {
        rig.ask(&["1"; 100]);
        rig.step();
    }
    rig.run_until(|rig| rig.client.queued_bytes() == 0);
    rig.client.shutdown();
    for _ in 0..3 {
        rig.step();
    }
    assert_eq!(rig.client_closed, Some(tcp::CloseReason::Finished));
}

/// Covers: RFC 6191 §2, RFC 9293 §3.4.1, RFC 9293 §3.10.7.4
#[test]
fn a_connection_that_replaces_one_in_time_wait_begins_beyond_it() {
    replace_in_time_wait(false);
    replace_in_time_wait(true);
}

/// `unread`: the application has not read all that the old connection received.
fn replace_in_time_wait(unread: bool) {
    let mut rig = Rig::new();
    rig.ask(&["3000000"]);
    rig.run_until(|rig| rig.received.len() == 3_000_002);
    rig.ask(&["quit"]);
    rig.run_until(|rig| {
        rig.app
            .count(|event| matches!(event, AppEvent::PeerFinished))
            == 0
            && rig.client.state() == tcp::State::CloseWait
    });
    if unread {
        rig.app.deaf = true;
        rig.ask(&["1"]);
    }
    rig.client.shutdown();
    rig.run_until(|rig| rig.client_closed.is_some());
    rig.app.deaf = false;
    assert_eq!(rig.stack.usage().time_waits, usize::from(!unread));
    assert_eq!(rig.stack.connections(), 1, "in TIME-WAIT");
    let (last, len) = *rig
        .trace
        .iter()
        .rev()
        .find(|(header, _)| header.flags.contains(Flags::FIN))
        .unwrap();
    let old_end = last.seq.wrapping_add(len as u32);
    rig.trace.clear();
    rig.reconnect_from(40_000);
    rig.ask(&["1000"]);
    rig.run_until(|rig| rig.received.len() == 1002);
    assert!(rig.received == answer(1000));
    let isn = rig
        .trace
        .iter()
        .find(|(header, _)| header.flags.contains(Flags::SYN))
        .unwrap()
        .0
        .seq;
    let ahead = isn.wrapping_sub(old_end);
    assert!(
        (1..1 << 31).contains(&ahead),
        "{ahead}: 3 MB were faster than the clock of RFC 6528"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// `fuzz/fuzz_targets/stack.rs` goes on with this for as long as one likes.
    ///
    /// Covers: RFC 5961 §3.2, RFC 5961 §4.2, RFC 5961 §5.2, RFC 5927 §4
    #[test]
    fn whatever_strangers_send_a_download_goes_on(
        choices in proptest::collection::vec(any::<u8>(), 0..3000),
    ) {
        rig::intruder::a_download_goes_on_undisturbed(&choices);
    }
}

/// Events that a broken or hostile NIC stack might report. Ids are small, so that they often hit.
fn hostile_event() -> impl Strategy<Value = Event> {
    let file = (0u32..4).prop_map(FileId);
    let flow = prop_oneof![
        (0u64..4).prop_map(|n| FlowId(n << 32)),
        any::<u64>().prop_map(FlowId)
    ];
    let send = prop_oneof![
        (0u64..3, 0u64..64).prop_map(|(index, number)| SendId(index << 32 | number)),
        any::<u64>().prop_map(SendId)
    ];
    let reason = prop_oneof![
        Just(RejectReason::Malformed),
        Just(RejectReason::UnknownFile),
        Just(RejectReason::FileInUse),
        Just(RejectReason::TooManyFiles),
        Just(RejectReason::RangePastEnd),
        Just(RejectReason::BadHeader),
        Just(RejectReason::TooManyFlows),
        Just(RejectReason::UnknownKey),
        Just(RejectReason::UnknownRecords),
    ];
    prop_oneof![
        (file.clone(), any::<u64>()).prop_map(|(file, size)| Event::Opened {
            file,
            meta: FileMeta {
                size,
                ..FileMeta::default()
            }
        }),
        (file.clone(), any::<u16>()).prop_map(|(file, errno)| Event::OpenFailed { file, errno }),
        (file.clone(), any::<u64>()).prop_map(|(file, next)| Event::Listed {
            file,
            part: Box::new(Part {
                next,
                ..Part::default()
            }),
        }),
        (send.clone(), flow.clone(), any::<u64>()).prop_map(|(send, flow, departed_us)| {
            Event::Departed {
                send,
                flow,
                departed_us,
            }
        }),
        (send, flow, file, any::<u64>(), any::<u16>()).prop_map(
            |(send, flow, file, offset, errno)| Event::ReadFailed {
                send,
                flow,
                file,
                offset,
                errno
            }
        ),
        (
            reason,
            prop_oneof![0u64..4, (0u64..3).prop_map(|n| n << 32), any::<u64>()]
        )
            .prop_map(|(reason, id)| Event::Rejected { reason, id }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn hostile_events_end_at_most_the_connections_they_name(
        hostile in proptest::collection::vec((0usize..60, hostile_event()), 1..40),
    ) {
        let mut rig = Rig::new();
        rig.ask(&["200000", "17", "x"]);
        rig.nic.lenient = true;
        rig.app.lenient = true;
        for step in 0..60 {
            for (_, event) in hostile.iter().filter(|(at, _)| *at == step) {
                rig.nic.report(event);
            }
            rig.step();
        }
        // Whatever happened to that connection, the next one is served.
        rig.nic.work.clear();
        rig.reconnect();
        rig.ask(&["1000"]);
        rig.run_until(|rig| rig.received.len() == 1002);
        prop_assert!(rig.received == answer(1000));
    }
}

/// Covers: RFC 1191 §6, RFC 5927 §4.1
#[test]
fn a_router_that_says_too_big_about_what_is_in_flight_is_believed_and_others_are_not() {
    const FRAGMENTATION_NEEDED: u8 = 4;
    let mut rig = Rig::new();
    rig.nic_works = false;
    rig.ask(&["500000"]);
    // Until the first SEND of the response waits in the NIC stack.
    while !matches!(rig.nic.work.front(), Some(Work::Send { .. })) {
        if let Some(work) = rig.nic.work.pop_front() {
            rig.carry_out(work);
        }
        rig.step();
    }
    let Some(Work::Send { frames, .. }) = rig.nic.work.front() else {
        unreachable!("it was there");
    };
    let quoted = frames[0][wire::ethernet::HEADER_BYTES..][..28].to_vec();
    let mut forged = quoted.clone();
    // Another sequence number, far ahead.
    forged[24] ^= 0x40;
    for (code, quoted, believed) in [
        (FRAGMENTATION_NEEDED, &forged, 0),
        // The port is unreachable: no reason to give up.
        (3, &quoted, 0),
        (FRAGMENTATION_NEEDED, &quoted, 1),
    ] {
        let frame = rig.unreachable(code, 1000, quoted);
        rig.inject(&frame);
        rig.step();
        assert_eq!(rig.stack.counters().mtus_reduced, believed);
    }
    let begun = rig.trace.len();
    let first = rig.nic.work.len();
    assert_eq!(first, 1, "nothing is repeated that has not departed");
    rig.nic_works = true;
    let expected = answer(500_000);
    rig.run_until(|rig| rig.received.len() >= expected.len());
    assert!(rig.received == expected, "every byte as in the file");
    // What had been decided before left as it was; all that follows fits.
    let small = 1000 - 40 - 12;
    let lens: Vec<_> = rig.trace[begun..].iter().map(|(_, len)| *len).collect();
    let large = lens.iter().filter(|len| **len > small).count();
    assert!(large <= 10, "{large} packets of the first window");
    assert!(lens.iter().filter(|len| **len == small).count() > 400);
    assert_eq!(rig.client_closed, None);
}

/// An echo request in an Ethernet frame whose IP header says that it is a part of something longer.
fn fragment_v4(flags_and_offset: u16) -> Vec<u8> {
    let echo = wire::icmp::Echo {
        reply: false,
        ident: 1,
        seq_no: 1,
        data: &[7; 64],
    };
    let (from, to) = ([10, 77, 0, 1].into(), [10, 77, 0, 2].into());
    let mut frame = wire::icmpv4::echo_frame([2; 6], [2, 0, 0, 0, 0, 1], from, to, &echo);
    frame[20..22].copy_from_slice(&flags_and_offset.to_be_bytes());
    frame[24..26].fill(0);
    let sum = wire::checksum::of(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

fn fragment_v6(offset_and_more: u16) -> Vec<u8> {
    const FRAGMENT: u8 = 44;
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 2, 2, 2, 2, 2, 0x86, 0xdd];
    frame.extend([0x60, 0, 0, 0, 0, 16, FRAGMENT, 64]);
    frame.extend([0xfd; 16]);
    frame.extend([0xfd; 16]);
    frame.extend([58, 0]);
    frame.extend(offset_and_more.to_be_bytes());
    frame.extend([0, 0, 0, 9]);
    frame.extend([128, 0, 0, 0, 0, 1, 0, 1]);
    frame
}

#[test]
fn fragments_are_dropped_and_counted() {
    const MORE_FRAGMENTS: u16 = 0x2000;
    let mut rig = Rig::new();
    for bytes in [
        fragment_v4(MORE_FRAGMENTS),
        fragment_v4(8),
        fragment_v6(1),
        fragment_v6(8 << 3),
    ] {
        let frame = netdev::Frame {
            bytes: &bytes,
            checksum_valid: false,
            segment_bytes: None,
        };
        rig.stack.on_frame(rig.now_us, frame);
    }
    let counters = rig.stack.counters();
    assert_eq!(counters.fragments_dropped, 4);
    assert_eq!(counters.frames_malformed, 0);
}
