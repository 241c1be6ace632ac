//! Classic BPF programs that keep frames for others out of a socket's ring.

use std::net::{IpAddr, Ipv6Addr};

use libc::sock_filter;
use wire::ethernet;
use wire::icmpv6::solicited_node;
use wire::ip;

use super::selection::{Only, Taken};

/// The group of all nodes on the link (RFC 4291 §2.7.1).
pub(crate) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Offset of the source address in an Ethernet frame, in bytes.
const SOURCE: u32 = 6;

/// Offsets in an Ethernet frame, in bytes.
const ETHER_TYPE: u32 = 12;
const IPV4_FRAGMENT: u32 = ethernet::HEADER_BYTES as u32 + 6;
const IPV4_PROTOCOL: u32 = ethernet::HEADER_BYTES as u32 + 9;
const IPV4_SOURCE: u32 = ethernet::HEADER_BYTES as u32 + 12;
const IPV6_NEXT_HEADER: u32 = ethernet::HEADER_BYTES as u32 + 6;
const IPV6_SOURCE: u32 = ethernet::HEADER_BYTES as u32 + 8;
const IPV6_PAYLOAD: u32 = ethernet::HEADER_BYTES as u32 + 40;
const IPV4_DESTINATION: u32 = ethernet::HEADER_BYTES as u32 + 16;
const IPV6_DESTINATION: u32 = ethernet::HEADER_BYTES as u32 + 24;

/// Accepts IPv4 packets to one of `own`.
pub(super) fn ipv4(own: &[IpAddr]) -> Vec<sock_filter> {
    let mut program = for_this_host();
    accept_ipv4_to(&mut program, own);
    program.push(result(DROP));
    program
}

fn accept_ipv4_to(program: &mut Vec<sock_filter>, own: &[IpAddr]) {
    for address in own {
        if let IpAddr::V4(address) = address {
            accept_if(program, IPV4_DESTINATION, &[address.to_bits()]);
        }
    }
}

/// Accepts IPv6 packets to one of `own`, or to its groups.
pub(super) fn ipv6(own: &[IpAddr]) -> Vec<sock_filter> {
    let mut program = for_this_host();
    accept_ipv6_to(&mut program, own);
    program.push(result(DROP));
    program
}

fn accept_ipv6_to(program: &mut Vec<sock_filter>, own: &[IpAddr]) {
    for address in own {
        if let IpAddr::V6(address) = address {
            for destination in [*address, solicited_node(*address)] {
                accept_if(program, IPV6_DESTINATION, &words(destination));
            }
        }
    }
    accept_if(program, IPV6_DESTINATION, &words(ALL_NODES));
}

fn accept_sent_from(program: &mut Vec<sock_filter>, own: &[IpAddr], ether_type: u16) {
    for address in own {
        match (address, ether_type) {
            (IpAddr::V4(address), ethernet::IPV4) => {
                accept_if(program, IPV4_SOURCE, &[address.to_bits()]);
            }
            (IpAddr::V6(address), ethernet::IPV6) => {
                accept_if(program, IPV6_SOURCE, &words(*address));
            }
            _ => {}
        }
    }
}

/// Accepts all of ARP: the links of addresses concern every host.
pub(super) fn arp() -> Vec<sock_filter> {
    sent_here()
}

/// Accepts all frames that were sent to this host.
pub(super) fn sent_here() -> Vec<sock_filter> {
    let mut program = for_this_host();
    program.push(result(ACCEPT));
    program
}

/// Accepts all frames that the machine `peer` has sent to this host.
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

/// Accepts all arriving frames, for any destination, but not this host's own.
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

