//! Pacing: how much a transmission holds, and when it may leave.

use std::time::Duration;

use crate::path::{Download, LONG_FAT, Path};
use crate::script::{Script, config};
use tcp::{Config, CongestionAlgorithm, Connection, Instant, Limits};

const LIMITS: Limits = Limits {
    bytes_max: 1 << 20,
    pieces_max: 32,
    real_bytes_max: 4096,
    direct_bytes_max: 0,
};

/// Established, with a round-trip time of 10 ms and a megabyte to send.
fn established(algorithm: CongestionAlgorithm, rate_max: Option<u64>) -> (Connection, Instant) {
    let mut script = Script::established_with(Config {
        congestion: algorithm,
        ..config()
    });
    let now = script.now;
    let mut tcp = script.connection.take().expect("established");
    tcp.set_max_pacing_rate(rate_max);
    assert_eq!(tcp.write_virtual(1, 0, 1 << 20), 1 << 20);
    (tcp, now)
}

/// What is issued, at each call of the timer, until `until`: bytes, and when they may leave.
fn departures(tcp: &mut Connection, mut now: Instant, until: Instant) -> Vec<(u64, Instant)> {
    let mut departures = Vec::new();
    loop {
        while let Some(transmit) = tcp.poll_transmit(now, &LIMITS) {
            let at = transmit.not_before.unwrap_or(now);
            let ahead = at.since(now);
            assert!(
                ahead <= Duration::from_millis(20),
                "decided {ahead:?} ahead"
            );
            if let Some(transmission) = transmit.transmission {
                tcp.on_departed(transmission, at);
            }
            departures.push((transmit.range.end - transmit.range.start, at));
        }
        match tcp.next_timeout() {
            Some(at) if at <= until => now = at,
            _ => return departures,
        }
        tcp.on_timeout(now);
    }
}

#[test]
fn without_a_rate_all_that_the_window_allows_leaves_at_once() {
    let (mut tcp, now) = established(CongestionAlgorithm::Cubic, None);
    assert_eq!(tcp.pacing_rate(), None);
    assert_eq!(departures(&mut tcp, now, now), [(10_000, now)]);
}

#[test]
fn an_applications_rate_spreads_the_window_out() {
    // 100 KB/s: two packets each 20 ms.
    let (mut tcp, now) = established(CongestionAlgorithm::Cubic, Some(100_000));
    let departures = departures(&mut tcp, now, now + Duration::from_millis(150));
    let expected: Vec<_> = (0..5)
        .map(|i| (2000, now + Duration::from_millis(20 * i)))
        .collect();
    assert_eq!(departures, expected);
}

#[test]
fn a_rate_that_is_lifted_no_longer_holds_anything_back() {
    let (mut tcp, now) = established(CongestionAlgorithm::Cubic, Some(100_000));
    departures(&mut tcp, now, now);
    tcp.set_max_pacing_rate(None);
    let rest: u64 = departures(&mut tcp, now, now)
        .iter()
        .map(|(bytes, _)| bytes)
        .sum();
    assert_eq!(rest, 10_000 - 2000);
}

#[test]
fn bbr_paces_its_first_window() {
    let (mut tcp, now) = established(CongestionAlgorithm::Bbr, None);
    let rate = tcp.pacing_rate().expect("BBR paces");
    let departures = departures(&mut tcp, now, now + Duration::from_millis(50));
    let mut sent = 0;
    for &(bytes, at) in &departures {
        let allowed = rate as f64 * at.since(now).as_secs_f64();
        // What left before; rounding to microseconds.
        assert!(sent as f64 <= allowed + 100.0, "{departures:?} at {rate}");
        sent += bytes;
    }
    assert_eq!(sent, 10_000);
}

/// An MSS of 1000, a round-trip time of 10 ms, a window of the peer that limits nothing.
fn paced(config: Config, options: &str) -> Script {
    let config = Config {
        window_scaling: true,
        ..config
    };
    let syn = format!("win 65535 mss 1000 ws 4 {options}");
    Script::opened(config, &syn, 60_000)
}

/// Covers: draft-ietf-ccwg-bbr §5.6.3
#[test]
fn what_a_millisecond_takes_leaves_at_once_and_two_packets_at_least() {
    let mut script = paced(config(), "");
    script.trace(
        "
        rate 3000000
        virtual 10000
        > ACK 1..3001 ack 1 at -
        > ACK 3001..6001 ack 1 at +1ms alone
        > ACK 6001..9001 ack 1 at +2ms behind
        +1ms
        > PSH ACK 9001..10001 ack 1 at +2ms behind
        +12ms
        < ACK 1 ack 10001 win 60000
        rate 1000000
        virtual 4000
        > ACK 10001..12001 ack 1 at - alone
        > PSH ACK 12001..14001 ack 1 at +2ms
        ",
    );
}

