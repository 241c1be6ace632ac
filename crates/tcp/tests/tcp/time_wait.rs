//! TIME-WAIT, as a connection and as the little that is left of one.

use crate::script::{IRS, ISS, Script, config};
use tcp::{Config, Connection, Instant, TimeWait};
use wire::tcp::{Flags, Header, Options, Segment, Timestamps};

/// Covers: RFC 9293 §3.10.7.4 (eighth)
#[test]
fn a_repeated_fin_restarts_the_timer() {
    let mut script = Script::in_state("TimeWait");
    script.trace(
        "
        +50s
        < FIN ACK 1 ack 2 win 10000
        > ACK 2 ack 2
        +59999ms
        = TimeWait
        +1ms
        = Closed
        ",
    );
}

/// Covers: RFC 9293 §3.10.7.4 (first), RFC 5961 §4.2
#[test]
fn other_old_segments_are_answered_and_change_nothing() {
    let mut script = Script::in_state("TimeWait");
    script.trace(
        "
        +50s
        < ACK 1 ack 2 win 10000
        > ACK 2 ack 2
        < ACK 500..600 ack 2 win 10000
        > ACK 2 ack 2
        < SYN 0 win 10000
        > ACK 2 ack 2
        < ACK 2 ack 2 win 10000
        +10s
        = Closed
        !
        ",
    );
}

/// Covers: RFC 9293 §3.10.7.4 (fifth)
#[test]
fn in_the_window_what_has_no_ack_is_dropped() {
    let mut script = Script::in_state("TimeWait");
    script.trace(
        "
        +50s
        # FIN alone, with text, and text alone.
        < FIN 2 win 10000
        < FIN 500..600 win 10000
        < PSH 2..12 win 10000
        # The last byte alone lies in the window.
        < PSH 1..3 win 10000
        # Outside of it, the first check answers.
        < FIN 20000 win 10000
        > ACK 2 ack 2
        < FIN ACK 2 ack 2 win 10000
        > ACK 2 ack 2
        +10s
        = Closed
        !
        ",
    );
}

/// Covers: RFC 5961 §3.2
#[test]
fn resets_follow_rfc_5961() {
    let mut script = Script::in_state("TimeWait");
    script.trace(
        "
        < RST 1
        < RST 3
        > ACK 2 ack 2
        < RST 20000
        = TimeWait
        < RST 2
        = Closed
        !
        ",
    );
}

fn header(seq: u32, ack: u32, flags: Flags) -> Header {
    Header {
        source_port: 40_000,
        destination_port: 80,
        seq: IRS.wrapping_add(seq),
        ack: ISS.wrapping_add(ack),
        flags,
        window: 1000,
        ..Header::default()
    }
}

fn compact(script: &mut Script) -> TimeWait {
    let mut script = std::mem::replace(script, Script::listen(config()));
    script.tcp().time_wait().expect("all is read and sent")
}

/// Covers: RFC 9293 §3.6.1
#[test]
fn the_compact_form_answers_like_the_connection() {
    let mut script = Script::in_state("TimeWait");
    let now = script.now;
    let mut time_wait = compact(&mut script);
    assert_eq!(time_wait.expires(), now + config().time_wait);
    let later = now + config().time_wait / 2;
    let fin = Segment {
        header: header(1, 2, Flags::FIN | Flags::ACK),
        payload: &[],
        ecn: wire::ip::Ecn::NotEct,
    };
    let answer = time_wait
        .on_segment(later, &fin)
        .expect("an acknowledgment");
    assert_eq!(
        answer,
        Header {
            source_port: 80,
            destination_port: 40_000,
            seq: ISS.wrapping_add(2),
            ack: IRS.wrapping_add(2),
            flags: Flags::ACK,
            window: 9_999,
            options: Options::default(),
        }
    );
    assert_eq!(time_wait.expires(), later + config().time_wait);
    let reset = Segment {
        header: header(2, 0, Flags::RST),
        payload: &[],
        ecn: wire::ip::Ecn::NotEct,
    };
    assert_eq!(time_wait.on_segment(later, &reset), None);
    assert_eq!(time_wait.expires(), later);
}

/// Covers: RFC 9293 §3.6.1
#[test]
fn there_is_no_compact_form_while_something_is_unread() {
    let mut script = Script::in_state("FinWait2");
    script.trace(
        "
        < FIN ACK 1..11 ack 2 win 10000
        > ACK 2 ack 12
        = TimeWait
        ",
    );
    assert!(script.tcp().time_wait().is_none());
    script.trace("read 10");
    assert!(script.tcp().time_wait().is_some());
    assert!(Script::in_state("FinWait2").tcp().time_wait().is_none());
}

