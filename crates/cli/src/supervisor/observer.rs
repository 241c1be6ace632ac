//! Keeps the observer process running while anything is logged or watched: starts it, passes it its
//! descriptors, and restarts it after its end or for another task. Records and log lines wait
//! meanwhile in the socket and in the pipe, which outlive the process.

use std::fs::File;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::time::{Duration, Instant};

use failure::Failure;
use netsetup::seqpacket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, read, retry_on_intr};
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::supervisor::children::{Children, Event, Role};
use crate::supervisor::executable::Program;
use crate::supervisor::heartbeat::Heartbeat;
use crate::supervisor::initial_netns::InitialNetns;
use crate::supervisor::key_log::KeyLogFile;
use crate::supervisor::restart::Restart;
use crate::terminal::complain;
use config::log_place;
use config::{Config, Logs, Text};
use observer::Health;
use processes::ipc::fd_passing;
use processes::ipc::launch;
use processes::ipc::launch::Settings as _;
use processes::ipc::messages::{FromObserver, ToObserver};
use processes::observer::ObserverSettings;

/// Size of the send buffer for records from the host process, in bytes, if the kernel allows it.
const RECORDS_BYTES: usize = 1 << 20;

/// Longest time in which a log is reopened.
const CHANGE_WAIT: Duration = Duration::from_secs(5);

/// Most bytes that are taken from the pipe at the end: its default capacity.
const LEFT_BYTES_MAX: usize = 64 << 10;

const NAME: &str = ObserverSettings::NAME;

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct ObserverSupervisor {
    task: Task,
    /// The key log, if any, open as long as the server runs.
    key_log: Option<KeyLogFile>,
    /// The next task, used once the host process uses the configuration that asks for it; its
    /// listener is open.
    prepared: Option<Task>,
    /// Network namespace in which the observer listens.
    initial_netns: InitialNetns,
    program: Program,
    /// Socket for access records: our end, and the host process's.
    records: (OwnedFd, OwnedFd),
    errors: Option<Errors>,
    /// Control socket of the process, if one runs.
    control: Option<OwnedFd>,
    restart: Restart,
    changing: Option<Changing>,
    /// Deadline for the end of the process that is to be replaced; a successor follows if it is
    /// needed.
    replaced_by: Option<Instant>,
    /// Whether the process takes messages.
    is_ready: bool,
    /// The last health sent to it.
    reported: Option<Health>,
    heartbeat: Heartbeat,
}

/// Work of the observer process.
#[derive(Debug)]
struct Task {
    logs: Logs,
    /// Address and listener for clients of the metrics.
    admin: Option<(SocketAddr, OwnedFd)>,
}

impl Task {
    /// Opens the listener. Fails if a log cannot be written or the address is not available. One of
    /// `others` may have the listener already.
    fn prepare(
        config: &Config,
        netns: &InitialNetns,
        others: [Option<&Task>; 2],
    ) -> Result<Self, Failure> {
        Files::open(&config.logs)?;
        let listen = |address: SocketAddr| -> Result<_, Failure> {
            let mut known = others.into_iter().filter_map(|task| task?.admin.as_ref());
            let listener = match known.find(|(known, _)| *known == address) {
                Some((_, listener)) => listener.try_clone().map_err(|error| {
                    Failure::broken("passing on the listener for monitoring", error)
                })?,
                None => netns.run_in(|| log_place::listen(address))?.into(),
            };
            Ok((address, listener))
        };
        Ok(Self {
            logs: config.logs.clone(),
            admin: config.operation.admin.map(listen).transpose()?,
        })
    }

    /// Returns whether there is any work.
    fn is_any(&self) -> bool {
        self.has_logs() || self.admin.is_some()
    }

    fn has_logs(&self) -> bool {
        self.logs.access.is_some() || self.logs.error.is_some()
    }

    /// Returns whether this configuration asks for the same work.
    fn is_of(&self, config: &Config) -> bool {
        let address = self.admin.as_ref().map(|(address, _)| *address);
        self.logs == config.logs && address == config.operation.admin
    }

    fn settings(&self, key_log: Option<&KeyLogFile>) -> ObserverSettings {
        let logs = &self.logs;
        ObserverSettings {
            access_log: logs.access.as_ref().map(|Text(place)| place.to_string()),
            access_log_format: logs.access_format,
            error_log: logs.error.as_ref().map(|path| path.display().to_string()),
            key_log: key_log.map(|key_log| key_log.name.clone()),
        }
    }
}

/// The pipe that replaces standard error of all processes.
#[derive(Debug)]
struct Errors {
    reader: OwnedFd,
    /// Standard error as it was before.
    before: OwnedFd,
}

