//! The broker: applications connect to it, and attach to the host stack. It decides which users may
//! attach, and creates the memory and descriptors that an application shares with the host process,
//! which therefore never receives an application's descriptor. Bytes and commands do not pass
//! through the broker: attached applications go on without it.
//!
//! | Module | Purpose |
//! |---|---|
//! | `service` | clients and their requests |
//! | `connection` | packets of a client |
//! | `doors` | files that applications have passed, and NIC processes that take them |
//! | `host_link` | the socket to the host process |
//! | `absent` | processes that earlier brokers attached |
//! | `applications` | applications and users, their bounds and numbers |
//! | `rules` | rights of users and groups |
//! | `shares` | descriptors held by each user |
//! | `token_bucket` | rates |

mod absent;
mod applications;
mod connection;
mod doors;
mod host_link;
mod rules;
mod service;
mod shares;
mod token_bucket;

#[cfg(test)]
mod tests;

use std::ffi::CStr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use failure::Failure;
use observer::Report;
use observer::counter_names::{self, BrokerCounters};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::CapabilitySet;
use sandbox::{descriptors, lockdown, seccomp};
use serde::{Deserialize, Serialize};
use socket_channel::Layout;

pub use crate::broker::applications::ApplicationLimits;
use crate::broker::applications::Applications;
pub use crate::broker::rules::Rule;
use crate::broker::service::{Service, Terms};
use crate::closer::Closer;
use crate::ipc::child;
use crate::ipc::fd_passing;
use crate::ipc::launch::{self, Settings};
use crate::ipc::log_lines;
use crate::ipc::messages::{FromBroker, SocketLimits, ToBroker};
use crate::ipc::signals::Signals;

/// Settings of the broker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BrokerSettings {
    /// First number of applications and channels, away from those of earlier brokers.
    pub first_number: u32,
    /// Limits on their numbers.
    pub applications: ApplicationLimits,
    /// Limits of each application.
    pub limits: SocketLimits,
    /// Rights of users and groups; the first rule that matches a user applies.
    pub rules: Vec<Rule>,
}

impl Settings for BrokerSettings {
    const NAME: &'static str = "broker";
    const COMMAND: &'static str = "broker";
    const TASK_NAME: &'static CStr = c"splitway-broker";
}

/// Longest message of the supervisor, in bytes.
const MESSAGE_BYTES_MAX: usize = 64;

/// Runs until the host process is gone or a signal ends it.
pub fn run() -> Result<(), Failure> {
    let mut launched = launch::enter::<BrokerSettings>()?;
    let host = launched.take_socket()?;
    let (settings, control) = (launched.settings, launched.control);
    lockdown::forbid_core_dumps()?;
    let signals = Signals::catch_ends()?;
    let stop = std::os::fd::AsFd::as_fd(&signals);
    // A descriptor for each process of an application.
    descriptors::raise();
    let descriptors = u32::try_from(descriptors::for_applications()).unwrap_or(u32::MAX);
    lockdown::keep_capabilities(CapabilitySet::empty())?;
    lockdown::confine_to_nothing()?;
    let closer = Closer::start()
        .map_err(|error| Failure::broken("starting a thread that closes descriptors", error))?;
    seccomp::allow_only(seccomp::Kind::Broker)?;
    let Some(listener) = listener(&control, stop)? else {
        return Ok(());
    };
    let mut service = service(settings, descriptors, listener, host, closer)?;
    child::tell(FromBroker::Ready)?;
    serve(&mut service, &control, stop)?;
    child::report(counter_names::broker(&service.counters()))
}

fn service(
    settings: BrokerSettings,
    descriptors: u32,
    listener: OwnedFd,
    host: OwnedFd,
    closer: Closer,
) -> Result<Service, Failure> {
    let limits = settings.limits;
    let layout = Layout::of(limits.of_segment())
        .map_err(|error| Failure::input("[sockets] segment and sockets_max", error))?;
    let terms = Terms {
        rules: settings.rules,
        limits,
        layout,
    };
    let applications = Applications::new(settings.applications, descriptors, settings.first_number);
    Service::new(terms, applications, listener, host, closer, Instant::now())
        .map_err(|errno| Failure::broken("watching applications", errno))
}

