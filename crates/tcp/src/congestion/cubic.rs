//! CUBIC (RFC 9438): after a reduction the window grows along a cubic function of time towards
//! where it was, slowly around there, and then beyond.
//!
//! Slow start is [`HyStart`]'s until the first congestion (RFC 9438 §4.10). Windows are in bytes,
//! and, where the formulas of the RFC count segments, converted by the MSS. They are floating-point
//! numbers, so that the growth by a single acknowledgment is not rounded away.

use std::time::Duration;

use crate::congestion::hystart::{HyStart, Verdict};
use crate::congestion::{
    Ack, Congestion, Signal, WINDOW_BYTES_MAX, initial_window, slow_start_growth,
    threshold_at_idle, window_after_recovery,
};
use crate::recovery::state::Phase;
use crate::time::Instant;

/// RFC 9438 §5.1: how aggressively the window grows, in segments per cubed second.
const C: f64 = 0.4;

/// RFC 9438 §4.6: factor of the window at a loss.
const BETA: f64 = 0.7;

/// RFC 8511 §3.1: factor at a mark of a router in congestion avoidance. Its queue is short.
const BETA_ECN: f64 = 0.85;

/// RFC 9438 §4.3: growth in the Reno-friendly region, in segments per round trip.
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// RFC 9438 §4.2: the window grows by half in a round trip, at most.
const TARGET_MAX: f64 = 1.5;

#[derive(Debug)]
pub(crate) struct Cubic {
    mss: f64,
    cwnd: f64,
    /// Infinite until the first congestion.
    ssthresh: f64,
    curve: Curve,
    hystart: HyStart,
    /// State before the last reduction.
    before: Option<Before>,
}

/// Target of congestion avoidance.
#[derive(Clone, Copy, Debug, Default)]
struct Curve {
    /// `W_max`: the window at the last congestion, and lower if the flow is to make room.
    w_max: f64,
    /// `cwnd_prior`: the window at the last congestion.
    cwnd_prior: f64,
    /// The present stage of congestion avoidance, if it has begun.
    epoch: Option<Epoch>,
    /// After a timeout, or if slow start has ended without congestion: the next stage begins on its
    /// plateau (RFC 9438 §4.8, §4.10).
    from_plateau: bool,
}

/// A stage of congestion avoidance.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    /// `t`, in seconds. It stands still while the window is not used (RFC 9438 §5.8).
    elapsed: f64,
    /// Time up to which `t` counts.
    counted: Instant,
    /// `K`: when the window is to be at `W_max` again, in seconds.
    k: f64,
    /// `W_est`: the window that Reno would have.
    w_est: f64,
}

/// RFC 9438 §4.9: state to be restored if a reduction turns out to be without cause.
#[derive(Clone, Copy, Debug)]
struct Before {
    cwnd: f64,
    ssthresh: f64,
    curve: Curve,
}

impl Cubic {
    pub(crate) fn new() -> Cubic {
        Cubic {
            mss: 536.0,
            cwnd: 536.0,
            ssthresh: f64::INFINITY,
            curve: Curve::default(),
            hystart: HyStart::new(),
            before: None,
        }
    }

    /// RFC 9438 §4.6, §4.7.
    ///
    /// "An implementation MAY use cwnd instead of flight_size": the window grows only while at
    /// least half of it is used (RFC 7661), and the flight when one of the last segments is lost,
    /// or all but a few are acknowledged selectively, is no measure of the path.
    fn reduce(&mut self, now: Instant, beta: f64) {
        self.suspend(now);
        self.before = Some(Before {
            cwnd: self.cwnd,
            ssthresh: self.ssthresh,
            curve: self.curve,
        });
        self.curve = Curve {
            // Fast convergence: below its last maximum, a flow leaves more to newer ones.
            w_max: if self.cwnd < self.curve.w_max {
                self.cwnd * (1.0 + BETA) / 2.0
            } else {
                self.cwnd
            },
            cwnd_prior: self.cwnd,
            epoch: None,
            from_plateau: false,
        };
        self.ssthresh = (self.cwnd * beta).max(2.0 * self.mss);
    }

    /// Stops the clock of the epoch: no acknowledgment will count time before `now`.
    fn suspend(&mut self, now: Instant) {
        if let Some(epoch) = &mut self.curve.epoch {
            epoch.counted = now;
        }
    }

