//! The IP header of outgoing TCP packets and UDP datagrams.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::checksum::Checksum;
use crate::{ethernet, ip};

pub(super) const IPV4_TRANSPORT_OFFSET: usize = ethernet::HEADER_BYTES + ip::IPV4_HEADER_BYTES;
pub(super) const IPV6_TRANSPORT_OFFSET: usize = ethernet::HEADER_BYTES + ip::IPV6_HEADER_BYTES;

/// Returns the offset of the transport header, behind Ethernet and IPv4 without options or IPv6
/// without extension headers. `None` if the header is another, or of another protocol.
pub(super) fn transport_offset(header: &[u8], protocol: u8) -> Option<usize> {
    let (link, packet) = ethernet::Header::parse(header)?;
    match link.ether_type {
        ethernet::IPV4 => {
            let header = packet.first_chunk::<{ ip::IPV4_HEADER_BYTES }>()?;
            (header[0] == 0x45 && header[9] == protocol).then_some(IPV4_TRANSPORT_OFFSET)
        }
        ethernet::IPV6 => {
            let header = packet.first_chunk::<{ ip::IPV6_HEADER_BYTES }>()?;
            (header[0] >> 4 == 6 && header[6] == protocol).then_some(IPV6_TRANSPORT_OFFSET)
        }
        _ => None,
    }
}

/// Sets the IP length for `transport_bytes` behind the IP header, and the IPv4 header checksum.
/// Returns the sum of the pseudo-header; `None` if the packet exceeds the range of the length
/// field, or an IPv4 packet `ipv4_bytes_max`.
pub(super) fn set(
    header: &mut [u8],
    transport_offset: usize,
    protocol: u8,
    transport_bytes: usize,
    ipv4_bytes_max: usize,
) -> Option<Checksum> {
    let (source, destination): (IpAddr, IpAddr);
    if transport_offset == IPV6_TRANSPORT_OFFSET {
        let ip_payload_len = u16::try_from(transport_bytes).ok()?;
        let at = ethernet::HEADER_BYTES + 4;
        header[at..at + 2].copy_from_slice(&ip_payload_len.to_be_bytes());
        source = Ipv6Addr::from(octets_at::<16>(header, ethernet::HEADER_BYTES + 8)).into();
        destination = Ipv6Addr::from(octets_at::<16>(header, ethernet::HEADER_BYTES + 24)).into();
    } else {
        let total_len = transport_bytes
            .checked_add(ip::IPV4_HEADER_BYTES)
            .filter(|&total_len| total_len <= ipv4_bytes_max)?;
        let total_len = u16::try_from(total_len).unwrap_or(0);
        let ip_header = &mut header[ethernet::HEADER_BYTES..IPV4_TRANSPORT_OFFSET];
        ip::set_ipv4_length(ip_header, total_len);
        source = Ipv4Addr::from(octets_at::<4>(header, ethernet::HEADER_BYTES + 12)).into();
        destination = Ipv4Addr::from(octets_at::<4>(header, ethernet::HEADER_BYTES + 16)).into();
    }
    Some(Checksum::pseudo_header(
        source,
        destination,
        protocol,
        transport_bytes as u32,
    ))
}

/// # Panics
/// If the header is shorter, which [`transport_offset`] rules out for an IP header.
pub(super) fn octets_at<const N: usize>(header: &[u8], at: usize) -> [u8; N] {
    *header[at..].first_chunk().expect("the header is longer")
}
