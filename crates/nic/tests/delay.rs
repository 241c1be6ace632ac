//! The slow disk, and what the timestamps of SENDs that wait for it say.

mod support;

use std::cell::Cell;
use std::rc::Rc;

use nic::Config;
use nic::reader::delay::{DelayReader, ReadDelay};
use nic::reader::memory::MemoryDisk;
use support::{Stage, content, departed, range, small_config};

fn slow_stage(config: &Config, delay: ReadDelay) -> (Stage, Rc<Cell<u64>>) {
    let disk = MemoryDisk::new();
    let now_us = Rc::new(Cell::new(1_000_000));
    let clock = Rc::clone(&now_us);
    let reader = DelayReader::new(Box::new(disk.clone()), delay, Box::new(move || clock.get()));
    let mut stage = Stage::on(config, Box::new(reader), 65_535);
    stage.disk = disk;
    (stage, now_us)
}

/// When each of 20 reads has come, in microseconds from its start.
fn delays(seed: u64) -> Vec<u64> {
    let delay = ReadDelay {
        us: 1_000..=5_000,
        seed,
    };
    let (mut stage, now_us) = slow_stage(&small_config(), delay);
    stage.disk.put(b"a", content(20 * 65_536));
    stage.open(1, b"a");
    let mut delays = Vec::new();
    for block in 0..20 {
        let offset = block * 65_536;
        stage.send(1, offset, [range(1, offset, 1000)]);
        let begun_us = now_us.get();
        loop {
            if !departed(&stage.take_events()).is_empty() {
                break;
            }
            // Nothing is due before this.
            now_us.set(stage.worker.next_timeout_us().expect("a read is held"));
        }
        delays.push(now_us.get() - begun_us);
    }
    assert_eq!(stage.worker.next_timeout_us(), None);
    delays
}

#[test]
fn every_read_takes_a_time_out_of_the_range_and_the_seed_decides() {
    let first = delays(7);
    assert!(
        first.iter().all(|us| (1_000..=5_000).contains(us)),
        "{first:?}"
    );
    let spread = first.iter().max().unwrap() - first.iter().min().unwrap();
    assert!(spread > 2_000, "{first:?}");
    assert_eq!(delays(7), first);
    assert_ne!(delays(8), first);
}

#[test]
fn reads_that_finish_in_another_order_do_not_reorder_a_flow() {
    let delay = ReadDelay {
        us: 0..=10_000,
        seed: 3,
    };
    let (mut stage, now_us) = slow_stage(&small_config(), delay);
    let file = content(1 << 20);
    stage.disk.put(b"a", file.clone());
    stage.open(1, b"a");
    stage.send(1, 0, [range(1, 0, 1 << 20)]);
    while departed(&stage.take_events()).is_empty() {
        now_us.set(now_us.get() + 500);
    }
    assert_eq!(stage.wire.streams()[&1], file);
}

/// What the timestamp of a SEND says that has waited 4 ms for its file.
fn timestamp_after_4_ms(config: &Config) -> u32 {
    let mut stage = Stage::with(config);
    stage.disk.put(b"a", content(1000));
    stage.open(1, b"a");
    stage.disk.hold(b"a");
    stage.send(1, 0, [range(1, 0, 1000)]);
    stage.settle();
    stage.now_us.set(stage.now_us.get() + 4_000);
    stage.disk.release(b"a");
    stage.settle();
    stage.wire.packets()[0].timestamp()
}

#[test]
fn without_the_correction_the_timestamp_is_that_of_the_send() {
    let corrected = small_config();
    assert_eq!(timestamp_after_4_ms(&corrected), 5);
    let as_issued = Config {
        correct_timestamps: false,
        ..small_config()
    };
    assert_eq!(timestamp_after_4_ms(&as_issued), 1);
}
