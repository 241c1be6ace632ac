//! Rights and limits of an application: the operator sets them, the broker passes them on.

use std::net::IpAddr;
use std::ops::RangeInclusive;

/// Limits of one application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Most sockets at once, including those of orphaned connections.
    pub sockets_max: u32,
    /// Most listeners at once.
    pub listeners_max: u32,
    /// Most bound addresses and ports at once, including those of listeners.
    pub bindings_max: u32,
    /// Most open files at once.
    pub files_max: u32,
    /// Largest share of its sockets for connections of one source, in percent.
    pub source_share_percent: u32,
    /// Most commands in a turn, of all its processes together.
    pub messages_per_turn: u32,
    /// Time limit of its commands in a turn, in microseconds; the command in progress is completed.
    pub turn_us_max: u32,
    /// Addresses and ports that it may use.
    pub rules: Rules,
}

impl Default for Grant {
    fn default() -> Grant {
        Grant {
            sockets_max: 65_536,
            listeners_max: 64,
            bindings_max: 4096,
            files_max: 1024,
            source_share_percent: 80,
            messages_per_turn: 256,
            turn_us_max: 200,
            rules: Rules::default(),
        }
    }
}

/// Addresses and ports that an application may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Ports that it may bind. Port 0, an unspecified one, is always allowed.
    pub ports: Vec<RangeInclusive<u16>>,
    /// The host's addresses that it may use, as networks with their prefix length in bits; `None`:
    /// all.
    pub addresses: Option<Vec<(IpAddr, u8)>>,
    /// Permission to open connections.
    pub may_connect: bool,
}

impl Default for Rules {
    /// Ports from 1024 on, all addresses, connections.
    fn default() -> Rules {
        Rules {
            ports: vec![1024..=u16::MAX],
            addresses: None,
            may_connect: true,
        }
    }
}

impl Rules {
    /// Reports whether a port may be bound.
    pub fn allows_port(&self, port: u16) -> bool {
        port == 0 || self.ports.iter().any(|ports| ports.contains(&port))
    }

    /// Reports whether a local address may be used; an unspecified one stands for all.
    pub fn allows_address(&self, ip: IpAddr) -> bool {
        let Some(networks) = &self.addresses else {
            return true;
        };
        !ip.is_unspecified() && networks.iter().any(|network| contains(*network, ip))
    }
}

fn contains((network, prefix): (IpAddr, u8), ip: IpAddr) -> bool {
    let is_equal = |a: u128, b: u128, bits: u32| {
        let host_bits = bits - u32::from(prefix).min(bits);
        a.checked_shr(host_bits).unwrap_or(0) == b.checked_shr(host_bits).unwrap_or(0)
    };
    match (network, ip) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            is_equal(a.to_bits().into(), b.to_bits().into(), u32::BITS)
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => is_equal(a.to_bits(), b.to_bits(), u128::BITS),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_allowed_by_network() {
        let rules = |network: &str, prefix| Rules {
            addresses: Some(vec![(network.parse().unwrap(), prefix)]),
            ..Rules::default()
        };
        for (network, prefix, ip, allowed) in [
            ("10.77.0.0", 24, "10.77.0.9", true),
            ("10.77.0.0", 24, "10.77.1.9", false),
            ("10.77.0.0", 24, "0.0.0.0", false),
            ("10.77.0.0", 24, "::", false),
            ("0.0.0.0", 0, "192.0.2.1", true),
            ("0.0.0.0", 0, "fd77::1", false),
            ("fd77::", 16, "fd77:1::2", true),
            ("fd77::2", 128, "fd77::2", true),
            ("fd77::2", 128, "fd77::3", false),
            ("::", 0, "fd77::3", true),
        ] {
            let ip = ip.parse().unwrap();
            assert_eq!(
                rules(network, prefix).allows_address(ip),
                allowed,
                "{network} {ip}"
            );
        }
        assert!(Rules::default().allows_address("0.0.0.0".parse().unwrap()));
    }

    #[test]
    fn ports_below_1024_need_a_rule() {
        let rules = Rules::default();
        assert!(rules.allows_port(0) && rules.allows_port(1024) && rules.allows_port(65_535));
        assert!(!rules.allows_port(1023) && !rules.allows_port(80));
        let rules = Rules {
            ports: vec![80..=80],
            ..Rules::default()
        };
        assert!(rules.allows_port(80) && !rules.allows_port(8080));
    }
}
