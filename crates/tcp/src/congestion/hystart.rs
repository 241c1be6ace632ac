//! HyStart++ (RFC 9406): leaves slow start when the round-trip time grows, before the queue
//! overflows.
//!
//! A round is the data in flight at its start: it ends when all of this data is acknowledged. A
//! growing delay makes slow start *conservative* (CSS); if the delay falls again, it was jitter; if
//! it does not for [`CSS_ROUNDS`] rounds, slow start is over.
//!
//! The least delay of a round reveals nothing if the round before it has just not filled the path:
//! then all of the queue is built in one round, whose first packets still find none. So there is a
//! second reason to become conservative, from HyStart as it was before the RFC: a *train* of
//! acknowledgments. If they come without a gap for half of the round-trip time, twice as much fills
//! the path. The RFC leaves that out, since acknowledgments that were held up and come together
//! look the same, and HyStart ended slow start for good. Here slow start resumes if the next round
//! has no train.
//!
//! Both together leave no doubt: a train, and a queue that stands for a whole round. Then slow
//! start is over at once. Five more rounds would triple the window, and a queue of a
//! bandwidth-delay product overflow.
//!
//! Rounds and short gaps are unreliable. Where packets overtake each other, SND.UNA stands still
//! for missing data, and a round begins in the middle of the previous round's data; and
//! acknowledgments are held up, in hosts as in networks. So there is a third sign, which needs
//! neither: half of a round-trip time without a *long* gap, and then packets that have waited for a
//! quarter of a round-trip time. Slow start sends twice the acknowledged data, so that this much
//! has gathered in the queue when half of the path was acknowledged. The sign makes slow start
//! conservative, and half as much again ends it.

use std::ops::Range;
use std::time::Duration;

use crate::congestion::Ack;
use crate::time::Instant;

/// RFC 9406 §4.3.
const MIN_RTT_THRESH: Duration = Duration::from_millis(4);
const MAX_RTT_THRESH: Duration = Duration::from_millis(16);
const MIN_RTT_DIVISOR: u32 = 8;
const N_RTT_SAMPLE: u32 = 8;
const CSS_GROWTH_DIVISOR: u64 = 4;
const CSS_ROUNDS: u32 = 5;

/// Longest gap in a train of acknowledgments, unless an eighth of the round-trip time is shorter.
const TRAIN_GAP_MAX: Duration = Duration::from_millis(2);

/// Longest gap in a train that is evaluated together with the delay, unless an eighth of the
/// round-trip time is shorter: acknowledgments held up for no longer than this do not by themselves
/// look like a queue.
const LONG_GAP_MAX: Duration = MAX_RTT_THRESH;

/// Wait of packets in the queue, in eighths of the least round-trip time, if the path is being
/// filled, and when it is full.
const WAIT_EIGHTHS_FILLING: u32 = 2;
const WAIT_EIGHTHS_FULL: u32 = 3;

/// Decision on slow start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The window grows by this many bytes.
    Grow(u64),
    /// Slow start is over: the window is the threshold.
    Leave,
}

/// The phases of §4.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    SlowStart,
    /// Conservative slow start.
    Css {
        /// `cssBaselineMinRtt`; `None`: the reason was a train.
        baseline: Option<Duration>,
        /// Rounds begun in it, the present one included.
        rounds: u32,
    },
}

/// The state of one slow start.
#[derive(Clone, Debug)]
pub(crate) struct HyStart {
    phase: Phase,
    /// `windowEnd`: the round ends when this position is acknowledged.
    round_end: u64,
    /// `lastRoundMinRTT` and `currentRoundMinRTT`; `None` stands for infinity.
    last_min: Option<Duration>,
    min: Option<Duration>,
    /// `rttSampleCount`
    samples: u32,
    /// The least round-trip time of all rounds.
    least: Option<Duration>,
    train: Train,
    /// The arrival of the first acknowledgment and of the last one since the last long gap, across
    /// rounds.
    unbroken: Range<Instant>,
    latest: Latest,
}

/// The last measurements, across rounds: the least of each [`N_RTT_SAMPLE`] in a row.
#[derive(Clone, Copy, Debug)]
struct Latest {
    /// Least of the last complete group; zero if none is complete.
    min: Duration,
    /// Least of the present group, and its number of measurements.
    gathering: Duration,
    samples: u32,
}

impl Latest {
    const fn new() -> Latest {
        Latest {
            min: Duration::ZERO,
            gathering: Duration::MAX,
            samples: 0,
        }
    }

