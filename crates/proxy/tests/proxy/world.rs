//! One stack with a proxy, and peers of it that the test plays.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use contract::channel::in_memory;
use fakes::nic::FakeNic;
use host::app::{AppEvent, Application, Bind, CloseReason, Io, Owner, StreamId, StreamOptions};
use host::{Absent, Applications, Link, Stack, StackConfig};
use netdev::memory::{self, MemoryPort, pair};
use proxy::{Backend, BackendCounters, Config, Listener, Mode, Pool, Proxy};

const ADDRESS: &str = "10.77.0.2";

/// Further addresses, of clients.
pub(crate) const OTHERS: [&str; 3] = ["10.77.0.3", "10.77.0.4", "10.77.0.5"];

/// Clients and backends.
const PEERS: Owner = Owner(7);

/// Where the proxy listens.
pub(crate) const PROXY_PORT: u16 = 80;

/// What a peer has heard of one connection.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    pub(crate) received: Vec<u8>,
    unsent: Vec<u8>,
    finishes: bool,
    pub(crate) has_finished: bool,
    pub(crate) closed: Option<CloseReason>,
    /// Of a backend that answers by itself: lengths of the bodies that it still has to send.
    owed: VecDeque<usize>,
    /// What is left of a long body, which follows `unsent`.
    body_left: usize,
}

/// A body that is longer is not kept in memory.
static BODY: [u8; 1 << 16] = [b'x'; 1 << 16];

/// Length of the first whole request in these bytes, and the number in its path.
fn whole_request(bytes: &[u8]) -> Option<(usize, usize)> {
    let end = bytes.windows(4).position(|it| it == b"\r\n\r\n")? + 4;
    let head = std::str::from_utf8(&bytes[..end]).unwrap();
    let number = |name: &str| {
        let rest = head.split_once(name)?.1;
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<usize>().ok()
    };
    let whole = end + number("Content-Length: ").unwrap_or(0);
    (bytes.len() >= whole).then(|| (whole, number(" /").unwrap_or(1)))
}

/// Clients and backends.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    pub(crate) heard: BTreeMap<StreamId, Heard>,
    /// Connections that have come to each port, in their order.
    accepted: BTreeMap<u16, Vec<StreamId>>,
    /// What has arrived is left where it is.
    pub(crate) is_stalled: bool,
    /// The same of these alone.
    pub(crate) stalled: BTreeSet<StreamId>,
    /// Backends answer by themselves after this time: `/N` with N bytes.
    pub(crate) think: Option<Duration>,
}

impl Peers {
    fn send(&mut self, io: &mut dyn Io, stream: StreamId) {
        let heard = self.heard.entry(stream).or_default();
        let taken = io.write(stream, &heard.unsent);
        heard.unsent.drain(..taken);
        while heard.unsent.is_empty() && heard.body_left > 0 {
            let taken = io.write(stream, &BODY[..heard.body_left.min(BODY.len())]);
            heard.body_left -= taken;
            if taken == 0 {
                return;
            }
        }
        if heard.unsent.is_empty() && std::mem::take(&mut heard.finishes) {
            io.shutdown(stream);
        }
    }

    fn receive(&mut self, io: &mut dyn Io, stream: StreamId) {
        let mut buffer = [0; 4096];
        while !self.is_stalled && !self.stalled.contains(&stream) {
            let count = io.read(stream, &mut buffer);
            if count == 0 {
                return;
            }
            let heard = self.heard.entry(stream).or_default();
            heard.received.extend_from_slice(&buffer[..count]);
        }
    }
}

impl Peers {
    /// A backend looks for requests in what it has received.
    fn think(&mut self, io: &mut dyn Io, stream: StreamId) {
        let port = io.addresses(stream).map(|(local, _)| local.port());
        let is_backend = port.is_some_and(|port| self.accepted.contains_key(&port));
        let Some(time) = self.think.filter(|_| is_backend) else {
            return;
        };
        let heard = self.heard.entry(stream).or_default();
        while let Some((bytes, body)) = whole_request(&heard.received) {
            heard.received.drain(..bytes);
            heard.owed.push_back(body);
            io.set_timer(stream, Some(time));
        }
    }

