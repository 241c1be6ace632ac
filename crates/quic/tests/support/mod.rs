//! A client, an endpoint, what seals for it, and the network between them, in virtual time.

pub(crate) mod left_behind;
pub(crate) mod sealer;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use contract::FileId;
use contract::tls::{Cipher, Suite, Version};
use fakes::content::content;
use fakes::quic_client::{Ecn as IpEcn, QuicClient, Received, Setup, TokenMemoryCache};
use fakes::site::{Identity, Site, UNIX_TIME};
use fakes::tls_pair::Secrets;
use fakes::weather::Weather;
use quic::{
    Arrival, CloseReason, Ecn, Endpoint, EventKind, FileRange, Framing, Handle, Output, Read,
    Route, Secret, Send, Settings, StreamError, StreamId,
};
use tcp::Instant;

use left_behind::LeftBehind;
use sealer::{Nonces, Sealer};

/// What happens later.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Later {
    AtServer(SocketAddr, Option<IpAddr>, Vec<u8>),
    AtClient(Option<IpAddr>, u8, Vec<u8>),
    /// The NIC stack has read what the SEND in front needs.
    Departs,
}

/// What a path does to the ECN field of IP headers (RFC 3168 §5).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum EcnPath {
    #[default]
    Leaves,
    /// It sets CE in all that is ECN-capable.
    Marks,
    /// It clears the field.
    Bleaches,
}

/// What the server sends on a stream: a head of real bytes, a range of a file, a tail.
pub(crate) struct Response {
    head: VecDeque<u8>,
    body: FileRange,
    tail: VecDeque<u8>,
}

/// A transfer as the client sees it.
pub(crate) struct Transfer {
    pub(crate) wanted: Vec<u8>,
    pub(crate) received: Vec<u8>,
    pub(crate) is_finished: bool,
}

/// All of it, with one client.
pub(crate) struct World<'a> {
    pub(crate) random: &'a mut dyn FnMut(u64) -> u64,
    pub(crate) now_us: u64,
    pub(crate) endpoint: Endpoint,
    pub(crate) client: QuicClient,
    certificates: Arc<tls::Certificates>,
    /// With the sessions that it may resume.
    config: rustls::ClientConfig,
    /// Those of the last handshake.
    pub(crate) secrets: Arc<Secrets>,
    /// By which it shows that it has its address.
    tokens: Arc<TokenMemoryCache>,
    /// Retry packets that were sent to it.
    pub(crate) retries: u64,
    /// Connections whose client is not heard of again, and how many of them have timed out.
    spoofed: HashSet<Handle>,
    pub(crate) timed_out: u64,
    /// Handshakes that cost a signature, or a key exchange.
    pub(crate) costly_handshakes: u64,
    pub(crate) server: Option<Handle>,
    /// Connections, and streams, on which something has come before the handshake was complete.
    pub(crate) early_connections: u64,
    pub(crate) early_streams: u64,
    /// As many of those handshakes are complete.
    pub(crate) completed: u64,
    pub(crate) weather: Weather,
    /// Longer datagrams of the server do not arrive, in bytes.
    pub(crate) path_bytes_max: usize,
    /// Lengths of its datagrams that carry packets of 1-RTT, in order.
    pub(crate) lengths: Vec<usize>,
    /// What the path does to the ECN field of its datagrams.
    pub(crate) ecn_path: EcnPath,
    /// SENDs, since a test has set it to zero, by what their IP headers say.
    pub(crate) sends_ect: u64,
    pub(crate) sends_not_ect: u64,
    /// Packets that were sealed under the key of each generation.
    pub(crate) sealed_of_key: BTreeMap<u32, u64>,
    pub(crate) closed: Option<CloseReason>,
    pub(crate) transfers: BTreeMap<u64, Transfer>,
    pub(crate) sealer: Sealer,
    pub(crate) nonces: Nonces,
    pub(crate) sealed_packets: u64,
    /// How long SENDs wait in the NIC stack, in microseconds; `None`: by chance, not for long.
    pub(crate) departure_delay_us: Option<u64>,
    /// Packets of the largest SEND.
    pub(crate) largest_send: usize,
    /// How far ahead of the time packets were made, at most, in microseconds.
    pub(crate) lead_us: u64,
    pub(crate) nic_deaths: u64,
    pub(crate) keys_given: u64,
    /// Of what the server was sent, and of what it has sent itself.
    pub(crate) received_bytes: u64,
    pub(crate) sent_bytes: u64,
    /// What is appended to datagrams of the client.
    pub(crate) padding_bytes: usize,
    /// Nothing arrives that the client sends once the server has answered.
    pub(crate) is_muzzled: bool,
    /// What the client has sent, as long as it has one connection.
    pub(crate) said: Vec<Vec<u8>>,
    /// The address of the server to which the client sends. It takes nothing from another.
    pub(crate) server_ip: Option<IpAddr>,
    /// From where datagrams have left, in order, and how many each time.
    pub(crate) left_from: Vec<(Option<IpAddr>, u64)>,
    /// A connection whose client is gone: what is sent on it gets nowhere.
    pub(crate) left_behind: Option<LeftBehind>,
    /// Ranges that were released, of each file.
    pub(crate) released: BTreeMap<u32, u64>,
    responses: BTreeMap<StreamId, Response>,
    queue: VecDeque<Send>,
    later: BinaryHeap<Reverse<(u64, u64, Later)>>,
    order: u64,
}

