//! What leaves the port for a SEND: every byte, in order, with the right header.

mod support;

use contract::{Event, FileId, RejectReason, Segment, SendId};
use fakes::recording_port::{Answer, FIRST_SEQ};
use nic::Sleep;
use support::{MSS, Stage, content, departed, header, header_v6, range};
use wire::tcp::Flags;

#[test]
fn header_bytes_and_file_leave_as_one_stream() {
    let mut stage = Stage::new();
    let file = content(300_000);
    stage.disk.put(b"a", file.clone());
    stage.open(1, b"a");

    let send = stage.send(
        7,
        0,
        [
            Segment::Inline(b"HTTP/1.1 200 OK\r\n\r\n"),
            range(1, 0, 300_000),
        ],
    );

    assert_eq!(departed(&stage.take_events()), [send]);
    let expected = [b"HTTP/1.1 200 OK\r\n\r\n".as_slice(), &file].concat();
    assert_eq!(stage.wire.streams()[&7], expected);
    // The response header rides with the first bytes of the file.
    assert!(stage.wire.packets()[0].payload.len() > 60_000);
    assert_eq!(stage.counters().file_sent_bytes, 300_000);
    assert_eq!(stage.counters().inline_sent_bytes, 19);
}

#[test]
fn a_worker_whose_reads_cannot_start_looks_again_soon() {
    let mut stage = Stage::new();
    stage.disk.put(b"a", content(1000));
    stage.open(1, b"a");
    stage.disk.refuse(true);
    let send = stage.send(1, 0, [range(1, 0, 1000)]);
    stage.settle();
    assert_eq!(stage.worker.prepare_sleep(), Sleep::Briefly);
    stage.worker.finish_sleep();

    stage.disk.refuse(false);
    assert_eq!(departed(&stage.take_events()), [send]);
    assert_eq!(stage.worker.prepare_sleep(), Sleep::UntilWoken);
}

#[test]
fn ranges_begin_and_end_anywhere() {
    let sizes = [1, 4095, 4096, 4097, 65_535, 65_536, 65_537, 200_001];
    for size in sizes {
        let file = content(size);
        for offset in [0, 1, 4095, 4096, 65_535, 65_536, 131_071] {
            for end in [offset + 1, offset + 1447, offset + 65_160, size] {
                if offset >= size || end > size {
                    continue;
                }
                let mut stage = Stage::new();
                stage.disk.put(b"f", file.clone());
                stage.open(1, b"f");
                stage.send(2, 0, [range(1, offset as u64, (end - offset) as u32)]);
                stage.settle();
                assert_eq!(
                    stage.wire.streams()[&2],
                    &file[offset..end],
                    "{offset}..{end} of {size}"
                );
            }
        }
    }
}

#[test]
fn any_mix_of_segments_keeps_its_order() {
    let mut stage = Stage::new();
    let (a, b) = (content(150_000), content(70_000));
    stage.disk.put(b"a", a.clone());
    stage.disk.put(b"b", b.clone());
    stage.open(1, b"a");
    stage.open(2, b"b");

    stage.send(
        3,
        0,
        [
            range(1, 149_999, 1),
            Segment::Inline(b"between"),
            Segment::Inline(b""),
            range(2, 65_000, 1_000),
            range(1, 10, 140_000),
            Segment::Inline(b"end"),
        ],
    );
    stage.settle();

    let expected = [
        &a[149_999..],
        b"between",
        &b[65_000..66_000],
        &a[10..140_010],
        b"end",
    ]
    .concat();
    assert_eq!(stage.wire.streams()[&3], expected);
}

#[test]
fn superpackets_are_whole_packets_and_advance_the_sequence_number() {
    let mut stage = Stage::new();
    stage.disk.put(b"a", content(1 << 20));
    stage.open(1, b"a");
    stage.send(1, 0, [range(1, 0, 1 << 20)]);
    stage.settle();

    let packets = stage.wire.packets();
    let mut expected_seq = FIRST_SEQ;
    for packet in &packets {
        assert_eq!(packet.seq(), expected_seq);
        assert_eq!(packet.mss, MSS);
        expected_seq = expected_seq.wrapping_add(packet.payload.len() as u32);
    }
    let (last, others) = packets.split_last().unwrap();
    assert!(others.iter().all(|p| p.payload.len() == 45 * 1448));
    assert!(!last.payload.is_empty());
    let on_the_wire = (1usize << 20).div_ceil(1448) as u64;
    assert_eq!(stage.counters().packets, on_the_wire);
}

