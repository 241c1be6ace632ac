//! Networks: addresses with a common prefix.

use std::fmt;
use std::net::IpAddr;

/// Length of the prefix of IPv4 addresses mapped into IPv6 (RFC 4291 §2.5.5.2), in bits.
const MAPPED_BITS: u8 = 96;

/// A network: addresses with a common prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Prefix {
    /// An address in the network.
    pub address: IpAddr,
    /// Length of the common prefix, in bits.
    pub bits: u8,
}

impl Prefix {
    /// The network of an address and its first `bits` bits: the others are zero, and an IPv4
    /// network mapped into IPv6 is an IPv4 network. Two networks with the same addresses are equal.
    pub fn network(address: IpAddr, bits: u8) -> Prefix {
        let (address, bits) = match (address.to_canonical(), address) {
            (IpAddr::V4(own), IpAddr::V6(_)) if bits >= MAPPED_BITS => {
                (IpAddr::V4(own), bits - MAPPED_BITS)
            }
            _ => (address, bits),
        };
        match address {
            IpAddr::V4(own) => {
                let bits = bits.min(32);
                let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
                let address = IpAddr::V4((own.to_bits() & mask).into());
                Prefix { address, bits }
            }
            IpAddr::V6(own) => {
                let bits = bits.min(128);
                let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
                let address = IpAddr::V6((own.to_bits() & mask).into());
                Prefix { address, bits }
            }
        }
    }

    /// True if the network contains the address. An IPv4 address mapped into IPv6 is an IPv4
    /// address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let bits = u32::from(self.bits);
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(address)) => {
                let differing = u32::from(own) ^ u32::from(address);
                differing.checked_shr(32 - bits.min(32)).unwrap_or(0) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(address)) => {
                let differing = u128::from(own) ^ u128::from(address);
                differing.checked_shr(128 - bits.min(128)).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = if self.address.is_ipv4() { 32 } else { 128 };
        match self.bits >= all {
            true => self.address.fmt(f),
            false => write!(f, "{}/{}", self.address, self.bits),
        }
    }
}

/// True if one of the networks contains the address.
pub fn any_contains(networks: &[Prefix], address: IpAddr) -> bool {
    networks.iter().any(|network| network.contains(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_contain_what_begins_like_them() {
        let prefix = |address: &str, bits| Prefix {
            address: address.parse().unwrap(),
            bits,
        };
        let contains = |prefix: Prefix, address: &str| prefix.contains(address.parse().unwrap());
        assert!(contains(prefix("10.1.0.0", 16), "10.1.255.1"));
        assert!(!contains(prefix("10.1.0.0", 16), "10.2.0.0"));
        assert!(contains(prefix("10.1.2.3", 32), "::ffff:10.1.2.3"));
        assert!(contains(prefix("0.0.0.0", 0), "192.0.2.1"));
        assert!(!contains(prefix("0.0.0.0", 0), "fd00::1"));
        assert!(contains(prefix("fd00::", 8), "fdff::1"));
        assert!(!contains(prefix("fd00::1", 128), "fd00::2"));
        assert!(contains(prefix("::", 0), "fd00::2"));
    }

    #[test]
    fn a_network_is_its_addresses() {
        let network =
            |address: &str, bits| Prefix::network(address.parse().unwrap(), bits).to_string();
        for (address, bits, expected) in [
            ("10.1.2.3", 16, "10.1.0.0/16"),
            ("10.1.2.3", 32, "10.1.2.3"),
            ("10.1.2.3", 0, "0.0.0.0/0"),
            ("::ffff:10.1.2.3", 112, "10.1.0.0/16"),
            ("::ffff:10.1.2.3", 128, "10.1.2.3"),
            ("::ffff:10.1.2.3", 95, "::fffe:0:0/95"),
            ("2001:db8:1:2:3::4", 64, "2001:db8:1:2::/64"),
            ("2001:db8::1", 128, "2001:db8::1"),
            ("2001:db8::1", 0, "::/0"),
        ] {
            assert_eq!(network(address, bits), expected, "{address}/{bits}");
        }
    }

    #[test]
    fn of_several_networks_one_must_contain_the_address() {
        let networks = [("10.0.0.0", 8), ("fd00::", 8)].map(|(address, bits)| Prefix {
            address: address.parse().unwrap(),
            bits,
        });
        for (address, is_in) in [("10.9.9.9", true), ("fd00::7", true), ("11.0.0.1", false)] {
            let contains = any_contains(&networks, address.parse().unwrap());
            assert_eq!(contains, is_in, "{address}");
        }
        assert!(!any_contains(&[], "10.9.9.9".parse().unwrap()));
    }
}
