//! Keeps a broker running if programs may attach: binds their socket, starts the process, and
//! restarts it after its end. Meanwhile attached programs go on, and new ones wait.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use failure::Failure;
use netsetup::listener::Listener;
use netsetup::seqpacket;
use nix::unistd::{Group, User};

use crate::supervisor::children::{Children, Event, Role};
use crate::supervisor::executable::Program;
use crate::supervisor::heartbeat::Heartbeat;
use crate::supervisor::restart::Restart;
use config::log_level::LogLevel;
use config::{Allow, Config, Sockets, Text};
use processes::broker::{ApplicationLimits, BrokerSettings, Rule};
use processes::ipc::fd_passing::{self, has_hung_up};
use processes::ipc::launch;
use processes::ipc::launch::Settings as _;
use processes::ipc::messages::{FromBroker, SocketLimits, ToBroker, ToHost};

const NAME: &str = BrokerSettings::NAME;

/// Distance between the first application numbers of successive brokers: 2^32 divided by the golden
/// ratio, whose multiples lie far apart for any number of brokers that one server starts.
const NUMBERS_APART: u32 = 0x9e37_79b9;

/// The bound socket at which programs attach, and the broker's settings.
#[derive(Debug)]
pub(crate) struct BrokerPlan {
    listener: Listener,
    settings: BrokerSettings,
}

impl BrokerPlan {
    /// Binds the socket; `None` if the configuration names none.
    pub(crate) fn bind(config: &Config) -> Result<Option<Self>, Failure> {
        let settings = settings(&config.sockets)?;
        let Some(path) = &config.sockets.path else {
            return Ok(None);
        };
        Ok(Some(Self {
            listener: Listener::bind_for_all("sockets", path, "--sockets")?,
            settings,
        }))
    }
}

/// Returns the broker's settings. Fails if a rule names a user or group that does not exist on this
/// machine.
pub(crate) fn settings(sockets: &Sockets) -> Result<BrokerSettings, Failure> {
    let rules = sockets.allow.iter().enumerate();
    let rules: Result<Vec<Rule>, Failure> = rules.map(|(at, allow)| rule(at, allow)).collect();
    Ok(BrokerSettings {
        first_number: 1,
        applications: ApplicationLimits {
            applications_max: sockets.applications_max,
            applications_per_user_max: sockets.applications_per_user_max,
            processes_max: sockets.processes_max,
        },
        limits: SocketLimits {
            sockets_max: sockets.sockets_max,
            segment_bytes: sockets.segment.0.0,
            listeners_max: sockets.listeners_max,
            bindings_max: sockets.bindings_max,
            files_max: sockets.files_max,
            source_share_percent: sockets.source_share_percent,
            messages_per_turn: sockets.messages_per_turn,
            turn_us_max: sockets.turn_us_max,
        },
        rules: rules?,
    })
}

fn rule(at: usize, allow: &Allow) -> Result<Rule, Failure> {
    let Allow {
        user,
        group,
        listen,
        addresses,
        connect,
    } = allow;
    let uid = |name: &str| {
        let found = User::from_name(name)?;
        Ok(found.map(|user| user.uid.as_raw()))
    };
    let gid = |name: &str| {
        let found = Group::from_name(name)?;
        Ok(found.map(|group| group.gid.as_raw()))
    };
    let number = |kind: &str, name: &Option<String>, find: &dyn Fn(&str) -> nix::Result<_>| {
        let what = format!("sockets.allow[{at}].{kind}");
        let name = name.as_ref().map(|name| number_of(&what, kind, name, find));
        name.transpose()
    };
    Ok(Rule {
        uid: number("user", user, &uid)?,
        gid: number("group", group, &gid)?,
        listen: listen.clone(),
        addresses: addresses.clone(),
        connect: *connect,
    })
}

/// Returns the ID of a user or group, given as a number or a name.
fn number_of(
    what: &str,
    kind: &str,
    name: &str,
    find: impl Fn(&str) -> nix::Result<Option<u32>>,
) -> Result<u32, Failure> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    match find(name) {
        Ok(Some(number)) => Ok(number),
        Ok(None) => Err(
            Failure::input(what, format!("this machine has no {kind} {name}"))
                .remedy(format!("Name a {kind} that it has, or give a number.")),
        ),
        Err(errno) => Err(Failure::broken(
            format!("{what}: looking for {kind} {name}"),
            errno,
        )),
    }
}

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct BrokerSupervisor {
    plan: BrokerPlan,
    log: LogLevel,
    program: Program,
    /// Socket to the host process.
    host: OwnedFd,
    /// Control socket of the broker, if one runs.
    control: Option<OwnedFd>,
    /// Number of brokers started so far.
    processes: u32,
    /// Sockets over which NIC processes take files.
    doors: Vec<OwnedFd>,
    restart: Restart,
    is_ready: bool,
    heartbeat: Heartbeat,
}

impl BrokerSupervisor {
    /// Starts nothing yet.
    pub(crate) fn new(
        plan: BrokerPlan,
        host: &OwnedFd,
        log: LogLevel,
        heartbeat: Duration,
    ) -> Result<Self, Failure> {
        let host = host
            .try_clone()
            .map_err(|error| Failure::broken("making a socket for the host process", error))?;
        Ok(Self {
            plan,
            log,
            program: Program::own()?,
            host,
            control: None,
            processes: 0,
            doors: Vec::new(),
            restart: Restart::default(),
            is_ready: false,
            heartbeat: Heartbeat::new(heartbeat),
        })
    }

    /// Returns the number of brokers started so far.
    pub(crate) fn processes(&self) -> u32 {
        self.processes
    }

    /// Returns the path at which programs attach.
    pub(crate) fn path(&self) -> &Path {
        self.plan.listener.path()
    }

