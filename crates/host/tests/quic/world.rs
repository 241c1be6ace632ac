//! Clients, a host stack, NIC workers and the network, in virtual time.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use contract::Event;
use contract::channel::{Capacity, HostChannel, in_memory_of};
use contract::tls::{Cipher, Suite, Version};
use fakes::content::content;
use fakes::quic_client::{QuicClient, Received, Setup as ClientSetup, TlsConfig};
use fakes::site::{Identity, Site, UNIX_TIME};
use fakes::weather::Weather;
use host::{
    Admission, Changeable, Link, QuicListener, QuicReceive, QuicSecret, QuicSettings, Stack,
    StackConfig,
};
use netdev::memory::{self, MemoryPort, pair};
use netdev::steering::{Arrived, Decision, PacketType, SteeringMap, Target};
use netdev::{Offload, Port, Superpacket};
use wire::datagram::{self, DatagramHeader};
use wire::frame::{self, Received as Frame};
use wire::icmpv6::{self, Neighbor};
use wire::{arp, ip};

use crate::app::{App, real_byte};
use crate::nic::{Leaving, Nic, Oracle};

pub(crate) const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
pub(crate) const PORT: u16 = 443;

/// So many datagrams of clients are overheard.
const OVERHEARD_MAX: usize = 32;

/// What happens later.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Later {
    AtServer(SocketAddr, SocketAddr, Vec<u8>),
    AtClient(SocketAddr, SocketAddr, Vec<u8>),
    /// A worker, in this life of it, carries out the next thing.
    Works(usize, u64),
}

/// What a client gets on a stream.
pub(crate) struct Transfer {
    pub(crate) size: u64,
    offset: u64,
    len: u64,
    real: usize,
    /// Bytes that have come.
    pub(crate) got: u64,
    pub(crate) is_finished: bool,
    pub(crate) reset: Option<u64>,
}

impl Transfer {
    fn byte(&self, at: u64) -> u8 {
        match at {
            0 => b'o',
            1 => b'k',
            _ if at < 2 + self.len => content(self.size, self.offset + at - 2),
            _ => real_byte(self.real - (at - 2 - self.len) as usize),
        }
    }

    fn bytes(&self) -> u64 {
        2 + self.len + self.real as u64
    }
}

pub(crate) struct Peer {
    pub(crate) client: QuicClient,
    /// With the sessions that it may resume.
    config: TlsConfig,
    pub(crate) server: SocketAddr,
    pub(crate) transfers: BTreeMap<u64, Transfer>,
}

pub(crate) struct World<'a> {
    pub(crate) random: &'a mut dyn FnMut(u64) -> u64,
    pub(crate) weather: Weather,
    pub(crate) now_us: u64,
    pub(crate) stack: Stack,
    pub(crate) port: MemoryPort,
    pub(crate) wire: MemoryPort,
    pub(crate) app: App,
    pub(crate) nics: Vec<Nic>,
    lives: Vec<u64>,
    /// How many NIC stacks the workers are of.
    stacks: usize,
    pub(crate) oracle: Rc<RefCell<Oracle>>,
    pub(crate) peers: Vec<Peer>,
    pub(crate) site: Site,
    capacity: Capacity,
    /// ICMP messages to the clients' machine.
    pub(crate) icmp: Vec<Vec<u8>>,
    /// Datagrams for no client.
    pub(crate) strays: Vec<(SocketAddr, Vec<u8>)>,
    /// Requests for the clients' link address are not answered.
    pub(crate) hides: bool,
    /// Datagrams whose headers carry this destination have left a NIC worker.
    pub(crate) left_by_nic: u64,
    /// From which addresses they have left, in order, and how many each time.
    pub(crate) left_from: Vec<(SocketAddr, u64)>,
    /// Reports of departures are lost with the worker, this often of four times.
    pub(crate) unreported: u64,
    /// What clients have sent last, and from where: for those who forge.
    pub(crate) overheard: VecDeque<(SocketAddr, Vec<u8>)>,
    /// What the stack does is counted by a benchmark.
    pub(crate) is_counted: bool,
    later: BinaryHeap<Reverse<(u64, u64, Later)>>,
    order: u64,
    /// Says whose frames are.
    map: Option<SteeringMap>,
    /// Workers that there were.
    workers_made: Cell<u32>,
    changeable: Changeable,
}

