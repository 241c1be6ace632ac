//! What connections of QUIC cost the host stack in memory, counted at the allocator.

#[allow(dead_code, reason = "the tests of QUIC use the rest")]
#[path = "quic/app.rs"]
mod app;
#[allow(dead_code, reason = "the tests of QUIC use the rest")]
#[path = "quic/nic.rs"]
mod nic;
#[allow(dead_code, reason = "the tests of QUIC use the rest")]
#[path = "quic/opener.rs"]
mod opener;
#[allow(dead_code, reason = "the tests of QUIC use the rest")]
#[path = "quic/world.rs"]
mod world;

use host::QuicSettings;
use world::{Setup, World, settings};

const CONNECTIONS: usize = 200;

/// What the stack holds, in bytes.
fn bytes_with(connections: usize, early_data: bool) -> usize {
    let mut random = |below: u64| below / 2;
    let setup = Setup {
        settings: QuicSettings {
            early_data,
            ..settings()
        },
        ..Setup::default()
    };
    let mut world = World::with(setup, &mut random);
    for _ in 0..connections {
        let client = world.connected();
        world.request(client, 10_000, (0, 10_000), 0);
        world.run_until_finished();
    }
    // The last acknowledgments, and what these release.
    world.run_for(1_000_000);
    assert_eq!(world.stack.quic_connections().count(), connections);
    let stack = world.stack;
    let info = allocation_counter::measure(|| drop(stack));
    usize::try_from(-info.bytes_current).expect("it held more than it took")
}

fn bytes_of_each(early_data: bool) -> usize {
    let bytes = bytes_with(CONNECTIONS, early_data) - bytes_with(1, early_data);
    bytes / (CONNECTIONS - 1)
}

/// Each has done its handshake, and has been answered.
#[test]
fn an_idle_connection_takes_less_than_27_kb() {
    let each = bytes_of_each(false);
    println!("{each} bytes for each of {CONNECTIONS} idle connections");
    assert!(each < 27_000, "{each}");
}

/// Where clients may send early data, two of them for each connection, beside a table that is there
/// from the beginning.
#[test]
fn a_session_that_may_be_resumed_takes_less_than_200_bytes() {
    let each = (bytes_of_each(true) - bytes_of_each(false)) / 2;
    println!("{each} bytes for each session");
    assert!((50..200).contains(&each), "{each}");
}

/// What the stack holds after a flood of first packets, of which the last are taken in at once.
fn bytes_in_flood(first: u16, last: u16) -> isize {
    let mut random = |below: u64| below / 2;
    let mut world = World::new(&mut random);
    for number in 0..first {
        let frames = world.spoofed(number);
        world.turn(&frames);
    }
    let waiting: Vec<_> = (first..first + last)
        .flat_map(|it| world.spoofed(it))
        .collect();
    world.turn(&waiting);
    let counters = world.stack.counters();
    assert_eq!(counters.quic_arrivals_dropped > 0, last > 1024);
    let stack = world.stack;
    let info = allocation_counter::measure(|| drop(stack));
    -isize::try_from(info.bytes_current).expect("it is little")
}

/// Of clients that are not heard of again: 1,024 connections, and as many that wait for theirs.
#[test]
fn a_flood_of_first_packets_takes_less_than_40_mb() {
    let of_connections = bytes_in_flood(4000, 0);
    let all = bytes_in_flood(4000, 2000);
    println!("{all} bytes in a flood, {of_connections} of them of connections");
    assert!((25_000_000..35_000_000).contains(&of_connections));
    assert!((of_connections..40_000_000).contains(&all));
}
