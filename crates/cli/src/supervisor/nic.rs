//! Keeps a NIC process serving: starts it, starts another when it has ended, replaces it on demand.
//!
//! One way leads to a NIC process that serves, whatever the occasion: it is started, says hello, is
//! passed on to the host process, and joined by it. Until then the one before it, if there is one,
//! goes on.
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

/// How long a NIC process that is not used any more may take to end, or a relay to bring what one
/// on another machine has said last; less than the host stack waits for it.
const END_WAIT: Duration = Duration::from_secs(3);

/// Where NIC processes come from.
#[derive(Debug)]
pub(crate) enum NicOrigin {
    /// They are started.
    Program {
        /// What the one that serves was started from.
        program: Program,
        settings: NicProgram,
        /// The level of its log.
        log: LogLevel,
    },
    /// They run already, and wait at this socket.
    Socket(PathBuf),
}

/// What a program is started as.
#[derive(Clone, Debug)]
pub(crate) enum NicProgram {
    Nic(NicSettings),
    /// The relay to a NIC stack on another machine.
    Relay(HostRelaySettings),
}

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct NicSupervisor {
    /// Which of the host's NIC stacks it keeps.
    number: usize,
    /// What people call it.
    name: String,
    origin: NicOrigin,
    /// Leads to the process that was started last, if any was.
    control: Option<OwnedFd>,
    /// Leads to the host process.
    host: OwnedFd,
    next: Next,
    /// Whether NIC processes take files of applications from the broker.
    takes_files: bool,
    /// Says which frames workers of NIC processes of our own receive.
    map: Option<OwnedFd>,
    /// Where the one that was started last takes them, until the broker has it.
    door: Option<OwnedFd>,
    /// NIC processes that were passed to the host process.
    passed: u64,
    /// Which of them serves: it has been joined, and not lost.
    serves: Option<u64>,
    backoff: Backoff,
    /// When the one that served before is killed, should it still be there.
    past_until: Option<Instant>,
    /// What those that have been forgotten had reported.
    past: Option<Report>,
    /// Since when one has served, or none.
    since: Instant,
    /// Workers of the one that serves.
    workers: usize,
    /// What each of them has told last of what it has counted.
    counted: Vec<Report>,
    /// Why the last one that was to serve does not.
    complaint: Option<Failure>,
    /// The one that serves stands still, in these words.
    silent: Option<Failure>,
    /// Why the one before does not serve any more.
    loss: Option<Failure>,
    /// The root that the one that serves has opened.
    root_in_use: Option<Identity>,
}

/// The NIC process that is to serve.
#[derive(Debug)]
enum Next {
    None,
    At(Instant),
    Starting {
        /// `None`: it has hung up, and its end will tell why.
        socket: Option<OwnedFd>,
        until: Instant,
        /// What is new about it.
        fresh: Fresh,
    },
    Joining {
        until: Instant,
        fresh: Fresh,
        workers: usize,
    },
}

/// What a NIC process is started from that the one before was not.
#[derive(Debug, Default)]
struct Fresh {
    program: Option<Program>,
    root: Option<PathBuf>,
    /// The directory to which the root led.
    identity: Option<Identity>,
}

/// What has come of it.
#[derive(Debug)]
pub(crate) enum NicOutcome {
    /// A NIC process has begun to serve.
    Serves,
    /// One that was to serve does not.
    Failed(Failure),
    /// The one that served does not any more. Another one is started after this time.
    Lost(Failure, Duration),
}

impl NicSupervisor {
    /// Passes NIC processes on over `host`, as NIC stack `number`.
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

    /// NIC processes of our own take files of applications from the broker.
    pub(crate) fn take_files(&mut self) {
        self.takes_files = true;
    }

    /// Workers of NIC processes of our own receive what this steering map gives to them.
    pub(crate) fn steer_with(&mut self, map: OwnedFd) {
        self.map = Some(map);
    }

    /// Where a NIC process that was started takes them: the broker's end, once.
    pub(crate) fn take_door(&mut self) -> Option<OwnedFd> {
        self.door.take()
    }

    /// Which of the host's NIC stacks it keeps.
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// What people call it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether this failure is to be logged. One that repeats itself with every attempt is logged
    /// once.
    pub(crate) fn is_news(&mut self, failure: &Failure) -> bool {
        let said = self.complaint.replace(failure.clone());
        said.is_none_or(|said| !said.is_like(failure))
    }

    /// How it is with it.
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

    /// Why it does not serve, if it does not.
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

    /// One serves, as far as is known, and stands still.
    pub(crate) fn is_silent(&self) -> bool {
        self.silent.is_some() && self.serves.is_some()
    }

