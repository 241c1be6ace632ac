//! The link that packets leave through, and how much fits into a SEND on it.

use port::Port;

/// A SEND has about so many bytes, at most. More would save commands, departures and rounds, and let one flow
/// hold up the decisions about itself: what is in a SEND has been decided.
const SEND_BYTES: usize = 256 << 10;

/// IPv6 and TCP headers with all options, in bytes.
const HEADERS_BYTES_MAX: usize = 40 + 60;

/// The link that packets leave through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Own hardware address.
    pub mac: [u8; 6],
    /// Largest IP packet on the wire, in bytes.
    pub mtu: usize,
    /// Largest IPv4 packet that is cut below, in bytes.
    pub ipv4_superpacket_max: usize,
    /// Largest IPv6 packet that is cut below, in bytes.
    pub ipv6_superpacket_max: usize,
}

impl Link {
    /// The link of a port.
    pub fn of(port: &impl Port) -> Link {
        Link {
            mac: port.mac(),
            mtu: port.mtu(),
            ipv4_superpacket_max: port.superpacket_max(false),
            ipv6_superpacket_max: port.superpacket_max(true),
        }
    }

    /// What fits into one SEND of a connection with packets of `mss` bytes: whole superpackets of whole
    /// packets.
    pub(super) fn limits(&self, ipv6: bool, mss: u16) -> tcp::Limits {
        let superpacket_max = match ipv6 {
            true => self.ipv6_superpacket_max,
            false => self.ipv4_superpacket_max,
        };
        let mss = usize::from(mss.max(1));
        let packets = superpacket_max.saturating_sub(HEADERS_BYTES_MAX) / mss;
        let superpacket = packets.max(1) * mss;
        let bytes = superpacket * (SEND_BYTES / superpacket).max(1);
        tcp::Limits {
            bytes_max: bytes.min(contract::limits::SEND_BYTES_MAX),
            pieces_max: contract::limits::SEGMENTS_MAX,
            // The host's own packets may carry them too.
            real_bytes_max: contract::limits::INLINE_BYTES_MAX.min(superpacket),
        }
    }
}
