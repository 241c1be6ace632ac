//! Windows in both directions, and frames that the TCP stream takes in pieces.

use server::Config;

use crate::http2::client::{
    CANCEL, Client, DATA, END_STREAM, FLOW_CONTROL_ERROR, NO_ERROR, PADDED, PING, PROTOCOL_ERROR,
    RST_STREAM, WINDOW_UPDATE, content, frame, request, rst_stream, settings, window_update,
};
use crate::lab::Lab;

const FILE_BYTES: usize = 200_000;

/// SETTINGS_INITIAL_WINDOW_SIZE, and the greatest window.
const INITIAL: u16 = 4;
const GREATEST: u32 = (1 << 31) - 1;

/// The windows before any SETTINGS.
const DEFAULT: usize = 65_535;

fn lab() -> Lab {
    let mut lab = Lab::alone(Config::default());
    lab.file("a", content(FILE_BYTES));
    lab
}

/// Bytes of a body so far, which are those of the file.
fn body_bytes(lab: &Lab, client: &mut Client, id: u32) -> usize {
    let body = &client.received(lab, id).body;
    assert!(body[..] == content(FILE_BYTES)[..body.len()]);
    body.len()
}

/// Covers: RFC 9113 §5.2.1, RFC 9113 §6.5.2, RFC 9113 §6.9.1
#[test]
fn bodies_fill_the_window_of_a_stream_to_the_byte() {
    for window in [0, 1, 9, 100, 4086, 4087, 4088, 16_384, 65_534, 65_535] {
        let mut lab = lab();
        let mut client = Client::connect(&mut lab, &[(INITIAL, window as u32)]);
        let id = client.send_get(&mut lab, "/a");
        assert_eq!(body_bytes(&lab, &mut client, id), window);
        client.send(&mut lab, window_update(0, 1 << 20));
        assert_eq!(body_bytes(&lab, &mut client, id), window);
        let mut bytes = window;
        for increment in [1, 2, 10_000, 16_384] {
            client.send(&mut lab, window_update(id, increment));
            bytes += increment as usize;
            assert_eq!(body_bytes(&lab, &mut client, id), bytes);
        }
        assert!(!client.received(&lab, id).has_ended);
        client.send(&mut lab, window_update(id, (FILE_BYTES - bytes) as u32));
        assert_eq!(client.response(&mut lab, id).body, content(FILE_BYTES));
        assert_eq!(lab.files_left_open(), 0);
    }
}

/// Covers: RFC 9113 §5.2.1, RFC 9113 §6.9.1
#[test]
fn bodies_fill_the_window_of_the_connection_to_the_byte() {
    let mut lab = lab();
    let mut client = Client::connect(&mut lab, &[(INITIAL, GREATEST)]);
    let ids = [(); 3].map(|()| client.send_get(&mut lab, "/a"));
    let bytes = |lab: &Lab, client: &mut Client| -> usize {
        ids.iter().map(|&id| body_bytes(lab, client, id)).sum()
    };
    let mut expected = DEFAULT;
    assert_eq!(bytes(&lab, &mut client), expected);
    for increment in [1, 2, 10_000, 200_000, 16_384] {
        client.send(&mut lab, window_update(0, increment));
        expected += increment as usize;
        assert_eq!(bytes(&lab, &mut client), expected);
    }
    client.send(
        &mut lab,
        window_update(0, (3 * FILE_BYTES - expected) as u32),
    );
    for id in ids {
        assert_eq!(client.response(&mut lab, id).body, content(FILE_BYTES));
    }
}

/// Covers: RFC 9113 §6.9.2
#[test]
fn another_initial_window_changes_that_of_streams_and_may_make_it_negative() {
    let mut lab = lab();
    let mut client = Client::connect(&mut lab, &[(INITIAL, 1000)]);
    let id = client.send_get(&mut lab, "/a");
    for (frame, expected) in [
        (settings(&[(INITIAL, 1500)]), 1500),
        (settings(&[(INITIAL, 200)]), 1500),
        (window_update(id, 1299), 1500),
        (window_update(id, 1), 1500),
        (window_update(id, 1), 1501),
        (settings(&[(INITIAL, 0)]), 1501),
        (settings(&[(INITIAL, 200)]), 1501),
        (settings(&[(INITIAL, 201)]), 1502),
        (settings(&[(INITIAL, 9), (INITIAL, 203)]), 1504),
        (settings(&[(INITIAL, 65_535 - 1301)]), 65_535),
        (settings(&[(INITIAL, 65_535)]), 65_535),
        (window_update(0, 100), 65_635),
    ] {
        client.send(&mut lab, frame);
        assert_eq!(body_bytes(&lab, &mut client, id), expected);
    }
}

