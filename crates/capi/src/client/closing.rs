//! shutdown(2) and close(2).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::{Errno, Result};
use socket_channel::{Command, Flags, How, Lock, SocketOption};

use super::application::Client;
use super::blocking;
use super::connecting::disconnect;
use super::link::Answer;
use super::process::{errno, number};
use super::sets::{Member, Sets, Source};
use super::socket::{Socket, note};
use super::transfer::is_over;
use super::watchers::Watch;

impl Client {
    /// Ends a direction of a connection, as shutdown(2); a listener that is shut down for reading
    /// takes no more connections. ENOTCONN if there is no connection.
    pub fn shutdown(&self, fd: BorrowedFd<'_>, how: How) -> Result<()> {
        let socket = self.socket_of(fd)?;
        let flags = socket.look_at_stream()?.flags;
        let is_open = flags.has(Flags::CONNECTED) || flags.has(Flags::CONNECTING);
        if flags.has(Flags::LISTENER) {
            // inet_shutdown of Linux: for writing there is nothing to end.
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
        // Behind all that was written, also by a thread that is just writing.
        socket.with_lock(Lock::Tx, || {
            if how == How::Read {
                return Ok(0);
            }
            socket.record.may_move().map_err(errno)?;
            socket.set_note(note::SHUT_WRITE, true);
            finish(&socket, how)
        })??;
        // Threads of this process that wait for it look again.
        socket.process.link.watchers.notify(socket.id.index);
        socket.process.link.nudge();
        Ok(())
    }

    /// Closes a descriptor of any kind, as close(2). The connection ends with its last descriptor,
    /// in whatever process: what was sent still goes, and is waited for if `SO_LINGER` says so.
    pub fn close(&self, fd: OwnedFd) -> Result<()> {
        self.close_by(fd, drop)
    }

    /// The same where something else than close(2) closes the descriptor, such as dup3(2), which
    /// puts another in its place at the same moment.
    pub fn close_by(&self, fd: OwnedFd, close: impl FnOnce(OwnedFd)) -> Result<()> {
        let place = number(fd.as_fd());
        // A child that has made no call yet is not attached for closing what it inherits.
        let socket = self.process_if_attached().and_then(|_| {
            let found = self.find(fd.as_fd());
            found.ok().flatten()
        });
        let is_listener = socket.is_some_and(|socket| {
            let look = socket.look();
            look.is_ok_and(|look| look.flags.has(Flags::LISTENER))
        });
        let lingered = socket.map_or(Ok(()), |socket| linger(&socket));
        if let Some(generation) = self.process_if_attached() {
            for member in generation.sets.forget(place) {
                if let Source::Socket(id) = member.source {
                    let watch: Arc<dyn Watch> = Arc::clone(&member) as Arc<dyn Watch>;
                    generation.link.watchers.remove(id.index, &watch);
                }
            }
            if let Some(set) = generation.sets.remove(place) {
                let members: Vec<Arc<Member>> =
                    set.members().drain().map(|(_, member)| member).collect();
                for member in members {
                    member.remove();
                    if let Source::Socket(id) = member.source {
                        let watch: Arc<dyn Watch> = member;
                        generation.link.watchers.remove(id.index, &watch);
                    }
                }
            }
        } else {
            Sets::forget_number(place);
        }
        if let Some(id) = self.forget(fd.as_fd())
            && let Some(generation) = self.process_if_attached()
        {
            generation.sends.forget(id, || self.has_descriptor_of(id));
        }
        if let Some(socket) = socket {
            let watchers = &socket.process.link.watchers;
            watchers.keep_open(socket.id.index, fd.as_fd());
        }
        // The host stack hears of the last copy by its hang-up.
        close(fd);
        if is_listener && let Some(generation) = self.process_if_attached() {
            generation.handles.note_closed_listener();
        }
        lingered
    }
}

/// Ends the stream behind what it has, and returns how many bytes of the tx FIFO that is. The
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

/// Waits until the peer has acknowledged all, as long as `SO_LINGER` says; EINTR if a signal comes
/// first, as close(2) has it.
fn linger(socket: &Socket<'_>) -> Result<()> {
    // What a NIC stack moves is reset.
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
