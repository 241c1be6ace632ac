//! Keeps a fetcher running: starts it, and restarts it after its end. Meanwhile the host process
//! serves responses known to be cached, and other requests wait. Origins named later are added to a
//! running fetcher, or it is replaced if its confinement keeps it from reaching them.

use std::collections::{BTreeSet, VecDeque};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use failure::Failure;
use netsetup::seqpacket;
use origin::OriginUrl;
use origin::message::{MESSAGE_BYTES_MAX, Order};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use crate::supervisor::children::{Children, Event, Role};
use crate::supervisor::executable::Program;
use crate::supervisor::heartbeat::Heartbeat;
use crate::supervisor::initial_netns::InitialNetns;
use crate::supervisor::origin_plan::{CacheLimits, OriginPlan};
use crate::supervisor::restart::Restart;
use config::log_level::LogLevel;
use config::origin_place::ORIGINS_MAX;
use config::root::Identity;
use observer::Report;
use processes::fetcher::FetcherSettings;
use processes::ipc::fd_passing;
use processes::ipc::launch;
use processes::ipc::launch::Settings as _;
use processes::ipc::messages::{FromFetcher, ToHost};
use processes::ipc::stat_report;

const NAME: &str = FetcherSettings::NAME;

/// Longest time in which a fetcher that is being replaced finishes transfers that its successor
/// cannot continue.
const RETIRE_WAIT: Duration = Duration::from_secs(10);

/// How often the rest of a message is sent, and the time after which a fetcher that receives
/// nothing is replaced.
const SEND_PERIOD: Duration = Duration::from_millis(20);
const SEND_WAIT_MAX: Duration = Duration::from_secs(10);

/// Most origins that a fetcher knows, including those no longer named. Beyond, a successor starts
/// without these.
const KNOWN_MAX: usize = 2 * ORIGINS_MAX;

/// Most origins in a message.
const ORIGINS_PER_ORDER: usize = 16;

const _: () = assert!(
    ORIGINS_PER_ORDER * (OriginUrl::BYTES_MAX + 16) < MESSAGE_BYTES_MAX,
    "they fit into one"
);

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct FetcherSupervisor {
    log: LogLevel,
    program: Program,
    initial_netns: InitialNetns,
    /// Socket to the host process.
    host: OwnedFd,
    /// Origins that a fetcher must know, the cache, and its limits, if any origin is named.
    plan: Option<OriginPlan>,
    /// Origins in the latest configuration.
    named: BTreeSet<OriginUrl>,
    process: Option<Process>,
    /// Number of fetchers started so far.
    processes: u64,
    /// Latest counters of the current fetcher.
    counted: Report,
    restart: Restart,
    /// Longest time without an answer to a heartbeat.
    heartbeat: Duration,
}

/// A running fetcher, and its capabilities.
#[derive(Debug)]
struct Process {
    /// Socket for orders.
    orders: OwnedFd,
    /// Messages not yet sent, since the socket holds only a few long ones.
    unsent: VecDeque<Vec<u8>>,
    /// Deadline for the process to take one more message; then it is replaced.
    receives_by: Option<Instant>,
    /// The only ports to which its confinement lets it connect.
    ports: BTreeSet<u16>,
    /// Whether it has roots of trust, and so can use TLS.
    is_secure: bool,
    /// Identity of the cache directory.
    directory: Option<Identity>,
    /// When a process that is being replaced is killed.
    retires_by: Option<Instant>,
    /// Set once the process takes orders.
    heartbeat: Option<Heartbeat>,
}

impl Process {
    fn reaches(&self, url: &OriginUrl) -> bool {
        self.ports.contains(&url.port()) && (self.is_secure || !url.is_secure())
    }

    /// Sends an order as soon as the socket takes it.
    fn send(&mut self, order: &Order) {
        let message = serde_json::to_vec(order).unwrap_or_default();
        self.unsent.push_back(message);
        self.send_queued(Instant::now());
    }

