//! Neighbours: next hops, and their hardware addresses by ARP (RFC 826, RFC 5227) and neighbour
//! discovery (RFC 4861).
//!
//! [`Neighbors::next_hop`] selects the next hop, [`Neighbors::resolve`] its hardware address. ARP
//! follows the state machine of RFC 4861 §7.3 as well:
//!
//! ```text
//!             resolve             answer                30 s
//!  (unknown) ────────▶ Incomplete ──────▶ Reachable ───────────▶ Stale ◀──── request for us
//!                          │ 3 s            ▲    ▲ confirm         │ resolve
//!                          ▼                │    └──────── Delay ◀─┘
//!                        Failed             │ answer         │ 5 s
//!                          │ 3 s            └────────────── Probe ──────▶ (unknown)
//!                          ▼                                       3 s
//!                      (unknown)
//! ```
//!
//! Every machine on the link can write into this cache. So it is bounded; entries that others have
//! caused give way before those in use; packets that wait for an answer get it, or its absence; and
//! a changed hardware address is verified before it lasts.
//!
//! `arp` and `ndisc` contain the packets that change the cache and that it sends, `announce` the
//! announcements of own addresses, and `conflict` the reaction to other machines that claim them.

mod announce;
mod arp;
mod conflict;
mod ndisc;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netdev::packet::LOOPBACK_MAC;

/// Most neighbours in the cache.
const ENTRIES_MAX: usize = 1024;
/// Most neighbours under resolution; a flood of connections from made-up addresses on the link must
/// not push out those that exist.
const INCOMPLETE_MAX: usize = 256;
/// `REACHABLE_TIME` of RFC 4861 §10.
const REACHABLE_US: u64 = 30_000_000;
/// `DELAY_FIRST_PROBE_TIME`: time for TCP to confirm that the neighbour is reachable before it is
/// probed.
const DELAY_US: u64 = 5_000_000;
/// `RETRANS_TIMER`.
const RETRANSMIT_US: u64 = 1_000_000;
/// `MAX_MULTICAST_SOLICIT` and `MAX_UNICAST_SOLICIT`.
const PROBES_MAX: u8 = 3;
/// Time without requests for a neighbour that has not answered.
const FAILED_US: u64 = 3_000_000;
/// Time for which a [`Route`] keeps a hardware address.
const ROUTE_US: u64 = 1_000_000;

const _: () = assert!(
    INCOMPLETE_MAX < ENTRIES_MAX,
    "known neighbours have a part of their own"
);

/// Where to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resolution {
    /// To this hardware address.
    Known([u8; 6]),
    /// The neighbour has been asked. Ask again after [`Neighbors::on_arp`], [`Neighbors::on_ndisc`]
    /// or [`Neighbors::on_timeout`].
    Pending,
    /// It has not answered, there is no way to it, or too many others are being asked for.
    Unreachable,
    /// Nowhere: it is an own address.
    Own,
}

/// The route of packets to one destination. It caches the result of [`Neighbors::resolve`], so that
/// packets in a row cost no look-up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    next_hop: IpAddr,
    /// The destination is an own address: nothing goes to the link.
    is_looped: bool,
    mac: [u8; 6],
    /// `mac` is good until then, unless the neighbours have changed since.
    until_us: u64,
    changes: u32,
    /// TCP has reported that packets arrive.
    confirmed: bool,
}

impl Route {
    /// Applies [`Neighbors::confirm`] at the next look-up.
    pub(crate) fn confirm(&mut self) {
        self.confirmed = true;
    }

    /// True if the destination is an own address.
    #[inline]
    pub(crate) fn is_looped(&self) -> bool {
        self.is_looped
    }
}

