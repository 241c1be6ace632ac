//! What the split adds: data is issued first and departs later (IO-TCP §3.5).

use std::time::Duration;

use crate::script::{Script, config};
use tcp::Config;

/// Covers: IO-TCP §3.5, RFC 6298 §5.1
#[test]
fn rto_does_not_run_before_the_departure() {
    let mut script = Script::established();
    script.trace(
        "
        hold
        virtual 5000
        > PSH ACK 1..5001 ack 1
        +100s
        ",
    );
    assert_eq!(script.tcp().next_timeout(), None);
    script.trace(
        "
        depart
        +209ms
        +1ms
        > ACK 1..1001 ack 1
        +100s
        depart
        +420ms
        > ACK 1..1001 ack 1
        ",
    );
}

/// Covers: IO-TCP §3.5, RFC 6298 §5.1
#[test]
fn rto_runs_from_the_oldest_departure() {
    let mut script = Script::established();
    script.trace(
        "
        hold
        virtual 3000
        > PSH ACK 1..3001 ack 1
        virtual 3000
        > PSH ACK 3001..6001 ack 1
        depart
        +100ms
        depart
        +110ms
        > ACK 1..1001 ack 1
        ",
    );
}

/// Covers: IO-TCP §3.5, RFC 6298 §5.3
#[test]
fn an_ack_moves_the_timer_to_what_has_departed_or_stops_it() {
    let mut script = Script::established();
    script.trace(
        "
        hold
        virtual 3000
        > PSH ACK 1..3001 ack 1
        virtual 3000
        > PSH ACK 3001..6001 ack 1
        depart
        +10ms
        < ACK 1 ack 3001 win 10000
        +100s
        depart
        +210ms
        > ACK 3001..4001 ack 1
        ",
    );
}

/// Covers: IO-TCP §3.5, RFC 6298 §5.4
#[test]
fn a_timeout_does_not_touch_what_waits_for_its_departure() {
    let mut script = Script::established();
    script.trace(
        "
        hold
        virtual 3000
        > PSH ACK 1..3001 ack 1
        virtual 3000
        > PSH ACK 3001..6001 ack 1
        depart
        +210ms
        > ACK 1..1001 ack 1
        < ACK 1 ack 1001 win 10000
        > ACK 1001..3001 ack 1
        < ACK 1 ack 3001 win 10000
        # 3001..6001 has not been sent yet.
        +100s
        depart
        depart
        depart
        +420ms
        > ACK 3001..4001 ack 1
        ",
    );
}

/// Covers: IO-TCP §3.5, RFC 6298 §2.3
#[test]
fn rtt_excludes_the_time_on_the_nic() {
    let mut script = Script::established();
    script.trace(
        "
        hold
        virtual 3000
        > PSH ACK 1..3001 ack 1
        +500ms
        depart
        +10ms
        < ACK 1 ack 3001 win 10000
        ",
    );
    assert_eq!(script.tcp().smoothed_rtt(), Some(Duration::from_millis(10)));
}

/// Covers: IO-TCP §3.5
#[test]
fn an_ack_before_the_report_proves_the_departure() {
    let mut script = Script::established();
    script.trace(
        "
        hold
        virtual 3000
        > PSH ACK 1..3001 ack 1
        +10ms
        < ACK 1 ack 3001 win 10000
        ! Released(7 3000), Drained
        ",
    );
    // 10 ms of the handshake so far. The late report says that the data left 4 ms before its ACK.
    let acked_at = script.now;
    let departed = tcp::Instant::from_us(acked_at.as_us() - 4_000);
    script.tcp().on_departed(1, departed);
    assert_eq!(
        script.tcp().smoothed_rtt(),
        Some(Duration::from_micros(9_250))
    );
    // The same report again says nothing.
    script.tcp().on_departed(1, departed);
    assert_eq!(
        script.tcp().smoothed_rtt(),
        Some(Duration::from_micros(9_250))
    );
}

/// Covers: IO-TCP §3.5
#[test]
fn a_partial_ack_before_the_report_leaves_the_rest_undeparted() {
    let mut script = Script::established();
    script.trace(
        "
        hold
        virtual 3000
        > PSH ACK 1..3001 ack 1
        +10ms
        < ACK 1 ack 1001 win 10000
        ",
    );
    script.trace("+100s\n depart\n +210ms\n > ACK 1001..2001 ack 1");
}

/// Covers: IO-TCP §3.5
#[test]
fn reports_for_what_was_never_issued_are_ignored() {
    let mut script = Script::established();
    let now = script.now;
    for transmission in [0, 1, 2, 1 << 40, u64::MAX] {
        script.tcp().on_departed(transmission, now);
    }
    assert_eq!(script.tcp().next_timeout(), None);
}

/// Covers: IO-TCP §3.5
#[test]
fn transmissions_say_what_they_follow() {
    let mut script = Script::established();
    let (now, limits) = (script.now, script.limits);
    let connection = script.tcp();
    connection.write(b"head");
    let head = connection.poll_transmit(now, &limits).expect("head");
    assert!(!head.has_virtual && !head.follows_undeparted && !head.retransmission);
    connection.on_departed(head.transmission.expect("data"), now);
    connection.write_virtual(1, 0, 1000);
    let body = connection.poll_transmit(now, &limits).expect("body");
    assert!(body.has_virtual && !body.follows_undeparted);
    connection.write(b"tail");
    connection.shutdown();
    let tail = connection.poll_transmit(now, &limits).expect("tail");
    assert!(!tail.has_virtual && tail.follows_undeparted);
    assert_eq!(tail.transmission, body.transmission.map(|n| n + 1));
    assert!(tail.header.flags.contains(wire::tcp::Flags::FIN));
}

