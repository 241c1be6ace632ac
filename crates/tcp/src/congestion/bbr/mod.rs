//! BBR version 3 (draft-ietf-ccwg-bbr): a model of the path, made of the bandwidth and the shortest
//! round-trip time, paces the sent data; the window only bounds the data in flight.
//!
//! | File | Content |
//! |---|---|
//! | `mod` | the state machine; the steps of an acknowledgment, in the draft's order (§5.2.3) |
//! | `model` | bandwidth, round trips, effect of loss on both, aggregated acknowledgments (§5.5) |
//! | `startup` | Startup and Drain (§5.3.1, §5.3.2) |
//! | `probe_bw` | ProbeBW: Down, Cruise, Refill, Up (§5.3.3) |
//! | `probe_rtt` | ProbeRTT (§5.3.4) |
//! | `control` | pacing rate and window (§5.6) |
//! | `max_filter` | the maximum over a sliding span |
//!
//! Deviations from the draft:
//!
//! - Loss is evaluated once for each acknowledgment and not for each packet, as loss detection
//!   reports it.
//! - The short-term bounds follow the loss of a round trip only beyond LossThresh: a path that
//!   loses one packet in a hundred by itself would else take as much of the bound in each round
//!   trip. Two packets may be chance.
//! - A mark of a router (RFC 3168), which the draft does not cover, counts like a loss.
//!
//! Sizes are in bytes, rates in bytes per second.

mod control;
mod max_filter;
mod model;
mod probe_bw;
mod probe_rtt;
mod startup;

use std::time::Duration;

use self::model::{Model, Round};
use self::probe_bw::ProbeBw;
use self::probe_rtt::MinRtt;
use self::startup::FullBandwidth;
use crate::congestion::rate::RateSample;
use crate::congestion::{Ack, Congestion, Signal, WINDOW_BYTES_MAX, initial_window};
use crate::random::Random;
use crate::recovery::state::Phase;
use crate::time::Instant;

/// A window, or a rate, without bound.
const INFINITE: u64 = u64::MAX;

/// §2.7, BBR.LossThresh: percentage of the flight whose loss shows that too much was in flight.
const LOSS_THRESH_PERCENT: u64 = 2;

/// §2.7, BBR.Beta, in percent: factor of a bound after a round trip with loss.
const BETA_PERCENT: u64 = 70;

/// The states of §5.1, and the gains that belong to them, in percent (§5.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Startup,
    Drain,
    ProbeBwDown,
    ProbeBwCruise,
    ProbeBwRefill,
    ProbeBwUp,
    ProbeRtt,
}

impl State {
    fn pacing_gain_percent(self) -> u64 {
        match self {
            // 4 * ln(2)
            State::Startup => 277,
            State::Drain => 50,
            State::ProbeBwDown => 90,
            State::ProbeBwUp => 125,
            State::ProbeBwCruise | State::ProbeBwRefill | State::ProbeRtt => 100,
        }
    }

    fn cwnd_gain_percent(self) -> u64 {
        match self {
            State::ProbeBwUp => 225,
            State::ProbeRtt => 50,
            _ => 200,
        }
    }

    fn probes_bandwidth_in_cycles(self) -> bool {
        matches!(
            self,
            State::ProbeBwDown | State::ProbeBwCruise | State::ProbeBwRefill | State::ProbeBwUp
        )
    }

    /// Returns true if the state sends more than the path is known to take: loss is no surprise
    /// (§5.5.10.3).
    fn is_probing(self) -> bool {
        matches!(
            self,
            State::Startup | State::ProbeBwRefill | State::ProbeBwUp
        )
    }
}

#[derive(Debug)]
pub(crate) struct Bbr {
    mss: u64,
    cwnd: u64,
    pacing_rate: u64,
    send_quantum: u64,
    state: State,
    model: Model,
    round: Round,
    full: FullBandwidth,
    probe: ProbeBw,
    min_rtt: MinRtt,
    /// BBR.prior_cwnd: the window before recovery or ProbeRTT.
    prior_cwnd: u64,
    in_recovery: bool,
    /// BBR.idle_restart: data is sent again after nothing was in flight.
    idle_restart: bool,
    before: Before,
    /// Times of probes must differ between flows, and be the same when a simulation is repeated.
    random: Random,
}

/// §5.5.10.4: state to be restored if a loss turns out to be spurious.
#[derive(Clone, Copy, Debug)]
struct Before {
    state: State,
    bw_shortterm: u64,
    inflight_shortterm: u64,
    inflight_longterm: u64,
}

impl Bbr {
    /// Returns a new instance. `seed` determines the times of its probes.
    pub(crate) fn new(seed: u64) -> Bbr {
        Bbr {
            mss: 536,
            cwnd: 536,
            pacing_rate: 0,
            send_quantum: 2 * 536,
            state: State::Startup,
            model: Model::new(),
            round: Round::default(),
            full: FullBandwidth::default(),
            probe: ProbeBw::default(),
            min_rtt: MinRtt::default(),
            prior_cwnd: 0,
            in_recovery: false,
            idle_restart: false,
            before: Before {
                state: State::Startup,
                bw_shortterm: INFINITE,
                inflight_shortterm: INFINITE,
                inflight_longterm: INFINITE,
            },
            random: Random::new(seed),
        }
    }

    fn begin(&mut self, now: Instant, mss: u16, window: u64) {
        self.mss = u64::from(mss);
        self.cwnd = window;
        self.min_rtt.begin(now);
        self.model.extra_acked.restart(now);
        self.init_pacing_rate(None);
    }

