//! Descriptors of accepted connections, which the program closes and `accept` hands out again.
//!
//! Such a descriptor stays open in the store of handles, and a command ends its socket: neither
//! this process nor the host stack makes a system call for that, and the broker creates no other
//! handle. It must be the only copy. The library sees all calls by which a program copies
//! descriptors: each [notes](super::note_copies) a copy of all, or [marks](Client::share) the
//! one. A descriptor that may have a copy is closed by close(2), and its
//! last copy ends the connection.
//!
//! If a copy exists nevertheless, it never leads to a later socket of the handle. A process finds
//! the socket of a copied descriptor in memory that was copied with it, where the socket's
//! generation is wrong by then, or by a lookup at the host stack, which refuses those of a reused
//! handle by other processes. So a process that passes on a descriptor whose handle was reused
//! first lets others look it up, and names the socket.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
use socket_channel::Command;

use super::application::{Client, Forgotten};
use super::handle_names::handle_of;
use super::handles::Handle;
use super::process::{Process, number};
use super::unshared::Reuse;
use crate::sys;

impl Client {
    /// Lets the descriptor of a new connection be reused when it is closed.
    pub(crate) fn allow_reuse(&self, fd: BorrowedFd<'_>, reuse: Reuse) {
        self.table.set_reuse(number(fd), |_| reuse);
    }

    /// Keeps a descriptor from being reused: the kernel may keep a change by the program.
    pub fn forbid_reuse(&self, fd: RawFd) {
        self.table.set_reuse(fd, Reuse::forbidden);
    }

    /// Prepares for a copy of a descriptor, for another process.
    pub fn share(&self, fd: RawFd) {
        let Some(entry) = self.entry_of(fd) else {
            return;
        };
        self.forbid_reuse(fd);
        if self.table.reuse(fd).has_sent_options() {
            // Another process reads the socket's record.
            let socket = entry.socket;
            let looked = self.process().and_then(|process| {
                let look = |request| Command::Look { request, socket };
                process.link.ask(look)
            });
            if looked.is_ok() {
                self.table.set_reuse(fd, Reuse::with_settled_options);
            }
        }
        if !self.table.reuse(fd).is_private() {
            return;
        }
        let shared = self.process().and_then(|process| {
            process.link.ask(|request| Command::Share {
                request,
                socket: entry.socket,
                handle: entry.handle,
            })
        });
        // Otherwise the connection has ended, and is over for the other process as well.
        if shared.is_ok() {
            self.table.set_reuse(fd, Reuse::public);
        }
    }

    /// Prepares for copies of all descriptors, in a process that starts another program.
    pub fn share_all(&self) {
        let private = self.table.private_numbers();
        private.into_iter().for_each(|fd| self.share(fd));
    }

    /// Prepares for the descriptors that stay open when this process executes another program.
    pub fn share_inherited(&self) {
        let stays_open = |fd: &RawFd| {
            let flags = sys::borrow(*fd).and_then(fcntl_getfd);
            flags.is_ok_and(|flags| !flags.contains(FdFlags::CLOEXEC))
        };
        let private = self.table.private_numbers();
        let inherited = private.into_iter().filter(stays_open);
        inherited.for_each(|fd| self.share(fd));
    }
}

/// Ends a connection and keeps its descriptor for another one; closes it if it may have a copy, or
/// there are enough.
pub(crate) fn keep(process: &Process, forgotten: &Forgotten, fd: OwnedFd) {
    let (handle, reuse) = (forgotten.handle, forgotten.reuse);
    if !process.handles.has_room() {
        return;
    }
    // The program may have replaced it by a call that the library does not see.
    let key = &process.handles.membership().key;
    if handle_of(fd.as_fd(), key) != Some(handle) {
        return;
    }
    let flags = reuse.flags();
    let closes_on_exec = flags.is_some_and(|flags| flags.closes_on_exec);
    if !closes_on_exec && fcntl_setfd(&fd, FdFlags::CLOEXEC).is_err() {
        return;
    }
    if process.link.send(&Command::Reuse { handle }).is_err() {
        return;
    }
    let kept = Handle {
        id: handle,
        fd,
        is_nonblocking: flags.map(|flags| flags.is_nonblocking),
        is_private: true,
    };
    process.handles.keep(kept, || reuse.is_allowed());
}
