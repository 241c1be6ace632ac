//! A channel: command ring and event ring of one process, and their wakeups.
//!
//! The memory is a command ring of [`COMMAND_RING_BYTES`], followed by an event ring of
//! [`EVENT_RING_BYTES`], each in the layout of [`shm::ring`]. An end works in rounds: `receive`
//! until the ring is empty or a budget is used up, `send` as long as `has_room`, `flush` once, and
//! `prepare_sleep` after a few idle rounds.
//!
//! Neither end can stall the other by not reading: an end without room is woken when there is room.

use std::ffi::CStr;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use shm::end::{Bells, End};
use shm::memory::{Mapping, Memory};
use shm::ring::{Consumer, Corrupt, Full, Producer, ring, ring_words};
use shm::sync::Arc;

use crate::message::{COMMAND_BYTES_MAX, Command, EVENT_BYTES_MAX, Event, Malformed};

/// Capacity of a command ring, in bytes.
pub const COMMAND_RING_BYTES: usize = 64 << 10;

/// Capacity of an event ring, in bytes.
pub const EVENT_RING_BYTES: usize = 64 << 10;

/// Words of a channel's memory.
pub const CHANNEL_WORDS: usize = ring_words(COMMAND_RING_BYTES) + ring_words(EVENT_RING_BYTES);

/// One end of a channel: [`HostEnd`] or [`AppEnd`].
#[derive(Debug)]
pub struct Channel<S> {
    end: End,
    /// Buffer for encoding messages.
    message: Vec<u8>,
    side: PhantomData<S>,
}

/// The host stack's end: sends events, receives commands.
pub type HostEnd = Channel<HostSide>;

/// The application's end: sends commands, receives events.
pub type AppEnd = Channel<AppSide>;

/// The host stack.
#[derive(Debug)]
pub enum HostSide {}

/// The application.
#[derive(Debug)]
pub enum AppSide {}

/// Reason why no message could be received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveError {
    /// The message does not decode; it has been skipped.
    Malformed,
    /// The ring's indices are invalid: the peer is broken, the channel is unusable.
    Corrupt,
}

/// Assignment of a channel's rings to its sides.
trait Side {
    /// Returns this end's producer and consumer.
    fn of(rings: Rings) -> (Producer, Consumer);
}

struct Rings {
    commands: (Producer, Consumer),
    events: (Producer, Consumer),
}

impl Side for HostSide {
    fn of(rings: Rings) -> (Producer, Consumer) {
        (rings.events.0, rings.commands.1)
    }
}

impl Side for AppSide {
    fn of(rings: Rings) -> (Producer, Consumer) {
        (rings.commands.0, rings.events.1)
    }
}

/// Creates a zeroed memory file for a channel.
pub fn create_file() -> io::Result<OwnedFd> {
    const NAME: &CStr = c"splitway-sockets";
    shm::memory::create_file(NAME, CHANNEL_WORDS)
}

/// Creates a bell: a nonblocking eventfd.
pub fn create_bell() -> io::Result<OwnedFd> {
    Ok(shm::end::new_bell()?)
}

/// Creates the bell of an application: the host stack's end, and a descriptor whose edges the
/// application watches. The application can neither fill nor block the host's end.
pub fn create_app_bell() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(shm::end::new_guarded_bell()?)
}

/// Makes both ends of a channel on the heap, without system calls: for tests and simulation.
pub fn in_memory() -> (HostEnd, AppEnd) {
    let memory = Arc::new(Memory::heap(CHANNEL_WORDS));
    (Channel::over(&memory, None), Channel::over(&memory, None))
}

#[allow(private_bounds, reason = "there are two sides")]
impl<S: Side> Channel<S> {
    fn over(memory: &Arc<Memory>, bells: Option<Bells>) -> Self {
        let events = ring_words(COMMAND_RING_BYTES);
        let (out, incoming) = S::of(Rings {
            commands: ring(memory, 0, COMMAND_RING_BYTES, COMMAND_BYTES_MAX),
            events: ring(memory, events, EVENT_RING_BYTES, EVENT_BYTES_MAX),
        });
        Channel {
            end: End::new(out, incoming, bells),
            message: Vec::with_capacity(COMMAND_BYTES_MAX),
            side: PhantomData,
        }
    }

    /// Returns the numbers of its bells.
    pub fn descriptors(&self) -> Vec<RawFd> {
        let bells = self.end.bells().into_iter();
        let both = bells.flat_map(|bells| [&bells.own, &bells.peer]);
        both.map(AsRawFd::as_raw_fd).collect()
    }

