//! Which clients may connect: networks that the configuration allows or denies, and denials for a
//! time.

use std::net::IpAddr;

use crate::networks::Networks;
use crate::prefix::Prefix;

/// Most denials for a time that a server keeps, some 60 bytes each.
pub const DENIALS_MAX: usize = 65_536;

/// The clients that may connect. Of an address in several networks, a denial counts.
#[derive(Clone, Debug, Default)]
pub struct AccessList {
    /// If set, no other networks may connect.
    allowed: Option<Networks<()>>,
    denied: Networks<()>,
    denials: Denials,
}

impl AccessList {
    /// Replaces the networks of the configuration. Denials for a time stay.
    /// With `allowed`, even without a network in it, no others may connect.
    pub fn configure(&mut self, allowed: Option<Networks<()>>, denied: Networks<()>) {
        (self.allowed, self.denied) = (allowed, denied);
    }

    /// The denials for a time.
    pub fn denials(&mut self) -> &mut Denials {
        &mut self.denials
    }

    /// True if all clients may connect.
    pub fn is_open(&self) -> bool {
        self.allowed.is_none() && self.denied.is_empty() && self.denials.is_empty()
    }

    /// True if a client with this address may connect at `now_us`, in microseconds.
    pub fn permits(&self, now_us: u64, address: IpAddr) -> bool {
        let allowed = self.allowed.as_ref();
        let is_allowed = allowed.is_none_or(|allowed| allowed.containing(address).next().is_some());
        let mut denied = self.denied.containing(address);
        is_allowed && denied.next().is_none() && !self.denials.contain(now_us, address)
    }
}

/// Networks that are denied until a time, in microseconds, or for good.
#[derive(Clone, Debug, Default)]
pub struct Denials {
    until_us: Networks<Option<u64>>,
}

/// There are [`DENIALS_MAX`] denials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl Denials {
    /// Denies a network until `until_us`, or for good; replaces a denial of the same network.
    ///
    /// # Errors
    /// If there are as many as there may be, and none is over.
    pub fn add(&mut self, now_us: u64, network: Prefix, until_us: Option<u64>) -> Result<(), Full> {
        if self.until_us.len() >= DENIALS_MAX {
            self.expire(now_us);
            if self.until_us.len() >= DENIALS_MAX && self.until_us.get(network).is_none() {
                return Err(Full);
            }
        }
        self.until_us.insert(network, until_us);
        Ok(())
    }

    /// Takes a denial of this network back; false if there was none.
    pub fn remove(&mut self, now_us: u64, network: Prefix) -> bool {
        let removed = self.until_us.remove(network);
        removed.is_some_and(|until_us| is_on(until_us, now_us))
    }

    /// The networks denied at `now_us`, with the time that is left in microseconds, in order of
    /// their addresses.
    pub fn list(&mut self, now_us: u64) -> Vec<(Prefix, Option<u64>)> {
        self.expire(now_us);
        let denials = self.until_us.iter();
        let mut denials: Vec<_> = denials
            .map(|(network, until)| (network, until.map(|until_us| until_us - now_us)))
            .collect();
        denials.sort_by_key(|(network, _)| (network.address, network.bits));
        denials
    }

    fn is_empty(&self) -> bool {
        self.until_us.is_empty()
    }

    fn contain(&self, now_us: u64, address: IpAddr) -> bool {
        let mut denials = self.until_us.containing(address);
        denials.any(|(_, until_us)| is_on(*until_us, now_us))
    }

    fn expire(&mut self, now_us: u64) {
        self.until_us.retain(|until_us| is_on(*until_us, now_us));
    }
}

fn is_on(until_us: Option<u64>, now_us: u64) -> bool {
    until_us.is_none_or(|until_us| until_us > now_us)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Prefix {
        let (address, bits) = text.split_once('/').unwrap();
        Prefix::network(address.parse().unwrap(), bits.parse().unwrap())
    }

    fn networks(texts: &[&str]) -> Networks<()> {
        texts.iter().map(|text| network(text)).collect()
    }

    fn permits(list: &AccessList, now_us: u64, address: &str) -> bool {
        list.permits(now_us, address.parse().unwrap())
    }

    #[test]
    fn of_an_address_that_is_allowed_and_denied_the_denial_counts() {
        let mut list = AccessList::default();
        assert!(list.is_open() && permits(&list, 0, "192.0.2.1"));
        let allowed = networks(&["192.0.2.0/24", "10.1.2.3/32"]);
        list.configure(Some(allowed), networks(&["192.0.2.128/25", "10.0.0.0/8"]));
        for (address, may) in [
            ("192.0.2.1", true),
            ("192.0.2.129", false),
            ("10.1.2.3", false),
            ("198.51.100.1", false),
            ("2001:db8::1", false),
        ] {
            assert_eq!(permits(&list, 0, address), may, "{address}");
        }
        list.configure(None, networks(&["2001:db8::/32"]));
        assert!(permits(&list, 0, "192.0.2.129") && !permits(&list, 0, "2001:db8:1::1"));
        list.configure(Some(Networks::default()), Networks::default());
        assert!(
            !permits(&list, 0, "192.0.2.1"),
            "an empty list allows no one"
        );
    }

    #[test]
    fn a_denial_ends_by_itself_or_is_taken_back() {
        let mut list = AccessList::default();
        let one = network("192.0.2.1/32");
        list.denials().add(0, one, Some(100)).unwrap();
        assert!(!permits(&list, 99, "192.0.2.1") && permits(&list, 100, "192.0.2.1"));
        assert!(permits(&list, 99, "192.0.2.2"));
        list.denials().add(0, one, None).unwrap();
        assert_eq!(list.denials().list(1_000), [(one, None)]);
        list.configure(None, Networks::default());
        assert!(!permits(&list, 1_000, "192.0.2.1"), "a reload keeps it");
        assert!(list.denials().remove(1_000, one) && list.is_open());
        assert!(!list.denials().remove(1_000, one));
        list.denials().add(0, one, Some(100)).unwrap();
        assert!(!list.denials().remove(100, one), "it is over already");
    }

    #[test]
    fn a_full_table_makes_room_only_where_denials_are_over() {
        let mut denials = Denials::default();
        let nth = |n: u32| Prefix::network(IpAddr::from(n.to_be_bytes()), 32);
        for n in 0..DENIALS_MAX as u32 {
            denials.add(0, nth(n), Some(u64::from(n) + 1)).unwrap();
        }
        let other = nth(u32::MAX);
        assert_eq!(denials.add(0, other, None), Err(Full));
        assert_eq!(
            denials.add(0, nth(7), None),
            Ok(()),
            "it takes no more room"
        );
        assert_eq!(denials.add(1, other, None), Ok(()));
        assert_eq!(denials.list(DENIALS_MAX as u64).len(), 2);
    }
}
