//! Values of `[sockets]`: ranges of ports, networks of own addresses, and offloads.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use host::OffloadPolicy;
use netsetup::cidr::Cidr;
use serde::de::{self, Deserialize, Deserializer, Unexpected, Visitor};
use serde::ser::{Serialize, Serializer};
use server::Prefix;

/// TCP ports from the first to the last, both included: `8000-8999`, or `80` alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    pub(crate) first: u16,
    pub(crate) last: u16,
}

impl PortRange {
    /// Returns `None` if the range is empty, or has port 0.
    pub fn new(first: u16, last: u16) -> Option<Self> {
        (first > 0 && first <= last).then_some(Self { first, last })
    }

    /// The lowest port.
    pub fn first(self) -> u16 {
        self.first
    }

    /// The highest port.
    pub fn last(self) -> u16 {
        self.last
    }

    /// Whether the range has this port.
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

impl FromStr for PortRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let port = |text: &str| {
            let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then(|| text.parse().ok()).flatten()
        };
        let range = port(first).zip(port(last));
        range
            .and_then(|(first, last)| Self::new(first, last))
            .ok_or_else(|| {
                format!(
                    "{text:?} names no TCP ports: write one from 1 to 65535, or the first and the \
                     last, such as 8000-8999"
                )
            })
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

/// Addresses that share a prefix: `10.77.0.0/24`, or `10.77.0.2` alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange(Cidr);

impl AddressRange {
    /// Whether the network has this address.
    pub fn contains(self, address: IpAddr) -> bool {
        self.0.contains(address)
    }

    /// Whether every address of the other network is in this one.
    pub fn holds(self, other: Self) -> bool {
        self.0.prefix_len <= other.0.prefix_len && self.0.contains(other.0.address)
    }

    /// Whether the networks have an address in common.
    pub fn overlaps(self, other: Self) -> bool {
        self.holds(other) || other.holds(self)
    }

    /// One of its addresses, and the length of the prefix, in bits.
    pub fn prefix(self) -> (IpAddr, u8) {
        (self.0.address, self.0.prefix_len)
    }

    /// The network, as the host process knows it.
    pub fn network(self) -> Prefix {
        Prefix::network(self.0.address, self.0.prefix_len)
    }
}

impl FromStr for AddressRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (address, prefix_len) = match text.split_once('/') {
            Some((address, prefix_len)) => (address, Some(prefix_len)),
            None => (text, None),
        };
        let range = address.parse::<IpAddr>().ok().and_then(|address| {
            let bits = if address.is_ipv4() { 32 } else { 128 };
            let prefix_len = prefix_len.map_or(Some(bits), |text| text.parse().ok())?;
            (prefix_len <= bits).then(|| Self(Cidr::new(address, prefix_len)))
        });
        range.ok_or_else(|| {
            format!("{text:?} names no addresses: write 192.0.2.10, or as in 192.0.2.0/24")
        })
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Parts of connections that NIC stacks take over: `true`, `false`, or `"on-request"` of programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OffloadOption {
    /// Never.
    #[default]
    Off,
    /// If a program requests it.
    OnRequest,
    /// Unless a program declines it.
    On,
}

const ON_REQUEST: &str = "on-request";

impl OffloadOption {
    /// The policy of the host stack.
    pub fn policy(self) -> OffloadPolicy {
        match self {
            OffloadOption::Off => OffloadPolicy::Off,
            OffloadOption::OnRequest => OffloadPolicy::OnRequest,
            OffloadOption::On => OffloadPolicy::On,
        }
    }
}

impl FromStr for OffloadOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "false" => Ok(OffloadOption::Off),
            ON_REQUEST => Ok(OffloadOption::OnRequest),
            "true" => Ok(OffloadOption::On),
            _ => Err("it is true, false or on-request".to_owned()),
        }
    }
}

