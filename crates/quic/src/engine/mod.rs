//! The engine: an endpoint and its connections, on quinn-proto. No other part of the crate names
//! its types.
//!
//! | A reader who looks for | finds it in |
//! |---|---|
//! | the endpoint: datagrams in, outputs out | this file, `transmit` |
//! | packets that a NIC stack has opened | `opened` |
//! | one connection, its streams | `connection` |
//! | handshakes that wait for their turn | `waiting` |
//! | connections with an unvalidated client address | `half_open` |
//! | closed connections | `closing` |
//! | the amplification limit | `amplification` |
//! | what a client may have done for nothing | `allowance` |
//! | connections that move to the preferred address | `preferred` |
//! | handshakes, and where 1-RTT keys come from | `session`, `capture` |
//! | keys that seal or open, and those that describe | `keys` |
//! | congestion control | `controller` |
//! | keys of tokens and stateless resets, connection IDs | `secrets` |
//! | sessions that may be resumed, tokens that were used | `sessions`, `tokens`, `generations` |
//! | traces of connections | `tracing` |
//! | time | `time` |
//! | settings | `setup` |

pub(crate) mod allowance;
mod amplification;
mod capture;
mod closing;
mod connection;
mod controller;
mod generations;
mod half_open;
mod keys;
mod opened;
mod preferred;
mod secrets;
mod session;
mod sessions;
mod setup;
mod time;
mod tokens;
mod tracing;
mod transmit;
mod waiting;

use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use contract::tls::Cipher;
use quinn_proto::{
    ConnectionHandle, DatagramEvent, Dir, EcnCodepoint, Incoming, ServerConfig, StreamEvent,
};
use tcp::Instant;
use tls::Certificates;

use crate::config::{Limits, PreferredAddress, Settings};
use crate::engine::amplification::AmplificationLimit;
use crate::engine::closing::Closing;
use crate::engine::connection::{Connection, stream_id};
use crate::engine::half_open::HalfOpen;
use crate::engine::preferred::{Path, Preferred};
use crate::engine::secrets::Issued;
use crate::engine::session::{Handshake, Hellos};
use crate::engine::setup::Setup;
use crate::engine::time::{Clock, TimeOfDay};
use crate::engine::tracing::Tracing;
use crate::engine::waiting::{Datagram, Queue, Waiting};
use crate::extents::Released;
use crate::recorder::Scratch;
use crate::types::{
    Arrival, CloseReason, Ecn, Event, EventKind, FileRange, Handle, Output, Read, Route,
    StreamError, StreamId,
};

/// A server's end of QUIC connections.
///
/// It does nothing by itself. Its caller
/// - hands in datagrams and packets ([`on_datagram`](Endpoint::on_datagram),
///   [`on_opened`](Endpoint::on_opened)), what the NIC stack reports
///   ([`on_departed`](Endpoint::on_departed)), and, once [`next_timeout`](Endpoint::next_timeout)
///   is due, the time ([`on_timeout`](Endpoint::on_timeout));
/// - advances handshakes, as many at a time as it can afford signatures
///   ([`advance_handshake`](Endpoint::advance_handshake));
/// - serves streams by the events of [`poll_event`](Endpoint::poll_event);
/// - and after each of these carries out [`poll_output`](Endpoint::poll_output) until it returns
///   `None`.
///
/// The endpoint assigns each packet number once. It leaves packets at a NIC stack that is gone to
/// loss detection ([`on_nic_gone`](Endpoint::on_nic_gone)).
pub struct Endpoint {
    quinn: quinn_proto::Endpoint,
    /// For clients that get small receive windows.
    crowded: Arc<ServerConfig>,
    limits: Limits,
    /// The address that connections may move to.
    preferred: PreferredAddress,
    clock: Clock,
    /// The latest time passed to the engine.
    told: Instant,
    time_of_day: Arc<TimeOfDay>,
    issued: Issued,
    /// By quinn-proto's handle.
    connections: Vec<Option<Box<Connection>>>,
    next_serial: u64,
    /// Connections that may have something to send, once each.
    dirty: VecDeque<usize>,
    timeouts: BTreeSet<(Instant, usize)>,
    /// Bytes of SENDs that have not departed, of all connections of each worker.
    undeparted_bytes: Vec<u64>,
    outputs: VecDeque<Output>,
    events: VecDeque<Event>,
    waiting: Queue,
    hellos: Hellos,
    half_open: HalfOpen,
    /// Connections that are not closed.
    open: usize,
    closing: Closing,
    /// The connection that began last.
    begun: Option<Handle>,
    retries: u64,
    refused: u64,
    /// Connections without further outputs, in order.
    gone: VecDeque<Handle>,
    /// New clients are refused.
    is_closed: bool,
    /// Where packets are built.
    buffer: Vec<u8>,
    scratch: Scratch,
    undescribable: u64,
    tracing: Tracing,
}

/// The application error code for a client that floods a connection: H3_EXCESSIVE_LOAD (RFC 9114
/// §8.1).
const EXCESSIVE_LOAD_CODE: u64 = 0x107;

