//! Loads that rise and fall: workers come into use and go out of it, connections follow them, and
//! NIC processes die meanwhile. No connection is lost, and every byte is right.

mod survival;

use sim::{has_loads, has_quic, has_tls, nic_deaths_planned};
use survival::survive;

/// Deaths to be survived.
const DEATHS: u64 = 300;

/// Not the seeds that are tried with everything else.
const SEED_FIRST: u64 = 3_000_000;

#[test]
fn no_connection_is_lost_when_it_goes_to_another_worker() {
    let seeds = (SEED_FIRST..).filter(|&seed| has_loads(seed) && nic_deaths_planned(seed) > 0);
    let survived = survive(seeds, DEATHS, 5);
    let division = survived.division;
    assert!(division.workers_added >= 400, "{division:?}");
    assert!(division.workers_removed >= 200, "{division:?}");
    assert!(division.rebalanced >= 200, "{division:?}");
    // Files were replaced, or could not be opened once more.
    assert!(division.failed >= 5, "{division:?}");
}

#[test]
fn keys_and_records_go_with_connections() {
    let seeds =
        (2 * SEED_FIRST..).filter(|&seed| has_loads(seed) && has_tls(seed) && !has_quic(seed));
    let survived = survive(
        seeds.filter(|&seed| nic_deaths_planned(seed) > 0),
        DEATHS,
        1,
    );
    assert!(survived.division.rebalanced >= 100, "{survived:?}");
    assert!(survived.tls.handshakes >= 50, "{survived:?}");
}