/// Covers: RFC 9113 §5.2.2
#[test]
fn a_stream_with_a_closed_window_holds_up_no_other() {
    let mut lab = lab();
    let mut client = Client::connect(&mut lab, &[(INITIAL, 1000)]);
    client.send(&mut lab, window_update(0, 1 << 30));
    let closed = client.send_get(&mut lab, "/a");
    let open = client.send_get(&mut lab, "/a");
    client.send(&mut lab, window_update(open, 1 << 30));
    assert_eq!(client.response(&mut lab, open).body, content(FILE_BYTES));
    assert_eq!(body_bytes(&lab, &mut client, closed), 1000);
    client.send(&mut lab, rst_stream(closed, CANCEL));
    assert_eq!(lab.files_left_open(), 0);
}

/// Covers: RFC 9113 §6.9
#[test]
fn the_window_of_the_connection_holds_up_bodies_only() {
    let mut lab = lab();
    let mut client = Client::connect(&mut lab, &[(INITIAL, GREATEST)]);
    let first = client.send_get(&mut lab, "/a");
    assert_eq!(body_bytes(&lab, &mut client, first), DEFAULT);
    let second = client.send_get(&mut lab, "/a");
    let received = client.received(&lab, second);
    assert_eq!(received.headers[0].1, "200");
    assert!(received.body.is_empty() && !received.has_ended);
    for (method, fields, status) in [
        ("HEAD", &[][..], 200),
        ("GET", &[("if-none-match", "*")], 304),
        ("OPTIONS", &[], 204),
    ] {
        let id = client.send_request(&mut lab, &request(method, "/a", fields), true);
        assert_eq!(client.response(&mut lab, id).status, status);
    }
    let none = client.send_get(&mut lab, "/none");
    assert_eq!(client.received(&lab, none).headers[0].1, "404");
    client.send(&mut lab, frame(PING, 0, 0, [0; 8]));
    assert_eq!(client.frames_of(&lab, PING).len(), 1);
    client.send(&mut lab, window_update(0, 1 << 20));
    for id in [first, second] {
        assert_eq!(client.response(&mut lab, id).body, content(FILE_BYTES));
    }
    assert_eq!(client.response(&mut lab, none).status, 404);
}

/// Covers: RFC 9113 §6.9, RFC 9113 §6.9.1
#[test]
fn updates_of_nothing_and_beyond_the_greatest_window_are_errors() {
    for (increment, code) in [
        (0, PROTOCOL_ERROR),
        (1 << 31, PROTOCOL_ERROR),
        (GREATEST - 999, FLOW_CONTROL_ERROR),
    ] {
        let mut lab = lab();
        let mut client = Client::connect(&mut lab, &[(INITIAL, 1000)]);
        lab.hold_opens();
        let id = client.send_get(&mut lab, "/a");
        client.send(&mut lab, window_update(id, increment));
        assert_eq!(client.reset_code(&lab, id), Some(code));
        assert_eq!(client.goaway(&lab), None);
        assert_eq!(lab.counters().http2_stream_errors, 1);
        lab.answer_opens();
        assert_eq!(lab.files_left_open(), 0);
    }
    let beyond = GREATEST - DEFAULT as u32 + 1;
    for (increment, expected) in [
        (0, Some((0, PROTOCOL_ERROR))),
        (1 << 31, Some((0, PROTOCOL_ERROR))),
        (beyond, Some((0, FLOW_CONTROL_ERROR))),
        (beyond - 1, None),
    ] {
        let mut lab = lab();
        let mut client = Client::connect(&mut lab, &[]);
        client.send(&mut lab, window_update(0, increment));
        assert_eq!(client.goaway(&lab), expected);
    }
}

/// Covers: RFC 9113 §6.9.2
#[test]
fn an_initial_window_that_makes_one_too_large_ends_the_connection() {
    let mut lab = lab();
    let mut client = Client::connect(&mut lab, &[(INITIAL, 0)]);
    let id = client.send_get(&mut lab, "/a");
    client.send(&mut lab, window_update(id, GREATEST));
    assert_eq!(client.goaway(&lab), None);
    client.send(&mut lab, settings(&[(INITIAL, DEFAULT as u32 + 1)]));
    assert_eq!(client.goaway(&lab), Some((id, FLOW_CONTROL_ERROR)));
    assert_eq!(lab.files_left_open(), 0);
}

/// Covers: RFC 9113 §6.9
#[test]
fn updates_for_streams_that_are_over_are_ignored() {
    let mut lab = lab();
    let mut client = Client::open(&mut lab);
    client.get(&mut lab, "/a");
    client.send(
        &mut lab,
        [window_update(1, 5), window_update(1, GREATEST)].concat(),
    );
    client.send(&mut lab, window_update(1, 0));
    assert_eq!(client.get(&mut lab, "/a").status, 200);
    assert_eq!(client.frames_of(&lab, RST_STREAM), []);
}

