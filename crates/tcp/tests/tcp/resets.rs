//! Resets, SYNs and acknowledgments that come out of nowhere (RFC 5961, RFC 9293 §3.10.7.4).

use crate::script::{Script, config};
use tcp::Config;

/// SND.NXT and RCV.NXT, relative, in a state that [`Script::in_state`] has made.
fn next(state: &str) -> (u32, u32) {
    match state {
        "Established" => (1, 1),
        "FinWait1" | "FinWait2" => (2, 1),
        "CloseWait" => (1, 2),
        "Closing" | "LastAck" => (2, 2),
        other => panic!("{other}"),
    }
}

/// Covers: RFC 5961 §3.2, RFC 9293 §3.10.7.4 (second)
#[test]
fn a_reset_at_rcv_nxt_ends_the_connection() {
    for state in Script::SYNCHRONIZED {
        let (_, nxt) = next(state);
        let reason = match state {
            "Closing" | "LastAck" => "Finished",
            _ => "Reset",
        };
        let mut script = Script::in_state(state);
        script.trace(&format!(
            "
            < RST {nxt}
            = Closed
            ! Closed({reason})
            "
        ));
        assert!(script.tcp().is_closed(), "{state}");
    }
}

/// Covers: RFC 5961 §3.2, RFC 9293 §3.10.7.4 (second)
#[test]
fn a_reset_in_the_window_is_challenged() {
    for state in Script::SYNCHRONIZED {
        let (seq, ack) = next(state);
        let mut script = Script::in_state(state);
        script.trace(&format!(
            "
            < RST {}
            > ACK {seq} ack {ack}
            < RST {}
            > ACK {seq} ack {ack}
            = {state}
            !
            ",
            ack + 1,
            ack + 9998
        ));
    }
}

/// Covers: RFC 5961 §3.2, RFC 9293 §3.10.7.4 (first)
#[test]
fn a_reset_at_the_right_edge_is_outside_of_the_window() {
    for state in Script::SYNCHRONIZED {
        let (_, ack) = next(state);
        let mut script = Script::in_state(state);
        script.trace(&format!(
            "< RST {}\n< RST {}\n= {state}\n!",
            ack + 10_000,
            ack + 10_001
        ));
    }
}

/// Covers: RFC 5961 §3.2, RFC 9293 §3.10.7.4 (first)
#[test]
fn a_reset_outside_the_window_is_dropped() {
    for state in Script::SYNCHRONIZED {
        let (_, ack) = next(state);
        let mut script = Script::in_state(state);
        script.trace(&format!(
            "
            < RST {}
            < RST {}
            < RST ACK {} ack 1
            = {state}
            !
            ",
            ack as i64 - 1,
            ack + 10_001,
            ack + 1_000_000
        ));
    }
}

/// Covers: RFC 5961 §3.2, RFC 9293 §3.10.7.4 (second)
#[test]
fn syn_received_takes_resets_by_the_same_rules() {
    let mut script = Script::listen(config());
    script.trace(
        "
        < SYN 0 win 10000
        > SYN ACK 0 ack 1
        < RST 0
        < RST 2
        > ACK 1 ack 1
        = SynReceived
        < RST 1
        = Closed
        ! Closed(Refused)
        ",
    );
}

/// Covers: RFC 9293 §3.10.7.4 (second)
#[test]
fn a_reset_with_unacknowledged_data_in_last_ack_is_no_proper_end() {
    let mut script = Script::in_state("CloseWait");
    script.trace(
        "
        write 100; shutdown
        > FIN PSH ACK 1..101 ack 2
        < RST 2
        ! Closed(Reset)
        ",
    );
}

/// Covers: RFC 5961 §4.2, RFC 9293 §3.10.7.4 (fourth)
#[test]
fn a_syn_is_challenged_whatever_its_sequence_number() {
    // RFC 5961 §4.2
    for state in Script::SYNCHRONIZED {
        let (seq, ack) = next(state);
        let mut script = Script::in_state(state);
        for at in [ack as i64, 5000, -5, 0, 1_000_000] {
            script.trace(&format!(
                "
                < SYN {at} win 10000
                > ACK {seq} ack {ack}
                = {state}
                !
                "
            ));
        }
    }
}

