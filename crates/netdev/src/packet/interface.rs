//! Attributes of a network interface, by rtnetlink: unlike sysfs it covers the network namespace of
//! the process.

use std::io;
use std::os::fd::OwnedFd;

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkLayerType, LinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use rustix::net::netdevice;

use super::error::{OpenError, System};

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) index: u32,
    pub(super) ethernet: bool,
    pub(super) up: bool,
    /// It is up, and a cable is plugged in at both ends.
    pub(super) carrier: bool,
    pub(super) mac: [u8; 6],
    /// Largest IP packet, in bytes.
    pub(super) mtu: usize,
    /// Exclusive limit of the packets that the kernel hands to the driver for segmentation, in
    /// bytes with the Ethernet header. The kernel cuts longer packets itself, which costs several
    /// times as much.
    pub(super) gso_max_size: usize,
    /// The same limit for IPv4.
    pub(super) gso_ipv4_max_size: usize,
}

/// Returns all interfaces of this network namespace.
pub(super) fn list() -> io::Result<Vec<Interface>> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;

    let mut request = NetlinkMessage::from(RouteNetlinkMessage::GetLink(LinkMessage::default()));
    request.header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    socket.send(&bytes, 0)?;

    let mut interfaces = Vec::new();
    loop {
        let (datagram, _) = socket.recv_from_full()?;
        let mut rest = &datagram[..];
        while !rest.is_empty() {
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
            match message.payload {
                NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewLink(link)) => {
                    interfaces.push(Interface::new(link));
                }
                NetlinkPayload::Done(_) => return Ok(interfaces),
                NetlinkPayload::Error(error) => return Err(error.to_io()),
                _ => {}
            }
            // Messages are aligned to 4 bytes; the last one's padding may be missing.
            let len = (message.header.length as usize).next_multiple_of(4).max(16);
            rest = rest.get(len..).unwrap_or_default();
        }
    }
}

impl Interface {
    /// Returns the interface of this name, if a port can be opened on it.
    pub(super) fn find(name: &str) -> Result<Interface, OpenError> {
        let mut interfaces = list()
            .map_err(|error| System::new("listing the network interfaces", error).on(name))?;
        let Some(at) = interfaces.iter().position(|other| other.name == name) else {
            return Err(OpenError::NoSuchInterface {
                interface: name.to_owned(),
                existing: interfaces.into_iter().map(|other| other.name).collect(),
            });
        };
        let found = interfaces.swap_remove(at);
        let interface = name.to_owned();
        match found {
            Interface {
                ethernet: false, ..
            } => Err(OpenError::NotEthernet { interface }),
            Interface { up: false, .. } => Err(OpenError::Down { interface }),
            found => Ok(found),
        }
    }

    /// Fails if the interface is gone for good; one that was taken down may come up again.
    pub(super) fn still_there(&self, socket: &OwnedFd) -> io::Result<()> {
        match netdevice::index_to_name(socket, self.index) {
            Ok(_) => Ok(()),
            Err(_) => {
                let gone = format!("network interface {} is gone", self.name);
                Err(io::Error::new(io::ErrorKind::NotFound, gone))
            }
        }
    }

    fn new(link: LinkMessage) -> Interface {
        let mut interface = Interface {
            index: link.header.index,
            ethernet: link.header.link_layer_type == LinkLayerType::Ether,
            // `GSO_LEGACY_MAX_SIZE`, also the limit of kernels that do not report one.
            gso_max_size: 65_536,
            gso_ipv4_max_size: 65_536,
            ..Interface::default()
        };
        interface.update(link);
        interface
    }

    /// Applies a later message; attributes that it does not mention stay.
    pub(super) fn update(&mut self, link: LinkMessage) {
        let flags = link.header.flags;
        self.up = flags.contains(LinkFlags::Up);
        self.carrier = flags.contains(LinkFlags::Up | LinkFlags::LowerUp);
        for attribute in link.attributes {
            match attribute {
                LinkAttribute::IfName(name) => self.name = name,
                LinkAttribute::Mtu(mtu) => self.mtu = mtu as usize,
                LinkAttribute::Address(address) => {
                    self.mac = address.try_into().unwrap_or_default();
                }
                LinkAttribute::GsoMaxSize(size) => self.gso_max_size = size as usize,
                LinkAttribute::GsoIpv4MaxSize(size) => {
                    self.gso_ipv4_max_size = size as usize;
                }
                _ => {}
            }
        }
    }
}
