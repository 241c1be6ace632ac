//! The current contents of a stack, for simulations and operators.

use std::net::SocketAddr;

use contract::FileId;
use tcp::Instant;

use super::Stack;
use crate::app::{StreamId, TlsAgreed};
use crate::tables::connections::{ConnectionHandle, Entry};

/// Resources in use in a stack. All zero once everything is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Connections in the table.
    pub connections: usize,
    /// Connections in the table whose FIN has been sent: they wait only for their peers.
    pub orphans: usize,
    /// Handshakes in progress; SYN cookies leave none.
    pub half_open: usize,
    /// Connections in TIME-WAIT.
    pub time_waits: usize,
    /// Connections whose end a NIC stack runs.
    pub parted: usize,
    /// Pairs of connections that a NIC stack has joined, or is about to join.
    pub splices: usize,
    /// QUIC connections, including closed ones that wait for stray packets.
    pub quic_connections: usize,
    /// QUIC streams.
    pub quic_streams: usize,
    /// Files that NIC stacks have open, or are opening.
    pub files: usize,
    /// SENDs issued and not departed.
    pub sends_outstanding: u64,
    /// Small commands waiting for room in a ring.
    pub commands_waiting: usize,
    /// Armed timers: one for each connection at most.
    pub timers: usize,
}

/// A connection, as a simulation sees it.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionView<'a> {
    /// Its id for applications.
    pub stream: StreamId,
    /// The peer.
    pub remote: SocketAddr,
    /// Its TCP connection.
    pub tcp: &'a tcp::Connection,
    /// SENDs issued and not departed.
    pub sends_outstanding: u64,
    /// True if it waits: for a neighbour's address, for room in a ring, for a NIC stack that is
    /// away, for a file that a new worker has to open again, for its SENDs to depart before it
    /// moves to another worker, or for its turn in a TLS handshake.
    pub waits: bool,
}

/// A connection, as an operator sees it.
#[derive(Clone, Debug)]
pub struct ConnectionInfo<'a> {
    /// Its id for applications.
    pub stream: StreamId,
    /// Its local address and port.
    pub local: SocketAddr,
    /// The peer.
    pub remote: SocketAddr,
    /// Its TCP state.
    pub tcp: tcp::Info,
    /// The parameters negotiated by TLS, once the handshake is complete.
    pub tls: Option<&'a TlsAgreed>,
    /// True during its TLS handshake.
    pub in_tls_handshake: bool,
    /// The NIC stack that sends for it.
    pub nic: usize,
    /// The worker there that sends for it, counted from zero.
    pub worker: usize,
    /// SENDs issued and not departed.
    pub sends_outstanding: u64,
    /// As [`ConnectionView::waits`].
    pub waits: bool,
    /// The file being sent, if any.
    pub file: Option<FileInfo<'a>>,
}

/// The file that contains the first unacknowledged byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileInfo<'a> {
    /// Its path below the NIC stack's root.
    pub path: &'a [u8],
    /// Offset of that byte in the file.
    pub offset: u64,
    /// Size of the file, in bytes.
    pub size: u64,
}

/// A worker of a NIC stack, as the host stack sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerView {
    /// The NIC stack.
    pub nic: usize,
    /// Its number there, counted from zero.
    pub worker: usize,
    /// True if the NIC stack is there.
    pub is_there: bool,
    /// True if new connections may go to it.
    pub is_in_use: bool,
    /// The share of time in which it had work, in its last report, in permille.
    pub busy_permille: u64,
    /// Connections that it sends for.
    pub connections: usize,
    /// Of these, connections that wait for room in its ring.
    pub connections_waiting: usize,
    /// Small commands that wait.
    pub commands_waiting: usize,
}

/// The workers of a NIC stack that has joined, as far as the host stack decides about them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DivisionView {
    /// The NIC stack.
    pub nic: usize,
    /// Workers in use: the first ones.
    pub workers_in_use: usize,
    /// Minimum in use.
    pub workers_min: usize,
    /// Maximum in use: all that it has.
    pub workers_max: usize,
}

