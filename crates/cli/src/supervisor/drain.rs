//! The graceful end of a server: no new connections, while responses under way complete.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::supervisor::reload::Outcome;
use crate::terminal::say;
use processes::ipc::fd_passing;
use processes::ipc::messages::ToHost;

/// State of the graceful end.
#[derive(Debug)]
pub(crate) struct Drain {
    /// Longest time for responses under way.
    timeout: Duration,
    begun: Option<Instant>,
}

impl Drain {
    /// Starts without a drain.
    pub(crate) fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            begun: None,
        }
    }

    /// Sets the longest time for responses, also of a drain that has begun.
    pub(crate) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Asks the host process to drain, unless it was asked already.
    pub(crate) fn begin(&mut self, is_asked: bool, to_host: &OwnedFd) -> Outcome {
        let timeout = self.timeout;
        let result = match self.begun {
            Some(_) => Ok("draining already".to_owned()),
            None => fd_passing::pass(to_host, &ToHost::Drain, None)
                .map(|()| {
                    let text = format!(
                        "draining: no new connections; the server ends with the last response, in \
                         {timeout:?} at the latest"
                    );
                    say(&format!("{text}\n"));
                    self.begun = Some(Instant::now());
                    text
                })
                .map_err(|errno| format!("the host process cannot be reached: {errno}")),
        };
        Outcome { is_asked, result }
    }

    /// Returns the deadline of the drain, if it has begun.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.begun?.checked_add(self.timeout)
    }

    /// Returns the time left, if the drain has begun.
    pub(crate) fn left(&self) -> Option<Duration> {
        let begun = self.begun?;
        Some(self.timeout.saturating_sub(begun.elapsed()))
    }

    /// Returns whether the deadline has passed.
    pub(crate) fn is_over(&self) -> bool {
        self.deadline()
            .is_some_and(|deadline| deadline <= Instant::now())
    }
}