/// How a world begins.
pub(crate) struct Setup {
    pub(crate) stacks: usize,
    pub(crate) workers: usize,
    pub(crate) settings: QuicSettings,
    pub(crate) capacity: Capacity,
    pub(crate) replicas: bool,
    pub(crate) memory_bytes_max: usize,
    pub(crate) connections_per_source: Option<u32>,
    pub(crate) workers_min: usize,
    pub(crate) receive: QuicReceive,
    /// A packet filter gives workers what they are to open.
    pub(crate) is_steered: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            stacks: 1,
            workers: 1,
            settings: settings(),
            capacity: Capacity::FULL,
            replicas: false,
            memory_bytes_max: StackConfig::CONNECTION_MEMORY_BYTES_MAX,
            connections_per_source: None,
            workers_min: usize::MAX,
            receive: QuicReceive::default(),
            is_steered: false,
        }
    }
}

pub(crate) fn settings() -> QuicSettings {
    QuicSettings {
        alpn: vec![b"test".to_vec()],
        secret: Some(QuicSecret::new([7; 32])),
        seed: Some([9; 32]),
        ..QuicSettings::default()
    }
}

pub(crate) fn server_address(v6: bool) -> SocketAddr {
    let ip = if v6 { "fd77::2" } else { "10.77.0.2" };
    SocketAddr::new(ip.parse().unwrap(), PORT)
}

/// The same, of those to which clients may move.
pub(crate) fn preferred_address(v6: bool) -> SocketAddr {
    let ip = if v6 { "fd77::7" } else { "10.77.0.7" };
    SocketAddr::new(ip.parse().unwrap(), PORT)
}

fn config(setup: &Setup) -> StackConfig {
    let mut addresses = vec![("10.77.0.2", 24), ("fd77::2", 64)];
    if !setup.settings.preferred_address.is_none() {
        addresses.extend([("10.77.0.7", 24), ("fd77::7", 64)]);
    }
    let addresses = addresses.into_iter();
    let addresses = addresses.map(|(ip, prefix)| (ip.parse().unwrap(), prefix));
    StackConfig {
        roots_are_replicas: setup.replicas,
        workers_min: setup.workers_min,
        connection_memory_bytes_max: setup.memory_bytes_max,
        quic_receive: setup.receive,
        admission: Admission {
            connections_per_source: setup.connections_per_source,
            ..Admission::default()
        },
        ..StackConfig::new(addresses.collect(), vec![80], [7; 16])
    }
}

fn stack(setup: &Setup, link: Link, site: &Site, now_us: u64) -> Stack {
    let config = config(setup);
    let mut stack = Stack::awaiting(config, link, setup.stacks, now_us);
    stack.set_unix_time(UNIX_TIME);
    let listener = QuicListener {
        port: PORT,
        certificates: Arc::clone(&site.certificates),
        settings: setup.settings.clone(),
    };
    assert_eq!(stack.serve_quic(now_us, &listener), Ok(()));
    stack
}

impl<'a> World<'a> {
    pub(crate) fn new(random: &'a mut dyn FnMut(u64) -> u64) -> Self {
        Self::with(Setup::default(), random)
    }

    pub(crate) fn with(setup: Setup, random: &'a mut dyn FnMut(u64) -> u64) -> Self {
        let identities = [Identity::ecdsa(&["localhost"])];
        let site = Site::new(&identities, &tls::Settings::default());
        let (port, wire) = pair(memory::Link::default());
        let now_us = 1_000_000;
        let stack = stack(&setup, Link::of(&port), &site, now_us);
        let mut world = Self {
            random,
            weather: Weather::default(),
            now_us,
            stack,
            port,
            wire,
            app: App::default(),
            nics: Vec::new(),
            lives: vec![0; setup.stacks * setup.workers],
            stacks: setup.stacks,
            oracle: Rc::default(),
            peers: Vec::new(),
            site,
            capacity: setup.capacity,
            icmp: Vec::new(),
            strays: Vec::new(),
            hides: false,
            left_by_nic: 0,
            left_from: Vec::new(),
            unreported: 0,
            overheard: VecDeque::new(),
            is_counted: false,
            later: BinaryHeap::new(),
            order: 0,
            map: setup.is_steered.then(|| SteeringMap::in_memory([7; 16])),
            workers_made: Cell::new(0),
            changeable: Changeable::from(&config(&setup)),
        };
        if let Some(map) = &world.map {
            world.stack.steer_with(map.clone());
        }
        for number in 0..setup.stacks {
            let channels: Vec<HostChannel> = (0..setup.workers)
                .map(|_| {
                    let (channel, nic) = world.a_nic();
                    world.nics.push(nic);
                    channel
                })
                .collect();
            world.stack.on_nic_come(now_us, number, channels).unwrap();
        }
        world
    }

