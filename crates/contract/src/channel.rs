//! A channel: a command ring, an event ring and their wake-ups.

use std::os::fd::BorrowedFd;

use crate::command::Command;
use crate::event::Event;

/// The ring has no room for the message now. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The host stack's end.
#[derive(Debug)]
pub struct HostChannel {}

/// The NIC stack's end.
#[derive(Debug)]
pub struct NicChannel {}

/// Why nothing could be read from a ring.
#[derive(Debug)]
pub enum ReceiveError {
    /// The message does not decode; it has been skipped. The id is what stood where an id should.
    Malformed {
        /// Best guess of the command's id, zero if there was none.
        id: u64,
    },
    /// The ring's own indices make no sense: the peer is broken, the channel is unusable.
    Corrupt,
}

/// Both ends of a channel on this process's memory, without system calls: for tests and simulation.
pub fn in_memory() -> (HostChannel, NicChannel) {
    todo!()
}

impl HostChannel {
    /// True if any command, however long, fits now.
    pub fn has_room(&mut self) -> bool {
        todo!()
    }
    /// Writes a command. It becomes visible to the peer with the next [`HostChannel::flush`].
    pub fn send(&mut self, _command: &Command<'_>) -> Result<(), Full> {
        todo!()
    }
    /// Publishes what was written and wakes the peer if it sleeps.
    pub fn flush(&mut self) {
        todo!()
    }
    /// The next event, if there is one.
    pub fn receive(&mut self) -> Result<Option<Event>, ReceiveError> {
        todo!()
    }
    /// Arms the wake-up. False if events have come meanwhile: do not sleep.
    pub fn prepare_sleep(&mut self) -> bool {
        todo!()
    }
    /// Disarms the wake-up and drains its descriptor.
    pub fn finish_sleep(&mut self) {
        todo!()
    }
    /// Readable when the peer has woken this end. `None` for [`in_memory`].
    pub fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        todo!()
    }
}

impl NicChannel {
    /// True if any event fits now.
    pub fn has_room(&mut self) -> bool {
        todo!()
    }
    /// Writes an event. It becomes visible to the peer with the next [`NicChannel::flush`].
    pub fn send(&mut self, _event: &Event) -> Result<(), Full> {
        todo!()
    }
    /// Publishes what was written and wakes the peer if it sleeps.
    pub fn flush(&mut self) {
        todo!()
    }
    /// The next command, if there is one. It borrows a private copy: the peer cannot change it any more.
    pub fn receive(&mut self) -> Result<Option<Command<'_>>, ReceiveError> {
        todo!()
    }
    /// Arms the wake-up. False if commands have come meanwhile: do not sleep.
    pub fn prepare_sleep(&mut self) -> bool {
        todo!()
    }
    /// Disarms the wake-up and drains its descriptor.
    pub fn finish_sleep(&mut self) {
        todo!()
    }
    /// Readable when the peer has woken this end. `None` for [`in_memory`].
    pub fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        todo!()
    }
}
