//! The congestion window as a whole connection has it (RFC 5681, RFC 6928).

use crate::script::{Script, config};
use tcp::{Config, CongestionAlgorithm};

fn established(window: u32) -> Script {
    let mut script = Script::listen(Config {
        window_scaling: true,
        ..config()
    });
    script.trace(&format!(
        "
        < SYN 0 win 65535 mss 1000 ws 4
        > SYN ACK 0 ack 1
        +10ms
        < ACK 1 ack 1 win {}
        ",
        window >> 4
    ));
    script
}

/// Covers: RFC 5681 §4.1
#[test]
fn after_an_idle_rto_the_window_is_the_initial_one_again() {
    let mut script = established(1_000_000);
    script.trace(
        "
        virtual 30000
        > ACK 1..10001 ack 1
        +10ms
        < ACK 1 ack 10001 win 60000
        > PSH ACK 10001..30001 ack 1
        < ACK 1 ack 30001 win 60000
        +200ms
        virtual 20000
        > PSH ACK 30001..50001 ack 1
        < ACK 1 ack 50001 win 60000
        +1s
        virtual 20000
        > ACK 50001..60001 ack 1
        ",
    );
}

/// Covers: RFC 5681 §3.1, RFC 9438 §4.8
#[test]
fn another_algorithm_goes_on_from_the_window_there_is() {
    let mut script = established(1_000_000);
    script.trace(
        "
        virtual 1000000
        > ACK 1..10001 ack 1
        +10ms
        < ACK 1 ack 10001 win 60000
        > ACK 10001..30001 ack 1
        ",
    );
    let now = script.now;
    for algorithm in CongestionAlgorithm::ALL {
        script
            .connection
            .as_mut()
            .expect("established")
            .set_congestion(now, algorithm);
        assert_eq!(script.tcp().congestion(), algorithm);
        assert_eq!(script.tcp().congestion_window(), 20_000);
    }
}

/// Covers: RFC 6928 §2, RFC 5681 §3.1
#[test]
fn the_initial_window_is_ten_segments_and_doubles_each_round_trip() {
    let mut script = established(1_000_000);
    script.trace(
        "
        virtual 1000000
        > ACK 1..10001 ack 1
        +10ms
        < ACK 1 ack 10001 win 60000
        > ACK 10001..30001 ack 1
        +10ms
        < ACK 1 ack 20001 win 60000
        > ACK 30001..50001 ack 1
        < ACK 1 ack 30001 win 60000
        > ACK 50001..70001 ack 1
        ",
    );
    assert_eq!(script.tcp().congestion_window(), 40_000);
}

/// Covers: RFC 7661 §4.3
#[test]
fn a_window_that_is_not_used_does_not_grow() {
    let mut script = established(1_000_000);
    for round in 0..50 {
        let start = 1 + round * 100;
        script.trace(&format!(
            "
            write 100
            > PSH ACK {start}..{} ack 1
            < ACK 1 ack {} win 60000
            ",
            start + 100,
            start + 100
        ));
    }
    assert_eq!(script.tcp().congestion_window(), 10_000);
}

/// Covers: RFC 7661 §4.3
#[test]
fn a_window_that_the_peer_limits_does_not_grow() {
    let mut script = established(4_000);
    script.trace(
        "
        virtual 100000
        > ACK 1..4001 ack 1
        < ACK 1 ack 4001 win 250
        > ACK 4001..8001 ack 1
        < ACK 1 ack 8001 win 250
        > ACK 8001..12001 ack 1
        ",
    );
    assert_eq!(script.tcp().congestion_window(), 10_000);
}

/// Covers: RFC 5681 §3.1, RFC 3465 §2.1
#[test]
fn a_timeout_leaves_one_segment_and_slow_start_ends_at_half_of_what_was_in_flight() {
    let mut script = established(1_000_000);
    script.trace(
        "
        virtual 1000000
        > ACK 1..10001 ack 1
        +210ms
        > ACK 1..1001 ack 1
        ",
    );
    assert_eq!(script.tcp().congestion_window(), 1000);
    script.trace(
        "
        < ACK 1 ack 10001 win 60000
        > ACK 10001..13001 ack 1
        < ACK 1 ack 13001 win 60000
        > ACK 13001..18001 ack 1
        ",
    );
    assert_eq!(script.tcp().congestion_window(), 5000);
    // Congestion avoidance: one segment for a window of acknowledged bytes.
    script.trace(
        "
        < ACK 1 ack 18001 win 60000
        > ACK 18001..24001 ack 1
        ",
    );
    assert_eq!(script.tcp().congestion_window(), 6000);
}
