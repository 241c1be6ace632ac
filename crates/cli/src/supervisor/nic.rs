//! Keeps a NIC process serving: starts it, restarts it after its end, replaces it on request.
//!
//! Every start takes the same path: the process is started, sends its hello, is passed to the host
//! process, and the host process joins it. Until then its predecessor, if any, goes on serving.
//!
//! ```text
//!            start             hello             joined
//!  nothing ────────▶ Starting ────────▶ Joining ────────▶ it serves, the one before it ends
//!     ▲                 │ ends, is silent,  │ refused
//!     │                 │ other version     │
//!     └── back-off ◀────┴───────────────────┘
//! ```

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use contract::control::{HelloError, peek_hello};
use failure::Failure;
use netsetup::seqpacket;
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;

use crate::supervisor::backoff::Backoff;
use crate::supervisor::children::{Children, Event, Role};
use crate::supervisor::executable::Program;
use config::Text;
use config::log_level::LogLevel;
use config::root::Identity;
use observer::{Report, WorkerReport};
use processes::ipc::fd_passing;
use processes::ipc::launch;
use processes::ipc::messages::{FromHost, FromNic, NicFate, ToHost, ToNic};
use processes::ipc::stat_report::{Nic, Process};
use processes::ipc::timeouts::START_WAIT;
use processes::nic::NicSettings;
use processes::relay::host_side::HostRelaySettings;

/// Longest time in which a NIC process that is out of use ends, or in which a relay delivers the
/// last messages of a remote one; less than the host stack waits for it.
const END_WAIT: Duration = Duration::from_secs(3);

/// Where NIC processes come from.
#[derive(Debug)]
pub(crate) enum NicOrigin {
    /// The supervisor starts them.
    Program {
        /// The program of the process that serves.
        program: Program,
        settings: NicProgram,
        /// Level of its log.
        log: LogLevel,
    },
    /// They run already, and listen at this socket.
    Socket(PathBuf),
}

/// The form in which a program is started.
#[derive(Clone, Debug)]
pub(crate) enum NicProgram {
    Nic(NicSettings),
    /// The relay to a NIC stack on another machine.
    Relay(HostRelaySettings),
}

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct NicSupervisor {
    /// Number of the host's NIC stack that the processes serve as.
    number: usize,
    /// Its name in messages.
    name: String,
    origin: NicOrigin,
    /// Control socket of the process started last, if any.
    control: Option<OwnedFd>,
    /// Socket to the host process.
    host: OwnedFd,
    next: Next,
    /// Whether NIC processes take files of applications from the broker.
    takes_files: bool,
    /// Steering map that assigns frames to the workers of our own NIC processes.
    map: Option<OwnedFd>,
    /// Addresses that the kernel has as well.
    shared: Option<OwnedFd>,
    /// The broker's end of the socket over which the process started last takes files of
    /// applications, until the broker has it.
    door: Option<OwnedFd>,
    /// Number of NIC processes passed to the host process so far.
    passed: u64,
    /// Generation of the process in use.
    serves: Option<u64>,
    backoff: Backoff,
    /// When the predecessor is killed unless it has ended.
    past_until: Option<Instant>,
    /// Sum of the final reports of forgotten processes.
    past: Option<Report>,
    /// When serving began, or ended.
    since: Instant,
    /// Number of workers of the process in use.
    workers: usize,
    /// Last counters of each worker.
    counted: Vec<Report>,
    /// Failure of the last attempt to start a process.
    complaint: Option<Failure>,
    /// Set if the process in use has stalled: the failure to report.
    silent: Option<Failure>,
    /// Why the last process in use was lost.
    loss: Option<Failure>,
    /// Root directory that the process in use has opened.
    root_in_use: Option<Identity>,
}

/// State of the next NIC process.
#[derive(Debug)]
enum Next {
    None,
    At(Instant),
    Starting {
        /// `None`: the process has closed it; its exit status gives the reason.
        socket: Option<OwnedFd>,
        until: Instant,
        /// Differences from the process in use.
        fresh: Fresh,
    },
    Joining {
        until: Instant,
        fresh: Fresh,
        workers: usize,
    },
}

