//! Local ports of connections that this side opens (RFC 6056).

use std::hash::BuildHasher;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use crate::episode::Episode;
use crate::tables::keyed_hash::KeyedHash;

/// Counters; more of them make it harder to learn from one peer's ports how many connections there
/// are to others (RFC 6056 §3.3.4).
const COUNTERS: usize = 1024;

/// Chooses ports by double hash (RFC 6056 §3.3.4, algorithm 4): to one peer, ports are used in
/// turn, so that the one that was free for longest comes next; nothing tells where they begin.
#[derive(Debug)]
pub(crate) struct EphemeralPorts {
    range: RangeInclusive<u16>,
    hash: KeyedHash,
    counters: Vec<u16>,
    exhausted: Episode,
}

impl EphemeralPorts {
    pub(crate) fn new(range: RangeInclusive<u16>, secret: [u8; 16]) -> EphemeralPorts {
        EphemeralPorts {
            range,
            hash: KeyedHash(secret),
            counters: vec![0; COUNTERS],
            exhausted: Episode::default(),
        }
    }

    /// No port is left for a connection; true if that is worth a line in the log.
    pub(crate) fn is_news(&mut self, now_us: u64) -> bool {
        self.exhausted.begins(now_us)
    }

    /// A port for a connection from `local` to `remote` of which `is_free` is true; `None` if there
    /// is none.
    pub(crate) fn choose(
        &mut self,
        local: IpAddr,
        remote: SocketAddr,
        mut is_free: impl FnMut(u16) -> bool,
    ) -> Option<u16> {
        let hash = |part: u8| self.hash.hash_one((local, remote, part));
        let (offset, counter) = (hash(0), hash(1) as usize % COUNTERS);
        let first = *self.range.start();
        let count = u32::from(self.range.end().checked_sub(first)?) + 1;
        for _ in 0..count {
            let next = u64::from(self.counters[counter]).wrapping_add(offset);
            self.counters[counter] = self.counters[counter].wrapping_add(1);
            let port = first + (next % u64::from(count)) as u16;
            if is_free(port) {
                return Some(port);
            }
        }
        None
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