impl Serialize for OffloadOption {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            OffloadOption::Off => serializer.serialize_bool(false),
            OffloadOption::OnRequest => serializer.serialize_str(ON_REQUEST),
            OffloadOption::On => serializer.serialize_bool(true),
        }
    }
}

impl<'de> Deserialize<'de> for OffloadOption {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Parse)
    }
}

struct Parse;

impl Visitor<'_> for Parse {
    type Value = OffloadOption;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "true, false or {ON_REQUEST:?}")
    }

    fn visit_bool<E: de::Error>(self, is_on: bool) -> Result<OffloadOption, E> {
        Ok(if is_on {
            OffloadOption::On
        } else {
            OffloadOption::Off
        })
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<OffloadOption, E> {
        match text {
            ON_REQUEST => Ok(OffloadOption::OnRequest),
            _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
        }
    }
}

#[cfg(test)]
impl schemars::JsonSchema for OffloadOption {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "OffloadOption".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "enum": [false, true, ON_REQUEST] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_one_or_a_range() {
        for (text, first, last, again) in [
            ("80", 80, 80, "80"),
            ("8000-8999", 8000, 8999, "8000-8999"),
            ("1-65535", 1, 65535, "1-65535"),
            ("7-7", 7, 7, "7"),
        ] {
            let range: PortRange = text.parse().unwrap();
            assert_eq!((range.first(), range.last()), (first, last), "{text}");
            assert!(range.contains(first) && range.contains(last));
            assert!(!range.contains(first - 1));
            assert_eq!(range.to_string(), again);
        }
        for text in [
            "", "0", "0-5", "9-8", "65536", "-", "80-", "-80", "+80", "1-2-3", "http", "80 ",
        ] {
            let error = text.parse::<PortRange>().unwrap_err();
            assert!(error.contains("8000-8999"), "{text}: {error}");
        }
    }

    #[test]
    fn addresses_are_one_or_a_network() {
        let range = |text: &str| text.parse::<AddressRange>().unwrap();
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let network = range("10.77.0.0/24");
        assert!(network.contains(address("10.77.0.255")));
        assert!(!network.contains(address("10.77.1.0")));
        assert!(!network.contains(address("fd77::2")));
        assert!(range("fd77::/64").contains(address("fd77::2")));
        assert!(range("0.0.0.0/0").contains(address("192.0.2.1")));
        let one = range("10.77.0.2");
        assert_eq!(one.to_string(), "10.77.0.2/32");
        assert!(one.contains(address("10.77.0.2")) && !one.contains(address("10.77.0.3")));
        assert_eq!(range("10.77.0.2/24").network(), network.network());
        assert!(network.holds(one) && !one.holds(network) && network.holds(network));
        assert!(one.overlaps(network) && !one.overlaps(range("10.77.0.3")));
        assert!(!network.holds(range("fd77::/64")));
        for text in [
            "",
            "10.77.0.0/33",
            "fd77::/129",
            "10.77.0/24",
            "a/8",
            "10.0.0.0/",
        ] {
            let error = text.parse::<AddressRange>().unwrap_err();
            assert!(error.contains("192.0.2.0/24"), "{text}: {error}");
        }
    }

    #[test]
    fn what_is_offloaded_is_a_switch_or_on_request() {
        let of = |text: &str| {
            let table = format!("setup = {text}");
            toml::from_str::<crate::Offload>(&table).map(|offload| offload.setup)
        };
        for (text, value) in [
            ("false", OffloadOption::Off),
            ("true", OffloadOption::On),
            ("'on-request'", OffloadOption::OnRequest),
        ] {
            assert_eq!(of(text), Ok(value));
            assert_eq!(text.trim_matches('\'').parse(), Ok(value));
            let written = serde_json::to_string(&value).unwrap();
            assert_eq!(
                serde_json::from_str::<OffloadOption>(&written).unwrap(),
                value
            );
        }
        for text in ["'true'", "'on'", "1", "[]"] {
            assert!(of(text).is_err(), "{text}");
        }
        assert!("on".parse::<OffloadOption>().is_err());
    }
}
