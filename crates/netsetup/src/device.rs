//! Checks of an existing interface, and of the stack's addresses on it.

use std::net::IpAddr;

use failure::Failure;
use netdev::packet::OpenError;

use crate::cidr::Cidr;
use crate::netlink::{Interface, KernelAddress, Netlink, NetlinkError};

pub(crate) fn name_of(interfaces: &[Interface], index: u32) -> &str {
    interfaces
        .iter()
        .find(|interface| interface.index == index)
        .map_or("?", |interface| &interface.name)
}

/// The interfaces and addresses of a namespace, against which requests to use one are checked.
pub struct Inventory {
    interfaces: Vec<Interface>,
    addresses: Vec<KernelAddress>,
}

impl Inventory {
    /// Reads the inventory of the present network namespace.
    pub fn take() -> Result<Self, Failure> {
        let take = || -> Result<Self, NetlinkError> {
            let mut netlink = Netlink::open()?;
            Ok(Self {
                interfaces: netlink.interfaces()?,
                addresses: netlink.addresses()?,
            })
        };
        take().map_err(|error| Failure::broken("looking at the network", error))
    }

    /// Returns the interface `name`, if the stack can be attached to it.
    pub fn device(&self, name: &str) -> Result<&Interface, Failure> {
        let what = format!("interface {name}");
        let Some(interface) = self
            .interfaces
            .iter()
            .find(|interface| interface.name == name)
        else {
            let names: Vec<&str> = self
                .interfaces
                .iter()
                .map(|interface| interface.name.as_str())
                .collect();
            return Err(Failure::input(what, "no such interface")
                .remedy(format!("There are: {}.", names.join(", "))));
        };
        if !interface.ethernet {
            let why = "not an Ethernet interface: the stack speaks Ethernet to its neighbours";
            return Err(Failure::input(what, why));
        }
        if !interface.up {
            return Err(Failure::input(what, "it is down")
                .remedy(format!("Take it up with `sudo ip link set {name} up`.")));
        }
        Ok(interface)
    }

    /// Fails if the kernel has one of the addresses itself: it would answer too.
    pub fn check_addresses(&self, addresses: &[Cidr]) -> Result<(), Failure> {
        for (index, cidr) in addresses.iter().enumerate() {
            let what = format!("address {cidr}");
            if let Some(taken) = self
                .addresses
                .iter()
                .find(|taken| taken.cidr.address == cidr.address)
            {
                let name = name_of(&self.interfaces, taken.interface_index);
                let why = format!("the kernel has it on {name}, and would answer as well");
                return Err(Failure::input(what, why)
                    .remedy("Give the stack an address that no machine on the link uses."));
            }
            if addresses
                .iter()
                .take(index)
                .any(|earlier| earlier.address == cidr.address)
            {
                return Err(Failure::input(what, "given twice"));
            }
        }
        Ok(())
    }
}

/// Fails unless each gateway is a neighbour: on the link, not one of the stack's own addresses, and
/// at most one for each address family. Beside an address whose prefix is the address itself, which
/// has no neighbours by its prefix, every gateway is on the link (`onlink` of `ip-route(8)`).
pub fn check_gateways(gateways: &[IpAddr], addresses: &[Cidr]) -> Result<(), Failure> {
    for (index, gateway) in gateways.iter().enumerate() {
        let what = format!("gateway {gateway}");
        if addresses.iter().any(|cidr| cidr.address == *gateway) {
            return Err(Failure::input(what, "this is the stack's own address"));
        }
        if !is_unicast(*gateway) {
            return Err(Failure::input(what, "this is no address of a machine"));
        }
        // RFC 4861, section 4.2: routers are known by their link-local address.
        let link_local = matches!(gateway, IpAddr::V6(gateway) if gateway.is_unicast_link_local());
        let of_family = addresses
            .iter()
            .filter(|cidr| cidr.address.is_ipv4() == gateway.is_ipv4());
        let mut of_family = of_family.peekable();
        let is_near = of_family.peek().is_some() && link_local;
        if !is_near && !of_family.any(|cidr| cidr.is_host() || cidr.contains(*gateway)) {
            let listed: Vec<String> = addresses.iter().map(Cidr::to_string).collect();
            return Err(Failure::input(
                what,
                format!("not on the link: outside {}", listed.join(", ")),
            )
            .remedy("Check the gateway, and the prefix length of --addr."));
        }
        if gateways
            .iter()
            .take(index)
            .any(|earlier| earlier.is_ipv4() == gateway.is_ipv4())
        {
            return Err(Failure::input(
                what,
                "there can be one gateway for IPv4 and one for IPv6",
            ));
        }
    }
    Ok(())
}

