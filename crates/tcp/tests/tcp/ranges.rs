//! Retransmissions as SACK demands them: holes become SENDs of the original ranges, split and
//! merged.

use crate::sack::established;

/// Covers: RFC 6675 §5, RFC 8985 §6.2 (step 5), IO-TCP §3.5
#[test]
fn each_hole_is_a_send_of_its_own_ranges() {
    let mut script = established();
    script.trace(
        "
        write 300; virtual 9700
        > PSH ACK 1..10001 ack 1 real 300 file 9700
        +10ms
        < ACK 1 ack 1 win 60000 sack 1001..4001
        > ACK 1..1001 ack 1 real 300 file 700
        < ACK 1 ack 1 win 60000 sack 5001..10001 1001..4001
        > ACK 4001..5001 ack 1 file 1000
        +10ms
        < ACK 1 ack 10001 win 60000
        ! Released(7 10000), Drained
        +10s
        ",
    );
}

/// Covers: RFC 6675 §5, RFC 9937 §6, IO-TCP §3.5
#[test]
fn a_hole_across_several_sends_is_one() {
    let mut script = established();
    script.trace(
        "
        virtual 1000
        > PSH ACK 1..1001 ack 1 file 1000
        write 400
        > PSH ACK 1001..1401 ack 1 real 400
        virtual 600
        > PSH ACK 1401..2001 ack 1 file 600
        virtual 5000
        > PSH ACK 2001..7001 ack 1 file 5000
        +10ms
        < ACK 1 ack 1 win 60000 sack 2001..7001
        > ACK 1..2001 ack 1 file 1000 real 400 file 600
        +10ms
        < ACK 1 ack 7001 win 60000
        ! Released(7 1000), Released(7 2000), Released(7 7000), Drained
        ",
    );
}

/// Covers: RFC 2018 §3, RFC 6675 §5
#[test]
fn a_hole_begins_and_ends_where_the_peer_says() {
    let mut script = established();
    script.trace(
        "
        write 500; virtual 6500
        > PSH ACK 1..7001 ack 1 real 500 file 6500
        +10ms
        < ACK 1 ack 301 win 60000 sack 1501..7001
        > ACK 301..1501 ack 1 real 200 file 1000
        +10ms
        < ACK 1 ack 7001 win 60000
        ! Released(7 7000), Drained
        ",
    );
}

/// The peer may still drop what it has acknowledged selectively, so it must be kept.
///
/// Covers: RFC 2018 §8
#[test]
fn a_selective_acknowledgment_releases_nothing() {
    let mut script = established();
    script.trace(
        "
        virtual 3000; virtual 3000
        > PSH ACK 1..6001 ack 1 file 3000 file 3000
        +10ms
        < ACK 1 ack 1 win 60000 sack 3001..6001
        > ACK 1..3001 ack 1 file 3000
        !
        +10ms
        < ACK 1 ack 6001 win 60000
        ! Released(7 3000), Released(7 6000), Drained
        ",
    );
}

/// Covers: IO-TCP §3.5, RFC 8985 §6.2 (step 5)
#[test]
fn a_hole_that_the_nic_stack_is_reading_again_is_neither_late_nor_lost() {
    let mut script = established();
    script.trace(
        "
        hold
        virtual 2000
        > PSH ACK 1..2001 ack 1
        virtual 5000
        > PSH ACK 2001..7001 ack 1
        depart; depart
        +10ms
        < ACK 1 ack 1 win 60000 sack 2001..7001
        > ACK 1..2001 ack 1 file 2000
        +5s
        depart
        +10ms
        < ACK 1 ack 7001 win 60000
        ! Released(7 2000), Released(7 7000), Drained
        +10s
        ",
    );
    assert!(script.tcp().smoothed_rtt() < Some(std::time::Duration::from_millis(15)));
}

/// Covers: RFC 8985 §7.3, RFC 9293 §3.6
#[test]
fn a_fin_alone_is_probed_like_any_tail() {
    let mut script = established();
    script.trace(
        "
        virtual 3000; shutdown
        > FIN PSH ACK 1..3001 ack 1
        +10ms
        < ACK 1 ack 3001 win 60000
        ! Released(7 3000), Drained
        # Twice SRTT and what a receiver may delay a lone segment, but no later than the RTO.
        +209ms
        +1ms
        > FIN ACK 3001 ack 1
        < ACK 1 ack 3002 win 60000
        = FinWait2
        ",
    );
}

/// Covers: RFC 6675 §5, RFC 9293 §3.10.4
#[test]
fn a_fin_that_has_arrived_is_not_repeated_with_the_text_before_it() {
    let mut script = established();
    script.trace(
        "
        virtual 5000; shutdown
        > FIN PSH ACK 1..5001 ack 1
        +10ms
        < ACK 1 ack 1 win 60000 sack 1001..5002
        > ACK 1..1001 ack 1 file 1000
        +10ms
        < ACK 1 ack 5002 win 60000
        = FinWait2
        ! Released(7 5000), Drained
        ",
    );
}

/// Covers: RFC 2018 §3, RFC 2883 §4, RFC 5961 §5.2
#[test]
fn blocks_of_what_was_never_sent_or_turned_around_bring_nothing_back() {
    let mut script = established();
    script.trace(
        "
        virtual 5000
        > PSH ACK 1..5001 ack 1
        +1ms
        < ACK 1 ack 1 win 60000 sack 5001..9001
        < ACK 1 ack 1 win 60000 sack 4001..1001
        < ACK 1 ack 1 win 60000 sack 3000000001..3000001001
        +9ms
        < ACK 1 ack 5001 win 60000
        ! Released(7 5000), Drained
        +10s
        ",
    );
}
