//! Clients, an endpoint, a NIC stack's sealer behind a channel, and the network, in virtual time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use contract::channel::{self, HostChannel, NicChannel};
use contract::tls::{Cipher, Suite, Version};
use contract::{Command, Event, FileId, FlowId, SendId};
use fakes::content::content;
use fakes::quic_client::{QuicClient, Received};
use fakes::site::{Identity, Site, UNIX_TIME};
use fakes::weather::Weather;
use nic::quic::{Job, Sealer};
use quic::{
    Arrival, Endpoint, EventKind, FileRange, Framing, Handle, Output, Read, Settings, StreamId,
};
use tcp::{CongestionAlgorithm, Instant};

use crate::wire_watch::WireWatch;

/// What happens later.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Later {
    AtServer(SocketAddr, Vec<u8>),
    AtClient(SocketAddr, Vec<u8>),
    /// The NIC stack of this number has read what its first job needs.
    Departs(u64),
}

struct Peer {
    client: QuicClient,
    transfers: BTreeMap<u64, Transfer>,
}

struct Transfer {
    file: u32,
    offset: u64,
    left: u64,
    is_finished: bool,
}

/// What the server still has to send on a stream.
struct Response {
    body: FileRange,
}

/// A NIC stack: what dies, and is another one then.
struct Nic {
    number: u64,
    channel: NicChannel,
    sealer: Sealer,
    jobs: VecDeque<Job>,
    /// Departures that it has not reported.
    departed: Vec<(SendId, FlowId)>,
}

/// What the host remembers of a connection.
struct Connection {
    handle: Handle,
    remote: SocketAddr,
    next_send: u64,
    /// The last QSEND of each of the endpoint's sends.
    ends: VecDeque<(SendId, u64)>,
}

pub(crate) struct World<'a> {
    pub(crate) random: &'a mut dyn FnMut(u64) -> u64,
    pub(crate) weather: Weather,
    pub(crate) watch: WireWatch,
    pub(crate) sealed_packets: u64,
    pub(crate) nic_deaths: u64,
    /// SENDs that had left a NIC stack that died, without the host knowing.
    pub(crate) unreported: u64,
    pub(crate) rejected: u64,
    /// Connections that ended without being asked to.
    pub(crate) lost: u64,
    /// The host gives each QSEND twice.
    pub(crate) repeats_sends: bool,
    now_us: u64,
    site: Site,
    endpoint: Endpoint,
    peers: Vec<Peer>,
    connections: BTreeMap<FlowId, Connection>,
    responses: HashMap<(Handle, StreamId), Response>,
    host: HostChannel,
    nic: Nic,
    later: BinaryHeap<Reverse<(u64, u64, Later)>>,
    order: u64,
}

fn a_nic(number: u64) -> (HostChannel, Nic) {
    let (host, nic) = channel::in_memory();
    let nic = Nic {
        number,
        channel: nic,
        sealer: Sealer::new(64),
        jobs: VecDeque::new(),
        departed: Vec::new(),
    };
    (host, nic)
}

impl<'a> World<'a> {
    pub(crate) fn new(
        congestion: CongestionAlgorithm,
        random: &'a mut dyn FnMut(u64) -> u64,
    ) -> Self {
        let identities = [Identity::ecdsa(&["localhost"])];
        let site = Site::new(&identities, &tls::Settings::default());
        let settings = Settings {
            alpn: vec![b"test".to_vec()],
            congestion,
            secret: Some([7; 32]),
            seed: Some([9; 32]),
            ..Settings::default()
        };
        let certificates = Arc::clone(&site.certificates);
        let start = Instant::from_us(0);
        let endpoint = Endpoint::new(certificates, &settings, start, UNIX_TIME);
        let (host, nic) = a_nic(0);
        Self {
            random,
            weather: Weather::default(),
            watch: WireWatch::default(),
            sealed_packets: 0,
            nic_deaths: 0,
            unreported: 0,
            rejected: 0,
            lost: 0,
            repeats_sends: false,
            now_us: 0,
            site,
            endpoint: endpoint.expect("the settings are sound"),
            peers: Vec::new(),
            connections: BTreeMap::new(),
            responses: HashMap::new(),
            host,
            nic,
            later: BinaryHeap::new(),
            order: 0,
        }
    }

