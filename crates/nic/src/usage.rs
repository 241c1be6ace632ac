//! The resources that a worker holds at the moment, for monitoring.

use netdev::Port;

use crate::engine::Engine;
use crate::quic::QuicFlow;
use crate::sealed::SealedStream;

/// Resources of a worker. Once everything is over, only cached blocks are left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// SENDs, QSENDs and PREPAREs accepted and not departed or answered.
    pub jobs: usize,
    /// Jobs that are PREPAREs.
    pub prepares: usize,
    /// Jobs departed in part.
    pub jobs_begun: usize,
    /// Flows with something queued or pinned, and PREPAREs.
    pub flows: usize,
    /// Further flows that are not over, with nothing queued or pinned.
    pub flows_idle: usize,
    /// Flows that are paced, and waiting for their time.
    pub flows_held: usize,
    /// Files open, or being opened or sent.
    pub files: usize,
    /// Keys of all flows.
    pub keys: usize,
    /// Runs of records that are defined and not acknowledged.
    pub runs: usize,
    /// Their records.
    pub records: usize,
    /// Memory that keys and runs take, in bytes.
    pub records_bytes: usize,
    /// Connections that the host has parted with.
    pub parted: usize,
    /// Parted connections in TIME-WAIT.
    pub parted_time_waits: usize,
    /// Splices.
    pub spliced: usize,
    /// Events that wait for room in the ring.
    pub events_waiting: usize,
    /// Blocks, each of [`BLOCK_BYTES`](crate::buffer::BLOCK_BYTES).
    pub blocks: usize,
    /// Blocks in use, being read or pinned. The others are cached or free.
    pub blocks_occupied: usize,
    /// Blocks pinned by some flow: sent and not acknowledged.
    pub blocks_pinned: usize,
    /// Blocks with content that no flow needs at the moment.
    pub blocks_cached: usize,
    /// Blocks without content.
    pub blocks_free: usize,
}

impl<P: Port> Engine<P> {
    pub(crate) fn usage(&self) -> Usage {
        let flows = || {
            self.flow_keys
                .values()
                .filter_map(|key| self.flows.get(*key))
        };
        let streams = || flows().filter_map(|flow| flow.sealed.as_deref());
        let held = streams().map(SealedStream::held);
        let (keys, runs, records) = held.fold((0, 0, 0), |sum, of| {
            (sum.0 + of.0, sum.1 + of.1, sum.2 + of.2)
        });
        let quic = flows().filter_map(|flow| flow.quic.as_deref());
        let quic_keys: usize = quic.map(QuicFlow::keys).sum();
        Usage {
            jobs: self.jobs,
            prepares: self.prepares,
            jobs_begun: flows().filter(|flow| flow.has_begun()).count(),
            flows: self.flows.len(),
            flows_idle: self.orphans.idle(),
            flows_held: flows().filter(|flow| flow.held.is_some()).count(),
            files: self.files.len(),
            keys: keys + quic_keys,
            runs,
            records,
            records_bytes: self.sealed_bytes,
            parted: self.parted.len(),
            parted_time_waits: self.parted.time_waits(),
            spliced: self.spliced.len(),
            events_waiting: self.events.len(),
            blocks: self.blocks.len(),
            blocks_occupied: self.blocks.occupied(),
            blocks_pinned: self.blocks.pinned(),
            blocks_cached: self.blocks.cached(),
            blocks_free: self.blocks.free(),
        }
    }
}
