//! How a connection begins, and each way in which it ends.

use std::sync::atomic::Ordering;
use std::time::Duration;

use server::Config;

use crate::http2::client::{
    ACK, CANCEL, COMPRESSION_ERROR, CONTINUATION, Client, DATA, END_HEADERS, END_STREAM,
    ENHANCE_YOUR_CALM, FLOW_CONTROL_ERROR, FRAME_SIZE_ERROR, Frame, GOAWAY, HEADERS, NO_ERROR,
    PADDED, PING, PREFACE, PRIORITIZED, PRIORITY, PRIORITY_UPDATE, PROTOCOL_ERROR, PUSH_PROMISE,
    REFUSED_STREAM, RST_STREAM, SETTINGS, SETTINGS_TIMEOUT, WINDOW_UPDATE, block, content, frame,
    request, rst_stream, settings, window_update,
};
use crate::lab::{Lab, get};

fn lab() -> Lab {
    lab_of(Config::default())
}

fn lab_of(config: Config) -> Lab {
    let mut lab = Lab::alone(config);
    lab.file("a", content(100_000));
    lab
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Clients without TLS may begin with the preface.
fn prior_knowledge() -> Config {
    Config {
        http2_prior_knowledge: true,
        ..Config::default()
    }
}

/// The connection has ended with this code: GOAWAY, FIN, and no RST.
fn assert_ended(lab: &mut Lab, client: &mut Client, code: u32) {
    let goaway = client.goaway(lab).map(|(_, code)| code);
    assert_eq!(goaway, Some(code));
    let stream = client.stream;
    assert!(lab.is_shut_down(stream) && !lab.is_aborted(stream));
    assert_eq!(lab.files_left_open(), 0);
    lab.finish(stream);
    assert!(lab.is_closed(stream));
    assert_eq!(lab.connections(), 0);
}

/// Covers: RFC 9113 §3.4, RFC 9113 §6.5, RFC 9113 §6.5.3, RFC 9218 §2.1
#[test]
fn settings_come_first_and_those_of_the_client_are_acknowledged() {
    let mut lab = lab();
    let mut client = Client::silent(&mut lab);
    let section_bytes_max = (16 << 10) + 104 * 32;
    let expected = settings(&[(3, 100), (6, section_bytes_max), (9, 1)]);
    assert_eq!(lab.received(client.stream), expected);
    client.send(&mut lab, PREFACE);
    assert_eq!(lab.received(client.stream), expected);
    client.send(&mut lab, settings(&[(1, 0), (2, 0), (4, 7)]));
    let ack = frame(SETTINGS, ACK, 0, b"");
    assert_eq!(lab.received(client.stream), [expected, ack].concat());
    assert_eq!(lab.counters().connections_accepted, 1);
    assert_eq!(client.goaway(&lab), None);
}

#[test]
fn settings_state_the_limits_of_the_configuration() {
    let mut lab = lab_of(Config {
        http2_streams_max: 7,
        head_bytes_max: 1000,
        ..Config::default()
    });
    let client = Client::silent(&mut lab);
    let expected = settings(&[(3, 7), (6, 1000 + 104 * 32), (9, 1)]);
    assert_eq!(lab.received(client.stream), expected);
}

/// Covers: RFC 9113 §3.4
#[test]
fn a_connection_with_another_preface_ends_at_the_first_byte_that_differs() {
    for at in 0..PREFACE.len() {
        let mut lab = lab();
        let mut client = Client::silent(&mut lab);
        client.send(&mut lab, &PREFACE[..at]);
        assert_eq!(client.goaway(&lab), None);
        client.send(&mut lab, [PREFACE[at] ^ 1]);
        assert_ended(&mut lab, &mut client, PROTOCOL_ERROR);
        assert_eq!(lab.counters().http2_connection_errors, 1);
    }
}

/// Covers: RFC 9113 §3.4
#[test]
fn no_frame_precedes_the_settings_of_the_client() {
    for first in [
        frame(SETTINGS, ACK, 0, b""),
        frame(PING, 0, 0, [0; 8]),
        window_update(0, 1),
        frame(0xb, 0, 0, b"grease"),
        frame(
            HEADERS,
            END_STREAM | END_HEADERS,
            1,
            block(&request("GET", "/a", &[])),
        ),
    ] {
        let mut lab = lab();
        let mut client = Client::silent(&mut lab);
        client.send(&mut lab, [PREFACE, &first].concat());
        assert_ended(&mut lab, &mut client, PROTOCOL_ERROR);
    }
}

/// Covers: RFC 9113 §6.5.3
#[test]
fn settings_are_acknowledged_in_time() {
    for opening in [vec![], [PREFACE, &settings(&[])].concat()] {
        let mut lab = lab();
        let mut client = Client::silent(&mut lab);
        client.send(&mut lab, &opening);
        lab.pass(Duration::from_millis(14_999));
        assert_eq!(client.goaway(&lab), None);
        lab.pass(Duration::from_millis(1));
        assert_ended(&mut lab, &mut client, SETTINGS_TIMEOUT);
    }
    let mut lab = lab();
    let mut client = Client::silent(&mut lab);
    client.send(&mut lab, [PREFACE, &settings(&[])].concat());
    lab.pass(seconds(14));
    client.send(&mut lab, frame(SETTINGS, ACK, 0, b""));
    lab.pass(seconds(14));
    assert_eq!(client.get(&mut lab, "/none").status, 404);
}

/// Covers: RFC 9113 §6.7
#[test]
fn pings_are_answered_and_answers_are_not() {
    let mut lab = lab();
    let mut client = Client::open(&mut lab);
    client.send(&mut lab, frame(PING, 0, 0, b"12345678"));
    client.send(&mut lab, frame(PING, ACK, 0, b"87654321"));
    client.send(&mut lab, frame(PING, 0xfe, 0, b"any flag"));
    let expected = [b"12345678", b"any flag"].map(|payload| Frame {
        kind: PING,
        flags: ACK,
        stream: 0,
        payload: payload.to_vec(),
    });
    assert_eq!(client.frames_of(&lab, PING), expected);
}

/// Covers: RFC 9113 §4.1, RFC 9113 §5.5, RFC 9113 §6.5.2
#[test]
fn unknown_frames_flags_and_settings_are_ignored() {
    let mut lab = lab();
    let mut client = Client::open(&mut lab);
    for kind in [0xa, 0xb, 0x11, 0x21, 0xff] {
        for stream in [0, 1, 2, 99, u32::MAX] {
            for length in [0, 1, 16_384] {
                client.send(&mut lab, frame(kind, 0xff, stream, vec![0; length]));
                lab.pass(Duration::from_millis(100));
            }
        }
    }
    client.send(&mut lab, settings(&[(0x0a0a, u32::MAX), (8, 1), (0, 0)]));
    client.send(&mut lab, frame(SETTINGS, 0xfe, 1 << 31, b""));
    let id = client.next_id();
    let block = block(&request("GET", "/a", &[]));
    let flags = !(PADDED | PRIORITIZED);
    client.send(&mut lab, frame(HEADERS, flags, id | 1 << 31, block));
    assert_eq!(client.response(&mut lab, id).body, content(100_000));
    assert_eq!(client.goaway(&lab), None);
}

/// Frames of requests that end the connection, and the code of GOAWAY.
fn of_requests() -> Vec<(Vec<u8>, u32)> {
    let request = block(&request("GET", "/a", &[]));
    let begun = |next: Vec<u8>| [frame(HEADERS, END_STREAM, 1, &request), next].concat();
    vec![
        (frame(DATA, 0, 0, b"x"), PROTOCOL_ERROR),
        (frame(DATA, 0, 1, b"x"), PROTOCOL_ERROR),
        (frame(DATA, 0, 2, b"x"), PROTOCOL_ERROR),
        (frame(DATA, PADDED, 1, b""), FRAME_SIZE_ERROR),
        (frame(DATA, PADDED, 1, [1]), PROTOCOL_ERROR),
        (frame(DATA, 0, 1, [0; 16_385]), FRAME_SIZE_ERROR),
        (frame(HEADERS, END_HEADERS, 0, &request), PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS, 2, &request), PROTOCOL_ERROR),
        (frame(HEADERS, PADDED, 1, b""), FRAME_SIZE_ERROR),
        (frame(HEADERS, PADDED, 1, [3, 0, 0]), PROTOCOL_ERROR),
        (frame(HEADERS, PRIORITIZED, 1, [0; 4]), FRAME_SIZE_ERROR),
        (
            frame(HEADERS, PADDED | PRIORITIZED, 1, [0; 5]),
            FRAME_SIZE_ERROR,
        ),
        (
            frame(HEADERS, PADDED | PRIORITIZED, 1, [1; 6]),
            PROTOCOL_ERROR,
        ),
        (
            frame(HEADERS, END_HEADERS, 1, [0; 16_385]),
            FRAME_SIZE_ERROR,
        ),
        (frame(HEADERS, END_HEADERS, 1, [0x80]), COMPRESSION_ERROR),
        (
            frame(HEADERS, END_HEADERS, 1, [0x00, 0x05]),
            COMPRESSION_ERROR,
        ),
        (begun(frame(PING, 0, 0, [0; 8])), PROTOCOL_ERROR),
        (begun(frame(0xb, 0, 0, b"")), PROTOCOL_ERROR),
        (begun(frame(DATA, 0, 1, b"")), PROTOCOL_ERROR),
        (begun(frame(HEADERS, END_HEADERS, 1, b"")), PROTOCOL_ERROR),
        (
            begun(frame(CONTINUATION, END_HEADERS, 3, b"")),
            PROTOCOL_ERROR,
        ),
        (
            begun(frame(CONTINUATION, END_HEADERS, 0, b"")),
            PROTOCOL_ERROR,
        ),
        (
            frame(CONTINUATION, END_HEADERS, 1, &request),
            PROTOCOL_ERROR,
        ),
    ]
}

