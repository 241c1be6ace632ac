//! Exponential back-off between attempts.

use std::time::{Duration, Instant};

/// Wait after the second failure in a row; it doubles with each further one. The first is retried
/// at once.
const WAIT_MIN: Duration = Duration::from_millis(50);

/// Longest wait.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// Lifetime after which an end counts as the first failure.
const LIFE_MIN: Duration = Duration::from_millis(500);

/// Counter of failures in a row.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
    lives_since: Option<Instant>,
}

impl Backoff {
    /// Records that an attempt has succeeded.
    pub(crate) fn on_success(&mut self, now: Instant) {
        self.lives_since = Some(now);
    }

    /// Records that an attempt has failed, or that its result has ended. Returns the wait before
    /// the next attempt.
    pub(crate) fn on_failure(&mut self, now: Instant) -> Duration {
        let lived = self.lives_since.take();
        if lived.is_some_and(|since| now.saturating_duration_since(since) >= LIFE_MIN) {
            self.failures = 0;
        }
        let doublings = self.failures.checked_sub(1);
        self.failures = self.failures.saturating_add(1);
        doublings.map_or(Duration::ZERO, |doublings| {
            WAIT_MIN
                .saturating_mul(1 << doublings.min(20))
                .min(WAIT_MAX)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_up_to_its_bound() {
        let mut backoff = Backoff::default();
        let now = Instant::now();
        let waits: Vec<Duration> = (0..40).map(|_| backoff.on_failure(now)).collect();
        let expected = [0, 50, 100, 200, 400, 800, 1600, 3200, 5000, 5000];
        assert_eq!(waits[..10], expected.map(Duration::from_millis));
        assert_eq!(waits.last(), Some(&WAIT_MAX));
    }

    #[test]
    fn a_life_that_was_long_enough_is_forgiven() {
        let mut backoff = Backoff::default();
        let mut now = Instant::now();
        for _ in 0..5 {
            backoff.on_failure(now);
        }
        backoff.on_success(now);
        now += LIFE_MIN / 2;
        assert!(backoff.on_failure(now) > WAIT_MIN, "it was too short");
        backoff.on_success(now);
        now += LIFE_MIN;
        assert_eq!(backoff.on_failure(now), Duration::ZERO);
        assert_eq!(backoff.on_failure(now), WAIT_MIN);
    }
}
