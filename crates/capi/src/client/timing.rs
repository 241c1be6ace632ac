//! The clock of waits, and durations as the kernel takes them.
//!
//! The time is the kernel's own: a program may have put functions that stop or shift the clock in
//! the place of the C library's, as libfaketime does, and the kernel's waits end all the same.

use std::time::Duration;

use rustix::event::Timespec;
use rustix::time::{ClockId, clock_gettime};

/// A time by the monotonic clock of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(Duration);

impl Instant {
    /// This moment.
    pub fn now() -> Instant {
        let now = clock_gettime(ClockId::Monotonic);
        Instant(Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32))
    }

    /// The time so much later; `None` if no clock can tell it.
    pub fn checked_add(self, duration: Duration) -> Option<Instant> {
        self.0.checked_add(duration).map(Instant)
    }

    /// How long after another time it is; zero if it is before.
    pub fn saturating_duration_since(self, earlier: Instant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// How long ago it is.
    pub fn elapsed(self) -> Duration {
        Instant::now().saturating_duration_since(self)
    }
}

impl std::ops::Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, duration: Duration) -> Instant {
        Instant(self.0.saturating_add(duration))
    }
}

/// A duration, cut off at what a clock can hold.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}
