//! The time of this machine.

use rustix::time::{ClockId, clock_gettime};

/// Microseconds of `CLOCK_MONOTONIC`.
pub(crate) fn now_us() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000
}
