//! Pairs of connections over bad networks. A failure prints the seed; `TCP_SEED=n cargo test pairs` replays it,
//! `TCP_TIMES=100` tries more seeds.

use std::time::Duration;

use crate::network::{Chunk, Faults, Outcome, Plan, Random, World};
use tcp::{CloseReason, Config, Limits};

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

fn random_plan(random: &mut Random, bytes_max: u64) -> Plan {
    let mut chunks = Vec::new();
    for _ in 0..random.within(0..12) {
        let len = match random.within(0..4) {
            0 => random.within(0..4),
            1 => random.within(1..300),
            _ => random.within(1..bytes_max / 4),
        };
        chunks.push(match random.percent(50) {
            true => Chunk::Real(len as usize),
            false => Chunk::Virtual {
                object: random.next() as u32,
                offset: random.next() >> 20,
                len,
            },
        });
    }
    let mss = random.pick(&[100, 536, 1000, 1460, 8960]);
    let config = Config {
        mss,
        receive_buffer_bytes: random.pick(&[1500, 5000, 40_000, 200_000, 1 << 20]),
        send_buffer_bytes: random.pick(&[1000, 20_000, 64 << 10]),
        extents_max: random.pick(&[1, 3, 256]),
        reassembly_fragments_max: random.pick(&[0, 2, 64]),
        window_scaling: random.percent(70),
        timestamps: random.percent(70),
        rto_max: Duration::from_secs(4),
        syn_retries: 40,
        retries: 60,
        fin_wait_2: None,
        time_wait: Duration::from_secs(1000),
        ..Config::default()
    };
    Plan {
        config,
        limits: Limits {
            bytes_max: random.pick(&[700, 65_536, 1 << 20]),
            pieces_max: random.pick(&[1, 2, 32]),
            real_bytes_max: random.pick(&[500, 4096]),
        },
        isn: random.pick(&[0, 77, u32::MAX, u32::MAX - 3000, 1 << 31]),
        chunks,
        think_us: random.pick(&[500..2_000, 100..50_000, 1000..400_000]),
        read_max: random.pick(&[100, 3000, 100_000]).max(bytes_max / 50),
    }
}

fn random_faults(random: &mut Random) -> Faults {
    Faults {
        loss_percent: random.pick(&[0, 0, 1, 5, 20]),
        duplicate_percent: random.pick(&[0, 2, 20]),
        delay_us: random.pick(&[50..51, 50..300, 10_000..10_100, 1_000..60_000]),
        read_us: random.pick(&[1..2, 10..500, 1_000..90_000, 1..900_000]),
        report_us: random.pick(&[0..1, 5..100, 1..400_000]),
        merged_max: random.pick(&[1, 1, 8]),
    }
}

fn run_random(seed: u64, bytes_max: u64) -> Outcome {
    let mut random = Random(seed);
    let faults = random_faults(&mut random);
    let plans = [
        random_plan(&mut random, bytes_max),
        random_plan(&mut random, bytes_max),
    ];
    let both_open = random.percent(15);
    World::new(seed, faults, plans, both_open).run()
}

/// Covers: RFC 9293 §2.2, RFC 9293 §3.8
#[test]
fn every_byte_arrives_whatever_the_network_does() {
    for_seeds(400, |seed| {
        let outcome = run_random(seed, 40_000);
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
        let outcome = run_random(seed + 10_000, 800_000);
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
    World::new(1, faults, [client, server], false).run()
}

fn clean() -> Faults {
    Faults {
        loss_percent: 0,
        duplicate_percent: 0,
        delay_us: 10_000..10_001,
        read_us: 100..101,
        report_us: 5..6,
        merged_max: 1,
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
    let config = Config {
        receive_buffer_bytes: 1 << 20,
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
        outcome.elapsed < Duration::from_secs(20),
        "{:?}",
        outcome.elapsed
    );
}
