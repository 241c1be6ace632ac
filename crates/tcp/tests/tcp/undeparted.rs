//! Transmissions that never left, and departures of which nothing was heard.

use std::time::Duration;

use crate::script::{ISS, Script, config};
use tcp::{Config, Connection};

fn with_timeout() -> Script {
    Script::established_with(Config {
        departure_timeout: Some(Duration::from_secs(5)),
        ..config()
    })
}

/// Covers: IO-TCP §3.5
#[test]
fn what_never_left_is_issued_again_and_is_no_loss() {
    let mut script = Script::established();
    let window = script.tcp().congestion_window();
    script.trace(
        "
        hold
        virtual 3000
        > PSH ACK 1..3001 ack 1
        virtual 2000
        > PSH ACK 3001..5001 ack 1
        +100s
        lose
        > ACK 1..3001 ack 1 behind
        depart
        depart
        +10ms
        < ACK 1 ack 5001 win 10000
        ! Released(7 3000), Released(7 5000), Drained
        ",
    );
    assert!(script.tcp().congestion_window() >= window);
    assert_eq!(script.tcp().smoothed_rtt(), Some(Duration::from_millis(10)));
    let stats = script.tcp().take_stats();
    assert_eq!((stats.lost_undeparted, stats.timeouts), (1, 0));
}

/// Covers: IO-TCP §3.5
#[test]
fn a_nic_stack_that_has_forgotten_everything_gets_everything_again_with_fin() {
    let mut script = Script::established();
    script.trace(
        "
        hold
        virtual 3000
        > PSH ACK 1..3001 ack 1
        virtual 1000; shutdown
        > PSH FIN ACK 3001..4001 ack 1
        forget
        > PSH FIN ACK 1..4001 ack 1 behind
        +100s
        depart
        +10ms
        < ACK 1 ack 4002 win 10000
        = FinWait2
        ",
    );
}

/// Covers: IO-TCP §3.5
#[test]
fn what_has_departed_is_not_touched() {
    let mut script = Script::established();
    script.trace(
        "
        hold
        virtual 3000
        > PSH ACK 1..3001 ack 1
        depart
        ",
    );
    script.tcp().on_undeparted_lost(1);
    script.tcp().on_undeparted_lost(u64::MAX);
    script.tcp().on_all_undeparted_lost();
    script.trace(
        "
        +209ms
        +1ms
        > ACK 1..1001 ack 1
        ",
    );
    assert_eq!(script.tcp().take_stats().lost_undeparted, 0);
}

/// Covers: IO-TCP §3.5
#[test]
fn an_acknowledgment_proves_the_departure_of_what_it_covers() {
    let mut script = Script::established();
    script.trace(
        "
        hold
        virtual 3000
        > PSH ACK 1..3001 ack 1
        < ACK 1 ack 2001 win 10000
        lose
        > PSH ACK 2001..3001 ack 1
        < ACK 1 ack 3001 win 10000
        ",
    );
    script.trace("+100s");
}

/// Covers: IO-TCP §3.5
#[test]
fn the_departure_of_a_later_transmission_stands_for_that_of_an_earlier_one() {
    let mut script = Script::established();
    script.trace(
        "
        hold
        virtual 3000
        > PSH ACK 1..3001 ack 1
        virtual 2000
        > PSH ACK 3001..5001 ack 1
        +100s
        skip
        depart
        +209ms
        +1ms
        > ACK 1..1001 ack 1
        ",
    );
    assert_eq!(script.tcp().take_stats().unheard, 1);
}

/// Covers: IO-TCP §3.5, RFC 6298 §3
#[test]
fn what_may_have_left_before_it_was_forgotten_tells_no_round_trip_time() {
    let mut script = Script::established();
    script.tcp().take_stats();
    script.trace(
        "
        hold
        virtual 3000
        > PSH ACK 1..3001 ack 1
        forget
        > PSH ACK 1..3001 ack 1
        +10ms
        < ACK 1 ack 3001 win 10000
        +1ms
        depart
        ",
    );
    assert_eq!(script.tcp().take_stats().round_trips.count, 0);
}

