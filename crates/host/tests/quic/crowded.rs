//! As many connections as there may be: idle ones make room, of the source with most first.

use contract::tls::Cipher;

use crate::world::{Setup, World, settings};

const CONNECTIONS_MAX: usize = 8;

fn steady(below: u64) -> u64 {
    below / 2
}

fn crowded(random: &mut dyn FnMut(u64) -> u64) -> World<'_> {
    let mut settings = settings();
    settings.limits.connections_max = CONNECTIONS_MAX;
    let setup = Setup {
        settings,
        ..Setup::default()
    };
    World::with(setup, random)
}

fn connected_from(world: &mut World<'_>, ip: &str) -> usize {
    let client = world.connect_from(ip, Cipher::Aes128Gcm);
    world.run_until(|world| world.peers[client].client.is_connected);
    client
}

/// A client gets a file.
fn serve(world: &mut World<'_>, client: usize) {
    world.request(client, 20_000, (0, 20_000), 0);
    world.run_until_finished();
    assert_eq!(world.peers[client].client.lost, None);
}

#[test]
fn a_source_that_takes_every_place_keeps_no_other_client_out() {
    let mut random = steady;
    let mut world = crowded(&mut random);
    let holders: Vec<usize> = (0..CONNECTIONS_MAX).map(|_| world.connected()).collect();
    for _ in 0..12 {
        let client = connected_from(&mut world, "fd77::1");
        world.connected();
        serve(&mut world, client);
        world.connected();
        serve(&mut world, client);
        let now_us = world.now_us;
        world.peers[client].client.close(now_us, 0);
        world.run_for(1_000_000);
    }
    let counters = world.stack.counters();
    assert_eq!(counters.quic_connections_refused, 0);
    assert!(counters.quic_idle_evictions >= 24, "{counters:?}");
    let lost = |at: usize| world.peers[at].client.lost.clone();
    // H3_NO_ERROR (RFC 9114 §8.1)
    let told = holders.iter().filter_map(|at| lost(*at));
    let told: Vec<String> = told.collect();
    assert_eq!(told.len(), CONNECTIONS_MAX);
    assert!(told.iter().all(|it| it.contains("256")), "{told:?}");
    world.close();
}

/// Clients connect, get a file and leave, one after the other: the slowest, in microseconds. Before
/// each, so many connections of another source come.
fn slowest_us(world: &mut World<'_>, holders: usize) -> u64 {
    let times = (0..20).map(|_| {
        for _ in 0..holders {
            world.connected();
        }
        let begun_us = world.now_us;
        let client = connected_from(world, "fd77::1");
        serve(world, client);
        let time_us = world.now_us - begun_us;
        let now_us = world.now_us;
        world.peers[client].client.close(now_us, 0);
        world.run_for(50_000);
        time_us
    });
    times.max().expect("there are some")
}

#[test]
fn clients_beside_one_that_holds_every_place_are_served_as_fast_as_alone() {
    let mut random = steady;
    let quiet_us = slowest_us(&mut crowded(&mut random), 0);
    let mut random = steady;
    let mut world = crowded(&mut random);
    let us = slowest_us(&mut world, CONNECTIONS_MAX);
    println!("{us} and {quiet_us} us");
    assert!(us < 10 * quiet_us && us < 250_000, "{us} and {quiet_us} us");
    let counters = world.stack.counters();
    assert_eq!(counters.quic_connections_refused, 0);
    assert!(counters.quic_idle_evictions > 20, "{counters:?}");
}

#[test]
fn many_sources_that_take_every_place_keep_no_other_client_out() {
    let mut random = steady;
    let mut world = crowded(&mut random);
    let mut next = 10;
    let mut come = |world: &mut World<'_>| {
        let client = connected_from(world, &format!("10.77.0.{next}"));
        next += 1;
        client
    };
    let holders: Vec<usize> = (0..CONNECTIONS_MAX).map(|_| come(&mut world)).collect();
    let client = connected_from(&mut world, "fd77::1");
    for _ in 0..12 {
        for _ in 0..CONNECTIONS_MAX / 2 {
            come(&mut world);
        }
        serve(&mut world, client);
    }
    // A request in progress keeps its connection, however long it takes.
    let slow = world.request(client, 20_000_000, (0, 20_000_000), 0);
    world.run_for(30_000);
    for _ in 0..2 * CONNECTIONS_MAX {
        come(&mut world);
    }
    world.run_until_finished();
    assert_eq!(world.peers[client].transfers[&slow].reset, None);
    assert!(
        holders
            .iter()
            .all(|at| world.peers[*at].client.lost.is_some())
    );
    assert_eq!(world.stack.counters().quic_connections_refused, 0);
    world.close();
}

#[test]
fn clients_are_refused_while_no_connection_is_idle() {
    let mut random = steady;
    let mut world = crowded(&mut random);
    for _ in 0..CONNECTIONS_MAX {
        let client = world.connected();
        world.peers[client].client.request(b"idle\n");
    }
    world.run_for(100_000);
    let refused = world.connect(Cipher::Aes128Gcm, true);
    world.run_until(|world| world.peers[refused].client.lost.is_some());
    let counters = world.stack.counters();
    assert_eq!(counters.quic_connections_refused, 1);
    assert_eq!(counters.quic_idle_evictions, 0);
    world.close();
}

#[test]
fn spoofed_first_packets_evict_no_connection() {
    let mut random = steady;
    let mut world = crowded(&mut random);
    let holders: Vec<usize> = (0..CONNECTIONS_MAX).map(|_| world.connected()).collect();
    let frames = (0..100).flat_map(|number| world.spoofed(number));
    let frames: Vec<_> = frames.collect();
    world.turn(&frames);
    for _ in 0..10 {
        world.turn(&[]);
    }
    let counters = world.stack.counters();
    assert_eq!(counters.quic_idle_evictions, 0);
    assert!(counters.quic_retries_sent >= 100);
    serve(&mut world, holders[0]);
    world.close();
}
