//! Requests and their responses over HTTP/3, as far as the twin does not compare them.

use std::time::Duration;

use server::Config;

use crate::http3::client::{DATA, HEADERS, RESERVED, frame, get, request};
use crate::lab::Lab;

const NO_ERROR: u64 = 0x100;
const REQUEST_CANCELLED: u64 = 0x10c;

fn content() -> Vec<u8> {
    (0..100_000_u32).map(|at| ((at * 7) >> 3) as u8).collect()
}

fn lab() -> Lab {
    let mut lab = Lab::alone(Config::default());
    lab.file("a", content());
    lab
}

/// The bytes of a file never come to the host: they are ranges within one DATA frame.
///
/// Covers: RFC 9114 §7.2.1
#[test]
fn a_file_is_a_range_within_a_data_frame() {
    let mut lab = lab();
    lab.zeros("large", 5 << 40);
    let connection = lab.http3();
    let stream = lab.send_all(connection, &get("/a"));
    assert!(lab.ranges(stream).iter().eq([&(0..100_000)]));
    assert_eq!(lab.response3(stream).body, content());
    let bytes = request("GET", "/a", &[("range", "bytes=5-9, 1000-2999, -7")]);
    let stream = lab.send_all(connection, &bytes);
    assert_eq!(lab.ranges(stream), [5..10, 1000..3000, 99_993..100_000]);
    assert_eq!(lab.response3(stream).status, 206);
    let stream = lab.send_all(connection, &get("/large"));
    assert!(lab.ranges(stream).iter().eq([&(0..5 << 40)]));
    assert_eq!(lab.counters().virtual_bytes, 100_000 + 2012 + (5 << 40));
    assert_eq!(lab.counters().http3_requests, 3);
}

/// A browser's request as ls-qpack, which nginx and others have, encodes it: by indices, and by
/// strings in Huffman's code.
///
/// Covers: RFC 9204 §4.1.2, RFC 9204 §4.5
#[test]
fn a_head_that_another_implementation_has_encoded_is_read() {
    const SECTION: &str = "\
        0000d1d7508ca4b2186b97c8e9ae82ae7b26518d607fe24fd4b540abb77caaedff5f50b5d07f66a2\
        81b0dae053fafc087ed4ce6aadf2a7979c89c6bed4b3bdc089e5c1fda988a4ea76040080010054c2\
        6b0b29fcb0113cb83fdd5f398b2d4b70ddf45abefb4005db5f10929bd9abfa5242cb40d25fa523b3\
        e94f684c9f5f28878fd24a8804b35f2eaec31ec327d785b6007d286f2f00f2b52390ab5b5f067b7c\
        7d7e5e5c";
    let bytes = (0..SECTION.len()).step_by(2);
    let bytes = bytes.map(|at| u8::from_str_radix(&SECTION[at..at + 2], 16).unwrap());
    let mut lab = lab();
    lab.log_accesses();
    let connection = lab.http3();
    let response = lab.ask3(connection, &frame(HEADERS, bytes.collect::<Vec<u8>>()));
    assert_eq!(
        (response.status, &response.body[..]),
        (206, &content()[2..5])
    );
    let mut lines = Vec::new();
    lab.records(|record| {
        let agent = b"Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0";
        assert_eq!(record.user_agent, Some(&agent[..]));
        assert_eq!(record.host, Some(&b"media.example.org"[..]));
        lines.push(record.request_line.to_vec());
    });
    assert_eq!(lines, [b"GET /a?token=%7Bx%7D HTTP/3.0"]);
}

/// Whatever the stream holds at once: each byte on its own, or half and half.
#[test]
fn requests_are_the_same_however_they_are_split() {
    let mut bytes = frame(RESERVED, "grease");
    bytes.extend(request(
        "GET",
        "/a",
        &[("range", "bytes=0-9"), ("content-length", "7")],
    ));
    bytes.extend(frame(RESERVED, vec![1; 100]));
    bytes.extend(frame(DATA, "abc"));
    bytes.extend(frame(DATA, ""));
    bytes.extend(frame(DATA, "defg"));
    bytes.extend(frame(HEADERS, [0, 0]));
    bytes.extend(frame(RESERVED, ""));
    for at in 0..=bytes.len() {
        let mut lab = lab();
        let connection = lab.http3();
        let stream = lab.begin(connection, &bytes[..at]);
        lab.send(stream, &bytes[at..]);
        lab.finish(stream);
        let response = lab.response3(stream);
        assert_eq!(response.body, content()[..10], "split at {at}");
        assert_eq!(lab.reset_code(stream), None);
    }
    let mut lab = lab();
    let connection = lab.http3();
    let stream = lab.begin(connection, b"");
    for byte in &bytes {
        lab.send(stream, [*byte]);
    }
    lab.finish(stream);
    assert_eq!(lab.response3(stream).body, content()[..10]);
    assert!(lab.is_closed(stream));
}

