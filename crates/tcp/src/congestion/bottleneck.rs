//! Congestion control against a model of a bottleneck: packets, one queue, virtual time.
//!
//! The path keeps the order of packets, so a packet that is overtaken is lost; loss detection is
//! perfect and takes one acknowledgment. The results depend on the algorithms alone. One seed
//! determines each run.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use crate::congestion::algorithm::CongestionAlgorithm::{self, Bbr, Cubic, NewReno};
use crate::congestion::rate::{DeliveryRate, Snapshot};
use crate::congestion::{self, Ack, Congestion, Signal};
use crate::recovery::state::Phase;
use crate::time::{Instant, whole_us};

const MSS: u64 = 1448;
const RTO: Duration = Duration::from_secs(1);

#[derive(Clone, Copy)]
struct Path {
    bytes_per_second: u64,
    /// Without queue.
    rtt: Duration,
    /// Drop-tail.
    queue_bytes: u64,
    loss_percent: u64,
    /// Longest delay of an acknowledgment, in order.
    jitter: Duration,
    /// Time between bundles of acknowledgments; zero: none are bundled.
    bundle: Duration,
}

impl Path {
    /// 100 Mbit/s, 40 ms, a queue of one bandwidth-delay product.
    const USUAL: Path = Path {
        bytes_per_second: 12_500_000,
        rtt: Duration::from_millis(40),
        queue_bytes: 500_000,
        loss_percent: 0,
        jitter: Duration::ZERO,
        bundle: Duration::ZERO,
    };

    fn bdp(&self) -> u64 {
        self.bytes_per_second * self.rtt.as_micros() as u64 / 1_000_000
    }
}

struct InFlight {
    seq: u64,
    sent: Instant,
    snapshot: Snapshot,
}

struct Flow {
    congestion: Box<dyn Congestion>,
    rate: DeliveryRate,
    in_flight: VecDeque<InFlight>,
    next_seq: u64,
    limited_until: u64,
    recovery_end: Option<u64>,
    next_send: Instant,
    /// When its next wake-up is scheduled.
    wakes: Instant,
    last_progress: Instant,
    timeouts: u32,
    srtt: Option<Duration>,
    min_rtt: Option<Duration>,
    starts: Instant,
    /// Packets that the application has; `None`: any number.
    backlog: Option<u64>,
    /// Packets delivered and lost, and the sum of round-trip times, since the last reset.
    delivered: u64,
    lost: u64,
    rtt_sum: Duration,
}

impl Flow {
    fn new(algorithm: CongestionAlgorithm, seed: u64, starts: Instant) -> Flow {
        let mut congestion = congestion::new(algorithm, seed);
        congestion.on_established(starts, MSS as u16, false);
        Flow {
            congestion,
            rate: DeliveryRate::default(),
            in_flight: VecDeque::new(),
            next_seq: 0,
            limited_until: 0,
            recovery_end: None,
            next_send: starts,
            wakes: starts,
            last_progress: starts,
            timeouts: 0,
            srtt: None,
            min_rtt: None,
            starts,
            backlog: None,
            delivered: 0,
            lost: 0,
            rtt_sum: Duration::ZERO,
        }
    }

    fn flight(&self) -> u64 {
        self.in_flight.len() as u64 * MSS
    }

    fn mean_rtt(&self) -> Duration {
        self.rtt_sum / self.delivered.max(1) as u32
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Ack { flow: usize, seq: u64 },
    Wake { flow: usize },
    Timer { flow: usize },
}

struct Bottleneck {
    path: Path,
    now: Instant,
    free_at: Instant,
    last_ack: Instant,
    flows: Vec<Flow>,
    events: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    scheduled: u64,
    random: u64,
}

fn at(seconds: f64) -> Instant {
    Instant::from_us((seconds * 1e6) as u64)
}

impl Bottleneck {
    fn new(path: Path, seed: u64, flows: &[(CongestionAlgorithm, f64)]) -> Bottleneck {
        let mut bottleneck = Bottleneck {
            path,
            now: at(0.0),
            free_at: at(0.0),
            last_ack: at(0.0),
            flows: Vec::new(),
            events: BinaryHeap::new(),
            scheduled: 0,
            random: seed,
        };
        for (flow, &(algorithm, starts)) in flows.iter().enumerate() {
            let starts = at(1.0 + starts);
            let seed = bottleneck.random();
            bottleneck.flows.push(Flow::new(algorithm, seed, starts));
            bottleneck.schedule(starts, Event::Wake { flow });
            bottleneck.schedule(starts + RTO, Event::Timer { flow });
        }
        bottleneck
    }

