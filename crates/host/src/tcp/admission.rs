//! Admission: the SYN queue, SYN cookies, and the limits on new connections (RFC 4987).
//!
//! A SYN takes a place in the SYN queue. When the queue is full, the answer is a cookie, and the
//! stack keeps nothing. An ACK that completes a handshake, queued or in a cookie, creates a
//! connection, unless a limit is reached:
//!
//! | Limit | What happens beyond |
//! |---|---|
//! | half-open connections | the oldest whose SYN,ACK was repeated is dropped; without any, SYNs are answered with cookies |
//! | connections without data from the peer, or whose TLS handshake is not complete (the backlog) | the oldest of the source with most is reset |
//! | connections | the longest idle one of the source with most is reset; without any, the segment is dropped, and the peer retries |
//! | connections of one source | SYNs are dropped, ACKs are answered with RST |
//!
//! A client that may not connect at all gets no answer.
//!
//! So the source with most pays, and new clients get in.

use std::net::{IpAddr, SocketAddr};

use tcp::{HalfOpen, HalfOpenReaction, Instant, SynCookies, TimeWait};
use wire::tcp::{Flags, Segment};

use super::arrival::Bare;
use super::proxied::header_timeout;
use crate::app::{BindingId, StreamId};
use crate::config::Admission;
use crate::episode::Episode;
use crate::ground::Ground;
use crate::tables::bindings::Destination;
use crate::tables::by_source::{BySource, Place};
use crate::tables::connections::ConnectionHandle;
use crate::tables::keyed_hash::KeyedHash;
use crate::tables::spent_cookies::SpentCookies;
use crate::tables::syn_queue::SynQueue;
use crate::tables::tuple::Tuple;
use crate::tables::victims::{self, Candidate};
use crate::tcp::TcpLayer;
use crate::tcp::turns::queue_dirty;

/// Least time between searches for idle connections, in microseconds: each goes through the whole
/// table.
const IDLE_LOOK_US: u64 = 100_000;

/// Most idle connections found at once.
const IDLE_VICTIMS_MAX: usize = 4096;

/// The state of admission.
#[derive(Debug)]
pub(crate) struct Gate {
    limits: Admission,
    syn_queue: SynQueue,
    cookies: SynCookies,
    spent: SpentCookies,
    /// Established connections from which no data has arrived; with TLS, until the end of the
    /// handshake.
    unheard: BySource,
    /// Idle connections to evict next when the table is full, the first one last.
    idle_victims: Vec<StreamId>,
    /// Time of the last search for idle connections, in microseconds.
    idle_looked_us: Option<u64>,
    flood: Episode,
    backlog_full: Episode,
    table_full: Episode,
    source_exhausted: Episode,
    /// Trusted proxies have sent no header.
    pub(crate) bad_header: Episode,
}

/// Why there is no connection for a segment.
pub(crate) enum Refusal {
    /// The peer may retry.
    Later,
    /// The peer gets an RST.
    Reset,
}

impl Gate {
    pub(crate) fn new(limits: Admission, secret: [u8; 16], hash_key: [u8; 16]) -> Gate {
        let mut cookie_key = secret;
        cookie_key[1] ^= 0xff;
        Gate {
            limits,
            syn_queue: SynQueue::new(&hash_key),
            cookies: SynCookies::new(cookie_key),
            spent: SpentCookies::new(&hash_key),
            unheard: BySource::new(KeyedHash(hash_key)),
            idle_victims: Vec::new(),
            idle_looked_us: None,
            flood: Episode::default(),
            backlog_full: Episode::default(),
            table_full: Episode::default(),
            source_exhausted: Episode::default(),
            bad_header: Episode::default(),
        }
    }

    /// True if a peer has begun to open this connection.
    pub(crate) fn is_half_open(&self, tuple: &Tuple) -> bool {
        self.syn_queue.contains(tuple)
    }

    pub(crate) fn half_open(&self) -> usize {
        self.syn_queue.len()
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.syn_queue.next_timeout()
    }

