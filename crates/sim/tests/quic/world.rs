//! Clients, an endpoint, a NIC stack behind a channel, and the network, in virtual time.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use contract::channel::HostChannel;
use contract::quic::{Prepare, QuicReceived};
use contract::tls::{Cipher, Suite, Version};
use contract::{Command, Event, FileId, FlowId, Growth, SendId};
use fakes::content::content;
use fakes::quic_client::{QuicClient, Received};
use fakes::site::{Identity, Site, UNIX_TIME};
use fakes::weather::Weather;
use quic::{
    Arrival, Endpoint, EventKind, FileRange, Framing, Handle, Opened, Output, Read, SealKey,
    Secret, Settings, StreamId,
};
use sim::wire_watch::WireWatch;
use tcp::{CongestionAlgorithm, Instant};
use wire::datagram;

use crate::nic_stack::{FILES, Nic, Plan, contents, header, path};

/// What happens later.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Later {
    AtServer(SocketAddr, Vec<u8>),
    AtClient(SocketAddr, Vec<u8>),
    /// The NIC stack of this number gets round to what there is for it to do.
    NicWorks(u64),
}

/// Ids of PREPAREs begin here, those of QSENDs at 0.
const PREPARES_FROM: u64 = 1 << 62;

/// A response asks for more of its file to be prepared when no more of it than this is.
const READY_BYTES_MIN: u64 = 100_000;

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

/// What the server still has to write on a stream.
struct Response {
    body: FileRange,
    /// So much of it is in the NIC stack's memory.
    ready_bytes: u64,
    /// The PREPARE that is to be answered, and how much it asks for.
    asked: Option<(SendId, u64)>,
}

/// What the host remembers of a connection.
struct Connection {
    handle: Handle,
    remote: SocketAddr,
    next_send: u64,
    /// The last QSEND of each of the endpoint's sends.
    ends: VecDeque<(SendId, u64)>,
}

/// What the NIC stack knows of a connection that it receives for.
#[derive(Default)]
struct Reception {
    /// The handshake is over.
    is_connected: bool,
    /// The last key that was given to a NIC stack.
    key: Option<Arc<SealKey>>,
    /// The NIC stack has the flow: its datagrams arrive there.
    is_taken: bool,
}

/// Who opens what clients send.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Receive {
    Host,
    Nic,
}

pub(crate) struct World<'a> {
    pub(crate) random: &'a mut dyn FnMut(u64) -> u64,
    pub(crate) weather: Weather,
    /// By how much each way is longer than it has to be, in microseconds.
    pub(crate) detour_us: u64,
    /// How fast the link to the clients is, in Mbit/s.
    pub(crate) link_mbit_per_s: u64,
    /// What waits for it no longer than so much, in microseconds, is not dropped.
    pub(crate) queue_us_max: u64,
    link_free_us: u64,
    pub(crate) watch: WireWatch,
    /// Packets of QUIC that have left NIC stacks.
    pub(crate) sent_packets: u64,
    /// Packets that NIC stacks that have died had sealed.
    sealed_before: u64,
    pub(crate) nic_deaths: u64,
    /// SENDs that had left a NIC stack that died, without the host knowing.
    pub(crate) unreported: u64,
    pub(crate) rejected: u64,
    /// Connections that ended without being asked to.
    pub(crate) lost: u64,
    /// The host gives each QSEND twice.
    pub(crate) repeats_sends: bool,
    /// Packets of clients that NIC stacks have opened, ...
    pub(crate) opened: u64,
    /// ... such that the endpoint did not take, ...
    pub(crate) refused: u64,
    /// ... and datagrams that they have handed to the host.
    pub(crate) handed_up: u64,
    receive: Receive,
    receptions: BTreeMap<FlowId, (Handle, Reception)>,
    now_us: Rc<Cell<u64>>,
    site: Site,
    endpoint: Endpoint,
    peers: Vec<Peer>,
    connections: BTreeMap<FlowId, Connection>,
    responses: BTreeMap<(Handle, StreamId), Response>,
    next_prepare: u64,
    host_has_said_something: bool,
    files: Vec<(Vec<u8>, Vec<u8>)>,
    host: HostChannel,
    nic: Nic,
    later: BinaryHeap<Reverse<(u64, u64, Later)>>,
    order: u64,
}

