//! What stays in memory, for how long, and what happens when there is no more of it.

mod support;

use std::collections::{HashMap, HashSet};

use contract::{Command, FileId, Segment, SendId};
use nic::Config;
use support::{Stage, content, departed, range};

const BLOCK: usize = nic::buffer::BLOCK_BYTES;

/// Blocks in it.
const BLOCKS: usize = Config::CACHE_BYTES_MIN / BLOCK;

/// As little memory as there may be.
fn tight_config() -> Config {
    Config {
        cache_bytes: 0,
        ..Config::default()
    }
}

#[test]
fn a_retransmission_does_not_read_again() {
    let mut stage = Stage::with(&tight_config());
    let file = content(300_000);
    stage.disk.put(b"a", file.clone());
    stage.open(1, b"a");
    stage.send(1, 0, [range(1, 0, 300_000)]);
    stage.settle();
    let reads = stage.disk.reads().len();
    assert_eq!(reads, 300_000usize.div_ceil(BLOCK));

    stage.send(1, 70_000, [range(1, 70_000, 1448)]);
    stage.send(1, 200_000, [range(1, 200_000, 100_000)]);
    stage.settle();

    assert_eq!(stage.disk.reads().len(), reads);
    assert_eq!(stage.counters().block_misses as usize, reads);
    assert!(stage.counters().block_hits >= 3);
    assert_eq!(stage.wire.streams()[&1], file);
}

#[test]
fn what_is_acknowledged_goes_and_what_is_not_stays() {
    what_stays(|stage, offset| stage.acked(1, offset, false));
}

#[test]
fn a_send_says_what_is_acknowledged_as_well() {
    what_stays(|stage, offset| stage.acked_offset = offset);
}

/// `acknowledge` tells the worker, at the latest with the next SEND, that the peer has everything
/// before an offset.
fn what_stays(acknowledge: impl FnOnce(&mut Stage, u64)) {
    let mut stage = Stage::with(&tight_config());
    stage.disk.put(b"a", content(10 * BLOCK));
    stage.open(1, b"a");
    stage.send(1, 0, [range(1, 0, 10 * BLOCK as u32)]);
    stage.settle();
    assert_eq!(stage.disk.reads().len(), 10);
    assert_eq!(stage.worker.usage().blocks_pinned, 10);

    // In the midst of the fourth block: three are covered whole.
    acknowledge(&mut stage, 3 * BLOCK as u64 + 5);
    stage.send(1, 10 * BLOCK as u64, [Segment::Inline(b"news")]);
    stage.settle();
    assert_eq!(stage.worker.usage().blocks_pinned, 7);

    // Another flow needs all the memory that may be had.
    stage.acked_offset = 0;
    stage.disk.put(b"b", content(BLOCKS * BLOCK));
    stage.open(2, b"b");
    let others = (BLOCKS - 7) * BLOCK;
    let sent: Vec<_> = (0..others as u64)
        .step_by(BLOCK)
        .map(|offset| stage.send(2, offset, [range(2, offset, BLOCK as u32)]))
        .collect();
    let events = stage.take_events();
    assert_eq!(departed(&events)[2..], sent);
    assert_eq!(stage.worker.usage().blocks_pinned, BLOCKS);

    let reads = stage.disk.reads().len();
    let rest = 3 * BLOCK as u64;
    stage.send(1, rest, [range(1, rest, 7 * BLOCK as u32)]);
    assert_eq!(departed(&stage.take_events()).len(), 1);
    assert_eq!(stage.disk.reads().len(), reads, "these were pinned");

    stage.acked(2, 0, true);
    stage.send(1, 0, [range(1, 0, 3 * BLOCK as u32)]);
    assert_eq!(departed(&stage.take_events()).len(), 1);
    assert_eq!(stage.disk.reads().len(), reads + 3, "these were not");

    stage.acked(1, 0, true);
    stage.settle();
    assert_eq!(stage.worker.usage().blocks_pinned, 0, "the flow is over");
}