    fn random(&mut self) -> u64 {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.random >> 33
    }

    fn schedule(&mut self, at: Instant, event: Event) {
        self.scheduled += 1;
        self.events.push(Reverse((at, self.scheduled, event)));
    }

    fn run_until(&mut self, seconds: f64) {
        let end = at(1.0 + seconds);
        while let Some(&Reverse((at, _, event))) = self.events.peek()
            && at <= end
        {
            self.events.pop();
            self.now = at;
            match event {
                Event::Ack { flow, seq } => self.on_ack(flow, seq),
                Event::Wake { flow } => self.send(flow),
                Event::Timer { flow } => self.on_timer(flow),
            }
        }
        self.now = end;
    }

    /// Runs from `from` to `to`, and returns each flow's share of the bottleneck in that time.
    fn shares(&mut self, from: f64, to: f64) -> Vec<f64> {
        self.run_until(from);
        for flow in &mut self.flows {
            (flow.delivered, flow.lost, flow.rtt_sum) = (0, 0, Duration::ZERO);
        }
        self.run_until(to);
        let capacity = self.path.bytes_per_second as f64 * (to - from);
        let share = |flow: &Flow| (flow.delivered * MSS) as f64 / capacity;
        self.flows.iter().map(share).collect()
    }

    fn send(&mut self, index: usize) {
        let now = self.now;
        loop {
            let flow = &mut self.flows[index];
            if now < flow.starts {
                return;
            }
            if flow.backlog == Some(0) {
                return flow.rate.on_app_limited(flow.flight());
            }
            if flow.flight() + MSS > flow.congestion.window().max(MSS) {
                flow.limited_until = flow.next_seq;
                return;
            }
            if flow.in_flight.is_empty() && now > flow.last_progress {
                let idle = now.since(flow.last_progress);
                flow.congestion.on_idle(now, idle, RTO);
                flow.last_progress = now;
            }
            if let Some(rate) = flow.congestion.pacing_rate() {
                if flow.next_send > now {
                    let wake = flow.next_send;
                    if flow.wakes != wake {
                        flow.wakes = wake;
                        self.schedule(wake, Event::Wake { flow: index });
                    }
                    return;
                }
                let gap = Duration::from_nanos(MSS * 1_000_000_000 / rate.max(1));
                // Credit of a millisecond, since time comes in microseconds.
                let earliest = now.as_us().saturating_sub(1000);
                flow.next_send = flow.next_send.max(Instant::from_us(earliest)) + gap;
            }
            if let Some(backlog) = &mut flow.backlog {
                *backlog -= 1;
            }
            let seq = flow.next_seq;
            flow.next_seq += 1;
            let alone = flow.in_flight.is_empty();
            let snapshot = flow.rate.on_departed(now, flow.flight() + MSS, alone);
            flow.in_flight.push_back(InFlight {
                seq,
                sent: now,
                snapshot,
            });
            self.transmit(index, seq);
        }
    }

