//! Clients and backends, a network that loses, repeats and delays, the host stack with its proxy,
//! and a NIC worker that dies: all of it from one seed.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::SocketAddr;

use contract::channel::in_memory;
use host::{Counters, Link, Stack, StackConfig};
use netdev::memory::{self, MemoryPort, pair};
use netdev::steering::{Arrived, Decision, PacketType, Protocol, SteeringMap, Target};
use netdev::{Frame, Port};
use nic::reader::memory::MemoryDisk;
use nic::{Config, Progress, Worker};
use tcp::{CloseReason, Connection, Instant};
use wire::arp;
use wire::ethernet;
use wire::frame::{self, Received, TcpPacket};
use wire::tcp::Flags;

use crate::forger::Forger;
use crate::peer::{Manners, Peer, config_of};
use crate::proxy::{Proxy, Seen};
use crate::random::Random;

const HOST: &str = "10.77.0.2:80";
const BACKEND: &str = "10.77.0.3:8080";
const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const BACKEND_MAC: [u8; 6] = [2, 0, 0, 0, 0, 3];

/// Virtual time after which a run has failed, in microseconds.
const END_US: u64 = 3_000_000_000;

/// What chance has decided.
#[derive(Debug)]
struct Scenario {
    loss_permille: u64,
    repeat_permille: u64,
    reorder_permille: u64,
    delay_us: [u64; 2],
    deaths: u64,
    /// The NIC stack stays away for so long each time, in microseconds.
    away_us: u64,
    /// Both peers of a pair agree in timestamps.
    timestamps_agree: bool,
    nic_table: usize,
    /// A map gives frames of splices to the NIC worker.
    is_steered: bool,
    /// The host hears of a death so much later, in microseconds: what arrives meanwhile for a dead
    /// port is lost.
    unnoticed_us: u64,
    /// Frames wait so long in the host's port, in microseconds.
    waits_us: u64,
}

/// Everything together.
pub(crate) struct World {
    random: Random,
    scenario: Scenario,
    now_us: u64,
    stack: Stack,
    host_port: MemoryPort,
    from_host: MemoryPort,
    proxy: Proxy,
    map: SteeringMap,
    worker: Option<Worker<MemoryPort>>,
    from_nic: Option<MemoryPort>,
    /// What the worker's port is called: another name for each.
    target: u32,
    noticed_us: u64,
    comes_back_us: u64,
    dies_us: u64,
    deaths_left: u64,
    peers: Vec<Peer>,
    /// Manners of the backends, by pair.
    backends: Vec<Manners>,
    flying: BinaryHeap<Reverse<(u64, u64, Vec<u8>)>>,
    /// Frames that have reached the host's port, and when it looks at them.
    waiting: VecDeque<(u64, Vec<u8>)>,
    frames: u64,
    steered: u64,
    /// An attacker's connections in the map.
    flows_of_others: usize,
    /// Sends frames to the host at each step.
    pub(crate) forger: Option<Forger>,
    /// The host's first sequence number to each side.
    first_seqs: [u32; 2],
}

/// What has become of a splice that was steered all the time.
pub(crate) struct Steered {
    /// What the host had counted when it began, and at its end.
    pub(crate) before: Counters,
    pub(crate) after: Counters,
    /// "Packet too big" that the NIC worker has not believed.
    pub(crate) too_big_ignored: u64,
    pub(crate) took_us: u64,
    pub(crate) forged: u64,
}

/// What has become of a run.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) seen: Seen,
    pub(crate) deaths: u64,
    pub(crate) whole: u64,
    /// Frames that have reached the NIC worker's own port.
    pub(crate) steered: u64,
}

impl World {
    /// Half of the seeds have a map.
    pub(crate) fn new(seed: u64) -> World {
        let mut random = Random::new(seed);
        let lossy = random.permille(500);
        let mut scenario = Scenario {
            loss_permille: if lossy { random.below(25) } else { 0 },
            repeat_permille: if lossy { random.below(30) } else { 0 },
            reorder_permille: if lossy { random.below(60) } else { 0 },
            delay_us: [50 + random.below(20_000), 50 + random.below(20_000)],
            deaths: random.pick(&[0, 0, 1, 3]),
            away_us: random.pick(&[0, 0, 200_000, 2_000_000, 20_000_000]),
            timestamps_agree: !random.permille(150),
            nic_table: random.pick(&[1000, 1000, 1000, 1]) as usize,
            is_steered: seed % 2 == 1,
            unnoticed_us: random.pick(&[0, 0, 5_000, 200_000]),
            waits_us: random.pick(&[0, 0, 2_000, 30_000]),
        };
        if scenario.nic_table == 1 {
            // A SPLICE that a dead worker has not taken counts as taken: a full table ends it.
            scenario.unnoticed_us = 0;
        }
        let mut world = World::of(scenario, random);
        world.invite();
        world
    }

