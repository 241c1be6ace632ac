//! Clients that move to an address of the server that it prefers (RFC 9000 §9.6).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use contract::tls::Cipher;
use fakes::seeds::each_seed;
use fakes::weather::Weather;
use host::{QuicListener, QuicPreferredAddress, QuicReceive, QuicSettings};

use crate::world::{Setup, World, preferred_address, server_address, settings};

fn steady(below: u64) -> u64 {
    below / 2
}

fn preferred() -> QuicPreferredAddress {
    let mut preferred = QuicPreferredAddress::default();
    for address in [false, true].map(|v6| preferred_address(v6).ip()) {
        match address {
            IpAddr::V4(ip) => preferred.v4 = Some(ip),
            IpAddr::V6(ip) => preferred.v6 = Some(ip),
        }
    }
    preferred
}

fn setup(receive: QuicReceive, is_steered: bool) -> Setup {
    Setup {
        receive,
        settings: QuicSettings {
            preferred_address: preferred(),
            ..settings()
        },
        is_steered,
        ..Setup::default()
    }
}

/// Where a client has its connection, and the server.
fn ends(world: &World<'_>) -> (SocketAddr, SocketAddr) {
    let info = world.stack.quic_connections().next().expect("a connection");
    (info.remote, info.local)
}

/// Has a client send to the preferred address.
fn move_over(world: &mut World<'_>, client: usize) {
    let peer = &mut world.peers[client];
    peer.server = preferred_address(peer.server.is_ipv6());
    let local = peer.client.local;
    peer.client.move_to(local);
}

#[test]
fn a_client_that_moves_is_received_and_answered_at_the_preferred_address() {
    for (receive, is_steered) in [
        (QuicReceive::Host, false),
        (QuicReceive::NIC, false),
        (QuicReceive::NIC, true),
    ] {
        for v6 in [false, true] {
            let mut random = steady;
            let mut world = World::with(setup(receive, is_steered), &mut random);
            let client = world.connect(Cipher::Aes128Gcm, v6);
            world.run_until(|world| world.peers[client].client.is_confirmed());
            let local = world.peers[client].client.local;
            let stream = world.request(client, 3_000_000, (0, 3_000_000), 0);
            world.run_until(|world| world.peers[client].transfers[&stream].got > 500_000);
            assert_eq!(ends(&world), (local, server_address(v6)));
            assert!(
                world
                    .left_from
                    .iter()
                    .all(|(from, _)| *from == server_address(v6))
            );
            move_over(&mut world, client);
            let before = world.nics[0].opener.opened;
            world.run_until_finished();
            assert_eq!(ends(&world), (local, preferred_address(v6)));
            // A challenge first, from there, and then what had been made before its answer.
            let from: Vec<_> = world.left_from.iter().map(|(from, _)| *from).collect();
            let [home, there] = [server_address(v6), preferred_address(v6)];
            assert_eq!(from, [home, there, home, there]);
            assert_eq!(world.left_from[1].1, 1);
            assert!(world.left_from[3].1 > 1000, "{:?}", world.left_from);
            // A worker opens what comes there, once the server has moved.
            world.request(client, 10_000_000, (0, 10_000_000), 0);
            world.run_until_finished();
            let opened = world.nics[0].opener.opened - before;
            assert_eq!(opened > 50, receive == QuicReceive::NIC, "{opened}");
            assert_eq!(world.stack.flows_steered(), usize::from(is_steered));
            world.close();
        }
    }
}

#[test]
fn workers_that_die_and_a_bad_network_cost_a_client_that_moves_no_byte() {
    each_seed(20, |random| {
        let (receive, is_steered) = match random(3) {
            0 => (QuicReceive::Host, false),
            1 => (QuicReceive::NIC, false),
            _ => (QuicReceive::NIC, true),
        };
        let mut world = World::with(setup(receive, is_steered), random);
        world.weather = Weather {
            lost: 10,
            late: 20,
            damaged: 5,
        };
        let clients: Vec<usize> = (0..3).map(|_| world.connected()).collect();
        for &client in &clients {
            world.run_until(|world| world.peers[client].client.is_confirmed());
            for number in 0..3 {
                world.request(client, 500_000 + number, (0, 500_000), 3000);
            }
        }
        for client in clients {
            let time_us = (world.random)(40_000);
            world.run_for(time_us);
            move_over(&mut world, client);
            let time_us = (world.random)(40_000);
            world.run_for(time_us);
            world.restart_worker(0);
        }
        world.run_until_finished();
        world.close();
    });
}

/// With what others have sent, and something else.
#[test]
fn no_copy_and_no_forgery_moves_a_connection() {
    let mut random = steady;
    let mut world = World::with(setup(QuicReceive::Host, false), &mut random);
    let client = world.connected();
    world.request(client, 1_000_000, (0, 1_000_000), 0);
    world.run_until_finished();
    // Until all has arrived that is copied.
    world.run_for(100_000);
    let before = ends(&world);
    for (from, datagram) in world.overheard.clone() {
        world.send(from, preferred_address(false), &datagram);
        let mut forged = datagram;
        *forged.last_mut().expect("no empty datagram") ^= 1;
        world.send(from, preferred_address(false), &forged);
    }
    world.run_for(100_000);
    world.request(client, 1_000_000, (0, 1_000_000), 0);
    world.run_until_finished();
    assert_eq!(ends(&world), before);
    let home = server_address(false);
    assert!(world.left_from.iter().all(|(from, _)| *from == home));
    world.close();
}

#[test]
fn an_address_that_the_stack_does_not_have_is_refused() {
    let mut random = steady;
    let mut world = World::new(&mut random);
    let listener = QuicListener {
        port: 444,
        certificates: Arc::clone(&world.site.certificates),
        settings: QuicSettings {
            preferred_address: preferred(),
            ..settings()
        },
    };
    let refused = world.stack.serve_quic(world.now_us, &listener);
    let refused = refused.expect_err("it is another's").to_string();
    assert!(
        refused.contains("10.77.0.7, which the stack does not have"),
        "{refused}"
    );
}
