//! Time as TCP sees it: a count of microseconds handed in by the caller.

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

    /// The instant `us` microseconds after the clock's start.
    pub const fn from_us(us: u64) -> Instant {
        Instant { us }
    }

    /// Microseconds since the clock's start.
    pub const fn as_us(self) -> u64 {
        self.us
    }

    /// Time elapsed since `earlier`; zero if `earlier` is later.
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_micros(self.us.saturating_sub(earlier.us))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    /// Saturates at the end of time.
    fn add(self, duration: Duration) -> Instant {
        let us = duration.as_secs().saturating_mul(1_000_000);
        Instant {
            us: self
                .us
                .saturating_add(us)
                .saturating_add(duration.subsec_micros().into()),
        }
    }
}
