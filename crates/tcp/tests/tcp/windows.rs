//! Windows: offered, used, closed and probed (RFC 9293 §3.8.6, RFC 7323 §2).

use crate::script::{ISS, LIMITS, Script, config};
use tcp::{Config, Connection, ConnectionEvent, Instant};

/// Covers: RFC 9293 §3.8.6, RFC 9293 §3.8.6.2.1
#[test]
fn no_more_is_sent_than_the_peer_offers() {
    let mut script = Script::listen(config());
    script.trace(
        "
        < SYN 0 win 2500 mss 1000
        > SYN ACK 0 ack 1
        < ACK 1 ack 1 win 2500
        write 4000
        > ACK 1..2001 ack 1
        < ACK 1 ack 1001 win 1500
        # 500 bytes of window: neither a full segment nor half of the largest window.
        < ACK 1 ack 2001 win 1500
        > ACK 2001..3001 ack 1
        < ACK 1 ack 3001 win 2500
        > PSH ACK 3001..4001 ack 1
        ",
    );
}

/// Covers: RFC 9293 §3.8.6.2.1
#[test]
fn the_usable_window_is_what_may_be_sent_at_once() {
    let mut script = Script::established();
    let offered = 10_000;
    assert_eq!(script.tcp().usable_window_bytes(), offered);
    script.trace(
        "
        write 4000
        > PSH ACK 1..4001 ack 1
        ",
    );
    assert_eq!(script.tcp().usable_window_bytes(), offered - 4000);
    script.trace(
        "
        +10ms
        < ACK 1 ack 4001 win 700
        ",
    );
    assert_eq!(script.tcp().usable_window_bytes(), 700);
}

/// Covers: RFC 9293 §3.8.6.2.1
#[test]
fn half_of_the_largest_window_is_not_silly() {
    let mut script = Script::listen(config());
    script.trace(
        "
        < SYN 0 win 800 mss 1000
        > SYN ACK 0 ack 1
        < ACK 1 ack 1 win 800
        write 1000
        > ACK 1..801 ack 1
        < ACK 1 ack 801 win 400
        > PSH ACK 801..1001 ack 1
        ",
    );
}

/// Covers: RFC 9293 §3.8.6.2.1
#[test]
fn a_small_window_is_used_when_the_override_timer_expires() {
    let mut script = Script::established();
    script.trace(
        "
        write 2000
        > PSH ACK 1..2001 ack 1
        +10ms
        < ACK 1 ack 2001 win 0
        write 1000
        +100ms
        < ACK 1 ack 2001 win 300
        +110ms
        > ACK 2001..2301 ack 1
        < ACK 1 ack 2301 win 10000
        > PSH ACK 2301..3001 ack 1
        ",
    );
}

/// Covers: RFC 9293 §3.8.6.1
#[test]
fn a_closed_window_is_probed_with_backoff_as_long_as_the_peer_answers() {
    let mut script = Script::established();
    script.trace(
        "
        write 1000
        > PSH ACK 1..1001 ack 1
        < ACK 1 ack 1001 win 0
        write 1000
        ",
    );
    let mut intervals_ms = Vec::new();
    for _ in 0..40 {
        let at = script.tcp().next_timeout().expect("the persist timer");
        let interval = at.since(script.now);
        intervals_ms.push(interval.as_millis());
        script.trace(&format!(
            "
            +{}us
            > ACK 1000 ack 1
            < ACK 1 ack 1001 win 0
            ",
            interval.as_micros()
        ));
    }
    // The first after an RTO: the round trips were 10 ms and 0 ms.
    let expected = [
        208, 417, 835, 1670, 3340, 6680, 13_360, 26_720, 53_440, 60_000, 60_000,
    ];
    assert_eq!(intervals_ms[..11], expected);
    assert_eq!(intervals_ms[39], 60_000);
    script.trace(
        "
        = Established
        < ACK 1 ack 1001 win 10000
        > PSH ACK 1001..2001 ack 1
        < ACK 1 ack 2001 win 10000
        +1000s
        ",
    );
}