/// Other frames that end the connection, and the code of GOAWAY.
fn of_connections() -> Vec<(Vec<u8>, u32)> {
    let self_dependent = 3_u32.to_be_bytes();
    let self_dependent = [&self_dependent[..], &[0]].concat();
    vec![
        (frame(PRIORITY, 0, 0, [0; 5]), PROTOCOL_ERROR),
        (frame(PRIORITY, 0, 3, self_dependent), PROTOCOL_ERROR),
        (frame(PRIORITY, 0, 3, [0; 4]), FRAME_SIZE_ERROR),
        (frame(PRIORITY, 0, 3, [0; 300]), FRAME_SIZE_ERROR),
        (rst_stream(0, CANCEL), PROTOCOL_ERROR),
        (rst_stream(1, CANCEL), PROTOCOL_ERROR),
        (rst_stream(2, CANCEL), PROTOCOL_ERROR),
        (frame(RST_STREAM, 0, 1, [0; 3]), FRAME_SIZE_ERROR),
        (frame(RST_STREAM, 0, 1, [0; 5]), FRAME_SIZE_ERROR),
        (frame(SETTINGS, 0, 1, b""), PROTOCOL_ERROR),
        (frame(SETTINGS, 0, 0, [0; 5]), FRAME_SIZE_ERROR),
        (frame(SETTINGS, ACK, 0, [0; 6]), FRAME_SIZE_ERROR),
        (settings(&[(2, 2)]), PROTOCOL_ERROR),
        (settings(&[(4, 1 << 31)]), FLOW_CONTROL_ERROR),
        (settings(&[(5, 16_383)]), PROTOCOL_ERROR),
        (settings(&[(5, 1 << 24)]), PROTOCOL_ERROR),
        (settings(&[(9, 2)]), PROTOCOL_ERROR),
        (
            frame(PUSH_PROMISE, END_HEADERS, 1, [0, 0, 0, 2]),
            PROTOCOL_ERROR,
        ),
        (frame(PING, 0, 1, [0; 8]), PROTOCOL_ERROR),
        (frame(PING, 0, 0, [0; 7]), FRAME_SIZE_ERROR),
        (frame(PING, ACK, 0, [0; 9]), FRAME_SIZE_ERROR),
        (frame(GOAWAY, 0, 1, [0; 8]), PROTOCOL_ERROR),
        (frame(GOAWAY, 0, 0, [0; 7]), FRAME_SIZE_ERROR),
        (frame(WINDOW_UPDATE, 0, 0, [0; 3]), FRAME_SIZE_ERROR),
        (frame(WINDOW_UPDATE, 0, 0, [1; 5]), FRAME_SIZE_ERROR),
        (window_update(0, 0), PROTOCOL_ERROR),
        (window_update(1, 1), PROTOCOL_ERROR),
        (window_update(2, 1), PROTOCOL_ERROR),
        (frame(PRIORITY_UPDATE, 0, 1, [0, 0, 0, 1]), PROTOCOL_ERROR),
        (frame(PRIORITY_UPDATE, 0, 0, [0; 3]), FRAME_SIZE_ERROR),
        (frame(PRIORITY_UPDATE, 0, 0, [0; 4]), PROTOCOL_ERROR),
        (frame(PRIORITY_UPDATE, 0, 0, [0, 0, 0, 2]), PROTOCOL_ERROR),
    ]
}

