//! Congestion control: the algorithms of crate `tcp` behind quinn-proto's interface.

use std::any::Any;
use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory, ControllerMetrics};
use tcp::{CongestionAlgorithm, PacketCongestion};

use crate::engine::time::Clock;
use crate::trace::CongestionState;

/// Makes a controller for each path.
#[derive(Clone, Debug)]
pub(super) struct Controllers {
    pub(super) algorithm: CongestionAlgorithm,
    pub(super) seed: u64,
    pub(super) clock: Clock,
}

impl ControllerFactory for Controllers {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        let now = self.clock.to_caller(now);
        let control = PacketCongestion::new(self.algorithm, self.seed, now, mtu);
        Box::new(Adapter::new(control, self.clock, now))
    }
}

/// State that quinn-proto's `ControllerMetrics` lack.
#[derive(Clone, Copy, Debug)]
pub(super) struct Observed {
    pub(super) state: CongestionState,
    /// When the last lost packet was sent.
    pub(super) last_lost_sent: Option<tcp::Instant>,
}

thread_local! {
    /// From the controller whose metrics were read last.
    static OBSERVED: Cell<Observed> = const {
        Cell::new(Observed {
            state: CongestionState::SlowStart,
            last_lost_sent: None,
        })
    };
}

/// The metrics of a controller.
pub(super) fn observe(controller: &dyn Controller) -> (ControllerMetrics, Observed) {
    let metrics = controller.metrics();
    (metrics, OBSERVED.get())
}

thread_local! {
    /// Packets are built without regard to the window.
    static IS_UNBOUND: Cell<bool> = const { Cell::new(false) };

    /// Losses of packets sent between these times are no sign of congestion.
    static EXCUSED: Cell<Option<Excused>> = const { Cell::new(None) };
}

/// When the first and the last packet were sent that may have been lost with a NIC stack.
pub(super) type Excused = (tcp::Instant, tcp::Instant);

/// Builds packets that congestion control must not hold back (RFC 9002 §7): CONNECTION_CLOSE and
/// probes. While stream data is pending, quinn-proto counts a packet with CONNECTION_CLOSE as
/// ack-eliciting, and holds it back with the data. Without a window, it does not pace either.
pub(super) fn unbound<T>(build: impl FnOnce() -> T) -> T {
    IS_UNBOUND.set(true);
    let built = build();
    IS_UNBOUND.set(false);
    built
}

/// Detects losses, of which those `excused` are no sign of congestion.
#[inline]
pub(super) fn excusing(excused: Option<Excused>, detect: impl FnOnce()) {
    if excused.is_none() {
        return detect();
    }
    EXCUSED.set(excused);
    detect();
    EXCUSED.set(None);
}

fn is_excused(sent: tcp::Instant) -> bool {
    let excused = EXCUSED.get();
    excused.is_some_and(|(first, last)| (first..=last).contains(&sent))
}

struct Adapter {
    control: PacketCongestion,
    clock: Clock,
    /// The peer has acknowledged something.
    has_acked: bool,
    /// Smoothed and minimum round-trip time, as of the last acknowledgment.
    rtt: (Duration, Duration),
    last_lost_sent: Option<tcp::Instant>,
    /// The latest time passed to the algorithm: packets may be built ahead of now.
    latest: tcp::Instant,
    /// Acknowledged packets not yet passed to the algorithm: the moment at which all of them left,
    /// and their bytes. A burst costs one call, not one for each packet.
    acked: Option<(Instant, u64)>,
}

impl Adapter {
    fn new(control: PacketCongestion, clock: Clock, now: tcp::Instant) -> Self {
        Self {
            control,
            clock,
            has_acked: false,
            rtt: (Duration::ZERO, Duration::ZERO),
            last_lost_sent: None,
            latest: now,
            acked: None,
        }
    }

