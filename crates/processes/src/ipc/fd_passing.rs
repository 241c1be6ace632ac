//! Messages between processes over a SOCK_SEQPACKET socket: one packet each, in JSON, with
//! descriptors (unix(7), SCM_RIGHTS).

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use failure::Failure;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Most descriptors in a packet.
const DESCRIPTORS_MAX: usize = 4;

/// Most descriptors in a packet of [`pass_many`].
pub const MANY_MAX: usize = 64;

const ANCILLARY_BYTES: usize = rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX));

const MANY_BYTES: usize = rustix::cmsg_space!(ScmRights(MANY_MAX));

/// Name of the sender in failures.
const SUPERVISOR: &str = "the supervisor";

/// Sends a message, with a descriptor if there is one. Fails with EAGAIN instead of blocking.
pub fn pass(
    socket: &OwnedFd,
    message: &impl Serialize,
    descriptor: Option<&OwnedFd>,
) -> rustix::io::Result<()> {
    let descriptor = descriptor.map(AsFd::as_fd);
    pass_all(socket, message, descriptor.as_slice())
}

/// Sends a message with several descriptors; otherwise like [`pass`].
pub fn pass_all(
    socket: &OwnedFd,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> rustix::io::Result<()> {
    let space = &mut [MaybeUninit::uninit(); ANCILLARY_BYTES];
    pass_with(socket, message, descriptors, space)
}

/// Sends a message with up to [`MANY_MAX`] descriptors; fails with EINVAL if there are more.
pub fn pass_many(
    socket: &OwnedFd,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> rustix::io::Result<()> {
    // The space is rounded up.
    if descriptors.len() > MANY_MAX {
        return Err(Errno::INVAL);
    }
    let space = &mut [MaybeUninit::uninit(); MANY_BYTES];
    pass_with(socket, message, descriptors, space)
}

fn pass_with(
    socket: &OwnedFd,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
    space: &mut [MaybeUninit<u8>],
) -> rustix::io::Result<()> {
    let bytes = serde_json::to_vec(message).map_err(|_| Errno::INVAL)?;
    let mut ancillary = SendAncillaryBuffer::new(space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::io::retry_on_intr(|| sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, flags))?;
    Ok(())
}

/// Receives the next message of the supervisor behind `control`, if any, with its descriptor, which
/// the kernel drops if it would exceed the process's limit. `buffer` is as long as the longest
/// message.
pub fn receive<M: DeserializeOwned>(
    control: &OwnedFd,
    buffer: &mut [u8],
) -> Result<Option<(M, Option<OwnedFd>)>, Failure> {
    let received = receive_all(control, buffer)?;
    Ok(received.map(|(message, descriptors)| (message, descriptors.into_iter().next())))
}

/// Receives a message with all its descriptors; otherwise like [`receive`].
pub fn receive_all<M: DeserializeOwned>(
    control: &OwnedFd,
    buffer: &mut [u8],
) -> Result<Option<(M, Vec<OwnedFd>)>, Failure> {
    let space = &mut [MaybeUninit::uninit(); ANCILLARY_BYTES];
    receive_with(SUPERVISOR, control, buffer, space)
}

/// Receives the next message of `peer`, a name for failures, with up to [`MANY_MAX`] descriptors.
pub fn receive_many<M: DeserializeOwned>(
    peer: &str,
    socket: &OwnedFd,
    buffer: &mut [u8],
) -> Result<Option<(M, Vec<OwnedFd>)>, Failure> {
    let space = &mut [MaybeUninit::uninit(); MANY_BYTES];
    receive_with(peer, socket, buffer, space)
}

fn receive_with<M: DeserializeOwned>(
    peer: &str,
    socket: &OwnedFd,
    buffer: &mut [u8],
    space: &mut [MaybeUninit<u8>],
) -> Result<Option<(M, Vec<OwnedFd>)>, Failure> {
    let broken =
        |why: &dyn std::fmt::Display| Failure::broken(format!("receiving from {peer}"), why);
    let mut ancillary = RecvAncillaryBuffer::new(space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = rustix::io::retry_on_intr(|| {
        let pieces = &mut [IoSliceMut::new(buffer)];
        recvmsg(socket, pieces, &mut ancillary, flags)
    });
    let bytes = match received {
        Ok(received) if received.bytes == 0 => return Err(broken(&format!("{peer} is gone"))),
        Ok(received) => received.bytes,
        Err(Errno::AGAIN) => return Ok(None),
        Err(errno) => return Err(broken(&errno)),
    };
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            descriptors.extend(passed);
        }
    }
    let message = serde_json::from_slice(&buffer[..bytes])
        .map_err(|error| broken(&format!("a message that is none: {error}")))?;
    Ok(Some((message, descriptors)))
}

/// Returns whether the other end of a terminal or a socket is gone.
pub fn has_hung_up(descriptor: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(descriptor, PollFlags::empty())];
    let polled = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&Timespec::default())));
    polled.is_ok() && fds[0].revents().contains(PollFlags::HUP)
}

#[cfg(test)]
mod tests {
    use netsetup::seqpacket;

    use super::*;

    #[test]
    fn a_message_crosses_with_its_descriptors() {
        let (own, other) = seqpacket::pair().unwrap();
        let descriptors = [own.as_fd(), other.as_fd()];
        pass_all(&own, &"both", &descriptors).unwrap();
        pass(&own, &7u32, None).unwrap();
        let mut buffer = [0; 100];
        let (message, descriptors) = receive_all::<String>(&other, &mut buffer).unwrap().unwrap();
        assert_eq!((message.as_str(), descriptors.len()), ("both", 2));
        let (number, none) = receive::<u32>(&other, &mut buffer).unwrap().unwrap();
        assert_eq!((number, none.is_none()), (7, true));
        assert!(receive::<u32>(&other, &mut buffer).unwrap().is_none());
    }

    #[test]
    fn many_descriptors_cross_in_order_and_no_more_than_there_is_room_for() {
        let (own, other) = seqpacket::pair().unwrap();
        let mut made: Vec<_> = (0..MANY_MAX + 1)
            .map(|_| seqpacket::pair().unwrap())
            .collect();
        let passed: Vec<_> = made.iter().map(|(one, _)| one.as_fd()).collect();
        assert_eq!(pass_many(&own, &1, &passed), Err(Errno::INVAL));
        pass_many(&own, &2, &passed[..MANY_MAX]).unwrap();
        let buffer = &mut [0; 16];
        let received = receive_many::<u32>("a peer", &other, buffer).unwrap();
        let (message, descriptors) = received.unwrap();
        assert_eq!((message, descriptors.len()), (2, MANY_MAX));
        for (number, descriptor) in descriptors.iter().enumerate() {
            let text = [number as u8];
            rustix::io::write(descriptor, &text).unwrap();
            let mut read = [0];
            rustix::io::read(&made.remove(0).1, &mut read).unwrap();
            assert_eq!(read, text);
        }
        drop(own);
        let failure = receive_many::<u32>("a peer", &other, buffer).unwrap_err();
        assert!(failure.to_string().contains("a peer is gone"), "{failure}");
    }

    #[test]
    fn what_is_no_message_is_an_error() {
        let (own, other) = seqpacket::pair().unwrap();
        pass(&own, &"text", None).unwrap();
        assert!(receive::<u32>(&other, &mut [0; 100]).is_err());
        drop(own);
        let failure = receive::<u32>(&other, &mut [0; 100]).unwrap_err();
        assert!(failure.to_string().contains("is gone"), "{failure}");
    }
}
