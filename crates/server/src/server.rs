//! The table of connections, and their shared state.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use host::Episode;
use host::app::{
    AppEvent, Application, Io, Owner, Proxied, QuicConnection, QuicEvent, StreamId, StreamMemory,
    TlsAgreed,
};
use http_message::access::{AccessLog, AccessSink};
use rustc_hash::FxHashMap;

use crate::access::Accesses;
use crate::config::Config;
use crate::counters::Counters;
use crate::exchange::client::Arrival;
use crate::exchange::field_section::Scratch;
use crate::exchange::input::{Input, Pool};
use crate::exchange::lifecycle::ConnectionInfo;
use crate::exchange::shared::Shared;
use crate::http1::connection::Connection;
use crate::http1::plain;
use crate::http2;
use crate::http3;
use crate::http3::connection::Handshake;
use crate::semantics::date::DateCache;
use crate::semantics::joined_rules::JoinedRules;
use crate::semantics::pull::Origins;
use crate::semantics::rate::Rates;
use crate::semantics::request_limit::RequestCounts;
use crate::semantics::scheme::Scheme;
use crate::semantics::site::{Names, Site};

/// A server of files over HTTP/1.1, HTTP/2 and HTTP/3: one per shard.
pub struct Server {
    /// HTTP/1.1 connections, boxed since half of the table may be empty. The host stack counts
    /// stream ids up, so that their hash needs no key.
    connections: FxHashMap<StreamId, Box<Connection>>,
    /// HTTP/2 connections.
    http2_connections: FxHashMap<StreamId, Box<http2::connection::Connection>>,
    /// HTTP/3 connections.
    http3_connections: FxHashMap<QuicConnection, Box<http3::connection::Connection>>,
    scratch: Scratch,
    shared: Shared,
    /// Streams have yet to get their new rate limits.
    new_rates: bool,
    /// Accepted connections are logged.
    logs_accesses: bool,
    drain: Drain,
}

fn rules_of(sites: &[Arc<Site>]) -> Vec<JoinedRules> {
    sites.iter().map(|site| JoinedRules::new(site)).collect()
}

/// State of the graceful shutdown.
enum Drain {
    No,
    /// Called repeatedly while no connection is left: connections in flight may still arrive.
    Yes {
        on_empty: Box<dyn FnMut() + Send>,
        /// Idle connections have yet to be closed.
        begins: bool,
        /// Time of the last call, in microseconds.
        told_us: u64,
    },
}

/// Interval between calls of `on_empty`, in microseconds.
const EMPTY_EVERY_US: u64 = 100_000;

impl Server {
    /// Creates a server with this configuration.
    ///
    /// # Panics
    /// If `head_bytes_max` or `responses_in_flight_max` is zero, which permits no request, or if
    /// there is no site.
    pub fn new(mut config: Config) -> Self {
        config.check();
        let sites = config.take_sites();
        Server {
            connections: FxHashMap::default(),
            http2_connections: FxHashMap::default(),
            http3_connections: FxHashMap::default(),
            scratch: Scratch::default(),
            new_rates: false,
            logs_accesses: false,
            shared: Shared {
                counters: Counters::default(),
                access_log: None,
                date: DateCache::default(),
                pool: Pool::new(config.head_bytes_max),
                out: Vec::new(),
                path: Vec::new(),
                location: Vec::new(),
                file_path: Vec::new(),
                names: Names::new(sites.iter().map(|site| &**site)),
                rules: rules_of(&sites),
                request_counts: RequestCounts::default(),
                many_requests: Episode::default(),
                sites,
                slow_clients: Episode::default(),
                many_ranges: Episode::default(),
                origins: None,
                section_bytes_max: 0,
                http2_streams: 0,
                listings_bytes: 0,
                tickets: Default::default(),
                ticket_last: 0,
                rates: Rates::new(
                    config.connection_bytes_per_second_max,
                    config.source_bytes_per_second_max,
                ),
                is_draining: false,
                config,
            },
            drain: Drain::No,
        }
    }