/// Logs that are being reopened.
#[derive(Debug)]
struct Changing {
    /// Number of logs not reopened yet.
    left: usize,
    until: Instant,
    /// Whether another request has come meanwhile: the path may lead to another file by now.
    is_asked_again: bool,
}

/// Answer to a request of the operator.
#[derive(Debug)]
pub(crate) enum ObserverOutcome {
    /// The logs were reopened, or why not.
    Reopened(Result<String, String>),
}

impl ObserverSupervisor {
    /// Opens the logs and the listener. Until this value is dropped, standard error of this process
    /// and of its children goes to the error log, if there is one. To be called in the network
    /// namespace of the user.
    pub(crate) fn new(config: &Config, key_log: Option<KeyLogFile>) -> Result<Self, Failure> {
        // Unwritable logs are reported at once.
        let initial_netns = InitialNetns::here()?;
        let task = Task::prepare(config, &initial_netns, [None, None])?;
        let failed = |errno| Failure::broken("making a socket to the observer process", errno);
        let records = seqpacket::pair().map_err(failed)?;
        if let Err(errno) = set_socket_send_buffer_size(&records.1, RECORDS_BYTES) {
            tracing::debug!(%errno, "the socket to the observer stays as it is");
        }
        let errors = task.logs.error.is_some();
        Ok(Self {
            task,
            key_log,
            prepared: None,
            initial_netns,
            program: Program::own()?,
            records,
            errors: errors.then(Errors::catch).transpose()?,
            control: None,
            restart: Restart::default(),
            changing: None,
            replaced_by: None,
            is_ready: false,
            reported: None,
            heartbeat: Heartbeat::new(config.operation.heartbeat.0.0),
        })
    }

    /// Writes the failure with which the server ends to the error log, too.
    pub(crate) fn on_end(&self, failure: &Failure) {
        if self.errors.is_some() {
            tracing::error!("the server ends: {failure}");
        }
    }

    /// Returns the host process's end of the socket for records.
    pub(crate) fn host_socket(&self) -> &OwnedFd {
        &self.records.1
    }

    /// Returns whether anything is logged or watched.
    pub(crate) fn is_needed(&self) -> bool {
        self.task.is_any() || self.key_log.is_some()
    }

    /// Opens the logs and the listener of another configuration. They are used once the host
    /// process uses that configuration.
    pub(crate) fn prepare(&mut self, config: &Config) -> Result<(), Failure> {
        self.prepared = self.other_task(config)?;
        Ok(())
    }

    /// Returns the work that a configuration asks for, or `None` if it is the current work.
    fn other_task(&self, config: &Config) -> Result<Option<Task>, Failure> {
        if self.task.is_of(config) {
            return Ok(None);
        }
        let known = [Some(&self.task), self.prepared.as_ref()];
        Task::prepare(config, &self.initial_netns, known).map(Some)
    }

    /// Follows the configuration that the host process uses now: if it asks for other work, a new
    /// process replaces the current one.
    pub(crate) fn put_in_use(
        &mut self,
        config: &Config,
        children: &mut Children,
    ) -> Result<(), Failure> {
        let task = match self.prepared.take_if(|task| task.is_of(config)) {
            Some(task) => Some(task),
            // Another reload was prepared meanwhile, or there was no difference.
            None => self.other_task(config)?,
        };
        let Some(task) = task else {
            return Ok(());
        };
        self.task = task;
        let now = Instant::now();
        if self.control.is_some() {
            tracing::info!("another {NAME} is started, with the current log settings");
            self.replaced_by = Some(now + CHANGE_WAIT);
            children.ask_to_end(Role::Observer);
        } else if self.restart.deadline().is_none() {
            self.restart.set(now);
        }
        Ok(())
    }

    /// Starts the process if it is needed.
    pub(crate) fn start(&mut self, children: &mut Children) -> Result<(), Failure> {
        if !self.is_needed() {
            return Ok(());
        }
        let logs = Files::open(&self.task.logs)?;
        let failed = |errno| Failure::broken(format!("starting the {NAME}"), errno);
        // Its own messages bypass the pipe: it would log them again and again.
        let stderr = match &self.errors {
            Some(errors) => errors
                .before
                .try_clone()
                .map_err(|error| Failure::broken(format!("starting the {NAME}"), error))?
                .into(),
            None => Stdio::inherit(),
        };
        let (image, level) = (self.program.image(), self.task.logs.level.0);
        let settings = self.task.settings(self.key_log.as_ref());
        let (child, control) = launch::start_with_stderr(&image, &settings, level, &[], stderr)?;
        children.add(Role::Observer, child);
        let admin = self.task.admin.as_ref();
        let key_log = self.key_log.as_ref().map(|key_log| &key_log.file);
        let has_records = self.task.logs.access.is_some() || admin.is_some() || key_log.is_some();
        let errors = self.errors.as_ref().map(|errors| &errors.reader);
        for (message, descriptor) in [
            (ToObserver::Records, has_records.then_some(&self.records.0)),
            (ToObserver::AccessLog, logs.access.as_ref()),
            (ToObserver::Errors, errors),
            (ToObserver::ErrorLog, logs.error.as_ref()),
            (ToObserver::KeyLog, key_log),
            (ToObserver::Admin, admin.map(|(_, listener)| listener)),
        ] {
            if descriptor.is_some() {
                fd_passing::pass(&control, &message, descriptor).map_err(failed)?;
            }
        }
        fd_passing::pass(&control, &ToObserver::Start, None).map_err(failed)?;
        self.control = Some(control);
        Ok(())
    }