/// The neighbours of one link.
#[derive(Debug)]
pub(crate) struct Neighbors {
    mac: [u8; 6],
    /// Own addresses with the length of the on-link prefix, in bits.
    addresses: Vec<(IpAddr, u8)>,
    gateways: Vec<IpAddr>,
    /// The machine's kernel has the addresses as well: it answers for them, and gets their other
    /// packets.
    is_shared: bool,
    /// Ordered, so that a simulation repeats itself.
    entries: BTreeMap<IpAddr, Entry>,
    /// Counts the hardware addresses learned and forgotten, and wraps.
    changes: u32,
    /// Number of entries that are incomplete or have failed.
    incomplete: usize,
    /// Number of entries that have failed.
    failed: usize,
    /// Probes to be sent.
    frames: VecDeque<Vec<u8>>,
    /// No entry's timer expires before.
    next_timeout_us: Option<u64>,
    /// Outstanding announcements of our addresses, and the time of the next one.
    announcements: Option<announce::Announcements>,
    /// By own address.
    conflicts: BTreeMap<IpAddr, conflict::Conflict>,
    /// Not taken yet by [`Neighbors::take_conflicts`].
    conflicts_seen: u64,
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

    /// Time at which [`Neighbors::on_timeout`] must act, if any. Other states expire when they are
    /// looked up.
    fn timeout_us(self) -> Option<u64> {
        match self {
            State::Incomplete { retry_us, .. } | State::Probe { retry_us, .. } => Some(retry_us),
            State::Delay { until_us } => Some(until_us),
            State::Failed { .. } | State::Reachable { .. } | State::Stale => None,
        }
    }
}

impl Neighbors {
    /// Creates the neighbours of a link on which we have hardware address `mac`, own `addresses`
    /// with on-link prefix lengths in bits, and `gateways` for destinations beyond the link, at
    /// most one per address family.
    pub(crate) fn new(mac: [u8; 6], addresses: &[(IpAddr, u8)], gateways: &[IpAddr]) -> Neighbors {
        Neighbors {
            mac,
            addresses: addresses.to_vec(),
            gateways: gateways.to_vec(),
            is_shared: false,
            entries: BTreeMap::new(),
            changes: 0,
            incomplete: 0,
            failed: 0,
            frames: VecDeque::new(),
            next_timeout_us: None,
            announcements: None,
            conflicts: BTreeMap::new(),
            conflicts_seen: 0,
        }
    }

    /// Leaves announcements and answers from now on to the kernel, which has the addresses as well.
    pub(crate) fn share(&mut self) {
        self.is_shared = true;
    }

    /// Changes the own addresses and gateways. Neighbours stay known.
    pub(crate) fn set_addresses(&mut self, addresses: &[(IpAddr, u8)], gateways: &[IpAddr]) {
        self.addresses = addresses.to_vec();
        self.gateways = gateways.to_vec();
    }

    /// True if packets to `address` go to this machine's kernel.
    fn is_kernels(&self, address: IpAddr) -> bool {
        self.is_shared && (address.is_loopback() || self.is_own(address))
    }

    /// Returns the next hop for `destination`: itself if it is on the link, else the gateway.
    /// Without a gateway, returns `destination`, which [`Neighbors::resolve`] then reports as
    /// unreachable.
    pub(crate) fn next_hop(&self, destination: IpAddr) -> IpAddr {
        if self.is_on_link(destination) || self.is_kernels(destination) {
            return destination;
        }
        self.gateways
            .iter()
            .copied()
            .find(|gateway| gateway.is_ipv4() == destination.is_ipv4())
            .unwrap_or(destination)
    }

    /// Returns the route to `destination`.
    pub(crate) fn route(&self, destination: IpAddr) -> Route {
        Route {
            next_hop: self.next_hop(destination),
            is_looped: !self.is_shared && (destination.is_loopback() || self.is_own(destination)),
            mac: [0; 6],
            until_us: 0,
            changes: 0,
            confirmed: false,
        }
    }

    /// Returns the hardware address of a route's next hop, by [`Neighbors::resolve`] once in a
    /// while.
    #[inline]
    pub(crate) fn resolve_route(&mut self, now_us: u64, route: &mut Route) -> Resolution {
        if now_us < route.until_us && route.changes == self.changes {
            return Resolution::Known(route.mac);
        }
        self.resolve_route_again(now_us, route)
    }

