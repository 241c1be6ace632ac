//! The congestion window as a whole connection has it (RFC 5681, RFC 6928).

use std::time::Duration;

use crate::path_model::Path;
use crate::script::{Script, config};
use tcp::CongestionAlgorithm::{Bbr, Cubic, NewReno};
use tcp::{Config, CongestionAlgorithm};

const SECOND: Duration = Duration::from_secs(1);

fn established(window: u32) -> Script {
    established_with(NewReno, window, "")
}

fn established_with(congestion: CongestionAlgorithm, window: u32, options: &str) -> Script {
    let config = Config {
        window_scaling: true,
        congestion,
        ..config()
    };
    let syn = format!("win 65535 mss 1000 ws 4 {options}");
    Script::opened(config, &syn, window >> 4)
}

/// Covers: RFC 5681 §4.1
#[test]
fn after_an_idle_rto_the_window_is_the_initial_one_again() {
    let mut script = established(1_000_000);
    script.trace(
        "
        virtual 30000
        > ACK 1..10001 ack 1
        +10ms
        < ACK 1 ack 10001 win 60000
        > PSH ACK 10001..30001 ack 1
        < ACK 1 ack 30001 win 60000
        +200ms
        virtual 20000
        > PSH ACK 30001..50001 ack 1
        < ACK 1 ack 50001 win 60000
        +1s
        virtual 20000
        > ACK 50001..60001 ack 1
        ",
    );
}

/// Covers: RFC 5681 §3.1, RFC 9438 §4.8
#[test]
fn another_algorithm_goes_on_from_the_window_there_is() {
    let mut script = established(1_000_000);
    script.trace(
        "
        virtual 1000000
        > ACK 1..10001 ack 1
        +10ms
        < ACK 1 ack 10001 win 60000
        > ACK 10001..30001 ack 1
        ",
    );
    let now = script.now;
    for algorithm in CongestionAlgorithm::ALL {
        script
            .connection
            .as_mut()
            .expect("established")
            .set_congestion(now, algorithm);
        assert_eq!(script.tcp().congestion(), algorithm);
        assert_eq!(script.tcp().congestion_window(), 20_000);
    }
}

/// Covers: RFC 6928 §2, RFC 5681 §3.1
#[test]
fn the_initial_window_is_ten_segments_and_doubles_each_round_trip() {
    let mut script = established(1_000_000);
    script.trace(
        "
        virtual 1000000
        > ACK 1..10001 ack 1
        +10ms
        < ACK 1 ack 10001 win 60000
        > ACK 10001..30001 ack 1
        +10ms
        < ACK 1 ack 20001 win 60000
        > ACK 30001..50001 ack 1
        < ACK 1 ack 30001 win 60000
        > ACK 50001..70001 ack 1
        ",
    );
    assert_eq!(script.tcp().congestion_window(), 40_000);
}

/// Covers: RFC 7661 §4.3
#[test]
fn a_window_that_is_not_used_does_not_grow() {
    let mut script = established(1_000_000);
    for round in 0..50 {
        let start = 1 + round * 100;
        script.trace(&format!(
            "
            write 100
            > PSH ACK {start}..{} ack 1
            < ACK 1 ack {} win 60000
            ",
            start + 100,
            start + 100
        ));
    }
    assert_eq!(script.tcp().congestion_window(), 10_000);
}

/// Covers: RFC 7661 §4.3
#[test]
fn a_window_that_the_peer_limits_does_not_grow() {
    let mut script = established(4_000);
    script.trace(
        "
        virtual 100000
        > ACK 1..4001 ack 1
        < ACK 1 ack 4001 win 250
        > ACK 4001..8001 ack 1
        < ACK 1 ack 8001 win 250
        > ACK 8001..12001 ack 1
        ",
    );
    assert_eq!(script.tcp().congestion_window(), 10_000);
}

