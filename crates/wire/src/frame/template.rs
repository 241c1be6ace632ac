use std::net::IpAddr;

use crate::{ethernet, ip, tcp};

/// Length of the longest header that [`TcpTemplate::write`] writes, in bytes.
pub const HEADER_BYTES_MAX: usize =
    ethernet::HEADER_BYTES + ip::IPV6_HEADER_BYTES + tcp::HEADER_BYTES_MAX;

/// What all packets of a connection have in common below TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpTemplate {
    /// The link address of this end.
    pub source_mac: [u8; 6],
    /// The link address of the next hop.
    pub destination_mac: [u8; 6],
    /// Addresses of this end and of the peer.
    pub addresses: ip::Addresses,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Time to live, or hop limit.
    pub ttl: u8,
}

impl TcpTemplate {
    /// A template with [`ip::TTL`] and traffic class 0; `None` if the addresses are of different families.
    pub fn new(
        source_mac: [u8; 6],
        destination_mac: [u8; 6],
        source: IpAddr,
        destination: IpAddr,
    ) -> Option<TcpTemplate> {
        Some(TcpTemplate {
            source_mac,
            destination_mac,
            addresses: ip::Addresses::new(source, destination)?,
            traffic_class: 0,
            ttl: ip::TTL,
        })
    }

    /// Offset of the TCP header in what [`TcpTemplate::write`] writes, in bytes.
    pub fn tcp_offset(&self) -> usize {
        ethernet::HEADER_BYTES + self.addresses.header_bytes()
    }

    /// Writes Ethernet, IP and TCP header for a packet with `payload_len` bytes of payload to the start of
    /// `buffer`; returns their length.
    ///
    /// Lengths, the IPv4 header checksum and the pseudo-header sum for partial checksum offload are filled
    /// in, as by [`HeaderMut::finish`](super::HeaderMut::finish). Fragmentation is forbidden and the IPv4
    /// identification is 0 (RFC 6864 §4.1). A payload that does not fit into an IP packet gives lengths of
    /// the longest packet that does.
    pub fn write(
        &self,
        header: &tcp::Header,
        payload_len: usize,
        buffer: &mut [u8; HEADER_BYTES_MAX],
    ) -> usize {
        let tcp_offset = self.tcp_offset();
        let headers_len = tcp_offset + header.write(&mut buffer[tcp_offset..]);
        let ip_payload_len = headers_len - tcp_offset + payload_len;
        write_link_and_ip(
            self.source_mac,
            self.destination_mac,
            &ip::Header {
                addresses: self.addresses,
                protocol: ip::TCP,
                ttl: self.ttl,
                traffic_class: self.traffic_class,
                identification: 0,
            },
            u16::try_from(ip_payload_len).unwrap_or(u16::MAX),
            buffer,
        );
        let sum = crate::checksum::Checksum::pseudo_header(
            self.addresses.source(),
            self.addresses.destination(),
            ip::TCP,
            ip_payload_len as u32,
        );
        buffer[tcp_offset + 16..tcp_offset + 18].copy_from_slice(&sum.partial().to_be_bytes());
        headers_len
    }
}

/// Writes an Ethernet and an IP header to the start of `buffer`.
pub(super) fn write_link_and_ip(
    source_mac: [u8; 6],
    destination_mac: [u8; 6],
    header: &ip::Header,
    ip_payload_len: u16,
    buffer: &mut [u8],
) {
    let link = ethernet::Header {
        destination: destination_mac,
        source: source_mac,
        ether_type: match header.addresses {
            ip::Addresses::V4 { .. } => ethernet::IPV4,
            ip::Addresses::V6 { .. } => ethernet::IPV6,
        },
    };
    buffer[..ethernet::HEADER_BYTES].copy_from_slice(&link.to_bytes());
    header.write(ip_payload_len, &mut buffer[ethernet::HEADER_BYTES..]);
}
