//! ICMPv6 (RFC 4443): echo, neighbour discovery (RFC 4861), and the errors that concern TCP.

use std::net::Ipv6Addr;

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    Icmpv6Message, Icmpv6Packet, Icmpv6Repr, NdiscNeighborFlags, NdiscRepr, RawHardwareAddress,
};

use crate::checksum::Checksum;
use crate::icmp::{Echo, QuotedTcp};
use crate::{ParseError, checksum, ethernet, frame, ip};

/// Hop limit of neighbour discovery; a packet with less may come from off the link (RFC 4861 §7.1).
pub const NEIGHBOR_HOP_LIMIT: u8 = 255;

/// An ICMPv6 message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Echo request or reply.
    Echo(Echo<'a>),
    /// Neighbour solicitation or advertisement.
    Neighbor(Neighbor),
    /// Packet too big, about a TCP packet of ours.
    PacketTooBig {
        /// Largest packet of the next hop, in bytes.
        mtu: u32,
        /// The packet.
        quoted: QuotedTcp,
    },
    /// Destination unreachable, about a TCP packet of ours.
    Unreachable {
        /// Reason, as RFC 4443 §3.1 numbers it.
        code: u8,
        /// The packet.
        quoted: QuotedTcp,
    },
    /// Any other message.
    Other,
}

/// A message of neighbour discovery between hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbor {
    /// Asks for the owner of the target address.
    Solicitation {
        /// The address asked for.
        target: Ipv6Addr,
        /// The sender's hardware address; always absent if the sender's address is unspecified,
        /// that is, in duplicate address detection.
        source_mac: Option<[u8; 6]>,
    },
    /// The sender owns the target address.
    Advertisement {
        /// The target address.
        target: Ipv6Addr,
        /// Hardware address of the target.
        target_mac: Option<[u8; 6]>,
        /// The sender is a router.
        router: bool,
        /// Answers a solicitation: proves that the neighbour is reachable.
        solicited: bool,
        /// Replaces a hardware address that is cached already.
        override_cached: bool,
    },
}

impl<'a> Message<'a> {
    /// Parses the payload of an IPv6 packet and verifies its checksum; for neighbour discovery also
    /// the rules of RFC 4861 §7.1.
    pub fn parse(
        source: Ipv6Addr,
        destination: Ipv6Addr,
        hop_limit: u8,
        bytes: &'a [u8],
    ) -> Result<Message<'a>, ParseError> {
        let packet = Icmpv6Packet::new_checked(bytes).map_err(|_| ParseError::BadIcmp)?;
        if !packet.verify_checksum(&source, &destination) {
            return Err(ParseError::BadIcmpChecksum);
        }
        let echo = |reply| {
            Message::Echo(Echo {
                reply,
                ident: packet.echo_ident(),
                seq_no: packet.echo_seq_no(),
                data: packet.payload(),
            })
        };
        Ok(match (packet.msg_type(), packet.msg_code()) {
            (Icmpv6Message::EchoRequest, 0) => echo(false),
            (Icmpv6Message::EchoReply, 0) => echo(true),
            (Icmpv6Message::NeighborSolicit | Icmpv6Message::NeighborAdvert, code) => {
                if hop_limit != NEIGHBOR_HOP_LIMIT || code != 0 {
                    return Err(ParseError::BadIcmp);
                }
                let repr = NdiscRepr::parse(&packet).map_err(|_| ParseError::BadIcmp)?;
                Message::Neighbor(Neighbor::from_repr(source, destination, &repr)?)
            }
            (Icmpv6Message::PktTooBig, 0) => match QuotedTcp::parse(packet.payload()) {
                Some(quoted) => Message::PacketTooBig {
                    mtu: packet.pkt_too_big_mtu(),
                    quoted,
                },
                None => Message::Other,
            },
            (Icmpv6Message::DstUnreachable, code) => match QuotedTcp::parse(packet.payload()) {
                Some(quoted) => Message::Unreachable { code, quoted },
                None => Message::Other,
            },
            _ => Message::Other,
        })
    }
}

