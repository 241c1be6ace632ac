//! How a NIC process comes to the host process: the supervisor passes on the socket over which the two say hello.
//!
//! The host process can neither start a NIC process nor connect to one, so this goes over its control socket: each
//! packet is a byte without a meaning, and one descriptor.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use contract::control::{HostSession, host_hello};
use host::{NicLoss, NicRefusal, NicSource};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::child::{retry, tell};
use crate::error::Failure;
use crate::messages::Message;

const ONE_DESCRIPTOR: usize = rustix::cmsg_space!(ScmRights(1));

/// In the supervisor: passes `nic` to the host process at the other end of `host`.
pub(crate) fn pass(host: &OwnedFd, nic: &OwnedFd) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); ONE_DESCRIPTOR];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [nic.as_fd()];
    let pushed = ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    debug_assert!(pushed, "there is space for one");
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    retry(|| sendmsg(host, &[IoSlice::new(&[0])], &mut ancillary, flags))?;
    Ok(())
}

/// In the host process: the supervisor, who brings NIC processes.
#[derive(Debug)]
pub(crate) struct Supervisor {
    control: OwnedFd,
    /// The epoch before the first.
    base: u64,
    /// NIC processes that have come.
    come: u64,
    /// Which of them is used.
    used: u64,
}

impl Supervisor {
    /// The supervisor behind a control socket; epochs are counted from `base`.
    pub(crate) fn new(control: OwnedFd, base: u64) -> Self {
        Self {
            control,
            base,
            come: 0,
            used: 0,
        }
    }

    /// Waits for the first NIC process; `None` if `stop` becomes readable before.
    pub(crate) fn first(&mut self, stop: BorrowedFd<'_>) -> Result<Option<HostSession>, Failure> {
        loop {
            let mut fds = [
                PollFd::new(&self.control, PollFlags::IN),
                PollFd::from_borrowed_fd(stop, PollFlags::IN),
            ];
            retry(|| poll(&mut fds, None))
                .map_err(|errno| Failure::broken("waiting for the NIC process", errno))?;
            if !fds[1].revents().is_empty() {
                return Ok(None);
            }
            if let Some(socket) = self.receive()? {
                let session = self.meet(socket)?;
                self.used = self.come;
                return Ok(Some(session));
            }
        }
    }

    /// The socket of a NIC process, if one has come.
    fn receive(&mut self) -> Result<Option<OwnedFd>, Failure> {
        let mut space = [MaybeUninit::uninit(); ONE_DESCRIPTOR];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = retry(|| {
            recvmsg(
                &self.control,
                &mut [IoSliceMut::new(&mut byte)],
                &mut ancillary,
                flags,
            )
        });
        let what = "hearing of NIC processes";
        match received {
            Ok(received) if received.bytes == 0 => {
                Err(Failure::broken(what, "the supervisor is gone"))
            }
            Ok(_) => {
                self.come += 1;
                Ok(ancillary.drain().find_map(|message| match message {
                    RecvAncillaryMessage::ScmRights(mut passed) => passed.next(),
                    _ => None,
                }))
            }
            Err(Errno::AGAIN) => Ok(None),
            Err(errno) => Err(Failure::broken(what, errno)),
        }
    }

    /// Says hello. The supervisor has looked at the other side's, so that this does not wait.
    fn meet(&mut self, socket: OwnedFd) -> Result<HostSession, Failure> {
        let epoch = self.base.wrapping_add(self.come);
        host_hello(socket, epoch).map_err(|error| Failure::broken("meeting the NIC process", error))
    }
}

impl NicSource for Supervisor {
    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    fn take(&mut self) -> Option<HostSession> {
        let met = match self.receive() {
            Ok(socket) => self.meet(socket?),
            Err(failure) => Err(failure),
        };
        met.inspect_err(|failure| report(&Message::NicRefused(self.come, failure.to_string())))
            .ok()
    }

    fn on_joined(&mut self) {
        self.used = self.come;
        report(&Message::NicJoined(self.used));
    }

    fn on_refused(&mut self, refusal: NicRefusal) {
        report(&Message::NicRefused(self.come, refusal.to_string()));
    }

    fn on_lost(&mut self, loss: NicLoss) {
        report(&Message::NicLost(self.used, loss.to_string()));
    }
}

/// A supervisor that does not hear is gone, and this process will be, too.
fn report(message: &Message) {
    if let Err(failure) = tell(message) {
        tracing::error!("{failure}");
    }
}
