//! Text: what is taken, in which order, and how much (RFC 9293 §3.10.7.4, first and seventh).

use crate::script::{Script, config};
use tcp::Config;

/// Covers: RFC 9293 §3.10.7.4 (seventh)
#[test]
fn text_is_taken_in_all_states_in_which_the_peer_may_send() {
    for state in ["Established", "FinWait1", "FinWait2"] {
        let seq = if state == "Established" { 1 } else { 2 };
        let ack = if state == "FinWait2" { 2 } else { 1 };
        let mut script = Script::in_state(state);
        script.trace(&format!(
            "
            < ACK 1..2001 ack {ack} win 10000
            > ACK {seq} ack 2001
            read 2000
            = {state}
            "
        ));
    }
}

/// Covers: RFC 9293 §3.10.7.4 (first)
#[test]
fn text_is_cut_to_the_window() {
    let mut script = Script::established();
    script.trace(
        "
        < ACK 1..9501 ack 1 win 10000
        > ACK 1 ack 9501 win 500
        # Half of it lies beyond the right edge.
        < ACK 9501..10501 ack 1 win 10000
        +40ms
        > ACK 1 ack 10001 win 0
        < ACK 10001..10101 ack 1 win 10000
        > ACK 1 ack 10001 win 0
        ",
    );
    assert_eq!(script.tcp().unread_bytes(), 10_000);
}

/// Covers: RFC 9293 §3.10.7.4 (first)
#[test]
fn a_segment_may_begin_before_the_window_and_end_behind_it() {
    let mut script = Script::established();
    script.trace(
        "
        < ACK 1..5001 ack 1 win 10000
        > ACK 1 ack 5001 win 5000
        < ACK 4001..15001 ack 1 win 10000
        > ACK 1 ack 10001 win 0
        ",
    );
}

/// Covers: RFC 9293 §3.10.7.4 (seventh)
#[test]
fn overlapping_segments_in_any_order_are_put_together() {
    let mut script = Script::established();
    script.trace(
        "
        < ACK 501..1501 ack 1 win 10000
        > ACK 1 ack 1
        < ACK 401..601 ack 1 win 10000
        > ACK 1 ack 1
        < ACK 2001..3001 ack 1 win 10000
        > ACK 1 ack 1
        < ACK 1401..2101 ack 1 win 10000
        > ACK 1 ack 1
        < ACK 1..451 ack 1 win 10000
        > ACK 1 ack 3001
        read 3000
        ",
    );
}

/// Covers: RFC 9293 §3.10.7.4 (seventh)
#[test]
fn fragments_beyond_the_bound_are_dropped_and_come_again() {
    let mut script = Script::established_with(Config {
        reassembly_fragments_max: 2,
        ..config()
    });
    script.trace(
        "
        < ACK 101..201 ack 1 win 10000
        > ACK 1 ack 1
        < ACK 301..401 ack 1 win 10000
        > ACK 1 ack 1
        < ACK 501..601 ack 1 win 10000
        > ACK 1 ack 1
        < ACK 1..101 ack 1 win 10000
        > ACK 1 ack 201
        < ACK 201..301 ack 1 win 10000
        > ACK 1 ack 401
        < ACK 401..501 ack 1 win 10000
        +40ms
        > ACK 1 ack 501
        < ACK 501..601 ack 1 win 10000
        +40ms
        > ACK 1 ack 601
        read 600
        ",
    );
}

/// Covers: RFC 9293 §3.8.5, RFC 6093 §6
#[test]
fn urgent_data_is_text() {
    let mut script = Script::established();
    script.trace(
        "
        < URG PSH ACK 1..101 ack 1 win 10000
        read 100
        +40ms
        > ACK 1 ack 101
        ",
    );
}

/// Covers: RFC 9293 §3.10.7.4 (fifth)
#[test]
fn an_old_acknowledgment_does_not_spoil_the_text() {
    let mut script = Script::established();
    script.trace(
        "
        write 2000
        > PSH ACK 1..2001 ack 1
        < ACK 1 ack 2001 win 10000
        < PSH ACK 1..101 ack 1001 win 10000
        read 100
        ",
    );
}

/// "Special allowance should be made to accept valid ACKs": both may have closed their windows.
///
/// Covers: RFC 9293 §3.10.7.4 (first)
#[test]
fn with_a_closed_window_acknowledgments_still_count() {
    let mut script = Script::established();
    script.trace(
        "
        write 1000
        > PSH ACK 1..1001 ack 1
        < ACK 1..10001 ack 1 win 1000
        > ACK 1001 ack 10001 win 0
        < ACK 10001..10002 ack 1001 win 5000
        > ACK 1001 ack 10001 win 0
        ! Readable, Drained
        write 100
        > PSH ACK 1001..1101 ack 10001
        ",
    );
}

/// Covers: RFC 9293 §3.10.3
#[test]
fn what_was_received_can_be_read_after_the_end() {
    let mut script = Script::in_state("Established");
    script.trace(
        "
        < ACK 1..101 ack 1 win 10000
        < RST 101
        = Closed
        ! Readable, Closed(Reset)
        read 100
        ",
    );
}