/// RFC 9000 §20.1
const PROTOCOL_VIOLATION: u64 = 0x0a;

/// quinn-proto's verdict on a datagram.
struct Found {
    /// The peer, or its alias if the datagram came to the preferred address.
    remote: SocketAddr,
    event: Option<DatagramEvent>,
    /// The answer, if the datagram belongs to no connection.
    answer: Vec<u8>,
}

fn ecn_from(ecn: Ecn) -> EcnCodepoint {
    match ecn {
        Ecn::Ect0 => EcnCodepoint::Ect0,
        Ecn::Ect1 => EcnCodepoint::Ect1,
        Ecn::Ce => EcnCodepoint::Ce,
    }
}

/// Where a transmission to this peer goes, from this address of the server.
fn route(transmit: &quinn_proto::Transmit, (remote, local_ip): Path) -> Route {
    Route {
        remote,
        local_ip,
        ecn: transmit.ecn.map(|ecn| match ecn {
            EcnCodepoint::Ect0 => Ecn::Ect0,
            EcnCodepoint::Ect1 => Ecn::Ect1,
            EcnCodepoint::Ce => Ecn::Ce,
        }),
    }
}

impl Drop for Endpoint {
    /// quinn-proto warns of clients that are neither accepted nor refused.
    fn drop(&mut self) {
        while let Some(waiting) = self.waiting.pop() {
            if let Waiting::Client { incoming, .. } = waiting {
                self.quinn.ignore(incoming);
            }
        }
    }
}

impl Endpoint {
    /// An endpoint without connections. `unix_time` is the time of day at `now`.
    ///
    /// # Errors
    /// If the settings leave nothing to negotiate, or the system gives no random numbers.
    pub fn new(
        certificates: Arc<Certificates>,
        settings: &Settings,
        now: Instant,
        unix_time: Duration,
    ) -> Result<Self, rustls::Error> {
        let clock = Clock::new();
        let time_of_day = Arc::new(TimeOfDay::new(unix_time, now));
        let setup = Setup::new(certificates, settings, clock, &time_of_day)?;
        let endpoint = Arc::new(setup.endpoint);
        let server = Arc::new(setup.server);
        Ok(Self {
            quinn: quinn_proto::Endpoint::new(endpoint, Some(server), true, None),
            crowded: Arc::new(setup.crowded),
            limits: settings.limits,
            preferred: match settings.migration {
                true => settings.preferred_address,
                false => PreferredAddress::default(),
            },
            clock,
            told: now,
            time_of_day,
            issued: setup.issued,
            connections: Vec::new(),
            next_serial: 0,
            dirty: VecDeque::new(),
            timeouts: BTreeSet::new(),
            undeparted_bytes: Vec::new(),
            outputs: VecDeque::new(),
            events: VecDeque::new(),
            waiting: Queue::default(),
            hellos: setup.hellos,
            half_open: HalfOpen::new(settings.limits.half_open_max),
            open: 0,
            closing: Closing::default(),
            begun: None,
            retries: 0,
            refused: 0,
            gone: VecDeque::new(),
            is_closed: false,
            buffer: Vec::new(),
            scratch: Scratch::default(),
            undescribable: 0,
            tracing: Tracing::new(setup.first, now),
        })
    }

