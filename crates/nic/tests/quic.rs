//! QSENDs: which datagrams leave for them, when, and what never does.

mod support;

use contract::{Command, Event, FileId, FlowId, RejectReason, Segment, SendId};
use fakes::recording_port::Answer;
use nic::Usage;
use nic::reader::memory::MemoryDisk;
use support::quic::{
    AROUND_BYTES, Qsend, packet, packets, plaintext, plaintexts, quic_key, rejected,
};
use support::{Stage, content, departed, range, small_config};

/// A stage with a key of flow 1, and a file of this many bytes that is open as 1.
fn stage_with_file(len: usize) -> (Stage, Vec<u8>) {
    let mut stage = Stage::new();
    let file = open_file(&mut stage, len);
    (stage, file)
}

fn open_file(stage: &mut Stage, len: usize) -> Vec<u8> {
    let file = content(len);
    stage.disk.put(b"a", file.clone());
    stage.open(1, b"a");
    stage.tell_quic_key(1, 0, 0);
    file
}

/// Nothing is held of any flow.
fn assert_empty(stage: &Stage) {
    let usage = stage.worker.usage();
    let Usage {
        jobs,
        prepares,
        flows,
        keys,
        records_bytes,
        blocks_occupied,
        ..
    } = usage;
    let held = [jobs, prepares, flows, keys, records_bytes, blocks_occupied];
    assert_eq!(held, [0; 6], "{usage:?}");
}

#[test]
fn packets_are_filled_in_and_leave_sealed_as_one_superpacket() {
    let (mut stage, file) = stage_with_file(60_000);
    // Over the border of two blocks, and the last datagram is shorter.
    let send = stage.quic_send(1, packets(2, 1, 0, 60_000, 1400));
    assert_eq!(departed(&stage.take_events()), [send]);
    let superpackets = stage.wire.take_datagrams();
    assert_eq!(superpackets.len(), 1);
    let superpacket = &superpackets[0];
    assert_eq!(superpacket.payload_bytes, 1400 + AROUND_BYTES);
    let opened: Vec<_> = superpacket.each().map(support::quic::open).collect();
    let wanted = plaintexts((1, 2), &file, 0, 1400);
    let wanted: Vec<_> = wanted.into_iter().map(|(_, n, text)| (n, text)).collect();
    assert!(opened == wanted);
    let counters = stage.counters();
    assert_eq!(counters.quic_sends, 1);
    assert_eq!(counters.quic_packets_sealed, 43);
    assert_eq!(counters.datagrams, 43);
    assert_eq!(counters.datagram_bytes as usize, superpacket.payload.len());
    assert_eq!(counters.file_sent_bytes, 60_000);
    assert_eq!(counters.superpackets, 1);
    assert_eq!(counters.block_misses, 1);
}

#[test]
fn packets_need_no_file() {
    let (mut stage, _) = stage_with_file(1);
    let mut only = packet(7, 1, 0, 1);
    only.segments = vec![
        Segment::Inline(b"one frame, "),
        Segment::Inline(b"and another one"),
    ];
    let send = stage.quic_send(1, [only]);
    assert_eq!(departed(&stage.take_events()), [send]);
    let wanted = b"one frame, and another one".to_vec();
    assert_eq!(stage.opened(), [(1, 7, wanted)]);
}

#[test]
fn what_is_in_front_of_a_packet_leaves_as_it_is() {
    let (mut stage, file) = stage_with_file(1000);
    let mut first = packet(0, 1, 0, 900);
    first.prefix = b"sealed by the host";
    stage.quic_send(1, [first, packet(1, 1, 900, 100)]);
    stage.settle();
    let superpacket = stage.wire.take_datagrams().remove(0);
    let datagrams: Vec<_> = superpacket.each().collect();
    let (prefix, sealed) = datagrams[0].split_at(18);
    assert_eq!(prefix, b"sealed by the host");
    let wanted = (0, plaintext(&file, 0, 900));
    assert_eq!(support::quic::open(sealed), wanted);
    let wanted = (1, plaintext(&file, 900, 100));
    assert_eq!(support::quic::open(datagrams[1]), wanted);
}

