//! Congestion control for a transport that numbers its packets and finds their losses itself, as
//! QUIC does (RFC 9002): the algorithms of this crate, driven by the reports of such a transport.
//!
//! The recovery period of RFC 9002 §7.3.2 is kept here: one reduction for all data sent before it
//! began.

use std::collections::VecDeque;
use std::time::Duration;

use crate::congestion::algorithm::CongestionAlgorithm;
use crate::congestion::rate::{DeliveryRate, Snapshot};
use crate::congestion::{self, Ack, Congestion, Signal};
use crate::recovery::state::Phase;
use crate::time::{Instant, whole_us};

/// Most send times that are kept. Acknowledged data beyond them gives no sample.
const SENT_MAX: usize = 1024;

/// RFC 9002 §7.2, kMinimumWindow: in datagrams.
const WINDOW_DATAGRAMS_MIN: u64 = 2;

/// RFC 6298 §2.4 has a second; a path idle for less than a fifth of one keeps its window.
const IDLE_US_MIN: u64 = 200_000;

/// The packets sent at one time.
#[derive(Clone, Copy, Debug)]
struct Sent {
    at: Instant,
    /// Position behind these packets, among all bytes sent.
    end: u64,
    /// Bytes in these packets that are neither acknowledged nor given up.
    left: u64,
    /// At least half of the window was in use.
    window_limited: bool,
    snapshot: Snapshot,
}

/// The packets that one ACK frame acknowledges.
#[derive(Clone, Copy, Debug, Default)]
struct Batch {
    delivered: u64,
    prior_flight: u64,
    newest: Option<Instant>,
    window_limited: bool,
}

/// The congestion control of one path.
///
/// Report packets that leave ([`on_sent`](PacketCongestion::on_sent)), each packet that an ACK
/// frame acknowledges ([`on_acked`](PacketCongestion::on_acked)) and the frame's end
/// ([`on_acks_end`](PacketCongestion::on_acks_end)), and losses and marks
/// ([`on_congestion`](PacketCongestion::on_congestion)), behind that frame's end.
#[derive(Debug)]
pub struct PacketCongestion {
    algorithm: CongestionAlgorithm,
    seed: u64,
    control: Box<dyn Congestion>,
    mss: u16,
    phase: Phase,
    /// Time of the last reduction: losses of packets sent until then cause no other.
    reduced_at: Option<Instant>,
    rate: DeliveryRate,
    sent: VecDeque<Sent>,
    /// Bytes sent, ever; and the end of the newest acknowledged packet.
    nxt: u64,
    una: u64,
    flight: u64,
    last_sent_at: Option<Instant>,
    srtt: Option<Duration>,
    min_rtt_us: Option<u64>,
    batch: Batch,
    now: Instant,
}

impl PacketCongestion {
    /// Begins on a path whose datagrams take `mss` bytes. `seed`: seeds the algorithm's random
    /// choices.
    pub fn new(algorithm: CongestionAlgorithm, seed: u64, now: Instant, mss: u16) -> Self {
        let mut control = congestion::new(algorithm, seed);
        control.on_established(now, mss, false);
        Self::with(algorithm, seed, control, now, mss)
    }

    fn with(
        algorithm: CongestionAlgorithm,
        seed: u64,
        control: Box<dyn Congestion>,
        now: Instant,
        mss: u16,
    ) -> Self {
        Self {
            algorithm,
            seed,
            control,
            mss,
            phase: Phase::Open,
            reduced_at: None,
            rate: DeliveryRate::new(algorithm.uses_rate()),
            sent: VecDeque::new(),
            nxt: 0,
            una: 0,
            flight: 0,
            last_sent_at: None,
            srtt: None,
            min_rtt_us: None,
            batch: Batch::default(),
            now,
        }
    }

