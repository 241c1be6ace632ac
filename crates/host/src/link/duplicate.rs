//! Duplicate address detection: whether another machine on the link has an own address, asked
//! before the stack uses it (RFC 5227 §2.1, RFC 4862 §5.4).
//!
//! The RFCs spread their probes over seconds, for machines that all start at once and for links
//! that need time to come up. A server starts on a link that is up: [`PROBES`] probes, [`INTERVAL`]
//! apart, find a holder that answers as fast as hosts on a link do.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use netdev::{Offload, Port, Superpacket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use wire::frame::{self, Received};
use wire::icmpv6::{Message, Neighbor};
use wire::{arp, ethernet, icmpv6};

/// Probes of each address: `PROBE_NUM` of RFC 5227 §1.1. One may be lost.
const PROBES: u32 = 3;

/// Time between two probes, and after the last one.
const INTERVAL: Duration = Duration::from_millis(100);

/// Most frames that are taken in at once.
const BATCH: usize = 256;

/// Another machine has an own address, or asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duplicate {
    /// The address.
    pub address: IpAddr,
    /// The other machine's hardware address.
    pub holder: [u8; 6],
}

/// Probes the link for `addresses`, for 300 ms. `None`: no other machine claims any.
///
/// # Errors
/// If the port fails. A link that takes no frames, since it is down or full, is none: it has no
/// answer either.
pub fn find_duplicate(port: &mut impl Port, addresses: &[IpAddr]) -> io::Result<Option<Duplicate>> {
    let mac = port.mac();
    for _ in 0..PROBES {
        for &address in addresses {
            send(port, &probe(mac, address));
        }
        let found = listen(port, addresses, Instant::now() + INTERVAL)?;
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

/// Builds a probe for `address` that reveals only the sender's hardware address, so that no
/// neighbour updates its cache.
fn probe(mac: [u8; 6], address: IpAddr) -> Vec<u8> {
    match address {
        // RFC 5227 §2.1.1
        IpAddr::V4(target) => {
            let request = arp::Packet {
                operation: arp::Operation::Request,
                sender_mac: mac,
                sender: Ipv4Addr::UNSPECIFIED,
                target_mac: [0; 6],
                target,
            };
            request.to_frame(ethernet::BROADCAST)
        }
        // RFC 4862 §5.4.2
        IpAddr::V6(target) => {
            let group = icmpv6::solicited_node(target);
            icmpv6::neighbor_frame(
                mac,
                ethernet::multicast_mac(group),
                Ipv6Addr::UNSPECIFIED,
                group,
                &Neighbor::Solicitation {
                    target,
                    source_mac: None,
                },
            )
        }
    }
}

/// A probe that does not leave has no answer: the link is down or full, and there are others.
fn send(port: &mut impl Port, frame: &[u8]) {
    let packet = Superpacket {
        header: frame,
        payload: &[],
        offload: Offload::None,
    };
    port.send(&packet).ok();
}

/// Reads frames until `until`, or until another machine claims an address.
fn listen(
    port: &mut impl Port,
    addresses: &[IpAddr],
    until: Instant,
) -> io::Result<Option<Duplicate>> {
    let mac = port.mac();
    loop {
        let mut found = None;
        port.receive(BATCH, &mut |frame| {
            let claim = frame::parse(frame.bytes, frame.checksum_valid)
                .ok()
                .and_then(|received| claim(&received));
            let theirs =
                claim.filter(|claim| claim.holder != mac && addresses.contains(&claim.address));
            found = found.or(theirs);
        })?;
        if found.is_some() {
            return Ok(found);
        }
        let Some(left) = until.checked_duration_since(Instant::now()) else {
            return Ok(None);
        };
        wait(port, left)?;
    }
}

/// Waits until something may have arrived.
fn wait(port: &impl Port, at_most: Duration) -> io::Result<()> {
    let fds = port.receive_fds();
    let mut fds: Vec<PollFd<'_>> = fds
        .iter()
        .map(|fd| PollFd::new(fd, PollFlags::IN))
        .collect();
    let timeout = Timespec::try_from(at_most).map_err(io::Error::other)?;
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Returns the address that a frame's sender claims: it has the address, or is about to use it.
fn claim(received: &Received<'_>) -> Option<Duplicate> {
    match received {
        // RFC 5227 §2.1.1: the sender has it, or probes for it as well.
        Received::Arp(arp) => {
            let is_probe = arp.sender.is_unspecified() && arp.operation == arp::Operation::Request;
            let address = if is_probe { arp.target } else { arp.sender };
            Some(Duplicate {
                address: address.into(),
                holder: arp.sender_mac,
            })
        }
        // RFC 4862 §5.4.3 and §5.4.4
        Received::Icmp6(packet) => match packet.message {
            Message::Neighbor(Neighbor::Solicitation { target, .. })
                if packet.source.is_unspecified() =>
            {
                Some(Duplicate {
                    address: target.into(),
                    holder: packet.source_mac,
                })
            }
            Message::Neighbor(Neighbor::Advertisement {
                target, target_mac, ..
            }) => Some(Duplicate {
                address: target.into(),
                holder: target_mac.unwrap_or(packet.source_mac),
            }),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const OTHER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

    /// Returns the claim of a frame.
    fn claimed(frame: &[u8]) -> Option<Duplicate> {
        claim(&frame::parse(frame, true).expect("a frame"))
    }

    /// RFC 5227 §2.1.1
    #[test]
    fn a_probe_tells_neighbours_nothing_and_is_a_claim() {
        let address = Ipv4Addr::new(192, 0, 2, 1);
        let frame = probe(OWN_MAC, address.into());
        let Ok(Received::Arp(arp)) = frame::parse(&frame, true) else {
            panic!("no ARP: {frame:?}");
        };
        assert_eq!((arp.sender, arp.target), (Ipv4Addr::UNSPECIFIED, address));
        let expected = Duplicate {
            address: address.into(),
            holder: OWN_MAC,
        };
        assert_eq!(claimed(&frame), Some(expected));
    }

    /// RFC 4862 §5.4.2, §5.4.3
    #[test]
    fn a_solicitation_from_no_address_is_a_claim_and_another_one_is_none() {
        let address: Ipv6Addr = "fd00::1".parse().unwrap();
        let expected = Duplicate {
            address: address.into(),
            holder: OWN_MAC,
        };
        assert_eq!(claimed(&probe(OWN_MAC, address.into())), Some(expected));
        let question = Neighbor::Solicitation {
            target: address,
            source_mac: Some(OTHER_MAC),
        };
        let group = icmpv6::solicited_node(address);
        let multicast = ethernet::multicast_mac(group);
        let source = "fd00::2".parse().unwrap();
        let frame = icmpv6::neighbor_frame(OTHER_MAC, multicast, source, group, &question);
        assert_eq!(claimed(&frame), None);
    }

    #[test]
    fn who_answers_has_the_address() {
        let reply = arp::Packet {
            operation: arp::Operation::Reply,
            sender_mac: OTHER_MAC,
            sender: Ipv4Addr::new(192, 0, 2, 1),
            target_mac: OWN_MAC,
            target: Ipv4Addr::UNSPECIFIED,
        };
        let expected = Duplicate {
            address: IpAddr::V4(reply.sender),
            holder: OTHER_MAC,
        };
        assert_eq!(claimed(&reply.to_frame(OWN_MAC)), Some(expected));
    }
}
