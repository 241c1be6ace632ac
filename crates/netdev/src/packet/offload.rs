//! The kernel's remaining work on a packet.

use wire::tcp::Flags;

use super::virtio::{
    GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM, VirtioNetHeader,
};
use crate::{Offload, Superpacket};

/// Offset of the flags in a TCP header, in bytes.
const TCP_FLAGS_OFFSET: usize = 13;

/// Offset of the checksum in a TCP header, in bytes.
const TCP_CHECKSUM_OFFSET: u16 = 16;

/// Offset of the checksum in a UDP header, in bytes.
const UDP_CHECKSUM_OFFSET: u16 = 6;

impl VirtioNetHeader {
    /// Returns the header that precedes a packet handed to the kernel.
    pub(super) fn of(packet: &Superpacket<'_>) -> VirtioNetHeader {
        let payload: usize = packet.payload.iter().map(|slice| slice.len()).sum();
        let (gso_type, gso_size, csum_start, csum_offset) = match packet.offload {
            Offload::None => return VirtioNetHeader::default(),
            Offload::Tcp {
                tcp_offset, mss, ..
            } if payload <= mss.into() => (GSO_NONE, 0, tcp_offset, TCP_CHECKSUM_OFFSET),
            Offload::Tcp {
                tcp_offset,
                mss,
                ipv6,
            } => {
                let gso_type = if ipv6 { GSO_TCPV6 } else { GSO_TCPV4 };
                let flags_at = usize::from(tcp_offset) + TCP_FLAGS_OFFSET;
                let flags = Flags(packet.header.get(flags_at).copied().unwrap_or(0));
                // CWR belongs on the first packet only.
                let ecn = if flags.contains(Flags::CWR) {
                    GSO_ECN
                } else {
                    0
                };
                (gso_type | ecn, mss, tcp_offset, TCP_CHECKSUM_OFFSET)
            }
            Offload::Udp {
                udp_offset,
                payload_bytes,
                ..
            } => {
                let (gso_type, gso_size) = if payload > payload_bytes.into() {
                    (GSO_UDP_L4, payload_bytes)
                } else {
                    (GSO_NONE, 0)
                };
                (gso_type, gso_size, udp_offset, UDP_CHECKSUM_OFFSET)
            }
        };
        VirtioNetHeader {
            flags: NEEDS_CSUM,
            gso_type,
            // Length that the kernel keeps in front of the pages.
            hdr_len: packet.header.len() as u16,
            gso_size,
            csum_start,
            csum_offset,
        }
    }
}