/// Covers: RFC 5681 §3.1, RFC 3465 §2.1
#[test]
fn a_timeout_leaves_one_segment_and_slow_start_ends_at_half_of_what_was_in_flight() {
    let mut script = established(1_000_000);
    script.trace(
        "
        virtual 1000000
        > ACK 1..10001 ack 1
        +210ms
        > ACK 1..1001 ack 1
        ",
    );
    assert_eq!(script.tcp().congestion_window(), 1000);
    script.trace(
        "
        < ACK 1 ack 10001 win 60000
        > ACK 10001..13001 ack 1
        < ACK 1 ack 13001 win 60000
        > ACK 13001..18001 ack 1
        ",
    );
    assert_eq!(script.tcp().congestion_window(), 5000);
    // Congestion avoidance: one segment for a window of acknowledged bytes.
    script.trace(
        "
        < ACK 1 ack 18001 win 60000
        > ACK 18001..24001 ack 1
        ",
    );
    assert_eq!(script.tcp().congestion_window(), 6000);
}

/// Covers: RFC 6928 §2
#[test]
fn the_initial_window_is_14600_bytes_or_two_segments_if_they_are_large() {
    for (mss, window) in [
        (1000, 10_000),
        (1460, 14_600),
        (4000, 14_600),
        (8960, 17_920),
    ] {
        let mut script = Script::listen(Config {
            mss: 8960,
            ..config()
        });
        script.trace(&format!(
            "
            < SYN 0 win 60000 mss {mss}
            > SYN ACK 0 ack 1
            +10ms
            < ACK 1 ack 1 win 60000
            virtual 100000
            > ACK 1..{} ack 1
            window {window}
            ",
            1 + window / mss * mss
        ));
    }
}

/// Covers: RFC 6928 §2, RFC 5681 §3.1
#[test]
fn after_a_second_lost_syn_ack_the_initial_window_is_one_segment() {
    for (lost, end) in [(1, 10_001), (2, 1001)] {
        let mut script = Script::listen(config());
        script.trace("< SYN 0 win 60000 mss 1000\n> SYN ACK 0 ack 1");
        for seconds in 1..=lost {
            script.trace(&format!("+{seconds}s\n> SYN ACK 0 ack 1"));
        }
        script.trace(&format!(
            "
            +10ms
            < ACK 1 ack 1 win 60000
            virtual 100000
            > ACK 1..{end} ack 1
            "
        ));
    }
}

/// Covers: RFC 5681 §4.1
#[test]
fn after_an_idle_time_the_window_grows_again_from_the_initial_one() {
    for algorithm in [NewReno, Cubic] {
        let mut script = established_with(algorithm, 1_000_000, "");
        script.trace(
            "
            virtual 30000
            > ACK 1..10001 ack 1
            +10ms
            < ACK 1 ack 10001 win 60000
            > PSH ACK 10001..30001 ack 1
            +10ms
            < ACK 1 ack 30001 win 60000
            window 40000
            +300ms
            virtual 100000
            > ACK 30001..40001 ack 1
            window 10000
            +10ms
            < ACK 1 ack 40001 win 60000
            > ACK 40001..60001 ack 1
            window 20000
            ",
        );
    }
}

/// Covers: RFC 7661 §4.3, RFC 9438 §5.8
#[test]
fn no_algorithm_lets_a_window_grow_that_is_not_used() {
    for algorithm in CongestionAlgorithm::ALL {
        let mut script = established_with(algorithm, 1_000_000, "");
        for round in 0..50 {
            let start = 1 + round * 1000;
            script.trace(&format!(
                "
                write 1000
                > PSH ACK {start}..{end} ack 1
                +10ms
                < ACK 1 ack {end} win 60000
                ",
                end = start + 1000
            ));
        }
        let window = script.tcp().congestion_window();
        match algorithm {
            // "cwnd < max_inflight" alone holds before the bandwidth is known.
            Bbr => assert!(window <= 60_000, "{window}"),
            _ => assert_eq!(window, 10_000, "{algorithm:?}"),
        }
    }
}

/// Covers: RFC 9438 §4.6, RFC 5681 §3.2
#[test]
fn a_loss_takes_three_tenths_from_cubic_and_half_from_reno() {
    for (algorithm, left) in [(NewReno, 5_000), (Cubic, 7_000)] {
        let mut script = established_with(algorithm, 1_000_000, "sackOK");
        script.trace(
            "
            virtual 10000
            > PSH ACK 1..10001 ack 1
            +10ms
            < ACK 1 ack 1 win 60000 sack 1001..10001
            > ACK 1..1001 ack 1
            +10ms
            < ACK 1 ack 10001 win 60000
            ",
        );
        script.trace(&format!("window {left}"));
    }
}

