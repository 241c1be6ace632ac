//! Connections whose 1-RTT packets a NIC worker opens ([`contract::quic`]), as
//! [`QuicReceive`](crate::QuicReceive) selects.
//!
//! QRXKEY gives the worker the peer's key when the policy first applies to the connection, and
//! again with each send key: after a key update, or when another worker takes over. Datagrams reach
//! the worker in one of two ways:
//!
//! | | |
//! |---|---|
//! | steered | once the worker has accepted the flow, a packet filter steers datagrams of the four-tuple to the worker's own port |
//! | handed on | by FRAME: without a steering map, or to a NIC stack on another machine |
//!
//! The host opens everything else: datagrams that the worker hands up, those from another address,
//! and those of connections without room in the map. The endpoint has all keys, so this is always
//! correct. A connection returns to the host at once: the host stops steering and handing on, and
//! takes the key back by QRXKEYGONE once the ring has room. The host still accepts QRX of packets
//! that the worker opened earlier; they all precede the departure of the next QSEND.

use contract::limits::{FRAME_BYTES_MAX, QUIC_HOLD_US_MAX};
use contract::quic::QuicReceived;
use contract::{Command, FlowId};
use netdev::Frame;
use netdev::steering::Protocol;
use quic::{Arrival, Opened};
use tcp::Instant;
use wire::datagram::UdpPacket;
use wire::{ethernet, ip};

use super::arrival::{ecn, is_of_handshake};
use super::commands::Outcome;
use super::names;
use super::table::{Connection, Opens, Pending, Reception};
use crate::QuicReceive;
use crate::ground::Ground;
use crate::quic::QuicLayer;
use crate::tables::tuple::Tuple;

/// Shortest time that packets behind a gap are held, in microseconds; otherwise a fraction of the
/// round-trip time.
const HOLD_US_MIN: u32 = 1_000;
const ROUND_TRIPS_PER_HOLD: u32 = 8;

impl Connection {
    fn tuple(&self) -> Tuple {
        Tuple {
            local: self.local,
            remote: self.remote,
        }
    }

    /// True if datagrams of another four-tuple than its own reach the worker.
    pub(super) fn is_elsewhere(&self) -> bool {
        match self.reception {
            Reception::Host => false,
            Reception::HandedOn(tuple) | Reception::Steered(tuple) => tuple != self.tuple(),
        }
    }

    /// Ends [`Opens::UpToDeparture`] when its QSEND departs.
    pub(super) fn on_departed(&mut self, number: u32) {
        if let Opens::UpToDeparture { send, .. } = self.opens
            && names::is_until(send, number)
        {
            self.opens = Opens::NoMore;
        }
    }
}

impl QuicLayer {
    /// Changes the policy. Connections that it places at the host return at once; the others move
    /// to their workers when they next send, not all in one turn.
    pub(crate) fn change_receive(&mut self, ground: &mut Ground, to: QuicReceive) {
        if std::mem::replace(&mut ground.config.quic_receive, to) == to {
            return;
        }
        let connections = self.table.connections.iter();
        let at_nic = connections.filter(|(_, connection)| connection.wants_nic_receive);
        let places: Vec<usize> = at_nic.map(|(place, _)| place).collect();
        for place in places {
            self.apply_receive_policy(ground, place);
        }
    }

    /// Moves the receiving of a connection if the policy now differs.
    pub(super) fn apply_receive_policy(&mut self, ground: &mut Ground, place: usize) {
        let policy = ground.config.quic_receive;
        let Some(connection) = self.table.connections.get_mut(place) else {
            return;
        };
        let wanted = connection.is_handshake_complete
            && !connection.is_over
            && policy.is_at_nic(connection.sent_bytes);
        if std::mem::replace(&mut connection.wants_nic_receive, wanted) == wanted {
            return;
        }
        if wanted {
            ground.counters.quic_receive_begun += 1;
            connection.commands.push_back(Pending::ReceiveKey);
            self.mark(place);
        } else {
            ground.counters.quic_receive_returned += 1;
            connection.nic_key = None;
            if let Opens::UpTo(_) = connection.opens {
                connection.commands.push_back(Pending::ReceiveKeyGone);
                self.mark(place);
            }
            self.clear_reception(ground, place);
        }
    }

    /// The worker has a send key: queues the peer's key, if the worker is to open packets.
    pub(super) fn receive_again(&mut self, place: usize) {
        if let Some(connection) = self.connection(place)
            && connection.wants_nic_receive
        {
            connection.commands.push_front(Pending::ReceiveKey);
        }
    }

