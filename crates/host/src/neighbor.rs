//! Neighbours: next hops, and their hardware addresses by ARP (RFC 826, RFC 5227) and neighbour
//! discovery (RFC 4861).
//!
//! [`Neighbors::next_hop`] says whom to send to, [`Neighbors::resolve`] to which hardware address. ARP
//! follows the state machine of RFC 4861 §7.3 as well:
//!
//! ```text
//!             resolve             answer                30 s
//!  (unknown) ────────▶ Incomplete ──────▶ Reachable ───────────▶ Stale ◀──── somebody asks for us
//!                          │ 3 s            ▲    ▲ confirm         │ resolve
//!                          ▼                │    └──────── Delay ◀─┘
//!                        Failed             │ answer         │ 5 s
//!                          │ 3 s            └────────────── Probe ──────▶ (unknown)
//!                          ▼                                       3 s
//!                      (unknown)
//! ```
//!
//! Everybody on the link can write into this cache. So it is bounded; what others have made us remember
//! gives way before what we use; whoever waits for an answer hears of it, or of its absence; and a changed
//! hardware address is verified before it lasts.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wire::frame::Icmp6Packet;
use wire::icmpv6::{Message, Neighbor};
use wire::{arp, ethernet, icmpv6};

/// Neighbours remembered at once.
const ENTRIES_MAX: usize = 1024;
/// Neighbours looked for at once; a flood of connections from made-up addresses on the link must not
/// push out those that exist.
const INCOMPLETE_MAX: usize = 256;
/// `REACHABLE_TIME` of RFC 4861 §10.
const REACHABLE_US: u64 = 30_000_000;
/// `DELAY_FIRST_PROBE_TIME`: how long TCP may prove that the neighbour is there before it is asked.
const DELAY_US: u64 = 5_000_000;
/// `RETRANS_TIMER`.
const RETRANSMIT_US: u64 = 1_000_000;
/// `MAX_MULTICAST_SOLICIT` and `MAX_UNICAST_SOLICIT`.
const PROBES_MAX: u8 = 3;
/// How long nobody is asked for a neighbour that has not answered.
const FAILED_US: u64 = 3_000_000;
/// How long a connection goes by what it was told.
const ROUTE_US: u64 = 1_000_000;
/// How long a hardware address is kept against ARP packets that say otherwise: of two that claim the
/// same address, the first one wins.
const ARP_LOCK_US: u64 = 1_000_000;

const _: () = assert!(
    INCOMPLETE_MAX < ENTRIES_MAX,
    "known neighbours have a part of their own"
);

/// Where to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resolution {
    /// To this hardware address.
    Known([u8; 6]),
    /// The neighbour has been asked. Ask again after [`Neighbors::on_arp`], [`Neighbors::on_ndisc`] or
    /// [`Neighbors::on_timeout`].
    Pending,
    /// It has not answered, there is no way to it, or too many others are being asked for.
    Unreachable,
}

/// The way that packets to one destination take. It remembers what [`Neighbors::resolve`] has said, so that packets
/// in a row cost no look-up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    next_hop: IpAddr,
    mac: [u8; 6],
    /// `mac` is good until then, unless the neighbours have changed since.
    until_us: u64,
    changes: u32,
    /// TCP has heard that packets arrive.
    confirmed: bool,
}

impl Route {
    /// [`Neighbors::confirm`], when next it is asked.
    pub(crate) fn confirm(&mut self) {
        self.confirmed = true;
    }
}

/// The neighbours of one link.
#[derive(Debug)]
pub(crate) struct Neighbors {
    mac: [u8; 6],
    /// Own addresses with the length of the on-link prefix, in bits.
    addresses: Vec<(IpAddr, u8)>,
    gateways: Vec<IpAddr>,
    /// Ordered, so that a simulation repeats itself.
    entries: BTreeMap<IpAddr, Entry>,
    /// Counts the hardware addresses learned and forgotten, and wraps.
    changes: u32,
    /// How many of them are incomplete or have failed.
    incomplete: usize,
    /// How many of these have failed.
    failed: usize,
    /// Probes to be sent.
    frames: VecDeque<Vec<u8>>,
    /// No entry's timer expires before.
    next_timeout_us: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    state: State,
    /// Unknown while incomplete and after failure.
    mac: [u8; 6],
    /// When `mac` was last set.
    learned_us: u64,
    /// When the entry was last resolved; `None` if it never was.
    used_us: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Incomplete { probes: u8, retry_us: u64 },
    Failed { until_us: u64 },
    Reachable { until_us: u64 },
    Stale,
    Delay { until_us: u64 },
    Probe { probes: u8, retry_us: u64 },
}

impl State {
    fn reachable(now_us: u64) -> State {
        State::Reachable {
            until_us: now_us + REACHABLE_US,
        }
    }

    fn is_incomplete(self) -> bool {
        matches!(self, State::Incomplete { .. }) || self.is_failed()
    }

    fn is_failed(self) -> bool {
        matches!(self, State::Failed { .. })
    }

    /// When [`Neighbors::on_timeout`] has something to do. The others expire when they are looked at.
    fn timeout_us(self) -> Option<u64> {
        match self {
            State::Incomplete { retry_us, .. } | State::Probe { retry_us, .. } => Some(retry_us),
            State::Delay { until_us } => Some(until_us),
            State::Failed { .. } | State::Reachable { .. } | State::Stale => None,
        }
    }
}

