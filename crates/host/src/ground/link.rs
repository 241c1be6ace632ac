//! The link that packets leave through, and the size of a SEND on it.

use netdev::{LinkChange, Port};
use tcp::Instant;

use crate::link::mac::format_mac;
use crate::stack::Stack;
use crate::stack::queue_dirty;

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

impl Stack {
    /// The link has changed to `link`. Open connections adopt a smaller MTU; a larger one is for
    /// new connections, since the MSS is negotiated once.
    pub fn on_link(&mut self, now_us: u64, link: Link, change: LinkChange) {
        let before = std::mem::replace(&mut self.ground.link, link);
        self.ground.counters.link_changes += 1;
        let mac = format_mac(link.mac);
        let mtu = link.mtu;
        match change {
            LinkChange {
                went_down: true, ..
            } => tracing::warn!(mac, mtu, "the link is down"),
            LinkChange { came_up: true, .. } => tracing::warn!(mac, mtu, "the link is up again"),
            _ => tracing::warn!(mac, mtu, "the link has changed"),
        }
        if link.mtu != before.mtu {
            self.on_mtu(now_us);
        }
        if link.mac != before.mac {
            self.ground.neighbors.set_own_mac(link.mac);
            for handle in self.tcp.connections.handles() {
                if let Some(entry) = self.tcp.connections.get_mut(handle) {
                    entry.prefix = None;
                }
            }
        }
        if link.mac != before.mac || change.came_up {
            self.ground.neighbors.announce(now_us);
        }
    }

    fn on_mtu(&mut self, now_us: u64) {
        let now = Instant::from_us(now_us);
        let mss = [self.ground.link.mss(false), self.ground.link.mss(true)];
        (self.tcp.config_v4.mss, self.tcp.config_v6.mss) = (mss[0], mss[1]);
        for handle in self.tcp.connections.handles() {
            if let Some(entry) = self.tcp.connections.get_mut(handle)
                && !entry.route.is_looped()
            {
                let ipv6 = entry.tuple.local.is_ipv6();
                if entry.tcp.on_link_mss(now, mss[usize::from(ipv6)]) {
                    queue_dirty(&mut self.tcp.dirty, entry);
                }
            }
        }
    }
}
