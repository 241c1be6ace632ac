//! PREPARE and QRELEASE: what is in memory before packets that need it come, and for how long.

mod support;

use contract::{Command, Event, FileId, FlowId, RejectReason};
use nic::Config;
use support::quic::{Qsend, packet, packets, plaintexts, ready, rejected};
use support::{Stage, content, departed, range, small_config};

const BLOCK: usize = nic::buffer::BLOCK_BYTES;

/// Blocks in as little memory as there may be.
const BLOCKS: usize = Config::CACHE_BYTES_MIN / BLOCK;

/// A stage with as little memory as there may be, a key of flow 1, and a file of so many blocks
/// that is open as 1.
fn tight_stage(blocks: usize) -> (Stage, Vec<u8>) {
    let mut stage = Stage::with(&Config {
        cache_bytes: 0,
        ..small_config()
    });
    let file = content(blocks * BLOCK);
    stage.disk.put(b"a", file.clone());
    stage.open(1, b"a");
    stage.tell_quic_key(1, 0, 0);
    (stage, file)
}

/// Sends all of memory's worth of another file on a stream of TCP, but for `kept` blocks.
fn flood(stage: &mut Stage, kept: usize) {
    stage.disk.put(b"flood", content((BLOCKS - kept) * BLOCK));
    stage.open(9, b"flood");
    for at in 0..BLOCKS - kept {
        let offset = (at * BLOCK) as u64;
        stage.send(9, offset, [range(9, offset, BLOCK as u32)]);
    }
    stage.settle();
    stage.acked(9, u64::MAX, true);
    stage.tell(&Command::Close { file: FileId(9) });
    stage.settle();
    stage.events.clear();
}

#[test]
fn what_is_prepared_is_sent_without_a_read() {
    let (mut stage, file) = tight_stage(20);
    let len = 1 << 20;
    let prepare = stage.prepare(1, 1, 1000, len);
    assert_eq!(stage.take_events(), [ready(prepare, 1)]);
    let reads = stage.disk.reads().len();
    assert_eq!(reads, 17);
    let counters = stage.counters();
    assert_eq!((counters.prepares, counters.prepares_ready), (1, 1));
    assert_eq!((counters.blocks_prepared, counters.block_misses), (17, 0));
    assert_eq!(stage.opened(), [], "nothing leaves");

    stage.disk.hold(b"a");
    let send = stage.quic_send(1, packets(0, 1, 500_000, 40_000, 1400));
    assert_eq!(departed(&stage.take_events()), [send]);
    assert!(stage.opened() == plaintexts((1, 0), &file[..540_000], 500_000, 1400));
    assert_eq!(stage.disk.reads().len(), reads);
    assert!(stage.counters().block_hits > 0);
}

#[test]
fn what_is_in_memory_already_is_ready_at_once() {
    let (mut stage, _) = tight_stage(3);
    stage.send(2, 0, [range(1, 0, 3 * BLOCK as u32)]);
    stage.settle();
    stage.events.clear();
    stage.disk.hold(b"a");
    let prepare = stage.prepare(1, 1, 0, 3 * BLOCK as u32);
    assert_eq!(stage.take_events(), [ready(prepare, 1)]);
    assert_eq!(stage.counters().blocks_prepared, 0);
}

#[test]
fn a_prepare_waits_for_nothing_but_its_own_reads() {
    let (mut stage, _) = tight_stage(4);
    stage.disk.put(b"slow", content(BLOCK));
    stage.open(2, b"slow");
    stage.disk.hold(b"slow");
    let slow = stage.prepare(1, 2, 0, 1000);
    let held = Qsend {
        held_us: 1000,
        ..Qsend::new(1, [packet(0, 1, 0, 1000)])
    };
    let held = stage.issue(&held);
    stage.settle();
    stage.wire.close(true);
    stage.send(3, 0, [range(1, 0, 1000)]);
    let fast = stage.prepare(1, 1, BLOCK as u64, 1000);
    assert_eq!(stage.take_events(), [ready(fast, 1)]);
    stage.disk.release(b"slow");
    assert_eq!(stage.take_events(), [ready(slow, 1)]);
    stage.wire.close(false);
    stage.now_us.set(stage.now_us.get() + 1000);
    assert!(departed(&stage.take_events()).contains(&held));
}

#[test]
fn a_file_that_is_being_opened_is_waited_for() {
    let mut stage = Stage::new();
    stage.disk.put(b"a", content(1000));
    stage.disk.hold(b"a");
    stage.tell_open(1, b"a");
    // A key comes later.
    let prepare = stage.prepare(1, 1, 0, 1000);
    assert_eq!(stage.take_events(), []);
    stage.disk.release(b"a");
    let events = stage.take_events();
    assert!(matches!(events[0], Event::Opened { .. }));
    assert_eq!(events[1..], [ready(prepare, 1)]);
    stage.tell_quic_key(1, 0, 0);
    let send = stage.quic_send(1, [packet(0, 1, 0, 1000)]);
    assert_eq!(departed(&stage.take_events()), [send]);
}