impl Neighbors {
    /// A link on which we have hardware address `mac`, own `addresses` with on-link prefix lengths in
    /// bits, and `gateways` for what is not on the link, at most one per address family.
    pub(crate) fn new(mac: [u8; 6], addresses: &[(IpAddr, u8)], gateways: &[IpAddr]) -> Neighbors {
        Neighbors {
            mac,
            addresses: addresses.to_vec(),
            gateways: gateways.to_vec(),
            entries: BTreeMap::new(),
            changes: 0,
            incomplete: 0,
            failed: 0,
            frames: VecDeque::new(),
            next_timeout_us: None,
        }
    }

    /// Whom to hand a packet for `destination`: itself if it is on the link, else the gateway. Without a
    /// gateway, `destination` again, which [`Neighbors::resolve`] then calls unreachable.
    pub(crate) fn next_hop(&self, destination: IpAddr) -> IpAddr {
        if self.is_on_link(destination) {
            return destination;
        }
        self.gateways
            .iter()
            .copied()
            .find(|gateway| gateway.is_ipv4() == destination.is_ipv4())
            .unwrap_or(destination)
    }

    /// The way to `destination`.
    pub(crate) fn route(&self, destination: IpAddr) -> Route {
        Route {
            next_hop: self.next_hop(destination),
            mac: [0; 6],
            until_us: 0,
            changes: 0,
            confirmed: false,
        }
    }

    /// The hardware address at the other end of a way: [`Neighbors::resolve`] once in a while.
    pub(crate) fn resolve_route(&mut self, now_us: u64, route: &mut Route) -> Resolution {
        if now_us < route.until_us && route.changes == self.changes {
            return Resolution::Known(route.mac);
        }
        if std::mem::take(&mut route.confirmed) {
            self.confirm(now_us, route.next_hop);
        }
        let resolution = self.resolve(now_us, route.next_hop);
        if let Resolution::Known(mac) = resolution {
            route.mac = mac;
            route.until_us = now_us + ROUTE_US;
            route.changes = self.changes;
        }
        resolution
    }

    /// The hardware address of a next hop. Asks for it if need be: [`Neighbors::poll_frame`] then has
    /// something to send.
    pub(crate) fn resolve(&mut self, now_us: u64, next_hop: IpAddr) -> Resolution {
        if let Some(entry) = self.entries.get_mut(&next_hop) {
            entry.used_us = Some(now_us);
            match entry.state {
                State::Incomplete { .. } => return Resolution::Pending,
                State::Failed { until_us } if now_us < until_us => return Resolution::Unreachable,
                State::Failed { .. } => self.remove(next_hop),
                State::Reachable { until_us } if now_us < until_us => {
                    return Resolution::Known(entry.mac);
                }
                State::Reachable { .. } | State::Stale => {
                    // RFC 4861 §7.3.3: the packet goes to where the neighbour was last.
                    let mac = entry.mac;
                    let until_us = now_us + DELAY_US;
                    self.set_state(next_hop, State::Delay { until_us });
                    return Resolution::Known(mac);
                }
                State::Delay { .. } | State::Probe { .. } => return Resolution::Known(entry.mac),
            }
        }
        if !self.is_on_link(next_hop) || self.is_own(next_hop) {
            return Resolution::Unreachable;
        }
        if self.incomplete >= INCOMPLETE_MAX && !self.forget_failed() {
            return Resolution::Unreachable;
        }
        let entry = Entry {
            state: State::Incomplete {
                probes: 1,
                retry_us: now_us + RETRANSMIT_US,
            },
            mac: [0; 6],
            learned_us: now_us,
            used_us: Some(now_us),
        };
        self.insert(next_hop, entry);
        self.ask(next_hop, None);
        Resolution::Pending
    }

    /// TCP has heard from a peer behind `next_hop` that our packets arrive: no need to ask (RFC 4861
    /// §7.3.1).
    pub(crate) fn confirm(&mut self, now_us: u64, next_hop: IpAddr) {
        if let Some(entry) = self.entries.get_mut(&next_hop)
            && !entry.state.is_incomplete()
        {
            entry.state = State::reachable(now_us);
        }
    }

