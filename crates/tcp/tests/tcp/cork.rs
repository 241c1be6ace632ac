//! Text that waits for a full segment: TCP_CORK, MSG_MORE, and what TCP_NODELAY changes about it
//! (tcp(7), send(2)). RFC 9293 §3.9.1.2 allows it: data that is not pushed may be combined with
//! that of later SENDs.

use tcp::Config;

use crate::script::{Script, config};

fn nagle() -> Script {
    Script::established_with(Config {
        nodelay: false,
        ..config()
    })
}

/// Covers: RFC 9293 §3.9.1.2
#[test]
fn less_than_a_full_segment_waits_until_the_cork_is_out() {
    let mut script = Script::established();
    script.trace("cork; write 300");
    assert!(script.tcp().is_corked());
    script.trace("+199ms\nuncork\n> PSH ACK 1..301 ack 1");
    assert!(!script.tcp().is_corked());
    script.trace("< ACK 1 ack 301 win 10000\nwrite 1\n> PSH ACK 301..302 ack 1");
}

/// Covers: RFC 9293 §3.9.1.2
#[test]
fn a_cork_that_is_forgotten_delays_text_by_200_ms() {
    let mut script = Script::established();
    script.trace(
        "
        cork; write 300
        +199ms
        write 300
        +1ms
        > PSH ACK 1..601 ack 1
        < ACK 1 ack 601 win 10000
        write 50
        +199ms
        = Established
        +1ms
        > PSH ACK 601..651 ack 1
        ",
    );
}

/// Covers: RFC 9293 §3.9.1.2
#[test]
fn each_rest_has_its_own_200_ms() {
    let mut script = Script::established();
    script.trace(
        "
        cork; write 300
        +150ms
        write 900
        > ACK 1..1001 ack 1
        < ACK 1 ack 1001 win 10000
        +199ms
        = Established
        +1ms
        > PSH ACK 1001..1201 ack 1
        ",
    );
}

/// Covers: RFC 9293 §3.9.1.2
#[test]
fn virtual_bytes_fill_the_segment_that_a_head_begins() {
    let mut script = Script::established();
    script.trace(
        "
        cork; write 300
        virtual 2000
        > ACK 1..2001 ack 1 real 300 file 1700
        virtual 100
        write 50; uncork
        > PSH ACK 2001..2451 ack 1 file 300 file 100 real 50
        ",
    );
}

/// Covers: RFC 9293 §3.9.1.2
#[test]
fn full_segments_go_although_something_is_in_flight() {
    let mut script = Script::established();
    script.trace(
        "
        cork; write 1500
        > ACK 1..1001 ack 1
        write 500
        > PSH ACK 1001..2001 ack 1
        < ACK 1 ack 2001 win 10000
        ",
    );
}

/// Covers: RFC 9293 §3.9.1.2
#[test]
fn the_end_of_the_stream_lets_all_go() {
    let mut script = Script::established();
    script.trace(
        "
        cork; write 300
        +100ms
        shutdown
        > FIN PSH ACK 1..301 ack 1
        +105ms
        = FinWait1
        < ACK 1 ack 302 win 10000
        +59s
        = FinWait2
        uncork
        +1s
        ! Drained, Closed(TimedOut)
        ",
    );
}

/// Covers: RFC 9293 §3.9.1.2, RFC 9293 §3.7.4
#[test]
fn nodelay_lets_go_what_waits_and_the_cork_holds_what_comes_later() {
    // tcp(7): "This option is overridden by TCP_CORK; however, setting this option forces an
    // explicit flush of pending output, even if TCP_CORK is currently set."
    let mut script = nagle();
    script.trace(
        "
        cork; write 300
        nodelay on
        > PSH ACK 1..301 ack 1
        < ACK 1 ack 301 win 10000
        write 300
        +199ms
        uncork
        > PSH ACK 301..601 ack 1
        ",
    );
    assert!(script.tcp().nodelay());
}

/// Covers: RFC 9293 §3.9.1.2, RFC 9293 §3.7.4
#[test]
fn a_cork_that_comes_out_does_not_wait_for_an_acknowledgment() {
    let mut script = nagle();
    script.trace(
        "
        write 100
        > PSH ACK 1..101 ack 1
        cork; write 100
        uncork
        > PSH ACK 101..201 ack 1
        write 100
        < ACK 1 ack 201 win 10000
        > PSH ACK 201..301 ack 1
        ",
    );
}

/// Covers: RFC 9293 §3.9.1.2, RFC 9293 §3.7.4
#[test]
fn with_the_nagle_algorithm_a_cork_holds_although_nothing_is_in_flight() {
    let mut script = nagle();
    script.trace(
        "
        write 100
        > PSH ACK 1..101 ack 1
        cork; write 100
        < ACK 1 ack 101 win 10000
        +199ms
        = Established
        +1ms
        > PSH ACK 101..201 ack 1
        ",
    );
}

/// Covers: RFC 9293 §3.9.1.2
#[test]
fn more_to_come_holds_a_write_until_the_next_one() {
    let mut script = Script::established();
    script.trace(
        "
        write 100; more
        +100ms
        write 200
        > PSH ACK 1..301 ack 1
        write 100; more
        virtual 100
        > PSH ACK 301..501 ack 1 real 100 file 100
        virtual 100; more
        +199ms
        +1ms
        > PSH ACK 501..601 ack 1
        write 100; more; shutdown
        > FIN PSH ACK 601..701 ack 1
        ",
    );
}

/// Covers: RFC 9293 §3.9.1.2
#[test]
fn a_write_for_which_there_is_no_room_waits_for_nothing() {
    let mut script = Script::established_with(Config {
        send_buffer_bytes: 500,
        send_buffer_bytes_max: 500,
        ..config()
    });
    script.trace("cork");
    assert_eq!(script.tcp().write(&[0; 600]), 500);
    script.tcp().expect_more();
    script.trace("= Established; > PSH ACK 1..501 ack 1");
}

/// Covers: RFC 9293 §3.9.1.2, RFC 9293 §3.8.6.1
#[test]
fn what_waits_for_the_window_is_probed_for_and_then_waits_for_more() {
    let mut script = Script::established();
    script.trace(
        "
        < ACK 1 ack 1 win 0
        cork; write 300
        +210ms
        > ACK 0 ack 1
        < ACK 1 ack 1 win 10000
        +199ms
        = Established
        +1ms
        > PSH ACK 1..301 ack 1
        ",
    );
}

/// Covers: RFC 9293 §3.9.1.2, RFC 9293 §3.8.6.1
#[test]
fn a_window_that_has_opened_is_not_probed_while_text_waits_for_more() {
    let mut script = Script::established();
    script.trace(
        "
        < ACK 1 ack 1 win 0
        cork; write 300
        +100ms
        < ACK 1 ack 1 win 10000
        +199ms
        +1ms
        > PSH ACK 1..301 ack 1
        ",
    );
}

/// Covers: RFC 9293 §3.9.1.2, RFC 9293 §3.8.6.2.1
#[test]
fn the_time_of_what_has_left_does_not_count_for_what_the_window_held_back() {
    let mut script = Script::established();
    script.trace(
        "
        cork; write 300
        +150ms
        < ACK 1 ack 1 win 1100
        write 900
        > ACK 1..1001 ack 1
        +50ms
        < ACK 1 ack 1001 win 10000
        +199ms
        +1ms
        > PSH ACK 1001..1201 ack 1
        ",
    );
}
