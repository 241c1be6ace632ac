//! Keeps the observer process: starts it, gives it what it needs, and starts another when it has ended. Whatever was
//! said meanwhile waits in the socket and in the pipe, which outlive it.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::time::{Duration, Instant};

use failure::Failure;
use netsetup::seqpacket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{SendFlags, send};
use rustix::pipe::{PipeFlags, pipe_with};
use serde::Serialize;

use crate::backoff::Backoff;
use crate::child::{Child, retry};
use crate::config::{Config, Logs, Text};
use crate::family::{Family, Happening, Role};
use crate::heartbeat::{Due, Heartbeat};
use crate::messages::Message;
use crate::observe::{Standing, pass};
use crate::program::Program;
use crate::{fd_passing, log_options};

/// How much of what the host process tells may wait for the observer, in bytes, if the kernel allows so much.
const RECORDS_BYTES: usize = 1 << 20;

/// How long a log may take to be changed.
const CHANGE_WAIT: Duration = Duration::from_secs(5);

const NAME: &str = "observer process";

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Observer {
    logs: Logs,
    program: Program,
    arguments: Vec<OsString>,
    /// For those who watch.
    admin: Option<OwnedFd>,
    /// Where the host process tells of accesses: our end, and the host's.
    records: Option<(OwnedFd, OwnedFd)>,
    errors: Option<Errors>,
    /// Leads to the process that there is.
    control: Option<OwnedFd>,
    backoff: Backoff,
    start_at: Option<Instant>,
    changing: Option<Changing>,
    /// It takes in what is said.
    is_ready: bool,
    /// What it has heard last of the NIC stacks.
    told: Option<Standing>,
    heartbeat: Heartbeat,
}

/// What all processes say goes through a pipe.
#[derive(Debug)]
struct Errors {
    reader: OwnedFd,
    /// Where it went before.
    before: OwnedFd,
}

/// Logs that are being changed.
#[derive(Debug)]
struct Changing {
    /// How many.
    left: usize,
    until: Instant,
    /// Somebody has asked meanwhile: what lies there may be another file already.
    is_asked_again: bool,
}

/// What an observer has to tell to whoever asked.
#[derive(Debug)]
pub(crate) enum ObserverNews {
    /// The logs were opened again, or why not.
    Reopened(Result<String, String>),
}

impl Observer {
    /// Opens what there is to be written; `None` if nothing is. From here on what the processes that are started say,
    /// and this one, goes to the error log if there is one, until this is dropped.
    pub(crate) fn new(config: &Config, log: &str) -> Result<Option<Self>, Failure> {
        let (logs, admin) = (&config.logs, config.operation.admin);
        if logs.access.is_none() && logs.error.is_none() && admin.is_none() {
            return Ok(None);
        }
        // The user is to learn at once what cannot be written.
        Files::open(logs)?;
        let failed = |errno| Failure::broken("making a way to the observer process", errno);
        let admin = admin
            .map(log_options::listen)
            .transpose()?
            .map(OwnedFd::from);
        let records = match logs.access.is_some() || admin.is_some() {
            true => {
                let (own, hosts) = seqpacket::pair().map_err(failed)?;
                if let Err(errno) = set_socket_send_buffer_size(&hosts, RECORDS_BYTES) {
                    tracing::debug!(%errno, "the socket to the observer stays as it is");
                }
                Some((own, hosts))
            }
            false => None,
        };
        let mut arguments: Vec<OsString> = ["observe", "--log", log].map(OsString::from).into();
        if let Some(Text(place)) = &logs.access {
            let format = logs.access_format.0.to_string();
            arguments.extend(["--access-log-format".into(), format.into()]);
            arguments.push(format!("--access-log={place}").into());
        }
        if let Some(path) = &logs.error {
            arguments.push(format!("--error-log={}", path.display()).into());
        }
        let errors = logs.error.is_some();
        Ok(Some(Self {
            logs: logs.clone(),
            program: Program::own()?,
            arguments,
            admin,
            records,
            errors: errors.then(Errors::catch).transpose()?,
            control: None,
            backoff: Backoff::default(),
            start_at: None,
            changing: None,
            is_ready: false,
            told: None,
            heartbeat: Heartbeat::new(config.operation.heartbeat.0.0),
        }))
    }

    /// The end of the socket that the host process is to have.
    pub(crate) fn host_socket(&self) -> Option<&OwnedFd> {
        self.records.as_ref().map(|(_, hosts)| hosts)
    }

