//! What a connection costs.

use crate::script::Script;
use tcp::{Connection, TimeWait};

#[test]
fn a_connection_is_small() {
    assert!(
        size_of::<Connection>() <= 1856,
        "{}",
        size_of::<Connection>()
    );
    assert!(size_of::<TimeWait>() <= 56, "{}", size_of::<TimeWait>());
}

/// Covers: RFC 5681 §3.2
#[test]
fn crumbs_of_acknowledgments_do_not_pile_up_records() {
    // A peer that acknowledges byte by byte while in recovery gets one retransmission for each
    // segment.
    let mut script = Script::established();
    script.trace(
        "
        virtual 10000
        > PSH ACK 1..10001 ack 1
        < ACK 1 ack 1 win 10000
        < ACK 1 ack 1 win 10000
        < ACK 1 ack 1 win 10000
        > ACK 1..1001 ack 1
        ",
    );
    for ack in 2..=1000 {
        script.trace(&format!("< ACK 1 ack {ack} win 10000"));
    }
    script.trace("< ACK 1 ack 1001 win 10000\n > ACK 1001..2001 ack 1");
}
