//! The application: the table of its sockets, and the chain of processes down to this one.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

use once_cell::race::OnceBox;
use rustix::io::{Errno, Result};
use socket_channel::{Family, HandleId, SocketId};

use super::application_file;
use super::application_key::ApplicationKey;
use super::attach::AttachError;
use super::fork;
use super::fork_lock::ForkLock;
use super::forked_sets;
use super::handle_names::handle_of;
use super::known_flags;
use super::modes::{Modes, Options};
use super::notices::{self, Notice};
use super::own;
use super::process::{Process, number};
use super::sets::Sets;
use super::socket::Socket;
use super::table::{Entry, Table};
use super::unshared::Reuse;
use crate::sys;

/// An application that is attached to the host stack, with the calls on its sockets.
///
/// Calls take and return descriptors, and return Linux's `errno`s. Any thread may make them; a
/// signal handler must not: a call that interrupts another in the same thread may wait for a lock
/// for ever.
///
/// A child of a fork may use the sockets that it inherits: its first call attaches it.
#[derive(Debug)]
pub struct Client {
    pub(super) table: Table,
    first: Generation,
}

/// The socket of a descriptor that was removed from the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forgotten {
    pub(crate) socket: SocketId,
    pub(crate) handle: HandleId,
    pub(crate) reuse: Reuse,
    /// The socket has had other descriptors in this process.
    pub(crate) was_shared: bool,
    /// The socket still has another descriptor in this process.
    pub(crate) has_other: bool,
}

/// A process, and its child on the way to this process, if there is one.
#[derive(Debug)]
struct Generation {
    process: Process,
    child: OnceBox<Generation>,
}

/// Serialises threads of a child that take over the copies of its parent's epoll sets, which exist
/// once.
static INHERITING: ForkLock = ForkLock::new();

impl Client {
    /// Attaches this process as a new application.
    pub fn attach(options: &Options) -> std::result::Result<Client, AttachError> {
        let first = Generation::of(Process::attach(options)?);
        Ok(Client {
            table: Table::new(),
            first,
        })
    }

    /// Attaches this process to the application of `options`, else to its program's, else as a new
    /// application, which becomes the program's.
    pub(crate) fn attach_in_program(options: &Options) -> std::result::Result<Client, AttachError> {
        let Some(file) = application_file::of_process() else {
            return Client::attach(options);
        };
        let _lock = file.lock();
        let of_program = file.key();
        let mut is_over = of_program.is_none();
        let also = of_program.filter(|key| Some(*key) != options.application);
        for key in options.application.into_iter().chain(also) {
            match Client::join(options, key) {
                Err(AttachError::Refused { errno }) if errno != Errno::AGAIN => {
                    is_over |= Some(key) == of_program && errno == Errno::SHUTDOWN;
                }
                joined => return joined,
            }
        }
        let client = Client::attach(&Options {
            application: None,
            ..options.clone()
        })?;
        // If the program's application refuses only this process, the other processes keep it.
        if is_over {
            file.set_key(&client.application_key());
        }
        Ok(client)
    }

    /// Attaches this process to an existing application, and to no other.
    fn join(
        options: &Options,
        application: ApplicationKey,
    ) -> std::result::Result<Client, AttachError> {
        let first = Generation::of(Process::join(options, application)?);
        Ok(Client {
            table: Table::new(),
            first,
        })
    }

    /// Returns the modes that the host stack has granted.
    pub fn modes(&self) -> Result<Modes> {
        Ok(self.process()?.modes)
    }

    /// Reports whether a descriptor is a split socket or a file of the NIC stack.
    pub fn is_split(&self, fd: BorrowedFd<'_>) -> bool {
        self.is_split_number(number(fd))
    }

    /// Like [`Client::is_split`], for a number, which need not be open.
    pub fn is_split_number(&self, fd: RawFd) -> bool {
        self.entry_of(fd).is_some() || is_in_store(fd)
    }

    /// Reports whether a number is closed for the program, though the library keeps a descriptor
    /// there for its next connection.
    pub fn is_closed_number(&self, fd: RawFd) -> bool {
        is_in_store(fd)
    }

    /// Returns a descriptor's entry in this process. In a child, the first lookup of an inherited
    /// descriptor asks the kernel.
    pub(crate) fn entry_of(&self, fd: RawFd) -> Option<Entry> {
        let entry = self.table.get(fd)?;
        if entry.generation == fork::generation() {
            return Some(entry);
        }
        self.confirm(fd, entry).or_else(|| self.find_other(fd))
    }

    /// Reports whether a descriptor still is `socket`, without recovering another one.
    pub(crate) fn is_still(&self, fd: RawFd, socket: SocketId) -> bool {
        let entry = self.table.get(fd).filter(|it| it.socket == socket);
        entry.is_some_and(|entry| self.confirm(fd, entry).is_some())
    }

