//! What a connection remembers of losses and of recovering from them.

use crate::recovery::detection_budget::DetectionBudget;
use crate::recovery::fast_retransmit::FastRetransmit;
use crate::recovery::frto::Frto;
use crate::recovery::prr::Prr;
use crate::recovery::rack::Rack;
use crate::recovery::tlp::Tlp;
use crate::recovery::undo::Undo;

/// What the sender is busy with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing is known to be lost.
    #[default]
    Open,
    /// Fast recovery.
    FastRecovery,
    /// Slow start after a timeout, through all that was in flight then.
    AfterTimeout,
}

/// Recovery state of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Recovery {
    pub(crate) phase: Phase,
    /// RecoveryPoint of RFC 6675: SND.NXT when the loss was detected, as a position.
    pub(super) recover: u64,
    /// Delivered and not yet replaced by something sent, in bytes. Acknowledgments are taken in one
    /// after the other and answered together; what is delivered before a loss is detected frees as
    /// much of the path as what is delivered after it.
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
    /// Data was sent, for the first time or again.
    pub(crate) fn on_sent(&mut self, bytes: u64) {
        self.prr.on_sent(bytes);
        self.unanswered = self.unanswered.saturating_sub(bytes);
    }

    /// Something was delivered.
    pub(crate) fn on_delivered(&mut self, bytes: u64) {
        self.tlp.on_delivered();
        self.unanswered += bytes;
    }

    /// Nothing is amiss, nor was lately: an acknowledgment of the oldest data tells no more than
    /// that it has arrived.
    pub(crate) fn is_quiet(&self, una: u64) -> bool {
        self.phase == Phase::Open
            && !self.undo.is_active()
            && !self.tlp.has_probe()
            && self.rack.fack() <= una
    }

    /// All is sent that may be.
    pub(crate) fn on_answered(&mut self) {
        self.unanswered = 0;
    }
}
