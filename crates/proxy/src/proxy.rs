//! The table of sessions, and the dispatch of events.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::sync::Arc;

use host::app::{
    AppEvent, Application, BindingId, Io, Owner, Proxied, StreamId, StreamMemory, TlsAgreed,
};
use http_message::access::{AccessLog, AccessSink, AccessTls};

use crate::arrival::Arrival;
use crate::buffer::Buffer;
use crate::checks::Checks;
use crate::config::{Config, Mode};
use crate::counters::{BackendCounters, Counters};
use crate::http2::names::{Notice, is_of_http2};
use crate::http2::session_io::SessionIo;
use crate::http2::table::Connections;
use crate::pools::BackendId;
use crate::session::Session;
use crate::shared::{Shared, Use};

/// A load balancer: one per shard. Without listeners it does nothing.
pub struct Proxy {
    sessions: HashMap<u64, Box<Session>>,
    /// Connections of HTTP/2. They are elsewhere while sessions have their streams.
    http2: Connections,
    /// Sessions whose clients have begun with HTTP/2.
    prefaced: Vec<u64>,
    shared: Shared,
    checks: Checks,
    /// Number of the listener of each bound address.
    listeners: HashMap<BindingId, usize>,
    last: u64,
    sink: Option<AccessLog>,
    drain: Drain,
}

/// A backend of a pool, and its counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendView<'a> {
    /// The pool's name.
    pub pool: &'a str,
    /// The backend's name.
    pub name: &'a str,
    /// Address on which it listens; only the port if its name has no address.
    pub address: SocketAddr,
    /// Counters of the backend.
    pub counters: BackendCounters,
    /// Failures of the last lookup of its name, and of the last check.
    pub failures: Vec<String>,
}

/// State of the graceful shutdown.
enum Drain {
    No,
    Yes {
        /// Called repeatedly while no session is left.
        on_empty: Box<dyn FnMut() + Send>,
        /// Idle connections have yet to be closed.
        begins: bool,
        /// Time of the last call, in microseconds.
        told_us: u64,
    },
}

/// Most sessions that give up their connection to a backend of a pool in one turn.
const RELIEVED_AT_ONCE_MAX: usize = 32;

/// Interval between calls of `on_empty`, in microseconds: connections in flight may still arrive.
const EMPTY_EVERY_US: u64 = 100_000;

impl Proxy {
    /// Creates a proxy with this configuration.
    ///
    /// # Panics
    /// If a rule or a listener names a pool that does not exist, or in TCP mode one of HTTP/2.
    pub fn new(config: Config) -> Self {
        let mut proxy = Proxy {
            sessions: HashMap::new(),
            http2: Connections::default(),
            prefaced: Vec::new(),
            shared: Shared::new(),
            checks: Checks::default(),
            listeners: HashMap::new(),
            last: 0,
            sink: None,
            drain: Drain::No,
        };
        proxy.use_config(config);
        proxy
    }

    /// Assigns the connections of this binding to a listener, by number.
    pub fn add_listener(&mut self, binding: BindingId, number: usize) {
        self.listeners.insert(binding, number);
    }

    /// Replaces the configuration, for requests that begin from now on. Ports stay as they are: the
    /// listeners must be as many as before, in the same order.
    ///
    /// # Panics
    /// As [`Proxy::new`].
    pub fn reconfigure(&mut self, config: Config) {
        self.use_config(config);
    }

    fn use_config(&mut self, config: Config) {
        let pools = config.pools.len();
        for listener in &config.listeners {
            let named = listener.rules.iter().map(|rule| rule.pool);
            let mut named = named.chain(listener.pool);
            let is_fit = |pool: usize| {
                let is_http = listener.mode == Mode::Http;
                pool < pools && (is_http || !config.speaks_http2(Some(pool)))
            };
            assert!(named.all(is_fit), "a pool that is not there, or of HTTP/2");
        }
        let changes = self.shared.pools.reconfigure(&self.shared.config, &config);
        self.shared.config = Arc::new(config);
        for session in self.sessions.values_mut() {
            session.renumber(&changes.pools);
        }
        self.shared.unwanted.extend(changes.idle);
        self.shared.has_new_pools = true;
        self.shared.woken.extend(changes.waiting);
        self.shared.pools.count(&mut self.shared.counters);
    }

