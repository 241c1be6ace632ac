//! How connections end: by the application, the client, a limit, and the end of the stack.

use contract::tls::Cipher;
use fakes::site::Identity;
use host::QuicSettings;
use host::app::{
    AppEvent, Application, CloseReason, Io, QuicCloseReason, QuicConnection, QuicEvent, StreamId,
};
use std::time::Duration;

use crate::world::{Setup, World, settings};

fn steady(below: u64) -> u64 {
    below / 2
}

/// The streams' ends, and then the connection's.
fn ends(world: &World<'_>) -> (Vec<CloseReason>, Option<QuicCloseReason>) {
    let events = world.app.events.iter();
    let streams = events.filter_map(|(_, event)| match event {
        AppEvent::Closed { reason, .. } => Some(*reason),
        _ => None,
    });
    let connection = world.app.quic.iter().find_map(|(_, event)| match event {
        QuicEvent::Closed(reason) => Some(*reason),
        _ => None,
    });
    (streams.collect(), connection)
}

#[test]
fn the_application_closes_a_connection() {
    let mut random = steady;
    let mut world = World::new(&mut random);
    let client = world.connected();
    world.request(client, 3_000_000, (0, 3_000_000), 0);
    world.run_for(30_000);
    let peer = &mut world.peers[client].client;
    peer.request(b"close 77\n").expect("a stream");
    world.run_until(|world| world.peers[client].client.lost.is_some());
    let lost = world.peers[client].client.lost.clone().expect("a reason");
    assert!(lost.contains("bye") && lost.contains("77"), "{lost}");
    let (streams, connection) = ends(&world);
    assert_eq!(streams, [CloseReason::Aborted; 2]);
    assert_eq!(connection, Some(QuicCloseReason::Local));
    // The connection's event comes last.
    assert_eq!(world.app.order.last(), Some(&None));
    world.close();
}

#[test]
fn the_client_closes_a_connection() {
    let mut random = steady;
    let mut world = World::new(&mut random);
    let client = world.connected();
    world.request(client, 3_000_000, (0, 3_000_000), 0);
    world.run_for(30_000);
    let now_us = world.now_us;
    world.peers[client].client.close(now_us, 5);
    world.run_until(|world| ends(world).1.is_some());
    let (streams, connection) = ends(&world);
    assert_eq!(streams, [CloseReason::Reset]);
    assert_eq!(connection, Some(QuicCloseReason::Application(5)));
    assert_eq!(world.app.order.last(), Some(&None));
    world.close();
}

#[test]
fn a_silent_client_is_given_up() {
    let mut random = steady;
    let setup = Setup {
        settings: QuicSettings {
            idle_timeout: Duration::from_secs(5),
            ..settings()
        },
        ..Setup::default()
    };
    let mut world = World::with(setup, &mut random);
    let client = world.connected();
    world.peers.remove(client);
    world.run_until(|world| ends(world).1.is_some());
    assert_eq!(ends(&world).1, Some(QuicCloseReason::TimedOut));
    world.close();
}

#[test]
fn a_handshake_that_fails_leaves_nothing() {
    let mut random = steady;
    let setup = Setup {
        settings: QuicSettings {
            alpn: vec![b"other".to_vec()],
            ..settings()
        },
        ..Setup::default()
    };
    let mut world = World::with(setup, &mut random);
    let client = world.connect(Cipher::Aes128Gcm, false);
    world.run_until(|world| world.peers[client].client.lost.is_some());
    world.run_for(5_000_000);
    assert_eq!(world.stack.usage().quic_connections, 0);
    assert!(world.app.quic.is_empty());
    world.close();
}

#[test]
fn certificates_are_replaced_for_the_handshakes_that_follow() {
    let mut random = steady;
    let mut world = World::new(&mut random);
    let before = world.connected();
    let other = Identity::ecdsa(&["localhost"]);
    let replaced = world.site.certificates.replace(&[other.files()]);
    assert!(replaced.is_ok());
    // It does not trust the other certificate.
    let client = world.connect(Cipher::Aes128Gcm, false);
    world.run_until(|world| world.peers[client].client.lost.is_some());
    world.site.trust(&other);
    world.connected();
    world.request(before, 1000, (0, 1000), 0);
    world.run_until_finished();
    world.close();
}

#[test]
fn a_client_that_vanishes_amid_its_handshake_leaves_nothing() {
    let mut random = steady;
    let mut world = World::new(&mut random);
    let client = world.connect(Cipher::Aes128Gcm, false);
    // The first flight of the server is on its way.
    world.run_for(15_000);
    world.peers.remove(client);
    world.run_for(120_000_000);
    assert_eq!(world.stack.counters().quic_handshakes_failed, 1);
    assert!(world.app.quic.is_empty());
    assert!(!world.strays.is_empty());
    world.close();
}

#[test]
fn a_stack_that_ends_closes_its_connections_and_accepts_no_others() {
    let mut random = steady;
    let mut world = World::new(&mut random);
    let client = world.connected();
    world.request(client, 3_000_000, (0, 3_000_000), 0);
    world.run_for(30_000);
    world
        .stack
        .abort_all(world.now_us, &mut world.port, &mut world.app);
    world.run_until(|world| world.peers[client].client.lost.is_some());
    let late = world.connect(Cipher::Aes128Gcm, false);
    world.run_until(|world| world.peers[late].client.lost.is_some());
    assert_eq!(world.app.quic.len(), 2);
    world.close();
}