#[test]
fn what_cannot_be_prepared_is_reported_and_the_flow_goes_on() {
    let (mut stage, file) = tight_stage(4);
    stage.disk.spoil(b"a", 70_000, 5);
    let failing = stage.prepare(1, 1, 60_000, 20_000);
    let failed = Event::ReadFailed {
        send: failing,
        flow: FlowId(1),
        file: FileId(1),
        offset: 70_000,
        errno: 5,
    };
    assert_eq!(stage.take_events(), [failed]);
    let unknown = stage.prepare(1, 7, 0, 1);
    let reason = RejectReason::UnknownFile;
    assert_eq!(stage.take_events(), rejected(reason, unknown.0));
    let behind = stage.prepare(1, 1, 4 * BLOCK as u64 - 10, 11);
    let reason = RejectReason::RangePastEnd;
    assert_eq!(stage.take_events(), rejected(reason, behind.0));
    // A file that is not there, of which the host does not know yet.
    stage.tell_open(2, b"nothing");
    let early = stage.prepare(1, 2, 0, 1000);
    let events = stage.take_events();
    assert!(matches!(events[0], Event::OpenFailed { errno: 2, .. }));
    let failed = matches!(events[1], Event::ReadFailed { send, errno: 2, .. } if send == early);
    assert!(failed && events.len() == 2, "{events:?}");
    let before = stage.prepare(1, 1, 0, 60_000);
    assert_eq!(stage.take_events(), [ready(before, 1)]);
    let send = stage.quic_send(1, packets(0, 1, 0, 3000, 1000));
    assert_eq!(departed(&stage.take_events()), [send]);
    assert!(stage.opened() == plaintexts((1, 0), &file[..3000], 0, 1000));
    assert_eq!(stage.worker.usage().prepares, 0);
    assert_eq!(stage.counters().reads_failed, 2);
}

#[test]
fn what_is_ready_stays_for_a_second_even_if_memory_is_wanted() {
    let (mut stage, _) = tight_stage(4);
    let prepare = stage.prepare(1, 1, 0, 4 * BLOCK as u32);
    assert_eq!(stage.take_events(), [ready(prepare, 1)]);
    assert_eq!(stage.worker.usage().blocks_pinned, 4);
    flood(&mut stage, 4);
    flood(&mut stage, 4);
    assert_eq!(stage.worker.usage().blocks_pinned, 4);
    let reads = stage.disk.reads().len();
    let send = stage.quic_send(1, packets(0, 1, 0, 40_000, 1400));
    assert_eq!(departed(&stage.take_events()), [send]);
    assert_eq!(stage.disk.reads().len(), reads);

    // Then it may go, and is read again.
    stage.now_us.set(stage.now_us.get() + 1_000_001);
    flood(&mut stage, 0);
    assert_eq!(stage.counters().pins_broken, 4);
    let reads = stage.disk.reads().len();
    let send = stage.quic_send(1, packets(100, 1, 0, 40_000, 1400));
    assert_eq!(departed(&stage.take_events()), [send]);
    assert_eq!(stage.disk.reads().len(), reads + 1);
}

#[test]
fn what_was_sent_is_kept_for_a_retransmission_until_it_is_released() {
    let (mut stage, _) = tight_stage(3);
    let block = BLOCK as u64;
    for at in 0..3 {
        stage.quic_send(1, packets(100 * at, 1, at * block, 1400 * 40, 1400));
    }
    stage.settle();
    assert_eq!(stage.worker.usage().blocks_pinned, 3);
    // Other flows release what is theirs.
    stage.release(2, 1, 0, 3 * block);
    stage.release(1, 2, 0, 3 * block);
    stage.release(1, 1, 0, block);
    stage.settle();
    assert_eq!(stage.worker.usage().blocks_pinned, 2);
    stage.release(1, 1, block, 30_000);
    stage.settle();
    assert_eq!(
        stage.worker.usage().blocks_pinned,
        2,
        "half of it is needed"
    );
    stage.release(1, 1, block + 30_000, 26_000);
    stage.settle();
    assert_eq!(stage.worker.usage().blocks_pinned, 1);

    flood(&mut stage, 1);
    flood(&mut stage, 1);
    let reads = stage.disk.reads().len();
    // A retransmission has other numbers, and other borders.
    let again = stage.quic_send(1, packets(1000, 1, 2 * block + 500, 30_000, 1300));
    assert_eq!(departed(&stage.take_events()), [again]);
    assert_eq!(stage.disk.reads().len(), reads);
    let gone = stage.quic_send(1, packets(2000, 1, 0, 30_000, 1300));
    assert_eq!(departed(&stage.take_events()), [gone]);
    assert_eq!(stage.disk.reads().len(), reads + 1);

    stage.acked(1, 0, true);
    stage.settle();
    assert_eq!(stage.worker.usage().blocks_pinned, 0);
    assert_eq!(stage.worker.usage().blocks_occupied, 0);
}

