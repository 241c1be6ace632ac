//! The supervisor of a server: keeps the processes running and serves signals and the control
//! socket. It is small on purpose: it cleans up the network even when every other process has
//! failed.
//!
//! | Module | Purpose |
//! |---|---|
//! | `startup` | starting the processes |
//! | `nic_source`, `attachment` | where content comes from; the interface of the stack |
//! | `shared_interface` | an interface whose addresses the kernel has as well |
//! | `initial_netns` | the network namespace of the user |
//! | `announce`, `exit_summary` | output for the user at the start and at the end |
//! | `certificate_watch`, `directory_watch` | certificates that expire; replaced directories |
//! | `children` | the processes: their messages and their ends |
//! | `nic`, `fetcher`, `broker`, `observer` | keeping each process running |
//! | `restart`, `backoff` | when to restart a process |
//! | `heartbeat`, `executable` | detection of a stalled process; the program that it runs |
//! | `rolling` | replacing NIC processes one after the other |
//! | `reload`, `root_link` | reading the configuration again; a root that is a symbolic link |
//! | `resolver` | addresses of a proxy's backends |
//! | `origin_plan` | which origins are fetched, and where responses are cached |
//! | `drain` | the end without losing a response |
//! | `control_socket`, `pending_requests` | requests of operators, and those that are pending |
//! | `stat`, `capture`, `qlog` | answers to these commands |
//! | `denials` | networks that an operator denies for a time |
//! | `key_log` | the file for secrets of connections |
//! | `site_directories` | directories of sites that are missing |
//! | `time_limit` | looks at files that may take long |
//! | `service_manager` | notifications for systemd |
//! | `cluster` | the supervisors of `splitway sockets-node` and `splitway sockets-gate` |
//! | `standalone_nic`, `remote_nic` | the supervisors of `splitway nic` |

pub(crate) mod announce;
pub(crate) mod attachment;
pub(crate) mod backoff;
pub(crate) mod broker;
pub(crate) mod capture;
pub(crate) mod certificate_watch;
pub(crate) mod children;
pub(crate) mod cluster;
pub(crate) mod control_socket;
pub(crate) mod denials;
pub(crate) mod directory_watch;
pub(crate) mod drain;
pub(crate) mod executable;
pub(crate) mod exit_summary;
pub(crate) mod fetcher;
pub(crate) mod heartbeat;
pub(crate) mod initial_netns;
pub(crate) mod key_log;
pub(crate) mod nic;
pub(crate) mod nic_source;
pub(crate) mod observer;
pub(crate) mod origin_plan;
pub(crate) mod pending_requests;
pub(crate) mod qlog;
pub(crate) mod reload;
pub(crate) mod remote_nic;
pub(crate) mod resolver;
pub(crate) mod restart;
pub(crate) mod rolling;
pub(crate) mod root_link;
pub(crate) mod service_manager;
pub(crate) mod shared_interface;
pub(crate) mod site_directories;
pub(crate) mod standalone_nic;
pub(crate) mod startup;
pub(crate) mod stat;
pub(crate) mod time_limit;

use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use failure::Failure;

use crate::supervisor::attachment::Attachment;
use crate::supervisor::broker::BrokerSupervisor;
use crate::supervisor::certificate_watch::CertificateWatch;
use crate::supervisor::children::{Children, Event, Role};
use crate::supervisor::control_socket::{Control, Request};
use crate::supervisor::denials::Denials;
use crate::supervisor::directory_watch::DirectoryWatch;
use crate::supervisor::drain::Drain;
use crate::supervisor::fetcher::FetcherSupervisor;
use crate::supervisor::heartbeat::{Due, Heartbeat};
use crate::supervisor::nic::{NicOutcome, NicSupervisor};
use crate::supervisor::observer::ObserverSupervisor;
use crate::supervisor::pending_requests::PendingRequests;
use crate::supervisor::reload::{Reload, Used};
use crate::supervisor::rolling::Rolling;
use crate::supervisor::service_manager::ServiceManager;
use crate::terminal::say;
use ::observer::{BrokerReport, FetcherReport, Health};
use config::log_level::LogLevel;
use config::socket_values::AddressRange;
use config::text::Time;
use config::{Config, Text};
use processes::ipc::fd_passing;
use processes::ipc::log_lines;
use processes::ipc::messages::{FromBroker, FromFetcher, FromHost, ToHost, ToObserver};
use processes::ipc::signals::{HangUp, Hint, Signals};

