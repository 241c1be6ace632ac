//! The link that packets leave through, and the size of a SEND on it.

use netdev::{Port, SendError, Superpacket};

use crate::counters::Counters;

/// Approximate maximum of bytes in a SEND. More would save commands, departures and rounds, but one
/// flow would delay decisions about itself: an issued SEND cannot be changed.
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
    /// Largest IPv4 superpacket that the link cuts, in bytes.
    pub ipv4_superpacket_max: usize,
    /// Largest IPv6 superpacket that the link cuts, in bytes.
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

    /// Largest segment of a connection. RFC 9293 §3.7.1: the MSS counts neither IP nor TCP options.
    pub(crate) fn mss(&self, ipv6: bool) -> u16 {
        let headers = if ipv6 { 60 } else { 40 };
        self.mtu.saturating_sub(headers).clamp(64, 65_495) as u16
    }

    /// The limits of one SEND of a connection with packets of `mss` bytes: whole superpackets of
    /// whole packets.
    pub(crate) fn limits(&self, ipv6: bool, mss: u16) -> tcp::Limits {
        let superpacket_max = if ipv6 {
            self.ipv6_superpacket_max
        } else {
            self.ipv4_superpacket_max
        };
        let mss = usize::from(mss.max(1));
        let packets = superpacket_max.saturating_sub(HEADERS_BYTES_MAX) / mss;
        let superpacket = packets.max(1) * mss;
        let bytes = superpacket * (SEND_BYTES / superpacket).max(1);
        tcp::Limits {
            bytes_max: bytes.min(contract::limits::SEND_BYTES_MAX),
            pieces_max: contract::limits::SEGMENTS_MAX,
            // The host's own packets may carry real bytes too.
            real_bytes_max: contract::limits::INLINE_BYTES_MAX.min(superpacket),
            direct_bytes_max: superpacket,
        }
    }
}

/// Sends a frame, or counts it as dropped, as links do.
pub(crate) fn send_frame<P: Port>(counters: &mut Counters, port: &mut P, packet: &Superpacket<'_>) {
    match port.send(packet) {
        Ok(()) => counters.packets_sent += 1,
        Err(SendError::WouldBlock | SendError::Dropped) => counters.packets_dropped += 1,
        Err(SendError::Failed(error)) => {
            counters.packets_dropped += 1;
            tracing::debug!(%error, "a frame could not be sent");
        }
    }
}
