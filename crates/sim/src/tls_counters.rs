//! What has happened to connections that speak TLS.

use std::ops::AddAssign;

/// Connections that speak TLS, and how often things happened that matter to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TlsCounters {
    /// Handshakes that came to their end.
    pub handshakes: u64,
    /// Those of them that resumed an earlier session.
    pub resumed: u64,
    /// Keys of the server that have taken the place of another.
    pub key_updates: u64,
    /// Connections reset because a record, sealed again, would have been another one.
    pub seal_mismatches: u64,
    /// How often a NIC worker has sent of a record of which another had sent before.
    pub records_resealed: u64,
    /// Connections reset because records may have left of which the tags are not known.
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
