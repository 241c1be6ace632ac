//! Packets for the port.

use netdev::{Port, SendError};

use super::Packet;
use crate::engine::Engine;
use crate::packet::{self, PACKETS_MAX, PacketHeader};

impl<P: Port> Engine<P> {
    /// Sends a packet, or keeps it while the port is busy.
    pub(super) fn put_spliced(&mut self, header: PacketHeader, payload: &[u8]) {
        if self.spliced.packets.is_empty() {
            match header.send(&mut self.port, payload) {
                Err(SendError::WouldBlock) => self.port_busy = true,
                sent => return self.count_spliced(&sent),
            }
        }
        if self.spliced.packets.len() >= PACKETS_MAX {
            self.counters.port_drops += 1;
            return;
        }
        let payload = payload.into();
        self.spliced.packets.push_back(Packet { header, payload });
    }

    /// Sends what waits until the port is busy. True if any was sent.
    pub(crate) fn send_spliced(&mut self) -> bool {
        let mut worked = false;
        while let Some(packet) = self.spliced.packets.front() {
            let sent = packet.header.send(&mut self.port, &packet.payload);
            if let Err(SendError::WouldBlock) = sent {
                break;
            }
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
