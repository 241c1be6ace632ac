//! The connections of HTTP/2: from clients, and to backends.

use std::collections::{BTreeSet, HashMap};

use host::app::{AppEvent, ConnectError, Io, Owner, StreamId};

use super::connection::{Connection, World};
use super::names::{Names, Notice};
use super::stream::Stream;
use super::wanted::Want;
use crate::answer::Refusal;
use crate::arrival::Arrival;
use crate::buffer::Buffer;
use crate::pools::BackendId;
use crate::shared::{Shared, Use};

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub(crate) struct Connections {
    connections: HashMap<StreamId, Box<Connection>>,
    /// Connections to each backend; the oldest is first.
    to_backends: HashMap<BackendId, Vec<StreamId>>,
    names: Names,
    /// Connections that sessions have used.
    used: BTreeSet<StreamId>,
}

impl Connections {
    /// Number of connections from clients.
    pub(crate) fn clients(&self) -> usize {
        let to_backends = self.to_backends.values().map(Vec::len).sum::<usize>();
        self.connections.len() - to_backends
    }

    /// Opens a stream to a backend, on a connection that has room or on a new one.
    pub(crate) fn carry(&mut self, io: &mut dyn Io, shared: &mut Shared, want: Want) {
        if !shared.streams.contains_key(&want.name) {
            // Its user has gone.
            return;
        }
        let known = self.to_backends.get(&want.backend).into_iter().flatten();
        let has_room = |stream: &&StreamId| {
            let connection = self.connections.get(*stream);
            connection.is_some_and(|connection| connection.has_room(io, &want.carrier))
        };
        let found = known.into_iter().find(has_room).copied();
        let stream = match found.map_or_else(|| self.connect(io, shared, &want), Ok) {
            Ok(stream) => stream,
            Err(why) => {
                let name = want.name;
                return self
                    .names
                    .notices
                    .push_back(Notice::NotOpened { name, why });
            }
        };
        if let Some(connection) = self.connections.get_mut(&stream) {
            let names = &mut self.names;
            connection.carry(&mut World { io, shared, names }, want);
        }
    }

    fn connect(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        want: &Want,
    ) -> Result<StreamId, Refusal> {
        let state = shared.pools.get(want.backend);
        let address = state.ok_or(Refusal::NoBackend)?.address;
        shared.counters.backend_connects += 1;
        let stream = io.connect(Owner::PROXY, None, address).map_err(|error| {
            shared.counters.backend_connect_failures += 1;
            match error {
                ConnectError::NoPort => {
                    shared.on_no_port(io.now_us(), want.backend);
                    Refusal::NoPort
                }
                _ => Refusal::ConnectFailed,
            }
        })?;
        shared.streams.insert(stream, Use::Http2);
        shared.pools.count_http2(want.backend, true);
        let names = &mut self.names;
        let connection = Connection::to_backend(&World { io, shared, names }, stream, want);
        self.connections.insert(stream, Box::new(connection));
        self.to_backends
            .entry(want.backend)
            .or_default()
            .push(stream);
        Ok(stream)
    }

    /// Backends have gone, or are drained: connections to them without streams end.
    pub(crate) fn review(&mut self, io: &mut dyn Io, shared: &mut Shared) {
        for stream in self.to_backends.values().flatten() {
            if let Some(connection) = self.connections.get_mut(stream) {
                let names = &mut self.names;
                connection.advance(&mut World { io, shared, names });
            }
        }
    }

    /// Begins a connection, of which `input` has been read already.
    pub(crate) fn open(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        stream: StreamId,
        arrival: Arrival,
        input: Buffer,
    ) {
        shared.streams.insert(stream, Use::Http2);
        let names = &mut self.names;
        let world = &mut World { io, shared, names };
        let connection = Connection::open(world, stream, arrival, input);
        self.connections.insert(stream, Box::new(connection));
    }

    /// Handles an event of a connection's TCP stream.
    pub(crate) fn on_event(
        &mut self,
        io: &mut dyn Io,
        shared: &mut Shared,
        stream: StreamId,
        event: &AppEvent,
    ) {
        let names = &mut self.names;
        if let AppEvent::Closed { reason, .. } = event {
            if let Some(connection) = self.connections.remove(&stream) {
                match connection.backend() {
                    None => shared.counters.connections_closed += 1,
                    Some(backend) => {
                        shared.pools.count_http2(backend, false);
                        let known = self.to_backends.entry(backend).or_default();
                        known.retain(|it| *it != stream);
                        if known.is_empty() {
                            self.to_backends.remove(&backend);
                        }
                    }
                }
                connection.closed(&mut World { io, shared, names }, *reason);
            }
            return;
        }
        if let Some(connection) = self.connections.get_mut(&stream) {
            connection.on_event(&mut World { io, shared, names }, event);
        }
    }

    /// Begins a graceful shutdown of all connections.
    pub(crate) fn drain(&mut self, io: &mut dyn Io, shared: &mut Shared) {
        for connection in self.connections.values_mut() {
            let names = &mut self.names;
            connection.drain(&mut World { io, shared, names });
        }
    }

    /// Returns the next news of a stream. Writes what sessions have left to connections once there
    /// is none.
    pub(crate) fn next_notice(&mut self, io: &mut dyn Io, shared: &mut Shared) -> Option<Notice> {
        loop {
            if let Some(notice) = self.names.notices.pop_front() {
                return Some(notice);
            }
            let stream = self.used.pop_first()?;
            if let Some(connection) = self.connections.get_mut(&stream) {
                let names = &mut self.names;
                connection.advance(&mut World { io, shared, names });
            }
        }
    }

    /// How the client of a connection has arrived.
    pub(crate) fn arrival(&self, connection: StreamId) -> Option<Arrival> {
        self.connections.get(&connection)?.arrival()
    }

    /// The TCP stream that carries a stream.
    pub(crate) fn carrier(&self, name: StreamId) -> StreamId {
        self.names.get(name).map_or(name, |(carrier, _)| carrier)
    }

    /// Memory of a connection, in bytes, and the names of its streams.
    pub(crate) fn memory(&self, connection: StreamId) -> (usize, Vec<StreamId>) {
        let connection = self.connections.get(&connection);
        connection.map_or_else(Default::default, |connection| {
            (connection.memory_bytes(), connection.names().collect())
        })
    }

    /// Memory that a stream holds for its user, in bytes.
    pub(crate) fn stream_memory_bytes(&self, name: StreamId) -> usize {
        self.stream(name).map_or(0, Stream::memory_bytes)
    }

    /// The bytes of a stream to a backend that its user has not read; only during its last event.
    pub(crate) fn take_unread(&mut self, name: StreamId) -> Vec<u8> {
        self.names.take_unread(name)
    }

    /// A stream, by its name.
    pub(super) fn stream(&self, name: StreamId) -> Option<&Stream> {
        let (connection, id) = self.names.get(name)?;
        self.connections.get(&connection)?.stream(id)
    }

    /// The connection of a stream that a session uses, with the names and the stream's ID.
    pub(super) fn used(&mut self, name: StreamId) -> Option<(&mut Connection, &mut Names, u32)> {
        let (stream, id) = self.names.get(name)?;
        let connection = self.connections.get_mut(&stream)?;
        self.used.insert(stream);
        Some((connection, &mut self.names, id))
    }
}
