//! Loss detection by time (RFC 8985 §6): data sent some time before other data that has been
//! delivered is lost, if it has not arrived as well after a *reordering window*.
//!
//! Time of sending is the departure. A transmission has one for all its packets, that of the last;
//! within it, positions give the order. Where its packets leave far apart, the round trip looks
//! shorter, and the reordering window is shorter by the difference.

use std::time::Duration;

use crate::sender::scoreboard::Record;
use crate::time::Instant;

/// RFC 8985 §6.2 step 4: this many segments delivered behind a hole stand for a loss as long as no
/// reordering was seen.
const DUP_THRESH: u64 = 3;

/// `RACK.reo_wnd_persist`: number of recoveries after the last D-SACK for which the window stays
/// wide.
const PERSIST_RECOVERIES: u8 = 16;

/// The reordering timer waits this much longer than the window: receivers merge packets before they
/// acknowledge, and timers are coarse. An acknowledgment that comes later than the window is judged
/// exactly.
const TIMER_SLACK: Duration = Duration::from_millis(2);

/// RACK variables (RFC 8985 §5.3).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rack {
    /// `RACK.xmit_ts`, the number of the transmission, and `RACK.end_seq`: the transmission sent
    /// last among those delivered at least in part.
    newest: (Instant, u64, u64),
    /// `RACK.rtt`: its round-trip time, in microseconds.
    rtt_us: u64,
    /// `RACK.fack`: behind the highest position delivered.
    fack: u64,
    reordering_seen: bool,
    /// `RACK.reo_wnd_mult`, in quarters of the least round-trip time.
    window_multiplier: u32,
    recoveries_left: u8,
    /// `RACK.dsack_round`: D-SACKs do not count again before this is acknowledged.
    dsack_round: Option<u64>,
}

impl Default for Rack {
    fn default() -> Rack {
        Rack {
            newest: Default::default(),
            rtt_us: 0,
            fack: 0,
            reordering_seen: false,
            window_multiplier: 1,
            recoveries_left: 0,
            dsack_round: None,
        }
    }
}

impl Rack {
    /// Records the delivery of a piece that departed `at` (§6.2 step 2). `older_echo`: the
    /// acknowledgment echoes a timestamp older than the departure.
    pub(crate) fn on_delivered(
        &mut self,
        now: Instant,
        piece: &Record,
        at: Instant,
        min_rtt_us: Option<u64>,
        older_echo: impl FnOnce() -> bool,
    ) {
        let sent = (at, piece.transmission, piece.end);
        let rtt_us = now.us_since(at);
        // Acknowledged too soon after the retransmission: the original is acknowledged.
        if piece.retransmitted
            && (min_rtt_us.is_some_and(|least_us| rtt_us < least_us) || older_echo())
        {
            return;
        }
        if sent > self.newest {
            self.newest = sent;
            self.rtt_us = rtt_us;
        }
    }

    /// Returns true if something behind a piece that was sent only once was delivered earlier (§6.2
    /// step 3).
    pub(crate) fn is_reordered(&self, piece: &Record) -> bool {
        piece.end <= self.fack
    }

    /// `RACK.fack`
    pub(crate) fn fack(&self) -> u64 {
        self.fack
    }

    /// Ends an acknowledgment: `fack` is behind the highest position that it delivers.
    pub(crate) fn advance(&mut self, fack: u64) {
        self.fack = self.fack.max(fack);
    }

    /// Records that the network reorders packets.
    pub(crate) fn on_reordering(&mut self) {
        self.reordering_seen = true;
    }

    pub(crate) fn has_seen_reordering(&self) -> bool {
        self.reordering_seen
    }

    /// Widens the window (§6.2 step 4, RACK_update_reo_wnd): the peer has received data twice, and
    /// not because of a tail loss probe. Loss detection was too early.
    pub(crate) fn on_dsack(&mut self, una: u64, nxt: u64) {
        if self.dsack_round.is_some_and(|round| una < round) {
            return;
        }
        self.dsack_round = Some(nxt);
        self.window_multiplier = self.window_multiplier.saturating_add(1);
        self.recoveries_left = PERSIST_RECOVERIES;
    }

    /// Records the end of a recovery.
    pub(crate) fn on_recovered(&mut self) {
        self.recoveries_left = self.recoveries_left.saturating_sub(1);
        if self.recoveries_left == 0 {
            self.window_multiplier = 1;
        }
    }

    /// Returns the transmission sent last among those delivered at least in part: departure,
    /// number, end.
    pub(crate) fn newest(&self) -> (Instant, u64, u64) {
        self.newest
    }

    /// Returns the time from the departure of a packet until it is lost, if something sent later
    /// has been delivered: `RACK.rtt + RACK.reo_wnd`. `sacked`: bytes selectively acknowledged.
    pub(crate) fn wait(
        &self,
        network: Network,
        recovering: bool,
        sacked: u64,
        mss: u16,
    ) -> Duration {
        Duration::from_micros(self.rtt_us) + self.window(network, recovering, sacked, mss)
    }

    /// RACK_update_reo_wnd
    fn window(&self, network: Network, recovering: bool, sacked: u64, mss: u16) -> Duration {
        // RFC 6675 §4, IsLost: more than (DupThresh - 1) * SMSS bytes. Without this, small segments
        // wait.
        let enough = sacked > (DUP_THRESH - 1) * u64::from(mss);
        if !self.reordering_seen && (recovering || enough) {
            return Duration::ZERO;
        }
        let Network { min_rtt, srtt } = network;
        (min_rtt / 4)
            .saturating_mul(self.window_multiplier)
            .min(srtt)
    }

    /// Returns when the reordering timer is to fire for data that is lost at an instant.
    pub(crate) fn deadline(lost_at: Instant) -> Instant {
        lost_at + TIMER_SLACK
    }
}

/// Round-trip times of the network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Network {
    pub(crate) min_rtt: Duration,
    pub(crate) srtt: Duration,
}
