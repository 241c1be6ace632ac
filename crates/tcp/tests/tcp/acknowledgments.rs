//! When received text is acknowledged (RFC 9293 §3.8.6.3, RFC 5681 §4.2).

use crate::script::{Script, config};
use tcp::Config;

/// Covers: RFC 5681 §4.2, RFC 9293 §3.8.6.3
#[test]
fn one_segment_waits_and_the_second_does_not() {
    let mut script = Script::established();
    script.trace(
        "
        < ACK 1..1001 ack 1 win 10000
        +39ms
        < ACK 1001..2001 ack 1 win 10000
        > ACK 1 ack 2001
        < ACK 2001..3001 ack 1 win 10000
        +39ms
        +1ms
        > ACK 1 ack 3001
        +1s
        ",
    );
}

/// Covers: RFC 5681 §4.2
#[test]
fn the_delay_counts_from_the_first_segment_that_waits() {
    let mut script = Script::established();
    script.trace(
        "
        < PSH ACK 1..101 ack 1 win 10000
        +30ms
        < PSH ACK 101..201 ack 1 win 10000
        +10ms
        > ACK 1 ack 201
        ",
    );
}

/// Covers: RFC 9293 §3.8.6.3
#[test]
fn data_carries_the_acknowledgment() {
    let mut script = Script::established();
    script.trace(
        "
        < PSH ACK 1..301 ack 1 win 10000
        write 500
        > PSH ACK 1..501 ack 301
        < ACK 301 ack 501 win 10000
        +1s
        ",
    );
}

/// Covers: RFC 5681 §4.2
#[test]
fn a_merged_superpacket_is_acknowledged_at_once() {
    let mut script = Script::established();
    script.trace(
        "
        < ACK 1..8001 ack 1 win 10000
        > ACK 1 ack 8001
        ",
    );
}

/// Covers: RFC 5681 §4.2
#[test]
fn each_segment_out_of_order_is_acknowledged_at_once_and_so_is_the_one_that_fills_the_gap() {
    let mut script = Script::established();
    script.trace(
        "
        < ACK 1001..2001 ack 1 win 10000
        > ACK 1 ack 1 win 10000
        < ACK 3001..4001 ack 1 win 10000
        > ACK 1 ack 1 win 10000
        < ACK 1..1001 ack 1 win 10000
        > ACK 1 ack 2001
        < ACK 2001..3001 ack 1 win 10000
        > ACK 1 ack 4001
        read 4000
        ",
    );
}

/// Covers: RFC 5681 §2, RFC 5681 §4.2
#[test]
fn duplicates_go_alone_even_if_there_is_data() {
    let mut script = Script::established();
    script.trace(
        "
        < ACK 1..101 ack 1 win 10000
        write 100
        > PSH ACK 1..101 ack 101
        write 100; < ACK 201..301 ack 1 win 10000
        > ACK 101 ack 101
        > PSH ACK 101..201 ack 101
        ",
    );
}

/// Covers: RFC 9293 §3.10.7.4 (first)
#[test]
fn old_text_is_acknowledged_at_once() {
    let mut script = Script::established();
    script.trace(
        "
        < ACK 1..2001 ack 1 win 10000
        > ACK 1 ack 2001
        < ACK 1..1001 ack 1 win 10000
        > ACK 1 ack 2001
        < ACK 1001..2001 ack 1 win 10000
        > ACK 1 ack 2001
        ! Readable
        ",
    );
}

/// Covers: RFC 9293 §3.8.6.3
#[test]
fn the_delay_is_configurable() {
    let delayed_ack = std::time::Duration::from_millis(5);
    let mut script = Script::established_with(Config {
        delayed_ack,
        ..config()
    });
    script.trace(
        "
        < ACK 1..101 ack 1 win 10000
        +5ms
        > ACK 1 ack 101
        ",
    );
}

fn quick() -> Script {
    Script::established_with(Config {
        quick_acks: 2,
        ..config()
    })
}

/// Covers: RFC 5681 §4.2
#[test]
fn at_the_start_full_sized_segments_are_acknowledged_one_by_one() {
    let mut script = quick();
    script.trace(
        "
        < ACK 1..1001 ack 1 win 10000
        > ACK 1 ack 1001
        < ACK 1001..2001 ack 1 win 10000
        > ACK 1 ack 2001
        < ACK 2001..3001 ack 1 win 10000
        < ACK 3001..4001 ack 1 win 10000
        > ACK 1 ack 4001
        ",
    );
}

