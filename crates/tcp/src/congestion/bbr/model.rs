//! The model of the path (§5.5): its delivery rate, and the bounds on data in flight.
//!
//! Two bounds are learnt from loss. The *long-term* one is the flight at which a probe met too much
//! loss; the *short-term* ones follow loss at other times, and are dropped when the next probe
//! begins.

use super::max_filter::MaxFilter;
use super::{BETA_PERCENT, Bbr, INFINITE, LOSS_THRESH_PERCENT, State};
use crate::congestion::Ack;
use crate::congestion::rate::RateSample;
use crate::time::Instant;

/// Lost packets that may be chance, for any number sent.
const LOST_BY_CHANCE: u64 = 2;

#[derive(Debug)]
pub(super) struct Model {
    /// BBR.MaxBwFilter over two cycles of ProbeBW.
    pub(super) max_bw: MaxFilter,
    pub(super) bw_shortterm: u64,
    pub(super) inflight_shortterm: u64,
    pub(super) inflight_longterm: u64,
    /// BBR.bw_latest and BBR.inflight_latest: the most in the present round trip.
    bw_latest: u64,
    pub(super) inflight_latest: u64,
    /// C.delivered at the start of the round trip in which loss is counted: it ends when data sent
    /// since is delivered.
    loss_round_delivered: u64,
    loss_round_start: bool,
    pub(super) loss_in_round: bool,
    /// Bytes lost, and delivered, in that round trip.
    lost_in_round: u64,
    delivered_in_round: u64,
    pub(super) extra_acked: ExtraAcked,
}

impl Model {
    pub(super) fn new() -> Model {
        Model {
            max_bw: MaxFilter::default(),
            bw_shortterm: INFINITE,
            inflight_shortterm: INFINITE,
            inflight_longterm: INFINITE,
            bw_latest: 0,
            inflight_latest: 0,
            loss_round_delivered: 0,
            loss_round_start: false,
            loss_in_round: false,
            lost_in_round: 0,
            delivered_in_round: 0,
            extra_acked: ExtraAcked::default(),
        }
    }

    /// BBR.bw
    pub(super) fn bw(&self) -> u64 {
        self.max_bw.max().min(self.bw_shortterm)
    }

    /// BBRResetShortTermModel
    pub(super) fn reset_short_term(&mut self) {
        self.bw_shortterm = INFINITE;
        self.inflight_shortterm = INFINITE;
    }

    /// BBRResetCongestionSignals
    pub(super) fn reset_congestion_signals(&mut self) {
        self.loss_in_round = false;
        self.bw_latest = 0;
        self.inflight_latest = 0;
    }

    /// BBRLossLowerBounds, after BBRInitLowerBounds.
    fn lower_bounds(&mut self, cwnd: u64) {
        if self.bw_shortterm == INFINITE {
            self.bw_shortterm = self.max_bw.max();
        }
        if self.inflight_shortterm == INFINITE {
            self.inflight_shortterm = cwnd;
        }
        self.bw_shortterm = self.bw_latest.max(self.bw_shortterm / 100 * BETA_PERCENT);
        self.inflight_shortterm = self
            .inflight_latest
            .max(self.inflight_shortterm / 100 * BETA_PERCENT);
    }
}

/// Packet-timed round trips (§5.5.1).
#[derive(Debug, Default)]
pub(super) struct Round {
    /// C.delivered after the present sample.
    delivered: u64,
    next_delivered: u64,
    pub(super) count: u64,
    /// The present acknowledgment begins a round trip.
    pub(super) start: bool,
    /// BBR.rounds_since_bw_probe
    pub(super) since_probe: u64,
}

impl Round {
    /// BBRUpdateRound
    pub(super) fn on_sample(&mut self, sample: &RateSample) {
        self.delivered = sample.prior_delivered + sample.delivered;
        self.start = sample.prior_delivered >= self.next_delivered;
        if self.start {
            self.begin();
            self.count += 1;
            self.since_probe += 1;
        }
    }

    /// BBRStartRound
    pub(super) fn begin(&mut self) {
        self.next_delivered = self.delivered;
    }
}

/// Aggregation of acknowledgments (§5.5.9): how much more is delivered at once than the bandwidth
/// explains.
#[derive(Debug, Default)]
pub(super) struct ExtraAcked {
    since: Instant,
    delivered: u64,
    /// BBR.ExtraACKedFilter over about ten round trips.
    filter: MaxFilter,
    rounds: u64,
}

