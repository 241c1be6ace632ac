//! An HTTP/3 server and a client, both stacks and the path between them, in virtual time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::SocketAddr;
use std::sync::Arc;

use contract::channel;
use contract::tls::{Cipher, Suite, Version};
use fakes::http3::{self, take_varint};
use fakes::quic_client::{QuicClient, Received};
use fakes::site::{Identity, Site, UNIX_TIME};
use host::{Link, QuicListener, QuicSettings, Stack, StackConfig};
use netdev::memory::{self, MemoryPort, pair};
use netdev::{Offload, Port, Superpacket};
use nic::reader::memory::MemoryDisk;
use nic::{Progress, Worker};
use server::Server;
use wire::arp;
use wire::datagram::{self, DatagramHeader};
use wire::frame::{self, Received as Frame};
use wire::ip::Ecn;

const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// One-way delay of a packet, in microseconds.
const WAY_US: u64 = 10_000;

/// A packet in flight: to the client, or to the server.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Packet {
    ToClient(Vec<u8>),
    ToServer(Vec<u8>),
}

pub(crate) struct World {
    pub(crate) now_us: u64,
    pub(crate) server: Server,
    stack: Stack,
    port: MemoryPort,
    wire: MemoryPort,
    worker: Worker<MemoryPort>,
    worker_wire: MemoryPort,
    pub(crate) client: QuicClient,
    /// Packets sent to the client.
    pub(crate) sent: u64,
    /// Packets to the client are lost until then.
    pub(crate) deaf_until_us: u64,
    control: Option<u64>,
    control_bytes: Vec<u8>,
    /// Bytes of responses, by request stream, and error codes of reset streams.
    pub(crate) responses: BTreeMap<u64, Vec<u8>>,
    pub(crate) resets: BTreeMap<u64, u64>,
    asked: Vec<u64>,
    later: BinaryHeap<Reverse<(u64, u64, Packet)>>,
    order: u64,
}

fn addresses() -> (SocketAddr, SocketAddr) {
    let address = |text: &str| text.parse().expect("an address");
    (address("10.77.0.1:5000"), address("10.77.0.2:443"))
}

impl World {
    /// Connects a client to a server with a file `a`; the client has sent its SETTINGS.
    pub(crate) fn new(config: server::Config) -> Self {
        let site = Site::new(
            &[Identity::ecdsa(&["localhost"])],
            &tls::Settings::default(),
        );
        let link = memory::Link {
            macs: [[2, 0, 0, 0, 0, 1], CLIENT_MAC],
            ..memory::Link::default()
        };
        let (port, wire) = pair(link);
        let (worker_port, worker_wire) = pair(link);
        let own = vec![(addresses().1.ip(), 24)];
        let now_us = 1_000_000;
        let config_of_stack = StackConfig::new(own, vec![80], [7; 16]);
        let mut stack = Stack::awaiting(config_of_stack, Link::of(&port), 1, now_us);
        stack.set_unix_time(UNIX_TIME);
        let listener = QuicListener {
            port: addresses().1.port(),
            certificates: Arc::clone(&site.certificates),
            settings: QuicSettings::default(),
        };
        assert_eq!(stack.serve_quic(now_us, &listener), Ok(()));
        let (host_end, nic_end) = channel::in_memory();
        let come = stack.on_nic_come(now_us, 0, vec![host_end]);
        assert!(come.is_ok());
        let disk = MemoryDisk::new();
        disk.put(b"a", vec![7; 1000]);
        let of_nic = nic::Config::default();
        let worker = Worker::new(&of_nic, nic_end, worker_port, Box::new(disk));
        let suite = Suite {
            version: Version::Tls13,
            cipher: Cipher::Aes128Gcm,
        };
        let client = QuicClient::connect(site.client_config(suite), b"h3", addresses(), 1);
        let mut world = World {
            now_us,
            server: Server::new(config),
            stack,
            port,
            wire,
            worker: worker.expect("memory"),
            worker_wire,
            client,
            sent: 0,
            deaf_until_us: 0,
            control: None,
            control_bytes: Vec::new(),
            responses: BTreeMap::new(),
            resets: BTreeMap::new(),
            asked: Vec::new(),
            later: BinaryHeap::new(),
            order: 0,
        };
        world.run_until(|world| world.client.is_connected && world.control.is_some());
        let control = world.client.open_unidirectional().expect("a stream");
        let settings = [&[0][..], &http3::frame(http3::SETTINGS, [])].concat();
        world.client.send(control, &settings);
        world
    }

    /// Requests the file; returns the stream.
    pub(crate) fn ask(&mut self) -> u64 {
        let request = http3::headers(&[
            (":method", "GET"),
            (":scheme", "https"),
            (":authority", "localhost"),
            (":path", "/a"),
        ]);
        let stream = self.client.request(&request).expect("a stream");
        self.asked.push(stream);
        stream
    }

    /// IDs of the GOAWAY frames that the client received while connected.
    pub(crate) fn goaways(&self) -> Vec<u64> {
        let mut rest = &self.control_bytes[..];
        let mut ids = Vec::new();
        if !rest.is_empty() {
            assert_eq!(take_varint(&mut rest), 0, "a control stream");
        }
        while !rest.is_empty() {
            let kind = take_varint(&mut rest);
            let length = take_varint(&mut rest) as usize;
            let (mut payload, behind) = rest.split_at(length);
            if kind == http3::GOAWAY {
                ids.push(take_varint(&mut payload));
            }
            rest = behind;
        }
        ids
    }

