//! Scenarios in which clients speak HTTP/3 over QUIC, on the links and with the faults that those
//! of TCP have.

mod survival;

use sim::{has_quic, nic_deaths_planned};
use survival::survive;

/// Deaths to be survived.
const DEATHS: u64 = 500;

/// Not the seeds that are tried with everything else.
const SEED_FIRST: u64 = 6_000_000;

#[test]
fn no_quic_connection_is_lost_whenever_nic_processes_die() {
    let seeds = (SEED_FIRST..).filter(|&seed| has_quic(seed) && nic_deaths_planned(seed) > 1);
    let survived = survive(seeds, DEATHS, 0);
    let deaths = survived.deaths;
    let moments = [
        deaths.opening,
        deaths.sending,
        deaths.retaining,
        deaths.replaying,
    ];
    assert!(moments.iter().all(|count| *count >= 20), "{survived:?}");
    let quic = survived.quic;
    assert!(quic.connections >= 300 && quic.resumed >= 50, "{quic:?}");
    assert!(quic.early >= 10, "{quic:?}");
    assert!(quic.moved_over >= 10, "{quic:?}");
    assert!(quic.packets >= 10_000, "{quic:?}");
    assert!(quic.opened >= 1_000, "{quic:?}");
    assert!(quic.datagrams_steered >= 500, "{quic:?}");
    let [begun, returned] = [quic.receive_begun, quic.receive_returned];
    assert!(begun >= 100 && returned >= 40, "{quic:?}");
    // More than one for each connection: the next NIC stack, or an update.
    assert!(quic.keys >= 3 * quic.connections / 2, "{quic:?}");
}

#[test]
fn a_third_of_all_seeds_speak_quic() {
    let spoken = (0..2_400).filter(|&seed| has_quic(seed)).count();
    assert!((600..1_000).contains(&spoken), "{spoken}");
}
