//! Keep-alive: asking a silent peer whether it is still there (RFC 9293 §3.8.4).
//!
//! A peer that vanished silently, its machine or its router switched off, would hold a connection
//! for ever if nothing is to be sent. A probe is an empty segment below SND.UNA, as for a closed
//! window ([`crate::sender::persist`]): a peer that has the connection answers with an
//! acknowledgment, one that does not, with a reset.

use std::time::Duration;

use crate::time::Instant;

/// Least time between expiries of the timer, for any configuration.
const DISTANCE_MIN: Duration = Duration::from_millis(1);

/// Times of the probes of an idle peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Silence before the first probe.
    pub idle: Duration,
    /// Time between probes that are not answered.
    pub interval: Duration,
    /// Probes in a row that may go unanswered (MUST-29: one is not enough). With
    /// [`Config::user_timeout`](crate::Config::user_timeout), the silence counts instead (RFC 5482
    /// §4.2).
    pub probes: u8,
}

impl Default for Keepalive {
    /// The first probe after two hours (MUST-28), then nine in eleven minutes.
    fn default() -> Keepalive {
        Keepalive {
            idle: Duration::from_secs(2 * 3600),
            interval: Duration::from_secs(75),
            probes: 9,
        }
    }
}

/// Reaction to the expiry of the timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Check again at this time.
    Wait(Instant),
    /// Probe, and check again at this time.
    Probe(Instant),
    /// The peer is gone.
    GiveUp,
}

/// Keep-alive state of a connection. The timer is lazy: segments of the peer do not touch it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KeepaliveTimer {
    heard: Instant,
    /// When probing began.
    began: Instant,
    unanswered: u8,
    due: bool,
}

impl KeepaliveTimer {
    /// Records an acceptable segment of the peer.
    pub(crate) fn on_heard(&mut self, now: Instant) {
        self.heard = now;
        self.unanswered = 0;
        self.due = false;
    }

    /// Begins probing: silence counts from now.
    pub(crate) fn on_start(&mut self, now: Instant) {
        self.began = now;
    }

    /// Applies changed times. Returns the latest time of the next check.
    pub(crate) fn on_change(&self, now: Instant, config: &Keepalive) -> Instant {
        if self.unanswered > 0 {
            now + config.interval.max(DISTANCE_MIN)
        } else {
            self.silent_since() + config.idle
        }
    }

    /// Ends probing.
    pub(crate) fn stop(&mut self) {
        self.unanswered = 0;
        self.due = false;
    }

    /// Returns when the peer last sent an acceptable segment.
    pub(crate) fn heard(&self) -> Instant {
        self.heard
    }

    fn silent_since(&self) -> Instant {
        self.heard.max(self.began)
    }

    /// Handles the expiry of the timer. `busy`: data of ours waits for the peer, whose other timers
    /// decide.
    pub(crate) fn on_timeout(
        &mut self,
        now: Instant,
        config: &Keepalive,
        user_timeout: Option<Duration>,
        busy: bool,
    ) -> Verdict {
        let silence = now.since(self.silent_since());
        if busy {
            return Verdict::Wait(now + config.idle.max(DISTANCE_MIN));
        }
        if silence < config.idle {
            return Verdict::Wait(self.silent_since() + config.idle);
        }
        let gone = match user_timeout {
            Some(limit) => self.unanswered > 0 && silence >= limit,
            None => self.unanswered >= config.probes,
        };
        if gone {
            return Verdict::GiveUp;
        }
        self.unanswered = self.unanswered.saturating_add(1);
        self.due = true;
        Verdict::Probe(now + config.interval.max(DISTANCE_MIN))
    }

    /// Returns true once for each probe.
    pub(crate) fn take_due(&mut self) -> bool {
        std::mem::take(&mut self.due)
    }
}
