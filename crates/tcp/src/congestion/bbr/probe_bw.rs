//! ProbeBW (§5.3.3): most of the time the flow cruises at the bandwidth it knows; every few seconds
//! it sends more for a while, to see whether there is more, and then less, to let go of the queue.

use super::{Bbr, INFINITE, State};
use crate::congestion::Ack;
use crate::congestion::rate::RateSample;
use crate::time::Instant;

/// §2.7, BBR.Headroom, in percent: room that is left to others while cruising.
const HEADROOM_PERCENT: u64 = 15;

/// §5.3.3.5: a probe at least every two to three seconds, ...
const PROBE_WAIT_BASE_US: u64 = 2_000_000;
const PROBE_WAIT_RANDOM_US: u64 = 1_000_000;

/// ... and, so that a Reno flow beside has its share, after as many round trips as it needs to grow
/// by a window; at most this number.
const RENO_ROUNDS_MAX: u64 = 63;

/// Relation of arriving acknowledgments to the last probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum AckPhase {
    #[default]
    Init,
    Refilling,
    /// The probe has begun, but the acknowledged data was sent before.
    ProbeStarting,
    /// The acknowledged data was sent during the probe.
    ProbeFeedback,
    /// The probe is over, but the acknowledged data was sent during it.
    ProbeStopping,
}

#[derive(Debug, Default)]
pub(super) struct ProbeBw {
    pub(super) ack_phase: AckPhase,
    /// BBR.bw_probe_samples: data in flight during a probe is acknowledged now.
    pub(super) samples: bool,
    cycle_stamp: Instant,
    wait_us: u64,
    /// Round trips in Up.
    up_rounds: u32,
}

impl Bbr {
    /// BBRUpdateProbeBWCyclePhase
    pub(super) fn update_probe_bw_cycle_phase(&mut self, ack: &Ack, sample: &RateSample) {
        if !self.full.reached {
            return;
        }
        self.adapt_long_term_model(ack, sample);
        let state = self.state;
        match state {
            State::ProbeBwDown
                if !self.check_time_to_probe_bw(ack.now) && self.is_time_to_cruise(ack) =>
            {
                self.state = State::ProbeBwCruise;
            }
            State::ProbeBwCruise => {
                self.check_time_to_probe_bw(ack.now);
            }
            // The data sent a round trip ago filled the pipe.
            State::ProbeBwRefill if self.round.start => {
                self.probe.samples = true;
                self.start_probe_bw_up(ack.now);
                self.full.restart_at(sample.bytes_per_second());
            }
            State::ProbeBwUp if self.is_time_to_go_down(ack, sample) => {
                self.start_probe_bw_down(ack.now);
            }
            _ => {}
        }
    }

    /// BBRStartProbeBW_DOWN
    pub(super) fn start_probe_bw_down(&mut self, now: Instant) {
        self.model.reset_congestion_signals();
        // BBRPickProbeWait
        self.round.since_probe = self.random.below(2);
        self.probe.wait_us = PROBE_WAIT_BASE_US + self.random.below(PROBE_WAIT_RANDOM_US);
        self.probe.cycle_stamp = now;
        self.probe.ack_phase = AckPhase::ProbeStopping;
        self.round.begin();
        self.state = State::ProbeBwDown;
    }

    /// BBRStartProbeBW_REFILL
    fn start_probe_bw_refill(&mut self) {
        self.model.reset_short_term();
        self.probe.up_rounds = 0;
        self.probe.ack_phase = AckPhase::Refilling;
        self.round.begin();
        self.state = State::ProbeBwRefill;
    }

    /// BBRStartProbeBW_UP
    pub(super) fn start_probe_bw_up(&mut self, now: Instant) {
        self.probe.ack_phase = AckPhase::ProbeStarting;
        self.round.begin();
        self.full.reset();
        self.probe.cycle_stamp = now;
        self.state = State::ProbeBwUp;
    }

    /// BBRCheckTimeToProbeBW
    fn check_time_to_probe_bw(&mut self, now: Instant) -> bool {
        let elapsed_us = now.since(self.probe.cycle_stamp).as_micros();
        let reno_rounds = (self.target_inflight() / self.mss.max(1)).min(RENO_ROUNDS_MAX);
        let time =
            elapsed_us > u128::from(self.probe.wait_us) || self.round.since_probe >= reno_rounds;
        if time {
            self.start_probe_bw_refill();
        }
        time
    }

    /// BBRCheckTimeToCruise
    fn is_time_to_cruise(&self, ack: &Ack) -> bool {
        ack.flight <= self.inflight_with_headroom() && ack.flight <= self.inflight(100)
    }

    /// BBRCheckTimeToGoDown
    fn is_time_to_go_down(&mut self, ack: &Ack, sample: &RateSample) -> bool {
        if ack.window_limited && self.cwnd >= self.model.inflight_longterm {
            // The bound keeps the bandwidth from growing: it must be raised first.
            self.full.restart_at(sample.bytes_per_second());
            return false;
        }
        self.full.now
    }

    /// BBRAdaptLongTermModel
    fn adapt_long_term_model(&mut self, ack: &Ack, sample: &RateSample) {
        if self.round.start {
            match self.probe.ack_phase {
                AckPhase::ProbeStarting => self.probe.ack_phase = AckPhase::ProbeFeedback,
                AckPhase::ProbeStopping => {
                    self.probe.samples = false;
                    self.probe.ack_phase = AckPhase::Init;
                    if self.state.probes_bandwidth_in_cycles() && !sample.app_limited {
                        self.model.max_bw.advance();
                    }
                }
                _ => {}
            }
        }
        if self.is_inflight_too_high(sample) {
            if self.probe.samples {
                self.handle_inflight_too_high(ack.now, sample.flight, sample.app_limited);
            }
            return;
        }
        if self.model.inflight_longterm == INFINITE {
            return;
        }
        self.model.inflight_longterm = self.model.inflight_longterm.max(sample.flight);
        if self.state == State::ProbeBwUp {
            self.probe_inflight_longterm_upward(ack);
        }
    }

    /// BBRProbeInflightLongtermUpward: by one packet for the first window, two for the next, and so
    /// on doubling.
    fn probe_inflight_longterm_upward(&mut self, ack: &Ack) {
        if self.round.start {
            self.probe.up_rounds = (self.probe.up_rounds + 1).min(30);
        }
        if ack.window_limited && self.cwnd >= self.model.inflight_longterm {
            let growth = u128::from(self.mss << self.probe.up_rounds) * u128::from(ack.delivered)
                / u128::from(self.cwnd.max(1));
            let growth = u64::try_from(growth).unwrap_or(u64::MAX).min(ack.delivered);
            self.model.inflight_longterm = self.model.inflight_longterm.saturating_add(growth);
        }
    }

    /// BBRInflightWithHeadroom
    pub(super) fn inflight_with_headroom(&self) -> u64 {
        let inflight = self.model.inflight_longterm;
        if inflight == INFINITE {
            return INFINITE;
        }
        let headroom = (inflight / 100 * HEADROOM_PERCENT).max(self.mss);
        inflight.saturating_sub(headroom).max(self.min_pipe_cwnd())
    }
}