/// Covers: RFC 9293 §3.8.6.1
#[test]
fn a_closed_window_is_probed_once_pacing_would_let_data_go() {
    let mut script = Script::established();
    script.trace(
        "
        rate 1000
        write 4000
        > ACK 1..2001 ack 1
        +10ms
        < ACK 1 ack 2001 win 0
        # What departed takes two seconds.
        +1980ms
        +209999us
        +1us
        > ACK 2000 ack 1
        < ACK 1 ack 2001 win 10000
        > PSH ACK 2001..4001 ack 1 at -
        ",
    );
}

/// Covers: RFC 9293 §3.8.3, RFC 9293 §3.8.6.1
#[test]
fn unanswered_probes_end_the_connection() {
    let mut script = Script::established_with(Config {
        retries: 3,
        ..config()
    });
    script.trace(
        "
        write 1000
        > PSH ACK 1..1001 ack 1
        < ACK 1 ack 1001 win 0
        write 10
        +300ms
        > ACK 1000 ack 1
        +600ms
        > ACK 1000 ack 1
        +1s
        > ACK 1000 ack 1
        +60s
        = Closed
        ! Drained, Closed(TimedOut)
        ",
    );
}

/// Covers: RFC 9293 §3.8.6.1
#[test]
fn fin_waits_for_the_window_too() {
    let mut script = Script::established();
    script.trace(
        "
        write 1000
        > PSH ACK 1..1001 ack 1
        < ACK 1 ack 1001 win 0
        shutdown
        +300ms
        > ACK 1000 ack 1
        < ACK 1 ack 1001 win 1
        > FIN ACK 1001 ack 1
        ",
    );
}

/// Covers: RFC 9293 §3.8.6.1, RFC 9293 §3.10.7.4 (first)
#[test]
fn probes_of_the_peer_are_answered() {
    let mut script = Script::established();
    script.trace(
        "
        < ACK 1..10001 ack 1 win 10000
        > ACK 1 ack 10001 win 0
        # An empty segment below the window, or a byte beyond it.
        < ACK 10000 ack 1 win 10000
        > ACK 1 ack 10001 win 0
        < ACK 10001..10002 ack 1 win 10000
        > ACK 1 ack 10001 win 0
        ",
    );
}

/// Covers: RFC 9293 §3.8.6 (SHLD-15), RFC 9293 §3.8.6 (SHLD-16), RFC 9293 §3.8.6 (MUST-34)
#[test]
fn a_shrunk_window_stops_new_data_and_the_head_goes_on_probing() {
    // RFC 9293 §3.8.6, SHLD-15, SHLD-16, MUST-34
    let mut script = Script::established_with(Config {
        retries: 3,
        ..config()
    });
    script.trace(
        "
        write 3000
        > PSH ACK 1..3001 ack 1
        < ACK 1 ack 1001 win 0
        write 1000
        +300ms
        > ACK 1001..2001 ack 1
        < ACK 1 ack 1001 win 0
        +500ms
        > ACK 1001..2001 ack 1
        < ACK 1 ack 1001 win 0
        +1s
        > ACK 1001..2001 ack 1
        < ACK 1 ack 1001 win 0
        +2s
        > ACK 1001..2001 ack 1
        < ACK 1 ack 1001 win 0
        = Established
        < ACK 1 ack 1001 win 5000
        < ACK 1 ack 2001 win 5000
        > ACK 2001..3001 ack 1
        > PSH ACK 3001..4001 ack 1
        ",
    );
}

/// Covers: RFC 9293 §3.8.6 (MUST-34)
#[test]
fn acknowledgments_go_where_a_shrunk_window_takes_them() {
    let mut script = Script::established();
    script.trace(
        "
        write 3000
        > PSH ACK 1..3001 ack 1
        < ACK 1 ack 1001 win 500
        < PSH ACK 1..1001 ack 1001 win 500
        < PSH ACK 1001..2001 ack 1001 win 0
        > ACK 1001 ack 2001
        < ACK 2001 ack 3001 win 10000
        < PSH ACK 2001..3001 ack 3001 win 10000
        < PSH ACK 3001..4001 ack 3001 win 10000
        > ACK 3001 ack 4001
        ",
    );
}