/// The signals that ask for more than an end.
pub(crate) struct RequestSignals {
    /// SIGHUP, if there is anything to read again.
    pub(crate) hang_up: Option<HangUp>,
    /// SIGQUIT: drain.
    pub(crate) quit: Signals,
    /// SIGUSR1: open the logs again.
    pub(crate) reopen: Signals,
}

/// See the [module documentation](self).
pub(crate) struct Supervisor<'a> {
    pub(crate) children: &'a mut Children,
    pub(crate) nics: &'a mut [NicSupervisor],
    pub(crate) fetcher: &'a mut FetcherSupervisor,
    /// None if no program may attach.
    pub(crate) broker: Option<&'a mut BrokerSupervisor>,
    pub(crate) observer: &'a mut ObserverSupervisor,
    /// Leads to the host process.
    pub(crate) to_host: &'a OwnedFd,
    pub(crate) attachment: &'a Attachment,
    /// NIC stacks on other machines.
    pub(crate) remote_nics: usize,
    pub(crate) host_heartbeat: Heartbeat,
    pub(crate) reload: Reload<'a>,
    pub(crate) certificates: CertificateWatch,
    pub(crate) directories: DirectoryWatch,
    pub(crate) drain: Drain,
    pub(crate) rolling: Rolling,
    pub(crate) signals: RequestSignals,
    pub(crate) service_manager: &'a mut ServiceManager,
    pub(crate) pending: PendingRequests,
    pub(crate) denials: Denials,
}

/// Result of one turn of the supervisor's loop.
#[derive(PartialEq, Eq)]
enum Turn {
    GoOn,
    /// The server is to end in order.
    End,
}

