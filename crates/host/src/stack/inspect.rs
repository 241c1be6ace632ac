//! What a stack holds at the moment, for those who watch over it: a simulation, a person.

use std::net::SocketAddr;

use contract::FileId;
use tcp::Instant;

use super::Stack;
use crate::app::{StreamId, TlsAgreed};
use crate::tables::connections::{ConnectionHandle, Entry};

/// What a stack holds. All zero once everything is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Connections in the table.
    pub connections: usize,
    /// Those of them whose FIN has been sent: they wait for their peers alone.
    pub orphans: usize,
    /// Handshakes under way; SYN cookies leave none.
    pub half_open: usize,
    /// Connections in TIME-WAIT.
    pub time_waits: usize,
    /// Connections of which a NIC stack runs the end.
    pub parted: usize,
    /// Pairs of connections that a NIC stack has joined, or is about to.
    pub splices: usize,
    /// QUIC connections, those included that are closed and wait for stray packets.
    pub quic_connections: usize,
    /// Streams of QUIC.
    pub quic_streams: usize,
    /// Files that are open below, or being opened.
    pub files: usize,
    /// SENDs issued and not departed.
    pub sends_outstanding: u64,
    /// Small commands that wait for room in a ring.
    pub commands_waiting: usize,
    /// Timers that are armed: one for each connection at most.
    pub timers: usize,
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
    /// It waits for a neighbour's address, for room in a ring, for a NIC stack that is away, for a
    /// file that a new worker has to open again, or for its SENDs to depart before it goes to
    /// another worker, and is served when that has come. Or for its
    /// turn, amid a handshake of TLS.
    pub waits: bool,
}

/// A connection, as people are shown it.
#[derive(Clone, Debug)]
pub struct ConnectionInfo<'a> {
    /// Its name for applications.
    pub stream: StreamId,
    /// Our end.
    pub local: SocketAddr,
    /// The peer.
    pub remote: SocketAddr,
    /// TCP's part of it.
    pub tcp: tcp::Info,
    /// What was agreed upon, if it speaks TLS and the handshake is over.
    pub tls: Option<&'a TlsAgreed>,
    /// It is amid a handshake of TLS.
    pub in_tls_handshake: bool,
    /// The NIC stack that sends for it.
    pub nic: usize,
    /// Which of that one's workers does, counted from zero.
    pub worker: usize,
    /// SENDs issued and not departed.
    pub sends_outstanding: u64,
    /// As [`ConnectionView::waits`].
    pub waits: bool,
    /// The file that is being sent, if one is.
    pub file: Option<FileInfo<'a>>,
}

/// The file of which the first byte is that the peer has not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileInfo<'a> {
    /// Its path below the NIC stack's root.
    pub path: &'a [u8],
    /// Where in the file that byte is.
    pub offset: u64,
    /// Size of the file, in bytes.
    pub size: u64,
}

/// A worker of a NIC stack, as the host stack sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerView {
    /// The NIC stack.
    pub nic: usize,
    /// Which of its workers, counted from zero.
    pub worker: usize,
    /// The NIC stack is there.
    pub is_there: bool,
    /// New connections may go to it.
    pub is_in_use: bool,
    /// For which part of the time it had work, in its last report, in permille.
    pub busy_permille: u64,
    /// Connections that it sends for.
    pub connections: usize,
    /// Of these, connections that wait for room in its ring.
    pub connections_waiting: usize,
    /// Small commands that do.
    pub commands_waiting: usize,
}

/// The workers of a NIC stack that has come, as far as the host stack decides about them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DivisionView {
    /// The NIC stack.
    pub nic: usize,
    /// Its workers in use: the first ones.
    pub workers_in_use: usize,
    /// So many are in use at least.
    pub workers_min: usize,
    /// And so many at most: all that it has.
    pub workers_max: usize,
}