    /// Returns whether there are logs; the observer may serve metrics only.
    pub(crate) fn has_logs(&self) -> bool {
        self.task.has_logs()
    }

    /// Sends a message unless the process is behind; returns false if it was dropped.
    pub(crate) fn send(&self, message: &ToObserver) -> bool {
        let Some(control) = &self.control else {
            return false;
        };
        // The kernel reports the socket writable while three quarters of its buffer are free, so
        // room for logs remains.
        let mut fds = [PollFd::new(control, PollFlags::OUT)];
        rustix::io::retry_on_intr(|| poll(&mut fds, Some(&Timespec::default()))) == Ok(1)
            && fd_passing::pass(control, message, None).is_ok()
    }

    /// Sends the health of the server if it has changed.
    pub(crate) fn report_health(&mut self, health: Health) {
        if self.is_ready
            && self.reported.as_ref() != Some(&health)
            && self.send(&ToObserver::Health(health.clone()))
        {
            self.reported = Some(health);
        }
    }

    /// Returns when to call [`ObserverSupervisor::on`] at the latest.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let changing = self.changing.as_ref().map(|changing| changing.until);
        let heartbeat = self.heartbeat.deadline().filter(|_| self.is_ready);
        let start = self.restart.deadline();
        let others = start.into_iter().chain(changing).chain(heartbeat);
        others.chain(self.replaced_by).min()
    }

    /// Records that the process takes messages.
    pub(crate) fn on_ready(&mut self) {
        self.is_ready = true;
        self.heartbeat.on_answer();
    }

    /// Handles an event, and timers that are due.
    pub(crate) fn on(&mut self, children: &mut Children, event: &Event) -> Option<ObserverOutcome> {
        let now = Instant::now();
        match event {
            Event::Observer(FromObserver::Ready) => {
                self.restart.on_success(now);
                self.on_ready();
            }
            Event::Observer(FromObserver::Pong) => {
                self.heartbeat.on_answer();
            }
            Event::Observer(FromObserver::LogChanged) => {
                let changing = self.changing.as_mut()?;
                changing.left = changing.left.saturating_sub(1);
                if changing.left == 0 {
                    return if self.changing.take()?.is_asked_again {
                        self.reopen()
                    } else {
                        Some(reopened())
                    };
                }
            }
            Event::Exited(Role::Observer) => {
                let failure = children.exit_failure(Role::Observer);
                children.forget(Role::Observer);
                self.control = None;
                (self.is_ready, self.reported) = (false, None);
                if self.replaced_by.take().is_some() {
                    self.restart.set(now);
                } else {
                    let unasked = || Failure::broken(NAME, "ended unexpectedly");
                    self.fail(now, &failure.unwrap_or_else(unasked));
                }
                // The next process opens the files at these paths.
                return self.changing.take().map(|_| reopened());
            }
            Event::Host(_)
            | Event::Nic(..)
            | Event::Fetcher(_)
            | Event::Broker(_)
            | Event::Relay(_)
            | Event::Failed(_)
            | Event::Reported(_)
            | Event::Exited(_)
            | Event::Signal
            | Event::Readable
            | Event::Timeout => {}
        }
        self.on_time(children, now);
        let is_late = |changing: &mut Changing| changing.until <= now;
        self.changing.take_if(is_late).map(|_| {
            let why = format!(
                "what was written before is not on the disk after {CHANGE_WAIT:?}; \
                it will go on there"
            );
            ObserverOutcome::Reopened(Err(why))
        })
    }

    /// Does the work that is due by the clock.
    fn on_time(&mut self, children: &mut Children, now: Instant) {
        if self.is_ready
            && let Some(control) = &self.control
            && self.heartbeat.ask_or_kill(now, Role::Observer, children)
        {
            // The end of the process is an event of its own.
            let _ = fd_passing::pass(control, &ToObserver::Ping, None);
        }
        if self.replaced_by.is_some_and(|at| at <= now) {
            tracing::warn!("the {NAME} does not end: it is killed");
            self.replaced_by = Some(now + CHANGE_WAIT);
            children.kill(Role::Observer);
        }
        if self.restart.take_due(now)
            && let Err(failure) = self.start(children)
        {
            children.forget(Role::Observer);
            self.control = None;
            self.fail(now, &failure);
        }
    }

    fn fail(&mut self, now: Instant, failure: &Failure) {
        let wait = self.restart.on_failure(now);
        tracing::warn!("{failure}; log lines wait, another one is started in {wait:?}");
    }

    /// Has the logs reopened at their paths. [`ObserverSupervisor::on`] reports the outcome, unless
    /// it is returned here.
    pub(crate) fn reopen(&mut self) -> Option<ObserverOutcome> {
        if let Some(changing) = &mut self.changing {
            changing.is_asked_again = true;
            return None;
        }
        let logs = match Files::open(&self.task.logs) {
            Ok(logs) => logs,
            Err(failure) => {
                tracing::error!("{failure}; the logs stay as they are");
                return Some(ObserverOutcome::Reopened(Err(failure.to_string())));
            }
        };
        let Some(control) = &self.control else {
            return Some(reopened());
        };
        let mut left = 0;
        for (message, file) in [
            (ToObserver::AccessLog, logs.access),
            (ToObserver::ErrorLog, logs.error),
        ] {
            if file.is_none() {
                continue;
            }
            match fd_passing::pass(control, &message, file.as_ref()) {
                Ok(()) => left += 1,
                Err(Errno::AGAIN) => {
                    let why = format!(
                        "the {NAME} has not taken what it was told before; what it writes to stays \
                         as it is: ask again"
                    );
                    tracing::error!("reopening the logs: {why}");
                    return Some(ObserverOutcome::Reopened(Err(why)));
                }
                // The process is gone: the next one opens them.
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

fn reopened() -> ObserverOutcome {
    ObserverOutcome::Reopened(Ok("logs reopened".to_owned()))
}

/// Files of the logs.
struct Files {
    access: Option<OwnedFd>,
    error: Option<OwnedFd>,
}

impl Files {
    fn open(logs: &Logs) -> Result<Self, Failure> {
        let access = logs.access.as_ref();
        let access = access.map(|Text(place)| place.open("access log"));
        let error = logs.error.as_ref();
        let error = error.map(|path| log_place::open("error log", path));
        Ok(Self {
            access: access.transpose()?,
            error: error.transpose()?,
        })
    }
}

impl Errors {
    /// Replaces standard error by a pipe that never blocks: a process that finds it full loses the
    /// line.
    fn catch() -> Result<Self, Failure> {
        let catch = || -> std::io::Result<Self> {
            let before = std::os::fd::AsFd::as_fd(&std::io::stderr()).try_clone_to_owned()?;
            let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
            fcntl_setfl(&writer, fcntl_getfl(&writer)? | OFlags::NONBLOCK)?;
            rustix::stdio::dup2_stderr(&writer)?;
            Ok(Self { reader, before })
        };
        catch()
            .map_err(|error| Failure::broken("redirecting standard error to the error log", error))
    }
}

impl Errors {
    /// Returns the lines left in the pipe, which no process reads any more.
    fn left(&self) -> Vec<u8> {
        let mut lines = Vec::new();
        let mut buffer = [0; 4 << 10];
        let is_nonblocking = fcntl_getfl(&self.reader)
            .and_then(|flags| fcntl_setfl(&self.reader, flags | OFlags::NONBLOCK));
        if is_nonblocking.is_err() {
            return lines;
        }
        while lines.len() < LEFT_BYTES_MAX
            && let Ok(count @ 1..) = retry_on_intr(|| read(&self.reader, &mut buffer[..]))
        {
            lines.extend_from_slice(&buffer[..count]);
        }
        lines
    }
}

impl Drop for Errors {
    fn drop(&mut self) {
        // If this fails, the last messages are lost.
        let _ = rustix::stdio::dup2_stderr(&self.before);
    }
}

impl Drop for ObserverSupervisor {
    /// Writes lines that no observer has taken: those of a failed start before the first observer,
    /// and the last ones.
    fn drop(&mut self) {
        let (Some(errors), Some(path)) = (self.errors.take(), &self.task.logs.error) else {
            return;
        };
        let lines = errors.left();
        // Standard error is restored.
        drop(errors);
        if lines.is_empty() {
            return;
        }
        let written = log_place::open("error log", path)
            .map_err(|failure| failure.to_string())
            .and_then(|log| {
                let whole = File::from(log).write_all(&lines);
                whole.map_err(|error| format!("error log {}: {error}", path.display()))
            });
        if let Err(why) = written {
            complain(&format!("{why}\n"));
        }
    }
}
