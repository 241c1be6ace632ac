//! Many deaths of NIC processes, survived.

use sim::{
    ControlLinkCounters, DivisionCounters, NicCrashStats, Options, QuicCounters, TlsCounters,
    replay_command, run,
};

/// What was survived.
#[derive(Debug, Default)]
pub(crate) struct Survived {
    pub(crate) deaths: NicCrashStats,
    pub(crate) link: ControlLinkCounters,
    /// How often connections went to another NIC stack.
    pub(crate) moved: u64,
    /// What a load that rises and falls has led to.
    pub(crate) division: DivisionCounters,
    /// Connections that speak TLS.
    pub(crate) tls: TlsCounters,
    /// Connections that speak QUIC.
    pub(crate) quic: QuicCounters,
}

/// Runs these seeds until so many NIC processes have died: no promise is broken, and no connection
/// lost. At least `each_min` of the deaths came at each of the moments that matter.
pub(crate) fn survive(
    mut seeds: impl Iterator<Item = u64>,
    deaths_min: u64,
    each_min: u64,
) -> Survived {
    let mut survived = Survived::default();
    while survived.deaths.all < deaths_min {
        let seed = seeds.next().unwrap();
        let report = run(seed, &Options::default());
        let replay = replay_command(seed);
        assert_eq!(
            report.violation, None,
            "seed {seed}; replay it with: {replay}"
        );
        assert_eq!(report.connections_lost, 0, "replay it with: {replay}");
        survived.deaths += report.nic_deaths;
        survived.link += report.control_link;
        survived.moved += report.connections_moved;
        survived.division.add(&report.division);
        survived.tls += report.tls;
        survived.quic += report.quic;
    }
    println!("{survived:?}");
    let NicCrashStats {
        all: _,
        opening,
        sending,
        amid_send,
        holding,
        retaining,
        replaying,
        unread: _,
    } = survived.deaths;
    for moment in [opening, sending, amid_send, holding, retaining, replaying] {
        assert!(moment >= each_min, "too few to mean anything: {survived:?}");
    }
    survived
}
