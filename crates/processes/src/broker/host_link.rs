//! The broker's end of the socket to the host process.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::ipc::fd_passing;
use crate::ipc::messages::{BrokerToHost, HostToBroker};

/// Longest message of the host process, in bytes.
const MESSAGE_BYTES_MAX: usize = 512;

/// The host process has ended, or has sent a message that does not decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HostGone;

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct HostLink {
    socket: OwnedFd,
    /// Ends of processes not yet sent: at most one for each process.
    gone: VecDeque<BrokerToHost>,
}

impl HostLink {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            gone: VecDeque::new(),
        }
    }

    /// Returns whether a message would be sent at once. If not, the socket becomes writable when it
    /// would.
    pub(crate) fn is_ready(&mut self) -> Result<bool, HostGone> {
        while let Some(message) = self.gone.front() {
            match fd_passing::pass(&self.socket, message, None) {
                Ok(()) => self.gone.pop_front(),
                Err(Errno::AGAIN) => return Ok(false),
                Err(_) => return Err(HostGone),
            };
        }
        let mut fds = [PollFd::new(&self.socket, PollFlags::OUT)];
        // The kernel reports the socket writable while three quarters of its buffer are free.
        let writable = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&Timespec::default())));
        Ok(writable == Ok(1) && fds[0].revents().contains(PollFlags::OUT))
    }

    /// Sends a message at once; to be called while the link is ready. The inner error concerns the
    /// descriptors of this message, and no other message.
    pub(crate) fn send(
        &mut self,
        message: &BrokerToHost,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<rustix::io::Result<()>, HostGone> {
        match fd_passing::pass_many(&self.socket, message, descriptors) {
            Err(Errno::PIPE | Errno::CONNRESET) => Err(HostGone),
            sent => Ok(sent),
        }
    }

    /// Reports the end of a process as soon as the socket takes it.
    pub(crate) fn send_gone(&mut self, app: u32, channel: u32) {
        self.gone.push_back(BrokerToHost::Gone { app, channel });
    }

    /// Receives the next message, if any, with the descriptor of [`HostToBroker::Application`].
    pub(crate) fn receive(&self) -> Result<Option<(HostToBroker, Option<OwnedFd>)>, HostGone> {
        let buffer = &mut [0; MESSAGE_BYTES_MAX];
        match fd_passing::receive_many("the host process", &self.socket, buffer) {
            Ok(received) => Ok(
                received.map(|(message, descriptors)| (message, descriptors.into_iter().next()))
            ),
            Err(failure) => {
                tracing::debug!("{failure}");
                Err(HostGone)
            }
        }
    }
}

impl AsFd for HostLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
