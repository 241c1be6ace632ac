//! `splitway sockets-node` and `splitway sockets-gate`: the supervisors of the two nodes of the
//! cluster form. They handle no frame; the one starts a broker and a node process, the other a
//! gate process.

use std::os::fd::AsFd;

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
    let mut children = Children::new(Signals::catch_ends()?);
    let listener = Listener::bind_for_all("sockets", &args.sockets, "--sockets")?;
    let started = start_node(&mut children, args, &listener, log);
    let result = started.and_then(|_control| {
        say(&format!("programs attach at {}\n", args.sockets.display()));
        watch(&mut children, "stack node", &args.stack)
    });
    let ended = children.end(&[Role::Relay, Role::Broker]);
    result.and(ended)
}

/// Starts the broker and the node process; what leads to them.
fn start_node(
    children: &mut Children,
    args: &NodeArgs,
    listener: &Listener,
    log: LogLevel,
) -> Result<[std::os::fd::OwnedFd; 2], Failure> {
    let failed = |errno| Failure::broken("starting the broker", errno);
    let program = Program::own()?;
    let (to_broker, broker_end) = seqpacket::pair().map_err(failed)?;
    let settings = broker::settings(&Sockets::default())?;
    let (child, to_child) = launch::start(&program.image(), &settings, log, &[&broker_end])?;
    children.add(Role::Broker, child);
    let listener = listener.as_fd().try_clone_to_owned();
    let listener = listener.map_err(|error| Failure::broken("starting the broker", error))?;
    fd_passing::pass(&to_child, &ToBroker::Listener, Some(&listener)).map_err(failed)?;
    let settings = NodeSettings {
        interface: args.stack.interface.clone(),
        peer: Text(args.stack.peer),
        key_file: args.key_file.clone(),
    };
    let (node, to_node) = launch::start(&program.image(), &settings, log, &[&to_broker])?;
    children.add(Role::Relay, node);
    Ok([to_child, to_node])
}

/// Runs the gate of a stack node until the user ends it.
pub(crate) fn run_gate(args: &GateArgs, log: LogLevel) -> Result<(), Failure> {
    check(&args.node, &args.key_file)?;
    let user = user(&args.user)?;
    let mut children = Children::new(Signals::catch_ends()?);
    let program = Program::own()?;
    let settings = GateSettings {
        interface: args.node.interface.clone(),
        peer: Text(args.node.peer),
        key_file: args.key_file.clone(),
        sockets: args.sockets.clone(),
        user,
    };
    let (gate, _control) = launch::start(&program.image(), &settings, log, &[])?;
    children.add(Role::Relay, gate);
    let result = watch(&mut children, "application node", &args.node);
    let ended = children.end(&[Role::Relay]);
    result.and(ended)
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

/// The numbers of a user and of its group.
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

/// Tells the user of sessions, until a signal or the end of a process.
fn watch(children: &mut Children, other: &str, place: &NodePlace) -> Result<(), Failure> {
    loop {
        match children.next(None)? {
            Event::Signal => return Ok(()),
            Event::Relay(FromRelay::Listening { mac }) => {
                let (interface, peer) = (&place.interface, place.peer);
                say(&format!("waiting for {peer} on {interface} ({mac})\n"));
            }
            Event::Relay(FromRelay::HostConnected { host, .. }) => {
                say(&format!("the {other} at {host} is there\n"));
            }
            Event::Relay(FromRelay::HostGone { report, .. }) => {
                if let Some(line) = exit_summary::control_link(&report) {
                    say(&line);
                }
                say(&format!("the {other} is gone\n"));
            }
            Event::Failed(Role::Relay | Role::Broker)
            | Event::Exited(Role::Relay | Role::Broker) => return Err(children.diagnose()),
            Event::Failed(_) | Event::Exited(_) | Event::Reported(_) | Event::Broker(_) => {}
            Event::Readable | Event::Timeout => {}
            // There are no such children.
            Event::Host(_) | Event::Nic(..) | Event::Fetcher(_) | Event::Observer(_) => {}
        }
    }
}
