//! What is queued: `FIONREAD` and `SIOCOUTQ` of tcp(7).

use std::os::fd::BorrowedFd;

use rustix::io::{Errno, Result};
use socket_channel::Flags;

use super::application::Client;

impl Client {
    /// Bytes that can be read now, as `FIONREAD`. EINVAL for a listener.
    pub fn unread_bytes(&self, fd: BorrowedFd<'_>) -> Result<u64> {
        let look = self.socket_of(fd)?.look_at_stream()?;
        if look.flags.has(Flags::LISTENER) {
            return Err(Errno::INVAL);
        }
        Ok(look.waiting)
    }

    /// Bytes of the stream that the peer has not acknowledged, those of files included, as
    /// `SIOCOUTQ`. EINVAL for a listener.
    pub fn unacknowledged_bytes(&self, fd: BorrowedFd<'_>) -> Result<u64> {
        let socket = self.socket_of(fd)?;
        if socket.look_at_stream()?.flags.has(Flags::LISTENER) {
            return Err(Errno::INVAL);
        }
        let record = socket.record;
        let sent = record.tx_tail().saturating_add(record.file_queued_bytes());
        Ok(sent.saturating_sub(record.acked_bytes()))
    }
}