    /// Sends QRXKEY and QCIDs.
    pub(super) fn send_receive_key(&mut self, ground: &mut Ground, place: usize) -> Outcome {
        // The worker must be able to hand up packets that it cannot open, as frames.
        let frame_bytes = ground.link.mtu + ethernet::HEADER_BYTES;
        let Some(connection) = self.table.connections.get_mut(place) else {
            return Outcome::Done;
        };
        let endpoint = &self.listeners[connection.listener].endpoint;
        let nic = &mut ground.workers[connection.nic.worker];
        let round_trip = endpoint.path(connection.handle);
        let hold_us = round_trip.map_or(0, |(round_trip, _)| {
            let hold = round_trip / ROUND_TRIPS_PER_HOLD;
            u32::try_from(hold.as_micros()).unwrap_or(u32::MAX)
        });
        let flow = names::flow(connection.id);
        let next_number = endpoint.next_received(connection.handle);
        let hold_us = hold_us.clamp(HOLD_US_MIN, QUIC_HOLD_US_MAX);
        let is_wanted =
            connection.wants_nic_receive && !connection.is_over && frame_bytes <= FRAME_BYTES_MAX;
        let key = connection.keys.last().filter(|key| {
            // The end of the handshake and a key may each queue one.
            is_wanted && connection.nic_key != Some(key.generation)
        });
        let Some(key) = key.map(|key| key.receive_command(flow, next_number, hold_us)) else {
            return Outcome::Done;
        };
        // Room for any SEND suffices for all of these.
        if !nic.has_room() {
            self.put_back(place, Pending::ReceiveKey);
            return Outcome::Full;
        }
        let generation = key.generation;
        let sent = nic.channel.send(&Command::QuicReceiveKey(key));
        debug_assert!(sent.is_ok(), "there was room");
        ground.counters.quic_receive_keys += 1;
        connection.opens = Opens::UpTo(generation);
        // With each key: the worker may have had no room for the last, and then knows no IDs.
        for id in endpoint.connection_ids(connection.handle) {
            let sent = nic.channel.send(&Command::QuicConnectionId { flow, id });
            debug_assert!(sent.is_ok(), "there was room");
        }
        if connection.nic_key.replace(generation).is_some() {
            return Outcome::Done;
        }
        let has_port = nic.setup.is_some_and(|ready| ready.target.is_some());
        if ground.steering.is_none() || !has_port {
            let tuple = connection.tuple();
            connection.reception = Reception::HandedOn(tuple);
            self.handed_on.insert(&tuple, place);
        } else if connection.is_flow_taken {
            self.list(ground, place);
        }
        Outcome::Done
    }

    /// Sends QRXKEYGONE, unless the worker has no key or is to get one again.
    pub(super) fn take_receive_key_back(&mut self, ground: &mut Ground, place: usize) -> Outcome {
        let Some((connection, nic)) = self.connection_and_nic(ground, place) else {
            return Outcome::Done;
        };
        let Opens::UpTo(last) = connection.opens else {
            return Outcome::Done;
        };
        if connection.wants_nic_receive {
            return Outcome::Done;
        }
        if !nic.has_room() {
            self.put_back(place, Pending::ReceiveKeyGone);
            return Outcome::Full;
        }
        let flow = names::flow(connection.id);
        let sent = nic.channel.send(&Command::QuicReceiveKeyGone { flow });
        debug_assert!(sent.is_ok(), "there was room");
        let send = connection.next_command;
        connection.opens = Opens::UpToDeparture { last, send };
        connection.is_flow_taken = false;
        Outcome::Done
    }

    /// The worker has accepted a flow and has its own port: steers datagrams there.
    pub(crate) fn steer(&mut self, ground: &mut Ground, worker: usize, flow: FlowId) {
        let Ok(place) = self.place_of_flow(worker, flow) else {
            return;
        };
        let Some(connection) = self.connection(place) else {
            return;
        };
        // The key may have been taken back since.
        connection.is_flow_taken = matches!(connection.opens, Opens::UpTo(_));
        if connection.nic_key.is_some() {
            self.clear_reception(ground, place);
            self.list(ground, place);
        }
    }

    fn list(&mut self, ground: &mut Ground, place: usize) {
        let Some(connection) = self.connection(place) else {
            return;
        };
        let (worker, tuple) = (connection.nic.worker, connection.tuple());
        if ground.list_flow_of(Protocol::Udp, worker, &tuple)
            && let Some(connection) = self.connection(place)
        {
            connection.reception = Reception::Steered(tuple);
        }
    }

