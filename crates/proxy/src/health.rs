//! The usability of a backend, by the results of its checks and of its requests.
//!
//! ```text
//!   Up ──fall bad checks──▶ Down        Up ──failures in a row──▶ Ejected
//!      ◀──rise good ones──                 ◀──time is over, or a request succeeds──
//! ```
//!
//! The first check of a backend decides alone, so that at a start neither a dead backend is used
//! for long nor a working one waits.

use crate::config::{Check, Ejection};

/// State of one backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Health {
    is_down: bool,
    was_checked: bool,
    /// Consecutive checks that contradict the state.
    streak: u32,
    /// Consecutive requests that have failed.
    failures: u32,
    ejected_until_us: Option<u64>,
}

/// A change of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Up,
    Down,
    Ejected,
}

impl Health {
    /// True if checks pass, or there are none.
    pub(crate) fn is_up(&self) -> bool {
        !self.is_down
    }

    /// True if requests have failed recently.
    pub(crate) fn is_ejected(&self, now_us: u64) -> bool {
        self.ejected_until_us.is_some_and(|until| now_us < until)
    }

    /// Handles the result of a check.
    pub(crate) fn on_check(&mut self, is_good: bool, check: &Check) -> Option<Change> {
        let is_first = !std::mem::replace(&mut self.was_checked, true);
        if is_good != self.is_down {
            self.streak = 0;
            return None;
        }
        self.streak += 1;
        let needed = if is_good { check.rise } else { check.fall };
        if !is_first && self.streak < needed {
            return None;
        }
        self.streak = 0;
        self.is_down = !is_good;
        Some(if is_good { Change::Up } else { Change::Down })
    }

    /// Resets the results of checks, since there are none any more.
    pub(crate) fn forget_checks(&mut self) {
        (self.is_down, self.was_checked, self.streak) = (false, false, 0);
    }

    /// Handles an answered request.
    pub(crate) fn on_success(&mut self) {
        self.failures = 0;
        self.ejected_until_us = None;
    }

    /// Handles a failed request.
    pub(crate) fn on_failure(&mut self, now_us: u64, ejection: &Ejection) -> Option<Change> {
        if self.is_ejected(now_us) {
            return None;
        }
        self.failures += 1;
        if self.failures < ejection.failures {
            return None;
        }
        // After the ejection, the first failure ejects the backend again.
        self.failures = ejection.failures.saturating_sub(1);
        let time_us = ejection.time.as_micros() as u64;
        self.ejected_until_us = Some(now_us.saturating_add(time_us));
        Some(Change::Ejected)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const CHECK: Check = Check {
        kind: crate::config::CheckKind::Tcp,
        interval: Duration::from_secs(1),
        timeout: Duration::from_secs(1),
        rise: 2,
        fall: 3,
    };

    fn after(checks: &[bool]) -> (Health, Vec<Option<Change>>) {
        let mut health = Health::default();
        let changes = checks.iter().map(|good| health.on_check(*good, &CHECK));
        let changes = changes.collect();
        (health, changes)
    }

    #[test]
    fn three_bad_checks_take_it_out_and_two_good_ones_bring_it_back() {
        let checks = [
            true, false, false, true, false, false, false, true, false, true, true,
        ];
        let (health, changes) = after(&checks);
        let found: Vec<_> = changes.iter().map(|change| change.is_some()).collect();
        assert_eq!(changes[6], Some(Change::Down));
        assert_eq!(changes[10], Some(Change::Up));
        assert_eq!(found.iter().filter(|changed| **changed).count(), 2);
        assert!(health.is_up());
    }

    #[test]
    fn the_first_check_decides_alone() {
        let (health, changes) = after(&[false]);
        assert_eq!((health.is_up(), changes), (false, vec![Some(Change::Down)]));
        let (health, changes) = after(&[true]);
        assert_eq!((health.is_up(), changes), (true, vec![None]));
    }

    #[test]
    fn failures_in_a_row_eject_it_for_a_time() {
        let ejection = Ejection {
            failures: 2,
            time: Duration::from_micros(100),
        };
        let mut health = Health::default();
        assert_eq!(health.on_failure(0, &ejection), None);
        health.on_success();
        assert_eq!(health.on_failure(0, &ejection), None);
        assert_eq!(health.on_failure(10, &ejection), Some(Change::Ejected));
        assert!(health.is_ejected(109) && !health.is_ejected(110));
        assert_eq!(health.on_failure(50, &ejection), None);
        assert_eq!(health.on_failure(120, &ejection), Some(Change::Ejected));
        health.on_success();
        assert!(!health.is_ejected(121));
    }
}