/// Covers: RFC 9293 §3.10.7.4 (fifth)
#[test]
fn an_older_segment_does_not_change_the_window() {
    // "If SND.WL1 < SEG.SEQ or (SND.WL1 = SEG.SEQ and SND.WL2 =< SEG.ACK)"
    let mut script = Script::established();
    script.trace(
        "
        < PSH ACK 101..201 ack 1 win 600
        > ACK 1 ack 1
        # Sent before the last one, with a larger window.
        < PSH ACK 1..101 ack 1 win 10000
        > ACK 1 ack 201
        write 1000
        +300ms
        > ACK 1..601 ack 201
        # A retransmission with a newer acknowledgment is newer, whatever its sequence number.
        < ACK 101..202 ack 601 win 400
        > PSH ACK 601..1001 ack 202
        ",
    );
}

/// Covers: RFC 9293 §3.8.6.2.2
#[test]
fn the_window_opens_when_the_application_reads_enough() {
    let mut script = Script::established();
    script.trace(
        "
        < ACK 1..10001 ack 1 win 10000
        > ACK 1 ack 10001 win 0
        read 999
        read 1
        > ACK 1 ack 10001 win 1000
        read 1000
        > ACK 1 ack 10001 win 2000
        read 1000
        read 1000
        > ACK 1 ack 10001 win 4000
        ",
    );
}

/// Covers: RFC 7323 §2.2, RFC 7323 §2.3
#[test]
fn windows_are_scaled_when_both_agree() {
    let config = Config {
        window_scaling: true,
        receive_buffer_bytes: 1 << 20,
        mss: 1000,
        ..config()
    };
    let mut script = Script::listen(config);
    script.trace(
        "
        < SYN 0 win 4 mss 1000 ws 8
        > SYN ACK 0 ack 1 ws 5 win 65535
        < ACK 1 ack 1 win 4
        write 3000
        # 4 << 8 = 1024
        > ACK 1..1001 ack 1 win 32768
        < ACK 1 ack 1001 win 12
        > PSH ACK 1001..3001 ack 1
        ",
    );
}

/// Covers: RFC 7323 §2.3
#[test]
fn a_shift_beyond_14_counts_as_14() {
    let mut script = Script::listen(Config {
        window_scaling: true,
        ..config()
    });
    script.trace(
        "
        < SYN 0 win 1 mss 1000 ws 255
        > SYN ACK 0 ack 1
        < ACK 1 ack 1 win 65535
        write 3000
        > PSH ACK 1..3001 ack 1
        ",
    );
}

/// Covers: RFC 9293 §3.10.2
#[test]
fn a_writer_that_was_held_back_is_woken() {
    let mut script = Script::established_with(Config {
        send_buffer_bytes: 1000,
        send_buffer_bytes_max: 1000,
        extents_max: 4,
        ..config()
    });
    let bytes = vec![0; 1500];
    assert_eq!(script.tcp().write(&bytes), 1000);
    assert_eq!(script.tcp().write(&bytes), 0);
    script.trace("> PSH ACK 1..1001 ack 1\n !");
    // A quarter of the buffer must be free.
    script.trace("< ACK 1 ack 250 win 10000\n !\n < ACK 1 ack 251 win 10000\n ! Writable");
    script.trace("< ACK 1 ack 1001 win 10000\n ! Drained");

    for _ in 0..4 {
        assert_eq!(script.tcp().write_virtual(1, 0, 10), 10);
    }
    assert_eq!(script.tcp().write_virtual(1, 0, 10), 0);
    assert_eq!(script.tcp().write(&bytes), 0);
    script.trace("> PSH ACK 1001..1041 ack 1\n < ACK 1 ack 1011 win 10000");
    let connection = script.tcp();
    let expected = [
        ConnectionEvent::Released {
            object: 1,
            stream_end: 1010,
        },
        ConnectionEvent::Writable,
    ];
    for event in expected {
        assert_eq!(connection.poll_event(), Some(event));
    }
    assert_eq!(connection.poll_event(), None);
    assert_eq!(connection.queued_bytes(), 30);
    assert_eq!(connection.acknowledged_bytes(), 1010);
}

#[test]
fn empty_and_absurd_ranges_are_not_queued() {
    let mut script = Script::established();
    let connection = script.tcp();
    assert_eq!(connection.write_virtual(1, 5, 0), 0);
    assert_eq!(connection.write_virtual(1, 0, u64::MAX), 0);
    assert_eq!(connection.write_virtual(1, u64::MAX - 1, 3), 0);
    assert_eq!(connection.write(b""), 0);
    assert_eq!(connection.queued_bytes(), 0);
    script.trace("!");
}