/// Covers: draft-ietf-ccwg-bbr §5.6.2
#[test]
fn a_slow_rate_decides_ten_milliseconds_ahead() {
    let mut script = paced(config(), "");
    script.trace(
        "
        rate 100000
        virtual 6000
        > ACK 1..2001 ack 1 at -
        +9999us
        +1us
        > ACK 2001..4001 ack 1 at +10ms
        < ACK 1 ack 2001 win 60000
        +19999us
        +1us
        > PSH ACK 4001..6001 ack 1 at +10ms
        ",
    );
}

/// Covers: draft-ietf-ccwg-bbr §5.6.2
#[test]
fn what_the_host_has_itself_is_paced_too_and_each_byte_counts() {
    let mut script = paced(config(), "");
    script.trace(
        "
        rate 100000
        write 300
        > PSH ACK 1..301 ack 1 at - real 300
        write 500
        > PSH ACK 301..801 ack 1 at +3ms real 500
        write 100
        > PSH ACK 801..901 ack 1 at +8ms real 100
        +100ms
        < ACK 1 ack 901 win 60000
        ",
    );
    // Silence earns nothing: after it, no more than a quantum leaves at once.
    script.trace(
        "
        +1s
        write 4000
        > ACK 901..2901 ack 1 at -
        +10ms
        > PSH ACK 2901..4901 ack 1 at +10ms
        ",
    );
}

/// Covers: RFC 9293 §3.8.6.3
#[test]
fn acknowledgments_do_not_wait_for_data_that_does() {
    let mut script = paced(config(), "");
    script.trace(
        "
        rate 100000
        virtual 4000
        > ACK 1..2001 ack 1 at -
        +10ms
        > PSH ACK 2001..4001 ack 1 at +10ms
        < ACK 1..1001 ack 2001 win 60000
        < ACK 1001..2001 ack 2001 win 60000
        > ACK 4001 ack 2001 at -
        ",
    );
}

/// Covers: RFC 6937 §3, RFC 8985 §6.2
#[test]
fn retransmissions_are_paced_like_anything_else() {
    let mut script = paced(config(), "sackOK");
    script.trace(
        "
        rate 3000000
        virtual 10000
        > ACK 1..3001 ack 1 at -
        > ACK 3001..6001 ack 1 at +1ms
        > ACK 6001..9001 ack 1 at +2ms
        +1ms
        > PSH ACK 9001..10001 ack 1 at +2ms
        +12ms
        < ACK 1 ack 1 win 60000 sack 5001..10001
        > ACK 1..3001 ack 1 at -
        > ACK 3001..5001 ack 1 at +1ms
        ",
    );
    // Without a rate, the same goes at once.
    let mut script = paced(config(), "sackOK");
    script.trace(
        "
        virtual 10000
        > PSH ACK 1..10001 ack 1 at -
        +12ms
        < ACK 1 ack 1 win 60000 sack 5001..10001
        > ACK 1..5001 ack 1 at -
        ",
    );
}

/// Covers: RFC 6298 §5.1, RFC 8985 §7.2
#[test]
fn no_timer_runs_for_what_waits_for_its_time() {
    for options in ["", "sackOK"] {
        let mut script = paced(config(), options);
        script.trace(
            "
            rate 1000000
            hold
            virtual 4000
            > ACK 1..2001 ack 1 at -
            > PSH ACK 2001..4001 ack 1 at +2ms
            +10s
            depart
            +100ms
            depart
            ",
        );
        script.trace(match options {
            // 210 ms after the first departure.
            "" => "+109999us\n+1us\n> ACK 1..1001 ack 1",
            // Two round trips, and 2 ms for coarse timers, after the last.
            _ => "+21999us\n+1us\n> PSH ACK 3001..4001 ack 1",
        });
    }
}

/// Covers: RFC 8985 §7.2
#[test]
fn the_probe_timeout_counts_from_the_departure() {
    let mut script = paced(config(), "sackOK");
    script.trace(
        "
        rate 10000
        virtual 4000
        > ACK 1..2001 ack 1 at -
        +10ms
        < ACK 1 ack 2001 win 60000
        +180ms
        > PSH ACK 2001..4001 ack 1 at +10ms
        +31999us
        +1us
        > PSH ACK 3001..4001 ack 1
        ",
    );
}

