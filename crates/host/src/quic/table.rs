//! The QUIC connections of a stack, and their streams.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use contract::quic::QuicConnectionId;
use contract::{FileId, SendId};
use quic::{FileRange, Handle, SealKey};
use slab::Slab;

use super::names;
use crate::app::{AppEvent, CloseReason, QuicConnection, StreamId, TlsAgreed};
use crate::ground::nic_flow::NicFlow;
use crate::link::neighbor::Route;
use crate::tables::sparsity::Sparsity;
use crate::tables::tuple::Tuple;

/// A queued command for the NIC worker of a connection.
#[derive(Debug)]
pub(super) enum Pending {
    Key {
        key: Arc<SealKey>,
        floor: u64,
    },
    KeyGone {
        generation: u32,
    },
    Send {
        send: quic::Send,
        /// QSENDs of it that the worker has.
        done: usize,
    },
    Release(FileRange),
    /// The peer's key of the last generation, as QRXKEY.
    ReceiveKey,
    ConnectionId(QuicConnectionId),
    /// QRXKEYGONE: the worker loses the peer's key.
    ReceiveKeyGone,
}

/// The receiver of a connection's datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reception {
    /// The host, which opens them.
    Host,
    /// The host, which forwards those of this four-tuple to the worker.
    HandedOn(Tuple),
    /// The worker: a packet filter steers this four-tuple to it.
    Steered(Tuple),
}

/// Which of the peer's packets a worker may have opened, by the keys that it got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opens {
    /// None: it has had no key since the flow began.
    Nothing,
    /// Those of generations up to this one, whose key it has.
    UpTo(u32),
    /// Those of generations up to `last`, until the QSEND of number `send` departs: its key was
    /// taken back before that.
    UpToDeparture { last: u32, send: u32 },
    /// None, since that departure.
    NoMore,
}

/// A PREPARE without an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) id: SendId,
    pub(super) stream: StreamId,
    /// The range, if no longer wanted: it is released once ready.
    pub(super) unwanted: Option<FileRange>,
}

/// A connection's use of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    /// Bytes queued, or written and not acknowledged.
    pub(super) bytes: u64,
    /// QSENDs and PREPAREs before this one meant another file by this id.
    pub(super) since: u32,
}

/// A QSEND that has not departed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Issued {
    pub(super) number: u32,
    /// The endpoint's transmission that it completes.
    pub(super) send: Option<u64>,
}