    /// Sends queued messages as far as the socket takes them; returns false if it has taken none
    /// for too long.
    fn send_queued(&mut self, now: Instant) -> bool {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        while let Some(message) = self.unsent.front() {
            match rustix::io::retry_on_intr(|| send(&self.orders, message, flags)) {
                Ok(_) => {
                    self.unsent.pop_front();
                    self.receives_by = None;
                }
                Err(Errno::AGAIN) => {
                    return now < *self.receives_by.get_or_insert(now + SEND_WAIT_MAX);
                }
                // The end of the process is an event of its own.
                Err(_) => {
                    self.unsent.clear();
                    return true;
                }
            }
        }
        true
    }

    /// Asks the process to end, so that a successor starts.
    fn retire(&mut self) {
        tracing::info!("another fetcher is started, with the current settings");
        self.retires_by = Some(Instant::now() + RETIRE_WAIT);
        self.send(&Order::Retire);
    }
}

impl FetcherSupervisor {
    /// Starts without a plan: there is no origin to fetch from.
    pub(crate) fn new(
        initial_netns: InitialNetns,
        host: &OwnedFd,
        log: LogLevel,
        heartbeat: Duration,
    ) -> Result<Self, Failure> {
        let host = host
            .try_clone()
            .map_err(|error| Failure::broken("making a socket for the host process", error))?;
        Ok(Self {
            log,
            program: Program::own()?,
            initial_netns,
            host,
            plan: None,
            named: BTreeSet::new(),
            process: None,
            processes: 0,
            counted: Report::default(),
            restart: Restart::default(),
            heartbeat,
        })
    }

    /// Sets the log level of fetchers: a running one is replaced.
    pub(crate) fn set_log_level(&mut self, level: LogLevel) {
        self.log = level;
        if let Some(process) = &mut self.process
            && process.retires_by.is_none()
        {
            process.retire();
        }
    }

    /// Adds the origins of a plan: to the running fetcher if it can reach them, and else to a
    /// successor. Earlier origins and cached responses stay usable, since the host process may keep
    /// its current configuration.
    pub(crate) fn prepare(
        &mut self,
        children: &mut Children,
        plan: Option<&OriginPlan>,
    ) -> Result<(), Failure> {
        let Some(plan) = plan else {
            return Ok(());
        };
        let mut plan = plan.clone();
        let named = std::mem::replace(&mut self.named, plan.origins.clone());
        let mut is_any_forgotten = false;
        if let Some(before) = &self.plan {
            let known = &before.origins | &plan.origins;
            is_any_forgotten = known.len() > KNOWN_MAX;
            plan.origins = if is_any_forgotten {
                &named | &plan.origins
            } else {
                known
            };
            plan.limits = plan.limits.max(before.limits);
        }
        self.plan = Some(plan);
        if self.process.is_none() && self.restart.deadline().is_none() {
            return self.start(children);
        }
        // A process that is started later gets the whole plan.
        if let Some(process) = &mut self.process
            && let Some(plan) = &self.plan
            && process.retires_by.is_none()
        {
            // A running process cannot drop origins.
            let is_in_place = process
                .directory
                .is_none_or(|used| Identity::of(&plan.cache_dir) == Ok(used));
            let can_go_on = !is_any_forgotten
                && is_in_place
                && plan.origins.iter().all(|url| process.reaches(url));
            if can_go_on {
                send_all(process, plan)
            } else {
                process.retire()
            }
        }
        Ok(())
    }

    /// Applies the cache limits of the configuration in use: a prepared one is in use by now, or
    /// never will be.
    pub(crate) fn limit(&mut self, limits: Option<CacheLimits>) {
        let (Some(plan), Some(limits)) = (&mut self.plan, limits) else {
            return;
        };
        if std::mem::replace(&mut plan.limits, limits) == limits {
            return;
        }
        if let Some(process) = &mut self.process
            && process.retires_by.is_none()
        {
            process.send(&use_of(Vec::new(), limits));
        }
    }

    /// Starts a fetcher. If it cannot be passed to the host process, it is killed.
    fn start(&mut self, children: &mut Children) -> Result<(), Failure> {
        self.spawn(children).inspect_err(|_| {
            self.process = None;
            children.forget(Role::Fetcher);
        })
    }

