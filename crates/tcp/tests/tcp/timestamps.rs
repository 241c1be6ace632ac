//! Timestamps and PAWS (RFC 7323).

use crate::script::{Script, config};
use tcp::Config;

fn established() -> Script {
    let mut script = Script::listen(Config {
        timestamps: true,
        ..config()
    });
    script.trace(
        "
        < SYN 0 win 10000 mss 1012 ts 500 0
        > SYN ACK 0 ack 1 ts 1000 500
        +10ms
        < ACK 1 ack 1 win 10000 ts 510 1000
        = Established
        ! Connected
        ",
    );
    script
}

/// Covers: RFC 7323 §3.2
#[test]
fn every_segment_carries_them_once_agreed() {
    let mut script = established();
    script.trace(
        "
        < ACK 1..101 ack 1 win 10000 ts 511 1000
        +40ms
        > ACK 1 ack 101 ts 1050 511
        write 100
        > PSH ACK 1..101 ack 101 ts 1050 511
        +5ms
        < SYN 1 ts 512 0
        > ACK 101 ack 101 ts 1055 512
        abort
        > RST ACK 101 ack 101 ts 1055 512
        > RST ACK 1 ack 101 ts 1055 511
        "
        .replace("1055 512\n        abort", "1055 511\n        abort")
        .replace(
            "RST ACK 101 ack 101 ts 1055 512",
            "RST ACK 101 ack 101 ts 1055 511",
        )
        .as_str(),
    );
}

/// Covers: RFC 7323 §3.2
#[test]
fn a_segment_without_them_is_taken_at_rcv_nxt_and_counted() {
    let mut script = established();
    script.trace(
        "
        < ACK 1..101 ack 1 win 10000
        ! Readable
        +40ms
        > ACK 1 ack 101 ts 1050 510
        # The option comes back: TS.Recent is where it was.
        < ACK 101..201 ack 1 win 10000 ts 511 1050
        ! Readable
        +40ms
        > ACK 1 ack 201 ts 1090 511
        < FIN ACK 201 ack 1 win 10000
        ! PeerFinished
        > ACK 1 ack 202 ts 1090 511
        = CloseWait
        ",
    );
    assert_eq!(script.tcp().take_stats().timestamps_missing, 2);
}

/// Covers: RFC 7323 §3.2
#[test]
fn behind_rcv_nxt_a_segment_without_them_is_dropped_and_counted() {
    let mut script = established();
    script.trace(
        "
        < ACK 2..102 ack 1 win 10000
        < ACK 900000000..900000100 ack 1 win 10000
        < FIN ACK 2 ack 1 win 10000
        < SYN 1 win 10000
        = Established
        !
        ",
    );
    assert_eq!(script.tcp().take_stats().timestamps_missing, 4);
}

/// A retransmission says that our acknowledgment is lost.
///
/// Covers: RFC 7323 §3.2, RFC 5961 §5.3
#[test]
fn before_rcv_nxt_a_segment_without_them_is_acknowledged_within_the_limit() {
    let mut script = established();
    script.trace(
        "
        < ACK 1..101 ack 1 win 10000
        ! Readable
        +40ms
        > ACK 1 ack 101 ts 1050 510
        ",
    );
    let limit = Config::default().challenge_acks_max;
    for _ in 0..limit {
        script.trace("< ACK 1..101 ack 1 win 10000\n > ACK 1 ack 101 ts 1050 510");
    }
    script.trace("< ACK 1..101 ack 1 win 10000\n !");
}

/// Covers: RFC 7323 §5.3 (R1)
#[test]
fn a_segment_older_than_ts_recent_is_acknowledged_and_dropped() {
    let mut script = established();
    script.trace(
        "
        < ACK 1..101 ack 1 win 10000 ts 509 1000
        > ACK 1 ack 1 ts 1010 510
        !
        < FIN ACK 1 ack 1 win 10000 ts 509 1000
        > ACK 1 ack 1
        < ACK 1..101 ack 1 win 10000 ts 510 1000
        ! Readable
        +40ms
        > ACK 1 ack 101
        ",
    );
}

