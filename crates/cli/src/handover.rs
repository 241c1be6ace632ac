//! How a NIC process comes to the host process: the supervisor passes on the socket over which the two say hello.
//!
//! The host process can neither start a NIC process nor connect to one, so this goes over its control socket: each
//! packet is a byte, which NIC stack it is, and one descriptor.

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

/// In the supervisor: passes the socket of NIC stack `number` to the host process at the other end of `host`.
pub(crate) fn pass(host: &OwnedFd, number: u8, nic: &OwnedFd) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); ONE_DESCRIPTOR];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [nic.as_fd()];
    let pushed = ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    debug_assert!(pushed, "there is space for one");
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    retry(|| sendmsg(host, &[IoSlice::new(&[number])], &mut ancillary, flags))?;
    Ok(())
}

/// In the host process: the supervisor, who brings NIC processes.
#[derive(Debug)]
pub(crate) struct Supervisor {
    control: OwnedFd,
    /// The epoch before the first.
    base: u64,
    /// How often each NIC stack has come.
    come: Vec<u64>,
    /// Which of those is used.
    used: Vec<u64>,
}

impl Supervisor {
    /// The supervisor behind a control socket, who brings so many NIC stacks; epochs are counted from `base`.
    pub(crate) fn new(control: OwnedFd, nics: usize, base: u64) -> Self {
        Self {
            control,
            base,
            come: vec![0; nics],
            used: vec![0; nics],
        }
    }

    /// Waits for a first NIC process, whichever that is; `None` if `stop` becomes readable before.
    pub(crate) fn first(
        &mut self,
        stop: BorrowedFd<'_>,
    ) -> Result<Option<(usize, HostSession)>, Failure> {
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
            if let Some((nic, socket)) = self.receive()? {
                let session = self.meet(socket)?;
                self.used[nic] = self.come[nic];
                return Ok(Some((nic, session)));
            }
        }
    }

    /// The socket of a NIC process, if one has come, and which NIC stack it is.
    fn receive(&mut self) -> Result<Option<(usize, OwnedFd)>, Failure> {
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
                let nic = usize::from(byte[0]);
                let Some(come) = self.come.get_mut(nic) else {
                    return Err(Failure::broken(what, format!("there is no number {nic}")));
                };
                *come += 1;
                let socket = ancillary.drain().find_map(|message| match message {
                    RecvAncillaryMessage::ScmRights(mut passed) => passed.next(),
                    _ => None,
                });
                Ok(socket.map(|socket| (nic, socket)))
            }
            Err(Errno::AGAIN) => Ok(None),
            Err(errno) => Err(Failure::broken(what, errno)),
        }
    }

    /// Says hello. The supervisor has looked at the other side's, so that this does not wait.
    fn meet(&mut self, socket: OwnedFd) -> Result<HostSession, Failure> {
        let come: u64 = self.come.iter().sum();
        let epoch = self.base.wrapping_add(come);
        host_hello(socket, epoch).map_err(|error| Failure::broken("meeting the NIC process", error))
    }
}

impl NicSource for Supervisor {
    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    fn take(&mut self) -> Option<(usize, HostSession)> {
        let (nic, socket) = self
            .receive()
            .inspect_err(|failure| tracing::error!("{failure}"))
            .ok()??;
        let met = self.meet(socket);
        let session = met.inspect_err(|failure| {
            report(&Message::NicRefused(
                nic,
                self.come[nic],
                failure.to_string(),
            ));
        });
        Some((nic, session.ok()?))
    }

    fn on_joined(&mut self, nic: usize) {
        self.used[nic] = self.come[nic];
        report(&Message::NicJoined(nic, self.used[nic]));
    }

    fn on_refused(&mut self, nic: usize, refusal: NicRefusal) {
        report(&Message::NicRefused(
            nic,
            self.come[nic],
            refusal.to_string(),
        ));
    }

    fn on_lost(&mut self, nic: usize, loss: NicLoss) {
        report(&Message::NicLost(nic, self.used[nic], loss.to_string()));
    }
}

/// A supervisor that does not hear is gone, and this process will be, too.
fn report(message: &Message) {
    if let Err(failure) = tell(message) {
        tracing::error!("{failure}");
    }
}
