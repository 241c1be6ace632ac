//! The engine: an endpoint and its connections, on quinn-proto. No other part of the crate names a
//! type of it.
//!
//! | A reader who looks for | finds it in |
//! |---|---|
//! | the endpoint: datagrams in, what is to be done out | this file, `transmit` |
//! | packets that a NIC stack has opened | `opened` |
//! | one connection, its streams | `connection` |
//! | how much is sent to an address that is not validated | `amplification` |
//! | connections that move to another address of the server | `preferred` |
//! | handshakes, and where 1-RTT keys come from | `session`, `capture` |
//! | keys that seal or open, and those that describe | `keys` |
//! | congestion control | `controller` |
//! | keys of tokens and stateless resets, connection IDs | `secrets` |
//! | sessions that may be resumed, tokens that were used | `sessions`, `tokens`, `generations` |
//! | traces of connections | `tracing` |
//! | time | `time` |
//! | settings | `setup` |

mod amplification;
mod capture;
mod connection;
mod controller;
mod generations;
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
use crate::engine::connection::{Connection, stream_id};
use crate::engine::preferred::{Path, Preferred};
use crate::engine::secrets::Issued;
use crate::engine::session::Handshake;
use crate::engine::setup::Setup;
use crate::engine::time::{Clock, TimeOfDay};
use crate::engine::tracing::Tracing;
use crate::extents::Released;
use crate::recorder::Scratch;
use crate::types::{
    Arrival, CloseReason, Ecn, Event, EventKind, FileRange, Handle, Output, Read, Route,
    StreamError, StreamId,
};

/// A server's end of QUIC connections.
///
/// It does nothing by itself. Its caller
/// - hands in what arrives ([`on_datagram`](Endpoint::on_datagram),
///   [`on_opened`](Endpoint::on_opened)), what the NIC stack reports
///   ([`on_departed`](Endpoint::on_departed)), and, once the time that
///   [`next_timeout`](Endpoint::next_timeout) names has come, the time
///   ([`on_timeout`](Endpoint::on_timeout));
/// - serves streams, as [`poll_event`](Endpoint::poll_event) tells;
/// - and then, each time, does what [`poll_output`](Endpoint::poll_output) says, until that is
///   nothing.
///
/// A packet number is given out once. What was given to a NIC stack that is gone is left to loss
/// detection ([`on_nic_gone`](Endpoint::on_nic_gone)).
pub struct Endpoint {
    quinn: quinn_proto::Endpoint,
    /// For clients that may send little before it is read.
    crowded: Arc<ServerConfig>,
    limits: Limits,
    /// Where connections move to.
    preferred: PreferredAddress,
    clock: Clock,
    /// The last time that the engine was told.
    told: Instant,
    time_of_day: Arc<TimeOfDay>,
    issued: Issued,
    /// By the engine's handle.
    connections: Vec<Option<Box<Connection>>>,
    next_serial: u64,
    /// Connections that may have something to send, once each.
    dirty: VecDeque<usize>,
    timeouts: BTreeSet<(Instant, usize)>,
    /// Bytes of SENDs that have not departed, of all connections of each worker.
    undeparted_bytes: Vec<u64>,
    outputs: VecDeque<Output>,
    events: VecDeque<Event>,
    /// Connections of which nothing follows, in order.
    gone: VecDeque<Handle>,
    /// Clients that come now are refused.
    is_closed: bool,
    /// Where packets are made.
    buffer: Vec<u8>,
    scratch: Scratch,
    undescribable: u64,
    tracing: Tracing,
}