/// Covers: RFC 9113 §6.9.1
#[test]
fn a_body_beyond_its_window_resets_the_stream() {
    let mut lab = lab();
    lab.hold_opens();
    let mut client = Client::open(&mut lab);
    let id = client.send_request(&mut lab, &request("GET", "/a", &[]), false);
    // Half a window was used up when the last update came.
    let mut bytes = 0;
    while client.reset_code(&lab, id).is_none() {
        client.send(&mut lab, frame(DATA, 0, id, [0; 16_000]));
        bytes += 16_000;
        assert!(
            bytes <= (64 << 10) + DEFAULT + 16_000,
            "more than a body and a window"
        );
    }
    assert!(bytes > 64 << 10);
    assert_eq!(client.reset_code(&lab, id), Some(FLOW_CONTROL_ERROR));
    assert_eq!(client.goaway(&lab), None);
    lab.answer_opens();
    assert_eq!(client.get(&mut lab, "/a").body, content(FILE_BYTES));
    assert_eq!(lab.files_left_open(), 0);
}

/// Covers: RFC 9113 §6.9, RFC 9113 §6.9.1
#[test]
fn windows_of_requests_are_refilled_before_they_are_empty() {
    for (piece, flags) in [
        (vec![0; 1000], 0),
        ([&[99], &[0; 999][..]].concat(), PADDED),
    ] {
        let mut lab = lab();
        lab.hold_opens();
        let mut client = Client::open(&mut lab);
        let (mut sent, mut body_bytes) = (0, 0);
        for _ in 0..4 {
            let id = client.send_request(&mut lab, &request("GET", "/a", &[]), false);
            let of_piece = match flags {
                PADDED => 900,
                _ => 1000,
            };
            for _ in 0..60 {
                let window = |client: &mut Client, stream: u32| -> usize {
                    let updates = client.frames_of(&lab, WINDOW_UPDATE).into_iter();
                    let updates = updates.filter(|update| update.stream == stream);
                    let payload = updates.map(|update| update.payload.try_into().unwrap());
                    payload
                        .map(|payload| u32::from_be_bytes(payload) as usize)
                        .sum()
                };
                assert!(DEFAULT + window(&mut client, 0) > sent + 16_384);
                assert!(DEFAULT + window(&mut client, id) > body_bytes + 16_384);
                client.send(&mut lab, frame(DATA, flags, id, &piece));
                sent += 1000;
                body_bytes += of_piece;
            }
            body_bytes = 0;
            client.send(&mut lab, frame(DATA, END_STREAM, id, b""));
        }
        lab.answer_opens();
        for id in [1, 3, 5, 7] {
            assert_eq!(client.response(&mut lab, id).body, content(FILE_BYTES));
        }
        assert_eq!(client.goaway(&lab), None);
    }
}

/// Covers: RFC 9113 §8.1
#[test]
fn a_body_that_is_too_long_is_declined_and_windows_are_returned() {
    let mut lab = lab();
    let mut client = Client::open(&mut lab);
    let id = client.send_request(&mut lab, &request("POST", "/a", &[]), false);
    assert_eq!(client.response(&mut lab, id).status, 405);
    (0..4).for_each(|_| client.send(&mut lab, frame(DATA, 0, id, [0; 16_384])));
    assert_eq!(client.reset_code(&lab, id), None);
    client.send(&mut lab, frame(DATA, 0, id, [0; 1]));
    assert_eq!(client.reset_code(&lab, id), Some(NO_ERROR));
    (0..4).for_each(|_| client.send(&mut lab, frame(DATA, 0, id, [0; 16_384])));
    client.send(&mut lab, frame(DATA, END_STREAM, id, b""));
    assert_eq!(client.goaway(&lab), None);
    let updates = client.frames_of(&lab, WINDOW_UPDATE).into_iter();
    let (connection, stream): (Vec<_>, Vec<_>) = updates.partition(|it| it.stream == 0);
    assert_eq!(
        (connection.len(), stream.len()),
        (4, 2),
        "one for two frames"
    );
    assert_eq!(client.get(&mut lab, "/a").status, 200);
}

