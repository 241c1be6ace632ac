//! Counters of a connection.

/// Counters since the last call of [`Connection::take_stats`](crate::Connection::take_stats).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Retransmission timeouts (RFC 6298 §5.4).
    pub timeouts: u32,
    /// Part of `timeouts` that was found to be spurious (RFC 5682, RFC 3522, RFC 3708).
    pub spurious_timeouts: u32,
    /// Segments dropped for want of the timestamps that were negotiated (RFC 7323 §3.2).
    pub timestamps_missing: u32,
    /// Windows of data for which the peer echoed congestion, and the congestion window was reduced
    /// (RFC 3168 §6.1.2).
    pub ecn_reductions: u32,
    /// Transmissions that were issued again because they never left
    /// ([`Connection::on_undeparted_lost`](crate::Connection::on_undeparted_lost)).
    pub lost_undeparted: u32,
    /// Transmissions whose departure was concluded from that of a later one.
    pub unheard: u32,
    /// Round-trip times that the RTO was computed from.
    pub round_trips: Samples,
    /// Round-trip times measured by the timestamps option (RFC 7323 §4.1), used or not: one for
    /// each acknowledgment of new data, in whole milliseconds, 1 at least.
    pub timestamp_round_trips: Samples,
}

/// Count and sum of durations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Samples {
    /// Number of durations.
    pub count: u32,
    /// Sum of the durations, in microseconds.
    pub sum_us: u64,
}

impl Samples {
    pub(crate) fn add(&mut self, sample_us: u64) {
        self.count = self.count.saturating_add(1);
        self.sum_us = self.sum_us.saturating_add(sample_us);
    }
}

/// Counters over the life of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lifetime {
    pub(crate) bytes_retransmitted: u64,
    pub(crate) retransmissions: u32,
    pub(crate) timeouts: u32,
}

impl Lifetime {
    pub(crate) fn on_retransmission(&mut self, payload_bytes: u64) {
        self.retransmissions = self.retransmissions.saturating_add(1);
        self.bytes_retransmitted = self.bytes_retransmitted.saturating_add(payload_bytes);
    }

    pub(crate) fn on_timeout(&mut self) {
        self.timeouts = self.timeouts.saturating_add(1);
    }
}
