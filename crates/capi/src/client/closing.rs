//! shutdown(2) and close(2).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::{Errno, Result};
use socket_channel::{Command, Flags, How, Lock, SocketOption};

use super::application::{Client, Forgotten};
use super::blocking;
use super::connecting::disconnect;
use super::link::Answer;
use super::process::{Process, errno, number};
use super::reuse;
use super::sets::{Sets, Source};
use super::socket::{Socket, note};
use super::transfer::is_over;
use super::watchers::Watch;

impl Client {
    /// Ends a direction of a connection, as shutdown(2); a listener that is shut down for reading
    /// accepts no more connections. ENOTCONN if there is no connection.
    pub fn shutdown(&self, fd: BorrowedFd<'_>, how: How) -> Result<()> {
        let socket = self.socket_of(fd)?;
        let flags = socket.look_at_stream()?.flags;
        let is_open = flags.has(Flags::CONNECTED) || flags.has(Flags::CONNECTING);
        if flags.has(Flags::LISTENER) {
            // As inet_shutdown of Linux: a listener has no direction for writing.
            return if how == How::Write {
                Ok(())
            } else {
                disconnect(&socket)
            };
        }
        if !is_open || is_over(flags) {
            return Err(Errno::NOTCONN);
        }
        if flags.has(Flags::CONNECTING) {
            return disconnect(&socket);
        }
        socket.record.may_move().map_err(errno)?;
        if how != How::Write {
            socket.set_note(note::SHUT_READ, true);
        }
        // Ends the stream after all written bytes, including those of a thread that is writing now.
        socket.with_lock(Lock::Tx, || {
            if how == How::Read {
                return Ok(0);
            }
            socket.record.may_move().map_err(errno)?;
            socket.set_note(note::SHUT_WRITE, true);
            finish(&socket, how)
        })??;
        // Waiting threads of this process look again.
        socket.process.link.watchers.notify(socket.id.index);
        socket.process.link.nudge();
        Ok(())
    }

    /// Closes a descriptor of any kind, as close(2). The connection ends when all processes have
    /// closed its last descriptor; data already sent is still delivered, and `SO_LINGER` makes the
    /// call wait for that.
    pub fn close(&self, fd: OwnedFd) -> Result<()> {
        self.close_with(fd, |fd, reusable| match reusable {
            Some((process, forgotten)) => reuse::keep(process, &forgotten, fd),
            None => drop(fd),
        })
    }

    /// Like [`Client::close`], with a `close` other than close(2), such as dup3(2), which replaces
    /// the descriptor at the same moment.
    pub fn close_by(&self, fd: OwnedFd, close: impl FnOnce(OwnedFd)) -> Result<()> {
        self.close_with(fd, |fd, _| close(fd))
    }

    /// Closes a descriptor; `close` also gets the process and the entry of a connection whose
    /// descriptor may be reused.
    fn close_with(
        &self,
        fd: OwnedFd,
        close: impl FnOnce(OwnedFd, Option<(&Process, Forgotten)>),
    ) -> Result<()> {
        let place = number(fd.as_fd());
        // Closing an inherited descriptor does not attach a child that has made no call yet.
        let socket = self.process_if_attached().and_then(|_| {
            let found = self.find(fd.as_fd());
            found.ok().flatten()
        });
        let flags = socket.and_then(|socket| Some(socket.look().ok()?.flags));
        let has = |flag: Flags| flags.is_some_and(|flags| flags.has(flag));
        let is_listener = has(Flags::LISTENER);
        let lingered = socket.map_or(Ok(()), |socket| linger(&socket));
        let forgotten = self.forget(fd.as_fd());
        match self.process_if_attached() {
            Some(process) => leave_sets(process, place, forgotten),
            None => Sets::forget_number(place),
        }
        if let Some(Forgotten { socket: id, .. }) = forgotten
            && let Some(process) = self.process_if_attached()
        {
            process.sends.forget(id, || self.has_descriptor_of(id));
        }
        let is_kept_open = socket.is_some_and(|socket| {
            let watchers = &socket.process.link.watchers;
            watchers.keep_open(socket.id.index, fd.as_fd())
        });
        let is_reusable = has(Flags::CONNECTED) && !has(Flags::LOOKED_UP) && !is_kept_open;
        let forgotten = forgotten.filter(|it| is_reusable && it.reuse.is_allowed());
        // Otherwise the host stack notices by the hang-up that the last copy is closed.
        close(fd, self.process_if_attached().zip(forgotten));
        if is_listener && let Some(generation) = self.process_if_attached() {
            generation.handles.note_closed_listener();
        }
        lingered
    }
}

/// Removes a closed number from all sets, and its own set if it was the last number of one.
fn leave_sets(process: &Process, place: RawFd, forgotten: Option<Forgotten>) {
    let sets = &process.sets;
    let has_other = forgotten.map_or_else(|| sets.has_other(place), |it| it.has_other);
    let mut members = sets.forget(place, has_other);
    if let Some(Forgotten { socket, .. }) = forgotten.filter(|it| it.was_shared && !it.has_other) {
        members.extend(sets.forget_left(socket));
    }
    if let Some(set) = sets.remove(place) {
        members.extend(set.empty());
    }
    for member in members {
        member.remove();
        if let Source::Socket(id) = member.source {
            let watch: Arc<dyn Watch> = member;
            process.link.watchers.remove(id.index, &watch);
        }
    }
}

/// Ends the stream behind the queued data, and returns the end's position in the tx FIFO. The
/// caller has the lock for writing.
fn finish(socket: &Socket<'_>, how: How) -> Result<u64> {
    let (mark, at) = socket.record.mark();
    socket.tell(&Command::Shutdown {
        socket: socket.id,
        how,
        mark,
        at,
    })?;
    Ok(at)
}

/// Waits until the peer has acknowledged all data, or the time of `SO_LINGER` is over. EINTR if a
/// signal comes first, as in close(2).
fn linger(socket: &Socket<'_>) -> Result<()> {
    // Closing resets a connection whose bytes a NIC stack moves.
    let is_spliced = socket.record.may_move().is_err();
    if is_spliced || !socket.has_note(note::LINGER) || socket.is_nonblocking()? {
        return Ok(());
    }
    let (id, link) = (socket.id, &socket.process.link);
    let answer = link.ask(|request| Command::GetOption {
        request,
        socket: id,
        option: SocketOption::LingerMs,
    });
    let Ok(Answer::Done {
        value: ms @ 1.., ..
    }) = answer
    else {
        return Ok(());
    };
    if ms == u64::MAX {
        return Ok(());
    }
    let at = socket.with_lock(Lock::Tx, || {
        socket.record.may_move().map_err(errno)?;
        finish(socket, How::Write)
    })??;
    let waited = blocking::wait(socket, Some(Duration::from_millis(ms)), || {
        let look = socket.look()?;
        let queued = at.saturating_add(socket.record.file_queued_bytes());
        let is_done = is_over(look.flags) || socket.record.await_acked(queued);
        Ok(is_done.then_some(()))
    });
    match waited {
        Err(Errno::INTR) => Err(Errno::INTR),
        Ok(()) | Err(_) => Ok(()),
    }
}