#[test]
fn pins_hold_for_a_second_and_then_the_oldest_make_way() {
    let mut stage = Stage::with(&tight_config());
    let file = content((BLOCKS + 10) * BLOCK);
    stage.disk.put(b"a", file.clone());
    stage.open(1, b"a");
    let sends: Vec<_> = (0..file.len() as u64)
        .step_by(BLOCK)
        .map(|offset| stage.send(1, offset, [range(1, offset, BLOCK as u32)]))
        .collect();
    let first = stage.take_events();
    assert_eq!(departed(&first), sends[..BLOCKS], "the others wait");
    assert_eq!(stage.worker.prepare_sleep(), nic::Sleep::UntilWoken);
    stage.worker.finish_sleep();
    let begun_us = stage.now_us.get();
    assert_eq!(stage.worker.next_timeout_us(), Some(begun_us + 1_000_000));
    assert_eq!(stage.counters().pins_broken, 0);

    stage.now_us.set(begun_us + 1_000_000);
    let second = stage.take_events();
    assert_eq!(departed(&second), sends[BLOCKS..]);
    assert_eq!(stage.counters().pins_broken, 10);
    assert_eq!(stage.counters().block_waits, 1);
    assert_eq!(stage.worker.next_timeout_us(), None);
    assert_eq!(stage.worker.usage().blocks_pinned, BLOCKS);

    // The eleventh is still there, the first is not.
    let reads = stage.disk.reads().len();
    assert_eq!(reads, BLOCKS + 10);
    let eleventh = 10 * BLOCK as u64;
    stage.send(1, eleventh, [range(1, eleventh, BLOCK as u32)]);
    stage.settle();
    assert_eq!(stage.disk.reads().len(), reads);
    stage.send(1, 0, [range(1, 0, BLOCK as u32)]);
    stage.settle();
    assert_eq!(stage.disk.reads().len(), reads + 1);
    assert_eq!(stage.wire.streams()[&1], file);
}

#[test]
fn a_retransmission_overtakes_flows_that_need_more_memory() {
    let mut stage = Stage::with(&tight_config());
    stage.disk.put(b"a", content(BLOCKS * BLOCK));
    stage.disk.put(b"b", content(4 * BLOCK));
    stage.open(1, b"a");
    stage.open(2, b"b");
    for offset in (0..BLOCKS * BLOCK).step_by(1 << 20) {
        let len = (BLOCKS * BLOCK - offset).min(1 << 20) as u32;
        stage.send(1, offset as u64, [range(1, offset as u64, len)]);
    }
    stage.take_events();
    let waits = stage.send(2, 0, [range(2, 0, 4 * BLOCK as u32)]);
    assert_eq!(departed(&stage.take_events()), []);

    // All memory is pinned by a flow whose first block was lost, so nothing is acknowledged.
    let again = stage.send(1, 0, [range(1, 0, BLOCK as u32)]);
    assert_eq!(departed(&stage.take_events()), [again]);
    stage.acked(1, 3 * BLOCK as u64, false);
    assert_eq!(
        departed(&stage.take_events()),
        [],
        "a superpacket is short of a block"
    );
    stage.acked(1, 5 * BLOCK as u64, false);
    assert_eq!(departed(&stage.take_events()), [waits]);
    assert_eq!(stage.counters().pins_broken, 0);
}

#[test]
fn flows_that_all_hold_blocks_and_all_need_another_go_on() {
    let mut stage = Stage::with(&tight_config());
    let file = content(8 * BLOCK);
    for flow in 0..BLOCKS as u64 {
        let name = flow.to_string();
        stage.disk.put(name.as_bytes(), file.clone());
        stage.open(flow as u32, name.as_bytes());
        stage.send(flow, 0, [range(flow as u32, 0, BLOCK as u32)]);
    }
    assert_eq!(departed(&stage.take_events()).len(), BLOCKS);

    // No block is acknowledged until the next has arrived as well, for which there is no memory.
    for part in 1..8 {
        for flow in 0..BLOCKS as u64 {
            let offset = part * BLOCK as u64;
            stage.send(flow, offset, [range(flow as u32, offset, BLOCK as u32)]);
        }
        assert_eq!(departed(&stage.take_events()), []);
        let woken_us = stage.worker.next_timeout_us().expect("a flow waits");
        assert!(woken_us <= stage.now_us.get() + 1_000_000);
        stage.now_us.set(woken_us);
        assert_eq!(departed(&stage.take_events()).len(), BLOCKS);
    }
    assert!(stage.wire.streams().values().all(|stream| *stream == file));
}

#[test]
fn who_lacks_a_block_gets_it_while_others_keep_all_of_them_pinned() {
    someone_else_comes_to_a_crowd(0);
}

#[test]
fn who_lacks_a_block_gets_it_while_others_keep_all_of_them_in_use() {
    // Longer than it takes until a flow uses the same block again.
    someone_else_comes_to_a_crowd(CROWD_TURN_US * 3 / 2);
}