    /// Returns a new instance that begins with this window, on a path that is not known to share
    /// anything else.
    pub fn fork(&self) -> Self {
        let mut control = congestion::new(self.algorithm, self.seed);
        control.adopt(
            self.now,
            self.mss,
            self.control.window(),
            self.control.ssthresh(),
        );
        Self::with(self.algorithm, self.seed, control, self.now, self.mss)
    }

    /// Returns how many bytes may be in flight, never less than two datagrams (RFC 9002 §7.2).
    pub fn window(&self) -> u64 {
        let least = WINDOW_DATAGRAMS_MIN * u64::from(self.mss);
        self.control.window().max(least)
    }

    /// Returns the window of an unknown path.
    pub fn initial_window(&self) -> u64 {
        congestion::initial_window(u64::from(self.mss), false)
    }

    /// Returns the slow start threshold. `None` until there was congestion.
    pub fn ssthresh(&self) -> Option<u64> {
        Some(self.control.ssthresh()).filter(|ssthresh| *ssthresh != u64::MAX)
    }

    /// Returns how many bytes per second may leave, if the algorithm sets a rate.
    pub fn pacing_rate(&self) -> Option<u64> {
        self.control.pacing_rate()
    }

    /// Returns true during recovery from a loss (RFC 9002 §7.3.2).
    pub fn is_recovering(&self) -> bool {
        self.phase == Phase::FastRecovery
    }

    /// Sets a new datagram size.
    pub fn on_mss(&mut self, mss: u16) {
        self.mss = mss;
        self.control.on_mss(mss);
    }

    /// Records that packets that count towards the window have left.
    pub fn on_sent(&mut self, now: Instant, bytes: u64) {
        self.now = now;
        let alone = self.flight == 0;
        if alone && let Some(last) = self.last_sent_at {
            let srtt_us = self.srtt.map_or(IDLE_US_MIN, whole_us);
            let rto = Duration::from_micros((3 * srtt_us).max(IDLE_US_MIN));
            self.control.on_idle(now, now.since(last), rto);
        }
        self.last_sent_at = Some(now);
        self.flight += bytes;
        self.nxt += bytes;
        let window_limited = 2 * self.flight >= self.window();
        let snapshot = self.rate.on_departed(now, self.flight, alone);
        match self.sent.back_mut() {
            Some(sent) if sent.at == now => {
                sent.end = self.nxt;
                sent.left += bytes;
                sent.window_limited |= window_limited;
            }
            _ => self.sent.push_back(Sent {
                at: now,
                end: self.nxt,
                left: bytes,
                window_limited,
                snapshot,
            }),
        }
        if self.sent.len() > SENT_MAX {
            self.sent.pop_front();
        }
    }

    /// Records the first acknowledgment of a packet that had left at `sent_at`.
    pub fn on_acked(&mut self, now: Instant, sent_at: Instant, bytes: u64) {
        self.now = now;
        let batch = &mut self.batch;
        if batch.newest.is_none() {
            batch.prior_flight = self.flight;
        }
        batch.newest = batch.newest.max(Some(sent_at));
        batch.delivered += bytes;
        self.flight = self.flight.saturating_sub(bytes);
        let at = self.sent.partition_point(|sent| sent.at < sent_at);
        let sent = self.sent.get_mut(at).filter(|sent| sent.at == sent_at);
        let departed = sent.map(|sent| {
            sent.left = sent.left.saturating_sub(bytes);
            batch.window_limited |= sent.window_limited;
            self.una = self.una.max(sent.end - sent.left);
            (sent.snapshot, sent.at)
        });
        self.rate.on_delivered(now, bytes, departed);
    }

