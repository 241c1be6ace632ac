use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::checksum::Checksum;
use crate::ip::Addresses;
use crate::{ParseError, arp, ethernet, icmpv4, icmpv6, ip, tcp};

/// Classification of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received<'a> {
    /// A TCP segment between unicast addresses.
    Tcp(TcpPacket<'a>),
    /// An ARP packet.
    Arp(arp::Packet),
    /// An ICMP message.
    Icmp4(Icmp4Packet<'a>),
    /// An ICMPv6 message.
    Icmp6(Icmp6Packet<'a>),
    /// A protocol that Splitway does not speak.
    Other,
}

/// A TCP segment with its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpPacket<'a> {
    /// Source link address: the peer's, or a router's.
    pub source_mac: [u8; 6],
    /// The peer's address; its port is in the segment.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// The segment.
    pub segment: tcp::Segment<'a>,
}

/// An ICMP message with its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Icmp4Packet<'a> {
    /// Source link address.
    pub source_mac: [u8; 6],
    /// The sender's address.
    pub source: Ipv4Addr,
    /// Destination address.
    pub destination: Ipv4Addr,
    /// The message.
    pub message: icmpv4::Message<'a>,
}

/// An ICMPv6 message with its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Icmp6Packet<'a> {
    /// Source link address.
    pub source_mac: [u8; 6],
    /// The sender's address.
    pub source: Ipv6Addr,
    /// Destination address.
    pub destination: Ipv6Addr,
    /// The message.
    pub message: icmpv6::Message<'a>,
}

/// Parses and checks a received Ethernet frame.
///
/// `checksum_valid`: the kernel or the NIC vouches for the TCP checksum; all others are verified in
/// any case. The frame may be longer than a packet on the wire: GRO merges TCP segments.
pub fn parse(bytes: &[u8], checksum_valid: bool) -> Result<Received<'_>, ParseError> {
    let (link, payload) = ethernet::Header::parse(bytes).ok_or(ParseError::Truncated)?;
    let packet = match link.ether_type {
        ethernet::IPV4 => ip::Packet::parse_v4(payload)?,
        ethernet::IPV6 => ip::Packet::parse_v6(payload)?,
        ethernet::ARP => return Ok(Received::Arp(arp::Packet::parse(payload)?)),
        _ => return Ok(Received::Other),
    };
    match packet.protocol {
        ip::TCP => parse_tcp(&link, &packet, checksum_valid).map(Received::Tcp),
        _ => parse_control(&link, &packet),
    }
}

/// Returns the TCP segment in a frame; `None` if there is none, or if [`parse`] would reject it.
/// For the path of each packet: only the fields that are used are copied.
#[inline]
pub fn parse_segment(bytes: &[u8], checksum_valid: bool) -> Option<TcpPacket<'_>> {
    let (link, payload) = ethernet::Header::parse(bytes)?;
    let packet = match link.ether_type {
        ethernet::IPV4 => ip::Packet::parse_v4(payload).ok()?,
        ethernet::IPV6 => ip::Packet::parse_v6(payload).ok()?,
        _ => return None,
    };
    match packet.protocol {
        ip::TCP => parse_tcp(&link, &packet, checksum_valid).ok(),
        _ => None,
    }
}

fn parse_control<'a>(
    link: &ethernet::Header,
    packet: &ip::Packet<'a>,
) -> Result<Received<'a>, ParseError> {
    match (packet.protocol, packet.addresses) {
        (
            ip::ICMP,
            Addresses::V4 {
                source,
                destination,
            },
        ) => Ok(Received::Icmp4(Icmp4Packet {
            source_mac: link.source,
            source,
            destination,
            message: icmpv4::Message::parse(packet.payload)?,
        })),
        (
            ip::ICMPV6,
            Addresses::V6 {
                source,
                destination,
            },
        ) => Ok(Received::Icmp6(Icmp6Packet {
            source_mac: link.source,
            source,
            destination,
            message: icmpv6::Message::parse(source, destination, packet.ttl, packet.payload)?,
        })),
        _ => Ok(Received::Other),
    }
}

#[inline]
fn parse_tcp<'a>(
    link: &ethernet::Header,
    packet: &ip::Packet<'a>,
    checksum_valid: bool,
) -> Result<TcpPacket<'a>, ParseError> {
    // TCP is between two hosts (RFC 9293 §3.9.2, MUST-57 and MUST-63), also on the link.
    let unicast = match packet.addresses {
        Addresses::V4 {
            source,
            destination,
        } => [source, destination].iter().all(|address| {
            !(address.is_multicast() || address.is_broadcast() || address.is_unspecified())
        }),
        Addresses::V6 {
            source,
            destination,
        } => [source, destination]
            .iter()
            .all(|address| !(address.is_multicast() || address.is_unspecified())),
    };
    if !unicast || ethernet::is_multicast(link.destination) {
        return Err(ParseError::BadAddress);
    }
    let source = packet.addresses.source();
    let destination = packet.addresses.destination();
    let segment = tcp::Segment::parse(packet.payload)?;
    if !checksum_valid {
        let len = packet.payload.len() as u32;
        let mut checksum = Checksum::pseudo_header(source, destination, ip::TCP, len);
        checksum.add(packet.payload);
        if checksum.finish() != 0 {
            return Err(ParseError::BadTcpChecksum);
        }
    }
    Ok(TcpPacket {
        source_mac: link.source,
        source,
        destination,
        segment: tcp::Segment {
            ecn: ip::Ecn::of(packet.traffic_class),
            ..segment
        },
    })
}