    /// A peer has sent its first data on a connection, or completed its TLS handshake.
    pub(crate) fn on_heard(&mut self, unheard: Option<Place>) {
        if let Some(place) = unheard {
            self.unheard.remove(place);
        }
    }

    /// True if half of the backlog is taken: then no SYN creates a connection by itself.
    pub(crate) fn is_half_full(&self) -> bool {
        self.unheard.len() >= self.limits.backlog_max / 2
    }

    /// A connection opened by a cookie was aborted.
    pub(crate) fn on_cookie_spent(&mut self, now_us: u64, tuple: Tuple, cookie: u32) {
        self.spent.add(now_us, tuple, cookie);
    }

    /// Counts a connection that is refused because its source has too many.
    pub(crate) fn on_source_exhausted(&mut self, ground: &mut Ground, now_us: u64, source: IpAddr) {
        ground.counters.sources_refused += 1;
        if self.source_exhausted.begins(now_us) {
            let limit = ground.config.admission.connections_per_source;
            tracing::warn!(%source, limit, "a source has as many connections as it may have");
        }
    }

    /// Forgets half-open connections.
    pub(crate) fn close(&mut self) {
        self.syn_queue.clear();
    }
}

impl TcpLayer {
    /// The initial configuration of connections of an address family, for any listener.
    pub(crate) fn family_config(&self, tuple: &Tuple) -> &tcp::Config {
        match tuple.local {
            SocketAddr::V4(_) => &self.config_v4,
            SocketAddr::V6(_) => &self.config_v6,
        }
    }

    /// The initial configuration of a connection, and its listener's if one accepts it.
    pub(crate) fn tcp_config(
        &self,
        ground: &Ground,
        tuple: &Tuple,
        listener: Option<BindingId>,
    ) -> tcp::Config {
        let mut config = *self.family_config(tuple);
        self.adapt_config(ground, &mut config, tuple, listener);
        config
    }

    // Not inlined: the configuration is copied as a whole, not field by field.
    #[inline(never)]
    fn adapt_config(
        &self,
        ground: &Ground,
        config: &mut tcp::Config,
        tuple: &Tuple,
        listener: Option<BindingId>,
    ) {
        config.congestion = self.listener_congestion(ground, tuple.local.port());
        if ground.memory.is_pressed() {
            let pressed = tcp::Config::RECEIVE_BUFFER_BYTES_PRESSED;
            config.receive_buffer_bytes = config.receive_buffer_bytes.min(pressed);
        }
        if self.loops(ground, tuple.remote.ip()) {
            *config = TcpLayer::loopback_config(config);
        }
        if let Some(options) = listener.and_then(|listener| self.bindings.options(listener)) {
            options.apply(config);
        }
    }

    /// The initial configuration of a connection that a peer opens.
    pub(crate) fn passive_config(&self, ground: &Ground, tuple: &Tuple) -> tcp::Config {
        self.config_at(ground, tuple, self.destination(ground, tuple))
    }

    /// The same, with a known destination.
    pub(crate) fn config_at(&self, ground: &Ground, tuple: &Tuple, to: Destination) -> tcp::Config {
        match to {
            Destination::Listener(listener) => self.tcp_config(ground, tuple, Some(listener)),
            Destination::Full | Destination::Closed => self.tcp_config(ground, tuple, None),
        }
    }

