//! NIC workers answer SYNs, and die meanwhile: every byte and every end is right, with SYNs steered
//! to workers by a map and with SYNs that the host hands on.

use sim::{NicCrashStats, Options, SetupCounters, replay_command_with_setup, run};

/// Not the seeds that are tried with everything else.
const SEED_FIRST: u64 = 9_000_000;

fn try_seeds(count: u64, teardown: bool) -> (SetupCounters, NicCrashStats) {
    let options = Options {
        setup: true,
        teardown,
        ..Options::default()
    };
    let (mut setup, mut deaths) = (SetupCounters::default(), NicCrashStats::default());
    let mut complaints = Vec::new();
    for seed in SEED_FIRST..SEED_FIRST + count {
        let report = run(seed, &options);
        if let Some(violation) = &report.violation {
            let replay = replay_command_with_setup(seed);
            let with = if teardown { " --teardown-offload" } else { "" };
            complaints.push(format!(
                "seed {seed}: {violation}\n    replay it with: {replay}{with}"
            ));
        }
        setup += report.setup;
        deaths += report.nic_deaths;
    }
    println!("{setup:?} {deaths:?}");
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    (setup, deaths)
}

#[test]
fn every_connection_is_right_on_whichever_side_its_syn_is_answered() {
    let (setup, deaths) = try_seeds(200, false);
    assert!(setup.connections >= 300, "{setup:?}");
    assert!(setup.syns_steered >= 100, "{setup:?}");
    assert!(setup.syns_handed_on >= 100, "{setup:?}");
    assert!(setup.syns_of_host >= 20, "{setup:?}");
    assert!(deaths.all >= 50, "{deaths:?}");
}

#[test]
#[ignore = "long: 2,000 seeds"]
fn every_connection_is_right_for_two_thousand_seeds_with_both_ends_offloaded() {
    let (setup, deaths) = try_seeds(2_000, true);
    assert!(setup.connections >= 3_000, "{setup:?}");
    assert!((400..1_000).contains(&setup.steered), "{setup:?}");
    assert!(deaths.all >= 500, "{deaths:?}");
}

#[test]
fn without_the_switch_the_host_answers_every_syn() {
    for seed in SEED_FIRST..SEED_FIRST + 5 {
        let setup = run(seed, &Options::default()).setup;
        assert!(setup.syns_of_host > 0);
        let of_host_alone = SetupCounters {
            syns_of_host: setup.syns_of_host,
            ..SetupCounters::default()
        };
        assert_eq!(setup, of_host_alone);
    }
}