impl Stack {
    /// The number of workers in use of each NIC stack.
    pub fn division(&self) -> impl Iterator<Item = DivisionView> {
        (0..self.ground.nic_stacks.len()).filter_map(|nic| {
            let (workers_min, workers_max) = self.ground.worker_bounds(nic)?;
            Some(DivisionView {
                nic,
                workers_in_use: self.ground.nic_stacks.workers_in_use(nic).len(),
                workers_min,
                workers_max,
            })
        })
    }

    /// The connections in the table from a place on, in order, each with its own; free places come
    /// with `None`. To continue, begin behind the last place: connections that come and go
    /// meanwhile may be missed.
    pub fn connections_from(
        &self,
        place: usize,
        now_us: u64,
    ) -> impl Iterator<Item = (usize, Option<ConnectionInfo<'_>>)> {
        (place..self.tcp.connections.places()).map(move |place| {
            let entry = self.tcp.connections.get(ConnectionHandle::at(place));
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
            let file = self.ground.files.by_id(FileId(object))?;
            Some(FileInfo {
                path: &file.path,
                offset,
                size: file.meta.map_or(0, |meta| meta.size),
            })
        });
        let nic = self.ground.nic_stacks.of(entry.nic.worker);
        ConnectionInfo {
            stream: entry.stream,
            local: entry.tuple.local,
            remote: entry.tuple.remote,
            tcp: entry.tcp.info(Instant::from_us(now_us)),
            tls: tls.and_then(|tls| tls.connection.agreed()),
            in_tls_handshake: entry.in_tls_handshake(),
            nic,
            worker: entry.nic.worker - self.ground.nic_stacks.workers(nic).start,
            sends_outstanding: entry.nic.sends_outstanding,
            waits: self.waits(entry),
            file,
        }
    }

    /// The workers of all NIC stacks that have ever joined.
    pub fn workers(&self) -> impl Iterator<Item = WorkerView> {
        self.ground.nic_stacks.all_workers().map(|number| {
            let nic = self.ground.nic_stacks.of(number);
            let channel = &self.ground.workers[number];
            WorkerView {
                nic,
                worker: number - self.ground.nic_stacks.workers(nic).start,
                is_there: channel.is_there(),
                is_in_use: self.ground.nic_stacks.is_in_use(number),
                busy_permille: self.ground.division.busy_permille(number),
                connections: self.ground.balance.connections_of(number),
                connections_waiting: channel.waiting.len() + self.quic.waiting(number),
                commands_waiting: channel.commands_waiting(),
            }
        })
    }

    /// Memory that peers make the stack and its applications hold, in bytes, as of the last look at
    /// each connection.
    pub fn connection_memory_bytes(&self) -> usize {
        self.ground.memory.bytes()
    }

    /// Returns the resources in use.
    pub fn usage(&self) -> Usage {
        Usage {
            connections: self.tcp.connections.len(),
            orphans: self.tcp.orphans.len(),
            half_open: self.tcp.gate.half_open(),
            time_waits: self.tcp.time_waits.len(),
            parted: self.tcp.teardown.parted.len(),
            splices: self.tcp.splicing.splices.len(),
            quic_connections: self.quic.len(),
            quic_streams: self.quic.streams_len(),
            files: self.ground.files.len(),
            sends_outstanding: self.ground.sends_outstanding,
            commands_waiting: self
                .ground
                .workers
                .iter()
                .map(|nic| nic.commands_waiting())
                .sum(),
            timers: self.tcp.wheel.len(),
        }
    }

    /// Every connection in the table.
    pub fn connection_views(&self) -> impl Iterator<Item = ConnectionView<'_>> {
        self.tcp.connections.iter().map(|entry| ConnectionView {
            stream: entry.stream,
            remote: entry.tuple.remote,
            tcp: &entry.tcp,
            sends_outstanding: entry.nic.sends_outstanding,
            waits: self.waits(entry),
        })
    }

    fn waits(&self, entry: &Entry) -> bool {
        let handle = entry.handle();
        entry.dirty
            || entry.nic.holds > 0
            || !self.ground.workers[entry.nic.worker].is_there()
            || self.tcp.waiting_neighbor.contains(handle)
            || self.ground.workers[entry.nic.worker]
                .waiting
                .contains(handle)
    }
}
