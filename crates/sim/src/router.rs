//! Answers for all hosts beyond the server's link: ARP, neighbour discovery, "too big".

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use wire::frame::{Received, parse};
use wire::icmpv6::{Message, Neighbor};
use wire::{arp, checksum::Checksum, ethernet, icmpv6, ip};

/// The router's hardware address: next hop to all hosts behind it.
pub(crate) const ROUTER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
pub(crate) const ROUTER_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub(crate) const ROUTER_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);

/// Returns the answer to a neighbour query; `None` for other frames.
pub(crate) fn answer_neighbor(frame: &[u8]) -> Option<Vec<u8>> {
    match parse(frame, true).ok()? {
        Received::Arp(request) if request.operation == arp::Operation::Request => {
            let reply = arp::Packet {
                operation: arp::Operation::Reply,
                sender_mac: ROUTER_MAC,
                sender: request.target,
                target_mac: request.sender_mac,
                target: request.sender,
            };
            Some(reply.to_frame(request.sender_mac))
        }
        Received::Icmp6(packet) => {
            let Message::Neighbor(Neighbor::Solicitation { target, .. }) = packet.message else {
                return None;
            };
            let advertisement = Neighbor::Advertisement {
                target,
                target_mac: Some(ROUTER_MAC),
                router: target == ROUTER_V6,
                solicited: true,
                override_cached: true,
            };
            Some(icmpv6::neighbor_frame(
                ROUTER_MAC,
                packet.source_mac,
                target,
                packet.source,
                &advertisement,
            ))
        }
        _ => None,
    }
}

/// Returns the destination of an IP packet, from its header.
pub(crate) fn destination(frame: &[u8]) -> Option<IpAddr> {
    let (link, packet) = ethernet::Header::parse(frame)?;
    match link.ether_type {
        ethernet::IPV4 => {
            let octets: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
            Some(IpAddr::from(octets))
        }
        ethernet::IPV6 => {
            let octets: [u8; 16] = packet.get(24..40)?.try_into().ok()?;
            Some(IpAddr::from(octets))
        }
        _ => None,
    }
}

/// Returns the bytes after the IP header, for a packet of this protocol without IP options.
fn transport_header(frame: &[u8], wanted: u8) -> Option<&[u8]> {
    let (link, packet) = ethernet::Header::parse(frame)?;
    let (protocol, header) = match link.ether_type {
        ethernet::IPV4 => (*packet.get(9)?, packet.get(20..)?),
        ethernet::IPV6 => (*packet.get(6)?, packet.get(40..)?),
        _ => return None,
    };
    (protocol == wanted).then_some(header)
}

fn destination_of(frame: &[u8], protocol: u8) -> Option<SocketAddr> {
    let header = transport_header(frame, protocol)?;
    let port: [u8; 2] = header.get(2..4)?.try_into().ok()?;
    let address = destination(frame)?;
    Some(SocketAddr::new(address, u16::from_be_bytes(port)))
}

/// Returns the destination of a TCP packet without IP options.
pub(crate) fn tcp_destination(frame: &[u8]) -> Option<SocketAddr> {
    destination_of(frame, ip::TCP)
}

/// Returns the destination of a UDP datagram without IP options.
pub(crate) fn udp_destination(frame: &[u8]) -> Option<SocketAddr> {
    destination_of(frame, ip::UDP)
}

/// Returns the sequence number of a TCP packet without IP options.
pub(crate) fn tcp_seq(frame: &[u8]) -> Option<u32> {
    let seq: [u8; 4] = transport_header(frame, ip::TCP)?
        .get(4..8)?
        .try_into()
        .ok()?;
    Some(u32::from_be_bytes(seq))
}

