//! Conversions of the caller's time for quinn-proto and rustls.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quinn_proto::TimeSource;
use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;
use tcp::Instant;

/// The caller's monotonic time and the standard library's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    /// Stands for the start of the caller's clock. The standard library can make an instant only by
    /// reading the clock; only differences count.
    start: std::time::Instant,
}

impl Clock {
    pub(super) fn new() -> Self {
        Self {
            start: std::time::Instant::now(),
        }
    }

    pub(super) fn to_std(self, at: Instant) -> std::time::Instant {
        self.start + Duration::from_micros(at.as_us())
    }

    /// Rounded up to a whole microsecond.
    pub(super) fn to_caller(self, at: std::time::Instant) -> Instant {
        let since = at.saturating_duration_since(self.start);
        let us = u64::from(since.subsec_nanos().div_ceil(1000));
        Instant::from_us(since.as_secs().saturating_mul(1_000_000).saturating_add(us))
    }
}

/// The time of day, by which tokens and tickets expire.
pub(super) struct TimeOfDay {
    /// Since the epoch, at the start of the caller's clock, in microseconds.
    start_us: u64,
    now_us: AtomicU64,
}

impl TimeOfDay {
    /// `unix_time` is the time of day at `now`.
    pub(super) fn new(unix_time: Duration, now: Instant) -> Self {
        let unix_us = u64::try_from(unix_time.as_micros()).unwrap_or(u64::MAX);
        Self {
            start_us: unix_us.saturating_sub(now.as_us()),
            now_us: AtomicU64::new(now.as_us()),
        }
    }

    pub(super) fn set(&self, now: Instant) {
        self.now_us.store(now.as_us(), Ordering::Relaxed);
    }

    fn since_epoch(&self) -> Duration {
        let now_us = self.now_us.load(Ordering::Relaxed);
        Duration::from_micros(self.start_us.saturating_add(now_us))
    }
}

impl TimeSource for TimeOfDay {
    fn now(&self) -> SystemTime {
        UNIX_EPOCH + self.since_epoch()
    }
}

impl TimeProvider for TimeOfDay {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(self.since_epoch()))
    }
}

impl fmt::Debug for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.since_epoch().fmt(f)
    }
}
