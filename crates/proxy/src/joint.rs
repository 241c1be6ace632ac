//! Two established streams, joined: what comes from one goes to the other, ends included.
//!
//! Where that is asked for, a NIC stack moves them in the host's place, as soon as so many have
//! gone that it is worth it: a splice. It takes both streams and reports bytes and the end, as
//! [`Joint::advance`] does. What is not spliced, or comes back, is copied.

use std::time::Duration;

use host::app::{Io, StreamId};
use host::splicing::{SpliceError, SpliceEvent, SpliceLimits};

use crate::buffer::{Buffer, COPY_BYTES};

/// Bytes that a joint copies before it is spliced: joining takes a round trip in which nothing
/// moves, and a short exchange is over before.
const COPIED_BYTES_MIN: u64 = 64 << 10;

/// Who moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mover {
    /// This side, to the end.
    Host,
    /// This side, until enough has moved. Both peers may be silent for so long.
    HostAtFirst { idle: Duration },
    /// A NIC stack, or it is about to. So many bytes it has said to have moved.
    Nic { bytes: [u64; 2] },
}

/// One direction.
#[derive(Debug, Default)]
struct Flow {
    buffer: Buffer,
    /// The sender has sent FIN.
    has_ended: bool,
    /// The receiver has been sent FIN.
    is_over: bool,
    bytes: u64,
}

impl Flow {
    /// Moves what there is; returns how many bytes the receiver took.
    fn advance(
        &mut self,
        io: &mut dyn Io,
        (from, to): (StreamId, StreamId),
        scratch: &mut [u8],
    ) -> u64 {
        let mut moved = 0;
        while !self.is_over {
            let before = self.buffer.len();
            let is_taken = self.buffer.flush(io, to);
            moved += (before - self.buffer.len()) as u64;
            if !is_taken || self.buffer.fill(io, from, scratch, COPY_BYTES) == 0 {
                break;
            }
        }
        if self.has_ended && self.buffer.is_empty() && !self.is_over {
            self.is_over = true;
            io.shutdown(to);
        }
        self.bytes += moved;
        moved
    }
}

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Joint {
    client: StreamId,
    backend: StreamId,
    up: Flow,
    down: Flow,
    mover: Mover,
}

/// What has come of an advance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    /// Bytes that went to the backend.
    pub(crate) up: u64,
    /// Bytes that went to the client.
    pub(crate) down: u64,
    /// Both directions have ended, in order.
    pub(crate) is_over: bool,
}

impl Joint {
    /// Joins two streams. What has been read of them and belongs to the other goes first.
    pub(crate) fn new(
        (client, from_client): (StreamId, Buffer),
        (backend, from_backend): (StreamId, Buffer),
    ) -> Self {
        let flow = |buffer| Flow {
            buffer,
            ..Flow::default()
        };
        Joint {
            client,
            backend,
            up: flow(from_client),
            down: flow(from_backend),
            mover: Mover::Host,
        }
    }

    /// Lets a NIC stack move the bytes, if it can. Both peers may be silent for so long.
    pub(crate) fn may_splice(&mut self, idle: Duration) {
        self.mover = Mover::HostAtFirst { idle };
    }

    /// A NIC stack moves the bytes, or is about to.
    pub(crate) fn is_spliced(&self) -> bool {
        matches!(self.mover, Mover::Nic { .. })
    }

    /// Has a NIC stack move the bytes, if it is time: nothing is left here, and both directions are
    /// open. `Some` if it was asked to.
    pub(crate) fn splice(&mut self, io: &mut dyn Io) -> Option<Result<(), SpliceError>> {
        let Mover::HostAtFirst { idle } = self.mover else {
            return None;
        };
        let flows = [&self.up, &self.down];
        let is_clear = |flow: &Flow| flow.buffer.is_empty() && !flow.has_ended && !flow.is_over;
        let copied: u64 = flows.iter().map(|flow| flow.bytes).sum();
        if copied < COPIED_BYTES_MIN || !flows.into_iter().all(is_clear) {
            return None;
        }
        let limits = SpliceLimits {
            idle: Some(idle),
            life: None,
        };
        let asked = io.splice(self.client, self.backend, limits);
        self.mover = match asked {
            Ok(()) => Mover::Nic { bytes: [0; 2] },
            Err(_) => Mover::Host,
        };
        Some(asked)
    }

    /// A NIC stack has something to say of the two streams: what has moved since it last did.
    pub(crate) fn on_splice(&mut self, event: &SpliceEvent) -> Moved {
        let mut moved = [0; 2];
        if let (Mover::Nic { bytes: before }, Some(bytes)) = (&mut self.mover, bytes_in(event)) {
            moved = [0, 1].map(|side| bytes[side].saturating_sub(before[side]));
            *before = bytes;
        }
        if let SpliceEvent::Returned { .. } | SpliceEvent::Ended { .. } = event {
            self.mover = Mover::Host;
        }
        let [up, down] = moved;
        self.up.bytes += up;
        self.down.bytes += down;
        Moved {
            up,
            down,
            is_over: false,
        }
    }

    /// One of the two has sent FIN.
    pub(crate) fn on_peer_finished(&mut self, stream: StreamId) {
        let flow = match stream == self.client {
            true => &mut self.up,
            false => &mut self.down,
        };
        flow.has_ended = true;
    }

    /// One of the two is over, in order: both of its directions have ended. What had come from it
    /// and was not read, which may be a window full, is taken here, and not later.
    pub(crate) fn on_closed(&mut self, io: &mut dyn Io, stream: StreamId) {
        let (from, to) = match stream == self.client {
            true => (&mut self.up, &mut self.down),
            false => (&mut self.down, &mut self.up),
        };
        from.buffer.tail().extend(io.take_unread(stream));
        from.has_ended = true;
        to.buffer.clear();
        to.is_over = true;
    }

    /// Moves what there is, as far as each side takes it.
    pub(crate) fn advance(&mut self, io: &mut dyn Io, scratch: &mut [u8]) -> Moved {
        if self.is_spliced() {
            return Moved::default();
        }
        let up = self.up.advance(io, (self.client, self.backend), scratch);
        let down = self.down.advance(io, (self.backend, self.client), scratch);
        Moved {
            up,
            down,
            is_over: self.up.is_over && self.down.is_over,
        }
    }

    /// The backend.
    pub(crate) fn backend(&self) -> StreamId {
        self.backend
    }

    /// Bytes that have gone to the client.
    pub(crate) fn down_bytes(&self) -> u64 {
        self.down.bytes
    }
}

/// How many bytes of each stream an event of a splice tells of.
fn bytes_in(event: &SpliceEvent) -> Option<[u64; 2]> {
    match *event {
        SpliceEvent::Joined => None,
        SpliceEvent::Progress { bytes }
        | SpliceEvent::Returned { bytes, .. }
        | SpliceEvent::Ended { bytes, .. } => Some(bytes),
    }
}