    fn answer(&mut self, io: &mut dyn Io, stream: StreamId) {
        let heard = self.heard.entry(stream).or_default();
        while let Some(bytes) = heard.owed.pop_front() {
            assert_eq!(heard.body_left, 0, "a long body is the last");
            heard.unsent.extend(head(bytes).bytes());
            match BODY.get(..bytes) {
                Some(body) => heard.unsent.extend(body),
                None => heard.body_left = bytes,
            }
        }
        self.send(io, stream);
    }
}

impl Application for Peers {
    fn on_event(&mut self, io: &mut dyn Io, stream: StreamId, event: AppEvent) {
        match event {
            AppEvent::Accepted { .. } => {
                let port = io.addresses(stream).unwrap().0.port();
                self.accepted.entry(port).or_default().push(stream);
                self.heard.entry(stream).or_default();
            }
            AppEvent::Readable => {
                self.receive(io, stream);
                self.think(io, stream);
            }
            AppEvent::Timer => self.answer(io, stream),
            AppEvent::Writable | AppEvent::Connected => self.send(io, stream),
            AppEvent::PeerFinished => {
                self.receive(io, stream);
                self.heard.entry(stream).or_default().has_finished = true;
            }
            AppEvent::Closed { reason, .. } => {
                self.heard.entry(stream).or_default().closed = Some(reason);
            }
            _ => {}
        }
    }
}

/// Does something with an [`Io`] once.
struct Once<F>(Option<F>);

impl<F: FnOnce(&mut dyn Io)> Application for Once<F> {
    fn on_event(&mut self, _: &mut dyn Io, _: StreamId, event: AppEvent) {
        panic!("{event:?} before anything was said");
    }

    fn on_wake(&mut self, io: &mut dyn Io, _: u64) {
        self.0.take().expect("once")(io);
    }
}

/// Takes packets of access records.
#[derive(Debug, Default, Clone)]
pub(crate) struct Log(pub(crate) Arc<Mutex<Vec<u8>>>);

impl http_message::access::AccessSink for Log {
    fn take(&mut self, packet: &[u8], _lost: u64) -> bool {
        self.0.lock().unwrap().extend_from_slice(packet);
        true
    }
}

/// See the [module documentation](self).
pub(crate) struct World {
    now_us: u64,
    stack: Stack,
    port: MemoryPort,
    _wire: MemoryPort,
    nic: FakeNic,
    pub(crate) apps: Applications<Absent, Proxy, Peers>,
    pub(crate) log: Log,
}

/// A pool of backends on these ports, with defaults.
pub(crate) fn pool(name: &str, ports: &[u16]) -> Pool {
    let backend = |port: &u16| Backend {
        name: format!("b{port}"),
        address: address(*port),
        drains: false,
        is_unresolved: false,
        lookup_failure: None,
    };
    Pool {
        backends: ports.iter().map(backend).collect(),
        ..Pool::new(name)
    }
}

/// A listener that has everything go to the first pool.
pub(crate) fn listener(mode: Mode) -> Listener {
    Listener {
        port: PROXY_PORT,
        mode,
        rules: Vec::new(),
        pool: Some(0),
        http2_prior_knowledge: false,
        proxy_from: Vec::new(),
    }
}

/// An HTTP proxy with one pool.
pub(crate) fn config(ports: &[u16]) -> Config {
    Config {
        listeners: vec![listener(Mode::Http)],
        pools: vec![pool("web", ports)],
        ..Config::default()
    }
}

fn address(port: u16) -> SocketAddr {
    format!("{ADDRESS}:{port}").parse().unwrap()
}

pub(crate) const GET: &str = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";

