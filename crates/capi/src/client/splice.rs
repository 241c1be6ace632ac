//! Two connections that a NIC stack joins: what comes on one leaves on the other, and the program
//! has neither of the bytes nor of the work.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::io::{Errno, Result};
use socket_channel::{Command, Lock, SpliceStage, SpliceState};

use super::application::Client;
use super::attach::errno_of;
use super::process::errno;
use super::socket::Socket;

/// Bounds of a splice; beyond them both peers are reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpliceLimits {
    /// Nothing has passed for so long.
    pub idle: Option<Duration>,
    /// It was joined so long ago.
    pub life: Option<Duration>,
}

/// What has become of a socket's last splice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpliceStatus {
    /// How far it has come.
    pub stage: SpliceStage,
    /// Why it was not joined, or how it has ended; `Ok` if it was given back, or ended in order.
    pub outcome: Result<()>,
    /// Bytes that have come from the peer, and gone to the other socket's.
    pub in_bytes: u64,
    /// Bytes that have come from the other socket's peer, and gone to this one's.
    pub out_bytes: u64,
}

impl From<SpliceState> for SpliceStatus {
    fn from(state: SpliceState) -> SpliceStatus {
        let error = errno_of(state.errno.into());
        SpliceStatus {
            stage: state.stage,
            outcome: if state.errno == 0 { Ok(()) } else { Err(error) },
            in_bytes: state.in_bytes,
            out_bytes: state.out_bytes,
        }
    }
}

impl Client {
    /// Has a NIC stack join two connections. What is unread of either, and what was written to
    /// either, goes first. Until they come back or end, calls that move bytes, or end a direction,
    /// fail with EBUSY. [`Client::splice_status`] tells what becomes of it, and `EPOLLPRI` of both
    /// when there is something to tell.
    ///
    /// EINVAL if both are one; ENOTCONN if one is not open in both directions; EBUSY if one is part
    /// of a splice; EOPNOTSUPP if both ends of one are on this stack; ENODEV, ENOBUFS or
    /// EPROTONOSUPPORT as [`SpliceStatus::outcome`]. Nothing has changed then.
    pub fn splice(
        &self,
        first: BorrowedFd<'_>,
        second: BorrowedFd<'_>,
        limits: SpliceLimits,
    ) -> Result<()> {
        let (first, second) = (self.socket_of(first)?, self.socket_of(second)?);
        if first.id == second.id {
            return Err(Errno::INVAL);
        }
        for socket in [&first, &second] {
            socket.look_at_stream()?;
            if socket.has_note(ENDED) {
                return Err(Errno::NOTCONN);
            }
        }
        // In the same order in all threads.
        let is_in_order = first.id.index < second.id.index;
        let (low, high) = if is_in_order {
            (&first, &second)
        } else {
            (&second, &first)
        };
        with_both_locks(low, || {
            with_both_locks(high, || {
                let ask = |request| Command::Splice {
                    request,
                    first: first.id,
                    second: second.id,
                    idle_ms: ms(limits.idle),
                    life_ms: ms(limits.life),
                };
                first.process.link.ask(ask).map(drop)
            })
        })?;
        for socket in [&first, &second] {
            // Threads of this process that wait for it look again.
            socket.process.link.watchers.notify(socket.id.index);
        }
        first.process.link.nudge();
        Ok(())
    }

    /// Has both connections of a splice given back, of which this is one. They are the program's
    /// when the status says so. A splice of which a peer has closed stays. EINVAL if it is part of
    /// none.
    pub fn unsplice(&self, fd: BorrowedFd<'_>) -> Result<()> {
        let socket = self.socket_of(fd)?;
        socket.look_at_stream()?;
        let id = socket.id;
        let ask = |request| Command::Unsplice {
            request,
            socket: id,
        };
        socket.process.link.ask(ask).map(drop)
    }

    /// What has become of the last splice of a socket. `EPOLLPRI` is taken back by this.
    pub fn splice_status(&self, fd: BorrowedFd<'_>) -> Result<SpliceStatus> {
        let socket = self.socket_of(fd)?;
        socket.look_at_stream()?;
        let state = socket.record.take_splice().map_err(errno)?;
        Ok(state.into())
    }
}

/// A direction was shut down by this side.
const ENDED: u64 = super::socket::note::SHUT_READ | super::socket::note::SHUT_WRITE;

fn with_both_locks<T>(socket: &Socket<'_>, work: impl FnOnce() -> Result<T>) -> Result<T> {
    socket.with_lock(Lock::Rx, || socket.with_lock(Lock::Tx, work))??
}

/// A limit as commands have it: 0 is none.
fn ms(limit: Option<Duration>) -> u32 {
    let ms = limit.map_or(0, |limit| limit.as_millis().max(1));
    u32::try_from(ms).unwrap_or(u32::MAX)
}
