//! Types that ICMP (RFC 792) and ICMPv6 (RFC 4443) share.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::ip;

/// An echo request or its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Echo<'a> {
    /// A reply rather than a request.
    pub reply: bool,
    /// Identifier; the reply repeats the request's.
    pub ident: u16,
    /// Sequence number; the reply repeats the request's.
    pub seq_no: u16,
    /// Data; the reply repeats the request's.
    pub data: &'a [u8],
}

/// The packet of ours that an ICMP error quotes. Any machine can forge one: before acting on an
/// error, a stack checks that `seq` is in flight (RFC 5927 §4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotedTcp {
    /// Our end.
    pub source: SocketAddr,
    /// The peer's end.
    pub destination: SocketAddr,
    /// Sequence number.
    pub seq: u32,
}

impl QuotedTcp {
    /// Parses the start of a TCP packet without extension headers; `None` if it is something else.
    pub(crate) fn parse(packet: &[u8]) -> Option<QuotedTcp> {
        let (addresses, protocol, header_len): ([IpAddr; 2], _, _) = match packet.first()? >> 4 {
            4 => {
                let header = packet.first_chunk::<{ ip::IPV4_HEADER_BYTES }>()?;
                let at = |at: usize| *header[at..].first_chunk::<4>().expect("within the header");
                let (source, destination) = (Ipv4Addr::from(at(12)), Ipv4Addr::from(at(16)));
                let header_len = usize::from(header[0] & 0x0f) * 4;
                ([source.into(), destination.into()], header[9], header_len)
            }
            6 => {
                let header = packet.first_chunk::<{ ip::IPV6_HEADER_BYTES }>()?;
                let at = |at: usize| *header[at..].first_chunk::<16>().expect("within the header");
                let (source, destination) = (Ipv6Addr::from(at(8)), Ipv6Addr::from(at(24)));
                let header_len = ip::IPV6_HEADER_BYTES;
                ([source.into(), destination.into()], header[6], header_len)
            }
            _ => return None,
        };
        if protocol != ip::TCP {
            return None;
        }
        let tcp = packet.get(header_len..)?.first_chunk::<8>()?;
        let [s0, s1, d0, d1, q0, q1, q2, q3] = *tcp;
        Some(QuotedTcp {
            source: SocketAddr::new(addresses[0], u16::from_be_bytes([s0, s1])),
            destination: SocketAddr::new(addresses[1], u16::from_be_bytes([d0, d1])),
            seq: u32::from_be_bytes([q0, q1, q2, q3]),
        })
    }
}
