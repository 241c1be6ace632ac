//! Packets for the port.

use std::io::IoSlice;

use netdev::{Offload, Port, SendError, Superpacket};
use wire::frame::{HEADER_BYTES_MAX, HeaderMut, TcpTemplate};
use wire::ip::Ecn;
use wire::tcp::Header;

use crate::engine::Engine;

/// Packets that wait for the port: beyond, they are dropped as links do.
const PACKETS_MAX: usize = 1024;

/// Ethernet, IP and TCP header of a packet.
#[derive(Debug)]
pub(super) struct PacketHeader {
    bytes: [u8; HEADER_BYTES_MAX],
    len: usize,
    offload: Offload,
}

/// A packet that waits.
#[derive(Debug)]
pub(super) struct Packet {
    header: PacketHeader,
    payload: Box<[u8]>,
}

impl PacketHeader {
    /// `None` if it is too long for a packet.
    pub(super) fn new(
        template: &TcpTemplate,
        header: &Header,
        payload_bytes: usize,
        ecn: Ecn,
        mss: u16,
    ) -> Option<PacketHeader> {
        let template = TcpTemplate {
            traffic_class: ecn.mark(template.traffic_class),
            ..*template
        };
        let mut bytes = [0; HEADER_BYTES_MAX];
        let len = template.write(header, &mut bytes)?;
        let mut view = HeaderMut::parse(&mut bytes[..len]).ok()?;
        view.finish(payload_bytes).ok()?;
        let offload = Offload::Tcp {
            tcp_offset: view.tcp_offset() as u16,
            mss,
            ipv6: view.ipv6(),
        };
        Some(PacketHeader {
            bytes,
            len,
            offload,
        })
    }

    fn send<P: Port>(&self, port: &mut P, payload: &[u8]) -> Result<(), SendError> {
        let slices = [IoSlice::new(payload)];
        let count = usize::from(!payload.is_empty());
        port.send(&Superpacket {
            header: &self.bytes[..self.len],
            payload: &slices[..count],
            offload: self.offload,
        })
    }
}

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
        match sent {
            Ok(()) => self.counters.spliced_packets += 1,
            Err(SendError::Dropped | SendError::WouldBlock) => self.counters.port_drops += 1,
            Err(SendError::Failed(_)) => self.counters.port_failures += 1,
        }
    }
}
