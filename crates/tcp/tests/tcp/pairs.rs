//! Pairs of connections over bad networks. A failure prints the seed; `TCP_SEED=n cargo test pairs`
//! replays it, `TCP_TIMES=100` tries more seeds.

use std::time::Duration;

use crate::network::{Chunk, Faults, Outcome, Plan, Random, World};
use crate::scenario;
use tcp::{CloseReason, Config, CongestionAlgorithm, Limits};

/// Names the seed if the test fails.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay with TCP_SEED={}", self.0);
        }
    }
}

pub(crate) fn for_seeds(count: u64, mut run: impl FnMut(u64)) {
    let number = |name: &str| std::env::var(name).ok()?.parse().ok();
    let times: u64 = number("TCP_TIMES").unwrap_or(1);
    let seeds = number("TCP_SEED").map_or(0..count * times, |seed: u64| seed..seed + 1);
    for seed in seeds {
        let _seed = Seed(seed);
        run(seed);
    }
}

/// Covers: RFC 9293 §2.2, RFC 9293 §3.8
#[test]
fn every_byte_arrives_whatever_the_network_does() {
    for_seeds(400, |seed| {
        let outcome = scenario::run(Random::seeded(seed), 40_000, 0);
        assert_eq!(
            outcome.closed,
            [Some(CloseReason::Finished); 2],
            "{outcome:?}"
        );
    });
}

/// Covers: RFC 5961 §3.2, RFC 5961 §4.2, RFC 5961 §5.2, RFC 2018 §8
#[test]
fn every_byte_arrives_whatever_an_intruder_does() {
    for_seeds(400, |seed| {
        let outcome = scenario::run(Random::seeded(seed), 40_000, 20);
        assert_eq!(
            outcome.closed,
            [Some(CloseReason::Finished); 2],
            "{outcome:?}"
        );
    });
}

/// Covers: RFC 9293 §2.2, RFC 9293 §3.9.1.2
#[test]
fn every_byte_arrives_whatever_options_applications_set_meanwhile() {
    for_seeds(400, |seed| {
        let outcome = scenario::run_with_options(Random::seeded(seed + 20_000), 40_000, 40);
        assert_eq!(
            outcome.closed,
            [Some(CloseReason::Finished); 2],
            "{outcome:?}"
        );
    });
}

#[test]
fn long_transfers_survive() {
    for_seeds(20, |seed| {
        let outcome = scenario::run(Random::seeded(seed + 10_000), 800_000, 0);
        assert_eq!(
            outcome.closed,
            [Some(CloseReason::Finished); 2],
            "{outcome:?}"
        );
    });
}

/// A download as it is meant to be: a header, a file, the end.
fn download(len: u64, faults: Faults, config: Config) -> Outcome {
    let limits = Limits {
        bytes_max: 1 << 20,
        pieces_max: 32,
        real_bytes_max: 4096,
        direct_bytes_max: 0,
    };
    let server = Plan {
        config,
        limits,
        isn: u32::MAX - 100_000,
        chunks: vec![
            Chunk::Real(200),
            Chunk::Virtual {
                object: 1,
                offset: 0,
                len,
            },
        ],
        think_us: 1000..2000,
        read_max: 1 << 20,
    };
    let client = Plan {
        isn: 5,
        chunks: vec![Chunk::Real(100)],
        ..server.clone()
    };
    World::new(Random::seeded(1), faults, [client, server], false).run()
}

fn clean() -> Faults {
    Faults {
        loss_percent: 0,
        duplicate_percent: 0,
        mark_percent: 0,
        delay_us: 10_000..10_001,
        read_us: 100..101,
        report_us: 5..6,
        merged_max: 1,
        interference_percent: 0,
        options_percent: 0,
    }
}

/// Covers: IO-TCP §3.5
#[test]
fn on_a_clean_path_nothing_is_sent_twice_however_slow_the_disk() {
    for read_us in [100..101, 1..700_000, 2_000_000..2_000_001] {
        for timestamps in [false, true] {
            let config = Config {
                timestamps,
                receive_buffer_bytes: 1 << 20,
                ..Config::default()
            };
            let faults = Faults {
                read_us: read_us.clone(),
                ..clean()
            };
            let outcome = download(300_000, faults, config);
            assert_eq!(outcome.closed, [Some(CloseReason::Finished); 2]);
            assert_eq!(outcome.retransmissions, [0, 0]);
            let rtt = outcome.smoothed_rtt[1].expect("measured");
            assert!(
                rtt >= Duration::from_millis(20) && rtt < Duration::from_millis(41),
                "{rtt:?}"
            );
        }
    }
}

/// Covers: RFC 5681 §3.1, RFC 6928 §2
#[test]
fn slow_start_needs_few_round_trips() {
    let config = Config {
        receive_buffer_bytes: 4 << 20,
        ..Config::default()
    };
    let outcome = download(1_000_000, clean(), config);
    // Handshake and request: 2 round trips; 14, 28, 56, ... KB: 7 round trips; the end: 1.
    assert!(
        outcome.elapsed < Duration::from_millis(20 * 11),
        "{:?}",
        outcome.elapsed
    );
}

#[test]
fn a_loss_of_one_percent_does_not_bring_a_transfer_to_its_knees() {
    for (congestion, seconds_max) in [
        (CongestionAlgorithm::Cubic, 3),
        (CongestionAlgorithm::NewReno, 5),
        (CongestionAlgorithm::Bbr, 1),
    ] {
        let config = Config {
            receive_buffer_bytes: 1 << 20,
            congestion,
            ..Config::default()
        };
        let outcome = download(
            2_000_000,
            Faults {
                loss_percent: 1,
                ..clean()
            },
            config,
        );
        assert_eq!(outcome.closed, [Some(CloseReason::Finished); 2]);
        assert!(
            outcome.elapsed < Duration::from_secs(seconds_max),
            "{congestion}: {:?}",
            outcome.elapsed
        );
    }
}

/// What is sent again is about what was lost, and nothing has to wait for the retransmission timer.
///
/// Covers: RFC 8985 §6.2, RFC 9937 §6
#[test]
fn a_lossy_path_costs_no_timeouts_and_few_bytes() {
    let config = Config {
        receive_buffer_bytes: 4 << 20,
        reassembly_fragments_max: 1000,
        ..Config::default()
    };
    for (loss_percent, merged_max) in [(1, 1), (1, 8), (2, 1)] {
        let faults = Faults {
            loss_percent,
            merged_max,
            ..clean()
        };
        let len = 5_000_000;
        let outcome = download(len, faults, config);
        assert_eq!(outcome.timeouts, [0, 0]);
        let again = outcome.retransmitted_bytes[1];
        let expected = len * loss_percent / 100;
        assert!(
            again > 0 && again < 2 * expected + 100_000,
            "{loss_percent} % of loss: {again} bytes again"
        );
    }
}

/// Packets that overtake each other are no loss, once it is known that they do.
///
/// Covers: RFC 8985 §6.2 (step 3)
#[test]
fn a_path_that_reorders_costs_next_to_nothing() {
    let config = Config {
        receive_buffer_bytes: 4 << 20,
        reassembly_fragments_max: 1000,
        ..Config::default()
    };
    let faults = Faults {
        delay_us: 9_900..10_100,
        ..clean()
    };
    let outcome = download(5_000_000, faults, config);
    assert_eq!(outcome.timeouts, [0, 0]);
    assert!(
        outcome.retransmitted_bytes[1] < 50_000,
        "{} bytes again",
        outcome.retransmitted_bytes[1]
    );
}
