//! What is read before it is asked for, and what is not.

mod support;

use nic::Config;
use support::{MSS, Stage, content, departed, range};

const BLOCK: usize = nic::buffer::BLOCK_BYTES;

/// Blocks in the least memory that there may be.
const BLOCKS: usize = Config::CACHE_BYTES_MIN / BLOCK;

/// Sends `blocks` blocks of a file from the given one on, of which `follow` bytes more are going to
/// be sent; all of it but the last segment is acknowledged at once.
fn send(stage: &mut Stage, flow: u64, first: usize, blocks: usize, follow: usize) {
    let offset = (first * BLOCK) as u64;
    stage.follow_bytes = follow as u32;
    stage.send(
        flow,
        offset,
        [range(flow as u32, offset, (blocks * BLOCK) as u32)],
    );
    stage.settle();
    let end = offset + (blocks * BLOCK) as u64;
    stage.acked(flow, end - u64::from(MSS), false);
    stage.settle();
}

/// A stage with a file of so many blocks for each of some flows.
fn stage(cache_bytes: usize, flows: u32, blocks: usize) -> Stage {
    let mut stage = Stage::with(&Config {
        cache_bytes,
        ..Config::default()
    });
    stage.wire.be_lenient();
    for flow in 1..=flows {
        let name = flow.to_string();
        stage.disk.put(name.as_bytes(), content(blocks * BLOCK));
        stage.open(flow, name.as_bytes());
    }
    stage
}

/// Numbers of the blocks that were read, in order.
fn blocks_read(stage: &Stage) -> Vec<usize> {
    let reads = stage.disk.reads();
    let numbers = reads.iter().map(|read| read.offset as usize / BLOCK);
    numbers.collect()
}

#[test]
fn the_next_block_is_read_before_it_is_asked_for_and_no_block_twice() {
    let mut stage = stage(16 << 20, 1, 20);
    for number in 0..20 {
        let rest = (19 - number) * BLOCK;
        send(&mut stage, 1, number, 1, rest);
        let expected: Vec<usize> = (0..(number + 2).min(20)).collect();
        assert_eq!(blocks_read(&stage), expected);
    }
    let counters = stage.counters();
    assert_eq!(counters.block_misses, 1);
    assert_eq!(counters.blocks_ahead, 19);
    assert_eq!(counters.blocks_ahead_used, 19);
    assert_eq!(counters.blocks_ahead_wasted, 0);
    assert_eq!(stage.wire.streams()[&1], content(20 * BLOCK));
}

#[test]
fn nothing_is_read_beyond_what_the_stream_goes_on_with() {
    // To the end of the response, in the midst of a block.
    let mut first = stage(16 << 20, 1, 20);
    send(&mut first, 1, 0, 2, 5);
    assert_eq!(blocks_read(&first), [0, 1, 2]);
    // It ends with the SEND.
    let mut second = stage(16 << 20, 1, 20);
    send(&mut second, 1, 0, 2, 0);
    assert_eq!(blocks_read(&second), [0, 1]);
    // The host promises more than the file has.
    let mut third = stage(16 << 20, 1, 3);
    send(&mut third, 1, 1, 2, 1 << 30);
    assert_eq!(blocks_read(&third), [1, 2]);
}

#[test]
fn a_sender_that_has_to_wait_for_its_reads_gets_more_of_them_ahead() {
    let mut slow = stage(64 << 20, 1, 200);
    slow.disk.hold(b"1");
    let mut reads = Vec::new();
    for number in 0..6 {
        // Each SEND but the first finds the block that was read ahead on its way.
        let offset = (number * BLOCK) as u64;
        slow.follow_bytes = ((199 - number) * BLOCK) as u32;
        slow.send(1, offset, [range(1, offset, BLOCK as u32)]);
        slow.settle();
        reads.push(slow.disk.reads().len());
    }
    assert_eq!(reads, [1 + 1, 2 + 2, 3 + 4, 4 + 8, 5 + 16, 6 + 16]);
    slow.disk.release(b"1");
    assert_eq!(departed(&slow.take_events()).len(), 6);

    // One that finds it there is content.
    let mut quick = stage(64 << 20, 1, 200);
    for number in 0..50 {
        send(&mut quick, 1, number, 1, (199 - number) * BLOCK);
    }
    assert_eq!(quick.disk.reads().len(), 50 + 1);
}

#[test]
fn a_sender_that_goes_back_or_on_in_the_file_has_read_what_it_needs_there() {
    let mut stage = stage(64 << 20, 1, 100);
    // A range in the midst, which is sent to its end.
    send(&mut stage, 1, 50, 1, 2 * BLOCK);
    send(&mut stage, 1, 51, 1, BLOCK);
    assert_eq!(blocks_read(&stage), [50, 51, 52]);
    // An earlier one, one that is only just before, one that is further on.
    let mut expected = blocks_read(&stage);
    for first in [10, 47, 80] {
        send(&mut stage, 1, first, 1, 2 * BLOCK);
        expected.extend([first, first + 1]);
        assert_eq!(blocks_read(&stage), expected);
        send(&mut stage, 1, first + 1, 1, BLOCK);
        expected.push(first + 2);
        assert_eq!(blocks_read(&stage), expected);
    }
}