fn is_unicast(address: IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !(address.is_unspecified() || address.is_loopback() || address.is_multicast() || is_broadcast)
}

/// Reports that a port could not be opened, as an error of the system or of the input.
pub fn port_failed(device: &str, error: &OpenError) -> Failure {
    let what = format!("port on {device}");
    match error {
        OpenError::System { .. } => Failure::broken(what, error),
        _ => Failure::input(what, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::AddressFlags;

    fn inventory() -> Inventory {
        let interface = |index, name: &str, up, ethernet| Interface {
            index,
            name: name.into(),
            up,
            ethernet,
        };
        Inventory {
            interfaces: vec![
                interface(1, "lo", true, false),
                interface(2, "eth0", true, true),
                interface(3, "eth1", false, true),
            ],
            addresses: vec![KernelAddress {
                interface_index: 2,
                cidr: "192.0.2.2/24".parse().unwrap(),
                flags: AddressFlags::empty(),
            }],
        }
    }

    fn addresses(texts: &[&str]) -> Vec<Cidr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn an_interface_must_exist_be_ethernet_and_be_up() {
        let inventory = inventory();
        assert_eq!(inventory.device("eth0").unwrap().index, 2);
        let message = |name| inventory.device(name).unwrap_err().to_string();
        assert!(
            message("eth9").contains("no such interface")
                && message("eth9").contains("lo, eth0, eth1")
        );
        assert!(message("lo").contains("not an Ethernet interface"));
        assert!(
            message("eth1").contains("it is down")
                && message("eth1").contains("ip link set eth1 up")
        );
    }

    #[test]
    fn an_address_must_not_be_the_kernels_and_not_be_given_twice() {
        let inventory = inventory();
        inventory
            .check_addresses(&addresses(&["192.0.2.3/24", "fd00::3/64"]))
            .unwrap();
        let failure = inventory
            .check_addresses(&addresses(&["192.0.2.2/24"]))
            .unwrap_err();
        assert!(
            failure.to_string().contains("the kernel has it on eth0"),
            "{failure}"
        );
        let failure = inventory
            .check_addresses(&addresses(&["192.0.2.3/24", "192.0.2.3/16"]))
            .unwrap_err();
        assert!(failure.to_string().contains("given twice"), "{failure}");
    }

    #[test]
    fn a_gateway_must_be_a_neighbour() {
        let own = addresses(&["192.0.2.3/24", "fd00::3/64"]);
        let check = |gateways: &[&str]| {
            let gateways: Vec<IpAddr> = gateways.iter().map(|text| text.parse().unwrap()).collect();
            check_gateways(&gateways, &own).map_err(|failure| failure.to_string())
        };
        assert_eq!(check(&["192.0.2.1", "fd00::1"]), Ok(()));
        assert_eq!(check(&["fe80::1"]), Ok(()));
        assert!(
            check(&["198.51.100.1"])
                .unwrap_err()
                .contains("not on the link")
        );
        assert!(check(&["192.0.2.3"]).unwrap_err().contains("own address"));
        for gateway in [
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "127.0.0.1",
            "ff02::2",
            "::",
        ] {
            let why = check(&[gateway]).unwrap_err();
            assert!(why.contains("no address of a machine"), "{why}");
        }
        assert!(
            check(&["192.0.2.1", "192.0.2.9"])
                .unwrap_err()
                .contains("one gateway for IPv4")
        );
    }

    /// The form in which providers give addresses to virtual machines.
    #[test]
    fn beside_an_address_without_neighbours_every_gateway_is_on_the_link() {
        let check = |own: &[&str], gateway: &str| {
            check_gateways(&[gateway.parse().unwrap()], &addresses(own))
                .map_err(|failure| failure.to_string())
        };
        assert_eq!(check(&["192.0.2.5/32"], "198.51.100.1"), Ok(()));
        assert_eq!(check(&["fd00::5/128"], "2001:db8::1"), Ok(()));
        assert_eq!(check(&["fd00::5/128"], "fe80::1"), Ok(()));
        let both = ["192.0.2.5/32", "fd00::5/64"];
        assert_eq!(check(&both, "198.51.100.1"), Ok(()));
        for (own, gateway) in [
            (&both[..], "2001:db8::1"),
            (&["192.0.2.5/31"], "198.51.100.1"),
            (&["192.0.2.5/32"], "fe80::1"),
        ] {
            let why = check(own, gateway).unwrap_err();
            assert!(why.contains("not on the link"), "{why}");
        }
    }
}
