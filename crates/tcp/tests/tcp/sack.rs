//! Selective acknowledgments as a receiver of data makes them (RFC 2018, RFC 2883).

use crate::script::{Script, config};
use tcp::Config;

/// A peer that permits SACK.
pub(crate) fn established() -> Script {
    established_with(config(), "")
}

pub(crate) fn established_with(config: Config, options: &str) -> Script {
    let mut script = Script::listen(config);
    script.trace(&format!(
        "
        < SYN 0 win 10000 mss 1000 sackOK {options}
        > SYN ACK 0 ack 1 sackOK
        +10ms
        < ACK 1 ack 1 win 60000 {options}
        ! Connected
        "
    ));
    script
}

/// Covers: RFC 2018 §2
#[test]
fn sack_is_agreed_in_the_syns() {
    let mut script = Script::connect(config());
    script.trace("> SYN 0 ack 0 sackOK");
    let mut script = Script::listen(config());
    script.trace("< SYN 0 win 10000 mss 1000\n > SYN ACK 0 ack 1 sackOK -");
    let mut script = Script::listen(Config {
        sack: false,
        ..config()
    });
    script.trace("< SYN 0 win 10000 mss 1000 sackOK\n > SYN ACK 0 ack 1 sackOK -");
}

/// Covers: RFC 2018 §2
#[test]
fn without_agreement_no_blocks_are_sent() {
    let mut script = Script::established();
    script.trace("< ACK 1001..2001 ack 1 win 10000\n > ACK 1 ack 1 sack -");
}

/// Covers: RFC 2018 §4
#[test]
fn the_block_that_has_just_grown_comes_first_then_the_others_by_recency() {
    let mut script = established();
    script.trace(
        "
        < ACK 1001..2001 ack 1 win 60000
        > ACK 1 ack 1 sack 1001..2001
        < ACK 3001..4001 ack 1 win 60000
        > ACK 1 ack 1 sack 3001..4001 1001..2001
        < ACK 5001..6001 ack 1 win 60000
        > ACK 1 ack 1 sack 5001..6001 3001..4001 1001..2001
        < ACK 4001..4501 ack 1 win 60000
        > ACK 1 ack 1 sack 3001..4501 5001..6001 1001..2001
        # The first hole is filled.
        < ACK 1..1001 ack 1 win 60000
        > ACK 1 ack 2001 sack 3001..4501 5001..6001
        < ACK 2001..3001 ack 1 win 60000
        > ACK 1 ack 4501 sack 5001..6001
        < ACK 4501..5001 ack 1 win 60000
        > ACK 1 ack 6001 sack -
        ",
    );
}

/// Covers: RFC 2018 §3, RFC 2018 §4
#[test]
fn four_blocks_fit_and_three_beside_timestamps() {
    let arrivals = |ts: &str, fourth: &str, fifth: &str| {
        format!(
            "
            < ACK 1001..1101 ack 1 win 60000 {ts}
            > ACK 1 ack 1 sack 1001..1101
            < ACK 2001..2101 ack 1 win 60000 {ts}
            > ACK 1 ack 1 sack 2001..2101 1001..1101
            < ACK 3001..3101 ack 1 win 60000 {ts}
            > ACK 1 ack 1 sack 3001..3101 2001..2101 1001..1101
            < ACK 4001..4101 ack 1 win 60000 {ts}
            > ACK 1 ack 1 sack 4001..4101 3001..3101 2001..2101 {fourth}
            < ACK 5001..5101 ack 1 win 60000 {ts}
            > ACK 1 ack 1 sack 5001..5101 4001..4101 3001..3101 {fifth}
            "
        )
    };
    established().trace(&arrivals("", "1001..1101", "2001..2101"));
    let timestamps = Config {
        timestamps: true,
        ..config()
    };
    let mut script = established_with(timestamps, "ts 5 0");
    script.trace(&arrivals("ts 5 0", "", ""));
}

/// Covers: RFC 2883 §4
#[test]
fn what_comes_twice_below_the_acknowledgment_is_reported_once() {
    let mut script = established();
    script.trace(
        "
        < ACK 1..2001 ack 1 win 60000
        > ACK 1 ack 2001 sack -
        < ACK 501..1501 ack 1 win 60000
        > ACK 1 ack 2001 sack 501..1501
        < ACK 4001..5001 ack 1 win 60000
        > ACK 1 ack 2001 sack 4001..5001
        < ACK 1..1001 ack 1 win 60000
        > ACK 1 ack 2001 sack 1..1001 4001..5001
        ",
    );
}

/// Covers: RFC 2883 §4
#[test]
fn a_segment_that_is_partly_new_reports_the_part_that_is_not() {
    let mut script = established();
    script.trace(
        "
        < ACK 1..2001 ack 1 win 60000
        > ACK 1 ack 2001
        < ACK 1001..4001 ack 1 win 60000
        > ACK 1 ack 4001 sack 1001..2001
        ",
    );
}

/// Covers: RFC 2883 §4
#[test]
fn a_duplicate_behind_a_hole_is_followed_by_the_block_that_holds_it() {
    let mut script = established();
    script.trace(
        "
        < ACK 1001..4001 ack 1 win 60000
        > ACK 1 ack 1 sack 1001..4001
        < ACK 6001..7001 ack 1 win 60000
        > ACK 1 ack 1 sack 6001..7001 1001..4001
        < ACK 2001..3001 ack 1 win 60000
        > ACK 1 ack 1 sack 2001..3001 1001..4001 6001..7001
        ",
    );
}

/// Covers: RFC 2018 §4, RFC 6691 §2
#[test]
fn data_carries_blocks_and_leaves_room_for_them() {
    let mut script = established();
    script.trace(
        "
        < ACK 1001..2001 ack 1 win 60000
        > ACK 1 ack 1 sack 1001..2001
        ",
    );
    let (now, limits) = (script.now, script.limits);
    let connection = script.tcp();
    connection.write_virtual(7, 0, 20_000);
    let transmit = connection.poll_transmit(now, &limits).expect("data");
    assert_eq!(transmit.header.options.sack_bytes(), 12);
    assert_eq!(transmit.mss, 988);
    // Full packets, as many as the window of 10,000 allows.
    assert_eq!(transmit.range, 0..9880);
}
