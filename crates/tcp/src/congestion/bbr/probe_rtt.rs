//! ProbeRTT (§5.3.4): every few seconds next to nothing is in flight for a moment, so that the
//! shortest round-trip time can be seen again.

use std::time::Duration;

use super::probe_bw::AckPhase;
use super::{Bbr, State};
use crate::congestion::Ack;
use crate::congestion::rate::RateSample;
use crate::time::Instant;

/// §2.7
const MIN_RTT_FILTER_LEN: Duration = Duration::from_secs(10);
const PROBE_RTT_INTERVAL: Duration = Duration::from_secs(5);
const PROBE_RTT_DURATION: Duration = Duration::from_millis(200);

/// The shortest round-trip time, and its age.
#[derive(Debug, Default)]
pub(super) struct MinRtt {
    /// BBR.min_rtt: the shortest in ten seconds.
    min: Option<(Duration, Instant)>,
    /// BBR.probe_rtt_min_delay: the shortest in five.
    recent: Option<Duration>,
    recent_at: Instant,
    /// SND.NXT at the last acknowledgment in ProbeRTT: data below was held back, and its rate is
    /// not the path's.
    pub(super) held_until: u64,
    /// BBR.probe_rtt_expired
    expired: bool,
    /// When ProbeRTT may end, once the flight is that small.
    done_at: Option<Instant>,
    round_done: bool,
}

impl MinRtt {
    pub(super) fn begin(&mut self, now: Instant) {
        self.recent_at = now;
    }

    pub(super) fn min_rtt(&self) -> Option<Duration> {
        self.min.map(|(min, _)| min)
    }
}

impl Bbr {
    /// BBRUpdateMinRTT
    pub(super) fn update_min_rtt(&mut self, ack: &Ack) {
        let min_rtt = &mut self.min_rtt;
        min_rtt.expired = ack.now.since(min_rtt.recent_at) > PROBE_RTT_INTERVAL;
        if let Some(rtt) = ack.rtt
            && (min_rtt.expired || min_rtt.recent.is_none_or(|recent| rtt < recent))
        {
            min_rtt.recent = Some(rtt);
            min_rtt.recent_at = ack.now;
        }
        let Some(recent) = min_rtt.recent else {
            return;
        };
        if min_rtt
            .min
            .is_none_or(|(min, at)| recent < min || ack.now.since(at) > MIN_RTT_FILTER_LEN)
        {
            min_rtt.min = Some((recent, min_rtt.recent_at));
        }
    }

    /// BBRCheckProbeRTT
    pub(super) fn check_probe_rtt(&mut self, ack: &Ack, sample: &RateSample) {
        if self.state != State::ProbeRtt && self.min_rtt.expired && !self.idle_restart {
            self.save_cwnd();
            self.state = State::ProbeRtt;
            self.min_rtt.done_at = None;
            self.probe.ack_phase = AckPhase::ProbeStopping;
            self.round.begin();
        }
        if self.state == State::ProbeRtt {
            self.handle_probe_rtt(ack);
        }
        if sample.delivered > 0 {
            self.idle_restart = false;
        }
    }

    /// BBRHandleProbeRTT
    fn handle_probe_rtt(&mut self, ack: &Ack) {
        // MarkConnectionAppLimited: data in flight, and data that leaves meanwhile, is held back.
        self.min_rtt.held_until = ack.nxt;
        if self.min_rtt.done_at.is_some() {
            self.min_rtt.round_done |= self.round.start;
            if self.min_rtt.round_done {
                self.check_probe_rtt_done(ack.now);
            }
        } else if ack.flight <= self.probe_rtt_cwnd() {
            self.min_rtt.done_at = Some(ack.now + PROBE_RTT_DURATION);
            self.min_rtt.round_done = false;
            self.round.begin();
        }
    }

    /// BBRCheckProbeRTTDone
    pub(super) fn check_probe_rtt_done(&mut self, now: Instant) {
        if self.min_rtt.done_at.is_some_and(|done_at| now > done_at) {
            self.min_rtt.recent_at = now;
            self.restore_cwnd();
            // BBRExitProbeRTT
            self.model.reset_short_term();
            if self.full.reached {
                self.start_probe_bw_down(now);
                self.state = State::ProbeBwCruise;
            } else {
                self.state = State::Startup;
            }
        }
    }

    /// BBRProbeRTTCwnd
    pub(super) fn probe_rtt_cwnd(&self) -> u64 {
        self.bdp(State::ProbeRtt.cwnd_gain_percent())
            .max(self.min_pipe_cwnd())
    }
}