/// Bytes of each block that the crowd is sent: one superpacket.
const CROWD_PART: usize = 60_000;
const CROWD_TURN_US: u64 = 100_000;
/// Blocks of a viewer: no more superpackets of a flow are planned at once.
const VIEWER_BLOCKS: usize = 16;

/// A file as large as the cache is sent again and again, to one half of the viewers and then to the
/// other; what one half has got is acknowledged when the other half has got it too. SENDs leave
/// `held_us` after they came.
fn a_turn_of_the_crowd(stage: &mut Stage, turn: usize, held_us: u64) {
    let (before, half) = (turn / 2, turn % 2);
    let mut acknowledgments = Vec::new();
    for first in (0..BLOCKS).step_by(VIEWER_BLOCKS) {
        let blocks = first..BLOCKS.min(first + VIEWER_BLOCKS);
        let file_bytes = blocks.len() * CROWD_PART;
        let viewer = |half| (1000 + first + half) as u64;
        stage.held_us = held_us;
        for (place, block) in blocks.enumerate() {
            let stream_offset = (before * file_bytes + place * CROWD_PART) as u64;
            let part = range(1, (block * BLOCK) as u64, CROWD_PART as u32);
            stage.send(viewer(half), stream_offset, [part]);
        }
        stage.held_us = 0;
        let got = (before + half).saturating_sub(usize::from(held_us > 0));
        acknowledgments.push((viewer(1 - half), (got * file_bytes) as u64));
    }
    stage.settle();
    for (viewer, stream_offset) in acknowledgments {
        stage.acked(viewer, stream_offset, false);
    }
    stage.settle();
    stage.now_us.set(stage.now_us.get() + CROWD_TURN_US);
}

fn someone_else_comes_to_a_crowd(held_us: u64) {
    let mut stage = Stage::with(&tight_config());
    let (hot, cold) = (content(BLOCKS * BLOCK), content(4 * BLOCK));
    stage.disk.put(b"hot", hot.clone());
    stage.disk.put(b"cold", cold.clone());
    stage.open(1, b"hot");
    stage.open(2, b"cold");
    let mut sent = 0;
    for turn in 0..2 {
        a_turn_of_the_crowd(&mut stage, turn, held_us);
        sent += BLOCKS;
    }
    let stranger = stage.send(2, 0, [range(2, 0, 4 * BLOCK as u32)]);
    sent += 1;
    let came_us = stage.now_us.get();
    for turn in 2..50 {
        a_turn_of_the_crowd(&mut stage, turn, held_us);
        sent += BLOCKS;
        if departed(&stage.events).contains(&stranger) {
            break;
        }
    }
    assert!(departed(&stage.events).contains(&stranger));
    let waited_us = stage.now_us.get() - came_us;
    assert!(
        waited_us <= 1_000_000 + held_us + 2 * CROWD_TURN_US,
        "{waited_us} us"
    );

    // The crowd goes on, too.
    while departed(&stage.events).len() < sent {
        let woken_us = stage.worker.next_timeout_us().expect("a flow waits");
        stage.now_us.set(woken_us.max(stage.now_us.get()));
        stage.settle();
    }
    for (flow, stream) in stage.wire.streams() {
        let expected: Vec<u8> = match flow {
            2 => cold.clone(),
            viewer => {
                let first = (viewer as usize - 1000) & !1;
                let blocks = hot.chunks(BLOCK).skip(first).take(VIEWER_BLOCKS);
                blocks
                    .flat_map(|block| block[..CROWD_PART].to_vec())
                    .collect()
            }
        };
        let passes = stream.len() / expected.len();
        assert!(stream == expected.repeat(passes), "flow {flow}");
    }
}

#[test]
fn a_thousand_flows_that_send_the_same_file_read_each_block_once() {
    let config = Config {
        cache_bytes: 16 << 20,
        ..Config::default()
    };
    let mut stage = Stage::with(&config);
    const FLOWS: u64 = 1000;
    const PART: usize = 20_000;
    stage.wire.be_lenient();
    let file = content(10 * PART);
    stage.disk.put(b"a", file.clone());
    stage.open(1, b"a");
    // They begin one after the other, and each repeats one part in twenty.
    for turn in 0..FLOWS + 10 {
        for part in 0..10 {
            let Some(flow) = turn.checked_sub(part).filter(|flow| *flow < FLOWS) else {
                continue;
            };
            let offset = part * PART as u64;
            for _ in 0..1 + u32::from((flow * 10 + part) % 20 == 7) {
                stage.send(flow, offset, [range(1, offset, PART as u32)]);
            }
            if part > 0 {
                stage.acked(flow, offset - PART as u64, false);
            }
        }
        stage.settle();
        let mut received = stage.wire.take();
        for packet in received.drain(..) {
            let offset = packet.stream_offset();
            assert_eq!(packet.payload, file[offset..offset + packet.payload.len()]);
        }
        stage.events.clear();
    }
    let counters = stage.counters();
    assert_eq!(
        counters.file_sent_bytes,
        FLOWS * file.len() as u64 / 20 * 21
    );
    assert_eq!(counters.reads, file.len().div_ceil(BLOCK) as u64);
    assert_eq!((counters.blocks_evicted, counters.pins_broken), (0, 0));
}

