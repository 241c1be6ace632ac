//! A flood of SYNs from forged sources, where a map steers SYNs to a NIC worker: what the host
//! stack does is the same, to the last count, as without it.

use std::collections::HashMap;
use std::net::SocketAddr;

use contract::channel::in_memory;
use host::app::{AppEvent, Application, Io, StreamId};
use host::{Counters, Link, OffloadPolicy, Stack, StackConfig};
use netdev::memory::{self, MemoryPort};
use netdev::steering::{Arrived, Decision, PacketType, SteeringMap, Target};
use netdev::{Frame, Offload, Port, Superpacket};
use nic::reader::memory::MemoryDisk;
use nic::{Progress, Worker};
use wire::arp;
use wire::frame::{TcpTemplate, parse_segment};
use wire::tcp::{Flags, Header, Options};

const SERVER: &str = "10.77.0.2:80";
const ROUTER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const MILLISECONDS: u64 = 100;
/// A client opens a connection in each tenth millisecond.
const CLIENTS: u64 = MILLISECONDS / 10;

/// Answers whatever it is asked.
#[derive(Default)]
struct Answers {
    given: usize,
}

impl Application for Answers {
    fn on_event(&mut self, io: &mut dyn Io, stream: StreamId, event: AppEvent) {
        if let AppEvent::Readable = event {
            let mut buffer = [0; 64];
            while io.read(stream, &mut buffer) > 0 {
                self.given += 1;
                assert_eq!(io.write(stream, b"answer"), 6);
            }
        }
    }
}

/// A host stack and a worker, on a link with a router.
struct Machine {
    stack: Stack,
    app: Answers,
    host_port: MemoryPort,
    from_host: MemoryPort,
    worker: Worker<MemoryPort>,
    to_worker: MemoryPort,
    map: SteeringMap,
    now_us: u64,
    steered: u64,
}

impl Machine {
    fn new() -> Machine {
        let link = memory::Link {
            macs: [[2, 0, 0, 0, 0, 1], ROUTER_MAC],
            queue_max: 1 << 16,
            ..memory::Link::default()
        };
        let (host_port, from_host) = memory::pair(link);
        let (mut worker_port, to_worker) = memory::pair(link);
        worker_port.set_target(Target::new(1));
        let (host, nic) = in_memory();
        let addresses = vec![("10.77.0.2".parse().unwrap(), 24)];
        let config = StackConfig {
            gateways: vec!["10.77.0.1".parse().unwrap()],
            setup_offload: OffloadPolicy::On,
            ..StackConfig::new(addresses, vec![80], [7; 16])
        };
        let mut stack = Stack::new(config, Link::of(&host_port), vec![host], 1_000_000);
        let map = SteeringMap::in_memory([1; 16]);
        stack.steer_with(map.clone());
        let config = nic::Config {
            cache_bytes: nic::Config::CACHE_BYTES_MIN,
            ..nic::Config::default()
        };
        let disk = Box::new(MemoryDisk::new());
        Machine {
            stack,
            app: Answers::default(),
            host_port,
            from_host,
            worker: Worker::new(&config, nic, worker_port, disk).unwrap(),
            to_worker,
            map,
            now_us: 1_000_000,
            steered: 0,
        }
    }

    /// A frame arrives from the link.
    fn hear(&mut self, bytes: &[u8]) {
        let arrived = Arrived {
            bytes,
            packet_type: PacketType::Host,
            has_vlan: false,
        };
        let own = ["10.77.0.2".parse().unwrap()];
        match self.map.decide(&own, &arrived) {
            Decision::Worker(_) => {
                self.steered += 1;
                let packet = Superpacket {
                    header: bytes,
                    payload: &[],
                    offload: Offload::None,
                };
                self.to_worker.send(&packet).unwrap();
            }
            _ => {
                let checksum_valid = false;
                let frame = Frame {
                    bytes,
                    checksum_valid,
                    segment_bytes: None,
                };
                self.stack.on_frame(self.now_us, frame);
            }
        }
    }

    /// A turn of both; returns what has left.
    fn turn(&mut self) -> Vec<Vec<u8>> {
        let now_us = self.now_us;
        while self.worker.turn(&|| now_us) == Ok(Progress::Busy) {}
        self.stack.on_channels(now_us, 1000).expect("a sane ring");
        self.stack.on_time(now_us);
        self.stack.serve(now_us, &mut self.host_port, &mut self.app);
        while self.worker.turn(&|| now_us) == Ok(Progress::Busy) {}
        let mut left = Vec::new();
        for far in [&mut self.from_host, &mut self.to_worker] {
            far.receive(usize::MAX, &mut |frame| left.push(frame.bytes.to_vec()))
                .unwrap();
        }
        left
    }
}