    fn slow_start(&mut self, ack: &Ack) {
        let bytes = slow_start_growth(ack, self.cwnd as u64, self.mss as u64);
        let growth = match self.ssthresh.is_finite() {
            // RFC 9406 §4.3: only the first slow start has no idea of where to end.
            true => Verdict::Grow(bytes),
            false => self.hystart.on_ack(ack, bytes),
        };
        match growth {
            Verdict::Grow(bytes) => self.cwnd = (self.cwnd + bytes as f64).min(self.ssthresh),
            Verdict::Leave => {
                self.ssthresh = self.cwnd;
                self.curve.from_plateau = true;
            }
        }
    }

    fn avoid_congestion(&mut self, ack: &Ack) {
        let (mss, cwnd) = (self.mss, self.cwnd);
        let curve = &mut self.curve;
        let epoch = curve.epoch.get_or_insert_with(|| {
            if curve.from_plateau || cwnd >= curve.w_max {
                curve.w_max = cwnd;
            }
            curve.from_plateau = false;
            Epoch {
                elapsed: 0.0,
                counted: ack.now,
                // Figure 2. 0 on the plateau.
                k: ((curve.w_max - cwnd) / mss / C).cbrt(),
                w_est: cwnd,
            }
        });
        epoch.elapsed += seconds(ack.now.since(epoch.counted));
        epoch.counted = ack.now;

        // §4.3, figure 4. It has caught up once it is where the last reduction was.
        let alpha = if epoch.w_est < curve.cwnd_prior {
            ALPHA
        } else {
            1.0
        };
        let acked = ack.delivered as f64;
        epoch.w_est += alpha * mss * acked / cwnd;

        // Figure 1: W_cubic.
        let w_cubic = |t: f64| {
            let t = t - epoch.k;
            C * t * t * t * mss + curve.w_max
        };
        if w_cubic(epoch.elapsed) < epoch.w_est {
            // §4.3: the Reno-friendly region. It never takes away.
            self.cwnd = cwnd.max(epoch.w_est);
        } else {
            // §4.4, §4.5: in a round trip, to where the curve will be then.
            let rtt = ack.srtt.map_or(0.0, seconds);
            let target = w_cubic(epoch.elapsed + rtt).clamp(cwnd, TARGET_MAX * cwnd);
            self.cwnd = (cwnd + (target - cwnd) * acked / cwnd).min(target);
        }
    }
}

fn seconds(duration: Duration) -> f64 {
    // Instants have microseconds, and more than an hour between two acknowledgments makes no
    // difference.
    u32::try_from(duration.as_micros()).map_or(3600.0, f64::from) * 1e-6
}

impl Congestion for Cubic {
    fn window(&self) -> u64 {
        // By way of a signed number, which takes half as many instructions, several times for each
        // acknowledgment.
        self.cwnd as i64 as u64
    }

    fn ssthresh(&self) -> u64 {
        // Saturates: infinity is the largest number.
        self.ssthresh as u64
    }

    fn on_established(&mut self, _now: Instant, mss: u16, handshake_lost: bool) {
        self.mss = f64::from(mss);
        self.cwnd = initial_window(u64::from(mss), handshake_lost) as f64;
    }

    fn adopt(&mut self, _now: Instant, mss: u16, window: u64, ssthresh: u64) {
        self.mss = f64::from(mss);
        self.cwnd = window as f64;
        if ssthresh < u64::MAX {
            self.ssthresh = ssthresh as f64;
            self.curve.from_plateau = true;
        }
    }

    fn on_mss(&mut self, mss: u16) {
        self.mss = f64::from(mss);
    }

    fn on_idle(&mut self, now: Instant, idle: Duration, rto: Duration) {
        self.suspend(now);
        let restart = initial_window(self.mss as u64, false) as f64;
        // RFC 5681 §4.1: the restart window. The next stage of congestion avoidance begins afresh.
        if idle > rto && self.cwnd > restart {
            if self.ssthresh.is_finite() {
                self.ssthresh = threshold_at_idle(self.ssthresh as u64, self.cwnd as u64) as f64;
            }
            self.cwnd = restart;
            self.curve.epoch = None;
        }
    }

