//! The few rtnetlink requests that Splitway needs, one at a time and synchronous.
//!
//! A [`Netlink`] addresses the network namespace in which it was opened, even after the process has
//! moved to another.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
pub use netlink_packet_route::address::AddressFlags;
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoKind, InfoVeth, LinkAttribute,
    LinkFlags, LinkInfo, LinkLayerType, LinkMessage,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use nix::libc;
use rustix::io::Errno;

use crate::cidr::Cidr;

/// An rtnetlink socket.
pub struct Netlink {
    socket: Socket,
    sequence: u32,
}

/// A failed request.
#[derive(Debug)]
pub struct NetlinkError {
    /// Description of the request.
    pub request: &'static str,
    /// Reason for the failure.
    pub error: io::Error,
}

/// A network interface.
#[derive(Clone, Debug)]
pub struct Interface {
    /// Number of the interface in the namespace.
    pub index: u32,
    /// `IFLA_IFNAME`.
    pub name: String,
    /// `IFF_UP`.
    pub up: bool,
    /// `ARPHRD_ETHER`.
    pub ethernet: bool,
}

/// An address that the kernel has on an interface.
#[derive(Clone, Debug)]
pub struct KernelAddress {
    /// [`Interface::index`].
    pub interface_index: u32,
    /// The address and its prefix.
    pub cidr: Cidr,
    /// `IFA_F_*` of `linux/if_addr.h`.
    pub flags: AddressFlags,
}

/// A default route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DefaultRoute {
    /// Next hop.
    pub gateway: IpAddr,
    /// Metric: the least one is used.
    pub metric: u32,
}

impl Netlink {
    /// Opens a socket in the thread's present network namespace.
    pub fn open() -> Result<Self, NetlinkError> {
        let open = || {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            Ok(socket)
        };
        match open() {
            Ok(socket) => Ok(Self {
                socket,
                sequence: 0,
            }),
            Err(error) => Err(NetlinkError {
                request: "opening a netlink socket",
                error,
            }),
        }
    }

    /// Returns all interfaces of the namespace.
    pub fn interfaces(&mut self) -> Result<Vec<Interface>, NetlinkError> {
        let request = RouteNetlinkMessage::GetLink(LinkMessage::default());
        let replies = self.request("listing the interfaces", request, NLM_F_DUMP)?;
        let interface = |reply| match reply {
            RouteNetlinkMessage::NewLink(link) => Some(Interface {
                index: link.header.index,
                up: link.header.flags.contains(LinkFlags::Up),
                ethernet: link.header.link_layer_type == LinkLayerType::Ether,
                name: link
                    .attributes
                    .into_iter()
                    .find_map(|attribute| match attribute {
                        LinkAttribute::IfName(name) => Some(name),
                        _ => None,
                    })?,
            }),
            _ => None,
        };
        Ok(replies.into_iter().filter_map(interface).collect())
    }

    /// Returns all addresses that the kernel has in the namespace.
    pub fn addresses(&mut self) -> Result<Vec<KernelAddress>, NetlinkError> {
        let request = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        let replies = self.request("listing the addresses", request, NLM_F_DUMP)?;
        let address = |reply| match reply {
            RouteNetlinkMessage::NewAddress(message) => {
                // On a point-to-point link IFA_ADDRESS is the peer's, and IFA_LOCAL ours.
                let local = message
                    .attributes
                    .iter()
                    .find_map(|attribute| match attribute {
                        AddressAttribute::Local(address) => Some(*address),
                        _ => None,
                    });
                let address = local.or_else(|| {
                    message
                        .attributes
                        .iter()
                        .find_map(|attribute| match attribute {
                            AddressAttribute::Address(address) => Some(*address),
                            _ => None,
                        })
                })?;
                let flags = message
                    .attributes
                    .iter()
                    .find_map(|attribute| match attribute {
                        AddressAttribute::Flags(flags) => Some(*flags),
                        _ => None,
                    });
                Some(KernelAddress {
                    interface_index: message.header.index,
                    cidr: Cidr::new(address, message.header.prefix_len),
                    flags: flags.unwrap_or(AddressFlags::empty()),
                })
            }
            _ => None,
        };
        Ok(replies.into_iter().filter_map(address).collect())
    }