/// Settings in which a new NIC process differs from the one in use.
#[derive(Debug, Default)]
struct Fresh {
    program: Option<Program>,
    root: Option<PathBuf>,
    /// Identity of the root directory.
    identity: Option<Identity>,
}

/// Outcome of a start or of a loss.
#[derive(Debug)]
pub(crate) enum NicOutcome {
    /// A new NIC process serves.
    Serves,
    /// A new NIC process failed to start or to join.
    Failed(Failure),
    /// The process in use is lost. Another is started after this time.
    Lost(Failure, Duration),
}

impl NicSupervisor {
    /// Passes NIC processes to the host process over `host`, as NIC stack `number`.
    pub(crate) fn new(number: usize, name: String, origin: NicOrigin, host: OwnedFd) -> Self {
        Self {
            number,
            name,
            origin,
            control: None,
            host,
            next: Next::None,
            takes_files: false,
            map: None,
            shared: None,
            door: None,
            passed: 0,
            serves: None,
            backoff: Backoff::default(),
            past_until: None,
            past: None,
            since: Instant::now(),
            workers: 0,
            counted: Vec::new(),
            complaint: None,
            silent: None,
            loss: None,
            root_in_use: None,
        }
    }

    /// Has our own NIC processes take files of applications from the broker.
    pub(crate) fn take_files(&mut self) {
        self.takes_files = true;
    }

    /// Passes the set of addresses that the kernel has as well to our own NIC processes.
    pub(crate) fn share(&mut self, addresses: OwnedFd) {
        self.shared = Some(addresses);
    }

    /// Has workers of our own NIC processes receive the frames that this steering map assigns to
    /// them.
    pub(crate) fn steer_with(&mut self, map: OwnedFd) {
        self.map = Some(map);
    }

    /// Takes the broker's end of the socket over which a newly started NIC process takes files.
    pub(crate) fn take_door(&mut self) -> Option<OwnedFd> {
        self.door.take()
    }

    /// Returns the number of the NIC stack.
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// Returns its name in messages.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether to log this failure: a failure that repeats with every attempt is logged
    /// once.
    pub(crate) fn is_news(&mut self, failure: &Failure) -> bool {
        let said = self.complaint.replace(failure.clone());
        said.is_none_or(|said| !said.is_like(failure))
    }

    /// Returns the state of the NIC stack for `stat`.
    pub(crate) fn info(&self, children: &Children) -> Nic {
        let process = children.pid(Role::Nic(self.number));
        Nic {
            nic: self.number,
            name: self.name.clone(),
            serves: self.serves.is_some(),
            since_s: self.since.elapsed().as_secs(),
            workers: self.workers,
            process: process.map(Process::look_at),
            counters: Nic::counters(&self.counted),
            status: self.status(children),
        }
    }

    /// Returns why no process serves, or `None` if one does.
    pub(crate) fn trouble(&self) -> Option<String> {
        let why = match (&self.silent, self.serves) {
            (Some(silent), _) => Some(silent),
            (None, Some(_)) => return None,
            (None, None) => self.complaint.as_ref().or(self.loss.as_ref()),
        };
        let why = why.map(Failure::to_string).unwrap_or_default();
        let why = why.lines().next().unwrap_or_default();
        Some(format!("{} does not serve: {why}", self.name))
    }

    /// Returns whether the process in use has stalled.
    pub(crate) fn is_silent(&self) -> bool {
        self.silent.is_some() && self.serves.is_some()
    }