    /// Closes all connections, none amid a response: idle ones at once, others after the current
    /// response, or the next one, which has `Connection: close`. Connections in TCP mode continue
    /// until they end. Calls `on_empty` when no connection is left.
    pub fn drain(&mut self, on_empty: impl FnMut() + Send + 'static) {
        self.shared.is_draining = true;
        self.drain = Drain::Yes {
            on_empty: Box::new(on_empty),
            begins: true,
            told_us: 0,
        };
    }

    /// Number of client connections, and of streams of HTTP/2.
    pub fn sessions(&self) -> usize {
        self.sessions.len() + self.http2.clients()
    }

    /// Logs each response in an access log that `sink` keeps, while the log is on.
    pub fn log_accesses(&mut self, sink: Box<dyn AccessSink>) {
        self.sink = Some(AccessLog::new(sink));
    }

    /// Turns the access log on or off, if there is a sink.
    pub fn set_access_log(&mut self, is_on: bool) {
        let (from, to) = match is_on {
            true => (&mut self.sink, &mut self.shared.access_log),
            false => (&mut self.shared.access_log, &mut self.sink),
        };
        if to.is_none() {
            *to = from.take();
        }
    }

    /// Number of access log records that were dropped.
    pub fn access_records_lost(&self) -> u64 {
        let logs = [&self.sink, &self.shared.access_log];
        logs.into_iter().flatten().map(AccessLog::lost).sum()
    }

