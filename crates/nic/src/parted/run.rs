//! The worker's handling of parted connections: commands, frames, time and reports.

use contract::limits::PART_ENDS_MAX;
use contract::parting::{Part, PartEnd, PartEndReason, PartRefusal};
use contract::{Event, FlowId};
use netdev::{Port, SendError};
use tcp::{CloseReason, Connection, ConnectionEvent, Instant, Limits, State};
use wire::frame::{TcpPacket, TcpTemplate};
use wire::tcp::Header;

use super::part;
use super::table::{Entry, Rest};
use crate::addresses::Addresses;
use crate::engine::{Clock, EVENTS_WAITING_MAX, Engine};
use crate::packet::{self, PACKETS_MAX, PacketHeader};
use crate::slab::Key;

/// Due connections handled in one turn.
const DUE_MAX: usize = 64;

/// FIN, RST and acknowledgments have no payload.
const LIMITS: Limits = Limits {
    bytes_max: 1,
    pieces_max: 1,
    real_bytes_max: 1,
    direct_bytes_max: 0,
};

impl<P: Port> Engine<P> {
    /// Carries out PART.
    pub(crate) fn part(&mut self, part: &Part<'_>, clock: Clock<'_>) {
        self.counters.parts += 1;
        if self.parted.table.by_flow(part.flow).is_some() {
            // The worker's state of the connection is newer.
            return;
        }
        if let Err(reason) = self.try_part(part, clock()) {
            self.counters.parts_refused += 1;
            let flow = part.flow;
            self.emit(Event::PartRefused { flow, reason });
        }
    }

    fn try_part(&mut self, part: &Part<'_>, now_us: u64) -> Result<(), PartRefusal> {
        let template = TcpTemplate::parse(part.header).ok_or(PartRefusal::BadHeader)?;
        let addresses = Addresses::of(&template);
        if self.parted.has_addresses(&addresses) || self.spliced.has_addresses(&addresses) {
            return Err(PartRefusal::AddressesInUse);
        }
        if self.parted.table.is_full() {
            return Err(PartRefusal::Full);
        }
        let connection = part::connection(part, &template, Instant::from_us(now_us));
        let key = self.parted.table.insert(Entry {
            flow: part.flow,
            template,
            due_us: u64::MAX,
            rest: Rest::Open(Box::new(connection)),
        });
        self.take_flow(part.flow);
        self.drive(key, now_us);
        Ok(())
    }

    /// Carries out PARTGONE.
    pub(crate) fn part_gone(&mut self, flow: FlowId) {
        if let Some(key) = self.parted.table.by_flow(flow) {
            self.parted.table.remove(key);
        }
    }

    /// Handles a frame of a parted connection.
    pub(crate) fn on_parted_frame(
        &mut self,
        key: Key,
        packet: &TcpPacket<'_>,
        bytes: &[u8],
        now_us: u64,
    ) {
        let (now, segment) = (Instant::from_us(now_us), &packet.segment);
        let Some(entry) = self.parted.table.get_mut(key) else {
            return;
        };
        let answer = match &mut entry.rest {
            Rest::Open(connection) => {
                connection.on_segment(now, segment);
                return self.drive(key, now_us);
            }
            Rest::TimeWait(time_wait)
                if time_wait.expires() <= now || time_wait.may_be_replaced_by(segment) =>
            {
                self.end(key, PartEndReason::Replaced);
                self.hand_up(bytes);
                return;
            }
            Rest::TimeWait(time_wait) => time_wait.on_segment(now, segment),
        };
        if let Some(header) = answer {
            let template = entry.template;
            self.queue_packet(&template, &header);
        }
        self.arm(key);
    }

    /// Handles due connections. True if there were any.
    pub(crate) fn on_parted_time(&mut self, clock: Clock<'_>) -> bool {
        if self.parted.next_us().is_none() {
            return false;
        }
        let now_us = clock();
        let mut worked = false;
        for _ in 0..DUE_MAX {
            let Some(key) = self.parted.table.take_due(now_us) else {
                break;
            };
            worked = true;
            let now = Instant::from_us(now_us);
            let Some(entry) = self.parted.table.get_mut(key) else {
                continue;
            };
            match &mut entry.rest {
                Rest::Open(connection) => {
                    connection.on_timeout(now);
                    self.drive(key, now_us);
                }
                Rest::TimeWait(time_wait) if time_wait.expires() <= now => {
                    self.end(key, PartEndReason::Finished);
                }
                // TIME-WAIT was prolonged.
                Rest::TimeWait(_) => self.arm(key),
            }
        }
        worked
    }

