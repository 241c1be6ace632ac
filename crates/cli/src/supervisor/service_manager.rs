//! Notifications for a service manager such as systemd: that the server serves, reads its
//! configuration again, ends, and lives (sd_notify(3)).
//!
//! It lives if the host process does its work, and not only this one: whenever half of the time is
//! over that the manager waits, the host process is asked, and its answer, given between two turns
//! of its loop, is what the manager hears, unless a NIC process stands still and is not replaced.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;

/// The longest time that is asked for at once: 71 minutes is what its number can say.
const EXTENSION_MAX: Duration = Duration::from_secs(60 * 60);

/// Longest time until the end, which is more than a service manager waits.
const END_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// There may be no service manager.
#[derive(Debug)]
pub(crate) struct ServiceManager {
    /// How often the host process is asked whether it turns.
    every: Option<Duration>,
    ask_next: Option<Instant>,
    /// The host process was asked for the manager and has not answered.
    is_asked: bool,
    /// What is to be shown while the server serves.
    status: String,
    /// Configurations that are being read again.
    reloads: u32,
    /// When the server will have ended at the latest, since it is to end.
    end: Option<Instant>,
    /// When the manager, which is to wait for that, has to hear so again.
    extend_next: Option<Instant>,
}

impl ServiceManager {
    /// As the environment says: NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID.
    pub(crate) fn of_environment() -> Self {
        Self {
            every: sd_notify::watchdog_enabled().map(|time| time / 2),
            ask_next: None,
            is_asked: false,
            status: String::new(),
            reloads: 0,
            end: None,
            extend_next: None,
        }
    }

    /// The server serves.
    pub(crate) fn ready(&mut self, status: &str) {
        status.clone_into(&mut self.status);
        self.ask_next = self.every.map(|_| Instant::now());
        tell(&[NotifyState::Ready, NotifyState::Status(status)]);
    }

    /// The configuration is read again.
    pub(crate) fn reloading(&mut self) {
        self.reloads += 1;
        if self.end.is_some() {
            return;
        }
        // Without the time, systemd would take the readiness before for the one after.
        if let Ok(now) = NotifyState::monotonic_usec_now() {
            let status = NotifyState::Status("reads its configuration again");
            tell(&[NotifyState::Reloading, now, status]);
        }
    }

    /// It has been, or was no good.
    pub(crate) fn reloaded(&mut self) {
        self.reloads = self.reloads.saturating_sub(1);
        if self.reloads == 0 && self.end.is_none() {
            tell(&[NotifyState::Ready, NotifyState::Status(&self.status)]);
        }
    }

    /// The server ends, in so long at the latest. May be repeated. No readiness is reported after
    /// it.
    pub(crate) fn stopping(&mut self, within: Duration) {
        let is_news = self.end.is_none();
        self.end = Instant::now().checked_add(within.min(END_MAX));
        if is_news {
            tell(&[NotifyState::Stopping, NotifyState::Status("ends")]);
        }
        self.extend();
    }

    /// The service manager is to wait longer, if it is time to say that again.
    pub(crate) fn extend_if_due(&mut self) {
        if self.extend_next.is_some_and(|at| at <= Instant::now()) {
            self.extend();
        }
    }

    /// What is longer than one service_manager can say is said again, well before that time is
    /// over.
    fn extend(&mut self) {
        let now = Instant::now();
        let left = self.end.map_or(Duration::ZERO, |end| end - now);
        let extension = left.min(EXTENSION_MAX);
        let has_more = left > extension;
        self.extend_next = has_more.then(|| now + extension / 2);
        let time_us = u32::try_from(extension.as_micros()).unwrap_or(u32::MAX);
        tell(&[NotifyState::ExtendTimeoutUsec(time_us)]);
    }

    /// The host process has said that it turns, and if so, that all NIC processes do that serve.
    pub(crate) fn host_turns(&mut self, do_nics: bool) {
        if std::mem::take(&mut self.is_asked) && do_nics {
            tell(&[NotifyState::Watchdog]);
        }
    }

    /// When the host process is to be asked next, or the manager to be told.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.ask_next.into_iter().chain(self.extend_next).min()
    }

    /// The host process is to be asked now.
    pub(crate) fn is_to_ask(&mut self) -> bool {
        let now = Instant::now();
        let is_due = self.ask_next.is_some_and(|at| at <= now);
        if is_due {
            self.ask_next = self.every.and_then(|every| now.checked_add(every));
            self.is_asked = true;
        }
        is_due
    }
}

fn tell(what: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(what) {
        tracing::warn!("the service manager could not be notified ({what:?}): {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_is_far_away_is_notified_again_and_one_that_is_near_is_not() {
        let mut service_manager = ServiceManager::of_environment();
        service_manager.stopping(3 * EXTENSION_MAX);
        let again = service_manager.deadline().expect("a time to say it again");
        assert!(again <= Instant::now() + EXTENSION_MAX / 2);
        service_manager.stopping(Duration::MAX);
        assert!(service_manager.deadline().is_some());
        service_manager.stopping(EXTENSION_MAX / 2);
        assert_eq!(service_manager.deadline(), None);
    }
}
