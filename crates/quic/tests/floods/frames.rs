//! Frames that ask for an acknowledgment, or for a frame in return.

use quic::CloseReason;

use crate::forger::{frame, stream};
use crate::scene::{Scene, cost};

const COUNT: u64 = 4096;

/// RFC 9000 §20.1
const STREAM_LIMIT_ERROR: u64 = 0x04;
const CONNECTION_ID_LIMIT_ERROR: u64 = 0x09;
const PROTOCOL_VIOLATION: u64 = 0x0a;

/// NEW_CONNECTION_ID that retires those before it (RFC 9000 §19.15).
fn new_id(sequence: u64) -> Vec<u8> {
    let mut bytes = frame(0x18, &[sequence, sequence]);
    bytes.push(8);
    bytes.extend(sequence.to_be_bytes());
    bytes.extend([7; 16]);
    bytes
}

/// A stream with a byte, RESET_STREAM and STOP_SENDING for it.
fn reset_and_stop(at: u64) -> Vec<u8> {
    let id = 4 * at;
    let reset = frame(0x04, &[id, 7, 1]);
    [stream(id, 0, b"x"), reset, frame(0x05, &[id, 7])].concat()
}

/// Acknowledgments that are never acknowledged are forgotten: four times as many take no more.
#[test]
fn pings_are_answered_half_as_often_and_leave_nothing() {
    for count in [COUNT, 4 * COUNT] {
        let cost = cost(|scene| (0..count).for_each(|_| scene.send_alone(&[1])));
        assert_eq!(cost.closed, None);
        assert!(cost.sent_packets <= count / 2 + 1);
        assert!(cost.sent_bytes < cost.received_bytes);
        assert!(cost.allocated_bytes <= 100 * count);
        assert!(cost.held_bytes < 250_000, "{cost:?}");
    }
}

/// A client that acknowledges nothing, and has the server send something else after each thousand
/// acknowledgments, which quinn-proto then keeps.
#[test]
fn acknowledgments_that_are_kept_are_bounded() {
    const ROUNDS: u64 = 30;
    let flood = |rounds| {
        move |scene: &mut Scene<'_>| {
            for round in 0..rounds {
                scene.send_alone(&reset_and_stop(round));
                for _ in 0..1000 {
                    if scene.closed().is_some() {
                        return;
                    }
                    // Behind a gap, each is acknowledged at once.
                    scene.forger.skip();
                    scene.send_alone(&[1]);
                }
            }
        }
    };
    let kept = cost(flood(8));
    assert_eq!(kept.closed, None);
    assert!(
        (1_000_000..2_000_000).contains(&kept.held_bytes),
        "{kept:?}"
    );
    let all = cost(flood(ROUNDS));
    let is_right = matches!(
        all.closed,
        Some(CloseReason::Protocol(PROTOCOL_VIOLATION, _))
    );
    assert!(is_right, "{all:?}");
    assert!(all.sent_packets < 10_000);
}

/// Each acknowledgment has 64 ranges.
#[test]
fn gaps_in_packet_numbers_leave_nothing() {
    for count in [COUNT, 4 * COUNT] {
        let cost = cost(|scene| {
            for _ in 0..count {
                scene.forger.skip();
                scene.send_alone(&[1]);
            }
        });
        assert_eq!(cost.closed, None);
        assert!(cost.sent_packets <= count + 1);
        assert!(cost.sent_bytes <= 6 * cost.received_bytes);
        assert!(cost.held_bytes < 300_000, "{cost:?}");
    }
}

#[test]
fn changes_of_limits_are_taken_in_and_leave_nothing() {
    for count in [COUNT, 4 * COUNT] {
        let cost = cost(|scene| {
            for number in 0..count {
                // MAX_DATA, MAX_STREAM_DATA, MAX_STREAMS
                let limit = (1 << 24) + number;
                let frames = [
                    frame(0x10, &[limit]),
                    frame(0x11, &[0, limit]),
                    frame(0x12, &[limit]),
                ];
                scene.send(&frames.concat());
            }
        });
        assert_eq!(cost.closed, None);
        assert!(cost.sent_bytes < cost.received_bytes);
        assert!(cost.allocated_bytes <= 150 * count);
        assert!(cost.held_bytes < 250_000, "{cost:?}");
    }
}

/// Covers: RFC 9000 §5.1.2
#[test]
fn new_connection_ids_are_bounded_unless_the_client_acknowledges_the_retired() {
    let deaf = cost(|scene| {
        scene.until_closed(COUNT, |number| new_id(8 + number));
    });
    let closed = &deaf.closed;
    let is_right = matches!(
        closed,
        Some(CloseReason::Protocol(CONNECTION_ID_LIMIT_ERROR, _))
    );
    assert!(is_right, "{closed:?}");
    assert!(deaf.received_datagrams < 400);
    let cost = cost(|scene| {
        for sequence in 8..8 + COUNT {
            scene.send_alone(&new_id(sequence));
            if sequence % 4 == 0 {
                scene.acknowledge();
            }
        }
    });
    assert_eq!(cost.closed, None);
    assert!(cost.sent_bytes < cost.received_bytes);
    assert!(cost.held_bytes < 20_000, "{cost:?}");
}

/// Each asks for another ID; one that the server has not issued cannot be retired.
///
/// Covers: RFC 9000 §5.1.2, RFC 9000 §19.16
#[test]
fn connection_ids_that_the_client_retires_are_bounded() {
    for acknowledges in [false, true] {
        let cost = cost(|scene| {
            for sequence in 1..COUNT {
                if scene.closed().is_some() {
                    break;
                }
                scene.send_alone(&frame(0x19, &[sequence]));
                if acknowledges && sequence % 4 == 0 {
                    scene.acknowledge();
                }
            }
        });
        let closed = &cost.closed;
        let is_right = matches!(closed, Some(CloseReason::Protocol(PROTOCOL_VIOLATION, _)));
        assert!(is_right, "{closed:?}");
        assert!(cost.received_datagrams < 100);
        assert!(cost.sent_bytes < 8000);
    }
}

#[test]
fn a_client_that_retires_ids_now_and_then_goes_on_for_ever() {
    let cost = cost(|scene| {
        for sequence in 1..200 {
            scene.send_alone(&frame(0x19, &[sequence]));
            scene.acknowledge();
            scene.pass_a_second();
        }
    });
    assert_eq!(cost.closed, None);
}

/// Covers: RFC 9000 §4.6
#[test]
fn streams_that_are_reset_and_stopped_are_bounded_by_acknowledgments() {
    let deaf = cost(|scene| {
        scene.until_closed(COUNT, reset_and_stop);
    });
    let closed = &deaf.closed;
    let is_right = matches!(closed, Some(CloseReason::Protocol(STREAM_LIMIT_ERROR, _)));
    assert!(is_right, "{closed:?}");
    assert!(deaf.received_datagrams <= 101);
    let cost = cost(|scene| {
        for at in 0..COUNT {
            scene.send_alone(&reset_and_stop(at));
            scene.acknowledge();
        }
    });
    assert_eq!(cost.closed, None);
    assert!(cost.sent_bytes <= cost.received_bytes);
    assert!(cost.held_bytes < 100_000, "{cost:?}");
}
