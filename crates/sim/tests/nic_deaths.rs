//! NIC processes that die a thousand times, whatever they are at: no connection is lost, and every
//! byte is right.

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
    let survived = survive(seeds, DEATHS, 20);
    // Some that spoke TLS went on with records that another NIC process had begun to send, or had
    // sealed and not said so to a host that was listening.
    let tls = survived.tls;
    assert!(tls.handshakes >= 200 && tls.resumed >= 20, "{tls:?}");
    assert!(tls.records_resealed >= 50, "{tls:?}");
    assert!(survived.deaths.unread >= 20, "{survived:?}");
}
