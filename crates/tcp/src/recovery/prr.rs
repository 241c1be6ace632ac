//! Proportional rate reduction (RFC 9937): during fast recovery, the delivered bytes determine how
//! much may be sent, so that the window arrives at the slow start threshold when recovery ends.

/// Variables of one recovery, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Prr {
    /// `prr_delivered`
    delivered: u64,
    /// `prr_out`
    out: u64,
    /// `RecoverFS`: in flight when the recovery began.
    recover_flight: u64,
    /// `cwnd`, as the last acknowledgment has set it.
    window: u64,
}

/// Results of an acknowledgment in fast recovery, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    /// `DeliveredData`
    pub(crate) delivered: u64,
    /// `inflight`, after loss detection.
    pub(crate) flight: u64,
    /// `safeACK`: SND.UNA has advanced, and no further loss was detected.
    pub(crate) safe: bool,
    pub(crate) ssthresh: u64,
    pub(crate) mss: u64,
}

impl Prr {
    /// Begins a recovery. `flight`: bytes in flight before the acknowledgment that reveals the
    /// loss. `unanswered`: bytes that earlier acknowledgments have delivered, and no transmission
    /// has replaced; they count as delivered by that acknowledgment.
    pub(crate) fn begin(&mut self, flight: u64, unanswered: u64) {
        *self = Prr {
            delivered: unanswered,
            recover_flight: (flight + unanswered).max(1),
            ..Prr::default()
        };
    }

    /// Updates the window after an acknowledgment, or the reordering timer, which delivers nothing
    /// (§6).
    pub(crate) fn update(&mut self, progress: &Progress) {
        let Progress {
            delivered,
            flight,
            safe,
            ssthresh,
            mss,
        } = *progress;
        self.delivered += delivered;
        let mut count = if flight > ssthresh {
            // Proportional rate reduction.
            let share = u128::from(self.delivered) * u128::from(ssthresh);
            let share = share.div_ceil(u128::from(self.recover_flight));
            u64::try_from(share)
                .unwrap_or(u64::MAX)
                .saturating_sub(self.out)
        } else {
            // PRR-CRB: no more than was delivered; PRR-SSRB: and a segment, in good progress.
            let count = self.delivered.saturating_sub(self.out).max(delivered);
            let catch_up = count + if safe { mss } else { 0 };
            catch_up.min(ssthresh - flight)
        };
        // "Force a fast retransmit upon entering recovery."
        if self.out == 0 {
            count = count.max(mss);
        }
        self.window = flight + count;
    }

    /// Counts sent data, new or retransmitted.
    pub(crate) fn on_sent(&mut self, bytes: u64) {
        self.out += bytes;
    }

    /// Returns true until data is sent.
    pub(crate) fn forces_retransmission(&self) -> bool {
        self.out == 0
    }

    /// Returns `cwnd` of the recovery.
    pub(crate) fn window(&self) -> u64 {
        self.window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 1000;

    fn progress(delivered: u64, flight: u64, safe: bool) -> Progress {
        Progress {
            delivered,
            flight,
            safe,
            ssthresh: 10 * MSS,
            mss: MSS,
        }
    }

    /// Covers: RFC 9937 §6
    #[test]
    fn a_halved_window_sends_one_segment_for_two_delivered() {
        let mut prr = Prr::default();
        prr.begin(20 * MSS, 0);
        let mut flight = 19 * MSS;
        let mut sent = 0;
        // One segment of 20 is lost; 18 more are delivered.
        for _ in 0..18 {
            flight -= MSS;
            prr.update(&progress(MSS, flight, false));
            let room = (prr.window() - flight) / MSS * MSS;
            prr.on_sent(room);
            flight += room;
            sent += room;
        }
        assert_eq!(flight, 10 * MSS);
        assert_eq!(sent, 9 * MSS);
    }

    /// Covers: RFC 9937 §6
    #[test]
    fn when_much_is_lost_what_is_delivered_is_replaced() {
        let mut prr = Prr::default();
        prr.begin(20 * MSS, 0);
        // 15 are lost at once.
        let mut flight = 4 * MSS;
        prr.update(&progress(MSS, flight, false));
        assert_eq!(prr.window() - flight, MSS);
        prr.on_sent(MSS);
        // Progress without loss: one more.
        prr.update(&progress(MSS, flight, true));
        assert_eq!(prr.window() - flight, 2 * MSS);
        prr.on_sent(2 * MSS);
        flight = 9 * MSS + 500;
        prr.update(&progress(MSS, flight, true));
        assert_eq!(prr.window(), 10 * MSS);
    }

    /// Covers: RFC 9937 §6
    #[test]
    fn the_first_retransmission_goes_in_any_case() {
        let mut prr = Prr::default();
        prr.begin(20 * MSS, 0);
        prr.update(&progress(0, 19 * MSS, false));
        assert!(prr.forces_retransmission());
        assert_eq!(prr.window(), 20 * MSS);
        prr.on_sent(MSS);
        prr.update(&progress(0, 20 * MSS, false));
        assert_eq!(prr.window(), 20 * MSS);
    }
}
