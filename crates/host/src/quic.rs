//! QUIC in the stack: the endpoints of its ports, their timers, and the turns of connections.
//!
//! A [`quic::Endpoint`] decides what to send, and packets take one of two ways. Handshake packets
//! are sealed, and leave through the host's port. 1-RTT packets become QSENDs for their
//! connection's NIC worker, in packet number order: a command that finds no room in the ring, or
//! waits for a neighbour's address, holds all later ones. Each number is assigned once; packets
//! that a dead NIC stack may have sent are left to loss detection.
//!
//! | File | What it adds |
//! |---|---|
//! | `names` | names in the spaces of streams, flows and SENDs |
//! | `table` | connections and streams |
//! | `arrival` | datagrams that arrive |
//! | `receive` | ... and those that a NIC worker opens |
//! | `outputs` | outputs of the endpoints: the host's own datagrams |
//! | `commands` | ... and QKEY, QSEND and QRELEASE for NIC workers |
//! | `events` | events of connections, for the application |
//! | `streams` | the application's operations |
//! | `endings` | how streams and connections end |
//! | `idle` | ... and which end when there are too many |
//! | `ranges` | prepares ranges of files, and writes them once they are ready |
//! | `reports` | reports of NIC workers |
//! | `nics` | NIC workers that come and go |
//! | `leaving` | connections that move to another worker |
//! | `memory` | the memory of connections |
//! | `trace` | traces of connections |
//! | `view` | the state of connections, for monitoring |

mod arrival;
mod commands;
mod endings;
pub(crate) mod events;
mod idle;
mod leaving;
mod memory;
pub(crate) mod names;
mod nics;
mod outputs;
mod ranges;
mod receive;
mod reports;
mod streams;
mod table;
mod trace;
mod view;

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use netdev::Port;
use quic::{Endpoint, PreferredAddress};
use tcp::Instant;

use self::events::Due;
use self::idle::Idle;
use self::outputs::HeldDatagrams;
use self::table::Table;
use self::trace::Trace;
use crate::app::{AppEvent, Application, StreamId};
use crate::config::StackConfig;
use crate::episode::Episode;
use crate::ground::Ground;
use crate::tables::keyed_hash::KeyedHash;
use crate::tables::tuple::TupleMap;

pub(crate) use self::arrival::HandshakeShare;
pub use self::trace::{
    QuicTraceEvent, QuicTraceRefusal, QuicTraceWanted, QuicTracer, TracedConnection,
};
pub use self::view::QuicInfo;

/// The QUIC configuration of a port.
#[derive(Clone)]
pub struct QuicListener {
    /// The UDP port.
    pub port: u16,
    /// Certificates; replacements apply to handshakes that begin later.
    pub certificates: Arc<tls::Certificates>,
    /// Settings of its endpoint. The stack caps datagrams at the link's MTU, and gives new clients
    /// small receive windows once all together could fill half of the connections' memory. A
    /// preferred address is one of the stack's, at this port. The secret is derived for the port.
    pub settings: quic::Settings,
}

impl fmt::Debug for QuicListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuicListener")
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

/// Why a port does not speak QUIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuicListenError(String);

impl fmt::Display for QuicListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for QuicListenError {}

struct Listener {
    port: u16,
    certificates: Arc<tls::Certificates>,
    endpoint: Endpoint,
    idle: Idle,
    table_full: Episode,
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener")
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

/// The QUIC state of a stack.
#[derive(Debug)]
pub(crate) struct QuicLayer {
    listeners: Vec<Listener>,
    table: Table,
    /// Connections whose datagrams the host forwards to the workers that open them, by four-tuple.
    handed_on: TupleMap<usize>,
    /// Connections that may advance.
    ready: VecDeque<usize>,
    /// Connections that wait for room, by worker.
    waiting_room: Vec<VecDeque<usize>>,
    waiting_neighbor: Vec<usize>,
    /// The same, datagrams of the host's own.
    held: VecDeque<HeldDatagrams>,
    /// Timers of applications, in microseconds.
    timers: BTreeSet<(u64, StreamId)>,
    /// When connections with a rate-limited stream advance, in microseconds.
    rates: BTreeSet<(u64, usize)>,
    /// As for a connection, summed over all.
    real_bytes: u64,
    /// Reports to the application, in order.
    reports: VecDeque<Due>,
    /// The trace, if one is active.
    trace: Option<Box<Trace>>,
}

impl QuicLayer {
    /// The state without a port that has QUIC.
    pub(crate) fn new(config: &StackConfig) -> QuicLayer {
        QuicLayer {
            listeners: Vec::new(),
            table: Table::default(),
            handed_on: TupleMap::new(&config.hash_key()),
            ready: VecDeque::new(),
            waiting_room: Vec::new(),
            waiting_neighbor: Vec::new(),
            held: VecDeque::new(),
            timers: BTreeSet::new(),
            rates: BTreeSet::new(),
            real_bytes: 0,
            reports: VecDeque::new(),
            trace: None,
        }
    }