    /// Returns the default routes of the main table through an interface: unicast routes with a
    /// gateway of the same family. Needs Linux 4.20 to read no other routes.
    pub fn default_routes(&mut self, index: u32) -> Result<Vec<DefaultRoute>, NetlinkError> {
        let what = "listing the routes";
        let strict = self.socket.set_netlink_get_strict_chk(true);
        strict.map_err(|error| NetlinkError {
            request: what,
            error,
        })?;
        let mut found = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut route = RouteMessage::default();
            route.header.address_family = family;
            route.header.table = RouteHeader::RT_TABLE_MAIN;
            route.header.kind = RouteType::Unicast;
            route.attributes = vec![RouteAttribute::Oif(index)];
            let request = RouteNetlinkMessage::GetRoute(route);
            let replies = match self.request(what, request, NLM_F_DUMP) {
                // No IPv6 in the kernel.
                Err(error) if error.errno() == Some(Errno::AFNOSUPPORT) => continue,
                replies => replies,
            };
            found.extend(replies?.iter().flat_map(|reply| match reply {
                RouteNetlinkMessage::NewRoute(route) => default_routes(route, index),
                _ => Vec::new(),
            }));
        }
        let off = self.socket.set_netlink_get_strict_chk(false);
        off.map_err(|error| NetlinkError {
            request: what,
            error,
        })?;
        Ok(found)
    }

    /// Opens a socket that becomes readable when addresses or routes of the thread's present
    /// network namespace change.
    pub fn watch() -> Result<Changes, NetlinkError> {
        let open = || {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            for group in [
                libc::RTNLGRP_IPV4_IFADDR,
                libc::RTNLGRP_IPV6_IFADDR,
                libc::RTNLGRP_IPV4_ROUTE,
                libc::RTNLGRP_IPV6_ROUTE,
            ] {
                socket.add_membership(group)?;
            }
            socket.set_non_blocking(true)?;
            Ok(Changes { socket })
        };
        open().map_err(|error| NetlinkError {
            request: "watching addresses and routes",
            error,
        })
    }

    /// Creates a veth pair: `name` here, `peer_name` in the namespace `peer_namespace`.
    pub fn create_veth(
        &mut self,
        name: &str,
        peer_name: &str,
        peer_namespace: BorrowedFd<'_>,
        mtu: u32,
    ) -> Result<(), NetlinkError> {
        let mut peer = LinkMessage::default();
        peer.attributes = vec![
            LinkAttribute::IfName(peer_name.to_owned()),
            LinkAttribute::Mtu(mtu),
            LinkAttribute::NetNsFd(peer_namespace.as_raw_fd()),
        ];
        let mut link = LinkMessage::default();
        link.attributes = vec![
            LinkAttribute::IfName(name.to_owned()),
            LinkAttribute::Mtu(mtu),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Veth),
                LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
            ]),
        ];
        let request = RouteNetlinkMessage::NewLink(link);
        self.request(
            "creating the veth pair",
            request,
            NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL,
        )?;
        Ok(())
    }

    /// Lets IPv4 superpackets of up to this many bytes through an interface in one piece ("BIG
    /// TCP"). Kernels before 6.3 do not know that.
    pub fn set_gso_ipv4_max_size(&mut self, index: u32, bytes: u32) -> Result<(), NetlinkError> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.attributes = vec![LinkAttribute::GsoIpv4MaxSize(bytes)];
        self.request(
            "setting the largest IPv4 superpacket",
            RouteNetlinkMessage::SetLink(link),
            NLM_F_ACK,
        )?;
        Ok(())
    }

    /// Takes an interface up.
    pub fn set_up(&mut self, index: u32) -> Result<(), NetlinkError> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.header.flags = LinkFlags::Up;
        link.header.change_mask = LinkFlags::Up;
        self.request(
            "taking the interface up",
            RouteNetlinkMessage::SetLink(link),
            NLM_F_ACK,
        )?;
        Ok(())
    }

    /// Keeps the kernel from giving an interface an IPv6 address of its own accord, so that it
    /// sends nothing there.
    pub fn disable_ipv6_address_generation(&mut self, index: u32) -> Result<(), NetlinkError> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.attributes = vec![LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(
            vec![AfSpecInet6::AddrGenMode(In6AddrGenMode::None)],
        )])];
        let request = RouteNetlinkMessage::SetLink(link);
        self.request(
            "setting the IPv6 address generation mode",
            request,
            NLM_F_ACK,
        )?;
        Ok(())
    }

    /// Gives the kernel an address on an interface, usable at once: without duplicate address
    /// detection.
    pub fn add_address(&mut self, index: u32, cidr: Cidr) -> Result<(), NetlinkError> {
        let mut message = AddressMessage::default();
        message.header.index = index;
        message.header.prefix_len = cidr.prefix_len;
        message.attributes = vec![
            AddressAttribute::Local(cidr.address),
            AddressAttribute::Address(cidr.address),
        ];
        match cidr.address {
            IpAddr::V4(_) => message.header.family = AddressFamily::Inet,
            IpAddr::V6(_) => {
                message.header.family = AddressFamily::Inet6;
                message.header.flags = AddressHeaderFlags::Nodad;
                message
                    .attributes
                    .push(AddressAttribute::Flags(AddressFlags::Nodad));
            }
        }
        let request = RouteNetlinkMessage::NewAddress(message);
        self.request(
            "adding an address",
            request,
            NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL,
        )?;
        Ok(())
    }

    /// Deletes an interface; of a veth pair both ends. When this returns it is gone.
    pub fn delete(&mut self, index: u32) -> Result<(), NetlinkError> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        self.request(
            "deleting the interface",
            RouteNetlinkMessage::DelLink(link),
            NLM_F_ACK,
        )?;
        Ok(())
    }

    /// Sends a request and collects the replies up to the acknowledgement or the end of the dump.
    fn request(
        &mut self,
        request: &'static str,
        payload: RouteNetlinkMessage,
        flags: u16,
    ) -> Result<Vec<RouteNetlinkMessage>, NetlinkError> {
        let fail = |error| NetlinkError { request, error };
        let mut message = NetlinkMessage::from(payload);
        self.sequence = self.sequence.wrapping_add(1);
        message.header.flags = NLM_F_REQUEST | flags;
        message.header.sequence_number = self.sequence;
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0).map_err(fail)?;

        let mut replies = Vec::new();
        loop {
            let (datagram, _) = self.socket.recv_from_full().map_err(fail)?;
            if self.collect(&datagram, &mut replies).map_err(fail)? {
                return Ok(replies);
            }
        }
    }

    /// Reads the messages of one datagram; returns true if the last one of the answer was among
    /// them.
    fn collect(
        &self,
        mut datagram: &[u8],
        replies: &mut Vec<RouteNetlinkMessage>,
    ) -> io::Result<bool> {
        while let Some(length) = message_length(datagram) {
            let (message, rest) = datagram.split_at(length);
            datagram = rest
                .get(length.next_multiple_of(4) - length..)
                .unwrap_or_default();
            // A message of a kind or with an attribute that the decoder does not know is skipped: a
            // newer kernel may report more than was requested.
            let Ok(reply) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(message) else {
                continue;
            };
            if reply.header.sequence_number != self.sequence {
                continue;
            }
            match reply.payload {
                NetlinkPayload::Done(_) => return Ok(true),
                NetlinkPayload::Error(answer) if answer.code.is_none() => return Ok(true),
                NetlinkPayload::Error(answer) => return Err(answer.to_io()),
                NetlinkPayload::InnerMessage(inner) => replies.push(inner),
                _ => {}
            }
        }
        Ok(false)
    }
}

