//! The shortest round-trip time of the last minutes: what the path takes when nothing waits on it.

use std::time::Duration;

use crate::time::Instant;

/// The minimum covers between one and two of these; routes change (RFC 8985 §6.2 step 1 wants a window).
const EPOCH: Duration = Duration::from_secs(150);

/// A minimum over a window of time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MinRtt {
    epoch: Instant,
    /// Least of this epoch, and of the one before.
    least: Option<Duration>,
    least_before: Option<Duration>,
}

impl MinRtt {
    /// A round trip from the departure of a packet: not one from a timestamp, whose ticks are too coarse, nor one
    /// that may be too short.
    pub(crate) fn on_sample(&mut self, now: Instant, sample: Duration) {
        if self.least.is_none() {
            self.epoch = now;
        } else if now.since(self.epoch) >= EPOCH {
            self.epoch = now;
            self.least_before = self.least.take();
        }
        self.least = Some(self.least.map_or(sample, |least| least.min(sample)));
    }

    pub(crate) fn get(&self) -> Option<Duration> {
        match self.least_before {
            Some(before) => self.least.map(|least| least.min(before)),
            None => self.least,
        }
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
        min_rtt.on_sample(at(0), 20 * MS);
        min_rtt.on_sample(at(1), 10 * MS);
        min_rtt.on_sample(at(2), 30 * MS);
        assert_eq!(min_rtt.get(), Some(10 * MS));
        min_rtt.on_sample(at(160), 30 * MS);
        assert_eq!(min_rtt.get(), Some(10 * MS));
        min_rtt.on_sample(at(320), 40 * MS);
        assert_eq!(min_rtt.get(), Some(30 * MS));
    }
}
