//! A last-level cache that a core shares with disks (IO-TCP, figure 12a and table 4).
//!
//! A discrete model: sets of ways, replaced in LRU order. The core looks up random connections and
//! may fill any way. Disks write past the core, but into two of the ways only (the default of
//! DDIO), and so evict the core's lines there as soon as they write often enough.

use crate::random::Random;

/// Ways of a cache into which devices write: Intel's setting (Farshin et al., USENIX ATC 2020; Yuan
/// et al., ISCA 2021).
pub const DDIO_WAYS: usize = 2;

/// Length of a line, in bytes.
pub const LINE_BYTES: usize = 64;

/// A cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cache {
    /// Size, in bytes.
    pub bytes: usize,
    /// Lines of a set.
    pub ways: usize,
}

/// Cache of the paper's CPU, an Intel Xeon Silver 4210: 13.75 MB (Intel ARK), 11 ways.
pub const XEON_SILVER_4210: Cache = Cache {
    bytes: 13_750 << 10,
    ways: 11,
};

/// CPU time of a connection lookup without its cache lines, in nanoseconds: hashing and comparing.
/// It touches two lines, of the table and of the connection. Hit and memory latency are those of
/// this family of CPUs (Intel Memory Latency Checker on Cascade Lake: about 20 and 90 ns).
pub const LOOKUP_NS: f64 = 10.0;
/// Lines touched by a lookup.
pub const LOOKUP_LINES: f64 = 2.0;
/// Latency of a line in the cache, in nanoseconds.
pub const HIT_NS: f64 = 20.0;
/// Latency of a line in memory, in nanoseconds.
pub const MISS_NS: f64 = 90.0;

/// Bytes of the connection table with which the miss ratio without disk I/O is 1/24 of the ratio
/// with disk I/O, as in the paper: a little more than the cache holds. Calibrated.
pub const TABLE_BYTES: usize = 14_190_000;

/// Result of simulated lookups.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lookups {
    /// Lines not found, as a fraction of all lines looked for.
    pub miss_ratio: f64,
    /// Time for a lookup, in nanoseconds.
    pub ns: f64,
}

impl Cache {
    /// Simulates lookups in a table of `table_bytes` while disks write `disk_gb_per_s`.
    pub fn look_up(&self, table_bytes: usize, disk_gb_per_s: f64) -> Lookups {
        let mut lines = Lines::new(self);
        let table_lines = (table_bytes / LINE_BYTES).max(1) as u64;
        let mut random = Random::new(0x5eed);
        // Long enough to touch all but e⁻⁸ of the lines; then as long again to count.
        let rounds = 16 * table_lines.max(lines.count());
        let mut misses = 0_u64;
        let mut counted = 0_u64;
        let (mut written, mut next_written) = (0.0, 0);
        let mut ns = time_ns(0.0) / LOOKUP_LINES;
        for round in 0..rounds {
            // Nanoseconds times gigabytes per second are bytes.
            written += ns * disk_gb_per_s / LINE_BYTES as f64;
            while written >= 1.0 {
                lines.write(next_written);
                next_written += 1;
                written -= 1.0;
            }
            let missed = lines.read(random.within(0..table_lines));
            if round >= rounds / 2 {
                misses += u64::from(missed);
                counted += 1;
            }
            // A core that waits for memory gives the disks more time.
            let latency_ns = if missed { MISS_NS } else { HIT_NS };
            ns = LOOKUP_NS / LOOKUP_LINES + latency_ns;
        }
        let miss_ratio = misses as f64 / counted.max(1) as f64;
        Lookups {
            miss_ratio,
            ns: time_ns(miss_ratio),
        }
    }
}

/// Returns the time for a lookup with this miss ratio, in nanoseconds.
fn time_ns(miss_ratio: f64) -> f64 {
    LOOKUP_NS + LOOKUP_LINES * (HIT_NS + miss_ratio * (MISS_NS - HIT_NS))
}

