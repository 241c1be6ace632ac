//! IPv4 (RFC 791) and IPv6 (RFC 8200) headers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{ParseError, checksum};

/// Protocol number of ICMP.
pub const ICMP: u8 = 1;
/// Protocol number of TCP.
pub const TCP: u8 = 6;
/// Protocol number of UDP.
pub const UDP: u8 = 17;
/// Protocol number of ICMPv6.
pub const ICMPV6: u8 = 58;

/// Length of an IPv4 header without options, in bytes.
pub const IPV4_HEADER_BYTES: usize = 20;
/// Length of the fixed IPv6 header, in bytes.
pub const IPV6_HEADER_BYTES: usize = 40;

/// Longest superpacket, in bytes from the IP header on: four times the maximum of IPv4's length
/// field, as a link between host and guest, or a modern NIC, takes in one piece.
pub const SUPERPACKET_BYTES_MAX: usize = 1 << 18;

/// Time to live of the stack's packets (RFC 1700).
pub const TTL: u8 = 64;

/// The ECN field of an IP header (RFC 3168 §5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Ecn {
    /// The sender does not know ECN.
    #[default]
    NotEct = 0,
    /// ECN-capable transport, ECT(1).
    Ect1 = 1,
    /// ECN-capable transport, ECT(0).
    Ect0 = 2,
    /// Congestion experienced: a router has marked the packet instead of dropping it.
    Ce = 3,
}

impl Ecn {
    /// Returns the field in a type of service, or traffic class.
    pub const fn of(traffic_class: u8) -> Ecn {
        match traffic_class & 3 {
            0 => Ecn::NotEct,
            1 => Ecn::Ect1,
            2 => Ecn::Ect0,
            _ => Ecn::Ce,
        }
    }

    /// Returns a type of service, or traffic class, with its field replaced.
    pub const fn mark(self, traffic_class: u8) -> u8 {
        traffic_class & !3 | self as u8
    }
}

/// The two addresses of a packet, of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Addresses {
    /// IPv4.
    V4 {
        /// Source address.
        source: Ipv4Addr,
        /// Destination address.
        destination: Ipv4Addr,
    },
    /// IPv6.
    V6 {
        /// Source address.
        source: Ipv6Addr,
        /// Destination address.
        destination: Ipv6Addr,
    },
}

impl Addresses {
    /// Pairs two addresses; `None` if they are of different families.
    pub fn new(source: IpAddr, destination: IpAddr) -> Option<Addresses> {
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Some(Addresses::V4 {
                source,
                destination,
            }),
            (IpAddr::V6(source), IpAddr::V6(destination)) => Some(Addresses::V6 {
                source,
                destination,
            }),
            _ => None,
        }
    }

    /// Returns the source address.
    pub fn source(&self) -> IpAddr {
        match *self {
            Addresses::V4 { source, .. } => source.into(),
            Addresses::V6 { source, .. } => source.into(),
        }
    }

    /// Returns the destination address.
    pub fn destination(&self) -> IpAddr {
        match *self {
            Addresses::V4 { destination, .. } => destination.into(),
            Addresses::V6 { destination, .. } => destination.into(),
        }
    }

    /// Returns the length of the header that [`Header`] writes, in bytes.
    pub fn header_bytes(&self) -> usize {
        match self {
            Addresses::V4 { .. } => IPV4_HEADER_BYTES,
            Addresses::V6 { .. } => IPV6_HEADER_BYTES,
        }
    }
}

