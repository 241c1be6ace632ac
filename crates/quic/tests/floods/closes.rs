//! How connections end while their congestion window is full, which bounds CONNECTION_CLOSE as
//! little as acknowledgments (RFC 9000 §10.2, RFC 9002 §7).

use contract::tls::Cipher;
use quic::{Arrival, CloseReason};
use tcp::Instant;

use crate::forger::{Forger, frame, stream};
use crate::support::{World, settings};

const PING: &[u8] = &[1];

/// A frame of no known type.
const UNKNOWN: &[u8] = &[0x21];

/// RFC 9000 §20.1
const FRAME_ENCODING_ERROR: u64 = 0x07;
const PROTOCOL_VIOLATION: u64 = 0x0a;

/// H3_NO_ERROR (RFC 9114 §8.1)
const NO_ERROR: u64 = 0x100;

/// Time for a datagram to leave the NIC stack and reach the client, in microseconds.
const PATH_US: u64 = 10_300;

fn steady(below: u64) -> u64 {
    below / 2
}

/// A client that downloads and has stopped acknowledging: the congestion window is full.
struct Stalled<'a> {
    world: World<'a>,
    forger: Forger,
}

impl<'a> Stalled<'a> {
    fn new(random: &'a mut dyn FnMut(u64) -> u64) -> Self {
        let mut world = World::new(&settings(), Cipher::Aes128Gcm, random);
        world.run_until(|world| world.client.is_confirmed());
        world.run_for(1_000_000);
        let forger = Forger::new(&world);
        let stream = world.request(1, 0, 50_000_000);
        world.run_until(|world| world.transfers[&stream].received.len() > 300_000);
        world.is_muzzled = true;
        world.run_for(50_000);
        let sealed_packets = world.sealed_packets;
        world.run_for(1000);
        assert_eq!(world.sealed_packets, sealed_packets, "the window is full");
        assert_eq!(world.closed, None);
        // Streams of a closed connection cannot be read.
        world.transfers.clear();
        Self { world, forger }
    }

    /// A packet of the client arrives, with these frames.
    fn send(&mut self, frames: &[u8]) {
        let datagram = self.forger.packet(frames);
        let arrival = Arrival {
            remote: self.world.client.local,
            local_ip: None,
            ecn: None,
        };
        let now = Instant::from_us(self.world.now_us);
        self.world.endpoint.on_datagram(now, &arrival, &datagram);
    }

    /// The same without a download.
    fn idle(random: &'a mut dyn FnMut(u64) -> u64) -> Self {
        let mut world = World::new(&settings(), Cipher::Aes128Gcm, random);
        world.run_until(|world| world.client.is_confirmed());
        world.run_for(1_000_000);
        let forger = Forger::new(&world);
        Self { world, forger }
    }

    fn close(&mut self) {
        let now = Instant::from_us(self.world.now_us);
        let server = self.world.server.expect("a connection");
        self.world.endpoint.close(now, server, NO_ERROR, b"leaving");
    }

    /// How many packets the server sends next. Of a closed connection, only CONNECTION_CLOSE.
    fn packets(&mut self) -> u64 {
        let before = self.world.sealed_packets;
        self.world.run_for(PATH_US);
        self.world.sealed_packets - before
    }

    /// Why the connection is over for the client, once a datagram has had the time to arrive.
    fn lost(&mut self) -> Option<String> {
        self.world.run_for(PATH_US);
        self.world.client.lost.clone()
    }
}

#[test]
fn a_full_window_holds_back_no_close_of_the_application() {
    let mut random = steady;
    let mut stalled = Stalled::new(&mut random);
    stalled.close();
    let lost = stalled.lost().expect("CONNECTION_CLOSE");
    assert!(lost.contains("leaving") && lost.contains("256"), "{lost}");
    stalled.world.drain();
}

#[test]
fn a_full_window_holds_back_no_close_for_an_error_of_the_client() {
    let mut random = steady;
    let mut stalled = Stalled::new(&mut random);
    stalled.send(UNKNOWN);
    let packets = stalled.packets();
    let closed = stalled.world.closed.clone();
    assert_eq!(packets, 1, "{closed:?}");
    let is_right = matches!(closed, Some(CloseReason::Protocol(FRAME_ENCODING_ERROR, _)));
    assert!(is_right, "{closed:?}");
}

#[test]
fn a_full_window_holds_back_no_close_for_a_flood() {
    let mut random = steady;
    let mut stalled = Stalled::new(&mut random);
    for fragment in 0..6000 {
        let (id, offset) = (4 + fragment / 1000 * 4, 1 + fragment % 1000 * 2);
        stalled.send(&stream(id, offset, b"x"));
    }
    let packets = stalled.packets();
    let closed = stalled.world.closed.clone();
    assert_eq!(packets, 1, "{closed:?}");
    let is_right = matches!(closed, Some(CloseReason::Protocol(PROTOCOL_VIOLATION, _)));
    assert!(is_right, "{closed:?}");
}

/// Packets that wait in the NIC stack hold back others with data.
#[test]
fn a_nic_stack_that_stands_still_holds_back_no_close() {
    let mut random = steady;
    let mut settings = settings();
    settings.limits.undeparted_bytes_max = 100_000;
    let mut world = World::new(&settings, Cipher::Aes128Gcm, &mut random);
    world.run_until(|world| world.client.is_confirmed());
    world.departure_delay_us = Some(3_600_000_000);
    world.request(1, 0, 50_000_000);
    world.run_for(1_000_000);
    let sends = world.queued_sends();
    let now = Instant::from_us(world.now_us);
    let server = world.server.expect("a connection");
    world.endpoint.close(now, server, NO_ERROR, b"leaving");
    world.run_for(0);
    assert_eq!(world.queued_sends(), sends + 1);
}

/// Covers: RFC 9000 §10.2.1
#[test]
fn packets_that_arrive_in_the_closing_state_are_answered_at_a_bounded_rate() {
    let mut random = steady;
    let mut stalled = Stalled::new(&mut random);
    stalled.world.weather.lost = 1000;
    stalled.close();
    assert_eq!(stalled.lost(), None, "it is lost");
    let sealed_packets = stalled.world.sealed_packets;
    for _ in 0..1000 {
        stalled.send(PING);
        stalled.world.run_for(0);
    }
    stalled.world.run_for(1000);
    let answers = stalled.world.sealed_packets - sealed_packets;
    assert!((1..=8).contains(&answers), "{answers}");
    assert_eq!(stalled.lost(), None, "they are lost as well");
    stalled.world.weather.lost = 0;
    stalled.send(PING);
    let lost = stalled.lost().expect("CONNECTION_CLOSE");
    assert!(lost.contains("leaving"), "{lost}");
}

/// No account has the data of closed connections.
#[test]
fn a_closed_connection_that_holds_much_data_is_forgotten_once_its_close_has_left() {
    for (held_bytes, is_kept) in [(1000, true), (40_000, false)] {
        for is_closed_by_client in [true, false] {
            let mut random = steady;
            let mut open = Stalled::idle(&mut random);
            for offset in (1..held_bytes).step_by(1000) {
                // The first byte is missing, so that nothing can be read.
                open.send(&stream(4, offset, &[b'x'; 1000]));
            }
            assert_eq!(open.world.endpoint.connections(), 1);
            match is_closed_by_client {
                true => open.send(&frame(0x1d, &[NO_ERROR, 0])),
                false => open.close(),
            }
            assert_eq!(open.packets(), 1, "CONNECTION_CLOSE");
            let connections = open.world.endpoint.connections();
            assert_eq!(connections, usize::from(is_kept), "{held_bytes}");
        }
    }
}
