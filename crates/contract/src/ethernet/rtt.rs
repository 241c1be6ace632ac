//! How long to wait for an acknowledgment: RFC 6298, with bounds for a link instead of the
//! Internet.

/// Before anything is known.
const INITIAL_US: u64 = 50_000;

/// The other side may have to wait for its turn on the CPU.
const MIN_US: u64 = 5_000;

const MAX_US: u64 = 250_000;

/// Round trips, smoothed.
#[derive(Debug, Default)]
pub(super) struct Rtt {
    smoothed_us: Option<u64>,
    variance_us: u64,
    /// Timeouts since anything was acknowledged.
    backoff: u32,
}

impl Rtt {
    pub(super) fn on_sample(&mut self, rtt_us: u64) {
        let rtt_us = rtt_us.min(MAX_US);
        match self.smoothed_us {
            None => {
                self.variance_us = rtt_us / 2;
                self.smoothed_us = Some(rtt_us);
            }
            Some(smoothed_us) => {
                self.variance_us = (3 * self.variance_us + smoothed_us.abs_diff(rtt_us)) / 4;
                self.smoothed_us = Some((7 * smoothed_us + rtt_us) / 8);
            }
        }
    }

    pub(super) fn on_progress(&mut self) {
        self.backoff = 0;
    }

    pub(super) fn on_timeout(&mut self) {
        self.backoff = (self.backoff + 1).min(16);
    }

    /// The timeout, in microseconds.
    pub(super) fn timeout_us(&self) -> u64 {
        let timeout_us = self
            .smoothed_us
            .map_or(INITIAL_US, |smoothed_us| smoothed_us + 4 * self.variance_us);
        (timeout_us.max(MIN_US) << self.backoff).min(MAX_US)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_follows_the_round_trip_within_its_bounds() {
        let mut rtt = Rtt::default();
        assert_eq!(rtt.timeout_us(), INITIAL_US);
        for _ in 0..100 {
            rtt.on_sample(100);
        }
        assert_eq!(rtt.timeout_us(), MIN_US);
        for _ in 0..100 {
            rtt.on_sample(20_000);
        }
        assert!(
            (20_000..30_000).contains(&rtt.timeout_us()),
            "{}",
            rtt.timeout_us()
        );
        rtt.on_sample(u64::MAX);
        assert!(rtt.timeout_us() <= MAX_US);
    }

    #[test]
    fn it_doubles_until_something_is_acknowledged() {
        let mut rtt = Rtt::default();
        rtt.on_sample(10_000);
        let once = rtt.timeout_us();
        rtt.on_timeout();
        assert_eq!(rtt.timeout_us(), 2 * once);
        for _ in 0..1000 {
            rtt.on_timeout();
        }
        assert_eq!(rtt.timeout_us(), MAX_US);
        rtt.on_progress();
        assert_eq!(rtt.timeout_us(), once);
    }
}
