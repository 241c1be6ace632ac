//! Two connections that a NIC stack joins: what comes on one leaves on the other, and the program
//! has neither of the bytes nor of the work.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::io::{Errno, Result};
use socket_channel::{Command, Flags, Lock, SpliceStage, SpliceState};

use super::application::Client;
use super::attach::errno_of;
use super::process::errno;
use super::socket::{Socket, note};
use super::tally::{self, Counted};

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
        let sockets = [self.socket_of(first)?, self.socket_of(second)?];
        join(&sockets, limits, None).map(drop)
    }

    /// The same between connections that the program copies between, as if it went on copying: what
    /// passes makes a socket readable, until [`Client::take_spliced`] takes note of it. Calls that
    /// receive pass over it, and find nothing; calls that send have the connections given back, and
    /// wait for that, or fail with EAGAIN.
    ///
    /// Only if it has received at least `bytes_min` bytes of the two, has sent all of them on the
    /// other and nothing else, and `is_wanted`, which gets the local addresses; and once. True if
    /// so. The errors of [`Client::splice`].
    pub fn splice_copied(
        &self,
        first: BorrowedFd<'_>,
        second: BorrowedFd<'_>,
        bytes_min: u64,
        is_wanted: impl FnOnce([SocketAddr; 2]) -> bool,
    ) -> Result<bool> {
        let sockets = [self.socket_of(first)?, self.socket_of(second)?];
        let is_tried = sockets.iter().any(|it| it.has_note(note::SPLICE_TRIED));
        if is_tried || !has_copied(&sockets, bytes_min) {
            return Ok(false);
        }
        let addresses = [self.local_address(first)?, self.local_address(second)?];
        if !is_wanted(addresses) {
            for socket in &sockets {
                socket.set_note(note::SPLICE_TRIED, true);
            }
            return Ok(false);
        }
        join(&sockets, SpliceLimits::default(), Some(bytes_min))
    }

    /// Takes note of bytes that have passed in a splice of [`Client::splice_copied`], of so many at
    /// most; returns of how many: 0 if there is nothing new. `None` if the socket is none of such a
    /// splice, or not any more, and all that has passed is taken note of.
    pub fn take_spliced(&self, fd: BorrowedFd<'_>, bytes_max: usize) -> Result<Option<usize>> {
        let socket = self.socket_of(fd)?;
        let record = socket.record;
        if !record.takes_note_of_splice() {
            return Ok(None);
        }
        socket.with_lock(Lock::Rx, || {
            // Before the bytes, so that an end that is seen now is behind all of them.
            let flags = socket.look()?.flags;
            let bytes = record.take_spliced(bytes_max as u64) as usize;
            tally::count(Counted::Passed, bytes);
            Ok((bytes > 0 || is_spliced(flags)).then_some(bytes))
        })?
    }

    /// Has both connections of a splice given back, of which this is one. They are the program's
    /// when the status says so. A splice of which a peer has closed stays. EINVAL if it is part of
    /// none.
    pub fn unsplice(&self, fd: BorrowedFd<'_>) -> Result<()> {
        let socket = self.socket_of(fd)?;
        socket.look_at_stream()?;
        ask_back(&socket)
    }

    /// Has both connections of a splice of [`Client::splice_copied`] given back, if they are not on
    /// their way.
    pub fn give_back(&self, fd: BorrowedFd<'_>) -> Result<()> {
        give_back_to_send(&self.socket_of(fd)?).map(drop)
    }

    /// What has become of the last splice of a socket. `EPOLLPRI` is taken back by this.
    pub fn splice_status(&self, fd: BorrowedFd<'_>) -> Result<SpliceStatus> {
        let socket = self.socket_of(fd)?;
        socket.look_at_stream()?;
        let state = socket.record.take_splice().map_err(errno)?;
        Ok(state.into())
    }
}

