//! Stops requests to an origin that does not respond (a *circuit breaker*).
//!
//! Any response proves that the origin is up; an error for one target counts for that target alone
//! ([`crate::broken`]). After some failures in a row the circuit opens: requests fail at once, so
//! that clients do not wait in vain and the origin is not flooded when it recovers. After a delay,
//! one request is let through as a trial.

use std::time::{Duration, Instant};

/// Failures in a row that open the circuit.
const FAILURES_MAX: u32 = 5;

/// How long the circuit stays open the first time; doubles with each failed trial.
const OPEN_MIN: Duration = Duration::from_secs(1);

/// Upper bound of the time open.
const OPEN_MAX: Duration = Duration::from_secs(30);

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub(crate) struct Circuit {
    failures: u32,
    /// No request is sent before this time.
    open_until: Option<Instant>,
    /// Openings in a row.
    openings: u32,
    /// A trial request is unanswered.
    is_trying: bool,
}

impl Circuit {
    /// Whether a request may be sent. While the circuit is open, that request is the trial.
    pub(crate) fn may_ask(&mut self, now: Instant) -> bool {
        match self.open_until {
            None => true,
            Some(until) if until <= now => {
                // The next trial, should the outcome of this one stay unknown.
                self.open_until = Some(now + self.open_for());
                self.is_trying = true;
                true
            }
            Some(_) => false,
        }
    }

    /// Closes the circuit after a response. Returns true if it was open.
    pub(crate) fn on_answer(&mut self) -> bool {
        let was_open = self.open_until.is_some();
        *self = Circuit::default();
        was_open
    }

    /// Counts a missing or malformed response. Returns true if that opens the circuit.
    pub(crate) fn on_failure(&mut self, now: Instant) -> bool {
        self.failures = self.failures.saturating_add(1);
        if self.failures < FAILURES_MAX {
            return false;
        }
        let opens = self.open_until.is_none();
        if !opens {
            if !std::mem::take(&mut self.is_trying) {
                // The request was sent before the circuit opened: no new information.
                return false;
            }
            self.openings = self.openings.saturating_add(1);
        }
        self.open_until = Some(now + self.open_for());
        opens
    }

    fn open_for(&self) -> Duration {
        OPEN_MIN
            .saturating_mul(1 << self.openings.min(10))
            .min(OPEN_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_after_failures_in_a_row_and_lets_one_try() {
        let (mut circuit, mut now) = (Circuit::default(), Instant::now());
        for _ in 1..FAILURES_MAX {
            assert!(!circuit.on_failure(now) && circuit.may_ask(now));
        }
        assert!(circuit.on_failure(now), "now it opens");
        assert!(!circuit.may_ask(now));
        now += OPEN_MIN;
        assert!(circuit.may_ask(now), "one tries");
        assert!(!circuit.may_ask(now), "and no other");
        assert!(circuit.on_answer());
        assert!(circuit.may_ask(now));
        assert!(!circuit.on_failure(now), "it counts from the start again");
    }

    #[test]
    fn many_that_fail_at_once_open_it_once() {
        let (mut circuit, now) = (Circuit::default(), Instant::now());
        for _ in 0..100 {
            circuit.on_failure(now);
        }
        assert!(circuit.may_ask(now + OPEN_MIN));
    }

    #[test]
    fn it_stays_open_longer_each_time_up_to_a_bound() {
        let (mut circuit, mut now) = (Circuit::default(), Instant::now());
        for _ in 0..FAILURES_MAX {
            circuit.on_failure(now);
        }
        let mut waits = Vec::new();
        for _ in 0..8 {
            let until = circuit.open_until.unwrap();
            waits.push((until - now).as_secs());
            now = until;
            assert!(circuit.may_ask(now));
            circuit.on_failure(now);
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30, 30]);
    }
}
