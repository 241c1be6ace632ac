//! An interface whose addresses the stack shares with the kernel: the kernel's addresses and
//! default routes there, and their changes.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use crate::cidr::Cidr;
use crate::netlink::{AddressFlags, Changes, DefaultRoute, KernelAddress, Netlink, NetlinkError};

/// Addresses that the kernel uses for nothing, or not yet.
const NOT_IN_USE: AddressFlags = AddressFlags::Tentative.union(AddressFlags::Dadfailed);

/// Addresses and routes of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Addressing {
    /// Addresses in use, without link-local ones of IPv6, which URLs do not name. Of each family,
    /// the first is the best source: those that stay come before those that are about to go.
    pub addresses: Vec<Cidr>,
    /// Gateways of the default routes with the least metric, at most one for each family.
    pub gateways: Vec<IpAddr>,
}

/// The addressing of an interface, followed by rtnetlink.
pub struct Follower {
    index: u32,
    netlink: Netlink,
    changes: Changes,
}

impl Follower {
    /// Follows the interface with this number in the thread's present network namespace.
    pub fn new(index: u32) -> Result<Self, NetlinkError> {
        Ok(Self {
            index,
            // Before the first look, so that no change is missed.
            changes: Netlink::watch()?,
            netlink: Netlink::open()?,
        })
    }

    /// True if an address or a route has changed since the last call, of any interface.
    pub fn has_changed(&mut self) -> bool {
        self.changes.take()
    }

    /// Returns the present addressing.
    pub fn look(&mut self) -> Result<Addressing, NetlinkError> {
        let addresses = self.netlink.addresses()?;
        let routes = self.netlink.default_routes(self.index)?;
        Ok(addressing(&addresses, &routes, self.index))
    }
}

impl AsFd for Follower {
    /// Returns a descriptor that is readable after a change of any interface.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }
}

/// True for addresses that name a machine only together with a link.
fn is_scoped(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

fn addressing(addresses: &[KernelAddress], routes: &[DefaultRoute], index: u32) -> Addressing {
    let mut own: Vec<&KernelAddress> = addresses
        .iter()
        .filter(|address| address.interface_index == index)
        .filter(|address| !address.flags.intersects(NOT_IN_USE))
        .filter(|address| !is_scoped(address.cidr.address))
        .collect();
    own.sort_by_key(|address| {
        // The flag of secondary addresses of IPv4 is that of temporary ones of IPv6.
        let goes = [AddressFlags::Deprecated, AddressFlags::Secondary];
        goes.map(|flag| address.flags.contains(flag))
    });
    let of_family = |is_ipv4: bool| {
        let routes = routes.iter();
        let routes = routes.filter(move |route| route.gateway.is_ipv4() == is_ipv4);
        routes.min_by_key(|route| route.metric)
    };
    let gateways = [true, false].into_iter().filter_map(of_family);
    Addressing {
        addresses: own.iter().map(|address| address.cidr).collect(),
        gateways: gateways.map(|route| route.gateway).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(index: u32, cidr: &str, flags: AddressFlags) -> KernelAddress {
        // The kernel has addresses that an operator may not give.
        let (address, prefix_len) = cidr.split_once('/').unwrap();
        let cidr = Cidr::new(address.parse().unwrap(), prefix_len.parse().unwrap());
        KernelAddress {
            interface_index: index,
            cidr,
            flags,
        }
    }

    fn route(gateway: &str, metric: u32) -> DefaultRoute {
        DefaultRoute {
            gateway: gateway.parse().unwrap(),
            metric,
        }
    }

    #[test]
    fn addresses_in_use_are_shared_and_the_best_source_comes_first() {
        let none = AddressFlags::empty();
        let found = addressing(
            &[
                address(2, "fe80::1/64", none),
                address(2, "2001:db8::7/64", AddressFlags::Deprecated),
                address(2, "2001:db8::8/64", AddressFlags::Secondary),
                address(2, "2001:db8::9/64", AddressFlags::Tentative),
                address(2, "2001:db8::a/64", AddressFlags::Dadfailed),
                address(3, "192.0.2.9/24", none),
                address(2, "192.0.2.5/24", none),
                address(2, "2001:db8::5/64", none),
            ],
            &[
                route("192.0.2.1", 100),
                route("192.0.2.2", 50),
                route("fe80::ff", 1024),
            ],
            2,
        );
        let cidrs = |texts: &[&str]| -> Vec<Cidr> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let addresses = cidrs(&[
            "192.0.2.5/24",
            "2001:db8::5/64",
            "2001:db8::8/64",
            "2001:db8::7/64",
        ]);
        let gateways = ["192.0.2.2", "fe80::ff"].map(|it| it.parse().unwrap());
        let expected = Addressing {
            addresses,
            gateways: gateways.to_vec(),
        };
        assert_eq!(found, expected);
    }
}
