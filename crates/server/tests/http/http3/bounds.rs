//! What a client may ask for that leads to no response, and what a connection holds for it (RFC
//! 9114 §10.5): the work is counted, and each test measures where it ends.

use std::time::Duration;

use host::app::{QuicConnection, StreamId};
use server::Config;

use crate::http3::client::{
    DATA, HEADERS, MAX_PUSH_ID, PRIORITY_UPDATE, RESERVED, SETTINGS, frame, get, headers, request,
    varint,
};
use crate::lab::Lab;

const EXCESSIVE_LOAD: u64 = 0x107;
const REQUEST_CANCELLED: u64 = 0x10c;

/// What a connection begins with, and what it gets in a second.
const TOKENS: usize = 1000;
const TOKENS_PER_SECOND: usize = 100;

fn lab() -> Lab {
    let mut lab = Lab::alone(Config::default());
    lab.file("a", "content");
    lab
}

/// A connection, and the client's control stream.
fn connect(lab: &mut Lab) -> (QuicConnection, StreamId) {
    let connection = lab.open_quic(false);
    let settings = [&[0][..], &frame(SETTINGS, "")].concat();
    let control = lab.unidirectional(connection, &settings);
    (connection, control)
}

/// How often something can be done until the connection is closed for it.
fn times(lab: &mut Lab, connection: QuicConnection, mut again: impl FnMut(&mut Lab)) -> usize {
    for time in 0..10 * TOKENS {
        again(lab);
        if let Some(code) = lab.quic_closed(connection) {
            assert_eq!(code, EXCESSIVE_LOAD);
            assert_eq!(lab.counters().http3_excessive_loads, 1);
            assert_eq!(lab.connections(), 0);
            assert_eq!(lab.files_left_open(), 0);
            return time;
        }
    }
    panic!("there is no bound");
}

/// A client that opens requests only to take them back: what CVE-2023-44487 is about in HTTP/2.
///
/// Covers: RFC 9114 §10.5
#[test]
fn requests_that_are_taken_back_are_bounded() {
    for cancel in [Lab::peer_resets, Lab::peer_stops] {
        let mut lab = lab();
        lab.hold_opens();
        let (connection, _) = connect(&mut lab);
        let count = times(&mut lab, connection, |lab| {
            let stream = lab.begin(connection, &get("/a"));
            cancel(lab, stream, REQUEST_CANCELLED);
        });
        assert_eq!(count, (TOKENS - 1) / 4);
        assert_eq!(
            lab.opened_paths().len(),
            count + 1,
            "so many files were opened"
        );
    }
}

