//! Limit on answers to unacceptable segments.
//!
//! Challenge ACKs (RFC 5961) and ACKs of unacceptable segments are cheap for an attacker to
//! provoke, and two ends that disagree could answer each other for ever. The count is kept for each
//! connection: a shared one would reveal to an outsider the state of others' connections.

use std::time::Duration;

use crate::time::Instant;

/// Allows `max` answers in an interval (RFC 5961 §7).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AckLimiter {
    interval_start: Instant,
    count: u16,
}

impl AckLimiter {
    /// Counts an answer and returns true if it may be sent now.
    pub(crate) fn allows(&mut self, now: Instant, max: u16, interval: Duration) -> bool {
        if self.count == 0 || now.since(self.interval_start) >= interval {
            self.interval_start = now;
            self.count = 0;
        }
        let allowed = self.count < max;
        if allowed {
            self.count += 1;
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_holds_so_many_and_the_next_begins_afresh() {
        let mut limiter = AckLimiter::default();
        let interval = Duration::from_secs(5);
        let mut allowed = |us| limiter.allows(Instant::from_us(us), 2, interval);
        assert!(allowed(100));
        assert!(allowed(200));
        assert!(!allowed(300));
        assert!(!allowed(5_000_099));
        assert!(allowed(5_000_100));
        assert!(allowed(5_000_100));
        assert!(!allowed(5_000_101));
    }
}
