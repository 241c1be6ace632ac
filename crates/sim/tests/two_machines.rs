//! NIC processes of another machine that die a thousand times, over a control link that loses,
//! repeats and reorders one frame in a hundred each: no connection is lost, and every byte is
//! right.

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
    assert!(
        tls.handshakes >= 200 && tls.records_resealed >= 100,
        "{tls:?}"
    );
    // Only where the link falls silent: the simulation sees to that.
    assert!(tls.unproven * 100 <= tls.handshakes, "{tls:?}");
    // Tags had been said, and the relay had not read them.
    assert!(deaths.unread >= 10, "{deaths:?}");
    // The link was as bad as it should be; each death took a session with it.
    assert!(link.sessions >= deaths.all, "{link:?}");
    assert!(link.frames_lost * 100 >= link.frames / 2, "{link:?}");
    assert!(link.parcels_repeated >= 500, "{link:?}");
    assert!(link.parcels_duplicate >= 100, "{link:?}");
}
