//! Bytes: recv(2) and send(2) in all their forms.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;

use rustix::io::{Errno, Result};
use socket_channel::fifo_area::FIFO_BYTES_USUAL;
use socket_channel::{Command, Flags, Lock, Look, Unusable};

use super::application::Client;
use super::blocking::{self, KeptOpen};
use super::modes::Modes;
use super::process::errno;
use super::socket::{Direction, Socket, note};
use super::splice;
use super::tally::{self, Counted};

/// Most bytes that a peek into several buffers copies.
const PEEK_BYTES_MAX: usize = 1 << 20;

/// Flags of recv(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveFlags {
    /// `MSG_DONTWAIT`: this call does not block.
    pub dont_wait: bool,
    /// `MSG_PEEK`: the bytes stay in the FIFO.
    pub peek: bool,
    /// `MSG_WAITALL`: waits until the buffers are full.
    pub wait_all: bool,
    /// `MSG_TRUNC`: the bytes are discarded, and counted.
    pub discard: bool,
}

/// Flags of send(2). `MSG_NOSIGNAL` belongs to the C interface: no signal is raised here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendFlags {
    /// `MSG_DONTWAIT`: this call does not block.
    pub dont_wait: bool,
    /// `MSG_MORE`: more follows, so a partial segment may wait.
    pub more: bool,
}