    /// A reload says who opens what clients send.
    pub(crate) fn change_reception(&mut self, to: QuicReceive) {
        self.changeable.quic_receive = to;
        self.stack.change(&self.changeable);
    }

    /// The host process has died: another one has the same secret, and knows nothing.
    pub(crate) fn replace_host(&mut self, setup: &Setup) {
        let link = Link::of(&self.port);
        self.stack = stack(setup, link, &self.site, self.now_us);
        let (channel, nic) = self.a_nic();
        self.nics = vec![nic];
        self.lives[0] += 1;
        self.app = App::default();
        self.stack
            .on_nic_come(self.now_us, 0, vec![channel])
            .unwrap();
    }

    fn a_nic(&self) -> (HostChannel, Nic) {
        let (host, nic) = in_memory_of(self.capacity);
        let number = self.workers_made.get() + 1;
        self.workers_made.set(number);
        let target = Target::new(number).filter(|_| self.map.is_some());
        (host, Nic::new(nic, &self.oracle).steered(target))
    }

    /// Another client, which speaks this cipher only, over this version of IP.
    pub(crate) fn connect(&mut self, cipher: Cipher, v6: bool) -> usize {
        self.connect_from(if v6 { "fd77::1" } else { "10.77.0.1" }, cipher)
    }

    /// The same, from this address.
    pub(crate) fn connect_from(&mut self, ip: &str, cipher: Cipher) -> usize {
        let suite = Suite {
            version: Version::Tls13,
            cipher,
        };
        let number = self.peers.len() as u16;
        let local = SocketAddr::new(ip.parse().unwrap(), 5000 + number);
        let server = server_address(local.is_ipv6());
        let mut config = self.site.client_config(suite);
        config.enable_early_data = true;
        let seed = (self.random)(u64::MAX);
        self.peers.push(Peer {
            client: QuicClient::connect(config.clone(), b"test", (local, server), seed),
            config,
            server,
            transfers: BTreeMap::new(),
        });
        self.peers.len() - 1
    }

    /// A client like this one, with the sessions that it may resume.
    pub(crate) fn resume(&mut self, client: usize) -> usize {
        let Peer {
            config,
            server,
            client,
            ..
        } = &self.peers[client];
        let setup = ClientSetup {
            alpn: b"test",
            begins_us: self.now_us,
            seed: (self.random)(u64::MAX),
            ..ClientSetup::default()
        };
        let mut local = client.local;
        local.set_port(5000 + self.peers.len() as u16);
        let peer = Peer {
            client: QuicClient::connect_as(config.clone(), (local, *server), &setup),
            config: config.clone(),
            server: *server,
            transfers: BTreeMap::new(),
        };
        self.peers.push(peer);
        self.peers.len() - 1
    }

    /// The first flight of a client that goes silent, as frames. Each has another port.
    pub(crate) fn spoofed(&self, number: u16) -> Vec<Vec<u8>> {
        let local = SocketAddr::new("10.77.0.1".parse().unwrap(), 10_000 + number);
        let server = server_address(false);
        let suite = Suite {
            version: Version::Tls13,
            cipher: Cipher::Aes128Gcm,
        };
        let config = self.site.client_config(suite);
        let mut client = QuicClient::connect(config, b"test", (local, server), number.into());
        let datagrams = std::iter::from_fn(|| client.poll_datagram(self.now_us));
        datagrams
            .map(|payload| self.to_frame(local, server, &payload))
            .collect()
    }

