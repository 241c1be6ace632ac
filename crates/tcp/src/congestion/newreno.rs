//! Slow start and congestion avoidance (RFC 5681), with the window counted in bytes acknowledged
//! (RFC 3465).

use std::time::Duration;

use crate::congestion::{
    Ack, Congestion, Signal, WINDOW_BYTES_MAX, initial_window, slow_start_growth,
    threshold_at_idle, window_after_recovery,
};
use crate::recovery::state::Phase;
use crate::time::Instant;

/// RFC 8511 §3.1: percentage of the window that a router's mark in congestion avoidance leaves. Its
/// queue is short.
const BETA_ECN_PERCENT: u64 = 80;

#[derive(Debug)]
pub(crate) struct NewReno {
    mss: u64,
    cwnd: u64,
    ssthresh: u64,
    /// In congestion avoidance, bytes acknowledged since the window grew.
    bytes_acked: u64,
    /// The window was used up when the last acknowledgment came.
    window_limited: bool,
    /// The window and the threshold before the last reduction, unless it has been undone.
    before: Option<(u64, u64)>,
}

impl NewReno {
    pub(crate) fn new() -> NewReno {
        NewReno {
            mss: 536,
            cwnd: 536,
            ssthresh: u64::MAX,
            bytes_acked: 0,
            window_limited: false,
            before: None,
        }
    }

    /// RFC 5681 (4): `ssthresh = max(FlightSize/2, 2*SMSS)`.
    fn reduce(&mut self, percent: u64, flight: u64) {
        self.before = Some((self.cwnd, self.ssthresh));
        // At the acknowledgment of dozens of segments, less is in flight than was sent: a window
        // that is used up counts itself, as in RFC 9438 §4.6.
        let used = if self.window_limited {
            self.cwnd.max(flight)
        } else {
            flight
        };
        self.ssthresh = (used * percent / 100).max(2 * self.mss);
        self.bytes_acked = 0;
    }
}

impl Congestion for NewReno {
    fn window(&self) -> u64 {
        self.cwnd
    }

    fn ssthresh(&self) -> u64 {
        self.ssthresh
    }

    fn on_established(&mut self, _now: Instant, mss: u16, handshake_lost: bool) {
        self.mss = u64::from(mss);
        self.cwnd = initial_window(self.mss, handshake_lost);
    }

    fn adopt(&mut self, _now: Instant, mss: u16, window: u64, ssthresh: u64) {
        self.mss = u64::from(mss);
        self.cwnd = window;
        self.ssthresh = ssthresh;
    }

    fn on_mss(&mut self, mss: u16) {
        self.mss = u64::from(mss);
    }

    fn on_idle(&mut self, _now: Instant, idle: Duration, rto: Duration) {
        let restart = initial_window(self.mss, false);
        // RFC 5681 §4.1: the restart window.
        if idle > rto && self.cwnd > restart {
            self.ssthresh = threshold_at_idle(self.ssthresh, self.cwnd);
            self.cwnd = restart;
        }
    }

    fn on_ack(&mut self, ack: &Ack) {
        self.window_limited = ack.window_limited;
        if !ack.window_limited || !ack.advances || ack.phase == Phase::FastRecovery {
            return;
        }
        if self.cwnd < self.ssthresh {
            let growth = slow_start_growth(ack, self.cwnd, self.mss);
            self.cwnd += growth.min(self.ssthresh - self.cwnd);
        } else {
            // RFC 3465 §2.1, RFC 5681 §3.1: one segment for each window of bytes.
            self.bytes_acked += ack.delivered;
            while self.bytes_acked >= self.cwnd {
                self.bytes_acked -= self.cwnd;
                self.cwnd += self.mss;
            }
        }
        self.cwnd = self.cwnd.min(WINDOW_BYTES_MAX);
    }

    fn on_congestion(&mut self, _now: Instant, signal: Signal, flight: u64) {
        let percent = match signal {
            Signal::Ecn if self.cwnd >= self.ssthresh => BETA_ECN_PERCENT,
            Signal::Ecn | Signal::Loss => 50,
        };
        self.reduce(percent, flight);
        self.cwnd = self.ssthresh;
    }

    fn on_recovered(&mut self, _now: Instant, flight: Option<u64>) {
        self.cwnd = window_after_recovery(self.ssthresh, flight, self.mss);
    }

    fn on_timeout(&mut self, _now: Instant, flight: u64, again: bool) {
        // RFC 5681 §3.1: when a segment times out again, ssthresh is held constant.
        if !again {
            self.reduce(50, flight);
        }
        self.cwnd = self.mss;
    }

