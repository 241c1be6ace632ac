//! The application: the table of its sockets, and the process that this is.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::OnceLock;

use rustix::io::{Errno, Result};
use socket_channel::{Family, SocketId};

use super::application_key::ApplicationKey;
use super::attach::AttachError;
use super::forked_sets;
use super::modes::{Modes, Options};
use super::own;
use super::process::{Process, number};
use super::sets::Sets;
use super::socket::Socket;
use super::table::Table;

/// An application that is attached to the host stack: what its calls are made on.
///
/// Calls take and return descriptors, and `errno`s as Linux has them. They may be made from any
/// number of threads. None may be made from a signal handler: one that interrupts another call in
/// the same thread may find a lock taken for ever.
///
/// A child of a fork may go on with the sockets that it inherits: its first call attaches it.
#[derive(Debug)]
pub struct Client {
    table: Table,
    first: Generation,
}

/// A process, and the child of its that this process is, if it is one.
#[derive(Debug)]
struct Generation {
    process: Process,
    child: OnceLock<Box<Generation>>,
}

impl Client {
    /// Attaches this process as an application of its own.
    pub fn attach(options: &Options) -> std::result::Result<Client, AttachError> {
        let first = Generation::of(Process::attach(options)?);
        Ok(Client {
            table: Table::new(),
            first,
        })
    }

    /// The modes that the host stack has granted.
    pub fn modes(&self) -> Result<Modes> {
        Ok(self.process()?.modes)
    }

    /// Whether a descriptor is a split socket, or a file of the NIC stack.
    pub fn is_split(&self, fd: BorrowedFd<'_>) -> bool {
        self.table.get(number(fd)).is_some()
    }

    /// The same of a number, which need not be open.
    pub fn is_split_number(&self, fd: RawFd) -> bool {
        self.table.get(fd).is_some()
    }

    /// The descriptors that are split sockets, files of the NIC stack, or sets with some.
    pub fn numbers(&self) -> Vec<RawFd> {
        let mut numbers = self.table.numbers();
        numbers.extend(match self.process_if_attached() {
            Some(process) => process.sets.numbers(),
            None => Sets::numbers_of_any(),
        });
        numbers
    }

    /// Has the library let go of a number that the program closes, or puts something else in the
    /// place of, though it is none of its own. EBADF if it is one that the library needs.
    pub fn let_go_of_number(&self, fd: RawFd) -> Result<()> {
        if own::is_kept(fd) {
            return Err(Errno::BADF);
        }
        if own::is_stored(fd) {
            match self.process_if_attached() {
                Some(process) => process.handles.give_up(fd),
                None => own::give_up_number(fd),
            }
        }
        Ok(())
    }

    /// The same of all numbers of a kind.
    pub fn let_go_of_numbers(&self, are: impl Fn(&RawFd) -> bool) {
        for fd in own::stored().into_iter().filter(are) {
            // Those are never needed.
            let _ = self.let_go_of_number(fd);
        }
    }

    /// The numbers that the library needs, in order.
    pub fn kept_numbers(&self) -> Vec<RawFd> {
        own::kept()
    }

    /// What this process has; a child of a fork is attached by this.
    pub(crate) fn process(&self) -> Result<&Process> {
        let mut generation = &self.first;
        while !generation.process.is_this() {
            generation = match generation.child.get() {
                Some(child) => child,
                None => {
                    let child = Process::adopted_by(&generation.process);
                    let child = child.map_err(|error| error.errno())?;
                    let child = Box::new(Generation::of(child));
                    // Another thread may have been faster: then its process is the one.
                    generation.child.get_or_init(|| {
                        forked_sets::inherit(&child.process, &generation.process, &self.table);
                        child
                    })
                }
            };
        }
        Ok(&generation.process)
    }

    /// The same without attaching: `None` in a child that has made no call.
    pub(crate) fn process_if_attached(&self) -> Option<&Process> {
        let mut generation = &self.first;
        while !generation.process.is_this() {
            generation = generation.child.get()?;
        }
        Some(&generation.process)
    }

    /// The split socket behind a descriptor, if it is one.
    pub(crate) fn find<'a>(&'a self, fd: BorrowedFd<'a>) -> Result<Option<Socket<'a>>> {
        let Some(id) = self.table.get(number(fd)) else {
            return Ok(None);
        };
        let process = self.process()?;
        Ok(Some(Socket {
            process,
            fd,
            id,
            record: process.record(id)?,
        }))
    }

    /// The split socket behind a descriptor; ENOTSOCK if it is none, EBADF if it is not open.
    pub(crate) fn socket_of<'a>(&'a self, fd: BorrowedFd<'a>) -> Result<Socket<'a>> {
        if let Some(socket) = self.find(fd)? {
            return Ok(socket);
        }
        rustix::io::fcntl_getfd(fd)?;
        Err(Errno::NOTSOCK)
    }

    /// The family of a split socket; the errors of a descriptor that is none.
    pub fn family(&self, fd: BorrowedFd<'_>) -> Result<Family> {
        let socket = self.socket_of(fd)?;
        socket.look_at_stream()?;
        Ok(socket.family())
    }

    /// Notes that a descriptor is a socket from now on.
    pub(crate) fn adopt(&self, fd: OwnedFd, id: SocketId) -> Result<OwnedFd> {
        self.note(number(fd.as_fd()), id)?;
        Ok(fd)
    }

    /// The same of its number.
    pub(crate) fn note(&self, fd: RawFd, id: SocketId) -> Result<()> {
        self.table.insert(fd, id)
    }

    /// What another program image needs to join this application.
    pub fn application_key(&self) -> ApplicationKey {
        // All its processes have the same.
        let membership = self.first.process.handles.membership();
        ApplicationKey {
            app: membership.app,
            key: membership.key,
        }
    }

    /// Notes that `new`, a duplicate, is what `old` is: a split socket, a file or an epoll set.
    pub fn note_duplicate(&self, old: BorrowedFd<'_>, new: OwnedFd) -> Result<OwnedFd> {
        if let Some(id) = self.table.get(number(old)) {
            return self.adopt(new, id);
        }
        if self.is_epoll_number(number(old)) {
            let process = self.process()?;
            if let Some(set) = process.sets.get(number(old)) {
                process.sets.insert(number(new.as_fd()), set);
            }
        }
        Ok(new)
    }

    /// Whether a descriptor of this process is a socket.
    pub(crate) fn has_descriptor_of(&self, id: SocketId) -> bool {
        self.table.has(id)
    }

    /// Forgets a descriptor; tells which socket it was.
    pub(crate) fn forget(&self, fd: BorrowedFd<'_>) -> Option<SocketId> {
        self.table.remove(number(fd))
    }
}

impl Generation {
    fn of(process: Process) -> Generation {
        Generation {
            process,
            child: OnceLock::new(),
        }
    }
}
