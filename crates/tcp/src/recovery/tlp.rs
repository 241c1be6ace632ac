//! Tail loss probes (RFC 8985 §7): when the end of what is in flight is lost, nothing arrives
//! behind it that could tell. One segment, sent sooner than the retransmission timer would, makes
//! the peer speak.
//!
//! Beyond the RFC, fast recovery is probed as well. With a small window a retransmission is often
//! the last thing sent, and nothing tells of its loss. After the same time of silence it is taken
//! for lost, once; then the retransmission timer decides.

use std::ops::Range;

/// `TLP.max_ack_delay`: how long a receiver may wait for a second segment before it acknowledges
/// one.
const ACK_DELAY_US_MAX: u64 = 200_000;

/// Before the first measurement (§7.2).
const PTO_US_INITIAL: u64 = 1_000_000;

/// Receivers merge packets before they acknowledge, and timers are coarse.
const SLACK_US: u64 = 2_000;

/// A probe that is not answered.
#[derive(Clone, Copy, Debug)]
struct Probe {
    /// `TLP.end_seq`: SND.NXT when it was sent.
    end: u64,
    /// `TLP.is_retrans`: it was the last segment again. Where it begins.
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

/// What an acknowledgment tells of the probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Nothing.
    None,
    /// Nothing was lost.
    Unharmed,
    /// The probe has repaired a loss, which nothing else notices.
    Repaired,
}

impl Tlp {
    /// §7.2: the probe timeout in microseconds, counted from the departure of what is in flight, or
    /// from an acknowledgment. `delayed`: the receiver may delay its acknowledgment.
    pub(crate) fn timeout_us(srtt_us: Option<u64>, delayed: bool) -> u64 {
        match (srtt_us, delayed) {
            (None, _) => PTO_US_INITIAL,
            (Some(srtt_us), true) => 2 * srtt_us + ACK_DELAY_US_MAX,
            (Some(srtt_us), false) => 2 * srtt_us + SLACK_US,
        }
    }

    /// True if fast recovery may be probed.
    pub(crate) fn may_probe_recovery(&self) -> bool {
        !self.recovery_probed
    }

    /// Fast recovery is probed.
    pub(crate) fn on_recovery_probe(&mut self) {
        self.recovery_probed = true;
    }

    /// Something was delivered.
    pub(crate) fn on_delivered(&mut self) {
        self.recovery_probed = false;
    }

    /// True if a probe was sent, and is not answered.
    pub(crate) fn has_probe(&self) -> bool {
        self.probe.is_some()
    }

    /// True if a probe may be scheduled: one at a time.
    pub(crate) fn is_idle(&self) -> bool {
        self.probe.is_none() && !self.due
    }

    /// The probe timer has expired.
    pub(crate) fn on_timeout(&mut self) {
        self.due = true;
    }

    /// True once after the timer has expired.
    pub(crate) fn take_due(&mut self) -> bool {
        std::mem::take(&mut self.due)
    }

    /// A probe goes out. `end`: SND.NXT with it; `retransmitted_from`: where it begins, if it is
    /// the last segment again.
    pub(crate) fn on_sent(&mut self, end: u64, retransmitted_from: Option<u64>) {
        self.probe = Some(Probe {
            end,
            retransmitted_from,
        });
    }

    /// Loss is dealt with otherwise.
    pub(crate) fn reset(&mut self) {
        *self = Tlp::default();
    }

    /// True if a D-SACK tells that the probe has arrived, after what it repeats.
    pub(crate) fn explains(&self, dsack: &Range<u64>) -> bool {
        self.probe.is_some_and(|probe| {
            dsack.end == probe.end
                && probe
                    .retransmitted_from
                    .is_some_and(|start| start <= dsack.start)
        })
    }

    /// §7.4.2: an acknowledgment of everything before `una`. `bare`: it is a duplicate without SACK
    /// blocks.
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
            // It acknowledges the original or the probe: the next one will tell.
            return Answer::None;
        };
        self.probe = None;
        answer
    }
}