/// A connection, and the stack's state for it.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: QuicConnection,
    /// Its endpoint, ...
    pub(super) listener: usize,
    /// ... and the endpoint's handle.
    pub(super) handle: Handle,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    /// Where packets to `route_to` go on this link.
    pub(super) route: Route,
    pub(super) route_to: IpAddr,
    pub(super) nic: NicFlow,
    /// Commands not yet issued to the worker.
    pub(super) commands: VecDeque<Pending>,
    pub(super) issued: VecDeque<Issued>,
    /// The number of the next QSEND or PREPARE.
    pub(super) next_command: u32,
    /// The keys that the worker has.
    pub(super) keys: Vec<Arc<SealKey>>,
    /// [`QuicReceive`](crate::QuicReceive) places the opening of packets at the worker.
    pub(super) wants_nic_receive: bool,
    /// Generation of the peer's key at the worker.
    pub(super) nic_key: Option<u32>,
    /// The peer's packets that this worker may have opened.
    pub(super) opens: Opens,
    /// The worker has accepted the flow: packet filters may steer datagrams to it.
    pub(super) is_flow_taken: bool,
    /// How its datagrams reach the worker.
    pub(super) reception: Reception,
    /// All lower packet numbers were given to a worker, or skipped.
    pub(super) next_number: u64,
    /// In the list of connections that may advance.
    pub(super) is_ready: bool,
    /// In a list of connections that wait for room in a ring, or for a neighbour.
    pub(super) waits: bool,
    /// Negotiated parameters, once the handshake is complete or early data has arrived: the
    /// application then knows the connection.
    pub(super) agreed: Option<TlsAgreed>,
    /// The handshake is complete.
    pub(super) is_handshake_complete: bool,
    /// The source against which it counts.
    pub(super) source: Option<IpAddr>,
    /// It is closed, and the application knows.
    pub(super) is_over: bool,
    /// The endpoint has forgotten it.
    pub(super) is_gone: bool,
    /// The NIC stack failed to serve it.
    pub(super) data_plane_failed: bool,
    /// The worker rejected a key: the connection is closed, and reports that in handshake packets
    /// through the host's port, as long as it has their keys.
    pub(super) lacks_key: bool,
    /// By stream ID.
    pub(super) streams: BTreeMap<u64, StreamId>,
    /// Streams among them that both ends may send on.
    pub(super) requests: u32,
    /// Streams with data to write, highest priority first.
    pub(super) writing: VecDeque<StreamId>,
    /// Streams whose application waits for room.
    pub(super) wanting: u32,
    /// Streams whose application waits for the low-water mark.
    pub(super) lowats: u32,
    /// Files with ranges queued, or written and not acknowledged.
    pub(super) files: BTreeMap<FileId, Held>,
    /// Files that must not be sent any more.
    pub(super) bad_files: Vec<FileId>,
    /// PREPAREs without an answer.
    pub(super) prepares: VecDeque<Asked>,
    /// Real bytes queued, or written and not acknowledged.
    pub(super) real_bytes: u64,
    /// Its share of the memory of all connections, as of the last look, in bytes.
    pub(super) charged_bytes: usize,
    /// Bytes of datagrams sent.
    pub(super) sent_bytes: u64,
    /// Packets of the peer that NIC workers have opened.
    pub(super) packets_opened: u64,
}

impl Connection {
    /// Stops all sending of a file.
    pub(super) fn bar(&mut self, file: FileId) {
        if self.files.contains_key(&file) {
            self.bad_files.push(file);
        }
    }

    /// Takes the PREPARE with this id, which is answered.
    pub(super) fn take_asked(&mut self, id: SendId) -> Option<Asked> {
        let at = self.prepares.iter().position(|asked| asked.id == id)?;
        self.prepares.remove(at)
    }
}

/// The direction in which a stream's application sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sending {
    /// The stream may be written.
    Open,
    /// Its end is queued.
    Finishing,
    /// Its end is written.
    Finished,
    /// The direction is over: all is acknowledged, it was reset, or it does not exist. Writes are
    /// discarded.
    Over,
}

/// The direction in which a stream's peer sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receiving {
    /// More may arrive.
    Open,
    /// The direction is over: its end was read, it was reset or stopped, or it does not exist.
    Over,
}

/// Data that an application has queued.
#[derive(Debug)]
pub(super) enum Queued {
    /// Real bytes, of which those before `from` are written.
    Real { bytes: Vec<u8>, from: usize },
    /// A range of a file.
    File {
        range: FileRange,
        readiness: Readiness,
    },
}

/// The state of a range at the NIC stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Readiness {
    /// PREPARE was not sent.
    Unasked,
    /// This PREPARE is not answered.
    Asked(SendId),
    /// It is in memory.
    Ready,
}