#[test]
fn a_port_that_takes_less_gets_whole_datagrams() {
    for ipv6 in [false, true] {
        let disk = MemoryDisk::new();
        let mut stage = Stage::on(&small_config(), Box::new(disk.clone()), 5000);
        stage.disk = disk;
        let file = open_file(&mut stage, 20_000);
        let send = Qsend {
            ipv6,
            ..Qsend::new(1, packets(0, 1, 0, 20_000, 1400))
        };
        let id = stage.issue(&send);
        assert_eq!(departed(&stage.take_events()), [id], "once");
        let superpackets = stage.wire.take_datagrams();
        let counts: Vec<_> = superpackets.iter().map(|it| it.each().count()).collect();
        assert_eq!(counts, [3, 3, 3, 3, 3]);
        let numbers = superpackets.iter().map(|it| it.identification());
        let wanted = (0..5).map(|at| (!ipv6).then_some(3 * at));
        assert!(numbers.eq(wanted), "identifications count on");
        let all = superpackets.iter().flat_map(|it| it.each());
        let opened: Vec<_> = all.map(support::quic::open).collect();
        let wanted = plaintexts((1, 0), &file, 0, 1400);
        let wanted: Vec<_> = wanted.into_iter().map(|(_, n, text)| (n, text)).collect();
        assert!(opened == wanted);
        assert_eq!(stage.counters().quic_packets_sealed, 15);
    }
}

#[test]
fn nothing_leaves_before_it_is_read_and_other_flows_do_not_wait() {
    let (mut stage, file) = stage_with_file(100_000);
    let other = content(5000);
    stage.disk.put(b"b", other.clone());
    stage.open(2, b"b");
    stage.tell_quic_key(2, 0, 0);
    stage.disk.hold(b"a");
    let first = stage.quic_send(1, packets(0, 1, 0, 30_000, 1400));
    let behind = stage.quic_send(1, [packet(30, 2, 0, 1000)]);
    let elsewhere = stage.quic_send(2, packets(0, 2, 0, 5000, 1000));
    assert_eq!(departed(&stage.take_events()), [elsewhere]);
    assert!(stage.opened() == plaintexts((2, 0), &other, 0, 1000));
    assert_eq!(stage.counters().quic_packets_sealed, 5);
    stage.disk.release(b"a");
    assert_eq!(departed(&stage.take_events()), [first, behind]);
    let mut wanted = plaintexts((1, 0), &file[..30_000], 0, 1400);
    wanted.push((1, 30, plaintext(&other, 0, 1000)));
    assert!(stage.opened() == wanted);
}

#[test]
fn a_file_that_is_being_opened_is_waited_for() {
    let mut stage = Stage::new();
    let file = content(3000);
    stage.disk.put(b"a", file.clone());
    stage.tell_quic_key(1, 0, 0);
    stage.tell_open(1, b"a");
    let send = stage.quic_send(1, packets(0, 1, 0, 3000, 1000));
    assert_eq!(departed(&stage.take_events()), [send]);
    assert!(stage.opened() == plaintexts((1, 0), &file, 0, 1000));
}

#[test]
fn a_file_is_sent_that_was_closed_in_the_meantime() {
    let (mut stage, file) = stage_with_file(3000);
    stage.disk.hold(b"a");
    let send = stage.quic_send(1, packets(0, 1, 0, 3000, 1000));
    stage.tell(&Command::Close { file: FileId(1) });
    let late = stage.quic_send(1, [packet(3, 1, 0, 1000)]);
    let unknown = RejectReason::UnknownFile;
    assert_eq!(stage.take_events(), rejected(unknown, late.0));
    stage.disk.release(b"a");
    assert_eq!(departed(&stage.take_events()), [send]);
    assert!(stage.opened() == plaintexts((1, 0), &file, 0, 1000));
    assert_eq!(stage.worker.usage().files, 0);
    assert_eq!(stage.disk.open_files(), 0);
}

