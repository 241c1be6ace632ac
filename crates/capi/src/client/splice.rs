//! Two connections joined by a NIC stack: data from one leaves on the other, and the program
//! neither has the bytes nor does any work for them.

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

/// Limits of a splice; beyond either, both peers are reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpliceLimits {
    /// Longest time without data.
    pub idle: Option<Duration>,
    /// Longest life of the splice.
    pub life: Option<Duration>,
}

/// State of a socket's last splice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpliceStatus {
    /// Stage reached.
    pub stage: SpliceStage,
    /// Reason why the sockets were not joined, or of the end; `Ok` if they were returned on
    /// request, or ended in order.
    pub outcome: Result<()>,
    /// Bytes received from this socket's peer and sent to the other socket's.
    pub in_bytes: u64,
    /// Bytes received from the other socket's peer and sent to this socket's.
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
    /// Makes a NIC stack join two connections. Data unread on either, and data already written to
    /// either, goes first. Until the sockets come back or end, calls that move bytes, or end a
    /// direction, fail with EBUSY. Both sockets report `EPOLLPRI` when the stage changes;
    /// [`Client::splice_status`] returns it.
    ///
    /// EINVAL if both are one socket; ENOTCONN if one is not open in both directions; EBUSY if one
    /// is part of a splice; EOPNOTSUPP if both ends of one are on this stack; ENODEV, ENOBUFS or
    /// EPROTONOSUPPORT as [`SpliceStatus::outcome`]. After an error nothing has changed.
    pub fn splice(
        &self,
        first: BorrowedFd<'_>,
        second: BorrowedFd<'_>,
        limits: SpliceLimits,
    ) -> Result<()> {
        let sockets = [self.socket_of(first)?, self.socket_of(second)?];
        join(&sockets, limits, None).map(drop)
    }

    /// Joins connections between which the program copies, as if it went on copying: bytes that
    /// have passed make a socket readable until [`Client::take_spliced`] accounts for them. Calls
    /// that receive skip them, and find nothing; calls that send request the connections' return,
    /// and wait for it, or fail with EAGAIN.
    ///
    /// Joins once, and only if the program has received at least `bytes_min` bytes from the two,
    /// has sent exactly these to the other connection, and `is_wanted`, called with the local
    /// addresses, returns true. Returns whether it has joined them. The errors of
    /// [`Client::splice`].
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

    /// Accounts for up to `bytes_max` bytes that have passed in a splice of
    /// [`Client::splice_copied`]; returns their number, 0 if there are none yet. `None` if the
    /// socket is not, or no longer, part of such a splice, and all bytes are accounted for.
    pub fn take_spliced(&self, fd: BorrowedFd<'_>, bytes_max: usize) -> Result<Option<usize>> {
        let socket = self.socket_of(fd)?;
        let record = socket.record;
        if !record.takes_note_of_splice() {
            return Ok(None);
        }
        socket.with_lock(Lock::Rx, || {
            // Read before the bytes, so that no byte follows an end seen now.
            let flags = socket.look()?.flags;
            let bytes = record.take_spliced(bytes_max as u64) as usize;
            tally::count(Counted::Passed, bytes);
            Ok((bytes > 0 || is_spliced(flags)).then_some(bytes))
        })?
    }

    /// Returns both sockets of this one's splice to the program, which has them when the status
    /// reports that. A splice stays if a peer has closed. EINVAL if the socket is part of no
    /// splice.
    pub fn unsplice(&self, fd: BorrowedFd<'_>) -> Result<()> {
        let socket = self.socket_of(fd)?;
        socket.look_at_stream()?;
        ask_back(&socket)
    }

    /// Requests the return of both connections of a splice of [`Client::splice_copied`], unless it
    /// was requested before.
    pub fn give_back(&self, fd: BorrowedFd<'_>) -> Result<()> {
        give_back_to_send(&self.socket_of(fd)?).map(drop)
    }

    /// Returns the state of a socket's last splice, and clears `EPOLLPRI`.
    pub fn splice_status(&self, fd: BorrowedFd<'_>) -> Result<SpliceStatus> {
        let socket = self.socket_of(fd)?;
        socket.look_at_stream()?;
        let state = socket.record.take_splice().map_err(errno)?;
        Ok(state.into())
    }
}

/// Requests a splice. With `copied_bytes_min`, only between connections for which the program has
/// copied at least that number of bytes, checked while no thread moves bytes of either; false if it
/// has not, or a splice was tried before.
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
    // The order of locking is the same in all threads.
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
        // Waiting threads of this process look again.
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

/// Requests the return of both connections of this one's splice.
fn ask_back(socket: &Socket<'_>) -> Result<()> {
    let id = socket.id;
    let ask = |request| Command::Unsplice {
        request,
        socket: id,
    };
    socket.process.link.ask(ask).map(drop)
}

/// The caller has all locks of both sockets: no other thread or process can request the same.
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
            // If no answer came, the splice may still have begun.
            let is_spliced = socket.look().is_ok_and(|look| is_spliced(look.flags));
            socket.record.take_note_of_splice(is_spliced);
        }
    }
    asked.map(|()| true)
}

/// Reports whether the program has received at least `bytes_min` bytes from two connections, and
/// sent exactly these to the other one.
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

/// Reports whether a NIC stack moves the bytes of a socket, or is about to.
pub(super) fn is_spliced(flags: Flags) -> bool {
    flags.has(Flags::SPLICED) && !flags.is_over()
}

/// Skips reports of spliced bytes for which a receiving program does not account. Returns true if a
/// NIC stack moves the bytes of the socket, in a splice of [`Client::splice_copied`].
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

/// Requests the connections' return, once, when the program sends bytes of its own on a socket of a
/// splice of [`Client::splice_copied`]. False if the socket is in none.
pub(super) fn give_back_to_send(socket: &Socket<'_>) -> Result<bool> {
    if !socket.record.takes_note_of_splice() {
        return Ok(false);
    }
    if is_spliced(socket.look()?.flags) && socket.record.want_back() {
        match ask_back(socket) {
            // EINVAL: the connections have come back meanwhile.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(true)
}

/// Directions shut down by this side.
const ENDED: u64 = note::SHUT_READ | note::SHUT_WRITE;

fn with_both_locks<T>(socket: &Socket<'_>, work: impl FnOnce() -> Result<T>) -> Result<T> {
    socket.with_lock(Lock::Rx, || socket.with_lock(Lock::Tx, work))??
}

/// Returns a limit as in commands: 0 is none.
fn ms(limit: Option<Duration>) -> u32 {
    let ms = limit.map_or(0, |limit| limit.as_millis().max(1));
    u32::try_from(ms).unwrap_or(u32::MAX)
}
