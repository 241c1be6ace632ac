//! Announcements: the hardware address of each own address, and the multicast groups that the stack
//! listens to.
//!
//! An address that another machine had before is then found at once, where neighbours would
//! otherwise send to that machine until they doubt it, some nine seconds.

use std::net::{IpAddr, Ipv6Addr};

use wire::{ethernet, icmpv6};

use super::Neighbors;

/// How often an address is announced: `MAX_NEIGHBOR_ADVERTISEMENT` of RFC 4861 §10, one more than
/// `ANNOUNCE_NUM` of RFC 5227 §1.1 and than the robustness variable of MLD (RFC 3810 §9.1), since
/// one may be lost.
const ANNOUNCEMENTS: u8 = 3;

/// Time between two announcements, in microseconds: `ANNOUNCE_INTERVAL` of RFC 5227 §1.1.
const INTERVAL_US: u64 = 2_000_000;

/// Announcements that are still to be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Announcements {
    left: u8,
    pub(super) next_us: u64,
}

impl Neighbors {
    /// Announces all own addresses, now and twice later: [`Neighbors::poll_frame`] has something to
    /// send.
    pub(crate) fn announce(&mut self, now_us: u64) {
        if self.is_shared {
            return;
        }
        self.announcements = Some(Announcements {
            left: ANNOUNCEMENTS,
            next_us: now_us,
        });
        self.go_on_announcing(now_us);
    }

    /// Changes the link's own hardware address. Queued frames still carry the previous one; their
    /// requests are repeated.
    pub(crate) fn set_own_mac(&mut self, mac: [u8; 6]) {
        self.mac = mac;
        self.frames.clear();
    }

    /// Makes the announcement that is due, if one is.
    pub(super) fn go_on_announcing(&mut self, now_us: u64) {
        let Some(Announcements { left, .. }) = self.announcements.filter(|it| it.next_us <= now_us)
        else {
            return;
        };
        self.announcements = (left > 1).then_some(Announcements {
            left: left - 1,
            next_us: now_us + INTERVAL_US,
        });
        if let Some(report) = self.group_report() {
            self.frames.push_back(report);
        }
        for (address, _) in self.addresses.clone() {
            let announcement = self.announcement(address);
            self.frames.push_back(announcement);
        }
    }

    /// Builds the announcement of the own `address`.
    pub(super) fn announcement(&self, address: IpAddr) -> Vec<u8> {
        match address {
            // RFC 5227 §2.3: an ARP announcement is a request for the sender's own address.
            IpAddr::V4(address) => self.arp_request(address, address, None),
            // RFC 4861 §7.2.6
            IpAddr::V6(address) => self.unsolicited_advertisement(address),
        }
    }

    /// The report of MLD that has switches pass on solicitations for own addresses (RFC 3810 §5.2),
    /// if there are any.
    fn group_report(&self) -> Option<Vec<u8>> {
        let own = self
            .addresses
            .iter()
            .filter_map(|(address, _)| match address {
                IpAddr::V6(address) => Some(*address),
                IpAddr::V4(_) => None,
            });
        let mut groups: Vec<Ipv6Addr> = own.clone().map(icmpv6::solicited_node).collect();
        groups.sort_unstable();
        groups.dedup();
        // A report comes from a link-local address, or without one from the unspecified one (RFC
        // 3590 §4).
        let source = own.clone().find(Ipv6Addr::is_unicast_link_local);
        let source = source.unwrap_or(Ipv6Addr::UNSPECIFIED);
        (!groups.is_empty()).then(|| icmpv6::group_report_frame(self.mac, source, &groups))
    }

    /// An advertisement to all nodes.
    pub(super) fn unsolicited_advertisement(&self, target: Ipv6Addr) -> Vec<u8> {
        let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
        icmpv6::neighbor_frame(
            self.mac,
            ethernet::multicast_mac(all_nodes),
            target,
            all_nodes,
            &icmpv6::Neighbor::Advertisement {
                target,
                target_mac: Some(self.mac),
                router: false,
                solicited: false,
                override_cached: true,
            },
        )
    }
}