    /// Replaces the configuration for requests that begin from now on. Requests in hand keep their
    /// sites and rules; limits and timeouts apply from the next use on.
    ///
    /// # Panics
    /// As [`Server::new`].
    pub fn reconfigure(&mut self, mut config: Config) {
        config.check();
        let shared = &mut self.shared;
        shared.pool.resize(config.head_bytes_max);
        shared.sites = config.take_sites();
        shared.names = Names::new(shared.sites.iter().map(|site| &**site));
        shared.rules = rules_of(&shared.sites);
        shared.request_counts.clear();
        shared.config = config;
        self.new_rates = true;
    }

    /// Closes all connections gracefully: idle ones at once, others after the current response, or
    /// the next one, which has `Connection: close`. Connections of HTTP/2 and HTTP/3 send GOAWAY
    /// twice and close when their requests are answered. Calls `on_empty` when no connection is
    /// left.
    pub fn drain(&mut self, on_empty: impl FnMut() + Send + 'static) {
        self.shared.is_draining = true;
        self.drain = Drain::Yes {
            on_empty: Box::new(on_empty),
            begins: true,
            told_us: 0,
        };
    }

    /// Number of connections.
    pub fn connections(&self) -> usize {
        self.connections.len() + self.http2_connections.len() + self.http3_connections.len()
    }

    /// Describes the state of a connection, or of an HTTP/3 stream; `None` if it does not exist or
    /// carries no requests.
    pub fn connection_info(&self, stream: StreamId) -> Option<ConnectionInfo> {
        if let Some(connection) = self.http2_connections.get(&stream) {
            return Some(connection.info());
        }
        match self.connections.get(&stream) {
            Some(connection) => Some(connection.info()),
            None => {
                let mut connections = self.http3_connections.values();
                connections.find_map(|connection| connection.info(stream))
            }
        }
    }

    /// Begins a TCP connection: ALPN decides between versions (RFC 9113 §3.2), without TLS the
    /// first bytes.
    fn accepted(
        &mut self,
        io: &mut dyn Io,
        stream: StreamId,
        peer: SocketAddr,
        proxied: Option<&Proxied>,
        tls: Option<Box<TlsAgreed>>,
    ) {
        let shared = &mut self.shared;
        let scheme = Scheme::of_connection(tls.as_ref());
        let arrival = Arrival::new(&shared.config, peer, proxied, scheme);
        shared.counters.connections_accepted += 1;
        let is_http2 = tls
            .as_ref()
            .is_some_and(|tls| tls.alpn.as_deref() == Some(b"h2"));
        let is_undecided = tls.is_none() && shared.config.http2_prior_knowledge;
        if is_http2 || is_undecided {
            let accepted = http2::connection::Accepted {
                arrival,
                tls,
                is_logged: self.logs_accesses,
                is_undecided,
            };
            let connection = http2::connection::Connection::open(io, shared, stream, accepted);
            self.http2_connections.insert(stream, Box::new(connection));
            return;
        }
        let accesses = self.logs_accesses && shared.access_log.is_some();
        let accesses = accesses.then(|| Accesses::new(stream.0, &arrival, tls.as_deref()));
        let connection = Connection::new(stream, &arrival, accesses);
        self.connections.insert(stream, Box::new(connection));
    }

    /// A connection without TLS has not begun with the preface of HTTP/2.
    fn speak_http1(&mut self, io: &mut dyn Io, stream: StreamId, received: (Input, bool, bool)) {
        let Some(connection) = self.http2_connections.remove(&stream) else {
            return;
        };
        let arrival = connection.arrival();
        connection.closed(io, &mut self.shared);
        let accesses = self.logs_accesses && self.shared.access_log.is_some();
        let accesses = accesses.then(|| Accesses::new(stream.0, &arrival, None));
        let mut connection = Connection::new(stream, &arrival, accesses);
        connection.resume(io, &mut self.shared, received);
        self.connections.insert(stream, Box::new(connection));
    }