    fn on_ack(&mut self, ack: &Ack) {
        if !ack.window_limited || !ack.advances || ack.phase == Phase::FastRecovery {
            return self.suspend(ack.now);
        }
        if self.cwnd < self.ssthresh {
            self.slow_start(ack);
        } else {
            self.avoid_congestion(ack);
        }
        self.cwnd = self.cwnd.min(WINDOW_BYTES_MAX as f64);
    }

    fn on_congestion(&mut self, now: Instant, signal: Signal, _flight: u64) {
        let beta = match signal {
            Signal::Ecn if self.cwnd >= self.ssthresh => BETA_ECN,
            Signal::Ecn | Signal::Loss => BETA,
        };
        self.reduce(now, beta);
        self.cwnd = self.ssthresh;
    }

    fn on_recovered(&mut self, _now: Instant, flight: Option<u64>) {
        let ssthresh = Congestion::ssthresh(self);
        self.cwnd = window_after_recovery(ssthresh, flight, self.mss as u64) as f64;
    }

    fn on_timeout(&mut self, now: Instant, _flight: u64, again: bool) {
        // RFC 5681 §3.1: when a segment times out again, ssthresh is held constant.
        if !again {
            self.reduce(now, BETA);
        }
        self.curve.from_plateau = true;
        self.cwnd = self.mss;
    }

