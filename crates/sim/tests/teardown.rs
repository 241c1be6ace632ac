//! NIC stacks run the end of connections, and die meanwhile: every byte and every end is right, and
//! nothing is left of any connection.

use sim::{NicCrashStats, Options, TeardownCounters, replay_command_with_teardown, run};

/// Not the seeds that are tried with everything else.
const SEED_FIRST: u64 = 8_000_000;

fn try_seeds(count: u64) -> (TeardownCounters, NicCrashStats) {
    let options = Options {
        teardown: true,
        ..Options::default()
    };
    let (mut teardown, mut deaths) = (TeardownCounters::default(), NicCrashStats::default());
    let mut complaints = Vec::new();
    for seed in SEED_FIRST..SEED_FIRST + count {
        let report = run(seed, &options);
        if let Some(violation) = &report.violation {
            let replay = replay_command_with_teardown(seed);
            complaints.push(format!(
                "seed {seed}: {violation}\n    replay it with: {replay}"
            ));
        }
        teardown += report.teardown;
        deaths += report.nic_deaths;
    }
    println!("{teardown:?} {deaths:?}");
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    assert_eq!(
        teardown.parts,
        teardown.finished + teardown.broken + teardown.taken_back,
        "each comes to one end"
    );
    (teardown, deaths)
}

#[test]
fn every_end_is_right_on_either_side_of_the_split() {
    let (teardown, deaths) = try_seeds(200);
    assert!(teardown.parts >= 200, "{teardown:?}");
    assert!(teardown.finished >= 100, "{teardown:?}");
    assert!(teardown.repeated >= 3, "{teardown:?}");
    assert!((60..140).contains(&teardown.steered), "{teardown:?}");
    assert!(teardown.frames_steered >= 50, "{teardown:?}");
    assert!(deaths.all >= 50, "{deaths:?}");
}

#[test]
#[ignore = "long: 2,000 seeds"]
fn every_end_is_right_on_either_side_of_the_split_for_two_thousand_seeds() {
    let (teardown, deaths) = try_seeds(2_000);
    assert!(teardown.parts >= 2_000, "{teardown:?}");
    assert!(teardown.refused >= 10, "{teardown:?}");
    assert!(teardown.repeated >= 100, "{teardown:?}");
    assert!(deaths.all >= 500, "{deaths:?}");
}

#[test]
fn without_the_switch_nothing_is_given_away() {
    for seed in SEED_FIRST..SEED_FIRST + 5 {
        let report = run(seed, &Options::default());
        assert_eq!(report.teardown, TeardownCounters::default());
    }
}
