//! Pacing: how much a transmission holds, and when it may leave.

use std::time::Duration;

use crate::script::{Script, config};
use tcp::{Config, CongestionAlgorithm, Connection, Instant, Limits};

const LIMITS: Limits = Limits {
    bytes_max: 1 << 20,
    pieces_max: 32,
    real_bytes_max: 4096,
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
