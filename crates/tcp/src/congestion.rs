//! Congestion control: how much may be in flight, and how fast it may leave.
//!
//! Loss is detected elsewhere ([`crate::recovery`]); an algorithm hears of it and names a window. It knows
//! neither segments nor timers: positions, bytes and instants are all that it is given.

use std::fmt::Debug;
use std::time::Duration;

use crate::config::CongestionAlgorithm;
use crate::newreno::NewReno;
use crate::rate::RateSample;
use crate::recovery::Phase;
use crate::time::Instant;

/// What tells of congestion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// A loss; fast recovery begins.
    Loss,
    /// The peer echoes that a router has marked a packet (RFC 3168 §6.1.2). Told at most once a round trip.
    Ecn,
}

/// What one acknowledgment tells, once loss detection has seen it. All sizes are in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ack {
    /// When it arrived.
    pub(crate) now: Instant,
    /// SND.UNA and SND.NXT after it, as positions: they count round trips.
    pub(crate) una: u64,
    pub(crate) nxt: u64,
    /// By how much it advanced SND.UNA.
    pub(crate) acked: u64,
    /// Newly known to have reached the peer: acknowledged or selectively acknowledged, for the first time.
    pub(crate) delivered: u64,
    /// Newly known to be lost.
    pub(crate) lost: u64,
    /// In flight before it and after it: issued, not delivered, not lost (`pipe` of RFC 6675 §2).
    pub(crate) prior_flight: u64,
    pub(crate) flight: u64,
    /// The round-trip time that it measured, if it did, and the smoothed one.
    pub(crate) rtt: Option<Duration>,
    pub(crate) srtt: Option<Duration>,
    /// The delivery rate that it measured, if it did.
    pub(crate) rate: Option<RateSample>,
    /// The data that it acknowledges was sent until the congestion window was used up. A window that is not
    /// used does not grow (RFC 7661 §4.1, RFC 9438 §5.8).
    pub(crate) window_limited: bool,
    /// What the sender was busy with when it arrived.
    pub(crate) phase: Phase,
}

/// A congestion control algorithm. Sizes are in bytes, rates in bytes per second.
pub(crate) trait Congestion: Debug + Send {
    /// The congestion window.
    fn window(&self) -> u64;

    /// The slow start threshold: during fast recovery, where the window is to arrive (RFC 6937, `ssthresh`).
    fn ssthresh(&self) -> u64;

    /// The rate at which data may leave. `None`: as fast as the window allows.
    fn pacing_rate(&self) -> Option<u64> {
        None
    }

    /// True if [`window`](Congestion::window) applies in fast recovery, too, in place of proportional rate
    /// reduction.
    fn rules_recovery(&self) -> bool {
        false
    }

    /// The handshake is complete. `handshake_lost`: a SYN had to be retransmitted.
    fn on_established(&mut self, now: Instant, mss: u16, handshake_lost: bool);

    /// Eff.snd.MSS has changed.
    fn on_mss(&mut self, mss: u16);

    /// Data is about to be sent, and nothing was in flight for `idle` (RFC 5681 §4.1).
    fn on_idle(&mut self, now: Instant, idle: Duration, rto: Duration);

    /// An acknowledgment has told something: data acknowledged, selectively acknowledged, or lost.
    fn on_ack(&mut self, ack: &Ack);

    /// There is congestion. `flight`: bytes in flight, before anything was taken away as lost.
    fn on_congestion(&mut self, now: Instant, signal: Signal, flight: u64);

    /// All that was in flight at the loss is acknowledged. `flight`: what is in flight now.
    fn on_recovered(&mut self, now: Instant, flight: u64);

    /// The retransmission timer has expired. `again`: nothing was acknowledged since the last time.
    fn on_timeout(&mut self, now: Instant, flight: u64, again: bool);

    /// The last [`on_congestion`](Congestion::on_congestion) of a loss, or the timeouts since the last
    /// progress, were spurious: nothing was lost (RFC 4015). Restores what was there before.
    fn on_undo(&mut self, now: Instant);
}

/// A fresh instance of an algorithm.
pub(crate) fn new(algorithm: CongestionAlgorithm) -> Box<dyn Congestion> {
    match algorithm {
        CongestionAlgorithm::NewReno => Box::new(NewReno::new()),
    }
}
