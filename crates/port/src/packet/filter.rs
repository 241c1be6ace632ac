//! Classic BPF programs that keep other people's frames out of a socket's ring.

use std::net::{IpAddr, Ipv6Addr};

use libc::sock_filter;
use wire::ethernet;
use wire::icmpv6::solicited_node;

/// The group of all nodes on the link (RFC 4291 §2.7.1).
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Offset of the source address in an Ethernet frame, in bytes.
const SOURCE: u32 = 6;

/// Offset of the destination address in an Ethernet frame, in bytes.
const IPV4_DESTINATION: u32 = ethernet::HEADER_BYTES as u32 + 16;
const IPV6_DESTINATION: u32 = ethernet::HEADER_BYTES as u32 + 24;

/// IPv4 packets to one of `own`.
pub(super) fn ipv4(own: &[IpAddr]) -> Vec<sock_filter> {
    let mut program = for_this_host();
    for address in own {
        if let IpAddr::V4(address) = address {
            accept_if(&mut program, IPV4_DESTINATION, &[address.to_bits()]);
        }
    }
    program.push(result(DROP));
    program
}

/// IPv6 packets to one of `own`, or to a group that it belongs to.
pub(super) fn ipv6(own: &[IpAddr]) -> Vec<sock_filter> {
    let mut program = for_this_host();
    for address in own {
        if let IpAddr::V6(address) = address {
            for destination in [*address, solicited_node(*address)] {
                accept_if(&mut program, IPV6_DESTINATION, &words(destination));
            }
        }
    }
    accept_if(&mut program, IPV6_DESTINATION, &words(ALL_NODES));
    program.push(result(DROP));
    program
}

/// All of ARP: who is where concerns everybody.
pub(super) fn arp() -> Vec<sock_filter> {
    sent_here()
}

/// All that was sent to this host.
pub(super) fn sent_here() -> Vec<sock_filter> {
    let mut program = for_this_host();
    program.push(result(ACCEPT));
    program
}

/// All that this machine has sent to this host.
pub(super) fn sent_here_by(peer: [u8; 6]) -> Vec<sock_filter> {
    let [a, b, c, d, e, f] = peer;
    let mut program = for_this_host();
    program.extend([
        load_word(SOURCE),
        unless_equal_skip(u32::from_be_bytes([a, b, c, d]), 3),
        load_half(SOURCE + 4),
        unless_equal_skip(u16::from_be_bytes([e, f]).into(), 1),
        result(ACCEPT),
        result(DROP),
    ]);
    program
}

/// All that arrives, whoever it is for, but not what this host sends.
pub(super) fn passing() -> Vec<sock_filter> {
    let mut program = vec![
        load_metadata(libc::SKF_AD_PKTTYPE),
        unless_equal_skip(libc::PACKET_OUTGOING.into(), 1),
        result(DROP),
    ];
    program.extend(without_vlan());
    program.push(result(ACCEPT));
    program
}

/// Link addresses that the interface must accept for [`ipv6`] to see its groups.
pub(super) fn multicast_macs(own: &[IpAddr]) -> Vec<[u8; 6]> {
    let groups = own.iter().filter_map(|address| match address {
        IpAddr::V6(address) => Some(solicited_node(*address)),
        IpAddr::V4(_) => None,
    });
    let mut macs: Vec<_> = groups
        .chain([ALL_NODES])
        .map(ethernet::multicast_mac)
        .collect();
    macs.sort_unstable();
    macs.dedup();
    macs
}

const DROP: u32 = 0;
/// The whole frame, however long.
const ACCEPT: u32 = u32::MAX;

fn instruction(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    }
}

fn result(bytes: u32) -> sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, bytes, 0, 0)
}

fn load_word(offset: u32) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0, 0)
}

fn load_half(offset: u32) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, offset, 0, 0)
}

/// What the kernel knows about a frame beside its bytes.
fn load_metadata(field: libc::c_int) -> sock_filter {
    load_word((libc::SKF_AD_OFF + field) as u32)
}

/// Goes on with the next instruction if the accumulator equals `value`, else skips `skip` instructions.
fn unless_equal_skip(value: u32, skip: u8) -> sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, 0, skip)
}

/// Drops what this host sends itself, what an interface in promiscuous mode hears of others, and what
/// belongs to a VLAN, whose tag the kernel has taken off.
fn for_this_host() -> Vec<sock_filter> {
    let mut program = vec![
        load_metadata(libc::SKF_AD_PKTTYPE),
        unless_equal_skip(libc::PACKET_OTHERHOST.into(), 1),
        result(DROP),
        unless_equal_skip(libc::PACKET_OUTGOING.into(), 1),
        result(DROP),
    ];
    program.extend(without_vlan());
    program
}

/// Drops what belongs to a VLAN.
fn without_vlan() -> [sock_filter; 3] {
    [
        load_metadata(libc::SKF_AD_VLAN_TAG_PRESENT),
        unless_equal_skip(1, 1),
        result(DROP),
    ]
}

/// Accepts the frame if the words at `offset` equal `value`.
fn accept_if(program: &mut Vec<sock_filter>, offset: u32, value: &[u32]) {
    for (i, word) in (0u32..).zip(value) {
        // Two instructions for each word that follows, and the result.
        let skip = 2 * (value.len() - 1 - i as usize) + 1;
        program.push(load_word(offset + 4 * i));
        program.push(unless_equal_skip(*word, skip as u8));
    }
    program.push(result(ACCEPT));
}

