//! Explicit congestion notification (RFC 3168): who agrees to it, who marks, who echoes, who slows
//! down.

use std::time::Duration;

use tcp::{Config, EcnPolicy};

use crate::path::{Download, LONG_FAT, Path};
use crate::script::{Script, config};

fn offering() -> Config {
    Config {
        ecn: EcnPolicy::Offer,
        ..config()
    }
}

/// A server with a client that has asked for ECN.
fn agreed() -> Script {
    let mut script = Script::listen(config());
    script.trace(
        "
        < SYN ECE CWR 0 win 20000 mss 1000
        > SYN ACK ECE 0 ack 1 not-ect
        +10ms
        < ACK 1 ack 1 win 20000
        ! Connected
        ",
    );
    script
}

/// Covers: RFC 3168 §6.1.1, RFC 3168 §6.1.4, RFC 3168 §6.1.6
#[test]
fn a_server_agrees_if_asked_and_marks_data_only() {
    let mut script = agreed();
    script.trace(
        "
        write 1500
        > PSH ACK 1..1501 ack 1 ect0
        < ACK 1..101 ack 1501 win 20000
        +40ms
        > ACK 1501 ack 101 not-ect
        ! Readable, Drained
        shutdown
        > FIN ACK 1501 ack 101 not-ect
        ",
    );
}

/// Covers: RFC 3168 §6.1.1
#[test]
fn what_was_not_asked_for_is_not_agreed_to() {
    for syn in ["SYN", "SYN ECE", "SYN CWR"] {
        let mut script = Script::listen(config());
        script.trace(&format!(
            "
            < {syn} 0 win 20000 mss 1000
            > SYN ACK 0 ack 1
            < ACK 1 ack 1 win 20000
            write 500
            > PSH ACK 1..501 ack 1 not-ect
            < ACK ECE 1 ack 501 win 20000
            write 500
            > PSH ACK 501..1001 ack 1
            "
        ));
    }
}

/// Covers: RFC 3168 §6.1.1
#[test]
fn a_policy_of_off_refuses() {
    let mut script = Script::listen(Config {
        ecn: EcnPolicy::Off,
        ..config()
    });
    script.trace("< SYN ECE CWR 0 win 20000 mss 1000\n> SYN ACK 0 ack 1");
}

/// Covers: RFC 3168 §6.1.1
#[test]
fn a_syn_that_arrives_marked_has_crossed_a_path_that_writes_into_the_field() {
    for field in ["ect0", "ce"] {
        let mut script = Script::listen(config());
        script.trace(&format!(
            "< SYN ECE CWR 0 win 20000 mss 1000 {field}\n> SYN ACK 0 ack 1"
        ));
    }
}

/// Covers: RFC 3168 §6.1.1
#[test]
fn a_client_asks_and_uses_it_if_answered() {
    let mut script = Script::connect(offering());
    script.trace(
        "
        > SYN ECE CWR 0 not-ect
        < SYN ACK ECE 0 ack 1 win 20000 mss 1000
        > ACK 1 ack 1 not-ect
        write 500
        > PSH ACK 1..501 ack 1 ect0
        ",
    );
}

/// Covers: RFC 3168 §6.1.1
#[test]
fn a_server_that_declines_or_reflects_the_flags_has_not_agreed() {
    for answer in ["SYN ACK", "SYN ACK ECE CWR"] {
        let mut script = Script::connect(offering());
        script.trace(&format!(
            "
            > SYN ECE CWR 0
            < {answer} 0 ack 1 win 20000 mss 1000
            > ACK 1 ack 1
            write 500
            > PSH ACK 1..501 ack 1 not-ect
            "
        ));
    }
}