    /// Handles an event of a QUIC stream; false if the stream is not one.
    fn on_quic_stream(&mut self, io: &mut dyn Io, stream: StreamId, event: &AppEvent) -> bool {
        let Some(quic) = io.quic_stream(stream) else {
            return false;
        };
        if let Some(connection) = self.http3_connections.get_mut(&quic.connection) {
            let (shared, scratch) = (&mut self.shared, &mut self.scratch);
            connection.on_event(io, shared, scratch, (stream, quic), event);
        }
        true
    }

    /// Creates a server with a fetcher of content from origins.
    ///
    /// # Panics
    /// As [`Server::new`].
    pub fn with_origins(config: Config, origins: Box<dyn Origins>) -> Self {
        let mut server = Server::new(config);
        server.shared.origins = Some(origins);
        server
    }

    /// Logs each response of connections accepted from now on in an access log that `sink` keeps.
    pub fn log_accesses(&mut self, sink: Box<dyn AccessSink>) {
        self.shared.access_log = Some(AccessLog::new(sink));
        self.logs_accesses = true;
    }

    /// Enables or disables the access log for connections accepted from now on, if there is a sink.
    pub fn set_access_log(&mut self, is_on: bool) {
        self.logs_accesses = is_on;
    }

    /// Number of access log records that were dropped.
    pub fn access_records_lost(&self) -> u64 {
        self.shared.access_log.as_ref().map_or(0, AccessLog::lost)
    }

    /// Event counts since the server's creation.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }
}

impl Application for Server {
    fn on_event(&mut self, io: &mut dyn Io, stream: StreamId, event: AppEvent) {
        match event {
            AppEvent::Accepted {
                peer,
                ref proxied,
                ref tls,
            } => {
                if self.on_quic_stream(io, stream, &event) {
                    return;
                }
                self.accepted(io, stream, peer, proxied.as_deref(), tls.clone());
            }
            AppEvent::Closed {
                acknowledged,
                retransmissions,
                ..
            } => {
                if let Some(connection) = self.connections.remove(&stream) {
                    self.shared.counters.connections_closed += 1;
                    connection.closed(io, &mut self.shared, acknowledged, retransmissions);
                } else if let Some(connection) = self.http2_connections.remove(&stream) {
                    self.shared.counters.connections_closed += 1;
                    connection.closed(io, &mut self.shared);
                } else {
                    self.on_quic_stream(io, stream, &event);
                }
                return;
            }
            AppEvent::Connected
            | AppEvent::Readable
            | AppEvent::PeerFinished
            | AppEvent::Writable
            | AppEvent::Drained
            | AppEvent::Opened { .. }
            | AppEvent::OpenFailed { .. }
            | AppEvent::Listed { .. }
            | AppEvent::Timer
            | AppEvent::Splice(_)
            | AppEvent::PeerReset { .. }
            | AppEvent::PeerStopped { .. } => {}
        }
        if let Some(connection) = self.connections.get_mut(&stream) {
            connection.on_event(io, &mut self.shared, &event);
        } else if let Some(connection) = self.http2_connections.get_mut(&stream) {
            connection.on_event(io, &mut self.shared, &mut self.scratch, &event);
            if let Some(received) = connection.take_http1() {
                self.speak_http1(io, stream, received);
            }
        } else {
            self.on_quic_stream(io, stream, &event);
        }
    }

    fn on_quic(&mut self, io: &mut dyn Io, id: QuicConnection, event: QuicEvent) {
        match event {
            QuicEvent::Opened {
                peer,
                tls,
                is_early,
            } => {
                self.shared.counters.connections_accepted += 1;
                let shared = &mut self.shared;
                let is_logged = self.logs_accesses;
                let handshake = Handshake {
                    arrival: Arrival::new(&shared.config, peer, None, Scheme::Https),
                    tls,
                    is_early,
                };
                let opened =
                    http3::connection::Connection::open(io, shared, id, handshake, is_logged);
                match opened {
                    Some(mut connection) => {
                        // The shutdown began during the handshake.
                        if shared.is_draining {
                            connection.drain(io, shared);
                        }
                        self.http3_connections.insert(id, Box::new(connection));
                    }
                    None => self.shared.counters.connections_closed += 1,
                }
            }
            QuicEvent::HandshakeComplete => {
                if let Some(connection) = self.http3_connections.get_mut(&id) {
                    let scratch = &mut self.scratch;
                    connection.on_handshake_complete(io, &mut self.shared, scratch);
                }
            }
            QuicEvent::Closed(_) => {
                if self.http3_connections.remove(&id).is_some() {
                    self.shared.counters.connections_closed += 1;
                }
            }
        }
    }

