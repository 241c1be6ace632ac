//! Lengths of queues: `FIONREAD`, `SIOCOUTQ` and `SIOCOUTQNSD` of tcp(7).

use std::os::fd::BorrowedFd;

use rustix::io::{Errno, Result};
use socket_channel::{Command, Flags};

use super::application::Client;
use super::link::Answer;

impl Client {
    /// Returns the number of bytes that can be read now, as `FIONREAD`. EINVAL for a listener.
    pub fn unread_bytes(&self, fd: BorrowedFd<'_>) -> Result<u64> {
        let look = self.socket_of(fd)?.look_at_stream()?;
        if look.flags.has(Flags::LISTENER) {
            return Err(Errno::INVAL);
        }
        Ok(look.waiting)
    }

    /// Returns the number of bytes of the stream, files included, that the peer has not
    /// acknowledged, as `SIOCOUTQ`. EINVAL for a listener.
    pub fn unacknowledged_bytes(&self, fd: BorrowedFd<'_>) -> Result<u64> {
        let socket = self.socket_of(fd)?;
        if socket.look_at_stream()?.flags.has(Flags::LISTENER) {
            return Err(Errno::INVAL);
        }
        let record = socket.record;
        let sent = record.tx_tail().saturating_add(record.file_queued_bytes());
        Ok(sent.saturating_sub(record.acked_bytes()))
    }

    /// Returns the number of bytes of the stream not sent yet, as `SIOCOUTQNSD`. EINVAL for a
    /// listener.
    pub fn unsent_bytes(&self, fd: BorrowedFd<'_>) -> Result<u64> {
        let left = self.unacknowledged_bytes(fd)?;
        let socket = self.socket_of(fd)?;
        let is_connected = socket.look()?.flags.has(Flags::CONNECTED);
        if left == 0 || !is_connected {
            return Ok(left);
        }
        let id = socket.id;
        let answer = socket.process.link.ask(|request| Command::GetInfo {
            request,
            socket: id,
        })?;
        let Answer::Info(info) = answer else {
            return Err(Errno::PROTO);
        };
        let record = socket.record;
        let queued = record.tx_tail().saturating_add(record.file_queued_bytes());
        let sent = info
            .bytes_sent
            .get()
            .saturating_sub(info.bytes_retrans.get());
        Ok(queued.saturating_sub(sent).min(left))
    }
}
