//! The connections of a shard: found by stream id, or by addresses and ports.

use std::net::IpAddr;

use contract::{FileId, FlowId, SendId};
use slab::Slab;
use wire::frame::TcpPrefix;

use crate::app::{BindingId, Owner, Proxied, StreamId};
use crate::ground::nic_flow::NicFlow;
use crate::link::neighbor::Route;
use crate::nics::nic_stacks::NicSet;
use crate::tables::by_source;
use crate::tables::orphans::Since;
use crate::tables::sources;
use crate::tables::sparsity::Sparsity;
use crate::tables::tuple::{Tuple, TupleMap};
use crate::tls_layer::TlsLayer;

/// A connection with the shard's state for it.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) tcp: tcp::Connection,
    /// The TLS layer, if the connection speaks TLS, until it has ended.
    pub(crate) tls: Option<Box<TlsLayer>>,
    pub(crate) stream: StreamId,
    pub(crate) tuple: Tuple,
    /// Where its packets go on this link: the peer, or a gateway.
    pub(crate) route: Route,
    /// Template of its packets' headers, valid for one link address of the next hop.
    pub(crate) prefix: Option<TcpPrefix>,
    pub(crate) nic: NicFlow,
    /// Files opened for it that may still be open.
    pub(crate) files: Vec<FileId>,
    /// In the queue of connections to serve.
    pub(crate) dirty: bool,
    /// The application has the connection: accepted and not yet closed.
    pub(crate) told: bool,
    /// The peer has sent data; with TLS, it has completed the handshake.
    pub(crate) heard: bool,
    /// Its place among the connections whose peers have sent nothing yet.
    pub(crate) unheard: Option<by_source::Place>,
    /// Start of its idleness, in microseconds: the application only waits for the next request.
    pub(crate) idle_since_us: Option<u64>,
    /// The application has ended its side.
    pub(crate) is_shut: bool,
    /// This side has opened it.
    pub(crate) is_active: bool,
    /// The application that owns it.
    pub(crate) owner: Owner,
    /// The listener that accepted it.
    pub(crate) listener: Option<BindingId>,
    /// It counts against its listener's room.
    pub(crate) is_reserved: bool,
    /// The application gets it with its first data, or when its timer fires.
    pub(crate) is_deferred: bool,
    /// The header of the PROXY protocol at its beginning.
    pub(crate) header: ProxyHeader,
    /// The client that the header has named.
    pub(crate) proxied: Option<Box<Proxied>>,
    /// The SYN cookie that the peer returned to open it, if any.
    pub(crate) cookie: Option<u32>,
    /// Set once it waits for its peer alone.
    pub(crate) orphan_since: Option<Since>,
    /// NIC stacks that lack the version of a file that it sends.
    pub(crate) refused_by: NicSet,
    /// Stream offset of the last acknowledgment that the NIC stack knows.
    pub(crate) ackd_offset: u64,
    /// Bytes that the peer had acknowledged at the last look at the load.
    pub(crate) marked_bytes: u64,
    /// The last transmission handed out; completes the ids in departures.
    pub(crate) last_transmission: u64,
    /// The application's timer, in microseconds.
    pub(crate) app_deadline_us: Option<u64>,
    /// `Writable` is due when at most this number of bytes wait to be sent.
    pub(crate) notsent_lowat: Option<u64>,
    /// Expiry of its armed timer, in microseconds; `u64::MAX` without one.
    pub(crate) armed_us: u64,
    /// A NIC stack may run its end, once only the end is left.
    pub(crate) may_part: bool,
    /// The application's request for that, if any.
    pub(crate) wants_teardown: Option<bool>,
    /// Traffic class of its packets, without the ECN field.
    pub(crate) traffic_class: u8,
    /// Its share of the memory of all connections, as of the last look, in bytes.
    pub(crate) charged_bytes: usize,
    /// The peer has sent text since that look.
    pub(crate) is_share_stale: bool,
    /// The data plane has failed: the close reports this reason.
    pub(crate) data_plane_failed: bool,
}

/// The header of the PROXY protocol at the beginning of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProxyHeader {
    /// It has arrived, or none is due.
    Done,
    /// It has to arrive before anything else.
    Awaited,
    /// There was none, or the client has too many connections: the connection ends, unknown to its
    /// application.
    Refused,
}

impl Entry {
    /// Its place in the table.
    pub(crate) fn handle(&self) -> ConnectionHandle {
        ConnectionHandle::of(self.stream)
    }

    /// True until the header of the PROXY protocol has arrived.
    pub(crate) fn awaits_header(&self) -> bool {
        self.header == ProxyHeader::Awaited
    }

    /// True as long as its application may not know it, or for ever if it is refused.
    pub(crate) fn is_held_back(&self) -> bool {
        self.header != ProxyHeader::Done
    }

