//! Sending with completions, as with `MSG_ZEROCOPY` of the kernel.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::io::{Errno, Result};

use super::application::Client;
use super::blocking;
use super::sends::{Completion, Send};
use super::transfer::SendFlags;

impl Client {
    /// Sends bytes, as [`Client::send`]; [`Client::completions`] returns `cookie` when the peer has
    /// acknowledged the bytes taken. A send of no bytes has no completion. ENOBUFS if
    /// [`SENDS_MAX`](super::SENDS_MAX) completions of the socket have not been taken.
    pub fn send_zero_copy(
        &self,
        fd: BorrowedFd<'_>,
        buffers: &[IoSlice<'_>],
        flags: SendFlags,
        cookie: u64,
    ) -> Result<usize> {
        let socket = self.socket_of(fd)?;
        socket.look_at_stream()?;
        let sends = &socket.process.sends;
        sends.begin(socket.id)?;
        let record = socket.record;
        let disconnects = record.disconnects();
        let sent = self.send(fd, buffers, flags);
        let bytes = sent.unwrap_or(0);
        // Another thread may have sent since: then the completion comes with that thread's bytes,
        // never too early.
        let position = record.tx_tail().saturating_add(record.file_queued_bytes());
        let send = (bytes > 0).then_some(Send {
            cookie,
            position,
            disconnects,
        });
        sends.end(socket.id, send);
        // From now on the edge reports the completion. Waiters must be notified if it was due
        // before, or if this send has sent nothing and they may have nothing left to wait for.
        if bytes == 0 || sends.has_completed(record) {
            sends.note_change();
            socket.process.link.watchers.notify(socket.id.index);
            socket.process.link.nudge();
        }
        sent
    }

    /// Takes completions of this process's sends, in the order of the stream, and returns their
    /// number. If none is due, waits for one until `timeout` is over; returns 0 then, or if no send
    /// is outstanding. EINTR if a signal comes first.
    pub fn completions(
        &self,
        fd: BorrowedFd<'_>,
        completions: &mut [Completion],
        timeout: Option<Duration>,
    ) -> Result<usize> {
        let socket = self.socket_of(fd)?;
        if completions.is_empty() {
            return Err(Errno::INVAL);
        }
        let process = socket.process;
        let mut take = || {
            let is_attached = process.link.check().is_ok();
            process.sends.take(socket.record, is_attached, completions)
        };
        if let Some(count) = take() {
            return Ok(count);
        }
        if timeout == Some(Duration::ZERO) {
            return Ok(0);
        }
        let waited = blocking::wait(&socket, timeout, || Ok(take()));
        match waited {
            Ok(count) => Ok(count),
            Err(errno) => match take() {
                Some(count) if count > 0 => Ok(count),
                _ if errno == Errno::AGAIN => Ok(0),
                _ => Err(errno),
            },
        }
    }
}