#[test]
fn flows_that_need_a_block_at_the_same_time_share_its_read() {
    let mut stage = Stage::new();
    let file = content(100);
    stage.disk.put(b"a", file.clone());
    stage.open(1, b"a");
    stage.disk.hold(b"a");
    for flow in 1..=100 {
        stage.send(flow, 0, [range(1, 0, 100)]);
    }
    assert_eq!(departed(&stage.take_events()), []);
    stage.disk.release(b"a");
    assert_eq!(departed(&stage.take_events()).len(), 100);
    assert_eq!(stage.disk.reads().len(), 1);
    assert_eq!(stage.counters().reads_shared, 99);
    assert!(stage.wire.streams().values().all(|stream| *stream == file));
}

#[test]
fn what_was_sent_and_acknowledged_is_still_there_for_the_next() {
    let mut stage = Stage::with(&tight_config());
    stage.disk.put(b"a", content(BLOCKS / 2 * BLOCK));
    stage.open(1, b"a");
    for flow in 1..=3 {
        for offset in (0..BLOCKS / 2 * BLOCK).step_by(BLOCK) {
            stage.send(flow, offset as u64, [range(1, offset as u64, BLOCK as u32)]);
        }
        stage.settle();
        stage.acked(flow, 0, true);
    }
    stage.settle();
    assert_eq!(stage.disk.reads().len(), BLOCKS / 2);
    let usage = stage.worker.usage();
    assert_eq!((usage.blocks_cached, usage.blocks_pinned), (BLOCKS / 2, 0));
}

#[test]
fn a_download_of_a_huge_file_does_not_drive_out_what_many_want() {
    let mut stage = Stage::with(&tight_config());
    stage.disk.put(b"hot", content(40 * BLOCK));
    stage.disk.put(b"huge", content(1000 * BLOCK));
    stage.open(1, b"hot");
    stage.open(2, b"huge");
    let download = |stage: &mut Stage, flow: u64, file: u32, blocks: usize| {
        for number in 0..blocks {
            // Windows end within blocks, and something is lost now and then.
            let offset = (number * BLOCK) as u64;
            stage.send(flow, offset, [range(file, offset, 20_000)]);
            stage.send(
                flow,
                offset + 20_000,
                [range(file, offset + 20_000, 45_536)],
            );
            stage.settle();
            if number % 7 == 0 {
                stage.send(flow, offset, [range(file, offset, 1448)]);
            }
            stage.acked(flow, offset + BLOCK as u64, number + 1 == blocks);
        }
    };
    for flow in 1..=2 {
        download(&mut stage, flow, 1, 40);
    }
    download(&mut stage, 3, 2, 1000);
    stage.settle();
    let reads = stage.disk.reads().len();
    assert_eq!(reads, 40 + 1000);
    download(&mut stage, 4, 1, 40);
    stage.settle();
    assert_eq!(stage.disk.reads().len(), reads);
}

#[test]
fn flows_share_what_one_of_them_has_read() {
    let mut stage = Stage::new();
    let file = content(500_000);
    stage.disk.put(b"a", file.clone());
    for flow in 1..=20 {
        // Each opens the file for itself: it is the same version of the same file.
        stage.open(flow, b"a");
        stage.send(flow.into(), 0, [range(flow, 0, 500_000)]);
    }
    stage.settle();
    assert_eq!(stage.disk.reads().len(), 500_000usize.div_ceil(BLOCK));
    for stream in stage.wire.streams().values() {
        assert_eq!(stream, &file);
    }
}

