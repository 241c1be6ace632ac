//! The timers of a connection.

use crate::time::Instant;

/// Purpose of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// RTO (RFC 6298).
    Retransmit,
    /// Window probe, and the override of sender-side silly window avoidance (RFC 9293 §3.8.6.1).
    Persist,
    /// Delayed acknowledgment.
    DelayedAck,
    /// FIN-WAIT-2 and TIME-WAIT; before, [`Timer::CORK`].
    Linger,
    /// Keep-alive.
    Keepalive,
    /// RACK's reordering timer (RFC 8985 §6.2 step 5).
    Reorder,
    /// Tail loss probe: PTO (RFC 8985 §7.2).
    Pto,
    /// Pacing: the next transmission may be issued.
    Pace,
    /// The NIC stack's silence ([`crate::undeparted`]).
    Departure,
}

impl Timer {
    /// Text that waits for a full segment ([`crate::sender::cork`]). Nothing waits behind our FIN,
    /// and no connection lingers before it.
    pub(crate) const CORK: Timer = Timer::Linger;
}

const TIMERS: usize = Timer::Departure as usize + 1;

/// Deadlines, one for each timer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timers {
    deadlines: [Instant; TIMERS],
}

impl Timers {
    pub(crate) fn new() -> Timers {
        Timers {
            deadlines: [Instant::NEVER; TIMERS],
        }
    }

    pub(crate) fn arm(&mut self, timer: Timer, deadline: Instant) {
        self.deadlines[timer as usize] = deadline;
    }

    pub(crate) fn cancel(&mut self, timer: Timer) {
        self.deadlines[timer as usize] = Instant::NEVER;
    }

    pub(crate) fn cancel_all(&mut self) {
        *self = Timers::new();
    }

    pub(crate) fn is_armed(&self, timer: Timer) -> bool {
        self.deadlines[timer as usize] != Instant::NEVER
    }

    /// Returns when the timer expires; [`Instant::NEVER`] if it is not armed.
    pub(crate) fn deadline(&self, timer: Timer) -> Instant {
        self.deadlines[timer as usize]
    }

    /// Makes the timer, if it is armed, expire at `deadline` at the latest.
    pub(crate) fn bound(&mut self, timer: Timer, deadline: Option<Instant>) {
        if let Some(deadline) = deadline
            && self.is_armed(timer)
        {
            let armed = &mut self.deadlines[timer as usize];
            *armed = deadline.min(*armed);
        }
    }

    /// Disarms the timer and returns true if its deadline has come.
    pub(crate) fn take_expired(&mut self, timer: Timer, now: Instant) -> bool {
        let expired = self.is_armed(timer) && self.deadlines[timer as usize] <= now;
        if expired {
            self.cancel(timer);
        }
        expired
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        let next = self
            .deadlines
            .iter()
            .copied()
            .fold(Instant::NEVER, Instant::min);
        (next != Instant::NEVER).then_some(next)
    }
}
