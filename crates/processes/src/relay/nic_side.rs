//! The relay process of `splitway nic --control`: it admits host stacks of other machines, one
//! after the other, and acts as the host process for the NIC process of each.
//!
//! It handles untrusted input, so it has few rights. It asks the supervisor for NIC processes, and
//! receives a socket to each.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use contract::control::{HostSession, host_hello};
use contract::ethernet::session::Counters;
use contract::ethernet::{ETHER_TYPE, End, Leaving, PreSharedKey};
use contract::limits::HEARTBEAT_SECONDS;
use failure::Failure;
use netdev::packet::{ControlPort, mtu_of};
use netsetup::device;
use relay::{EndReason, Relay, RelaySession, SessionAcceptor};
use rustix::thread::CapabilitySet;
use sandbox::{lockdown, seccomp};
use serde::{Deserialize, Serialize};

use crate::ipc::child;
use crate::ipc::fd_passing;
use crate::ipc::launch::{self, Launched, Settings};
use crate::ipc::messages::{FromRelay, ToRelay};
use crate::ipc::signals::Signals;
use crate::ipc::timeouts::START_WAIT;
use config::control_link::MacAddress;
use config::key_file;
use observer::Report;
use observer::counter_names;

/// Settings of the relay on the NIC stack's machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NicRelaySettings {
    /// Interface of the control link.
    pub interface: String,
    /// File with the key that both machines share.
    #[serde(with = "launch::path")]
    pub key_file: PathBuf,
    /// The NIC stack's interface to the clients.
    pub device: String,
    /// Number of workers of each NIC process.
    pub workers: u16,
}

impl Settings for NicRelaySettings {
    const NAME: &'static str = "relay process";
    const COMMAND: &'static str = "nic-relay";
    const TASK_NAME: &'static CStr = c"splitway-relay";
}

/// Longest message of the supervisor, in bytes.
const MESSAGE_BYTES_MAX: usize = 64;

/// Runs until the supervisor ends it.
pub fn run() -> Result<(), Failure> {
    let Launched {
        settings, control, ..
    } = launch::enter::<NicRelaySettings>()?;
    lockdown::forbid_core_dumps()?;
    let signals = Signals::catch_ends()?;
    let key = key_file::read(&settings.key_file)?;
    let mut machine = Machine::open(&settings, &key, control)?;

    // Everything that needs a privilege or a file is open now.
    lockdown::keep_capabilities(CapabilitySet::empty())?;
    lockdown::lock_out(Path::new("/"))?;
    seccomp::allow_only(seccomp::Kind::NicRelay)?;

    child::tell(FromRelay::Listening {
        mac: MacAddress(machine.port.mac()).to_string(),
    })?;
    machine.serve(&signals)
}

struct Machine {
    supervisor: OwnedFd,
    port: ControlPort,
    acceptor: SessionAcceptor,
    workers: usize,
    /// Source address of data frames: that of the data port, so that switches do not learn the
    /// host's address there.
    source_mac: [u8; 6],
    /// Number of admitted hosts.
    sessions: u8,
}

impl Machine {
    fn open(
        settings: &NicRelaySettings,
        key: &PreSharedKey,
        supervisor: OwnedFd,
    ) -> Result<Machine, Failure> {
        let (interface, device) = (&settings.interface, &settings.device);
        let port = ControlPort::open(interface, ETHER_TYPE, None)
            .map_err(|error| device::port_failed(interface, &error))?;
        let mtu = mtu_of(device).map_err(|error| device::port_failed(device, &error))?;
        // Opened only to learn the address of the data link.
        let source_mac = ControlPort::open(device, ETHER_TYPE, None)
            .map_err(|error| device::port_failed(device, &error))?
            .mac();
        let mtu = u32::try_from(mtu).unwrap_or(u32::MAX);
        let acceptor = SessionAcceptor::new(key, &port, settings.workers, mtu, Some(source_mac))
            .ok_or_else(|| {
                Failure::input(
                    format!("control link {interface}"),
                    "its MTU is too small for the contract",
                )
            })?;
        Ok(Machine {
            supervisor,
            port,
            acceptor,
            workers: usize::from(settings.workers),
            source_mac,
            sessions: 0,
        })
    }

