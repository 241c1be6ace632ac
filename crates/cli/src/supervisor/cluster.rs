//! `splitway sockets-node` and `splitway sockets-gate`: the supervisors of the two nodes of the
//! cluster form. They handle no frames; the first keeps a broker and a node process running, the
//! second a gate process.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use failure::Failure;
use netsetup::device::Inventory;
use netsetup::listener::Listener;
use netsetup::seqpacket;
use nix::unistd::User;
use sandbox::{kernel, privileges};

use crate::args::cluster::{GateArgs, NodeArgs};
use crate::supervisor::broker;
use crate::supervisor::children::{Children, Event, Role};
use crate::supervisor::executable::Program;
use crate::supervisor::exit_summary;
use crate::supervisor::restart::Restart;
use crate::terminal::say;
use config::control_link::NodePlace;
use config::log_level::LogLevel;
use config::{Sockets, Text, key_file};
use processes::cluster::node_side::NodeSettings;
use processes::cluster::stack_side::GateSettings;
use processes::ipc::fd_passing;
use processes::ipc::launch;
use processes::ipc::messages::{FromRelay, ToBroker};
use processes::ipc::signals::Signals;

/// Runs an application node until the user ends it.
pub(crate) fn run_node(args: &NodeArgs, log: LogLevel) -> Result<(), Failure> {
    check(&args.stack, &args.key_file)?;
    let program = Program::own()?;
    let listener = Listener::bind_for_all("sockets", &args.sockets, "--sockets")?;
    let settings = NodeSettings {
        interface: args.stack.interface.clone(),
        peer: Text(args.stack.peer),
        key_file: args.key_file.clone(),
    };
    let broker = broker::settings(&Sockets::default())?;
    let start = |children: &mut Children| {
        let failed = |errno| Failure::broken("starting the broker", errno);
        let (to_broker, broker_end) = seqpacket::pair().map_err(failed)?;
        let (child, to_child) = launch::start(&program.image(), &broker, log, &[&broker_end])?;
        children.add(Role::Broker, child);
        let listener = listener.as_fd().try_clone_to_owned();
        let listener = listener.map_err(|error| Failure::broken("starting the broker", error))?;
        fd_passing::pass(&to_child, &ToBroker::Listener, Some(&listener)).map_err(failed)?;
        let (node, to_node) = launch::start(&program.image(), &settings, log, &[&to_broker])?;
        children.add(Role::Relay, node);
        Ok(vec![to_child, to_node])
    };
    let other = Other {
        name: "stack node",
        place: &args.stack,
    };
    let supervisor = Supervisor::new(&[Role::Relay, Role::Broker], &start);
    supervisor.run(&other, || {
        say(&format!("programs attach at {}\n", args.sockets.display()));
    })
}

/// Runs the gate of a stack node until the user ends it.
pub(crate) fn run_gate(args: &GateArgs, log: LogLevel) -> Result<(), Failure> {
    check(&args.node, &args.key_file)?;
    let program = Program::own()?;
    let settings = GateSettings {
        interface: args.node.interface.clone(),
        peer: Text(args.node.peer),
        key_file: args.key_file.clone(),
        sockets: args.sockets.clone(),
        user: user(&args.user)?,
    };
    let start = |children: &mut Children| {
        let (gate, control) = launch::start(&program.image(), &settings, log, &[])?;
        children.add(Role::Relay, gate);
        Ok(vec![control])
    };
    let other = Other {
        name: "application node",
        place: &args.node,
    };
    Supervisor::new(&[Role::Relay], &start).run(&other, || {})
}

fn check(place: &NodePlace, key: &std::path::Path) -> Result<(), Failure> {
    key_file::read(key)?;
    Inventory::take()?.device(&place.interface)?;
    kernel::require()?;
    privileges::require(
        &format!("sending frames on {}", place.interface),
        privileges::FOR_DEVICE,
    )
}

