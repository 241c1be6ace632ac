//! The node process of `splitway sockets-node`: it acts as the host process for programs and their
//! broker, and carries their sockets to the stack node.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::cluster::message::{ETHER_TYPE, KEY_LABEL, MESSAGE_BYTES_MAX};
use ::cluster::{Node, Reply};
use config::Text;
use config::control_link::MacAddress;
use config::key_file;
use contract::channel::{Corrupt, Full};
use failure::Failure;
use netdev::packet::ControlPort;
use netsetup::device;
use observer::Report;
use observer::counter_names;
use relay::connect::ConnectError;
use relay::ring::Ring;
use relay::{EndReason, Relay};
use rustix::thread::CapabilitySet;
use sandbox::{descriptors, lockdown, seccomp};
use serde::{Deserialize, Serialize};
use sockets::{Arrived, Broker, BrokerGone, Known, NewHandles};

use crate::cluster::clock::now_us;
use crate::cluster::rounds::next_message;
use crate::host::broker_link::BrokerLink;
use crate::ipc::child;
use crate::ipc::launch::{self, Settings};
use crate::ipc::messages::FromRelay;
use crate::ipc::signals::Signals;

/// Settings at the start of the node process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeSettings {
    /// Interface of the link to the stack node.
    pub interface: String,
    /// Address of the stack node.
    pub peer: Text<MacAddress>,
    /// File with the key that both nodes share.
    #[serde(with = "launch::path")]
    pub key_file: PathBuf,
}

impl Settings for NodeSettings {
    const NAME: &'static str = "node process";
    const COMMAND: &'static str = "node-process";
    const TASK_NAME: &'static CStr = c"splitway-node";
}

/// Longest attempt to reach the stack node; programs that attach wait meanwhile.
const PATIENCE: Duration = Duration::from_millis(500);

/// Runs until the broker is gone or a signal ends it.
pub fn run() -> Result<(), Failure> {
    let mut launched = launch::enter::<NodeSettings>()?;
    let broker = launched.take_socket()?;
    let settings = launched.settings;
    let (interface, peer) = (&settings.interface, settings.peer.0);
    lockdown::forbid_core_dumps()?;
    let signals = Signals::catch_ends()?;
    let key = key_file::read(&settings.key_file)?.for_protocol(KEY_LABEL);
    let mut port = ControlPort::open(interface, ETHER_TYPE, Some(peer.0))
        .map_err(|error| device::port_failed(interface, &error))?;
    descriptors::raise();

    // Everything that needs a privilege or a file is open now.
    lockdown::keep_capabilities(CapabilitySet::empty())?;
    lockdown::lock_out(Path::new("/"))?;
    seccomp::allow_only(seccomp::Kind::Host)?;

    let failed = |error| Failure::broken("waiting for programs", error);
    let mut programs = Programs::new(BrokerLink::new(broker)).map_err(failed)?;
    child::tell(FromRelay::Listening {
        mac: MacAddress(port.mac()).to_string(),
    })?;
    let what = format!("stack node at {peer} on {interface}");
    let mut sessions = 0u8;
    let mut complaint = String::new();
    loop {
        let met = relay::connect::connect(&mut port, peer.0, &key, PATIENCE, signals.as_fd());
        let session = match met {
            Ok((session, _)) => session,
            Err(ConnectError::Stopped) => return Ok(()),
            Err(error @ ConnectError::Io(_)) => return Err(Failure::broken(what, error)),
            Err(error) => {
                let error = error.to_string();
                if error != complaint {
                    tracing::warn!("{what}: {error}");
                    complaint = error;
                }
                programs.work();
                if programs.is_broker_gone {
                    return Ok(());
                }
                continue;
            }
        };
        complaint.clear();
        sessions = sessions.wrapping_add(1);
        child::tell(FromRelay::HostConnected {
            session: sessions,
            host: peer.to_string(),
        })?;
        programs.node.begin_session();
        let carried = Relay::new(&mut port, peer.0, session).for_sockets(None);
        let (ending, counters) = carried.run_alone(&mut programs, signals.as_fd());
        programs.node.end_session();
        programs.work();
        let report = Report::now(counter_names::control_link(&counters));
        let session = sessions;
        child::tell(FromRelay::HostGone { session, report })?;
        match ending {
            EndReason::Stopped => return Ok(()),
            EndReason::Session(end) => tracing::warn!("{what}: {end}"),
            EndReason::Io(error) => return Err(Failure::broken(what, error)),
            // The broker has ended.
            EndReason::StackCorrupt => return Ok(()),
            EndReason::StackGone | EndReason::StackSilent | EndReason::Superseded(_) => {}
        }
    }
}