#[test]
fn fin_and_psh_are_on_the_last_packet_only_and_cwr_on_the_first() {
    let mut stage = Stage::new();
    stage.disk.put(b"a", content(200_000));
    stage.open(1, b"a");
    let flags = Flags::ACK | Flags::PSH | Flags::FIN | Flags::CWR;
    let header = header(1, 0, flags, 1);
    stage.send_with(1, 0, &header, [range(1, 0, 200_000)].into());
    stage.settle();

    let flags: Vec<Flags> = stage.wire.packets().iter().map(|p| p.flags()).collect();
    assert_eq!(
        flags,
        [
            Flags::ACK | Flags::CWR,
            Flags::ACK,
            Flags::ACK,
            Flags::ACK | Flags::PSH | Flags::FIN,
        ]
    );
}

#[test]
fn a_send_without_payload_is_its_header() {
    let mut stage = Stage::new();
    let header = header(1, 500, Flags::ACK | Flags::FIN, 1);
    let send = stage.send_with(1, 500, &header, [].into());

    assert_eq!(departed(&stage.take_events()), [send]);
    let packets = stage.wire.packets();
    assert_eq!(packets.len(), 1);
    assert_eq!(packets[0].payload, b"");
    assert_eq!(packets[0].stream_offset(), 500);
    assert_eq!(packets[0].flags(), Flags::ACK | Flags::FIN);
}

#[test]
fn ipv6_packets_leave_as_well() {
    let mut stage = Stage::new();
    let file = content(100_000);
    stage.disk.put(b"a", file.clone());
    stage.open(1, b"a");
    let header = header_v6(4, 0, Flags::ACK, 1);
    stage.send_with(4, 0, &header, [range(1, 0, 100_000)].into());
    stage.settle();
    // The port of the test has looked at lengths and checksums.
    assert_eq!(stage.wire.streams()[&4], file);
}

#[test]
fn the_timestamp_names_the_millisecond_of_the_departure() {
    let mut stage = Stage::new();
    stage.disk.put(b"a", content(1000));
    stage.open(1, b"a");
    // The header says 5000 ms, and 700 µs of it have passed when the host issues the SEND.
    let header = header(1, 0, Flags::ACK, 5000);
    let send = contract::Send {
        id: SendId(1),
        flow: contract::FlowId(1),
        stream_offset: 0,
        acked_offset: 0,
        issued_us: 2_000_000,
        not_before_us: 0,
        tsval_fraction_us: 700,
        follow_bytes: 0,
        mss: MSS,
        header: &header,
        segments: [range(1, 0, 1000)].into(),
    };

    for (departure_us, timestamp) in [
        (1_500_000, 5000), // The clocks disagree: not backwards.
        (2_000_000, 5000),
        (2_000_299, 5000),
        (2_000_300, 5001),
        (2_012_345, 5013),
    ] {
        stage.tell(&contract::Command::Send(send.clone()));
        stage.now_us.set(departure_us);
        let events = stage.take_events();
        assert!(
            matches!(
                events.as_slice(),
                [Event::Departed { departed_us, .. }] if *departed_us == departure_us
            ),
            "{events:?}"
        );
        let packets = stage.wire.take();
        assert_eq!(packets[0].timestamp(), timestamp, "at {departure_us}");
    }
}

#[test]
fn a_busy_port_delays_and_reorders_nothing() {
    let mut stage = Stage::new();
    let file = content(500_000);
    stage.disk.put(b"a", file.clone());
    stage.open(1, b"a");
    stage.wire.close(true);
    let sends: Vec<SendId> = (0..5u64)
        .map(|part| stage.send(1, part * 100_000, [range(1, part * 100_000, 100_000)]))
        .collect();
    stage.settle();
    assert!(stage.events.is_empty());
    assert_eq!(stage.counters().superpackets, 0);
    assert!(stage.counters().port_waits > 0);

    stage.wire.close(false);
    stage.wire.answer([Answer::Busy]);
    assert_eq!(stage.take_events().len(), 0, "busy once more");
    assert_eq!(departed(&stage.take_events()), sends);
    assert_eq!(stage.wire.streams()[&1], file);
    let offsets: Vec<usize> = stage
        .wire
        .packets()
        .iter()
        .map(|p| p.stream_offset())
        .collect();
    assert!(offsets.is_sorted());
}

