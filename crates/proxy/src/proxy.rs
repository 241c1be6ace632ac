//! The table of sessions, and the dispatch of events.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::sync::Arc;

use host::app::{AppEvent, Application, BindingId, Io, Owner, StreamId, StreamMemory};
use http_message::access::{AccessLog, AccessSink};

use crate::checks::Checks;
use crate::config::Config;
use crate::counters::{BackendCounters, Counters};
use crate::pools::BackendId;
use crate::session::Session;
use crate::shared::{Shared, Use};

/// A load balancer: one per shard. Without listeners it does nothing.
pub struct Proxy {
    sessions: HashMap<u64, Box<Session>>,
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
    /// If a rule or a listener names a pool that does not exist.
    pub fn new(config: Config) -> Self {
        let mut proxy = Proxy {
            sessions: HashMap::new(),
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
            assert!(named.all(|pool| pool < pools), "a pool that is not there");
        }
        let changes = self.shared.pools.reconfigure(&self.shared.config, &config);
        self.shared.config = Arc::new(config);
        for session in self.sessions.values_mut() {
            session.renumber(&changes.pools);
        }
        self.shared.unwanted.extend(changes.idle);
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

    /// Number of client connections.
    pub fn sessions(&self) -> usize {
        self.sessions.len()
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

    fn accept(&mut self, io: &mut dyn Io, stream: StreamId, peer: std::net::SocketAddr) {
        let binding = io.listener(stream);
        let listener = binding.and_then(|binding| self.listeners.get(&binding));
        let Some(&listener) = listener else {
            io.abort(stream);
            return;
        };
        self.last += 1;
        let key = self.last;
        self.shared.counters.connections_accepted += 1;
        self.shared.streams.insert(stream, Use::Client(key));
        let session = Session::new(io, &self.shared, key, stream, (listener, peer));
        self.sessions.insert(key, Box::new(session));
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
        if session.is_over() {
            self.shared.streams.remove(&session.client());
            self.shared.counters.connections_closed += 1;
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

    fn close_unwanted(&mut self, io: &mut dyn Io) {
        for stream in std::mem::take(&mut self.shared.unwanted) {
            self.shared.streams.remove(&stream);
            Shared::end(io, stream);
        }
    }

    fn begin_drain(&mut self, io: &mut dyn Io) {
        self.checks.abort(io, &mut self.shared);
        let idle = self.shared.pools.take_idle();
        self.shared.unwanted.extend(idle);
        self.close_unwanted(io);
        let keys: Vec<u64> = self.sessions.keys().copied().collect();
        for key in keys {
            self.with(key, |session, shared| session.advance(io, shared));
        }
    }
}

impl Application for Proxy {
    fn on_event(&mut self, io: &mut dyn Io, stream: StreamId, event: AppEvent) {
        if let AppEvent::Accepted { peer, .. } = event {
            self.accept(io, stream, peer);
        }
        let used = self.shared.streams.get(&stream).copied();
        if matches!(event, AppEvent::Closed { .. }) {
            self.shared.streams.remove(&stream);
        }
        match used {
            Some(Use::Client(key)) => {
                self.with(key, |session, shared| session.on_client(io, shared, &event));
            }
            Some(Use::Backend(key)) => self.with(key, |session, shared| {
                session.on_backend(io, shared, stream, &event);
            }),
            Some(Use::Idle(backend)) => self.on_idle(io, stream, backend, &event),
            Some(Use::Check) => self.checks.on_event(io, &mut self.shared, stream, &event),
            None => {}
        }
        self.wake(io);
    }

    fn memory(&self, _owner: Owner, stream: StreamId) -> StreamMemory {
        match self.shared.streams.get(&stream) {
            Some(Use::Client(key) | Use::Backend(key)) => {
                let session = self.sessions.get(key);
                session.map_or_else(StreamMemory::default, |session| session.memory(stream))
            }
            Some(Use::Idle(_) | Use::Check) | None => StreamMemory::default(),
        }
    }

    fn on_turn(&mut self, io: &mut dyn Io, now_us: u64) -> bool {
        if let Some(log) = &mut self.shared.access_log {
            log.on_turn(now_us);
        }
        self.close_unwanted(io);
        let mut has_begun = false;
        if !self.shared.is_draining {
            let due_us = self.shared.pools.next_check_us(&self.shared.config);
            if due_us.is_some_and(|due_us| due_us <= now_us) {
                has_begun = self.checks.begin_due(io, &mut self.shared);
            }
        }
        self.relieve(io);
        self.wake(io);
        let Drain::Yes {
            on_empty,
            begins,
            told_us,
        } = &mut self.drain
        else {
            return has_begun;
        };
        if self.sessions.is_empty() && now_us.saturating_sub(*told_us) >= EMPTY_EVERY_US {
            *told_us = now_us;
            on_empty();
        }
        if std::mem::take(begins) {
            self.begin_drain(io);
            return true;
        }
        has_begun
    }

    fn next_timeout_us(&self) -> Option<u64> {
        let empty_us = match self.drain {
            Drain::Yes { told_us, .. } if self.sessions.is_empty() => {
                Some(told_us + EMPTY_EVERY_US)
            }
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

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy")
            .field("sessions", &self.sessions.len())
            .field("counters", &self.shared.counters)
            .finish_non_exhaustive()
    }
}
