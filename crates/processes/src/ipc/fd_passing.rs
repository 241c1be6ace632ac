//! Messages between processes over a SOCK_SEQPACKET socket: one packet each, in JSON, with
//! descriptors beside it (unix(7), SCM_RIGHTS).

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use failure::Failure;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Descriptors of a packet.
const DESCRIPTORS_MAX: usize = 2;

const ANCILLARY_BYTES: usize = rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX));

/// What failures are about.
const WHAT: &str = "receiving from the supervisor";

/// Sends a message, and a descriptor if there is one. Fails with EAGAIN rather than wait.
pub fn pass(
    socket: &OwnedFd,
    message: &impl Serialize,
    descriptor: Option<&OwnedFd>,
) -> rustix::io::Result<()> {
    let descriptor = descriptor.map(AsFd::as_fd);
    pass_all(socket, message, descriptor.as_slice())
}

/// The same with several descriptors.
pub fn pass_all(
    socket: &OwnedFd,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> rustix::io::Result<()> {
    let bytes = serde_json::to_vec(message).map_err(|_| Errno::INVAL)?;
    let mut space = [MaybeUninit::uninit(); ANCILLARY_BYTES];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        let pushed = ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
        debug_assert!(pushed, "there is space for them");
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::io::retry_on_intr(|| sendmsg(socket, &[IoSlice::new(&bytes)], &mut ancillary, flags))?;
    Ok(())
}

/// The next message of the supervisor behind `control`, if one is there, with its descriptor: the
/// kernel drops a descriptor for which the process has no room. `buffer` is as long as the longest
/// message.
pub fn receive<M: DeserializeOwned>(
    control: &OwnedFd,
    buffer: &mut [u8],
) -> Result<Option<(M, Option<OwnedFd>)>, Failure> {
    let received = receive_all(control, buffer)?;
    Ok(received.map(|(message, descriptors)| (message, descriptors.into_iter().next())))
}

/// The same with all descriptors.
pub fn receive_all<M: DeserializeOwned>(
    control: &OwnedFd,
    buffer: &mut [u8],
) -> Result<Option<(M, Vec<OwnedFd>)>, Failure> {
    let mut space = [MaybeUninit::uninit(); ANCILLARY_BYTES];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = rustix::io::retry_on_intr(|| {
        let pieces = &mut [IoSliceMut::new(buffer)];
        recvmsg(control, pieces, &mut ancillary, flags)
    });
    let bytes = match received {
        Ok(received) if received.bytes == 0 => {
            return Err(Failure::broken(WHAT, "the supervisor is gone"));
        }
        Ok(received) => received.bytes,
        Err(Errno::AGAIN) => return Ok(None),
        Err(errno) => return Err(Failure::broken(WHAT, errno)),
    };
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            descriptors.extend(passed);
        }
    }
    let message = serde_json::from_slice(&buffer[..bytes])
        .map_err(|error| Failure::broken(WHAT, format!("a message that is none: {error}")))?;
    Ok(Some((message, descriptors)))
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
    fn what_is_no_message_is_an_error() {
        let (own, other) = seqpacket::pair().unwrap();
        pass(&own, &"text", None).unwrap();
        assert!(receive::<u32>(&other, &mut [0; 100]).is_err());
        drop(own);
        let failure = receive::<u32>(&other, &mut [0; 100]).unwrap_err();
        assert!(failure.to_string().contains("is gone"), "{failure}");
    }
}