#[test]
fn a_paced_qsend_leaves_at_its_time_in_the_order_of_its_flow() {
    let (mut stage, file) = stage_with_file(3000);
    stage.tell_quic_key(2, 0, 0);
    let held = Qsend {
        held_us: 5000,
        ..Qsend::new(1, [packet(0, 1, 0, 1000)])
    };
    let held = stage.issue(&held);
    let behind = stage.quic_send(1, [packet(1, 1, 1000, 1000)]);
    let elsewhere = stage.quic_send(2, [packet(0, 1, 2000, 1000)]);
    assert_eq!(departed(&stage.take_events()), [elsewhere]);
    assert_eq!(stage.opened(), [(2, 0, plaintext(&file, 2000, 1000))]);
    assert_eq!(stage.counters().read_bytes, 3000, "reading does not wait");
    stage.disk.hold(b"a");
    let due_us = stage.now_us.get() + 5000;
    assert_eq!(stage.worker.next_timeout_us(), Some(due_us));
    stage.now_us.set(due_us - 1);
    assert_eq!(stage.take_events(), []);
    assert_eq!(stage.opened(), []);
    stage.now_us.set(due_us);
    assert_eq!(departed(&stage.take_events()), [held, behind]);
    let wanted = [0, 1].map(|at| (1, at, plaintext(&file, 1000 * at as usize, 1000)));
    assert_eq!(stage.opened(), wanted);
    assert_eq!(
        (stage.counters().paced, stage.counters().paced_late),
        (1, 0)
    );
}

#[test]
fn flows_take_turns() {
    let (mut stage, _) = stage_with_file(100_000);
    stage.tell_quic_key(2, 0, 0);
    for flow in [1, 2] {
        for at in 0..4 {
            stage.quic_send(flow, packets(10 * at, 1, 0, 4000, 1000));
        }
    }
    // A stream of TCP as well.
    stage.send(3, 0, [range(1, 0, 100_000)]);
    stage.settle();
    let order: Vec<_> = stage.wire.take_datagrams();
    let order: Vec<_> = order.iter().map(|it| it.flow().0).collect();
    assert_eq!(order, [1, 2, 1, 2, 1, 2, 1, 2]);
    assert_eq!(stage.wire.streams()[&3], content(100_000));
}

#[test]
fn a_busy_port_is_offered_the_same_bytes_again() {
    let (mut stage, file) = stage_with_file(8000);
    stage.tell_quic_key(2, 0, 0);
    stage.wire.close(true);
    let first = stage.quic_send(1, packets(0, 1, 0, 4000, 1000));
    let second = stage.quic_send(2, packets(0, 1, 4000, 4000, 1000));
    let third = stage.quic_send(1, [packet(9, 1, 0, 1000)]);
    for _ in 0..5 {
        assert_eq!(stage.take_events(), []);
    }
    assert_eq!(stage.counters().quic_packets_sealed, 4);
    assert!(stage.counters().port_waits >= 5);
    stage.wire.close(false);
    stage.wire.answer([Answer::Busy]);
    // It is woken when the port can take something.
    let mut left = Vec::new();
    while left.len() < 3 {
        left.extend(departed(&stage.take_events()));
    }
    assert_eq!(left, [first, second, third]);
    let mut wanted = plaintexts((1, 0), &file[..4000], 0, 1000);
    wanted.extend(plaintexts((2, 0), &file, 4000, 1000));
    wanted.push((1, 9, plaintext(&file, 0, 1000)));
    assert!(stage.opened() == wanted);
    assert_eq!(stage.counters().quic_packets_sealed, 9, "once each");
}

#[test]
fn what_a_busy_port_was_offered_is_gone_with_its_flow() {
    let (mut stage, file) = stage_with_file(8000);
    stage.tell_quic_key(2, 0, 0);
    stage.wire.close(true);
    stage.quic_send(1, packets(0, 1, 0, 4000, 1000));
    let other = stage.quic_send(2, packets(0, 1, 4000, 4000, 1000));
    stage.settle();
    stage.acked(1, 0, true);
    // The name comes back, and so do its numbers, under another key.
    stage.tell_quic_key(1, 1, 0);
    let mut again = packet(0, 1, 100, 1000);
    again.generation = 1;
    let again = stage.quic_send(1, [again]);
    stage.settle();
    stage.wire.close(false);
    assert_eq!(departed(&stage.take_events()), [other, again]);
    let mut wanted = plaintexts((2, 0), &file, 4000, 1000);
    wanted.push((1, 0, plaintext(&file, 100, 1000)));
    assert!(stage.opened() == wanted);
}