/// Covers: RFC 9113 §4.2, RFC 9113 §4.3, RFC 9113 §5.1.1, RFC 9113 §5.3.2, RFC 9113 §6.1,
/// RFC 9113 §6.2, RFC 9113 §6.3, RFC 9113 §6.4, RFC 9113 §6.5, RFC 9113 §6.6, RFC 9113 §6.7,
/// RFC 9113 §6.8, RFC 9113 §6.9, RFC 9113 §6.10, RFC 9218 §7.1
#[test]
fn frames_of_other_lengths_or_in_other_places_end_the_connection() {
    for (bytes, code) in [of_requests(), of_connections()].concat() {
        let mut lab = lab();
        let mut client = Client::open(&mut lab);
        client.send(&mut lab, &bytes);
        let shown = &bytes[..bytes.len().min(40)];
        let got = client.goaway(&lab).map(|(_, code)| code);
        assert_eq!(got, Some(code), "{shown:?}");
        assert_ended(&mut lab, &mut client, code);
        assert_eq!(client.frames_of(&lab, RST_STREAM), [], "{shown:?}");
        assert_eq!(lab.counters().http2_connection_errors, 1);
        assert_eq!(lab.counters().http2_stream_errors, 0);
    }
}

/// Covers: RFC 9113 §5.3.2, RFC 9113 §6.3
#[test]
fn a_priority_of_another_length_resets_its_stream_once() {
    for length in [0, 4, 6, 300] {
        let mut lab = lab();
        let mut client = Client::open(&mut lab);
        lab.hold_opens();
        let id = client.send_get(&mut lab, "/a");
        client.send(&mut lab, frame(PRIORITY, 0, id, vec![0; length]));
        lab.answer_opens();
        assert_eq!(client.reset_code(&lab, id), Some(FRAME_SIZE_ERROR));
        assert_eq!(client.get(&mut lab, "/a").status, 200);
        assert_eq!(client.frames_of(&lab, RST_STREAM).len(), 1);
        assert_eq!(lab.counters().http2_stream_errors, 1);
    }
}