    /// Returns the state in one line.
    pub(crate) fn status(&self, children: &Children) -> String {
        let since = in_words(self.since.elapsed());
        if let (Some(silent), Some(_)) = (&self.silent, self.serves) {
            return format!("{}: stands still: {silent}", self.name);
        }
        if self.serves.is_some() {
            let workers = match self.workers {
                1 => "1 worker".to_owned(),
                workers => format!("{workers} workers"),
            };
            let pid = children.pid(Role::Nic(self.number));
            let process = pid.map_or_else(String::new, |pid| format!(", process {pid}"));
            let next = match self.next {
                Next::None | Next::At(_) => "",
                Next::Starting { .. } | Next::Joining { .. } => "; another one is being started",
            };
            return format!(
                "{}: serves for {since}, {workers}{process}{next}",
                self.name
            );
        }
        let next = match self.next {
            Next::At(at) => {
                let wait = at.saturating_duration_since(Instant::now());
                format!("tried again in {}", in_words(wait))
            }
            Next::Starting { .. } | Next::Joining { .. } => "being started".to_owned(),
            Next::None => "not tried again".to_owned(),
        };
        let complaint = self.complaint.as_ref().or(self.loss.as_ref());
        let complaint = complaint.map(Failure::to_string);
        // A remedy may follow in further lines.
        let why = complaint.as_deref().and_then(|text| text.lines().next());
        let why = why.map_or_else(String::new, |why| format!(": {why}"));
        format!("{}: missing for {since}, {next}{why}", self.name)
    }

    /// Starts the first process, or uses the one to which `socket` is connected already. A failed
    /// start is retried later.
    pub(crate) fn start_first(
        &mut self,
        children: &mut Children,
        socket: Option<OwnedFd>,
    ) -> Option<Failure> {
        if let Some(socket) = socket {
            self.next = Next::Starting {
                socket: Some(socket),
                until: Instant::now() + START_WAIT,
                fresh: Fresh::default(),
            };
            return None;
        }
        let failure = self.start(children, Fresh::default()).err()?;
        match self.fail(children, failure) {
            Some(NicOutcome::Failed(failure)) => Some(failure),
            _ => None,
        }
    }

    /// Starts a process from the newest program, to replace the one in use.
    pub(crate) fn replace(&mut self, children: &mut Children) -> Result<(), Failure> {
        let what = "replacing the NIC process";
        if matches!(self.next, Next::Starting { .. } | Next::Joining { .. }) {
            return Err(Failure::broken(what, "one is being started already"));
        }
        let newest = match &self.origin {
            NicOrigin::Program { program, .. } => program.newest()?,
            NicOrigin::Socket(path) => {
                return Err(Failure::input(
                    what,
                    format!(
                        "the one at {} was not started by this server",
                        path.display()
                    ),
                )
                .remedy("Restart it where it was started: this server will connect to it again."));
            }
        };
        let fresh = Fresh {
            program: Some(newest),
            ..Fresh::default()
        };
        self.start(children, fresh)
    }

    /// Returns the directory that NIC processes read below, if the supervisor gives them one.
    pub(crate) fn root(&self) -> Option<&Path> {
        match &self.origin {
            NicOrigin::Program {
                settings: NicProgram::Nic(settings),
                ..
            } => Some(&settings.root),
            NicOrigin::Program { .. } | NicOrigin::Socket(_) => None,
        }
    }

    /// Returns the root directory that the process in use has opened, if any.
    pub(crate) fn root_in_use(&self) -> Option<Identity> {
        self.root_in_use.filter(|_| self.serves.is_some())
    }

    /// Starts a process below this root, to replace the one in use.
    pub(crate) fn change_root(
        &mut self,
        children: &mut Children,
        new: PathBuf,
    ) -> Result<(), Failure> {
        if matches!(self.next, Next::Starting { .. } | Next::Joining { .. }) {
            let why = "a NIC process is being started";
            return Err(Failure::broken("changing the root", why).remedy("Reload again."));
        }
        if self.serves.is_some() {
            let fresh = Fresh {
                root: Some(new),
                ..Fresh::default()
            };
            return self.start(children, fresh);
        }
        // The next process reads below it.
        self.set_root(new);
        Ok(())
    }