fn words(address: Ipv6Addr) -> [u32; 4] {
    let bits = address.to_bits();
    [96, 64, 32, 0].map(|shift| (bits >> shift) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use wire::frame::{HEADER_BYTES_MAX, TcpTemplate};

    struct Metadata {
        pkt_type: u8,
        vlan: bool,
    }

    const RECEIVED: Metadata = Metadata {
        pkt_type: libc::PACKET_HOST,
        vlan: false,
    };

    /// What the kernel does with such programs (its `bpf(2)` predecessor, Documentation/networking/filter).
    fn accepts(program: &[sock_filter], frame: &[u8], metadata: &Metadata) -> bool {
        let mut accumulator = 0;
        let mut at = 0;
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            match u32::from(code) {
                0x20 if k == (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE) as u32 => {
                    accumulator = metadata.pkt_type.into();
                }
                0x20 if k == (libc::SKF_AD_OFF + libc::SKF_AD_VLAN_TAG_PRESENT) as u32 => {
                    accumulator = metadata.vlan.into();
                }
                0x20 => match frame.get(k as usize..).and_then(|rest| rest.first_chunk()) {
                    Some(word) => accumulator = u32::from_be_bytes(*word),
                    None => return false,
                },
                0x28 => match frame.get(k as usize..).and_then(|rest| rest.first_chunk()) {
                    Some(half) => accumulator = u16::from_be_bytes(*half).into(),
                    None => return false,
                },
                0x15 => at += usize::from(if accumulator == k { jt } else { jf }),
                0x06 => return k > 0,
                code => panic!("instruction {code:#x}"),
            }
        }
    }

    fn frame_to(destination: IpAddr) -> Vec<u8> {
        let source: IpAddr = match destination {
            IpAddr::V4(_) => "192.0.2.1".parse().unwrap(),
            IpAddr::V6(_) => "2001:db8::1".parse().unwrap(),
        };
        let mut frame = vec![0; HEADER_BYTES_MAX];
        let ends = [source, destination].map(|address| SocketAddr::new(address, 1));
        let len = TcpTemplate::new([0; 6], [0; 6], ends[0], ends[1])
            .write(&wire::tcp::Header::default(), &mut frame)
            .unwrap();
        frame.truncate(len);
        frame
    }

    fn own() -> Vec<IpAddr> {
        ["10.0.0.2", "10.1.0.2", "fd77::12:3456", "2001:db8::77"]
            .map(|address| address.parse().unwrap())
            .to_vec()
    }

    #[test]
    fn own_addresses_and_groups_pass() {
        for to in own() {
            let program = match to {
                IpAddr::V4(_) => ipv4(&own()),
                IpAddr::V6(_) => ipv6(&own()),
            };
            assert!(accepts(&program, &frame_to(to), &RECEIVED), "{to}");
        }
        for group in ["ff02::1", "ff02::1:ff12:3456", "ff02::1:ff00:77"] {
            let frame = frame_to(group.parse().unwrap());
            assert!(accepts(&ipv6(&own()), &frame, &RECEIVED), "{group}");
        }
    }

    #[test]
    fn others_do_not() {
        for to in ["10.0.0.3", "10.2.0.2", "255.255.255.255"] {
            let frame = frame_to(to.parse().unwrap());
            assert!(!accepts(&ipv4(&own()), &frame, &RECEIVED), "{to}");
        }
        for to in [
            "fd77::12:3457",
            "fd78::12:3456",
            "ff02::1:ff12:3457",
            "ff02::2",
        ] {
            let frame = frame_to(to.parse().unwrap());
            assert!(!accepts(&ipv6(&own()), &frame, &RECEIVED), "{to}");
        }
    }

    #[test]
    fn nothing_passes_that_was_not_sent_to_this_host() {
        let frame = frame_to(own()[0]);
        for (pkt_type, vlan) in [
            (libc::PACKET_OUTGOING, false),
            (libc::PACKET_OTHERHOST, false),
            (libc::PACKET_HOST, true),
        ] {
            let metadata = Metadata { pkt_type, vlan };
            assert!(!accepts(&ipv4(&own()), &frame, &metadata));
            assert!(!accepts(&arp(), &frame, &metadata));
        }
        assert!(accepts(&arp(), &frame, &RECEIVED));
    }

    #[test]
    fn what_another_machine_sends_does_not_pass() {
        let peer = [2, 0, 0x5e, 0x10, 0, 1];
        let from = |source: [u8; 6]| {
            let mut frame = frame_to(own()[0]);
            frame[6..12].copy_from_slice(&source);
            frame
        };
        let program = sent_here_by(peer);
        assert!(accepts(&program, &from(peer), &RECEIVED));
        for byte in 0..6 {
            let mut other = peer;
            other[byte] ^= 4;
            assert!(!accepts(&program, &from(other), &RECEIVED), "{byte}");
            assert!(accepts(&sent_here(), &from(other), &RECEIVED));
        }
        let not_for_us = Metadata {
            pkt_type: libc::PACKET_OTHERHOST,
            vlan: false,
        };
        assert!(!accepts(&program, &from(peer), &not_for_us));
        assert!(!accepts(&program, &from(peer)[..11], &RECEIVED));
    }

    #[test]
    fn frames_too_short_for_an_address_do_not_pass() {
        let frame = frame_to(own()[2]);
        for len in 0..14 + 40 {
            assert!(!accepts(&ipv6(&own()), &frame[..len], &RECEIVED));
        }
    }

    #[test]
    fn each_group_is_joined_once() {
        let same_group = ["fd77::1:2", "fd78::1:2", "10.0.0.1"].map(|a| a.parse().unwrap());
        assert_eq!(
            multicast_macs(&same_group),
            [[0x33, 0x33, 0, 0, 0, 1], [0x33, 0x33, 0xff, 1, 0, 2]]
        );
    }
}