#[test]
fn a_changed_file_is_read_again() {
    let mut stage = Stage::new();
    let (old, new) = (content(100_000), content(100_000).split_off(1));
    stage.disk.put(b"a", old.clone());
    stage.open(1, b"a");
    stage.send(1, 0, [range(1, 0, 100_000)]);
    stage.settle();
    stage.disk.put(b"a", new.clone());
    stage.open(2, b"a");
    stage.send(2, 0, [range(2, 0, 99_999)]);
    stage.settle();
    assert_eq!(stage.wire.streams()[&1], old);
    assert_eq!(stage.wire.streams()[&2], new);
}

#[test]
fn a_file_whose_timestamps_are_too_young_is_not_shared() {
    let mut stage = Stage::new();
    let old = content(5000);
    let new: Vec<u8> = old.iter().map(|byte| !byte).collect();
    stage.disk.put(b"a", old.clone());
    stage.disk.unsettle(b"a");
    stage.open(1, b"a");
    stage.send(1, 0, [range(1, 0, 5000)]);
    stage.settle();
    // Changed again, so soon that size and timestamps are the same.
    stage.disk.overwrite(b"a", new.clone());
    stage.open(2, b"a");
    stage.send(2, 0, [range(2, 0, 5000)]);
    stage.settle();
    assert_eq!(stage.wire.streams()[&1], old);
    assert_eq!(stage.wire.streams()[&2], new);
}

#[test]
fn when_memory_runs_short_every_flow_waits_and_none_fails() {
    let (stage, _) = everybody_wants_all_memory(Config::default().jobs_max);
    assert_eq!(stage.counters().pins_broken, 0);
}

#[test]
fn when_acknowledgments_wait_behind_sends_that_wait_for_them_no_flow_fails_either() {
    let (stage, waited_us) = everybody_wants_all_memory(100);
    assert!(stage.counters().pins_broken > 0);
    // A second for each time that all blocks have been taken, and a SEND takes two at most.
    assert!(waited_us <= 2 * 1_000_000 * 1000 / BLOCKS as u64);
}

/// Many flows send more than there is memory for. How long they have had to wait for time to pass.
fn everybody_wants_all_memory(jobs_max: usize) -> (Stage, u64) {
    let config = Config {
        jobs_max,
        ..tight_config()
    };
    let mut stage = Stage::with(&config);
    let begun_us = stage.now_us.get();
    const FLOWS: u64 = 250;
    let file = content(4 * 40_000);
    for flow in 0..FLOWS {
        // Files of their own, so that nothing is shared.
        let name = flow.to_string();
        stage.disk.put(name.as_bytes(), file.clone());
        stage.open(flow as u32, name.as_bytes());
    }
    let mut sends = HashMap::new();
    for part in 0..4 {
        for flow in 0..FLOWS {
            let offset = part * 40_000;
            let id = stage.send(flow, offset, [range(flow as u32, offset, 40_000)]);
            sends.insert(id, (flow, offset + 40_000));
        }
    }
    // What has arrived is acknowledged.
    let mut order = Vec::new();
    while order.len() < sends.len() {
        let now = departed(&stage.take_events());
        if now.is_empty() {
            let woken_us = stage.worker.next_timeout_us();
            stage.now_us.set(woken_us.expect("a flow waits"));
        }
        for id in now {
            let (flow, end) = sends[&id];
            order.push((flow, end));
            stage.acked(flow, end, false);
        }
    }

    assert_eq!(order.iter().collect::<HashSet<_>>().len(), sends.len());
    let streams = stage.wire.streams();
    assert_eq!(streams.len(), FLOWS as usize);
    assert!(streams.values().all(|stream| *stream == file));
    let counters = stage.counters();
    assert_eq!(
        counters.blocks_used_max as usize, BLOCKS,
        "all of them were wanted"
    );
    assert!(counters.block_waits > FLOWS);
    let waited_us = stage.now_us.get() - begun_us;
    (stage, waited_us)
}

#[test]
fn commands_stay_in_the_ring_while_too_many_sends_wait() {
    let config = Config {
        jobs_max: 10,
        ..tight_config()
    };
    let mut stage = Stage::with(&config);
    stage.disk.put(b"a", content(1000));
    stage.open(1, b"a");
    stage.disk.hold(b"a");
    for flow in 0..20 {
        stage.send(flow, 0, [range(1, 0, 1000)]);
    }
    stage.settle();
    assert_eq!(stage.counters().sends, 10);
    stage.disk.release(b"a");
    assert_eq!(departed(&stage.take_events()).len(), 20);
}