/// Covers: RFC 9114 §4.1
#[test]
fn a_response_does_not_wait_for_the_end_of_its_request() {
    let mut lab = lab();
    let connection = lab.http3();
    let stream = lab.begin(connection, &get("/a"));
    assert_eq!(lab.response3(stream).body, content());
    assert!(!lab.is_closed(stream));
    lab.send(stream, frame(DATA, "more"));
    lab.finish(stream);
    assert!(lab.is_closed(stream));
    assert_eq!(
        (lab.reset_code(stream), lab.stop_code(stream)),
        (None, None)
    );
}

/// Covers: RFC 9114 §4.1
#[test]
fn a_body_beyond_the_limit_is_not_read() {
    let mut lab = lab();
    let connection = lab.http3();
    // One that says so is refused.
    let bytes = request("GET", "/a", &[("content-length", "65537")]);
    let stream = lab.begin(connection, &bytes);
    assert_eq!(lab.response3(stream).status, 413);
    assert_eq!(lab.stop_code(stream), Some(NO_ERROR));
    let bytes = request("GET", "/a", &[("content-length", "65536")]);
    let stream = lab.begin(connection, &bytes);
    assert_eq!(lab.response3(stream).status, 200);
    assert_eq!(lab.stop_code(stream), None);
    lab.send(stream, frame(DATA, vec![0; 65_536]));
    lab.finish(stream);
    assert_eq!(lab.reset_code(stream), None);
    // One that does not say so is answered, and its rest not read.
    lab.hold_opens();
    let stream = lab.begin(connection, &get("/a"));
    lab.send(stream, frame(DATA, vec![0; 65_536]));
    assert_eq!(lab.stop_code(stream), None);
    lab.send(stream, frame(DATA, "1"));
    assert_eq!(lab.stop_code(stream), Some(NO_ERROR));
    assert!(lab.unread_bytes(stream) == 0);
    lab.answer_opens();
    assert_eq!(lab.response3(stream).body, content());
    assert!(lab.is_closed(stream));
}

/// A client that sends no FIN does not keep its stream.
#[test]
fn the_end_of_a_request_is_waited_for_as_long_as_for_a_head() {
    let mut lab = lab();
    let connection = lab.http3();
    let stream = lab.begin(connection, &get("/a"));
    lab.pass(Duration::from_millis(14_999));
    assert_eq!(lab.stop_code(stream), None);
    lab.pass(Duration::from_millis(2));
    assert_eq!(lab.stop_code(stream), Some(NO_ERROR));
    assert!(lab.is_closed(stream));
    assert_eq!(lab.counters().head_timeouts, 1);
}

#[test]
fn a_head_that_does_not_come_in_time_is_answered_408_and_one_that_never_began_is_not() {
    let mut lab = lab();
    let connection = lab.http3();
    let begun = lab.begin(connection, &get("/a")[..20]);
    let silent = lab.begin(connection, b"");
    lab.pass(Duration::from_secs(15));
    assert_eq!(lab.response3(begun).status, 408);
    assert_eq!(lab.stop_code(begun), Some(NO_ERROR));
    assert_eq!(lab.reset_code(silent), Some(0x10d));
    assert!(lab.is_closed(begun) && lab.is_closed(silent));
    assert_eq!(lab.counters().head_timeouts, 2);
}

/// Covers: RFC 9114 §4.1.1
#[test]
fn who_cancels_a_request_leaves_nothing_behind() {
    for cancel in [Lab::peer_resets, Lab::peer_stops] {
        for is_open in [false, true] {
            let mut lab = lab();
            let connection = lab.http3();
            lab.hold_opens();
            let stream = lab.begin(connection, &get("/a"));
            if is_open {
                lab.limit_queue(stream, 10);
                lab.acknowledges(stream, false);
                lab.answer_opens();
            }
            cancel(&mut lab, stream, REQUEST_CANCELLED);
            assert_eq!(lab.reset_code(stream), Some(REQUEST_CANCELLED));
            assert!(lab.is_closed(stream));
            lab.answer_opens();
            assert_eq!(lab.files_left_open(), 0);
            assert_eq!(lab.quic_closed(connection), None);
            assert_eq!(lab.ask3(connection, &get("/a")).status, 200);
        }
    }
}