/// Returns the IDs of a user and of its group.
fn user(name: &str) -> Result<(u32, u32), Failure> {
    let found = User::from_name(name)
        .map_err(|errno| Failure::broken(format!("--user: looking for {name}"), errno))?;
    let Some(user) = found else {
        return Err(
            Failure::input("--user", format!("this machine has no user {name}"))
                .remedy("Name a user that it has."),
        );
    };
    Ok((user.uid.as_raw(), user.gid.as_raw()))
}

/// The node at the other end of the link.
struct Other<'a> {
    name: &'static str,
    place: &'a NodePlace,
}

/// Starts processes, and returns their control sockets.
type Start<'a> = dyn Fn(&mut Children) -> Result<Vec<OwnedFd>, Failure> + 'a;

/// Keeps interdependent processes running: when one ends, all are restarted.
struct Supervisor<'a> {
    roles: &'static [Role],
    start: &'a Start<'a>,
    /// Control sockets of the processes.
    control: Vec<OwnedFd>,
    restart: Restart,
    /// Whether they have worked once: later failures lead to a restart, not to the supervisor's
    /// end.
    has_worked: bool,
}

impl<'a> Supervisor<'a> {
    fn new(roles: &'static [Role], start: &'a Start<'a>) -> Supervisor<'a> {
        Supervisor {
            roles,
            start,
            control: Vec::new(),
            restart: Restart::default(),
            has_worked: false,
        }
    }

    /// Runs until a signal ends it, or the processes fail before they have worked.
    fn run(mut self, other: &Other<'_>, started: impl FnOnce()) -> Result<(), Failure> {
        let mut children = Children::new(Signals::catch_ends()?);
        let result = (self.start)(&mut children).and_then(|control| {
            self.control = control;
            started();
            self.watch(&mut children, other)
        });
        let ended = children.end(self.roles);
        result.and(ended)
    }

    fn watch(&mut self, children: &mut Children, other: &Other<'_>) -> Result<(), Failure> {
        loop {
            match children.next(self.restart.deadline())? {
                Event::Signal => return Ok(()),
                Event::Relay(message) => self.on_message(other, message),
                Event::Failed(_) | Event::Exited(_) if !self.has_worked => {
                    return Err(children.diagnose());
                }
                Event::Exited(role) if self.roles.contains(&role) => self.on_end(children, role),
                Event::Failed(_) | Event::Exited(_) | Event::Reported(_) | Event::Broker(_) => {}
                Event::Readable | Event::Timeout => {}
                // There are no such children.
                Event::Host(_) | Event::Nic(..) | Event::Fetcher(_) | Event::Observer(_) => {}
            }
            if self.restart.take_due(Instant::now()) {
                match (self.start)(children) {
                    Ok(control) => self.control = control,
                    Err(failure) => self.fail(children, &failure),
                }
            }
        }
    }

    /// Prints the state of the link and of sessions.
    fn on_message(&mut self, other: &Other<'_>, message: FromRelay) {
        let Other { name, place } = other;
        match message {
            FromRelay::Listening { mac } => {
                self.has_worked = true;
                self.restart.on_success(Instant::now());
                let (interface, peer) = (&place.interface, place.peer);
                say(&format!("waiting for {peer} on {interface} ({mac})\n"));
            }
            FromRelay::HostConnected { host, .. } => {
                say(&format!("the {name} at {host} is connected\n"));
            }
            FromRelay::HostGone { report, .. } => {
                if let Some(line) = exit_summary::control_link(&report) {
                    say(&line);
                }
                say(&format!("the {name} is gone\n"));
            }
        }
    }

    fn on_end(&mut self, children: &mut Children, role: Role) {
        let name = children.name(role).unwrap_or("a process");
        let failure = children.exit_failure(role);
        let unasked = || Failure::broken(name, "ended unexpectedly");
        self.fail(children, &failure.unwrap_or_else(unasked));
    }

    fn fail(&mut self, children: &mut Children, failure: &Failure) {
        self.roles.iter().for_each(|role| children.forget(*role));
        self.control.clear();
        let wait = self.restart.on_failure(Instant::now());
        tracing::error!(
            "{failure}; connections of programs are reset, and it starts again in {wait:?}"
        );
    }
}
