//! Startup: doubles the rate each round trip until the bandwidth no longer grows, or too much is
//! lost. Drain: empties the queue that Startup has left (§5.3.1, §5.3.2).

use super::model::is_too_much;
use super::{Bbr, State};
use crate::congestion::Ack;
use crate::congestion::rate::RateSample;

/// §5.3.1.2: the bandwidth grows as long as a round trip adds a quarter ...
const GROWTH_PERCENT: u64 = 125;

/// ... and has stopped growing after this many round trips without.
const FULL_BW_ROUNDS: u32 = 3;

/// §5.3.1.3, BBR.StartupFullLossCnt: fewer losses in a round trip do not end Startup.
const FULL_LOSS_EVENTS: u32 = 6;

/// The estimator of §5.3.1.2: has the bandwidth ceased to grow?
#[derive(Debug, Default)]
pub(super) struct FullBandwidth {
    bw: u64,
    rounds: u32,
    /// BBR.full_bw_now: not since the last probe began.
    pub(super) now: bool,
    /// BBR.full_bw_reached: at some time.
    pub(super) reached: bool,
    /// Acknowledgments that revealed a loss in this round trip, and whether recovery lasted through
    /// it.
    pub(super) loss_events: u32,
    recovering: bool,
    lost: u64,
}

impl FullBandwidth {
    /// BBRResetFullBW
    pub(super) fn reset(&mut self) {
        self.restart_at(0);
    }

    pub(super) fn restart_at(&mut self, bw: u64) {
        self.bw = bw;
        self.rounds = 0;
        self.now = false;
    }
}

impl Bbr {
    /// BBRCheckFullBWReached
    pub(super) fn check_full_bw_reached(&mut self, sample: &RateSample) {
        let full = &mut self.full;
        if full.now || !self.round.start || sample.app_limited {
            return;
        }
        let rate = sample.bytes_per_second();
        if rate >= full.bw / 100 * GROWTH_PERCENT {
            return full.restart_at(rate);
        }
        full.rounds += 1;
        full.now = full.rounds >= FULL_BW_ROUNDS;
        full.reached |= full.now;
    }

    /// BBRCheckStartupDone
    pub(super) fn check_startup_done(&mut self, ack: &Ack) {
        self.full.lost += ack.lost;
        if self.round.start {
            self.check_startup_high_loss(ack);
            self.full.loss_events = 0;
            self.full.lost = 0;
            self.full.recovering = self.in_recovery;
        }
        if self.state == State::Startup && self.full.reached {
            self.state = State::Drain;
        }
    }

    /// BBRCheckStartupHighLoss: a shallow queue overflows before the bandwidth is seen to grow no
    /// more.
    fn check_startup_high_loss(&mut self, ack: &Ack) {
        let full = &mut self.full;
        let too_much = is_too_much(full.lost, ack.prior_flight, self.mss);
        if !full.reached && full.recovering && too_much && full.loss_events >= FULL_LOSS_EVENTS {
            full.reached = true;
            self.model.inflight_longterm = self.bdp(100).max(self.model.inflight_latest);
        }
    }

    /// BBRCheckDrainDone
    pub(super) fn check_drain_done(&mut self, ack: &Ack) {
        if self.state == State::Drain && ack.flight <= self.inflight(100) {
            self.start_probe_bw_down(ack.now);
        }
    }
}
