//! Outputs of endpoints. Sealed datagrams, of handshakes and of no connection, leave through the
//! host's port; commands for NIC workers are queued with their connection.

use netdev::{Offload, Port, Superpacket};
use quic::{Ecn, Handle, Output, Route};
use wire::datagram::DatagramHeader;
use wire::ip;

use super::QuicLayer;
use super::table::Pending;
use crate::ground::Ground;
use crate::ground::link::send_frame;
use crate::link::neighbor::Resolution;

/// Entries of datagrams that wait for a neighbour's address or their turn; beyond, the oldest are
/// dropped, as links do.
const HELD_MAX: usize = 64;

/// Datagrams that wait for a neighbour's address or their turn.
#[derive(Debug)]
pub(super) struct HeldDatagrams {
    listener: usize,
    route: Route,
    datagram_bytes: usize,
    bytes: Vec<u8>,
    /// Worth a try: the neighbour may be resolved, has failed, or was never requested.
    pub(super) is_to_be_tried: bool,
}

impl HeldDatagrams {
    /// One datagram, not yet tried.
    pub(super) fn one(listener: usize, route: Route, datagram: &[u8]) -> Self {
        Self {
            listener,
            route,
            datagram_bytes: datagram.len(),
            bytes: datagram.to_vec(),
            is_to_be_tried: true,
        }
    }
}

impl QuicLayer {
    /// Takes datagrams whose turn has come or whose neighbour may be resolved.
    fn next_held(&mut self) -> Option<HeldDatagrams> {
        let first = self.held.iter().position(|held| held.is_to_be_tried)?;
        self.held.remove(first)
    }

    /// Queues datagrams; returns how many entries were dropped for them.
    pub(super) fn hold(&mut self, held: HeldDatagrams) -> u64 {
        let is_full = self.held.len() >= HELD_MAX;
        if is_full {
            self.held.pop_front();
        }
        self.held.push_back(held);
        is_full.into()
    }
}

/// The ECN field of a datagram's IP header.
pub(super) fn ecn(route: &Route) -> ip::Ecn {
    match route.ecn {
        None => ip::Ecn::NotEct,
        Some(Ecn::Ect0) => ip::Ecn::Ect0,
        Some(Ecn::Ect1) => ip::Ecn::Ect1,
        Some(Ecn::Ce) => ip::Ecn::Ce,
    }
}

impl QuicLayer {
    pub(super) fn on_output<P: Port>(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        port: &mut P,
        listener: usize,
        output: Output,
    ) {
        let (connection, pending) = match output {
            Output::Datagrams {
                route,
                datagram_bytes,
                bytes,
            } => {
                let held = HeldDatagrams {
                    listener,
                    route,
                    datagram_bytes,
                    bytes,
                    is_to_be_tried: false,
                };
                return self.send_datagrams(ground, now_us, port, held);
            }
            Output::Key {
                connection,
                key,
                floor,
            } => (connection, Pending::Key { key, floor }),
            Output::KeyGone {
                connection,
                generation,
            } => (connection, Pending::KeyGone { generation }),
            Output::Send(send) => (send.connection, Pending::Send { send, done: 0 }),
            Output::Released { connection, range } => (connection, Pending::Release(range)),
            Output::ConnectionId { connection, id } => (connection, Pending::ConnectionId(id)),
        };
        self.queue_command(ground, listener, connection, pending);
    }

    fn queue_command(
        &mut self,
        ground: &mut Ground,
        listener: usize,
        handle: Handle,
        pending: Pending,
    ) {
        let place = match pending {
            Pending::Key { .. } | Pending::Send { .. } => self.place(ground, listener, handle),
            Pending::KeyGone { .. }
            | Pending::Release(_)
            | Pending::ReceiveKey
            | Pending::ConnectionId(_)
            | Pending::ReceiveKeyGone => self.table.find(listener, handle),
        };
        let Some(place) = place else {
            return;
        };
        let Some(connection) = self.table.connections.get_mut(place) else {
            return;
        };
        // QRXKEY brings the current ones.
        if matches!(pending, Pending::ConnectionId(_)) && !connection.wants_nic_receive {
            return;
        }
        connection.commands.push_back(pending);
        self.mark(place);
    }

    /// Sends datagrams through the host's port, or holds them until the next hop is known.
    fn send_datagrams<P: Port>(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        port: &mut P,
        held: HeldDatagrams,
    ) {
        let remote = held.route.remote;
        let next_hop = ground.neighbors.next_hop(remote.ip());
        let mac = match ground.neighbors.resolve(now_us, next_hop) {
            Resolution::Known(mac) => mac,
            Resolution::Pending => {
                let held = HeldDatagrams {
                    is_to_be_tried: false,
                    ..held
                };
                ground.counters.packets_dropped += self.hold(held);
                return;
            }
            Resolution::Unreachable | Resolution::Own => {
                ground.counters.packets_dropped += 1;
                return;
            }
        };
        let local = held.route.local_ip;
        let Some(local) = local.or_else(|| ground.neighbors.source_for(next_hop)) else {
            ground.counters.packets_dropped += 1;
            return;
        };
        let header = DatagramHeader {
            source_mac: ground.link.mac,
            destination_mac: mac,
            source: (local, self.listeners[held.listener].port).into(),
            destination: remote,
            ecn: ecn(&held.route),
        };
        for datagram in held.bytes.chunks(held.datagram_bytes.max(1)) {
            let Some(frame) = header.to_frame(datagram) else {
                ground.counters.packets_dropped += 1;
                continue;
            };
            let packet = Superpacket {
                header: &frame,
                payload: &[],
                offload: Offload::None,
            };
            ground.counters.quic_datagrams_sent += 1;
            send_frame(&mut ground.counters, port, &packet);
        }
    }

    /// Sends datagrams whose turn has come or whose neighbour may be resolved; false if there are
    /// none.
    pub(super) fn send_held<P: Port>(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        port: &mut P,
    ) -> bool {
        let mut has_sent = false;
        while let Some(held) = self.next_held() {
            self.send_datagrams(ground, now_us, port, held);
            has_sent = true;
        }
        has_sent
    }
}