    /// Sets the log level of the current and later processes. A process that was not started here
    /// keeps its own.
    pub(crate) fn set_log_level(&mut self, level: LogLevel) {
        if let NicOrigin::Program { log, .. } = &mut self.origin {
            *log = level;
        }
        let Some(control) = &self.control else {
            return;
        };
        // If the process has ended, its successor starts with the level.
        if let Err(errno) = fd_passing::pass(control, &ToNic::LogLevel(Text(level)), None) {
            tracing::debug!(%errno, nic = self.number, "the log level stays");
        }
    }

    fn set_root(&mut self, new: PathBuf) {
        if let NicOrigin::Program {
            settings: NicProgram::Nic(settings),
            ..
        } = &mut self.origin
        {
            settings.root = new;
        }
    }

    fn start(&mut self, children: &mut Children, mut fresh: Fresh) -> Result<(), Failure> {
        let socket = match &self.origin {
            NicOrigin::Program {
                program,
                settings,
                log,
            } => {
                let newest = &fresh.program;
                let pair = || {
                    seqpacket::pair().map_err(|errno| {
                        Failure::broken("joining two processes with a socket", errno)
                    })
                };
                let (host_socket, nic_socket) = pair()?;
                let image = program.image();
                let path = newest.as_ref().map_or(&*image, Program::path);
                let (child, control) = match settings {
                    NicProgram::Nic(settings) => {
                        let mut settings = settings.clone();
                        settings.root = fresh.root.clone().unwrap_or(settings.root);
                        // Taken before the directory is opened, so that a replacement in between is
                        // detected.
                        fresh.identity = Identity::of(&settings.root).ok();
                        // The first process finds no connections that send from files of
                        // applications.
                        settings.awaits_files = self.takes_files && self.passed > 0;
                        settings.is_first &= self.passed == 0;
                        let door = self.takes_files.then(pair).transpose()?;
                        let (broker_end, nic_end) = door.unzip();
                        self.door = broker_end;
                        let map = self
                            .map
                            .as_ref()
                            .filter(|_| !settings.steered_to.is_empty());
                        let shared = self.shared.as_ref();
                        let others = nic_end.iter().chain(shared).chain(map);
                        let sockets: Vec<_> = [&nic_socket].into_iter().chain(others).collect();
                        launch::start(path, &settings, *log, &sockets)?
                    }
                    NicProgram::Relay(settings) => {
                        launch::start(path, settings, *log, &[&nic_socket])?
                    }
                };
                // Started by its path, since a script cannot be executed by a descriptor. The
                // program noted must be the program that runs.
                if newest.as_ref().is_some_and(|newest| !newest.is_in_place()) {
                    let failure = "another program was installed at that moment";
                    return Err(Failure::broken("starting the NIC process", failure)
                        .remedy("Try again when the installation is over."));
                }
                children.add(Role::NextNic(self.number), child);
                self.control = Some(control);
                host_socket
            }
            NicOrigin::Socket(path) => connect_again(path)?,
        };
        self.next = Next::Starting {
            socket: Some(socket),
            until: Instant::now() + START_WAIT,
            fresh,
        };
        Ok(())
    }

