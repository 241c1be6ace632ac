//! Two applications and a network between them, made up at random.

use std::time::Duration;

use tcp::{Config, CongestionAlgorithm, EcnPolicy, Limits};

use crate::network::{Chunk, Faults, Outcome, Plan, Random, World};

/// Runs one to its end. Each application sends up to about three times `bytes_max`.
pub(crate) fn run(mut random: Random, bytes_max: u64, interference_percent: u64) -> Outcome {
    let faults = Faults {
        interference_percent,
        ..random_faults(&mut random)
    };
    run_over(faults, random, bytes_max)
}

/// The same, with applications that set socket options each so many times of a hundred that they
/// look at their connection.
pub(crate) fn run_with_options(
    mut random: Random,
    bytes_max: u64,
    options_percent: u64,
) -> Outcome {
    let faults = Faults {
        options_percent,
        ..random_faults(&mut random)
    };
    run_over(faults, random, bytes_max)
}

fn run_over(faults: Faults, mut random: Random, bytes_max: u64) -> Outcome {
    let plans = [
        random_plan(&mut random, bytes_max),
        random_plan(&mut random, bytes_max),
    ];
    let both_open = random.percent(15);
    World::new(random, faults, plans, both_open).run()
}

fn random_plan(random: &mut Random, bytes_max: u64) -> Plan {
    let mut chunks = Vec::new();
    for _ in 0..random.within(0..12) {
        let len = match random.within(0..4) {
            0 => random.within(0..4),
            1 => random.within(1..300),
            _ => random.within(1..bytes_max / 4),
        };
        chunks.push(if random.percent(50) {
            Chunk::Real(len as usize)
        } else {
            Chunk::Virtual {
                object: random.next() as u32,
                offset: random.next() >> 20,
                len,
            }
        });
    }
    let mss = random.pick(&[100, 536, 1000, 1460, 8960]);
    let config = Config {
        mss,
        receive_buffer_bytes: random.pick(&[1500, 5000, 40_000, 200_000, 1 << 20]),
        receive_buffer_bytes_max: random.pick(&[0, 1 << 20]),
        nodelay: random.percent(50),
        send_buffer_bytes: random.pick(&[1000, 20_000, 64 << 10]),
        extents_max: random.pick(&[1, 3, 256]),
        reassembly_fragments_max: random.pick(&[0, 2, 64]),
        window_scaling: random.percent(70),
        timestamps: random.percent(70),
        ecn: random.pick(&[EcnPolicy::Off, EcnPolicy::Accept, EcnPolicy::Offer]),
        congestion: random.pick(&CongestionAlgorithm::ALL),
        pace: random.percent(30),
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
            direct_bytes_max: random.pick(&[0, 3000, 65_536]),
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
        mark_percent: random.pick(&[0, 0, 2, 20]),
        delay_us: random.pick(&[50..51, 50..300, 10_000..10_100, 1_000..60_000]),
        read_us: random.pick(&[1..2, 10..500, 1_000..90_000, 1..900_000]),
        report_us: random.pick(&[0..1, 5..100, 1..400_000]),
        merged_max: random.pick(&[1, 1, 8]),
        interference_percent: 0,
        options_percent: 0,
    }
}
