//! The gate process of `splitway sockets-gate`: to the broker of this node, it acts as the programs
//! of an application node.
//!
//! Its user stands for the application node: the rules of `[sockets]` for this user decide what the
//! node's programs may do.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use ::cluster::Gate;
use ::cluster::message::{ETHER_TYPE, KEY_LABEL, MESSAGE_BYTES_MAX};
use config::Text;
use config::control_link::MacAddress;
use config::key_file;
use contract::channel::{Corrupt, Full};
use failure::Failure;
use netdev::packet::ControlPort;
use netsetup::device;
use observer::Report;
use observer::counter_names;
use relay::acceptor::AcceptedHost;
use relay::ring::Ring;
use relay::{EndReason, Relay, SessionAcceptor};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Gid, Resource, Signal, Uid, getrlimit, set_parent_process_death_signal};
use rustix::thread::{CapabilitySet, set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use sandbox::{descriptors, lockdown, seccomp};
use serde::{Deserialize, Serialize};

use crate::cluster::attachments::Attachments;
use crate::cluster::clock::now_us;
use crate::cluster::rounds::next_message;
use crate::ipc::child;
use crate::ipc::launch::{self, Settings};
use crate::ipc::messages::FromRelay;
use crate::ipc::signals::Signals;

/// Settings at the start of the gate process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GateSettings {
    /// Interface of the link to the application node.
    pub interface: String,
    /// Address of the application node.
    pub peer: Text<MacAddress>,
    /// File with the key that both nodes share.
    #[serde(with = "launch::path")]
    pub key_file: PathBuf,
    /// Socket at which programs of this node attach.
    #[serde(with = "launch::path")]
    pub sockets: PathBuf,
    /// User and group that stand for the application node.
    pub user: (u32, u32),
}

impl Settings for GateSettings {
    const NAME: &'static str = "gate process";
    const COMMAND: &'static str = "gate-process";
    const TASK_NAME: &'static CStr = c"splitway-gate";
}

/// Interval, in seconds, at which room for the final messages of applications is looked for between
/// sessions, if their bells are not watched.
const LEAVING_PAUSE_S: i64 = 1;

/// Runs until a signal ends it.
pub fn run() -> Result<(), Failure> {
    let settings = launch::enter::<GateSettings>()?.settings;
    let (interface, peer) = (&settings.interface, settings.peer.0);
    lockdown::forbid_core_dumps()?;
    let signals = Signals::catch_ends()?;
    let key = key_file::read(&settings.key_file)?.for_protocol(KEY_LABEL);
    let mut port = ControlPort::open(interface, ETHER_TYPE, Some(peer.0))
        .map_err(|error| device::port_failed(interface, &error))?;
    let acceptor = SessionAcceptor::new(&key, &port, 1, 0, None);
    let mut acceptor = acceptor.ok_or_else(|| {
        Failure::input(
            format!("link {interface}"),
            "its MTU is too small for a session",
        )
    })?;
    descriptors::raise();
    let descriptors_max = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    become_user(settings.user)?;
    // A change of user may allow core dumps again (prctl(2), PR_SET_DUMPABLE).
    lockdown::forbid_core_dumps()?;

    // Everything that needs a privilege or a file is open now.
    lockdown::keep_capabilities(CapabilitySet::empty())?;
    lockdown::confine_to_nothing()?;
    seccomp::allow_only(seccomp::Kind::Gate)?;

    let attachments = Attachments::new(settings.sockets, descriptors_max)
        .map_err(|errno| Failure::broken("waiting for the broker", errno))?;
    let mut applications = Applications {
        gate: Gate::new(attachments),
        message: Vec::new(),
        takes_records: true,
    };
    child::tell(FromRelay::Listening {
        mac: MacAddress(port.mac()).to_string(),
    })?;
    serve(&mut applications, &mut port, &mut acceptor, &signals)
}

/// Becomes the user that stands for the application node, permanently.
fn become_user((uid, gid): (u32, u32)) -> Result<(), Failure> {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    set_thread_groups(&[])
        .and_then(|()| set_thread_res_gid(gid, gid, gid))
        .and_then(|()| set_thread_res_uid(uid, uid, uid))
        // The kernel clears the setting on a change of user.
        .and_then(|()| set_parent_process_death_signal(Some(Signal::KILL)))
        .map_err(|errno| Failure::broken("becoming the user of the application node", errno))
}