/// A line of a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Line {
    /// Number of the cached line plus one; zero if empty. Lines of disks have the highest bit.
    name: u64,
    used: u64,
}

const OF_DISKS: u64 = 1 << 63;

struct Lines {
    ways: usize,
    lines: Vec<Line>,
    clock: u64,
}

impl Lines {
    fn new(cache: &Cache) -> Lines {
        let sets = (cache.bytes / LINE_BYTES / cache.ways).max(1);
        Lines {
            ways: cache.ways,
            lines: vec![Line::default(); sets * cache.ways],
            clock: 0,
        }
    }

    fn count(&self) -> u64 {
        self.lines.len() as u64
    }

    /// Reads a line of the table. Returns true on a miss.
    fn read(&mut self, number: u64) -> bool {
        let ways = self.ways;
        self.touch(number, number + 1, ways)
    }

    /// Writes a line of a disk, which the core does not use.
    fn write(&mut self, number: u64) {
        let ways = self.ways.min(DDIO_WAYS);
        self.touch(number, number | OF_DISKS, ways);
    }

    /// Returns true on a miss; the line then replaces the least recently used one among the first
    /// `ways`.
    fn touch(&mut self, number: u64, name: u64, ways: usize) -> bool {
        self.clock += 1;
        // Consecutive lines fall into consecutive sets, so a table fills all sets evenly.
        let sets = self.lines.len() / self.ways;
        let first = (number % sets as u64) as usize * self.ways;
        let set = &mut self.lines[first..first + self.ways];
        if let Some(line) = set.iter_mut().find(|line| line.name == name) {
            line.used = self.clock;
            return false;
        }
        let oldest = set[..ways].iter_mut().min_by_key(|line| line.used);
        let oldest = oldest.expect("a cache has ways");
        *oldest = Line {
            name,
            used: self.clock,
        };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::hardware::OPTANE_900P;
    use super::super::paper::{LOOKUP_LOSS, LOOKUP_MISS_FACTOR};
    use super::*;

    const SMALL: Cache = Cache {
        bytes: 11 << 17,
        ways: 11,
    };

    #[test]
    fn a_table_that_fits_is_always_found_until_disks_write() {
        let alone = SMALL.look_up(SMALL.bytes / 4, 0.0);
        assert!(alone.miss_ratio < 0.002, "{alone:?}");
        assert!(SMALL.look_up(SMALL.bytes, 10.0).miss_ratio > 0.1);
    }

    #[test]
    fn more_connections_and_more_disk_io_miss_more() {
        let mut before = -1.0;
        for share in [2, 4, 6, 8] {
            let ratio = SMALL.look_up(SMALL.bytes * share / 4, 0.0).miss_ratio;
            assert!(ratio >= before, "{share}");
            before = ratio;
        }
        let with = |gb_per_s| SMALL.look_up(SMALL.bytes * 9 / 10, gb_per_s).miss_ratio;
        assert!(with(0.0) < with(0.1) && with(0.1) < with(10.0));
        // Disks are confined to two ways.
        assert!(with(100.0) < 2.0 / 11.0 + 0.1);
    }

    #[test]
    fn the_papers_loss_of_lookups_follows_from_its_misses() {
        let disks = 4.0 * OPTANE_900P.read.value;
        let alone = XEON_SILVER_4210.look_up(TABLE_BYTES, 0.0);
        let beside = XEON_SILVER_4210.look_up(TABLE_BYTES, disks);
        let factor = beside.miss_ratio / alone.miss_ratio;
        // Calibrated with this,
        assert!(
            (factor / LOOKUP_MISS_FACTOR.value - 1.0).abs() < 0.2,
            "{alone:?} {beside:?}"
        );
        // and not with that.
        let loss = 1.0 - alone.ns / beside.ns;
        assert!((loss - LOOKUP_LOSS.value).abs() < 0.06, "{loss}");
    }
}
