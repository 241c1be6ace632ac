//! How many connections each source has.

use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::tables::keyed_hash::KeyedHash;

/// The source of all connections that have both ends here, so that they use no other source's
/// share. No peer on a wire has this address. Their number is bounded by the sockets that a program
/// may have; they are not limited as a source.
pub(crate) const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A source of connections: an IPv4 address, also an IPv4-mapped one (RFC 4291 §2.5.5.2), or an
/// IPv6 /64, since a single machine can use every address in one (RFC 6177).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The address.
    V4(u32),
    /// The first 64 bits of the address.
    V6(u64),
}

impl Hash for Source {
    // In one piece, which few of either family share.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(match *self {
            Source::V4(ip) => u64::from(ip),
            Source::V6(network) => network,
        });
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Source::V4(ip) => Ipv4Addr::from_bits(ip).fmt(f),
            Source::V6(network) => {
                write!(f, "{}/64", Ipv6Addr::from_bits(u128::from(network) << 64))
            }
        }
    }
}

impl From<IpAddr> for Source {
    fn from(ip: IpAddr) -> Source {
        match ip.to_canonical() {
            IpAddr::V4(ip) => Source::V4(ip.to_bits()),
            IpAddr::V6(ip) => Source::V6((ip.to_bits() >> 64) as u64),
        }
    }
}

/// Connections by source, if they are limited; nothing is kept if not.
#[derive(Debug)]
pub(crate) struct Sources {
    limit: Option<u32>,
    connections: HashMap<Source, u32, KeyedHash>,
}

impl Sources {
    pub(crate) fn new(limit: Option<u32>, hash: KeyedHash) -> Sources {
        Sources {
            limit,
            connections: HashMap::with_hasher(hash),
        }
    }

    /// Sets the maximum of connections per source. `remotes` are the peers of all existing
    /// connections: without a limit, they were not counted.
    pub(crate) fn set_limit(&mut self, limit: Option<u32>, remotes: impl Iterator<Item = IpAddr>) {
        let was_counted = std::mem::replace(&mut self.limit, limit).is_some();
        match limit {
            None => self.connections = HashMap::with_hasher(*self.connections.hasher()),
            Some(_) if !was_counted => remotes.for_each(|remote| self.add(remote)),
            Some(_) => {}
        }
    }

    /// True if a source is at its limit.
    pub(crate) fn is_exhausted(&self, ip: IpAddr) -> bool {
        self.limit.is_some_and(|limit| {
            let connections = self.connections.get(&Source::from(ip));
            connections.copied().unwrap_or(0) >= limit
        })
    }

    pub(crate) fn add(&mut self, ip: IpAddr) {
        if self.limit.is_some() && ip != LOOPBACK {
            *self.connections.entry(Source::from(ip)).or_default() += 1;
        }
    }

    pub(crate) fn remove(&mut self, ip: IpAddr) {
        let source = Source::from(ip);
        if let Some(connections) = self.connections.get_mut(&source) {
            *connections -= 1;
            if *connections == 0 {
                self.connections.remove(&source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_ipv4_address_and_an_ipv6_network_are_one_source_each() {
        let mut sources = Sources::new(Some(1), KeyedHash([1; 16]));
        sources.add(ip("192.0.2.1"));
        sources.add(ip("2001:db8:0:1::1"));
        for exhausted in ["192.0.2.1", "2001:db8:0:1::1", "2001:db8:0:1:ffff::"] {
            assert!(sources.is_exhausted(ip(exhausted)), "{exhausted}");
        }
        for free in ["192.0.2.2", "2001:db8:0:2::1", "::192.0.2.1"] {
            assert!(!sources.is_exhausted(ip(free)), "{free}");
        }
        sources.remove(ip("2001:db8:0:1::7"));
        assert!(!sources.is_exhausted(ip("2001:db8:0:1::1")));
        assert_eq!(sources.connections.len(), 1, "who has none is forgotten");
    }

    #[test]
    fn a_limit_that_comes_later_counts_the_connections_that_there_are() {
        let mut sources = Sources::new(None, KeyedHash([1; 16]));
        let one = ip("192.0.2.1");
        sources.set_limit(Some(2), [one, one].into_iter());
        assert!(sources.is_exhausted(one));
        sources.set_limit(Some(3), [one, one].into_iter());
        assert_eq!(sources.connections[&Source::from(one)], 2);
        assert!(!sources.is_exhausted(one));
        sources.set_limit(Some(1), std::iter::empty());
        sources.remove(one);
        assert!(sources.is_exhausted(one));
        sources.set_limit(None, std::iter::empty());
        sources.remove(one);
        assert!(!sources.is_exhausted(one) && sources.connections.is_empty());
    }

    #[test]
    fn without_a_limit_no_source_is_counted() {
        let mut sources = Sources::new(None, KeyedHash([1; 16]));
        sources.add(ip("192.0.2.1"));
        assert!(!sources.is_exhausted(ip("192.0.2.1")));
        assert!(sources.connections.is_empty());
    }

    #[test]
    fn sources_are_addresses_or_networks() {
        let of = |text: &str| Source::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(of("192.0.2.1"), of("::ffff:192.0.2.1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:0:0:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
    }
}
