//! Floods of datagrams that begin handshakes, or appear to.

use contract::tls::Cipher;

use crate::world::{Setup, World, server_address, settings};

/// Handshakes with a signature per turn.
const SIGNATURES_MAX: usize = 16;

/// Clients that wait for their first answer.
const WAITING_MAX: u64 = 1024;

fn steady(below: u64) -> u64 {
    below / 2
}

fn setup(half_open_max: usize) -> Setup {
    let mut settings = settings();
    settings.limits.half_open_max = half_open_max;
    Setup {
        settings,
        ..Setup::default()
    }
}

/// The congestion window of the client that does not flood.
fn window(world: &World<'_>) -> u64 {
    let info = world.stack.quic_connections();
    let mut info = info.filter(|it| it.remote.port() == 5000);
    info.next().expect("it is there").congestion_window
}

/// A client downloads while a flood precedes each of its flights. Each turn begins this many
/// connections, and takes the client's ACKs at once.
fn hears_all_amid(
    world: &mut World<'_>,
    begun: usize,
    mut flood: impl FnMut(&World<'_>) -> Vec<Vec<u8>>,
) {
    let client = world.connected();
    world.request(client, 3_000_000, (0, 3_000_000), 0);
    let mut grown = 0;
    for turn in 0..20 {
        let flight = world.next_flight(client);
        let frames = [flood(world), flight].concat();
        let connections = world.stack.usage().quic_connections;
        let before = window(world);
        world.turn(&frames);
        assert_eq!(world.stack.usage().quic_connections, connections + begun);
        let after = window(world);
        grown += u32::from(after > before);
        for _ in 0..10 {
            world.turn(&[]);
            assert_eq!(window(world), after, "turn {turn}");
        }
    }
    // In slow start, each ACK of a part of the file widens the window.
    assert!(grown > 10, "{grown}");
    world.run_until_finished();
}

#[test]
fn garbage_with_a_long_header_delays_no_acknowledgment() {
    let mut random = steady;
    let mut world = World::new(&mut random);
    let mut source = server_address(false);
    source.set_ip("10.77.0.1".parse().unwrap());
    hears_all_amid(&mut world, 0, |world| {
        let mut frames = Vec::new();
        for number in 0..500 {
            source.set_port(10_000 + number);
            // No header; a Handshake packet of no connection; an Initial packet that is too short,
            // and one of an unsupported version.
            let mut handshake = [&[0xe0, 0, 0, 0, 1, 8][..], &[7; 1200]].concat();
            let short = [&[0xc0, 0, 0, 0, 1, 8][..], &[7; 1193]].concat();
            let other = [&[0xc0, 9, 9, 9, 9, 8][..], &[7; 1193]].concat();
            handshake[6..8].copy_from_slice(&number.to_be_bytes());
            for payload in [&[0x80][..], &handshake, &short, &other] {
                frames.push(world.to_frame(source, server_address(false), payload));
            }
        }
        frames
    });
    let counters = world.stack.counters();
    assert_eq!(counters.quic_arrivals_dropped, 0);
    assert!(counters.datagrams_received > 20 * 2000);
    world.close();
}

#[test]
fn handshakes_delay_no_acknowledgment() {
    let mut random = steady;
    let mut world = World::with(setup(usize::MAX), &mut random);
    let mut number = 0;
    hears_all_amid(&mut world, SIGNATURES_MAX, |world| {
        number += 100;
        let clients = number - 100..number;
        clients.flat_map(|it| world.spoofed(it)).collect()
    });
    assert_eq!(world.stack.counters().quic_arrivals_dropped, 0);
    world.close();
}

/// The client's second flight belongs to a known connection.
#[test]
fn a_handshake_is_completed_while_too_many_wait_to_begin_one() {
    const MORE: u64 = 200;
    let mut random = steady;
    let mut world = World::new(&mut random);
    let client = world.connect(Cipher::Aes128Gcm, false);
    let last = loop {
        let flight = world.next_flight(client);
        if world.peers[client].client.is_connected {
            break flight;
        }
        world.turn(&flight);
    };
    let mut frames = Vec::new();
    for number in 0..WAITING_MAX + MORE {
        // Later datagrams of a client wait with its first.
        frames.extend(world.spoofed(number as u16).into_iter().next());
    }
    frames.extend(last);
    world.turn(&frames);
    let counters = world.stack.counters();
    assert_eq!(counters.quic_arrivals_dropped, MORE);
    assert_eq!(counters.quic_connections_accepted, 1);
    world.request(client, 100_000, (0, 100_000), 0);
    world.run_until_finished();
    world.close();
}

/// A waiting client whose ClientHello takes two datagrams counts once.
#[test]
fn what_a_client_repeats_takes_no_other_place() {
    let mut random = steady;
    let mut world = World::new(&mut random);
    let mut frames = Vec::new();
    for number in 0..WAITING_MAX {
        let first = world.spoofed(number as u16).swap_remove(0);
        frames.extend([first.clone(), first]);
    }
    world.turn(&frames);
    let counters = world.stack.counters();
    assert_eq!(counters.quic_arrivals_dropped, 0);
    world.run_for(1_000_000);
    assert_eq!(world.stack.usage().quic_connections as u64, WAITING_MAX);
    world.close();
}

/// Covers: RFC 9000 §8.1.2
#[test]
fn many_that_have_not_shown_their_address_have_others_show_it_first() {
    const HALF_OPEN_MAX: u64 = 20;
    const CLIENTS: u64 = 300;
    let mut random = steady;
    let mut world = World::with(setup(HALF_OPEN_MAX as usize), &mut random);
    for number in 0..CLIENTS {
        let frames = world.spoofed(number as u16);
        world.turn(&frames);
        assert!(world.stack.usage().quic_connections as u64 <= HALF_OPEN_MAX);
    }
    let counters = world.stack.counters();
    assert_eq!(counters.quic_retries_sent, CLIENTS - HALF_OPEN_MAX);
    let client = world.connected();
    world.request(client, 100_000, (0, 100_000), 0);
    world.run_until_finished();
    let counters = world.stack.counters();
    assert_eq!(counters.quic_retries_sent, CLIENTS - HALF_OPEN_MAX + 1);
    // An idle connection with a validated address lasts longer.
    world.run_for(20_000_000);
    // Of the others, those that make half of the places free have ended.
    let left = HALF_OPEN_MAX / 2;
    assert_eq!(world.stack.usage().quic_connections as u64, 1 + left);
    let counters = world.stack.counters();
    assert_eq!(counters.quic_handshakes_failed, HALF_OPEN_MAX - left);
    world.connected();
    let retries = world.stack.counters().quic_retries_sent;
    assert_eq!(retries, CLIENTS - HALF_OPEN_MAX + 1, "there is room again");
    world.close();
}
