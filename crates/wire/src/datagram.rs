//! UDP (RFC 768): datagrams that have arrived, and outgoing ones with their headers.

use std::net::{IpAddr, SocketAddr};

use crate::checksum::Checksum;
use crate::ip::Addresses;
use crate::{ParseError, ethernet, frame, ip};

/// Length of a UDP header, in bytes.
pub const HEADER_BYTES: usize = 8;

/// Length of the longest header that [`DatagramHeader::write`] writes, in bytes.
pub const HEADERS_BYTES_MAX: usize = ethernet::HEADER_BYTES + ip::IPV6_HEADER_BYTES + HEADER_BYTES;

/// A UDP datagram with its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpPacket<'a> {
    /// Source link address: the peer's, or a router's.
    pub source_mac: [u8; 6],
    /// Destination link address.
    pub destination_mac: [u8; 6],
    /// The peer.
    pub source: SocketAddr,
    /// Destination address and port.
    pub destination: SocketAddr,
    /// ECN field of the IP header.
    pub ecn: ip::Ecn,
    /// Payload of the datagram.
    pub payload: &'a [u8],
    /// The whole packet from the IP header on, for an ICMP error that quotes it.
    pub packet: &'a [u8],
}

impl UdpPacket<'_> {
    /// Returns true if it goes from one host to another, on the link as well: to no group, and from
    /// none.
    pub fn is_unicast(&self) -> bool {
        let is_host = |ip: IpAddr| match ip {
            IpAddr::V4(ip) => !(ip.is_multicast() || ip.is_broadcast() || ip.is_unspecified()),
            IpAddr::V6(ip) => !(ip.is_multicast() || ip.is_unspecified()),
        };
        is_host(self.source.ip())
            && is_host(self.destination.ip())
            && !ethernet::is_multicast(self.source_mac)
            && !ethernet::is_multicast(self.destination_mac)
    }
}

/// Parses and checks a received Ethernet frame; `None` if it is no UDP.
///
/// `checksum_valid`: the kernel or the NIC vouches for the UDP checksum. A checksum of zero is
/// none, which IPv4 permits and IPv6 does not (RFC 8200 §8.1).
///
/// # Errors
/// If it is UDP, or IP, and breaks a rule. A fragment is not reassembled.
pub fn parse(bytes: &[u8], checksum_valid: bool) -> Result<Option<UdpPacket<'_>>, ParseError> {
    let (link, packet_bytes) = ethernet::Header::parse(bytes).ok_or(ParseError::Truncated)?;
    let packet = match link.ether_type {
        ethernet::IPV4 => ip::Packet::parse_v4(packet_bytes)?,
        ethernet::IPV6 => ip::Packet::parse_v6(packet_bytes)?,
        _ => return Ok(None),
    };
    if packet.protocol != ip::UDP {
        return Ok(None);
    }
    let (source, destination) = (packet.addresses.source(), packet.addresses.destination());
    let header = packet.payload.first_chunk::<HEADER_BYTES>();
    let [s0, s1, d0, d1, l0, l1, c0, c1] = *header.ok_or(ParseError::BadUdpHeader)?;
    let len = usize::from(u16::from_be_bytes([l0, l1]));
    let datagram = packet.payload.get(..len).ok_or(ParseError::BadUdpHeader)?;
    let payload = datagram.get(HEADER_BYTES..);
    let payload = payload.ok_or(ParseError::BadUdpHeader)?;
    if [c0, c1] == [0, 0] {
        if source.is_ipv6() {
            return Err(ParseError::BadUdpChecksum);
        }
    } else if !checksum_valid {
        let mut checksum = Checksum::pseudo_header(source, destination, ip::UDP, len as u32);
        checksum.add(datagram);
        if checksum.finish() != 0 {
            return Err(ParseError::BadUdpChecksum);
        }
    }
    Ok(Some(UdpPacket {
        source_mac: link.source,
        destination_mac: link.destination,
        source: SocketAddr::new(source, u16::from_be_bytes([s0, s1])),
        destination: SocketAddr::new(destination, u16::from_be_bytes([d0, d1])),
        ecn: ip::Ecn::of(packet.traffic_class),
        payload,
        packet: packet_bytes,
    }))
}

/// Fields of the headers in front of datagrams from one end to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramHeader {
    /// The link address of this end.
    pub source_mac: [u8; 6],
    /// The link address of the next hop.
    pub destination_mac: [u8; 6],
    /// This end.
    pub source: SocketAddr,
    /// The peer.
    pub destination: SocketAddr,
    /// The ECN field of the IP header.
    pub ecn: ip::Ecn,
}

