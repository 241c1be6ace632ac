//! Path MTU: told by ICMP, lied about by ICMP, and found out without it (RFC 1191, RFC 8201, RFC
//! 4821, RFC 5927).
//!
//! Headers are 40 bytes here: an MSS of 1000 is an MTU of 1040.

use std::time::Duration;

use tcp::Config;

use crate::path::{Download, LONG_FAT, Path};
use crate::script::{ISS, Script, config};

/// A message about the segment that begins at `position`; true if it is believed.
fn too_big(script: &mut Script, mtu: u32, position: u32) -> bool {
    let now = script.now;
    script
        .tcp()
        .on_icmp_too_big(now, mtu, ISS.wrapping_add(position))
}

/// Covers: RFC 1191 §6, RFC 8201 §5.4, RFC 8899 §4.6
#[test]
fn what_was_too_big_is_sent_again_in_smaller_segments_without_slowing_down() {
    let mut script = Script::established();
    script.trace("virtual 20000\n> ACK 1..10001 ack 1");
    let window = script.tcp().congestion_window();
    assert!(too_big(&mut script, 840, 1));
    assert_eq!(script.tcp().mss(), 800);
    script.trace("> ACK 1..10001 ack 1");
    assert_eq!(script.tcp().congestion_window(), window);
    // The same for the next segment tells nothing new.
    assert!(!too_big(&mut script, 840, 1001));
    script.trace("< ACK 1 ack 10001 win 8000\n> ACK 10001..18001 ack 1");
}

/// Covers: RFC 9293 §3.7.1
#[test]
fn what_is_too_long_for_a_link_that_has_become_smaller_is_sent_again_in_smaller_segments() {
    let mut script = Script::established();
    script.trace("virtual 20000\n> ACK 1..10001 ack 1");
    let window = script.tcp().congestion_window();
    let now = script.now;
    assert!(!script.tcp().on_link_mss(now, 1000), "nothing new");
    assert!(script.tcp().on_link_mss(now, 800));
    assert_eq!(script.tcp().mss(), 800);
    script.trace("> ACK 1..10001 ack 1");
    assert_eq!(script.tcp().congestion_window(), window);
    assert!(!script.tcp().on_link_mss(now, 1000), "the MSS is agreed on");
    assert_eq!(script.tcp().mss(), 800);
    script.trace("< ACK 1 ack 10001 win 8000\n> ACK 10001..18001 ack 1");
}

/// Covers: RFC 5927 §4.1
#[test]
fn a_segment_that_is_not_in_flight_cannot_have_been_too_big() {
    let mut script = Script::established();
    script.trace("virtual 2000\n> PSH ACK 1..2001 ack 1\n< ACK 1 ack 1001 win 10000");
    for position in [0, 1, 1000, 2001, 2002, 1 << 31, u32::MAX] {
        assert!(!too_big(&mut script, 840, position), "{position}");
    }
    assert_eq!(script.tcp().mss(), 1000);
}

/// Covers: RFC 8201 §4, RFC 5927 §7.2
#[test]
fn sizes_that_no_path_has_are_not_believed() {
    let mut script = Script::established();
    script.trace("virtual 2000\n> PSH ACK 1..2001 ack 1");
    for mtu in [1, 40, 68, 551, 1040, 1500, u32::MAX] {
        assert!(!too_big(&mut script, mtu, 1), "{mtu}");
    }
    let mut script = Script::established_with(Config {
        ipv6: true,
        mss: 1440,
        ..config()
    });
    script.trace("virtual 900\n> PSH ACK 1..901 ack 1");
    assert!(!too_big(&mut script, 1279, 1));
}

/// Covers: RFC 1191 §7.1
#[test]
fn a_router_that_does_not_say_how_much_is_met_at_the_next_size_that_exists() {
    let mut script = Script::established();
    script.trace("virtual 2000\n> PSH ACK 1..2001 ack 1");
    assert!(too_big(&mut script, 0, 1));
    assert_eq!(script.tcp().mss(), 1006 - 40);
    script.trace("> PSH ACK 1..2001 ack 1");
}

