//! Notation of the other stack's place.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Prefix of a place on an Ethernet link.
const ETHERNET: &str = "eth:";

/// An interface's address: `02:00:5e:10:00:01`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MacAddress(pub [u8; 6]);

/// The interface of a control link: `eth:IFACE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlLink {
    /// Name of the interface.
    pub interface: String,
}

/// Place of a running NIC stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NicPlace {
    /// A Unix socket on this machine.
    Socket(PathBuf),
    /// Another machine: `eth:IFACE,MAC`.
    Ethernet {
        /// The interface on this machine.
        interface: String,
        /// The address of the other machine's interface.
        peer: MacAddress,
    },
}

/// Place of another node: `eth:IFACE,MAC`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePlace {
    /// The interface on this machine.
    pub interface: String,
    /// The address of the other machine's interface.
    pub peer: MacAddress,
}

impl FromStr for NodePlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let place = text.strip_prefix(ETHERNET);
        match place.and_then(|place| place.split_once(',')) {
            Some((interface, peer)) if !interface.is_empty() => Ok(NodePlace {
                interface: interface.to_owned(),
                peer: peer.parse()?,
            }),
            _ => Err("write eth:IFACE,MAC, with the address of the other node".to_owned()),
        }
    }
}

impl FromStr for MacAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text} is no address of a machine: write 02:00:5e:10:00:01");
        let mut mac = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut mac {
            let part = parts
                .next()
                .filter(|part| part.len() == 2)
                .ok_or_else(wrong)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| wrong())?;
        }
        if parts.next().is_some() {
            return Err(wrong());
        }
        match mac[0] & 1 {
            0 => Ok(MacAddress(mac)),
            _ => Err(format!(
                "{text} is the address of a group, not of a machine"
            )),
        }
    }
}

impl FromStr for ControlLink {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix(ETHERNET) {
            Some(interface) if !interface.is_empty() => Ok(ControlLink {
                interface: interface.to_owned(),
            }),
            _ => Err("write eth:IFACE".to_owned()),
        }
    }
}

impl FromStr for NicPlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(place) = text.strip_prefix(ETHERNET) else {
            return Ok(NicPlace::Socket(text.into()));
        };
        match place.split_once(',') {
            Some((interface, peer)) if !interface.is_empty() => Ok(NicPlace::Ethernet {
                interface: interface.to_owned(),
                peer: peer.parse()?,
            }),
            _ => Err("write eth:IFACE,MAC, with the address of the NIC stack's machine".to_owned()),
        }
    }
}

impl fmt::Display for NicPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NicPlace::Socket(path) => write!(f, "{}", path.display()),
            NicPlace::Ethernet { interface, peer } => write!(f, "{ETHERNET}{interface},{peer}"),
        }
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_named_by_both_interfaces() {
        let place: NodePlace = "eth:eth1,02:00:5e:10:00:01".parse().unwrap();
        assert_eq!(place.interface, "eth1");
        assert_eq!(place.peer.to_string(), "02:00:5e:10:00:01");
        for wrong in [
            "eth1",
            "eth:eth1",
            "eth:,02:00:5e:10:00:01",
            "eth:eth1,x",
            "",
        ] {
            assert!(wrong.parse::<NodePlace>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_place_is_a_socket_or_a_machine_on_a_link() {
        assert_eq!("/run/nic".parse(), Ok(NicPlace::Socket("/run/nic".into())));
        let peer = MacAddress([2, 0, 0x5e, 0x10, 0, 1]);
        assert_eq!(
            "eth:eth1,02:00:5E:10:00:01".parse(),
            Ok(NicPlace::Ethernet {
                interface: "eth1".into(),
                peer
            })
        );
        assert_eq!(peer.to_string(), "02:00:5e:10:00:01");
        for text in ["/run/nic", "eth:eth1,02:00:5e:10:00:01"] {
            assert_eq!(text.parse::<NicPlace>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_place_is_refused() {
        for text in [
            "eth:",
            "eth:eth1",
            "eth:eth1,",
            "eth:,02:00:5e:10:00:01",
            "eth:eth1,02:00:5e:10:00",
            "eth:eth1,02:00:5e:10:00:01:02",
            "eth:eth1,2:0:5e:10:0:1",
            "eth:eth1,02:00:5e:10:00:0g",
            "eth:eth1,ff:ff:ff:ff:ff:ff",
        ] {
            assert!(text.parse::<NicPlace>().is_err(), "{text}");
        }
    }
}