    fn on_plain_http(&mut self, unix_time: Duration, is_head: bool) -> Vec<u8> {
        plain::response(&mut self.shared, unix_time, is_head)
    }

    fn memory(&self, _owner: Owner, stream: StreamId) -> StreamMemory {
        let http2 = || {
            let connection = self.http2_connections.get(&stream)?;
            Some(connection.memory_bytes())
        };
        let connection = self.connections.get(&stream);
        let bytes = connection.map(|connection| connection.memory_bytes());
        StreamMemory {
            client: connection.and_then(|connection| connection.forwarded()),
            bytes: bytes.or_else(http2).unwrap_or(0),
            ..StreamMemory::default()
        }
    }

    fn quic_memory_bytes(&self, connection: QuicConnection) -> usize {
        let connection = self.http3_connections.get(&connection);
        connection.map_or(0, |connection| connection.memory_bytes())
    }

    fn on_turn(&mut self, io: &mut dyn Io, now_us: u64) -> bool {
        if let Some(log) = &mut self.shared.access_log {
            log.on_turn(now_us);
        }
        if std::mem::take(&mut self.new_rates) {
            let config = &self.shared.config;
            self.shared.rates.change(
                io,
                config.connection_bytes_per_second_max,
                config.source_bytes_per_second_max,
            );
        }
        let Drain::Yes {
            on_empty,
            begins,
            told_us,
        } = &mut self.drain
        else {
            return false;
        };
        if std::mem::take(begins) {
            for connection in self.connections.values_mut() {
                connection.go_on(io, &mut self.shared);
            }
            for connection in self.http2_connections.values_mut() {
                connection.drain(io, &mut self.shared);
            }
            for connection in self.http3_connections.values_mut() {
                connection.drain(io, &mut self.shared);
            }
        }
        let connections = self.connections.len() + self.http2_connections.len();
        let is_empty = connections + self.http3_connections.len() == 0;
        if is_empty && now_us.saturating_sub(*told_us) >= EMPTY_EVERY_US {
            *told_us = now_us;
            on_empty();
        }
        false
    }

    fn next_timeout_us(&self) -> Option<u64> {
        let empty_us = match self.drain {
            Drain::Yes { told_us, .. } if self.connections() == 0 => Some(told_us + EMPTY_EVERY_US),
            _ => None,
        };
        let log = self.shared.access_log.as_ref();
        let log_us = log.and_then(AccessLog::next_timeout_us);
        empty_us.into_iter().chain(log_us).min()
    }

    fn wake_fds(&self) -> Vec<BorrowedFd<'_>> {
        let origins = self.shared.origins.iter();
        origins.map(|origins| origins.wake_fd()).collect()
    }

    fn on_wake(&mut self, io: &mut dyn Io, _now_us: u64) {
        while let Some((ticket, news)) = self.shared.origins.as_mut().and_then(|it| it.hear()) {
            let Some(&(name, stream)) = self.shared.tickets.get(&ticket) else {
                continue;
            };
            if let Some(connection) = self.connections.get_mut(&stream) {
                connection.on_news(io, &mut self.shared, ticket, news);
            } else if let Some(connection) = self.http2_connections.get_mut(&stream) {
                connection.on_news(io, &mut self.shared, name, (ticket, news));
            } else if let Some(quic) = io.quic_stream(stream)
                && let Some(connection) = self.http3_connections.get_mut(&quic.connection)
            {
                let (shared, scratch) = (&mut self.shared, &mut self.scratch);
                connection.on_news(io, shared, scratch, stream, (ticket, news));
            }
        }
    }
}
