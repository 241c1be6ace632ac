//! Waiting for a condition, with a deadline.

use std::time::{Duration, Instant};

use crate::{Failure, Result};

/// Polls until the result is `Some`. For conditions without an event from the kernel.
pub fn until<T>(
    limit: Duration,
    what: &str,
    mut condition: impl FnMut() -> Option<T>,
) -> Result<T> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(answer) = condition() {
            return Ok(answer);
        }
        if Instant::now() >= deadline {
            return Err(Failure::new(format!("{what}: not within {limit:?}")));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