    /// A client that sends so much to a backend over a splice that is steered, and a network that
    /// loses nothing.
    pub(crate) fn calm(seed: u64, bytes: u64) -> World {
        let scenario = Scenario {
            loss_permille: 0,
            repeat_permille: 0,
            reorder_permille: 0,
            delay_us: [1_000; 2],
            deaths: 0,
            away_us: 0,
            timestamps_agree: true,
            nic_table: 1000,
            is_steered: true,
            unnoticed_us: 0,
            waits_us: 0,
        };
        let mut world = World::of(scenario, Random::new(seed));
        world.proxy.returns_permille = 0;
        let manners = Manners {
            bytes,
            closes_first: true,
            resets_at: None,
            packet_bytes_max: 60_000,
            read_bytes_max: 1 << 20,
            pauses_at: None,
        };
        let backend = Manners {
            bytes: 0,
            closes_first: false,
            ..manners
        };
        let config = config_of(&mut world.random, true);
        world.invite_one(0, &config, [manners, backend]);
        world
    }

    /// An attacker's connections take all of the steering map.
    pub(crate) fn fill_the_map(&mut self) {
        let local: SocketAddr = HOST.parse().unwrap();
        while self.map.flows() < SteeringMap::FLOWS_MAX {
            let remote = SocketAddr::from((
                (self.random.next() as u32).to_be_bytes(),
                self.random.next() as u16,
            ));
            self.map.list_flow(Protocol::Tcp, local, remote, 1);
        }
        self.flows_of_others = self.map.flows();
    }

    /// Runs until the splice is steered, and then to the end.
    pub(crate) fn run_steered(mut self) -> Steered {
        while self.stack.flows_steered() == 0 || self.flies_to_the_host() {
            assert!(self.now_us < END_US, "no splice is steered");
            self.step();
        }
        let (before, begun_us) = (self.stack.counters(), self.now_us);
        while self.stack.usage().splices > 0 {
            assert!(self.now_us < END_US, "it does not end");
            self.forge();
            self.step();
        }
        let worker = self.worker.as_ref().expect("it does not die");
        let steered = Steered {
            before,
            after: self.stack.counters(),
            too_big_ignored: worker.counters().splice_mss_ignored,
            took_us: self.now_us - begun_us,
            forged: self.forger.as_ref().map_or(0, |forger| forger.sent),
        };
        assert_eq!(self.run().whole, 1);
        steered
    }

    /// The attacker sends a message about each of the connections.
    fn forge(&mut self) {
        let Some(forger) = &mut self.forger else {
            return;
        };
        let host: SocketAddr = HOST.parse().unwrap();
        let client = SocketAddr::new("10.77.0.1".parse().unwrap(), 40_000);
        let own = self.proxy.clients.keys().next();
        let own = SocketAddr::new(host.ip(), *own.expect("a connection to the backend"));
        let ways = [(host, client), (own, BACKEND.parse().unwrap())];
        for (way, first_seq) in ways.into_iter().zip(self.first_seqs) {
            let bytes = forger.frame(self.host_port.mac(), way, first_seq);
            let frame = Frame {
                bytes: &bytes,
                checksum_valid: true,
                segment_bytes: None,
            };
            self.stack.on_frame(self.now_us, frame);
        }
    }

    /// Frames are under way that the map does not give to the NIC worker.
    fn flies_to_the_host(&self) -> bool {
        self.flying.iter().any(|Reverse((_, _, bytes))| {
            bytes.starts_with(&self.host_port.mac()) && self.steered_to(bytes).is_none()
        })
    }

    fn step(&mut self) {
        self.turn();
        self.now_us = self.next_us().max(self.now_us + 20);
    }