    /// A UDP datagram has arrived. If it may cost a signature, it waits for
    /// [`advance_handshake`](Endpoint::advance_handshake); no other one does.
    pub fn on_datagram(&mut self, now: Instant, arrival: &Arrival, payload: &[u8]) {
        self.on_time(now);
        if waiting::has_short_id(payload) || !self.waiting.admits(arrival.remote, payload) {
            return;
        }
        let bytes = payload.len();
        let found = self.find(now, arrival, || BytesMut::from(payload));
        match found.event {
            None => self.waiting.on_swallowed(payload),
            Some(DatagramEvent::ConnectionEvent(ConnectionHandle(index), event)) => {
                let Some(connection) = self.at(index) else {
                    return;
                };
                let datagram = Datagram {
                    connection: connection.handle,
                    remote: found.remote,
                    bytes,
                    event,
                };
                match connection.awaits_hello() {
                    true => self.wait(index, datagram),
                    false => self.on_arrival(datagram),
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                self.waiting.push_client(incoming, payload);
            }
            Some(DatagramEvent::Response(transmit)) => {
                // Connection IDs of answers belong to no connection.
                self.take_issued();
                self.push_sealed(&transmit, found.answer);
            }
        }
    }

    /// Queues a datagram of a connection whose ClientHello is not complete.
    fn wait(&mut self, index: usize, datagram: Datagram) {
        let Some(connection) = self.at(index) else {
            return;
        };
        // Addresses do not change during the handshake (RFC 9000 §9).
        let is_from_peer = connection.quinn.remote_address() == datagram.remote;
        let waiting = connection.waiting_datagrams;
        if is_from_peer && self.waiting.admits_datagram(waiting) {
            self.waiting.push_datagram(datagram);
            if let Some(connection) = self.at(index) {
                connection.waiting_datagrams += 1;
            }
        }
    }

    /// Advances the handshake that has waited longest. True if that cost a signature; `None` if
    /// none waits.
    pub fn advance_handshake(&mut self, now: Instant) -> Option<bool> {
        self.on_time(now);
        let before = self.hellos.get();
        match self.waiting.pop()? {
            Waiting::Client { incoming, bytes } => self.on_incoming(now, incoming, bytes),
            Waiting::Datagram(datagram) => {
                if let Some(connection) = self.present(datagram.connection) {
                    connection.waiting_datagrams -= 1;
                }
                self.on_arrival(datagram);
            }
        }
        Some(self.hellos.get() != before)
    }

    /// Datagrams dropped since the last call because too many handshakes wait.
    pub fn take_dropped(&mut self) -> u64 {
        self.waiting.take_dropped()
    }

    /// True if the next handshake to advance is one that only a free place in the table of
    /// connections lets begin: the client has shown its address, and the table is full.
    pub fn needs_room(&self) -> bool {
        self.is_full()
            && !self.is_closed
            && self
                .waiting
                .next_client()
                .is_some_and(Incoming::remote_address_validated)
    }

    fn is_full(&self) -> bool {
        self.open >= self.limits.connections_max
    }

    /// The connection that began with the last handshake to advance, if one did.
    pub fn take_begun(&mut self) -> Option<Handle> {
        self.begun.take()
    }

    /// Clients refused since the last call because there were as many connections as there may be.
    pub fn take_refused(&mut self) -> u64 {
        std::mem::take(&mut self.refused)
    }

    /// Retry packets sent since the last call.
    pub fn take_retries(&mut self) -> u64 {
        std::mem::take(&mut self.retries)
    }

    /// A datagram of a connection.
    fn on_arrival(&mut self, datagram: Datagram) {
        let Datagram {
            connection,
            remote,
            bytes,
            event,
        } = datagram;
        let now = self.told;
        if let Some(connection) = self.present(connection) {
            if connection.quinn.remote_address() == remote {
                connection.amplification.on_received(bytes);
            }
            connection.on_arrival(now, remote, bytes, event);
            let index = connection.handle.index;
            self.after(index);
        }
    }

    /// Finds the connection of a datagram.
    fn find(&mut self, now: Instant, arrival: &Arrival, datagram: impl Fn() -> BytesMut) -> Found {
        let first = datagram();
        // Clients migrate with short-header packets.
        let has_short_header = first.first().is_some_and(|first| first & 0x80 == 0);
        let is_there = has_short_header && self.preferred.is(arrival.local_ip);
        let alias = match is_there {
            true => preferred::alias(arrival.remote),
            false => arrival.remote,
        };
        let found = self.find_from(now, arrival, alias, first);
        if let Some(DatagramEvent::ConnectionEvent(ConnectionHandle(index), _)) = &found.event
            && is_there
            && self.at(*index).is_some_and(|it| it.preferred.is_none())
        {
            // The connection began at the preferred address.
            return self.find_from(now, arrival, arrival.remote, datagram());
        }
        found
    }

    /// The same, with the peer's address as quinn-proto sees it.
    fn find_from(
        &mut self,
        now: Instant,
        arrival: &Arrival,
        remote: SocketAddr,
        datagram: BytesMut,
    ) -> Found {
        let mut answer = Vec::new();
        let event = self.quinn.handle(
            self.clock.to_std(now),
            remote,
            arrival.local_ip,
            arrival.ecn.map(ecn_from),
            datagram,
            &mut answer,
        );
        Found {
            remote,
            event,
            answer,
        }
    }

    /// `bytes`: what the client has sent.
    fn on_incoming(&mut self, now: Instant, incoming: Incoming, bytes: usize) {
        let count = self.quinn.open_connections();
        let mut answer = Vec::new();
        let is_full = self.is_full();
        let is_validated = incoming.remote_address_validated();
        // The source of a first packet may be spoofed: only a validated one takes another's place.
        let must_retry = is_full && !is_validated && incoming.may_retry();
        if self.is_closed || (is_full && !must_retry) {
            self.refused += u64::from(!self.is_closed);
            let transmit = self.quinn.refuse(incoming, &mut answer);
            self.take_issued();
            return self.push_sealed(&transmit, answer);
        }
        let must_show = is_full || count >= self.limits.retry_above || self.half_open.is_full(now);
        if must_show && !is_validated && incoming.may_retry() {
            match self.quinn.retry(incoming, &mut answer) {
                Ok(transmit) => {
                    self.retries += 1;
                    self.push_sealed(&transmit, answer);
                }
                Err(error) => self.quinn.ignore(error.into_incoming()),
            }
            self.take_issued();
            return;
        }
        let at = self.clock.to_std(now);
        let is_crowded = count >= self.limits.receive_less_above;
        let config = is_crowded.then(|| Arc::clone(&self.crowded));
        let amplification = AmplificationLimit::new(is_validated, bytes);
        let original_id = self.tracing.begin(&incoming);
        match self.quinn.accept(incoming, at, &mut answer, config) {
            Ok((ConnectionHandle(index), quinn)) => {
                self.insert(index, quinn, amplification, original_id);
                if !is_validated {
                    self.on_half_open(now, index);
                }
                self.after(index);
            }
            Err(error) => {
                self.take_issued();
                self.tracing.give_up();
                if !is_validated {
                    self.half_open.on_failed(now);
                }
                if let Some(transmit) = error.response {
                    self.push_sealed(&transmit, answer);
                }
            }
        }
    }

    /// `original_id`: for its trace, if any.
    fn insert(
        &mut self,
        index: usize,
        quinn: quinn_proto::Connection,
        amplification: AmplificationLimit,
        original_id: Option<Vec<u8>>,
    ) {
        let handle = Handle {
            serial: self.next_serial,
            index,
        };
        self.next_serial += 1;
        let recorder = handshake(&quinn).map(|handshake| handshake.recorder);
        let recorder = recorder.unwrap_or_default();
        if self.connections.len() <= index {
            self.connections.resize_with(index + 1, || None);
        }
        let start = (quinn.remote_address(), quinn.local_ip());
        let mut connection = Box::new(Connection::new(handle, quinn, recorder, amplification));
        if !self.preferred.is_none() && !self.preferred.is(start.1) {
            connection.preferred = Some(Preferred::new(self.preferred, start));
        }
        self.connections[index] = Some(connection);
        self.open += 1;
        self.begun = Some(handle);
        self.name(index);
        if original_id.is_some() {
            self.trace_started(index, original_id);
        }
    }

    fn on_time(&mut self, now: Instant) {
        self.told = self.told.max(now);
        self.time_of_day.set(now);
        self.tracing.now = now;
    }

    /// When to call [`on_timeout`](Endpoint::on_timeout), unless another call comes first.
    pub fn next_timeout(&self) -> Option<Instant> {
        self.timeouts.first().map(|(at, _)| *at)
    }

    /// Time has passed.
    pub fn on_timeout(&mut self, now: Instant) {
        self.on_time(now);
        let at = self.clock.to_std(now);
        while let Some((due, index)) = self.timeouts.first().copied()
            && due <= now
        {
            self.timeouts.pop_first();
            let Some(connection) = self.at(index) else {
                continue;
            };
            connection.timeout = None;
            if connection.validate_by.is_some_and(|by| by <= now) {
                self.on_overdue(now, index);
            } else if connection.quinn.poll_timeout().is_some_and(|due| due <= at) {
                connection.on_timeout(at);
                self.after(index);
            } else {
                self.schedule(index);
            }
        }
    }

    /// A SEND of a connection, and those before it, have left the NIC stack.
    pub fn on_departed(&mut self, connection: Handle, send: u64) {
        let now = self.told;
        if let Some(connection) = self.present(connection) {
            let bytes = connection.on_departed(now, send);
            let (index, is_held) = (connection.handle.index, connection.is_held);
            let worker = connection.worker;
            *self.undeparted_of(worker) -= bytes;
            if is_held {
                self.mark(index);
            }
            self.forget_if_large(index);
        }
    }

    /// The NIC stack to which a connection's SENDs went is gone. The next one gets the key again,
    /// with a floor above every assigned number.
    pub fn on_nic_gone(&mut self, connection: Handle) {
        let now = self.told;
        if let Some(connection) = self.present(connection) {
            let bytes = connection.on_nic_gone(now);
            let (index, worker) = (connection.handle.index, connection.worker);
            *self.undeparted_of(worker) -= bytes;
            self.mark(index);
        }
    }

    /// Names the worker in which a connection's SENDs wait from now on. At first it is 0.
    pub fn set_worker(&mut self, connection: Handle, worker: usize) {
        if let Some(connection) = self.present(connection) {
            let bytes = connection.undeparted_bytes;
            let before = std::mem::replace(&mut connection.worker, worker);
            *self.undeparted_of(before) -= bytes;
            *self.undeparted_of(worker) += bytes;
        }
    }

    fn undeparted_of(&mut self, worker: usize) -> &mut u64 {
        if self.undeparted_bytes.len() <= worker {
            self.undeparted_bytes.resize(worker + 1, 0);
        }
        &mut self.undeparted_bytes[worker]
    }

    /// Outputs a connection's key ahead of its next packet, if the NIC stack has none: it prepares
    /// ranges only for a flow with a key.
    pub fn give_key(&mut self, connection: Handle) {
        let Some(found) = self.get(connection) else {
            return;
        };
        let current = found.recorder.lock().take_current();
        if let Some((key, floor)) = current {
            self.outputs.push_back(Output::Key {
                connection,
                key,
                floor,
            });
        }
    }

    /// What has happened, in order.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// What is to be done next, in this order.
    pub fn poll_output(&mut self, now: Instant) -> Option<Output> {
        loop {
            if let Some(output) = self.outputs.pop_front() {
                return Some(output);
            }
            let index = self.dirty.pop_front()?;
            self.told = self.told.max(now);
            self.tracing.now = now;
            self.transmit(now, index);
        }
    }

    /// A connection that is gone for good: no output names it, once pending ones are taken.
    pub fn poll_gone(&mut self) -> Option<Handle> {
        self.gone.pop_front()
    }

    /// Accepts no more connections.
    pub fn refuse_connections(&mut self) {
        self.is_closed = true;
    }

    /// The peer's address, and the local one: the ends of the path of non-probing packets.
    pub fn addresses(&self, connection: Handle) -> Option<(SocketAddr, Option<IpAddr>)> {
        Some(self.peek(connection)?.path())
    }

    /// The congestion window of a connection, in bytes.
    pub fn congestion_window(&self, connection: Handle) -> u64 {
        let connection = self.peek(connection);
        connection.map_or(0, |connection| connection.quinn.congestion_state().window())
    }

    /// Memory that a connection's peer can make grow, in bytes: received data that was not read,
    /// and lists of what was sent and not acknowledged. Real bytes that were written come in
    /// addition.
    pub fn memory_bytes(&self, connection: Handle) -> usize {
        let connection = self.peek(connection);
        connection.map_or(0, |connection| connection.memory_bytes())
    }

    /// How many bytes of a stream have been sent at least once.
    pub fn sent(&self, connection: Handle, stream: StreamId) -> u64 {
        let connection = self.peek(connection);
        connection.map_or(0, |connection| connection.recorder.lock().sent(stream.0))
    }

    /// The smoothed round-trip time of a connection, and how many of its packets were found lost.
    pub fn path(&self, connection: Handle) -> Option<(Duration, u64)> {
        let quinn = &self.peek(connection)?.quinn;
        Some((quinn.rtt(), quinn.stats().path.lost_packets))
    }

    /// Reads at most `bytes_max` of a stream.
    ///
    /// # Errors
    /// If the stream cannot be read from.
    pub fn read(
        &mut self,
        connection: Handle,
        stream: StreamId,
        bytes_max: usize,
    ) -> Result<Read, StreamError> {
        self.with(connection, |connection, _| {
            connection.read(stream, bytes_max)
        })
    }

    /// Writes as many real bytes as there is room for; returns how many.
    ///
    /// # Errors
    /// If the stream cannot be written to.
    pub fn write(
        &mut self,
        connection: Handle,
        stream: StreamId,
        bytes: &[u8],
    ) -> Result<usize, StreamError> {
        self.with(connection, |connection, limits| {
            connection.write(stream, bytes, limits.extents_max)
        })
    }

    /// Writes the beginning of a range of a file that the NIC stack has ready, as far as there is
    /// room; returns how many bytes.
    ///
    /// # Errors
    /// If the stream cannot be written to.
    pub fn write_file(
        &mut self,
        connection: Handle,
        stream: StreamId,
        range: FileRange,
    ) -> Result<u64, StreamError> {
        self.with(connection, |connection, limits| {
            connection.write_file(stream, range, limits.extents_max)
        })
    }

    /// Ends a stream after all data written.
    ///
    /// # Errors
    /// If the stream cannot be written to.
    pub fn finish(&mut self, connection: Handle, stream: StreamId) -> Result<(), StreamError> {
        self.with(connection, |connection, _| connection.finish(stream))
    }

    /// Resets a stream, abandoning data written on it.
    ///
    /// # Errors
    /// If the stream cannot be written to.
    pub fn reset(
        &mut self,
        connection: Handle,
        stream: StreamId,
        code: u64,
    ) -> Result<(), StreamError> {
        self.with(connection, |connection, _| connection.reset(stream, code))
    }

    /// Asks the peer to stop sending on a stream.
    ///
    /// # Errors
    /// If the stream cannot be read from.
    pub fn stop(
        &mut self,
        connection: Handle,
        stream: StreamId,
        code: u64,
    ) -> Result<(), StreamError> {
        self.with(connection, |connection, _| connection.stop(stream, code))
    }

    /// Sets a stream's priority: higher goes first. Streams begin with 0. Data already written but
    /// not sent, finished or not, keeps its priority until its next turn.
    ///
    /// # Errors
    /// If the stream is not sent on, or all of it is acknowledged.
    pub fn prioritize(
        &mut self,
        connection: Handle,
        stream: StreamId,
        priority: i32,
    ) -> Result<(), StreamError> {
        self.with(connection, |connection, _| {
            connection.prioritize(stream, priority)
        })
    }

    /// Number of bidirectional and unidirectional streams that the peer may have opened on a
    /// connection by now (RFC 9000 §4.6): their IDs are less than four times that. 0 if the
    /// connection is over.
    pub fn streams_max(&mut self, connection: Handle) -> u64 {
        self.get(connection).map_or(0, Connection::streams_max)
    }

    /// Opens a unidirectional stream, if the peer's stream limit allows.
    pub fn open_unidirectional(&mut self, connection: Handle) -> Option<StreamId> {
        self.get(connection)?.open(Dir::Uni)
    }

    /// Updates the keys (RFC 9001 §6), in both directions, if the handshake is complete.
    pub fn update_keys(&mut self, connection: Handle) {
        if let Some(connection) = self.get(connection)
            && !connection.quinn.is_handshaking()
        {
            connection.quinn.force_key_update();
        }
    }

    /// Closes a connection, with a code of the application.
    pub fn close(&mut self, now: Instant, connection: Handle, code: u64, reason: &[u8]) {
        self.told = self.told.max(now);
        let now = self.clock.to_std(now);
        if let Some(connection) = self.get(connection) {
            let index = connection.handle.index;
            let reason = Bytes::copy_from_slice(reason);
            connection.quinn.close(now, connection::code(code), reason);
            self.over(index, CloseReason::Local);
            self.after(index);
        }
    }

    /// Connections, including closed ones that wait for stray packets.
    pub fn connections(&self) -> usize {
        self.quinn.open_connections()
    }

    /// Connections closed because a packet could not be described.
    pub fn undescribable(&self) -> u64 {
        self.undescribable
    }

    fn at(&mut self, index: usize) -> Option<&mut Connection> {
        self.connections.get_mut(index)?.as_deref_mut()
    }

    /// A connection that the application still knows.
    fn get(&mut self, handle: Handle) -> Option<&mut Connection> {
        let connection = self.present(handle);
        connection.filter(|connection| !connection.is_over)
    }

    /// The same, or one that is over and has yet to send CONNECTION_CLOSE.
    fn present(&mut self, handle: Handle) -> Option<&mut Connection> {
        let connection = self.at(handle.index)?;
        Some(connection).filter(|connection| connection.handle == handle)
    }

    fn peek(&self, handle: Handle) -> Option<&Connection> {
        let connection = self.connections.get(handle.index)?.as_deref()?;
        Some(connection).filter(|connection| connection.handle == handle)
    }

    fn with<T>(
        &mut self,
        handle: Handle,
        act: impl FnOnce(&mut Connection, &Limits) -> Result<T, StreamError>,
    ) -> Result<T, StreamError> {
        let limits = self.limits;
        let connection = self.get(handle).ok_or(StreamError::Unknown)?;
        let result = act(connection, &limits);
        self.after(handle.index);
        result
    }

    /// The connection may have something to send.
    fn mark(&mut self, index: usize) {
        if let Some(connection) = self.at(index)
            && !connection.is_dirty
        {
            connection.is_dirty = true;
            self.dirty.push_back(index);
        }
    }

    /// Collects a connection's events after any call on it.
    fn after(&mut self, index: usize) {
        self.close_in_excess(index);
        loop {
            let Some(connection) = self.at(index) else {
                return;
            };
            if let Some(event) = connection.quinn.poll() {
                self.on_event(index, event);
            } else if let Some(event) = connection.quinn.poll_endpoint_events() {
                let is_drained = event.is_drained();
                let now = self.told;
                let connection = self.at(index);
                if connection.is_some_and(|it| it.ids_allowed.left(now) == 0) && !is_drained {
                    continue;
                }
                self.take_issued();
                let answer = self.quinn.handle_event(ConnectionHandle(index), event);
                self.name(index);
                if let (Some(answer), Some(connection)) = (answer, self.at(index)) {
                    connection.quinn.handle_event(answer);
                }
                if is_drained {
                    return self.remove(index);
                }
            } else {
                break;
            }
        }
        self.look_for_validation(index);
        self.release(index);
        self.schedule(index);
        self.mark(index);
        self.collect_trace(index);
    }

    fn on_event(&mut self, index: usize, event: quinn_proto::Event) {
        let Some(connection) = self.at(index) else {
            return;
        };
        let handle = connection.handle;
        let kind = match event {
            quinn_proto::Event::Connected if connection.is_connected => {
                if connection.is_over {
                    return;
                }
                EventKind::HandshakeComplete
            }
            quinn_proto::Event::Connected => return self.connected(index, false),
            quinn_proto::Event::ConnectionLost { reason } => {
                let reason = connection.close_reason(reason);
                return self.over(index, reason);
            }
            quinn_proto::Event::Stream(StreamEvent::Opened { dir }) => {
                if !connection.is_connected {
                    self.connected(index, true);
                }
                while let Some(stream) = self.at(index).and_then(|c| c.accept(dir)) {
                    self.tell(handle, EventKind::Opened(stream));
                }
                return;
            }
            quinn_proto::Event::Stream(StreamEvent::Readable { id }) => {
                EventKind::Readable(stream_id(id))
            }
            quinn_proto::Event::Stream(StreamEvent::Writable { id }) => {
                EventKind::Writable(stream_id(id))
            }
            quinn_proto::Event::Stream(StreamEvent::Finished { id }) => {
                let stream = stream_id(id);
                // Acknowledged ranges come first.
                connection.recorder.lock().forget_stream(stream.0);
                self.release(index);
                EventKind::Finished(stream)
            }
            quinn_proto::Event::Stream(StreamEvent::Stopped { id, error_code }) => {
                EventKind::Stopped(stream_id(id), error_code.into_inner())
            }
            quinn_proto::Event::Stream(StreamEvent::Available { .. })
            | quinn_proto::Event::HandshakeDataReady
            | quinn_proto::Event::DatagramReceived
            | quinn_proto::Event::DatagramsUnblocked => return,
        };
        self.tell(handle, kind);
    }

    fn connected(&mut self, index: usize, is_early: bool) {
        let Some(connection) = self.at(index) else {
            return;
        };
        let Some(handshake) = handshake(&connection.quinn) else {
            return;
        };
        connection.is_connected = true;
        if is_early {
            connection.amplification.on_early_data();
        }
        let connected = EventKind::Connected {
            alpn: handshake.alpn,
            server_name: handshake.server_name,
            cipher: handshake.cipher.unwrap_or(Cipher::Aes128Gcm),
            is_resumed: handshake.is_resumed,
            takes_early_data: connection.quinn.has_0rtt(),
            is_early,
        };
        let handle = connection.handle;
        self.tell(handle, connected);
    }

    fn tell(&mut self, connection: Handle, kind: EventKind) {
        self.events.push_back(Event { connection, kind });
    }

    /// Closes a connection whose client has had too much done.
    fn close_in_excess(&mut self, index: usize) {
        if let Some(connection) = self.at(index)
            && let Some(why) = connection.excess
            && !connection.is_over
        {
            let reason = CloseReason::Protocol(PROTOCOL_VIOLATION, why.into());
            let why = Bytes::from_static(why.as_bytes());
            self.end(self.told, index, EXCESSIVE_LOAD_CODE, why, reason);
        }
    }

    /// Closes a connection of this side's own accord: for the client with a code of the application
    /// and `why`, for the application with `reason`.
    fn end(&mut self, now: Instant, index: usize, code: u64, why: Bytes, reason: CloseReason) {
        let at = self.clock.to_std(now);
        if let Some(connection) = self.at(index) {
            connection.quinn.close(at, connection::code(code), why);
            self.over(index, reason);
        }
    }

    /// Ends a connection for the application.
    fn over(&mut self, index: usize, reason: CloseReason) {
        if let Some(connection) = self.at(index)
            && !connection.is_over
        {
            connection.is_over = true;
            connection.amplification.on_over();
            let (handle, is_drained) = (connection.handle, connection.quinn.is_drained());
            if connection.is_traced {
                self.trace_closed(index, &reason);
            }
            self.open -= 1;
            self.end_half_open(index);
            self.tell(handle, EventKind::Closed(reason));
            if !is_drained {
                self.keep_closing(handle);
            }
        }
    }

    /// Reports acknowledged or abandoned ranges.
    fn release(&mut self, index: usize) {
        let Self {
            connections,
            outputs,
            events,
            ..
        } = self;
        let connection = connections.get_mut(index).and_then(Option::as_deref_mut);
        if let Some(connection) = connection {
            let (handle, is_over) = (connection.handle, connection.is_over);
            connection.recorder.lock().extents.release(|released| {
                if !is_over {
                    events.push_back(acknowledged(handle, &released));
                }
                outputs.extend(released.file.map(|range| Output::Released {
                    connection: handle,
                    range,
                }));
            });
        }
    }

    /// Enters a connection's timeout, unless an earlier one is entered: most packets postpone it,
    /// and when the earlier is due, the later can still be entered.
    fn schedule(&mut self, index: usize) {
        let clock = self.clock;
        let Some(connection) = self.at(index) else {
            return;
        };
        let due = connection.quinn.poll_timeout();
        let due = due.map(|due| clock.to_caller(due));
        let Some(at) = due.into_iter().chain(connection.validate_by).min() else {
            return;
        };
        if connection.timeout.is_some_and(|before| before <= at) {
            return;
        }
        if let Some(before) = connection.timeout.replace(at) {
            self.timeouts.remove(&(before, index));
        }
        self.timeouts.insert((at, index));
    }

    /// Removes a connection that is over for good, and drops its streams' extents.
    fn remove(&mut self, index: usize) {
        self.over(index, CloseReason::Local);
        let Some(connection) = self.connections[index].take() else {
            return;
        };
        if let Some(at) = connection.timeout {
            self.timeouts.remove(&(at, index));
        }
        // A stale entry in the dirty list would count for the next connection at this index.
        if connection.is_dirty {
            self.dirty.retain(|other| *other != index);
        }
        let Connection {
            handle,
            quinn,
            recorder,
            undeparted_bytes,
            worker,
            ..
        } = *connection;
        *self.undeparted_of(worker) -= undeparted_bytes;
        drop(quinn);
        let mut recorder = recorder.lock();
        recorder.extents.release(|released| {
            let range = released.file;
            self.outputs.extend(range.map(|range| Output::Released {
                connection: handle,
                range,
            }));
        });
        let known = recorder.known().iter();
        self.outputs.extend(known.map(|generation| Output::KeyGone {
            connection: handle,
            generation: *generation,
        }));
        self.gone.push_back(handle);
    }
}

fn acknowledged(connection: Handle, released: &Released) -> Event {
    let real_bytes = if released.file.is_none() {
        released.len
    } else {
        0
    };
    Event {
        connection,
        kind: EventKind::Acknowledged {
            stream: StreamId(released.stream),
            bytes: released.len,
            real_bytes,
        },
    }
}

/// The handshake state of a connection's session.
fn handshake(quinn: &quinn_proto::Connection) -> Option<Box<Handshake>> {
    quinn.crypto_session().handshake_data()?.downcast().ok()
}

#[cfg(test)]
pub(in crate::engine) mod tests {
    use contract::FileId;
    use contract::tls::{Suite, Version};
    use fakes::quic_client::QuicClient;
    use fakes::site::{Identity, Site, UNIX_TIME};