impl ExtraAcked {
    pub(super) fn max(&self) -> u64 {
        self.filter.max()
    }

    pub(super) fn restart(&mut self, now: Instant) {
        self.since = now;
        self.delivered = 0;
    }
}

/// Returns true if more is lost than a path loses without congestion. Losses that may be chance are
/// not counted.
pub(super) fn is_too_much(lost: u64, sent: u64, mss: u64) -> bool {
    let lost = lost.saturating_sub(LOST_BY_CHANCE * mss);
    lost.saturating_mul(100) > sent.saturating_mul(LOSS_THRESH_PERCENT)
}

/// `rate * duration`
pub(super) fn bytes_in(rate: u64, us: u64) -> u64 {
    let bytes = u128::from(rate) * u128::from(us) / 1_000_000;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

impl Bbr {
    /// §5.5.10.2, BBRUpdateLatestDeliverySignals
    pub(super) fn update_latest_delivery_signals(&mut self, sample: &RateSample) {
        let model = &mut self.model;
        model.bw_latest = model.bw_latest.max(sample.bytes_per_second());
        model.inflight_latest = model.inflight_latest.max(sample.delivered);
        model.loss_round_start = sample.prior_delivered >= model.loss_round_delivered;
        if model.loss_round_start {
            model.loss_round_delivered = self.round.delivered;
        }
    }

    /// BBRAdvanceLatestDeliverySignals
    pub(super) fn advance_latest_delivery_signals(&mut self, sample: &RateSample) {
        if self.model.loss_round_start {
            self.model.bw_latest = sample.bytes_per_second();
            self.model.inflight_latest = sample.delivered;
        }
    }

    /// BBRUpdateCongestionSignals, and §5.5.5, BBRUpdateMaxBw.
    pub(super) fn update_congestion_signals(&mut self, ack: &Ack, sample: &RateSample) {
        let rate = sample.bytes_per_second();
        if rate >= self.model.max_bw.max() || !sample.app_limited {
            self.model.max_bw.update(rate);
        }
        let model = &mut self.model;
        model.lost_in_round += ack.lost;
        model.delivered_in_round += ack.delivered;
        if ack.lost > 0 {
            self.full.loss_events += 1;
        }
        if !model.loss_round_start {
            return;
        }
        let sent = model.lost_in_round + model.delivered_in_round;
        model.loss_in_round |= is_too_much(model.lost_in_round, sent, self.mss);
        model.lost_in_round = 0;
        model.delivered_in_round = 0;
        // BBRAdaptLowerBoundsFromCongestion
        if self.model.loss_in_round && !self.state.is_probing() {
            self.model.lower_bounds(self.cwnd);
        }
        self.model.loss_in_round = false;
    }

    /// §5.5.10.2, IsInflightTooHigh
    pub(super) fn is_inflight_too_high(&self, sample: &RateSample) -> bool {
        is_too_much(sample.lost, sample.flight, self.mss)
    }

    /// BBRHandleInflightTooHigh: too much was in flight during a probe.
    pub(super) fn handle_inflight_too_high(
        &mut self,
        now: Instant,
        flight: u64,
        app_limited: bool,
    ) {
        self.probe.samples = false;
        if !app_limited {
            let target = self.target_inflight() / 100 * BETA_PERCENT;
            self.model.inflight_longterm = flight.max(target);
        }
        if self.state == State::ProbeBwUp {
            self.start_probe_bw_down(now);
        }
    }

    /// BBRUpdateACKAggregation
    pub(super) fn update_ack_aggregation(&mut self, ack: &Ack) {
        let extra_acked = &mut self.model.extra_acked;
        let us = ack.now.as_us().saturating_sub(extra_acked.since.as_us());
        let bw = self.model.max_bw.max().min(self.model.bw_shortterm);
        let mut expected = bytes_in(bw, us);
        if extra_acked.delivered <= expected {
            extra_acked.restart(ack.now);
            expected = 0;
        }
        extra_acked.delivered += ack.delivered;
        let extra = extra_acked.delivered.saturating_sub(expected);
        if self.round.start {
            extra_acked.rounds += 1;
            // Ten round trips as two halves; before the bandwidth is known, one.
            if extra_acked.rounds >= if self.full.reached { 5 } else { 1 } {
                extra_acked.rounds = 0;
                extra_acked.filter.advance();
            }
        }
        extra_acked.filter.update(extra.min(self.cwnd));
    }
}
