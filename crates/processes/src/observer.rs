//! The observer process: it keeps logs and metrics, so that neither a slow disk nor a slow scraper
//! ever holds up the processes that serve. It may only use descriptors that the supervisor has
//! opened.

use std::ffi::CStr;
use std::fs::File;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;

use rustix::thread::CapabilitySet;
use serde::{Deserialize, Serialize};

use crate::ipc::child;
use crate::ipc::fd_passing;
use crate::ipc::launch::{self, Launched, Settings};
use crate::ipc::messages::{FromObserver, ToObserver};
use crate::ipc::signals::Signals;
use config::Text;
use failure::Failure;
use observer::{
    AccessFormat, LogFile, Logs, Metrics, PACKET_BYTES_MAX, admin, receive_errors, receive_records,
};
use sandbox::lockdown;
use sandbox::seccomp;

/// Settings at the start of the observer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ObserverSettings {
    /// Path of the access log, for messages.
    pub access_log: Option<String>,
    /// Format of its lines.
    pub access_log_format: Text<AccessFormat>,
    /// Path of the error log, for messages.
    pub error_log: Option<String>,
    /// Path of the key log, for messages.
    pub key_log: Option<String>,
}

impl Settings for ObserverSettings {
    const NAME: &'static str = "observer process";
    const COMMAND: &'static str = "observer";
    const TASK_NAME: &'static CStr = c"splitway-observ";
}

/// Runs until the supervisor ends it, or ends itself; then it still takes the last reports of the
/// other processes.
pub fn run() -> Result<(), Failure> {
    let Launched {
        settings, control, ..
    } = launch::enter::<ObserverSettings>()?;
    lockdown::forbid_core_dumps()?;
    let signals = Signals::catch_ends()?;
    child::outlive_supervisor()?;
    lockdown::keep_capabilities(CapabilitySet::empty())?;
    lockdown::confine_to_nothing()?;
    seccomp::allow_only(seccomp::Kind::Observer)?;
    let mut buffer = vec![0; PACKET_BYTES_MAX];
    let Some(inherited) = InheritedFds::wait(&control, &mut buffer, signals.as_fd())? else {
        return Ok(());
    };
    let access_log = start_log(
        "access log",
        settings.access_log.as_ref(),
        inherited.access_log,
    )?;
    let error_log = start_log(
        "error log",
        settings.error_log.as_ref(),
        inherited.error_log,
    )?;
    let key_log = start_log("key log", settings.key_log.as_ref(), inherited.key_log)?;
    let [access_log, error_log, key_log] = [&access_log, &error_log, &key_log].map(Option::as_ref);
    let logs = [
        ("access", access_log),
        ("error", error_log),
        ("key", key_log),
    ];
    let logs = logs
        .into_iter()
        .filter_map(|(name, log)| Some((name, log?.counters())));
    let metrics = &Arc::new(Metrics::new(logs.collect()));
    let admin = inherited.admin.map(TcpListener::from);
    let written = Logs {
        access: access_log,
        format: settings.access_log_format.0,
        keys: key_log,
    };
    thread::scope(|scope| {
        let stop = signals.as_fd();
        if let Some(records) = &inherited.records {
            spawn(scope, "records", move || {
                receive_records(records, stop, written, metrics);
            })?;
        }
        if let (Some(errors), Some(log)) = (&inherited.errors, error_log) {
            spawn(scope, "errors", move || receive_errors(errors, stop, log))?;
        }
        if let Some(admin) = &admin {
            spawn(scope, "admin", move || admin::serve(admin, stop, metrics))?;
        }
        child::tell(FromObserver::Ready)?;
        let logs = [access_log, error_log];
        take_messages(&control, stop, &mut buffer, logs, metrics)
    })
}

/// Handles the supervisor's messages until `stop` is readable or the supervisor is gone.
fn take_messages(
    control: &OwnedFd,
    stop: BorrowedFd<'_>,
    buffer: &mut [u8],
    [access_log, error_log]: [Option<&LogFile>; 2],
    metrics: &Metrics,
) -> Result<(), Failure> {
    while wait(control, stop)? {
        let received = match fd_passing::receive(control, buffer) {
            // The supervisor was killed: everything reported before is still written.
            Err(_) if fd_passing::has_hung_up(control) => break,
            received => received?,
        };
        let Some((message, file)) = received else {
            continue;
        };
        match message {
            ToObserver::AccessLog => change(access_log, file),
            ToObserver::ErrorLog => change(error_log, file),
            ToObserver::Worker(report) => metrics.on_worker(report),
            ToObserver::Fetcher(report) => metrics.on_fetcher(report),
            ToObserver::Broker(report) => metrics.on_broker(report),
            ToObserver::Health(health) => metrics.on_health(health),
            ToObserver::Ping => child::tell(FromObserver::Pong)?,
            // Initial descriptors are never replaced.
            ToObserver::Records
            | ToObserver::Errors
            | ToObserver::KeyLog
            | ToObserver::Admin
            | ToObserver::Start => {}
        }
    }
    Ok(())
}

/// Continues the log in another file.
fn change(log: Option<&LogFile>, file: Option<OwnedFd>) {
    if let (Some(log), Some(file)) = (log, file) {
        log.change(file.into(), || {
            // If the supervisor has ended, this process ends as well.
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

/// Descriptors that the supervisor has opened.
#[derive(Debug, Default)]
struct InheritedFds {
    records: Option<OwnedFd>,
    access_log: Option<OwnedFd>,
    errors: Option<OwnedFd>,
    error_log: Option<OwnedFd>,
    key_log: Option<OwnedFd>,
    admin: Option<OwnedFd>,
}

impl InheritedFds {
    /// Waits until all have arrived; returns `None` if `stop` becomes readable before.
    fn wait(
        control: &OwnedFd,
        buffer: &mut [u8],
        stop: BorrowedFd<'_>,
    ) -> Result<Option<Self>, Failure> {
        let mut inherited = Self::default();
        while wait(control, stop)? {
            let Some((message, descriptor)) = fd_passing::receive(control, buffer)? else {
                continue;
            };
            let place = match message {
                ToObserver::Records => &mut inherited.records,
                ToObserver::AccessLog => &mut inherited.access_log,
                ToObserver::Errors => &mut inherited.errors,
                ToObserver::ErrorLog => &mut inherited.error_log,
                ToObserver::KeyLog => &mut inherited.key_log,
                ToObserver::Admin => &mut inherited.admin,
                ToObserver::Start => return Ok(Some(inherited)),
                // The supervisor sends these only later.
                ToObserver::Worker(_)
                | ToObserver::Fetcher(_)
                | ToObserver::Broker(_)
                | ToObserver::Health(_)
                | ToObserver::Ping => continue,
            };
            *place = descriptor;
        }
        Ok(None)
    }
}

/// Waits for a message of the supervisor; returns false if only `stop` is readable.
fn wait(control: &OwnedFd, stop: BorrowedFd<'_>) -> Result<bool, Failure> {
    observer::wait(control, stop).map_err(|errno| Failure::broken("waiting", errno))
}
