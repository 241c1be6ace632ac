//! Counters of SYNs that NIC workers answer.

use std::ops::AddAssign;

/// Counts of a run, or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetupCounters {
    /// Runs in which a map steers SYNs to workers.
    pub steered: u64,
    /// SETUP commands.
    pub setups: u64,
    /// SYNs that a map has steered to a worker.
    pub syns_steered: u64,
    /// SYNs that the host has handed on.
    pub syns_handed_on: u64,
    /// SYNs that the host has handled itself.
    pub syns_of_host: u64,
    /// Connections whose SYN a worker has answered.
    pub connections: u64,
}

impl AddAssign for SetupCounters {
    fn add_assign(&mut self, other: Self) {
        self.steered += other.steered;
        self.setups += other.setups;
        self.syns_steered += other.syns_steered;
        self.syns_handed_on += other.syns_handed_on;
        self.syns_of_host += other.syns_of_host;
        self.connections += other.connections;
    }
}