/// Covers: RFC 5681 §3.1, RFC 6675 §5 (step 4.2), RFC 9438 §4.6
#[test]
fn what_is_acknowledged_selectively_before_a_loss_is_known_counts_as_flight() {
    for (algorithm, left) in [(NewReno, 5_000), (Cubic, 7_000)] {
        let mut script = established_with(algorithm, 1_000_000, "sackOK");
        script.trace(
            "
            virtual 10000
            > PSH ACK 1..10001 ack 1
            +10ms
            < ACK 1 ack 1 win 60000 sack 1001..2001
            < ACK 1 ack 1 win 60000 sack 1001..3001
            < ACK 1 ack 1 win 60000 sack 1001..4001
            > ACK 1..1001 ack 1
            +10ms
            < ACK 1 ack 10001 win 60000
            ",
        );
        assert_eq!(script.tcp().congestion_window(), left, "{algorithm:?}");
    }
}

/// Covers: RFC 6675 §5 (step 4.2), RFC 9937 §6
#[test]
fn a_loss_near_the_end_of_a_response_leaves_the_window_at_the_threshold() {
    for (algorithm, left) in [(NewReno, 20_000), (Cubic, 28_000)] {
        let mut script = established_with(algorithm, 1_000_000, "sackOK");
        script.trace(
            "
            virtual 10000
            > PSH ACK 1..10001 ack 1
            +10ms
            < ACK 1 ack 10001 win 60000
            virtual 20000
            > PSH ACK 10001..30001 ack 1
            +10ms
            < ACK 1 ack 30001 win 60000
            virtual 40000
            > PSH ACK 30001..70001 ack 1
            window 40000
            +10ms
            < ACK 1 ack 65001 win 60000 sack 66001..67001 68001..70001
            > ACK 65001..66001 ack 1
            > ACK 67001..68001 ack 1
            +10ms
            < ACK 1 ack 70001 win 60000
            ",
        );
        assert_eq!(script.tcp().congestion_window(), left, "{algorithm:?}");
    }
}

/// Covers: RFC 7661 §4.1
#[test]
fn a_window_that_is_half_used_grows_in_slow_start() {
    for algorithm in [NewReno, Cubic] {
        let mut script = established_with(algorithm, 1_000_000, "");
        // All 10 of 10 segments are in flight, and nothing waits behind them.
        script.trace("virtual 10000\n> PSH ACK 1..10001 ack 1\n+10ms");
        for acked in [2, 4, 6, 8, 10] {
            script.trace(&format!("< ACK 1 ack {} win 60000", 1 + acked * 1000));
        }
        assert_eq!(script.tcp().congestion_window(), 20_000, "{algorithm:?}");
        // 9 of 20: less than half.
        script.trace(
            "virtual 9000\n> PSH ACK 10001..19001 ack 1\n+10ms\n< ACK 1 ack 19001 win 60000",
        );
        assert_eq!(script.tcp().congestion_window(), 20_000, "{algorithm:?}");
    }
}

/// Covers: RFC 9438 §4.9.2, RFC 4015 §3.2, RFC 3708 §3
#[test]
fn a_loss_that_was_none_gives_back_the_window() {
    for algorithm in [NewReno, Cubic] {
        let mut script = established_with(algorithm, 1_000_000, "sackOK");
        script.trace(
            "
            virtual 30000
            > ACK 1..10001 ack 1
            +10ms
            < ACK 1 ack 10001 win 60000
            > PSH ACK 10001..30001 ack 1
            window 20000
            +10ms
            < ACK 1 ack 10001 win 60000 sack 11001..30001
            > ACK 10001..11001 ack 1
            +1ms
            < ACK 1 ack 30001 win 60000
            < ACK 1 ack 30001 win 60000 sack 10001..11001
            window 20000
            ",
        );
    }
}

/// RFC 9438 figure 1 and 2, in segments.
fn w_cubic(t: f64, w_max: f64, cwnd_epoch: f64) -> f64 {
    let k = ((w_max - cwnd_epoch) / 0.4).cbrt();
    0.4 * (t - k).powi(3) + w_max
}

