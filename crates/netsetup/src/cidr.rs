//! An address together with the length of its on-link prefix, as people write it: `192.0.2.10/24`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// An address that a host may have on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    /// The host's address.
    pub address: IpAddr,
    /// Length of the on-link prefix, in bits.
    pub prefix_len: u8,
}

/// Reason why a text is not the address of a host on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CidrError {
    /// No slash and length follow the address.
    NoPrefix,
    /// The text before the slash is no IP address.
    Address,
    /// The length is not a number in the range.
    Prefix {
        /// Most bits of a prefix of this address family.
        max: u8,
    },
    /// Multicast, loopback, unspecified or reserved.
    NotUnicast,
    /// `fe80::/10` or `169.254.0.0/16`.
    LinkLocal,
    /// All bits behind the prefix are zero.
    Network,
    /// All bits behind the prefix are one.
    Broadcast,
}

impl Cidr {
    /// Takes both without a check; parsing checks them.
    pub const fn new(address: IpAddr, prefix_len: u8) -> Self {
        Self {
            address,
            prefix_len,
        }
    }

    /// Returns true if `other` lies within the on-link prefix.
    pub fn contains(&self, other: IpAddr) -> bool {
        match (self.address, other) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let mask = mask_v4(self.prefix_len);
                own.to_bits() & mask == other.to_bits() & mask
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let mask = mask_v6(self.prefix_len);
                own.to_bits() & mask == other.to_bits() & mask
            }
            _ => false,
        }
    }

    /// Returns true if the prefix is the address itself.
    pub fn is_host(&self) -> bool {
        self.prefix_len == if self.address.is_ipv4() { 32 } else { 128 }
    }

    /// Returns true if the two prefixes share an address.
    pub fn overlaps(&self, other: &Cidr) -> bool {
        self.contains(other.address) || other.contains(self.address)
    }
}

fn mask_v4(prefix_len: u8) -> u32 {
    u32::MAX
        .checked_shl(32_u32.saturating_sub(prefix_len.into()))
        .unwrap_or(0)
}

fn mask_v6(prefix_len: u8) -> u128 {
    u128::MAX
        .checked_shl(128_u32.saturating_sub(prefix_len.into()))
        .unwrap_or(0)
}

impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, CidrError> {
        let Some((address, prefix_len)) = text.split_once('/') else {
            return Err(match text.parse::<IpAddr>() {
                Ok(_) => CidrError::NoPrefix,
                Err(_) => CidrError::Address,
            });
        };
        let address: IpAddr = address.parse().map_err(|_| CidrError::Address)?;
        let max = if address.is_ipv4() { 32 } else { 128 };
        let prefix_len = match prefix_len.parse::<u8>() {
            Ok(prefix_len) if (1..=max).contains(&prefix_len) => prefix_len,
            _ => return Err(CidrError::Prefix { max }),
        };
        match address {
            IpAddr::V4(address) => check_v4(address, prefix_len)?,
            IpAddr::V6(address) => check_v6(address)?,
        }
        Ok(Self {
            address,
            prefix_len,
        })
    }
}

fn check_v4(address: Ipv4Addr, prefix_len: u8) -> Result<(), CidrError> {
    if address.is_unspecified()
        || address.is_loopback()
        || address.is_multicast()
        || address.is_broadcast()
    {
        return Err(CidrError::NotUnicast);
    }
    // RFC 3021: a /31 has neither a network nor a broadcast address.
    let host_bits = address.to_bits() & !mask_v4(prefix_len);
    match host_bits {
        _ if prefix_len >= 31 => Ok(()),
        0 => Err(CidrError::Network),
        bits if bits == !mask_v4(prefix_len) => Err(CidrError::Broadcast),
        _ => Ok(()),
    }
}