/// A stream.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) id: StreamId,
    /// The place of its connection.
    pub(super) connection: usize,
    pub(super) quic: quic::StreamId,
    pub(super) sending: Sending,
    pub(super) receiving: Receiving,
    pub(super) queue: VecDeque<Queued>,
    /// Bytes in `queue`, ...
    pub(super) queued_bytes: u64,
    /// ... and real ones among them.
    pub(super) queued_real_bytes: u64,
    /// Bytes written to the endpoint.
    pub(super) written: u64,
    pub(super) acknowledged: u64,
    /// How many were acknowledged at the last [`AppEvent::Drained`](crate::app::AppEvent::Drained).
    pub(super) drained: u64,
    /// The application waits for room.
    pub(super) wants_room: bool,
    pub(super) notsent_lowat: Option<u64>,
    pub(super) priority: i32,
    pub(super) is_writing: bool,
    /// Rate limit in bytes per second, and when the next bytes may be written, in microseconds.
    pub(super) rate: Option<(u64, u64)>,
    pub(super) deadline_us: Option<u64>,
    /// Files opened for it that may still be open.
    pub(super) files: Vec<FileId>,
    /// The application gets no more events of it.
    pub(super) is_released: bool,
    /// The reason with which it ends.
    pub(super) reason: CloseReason,
    /// `Closed` is queued for the application.
    pub(super) is_closing: bool,
}

impl Stream {
    /// Bytes queued and not acknowledged.
    pub(super) fn unacknowledged(&self) -> u64 {
        self.queued_bytes + self.written.saturating_sub(self.acknowledged)
    }

    /// Its last event, if the connection ends for this reason.
    pub(super) fn closed(&self, of_connection: CloseReason) -> AppEvent {
        let reason = if self.is_over() {
            self.reason
        } else {
            of_connection
        };
        AppEvent::Closed {
            reason,
            acknowledged: self.acknowledged,
            retransmissions: 0,
        }
    }

    /// True if both directions are over.
    pub(super) fn is_over(&self) -> bool {
        self.sending == Sending::Over && self.receiving == Receiving::Over
    }
}

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) connections: Slab<Box<Connection>>,
    pub(super) streams: Slab<Box<Stream>>,
    by_handle: HashMap<(usize, Handle), usize>,
    generation: u32,
    connections_sparsity: Sparsity,
    streams_sparsity: Sparsity,
}

impl Table {
    /// Inserts a connection with its endpoint's handle.
    pub(super) fn insert(
        &mut self,
        (listener, handle): (usize, Handle),
        (local, remote): (SocketAddr, SocketAddr),
        route: Route,
        worker: usize,
    ) -> usize {
        self.generation = self.generation.wrapping_add(1);
        let slot = self.connections.vacant_entry();
        let place = slot.key();
        slot.insert(Box::new(Connection {
            id: names::connection(self.generation, place),
            listener,
            handle,
            local,
            remote,
            route,
            route_to: remote.ip(),
            nic: NicFlow::at(worker),
            commands: VecDeque::new(),
            issued: VecDeque::new(),
            next_command: 0,
            keys: Vec::new(),
            wants_nic_receive: false,
            nic_key: None,
            opens: Opens::Nothing,
            is_flow_taken: false,
            reception: Reception::Host,
            next_number: 0,
            is_ready: false,
            waits: false,
            agreed: None,
            is_handshake_complete: false,
            source: None,
            is_over: false,
            is_gone: false,
            data_plane_failed: false,
            lacks_key: false,
            streams: BTreeMap::new(),
            requests: 0,
            writing: VecDeque::new(),
            wanting: 0,
            lowats: 0,
            files: BTreeMap::new(),
            bad_files: Vec::new(),
            prepares: VecDeque::new(),
            real_bytes: 0,
            charged_bytes: 0,
            sent_bytes: 0,
            packets_opened: 0,
        }));
        self.by_handle.insert((listener, handle), place);
        place
    }

    /// The place of a connection, by its endpoint's handle.
    pub(super) fn find(&self, listener: usize, handle: Handle) -> Option<usize> {
        self.by_handle.get(&(listener, handle)).copied()
    }

    /// The place of a connection that still exists.
    pub(super) fn place_of(&self, connection: QuicConnection) -> Option<usize> {
        let place = names::place_of_connection(connection.0)?;
        (self.connections.get(place)?.id == connection).then_some(place)
    }

