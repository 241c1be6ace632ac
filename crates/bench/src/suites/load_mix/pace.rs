//! Punctuality of a load generator: shows whether a stall was the generator's own.

use std::fmt::{Display, Formatter};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// The longest pauses, in milliseconds, and when they ended, in seconds since the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Pauses {
    /// Time in which the generator was ready to run, and did not.
    pub(crate) kept_ms: f64,
    pub(crate) kept_until_s: f64,
    /// Time in which it ran or waited, and no connection had an event.
    pub(crate) silent_ms: f64,
    pub(crate) silent_until_s: f64,
}

impl Display for Pauses {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "the load generator was kept from its core for {:.0} ms at most (until {:.1} s after \
             its start), and had nothing come for {:.0} ms at most (until {:.1} s)",
            self.kept_ms, self.kept_until_s, self.silent_ms, self.silent_until_s
        )
    }
}

/// Watches a loop that waits for events, up to a time limit, and handles them.
#[derive(Debug)]
pub(super) struct Pace {
    wait_max: Duration,
    begun: Instant,
    /// Start of the present turn, and the thread's CPU time at it.
    turn: Instant,
    turn_cpu: Duration,
    /// Time of the last event.
    heard: Instant,
    pub(super) pauses: Pauses,
}

impl Pace {
    pub(super) fn new(wait_max: Duration) -> Pace {
        let now = Instant::now();
        Pace {
            wait_max,
            begun: now,
            turn: now,
            turn_cpu: own_cpu(),
            heard: now,
            pauses: Pauses::default(),
        }
    }

    /// Notes a turn of the loop, which has waited for `waited`, with or without an event.
    pub(super) fn turned(&mut self, waited: Duration, has_come: bool) {
        self.note(Instant::now(), own_cpu(), waited, has_come);
    }

    fn note(&mut self, now: Instant, cpu: Duration, waited: Duration, has_come: bool) {
        let ms = |duration: Duration| 1e3 * duration.as_secs_f64();
        let at_s = (now - self.begun).as_secs_f64();
        let meant = cpu.saturating_sub(self.turn_cpu) + waited.min(self.wait_max);
        let kept = (now - self.turn).saturating_sub(meant);
        if ms(kept) > self.pauses.kept_ms {
            (self.pauses.kept_ms, self.pauses.kept_until_s) = (ms(kept), at_s);
        }
        let silent = now - self.heard;
        if has_come && ms(silent) > self.pauses.silent_ms {
            (self.pauses.silent_ms, self.pauses.silent_until_s) = (ms(silent), at_s);
        }
        if has_come {
            self.heard = now;
        }
        (self.turn, self.turn_cpu) = (now, cpu);
    }

    /// Returns the time since the last event.
    pub(super) fn silence(&self) -> Duration {
        self.heard.elapsed()
    }
}

fn own_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_neither_work_nor_silence() {
        const MS: Duration = Duration::from_millis(1);
        let mut pace = Pace::new(100 * MS);
        let (begun, cpu) = (pace.begun, pace.turn_cpu);
        // 50 ms of work, and 100 ms of waiting for an event: no delay.
        pace.note(begun + 150 * MS, cpu + 50 * MS, 100 * MS, true);
        assert_eq!(pace.pauses.kept_ms, 0.0);
        assert_eq!(pace.pauses.silent_ms, 150.0);
        // A wait of 100 ms took 400; then 10 ms of work took 30.
        pace.note(begun + 580 * MS, cpu + 60 * MS, 400 * MS, false);
        assert_eq!(
            (pace.pauses.kept_ms, pace.pauses.kept_until_s),
            (320.0, 0.58)
        );
        assert_eq!(pace.pauses.silent_ms, 150.0, "it may still come");
        pace.note(begun + 600 * MS, cpu + 70 * MS, 10 * MS, true);
        assert_eq!(
            (pace.pauses.silent_ms, pace.pauses.silent_until_s),
            (450.0, 0.6)
        );
        assert_eq!(pace.pauses.kept_ms, 320.0);
    }
}