    /// RFC 9438 §4.9.2: a window that has grown beyond its former size stays as it is.
    fn on_undo(&mut self, now: Instant) {
        if let Some(before) = self.before.take()
            && self.cwnd < before.cwnd
        {
            self.cwnd = before.cwnd;
            self.ssthresh = before.ssthresh;
            self.curve = before.curve;
            self.suspend(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::tests::ack;
    use crate::random::Random;

    const MSS: u64 = 1000;
    const RTT: Duration = Duration::from_millis(100);

    fn at(us: u64) -> Instant {
        Instant::from_us(us)
    }

    fn established() -> Cubic {
        let mut cubic = Cubic::new();
        cubic.on_established(at(0), MSS as u16, false);
        cubic
    }

    /// In congestion avoidance after a loss at a window of `segments`.
    fn after_loss_at(segments: u64) -> Cubic {
        let mut cubic = established();
        cubic.adopt(at(0), MSS as u16, segments * MSS, u64::MAX);
        cubic.on_ack(&Ack {
            now: at(0),
            ..ack(0)
        });
        cubic.on_congestion(at(0), Signal::Loss, segments * MSS);
        cubic
    }

    /// Round trips from `from` to `to`, each with `acks` acknowledgments that share out the window.
    /// Returns the window after the last.
    fn run(cubic: &mut Cubic, from: Duration, to: Duration, acks: u64) -> u64 {
        let mut now = at(from.as_micros() as u64);
        let end = at(to.as_micros() as u64);
        while now < end {
            let window = cubic.window();
            for _ in 0..acks {
                now = now + RTT / acks as u32;
                cubic.on_ack(&Ack {
                    now,
                    srtt: Some(RTT),
                    ..ack(window / acks)
                });
            }
        }
        cubic.window()
    }

    /// Segments, by the formula of RFC 9438 §4.2 for a loss at `w_max` that was not below an
    /// earlier one.
    fn w_cubic(w_max: f64, t: f64) -> f64 {
        let k = (w_max * (1.0 - 0.7) / 0.4).cbrt();
        0.4 * (t - k).powi(3) + w_max
    }

    /// Covers: RFC 9438 §4.2, RFC 9438 §4.4, RFC 9438 §4.5
    #[test]
    fn the_window_follows_the_cubic_function() {
        // K = (2000 * 0.3 / 0.4)^(1/3) = 11.4 s. The window is where the curve was about a round
        // trip ago.
        for acks in [1, 10, 500] {
            let mut cubic = after_loss_at(2000);
            assert_eq!(cubic.window(), 1400 * MSS);
            let mut last = Duration::ZERO;
            for seconds in [1, 3, 6, 10, 12, 15, 20] {
                let next = Duration::from_secs(seconds);
                let segments = run(&mut cubic, last, next, acks) as f64 / MSS as f64;
                let low = w_cubic(2000.0, seconds as f64 - 0.2).max(1400.0);
                let high = w_cubic(2000.0, seconds as f64 + 0.1);
                assert!(
                    (low - 1.0..=high + 1.0).contains(&segments),
                    "{segments} after {seconds} s with {acks} ACKs, not {low} to {high}"
                );
                last = next;
            }
        }
    }

    /// Covers: RFC 9438 §4.3
    #[test]
    fn where_reno_is_faster_the_window_is_renos() {
        // With 20 segments, K is 2.5 s: in 1 s the curve is not at 18, but Reno gains 0.53 segments
        // in each round trip.
        let mut cubic = after_loss_at(20);
        assert_eq!(cubic.window(), 14 * MSS);
        let window = run(&mut cubic, Duration::ZERO, Duration::from_secs(1), 10);
        assert!((18_800..=19_400).contains(&window), "{window}");
        // Once it has regained the former window, it gains one in each.
        let window = run(
            &mut cubic,
            Duration::from_secs(1),
            Duration::from_secs(2),
            10,
        );
        assert!((27_000..=29_500).contains(&window), "{window}");
    }

    /// Covers: RFC 9438 §4.6
    #[test]
    fn a_loss_leaves_seven_tenths_but_two_segments() {
        assert_eq!(after_loss_at(100).window(), 70 * MSS);
        assert_eq!(after_loss_at(2).window(), 2 * MSS);
        // The loss of a lone segment weighs as much as the loss of one of a hundred.
        let mut cubic = established();
        cubic.adopt(at(0), MSS as u16, 100 * MSS, u64::MAX);
        cubic.on_congestion(at(0), Signal::Loss, MSS);
        assert_eq!(cubic.window(), 70 * MSS);
    }

    /// Covers: RFC 8511 §3.1
    #[test]
    fn a_mark_takes_less_than_a_loss_in_congestion_avoidance() {
        let mut cubic = after_loss_at(100);
        cubic.on_congestion(at(1), Signal::Ecn, 70 * MSS);
        assert_eq!(cubic.window(), 59_500);
        let mut cubic = established();
        cubic.on_congestion(at(1), Signal::Ecn, 10 * MSS);
        assert_eq!(cubic.window(), 7 * MSS);
    }

    /// Covers: RFC 9438 §4.7
    #[test]
    fn fast_convergence_lowers_the_plateau_of_a_flow_that_has_not_regained_it() {
        let mut cubic = after_loss_at(100);
        assert_eq!(cubic.curve.w_max, 100_000.0);
        cubic.on_congestion(at(1), Signal::Loss, 70 * MSS);
        assert_eq!(cubic.curve.w_max, 70_000.0 * 0.85);
        assert_eq!(cubic.curve.cwnd_prior, 70_000.0);
    }

    /// Covers: RFC 9438 §4.8
    #[test]
    fn after_a_timeout_the_curve_begins_on_its_plateau() {
        let mut cubic = after_loss_at(100);
        cubic.on_timeout(at(0), 70 * MSS, false);
        cubic.on_timeout(at(0), MSS, true);
        assert_eq!((cubic.window(), cubic.ssthresh()), (MSS, 49 * MSS));
        let window = run(&mut cubic, Duration::ZERO, 7 * RTT, 10);
        assert!(window >= 49 * MSS, "{window}");
        assert_eq!(cubic.curve.epoch.map(|epoch| epoch.k), Some(0.0));
        assert!((48.0..52.0).contains(&(cubic.curve.w_max / MSS as f64)));
    }

    /// Covers: RFC 9438 §4.9
    #[test]
    fn undo_restores_the_window_and_the_curve() {
        let mut cubic = after_loss_at(2000);
        run(&mut cubic, Duration::ZERO, Duration::from_secs(2), 10);
        let mut undisturbed = after_loss_at(2000);
        run(&mut undisturbed, Duration::ZERO, Duration::from_secs(2), 10);
        let now = at(2_000_000);
        cubic.on_congestion(now, Signal::Loss, cubic.window());
        assert!(cubic.window() < undisturbed.window());
        cubic.on_undo(now);
        cubic.on_undo(now);
        assert_eq!(cubic.window(), undisturbed.window());
        let more =
            |cubic: &mut Cubic| run(cubic, Duration::from_secs(2), Duration::from_secs(9), 10);
        assert_eq!(more(&mut cubic), more(&mut undisturbed));
    }

    /// Covers: RFC 9438 §4.10, RFC 9406 §4.2
    #[test]
    fn slow_start_ends_without_a_loss_when_the_delay_grows() {
        let mut cubic = established();
        let mut acked = 0;
        let mut now = at(0);
        for round in 0..30 {
            let window = cubic.window() / MSS;
            let nxt = acked + window * MSS;
            // The pipe holds 200 segments; behind it a queue grows.
            let rtt = RTT + Duration::from_micros(500 * window.saturating_sub(200));
            for segment in 1..=window {
                now = now + rtt / window as u32;
                cubic.on_ack(&Ack {
                    now,
                    una: acked + segment * MSS,
                    nxt: nxt + 2 * segment * MSS,
                    rtt: Some(rtt),
                    srtt: Some(rtt),
                    ..ack(MSS)
                });
            }
            acked = nxt;
            if cubic.ssthresh() < u64::MAX {
                assert!(round > 4);
                break;
            }
        }
        // Noticed at 320, five rounds of growth by a quarter; without, it would be 10,000.
        let segments = cubic.ssthresh() / MSS;
        assert!((200..1500).contains(&segments), "{segments}");
        // A plateau: the window grows slowly at first.
        let since = now.since(at(0));
        let window = run(&mut cubic, since, since + Duration::from_secs(1), 10) / MSS;
        assert!(window < segments + 20, "{window} after {segments}");
        assert_eq!(cubic.curve.epoch.map(|epoch| epoch.k), Some(0.0));
    }

    /// Covers: RFC 9438 §5.8
    #[test]
    fn time_in_which_the_window_is_not_used_does_not_count() {
        let mut cubic = after_loss_at(2000);
        let mut undisturbed = after_loss_at(2000);
        run(&mut cubic, Duration::ZERO, Duration::from_secs(2), 10);
        run(&mut undisturbed, Duration::ZERO, Duration::from_secs(9), 10);
        // Five seconds without a wish to send much, and five without any.
        for second in 2..7 {
            cubic.on_ack(&Ack {
                now: at(second * 1_000_000),
                window_limited: false,
                ..ack(MSS)
            });
        }
        cubic.on_idle(
            at(12_000_000),
            Duration::from_secs(5),
            Duration::from_secs(6),
        );
        run(
            &mut cubic,
            Duration::from_secs(12),
            Duration::from_secs(19),
            10,
        );
        let (a, b) = (cubic.window() / MSS, undisturbed.window() / MSS);
        assert!(a.abs_diff(b) <= 1, "{a} {b}");
    }

    /// Covers: RFC 5681 §4.1
    #[test]
    fn after_an_idle_rto_the_window_is_the_initial_one_again() {
        let mut cubic = after_loss_at(2000);
        let rto = Duration::from_millis(300);
        cubic.on_idle(at(0), rto, rto);
        assert_eq!(cubic.window(), 1400 * MSS);
        cubic.on_idle(at(0), 2 * rto, rto);
        assert_eq!(cubic.window(), 10 * MSS);
        assert_eq!(cubic.ssthresh(), 1400 * MSS);
    }

    #[test]
    fn no_input_makes_the_window_zero_or_boundless() {
        let mut random = Random::new(1);
        let mut next = move || random.below(1 << 31);
        let mut cubic = established();
        let mut now = at(0);
        for _ in 0..200_000 {
            now = now + Duration::from_micros(1 << (next() % 40));
            let bytes = 1 << (next() % 32);
            match next() % 16 {
                0 => cubic.on_congestion(now, Signal::Loss, bytes),
                1 => cubic.on_congestion(now, Signal::Ecn, bytes),
                2 => cubic.on_timeout(now, bytes, next() % 2 == 0),
                3 => cubic.on_recovered(now, Some(bytes)),
                4 => cubic.on_undo(now),
                5 => cubic.on_idle(now, Duration::from_micros(next()), RTT),
                6 => cubic.on_mss(64 + (next() % 60_000) as u16),
                _ => cubic.on_ack(&Ack {
                    now,
                    rtt: Some(Duration::from_micros(next())),
                    srtt: Some(Duration::from_micros(next())),
                    ..ack(bytes)
                }),
            }
            assert!(
                (64..=2 * WINDOW_BYTES_MAX).contains(&cubic.window()),
                "{cubic:?}"
            );
        }
    }
}