/// Covers: RFC 9293 §3.8.6.2.2
#[test]
fn a_peer_that_has_finished_needs_no_window() {
    let mut script = Script::established();
    script.trace(
        "
        < FIN ACK 1..10001 ack 1 win 10000
        > ACK 1 ack 10002
        read 10000
        ",
    );
}

/// Covers: RFC 9293 §3.8.6 (SHLD-14), RFC 9293 §3.8.6.2.2
#[test]
fn a_receive_buffer_made_smaller_takes_nothing_back_that_was_offered() {
    let mut script = Script::established();
    script.tcp().set_receive_buffer_bytes(4000);
    assert_eq!(script.tcp().receive_buffer_bytes(), 4000);
    script.trace(
        "
        < ACK 1..2001 ack 1 win 10000
        > ACK 1 ack 2001 win 8000
        < ACK 2001..10001 ack 1 win 10000
        > ACK 1 ack 10001 win 0
        read 6000
        read 1000
        > ACK 1 ack 10001 win 1000
        read 3000
        > ACK 1 ack 10001 win 4000
        ",
    );
}

/// Covers: RFC 9293 §3.8.6.2.2
#[test]
fn a_larger_receive_buffer_opens_a_closed_window_at_once() {
    let mut script = Script::established();
    script.trace("< ACK 1..10001 ack 1 win 10000\n> ACK 1 ack 10001 win 0");
    script.tcp().set_receive_buffer_bytes(25_000);
    script.trace("> ACK 1 ack 10001 win 15000");
}

/// Covers: RFC 7323 §2.3, RFC 9293 §3.8.6 (SHLD-14)
#[test]
fn the_window_scale_follows_a_receive_buffer_that_is_set_before_the_syn_and_no_other() {
    let scaling = Config {
        window_scaling: true,
        ..config()
    };
    let mut client = Connection::connect(&scaling, 80, 40_000, ISS, 0, Instant::from_us(0));
    client.set_receive_buffer_bytes(1 << 20);
    let syn = client
        .poll_transmit(Instant::from_us(0), &LIMITS)
        .expect("a SYN");
    assert_eq!(
        (syn.header.options.window_scale, syn.header.window),
        (Some(5), 65_535)
    );

    let mut script = Script::connect(scaling);
    script.trace("> SYN 0 win 10000 ws 0");
    script.tcp().set_receive_buffer_bytes(1 << 20);
    script.trace("< SYN ACK 0 ack 1 win 10000 ws 7\n> ACK 1 ack 1 win 65535");

    let mut script = Script::connect(scaling);
    script.trace("> SYN 0 win 10000 ws 0");
    script.tcp().set_receive_buffer_bytes(500);
    script.trace("+1s\n> SYN 0 win 10000 ws 0\n< SYN ACK 0 ack 1 win 10000 ws 7\n> ACK 1 ack 1");
    script.trace("< ACK 9001..10001 ack 1 win 100\n> ACK 1 ack 1 win 10000");
    assert_eq!(script.tcp().receive_buffer_bytes(), 500);
    script.tcp().set_memory_pressure(true);
    script.tcp().set_memory_pressure(false);
    assert_eq!(script.tcp().receive_buffer_bytes(), 500);
}

/// Covers: RFC 9293 §3.9.1.2
#[test]
fn a_send_buffer_that_is_set_does_not_follow_the_window_and_wakes_a_writer() {
    let mut script = Script::established();
    script.tcp().set_send_buffer_bytes(1000);
    assert_eq!(script.tcp().send_buffer_bytes(), 1000);
    assert_eq!(script.tcp().write(&[0; 1500]), 1000);
    script.trace("> PSH ACK 1..1001 ack 1\n!");
    script.tcp().set_send_buffer_bytes(1300);
    script.trace("!");
    script.tcp().set_send_buffer_bytes(1334);
    script.trace("! Writable");
    assert_eq!(script.tcp().write(&[0; 1500]), 334);
    script.trace("> PSH ACK 1001..1335 ack 1");
    script.tcp().set_send_buffer_bytes(0);
    assert_eq!(script.tcp().send_buffer_bytes(), 1);
    script.trace("< ACK 1 ack 1334 win 10000\n!\n< ACK 1 ack 1335 win 10000\n! Writable, Drained");
}
