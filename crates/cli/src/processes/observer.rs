//! The observer process: it keeps logs and metrics, so that neither a slow disk nor a slow scraper
//! ever holds up the processes that serve. It has no rights but to use what the supervisor has
//! opened for it.
//!
//! | Module | Its one idea |
//! |---|---|
//! | `format` | lines of the access log |
//! | `log_file` | a file that may be slow, full, or replaced |
//! | `lines` | whole lines out of a pipe |
//! | `packet` | what the host process tells, and how |
//! | `metrics`, `catalog` | all that is known; which metric is which counter |
//! | `exposition` | Prometheus' text format |
//! | `top` | the files that are asked for most |
//! | `admin` | HTTP for those who watch |
mod admin;
mod catalog;
mod exposition;
mod format;
mod lines;
mod log_file;
mod metrics;
mod packet;
mod top;

use std::ffi::CStr;
use std::fs::File;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use rustix::thread::CapabilitySet;
use serde::{Deserialize, Serialize};
use server::AccessRecord;

use crate::ipc::child::{self, retry};
use crate::ipc::fd_passing;
use crate::ipc::launch::{self, Launched, Settings};
use crate::ipc::messages::{FromObserver, ToObserver};
use crate::ipc::signals::Signals;
use config::Text;
use config::log_place::AccessFormat;
use failure::Failure;
use sandbox::lockdown;
use sandbox::seccomp;

use self::format::Clock;
use self::lines::Lines;
use self::log_file::LogFile;
use self::metrics::Metrics;
pub(crate) use self::packet::{PACKET_BYTES_MAX, Packet, SocketSink, report};

/// Losses are not told of more often.
const LOSS_PAUSE: Duration = Duration::from_secs(10);

/// What the observer starts with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ObserverSettings {
    /// The access log, for messages.
    pub(crate) access_log: Option<String>,
    pub(crate) access_log_format: Text<AccessFormat>,
    /// The error log, for messages.
    pub(crate) error_log: Option<String>,
}

impl Settings for ObserverSettings {
    const NAME: &'static str = "observer process";
    const COMMAND: &'static str = "observer";
    const TASK_NAME: &'static CStr = c"splitway-observ";
}

/// Runs until the supervisor ends it; then it takes in what the others have said last.
pub(crate) fn run() -> Result<(), Failure> {
    let Launched {
        settings, control, ..
    } = launch::enter::<ObserverSettings>()?;
    lockdown::forbid_core_dumps()?;
    let signals = Signals::catch_ends()?;
    lockdown::keep_capabilities(CapabilitySet::empty())?;
    lockdown::confine_to_nothing()?;
    seccomp::allow_only(seccomp::Kind::Observer)?;
    let mut buffer = vec![0; PACKET_BYTES_MAX];
    let Some(given) = Given::wait(&control, &mut buffer, signals.as_fd())? else {
        return Ok(());
    };
    let access_log = start_log("access log", settings.access_log.as_ref(), given.access_log)?;
    let error_log = start_log("error log", settings.error_log.as_ref(), given.error_log)?;
    let (access_log, error_log) = (access_log.as_ref(), error_log.as_ref());
    let logs = [("access", access_log), ("error", error_log)];
    let logs = logs
        .into_iter()
        .filter_map(|(name, log)| Some((name, log?.counters())));
    let metrics = &Arc::new(Metrics::new(logs.collect()));
    let admin = given.admin.map(TcpListener::from);
    let format = settings.access_log_format.0;
    thread::scope(|scope| {
        let stop = signals.as_fd();
        if let Some(records) = &given.records {
            spawn(scope, "records", move || {
                receive_records(records, stop, (format, access_log), metrics);
            })?;
        }
        if let (Some(errors), Some(log)) = (&given.errors, error_log) {
            spawn(scope, "errors", move || receive_errors(errors, stop, log))?;
        }
        if let Some(admin) = &admin {
            spawn(scope, "admin", move || admin::serve(admin, stop, metrics))?;
        }
        child::tell(FromObserver::Ready)?;
        while wait(&control, stop)? {
            let Some((message, file)) = fd_passing::receive(&control, &mut buffer)? else {
                continue;
            };
            match message {
                ToObserver::AccessLog => change(access_log, file),
                ToObserver::ErrorLog => change(error_log, file),
                ToObserver::Worker(report) => metrics.on_worker(report),
                ToObserver::Fetcher(report) => metrics.on_fetcher(report),
                ToObserver::Health(health) => metrics.on_health(health),
                ToObserver::Ping => child::tell(FromObserver::Pong)?,
                // What a process starts with stays.
                ToObserver::Records
                | ToObserver::Errors
                | ToObserver::Admin
                | ToObserver::Start => {}
            }
        }
        Ok(())
    })
}

/// The log goes on in another file.
fn change(log: Option<&LogFile>, file: Option<OwnedFd>) {
    if let (Some(log), Some(file)) = (log, file) {
        log.change(file.into(), || {
            // Without its supervisor, this process ends as well.
            let _ = child::tell(FromObserver::LogChanged);
        });
    }
}

fn start_log(
    kind: &str,
    name: Option<&String>,
    file: Option<OwnedFd>,
) -> Result<Option<LogFile>, Failure> {
    let (Some(name), Some(file)) = (name, file) else {
        return Ok(None);
    };
    LogFile::new(format!("{kind} {name}"), File::from(file))
        .map(Some)
        .map_err(|error| Failure::broken(format!("starting to write the {kind}"), error))
}