    /// Gives a segment to its half-open connection; false if there is none.
    pub(crate) fn on_half_open(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        tuple: Tuple,
        segment: &Segment<'_>,
    ) -> bool {
        if !self.gate.is_half_open(&tuple) {
            return false;
        }
        let to = self.destination(ground, &tuple);
        let config = self.config_at(ground, &tuple, to);
        let Some(half_open) = self.gate.syn_queue.get_mut(&tuple) else {
            return false;
        };
        match half_open.on_segment(&config, Instant::from_us(now_us), segment) {
            HalfOpenReaction::Nothing => {}
            HalfOpenReaction::Answer(header) => {
                // The peer may answer a cookie sent when there was no room, before its repeated SYN
                // arrived.
                let unacceptable = header.flags.contains(Flags::RST);
                if unacceptable && self.on_cookie(ground, now_us, tuple, segment, to) {
                    self.gate.syn_queue.remove(&tuple);
                } else {
                    self.send_bare(ground, now_us, tuple, &header);
                }
            }
            HalfOpenReaction::Refused => self.gate.syn_queue.remove(&tuple),
            HalfOpenReaction::Opened(connection) => match self.admit(ground, now_us, &tuple, to) {
                Ok(listener) => {
                    self.gate.syn_queue.remove(&tuple);
                    self.open(ground, now_us, tuple, listener, connection, None);
                }
                Err(Refusal::Later) => {}
                Err(Refusal::Reset) => {
                    self.gate.syn_queue.remove(&tuple);
                    self.refuse(ground, now_us, tuple, segment);
                }
            },
        }
        true
    }

    /// Handles a segment for a listener that belongs to nothing known (RFC 9293 §3.10.7.2).
    /// `before`: what is left of the previous connection of the same four-tuple, if anything. False
    /// if the segment cannot open a connection either.
    pub(crate) fn on_listen(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        tuple: Tuple,
        segment: &Segment<'_>,
        before: Option<TimeWait>,
        listener: BindingId,
    ) -> bool {
        let has = |flag| segment.header.flags.contains(flag);
        if has(Flags::SYN) {
            let Tuple { local, remote } = tuple;
            let isn = self.isn.isn(local, remote, Instant::from_us(now_us));
            let isn = before.map_or(isn, |before| before.isn_beyond(isn));
            return self.on_syn(ground, now_us, tuple, segment, isn);
        }
        // "Fourth, other data or control: drop the segment": only scanners would get an answer.
        if !has(Flags::ACK) {
            return true;
        }
        self.on_cookie(
            ground,
            now_us,
            tuple,
            segment,
            Destination::Listener(listener),
        )
    }

    /// Opens a connection if the segment returns a cookie of ours; false if it does not.
    fn on_cookie(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        tuple: Tuple,
        segment: &Segment<'_>,
        to: Destination,
    ) -> bool {
        // Cookies are valid only while some are outstanding, so that guessing is in vain at all
        // other times.
        let lifetime_us = SynCookies::LIFETIME_US_MAX;
        let is_flooded = self.gate.flood.is_recent(now_us, lifetime_us);
        let is_set_up = self.setup.has_port(tuple.local.port());
        if !is_flooded && !is_set_up {
            return false;
        }
        let Tuple { local, remote } = tuple;
        let now = Instant::from_us(now_us);
        let config = &self.config_at(ground, &tuple, to);
        let verify = |cookies: &SynCookies| cookies.verify(config, local, remote, segment, now);
        let own = is_flooded.then(|| verify(&self.gate.cookies)).flatten();
        let is_own = own.is_some();
        let good = own.or_else(|| {
            let cookies = self.setup.cookies(&ground.config.secret, now_us);
            cookies.iter().filter(|_| is_set_up).find_map(verify)
        });
        let cookie = segment.header.ack.wrapping_sub(1);
        let is_spent = good.is_some() && self.gate.spent.contains(&tuple, cookie);
        let ts_offset = self.isn.ts_offset(local, remote);
        if let Some(good) = good.filter(|_| !is_spent) {
            let mut connection = good.begin(config, ts_offset, now);
            if good.complete(&mut connection, segment, now) {
                match self.admit(ground, now_us, &tuple, to) {
                    Ok(listener) => {
                        if is_own {
                            ground.counters.syn_cookies_accepted += 1;
                        } else {
                            ground.counters.connections_set_up += 1;
                        }
                        self.open(ground, now_us, tuple, listener, connection, Some(cookie));
                    }
                    Err(Refusal::Later) => {}
                    Err(Refusal::Reset) => self.refuse(ground, now_us, tuple, segment),
                }
                return true;
            }
        }
        let follows =
            |cookies: &SynCookies| cookies.may_follow(config, local, remote, segment, now);
        let set_up = self.setup.cookies(&ground.config.secret, now_us);
        let is_early = !is_spent
            && ((is_flooded && follows(&self.gate.cookies))
                || (is_set_up && set_up.iter().any(follows)));
        if is_early {
            ground.counters.syn_cookies_early += 1;
        } else {
            ground.counters.syn_cookies_invalid += u64::from(is_flooded);
        }
        is_early
    }