    /// A datagram for the server's port.
    pub(crate) fn to_frame(
        &self,
        source: SocketAddr,
        destination: SocketAddr,
        payload: &[u8],
    ) -> Vec<u8> {
        let header = DatagramHeader {
            source_mac: CLIENT_MAC,
            destination_mac: self.port.mac(),
            source,
            destination,
            ecn: ip::Ecn::NotEct,
        };
        header.to_frame(payload).expect("one family")
    }

    /// Has the stack take in these frames, and nothing else, in one turn.
    pub(crate) fn turn(&mut self, frames: &[Vec<u8>]) {
        for bytes in frames {
            let frame = netdev::Frame {
                bytes,
                checksum_valid: false,
                segment_bytes: None,
            };
            self.stack.on_frame(self.now_us, frame);
        }
        self.stack.on_time(self.now_us);
        self.stack.serve(self.now_us, &mut self.port, &mut self.app);
    }

    /// What a client sends next, as frames, once it has something to send.
    pub(crate) fn next_flight(&mut self, client: usize) -> Vec<Vec<u8>> {
        loop {
            let Peer {
                client: quic,
                server,
                ..
            } = &mut self.peers[client];
            let (local, server) = (quic.local, *server);
            let payloads = std::iter::from_fn(|| quic.poll_datagram(self.now_us));
            let payloads: Vec<_> = payloads.collect();
            if !payloads.is_empty() {
                let frames = payloads.iter();
                return frames.map(|it| self.to_frame(local, server, it)).collect();
            }
            assert!(self.step(), "nothing is to happen");
            self.serve_server();
        }
    }

    /// A client, once it is connected.
    pub(crate) fn connected(&mut self) -> usize {
        let client = self.connect(Cipher::Aes128Gcm, false);
        self.run_until(|world| world.peers[client].client.is_connected);
        client
    }

    /// Has a client ask for a part of a file, and real bytes behind it.
    pub(crate) fn request(
        &mut self,
        client: usize,
        size: u64,
        part: (u64, u64),
        real: usize,
    ) -> u64 {
        let request = format!("{size} {} {} {real}\n", part.0, part.1);
        let peer = &mut self.peers[client];
        let stream = peer.client.request(request.as_bytes()).expect("a stream");
        let transfer = Transfer {
            size,
            offset: part.0,
            len: part.1,
            real,
            got: 0,
            is_finished: false,
            reset: None,
        };
        peer.transfers.insert(stream, transfer);
        stream
    }

    pub(crate) fn are_finished(&self) -> bool {
        let mut transfers = self.peers.iter().flat_map(|peer| peer.transfers.values());
        transfers.all(|transfer| transfer.is_finished)
    }

    pub(crate) fn run_until_finished(&mut self) {
        self.run_until(|world| world.are_finished());
    }

    /// Closes what is open, and sees that nothing is left.
    pub(crate) fn close(mut self) {
        let now_us = self.now_us;
        self.weather = Weather::default();
        for peer in &mut self.peers {
            peer.client.close(now_us, 0);
        }
        self.run_until(|world| {
            world.stack.usage().quic_connections == 0 && world.nics.iter().all(|it| it.work() == 0)
        });
        let usage = self.stack.usage();
        assert_eq!((usage.quic_streams, usage.files), (0, 0));
        assert_eq!((usage.sends_outstanding, usage.commands_waiting), (0, 0));
        for nic in &self.nics {
            assert_eq!((nic.files(), nic.flows()), (0, 0));
        }
        assert_eq!(self.stack.counters().events_invalid, 0);
    }

    /// Runs until it holds. Panics if nothing is to happen any more, or it takes ten minutes.
    pub(crate) fn run_until(&mut self, mut holds: impl FnMut(&mut Self) -> bool) {
        loop {
            self.serve();
            if holds(self) {
                return;
            }
            let is_alive = self.step();
            let lost: Vec<_> = self.peers.iter().map(|it| it.client.lost.clone()).collect();
            let at_us = self.now_us;
            assert!(
                is_alive,
                "nothing is to happen at {at_us} us: {lost:?}, {:?}, {:?}",
                self.app.quic,
                self.stack.counters()
            );
            assert!(self.now_us < 600_000_000, "it takes too long");
        }
    }

