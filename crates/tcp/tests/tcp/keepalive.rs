//! Keep-alive, and how long a peer may be silent (RFC 9293 §3.8.4, RFC 5482).

use std::time::Duration;

use tcp::{Config, Keepalive};

use crate::script::{Script, config};

fn keeping_alive() -> Config {
    Config {
        keepalive: Some(Keepalive {
            idle: Duration::from_secs(60),
            interval: Duration::from_secs(10),
            probes: 2,
        }),
        ..config()
    }
}

/// Covers: RFC 9293 §3.8.4
#[test]
fn it_is_off_by_default_and_slow_if_nothing_else_is_said() {
    let mut script = Script::established();
    script.trace("+20000s\n= Established");
    assert!(Keepalive::default().idle >= Duration::from_secs(7200));
}

/// Covers: RFC 9293 §3.8.4
#[test]
fn a_silent_peer_is_probed_and_given_up_when_several_probes_go_unanswered() {
    let mut script = Script::established_with(keeping_alive());
    script.trace(
        "
        +60s
        > ACK 0 ack 1
        +10s
        > ACK 0 ack 1
        +9s
        = Established
        +1s
        ! Closed(TimedOut)
        ",
    );
}

/// Covers: RFC 9293 §3.8.4
#[test]
fn a_peer_that_answers_is_left_alone_for_the_whole_time_again() {
    let mut script = Script::established_with(keeping_alive());
    script.trace(
        "
        +60s
        > ACK 0 ack 1
        +10s
        > ACK 0 ack 1
        < ACK 1 ack 1 win 10000
        +50s
        = Established
        +10s
        > ACK 0 ack 1
        ",
    );
}

/// Covers: RFC 9293 §3.8.4
#[test]
fn whatever_the_peer_sends_puts_the_probe_off() {
    let mut script = Script::established_with(keeping_alive());
    script.trace(
        "
        +50s
        < PSH ACK 1..101 ack 1 win 10000
        +40ms
        > ACK 1 ack 101
        ! Readable
        +59s
        +1s
        > ACK 0 ack 101
        ",
    );
}

/// Covers: RFC 9293 §3.8.4
#[test]
fn while_data_is_in_flight_or_waits_for_a_window_nothing_is_probed() {
    let mut script = Script::established_with(keeping_alive());
    script.trace(
        "
        +59s
        write 100
        > PSH ACK 1..101 ack 1
        +200ms
        +50ms
        > PSH ACK 1..101 ack 1
        < ACK 1 ack 101 win 10000
        ! Drained
        +58s
        = Established
        ",
    );
}

/// Covers: RFC 9293 §3.8.4
#[test]
fn a_reset_in_answer_to_a_probe_ends_the_connection() {
    let mut script = Script::established_with(keeping_alive());
    script.trace("+60s\n> ACK 0 ack 1\n< RST 1\n! Closed(Reset)");
}

/// Covers: RFC 5482 §4.2
#[test]
fn a_user_timeout_takes_the_place_of_counting_probes() {
    let mut script = Script::established_with(Config {
        user_timeout: Some(Duration::from_secs(75)),
        ..keeping_alive()
    });
    script.trace(
        "
        +60s
        > ACK 0 ack 1
        +10s
        > ACK 0 ack 1
        +10s
        ! Closed(TimedOut)
        ",
    );
}

/// Covers: RFC 5482 §3, RFC 9293 §3.8.6.1
#[test]
fn a_user_timeout_bounds_unanswered_probes_of_a_closed_window() {
    let mut script = Script::established_with(Config {
        user_timeout: Some(Duration::from_secs(2)),
        ..config()
    });
    script.trace(
        "
        < ACK 1 ack 1 win 0
        write 100
        +210ms
        > ACK 0 ack 1
        +420ms
        > ACK 0 ack 1
        +840ms
        > ACK 0 ack 1
        +739ms
        = Established
        +1ms
        ! Closed(TimedOut)
        ",
    );
}

/// Covers: RFC 9293 §3.8.3
#[test]
fn an_unacknowledged_fin_is_given_up_before_data_would_be() {
    let mut script = Script::established_with(Config {
        fin_retries: 2,
        retries: 15,
        ..config()
    });
    script.trace(
        "
        shutdown
        > FIN ACK 1 ack 1
        +250ms
        > FIN ACK 1 ack 1
        +500ms
        > FIN ACK 1 ack 1
        +2s
        ! Closed(TimedOut)
        ",
    );
}

fn every(idle_s: u64, interval_s: u64, probes: u8) -> Option<Keepalive> {
    Some(Keepalive {
        idle: Duration::from_secs(idle_s),
        interval: Duration::from_secs(interval_s),
        probes,
    })
}