    /// Returns the socket to watch for a hello.
    pub(crate) fn watch(&self) -> Option<BorrowedFd<'_>> {
        match &self.next {
            Next::Starting { socket, .. } => socket.as_ref().map(AsFd::as_fd),
            Next::None | Next::At(_) | Next::Joining { .. } => None,
        }
    }

    /// Returns when to call [`NicSupervisor::on`] at the latest.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let next = match self.next {
            Next::None => None,
            Next::At(until) | Next::Starting { until, .. } | Next::Joining { until, .. } => {
                Some(until)
            }
        };
        next.into_iter().chain(self.past_until).min()
    }

    /// Returns the sum of the final reports of all processes that ended in order.
    pub(crate) fn report(&self, children: &Children) -> Option<Report> {
        let mut sum = self.past.clone();
        for last in
            [Role::PastNic(self.number), Role::Nic(self.number)].map(|role| children.report(role))
        {
            absorb(&mut sum, last);
        }
        sum
    }

    /// Returns the worker's counters if the event carries counters of the process in use.
    pub(crate) fn counters_of(&self, event: &Event) -> Option<WorkerReport> {
        match event {
            Event::Nic(Role::Nic(nic), FromNic::Counters { worker, report })
                if *nic == self.number && *worker < self.counted.len() =>
            {
                Some(WorkerReport {
                    nic: *nic,
                    worker: *worker,
                    process: self.serves?,
                    report: report.clone(),
                })
            }
            _ => None,
        }
    }

    /// Handles an event, and timers that are due.
    pub(crate) fn on(&mut self, children: &mut Children, event: &Event) -> Option<NicOutcome> {
        let number = self.number;
        match event {
            Event::Host(FromHost::Nic {
                nic,
                generation,
                fate,
            }) if *nic == number => {
                if let Some(outcome) = self.on_fate(children, *generation, fate) {
                    return Some(outcome);
                }
            }
            Event::Nic(Role::Nic(nic), FromNic::Counters { worker, report }) if *nic == number => {
                if let Some(counted) = self.counted.get_mut(*worker) {
                    *counted = report.clone();
                }
            }
            Event::Exited(Role::Nic(nic)) if *nic == number => {
                let failure = children.exit_failure(Role::Nic(number));
                self.forget(children, Role::Nic(number));
                let failure = self.silent.clone().or(failure);
                return Some(self.lose(
                    failure.unwrap_or_else(|| Failure::broken("NIC process", "ended unexpectedly")),
                ));
            }
            Event::Exited(Role::NextNic(nic)) if *nic == number => {
                let failure = children.exit_failure(Role::NextNic(number));
                let failure = failure.unwrap_or_else(|| {
                    Failure::broken("NIC process", "ended before it took a command")
                });
                return self.fail(children, failure);
            }
            Event::Exited(Role::PastNic(nic)) if *nic == number => {
                if let Some(failure) = children.exit_failure(Role::PastNic(number)) {
                    tracing::warn!("{failure}");
                }
                self.past_until = None;
                self.forget(children, Role::PastNic(number));
            }
            // Events of others, or a readable hello, which is handled below.
            Event::Host(_)
            | Event::Nic(..)
            | Event::Fetcher(_)
            | Event::Observer(_)
            | Event::Broker(_)
            | Event::Relay(_)
            | Event::Failed(_)
            | Event::Reported(_)
            | Event::Exited(_)
            | Event::Signal
            | Event::Readable
            | Event::Timeout => {}
        }
        self.on_hello(children).or_else(|| self.on_time(children))
    }

    /// Handles the host process's report on the process of this `generation`.
    fn on_fate(
        &mut self,
        children: &mut Children,
        generation: u64,
        fate: &NicFate,
    ) -> Option<NicOutcome> {
        let serves = self.serves == Some(generation);
        match fate {
            NicFate::Joined if self.joins(generation) => self.on_joined(children),
            NicFate::Joined if self.serves.is_some_and(|serves| serves < generation) => {
                // The host process has moved from the process in use to one that died before this
                // message arrived.
                self.retire(children);
                let why = "the host process has left it for one that has died since";
                Some(self.lose(Failure::broken(self.name.clone(), why)))
            }
            NicFate::Refused { why } if self.joins(generation) => {
                self.fail(children, Failure::broken("NIC process", why))
            }
            NicFate::Silent { worker } if serves => {
                self.on_silent(children, *worker);
                None
            }
            NicFate::Lost { why } if serves => {
                self.retire(children);
                let failure = Failure::broken(self.name.clone(), why);
                let failure = self.silent.clone().unwrap_or(failure);
                Some(self.lose(failure))
            }
            // The report is about a process that was given up meanwhile.
            NicFate::Joined
            | NicFate::Refused { .. }
            | NicFate::Silent { .. }
            | NicFate::Lost { .. } => None,
        }
    }

    /// Kills a stalled process. Its end starts a successor; if it does not end, the host process's
    /// report of the loss does.
    fn on_silent(&mut self, children: &Children, worker: usize) {
        let role = Role::Nic(self.number);
        let process = children.pid(role);
        let name = match process {
            Some(pid) => format!("{} (process {pid})", self.name),
            None => self.name.clone(),
        };
        let what = format!("no heartbeat of worker {worker}");
        let failure = match process {
            Some(_) => Failure::broken(name, format!("{what}: killed")),
            None => Failure::broken(name, what),
        };
        tracing::error!("{failure}");
        children.kill(role);
        self.silent = Some(failure);
    }

    /// Handles the hello of a NIC process that is being started, if it has arrived.
    fn on_hello(&mut self, children: &mut Children) -> Option<NicOutcome> {
        let Next::Starting { socket, fresh, .. } = &mut self.next else {
            return None;
        };
        match peek_hello(socket.as_ref()?) {
            Ok(None) => None,
            Ok(Some(workers)) => {
                let passed =
                    fd_passing::pass(&self.host, &ToHost::Nic(self.number), socket.as_ref());
                self.passed += u64::from(passed.is_ok());
                let fresh = std::mem::take(fresh);
                self.next = Next::Joining {
                    until: Instant::now() + START_WAIT,
                    fresh,
                    workers,
                };
                let errno = passed.err()?;
                self.fail(
                    children,
                    Failure::broken("passing the NIC process on to the host process", errno),
                )
            }
            Err(HelloError::Closed) if children.pid(Role::NextNic(self.number)).is_some() => {
                *socket = None;
                None
            }
            Err(HelloError::Closed) => {
                let failure = Failure::broken(self.name.clone(), "it has closed the connection")
                    .remedy("It ended, or it serves another host stack: it serves one at a time.");
                self.fail(children, failure)
            }
            Err(error) => self.fail(children, Failure::broken("NIC process", error)),
        }
    }

    fn on_time(&mut self, children: &mut Children) -> Option<NicOutcome> {
        let now = Instant::now();
        if self.past_until.is_some_and(|until| until <= now) {
            tracing::warn!("the NIC process before did not end within {END_WAIT:?}: killed");
            self.past_until = None;
            self.forget(children, Role::PastNic(self.number));
        }
        match self.next {
            Next::At(at) if at <= now => {
                self.next = Next::None;
                let failure = self.start(children, Fresh::default()).err()?;
                self.fail(children, failure)
            }
            Next::Starting { until, .. } | Next::Joining { until, .. } if until <= now => self
                .fail(
                    children,
                    Failure::broken(
                        "the NIC process",
                        format!("not ready within {START_WAIT:?}"),
                    ),
                ),
            _ => None,
        }
    }

    /// Returns whether this generation is the one that is joining, and not one that has died
    /// meanwhile.
    fn joins(&self, which: u64) -> bool {
        matches!(self.next, Next::Joining { .. }) && which == self.passed
    }

    fn on_joined(&mut self, children: &mut Children) -> Option<NicOutcome> {
        let joining = std::mem::replace(&mut self.next, Next::None);
        let Next::Joining { fresh, workers, .. } = joining else {
            return None;
        };
        if let (NicOrigin::Program { program, .. }, Some(new)) = (&mut self.origin, fresh.program) {
            *program = new;
        }
        if let Some(new) = fresh.root {
            self.set_root(new);
        }
        self.root_in_use = fresh.identity;
        self.retire(children);
        children.change_role(Role::NextNic(self.number), Role::Nic(self.number));
        self.serves = Some(self.passed);
        self.since = Instant::now();
        self.workers = workers;
        self.counted = vec![Report::default(); workers];
        (self.complaint, self.silent, self.loss) = (None, None, None);
        self.backoff.on_success(Instant::now());
        Some(NicOutcome::Serves)
    }

    /// Gives up the process that is being started.
    fn fail(&mut self, children: &mut Children, failure: Failure) -> Option<NicOutcome> {
        self.forget(children, Role::NextNic(self.number));
        self.next = Next::None;
        if self.serves.is_none() {
            let now = Instant::now();
            self.next = Next::At(now + self.backoff.on_failure(now));
        }
        Some(NicOutcome::Failed(failure))
    }

    /// Records the loss of the process in use, and schedules a start.
    fn lose(&mut self, failure: Failure) -> NicOutcome {
        let now = Instant::now();
        self.serves = None;
        self.silent = None;
        self.since = now;
        self.loss = Some(failure.clone());
        let wait = self.backoff.on_failure(now);
        if matches!(self.next, Next::None) {
            self.next = Next::At(now + wait);
        }
        NicOutcome::Lost(failure, wait)
    }

    /// Makes the process in use the predecessor: the host process has closed its socket, and it is
    /// to end by itself.
    fn retire(&mut self, children: &mut Children) {
        if children.pid(Role::Nic(self.number)).is_some() {
            self.forget(children, Role::PastNic(self.number));
            children.change_role(Role::Nic(self.number), Role::PastNic(self.number));
            self.past_until = Some(Instant::now() + END_WAIT);
        }
    }

    /// Ends a process unless it has ended, and adds its report to the sum.
    fn forget(&mut self, children: &mut Children, role: Role) {
        absorb(&mut self.past, children.report(role));
        children.forget(role);
    }
}

