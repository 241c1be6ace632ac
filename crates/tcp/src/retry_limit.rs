//! Limit on attempts to reach a peer that does not answer (R2 of RFC 9293 §3.8.3): a number of
//! attempts in a row, or a time after the first, if there is a user timeout.

use std::time::Duration;

use crate::time::Instant;

/// Attempts since the peer's last answer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RetryLimit {
    /// Wider than `u8`, so that every number of retries is exceeded at some time.
    attempts: u16,
    first: Instant,
}

impl RetryLimit {
    /// Records an attempt without answer. Returns false if it is time to give up.
    pub(crate) fn on_silence(
        &mut self,
        now: Instant,
        retries: u8,
        user_timeout: Option<Duration>,
    ) -> bool {
        if self.attempts == 0 {
            self.first = now;
        }
        self.attempts = self.attempts.saturating_add(1);
        let patient = user_timeout.is_none_or(|limit| now.since(self.first) < limit);
        self.attempts <= u16::from(retries) && patient
    }

    /// Returns when the user timeout ends the connection, if an attempt was not answered.
    pub(crate) fn deadline(&self, user_timeout: Option<Duration>) -> Option<Instant> {
        let limit = user_timeout.filter(|_| self.attempts > 0)?;
        Some(self.first + limit)
    }

    /// Returns the number of attempts in a row that were not answered.
    pub(crate) fn attempts(&self) -> u16 {
        self.attempts
    }

    /// Records an answer of the peer.
    pub(crate) fn on_answer(&mut self) {
        self.attempts = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: RFC 9293 §3.8.3
    #[test]
    fn it_ends_after_the_retries_or_the_user_timeout() {
        let at = Instant::from_us;
        for retries in [0, 2, u8::MAX] {
            let mut retry_limit = RetryLimit::default();
            for _ in 0..retries {
                assert!(retry_limit.on_silence(at(0), retries, None));
            }
            assert!(!retry_limit.on_silence(at(0), retries, None));
            retry_limit.on_answer();
            assert_eq!(retry_limit.on_silence(at(0), retries, None), retries > 0);
        }

        let mut retry_limit = RetryLimit::default();
        let limit = Some(Duration::from_secs(1));
        assert!(retry_limit.on_silence(at(5), 100, limit));
        assert!(retry_limit.on_silence(at(1_000_004), 100, limit));
        assert!(!retry_limit.on_silence(at(1_000_005), 100, limit));
    }
}