fn serve(
    applications: &mut Applications,
    port: &mut ControlPort,
    acceptor: &mut SessionAcceptor,
    signals: &Signals,
) -> Result<(), Failure> {
    let mut next = None;
    let mut session = 0u8;
    loop {
        let accepted = match next.take() {
            Some(accepted) => accepted,
            None => match applications.wait(port, acceptor, signals.as_fd()) {
                Ok(Some(accepted)) => accepted,
                Ok(None) => return Ok(()),
                Err(error) => {
                    return Err(Failure::broken("waiting for an application node", error));
                }
            },
        };
        let node = MacAddress(accepted.mac);
        session = session.wrapping_add(1);
        child::tell(FromRelay::HostConnected {
            session,
            host: node.to_string(),
        })?;
        let relay = Relay::new(port, accepted.mac, accepted.session);
        let carried = relay.for_sockets(Some(&mut *acceptor));
        let (ending, counters) = carried.run_alone(applications, signals.as_fd());
        applications.gate.end_session();
        let report = Report::now(counter_names::control_link(&counters));
        child::tell(FromRelay::HostGone { session, report })?;
        match ending {
            EndReason::Stopped => return Ok(()),
            EndReason::Superseded(accepted) => next = Some(*accepted),
            EndReason::Session(end) => tracing::info!("application node at {node}: {end}"),
            EndReason::Io(error) => return Err(Failure::broken("link to the node", error)),
            EndReason::StackGone | EndReason::StackCorrupt | EndReason::StackSilent => {}
        }
    }
}

/// Applications of the other node, from the relay's view.
#[derive(Debug)]
struct Applications {
    gate: Gate<Attachments>,
    message: Vec<u8>,
    /// Whether the session takes records, so that the host stack is watched.
    takes_records: bool,
}

impl Applications {
    /// Waits for the next node that has the key; returns `None` when `stop` becomes readable.
    /// Meanwhile ended applications deliver their final messages.
    fn wait(
        &mut self,
        port: &mut ControlPort,
        acceptor: &mut SessionAcceptor,
        stop: BorrowedFd<'_>,
    ) -> std::io::Result<Option<AcceptedHost>> {
        loop {
            let found = acceptor.look(port)?;
            if found.accepted.is_some() {
                return Ok(found.accepted);
            }
            let worked = self.gate.turn(now_us()) || found.frames > 0;
            let sleeps = !worked && self.gate.prepare_sleep();
            let pause = Timespec {
                tv_sec: if sleeps { LEAVING_PAUSE_S } else { 0 },
                tv_nsec: 0,
            };
            let pause = (!sleeps || self.gate.is_leaving()).then_some(pause);
            let port = port.as_fd();
            let mut fds = [
                PollFd::from_borrowed_fd(stop, PollFlags::IN),
                PollFd::from_borrowed_fd(port, PollFlags::IN),
                PollFd::from_borrowed_fd(self.gate.stack().wake_fd(), PollFlags::IN),
            ];
            match poll(&mut fds, pause.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            let is_stopped = !fds[0].revents().is_empty();
            self.gate.finish_sleep();
            if is_stopped {
                return Ok(None);
            }
        }
    }
}

impl Ring for Applications {
    const RECORD_BYTES_MAX: usize = MESSAGE_BYTES_MAX;

    fn receive_record(&mut self) -> Result<Option<&[u8]>, Corrupt> {
        let next = next_message(&mut self.gate, Gate::next_message, |it| it.turn(now_us()));
        Ok(next.map(|message| {
            self.message = message;
            &self.message[..]
        }))
    }

    fn has_room(&mut self) -> bool {
        self.gate.has_room()
    }

    fn send_record(&mut self, record: &[u8]) -> Result<(), Full> {
        self.gate.on_message(record);
        Ok(())
    }

    fn flush(&mut self) {
        self.gate.flush();
    }

    fn prepare_sleep(&mut self, for_records: bool) -> bool {
        self.takes_records = for_records;
        !for_records || self.gate.prepare_sleep()
    }

    fn finish_sleep(&mut self) {
        self.gate.finish_sleep();
    }

    /// Unhandled events would end each sleep at once.
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.takes_records.then(|| self.gate.stack().wake_fd())
    }
}
