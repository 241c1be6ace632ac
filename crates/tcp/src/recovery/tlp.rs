//! Tail loss probes (RFC 8985 §7): when the end of the flight is lost, nothing arrives behind it
//! that could reveal the loss. One segment, sent sooner than the retransmission timer would, makes
//! the peer answer.
//!
//! Beyond the RFC, fast recovery is probed as well. With a small window a retransmission is often
//! the last thing sent, and nothing reveals its loss. After the same time of silence it is taken
//! for lost, once; then the retransmission timer decides.

use std::ops::Range;

/// `TLP.max_ack_delay`: longest time that a receiver may wait for a second segment before it
/// acknowledges one.
const ACK_DELAY_US_MAX: u64 = 200_000;

/// Probe timeout before the first measurement (§7.2).
const PTO_US_INITIAL: u64 = 1_000_000;

/// Receivers merge packets before they acknowledge, and timers are coarse.
const SLACK_US: u64 = 2_000;

/// A probe that is not answered.
#[derive(Clone, Copy, Debug)]
struct Probe {
    /// `TLP.end_seq`: SND.NXT when it was sent.
    end: u64,
    /// `TLP.is_retrans`: start of the last segment, if the probe repeats it.
    retransmitted_from: Option<u64>,
}

/// Tail loss probing of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tlp {
    probe: Option<Probe>,
    due: bool,
    /// Fast recovery was probed, and nothing has been delivered since.
    recovery_probed: bool,
}

/// Conclusion from an acknowledgment about the probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// No conclusion.
    None,
    /// Nothing was lost.
    Unharmed,
    /// The probe has repaired a loss, which no other sign reveals.
    Repaired,
}

impl Tlp {
    /// Returns the probe timeout in microseconds, counted from the departure of the data in flight,
    /// or from an acknowledgment (§7.2). `delayed`: the receiver may delay its acknowledgment.
    pub(crate) fn timeout_us(srtt_us: Option<u64>, delayed: bool) -> u64 {
        match (srtt_us, delayed) {
            (None, _) => PTO_US_INITIAL,
            (Some(srtt_us), true) => 2 * srtt_us + ACK_DELAY_US_MAX,
            (Some(srtt_us), false) => 2 * srtt_us + SLACK_US,
        }
    }

    /// Returns true if fast recovery may be probed.
    pub(crate) fn may_probe_recovery(&self) -> bool {
        !self.recovery_probed
    }

    /// Records a probe of fast recovery.
    pub(crate) fn on_recovery_probe(&mut self) {
        self.recovery_probed = true;
    }

    /// Records a delivery.
    pub(crate) fn on_delivered(&mut self) {
        self.recovery_probed = false;
    }

    /// Returns true if a probe was sent, and is not answered.
    pub(crate) fn has_probe(&self) -> bool {
        self.probe.is_some()
    }

    /// Returns true if a probe may be scheduled: one at a time.
    pub(crate) fn is_idle(&self) -> bool {
        self.probe.is_none() && !self.due
    }

    /// Records the expiry of the probe timer.
    pub(crate) fn on_timeout(&mut self) {
        self.due = true;
    }

    /// Returns true once after the timer has expired.
    pub(crate) fn take_due(&mut self) -> bool {
        std::mem::take(&mut self.due)
    }

    /// Records that a probe is sent. `end`: SND.NXT with it; `retransmitted_from`: its start, if it
    /// is the last segment again.
    pub(crate) fn on_sent(&mut self, end: u64, retransmitted_from: Option<u64>) {
        self.probe = Some(Probe {
            end,
            retransmitted_from,
        });
    }

    /// Drops the probe: loss is handled otherwise.
    pub(crate) fn reset(&mut self) {
        *self = Tlp::default();
    }

    /// Returns true if a D-SACK reports that the probe has arrived after the segment that it
    /// repeats.
    pub(crate) fn explains(&self, dsack: &Range<u64>) -> bool {
        self.probe.is_some_and(|probe| {
            dsack.end == probe.end
                && probe
                    .retransmitted_from
                    .is_some_and(|start| start <= dsack.start)
        })
    }

    /// Handles an acknowledgment of everything before `una` (§7.4.2). `bare`: it is a duplicate
    /// without SACK blocks.
    pub(crate) fn on_ack(&mut self, una: u64, dsack: Option<&Range<u64>>, bare: bool) -> Answer {
        let Some(probe) = self.probe else {
            return Answer::None;
        };
        if una < probe.end {
            return Answer::None;
        }
        let answer = if probe.retransmitted_from.is_none()
            || dsack.is_some_and(|dsack| self.explains(dsack))
        {
            Answer::Unharmed
        } else if una > probe.end {
            Answer::Repaired
        } else if bare {
            Answer::Unharmed
        } else {
            // This acknowledges the original or the probe: the next acknowledgment will decide.
            return Answer::None;
        };
        self.probe = None;
        answer
    }
}
