//! Durations as the kernel takes them.

use std::time::Duration;

use rustix::event::Timespec;

/// A duration, cut off at what a clock can hold.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}