    /// Another client, which speaks this cipher only.
    pub(crate) fn connect(&mut self, cipher: Cipher) {
        let suite = Suite {
            version: Version::Tls13,
            cipher,
        };
        let port = 5000 + self.peers.len() as u16;
        let local = SocketAddr::from(([192, 0, 2, 1], port));
        let server = SocketAddr::from(([192, 0, 2, 2], 443));
        let config = self.site.client_config(suite);
        let seed = (self.random)(u64::MAX);
        self.peers.push(Peer {
            client: QuicClient::connect(config, b"test", (local, server), seed),
            transfers: BTreeMap::new(),
        });
    }

    /// Has a client ask for a range of a file.
    pub(crate) fn request(&mut self, client: usize, file: u32, offset: u64, len: u64) {
        let request = [u64::from(file), offset, len].map(u64::to_le_bytes);
        let peer = &mut self.peers[client];
        let stream = peer.client.request(&request.concat()).expect("a stream");
        let transfer = Transfer {
            file,
            offset,
            left: len,
            is_finished: false,
        };
        peer.transfers.insert(stream, transfer);
    }

    pub(crate) fn run_until_connected(&mut self) {
        self.run_until(|world| {
            let mut peers = world.peers.iter();
            peers.all(|peer| peer.client.is_connected)
                && world.connections.len() == world.peers.len()
        });
    }

    pub(crate) fn are_finished(&self) -> bool {
        let mut transfers = self.peers.iter().flat_map(|peer| peer.transfers.values());
        transfers.all(|transfer| transfer.is_finished)
    }

    pub(crate) fn run_until_finished(&mut self) {
        self.run_until(|world| world.are_finished());
    }

    /// Runs until it holds. Panics if nothing is to happen any more, or it takes ten minutes.
    pub(crate) fn run_until(&mut self, mut holds: impl FnMut(&mut Self) -> bool) {
        loop {
            self.serve();
            if holds(self) {
                return;
            }
            assert!(self.step(), "nothing is to happen at {} us", self.now_us);
            assert!(self.now_us < 600_000_000, "it takes too long");
        }
    }

    pub(crate) fn update_keys_of_server(&mut self) {
        let handles: Vec<_> = self.connections.values().map(|it| it.handle).collect();
        handles
            .into_iter()
            .for_each(|handle| self.endpoint.update_keys(handle));
    }

    pub(crate) fn update_keys_of_client(&mut self) {
        let at = (self.random)(self.peers.len() as u64) as usize;
        self.peers[at].client.update_keys();
    }

    /// The NIC stack dies. Some of what waits in it has left, and the host may know or not.
    pub(crate) fn replace_nic(&mut self) {
        let left = (self.random)(self.nic.jobs.len() as u64 + 1);
        for _ in 0..left {
            self.depart();
        }
        if (self.random)(4) == 0 {
            self.report();
        }
        self.unreported += self.nic.departed.len() as u64;
        self.nic_deaths += 1;
        (self.host, self.nic) = a_nic(self.nic_deaths);
        for connection in self.connections.values_mut() {
            connection.ends.clear();
            self.endpoint.on_nic_gone(connection.handle);
        }
    }

    fn now(&self) -> Instant {
        Instant::from_us(self.now_us)
    }

    fn later(&mut self, delay_us: u64, what: Later) {
        self.order += 1;
        let at = self.now_us + delay_us;
        self.later.push(Reverse((at, self.order, what)));
    }

    fn step(&mut self) -> bool {
        let due = self.later.peek().map(|Reverse((at, _, _))| *at);
        let server = self.endpoint.next_timeout().map(Instant::as_us);
        let peers = self.peers.iter_mut().enumerate();
        let client = peers
            .filter_map(|(at, peer)| Some((peer.client.next_timeout_us()?, at)))
            .min();
        let times = [due, server, client.map(|(at, _)| at)];
        let Some(next) = times.into_iter().flatten().min() else {
            return false;
        };
        self.now_us = self.now_us.max(next);
        if due.is_some_and(|at| at <= self.now_us) {
            if let Some(Reverse((_, _, what))) = self.later.pop() {
                self.happen(what);
            }
        } else if server.is_some_and(|at| at <= self.now_us) {
            self.endpoint.on_timeout(self.now());
        } else if let Some((_, at)) = client {
            self.peers[at].client.on_timeout(self.now_us);
        }
        true
    }

