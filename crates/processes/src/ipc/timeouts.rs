//! Times that the supervisor and its processes agree on.

use std::time::Duration;

/// How long a NIC process may take to say hello, and the host process to answer it.
pub const START_WAIT: Duration = Duration::from_secs(20);