    pub(super) fn remove(&mut self, place: usize) -> Option<Box<Connection>> {
        let connection = self.connections.try_remove(place)?;
        self.by_handle
            .remove(&(connection.listener, connection.handle));
        let (len, places) = (self.connections.len(), self.connections.capacity());
        if self.connections_sparsity.on_removed(len, places) {
            self.connections.shrink_to_fit();
            self.by_handle.shrink_to_fit();
        }
        Some(connection)
    }

    /// Inserts a stream of a connection.
    pub(super) fn insert_stream(&mut self, place: usize, quic: quic::StreamId) -> Option<StreamId> {
        let connection = self.connections.get_mut(place)?;
        self.generation = self.generation.wrapping_add(1);
        let slot = self.streams.vacant_entry();
        let id = names::stream(self.generation, slot.key());
        let sends = !quic.is_unidirectional() || quic.is_of_server();
        let receives = !quic.is_unidirectional() || !quic.is_of_server();
        slot.insert(Box::new(Stream {
            id,
            connection: place,
            quic,
            sending: if sends { Sending::Open } else { Sending::Over },
            receiving: if receives {
                Receiving::Open
            } else {
                Receiving::Over
            },
            queue: VecDeque::new(),
            queued_bytes: 0,
            queued_real_bytes: 0,
            written: 0,
            acknowledged: 0,
            drained: 0,
            wants_room: false,
            notsent_lowat: None,
            priority: 0,
            is_writing: false,
            rate: None,
            deadline_us: None,
            files: Vec::new(),
            is_released: false,
            reason: CloseReason::Finished,
            is_closing: false,
        }));
        connection.streams.insert(quic.0, id);
        connection.requests += u32::from(!quic.is_unidirectional());
        Some(id)
    }

    pub(super) fn stream(&self, stream: StreamId) -> Option<&Stream> {
        let found = self.streams.get(names::place_of_stream(stream)?)?;
        (found.id == stream).then_some(found)
    }

    pub(super) fn stream_mut(&mut self, stream: StreamId) -> Option<&mut Stream> {
        let found = self.streams.get_mut(names::place_of_stream(stream)?)?;
        (found.id == stream).then_some(found)
    }

    /// A stream and its connection.
    pub(super) fn pair_mut(&mut self, stream: StreamId) -> Option<(&mut Stream, &mut Connection)> {
        let found = self.streams.get_mut(names::place_of_stream(stream)?)?;
        if found.id != stream {
            return None;
        }
        let connection = self.connections.get_mut(found.connection)?;
        Some((found, connection))
    }

    /// The same, shared.
    pub(super) fn pair(&self, stream: StreamId) -> Option<(&Stream, &Connection)> {
        let found = self.stream(stream)?;
        Some((found, self.connections.get(found.connection)?))
    }

    pub(super) fn remove_stream(&mut self, stream: StreamId) -> Option<Box<Stream>> {
        let place = names::place_of_stream(stream)?;
        self.stream(stream)?;
        let removed = self.streams.try_remove(place)?;
        if let Some(connection) = self.connections.get_mut(removed.connection) {
            connection.streams.remove(&removed.quic.0);
            connection.requests -= u32::from(!removed.quic.is_unidirectional());
            if removed.is_writing {
                connection.writing.retain(|other| *other != stream);
            }
            connection.wanting -= u32::from(removed.wants_room);
        }
        let (len, places) = (self.streams.len(), self.streams.capacity());
        if self.streams_sparsity.on_removed(len, places) {
            self.streams.shrink_to_fit();
        }
        Some(removed)
    }

    /// Stops all sending of a file by the connection that uses it.
    pub(super) fn bar(&mut self, file: FileId) {
        self.connections.iter_mut().for_each(|(_, it)| it.bar(file));
    }

    /// A snapshot of the places of all connections.
    pub(super) fn places(&self) -> Vec<usize> {
        self.connections.iter().map(|(place, _)| place).collect()
    }
}
