//! NIC processes that die while they seal: downloads go on, each record is sealed once, and no
//! connection is reset.

mod survival;

use sim::{has_tls, has_two_machines, nic_deaths_planned};
use survival::survive;

/// Deaths to be survived.
const DEATHS: u64 = 500;

/// Not the seeds that are tried with everything else.
const SEED_FIRST: u64 = 4_000_000;

#[test]
fn no_connection_is_lost_whenever_nic_processes_die_that_seal() {
    let seeds = (SEED_FIRST..)
        .filter(|&seed| has_tls(seed) && !has_two_machines(seed) && nic_deaths_planned(seed) > 1);
    let survived = survive(seeds, DEATHS, 5);
    let tls = survived.tls;
    assert_eq!(tls.unproven, 0);
    assert!(tls.handshakes >= 500 && tls.resumed >= 100, "{tls:?}");
    assert!(tls.key_updates >= 100, "{tls:?}");
    // What others had begun to send went on, or was not sent because it had become something else.
    assert!(tls.records_resealed >= 200, "{tls:?}");
    assert!(tls.seal_mismatches >= 20, "{tls:?}");
    // Tags had been said, and the host had not read them.
    assert!(survived.deaths.unread >= 50, "{survived:?}");
}

#[test]
fn a_third_of_all_seeds_speak_tls() {
    let spoken = (0..2_400).filter(|&seed| has_tls(seed)).count();
    assert!((600..1_000).contains(&spoken), "{spoken}");
}
