//! The QUIC state of a stack, for monitoring.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::table::{Connection, Reception};
use crate::app::{QuicConnection, TlsAgreed};
use crate::ground::Ground;
use crate::quic::QuicLayer;

/// A snapshot of a QUIC connection, for display.
#[derive(Clone, Debug)]
pub struct QuicInfo<'a> {
    /// Its name for applications.
    pub connection: QuicConnection,
    /// Our end.
    pub local: SocketAddr,
    /// The peer.
    pub remote: SocketAddr,
    /// Negotiated parameters, once the handshake is complete or early data has arrived.
    pub tls: Option<&'a TlsAgreed>,
    /// It is closed, and waits for stray packets.
    pub is_closed: bool,
    /// Streams that are open.
    pub streams: usize,
    /// Bytes of datagrams sent for it, except handshake datagrams.
    pub sent_bytes: u64,
    /// The smoothed round-trip time.
    pub round_trip: Duration,
    /// The congestion window, in bytes.
    pub congestion_window: u64,
    /// Packets declared lost.
    pub packets_lost: u64,
    /// A NIC worker seals and sends for it: it has a key.
    pub is_offloaded: bool,
    /// The worker also opens the peer's packets: it has the peer's key, and datagrams reach it.
    pub is_opened_by_nic: bool,
    /// Packets of the peer that NIC workers have opened.
    pub packets_opened_by_nic: u64,
    /// The NIC stack that sends for it.
    pub nic: usize,
    /// The sending worker of that NIC stack, counted from zero.
    pub worker: usize,
    /// QSENDs issued and not departed.
    pub sends_outstanding: u64,
    /// It waits for a neighbour's address, for room in a ring, for a NIC stack that is away, for a
    /// file that a new worker has to reopen, or for its QSENDs to depart before it moves to another
    /// worker.
    pub waits: bool,
}

impl QuicLayer {
    /// QUIC connections from a place in their table on, as [`Stack::connections_from`] does for
    /// TCP.
    pub(crate) fn connections_from(
        &self,
        ground: &Ground,
        place: usize,
    ) -> impl Iterator<Item = (usize, Option<QuicInfo<'_>>)> {
        let table = &self.table.connections;
        (place..table.capacity()).map(move |place| {
            let connection = table.get(place);
            (
                place,
                connection.map(|connection| self.info(ground, connection)),
            )
        })
    }

    /// QUIC connections.
    pub(crate) fn connections(&self, ground: &Ground) -> impl Iterator<Item = QuicInfo<'_>> {
        let connections = self.table.connections.iter();
        connections.map(|(_, connection)| self.info(ground, connection))
    }

    fn info<'a>(&'a self, ground: &Ground, connection: &'a Connection) -> QuicInfo<'a> {
        let endpoint = &self.listeners[connection.listener].endpoint;
        let path = endpoint.path(connection.handle);
        let (round_trip, packets_lost) = path.unwrap_or_default();
        let nic = ground.nic_stacks.of(connection.nic.worker);
        QuicInfo {
            connection: connection.id,
            local: connection.local,
            remote: connection.remote,
            tls: connection.agreed.as_ref(),
            is_closed: connection.is_over,
            streams: connection.streams.len(),
            sent_bytes: connection.sent_bytes,
            round_trip,
            congestion_window: endpoint.congestion_window(connection.handle),
            packets_lost,
            is_offloaded: connection.nic.is_open,
            is_opened_by_nic: connection.nic_key.is_some()
                && connection.reception != Reception::Host
                && !connection.is_over,
            packets_opened_by_nic: connection.packets_opened,
            nic,
            worker: connection.nic.worker - ground.nic_stacks.workers(nic).start,
            sends_outstanding: connection.nic.sends_outstanding,
            waits: connection.waits
                || connection.nic.holds > 0
                || !ground.workers[connection.nic.worker].is_there(),
        }
    }

    /// Number of QUIC connections, including closed ones that wait for stray packets.
    pub(crate) fn len(&self) -> usize {
        self.table.connections.len()
    }

    /// Number of QUIC connections that wait for room in a worker's ring.
    pub(crate) fn waiting(&self, worker: usize) -> usize {
        self.waiting_room.get(worker).map_or(0, VecDeque::len)
    }

    /// The sources against which QUIC connections count.
    pub(crate) fn sources(&self) -> impl Iterator<Item = IpAddr> {
        let connections = self.table.connections.iter();
        connections.filter_map(|(_, connection)| connection.source)
    }

    /// Streams of QUIC that are open.
    pub(crate) fn streams_len(&self) -> usize {
        self.table.streams.len()
    }
}
