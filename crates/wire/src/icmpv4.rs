//! ICMP (RFC 792): echo, and the errors that concern TCP.

use std::net::Ipv4Addr;

use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{Icmpv4Message, Icmpv4Packet, Icmpv4Repr};

use crate::icmp::{Echo, QuotedTcp};
use crate::{ParseError, checksum, frame, ip};

/// An ICMP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Echo request or reply.
    Echo(Echo<'a>),
    /// Destination unreachable, about a TCP packet of ours.
    Unreachable {
        /// Reason, as RFC 792 and RFC 1122 §3.2.2.1 number it. 4 is "fragmentation needed".
        code: u8,
        /// With code 4: largest packet of the next hop, in bytes; zero if not reported (RFC 1191
        /// §4).
        mtu: u16,
        /// The packet.
        quoted: QuotedTcp,
    },
    /// Any other message.
    Other,
}

impl<'a> Message<'a> {
    /// Parses the payload of an IPv4 packet and verifies its checksum.
    pub fn parse(bytes: &'a [u8]) -> Result<Message<'a>, ParseError> {
        let packet = Icmpv4Packet::new_checked(bytes).map_err(|_| ParseError::BadIcmp)?;
        if !packet.verify_checksum() {
            return Err(ParseError::BadIcmpChecksum);
        }
        let echo = |reply| {
            Message::Echo(Echo {
                reply,
                ident: packet.echo_ident(),
                seq_no: packet.echo_seq_no(),
                data: packet.data(),
            })
        };
        Ok(match (packet.msg_type(), packet.msg_code()) {
            (Icmpv4Message::EchoRequest, 0) => echo(false),
            (Icmpv4Message::EchoReply, 0) => echo(true),
            (Icmpv4Message::DstUnreachable, code) => {
                // The second half of the word after the checksum, which RFC 1191 §4 took from the
                // unused field.
                let [.., m0, m1] = *bytes.first_chunk::<8>().ok_or(ParseError::BadIcmp)?;
                match QuotedTcp::parse(packet.data()) {
                    Some(quoted) => Message::Unreachable {
                        code,
                        mtu: u16::from_be_bytes([m0, m1]),
                        quoted,
                    },
                    None => Message::Other,
                }
            }
            _ => Message::Other,
        })
    }
}

/// An echo message as a whole Ethernet frame.
pub fn echo_frame(
    source_mac: [u8; 6],
    destination_mac: [u8; 6],
    source: Ipv4Addr,
    destination: Ipv4Addr,
    echo: &Echo<'_>,
) -> Vec<u8> {
    let Echo {
        reply,
        ident,
        seq_no,
        data,
    } = *echo;
    let repr = if reply {
        Icmpv4Repr::EchoReply {
            ident,
            seq_no,
            data,
        }
    } else {
        Icmpv4Repr::EchoRequest {
            ident,
            seq_no,
            data,
        }
    };
    let header = ip::Header {
        addresses: ip::Addresses::V4 {
            source,
            destination,
        },
        protocol: ip::ICMP,
        ttl: ip::TTL,
        traffic_class: 0,
        identification: 0,
    };
    let write = |payload: &mut [u8]| {
        repr.emit(
            &mut Icmpv4Packet::new_unchecked(payload),
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

/// Most of a packet that an error quotes: the error fits into 576 bytes (RFC 1812 §4.3.2.3).
const QUOTED_BYTES_MAX: usize = 576 - ip::IPV4_HEADER_BYTES - 8;

/// "Port unreachable" about `packet`, which begins with its IP header, as a whole Ethernet frame.
pub fn port_unreachable_frame(
    source_mac: [u8; 6],
    destination_mac: [u8; 6],
    source: Ipv4Addr,
    destination: Ipv4Addr,
    packet: &[u8],
) -> Vec<u8> {
    const UNREACHABLE: u8 = 3;
    const PORT: u8 = 3;
    let quoted = &packet[..packet.len().min(QUOTED_BYTES_MAX)];
    let header = ip::Header {
        addresses: ip::Addresses::V4 {
            source,
            destination,
        },
        protocol: ip::ICMP,
        ttl: ip::TTL,
        traffic_class: 0,
        identification: 0,
    };
    let write = |payload: &mut [u8]| {
        payload[..2].copy_from_slice(&[UNREACHABLE, PORT]);
        payload[8..].copy_from_slice(quoted);
        let sum = checksum::of(payload);
        payload[2..4].copy_from_slice(&sum.to_be_bytes());
    };
    frame::assemble(
        source_mac,
        destination_mac,
        &header,
        8 + quoted.len(),
        write,
    )
}