    /// §5.2.3, BBRUpdateModelAndState.
    fn update_model_and_state(&mut self, ack: &Ack, sample: &RateSample) {
        self.round.on_sample(sample);
        self.update_latest_delivery_signals(sample);
        self.update_congestion_signals(ack, sample);
        self.update_ack_aggregation(ack);
        self.check_full_bw_reached(sample);
        self.check_startup_done(ack);
        self.check_drain_done(ack);
        self.update_probe_bw_cycle_phase(ack, sample);
        self.update_min_rtt(ack);
        self.check_probe_rtt(ack, sample);
        self.advance_latest_delivery_signals(sample);
    }

    /// BBRSaveCwnd
    fn save_cwnd(&mut self) {
        self.prior_cwnd = if self.in_recovery || self.state == State::ProbeRtt {
            self.prior_cwnd.max(self.cwnd)
        } else {
            self.cwnd
        };
    }

    /// BBRRestoreCwnd
    fn restore_cwnd(&mut self) {
        self.cwnd = self.cwnd.max(self.prior_cwnd);
    }

    /// §5.5.10.4, BBRSaveStateUponLoss
    fn save_state_upon_loss(&mut self) {
        self.before = Before {
            state: self.state,
            bw_shortterm: self.model.bw_shortterm,
            inflight_shortterm: self.model.inflight_shortterm,
            inflight_longterm: self.model.inflight_longterm,
        };
    }
}

impl Congestion for Bbr {
    fn window(&self) -> u64 {
        self.cwnd
    }

    /// Fast recovery does not reduce the window: the model does. Another algorithm that takes over
    /// continues from this window, in congestion avoidance once the path is known to take no more.
    fn ssthresh(&self) -> u64 {
        if self.full.reached {
            self.cwnd
        } else {
            INFINITE
        }
    }

    fn pacing_rate(&self) -> Option<u64> {
        Some(self.pacing_rate)
    }

    fn rules_recovery(&self) -> bool {
        true
    }

    fn on_established(&mut self, now: Instant, mss: u16, handshake_lost: bool) {
        self.begin(now, mss, initial_window(u64::from(mss), handshake_lost));
    }

    fn adopt(&mut self, now: Instant, mss: u16, window: u64, _ssthresh: u64) {
        self.begin(now, mss, window);
    }

    fn on_mss(&mut self, mss: u16) {
        self.mss = u64::from(mss);
    }

    /// §5.4.1, BBRHandleRestartFromIdle. The window stays: pacing keeps it from being a burst.
    fn on_idle(&mut self, now: Instant, _idle: Duration, _rto: Duration) {
        self.idle_restart = true;
        self.model.extra_acked.restart(now);
        if self.state.probes_bandwidth_in_cycles() {
            self.set_pacing_rate(100);
        } else if self.state == State::ProbeRtt {
            self.check_probe_rtt_done(now);
        }
    }

    fn on_ack(&mut self, ack: &Ack) {
        // The slow start after a timeout is over, as only the phase shows; or a tail loss probe has
        // repaired all losses.
        if self.in_recovery && ack.phase == Phase::Open {
            self.in_recovery = false;
            self.restore_cwnd();
        }
        if self.min_rtt.min_rtt().is_none() {
            // The first measurement gives the rate of the initial window.
            self.init_pacing_rate(ack.rtt.or(ack.srtt));
        }
        match &ack.rate {
            Some(sample) => {
                let held_back = ack.una <= self.min_rtt.held_until;
                let sample = RateSample {
                    app_limited: sample.app_limited || held_back,
                    ..*sample
                };
                self.update_model_and_state(ack, &sample);
            }
            None => self.update_min_rtt(ack),
        }
        self.set_pacing_rate(self.state.pacing_gain_percent());
        self.set_send_quantum();
        self.set_cwnd(ack);
        self.cwnd = self.cwnd.min(WINDOW_BYTES_MAX);
    }

    fn on_congestion(&mut self, now: Instant, signal: Signal, flight: u64) {
        match signal {
            Signal::Loss => {
                self.save_cwnd();
                self.save_state_upon_loss();
                self.in_recovery = true;
            }
            Signal::Ecn => {
                self.model.loss_in_round = true;
                if self.probe.samples {
                    self.handle_inflight_too_high(now, flight, false);
                }
            }
        }
    }

    fn on_recovered(&mut self, _now: Instant, _flight: Option<u64>) {
        self.in_recovery = false;
        self.restore_cwnd();
    }

    /// §5.6.4.4, BBROnEnterRTO: the data in flight is lost, but the model stands.
    fn on_timeout(&mut self, _now: Instant, _flight: u64, again: bool) {
        if !again {
            self.save_cwnd();
            self.save_state_upon_loss();
        }
        self.in_recovery = true;
        self.cwnd = self.mss;
    }

    /// §5.5.10.4, BBRHandleSpuriousLossDetection
    fn on_undo(&mut self, now: Instant) {
        self.in_recovery = false;
        self.restore_cwnd();
        self.model.loss_in_round = false;
        self.full.reset();
        let before = self.before;
        self.model.bw_shortterm = self.model.bw_shortterm.max(before.bw_shortterm);
        let model = &mut self.model;
        model.inflight_shortterm = model.inflight_shortterm.max(before.inflight_shortterm);
        model.inflight_longterm = model.inflight_longterm.max(before.inflight_longterm);
        if self.state != State::ProbeRtt && self.state != before.state {
            match before.state {
                State::Startup => {
                    self.full.reached = false;
                    self.state = State::Startup;
                }
                State::ProbeBwUp => self.start_probe_bw_up(now),
                _ => {}
            }
        }
    }
}