    use super::*;
    use crate::extents::Extents;
    use crate::types::Segment;

    pub(in crate::engine) const NOW: Instant = Instant::from_us(0);

    pub(in crate::engine) fn deliver(client: &mut QuicClient, endpoint: &mut Endpoint) {
        deliver_to(None, client, endpoint);
    }

    pub(in crate::engine) fn deliver_to(
        local_ip: Option<IpAddr>,
        client: &mut QuicClient,
        endpoint: &mut Endpoint,
    ) {
        let arrival = Arrival {
            remote: client.local,
            local_ip,
            ecn: None,
        };
        while let Some(datagram) = client.poll_datagram(0) {
            endpoint.on_datagram(NOW, &arrival, &datagram);
            while endpoint.advance_handshake(NOW).is_some() {}
        }
    }

    /// An endpoint, and a client that is connected to it.
    pub(in crate::engine) fn connected() -> (Endpoint, QuicClient) {
        connected_at(None, &Settings::default())
    }

    /// The same, with these settings, by this address of the server.
    pub(in crate::engine) fn connected_at(
        local_ip: Option<IpAddr>,
        settings: &Settings,
    ) -> (Endpoint, QuicClient) {
        let identities = [Identity::ecdsa(&["localhost"])];
        let site = Site::new(&identities, &tls::Settings::default());
        let certificates = Arc::clone(&site.certificates);
        let mut endpoint =
            Endpoint::new(certificates, settings, NOW, UNIX_TIME).expect("the settings are sound");
        let suite = Suite {
            version: Version::Tls13,
            cipher: Cipher::Aes128Gcm,
        };
        let addresses = ["192.0.2.1:5000", "192.0.2.2:443"].map(|a| a.parse().expect("one"));
        let config = site.client_config(suite);
        let mut client = QuicClient::connect(config, b"h3", (addresses[0], addresses[1]), 1);
        deliver_to(local_ip, &mut client, &mut endpoint);
        while let Some(output) = endpoint.poll_output(NOW) {
            match output {
                Output::Datagrams {
                    datagram_bytes,
                    bytes,
                    ..
                } => {
                    let datagrams = bytes.chunks(datagram_bytes);
                    datagrams.for_each(|datagram| client.on_datagram(0, datagram, false));
                }
                // The handshake needs only the prefix of the 1-RTT packet.
                Output::Send(send) => {
                    let prefixes = send.packets().map(|packet| packet.prefix());
                    prefixes.for_each(|prefix| client.on_datagram(0, prefix, false));
                }
                _ => {}
            }
        }
        assert!(client.is_connected);
        (endpoint, client)
    }

