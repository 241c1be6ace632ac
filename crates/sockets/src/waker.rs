//! Descriptors that end a sleep of the shard: bells of channels, and handles that hang up.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{Timespec, epoll};
use socket_channel::{AppId, HandleId};

/// Most events that one look takes; the next look takes the others.
pub(crate) const EVENTS_MAX: usize = 256;

const NO_TIME: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

const NO_EVENT: epoll::Event = epoll::Event {
    flags: epoll::EventFlags::empty(),
    data: epoll::EventData::new_u64(0),
};

/// Application number, which is otherwise never 0, of events that belong to no handle; the handle's
/// number then gives the kind.
const NONE: u32 = 0;
const BROUGHT: u32 = 0;
const RUNG: u32 = 1;

fn data(app: u32, handle: u32) -> epoll::EventData {
    epoll::EventData::new_u64(u64::from(app) << 32 | u64::from(handle))
}

/// An event of the waker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// A message has arrived from the broker.
    Broker,
    /// A channel has rung; only after [`Waker::watch_bells`].
    Bell,
    /// The last copy of this descriptor is closed.
    HungUp(AppId, HandleId),
}

/// Descriptors whose events end a sleep: bells of channels, the broker's connection, handles.
#[derive(Debug)]
pub struct Waker {
    epoll: OwnedFd,
    /// The bells, in a set of their own: the commands are in memory.
    bells: OwnedFd,
}

impl Waker {
    /// Makes a waker without descriptors.
    ///
    /// # Errors
    /// If the kernel provides no epoll set.
    pub fn new() -> io::Result<Waker> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bells = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Waker { epoll, bells })
    }

    /// Returns a descriptor that is readable after an event other than a ring.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Returns an epoll set with an event for each channel that has rung since the last poll.
    pub(crate) fn bells(&self) -> BorrowedFd<'_> {
        self.bells.as_fd()
    }

    /// Makes [`Waker::fd`] report rings as well.
    ///
    /// # Errors
    /// If the kernel does not watch the set.
    pub fn watch_bells(&self) -> io::Result<()> {
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        Ok(epoll::add(
            &self.epoll,
            &self.bells,
            data(NONE, RUNG),
            edge,
        )?)
    }

    /// Watches the bell of a channel until [`Waker::remove_bell`]: the application has a copy. A
    /// ring is an edge; the bell is never read, since the application could make the read block.
    ///
    /// # Errors
    /// If the kernel does not watch it.
    pub fn add_bell(&self, bell: BorrowedFd<'_>) -> io::Result<()> {
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        Ok(epoll::add(&self.bells, bell, data(NONE, RUNG), edge)?)
    }

    /// Watches the connection to the broker, until it is closed.
    ///
    /// # Errors
    /// If the kernel does not watch it.
    pub fn add_broker(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let data = data(NONE, BROUGHT);
        Ok(epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN)?)
    }

    /// Starts or stops watching the connection to the broker for room.
    pub fn watch_broker(&self, fd: BorrowedFd<'_>, for_room: bool) {
        let mut flags = epoll::EventFlags::IN;
        flags.set(epoll::EventFlags::OUT, for_room);
        // Fails for a connection that was closed after its end was found.
        let _ = epoll::modify(&self.epoll, fd, data(NONE, BROUGHT), flags);
    }

    /// Watches a handle for its hang-up alone, which is reported once; bytes that an application
    /// writes there are ignored. Closing the handle ends the watch once the broker has closed its
    /// copy; until then, a hang-up of a closed handle may be reported.
    ///
    /// # Errors
    /// If the kernel does not watch it.
    pub fn add_handle(&self, fd: BorrowedFd<'_>, app: AppId, handle: HandleId) -> io::Result<()> {
        let data = data(app.0, handle.0);
        Ok(epoll::add(&self.epoll, fd, data, epoll::EventFlags::ET)?)
    }

    /// Stops watching the bell of a channel, whose copy at the application may stay open.
    pub fn remove_bell(&self, fd: BorrowedFd<'_>) {
        // Fails if it was never added.
        let _ = epoll::delete(&self.bells, fd);
    }

    /// Returns the events since the last look, at most `EVENTS_MAX`. A hang-up is reported once.
    pub fn look(&self) -> Vec<Woken> {
        let mut events = [NO_EVENT; EVENTS_MAX];
        let count = epoll::wait(&self.epoll, &mut events[..], Some(&NO_TIME)).unwrap_or(0);
        let woken = events[..count].iter().map(|event| {
            let data = event.data.u64();
            match ((data >> 32) as u32, data as u32) {
                (NONE, RUNG) => Woken::Bell,
                (NONE, _) => Woken::Broker,
                (app, handle) => Woken::HungUp(AppId(app), HandleId(handle)),
            }
        });
        woken.collect()
    }
}