/// Notifications of changed addresses and routes.
pub struct Changes {
    socket: Socket,
}

impl Changes {
    /// Forgets all notifications so far; true if there were any, or some were lost.
    pub fn take(&mut self) -> bool {
        let mut any = false;
        loop {
            match self.socket.recv_from_full() {
                Ok(_) => any = true,
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::ENOBUFS) => any = true,
                    _ => return any,
                },
            }
        }
    }
}

impl AsFd for Changes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Returns the next hops of a default route through an interface.
fn default_routes(route: &RouteMessage, index: u32) -> Vec<DefaultRoute> {
    let RouteMessage {
        header, attributes, ..
    } = route;
    let is_default = header.destination_prefix_length == 0
        && header.table == RouteHeader::RT_TABLE_MAIN
        && header.kind == RouteType::Unicast;
    if !is_default {
        return Vec::new();
    }
    let metric = attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Priority(metric) => Some(*metric),
        _ => None,
    });
    let metric = metric.unwrap_or(0);
    let several = attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::MultiPath(hops) => Some(hops),
        _ => None,
    });
    let gateways: Vec<IpAddr> = match several {
        Some(hops) => {
            let hops = hops.iter().filter(|hop| hop.interface_index == index);
            hops.filter_map(|hop| gateway(&hop.attributes)).collect()
        }
        None => {
            let oif = attributes.iter().find_map(|attribute| match attribute {
                RouteAttribute::Oif(oif) => Some(*oif),
                _ => None,
            });
            let through = oif == Some(index);
            gateway(attributes)
                .filter(|_| through)
                .into_iter()
                .collect()
        }
    };
    let routes = gateways.into_iter();
    routes
        .map(|gateway| DefaultRoute { gateway, metric })
        .collect()
}

