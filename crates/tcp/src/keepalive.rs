//! Keep-alive: asking a silent peer whether it is still there (RFC 9293 §3.8.4).
//!
//! A peer that vanished without a word, its machine or its router switched off, would hold a
//! connection for ever if nothing is to be sent. A probe is an empty segment below SND.UNA, as for
//! a closed window ([`crate::sender::persist`]): a peer that has the connection answers with an
//! acknowledgment, one that does not, with a reset.

use std::time::Duration;

use crate::time::Instant;

/// Whatever is configured, the timer does not fire all the time.
const DISTANCE_MIN: Duration = Duration::from_millis(1);

/// When an idle peer is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Silence before the first probe.
    pub idle: Duration,
    /// Time between probes that are not answered.
    pub interval: Duration,
    /// Probes in a row that may go unanswered (MUST-29: one says nothing). With
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

/// What is to be done when the timer has expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Look again then.
    Wait(Instant),
    /// Probe, and look again then.
    Probe(Instant),
    /// The peer is gone.
    GiveUp,
}

/// Keep-alive state of a connection. The timer is lazy: hearing from the peer does not touch it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KeepaliveTimer {
    heard: Instant,
    /// When probing began.
    began: Instant,
    unanswered: u8,
    due: bool,
}

impl KeepaliveTimer {
    /// Something acceptable has come from the peer.
    pub(crate) fn on_heard(&mut self, now: Instant) {
        self.heard = now;
        self.unanswered = 0;
        self.due = false;
    }

    /// Probing begins: silence counts from now.
    pub(crate) fn on_start(&mut self, now: Instant) {
        self.began = now;
    }

    /// The times have changed. Names when to look, if not earlier.
    pub(crate) fn on_change(&self, now: Instant, config: &Keepalive) -> Instant {
        if self.unanswered > 0 {
            now + config.interval.max(DISTANCE_MIN)
        } else {
            self.silent_since() + config.idle
        }
    }

    /// Probing ends.
    pub(crate) fn stop(&mut self) {
        self.unanswered = 0;
        self.due = false;
    }

    /// When the peer was last heard.
    pub(crate) fn heard(&self) -> Instant {
        self.heard
    }

    fn silent_since(&self) -> Instant {
        self.heard.max(self.began)
    }

    /// The timer has expired. `busy`: something of ours waits for the peer, whose other timers
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

    /// True once for each probe.
    pub(crate) fn take_due(&mut self) -> bool {
        std::mem::take(&mut self.due)
    }
}