#[test]
fn what_the_port_drops_or_refuses_counts_as_departed() {
    let (mut stage, file) = stage_with_file(3000);
    stage.wire.answer([Answer::Drop, Answer::Fail]);
    let sends: Vec<_> = (0..3)
        .map(|at| stage.quic_send(1, [packet(at, 1, 1000 * at, 1000)]))
        .collect();
    assert_eq!(departed(&stage.take_events()), sends);
    assert_eq!(stage.opened(), [(1, 2, plaintext(&file, 2000, 1000))]);
    let counters = stage.counters();
    assert_eq!((counters.port_drops, counters.port_failures), (1, 1));
    assert_eq!((counters.quic_packets_sealed, counters.datagrams), (3, 1));
}

#[test]
fn what_cannot_be_read_is_reported_and_never_sealed() {
    let (mut stage, file) = stage_with_file(200_000);
    stage.disk.spoil(b"a", 150_000, 5);
    let good = stage.quic_send(1, packets(0, 1, 0, 3000, 1000));
    let bad = stage.quic_send(1, packets(3, 1, 149_000, 3000, 1000));
    stage.quic_send(1, packets(6, 1, 0, 3000, 1000));
    let events = stage.take_events();
    assert_eq!(departed(&events), [good]);
    let failed = Event::ReadFailed {
        send: bad,
        flow: FlowId(1),
        file: FileId(1),
        offset: 150_000,
        errno: 5,
    };
    assert_eq!(events[1..], [failed]);
    assert!(stage.opened() == plaintexts((1, 0), &file[..3000], 0, 1000));
    assert_eq!(stage.counters().quic_packets_sealed, 3);
    assert_eq!(stage.counters().reads_failed, 1);
    // What comes later is dropped without a word, keys and ranges to prepare included.
    stage.tell_quic_key(1, 1, 0);
    stage.prepare(1, 1, 0, 1000);
    stage.quic_send(1, [packet(0, 1, 0, 1000)]);
    assert_eq!(stage.take_events(), []);
    stage.acked(1, 0, true);
    stage.settle();
    assert_empty(&stage);
    stage.tell_quic_key(1, 0, 100);
    let send = stage.quic_send(1, [packet(100, 1, 0, 1000)]);
    assert_eq!(departed(&stage.take_events()), [send]);
}

#[test]
fn a_range_behind_the_end_of_a_file_is_noticed_when_its_size_is_known() {
    let mut stage = Stage::new();
    stage.disk.put(b"a", content(1000));
    stage.tell_quic_key(1, 0, 0);
    stage.tell_open(1, b"a");
    let early = stage.quic_send(1, [packet(0, 1, 500, 1000)]);
    let events = stage.take_events();
    assert!(
        matches!(events[..], [Event::Opened { .. }, Event::ReadFailed { send, errno, .. }]
            if send == early && errno == 61),
        "{events:?}"
    );
    stage.tell_quic_key(2, 0, 0);
    let late = stage.quic_send(2, [packet(0, 1, 500, 501)]);
    let past = RejectReason::RangePastEnd;
    assert_eq!(stage.take_events(), rejected(past, late.0));
    assert_eq!(stage.counters().quic_sends_rejected, 1);
    assert_eq!(stage.counters().quic_packets_sealed, 0);
}