/// Covers: IO-TCP §3.5, RFC 6298 §3
#[test]
fn a_departure_of_which_nothing_was_heard_tells_no_round_trip_time() {
    let mut script = Script::established();
    script.trace(
        "
        hold
        virtual 3000
        > PSH ACK 1..3001 ack 1
        virtual 2000
        > PSH ACK 3001..5001 ack 1
        +1s
        skip
        depart
        +1ms
        < ACK 1 ack 3001 win 10000
        +9ms
        < ACK 1 ack 5001 win 10000
        ",
    );
    assert_eq!(script.tcp().smoothed_rtt(), Some(Duration::from_millis(10)));
}

/// Covers: IO-TCP §3.5
#[test]
fn a_silent_nic_stack_is_asked_again_ever_more_rarely() {
    let mut script = with_timeout();
    script.trace(
        "
        hold
        virtual 3000
        > PSH ACK 1..3001 ack 1
        +4999ms
        +1ms
        > PSH ACK 1..3001 ack 1
        +9999ms
        +1ms
        > PSH ACK 1..3001 ack 1
        skip
        skip
        depart
        +10ms
        < ACK 1 ack 3001 win 10000
        +100s
        virtual 1000
        > PSH ACK 3001..4001 ack 1
        +4999ms
        +1ms
        > PSH ACK 3001..4001 ack 1
        ",
    );
    assert_eq!(script.tcp().take_stats().timeouts, 0);
}

/// Covers: IO-TCP §3.5
#[test]
fn a_nic_stack_that_is_heard_is_not_silent() {
    let mut script = with_timeout();
    script.trace(
        "
        hold
        virtual 3000
        > PSH ACK 1..3001 ack 1
        virtual 2000
        > PSH ACK 3001..5001 ack 1
        +4s
        depart
        < ACK 1 ack 3001 win 10000
        +4s
        depart
        < ACK 1 ack 5001 win 10000
        +100s
        ",
    );
}

/// Covers: IO-TCP §3.5
#[test]
fn a_nic_stack_whose_work_arrives_is_not_silent() {
    let mut script = with_timeout();
    script.trace(
        "
        hold
        virtual 3000
        > PSH ACK 1..3001 ack 1
        virtual 2000
        > PSH ACK 3001..5001 ack 1
        +4s
        < ACK 1 ack 3001 win 10000
        +4s
        < ACK 1 ack 5001 win 10000
        +100s
        ",
    );
    assert_eq!(script.tcp().take_stats().lost_undeparted, 0);
    assert_eq!(script.tcp().undeparted_transmissions(), 0);
}

/// Covers: IO-TCP §3.5
#[test]
fn a_syn_that_never_left_goes_again_as_if_for_the_first_time() {
    let mut script = Script::listen(config());
    script.trace(
        "
        hold
        < SYN 0 win 10000 mss 1000
        > SYN ACK 0 ack 1
        lose
        > SYN ACK 0 ack 1
        depart
        +10ms
        < ACK 1 ack 1 win 10000
        = Established
        ",
    );
    assert_eq!(script.tcp().smoothed_rtt(), Some(Duration::from_millis(10)));
    let mut script = Script::listen(config());
    script.trace("hold");
    script.connection = Some(Connection::connect(
        &config(),
        80,
        40_000,
        ISS,
        0,
        script.now,
    ));
    script.trace(
        "
        > SYN 0
        forget
        > SYN 0
        depart
        +999ms
        +1ms
        > SYN 0
        ",
    );
}

/// Covers: IO-TCP §3.5
#[test]
fn a_nic_stack_that_stays_silent_ends_the_connection() {
    let mut script = Script::established_with(Config {
        departure_timeout: Some(Duration::from_secs(1)),
        retries: 2,
        ..config()
    });
    script.trace(
        "
        hold
        virtual 1000
        > PSH ACK 1..1001 ack 1
        +1s
        > PSH ACK 1..1001 ack 1
        +2s
        > PSH ACK 1..1001 ack 1
        +4s
        > RST ACK 1 ack 1
        > RST ACK 1001 ack 1
        ! Closed(TimedOut)
        ",
    );
}
