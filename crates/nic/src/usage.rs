//! What a worker holds at the moment, for those who watch over it.

use port::Port;

use crate::engine::Engine;

/// What a worker holds. Once everything is over, only cached blocks are left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// SENDs accepted and not departed.
    pub jobs: usize,
    /// Flows with something queued or retained.
    pub flows: usize,
    /// Files open, or being opened or sent.
    pub files: usize,
    /// Events that wait for room in the ring.
    pub events_waiting: usize,
    /// Buffers, each of [`BLOCK_BYTES`](crate::buffer::BLOCK_BYTES).
    pub blocks: usize,
    /// Of these: in use, being read or retained. The others are free or cached.
    pub blocks_occupied: usize,
}

impl<P: Port> Engine<P> {
    pub(crate) fn usage(&self) -> Usage {
        Usage {
            jobs: self.jobs,
            flows: self.flows.len(),
            files: self.files.len(),
            events_waiting: self.events.len(),
            blocks: self.blocks.len(),
            blocks_occupied: self.blocks.occupied(),
        }
    }
}
