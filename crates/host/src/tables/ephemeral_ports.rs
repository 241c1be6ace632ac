//! Local ports of connections that this side opens (RFC 6056).

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use crate::episode::Episode;
use crate::tables::keyed_hash::KeyedHash;

/// Number of counters; more make it harder to derive, from one peer's ports, the number of
/// connections to others (RFC 6056 §3.3.4).
const COUNTERS: usize = 1024;

/// Most ports examined for a peer to which none was free: each look-up searches all tables of
/// connections.
const SCARCE_LOOKS_MAX: u32 = 256;

/// Most freed ports examined: connections on these ports have ended since, some perhaps into
/// TIME-WAIT.
const FREED_LOOKS_MAX: usize = 16;

/// Number of freed ports at which ports are no longer scarce.
const FREED_MAX: usize = 1024;

/// Peers to which ports are known to be scarce. Only with few ports can there be more.
const SCARCE_MAX: usize = 64;

/// Chooses ports by double hash (RFC 6056 §3.3.4, algorithm 4): to one peer, ports are used in
/// turn, so that the one that was free for longest comes next; the start of the sequence is
/// unpredictable.
#[derive(Debug)]
pub(crate) struct EphemeralPorts {
    range: RangeInclusive<u16>,
    hash: KeyedHash,
    counters: Vec<u16>,
    /// By own address and peer to which no port was free: the ports of connections that have ended
    /// since.
    scarce: HashMap<(IpAddr, SocketAddr), VecDeque<u16>, KeyedHash>,
    exhausted: Episode,
}

impl EphemeralPorts {
    pub(crate) fn new(range: RangeInclusive<u16>, secret: [u8; 16]) -> EphemeralPorts {
        EphemeralPorts {
            range,
            hash: KeyedHash(secret),
            counters: vec![0; COUNTERS],
            scarce: HashMap::with_hasher(KeyedHash(secret)),
            exhausted: Episode::default(),
        }
    }

    /// No port is left for a connection; true if that is worth a line in the log.
    pub(crate) fn is_news(&mut self, now_us: u64) -> bool {
        self.exhausted.begins(now_us)
    }

    /// A port for a connection from `local` to `remote` of which `is_free` is true. `None` if there
    /// is none; after that, a port whose connection did not end by [`EphemeralPorts::on_freed`] may
    /// take some calls to be found, so that no call looks at all ports again.
    pub(crate) fn choose(
        &mut self,
        local: IpAddr,
        remote: SocketAddr,
        mut is_free: impl FnMut(u16) -> bool,
    ) -> Option<u16> {
        let count = u32::from(self.range.end().checked_sub(*self.range.start())?) + 1;
        let Some(freed) = self.scarce.get_mut(&(local, remote)) else {
            let found = self.look(local, remote, count, is_free);
            if found.is_none() && count > SCARCE_LOOKS_MAX {
                self.note_scarce(local, remote);
            }
            return found;
        };
        for _ in 0..freed.len().min(FREED_LOOKS_MAX) {
            let port = freed.pop_front()?;
            if is_free(port) {
                return Some(port);
            }
            freed.push_back(port);
        }
        self.look(local, remote, SCARCE_LOOKS_MAX, is_free)
    }

    /// Returns the next free port among the next `looks` ones.
    fn look(
        &mut self,
        local: IpAddr,
        remote: SocketAddr,
        looks: u32,
        mut is_free: impl FnMut(u16) -> bool,
    ) -> Option<u16> {
        let hash = |part: u8| self.hash.hash_one((local, remote, part));
        let (offset, counter) = (hash(0), hash(1) as usize % COUNTERS);
        let first = *self.range.start();
        let count = u32::from(self.range.end().checked_sub(first)?) + 1;
        for _ in 0..looks {
            let next = u64::from(self.counters[counter]).wrapping_add(offset);
            self.counters[counter] = self.counters[counter].wrapping_add(1);
            let port = first + (next % u64::from(count)) as u16;
            if is_free(port) {
                return Some(port);
            }
        }
        None
    }

    fn note_scarce(&mut self, local: IpAddr, remote: SocketAddr) {
        if self.scarce.len() >= SCARCE_MAX {
            self.scarce.clear();
        }
        self.scarce.insert((local, remote), VecDeque::new());
    }

