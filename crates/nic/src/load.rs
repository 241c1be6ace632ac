//! How busy a worker is: for which part of the time it had work, and so neither slept nor looked
//! for some in vain.
//!
//! Time in which its thread waited for a core counts as well: what waits for the worker waits all
//! the same, whether another process or a hypervisor has that core.

use contract::limits::LOAD_PERIOD_US;

/// Less than this part of the time, in permille, is nothing: waking up to tell of it takes as much.
const IDLE_PERMILLE: u64 = 5;

/// A worker's load since some time.
#[derive(Debug)]
pub(crate) struct LoadMeter {
    /// Since when, and how long the worker had been idle in all until then, in microseconds.
    since_us: u64,
    idle_us: u64,
    /// The last that was told was not nothing.
    told_busy: bool,
}

/// What is to be told of it.
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

    /// How busy the worker has been, if it is time to tell. `idle_us`: how long it had nothing to
    /// do, in all.
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

    /// It could not be told.
    pub(crate) fn on_untold(&mut self) {
        self.told_busy = true;
    }

    /// When to tell again although nothing else happens: not of a worker of which nothing is all
    /// that there is to say.
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
        // It has slept for long, and nothing of that counts for what comes then.
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