    /// Keeps time from going back.
    fn at(&mut self, now: Instant) -> tcp::Instant {
        self.latest = self.latest.max(self.clock.to_caller(now));
        self.latest
    }

    #[inline]
    fn add_acked(&mut self, now: Instant, sent: Instant, bytes: u64) {
        match &mut self.acked {
            Some((moment, total)) if *moment == sent => *total += bytes,
            _ => {
                let now = self.at(now);
                self.flush_acked(now);
                self.acked = Some((sent, bytes));
            }
        }
    }

    /// Passes on what [`add_acked`](Self::add_acked) has collected.
    fn flush_acked(&mut self, now: tcp::Instant) {
        if let Some((sent, bytes)) = self.acked.take() {
            self.control
                .on_acked(now, self.clock.to_caller(sent), bytes);
        }
    }
}

impl Controller for Adapter {
    fn on_sent(&mut self, now: Instant, bytes: u64, _last_packet_number: u64) {
        let now = self.at(now);
        self.control.on_sent(now, bytes);
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        _app_limited: bool,
        rtt: &RttEstimator,
    ) {
        self.has_acked = true;
        self.rtt = (rtt.get(), rtt.min());
        self.add_acked(now, sent, bytes);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        _largest_packet_num_acked: Option<u64>,
    ) {
        let now = self.at(now);
        self.flush_acked(now);
        self.control
            .on_acks_end(now, in_flight, app_limited, self.rtt);
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        let (now, sent) = (self.at(now), self.clock.to_caller(sent));
        // An ECN mark is a congestion event without loss.
        if lost_bytes > 0 {
            self.last_lost_sent = self.last_lost_sent.max(Some(sent));
        }
        if is_excused(sent) {
            return;
        }
        // Before the first acknowledgment, the client may have only Initial keys. A smaller window
        // would block retransmissions of the first packets for ever, behind probes that the client
        // cannot open: probes ignore the window, and are all that the probe timeout sends. The
        // amplification limit bounds the data (RFC 9000 §8.1).
        if !self.has_acked {
            return;
        }
        self.control
            .on_congestion(now, sent, is_persistent_congestion, lost_bytes);
    }

    fn on_mtu_update(&mut self, mtu: u16) {
        self.control.on_mss(mtu);
    }

    fn window(&self) -> u64 {
        match IS_UNBOUND.get() {
            true => u64::MAX,
            false => self.control.window(),
        }
    }

