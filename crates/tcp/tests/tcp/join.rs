//! Connections that others carry on for a while: when they may, and how they go on afterwards.

use tcp::{CloseReason, ConnectionEvent, RejoinNumbers};

use crate::script::{IRS, ISS, LIMITS, Script, config};

/// 5,000 bytes further on our side, 7,000 on the peer's.
fn further() -> RejoinNumbers {
    RejoinNumbers {
        snd_nxt: ISS.wrapping_add(5001),
        rcv_nxt: IRS.wrapping_add(7001),
        snd_window_bytes: 9000,
        rcv_window_bytes: 1 << 20,
        ts_value: 0,
        ts_recent: 0,
    }
}

/// Covers: RFC 9293 §3.10.7.4 (seventh)
#[test]
fn a_connection_has_numbers_when_it_is_quiet_and_no_earlier() {
    let mut script = Script::established();
    let now = script.now;
    let numbers = script.tcp().join_numbers(now).expect("it is quiet");
    assert_eq!(numbers.snd_nxt, ISS.wrapping_add(1));
    assert_eq!(numbers.rcv_nxt, IRS.wrapping_add(1));
    assert_eq!((numbers.mss, numbers.timestamps), (1000, None));
    script.trace("write 300\n> PSH ACK 1..301 ack 1");
    assert_eq!(
        script.tcp().join_numbers(now),
        None,
        "it is not acknowledged"
    );
    script.trace("< PSH ACK 1..101 ack 301 win 10000");
    assert_eq!(script.tcp().join_numbers(now), None, "it is not read");
    script.trace("read 100");
    assert!(script.tcp().join_numbers(now).is_some());
    script.trace("< PSH ACK 201..301 ack 301 win 10000\n> ACK 301 ack 101");
    assert_eq!(script.tcp().join_numbers(now), None, "something is missing");
}

/// Covers: RFC 9293 §3.10.7.4 (first), RFC 9293 §3.6
#[test]
fn it_goes_on_from_other_numbers_and_ends() {
    let mut script = Script::established();
    let now = script.now;
    script.tcp().stand_still();
    assert_eq!(script.tcp().next_timeout(), None);
    script.tcp().rejoin(now, &further());
    script.trace(
        "
        > ACK 5001 ack 7001 win 10000
        < ACK 1 ack 1 win 10000
        > ACK 5001 ack 7001
        shutdown
        > FIN ACK 5001 ack 7001
        < FIN ACK 7001 ack 5002 win 10000
        > ACK 5002 ack 7002
        = TimeWait
        ",
    );
}

/// Covers: RFC 9293 §3.6.1
#[test]
fn what_has_ended_elsewhere_is_in_time_wait_and_answers_a_fin_that_comes_again() {
    let mut script = Script::established_with(config());
    let now = script.now;
    script.tcp().stand_still();
    script.tcp().finish_joined(now, &further());
    script.trace(
        "
        = TimeWait
        < FIN ACK 7000 ack 5001 win 10000
        > ACK 5001 ack 7001
        +60s
        = Closed
        ",
    );
}

#[test]
fn what_has_broken_elsewhere_sends_nothing() {
    let mut script = Script::established();
    script.tcp().stand_still();
    script.tcp().break_joined(CloseReason::Reset);
    assert!(script.tcp().is_closed());
    let closed = ConnectionEvent::Closed {
        reason: CloseReason::Reset,
    };
    assert_eq!(script.tcp().poll_event(), Some(closed));
    let now = script.now;
    assert!(script.tcp().poll_transmit(now, &LIMITS).is_none());
}