    fn transmit(&mut self, flow: usize, seq: u64) {
        let waits = self.free_at.since(self.now);
        let queued = waits.as_micros() as u64 * self.path.bytes_per_second / 1_000_000;
        if queued > self.path.queue_bytes || self.random() % 100 < self.path.loss_percent {
            return;
        }
        let serialized = Duration::from_nanos(MSS * 1_000_000_000 / self.path.bytes_per_second);
        self.free_at = self.free_at.max(self.now) + serialized;
        let jitter_us = self.path.jitter.as_micros() as u64;
        let late = Duration::from_micros(match jitter_us {
            0 => 0,
            _ => self.random() % jitter_us,
        });
        let mut arrives = self.free_at + self.path.rtt + late;
        let bundle_us = self.path.bundle.as_micros() as u64;
        if bundle_us > 0 {
            arrives = Instant::from_us(arrives.as_us().next_multiple_of(bundle_us));
        }
        // Acknowledgments keep their order.
        self.last_ack = self.last_ack.max(arrives);
        self.schedule(self.last_ack, Event::Ack { flow, seq });
    }

    fn on_ack(&mut self, index: usize, seq: u64) {
        let now = self.now;
        let flow = &mut self.flows[index];
        let prior_flight = flow.flight();
        let mut lost = 0;
        let packet = loop {
            match flow.in_flight.pop_front() {
                Some(packet) if packet.seq < seq => lost += MSS,
                Some(packet) if packet.seq == seq => break packet,
                // A timeout has given it up.
                other => return flow.in_flight.extend(other),
            }
        };
        let rtt = now.since(packet.sent);
        flow.rate.on_lost(lost);
        flow.rate
            .on_delivered(now, MSS, Some((packet.snapshot, packet.sent)));
        flow.min_rtt = Some(flow.min_rtt.map_or(rtt, |min| min.min(rtt)));
        flow.srtt = Some(flow.srtt.map_or(rtt, |srtt| (srtt * 7 + rtt) / 8));
        flow.delivered += 1;
        flow.lost += lost / MSS;
        flow.rtt_sum += rtt;
        flow.timeouts = 0;
        flow.last_progress = now;
        if lost > 0 && flow.recovery_end.is_none() {
            flow.recovery_end = Some(flow.next_seq);
            flow.congestion
                .on_congestion(now, Signal::Loss, prior_flight);
        }
        let recovered = flow.recovery_end.is_some_and(|end| seq + 1 >= end);
        if recovered {
            flow.recovery_end = None;
        }
        let ack = Ack {
            now,
            una: (seq + 1) * MSS,
            nxt: flow.next_seq * MSS,
            delivered: MSS,
            lost,
            prior_flight,
            flight: flow.flight(),
            rtt: Some(rtt),
            srtt: flow.srtt,
            rate: flow.rate.sample(now, flow.min_rtt.map(whole_us)),
            advances: true,
            window_limited: seq < flow.limited_until,
            phase: match flow.recovery_end {
                Some(_) => Phase::FastRecovery,
                None => Phase::Open,
            },
        };
        flow.congestion.on_ack(&ack);
        if recovered {
            flow.congestion.on_recovered(now, None);
        }
        self.send(index);
    }

    fn on_timer(&mut self, index: usize) {
        let now = self.now;
        let flow = &mut self.flows[index];
        let idle = flow.in_flight.is_empty();
        if !idle && now.since(flow.last_progress) >= RTO {
            flow.congestion
                .on_timeout(now, flow.flight(), flow.timeouts > 0);
            flow.timeouts += 1;
            flow.rate.on_lost(flow.flight());
            flow.lost += flow.in_flight.len() as u64;
            flow.in_flight.clear();
            flow.recovery_end = None;
            flow.last_progress = now;
        }
        self.schedule(now + RTO / 4, Event::Timer { flow: index });
        self.send(index);
    }
}

/// Jain's index of fairness.
fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (shares.len() as f64 * squares)
}

#[test]
fn every_algorithm_fills_the_path() {
    for algorithm in CongestionAlgorithm::ALL {
        for rtt_ms in [2, 40, 200] {
            let rtt = Duration::from_millis(rtt_ms);
            let mut path = Path { rtt, ..Path::USUAL };
            path.queue_bytes = path.bdp().max(50_000);
            let shares = Bottleneck::new(path, 1, &[(algorithm, 0.0)]).shares(20.0, 40.0);
            assert!(shares[0] > 0.9, "{algorithm} at {rtt_ms} ms: {shares:?}");
        }
    }
}