    /// Event counts since the proxy's creation.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Returns the backends of all pools, in the order of the configuration, with their counters. A
    /// backend that a pool has twice appears once.
    pub fn backends(&self, now_us: u64) -> Vec<BackendView<'_>> {
        let config = &self.shared.config;
        let mut views: Vec<BackendView<'_>> = Vec::new();
        let mut places = HashMap::new();
        for (pool, state, counters) in self.shared.pools.all(now_us) {
            let place = places.entry((pool, &*state.name)).or_insert(views.len());
            let place = *place;
            match views.get_mut(place) {
                Some(view) => view.counters.add(&counters),
                None => views.push(BackendView {
                    pool: &config.pools[pool].name,
                    name: &state.name,
                    address: state.address,
                    counters,
                    failures: state.failures(),
                }),
            }
        }
        views
    }

    /// True if there are pools.
    pub fn has_pools(&self) -> bool {
        !self.shared.config.pools.is_empty()
    }

    fn accept(
        &mut self,
        io: &mut SessionIo<'_>,
        stream: StreamId,
        (peer, proxied): (SocketAddr, Option<&Proxied>),
        tls: Option<&TlsAgreed>,
    ) {
        let binding = io.listener(stream);
        let listener = binding.and_then(|binding| self.listeners.get(&binding));
        let Some(&listener) = listener else {
            io.abort(stream);
            return;
        };
        self.shared.counters.connections_accepted += 1;
        let own = io.addresses(stream).map_or(peer, |(local, _)| local);
        let arrival = Arrival {
            listener,
            connection: stream,
            requests_before: 0,
            peer: proxied.map_or(peer, |proxied| proxied.client),
            proxy: proxied.map(|_| peer.ip()),
            local: proxied.map_or(own, |proxied| proxied.local),
            tls: tls.map(access_tls),
        };
        let shared = &mut self.shared;
        match tls.and_then(|tls| tls.alpn.as_deref()) {
            Some(b"h2") => {
                io.connections
                    .open(io.io, shared, stream, arrival, Buffer::default());
            }
            _ => self.begin_session(io, stream, arrival),
        }
    }

    fn begin_session(&mut self, io: &mut dyn Io, client: StreamId, arrival: Arrival) {
        self.last += 1;
        let key = self.last;
        self.shared.streams.insert(client, Use::Client(key));
        let session = Session::new(io, &self.shared, key, client, arrival);
        self.sessions.insert(key, Box::new(session));
    }

    /// Runs `act` with streams of HTTP/2 beside the host's, and then hands sessions the news of
    /// HTTP/2.
    fn with_http2<T>(
        &mut self,
        io: &mut dyn Io,
        act: impl FnOnce(&mut Self, &mut SessionIo<'_>) -> T,
    ) -> T {
        let mut connections = std::mem::take(&mut self.http2);
        let mut io = SessionIo {
            io,
            connections: &mut connections,
        };
        let result = act(self, &mut io);
        loop {
            if let Some(key) = self.prefaced.pop() {
                self.speak_http2(&mut io, key);
            } else if let Some(want) = self.shared.wanted.take() {
                io.connections.carry(io.io, &mut self.shared, want);
            } else if let Some(notice) = io.connections.next_notice(io.io, &mut self.shared) {
                self.on_notice(&mut io, notice);
                self.wake(&mut io);
            } else {
                break;
            }
        }
        self.http2 = connections;
        result
    }

    /// A client has begun with HTTP/2.
    fn speak_http2(&mut self, io: &mut SessionIo<'_>, key: u64) {
        if let Some(session) = self.sessions.remove(&key) {
            let stream = session.client();
            let (arrival, input) = session.into_arrival();
            let shared = &mut self.shared;
            io.connections.open(io.io, shared, stream, arrival, input);
        }
    }

    fn on_notice(&mut self, io: &mut SessionIo<'_>, notice: Notice) {
        match notice {
            Notice::Opened {
                name,
                connection,
                id,
            } => {
                if let Some(arrival) = io.connections.arrival(connection) {
                    let arrival = Arrival {
                        requests_before: id / 2,
                        ..arrival
                    };
                    self.begin_session(io, name, arrival);
                }
            }
            Notice::Carried { name, is_reused } => {
                if let Some(key) = self.session_of(name) {
                    self.with(key, |session, shared| {
                        session.on_carried(io, shared, is_reused)
                    });
                } else {
                    self.dispatch(io, name, &AppEvent::Connected);
                }
            }
            Notice::NotOpened { name, why } => match self.session_of(name) {
                Some(key) => {
                    self.with(key, |session, shared| {
                        session.on_not_opened(io, shared, why)
                    });
                }
                None => self.checks.on_not_opened(&mut self.shared, name),
            },
            Notice::Unprocessed { name, is_refused } => match self.session_of(name) {
                Some(key) => self.with(key, |session, shared| {
                    session.on_unprocessed(io, shared, is_refused);
                }),
                None => self.checks.on_unprocessed(&mut self.shared, name),
            },
            Notice::Event(name, event) => {
                self.dispatch(io, name, &event);
                if matches!(event, AppEvent::Closed { .. }) {
                    io.connections.take_unread(name);
                }
            }
        }
    }

    /// The session that has asked for a stream to a backend.
    fn session_of(&self, name: StreamId) -> Option<u64> {
        match self.shared.streams.get(&name) {
            Some(&Use::Backend(key)) => Some(key),
            _ => None,
        }
    }

    /// Passes an event to the user of a stream.
    fn dispatch(&mut self, io: &mut SessionIo<'_>, stream: StreamId, event: &AppEvent) {
        let used = self.shared.streams.get(&stream).copied();
        if matches!(event, AppEvent::Closed { .. }) {
            self.shared.streams.remove(&stream);
        }
        match used {
            Some(Use::Client(key)) => {
                self.with(key, |session, shared| session.on_client(io, shared, event));
            }
            Some(Use::Http2) => {
                io.connections
                    .on_event(io.io, &mut self.shared, stream, event);
            }
            Some(Use::Backend(key)) => self.with(key, |session, shared| {
                session.on_backend(io, shared, stream, event);
            }),
            Some(Use::Idle(backend)) => self.on_idle(io, stream, backend, event),
            Some(Use::Check) => self.checks.on_event(io, &mut self.shared, stream, event),
            None => {}
        }
    }

    /// Handles an event of an idle connection to a backend.
    fn on_idle(&mut self, io: &mut dyn Io, stream: StreamId, backend: BackendId, event: &AppEvent) {
        match event {
            // The last request, and the last bytes of its response.
            AppEvent::Drained | AppEvent::Writable => return,
            AppEvent::Readable if io.unread(stream) == 0 => return,
            // Unrequested bytes, the backend's end, or the idle timeout.
            AppEvent::Closed { .. } => {}
            AppEvent::PeerFinished => io.close(stream),
            _ => Shared::end(io, stream),
        }
        self.shared.pools.forget_idle(backend, stream);
        self.shared.streams.remove(&stream);
    }

    /// Runs `act` on a session, and removes the session if it is over.
    fn with(&mut self, key: u64, act: impl FnOnce(&mut Session, &mut Shared)) {
        let Some(session) = self.sessions.get_mut(&key) else {
            return;
        };
        act(session, &mut self.shared);
        if session.has_preface() {
            self.prefaced.push(key);
        }
        if session.is_over() {
            let client = session.client();
            self.shared.streams.remove(&client);
            self.shared.counters.connections_closed += u64::from(!is_of_http2(client));
            self.sessions.remove(&key);
        }
    }

    /// Resumes sessions that have waited, one after the other.
    fn wake(&mut self, io: &mut dyn Io) {
        if !self.shared.has_work() {
            return;
        }
        // A session that waits again, in vain, is not resumed twice.
        let ends = self.shared.pools.queue_ends();
        loop {
            if let Some(key) = self.shared.displaced.pop_front() {
                self.with(key, |session, shared| session.on_displaced(io, shared));
                continue;
            }
            let woken = self.shared.woken.pop_front();
            let next = woken.or_else(|| {
                let (config, pools) = (&self.shared.config, &mut self.shared.pools);
                pools.next_waiting(config, io.now_us(), &ends)
            });
            let Some(key) = next else { return };
            self.with(key, |session, shared| session.on_woken(io, shared));
        }
    }

    /// Evicts sessions that delay others, in pools whose requests have waited too long.
    fn relieve(&mut self, io: &mut dyn Io) {
        let now_us = io.now_us();
        let due = self
            .shared
            .pools
            .due_for_relief(&self.shared.config, now_us);
        for pool in due {
            for _ in 0..RELIEVED_AT_ONCE_MAX {
                let Some(session) = self.slowest(io, pool) else {
                    break;
                };
                self.shared.on_eviction(now_us, pool);
                self.with(session, |session, shared| session.evict(io, shared));
                self.wake(io);
            }
        }
    }

    /// Returns the session that must give up its connection to a backend of a pool, if any.
    fn slowest(&self, io: &dyn Io, pool: usize) -> Option<u64> {
        let config = &self.shared.config;
        let relief = self.shared.pools.relief(config, pool, io.now_us())?;
        let rate = |key: &u64| {
            let rate = self.sessions.get(key)?.rate_of_delay(io)?;
            Some((rate, *key))
        };
        let slowest = |sessions: &Vec<u64>| sessions.iter().filter_map(rate).min();
        let of_large = relief.large.iter().find_map(slowest);
        let rate_min = config.bytes_per_second_min.map_or(0, NonZeroU64::get);
        let is_tunnel = |key: &u64| self.sessions.get(key).is_some_and(|it| it.is_tunnel());
        let of_all = || {
            let all = relief.all.iter().filter(|key| !is_tunnel(key));
            let slow = all.filter_map(rate).filter(|(rate, _)| *rate < rate_min);
            slow.min()
        };
        of_large.or_else(of_all).map(|(_, key)| key)
    }

    /// The client whose session makes streams to a backend hold the most memory, if any does.
    fn largest_client(&self, names: &[StreamId]) -> Option<StreamId> {
        let held = |name: &&StreamId| self.http2.stream_memory_bytes(**name);
        let largest = names
            .iter()
            .filter(|name| held(name) > 0)
            .max_by_key(held)?;
        let session = self.sessions.get(&self.session_of(*largest)?)?;
        Some(session.client())
    }

    fn close_unwanted(&mut self, io: &mut dyn Io) {
        for stream in std::mem::take(&mut self.shared.unwanted) {
            self.shared.streams.remove(&stream);
            Shared::end(io, stream);
        }
    }

    fn begin_drain(&mut self, io: &mut SessionIo<'_>) {
        self.checks.abort(io, &mut self.shared);
        let idle = self.shared.pools.take_idle();
        self.shared.unwanted.extend(idle);
        self.close_unwanted(io);
        let keys: Vec<u64> = self.sessions.keys().copied().collect();
        for key in keys {
            self.with(key, |session, shared| session.advance(io, shared));
        }
        io.connections.drain(io.io, &mut self.shared);
    }

    /// Handles the beginning and the end of the shutdown; true if it has begun now.
    fn advance_drain(&mut self, io: &mut SessionIo<'_>, now_us: u64) -> bool {
        let Drain::Yes {
            on_empty,
            begins,
            told_us,
        } = &mut self.drain
        else {
            return false;
        };
        let is_empty = self.sessions.is_empty() && io.connections.clients() == 0;
        if is_empty && now_us.saturating_sub(*told_us) >= EMPTY_EVERY_US {
            *told_us = now_us;
            on_empty();
        }
        let begins = std::mem::take(begins);
        if begins {
            self.begin_drain(io);
        }
        begins
    }
}

