//! The memory of QUIC connections: what their clients can make grow. A connection's fixed part is
//! bounded by the number of connections.

use tcp::Instant;

use super::endings::EXCESSIVE_LOAD;
use crate::app::Application;
use crate::ground::Ground;
use crate::ground::memory::HolderId;
use crate::quic::QuicLayer;
use crate::tables::sources::Source;
use crate::tables::victims::Holder;

impl QuicLayer {
    /// Places in the table of QUIC connections: all are below.
    pub(crate) fn places(&self) -> usize {
        self.table.connections.capacity()
    }

    /// Updates a connection's share. A closed one has none: the engine forgets it at once if it
    /// keeps much.
    pub(crate) fn charge<A: Application>(&mut self, ground: &mut Ground, place: usize, app: &A) {
        let Some(connection) = self.table.connections.get_mut(place) else {
            return;
        };
        let bytes = match connection.is_over {
            true => 0,
            false => {
                let endpoint = &self.listeners[connection.listener].endpoint;
                let queued = usize::try_from(connection.real_bytes).unwrap_or(usize::MAX);
                let of_engine = endpoint.memory_bytes(connection.handle);
                queued + of_engine + app.quic_memory_bytes(connection.id)
            }
        };
        let before = std::mem::replace(&mut connection.charged_bytes, bytes);
        ground.memory.recharge(before, bytes);
    }

    /// The connection's share, as of the last update.
    pub(crate) fn holder(&self, place: usize) -> Option<Holder<HolderId>> {
        let connection = self.table.connections.get(place)?;
        Some(Holder {
            id: HolderId::Quic(place),
            source: Source::from(connection.remote.ip()),
            bytes: connection.charged_bytes,
            since: connection.id.0,
        })
    }

    /// Closes a connection that holds too much. False if it is closed already.
    pub(crate) fn evict(&mut self, now_us: u64, place: usize) -> bool {
        let Some(connection) = self.table.connections.get(place).filter(|it| !it.is_over) else {
            return false;
        };
        let endpoint = &mut self.listeners[connection.listener].endpoint;
        let now = Instant::from_us(now_us);
        endpoint.close(now, connection.handle, EXCESSIVE_LOAD, b"");
        self.mark(place);
        true
    }
}