#[test]
fn acknowledgments_in_bundles_starve_no_flow() {
    for algorithm in CongestionAlgorithm::ALL {
        let path = Path {
            bundle: Duration::from_millis(8),
            ..Path::USUAL
        };
        let shares = Bottleneck::new(path, 1, &[(algorithm, 0.0)]).shares(10.0, 30.0);
        assert!(shares[0] > 0.9, "{algorithm}: {shares:?}");
    }
}

#[test]
fn two_equal_flows_get_equal_shares() {
    for algorithm in [Cubic, NewReno, Bbr] {
        for seed in 1..4 {
            let path = Path {
                bytes_per_second: 2_500_000,
                queue_bytes: 100_000,
                jitter: Duration::from_millis(1),
                ..Path::USUAL
            };
            let flows = [(algorithm, 0.0), (algorithm, 5.3)];
            let shares = Bottleneck::new(path, seed, &flows).shares(60.0, 160.0);
            let jain = jain(&shares);
            assert!(jain >= 0.95, "{algorithm}, seed {seed}: {shares:?}, {jain}");
            assert!(shares.iter().sum::<f64>() > 0.9, "{algorithm}: {shares:?}");
        }
    }
}

#[test]
fn bbr_fills_a_path_that_loses_one_packet_in_a_hundred() {
    for seed in 1..4 {
        let path = Path {
            loss_percent: 1,
            ..Path::USUAL
        };
        let shares = Bottleneck::new(path, seed, &[(Bbr, 0.0)]).shares(5.0, 35.0);
        assert!(shares[0] > 0.9, "seed {seed}: {shares:?}");
        let shares = Bottleneck::new(path, seed, &[(Cubic, 0.0)]).shares(5.0, 35.0);
        assert!(
            shares[0] < 0.5,
            "seed {seed}: the path is lossy: {shares:?}"
        );
    }
}

#[test]
fn bbr_keeps_a_deep_queue_short() {
    let path = Path {
        queue_bytes: 5 * Path::USUAL.bdp(),
        ..Path::USUAL
    };
    let mut bottleneck = Bottleneck::new(path, 1, &[(Bbr, 0.0)]);
    let shares = bottleneck.shares(5.0, 35.0);
    let rtt = bottleneck.flows[0].mean_rtt();
    assert!(shares[0] > 0.9, "{shares:?}");
    assert!(rtt < path.rtt * 5 / 4, "{rtt:?}");
    let mut bottleneck = Bottleneck::new(path, 1, &[(Cubic, 0.0)]);
    bottleneck.shares(5.0, 35.0);
    let rtt = bottleneck.flows[0].mean_rtt();
    assert!(rtt > path.rtt * 2, "the queue is deep: {rtt:?}");
}

#[test]
fn bbr_knows_the_path_after_an_application_that_had_little_to_send() {
    let mut bottleneck = Bottleneck::new(Path::USUAL, 1, &[(Bbr, 0.0)]);
    bottleneck.flows[0].backlog = Some(0);
    // 15 packets each 100 ms, and pauses of two seconds.
    for tick in 0..100 {
        bottleneck.run_until(f64::from(tick) * 0.1);
        if tick % 40 < 20 {
            bottleneck.flows[0].backlog = Some(15);
            bottleneck.send(0);
        }
    }
    bottleneck.flows[0].backlog = None;
    bottleneck.send(0);
    // The next probe comes within three seconds.
    let shares = bottleneck.shares(14.0, 44.0);
    assert!(shares[0] > 0.9, "{shares:?}");
}

