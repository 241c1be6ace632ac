//! NIC processes of another machine that die a thousand times, over a control link that loses, repeats and reorders one
//! frame in a hundred each: no connection is lost, and every byte is right.

mod survival;

use sim::{has_two_machines, nic_deaths_planned};
use survival::{Survived, survive};

/// Deaths to be survived.
const DEATHS: u64 = 1_000;

/// Not the seeds that are tried with everything else.
const SEED_FIRST: u64 = 2_000_000;

#[test]
fn no_connection_is_lost_over_a_bad_control_link_whenever_nic_processes_die() {
    let seeds =
        (SEED_FIRST..).filter(|&seed| has_two_machines(seed) && nic_deaths_planned(seed) > 1);
    let survived = survive(seeds, DEATHS, 10);
    let Survived {
        deaths, link, tls, ..
    } = survived;
    // Only those that spoke TLS and had records in flight whose tags were lost with the session.
    assert!(
        tls.handshakes >= 200 && tls.records_resealed >= 20,
        "{tls:?}"
    );
    assert!((1..=tls.handshakes / 4).contains(&tls.unproven), "{tls:?}");
    // The link was as bad as it should be; each death took a session with it.
    assert!(link.sessions >= deaths.all, "{link:?}");
    assert!(link.frames_lost * 100 >= link.frames / 2, "{link:?}");
    assert!(link.parcels_repeated >= 500, "{link:?}");
    assert!(link.parcels_duplicate >= 100, "{link:?}");
}