    /// Returns the address that counts as its source.
    pub(crate) fn source(&self) -> IpAddr {
        if let Some(proxied) = &self.proxied {
            return proxied.client.ip();
        }
        if self.route.is_looped() {
            return sources::LOOPBACK;
        }
        self.tuple.remote.ip()
    }

    /// True during its TLS handshake.
    pub(crate) fn in_tls_handshake(&self) -> bool {
        self.tls.is_some() && !self.heard
    }

    /// Returns the number of bytes queued and not sent.
    pub(crate) fn notsent_bytes(&self) -> u64 {
        let tcp = &self.tcp;
        let plain = self.tls.as_ref().map(|tls| tls.connection.queued_bytes());
        tcp.queued_bytes().saturating_sub(tcp.flight_bytes()) + plain.unwrap_or(0)
    }

    /// True if all that was queued has been acknowledged.
    pub(crate) fn is_drained(&self) -> bool {
        let tls = self.tls.as_deref();
        self.tcp.queued_bytes() == 0 && tls.is_none_or(TlsLayer::is_drained)
    }

    /// True if the peer has acknowledged all that the application queued, and the application only
    /// waits for the next request or has ended its side. Clients may then end the connection as
    /// they like: one that closes its socket answers close_notify with RST.
    pub(crate) fn is_delivered(&self) -> bool {
        let left = match &self.tls {
            None => self.tcp.queued_bytes(),
            Some(tls) => tls.connection.unacknowledged_bytes(),
        };
        left == 0 && (self.is_shut || self.idle_since_us.is_some())
    }

    /// Returns the number of the application's queued bytes that the peer has acknowledged.
    pub(crate) fn acknowledged_bytes(&self) -> u64 {
        match &self.tls {
            None => self.tcp.acknowledged_bytes(),
            Some(tls) => tls.connection.acknowledged_bytes(),
        }
    }

    /// Returns the flow id in the NIC stack.
    pub(crate) fn flow(&self) -> FlowId {
        FlowId(self.stream.0)
    }
}

/// The place of a connection in the table. Another connection may reuse the place; their
/// [`StreamId`]s differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionHandle(usize);

impl ConnectionHandle {
    /// The place with this number, from 0.
    pub(crate) const fn at(place: usize) -> Self {
        ConnectionHandle(place)
    }

    /// The place that a stream has, or had.
    fn of(stream: StreamId) -> Self {
        ConnectionHandle(stream.0 as u32 as usize)
    }

    /// The number of the place.
    pub(crate) const fn place(self) -> usize {
        self.0
    }
}

/// Name of a transmission of a connection. Never below 2³², so that it cannot be taken for a file
/// id where the contract carries either.
pub(crate) fn send_id(connection: ConnectionHandle, transmission: u64) -> SendId {
    SendId((connection.0 as u64 + 1) << 32 | transmission & 0xffff_ffff)
}

/// The connection that a SEND's id names, if it is a SEND's.
pub(crate) fn handle_of_send(id: u64) -> Option<ConnectionHandle> {
    let place = ((id >> 32) as usize).checked_sub(1);
    place.map(ConnectionHandle)
}

/// The transmission that a SEND's id names, given the last one of its connection.
pub(crate) fn transmission_of_send(id: SendId, last_transmission: u64) -> u64 {
    let behind = (last_transmission as u32).wrapping_sub(id.0 as u32);
    last_transmission.wrapping_sub(u64::from(behind))
}

/// Boxes of connections that are gone, kept for those that come.
const SPARE_MAX: usize = 64;

/// The table.
#[derive(Debug)]
pub(crate) struct Connections {
    /// Boxed: a table that grows moves pointers, and has room to spare for no more than these.
    entries: Slab<Box<Entry>>,
    /// Their contents are stale, and overwritten on reuse.
    #[expect(clippy::vec_box, reason = "the boxes are what is kept")]
    spare: Vec<Box<Entry>>,
    by_tuple: TupleMap<ConnectionHandle>,
    generation: u32,
    sparsity: Sparsity,
}

