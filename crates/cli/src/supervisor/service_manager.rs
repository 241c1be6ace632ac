//! Notifications for a service manager such as systemd: that the server serves, reads its
//! configuration again, ends, and lives (sd_notify(3)).
//!
//! The server is alive if the host process works, not only this one: at every half of the watchdog
//! interval the host process is pinged, and its answer, given between two turns of its loop, is
//! passed to the manager, unless a NIC process has stalled and is not replaced.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;

/// Longest extension of the timeout at once; its number holds 71 minutes.
const EXTENSION_MAX: Duration = Duration::from_secs(60 * 60);

/// Longest time until the end; longer than any service manager waits.
const END_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The link to the service manager, if any.
#[derive(Debug)]
pub(crate) struct ServiceManager {
    /// Interval of the pings to the host process.
    every: Option<Duration>,
    ask_next: Option<Instant>,
    /// Whether a ping for the manager awaits its answer.
    is_asked: bool,
    /// Status shown while the server serves.
    status: String,
    /// Number of reloads under way.
    reloads: u32,
    /// Latest end of the server, once it is ending.
    end: Option<Instant>,
    /// When the manager's timeout is extended next.
    extend_next: Option<Instant>,
}

impl ServiceManager {
    /// Reads the environment: NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID.
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

    /// Reports that the server serves.
    pub(crate) fn ready(&mut self, status: &str) {
        status.clone_into(&mut self.status);
        self.ask_next = self.every.map(|_| Instant::now());
        tell(&[NotifyState::Ready, NotifyState::Status(status)]);
    }

    /// Reports that the configuration is being reloaded.
    pub(crate) fn reloading(&mut self) {
        self.reloads += 1;
        if self.end.is_some() {
            return;
        }
        // Without the time, systemd would take the earlier readiness for the later one.
        if let Ok(now) = NotifyState::monotonic_usec_now() {
            let status = NotifyState::Status("reads its configuration again");
            tell(&[NotifyState::Reloading, now, status]);
        }
    }

    /// Reports that a reload has ended, with success or not.
    pub(crate) fn reloaded(&mut self) {
        self.reloads = self.reloads.saturating_sub(1);
        if self.reloads == 0 && self.end.is_none() {
            tell(&[NotifyState::Ready, NotifyState::Status(&self.status)]);
        }
    }

    /// Reports that the server ends within this time. May be repeated. No readiness is reported
    /// after it.
    pub(crate) fn stopping(&mut self, within: Duration) {
        let is_news = self.end.is_none();
        self.end = Instant::now().checked_add(within.min(END_MAX));
        if is_news {
            tell(&[NotifyState::Stopping, NotifyState::Status("ends")]);
        }
        self.extend();
    }

    /// Extends the manager's timeout again if that is due.
    pub(crate) fn extend_if_due(&mut self) {
        if self.extend_next.is_some_and(|at| at <= Instant::now()) {
            self.extend();
        }
    }

    /// Extends the manager's timeout. A time longer than one notification can carry is extended
    /// again, well before it is over.
    fn extend(&mut self) {
        let now = Instant::now();
        let left = self.end.map_or(Duration::ZERO, |end| end - now);
        let extension = left.min(EXTENSION_MAX);
        let has_more = left > extension;
        self.extend_next = has_more.then(|| now + extension / 2);
        let time_us = u32::try_from(extension.as_micros()).unwrap_or(u32::MAX);
        tell(&[NotifyState::ExtendTimeoutUsec(time_us)]);
    }

    /// Handles the answer of the host process. `do_nics`: no NIC process in use has stalled.
    pub(crate) fn host_turns(&mut self, do_nics: bool) {
        if std::mem::take(&mut self.is_asked) && do_nics {
            tell(&[NotifyState::Watchdog]);
        }
    }

    /// Returns when to ping the host process or to extend the timeout.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.ask_next.into_iter().chain(self.extend_next).min()
    }

    /// Returns whether to ping the host process now.
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