#[test]
fn a_number_is_sealed_once() {
    let (mut stage, file) = stage_with_file(1000);
    stage.acked(1, 0, true);
    stage.tell_quic_key(1, 0, 2);
    let refused = |stage: &mut Stage, generation: u32, numbers: &[u64]| {
        let packets = numbers.iter().map(|number| {
            let mut packet = packet(*number, 1, 0, 1000);
            packet.generation = generation;
            packet
        });
        let id = stage.quic_send(1, packets.collect::<Vec<_>>());
        let events = stage.take_events();
        assert_eq!(events, rejected(RejectReason::NumberReused, id.0));
    };
    refused(&mut stage, 0, &[1]);
    stage.disk.hold(b"a");
    let two = [packet(2, 1, 0, 1000), packet(4, 1, 0, 1000)];
    let send = stage.quic_send(1, two);
    assert_eq!(stage.take_events(), []);
    // Before it is sealed, and what was passed over.
    refused(&mut stage, 0, &[4]);
    refused(&mut stage, 0, &[3]);
    refused(&mut stage, 0, &[2, 5]);
    stage.disk.release(b"a");
    assert_eq!(departed(&stage.take_events()), [send]);
    refused(&mut stage, 0, &[4]);
    stage.tell_quic_key(1, 1, 0);
    refused(&mut stage, 1, &[4]);
    stage.tell_quic_key(1, 2, 100);
    refused(&mut stage, 2, &[99]);
    // What was refused has changed nothing.
    let send = stage.quic_send(1, [packet(5, 1, 0, 1000)]);
    assert_eq!(departed(&stage.take_events()), [send]);
    let wanted = [2, 4, 5].map(|number| (1, number, plaintext(&file, 0, 1000)));
    assert_eq!(stage.opened(), wanted);
}

#[test]
fn keys_ascend_and_are_bounded() {
    let mut stage = Stage::with(&nic::Config {
        flows_max: 1,
        records_bytes: 4096,
        ..small_config()
    });
    let mut only = packet(1, 1, 0, 1);
    only.segments = vec![Segment::Inline(b"a frame of some bytes")];
    let refused = |stage: &mut Stage, generation, reason| {
        stage.tell_quic_key(1, generation, 0);
        assert_eq!(stage.take_events(), rejected(reason, 1));
    };
    let unknown = RejectReason::UnknownKey;
    let id = stage.quic_send(1, [only.clone()]);
    assert_eq!(stage.take_events(), rejected(unknown, id.0));
    stage.tell_quic_key(1, 1, 0);
    let id = stage.quic_send(1, [only.clone()]);
    assert_eq!(stage.take_events(), rejected(unknown, id.0));
    for generation in [0, 1] {
        refused(&mut stage, generation, RejectReason::KeyConflict);
    }
    for generation in 2..5 {
        stage.tell_quic_key(1, generation, 0);
    }
    assert_eq!(stage.take_events(), []);
    assert_eq!(stage.worker.usage().keys, 4);
    refused(&mut stage, 5, RejectReason::TooManyKeys);
    stage.tell_quic_key(2, 0, 0);
    let events = stage.take_events();
    assert_eq!(events, rejected(RejectReason::TooManyKeys, 2), "no memory");
    for generation in 1..4 {
        stage.tell_key_gone(1, generation);
    }
    // A key that is not there is gone.
    stage.tell_key_gone(1, 3);
    stage.tell_key_gone(9, 0);
    stage.tell_quic_key(2, 0, 0);
    let events = stage.take_events();
    assert_eq!(events, rejected(RejectReason::TooManyFlows, 2));
    stage.acked(1, 0, true);
    stage.tell_quic_key(2, 0, 0);
    assert_eq!(stage.take_events(), []);
    assert_eq!(stage.worker.usage().keys, 1);
    stage.acked(2, 0, true);
    stage.settle();
    assert_empty(&stage);
}

#[test]
fn a_key_goes_when_what_waits_for_it_has_left() {
    let (mut stage, file) = stage_with_file(2000);
    stage.disk.hold(b"a");
    let first = stage.quic_send(1, packets(1, 1, 0, 2000, 1000));
    stage.tell_quic_key(1, 1, 3);
    stage.tell_key_gone(1, 0);
    let late = stage.quic_send(1, [packet(3, 1, 0, 1000)]);
    let unknown = RejectReason::UnknownKey;
    assert_eq!(stage.take_events(), rejected(unknown, late.0));
    assert_eq!(stage.worker.usage().keys, 2);
    stage.disk.release(b"a");
    assert_eq!(departed(&stage.take_events()), [first]);
    assert_eq!(stage.worker.usage().keys, 1);
    let mut second = packet(3, 1, 0, 1000);
    second.generation = 1;
    let second = stage.quic_send(1, [second]);
    assert_eq!(departed(&stage.take_events()), [second]);
    let mut wanted = plaintexts((1, 1), &file, 0, 1000);
    wanted.push((1, 3, plaintext(&file, 0, 1000)));
    assert!(stage.opened() == wanted);
}

