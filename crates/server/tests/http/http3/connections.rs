//! The life of a QUIC connection that carries HTTP/3.

use std::num::{NonZeroU16, NonZeroU64};
use std::sync::atomic::Ordering;
use std::time::Duration;

use server::Config;

use crate::http3::client::{GOAWAY, SETTINGS, get, take_varint, varint};
use crate::lab::{self, Lab};

const NO_ERROR: u64 = 0x100;
const GENERAL_PROTOCOL_ERROR: u64 = 0x101;
const EXCESSIVE_LOAD: u64 = 0x107;
const REQUEST_REJECTED: u64 = 0x10b;
const REQUEST_CANCELLED: u64 = 0x10c;

fn lab() -> Lab {
    let mut lab = Lab::alone(Config::default());
    lab.file("a", vec![7; 100_000]);
    lab
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Covers: RFC 9114 §6.2.1, RFC 9114 §7.2.4.1, RFC 9114 §7.2.4.2, RFC 9204 §5
#[test]
fn the_server_says_what_it_permits_before_all_else() {
    let mut lab = lab();
    let connection = lab.open_quic(false);
    let frames = lab.control_frames(connection);
    let [(SETTINGS, settings)] = &frames[..] else {
        panic!("{frames:?}");
    };
    let mut rest = &settings[..];
    let mut found = Vec::new();
    while !rest.is_empty() {
        found.push((take_varint(&mut rest), take_varint(&mut rest)));
    }
    assert_eq!(found[0], (0x1, 0), "no dynamic table");
    assert_eq!(found[1], (0x6, (16 << 10) + 104 * 32));
    assert_eq!(found[2], (0x7, 0));
    assert_eq!(found.len(), 4);
    assert_eq!((found[3].0 - 0x21) % 0x1f, 0, "one that is reserved");
    assert_eq!(lab.counters().connections_accepted, 1);
}

/// A client that resumes goes by what it was told before, with its early data.
///
/// Covers: RFC 9114 §7.2.4.2
#[test]
fn a_setting_never_becomes_less() {
    let named = |lab: &mut Lab| {
        let connection = lab.open_quic(false);
        let frames = lab.control_frames(connection);
        let mut rest = &frames[0].1[2..];
        (take_varint(&mut rest), take_varint(&mut rest))
    };
    let mut lab = lab();
    let fields = 104 * 32;
    assert_eq!(named(&mut lab), (0x6, (16 << 10) + fields));
    for (head_bytes_max, wanted) in [
        (4 << 10, 16 << 10),
        (64 << 10, 64 << 10),
        (8 << 10, 64 << 10),
    ] {
        lab.reconfigure(Config {
            head_bytes_max,
            ..Config::default()
        });
        assert_eq!(named(&mut lab), (0x6, wanted + fields));
    }
}

#[test]
fn a_client_that_permits_no_control_stream_is_turned_away() {
    let mut lab = lab();
    let connection = lab.open_quic(true);
    assert_eq!(lab.quic_closed(connection), Some(GENERAL_PROTOCOL_ERROR));
    assert_eq!(lab.connections(), 0);
    let counters = lab.counters();
    assert_eq!(
        (counters.connections_accepted, counters.connections_closed),
        (1, 1)
    );
}

#[test]
fn a_connection_that_is_lost_leaves_nothing_behind() {
    let mut lab = lab();
    let connection = lab.http3();
    lab.hold_opens();
    lab.begin(connection, &get("/a"));
    lab.begin(connection, &get("/a")[..9]);
    let half = lab.begin(connection, b"");
    lab.limit_queue(half, 1000);
    lab.acknowledges(half, false);
    lab.send(half, get("/a"));
    assert_eq!(lab.connections(), 1);
    lab.lose_quic(connection);
    lab.answer_opens();
    assert_eq!(lab.connections(), 0);
    assert_eq!(lab.files_left_open(), 0);
    let counters = lab.counters();
    assert_eq!(
        (counters.connections_accepted, counters.connections_closed),
        (1, 1)
    );
    assert_eq!(counters.http3_connection_errors, 0);
}

/// Covers: RFC 9114 §5.1
#[test]
fn idle_connections_end_in_order() {
    let mut lab = lab();
    let silent = lab.http3();
    lab.pass(seconds(15));
    assert_eq!(lab.quic_closed(silent), Some(NO_ERROR));
    assert_eq!(lab.counters().head_timeouts, 1);
    let connection = lab.http3();
    lab.ask3(connection, &get("/a"));
    lab.pass(seconds(74));
    lab.ask3(connection, &get("/a"));
    lab.pass(seconds(74));
    assert_eq!(lab.quic_closed(connection), None);
    lab.pass(seconds(1));
    assert_eq!(lab.quic_closed(connection), Some(NO_ERROR));
    assert_eq!(lab.counters().idle_timeouts, 1);
    let frames = lab.control_frames(connection);
    assert_eq!(frames[1], (GOAWAY, varint(8)), "two requests were taken");
    assert_eq!(lab.connections(), 0);
}

/// What has been sent on a stream does not follow CONNECTION_CLOSE.
///
/// Covers: RFC 9114 §5.2
#[test]
fn a_connection_is_closed_once_the_client_has_the_last_goaway_or_a_second_later() {
    for is_heard in [true, false] {
        for is_drained in [true, false] {
            let mut lab = lab();
            let connection = lab.http3();
            let control = lab.control_stream(connection);
            lab.ask3(connection, &get("/a"));
            lab.acknowledges(control, false);
            if is_drained {
                lab.drain();
                lab.pass(seconds(1));
            } else {
                lab.pass(seconds(75));
            }
            let frames = lab.control_frames(connection);
            assert_eq!(frames.last(), Some(&(GOAWAY, varint(4))));
            let late = lab.send_all(connection, &get("/a"));
            assert_eq!(lab.reset_code(late), Some(REQUEST_REJECTED));
            let unacknowledged = lab.unacknowledged_bytes(control);
            lab.acknowledge(control, unacknowledged - 1);
            lab.pass(Duration::from_millis(999));
            assert_eq!(lab.quic_closed(connection), None);
            if is_heard {
                lab.acknowledge(control, 1);
            } else {
                lab.pass(Duration::from_millis(1));
            }
            assert_eq!(lab.quic_closed(connection), Some(NO_ERROR));
            assert_eq!(lab.counters().requests, 1);
            assert_eq!(lab.connections(), 0);
        }
    }
}

/// Covers: RFC 9114 §5.2, RFC 9114 §7.2.6
#[test]
fn draining_takes_what_is_on_its_way_and_loses_nothing() {
    let mut lab = lab();
    let connection = lab.http3();
    lab.hold_opens();
    let before = lab.send_all(connection, &get("/a"));
    let told = lab.drain();
    let frames = lab.control_frames(connection);
    assert_eq!(frames[1], (GOAWAY, varint((1 << 62) - 4)));
    let on_its_way = lab.send_all(connection, &get("/a"));
    lab.pass(seconds(1));
    let frames = lab.control_frames(connection);
    assert_eq!(frames[2], (GOAWAY, varint(8)));
    let late = lab.send_all(connection, &get("/a"));
    assert_eq!(lab.reset_code(late), Some(REQUEST_REJECTED));
    assert_eq!(lab.quic_closed(connection), None);
    lab.answer_opens();
    for stream in [before, on_its_way] {
        assert_eq!(lab.response3(stream).body, vec![7; 100_000]);
    }
    assert_eq!(lab.quic_closed(connection), Some(NO_ERROR));
    assert_eq!(told.load(Ordering::Relaxed), 0);
    lab.turn();
    assert_eq!(told.load(Ordering::Relaxed), 1);
    assert_eq!(lab.counters().requests, 2);
    assert_eq!(lab.files_left_open(), 0);
}

/// Covers: RFC 9114 §5.2
#[test]
fn a_connection_whose_handshake_ends_during_a_drain_takes_leave_too() {
    let mut lab = lab();
    lab.http3();
    lab.drain();
    let late = lab.http3();
    let frames = lab.control_frames(late);
    assert!(frames.iter().any(|(kind, _)| *kind == GOAWAY), "{frames:?}");
    lab.pass(seconds(2));
    assert!(lab.quic_closed(late).is_some());
}

#[test]
fn a_connection_without_requests_drains_too() {
    let mut lab = lab();
    let connection = lab.http3();
    lab.drain();
    assert_eq!(
        lab.quic_closed(connection),
        None,
        "requests may be on their way"
    );
    lab.pass(seconds(1));
    assert_eq!(lab.quic_closed(connection), Some(NO_ERROR));
}

#[test]
fn control_frames_wait_until_the_stream_takes_them() {
    let mut lab = lab();
    let connection = lab.http3();
    let control = lab.control_stream(connection);
    let before = lab.received(control).len() as u64;
    lab.acknowledges(control, false);
    lab.limit_queue(control, 3);
    lab.drain();
    assert_eq!(lab.received(control).len() as u64, before + 3);
    lab.acknowledge(control, 3);
    lab.acknowledge(control, 3);
    lab.acknowledge(control, 3);
    let frames = lab.control_frames(connection);
    assert_eq!(frames[1], (GOAWAY, varint((1 << 62) - 4)));
}

/// A client that stops reading one response, and goes on with others, loses that one.
///
/// Covers: RFC 9114 §10.5
#[test]
fn a_stalled_stream_is_reset_and_no_other() {
    let mut lab = lab();
    let connection = lab.http3();
    let stalled = lab.begin(connection, b"");
    lab.limit_queue(stalled, 1000);
    lab.acknowledges(stalled, false);
    lab.send(stalled, get("/a"));
    for _ in 0..10 {
        lab.pass(seconds(8));
        assert_eq!(lab.ask3(connection, &get("/a")).status, 200);
    }
    assert_eq!(lab.reset_code(stalled), Some(REQUEST_CANCELLED));
    assert!(lab.is_closed(stalled));
    assert_eq!(lab.quic_closed(connection), None);
    assert_eq!(lab.counters().stall_timeouts, 1);
    assert_eq!(lab.files_left_open(), 0);
}

/// One that only waits for its turn behind others is not stalled.
///
/// Covers: RFC 9218 §10
#[test]
fn a_stream_that_waits_behind_others_is_not_reset() {
    let mut lab = lab();
    lab.zeros("large", 1 << 40);
    let connection = lab.http3();
    let first = lab.send_held(connection, &get("/large"));
    let behind = lab.send_held(connection, &get("/a"));
    for _ in 0..20 {
        lab.pass(seconds(8));
        lab.acknowledge(first, 1 << 20);
    }
    assert_eq!(lab.reset_code(behind), None);
    assert_eq!(lab.counters().stall_timeouts, 0);
    // With none before it, it is.
    lab.acknowledges(first, true);
    assert!(lab.is_closed(first));
    lab.pass(seconds(91));
    assert_eq!(lab.reset_code(behind), Some(REQUEST_CANCELLED));
}

/// The least rate is one of connections: many streams share what a client takes.
#[test]
fn a_client_below_the_least_rate_loses_its_connection() {
    for (bytes, is_slow) in [(499 * 15 / 8, true), (501 * 15 / 8 + 1, false)] {
        let mut lab = lab();
        lab.zeros("large", 1 << 40);
        let connection = lab.http3();
        let streams: Vec<_> = (0..8)
            .map(|_| lab.send_held(connection, &get("/large")))
            .collect();
        for _ in 0..10 {
            if lab.quic_closed(connection).is_none() {
                lab.pass(seconds(15));
            }
            if lab.quic_closed(connection).is_none() {
                streams
                    .iter()
                    .for_each(|&stream| lab.acknowledge(stream, bytes));
            }
        }
        let expected = is_slow.then_some(EXCESSIVE_LOAD);
        assert_eq!(lab.quic_closed(connection), expected);
        assert_eq!(lab.counters().rate_timeouts, u64::from(is_slow));
    }
}

/// Covers: RFC 9114 §3.1.1
#[test]
fn responses_say_where_http3_is_served_if_that_is_configured() {
    for port in [None, NonZeroU16::new(8443)] {
        let config = Config {
            http3_port: port,
            bytes_per_second_min: NonZeroU64::new(1),
            ..Config::default()
        };
        let mut lab = Lab::with(config);
        lab.file("a", "content");
        let expected = port.map(|_| "h3=\":8443\"; ma=86400");
        assert_eq!(lab.get("/a").header("alt-svc"), expected);
        assert_eq!(lab.get("/none").header("alt-svc"), expected);
        let stream = lab.connect();
        let response = lab.ask(stream, &lab::head("/a"));
        assert_eq!(response.header("alt-svc"), expected);
    }
}

#[test]
fn other_settings_hold_for_connections_that_begin_later() {
    let mut lab = lab();
    let config = Config {
        head_bytes_max: 300,
        ..Config::default()
    };
    lab.reconfigure(config);
    let connection = lab.http3();
    let long = "x".repeat(300);
    let bytes = crate::http3::client::request("GET", "/a", &[("x", &long)]);
    assert_eq!(lab.ask3(connection, &bytes).status, 431);
    assert_eq!(lab.ask3(connection, &get("/a")).status, 200);
}

/// Streams share what their connection may have, and connections what their source may.
#[test]
fn rates_are_those_of_connections_and_sources_whatever_streams_there_are() {
    let rate = NonZeroU64::new(1_000_000);
    for (connection_max, source_max) in [(rate, None), (None, rate), (rate, rate)] {
        let config = Config {
            connection_bytes_per_second_max: connection_max,
            source_bytes_per_second_max: source_max,
            ..Config::default()
        };
        let mut lab = Lab::alone(config);
        lab.zeros("large", 1 << 40);
        let connection = lab.http3();
        let mut streams = Vec::new();
        for count in 1..=10 {
            streams.push(lab.send_held(connection, &get("/large")));
            for &stream in &streams {
                assert_eq!(lab.rate_max(stream), Some(1_000_000 / count));
            }
        }
        // Another connection of the same client.
        let other = lab.http3();
        let stream = lab.send_held(other, &get("/large"));
        let expected = match source_max {
            None => 1_000_000,
            Some(_) => 1_000_000 / 11,
        };
        assert_eq!(lab.rate_max(stream), Some(expected));
        lab.peer_stops(stream, REQUEST_CANCELLED);
        for count in (1..10).rev() {
            lab.peer_stops(streams.pop().unwrap(), REQUEST_CANCELLED);
            for &stream in &streams {
                assert_eq!(lab.rate_max(stream), Some(1_000_000 / count));
            }
        }
    }
}
