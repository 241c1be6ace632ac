//! Which response comes first (RFC 9218).

use host::app::{QuicConnection, StreamId};

use crate::http3::client::{PRIORITY_UPDATE, SETTINGS, frame, get, request, varint};
use crate::lab::{Lab, STREAMS_MAX};

const ID_ERROR: u64 = 0x108;
const FRAME_ERROR: u64 = 0x106;

/// A lab, a connection and the client's control stream.
fn lab() -> (Lab, QuicConnection, StreamId) {
    let mut lab = Lab::new();
    lab.zeros("a", 1 << 30);
    lab.hold_opens();
    let connection = lab.open_quic(false);
    let settings = [&[0][..], &frame(SETTINGS, "")].concat();
    let control = lab.unidirectional(connection, &settings);
    (lab, connection, control)
}

fn update(id: u64, value: &str) -> Vec<u8> {
    frame(
        PRIORITY_UPDATE,
        [&varint(id)[..], value.as_bytes()].concat(),
    )
}

fn with(value: &str) -> Vec<u8> {
    request("GET", "/a", &[("priority", value)])
}

/// Covers: RFC 9218 §5, RFC 9218 §10
#[test]
fn urgent_responses_come_first_and_equal_ones_in_order_or_in_turns() {
    let (mut lab, connection, _) = lab();
    let mut ask = |bytes: &[u8]| {
        let stream = lab.send_all(connection, bytes);
        lab.priority(stream).expect("a priority")
    };
    let first = ask(&get("/a"));
    let second = ask(&get("/a"));
    let urgent = ask(&with("u=0"));
    let late = ask(&with("u=7"));
    let third = ask(&with("u=3"));
    let [turn, other_turn] = [ask(&with("u=3, i")), ask(&with("i"))];
    let nonsense = ask(&with("u=high"));
    assert!(urgent > first && first > second && second > third && third > nonsense);
    assert!(nonsense > turn && turn > late);
    assert_eq!(turn, other_turn);
}

/// Covers: RFC 9218 §7, RFC 9218 §7.1
#[test]
fn an_update_counts_more_than_the_field_whenever_it_comes() {
    let (mut lab, connection, control) = lab();
    let plain = lab.send_all(connection, &with("u=5"));
    let fifth = lab.priority(plain).unwrap();
    lab.send(control, update(0, "u=1"));
    assert!(lab.priority(plain).unwrap() > fifth);
    // Before the stream is there, or its head.
    lab.send(control, update(4, "u=0"));
    lab.send(control, update(4, "u=7"));
    let later = lab.open_stream(connection, false);
    let seventh = lab.priority(later).expect("what came before");
    assert!(seventh < fifth);
    lab.send(later, with("u=0"));
    assert_eq!(lab.priority(later), Some(seventh));
    lab.send(control, update(4, "u=0, i"));
    assert!(lab.priority(later).unwrap() > fifth);
    assert_eq!(lab.quic_closed(connection), None);
}

#[test]
fn an_update_for_a_stream_that_is_over_is_ignored() {
    let (mut lab, connection, control) = lab();
    let stream = lab.send_all(connection, &get("/a"));
    lab.answer_opens();
    assert!(lab.is_closed(stream));
    let before = lab.priority(stream);
    lab.send(control, update(0, "u=0"));
    assert_eq!(lab.priority(stream), before);
    assert_eq!(lab.quic_closed(connection), None);
}

/// Covers: RFC 9218 §7.2
#[test]
fn updates_are_about_streams_of_requests() {
    for id in [1, 2, 3, 5, 1 << 40 | 2] {
        let (mut lab, connection, control) = lab();
        lab.send(control, update(id, "u=0"));
        assert_eq!(lab.quic_closed(connection), Some(ID_ERROR), "{id}");
    }
    // And about such as the client may open.
    let (mut lab, connection, control) = self::lab();
    let over = lab.send_all(connection, &get("/a"));
    lab.answer_opens();
    assert!(lab.is_closed(over));
    lab.send(control, update(4 * STREAMS_MAX, "u=0"));
    assert_eq!(lab.quic_closed(connection), None);
    lab.send(control, update(4 * (STREAMS_MAX + 1), "u=0"));
    assert_eq!(lab.quic_closed(connection), Some(ID_ERROR));
    let (mut lab, connection, control) = self::lab();
    lab.send(control, frame(PRIORITY_UPDATE, ""));
    assert_eq!(lab.quic_closed(connection), Some(FRAME_ERROR));
}
