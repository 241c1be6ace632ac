//! Signals that ask the process to end, as a descriptor to poll.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::error::Failure;

/// Ctrl-C, `kill`, or the end of the terminal. Readable once one has come.
#[derive(Debug)]
pub(crate) struct EndSignals {
    receiver: UnixStream,
}

impl EndSignals {
    /// From here on these signals do not end the process by themselves.
    pub(crate) fn catch() -> Result<Self, Failure> {
        let catch = || -> std::io::Result<Self> {
            let (receiver, sender) = UnixStream::pair()?;
            receiver.set_nonblocking(true)?;
            for signal in [SIGINT, SIGTERM, SIGHUP] {
                signal_hook::low_level::pipe::register(signal, sender.try_clone()?)?;
            }
            Ok(Self { receiver })
        };
        catch().map_err(|error| Failure::broken("setting up signal handling", error))
    }

    /// True if a signal has come since the last call.
    pub(crate) fn take(&mut self) -> bool {
        let mut bytes = [0; 16];
        let mut any = false;
        while matches!(self.receiver.read(&mut bytes), Ok(count) if count > 0) {
            any = true;
        }
        any
    }
}

impl AsFd for EndSignals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }
}