impl DatagramHeader {
    fn ip_header(&self) -> Option<ip::Header> {
        Some(ip::Header {
            addresses: Addresses::new(self.source.ip(), self.destination.ip())?,
            protocol: ip::UDP,
            ttl: ip::TTL,
            traffic_class: self.ecn.mark(0),
            identification: 0,
        })
    }

    /// Writes Ethernet, IP and UDP header to the start of `buffer`; returns their length, or `None`
    /// if they do not fit or the addresses are of different families. [`HEADERS_BYTES_MAX`] is
    /// always enough. Lengths and checksums are zero.
    pub fn write(&self, buffer: &mut [u8]) -> Option<usize> {
        let header = self.ip_header()?;
        let udp_offset = ethernet::HEADER_BYTES + header.addresses.header_bytes();
        let len = udp_offset + HEADER_BYTES;
        let buffer = buffer.get_mut(..len)?;
        frame::write_link(
            self.source_mac,
            self.destination_mac,
            &header,
            &mut buffer[..ethernet::HEADER_BYTES],
        );
        header.write_without_length(&mut buffer[ethernet::HEADER_BYTES..]);
        let udp = &mut buffer[udp_offset..];
        udp[..2].copy_from_slice(&self.source.port().to_be_bytes());
        udp[2..4].copy_from_slice(&self.destination.port().to_be_bytes());
        udp[4..].fill(0);
        Some(len)
    }