/// Waits for the listener; returns `None` if `stop` becomes readable before.
fn listener(control: &OwnedFd, stop: BorrowedFd<'_>) -> Result<Option<OwnedFd>, Failure> {
    loop {
        let mut fds = [
            PollFd::from_borrowed_fd(stop, PollFlags::IN),
            PollFd::new(control, PollFlags::IN),
        ];
        wait(&mut fds, None)?;
        if !fds[0].revents().is_empty() {
            return Ok(None);
        }
        let buffer = &mut [0; MESSAGE_BYTES_MAX];
        if let Some((ToBroker::Listener, listener)) = fd_passing::receive(control, buffer)? {
            let why = "its descriptor did not arrive";
            return listener
                .map(Some)
                .ok_or_else(|| Failure::broken("listener for applications", why));
        }
    }
}

/// Shortest time between reports of counters.
const REPORT_PERIOD: Duration = Duration::from_secs(1);

/// Reports counters to the supervisor.
#[derive(Debug, Default)]
struct Reporter {
    told: BrokerCounters,
    /// Earliest time of the next report.
    next: Option<Instant>,
}

impl Reporter {
    /// Reports changed counters if that is due; returns when it is, if they wait.
    fn on_turn(&mut self, counters: BrokerCounters, now: Instant) -> Option<Instant> {
        if counters == self.told {
            return None;
        }
        if self.next.is_none_or(|next| next <= now) {
            let report = Report::now(counter_names::broker(&counters));
            if child::tell_if_writable(FromBroker::Counters(report)) {
                self.told = counters;
            }
            self.next = Some(now + REPORT_PERIOD);
        }
        self.next.filter(|_| counters != self.told)
    }
}

/// Serves until the host process is gone, or `stop` becomes readable.
fn serve(service: &mut Service, control: &OwnedFd, stop: BorrowedFd<'_>) -> Result<(), Failure> {
    let mut reporter = Reporter::default();
    while service.turn(Instant::now()).is_ok() {
        let report_at = reporter.on_turn(service.counters(), Instant::now());
        let own = [
            PollFd::from_borrowed_fd(stop, PollFlags::IN),
            PollFd::new(control, PollFlags::IN),
        ];
        let mut fds: Vec<_> = own.into_iter().chain(service.watch()).collect();
        let due = service.deadline().into_iter().chain(report_at).min();
        wait(&mut fds, due)?;
        if !fds[0].revents().is_empty() {
            return Ok(());
        }
        if fds[1].revents().is_empty() {
            continue;
        }
        let buffer = &mut [0; MESSAGE_BYTES_MAX];
        match fd_passing::receive(control, buffer)? {
            Some((ToBroker::Ping, _)) => child::tell(FromBroker::Pong)?,
            Some((ToBroker::LogLevel(level), _)) => log_lines::set_level(level.0),
            Some((ToBroker::Nic, Some(door))) => service.add_nic(door),
            Some((ToBroker::Nic, None)) => tracing::warn!("a NIC process that takes no files"),
            // The listener is never replaced.
            Some((ToBroker::Listener, _)) | None => {}
        }
    }
    Ok(())
}

fn wait(fds: &mut [PollFd<'_>], until: Option<Instant>) -> Result<(), Failure> {
    let timeout = until.map(|until| {
        let left = until.saturating_duration_since(Instant::now());
        Timespec::try_from(left).unwrap_or_default()
    });
    rustix::io::retry_on_intr(|| poll(fds, timeout.as_ref()))
        .map_err(|errno| Failure::broken("waiting for applications", errno))?;
    Ok(())
}