/// One that lets responses come, or takes its time, may take back as many as it likes.
#[test]
fn a_client_that_takes_back_now_and_then_goes_on_for_ever() {
    type Client<'a> = &'a dyn Fn(&mut Lab, QuicConnection);
    const TIMES: usize = TOKENS / 2;
    let with_time = |lab: &mut Lab, connection| {
        let stream = lab.begin(connection, &get("/a")[..5]);
        lab.peer_resets(stream, REQUEST_CANCELLED);
        lab.pass(Duration::from_secs(4) / TOKENS_PER_SECOND as u32);
    };
    let with_responses = |lab: &mut Lab, connection| {
        let stream = lab.begin(connection, &get("/a")[..5]);
        lab.peer_resets(stream, REQUEST_CANCELLED);
        (0..4).for_each(|_| assert_eq!(lab.ask3(connection, &get("/a")).status, 200));
    };
    // What is cancelled when it is over was no work for nothing.
    let when_over = |lab: &mut Lab, connection| {
        let stream = lab.begin(connection, &get("/a"));
        assert!(lab.is_shut_down(stream));
        lab.peer_stops(stream, REQUEST_CANCELLED);
    };
    let patient: [Client<'_>; 3] = [&with_time, &with_responses, &when_over];
    for client in patient {
        let mut lab = lab();
        let (connection, _) = connect(&mut lab);
        (0..TIMES).for_each(|_| client(&mut lab, connection));
        assert_eq!(lab.quic_closed(connection), None);
    }
}

/// Covers: RFC 9114 §10.5
#[test]
fn empty_data_is_bounded() {
    let mut lab = lab();
    let (connection, _) = connect(&mut lab);
    let stream = lab.begin(connection, &get("/a"));
    let count = times(&mut lab, connection, |lab| {
        lab.send(stream, frame(DATA, ""))
    });
    // SETTINGS was one frame; the response that is over paid for another.
    assert!((TOKENS - 1..=TOKENS).contains(&count), "{count}");
}

/// Covers: RFC 9114 §10.5, RFC 9114 §7.2.8
#[test]
fn unknown_frames_are_bounded_by_number_and_by_length() {
    for (payload_bytes, expected) in [(0, TOKENS), (1023, TOKENS), (9 << 10, TOKENS / 10)] {
        let unknown = frame(RESERVED, vec![0; payload_bytes]);
        let mut lab = lab();
        let (connection, control) = connect(&mut lab);
        let count = times(&mut lab, connection, |lab| lab.send(control, &unknown));
        assert!(
            count.abs_diff(expected) <= 1,
            "{count} of {payload_bytes} bytes"
        );
        let mut lab = self::lab();
        let (connection, _) = connect(&mut lab);
        let stream = lab.begin(connection, b"");
        let count = times(&mut lab, connection, |lab| lab.send(stream, &unknown));
        assert!(
            count.abs_diff(expected) <= 1,
            "{count} of {payload_bytes} bytes"
        );
    }
    // One that claims more than all that is charged at once.
    let mut lab = lab();
    let (connection, control) = connect(&mut lab);
    lab.send(control, [varint(RESERVED), varint(1 << 40)].concat());
    assert_eq!(lab.quic_closed(connection), Some(EXCESSIVE_LOAD));
}

/// Covers: RFC 9218 §7, RFC 9218 §13
#[test]
fn changes_of_priority_are_bounded_in_number_and_in_memory() {
    let update = |id: u64, value: &str| {
        frame(
            PRIORITY_UPDATE,
            [&varint(id)[..], value.as_bytes()].concat(),
        )
    };
    let mut lab = lab();
    let (connection, control) = connect(&mut lab);
    let mut id = 0;
    let count = times(&mut lab, connection, |lab| {
        id = (id + 4) % 400;
        lab.send(control, update(id, "u=1"));
    });
    assert!(count.abs_diff(TOKENS) <= 1, "{count}");
    // Of a stream that is there, each is two: the stream is looked for.
    let mut lab = self::lab();
    lab.hold_opens();
    let (connection, control) = connect(&mut lab);
    lab.begin(connection, &get("/a"));
    let count = times(&mut lab, connection, |lab| {
        lab.send(control, update(0, "u=1"))
    });
    assert!(count.abs_diff(TOKENS / 2) <= 1, "{count}");
    // No more than 32 wait for their streams: the first ones make way.
    let mut lab = self::lab();
    let (connection, control) = connect(&mut lab);
    (0..33).for_each(|at| lab.send(control, update(4 * at, "u=0")));
    let streams: Vec<_> = (0..33)
        .map(|_| lab.open_stream(connection, false))
        .collect();
    assert_eq!(lab.priority(streams[0]), None);
    assert!(
        streams[1..]
            .iter()
            .all(|&stream| lab.priority(stream).is_some())
    );
}

/// Covers: RFC 9114 §10.5
#[test]
fn other_frames_of_a_control_stream_are_bounded() {
    let mut lab = lab();
    let (connection, control) = connect(&mut lab);
    let count = times(&mut lab, connection, |lab| {
        lab.send(control, frame(MAX_PUSH_ID, [1]));
    });
    assert!(count.abs_diff(TOKENS) <= 1, "{count}");
    for bytes in [[2, 0x20], [3, 0x40]] {
        let mut lab = self::lab();
        let (connection, _) = connect(&mut lab);
        let stream = lab.unidirectional(connection, &bytes);
        let count = times(&mut lab, connection, |lab| lab.send(stream, &bytes[1..]));
        assert!(count.abs_diff(TOKENS) <= 2, "{count}");
    }
}

/// Covers: RFC 9114 §6.2.3, RFC 9114 §10.5
#[test]
fn streams_of_unknown_types_are_bounded() {
    let mut lab = lab();
    let (connection, _) = connect(&mut lab);
    let count = times(&mut lab, connection, |lab| {
        lab.unidirectional(connection, &varint(RESERVED));
    });
    assert!(count.abs_diff(TOKENS / 4) <= 1, "{count}");
}

/// Trailers that are never more than begun, and field sections that stand for far more than they
/// are long, are refused at the size of a head.
///
/// Covers: RFC 9114 §4.2.2, RFC 9204 §7.3
#[test]
fn field_sections_are_bounded_whatever_they_stand_for() {
    let mut lab = lab();
    let (connection, _) = connect(&mut lab);
    // GET of /, https, and as often as it goes the entry of 53 and 23 bytes: a byte more each.
    let mut section = vec![0, 0, 0xd1, 0xd7, 0xc1, 0x50, 1, b'h'];
    section.extend([0xff, 85 - 63].repeat(8000));
    let stream = lab.send_all(connection, &frame(HEADERS, &section));
    assert_eq!(lab.response3(stream).status, 431);
    // No more than a head's length is read of one that claims to be longer.
    let long = [
        varint(HEADERS),
        varint(1 << 40),
        vec![0, 0, 0xd1, 0xd7, 0xc1],
    ]
    .concat();
    let stream = lab.begin(connection, &long);
    let mut sent = 0;
    while lab.stop_code(stream).is_none() {
        lab.send(stream, [0x21, b'x', 0].repeat(100));
        sent += 300;
        assert!(sent <= (16 << 10) + 300);
    }
    assert_eq!(lab.quic_closed(connection), None);
    assert!(lab.unread_bytes(stream) == 0);
}

/// Streams whose client never reads end after the stall timeout, all of them, and hold no file
/// open meanwhile beyond what is queued.
///
/// Covers: RFC 9114 §10.5
#[test]
fn stalled_flow_control_is_bounded_in_time() {
    let mut lab = lab();
    let (connection, _) = connect(&mut lab);
    let streams: Vec<_> = (0..100)
        .map(|_| {
            let stream = lab.begin(connection, b"");
            lab.limit_queue(stream, 20);
            lab.acknowledges(stream, false);
            lab.send(stream, get("/a"));
            lab.finish(stream);
            stream
        })
        .collect();
    assert_eq!(lab.files_left_open(), 100);
    lab.pass(Duration::from_secs(76));
    assert!(streams.iter().all(|&stream| lab.is_closed(stream)));
    assert!(
        streams
            .iter()
            .all(|&stream| lab.reset_code(stream).is_some())
    );
    assert_eq!(lab.files_left_open(), 0);
    assert_eq!(lab.counters().stall_timeouts, 100);
    assert_eq!(lab.quic_closed(connection), None);
}

/// Requests that are broken off by the server cost as much as those that the client takes back: a
/// file was opened for them.
///
/// Covers: RFC 9114 §10.5
#[test]
fn requests_that_turn_out_malformed_are_bounded() {
    let mut lab = lab();
    let (connection, _) = connect(&mut lab);
    let request = request("GET", "/a", &[("content-length", "1")]);
    let count = times(&mut lab, connection, |lab| {
        lab.send_all(connection, &request);
    });
    // The response that had begun gives one back.
    assert!(count.abs_diff(TOKENS / 3) <= 1, "{count}");
}

/// Covers: RFC 9114 §10.5
#[test]
fn streams_that_end_before_their_type_are_bounded() {
    let mut lab = lab();
    let (connection, _) = connect(&mut lab);
    let count = times(&mut lab, connection, |lab| {
        let stream = lab.unidirectional(connection, b"");
        lab.finish(stream);
    });
    assert!(count.abs_diff(TOKENS / 4) <= 1, "{count}");
}

/// The request line and the name of the host count as well.
///
/// Covers: RFC 9114 §4.2.2
#[test]
fn a_head_is_bounded_wherever_it_is_long() {
    for length in [1000, 16_000, 16_357, 16_358, 16_361, 16_362, 16_400, 19_000] {
        let mut lab = lab();
        let (connection, _) = connect(&mut lab);
        let name = "a".repeat(length);
        for method in ["GET", "OPTIONS"] {
            let fields = [
                (":method", method),
                (":scheme", "https"),
                (":authority", &name),
                (":path", "/a"),
            ];
            let stream = lab.send_all(connection, &headers(&fields));
            let status = lab.response3(stream).status;
            let head = format!("{method} /a HTTP/3.0\nhost: {name}\n");
            let is_too_long = head.len() > 16 << 10;
            assert!(status == 431 || !is_too_long, "{length}: {status}");
            assert!(status != 431 || length > 1000, "{length}: {status}");
        }
        assert_eq!(lab.quic_closed(connection), None);
    }
}