/// A response with this body.
pub(crate) fn response(body: &str) -> String {
    head(body.len()) + body
}

fn head(length: usize) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n")
}

impl World {
    /// The proxy, and backends that listen on these ports.
    pub(crate) fn new(config: Config, backends: &[u16]) -> World {
        World::with(config, backends, |_| {})
    }

    /// The same on a stack with other settings.
    pub(crate) fn with(
        config: Config,
        backends: &[u16],
        change: impl FnOnce(&mut StackConfig),
    ) -> World {
        let (port, wire) = pair(memory::Link::default());
        let addresses = [ADDRESS].into_iter().chain(OTHERS);
        let addresses = addresses.map(|address| (address.parse().unwrap(), 24));
        let mut stack_config = StackConfig::new(addresses.collect(), Vec::new(), [3; 16]);
        change(&mut stack_config);
        let (host, nic) = in_memory();
        let now_us = 1_000_000;
        let mut stack = Stack::new(stack_config, Link::of(&port), vec![host], now_us);
        stack.set_proxies(config.proxies());
        let listeners: Vec<u16> = config.listeners.iter().map(|it| it.port).collect();
        let mut proxy = Proxy::new(config);
        let log = Log::default();
        proxy.log_accesses(Box::new(log.clone()));
        proxy.set_access_log(true);
        for (number, listener) in listeners.into_iter().enumerate() {
            let binding = listen(&mut stack, Owner::PROXY, listener);
            proxy.add_listener(binding, number);
        }
        for backend in backends {
            listen(&mut stack, PEERS, *backend);
        }
        let apps = Applications {
            server: Absent,
            proxy,
            others: Peers::default(),
        };
        World {
            now_us,
            stack,
            port,
            _wire: wire,
            nic: FakeNic::new(nic),
            apps,
            log,
        }
    }

    /// A backend begins to listen.
    pub(crate) fn listen(&mut self, port: u16) {
        listen(&mut self.stack, PEERS, port);
    }

    pub(crate) fn proxy(&mut self) -> &mut Proxy {
        &mut self.apps.proxy
    }

    /// Memory of all connections, in bytes, and how many were reset for it.
    pub(crate) fn memory(&self) -> (usize, u64) {
        let evictions = self.stack.counters().memory_evictions;
        (self.stack.connection_memory_bytes(), evictions)
    }

    pub(crate) fn counters(&self) -> proxy::Counters {
        *self.apps.proxy.counters()
    }

    pub(crate) fn stack_counters(&self) -> host::Counters {
        self.stack.counters()
    }

    fn act(&mut self, act: impl FnOnce(&mut dyn Io, &mut Peers)) {
        let peers = &mut self.apps.others;
        let act = |io: &mut dyn Io| act(io, peers);
        self.stack.wake(self.now_us, &mut Once(Some(act)));
        self.settle();
    }

    /// A client that has connected.
    pub(crate) fn connect(&mut self) -> StreamId {
        self.connect_from(&format!("{ADDRESS}:0"))
    }

    /// The same from this address and port.
    pub(crate) fn connect_from(&mut self, local: &str) -> StreamId {
        self.connect_all_from(local, 1)[0]
    }

    /// So many at once.
    pub(crate) fn connect_all_from(&mut self, local: &str, count: usize) -> Vec<StreamId> {
        let (local, to) = (local.parse().unwrap(), address(PROXY_PORT));
        let streams = (0..count).map(|_| {
            let stream = self.stack.connect(self.now_us, PEERS, Some(local), to);
            let stream = stream.unwrap();
            self.apps.others.heard.insert(stream, Heard::default());
            stream
        });
        let streams = streams.collect();
        self.settle();
        streams
    }

    /// A client that has sent this.
    pub(crate) fn client(&mut self, text: &str) -> StreamId {
        let client = self.connect();
        self.send(client, text);
        client
    }