/// Covers: RFC 5927 §7.2
#[test]
fn what_contradicts_acknowledgments_waits_for_a_timeout_and_is_dropped_by_the_next_acknowledgment()
{
    let mut script = Script::established();
    script.trace(
        "
        virtual 2000
        > PSH ACK 1..2001 ack 1
        < ACK 1 ack 2001 win 10000
        ! Released(7 2000), Drained
        virtual 2000
        > PSH ACK 2001..4001 ack 1
        ",
    );
    assert!(!too_big(&mut script, 840, 2001));
    assert_eq!(script.tcp().mss(), 1000);
    script.trace("< ACK 1 ack 4001 win 10000\nvirtual 2000\n> PSH ACK 4001..6001 ack 1");
    assert!(!too_big(&mut script, 840, 4001));
    script.trace("+300ms\n> ACK 4001..4801 ack 1");
    assert_eq!(script.tcp().mss(), 800);
}

/// Covers: RFC 4821 §7.6.2
#[test]
fn the_window_is_given_back_once_for_a_probe_that_was_lost() {
    let mut script = Script::opened(config(), "win 65535 mss 1000 sackOK", 60_000);
    script.trace(
        "
        virtual 2000
        > PSH ACK 1..2001 ack 1
        icmp too big 840 seq 1
        > PSH ACK 1..2001 ack 1
        +10ms
        < ACK 1 ack 2001 win 60000
        +601s
        virtual 9800
        > ACK 2001..3001 ack 1 cut 1000
        > ACK 3001..9401 ack 1 cut 800
        window 8000
        +10ms
        < ACK 1 ack 2001 win 60000 sack 3001..9401
        > ACK 2001..3001 ack 1 cut 800
        > PSH ACK 9401..11801 ack 1
        +10ms
        < ACK 1 ack 11801 win 60000
        window 8000
        # It has arrived twice after all. That is no news.
        < ACK 1 ack 11801 win 60000 sack 2001..3001
        window 8000
        ",
    );
}

/// At an MSS of 800 where 1000 was agreed, for so long that it is time to try again. All before
/// 2001 is acknowledged.
fn about_to_probe() -> Script {
    let mut script = Script::listen(config());
    script.trace(
        "
        < SYN 0 win 65535 mss 1000 sackOK
        > SYN ACK 0 ack 1
        +10ms
        < ACK 1 ack 1 win 60000
        virtual 2000
        > PSH ACK 1..2001 ack 1
        icmp too big 840 seq 1
        > PSH ACK 1..2001 ack 1
        +10ms
        < ACK 1 ack 2001 win 60000
        +601s
        ",
    );
    script
}

/// Covers: RFC 4821 §7.6.4
#[test]
fn a_probe_that_is_lost_among_others_proves_nothing() {
    let mut script = about_to_probe();
    script.trace(
        "
        virtual 800
        > PSH ACK 2001..2801 ack 1 cut 800
        virtual 9800
        > ACK 2801..3801 ack 1 cut 1000
        > ACK 3801..9401 ack 1 cut 800
        +10ms
        # The path swallows the probe, and what was sent before is lost, too.
        < ACK 1 ack 2001 win 60000 sack 3801..9401
        > ACK 2001..3801 ack 1 cut 800
        > ACK 9401..11001 ack 1 cut 800
        +10ms
        < ACK 1 ack 11001 win 60000
        > PSH ACK 11001..12601 ack 1 cut 800
        +10ms
        < ACK 1 ack 12601 win 60000
        ",
    );
    assert_eq!(script.tcp().mss(), 800);
}

/// Covers: RFC 4821 §7.6.4, IO-TCP §3.5
#[test]
fn a_probe_that_never_left_proves_nothing() {
    let mut script = about_to_probe();
    script.trace(
        "
        hold
        virtual 7400
        > ACK 2001..3001 ack 1 cut 1000
        > PSH ACK 3001..9401 ack 1 cut 800
        forget
        > PSH ACK 2001..9401 ack 1 cut 800
        depart
        +10ms
        < ACK 1 ack 9401 win 60000
        ",
    );
    assert_eq!(script.tcp().mss(), 800);
}

/// Covers: RFC 4821 §7.6.1, RFC 5927 §7.2
#[test]
fn many_small_segments_prove_no_size() {
    let mut script = Script::established();
    script.trace(
        "
        write 900
        > PSH ACK 1..901 ack 1
        write 900
        > PSH ACK 901..1801 ack 1
        < ACK 1 ack 1801 win 10000
        virtual 1000
        > PSH ACK 1801..2801 ack 1
        ",
    );
    assert!(too_big(&mut script, 840, 1801));
    script.trace("> PSH ACK 1801..2801 ack 1 cut 800");
}

