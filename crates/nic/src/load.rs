//! A worker's load: the part of the time in which it had work, and so neither slept nor polled in
//! vain.
//!
//! Time in which its thread waited for a core counts as well: commands are delayed just the same,
//! whether another process or a hypervisor has that core.

use contract::limits::LOAD_PERIOD_US;

/// Load below which a worker counts as idle, in permille: waking up to report it costs as much.
const IDLE_PERMILLE: u64 = 5;

/// Measures a worker's load.
#[derive(Debug)]
pub(crate) struct LoadMeter {
    /// Start of the period, and the worker's total idle time until then, in microseconds.
    since_us: u64,
    idle_us: u64,
    /// The last report was not zero.
    told_busy: bool,
}

/// The load to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) busy_us: u32,
    pub(crate) elapsed_us: u32,
}

impl LoadMeter {
    pub(crate) fn new(now_us: u64) -> LoadMeter {
        LoadMeter {
            since_us: now_us,
            idle_us: 0,
            told_busy: false,
        }
    }

    /// Returns the load, if a report is due. `idle_us`: the worker's total idle time.
    pub(crate) fn on_time(&mut self, now_us: u64, idle_us: u64) -> Option<Load> {
        let elapsed_us = now_us.saturating_sub(self.since_us);
        if elapsed_us < LOAD_PERIOD_US {
            return None;
        }
        let busy_us = elapsed_us.saturating_sub(idle_us.saturating_sub(self.idle_us));
        (self.since_us, self.idle_us) = (now_us, idle_us);
        let is_busy = busy_us * 1000 >= IDLE_PERMILLE * elapsed_us;
        let told_busy = std::mem::replace(&mut self.told_busy, is_busy);
        (is_busy || told_busy).then(|| Load {
            busy_us: if is_busy { clamped(busy_us) } else { 0 },
            elapsed_us: clamped(elapsed_us),
        })
    }

    /// Records that the last report could not be sent.
    pub(crate) fn on_untold(&mut self) {
        self.told_busy = true;
    }

    /// Returns when to report again although nothing else happens; `None` if the last report was
    /// zero.
    pub(crate) fn next_us(&self) -> Option<u64> {
        self.told_busy.then_some(self.since_us + LOAD_PERIOD_US)
    }
}

fn clamped(us: u64) -> u32 {
    u32::try_from(us).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(busy_us: u32, elapsed_us: u32) -> Option<Load> {
        Some(Load {
            busy_us,
            elapsed_us,
        })
    }

    #[test]
    fn a_worker_tells_while_it_works_and_once_more() {
        let mut meter = LoadMeter::new(1_000);
        assert_eq!(meter.next_us(), None, "it has not worked yet");
        assert_eq!(meter.on_time(250_999, 0), None);
        assert_eq!(meter.on_time(251_000, 150_000), load(100_000, 250_000));
        assert_eq!(meter.next_us(), Some(501_000));
        assert_eq!(meter.on_time(501_000, 150_000), load(250_000, 250_000));
        assert_eq!(meter.on_time(751_000, 399_900), load(0, 250_000));
        assert_eq!(meter.next_us(), None);
        assert_eq!(meter.on_time(9_751_000, 9_399_800), None);
        // It has slept for long: the sleep does not count in the next period.
        assert_eq!(meter.on_time(10_001_000, 9_399_800), load(250_000, 250_000));
        // Longer than 32 bits hold.
        let late_us = 10_001_000 + (1 << 33);
        assert_eq!(meter.on_time(late_us, 9_399_800), load(u32::MAX, u32::MAX));
    }

    #[test]
    fn the_last_word_is_not_lost() {
        let mut meter = LoadMeter::new(0);
        assert!(meter.on_time(250_000, 0).is_some());
        assert_eq!(meter.on_time(500_000, 250_000), load(0, 250_000));
        meter.on_untold();
        assert_eq!(meter.next_us(), Some(750_000));
        assert_eq!(meter.on_time(750_000, 500_000), load(0, 250_000));
    }
}
