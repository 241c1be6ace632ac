//! `splitway nic --control`: waits on an Ethernet link for the host stacks of other machines and serves one after the
//! other, each with a NIC process of its own.
//!
//! Here is the supervisor, which handles no frame: a carrier process ([`crate::door_process`]) lets hosts in, and is
//! given a NIC process for each.

use std::ffi::OsString;
use std::os::fd::OwnedFd;

use failure::Failure;
use netsetup::device::Inventory;
use netsetup::seqpacket;
use sandbox::{kernel, privileges};

use crate::args::NicArgs;
use crate::child::{Child, option};
use crate::control_link::ControlLink;
use crate::family::{Family, Happening, Role};
use crate::messages::Message;
use crate::nic_listener::session_arguments;
use crate::program::Program;
use crate::root::check_root;
use crate::signals::Signals;
use crate::{fd_passing, key_file, report, say};

/// Runs until the user ends it.
pub(crate) fn run(args: &NicArgs, control: &ControlLink, log: &str) -> Result<(), Failure> {
    check_root(args.root())?;
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
    let mut family = Family::new(Signals::catch_ends()?);
    let program = Program::own()?;
    let (to_carrier, carrier_socket) = joined()?;
    let mut arguments: Vec<OsString> = ["door", "--log", log].map(OsString::from).into();
    arguments.extend(["--workers".into(), args.workers.to_string().into()]);
    arguments.push(option("--dev", args.dev.as_ref()));
    arguments.push(option("--interface", control.interface.as_ref()));
    arguments.push(option("--key-file", key_file.as_os_str()));
    family.adopt(
        Role::Host,
        Child::spawn(
            "carrier process",
            &program.image(),
            arguments,
            carrier_socket,
        )?,
    );
    let result = serve(&mut family, args, control, &to_carrier, log);
    // The carrier first: it takes leave of the host.
    let ended = family.end(&[Role::Host, Role::Nic(0)]);
    result.and(ended)
}

fn serve(
    family: &mut Family,
    args: &NicArgs,
    control: &ControlLink,
    to_carrier: &OwnedFd,
    log: &str,
) -> Result<(), Failure> {
    loop {
        match family.next(None)? {
            Happening::Signal => return Ok(()),
            Happening::Said(Role::Host, Message::DoorOpen(mac)) => {
                say(&format!(
                    "waiting for host stacks on {} ({mac})\n",
                    control.interface
                ));
            }
            Happening::Said(Role::Host, Message::GuestCame(number, host)) => {
                let started = start(family, &host, args, log);
                let nic = started.inspect_err(|failure| tracing::error!("{failure}"));
                fd_passing::pass(to_carrier, number, nic.ok().as_ref())
                    .map_err(|errno| Failure::broken("passing a NIC process on", errno))?;
            }
            Happening::Said(Role::Host, Message::GuestGone(_, report)) => {
                if let Some(line) = report::control_link(&report) {
                    say(&line);
                }
                if let Err(failure) = family.end(&[Role::Nic(0)]) {
                    tracing::error!("{failure}");
                }
                family.dismiss(Role::Nic(0));
                say("the host stack is gone; waiting for the next one\n");
            }
            Happening::Said(Role::Host, Message::Failed(_)) | Happening::Ended(Role::Host) => {
                return Err(family.diagnose());
            }
            // Its end is noticed by the carrier, which says so.
            _ => {}
        }
    }
}

/// Starts a NIC process for a host; what leads to it.
fn start(family: &mut Family, host: &str, args: &NicArgs, log: &str) -> Result<OwnedFd, Failure> {
    let (host_socket, nic_socket) = joined()?;
    let child = Child::spawn(
        "NIC process",
        &Program::own()?.image(),
        session_arguments(args, log),
        nic_socket,
    )?;
    say(&format!(
        "nic process {}: serves the host stack at {host}\n",
        child.pid()
    ));
    family.adopt(Role::Nic(0), child);
    Ok(host_socket)
}

fn joined() -> Result<(OwnedFd, OwnedFd), Failure> {
    seqpacket::pair().map_err(|errno| Failure::broken("joining two processes with a socket", errno))
}