/// Covers: RFC 9293 §3.8.4
#[test]
fn an_open_connection_begins_to_probe_when_it_is_asked_to() {
    let mut script = Script::established();
    script.trace("+1000s");
    assert_eq!(script.tcp().keepalive(), None);
    let now = script.now;
    script.tcp().set_keepalive(now, every(60, 10, 1));
    assert_eq!(script.tcp().keepalive(), every(60, 10, 1));
    script.trace(
        "
        +59s
        +1s
        > ACK 0 ack 1
        +10s
        ! Closed(TimedOut)
        ",
    );
}

/// Covers: RFC 9293 §3.8.4
#[test]
fn probing_that_ends_leaves_the_peer_alone_and_may_begin_again() {
    let mut script = Script::established_with(keeping_alive());
    script.trace("+60s\n> ACK 0 ack 1");
    let now = script.now;
    script.tcp().set_keepalive(now, None);
    assert_eq!(script.tcp().next_timeout(), None);
    script.trace("+20000s\n= Established");
    let now = script.now;
    script.tcp().set_keepalive(now, every(5, 1, 1));
    script.trace("+4s\n+1s\n> ACK 0 ack 1\n+1s\n! Closed(TimedOut)");
}

/// Covers: RFC 9293 §3.8.4
#[test]
fn other_times_count_from_when_the_peer_was_last_heard() {
    for (idle_s, probe_at) in [(40, "+0s"), (45, "+5s"), (50, "+10s"), (90, "+50s")] {
        let mut script = Script::established_with(keeping_alive());
        script.trace("+40s");
        let now = script.now;
        script.tcp().set_keepalive(now, every(idle_s, 10, 2));
        script.trace(&format!("{probe_at}\n> ACK 0 ack 1"));
    }
}

/// Covers: RFC 9293 §3.8.4
#[test]
fn silence_before_probing_began_does_not_count() {
    let mut script = Script::established();
    script.trace("+1000s");
    let now = script.now;
    script.tcp().set_keepalive(now, every(60, 10, 1));
    script.trace("+10s");
    let now = script.now;
    script.tcp().set_keepalive(now, every(50, 10, 1));
    script.trace("+39s\n+1s\n> ACK 0 ack 1");
}

/// Covers: RFC 9293 §3.8.4
#[test]
fn another_interval_applies_to_a_probe_that_is_out() {
    let mut script = Script::established_with(keeping_alive());
    script.trace("+60s\n> ACK 0 ack 1");
    for pause in ["+2s", "+1999ms"] {
        // To say it twice puts nothing off.
        let now = script.now;
        script.tcp().set_keepalive(now, every(60, 4, 1));
        script.trace(&format!("{pause}\n= Established"));
    }
    script.trace("+1ms\n! Closed(TimedOut)");
}

/// Covers: RFC 9293 §3.8.4
#[test]
fn what_is_asked_of_a_connection_that_opens_or_closes_starts_no_timer() {
    let mut script = Script::listen(config());
    script.trace("< SYN 0 win 10000\n> SYN ACK 0 ack 1");
    let now = script.now;
    script.tcp().set_keepalive(now, every(60, 10, 2));
    script.trace("< ACK 1 ack 1 win 10000\n+60s\n> ACK 0 ack 1");

    let mut script = Script::in_state("FinWait2");
    let (now, timeout) = (script.now, script.tcp().next_timeout());
    script.tcp().set_keepalive(now, every(1, 1, 1));
    assert_eq!(script.tcp().next_timeout(), timeout);
}

/// Covers: RFC 5482 §3
#[test]
fn a_user_timeout_bounds_what_is_unanswered_already() {
    let mut script = Script::established();
    script.trace(
        "
        write 100
        > PSH ACK 1..101 ack 1
        +210ms
        > PSH ACK 1..101 ack 1
        +420ms
        > PSH ACK 1..101 ack 1
        ",
    );
    assert_eq!(script.tcp().user_timeout(), None);
    // Unanswered for 420 ms; the next timeout would be in 840 ms.
    script
        .tcp()
        .set_user_timeout(Some(Duration::from_millis(600)));
    assert_eq!(
        script.tcp().user_timeout(),
        Some(Duration::from_millis(600))
    );
    script.trace("+179ms\n= Established\n+1ms\n! Closed(TimedOut)");
}

/// Covers: RFC 5482 §3
#[test]
fn a_user_timeout_does_not_wait_for_the_next_retransmission() {
    let mut script = Script::established_with(Config {
        user_timeout: Some(Duration::from_millis(500)),
        ..config()
    });
    script.trace(
        "
        write 100
        > PSH ACK 1..101 ack 1
        +210ms
        > PSH ACK 1..101 ack 1
        +420ms
        > PSH ACK 1..101 ack 1
        +79ms
        = Established
        +1ms
        ! Closed(TimedOut)
        ",
    );
}
