//! ARP packets: input, and requests (RFC 826, RFC 5227).

use std::net::{IpAddr, Ipv4Addr};

use wire::{arp, ethernet};

use super::{Neighbors, State};

/// How long a hardware address is kept against contradicting ARP packets: of two machines that
/// claim the same address, the first one wins.
const ARP_LOCK_US: u64 = 1_000_000;

impl Neighbors {
    /// An ARP packet has arrived. Returns the frame that answers it.
    pub(crate) fn on_arp(&mut self, now_us: u64, packet: &arp::Packet) -> Option<Vec<u8>> {
        let sender = IpAddr::V4(packet.sender);
        if ethernet::is_multicast(packet.sender_mac) {
            return None;
        }
        if self.is_own(sender) {
            if self.is_shared {
                return None;
            }
            self.on_claim(now_us, sender, packet.sender_mac);
            return None;
        }
        let for_us = self.is_own(packet.target.into());
        if self.is_on_link(sender) {
            // RFC 826: merge, and remember a host that asks for us, because we are going to answer.
            let asks_us = for_us && packet.operation == arp::Operation::Request;
            let answers_us = for_us && packet.operation == arp::Operation::Reply;
            self.learn_from_arp(now_us, sender, packet.sender_mac, answers_us, asks_us);
        }
        // Probes (sender unspecified, RFC 5227 §2.1.1) are answered like any other request.
        (for_us && !self.is_shared && packet.operation == arp::Operation::Request).then(|| {
            arp::Packet {
                operation: arp::Operation::Reply,
                sender_mac: self.mac,
                sender: packet.target,
                target_mac: packet.sender_mac,
                target: packet.sender,
            }
            .to_frame(packet.sender_mac)
        })
    }

    fn learn_from_arp(
        &mut self,
        now_us: u64,
        sender: IpAddr,
        mac: [u8; 6],
        answers_us: bool,
        asks_us: bool,
    ) {
        let Some(entry) = self.entries.get(&sender).copied() else {
            if asks_us {
                self.insert_stale(now_us, sender, mac);
            }
            return;
        };
        let known = !entry.state.is_incomplete();
        if known && mac != entry.mac && now_us < entry.learned_us + ARP_LOCK_US {
            return;
        }
        let asked = entry.state.timeout_us().is_some();
        if answers_us && asked {
            self.set_mac(now_us, sender, mac);
            self.set_state(sender, State::reachable(now_us));
        } else if !known || mac != entry.mac {
            // Unasked: believed, and verified when it is used.
            self.set_mac(now_us, sender, mac);
            self.set_state(sender, State::Stale);
        }
    }

    /// A question for `target`: to its last hardware address, or to the link.
    pub(super) fn arp_request(
        &self,
        sender: Ipv4Addr,
        target: Ipv4Addr,
        mac: Option<[u8; 6]>,
    ) -> Vec<u8> {
        let request = arp::Packet {
            operation: arp::Operation::Request,
            sender_mac: self.mac,
            sender,
            target_mac: [0; 6],
            target,
        };
        request.to_frame(mac.unwrap_or(ethernet::BROADCAST))
    }
}
