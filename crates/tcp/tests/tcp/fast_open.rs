//! TCP Fast Open, of the side that is connected to (RFC 7413).

use std::net::IpAddr;

use tcp::{Config, FastOpenCookies};
use wire::tcp::FastOpen;

use crate::script::{Script, config};

const SYN: &str = "< SYN 0..100 win 10000 mss 1000\n";

/// After a SYN with 100 bytes of text.
fn begun() -> Script {
    let mut script = Script::fast_open(config());
    script.trace(&format!(
        "{SYN}> SYN ACK 0 ack 101\n= SynReceived\n! Readable\nread 100"
    ));
    script
}

/// Covers: RFC 7413 §4.2.2
#[test]
fn text_of_the_syn_is_answered_before_the_handshake_is_over() {
    begun().trace(
        "
        write 300
        > PSH ACK 1..301 ack 101
        = SynReceived
        +10ms
        < ACK 101 ack 1 win 10000
        = Established
        ! Connected
        < ACK 101 ack 301 win 10000
        ! Drained
        write 100
        > PSH ACK 301..401 ack 101
        ",
    );
}

/// Covers: RFC 7413 §4.2.2
#[test]
fn one_acknowledgment_may_end_the_handshake_and_take_the_answer() {
    let mut script = begun();
    script.trace(
        "
        write 300
        > PSH ACK 1..301 ack 101
        +10ms
        < ACK 101..151 ack 301 win 10000
        = Established
        ! Connected, Readable, Drained
        read 50
        +40ms
        > ACK 301 ack 151
        ",
    );
    // Nothing is in flight: nothing is sent again.
    script.trace("+60s");
}

/// Covers: RFC 7413 §4.2.2
#[test]
fn an_answer_in_a_file_goes_by_the_nic_stack() {
    begun().trace(
        "
        write 100; virtual 700; shutdown
        > PSH ACK 1..801 ack 101 real 100 file 700
        = SynReceived
        +10ms
        < ACK 101 ack 801 win 10000
        > FIN ACK 801 ack 101
        = FinWait1
        ",
    );
}

/// Covers: RFC 7413 §4.2.2, RFC 6928 §2
#[test]
fn the_initial_window_bounds_what_leaves_before_the_handshake_is_over() {
    // Ten segments: the SYN,ACK is no data.
    Script::fast_open(config()).trace(
        "
        < SYN 0..100 win 60000 mss 1000
        > SYN ACK 0 ack 101
        ! Readable
        read 100
        virtual 20000
        > ACK 1..10001 ack 101
        +10ms
        < ACK 101 ack 1 win 60000
        = Established
        < ACK 101 ack 2001 win 60000
        > ACK 10001..14001 ack 101
        ",
    );
}

/// Covers: RFC 7413 §3.1, RFC 9293 §3.7.4
#[test]
fn the_nagle_algorithm_holds_back_no_answer_for_the_sake_of_the_syn() {
    let mut script = Script::fast_open(Config {
        nodelay: false,
        ..config()
    });
    script.trace(&format!(
        "
        {SYN}
        > SYN ACK 0 ack 101
        ! Readable
        read 100
        write 300
        > PSH ACK 1..301 ack 101
        # Data is in flight now.
        write 300
        +10ms
        < ACK 101 ack 1 win 10000
        = Established
        < ACK 101 ack 301 win 10000
        > PSH ACK 301..601 ack 101
        "
    ));
}

/// Covers: RFC 7413 §4.2.2
#[test]
fn the_window_of_the_syn_bounds_it_as_well() {
    let mut script = Script::fast_open(Config {
        window_scaling: true,
        ..config()
    });
    // Not scaled: RFC 7323 §2.2. The SYN,ACK is in it.
    script.trace(
        "
        < SYN 0..100 win 2001 mss 1000 ws 7
        > SYN ACK 0 ack 101 ws 0
        ! Readable
        read 100
        write 5000
        > ACK 1..2001 ack 101
        < ACK 101 ack 1 win 100
        > PSH ACK 2001..5001 ack 101
        ",
    );
}

/// Covers: RFC 7413 §4.2.2, RFC 6298 §5.7
#[test]
fn a_lost_syn_ack_is_repeated_alone_and_what_is_lost_with_it_goes_after_the_handshake() {
    begun().trace(
        "
        write 300
        > PSH ACK 1..301 ack 101
        +1s
        > SYN ACK 0 ack 101
        +2s
        > SYN ACK 0 ack 101
        +10ms
        < ACK 101 ack 1 win 10000
        = Established
        > PSH ACK 1..301 ack 101
        +10ms
        < ACK 101 ack 301 win 10000
        ! Connected, Drained
        ",
    );
}