    fn of(scenario: Scenario, mut random: Random) -> World {
        let (host_port, from_host) = pair(memory::Link::default());
        let addresses = vec![("10.77.0.2".parse().unwrap(), 24)];
        let config = StackConfig::new(addresses, vec![80], [random.next() as u8; 16]);
        let now_us = 1_000_000;
        let (channel, nic_channel) = in_memory();
        let mut stack = Stack::new(config, Link::of(&host_port), vec![channel], now_us);
        let map = SteeringMap::in_memory([random.next() as u8; 16]);
        if scenario.is_steered {
            stack.steer_with(map.clone());
        }
        let proxy = Proxy::new(BACKEND.parse().unwrap(), Random::new(random.next()));
        let mut world = World {
            dies_us: now_us + 10_000 + random.below(2_000_000),
            deaths_left: scenario.deaths,
            random,
            scenario,
            now_us,
            stack,
            host_port,
            from_host,
            proxy,
            map,
            worker: None,
            from_nic: None,
            target: 0,
            noticed_us: u64::MAX,
            comes_back_us: u64::MAX,
            peers: Vec::new(),
            backends: Vec::new(),
            flying: BinaryHeap::new(),
            waiting: VecDeque::new(),
            frames: 0,
            steered: 0,
            flows_of_others: 0,
            forger: None,
            first_seqs: [0; 2],
        };
        world.start_worker(nic_channel);
        world
    }

    fn start_worker(&mut self, channel: contract::channel::NicChannel) {
        let (mut port, from_nic) = pair(memory::Link::default());
        self.target += 1;
        if self.scenario.is_steered {
            port.set_target(Target::new(self.target));
        }
        let config = Config {
            cache_bytes: Config::CACHE_BYTES_MIN,
            spliced_max: self.scenario.nic_table,
            ..Config::default()
        };
        let worker = Worker::new(&config, channel, port, Box::new(MemoryDisk::new()));
        self.worker = Some(worker.expect("memory"));
        self.from_nic = Some(from_nic);
    }

    /// Clients begin to connect, and each will find a backend.
    fn invite(&mut self) {
        let pairs = 1 + self.random.below(4) as usize;
        for pair in 0..pairs {
            let timestamps = self.random.permille(700);
            let config = config_of(&mut self.random, timestamps);
            let mut manners = [(); 2].map(|()| self.manners());
            // One of the two has to.
            manners[1].closes_first |= !manners[0].closes_first;
            self.invite_one(pair, &config, manners);
        }
    }

    fn invite_one(&mut self, pair: usize, config: &tcp::Config, manners: [Manners; 2]) {
        let local = SocketAddr::new("10.77.0.1".parse().unwrap(), 40_000 + pair as u16);
        let remote = HOST.parse().unwrap();
        let (isn, offset) = (self.random.next() as u32, self.random.next() as u32);
        let now = Instant::from_us(self.now_us);
        let tcp = Connection::connect(config, local.port(), 80, isn, offset, now);
        let side = (pair, 0);
        let ways = (local, remote);
        self.peers
            .push(Peer::new(side, CLIENT_MAC, ways, tcp, manners[0]));
        self.backends.push(manners[1]);
    }

    fn manners(&mut self) -> Manners {
        let bytes = match self.random.below(4) {
            0 => self.random.below(200),
            _ => self.random.below(400_000),
        };
        let resets_at = self.random.permille(60).then(|| self.random.below(100_000));
        Manners {
            bytes,
            closes_first: self.random.permille(600),
            resets_at,
            packet_bytes_max: self.random.pick(&[1400, 20_000]),
            read_bytes_max: self.random.pick(&[1000, 8000, 100_000]) as usize,
            pauses_at: self
                .random
                .permille(300)
                .then(|| self.random.below(100_000)),
        }
    }

    /// Runs to the end.
    pub(crate) fn run(mut self) -> Report {
        while self.now_us < END_US {
            self.turn();
            let is_over = self.peers.iter().all(Peer::is_done) && self.proxy.is_empty();
            if is_over && self.stack.usage().splices == 0 {
                return self.judge();
            }
            self.now_us = self.next_us().max(self.now_us + 20);
        }
        panic!(
            "not over: {:?} {:?}\n{:?}",
            self.proxy.seen,
            self.scenario,
            self.peers
                .iter()
                .map(|it| (it.sent, it.received, it.tcp.state(), it.closed))
                .collect::<Vec<_>>()
        );
    }

    fn turn(&mut self) {
        self.live_and_die();
        while self
            .flying
            .peek()
            .is_some_and(|Reverse((at, ..))| *at <= self.now_us)
        {
            if let Some(Reverse((_, _, bytes))) = self.flying.pop() {
                self.deliver(&bytes);
            }
        }
        let now_us = self.now_us;
        while let Some((_, bytes)) = self.waiting.pop_front_if(|(at_us, _)| *at_us <= now_us) {
            let frame = Frame {
                bytes: &bytes,
                checksum_valid: true,
                segment_bytes: None,
            };
            self.stack.on_frame(now_us, frame);
        }
        for at in 0..self.peers.len() {
            let host_mac = self.host_port.mac();
            for frame in self.peers[at].turn(self.now_us, host_mac) {
                self.fly(self.scenario.delay_us[self.peers[at].side], frame);
            }
        }
        self.stack
            .on_channels(now_us, usize::MAX)
            .expect("a sane ring");
        self.stack.on_time(now_us);
        self.stack
            .serve(now_us, &mut self.host_port, &mut self.proxy);
        if let Some(worker) = &mut self.worker {
            while worker.turn(&|| now_us).expect("a sane ring") == Progress::Busy {}
            self.stack
                .on_channels(now_us, usize::MAX)
                .expect("a sane ring");
            self.stack
                .serve(now_us, &mut self.host_port, &mut self.proxy);
        }
        self.collect();
    }

