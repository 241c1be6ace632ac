//! Early data: streams before the handshake is over.

use contract::tls::Cipher;
use fakes::seeds::each_seed;
use fakes::weather::Weather;
use host::app::QuicEvent;
use host::{QuicReceive, QuicSettings};

use crate::world::{Setup, World, server_address, settings};

fn setup(receive: QuicReceive) -> Setup {
    Setup {
        settings: QuicSettings {
            early_data: true,
            ..settings()
        },
        receive,
        ..Setup::default()
    }
}

/// The events of the last connection.
fn of_last(world: &World<'_>) -> Vec<QuicEvent> {
    let events = &world.app.quic;
    let last = events.iter().map(|(id, _)| *id).max();
    let of_last = events.iter().filter(|(id, _)| Some(*id) == last);
    of_last.map(|(_, event)| event.clone()).collect()
}

/// A worker gets the key of what the client sends not before the handshake is over: the endpoint
/// would drop what it opens.
#[test]
fn a_stream_comes_with_its_request_before_the_handshake_is_over() {
    for receive in [QuicReceive::Host, QuicReceive::NIC] {
        let mut random = |below| below / 2;
        let mut world = World::with(setup(receive), &mut random);
        let first = world.connected();
        world.request(first, 20_000, (0, 20_000), 0);
        world.run_until_finished();
        let keys = world.stack.counters().quic_receive_keys;
        let client = world.resume(first);
        assert!(world.peers[client].client.may_send_early());
        world.request(client, 500_000, (0, 500_000), 0);
        world.run_until(|world| world.stack.counters().quic_early == 1);
        let events = of_last(&world);
        let [
            QuicEvent::Opened {
                is_early: true,
                tls,
                ..
            },
        ] = &events[..]
        else {
            panic!("{events:?}");
        };
        assert!(tls.is_resumed);
        assert_eq!(world.stack.counters().quic_receive_keys, keys);
        world.run_until_finished();
        assert!(world.peers[client].client.is_early_data_accepted());
        let events = of_last(&world);
        assert_eq!(events[1..], [QuicEvent::HandshakeComplete]);
        let counters = world.stack.counters();
        assert_eq!(counters.quic_connections_accepted, 2);
        assert_eq!(
            counters.quic_receive_keys > keys,
            receive == QuicReceive::NIC
        );
        // The worker goes on behind the numbers of early packets.
        let opened = world.nics[0].opener.opened;
        assert_eq!(opened > 5, receive == QuicReceive::NIC, "{opened}");
        world.close();
    }
}

#[test]
fn workers_die_amid_early_requests_on_a_bad_network() {
    each_seed(10, |random| {
        let receive = match random(2) {
            0 => QuicReceive::Host,
            _ => QuicReceive::NIC,
        };
        let mut world = World::with(setup(receive), random);
        let first = world.connected();
        world.run_until(|world| world.peers[first].client.is_confirmed());
        let client = world.resume(first);
        world.weather = Weather {
            lost: 30,
            late: 30,
            damaged: 10,
        };
        for len in [0, 1, 200_000] {
            world.request(client, 300_000, (10, len), 500);
        }
        for _ in 0..5 {
            let time_us = 1 + (world.random)(30_000);
            world.run_for(time_us);
            world.restart_worker(0);
        }
        world.run_until_finished();
        world.close();
    });
}

/// RFC 9000 §8.1: the address is not validated.
#[test]
fn early_data_from_the_address_of_another_takes_no_connection_from_that() {
    let mut random = |below| below / 2;
    let setup = Setup {
        connections_per_source: Some(1),
        ..setup(QuicReceive::Host)
    };
    let mut world = World::with(setup, &mut random);
    let own = world.connect(Cipher::Aes128Gcm, true);
    world.run_until(|world| world.peers[own].client.is_confirmed());
    let now_us = world.now_us;
    world.peers[own].client.close(now_us, 0);
    world.run_until(|world| world.stack.usage().quic_connections == 0);
    let forged = world.resume(own);
    world.request(forged, 1000, (0, 1000), 0);
    world.peers[forged].client.local = "10.77.0.1:6000".parse().unwrap();
    world.peers[forged].server = server_address(false);
    world.send_and_forget(forged);
    world.run_until(|world| world.stack.counters().quic_early == 1);
    // That client, and no second one, gets its connection.
    let client = world.connected();
    world.request(client, 1000, (0, 1000), 0);
    world.run_until_finished();
    assert_eq!(world.stack.counters().sources_refused, 0);
    let second = world.connect(Cipher::Aes128Gcm, false);
    world.run_until(|world| world.peers[second].client.lost.is_some());
    assert_eq!(world.stack.counters().sources_refused, 1);
}
