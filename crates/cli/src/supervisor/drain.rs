//! The end of a server without losing anything: no new connections, and the responses that are
//! under way to their end.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::supervisor::reload::Outcome;
use crate::terminal::say;
use processes::ipc::fd_passing;
use processes::ipc::messages::ToHost;

/// How that stands.
#[derive(Debug)]
pub(crate) struct Drain {
    /// How long responses may take.
    timeout: Duration,
    begun: Option<Instant>,
}

impl Drain {
    /// It has not begun.
    pub(crate) fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            begun: None,
        }
    }

    /// Responses may take so long, also those that are waited for already.
    pub(crate) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// The host process is to take leave of all connections, if it was not told so before.
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

    /// When it is over at the latest.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.begun?.checked_add(self.timeout)
    }

    /// How long it may still take, if it has begun.
    pub(crate) fn left(&self) -> Option<Duration> {
        let begun = self.begun?;
        Some(self.timeout.saturating_sub(begun.elapsed()))
    }

    /// It has taken longer than responses may.
    pub(crate) fn is_over(&self) -> bool {
        self.deadline()
            .is_some_and(|deadline| deadline <= Instant::now())
    }
}
