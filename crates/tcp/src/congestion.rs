//! Congestion control: how much may be in flight, and how fast it may leave.
//!
//! Loss is detected elsewhere ([`crate::recovery`]) and reported to an algorithm, which sets a
//! window. An algorithm knows neither segments nor timers: its only inputs are positions, bytes and
//! instants.

pub(crate) mod algorithm;
pub(crate) mod bbr;
#[cfg(test)]
pub(crate) mod bottleneck;
pub(crate) mod cubic;
pub(crate) mod hystart;
pub(crate) mod newreno;
pub(crate) mod packets;
pub(crate) mod rate;

use std::fmt::Debug;
use std::time::Duration;

use crate::congestion::algorithm::CongestionAlgorithm;
use crate::congestion::bbr::Bbr;
use crate::congestion::cubic::Cubic;
use crate::congestion::newreno::NewReno;
use crate::congestion::rate::RateSample;
use crate::recovery::state::Phase;
use crate::time::Instant;

/// A sign of congestion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// A loss; fast recovery begins.
    Loss,
    /// The peer echoes that a router has marked a packet (RFC 3168 §6.1.2). Reported at most once a
    /// round trip.
    Ecn,
}

/// The results of one acknowledgment, once loss detection has processed it. All sizes are in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ack {
    /// Arrival of the acknowledgment.
    pub(crate) now: Instant,
    /// SND.UNA and SND.NXT after it, as positions: they count round trips.
    pub(crate) una: u64,
    pub(crate) nxt: u64,
    /// Newly known to have reached the peer: acknowledged or selectively acknowledged, for the
    /// first time.
    pub(crate) delivered: u64,
    /// Newly known to be lost.
    pub(crate) lost: u64,
    /// In flight before it and after it: issued, not delivered, not lost (`pipe` of RFC 6675 §2).
    pub(crate) prior_flight: u64,
    pub(crate) flight: u64,
    /// The round-trip time that the acknowledgment measured, if it did, and the smoothed one.
    pub(crate) rtt: Option<Duration>,
    pub(crate) srtt: Option<Duration>,
    /// The delivery rate that the acknowledgment measured, if it did.
    pub(crate) rate: Option<RateSample>,
    /// The acknowledged data was sent until at least half of the congestion window was in use. A
    /// window that is not used does not grow (RFC 7661 §4.1, RFC 9438 §5.8).
    pub(crate) window_limited: bool,
    /// The acknowledgment advances SND.UNA, or the network is known to reorder packets. If neither,
    /// there may be a loss, and no window grows (RFC 3042 §2).
    pub(crate) advances: bool,
    /// Phase of loss recovery at the arrival.
    pub(crate) phase: Phase,
}

/// A congestion control algorithm. Sizes are in bytes, rates in bytes per second.
pub(crate) trait Congestion: Debug + Send + Sync {
    /// Returns the congestion window.
    fn window(&self) -> u64;

    /// Returns the slow start threshold: during fast recovery, the target of the window (RFC 6937,
    /// `ssthresh`).
    fn ssthresh(&self) -> u64;

    /// Returns the rate at which data may leave. `None`: as fast as the window allows.
    fn pacing_rate(&self) -> Option<u64> {
        None
    }

    /// Returns true if [`window`](Congestion::window) applies in fast recovery, too, in place of
    /// proportional rate reduction.
    fn rules_recovery(&self) -> bool {
        false
    }

    /// The handshake is complete. `handshake_lost`: our SYN had to be retransmitted more than once.
    fn on_established(&mut self, now: Instant, mss: u16, handshake_lost: bool);

    /// Takes over a connection from another algorithm, in place of
    /// [`on_established`](Congestion::on_established). `ssthresh` is `u64::MAX` as long as there
    /// was no congestion.
    fn adopt(&mut self, now: Instant, mss: u16, window: u64, ssthresh: u64);

    /// Eff.snd.MSS has changed.
    fn on_mss(&mut self, mss: u16);

    /// Data is about to be sent, and nothing was in flight for `idle` (RFC 5681 §4.1).
    fn on_idle(&mut self, now: Instant, idle: Duration, rto: Duration);

    /// Handles an acknowledgment that newly acknowledges data, selectively or not, or reveals a
    /// loss.
    fn on_ack(&mut self, ack: &Ack);

    /// Reacts to congestion. `flight`: FlightSize, bytes sent and not acknowledged cumulatively
    /// (RFC 5681 §2).
    fn on_congestion(&mut self, now: Instant, signal: Signal, flight: u64);