/// Covers: RFC 7541 §4.2
#[test]
fn a_table_that_one_settings_frame_empties_is_announced() {
    let mut lab = lab();
    let mut client = Client::open(&mut lab);
    assert_eq!(client.get(&mut lab, "/a").status, 200);
    client.send(&mut lab, settings(&[(1, 0), (1, 4096)]));
    assert_eq!(client.get(&mut lab, "/a").status, 200);
    let second = client.frames_of(&lab, HEADERS).pop().unwrap();
    assert_eq!(second.payload[..4], [0x20, 0x3f, 0xe1, 0x1f]);
}

/// Covers: RFC 9113 §5.4.2
#[test]
fn a_stream_is_reset_once_whatever_comes_on_it_later() {
    let mut lab = lab();
    let mut client = Client::open(&mut lab);
    let id = client.send_get(&mut lab, "/a");
    client.send(&mut lab, frame(PRIORITY, 0, id, [0; 4]));
    client.send(&mut lab, frame(PRIORITY, 0, id, [0; 4]));
    assert_eq!(client.reset_code(&lab, id), Some(FRAME_SIZE_ERROR));
    assert_eq!(client.frames_of(&lab, RST_STREAM).len(), 1);
    assert_eq!(client.get(&mut lab, "/a").status, 200);
}

