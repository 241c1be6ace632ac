//! Limits a rate: a burst at once, and a number per second in the long run.

use std::time::{Duration, Instant};

/// Fill rate and capacity of a bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    /// Capacity in tokens.
    pub(crate) burst: u32,
    /// Time in which one token is added.
    pub(crate) period: Duration,
}

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct TokenBucket {
    rate: Rate,
    /// When the bucket is full.
    full_at: Instant,
}

impl TokenBucket {
    /// Returns a full bucket.
    pub(crate) fn full(rate: Rate, now: Instant) -> Self {
        Self { rate, full_at: now }
    }

    /// Takes a token; `Err` holds the time of the next one.
    pub(crate) fn take(&mut self, now: Instant) -> Result<(), Instant> {
        let Rate { burst, period } = self.rate;
        let full_at = self.full_at.max(now) + period;
        let missing = full_at - now;
        let held = period.saturating_mul(burst);
        if missing > held {
            return Err(now + (missing - held));
        }
        self.full_at = full_at;
        Ok(())
    }

    /// Returns whether the bucket is full.
    pub(crate) fn is_full(&self, now: Instant) -> bool {
        self.full_at <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_followed_by_the_rate() {
        let start = Instant::now();
        let period = Duration::from_millis(10);
        let mut bucket = TokenBucket::full(Rate { burst: 5, period }, start);
        for _ in 0..5 {
            bucket.take(start).unwrap();
        }
        assert!(!bucket.is_full(start));
        for number in 1..10 {
            let at = start + period * number;
            let early = at - Duration::from_nanos(1);
            assert_eq!(bucket.take(early), Err(at));
            assert_eq!(bucket.take(at), Ok(()));
        }
        assert!(bucket.is_full(start + period * 14));
        let later = start + period * 1000;
        assert!((0..5).all(|_| bucket.take(later).is_ok()));
        assert!(bucket.take(later).is_err(), "it holds no more than a burst");
    }
}