pub(crate) const HEAD: &[u8] = b"head of the response";
pub(crate) const TAIL: &[u8] = b"tail";

pub(crate) fn settings() -> Settings {
    Settings {
        alpn: vec![b"test".to_vec()],
        secret: Some(Secret::new([7; 32])),
        seed: Some([9; 32]),
        ..Settings::default()
    }
}

/// Clients have it that are not heard of again.
fn spoofed_ip() -> IpAddr {
    "192.0.2.66".parse().expect("an address")
}

impl<'a> World<'a> {
    pub(crate) fn new(
        settings: &Settings,
        cipher: Cipher,
        random: &'a mut dyn FnMut(u64) -> u64,
    ) -> Self {
        Self::with_names(settings, cipher, &["localhost"], random)
    }

    /// The same, with a certificate for these names.
    pub(crate) fn with_names(
        settings: &Settings,
        cipher: Cipher,
        names: &[&str],
        random: &'a mut dyn FnMut(u64) -> u64,
    ) -> Self {
        let site = Site::new(&[Identity::ecdsa(names)], &tls::Settings::default());
        let certificates = Arc::clone(&site.certificates);
        let start = Instant::from_us(0);
        let endpoint = Endpoint::new(Arc::clone(&certificates), settings, start, UNIX_TIME);
        let suite = Suite {
            version: Version::Tls13,
            cipher,
        };
        let local = "192.0.2.1:5000".parse().expect("an address");
        let server = "192.0.2.2:443".parse().expect("an address");
        let seed = random(u64::MAX);
        let mut config = site.client_config(suite);
        config.enable_early_data = true;
        let secrets = Arc::new(Secrets::default());
        config.key_log = Arc::clone(&secrets) as Arc<dyn rustls::KeyLog>;
        let tokens = Arc::default();
        let setup = Setup {
            alpn: b"test",
            seed,
            tokens: Some(&tokens),
            ..Setup::default()
        };
        Self {
            endpoint: endpoint.expect("the settings are sound"),
            client: QuicClient::connect_as(config.clone(), (local, server), &setup),
            certificates,
            config,
            secrets,
            tokens,
            retries: 0,
            spoofed: HashSet::new(),
            timed_out: 0,
            costly_handshakes: 0,
            early_connections: 0,
            early_streams: 0,
            completed: 0,
            said: Vec::new(),
            server_ip: None,
            left_from: Vec::new(),
            left_behind: None,
            random,
            now_us: 0,
            server: None,
            weather: Weather::default(),
            path_bytes_max: usize::MAX,
            lengths: Vec::new(),
            ecn_path: EcnPath::default(),
            sends_ect: 0,
            sends_not_ect: 0,
            sealed_of_key: BTreeMap::new(),
            closed: None,
            transfers: BTreeMap::new(),
            sealer: Sealer::default(),
            nonces: Nonces::default(),
            sealed_packets: 0,
            departure_delay_us: None,
            largest_send: 0,
            lead_us: 0,
            nic_deaths: 0,
            keys_given: 0,
            received_bytes: 0,
            sent_bytes: 0,
            padding_bytes: 0,
            is_muzzled: false,
            released: BTreeMap::new(),
            responses: BTreeMap::new(),
            queue: VecDeque::new(),
            later: BinaryHeap::new(),
            order: 0,
        }
    }

