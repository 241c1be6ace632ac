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
