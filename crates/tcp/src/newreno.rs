//! Slow start and congestion avoidance (RFC 5681), with the window counted in bytes acknowledged (RFC 3465).

use std::time::Duration;

use crate::congestion::{Ack, Congestion, Signal};
use crate::recovery::Phase;
use crate::time::Instant;

/// RFC 6928 §2: the initial window is `min(10*MSS, max(2*MSS, 14600))`.
const INITIAL_WINDOW_SEGMENTS: u64 = 10;
const INITIAL_WINDOW_BYTES: u64 = 14_600;

/// The window grows no further: no peer can offer more (RFC 7323 §2.3).
const WINDOW_BYTES_MAX: u64 = 1 << 30;

#[derive(Debug)]
pub(crate) struct NewReno {
    mss: u64,
    cwnd: u64,
    ssthresh: u64,
    /// In congestion avoidance, bytes acknowledged since the window grew.
    bytes_acked: u64,
    /// The window and the threshold before the last reduction.
    before: (u64, u64),
}

impl NewReno {
    pub(crate) fn new() -> NewReno {
        NewReno {
            mss: 536,
            cwnd: 536,
            ssthresh: u64::MAX,
            bytes_acked: 0,
            before: (536, u64::MAX),
        }
    }

    /// RFC 5681 (4): `ssthresh = max(FlightSize/2, 2*SMSS)`.
    fn reduce(&mut self, flight: u64) {
        self.before = (self.cwnd, self.ssthresh);
        self.ssthresh = (flight / 2).max(2 * self.mss);
        self.bytes_acked = 0;
    }

    fn initial_window(&self) -> u64 {
        (INITIAL_WINDOW_SEGMENTS * self.mss).min(INITIAL_WINDOW_BYTES.max(2 * self.mss))
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
        // RFC 5681 §3.1: if the SYN or SYN/ACK is lost, one segment.
        self.cwnd = match handshake_lost {
            true => self.mss,
            false => self.initial_window(),
        };
    }

    fn on_mss(&mut self, mss: u16) {
        self.mss = u64::from(mss);
    }

    fn on_idle(&mut self, _now: Instant, idle: Duration, rto: Duration) {
        // RFC 5681 §4.1: the restart window.
        if idle > rto {
            self.cwnd = self.cwnd.min(self.initial_window());
        }
    }

    fn on_ack(&mut self, ack: &Ack) {
        if !ack.window_limited || ack.phase == Phase::FastRecovery {
            return;
        }
        if self.cwnd < self.ssthresh {
            // RFC 3465 §2.1: as many bytes as were acknowledged. There is no limit L: receivers that merge
            // packets acknowledge dozens at once. After a timeout much of what one ACK covers may have left
            // the network long before: then L = 2 (§2.3 wants 1 there, but segments are ACKed in pairs).
            let limit = match ack.phase {
                Phase::AfterTimeout => 2 * self.mss,
                _ => u64::MAX,
            };
            self.cwnd += ack.acked.min(limit).min(self.ssthresh - self.cwnd);
        } else {
            // RFC 3465 §2.1, RFC 5681 §3.1: one segment for each window of bytes.
            self.bytes_acked += ack.acked;
            while self.bytes_acked >= self.cwnd {
                self.bytes_acked -= self.cwnd;
                self.cwnd += self.mss;
            }
        }
        self.cwnd = self.cwnd.min(WINDOW_BYTES_MAX);
    }

    fn on_congestion(&mut self, _now: Instant, _signal: Signal, flight: u64) {
        self.reduce(flight);
        self.cwnd = self.ssthresh;
    }

    fn on_recovered(&mut self, _now: Instant, flight: u64) {
        // RFC 6582 §3.2 step 3 (1): no burst of all that the window has room for.
        self.cwnd = self.ssthresh.min(flight.max(self.mss) + self.mss);
    }

    fn on_timeout(&mut self, _now: Instant, flight: u64, again: bool) {
        // RFC 5681 §3.1: when a segment times out again, ssthresh is held constant.
        if !again {
            self.reduce(flight);
        }
        self.cwnd = self.mss;
    }

    fn on_undo(&mut self, _now: Instant) {
        let (cwnd, ssthresh) = self.before;
        self.cwnd = self.cwnd.max(cwnd);
        self.ssthresh = self.ssthresh.max(ssthresh);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 1000;
    const NOW: Instant = Instant::from_us(0);

    fn established() -> NewReno {
        let mut newreno = NewReno::new();
        newreno.on_established(NOW, MSS as u16, false);
        newreno
    }

    fn acked(acked: u64, phase: Phase) -> Ack {
        Ack {
            now: NOW,
            una: acked,
            nxt: acked,
            acked,
            delivered: acked,
            lost: 0,
            prior_flight: acked,
            flight: 0,
            rtt: None,
            srtt: None,
            rate: None,
            window_limited: true,
            phase,
        }
    }

    /// Covers: RFC 6928 §2
    #[test]
    fn initial_window_is_ten_segments_or_14600_bytes() {
        let window = |mss, lost| {
            let mut newreno = NewReno::new();
            newreno.on_established(NOW, mss, lost);
            newreno.window()
        };
        assert_eq!(window(1000, false), 10_000);
        assert_eq!(window(1460, false), 14_600);
        assert_eq!(window(4000, false), 14_600);
        assert_eq!(window(8960, false), 2 * 8960);
        assert_eq!(window(1460, true), 1460);
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
        newreno.on_timeout(NOW, 40 * MSS, false);
        newreno.on_timeout(NOW, MSS, true);
        newreno.on_ack(&acked(2 * MSS, Phase::AfterTimeout));
        newreno.on_ack(&acked(100 * MSS, Phase::Open));
        assert_eq!(newreno.window(), 20 * MSS);
    }

    /// Covers: RFC 6582 §3.2 (step 3)
    #[test]
    fn recovery_ends_without_a_burst() {
        let mut newreno = established();
        newreno.on_congestion(NOW, Signal::Loss, 40 * MSS);
        newreno.on_recovered(NOW, 3 * MSS);
        assert_eq!(newreno.window(), 4 * MSS);
        newreno.on_congestion(NOW, Signal::Loss, 40 * MSS);
        newreno.on_recovered(NOW, 60 * MSS);
        assert_eq!(newreno.window(), 20 * MSS);
    }

    /// Covers: RFC 4015 §3
    #[test]
    fn undo_restores_window_and_threshold() {
        let mut newreno = established();
        newreno.on_timeout(NOW, 8 * MSS, false);
        newreno.on_timeout(NOW, 8 * MSS, true);
        newreno.on_undo(NOW);
        assert_eq!((newreno.window(), newreno.ssthresh()), (10 * MSS, u64::MAX));
    }

    /// Covers: RFC 5681 §4.1
    #[test]
    fn after_an_idle_rto_the_window_is_the_initial_one_again() {
        let mut newreno = established();
        newreno.on_ack(&acked(90 * MSS, Phase::Open));
        let rto = Duration::from_millis(200);
        newreno.on_idle(NOW, rto, rto);
        assert_eq!(newreno.window(), 100 * MSS);
        newreno.on_idle(NOW, 2 * rto, rto);
        assert_eq!(newreno.window(), 10 * MSS);
    }
}