    /// Runs for so long, in microseconds.
    pub(crate) fn run_for(&mut self, time_us: u64) {
        let until_us = self.now_us + time_us;
        loop {
            self.serve();
            if self.next_us().is_none_or(|at| at > until_us) {
                self.now_us = until_us;
                return;
            }
            self.step();
        }
    }

    /// A worker dies. Some of what waits in it has left, and the host may know or not. The one that
    /// takes its place knows nothing.
    pub(crate) fn restart_worker(&mut self, worker: usize) {
        self.die(worker);
        let (channel, nic) = self.a_nic();
        self.nics[worker] = nic;
        self.stack.on_nic_restarted(self.now_us, worker, channel);
    }

    fn die(&mut self, worker: usize) {
        let left = (self.random)(self.nics[worker].work() as u64 + 1);
        for _ in 0..left {
            let is_reported = (self.random)(3) == 0;
            self.unreported += u64::from(!is_reported);
            self.work(worker, is_reported);
        }
        self.lives[worker] += 1;
    }

    /// Lets so many seconds pass, in which all workers say that they are this busy.
    pub(crate) fn run_busy(&mut self, seconds: u64, permille: u32) {
        for _ in 0..4 * seconds {
            for nic in &mut self.nics {
                nic.report(&Event::Load {
                    busy_us: 250 * permille,
                    elapsed_us: 250_000,
                });
            }
            self.run_for(250_000);
        }
    }

    /// A NIC stack of one worker is gone.
    pub(crate) fn lose_nic(&mut self, nic: usize) {
        self.die(nic);
        let (_, gone) = self.a_nic();
        self.nics[nic] = gone;
        self.stack.on_nic_lost(self.now_us, nic);
    }

    /// It is back.
    pub(crate) fn bring_nic(&mut self, number: usize) {
        let (channel, nic) = self.a_nic();
        self.nics[number] = nic;
        self.stack
            .on_nic_come(self.now_us, number, vec![channel])
            .unwrap();
    }

    fn later(&mut self, delay_us: u64, what: Later) {
        self.order += 1;
        let at = self.now_us + delay_us;
        self.later.push(Reverse((at, self.order, what)));
    }

    fn next_us(&mut self) -> Option<u64> {
        let due = self.later.peek().map(|Reverse((at, _, _))| *at);
        let server = self.stack.next_timeout_us();
        let peers = self.peers.iter_mut();
        let clients = peers.filter_map(|peer| peer.client.next_timeout_us());
        clients.chain(due).chain(server).min()
    }

    fn step(&mut self) -> bool {
        let Some(next) = self.next_us() else {
            return false;
        };
        self.now_us = self.now_us.max(next);
        while self
            .later
            .peek()
            .is_some_and(|Reverse((at, _, _))| *at <= self.now_us)
        {
            if let Some(Reverse((_, _, what))) = self.later.pop() {
                self.happen(what);
            }
        }
        for peer in &mut self.peers {
            if peer
                .client
                .next_timeout_us()
                .is_some_and(|at| at <= self.now_us)
            {
                peer.client.on_timeout(self.now_us);
            }
        }
        true
    }

    fn happen(&mut self, what: Later) {
        match what {
            Later::AtServer(source, destination, payload) => {
                let frame = self.to_frame(source, destination, &payload);
                self.arrive(&frame);
            }
            Later::AtClient(source, local, payload) => {
                let now_us = self.now_us;
                let mut peers = self.peers.iter_mut();
                match peers.find(|peer| peer.client.local == local) {
                    // It takes what comes from where it sends to.
                    Some(peer) if peer.server != source => {}
                    Some(peer) => peer.client.on_datagram(now_us, &payload, false),
                    None => self.strays.push((local, payload)),
                }
            }
            Later::Works(worker, life) if self.lives[worker] == life => self.work(worker, true),
            Later::Works(..) => {}
        }
    }