    /// An endpoint that begins now.
    pub(crate) fn another_endpoint(&self, settings: &Settings) -> Endpoint {
        let certificates = Arc::clone(&self.certificates);
        let unix_time = UNIX_TIME + Duration::from_micros(self.now_us);
        let endpoint = Endpoint::new(certificates, settings, self.now(), unix_time);
        endpoint.expect("the settings are sound")
    }

    /// The client's datagrams come to this endpoint from now on; the one before is lost.
    pub(crate) fn replace_endpoint(&mut self, endpoint: Endpoint) {
        self.endpoint = endpoint;
        self.server = None;
        self.sealer = Sealer::default();
        self.queue.clear();
        self.responses.clear();
    }

    /// The client loses what shows that it has its address.
    pub(crate) fn forget_tokens(&mut self) {
        self.tokens = Arc::default();
    }

    /// Has the client leave, and connect once more, from another port.
    pub(crate) fn reconnect(&mut self) {
        self.client.close(self.now_us, 0);
        self.drain();
        self.closed = None;
        self.connect_beside();
    }

    /// The same, but the server keeps the first connection.
    pub(crate) fn connect_beside(&mut self) {
        let setup = Setup {
            alpn: b"test",
            begins_us: self.now_us,
            seed: (self.random)(u64::MAX),
            tokens: Some(&self.tokens),
            ..Setup::default()
        };
        let mut local = self.client.local;
        local.set_port(local.port() + 1);
        let server = "192.0.2.2:443".parse().expect("an address");
        self.client = QuicClient::connect_as(self.config.clone(), (local, server), &setup);
        let keys = self.sealer.keys();
        let left_behind = self.server.take();
        self.left_behind = left_behind.map(|handle| LeftBehind::new(handle, keys));
        self.sealer = Sealer::default();
        self.transfers.clear();
        self.responses.clear();
        self.said.clear();
        (self.sent_bytes, self.received_bytes) = (0, 0);
    }

    /// All that the client has sent arrives again, from another port.
    pub(crate) fn replay(&mut self) {
        let arrival = Arrival {
            remote: "192.0.2.1:666".parse().expect("an address"),
            local_ip: None,
            ecn: None,
        };
        for datagram in std::mem::take(&mut self.said) {
            self.endpoint.on_datagram(self.now(), &arrival, &datagram);
            self.advance_handshakes();
        }
        self.serve_events();
    }

    /// The first flight of a client that is not heard of again arrives, from this port.
    pub(crate) fn spoof(&mut self, port: u16) {
        self.spoof_with(b"test", port);
    }

    /// The same, of a client that offers this application protocol.
    pub(crate) fn spoof_with(&mut self, alpn: &[u8], port: u16) {
        let local = SocketAddr::new(spoofed_ip(), port);
        let server = "192.0.2.2:443".parse().expect("an address");
        let config = self.config.clone();
        let mut client = QuicClient::connect(config, alpn, (local, server), port.into());
        let arrival = Arrival {
            remote: local,
            local_ip: None,
            ecn: None,
        };
        self.serve();
        while let Some(datagram) = client.poll_datagram(self.now_us) {
            self.endpoint.on_datagram(self.now(), &arrival, &datagram);
        }
        self.advance_handshakes();
        while let Some(output) = self.endpoint.poll_output(self.now()) {
            if let Output::ConnectionId { connection, .. } = output {
                self.spoofed.insert(connection);
            }
        }
    }