    /// Adds a measurement. Returns true if it completes a group.
    fn on_sample(&mut self, rtt: Duration) -> bool {
        self.gathering = self.gathering.min(rtt);
        self.samples += 1;
        let enough = self.samples == N_RTT_SAMPLE;
        if enough {
            *self = Latest {
                min: self.gathering,
                ..Latest::new()
            };
        }
        enough
    }
}

/// Acknowledgments that follow each other closely, in one round.
#[derive(Clone, Copy, Debug)]
struct Train {
    /// Arrival of the first and of the last one.
    start: Instant,
    end: Instant,
    /// A train long enough was seen in this round; in the round before.
    seen: bool,
    seen_before: bool,
}

impl Train {
    const fn begin(now: Instant, seen_before: bool) -> Train {
        Train {
            start: now,
            end: now,
            seen: false,
            seen_before,
        }
    }

    /// Adds an acknowledgment. `least`: the least round-trip time so far.
    fn on_ack(&mut self, now: Instant, least: Duration) {
        if now.since(self.end) > TRAIN_GAP_MAX.min(least / 8) {
            self.start = now;
        }
        self.end = now;
        self.seen |= !least.is_zero() && now.since(self.start) >= least / 2;
    }
}

impl HyStart {
    pub(crate) const fn new() -> HyStart {
        HyStart {
            phase: Phase::SlowStart,
            round_end: 0,
            last_min: None,
            min: None,
            samples: 0,
            least: None,
            train: Train::begin(Instant::from_us(0), false),
            unbroken: Instant::from_us(0)..Instant::from_us(0),
            latest: Latest::new(),
        }
    }

    /// Handles an acknowledgment that has delivered `bytes` in slow start.
    pub(crate) fn on_ack(&mut self, ack: &Ack, bytes: u64) -> Verdict {
        if ack.una >= self.round_end && self.begin_round(ack) {
            return Verdict::Leave;
        }
        if let Some(rtt) = ack.rtt {
            self.min = Some(self.min.map_or(rtt, |min| min.min(rtt)));
            self.least = Some(self.least.map_or(rtt, |least| least.min(rtt)));
            self.samples += 1;
        }
        let news = ack.rtt.is_some_and(|rtt| self.latest.on_sample(rtt));
        let least = self.least.unwrap_or_default();
        self.train.on_ack(ack.now, least);
        if ack.now.since(self.unbroken.end) > LONG_GAP_MAX.min(least / 8) {
            self.unbroken.start = ack.now;
        }
        self.unbroken.end = ack.now;
        if news && self.has_waited(WAIT_EIGHTHS_FULL) {
            return Verdict::Leave;
        }
        match self.phase {
            Phase::SlowStart => {
                let baseline = self.min.filter(|_| self.delay_increases());
                let fills = self.train.seen || (news && self.has_waited(WAIT_EIGHTHS_FILLING));
                if baseline.is_some() || fills {
                    self.phase = Phase::Css {
                        baseline,
                        rounds: 1,
                    };
                }
                Verdict::Grow(bytes)
            }
            Phase::Css { baseline, .. } => {
                let enough = self.samples >= N_RTT_SAMPLE;
                if enough && self.min < baseline {
                    // The delay has fallen: it was not our queue. Slow start resumes.
                    self.phase = Phase::SlowStart;
                } else if (self.train.seen || self.train.seen_before) && self.has_queue() {
                    return Verdict::Leave;
                }
                Verdict::Grow(bytes / CSS_GROWTH_DIVISOR)
            }
        }
    }

    /// Begins a round. Returns true if slow start has been conservative for long enough.
    fn begin_round(&mut self, ack: &Ack) -> bool {
        let had_train = self.train.seen;
        self.round_end = ack.nxt;
        self.train = Train::begin(ack.now, had_train);
        // A round without a measurement is no reason to forget the one before it.
        self.last_min = self.min.take().or(self.last_min);
        self.samples = 0;
        match &mut self.phase {
            Phase::SlowStart => false,
            Phase::Css { baseline: None, .. } if !had_train => {
                self.phase = Phase::SlowStart;
                false
            }
            Phase::Css { rounds, .. } => {
                *rounds += 1;
                *rounds > CSS_ROUNDS
            }
        }
    }

    /// Returns true if there was no long gap for half of the least round-trip time, and the last
    /// packets have waited in a queue for `eighths` eighths of the least round-trip time.
    fn has_waited(&self, eighths: u32) -> bool {
        let least = self.least.unwrap_or(Duration::MAX);
        let unbroken = self.unbroken.end.since(self.unbroken.start);
        let wait = (least / 8 * eighths).max(MIN_RTT_THRESH);
        unbroken >= least / 2 && self.latest.min >= least.saturating_add(wait)
    }