/// Covers: RFC 9438 §4.2, RFC 9438 §4.6, RFC 9438 §4.7
#[test]
fn cubic_climbs_back_to_where_it_was_and_makes_room_after_a_second_loss() {
    // So fast that there is no queue; so long that Reno would be slower.
    let mut path = Path::new(Cubic, 1_000_000_000, 200);
    let mut w_max = 0.0;
    for loss in 0..2 {
        while loss == 0 && path.tcp.congestion_window() < 1_000_000 {
            path.run(path.rtt, |_| ());
        }
        let before = path.tcp.congestion_window() as f64 / 1000.0;
        let next = path.tcp.acknowledged_bytes() + path.tcp.flight_bytes();
        path.lose.push(next);
        let repeated = path.repeated;
        while path.repeated == repeated {
            path.run(Duration::from_millis(1), |_| ());
        }
        path.run(path.rtt + path.rtt / 4, |_| ());
        let after = path.tcp.congestion_window() as f64 / 1000.0;
        let at_loss = after / 0.7;
        assert!(
            (before * 0.99..before * 2.1).contains(&at_loss),
            "{before} {after}"
        );
        // §4.7: below the last maximum, room is made.
        w_max = if at_loss < w_max {
            at_loss * 1.7 / 2.0
        } else {
            at_loss
        };
        let began = path.now;
        for _ in 0..20 {
            path.run(path.rtt, |_| ());
            let t = path.now.since(began).as_secs_f64();
            let window = path.tcp.congestion_window() as f64 / 1000.0;
            let curve = w_cubic(t, w_max, after);
            assert!(
                (window - curve).abs() < 0.03 * w_max,
                "loss {loss}, {t}: {window}, {curve}"
            );
        }
    }
    assert_eq!(path.repeated, 2000);
}

/// Covers: RFC 9406 §4.2, RFC 9406 §4.3
#[test]
fn slow_start_is_left_when_the_queue_grows_and_nothing_is_lost() {
    let grown = |algorithm| {
        let mut path = Path::new(algorithm, 1_000_000, 40);
        path.run(2 * SECOND, |_| ());
        let window = path.tcp.congestion_window();
        path.run(SECOND, |_| ());
        assert_eq!(path.repeated, 0);
        assert!(window > path.bdp());
        path.tcp.congestion_window() - window
    };
    // A megabyte is acknowledged.
    assert!((990_000..1_010_000).contains(&grown(NewReno)));
    assert!(grown(Cubic) < 100_000, "{}", grown(Cubic));
}

/// Covers: RFC 9406 §4.2
#[test]
fn slow_start_goes_on_while_the_delay_does_not_grow() {
    let mut path = Path::new(Cubic, 1_000_000_000, 40);
    // The acknowledgments of the initial window, and of those that follow.
    path.run(Duration::from_millis(10 + 40 * 7), |_| ());
    assert_eq!(path.tcp.congestion_window(), 1_280_000);
}

/// Covers: RFC 5681 §3.1, draft-ietf-ccwg-bbr §5.2.1
#[test]
fn a_live_connection_changes_its_congestion_control_and_keeps_its_window() {
    let mut path = Path::new(Cubic, 1_000_000, 40);
    path.run(2 * SECOND, |_| ());
    for algorithm in [Bbr, NewReno, Bbr, Cubic] {
        let window = path.tcp.congestion_window();
        path.tcp.set_congestion(path.now, algorithm);
        assert_eq!(path.tcp.congestion_window(), window);
        assert_eq!(path.tcp.pacing_rate().is_some(), algorithm == Bbr);
        let before = path.tcp.acknowledged_bytes();
        path.run(4 * SECOND, |_| ());
        let bytes = path.tcp.acknowledged_bytes() - before;
        assert!(bytes > 3_600_000, "{algorithm:?}: {bytes}");
        assert_eq!(path.repeated, 0);
    }
}

/// The pacing gains of BBR, in percent, as far as they can be told from the pacing rate.
fn gains(path: &mut Path, seconds: u32) -> Vec<u64> {
    let bandwidth = path.bytes_per_second;
    let mut gains = Vec::new();
    path.run(seconds * SECOND, |path| {
        let rate = path.tcp.pacing_rate().expect("BBR paces");
        // A percent below the bandwidth.
        let percent = rate * 100 / (bandwidth / 100 * 99);
        let near = |gain: &u64| percent.abs_diff(*gain) * 100 <= gain * 4;
        if let Some(gain) = [277, 125, 100, 90, 50].into_iter().find(near)
            && gains.last() != Some(&gain)
        {
            gains.push(gain);
        }
    });
    gains
}