/// Covers: RFC 9113 §5.3.1
#[test]
fn a_stream_that_depends_on_itself_is_reset() {
    let mut lab = lab();
    lab.hold_opens();
    let mut client = Client::open(&mut lab);
    let id = client.send_get(&mut lab, "/a");
    let priority = [&id.to_be_bytes()[..], &[0]].concat();
    client.send(&mut lab, frame(PRIORITY, 0, id, priority));
    assert_eq!(client.reset_code(&lab, id), Some(PROTOCOL_ERROR));
    let id = client.next_id();
    let priority = [&id.to_be_bytes()[..], &[0]].concat();
    let fields = block(&request("GET", "/a", &[]));
    let flags = END_STREAM | END_HEADERS | PRIORITIZED;
    client.send(
        &mut lab,
        frame(HEADERS, flags, id, [priority, fields].concat()),
    );
    assert_eq!(client.reset_code(&lab, id), Some(PROTOCOL_ERROR));
    lab.answer_opens();
    assert_eq!(client.get(&mut lab, "/a").status, 200);
    assert_eq!(lab.files_left_open(), 0);
}

#[test]
fn bytes_after_an_error_are_discarded_up_to_a_bound() {
    let mut lab = lab_of(Config {
        linger_bytes_max: 10_000,
        ..Config::default()
    });
    let mut client = Client::open(&mut lab);
    client.send(&mut lab, window_update(0, 0));
    let stream = client.stream;
    client.send(&mut lab, [0; 9000]);
    assert_eq!(lab.unread_bytes(stream), 0);
    client.send(&mut lab, [0; 9000]);
    client.send(&mut lab, [0; 9000]);
    assert!((1..=17_000).contains(&lab.unread_bytes(stream)));
    assert!(lab.memory_bytes(stream) < 200);
    assert_eq!(client.frames_of(&lab, GOAWAY).len(), 1);
    lab.pass(seconds(60));
    assert!(lab.is_aborted(stream));
    assert_eq!(lab.counters().linger_timeouts, 1);
}

/// Covers: RFC 9113 §6.8
#[test]
fn a_client_that_leaves_gets_its_responses_first() {
    let mut lab = lab();
    let mut client = Client::open(&mut lab);
    lab.hold_opens();
    let id = client.send_get(&mut lab, "/a");
    client.send(
        &mut lab,
        frame(GOAWAY, 0, 0, [&[0; 8][..], b"debug data"].concat()),
    );
    assert_eq!(client.goaway(&lab), None);
    lab.answer_opens();
    assert_eq!(client.response(&mut lab, id).body, content(100_000));
    assert_eq!(client.goaway(&lab), Some((id, NO_ERROR)));
    assert_ended(&mut lab, &mut client, NO_ERROR);
}

/// Covers: RFC 9113 §5.4.1, RFC 9113 §6.8
#[test]
fn a_client_that_has_sent_fin_gets_its_responses_first() {
    let mut lab = lab();
    lab.hold_opens();
    let mut client = Client::open(&mut lab);
    let ids = [(); 3].map(|()| client.send_get(&mut lab, "/a"));
    lab.finish(client.stream);
    assert_eq!(client.goaway(&lab), None);
    lab.answer_opens();
    for id in ids {
        assert_eq!(client.response(&mut lab, id).body, content(100_000));
    }
    // Its kernel would answer GOAWAY with RST.
    assert_eq!(client.goaway(&lab), None);
    assert!(lab.is_closed(client.stream) && !lab.is_aborted(client.stream));
    assert_eq!(lab.files_left_open(), 0);
}

#[test]
fn fin_without_a_request_is_answered_with_fin() {
    for opening in [&b""[..], &PREFACE[..10], PREFACE] {
        let mut lab = lab();
        let mut client = Client::silent(&mut lab);
        client.send(&mut lab, opening);
        lab.finish(client.stream);
        assert_eq!(client.goaway(&lab), None);
        assert!(lab.is_closed(client.stream) && !lab.is_aborted(client.stream));
    }
}

