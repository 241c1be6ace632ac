//! On the host's machine: HELLOs to the NIC stack's machine, until it responds.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};
use std::{fmt, io};

use contract::ethernet::handshake::HandshakeError;
use contract::ethernet::{FRAME_BYTES_MIN, Initiator, PreSharedKey, Session, Terms};
use netdev::packet::ControlPort;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{Mac, frame_bytes, monotonic_us, seed, unix_us};

/// Time until an unanswered HELLO is repeated.
const REPEAT: Duration = Duration::from_millis(100);

/// HELLOs of one frame size before a smaller one is offered: a switch on the path may drop large
/// frames.
const REPEATS_MAX: usize = 3;

/// The payload that every Ethernet carries, in bytes after the header.
const USUAL_FRAME_BYTES: u16 = 1500;

/// Why no session began.
#[derive(Debug)]
pub enum ConnectError {
    /// No valid response arrived.
    NoAnswer {
        /// The time waited.
        waited: Duration,
    },
    /// Apparently the NIC stack's machine refused: refusals are not authenticated.
    Refused(HandshakeError),
    /// The link's frames are too small.
    SmallFrames,
    /// `stop` became readable.
    Stopped,
    /// A system call failed.
    Io(io::Error),
}

/// Begins a session with the machine at `peer`, within `patience`; ends early when `stop` becomes
/// readable.
pub fn connect(
    port: &mut ControlPort,
    peer: Mac,
    key: &PreSharedKey,
    patience: Duration,
    stop: BorrowedFd<'_>,
) -> Result<(Session, Terms), ConnectError> {
    let largest = frame_bytes(port).ok_or(ConnectError::SmallFrames)?;
    let mut sizes = vec![
        largest,
        largest.min(USUAL_FRAME_BYTES),
        FRAME_BYTES_MIN as u16,
    ];
    sizes.dedup();
    let mut refusal = None;
    let deadline = Instant::now() + patience;
    let mut frame = Vec::new();
    for size in sizes.into_iter().cycle() {
        let seed = seed().map_err(ConnectError::Io)?;
        let mut initiator = Initiator::new(key, size, unix_us(), seed);
        initiator.hello(&mut frame);
        for _ in 0..REPEATS_MAX {
            // A HELLO that cannot be sent now is repeated like a lost one.
            let _ = port.send(peer, &frame);
            let repeat = Instant::now() + REPEAT;
            while Instant::now() < repeat {
                let mut met = None;
                let taken = port.receive(64, &mut |from, frame| {
                    if from != peer || met.is_some() {
                        return;
                    }
                    match initiator.on_frame(monotonic_us(), frame) {
                        Ok(session) => met = Some(session),
                        Err(HandshakeError::Malformed) => {}
                        Err(error) => refusal = Some(error),
                    }
                });
                let taken = taken.map_err(ConnectError::Io)?;
                if let Some(met) = met {
                    return Ok(met);
                }
                if taken == 0 && wait(port, stop, repeat)? {
                    return Err(ConnectError::Stopped);
                }
            }
            if Instant::now() > deadline {
                return Err(match refusal {
                    Some(error) => ConnectError::Refused(error),
                    None => ConnectError::NoAnswer { waited: patience },
                });
            }
        }
    }
    unreachable!("sizes repeat for ever")
}

/// Waits for a frame; true if `stop` is readable.
fn wait(port: &ControlPort, stop: BorrowedFd<'_>, until: Instant) -> Result<bool, ConnectError> {
    let left = until.saturating_duration_since(Instant::now());
    let left = Timespec::try_from(left).ok();
    let port = port.as_fd();
    let mut fds = [
        PollFd::new(&stop, PollFlags::IN),
        PollFd::new(&port, PollFlags::IN),
    ];
    match poll(&mut fds, left.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(!fds[0].revents().is_empty()),
        Err(errno) => Err(ConnectError::Io(errno.into())),
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectError::NoAnswer { waited } => write!(
                f,
                "no answer within {waited:?}: check that `splitway nic --control` runs there, on \
                 the interface with this address, and that both are on one link"
            ),
            ConnectError::Refused(error) => error.fmt(f),
            ConnectError::SmallFrames => write!(
                f,
                "the link's MTU is too small: {FRAME_BYTES_MIN} bytes are the least"
            ),
            ConnectError::Stopped => f.write_str("interrupted"),
            ConnectError::Io(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ConnectError {}