/// Covers: RFC 5961 §5.2, RFC 9293 §3.10.7.4 (fifth)
#[test]
fn an_ack_of_what_was_not_sent_is_answered_and_dropped() {
    // RFC 5961 §5.2
    for state in Script::SYNCHRONIZED {
        let (seq, ack) = next(state);
        let mut script = Script::in_state(state);
        script.trace(&format!(
            "
            < PSH ACK {ack}..{} ack {} win 10000
            > ACK {seq} ack {ack}
            = {state}
            !
            ",
            ack + 50,
            seq + 1,
        ));
    }
}

/// Covers: RFC 5961 §5.2
#[test]
fn an_ack_older_than_the_largest_window_is_answered_and_dropped() {
    let mut script = Script::established();
    script.trace(
        "
        write 3000
        > PSH ACK 1..3001 ack 1
        < ACK 1 ack 3001 win 10000
        ! Drained
        # Within MAX.SND.WND = 10000: old, but its text is good.
        < ACK 1..51 ack 1 win 10000
        ! Readable
        < ACK 51..101 ack -6999 win 10000
        ! Readable
        +40ms
        > ACK 3001 ack 101
        < ACK 101..151 ack -7000 win 10000
        > ACK 3001 ack 101
        !
        ",
    );
}

/// Covers: RFC 5961 §7
#[test]
fn challenges_are_limited() {
    // RFC 5961 §7
    let mut script = Script::established_with(Config {
        challenge_acks_max: 2,
        ..config()
    });
    script.trace(
        "
        < RST 5
        > ACK 1 ack 1
        < SYN 5
        > ACK 1 ack 1
        < RST 5
        < SYN 5
        < ACK 1 ack 77
        +4999ms
        < RST 5
        +1ms
        < RST 5
        > ACK 1 ack 1
        ",
    );
}

/// Covers: RFC 9293 §3.10.7.4 (first), RFC 5961 §7
#[test]
fn bare_unacceptable_segments_are_answered_within_limits_and_text_always() {
    let mut script = Script::established_with(Config {
        challenge_acks_max: 2,
        ..config()
    });
    script.trace(
        "
        < ACK 0 ack 1 win 10000
        > ACK 1 ack 1
        < ACK 20000 ack 1 win 10000
        > ACK 1 ack 1
        < ACK 0 ack 1 win 10000
        # Text that lies behind us: our acknowledgment is lost.
        < ACK 0..1 ack 1 win 10000
        > ACK 1 ack 1
        < ACK 0..1 ack 1 win 10000
        > ACK 1 ack 1
        ",
    );
}

/// Covers: RFC 9293 §3.10.7.4 (fifth)
#[test]
fn segments_without_ack_are_dropped() {
    for state in Script::SYNCHRONIZED {
        let (_, ack) = next(state);
        let mut script = Script::in_state(state);
        script.trace(&format!(
            "< FIN {ack}..{} win 10000\n = {state}\n !",
            ack + 10
        ));
    }
}

/// Covers: RFC 7323 §5.2
#[test]
fn a_reset_needs_no_timestamp() {
    // RFC 7323 §5.2
    let mut script = Script::listen(Config {
        timestamps: true,
        ..config()
    });
    script.trace(
        "
        < SYN 0 win 10000 mss 1000 ts 500 0
        > SYN ACK 0 ack 1
        < ACK 1 ack 1 win 10000 ts 501 1000
        ! Connected
        < RST 1
        ! Closed(Reset)
        ",
    );
    let mut script = Script::listen(Config {
        timestamps: true,
        ..config()
    });
    script.trace(
        "
        < SYN 0 win 10000 mss 1000 ts 500 0
        > SYN ACK 0 ack 1
        < ACK 1 ack 1 win 10000 ts 501 1000
        ! Connected
        < RST 1 ts 3 3
        ! Closed(Reset)
        ",
    );
}
