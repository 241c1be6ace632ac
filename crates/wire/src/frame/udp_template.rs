use std::net::SocketAddr;

use super::template::write_link_and_ip;
use crate::{ethernet, ip, udp};

/// What all datagrams between two ends have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpTemplate {
    /// The link address of this end.
    pub source_mac: [u8; 6],
    /// The link address of the next hop.
    pub destination_mac: [u8; 6],
    /// This end.
    pub source: SocketAddr,
    /// The peer.
    pub destination: SocketAddr,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Time to live, or hop limit.
    pub ttl: u8,
}

impl UdpTemplate {
    /// A template with [`ip::TTL`] and traffic class 0.
    pub fn new(
        source_mac: [u8; 6],
        destination_mac: [u8; 6],
        source: SocketAddr,
        destination: SocketAddr,
    ) -> UdpTemplate {
        UdpTemplate {
            source_mac,
            destination_mac,
            source,
            destination,
            traffic_class: 0,
            ttl: ip::TTL,
        }
    }

    /// Writes Ethernet, IP and UDP header to the start of `buffer`; returns their length, or `None`
    /// if they do not fit or the addresses are of different families.
    ///
    /// IPv4 fragmentation is forbidden and the identification is 0 (RFC 6864 §4.1). Lengths and
    /// checksums are left to [`UdpHeaderMut`](super::UdpHeaderMut).
    pub fn write(&self, buffer: &mut [u8]) -> Option<usize> {
        let addresses = ip::Addresses::new(self.source.ip(), self.destination.ip())?;
        let udp_offset = ethernet::HEADER_BYTES + addresses.header_bytes();
        let len = udp_offset + udp::HEADER_BYTES;
        let buffer = buffer.get_mut(..len)?;
        let below = ip::Header {
            addresses,
            protocol: ip::UDP,
            ttl: self.ttl,
            traffic_class: self.traffic_class,
            identification: 0,
        };
        write_link_and_ip(
            self.source_mac,
            self.destination_mac,
            &below,
            udp::HEADER_BYTES as u16,
            buffer,
        );
        let udp = &mut buffer[udp_offset..];
        udp[..2].copy_from_slice(&self.source.port().to_be_bytes());
        udp[2..4].copy_from_slice(&self.destination.port().to_be_bytes());
        udp[4..].fill(0);
        Some(len)
    }
}