    /// Starts the process.
    pub(crate) fn start(&mut self, family: &mut Family) -> Result<(), Failure> {
        let logs = Files::open(&self.logs)?;
        let failed = |errno| Failure::broken(format!("starting the {NAME}"), errno);
        let (control, its) = seqpacket::pair().map_err(failed)?;
        // Its own complaints do not go in a circle.
        let stderr = match &self.errors {
            Some(errors) => errors
                .before
                .try_clone()
                .map_err(|error| Failure::broken(format!("starting the {NAME}"), error))?
                .into(),
            None => Stdio::inherit(),
        };
        let arguments = self.arguments.iter().cloned();
        let child = Child::spawn_saying(NAME, &self.program.image(), arguments, its, stderr)?;
        family.adopt(Role::Observer, child);
        let records = self.records.as_ref().map(|(own, _)| own);
        let errors = self.errors.as_ref().map(|errors| &errors.reader);
        for (what, descriptor) in [
            (pass::RECORDS, records),
            (pass::ACCESS_LOG, logs.access.as_ref()),
            (pass::ERRORS, errors),
            (pass::ERROR_LOG, logs.error.as_ref()),
            (pass::ADMIN, self.admin.as_ref()),
        ] {
            if descriptor.is_some() {
                fd_passing::pass(&control, what, descriptor).map_err(failed)?;
            }
        }
        fd_passing::pass(&control, pass::ALL, None).map_err(failed)?;
        self.control = Some(control);
        Ok(())
    }

    /// Whether there are any: those who watch may be all that it is there for.
    pub(crate) fn has_logs(&self) -> bool {
        self.logs.access.is_some() || self.logs.error.is_some()
    }

    /// A worker of a NIC stack, or the fetcher, has told what it has counted, or the NIC stacks are otherwise than before:
    /// `what` says which. False if it was left out.
    pub(crate) fn pass_on(&self, what: u8, told: &impl Serialize) -> bool {
        let Some(control) = &self.control else {
            return false;
        };
        // The kernel says so while three quarters of the buffer are free: there remains room for logs. One that is
        // behind hears the next.
        let mut fds = [PollFd::new(control, PollFlags::OUT)];
        if retry(|| poll(&mut fds, Some(&Timespec::default()))) != Ok(1) {
            return false;
        }
        let mut packet = vec![what];
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        serde_json::to_writer(&mut packet, told).is_ok()
            && retry(|| send(control, &packet, flags)).is_ok()
    }

    /// Tells of the server's health, if the process has not heard that yet.
    pub(crate) fn tell(&mut self, standing: Standing) {
        if self.is_ready
            && self.told.as_ref() != Some(&standing)
            && self.pass_on(pass::STANDING, &standing)
        {
            self.told = Some(standing);
        }
    }