    /// Compares the delay to the round before.
    fn delay_increases(&self) -> bool {
        self.exceeds(self.last_min)
    }

    /// Compares the delay to the path without a queue: even the first packets of this round have
    /// waited.
    fn has_queue(&self) -> bool {
        self.exceeds(self.least)
    }

    fn exceeds(&self, base: Option<Duration>) -> bool {
        let (Some(base), Some(min)) = (base, self.min) else {
            return false;
        };
        let thresh = (base / MIN_RTT_DIVISOR).clamp(MIN_RTT_THRESH, MAX_RTT_THRESH);
        self.samples >= N_RTT_SAMPLE && min >= base + thresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::tests::ack;

    const MS: Duration = Duration::from_millis(1);

    /// Rounds of ten segments, each acknowledged with the round-trip time that `rtt` names in
    /// milliseconds for its number. Returns the number of bytes by which each round has let the
    /// window grow, until slow start is left.
    fn rounds(count: u64, rtt: impl Fn(u64, u64) -> u64) -> (Vec<u64>, bool) {
        let mut hystart = HyStart::new();
        let mut growth = Vec::new();
        for round in 0..count {
            let mut grown = 0;
            for segment in 0..10 {
                let ack = Ack {
                    una: (round * 10 + segment + 1) * 1000,
                    // The next round is sent while this one is acknowledged.
                    nxt: ((round + 1) * 10 + segment + 1) * 1000,
                    rtt: Some(MS * rtt(round, segment) as u32),
                    ..ack(1000)
                };
                match hystart.on_ack(&ack, 1000) {
                    Verdict::Grow(bytes) => grown += bytes,
                    Verdict::Leave => return (growth, true),
                }
            }
            growth.push(grown);
        }
        (growth, false)
    }

    /// Covers: RFC 9406 §4.2
    #[test]
    fn a_steady_delay_keeps_slow_start_going() {
        let (growth, left) = rounds(50, |_, _| 50);
        assert!(!left);
        assert!(growth.iter().all(|&bytes| bytes == 10_000), "{growth:?}");
    }

    /// Covers: RFC 9406 §4.2
    #[test]
    fn a_growing_delay_quarters_the_growth_and_ends_slow_start_after_five_rounds() {
        // 50 ms, and from the fourth round on a queue of 7 ms: more than an eighth.
        let (growth, left) = rounds(50, |round, _| if round < 3 { 50 } else { 57 });
        assert!(left);
        assert_eq!(growth[..3], [10_000; 3]);
        // In the round that notices it, the eighth sample does.
        assert!(growth[3] < 10_000, "{growth:?}");
        assert_eq!(growth[4..], [2500; 4]);
    }

    /// Covers: RFC 9406 §4.2
    #[test]
    fn a_delay_that_falls_again_resumes_slow_start() {
        let (growth, left) = rounds(12, |round, _| match round {
            0..3 => 50,
            3..5 => 57,
            _ => 50,
        });
        assert!(!left);
        assert_eq!(growth.last(), Some(&10_000));
    }

    /// Covers: RFC 9406 §4.2
    #[test]
    fn jitter_is_not_taken_for_a_queue() {
        // Half of all packets are up to 40 ms late; the shortest of each round are not.
        let (growth, left) = rounds(200, |round, segment| {
            50 + (round * 7 + segment * 13) % 5 / 2 * 20
        });
        assert!(!left);
        assert!(growth.iter().all(|&bytes| bytes == 10_000), "{growth:?}");
    }

    /// Rounds of 64 segments and 50 ms, each with its gap between two acknowledgments.
    fn growth_with_gaps(gaps_us: &[u64]) -> (Vec<u64>, bool) {
        let rounds: Vec<_> = gaps_us.iter().map(|&gap_us| (gap_us, 50)).collect();
        growth_with_gaps_and_delays(&rounds)
    }

    /// The same, and the round-trip time that each round measures, in milliseconds.
    fn growth_with_gaps_and_delays(rounds: &[(u64, u32)]) -> (Vec<u64>, bool) {
        let mut hystart = HyStart::new();
        let mut growth = Vec::new();
        for (round, &(gap_us, rtt_ms)) in (0..).zip(rounds) {
            let mut grown = 0;
            for segment in 1..=64 {
                let ack = Ack {
                    now: Instant::from_us(round * 50_000 + segment * gap_us),
                    una: (round * 64 + segment) * 1000,
                    nxt: ((round + 1) * 64 + segment) * 1000,
                    rtt: Some(rtt_ms * MS),
                    ..ack(1000)
                };
                match hystart.on_ack(&ack, 1000) {
                    Verdict::Grow(bytes) => grown += bytes,
                    Verdict::Leave => return (growth, true),
                }
            }
            growth.push(grown);
        }
        (growth, false)
    }

    #[test]
    fn a_train_of_acknowledgments_for_half_of_the_round_trip_quarters_the_growth() {
        // 64 acknowledgments take 19 ms in the first rounds, then 38 ms: from 25 ms on the path is
        // taken to be full.
        let (growth, left) = growth_with_gaps(&[300, 300, 600, 600, 600, 600, 600, 600]);
        assert!(left);
        assert_eq!(growth[..2], [64_000; 2]);
        assert!((40_000..64_000).contains(&growth[2]), "{growth:?}");
        assert_eq!(growth[3..], [16_000; 4]);
    }

    #[test]
    fn a_train_and_a_queue_that_stands_end_slow_start_at_once() {
        // 6.25 ms are an eighth: the third round is within it, the fourth is not.
        let rounds = [(300, 50), (600, 50), (600, 55), (600, 57)];
        let (growth, left) = growth_with_gaps_and_delays(&rounds);
        assert!(left);
        assert_eq!(growth.len(), 3);
        assert_eq!(growth[2], 16_000);
        // Without the train it may be jitter, and takes five rounds.
        let rounds = [(300, 50), (300, 50), (300, 55), (300, 57), (300, 57)];
        let (growth, left) = growth_with_gaps_and_delays(&rounds);
        assert!(!left);
        assert_eq!(growth.len(), 5);
    }

    #[test]
    fn acknowledgments_that_were_held_up_once_are_no_reason_to_end_slow_start() {
        let mut gaps_us = vec![600];
        gaps_us.extend([300; 20]);
        let (growth, left) = growth_with_gaps(&gaps_us);
        assert!(!left);
        assert_eq!(growth[1], 16_000);
        assert_eq!(growth[2..], [64_000; 19]);
    }

    #[test]
    fn a_gap_ends_a_train() {
        let (growth, left) = growth_with_gaps(&[2500; 20]);
        assert!(!left);
        assert!(growth.iter().all(|&bytes| bytes == 64_000), "{growth:?}");
    }

    /// Acknowledgments of one round that does not end, `gap_us` apart, each with a round-trip time
    /// that is `grows_us` longer than the one before, beginning with 50 ms. How long they went on,
    /// in milliseconds, until slow start became conservative and until it was left.
    fn signs_within_a_round(gap_us: u64, grows_us: u64) -> (Option<u64>, Option<u64>) {
        let mut hystart = HyStart::new();
        hystart.round_end = u64::MAX;
        let mut slower = None;
        for count in 0..200_000 / gap_us {
            let ack = Ack {
                now: Instant::from_us(1_000_000 + count * gap_us),
                rtt: Some(50 * MS + Duration::from_micros(count * grows_us)),
                ..ack(1000)
            };
            let ms = count * gap_us / 1000;
            match hystart.on_ack(&ack, 1000) {
                Verdict::Leave => return (slower, Some(ms)),
                Verdict::Grow(bytes) if bytes < 1000 => slower = slower.or(Some(ms)),
                Verdict::Grow(_) => {}
            }
        }
        (slower, None)
    }

    #[test]
    fn a_queue_that_grows_while_a_round_does_not_end_ends_slow_start() {
        // Too far apart for a train. 12.5 ms, a quarter, and 18.75 ms.
        let (slower, left) = signs_within_a_round(6_000, 2_000);
        let (slower, left) = (slower.expect("slower"), left.expect("left"));
        assert!((37..140).contains(&slower), "{slower}");
        assert!((56..190).contains(&left) && left > slower, "{left}");
        // Not if the path is not full for half of the round trip: longer gaps than an eighth.
        assert_eq!(signs_within_a_round(6_300, 2_000), (None, None));
        // Nor without a queue.
        assert_eq!(signs_within_a_round(6_000, 50), (None, None));
    }

    /// Covers: RFC 9406 §4.3
    #[test]
    fn the_threshold_is_an_eighth_of_the_delay_but_4_to_16_ms() {
        let leaves = |base: u64, more: u64| {
            rounds(
                50,
                move |round, _| {
                    if round < 3 { base } else { base + more }
                },
            )
            .1
        };
        assert!(!leaves(1, 3));
        assert!(leaves(1, 4));
        assert!(!leaves(80, 9));
        assert!(leaves(80, 10));
        assert!(!leaves(400, 15));
        assert!(leaves(400, 16));
    }
}