impl Application for Proxy {
    fn on_event(&mut self, io: &mut dyn Io, stream: StreamId, event: AppEvent) {
        self.with_http2(io, |proxy, io| {
            if let AppEvent::Accepted { peer, proxied, tls } = &event {
                proxy.accept(io, stream, (*peer, proxied.as_deref()), tls.as_deref());
            }
            proxy.dispatch(io, stream, &event);
            proxy.wake(io);
        });
    }

    fn memory(&self, _owner: Owner, stream: StreamId) -> StreamMemory {
        let of_session = |stream: StreamId| match self.shared.streams.get(&stream) {
            Some(Use::Client(key) | Use::Backend(key)) => {
                let session = self.sessions.get(key);
                session.map_or_else(StreamMemory::default, |session| session.memory(stream))
            }
            _ => StreamMemory::default(),
        };
        let mut memory = of_session(stream);
        if self.shared.streams.get(&stream) == Some(&Use::Http2) {
            let (bytes, names) = self.http2.memory(stream);
            let of_names = names.iter().map(|&it| of_session(it).bytes);
            memory.bytes = bytes + of_names.sum::<usize>();
            match self.http2.arrival(stream) {
                Some(arrival) => memory.client = Some(arrival.peer.ip()),
                // A client that takes nothing makes the connection to a backend hold the most.
                None => memory.serves = self.largest_client(&names),
            }
        }
        memory.serves = memory.serves.map(|client| self.http2.carrier(client));
        memory
    }

