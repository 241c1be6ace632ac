//! Ethernet II headers.

use std::net::Ipv6Addr;

/// Length of the header, in bytes.
pub const HEADER_BYTES: usize = 14;

/// The broadcast address of the link.
pub const BROADCAST: [u8; 6] = [0xff; 6];

/// EtherType of IPv4.
pub const IPV4: u16 = 0x0800;
/// EtherType of ARP.
pub const ARP: u16 = 0x0806;
/// EtherType of IPv6.
pub const IPV6: u16 = 0x86dd;

/// An Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Destination address.
    pub destination: [u8; 6],
    /// Source address.
    pub source: [u8; 6],
    /// Protocol of the payload, such as [`IPV4`].
    pub ether_type: u16,
}

impl Header {
    /// Splits a frame into header and payload; `None` if it is shorter than a header.
    #[inline]
    pub fn parse(frame: &[u8]) -> Option<(Header, &[u8])> {
        let (header, payload) = frame.split_first_chunk::<HEADER_BYTES>()?;
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1] = *header;
        let header = Header {
            destination: [d0, d1, d2, d3, d4, d5],
            source: [s0, s1, s2, s3, s4, s5],
            ether_type: u16::from_be_bytes([t0, t1]),
        };
        Some((header, payload))
    }

    /// Returns the header as on the wire.
    pub fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..6].copy_from_slice(&self.destination);
        bytes[6..12].copy_from_slice(&self.source);
        bytes[12..].copy_from_slice(&self.ether_type.to_be_bytes());
        bytes
    }
}

/// Returns true for group addresses, broadcast included.
pub fn is_multicast(mac: [u8; 6]) -> bool {
    mac[0] & 1 == 1
}

/// Returns the link address of an IPv6 multicast group (RFC 2464 §7).
pub fn multicast_mac(group: Ipv6Addr) -> [u8; 6] {
    let [.., a, b, c, d] = group.octets();
    [0x33, 0x33, a, b, c, d]
}