    /// Records that all packets acknowledged by an ACK frame were reported. `flight`: bytes now in
    /// flight; `app_limited`: there was nothing to send although the window was open; `srtt` and
    /// `min_rtt` as they were before the frame.
    pub fn on_acks_end(
        &mut self,
        now: Instant,
        flight: u64,
        app_limited: bool,
        (srtt, min_rtt): (Duration, Duration),
    ) {
        self.now = now;
        self.flight = flight;
        let batch = std::mem::take(&mut self.batch);
        let Some(newest) = batch.newest else { return };
        self.srtt = Some(srtt);
        self.min_rtt_us = Some(whole_us(min_rtt));
        if self.phase != Phase::Open && self.reduced_at.is_none_or(|at| newest > at) {
            if self.phase == Phase::FastRecovery {
                self.control.on_recovered(now, None);
            }
            self.phase = Phase::Open;
        }
        let lost = self.rate.take_newly_lost();
        let rate = self.rate.sample(now, self.min_rtt_us);
        self.control.on_ack(&Ack {
            now,
            una: self.una,
            nxt: self.nxt,
            delivered: batch.delivered,
            lost,
            prior_flight: batch.prior_flight,
            flight,
            rtt: Some(now.since(newest)),
            srtt: self.srtt,
            rate,
            window_limited: batch.window_limited,
            advances: true,
            phase: self.phase,
        });
        if app_limited {
            self.rate.on_app_limited(flight);
        }
        self.forget(newest);
    }

    /// Records that packets are lost, the newest of which had left at `sent_at`, or marked by a
    /// router: then `lost` is zero. `persistent`: all packets sent over a long time are lost (RFC
    /// 9002 §7.6).
    pub fn on_congestion(&mut self, now: Instant, sent_at: Instant, persistent: bool, lost: u64) {
        self.now = now;
        let flight = self.flight;
        self.rate.on_lost(lost);
        self.flight = flight.saturating_sub(lost);
        let known = self.reduced_at.is_some_and(|at| sent_at <= at);
        if persistent {
            let again = known && self.phase == Phase::AfterTimeout;
            self.control.on_timeout(now, flight, again);
            self.phase = Phase::AfterTimeout;
            self.reduced_at = Some(now);
        } else if !known {
            let signal = if lost > 0 { Signal::Loss } else { Signal::Ecn };
            self.control.on_congestion(now, signal, flight);
            if signal == Signal::Loss {
                self.phase = Phase::FastRecovery;
            }
            self.reduced_at = Some(now);
        }
    }