    /// Marks a connection that may advance.
    fn mark(&mut self, place: usize) {
        if let Some(connection) = self.table.connections.get_mut(place)
            && !std::mem::replace(&mut connection.is_ready, true)
        {
            self.ready.push_back(place);
        }
    }

    /// When to call [`QuicLayer::on_time`], in microseconds.
    pub(crate) fn next_timeout_us(&self) -> Option<u64> {
        let endpoints = self.listeners.iter();
        let endpoints = endpoints.filter_map(|it| it.endpoint.next_timeout());
        let timer = self.timers.first().map(|(at, _)| *at);
        let rate = self.rates.first().map(|(at, _)| *at);
        let own = [timer, rate].into_iter().flatten();
        endpoints.map(Instant::as_us).chain(own).min()
    }

    pub(crate) fn poll_event(&mut self) -> Option<(usize, quic::Event)> {
        let mut listeners = self.listeners.iter_mut().enumerate();
        listeners.find_map(|(at, it)| Some((at, it.endpoint.poll_event()?)))
    }

    fn poll_output(&mut self, now: Instant) -> Option<(usize, quic::Output)> {
        let mut listeners = self.listeners.iter_mut().enumerate();
        listeners.find_map(|(at, it)| Some((at, it.endpoint.poll_output(now)?)))
    }

    fn poll_gone(&mut self) -> Option<usize> {
        let mut listeners = self.listeners.iter_mut().enumerate();
        loop {
            let (at, handle) =
                listeners.find_map(|(at, it)| Some((at, it.endpoint.poll_gone()?)))?;
            if let Some(place) = self.table.find(at, handle) {
                return Some(place);
            }
            listeners = self.listeners.iter_mut().enumerate();
        }
    }

    /// Accepts QUIC connections to a UDP port of all addresses from now on.
    ///
    /// # Errors
    /// If the port has QUIC already, the settings leave nothing to negotiate, the preferred address
    /// is not the stack's, or the system provides no random numbers.
    pub(crate) fn listen(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        listener: &QuicListener,
    ) -> Result<(), QuicListenError> {
        if self.listeners.iter().any(|it| it.port == listener.port) {
            let problem = format!("UDP port {} has QUIC already", listener.port);
            return Err(QuicListenError(problem));
        }
        let mut settings = listener.settings.clone();
        let most = ground.link.mtu.saturating_sub(HEADERS_BYTES);
        let most = u16::try_from(most).unwrap_or(u16::MAX);
        settings.datagram_bytes_max = settings.datagram_bytes_max.min(most);
        settings.preferred_address.port = listener.port;
        settings.secret = settings.secret.map(|secret| secret.of_port(listener.port));
        let PreferredAddress { v4, v6, .. } = settings.preferred_address;
        let preferred = [v4.map(IpAddr::V4), v6.map(IpAddr::V6)];
        let mut preferred = preferred.into_iter().flatten();
        if let Some(other) = preferred.find(|address| !ground.config.has_address(*address)) {
            let problem = format!("clients are to move to {other}, which the stack does not have");
            return Err(QuicListenError(problem));
        }
        // Bounds on the state that all clients together can make the stack keep.
        let limits = &mut settings.limits;
        let bytes_max = ground.config.connection_memory_bytes_max / 2;
        let connections = bytes_max / limits.receive_bytes_max.max(1) as usize;
        limits.receive_less_above = limits.receive_less_above.min(connections);
        limits.resets_per_second = ground.config.resets_per_second;
        let endpoint = Endpoint::new(
            Arc::clone(&listener.certificates),
            &settings,
            Instant::from_us(now_us),
            ground.unix_time,
        );
        self.listeners.push(Listener {
            port: listener.port,
            certificates: Arc::clone(&listener.certificates),
            endpoint: endpoint.map_err(|error| QuicListenError(error.to_string()))?,
            idle: Idle::new(KeyedHash(ground.config.secret)),
            table_full: Episode::default(),
        });
        Ok(())
    }