/// What the engine's QUIC makes of a datagram.
struct Found {
    /// The peer, or the alias of one that has sent to the preferred address.
    remote: SocketAddr,
    event: Option<DatagramEvent>,
    /// What is sent for it, if that belongs to no connection.
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

impl Endpoint {
    /// An endpoint without connections. `unix_time`: what it is at `now`.
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
            gone: VecDeque::new(),
            is_closed: false,
            buffer: Vec::new(),
            scratch: Scratch::default(),
            undescribable: 0,
            tracing: Tracing::new(setup.first, now),
        })
    }

    /// A UDP datagram has arrived.
    pub fn on_datagram(&mut self, now: Instant, arrival: &Arrival, payload: &[u8]) {
        self.on_time(now);
        let bytes = payload.len();
        let found = self.find(now, arrival, || BytesMut::from(payload));
        match found.event {
            None => {}
            Some(DatagramEvent::ConnectionEvent(ConnectionHandle(index), event)) => {
                if let Some(connection) = self.at(index) {
                    if connection.quinn.remote_address() == found.remote {
                        connection.amplification.on_received(bytes);
                    }
                    connection.on_arrival(found.remote, bytes, event);
                    self.after(index);
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => self.on_incoming(now, incoming, bytes),
            Some(DatagramEvent::Response(transmit)) => self.push_sealed(&transmit, found.answer),
        }
    }

    /// Finds out whose a datagram is.
    fn find(&mut self, now: Instant, arrival: &Arrival, datagram: impl Fn() -> BytesMut) -> Found {
        let first = datagram();
        // Clients move with packets that have a short header.
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
            // It has begun there.
            return self.find_from(now, arrival, arrival.remote, datagram());
        }
        found
    }

    /// The same, with what the engine's QUIC takes the peer for.
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

    /// `bytes`: of the datagram that it came in.
    fn on_incoming(&mut self, now: Instant, incoming: Incoming, bytes: usize) {
        let count = self.quinn.open_connections();
        let mut answer = Vec::new();
        if self.is_closed || count >= self.limits.connections_max {
            let transmit = self.quinn.refuse(incoming, &mut answer);
            return self.push_sealed(&transmit, answer);
        }
        let is_doubtful = !incoming.remote_address_validated() && incoming.may_retry();
        if count >= self.limits.retry_above && is_doubtful {
            match self.quinn.retry(incoming, &mut answer) {
                Ok(transmit) => self.push_sealed(&transmit, answer),
                Err(error) => self.quinn.ignore(error.into_incoming()),
            }
            return;
        }
        let now = self.clock.to_std(now);
        let is_crowded = count >= self.limits.receive_less_above;
        let config = is_crowded.then(|| Arc::clone(&self.crowded));
        let amplification = AmplificationLimit::new(incoming.remote_address_validated(), bytes);
        let original_id = self.tracing.begin(&incoming);
        // Those of Retry packets, and of connections that were refused.
        self.take_issued();
        match self.quinn.accept(incoming, now, &mut answer, config) {
            Ok((ConnectionHandle(index), quinn)) => {
                self.insert(index, quinn, amplification, original_id);
            }
            Err(error) => {
                self.tracing.give_up();
                if let Some(transmit) = error.response {
                    self.push_sealed(&transmit, answer);
                }
            }
        }
    }

    /// `original_id`: what its trace has of it, if one is made.
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
        self.name(index);
        if original_id.is_some() {
            self.trace_started(index, original_id);
        }
        self.after(index);
    }

    fn on_time(&mut self, now: Instant) {
        self.told = self.told.max(now);
        self.time_of_day.set(now);
        self.tracing.now = now;
    }

    /// When [`on_timeout`](Endpoint::on_timeout) is to be called, if nothing else comes before.
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
            if connection.quinn.poll_timeout().is_some_and(|due| due <= at) {
                connection.amplification.on_timeout();
                connection.quinn.handle_timeout(at);
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
        }
    }

    /// The NIC stack to which a connection's SENDs went is gone. The next one is given the key
    /// again, with a floor above every number that was given out.
    pub fn on_nic_gone(&mut self, connection: Handle) {
        if let Some(connection) = self.present(connection) {
            let bytes = connection.on_nic_gone();
            let (index, worker) = (connection.handle.index, connection.worker);
            *self.undeparted_of(worker) -= bytes;
            self.mark(index);
        }
    }

    /// SENDs of a connection wait in this queue of a NIC stack from now on; those of one that was
    /// never said wait in queue 0.
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

    /// Has the next NIC stack given the key of a connection before there is a packet for it, if
    /// that has none: what it prepares is for a flow with a key.
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

    /// A connection that is gone for good: no output names it any more, once those are taken that
    /// there are.
    pub fn poll_gone(&mut self) -> Option<Handle> {
        self.gone.pop_front()
    }

    /// Accepts no more connections.
    pub fn refuse_connections(&mut self) {
        self.is_closed = true;
    }

    /// The peer's address, and the one at which it reaches this side: the ends of the path on which
    /// it is sent all that does more than probe another.
    pub fn addresses(&self, connection: Handle) -> Option<(SocketAddr, Option<IpAddr>)> {
        Some(self.peek(connection)?.path())
    }

    /// The congestion window of a connection, in bytes.
    pub fn congestion_window(&self, connection: Handle) -> u64 {
        let connection = self.peek(connection);
        connection.map_or(0, |connection| connection.quinn.congestion_state().window())
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

    /// Writes real bytes: as many as there is room for, which is returned.
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

    /// Writes a range of a file, which the NIC stack has ready: as many of its first bytes as there
    /// is room for, which is returned.
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

    /// Ends a stream behind what was written.
    ///
    /// # Errors
    /// If the stream cannot be written to.
    pub fn finish(&mut self, connection: Handle, stream: StreamId) -> Result<(), StreamError> {
        self.with(connection, |connection, _| connection.finish(stream))
    }

    /// Abandons what was written on a stream.
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

    /// Wants nothing more of what the peer sends on a stream.
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

    /// Streams of higher priority are sent first. All begin with 0.
    ///
    /// # Errors
    /// If the stream cannot be written to.
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

    /// Opens a stream that goes to the peer only, if the peer lets us.
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

    /// Connections that are there, those included that are closed and wait for stray packets.
    pub fn connections(&self) -> usize {
        self.quinn.open_connections()
    }

    /// Connections that were closed because a packet could not be described.
    pub fn undescribable(&self) -> u64 {
        self.undescribable
    }

    fn at(&mut self, index: usize) -> Option<&mut Connection> {
        self.connections.get_mut(index)?.as_deref_mut()
    }

    /// A connection that the application may have something to do with.
    fn get(&mut self, handle: Handle) -> Option<&mut Connection> {
        let connection = self.present(handle);
        connection.filter(|connection| !connection.is_over)
    }

    /// The same, or one that is over, and has yet to say so to the peer.
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

    /// Something was done with a connection: takes what it has to tell.
    fn after(&mut self, index: usize) {
        loop {
            let Some(connection) = self.at(index) else {
                return;
            };
            if let Some(event) = connection.quinn.poll() {
                self.on_event(index, event);
            } else if let Some(event) = connection.quinn.poll_endpoint_events() {
                let is_drained = event.is_drained();
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
                // What the peer has acknowledged comes first.
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

    /// The application has no more to do with a connection.
    fn over(&mut self, index: usize, reason: CloseReason) {
        if let Some(connection) = self.at(index)
            && !connection.is_over
        {
            connection.is_over = true;
            connection.amplification.on_over();
            let handle = connection.handle;
            if connection.is_traced {
                self.trace_closed(index, &reason);
            }
            self.tell(handle, EventKind::Closed(reason));
        }
    }

    /// Reports ranges that the peer has.
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

    /// Enters the time of a connection, unless it is entered with an earlier one: most packets put
    /// it off, and once the earlier has come is soon enough for the later.
    fn schedule(&mut self, index: usize) {
        let clock = self.clock;
        let Some(connection) = self.at(index) else {
            return;
        };
        let Some(due) = connection.quinn.poll_timeout() else {
            return;
        };
        let at = clock.to_caller(due);
        if connection.timeout.is_some_and(|before| before <= at) {
            return;
        }
        if let Some(before) = connection.timeout.replace(at) {
            self.timeouts.remove(&(before, index));
        }
        self.timeouts.insert((at, index));
    }

    /// A connection is over for good. Its streams let go of what they hold.
    fn remove(&mut self, index: usize) {
        self.over(index, CloseReason::Local);
        let Some(connection) = self.connections[index].take() else {
            return;
        };
        if let Some(at) = connection.timeout {
            self.timeouts.remove(&(at, index));
        }
        // An entry in the list of what is to be sent would be taken for that of the next
        // connection of this index.
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

/// What the session of a connection has for its endpoint.
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
                // The handshake needs nothing but what is in front of the 1-RTT packet.
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
                // Nothing but the close.
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
