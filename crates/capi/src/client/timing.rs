//! The clock of waits, and durations as the kernel takes them.
//!
//! The time comes from the kernel directly: a program may have replaced the C library's clock
//! functions with ones that stop or shift the clock, as libfaketime does, without effect on the
//! kernel's waits.

use std::time::Duration;

use rustix::event::Timespec;
use rustix::time::{ClockId, clock_gettime};

/// A time of the kernel's monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(Duration);

impl Instant {
    /// Returns the present time.
    pub fn now() -> Instant {
        let now = clock_gettime(ClockId::Monotonic);
        Instant(Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32))
    }

    /// Returns the time after a duration; `None` on overflow.
    pub fn checked_add(self, duration: Duration) -> Option<Instant> {
        self.0.checked_add(duration).map(Instant)
    }

    /// Returns the duration since an earlier time; zero if that is later.
    pub fn saturating_duration_since(self, earlier: Instant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the duration since this time.
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

/// Converts a duration; one beyond the type's range is cut off.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}
