//! The Nagle algorithm, for those who want it (RFC 9293 §3.7.4).

use tcp::Config;

use crate::script::{Script, config};

fn nagle() -> Script {
    Script::established_with(Config {
        nodelay: false,
        ..config()
    })
}

/// Covers: RFC 9293 §3.7.4
#[test]
fn small_segments_wait_until_nothing_is_in_flight() {
    let mut script = nagle();
    script.trace(
        "
        write 100
        > PSH ACK 1..101 ack 1
        write 100
        write 200
        +100ms
        < ACK 1 ack 101 win 10000
        > PSH ACK 101..401 ack 1
        ",
    );
}

/// Covers: RFC 9293 §3.7.4
#[test]
fn full_segments_do_not_wait_and_their_rest_does() {
    let mut script = nagle();
    script.trace(
        "
        write 2300
        > ACK 1..2001 ack 1
        write 700
        > PSH ACK 2001..3001 ack 1
        write 1
        < ACK 1 ack 3001 win 10000
        > PSH ACK 3001..3002 ack 1
        ",
    );
}

/// Covers: RFC 9293 §3.7.4
#[test]
fn the_end_of_the_stream_does_not_wait() {
    let mut script = nagle();
    script.trace(
        "
        write 100
        > PSH ACK 1..101 ack 1
        write 100; shutdown
        > FIN PSH ACK 101..201 ack 1
        ",
    );
}

/// Covers: RFC 9293 §3.7.4
#[test]
fn it_is_off_unless_asked_for_and_can_be_turned_off() {
    let mut script = Script::established();
    script.trace("write 100\n> PSH ACK 1..101 ack 1\nwrite 100\n> PSH ACK 101..201 ack 1");
    let mut script = nagle();
    script.trace("write 100\n> PSH ACK 1..101 ack 1\nwrite 100");
    script.tcp().set_nodelay(true);
    script.trace("> PSH ACK 101..201 ack 1");
}
