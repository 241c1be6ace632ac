//! A flood by a client whose handshake is complete, while another client downloads: what it costs.

use std::net::SocketAddr;

use contract::tls::Cipher;
use quic::{Arrival, CloseReason};
use tcp::Instant;

use crate::forger::{Forger, ack};
use crate::support::{World, settings};

/// Datagrams that arrive at once.
const TURN_DATAGRAMS: u64 = 64;

/// Between turns, in microseconds.
const TURN_US: u64 = 1000;

/// What the other client downloads, in bytes.
const DOWNLOAD_BYTES: u64 = 1_000_000;

/// A connection that a client floods, beside one that downloads.
pub(crate) struct Scene<'a> {
    pub(crate) world: World<'a>,
    pub(crate) forger: Forger,
    pub(crate) from: SocketAddr,
    pub(crate) received_datagrams: u64,
    pub(crate) received_bytes: u64,
    /// What was allocated while datagrams were taken in: a measure of the work.
    pub(crate) allocated_bytes: u64,
}

/// What a flood has cost.
#[derive(Debug)]
pub(crate) struct Cost {
    pub(crate) received_datagrams: u64,
    pub(crate) received_bytes: u64,
    pub(crate) sent_packets: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) allocated_bytes: u64,
    pub(crate) addresses: usize,
    /// What the endpoint holds.
    pub(crate) held_bytes: i64,
    pub(crate) keys_max: usize,
    pub(crate) closed: Option<CloseReason>,
}

impl<'a> Scene<'a> {
    pub(crate) fn new(random: &'a mut dyn FnMut(u64) -> u64) -> Self {
        let mut world = World::new(&settings(), Cipher::Aes128Gcm, random);
        world.run_until(|world| world.client.is_confirmed());
        world.run_for(1_000_000);
        let forger = Forger::new(&world);
        let from = world.client.local;
        world.connect_beside();
        world.run_until(|world| world.client.is_confirmed());
        world.request(1, 0, DOWNLOAD_BYTES);
        Self {
            world,
            forger,
            from,
            received_datagrams: 0,
            received_bytes: 0,
            allocated_bytes: 0,
        }
    }

    /// A datagram of the flood arrives, with these frames.
    pub(crate) fn send(&mut self, frames: &[u8]) {
        let datagram = self.forger.packet(frames);
        self.send_datagram(&datagram);
    }

    pub(crate) fn send_datagram(&mut self, datagram: &[u8]) {
        self.received_datagrams += 1;
        self.received_bytes += datagram.len() as u64;
        let arrival = Arrival {
            remote: self.from,
            local_ip: None,
            ecn: None,
        };
        let now = Instant::from_us(self.world.now_us);
        let endpoint = &mut self.world.endpoint;
        let info = allocation_counter::measure(|| endpoint.on_datagram(now, &arrival, datagram));
        self.allocated_bytes += info.bytes_total;
        if self.received_datagrams.is_multiple_of(TURN_DATAGRAMS) {
            self.world.run_for(TURN_US);
        }
    }

    /// The same; the server answers it before anything else happens.
    pub(crate) fn send_alone(&mut self, frames: &[u8]) {
        self.send(frames);
        self.world.run_for(0);
    }

    /// A second passes. The other client asks for something before it has been idle for too long.
    pub(crate) fn pass_a_second(&mut self) {
        if self.received_datagrams.is_multiple_of(16) {
            self.world.request(1, 0, 1);
        }
        self.world.run_for(1_000_000);
    }

    /// Acknowledges what the server has sent.
    pub(crate) fn acknowledge(&mut self) {
        let left_behind = self.world.left_behind.as_mut();
        let numbers = std::mem::take(&mut left_behind.expect("a connection").numbers);
        if !numbers.is_empty() {
            self.send(&ack(&numbers));
        }
    }

    /// Sends packets until the server closes the connection: how many.
    pub(crate) fn until_closed(&mut self, most: u64, frames: impl Fn(u64) -> Vec<u8>) -> u64 {
        for count in 0..most {
            if self.closed().is_some() {
                return count;
            }
            self.send_alone(&frames(count));
        }
        panic!("there is no bound");
    }

    /// Why the server has closed the connection, if it has.
    pub(crate) fn closed(&self) -> Option<&CloseReason> {
        self.world.left_behind.as_ref()?.closed.as_ref()
    }

    /// The other client gets its file, every byte of it.
    pub(crate) fn end(mut self) -> Cost {
        self.world.run_until(|world| world.are_finished());
        self.world.run_for(100_000);
        assert_eq!(self.world.closed, None);
        assert_eq!(self.world.endpoint.undescribable(), 0);
        let left_behind = self.world.left_behind.expect("a connection");
        let endpoint = self.world.endpoint;
        let held = allocation_counter::measure(|| drop(endpoint));
        Cost {
            received_datagrams: self.received_datagrams,
            received_bytes: self.received_bytes,
            sent_packets: left_behind.packets,
            sent_bytes: left_behind.bytes_to.values().sum(),
            addresses: left_behind.bytes_to.len(),
            allocated_bytes: self.allocated_bytes,
            held_bytes: -held.bytes_current,
            keys_max: left_behind.keys_max,
            closed: left_behind.closed,
        }
    }
}

/// The cost of a flood. What the endpoint holds is counted beyond what it holds without one.
pub(crate) fn cost(flood: impl FnOnce(&mut Scene<'_>)) -> Cost {
    let mut random = |below: u64| below / 2;
    let idle = Scene::new(&mut random).end();
    let mut scene = Scene::new(&mut random);
    flood(&mut scene);
    let mut cost = scene.end();
    cost.held_bytes -= idle.held_bytes;
    println!("{cost:?}");
    cost
}