    fn happen(&mut self, what: Later) {
        match what {
            Later::AtServer(remote, payload) => {
                let arrival = Arrival {
                    remote,
                    local_ip: None,
                    ecn: None,
                };
                self.endpoint.on_datagram(self.now(), &arrival, &payload);
            }
            Later::AtClient(local, payload) => {
                let now_us = self.now_us;
                let mut peers = self.peers.iter_mut();
                if let Some(peer) = peers.find(|peer| peer.client.local == local) {
                    peer.client.on_datagram(now_us, &payload, false);
                }
            }
            Later::Departs(nic) if nic == self.nic.number => {
                self.depart();
                // Events come in batches.
                if (self.random)(3) > 0 || self.nic.jobs.is_empty() {
                    self.report();
                }
            }
            Later::Departs(_) => {}
        }
    }

    /// The first job of the NIC stack is sealed and leaves.
    fn depart(&mut self) {
        let Some(job) = self.nic.jobs.pop_front() else {
            return;
        };
        let (id, flow) = (job.id(), job.flow());
        let mut datagrams = Vec::new();
        let read = |file: FileId, offset: u64, out: &mut [u8]| {
            for (offset, byte) in (offset..).zip(out) {
                *byte = content(file.0.into(), offset);
            }
            Ok(())
        };
        let leave = |datagram: &[u8]| datagrams.push(datagram.to_vec());
        let sealed = self.nic.sealer.seal(job, read, leave);
        assert_eq!(sealed, Ok(()));
        let remote = self.connections.get(&flow).map(|it| it.remote);
        for datagram in datagrams {
            self.sealed_packets += 1;
            self.watch.on_datagram(flow, 8, &datagram);
            self.send_to_client(remote.expect("a connection"), datagram);
        }
        self.nic.departed.push((id, flow));
    }

    /// The NIC stack reports, and the host reads it.
    fn report(&mut self) {
        let now_us = self.now_us;
        for (send, flow) in self.nic.departed.drain(..) {
            let departed = Event::Departed {
                send,
                flow,
                departed_us: now_us,
            };
            self.nic.channel.send(&departed).expect("room");
        }
        self.nic.channel.flush();
        while let Some(event) = self.host.receive().expect("events decode") {
            match event {
                Event::Departed { send, flow, .. } => self.on_departed(send, flow),
                Event::Rejected { .. } => self.rejected += 1,
                other => panic!("{other:?}"),
            }
        }
    }

    fn on_departed(&mut self, send: SendId, flow: FlowId) {
        let Some(connection) = self.connections.get_mut(&flow) else {
            return;
        };
        while let Some((last, id)) = connection.ends.front().copied()
            && last <= send
        {
            connection.ends.pop_front();
            self.endpoint.on_departed(connection.handle, id);
        }
    }

