//! A channel: a command ring, an event ring and their wake-ups.
//!
//! A channel's memory is a command ring of [`COMMAND_RING_BYTES`], followed by an event ring of
//! [`EVENT_RING_BYTES`], each as [`shm::ring`] lays it out. Each end is woken by an event
//! descriptor of its own, for messages as for room.
//!
//! An end works in rounds:
//!
//! 1. `receive` until there is nothing more;
//! 2. `send` pending messages, as long as `has_room`;
//! 3. `flush`, once;
//! 4. when a few rounds have brought nothing, `prepare_sleep`; if it is true, wait until `wake_fd`
//!    is readable or a timer has run out; `finish_sleep`.
//!
//! Neither end can stall the other by not reading: an end that waits for room is woken when there
//! is some.

use std::fmt;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;

use shm::end::{Bells, End};
use shm::memory::{Mapping, Memory};
use shm::ring::{Consumer, Producer, capacity_bytes_min, ring, ring_words};
use shm::sync::Arc;
use zeroize::Zeroize;

use crate::codec::{EVENT_BYTES_MAX, Malformed, is_secret};
use crate::command::{Command, Send};
use crate::event::Event;
use crate::limits::{COMMAND_RING_BYTES, EVENT_RING_BYTES, MESSAGE_BYTES_MAX};
use crate::segment::Segment;

pub use shm::ring::{Corrupt, Full};

/// Words of a channel's memory: the command ring, then the event ring.
pub(crate) const CHANNEL_WORDS: usize =
    ring_words(COMMAND_RING_BYTES) + ring_words(EVENT_RING_BYTES);

/// One end of a channel: [`HostChannel`] or [`NicChannel`].
#[derive(Debug)]
pub struct Channel<S> {
    end: End,
    /// Buffer in which messages are encoded.
    message: Vec<u8>,
    side: PhantomData<S>,
}

/// The host stack's end.
pub type HostChannel = Channel<HostSide>;

/// The NIC stack's end.
pub type NicChannel = Channel<NicSide>;

/// The host stack: sends commands, receives events.
#[derive(Debug)]
pub enum HostSide {}

/// The NIC stack: sends events, receives commands.
#[derive(Debug)]
pub enum NicSide {}

/// The difference between the two ends of a channel: their rings, and the length of their records.
pub trait Side {
    /// Longest record that this end sends, in bytes.
    const RECORD_BYTES_MAX: usize;
    /// Whether received records may contain keys: these must not stay in the ring.
    const RECEIVES_KEYS: bool;
    /// Selects this end's producer and consumer.
    #[doc(hidden)]
    fn of(rings: Rings) -> (Producer, Consumer);
}

impl Side for HostSide {
    const RECORD_BYTES_MAX: usize = MESSAGE_BYTES_MAX;
    const RECEIVES_KEYS: bool = false;
    fn of(rings: Rings) -> (Producer, Consumer) {
        (rings.commands.0, rings.events.1)
    }
}

impl Side for NicSide {
    const RECORD_BYTES_MAX: usize = EVENT_BYTES_MAX;
    const RECEIVES_KEYS: bool = true;
    fn of(rings: Rings) -> (Producer, Consumer) {
        (rings.events.0, rings.commands.1)
    }
}

/// Why nothing could be read from a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveError {
    /// The message does not decode; it has been skipped.
    Malformed {
        /// Best guess of the command's id, zero if there was none.
        id: u64,
    },
    /// The ring's indices are invalid: the peer is broken, the channel is unusable.
    Corrupt,
}

/// Capacities of the rings of a channel, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// The command ring.
    pub command_bytes: usize,
    /// The event ring.
    pub event_bytes: usize,
}

impl Capacity {
    /// The capacity between a host and a NIC stack.
    pub const FULL: Capacity = Capacity {
        command_bytes: COMMAND_RING_BYTES,
        event_bytes: EVENT_RING_BYTES,
    };

    /// The minimum for rings: two of the longest messages.
    pub const LEAST: Capacity = Capacity {
        command_bytes: capacity_bytes_min(MESSAGE_BYTES_MAX),
        event_bytes: capacity_bytes_min(EVENT_BYTES_MAX),
    };
}