    fn spawn(&mut self, children: &mut Children) -> Result<(), Failure> {
        let Some(plan) = &self.plan else {
            return Ok(());
        };
        let failed = |errno| Failure::broken("making a socket for the fetcher", errno);
        let (to_fetcher, fetcher) = seqpacket::pair().map_err(failed)?;
        let (image, settings) = (self.program.image(), plan.settings());
        // Taken before the directory is opened, so that a replacement in between is detected.
        let directory = Identity::of(&plan.cache_dir).ok();
        let (child, orders) = self
            .initial_netns
            .run_in(|| launch::start(&image, &settings, self.log, &[&fetcher]))?;
        children.add(Role::Fetcher, child);
        self.processes += 1;
        self.counted = Report::default();
        self.process = Some(Process {
            orders,
            unsent: VecDeque::new(),
            receives_by: None,
            ports: plan.origins.iter().map(OriginUrl::port).collect(),
            is_secure: plan.origins.iter().any(OriginUrl::is_secure),
            directory,
            retires_by: None,
            heartbeat: None,
        });
        fd_passing::pass(&self.host, &ToHost::Fetcher, Some(&to_fetcher))
            .map_err(|errno| Failure::broken("handing the fetcher to the host process", errno))
    }

    /// Returns the cache directory that the fetcher has opened.
    pub(crate) fn directory(&self) -> Option<(&Path, Identity)> {
        let used = self.process.as_ref()?.directory?;
        Some((&self.plan.as_ref()?.cache_dir, used))
    }

    /// Returns whether any origin is named.
    pub(crate) fn is_needed(&self) -> bool {
        self.plan.is_some()
    }

    /// Describes the plan for the user.
    pub(crate) fn describe(&self) -> String {
        self.plan
            .as_ref()
            .map_or_else(String::new, OriginPlan::describe)
    }

    /// Returns the number of fetchers started so far.
    pub(crate) fn processes(&self) -> u64 {
        self.processes
    }

    /// Returns the fetcher's state for `splitway stat`, if any origin is named.
    pub(crate) fn info(&self, children: &Children) -> Option<stat_report::Fetcher> {
        self.plan.as_ref().map(|plan| stat_report::Fetcher {
            process: children
                .pid(Role::Fetcher)
                .map(stat_report::Process::look_at),
            cache_max_bytes: plan.limits.bytes.0,
            counters: self.counted.counters.iter().cloned().collect(),
        })
    }

    /// Returns when to call [`FetcherSupervisor::on`] at the latest.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let process = self.process.as_ref();
        let retires_by = process.and_then(|it| it.retires_by);
        let is_waiting = process.is_some_and(|it| !it.unsent.is_empty());
        let sends_at = is_waiting.then(|| Instant::now() + SEND_PERIOD);
        let heartbeat = process.and_then(|it| it.heartbeat.as_ref()?.deadline());
        let others = retires_by.into_iter().chain(heartbeat).chain(sends_at);
        others.chain(self.restart.deadline()).min()
    }

    /// Records that the process takes orders.
    pub(crate) fn on_ready(&mut self) {
        if let Some(process) = &mut self.process {
            process.heartbeat = Some(Heartbeat::new(self.heartbeat));
        }
    }

    /// Handles the end of the process.
    fn on_exit(&mut self, now: Instant, children: &mut Children) {
        let failure = children.exit_failure(Role::Fetcher);
        let has_retired = self
            .process
            .take()
            .is_some_and(|it| it.retires_by.is_some());
        children.forget(Role::Fetcher);
        match failure {
            None if has_retired => self.restart.set(now),
            failure => {
                let failure =
                    failure.unwrap_or_else(|| Failure::broken(NAME, "ended unexpectedly"));
                self.fail(now, &failure);
            }
        }
    }

    /// Handles an event, and timers that are due.
    pub(crate) fn on(&mut self, children: &mut Children, event: &Event) {
        let now = Instant::now();
        match event {
            Event::Fetcher(FromFetcher::Ready) => {
                self.restart.on_success(now);
                self.on_ready();
            }
            Event::Fetcher(FromFetcher::Counters {
                origin: None,
                report,
            }) => {
                self.counted = report.clone();
                if let Some(process) = &mut self.process
                    && let Some(heartbeat) = &mut process.heartbeat
                {
                    heartbeat.on_answer();
                }
            }
            Event::Exited(Role::Fetcher) => self.on_exit(now, children),
            Event::Fetcher(FromFetcher::Counters {
                origin: Some(_), ..
            })
            | Event::Host(_)
            | Event::Nic(..)
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
        if let Some(process) = &mut self.process
            && let Some(heartbeat) = &mut process.heartbeat
            && heartbeat.ask_or_kill(now, Role::Fetcher, children)
        {
            process.send(&Order::Tell);
        }
        if let Some(process) = &mut self.process
            && !process.send_queued(now)
        {
            tracing::warn!(
                "the fetcher has read nothing for {SEND_WAIT_MAX:?}: it is killed, and another one \
                 started"
            );
            process.retires_by = Some(now);
        }
        let is_late = |process: &mut Process| process.retires_by.is_some_and(|by| by <= now);
        if self.process.take_if(is_late).is_some() {
            children.forget(Role::Fetcher);
            self.restart.set(now);
        }
        if self.restart.take_due(now)
            && let Err(failure) = self.start(children)
        {
            self.fail(now, &failure);
        }
    }

    fn fail(&mut self, now: Instant, failure: &Failure) {
        let wait = self.restart.on_failure(now);
        tracing::error!(
            "{failure}; requests to origins wait, another fetcher is started in \
             {wait:?}"
        );
    }
}

