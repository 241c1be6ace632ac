//! Detects stalled processes: each child is pinged several times within the time that it may stall,
//! and answers between two turns of its loop
//! ([`FromHost::Pong`](processes::ipc::messages::FromHost)).
//!
//! NIC processes are watched by the host process instead, through the rings. Time counts by the
//! supervisor's own turns, so a stall of the supervisor blames no other process.

use std::time::{Duration, Instant};

use contract::limits::HEARTBEATS_MISSED_MAX;
use rustix::time::{ClockId, clock_gettime};

use crate::supervisor::children::{Children, Role};

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Heartbeat {
    /// `None`: the process is not watched.
    period: Option<Duration>,
    next: Instant,
    is_asked: bool,
    missed: u32,
}

/// Action that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Nothing,
    /// Ping the process.
    Ask,
    /// The process has stalled for the whole time. Reported once.
    Silent,
}

impl Heartbeat {
    /// Watches a process that may stall for `within`, or forever if that is zero.
    pub(crate) fn new(within: Duration) -> Self {
        let period = within / HEARTBEATS_MISSED_MAX;
        let period = (!period.is_zero()).then_some(period);
        Self {
            period,
            next: Instant::now() + period.map_or(Duration::ZERO, until_multiple),
            is_asked: false,
            missed: 0,
        }
    }

    /// Returns when to call [`Heartbeat::on_time`] next.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.period.map(|_| self.next)
    }

    /// Handles the passing of time. A process that has not answered is not pinged again, since
    /// pings would fill its socket.
    pub(crate) fn on_time(&mut self, now: Instant) -> Due {
        let Some(period) = self.period.filter(|_| self.next <= now) else {
            return Due::Nothing;
        };
        // Without drift, unless a turn was late.
        self.next = Some(self.next + period)
            .filter(|next| *next > now)
            .unwrap_or(now + period);
        if !self.is_asked {
            self.is_asked = true;
            return Due::Ask;
        }
        self.missed = self.missed.saturating_add(1);
        match self.missed {
            HEARTBEATS_MISSED_MAX => Due::Silent,
            _ => Due::Nothing,
        }
    }

    /// Returns whether to ping the process in this role now. Kills a process that has stalled for
    /// the whole time; its exit is handled as an event.
    pub(crate) fn ask_or_kill(&mut self, now: Instant, role: Role, children: &Children) -> bool {
        let due = self.on_time(now);
        if due == Due::Silent {
            let name = children.name(role).unwrap_or("process");
            tracing::warn!("no heartbeat of the {name}: it is killed");
            children.kill(role);
        }
        due == Due::Ask
    }

    /// Records an answer, or the start of a successor. Returns whether the process had been silent.
    pub(crate) fn on_answer(&mut self) -> bool {
        let was_silent = self.missed >= HEARTBEATS_MISSED_MAX;
        (self.is_asked, self.missed) = (false, 0);
        was_silent
    }
}

/// Returns the time until `CLOCK_MONOTONIC` is a multiple of `period`. The supervisor pings all
/// processes at these times, so that an idle machine wakes once.
fn until_multiple(period: Duration) -> Duration {
    let now = Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default();
    let since = now.as_nanos() % period.as_nanos().max(1);
    period - u64::try_from(since).map_or(period, Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_silent_after_the_whole_time_and_told_of_once() {
        let mut heartbeat = Heartbeat::new(Duration::from_secs(5));
        let begun = heartbeat.deadline().unwrap();
        let mut at = |ms: u64| heartbeat.on_time(begun + Duration::from_millis(ms));
        assert_eq!(at(0), Due::Ask);
        assert_eq!([at(0), at(2500), at(4999)], [Due::Nothing; 3]);
        assert_eq!(
            [at(5000), at(7500), at(60_000)],
            [Due::Silent, Due::Nothing, Due::Nothing]
        );
        assert!(heartbeat.on_answer());
        let now = heartbeat.deadline().unwrap();
        assert_eq!(heartbeat.on_time(now), Due::Ask);
        assert!(!heartbeat.on_answer());
    }

    #[test]
    fn a_supervisor_that_stood_still_blames_no_other_process() {
        let mut heartbeat = Heartbeat::new(Duration::from_secs(5));
        let begun = heartbeat.deadline().unwrap();
        assert_eq!(heartbeat.on_time(begun), Due::Ask);
        let much_later = begun + Duration::from_secs(3600);
        assert_eq!(heartbeat.on_time(much_later), Due::Nothing);
    }

    #[test]
    fn without_a_time_no_process_is_watched() {
        let mut heartbeat = Heartbeat::new(Duration::ZERO);
        assert_eq!(heartbeat.deadline(), None);
        let later = Instant::now() + Duration::from_secs(3600);
        assert_eq!(heartbeat.on_time(later), Due::Nothing);
    }
}
