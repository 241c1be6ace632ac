//! Congestion control: the algorithms of crate `tcp`, as the engine's QUIC calls them.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory, ControllerMetrics};
use tcp::{CongestionAlgorithm, PacketCongestion};

use crate::engine::time::Clock;

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
            rtt: (Duration::ZERO, Duration::ZERO),
        })
    }
}

struct Adapter {
    control: PacketCongestion,
    clock: Clock,
    /// Smoothed, and the shortest, as the last acknowledgment has shown them.
    rtt: (Duration, Duration),
}

impl Controller for Adapter {
    fn on_sent(&mut self, now: Instant, bytes: u64, _last_packet_number: u64) {
        self.control.on_sent(self.clock.to_caller(now), bytes);
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        _app_limited: bool,
        rtt: &RttEstimator,
    ) {
        self.rtt = (rtt.get(), rtt.min());
        let (now, sent) = (self.clock.to_caller(now), self.clock.to_caller(sent));
        self.control.on_acked(now, sent, bytes);
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        app_limited: bool,
        _largest_packet_num_acked: Option<u64>,
    ) {
        let now = self.clock.to_caller(now);
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
        let (now, sent) = (self.clock.to_caller(now), self.clock.to_caller(sent));
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
        let mut metrics = ControllerMetrics::default();
        metrics.congestion_window = self.control.window();
        metrics.ssthresh = self.control.ssthresh();
        metrics.pacing_rate = self.control.pacing_rate().map(|bytes| bytes * 8);
        metrics
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self {
            control: self.control.fork(),
            clock: self.clock,
            rtt: self.rtt,
        })
    }

    fn initial_window(&self) -> u64 {
        self.control.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