    /// Sends a request on a client's connection; status of the response and microseconds until all
    /// of that is there, which has to be within `limit`.
    #[track_caller]
    pub(crate) fn exchange(&mut self, client: StreamId, text: &str, limit: Duration) -> (u16, u64) {
        self.apps
            .others
            .heard
            .entry(client)
            .or_default()
            .received
            .clear();
        let begun_us = self.now_us;
        let act = |io: &mut dyn Io, peers: &mut Peers| {
            let heard = peers.heard.entry(client).or_default();
            heard.unsent.extend_from_slice(text.as_bytes());
            peers.send(io, client);
        };
        let peers = &mut self.apps.others;
        let act = |io: &mut dyn Io| act(io, peers);
        self.stack.wake(self.now_us, &mut Once(Some(act)));
        loop {
            if let Some((bytes, _)) = whole_request(&self.heard(client).received) {
                let received = &self.heard(client).received[..bytes];
                let status = std::str::from_utf8(&received[9..12]).unwrap();
                return (status.parse().unwrap(), self.now_us - begun_us);
            }
            let is_there = self.now_us - begun_us < limit.as_micros() as u64;
            assert!(is_there, "no response: {:?}", self.apps.proxy);
            self.step_or_wait(begun_us + limit.as_micros() as u64);
        }
    }

    /// Takes a turn, or lets time pass to the next event if there is nothing to do.
    fn step_or_wait(&mut self, end_us: u64) {
        if self.step() {
            return;
        }
        let timers = [self.stack.next_timeout_us(), self.apps.next_timeout_us()];
        let next_us = timers.into_iter().flatten().min().unwrap_or(u64::MAX);
        self.now_us = self.now_us.max(next_us.min(end_us));
    }

    pub(crate) fn send(&mut self, stream: StreamId, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref().to_vec();
        self.act(|io, peers| {
            let heard = peers.heard.entry(stream).or_default();
            heard.unsent.extend_from_slice(&bytes);
            peers.send(io, stream);
        });
    }

    /// Sends this on each of these connections at once.
    pub(crate) fn send_on_all(&mut self, streams: &[StreamId], text: impl AsRef<[u8]>) {
        self.act(|io, peers| {
            for stream in streams {
                let heard = peers.heard.entry(*stream).or_default();
                heard.unsent.extend_from_slice(text.as_ref());
                peers.send(io, *stream);
            }
        });
    }

    pub(crate) fn finish(&mut self, stream: StreamId) {
        self.act(|io, peers| {
            peers.heard.entry(stream).or_default().finishes = true;
            peers.send(io, stream);
        });
    }

    pub(crate) fn abort(&mut self, stream: StreamId) {
        self.act(|io, _| io.abort(stream));
    }

    /// Peers take what has arrived again.
    pub(crate) fn resume(&mut self) {
        self.act(|io, peers| {
            peers.is_stalled = false;
            let streams: Vec<StreamId> = peers.heard.keys().copied().collect();
            for stream in streams {
                peers.receive(io, stream);
            }
        });
    }

    /// A peer that takes nothing by itself takes so many bytes; returns how many there were.
    pub(crate) fn receive(&mut self, stream: StreamId, bytes_max: usize) -> usize {
        let mut count = 0;
        self.act(|io, peers| {
            let mut buffer = vec![0; bytes_max];
            count = io.read(stream, &mut buffer);
            let heard = peers.heard.entry(stream).or_default();
            heard.received.extend_from_slice(&buffer[..count]);
        });
        count
    }