/// Covers: draft-ietf-ccwg-bbr §5.3.1, draft-ietf-ccwg-bbr §5.3.2, draft-ietf-ccwg-bbr §5.3.3
#[test]
fn bbr_starts_up_drains_and_probes_for_bandwidth() {
    let mut path = Path::new(Bbr, 1_000_000, 40);
    let gains = gains(&mut path, 5);
    let drain = gains.iter().position(|&gain| gain == 50);
    let drain = drain.unwrap_or_else(|| panic!("{gains:?}"));
    assert_eq!(gains[drain - 1], 277, "{gains:?}");
    // Down, which is over at once if Drain has left no queue; Cruise and Refill, Up, and again.
    let mut cycle = gains[drain + 1..].iter().skip_while(|&&gain| gain == 90);
    assert!(
        cycle
            .by_ref()
            .take(7)
            .eq(&[100, 125, 90, 100, 125, 90, 100]),
        "{gains:?}"
    );
}

/// Covers: draft-ietf-ccwg-bbr §5.6.2, draft-ietf-ccwg-bbr §5.6.4
#[test]
fn bbr_sends_at_the_bandwidth_with_next_to_no_queue() {
    let mut path = Path::new(Bbr, 1_000_000, 40);
    path.run(2 * SECOND, |_| ());
    let (first, bdp) = (path.departed.len(), path.bdp());
    let mut flights = Vec::new();
    path.run(2 * SECOND, |path| flights.push(path.tcp.flight_bytes()));
    let bytes: u64 = path.departed[first..].iter().map(|(_, bytes)| bytes).sum();
    assert!((1_900_000..2_050_000).contains(&bytes), "{bytes}");
    // Twice the BDP, what a probe adds, and what acknowledgments have come early.
    let window = path.tcp.congestion_window();
    assert!((2 * bdp..3 * bdp).contains(&window), "{window}");
    flights.sort_unstable();
    let median = flights[flights.len() / 2];
    assert!((bdp * 9 / 10..bdp * 13 / 10).contains(&median), "{median}");
    // No burst: two packets at a time, as far apart as they take.
    for pair in path.departed[first..].windows(2) {
        let ((at, bytes), (next, _)) = (pair[0], pair[1]);
        assert!(bytes <= 2000, "{bytes}");
        let us = next.since(at).as_micros() as u64;
        assert!(us * 130 / 100 >= bytes, "{bytes} bytes in {us} us");
    }
}

/// Covers: draft-ietf-ccwg-bbr §5.3.4
#[test]
fn bbr_lets_go_of_half_of_the_path_every_five_seconds_to_see_how_long_it_is() {
    let mut path = Path::new(Bbr, 1_000_000, 40);
    let bdp = path.bdp();
    let start = path.now;
    // When the window shrank to half of what the path holds, and for how long it stayed so.
    let mut probes: Vec<(f64, f64)> = Vec::new();
    let mut probing = false;
    path.run(12 * SECOND, |path| {
        let seconds = path.now.since(start).as_secs_f64();
        let small = path.tcp.congestion_window() <= bdp * 55 / 100;
        // Not the initial window.
        if small && seconds > 1.0 {
            match (probing, probes.last_mut()) {
                (true, Some((_, until))) => *until = seconds,
                _ => probes.push((seconds, seconds)),
            }
        }
        probing = small;
    });
    assert_eq!(probes.len(), 2, "{probes:?}");
    for (count, &(from, until)) in probes.iter().enumerate() {
        let due = 5.0 * (count + 1) as f64;
        assert!((due..due + 1.0).contains(&from), "{probes:?}");
        assert!((0.2..0.4).contains(&(until - from)), "{probes:?}");
    }
}

/// Covers: RFC 9406 §4.2, RFC 8985 §6.2
#[test]
fn a_path_that_reorders_is_filled_without_an_overflow() {
    for seed in 0..6 {
        let mut path = Path::with_timestamps(Cubic, 5_000_000, 100);
        path.queue_bytes_max = path.bdp();
        path.reorder(seed, 100, Duration::from_micros(12_500));
        path.run(5 * SECOND, |_| ());
        let share = path.tcp.acknowledged_bytes() * 100 / (5 * path.bytes_per_second);
        println!(
            "seed {seed}: {share} %, overflowed {}, refused {} repeated {} cwnd {}",
            path.overflowed,
            path.refused,
            path.repeated,
            path.tcp.congestion_window()
        );
    }
}
