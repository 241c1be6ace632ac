//! What a stack holds at the moment, for those who watch over it: a simulation, a person.

use crate::app::StreamId;
use crate::connections::Entry;
use std::net::SocketAddr;

use super::Stack;

/// What a stack holds. All zero once everything is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Connections in the table.
    pub connections: usize,
    /// Those of them whose FIN has been sent: they wait for their peers alone.
    pub orphans: usize,
    /// Handshakes under way, cookies not counted: nobody knows of those.
    pub half_open: usize,
    /// Connections in TIME-WAIT.
    pub time_waits: usize,
    /// Files that are open below, or being opened.
    pub files: usize,
    /// SENDs issued and not departed.
    pub sends_outstanding: u64,
    /// Small commands that wait for room in a ring.
    pub commands_waiting: usize,
}

/// A connection, seen from outside.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionView<'a> {
    /// Its name for applications.
    pub stream: StreamId,
    /// The peer.
    pub remote: SocketAddr,
    /// TCP's part of it.
    pub tcp: &'a tcp::Connection,
    /// SENDs issued and not departed.
    pub sends_outstanding: u64,
    /// It waits for a neighbour's address, for room in a ring, for a NIC stack that is away, or for a file that a new
    /// worker has to open again, and is served when that has come. Or for its turn, amid a handshake of TLS.
    pub waits: bool,
}

impl Stack {
    /// What the stack holds.
    pub fn usage(&self) -> Usage {
        Usage {
            connections: self.connections.len(),
            orphans: self.orphans.len(),
            half_open: self.gate.half_open(),
            time_waits: self.time_waits.len(),
            files: self.files.len(),
            sends_outstanding: self.sends_outstanding,
            commands_waiting: self.nics.iter().map(|nic| nic.commands_waiting()).sum(),
        }
    }

    /// Every connection in the table.
    pub fn connection_views(&self) -> impl Iterator<Item = ConnectionView<'_>> {
        self.connections.iter().map(|entry| ConnectionView {
            stream: entry.stream,
            remote: entry.tuple.remote,
            tcp: &entry.tcp,
            sends_outstanding: entry.sends_outstanding,
            waits: self.waits(entry),
        })
    }

    fn waits(&self, entry: &Entry) -> bool {
        let index = entry.index();
        entry.dirty
            || entry.files_reopening > 0
            || !self.nics[entry.worker].is_there
            || self.waiting_neighbor.contains(index)
            || self.nics[entry.worker].waiting.contains(index)
    }
}