    /// Time has passed.
    #[cold]
    pub(crate) fn on_time(&mut self, ground: &mut Ground, now_us: u64) {
        let now = Instant::from_us(now_us);
        for listener in &mut self.listeners {
            if listener.endpoint.next_timeout().is_some_and(|at| at <= now) {
                listener.endpoint.on_timeout(now);
            }
        }
        while let Some((_, stream)) = self.timers.pop_first_if(|(at, _)| *at <= now_us) {
            ground.app_events.push_back((stream, AppEvent::Timer));
        }
        while let Some((_, place)) = self.rates.pop_first_if(|(at, _)| *at <= now_us) {
            self.mark(place);
        }
    }

    /// A neighbour may have been resolved, or given up.
    pub(crate) fn retry_neighbor(&mut self) {
        for place in std::mem::take(&mut self.waiting_neighbor) {
            if let Some(connection) = self.table.connections.get_mut(place) {
                connection.waits = false;
            }
            self.mark(place);
        }
        for held in &mut self.held {
            held.is_to_be_tried = true;
        }
    }

    /// True if no port has QUIC.
    #[inline]
    pub(crate) fn is_unused(&self) -> bool {
        self.listeners.is_empty()
    }

    /// Sends datagrams that waited, and advances handshakes. True if there were any.
    pub(crate) fn begin_round<P: Port>(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        share: &mut HandshakeShare,
        port: &mut P,
    ) -> bool {
        let mut busy = self.send_held(ground, now_us, port);
        busy |= self.advance_handshakes(ground, now_us, share);
        self.trace_endpoints(ground);
        busy
    }

    /// Issues packets, and advances connections that may. True if there were any.
    pub(crate) fn end_round<P: Port, A: Application>(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        port: &mut P,
        app: &A,
    ) -> bool {
        let mut busy = false;
        while let Some((listener, output)) = self.poll_output(Instant::from_us(now_us)) {
            self.trace_endpoints(ground);
            self.on_output(ground, now_us, port, listener, output);
            busy = true;
        }
        while let Some(place) = self.ready.pop_front() {
            self.advance(ground, now_us, place);
            if ground.memory.is_near() {
                self.charge(ground, place, app);
            }
            busy = true;
        }
        while let Some(place) = self.poll_gone() {
            self.on_gone(ground, now_us, place);
            busy = true;
        }
        busy
    }

    /// Advances a connection: issues waiting commands, then writes queued data.
    fn advance(&mut self, ground: &mut Ground, now_us: u64, place: usize) {
        let Some(connection) = self.table.connections.get_mut(place) else {
            return;
        };
        connection.is_ready = false;
        if connection.is_gone {
            return self.forget(ground, place);
        }
        let is_to_move = connection.nic.is_to_move;
        if connection.nic.moves_to.is_some() {
            self.go_on_leaving(ground, place);
        }
        if self.send_commands(ground, now_us, place) {
            if is_to_move {
                self.move_on(ground, place);
            }
            self.write_streams(ground, now_us, place);
        }
        self.tell_lowat(ground, place);
    }

    /// Advances connections that wait for room in a ring, while there is some.
    pub(crate) fn retry_room(&mut self, ground: &mut Ground, now_us: u64) {
        for worker in 0..self.waiting_room.len() {
            for _ in 0..self.waiting_room[worker].len() {
                if !ground.workers[worker].has_room() {
                    break;
                }
                let Some(place) = self.waiting_room[worker].pop_front() else {
                    break;
                };
                if let Some(connection) = self.table.connections.get_mut(place) {
                    connection.waits = false;
                    self.advance(ground, now_us, place);
                }
            }
        }
    }
}

/// IPv6 and UDP headers, in bytes.
const HEADERS_BYTES: usize = wire::ip::IPV6_HEADER_BYTES + wire::datagram::HEADER_BYTES;

/// Pops the first element if a condition holds.
trait PopFirstIf<T> {
    fn pop_first_if(&mut self, is_wanted: impl FnOnce(&T) -> bool) -> Option<T>;
}

impl<T: Ord> PopFirstIf<T> for BTreeSet<T> {
    fn pop_first_if(&mut self, is_wanted: impl FnOnce(&T) -> bool) -> Option<T> {
        if self.first().is_some_and(is_wanted) {
            self.pop_first()
        } else {
            None
        }
    }
}
