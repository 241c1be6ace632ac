//! The shares of TCP's connections in the account of memory ([`crate::ground::memory`]).

use super::TcpLayer;
use crate::app::{Application, StreamId};
use crate::ground::Ground;
use crate::tables::connections::ConnectionHandle;

impl TcpLayer {
    /// Updates the share of a connection that was served.
    #[inline(never)]
    pub(crate) fn charge<A: Application>(
        &mut self,
        ground: &mut Ground,
        handle: ConnectionHandle,
        app: &A,
    ) {
        let is_pressed = ground.memory.is_pressed();
        if let Some(entry) = self.connections.get_mut(handle) {
            entry.tcp.set_memory_pressure(is_pressed);
            ground.memory.charge(entry, app);
            (ground.memory).look_near(ground.config.connection_memory_bytes_max);
        }
    }

    pub(crate) fn evict_tcp(&mut self, stream: StreamId) -> bool {
        let Some(entry) = self.connections.by_stream_mut(stream) else {
            return false;
        };
        let handle = entry.handle();
        entry.tcp.abort();
        self.mark_dirty(handle);
        true
    }
}
