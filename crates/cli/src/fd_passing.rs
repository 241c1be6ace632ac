//! Descriptors that processes pass each other over a socket, each with a few bytes that say what it is.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use failure::Failure;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::child::retry;

const ONE_DESCRIPTOR: usize = rustix::cmsg_space!(ScmRights(1));

const HEARING: &str = "hearing of NIC processes";

/// Passes a descriptor, and the number that says what it is, to the process at the other end of `user`; or nothing but the
/// number, if there is no descriptor.
pub(crate) fn pass(user: &OwnedFd, number: u8, nic: Option<&OwnedFd>) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); ONE_DESCRIPTOR];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = nic.map(|nic| [nic.as_fd()]);
    if let Some(descriptors) = &descriptors {
        let pushed = ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
        debug_assert!(pushed, "there is space for one");
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    retry(|| sendmsg(user, &[IoSlice::new(&[number])], &mut ancillary, flags))?;
    Ok(())
}

/// What the supervisor at the other end of `control` has passed, if anything: the number of a NIC process, and its socket,
/// if that has arrived.
pub(crate) fn receive(control: &OwnedFd) -> Result<Option<(u8, Option<OwnedFd>)>, Failure> {
    let mut byte = [0];
    let received = receive_packet(control, &mut byte)?;
    Ok(received.map(|(_, descriptor)| (byte[0], descriptor)))
}

/// The same of a packet of any length: how many bytes of it are in `buffer` now.
pub(crate) fn receive_packet(
    control: &OwnedFd,
    buffer: &mut [u8],
) -> Result<Option<(usize, Option<OwnedFd>)>, Failure> {
    let mut space = [MaybeUninit::uninit(); ONE_DESCRIPTOR];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = retry(|| {
        recvmsg(
            control,
            &mut [IoSliceMut::new(buffer)],
            &mut ancillary,
            flags,
        )
    });
    match received {
        Ok(received) if received.bytes == 0 => {
            Err(Failure::broken(HEARING, "the supervisor is gone"))
        }
        Ok(received) => {
            let socket = ancillary.drain().find_map(|message| match message {
                RecvAncillaryMessage::ScmRights(mut passed) => passed.next(),
                _ => None,
            });
            Ok(Some((received.bytes, socket)))
        }
        Err(Errno::AGAIN) => Ok(None),
        Err(errno) => Err(Failure::broken(HEARING, errno)),
    }
}