impl Client {
    /// Receives bytes into buffers, in order; returns their number, 0 at the end of the stream.
    /// EAGAIN, ENOTCONN, EINTR, and the error of the connection, once: ECONNRESET, ETIMEDOUT,
    /// EHOSTUNREACH. A call that has received bytes returns their number, and the next call the
    /// error.
    pub fn receive(
        &self,
        fd: BorrowedFd<'_>,
        buffers: &mut [IoSliceMut<'_>],
        flags: ReceiveFlags,
    ) -> Result<usize> {
        self.receive_after(fd, buffers, flags, 0)
    }

    /// Like [`Client::receive`], as a part of a call that has received `before` bytes already. If
    /// there are any, the connection's error is left to the next call, and this one fails with
    /// ECONNRESET.
    pub fn receive_after(
        &self,
        fd: BorrowedFd<'_>,
        buffers: &mut [IoSliceMut<'_>],
        flags: ReceiveFlags,
        before: usize,
    ) -> Result<usize> {
        let socket = self.socket_of(fd)?;
        let mut progress = Progress::after(before);
        loop {
            match receive_once(&socket, buffers, &mut progress, flags) {
                Ok(true) => return Ok(progress.done),
                Ok(false) => {}
                Err(errno) => return partial(progress.done, errno),
            }
        }
    }

    /// Passes received bytes, at most `bytes_max`, to `take`, which returns the number that it has
    /// taken; the rest stays. No other thread receives meanwhile. Returns 0 at the end of the
    /// stream; `None` if a NIC stack moves the bytes, which [`Client::take_spliced`] reports. The
    /// errors of [`Client::receive`].
    pub fn receive_into(
        &self,
        fd: BorrowedFd<'_>,
        bytes_max: usize,
        dont_wait: bool,
        mut take: impl FnMut(&[u8]) -> usize,
    ) -> Result<Option<usize>> {
        let socket = self.socket_of(fd)?;
        let record = socket.record;
        let mut buffer = vec![0; bytes_max];
        loop {
            let look = socket.look_at_stream()?;
            if look.flags.has(Flags::LISTENER) {
                return Err(Errno::NOTCONN);
            }
            if look.spliced_bytes > 0 {
                return Ok(None);
            }
            ask_for_held(&socket, bytes_max)?;
            let moved = socket.with_lock(Lock::Rx, || {
                let found = record.peek(&mut buffer).map_err(errno)?;
                let taken = if found > 0 { take(&buffer[..found]) } else { 0 };
                record.discard(taken).map_err(errno)?;
                Ok((found, taken, taken > 0 && record.rx_must_kick(taken)))
            })?;
            match moved {
                Ok((1.., taken, must_kick)) => {
                    tally::count(Counted::Received, taken);
                    if must_kick {
                        socket.tell_of_room()?;
                    }
                    return Ok(Some(taken));
                }
                Ok(_) => {}
                Err(Errno::BUSY) if record.takes_note_of_splice() => return Ok(None),
                // A socket that is not connected has no FIFO.
                Err(Errno::IO) if !socket.look()?.flags.has(Flags::CONNECTED) => {}
                Err(errno) => return Err(errno),
            }
            if end_of_stream(&socket, look)? {
                return Ok(Some(0));
            }
            if dont_wait || socket.is_nonblocking()? {
                return Err(Errno::AGAIN);
            }
            blocking::wait(&socket, socket.timeout(Direction::Receive), || {
                let look = socket.look()?;
                let is_ready = may_receive(&socket, look, 1)? || splice::is_spliced(look.flags);
                Ok(is_ready.then_some(()))
            })?;
            if splice::is_spliced(socket.look()?.flags) {
                return Ok(None);
            }
        }
    }

    /// Sends bytes of buffers, in order; returns their number. A blocking call returns when all are
    /// in the FIFO; without AsyncSend, when TCP has taken them from it, or a signal comes. Without
    /// AsyncSend, a non-blocking call returns when the host stack has taken the bytes for which TCP
    /// has room.
    ///
    /// EAGAIN, EINTR; EPIPE if this side was shut down, or there is no connection; and the error of
    /// the connection, once. A call that has sent bytes returns their number, and the next call the
    /// error.
    pub fn send(
        &self,
        fd: BorrowedFd<'_>,
        buffers: &[IoSlice<'_>],
        flags: SendFlags,
    ) -> Result<usize> {
        self.send_after(fd, buffers, flags, 0)
    }

    /// Like [`Client::send`], as a part of a call that has sent `before` bytes already. If there
    /// are any, the connection's error is left to the next call, and this one fails with EPIPE.
    pub fn send_after(
        &self,
        fd: BorrowedFd<'_>,
        buffers: &[IoSlice<'_>],
        flags: SendFlags,
        before: usize,
    ) -> Result<usize> {
        let socket = self.socket_of(fd)?;
        let mut progress = Progress::after(before);
        loop {
            match send_once(&socket, buffers, &mut progress, flags) {
                Ok(true) => return Ok(progress.done),
                Ok(false) => {}
                Err(errno) => return partial(progress.done, errno),
            }
        }
    }
}

/// The progress of a call that sends or receives.
#[derive(Debug)]
struct Progress {
    /// Bytes in earlier parts of the call.
    before: usize,
    done: usize,
    /// The call has waited: another thread may have closed its descriptor since.
    has_waited: bool,
    /// The call has asked the host stack for room.
    has_asked: bool,
    kept: KeptOpen,
}

impl Progress {
    fn after(before: usize) -> Progress {
        Progress {
            before,
            done: 0,
            has_waited: false,
            has_asked: false,
            kept: None,
        }
    }

    fn is_any(&self) -> bool {
        self.before > 0 || self.done > 0
    }
}

impl Client {
    /// Returns the error of a connection, if it is new, and counts it as reported.
    pub fn take_error(&self, fd: BorrowedFd<'_>) -> Result<()> {
        let socket = self.socket_of(fd)?;
        if socket.look_at_stream()?.error_is_new {
            socket.take_error()?;
        }
        Ok(())
    }

    /// Returns the number of bytes that a non-blocking call would take now. The errors of
    /// [`Client::send`].
    pub fn send_room_bytes(&self, fd: BorrowedFd<'_>) -> Result<usize> {
        let socket = self.socket_of(fd)?;
        may_send(&socket)?;
        let mut room = socket.record.tx_room_bytes();
        while room == Err(Unusable::NoFifo) {
            ask_for_fifo(&socket, 1)?;
            room = socket.record.tx_room_bytes();
        }
        match room.map_err(errno) {
            Err(Errno::BUSY) if splice::give_back_to_send(&socket)? => Ok(0),
            room => room,
        }
    }
}

/// Receives available bytes, and waits if they are too few; true if the call is complete.
fn receive_once(
    socket: &Socket<'_>,
    buffers: &mut [IoSliceMut<'_>],
    progress: &mut Progress,
    flags: ReceiveFlags,
) -> Result<bool> {
    let wanted: usize = buffers.iter().map(|buffer| buffer.len()).sum();
    // Read before the bytes, so that no byte follows an end seen now.
    let look = socket.look_at_stream()?;
    ask_for_held(socket, wanted - progress.done)?;
    // A listener's accept queue is in the place of its bytes.
    let is_elsewhere = splice::discard_reports(socket)?;
    if !look.flags.has(Flags::LISTENER) && !is_elsewhere {
        match receive_some(socket, buffers, progress.done, flags) {
            // A peek restarts at the first byte.
            Ok(received) if flags.peek => progress.done = received,
            Ok(received) => progress.done += received,
            Err(Errno::BUSY) if socket.record.takes_note_of_splice() => {}
            Err(errno) => return Err(errno),
        }
    }
    let done = progress.done;
    let least = look.rx_lowat.min(wanted as u64).max(1);
    let is_enough = done as u64 >= least && !flags.wait_all;
    // A call for no bytes waits until there are some, as tcp_recvmsg of Linux.
    let is_all = done == wanted && (wanted > 0 || has_bytes(socket, look));
    if is_all || is_enough {
        return Ok(true);
    }
    // This call returns the bytes received, and the next one the reason of the end.
    let is_over = if done > 0 {
        has_error(look) || is_ended(socket, look)? || flags.dont_wait
    } else if progress.is_any() && has_error(look) {
        return Err(Errno::CONNRESET);
    } else {
        end_of_stream(socket, look)?
    };
    if is_over {
        return Ok(true);
    }
    if flags.dont_wait || !progress.has_waited && socket.is_nonblocking()? {
        return Err(Errno::AGAIN);
    }
    progress.has_waited = true;
    let seen = if flags.peek { done as u64 } else { 0 };
    let timeout = socket.timeout(Direction::Receive);
    blocking::wait_and_go_on(socket, timeout, &mut progress.kept, || {
        let look = socket.look()?;
        let is_ready = if seen == 0 {
            may_receive(socket, look, least.saturating_sub(done as u64))?
        } else {
            may_move_or_is_noted(socket)?;
            let waiting = socket.record.rx_waiting_bytes();
            waiting > seen || has_error(look) || is_ended(socket, look)?
        };
        Ok(is_ready.then_some(()))
    })?;
    Ok(false)
}

/// Sends the bytes for which there is room, and waits if some are left; true if the call is
/// complete.
fn send_once(
    socket: &Socket<'_>,
    buffers: &[IoSlice<'_>],
    progress: &mut Progress,
    flags: SendFlags,
) -> Result<bool> {
    let wanted: usize = buffers.iter().map(|buffer| buffer.len()).sum();
    let look = socket.look_at_stream()?;
    if progress.is_any() {
        may_send_more(socket, look)?;
    } else {
        may_send_after(socket, look)?;
    }
    if look.flags.has(Flags::CONNECTED) {
        match send_some(socket, buffers, progress.done, flags) {
            Ok(sent) => progress.done += sent,
            Err(Errno::BUSY) if splice::give_back_to_send(socket)? => {}
            Err(Errno::NOBUFS) => {
                ask_for_fifo(socket, wanted - progress.done)?;
                return Ok(false);
            }
            Err(errno) => return Err(errno),
        }
        if progress.done == wanted {
            await_taken(socket, flags)?;
            return Ok(true);
        }
    }
    let waits = !flags.dont_wait && (progress.has_waited || !socket.is_nonblocking()?);
    // A blocking call asks for room only if a lack of memory has kept the FIFO below its usual
    // size.
    let may_ask = look.flags.has(Flags::CONNECTED)
        && socket.record.tx_may_grow()
        && (!waits || socket.record.tx_bytes() < FIFO_BYTES_USUAL);
    if may_ask && !std::mem::replace(&mut progress.has_asked, true) {
        socket.ask_for_room(wanted - progress.done)?;
        return Ok(false);
    }
    if !waits {
        return Err(Errno::AGAIN);
    }
    progress.has_waited = true;
    let timeout = socket.timeout(Direction::Send);
    blocking::wait_and_go_on(socket, timeout, &mut progress.kept, || {
        let look = socket.look()?;
        let is_elsewhere = splice::is_spliced(look.flags);
        let has_room = look.unsent_bytes <= look.tx_bytes / 4 * 3 && !is_elsewhere;
        let is_ready = has_room && look.flags.has(Flags::CONNECTED)
            || is_over(look.flags)
            || look.error_is_new
            || socket.has_note(note::SHUT_WRITE);
        may_move_or_is_noted(socket)?;
        Ok(is_ready.then_some(()))
    })?;
    Ok(false)
}

/// Most idle FIFOs that the host stack may take back before a call has written to one.
const FIFOS_TAKEN_BACK_MAX: u32 = 64;

/// Asks for the tx FIFO of a connection without one. ENOBUFS if there is none.
fn ask_for_fifo(socket: &Socket<'_>, bytes: usize) -> Result<()> {
    for _ in 0..FIFOS_TAKEN_BACK_MAX {
        socket.ask_for_room(bytes)?;
        let is_open = socket.look()?.flags.has(Flags::CONNECTED);
        if !is_open || socket.record.tx_bytes() > 0 {
            return Ok(());
        }
    }
    Err(Errno::NOBUFS)
}

/// EBUSY if a NIC stack moves the bytes of a socket, unless the program accounts for its splice.
pub(super) fn may_move_or_is_noted(socket: &Socket<'_>) -> Result<()> {
    match socket.record.may_move().map_err(errno) {
        Err(Errno::BUSY) if socket.record.takes_note_of_splice() => Ok(()),
        moved => moved,
    }
}

/// Reports whether a receiving call can return: with `least` bytes, or another event. EBUSY as
/// [`may_move_or_is_noted`].
fn may_receive(socket: &Socket<'_>, look: Look, least: u64) -> Result<bool> {
    let rx_lowat = look.rx_lowat.min(least);
    let readiness = Look { rx_lowat, ..look }.readiness();
    let is_ended = socket.has_note(note::SHUT_READ);
    may_move_or_is_noted(socket)?;
    Ok(readiness.readable || readiness.error || is_ended)
}

/// Reports whether a stream has bytes to receive; a listener has none.
fn has_bytes(socket: &Socket<'_>, look: Look) -> bool {
    let waiting = socket.record.rx_waiting_bytes() + socket.record.held();
    !look.flags.has(Flags::LISTENER) && waiting > 0
}

/// Asks the host stack for bytes that it holds, if the FIFO has fewer than `bytes`.
fn ask_for_held(socket: &Socket<'_>, bytes: usize) -> Result<()> {
    let (id, bytes) = (socket.id, bytes as u64);
    let is_enough = socket.record.held() == 0 || socket.record.rx_waiting_bytes() >= bytes;
    if is_enough || socket.look()?.flags.has(Flags::LISTENER) {
        return Ok(());
    }
    let request = |request| Command::Receive {
        request,
        socket: id,
        bytes,
    };
    socket.process.link.ask(request).map(drop)
}

/// Without AsyncSend, waits in a blocking call until TCP has taken all written bytes. The call
/// succeeds even if the wait fails, since the bytes are written.
fn await_taken(socket: &Socket<'_>, flags: SendFlags) -> Result<()> {
    if socket.process.modes.has(Modes::ASYNC_SEND) || flags.dont_wait || socket.is_nonblocking()? {
        return Ok(());
    }
    let written = socket.record.tx_tail();
    let _ = blocking::wait(socket, socket.timeout(Direction::Send), || {
        let is_over = is_over(socket.look()?.flags);
        socket.record.await_room();
        let is_taken = socket.record.tx_head() >= written;
        Ok((is_taken || is_over).then_some(()))
    });
    Ok(())
}

/// Returns the number of bytes done, which takes precedence over an error.
fn partial(done: usize, errno: Errno) -> Result<usize> {
    if done > 0 { Ok(done) } else { Err(errno) }
}

/// Reports whether the socket is over: no more bytes come or go.
pub(crate) fn is_over(flags: Flags) -> bool {
    flags.is_over()
}

/// Reports whether a receiving call has an error to report. A FIN takes precedence over a later
/// reset, which a send reports (SOCK_DONE of Linux).
fn has_error(look: Look) -> bool {
    look.error_is_new && !look.flags.has(Flags::FIN_RECEIVED)
}

/// With an empty FIFO: returns true at the end of the stream, false if bytes may come. Takes the
/// error of the connection.
fn end_of_stream(socket: &Socket<'_>, look: Look) -> Result<bool> {
    if has_error(look) {
        socket.take_error()?;
    }
    is_ended(socket, look)
}

/// Like [`end_of_stream`], but leaves the error of the connection.
fn is_ended(socket: &Socket<'_>, look: Look) -> Result<bool> {
    let flags = look.flags;
    if flags.has(Flags::DETACHED) {
        return Err(Errno::CONNRESET);
    }
    if flags.has(Flags::PEER_FINISHED) || is_over(flags) || socket.has_note(note::SHUT_READ) {
        return Ok(true);
    }
    if !flags.has(Flags::CONNECTED) && !flags.has(Flags::CONNECTING) {
        return Err(Errno::NOTCONN);
    }
    Ok(false)
}

fn receive_some(
    socket: &Socket<'_>,
    buffers: &mut [IoSliceMut<'_>],
    skip: usize,
    flags: ReceiveFlags,
) -> Result<usize> {
    let record = socket.record;
    let received = socket.with_lock(Lock::Rx, || {
        if flags.peek {
            return peek(socket, buffers).map(|len| (len, false));
        }
        let mut received = 0;
        let mut skip = skip;
        for buffer in buffers.iter_mut() {
            let buffer = &mut buffer[..];
            let skipped = skip.min(buffer.len());
            skip -= skipped;
            let buffer = &mut buffer[skipped..];
            let len = if flags.discard {
                record.discard(buffer.len()).map_err(errno)?
            } else {
                record.read(buffer).map_err(errno)?
            };
            received += len;
            if len < buffer.len() {
                break;
            }
        }
        Ok((received, received > 0 && record.rx_must_kick(received)))
    })?;
    let (received, must_kick) = match received {
        Ok(received) => received,
        // A socket that is not connected has no FIFO; the caller returns the reason.
        Err(Errno::IO) if !socket.look()?.flags.has(Flags::CONNECTED) => return Ok(0),
        Err(errno) => return Err(errno),
    };
    if !flags.peek {
        tally::count(Counted::Received, received);
    }
    if must_kick {
        socket.tell_of_room()?;
    }
    Ok(received)
}

/// Copies available bytes and leaves them in the FIFO. The caller has the lock.
fn peek(socket: &Socket<'_>, buffers: &mut [IoSliceMut<'_>]) -> Result<usize> {
    if let [buffer] = buffers {
        return socket.record.peek(buffer).map_err(errno);
    }
    let wanted: usize = buffers.iter().map(|buffer| buffer.len()).sum();
    let mut bytes = vec![0; wanted.min(PEEK_BYTES_MAX)];
    let len = socket.record.peek(&mut bytes).map_err(errno)?;
    let mut rest = &bytes[..len];
    for buffer in buffers {
        let (now, later) = rest.split_at(rest.len().min(buffer.len()));
        buffer[..now.len()].copy_from_slice(now);
        rest = later;
    }
    Ok(len)
}

/// Checks that bytes may be queued, also while the connection is opening. As in tcp_sendmsg, the
/// error is that of the connection, once, and then EPIPE.
pub(crate) fn may_send(socket: &Socket<'_>) -> Result<Look> {
    let look = socket.look_at_stream()?;
    may_send_after(socket, look)?;
    Ok(look)
}

/// Like [`may_send`], by the caller's look.
pub(crate) fn may_send_after(socket: &Socket<'_>, look: Look) -> Result<()> {
    if look.error_is_new {
        socket.take_error()?;
    }
    is_open_to_send(socket, look)
}

/// Like [`may_send_after`], for a call that has sent bytes: a new error stays for the next call.
fn may_send_more(socket: &Socket<'_>, look: Look) -> Result<()> {
    if look.error_is_new {
        return Err(Errno::PIPE);
    }
    is_open_to_send(socket, look)
}

fn is_open_to_send(socket: &Socket<'_>, look: Look) -> Result<()> {
    let flags = look.flags;
    let is_shut = flags.has(Flags::SHUT_WRITE) || socket.has_note(note::SHUT_WRITE);
    let is_open = flags.has(Flags::CONNECTED) || flags.has(Flags::CONNECTING);
    if is_shut || is_over(flags) || !is_open {
        return Err(Errno::PIPE);
    }
    Ok(())
}

fn send_some(
    socket: &Socket<'_>,
    buffers: &[IoSlice<'_>],
    skip: usize,
    flags: SendFlags,
) -> Result<usize> {
    let record = socket.record;
    let sent = socket.with_lock(Lock::Tx, || {
        let mut sent = 0;
        let mut skip = skip;
        for buffer in buffers {
            let skipped = skip.min(buffer.len());
            skip -= skipped;
            let buffer = &buffer[skipped..];
            let written = if flags.more || socket.has_note(note::CORKED) {
                record.write_with_more(buffer)
            } else {
                record.write(buffer)
            };
            let len = written.map_err(errno)?;
            sent += len;
            if len < buffer.len() {
                break;
            }
        }
        Ok(sent)
    })??;
    tally::count(Counted::Sent, sent);
    if sent > 0 {
        socket.tell_of_bytes()?;
    }
    Ok(sent)
}
