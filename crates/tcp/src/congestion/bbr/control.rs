//! Conclusions from the model: sending rate and bytes in flight (§5.6).

use std::time::Duration;

use super::model::bytes_in;
use super::{Bbr, INFINITE, State};
use crate::congestion::{Ack, initial_window};
use crate::sender::pacing::quantum;

/// §2.7, BBR.PacingMarginPercent: a little below the bandwidth, so that a queue drains.
const PACING_MARGIN_PERCENT: u64 = 1;

/// §5.6.2: assumed round-trip time before the first measurement.
const RTT_GUESS: Duration = Duration::from_millis(1);

impl Bbr {
    /// §5.6.2, BBRInitPacingRate
    pub(super) fn init_pacing_rate(&mut self, rtt: Option<Duration>) {
        let us = rtt.unwrap_or(RTT_GUESS).as_micros().max(1);
        let nominal = u128::from(self.cwnd) * 1_000_000 / us;
        let rate = nominal * u128::from(State::Startup.pacing_gain_percent()) / 100;
        self.pacing_rate = u64::try_from(rate).unwrap_or(u64::MAX).max(1);
        self.set_send_quantum();
    }

    /// BBRSetPacingRateWithGain
    pub(super) fn set_pacing_rate(&mut self, gain_percent: u64) {
        let bw = u128::from(self.model.bw());
        let rate = bw * u128::from(gain_percent * (100 - PACING_MARGIN_PERCENT)) / 10_000;
        let rate = u64::try_from(rate).unwrap_or(u64::MAX);
        if rate > 0 && (self.full.reached || rate > self.pacing_rate) {
            self.pacing_rate = rate;
        }
    }

    /// §5.6.3, BBRSetSendQuantum
    pub(super) fn set_send_quantum(&mut self) {
        self.send_quantum = quantum(self.pacing_rate, self.mss);
    }

    /// §5.6.4.2, BBRBDPMultiple
    pub(super) fn bdp(&self, gain_percent: u64) -> u64 {
        let Some(min_rtt) = self.min_rtt.min_rtt() else {
            return initial_window(self.mss, false);
        };
        let us = u64::try_from(min_rtt.as_micros()).unwrap_or(u64::MAX);
        bytes_in(self.model.bw(), us).saturating_mul(gain_percent) / 100
    }

    /// BBRQuantizationBudget: data under way between host, NIC stack and receiver must not count as
    /// in flight.
    fn quantization_budget(&self, inflight: u64) -> u64 {
        let offload_budget = 3 * self.send_quantum;
        let inflight = inflight.max(offload_budget).max(self.min_pipe_cwnd());
        match self.state {
            State::ProbeBwUp => inflight.saturating_add(2 * self.mss),
            _ => inflight,
        }
    }

    /// BBRInflight
    pub(super) fn inflight(&self, gain_percent: u64) -> u64 {
        self.quantization_budget(self.bdp(gain_percent))
    }

    /// BBRTargetInflight
    pub(super) fn target_inflight(&self) -> u64 {
        self.bdp(100).min(self.cwnd)
    }

    /// BBR.MinPipeCwnd
    pub(super) fn min_pipe_cwnd(&self) -> u64 {
        4 * self.mss
    }

    /// §5.6.4.6, BBRSetCwnd
    pub(super) fn set_cwnd(&mut self, ack: &Ack) {
        // BBRUpdateMaxInflight
        let bdp = self.bdp(self.state.cwnd_gain_percent());
        let extra_acked = self.model.extra_acked.max();
        let max_inflight = self.quantization_budget(bdp.saturating_add(extra_acked));

        let grown = self.cwnd.saturating_add(ack.delivered);
        if self.full.reached {
            self.cwnd = grown.min(max_inflight);
        } else if self.cwnd < max_inflight || ack.una < initial_window(self.mss, false) {
            self.cwnd = grown;
        }
        if !self.in_recovery || self.cwnd >= self.min_pipe_cwnd() {
            self.cwnd = self.cwnd.max(self.min_pipe_cwnd());
        }
        // BBRBoundCwndForProbeRTT
        if self.state == State::ProbeRtt {
            self.cwnd = self.cwnd.min(self.probe_rtt_cwnd());
        }
        self.bound_cwnd_for_model();
    }

    /// §5.6.4.7, BBRBoundCwndForModel
    fn bound_cwnd_for_model(&mut self) {
        let cap = match self.state {
            State::ProbeRtt | State::ProbeBwCruise => self.inflight_with_headroom(),
            State::ProbeBwDown | State::ProbeBwRefill | State::ProbeBwUp => {
                self.model.inflight_longterm
            }
            State::Startup | State::Drain => INFINITE,
        };
        let cap = cap
            .min(self.model.inflight_shortterm)
            .max(self.min_pipe_cwnd());
        self.cwnd = self.cwnd.min(cap);
    }
}