/// Accepts the first `snaplen` bytes of the frames that a tap takes.
pub(super) fn tapped(taken: Taken<'_>, only: Only, snaplen: u32) -> Vec<sock_filter> {
    let mut program = match taken {
        Taken::Received(_) => for_this_host(),
        Taken::SentWithMark(mark) => {
            let mut program = sent_by_this_host();
            must_equal(&mut program, load_metadata(libc::SKF_AD_MARK), mark);
            program
        }
        Taken::SentFrom(_) => sent_by_this_host(),
    };
    for ether_type in [ethernet::IPV4, ethernet::IPV6] {
        let mut section = match ether_type {
            ethernet::IPV4 => only_ipv4(only),
            _ => only_ipv6(only),
        };
        match (taken, ether_type) {
            (Taken::Received(own), ethernet::IPV4) => accept_ipv4_to(&mut section, own),
            (Taken::Received(own), _) => accept_ipv6_to(&mut section, own),
            (Taken::SentFrom(own), _) => accept_sent_from(&mut section, own, ether_type),
            (Taken::SentWithMark(_), _) => section.push(result(ACCEPT)),
        }
        section.push(result(DROP));
        // A jump may be longer than a conditional jump can express.
        program.extend([
            load_half(ETHER_TYPE),
            instruction(
                libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
                ether_type.into(),
                1,
                0,
            ),
            instruction(libc::BPF_JMP | libc::BPF_JA, section.len() as u32, 0, 0),
        ]);
        program.extend(section);
    }
    if only == Only::default() {
        program.extend([
            load_half(ETHER_TYPE),
            unless_equal_skip(ethernet::ARP.into(), 1),
            result(ACCEPT),
        ]);
    }
    program.push(result(DROP));
    for instruction in &mut program {
        let sock_filter { code, k, .. } = result(ACCEPT);
        if (instruction.code, instruction.k) == (code, k) {
            instruction.k = snaplen;
        }
    }
    program
}

/// Drops IPv4 packets that do not match `only`.
fn only_ipv4(only: Only) -> Vec<sock_filter> {
    let mut program = Vec::new();
    match only.host {
        Some(IpAddr::V4(host)) => {
            let host = [host.to_bits()];
            must_have_either(&mut program, IPV4_SOURCE, IPV4_DESTINATION, &host);
        }
        Some(IpAddr::V6(_)) => program.push(result(DROP)),
        None => {}
    }
    if let Some(port) = only.port {
        must_have_ports(&mut program, load_byte(IPV4_PROTOCOL));
        program.extend([
            // Only the first fragment has ports.
            load_half(IPV4_FRAGMENT),
            instruction(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, 0x1fff, 0, 1),
            result(DROP),
            instruction(
                libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH,
                ethernet::HEADER_BYTES as u32,
                0,
                0,
            ),
        ]);
        let behind = |offset| {
            let code = libc::BPF_LD | libc::BPF_H | libc::BPF_IND;
            instruction(code, ethernet::HEADER_BYTES as u32 + offset, 0, 0)
        };
        must_be_either(&mut program, behind(0), behind(2), port.into());
    }
    program
}

/// Drops IPv6 packets that do not match `only`. Ports behind extension headers are unknown.
fn only_ipv6(only: Only) -> Vec<sock_filter> {
    let mut program = Vec::new();
    match only.host {
        Some(IpAddr::V6(host)) => {
            must_have_either(&mut program, IPV6_SOURCE, IPV6_DESTINATION, &words(host));
        }
        Some(IpAddr::V4(_)) => program.push(result(DROP)),
        None => {}
    }
    if let Some(port) = only.port {
        must_have_ports(&mut program, load_byte(IPV6_NEXT_HEADER));
        let [source, destination] = [IPV6_PAYLOAD, IPV6_PAYLOAD + 2].map(load_half);
        must_be_either(&mut program, source, destination, port.into());
    }
    program
}

/// Drops the frame unless the loaded value equals `value`.
fn must_equal(program: &mut Vec<sock_filter>, load: sock_filter, value: u32) {
    let equal = instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, 1, 0);
    program.extend([load, equal, result(DROP)]);
}

/// Drops the frame unless its protocol, which `load` loads, is TCP or UDP.
fn must_have_ports(program: &mut Vec<sock_filter>, load: sock_filter) {
    let equal = |protocol: u8, skip| {
        let code = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        instruction(code, protocol.into(), skip, 0)
    };
    program.extend([load, equal(ip::TCP, 2), equal(ip::UDP, 1), result(DROP)]);
}

/// Drops the frame unless one of the two loaded values equals `value`.
fn must_be_either(
    program: &mut Vec<sock_filter>,
    one: sock_filter,
    other: sock_filter,
    value: u32,
) {
    let equal = |skip| instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, skip, 0);
    program.extend([one, equal(3), other, equal(1), result(DROP)]);
}

