//! Counters of worker load and of the number of workers in use.

/// Counts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DivisionCounters {
    /// Workers put in use.
    pub workers_added: u64,
    /// Workers taken out of use.
    pub workers_removed: u64,
    /// Connections moved to another worker of their NIC stack.
    pub rebalanced: u64,
    /// Connections that should have moved, and stayed.
    pub failed: u64,
}

impl DivisionCounters {
    /// Extracts the counters of a host stack.
    pub(crate) fn of(counters: &host::Counters) -> DivisionCounters {
        DivisionCounters {
            workers_added: counters.nic_workers_added,
            workers_removed: counters.nic_workers_removed,
            rebalanced: counters.connections_rebalanced,
            failed: counters.migrations_failed,
        }
    }

    /// Adds the counters of another run.
    pub fn add(&mut self, other: &DivisionCounters) {
        self.workers_added += other.workers_added;
        self.workers_removed += other.workers_removed;
        self.rebalanced += other.rebalanced;
        self.failed += other.failed;
    }
}