    /// A frame for the port that gets it.
    fn arrive(&mut self, frame: &[u8]) {
        let own = [server_address, preferred_address];
        let own = own.map(|of| [of(false).ip(), of(true).ip()]).concat();
        let decision = self.map.as_ref().map(|map| {
            map.decide(
                &own,
                &Arrived {
                    bytes: frame,
                    packet_type: PacketType::Host,
                    has_vlan: false,
                },
            )
        });
        match decision {
            Some(Decision::Worker(target)) => {
                let now_us = self.now_us;
                let mut nics = self.nics.iter_mut();
                // What is for a worker that is gone is lost.
                if let Some(nic) = nics.find(|nic| nic.has_port(target)) {
                    nic.arrive(now_us, frame);
                }
            }
            Some(Decision::Host) | None => self.inject(frame),
            Some(Decision::Drop) => {}
        }
    }

    /// A frame for the host's port.
    pub(crate) fn inject(&mut self, frame: &[u8]) {
        let packet = Superpacket {
            header: frame,
            payload: &[],
            offload: Offload::None,
        };
        self.wire.send(&packet).unwrap();
    }

    fn work(&mut self, worker: usize, is_reported: bool) {
        let now_us = self.now_us;
        for leaving in self.nics[worker].carry_out(now_us, is_reported) {
            self.leave(&leaving);
        }
    }

    /// A datagram leaves a NIC worker: its header must be as if the host had sent it.
    fn leave(&mut self, leaving: &Leaving) {
        let header = &leaving.header;
        let is_v6 = header[12..14] == [0x86, 0xdd];
        let address = |at: usize| -> std::net::IpAddr {
            if is_v6 {
                <[u8; 16]>::try_from(&header[at..at + 16]).unwrap().into()
            } else {
                <[u8; 4]>::try_from(&header[at..at + 4]).unwrap().into()
            }
        };
        let (source, destination, udp) = if is_v6 { (22, 38, 54) } else { (26, 30, 34) };
        let port = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let to = SocketAddr::new(address(destination), port(udp + 2));
        let wanted = DatagramHeader {
            source_mac: self.port.mac(),
            destination_mac: CLIENT_MAC,
            source: SocketAddr::new(address(source), port(udp)),
            destination: to,
            ecn: ip::Ecn::of(if is_v6 { header[15] >> 4 } else { header[15] }),
        };
        let own = [server_address(is_v6), preferred_address(is_v6)];
        assert!(own.contains(&wanted.source), "{}", wanted.source);
        match self.left_from.last_mut() {
            Some((last, count)) if *last == wanted.source => *count += 1,
            _ => self.left_from.push((wanted.source, 1)),
        }
        let mut buffer = [0; datagram::HEADERS_BYTES_MAX];
        let len = wanted.write(&mut buffer).expect("one family");
        assert_eq!(&buffer[..len], &header[..]);
        assert!(leaving.datagram.len() <= 1452);
        self.left_by_nic += 1;
        self.send_to_client(wanted.source, to, leaving.datagram.clone());
    }

    fn send_to_client(&mut self, from: SocketAddr, local: SocketAddr, mut datagram: Vec<u8>) {
        if let Some(delay_us) = self.weather.fate(self.random, &mut datagram) {
            self.later(delay_us, Later::AtClient(from, local, datagram));
        }
    }

    /// A datagram of whatever machine.
    pub(crate) fn send(&mut self, source: SocketAddr, destination: SocketAddr, payload: &[u8]) {
        self.later(0, Later::AtServer(source, destination, payload.to_vec()));
    }

    /// Does what all ends want, until they want nothing.
    fn serve(&mut self) {
        loop {
            let is_busy = self.serve_server();
            self.serve_clients();
            if !is_busy {
                return;
            }
        }
    }

    /// A turn of the stack and its workers; false if there was nothing to do.
    fn serve_server(&mut self) -> bool {
        let is_busy = match self.is_counted {
            true => self.counted_turn(),
            false => self.serve_stack(),
        };
        let mut taken = 0;
        for worker in 0..self.nics.len() {
            let now_us = self.now_us;
            let count = self.nics[worker].take(now_us);
            taken += count;
            for _ in 0..count {
                let delay_us = (self.random)(300);
                let life = self.lives[worker];
                self.later(delay_us, Later::Works(worker, life));
            }
        }
        let heard = self.hear();
        is_busy || taken + heard > 0
    }