    /// Maps a channel's file. `own_bell` wakes this end, `peer_bell` the other. A file of another
    /// size, or an unsealed one, fails with `InvalidData`.
    pub fn from_files(file: impl AsFd, own_bell: OwnedFd, peer_bell: OwnedFd) -> io::Result<Self> {
        let mapping = Mapping::new(file, CHANNEL_WORDS)?;
        let bells = Bells::never_blocking(own_bell, peer_bell)?;
        Ok(Channel::over(
            &Arc::new(Memory::Mapped(mapping)),
            Some(bells),
        ))
    }

    /// Reports whether a message of any length fits now.
    pub fn has_room(&mut self) -> bool {
        self.end.out.has_room()
    }

    /// Publishes sent messages, and wakes the peer if it sleeps.
    pub fn flush(&mut self) {
        self.end.flush();
    }

    /// Publishes sent messages. The next flush wakes a sleeping peer.
    pub fn publish(&mut self) {
        self.end.publish();
    }

    /// Disarms the wakeup and drains its descriptor.
    pub fn finish_sleep(&mut self) {
        self.end.finish_sleep();
    }

    /// Disarms the wakeup without draining its descriptor: for one that several sleepers watch by
    /// its edges.
    pub fn disarm(&mut self) {
        self.end.disarm();
    }

    /// Returns a descriptor that is readable when the peer has woken this end. `None` for
    /// [`in_memory`].
    pub fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.end.wake_fd()
    }

    fn send_encoded(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> Result<(), Full> {
        self.message.clear();
        encode(&mut self.message);
        self.end.out.write(&self.message)
    }
}

impl HostEnd {
    /// Writes an event. The next flush makes it visible.
    pub fn send(&mut self, event: &Event) -> Result<(), Full> {
        self.send_encoded(|message| event.encode(message))
    }

    /// Receives the next command, if any. It borrows a private copy.
    pub fn receive(&mut self) -> Result<Option<Command<'_>>, ReceiveError> {
        match self.end.receive()? {
            Some(message) => Ok(Some(Command::decode(message)?)),
            None => Ok(None),
        }
    }

    /// Returns the end of the commands that the application has sent so far, for
    /// [`HostEnd::has_read_to`]. The application may have written any value.
    pub fn published(&self) -> u64 {
        self.end.incoming.published()
    }

    /// Reports whether all commands before `end`, a result of [`HostEnd::published`], were
    /// received.
    pub fn has_read_to(&self, end: u64) -> bool {
        self.end.incoming.has_read_to(end)
    }

    /// Arms the wakeup: for commands or, after [`Channel::has_room`] has failed, only for room for
    /// any event, since a host stack that cannot answer takes no commands. False if the condition
    /// already holds: do not sleep. Flushes.
    pub fn prepare_sleep(&mut self) -> bool {
        let for_messages = !self.end.out.is_starved();
        self.end.prepare_sleep(for_messages)
    }
}

impl AppEnd {
    /// Writes a command. The next flush makes it visible.
    ///
    /// # Panics
    /// If a path is longer than [`crate::message::PATH_BYTES_MAX`].
    pub fn send(&mut self, command: &Command<'_>) -> Result<(), Full> {
        self.send_encoded(|message| command.encode(message))
    }

    /// Publishes sent commands, and wakes the host stack even if it has not armed its wakeup: the
    /// caller waits for an answer, and the host stack may be resting to batch commands.
    pub fn hurry(&mut self) {
        self.end.hurry();
    }

    /// Receives the next event, if any.
    pub fn receive(&mut self) -> Result<Option<Event>, ReceiveError> {
        match self.end.receive()? {
            Some(message) => Ok(Some(Event::decode(message)?)),
            None => Ok(None),
        }
    }

    /// Arms the wakeup: for events and, after [`Channel::has_room`] has failed, for room for any
    /// command. False if either condition already holds: do not sleep. Flushes.
    pub fn prepare_sleep(&mut self) -> bool {
        self.end.prepare_sleep(true)
    }
}

impl From<Corrupt> for ReceiveError {
    fn from(_: Corrupt) -> Self {
        ReceiveError::Corrupt
    }
}

impl From<Malformed> for ReceiveError {
    fn from(_: Malformed) -> Self {
        ReceiveError::Malformed
    }
}

impl fmt::Display for ReceiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReceiveError::Malformed => Malformed.fmt(f),
            ReceiveError::Corrupt => Corrupt.fmt(f),
        }
    }
}

impl std::error::Error for ReceiveError {}