    fn on_syn(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        tuple: Tuple,
        syn: &Segment<'_>,
        isn: u32,
    ) -> bool {
        let Flags(bits) = syn.header.flags;
        let Flags(ruled_out) = Flags::RST | Flags::ACK;
        if bits & ruled_out != 0 {
            return false;
        }
        ground.counters.syns_received += 1;
        // The source address of a SYN may be forged: a SYN ends no connection, an ACK may.
        if self.admit_source(ground, now_us, &tuple).is_err() {
            return true;
        }
        if self.connections.len() >= ground.config.connections_max && !self.has_idle(now_us) {
            self.refuse_for_room(ground, now_us);
            return true;
        }
        let fast_open = self.fast_open_option(ground, &tuple, syn);
        if let Some(option) = fast_open
            && self.on_fast_open(ground, now_us, tuple, syn, option, isn)
        {
            return true;
        }
        let Tuple { local, remote } = tuple;
        let now = Instant::from_us(now_us);
        let fast_open = fast_open.map(|_| self.fast_open_cookie(ground, now_us, &tuple));
        let ts_offset = self.isn.ts_offset(local, remote);
        if self.gate.half_open() >= self.gate.limits.half_open_max
            && self.gate.syn_queue.evict_repeated()
        {
            ground.counters.half_open_evicted += 1;
        }
        if self.gate.half_open() >= self.gate.limits.half_open_max {
            if self.gate.flood.begins(now_us) {
                let half_open = self.gate.half_open();
                tracing::warn!(
                    half_open,
                    "the SYN queue is full: SYNs are answered with cookies"
                );
            }
            let cookies = &self.gate.cookies;
            let config = &self.passive_config(ground, &tuple);
            let syn_ack = cookies.syn_ack(config, local, remote, syn, ts_offset, now);
            if let Some(mut header) = syn_ack {
                header.options.fast_open = fast_open;
                ground.counters.syn_cookies_sent += 1;
                self.send_bare(ground, now_us, tuple, &header);
            }
        } else if let Some((half_open, mut syn_ack)) = HalfOpen::open(
            &self.passive_config(ground, &tuple),
            syn,
            isn,
            ts_offset,
            now,
        ) {
            syn_ack.options.fast_open = fast_open;
            self.gate.syn_queue.insert(tuple, half_open);
            if self.send_bare(ground, now_us, tuple, &syn_ack) == Bare::Pending {
                self.gate.syn_queue.wait_for_neighbor(tuple);
            }
        }
        true
    }

    /// Checks whether there may be one more connection, and evicts another if necessary; returns
    /// the listener that gets it.
    pub(crate) fn admit(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        tuple: &Tuple,
        to: Destination,
    ) -> Result<BindingId, Refusal> {
        let listener = match to {
            Destination::Listener(listener) => listener,
            Destination::Full => {
                ground.counters.listen_overflows += 1;
                return Err(Refusal::Later);
            }
            Destination::Closed => return Err(Refusal::Reset),
        };
        self.admit_source(ground, now_us, tuple)?;
        if self.connections.len() >= ground.config.connections_max
            && !self.evict_idle(ground, now_us)
        {
            self.refuse_for_room(ground, now_us);
            return Err(Refusal::Later);
        }
        while self.gate.unheard.len() >= self.gate.limits.backlog_max
            && let Some(stream) = self.gate.unheard.oldest_of_largest()
        {
            self.evict_unheard(ground, now_us, stream);
        }
        Ok(listener)
    }