    /// An ARP packet has arrived. Returns the frame that answers it.
    pub(crate) fn on_arp(&mut self, now_us: u64, packet: &arp::Packet) -> Option<Vec<u8>> {
        let sender = IpAddr::V4(packet.sender);
        if ethernet::is_multicast(packet.sender_mac) || self.is_own(sender) {
            return None;
        }
        let for_us = self.is_own(packet.target.into());
        if self.is_on_link(sender) {
            // RFC 826: merge, and remember whoever asks for us, because we are going to answer.
            let asks_us = for_us && packet.operation == arp::Operation::Request;
            let answers_us = for_us && packet.operation == arp::Operation::Reply;
            self.learn_from_arp(now_us, sender, packet.sender_mac, answers_us, asks_us);
        }
        // Probes (sender unspecified, RFC 5227 §2.1.1) are answered like any other request.
        (for_us && packet.operation == arp::Operation::Request).then(|| {
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

    /// True if the message is for [`Neighbors::on_ndisc`].
    pub(crate) fn takes(&self, packet: &Icmp6Packet<'_>) -> bool {
        matches!(packet.message, Message::Neighbor(_))
    }

    /// A message of neighbour discovery has arrived. Returns the frame that answers it.
    pub(crate) fn on_ndisc(&mut self, now_us: u64, packet: &Icmp6Packet<'_>) -> Option<Vec<u8>> {
        if self.is_own(packet.source.into()) {
            return None;
        }
        match packet.message {
            Message::Neighbor(Neighbor::Solicitation { target, source_mac }) => {
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
        let advertisement = |solicited| Neighbor::Advertisement {
            target,
            target_mac: Some(self.mac),
            router: false,
            solicited,
            override_cached: true,
        };
        if packet.source.is_unspecified() {
            // Somebody detects duplicates (RFC 4862 §5.4.3): tell all that the address is taken.
            let everybody = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
            return Some(icmpv6::neighbor_frame(
                self.mac,
                ethernet::multicast_mac(everybody),
                target,
                everybody,
                &advertisement(false),
            ));
        }
        let answer = icmpv6::neighbor_frame(
            self.mac,
            link_source,
            target,
            packet.source,
            &advertisement(true),
        );
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
            let state = match solicited {
                true => State::reachable(now_us),
                false => State::Stale,
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
                let state = match solicited {
                    true => State::reachable(now_us),
                    false => State::Stale,
                };
                self.set_state(target, state);
            }
            None if solicited => self.set_state(target, State::reachable(now_us)),
            None => {}
        }
    }

    /// The next frame to send, if there is one: a question to a neighbour.
    pub(crate) fn poll_frame(&mut self) -> Option<Vec<u8>> {
        self.frames.pop_front()
    }

    /// When to call [`Neighbors::on_timeout`], in microseconds. It may turn out to be too early.
    pub(crate) fn next_timeout_us(&self) -> Option<u64> {
        self.next_timeout_us
    }

    /// Asks again, or gives up, where it is time to.
    pub(crate) fn on_timeout(&mut self, now_us: u64) {
        let due: Vec<IpAddr> = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.state.timeout_us().is_some_and(|at| at <= now_us))
            .map(|(address, _)| *address)
            .collect();
        for address in due {
            self.on_entry_timeout(now_us, address);
        }
        self.next_timeout_us = self
            .entries
            .values()
            .filter_map(|entry| entry.state.timeout_us())
            .min();
    }

    fn on_entry_timeout(&mut self, now_us: u64, address: IpAddr) {
        let Some(entry) = self.entries.get(&address).copied() else {
            return;
        };
        let retry_us = now_us + RETRANSMIT_US;
        match entry.state {
            State::Incomplete { probes, .. } if probes < PROBES_MAX => {
                let probes = probes + 1;
                self.set_state(address, State::Incomplete { probes, retry_us });
                self.ask(address, None);
            }
            State::Incomplete { .. } => {
                let until_us = now_us + FAILED_US;
                self.set_state(address, State::Failed { until_us });
            }
            State::Delay { .. } => {
                self.set_state(
                    address,
                    State::Probe {
                        probes: 1,
                        retry_us,
                    },
                );
                self.ask(address, Some(entry.mac));
            }
            State::Probe { probes, .. } if probes < PROBES_MAX => {
                let probes = probes + 1;
                self.set_state(address, State::Probe { probes, retry_us });
                self.ask(address, Some(entry.mac));
            }
            // RFC 4861 §7.3.3: forgotten, so that the next packet asks the whole link.
            State::Probe { .. } => self.remove(address),
            State::Failed { .. } | State::Reachable { .. } | State::Stale => {}
        }
    }

    /// Queues a question for `target`: to its last hardware address, or to the link.
    fn ask(&mut self, target: IpAddr, mac: Option<[u8; 6]>) {
        let frame = match (target, self.source_for(target)) {
            (IpAddr::V4(target), Some(IpAddr::V4(sender))) => arp::Packet {
                operation: arp::Operation::Request,
                sender_mac: self.mac,
                sender,
                target_mac: [0; 6],
                target,
            }
            .to_frame(mac.unwrap_or(ethernet::BROADCAST)),
            (IpAddr::V6(target), Some(IpAddr::V6(source))) => {
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
            // No address of that family: nobody could answer us.
            _ => return,
        };
        // One question per entry at most is under way; a full queue loses one, which is asked again.
        if self.frames.len() < ENTRIES_MAX {
            self.frames.push_back(frame);
        }
    }

    /// Our address in the prefix of `target`, else any of its family.
    fn source_for(&self, target: IpAddr) -> Option<IpAddr> {
        let own = |(address, _): &(IpAddr, u8)| *address;
        let family = |address: &IpAddr| address.is_ipv4() == target.is_ipv4();
        self.addresses
            .iter()
            .find(|(address, prefix_len)| in_prefix(*address, *prefix_len, target))
            .map(own)
            .or_else(|| self.addresses.iter().map(own).find(family))
    }

    fn is_own(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|(own, _)| *own == address)
    }

    /// True if packets for `address` go to itself.
    fn is_on_link(&self, address: IpAddr) -> bool {
        let host = match address {
            IpAddr::V4(address) => !(address.is_multicast() || address.is_unspecified()),
            IpAddr::V6(address) => !(address.is_multicast() || address.is_unspecified()),
        };
        let link_local = matches!(address, IpAddr::V6(address) if address.is_unicast_link_local());
        let near = self.addresses.iter().any(|(own, prefix_len)| {
            in_prefix(*own, *prefix_len, address) && !is_broadcast(*prefix_len, address)
        });
        host && (link_local || near || self.gateways.contains(&address))
    }

    fn insert_stale(&mut self, now_us: u64, address: IpAddr, mac: [u8; 6]) {
        let entry = Entry {
            state: State::Stale,
            mac,
            learned_us: now_us,
            used_us: None,
        };
        self.insert(address, entry);
    }

    fn insert(&mut self, address: IpAddr, entry: Entry) {
        if self.entries.len() >= ENTRIES_MAX {
            self.make_room();
        }
        self.entries.insert(address, entry);
        self.incomplete += usize::from(entry.state.is_incomplete());
        self.failed += usize::from(entry.state.is_failed());
        self.note_timeout(entry.state);
    }

    /// Forgets a neighbour: of those never used the oldest, else the one used longest ago. Those being
    /// asked for stay, because who waits for one must hear of its end; they are never all there is.
    fn make_room(&mut self) {
        let victim = self
            .entries
            .iter()
            .filter(|(_, entry)| !matches!(entry.state, State::Incomplete { .. }))
            .min_by_key(|(_, entry)| (entry.used_us, entry.learned_us))
            .map(|(address, _)| *address);
        if let Some(address) = victim {
            self.remove(address);
        }
    }

    /// Forgets the neighbour that failed longest ago. False if none has. Whoever gets the place keeps it for
    /// [`PROBES_MAX`] questions, so that a flood causes few searches.
    fn forget_failed(&mut self) -> bool {
        if self.failed == 0 {
            return false;
        }
        let victim = self
            .entries
            .iter()
            .filter_map(|(address, entry)| match entry.state {
                State::Failed { until_us } => Some((until_us, *address)),
                _ => None,
            })
            .min();
        if let Some((_, address)) = victim {
            self.remove(address);
        }
        victim.is_some()
    }

    fn remove(&mut self, address: IpAddr) {
        if let Some(entry) = self.entries.remove(&address) {
            self.changes = self.changes.wrapping_add(1);
            self.incomplete -= usize::from(entry.state.is_incomplete());
            self.failed -= usize::from(entry.state.is_failed());
        }
    }

    fn set_mac(&mut self, now_us: u64, address: IpAddr, mac: [u8; 6]) {
        if let Some(entry) = self.entries.get_mut(&address) {
            entry.mac = mac;
            entry.learned_us = now_us;
            self.changes = self.changes.wrapping_add(1);
        }
    }

    fn set_state(&mut self, address: IpAddr, state: State) {
        if let Some(entry) = self.entries.get_mut(&address) {
            self.incomplete -= usize::from(entry.state.is_incomplete());
            self.incomplete += usize::from(state.is_incomplete());
            self.failed -= usize::from(entry.state.is_failed());
            self.failed += usize::from(state.is_failed());
            entry.state = state;
            self.changes = self.changes.wrapping_add(u32::from(state.is_incomplete()));
            self.note_timeout(state);
        }
    }

    fn note_timeout(&mut self, state: State) {
        if let Some(at) = state.timeout_us() {
            let next = self.next_timeout_us.map_or(at, |next| next.min(at));
            self.next_timeout_us = Some(next);
        }
    }
}

/// True if `address` shares the first `prefix_len` bits with `own`.
fn in_prefix(own: IpAddr, prefix_len: u8, address: IpAddr) -> bool {
    let prefix_len = u32::from(prefix_len);
    match (own, address) {
        (IpAddr::V4(own), IpAddr::V4(address)) => {
            let differing = own.to_bits() ^ address.to_bits();
            differing.leading_zeros() >= prefix_len.min(Ipv4Addr::BITS)
        }
        (IpAddr::V6(own), IpAddr::V6(address)) => {
            let differing = own.to_bits() ^ address.to_bits();
            differing.leading_zeros() >= prefix_len.min(Ipv6Addr::BITS)
        }
        _ => false,
    }
}

/// True for the IPv4 address that means all hosts of its prefix (RFC 1122 §3.2.1.3); prefixes of 31 and
/// 32 bits have none (RFC 3021).
fn is_broadcast(prefix_len: u8, address: IpAddr) -> bool {
    let IpAddr::V4(address) = address else {
        return false;
    };
    let host_bits = Ipv4Addr::BITS.saturating_sub(prefix_len.into());
    host_bits >= 2 && address.to_bits().trailing_ones() >= host_bits
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use wire::frame::{self, Received};

    const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const MAC_A: [u8; 6] = [2, 0, 0, 0, 0, 0xa];
    const MAC_B: [u8; 6] = [2, 0, 0, 0, 0, 0xb];
    const OUR_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
    const A_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 10);
    const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
    const ELSEWHERE_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
    const OUR_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);
    const A_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0x12, 0x3456);
    const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0xa);
    const SECOND: u64 = 1_000_000;

    fn neighbors() -> Neighbors {
        let addresses = [(OUR_V4.into(), 24), (OUR_V6.into(), 64)];
        Neighbors::new(OUR_MAC, &addresses, &[GATEWAY_V4.into()])
    }

    fn arp(
        operation: arp::Operation,
        mac: [u8; 6],
        sender: Ipv4Addr,
        target: Ipv4Addr,
    ) -> arp::Packet {
        arp::Packet {
            operation,
            sender_mac: mac,
            sender,
            target_mac: [0; 6],
            target,
        }
    }

    fn request(mac: [u8; 6], sender: Ipv4Addr, target: Ipv4Addr) -> arp::Packet {
        arp(arp::Operation::Request, mac, sender, target)
    }

    fn reply(mac: [u8; 6], sender: Ipv4Addr) -> arp::Packet {
        arp(arp::Operation::Reply, mac, sender, OUR_V4)
    }

    fn ndisc(source: Ipv6Addr, message: Neighbor) -> Icmp6Packet<'static> {
        Icmp6Packet {
            source_mac: MAC_A,
            source,
            destination: OUR_V6,
            message: Message::Neighbor(message),
        }
    }

    fn solicitation(source: Ipv6Addr, source_mac: Option<[u8; 6]>) -> Icmp6Packet<'static> {
        let target = OUR_V6;
        ndisc(source, Neighbor::Solicitation { target, source_mac })
    }

    fn advertisement(
        target_mac: Option<[u8; 6]>,
        solicited: bool,
        override_cached: bool,
    ) -> Icmp6Packet<'static> {
        let message = Neighbor::Advertisement {
            target: A_V6,
            target_mac,
            router: false,
            solicited,
            override_cached,
        };
        ndisc(A_V6, message)
    }

    /// The question in a frame: who is asked for, and over which hardware address.
    fn question(frame: &[u8]) -> (IpAddr, [u8; 6]) {
        let destination_mac = *frame.first_chunk().unwrap();
        match frame::parse(frame, false).unwrap() {
            Received::Arp(packet) => {
                assert_eq!(packet.operation, arp::Operation::Request);
                assert_eq!((packet.sender, packet.sender_mac), (OUR_V4, OUR_MAC));
                (packet.target.into(), destination_mac)
            }
            Received::Icmp6(packet) => {
                assert_eq!((packet.source, packet.source_mac), (OUR_V6, OUR_MAC));
                match packet.message {
                    Message::Neighbor(Neighbor::Solicitation { target, source_mac }) => {
                        assert_eq!(source_mac, Some(OUR_MAC));
                        (target.into(), destination_mac)
                    }
                    other => panic!("{other:?}"),
                }
            }
            other => panic!("{other:?}"),
        }
    }

    fn asked(neighbors: &mut Neighbors) -> Option<(IpAddr, [u8; 6])> {
        let frame = neighbors.poll_frame()?;
        assert_eq!(neighbors.poll_frame(), None);
        Some(question(&frame))
    }

    fn v4(address: Ipv4Addr) -> IpAddr {
        address.into()
    }

    #[test]
    fn unknown_neighbour_is_asked_for_by_arp() {
        let mut n = neighbors();
        assert_eq!(n.resolve(0, v4(A_V4)), Resolution::Pending);
        assert_eq!(asked(&mut n), Some((A_V4.into(), ethernet::BROADCAST)));
        assert_eq!(n.resolve(0, v4(A_V4)), Resolution::Pending);
        assert_eq!(asked(&mut n), None);
        assert_eq!(n.on_arp(1000, &reply(MAC_A, A_V4)), None);
        assert_eq!(n.resolve(1000, v4(A_V4)), Resolution::Known(MAC_A));
    }

    #[test]
    fn unknown_neighbour_is_asked_for_by_neighbour_discovery() {
        let mut n = neighbors();
        assert_eq!(n.resolve(0, A_V6.into()), Resolution::Pending);
        let group_mac = [0x33, 0x33, 0xff, 0x12, 0x34, 0x56];
        assert_eq!(asked(&mut n), Some((A_V6.into(), group_mac)));
        // Without a hardware address it answers nothing.
        n.on_ndisc(1000, &advertisement(None, true, true));
        assert_eq!(n.resolve(1000, A_V6.into()), Resolution::Pending);
        n.on_ndisc(1000, &advertisement(Some(MAC_A), true, false));
        assert_eq!(n.resolve(1000, A_V6.into()), Resolution::Known(MAC_A));
    }

    #[test]
    fn silent_neighbour_is_given_up_for_a_while() {
        for address in [v4(A_V4), A_V6.into()] {
            let mut n = neighbors();
            let mut questions = 0;
            n.resolve(0, address);
            while let Some(at) = n.next_timeout_us() {
                questions += usize::from(asked(&mut n).is_some());
                assert_eq!(n.resolve(at - 1, address), Resolution::Pending);
                n.on_timeout(at);
            }
            assert_eq!(questions, 3);
            assert_eq!(n.resolve(3 * SECOND, address), Resolution::Unreachable);
            assert_eq!(n.resolve(6 * SECOND - 1, address), Resolution::Unreachable);
            assert_eq!(asked(&mut n), None);
            assert_eq!(n.resolve(6 * SECOND, address), Resolution::Pending);
            assert!(asked(&mut n).is_some());
        }
    }

    #[test]
    fn request_is_answered_and_its_sender_remembered() {
        let mut n = neighbors();
        let answer = n.on_arp(0, &request(MAC_A, A_V4, OUR_V4)).unwrap();
        assert_eq!(answer[..6], MAC_A);
        let Ok(Received::Arp(answer)) = frame::parse(&answer, false) else {
            panic!("not ARP");
        };
        assert_eq!(
            answer,
            arp::Packet {
                operation: arp::Operation::Reply,
                sender_mac: OUR_MAC,
                sender: OUR_V4,
                target_mac: MAC_A,
                target: A_V4,
            }
        );
        assert_eq!(n.resolve(0, v4(A_V4)), Resolution::Known(MAC_A));
    }

    #[test]
    fn address_probe_is_answered_and_leaves_no_trace() {
        let mut n = neighbors();
        let probe = request(MAC_A, Ipv4Addr::UNSPECIFIED, OUR_V4);
        assert!(n.on_arp(0, &probe).is_some());
        assert!(n.entries.is_empty());
    }

    #[test]
    fn requests_for_others_are_no_business_of_ours() {
        let mut n = neighbors();
        assert_eq!(n.on_arp(0, &request(MAC_A, A_V4, GATEWAY_V4)), None);
        assert!(n.entries.is_empty());
    }

    #[test]
    fn only_those_on_the_link_are_remembered() {
        let mut n = neighbors();
        let everybody = Ipv4Addr::new(10, 77, 0, 255);
        for stranger in [ELSEWHERE_V4, everybody, Ipv4Addr::BROADCAST] {
            n.on_arp(0, &request(MAC_A, stranger, OUR_V4));
        }
        n.on_arp(0, &request(ethernet::BROADCAST, A_V4, OUR_V4));
        n.on_arp(0, &reply(MAC_A, A_V4));
        n.on_ndisc(0, &solicitation(Ipv6Addr::LOCALHOST, Some(MAC_A)));
        n.on_ndisc(0, &advertisement(Some(MAC_A), false, true));
        assert!(n.entries.is_empty(), "{:?}", n.entries);
    }

    #[test]
    fn nobody_else_is_us() {
        let mut n = neighbors();
        assert_eq!(n.on_arp(0, &request(MAC_A, OUR_V4, OUR_V4)), None);
        assert_eq!(n.on_ndisc(0, &solicitation(OUR_V6, Some(MAC_A))), None);
        assert!(n.entries.is_empty());
        assert_eq!(n.resolve(0, OUR_V4.into()), Resolution::Unreachable);
    }

    #[test]
    fn solicitation_is_answered_also_to_a_link_local_address() {
        let mut n = neighbors();
        for source in [A_V6, LINK_LOCAL] {
            let asked = solicitation(source, Some(MAC_A));
            let answer = n.on_ndisc(0, &asked).unwrap();
            assert_eq!(answer[..6], MAC_A);
            let Ok(Received::Icmp6(answer)) = frame::parse(&answer, false) else {
                panic!("not ICMPv6");
            };
            assert_eq!((answer.source, answer.destination), (OUR_V6, source));
            assert_eq!(
                answer.message,
                Message::Neighbor(Neighbor::Advertisement {
                    target: OUR_V6,
                    target_mac: Some(OUR_MAC),
                    router: false,
                    solicited: true,
                    override_cached: true,
                })
            );
            assert_eq!(n.next_hop(source.into()), IpAddr::V6(source));
            assert_eq!(n.resolve(0, source.into()), Resolution::Known(MAC_A));
        }
    }

    #[test]
    fn solicitation_without_hardware_address_is_answered_where_it_came_from() {
        let mut n = neighbors();
        let answer = n.on_ndisc(0, &solicitation(A_V6, None)).unwrap();
        assert_eq!(answer[..6], MAC_A);
        assert!(n.entries.is_empty());
    }

    #[test]
    fn duplicate_address_detection_is_answered_to_all() {
        let mut n = neighbors();
        let probe = solicitation(Ipv6Addr::UNSPECIFIED, None);
        let answer = n.on_ndisc(0, &probe).unwrap();
        assert_eq!(answer[..6], [0x33, 0x33, 0, 0, 0, 1]);
        let Ok(Received::Icmp6(answer)) = frame::parse(&answer, false) else {
            panic!("not ICMPv6");
        };
        assert_eq!(answer.destination, "ff02::1".parse::<Ipv6Addr>().unwrap());
        assert!(matches!(
            answer.message,
            Message::Neighbor(Neighbor::Advertisement {
                target: OUR_V6,
                solicited: false,
                ..
            })
        ));
        assert!(n.entries.is_empty());
    }

    /// A neighbour that answered at time 0 and is used again after its time has run out.
    fn used_when_stale() -> (Neighbors, u64) {
        let mut n = neighbors();
        n.resolve(0, v4(A_V4));
        n.on_arp(0, &reply(MAC_A, A_V4));
        n.poll_frame();
        n.on_timeout(SECOND);
        assert_eq!(n.next_timeout_us(), None);
        let now_us = 30 * SECOND;
        assert_eq!(n.resolve(now_us, v4(A_V4)), Resolution::Known(MAC_A));
        assert_eq!(n.next_timeout_us(), Some(35 * SECOND));
        (n, 35 * SECOND)
    }

    #[test]
    fn traffic_confirms_a_neighbour() {
        let (mut n, at) = used_when_stale();
        n.confirm(at - 1, v4(A_V4));
        n.on_timeout(at);
        assert_eq!(asked(&mut n), None);
        assert_eq!(n.next_timeout_us(), None);
        assert_eq!(n.resolve(at, v4(A_V4)), Resolution::Known(MAC_A));
    }

    #[test]
    fn stale_neighbour_is_asked_itself() {
        let (mut n, at) = used_when_stale();
        n.on_timeout(at);
        assert_eq!(asked(&mut n), Some((A_V4.into(), MAC_A)));
        n.on_arp(at + 1, &reply(MAC_A, A_V4));
        assert_eq!(n.resolve(at + 1, v4(A_V4)), Resolution::Known(MAC_A));
        n.on_timeout(at + SECOND);
        assert_eq!(asked(&mut n), None);
    }

    #[test]
    fn neighbour_that_has_gone_is_forgotten_and_asked_for_anew() {
        let (mut n, mut at) = used_when_stale();
        for _ in 0..3 {
            n.on_timeout(at);
            assert_eq!(asked(&mut n), Some((A_V4.into(), MAC_A)));
            assert_eq!(n.resolve(at, v4(A_V4)), Resolution::Known(MAC_A));
            at += SECOND;
        }
        n.on_timeout(at);
        assert_eq!(n.resolve(at, v4(A_V4)), Resolution::Pending);
        assert_eq!(asked(&mut n), Some((A_V4.into(), ethernet::BROADCAST)));
    }

    #[test]
    fn of_two_answers_the_first_wins() {
        let mut n = neighbors();
        n.resolve(0, v4(A_V4));
        n.on_arp(1000, &reply(MAC_A, A_V4));
        n.on_arp(2000, &reply(MAC_B, A_V4));
        assert_eq!(n.resolve(2000, v4(A_V4)), Resolution::Known(MAC_A));
    }

    #[test]
    fn address_that_moves_is_followed_and_verified() {
        let mut n = neighbors();
        n.resolve(0, v4(A_V4));
        n.poll_frame();
        n.on_arp(0, &reply(MAC_A, A_V4));
        n.on_arp(2 * SECOND, &request(MAC_B, A_V4, A_V4));
        assert_eq!(n.resolve(2 * SECOND, v4(A_V4)), Resolution::Known(MAC_B));
        n.on_timeout(7 * SECOND);
        assert_eq!(asked(&mut n), Some((A_V4.into(), MAC_B)));
    }

    #[test]
    fn advertisements_obey_the_override_flag() {
        let known = || {
            let mut n = neighbors();
            n.resolve(0, A_V6.into());
            n.on_ndisc(0, &advertisement(Some(MAC_A), true, true));
            n
        };
        // RFC 4861 §7.2.5: no override, another address: only doubt remains.
        let mut n = known();
        n.on_ndisc(1, &advertisement(Some(MAC_B), true, false));
        assert_eq!(n.entries[&IpAddr::V6(A_V6)].state, State::Stale);
        assert_eq!(n.resolve(1, A_V6.into()), Resolution::Known(MAC_A));
        // Override, solicited: believed.
        let mut n = known();
        n.on_ndisc(1, &advertisement(Some(MAC_B), true, true));
        assert_eq!(n.entries[&IpAddr::V6(A_V6)].state, State::reachable(1));
        assert_eq!(n.resolve(1, A_V6.into()), Resolution::Known(MAC_B));
        // Override, not solicited: used, and verified.
        let mut n = known();
        n.on_ndisc(1, &advertisement(Some(MAC_B), false, true));
        assert_eq!(n.entries[&IpAddr::V6(A_V6)].state, State::Stale);
        assert_eq!(n.resolve(1, A_V6.into()), Resolution::Known(MAC_B));
        // Nothing new, not solicited: nothing changes.
        let mut n = known();
        n.on_ndisc(1, &advertisement(Some(MAC_A), false, true));
        assert_eq!(n.entries[&IpAddr::V6(A_V6)].state, State::reachable(0));
    }

    #[test]
    fn what_is_not_on_the_link_goes_through_the_gateway() {
        let mut n = neighbors();
        assert_eq!(n.next_hop(A_V4.into()), v4(A_V4));
        assert_eq!(n.next_hop(ELSEWHERE_V4.into()), v4(GATEWAY_V4));
        // There is no gateway for IPv6.
        let elsewhere: IpAddr = "2001:db8::1".parse().unwrap();
        let next_hop = n.next_hop(elsewhere);
        assert_eq!(n.resolve(0, next_hop), Resolution::Unreachable);
        assert_eq!(asked(&mut n), None);
    }

    #[test]
    fn gateway_may_lie_outside_every_prefix() {
        let gateway = v4(Ipv4Addr::new(169, 254, 1, 1));
        let mut n = Neighbors::new(OUR_MAC, &[(OUR_V4.into(), 32)], &[gateway]);
        assert_eq!(n.next_hop(A_V4.into()), gateway);
        assert_eq!(n.resolve(0, gateway), Resolution::Pending);
        assert_eq!(asked(&mut n), Some((gateway, ethernet::BROADCAST)));
    }

    #[test]
    fn prefixes_of_31_bits_have_no_broadcast_address() {
        let n = Neighbors::new(OUR_MAC, &[(OUR_V4.into(), 31)], &[]);
        assert!(n.is_on_link(Ipv4Addr::new(10, 77, 0, 3).into()));
        let n = Neighbors::new(OUR_MAC, &[(OUR_V4.into(), 30)], &[]);
        assert!(!n.is_on_link(Ipv4Addr::new(10, 77, 0, 3).into()));
    }

    #[test]
    fn flood_of_requests_does_not_push_out_who_we_talk_to() {
        let mut n = Neighbors::new(OUR_MAC, &[(OUR_V4.into(), 8)], &[]);
        n.resolve(0, v4(A_V4));
        n.on_arp(0, &reply(MAC_A, A_V4));
        for i in 0..3 * ENTRIES_MAX as u32 {
            let sender = Ipv4Addr::from_bits(0x0a01_0000 + i);
            n.on_arp(SECOND, &request(MAC_B, sender, OUR_V4));
        }
        assert_eq!(n.entries.len(), ENTRIES_MAX);
        assert_eq!(n.resolve(SECOND, v4(A_V4)), Resolution::Known(MAC_A));
    }

    #[test]
    fn flood_of_absent_neighbours_does_not_push_out_present_ones() {
        let mut n = Neighbors::new(OUR_MAC, &[(OUR_V4.into(), 8)], &[]);
        n.on_arp(0, &request(MAC_A, A_V4, OUR_V4));
        for i in 0..3 * ENTRIES_MAX as u32 {
            n.resolve(SECOND, Ipv4Addr::from_bits(0x0a01_0000 + i).into());
        }
        assert_eq!(n.entries.len(), INCOMPLETE_MAX + 1);
        assert!(n.frames.len() <= ENTRIES_MAX);
        assert_eq!(n.resolve(SECOND, v4(A_V4)), Resolution::Known(MAC_A));
    }

    #[test]
    fn flood_of_absent_neighbours_is_told_that_they_are_absent() {
        let mut n = Neighbors::new(OUR_MAC, &[(OUR_V4.into(), 8)], &[]);
        let mut absent: Vec<(IpAddr, bool)> = (0..3 * ENTRIES_MAX as u32)
            .map(|i| (Ipv4Addr::from_bits(0x0a01_0000 + i).into(), false))
            .collect();
        let mut questions = 0;
        for second in 0..=10 {
            n.on_timeout(second * SECOND);
            for (address, told) in &mut absent {
                *told |= n.resolve(second * SECOND, *address) == Resolution::Unreachable;
            }
            questions += n.frames.drain(..).count();
            absent.reverse();
        }
        let waiting = absent.iter().filter(|(_, told)| !told).count();
        assert_eq!(waiting, 0, "still waiting after 10 s");
        assert_eq!(questions, 11 * INCOMPLETE_MAX, "one a second for each");
    }

    #[test]
    fn neighbour_asked_for_is_not_forgotten_for_others() {
        let mut n = Neighbors::new(OUR_MAC, &[(OUR_V4.into(), 8)], &[]);
        assert_eq!(n.resolve(0, v4(A_V4)), Resolution::Pending);
        for i in 0..2 * ENTRIES_MAX as u32 {
            let other = Ipv4Addr::from_bits(0x0a01_0000 + i);
            n.on_arp(1, &request(MAC_B, other, OUR_V4));
            assert_eq!(n.resolve(1, v4(other)), Resolution::Known(MAC_B));
        }
        assert_eq!(n.entries.len(), ENTRIES_MAX);
        for second in 1..=3 {
            n.on_timeout(second * SECOND);
        }
        assert_eq!(n.resolve(3 * SECOND, v4(A_V4)), Resolution::Unreachable);
    }

    proptest! {
        #[test]
        fn books_stay_balanced(
            steps in prop::collection::vec((0u8..7, 0u32..600, any::<u8>(), 0..8 * SECOND), 1..400),
        ) {
            let mut n = Neighbors::new(OUR_MAC, &[(OUR_V4.into(), 8), (OUR_V6.into(), 64)], &[]);
            let mut now_us = 0;
            for (kind, who, mac, elapsed_us) in steps {
                now_us += elapsed_us;
                let address = Ipv4Addr::from_bits(0x0a01_0000 + who);
                let mac = [2, 0, 0, 0, 1, mac];
                match kind {
                    0 => drop(n.on_arp(now_us, &request(mac, address, OUR_V4))),
                    1 => drop(n.on_arp(now_us, &reply(mac, address))),
                    2 => drop(n.resolve(now_us, address.into())),
                    3 => drop(n.resolve(now_us, A_V6.into())),
                    4 => drop(n.on_ndisc(now_us, &advertisement(Some(mac), who % 2 == 0, who % 3 == 0))),
                    5 => n.confirm(now_us, address.into()),
                    _ => n.on_timeout(now_us),
                }
                let incomplete = n.entries.values().filter(|e| e.state.is_incomplete()).count();
                prop_assert_eq!(n.incomplete, incomplete);
                let failed = n.entries.values().filter(|e| e.state.is_failed()).count();
                prop_assert_eq!(n.failed, failed);
                prop_assert!(incomplete <= INCOMPLETE_MAX && n.entries.len() <= ENTRIES_MAX);
                let earliest = n.entries.values().filter_map(|e| e.state.timeout_us()).min();
                if let Some(earliest) = earliest {
                    prop_assert!(n.next_timeout_us().is_some_and(|at| at <= earliest));
                }
            }
        }
    }
}
