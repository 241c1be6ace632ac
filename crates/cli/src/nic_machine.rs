//! `splitway nic --control`: waits on an Ethernet link for the host stacks of other machines and serves one after the
//! other, each with a NIC process of its own, whose commands it carries.

use std::os::fd::{AsFd, OwnedFd};

use carrier::{Carriage, Carrier, Door, Ending};
use contract::control::{HostSession, host_hello};
use contract::ethernet::ETHER_TYPE;
use contract::ethernet::session::Counters;
use port::packet::{ControlPort, mtu_of};

use crate::args::NicArgs;
use crate::child::Child;
use crate::control_link::{ControlLink, MacAddress};
use crate::error::Failure;
use crate::family::{Family, Role};
use crate::link::{self, Inventory};
use crate::messages::Report;
use crate::nic_keeper::START_WAIT;
use crate::nic_listener::session_arguments;
use crate::program::Program;
use crate::serve::check_root;
use crate::signals::EndSignals;
use crate::{carry_process, features, key_file, privileges, report, say, socket};

/// Runs until the user ends it.
pub(crate) fn run(args: &NicArgs, control: &ControlLink, log: &str) -> Result<(), Failure> {
    check_root(args.root())?;
    let Some(key_file) = &args.key_file else {
        return Err(Failure::input("--control", "--key-file is missing"));
    };
    let key = key_file::read(key_file)?;
    let inventory = Inventory::take()?;
    for device in [&args.dev, &control.interface] {
        inventory.device(device)?;
    }
    features::require()?;
    privileges::require(
        &format!("sending packets on {}", args.dev),
        privileges::FOR_DEVICE,
    )?;
    let signals = EndSignals::catch()?;
    let mut machine = Machine::open(args, control, &key)?;
    let mut family = Family::new(EndSignals::catch()?);
    say(&format!(
        "waiting for host stacks on {} ({})\n",
        control.interface,
        MacAddress(machine.port.mac())
    ));
    let result = machine.serve(&mut family, &signals, args, log);
    let ended = family.end(&[Role::Nic(0)]);
    result.and(ended)
}

struct Machine {
    port: ControlPort,
    door: Door,
    /// Where data leaves: its own address, so that switches do not learn the host's there.
    source_mac: [u8; 6],
}

impl Machine {
    fn open(
        args: &NicArgs,
        control: &ControlLink,
        key: &contract::ethernet::PreSharedKey,
    ) -> Result<Machine, Failure> {
        let interface = &control.interface;
        let port = ControlPort::open(interface, ETHER_TYPE, None)
            .map_err(|error| link::port_failed(interface, &error))?;
        let mtu = mtu_of(&args.dev).map_err(|error| link::port_failed(&args.dev, &error))?;
        // A port of the data link only to learn its address.
        let source_mac = ControlPort::open(&args.dev, ETHER_TYPE, None)
            .map_err(|error| link::port_failed(&args.dev, &error))?
            .mac();
        let mtu = u32::try_from(mtu).unwrap_or(u32::MAX);
        let door = Door::new(key, &port, args.workers, mtu, Some(source_mac)).ok_or_else(|| {
            Failure::input(
                format!("control link {interface}"),
                "its MTU is too small for the contract",
            )
        })?;
        Ok(Machine {
            port,
            door,
            source_mac,
        })
    }

    fn serve(
        &mut self,
        family: &mut Family,
        signals: &EndSignals,
        args: &NicArgs,
        log: &str,
    ) -> Result<(), Failure> {
        let mut next = None;
        loop {
            let guest = match next.take() {
                Some(guest) => guest,
                None => match self.door.wait(&mut self.port, signals.as_fd()) {
                    Ok(Some(guest)) => guest,
                    Ok(None) => return Ok(()),
                    Err(error) => return Err(Failure::broken("waiting for host stacks", error)),
                },
            };
            let host = MacAddress(guest.mac);
            let epoch = guest.session.id();
            let source_mac = guest.terms.source_mac.and(Some(self.source_mac));
            let carrier = Carrier::new(&mut self.port, guest.mac, guest.session);
            let carriage = carrier.for_nic(source_mac, &mut self.door);
            let (ending, counters) = match start(family, guest.mac, args, log) {
                Ok(nic) => carry(carriage, epoch, nic, args.workers, signals),
                // The host knocks again.
                Err(failure) => {
                    tracing::error!("{failure}");
                    carriage.leave(Ending::StackGone)
                }
            };
            let report = Report::now(carry_process::counters(&counters));
            if let Some(line) = report::control_link(&report) {
                say(&line);
            }
            if let Err(failure) = family.end(&[Role::Nic(0)]) {
                tracing::error!("{failure}");
            }
            family.dismiss(Role::Nic(0));
            match ending {
                Ending::Stopped => return Ok(()),
                Ending::Superseded(guest) => next = Some(*guest),
                Ending::Session(end) => tracing::info!("host stack at {host}: {end}"),
                Ending::StackGone => tracing::error!("the NIC process has ended"),
                Ending::StackCorrupt => {
                    tracing::error!("the NIC process has broken its event ring");
                }
                Ending::Io(error) => {
                    return Err(Failure::broken("control link", error));
                }
            }
            if next.is_none() {
                say("the host stack is gone; waiting for the next one\n");
            }
        }
    }
}

/// Meets the NIC process at the other end of `nic` in the host's place when it is ready, and carries for it.
fn carry(
    mut carriage: Carriage<'_, '_>,
    epoch: u64,
    nic: OwnedFd,
    workers: u16,
    signals: &EndSignals,
) -> (Ending, Counters) {
    let workers = usize::from(workers);
    let awaited = carriage.await_stack(workers, START_WAIT, nic.as_fd(), signals.as_fd());
    if let Some(ending) = awaited {
        return carriage.leave(ending);
    }
    match host_hello(nic, epoch) {
        Ok(HostSession {
            mut channels,
            socket,
        }) => carriage.run(&mut channels, socket.as_fd(), signals.as_fd()),
        Err(error) => {
            let failure = Failure::broken("meeting the NIC process", error);
            tracing::error!("{failure}");
            carriage.leave(Ending::StackGone)
        }
    }
}

/// Starts a NIC process for the host at `host`; what leads to it.
fn start(
    family: &mut Family,
    host: [u8; 6],
    args: &NicArgs,
    log: &str,
) -> Result<OwnedFd, Failure> {
    let (host_socket, nic_socket) = socket::pair()
        .map_err(|errno| Failure::broken("joining the NIC process with a socket", errno))?;
    let program = Program::own()?;
    let child = Child::spawn(
        "NIC process",
        &program.image(),
        session_arguments(args, log),
        nic_socket,
    )?;
    say(&format!(
        "nic process {}: serves the host stack at {}\n",
        child.pid(),
        MacAddress(host)
    ));
    family.adopt(Role::Nic(0), child);
    Ok(host_socket)
}