/// Covers: RFC 3168 §6.1.1, RFC 9293 §3.5
#[test]
fn in_a_simultaneous_open_each_syn_and_each_answer_counts() {
    // The peer's SYN, our answer to it, the peer's answer, how data is sent.
    for (syn, answer, theirs, field) in [
        ("SYN ECE CWR", "SYN ACK ECE", "SYN ACK ECE", "ect0"),
        ("SYN ECE CWR", "SYN ACK ECE", "SYN ACK", "not-ect"),
        ("SYN ECE CWR", "SYN ACK ECE", "SYN ACK ECE CWR", "not-ect"),
        ("SYN", "SYN ACK", "SYN ACK", "not-ect"),
        ("SYN", "SYN ACK", "SYN ACK ECE", "not-ect"),
    ] {
        let mut script = Script::connect(offering());
        script.trace(&format!(
            "
            > SYN ECE CWR 0
            < {syn} 0 win 20000 mss 1000
            > {answer} 0 ack 1
            < {theirs} 0 ack 1 win 20000 mss 1000
            > ACK 1 ack 1
            write 500
            > PSH ACK 1..501 ack 1 {field}
            "
        ));
    }
    // Its answer is lost: the ACK alone takes nothing back.
    let mut script = Script::connect(offering());
    script.trace(
        "
        > SYN ECE CWR 0
        < SYN ECE CWR 0 win 20000 mss 1000
        > SYN ACK ECE 0 ack 1
        < ACK 1 ack 1 win 20000
        write 500
        > PSH ACK 1..501 ack 1 ect0
        ",
    );
}

/// Covers: RFC 3168 §6.1.1.1
#[test]
fn a_syn_that_is_lost_is_repeated_without_ecn_and_a_late_agreement_comes_too_late() {
    let mut script = Script::connect(offering());
    script.trace(
        "
        > SYN ECE CWR 0
        +1s
        > SYN 0
        < SYN ACK ECE 0 ack 1 win 20000 mss 1000
        > ACK 1 ack 1
        write 500
        > PSH ACK 1..501 ack 1 not-ect
        ",
    );
}

/// Covers: RFC 3168 §6.1.1.1
#[test]
fn a_client_that_falls_back_is_answered_without_ecn() {
    let mut script = Script::listen(config());
    script.trace(
        "
        < SYN ECE CWR 0 win 20000 mss 1000
        > SYN ACK ECE 0 ack 1
        < SYN 0 win 20000 mss 1000
        > SYN ACK 0 ack 1
        < ACK 1 ack 1 win 20000
        write 500
        > PSH ACK 1..501 ack 1 not-ect
        ",
    );
}

/// Covers: RFC 3168 §6.1.3
#[test]
fn a_mark_is_echoed_at_once_and_until_the_sender_has_slowed_down() {
    let mut script = agreed();
    script.trace(
        "
        < ACK 1..101 ack 1 win 20000 ce
        > ACK ECE 1 ack 101 not-ect
        < ACK 101..1101 ack 1 win 20000 ect0
        < ACK 1101..2101 ack 1 win 20000 ect0
        > ACK ECE 1 ack 2101
        write 300
        > PSH ACK ECE 1..301 ack 2101 ect0
        < ACK CWR 2101..2201 ack 301 win 20000 ect0
        > ACK 301 ack 2201
        ! Readable, Drained
        ",
    );
}

/// Covers: RFC 3168 §6.1.3
#[test]
fn a_packet_that_says_cwr_and_is_marked_itself_begins_again() {
    let mut script = agreed();
    script.trace(
        "
        < ACK 1..101 ack 1 win 20000 ce
        > ACK ECE 1 ack 101
        < ACK CWR 101..201 ack 1 win 20000 ce
        > ACK ECE 1 ack 201
        ",
    );
}

/// Covers: RFC 3168 §6.1.4, RFC 3168 §6.1.5
#[test]
fn marks_on_what_carries_no_text_or_lies_outside_the_window_mean_nothing() {
    let mut script = agreed();
    script.trace(
        "
        < ACK 1 ack 1 win 20000 ce
        < ACK 1..101 ack 1 win 20000 ect0
        +40ms
        > ACK 1 ack 101
        < ACK 1..101 ack 1 win 20000 ce
        > ACK 1 ack 101
        ! Readable
        ",
    );
}