fn syn(seq: u32, timestamp: Option<u32>) -> Header {
    let timestamps = timestamp.map(|value| Timestamps {
        value,
        echo_reply: 0,
    });
    Header {
        options: Options {
            timestamps,
            ..Options::default()
        },
        ..header(seq, 0, Flags::SYN)
    }
}

fn may_replace(connection: &mut Connection, header: Header) -> bool {
    let syn = Segment {
        header,
        payload: &[],
        ecn: wire::ip::Ecn::NotEct,
    };
    connection.replaced_by(&syn).is_some()
}

/// Covers: RFC 9293 §3.6.1
#[test]
fn a_newer_sequence_number_may_begin_a_new_incarnation() {
    let mut script = Script::in_state("TimeWait");
    let connection = script.tcp();
    assert!(may_replace(connection, syn(3, None)));
    assert!(may_replace(connection, syn(3, Some(5))));
    assert!(!may_replace(connection, syn(2, None)));
    assert!(!may_replace(connection, syn(0, None)));
    assert!(!may_replace(
        connection,
        header(3, 2, Flags::SYN | Flags::ACK)
    ));
    assert!(!may_replace(connection, header(3, 2, Flags::ACK)));
    assert!(!may_replace(
        connection,
        header(3, 2, Flags::SYN | Flags::RST)
    ));
    let mut script = Script::in_state("FinWait2");
    assert!(!may_replace(script.tcp(), syn(3, None)));
}

/// RFC 6191
///
/// Covers: RFC 6191 §2
#[test]
fn with_timestamps_the_newer_timestamp_decides() {
    let mut script = Script::listen(Config {
        timestamps: true,
        ..config()
    });
    script.trace(
        "
        < SYN 0 win 10000 mss 1000 ts 500 0
        > SYN ACK 0 ack 1
        < ACK 1 ack 1 win 10000 ts 501 1000
        shutdown
        > FIN ACK 1 ack 1
        < FIN ACK 1 ack 2 win 10000 ts 502 1000
        > ACK 2 ack 2 ts 1000 502
        ",
    );
    let connection = script.tcp();
    assert!(may_replace(connection, syn(0, Some(503))));
    assert!(may_replace(connection, syn(3, Some(502))));
    assert!(!may_replace(connection, syn(0, Some(502))));
    assert!(!may_replace(connection, syn(3, Some(501))));
    assert!(may_replace(connection, syn(3, None)));
    assert!(!may_replace(connection, syn(2, None)));
}

/// Covers: RFC 6191 §2
#[test]
fn this_side_opens_it_again_after_a_second_with_timestamps_and_else_when_it_is_over() {
    for timestamps in [true, false] {
        let mut script = Script::listen(Config {
            timestamps,
            ..config()
        });
        let ts = |ours: u32| match timestamps {
            true => format!(" ts {ours} 1000"),
            false => String::new(),
        };
        script.trace(&format!(
            "
            < SYN 0 win 10000 mss 1000{}
            > SYN ACK 0 ack 1
            < ACK 1 ack 1 win 10000{}
            shutdown
            > FIN ACK 1 ack 1
            < FIN ACK 1 ack 2 win 10000{}
            > ACK 2 ack 2
            ",
            ts(500).replace("1000", "0"),
            ts(501),
            ts(502),
        ));
        let time_wait = compact(&mut script);
        let begun_us = time_wait.expires().as_us() - 60_000_000;
        let after = |ms: u64| Instant::from_us(begun_us + ms * 1000);
        assert!(!time_wait.may_be_reused(after(999)));
        assert_eq!(time_wait.may_be_reused(after(1000)), timestamps);
        assert!(time_wait.may_be_reused(time_wait.expires()));
    }
}

/// Covers: RFC 7323 §5.3 (R1), RFC 7323 §3.2
#[test]
fn old_timestamps_are_answered_and_missing_ones_dropped_but_for_the_fin() {
    let mut script = Script::listen(Config {
        timestamps: true,
        ..config()
    });
    script.trace(
        "
        < SYN 0 win 10000 mss 1000 ts 500 0
        > SYN ACK 0 ack 1
        < ACK 1 ack 1 win 10000 ts 501 1000
        shutdown
        > FIN ACK 1 ack 1
        < FIN ACK 1 ack 2 win 10000 ts 502 1000
        > ACK 2 ack 2 ts 1000 502
        < FIN ACK 1 ack 2 win 10000
        > ACK 2 ack 2 ts 1000 502
        < ACK 2..102 ack 2 win 10000
        < FIN 1 win 10000 ts 502 1000
        < FIN ACK 1 ack 2 win 10000 ts 400 1000
        > ACK 2 ack 2 ts 1000 502
        +5ms
        < FIN ACK 1 ack 2 win 10000 ts 507 1000
        > ACK 2 ack 2 ts 1005 502
        ",
    );
}
