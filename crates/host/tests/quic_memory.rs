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

use world::World;

const CONNECTIONS: usize = 200;

/// What the stack holds, in bytes.
fn bytes_with(connections: usize) -> usize {
    let mut random = |below: u64| below / 2;
    let mut world = World::new(&mut random);
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

/// Each has done its handshake, and has been answered.
#[test]
fn an_idle_connection_takes_less_than_27_kb() {
    let bytes = bytes_with(CONNECTIONS) - bytes_with(1);
    let each = bytes / (CONNECTIONS - 1);
    println!("{each} bytes for each of {CONNECTIONS} idle connections");
    assert!(each < 27_000, "{each}");
}