/// Makes "fragmentation needed" (RFC 1191 §4) or "packet too big" (RFC 4443 §3.2) about a packet of
/// the server.
pub(crate) fn too_big(frame: &[u8], mtu: usize) -> Option<Vec<u8>> {
    let (link, packet) = ethernet::Header::parse(frame)?;
    let (addresses, protocol, message) = match link.ether_type {
        ethernet::IPV4 => {
            let source: [u8; 4] = packet.get(12..16)?.try_into().ok()?;
            let addresses = ip::Addresses::V4 {
                source: ROUTER_V4,
                destination: source.into(),
            };
            // RFC 792: the header and eight bytes; RFC 1812 §4.3.2.3 allows more.
            let mut message = vec![3, 4, 0, 0, 0, 0];
            message.extend_from_slice(&(mtu as u16).to_be_bytes());
            message.extend_from_slice(packet.get(..28)?);
            let sum = wire::checksum::of(&message);
            message[2..4].copy_from_slice(&sum.to_be_bytes());
            (addresses, ip::ICMP, message)
        }
        ethernet::IPV6 => {
            let source: [u8; 16] = packet.get(8..24)?.try_into().ok()?;
            let addresses = ip::Addresses::V6 {
                source: ROUTER_V6,
                destination: source.into(),
            };
            // The original packet as far as the message stays within 1280 bytes.
            let mut message = vec![2, 0, 0, 0];
            message.extend_from_slice(&(mtu as u32).to_be_bytes());
            message.extend_from_slice(&packet[..packet.len().min(1280 - 48)]);
            let mut sum = Checksum::pseudo_header(
                addresses.source(),
                addresses.destination(),
                ip::ICMPV6,
                message.len() as u32,
            );
            sum.add(&message);
            message[2..4].copy_from_slice(&sum.finish().to_be_bytes());
            (addresses, ip::ICMPV6, message)
        }
        _ => return None,
    };
    let header = ip::Header {
        addresses,
        protocol,
        ttl: ip::TTL,
        traffic_class: 0,
        identification: 0,
    };
    let link = ethernet::Header {
        destination: link.source,
        source: ROUTER_MAC,
        ether_type: link.ether_type,
    };
    let mut error = link.to_bytes().to_vec();
    let headers = ethernet::HEADER_BYTES + addresses.header_bytes();
    error.resize(headers, 0);
    header.write(message.len() as u16, &mut error[ethernet::HEADER_BYTES..]);
    error.extend_from_slice(&message);
    Some(error)
}

#[cfg(test)]
mod tests {
    use wire::frame::TcpTemplate;
    use wire::tcp::{Flags, Header};
    use wire::{icmpv4, icmpv6};

    use super::*;

    fn packet(source: &str, destination: &str) -> Vec<u8> {
        let [source, destination]: [SocketAddr; 2] =
            [source, destination].map(|address| address.parse().unwrap());
        let template = TcpTemplate::new([2, 0, 0, 0, 0, 1], ROUTER_MAC, source, destination);
        let header = Header {
            seq: 12_345,
            flags: Flags::ACK,
            ..Header::default()
        };
        template.to_frame(&header, &[7; 3000])
    }

    #[test]
    fn a_packet_goes_to_an_address_and_a_port() {
        for destination in ["10.88.0.1:4000", "[fd88::1]:4000"] {
            let source = if destination.contains('[') {
                "[fd77::2]:80"
            } else {
                "10.77.0.2:80"
            };
            let frame = packet(source, destination);
            assert_eq!(tcp_destination(&frame), destination.parse().ok());
            assert_eq!(tcp_seq(&frame), Some(12_345));
            assert_eq!(tcp_destination(&frame[..36]), None);
        }
    }

    #[test]
    fn too_big_quotes_the_packet_and_names_the_mtu() {
        let error = too_big(&packet("10.77.0.2:80", "10.88.0.1:4000"), 1400).unwrap();
        let Ok(Received::Icmp4(error)) = parse(&error, false) else {
            panic!("no ICMP message");
        };
        let icmpv4::Message::Unreachable { code, mtu, quoted } = error.message else {
            panic!("{error:?}");
        };
        assert_eq!((code, mtu, quoted.seq), (4, 1400, 12_345));
        let error = too_big(&packet("[fd77::2]:80", "[fd88::1]:4000"), 1300).unwrap();
        let Ok(Received::Icmp6(error)) = parse(&error, false) else {
            panic!("no ICMPv6 message");
        };
        let icmpv6::Message::PacketTooBig { mtu, quoted } = error.message else {
            panic!("{error:?}");
        };
        assert_eq!((mtu, quoted.seq), (1300, 12_345));
        assert_eq!(quoted.destination.port(), 4000);
    }
}