impl Neighbor {
    fn from_repr(
        source: Ipv6Addr,
        destination: Ipv6Addr,
        repr: &NdiscRepr<'_>,
    ) -> Result<Neighbor, ParseError> {
        let mac = |address: Option<RawHardwareAddress>| {
            address.and_then(|address| address.as_bytes().try_into().ok())
        };
        match *repr {
            NdiscRepr::NeighborSolicit {
                target_addr: target,
                lladdr,
            } => {
                // RFC 4861 §7.1.1.
                let probe = source.is_unspecified();
                if target.is_multicast()
                    || probe && (lladdr.is_some() || destination != solicited_node(target))
                {
                    return Err(ParseError::BadIcmp);
                }
                Ok(Neighbor::Solicitation {
                    target,
                    source_mac: mac(lladdr),
                })
            }
            NdiscRepr::NeighborAdvert {
                flags,
                target_addr: target,
                lladdr,
            } => {
                // RFC 4861 §7.1.2.
                let solicited = flags.contains(NdiscNeighborFlags::SOLICITED);
                if target.is_multicast() || destination.is_multicast() && solicited {
                    return Err(ParseError::BadIcmp);
                }
                Ok(Neighbor::Advertisement {
                    target,
                    target_mac: mac(lladdr),
                    router: flags.contains(NdiscNeighborFlags::ROUTER),
                    solicited,
                    override_cached: flags.contains(NdiscNeighborFlags::OVERRIDE),
                })
            }
            _ => Err(ParseError::BadIcmp),
        }
    }
}

/// The group that a solicitation for `target` goes to (RFC 4291 §2.7.1).
pub fn solicited_node(target: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = target.octets();
    let [high, low] = [u16::from(a) | 0xff00, u16::from_be_bytes([b, c])];
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, high, low)
}

/// An echo message as a whole Ethernet frame.
pub fn echo_frame(
    source_mac: [u8; 6],
    destination_mac: [u8; 6],
    source: Ipv6Addr,
    destination: Ipv6Addr,
    echo: &Echo<'_>,
) -> Vec<u8> {
    let Echo {
        reply,
        ident,
        seq_no,
        data,
    } = *echo;
    let repr = if reply {
        Icmpv6Repr::EchoReply {
            ident,
            seq_no,
            data,
        }
    } else {
        Icmpv6Repr::EchoRequest {
            ident,
            seq_no,
            data,
        }
    };
    emit(
        [source_mac, destination_mac],
        [source, destination],
        ip::TTL,
        &repr,
    )
}

/// Most of a packet that an error quotes: the error fits into the smallest MTU (RFC 4443 §2.4 c).
const QUOTED_BYTES_MAX: usize = 1280 - ip::IPV6_HEADER_BYTES - 8;

/// "Port unreachable" about `packet`, which begins with its IP header, as a whole Ethernet frame.
pub fn port_unreachable_frame(
    source_mac: [u8; 6],
    destination_mac: [u8; 6],
    source: Ipv6Addr,
    destination: Ipv6Addr,
    packet: &[u8],
) -> Vec<u8> {
    const UNREACHABLE: u8 = 1;
    const PORT: u8 = 4;
    let quoted = &packet[..packet.len().min(QUOTED_BYTES_MAX)];
    let len = 8 + quoted.len();
    let header = ip::Header {
        addresses: ip::Addresses::V6 {
            source,
            destination,
        },
        protocol: ip::ICMPV6,
        ttl: ip::TTL,
        traffic_class: 0,
        identification: 0,
    };
    let write = |payload: &mut [u8]| {
        payload[..2].copy_from_slice(&[UNREACHABLE, PORT]);
        payload[8..].copy_from_slice(quoted);
        let (source, destination) = (source.into(), destination.into());
        let mut sum = Checksum::pseudo_header(source, destination, ip::ICMPV6, len as u32);
        sum.add(payload);
        payload[2..4].copy_from_slice(&sum.finish().to_be_bytes());
    };
    frame::assemble(source_mac, destination_mac, &header, len, write)
}