/// Covers: RFC 8985 §7.3
#[test]
fn a_probe_with_new_data_counts_towards_the_rate() {
    let mut script = paced(config(), "sackOK");
    script.trace(
        "
        rate 10000
        virtual 5000
        > ACK 1..2001 ack 1 at -
        +22ms
        > ACK 2001..3001 ack 1 at -
        +10ms
        < ACK 1 ack 3001 win 60000
        # 3000 bytes take 300 ms.
        +257999us
        +1us
        > PSH ACK 3001..5001 ack 1 at +10ms
        ",
    );
}

/// Covers: RFC 6298 §5.4
#[test]
fn after_a_timeout_the_first_segment_leaves_at_once() {
    let mut script = paced(config(), "");
    script.trace(
        "
        rate 1000000
        virtual 6000
        > ACK 1..2001 ack 1 at -
        > ACK 2001..4001 ack 1 at +2ms
        +2ms
        > PSH ACK 4001..6001 ack 1 at +2ms
        +208ms
        > ACK 1..1001 ack 1 at -
        ",
    );
}

/// Covers: draft-ietf-ccwg-bbr §5.6.2
#[test]
fn pacing_by_the_window_lets_it_double_in_slow_start() {
    let mut script = paced(
        Config {
            pace: true,
            ..config()
        },
        "",
    );
    // 10,000 in 10 ms, twice: 2 MB/s. The initial window leaves at once all the same.
    assert_eq!(script.tcp().pacing_rate(), Some(2_000_000));
    script.trace(
        "
        virtual 100000
        > ACK 1..10001 ack 1 at -
        +10ms
        < ACK 1 ack 10001 win 60000
        window 20000
        # 4 MB/s: 2.5 ms for each 10,000 bytes, as many as the initial window holds.
        > ACK 10001..20001 ack 1 at -
        > ACK 20001..30001 ack 1 at +2500us
        ",
    );
    // What the application allows bounds it, and does not raise it.
    script.tcp().set_max_pacing_rate(Some(5_000_000));
    assert_eq!(script.tcp().pacing_rate(), Some(4_000_000));
    script.tcp().set_max_pacing_rate(Some(1_000_000));
    assert_eq!(script.tcp().pacing_rate(), Some(1_000_000));
}

/// Covers: draft-ietf-ccwg-bbr §5.6.2
#[test]
fn pacing_by_the_window_uses_it_up_in_congestion_avoidance() {
    let mut script = paced(
        Config {
            pace: true,
            ..config()
        },
        "",
    );
    script.trace(
        "
        virtual 1000000
        > ACK 1..10001 ack 1 at -
        +10ms
        < ACK 1 ack 10001 win 60000
        window 20000
        > ACK 10001..20001 ack 1 at -
        > ACK 20001..30001 ack 1 at +2500us
        +12500us
        < ACK 1 ack 30001 win 60000
        window 40000
        > ACK 30001..40001 ack 1 at -
        > ACK 40001..50001 ack 1 at +1250us
        +500us
        > ACK 50001..60001 ack 1 at +2ms
        +1250us
        > ACK 60001..70001 ack 1 at +2ms
        +12ms
        < ACK 1 ack 30001 win 60000
        > ACK 70001..71001 ack 1 at -
        < ACK 1 ack 30001 win 60000
        > ACK 71001..72001 ack 1 at +125us
        < ACK 1 ack 30001 win 60000
        > ACK 30001..31001 ack 1 at +250us
        +10ms
        < ACK 1 ack 72001 win 60000
        # What is in flight, and the initial window.
        window 11000
        > ACK 72001..82001 ack 1 at -
        > ACK 82001..83001 ack 1 at +4545us
        +14545us
        < ACK 1 ack 83001 win 60000
        # Half of what was in flight was 21,000.
        window 21000
        > ACK 83001..93001 ack 1 at -
        > ACK 93001..103001 ack 1 at +3968us
        ",
    );
    // Congestion avoidance: a window and a fifth more in 10 ms.
    assert_eq!(script.tcp().pacing_rate(), Some(2_520_000));
}

/// Covers: draft-ietf-ccwg-bbr §5.6.2
#[test]
fn on_a_short_path_the_window_is_not_paced() {
    let over = |rtt: &str| {
        let mut script = Script::listen(Config {
            pace: true,
            ..config()
        });
        script.trace(&format!(
            "
            < SYN 0 win 65535 mss 1000
            > SYN ACK 0 ack 1
            +{rtt}
            < ACK 1 ack 1 win 60000
            "
        ));
        script.tcp().pacing_rate()
    };
    assert_eq!(over("2ms"), None);
    assert_eq!(over("4ms"), Some(5_000_000));
}