    fn on_turn(&mut self, io: &mut dyn Io, now_us: u64) -> bool {
        if let Some(log) = &mut self.shared.access_log {
            log.on_turn(now_us);
        }
        self.with_http2(io, |proxy, io| {
            proxy.close_unwanted(io);
            if std::mem::take(&mut proxy.shared.has_new_pools) {
                io.connections.review(io.io, &mut proxy.shared);
            }
            let mut has_begun = false;
            if !proxy.shared.is_draining {
                let due_us = proxy.shared.pools.next_check_us(&proxy.shared.config);
                if due_us.is_some_and(|due_us| due_us <= now_us) {
                    has_begun = proxy.checks.begin_due(io, &mut proxy.shared);
                }
            }
            proxy.relieve(io);
            proxy.wake(io);
            proxy.advance_drain(io, now_us) || has_begun
        })
    }

    fn next_timeout_us(&self) -> Option<u64> {
        let empty_us = match self.drain {
            Drain::Yes { told_us, .. } if self.sessions() == 0 => Some(told_us + EMPTY_EVERY_US),
            _ => None,
        };
        let check_us = match self.shared.is_draining {
            false => self.shared.pools.next_check_us(&self.shared.config),
            true => None,
        };
        let relief_us = self.shared.pools.next_relief_us();
        let log = self.shared.access_log.as_ref();
        let log_us = log.and_then(AccessLog::next_timeout_us);
        // Sessions that began to wait, beside room, while others were woken.
        let wake_us = self.shared.has_work().then_some(0);
        let times = empty_us.into_iter().chain(check_us).chain(relief_us);
        times.chain(log_us).chain(wake_us).min()
    }
}

/// TLS parameters for the access log.
fn access_tls(agreed: &TlsAgreed) -> AccessTls<'static> {
    AccessTls {
        version: agreed.suite.version.name(),
        cipher: agreed.suite.cipher.name(),
        is_resumed: agreed.is_resumed,
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy")
            .field("sessions", &self.sessions.len())
            .field("counters", &self.shared.counters)
            .finish_non_exhaustive()
    }
}
