//! Packets that a worker makes itself, not for a SEND: headers and their transmission.

use std::io::IoSlice;

use netdev::{Offload, Port, SendError, Superpacket};
use wire::frame::{HEADER_BYTES_MAX, HeaderMut, TcpTemplate};
use wire::tcp::Header;

use crate::counters::Counters;

/// Most packets waiting for the port: beyond, they are dropped as links do.
pub(crate) const PACKETS_MAX: usize = 1024;

/// Ethernet, IP and TCP header of a packet.
#[derive(Debug)]
pub(crate) struct PacketHeader {
    bytes: [u8; HEADER_BYTES_MAX],
    len: usize,
    offload: Offload,
}

impl PacketHeader {
    /// Returns the header of a packet without payload. `None` if it is too long for a packet.
    pub(crate) fn new(template: &TcpTemplate, header: &Header) -> Option<PacketHeader> {
        PacketHeader::of(template, header, 0, u16::MAX)
    }

    /// Returns the header of a packet that the port cuts if its payload is longer than `mss`, in
    /// bytes.
    pub(crate) fn of(
        template: &TcpTemplate,
        header: &Header,
        payload_bytes: usize,
        mss: u16,
    ) -> Option<PacketHeader> {
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

    pub(crate) fn send<P: Port>(&self, port: &mut P, payload: &[u8]) -> Result<(), SendError> {
        let slices = [IoSlice::new(payload)];
        let count = usize::from(!payload.is_empty());
        port.send(&Superpacket {
            header: &self.bytes[..self.len],
            payload: &slices[..count],
            offload: self.offload,
        })
    }
}

/// True if a packet has left; else counts the reason.
pub(crate) fn has_left(sent: &Result<(), SendError>, counters: &mut Counters) -> bool {
    match sent {
        Ok(()) => return true,
        Err(SendError::Dropped | SendError::WouldBlock) => counters.port_drops += 1,
        Err(SendError::Failed(_)) => counters.port_failures += 1,
    }
    false
}