/// Sends a fetcher all origins, and the cache limits.
fn send_all(process: &mut Process, plan: &OriginPlan) {
    let origins: Vec<String> = plan.origins.iter().map(ToString::to_string).collect();
    for origins in origins.chunks(ORIGINS_PER_ORDER) {
        process.send(&use_of(origins.to_vec(), plan.limits));
    }
}

/// Returns the order to add these origins, within these limits.
fn use_of(origins: Vec<String>, limits: CacheLimits) -> Order {
    Order::Use {
        origins,
        bytes_max: limits.bytes.0,
        variants_max: limits.variants.into(),
        head_bytes_max: usize::try_from(limits.head_bytes.0).unwrap_or(usize::MAX),
        fields_max: limits.fields.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::Config;
    use config::size::Size;
    use processes::ipc::signals::Signals;

    fn plan(root: &std::path::Path, cache_max: &str, origins: &[String]) -> OriginPlan {
        let root = root.display();
        let text = format!(
            "nic.root = \"{root}\"\norigin = {{ cache_max = \"{cache_max}\", urls = {origins:?} }}"
        );
        let config: Config = toml::from_str(&text).unwrap();
        OriginPlan::check(&config).unwrap().unwrap()
    }

    /// Returns the supervisor of a running fetcher with this plan, the host process's end of its
    /// socket, and the fetcher's end of its own.
    fn at_work(plan: OriginPlan) -> (FetcherSupervisor, Children, OwnedFd, OwnedFd) {
        let children = Children::new(Signals::catch_ends().unwrap());
        let (to_host, host) = seqpacket::pair().unwrap();
        let (orders, heard) = seqpacket::pair().unwrap();
        let mut nic = FetcherSupervisor::new(
            InitialNetns::here().unwrap(),
            &to_host,
            LogLevel::Warn,
            Duration::ZERO,
        )
        .unwrap();
        nic.process = Some(Process {
            directory: None,
            orders,
            unsent: VecDeque::new(),
            receives_by: None,
            ports: [80].into(),
            is_secure: false,
            retires_by: None,
            heartbeat: None,
        });
        nic.named = plan.origins.clone();
        nic.plan = Some(plan);
        (nic, children, host, heard)
    }

    fn limits(bytes: Size) -> CacheLimits {
        CacheLimits {
            bytes,
            variants: 16,
            head_bytes: Size(16 << 10),
            fields: 100,
        }
    }

    /// Returns the orders received: the cache limit of each, or `None` to retire.
    fn heard(socket: &OwnedFd) -> Vec<Option<u64>> {
        let mut message = vec![0; MESSAGE_BYTES_MAX];
        let flags = rustix::net::RecvFlags::DONTWAIT;
        let mut all = Vec::new();
        while let Ok((count, _)) = rustix::net::recv(socket, &mut message[..], flags) {
            all.push(match serde_json::from_slice(&message[..count]).unwrap() {
                Order::Use { bytes_max, .. } => Some(bytes_max),
                Order::Retire => None,
                Order::Tell => continue,
            });
        }
        all
    }

    #[test]
    fn the_cache_becomes_smaller_when_that_is_in_use_and_not_before() {
        let root = tempfile::tempdir().unwrap();
        let plan = |size| plan(root.path(), size, &["http://a.example".to_owned()]);
        let (small, large) = (Size(16 << 20), Size(64 << 20));
        let (mut nic, mut children, _host, orders) = at_work(plan("64M"));
        nic.prepare(&mut children, Some(&plan("16M"))).unwrap();
        assert_eq!(heard(&orders), [Some(large.0)]);
        nic.limit(Some(limits(small)));
        assert_eq!(heard(&orders), [Some(small.0)]);
        // A refused configuration leaves no trace.
        nic.prepare(&mut children, Some(&plan("64M"))).unwrap();
        nic.limit(Some(limits(small)));
        assert_eq!(heard(&orders), [Some(large.0), Some(small.0)]);
        assert_eq!(nic.info(&children).unwrap().cache_max_bytes, small.0);
        nic.limit(None);
        nic.limit(Some(limits(small)));
        assert_eq!(heard(&orders), []);
    }

    #[test]
    fn a_fetcher_that_would_know_too_many_origins_makes_room_for_another() {
        let root = tempfile::tempdir().unwrap();
        let plan = |numbers: std::ops::Range<usize>| {
            let origins: Vec<String> = numbers.map(|it| format!("http://{it}.example")).collect();
            plan(root.path(), "16M", &origins)
        };
        let (mut nic, mut children, _host, orders) = at_work(plan(0..256));
        nic.prepare(&mut children, Some(&plan(256..512))).unwrap();
        assert!(!heard(&orders).contains(&None));
        nic.prepare(&mut children, Some(&plan(512..513))).unwrap();
        assert_eq!(heard(&orders), [None]);
        assert!(nic.deadline().is_some());
        assert_eq!(nic.plan.unwrap().origins.len(), 257);
    }

    #[test]
    fn a_fetcher_that_receives_slowly_gets_everything_in_order_and_one_that_never_does_is_replaced()
    {
        let root = tempfile::tempdir().unwrap();
        let plan = plan(root.path(), "16M", &["http://a.example".to_owned()]);
        let (mut nic, mut children, host, orders) = at_work(plan);
        // No further fetcher can be passed on.
        drop(host);
        let process = nic.process.as_ref().unwrap();
        rustix::net::sockopt::set_socket_send_buffer_size(&process.orders, 4096).unwrap();
        let sizes: Vec<u64> = (1..1_000).map(|it| (16 << 20) + it).collect();
        for &size in &sizes {
            nic.limit(Some(limits(Size(size))));
        }
        let nothing = Event::Fetcher(FromFetcher::Ready);
        let mut told = Vec::new();
        while told.len() < sizes.len() {
            let is_waiting = !nic.process.as_ref().unwrap().unsent.is_empty();
            assert_eq!(nic.deadline().is_some(), is_waiting);
            let more = heard(&orders);
            assert!(!more.is_empty());
            told.extend(more);
            nic.on(&mut children, &nothing);
        }
        assert!(told.into_iter().flatten().eq(sizes.iter().copied()));
        assert_eq!(nic.deadline(), None);
        for &size in &sizes {
            nic.limit(Some(limits(Size(size))));
        }
        let receives_by = &mut nic.process.as_mut().unwrap().receives_by;
        assert!(receives_by.is_some());
        nic.on(&mut children, &nothing);
        assert!(nic.process.is_some());
        nic.process.as_mut().unwrap().receives_by = Some(Instant::now());
        nic.on(&mut children, &nothing);
        assert!(nic.process.is_none());
        assert!(nic.restart.deadline().is_some(), "another one is started");
    }

    #[test]
    fn one_that_cannot_be_handed_to_the_host_process_is_none() {
        let root = tempfile::tempdir().unwrap();
        let plan = plan(root.path(), "16M", &["http://a.example".to_owned()]);
        let (mut nic, mut children, host, _) = at_work(plan.clone());
        nic.process = None;
        drop(host);
        assert!(nic.prepare(&mut children, Some(&plan)).is_err());
        assert!(nic.process.is_none());
        assert_eq!(children.pid(Role::Fetcher), None);
    }
}