fn gateway(attributes: &[RouteAttribute]) -> Option<IpAddr> {
    attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Gateway(RouteAddress::Inet(address)) => Some((*address).into()),
        RouteAttribute::Gateway(RouteAddress::Inet6(address)) => Some((*address).into()),
        _ => None,
    })
}

/// Returns the length of the first netlink message, if it is complete. The header begins with its
/// length.
fn message_length(datagram: &[u8]) -> Option<usize> {
    let length = u32::from_ne_bytes(*datagram.first_chunk()?);
    let length = usize::try_from(length).ok()?;
    (16..=datagram.len()).contains(&length).then_some(length)
}

impl NetlinkError {
    /// Returns the kernel's error number, if it answered.
    pub fn errno(&self) -> Option<Errno> {
        Errno::from_io_error(&self.error)
    }
}

impl fmt::Display for NetlinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.request, self.error)
    }
}

impl std::error::Error for NetlinkError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_listed_and_is_not_ethernet() {
        let mut netlink = Netlink::open().unwrap();
        let interfaces = netlink.interfaces().unwrap();
        let lo = interfaces
            .iter()
            .find(|interface| interface.name == "lo")
            .expect("every namespace has lo");
        assert_eq!(lo.index, 1);
        assert!(!lo.ethernet);
        for address in netlink.addresses().unwrap() {
            assert!(
                interfaces
                    .iter()
                    .any(|interface| interface.index == address.interface_index),
                "{address:?} is on none of {interfaces:?}"
            );
        }
    }

    #[test]
    fn what_cannot_be_granted_is_named() {
        let mut netlink = Netlink::open().unwrap();
        let error = netlink.delete(i32::MAX as u32).unwrap_err();
        assert_eq!(error.request, "deleting the interface");
        assert!(
            matches!(error.errno(), Some(Errno::PERM | Errno::NODEV)),
            "no such interface, or no privilege to ask: {error}"
        );
    }

    #[test]
    fn a_truncated_datagram_ends_the_reading() {
        assert_eq!(message_length(&[]), None);
        assert_eq!(message_length(&[20, 0, 0]), None);
        assert_eq!(message_length(&20_u32.to_ne_bytes()), None);
        assert_eq!(message_length(&[0; 32]), None);
        let mut datagram = [0; 24];
        datagram[..4].copy_from_slice(&20_u32.to_ne_bytes());
        assert_eq!(message_length(&datagram), Some(20));
    }
}
