//! ARP for IPv4 over Ethernet (RFC 826).

use std::net::Ipv4Addr;

use smoltcp::wire::{ArpOperation, ArpPacket, ArpRepr, EthernetAddress};

use crate::{ParseError, ethernet};

/// Purpose of an ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Asks for the owner of the target address.
    Request,
    /// The sender owns the address.
    Reply,
}

/// An ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Purpose of the packet.
    pub operation: Operation,
    /// The sender's hardware address.
    pub sender_mac: [u8; 6],
    /// The sender's protocol address; unspecified in a probe (RFC 5227 §1.1).
    pub sender: Ipv4Addr,
    /// The target's hardware address; has no meaning in a request.
    pub target_mac: [u8; 6],
    /// The target's protocol address.
    pub target: Ipv4Addr,
}

impl Packet {
    /// Parses the payload of an Ethernet frame.
    pub fn parse(payload: &[u8]) -> Result<Packet, ParseError> {
        let repr = ArpPacket::new_checked(payload)
            .and_then(|packet| ArpRepr::parse(&packet))
            .map_err(|_| ParseError::BadArp)?;
        let ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr,
            source_protocol_addr,
            target_hardware_addr,
            target_protocol_addr,
        } = repr
        else {
            return Err(ParseError::BadArp);
        };
        Ok(Packet {
            operation: match operation {
                ArpOperation::Request => Operation::Request,
                ArpOperation::Reply => Operation::Reply,
                _ => return Err(ParseError::BadArp),
            },
            sender_mac: source_hardware_addr.0,
            sender: source_protocol_addr,
            target_mac: target_hardware_addr.0,
            target: target_protocol_addr,
        })
    }

    /// Returns the whole Ethernet frame, from `sender_mac` to `destination_mac`.
    pub fn to_frame(&self, destination_mac: [u8; 6]) -> Vec<u8> {
        let repr = ArpRepr::EthernetIpv4 {
            operation: match self.operation {
                Operation::Request => ArpOperation::Request,
                Operation::Reply => ArpOperation::Reply,
            },
            source_hardware_addr: EthernetAddress(self.sender_mac),
            source_protocol_addr: self.sender,
            target_hardware_addr: EthernetAddress(self.target_mac),
            target_protocol_addr: self.target,
        };
        let header = ethernet::Header {
            destination: destination_mac,
            source: self.sender_mac,
            ether_type: ethernet::ARP,
        };
        let mut frame = header.to_bytes().to_vec();
        frame.resize(ethernet::HEADER_BYTES + repr.buffer_len(), 0);
        repr.emit(&mut ArpPacket::new_unchecked(
            &mut frame[ethernet::HEADER_BYTES..],
        ));
        frame
    }
}