/// More than memory holds, of several flows: each gets its turn.
#[test]
fn prepares_wait_for_memory_in_turn() {
    let blocks = 2 * BLOCKS;
    let (mut stage, file) = tight_stage(blocks);
    let mut waiting: Vec<_> = (0..blocks as u64 / 8)
        .map(|at| {
            let flow = 1 + at % 3;
            let offset = at * 8 * BLOCK as u64;
            (stage.prepare(flow, 1, offset, 8 * BLOCK as u32), flow)
        })
        .collect();
    let mut rounds = 0;
    while !waiting.is_empty() {
        for event in stage.take_events() {
            let Event::Ready { prepare, flow } = event else {
                panic!("{event:?}");
            };
            let at = waiting.iter().position(|wanted| wanted.0 == prepare);
            let (_, asker) = waiting.remove(at.expect("it was asked for"));
            assert_eq!(flow, FlowId(asker));
        }
        // Pins go after a second.
        stage.now_us.set(stage.now_us.get() + 1_000_001);
        rounds += 1;
        assert!(rounds < 10, "{} wait", waiting.len());
    }
    assert!(rounds > 1, "memory was short");
    assert!(stage.counters().block_waits > 0);
    let send = stage.quic_send(1, packets(0, 1, 0, 40_000, 1400));
    assert_eq!(departed(&stage.take_events()), [send]);
    assert!(stage.opened() == plaintexts((1, 0), &file[..40_000], 0, 1400));
}

/// Whatever it waits for: its file, its reads, or memory.
#[test]
fn the_end_of_a_flow_ends_what_it_has_asked_for() {
    let blocks = BLOCKS + 20;
    let (mut stage, _) = tight_stage(blocks);
    stage.disk.put(b"late", content(1000));
    stage.disk.hold(b"late");
    stage.tell_open(2, b"late");
    stage.prepare(1, 2, 0, 1000);
    stage.disk.hold(b"a");
    let each = 16 * BLOCK as u32;
    for at in 0..blocks as u64 / 16 {
        stage.prepare(1, 1, at * u64::from(each), each);
    }
    assert_eq!(stage.take_events(), []);
    assert!(stage.counters().block_waits > 0, "memory is short");
    assert_eq!(stage.worker.usage().prepares, 1 + blocks / 16);
    let reads = stage.disk.reads().len();

    stage.acked(1, 0, true);
    // The name comes back, and asks for something as well.
    stage.tell_quic_key(1, 0, 0);
    let again = stage.prepare(1, 1, 0, 1000);
    assert_eq!(stage.take_events(), []);
    stage.disk.release(b"a");
    stage.disk.release(b"late");
    let events = stage.take_events();
    let opened = events
        .iter()
        .filter(|it| matches!(it, Event::Opened { .. }));
    assert_eq!((opened.count(), events.len()), (1, 2), "{events:?}");
    assert!(events.contains(&ready(again, 1)));
    assert_eq!(stage.disk.reads().len(), reads, "nothing is read for it");
    let usage = stage.worker.usage();
    assert_eq!((usage.prepares, usage.jobs, usage.flows), (0, 0, 1));
    assert_eq!(usage.blocks_pinned, 1);
}

#[test]
fn too_many_flows_are_refused() {
    let mut stage = Stage::with(&Config {
        flows_max: 2,
        ..small_config()
    });
    stage.disk.put(b"a", content(1000));
    stage.open(1, b"a");
    stage.disk.hold(b"a");
    // Prepares of two flows, however many.
    for flow in [1, 2, 1, 2, 1] {
        stage.prepare(flow, 1, 0, 1000);
    }
    assert_eq!(stage.take_events(), []);
    let third = stage.prepare(3, 1, 0, 1000);
    let reason = RejectReason::TooManyFlows;
    assert_eq!(stage.take_events(), rejected(reason, third.0));
    stage.disk.release(b"a");
    assert_eq!(stage.take_events().len(), 5);
    stage.acked(2, 0, true);
    let third = stage.prepare(3, 1, 0, 1000);
    assert_eq!(stage.take_events(), [ready(third, 3)]);
}