    #[inline(never)]
    fn resolve_route_again(&mut self, now_us: u64, route: &mut Route) -> Resolution {
        if route.is_looped {
            return Resolution::Own;
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

    /// Returns the hardware address of a next hop. If it is unknown, queues a request for
    /// [`Neighbors::poll_frame`].
    pub(crate) fn resolve(&mut self, now_us: u64, next_hop: IpAddr) -> Resolution {
        if self.is_kernels(next_hop) {
            return Resolution::Known(LOOPBACK_MAC);
        }
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

    /// Confirms a next hop: TCP's acknowledgments prove that our packets arrive, so no probe is
    /// needed (RFC 4861 §7.3.1).
    pub(crate) fn confirm(&mut self, now_us: u64, next_hop: IpAddr) {
        if let Some(entry) = self.entries.get_mut(&next_hop)
            && !entry.state.is_incomplete()
        {
            entry.state = State::reachable(now_us);
        }
    }

    /// Takes the next frame to send, if any: a request to a neighbour.
    pub(crate) fn poll_frame(&mut self) -> Option<Vec<u8>> {
        self.frames.pop_front()
    }

    /// When to call [`Neighbors::on_timeout`], in microseconds. It may turn out to be too early.
    pub(crate) fn next_timeout_us(&self) -> Option<u64> {
        let announcement_us = self.announcements.map(|it| it.next_us);
        [self.next_timeout_us, announcement_us]
            .into_iter()
            .flatten()
            .min()
    }

    /// Repeats the requests that are due, or gives up.
    pub(crate) fn on_timeout(&mut self, now_us: u64) {
        self.go_on_announcing(now_us);
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

    /// Queues a request for `target`: to its last hardware address, or to the link.
    fn ask(&mut self, target: IpAddr, mac: Option<[u8; 6]>) {
        let frame = match (target, self.source_for(target)) {
            (IpAddr::V4(target), Some(IpAddr::V4(sender))) => self.arp_request(sender, target, mac),
            (IpAddr::V6(target), Some(IpAddr::V6(source))) => {
                self.solicitation(source, target, mac)
            }
            // Without an address of that family, no answer could reach us.
            _ => return,
        };
        // One question per entry at most is under way; a full queue loses one, which is asked
        // again.
        if self.frames.len() < ENTRIES_MAX {
            self.frames.push_back(frame);
        }
    }

    /// Our address in the prefix of `target`, else any of its family.
    pub(crate) fn source_for(&self, target: IpAddr) -> Option<IpAddr> {
        let own = |(address, _): &(IpAddr, u8)| *address;
        let family = |address: &IpAddr| address.is_ipv4() == target.is_ipv4();
        self.addresses
            .iter()
            .find(|(address, prefix_len)| in_prefix(*address, *prefix_len, target))
            .map(own)
            .or_else(|| self.addresses.iter().map(own).find(family))
    }

    /// Returns our other addresses in the network of `own`.
    pub(crate) fn in_network_of(&self, own: IpAddr) -> Vec<IpAddr> {
        let mut addresses = self.addresses.iter();
        let known = addresses.find(|(address, _)| *address == own);
        let Some(&(_, prefix_len)) = known else {
            return Vec::new();
        };
        let others = self.addresses.iter().map(|(address, _)| *address);
        let is_near = |it: &IpAddr| *it != own && in_prefix(*it, prefix_len, own);
        others.filter(is_near).collect()
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

    /// Removes a neighbour: the oldest that was never used, else the one used longest ago. Entries
    /// under resolution stay, because their waiting packets need the outcome; they never fill the
    /// table.
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

    /// Forgets the neighbour that failed longest ago. False if none has. The new one keeps the
    /// place for [`PROBES_MAX`] questions, so that a flood causes few searches.
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

/// True for the IPv4 address that means all hosts of its prefix (RFC 1122 §3.2.1.3); prefixes of 31
/// and 32 bits have none (RFC 3021).
fn is_broadcast(prefix_len: u8, address: IpAddr) -> bool {
    let IpAddr::V4(address) = address else {
        return false;
    };
    let host_bits = Ipv4Addr::BITS.saturating_sub(prefix_len.into());
    host_bits >= 2 && address.to_bits().trailing_ones() >= host_bits
}