/// Formats a duration, to the second.
fn in_words(time: Duration) -> String {
    let seconds = time.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

fn absorb(sum: &mut Option<Report>, report: Option<&Report>) {
    if let Some(report) = report {
        sum.get_or_insert_default().absorb(report);
    }
}

/// Connects again to a NIC process that was not started here. Does not block.
fn connect_again(path: &PathBuf) -> Result<OwnedFd, Failure> {
    let connect = || -> rustix::io::Result<OwnedFd> {
        let socket = seqpacket::non_blocking()?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(socket)
    };
    connect().map_err(|errno| {
        let why = match errno {
            Errno::NOENT | Errno::CONNREFUSED => "none listens there any more".to_owned(),
            errno => errno.to_string(),
        };
        Failure::broken(format!("NIC process at {}", path.display()), why)
    })
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;
    use processes::ipc::ablation::NicAblation;
    use processes::ipc::child::Child;
    use processes::ipc::messages::Line;
    use processes::ipc::signals::Signals;

    /// Starts a shell script in the place of a NIC process.
    fn shell(script: &str) -> Child {
        let (_, control) = seqpacket::pair().unwrap();
        let arguments = ["-c".into(), script.into()];
        Child::spawn(
            "NIC process",
            "/bin/sh".as_ref(),
            arguments,
            control,
            Stdio::inherit(),
        )
        .unwrap()
    }

    /// Script of a process that does not end.
    const STAYS: &str = "exec sleep 1000";

    fn reports(opens: u64) -> String {
        let report = Line::<FromNic>::Report(Report {
            counters: vec![("opens".to_owned(), opens)],
            ..Report::default()
        });
        format!("echo '{}'", serde_json::to_string(&report).unwrap())
    }

    fn children() -> Children {
        Children::new(Signals::catch_ends().unwrap())
    }

    /// Returns a supervisor whose first NIC process serves.
    fn nic() -> NicSupervisor {
        let program = Program::own().unwrap();
        let settings = NicSettings {
            device: "lo".to_owned(),
            root: "/".into(),
            workers: 1,
            cache: None,
            cache_default: None,
            reports_counters: false,
            awaits_files: false,
            steered_to: Vec::new(),
            share: None,
            is_first: true,
            ablation: NicAblation::default(),
        };
        let origin = NicOrigin::Program {
            program,
            settings: NicProgram::Nic(settings),
            log: LogLevel::Warn,
        };
        let mut nic = NicSupervisor::new(
            0,
            "NIC process".to_owned(),
            origin,
            seqpacket::pair().unwrap().0,
        );
        nic.passed = 1;
        nic.serves = Some(1);
        nic
    }

    fn opens(nic: &NicSupervisor, children: &Children) -> Option<u64> {
        nic.report(children)?.counter("opens")
    }

    #[test]
    fn a_nic_process_that_was_left_for_one_that_died_is_replaced() {
        let (mut children, mut nic) = (children(), nic());
        children.add(Role::Nic(0), shell(STAYS));
        let first = children.pid(Role::Nic(0));
        children.add(Role::NextNic(0), shell("kill -9 $$"));
        nic.passed = 2;
        nic.next = Next::Joining {
            until: Instant::now() + START_WAIT,
            fresh: Fresh::default(),
            workers: 1,
        };
        let news = loop {
            let event = children.next(None).unwrap();
            assert!(matches!(event, Event::Exited(Role::NextNic(0))));
            if let Some(news) = nic.on(&mut children, &event) {
                break news;
            }
        };
        assert!(matches!(news, NicOutcome::Failed(_)));
        assert_eq!(
            children.pid(Role::Nic(0)),
            first,
            "it goes on as far as is known"
        );
        assert_eq!(nic.deadline(), None);

        let joined = Event::Host(FromHost::Nic {
            nic: 0,
            generation: 2,
            fate: NicFate::Joined,
        });
        let news = nic.on(&mut children, &joined);
        assert!(matches!(news, Some(NicOutcome::Lost(..))), "{news:?}");
        assert_eq!(children.pid(Role::Nic(0)), None);
        assert_eq!(children.pid(Role::PastNic(0)), first, "it is to end");
        assert!(matches!(nic.next, Next::At(_)), "another one is started");
    }

    #[test]
    fn what_repeats_itself_is_logged_once_and_its_change_too() {
        let mut nic = nic();
        let silent = |process: u32| Failure::broken(format!("process {process}"), "silent");
        let refused = Failure::broken("process 3", "refused");
        assert!(nic.is_news(&silent(1)));
        assert!(!nic.is_news(&silent(2)) && !nic.is_news(&silent(2)));
        assert!(nic.is_news(&refused) && nic.is_news(&silent(4)));
    }

    #[test]
    fn the_status_says_since_when_it_serves_or_why_not() {
        let (mut children, mut nic) = (children(), nic());
        nic.workers = 2;
        nic.since = Instant::now() - Duration::from_secs(7_265);
        children.add(Role::Nic(0), shell(STAYS));
        let pid = children.pid(Role::Nic(0)).unwrap();
        assert_eq!(
            nic.status(&children),
            format!("NIC process: serves for 2 h 1 min, 2 workers, process {pid}")
        );
        nic.lose(Failure::broken("NIC process", "it has gone"));
        let failure = Failure::broken("NIC process", "none listens there").remedy("Start one.");
        assert!(nic.is_news(&failure));
        nic.next = Next::At(Instant::now());
        assert_eq!(
            nic.status(&children),
            "NIC process: missing for 0 s, tried again in 0 s: NIC process: none listens there"
        );
    }

    #[test]
    fn what_nic_processes_report_is_kept_however_they_go() {
        let (mut children, mut nic) = (children(), nic());
        // The process ends before the host process reports its loss.
        children.add(Role::Nic(0), shell(&reports(1)));
        while children.pid(Role::Nic(0)).is_some() {
            let event = children.next(None).unwrap();
            nic.on(&mut children, &event);
        }
        assert_eq!(opens(&nic, &children), Some(1));

        // The process is replaced while its predecessor is still there.
        nic.next = Next::None;
        for count in [20, 300] {
            children.add(Role::Nic(0), shell(&format!("{}; {STAYS}", reports(count))));
            let event = children.next(None).unwrap();
            assert!(matches!(event, Event::Reported(Role::Nic(0))));
            nic.on(&mut children, &event);
            nic.retire(&mut children);
        }
        assert_eq!(opens(&nic, &children), Some(321));

        // Processes that end with the server.
        nic.forget(&mut children, Role::PastNic(0));
        children.add(Role::PastNic(0), shell(&reports(4000)));
        children.add(Role::Nic(0), shell(&reports(50_000)));
        let mut ended = 0;
        while ended < 2 {
            ended += usize::from(matches!(children.next(None), Ok(Event::Exited(_))));
        }
        assert_eq!(opens(&nic, &children), Some(54_321));
    }
}