#[test]
fn paced_windows_fit_into_a_shallow_queue() {
    // 40 Mbit/s over 60 ms, with room for 20 packets of the 207 that the path holds.
    let path = Path {
        bytes_per_second: 5_000_000,
        round_trip: Duration::from_millis(60),
        queue_bytes: 30_000,
        ..LONG_FAT
    };
    let run = |pace: bool| {
        let config = Config {
            pace,
            ..Config::default()
        };
        let mut download = Download::begin(path, &config, &Config::default(), false);
        let read = download.pass(Duration::from_secs(3));
        (read, download.dropped)
    };
    let (paced, bursty) = (run(true), run(false));
    println!("bytes read, packets dropped: paced {paced:?}, not paced {bursty:?}");
    assert!(paced.0 > bursty.0, "{paced:?} {bursty:?}");
}

/// Covers: draft-ietf-ccwg-bbr §5.6.2
#[test]
fn a_rate_that_is_raised_applies_to_what_has_not_been_issued() {
    let mut script = paced(config(), "");
    script.trace(
        "
        rate 1000
        virtual 10000
        > ACK 1..2001 ack 1 at -
        +10ms
        < ACK 1 ack 2001 win 60000
        # 2000 bytes at 100,000 per second have taken 20 ms: another 10.
        rate 100000
        > ACK 2001..4001 ack 1 at +10ms
        ",
    );
}

/// Covers: RFC 7661 §4.3
#[test]
fn a_window_that_pacing_leaves_unused_does_not_grow() {
    let mut script = paced(config(), "");
    script.trace("rate 100000\nvirtual 100000\n> ACK 1..2001 ack 1 at -");
    for round in 0..20 {
        let start = 2001 + round * 2000;
        script.trace(&format!(
            "
            +10ms
            > ACK {start}..{} ack 1 at +10ms
            < ACK 1 ack {start} win 60000
            +10ms
            window 10000
            ",
            start + 2000,
        ));
    }
}

/// Covers: draft-ietf-ccwg-bbr §5.6.2
#[test]
fn what_never_left_is_paced_when_it_is_issued_again() {
    let mut script = paced(config(), "");
    script.trace(
        "
        hold
        rate 1000000
        virtual 6000
        > ACK 1..2001 ack 1 at -
        > ACK 2001..4001 ack 1 at +2ms
        +2ms
        > PSH ACK 4001..6001 ack 1 at +2ms
        +50ms
        forget
        > ACK 1..2001 ack 1 at -
        > ACK 2001..4001 ack 1 at +2ms
        +2ms
        > PSH ACK 4001..6001 ack 1 at +2ms
        ",
    );
}

/// Covers: draft-ietf-ccwg-bbr §5.6.2
#[test]
fn what_never_left_needs_no_room_in_the_window() {
    // It counts as in flight already, and full segments wait behind it.
    let mut script = paced(config(), "");
    script.trace(
        "
        hold
        virtual 100000
        > ACK 1..10001 ack 1
        forget
        > ACK 1..10001 ack 1 at - behind
        depart
        +10ms
        < ACK 1 ack 10001 win 60000
        > ACK 10001..30001 ack 1
        ",
    );
    let mut script = paced(config(), "");
    script.trace(
        "
        hold
        rate 2000000
        virtual 100000
        > ACK 1..2001 ack 1 at -
        > ACK 2001..4001 ack 1 at +1ms
        > ACK 4001..6001 ack 1 at +2ms
        +1ms
        > ACK 6001..8001 ack 1 at +2ms
        +1ms
        > ACK 8001..10001 ack 1 at +2ms
        +10ms
        forget
        > ACK 1..2001 ack 1 at -
        > ACK 2001..4001 ack 1 at +1ms
        > ACK 4001..6001 ack 1 at +2ms
        +1ms
        > ACK 6001..8001 ack 1 at +2ms
        +1ms
        > ACK 8001..10001 ack 1 at +2ms
        ",
    );
}

/// Covers: RFC 8985 §7.3
#[test]
fn what_never_left_takes_the_place_of_a_tail_probe() {
    let mut script = paced(config(), "sackOK");
    script.trace(
        "
        rate 100000
        virtual 6000
        > ACK 1..2001 ack 1 at -
        hold
        +10ms
        > ACK 2001..4001 ack 1 at +10ms
        +1ms
        forget
        # The probe timeout, 22 ms after the departure.
        +11ms
        +8ms
        > ACK 2001..4001 ack 1 at +10ms
        ",
    );
}