/// Covers: RFC 9293 §3.8.6.3
#[test]
fn the_end_of_a_message_waits_for_the_answer_to_carry_its_acknowledgment() {
    let mut script = quick();
    script.trace(
        "
        < PSH ACK 1..601 ack 1 win 10000
        > ACK 1 ack 601
        write 500
        > PSH ACK 1..501 ack 601
        < PSH ACK 601..1201 ack 501 win 10000
        +10ms
        write 500
        > PSH ACK 501..1001 ack 1201
        ",
    );
}

/// As Linux has it (`icsk_ack.pingpong`).
///
/// Covers: RFC 9293 §3.8.6.3
#[test]
fn short_segments_are_acknowledged_at_once_until_one_was_answered() {
    let quick = || {
        Script::established_with(Config {
            quick_acks: 16,
            ..config()
        })
    };
    // Who speaks first has answered nothing.
    let mut script = quick();
    script.trace(
        "
        write 100
        > PSH ACK 1..101 ack 1
        < PSH ACK 1..11 ack 101 win 10000
        > ACK 101 ack 11
        < PSH ACK 11..21 ack 101 win 10000
        > ACK 101 ack 21
        # Later than a delayed acknowledgment would be: it is no answer to that.
        +40ms
        write 100
        > PSH ACK 101..201 ack 21
        < PSH ACK 21..31 ack 201 win 10000
        > ACK 201 ack 31
        +39ms
        write 100
        > PSH ACK 201..301 ack 31
        < PSH ACK 31..41 ack 301 win 10000
        +39ms
        +1ms
        > ACK 301 ack 41
        # That was delayed in vain.
        < PSH ACK 41..51 ack 301 win 10000
        > ACK 301 ack 51
        ",
    );
    // An answer that waits for the NIC stack is one.
    let mut script = quick();
    script.trace(
        "
        hold
        < PSH ACK 1..11 ack 1 win 10000
        > ACK 1 ack 11
        virtual 100
        > PSH ACK 1..101 ack 11
        < PSH ACK 11..21 ack 1 win 10000
        +40ms
        > ACK 101 ack 21
        ",
    );
}

/// Covers: RFC 5681 §4.2
#[test]
fn after_a_pause_and_after_a_gap_it_begins_again() {
    let mut script = quick();
    script.trace(
        "
        < ACK 1..1001 ack 1 win 10000
        > ACK 1 ack 1001
        < ACK 1001..2001 ack 1 win 10000
        > ACK 1 ack 2001
        < ACK 2001..3001 ack 1 win 10000
        +40ms
        > ACK 1 ack 3001
        +1s
        < ACK 3001..4001 ack 1 win 10000
        > ACK 1 ack 4001
        < ACK 4001..5001 ack 1 win 10000
        > ACK 1 ack 5001
        read 5000
        > ACK 1 ack 5001
        < ACK 6001..7001 ack 1 win 10000
        > ACK 1 ack 5001
        < ACK 5001..6001 ack 1 win 10000
        > ACK 1 ack 7001
        < ACK 7001..8001 ack 1 win 10000
        > ACK 1 ack 8001
        ",
    );
}

/// Covers: RFC 9293 §3.8.6.3, RFC 5681 §4.2
#[test]
fn an_application_may_have_acknowledgments_at_once_for_a_while() {
    let mut script = Script::established();
    script.trace("write 1\n> PSH ACK 1..2 ack 1\n< PSH ACK 1..2 ack 2 win 10000");
    assert!(!script.tcp().quickack());
    script.tcp().set_quickack(true);
    assert!(script.tcp().quickack());
    // What was received before, and sixteen more, small as they are.
    script.trace("> ACK 2 ack 2");
    for seq in 2..18 {
        let next = seq + 1;
        script.trace(&format!(
            "< PSH ACK {seq}..{next} ack 2 win 10000\n> ACK 2 ack {next}"
        ));
    }
    assert!(!script.tcp().quickack(), "not permanent");
    script.trace("< PSH ACK 18..19 ack 2 win 10000\n+39ms\n+1ms\n> ACK 2 ack 19");
}

/// Covers: RFC 9293 §3.8.6.3
#[test]
fn an_application_may_have_acknowledgments_delayed() {
    let mut script = Script::established_with(Config {
        quick_acks: 16,
        ..config()
    });
    script.trace("< ACK 1..1001 ack 1 win 10000\n> ACK 1 ack 1001");
    script.tcp().set_quickack(false);
    script.trace("< ACK 1001..2001 ack 1 win 10000\n+39ms\n+1ms\n> ACK 1 ack 2001");
    // What is out of order is not delayed, nor what follows.
    script.trace(
        "
        < ACK 3001..4001 ack 1 win 10000
        > ACK 1 ack 2001
        < ACK 2001..3001 ack 1 win 10000
        > ACK 1 ack 4001
        < ACK 4001..5001 ack 1 win 10000
        > ACK 1 ack 5001
        ",
    );
}