    /// The connection's four-tuple has changed.
    pub(super) fn follow_path(&mut self, ground: &mut Ground, place: usize) {
        let reception = self.clear_reception(ground, place);
        match reception {
            Reception::Host => {}
            Reception::Steered(_) => self.list(ground, place),
            Reception::HandedOn(_) => {
                if let Some(connection) = self.table.connections.get_mut(place) {
                    let tuple = connection.tuple();
                    connection.reception = Reception::HandedOn(tuple);
                    self.handed_on.insert(&tuple, place);
                }
            }
        }
    }

    /// Returns a connection's datagrams to the host; returns the former receiver.
    fn clear_reception(&mut self, ground: &mut Ground, place: usize) -> Reception {
        let Some(connection) = self.table.connections.get_mut(place) else {
            return Reception::Host;
        };
        let before = std::mem::replace(&mut connection.reception, Reception::Host);
        match before {
            Reception::Host => {}
            Reception::HandedOn(tuple) => {
                // Connections of one client may share a four-tuple; the entry is the last one's.
                if self.handed_on.get(&tuple) == Some(&place) {
                    self.handed_on.remove(&tuple);
                }
            }
            Reception::Steered(tuple) => {
                if let Some(map) = &ground.steering {
                    map.clear_flow(Protocol::Udp, tuple.local, tuple.remote);
                }
            }
        }
        before
    }

    /// The worker of a connection has lost its keys.
    pub(super) fn stop_receiving(&mut self, ground: &mut Ground, place: usize) {
        self.clear_reception(ground, place);
        if let Some(connection) = self.connection(place) {
            connection.nic_key = None;
            connection.opens = Opens::Nothing;
            connection.is_flow_taken = false;
        }
    }

    /// Hands a datagram on to the worker that opens it. False if the host must open it.
    pub(super) fn hand_datagram_on(
        &mut self,
        ground: &mut Ground,
        packet: &UdpPacket<'_>,
        frame: &Frame<'_>,
    ) -> bool {
        if self.handed_on.is_empty()
            || ground.is_handed_up
            || frame.segment_bytes.is_some()
            || frame.bytes.len() > FRAME_BYTES_MAX
            || is_of_handshake(packet.payload)
        {
            return false;
        }
        let tuple = Tuple {
            local: packet.destination,
            remote: packet.source,
        };
        let place = self.handed_on.get(&tuple);
        let connection = place.and_then(|place| self.table.connections.get(*place));
        let Some(connection) = connection else {
            return false;
        };
        let nic = &mut ground.workers[connection.nic.worker];
        let bytes = frame.bytes;
        if !nic.has_room() || nic.channel.send(&Command::Frame { bytes }).is_err() {
            return false;
        }
        ground.counters.datagrams_received += 1;
        ground.counters.quic_datagrams_handed_on += 1;
        true
    }

    /// Handles QRX. False if it is invalid.
    pub(super) fn on_received(
        &mut self,
        ground: &mut Ground,
        now_us: u64,
        worker: usize,
        received: &QuicReceived,
    ) -> bool {
        let place = match self.place_of_flow(worker, received.flow) {
            Ok(place) => place,
            Err(is_known) => return is_known,
        };
        let (remote, local) = (received.remote, received.local);
        if !ground.config.has_address(local) || remote.port() == 0 {
            return false;
        }
        let connection = &mut self.table.connections[place];
        // A worker cannot open packets with a key that it never had, or no longer has.
        let is_possible = match connection.opens {
            // The flow has begun again since.
            Opens::Nothing => return true,
            Opens::UpTo(last) | Opens::UpToDeparture { last, .. } => received.generation <= last,
            Opens::NoMore => false,
        };
        if !is_possible {
            let count = received.packets.len() as u64;
            ground.counters.quic_packets_opened += count;
            ground.counters.quic_packets_refused += count;
            return true;
        }
        let handle = connection.handle;
        let endpoint = &mut self.listeners[connection.listener].endpoint;
        for (packet, plaintext) in received.each() {
            let arrived_us = received.arrived_us.saturating_sub(packet.age_us.into());
            let arrival = Arrival {
                remote,
                local_ip: Some(local),
                ecn: ecn(ip::Ecn::of(packet.ecn)),
            };
            let opened = Opened {
                arrived: Instant::from_us(arrived_us),
                generation: received.generation,
                number: packet.number,
                id: &received.id,
                first: packet.first,
                plaintext,
            };
            let is_taken = endpoint.on_opened(Instant::from_us(now_us), handle, &arrival, &opened);
            connection.packets_opened += u64::from(is_taken);
            ground.counters.quic_packets_opened += 1;
            ground.counters.quic_packets_refused += u64::from(!is_taken);
        }
        true
    }
}