    /// The same, in a line.
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
        // What to do about it may follow, in lines of its own.
        let why = complaint.as_deref().and_then(|text| text.lines().next());
        let why = why.map_or_else(String::new, |why| format!(": {why}"));
        format!("{}: missing for {since}, {next}{why}", self.name)
    }

    /// Starts the first one. `socket`: leads to it already. If that fails, it is tried again later.
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

    /// Starts one from the program as it is now, to replace the one there is.
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

    /// The directory that NIC processes read below, if they are given one.
    pub(crate) fn root(&self) -> Option<&Path> {
        match &self.origin {
            NicOrigin::Program {
                settings: NicProgram::Nic(settings),
                ..
            } => Some(&settings.root),
            NicOrigin::Program { .. } | NicOrigin::Socket(_) => None,
        }
    }

    /// The directory that the NIC process has opened as its root, if it serves and has one.
    pub(crate) fn root_in_use(&self) -> Option<Identity> {
        self.root_in_use.filter(|_| self.serves.is_some())
    }

    /// Starts one below this root, to replace the one there is.
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
        // The next one reads below it.
        self.set_root(new);
        Ok(())
    }

    /// The log of its processes has this level from now on. One that runs already and was not
    /// started here has its own.
    pub(crate) fn set_log_level(&mut self, level: LogLevel) {
        if let NicOrigin::Program { log, .. } = &mut self.origin {
            *log = level;
        }
        let Some(control) = &self.control else {
            return;
        };
        // One that is gone is followed by one that is started with the level.
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
                        // The first one finds no connections that send of any.
                        settings.awaits_files = self.takes_files && self.passed > 0;
                        settings.is_first &= self.passed == 0;
                        let door = self.takes_files.then(pair).transpose()?;
                        let (broker_end, nic_end) = door.unzip();
                        self.door = broker_end;
                        let map = self
                            .map
                            .as_ref()
                            .filter(|_| !settings.steered_to.is_empty());
                        let others = nic_end.iter().chain(map);
                        let sockets: Vec<_> = [&nic_socket].into_iter().chain(others).collect();
                        launch::start(path, &settings, *log, &sockets)?
                    }
                    NicProgram::Relay(settings) => {
                        launch::start(path, settings, *log, &[&nic_socket])?
                    }
                };
                // By its path, since a script cannot be executed by a descriptor. What is noted is
                // to be what runs.
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

    /// What to watch: a hello may come.
    pub(crate) fn watch(&self) -> Option<BorrowedFd<'_>> {
        match &self.next {
            Next::Starting { socket, .. } => socket.as_ref().map(AsFd::as_fd),
            Next::None | Next::At(_) | Next::Joining { .. } => None,
        }
    }

    /// When to call [`NicSupervisor::on`] at the latest.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let next = match self.next {
            Next::None => None,
            Next::At(until) | Next::Starting { until, .. } | Next::Joining { until, .. } => {
                Some(until)
            }
        };
        next.into_iter().chain(self.past_until).min()
    }

    /// What NIC processes have reported: all that have ended in order so far.
    pub(crate) fn report(&self, children: &Children) -> Option<Report> {
        let mut sum = self.past.clone();
        for last in
            [Role::PastNic(self.number), Role::Nic(self.number)].map(|role| children.report(role))
        {
            absorb(&mut sum, last);
        }
        sum
    }

    /// The counters of a worker of the process that serves, if that is the event.
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

    /// Something has happened, or time has passed.
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
            // Of others, or what waits for a hello below.
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

    /// What has become of a process of this NIC stack in the host process.
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
                // The host process has left the one that served for one that has died before this
                // was received.
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
            // Of a process that was given up meanwhile.
            NicFate::Joined
            | NicFate::Refused { .. }
            | NicFate::Silent { .. }
            | NicFate::Lost { .. } => None,
        }
    }

    /// The one that serves stands still. Its end, or the host process should it not end, leads to
    /// another one.
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

    /// The NIC process that is to serve may have said hello.
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

    /// True if the host process is to say what becomes of this one, and not of one that has died
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

    /// The one that is to serve will not.
    fn fail(&mut self, children: &mut Children, failure: Failure) -> Option<NicOutcome> {
        self.forget(children, Role::NextNic(self.number));
        self.next = Next::None;
        if self.serves.is_none() {
            let now = Instant::now();
            self.next = Next::At(now + self.backoff.on_failure(now));
        }
        Some(NicOutcome::Failed(failure))
    }

    /// The one that served does not any more.
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

    /// The host process has hung up on the one that served: it is to end by itself.
    fn retire(&mut self, children: &mut Children) {
        if children.pid(Role::Nic(self.number)).is_some() {
            self.forget(children, Role::PastNic(self.number));
            children.change_role(Role::Nic(self.number), Role::PastNic(self.number));
            self.past_until = Some(Instant::now() + END_WAIT);
        }
    }

    /// Ends a process unless it has ended, and keeps what it has reported.
    fn forget(&mut self, children: &mut Children, role: Role) {
        absorb(&mut self.past, children.report(role));
        children.forget(role);
    }
}

/// A span of time, to the second.
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

/// Connects to a NIC process that runs by itself, as this server had before. Does not wait.
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

    /// A process that does what a shell makes of `script`, in the place of a NIC process.
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

    /// One that stays, and one that reports as many opens, and ends.
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

    /// A nic whose first NIC process serves.
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
        // One whose end comes before the host process reports its loss.
        children.add(Role::Nic(0), shell(&reports(1)));
        while children.pid(Role::Nic(0)).is_some() {
            let event = children.next(None).unwrap();
            nic.on(&mut children, &event);
        }
        assert_eq!(opens(&nic, &children), Some(1));

        // One that is replaced while the one before it is still there.
        nic.next = Next::None;
        for count in [20, 300] {
            children.add(Role::Nic(0), shell(&format!("{}; {STAYS}", reports(count))));
            let event = children.next(None).unwrap();
            assert!(matches!(event, Event::Reported(Role::Nic(0))));
            nic.on(&mut children, &event);
            nic.retire(&mut children);
        }
        assert_eq!(opens(&nic, &children), Some(321));

        // Those that end with the server.
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
