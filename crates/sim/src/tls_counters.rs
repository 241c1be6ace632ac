//! Counters of TLS connections.

use std::ops::AddAssign;

/// Counts of TLS connections and their events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TlsCounters {
    /// Completed handshakes.
    pub handshakes: u64,
    /// Handshakes that resumed an earlier session.
    pub resumed: u64,
    /// Replacements of the server's keys.
    pub key_updates: u64,
    /// Connections reset because resealing a record would have given a different one.
    pub seal_mismatches: u64,
    /// Number of times that a NIC worker sent bytes of a record after another worker.
    pub records_resealed: u64,
    /// Connections reset because records without known tags may have left.
    pub unproven: u64,
}

impl AddAssign for TlsCounters {
    fn add_assign(&mut self, more: TlsCounters) {
        self.handshakes += more.handshakes;
        self.resumed += more.resumed;
        self.key_updates += more.key_updates;
        self.seal_mismatches += more.seal_mismatches;
        self.records_resealed += more.records_resealed;
        self.unproven += more.unproven;
    }
}
