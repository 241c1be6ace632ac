//! The carrier process: to the host process it is the NIC stack, which is on another machine.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use contract::control::{HelloError, nic_hello};
use contract::ethernet::ETHER_TYPE;
use contract::ethernet::session::Counters;
use failure::Failure;
use netdev::packet::{ControlPort, mtu_of};
use netsetup::device;
use relay::meet::MeetError;
use relay::{Carrier, Ending};
use rustix::thread::CapabilitySet;
use sandbox::{lockdown, seccomp};

use crate::control_link::MacAddress;
use crate::messages::{Message, Report};
use crate::signals::Signals;
use crate::{child, key_file};

/// The carrier process.
#[derive(Clone, Debug, Args)]
pub(crate) struct CarryArgs {
    /// Interface of the control link
    #[arg(long)]
    pub(crate) interface: String,
    /// The NIC stack's machine
    #[arg(long)]
    pub(crate) peer: MacAddress,
    /// The key
    #[arg(long)]
    pub(crate) key_file: PathBuf,
    /// The host's interface to its clients
    #[arg(long)]
    pub(crate) dev: String,
}

/// How long the NIC stack's machine may take to answer: less than the host process waits for the hello.
const PATIENCE: Duration = Duration::from_secs(4);

/// Runs until either stack is gone or a signal ends it.
pub(crate) fn run(args: &CarryArgs) -> Result<(), Failure> {
    let control = child::adopt_control_socket(c"splitway-carry")?;
    lockdown::forbid_core_dumps()?;
    let signals = Signals::catch_ends()?;
    let key = key_file::read(&args.key_file)?;
    let mut port = ControlPort::open(&args.interface, ETHER_TYPE, Some(args.peer.0))
        .map_err(|error| device::port_failed(&args.interface, &error))?;
    let mtu = mtu_of(&args.dev).map_err(|error| device::port_failed(&args.dev, &error))?;

    // Everything that needs a privilege or a file is open now.
    lockdown::keep_capabilities(CapabilitySet::empty())?;
    lockdown::lock_out(Path::new("/"))?;
    seccomp::allow_only(seccomp::Kind::Carrier)?;

    let what = format!("NIC stack at {} on {}", args.peer, args.interface);
    let met = relay::meet::meet(&mut port, args.peer.0, &key, PATIENCE, signals.as_fd());
    let (session, terms) = match met {
        Ok(met) => met,
        Err(MeetError::Stopped) => return Ok(()),
        Err(error @ MeetError::Io(_)) => return Err(Failure::broken(what, error)),
        Err(error) => return Err(Failure::input(what, error)),
    };
    if (terms.mtu as usize) < mtu {
        return Err(Failure::input(
            what,
            format!(
                "its link to the clients takes packets of {} bytes, and {} of {mtu}",
                terms.mtu, args.dev
            ),
        )
        .remedy(format!(
            "Give both the same MTU: ip link set {} mtu {}",
            args.dev, terms.mtu
        )));
    }
    let workers = usize::from(terms.workers);
    let mut stack = match nic_hello(control, workers) {
        Ok(stack) => stack,
        // A host stack that has thought better of it.
        Err(HelloError::Closed) => return Ok(()),
        Err(error) => return Err(Failure::broken("meeting the host process", error)),
    };
    child::tell(&Message::NicReady { workers })?;
    let carriage = Carrier::new(&mut port, args.peer.0, session).for_host();
    let (ending, counters) =
        carriage.run(&mut stack.channels, stack.socket.as_fd(), signals.as_fd());
    child::tell(&Message::Report(Report::now(self::counters(&counters))))?;
    match ending {
        Ending::Stopped | Ending::StackGone | Ending::Superseded(_) => Ok(()),
        Ending::Session(end) => Err(Failure::broken(what, end)),
        Ending::StackCorrupt | Ending::StackSilent => Err(Failure::broken(
            "host process",
            "its command ring makes no sense",
        )),
        Ending::Io(error) => Err(Failure::broken(
            format!("control link {}", args.interface),
            error,
        )),
    }
}

/// What the session has counted, by names that no counter of a NIC stack has.
pub(crate) fn counters(counters: &Counters) -> Vec<(String, u64)> {
    let Counters {
        frames_sent,
        frames_received,
        frames_dropped,
        records_sent,
        records_received,
        parcels_repeated,
        parcels_duplicate,
    } = *counters;
    [
        (FRAMES_SENT, frames_sent),
        (FRAMES_RECEIVED, frames_received),
        (FRAMES_REFUSED, frames_dropped),
        ("control records sent", records_sent),
        ("control records received", records_received),
        (PARCELS_REPEATED, parcels_repeated),
        ("control parcels received again", parcels_duplicate),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

pub(crate) const FRAMES_SENT: &str = "control frames sent";
pub(crate) const FRAMES_RECEIVED: &str = "control frames received";
pub(crate) const FRAMES_REFUSED: &str = "control frames refused";
pub(crate) const PARCELS_REPEATED: &str = "control parcels sent again";