impl Connections {
    pub(crate) fn new(secret: &[u8; 16]) -> Connections {
        Connections {
            entries: Slab::new(),
            spare: Vec::new(),
            by_tuple: TupleMap::new(secret),
            generation: 0,
            sparsity: Sparsity::default(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// A hash of addresses and ports, under the table's key.
    pub(crate) fn hash(&self, tuple: &Tuple) -> u64 {
        self.by_tuple.hash(tuple)
    }

    /// Places in the table: all are below.
    pub(crate) fn places(&self) -> usize {
        self.entries.capacity()
    }

    /// Adds a connection for which this NIC worker sends, and returns its place.
    pub(crate) fn insert(
        &mut self,
        tcp: tcp::Connection,
        tuple: Tuple,
        route: Route,
        worker: usize,
    ) -> ConnectionHandle {
        self.generation = self.generation.wrapping_add(1);
        let slot = self.entries.vacant_entry();
        let handle = ConnectionHandle(slot.key());
        let entry = Entry {
            tcp,
            tls: None,
            stream: StreamId(u64::from(self.generation) << 32 | handle.0 as u64),
            tuple,
            route,
            prefix: None,
            nic: NicFlow::at(worker),
            files: Vec::new(),
            dirty: false,
            told: false,
            heard: false,
            unheard: None,
            idle_since_us: None,
            is_shut: false,
            is_active: false,
            owner: Owner::SERVER,
            listener: None,
            is_deferred: false,
            is_reserved: false,
            header: ProxyHeader::Done,
            proxied: None,
            cookie: None,
            orphan_since: None,
            refused_by: NicSet::default(),
            ackd_offset: 0,
            marked_bytes: 0,
            last_transmission: 0,
            app_deadline_us: None,
            notsent_lowat: None,
            armed_us: u64::MAX,
            may_part: false,
            wants_teardown: None,
            traffic_class: 0,
            charged_bytes: 0,
            is_share_stale: false,
            data_plane_failed: false,
        };
        slot.insert(match self.spare.pop() {
            Some(mut spare) => {
                *spare = entry;
                spare
            }
            None => Box::new(entry),
        });
        self.by_tuple.insert(&tuple, handle);
        handle
    }

    pub(crate) fn remove(&mut self, handle: ConnectionHandle) -> Option<Box<Entry>> {
        let entry = self.entries.try_remove(handle.0)?;
        self.by_tuple.remove(&entry.tuple);
        Some(entry)
    }

    /// Keeps the box of a removed connection for another one.
    pub(crate) fn recycle(&mut self, entry: Box<Entry>) {
        if self.spare.len() < SPARE_MAX && entry.tcp.memory_bytes() == 0 {
            self.spare.push(entry);
        }
    }

    /// A connection was removed: gives memory back if a crowd has gone. True if so.
    pub(crate) fn shrink_if_sparse(&mut self) -> bool {
        let is_sparse = self.sparsity.on_removed(self.len(), self.places());
        if is_sparse {
            self.entries.shrink_to_fit();
            self.by_tuple.shrink();
        }
        is_sparse
    }

    #[inline(always)]
    pub(crate) fn find(&self, tuple: &Tuple) -> Option<ConnectionHandle> {
        self.by_tuple.get(tuple).copied()
    }

    /// Detaches the addresses and ports from their connection: it gets no segments for now.
    pub(crate) fn take_off(&mut self, tuple: &Tuple) {
        self.by_tuple.remove(tuple);
    }

    /// Attaches the addresses and ports to the connection again.
    pub(crate) fn put_back(&mut self, tuple: &Tuple, handle: ConnectionHandle) {
        self.by_tuple.insert(tuple, handle);
    }

    pub(crate) fn get(&self, handle: ConnectionHandle) -> Option<&Entry> {
        self.entries.get(handle.0).map(Box::as_ref)
    }

    pub(crate) fn get_mut(&mut self, handle: ConnectionHandle) -> Option<&mut Entry> {
        self.entries.get_mut(handle.0).map(Box::as_mut)
    }

    /// The place of a stream that still exists.
    pub(crate) fn handle_of(&self, stream: StreamId) -> Option<ConnectionHandle> {
        let handle = ConnectionHandle::of(stream);
        (self.entries.get(handle.0)?.stream == stream).then_some(handle)
    }

    /// A stream that still exists.
    pub(crate) fn by_stream(&self, stream: StreamId) -> Option<&Entry> {
        self.get(self.handle_of(stream)?)
    }

    /// The same, to change it.
    pub(crate) fn by_stream_mut(&mut self, stream: StreamId) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(ConnectionHandle::of(stream).0)?;
        (entry.stream == stream).then_some(entry)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().map(|(_, entry)| entry.as_ref())
    }

    /// All connections, as they are now.
    pub(crate) fn handles(&self) -> Vec<ConnectionHandle> {
        let places = self.entries.iter().map(|(place, _)| place);
        places.map(ConnectionHandle).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_send_id_leads_back_to_its_transmission() {
        for last in [
            0,
            1,
            0xffff_ffff,
            0x1_0000_0000,
            0x1_0000_0005,
            u64::MAX >> 1,
        ] {
            for transmission in [last, last.saturating_sub(1), last.saturating_sub(1000)] {
                let handle = ConnectionHandle::at(3);
                let id = send_id(handle, transmission);
                assert_eq!(handle_of_send(id.0), Some(handle));
                assert_eq!(transmission_of_send(id, last), transmission);
            }
        }
    }

    #[test]
    fn a_file_id_is_no_send_id() {
        assert_eq!(handle_of_send(u64::from(u32::MAX)), None);
    }
}
