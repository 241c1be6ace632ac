//! BBR on paths that lose, mark, delay and fall silent (draft-ietf-ccwg-bbr): as a whole connection
//! has it.

use std::time::Duration;

use tcp::CongestionAlgorithm::Bbr;

use crate::path_model::Path;

const SECOND: Duration = Duration::from_secs(1);

/// 1 MB/s over 40 ms: 40 packets.
fn path() -> Path {
    Path::new(Bbr, 1_000_000, 40)
}

/// Bytes acknowledged in a while.
fn acknowledged(path: &mut Path, during: Duration) -> u64 {
    let before = path.tcp.acknowledged_bytes();
    path.run(during, |_| ());
    path.tcp.acknowledged_bytes() - before
}

/// Covers: draft-ietf-ccwg-bbr §5.5.10.2
#[test]
fn a_path_that_loses_one_packet_in_a_hundred_is_used_up() {
    let mut path = path();
    path.lose_one_in = 100;
    path.run(SECOND, |_| ());
    let repeated = path.repeated;
    let mut window_min = u64::MAX;
    let before = path.tcp.acknowledged_bytes();
    path.run(4 * SECOND, |path| {
        window_min = window_min.min(path.tcp.congestion_window());
    });
    let bytes = path.tcp.acknowledged_bytes() - before;
    assert!(bytes > 3_900_000, "{bytes}");
    assert!(window_min >= 2 * path.bdp(), "{window_min}");
    // Nothing is sent again but what is lost.
    let repeated = path.repeated - repeated;
    assert!((38_000..=42_000).contains(&repeated), "{repeated}");
    assert_eq!(path.tcp.take_stats().timeouts, 0);
}

/// Covers: draft-ietf-ccwg-bbr §5.5.10.3
#[test]
fn more_loss_than_that_lowers_rate_and_window_until_it_is_over() {
    let mut path = path();
    path.lose_one_in = 10;
    path.run(2 * SECOND, |_| ());
    let mut window_max = 0;
    path.run(2 * SECOND, |path| {
        window_max = window_max.max(path.tcp.congestion_window());
    });
    assert!(window_max < path.bdp(), "{window_max}");
    path.lose_one_in = u64::MAX;
    path.run(4 * SECOND, |_| ());
    let bytes = acknowledged(&mut path, 2 * SECOND);
    assert!(bytes > 1_900_000, "{bytes}");
}

/// Covers: draft-ietf-ccwg-bbr §5.3.1.3, draft-ietf-ccwg-bbr §5.3.3.6
#[test]
fn a_shallow_queue_overflows_in_startup_and_a_little_in_each_probe() {
    let mut path = path();
    path.queue_bytes_max = 10_000;
    path.run(SECOND, |_| ());
    let lost_in_startup = path.repeated;
    assert!(lost_in_startup <= 2 * path.bdp(), "{lost_in_startup}");
    let mut flight_max = 0;
    let before = path.tcp.acknowledged_bytes();
    path.run(4 * SECOND, |path| {
        flight_max = flight_max.max(path.tcp.pipe_bytes());
    });
    let bytes = path.tcp.acknowledged_bytes() - before;
    assert!(bytes > 3_900_000, "{bytes}");
    // What the path and its queue hold, and a few packets.
    let held = path.bdp() + path.queue_bytes_max;
    assert!(flight_max <= held * 12 / 10, "{flight_max}");
    let lost = path.repeated - lost_in_startup;
    assert!((1..=bytes / 100).contains(&lost), "{lost}");
}

/// Covers: RFC 3168 §6.1.2, draft-ietf-ccwg-bbr §5.3.3.6
#[test]
fn marks_bound_what_a_probe_puts_in_flight() {
    let flight_max = |unmarked_bytes_max| {
        let mut path = path();
        path.unmarked_bytes_max = unmarked_bytes_max;
        path.run(2 * SECOND, |_| ());
        let mut flight_max = 0;
        let before = path.tcp.acknowledged_bytes();
        path.run(2 * SECOND, |path| {
            flight_max = flight_max.max(path.tcp.pipe_bytes());
        });
        let bytes = path.tcp.acknowledged_bytes() - before;
        assert!(bytes > 1_700_000, "{bytes}");
        let stats = path.tcp.take_stats();
        assert_eq!((path.repeated, stats.timeouts), (0, 0));
        assert_eq!(stats.ecn_reductions > 0, unmarked_bytes_max < u64::MAX);
        flight_max
    };
    let (marked, unmarked) = (flight_max(10_000), flight_max(u64::MAX));
    assert!(marked * 10 < unmarked * 9, "{marked} {unmarked}");
}

/// Covers: draft-ietf-ccwg-bbr §5.6.4.4
#[test]
fn a_timeout_leaves_one_packet_and_what_is_known_of_the_path() {
    let mut path = path();
    path.run(2 * SECOND, |_| ());
    let (window, rate) = (path.tcp.congestion_window(), path.tcp.pacing_rate());
    path.lose_one_in = 1;
    let mut waited = 0;
    while path.tcp.congestion_window() > 1000 {
        path.run(Duration::from_millis(1), |_| ());
        waited += 1;
        assert!(waited < 1000, "no timeout");
    }
    assert_eq!(path.tcp.pacing_rate(), rate);
    path.lose_one_in = u64::MAX;
    path.run(SECOND, |_| ());
    assert!(path.tcp.congestion_window() >= window);
    assert_eq!(path.tcp.take_stats().spurious_timeouts, 0);
    let bytes = acknowledged(&mut path, SECOND);
    assert!(bytes > 950_000, "{bytes}");
}

/// Covers: draft-ietf-ccwg-bbr §5.5.10.4, RFC 5682 §2.1
#[test]
fn a_path_that_was_just_silent_gets_its_window_back_at_once() {
    let mut path = path();
    path.run(2 * SECOND, |_| ());
    let window = path.tcp.congestion_window();
    path.silent_until = path.now + SECOND;
    path.run(SECOND * 9 / 10, |_| ());
    assert_eq!(path.tcp.congestion_window(), 1000);
    path.run(SECOND / 10 + path.rtt * 2, |_| ());
    assert_eq!(path.tcp.take_stats().spurious_timeouts, 1);
    assert!(path.tcp.congestion_window() >= window);
}

/// Covers: draft-ietf-ccwg-bbr §5.5.10.4
#[test]
fn packets_that_were_only_late_do_not_end_startup() {
    let mut path = path();
    let late = |n: u64| (60_000 + n * 1000, Duration::from_millis(25));
    path.delay = (0..30).map(late).collect();
    // It looks like a queue that overflows: Drain.
    let (slow, fast) = (500_000, 2_500_000);
    let mut rates = Vec::new();
    path.run(Duration::from_millis(400), |path| {
        rates.extend(path.tcp.pacing_rate());
    });
    let grown = rates
        .iter()
        .position(|&rate| (1_500_000..fast).contains(&rate));
    let rates = &rates[grown.expect("it has begun to grow")..];
    let left = rates.iter().position(|&rate| rate < slow);
    let rates = &rates[left.expect("Startup is left")..];
    // The receiver says that it had them all: Startup goes on.
    assert!(rates.iter().any(|&rate| rate > fast), "{rates:?}");
    assert!(path.repeated > 0);
    assert_eq!(path.tcp.take_stats().timeouts, 0);
}