/// Covers: RFC 3168 §6.1.2
#[test]
fn an_echo_halves_the_window_once_and_the_next_data_says_so() {
    let mut script = agreed();
    script.trace("virtual 100000\n> ACK 1..10001 ack 1 ect0");
    assert_eq!(script.tcp().congestion_window(), 10_000);
    // Congestion, told four times in one window of data.
    script.trace(
        "
        < ACK ECE 1 ack 2001 win 20000
        < ACK ECE 1 ack 4001 win 20000
        < ACK ECE 1 ack 6001 win 20000
        > ACK CWR 10001..11001 ack 1 ect0
        < ACK ECE 1 ack 8001 win 20000
        > ACK 11001..13001 ack 1 ect0
        < ACK ECE 1 ack 10001 win 20000
        > ACK 13001..15001 ack 1 ect0
        ",
    );
    assert_eq!(script.tcp().congestion_window(), 5_000);
    // The CWR is lost, or the path is congested again: the next window is another matter.
    script.trace("< ACK ECE 1 ack 11001 win 20000");
    assert!(script.tcp().congestion_window() < 5_000);
}

/// Covers: RFC 3168 §6.1.2, RFC 3168 §6.1.5
#[test]
fn what_is_repeated_is_not_marked_and_a_loss_says_cwr_too() {
    let mut script = agreed();
    script.trace(
        "
        virtual 4000
        > PSH ACK 1..4001 ack 1 ect0
        +300ms
        > ACK 1..1001 ack 1 not-ect
        < ACK 1 ack 4001 win 20000
        virtual 1000
        > PSH ACK CWR 4001..5001 ack 1 ect0
        ",
    );
}

/// Covers: RFC 3168 §6.1.2
#[test]
fn an_echo_with_a_loss_in_the_same_window_reduces_once() {
    let mut script = agreed();
    script.trace(
        "
        virtual 100000
        > ACK 1..10001 ack 1 ect0
        < ACK ECE 1 ack 2001 win 20000
        ",
    );
    let reduced = script.tcp().congestion_window();
    assert_eq!(reduced, 5_000);
    script.trace(
        "
        +300ms
        > ACK 2001..3001 ack 1 not-ect
        < ACK ECE 1 ack 3001 win 20000
        # RFC 5682 §2.1 step 2b: new data first.
        > ACK CWR 10001..12001 ack 1 ect0
        ",
    );
}

/// Covers: RFC 3168 §6.1.2, RFC 4015 §3
#[test]
fn an_echo_is_not_undone_with_the_loss_before_it() {
    let mut script = Script::listen(Config {
        sack: true,
        ..config()
    });
    script.trace(
        "
        < SYN ECE CWR 0 win 60000 mss 1000 sackOK
        > SYN ACK ECE 0 ack 1 sackOK
        +10ms
        < ACK 1 ack 1 win 60000
        ! Connected
        virtual 100000
        > ACK 1..10001 ack 1 ect0
        +10ms
        < ACK 1 ack 1 win 60000 sack 1001..10001
        > ACK 1..1001 ack 1 not-ect
        > ACK CWR 10001..14001 ack 1 ect0
        +9ms
        < ACK 1 ack 14001 win 60000
        > ACK 14001..19001 ack 1 ect0
        +9ms
        < ACK ECE 1 ack 19001 win 60000
        > ACK CWR 19001..23001 ack 1 ect0
        ",
    );
    let reduced = script.tcp().congestion_window();
    script.trace("< ACK 1 ack 19001 win 60000 sack 1..1001");
    assert_eq!(script.tcp().congestion_window(), reduced);
}

/// Covers: RFC 3168 §5, RFC 3168 §6.1.2
#[test]
fn a_router_that_marks_slows_a_flow_down_without_losing_a_packet() {
    let path = Path {
        bytes_per_second: 12_500_000,
        round_trip: Duration::from_millis(20),
        mark_bytes: 250_000,
        ..LONG_FAT
    };
    let client = Config {
        ecn: EcnPolicy::Offer,
        receive_buffer_bytes_max: 4 << 20,
        ..Config::default()
    };
    let run = |server: EcnPolicy| {
        let server = Config {
            ecn: server,
            ..Config::default()
        };
        let mut download = Download::begin(path, &server, &client, false);
        let bytes = download.pass(Duration::from_secs(10));
        (bytes, download.marked, download.dropped)
    };
    let (bytes, marked, dropped) = run(EcnPolicy::Accept);
    assert!(bytes > 100_000_000, "{bytes} of 125 MB");
    assert!(marked > 0);
    assert_eq!(dropped, 0);
    let (_, marked, dropped) = run(EcnPolicy::Off);
    assert_eq!(marked, 0);
    assert!(dropped > 0);
}