/// Programs, from the relay's view.
#[derive(Debug)]
struct Programs {
    node: Node,
    broker: BrokerLink,
    /// Messages received from the broker ahead of the handles that were awaited.
    arrived: VecDeque<Arrived>,
    is_broker_gone: bool,
    /// Whether the broker takes no messages, and its socket is watched for room.
    is_broker_behind: bool,
    message: Vec<u8>,
    /// Whether the session takes records, so that programs are watched.
    takes_records: bool,
}

impl Programs {
    fn new(mut broker: BrokerLink) -> std::io::Result<Programs> {
        let node = Node::new()?;
        node.watch(broker.wake_fd())?;
        broker.inform(Known::All);
        Ok(Programs {
            node,
            broker,
            arrived: VecDeque::new(),
            is_broker_gone: false,
            is_broker_behind: false,
            message: Vec::new(),
            takes_records: true,
        })
    }

    /// Does a round of work; returns true if there was any.
    fn work(&mut self) -> bool {
        self.hear();
        let mut worked = !self.arrived.is_empty();
        while let Some(arrived) = self.arrived.pop_front() {
            match arrived {
                Arrived::Process(attachment) => self.node.attach(*attachment),
                Arrived::Handles(new) => self.node.add_handles(new),
                Arrived::Gone { app, channel } => self.node.end_process(app, channel),
                // This process has only one broker.
                Arrived::Again { app, channel } => {
                    self.broker
                        .refused(app, channel, rustix::io::Errno::SHUTDOWN);
                }
            }
        }
        self.node.look();
        let Programs {
            node,
            broker,
            arrived,
            ..
        } = self;
        worked |= node.turn(now_us(), &mut || just_arrived(broker, arrived));
        for reply in self.node.take_replies() {
            match reply {
                Reply::Attached { app, channel } => self.broker.attached(app, channel),
                Reply::Refused {
                    app,
                    channel,
                    errno,
                } => self.broker.refused(app, channel, errno),
                Reply::Detached { app } => self.broker.detached(app),
            }
        }
        let is_behind = self.broker.is_behind();
        if std::mem::replace(&mut self.is_broker_behind, is_behind) != is_behind {
            self.node.watch_for_room(self.broker.wake_fd(), is_behind);
        }
        worked
    }

    fn hear(&mut self) {
        while !self.is_broker_gone {
            match self.broker.receive() {
                Ok(Some(arrived)) => self.arrived.push_back(arrived),
                Ok(None) => return,
                Err(BrokerGone) => self.is_broker_gone = true,
            }
        }
    }
}

/// Returns handles that have just arrived: a command may overtake the broker's message.
fn just_arrived(broker: &mut BrokerLink, arrived: &mut VecDeque<Arrived>) -> Vec<NewHandles> {
    while let Ok(Some(next)) = broker.receive() {
        arrived.push_back(next);
    }
    let mut handles = Vec::new();
    for next in std::mem::take(arrived) {
        match next {
            Arrived::Handles(new) => handles.push(new),
            other => arrived.push_back(other),
        }
    }
    handles
}

impl Ring for Programs {
    const RECORD_BYTES_MAX: usize = MESSAGE_BYTES_MAX;

    /// Treats the broker's end as the ring's.
    fn receive_record(&mut self) -> Result<Option<&[u8]>, Corrupt> {
        let next = next_message(self, |it| it.node.next_message(), Programs::work);
        if self.is_broker_gone {
            return Err(Corrupt);
        }
        Ok(next.map(|message| {
            self.message = message;
            &self.message[..]
        }))
    }

    fn has_room(&mut self) -> bool {
        true
    }

    fn send_record(&mut self, record: &[u8]) -> Result<(), Full> {
        self.node.on_message(record);
        Ok(())
    }

    fn flush(&mut self) {
        self.node.flush();
    }

    fn prepare_sleep(&mut self, for_records: bool) -> bool {
        self.takes_records = for_records;
        !for_records || self.node.prepare_sleep()
    }

    fn finish_sleep(&mut self) {
        self.node.finish_sleep();
    }

    /// Unhandled events would end each sleep at once.
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.node.wake_fd().filter(|_| self.takes_records)
    }
}

#[cfg(test)]
mod tests {
    use netsetup::seqpacket;

    use super::*;

    /// Events are handled once the session takes messages again.
    #[test]
    fn nothing_wakes_a_node_whose_session_takes_no_messages() {
        let (broker, socket) = seqpacket::pair().unwrap();
        let mut programs = Programs::new(BrokerLink::new(socket)).unwrap();
        assert!(programs.prepare_sleep(true) && programs.wake_fd().is_some());
        programs.finish_sleep();
        assert!(programs.prepare_sleep(false) && programs.wake_fd().is_none());
        programs.finish_sleep();
        drop(broker);
        assert!(programs.prepare_sleep(true) && programs.wake_fd().is_some());
        assert!(programs.receive_record().is_err(), "the broker is gone");
    }
}
