//! Counters of connections whose end NIC stacks run.

use std::ops::AddAssign;

/// Counts of a run, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TeardownCounters {
    /// Connections handed to a NIC stack.
    pub parts: u64,
    /// Connections that a NIC stack refused.
    pub refused: u64,
    /// Connections handed to a NIC stack that replaced another.
    pub repeated: u64,
    /// Connections taken back by the host.
    pub taken_back: u64,
    /// Connections that ended at the NIC stack in order.
    pub finished: u64,
    /// Connections that ended at the NIC stack otherwise.
    pub broken: u64,
    /// Frames that the host has handed on.
    pub frames: u64,
    /// Runs in which a map steers frames to workers.
    pub steered: u64,
    /// Frames other than SYNs that a map has steered to a worker.
    pub frames_steered: u64,
}

impl AddAssign for TeardownCounters {
    fn add_assign(&mut self, other: Self) {
        self.parts += other.parts;
        self.refused += other.refused;
        self.repeated += other.repeated;
        self.taken_back += other.taken_back;
        self.finished += other.finished;
        self.broken += other.broken;
        self.frames += other.frames;
        self.steered += other.steered;
        self.frames_steered += other.frames_steered;
    }
}
