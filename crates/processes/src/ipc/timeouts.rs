//! Timeouts that the supervisor and its processes share.

use std::time::Duration;

/// Longest time until a NIC process sends its hello, and until the host process answers it.
pub const START_WAIT: Duration = Duration::from_secs(20);