impl Stack {
    /// How many workers of each NIC stack are in use.
    pub fn division(&self) -> impl Iterator<Item = DivisionView> {
        (0..self.nic_stacks.len()).filter_map(|nic| {
            let (workers_min, workers_max) = self.worker_bounds(nic)?;
            Some(DivisionView {
                nic,
                workers_in_use: self.nic_stacks.workers_in_use(nic).len(),
                workers_min,
                workers_max,
            })
        })
    }

    /// The connections in the table from a place on, each with its own, in the order of places;
    /// those that there is no place for any more come with `None`. To go on, begin behind the last
    /// place: what comes and goes meanwhile is seen or not.
    pub fn connections_from(
        &self,
        place: usize,
        now_us: u64,
    ) -> impl Iterator<Item = (usize, Option<ConnectionInfo<'_>>)> {
        (place..self.connections.places()).map(move |place| {
            let entry = self.connections.get(ConnectionHandle::at(place));
            (place, entry.map(|entry| self.info(entry, now_us)))
        })
    }

    fn info<'a>(&'a self, entry: &'a Entry, now_us: u64) -> ConnectionInfo<'a> {
        let tls = entry.tls.as_deref();
        let first = match tls {
            Some(tls) => tls.connection.first_virtual(),
            None => entry.tcp.first_virtual(),
        };
        let file = first.and_then(|(object, offset)| {
            let file = self.files.by_id(FileId(object))?;
            Some(FileInfo {
                path: &file.path,
                offset,
                size: file.meta.map_or(0, |meta| meta.size),
            })
        });
        let nic = self.nic_stacks.of(entry.worker);
        ConnectionInfo {
            stream: entry.stream,
            local: entry.tuple.local,
            remote: entry.tuple.remote,
            tcp: entry.tcp.info(Instant::from_us(now_us)),
            tls: tls.and_then(|tls| tls.connection.agreed()),
            in_tls_handshake: entry.in_tls_handshake(),
            nic,
            worker: entry.worker - self.nic_stacks.workers(nic).start,
            sends_outstanding: entry.sends_outstanding,
            waits: self.waits(entry),
            file,
        }
    }

    /// The workers of all NIC stacks that have ever come.
    pub fn workers(&self) -> impl Iterator<Item = WorkerView> {
        self.nic_stacks.all_workers().map(|number| {
            let nic = self.nic_stacks.of(number);
            let channel = &self.nics[number];
            WorkerView {
                nic,
                worker: number - self.nic_stacks.workers(nic).start,
                is_there: channel.is_there(),
                is_in_use: self.nic_stacks.is_in_use(number),
                busy_permille: self.division.busy_permille(number),
                connections: self.connections.of_worker(number),
                connections_waiting: channel.waiting.len() + self.quic_waiting(number),
                commands_waiting: channel.commands_waiting(),
            }
        })
    }

    /// What connections held of what peers make the stack hold, in bytes, when they were last
    /// looked at: received text, real bytes to be sent, and buffers of TLS.
    pub fn connection_memory_bytes(&self) -> usize {
        self.memory.bytes()
    }

    /// What the stack holds.
    pub fn usage(&self) -> Usage {
        Usage {
            connections: self.connections.len(),
            orphans: self.orphans.len(),
            half_open: self.gate.half_open(),
            time_waits: self.time_waits.len(),
            parted: self.teardown.parted.len(),
            splices: self.splicing.splices.len(),
            quic_connections: self.quic_len(),
            quic_streams: self.quic_streams_len(),
            files: self.files.len(),
            sends_outstanding: self.sends_outstanding,
            commands_waiting: self.nics.iter().map(|nic| nic.commands_waiting()).sum(),
            timers: self.wheel.len(),
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
        let handle = entry.handle();
        entry.dirty
            || entry.holds > 0
            || !self.nics[entry.worker].is_there()
            || self.waiting_neighbor.contains(handle)
            || self.nics[entry.worker].waiting.contains(handle)
    }
}