/// Both ends of a channel on this process's memory, without system calls: for tests and simulation.
pub fn in_memory() -> (HostChannel, NicChannel) {
    in_memory_of(Capacity::FULL)
}

/// The same with rings of another capacity, to see what happens when they are full.
///
/// # Panics
/// If a capacity is no power of two, or below [`Capacity::LEAST`].
pub fn in_memory_of(capacity: Capacity) -> (HostChannel, NicChannel) {
    let words = ring_words(capacity.command_bytes) + ring_words(capacity.event_bytes);
    let memory = Arc::new(Memory::heap(words));
    (
        Channel::over(&memory, capacity, None),
        Channel::over(&memory, capacity, None),
    )
}

impl<S: Side> Channel<S> {
    pub(crate) fn mapped(mapping: Mapping, bells: Bells) -> Self {
        let memory = Arc::new(Memory::Mapped(mapping));
        Channel::over(&memory, Capacity::FULL, Some(bells))
    }

    fn over(memory: &Arc<Memory>, capacity: Capacity, bells: Option<Bells>) -> Self {
        let (out, incoming) = S::of(Rings::over(memory, capacity));
        Channel {
            end: End::new(out, incoming, bells),
            message: Vec::with_capacity(MESSAGE_BYTES_MAX),
            side: PhantomData,
        }
    }

    /// True if any message, however long, fits now.
    pub fn has_room(&mut self) -> bool {
        self.end.out.has_room()
    }

    /// Publishes the written records, and wakes the peer if it sleeps.
    pub fn flush(&mut self) {
        self.end.flush();
    }

    /// Writes a record of a peer elsewhere unchanged. The reader rejects records that do not
    /// decode.
    ///
    /// # Panics
    /// If it is longer than [`Side::RECORD_BYTES_MAX`].
    pub fn send_record(&mut self, record: &[u8]) -> Result<(), Full> {
        self.end.out.write(record)
    }

    /// Returns the next record unchanged, for a peer elsewhere.
    pub fn receive_record(&mut self) -> Result<Option<&[u8]>, Corrupt> {
        if S::RECEIVES_KEYS {
            self.receive_erasing_secrets()
        } else {
            self.end.receive()
        }
    }

    fn send_encoded(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> Result<(), Full> {
        self.message.clear();
        encode(&mut self.message);
        let written = self.end.out.write(&self.message);
        if is_secret(&self.message) {
            self.message.zeroize();
        }
        written
    }

    /// Returns the next record; keys are erased from the ring.
    fn receive_erasing_secrets(&mut self) -> Result<Option<&[u8]>, Corrupt> {
        let secret = self.end.receive()?.map(is_secret);
        if secret == Some(true) {
            self.end.incoming.erase();
        }
        Ok(secret.map(|_| self.end.incoming.last()))
    }

    /// Like `prepare_sleep`, for a caller that passes records on: for records only if
    /// `for_records`, since it may have to leave them where they are, and for room if there was
    /// none when asked.
    pub fn prepare_sleep_to_carry(&mut self, for_records: bool) -> bool {
        self.end.prepare_sleep(for_records)
    }

    /// Disarms the wake-up and drains its descriptor.
    pub fn finish_sleep(&mut self) {
        self.end.finish_sleep();
    }

    /// Disarms the wake-up, and leaves its descriptor as it is: for one that watches it by its
    /// edges.
    pub fn disarm(&mut self) {
        self.end.disarm();
    }

    /// Readable when the peer has woken this end. `None` for [`in_memory`].
    pub fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.end.wake_fd()
    }
}

impl HostChannel {
    /// Writes a command. It becomes visible to the peer with the next [`HostChannel::flush`].
    ///
    /// The peer rejects a command that breaks a rule of its documentation ([`Command::check`]).
    ///
    /// # Panics
    /// If the command is longer than [`MESSAGE_BYTES_MAX`]: it never fits.
    pub fn send(&mut self, command: &Command<'_>) -> Result<(), Full> {
        self.send_encoded(|message| command.encode(message))
    }