#[test]
fn flows_that_have_gone_keep_no_other_waiting() {
    let mut stage = Stage::new();
    stage.wire.close(true);
    for flow in 1..=1000 {
        stage.send(flow, 0, [Segment::Inline(b"x")]);
    }
    stage.settle();
    assert_eq!(stage.counters().superpackets, 0);
    for flow in 1..=1000 {
        stage.acked(flow, 0, true);
    }
    let alive = stage.send(1001, 0, [Segment::Inline(b"y")]);
    stage.settle();
    stage.wire.close(false);
    // An idle worker sleeps until a command comes.
    assert_eq!(departed(&stage.take_events()), [alive]);
    assert_eq!(stage.wire.packets().len(), 1);
}

#[test]
fn what_the_link_drops_or_refuses_has_departed() {
    let mut stage = Stage::new();
    stage.disk.put(b"a", content(100_000));
    stage.open(1, b"a");
    stage
        .wire
        .answer([Answer::Drop, Answer::Fail, Answer::Fail]);
    let first = stage.send(1, 0, [range(1, 0, 100_000)]);
    let second = stage.send(1, 100_000, [Segment::Inline(b"x")]);

    assert_eq!(departed(&stage.take_events()), [first, second]);
    assert_eq!(stage.wire.packets(), []);
    assert_eq!(stage.counters().port_drops, 1);
    assert_eq!(stage.counters().port_failures, 2);

    let third = stage.send(1, 0, [range(1, 0, 1000)]);
    assert_eq!(departed(&stage.take_events()), [third]);
}

#[test]
fn a_small_port_gets_small_packets() {
    let disk = nic::reader::memory::MemoryDisk::new();
    let file = content(50_000);
    disk.put(b"a", file.clone());
    let mut stage = Stage::on(&support::small_config(), Box::new(disk), 1500);
    stage.open(1, b"a");
    stage.send(1, 0, [range(1, 0, 50_000)]);
    stage.settle();
    assert_eq!(stage.wire.streams()[&1], file);
    assert_eq!(stage.wire.packets().len(), 50_000usize.div_ceil(1448));
}

#[test]
fn a_send_may_come_before_the_open_has_completed() {
    let mut stage = Stage::new();
    stage.disk.put(b"slow", content(1000));
    stage.disk.hold(b"slow");
    stage.tell_open(1, b"slow");
    let first = stage.send(1, 0, [range(1, 0, 1000)]);
    let second = stage.send(1, 1000, [Segment::Inline(b"after")]);
    let other = stage.send(2, 0, [Segment::Inline(b"another flow")]);

    assert_eq!(departed(&stage.take_events()), [other]);
    stage.disk.release(b"slow");
    let events = stage.take_events();
    assert!(matches!(
        events[0],
        Event::Opened {
            file: FileId(1),
            ..
        }
    ));
    assert_eq!(departed(&events), [first, second]);
    let expected = [content(1000).as_slice(), b"after"].concat();
    assert_eq!(stage.wire.streams()[&1], expected);
}

#[test]
fn a_range_past_the_end_fails_even_if_the_size_was_not_known_yet() {
    let mut stage = Stage::new();
    stage.disk.put(b"a", content(1000));
    stage.tell_open(1, b"a");
    let early = stage.send(1, 0, [range(1, 990, 11)]);
    let events = stage.take_events();
    assert_eq!(
        events[1..],
        [Event::ReadFailed {
            send: early,
            flow: contract::FlowId(1),
            file: FileId(1),
            offset: 1000,
            errno: 61, // ENODATA
        }]
    );

    let late = stage.send(2, 0, [range(1, 990, 11)]);
    assert_eq!(
        stage.take_events(),
        [Event::Rejected {
            reason: RejectReason::RangePastEnd,
            id: late.0
        }]
    );
    assert_eq!(stage.wire.packets(), []);
}

#[test]
fn files_close_when_they_are_not_needed_any_more() {
    let mut stage = Stage::new();
    stage.disk.put(b"a", content(100_000));
    stage.open(1, b"a");
    stage.disk.hold(b"a");
    let send = stage.send(1, 0, [range(1, 0, 100_000)]);
    stage.tell(&contract::Command::Close { file: FileId(1) });
    stage.settle();
    assert_eq!(
        stage.disk.open_files(),
        1,
        "a SEND accepted before completes"
    );

    // The id is free: it may name another file at once.
    stage.disk.put(b"b", content(5));
    stage.open(1, b"b");
    stage.disk.release(b"a");
    assert_eq!(departed(&stage.take_events()), [send]);
    assert_eq!(stage.wire.streams()[&1], content(100_000));
    stage.tell(&contract::Command::Close { file: FileId(1) });
    stage.settle();
    assert_eq!(stage.disk.open_files(), 0);
}
