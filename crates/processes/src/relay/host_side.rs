//! The relay process on the host's machine: it acts as the NIC stack, which is on another machine.

use std::ffi::CStr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use contract::control::{HelloError, nic_hello};
use contract::ethernet::ETHER_TYPE;
use failure::Failure;
use netdev::packet::{ControlPort, mtu_of};
use netsetup::device;
use relay::connect::ConnectError;
use relay::{EndReason, Relay};
use rustix::thread::CapabilitySet;
use sandbox::{lockdown, seccomp};
use serde::{Deserialize, Serialize};

use crate::ipc::child;
use crate::ipc::launch::{self, Settings};
use crate::ipc::messages::FromNic;
use crate::ipc::nic_control;
use crate::ipc::signals::Signals;
use config::Text;
use config::control_link::MacAddress;
use config::key_file;
use observer::counter_names;

/// Settings of the relay on the host's machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostRelaySettings {
    /// Interface of the control link.
    pub interface: String,
    /// Address of the NIC stack's machine.
    pub peer: Text<MacAddress>,
    /// File with the key that both machines share.
    #[serde(with = "launch::path")]
    pub key_file: PathBuf,
    /// The host's interface to its clients.
    pub device: String,
}

impl Settings for HostRelaySettings {
    const NAME: &'static str = "relay process";
    const COMMAND: &'static str = "host-relay";
    const TASK_NAME: &'static CStr = c"splitway-relay";
}

/// Longest wait for the answer of the NIC stack's machine: less than the host process waits for the
/// hello.
const PATIENCE: Duration = Duration::from_secs(4);

/// Runs until either stack is gone or a signal ends it.
pub fn run() -> Result<(), Failure> {
    let mut launched = launch::enter::<HostRelaySettings>()?;
    let host = launched.take_socket()?;
    let (settings, control) = (launched.settings, launched.control);
    let (interface, peer, device) = (&settings.interface, settings.peer.0, &settings.device);
    lockdown::forbid_core_dumps()?;
    let signals = Signals::catch_ends()?;
    let key = key_file::read(&settings.key_file)?;
    let mut port = ControlPort::open(interface, ETHER_TYPE, Some(peer.0))
        .map_err(|error| device::port_failed(interface, &error))?;
    let mtu = mtu_of(device).map_err(|error| device::port_failed(device, &error))?;

    // Everything that needs a privilege or a file is open now.
    lockdown::keep_capabilities(CapabilitySet::empty())?;
    lockdown::lock_out(Path::new("/"))?;
    nic_control::follow(control);
    seccomp::allow_only(seccomp::Kind::HostRelay)?;

    let what = format!("NIC stack at {} on {}", peer, interface);
    let met = relay::connect::connect(&mut port, peer.0, &key, PATIENCE, signals.as_fd());
    let (session, terms) = match met {
        Ok(met) => met,
        Err(ConnectError::Stopped) => return Ok(()),
        Err(error @ ConnectError::Io(_)) => return Err(Failure::broken(what, error)),
        Err(error) => return Err(Failure::input(what, error)),
    };
    if (terms.mtu as usize) < mtu {
        return Err(Failure::input(
            what,
            format!(
                "its link to the clients takes packets of {} bytes, and {} of {mtu}",
                terms.mtu, device
            ),
        )
        .remedy(format!(
            "Give both the same MTU: ip link set {} mtu {}",
            device, terms.mtu
        )));
    }
    let workers = usize::from(terms.workers);
    let mut stack = match nic_hello(host, workers) {
        Ok(stack) => stack,
        // The host stack has closed the connection before the start.
        Err(HelloError::Closed) => return Ok(()),
        Err(error) => return Err(Failure::broken("connecting to the host process", error)),
    };
    child::tell(FromNic::Ready { workers })?;
    let session = Relay::new(&mut port, peer.0, session).for_host();
    let (ending, counters) =
        session.run(&mut stack.channels, stack.socket.as_fd(), signals.as_fd());
    child::report(counter_names::control_link(&counters))?;
    match ending {
        EndReason::Stopped | EndReason::StackGone | EndReason::Superseded(_) => Ok(()),
        EndReason::Session(end) => Err(Failure::broken(what, end)),
        EndReason::StackCorrupt | EndReason::StackSilent => Err(Failure::broken(
            "host process",
            "its command ring is corrupt",
        )),
        EndReason::Io(error) => Err(Failure::broken(
            format!("control link {}", interface),
            error,
        )),
    }
}
