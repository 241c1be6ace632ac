//! `splitway nic --control`: waits on an Ethernet link for the host stacks of other machines and
//! serves one after the other, each with a NIC process of its own.
//!
//! This is the supervisor, which handles no frame: a relay process
//! ([`processes::relay::nic_side`]) accepts hosts, and gets a NIC process for each.

use std::os::fd::OwnedFd;

use failure::Failure;
use netsetup::device::Inventory;
use netsetup::seqpacket;
use sandbox::{kernel, privileges};

use crate::args::nic::NicArgs;
use crate::supervisor::children::{Children, Event, Role};
use crate::supervisor::executable::Program;
use crate::supervisor::exit_summary;
use crate::terminal::say;
use config::control_link::ControlLink;
use config::key_file;
use config::log_level::LogLevel;
use config::root::check_root;
use processes::ipc::fd_passing;
use processes::ipc::launch;
use processes::ipc::messages::{FromRelay, ToRelay};
use processes::ipc::signals::Signals;
use processes::nic::NicSettings;
use processes::relay::nic_side::NicRelaySettings;

/// Runs until the user ends it.
pub(crate) fn run(args: &NicArgs, control: &ControlLink, log: LogLevel) -> Result<(), Failure> {
    check_root(args.root())?;
    let cache_default = args.cache.check(args.workers)?;
    let Some(key_file) = &args.key_file else {
        return Err(Failure::input("--control", "--key-file is missing"));
    };
    key_file::read(key_file)?;
    let inventory = Inventory::take()?;
    for device in [&args.dev, &control.interface] {
        inventory.device(device)?;
    }
    kernel::require()?;
    privileges::require(
        &format!("sending packets on {}", args.dev),
        privileges::FOR_DEVICE,
    )?;
    let mut children = Children::new(Signals::catch_ends()?);
    let program = Program::own()?;
    let settings = NicRelaySettings {
        interface: control.interface.clone(),
        key_file: key_file.clone(),
        device: args.dev.clone(),
        workers: args.workers,
    };
    let (relay, to_relay) = launch::start(&program.image(), &settings, log, &[])?;
    children.add(Role::Relay, relay);
    let nic = args.settings(cache_default);
    let result = serve(&mut children, &nic, control, &to_relay, log);
    // The relay first: it closes the session with the host.
    let ended = children.end(&[Role::Relay, Role::Nic(0)]);
    result.and(ended)
}

fn serve(
    children: &mut Children,
    nic: &NicSettings,
    control: &ControlLink,
    to_relay: &OwnedFd,
    log: LogLevel,
) -> Result<(), Failure> {
    loop {
        match children.next(None)? {
            Event::Signal => return Ok(()),
            Event::Relay(FromRelay::Listening { mac }) => {
                say(&format!(
                    "waiting for host stacks on {} ({mac})\n",
                    control.interface
                ));
            }
            Event::Relay(FromRelay::HostConnected { session, host }) => {
                let started = start(children, &host, nic, log);
                let socket = started.inspect_err(|failure| tracing::error!("{failure}"));
                fd_passing::pass(to_relay, &ToRelay::Nic { session }, socket.ok().as_ref())
                    .map_err(|errno| Failure::broken("passing a NIC process on", errno))?;
            }
            Event::Relay(FromRelay::HostGone { report, .. }) => {
                if let Some(line) = exit_summary::control_link(&report) {
                    say(&line);
                }
                if let Err(failure) = children.end(&[Role::Nic(0)]) {
                    tracing::error!("{failure}");
                }
                children.forget(Role::Nic(0));
                say("the host stack is gone; waiting for the next one\n");
            }
            Event::Failed(Role::Relay) | Event::Exited(Role::Relay) => {
                return Err(children.diagnose());
            }
            // The relay notices the end of a NIC process, and reports it.
            Event::Failed(_) | Event::Exited(_) | Event::Reported(_) | Event::Nic(..) => {}
            Event::Readable | Event::Timeout => {}
            // There are no such children.
            Event::Host(_) | Event::Fetcher(_) | Event::Broker(_) | Event::Observer(_) => {}
        }
    }
}

/// Starts a NIC process for a host; what leads to it.
fn start(
    children: &mut Children,
    host: &str,
    nic: &NicSettings,
    log: LogLevel,
) -> Result<OwnedFd, Failure> {
    let (host_socket, nic_socket) = seqpacket::pair()
        .map_err(|errno| Failure::broken("joining two processes with a socket", errno))?;
    let program = Program::own()?;
    let (child, _control) = launch::start(&program.image(), nic, log, &[&nic_socket])?;
    say(&format!(
        "nic process {}: serves the host stack at {host}\n",
        child.pid()
    ));
    children.add(Role::Nic(0), child);
    Ok(host_socket)
}