    /// What the stacks have sent goes to the peers.
    fn collect(&mut self) {
        let mut frames = Vec::new();
        let mut take = |frame: Frame<'_>| frames.push(frame.bytes.to_vec());
        self.from_host.receive(usize::MAX, &mut take).unwrap();
        if let Some(port) = &mut self.from_nic {
            port.receive(usize::MAX, &mut take).unwrap();
        }
        for frame in frames {
            let checksum_valid = false;
            match frame::parse(&frame, checksum_valid).expect("the stacks send sane frames") {
                Received::Tcp(packet) => {
                    let is_backend =
                        packet.destination == "10.77.0.3".parse::<std::net::IpAddr>().unwrap();
                    let header = packet.segment.header;
                    if header.flags.contains(Flags::SYN) {
                        self.first_seqs[usize::from(is_backend)] = header.seq;
                    }
                    self.fly(self.scenario.delay_us[usize::from(is_backend)], frame);
                }
                Received::Arp(request) if request.operation == arp::Operation::Request => {
                    self.answer(&request);
                }
                _ => {}
            }
        }
    }

    fn answer(&mut self, request: &arp::Packet) {
        let mac = match request.target.octets() {
            [10, 77, 0, 1] => CLIENT_MAC,
            [10, 77, 0, 3] => BACKEND_MAC,
            _ => return,
        };
        let reply = arp::Packet {
            operation: arp::Operation::Reply,
            sender_mac: mac,
            sender: request.target,
            target_mac: request.sender_mac,
            target: request.sender,
        };
        let frame = reply.to_frame(request.sender_mac);
        self.frames += 1;
        let key = (self.now_us + 50, self.frames, frame);
        self.flying.push(Reverse(key));
    }

    /// Puts a frame on its way, if it is not lost.
    fn fly(&mut self, delay_us: u64, frame: Vec<u8>) {
        let copies = 1 + u64::from(self.random.permille(self.scenario.repeat_permille));
        for _ in 0..copies {
            if self.random.permille(self.scenario.loss_permille) {
                continue;
            }
            let late_us = match self.random.permille(self.scenario.reorder_permille) {
                true => self.random.below(5_000),
                false => 0,
            };
            self.frames += 1;
            let key = (self.now_us + delay_us + late_us, self.frames, frame.clone());
            self.flying.push(Reverse(key));
        }
    }

    fn deliver(&mut self, bytes: &[u8]) {
        let (link, _) = ethernet::Header::parse(bytes).expect("an Ethernet frame");
        if link.destination == self.host_port.mac() {
            if let Some(target) = self.steered_to(bytes) {
                let is_there = self.worker.is_some() && target.get() == self.target;
                if let (Some(port), true) = (&mut self.from_nic, is_there) {
                    self.steered += 1;
                    port.put(bytes);
                }
                return;
            }
            let at_us = self.now_us + self.random.below(self.scenario.waits_us + 1);
            let last_us = self.waiting.back().map_or(0, |(at_us, _)| *at_us);
            let waiting = (at_us.max(last_us), bytes.to_vec());
            return self.waiting.push_back(waiting);
        }
        let Some(packet) = frame::parse_segment(bytes, true) else {
            return;
        };
        let header = &packet.segment.header;
        let ends = (
            SocketAddr::new(packet.destination, header.destination_port),
            SocketAddr::new(packet.source, header.source_port),
        );
        let now = Instant::from_us(self.now_us);
        let found = self
            .peers
            .iter_mut()
            .find(|it| (it.local, it.remote) == ends);
        match found {
            Some(peer) => peer.on_packet(now, &packet),
            None => self.accept(now, ends, &packet),
        }
    }

    /// The worker's port that a packet filter gives a frame to.
    fn steered_to(&self, bytes: &[u8]) -> Option<Target> {
        let arrived = Arrived {
            bytes,
            packet_type: PacketType::Host,
            has_vlan: false,
        };
        let own = ["10.77.0.2".parse().unwrap()];
        match self.map.decide(&own, &arrived) {
            Decision::Worker(target) => Some(target),
            Decision::Host | Decision::Drop => None,
        }
    }