#[test]
fn bbr_follows_a_path_that_becomes_faster_or_slower() {
    for factor in [0.25, 4.0] {
        let mut bottleneck = Bottleneck::new(Path::USUAL, 1, &[(Bbr, 0.0)]);
        bottleneck.run_until(20.0);
        let rate = Path::USUAL.bytes_per_second as f64 * factor;
        bottleneck.path.bytes_per_second = rate as u64;
        bottleneck.path.queue_bytes = bottleneck.path.bdp();
        let shares = bottleneck.shares(35.0, 65.0);
        assert!(shares[0] > 0.9, "{factor}: {shares:?}");
        let rtt = bottleneck.flows[0].mean_rtt();
        assert!(rtt < Path::USUAL.rtt * 3 / 2, "{factor}: {rtt:?}");
    }
}

#[test]
fn bbr_and_cubic_leave_each_other_something() {
    for seed in 1..4 {
        let flows = [(Bbr, 0.0), (Cubic, 2.0)];
        let shares = Bottleneck::new(Path::USUAL, seed, &flows).shares(30.0, 130.0);
        assert!(
            shares.iter().all(|&share| share > 0.2),
            "seed {seed}: {shares:?}"
        );
    }
}

#[test]
fn hystart_leaves_slow_start_before_a_big_overshoot() {
    let path = Path {
        rtt: Duration::from_millis(100),
        queue_bytes: 1_250_000,
        ..Path::USUAL
    };
    let lost = |algorithm| {
        let mut bottleneck = Bottleneck::new(path, 1, &[(algorithm, 0.0)]);
        bottleneck.shares(0.0, 2.0);
        let flow = &bottleneck.flows[0];
        (flow.lost, flow.congestion.ssthresh())
    };
    let (reno, _) = lost(NewReno);
    let (cubic, ssthresh) = lost(Cubic);
    assert!(reno > 500, "without it, slow start overshoots: {reno}");
    assert!(cubic * 2 < reno, "{cubic} against {reno}");
    assert!(ssthresh >= path.bdp() / 2, "{ssthresh}");
}

/// The bandwidth varies the part of the path that a round of slow start fills: after nearly all,
/// the next round fills the queue as well, and the delay of its first packets does not show that.
#[test]
fn slow_start_does_not_overflow_a_queue_of_one_path() {
    for (percent, bundle_ms) in [50, 60, 70, 80, 90, 100]
        .into_iter()
        .flat_map(|percent| [(percent, 0), (percent, 3), (percent, 12)])
    {
        let mut path = Path {
            bytes_per_second: 250_000 * percent,
            rtt: Duration::from_millis(100),
            // A receiver that holds up acknowledgments leaves gaps between them.
            bundle: Duration::from_millis(bundle_ms),
            ..Path::USUAL
        };
        path.queue_bytes = path.bdp();
        let mut bottleneck = Bottleneck::new(path, 1, &[(Cubic, 0.0)]);
        let shares = bottleneck.shares(0.0, 5.0);
        let lost = bottleneck.flows[0].lost;
        assert_eq!(lost, 0, "{percent} %, {bundle_ms} ms");
        assert!(shares[0] > 0.8, "{percent} %, {bundle_ms} ms: {shares:?}");
    }
}

#[test]
fn jitter_does_not_end_slow_start() {
    for seed in 1..6 {
        let path = Path {
            bytes_per_second: 125_000_000,
            rtt: Duration::from_millis(50),
            queue_bytes: 6_250_000,
            jitter: Duration::from_millis(12),
            ..Path::USUAL
        };
        let mut bottleneck = Bottleneck::new(path, seed, &[(Cubic, 0.0)]);
        while bottleneck.flows[0].congestion.window() < path.bdp() / 2 {
            let seconds = bottleneck.now.since(at(1.0)).as_secs_f64();
            assert!(
                seconds < 1.5,
                "seed {seed}: {:?}",
                bottleneck.flows[0].congestion
            );
            bottleneck.run_until(seconds + 0.01);
        }
        assert_eq!(bottleneck.flows[0].congestion.ssthresh(), u64::MAX);
    }
}