    /// Handles the end of a connection, or of its teardown by a NIC stack.
    #[inline]
    pub(crate) fn on_freed(&mut self, local: SocketAddr, remote: SocketAddr) {
        if !self.scarce.is_empty() {
            self.note_freed(local, remote);
        }
    }

    #[cold]
    fn note_freed(&mut self, local: SocketAddr, remote: SocketAddr) {
        let peer = (local.ip(), remote);
        let Some(freed) = self.scarce.get_mut(&peer) else {
            return;
        };
        if self.range.contains(&local.port()) {
            freed.push_back(local.port());
        }
        if freed.len() >= FREED_MAX {
            self.scarce.remove(&peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const LOCAL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

    fn remote(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], 80))
    }

    fn ports(range: RangeInclusive<u16>) -> EphemeralPorts {
        EphemeralPorts::new(range, [7; 16])
    }

    #[test]
    fn each_port_of_the_range_comes_once_before_any_comes_again() {
        let mut ports = ports(40_000..=40_099);
        let mut seen = BTreeSet::new();
        for _ in 0..100 {
            let port = ports.choose(LOCAL, remote(2), |_| true).unwrap();
            assert!(seen.insert(port));
        }
        assert_eq!(seen, (40_000..=40_099).collect());
    }

    #[test]
    fn ports_in_use_are_passed_over_until_none_is_left() {
        let mut ports = ports(65_530..=65_535);
        let mut used = BTreeSet::new();
        for _ in 0..6 {
            let port = ports.choose(LOCAL, remote(2), |port| !used.contains(&port));
            used.insert(port.unwrap());
        }
        assert_eq!(used.len(), 6);
        let none = ports.choose(LOCAL, remote(2), |port| !used.contains(&port));
        assert_eq!(none, None);
        let other = ports.choose(LOCAL, remote(2), |port| port == 65_533);
        assert_eq!(other, Some(65_533));
    }

    #[test]
    fn a_peer_without_a_free_port_costs_few_looks_until_one_is_free() {
        let mut ports = ports(32_768..=60_999);
        let looks = std::cell::Cell::new(0);
        let choose = |ports: &mut EphemeralPorts, free: &[u16]| {
            looks.set(0);
            let port = ports.choose(LOCAL, remote(2), |port| {
                looks.set(looks.get() + 1);
                free.contains(&port)
            });
            (port, looks.get())
        };
        assert_eq!(choose(&mut ports, &[]), (None, 28_232));
        assert_eq!(choose(&mut ports, &[]), (None, SCARCE_LOOKS_MAX));
        // Others are not concerned.
        assert!(ports.choose(LOCAL, remote(3), |_| true).is_some());
        ports.on_freed(SocketAddr::new(LOCAL, 50_000), remote(3));
        assert_eq!(choose(&mut ports, &[]), (None, SCARCE_LOOKS_MAX));
        // One that is freed comes at once, after others that are in TIME-WAIT still.
        ports.on_freed(SocketAddr::new(LOCAL, 40_000), remote(2));
        ports.on_freed(SocketAddr::new(LOCAL, 50_000), remote(2));
        assert_eq!(choose(&mut ports, &[50_000]), (Some(50_000), 2));
        assert_eq!(choose(&mut ports, &[40_000]), (Some(40_000), 1));
        // One of which nothing is known is found in time.
        let calls = (1..).find(|_| choose(&mut ports, &[45_000]).0.is_some());
        assert!(calls.unwrap() <= 28_232 / SCARCE_LOOKS_MAX + 1);
    }

    #[test]
    fn ports_are_scarce_no_more_when_many_are_freed() {
        let mut ports = ports(32_768..=60_999);
        assert_eq!(ports.choose(LOCAL, remote(2), |_| false), None);
        for port in 0..FREED_MAX as u16 {
            ports.on_freed(SocketAddr::new(LOCAL, 32_768 + port), remote(2));
        }
        assert!(ports.scarce.is_empty());
    }

    #[test]
    fn ports_to_one_peer_tell_nothing_of_those_to_another() {
        let firsts: BTreeSet<u16> = (1..=50)
            .map(|last| {
                let port = ports(32_768..=60_999).choose(LOCAL, remote(last), |_| true);
                port.unwrap()
            })
            .collect();
        assert!(firsts.len() > 45, "{firsts:?}");
    }
}
