//! NIC processes that die while they seal: downloads go on, and no byte of the stream is sent with two contents.

mod survival;

use sim::{has_tls, nic_deaths_planned};
use survival::survive;

/// Deaths to be survived.
const DEATHS: u64 = 500;

/// Not the seeds that are tried with everything else.
const SEED_FIRST: u64 = 3_000_000;

#[test]
fn no_connection_is_lost_whenever_nic_processes_die_that_seal() {
    let seeds = (SEED_FIRST..).filter(|&seed| has_tls(seed) && nic_deaths_planned(seed) > 1);
    survive(seeds, DEATHS, 5);
}

#[test]
fn a_third_of_all_seeds_speak_tls() {
    let spoken = (0..2_400).filter(|&seed| has_tls(seed)).count();
    assert!((600..1_000).contains(&spoken), "{spoken}");
}