/// Covers: RFC 5927 §7.2
#[test]
fn a_flood_of_messages_is_heard_now_and_then() {
    let mut script = Script::established();
    script.trace("virtual 2000\n> PSH ACK 1..2001 ack 1");
    let believed = (0..400)
        .filter(|step| too_big(&mut script, 1039 - step, 1))
        .count();
    assert_eq!(believed, usize::from(config().challenge_acks_max));
    script.trace("> PSH ACK 1..2001 ack 1");
}

/// Covers: RFC 5461 §3, RFC 5927 §5.2
#[test]
fn unreachable_ends_no_established_connection() {
    let mut script = Script::established();
    script.trace("virtual 2000\n> PSH ACK 1..2001 ack 1");
    for position in [0, 1, 1001] {
        script
            .tcp()
            .on_icmp_unreachable(true, ISS.wrapping_add(position));
    }
    script.trace("= Established\n< ACK 1 ack 2001 win 10000\n! Released(7 2000), Drained");
}

/// Covers: RFC 5461 §3, RFC 5461 §4.1, RFC 5927 §5
#[test]
fn unreachable_ends_an_attempt_only_if_it_is_about_our_syn() {
    for (hard, reason) in [(true, "Refused"), (false, "Unreachable")] {
        let mut script = Script::connect(config());
        script.trace("> SYN 0");
        script.tcp().on_icmp_unreachable(hard, ISS.wrapping_add(1));
        script.trace("= SynSent");
        script.tcp().on_icmp_unreachable(hard, ISS);
        script.trace(&format!("! Closed({reason})"));
    }
}

/// Covers: RFC 5461 §4.1
#[test]
fn without_a_route_only_an_attempt_ends() {
    let mut script = Script::established();
    script.tcp().on_no_route();
    script.trace("= Established");
    let mut script = Script::connect(config());
    script.trace("> SYN 0");
    script.tcp().on_no_route();
    script.trace("! Closed(Unreachable)");
}

/// A short path that swallows what is too big.
fn blackhole(payload_max: u16) -> Path {
    Path {
        round_trip: Duration::from_millis(10),
        payload_max,
        ..LONG_FAT
    }
}

/// Covers: RFC 4821 §7.7, RFC 4821 §7.2, RFC 8899 §5.2
#[test]
fn a_path_that_swallows_large_packets_silently_is_found_out() {
    for payload_max in [1228, 1300, 1400, 1440] {
        let mut download = Download::begin(
            blackhole(payload_max),
            &Config::default(),
            &Config::default(),
            false,
        );
        download.pass(Duration::from_secs(10));
        let mss = download.server.mss();
        assert!(
            mss <= payload_max && mss + 32 > payload_max,
            "{mss} of {payload_max}"
        );
        assert!(download.pass(Duration::from_secs(1)) > 50_000_000);
    }
}

/// Covers: RFC 4821 §7.7
#[test]
fn a_window_smaller_than_a_segment_hides_no_path_that_swallows_large_packets() {
    let config = Config {
        mss: 8_960,
        ..Config::default()
    };
    // No segment is of full size: the window is smaller, and has still room for more than the path
    // carries.
    let client = Config {
        receive_buffer_bytes: 4_000,
        receive_buffer_bytes_max: 4_000,
        ..config
    };
    let mut download = Download::begin(blackhole(1400), &config, &client, false);
    download.pass(Duration::from_secs(10));
    assert!(download.server.mss() <= 1400);
    assert!(download.pass(Duration::from_secs(1)) > 100_000);
}

/// Covers: RFC 4821 §7.7
#[test]
fn ipv4_paths_smaller_than_the_base_are_found_out_too() {
    let mut download = Download::begin(
        blackhole(700),
        &Config::default(),
        &Config::default(),
        false,
    );
    download.pass(Duration::from_secs(60));
    let mss = download.server.mss();
    assert!(mss <= 700 && mss > 650, "{mss}");
}

/// Covers: RFC 8899 §5.1.1, RFC 8201 §4
#[test]
fn a_path_that_has_become_larger_is_used_after_ten_minutes() {
    let mut download = Download::begin(
        blackhole(1300),
        &Config::default(),
        &Config::default(),
        false,
    );
    // Slow, so that ten minutes pass soon.
    download.path.bytes_per_second = 1_000_000;
    download.pass(Duration::from_secs(10));
    download.path.payload_max = u16::MAX;
    download.pass(Duration::from_secs(580));
    assert!(download.server.mss() <= 1300);
    download.pass(Duration::from_secs(60));
    assert_eq!(download.server.mss(), 1448);
}
