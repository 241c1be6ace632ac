//! Packets that are lost with their NIC stack.

use contract::tls::Cipher;

use crate::support::{World, settings};

/// Longest gap after a new NIC stack begins, in microseconds: a round trip of the probe, and half a
/// round trip of the retransmission.
const GAP_US_MAX: u64 = 45_000;

/// Each NIC stack stands still until probe timeouts have grown to seconds, and sends nothing.
#[test]
fn lost_packets_are_sent_again_as_soon_as_the_next_nic_stack_begins() {
    let mut random = |below: u64| below / 100;
    let mut world = World::new(&settings(), Cipher::Aes128Gcm, &mut random);
    world.run_until(|world| world.client.is_confirmed());
    let stream = world.request(1, 0, 20_000_000);
    let got = |world: &World<'_>| world.transfers[&stream].received.len();
    for death in 1..=6 {
        world.run_until(|world| got(world) > death * 1_000_000);
        world.departure_delay_us = Some(3_600_000_000);
        world.run_for(5_000_000);
        world.replace_nic_with(0);
        world.departure_delay_us = None;
        let (begun_us, before) = (world.now_us, got(&world));
        world.run_until(|world| got(world) > before);
        let gap_us = world.now_us - begun_us;
        assert!(gap_us <= GAP_US_MAX, "death {death}: {gap_us} us");
    }
    world.run_until(|world| world.are_finished());
    assert_eq!(world.closed, None);
}

/// The end of a response is in flight, and nothing waits to be sent.
#[test]
fn the_end_of_a_response_is_sent_again_as_soon_as_the_next_nic_stack_begins() {
    let mut random = |below: u64| below / 100;
    let mut world = World::new(&settings(), Cipher::Aes128Gcm, &mut random);
    world.run_until(|world| world.client.is_confirmed());
    world.run_for(1_000_000);
    world.departure_delay_us = Some(3_600_000_000);
    world.request(1, 0, 3000);
    world.run_for(5_000_000);
    world.replace_nic_with(0);
    world.departure_delay_us = None;
    let begun_us = world.now_us;
    world.run_until(|world| world.are_finished());
    let gap_us = world.now_us - begun_us;
    assert!(gap_us <= GAP_US_MAX, "{gap_us} us");
}