fn frame(from: SocketAddr, header: &Header, payload: &[u8]) -> Vec<u8> {
    let mac = [2, 0, 0, 0, 0, 1];
    TcpTemplate::new(ROUTER_MAC, mac, from, SERVER.parse().unwrap()).to_frame(header, payload)
}

fn syn(seq: u32) -> Header {
    Header {
        seq,
        flags: Flags::SYN,
        window: 64_000,
        options: Options {
            mss: Some(1460),
            sack_permitted: true,
            ..Options::default()
        },
        ..Header::default()
    }
}

/// Clients of 192.0.2/24 that open a connection each, ask, and read the answer.
#[derive(Default)]
struct Clients {
    answered: HashMap<SocketAddr, bool>,
}

impl Clients {
    /// What a client says to what has left for it.
    fn hear(&mut self, bytes: &[u8]) -> Option<Vec<u8>> {
        let packet = parse_segment(bytes, false)?;
        let segment = &packet.segment;
        let own = SocketAddr::new(packet.destination, segment.header.destination_port);
        let is_answered = self.answered.get_mut(&own)?;
        let header = Header {
            seq: segment.header.ack,
            ack: segment.header.seq.wrapping_add(1),
            flags: Flags::ACK | Flags::PSH,
            window: 64_000,
            ..Header::default()
        };
        if segment.header.flags.contains(Flags::SYN) {
            return Some(frame(own, &header, b"ask"));
        }
        *is_answered |= segment.payload == b"answer";
        None
    }
}

/// What the host has counted beside a flood of so many SYNs in each millisecond, what the worker
/// has, and how many answers clients have got.
fn run(syns_per_ms: u64) -> (Counters, nic::Counters, usize) {
    let mut machine = Machine::new();
    machine.turn();
    machine.now_us += 1_000;
    machine.turn();
    assert_eq!(machine.stack.syn_path(), Some("steered"));
    let mut clients = Clients::default();
    let mut number = 0u32;
    for ms in 0..MILLISECONDS + 20 {
        machine.now_us += 1_000;
        if ms < MILLISECONDS {
            for _ in 0..syns_per_ms {
                let [_, a, b, c] = number.wrapping_mul(0x9e37_79b1).to_be_bytes();
                let source = SocketAddr::from(([198, 18 + (a & 1), b, c], 1024 + u16::from(a)));
                machine.hear(&frame(source, &syn(number), &[]));
                number += 1;
            }
            if ms % 10 == 0 {
                let from = SocketAddr::from(([192, 0, 2, ms as u8], 4000));
                clients.answered.insert(from, false);
                machine.hear(&frame(from, &syn(7), &[]));
            }
        }
        for bytes in machine.turn() {
            if let Some(answer) = wire_answer(&mut clients, &bytes) {
                machine.hear(&answer);
            }
        }
    }
    let answered = clients.answered.values().filter(|answered| **answered);
    assert_eq!(machine.steered, MILLISECONDS * syns_per_ms + CLIENTS);
    let answered = answered.count();
    (
        machine.stack.counters(),
        machine.worker.counters(),
        answered,
    )
}

/// A client's answer, or the router's to a question for its address.
fn wire_answer(clients: &mut Clients, bytes: &[u8]) -> Option<Vec<u8>> {
    match wire::frame::parse(bytes, false) {
        Ok(wire::frame::Received::Arp(asked)) => {
            let reply = arp::Packet {
                operation: arp::Operation::Reply,
                sender_mac: ROUTER_MAC,
                sender: asked.target,
                target_mac: asked.sender_mac,
                target: asked.sender,
            };
            Some(reply.to_frame(asked.sender_mac))
        }
        _ => clients.hear(bytes),
    }
}

#[test]
fn what_the_host_does_is_the_same_with_no_flood_and_with_a_million_syns_in_a_second() {
    let (quiet, worker, answered) = run(0);
    assert_eq!(answered as u64, CLIENTS);
    assert_eq!(quiet.connections_set_up, CLIENTS);
    assert_eq!((quiet.syns_received, worker.syn_acks_sent), (0, CLIENTS));
    for syns_per_ms in [100, 1_000] {
        let (counters, worker, answered) = run(syns_per_ms);
        assert_eq!(format!("{counters:?}"), format!("{quiet:?}"));
        assert_eq!(answered as u64, CLIENTS);
        let syns = MILLISECONDS * syns_per_ms + CLIENTS;
        assert_eq!((worker.syns_received, worker.syn_acks_sent), (syns, syns));
        assert_eq!(worker.syns_handed_up, 0);
    }
}
