//! What a connection has counted.

use crate::connection::Connection;

/// Counts since they were last taken ([`Connection::take_stats`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Retransmission timeouts (RFC 6298 §5.4).
    pub timeouts: u32,
    /// Of these, timeouts that were found to be spurious (RFC 5682, RFC 3522, RFC 3708).
    pub spurious_timeouts: u32,
    /// Segments dropped for want of the timestamps that were negotiated (RFC 7323 §3.2).
    pub timestamps_missing: u32,
    /// Windows of data for which the peer echoed congestion, and the congestion window was reduced
    /// (RFC 3168 §6.1.2).
    pub ecn_reductions: u32,
    /// Transmissions that were issued again because they never left
    /// ([`Connection::on_undeparted_lost`]).
    pub lost_undeparted: u32,
    /// Transmissions whose departure was concluded from that of a later one.
    pub unheard: u32,
    /// Round-trip times that the RTO was computed from.
    pub round_trips: Samples,
    /// Round-trip times as the timestamps option tells them (RFC 7323 §4.1), used or not: one for
    /// each acknowledgment of new data, in whole milliseconds, 1 at least.
    pub timestamp_round_trips: Samples,
}

/// Durations, summed up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Samples {
    /// How many.
    pub count: u32,
    /// All together, in microseconds.
    pub sum_us: u64,
}

impl Samples {
    pub(crate) fn add(&mut self, sample_us: u64) {
        self.count = self.count.saturating_add(1);
        self.sum_us = self.sum_us.saturating_add(sample_us);
    }
}

impl Connection {
    /// Round-trip times since the last call, and those that timestamps tell: what nearly every
    /// acknowledgment brings.
    #[inline]
    pub fn take_round_trips(&mut self) -> (Samples, Samples) {
        let stats = &mut self.stats;
        (
            std::mem::take(&mut stats.round_trips),
            std::mem::take(&mut stats.timestamp_round_trips),
        )
    }

    /// True if [`take_stats`](Connection::take_stats) has more to tell than round-trip times.
    #[inline]
    pub fn has_rare_stats(&self) -> bool {
        let stats = &self.stats;
        let rare = stats.timeouts
            | stats.spurious_timeouts
            | stats.timestamps_missing
            | stats.ecn_reductions
            | stats.lost_undeparted;
        rare != 0
    }

    /// What has been counted since the last call.
    pub fn take_stats(&mut self) -> Stats {
        std::mem::take(&mut self.stats)
    }
}