    /// Checks by the handle's name that a descriptor is still the socket of an entry copied from
    /// another process's memory; removes the entry if not.
    #[cold]
    fn confirm(&self, fd: RawFd, entry: Entry) -> Option<Entry> {
        let key = &self.first.process.handles.membership().key;
        let is = sys::borrow(fd).ok().and_then(|it| handle_of(it, key));
        if is == Some(entry.handle) {
            return Some(self.table.confirm(fd, entry, fork::generation()));
        }
        self.table.remove(fd);
        None
    }

    /// Recovers a descriptor: the number may have belonged to another socket when descriptors were
    /// copied.
    #[cold]
    fn find_other(&self, fd: RawFd) -> Option<Entry> {
        let is_recovered = self.recover(sys::borrow(fd).ok()?) == Ok(true);
        self.table.get(fd).filter(|_| is_recovered)
    }

    /// Returns the descriptors that are split sockets, files of the NIC stack, or sets with some.
    pub fn numbers(&self) -> Vec<RawFd> {
        let mut numbers = self.table.numbers();
        numbers.extend(match self.process_if_attached() {
            Some(process) => process.sets.numbers(),
            None => Sets::numbers_of_any(),
        });
        numbers
    }

    /// Gives up a number in the library's store that the program closes or replaces without having
    /// opened it; reports whether it was there. EBADF if the library needs the number.
    pub fn let_go_of_number(&self, fd: RawFd) -> Result<bool> {
        if self.is_kept(fd) {
            return Err(Errno::BADF);
        }
        let is_stored = is_in_store(fd);
        if is_stored {
            self.process_if_attached()
                .inspect(|process| process.handles.give_up(fd));
        }
        Ok(is_stored)
    }

    /// Like [`Client::let_go_of_number`], for all numbers that `are` selects.
    pub fn let_go_of_numbers(&self, are: impl Fn(&RawFd) -> bool) {
        for fd in own::stored().into_iter().filter(are) {
            // Stored descriptors are never needed.
            let _ = self.let_go_of_number(fd);
        }
    }

    /// Reports whether the library needs a number. Until a child is attached, it needs only its
    /// parent's connection to the broker; the parent's other descriptors may not exist in it.
    fn is_kept(&self, fd: RawFd) -> bool {
        match self.process_if_attached() {
            Some(_) => own::is_kept(fd),
            None => fd == self.inherited_broker() || own::is_kept_in_children(fd),
        }
    }

    /// Returns the numbers that the library needs, in order.
    pub fn kept_numbers(&self) -> Vec<RawFd> {
        if self.process_if_attached().is_some() {
            return own::kept();
        }
        let mut kept = own::kept_in_children();
        kept.push(self.inherited_broker());
        kept.sort_unstable();
        kept
    }

    /// Returns the inherited connection over which this unattached process will attach.
    fn inherited_broker(&self) -> RawFd {
        let mut generation = &self.first;
        while let Some(child) = generation.child.get() {
            generation = child;
        }
        number(generation.process.handles.broker().as_fd())
    }

    /// Returns the state of this process; attaches a child of a fork.
    pub(crate) fn process(&self) -> Result<&Process> {
        let mut generation = &self.first;
        while !generation.process.is_this() {
            generation = match generation.child.get() {
                Some(child) => child,
                None => {
                    let child = Process::adopted_by(&generation.process);
                    let child = child.map_err(|error| {
                        notices::once(Notice::NotAttached(error.errno()));
                        error.errno()
                    })?;
                    let child = Box::new(Generation::of(child));
                    let _inheriting = INHERITING.lock();
                    match generation.child.get() {
                        // Another thread was faster: its process is used.
                        Some(first) => first,
                        None => {
                            let is_still = |fd, socket| self.is_still(fd, socket);
                            forked_sets::inherit(&child.process, &generation.process, &is_still);
                            generation.child.get_or_init(|| child)
                        }
                    }
                }
            };
        }
        Ok(&generation.process)
    }

    /// Returns the state of this process; `None` in a child that has made no call.
    pub(crate) fn process_if_attached(&self) -> Option<&Process> {
        let mut generation = &self.first;
        while !generation.process.is_this() {
            generation = generation.child.get()?;
        }
        Some(&generation.process)
    }

    /// Returns the split socket behind a descriptor, if it is one.
    pub(crate) fn find<'a>(&'a self, fd: BorrowedFd<'a>) -> Result<Option<Socket<'a>>> {
        let Some(Entry { socket: id, .. }) = self.entry_of(number(fd)) else {
            let is_closed = is_in_store(number(fd));
            return if is_closed {
                Err(Errno::BADF)
            } else {
                Ok(None)
            };
        };
        let process = self.process()?;
        Ok(Some(Socket {
            process,
            fd,
            id,
            record: process.record(id)?,
        }))
    }