    fn on_undo(&mut self, _now: Instant) {
        if let Some((cwnd, ssthresh)) = self.before.take() {
            self.cwnd = self.cwnd.max(cwnd);
            self.ssthresh = self.ssthresh.max(ssthresh);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::tests::ack;

    const MSS: u64 = 1000;
    const NOW: Instant = Instant::from_us(0);

    fn established() -> NewReno {
        let mut newreno = NewReno::new();
        newreno.on_established(NOW, MSS as u16, false);
        newreno
    }

    fn acked(bytes: u64, phase: Phase) -> Ack {
        Ack {
            phase,
            ..ack(bytes)
        }
    }

    /// Covers: RFC 5681 §3.1
    #[test]
    fn slow_start_doubles_each_round_trip_until_ssthresh() {
        let mut newreno = established();
        newreno.on_ack(&acked(10 * MSS, Phase::Open));
        assert_eq!(newreno.window(), 20 * MSS);
        newreno.on_congestion(NOW, Signal::Loss, 20 * MSS);
        assert_eq!(newreno.window(), 10 * MSS);
        newreno.on_timeout(NOW, 20 * MSS, false);
        assert_eq!(newreno.window(), MSS);
        newreno.on_ack(&acked(8 * MSS, Phase::AfterTimeout));
        assert_eq!(newreno.window(), 3 * MSS);
        newreno.on_ack(&acked(40 * MSS, Phase::Open));
        assert_eq!(newreno.window(), 10 * MSS);
    }

    /// Covers: RFC 5681 §3.1, RFC 3465 §2.1
    #[test]
    fn congestion_avoidance_adds_one_segment_each_round_trip() {
        let mut newreno = established();
        newreno.on_ack(&acked(10 * MSS, Phase::Open));
        newreno.on_congestion(NOW, Signal::Loss, 20 * MSS);
        for _ in 0..9 {
            newreno.on_ack(&acked(MSS, Phase::Open));
        }
        assert_eq!(newreno.window(), 10 * MSS);
        newreno.on_ack(&acked(MSS, Phase::Open));
        assert_eq!(newreno.window(), 11 * MSS);
    }

    /// Covers: RFC 7661 §4.3
    #[test]
    fn a_window_that_is_not_used_does_not_grow() {
        let mut newreno = established();
        newreno.on_ack(&Ack {
            window_limited: false,
            ..acked(10 * MSS, Phase::Open)
        });
        assert_eq!(newreno.window(), 10 * MSS);
    }

    /// Covers: RFC 5681 §3.1
    #[test]
    fn repeated_timeouts_hold_ssthresh() {
        let mut newreno = established();
        newreno.on_ack(&acked(30 * MSS, Phase::Open));
        newreno.on_timeout(NOW, 40 * MSS, false);
        newreno.on_timeout(NOW, MSS, true);
        newreno.on_ack(&acked(2 * MSS, Phase::AfterTimeout));
        newreno.on_ack(&acked(100 * MSS, Phase::Open));
        assert_eq!(newreno.window(), 20 * MSS);
    }

    /// Covers: RFC 8511 §3.1
    #[test]
    fn a_mark_takes_less_than_a_loss_in_congestion_avoidance() {
        let mut newreno = established();
        newreno.on_congestion(NOW, Signal::Ecn, 10 * MSS);
        assert_eq!(newreno.window(), 5 * MSS);
        newreno.on_congestion(NOW, Signal::Ecn, 5 * MSS);
        assert_eq!(newreno.window(), 4 * MSS);
    }

    /// Covers: RFC 4015 §3
    #[test]
    fn undo_restores_window_and_threshold() {
        let mut newreno = established();
        newreno.on_timeout(NOW, 8 * MSS, false);
        newreno.on_timeout(NOW, 8 * MSS, true);
        newreno.on_undo(NOW);
        assert_eq!((newreno.window(), newreno.ssthresh()), (10 * MSS, u64::MAX));
        // Once.
        newreno.adopt(NOW, MSS as u16, 4 * MSS, 4 * MSS);
        newreno.on_undo(NOW);
        assert_eq!((newreno.window(), newreno.ssthresh()), (4 * MSS, 4 * MSS));
    }

    /// Covers: RFC 5681 §3.1, RFC 9438 §4.6
    #[test]
    fn a_loss_takes_half_of_what_was_in_flight_or_of_a_window_that_was_used_up() {
        for (window_limited, left) in [(false, 10), (true, 20)] {
            let mut newreno = established();
            newreno.adopt(NOW, MSS as u16, 40 * MSS, u64::MAX);
            newreno.on_ack(&Ack {
                window_limited,
                ..acked(0, Phase::Open)
            });
            newreno.on_congestion(NOW, Signal::Loss, 20 * MSS);
            assert_eq!(newreno.window(), left * MSS);
        }
    }

    /// Covers: RFC 5681 §4.1
    #[test]
    fn after_an_idle_rto_the_window_is_the_initial_one_again() {
        let mut newreno = established();
        newreno.on_ack(&acked(90 * MSS, Phase::Open));
        let rto = Duration::from_millis(200);
        newreno.on_idle(NOW, rto, rto);
        assert_eq!(newreno.window(), 100 * MSS);
        newreno.on_congestion(NOW, Signal::Loss, 100 * MSS);
        newreno.on_idle(NOW, 2 * rto, rto);
        assert_eq!(newreno.window(), 10 * MSS);
        assert_eq!(newreno.ssthresh(), 50 * MSS);
    }
}