#[test]
fn a_slow_file_delays_its_own_flow_only() {
    let mut stage = Stage::new();
    stage.disk.put(b"slow", content(200_000));
    stage.disk.put(b"quick", content(200_000));
    stage.open(1, b"slow");
    stage.open(2, b"quick");
    stage.disk.hold(b"slow");
    let slow = stage.send(1, 0, [range(1, 0, 200_000)]);
    let behind = stage.send(1, 200_000, [Segment::Inline(b"behind")]);
    let quick = stage.send(2, 0, [range(2, 0, 200_000)]);

    assert_eq!(departed(&stage.take_events()), [quick]);
    stage.disk.release(b"slow");
    assert_eq!(departed(&stage.take_events()), [slow, behind]);
}

#[test]
fn flows_take_turns() {
    let mut stage = Stage::new();
    stage.disk.put(b"a", content(1 << 20));
    stage.open(1, b"a");
    stage.wire.close(true);
    for flow in 1..=4 {
        stage.send(flow, 0, [range(1, 0, 1 << 20)]);
    }
    stage.settle();
    stage.wire.close(false);
    stage.settle();
    let order: Vec<u64> = stage.wire.packets().iter().map(|p| p.flow().0).collect();
    for turn in order[..40].chunks(4) {
        assert_eq!(turn.iter().collect::<HashSet<_>>().len(), 4, "{order:?}");
    }
}

#[test]
fn reads_run_ahead_of_what_waits_but_not_without_bound() {
    let mut stage = Stage::new();
    stage.disk.put(b"a", content(8 << 20));
    stage.open(1, b"a");
    stage.wire.close(true);
    for part in 0..8u64 {
        stage.send(1, part << 20, [range(1, part << 20, 1 << 20)]);
    }
    stage.settle();
    let ahead = stage.disk.reads().len();
    assert!((8..=20).contains(&ahead), "{ahead} reads");
    stage.wire.close(false);
    stage.settle();
    assert_eq!(stage.wire.streams()[&1], content(8 << 20));
    assert_eq!(stage.disk.reads().len(), 128, "each block once");
}

#[test]
fn the_end_of_a_flow_drops_what_is_queued_for_it() {
    let mut stage = Stage::with(&tight_config());
    stage.disk.put(b"a", content(1 << 20));
    stage.open(1, b"a");
    stage.disk.hold(b"a");
    stage.send(1, 0, [range(1, 0, 1 << 20)]);
    stage.send(1, 1 << 20, [Segment::Inline(b"more")]);
    stage.settle();
    stage.acked(1, 0, true);
    stage.tell(&Command::Close { file: FileId(1) });
    stage.settle();
    stage.disk.release(b"a");
    assert_eq!(stage.take_events(), []);
    assert_eq!(stage.wire.packets(), []);
    assert_eq!(stage.disk.open_files(), 0);

    // All memory is there again.
    stage.disk.put(b"b", content(BLOCKS * BLOCK));
    stage.open(2, b"b");
    for part in 0..BLOCKS as u64 {
        let offset = part * BLOCK as u64;
        stage.send(2, offset, [range(2, offset, BLOCK as u32)]);
    }
    assert_eq!(departed(&stage.take_events()).len(), BLOCKS);
}

#[test]
fn a_host_that_takes_no_events_holds_up_commands_and_loses_nothing() {
    let mut stage = Stage::new();
    const SENDS: usize = 20_000;
    let mut told = 0;
    // Without listening, until the command ring is full too.
    let mut stuck = 0;
    while stuck < 3 {
        let header = support::header(1, 0, wire::tcp::Flags::ACK, 1);
        let send = contract::Send {
            id: SendId(told as u64),
            flow: contract::FlowId(told as u64 % 7),
            stream_offset: 0,
            acked_offset: 0,
            issued_us: 0,
            not_before_us: 0,
            tsval_fraction_us: 0,
            follow_bytes: 0,
            mss: 1448,
            header: &header,
            segments: [Segment::Inline(b"x")].into(),
        };
        if told < SENDS && stage.host.send(&Command::Send(send)).is_ok() {
            told += 1;
            stage.host.flush();
            stuck = 0;
        } else {
            while stage.turn() == nic::Progress::Busy {}
            stuck += 1;
        }
    }
    assert!(stage.events.is_empty());
    let sent_unheard = stage.counters().sends;
    assert!((sent_unheard as usize) < told, "commands were held up");

    let events = stage.take_events();
    let mut ids: Vec<u64> = departed(&events).iter().map(|id| id.0).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..told as u64).collect::<Vec<_>>());
}