    /// Ends recovery: all data in flight at the loss is acknowledged. `flight`: bytes now in flight
    /// if the peer lacks SACK; with SACK, proportional rate reduction has kept data flowing, and
    /// there is no burst to prevent (RFC 6675 §5).
    fn on_recovered(&mut self, now: Instant, flight: Option<u64>);

    /// Reacts to a retransmission timeout. `again`: nothing was acknowledged since the previous
    /// one.
    fn on_timeout(&mut self, now: Instant, flight: u64, again: bool);

    /// Restores the state before the last [`on_congestion`](Congestion::on_congestion) for a loss,
    /// or before the timeouts since the last progress: they were spurious, nothing was lost (RFC
    /// 4015).
    fn on_undo(&mut self, now: Instant);
}

/// Returns a new instance of an algorithm. `seed`: seeds its random choices.
pub(crate) fn new(algorithm: CongestionAlgorithm, seed: u64) -> Box<dyn Congestion> {
    match algorithm {
        CongestionAlgorithm::NewReno => Box::new(NewReno::new()),
        CongestionAlgorithm::Cubic => Box::new(Cubic::new()),
        CongestionAlgorithm::Bbr => Box::new(Bbr::new(seed)),
    }
}

/// The window grows no further: no peer can offer more (RFC 7323 §2.3).
pub(crate) const WINDOW_BYTES_MAX: u64 = 1 << 30;

/// RFC 6928 §2: the initial window is `min(10*MSS, max(2*MSS, 14600))`, and one segment only if the
/// SYN or SYN,ACK had to be retransmitted more than once.
pub(crate) fn initial_window(mss: u64, handshake_lost: bool) -> u64 {
    if handshake_lost {
        mss
    } else {
        (10 * mss).min((2 * mss).max(14_600))
    }
}

/// RFC 3465 §2.1: in slow start, the window grows by as many bytes as were delivered. There is no
/// limit L, since receivers that merge packets acknowledge dozens at once. After a timeout, much of
/// the acknowledged data may have left the network long before: then the window at most doubles, or
/// grows by two segments.
pub(crate) fn slow_start_growth(ack: &Ack, cwnd: u64, mss: u64) -> u64 {
    match ack.phase {
        Phase::AfterTimeout => ack.delivered.min(cwnd.max(2 * mss)),
        _ => ack.delivered,
    }
}

/// RFC 6582 §3.2 step 3 (1): when recovery ends with little in flight, the window must not let a
/// burst out. An initial window at once is no burst. `flight`: as in [`Congestion::on_recovered`].
pub(crate) fn window_after_recovery(ssthresh: u64, flight: Option<u64>, mss: u64) -> u64 {
    let room = |flight: u64| flight.max(mss).saturating_add(initial_window(mss, false));
    flight.map_or(ssthresh, |flight| ssthresh.min(room(flight)))
}

/// RFC 7661 §4.4.2, in its spirit: a window that shrinks because nothing was sent grows in slow
/// start to three quarters of its former size.
pub(crate) fn threshold_at_idle(ssthresh: u64, cwnd: u64) -> u64 {
    ssthresh.max(cwnd / 4 * 3)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An acknowledgment of `bytes`, of data that had used up the window.
    pub(crate) fn ack(bytes: u64) -> Ack {
        Ack {
            now: Instant::from_us(0),
            una: bytes,
            nxt: bytes,
            delivered: bytes,
            lost: 0,
            prior_flight: bytes,
            flight: 0,
            rtt: None,
            srtt: None,
            rate: None,
            window_limited: true,
            advances: true,
            phase: Phase::Open,
        }
    }

    /// Covers: RFC 6928 §2, RFC 5681 §3.1
    #[test]
    fn initial_window_is_ten_segments_or_14600_bytes() {
        assert_eq!(initial_window(1000, false), 10_000);
        assert_eq!(initial_window(1460, false), 14_600);
        assert_eq!(initial_window(4000, false), 14_600);
        assert_eq!(initial_window(8960, false), 2 * 8960);
        assert_eq!(initial_window(1460, true), 1460);
    }

    /// Covers: RFC 6582 §3.2 (step 3)
    #[test]
    fn recovery_ends_without_a_burst() {
        assert_eq!(window_after_recovery(100_000, Some(3000), 1000), 13_000);
        assert_eq!(window_after_recovery(20_000, Some(60_000), 1000), 20_000);
        assert_eq!(window_after_recovery(100_000, None, 1000), 100_000);
    }
}