#[test]
fn a_sender_whose_blocks_go_before_they_are_needed_gets_half_as_many() {
    let mut stage = stage(0, 3, 200);
    // It has had to wait.
    stage.disk.hold(b"1");
    for number in 0..2 {
        let offset = (number * BLOCK) as u64;
        stage.follow_bytes = ((199 - number) * BLOCK) as u32;
        stage.send(1, offset, [range(1, offset, BLOCK as u32)]);
        stage.settle();
    }
    stage.disk.release(b"1");
    stage.settle();
    send(&mut stage, 1, 2, 1, 197 * BLOCK);
    assert_eq!(blocks_read(&stage), [0, 1, 2, 3, 4], "two ahead");

    // Another flow takes all memory, also that of the two.
    for number in 0..2 * BLOCKS {
        send(&mut stage, 2, number, 1, 0);
    }
    assert_eq!(stage.counters().blocks_ahead_wasted, 2);
    let read = stage.disk.reads().len();
    send(&mut stage, 1, 10, 1, 100 * BLOCK);
    assert_eq!(blocks_read(&stage)[read..], [10, 11], "one ahead");
}

#[test]
fn a_sender_for_whom_nothing_could_be_read_ahead_gets_twice_as_many() {
    let most = BLOCKS / 8;
    let mut stage = stage(0, most as u32 + 1, 20);
    for flow in 1..=most as u64 {
        send(&mut stage, flow, 0, 1, 19 * BLOCK);
    }
    assert_eq!(stage.counters().blocks_ahead as usize, most);
    let late = most as u64 + 1;
    send(&mut stage, late, 0, 1, 19 * BLOCK);
    assert_eq!(stage.counters().blocks_ahead as usize, most, "left out");
    // The others need theirs, and there is room again.
    for flow in 1..=most as u64 {
        send(&mut stage, flow, 1, 1, 0);
    }
    let read = stage.disk.reads().len();
    send(&mut stage, late, 1, 1, 18 * BLOCK);
    assert_eq!(blocks_read(&stage)[read..], [1, 2, 3]);
}

#[test]
fn a_sender_that_stops_has_little_read_for_nothing_and_it_goes_first() {
    let mut stage = stage(0, 9, 200);
    let blocks = BLOCKS;
    send(&mut stage, 1, 0, 1, 100 * BLOCK);
    assert_eq!(blocks_read(&stage), [0, 1]);
    for turn in 0..10 {
        stage.turn();
        stage.now_us.set(stage.now_us.get() + turn * 100_000);
    }
    assert_eq!(blocks_read(&stage), [0, 1], "it has stopped");

    // Another one needs all memory.
    for number in 0..blocks {
        send(&mut stage, 2, number, 1, 0);
    }
    let counters = stage.counters();
    assert_eq!(counters.blocks_ahead, 1);
    assert_eq!(counters.blocks_ahead_wasted, 1);
}

#[test]
fn read_ahead_takes_nothing_from_those_who_need_it() {
    // All memory is pinned.
    let blocks = BLOCKS;
    let mut stage = stage(0, 2, 2 * blocks);
    stage.follow_bytes = (blocks * BLOCK) as u32;
    for number in 0..blocks {
        let offset = (number * BLOCK) as u64;
        stage.send(1, offset, [range(1, offset, BLOCK as u32)]);
        stage.settle();
    }
    assert_eq!(stage.worker.usage().blocks_pinned, blocks);
    assert_eq!(stage.counters().pins_broken, 0);
    let ahead = stage.counters().blocks_ahead;
    stage.send(1, 0, [range(1, 0, BLOCK as u32)]);
    stage.settle();
    assert_eq!(stage.counters().blocks_ahead, ahead);

    // What one flow has wanted once goes for a guess; what others have wanted too does not.
    stage.acked(1, 0, true);
    stage.settle();
    assert_eq!(stage.worker.usage().blocks_cached, blocks);
    send(&mut stage, 2, 0, 1, 100 * BLOCK);
    assert_eq!(stage.counters().blocks_ahead, ahead + 1);
    stage.follow_bytes = 0;
    for flow in 3..=5 {
        for number in 0..blocks {
            let offset = (number * BLOCK) as u64;
            stage.send(flow, offset, [range(1, offset, BLOCK as u32)]);
            stage.settle();
            stage.acked(flow, offset + BLOCK as u64, false);
        }
    }
    send(&mut stage, 2, 10, 1, 100 * BLOCK);
    assert_eq!(stage.counters().blocks_ahead, ahead + 1);
}

#[test]
fn all_that_is_read_ahead_together_is_a_part_of_the_memory() {
    let mut stage = stage(0, 60, 10);
    let blocks = BLOCKS;
    for flow in 1..=60 {
        stage.follow_bytes = (9 * BLOCK) as u32;
        stage.send(flow, 0, [range(flow as u32, 0, 1000)]);
        stage.settle();
        stage.acked(flow, 1000, false);
    }
    assert_eq!(stage.counters().blocks_ahead as usize, blocks / 8);
    assert_eq!(departed(&stage.take_events()).len(), 60);
}