/// Covers: RFC 7413 §4.2.2, RFC 6298 §5.1
#[test]
fn what_is_lost_without_the_syn_ack_goes_after_a_timeout() {
    begun().trace(
        "
        write 300
        > PSH ACK 1..301 ack 101
        +10ms
        < ACK 101 ack 1 win 10000
        = Established
        +300ms
        > PSH ACK 1..301 ack 101
        +10ms
        < ACK 101 ack 301 win 10000
        ! Connected, Drained
        ",
    );
}

/// Covers: RFC 7413 §4.2.2
#[test]
fn a_syn_again_is_answered_again_with_its_text_or_without() {
    begun().trace(
        "
        < SYN 0 win 10000 mss 1000
        > SYN ACK 0 ack 101
        < SYN 0..100 win 10000 mss 1000
        > SYN ACK 0 ack 101
        = SynReceived
        !
        ",
    );
}

/// Covers: RFC 7413 §4.2.2, RFC 9293 §3.10.7.4 (second)
#[test]
fn a_reset_ends_it() {
    begun().trace(
        "
        write 300
        > PSH ACK 1..301 ack 101
        < RST 101
        = Closed
        ! Closed(Refused)
        ",
    );
}

/// Covers: RFC 7413 §4.2.2, RFC 9293 §3.8.3
#[test]
fn a_peer_that_is_not_there_is_given_up() {
    let mut script = Script::fast_open(Config {
        syn_retries: 1,
        ..config()
    });
    script.trace(&format!(
        "
        {SYN}
        > SYN ACK 0 ack 101
        ! Readable
        write 300
        > PSH ACK 1..301 ack 101
        +1s
        > SYN ACK 0 ack 101
        +2s
        = Closed
        ! Closed(TimedOut)
        "
    ));
}

/// A forger who guesses can end no connection of which the text was taken.
///
/// Covers: RFC 5961 §4.2
#[test]
fn another_syn_in_the_window_is_challenged() {
    begun().trace(
        "
        < SYN 150 win 10000
        > ACK 1 ack 101
        = SynReceived
        ",
    );
}

/// Covers: RFC 7413 §4.2.2
#[test]
fn a_fin_in_the_syn_and_what_is_beyond_the_window_are_left_to_the_peer() {
    let mut script = Script::fast_open(config());
    script.trace(
        "
        < SYN FIN 0..100 win 10000 mss 1000
        > SYN ACK 0 ack 101
        = SynReceived
        ! Readable
        read 100
        < FIN ACK 101 ack 1 win 10000
        > ACK 1 ack 102
        = CloseWait
        ! Connected, PeerFinished
        ",
    );
    let mut script = Script::fast_open(config());
    script.trace("< SYN 0..12000 win 10000 mss 1000\n> SYN ACK 0 ack 10001\n! Readable");
}

/// Covers: RFC 7413 §4.2.2
#[test]
fn a_syn_without_text_is_answered_as_any_other() {
    let mut script = Script::fast_open(config());
    script.trace(
        "
        < SYN 0 win 10000 mss 1000
        > SYN ACK 0 ack 1
        < ACK 1 ack 1 win 10000
        = Established
        ! Connected
        ",
    );
}

/// What the NIC stack forgets of the answer goes again, and the SYN,ACK does not.
///
/// Covers: RFC 7413 §4.2.2, IO-TCP §3.5
#[test]
fn an_answer_that_never_left_is_issued_again() {
    let mut script = begun();
    script.trace(
        "
        hold
        virtual 700
        > PSH ACK 1..701 ack 101 file 700
        forget
        > PSH ACK 1..701 ack 101 file 700
        depart
        = SynReceived
        ",
    );
}

/// Covers: RFC 7413 §4.1.2
#[test]
fn a_cookie_is_good_for_its_addresses_under_its_key() {
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let (server, client) = (ip("10.0.0.1"), ip("10.0.0.2"));
    let cookies = FastOpenCookies::new([[7; 16], [6; 16]]);
    let cookie = cookies.cookie(server, client);
    assert!(cookies.are_good(server, client, cookie));
    assert!(!cookies.are_good(server, ip("10.0.0.3"), cookie));
    assert!(!cookies.are_good(client, server, cookie));
    assert!(!cookies.are_good(server, client, FastOpen::Request));
    // Another key comes, and then another.
    assert!(FastOpenCookies::new([[8; 16], [7; 16]]).are_good(server, client, cookie));
    assert!(!FastOpenCookies::new([[9; 16], [8; 16]]).are_good(server, client, cookie));
    let v6 = cookies.cookie(ip("fd00::1"), ip("fd00::2"));
    assert!(cookies.are_good(ip("fd00::1"), ip("fd00::2"), v6));
}