    /// Starts a broker. If it cannot be passed to the host process, it is killed.
    pub(crate) fn start(&mut self, children: &mut Children) -> Result<(), Failure> {
        self.spawn(children).inspect_err(|_| {
            self.control = None;
            children.forget(Role::Broker);
        })
    }

    fn spawn(&mut self, children: &mut Children) -> Result<(), Failure> {
        let failed = |errno| Failure::broken(format!("starting the {NAME}"), errno);
        let (to_broker, broker) = seqpacket::pair().map_err(failed)?;
        let settings = BrokerSettings {
            first_number: self.processes.wrapping_mul(NUMBERS_APART).wrapping_add(1),
            ..self.plan.settings.clone()
        };
        let image = self.program.image();
        let (child, control) = launch::start(&image, &settings, self.log, &[&broker])?;
        children.add(Role::Broker, child);
        self.processes = self.processes.wrapping_add(1);
        let listener = self.plan.listener.as_fd().try_clone_to_owned();
        let listener =
            listener.map_err(|error| Failure::broken(format!("starting the {NAME}"), error))?;
        fd_passing::pass(&control, &ToBroker::Listener, Some(&listener)).map_err(failed)?;
        self.doors.retain(|door| !has_hung_up(door));
        for door in &self.doors {
            fd_passing::pass(&control, &ToBroker::Nic, Some(door)).map_err(failed)?;
        }
        self.control = Some(control);
        fd_passing::pass(&self.host, &ToHost::Broker, Some(&to_broker))
            .map_err(|errno| Failure::broken("handing the broker to the host process", errno))
    }

    /// Sets the log level of the current and later brokers.
    pub(crate) fn set_log_level(&mut self, level: LogLevel) {
        self.log = level;
        self.send(ToBroker::LogLevel(Text(level)), None);
    }

    /// Sends a message to the broker. If it has ended, its exit is handled as an event.
    fn send(&self, message: ToBroker, descriptor: Option<&OwnedFd>) {
        if let Some(control) = &self.control
            && let Err(errno) = fd_passing::pass(control, &message, descriptor)
        {
            tracing::debug!(%errno, "the {NAME} does not get {message:?}");
        }
    }

    /// Adds the socket over which a NIC process takes files.
    pub(crate) fn add_nic(&mut self, door: OwnedFd) {
        self.send(ToBroker::Nic, Some(&door));
        self.doors.retain(|door| !has_hung_up(door));
        self.doors.push(door);
    }

    /// Returns when to call [`BrokerSupervisor::on`] at the latest.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let heartbeat = self.heartbeat.deadline().filter(|_| self.is_ready);
        self.restart.deadline().into_iter().chain(heartbeat).min()
    }

    /// Records that the broker serves programs.
    pub(crate) fn on_ready(&mut self) {
        self.is_ready = true;
        self.restart.on_success(Instant::now());
        self.heartbeat.on_answer();
    }

    /// Handles an event, and timers that are due.
    pub(crate) fn on(&mut self, children: &mut Children, event: &Event) {
        let now = Instant::now();
        match event {
            Event::Broker(FromBroker::Ready) => self.on_ready(),
            Event::Broker(FromBroker::Pong) => {
                self.heartbeat.on_answer();
            }
            Event::Exited(Role::Broker) => {
                let failure = children.exit_failure(Role::Broker);
                children.forget(Role::Broker);
                (self.control, self.is_ready) = (None, false);
                let unasked = || Failure::broken(NAME, "ended unexpectedly");
                self.fail(now, &failure.unwrap_or_else(unasked));
            }
            Event::Broker(FromBroker::Counters(_))
            | Event::Host(_)
            | Event::Nic(..)
            | Event::Fetcher(_)
            | Event::Observer(_)
            | Event::Relay(_)
            | Event::Failed(_)
            | Event::Reported(_)
            | Event::Exited(_)
            | Event::Signal
            | Event::Readable
            | Event::Timeout => {}
        }
        if self.is_ready && self.heartbeat.ask_or_kill(now, Role::Broker, children) {
            self.send(ToBroker::Ping, None);
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
            "{failure}; attached programs continue, others wait, and another {NAME} is \
             started in {wait:?}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Result<Vec<Rule>, Failure> {
        let config: Config = toml::from_str(text).unwrap();
        settings(&config.sockets).map(|settings| settings.rules)
    }

    #[test]
    fn users_and_groups_are_found_by_name_and_number() {
        let text = "[[sockets.allow]]\nuser = 'root'\ngroup = '77'\nlisten = ['80', '90-99']\n\
            [[sockets.allow]]\ngroup = 'root'\nconnect = false\n";
        let rules = rules(text).unwrap();
        let numbers: Vec<_> = rules.iter().map(|rule| (rule.uid, rule.gid)).collect();
        assert_eq!(numbers, [(Some(0), Some(77)), (None, Some(0))]);
        assert_eq!(rules[0].listen.as_ref().map(Vec::len), Some(2));
        assert_eq!((&rules[1].listen, rules[1].connect), (&None, false));
    }

    #[test]
    fn a_user_that_there_is_not_is_named_with_its_rule() {
        let text = "[[sockets.allow]]\n[[sockets.allow]]\nuser = 'no such user'";
        let failure = rules(text).unwrap_err().to_string();
        assert!(
            failure.contains("sockets.allow[1].user: this machine has no user no such user"),
            "{failure}"
        );
    }

    #[test]
    fn brokers_number_applications_far_from_each_other() {
        let mut first: Vec<u32> = (0..1000u32)
            .map(|it| it.wrapping_mul(NUMBERS_APART))
            .collect();
        first.sort_unstable();
        let apart = first.windows(2).map(|pair| pair[1] - pair[0]);
        assert!(apart.min().unwrap() > 1_000_000);
    }
}
