//! NIC processes that die a thousand times, whatever they are at: no connection is lost, and every byte is right.

use sim::{NicDeaths, Options, nic_deaths_planned, replay_command, run};

/// Deaths to be survived.
const DEATHS: u64 = 1_500;

/// Not the seeds that are tried with everything else.
const SEED_FIRST: u64 = 1_000_000;

#[test]
fn no_connection_is_lost_whenever_nic_processes_die() {
    let mut deaths = NicDeaths::default();
    let mut seeds = (SEED_FIRST..).filter(|&seed| nic_deaths_planned(seed) > 1);
    while deaths.all < DEATHS {
        let seed = seeds.next().unwrap();
        let report = run(seed, &Options::default());
        let replay = replay_command(seed);
        assert_eq!(
            report.violation, None,
            "seed {seed}; replay it with: {replay}"
        );
        assert_eq!(report.connections_lost, 0, "replay it with: {replay}");
        deaths += report.nic_deaths;
    }
    println!("{deaths:?}");
    // They came at all the moments that matter.
    let NicDeaths {
        all: _,
        opening,
        sending,
        amid_send,
        holding,
        retaining,
        replaying,
    } = deaths;
    for moment in [opening, sending, amid_send, holding, retaining, replaying] {
        assert!(moment >= 20, "too few to mean anything: {deaths:?}");
    }
}