#[test]
fn the_end_of_a_flow_drops_what_waits() {
    let (mut stage, _) = stage_with_file(200_000);
    stage.disk.hold(b"a");
    stage.quic_send(1, packets(0, 1, 0, 40_000, 1000));
    stage.prepare(1, 1, 100_000, 100_000);
    let held = Qsend {
        held_us: 1000,
        ..Qsend::new(1, [packet(100, 1, 0, 1000)])
    };
    stage.issue(&held);
    stage.settle();
    assert_eq!(stage.worker.usage().jobs, 3);
    assert_eq!(stage.worker.usage().prepares, 1);
    stage.acked(1, 0, true);
    assert_eq!(stage.take_events(), []);
    stage.disk.release(b"a");
    stage.now_us.set(stage.now_us.get() + 2000);
    assert_eq!(stage.take_events(), []);
    assert_eq!(stage.opened(), []);
    assert_empty(&stage);
    assert_eq!(stage.counters().quic_packets_sealed, 0);
    // Neither a key nor a number of it is left.
    let id = stage.quic_send(1, [packet(200, 1, 0, 1000)]);
    let unknown = RejectReason::UnknownKey;
    assert_eq!(stage.take_events(), rejected(unknown, id.0));
}

#[test]
fn a_header_that_is_not_of_udp_is_refused() {
    let (mut stage, _) = stage_with_file(1000);
    let mut sent = |header: &[u8]| {
        let short: &[u8] = &[0x40, 5];
        stage.tell(&Command::QuicSend(contract::quic::QuicSend {
            id: SendId(77),
            flow: FlowId(1),
            issued_us: 0,
            not_before_us: 0,
            header,
            packets: vec![contract::quic::QuicPacket {
                number: 5,
                generation: 0,
                prefix: b"",
                header: short,
                segments: 1,
            }],
            segments: vec![Segment::Inline(b"frames of some bytes")],
        }));
        stage.take_events()
    };
    let bad = rejected(RejectReason::BadHeader, 77);
    assert_eq!(sent(b""), bad);
    assert_eq!(sent(&[0; 128]), bad);
    let tcp = support::header(1, 0, wire::tcp::Flags::ACK, 1);
    assert_eq!(sent(&tcp), bad);
    let good = support::quic::udp_header(1, false);
    assert_eq!(sent(&good[..good.len() - 1]), bad);
    assert_eq!(departed(&sent(&good)), [SendId(77)]);
}

/// As many ranges as the contract allows, each in a block of its own.
#[test]
fn a_packet_of_many_ranges_needs_all_of_its_blocks_at_once() {
    let block = nic::buffer::BLOCK_BYTES;
    let file = content(192 * block);
    let many = |count: usize| {
        let mut many = packet(3, 1, 0, 1);
        many.segments = (0..count as u64)
            .map(|at| range(1, at * block as u64, 7))
            .collect();
        many
    };
    let stage_of = |blocks: usize| {
        let mut stage = Stage::with(&nic::Config {
            cache_bytes: blocks * block,
            ..small_config()
        });
        stage.disk.put(b"a", file.clone());
        stage.open(1, b"a");
        stage.tell_quic_key(1, 0, 0);
        stage
    };
    let mut stage = stage_of(192);
    let send = stage.quic_send(1, [many(192)]);
    assert_eq!(departed(&stage.take_events()), [send]);
    let wanted: Vec<u8> = (0..192)
        .flat_map(|at| file[at * block..][..7].to_vec())
        .collect();
    assert_eq!(stage.opened(), [(1, 3, wanted)]);

    let mut stage = stage_of(100);
    let send = stage.quic_send(1, [many(101)]);
    let malformed = RejectReason::Malformed;
    assert_eq!(stage.take_events(), rejected(malformed, send.0));
    let send = stage.quic_send(1, [many(100)]);
    assert_eq!(departed(&stage.take_events()), [send]);
}

