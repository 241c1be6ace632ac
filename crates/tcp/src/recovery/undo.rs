//! Undoes a reduction of the window when nothing was lost after all: by timestamps (the Eifel
//! detection, RFC 3522), or by D-SACKs for all retransmitted data (in the spirit of RFC 3708). If
//! nothing was sent again yet, the acknowledgment itself is the evidence: acknowledgments are taken
//! in one after the other, and the late one may be in the same batch as the one that made the data
//! look lost. The response is that of RFC 4015. Forward RTO-recovery, a third way, has a file of
//! its own.

use std::ops::Range;

use crate::seq::wraps_before;

/// Retransmissions since the window was reduced.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Undo {
    /// There was a reduction, and it has not been undone.
    active: bool,
    /// A timeout was the reason.
    timeout: bool,
    /// Start of the first loss.
    lost_from: u64,
    /// Span of the positions that were sent again, from the first to the last.
    start: u64,
    end: u64,
    /// `RetransmitTS`: timestamp clock when the first retransmission was issued, until the first
    /// acknowledgment that covers it.
    stamp: Option<u32>,
    /// Bytes sent again for which there was no D-SACK.
    unexplained: u64,
}

impl Undo {
    /// Begins after a reduction of the window because of a loss, or of a timeout. Nothing before
    /// `lost_from` is lost.
    pub(crate) fn begin(&mut self, timeout: bool, lost_from: u64) {
        *self = Undo {
            active: true,
            timeout,
            lost_from,
            start: u64::MAX,
            ..Undo::default()
        };
    }

    /// Returns true if there is a reduction to undo.
    pub(crate) fn is_active(&self) -> bool {
        self.active
    }

    pub(crate) fn stop(&mut self) {
        *self = Undo::default();
    }

    /// Records that positions are sent again. `stamp`: the timestamp clock, if there are
    /// timestamps.
    pub(crate) fn on_retransmission(&mut self, positions: &Range<u64>, stamp: Option<u32>) {
        if !self.active {
            return;
        }
        if self.start == u64::MAX {
            self.stamp = stamp;
        }
        self.start = self.start.min(positions.start);
        self.end = self.end.max(positions.end);
        self.unexplained += positions.end - positions.start;
    }

    /// Returns the bytes from the first position sent again to the last.
    pub(crate) fn retransmitted(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Returns true if the reason of the reduction was a timeout.
    pub(crate) fn is_timeout(&self) -> bool {
        self.timeout
    }

    /// Returns true if nothing was lost. RFC 3522 §3.2: the first acknowledgment that covers
    /// retransmitted data echoes a timestamp from before. So it answers the original, as any does
    /// while nothing was sent again, unless it is for data `retransmitted` before this reduction.
    pub(crate) fn is_original(&mut self, una: u64, echo: Option<u32>, retransmitted: bool) -> bool {
        if !self.active {
            return false;
        }
        if self.start == u64::MAX {
            return una > self.lost_from && !retransmitted;
        }
        if una <= self.start {
            return false;
        }
        let (stamp, echo) = (self.stamp.take(), echo);
        matches!((stamp, echo), (Some(stamp), Some(echo)) if wraps_before(echo, stamp))
    }

    /// Records that the peer has received positions twice. Returns true if that explains all
    /// retransmissions: nothing was lost.
    pub(crate) fn on_dsack(&mut self, dsack: &Range<u64>) -> bool {
        let start = dsack.start.max(self.start);
        let end = dsack.end.min(self.end);
        if !self.active || start >= end {
            return false;
        }
        self.unexplained = self.unexplained.saturating_sub(end - start);
        self.unexplained == 0
    }
}
