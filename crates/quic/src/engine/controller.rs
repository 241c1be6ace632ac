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
        Box::new(Adapter {
            control: PacketCongestion::new(self.algorithm, self.seed, now, mtu),
            clock: self.clock,
            has_acked: false,
            rtt: (Duration::ZERO, Duration::ZERO),
            last_lost_sent: None,
            told: now,
        })
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

struct Adapter {
    control: PacketCongestion,
    clock: Clock,
    /// The peer has acknowledged something.
    has_acked: bool,
    /// Smoothed and minimum round-trip time, as of the last acknowledgment.
    rtt: (Duration, Duration),
    last_lost_sent: Option<tcp::Instant>,
    /// The latest time passed to the algorithm: packets may be built ahead of now.
    told: tcp::Instant,
}

impl Adapter {
    /// Keeps time from going back.
    fn at(&mut self, now: Instant) -> tcp::Instant {
        self.told = self.told.max(self.clock.to_caller(now));
        self.told
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
        let (now, sent) = (self.at(now), self.clock.to_caller(sent));
        self.control.on_acked(now, sent, bytes);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        _largest_packet_num_acked: Option<u64>,
    ) {
        let now = self.at(now);
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
        self.control.window()
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
            told: self.told,
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

    #[test]
    fn what_is_lost_before_anything_has_arrived_does_not_narrow_the_window() {
        for algorithm in CongestionAlgorithm::ALL {
            let clock = Clock::new();
            let start = clock.to_std(tcp::Instant::from_us(0));
            let mut adapter = Adapter {
                control: PacketCongestion::new(algorithm, 1, tcp::Instant::from_us(0), 1200),
                clock,
                has_acked: false,
                rtt: (Duration::ZERO, Duration::ZERO),
                last_lost_sent: None,
                told: tcp::Instant::from_us(0),
            };
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
}
