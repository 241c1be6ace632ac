use std::net::{IpAddr, SocketAddr};

use super::header::HeaderMut;
use crate::{ethernet, ip, tcp};

/// Length of the longest header that [`TcpTemplate::write`] writes, in bytes.
pub const HEADER_BYTES_MAX: usize =
    ethernet::HEADER_BYTES + ip::IPV6_HEADER_BYTES + tcp::HEADER_BYTES_MAX;

/// Fields that all packets of a connection have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpTemplate {
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

impl TcpTemplate {
    /// Returns a template with [`ip::TTL`] and traffic class 0.
    pub fn new(
        source_mac: [u8; 6],
        destination_mac: [u8; 6],
        source: SocketAddr,
        destination: SocketAddr,
    ) -> TcpTemplate {
        TcpTemplate {
            source_mac,
            destination_mac,
            source,
            destination,
            traffic_class: 0,
            ttl: ip::TTL,
        }
    }

    /// Returns the template of a header; its TCP fields other than the ports are ignored. `None` if
    /// it is not exactly Ethernet, IPv4 without options or IPv6 without extension headers, and TCP.
    pub fn parse(header: &[u8]) -> Option<TcpTemplate> {
        let mut copy = [0; HEADER_BYTES_MAX];
        let copy = copy.get_mut(..header.len())?;
        copy.copy_from_slice(header);
        let view = HeaderMut::parse(copy).ok()?;
        let (tcp_offset, ipv6) = (view.tcp_offset(), view.ipv6());
        let (link, packet) = ethernet::Header::parse(header)?;
        let port = |at: usize| Some(u16::from_be_bytes(*header.get(at..)?.first_chunk()?));
        let (addresses, traffic_class, ttl): ([IpAddr; 2], u8, u8) = if ipv6 {
            let address = |at: usize| Some(IpAddr::from(*packet.get(at..)?.first_chunk::<16>()?));
            let class = (packet[0] << 4) | (packet[1] >> 4);
            ([address(8)?, address(24)?], class, packet[7])
        } else {
            let address = |at: usize| Some(IpAddr::from(*packet.get(at..)?.first_chunk::<4>()?));
            ([address(12)?, address(16)?], packet[1], packet[8])
        };
        Some(TcpTemplate {
            source_mac: link.source,
            destination_mac: link.destination,
            source: SocketAddr::new(addresses[0], port(tcp_offset)?),
            destination: SocketAddr::new(addresses[1], port(tcp_offset + 2)?),
            traffic_class,
            ttl,
        })
    }

    /// Returns the offset of the TCP header in the output of [`TcpTemplate::write`], in bytes.
    pub fn tcp_offset(&self) -> usize {
        match self.source {
            SocketAddr::V4(_) => ethernet::HEADER_BYTES + ip::IPV4_HEADER_BYTES,
            SocketAddr::V6(_) => ethernet::HEADER_BYTES + ip::IPV6_HEADER_BYTES,
        }
    }

    /// Returns a whole frame with full checksums, for a port that completes none.
    ///
    /// # Panics
    /// If the addresses are of different families, or the payload does not fit into an IP packet.
    pub fn to_frame(&self, header: &tcp::Header, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; HEADER_BYTES_MAX];
        let len = self
            .write(header, &mut frame)
            .expect("addresses of one family");
        frame.truncate(len);
        super::complete_checksum(&mut frame, [payload]).expect("a payload of an IP packet");
        frame.extend_from_slice(payload);
        frame
    }

    /// Writes Ethernet, IP and TCP header to the start of `buffer`; returns their length, or `None`
    /// if they do not fit or the addresses are of different families. [`HEADER_BYTES_MAX`] is
    /// always enough.
    ///
    /// Ports are the template's, those in `header` are ignored. IPv4 fragmentation is forbidden and
    /// the identification is 0 (RFC 6864 §4.1). Lengths and checksums are left to
    /// [`finish`](super::finish) or [`complete_checksum`](super::complete_checksum).
    pub fn write(&self, header: &tcp::Header, buffer: &mut [u8]) -> Option<usize> {
        let tcp_offset = self.tcp_offset();
        let len = tcp_offset + header.len_bytes();
        let buffer = buffer.get_mut(..len)?;
        let below = ip::Header {
            addresses: ip::Addresses::new(self.source.ip(), self.destination.ip())?,
            protocol: ip::TCP,
            ttl: self.ttl,
            traffic_class: self.traffic_class,
            identification: 0,
        };
        let (link, packet) = buffer.split_at_mut(ethernet::HEADER_BYTES);
        write_link(self.source_mac, self.destination_mac, &below, link);
        below.write_without_length(packet);
        let tcp = &mut buffer[tcp_offset..];
        header.write(tcp);
        tcp[..2].copy_from_slice(&self.source.port().to_be_bytes());
        tcp[2..4].copy_from_slice(&self.destination.port().to_be_bytes());
        Some(len)
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
    let (link, packet) = buffer.split_at_mut(ethernet::HEADER_BYTES);
    write_link(source_mac, destination_mac, header, link);
    header.write(ip_payload_len, packet);
}

/// Writes the Ethernet header that belongs before an IP header.
pub(crate) fn write_link(
    source_mac: [u8; 6],
    destination_mac: [u8; 6],
    header: &ip::Header,
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
    buffer.copy_from_slice(&link.to_bytes());
}
