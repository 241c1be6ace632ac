//! Sending on a packet socket.

use std::io::IoSlice;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use crate::SendError;

/// Sends the slices as one frame, without waiting for room.
pub(super) fn send(socket: &OwnedFd, slices: &[IoSlice<'_>]) -> Result<(), SendError> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    loop {
        let mut no_control = SendAncillaryBuffer::default();
        return match sendmsg(socket, slices, &mut no_control, flags) {
            Ok(_) => Ok(()),
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => Err(SendError::WouldBlock),
            // A queue on the way is full, or memory is short for a moment.
            Err(Errno::NOBUFS | Errno::NOMEM) => Err(SendError::Dropped),
            Err(error) => Err(SendError::Failed(error.into())),
        };
    }
}