#[test]
fn a_source_has_no_more_connections_than_it_may_have() {
    let mut random = steady;
    let setup = Setup {
        connections_per_source: Some(2),
        ..Setup::default()
    };
    let mut world = World::with(setup, &mut random);
    for round in 0..2 {
        let accepted = world.app.quic.len();
        for _ in 0..2 {
            world.connected();
        }
        let refused = world.connected();
        let v6 = world.connect(Cipher::Aes128Gcm, true);
        world.run_until(|world| world.peers[v6].client.is_connected);
        world.request(v6, 1000, (0, 1000), 0);
        world.run_until(|world| world.peers[refused].client.lost.is_some());
        world.run_until_finished();
        assert_eq!(world.stack.counters().sources_refused, round + 1);
        assert_eq!(world.app.quic.len(), accepted + 3);
        let now_us = world.now_us;
        for peer in &mut world.peers {
            peer.client.close(now_us, 0);
        }
        world.run_until(|world| world.stack.usage().quic_connections == 0);
        world.peers.clear();
    }
    world.close();
}

/// H3_NO_ERROR (RFC 9114 §8.1), as clients display it.
const NO_ERROR: &str = "256";

/// A client whose congestion window is full: nothing of its download arrives for a while.
fn fill_window(world: &mut World<'_>) -> usize {
    let client = world.connected();
    world.request(client, 30_000_000, (0, 30_000_000), 0);
    world.run_for(100_000);
    world.weather.lost = 1000;
    world.run_for(60_000);
    let left = world.left_by_nic;
    world.run_for(1000);
    assert_eq!(world.left_by_nic, left, "the window is full");
    world.weather.lost = 0;
    client
}

#[test]
fn a_stack_that_ends_closes_connections_whose_window_is_full() {
    let mut random = steady;
    let mut world = World::new(&mut random);
    let client = fill_window(&mut world);
    let (stack, now_us) = (&mut world.stack, world.now_us);
    stack.abort_all(now_us, &mut world.port, &mut world.app);
    // To the NIC stack and to the client.
    world.run_for(12_000);
    let lost = world.peers[client].client.lost.clone();
    let lost = lost.expect("CONNECTION_CLOSE");
    assert!(lost.contains(NO_ERROR), "{lost}");
    world.close();
}

/// Closes a connection of QUIC when it is woken.
struct Closing(QuicConnection);

impl Application for Closing {
    fn on_event(&mut self, _: &mut dyn Io, _: StreamId, event: AppEvent) {
        panic!("{event:?} for a connection that is not its own");
    }

    fn on_wake(&mut self, io: &mut dyn Io, _: u64) {
        io.close_quic(self.0, 77, b"bye");
    }
}

#[test]
fn the_application_closes_a_connection_whose_window_is_full() {
    let mut random = steady;
    let mut world = World::new(&mut random);
    let client = fill_window(&mut world);
    let mut closing = Closing(world.app.quic[0].0);
    world.stack.wake(world.now_us, &mut closing);
    // To the NIC stack and to the client.
    world.run_for(12_000);
    let lost = world.peers[client].client.lost.clone();
    let lost = lost.expect("CONNECTION_CLOSE");
    assert!(lost.contains("bye") && lost.contains("77"), "{lost}");
    world.close();
}

/// CONNECTION_CLOSE does not wait behind data.
#[test]
fn queued_packets_are_dropped_when_their_connection_is_closed() {
    let mut random = steady;
    let mut world = World::new(&mut random);
    let client = world.connected();
    world.request(client, 30_000_000, (0, 30_000_000), 0);
    world.run_for(100_000);
    world.nics[0].is_stuck = true;
    world.run_for(20_000);
    let infos = world.stack.quic_connections();
    assert!(infos.map(|it| it.sends_outstanding).sum::<u64>() > 2);
    let (stack, now_us) = (&mut world.stack, world.now_us);
    stack.abort_all(now_us, &mut world.port, &mut world.app);
    let left = world.left_by_nic;
    world.nics[0].is_stuck = false;
    world.run_until(|world| world.peers[client].client.lost.is_some());
    let left = world.left_by_nic - left;
    assert!(left <= 8, "{left} datagrams");
    world.close();
}

/// The network of the world's IPv4 clients.
fn denied() -> client_address::Networks<()> {
    let any = client_address::Prefix::network("0.0.0.0".parse().unwrap(), 0);
    [any].into_iter().collect()
}

#[test]
fn a_client_that_may_not_connect_gets_no_answer_and_its_connections_end() {
    let mut random = steady;
    let mut world = World::new(&mut random);
    let client = world.connected();
    let v6 = world.connect(Cipher::Aes128Gcm, true);
    world.run_until(|world| world.peers[v6].client.is_connected);
    let now_us = world.now_us;
    assert_eq!(world.stack.set_access(now_us, None, denied()), 1);
    world.run_until(|world| world.peers[client].client.lost.is_some());
    let why = world.peers[client].client.lost.clone().unwrap();
    assert!(why.contains(NO_ERROR), "{why}");

    let refused = world.connect(Cipher::Aes128Gcm, false);
    world.request(v6, 1000, (0, 1000), 0);
    world.run_for(200_000);
    assert!(!world.peers[refused].client.is_connected);
    assert!(world.stack.counters().clients_denied > 0);
    world.run_until(|world| world.stack.usage().quic_connections == 1);

    let now_us = world.now_us;
    world
        .stack
        .set_access(now_us, None, client_address::Networks::default());
    world.run_until(|world| world.peers[refused].client.is_connected);
    world.request(refused, 1000, (0, 1000), 0);
    world.run_until_finished();
    world.close();
}
