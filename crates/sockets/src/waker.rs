//! Descriptors that end a sleep of the shard: the bells of channels, and handles that hang up.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{Timespec, epoll};
use socket_channel::{AppId, HandleId};

/// Most events that one look takes; others are there at the next.
pub(crate) const EVENTS_MAX: usize = 256;

const NO_TIME: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

const NO_EVENT: epoll::Event = epoll::Event {
    flags: epoll::EventFlags::empty(),
    data: epoll::EventData::new_u64(0),
};

/// In the place of an application's number, which is never 0, if an event is of no handle; and in
/// the place of the handle's, what it is of.
const NONE: u32 = 0;
const BROUGHT: u32 = 0;
const RUNG: u32 = 1;

fn data(app: u32, handle: u32) -> epoll::EventData {
    epoll::EventData::new_u64(u64::from(app) << 32 | u64::from(handle))
}

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// Something has arrived from the broker.
    Broker,
    /// A channel has rung; only after [`Waker::watch_bells`].
    Bell,
    /// The last copy of this descriptor is closed.
    HungUp(AppId, HandleId),
}

/// Descriptors whose events end a sleep: the bells of channels, the way to the broker, handles.
#[derive(Debug)]
pub struct Waker {
    epoll: OwnedFd,
    /// The bells, in a set of their own: what they tell is in memory.
    bells: OwnedFd,
}

impl Waker {
    /// Without descriptors.
    ///
    /// # Errors
    /// If the kernel gives none to wait on.
    pub fn new() -> io::Result<Waker> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bells = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Waker { epoll, bells })
    }

    /// Readable when something has happened, but for rings.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// An epoll set that has an event for each channel which has rung since it was asked last.
    pub(crate) fn bells(&self) -> BorrowedFd<'_> {
        self.bells.as_fd()
    }

    /// Has [`Waker::fd`] tell of rings as well.
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

    /// Watches the bell of a channel, until [`Waker::remove_bell`]: the application has a copy. A
    /// ring is an edge, and the bell is never read, which the application could make block.
    ///
    /// # Errors
    /// If the kernel does not watch it.
    pub fn add_bell(&self, bell: BorrowedFd<'_>) -> io::Result<()> {
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        Ok(epoll::add(&self.bells, bell, data(NONE, RUNG), edge)?)
    }

    /// Watches the way to the broker. Closing it ends that.
    ///
    /// # Errors
    /// If the kernel does not watch it.
    pub fn add_broker(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let data = data(NONE, BROUGHT);
        Ok(epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN)?)
    }

    /// Watches the way to the broker for room as well, or no longer.
    pub fn watch_broker(&self, fd: BorrowedFd<'_>, for_room: bool) {
        let mut flags = epoll::EventFlags::IN;
        flags.set(epoll::EventFlags::OUT, for_room);
        // One whose end was found is closed, and watched no more.
        let _ = epoll::modify(&self.epoll, fd, data(NONE, BROUGHT), flags);
    }

    /// Watches a handle for its hang-up alone, which comes once: what an application writes there
    /// says nothing. Closing it ends that, as soon as the broker has closed its copy: until then,
    /// there may be the hang-up of a handle that is no more.
    ///
    /// # Errors
    /// If the kernel does not watch it.
    pub fn add_handle(&self, fd: BorrowedFd<'_>, app: AppId, handle: HandleId) -> io::Result<()> {
        let data = data(app.0, handle.0);
        Ok(epoll::add(&self.epoll, fd, data, epoll::EventFlags::ET)?)
    }

    /// Stops watching the bell of a channel: the application's copy may stay open.
    pub fn remove_bell(&self, fd: BorrowedFd<'_>) {
        // It may never have been added.
        let _ = epoll::delete(&self.bells, fd);
    }

    /// What has happened since, as far as one look takes it. A hang-up does not come again.
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
