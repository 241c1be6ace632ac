//! The decision in Rust, the reference for the programs of eBPF.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use wire::ethernet;
use wire::icmpv6::solicited_node;
use wire::tcp::Flags;

use super::map::{Protocol, SteeringMap, Target};
use crate::packet::ALL_NODES;

/// Recipient of a frame on its link, as the kernel classifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketType {
    /// To this machine alone.
    Host,
    /// To all, or to a group.
    Group,
    /// To another machine.
    OtherHost,
    /// This machine sends it.
    Outgoing,
}

/// A frame that has arrived.
#[derive(Clone, Copy, Debug)]
pub struct Arrived<'a> {
    /// From the Ethernet header on.
    pub bytes: &'a [u8],
    /// Its recipient.
    pub packet_type: PacketType,
    /// It had a VLAN tag.
    pub has_vlan: bool,
}

/// The port that takes a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// No port.
    Drop,
    /// The host's port.
    Host,
    /// The port of a NIC worker.
    Worker(Target),
}

const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
/// Bytes of a TCP header up to its flags, and as many of a datagram.
const TCP_BYTES: usize = 14;

/// Flags by which a plain SYN is recognized: only SYN is set among them.
pub(super) const SYN_MASK: u8 = Flags::FIN.0 | Flags::SYN.0 | Flags::RST.0 | Flags::ACK.0;

impl SteeringMap {
    /// Returns the port that takes an IP packet; the stack has the addresses `own`.
    pub fn decide(&self, own: &[IpAddr], frame: &Arrived<'_>) -> Decision {
        if frame.has_vlan
            || matches!(
                frame.packet_type,
                PacketType::OtherHost | PacketType::Outgoing
            )
        {
            return Decision::Drop;
        }
        let ether_type = frame.bytes.get(12..14);
        let ether_type = ether_type.map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
        let packet = frame.bytes.get(ethernet::HEADER_BYTES..).unwrap_or(&[]);
        let found = match ether_type {
            Some(ethernet::IPV4) => ipv4(packet, own),
            Some(ethernet::IPV6) => ipv6(packet, own),
            _ => None,
        };
        let Some(found) = found else {
            return Decision::Drop;
        };
        let worker = found
            .filter(|_| frame.packet_type == PacketType::Host)
            .and_then(|found| self.worker(own, found));
        worker.map_or(Decision::Host, Decision::Worker)
    }

    /// Returns the worker that a TCP segment or a datagram goes to.
    fn worker(&self, own: &[IpAddr], found: Found<'_>) -> Option<Target> {
        let Found {
            protocol,
            source,
            destination,
            payload,
        } = found;
        let tcp = payload.get(..TCP_BYTES)?;
        let remote = SocketAddr::new(source, u16::from_be_bytes([tcp[0], tcp[1]]));
        let local = SocketAddr::new(destination, u16::from_be_bytes([tcp[2], tcp[3]]));
        let hash = self.hash(local, remote);
        if let Some(worker) = self.flow_worker(hash, protocol, local, remote) {
            return self.flow_target(worker);
        }
        if protocol != Protocol::Tcp {
            return None;
        }
        if tcp[13] & SYN_MASK != Flags::SYN.0 || own.contains(&source) {
            return None;
        }
        let target = self.target(hash)?;
        (self.has_port(local.port()) && !self.is_known(hash)).then_some(target)
    }
}

/// A packet that may be steered.
struct Found<'a> {
    protocol: Protocol,
    source: IpAddr,
    destination: IpAddr,
    /// From the TCP or UDP header on.
    payload: &'a [u8],
}

/// Returns `None` if the packet is not for this stack, `Some(None)` if it is but cannot be steered.
fn ipv4<'a>(packet: &'a [u8], own: &[IpAddr]) -> Option<Option<Found<'a>>> {
    let header = packet.first_chunk::<IPV4_BYTES>()?;
    let address = |at: usize| {
        let octets: [u8; 4] = [header[at], header[at + 1], header[at + 2], header[at + 3]];
        IpAddr::from(Ipv4Addr::from(octets))
    };
    let (source, destination) = (address(12), address(16));
    if !own.contains(&destination) {
        return None;
    }
    let is_fragment = header[6] & 0x3f != 0 || header[7] != 0;
    let is_plain = header[0] == 0x45 && !is_fragment;
    let protocol = Protocol::of_number(header[9]).filter(|_| is_plain);
    Some(protocol.map(|protocol| Found {
        protocol,
        source,
        destination,
        payload: &packet[IPV4_BYTES..],
    }))
}

fn ipv6<'a>(packet: &'a [u8], own: &[IpAddr]) -> Option<Option<Found<'a>>> {
    let header = packet.first_chunk::<IPV6_BYTES>()?;
    let address = |at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&header[at..at + 16]);
        Ipv6Addr::from(octets)
    };
    let (source, destination) = (address(8), address(24));
    let is_group = destination == ALL_NODES
        || own
            .iter()
            .any(|own| matches!(own, IpAddr::V6(own) if solicited_node(*own) == destination));
    if is_group {
        return Some(None);
    }
    if !own.contains(&destination.into()) {
        return None;
    }
    let protocol = Protocol::of_number(header[6]);
    Some(protocol.map(|protocol| Found {
        protocol,
        source: source.into(),
        destination: destination.into(),
        payload: &packet[IPV6_BYTES..],
    }))
}