    fn serve(&mut self, signals: &Signals) -> Result<(), Failure> {
        let mut next = None;
        loop {
            let accepted = match next.take() {
                Some(accepted) => accepted,
                None => match self.acceptor.wait(&mut self.port, signals.as_fd()) {
                    Ok(Some(accepted)) => accepted,
                    Ok(None) => return Ok(()),
                    Err(error) => return Err(Failure::broken("waiting for host stacks", error)),
                },
            };
            let host = MacAddress(accepted.mac);
            self.sessions = self.sessions.wrapping_add(1);
            child::tell(FromRelay::HostConnected {
                session: self.sessions,
                host: host.to_string(),
            })?;
            let epoch = accepted.session.id();
            let source_mac = accepted.terms.source_mac.and(Some(self.source_mac));
            let relay = Relay::new(&mut self.port, accepted.mac, accepted.session);
            let session = relay.for_nic(source_mac, &mut self.acceptor);
            let nic = NicProcess {
                supervisor: &self.supervisor,
                number: self.sessions,
                workers: self.workers,
                epoch,
            };
            let (ending, counters) = nic.carry(session, signals)?;
            let report = Report::now(counter_names::control_link(&counters));
            child::tell(FromRelay::HostGone {
                session: self.sessions,
                report,
            })?;
            match ending {
                EndReason::Stopped => return Ok(()),
                EndReason::Superseded(accepted) => next = Some(*accepted),
                EndReason::Session(end) => tracing::info!("host stack at {host}: {end}"),
                EndReason::StackGone => tracing::error!("the NIC process has ended"),
                EndReason::StackCorrupt => {
                    tracing::error!("the NIC process has broken its event ring");
                }
                EndReason::StackSilent => {
                    tracing::error!(
                        "no heartbeat of the NIC process for {HEARTBEAT_SECONDS} s: it is ended"
                    );
                }
                EndReason::Io(error) => return Err(Failure::broken("control link", error)),
            }
        }
    }
}

/// The NIC process that the supervisor starts for a host.
struct NicProcess<'a> {
    supervisor: &'a OwnedFd,
    number: u8,
    workers: usize,
    epoch: u64,
}

impl NicProcess<'_> {
    /// Waits for the NIC process, sends it the host's hello, and relays. The host does not notice
    /// the delay.
    fn carry(
        &self,
        mut session: RelaySession<'_, '_>,
        signals: &Signals,
    ) -> Result<(EndReason, Counters), Failure> {
        let stop = signals.as_fd();
        let socket = loop {
            let supervisor = self.supervisor.as_fd();
            if let Some(ending) = session.await_stack(self.workers, START_WAIT, supervisor, stop) {
                return Ok(session.leave_unmet(self.workers, ending));
            }
            match fd_passing::receive(self.supervisor, &mut [0; MESSAGE_BYTES_MAX])? {
                Some((ToRelay::Nic { session }, socket)) if session == self.number => break socket,
                // The message is for a host that has left.
                Some(_) => {}
                None => break None,
            }
        };
        let Some(socket) = socket else {
            // The supervisor has reported the reason. The host connects again.
            return Ok(session.leave_unmet(self.workers, EndReason::StackGone));
        };
        if let Some(ending) = session.await_stack(self.workers, START_WAIT, socket.as_fd(), stop) {
            return Ok(session.leave_unmet(self.workers, ending));
        }
        Ok(match host_hello(socket, self.epoch) {
            Ok(HostSession {
                mut channels,
                socket,
            }) => {
                let ended = session.run(&mut channels, socket.as_fd(), stop);
                if let EndReason::Session(End::Left(Leaving::HostDied)) = ended.0 {
                    // The NIC process resets the connections.
                    drop(socket.without_farewell());
                }
                ended
            }
            Err(error) => {
                let failure = Failure::broken("connecting to the NIC process", error);
                tracing::error!("{failure}");
                session.leave_unmet(self.workers, EndReason::StackGone)
            }
        })
    }
}