impl Supervisor<'_> {
    /// Keeps the server serving until the user ends it; an error if anything else does.
    pub(crate) fn run(&mut self) -> Result<(), Failure> {
        loop {
            self.on_time();
            self.hand_doors_over();
            let event = self.next()?;
            if self.on_event(&event)? == Turn::End {
                return Ok(());
            }
            let request = self.pending.control.as_mut().and_then(Control::next);
            self.answer(request.as_ref());
            self.replace_nics();
            if self.on_requests(request) == Turn::End {
                return Ok(());
            }
        }
    }

    /// Passes the doors of newly started NIC processes to the broker.
    fn hand_doors_over(&mut self) {
        if let Some(broker) = &mut self.broker {
            for door in self.nics.iter_mut().filter_map(NicSupervisor::take_door) {
                broker.add_nic(door);
            }
        }
    }

    fn is_alone(&self) -> bool {
        self.nics.len() == 1
    }

    /// Does the work that is due by the clock.
    fn on_time(&mut self) {
        self.service_manager.extend_if_due();
        let due = self.host_heartbeat.on_time(Instant::now());
        if due == Due::Silent {
            tracing::error!(
                "no heartbeat of the host process: all connections stall, and replacing it would \
                 end them; restart the server if it does not recover"
            );
        }
        if self.service_manager.is_to_ask() || due == Due::Ask {
            // The end of the host process is an event of its own.
            let _ = fd_passing::pass(self.to_host, &ToHost::Ping, None);
        }
        let now = Instant::now();
        self.reload.on_time(now);
        self.certificates.on_time(now, self.reload.certificates());
        let root = self.reload.root();
        let roots = self.nics.iter().filter_map(|nic| {
            let path = root.filter(|_| nic.root().is_some())?;
            directory_watch::watched("root", path, nic.root_in_use())
        });
        let cache = self
            .fetcher
            .directory()
            .and_then(|(path, used)| directory_watch::watched("cache directory", path, Some(used)));
        self.directories.on_time(roots.chain(cache));
        self.observer.report_health(Health {
            nics: self.nics.iter().map(NicSupervisor::trouble).collect(),
            is_draining: self.drain.left().is_some(),
            certificates: certificate_watch::reports(self.reload.certificates()),
            directories: self.directories.reports(),
        });
    }

    fn next(&mut self) -> Result<Event, Failure> {
        let control = self.pending.control.as_ref();
        let signals = &self.signals;
        let shared = self.attachment.shared.as_ref();
        let shared = shared.map(|shared| shared.borrow());
        let watched: Vec<_> = self
            .nics
            .iter()
            .filter_map(NicSupervisor::watch)
            .chain(control.and_then(Control::watch))
            .chain(self.reload.watch())
            .chain(shared.as_ref().map(|shared| shared.as_fd()))
            .chain([self.directories.watch()])
            .chain(signals.hang_up.as_ref().map(AsFd::as_fd))
            .chain([signals.quit.as_fd(), signals.reopen.as_fd()])
            .collect();
        let deadlines = self.nics.iter().filter_map(NicSupervisor::deadline);
        let deadline = deadlines
            .chain(control.and_then(Control::deadline))
            .chain(self.drain.deadline())
            .chain(self.service_manager.deadline())
            .chain(self.host_heartbeat.deadline())
            .chain(self.fetcher.deadline())
            .chain(self.broker.as_ref().and_then(|broker| broker.deadline()))
            .chain(self.observer.deadline())
            .chain(self.reload.deadline())
            .chain(self.certificates.deadline())
            .chain(shared.as_ref().and_then(|shared| shared.deadline()))
            .min();
        self.children.next_or_readable(&watched, deadline)
    }

    fn on_event(&mut self, event: &Event) -> Result<Turn, Failure> {
        match event {
            Event::Signal => return Ok(Turn::End),
            Event::Exited(Role::Host) | Event::Failed(Role::Host) => {
                return Err(self.children.diagnose());
            }
            Event::Host(message) => {
                if self.on_host(message) == Turn::End {
                    return Ok(Turn::End);
                }
            }
            // Each supervisor below takes its own.
            Event::Nic(..) | Event::Fetcher(_) | Event::Broker(_) | Event::Observer(_) => {}
            Event::Exited(_) | Event::Failed(_) | Event::Reported(_) => {}
            Event::Readable | Event::Timeout => self.follow_addresses(),
            Event::Relay(_) => {}
        }
        // Before the fetcher's supervisor may start another, whose counters begin at zero.
        if let Event::Fetcher(FromFetcher::Counters { origin, report }) = event {
            self.observer.send(&ToObserver::Fetcher(FetcherReport {
                process: self.fetcher.processes(),
                origin: origin.clone(),
                report: report.clone(),
            }));
        }
        if let (Event::Broker(FromBroker::Counters(report)), Some(broker)) = (event, &self.broker) {
            self.observer.send(&ToObserver::Broker(BrokerReport {
                process: broker.processes(),
                report: report.clone(),
            }));
        }
        self.fetcher.on(self.children, event);
        if let Some(broker) = &mut self.broker {
            broker.on(self.children, event);
        }
        self.on_nic_event(event);
        if let Some(news) = self.observer.on(self.children, event) {
            self.pending.on_observer(news);
        }
        Ok(Turn::GoOn)
    }

    /// Passes changes of shared addresses on to the host process.
    fn follow_addresses(&mut self) {
        let Some(shared) = &self.attachment.shared else {
            return;
        };
        let Some(new) = shared.borrow_mut().follow() else {
            return;
        };
        let passed = new.message().and_then(|message| {
            fd_passing::pass(self.to_host, &ToHost::Addresses, Some(&message))
                .map_err(|errno| Failure::broken("passing new addresses on", errno))
        });
        if let Err(failure) = passed {
            tracing::error!("{failure}");
        }
    }

    fn on_host(&mut self, message: &FromHost) -> Turn {
        match message {
            FromHost::Reloaded {
                certificates,
                ended,
            } => self.on_reloaded(*certificates, *ended),
            FromHost::AccessChanged { ended } => self.pending.on_access_changed(*ended),
            FromHost::ReloadRefused(why) => {
                self.pending.on_outcome(self.reload.on_refused(why));
                self.fetcher.limit(self.reload.cache_limits());
                self.service_manager.reloaded();
            }
            FromHost::Pong => {
                if self.host_heartbeat.on_answer() {
                    tracing::warn!("the host process responds again");
                }
                let is_any_silent = self.nics.iter().any(NicSupervisor::is_silent);
                self.service_manager.host_turns(!is_any_silent);
            }
            FromHost::Drained => {
                say("drained: every response was completed\n");
                return Turn::End;
            }
            FromHost::Detached { pid, is_known } => {
                let unknown = || format!("no program with process {pid} is attached");
                let result = is_known.then_some(()).ok_or_else(unknown);
                self.pending.on_detached(*pid, result);
            }
            // The supervisors of NIC stacks take these.
            FromHost::Nic { .. } => {}
            FromHost::Ready(_) => {}
        }
        Turn::GoOn
    }

    /// Handles the report that the host process uses a configuration with this number of
    /// `certificates`.
    fn on_reloaded(&mut self, certificates: usize, ended: usize) {
        let level = self.reload.log_level();
        let mut outcome = match self.reload.on_used(certificates, ended) {
            None => return,
            Some(Used::Configuration(outcome)) => outcome,
            Some(Used::Certificates(outcome)) => {
                self.certificates.look_again();
                self.pending.on_outcome(Some(outcome));
                self.fetcher.limit(self.reload.cache_limits());
                return self.service_manager.reloaded();
            }
        };
        self.certificates.look_again();
        let is_cache_below = self.fetcher.is_needed();
        let root = self.reload.root();
        let text = root_link::follow_again(root, self.nics, self.children, is_cache_below);
        if let Some(text) = text {
            outcome.add(&text);
        }
        let config = self.reload.config();
        let observed = self.observer.put_in_use(config, self.children);
        if let Err(failure) = observed {
            outcome.add(&format!("the logs stay as they are: {failure}"));
        }
        if self.reload.log_level() != level {
            self.set_log_level(self.reload.log_level());
        }
        self.pending.on_outcome(Some(outcome));
        self.fetcher.limit(self.reload.cache_limits());
        self.drain.set_timeout(self.reload.drain_timeout());
        self.notify_end();
        self.service_manager.reloaded();
    }

    /// Sets the lowest level that all processes log. The observer gets its level with its task.
    fn set_log_level(&mut self, level: LogLevel) {
        log_lines::set_level(level);
        let message = ToHost::LogLevel(Text(level));
        if let Err(errno) = fd_passing::pass(self.to_host, &message, None) {
            tracing::warn!(%errno, "the host process keeps its log level");
        }
        for nic in &mut *self.nics {
            nic.set_log_level(level);
        }
        self.fetcher.set_log_level(level);
        if let Some(broker) = &mut self.broker {
            broker.set_log_level(level);
        }
    }

    fn on_nic_event(&mut self, event: &Event) {
        let is_alone = self.is_alone();
        for index in 0..self.nics.len() {
            let nic = &mut self.nics[index];
            let number = nic.number();
            if let Some(news) = nic.on(self.children, event) {
                let is_replaced = match &news {
                    NicOutcome::Serves => Some(true),
                    NicOutcome::Failed(_) => Some(false),
                    NicOutcome::Lost(..) => None,
                };
                report_nic(self.children, nic, news, is_alone, &mut self.pending);
                if let Some(is_replaced) = is_replaced {
                    let skipped = self.rolling.on_outcome(number, is_replaced);
                    self.pending.skip(self.nics, skipped);
                }
            }
            if let Some(report) = self.nics[index].counters_of(event) {
                self.observer.send(&ToObserver::Worker(report));
            }
        }
    }

    /// Answers a request at once, or starts the work that leads to its answer.
    fn answer(&mut self, request: Option<&Request>) {
        match request {
            Some(Request::RestartNic) => {
                self.pending
                    .ask(self.nics.iter().map(NicSupervisor::number));
                self.rolling
                    .begin(self.nics.iter().map(NicSupervisor::number));
            }
            Some(Request::Nics) => {
                let lines = self.nics.iter().map(|nic| nic.status(self.children));
                let text = lines.collect::<Vec<_>>().join("\n");
                if let Some(control) = &mut self.pending.control {
                    control.answer(Ok(text));
                }
            }
            Some(Request::Stat) => {
                if let Some(control) = &mut self.pending.control {
                    let nics = (&*self.nics, &*self.fetcher);
                    stat::answer(control, self.children, nics, self.to_host);
                }
            }
            Some(Request::Capture(wanted)) => {
                if let Some(control) = &mut self.pending.control {
                    let (device, own) = (&self.attachment.device, self.attachment.ip_addresses());
                    capture::answer(control, *wanted, device, &own, self.remote_nics);
                }
            }
            Some(Request::Qlog(wanted)) => {
                if let Some(control) = &mut self.pending.control {
                    qlog::answer(control, *wanted, self.to_host);
                }
            }
            Some(Request::Detach(pid)) => self.detach(*pid),
            Some(Request::Deny(network, time)) => self.deny(*network, *time),
            Some(Request::Allow(network)) => self.allow(*network),
            Some(Request::Denied) => {
                if let Some(control) = &mut self.pending.control {
                    denials::answer(control, &mut self.denials);
                }
            }
            Some(Request::Reload | Request::Drain | Request::Reopen) | None => {}
        }
    }

    /// Denies a network; the host process's reply ends the request.
    fn deny(&mut self, network: AddressRange, time: Option<Time>) {
        let done = match self.denials.deny(network, time) {
            Ok((message, done)) => self.change_access(&message).map(|()| done),
            Err(why) => Err(why),
        };
        self.pending.change_access(done);
    }

    /// Takes a denial back; the host process's reply ends the request.
    fn allow(&mut self, network: AddressRange) {
        let remains = self.reload.access().denies(network);
        let (message, done) = self.denials.allow(network, remains);
        let done = self.change_access(&message).map(|()| done);
        self.pending.change_access(done);
    }

    fn change_access(&self, message: &ToHost) -> Result<(), String> {
        fd_passing::pass(self.to_host, message, None)
            .map_err(|errno| format!("asking the host process: {errno}"))
    }

    /// Asks the host process to detach a program; its reply ends the request.
    fn detach(&mut self, pid: u32) {
        self.pending.detach(pid);
        if self.broker.is_none() {
            let why = "no program can attach: this server was started without --sockets";
            return self.pending.on_detached(pid, Err(why.to_owned()));
        }
        if let Err(errno) = fd_passing::pass(self.to_host, &ToHost::Detach(pid), None) {
            let why = format!("asking the host process: {errno}");
            self.pending.on_detached(pid, Err(why));
        }
    }

    /// Replaces the next NIC process of a rolling restart.
    fn replace_nics(&mut self) {
        let is_alone = self.is_alone();
        while let Some(number) = self.rolling.next() {
            let nic = &mut self.nics[number];
            if let Err(failure) = nic.replace(self.children) {
                self.pending.answer(nic, is_alone, Err(failure.to_string()));
                let skipped = self.rolling.on_outcome(number, false);
                self.pending.skip(self.nics, skipped);
            }
        }
    }

    /// Handles requests that come as a signal or over the control socket.
    fn on_requests(&mut self, request: Option<Request>) -> Turn {
        let is_asked = request == Some(Request::Reopen);
        if self.signals.reopen.take() || is_asked {
            let has_logs = self.observer.has_logs();
            let outcome = has_logs.then(|| self.observer.reopen());
            self.pending.on_reopening(is_asked, outcome);
        }
        let is_asked = request == Some(Request::Drain);
        if is_asked || self.signals.quit.take() {
            let outcome = self.drain.begin(is_asked, self.to_host);
            self.pending.on_outcome(Some(outcome));
            self.notify_end();
        }
        if self.drain.is_over() {
            tracing::warn!("not all responses were complete in time: their connections are reset");
            return Turn::End;
        }
        let hint = self.signals.hang_up.as_mut().and_then(HangUp::take);
        if hint == Some(Hint::End) {
            return Turn::End;
        }
        let is_asked = request == Some(Request::Reload);
        if is_asked || hint == Some(Hint::Reload) {
            self.service_manager.reloading();
            let (fetcher, children) = (&mut *self.fetcher, &mut *self.children);
            let observer = &mut *self.observer;
            let outcome = self.reload.begin(is_asked, |config, plan| {
                observer.prepare(config)?;
                fetcher.prepare(children, plan)
            });
            if outcome.is_some() {
                self.fetcher.limit(self.reload.cache_limits());
                self.service_manager.reloaded();
            }
            self.pending.on_outcome(outcome);
        }
        Turn::GoOn
    }

    /// Extends the service manager's timeout by the drain time and the time in which the processes
    /// end.
    fn notify_end(&mut self) {
        if let Some(left) = self.drain.left() {
            self.service_manager
                .stopping(left.saturating_add(Children::end_wait(1)));
        }
    }
}