    /// A placeholder that was forgotten is not sent.
    #[test]
    fn a_packet_that_cannot_be_described_closes_the_connection() {
        let (mut endpoint, mut client) = connected();
        client.request(b"file").expect("a stream");
        deliver(&mut client, &mut endpoint);
        let events: Vec<_> = std::iter::from_fn(|| endpoint.poll_event()).collect();
        let opened = |event: &Event| match event.kind {
            EventKind::Opened(stream) => Some((event.connection, stream)),
            _ => None,
        };
        let (connection, stream) = events.iter().find_map(opened).expect("a stream");
        let range = FileRange {
            file: FileId(1),
            offset: 0,
            len: 100_000,
        };
        assert_eq!(endpoint.write_file(connection, stream, range), Ok(100_000));
        let recorder = endpoint.at(connection.index).map(|c| c.recorder.clone());
        recorder.expect("a connection").lock().extents = Extents::default();
        while let Some(output) = endpoint.poll_output(NOW) {
            if let Output::Send(send) = output {
                let mut segments = send.packets().flat_map(|packet| packet.segments());
                // Only the close.
                assert!(segments.all(|segment| matches!(segment, Segment::Inline(_))));
                assert!(send.datagram_bytes() < 200);
            }
        }
        let closed = endpoint.poll_event().map(|event| event.kind);
        assert_eq!(closed, Some(EventKind::Closed(CloseReason::Undescribable)));
        assert_eq!(endpoint.undescribable(), 1);
        assert_eq!(
            endpoint.read(connection, stream, 1),
            Err(StreamError::Unknown)
        );
    }
}
