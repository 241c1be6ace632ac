//! The observer process: it keeps logs and metrics, so that neither a slow disk nor a slow scraper ever holds up the
//! processes that serve. It has no rights but to use what the supervisor has opened for it.
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
use clap::Args;

/// The observer process.
#[derive(Clone, Debug, Args)]
pub(crate) struct ObserveArgs {
    /// What the access log is called
    #[arg(long)]
    pub(crate) access_log: Option<String>,
    /// What its lines are like
    #[arg(long, default_value = "combined")]
    pub(crate) access_log_format: AccessFormat,
    /// What the error log is called
    #[arg(long)]
    pub(crate) error_log: Option<String>,
}

mod admin;
mod catalog;
mod exposition;
mod format;
mod lines;
mod log_file;
mod metrics;
mod packet;
mod top;

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
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use server::AccessRecord;

use crate::child::{self, retry};
use crate::fd_passing;
use crate::log_options::AccessFormat;
use crate::messages::Message;
use crate::signals::Signals;
use failure::Failure;
use sandbox::lockdown;
use sandbox::seccomp;

pub(crate) use self::catalog::beside_stack;
use self::format::Clock;
use self::lines::Lines;
use self::log_file::LogFile;
use self::metrics::Metrics;
pub(crate) use self::metrics::{FetcherReport, WorkerReport};
pub(crate) use self::packet::{PACKET_BYTES_MAX, Packet, REPORT, SocketSink};

/// Losses are not told of more often.
const LOSS_PAUSE: Duration = Duration::from_secs(10);

/// What the supervisor passes; each but the last comes with a descriptor.
pub(crate) mod pass {
    /// Where the host process tells of accesses.
    pub(crate) const RECORDS: u8 = 1;
    /// The access log. If it is there already, the file to go on with.
    pub(crate) const ACCESS_LOG: u8 = 2;
    /// Where all processes write what they have to say.
    pub(crate) const ERRORS: u8 = 3;
    /// The error log. If it is there already, the file to go on with.
    pub(crate) const ERROR_LOG: u8 = 4;
    /// The listener for those who watch.
    pub(crate) const ADMIN: u8 = 5;
    /// What a worker of a NIC process has told follows, and no descriptor.
    pub(crate) const WORKER: u8 = 6;
    /// What the fetcher has told follows, and no descriptor.
    pub(crate) const FETCHER: u8 = 7;
    /// A [`Standing`](super::Standing) follows, and no descriptor.
    pub(crate) const STANDING: u8 = 8;
    /// The process is to say that it does its work.
    pub(crate) const ARE_YOU_TURNING: u8 = 9;
    /// This was all.
    pub(crate) const ALL: u8 = 0;
}

/// What the supervisor knows of the server's health.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Standing {
    /// Why each NIC stack does not serve, if it does not.
    pub(crate) nics: Vec<Option<String>>,
    /// The server takes no new connections and ends with its last response.
    pub(crate) is_draining: bool,
}

/// Runs until the supervisor ends it; then it takes in what the others have said last.
pub(crate) fn run(args: &ObserveArgs) -> Result<(), Failure> {
    let control = child::adopt_control_socket(c"splitway-observ")?;
    lockdown::forbid_core_dumps()?;
    let signals = Signals::catch_ends()?;
    lockdown::keep_capabilities(CapabilitySet::empty())?;
    lockdown::confine_to_nothing()?;
    seccomp::allow_only(seccomp::Kind::Observer)?;
    let Some(given) = Given::wait(&control, signals.as_fd())? else {
        return Ok(());
    };
    let access_log = start_log("access log", args.access_log.as_ref(), given.access_log)?;
    let error_log = start_log("error log", args.error_log.as_ref(), given.error_log)?;
    let (access_log, error_log) = (access_log.as_ref(), error_log.as_ref());
    let logs = [("access", access_log), ("error", error_log)];
    let logs = logs
        .into_iter()
        .filter_map(|(name, log)| Some((name, log?.counters())));
    let metrics = &Arc::new(Metrics::new(logs.collect()));
    let admin = given.admin.map(TcpListener::from);
    let format = args.access_log_format;
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
        child::tell(&Message::ObserverReady)?;
        let mut packet = vec![0; PACKET_BYTES_MAX];
        while wait(&control, stop)? {
            let Some((length, file)) = fd_passing::receive_packet(&control, &mut packet)? else {
                continue;
            };
            let log = match packet[0] {
                pass::ACCESS_LOG => access_log,
                pass::ERROR_LOG => error_log,
                pass::WORKER => {
                    take_in(&packet[1..length], "a NIC process", |told| {
                        metrics.on_worker(told)
                    });
                    continue;
                }
                pass::FETCHER => {
                    take_in(&packet[1..length], "the fetcher", |told| {
                        metrics.on_fetcher(told)
                    });
                    continue;
                }
                pass::STANDING => {
                    take_in(&packet[1..length], "the supervisor", |told| {
                        metrics.on_standing(told)
                    });
                    continue;
                }
                pass::ARE_YOU_TURNING => {
                    child::tell(&Message::Turning)?;
                    continue;
                }
                _ => continue,
            };
            if let (Some(log), Some(file)) = (log, file) {
                log.change(file.into(), || {
                    // A supervisor that does not hear is gone, and this process will be, too.
                    let _ = child::tell(&Message::LogChanged);
                });
            }
        }
        Ok(())
    })
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

/// Passes on what `who` has told, if it can be read.
fn take_in<T: DeserializeOwned>(told: &[u8], who: &str, pass_on: impl FnOnce(T)) {
    match serde_json::from_slice(told) {
        Ok(told) => pass_on(told),
        Err(error) => tracing::warn!(%error, "{who} told something that makes no sense"),
    }
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
    fn wait(control: &OwnedFd, stop: BorrowedFd<'_>) -> Result<Option<Self>, Failure> {
        let mut given = Self::default();
        while wait(control, stop)? {
            let Some((what, descriptor)) = fd_passing::receive(control)? else {
                continue;
            };
            *match what {
                pass::RECORDS => &mut given.records,
                pass::ACCESS_LOG => &mut given.access_log,
                pass::ERRORS => &mut given.errors,
                pass::ERROR_LOG => &mut given.error_log,
                pass::ADMIN => &mut given.admin,
                _ => return Ok(Some(given)),
            } = descriptor;
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