    /// Resets a connection from which no data has arrived.
    fn evict_unheard(&mut self, ground: &mut Ground, now_us: u64, stream: StreamId) {
        let silent = self.gate.unheard.len();
        let Some(entry) = self.connections.by_stream_mut(stream) else {
            return;
        };
        let (handle, source) = (entry.handle(), entry.source());
        self.gate.on_heard(entry.unheard.take());
        entry.tcp.abort();
        ground.counters.backlog_evictions += 1;
        if self.gate.backlog_full.begins(now_us) {
            tracing::warn!(
                silent,
                %source,
                "too many connections have sent nothing yet: the oldest of the source with most \
                 are reset"
            );
        }
        self.mark_dirty(handle);
    }

    /// Counts a connection refused because the table is full.
    fn refuse_for_room(&mut self, ground: &mut Ground, now_us: u64) {
        ground.counters.connections_refused += 1;
        self.warn_of_full_table(now_us, "none is idle, and no more are accepted");
    }

    fn warn_of_full_table(&mut self, now_us: u64, effect: &str) {
        if self.gate.table_full.begins(now_us) {
            let connections = self.connections.len();
            tracing::warn!(connections, "as many connections as there may be: {effect}");
        }
    }

    /// Resets an idle connection; false if there is none.
    pub(crate) fn evict_idle(&mut self, ground: &mut Ground, now_us: u64) -> bool {
        if !self.has_idle(now_us) {
            return false;
        }
        let Some(entry) = self
            .gate
            .idle_victims
            .pop()
            .and_then(|stream| self.connections.by_stream_mut(stream))
        else {
            return false;
        };
        let handle = entry.handle();
        entry.idle_since_us = None;
        // All that it has asked for is delivered.
        entry.is_shut = true;
        entry.tcp.abort();
        ground.counters.idle_evictions += 1;
        self.warn_of_full_table(now_us, "idle ones are reset");
        self.mark_dirty(handle);
        true
    }

    /// True if there is an idle connection: the last of `idle_victims`.
    fn has_idle(&mut self, now_us: u64) -> bool {
        // Some have got a request since the search.
        while let Some(&stream) = self.gate.idle_victims.last() {
            let entry = self.connections.by_stream(stream);
            if entry.is_some_and(|entry| entry.idle_since_us.is_some() && entry.is_drained()) {
                return true;
            }
            self.gate.idle_victims.pop();
        }
        let looked_us = self.gate.idle_looked_us;
        if looked_us.is_some_and(|at_us| now_us.saturating_sub(at_us) < IDLE_LOOK_US) {
            return false;
        }
        self.gate.idle_looked_us = Some(now_us);
        let idle = self.connections.iter().filter_map(|entry| {
            Some(Candidate {
                stream: entry.stream,
                remote: entry.source(),
                since: entry.idle_since_us.filter(|_| entry.is_drained())?,
            })
        });
        let victims = victims::choose(idle.collect(), IDLE_VICTIMS_MAX);
        self.gate.idle_victims = victims.into_iter().map(|(_, stream)| stream).collect();
        !self.gate.idle_victims.is_empty()
    }

    /// Checks whether the source may connect, and have one more connection.
    fn admit_source(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        tuple: &Tuple,
    ) -> Result<(), Refusal> {
        let source = self.source(ground, tuple);
        if ground.refuses_client(now_us, source) {
            return Err(Refusal::Later);
        }
        // A proxy has the connections of its clients.
        let is_proxy =
            || header_timeout(ground, tuple).is_some() || ground.proxies.is_forwarding(source);
        if ground.sources.is_exhausted(source) && !is_proxy() {
            self.gate.on_source_exhausted(ground, now_us, source);
            return Err(Refusal::Reset);
        }
        Ok(())
    }

    /// Aborts the accepted connections whose clients may not connect, and returns their number.
    pub(crate) fn abort_denied(&mut self, ground: &mut Ground, now_us: u64) -> usize {
        let accepted = self.connections.iter().filter(|entry| !entry.is_active);
        let denied = accepted.filter(|entry| !ground.permits_client(now_us, entry.source()));
        let denied: Vec<StreamId> = denied.map(|entry| entry.stream).collect();
        for &stream in &denied {
            if self.has_splices() && self.abort_spliced(ground, now_us, stream, false) {
                continue;
            }
            if let Some(entry) = self.connections.by_stream_mut(stream) {
                entry.tcp.abort();
                queue_dirty(&mut self.dirty, entry);
            }
        }
        denied.len()
    }

