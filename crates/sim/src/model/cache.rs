//! A last-level cache that a core shares with disks (IO-TCP, figure 12a and table 4).
//!
//! Discrete: sets of ways, least recently used first to go. The core looks up connections, any of
//! them, and may fill any way. Disks write past the core, but into two of the ways only (DDIO, as
//! it is set unless changed), and so take them away from the core as soon as they write often
//! enough.

use crate::random::Random;

/// Ways of a cache into which devices write: Intel's setting (Farshin et al., USENIX ATC 2020; Yuan
/// et al., ISCA 2021).
pub const DDIO_WAYS: usize = 2;

/// Length of a line, in bytes.
pub const LINE_BYTES: usize = 64;

/// A cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cache {
    /// Its size, in bytes.
    pub bytes: usize,
    /// Lines of a set.
    pub ways: usize,
}

/// That of the paper's CPU, an Intel Xeon Silver 4210: 13.75 MB (Intel ARK), 11 ways.
pub const XEON_SILVER_4210: Cache = Cache {
    bytes: 13_750 << 10,
    ways: 11,
};

/// What a lookup of a connection takes: hashing and comparing, and two lines, of the table and of
/// the connection. Hit and memory latency are those of this family of CPUs (Intel Memory Latency
/// Checker on Cascade Lake: about 20 and 90 ns).
pub const LOOKUP_NS: f64 = 10.0;
/// Lines that it touches.
pub const LOOKUP_LINES: f64 = 2.0;
/// A line that is there.
pub const HIT_NS: f64 = 20.0;
/// One that is not.
pub const MISS_NS: f64 = 90.0;

/// Bytes of all connections with which the miss ratio without disk I/O is 1/24 of that with it, as
/// in the paper: a little more than the cache holds. Calibrated.
pub const TABLE_BYTES: usize = 14_190_000;

/// What has come of lookups.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lookups {
    /// Lines not found, as a part of all lines looked for.
    pub miss_ratio: f64,
    /// Time for a lookup, in nanoseconds.
    pub ns: f64,
}

impl Cache {
    /// Looks up connections in `table_bytes` of them while disks write `disk_gb_per_s`.
    pub fn look_up(&self, table_bytes: usize, disk_gb_per_s: f64) -> Lookups {
        let mut lines = Lines::new(self);
        let table_lines = (table_bytes / LINE_BYTES).max(1) as u64;
        let mut random = Random::new(0x5eed);
        // Until every line was asked for, e⁻⁸ of them excepted; then as long again to count.
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

/// Time for a lookup with so many misses.
fn time_ns(miss_ratio: f64) -> f64 {
    LOOKUP_NS + LOOKUP_LINES * (HIT_NS + miss_ratio * (MISS_NS - HIT_NS))
}

/// Who has a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Line {
    /// Its number plus one, zero if there is none. Those of disks have the highest bit.
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

    /// The core reads a line of the table. True if it was not there.
    fn read(&mut self, number: u64) -> bool {
        let ways = self.ways;
        self.touch(number, number + 1, ways)
    }

    /// A disk writes a line that no core has.
    fn write(&mut self, number: u64) {
        let ways = self.ways.min(DDIO_WAYS);
        self.touch(number, number | OF_DISKS, ways);
    }

    /// True if the line was not there; it takes the place of the one that was used least recently
    /// among the first `ways`.
    fn touch(&mut self, number: u64, name: u64, ways: usize) -> bool {
        self.clock += 1;
        // Lines that follow each other lie in sets that do: a table fills all sets alike.
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
        // Two ways are all that disks get.
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
