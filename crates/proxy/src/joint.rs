//! Two established streams, joined: bytes from one go to the other, and so does its end.
//!
//! If requested, a NIC stack moves the bytes in the host's place, once enough have moved for that
//! to be worth it: a splice. It takes both streams and reports bytes and the end, as
//! [`Joint::advance`] does. Bytes that are not spliced, or are returned, are copied.
//!
//! If one peer is faster than the other, some of its bytes always wait here, and a splice requires
//! that none do. So once enough bytes have moved, nothing more is read until none wait.

use std::time::Duration;

use host::app::{Io, StreamId};
use host::splicing::{SpliceError, SpliceEvent, SpliceLimits};

use crate::buffer::{Buffer, COPY_BYTES};

/// Bytes that a joint copies before it is spliced: joining takes a round trip in which nothing
/// moves, and a short exchange is over before.
const COPIED_BYTES_MIN: u64 = 64 << 10;

/// The side that moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mover {
    /// The host, to the end.
    Host,
    /// The host, until `bytes_min` bytes have moved. Both peers may be silent for `idle`.
    HostAtFirst { idle: Duration, bytes_min: u64 },
    /// A NIC stack, now or soon. It has reported `bytes` as moved.
    Nic { idle: Duration, bytes: [u64; 2] },
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
    /// True if neither the sender's nor the receiver's end of the direction has ended.
    fn is_open(&self) -> bool {
        !self.has_ended && !self.is_over
    }

    /// Moves available bytes, reading `bytes_max` at most; returns the number of bytes that the
    /// receiver took.
    fn advance(
        &mut self,
        io: &mut dyn Io,
        (from, to): (StreamId, StreamId),
        scratch: &mut [u8],
        mut bytes_max: u64,
    ) -> u64 {
        let mut moved = 0;
        while !self.is_over {
            let before = self.buffer.len();
            let is_taken = self.buffer.flush(io, to);
            moved += (before - self.buffer.len()) as u64;
            if !is_taken {
                break;
            }
            let room = COPY_BYTES.min(usize::try_from(bytes_max).unwrap_or(usize::MAX));
            let count = self.buffer.fill(io, from, scratch, room);
            if count == 0 {
                break;
            }
            bytes_max -= count as u64;
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

/// The result of an advance.
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
    /// Joins two streams. The bytes in a buffer have been read from its stream, and go to the other
    /// one first.
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

    /// Permits a splice. Both peers may be silent for `idle`.
    pub(crate) fn may_splice(&mut self, idle: Duration) {
        let bytes_min = COPIED_BYTES_MIN;
        self.mover = Mover::HostAtFirst { idle, bytes_min };
    }

    /// A NIC stack moves the bytes, or is about to.
    pub(crate) fn is_spliced(&self) -> bool {
        matches!(self.mover, Mover::Nic { .. })
    }

    /// Requests a splice if it is due: no bytes wait here, and both directions are open. `Some` if
    /// it was requested.
    pub(crate) fn splice(&mut self, io: &mut dyn Io) -> Option<Result<(), SpliceError>> {
        let Mover::HostAtFirst { idle, bytes_min } = self.mover else {
            return None;
        };
        let is_clear = |flow: &Flow| flow.buffer.is_empty() && flow.is_open();
        if self.copied_bytes() < bytes_min || ![&self.up, &self.down].into_iter().all(is_clear) {
            return None;
        }
        let limits = SpliceLimits {
            idle: Some(idle),
            life: None,
        };
        let asked = io.splice(self.client, self.backend, limits);
        self.mover = match asked {
            Ok(()) => Mover::Nic {
                idle,
                bytes: [0; 2],
            },
            Err(_) => Mover::Host,
        };
        Some(asked)
    }

    /// Handles an event of the splice; returns the bytes moved since the last event.
    pub(crate) fn on_splice(&mut self, event: &SpliceEvent) -> Moved {
        let mut moved = [0; 2];
        let Mover::Nic {
            idle,
            bytes: before,
        } = &mut self.mover
        else {
            return Moved::default();
        };
        let idle = *idle;
        if let Some(bytes) = bytes_in(event) {
            moved = [0, 1].map(|side| bytes[side].saturating_sub(before[side]));
            *before = bytes;
        }
        let [up, down] = moved;
        self.up.bytes += up;
        self.down.bytes += down;
        match event {
            // Streams that were not quiet may be so later, and a changed path MTU is known by the
            // time that as many bytes have moved again.
            SpliceEvent::Returned {
                error: None | Some(SpliceError::NotQuiet),
                ..
            } => {
                let bytes_min = self.copied_bytes().saturating_mul(4);
                self.mover = Mover::HostAtFirst { idle, bytes_min };
            }
            SpliceEvent::Returned { .. } | SpliceEvent::Ended { .. } => self.mover = Mover::Host,
            SpliceEvent::Joined | SpliceEvent::Progress { .. } => {}
        }
        Moved {
            up,
            down,
            is_over: false,
        }
    }

    /// Memory of the direction to the backend, and of the one to the client, in bytes.
    pub(crate) fn memory_bytes(&self) -> [usize; 2] {
        [&self.up, &self.down].map(|flow| flow.buffer.memory_bytes())
    }

    /// Handles FIN from one of the two streams.
    pub(crate) fn on_peer_finished(&mut self, stream: StreamId) {
        let flow = match stream == self.client {
            true => &mut self.up,
            false => &mut self.down,
        };
        flow.has_ended = true;
    }

    /// Handles the orderly close of one stream: both of its directions have ended. Its unread
    /// bytes, up to a full window, must be taken now.
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

    /// Moves available bytes, as far as each side takes them.
    pub(crate) fn advance(&mut self, io: &mut dyn Io, scratch: &mut [u8]) -> Moved {
        if self.is_spliced() {
            return Moved::default();
        }
        let bytes_max = self.room_behind(&self.down);
        let up = (self.up).advance(io, (self.client, self.backend), scratch, bytes_max);
        let bytes_max = self.room_behind(&self.up);
        let down = (self.down).advance(io, (self.backend, self.client), scratch, bytes_max);
        Moved {
            up,
            down,
            is_over: self.up.is_over && self.down.is_over,
        }
    }

    /// Returns the number of bytes that may be read from one direction before a splice is due.
    /// While the other direction waits for its receiver, no splice is possible and reads are
    /// unlimited: the receiver may wait for this direction.
    fn room_behind(&self, other: &Flow) -> u64 {
        if !other.buffer.is_empty() {
            return u64::MAX;
        }
        let flows = [&self.up, &self.down];
        match self.mover {
            Mover::HostAtFirst { bytes_min, .. } if flows.into_iter().all(Flow::is_open) => {
                let waiting: usize = flows.iter().map(|flow| flow.buffer.len()).sum();
                bytes_min.saturating_sub(self.copied_bytes() + waiting as u64)
            }
            _ => u64::MAX,
        }
    }

    /// Bytes moved in both directions.
    pub(crate) fn copied_bytes(&self) -> u64 {
        self.up.bytes + self.down.bytes
    }

    /// The backend's stream.
    pub(crate) fn backend(&self) -> StreamId {
        self.backend
    }

    /// Bytes moved to the client.
    pub(crate) fn down_bytes(&self) -> u64 {
        self.down.bytes
    }
}

/// Returns the bytes of each stream that an event of a splice reports.
fn bytes_in(event: &SpliceEvent) -> Option<[u64; 2]> {
    match *event {
        SpliceEvent::Joined => None,
        SpliceEvent::Progress { bytes }
        | SpliceEvent::Returned { bytes, .. }
        | SpliceEvent::Ended { bytes, .. } => Some(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spliced() -> Joint {
        let (client, backend) = (StreamId(1), StreamId(2));
        let mut joint = Joint::new((client, Buffer::default()), (backend, Buffer::default()));
        joint.may_splice(Duration::from_secs(60));
        assert_eq!(room_of(&joint), COPIED_BYTES_MIN);
        joint.up.bytes = COPIED_BYTES_MIN;
        assert_eq!(room_of(&joint), 0, "nothing more is read");
        joint.mover = Mover::Nic {
            idle: Duration::from_secs(60),
            bytes: [0; 2],
        };
        joint
    }

    fn room_of(joint: &Joint) -> u64 {
        joint.room_behind(&joint.down)
    }

    fn returned(error: Option<SpliceError>) -> Joint {
        let mut joint = spliced();
        let bytes = [1000, 500];
        let moved = joint.on_splice(&SpliceEvent::Returned { error, bytes });
        assert_eq!((moved.up, moved.down), (1000, 500));
        joint
    }

    #[test]
    fn what_has_come_back_is_spliced_again_when_more_has_gone() {
        for error in [None, Some(SpliceError::NotQuiet)] {
            let bytes = COPIED_BYTES_MIN + 1500;
            assert_eq!(room_of(&returned(error)), 3 * bytes);
        }
    }

    #[test]
    fn what_cannot_be_spliced_is_copied_from_then_on() {
        let error = SpliceError::Timestamps;
        assert_eq!(room_of(&returned(Some(error))), u64::MAX);
    }

    #[test]
    fn the_end_of_a_direction_lets_all_be_read() {
        let mut joint = returned(None);
        joint.on_peer_finished(StreamId(2));
        assert_eq!(room_of(&joint), u64::MAX);
    }

    #[test]
    fn a_direction_goes_on_while_the_other_waits_for_its_receiver() {
        let mut joint = spliced();
        let (idle, bytes_min) = (Duration::from_secs(60), COPIED_BYTES_MIN);
        joint.mover = Mover::HostAtFirst { idle, bytes_min };
        assert_eq!(room_of(&joint), 0);
        joint.down.buffer.tail().extend_from_slice(b"not taken");
        assert_eq!(room_of(&joint), u64::MAX);
        assert_eq!(joint.room_behind(&joint.up), 0);
    }
}
