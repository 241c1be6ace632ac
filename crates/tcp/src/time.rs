//! Time in TCP: a count of microseconds passed in by the caller.

use std::ops::Add;
use std::time::Duration;

/// A point on the caller's monotonic clock, in microseconds since an arbitrary start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant {
    us: u64,
}

impl Instant {
    /// Later than any instant that a clock will show.
    pub(crate) const NEVER: Instant = Instant { us: u64::MAX };

    /// Returns the instant `us` microseconds after the clock's start.
    pub const fn from_us(us: u64) -> Instant {
        Instant { us }
    }

    /// Returns the microseconds since the clock's start.
    pub const fn as_us(self) -> u64 {
        self.us
    }

    /// Returns the time elapsed since `earlier`; zero if `earlier` is later.
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_micros(self.us_since(earlier))
    }

    /// Returns the same in microseconds: a conversion to `Duration` and back costs a division each
    /// way, too much for work done on every acknowledgment.
    pub(crate) const fn us_since(self, earlier: Instant) -> u64 {
        self.us.saturating_sub(earlier.us)
    }

    /// Returns the instant `us` microseconds later. Saturates at the end of time.
    pub(crate) const fn after_us(self, us: u64) -> Instant {
        Instant {
            us: self.us.saturating_add(us),
        }
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    /// Saturates at the end of time.
    fn add(self, duration: Duration) -> Instant {
        self.after_us(whole_us(duration))
    }
}

/// Returns the whole microseconds of a duration; the largest number if they are more.
pub(crate) const fn whole_us(duration: Duration) -> u64 {
    let us = duration.as_secs().saturating_mul(1_000_000);
    us.saturating_add(duration.subsec_micros() as u64)
}