/// Covers: RFC 7323 §4.3, RFC 7323 §5.3 (R3)
#[test]
fn ts_recent_follows_only_segments_at_or_before_last_ack_sent() {
    // RFC 7323 §4.3 (2): with a delayed acknowledgment the earliest segment is echoed.
    let mut script = established();
    script.trace(
        "
        < ACK 1..101 ack 1 win 10000 ts 520 1010
        < ACK 101..201 ack 1 win 10000 ts 530 1010
        +40ms
        > ACK 1 ack 201 ts 1050 520
        # After a hole: still the one before it.
        < ACK 301..401 ack 1 win 10000 ts 540 1010
        > ACK 1 ack 201 ts 1050 520
        < ACK 201..301 ack 1 win 10000 ts 535 1010
        > ACK 1 ack 401 ts 1050 535
        ",
    );
}

/// Covers: IO-TCP §3.5, RFC 7323 §5.4
#[test]
fn the_clock_and_its_fraction_are_taken_at_issue() {
    let mut script = established();
    script.trace("+777us");
    script.tcp().write(b"x");
    let (now, limits) = (script.now, script.limits);
    let transmit = script.tcp().poll_transmit(now, &limits).expect("data");
    assert_eq!(transmit.issued, now);
    assert_eq!(transmit.tsval_fraction_us, 777);
    let timestamps = transmit.header.options.timestamps.expect("agreed");
    assert_eq!((timestamps.value, timestamps.echo_reply), (1010, 510));
}

/// Covers: RFC 7323 §4.1, RFC 6298 §3
#[test]
fn the_echo_measures_retransmitted_data_and_ends_the_backoff() {
    let mut script = established();
    script.trace(
        "
        write 500
        > PSH ACK 1..501 ack 1 ts 1010 510
        +210ms
        > PSH ACK 1..501 ack 1 ts 1220 510
        +50ms
        < ACK 1 ack 501 win 10000 ts 700 1220
        ",
    );
    // 7/8 of 10 ms and 1/8 of 50 ms.
    assert_eq!(
        script.tcp().smoothed_rtt(),
        Some(std::time::Duration::from_millis(15))
    );
    script.trace(
        "
        write 500
        > PSH ACK 501..1001 ack 1
        # SRTT = 15 ms, RTTVAR = 3/4 * 5 + 1/4 * 40 = 13.75 ms: not doubled.
        +214ms
        +1ms
        > PSH ACK 501..1001 ack 1
        ",
    );
}

/// Covers: RFC 7323 §4.1
#[test]
fn fresh_data_is_measured_in_microseconds_whatever_the_echo_says() {
    let mut script = established();
    script.trace(
        "
        write 500
        > PSH ACK 1..501 ack 1
        +2400us
        < ACK 1 ack 501 win 10000 ts 700 3
        ",
    );
    assert_eq!(
        script.tcp().smoothed_rtt(),
        Some(std::time::Duration::from_micros(9050))
    );
}

/// Covers: RFC 7323 §5.5
#[test]
fn an_idle_connection_of_24_days_takes_any_timestamp() {
    let mut script = established();
    script.trace(
        "
        +2073599s
        < ACK 1..101 ack 1 win 10000 ts 509 1000
        > ACK 1 ack 1
        +1s
        < ACK 1..101 ack 1 win 10000 ts 509 1000
        ! Readable
        +40ms
        > ACK 1 ack 101
        ",
    );
}

/// A forged TS.Recent would make all that the peer sends look old.
///
/// Covers: RFC 7323 §5.3 (R3), RFC 5961 §5.2
#[test]
fn ts_recent_does_not_follow_a_segment_whose_acknowledgment_is_not_believed() {
    let mut script = established();
    script.trace(
        "
        < ACK 1 ack 2 win 10000 ts 999999 1000
        > ACK 1 ack 1 ts 1010 510
        < SYN 1 win 10000 ts 999999 0
        > ACK 1 ack 1 ts 1010 510
        < ACK 1..101 ack 1 win 10000 ts 511 1000
        ! Readable
        +40ms
        > ACK 1 ack 101 ts 1050 511
        ",
    );
}