/// A message of neighbour discovery as a whole Ethernet frame.
pub fn neighbor_frame(
    source_mac: [u8; 6],
    destination_mac: [u8; 6],
    source: Ipv6Addr,
    destination: Ipv6Addr,
    message: &Neighbor,
) -> Vec<u8> {
    let raw = |mac: Option<[u8; 6]>| mac.map(|mac| RawHardwareAddress::from_bytes(&mac));
    let repr = Icmpv6Repr::Ndisc(match *message {
        Neighbor::Solicitation { target, source_mac } => NdiscRepr::NeighborSolicit {
            target_addr: target,
            lladdr: raw(source_mac),
        },
        Neighbor::Advertisement {
            target,
            target_mac,
            router,
            solicited,
            override_cached,
        } => {
            let mut flags = NdiscNeighborFlags::empty();
            flags.set(NdiscNeighborFlags::ROUTER, router);
            flags.set(NdiscNeighborFlags::SOLICITED, solicited);
            flags.set(NdiscNeighborFlags::OVERRIDE, override_cached);
            NdiscRepr::NeighborAdvert {
                flags,
                target_addr: target,
                lladdr: raw(target_mac),
            }
        }
    });
    emit(
        [source_mac, destination_mac],
        [source, destination],
        NEIGHBOR_HOP_LIMIT,
        &repr,
    )
}

/// A report of MLD version 2 that joins groups for any source, as a whole Ethernet frame (RFC 3810
/// §5.2).
///
/// # Panics
/// If there are more groups than one packet of 64 KB holds.
pub fn group_report_frame(source_mac: [u8; 6], source: Ipv6Addr, groups: &[Ipv6Addr]) -> Vec<u8> {
    const ALL_MLDV2_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
    const REPORT_V2: u8 = 143;
    const CHANGE_TO_EXCLUDE_MODE: u8 = 4;
    // Hop-by-hop options: router alert for MLD (RFC 2711 §2.1), PadN.
    const OPTIONS: [u8; 8] = [ip::ICMPV6, 0, 5, 2, 0, 0, 1, 0];
    const HOP_BY_HOP: u8 = 0;

    let count = u16::try_from(groups.len()).expect("groups fit into a packet");
    let mut report = vec![REPORT_V2, 0, 0, 0, 0, 0];
    report.extend(count.to_be_bytes());
    for group in groups {
        report.extend([CHANGE_TO_EXCLUDE_MODE, 0, 0, 0]);
        report.extend(group.octets());
    }
    let destination = ALL_MLDV2_ROUTERS;
    let len = report.len() as u32;
    let mut sum =
        checksum::Checksum::pseudo_header(source.into(), destination.into(), ip::ICMPV6, len);
    sum.add(&report);
    report[2..4].copy_from_slice(&sum.finish().to_be_bytes());
    let header = ip::Header {
        addresses: ip::Addresses::V6 {
            source,
            destination,
        },
        protocol: HOP_BY_HOP,
        ttl: 1,
        traffic_class: 0,
        identification: 0,
    };
    let destination_mac = ethernet::multicast_mac(destination);
    let payload = [&OPTIONS[..], &report].concat();
    frame::assemble(
        source_mac,
        destination_mac,
        &header,
        payload.len(),
        |bytes| bytes.copy_from_slice(&payload),
    )
}

fn emit(
    [source_mac, destination_mac]: [[u8; 6]; 2],
    [source, destination]: [Ipv6Addr; 2],
    hop_limit: u8,
    repr: &Icmpv6Repr<'_>,
) -> Vec<u8> {
    let header = ip::Header {
        addresses: ip::Addresses::V6 {
            source,
            destination,
        },
        protocol: ip::ICMPV6,
        ttl: hop_limit,
        traffic_class: 0,
        identification: 0,
    };
    let write = |payload: &mut [u8]| {
        repr.emit(
            &source,
            &destination,
            &mut Icmpv6Packet::new_unchecked(payload),
            &ChecksumCapabilities::default(),
        );
    };
    frame::assemble(
        source_mac,
        destination_mac,
        &header,
        repr.buffer_len(),
        write,
    )
}
