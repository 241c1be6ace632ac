//! NIC processes that die a thousand times, whatever they are at: no connection is lost, and every byte is right.

mod survival;

use sim::nic_deaths_planned;
use survival::survive;

/// Deaths to be survived.
const DEATHS: u64 = 1_500;

/// Not the seeds that are tried with everything else.
const SEED_FIRST: u64 = 1_000_000;

#[test]
fn no_connection_is_lost_whenever_nic_processes_die() {
    let seeds = (SEED_FIRST..).filter(|&seed| nic_deaths_planned(seed) > 1);
    survive(seeds, DEATHS, 20);
}
