//! A table of networks, each with a value.
//!
//! A look-up costs one probe for each length of prefix in the table, however many networks there
//! are.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use crate::prefix::Prefix;

/// The table.
#[derive(Clone, Debug)]
pub struct Networks<T> {
    values: HashMap<Prefix, T>,
    /// How many networks have a prefix of this length, in bits, for IPv4 and IPv6.
    lengths: [BTreeMap<u8, usize>; 2],
}

impl<T> Default for Networks<T> {
    fn default() -> Self {
        Networks {
            values: HashMap::new(),
            lengths: [BTreeMap::new(), BTreeMap::new()],
        }
    }
}

impl<T> Networks<T> {
    /// Adds a network, and returns its previous value.
    pub fn insert(&mut self, network: Prefix, value: T) -> Option<T> {
        let network = Prefix::network(network.address, network.bits);
        let before = self.values.insert(network, value);
        if before.is_none() {
            *self.lengths[family(network.address)]
                .entry(network.bits)
                .or_default() += 1;
        }
        before
    }

    /// The value of this network itself.
    pub fn get(&self, network: Prefix) -> Option<&T> {
        let network = Prefix::network(network.address, network.bits);
        self.values.get(&network)
    }

    /// Removes a network, not those that it contains, and returns its value.
    pub fn remove(&mut self, network: Prefix) -> Option<T> {
        let network = Prefix::network(network.address, network.bits);
        let removed = self.values.remove(&network)?;
        let lengths = &mut self.lengths[family(network.address)];
        if let Some(count) = lengths.get_mut(&network.bits) {
            *count -= 1;
            if *count == 0 {
                lengths.remove(&network.bits);
            }
        }
        Some(removed)
    }

    /// Removes the networks for which `keeps` is false.
    pub fn retain(&mut self, mut keeps: impl FnMut(&T) -> bool) {
        let gone = self.values.iter().filter(|(_, value)| !keeps(value));
        let gone: Vec<Prefix> = gone.map(|(network, _)| *network).collect();
        for network in gone {
            self.remove(network);
        }
    }

    /// The networks that contain an address, the largest first. An IPv4 address mapped into IPv6 is
    /// an IPv4 address.
    pub fn containing(&self, address: IpAddr) -> impl Iterator<Item = (Prefix, &T)> {
        let address = address.to_canonical();
        let lengths = self.lengths[family(address)].keys();
        lengths.filter_map(move |&bits| {
            let (network, value) = self.values.get_key_value(&Prefix::network(address, bits))?;
            Some((*network, value))
        })
    }

    /// All networks, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (Prefix, &T)> {
        self.values.iter().map(|(network, value)| (*network, value))
    }

    /// The number of networks.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

impl FromIterator<Prefix> for Networks<()> {
    fn from_iter<I: IntoIterator<Item = Prefix>>(networks: I) -> Self {
        let mut table = Networks::default();
        for network in networks {
            table.insert(network, ());
        }
        table
    }
}

fn family(address: IpAddr) -> usize {
    usize::from(address.is_ipv6())
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::prefix::any_contains;

    fn network(address: &str, bits: u8) -> Prefix {
        Prefix::network(address.parse().unwrap(), bits)
    }

    #[test]
    fn an_address_is_found_in_every_network_that_contains_it() {
        let mut table = Networks::default();
        for (name, address, bits) in [
            ("all", "0.0.0.0", 0),
            ("ten", "10.0.0.0", 8),
            ("one", "10.1.2.3", 32),
            ("six", "fd00::", 8),
        ] {
            table.insert(network(address, bits), name);
        }
        let of = |address: &str| -> Vec<&str> {
            let found = table.containing(address.parse().unwrap());
            found.map(|(_, name)| *name).collect()
        };
        assert_eq!(of("10.1.2.3"), ["all", "ten", "one"]);
        assert_eq!(of("::ffff:10.1.2.4"), ["all", "ten"]);
        assert_eq!(of("192.0.2.1"), ["all"]);
        assert_eq!(of("fd00::1"), ["six"]);
        assert_eq!(of("2001:db8::1"), [""; 0]);
    }

    #[test]
    fn what_is_removed_is_not_found() {
        let mut table = Networks::default();
        let (wide, narrow) = (network("10.0.0.0", 8), network("10.1.0.0", 16));
        assert_eq!(table.insert(wide, 1), None);
        assert_eq!(table.insert(network("10.9.9.9", 8), 2), Some(1));
        table.insert(narrow, 3);
        assert_eq!(table.len(), 2);
        assert_eq!(table.remove(wide), Some(2));
        assert_eq!(table.remove(wide), None);
        assert_eq!(
            table.lengths[0].len(),
            1,
            "no probe for a length that is gone"
        );
        table.retain(|&value| value != 3);
        assert!(table.is_empty() && table.lengths[0].is_empty());
    }

    proptest! {
        /// Every address of a small space, against networks drawn from it.
        #[test]
        fn a_table_answers_as_a_list_does(list in vec((any::<u8>(), 24..=32_u8), 0..12)) {
            let list: Vec<Prefix> = list
                .iter()
                .map(|(last, bits)| Prefix::network(IpAddr::from([192, 0, 2, *last]), *bits))
                .collect();
            let table: Networks<()> = list.iter().copied().collect();
            for last in 0..=255 {
                let address = IpAddr::from([192, 0, 2, last]);
                let is_found = table.containing(address).next().is_some();
                prop_assert_eq!(is_found, any_contains(&list, address), "{}", address);
            }
        }
    }
}