/// A received packet, with link padding cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Source and destination.
    pub addresses: Addresses,
    /// Protocol of the payload, such as [`TCP`]; for IPv6 that behind the extension headers.
    pub protocol: u8,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// DSCP and ECN: the type of service, or traffic class.
    pub traffic_class: u8,
    /// Payload of the packet.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Parses an IPv4 packet and verifies its header checksum. Options are skipped.
    #[inline]
    pub fn parse_v4(bytes: &'a [u8]) -> Result<Packet<'a>, ParseError> {
        let header = bytes
            .first_chunk::<IPV4_HEADER_BYTES>()
            .ok_or(ParseError::Truncated)?;
        let header_len = usize::from(header[0] & 0x0f) * 4;
        if header[0] >> 4 != 4 || header_len < IPV4_HEADER_BYTES {
            return Err(ParseError::BadIpHeader);
        }
        let total_len = match u16::from_be_bytes([header[2], header[3]]) {
            // GRO sets the length to zero when it merges beyond 64 KB.
            0 if bytes.len() > usize::from(u16::MAX) => bytes.len(),
            len => usize::from(len),
        };
        if total_len < header_len {
            return Err(ParseError::BadIpHeader);
        }
        let packet = bytes.get(..total_len).ok_or(ParseError::Truncated)?;
        let (whole_header, payload) = packet.split_at(header_len);
        // For a header without options, the length is a constant.
        let sum = match header_len {
            IPV4_HEADER_BYTES => checksum::of(header),
            _ => checksum::of(whole_header),
        };
        if sum != 0 {
            return Err(ParseError::BadIpChecksum);
        }
        // More fragments, or not the first one.
        if u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0 {
            return Err(ParseError::Fragment);
        }
        Ok(Packet {
            addresses: Addresses::V4 {
                source: Ipv4Addr::new(header[12], header[13], header[14], header[15]),
                destination: Ipv4Addr::new(header[16], header[17], header[18], header[19]),
            },
            protocol: header[9],
            ttl: header[8],
            traffic_class: header[1],
            payload,
        })
    }

    /// Parses an IPv6 packet and skips its extension headers.
    pub fn parse_v6(bytes: &'a [u8]) -> Result<Packet<'a>, ParseError> {
        let (header, rest) = bytes
            .split_first_chunk::<IPV6_HEADER_BYTES>()
            .ok_or(ParseError::Truncated)?;
        if header[0] >> 4 != 6 {
            return Err(ParseError::BadIpHeader);
        }
        let payload_len = match u16::from_be_bytes([header[4], header[5]]) {
            // A packet that GRO has merged beyond 64 KB is a jumbogram (RFC 2675).
            0 if rest.len() > usize::from(u16::MAX) => rest.len(),
            len => usize::from(len),
        };
        let payload = rest.get(..payload_len).ok_or(ParseError::Truncated)?;
        let (protocol, payload) = skip_extension_headers(header[6], payload)?;
        let address = |at: usize| -> Ipv6Addr {
            let mut octets = [0; 16];
            octets.copy_from_slice(&header[at..at + 16]);
            octets.into()
        };
        Ok(Packet {
            addresses: Addresses::V6 {
                source: address(8),
                destination: address(24),
            },
            protocol,
            ttl: header[7],
            traffic_class: header[0] << 4 | header[1] >> 4,
            payload,
        })
    }
}

/// Skips extension headers that a host processes (RFC 8200 §4): hop-by-hop and destination options,
/// routing headers without segments left, and the fragment header of a whole packet (RFC 6946).
fn skip_extension_headers(
    mut next_header: u8,
    mut payload: &[u8],
) -> Result<(u8, &[u8]), ParseError> {
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const FRAGMENT: u8 = 44;
    const DESTINATION_OPTIONS: u8 = 60;
    loop {
        if !matches!(
            next_header,
            HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION_OPTIONS
        ) {
            return Ok((next_header, payload));
        }
        let start = payload.first_chunk::<8>().ok_or(ParseError::Truncated)?;
        let len = match next_header {
            FRAGMENT => 8,
            _ => usize::from(start[1]) * 8 + 8,
        };
        let (header, rest) = payload.split_at_checked(len).ok_or(ParseError::Truncated)?;
        match next_header {
            FRAGMENT if u16::from_be_bytes([start[2], start[3]]) & 0xfff9 != 0 => {
                return Err(ParseError::Fragment);
            }
            // Segments left: the packet is on its way to another host.
            ROUTING if start[3] != 0 => return Err(ParseError::BadIpHeader),
            HOP_BY_HOP | DESTINATION_OPTIONS => check_options(&header[2..])?,
            _ => {}
        }
        next_header = start[0];
        payload = rest;
    }
}

/// Checks the options: the two highest bits of an unknown one decide whether it may be skipped (RFC
/// 8200 §4.2).
fn check_options(mut options: &[u8]) -> Result<(), ParseError> {
    const PAD1: u8 = 0;
    const JUMBO_PAYLOAD: u8 = 0xc2;
    loop {
        options = match *options {
            [] => return Ok(()),
            [PAD1, ref rest @ ..] => rest,
            [kind, len, ref rest @ ..] => {
                if kind & 0xc0 != 0 && kind != JUMBO_PAYLOAD {
                    return Err(ParseError::UnknownIpOption);
                }
                rest.get(usize::from(len)..)
                    .ok_or(ParseError::BadIpHeader)?
            }
            _ => return Err(ParseError::BadIpHeader),
        };
    }
}

/// The header of an outgoing packet: no options, no extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Source and destination.
    pub addresses: Addresses,
    /// Protocol of the payload, such as [`TCP`].
    pub protocol: u8,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// DSCP and ECN: the type of service, or traffic class.
    pub traffic_class: u8,
    /// IPv4 identification. Zero is fine, as [`Header::write`] forbids fragmentation (RFC 6864
    /// §4.1).
    pub identification: u16,
}