    /// Runs until the condition holds. Panics if nothing is scheduled, or after ten minutes.
    pub(crate) fn run_until(&mut self, mut holds: impl FnMut(&mut Self) -> bool) {
        loop {
            self.serve();
            if holds(self) {
                return;
            }
            let at_us = self.now_us;
            let lost = self.client.lost.clone();
            assert!(at_us < 600_000_000, "it takes too long: {lost:?}");
            let due = self.later.peek().map(|Reverse((at, ..))| *at);
            let times = [
                due,
                self.stack.next_timeout_us(),
                self.worker.next_timeout_us(),
                self.client.next_timeout_us(),
            ];
            let next = times.into_iter().flatten().min();
            let next = next.unwrap_or_else(|| panic!("nothing is to happen: {lost:?}"));
            self.now_us = self.now_us.max(next);
            self.step();
        }
    }

    fn step(&mut self) {
        while let Some(Reverse((at, ..))) = self.later.peek()
            && *at <= self.now_us
        {
            match self.later.pop() {
                Some(Reverse((.., Packet::ToClient(payload)))) => {
                    self.client.on_datagram(self.now_us, &payload, false);
                    self.receive();
                }
                Some(Reverse((.., Packet::ToServer(payload)))) => self.inject(&payload),
                None => {}
            }
        }
        if self
            .client
            .next_timeout_us()
            .is_some_and(|at| at <= self.now_us)
        {
            self.client.on_timeout(self.now_us);
        }
    }

    /// Advances all parts until they are idle.
    fn serve(&mut self) {
        loop {
            let (stack, now_us) = (&mut self.stack, self.now_us);
            let mut count = 0;
            let mut take = |frame: netdev::Frame<'_>| {
                count += 1;
                stack.on_frame(now_us, frame);
            };
            self.port.receive(usize::MAX, &mut take).expect("memory");
            count += stack.on_channels(now_us, usize::MAX).expect("sane rings");
            stack.on_time(now_us);
            let mut is_busy = stack.serve(now_us, &mut self.port, &mut self.server);
            while self.worker.turn(&|| now_us) == Ok(Progress::Busy) {
                is_busy = true;
            }
            let mut frames = Vec::new();
            for wire in [&mut self.wire, &mut self.worker_wire] {
                let mut take = |frame: netdev::Frame<'_>| frames.push(frame.bytes.to_vec());
                wire.receive(usize::MAX, &mut take).expect("memory");
            }
            frames.iter().for_each(|frame| self.leave(frame));
            while let Some(payload) = self.client.poll_datagram(self.now_us) {
                self.later(Packet::ToServer(payload));
            }
            if !is_busy && count + frames.len() == 0 {
                return;
            }
        }
    }

    /// Takes a frame that leaves the server's machine.
    fn leave(&mut self, bytes: &[u8]) {
        if let Some(packet) = datagram::parse(bytes, false).expect("sane frames") {
            self.sent += 1;
            if self.now_us >= self.deaf_until_us {
                self.later(Packet::ToClient(packet.payload.to_vec()));
            }
        } else if let Frame::Arp(request) = frame::parse(bytes, false).expect("sane frames")
            && request.operation == arp::Operation::Request
        {
            let reply = arp::Packet {
                operation: arp::Operation::Reply,
                sender_mac: CLIENT_MAC,
                sender: request.target,
                target_mac: request.sender_mac,
                target: request.sender,
            };
            self.arrive(&reply.to_frame(request.sender_mac));
        }
    }

    fn inject(&mut self, payload: &[u8]) {
        let header = DatagramHeader {
            source_mac: CLIENT_MAC,
            destination_mac: self.port.mac(),
            source: addresses().0,
            destination: addresses().1,
            ecn: Ecn::NotEct,
        };
        let frame = header.to_frame(payload).expect("one family");
        self.arrive(&frame);
    }

    /// Delivers a frame to the server's machine.
    fn arrive(&mut self, frame: &[u8]) {
        let packet = Superpacket {
            header: frame,
            payload: &[],
            offload: Offload::None,
        };
        self.wire.send(&packet).expect("memory");
    }

    fn later(&mut self, packet: Packet) {
        self.order += 1;
        let at_us = self.now_us + WAY_US;
        self.later.push(Reverse((at_us, self.order, packet)));
    }

    pub(crate) fn lose_what_is_on_its_way(&mut self) {
        self.later.clear();
    }

    /// The client reads available data, unless its connection is over.
    fn receive(&mut self) {
        if self.client.lost.is_some() {
            return;
        }
        self.control = self.control.or_else(|| self.client.accept());
        if let Some(control) = self.control {
            while let Received::Bytes(bytes) = self.client.receive(control) {
                self.control_bytes.extend(bytes);
            }
        }
        let (client, responses, resets) = (&mut self.client, &mut self.responses, &mut self.resets);
        self.asked.retain(|&stream| {
            loop {
                match client.receive(stream) {
                    Received::Bytes(bytes) => responses.entry(stream).or_default().extend(bytes),
                    Received::Blocked => return true,
                    Received::Finished => return false,
                    Received::Reset(code) => {
                        resets.insert(stream, code);
                        return false;
                    }
                }
            }
        });
    }

    /// Requests without a response.
    pub(crate) fn open(&self) -> usize {
        self.asked.len()
    }
}