    /// Drops entries that need no sample any more: those acknowledged in full, and those that left
    /// long enough before the newest packet acknowledged that they must be lost (RFC 9002 §6.1.2).
    fn forget(&mut self, newest: Instant) {
        let late = self.srtt.unwrap_or_default() * 2;
        while let Some(sent) = self.sent.front()
            && (sent.left == 0 || newest.since(sent.at) > late)
        {
            self.sent.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 1200;
    const RTT: Duration = Duration::from_millis(20);

    fn at(ms: u64) -> Instant {
        Instant::from_us(ms * 1000)
    }

    /// Sends a window at `ms`, and acknowledges it in full a round trip later.
    fn round(control: &mut PacketCongestion, ms: u64) {
        let window = control.window();
        control.on_sent(at(ms), window);
        control.on_acked(at(ms + 20), at(ms), window);
        control.on_acks_end(at(ms + 20), 0, false, (RTT, RTT));
    }

    fn new(algorithm: CongestionAlgorithm) -> PacketCongestion {
        PacketCongestion::new(algorithm, 7, at(0), MSS as u16)
    }

    #[test]
    fn every_algorithm_begins_with_the_initial_window_and_grows_while_it_is_used() {
        for algorithm in CongestionAlgorithm::ALL {
            let mut control = new(algorithm);
            assert_eq!(control.window(), control.initial_window(), "{algorithm}");
            for i in 0..4 {
                round(&mut control, 100 + 20 * i);
            }
            let window = control.window();
            assert!(
                window >= 4 * control.initial_window(),
                "{algorithm}: {window}"
            );
        }
    }

    #[test]
    fn a_window_that_is_not_used_does_not_grow() {
        let mut control = new(CongestionAlgorithm::NewReno);
        control.on_sent(at(0), MSS);
        control.on_acked(at(20), at(0), MSS);
        control.on_acks_end(at(20), 0, true, (RTT, RTT));
        assert_eq!(control.window(), control.initial_window());
    }

    /// Covers: RFC 9002 §7.3.2
    #[test]
    fn all_that_was_sent_before_a_reduction_causes_no_other() {
        for algorithm in [CongestionAlgorithm::NewReno, CongestionAlgorithm::Cubic] {
            let mut control = new(algorithm);
            round(&mut control, 0);
            let before = control.window();
            control.on_sent(at(40), before / 2);
            control.on_sent(at(41), before / 2);
            control.on_congestion(at(60), at(40), false, MSS);
            let reduced = control.window();
            assert!(reduced < before, "{algorithm}");
            control.on_congestion(at(61), at(41), false, MSS);
            assert_eq!(control.window(), reduced, "{algorithm}");
            // An acknowledgment of data sent later ends the period; its loss counts.
            control.on_sent(at(70), MSS);
            control.on_acked(at(90), at(70), MSS);
            control.on_acks_end(at(90), 0, false, (RTT, RTT));
            control.on_sent(at(91), reduced);
            control.on_congestion(at(111), at(91), false, MSS);
            assert!(control.window() < reduced, "{algorithm}");
        }
    }

    #[test]
    fn a_mark_reduces_once_a_round_trip() {
        let mut control = new(CongestionAlgorithm::NewReno);
        round(&mut control, 0);
        let before = control.window();
        control.on_sent(at(40), before);
        control.on_congestion(at(60), at(40), false, 0);
        let reduced = control.window();
        control.on_congestion(at(61), at(40), false, 0);
        assert!(reduced < before);
        assert_eq!(control.window(), reduced);
    }

    /// Covers: RFC 9002 §7.6.2, RFC 9002 §7.2
    #[test]
    fn persistent_congestion_leaves_two_datagrams() {
        for algorithm in CongestionAlgorithm::ALL {
            let mut control = new(algorithm);
            round(&mut control, 0);
            control.on_sent(at(40), 10 * MSS);
            control.on_congestion(at(900), at(40), true, 10 * MSS);
            assert_eq!(control.window(), 2 * MSS, "{algorithm}");
            control.on_sent(at(901), 2 * MSS);
            control.on_acked(at(921), at(901), 2 * MSS);
            control.on_acks_end(at(921), 0, false, (RTT, RTT));
            assert!(control.window() > 2 * MSS, "{algorithm}");
        }
    }

    #[test]
    fn a_fork_goes_on_from_the_window() {
        for algorithm in CongestionAlgorithm::ALL {
            let mut control = new(algorithm);
            round(&mut control, 0);
            let fork = control.fork();
            assert_eq!(fork.window(), control.window(), "{algorithm}");
        }
    }

    #[test]
    fn what_is_remembered_of_sending_is_bounded() {
        let mut control = new(CongestionAlgorithm::Bbr);
        for i in 0..3 * SENT_MAX as u64 {
            control.on_sent(Instant::from_us(i), 1);
        }
        assert_eq!(control.sent.len(), SENT_MAX);
        // The acknowledgment of a dropped entry counts all the same.
        control.on_acked(at(20), at(0), 1);
        control.on_acks_end(at(20), control.flight, false, (RTT, RTT));
        assert_eq!(control.flight, 3 * SENT_MAX as u64 - 1);
    }

    #[test]
    fn bbr_measures_the_rate_at_which_packets_arrive() {
        let mut control = new(CongestionAlgorithm::Bbr);
        for i in 0..8 {
            round(&mut control, 100 + 20 * i);
        }
        let rate = control.pacing_rate().expect("bbr paces");
        assert!(rate > 10 * MSS * 50, "{rate}");
    }
}