fn check_v6(address: Ipv6Addr) -> Result<(), CidrError> {
    if address.is_unspecified() || address.is_loopback() || address.is_multicast() {
        return Err(CidrError::NotUnicast);
    }
    if address.to_ipv4_mapped().is_some() {
        return Err(CidrError::NotUnicast);
    }
    if address.is_unicast_link_local() {
        return Err(CidrError::LinkLocal);
    }
    Ok(())
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_len)
    }
}

impl fmt::Display for CidrError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPrefix => f.write_str(
                "the length of the on-link prefix is missing: write it \
                as in 192.0.2.10/24",
            ),
            Self::Address => f.write_str(
                "not an IP address: write it as in 192.0.2.10/24 or fd00::10/64 (ROOT stands \
                 before --addr)",
            ),
            Self::Prefix { max } => write!(f, "the prefix length must be a number from 1 to {max}"),
            Self::NotUnicast => f.write_str("not an address that a host can have on a link"),
            Self::LinkLocal => f.write_str(
                "a link-local address would need a zone in every URL: give a global or a unique \
                 local one (fd00::/8)",
            ),
            Self::Network => f.write_str(
                "this is the address of the network itself: wrong address \
                or wrong prefix",
            ),
            Self::Broadcast => f.write_str(
                "this is the network's broadcast address: wrong address \
                or wrong prefix",
            ),
        }
    }
}

impl std::error::Error for CidrError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Cidr, CidrError> {
        text.parse()
    }

    #[test]
    fn what_people_write_comes_back() {
        for text in [
            "192.0.2.10/24",
            "10.77.0.2/24",
            "203.0.113.1/32",
            "198.51.100.0/31",
            "fd77::2/64",
        ] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!(parse("192.0.2.10"), Err(CidrError::NoPrefix));
        assert_eq!(parse("fd77::2"), Err(CidrError::NoPrefix));
        assert_eq!(parse("192.0.2/24"), Err(CidrError::Address));
        assert_eq!(parse(""), Err(CidrError::Address));
        assert_eq!(parse("examples/site"), Err(CidrError::Address));
        assert_eq!(parse("192.0.2.10/"), Err(CidrError::Prefix { max: 32 }));
        assert_eq!(parse("192.0.2.10/0"), Err(CidrError::Prefix { max: 32 }));
        assert_eq!(parse("192.0.2.10/33"), Err(CidrError::Prefix { max: 32 }));
        assert_eq!(parse("fd77::2/129"), Err(CidrError::Prefix { max: 128 }));
        assert_eq!(parse("fd77::2/300"), Err(CidrError::Prefix { max: 128 }));
        assert_eq!(parse("192.0.2.0/24"), Err(CidrError::Network));
        assert_eq!(parse("192.0.2.255/24"), Err(CidrError::Broadcast));
        assert_eq!(parse("127.0.0.1/8"), Err(CidrError::NotUnicast));
        assert_eq!(parse("224.0.0.1/24"), Err(CidrError::NotUnicast));
        assert_eq!(parse("ff02::1/64"), Err(CidrError::NotUnicast));
        assert_eq!(parse("::ffff:192.0.2.1/64"), Err(CidrError::NotUnicast));
        assert_eq!(parse("fe80::1/64"), Err(CidrError::LinkLocal));
    }

    #[test]
    fn prefixes_contain_and_overlap() {
        let small = parse("10.77.0.2/24").unwrap();
        let large = parse("10.0.0.1/8").unwrap();
        let six = parse("fd77::2/64").unwrap();
        assert!(small.contains("10.77.0.254".parse().unwrap()));
        assert!(!small.contains("10.77.1.1".parse().unwrap()));
        assert!(!small.contains("fd77::1".parse().unwrap()));
        assert!(six.contains("fd77::ffff".parse().unwrap()));
        assert!(!six.contains("fd77:0:0:1::1".parse().unwrap()));
        assert!(small.overlaps(&large) && large.overlaps(&small));
        assert!(!small.overlaps(&parse("10.78.0.2/24").unwrap()));
        assert!(!small.overlaps(&six));
    }
}