/// Drops the frame unless the words at one of two offsets equal `value`.
fn must_have_either(program: &mut Vec<sock_filter>, one: u32, other: u32, value: &[u32]) {
    // Two instructions for each word.
    let len = 2 * value.len();
    for (offset, skip) in [(one, len + 1), (other, 1)] {
        for (i, word) in (0u32..).zip(value) {
            let left = len - 2 * (i as usize + 1);
            let skip_equal = if left == 0 { skip } else { 0 };
            program.push(load_word(offset + 4 * i));
            program.push(instruction(
                libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
                *word,
                skip_equal as u8,
                left as u8,
            ));
        }
    }
    program.push(result(DROP));
}

/// Returns the link addresses that the interface must accept for [`ipv6`] to see its groups.
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

fn load_byte(offset: u32) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, offset, 0, 0)
}

/// Loads the kernel's metadata of a frame.
fn load_metadata(field: libc::c_int) -> sock_filter {
    load_word((libc::SKF_AD_OFF + field) as u32)
}

/// Continues with the next instruction if the accumulator equals `value`, else skips `skip`
/// instructions.
fn unless_equal_skip(value: u32, skip: u8) -> sock_filter {
    instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, 0, skip)
}

/// Drops this host's own frames, frames for others that an interface in promiscuous mode receives,
/// and frames of a VLAN, whose tag the kernel has taken off.
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

/// Drops frames that this host does not send itself.
fn sent_by_this_host() -> Vec<sock_filter> {
    let mut program = Vec::new();
    must_equal(
        &mut program,
        load_metadata(libc::SKF_AD_PKTTYPE),
        libc::PACKET_OUTGOING.into(),
    );
    program
}

