//! Idle connections, which make room for new ones while a port has as many as it may.
//!
//! A connection is idle from its first packet on, except while a stream is open on which its client
//! has sent a request. The one that has been idle longest of the source with most goes first, as
//! with TCP (`admission`), at the same cost however many there are.

use std::collections::HashMap;
use std::net::IpAddr;

use quic::Handle;
use tcp::Instant;

use super::Listener;
use super::endings::NO_ERROR;
use crate::tables::by_source::{BySource, Place};
use crate::tables::keyed_hash::KeyedHash;
use crate::tables::sparsity::Sparsity;

/// The idle connections of a port.
#[derive(Debug)]
pub(super) struct Idle {
    connections: BySource<Handle>,
    places: HashMap<Handle, Place>,
    sparsity: Sparsity,
}

impl Idle {
    pub(super) fn new(hash: KeyedHash) -> Self {
        Self {
            connections: BySource::new(hash),
            places: HashMap::new(),
            sparsity: Sparsity::default(),
        }
    }

    /// A connection of this source is idle from now on.
    pub(super) fn add(&mut self, source: IpAddr, connection: Handle) {
        self.remove(connection);
        let place = self.connections.add(source, connection);
        self.places.insert(connection, place);
    }

    /// A connection is idle no more, or over.
    pub(super) fn remove(&mut self, connection: Handle) {
        let Some(place) = self.places.remove(&connection) else {
            return;
        };
        self.connections.remove(place);
        let (len, places) = (self.places.len(), self.places.capacity());
        if self.sparsity.on_removed(len, places) {
            self.places.shrink_to_fit();
        }
    }
}

impl Listener {
    /// Closes a connection, so that another may begin; false if none is idle.
    pub(super) fn make_room(&mut self, now: Instant) -> bool {
        let Some(connection) = self.idle.connections.oldest_of_largest() else {
            return false;
        };
        self.idle.remove(connection);
        self.endpoint.close(now, connection, NO_ERROR, b"");
        true
    }

    /// A line in the log when the limit on connections takes effect.
    pub(super) fn warn_of_full_table(&mut self, now: Instant, effect: &str) {
        if self.table_full.begins(now.as_us()) {
            let (port, connections) = (self.port, self.endpoint.connections());
            tracing::warn!(
                port,
                connections,
                "as many QUIC connections as there may be: {effect}"
            );
        }
    }
}