/// Covers: RFC 9113 §9.1
#[test]
fn an_idle_connection_ends_in_order() {
    let mut lab = lab();
    let mut client = Client::open(&mut lab);
    client.get(&mut lab, "/a");
    lab.pass(seconds(74));
    client.get(&mut lab, "/a");
    lab.pass(seconds(74));
    assert_eq!(client.goaway(&lab), None);
    lab.pass(seconds(1));
    assert_eq!(client.goaway(&lab), Some((3, NO_ERROR)));
    assert_ended(&mut lab, &mut client, NO_ERROR);
    let counters = lab.counters();
    assert_eq!((counters.idle_timeouts, counters.head_timeouts), (1, 0));
    assert_eq!(counters.http2_connection_errors, 0);
}

/// Covers: RFC 9113 §10.5
#[test]
fn a_frame_or_field_block_that_does_not_end_ends_the_connection() {
    let fields = block(&request("GET", "/a", &[]));
    let whole = frame(HEADERS, END_STREAM | END_HEADERS, 1, &fields);
    for part in [
        whole[..1].to_vec(),
        whole[..9].to_vec(),
        whole[..20].to_vec(),
        frame(HEADERS, END_STREAM, 1, &fields),
        frame(0xb, 0, 0, [0; 100])[..50].to_vec(),
    ] {
        let mut lab = lab();
        let mut client = Client::open(&mut lab);
        client.send(&mut lab, &part);
        lab.pass(Duration::from_millis(14_999));
        assert_eq!(client.goaway(&lab), None);
        lab.pass(Duration::from_millis(1));
        assert_ended(&mut lab, &mut client, NO_ERROR);
        assert_eq!(lab.counters().head_timeouts, 1);
    }
}

#[test]
fn bytes_do_not_postpone_the_end_of_a_frame() {
    let mut lab = lab();
    let mut client = Client::open(&mut lab);
    let fields = block(&request("GET", "/a", &[]));
    client.send(&mut lab, frame(HEADERS, END_STREAM, 1, &fields));
    for _ in 0..14 {
        lab.pass(seconds(1));
        client.send(&mut lab, frame(CONTINUATION, 0, 1, b""));
    }
    assert_eq!(client.goaway(&lab), None);
    lab.pass(seconds(1));
    assert_ended(&mut lab, &mut client, NO_ERROR);
}

/// Covers: RFC 9113 §6.8
#[test]
fn draining_takes_requests_in_flight_and_refuses_later_ones() {
    let mut lab = lab();
    let mut client = Client::open(&mut lab);
    lab.hold_opens();
    let before = client.send_get(&mut lab, "/a");
    let told = lab.drain();
    assert_eq!(client.goaway(&lab), Some(((1 << 31) - 1, NO_ERROR)));
    let in_flight = client.send_get(&mut lab, "/a");
    lab.pass(Duration::from_millis(999));
    assert_eq!(client.frames_of(&lab, GOAWAY).len(), 1);
    lab.pass(Duration::from_millis(1));
    assert_eq!(client.goaway(&lab), Some((in_flight, NO_ERROR)));
    let late = client.send_get(&mut lab, "/a");
    assert_eq!(client.reset_code(&lab, late), Some(REFUSED_STREAM));
    assert!(!lab.is_shut_down(client.stream));
    lab.answer_opens();
    for id in [before, in_flight] {
        assert_eq!(client.response(&mut lab, id).body, content(100_000));
    }
    assert_eq!(client.frames_of(&lab, GOAWAY).len(), 2);
    assert_eq!(told.load(Ordering::Relaxed), 0);
    assert_ended(&mut lab, &mut client, NO_ERROR);
    lab.turn();
    assert_eq!(told.load(Ordering::Relaxed), 1);
    assert_eq!(lab.counters().requests, 2);
}

#[test]
fn a_connection_without_requests_drains_after_a_second() {
    let mut lab = lab();
    let mut before = Client::open(&mut lab);
    lab.drain();
    let mut later = Client::open(&mut lab);
    for client in [&mut before, &mut later] {
        assert_eq!(client.goaway(&lab), Some(((1 << 31) - 1, NO_ERROR)));
        assert!(!lab.is_shut_down(client.stream));
    }
    assert_eq!(later.get(&mut lab, "/a").status, 200);
    lab.pass(seconds(1));
    for (client, last) in [(&mut before, 0), (&mut later, 1)] {
        assert_eq!(client.goaway(&lab), Some((last, NO_ERROR)));
        assert!(lab.is_shut_down(client.stream));
    }
}