/// Covers: IO-TCP §3.5
#[test]
fn a_fast_retransmission_gets_its_full_time_from_its_departure() {
    let mut script = Script::established();
    script.trace(
        "
        hold
        virtual 10000
        > PSH ACK 1..10001 ack 1
        depart
        +10ms
        < ACK 1 ack 1 win 10000
        < ACK 1 ack 1 win 10000
        < ACK 1 ack 1 win 10000
        > ACK 1..1001 ack 1
        +10s
        depart
        +209ms
        +1ms
        > ACK 1..1001 ack 1
        ",
    );
}

/// Covers: RFC 9293 §3.8.6.2.1
#[test]
fn limits_cut_transmissions_at_full_segments() {
    let mut script = Script::established_with(Config {
        send_buffer_bytes: 20_000,
        ..config()
    });
    script.limits.real_bytes_max = 2500;
    script.trace(
        "
        write 6100
        > ACK 1..2001 ack 1
        > ACK 2001..4001 ack 1
        > PSH ACK 4001..6101 ack 1
        ",
    );
    let mut script = Script::established();
    script.limits.bytes_max = 3999;
    script.trace(
        "
        virtual 7100
        > ACK 1..3001 ack 1
        > ACK 3001..6001 ack 1
        > PSH ACK 6001..7101 ack 1
        ",
    );
    let mut script = Script::established();
    script.limits.bytes_max = 10;
    script.trace("virtual 25\n > ACK 1..11 ack 1\n > ACK 11..21 ack 1\n > PSH ACK 21..26 ack 1");
    let mut script = Script::established();
    script.limits.pieces_max = 2;
    let step = ["virtual 7"; 5].join("; ");
    script.trace(&format!(
        "
        {step}
        > ACK 1..15 ack 1
        > ACK 15..29 ack 1
        > PSH ACK 29..36 ack 1
        "
    ));
    let mut script = Script::established();
    script.limits.bytes_max = 0;
    script.trace("virtual 25\n = Established");
}

/// Covers: IO-TCP §3.5
#[test]
fn a_fast_retransmission_that_departs_late_restarts_the_timer() {
    let mut script = Script::established();
    script.trace(
        "
        hold
        virtual 10000
        > PSH ACK 1..10001 ack 1
        depart
        +10ms
        < ACK 1 ack 1 win 10000
        < ACK 1 ack 1 win 10000
        < ACK 1 ack 1 win 10000
        > ACK 1..1001 ack 1
        +190ms
        depart
        +209ms
        +1ms
        > ACK 1..1001 ack 1
        ",
    );
}

/// Covers: IO-TCP §3.5
#[test]
fn a_timer_that_recovery_left_running_does_not_hit_what_has_not_departed() {
    let mut script = Script::established();
    script.trace(
        "
        hold
        virtual 10000
        > PSH ACK 1..10001 ack 1
        depart
        < ACK 1 ack 1 win 10000
        < ACK 1 ack 1 win 10000
        < ACK 1 ack 1 win 10000
        > ACK 1..1001 ack 1
        depart
        +10ms
        < ACK 1 ack 2001 win 10000
        > ACK 2001..3001 ack 1
        depart
        < ACK 1 ack 4001 win 10000
        > ACK 4001..5001 ack 1
        +10s
        depart
        +210ms
        > ACK 4001..5001 ack 1
        ",
    );
}

/// Covers: IO-TCP §3.5, RFC 9293 §3.8.6.3
#[test]
fn an_acknowledgment_does_not_wait_for_data_that_the_nic_stack_is_reading() {
    let mut script = Script::established();
    script.trace(
        "
        hold
        < PSH ACK 1..101 ack 1 win 10000
        virtual 500
        > PSH ACK 1..501 ack 101
        +39ms
        +1ms
        > ACK 501 ack 101
        ",
    );
    // One that must go at once does.
    let mut script = Script::established();
    script.trace(
        "
        hold
        virtual 500; < ACK 1..2001 ack 1 win 10000
        > PSH ACK 1..501 ack 2001
        > ACK 501 ack 2001
        ",
    );
}

/// Covers: IO-TCP §3.5
#[test]
fn a_departure_gives_the_acknowledgment_that_it_carries() {
    let mut script = Script::established();
    script.trace(
        "
        hold
        < PSH ACK 1..101 ack 1 win 10000
        virtual 500
        > PSH ACK 1..501 ack 101
        +39ms
        depart
        +100ms
        ",
    );
    // But not that of what has come since.
    let mut script = Script::established();
    script.trace(
        "
        hold
        < PSH ACK 1..101 ack 1 win 10000
        virtual 500
        > PSH ACK 1..501 ack 101
        < PSH ACK 101..201 ack 1 win 10000
        depart
        +40ms
        > ACK 501 ack 201
        ",
    );
}
