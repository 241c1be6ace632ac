//! Key updates in quick succession.

use quic::CloseReason;

use crate::scene::cost;

/// RFC 9000 §20.1
const KEY_UPDATE_ERROR: u64 = 0x0e;

const PING: &[u8] = &[1];

/// Covers: RFC 9001 §6.2
#[test]
fn a_second_update_before_the_answer_to_the_first_closes_the_connection() {
    let cost = cost(|scene| {
        for _ in 0..2 {
            assert_eq!(scene.closed(), None);
            scene.forger.update_keys();
            scene.send(PING);
        }
    });
    let closed = cost.closed;
    let is_right = matches!(closed, Some(CloseReason::Protocol(KEY_UPDATE_ERROR, _)));
    assert!(is_right, "{closed:?}");
    assert_eq!(
        (cost.keys_max, cost.sent_packets),
        (2, 1),
        "CONNECTION_CLOSE"
    );
}

/// The NIC stack has two keys at most, and each update costs an answer.
#[test]
fn updates_that_are_answered_hold_no_keys() {
    const UPDATES: u64 = 4096;
    let cost = cost(|scene| {
        for _ in 0..UPDATES {
            scene.forger.update_keys();
            // The second is acknowledged at once.
            scene.send(PING);
            scene.send_alone(PING);
        }
    });
    assert_eq!((cost.closed, cost.keys_max), (None, 2));
    assert!((UPDATES..=UPDATES + 1).contains(&cost.sent_packets));
    assert!(cost.sent_bytes <= cost.received_bytes);
    assert!(cost.allocated_bytes <= 800 * cost.received_datagrams);
    assert!(cost.held_bytes < 250_000);
}