    /// Writes a SEND like [`HostChannel::send`], without its segments having been collected: they
    /// are asked for several times.
    pub fn send_segments<'a, S>(&mut self, send: &Send<'a, S>) -> Result<(), Full>
    where
        S: Iterator<Item = Segment<'a>> + Clone,
    {
        match send.of_one_range(send.segments.clone()) {
            Some(records) => self.end.out.write_parts(&records, send.header),
            None => self.send_encoded(|message| send.encode(send.segments.clone(), message)),
        }
    }

    /// Asks the NIC stack for a heartbeat and wakes it. Returns how many in a row it has missed,
    /// since its first.
    pub fn heartbeat(&mut self) -> u32 {
        let missed = self.end.out.heartbeat();
        self.end.wake_peer();
        missed
    }

    /// The next event, if there is one.
    pub fn receive(&mut self) -> Result<Option<Event>, ReceiveError> {
        match self.end.receive()? {
            Some(message) => Ok(Some(Event::decode(message)?)),
            None => Ok(None),
        }
    }

    /// Arms the wake-up: for events and, if there was no room when asked, for room for any message.
    /// False if either has come meanwhile: do not sleep. Flushes.
    pub fn prepare_sleep(&mut self) -> bool {
        // Events always wake the host, even one that waits for room: a NIC stack without room for
        // events waits for the host, so both would sleep for ever.
        self.end.prepare_sleep(true)
    }
}

impl NicChannel {
    /// Writes an event. It becomes visible to the peer with the next [`NicChannel::flush`].
    pub fn send(&mut self, event: &Event) -> Result<(), Full> {
        self.send_encoded(|message| event.encode(message))
    }

    /// Publishes the written records. A sleeping peer is woken by the next [`NicChannel::flush`].
    pub fn publish(&mut self) {
        self.end.publish();
    }

    /// Answers the host stack's heartbeat, if it has asked for one. To be called in every round.
    pub fn answer_heartbeat(&mut self) {
        self.end.incoming.answer_heartbeat();
    }

    /// The next command, if there is one. It borrows a private copy: the peer cannot change it any
    /// more. Of a key, nothing is left in the ring, and with the next call nothing in the copy.
    pub fn receive(&mut self) -> Result<Option<Command<'_>>, ReceiveError> {
        match self.receive_erasing_secrets()? {
            Some(message) => Ok(Some(Command::decode(message)?)),
            None => Ok(None),
        }
    }

    /// Arms the wake-up: for commands or, if there was no room when asked, for room for any message
    /// alone, since a NIC stack that cannot report leaves commands where they are. False if it has
    /// come meanwhile: do not sleep. Flushes.
    pub fn prepare_sleep(&mut self) -> bool {
        let for_messages = !self.end.out.is_starved();
        self.end.prepare_sleep(for_messages)
    }
}

/// The rings of a channel, each by its two ends.
#[derive(Debug)]
pub struct Rings {
    commands: (Producer, Consumer),
    events: (Producer, Consumer),
}

impl Rings {
    fn over(memory: &Arc<Memory>, capacity: Capacity) -> Self {
        let Capacity {
            command_bytes,
            event_bytes,
        } = capacity;
        let events = ring_words(command_bytes);
        Rings {
            commands: ring(memory, 0, command_bytes, MESSAGE_BYTES_MAX),
            events: ring(memory, events, event_bytes, EVENT_BYTES_MAX),
        }
    }
}

impl From<Corrupt> for ReceiveError {
    fn from(_: Corrupt) -> Self {
        ReceiveError::Corrupt
    }
}

impl From<Malformed> for ReceiveError {
    fn from(malformed: Malformed) -> Self {
        ReceiveError::Malformed { id: malformed.id }
    }
}

impl fmt::Display for ReceiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReceiveError::Malformed { id } => write!(f, "a message (id {id}) does not decode"),
            ReceiveError::Corrupt => Corrupt.fmt(f),
        }
    }
}

impl std::error::Error for ReceiveError {}