    /// Returns a whole frame with its lengths and checksums. `None` if the addresses are of
    /// different families, or the payload is longer than UDP can carry.
    pub fn to_frame(&self, payload: &[u8]) -> Option<Vec<u8>> {
        let header = self.ip_header()?;
        let len = HEADER_BYTES + payload.len();
        if len + header.addresses.header_bytes() > usize::from(u16::MAX) {
            return None;
        }
        let mut datagram_header = [0; HEADER_BYTES];
        datagram_header[..2].copy_from_slice(&self.source.port().to_be_bytes());
        datagram_header[2..4].copy_from_slice(&self.destination.port().to_be_bytes());
        datagram_header[4..6].copy_from_slice(&(len as u16).to_be_bytes());
        let (source, destination) = (self.source.ip(), self.destination.ip());
        let mut checksum = Checksum::pseudo_header(source, destination, ip::UDP, len as u32);
        checksum.add(&datagram_header);
        checksum.add(payload);
        // Zero would mean that there is no checksum.
        let sum = match checksum.finish() {
            0 => 0xffff,
            sum => sum,
        };
        datagram_header[6..].copy_from_slice(&sum.to_be_bytes());
        Some(frame::assemble(
            self.source_mac,
            self.destination_mac,
            &header,
            len,
            |bytes| {
                let (head, body) = bytes.split_at_mut(HEADER_BYTES);
                head.copy_from_slice(&datagram_header);
                body.copy_from_slice(payload);
            },
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(v6: bool) -> DatagramHeader {
        let address = |host: u8| -> SocketAddr {
            let text = if v6 {
                format!("[fd77::{host}]:{}", 5000 + u16::from(host))
            } else {
                format!("10.77.0.{host}:{}", 5000 + u16::from(host))
            };
            text.parse().expect("an address")
        };
        DatagramHeader {
            source_mac: [2, 0, 0, 0, 0, 1],
            destination_mac: [2, 0, 0, 0, 0, 2],
            source: address(1),
            destination: address(2),
            ecn: ip::Ecn::Ect0,
        }
    }

    /// Offset of the UDP header.
    fn udp_at(v6: bool) -> usize {
        ethernet::HEADER_BYTES
            + if v6 {
                ip::IPV6_HEADER_BYTES
            } else {
                ip::IPV4_HEADER_BYTES
            }
    }

    #[test]
    fn what_is_written_is_parsed() {
        for v6 in [false, true] {
            for len in [0, 1, 7, 1200, 1452] {
                let payload: Vec<u8> = (0..len).map(|at| at as u8).collect();
                let template = template(v6);
                let frame = template.to_frame(&payload).expect("one family");
                let packet = parse(&frame, false).expect("sound").expect("UDP");
                assert_eq!(packet.payload, payload);
                assert_eq!(packet.source, template.source);
                assert_eq!(packet.destination, template.destination);
                assert_eq!(packet.ecn, ip::Ecn::Ect0);
                assert!(packet.is_unicast());
                assert_eq!(packet.packet, &frame[ethernet::HEADER_BYTES..]);
                let mut header = [0; HEADERS_BYTES_MAX];
                let written = template.write(&mut header).expect("room");
                assert_eq!(written, udp_at(v6) + HEADER_BYTES);
                // But for lengths and checksums.
                assert_eq!(header[..16], frame[..16]);
                assert_eq!(
                    header[udp_at(v6)..][..4],
                    frame[udp_at(v6)..][..4],
                    "the ports"
                );
            }
        }
    }

    #[test]
    fn each_damaged_byte_of_a_datagram_is_noticed() {
        for v6 in [false, true] {
            let frame = template(v6).to_frame(b"some bytes").expect("one family");
            for at in udp_at(v6)..frame.len() {
                let mut damaged = frame.clone();
                damaged[at] ^= 0x10;
                assert!(parse(&damaged, false).is_err(), "byte {at}");
            }
        }
    }

    /// Covers: RFC 1122 §4.1.3.4, RFC 8200 §8.1
    #[test]
    fn a_checksum_of_zero_is_none_and_not_permitted_in_ipv6() {
        for v6 in [false, true] {
            let mut frame = template(v6).to_frame(b"some bytes").expect("one family");
            frame[udp_at(v6) + 6..][..2].fill(0);
            let parsed = parse(&frame, false);
            if v6 {
                assert_eq!(parsed, Err(ParseError::BadUdpChecksum));
                assert!(parse(&frame, true).is_err());
            } else {
                let packet = parsed.expect("sound").expect("UDP");
                assert_eq!(packet.payload, b"some bytes");
            }
        }
    }

    #[test]
    fn a_sum_of_zero_is_sent_as_its_complement() {
        for v6 in [false, true] {
            let mut zero = None;
            for word in 0..=u16::MAX {
                let frame = template(v6).to_frame(&word.to_be_bytes()).expect("a frame");
                assert_ne!(frame[udp_at(v6) + 6..][..2], [0, 0]);
                if frame[udp_at(v6) + 6..][..2] == [0xff, 0xff] {
                    zero = Some(frame);
                }
            }
            let zero = zero.expect("one of the words makes the sum zero");
            assert!(parse(&zero, false).is_ok());
        }
    }

    #[test]
    fn lengths_must_agree() {
        for v6 in [false, true] {
            let frame = template(v6).to_frame(b"some bytes").expect("one family");
            for len in [0u16, 7, 19, 100] {
                let mut wrong = frame.clone();
                wrong[udp_at(v6) + 4..][..2].copy_from_slice(&len.to_be_bytes());
                assert_eq!(parse(&wrong, true), Err(ParseError::BadUdpHeader), "{len}");
            }
            // Bytes behind the datagram are not part of the payload.
            let mut shorter = frame.clone();
            shorter[udp_at(v6) + 4..][..2].copy_from_slice(&12u16.to_be_bytes());
            let packet = parse(&shorter, true).expect("sound").expect("UDP");
            assert_eq!(packet.payload, b"some");
            let padded = [&frame[..], &[0; 20]].concat();
            let packet = parse(&padded, false).expect("sound").expect("UDP");
            assert_eq!(packet.payload, b"some bytes");
        }
    }

    #[test]
    fn fragments_are_dropped() {
        let mut frame = template(false).to_frame(b"some bytes").expect("a frame");
        let at = ethernet::HEADER_BYTES;
        // More fragments.
        frame[at + 6] = 0x20;
        frame[at + 10..at + 12].fill(0);
        let sum = crate::checksum::of(&frame[at..at + ip::IPV4_HEADER_BYTES]);
        frame[at + 10..at + 12].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(parse(&frame, true), Err(ParseError::Fragment));
    }

    #[test]
    fn groups_are_not_unicast() {
        for destination in ["224.0.0.1:1", "255.255.255.255:1", "[ff02::1]:1"] {
            let destination: SocketAddr = destination.parse().expect("an address");
            let template = DatagramHeader {
                destination,
                ..template(destination.is_ipv6())
            };
            let frame = template.to_frame(b"x").expect("a frame");
            assert!(
                !parse(&frame, false)
                    .expect("sound")
                    .expect("UDP")
                    .is_unicast()
            );
        }
        let mut frame = template(false).to_frame(b"x").expect("a frame");
        frame[..6].fill(0xff);
        assert!(
            !parse(&frame, false)
                .expect("sound")
                .expect("UDP")
                .is_unicast()
        );
    }

    #[test]
    fn other_protocols_are_none() {
        let mut frame = template(true).to_frame(b"x").expect("a frame");
        frame[20] = ip::TCP;
        assert_eq!(parse(&frame, false), Ok(None));
    }
}