    /// Puts a connection into the table.
    pub(crate) fn insert(
        &mut self,
        ground: &mut Ground,
        connection: tcp::Connection,
        tuple: Tuple,
    ) -> ConnectionHandle {
        let route = ground.neighbors.route(tuple.remote.ip());
        let worker = (ground).enter_worker(|| self.connections.hash(&tuple));
        let handle = (self.connections).insert(connection, tuple, route, worker);
        if let Some(map) = &ground.steering {
            self.setup.note(map, &tuple);
        }
        handle
    }

    /// Puts a connection that a peer has opened into the table; a cookie may have opened it.
    pub(crate) fn open(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        tuple: Tuple,
        listener: BindingId,
        mut connection: tcp::Connection,
        cookie: Option<u32>,
    ) -> ConnectionHandle {
        let header_timeout = header_timeout(ground, &tuple);
        // After the header.
        let tls = match header_timeout {
            Some(_) => Ok(None),
            None => self.tls_layer(now_us, tuple.local.port()),
        };
        if let Err(error) = &tls {
            tracing::error!(%error, "no TLS for a new connection: it is reset");
            connection.abort();
        }
        let handle = self.insert(ground, connection, tuple);
        if let Some(entry) = self.connections.get_mut(handle) {
            entry.tls = tls.ok().flatten();
            entry.cookie = cookie;
            if let Some(options) = self.bindings.options(listener) {
                if let Some(bytes) = options.receive_buffer_bytes {
                    entry.tcp.set_receive_buffer_bytes(bytes);
                }
                if let Some(bytes) = options.send_buffer_bytes {
                    entry.tcp.set_send_buffer_bytes(bytes);
                }
                entry.wants_teardown = options.teardown_offload;
                entry.traffic_class = options.traffic_class.of(tuple.remote);
            }
            entry.listener = Some(listener);
            entry.is_reserved = self.bindings.reserve(listener);
            entry.owner = self.bindings.owner(listener).unwrap_or_default();
            let source = entry.source();
            entry.unheard = Some(self.gate.unheard.add(source, entry.stream));
            ground.sources.add(source);
        }
        if let Some(timeout) = header_timeout {
            self.expect_header(now_us, handle, timeout);
        }
        self.mark_dirty(handle);
        handle
    }

    /// Retransmits SYN,ACKs, and drops those that were never answered.
    pub(crate) fn on_half_open_timeouts(&mut self, ground: &mut Ground, now_us: u64) {
        let now = Instant::from_us(now_us);
        while let Some(mut due) = self.gate.syn_queue.take_due(now) {
            let tuple = due.tuple;
            match due
                .half_open
                .on_timeout(&self.passive_config(ground, &tuple))
            {
                Some(syn_ack) => {
                    ground.counters.retransmissions += 1;
                    self.gate.syn_queue.insert_repeated(due);
                    self.send_bare(ground, now_us, tuple, &syn_ack);
                }
                None => ground.counters.half_open_expired += 1,
            }
        }
    }

    /// Sends SYN,ACKs that waited for a neighbour's address, once it is known.
    pub(crate) fn retry_half_open(&mut self, ground: &mut Ground, now_us: u64) {
        for tuple in self.gate.syn_queue.take_waiting() {
            let config = self.passive_config(ground, &tuple);
            let syn_ack = self
                .gate
                .syn_queue
                .get_mut(&tuple)
                .and_then(|half_open| half_open.syn_ack(&config));
            if let Some(header) = syn_ack
                && self.send_bare(ground, now_us, tuple, &header) == Bare::Pending
            {
                self.gate.syn_queue.wait_for_neighbor(tuple);
            }
        }
    }
}