    /// What the proxy has counted of each backend, by pool and name.
    pub(crate) fn backends(&self) -> BTreeMap<(String, String), BackendCounters> {
        let views = self.apps.proxy.backends(self.now_us).into_iter();
        let view = |it: proxy::BackendView<'_>| {
            let place = (it.pool.to_owned(), it.name.to_owned());
            (place, it.counters)
        };
        views.map(view).collect()
    }

    /// Why lookups and checks of backends that are down have failed.
    pub(crate) fn failures(&self) -> Vec<String> {
        let views = self.apps.proxy.backends(self.now_us).into_iter();
        let down = views.filter(|view| view.counters.up == 0);
        down.flat_map(|view| view.failures).collect()
    }

    /// Connections that have come to a backend.
    pub(crate) fn accepted(&self, port: u16) -> Vec<StreamId> {
        let accepted = self.apps.others.accepted.get(&port);
        accepted.cloned().unwrap_or_default()
    }

    /// The last of them.
    #[track_caller]
    pub(crate) fn backend(&self, port: u16) -> StreamId {
        *self.accepted(port).last().expect("a connection")
    }

    pub(crate) fn heard(&self, stream: StreamId) -> &Heard {
        &self.apps.others.heard[&stream]
    }

    /// What has arrived since the last call, which need not be text.
    pub(crate) fn take_bytes(&mut self, stream: StreamId) -> Vec<u8> {
        let heard = self.apps.others.heard.entry(stream).or_default();
        std::mem::take(&mut heard.received)
    }

    /// What has arrived since the last call.
    pub(crate) fn take(&mut self, stream: StreamId) -> String {
        let heard = self.apps.others.heard.entry(stream).or_default();
        String::from_utf8(std::mem::take(&mut heard.received)).unwrap()
    }

    /// Both sides of a connection have ended in order, or it is reset.
    pub(crate) fn has_ended(&self, stream: StreamId) -> bool {
        let heard = self.heard(stream);
        heard.has_finished || heard.closed.is_some()
    }

    fn step(&mut self) -> bool {
        self.now_us += 10;
        let now_us = self.now_us;
        self.stack.on_channels(now_us, usize::MAX).unwrap();
        self.stack.on_time(now_us);
        let busy = self.stack.serve(now_us, &mut self.port, &mut self.apps);
        self.nic.take();
        busy
    }

    /// Takes turns until there is nothing left to do at once, acknowledgements that wait a moment
    /// included.
    pub(crate) fn settle(&mut self) {
        let end_us = self.now_us + 60_000;
        self.run_to(end_us);
    }

    /// Time passes.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end_us = self.now_us + time.as_micros() as u64;
        self.run_to(end_us);
    }

    fn run_to(&mut self, end_us: u64) {
        for _ in 0..3_000_000 {
            if self.step() {
                continue;
            }
            let timers = [self.stack.next_timeout_us(), self.apps.next_timeout_us()];
            let next_us = timers.into_iter().flatten().min().unwrap_or(u64::MAX);
            if next_us > end_us {
                self.now_us = self.now_us.max(end_us);
                return;
            }
            self.now_us = self.now_us.max(next_us);
        }
        panic!("it never rests: {:?}", self.apps.proxy);
    }

    /// The proxy ends; true later, when no connection is left.
    pub(crate) fn drain(&mut self) -> Arc<AtomicBool> {
        let is_empty = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&is_empty);
        let on_empty = move || told.store(true, Ordering::Relaxed);
        self.apps.proxy.drain(on_empty);
        self.settle();
        is_empty
    }

    /// The access log so far: status, backend, retries, request line.
    pub(crate) fn records(&mut self) -> Vec<String> {
        self.pass(Duration::from_millis(200));
        let bytes = std::mem::take(&mut *self.log.0.lock().unwrap());
        let (mut rest, mut lines) = (&bytes[..], Vec::new());
        while let Some((record, next)) = http_message::access::AccessRecord::take(rest) {
            lines.push(format!(
                "{} {} {} {} {}",
                record.status,
                record.backend.unwrap_or("-"),
                record.retries,
                record.body_bytes,
                String::from_utf8_lossy(record.request_line),
            ));
            rest = next;
        }
        lines
    }
}

fn listen(stack: &mut Stack, owner: Owner, port: u16) -> host::app::BindingId {
    let binding = stack.bind(&Bind::new(owner, address(port))).unwrap();
    stack.listen(binding, StreamOptions::default()).unwrap();
    binding
}