/// Covers: RFC 9113 §4.2, RFC 9113 §6.5.2
#[test]
fn frames_are_short_at_first_and_then_as_long_as_the_client_permits() {
    for (frame_bytes_max, expected) in [
        (16_384, 16_375),
        (16_385, 16_385),
        (40_000, 40_000),
        (65_527, 65_527),
        ((1 << 24) - 1, 65_527),
    ] {
        let mut lab = lab();
        lab.file("large", content(1 << 20));
        let mut client = Client::connect(&mut lab, &[(INITIAL, GREATEST), (5, frame_bytes_max)]);
        client.send(&mut lab, window_update(0, 1 << 30));
        assert_eq!(client.get(&mut lab, "/large").body, content(1 << 20));
        let lengths = client.frames_of(&lab, DATA);
        let lengths: Vec<usize> = lengths.iter().map(|frame| frame.payload.len()).collect();
        assert!(
            lengths.iter().take(8).all(|&length| length == 4087),
            "three packets each"
        );
        assert_eq!(lengths.iter().max(), Some(&expected));
        let last = lengths.len() - 1;
        assert_eq!(lengths[last - 1], expected);
    }
}

/// Acknowledges bytes in pieces until all responses are there, and sends PING now and then.
fn dribble(lab: &mut Lab, client: &mut Client, ids: &[u32], piece: u64) {
    let stream = client.stream;
    for round in 0_u64.. {
        let unacknowledged = lab.unacknowledged_bytes(stream);
        if unacknowledged == 0 {
            break;
        }
        lab.acknowledge(stream, unacknowledged.min(piece));
        if round % 16 == 5 && round < 1000 {
            client.send(lab, frame(PING, 0, 0, round.to_be_bytes()));
        }
    }
    client.read(lab);
    assert!(ids.iter().all(|&id| client.received(lab, id).has_ended));
}

/// A TCP stream that takes few bytes at a time leaves the header of a frame, its payload or a
/// control frame half written.
///
/// Covers: RFC 9113 §4.1
#[test]
fn frames_stay_whole_however_little_the_tcp_stream_takes() {
    let parts = [("range", "bytes=0-9, 1000-1999, 5000-5000, 50000-55000")];
    let mut expected = None;
    for queue_bytes in (1..60)
        .chain((60..4000).step_by(97))
        .chain([4096, 20_000, 100_000])
    {
        let mut lab = lab();
        lab.file("b", content(20_000));
        lab.file("index.html", "short");
        let mut client = Client::open(&mut lab);
        let stream = client.stream;
        lab.acknowledges(stream, false);
        lab.limit_queue(stream, queue_bytes);
        let ids = [
            client.send_request(&mut lab, &request("GET", "/a", &parts), true),
            client.send_get(&mut lab, "/b"),
            client.send_get(&mut lab, "/none"),
            client.send_request(&mut lab, &request("GET", "/b", &parts), true),
            client.send_request(&mut lab, &request("HEAD", "/b", &[]), true),
            client.send_get(&mut lab, "/"),
        ];
        client.send(&mut lab, frame(PING, 0, 0, [9; 8]));
        dribble(&mut lab, &mut client, &ids, queue_bytes.max(20));
        let got = ids.map(|id| client.response(&mut lab, id));
        assert_eq!(got[1].body, content(20_000));
        assert!(!client.frames_of(&lab, PING).is_empty());
        let bodies = got.map(|response| response.body);
        let expected = expected.get_or_insert_with(|| bodies.clone());
        assert!(*expected == bodies, "with {queue_bytes} bytes at a time");
        assert_eq!(lab.files_left_open(), 0);
        assert_eq!(client.goaway(&lab), None);
    }
}

/// The rest of a DATA frame follows its header even if nobody wants it any more.
///
/// Covers: RFC 9113 §5.4.2
#[test]
fn a_stream_that_is_reset_amid_a_frame_leaves_the_next_frames_whole() {
    for queue_bytes in [1, 8, 9, 50, 300, 2000, 5000] {
        let mut lab = lab();
        let mut client = Client::open(&mut lab);
        let stream = client.stream;
        lab.acknowledges(stream, false);
        lab.limit_queue(stream, queue_bytes);
        let cancelled = client.send_get(&mut lab, "/a");
        let other = client.send_get(&mut lab, "/a");
        while client.received(&lab, cancelled).headers.is_empty() {
            let unacknowledged = lab.unacknowledged_bytes(stream);
            lab.acknowledge(stream, unacknowledged);
        }
        client.send(&mut lab, rst_stream(cancelled, CANCEL));
        client.send(&mut lab, frame(PING, 0, 0, [7; 8]));
        lab.acknowledges(stream, true);
        assert_eq!(client.response(&mut lab, other).body, content(FILE_BYTES));
        assert_eq!(client.frames_of(&lab, PING).len(), 1);
        assert!(client.received(&lab, cancelled).body.len() <= 3 * 4087);
        assert_eq!(lab.files_left_open(), 0);
    }
}
