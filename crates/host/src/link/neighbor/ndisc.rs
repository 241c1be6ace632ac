//! Messages of neighbour discovery: input, and solicitations (RFC 4861 §7.2).

use std::net::{IpAddr, Ipv6Addr};

use wire::frame::Icmp6Packet;
use wire::icmpv6::{Message, Neighbor};
use wire::{ethernet, icmpv6};

use super::{Neighbors, State};

impl Neighbors {
    /// True if the message is for [`Neighbors::on_ndisc`].
    pub(crate) fn takes(&self, packet: &Icmp6Packet<'_>) -> bool {
        matches!(packet.message, Message::Neighbor(_))
    }

    /// A message of neighbour discovery has arrived. Returns the frame that answers it.
    pub(crate) fn on_ndisc(&mut self, now_us: u64, packet: &Icmp6Packet<'_>) -> Option<Vec<u8>> {
        if let Message::Neighbor(Neighbor::Advertisement {
            target, target_mac, ..
        }) = packet.message
            && self.is_own(target.into())
        {
            if self.is_shared {
                return None;
            }
            self.on_claim(
                now_us,
                target.into(),
                target_mac.unwrap_or(packet.source_mac),
            );
            return None;
        }
        if self.is_own(packet.source.into()) {
            return None;
        }
        match packet.message {
            Message::Neighbor(Neighbor::Solicitation { target, source_mac }) if !self.is_shared => {
                self.on_solicitation(now_us, packet, target, source_mac)
            }
            Message::Neighbor(Neighbor::Advertisement {
                target,
                target_mac,
                solicited,
                override_cached,
                ..
            }) => {
                let target = IpAddr::V6(target);
                let target_mac = target_mac.filter(|mac| !ethernet::is_multicast(*mac));
                self.on_advertisement(now_us, target, target_mac, solicited, override_cached);
                None
            }
            _ => None,
        }
    }

    /// RFC 4861 §7.2.3 and §7.2.4.
    fn on_solicitation(
        &mut self,
        now_us: u64,
        packet: &Icmp6Packet<'_>,
        target: Ipv6Addr,
        source_mac: Option<[u8; 6]>,
    ) -> Option<Vec<u8>> {
        let link_source = source_mac.unwrap_or(packet.source_mac);
        if !self.is_own(target.into()) || ethernet::is_multicast(link_source) {
            return None;
        }
        if packet.source.is_unspecified() {
            // Another machine probes for duplicates (RFC 4862 §5.4.3): the answer goes to all
            // nodes.
            return Some(self.unsolicited_advertisement(target));
        }
        let advertisement = Neighbor::Advertisement {
            target,
            target_mac: Some(self.mac),
            router: false,
            solicited: true,
            override_cached: true,
        };
        let answer =
            icmpv6::neighbor_frame(self.mac, link_source, target, packet.source, &advertisement);
        let source = IpAddr::V6(packet.source);
        if let Some(mac) = source_mac
            && self.is_on_link(source)
        {
            match self.entries.get(&source) {
                None => self.insert_stale(now_us, source, mac),
                Some(entry) if entry.state.is_incomplete() || entry.mac != mac => {
                    self.set_mac(now_us, source, mac);
                    self.set_state(source, State::Stale);
                }
                Some(_) => {}
            }
        }
        Some(answer)
    }

    /// RFC 4861 §7.2.5.
    fn on_advertisement(
        &mut self,
        now_us: u64,
        target: IpAddr,
        target_mac: Option<[u8; 6]>,
        solicited: bool,
        override_cached: bool,
    ) {
        let Some(entry) = self.entries.get(&target).copied() else {
            return;
        };
        if entry.state.is_incomplete() {
            let Some(mac) = target_mac else { return };
            self.set_mac(now_us, target, mac);
            let state = if solicited {
                State::reachable(now_us)
            } else {
                State::Stale
            };
            return self.set_state(target, state);
        }
        let changed = target_mac.filter(|mac| *mac != entry.mac);
        match changed {
            Some(_) if !override_cached => {
                if matches!(entry.state, State::Reachable { .. }) {
                    self.set_state(target, State::Stale);
                }
            }
            Some(mac) => {
                self.set_mac(now_us, target, mac);
                let state = if solicited {
                    State::reachable(now_us)
                } else {
                    State::Stale
                };
                self.set_state(target, state);
            }
            None if solicited => self.set_state(target, State::reachable(now_us)),
            None => {}
        }
    }

    /// A question for `target`: to its last hardware address, or to the link.
    pub(super) fn solicitation(
        &self,
        source: Ipv6Addr,
        target: Ipv6Addr,
        mac: Option<[u8; 6]>,
    ) -> Vec<u8> {
        let group = icmpv6::solicited_node(target);
        let (destination_mac, destination) = match mac {
            Some(mac) => (mac, target),
            None => (ethernet::multicast_mac(group), group),
        };
        let question = Neighbor::Solicitation {
            target,
            source_mac: Some(self.mac),
        };
        icmpv6::neighbor_frame(self.mac, destination_mac, source, destination, &question)
    }
}
