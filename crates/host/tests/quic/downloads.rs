//! Files over QUIC: every byte, whatever the network, the ring and the keys do.

use contract::channel::Capacity;
use contract::tls::Cipher;
use fakes::seeds::each_seed;
use fakes::weather::Weather;
use host::app::{AppEvent, QuicEvent};

use crate::world::{Setup, World};

fn steady(below: u64) -> u64 {
    below / 2
}

#[test]
fn a_file_arrives_over_both_versions_of_ip_with_every_cipher() {
    for v6 in [false, true] {
        for cipher in [
            Cipher::Aes128Gcm,
            Cipher::Aes256Gcm,
            Cipher::ChaCha20Poly1305,
        ] {
            let mut random = steady;
            let mut world = World::new(&mut random);
            let client = world.connect(cipher, v6);
            world.run_until(|world| world.peers[client].client.is_connected);
            world.request(client, 3_000_000, (0, 3_000_000), 0);
            world.run_until_finished();
            let [(_, QuicEvent::Opened { peer, tls, .. })] = &world.app.quic[..] else {
                panic!("one connection: {:?}", world.app.quic);
            };
            assert_eq!(*peer, world.peers[client].client.local);
            assert_eq!(tls.suite.cipher, cipher);
            assert_eq!(tls.alpn.as_deref(), Some(&b"test"[..]));
            let counters = world.stack.counters();
            assert_eq!(counters.quic_connections_accepted, 1);
            assert_eq!(counters.virtual_bytes, world.oracle.borrow().file_bytes);
            assert!(counters.virtual_bytes >= 3_000_000);
            let info = world.stack.quic_connections().next().expect("a connection");
            assert!(info.is_offloaded && !info.is_closed);
            assert!(info.sent_bytes > 3_000_000);
            assert_eq!(info.remote, world.peers[client].client.local);
            world.close();
        }
    }
}

#[test]
fn what_is_acknowledged_is_released_and_drained() {
    let mut random = steady;
    let mut world = World::new(&mut random);
    let client = world.connected();
    world.request(client, 1_000_000, (1000, 900_000), 3000);
    world.run_until_finished();
    world.run_for(1_000_000);
    assert_eq!(world.nics[0].releases, 900_000);
    assert_eq!(world.app.count(|it| matches!(it, AppEvent::Drained)), 1);
    let closed = world.app.events.iter().find_map(|(_, event)| match event {
        AppEvent::Closed { acknowledged, .. } => Some(*acknowledged),
        _ => None,
    });
    assert_eq!(closed, Some(2 + 900_000 + 3000));
    assert_eq!(world.stack.usage().files, 0);
    world.close();
}

#[test]
fn many_streams_of_many_connections_share_the_workers() {
    let mut state = 1u64;
    let mut random = move |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(99);
        (state >> 33) % below
    };
    let setup = Setup {
        workers: 3,
        ..Setup::default()
    };
    let mut world = World::with(setup, &mut random);
    let clients: Vec<usize> = (0..9).map(|_| world.connected()).collect();
    for client in &clients {
        for number in 0..60 {
            let size = 1000 + number * 4001;
            world.request(*client, size, (number, size - number), number as usize * 11);
        }
    }
    let workers: Vec<usize> = world.stack.workers().map(|it| it.connections).collect();
    assert_eq!(workers, [3, 3, 3]);
    world.run_until_finished();
    assert_eq!(world.stack.counters().quic_streams_accepted, 9 * 60);
    world.close();
}

#[test]
fn a_ring_without_room_delays_and_loses_nothing() {
    each_seed(10, |random| {
        let setup = Setup {
            capacity: Capacity::LEAST,
            ..Setup::default()
        };
        let mut world = World::with(setup, random);
        let clients: Vec<usize> = (0..4).map(|_| world.connected()).collect();
        for client in clients {
            for number in 0..8 {
                world.request(client, 200_000 + number, (0, 200_000), 2000);
            }
        }
        let mut was_full = false;
        for round in 0..200 {
            world.nics[0].is_stuck = round % 3 != 0;
            world.run_for(3000);
            was_full |= world.stack.quic_connections().any(|info| info.waits);
        }
        world.nics[0].is_stuck = false;
        world.run_until_finished();
        assert!(was_full);
        world.close();
    });
}

#[test]
fn loss_damage_and_reordering_harm_nothing() {
    each_seed(10, |random| {
        let mut world = World::new(random);
        world.weather = Weather {
            lost: 30,
            late: 50,
            damaged: 30,
        };
        for number in 0..3 {
            let client = world.connect(Cipher::Aes128Gcm, number == 1);
            world.run_until(|world| world.peers[client].client.is_connected);
            for number in 0..5 {
                world.request(client, 100_000 + number, (0, 100_000), 5000);
            }
        }
        world.run_until_finished();
        world.close();
    });
}

#[test]
fn keys_are_updated() {
    let mut random = steady;
    let mut world = World::new(&mut random);
    let client = world.connected();
    for number in 0..6 {
        let stream = world.request(client, 900_000 + number, (0, 900_000), 0);
        world.run_until(|world| world.peers[client].transfers[&stream].got > 300_000);
        world.peers[client].client.update_keys();
        world.run_until_finished();
        // The next update is permitted once this one is confirmed and old.
        world.run_for(2_000_000);
    }
    assert_eq!(world.stack.counters().quic_keys, 7);
    world.close();
}

#[test]
fn a_client_that_moves_goes_on_from_its_new_address() {
    let mut random = steady;
    let mut world = World::new(&mut random);
    let client = world.connected();
    let stream = world.request(client, 5_000_000, (0, 5_000_000), 0);
    world.run_until(|world| world.peers[client].transfers[&stream].got > 500_000);
    let peer = &mut world.peers[client].client;
    peer.local.set_port(9999);
    // Enough for the server to dare an answer to an address that is not proven (RFC 9000 §8.1).
    let said = [&[b'x'; 2000][..], b"\n"].concat();
    peer.open(&[&b"idle "[..], &said].concat())
        .expect("a stream");
    world.run_until_finished();
    let info = world.stack.quic_connections().next().expect("a connection");
    assert_eq!(info.remote.port(), 9999);
    world.close();
}

#[test]
fn a_prepare_without_an_answer_is_asked_again_of_the_next_worker() {
    let mut random = steady;
    let mut world = World::new(&mut random);
    let client = world.connected();
    world.nics[0].is_mute = true;
    let stream = world.request(client, 400_000, (0, 400_000), 0);
    world.run_for(2_000_000);
    // Nothing but the head.
    assert_eq!(world.peers[client].transfers[&stream].got, 2);
    assert_eq!(world.stack.counters().quic_prepares, 4);
    world.restart_worker(0);
    world.run_until_finished();
    world.close();
}

#[test]
fn real_bytes_wait_when_they_are_too_many() {
    let mut random = steady;
    let setup = Setup {
        memory_bytes_max: 100_000,
        ..Setup::default()
    };
    let mut world = World::with(setup, &mut random);
    let client = world.connected();
    world.request(client, 10, (0, 10), 3_000_000);
    world.run_until_finished();
    let waits = world.app.count(|event| matches!(event, AppEvent::Writable));
    assert!(waits > 100, "{waits}");
    world.close();
}