/// Covers: RFC 9113 §6.8
#[test]
fn the_last_stream_of_goaway_never_increases() {
    let mut lab = lab();
    let mut client = Client::open(&mut lab);
    lab.hold_opens();
    client.send_get(&mut lab, "/a");
    lab.drain();
    lab.pass(seconds(1));
    client.send_get(&mut lab, "/a");
    assert_eq!(client.goaway(&lab), Some((1, NO_ERROR)));
    client.send(&mut lab, window_update(0, 0));
    assert_eq!(client.goaway(&lab), Some((1, PROTOCOL_ERROR)));
    lab.answer_opens();
    assert_ended(&mut lab, &mut client, PROTOCOL_ERROR);
}

#[test]
fn a_connection_that_is_reset_leaves_nothing_behind() {
    for is_aborted_by_stall in [false, true] {
        let mut lab = lab();
        let mut client = Client::open(&mut lab);
        let stream = client.stream;
        lab.acknowledges(stream, false);
        lab.limit_queue(stream, lab.unacknowledged_bytes(stream) + 5000);
        client.send_get(&mut lab, "/a");
        client.send_get(&mut lab, "/a");
        lab.hold_opens();
        client.send_get(&mut lab, "/a");
        client.send(&mut lab, frame(HEADERS, 0, 99, b"half"));
        assert_eq!(lab.files_left_open(), 3);
        match is_aborted_by_stall {
            true => lab.pass(seconds(76)),
            false => lab.reset(stream),
        }
        assert!(lab.is_closed(stream));
        lab.answer_opens();
        assert_eq!(lab.files_left_open(), 0);
        assert_eq!(lab.connections(), 0);
        let counters = lab.counters();
        assert_eq!(
            (counters.connections_accepted, counters.connections_closed),
            (1, 1)
        );
        assert_eq!(counters.stall_timeouts, u64::from(is_aborted_by_stall));
    }
}

#[test]
fn the_state_of_a_connection_is_that_of_its_oldest_stream() {
    let mut lab = lab();
    let mut client = Client::open(&mut lab);
    let stream = client.stream;
    let info = |lab: &Lab| {
        let info = lab.connection_info(stream).expect("a connection");
        (info.phase, info.requests)
    };
    assert_eq!(info(&lab), ("reading", 0));
    lab.hold_opens();
    client.send_get(&mut lab, "/a");
    assert_eq!(info(&lab), ("opening", 1));
    lab.acknowledges(stream, false);
    lab.answer_opens();
    assert_eq!(info(&lab), ("sending", 1));
    client.send_get(&mut lab, "/none");
    assert_eq!(info(&lab), ("sending", 2));
    lab.acknowledges(stream, true);
    assert_eq!(info(&lab), ("reading", 2));
    client.send(&mut lab, window_update(0, 0));
    assert_eq!(info(&lab), ("lingering", 2));
    lab.finish(stream);
    assert!(lab.connection_info(stream).is_none());
}

#[test]
fn an_idle_connection_takes_little_memory() {
    let mut lab = lab();
    let mut client = Client::open(&mut lab);
    let stream = client.stream;
    let before = lab.memory_bytes(stream);
    assert!(before < 2000, "{before} bytes");
    lab.acknowledges(stream, false);
    let ids = [(); 50].map(|()| client.send_get(&mut lab, "/a"));
    let busy = lab.memory_bytes(stream);
    assert!((20_000..60_000).contains(&busy), "{busy} bytes");
    lab.acknowledges(stream, true);
    for id in ids {
        assert_eq!(client.response(&mut lab, id).body, content(100_000));
    }
    let after = lab.memory_bytes(stream);
    assert!(after < 5000, "{after} bytes");
}