    /// The NIC stack takes its commands.
    fn command_nic(&mut self) {
        self.host.flush();
        let mut departures = 0;
        let nic = &mut self.nic;
        let mut rejected = Vec::new();
        while let Some(command) = nic.channel.receive().expect("commands decode") {
            match command {
                Command::QuicKey(key) => {
                    if let Err(reason) = nic.sealer.key(&key) {
                        rejected.push((reason, key.flow.0));
                    }
                }
                Command::QuicKeyGone { flow, generation } => {
                    nic.sealer.key_gone(flow, generation);
                }
                Command::QuicSend(send) => match nic.sealer.accept(&send) {
                    Ok(job) => {
                        nic.jobs.push_back(job);
                        departures += 1;
                    }
                    Err(reason) => rejected.push((reason, send.id.0)),
                },
                Command::QuicRelease { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        for (reason, id) in rejected {
            let event = Event::Rejected { reason, id };
            nic.channel.send(&event).expect("room");
        }
        let number = nic.number;
        for _ in 0..departures {
            let delay_us = (self.random)(300);
            self.later(delay_us, Later::Departs(number));
        }
    }

    fn send_to_client(&mut self, local: SocketAddr, mut datagram: Vec<u8>) {
        if let Some(delay_us) = self.weather.fate(self.random, &mut datagram) {
            self.later(delay_us, Later::AtClient(local, datagram));
        }
    }

    /// Does what all ends want, until they want nothing.
    fn serve(&mut self) {
        loop {
            self.serve_events();
            self.write();
            let Some(output) = self.endpoint.poll_output(self.now()) else {
                break;
            };
            self.output(output);
        }
        self.command_nic();
        for at in 0..self.peers.len() {
            self.receive(at);
            while let Some(mut datagram) = self.peers[at].client.poll_datagram(self.now_us) {
                let local = self.peers[at].client.local;
                if let Some(delay_us) = self.weather.fate(self.random, &mut datagram) {
                    self.later(delay_us, Later::AtServer(local, datagram));
                }
            }
        }
    }

    fn output(&mut self, output: Output) {
        let flow = |connection: Handle| FlowId(connection.serial());
        match output {
            Output::Datagrams {
                route,
                datagram_bytes,
                bytes,
            } => {
                for datagram in bytes.chunks(datagram_bytes) {
                    self.send_to_client(route.remote, datagram.to_vec());
                }
            }
            Output::Key {
                connection,
                key,
                floor,
            } => {
                let command = key.command(flow(connection), floor);
                self.watch.on_key(&command);
                self.host.send(&Command::QuicKey(command)).expect("room");
            }
            Output::KeyGone {
                connection,
                generation,
            } => {
                let flow = flow(connection);
                let command = Command::QuicKeyGone { flow, generation };
                self.host.send(&command).expect("room");
            }
            Output::Send(send) => self.send(&send),
            Output::Released { connection, range } => {
                let command = Command::QuicRelease {
                    flow: flow(connection),
                    file: range.file,
                    offset: range.offset,
                    len: range.len,
                };
                self.host.send(&command).expect("room");
            }
        }
    }

    fn send(&mut self, send: &quic::Send) {
        let flow = FlowId(send.connection.serial());
        let entry = self.connections.entry(flow);
        let connection = entry.or_insert_with(|| Connection {
            handle: send.connection,
            remote: send.route.remote,
            next_send: 0,
            ends: VecDeque::new(),
        });
        connection.remote = send.route.remote;
        let commands = send.commands(Framing {
            flow,
            id: SendId(connection.next_send),
            issued_us: self.now_us,
            not_before_us: 0,
            header: b"Ethernet, IP and UDP",
        });
        connection.next_send += commands.len() as u64;
        let last = SendId(connection.next_send - 1);
        connection.ends.push_back((last, send.id));
        for command in commands {
            for _ in 0..1 + usize::from(self.repeats_sends) {
                let command = Command::QuicSend(command.clone());
                assert_eq!(command.check(), Ok(()));
                self.host.send(&command).expect("room");
            }
        }
    }

    fn serve_events(&mut self) {
        while let Some(event) = self.endpoint.poll_event() {
            let connection = event.connection;
            match event.kind {
                EventKind::Opened(stream) | EventKind::Readable(stream) => {
                    self.read(connection, stream);
                }
                EventKind::Closed(_) => self.lost += 1,
                _ => {}
            }
        }
    }

    fn read(&mut self, connection: Handle, stream: StreamId) {
        match self.endpoint.read(connection, stream, 24) {
            Ok(Read::Bytes(request)) => {
                let numbers: Vec<u64> = request
                    .chunks(8)
                    .map(|bytes| u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
                    .collect();
                let body = FileRange {
                    file: FileId(numbers[0] as u32),
                    offset: numbers[1],
                    len: numbers[2],
                };
                self.responses
                    .insert((connection, stream), Response { body });
            }
            Ok(Read::Blocked | Read::Finished) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn write(&mut self) {
        let endpoint = &mut self.endpoint;
        self.responses.retain(|(connection, stream), response| {
            let body = &mut response.body;
            let written = endpoint.write_file(*connection, *stream, *body);
            let written = written.unwrap_or(0);
            body.offset += written;
            body.len -= written;
            if body.len > 0 {
                return true;
            }
            assert_eq!(endpoint.finish(*connection, *stream), Ok(()));
            false
        });
    }

    /// Compares every byte that a client has received.
    fn receive(&mut self, at: usize) {
        let Peer { client, transfers } = &mut self.peers[at];
        for (stream, transfer) in transfers {
            while !transfer.is_finished {
                match client.receive(*stream) {
                    Received::Bytes(bytes) => {
                        for byte in bytes {
                            let wanted = content(transfer.file.into(), transfer.offset);
                            assert_eq!(byte, wanted, "at {}", transfer.offset);
                            transfer.offset += 1;
                            transfer.left -= 1;
                        }
                    }
                    Received::Blocked => break,
                    Received::Finished => {
                        assert_eq!(transfer.left, 0);
                        transfer.is_finished = true;
                    }
                    Received::Reset(code) => panic!("stream {stream} was reset with {code}"),
                }
            }
        }
    }
}
