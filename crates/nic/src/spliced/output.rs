//! Packets for the port.

use netdev::{Port, SendError};
use wire::ethernet;
use wire::frame::TcpTemplate;
use wire::tcp::{Flags, Header};

use super::Packet;
use crate::engine::Engine;
use crate::packet::{self, PACKETS_MAX, PacketHeader};

/// Payload that waits for the port, in bytes: beyond, packets are dropped.
const WAITING_BYTES_MAX: usize = 2 << 20;

/// When a packet leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaves {
    /// As soon as the port takes it.
    AtOnce,
    /// When the ring has the reports that the host must get first.
    BehindReports,
}

impl<P: Port> Engine<P> {
    /// Sends a segment that the port cuts if its payload is longer than `mss`, in bytes. Sends
    /// several packets if it exceeds the port's largest superpacket, as where the headers of the
    /// other connection are longer.
    pub(super) fn pass_on(
        &mut self,
        template: &TcpTemplate,
        header: &Header,
        payload: &[u8],
        mss: u16,
        leaves: Leaves,
    ) {
        let ipv6 = template.destination.is_ipv6();
        let packet_bytes_max = self.port.superpacket_max(ipv6).max(self.port.mtu());
        let headers_bytes = template.tcp_offset() + header.len_bytes() - ethernet::HEADER_BYTES;
        let payload_bytes_max = packet_bytes_max.saturating_sub(headers_bytes);
        if payload.len() <= payload_bytes_max {
            if let Some(header) = PacketHeader::of(template, header, payload.len(), mss) {
                self.put_spliced_then(header, payload, leaves);
            }
            return;
        }
        let mss_bytes = usize::from(mss);
        let piece_bytes = (payload_bytes_max / mss_bytes).max(1) * mss_bytes;
        let last = payload.len().div_ceil(piece_bytes) - 1;
        for (number, piece) in payload.chunks(piece_bytes).enumerate() {
            let mut flags = header.flags;
            if number < last {
                flags = flags.without(Flags::FIN | Flags::PSH);
            }
            if number > 0 {
                flags = flags.without(Flags::CWR);
            }
            let header = Header {
                seq: header.seq.wrapping_add((number * piece_bytes) as u32),
                flags,
                ..*header
            };
            if let Some(header) = PacketHeader::of(template, &header, piece.len(), mss) {
                self.put_spliced_then(header, piece, leaves);
            }
        }
    }

    fn put_spliced_then(&mut self, header: PacketHeader, payload: &[u8], leaves: Leaves) {
        if leaves == Leaves::AtOnce {
            return self.put_spliced(header, payload);
        }
        let held_back = &self.spliced.behind_reports;
        let held_bytes: usize = held_back.iter().map(|packet| packet.payload.len()).sum();
        if held_back.len() >= PACKETS_MAX || held_bytes + payload.len() > WAITING_BYTES_MAX {
            self.counters.port_drops += 1;
            return;
        }
        let payload = payload.into();
        self.spliced.behind_reports.push(Packet { header, payload });
    }

    /// Sends the packets held behind reports, once the ring has the reports. True if any was sent.
    pub(crate) fn send_behind_reports(&mut self) -> bool {
        let spliced = &mut self.spliced;
        let is_empty = spliced.behind_reports.is_empty();
        if is_empty || !self.events.is_empty() || spliced.has_reports() {
            return false;
        }
        for Packet { header, payload } in std::mem::take(&mut spliced.behind_reports) {
            self.put_spliced(header, &payload);
        }
        true
    }

    /// Sends a packet, or keeps it while the port is busy.
    pub(super) fn put_spliced(&mut self, header: PacketHeader, payload: &[u8]) {
        if self.spliced.packets.is_empty() {
            match header.send(&mut self.port, payload) {
                Err(SendError::WouldBlock) => self.port_busy = true,
                sent => return self.count_spliced(&sent),
            }
        }
        let spliced = &mut self.spliced;
        let waiting_bytes = spliced.waiting_bytes + payload.len();
        if spliced.packets.len() >= PACKETS_MAX || waiting_bytes > WAITING_BYTES_MAX {
            self.counters.port_drops += 1;
            return;
        }
        spliced.waiting_bytes = waiting_bytes;
        let payload = payload.into();
        spliced.packets.push_back(Packet { header, payload });
    }

    /// Sends waiting packets until the port is busy. True if any was sent.
    pub(crate) fn send_spliced(&mut self) -> bool {
        let mut worked = false;
        while let Some(packet) = self.spliced.packets.front() {
            let sent = packet.header.send(&mut self.port, &packet.payload);
            if let Err(SendError::WouldBlock) = sent {
                break;
            }
            self.spliced.waiting_bytes -= packet.payload.len();
            self.count_spliced(&sent);
            self.spliced.packets.pop_front();
            worked = true;
        }
        worked
    }

    fn count_spliced(&mut self, sent: &Result<(), SendError>) {
        let has_left = packet::has_left(sent, &mut self.counters);
        self.counters.spliced_packets += u64::from(has_left);
    }
}
