//! NIC processes that die a thousand times where one host drives several NIC stacks, of one or more
//! workers each: no connection is lost, every byte is right, and connections go on elsewhere.

mod survival;

use sim::{nic_deaths_planned, nic_stacks};
use survival::survive;

/// Deaths to be survived, with roots that are copies of each other, and with roots of their own.
const DEATHS: u64 = 1_000;

/// Not the seeds that are tried with everything else.
const SEED_FIRST: u64 = 3_000_000;

fn survived_with(replicas: bool) -> u64 {
    let seeds = (SEED_FIRST..).filter(|&seed| {
        let (count, are_replicas) = nic_stacks(seed);
        count > 1 && are_replicas == replicas && nic_deaths_planned(seed) > 1
    });
    survive(seeds, DEATHS, 5).moved
}

#[test]
fn no_connection_is_lost_whenever_replicas_die() {
    let moved = survived_with(true);
    assert!(moved >= DEATHS / 5, "{moved}");
}

#[test]
fn no_connection_is_lost_whenever_nic_stacks_with_roots_of_their_own_die() {
    let moved = survived_with(false);
    assert!(moved >= DEATHS / 5, "{moved}");
}
