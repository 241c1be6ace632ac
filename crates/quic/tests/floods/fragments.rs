//! Data in pieces that wait for others, and of which the packet is kept.

use quic::CloseReason;

use crate::forger::{frame, stream};
use crate::scene::{Cost, Scene, cost};

/// At once, and how many more each millisecond permits.
const FRAGMENTS: u64 = 4096;
const FRAGMENTS_PER_MS: f64 = 0.25;

/// RFC 9000 §20.1
const INTERNAL_ERROR: u64 = 0x01;
const PROTOCOL_VIOLATION: u64 = 0x0a;

/// Streams that a client may have open: those of both directions, and the others.
fn streams() -> impl Iterator<Item = u64> {
    (0..100)
        .map(|at| 4 * at)
        .chain((0..12).map(|at| 2 + 4 * at))
}

/// A byte behind a gap.
fn fragment(number: u64) -> Vec<u8> {
    let id = streams().nth(number as usize % 112).expect("there are 112");
    stream(id, 1 + 2 * (number / 112), b"x")
}

fn crypto(offset: u64) -> Vec<u8> {
    [&frame(0x06, &[offset, 1])[..], b"x"].concat()
}

fn is_closed(cost: &Cost, code: u64) -> bool {
    matches!(cost.closed, Some(CloseReason::Protocol(it, _)) if it == code)
}

/// Sends packets of so many fragments, until the server has had enough of them.
fn flood(scene: &mut Scene<'_>, of_each: u64, fragment: fn(u64) -> Vec<u8>) {
    let begun_us = scene.world.now_us;
    let packets = scene.until_closed(10 * FRAGMENTS, |packet| {
        let numbers = packet * of_each..(packet + 1) * of_each;
        numbers.flat_map(fragment).collect()
    });
    let passed_us = scene.world.now_us - begun_us;
    let meanwhile = passed_us as f64 / 1000. * FRAGMENTS_PER_MS;
    let most = FRAGMENTS + meanwhile as u64 + 2 * of_each;
    let count = packets * of_each;
    assert!((FRAGMENTS..=most).contains(&count), "{count} of {most}");
}

/// Covers: RFC 9000 §21.6
#[test]
fn tiny_fragments_of_streams_are_bounded() {
    for of_each in [1, 50] {
        let all = cost(|scene| flood(scene, of_each, fragment));
        assert!(is_closed(&all, PROTOCOL_VIOLATION), "{all:?}");
        assert!(all.sent_bytes <= all.received_bytes);
    }
    let kept = cost(|scene| (0..4000).for_each(|number| scene.send(&fragment(number))));
    assert_eq!(kept.closed, None);
    assert!((300_000..1_200_000).contains(&kept.held_bytes), "{kept:?}");
}

/// Of the same byte of a stream that is full of gaps: all that is kept is copied again and again.
#[test]
fn work_for_duplicates_is_bounded() {
    let cost = cost(|scene| {
        (0..1000).for_each(|number| scene.send(&stream(0, 1 + 2 * number, b"x")));
        scene.until_closed(FRAGMENTS, |_| stream(0, 1, b"x").repeat(180));
    });
    assert!(is_closed(&cost, PROTOCOL_VIOLATION), "{cost:?}");
    assert!(cost.allocated_bytes < 10_000_000);
}

/// Of longer ones quinn-proto keeps little more than flow control permits.
#[test]
fn longer_fragments_take_less_than_4_mb() {
    let cost = cost(|scene| {
        for id in streams() {
            (0..300).for_each(|_| scene.send(&stream(id, 1, &[b'x'; 256])));
        }
    });
    assert_eq!(cost.closed, None);
    assert!(cost.held_bytes < 4_000_000, "{cost:?}");
    assert!(cost.allocated_bytes < 4 * cost.received_bytes);
}

/// A byte in each packet, and every other one late.
#[test]
fn a_client_whose_fragments_are_read_goes_on_for_ever() {
    let cost = cost(|scene| {
        for pair in 0..10_000 {
            scene.send_alone(&stream(0, 2 * pair + 1, b"x"));
            scene.send_alone(&stream(0, 2 * pair, b"x"));
            if pair % 16 == 0 {
                scene.acknowledge();
            }
        }
    });
    assert_eq!(cost.closed, None);
    assert!(cost.held_bytes < 50_000, "{cost:?}");
}

/// Copies of a packet can be sent by anyone.
#[test]
fn copies_of_a_fragment_do_not_count() {
    let cost = cost(|scene| {
        let datagram = scene.forger.packet(&fragment(0));
        (0..4 * FRAGMENTS).for_each(|_| scene.send_datagram(&datagram));
    });
    assert_eq!(cost.closed, None);
    assert!(cost.held_bytes < 20_000, "{cost:?}");
}

/// Covers: RFC 9001 §4.1.3
#[test]
fn crypto_data_behind_the_handshake_is_bounded() {
    let all = cost(|scene| {
        scene.until_closed(FRAGMENTS, |number| crypto(1 + 2 * number));
    });
    assert!(is_closed(&all, INTERNAL_ERROR), "too many gaps: {all:?}");
    let same = cost(|scene| flood(scene, 1, |_| crypto(1)));
    assert!(is_closed(&same, PROTOCOL_VIOLATION), "{same:?}");
    let kept = cost(|scene| (0..2000).for_each(|number| scene.send(&crypto(1 + 2 * number))));
    assert!(kept.held_bytes < 400_000, "{kept:?}");
}