/// Drops frames of a VLAN.
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
        mark: u32,
    }

    const RECEIVED: Metadata = Metadata {
        pkt_type: libc::PACKET_HOST,
        vlan: false,
        mark: 0,
    };

    /// Runs such a program as the kernel does (Documentation/networking/filter). True if the frame
    /// is accepted.
    fn accepts(program: &[sock_filter], frame: &[u8], metadata: &Metadata) -> bool {
        accepted(program, frame, metadata) > 0
    }

    /// Returns the number of bytes that are accepted.
    fn accepted(program: &[sock_filter], frame: &[u8], metadata: &Metadata) -> u32 {
        let (mut accumulator, mut index) = (0, 0);
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
                0x20 if k == (libc::SKF_AD_OFF + libc::SKF_AD_MARK) as u32 => {
                    accumulator = metadata.mark;
                }
                0x20 => match frame.get(k as usize..).and_then(|rest| rest.first_chunk()) {
                    Some(word) => accumulator = u32::from_be_bytes(*word),
                    None => return 0,
                },
                0x28 => match frame.get(k as usize..).and_then(|rest| rest.first_chunk()) {
                    Some(half) => accumulator = u16::from_be_bytes(*half).into(),
                    None => return 0,
                },
                0x30 => match frame.get(k as usize) {
                    Some(byte) => accumulator = (*byte).into(),
                    None => return 0,
                },
                0x48 => match frame
                    .get(k as usize + index..)
                    .and_then(|rest| rest.first_chunk())
                {
                    Some(half) => accumulator = u16::from_be_bytes(*half).into(),
                    None => return 0,
                },
                0xb1 => match frame.get(k as usize) {
                    Some(byte) => index = 4 * usize::from(byte & 0xf),
                    None => return 0,
                },
                0x05 => at += k as usize,
                0x45 => at += usize::from(if accumulator & k > 0 { jt } else { jf }),
                0x15 => at += usize::from(if accumulator == k { jt } else { jf }),
                0x06 => return k,
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
            let metadata = Metadata {
                pkt_type,
                vlan,
                mark: 0,
            };
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
            ..RECEIVED
        };
        assert!(!accepts(&program, &from(peer), &not_for_us));
        assert!(!accepts(&program, &from(peer)[..11], &RECEIVED));
    }

    const MARK: u32 = 0x5357_0001;
    const SENT: Metadata = Metadata {
        pkt_type: libc::PACKET_OUTGOING,
        vlan: false,
        mark: MARK,
    };

    #[test]
    fn a_tap_takes_what_its_port_does() {
        let own = own();
        let received = tapped(Taken::Received(&own), Only::default(), 96);
        let marked = tapped(Taken::SentWithMark(MARK), Only::default(), 96);
        let sent = tapped(Taken::SentFrom(&own), Only::default(), 96);
        for to in own.clone() {
            assert_eq!(accepted(&received, &frame_to(to), &RECEIVED), 96, "{to}");
            assert_eq!(accepted(&marked, &frame_to(to), &SENT), 96, "{to}");
            assert!(!accepts(&received, &frame_to(to), &SENT), "{to}");
            assert!(!accepts(&marked, &frame_to(to), &RECEIVED), "{to}");
            assert!(
                !accepts(&sent, &frame_to(to), &SENT),
                "not from there: {to}"
            );
        }
        for to in ["10.0.0.3", "fd78::12:3456"] {
            let frame = frame_to(to.parse().unwrap());
            assert!(!accepts(&received, &frame, &RECEIVED), "{to}");
            assert!(accepts(&marked, &frame, &SENT), "{to}");
        }
        let other = Metadata {
            mark: MARK + 1,
            ..SENT
        };
        assert!(!accepts(&marked, &frame_to(own[0]), &other));
        let arp = [&[0xff; 12][..], &[0x08, 0x06], &[0; 46]].concat();
        for (program, metadata) in [(&received, RECEIVED), (&marked, SENT), (&sent, SENT)] {
            assert!(accepts(program, &arp, &metadata));
        }
        // From an address of ours: the two are exchanged.
        let mut back = frame_to(own[0]);
        back.copy_within(30..34, 26);
        assert!(accepts(&sent, &back, &SENT));
    }

    #[test]
    fn a_tap_may_be_for_one_address_and_one_port() {
        // The ports of both frames are 1.
        let (v4, v6) = (frame_to(own()[0]), frame_to(own()[2]));
        let marked = |host: Option<&str>, port| {
            let host = host.map(|host| host.parse().unwrap());
            tapped(Taken::SentWithMark(MARK), Only { host, port }, 1500)
        };
        let takes =
            |program: &[sock_filter]| [&v4, &v6].map(|frame| accepts(program, frame, &SENT));
        for (host, of) in [
            ("10.0.0.2", [true, false]),
            ("192.0.2.1", [true, false]),
            ("10.0.0.3", [false, false]),
            ("fd77::12:3456", [false, true]),
            ("2001:db8::1", [false, true]),
            ("fd77::12:3457", [false, false]),
        ] {
            assert_eq!(takes(&marked(Some(host), None)), of, "{host}");
            assert_eq!(takes(&marked(Some(host), Some(1))), of, "{host}");
            assert_eq!(
                takes(&marked(Some(host), Some(2))),
                [false, false],
                "{host}"
            );
        }
        assert_eq!(takes(&marked(None, Some(1))), [true, true]);
        assert_eq!(takes(&marked(None, Some(2))), [false, false]);
        let port = marked(None, Some(1));
        // Options of IPv4 move the ports.
        let mut longer = v4.clone();
        longer.splice(34..34, [0; 4]);
        longer[14] = 0x46;
        assert!(accepts(&port, &longer, &SENT));
        let mut fragment = v4.clone();
        fragment[21] = 1;
        assert!(!accepts(&port, &fragment, &SENT), "it has no ports");
        // Protocols with ports, in the same place, and others.
        for (protocol, has_ports) in [(ip::TCP, true), (ip::UDP, true), (ip::ICMP, false)] {
            let (mut v4, mut v6) = (v4.clone(), v6.clone());
            v4[23] = protocol;
            v6[20] = protocol;
            for frame in [v4, v6] {
                assert_eq!(accepts(&port, &frame, &SENT), has_ports, "{protocol}");
            }
        }
        // Own addresses count besides.
        let own = own();
        let only = Only {
            host: Some("192.0.2.1".parse().unwrap()),
            port: Some(1),
        };
        let received = tapped(Taken::Received(&own), only, 1500);
        assert!(accepts(&received, &v4, &RECEIVED));
        let elsewhere = frame_to("10.0.0.3".parse().unwrap());
        assert!(!accepts(&received, &elsewhere, &RECEIVED));
        let arp = [&[0xff; 12][..], &[0x08, 0x06], &[0; 46]].concat();
        assert!(!accepts(&received, &arp, &RECEIVED), "it has neither");
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