    fn metrics(&self) -> ControllerMetrics {
        let (window, ssthresh) = (self.control.window(), self.control.ssthresh());
        let state = if self.control.is_recovering() {
            CongestionState::Recovery
        } else if ssthresh.is_none_or(|ssthresh| window < ssthresh) {
            CongestionState::SlowStart
        } else {
            CongestionState::Avoidance
        };
        OBSERVED.set(Observed {
            state,
            last_lost_sent: self.last_lost_sent,
        });
        let mut metrics = ControllerMetrics::default();
        metrics.congestion_window = window;
        metrics.ssthresh = ssthresh;
        metrics.pacing_rate = self.control.pacing_rate().map(|bytes| bytes * 8);
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self {
            control: self.control.fork(),
            clock: self.clock,
            has_acked: self.has_acked,
            rtt: self.rtt,
            last_lost_sent: self.last_lost_sent,
            latest: self.latest,
            acked: None,
        })
    }

    fn initial_window(&self) -> u64 {
        self.control.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(algorithm: CongestionAlgorithm, clock: Clock) -> Adapter {
        let zero = tcp::Instant::from_us(0);
        Adapter::new(PacketCongestion::new(algorithm, 1, zero, 1200), clock, zero)
    }

    #[test]
    fn what_is_lost_before_anything_has_arrived_does_not_narrow_the_window() {
        for algorithm in CongestionAlgorithm::ALL {
            let clock = Clock::new();
            let start = clock.to_std(tcp::Instant::from_us(0));
            let mut adapter = new(algorithm, clock);
            let loses = |adapter: &mut Adapter, seconds| {
                let sent = start + Duration::from_secs(seconds);
                let now = sent + Duration::from_secs(1);
                adapter.on_sent(sent, 1200, seconds);
                adapter.on_congestion_event(now, sent, true, 1200);
                adapter.window()
            };
            let first = adapter.initial_window();
            assert_eq!(loses(&mut adapter, 1), first, "{algorithm:?}");
            adapter.has_acked = true;
            assert!(loses(&mut adapter, 9) < first, "{algorithm:?}");
        }
    }

    #[test]
    fn packets_lost_with_a_nic_stack_do_not_narrow_the_window() {
        let at = |ms| tcp::Instant::from_us(ms * 1000);
        for algorithm in CongestionAlgorithm::ALL {
            let clock = Clock::new();
            let mut adapter = new(algorithm, clock);
            adapter.has_acked = true;
            let before = adapter.window();
            let mut lose = |sent_ms, now_ms| {
                let (sent, now) = (clock.to_std(at(sent_ms)), clock.to_std(at(now_ms)));
                adapter.on_sent(sent, 1200, sent_ms);
                excusing(Some((at(10), at(20))), || {
                    adapter.on_congestion_event(now, sent, true, 1200);
                });
                adapter.window()
            };
            for sent_ms in [10, 20] {
                assert_eq!(lose(sent_ms, 30), before, "{algorithm:?}");
            }
            assert!(lose(21, 1031) < before, "{algorithm:?}");
        }
        assert!(!is_excused(at(15)));
    }

    #[test]
    fn unbound_packets_see_no_window() {
        let adapter = new(CongestionAlgorithm::Cubic, Clock::new());
        assert_eq!(unbound(|| adapter.window()), u64::MAX);
        assert_eq!(adapter.window(), adapter.initial_window());
    }

    /// The packets of a burst leave at one moment, and are acknowledged by a few frames.
    #[test]
    fn packets_acknowledged_together_count_as_one_by_one() {
        const BYTES: u64 = 1200;
        const RTT_US: u64 = 20_000;
        let rtt = Duration::from_micros(RTT_US);
        for algorithm in CongestionAlgorithm::ALL {
            let clock = Clock::new();
            let mut adapter = new(algorithm, clock);
            adapter.rtt = (rtt, rtt);
            let mut single = new(algorithm, clock).control;
            let mut windows = Vec::new();
            for round in 1..30 {
                let sent: Vec<u64> = (0..(adapter.window() / BYTES).min(1000))
                    .map(|packet| round * 2 * RTT_US + packet / 7 * 100)
                    .collect();
                for at_us in &sent {
                    let at = tcp::Instant::from_us(*at_us);
                    adapter.on_sent(clock.to_std(at), BYTES, 0);
                    single.on_sent(at, BYTES);
                }
                let mut flight = sent.len() as u64 * BYTES;
                for frame in sent.chunks(10) {
                    let now = tcp::Instant::from_us(frame[frame.len() - 1] + RTT_US);
                    for at_us in frame {
                        let at = tcp::Instant::from_us(*at_us);
                        adapter.add_acked(clock.to_std(now), clock.to_std(at), BYTES);
                        single.on_acked(now, at, BYTES);
                        flight -= BYTES;
                    }
                    adapter.on_end_acks(clock.to_std(now), flight, false, None);
                    single.on_acks_end(now, flight, false, (rtt, rtt));
                    let rates = [&adapter.control, &single].map(PacketCongestion::pacing_rate);
                    assert_eq!(rates[0], rates[1], "{algorithm:?}");
                    assert_eq!(adapter.window(), single.window(), "{algorithm:?}");
                }
                windows.push(adapter.window());
            }
            assert!(
                windows.last() > windows.first(),
                "{algorithm:?}: {windows:?}"
            );
        }
    }
}