/// Packets of two files in turn, more of them than there are blocks.
#[test]
fn blocks_that_many_packets_share_are_needed_once() {
    let mut stage = Stage::with(&nic::Config {
        cache_bytes: 0,
        ..small_config()
    });
    let block = nic::buffer::BLOCK_BYTES;
    let blocks = stage.worker.usage().blocks;
    let file = content(blocks * block);
    stage.disk.put(b"a", file.clone());
    stage.open(1, b"a");
    stage.tell_quic_key(1, 0, 0);
    for round in 0..3 {
        let mut all = Vec::new();
        for at in 0..44 {
            let mut both = packet(100 * round + at, 1, 0, 1);
            let offset = |block_at: u64| block_at * block as u64 + 600 * at;
            both.segments = vec![
                range(1, offset(20 * round), 600),
                range(1, offset(20 * round + 10), 600),
            ];
            all.push(both);
        }
        let send = stage.quic_send(1, all);
        assert_eq!(departed(&stage.take_events()), [send]);
        let opened = stage.opened();
        assert_eq!(opened.len(), 44);
        for (at, (flow, number, plaintext)) in opened.into_iter().enumerate() {
            assert_eq!((flow, number), (1, 100 * round + at as u64));
            let start = 20 * round as usize * block + 600 * at;
            let other = start + 10 * block;
            let wanted = [&file[start..start + 600], &file[other..other + 600]].concat();
            assert!(plaintext == wanted);
        }
    }
    assert_eq!(stage.counters().block_misses, 6);
    assert_eq!(stage.counters().superpackets, 3);
}

/// Each packet goes on where the one before has ended, also where a superpacket must end because
/// the next packet would need too many blocks.
#[test]
fn packets_that_go_on_in_a_block_are_cut_where_blocks_are_too_many() {
    let block = nic::buffer::BLOCK_BYTES as u64;
    let (mut stage, file) = stage_with_file(89 * block as usize);
    let ranges = |at: u64| {
        [
            2 * at * block + 300,
            (2 * at + 1) * block,
            (2 * at + 2) * block,
        ]
    };
    let all = (0..44).map(|at| {
        let mut all = packet(at, 1, 0, 1);
        let ranges = ranges(at).map(|offset| range(1, offset, 300));
        all.segments.extend(ranges);
        all.segments.remove(1);
        all
    });
    let send = stage.quic_send(1, all.collect::<Vec<_>>());
    assert_eq!(departed(&stage.take_events()), [send]);
    let counters = stage.counters();
    assert_eq!((counters.superpackets, counters.datagrams), (2, 44));
    assert_eq!(counters.file_sent_bytes, 44 * 900);
    assert_eq!(counters.reads, 89, "none is read twice");
    let opened = stage.opened();
    assert_eq!(opened.len(), 44);
    for (at, (flow, number, plaintext)) in (0..).zip(opened) {
        let ranges = ranges(at).map(|offset| &file[offset as usize..][..300]);
        let wanted = [&[support::quic::FRAME], &ranges[..]].concat().concat();
        assert_eq!((flow, number), (1, at));
        assert!(plaintext == wanted, "packet {at}");
    }
}

#[test]
fn a_flow_may_have_both_a_stream_and_datagrams() {
    let (mut stage, file) = stage_with_file(10_000);
    let stream = stage.send(1, 0, [range(1, 0, 10_000)]);
    let datagrams = stage.quic_send(1, [packet(0, 1, 0, 1000)]);
    assert_eq!(departed(&stage.take_events()), [stream, datagrams]);
    assert_eq!(stage.wire.streams()[&1], file);
    assert_eq!(stage.opened(), [(1, 0, plaintext(&file, 0, 1000))]);
    let conflict = quic_key(1, 0, 0);
    stage.tell(&Command::QuicKey(conflict));
    let events = stage.take_events();
    assert_eq!(events, rejected(RejectReason::KeyConflict, 1));
}