    fn advance_handshakes(&mut self) {
        while let Some(is_costly) = self.endpoint.advance_handshake(self.now()) {
            self.costly_handshakes += u64::from(is_costly);
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

    /// What waits in the NIC stack.
    pub(crate) fn queued_bytes(&self) -> u64 {
        self.queue.iter().map(Send::datagram_bytes).sum()
    }

    /// How many SENDs wait there.
    pub(crate) fn queued_sends(&self) -> usize {
        self.queue.len()
    }

    /// Has the client ask for a range of a file.
    pub(crate) fn request(&mut self, file: u32, offset: u64, len: u64) -> u64 {
        let request = [u64::from(file), offset, len].map(u64::to_le_bytes);
        let stream = self.client.request(&request.concat()).expect("a stream");
        let body = (offset..offset + len).map(|offset| content(file.into(), offset));
        let wanted = HEAD.iter().copied().chain(body).chain(TAIL.iter().copied());
        let transfer = Transfer {
            wanted: wanted.collect(),
            received: Vec::new(),
            is_finished: false,
        };
        self.transfers.insert(stream, transfer);
        stream
    }

    pub(crate) fn are_finished(&self) -> bool {
        self.transfers.values().all(|transfer| transfer.is_finished)
    }

    /// Runs until it holds; panics if nothing is to happen any more, or it takes ten minutes.
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

    /// Goes on to what happens next. False if there is nothing.
    pub(crate) fn step(&mut self) -> bool {
        let due = self.due_us();
        let server = self.endpoint.next_timeout().map(Instant::as_us);
        let client = self.client.next_timeout_us();
        let Some(next) = [due, server, client].into_iter().flatten().min() else {
            return false;
        };
        self.now_us = self.now_us.max(next);
        if due.is_some_and(|at| at <= self.now_us) {
            let Some(Reverse((_, _, what))) = self.later.pop() else {
                return false;
            };
            self.happen(what);
        } else if server.is_some_and(|at| at <= self.now_us) {
            self.endpoint.on_timeout(self.now());
        } else {
            self.client.on_timeout(self.now_us);
        }
        true
    }

    fn due_us(&self) -> Option<u64> {
        self.later.peek().map(|Reverse((at, _, _))| *at)
    }

    /// Runs for so long, in microseconds.
    pub(crate) fn run_for(&mut self, us: u64) {
        let end_us = self.now_us + us;
        loop {
            self.serve();
            let server = self.endpoint.next_timeout().map(Instant::as_us);
            let client = self.client.next_timeout_us();
            let next = [self.due_us(), server, client].into_iter().flatten().min();
            if next.is_none_or(|next| next > end_us) {
                break;
            }
            self.step();
        }
        self.now_us = end_us;
    }

    fn happen(&mut self, what: Later) {
        match what {
            Later::AtServer(remote, local_ip, payload) => {
                let arrival = Arrival {
                    remote,
                    local_ip,
                    ecn: Some(Ecn::Ect0),
                };
                self.received_bytes += payload.len() as u64;
                self.endpoint.on_datagram(self.now(), &arrival, &payload);
                self.advance_handshakes();
            }
            Later::AtClient(from, ..) if from != self.server_ip => {}
            Later::AtClient(_, ecn, payload) => {
                self.client.on_packet(self.now_us, &payload, IpEcn::of(ecn));
            }
            Later::Departs => {
                // None if the NIC stack was replaced in the meantime.
                if let Some(send) = self.queue.pop_front() {
                    self.depart(&send);
                }
            }
        }
    }

    fn depart(&mut self, send: &Send) {
        if self.is_left_behind(send.connection) {
            return self.endpoint.on_departed(send.connection, send.id);
        }
        for packet in send.packets() {
            self.sealed_packets += 1;
            *self.sealed_of_key.entry(packet.generation()).or_default() += 1;
            let datagram = self.sealer.seal(packet, &mut self.nonces);
            self.lengths.push(datagram.len());
            self.send_to_client(send.route, datagram);
        }
        self.endpoint.on_departed(send.connection, send.id);
    }

    /// The NIC stack dies, and another takes its place: some of what was queued has left.
    pub(crate) fn replace_nic(&mut self) {
        let left = (self.random)(self.queue.len() as u64 + 1);
        self.replace_nic_with(left as usize);
    }

    /// The same, where so many SENDs have left.
    pub(crate) fn replace_nic_with(&mut self, left: usize) {
        for send in self.queue.drain(..).take(left).collect::<Vec<_>>() {
            for packet in send.packets() {
                let datagram = self.sealer.seal(packet, &mut self.nonces);
                self.send_to_client(send.route, datagram);
            }
        }
        self.sealer = Sealer::default();
        self.nic_deaths += 1;
        if let Some(server) = self.server {
            self.endpoint.on_nic_gone(server);
        }
    }

    fn send_to_client(&mut self, route: Route, mut datagram: Vec<u8>) {
        let from = route.local_ip;
        self.sent_bytes += datagram.len() as u64;
        match self.left_from.last_mut() {
            Some((last, count)) if *last == from => *count += 1,
            _ => self.left_from.push((from, 1)),
        }
        if datagram.len() > self.path_bytes_max {
            return;
        }
        let ecn = match (route.ecn, self.ecn_path) {
            (None, _) | (_, EcnPath::Bleaches) => IpEcn::NotEct,
            (Some(_), EcnPath::Marks) => IpEcn::Ce,
            (Some(_), EcnPath::Leaves) => IpEcn::Ect0,
        };
        if let Some(delay_us) = self.weather.fate(self.random, &mut datagram) {
            self.later(delay_us, Later::AtClient(from, ecn as u8, datagram));
        }
    }

    /// Does what both ends want, until they want nothing.
    fn serve(&mut self) {
        self.serve_events();
        self.write();
        while let Some(output) = self.endpoint.poll_output(self.now()) {
            self.output(output);
            self.serve_events();
            self.write();
        }
        self.receive();
        while let Some(mut datagram) = self.client.poll_datagram(self.now_us) {
            let local = self.client.local;
            if self.is_muzzled && self.sent_bytes > 0 {
                continue;
            }
            datagram.resize(datagram.len() + self.padding_bytes, 0);
            self.said.push(datagram.clone());
            if let Some(delay_us) = self.weather.fate(self.random, &mut datagram) {
                self.later(delay_us, Later::AtServer(local, self.server_ip, datagram));
            }
        }
    }

    fn is_left_behind(&self, connection: Handle) -> bool {
        let left_behind = self.left_behind.as_ref();
        left_behind.is_some_and(|it| it.handle == connection)
    }

    /// An application that reads all, and answers nothing.
    fn on_event_left_behind(&mut self, connection: Handle, kind: EventKind) {
        let endpoint = &mut self.endpoint;
        match kind {
            EventKind::Opened(stream) | EventKind::Readable(stream) => {
                while let Ok(Read::Bytes(_)) = endpoint.read(connection, stream, usize::MAX) {}
            }
            EventKind::Stopped(stream, code) => {
                let reset = endpoint.reset(connection, stream, code);
                assert_eq!(reset, Ok(()));
            }
            EventKind::Closed(reason) => {
                if let Some(left_behind) = &mut self.left_behind {
                    left_behind.closed = Some(reason);
                }
            }
            _ => {}
        }
    }

    fn output(&mut self, output: Output) {
        if let Some(left_behind) = &mut self.left_behind
            && left_behind.takes(&output)
        {
            if let Output::Send(send) = output {
                self.endpoint.on_departed(send.connection, send.id);
            }
            return;
        }
        match output {
            Output::Key { connection, .. } | Output::KeyGone { connection, .. }
                if self.spoofed.contains(&connection) => {}
            Output::Send(send) if self.spoofed.contains(&send.connection) => {
                self.endpoint.on_departed(send.connection, send.id);
            }
            Output::Datagrams { route, .. } if route.remote.ip() == spoofed_ip() => {}
            Output::Datagrams {
                route,
                datagram_bytes,
                bytes,
            } => {
                for datagram in bytes.chunks(datagram_bytes) {
                    // RFC 9000 §17.2.5
                    self.retries += u64::from(datagram[0] & 0xf0 == 0xf0);
                    self.send_to_client(route, datagram.to_vec());
                }
            }
            Output::Key { key, floor, .. } => {
                // What was queued before has left by then, with the keys that it needs.
                self.keys_given += 1;
                self.sealer.give(&key, floor);
            }
            Output::KeyGone { generation, .. } => {
                while let Some(send) = self.queue.pop_front() {
                    self.depart(&send);
                }
                self.sealer.take(generation);
            }
            Output::Send(send) => {
                assert!(send.packets().len() <= 44 && send.datagram_bytes() <= 65_507);
                let lead_us = send.not_before.as_us().saturating_sub(self.now_us);
                self.lead_us = self.lead_us.max(lead_us);
                self.largest_send = self.largest_send.max(send.packets().len());
                match send.route.ecn {
                    Some(_) => self.sends_ect += 1,
                    None => self.sends_not_ect += 1,
                }
                check_commands(&send);
                self.queue.push_back(send);
                let delay_us = match self.departure_delay_us {
                    Some(delay_us) => delay_us,
                    None => (self.random)(300),
                };
                self.later(delay_us.max(lead_us), Later::Departs);
            }
            // No NIC stack opens what clients send.
            Output::ConnectionId { .. } => {}
            Output::Released { range, .. } => {
                *self.released.entry(range.file.0).or_default() += range.len;
            }
        }
    }

    fn serve_events(&mut self) {
        while let Some(event) = self.endpoint.poll_event() {
            let connection = event.connection;
            match event.kind {
                kind if self.is_left_behind(connection) => {
                    self.on_event_left_behind(connection, kind);
                }
                EventKind::Connected {
                    alpn,
                    server_name,
                    is_early,
                    ..
                } => {
                    self.early_connections += u64::from(is_early);
                    assert_eq!(alpn.as_deref(), Some(&b"test"[..]));
                    assert_eq!(server_name.as_deref(), Some("localhost"));
                    self.server = Some(connection);
                }
                EventKind::HandshakeComplete => self.completed += 1,
                EventKind::Opened(stream) => {
                    let is_early = self.completed < self.early_connections;
                    self.early_streams += u64::from(is_early);
                    self.read(connection, stream);
                }
                EventKind::Readable(stream) => self.read(connection, stream),
                EventKind::Stopped(stream, code) => {
                    self.responses.remove(&stream);
                    let reset = self.endpoint.reset(connection, stream, code);
                    assert_eq!(reset, Ok(()));
                }
                EventKind::Closed(reason) if self.spoofed.contains(&connection) => {
                    assert_eq!(reason, CloseReason::TimedOut);
                    self.timed_out += 1;
                }
                EventKind::Closed(reason) => {
                    assert_eq!(self.closed.replace(reason), None);
                }
                EventKind::Writable(_)
                | EventKind::Acknowledged { .. }
                | EventKind::Finished(_) => {}
            }
        }
    }

    fn read(&mut self, connection: Handle, stream: StreamId) {
        match self.endpoint.read(connection, stream, 24) {
            Ok(Read::Bytes(request)) => {
                let number = |at: usize| {
                    let bytes = request[at..at + 8].try_into().expect("eight bytes");
                    u64::from_le_bytes(bytes)
                };
                let body = FileRange {
                    file: FileId(number(0) as u32),
                    offset: number(8),
                    len: number(16),
                };
                let response = Response {
                    head: HEAD.iter().copied().collect(),
                    body,
                    tail: TAIL.iter().copied().collect(),
                };
                self.responses.insert(stream, response);
            }
            Ok(Read::Blocked | Read::Finished) => {}
            // Its connection may have ended since the event.
            Err(StreamError::Unknown) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn write(&mut self) {
        let Some(connection) = self.server.filter(|_| self.closed.is_none()) else {
            return;
        };
        let endpoint = &mut self.endpoint;
        self.responses.retain(|stream, response| {
            let real = |endpoint: &mut Endpoint, bytes: &mut VecDeque<u8>| {
                let written = endpoint.write(connection, *stream, bytes.make_contiguous());
                bytes.drain(..written.unwrap_or(0));
                bytes.is_empty()
            };
            if !real(endpoint, &mut response.head) {
                return true;
            }
            let body = &mut response.body;
            let written = endpoint.write_file(connection, *stream, *body).unwrap_or(0);
            body.offset += written;
            body.len -= written;
            if body.len > 0 || !real(endpoint, &mut response.tail) {
                return true;
            }
            assert_eq!(endpoint.finish(connection, *stream), Ok(()));
            false
        });
    }

    fn receive(&mut self) {
        for (stream, transfer) in &mut self.transfers {
            while !transfer.is_finished {
                match self.client.receive(*stream) {
                    Received::Bytes(bytes) => {
                        let start = transfer.received.len();
                        transfer.received.extend(bytes);
                        let end = transfer.received.len();
                        let is_right = transfer.received[start..] == transfer.wanted[start..end];
                        assert!(is_right, "wrong bytes on {stream}");
                    }
                    Received::Blocked => break,
                    Received::Finished => {
                        assert_eq!(transfer.received.len(), transfer.wanted.len());
                        transfer.is_finished = true;
                    }
                    Received::Reset(code) => panic!("stream {stream} was reset with {code}"),
                }
            }
        }
    }

    /// Lets time pass until the server has forgotten all.
    pub(crate) fn drain(&mut self) {
        self.run_until(|world| world.endpoint.connections() == 0);
        while let Some(output) = self.endpoint.poll_output(self.now()) {
            self.output(output);
        }
    }
}

/// A port cuts what a QSEND describes into datagrams of one length, of which the last may be
/// shorter.
fn check_commands(send: &Send) {
    let commands = send.commands(Framing {
        flow: contract::FlowId(0),
        id: contract::SendId(0),
        issued_us: 0,
        not_before_us: 0,
        header: b"to the client",
    });
    let mut lengths = send.packets().map(|packet| packet.datagram_bytes());
    for command in commands {
        let lengths: Vec<u64> = lengths.by_ref().take(command.packets.len()).collect();
        let (last, others) = lengths.split_last().expect("a packet");
        let first = lengths[0];
        assert!(
            others.iter().all(|it| *it == first) && *last <= first,
            "{lengths:?}"
        );
    }
    assert_eq!(lengths.next(), None);
}