    /// When to call [`Observer::on`] at the latest.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let changing = self.changing.as_ref().map(|changing| changing.until);
        let heartbeat = self.heartbeat.deadline().filter(|_| self.is_ready);
        let others = self.start_at.into_iter().chain(changing);
        others.chain(heartbeat).min()
    }

    /// The process takes in what is said.
    pub(crate) fn on_ready(&mut self) {
        self.is_ready = true;
        self.heartbeat.on_answer();
    }

    /// Something has happened, or time has passed.
    pub(crate) fn on(
        &mut self,
        family: &mut Family,
        happening: &Happening,
    ) -> Option<ObserverNews> {
        let now = Instant::now();
        match happening {
            Happening::Said(Role::Observer, Message::ObserverReady) => {
                self.backoff.on_success(now);
                self.on_ready();
            }
            Happening::Said(Role::Observer, Message::Turning) => {
                self.heartbeat.on_answer();
            }
            Happening::Said(Role::Observer, Message::LogChanged) => {
                let changing = self.changing.as_mut()?;
                changing.left = changing.left.saturating_sub(1);
                if changing.left == 0 {
                    return match self.changing.take()?.is_asked_again {
                        true => self.reopen(),
                        false => Some(reopened()),
                    };
                }
            }
            Happening::Ended(Role::Observer) => {
                let fate = family.fate(Role::Observer);
                let fate = fate
                    .unwrap_or_else(|| Failure::broken(NAME, "ended although nobody asked it to"));
                family.dismiss(Role::Observer);
                self.control = None;
                (self.is_ready, self.told) = (false, None);
                self.fail(now, &fate);
                // The next one opens what lies there then.
                return self.changing.take().map(|_| reopened());
            }
            _ => {}
        }
        if self.is_ready
            && let Some(control) = &self.control
        {
            match self.heartbeat.on_time(now) {
                Due::Nothing => {}
                Due::Ask => {
                    // If it is gone, its end tells so.
                    let _ = fd_passing::pass(control, pass::ARE_YOU_TURNING, None);
                }
                Due::Silent => {
                    tracing::warn!("no heartbeat of the {NAME}: it is killed");
                    family.kill(Role::Observer);
                }
            }
        }
        if self.start_at.is_some_and(|at| at <= now) {
            self.start_at = None;
            if let Err(failure) = self.start(family) {
                family.dismiss(Role::Observer);
                self.control = None;
                self.fail(now, &failure);
            }
        }
        let is_late = |changing: &mut Changing| changing.until <= now;
        self.changing.take_if(is_late).map(|_| {
            let why = format!("what was written before is not on the disk after {CHANGE_WAIT:?}; it will go on there");
            ObserverNews::Reopened(Err(why))
        })
    }

    fn fail(&mut self, now: Instant, failure: &Failure) {
        let wait = self.backoff.on_failure(now);
        tracing::warn!("{failure}; what is to be logged waits, another one is started in {wait:?}");
        self.start_at = Some(now + wait);
    }

    /// Has the logs opened again, where they are now. [`Observer::on`] reports the outcome, unless it is known.
    pub(crate) fn reopen(&mut self) -> Option<ObserverNews> {
        if let Some(changing) = &mut self.changing {
            changing.is_asked_again = true;
            return None;
        }
        let logs = match Files::open(&self.logs) {
            Ok(logs) => logs,
            Err(failure) => {
                tracing::error!("{failure}; the logs stay as they are");
                return Some(ObserverNews::Reopened(Err(failure.to_string())));
            }
        };
        let Some(control) = &self.control else {
            return Some(reopened());
        };
        let mut left = 0;
        for (what, file) in [
            (pass::ACCESS_LOG, logs.access),
            (pass::ERROR_LOG, logs.error),
        ] {
            if file.is_none() {
                continue;
            }
            match fd_passing::pass(control, what, file.as_ref()) {
                Ok(()) => left += 1,
                Err(Errno::AGAIN) => {
                    let why = format!(
                        "the {NAME} has not taken what it was told before; what it writes to stays as it is: ask again"
                    );
                    tracing::error!("reopening the logs: {why}");
                    return Some(ObserverNews::Reopened(Err(why)));
                }
                // It is gone: the next one opens them.
                Err(errno) => tracing::debug!(%errno, "a log is opened by the next {NAME}"),
            }
        }
        if left == 0 {
            return Some(reopened());
        }
        let until = Instant::now() + CHANGE_WAIT;
        self.changing = Some(Changing {
            left,
            until,
            is_asked_again: false,
        });
        None
    }
}

fn reopened() -> ObserverNews {
    ObserverNews::Reopened(Ok("logs reopened".to_owned()))
}

/// The files.
struct Files {
    access: Option<OwnedFd>,
    error: Option<OwnedFd>,
}

impl Files {
    fn open(logs: &Logs) -> Result<Self, Failure> {
        let access = logs.access.as_ref();
        let access = access.map(|Text(place)| place.open("access log"));
        let error = logs.error.as_ref();
        let error = error.map(|path| log_options::open("error log", path));
        Ok(Self {
            access: access.transpose()?,
            error: error.transpose()?,
        })
    }
}

impl Errors {
    /// From here on standard error is a pipe, which holds nobody up: who finds it full is not heard.
    fn catch() -> Result<Self, Failure> {
        let catch = || -> std::io::Result<Self> {
            let before = std::os::fd::AsFd::as_fd(&std::io::stderr()).try_clone_to_owned()?;
            let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
            fcntl_setfl(&writer, fcntl_getfl(&writer)? | OFlags::NONBLOCK)?;
            rustix::stdio::dup2_stderr(&writer)?;
            Ok(Self { reader, before })
        };
        catch().map_err(|error| Failure::broken("leading standard error to the error log", error))
    }
}

impl Drop for Errors {
    fn drop(&mut self) {
        // Then what is said last goes nowhere.
        let _ = rustix::stdio::dup2_stderr(&self.before);
    }
}
