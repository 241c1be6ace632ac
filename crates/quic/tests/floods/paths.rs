//! Packets from other addresses, which may be forged.

use std::net::SocketAddr;

use crate::scene::{Scene, cost};

const COUNT: u64 = 4096;

/// Of a datagram that the server sends to an address which is not validated, in bytes.
const ANSWER_BYTES_MAX: u64 = 1500;

/// The allowance of a connection, and what is added to it meanwhile.
const REACTIONS: u64 = 16 + 1;

fn other(number: u64) -> SocketAddr {
    let port = 1024 + number as u16;
    SocketAddr::new("198.51.100.1".parse().expect("an address"), port)
}

/// PATH_CHALLENGE (RFC 9000 §19.17), with padding.
fn challenge(number: u64, padding_bytes: usize) -> Vec<u8> {
    [&[0x1a][..], &number.to_be_bytes(), &vec![0; padding_bytes]].concat()
}

fn challenge_from_others(scene: &mut Scene<'_>, padding_bytes: usize) {
    let home = scene.from;
    for number in 0..COUNT {
        scene.from = other(number);
        scene.send_alone(&challenge(number, padding_bytes));
        scene.from = home;
        if number % 8 == 0 {
            scene.acknowledge();
        }
    }
}

/// Covers: RFC 9000 §8.2.2, RFC 9000 §21.1.1.1
#[test]
fn short_challenges_from_other_addresses_are_answered_a_few_times() {
    let cost = cost(|scene| challenge_from_others(scene, 0));
    assert_eq!(cost.closed, None);
    assert!((10..=REACTIONS as usize + 1).contains(&cost.addresses));
    assert!(cost.sent_bytes <= (REACTIONS + 8) * ANSWER_BYTES_MAX);
    assert!(cost.held_bytes < 20_000);
}

/// Covers: RFC 9000 §8.2.1
#[test]
fn challenges_of_full_length_are_answered_with_no_more_bytes_than_they_have() {
    let cost = cost(|scene| challenge_from_others(scene, 1200));
    assert_eq!(cost.closed, None);
    assert!(cost.addresses > 100, "they use up no allowance");
    assert!(cost.sent_bytes <= cost.received_bytes);
    assert!(cost.held_bytes < 20_000);
}

/// What is not acknowledged fills the congestion window.
#[test]
fn challenges_from_the_clients_own_address_are_answered_once_each_within_the_window() {
    for (acknowledges, bytes_max) in [(false, 20 * ANSWER_BYTES_MAX), (true, u64::MAX)] {
        let cost = cost(|scene| {
            for number in 0..COUNT {
                scene.send_alone(&challenge(number, 0));
                if acknowledges && number % 8 == 0 {
                    scene.acknowledge();
                }
            }
        });
        assert_eq!((cost.closed, cost.addresses), (None, 1));
        assert!(cost.sent_packets <= cost.received_datagrams);
        assert!(cost.sent_bytes <= bytes_max);
        assert!(cost.held_bytes < 20_000);
    }
}

/// Covers: RFC 9000 §9.3, RFC 9000 §21.1.1.1
#[test]
fn moves_from_address_to_address_are_followed_a_few_times() {
    let cost = cost(|scene| {
        for number in 0..COUNT {
            scene.from = other(number);
            scene.send_alone(&[1]);
        }
    });
    assert_eq!(cost.closed, None);
    assert!((10..=REACTIONS as usize + 1).contains(&cost.addresses));
    // A challenge and a packet of path MTU discovery each time.
    assert!(cost.sent_bytes <= 2 * (REACTIONS + 1) * ANSWER_BYTES_MAX);
    assert!(cost.held_bytes < 20_000);
}

#[test]
fn a_client_that_moves_now_and_then_is_followed_for_ever() {
    const MOVES: u64 = 100;
    let cost = cost(|scene| {
        for number in 0..MOVES {
            scene.from = other(number);
            scene.send_alone(&[1]);
            scene.acknowledge();
            scene.pass_a_second();
        }
    });
    assert_eq!((cost.closed, cost.addresses), (None, 1 + MOVES as usize));
}