/// Asks for a splice. With `copied_bytes_min`, of connections between which the program has copied
/// so much, once no thread moves bytes of either: false if that is not so, or was tried.
fn join(
    sockets: &[Socket<'_>; 2],
    limits: SpliceLimits,
    copied_bytes_min: Option<u64>,
) -> Result<bool> {
    let [first, second] = sockets;
    if first.id == second.id {
        return Err(Errno::INVAL);
    }
    for socket in sockets {
        socket.look_at_stream()?;
        if socket.has_note(ENDED) {
            return Err(Errno::NOTCONN);
        }
    }
    // In the same order in all threads.
    let is_in_order = first.id.index < second.id.index;
    let (low, high) = if is_in_order {
        (first, second)
    } else {
        (second, first)
    };
    let has_begun = with_both_locks(low, || {
        with_both_locks(high, || match copied_bytes_min {
            None => ask(sockets, limits).map(|()| true),
            Some(bytes_min) => ask_of_copied(sockets, limits, bytes_min),
        })
    })?;
    for socket in sockets {
        // Threads of this process that wait for it look again.
        socket.process.link.watchers.notify(socket.id.index);
    }
    first.process.link.nudge();
    Ok(has_begun)
}

fn ask([first, second]: &[Socket<'_>; 2], limits: SpliceLimits) -> Result<()> {
    let ask = |request| Command::Splice {
        request,
        first: first.id,
        second: second.id,
        idle_ms: ms(limits.idle),
        life_ms: ms(limits.life),
    };
    first.process.link.ask(ask).map(drop)
}

/// Has both connections of a splice given back, of which this is one.
fn ask_back(socket: &Socket<'_>) -> Result<()> {
    let id = socket.id;
    let ask = |request| Command::Unsplice {
        request,
        socket: id,
    };
    socket.process.link.ask(ask).map(drop)
}

/// The caller has all locks of both: no other thread or process asks for the same.
fn ask_of_copied(sockets: &[Socket<'_>; 2], limits: SpliceLimits, bytes_min: u64) -> Result<bool> {
    let is_tried = sockets.iter().any(|it| it.has_note(note::SPLICE_TRIED));
    if is_tried || !has_copied(sockets, bytes_min) {
        return Ok(false);
    }
    for socket in sockets {
        socket.set_note(note::SPLICE_TRIED, true);
        socket.record.take_note_of_splice(true);
    }
    let asked = ask(sockets, limits);
    if asked.is_err() {
        for socket in sockets {
            // Where no answer came, it may have begun all the same.
            let is_spliced = socket.look().is_ok_and(|look| is_spliced(look.flags));
            socket.record.take_note_of_splice(is_spliced);
        }
    }
    asked.map(|()| true)
}

/// The program has received so many bytes of two connections at least, and sent as many on the
/// other one of each.
fn has_copied([first, second]: &[Socket<'_>; 2], bytes_min: u64) -> bool {
    let mut bytes = 0;
    for (from, to) in [(first, second), (second, first)] {
        let (received, sent) = (from.record.rx_head(), to.record.tx_tail());
        if received != sent || to.record.file_queued_bytes() > 0 {
            return false;
        }
        bytes += received;
    }
    bytes >= bytes_min
}

/// A NIC stack moves the bytes of a socket, or is about to.
pub(super) fn is_spliced(flags: Flags) -> bool {
    flags.has(Flags::SPLICED) && !flags.is_over()
}

/// Passes over reports of what has passed, of which a program that receives takes no note: true if
/// a NIC stack moves the bytes of the socket, in a splice of [`Client::splice_copied`].
pub(super) fn discard_reports(socket: &Socket<'_>) -> Result<bool> {
    let record = socket.record;
    if !record.takes_note_of_splice() {
        return Ok(false);
    }
    socket.with_lock(Lock::Rx, || {
        record.take_spliced(u64::MAX);
        Ok(is_spliced(socket.look()?.flags))
    })?
}

/// The program sends bytes of its own on a socket of a splice of [`Client::splice_copied`]: the
/// connections are to come back, for which the host stack is asked once. False if it is in none.
pub(super) fn give_back_to_send(socket: &Socket<'_>) -> Result<bool> {
    if !socket.record.takes_note_of_splice() {
        return Ok(false);
    }
    if is_spliced(socket.look()?.flags) && socket.record.want_back() {
        match ask_back(socket) {
            // It has come back meanwhile.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(true)
}

/// A direction was shut down by this side.
const ENDED: u64 = note::SHUT_READ | note::SHUT_WRITE;

fn with_both_locks<T>(socket: &Socket<'_>, work: impl FnOnce() -> Result<T>) -> Result<T> {
    socket.with_lock(Lock::Rx, || socket.with_lock(Lock::Tx, work))??
}

/// A limit as commands have it: 0 is none.
fn ms(limit: Option<Duration>) -> u32 {
    let ms = limit.map_or(0, |limit| limit.as_millis().max(1));
    u32::try_from(ms).unwrap_or(u32::MAX)
}