    /// A connection reaches a backend.
    fn accept(&mut self, now: Instant, ends: (SocketAddr, SocketAddr), packet: &TcpPacket<'_>) {
        if ends.0 != BACKEND.parse().unwrap() {
            return;
        }
        let client_has = |pair: usize, peers: &[Peer]| {
            peers
                .iter()
                .find(|it| (it.pair, it.side) == (pair, 0))
                .is_some_and(|it| it.tcp.has_timestamps())
        };
        let client = self.proxy.clients.get(&ends.1.port());
        let Some(pair) = client.map(|port| usize::from(port - 40_000)) else {
            return;
        };
        let manners = self.backends[pair];
        let timestamps = client_has(pair, &self.peers) == self.scenario.timestamps_agree;
        let config = config_of(&mut self.random, timestamps);
        let (isn, offset) = (self.random.next() as u32, self.random.next() as u32);
        if let Some(tcp) = Connection::accept(&config, &packet.segment, isn, offset, now) {
            self.peers
                .push(Peer::new((pair, 1), BACKEND_MAC, ends, tcp, manners));
        }
    }

    /// The NIC stack dies, and another one takes its place.
    fn live_and_die(&mut self) {
        let now_us = self.now_us;
        if now_us >= self.dies_us && self.deaths_left > 0 && self.worker.is_some() {
            self.deaths_left -= 1;
            self.dies_us = now_us + self.random.below(4_000_000);
            // What it has sent is on the wire.
            self.collect();
            self.worker = None;
            self.from_nic = None;
            self.noticed_us = now_us + self.random.below(self.scenario.unnoticed_us + 1);
        }
        if now_us >= self.noticed_us {
            self.noticed_us = u64::MAX;
            self.stack.on_nic_lost(now_us, 0);
            self.comes_back_us = now_us + self.random.below(self.scenario.away_us + 1);
        }
        if now_us >= self.comes_back_us {
            self.comes_back_us = u64::MAX;
            let (channel, nic_channel) = in_memory();
            self.stack
                .on_nic_come(now_us, 0, vec![channel])
                .expect("as many workers");
            self.start_worker(nic_channel);
        }
    }

    fn next_us(&self) -> u64 {
        let peers = self.peers.iter().map(|peer| peer.next_us(self.now_us));
        let flying = self.flying.peek().map(|Reverse((at, ..))| *at);
        let waiting = self.waiting.front().map(|(at_us, _)| *at_us);
        let worker = self.worker.as_ref().and_then(Worker::next_timeout_us);
        let dies = (self.deaths_left > 0).then_some(self.dies_us.max(self.now_us + 1000));
        peers
            .chain(flying)
            .chain(waiting)
            .chain(worker)
            .chain(self.stack.next_timeout_us())
            .chain([self.comes_back_us, self.noticed_us])
            .chain(dies)
            .min()
            .unwrap_or(u64::MAX)
    }

    /// What must hold at the end.
    fn judge(&self) -> Report {
        let mut whole = 0;
        for client in self.peers.iter().filter(|it| it.side == 0) {
            let backend = self
                .peers
                .iter()
                .find(|it| (it.pair, it.side) == (client.pair, 1));
            let Some(backend) = backend else {
                continue;
            };
            let finished = Some(CloseReason::Finished);
            let is_whole = client.closed == finished && backend.closed == finished;
            let resets = [client, backend]
                .iter()
                .any(|it| it.manners.resets_at.is_some());
            let may_break = resets || self.scenario.away_us > 5_000_000;
            assert!(
                is_whole || may_break,
                "pair {}: {:?} {:?} {:?}",
                client.pair,
                client.closed,
                backend.closed,
                self.scenario
            );
            if is_whole {
                assert_eq!(
                    client.received, backend.manners.bytes,
                    "pair {}",
                    client.pair
                );
                assert_eq!(
                    backend.received, client.manners.bytes,
                    "pair {}",
                    client.pair
                );
                whole += 1;
            }
        }
        let counters = self.stack.counters();
        assert_eq!(counters.events_invalid, 0, "{counters:?}");
        let flows = self.map.flows();
        assert_eq!(flows, self.flows_of_others, "no splice is left in the map");
        let seen = self.proxy.seen;
        Report {
            seen,
            deaths: self.scenario.deaths - self.deaths_left,
            whole,
            steered: self.steered,
        }
    }
}