    /// Has the stack take in what has come, and do what is to be done; false if that was nothing.
    fn serve_stack(&mut self) -> bool {
        let (stack, now_us) = (&mut self.stack, self.now_us);
        let mut received = 0;
        self.port
            .receive(usize::MAX, &mut |frame| {
                received += 1;
                stack.on_frame(now_us, frame);
            })
            .unwrap();
        let events = self
            .stack
            .on_channels(now_us, usize::MAX)
            .expect("sane rings");
        self.stack.on_time(now_us);
        let busy = self.stack.serve(now_us, &mut self.port, &mut self.app);
        busy || received + events > 0
    }

    /// The same, where a benchmark counts instructions.
    #[inline(never)]
    fn counted_turn(&mut self) -> bool {
        self.serve_stack()
    }

    fn serve_clients(&mut self) {
        for at in 0..self.peers.len() {
            self.receive(at);
            while let Some(mut datagram) = self.peers[at].client.poll_datagram(self.now_us) {
                let (local, server) = (self.peers[at].client.local, self.peers[at].server);
                if self.overheard.len() == OVERHEARD_MAX {
                    self.overheard.pop_front();
                }
                self.overheard.push_back((local, datagram.clone()));
                if let Some(delay_us) = self.weather.fate(self.random, &mut datagram) {
                    self.later(delay_us, Later::AtServer(local, server, datagram));
                }
            }
        }
    }

    /// The last client sends what it has to send, and is not heard of again.
    pub(crate) fn send_and_forget(&mut self, client: usize) {
        assert_eq!(client + 1, self.peers.len());
        self.serve_clients();
        self.peers.pop();
    }

    /// What the host's own port has sent.
    fn hear(&mut self) -> usize {
        let mut frames = Vec::new();
        self.wire
            .receive(usize::MAX, &mut |frame| frames.push(frame.bytes.to_vec()))
            .unwrap();
        for bytes in &frames {
            if let Some(packet) = datagram::parse(bytes, false).expect("sane frames") {
                assert_eq!(packet.destination_mac, CLIENT_MAC);
                let (from, to) = (packet.source, packet.destination);
                self.send_to_client(from, to, packet.payload.to_vec());
                continue;
            }
            match frame::parse(bytes, false).expect("sane frames") {
                Frame::Arp(request) if request.operation == arp::Operation::Request => {
                    let reply = arp::Packet {
                        operation: arp::Operation::Reply,
                        sender_mac: CLIENT_MAC,
                        sender: request.target,
                        target_mac: request.sender_mac,
                        target: request.sender,
                    };
                    if !self.hides {
                        self.inject(&reply.to_frame(request.sender_mac));
                    }
                }
                Frame::Icmp6(packet) => {
                    if let icmpv6::Message::Neighbor(Neighbor::Solicitation { target, .. }) =
                        packet.message
                        && !self.hides
                    {
                        let answer = Neighbor::Advertisement {
                            target,
                            target_mac: Some(CLIENT_MAC),
                            router: false,
                            solicited: true,
                            override_cached: true,
                        };
                        let (mac, to) = (self.port.mac(), packet.source);
                        let frame = icmpv6::neighbor_frame(CLIENT_MAC, mac, target, to, &answer);
                        self.inject(&frame);
                    } else {
                        self.icmp.push(bytes.clone());
                    }
                }
                Frame::Icmp4(_) => self.icmp.push(bytes.clone()),
                _ => {}
            }
        }
        frames.len()
    }

    /// Compares every byte that a client has received.
    fn receive(&mut self, at: usize) {
        let Peer {
            client, transfers, ..
        } = &mut self.peers[at];
        for (stream, transfer) in transfers {
            while !transfer.is_finished {
                match client.receive(*stream) {
                    Received::Bytes(bytes) => {
                        for byte in bytes {
                            assert!(transfer.got < transfer.bytes());
                            assert_eq!(byte, transfer.byte(transfer.got), "at {}", transfer.got);
                            transfer.got += 1;
                        }
                    }
                    Received::Blocked => break,
                    Received::Finished => {
                        assert_eq!(transfer.got, transfer.bytes());
                        transfer.is_finished = true;
                    }
                    Received::Reset(code) => {
                        transfer.reset = Some(code);
                        transfer.is_finished = true;
                    }
                }
            }
        }
    }

    /// How many NIC stacks there are.
    pub(crate) fn stacks(&self) -> usize {
        self.stacks
    }
}
