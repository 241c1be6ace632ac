use std::fmt;

/// Reason for dropping a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParseError {
    /// The frame is shorter than the lengths in its headers.
    Truncated,
    /// The IP header contradicts itself or has the wrong version.
    BadIpHeader,
    /// The checksum of the IPv4 header does not match.
    BadIpChecksum,
    /// A fragment. Splitway does not reassemble fragments: RFC 8900 §3 lists the reasons, from
    /// overlaps and identifications that repeat to the memory that a flood of first fragments
    /// binds. TCP needs none: MSS and "don't fragment".
    Fragment,
    /// An IPv6 option whose type requires discarding the packet (RFC 8200 §4.2).
    UnknownIpOption,
    /// An address that such a packet must not come from or go to (RFC 1122 §3.2.1.3).
    BadAddress,
    /// The TCP header is longer than the segment or shorter than 20 bytes.
    BadTcpHeader,
    /// The TCP checksum does not match.
    BadTcpChecksum,
    /// The UDP datagram is longer than the packet, or shorter than its header.
    BadUdpHeader,
    /// The UDP checksum does not match, or there is none where there must be one.
    BadUdpChecksum,
    /// An ARP packet that is not about Ethernet and IPv4, or does not decode.
    BadArp,
    /// An ICMP or ICMPv6 message that is too short, or breaks a rule of RFC 4861 §7.1.
    BadIcmp,
    /// The checksum of an ICMP or ICMPv6 message does not match.
    BadIcmpChecksum,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ParseError::Truncated => "frame shorter than its headers say",
            ParseError::BadIpHeader => "malformed IP header",
            ParseError::BadIpChecksum => "wrong IPv4 header checksum",
            ParseError::Fragment => "IP fragment",
            ParseError::UnknownIpOption => "unknown IPv6 option that must not be skipped",
            ParseError::BadAddress => "address that is not unicast",
            ParseError::BadTcpHeader => "malformed TCP header",
            ParseError::BadTcpChecksum => "wrong TCP checksum",
            ParseError::BadUdpHeader => "malformed UDP header",
            ParseError::BadUdpChecksum => "wrong UDP checksum",
            ParseError::BadArp => "malformed ARP packet",
            ParseError::BadIcmp => "malformed ICMP message",
            ParseError::BadIcmpChecksum => "wrong ICMP checksum",
        })
    }
}

impl std::error::Error for ParseError {}
