//! Two established streams, joined: what comes from one goes to the other, ends included.
//!
//! This is the seam for splicing. All that is known of the bytes is that there are some, so that a
//! NIC stack may move them in the host's place: it would take both streams and what waits in the
//! buffers, and report bytes, activity and the end, as [`Joint::advance`] does.

use host::app::{Io, StreamId};

use crate::buffer::{Buffer, COPY_BYTES};

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
}

/// What has come of an advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
