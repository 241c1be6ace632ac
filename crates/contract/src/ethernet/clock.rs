//! Estimate of the other machine's clock: every frame carries its time of sending, and how long ago
//! the last frame before it had arrived. The fastest round trip has waited least, in either
//! direction, and gives the best estimate (the clock filter of NTP, RFC 5905 §10).

/// Clocks drift: a round trip counts for one such period and the next, in microseconds.
const PERIOD_US: u64 = 5_000_000;

#[derive(Clone, Copy, Debug)]
struct Sample {
    rtt_us: u64,
    ahead_us: i64,
}

/// An estimate.
#[derive(Debug, Default)]
pub(super) struct PeerClock {
    this_period: Option<Sample>,
    last_period: Option<Sample>,
    begun_us: u64,
}

impl PeerClock {
    /// Takes a sample: a frame sent at `peer_us` on the other clock has arrived now. `rtt_us` is
    /// the round trip since the frame that it answers, without the time in between on the other
    /// machine.
    pub(super) fn on_sample(&mut self, now_us: u64, peer_us: u64, rtt_us: u64) {
        let sample = Sample {
            rtt_us,
            // Any two clocks: the difference is exact modulo 2^64.
            ahead_us: peer_us.wrapping_add(rtt_us / 2).wrapping_sub(now_us) as i64,
        };
        if now_us.saturating_sub(self.begun_us) > PERIOD_US {
            self.begun_us = now_us;
            self.last_period = self.this_period.take();
        }
        if self.this_period.is_none_or(|best| rtt_us <= best.rtt_us) {
            self.this_period = Some(sample);
        }
    }

    /// Returns the lead of the other clock over this one, in microseconds.
    pub(super) fn ahead_us(&self) -> Option<i64> {
        let samples = [self.this_period, self.last_period];
        let best = samples
            .into_iter()
            .flatten()
            .min_by_key(|sample| sample.rtt_us);
        best.map(|sample| sample.ahead_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_round_trip_tells_the_time() {
        let mut clock = PeerClock::default();
        assert_eq!(clock.ahead_us(), None);
        // The other clock is 1000 ahead; 900 of 1000 us are spent on the way here.
        clock.on_sample(5_000, 5_000 - 900 + 1000, 1000);
        assert_eq!(clock.ahead_us(), Some(600));
        clock.on_sample(6_000, 6_000 - 10 + 1000, 20);
        assert_eq!(clock.ahead_us(), Some(1000));
        clock.on_sample(7_000, 7_000 - 700 + 1000, 800);
        assert_eq!(clock.ahead_us(), Some(1000));
    }

    #[test]
    fn what_is_long_ago_does_not_count() {
        let mut clock = PeerClock::default();
        clock.on_sample(0, 1_000_000, 0);
        // The other clock loses 100 us a second, and the way has become longer.
        for second in 1..=60u64 {
            let now_us = second * 1_000_000;
            clock.on_sample(now_us, now_us + 1_000_000 - 100 * second - 20, 40);
        }
        let ahead_us = clock.ahead_us().unwrap();
        assert!((994_000..=995_100).contains(&ahead_us), "{ahead_us}");
    }

    #[test]
    fn clocks_may_be_any_distance_apart() {
        let mut clock = PeerClock::default();
        clock.on_sample(10, u64::MAX - 5, 0);
        assert_eq!(clock.ahead_us(), Some(-16));
    }
}
