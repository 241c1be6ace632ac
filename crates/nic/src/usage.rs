//! What a worker holds at the moment, for those who watch over it.

use port::Port;

use crate::engine::Engine;

/// What a worker holds. Once everything is over, only cached blocks are left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// SENDs accepted and not departed.
    pub jobs: usize,
    /// Of these: departed in part.
    pub jobs_begun: usize,
    /// Flows with something queued or retained.
    pub flows: usize,
    /// Of these: paced, and waiting for their time.
    pub flows_held: usize,
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
        let flows = || {
            self.flow_keys
                .values()
                .filter_map(|key| self.flows.get(*key))
        };
        Usage {
            jobs: self.jobs,
            jobs_begun: flows().filter(|flow| flow.has_begun()).count(),
            flows: self.flows.len(),
            flows_held: flows().filter(|flow| flow.held.is_some()).count(),
            files: self.files.len(),
            events_waiting: self.events.len(),
            blocks: self.blocks.len(),
            blocks_occupied: self.blocks.occupied(),
        }
    }
}
