//! When a process that is to be kept at work is started again: at once after its first failure, and
//! later with each that follows ([`Backoff`]).

use std::time::{Duration, Instant};

use crate::supervisor::backoff::Backoff;

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub(crate) struct Restart {
    backoff: Backoff,
    /// When the next start is due.
    at: Option<Instant>,
}

impl Restart {
    /// The process does its work.
    pub(crate) fn on_success(&mut self, now: Instant) {
        self.backoff.on_success(now);
    }

    /// The process has ended, or could not be started. Returns how long its successor waits.
    pub(crate) fn on_failure(&mut self, now: Instant) -> Duration {
        let wait = self.backoff.on_failure(now);
        self.at = Some(now + wait);
        wait
    }

    /// The next start is due at this time, and no failure led to it.
    pub(crate) fn set(&mut self, at: Instant) {
        self.at = Some(at);
    }

    /// When the next start is due, if one is.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.at
    }

    /// True once for each start that is due.
    pub(crate) fn take_due(&mut self, now: Instant) -> bool {
        self.at.take_if(|at| *at <= now).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_due_once_and_later_with_each_failure() {
        let mut restart = Restart::default();
        let now = Instant::now();
        assert_eq!((restart.deadline(), restart.take_due(now)), (None, false));
        assert_eq!(restart.on_failure(now), Duration::ZERO);
        assert_eq!(restart.deadline(), Some(now));
        assert_eq!(
            [restart.take_due(now), restart.take_due(now)],
            [true, false]
        );
        let wait = restart.on_failure(now);
        assert!(wait > Duration::ZERO);
        assert!(!restart.take_due(now) && restart.take_due(now + wait));
    }

    #[test]
    fn a_start_without_a_failure_does_not_lengthen_the_wait() {
        let mut restart = Restart::default();
        let now = Instant::now();
        restart.set(now);
        assert!(restart.take_due(now));
        assert_eq!(restart.on_failure(now), Duration::ZERO);
    }
}
