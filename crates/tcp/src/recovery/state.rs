//! A connection's state of loss detection and recovery.

use crate::recovery::detection_budget::DetectionBudget;
use crate::recovery::fast_retransmit::FastRetransmit;
use crate::recovery::frto::Frto;
use crate::recovery::prr::Prr;
use crate::recovery::rack::Rack;
use crate::recovery::tlp::Tlp;
use crate::recovery::undo::Undo;

/// Phase of loss recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing is known to be lost.
    #[default]
    Open,
    /// Fast recovery.
    FastRecovery,
    /// Slow start after a timeout, through all data in flight at the timeout.
    AfterTimeout,
}

/// Recovery state of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Recovery {
    pub(crate) phase: Phase,
    /// RecoveryPoint of RFC 6675: SND.NXT when the loss was detected, as a position.
    pub(super) recover: u64,
    /// Bytes delivered and not yet replaced by a transmission. Acknowledgments are taken in one
    /// after the other and answered together; data delivered before a loss is detected frees as
    /// much of the path as data delivered after it.
    pub(super) unanswered: u64,
    pub(crate) prr: Prr,
    pub(crate) rack: Rack,
    pub(crate) tlp: Tlp,
    pub(crate) frto: Frto,
    pub(crate) undo: Undo,
    pub(crate) fast_retransmit: FastRetransmit,
    pub(super) budget: DetectionBudget,
}

impl Recovery {
    /// Counts sent data, new or retransmitted.
    pub(crate) fn on_sent(&mut self, bytes: u64) {
        self.prr.on_sent(bytes);
        self.unanswered = self.unanswered.saturating_sub(bytes);
    }

    /// Counts delivered data.
    pub(crate) fn on_delivered(&mut self, bytes: u64) {
        self.tlp.on_delivered();
        self.unanswered += bytes;
    }

    /// Returns true if no recovery, probe or reordering is in progress: then an acknowledgment of
    /// the oldest data has no meaning beyond its arrival.
    pub(crate) fn is_quiet(&self, una: u64) -> bool {
        self.phase == Phase::Open
            && !self.undo.is_active()
            && !self.tlp.has_probe()
            && self.rack.fack() <= una
    }

    /// Records that all permitted data is sent.
    pub(crate) fn on_answered(&mut self) {
        self.unanswered = 0;
    }
}
