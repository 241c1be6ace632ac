//! Probing a closed window (RFC 9293 §3.8.6.1).
//!
//! When data waits, nothing is in flight, and the peer's window does not let us send, no segment
//! makes the peer answer: if its window update is lost, both wait for ever. A timer with backoff
//! breaks that.
//!
//! A probe is an empty segment one below SND.UNA. It is unacceptable by the first test of
//! §3.10.7.4, so the peer must answer with an acknowledgment, which carries its window. Unlike a
//! byte of new data it costs the NIC stack no read and leaves the data aligned when the window
//! opens.

use std::time::Duration;

use crate::config::Config;
use crate::retry_limit::RetryLimit;
use crate::time::Instant;

/// Probes since the peer's last answer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Persist {
    backoff: u32,
    retry_limit: RetryLimit,
    due: bool,
}

impl Persist {
    /// Returns the time until the next probe. §3.8.6.1: the first after an RTO (SHLD-29), then
    /// exponentially (SHLD-30).
    pub(crate) fn interval(&self, config: &Config, rto: Duration) -> Duration {
        rto.saturating_mul(1 << self.backoff.min(20))
            .min(config.rto_max.max(rto))
    }

    /// Handles the timer's expiry. Returns false if the peer has not answered for too long.
    pub(crate) fn on_timeout(
        &mut self,
        now: Instant,
        retries: u8,
        user_timeout: Option<Duration>,
    ) -> bool {
        self.due = true;
        self.backoff = self.backoff.saturating_add(1);
        self.retry_limit.on_silence(now, retries, user_timeout)
    }

    /// Returns the number of probes in a row that were not answered.
    pub(crate) fn unanswered(&self) -> u16 {
        self.retry_limit.attempts()
    }

    /// Returns when the user timeout ends the connection, if a probe was not answered.
    pub(crate) fn deadline(&self, user_timeout: Option<Duration>) -> Option<Instant> {
        self.retry_limit.deadline(user_timeout)
    }

    /// Returns true if a probe is due and was not sent.
    pub(crate) fn is_due(&self) -> bool {
        self.due
    }

    /// Records that data or a probe is in flight, which the peer must answer.
    pub(crate) fn on_sent(&mut self) {
        self.due = false;
    }

    /// Records an answer of the peer. As long as it answers, the connection stays open (MUST-37).
    pub(crate) fn on_answer(&mut self) {
        self.retry_limit.on_answer();
    }

    /// Stops probing: the window has opened, or no data waits any more.
    pub(crate) fn reset(&mut self) {
        *self = Persist::default();
    }
}