impl Header {
    /// Writes the header with length `payload_len` (bytes after this header) and checksum to the
    /// start of `buffer`; returns its length.
    ///
    /// # Panics
    /// If `buffer` is shorter than [`Addresses::header_bytes`].
    pub fn write(&self, payload_len: u16, buffer: &mut [u8]) -> usize {
        let len = self.write_without_length(buffer);
        match self.addresses {
            Addresses::V4 { .. } => {
                let total_len = payload_len.saturating_add(IPV4_HEADER_BYTES as u16);
                set_ipv4_length(&mut buffer[..IPV4_HEADER_BYTES], total_len);
            }
            Addresses::V6 { .. } => buffer[4..6].copy_from_slice(&payload_len.to_be_bytes()),
        }
        len
    }

    /// Writes the header with zeros for the length and IPv4's checksum.
    pub(crate) fn write_without_length(&self, buffer: &mut [u8]) -> usize {
        match self.addresses {
            Addresses::V4 {
                source,
                destination,
            } => {
                let [id_high, id_low] = self.identification.to_be_bytes();
                // Don't fragment: path MTU discovery (RFC 1191).
                let fixed = [
                    0x45,
                    self.traffic_class,
                    0,
                    0,
                    id_high,
                    id_low,
                    0x40,
                    0,
                    self.ttl,
                    self.protocol,
                    0,
                    0,
                ];
                let buffer = &mut buffer[..IPV4_HEADER_BYTES];
                buffer[..12].copy_from_slice(&fixed);
                buffer[12..16].copy_from_slice(&source.octets());
                buffer[16..20].copy_from_slice(&destination.octets());
                IPV4_HEADER_BYTES
            }
            Addresses::V6 {
                source,
                destination,
            } => {
                let header = &mut buffer[..IPV6_HEADER_BYTES];
                header[0] = 0x60 | self.traffic_class >> 4;
                header[1] = self.traffic_class << 4;
                header[2..6].fill(0);
                header[6] = self.protocol;
                header[7] = self.ttl;
                header[8..24].copy_from_slice(&source.octets());
                header[24..40].copy_from_slice(&destination.octets());
                IPV6_HEADER_BYTES
            }
        }
    }
}

/// Sets the total length of an IPv4 header and recomputes its checksum. `header` is exactly the
/// header.
pub(crate) fn set_ipv4_length(header: &mut [u8], total_len: u16) {
    header[2..4].copy_from_slice(&total_len.to_be_bytes());
    header[10..12].fill(0);
    let checksum = checksum::of(header);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
}