    /// Returns the split socket behind a descriptor; ENOTSOCK if it is none, EBADF if it is not
    /// open.
    pub(crate) fn socket_of<'a>(&'a self, fd: BorrowedFd<'a>) -> Result<Socket<'a>> {
        if let Some(socket) = self.find(fd)? {
            return Ok(socket);
        }
        rustix::io::fcntl_getfd(fd)?;
        Err(Errno::NOTSOCK)
    }

    /// Returns the family of a split socket; the errors of other descriptors as for any call.
    pub fn family(&self, fd: BorrowedFd<'_>) -> Result<Family> {
        let socket = self.socket_of(fd)?;
        socket.look_at_stream()?;
        Ok(socket.family())
    }

    /// Registers a descriptor, a handle, as a socket.
    pub(crate) fn adopt(&self, fd: OwnedFd, handle: HandleId, id: SocketId) -> Result<OwnedFd> {
        self.note(number(fd.as_fd()), handle, id)?;
        Ok(fd)
    }

    /// Registers a number as a socket.
    pub(crate) fn note(&self, fd: RawFd, handle: HandleId, id: SocketId) -> Result<()> {
        self.note_as(fd, handle, id, false)
    }

    /// Registers a number as an existing socket, which may have other descriptors here.
    pub(crate) fn note_found(&self, fd: RawFd, handle: HandleId, id: SocketId) -> Result<()> {
        let is_shared = self.table.share(id);
        self.note_as(fd, handle, id, is_shared)
    }

    fn note_as(&self, fd: RawFd, handle: HandleId, id: SocketId, is_shared: bool) -> Result<()> {
        known_flags::forget(fd);
        let entry = Entry {
            socket: id,
            handle,
            generation: fork::generation(),
            is_shared,
        };
        self.table.insert(fd, entry)
    }

    /// Returns the key with which another program image joins this application.
    pub fn application_key(&self) -> ApplicationKey {
        // All its processes share the key.
        let membership = self.first.process.handles.membership();
        ApplicationKey {
            app: membership.app,
            key: membership.key,
        }
    }

    /// Registers `new` as a duplicate of `old`: a split socket, a file or an epoll set.
    pub fn note_duplicate(&self, old: BorrowedFd<'_>, new: OwnedFd) -> Result<OwnedFd> {
        if is_in_store(number(old)) {
            return Err(Errno::BADF);
        }
        if let Some(entry) = self.entry_of(number(old)) {
            self.share(number(old));
            self.table.share_at(number(old));
            self.note_as(number(new.as_fd()), entry.handle, entry.socket, true)?;
            return Ok(new);
        }
        if self.is_epoll_number(number(old)) {
            let process = self.process()?;
            if let Some(set) = process.sets.get(number(old)) {
                process.sets.insert(number(new.as_fd()), set);
            }
        }
        Ok(new)
    }

    /// Forgets the known flags of a descriptor and its duplicates, after the program has changed
    /// them.
    pub fn forget_flags(&self, fd: RawFd) {
        self.table.set_reuse(fd, Reuse::with_unknown_flags);
        if known_flags::is_any_known() {
            let numbers = self.with_duplicates(fd).into_iter();
            numbers.for_each(known_flags::forget);
        }
    }

    /// Returns a number, and those of its duplicates if it is a split socket.
    pub(crate) fn with_duplicates(&self, fd: RawFd) -> Vec<RawFd> {
        match self.table.get(fd) {
            Some(entry) if entry.is_shared => self.table.numbers_of(entry.socket),
            _ => vec![fd],
        }
    }

    /// Registers `new` as the split socket `old`, which is closed next.
    pub fn note_successor(&self, old: BorrowedFd<'_>, new: OwnedFd) -> Result<OwnedFd> {
        match self.entry_of(number(old)) {
            Some(entry) => self.adopt(new, entry.handle, entry.socket),
            None => Ok(new),
        }
    }

    /// Reports whether a socket has a descriptor in this process.
    pub(crate) fn has_descriptor_of(&self, id: SocketId) -> bool {
        self.table.has(id)
    }

    /// Removes a descriptor from the table; returns its socket, and whether that has others.
    pub(crate) fn forget(&self, fd: BorrowedFd<'_>) -> Option<Forgotten> {
        let entry = self.table.get(number(fd))?;
        let is_shared = entry.is_shared;
        let reuse = self.table.reuse(number(fd));
        let socket = self.table.remove(number(fd))?;
        Some(Forgotten {
            socket,
            handle: entry.handle,
            reuse,
            was_shared: is_shared,
            has_other: is_shared && self.table.has(socket),
        })
    }
}

/// Reports whether a number is that of a descriptor in the library's store, which the program has
/// not opened, or has closed.
pub(crate) fn is_in_store(fd: RawFd) -> bool {
    // A child's first look empties the store that it has inherited.
    fork::generation();
    own::is_stored(fd)
}

impl Generation {
    fn of(process: Process) -> Generation {
        Generation {
            process,
            child: OnceBox::new(),
        }
    }
}
