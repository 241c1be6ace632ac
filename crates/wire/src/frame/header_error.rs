use std::fmt;

/// Reason why bytes are not the header of an outgoing TCP packet or UDP datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// Not Ethernet, then IPv4 without options or IPv6 without extension headers, then TCP, and
    /// nothing behind.
    NotTcp,
    /// Not Ethernet, then IPv4 without options or IPv6 without extension headers, then UDP, and
    /// nothing behind.
    NotUdp,
    /// The packet would be longer than IP, or a port that cuts superpackets, can carry.
    TooLong {
        /// Payload, in bytes.
        payload: usize,
    },
}

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HeaderError::NotTcp => {
                f.write_str("header is not exactly Ethernet, IPv4 or IPv6, and TCP")
            }
            HeaderError::NotUdp => {
                f.write_str("header is not exactly Ethernet, IPv4 or IPv6, and UDP")
            }
            HeaderError::TooLong { payload } => {
                write!(f, "{payload} bytes of payload do not fit into an IP packet")
            }
        }
    }
}

impl std::error::Error for HeaderError {}