    /// Returns the last packets of a connection whose host process has died: once more the FIN, if
    /// the peer has not acknowledged it. A peer that has, and has not closed, is reset.
    pub(crate) fn end_parted(&mut self, key: Key, now_us: u64) -> Vec<PacketHeader> {
        let Some(mut entry) = self.parted.table.remove(key) else {
            return Vec::new();
        };
        let Rest::Open(connection) = &mut entry.rest else {
            return Vec::new();
        };
        let mut now = Instant::from_us(now_us);
        if connection.state() == State::FinWait2 {
            connection.abort();
        } else if let Some(due) = connection.next_timeout() {
            now = now.max(due);
            connection.on_timeout(now);
        }
        let mut packets = Vec::new();
        while let Some(transmit) = connection.poll_transmit(now, &LIMITS) {
            packets.extend(PacketHeader::new(&entry.template, &transmit.header));
            if let Some(transmission) = transmit.transmission {
                connection.on_departed(transmission, now);
            }
        }
        packets
    }

    /// Queues the packets that a connection has ready, and records its new state.
    fn drive(&mut self, key: Key, now_us: u64) {
        let now = Instant::from_us(now_us);
        loop {
            let Some(entry) = self.parted.table.get_mut(key) else {
                return;
            };
            let Rest::Open(connection) = &mut entry.rest else {
                return self.arm(key);
            };
            let Some(transmit) = connection.poll_transmit(now, &LIMITS) else {
                break;
            };
            if let Some(transmission) = transmit.transmission {
                connection.on_departed(transmission, now);
            }
            let template = entry.template;
            self.queue_packet(&template, &transmit.header);
        }
        let Some(entry) = self.parted.table.get_mut(key) else {
            return;
        };
        if let Rest::Open(connection) = &mut entry.rest {
            if connection.is_closed() {
                let reason = end_reason(connection);
                return self.end(key, reason);
            }
            if let Some(time_wait) = connection.time_wait() {
                self.parted.table.begin_time_wait(key, time_wait);
            }
        }
        self.arm(key);
    }

    fn arm(&mut self, key: Key) {
        self.parted.table.arm(key);
    }

    /// Ends a connection.
    fn end(&mut self, key: Key, reason: PartEndReason) {
        if let Some(entry) = self.parted.table.remove(key) {
            self.counters.parted_ended += 1;
            let flow = entry.flow;
            self.parted.ends.push(PartEnd { flow, reason });
        }
    }

    /// Reports ended connections to the host, as far as it takes events. True if any was reported.
    pub(crate) fn report_ends(&mut self) -> bool {
        let mut worked = false;
        while self.parted.has_ends() && self.events.len() < EVENTS_WAITING_MAX {
            let count = self.parted.ends.len().min(PART_ENDS_MAX);
            let ends = self.parted.ends.drain(..count).collect();
            self.emit(Event::PartEnded { ends });
            worked = true;
        }
        worked
    }

    fn queue_packet(&mut self, template: &TcpTemplate, header: &Header) {
        if self.parted.packets.len() >= PACKETS_MAX {
            self.counters.port_drops += 1;
            return;
        }
        self.parted
            .packets
            .extend(PacketHeader::new(template, header));
    }

    /// Sends packets until the port is busy. True if any was sent.
    pub(crate) fn send_parted(&mut self) -> bool {
        let mut worked = false;
        while let Some(packet) = self.parted.packets.front() {
            let sent = packet.send(&mut self.port, &[]);
            if let Err(SendError::WouldBlock) = sent {
                break;
            }
            let has_left = packet::has_left(&sent, &mut self.counters);
            self.counters.parted_packets += u64::from(has_left);
            self.parted.packets.pop_front();
            worked = true;
        }
        worked
    }
}

/// Returns how a closed connection has ended.
fn end_reason(connection: &mut Connection) -> PartEndReason {
    let mut ended = PartEndReason::Finished;
    while let Some(event) = connection.poll_event() {
        if let ConnectionEvent::Closed { reason } = event {
            ended = match reason {
                CloseReason::Finished => PartEndReason::Finished,
                CloseReason::Reset | CloseReason::Refused => PartEndReason::Reset,
                CloseReason::TimedOut | CloseReason::Unreachable => PartEndReason::TimedOut,
                CloseReason::Aborted => PartEndReason::Aborted,
            };
        }
    }
    ended
}
