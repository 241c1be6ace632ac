//! What a service manager such as systemd is told: that the server serves, reads its configuration anew, ends, and lives
//! (sd_notify(3)).
//!
//! It lives if the host process does its work, and not only this one: whenever half of the time is over that the manager
//! waits, the host process is asked, and its answer, given between two turns of its loop, is what the manager hears.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;

/// Nobody may be there to be told.
#[derive(Debug)]
pub(crate) struct Notice {
    /// How often the host process is asked whether it turns.
    every: Option<Duration>,
    ask_next: Option<Instant>,
    /// What is to be shown while the server serves.
    status: String,
}

impl Notice {
    /// As the environment says: NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID.
    pub(crate) fn of_environment() -> Self {
        Self {
            every: sd_notify::watchdog_enabled().map(|time| time / 2),
            ask_next: None,
            status: String::new(),
        }
    }

    /// The server serves.
    pub(crate) fn ready(&mut self, status: &str) {
        status.clone_into(&mut self.status);
        self.ask_next = self.every.map(|_| Instant::now());
        tell(&[NotifyState::Ready, NotifyState::Status(status)]);
    }

    /// The configuration is read anew.
    pub(crate) fn reloading(&self) {
        // Without the time, systemd would take the readiness before for the one after.
        if let Ok(now) = NotifyState::monotonic_usec_now() {
            let status = NotifyState::Status("reads its configuration anew");
            tell(&[NotifyState::Reloading, now, status]);
        }
    }

    /// It has been, or was no good.
    pub(crate) fn reloaded(&self) {
        tell(&[NotifyState::Ready, NotifyState::Status(&self.status)]);
    }

    /// The server ends, when the last response has been sent.
    pub(crate) fn stopping(&self) {
        tell(&[NotifyState::Stopping, NotifyState::Status("ends")]);
    }

    /// The host process has said that it turns.
    pub(crate) fn host_turns(&self) {
        tell(&[NotifyState::Watchdog]);
    }

    /// When the host process is to be asked next.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.ask_next
    }

    /// It is to be asked now.
    pub(crate) fn is_to_ask(&mut self) -> bool {
        let now = Instant::now();
        let is_due = self.ask_next.is_some_and(|at| at <= now);
        if is_due {
            self.ask_next = self.every.and_then(|every| now.checked_add(every));
        }
        is_due
    }
}

fn tell(what: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(what) {
        tracing::warn!("the service manager could not be told ({what:?}): {error}");
    }
}