/// Covers: RFC 9113 §3.3
#[test]
fn a_client_with_prior_knowledge_is_served_without_tls_however_its_bytes_are_split() {
    let fields = block(&request("GET", "/a", &[]));
    let request = frame(HEADERS, END_STREAM | END_HEADERS, 1, fields);
    let window = [(4, 1 << 20)];
    let bytes = [
        PREFACE,
        &settings(&window),
        &window_update(0, 1 << 20),
        &request,
    ]
    .concat();
    for split in 0..=bytes.len() {
        let mut lab = lab_of(prior_knowledge());
        let mut client = Client::on(lab.connect());
        client.send(&mut lab, &bytes[..split]);
        if split < PREFACE.len() {
            assert_eq!(
                lab.received(client.stream),
                b"",
                "the version is not decided"
            );
        }
        client.send(&mut lab, &bytes[split..]);
        assert_eq!(client.response(&mut lab, 1).body, content(100_000));
        assert_eq!(lab.counters().http2_requests, 1);
    }
}

/// Covers: RFC 9112 §9.3, RFC 9113 §3.3
#[test]
fn a_client_without_the_preface_speaks_http1_however_its_bytes_are_split() {
    for request in [
        get("/a"),
        "PUT /a HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n".to_owned(),
        "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n".to_owned(),
    ] {
        let bytes = request.as_bytes();
        let mut plain = lab();
        let expected = plain.connect();
        plain.send(expected, bytes);
        for split in 0..=bytes.len() {
            let mut lab = lab_of(prior_knowledge());
            let stream = lab.connect();
            lab.send(stream, &bytes[..split]);
            lab.send(stream, &bytes[split..]);
            assert!(
                lab.received(stream) == plain.received(expected),
                "{request} at {split}"
            );
            assert_eq!(lab.is_shut_down(stream), plain.is_shut_down(expected));
            lab.finish(stream);
            assert_eq!(lab.connections(), 0);
            assert_eq!(lab.counters().http2_requests, 0);
        }
    }
}

#[test]
fn an_undecided_connection_ends_without_a_frame() {
    type End<'a> = &'a dyn Fn(&mut Lab, &Client);
    let drain = |lab: &mut Lab, _: &Client| {
        lab.drain();
    };
    let finish = |lab: &mut Lab, client: &Client| lab.finish(client.stream);
    let wait = |lab: &mut Lab, _: &Client| lab.pass(seconds(15));
    let ends: [End<'_>; 3] = [&drain, &finish, &wait];
    for end in ends {
        for sent in [0, 5, 23] {
            let mut lab = lab_of(prior_knowledge());
            let client = Client::on(lab.connect());
            client.send(&mut lab, &PREFACE[..sent]);
            end(&mut lab, &client);
            assert_eq!(lab.received(client.stream), b"");
            assert!(lab.is_shut_down(client.stream) && !lab.is_aborted(client.stream));
        }
    }
}

/// Where request heads are short, so is the buffer: SETTINGS beyond it end the connection.
#[test]
fn a_frame_longer_than_the_buffer_ends_the_connection() {
    let mut lab = Lab::alone(Config {
        head_bytes_max: 100,
        ..Config::default()
    });
    let mut client = Client::connect(&mut lab, &[(0x1a1a, 1); 20]);
    assert_eq!(client.goaway(&lab), Some((0, ENHANCE_YOUR_CALM)));
    assert!(lab.is_shut_down(client.stream));
}

/// After FIN a client can acknowledge nothing.
///
/// Covers: RFC 9113 §6.5.3
#[test]
fn a_client_that_half_closes_need_not_acknowledge_settings() {
    let mut lab = lab();
    let mut client = Client::silent(&mut lab);
    lab.hold_opens();
    let block = block(&request("GET", "/a", &[]));
    let windows = [settings(&[(4, 1 << 20)]), window_update(0, 1 << 20)].concat();
    let request = frame(HEADERS, END_STREAM | END_HEADERS, 1, block);
    client.send(&mut lab, [PREFACE, &windows, &request].concat());
    lab.finish(client.stream);
    lab.pass(seconds(30));
    assert_eq!(client.goaway(&lab), None);
    lab.answer_opens();
    assert_eq!(client.response(&mut lab, 1).body, content(100_000));
    assert_eq!(client.goaway(&lab), None);
    assert!(lab.is_shut_down(client.stream));
}