fn spawn<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    name: &str,
    work: impl FnOnce() + Send + 'scope,
) -> Result<(), Failure> {
    thread::Builder::new()
        .name(name.to_owned())
        .spawn_scoped(scope, work)
        .map_err(|error| Failure::broken("starting a thread of the observer", error))?;
    Ok(())
}

/// What the supervisor has opened.
#[derive(Debug, Default)]
struct Given {
    records: Option<OwnedFd>,
    access_log: Option<OwnedFd>,
    errors: Option<OwnedFd>,
    error_log: Option<OwnedFd>,
    admin: Option<OwnedFd>,
}

impl Given {
    /// Waits until all is there; `None` if `stop` becomes readable before.
    fn wait(
        control: &OwnedFd,
        buffer: &mut [u8],
        stop: BorrowedFd<'_>,
    ) -> Result<Option<Self>, Failure> {
        let mut given = Self::default();
        while wait(control, stop)? {
            let Some((message, descriptor)) = fd_passing::receive(control, buffer)? else {
                continue;
            };
            let place = match message {
                ToObserver::Records => &mut given.records,
                ToObserver::AccessLog => &mut given.access_log,
                ToObserver::Errors => &mut given.errors,
                ToObserver::ErrorLog => &mut given.error_log,
                ToObserver::Admin => &mut given.admin,
                ToObserver::Start => return Ok(Some(given)),
                // The supervisor sends them later only.
                ToObserver::Worker(_)
                | ToObserver::Fetcher(_)
                | ToObserver::Health(_)
                | ToObserver::Ping => continue,
            };
            *place = descriptor;
        }
        Ok(None)
    }
}

/// Waits until there is something to read; false if `stop` is readable, and nothing else.
fn wait(source: impl AsFd, stop: BorrowedFd<'_>) -> Result<bool, Failure> {
    let mut fds = [
        PollFd::new(&source, PollFlags::IN),
        PollFd::from_borrowed_fd(stop, PollFlags::IN),
    ];
    retry(|| poll(&mut fds, None)).map_err(|errno| Failure::broken("waiting", errno))?;
    Ok(!fds[0].revents().is_empty() || fds[1].revents().is_empty())
}

/// The same; true if there is something, false also if waiting fails.
fn wait_or_stop(source: BorrowedFd<'_>, stop: BorrowedFd<'_>) -> bool {
    wait(source, stop).unwrap_or(false)
}

/// Takes in what the host process tells, until `stop` is readable and nothing is left.
fn receive_records(
    records: &OwnedFd,
    stop: BorrowedFd<'_>,
    (format, log): (AccessFormat, Option<&LogFile>),
    metrics: &Metrics,
) {
    let mut buffer = vec![0; PACKET_BYTES_MAX];
    let mut lines = Vec::new();
    let mut losses = Losses::default();
    while let Ok(true) = wait(records, stop) {
        let received = retry(|| recv(records, &mut buffer[..], RecvFlags::DONTWAIT));
        let packet = match received {
            Ok((_, length)) if length > 0 => &buffer[..length],
            Err(Errno::AGAIN) => continue,
            // The supervisor holds the other end, too: it is gone.
            _ => return,
        };
        let mut records = match Packet::parse(packet) {
            Some(Packet::Accesses { lost, records }) => {
                metrics.on_sign_of_life();
                losses.note(lost);
                records
            }
            Some(Packet::Report(report)) => {
                metrics.on_host(report);
                continue;
            }
            None => {
                tracing::warn!("the host process told something that makes no sense");
                continue;
            }
        };
        let clock = Clock::now();
        lines.clear();
        while let Some((record, rest)) = AccessRecord::take(records) {
            metrics.on_access(&record);
            if log.is_some() {
                format::write(format, clock, &record, &mut lines);
            }
            records = rest;
        }
        if let Some(log) = log {
            log.push(&lines);
        }
    }
}

/// Accesses that the host process could not tell of, because this one was behind.
#[derive(Debug, Default)]
struct Losses {
    told: u64,
    told_at: Option<Instant>,
}

impl Losses {
    fn note(&mut self, lost: u64) {
        let is_late = |at: Instant| at.elapsed() >= LOSS_PAUSE;
        if lost > self.told && self.told_at.is_none_or(is_late) {
            let more = lost - self.told;
            tracing::warn!(
                "{more} more accesses are in no log: so many at once could not be written"
            );
            (self.told, self.told_at) = (lost, Some(Instant::now()));
        }
    }
}

/// Takes in what all processes say, until `stop` is readable and nothing is left.
fn receive_errors(errors: &OwnedFd, stop: BorrowedFd<'_>, log: &LogFile) {
    let mut buffer = vec![0; 64 << 10];
    let mut lines = Lines::default();
    while let Ok(true) = wait(errors, stop) {
        match retry(|| rustix::io::read(errors, &mut buffer[..])) {
            Ok(length) if length > 0 => lines.push(&buffer[..length], |whole| log.push(whole)),
            Err(Errno::AGAIN) => {}
            _ => break,
        }
    }
    lines.finish(|rest| log.push(rest));
}
