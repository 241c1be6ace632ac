//! The connections of HTTP/2 clients.

use std::collections::{BTreeSet, HashMap};

use host::app::{AppEvent, Io, StreamId};

use super::connection::{Connection, World};
use super::names::{Names, Notice};
use super::stream::Stream;
use crate::arrival::Arrival;
use crate::buffer::Buffer;
use crate::shared::{Shared, Use};

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub(crate) struct Connections {
    connections: HashMap<StreamId, Box<Connection>>,
    names: Names,
    /// Connections that sessions have used.
    used: BTreeSet<StreamId>,
}

impl Connections {
    pub(crate) fn len(&self) -> usize {
        self.connections.len()
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
                shared.counters.connections_closed += 1;
                connection.closed(names, *reason);
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
        Some(self.connections.get(&connection)?.arrival())
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
