//! The shortest round-trip time of the last minutes: that of the path without queues.

use std::time::Duration;

use crate::time::Instant;

/// Length of an epoch. The minimum covers one to two epochs; routes change (RFC 8985 §6.2 step 1
/// wants a window).
const EPOCH_US: u64 = 150 * 1_000_000;

/// A minimum over a window of time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MinRtt {
    epoch: Instant,
    /// Least of this epoch, and of the one before, in microseconds; [`NONE`] if there was no
    /// sample.
    least_us: u64,
    least_before_us: u64,
}

const NONE: u64 = u64::MAX;

impl Default for MinRtt {
    fn default() -> MinRtt {
        MinRtt {
            epoch: Instant::default(),
            least_us: NONE,
            least_before_us: NONE,
        }
    }
}

impl MinRtt {
    /// Adds a round trip from the departure of a packet: not one from a timestamp, whose ticks are
    /// too coarse, nor one that may be too short.
    pub(crate) fn on_sample(&mut self, now: Instant, sample_us: u64) {
        if self.least_us == NONE {
            self.epoch = now;
        } else if now.us_since(self.epoch) >= EPOCH_US {
            self.epoch = now;
            self.least_before_us = std::mem::replace(&mut self.least_us, NONE);
        }
        self.least_us = self.least_us.min(sample_us);
    }

    /// Returns true if all round trips took longer than `us` microseconds.
    #[inline]
    pub(crate) fn is_above(&self, us: u64) -> bool {
        self.least_us > us && self.least_before_us > us
    }

    pub(crate) fn get(&self) -> Option<Duration> {
        self.get_us().map(Duration::from_micros)
    }

    /// Returns the minimum in microseconds.
    pub(crate) fn get_us(&self) -> Option<u64> {
        let least_us = self.least_us.min(self.least_before_us);
        (least_us != NONE).then_some(least_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_us(seconds * 1_000_000)
    }

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_least_stays_for_minutes_and_not_for_ever() {
        let mut min_rtt = MinRtt::default();
        assert_eq!(min_rtt.get(), None);
        min_rtt.on_sample(at(0), 20_000);
        min_rtt.on_sample(at(1), 10_000);
        min_rtt.on_sample(at(2), 30_000);
        assert_eq!(min_rtt.get(), Some(10 * MS));
        min_rtt.on_sample(at(160), 30_000);
        assert_eq!(min_rtt.get(), Some(10 * MS));
        min_rtt.on_sample(at(320), 40_000);
        assert_eq!(min_rtt.get(), Some(30 * MS));
    }
}
