//! What stays in memory, for how long, and what happens when there is no more of it.

mod support;

use std::collections::HashSet;

use contract::{Command, FileId, Segment, SendId};
use nic::Config;
use support::{Stage, content, departed, range};

const BLOCK: usize = nic::buffer::BLOCK_BYTES;

/// As little memory as there may be, none of it for caching.
fn tight_config() -> Config {
    Config {
        buffer_bytes: 0,
        cache_bytes_max: 0,
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
    assert!(stage.counters().reads_avoided >= 3);
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

/// `acknowledge` tells the worker, at the latest with the next SEND, that the peer has everything before an offset.
fn what_stays(acknowledge: impl FnOnce(&mut Stage, u64)) {
    let mut stage = Stage::with(&tight_config());
    stage.disk.put(b"a", content(10 * BLOCK));
    stage.open(1, b"a");
    stage.send(1, 0, [range(1, 0, 10 * BLOCK as u32)]);
    stage.settle();
    assert_eq!(stage.disk.reads().len(), 10);

    // In the midst of the fourth block: three are covered whole.
    acknowledge(&mut stage, 3 * BLOCK as u64 + 5);
    stage.send(
        1,
        3 * BLOCK as u64,
        [range(1, 3 * BLOCK as u32 as u64, 7 * BLOCK as u32)],
    );
    stage.settle();
    assert_eq!(stage.disk.reads().len(), 10, "these were retained");

    stage.send(1, 0, [range(1, 0, 3 * BLOCK as u32)]);
    stage.settle();
    assert_eq!(stage.disk.reads().len(), 13, "these were not");

    stage.acked(1, 0, true);
    stage.send(1, 0, [range(1, 0, 10 * BLOCK as u32)]);
    stage.settle();
    assert_eq!(stage.disk.reads().len(), 23, "the flow was over");
}

#[test]
fn retained_blocks_are_given_up_when_memory_is_wanted_the_oldest_first() {
    let mut stage = Stage::with(&tight_config());
    let blocks = Config::BUFFER_BYTES_MIN / BLOCK;
    let file = content((blocks + 10) * BLOCK);
    stage.disk.put(b"a", file.clone());
    stage.open(1, b"a");
    for number in 0..blocks + 10 {
        let offset = (number * BLOCK) as u64;
        stage.send(1, offset, [range(1, offset, BLOCK as u32)]);
    }
    stage.settle();
    let reads = stage.disk.reads().len();
    assert_eq!(reads, blocks + 10);

    stage.send(
        1,
        10 * BLOCK as u64,
        [range(1, 10 * BLOCK as u64, BLOCK as u32)],
    );
    stage.settle();
    assert_eq!(
        stage.disk.reads().len(),
        reads,
        "the eleventh is still there"
    );
    stage.send(1, 0, [range(1, 0, BLOCK as u32)]);
    stage.settle();
    assert_eq!(stage.disk.reads().len(), reads + 1, "the first is not");
    assert_eq!(stage.wire.streams()[&1], file);
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
fn a_changed_file_is_read_anew() {
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
fn when_buffers_run_short_everybody_waits_and_nobody_fails() {
    let config = Config {
        jobs_max: 100,
        ..tight_config()
    };
    let mut stage = Stage::with(&config);
    const FLOWS: u64 = 250;
    let file = content(4 * 40_000);
    for flow in 0..FLOWS {
        // Files of their own, so that nothing is shared.
        let name = flow.to_string();
        stage.disk.put(name.as_bytes(), file.clone());
        stage.open(flow as u32, name.as_bytes());
    }
    let mut sends = HashSet::new();
    for part in 0..4 {
        for flow in 0..FLOWS {
            let offset = part * 40_000;
            sends.insert(stage.send(flow, offset, [range(flow as u32, offset, 40_000)]));
        }
    }
    let events = stage.take_events();

    assert_eq!(events.len(), 1000);
    assert_eq!(
        departed(&events).into_iter().collect::<HashSet<SendId>>(),
        sends
    );
    let streams = stage.wire.streams();
    assert_eq!(streams.len(), FLOWS as usize);
    assert!(streams.values().all(|stream| *stream == file));
    let blocks = (Config::BUFFER_BYTES_MIN / BLOCK) as u64;
    assert_eq!(
        stage.counters().blocks_peak,
        blocks,
        "all of them were wanted"
    );
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
    let blocks = Config::BUFFER_BYTES_MIN / BLOCK;
    stage.disk.put(b"b", content(blocks * BLOCK));
    stage.open(2, b"b");
    for part in 0..blocks as u64 {
        let offset = part * BLOCK as u64;
        stage.send(2, offset, [range(2, offset, BLOCK as u32)]);
    }
    assert_eq!(departed(&stage.take_events()).len(), blocks);
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
