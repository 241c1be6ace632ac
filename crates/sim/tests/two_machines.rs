//! NIC processes of another machine that die a thousand times, over a control link that loses, repeats and reorders one
//! frame in a hundred each: no connection is lost, and every byte is right.

use sim::{
    ControlLinkCounters, NicDeaths, Options, has_two_machines, nic_deaths_planned, replay_command,
    run,
};

/// Deaths to be survived.
const DEATHS: u64 = 1_000;

/// Not the seeds that are tried with everything else.
const SEED_FIRST: u64 = 2_000_000;

#[test]
fn no_connection_is_lost_over_a_bad_control_link_whenever_nic_processes_die() {
    let mut deaths = NicDeaths::default();
    let mut link = ControlLinkCounters::default();
    let mut seeds =
        (SEED_FIRST..).filter(|&seed| has_two_machines(seed) && nic_deaths_planned(seed) > 1);
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
        link += report.control_link;
    }
    println!("{deaths:?}\n{link:?}");
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
        assert!(moment >= 10, "too few to mean anything: {deaths:?}");
    }
    // And the link was as bad as it should be; each death took a session with it.
    assert!(link.sessions >= deaths.all, "{link:?}");
    assert!(link.frames_lost * 100 >= link.frames / 2, "{link:?}");
    assert!(link.parcels_repeated >= 500, "{link:?}");
    assert!(link.parcels_duplicate >= 100, "{link:?}");
}