/// Returns the status line that a service manager shows.
pub(crate) fn ready_status(config: &Config, attachment: &Attachment) -> String {
    let ports = config.ports(false).chain(config.ports(true));
    let ports = ports.chain(config.proxy_ports());
    let ports: Vec<String> = ports.map(|port| port.to_string()).collect();
    let addresses = attachment.ip_addresses();
    let addresses: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
    format!(
        "serves port {} of {}",
        ports.join(", "),
        addresses.join(", ")
    )
}

/// Prints the fate of a NIC process, and answers the clients that wait for it.
fn report_nic(
    children: &Children,
    nic: &mut NicSupervisor,
    news: NicOutcome,
    is_alone: bool,
    pending: &mut PendingRequests,
) {
    let name = if is_alone {
        String::new()
    } else {
        format!("{}: ", nic.name())
    };
    let answer = match news {
        NicOutcome::Serves => {
            let serves = match children.pid(Role::Nic(nic.number())) {
                Some(pid) => format!("nic process {pid}: serves in the place of the one before"),
                None => "a NIC process serves in the place of the one before".to_owned(),
            };
            say(&format!("{name}{serves}\n"));
            Ok(serves)
        }
        NicOutcome::Lost(failure, wait) => {
            tracing::warn!("{name}{}", lost(&failure, wait, is_alone));
            return;
        }
        NicOutcome::Failed(failure) => {
            if nic.is_news(&failure) {
                tracing::error!("{name}no other NIC process: {failure}");
            }
            Err(failure.to_string())
        }
    };
    pending.answer(nic, is_alone, answer);
}

fn lost(failure: &Failure, wait: Duration, is_alone: bool) -> String {
    let when = if wait.is_zero() {
        "now".to_owned()
    } else {
        format!("in {wait:?}")
    };
    let meanwhile = if is_alone {
        "connections wait"
    } else {
        "connections go on through another one that has their files, or wait"
    };
    format!("{failure}; {meanwhile}, another one is started {when}")
}
