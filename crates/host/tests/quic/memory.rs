//! The memory of QUIC connections: data that the application does not read.

use contract::tls::Cipher;

use crate::world::{Setup, World};

const BOUND: usize = 1 << 20;

/// More than fills the bound, though a crowd's windows are small.
const CLIENTS: usize = 100;

#[test]
fn a_source_whose_data_is_not_read_takes_no_more_than_the_bound() {
    let mut random = |below: u64| below / 2;
    let setup = Setup {
        memory_bytes_max: BOUND,
        ..Setup::default()
    };
    let mut world = World::with(setup, &mut random);
    // Another source.
    let reader = world.connect(Cipher::Aes128Gcm, true);
    world.run_until(|world| world.peers[reader].client.is_connected);
    let mut sent = 0;
    for _ in 0..CLIENTS {
        world.app.is_deaf = true;
        let client = world.connected();
        let stream = world.peers[client].client.open(b"idle ").expect("a stream");
        world.run_for(20_000);
        sent += world.peers[client].client.fill(stream);
        world.run_for(100_000);
        let bytes = world.stack.connection_memory_bytes();
        assert!(bytes <= BOUND, "{bytes}");
        world.app.is_deaf = false;
        world.request(reader, 5000, (0, 5000), 3000);
        world.run_until_finished();
    }
    assert!(sent > BOUND, "{sent}");
    let evictions = world.stack.counters().memory_evictions;
    assert!((1..CLIENTS as u64).contains(&evictions), "{evictions}");
    assert!(world.stack.connection_memory_bytes() > BOUND / 2);
    assert_eq!(world.peers[reader].client.lost, None);
}