/// STOP_SENDING of this side is answered by RESET_STREAM, which cancels nothing.
#[test]
fn a_refusal_is_answered_though_the_client_was_asked_to_stop() {
    let mut lab = lab();
    let connection = lab.http3();
    lab.hold_opens();
    let stream = lab.begin(connection, &get("/a"));
    lab.send(stream, frame(DATA, vec![0; 65_537]));
    assert_eq!(lab.stop_code(stream), Some(NO_ERROR));
    lab.answer_opens();
    assert_eq!(lab.response3(stream).status, 200);
}

#[test]
fn a_file_that_is_not_opened_in_time_is_503() {
    let mut lab = lab();
    let connection = lab.http3();
    lab.hold_opens();
    let stream = lab.send_all(connection, &get("/a"));
    lab.pass(Duration::from_secs(60));
    assert_eq!(lab.response3(stream).status, 503);
    lab.answer_opens();
    assert_eq!(lab.files_left_open(), 0);
    assert_eq!(lab.counters().open_timeouts, 1);
}

/// A stream that takes little at a time gets all of its response, in order.
#[test]
fn a_short_stream_gets_the_whole_response() {
    let mut lab = lab();
    let connection = lab.http3();
    let stream = lab.begin(connection, b"");
    lab.limit_queue(stream, 10);
    lab.acknowledges(stream, false);
    let bytes = request("GET", "/a", &[("range", "bytes=5-9,1000-2999")]);
    lab.send(stream, bytes);
    lab.finish(stream);
    while !lab.is_shut_down(stream) {
        let waiting = lab.unacknowledged_bytes(stream);
        assert!(waiting > 0);
        lab.acknowledge(stream, waiting.min(7));
    }
    lab.acknowledges(stream, true);
    let response = lab.response3(stream);
    let length: usize = response.header("content-length").unwrap().parse().unwrap();
    assert_eq!(response.body.len(), length);
    assert!(
        response
            .body
            .windows(2000)
            .any(|bytes| bytes == &content()[1000..3000])
    );
    assert!(lab.is_closed(stream));
}

#[test]
fn the_access_log_has_what_came_over_http3() {
    let mut lab = Lab::alone(Config::default());
    lab.file("a", content());
    lab.log_accesses();
    let connection = lab.http3();
    let fields = [
        ("range", "bytes=0-9"),
        ("user-agent", "test"),
        ("referer", "/b"),
    ];
    lab.ask3(connection, &request("GET", "/a?x", &fields));
    let slow = lab.begin(connection, b"");
    lab.limit_queue(slow, 1000);
    lab.acknowledges(slow, false);
    lab.send(slow, get("/a"));
    lab.acknowledge(slow, 300);
    lab.peer_stops(slow, REQUEST_CANCELLED);
    lab.hold_opens();
    let unanswered = lab.begin(connection, &get("/a"));
    lab.peer_resets(unanswered, REQUEST_CANCELLED);
    let mut records = Vec::new();
    lab.records(|record| {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let line = text(record.request_line);
        assert_eq!(record.tls.unwrap().version, "TLSv1.3");
        assert_eq!(record.host, Some(&b"example.org"[..]));
        records.push((
            line,
            record.request,
            record.status,
            record.body_bytes,
            record.offloaded_bytes,
            record.is_cut_short,
        ));
        if record.request == 1 {
            assert_eq!(record.range, Some(&b"bytes=0-9"[..]));
            assert_eq!(record.user_agent, Some(&b"test"[..]));
            assert_eq!(record.referer, Some(&b"/b"[..]));
        }
    });
    assert_eq!(records.len(), 3, "{records:?}");
    let line = |path: &str| format!("GET {path} HTTP/3.0");
    assert_eq!(records[0], (line("/a?x"), 1, 206, 10, 10, false));
    let (cut, body_bytes) = (&records[1], records[1].3);
    assert_eq!((&cut.0, cut.1, cut.2, cut.5), (&line("/a"), 2, 200, true));
    assert!((1..300).contains(&body_bytes));
    assert_eq!(records[2], (line("/a"), 3, 499, 0, 0, true));
}

#[test]
fn people_are_shown_what_a_stream_is_at() {
    let mut lab = lab();
    let connection = lab.http3();
    lab.hold_opens();
    let stream = lab.begin(connection, &get("/a")[..5]);
    assert_eq!(lab.connection_info(stream).unwrap().phase, "reading");
    lab.send(stream, &get("/a")[5..]);
    let info = lab.connection_info(stream).unwrap();
    assert_eq!((info.phase, info.requests), ("opening", 1));
    assert!(info.site.is_some());
    assert!(
        lab.connection_info(lab.control_stream(connection))
            .is_none()
    );
    lab.answer_opens();
    assert_eq!(lab.connection_info(stream).unwrap().phase, "lingering");
    lab.finish(stream);
    assert!(lab.connection_info(stream).is_none());
}
