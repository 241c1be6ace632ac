//! Many deaths of NIC processes, survived.

use sim::{ControlLinkCounters, NicDeaths, Options, replay_command, run};

/// Runs these seeds until so many NIC processes have died: no promise is broken, and no connection lost. At least
/// `each_min` of the deaths came at each of the moments that matter.
pub(crate) fn survive(
    mut seeds: impl Iterator<Item = u64>,
    deaths_min: u64,
    each_min: u64,
) -> (NicDeaths, ControlLinkCounters) {
    let mut deaths = NicDeaths::default();
    let mut link = ControlLinkCounters::default();
    while deaths.all < deaths_min {
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
        assert!(moment >= each_min, "too few to mean anything: {deaths:?}");
    }
    (deaths, link)
}