/// The server's address.
fn server() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 2], 443))
}

fn arrival(remote: SocketAddr) -> Arrival {
    Arrival {
        remote,
        local_ip: None,
        ecn: None,
    }
}

/// A NIC stack with little memory, or more; and a disk that takes its time. The host has asked it
/// to open all files.
fn start_nic(
    number: u64,
    files: &[(Vec<u8>, Vec<u8>)],
    now_us: &Rc<Cell<u64>>,
    random: &mut dyn FnMut(u64) -> u64,
) -> (HostChannel, Nic) {
    let plan = Plan {
        cache_bytes: [0, 16 << 20][random(2) as usize],
        read_us_max: [0, 300, 5000][random(3) as usize],
        seed: random(u64::MAX),
    };
    let (mut host, nic) = Nic::start(number, files, now_us, &plan);
    for file in FILES {
        let open = Command::Open {
            file,
            growth: Growth::Forbidden,
            path: &path(file),
        };
        host.send(&open).expect("room");
    }
    (host, nic)
}

impl<'a> World<'a> {
    pub(crate) fn new(
        congestion: CongestionAlgorithm,
        receive: Receive,
        random: &'a mut dyn FnMut(u64) -> u64,
    ) -> Self {
        let identities = [Identity::ecdsa(&["localhost"])];
        let site = Site::new(&identities, &tls::Settings::default());
        let settings = Settings {
            alpn: vec![b"test".to_vec()],
            congestion,
            secret: Some(Secret::new([7; 32])),
            seed: Some([9; 32]),
            ..Settings::default()
        };
        let certificates = Arc::clone(&site.certificates);
        let start = Instant::from_us(0);
        let endpoint = Endpoint::new(certificates, &settings, start, UNIX_TIME);
        let now_us = Rc::new(Cell::new(0));
        let files = contents();
        let (host, nic) = start_nic(0, &files, &now_us, random);
        Self {
            random,
            receive,
            weather: Weather::default(),
            detour_us: 0,
            link_mbit_per_s: u64::MAX,
            queue_us_max: u64::MAX,
            link_free_us: 0,
            watch: WireWatch::default(),
            sent_packets: 0,
            sealed_before: 0,
            nic_deaths: 0,
            unreported: 0,
            rejected: 0,
            lost: 0,
            repeats_sends: false,
            opened: 0,
            refused: 0,
            handed_up: 0,
            receptions: BTreeMap::new(),
            now_us,
            site,
            endpoint: endpoint.expect("the settings are sound"),
            peers: Vec::new(),
            connections: BTreeMap::new(),
            responses: BTreeMap::new(),
            next_prepare: PREPARES_FROM,
            // Its files are to be opened.
            host_has_said_something: true,
            files,
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
        let config = self.site.client_config(suite);
        let seed = (self.random)(u64::MAX);
        self.peers.push(Peer {
            client: QuicClient::connect(config, b"test", (local, server()), seed),
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
            let now_us = self.now_us.get();
            assert!(self.step(), "nothing is to happen at {now_us} us");
            assert!(now_us < 600_000_000, "it takes too long");
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
        self.host.flush();
        if (self.random)(3) > 0 {
            let superpackets = (self.random)(2);
            self.nic.work(superpackets);
            self.take_datagrams();
        }
        if (self.random)(4) == 0 {
            self.report();
        }
        while let Some(event) = self.host.receive().expect("events decode") {
            let departed = matches!(event, Event::Departed { .. });
            self.unreported += u64::from(departed);
        }
        self.sealed_before += self.nic.counters().quic_packets_sealed;
        self.nic_deaths += 1;
        let started = start_nic(self.nic_deaths, &self.files, &self.now_us, self.random);
        (self.host, self.nic) = started;
        self.host_has_said_something = true;
        // What was ready is not in memory any more, and is read when a QSEND needs it.
        let responses = self.responses.values_mut();
        responses.for_each(|response| response.asked = None);
        for (_, reception) in self.receptions.values_mut() {
            (reception.key, reception.is_taken) = (None, false);
        }
        for connection in self.connections.values_mut() {
            connection.ends.clear();
            self.endpoint.on_nic_gone(connection.handle);
        }
    }

    /// Packets that NIC stacks have sealed.
    pub(crate) fn sealed_packets(&self) -> u64 {
        self.sealed_before + self.nic.counters().quic_packets_sealed
    }

    /// Blocks of files that the NIC stack keeps for a retransmission.
    pub(crate) fn blocks_pinned(&self) -> usize {
        self.nic.usage().blocks_pinned
    }

    /// What the NIC stack has done.
    pub(crate) fn nic_counters(&self) -> nic::Counters {
        self.nic.counters()
    }

    /// Virtual time, in microseconds.
    pub(crate) fn now_us(&self) -> u64 {
        self.now_us.get()
    }

    fn now(&self) -> Instant {
        Instant::from_us(self.now_us.get())
    }

    fn later(&mut self, delay_us: u64, what: Later) {
        self.order += 1;
        let at = self.now_us.get() + delay_us;
        self.later.push(Reverse((at, self.order, what)));
    }

    fn step(&mut self) -> bool {
        let due = self.later.peek().map(|Reverse((at, _, _))| *at);
        let server = self.endpoint.next_timeout().map(Instant::as_us);
        let peers = self.peers.iter_mut().enumerate();
        let client = peers
            .filter_map(|(at, peer)| Some((peer.client.next_timeout_us()?, at)))
            .min();
        let nic = self.nic.next_timeout_us();
        let times = [due, server, nic, client.map(|(at, _)| at)];
        let Some(next) = times.into_iter().flatten().min() else {
            return false;
        };
        let now_us = self.now_us.get().max(next);
        self.now_us.set(now_us);
        if due.is_some_and(|at| at <= now_us) {
            if let Some(Reverse((_, _, what))) = self.later.pop() {
                self.happen(what);
            }
        } else if server.is_some_and(|at| at <= now_us) {
            self.endpoint.on_timeout(self.now());
        } else if nic.is_some_and(|at| at <= now_us) {
            self.nic_works();
        } else if let Some((_, at)) = client {
            self.peers[at].client.on_timeout(now_us);
        }
        true
    }

    fn happen(&mut self, what: Later) {
        match what {
            Later::AtServer(remote, payload) if self.is_steered(remote) => {
                self.nic.arrive(remote, server(), &payload);
                self.wake_nic();
            }
            Later::AtServer(remote, payload) => {
                let arrival = arrival(remote);
                self.endpoint.on_datagram(self.now(), &arrival, &payload);
                while self.endpoint.advance_handshake(self.now()).is_some() {}
            }
            Later::AtClient(local, payload) => {
                let now_us = self.now_us.get();
                let mut peers = self.peers.iter_mut();
                if let Some(peer) = peers.find(|peer| peer.client.local == local) {
                    peer.client.on_datagram(now_us, &payload, false);
                }
            }
            Later::NicWorks(nic) if nic == self.nic.number => self.nic_works(),
            Later::NicWorks(_) => {}
        }
    }

    /// The NIC stack does what it can, with a port that takes a few superpackets.
    fn nic_works(&mut self) {
        let superpackets = (self.random)(3);
        self.nic.work(superpackets);
        self.take_datagrams();
        // Events come in batches.
        let reports = (self.random)(3) > 0;
        if reports {
            self.report();
        }
        if self.nic.is_port_busy() || !reports {
            self.wake_nic();
        }
    }

    fn wake_nic(&mut self) {
        let delay_us = 1 + (self.random)(300);
        self.later(delay_us, Later::NicWorks(self.nic.number));
    }

    /// What has left the NIC stack goes to clients.
    fn take_datagrams(&mut self) {
        for (remote, datagram) in self.nic.take_datagrams() {
            self.sent_packets += 1;
            let mut connections = self.connections.iter();
            let flow = connections.find(|(_, connection)| connection.remote == remote);
            let (&flow, _) = flow.expect("a connection");
            assert_eq!(self.watch.on_datagram(flow, 8, &datagram), Ok(()));
            self.send_to_client(remote, datagram);
        }
    }

    /// The host reads what the NIC stack has reported.
    fn report(&mut self) {
        while let Some(event) = self.host.receive().expect("events decode") {
            match event {
                Event::Departed { send, flow, .. } => self.on_departed(send, flow),
                Event::Ready { prepare, .. } => self.on_ready(prepare),
                Event::Rejected { .. } => self.rejected += 1,
                Event::Opened { .. } => {}
                Event::FlowsTaken { flows } => {
                    for flow in &flows {
                        let (_, reception) = self.receptions.get_mut(flow).expect("a flow");
                        reception.is_taken = true;
                    }
                }
                Event::QuicReceived(received) => self.on_received(&received),
                Event::Frame { bytes } => {
                    self.handed_up += 1;
                    let packet = datagram::parse(&bytes, true).expect("sound");
                    let packet = packet.expect("a datagram");
                    let arrival = arrival(packet.source);
                    self.endpoint
                        .on_datagram(self.now(), &arrival, packet.payload);
                    while self.endpoint.advance_handshake(self.now()).is_some() {}
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// True if a packet filter gives datagrams from there to the NIC stack.
    fn is_steered(&self, remote: SocketAddr) -> bool {
        let mut connections = self.connections.iter();
        let flow = connections.find(|(_, connection)| connection.remote == remote);
        let reception = flow.and_then(|(flow, _)| self.receptions.get(flow));
        reception.is_some_and(|(_, reception)| reception.is_taken)
    }

    fn on_received(&mut self, received: &QuicReceived) {
        let (handle, _) = self.receptions[&received.flow];
        for (packet, plaintext) in received.each() {
            let opened = Opened {
                arrived: Instant::from_us(received.arrived_us - u64::from(packet.age_us)),
                generation: received.generation,
                number: packet.number,
                id: &received.id,
                first: packet.first,
                plaintext,
            };
            let arrival = arrival(received.remote);
            let is_taken = self
                .endpoint
                .on_opened(self.now(), handle, &arrival, &opened);
            self.opened += 1;
            self.refused += u64::from(!is_taken);
        }
    }

    /// Has the NIC stack open what comes for a connection, if its handshake is over.
    fn tell_receive(&mut self, flow: FlowId) {
        const HOLD_US: u32 = 2_000;
        let Some((handle, reception)) = self.receptions.get(&flow) else {
            return;
        };
        let (handle, is_first) = (*handle, !reception.is_taken);
        let is_wanted = reception.is_connected && self.receive == Receive::Nic;
        let key = reception.key.clone().filter(|_| is_wanted);
        let Some(key) = key else {
            return;
        };
        let next_number = self.endpoint.next_received(handle);
        let command = key.receive_command(flow, next_number, HOLD_US);
        self.tell(&Command::QuicReceiveKey(command));
        let ids: Vec<_> = self.endpoint.connection_ids(handle).collect();
        for id in ids.into_iter().filter(|_| is_first) {
            self.tell(&Command::QuicConnectionId { flow, id });
        }
    }

    fn reception(&mut self, connection: Handle) -> &mut Reception {
        let flow = FlowId(connection.serial());
        let entry = self.receptions.entry(flow);
        &mut entry.or_insert((connection, Reception::default())).1
    }

    fn on_ready(&mut self, prepare: SendId) {
        let mut responses = self.responses.values_mut();
        let response = responses.find(|it| it.asked.is_some_and(|(id, _)| id == prepare));
        let response = response.expect("it was asked for");
        let (_, bytes) = response.asked.take().expect("it was asked for");
        response.ready_bytes += bytes;
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

    fn send_to_client(&mut self, local: SocketAddr, mut datagram: Vec<u8>) {
        let now_us = self.now_us.get();
        let waits_us = self.link_free_us.saturating_sub(now_us);
        if waits_us > self.queue_us_max {
            return;
        }
        let takes_us = datagram.len() as u64 * 8 / self.link_mbit_per_s;
        self.link_free_us = now_us + waits_us + takes_us;
        if let Some(delay_us) = self.weather.fate(self.random, &mut datagram) {
            let delay_us = waits_us + takes_us + self.detour_us + delay_us;
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
        if self.host_has_said_something {
            self.host_has_said_something = false;
            self.host.flush();
            self.wake_nic();
        }
        for at in 0..self.peers.len() {
            self.receive(at);
            while let Some(mut datagram) = self.peers[at].client.poll_datagram(self.now_us.get()) {
                let local = self.peers[at].client.local;
                if let Some(delay_us) = self.weather.fate(self.random, &mut datagram) {
                    self.later(self.detour_us + delay_us, Later::AtServer(local, datagram));
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
                self.tell(&Command::QuicKey(command));
                self.reception(connection).key = Some(key);
                self.tell_receive(flow(connection));
            }
            Output::ConnectionId { connection, id } => {
                let flow = flow(connection);
                if self
                    .receptions
                    .get(&flow)
                    .is_some_and(|(_, it)| it.is_taken)
                {
                    self.tell(&Command::QuicConnectionId { flow, id });
                }
            }
            Output::KeyGone {
                connection,
                generation,
            } => {
                let flow = flow(connection);
                self.tell(&Command::QuicKeyGone { flow, generation });
            }
            Output::Send(send) => self.send(&send),
            Output::Released { connection, range } => {
                self.tell(&Command::QuicRelease {
                    flow: flow(connection),
                    file: range.file,
                    offset: range.offset,
                    len: range.len,
                });
            }
        }
    }

    fn tell(&mut self, command: &Command<'_>) {
        assert_eq!(command.check(), Ok(()));
        self.host.send(command).expect("room");
        self.host_has_said_something = true;
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
        let header = header(server(), send.route.remote);
        let issued_us = self.now_us.get();
        let commands = send.commands(Framing {
            flow,
            id: SendId(connection.next_send),
            issued_us,
            not_before_us: issued_us + (self.random)(2) * (self.random)(400),
            header: &header,
        });
        connection.next_send += commands.len() as u64;
        let last = SendId(connection.next_send - 1);
        connection.ends.push_back((last, send.id));
        for command in commands {
            for _ in 0..1 + usize::from(self.repeats_sends) {
                self.tell(&Command::QuicSend(command.clone()));
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
                EventKind::Connected { .. } => {
                    self.reception(connection).is_connected = true;
                    self.tell_receive(FlowId(connection.serial()));
                }
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
                let response = Response {
                    body,
                    ready_bytes: 0,
                    asked: None,
                };
                self.responses.insert((connection, stream), response);
            }
            Ok(Read::Blocked | Read::Finished) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Writes what is ready, and has more of it prepared.
    fn write(&mut self) {
        let endpoint = &mut self.endpoint;
        self.responses.retain(|(connection, stream), response| {
            let body = &mut response.body;
            let ready = FileRange {
                len: response.ready_bytes,
                ..*body
            };
            let written = endpoint.write_file(*connection, *stream, ready);
            let written = written.unwrap_or(0);
            body.offset += written;
            body.len -= written;
            response.ready_bytes -= written;
            if body.len > 0 {
                return true;
            }
            assert_eq!(endpoint.finish(*connection, *stream), Ok(()));
            false
        });
        let mut prepares = Vec::new();
        for ((connection, _), response) in &mut self.responses {
            let (body, ready_bytes) = (response.body, response.ready_bytes);
            let left = body.len - ready_bytes;
            if response.asked.is_none() && left > 0 && ready_bytes < READY_BYTES_MIN {
                let id = SendId(self.next_prepare);
                self.next_prepare += 1;
                let len = left.min(1 + (self.random)(300_000));
                response.asked = Some((id, len));
                prepares.push(Prepare {
                    id,
                    flow: FlowId(connection.serial()),
                    file: body.file,
                    offset: body.offset + ready_bytes,
                    len: len as u32,
                });
            }
        }
        for prepare in prepares {
            self.tell(&Command::Prepare(prepare));
        }
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
