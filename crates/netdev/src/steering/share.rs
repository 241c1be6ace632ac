//! Programs for an interface whose addresses the stack shares with the kernel.
//!
//! The stack has some ports of the addresses, the kernel all others and every other protocol. A
//! program at the interface's ingress ([`keep_from_kernel`]) drops the stack's frames; packet
//! sockets, which the kernel serves before, take them by a filter ([`load`]) of the same code. So
//! no frame is handled twice. Both get ARP and some ICMP, which the stack only reads.
//!
//! | Frames to an address of the set | Kernel | Stack |
//! |---|---|---|
//! | TCP segments and datagrams to the stack's ports, first fragments included | no | yes |
//! | ICMP errors, neighbour advertisements; ARP to any address | yes | yes |
//! | all others, and those behind extension headers of IPv6 | yes | no |
//!
//! Addresses may change while frames arrive: they are in a set of `bpf(2)`. Ports are constants of
//! the programs.

use std::io;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use wire::{ethernet, ip};

use super::assembler::{
    Assembler, FRAME, Instruction, Label, Op, R0, R1, R2, R8, R9, Register, Width,
};
use super::bpf;
use super::map::Target;
use super::program::{
    Family, IP_HEADER, MAP_LOOKUP_ELEM, TCP_HEADER, Ways, load_bytes_from_r2, look_at_type,
    look_for_worker,
};

/// Most addresses of an interface that can be shared.
pub const ADDRESSES_MAX: usize = 1024;

/// Offset in the kernel's `__sk_buff`.
const ETHER_TYPE: i16 = 16;

/// Place of a key of the set on the stack.
const SET_KEY: i16 = -96;

/// Results of a program at the ingress (`enum tcx_action_base`).
const TCX_NEXT: u32 = u32::MAX;
const TCX_DROP: u32 = 2;

/// Types of ICMP that the stack reads: errors about its packets (RFC 792), or neighbours' answers
/// as well (RFC 4443, RFC 4861).
const ICMP_UNREACHABLE: RangeInclusive<u8> = 3..=3;
const ICMPV6_ERRORS: RangeInclusive<u8> = 1..=4;
const ICMPV6_ADVERTISEMENT: RangeInclusive<u8> = 136..=136;

/// The ports that the stack has of shared addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedPorts {
    /// Ports of TCP listeners.
    pub tcp: Vec<u16>,
    /// Ports of UDP.
    pub udp: Vec<u16>,
    /// Ports of TCP connections that the stack opens.
    pub local: Option<RangeInclusive<u16>>,
}

/// Shared addresses, and the stack's ports.
#[derive(Clone, Copy, Debug)]
pub struct Share<'a> {
    /// A set of [`AddressSet`].
    pub addresses: BorrowedFd<'a>,
    /// The stack's ports.
    pub ports: &'a SharedPorts,
}

/// A set of addresses that programs look up.
#[derive(Debug)]
pub struct AddressSet(OwnedFd);

impl AddressSet {
    /// Creates an empty set. Needs `CAP_BPF` where the kernel restricts `bpf(2)`.
    pub fn new() -> io::Result<AddressSet> {
        bpf::create_set(ADDRESSES_MAX as u32).map(AddressSet)
    }

    /// Adds an address.
    pub fn insert(&self, address: IpAddr) -> io::Result<()> {
        bpf::change_set(self.0.as_fd(), &key(address), true)
    }

    /// Removes an address, which must be in the set.
    pub fn remove(&self, address: IpAddr) -> io::Result<()> {
        bpf::change_set(self.0.as_fd(), &key(address), false)
    }

    /// Returns the set's descriptor, for processes that load filters.
    pub fn descriptor(&self) -> &OwnedFd {
        &self.0
    }
}

/// Returns an address of either family as one of IPv6 (RFC 4291 §2.5.5.2).
fn key(address: IpAddr) -> [u8; bpf::SET_KEY_BYTES] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Drops the stack's frames when they arrive at `interface`, after packet sockets have seen them,
/// until the returned descriptor and its duplicates are closed. Needs Linux 6.6, `CAP_NET_ADMIN`
/// and `CAP_BPF`.
pub fn keep_from_kernel(interface: u32, share: Share<'_>) -> io::Result<OwnedFd> {
    let program = bpf::load(bpf::PROG_TYPE_SCHED_CLS, &ingress_program(share))?;
    bpf::attach_to_ingress(&program, interface)
}

/// Loads a filter for a socket that receives every protocol: the host's without `target`, else a
/// NIC worker's. Without a steering map, the host gets all frames.
pub(crate) fn load(
    share: Share<'_>,
    map: Option<BorrowedFd<'_>>,
    target: Option<Target>,
) -> io::Result<OwnedFd> {
    bpf::load(
        bpf::PROG_TYPE_SOCKET_FILTER,
        &filter_program(share, map, target),
    )
}

fn filter_program(
    share: Share<'_>,
    map: Option<BorrowedFd<'_>>,
    target: Option<Target>,
) -> Vec<Instruction> {
    let mut code = Assembler::default();
    let ways = Ways::new(&mut code);
    let (v6, arp) = (code.label(), code.label());
    jump_by_ether_type(&mut code, v6, arp, ways.drop);
    for family in [Family::V4, Family::V6] {
        if family == Family::V6 {
            code.place(v6);
        }
        let ours = code.label();
        look_at_type(&mut code, family, ways.drop);
        look_at_share(&mut code, family, share, ours, ways.host, ways.drop);
        code.place(ours);
        let own_source = |code: &mut Assembler, ways: &Ways| {
            let [source, _] = family.addresses();
            let other = code.label();
            look_up_address(code, family, share, source, other);
            code.jump(ways.host);
            code.place(other);
        };
        match map {
            Some(map) => look_for_worker(&mut code, map, family, own_source, &ways),
            None => code.jump(ways.host),
        }
    }
    code.place(arp);
    look_at_type(&mut code, Family::V4, ways.drop);
    code.jump(ways.host);
    ways.end(&mut code, target);
    code.finish()
}

fn ingress_program(share: Share<'_>) -> Vec<Instruction> {
    let mut code = Assembler::default();
    let (v6, ours, other) = (code.label(), code.label(), code.label());
    jump_by_ether_type(&mut code, v6, other, other);
    for family in [Family::V4, Family::V6] {
        if family == Family::V6 {
            code.place(v6);
        }
        look_at_type(&mut code, family, other);
        look_at_share(&mut code, family, share, ours, other, other);
    }
    code.place(ours);
    code.set(R0, TCX_DROP);
    code.exit();
    code.place(other);
    code.set(R0, TCX_NEXT);
    code.exit();
    code.finish()
}

/// Continues with a frame of IPv4.
fn jump_by_ether_type(code: &mut Assembler, v6: Label, arp: Label, other: Label) {
    // In the byte order of the network.
    let number = |ether_type: u16| u32::from(ether_type.to_be());
    code.load(Width::Word, R0, R1, ETHER_TYPE);
    code.jump_if(R0, number(ethernet::IPV6), v6);
    code.jump_if(R0, number(ethernet::ARP), arp);
    code.jump_unless(R0, number(ethernet::IPV4), other);
}

/// Jumps to `ours` with a segment or a datagram to a port of the stack, to `read` with a message
/// that the stack reads, and to `other` with all else. The IP header is on the stack.
fn look_at_share(
    code: &mut Assembler,
    family: Family,
    share: Share<'_>,
    ours: Label,
    read: Label,
    other: Label,
) {
    let [_, destination] = family.addresses();
    look_up_address(code, family, share, destination, other);
    // Register 8: the length of the header.
    match family {
        Family::V4 => {
            code.load(Width::Byte, R8, FRAME, IP_HEADER);
            code.with(Op::And, R8, 0x0f);
            code.with(Op::Lsh, R8, 2);
            // Only the first fragment has ports; without it, the kernel completes no packet.
            for (at, mask) in [(6, 0x1f), (7, 0xff)] {
                code.load(Width::Byte, R0, FRAME, IP_HEADER + at);
                code.with(Op::And, R0, mask);
                code.jump_unless(R0, 0, other);
            }
        }
        Family::V6 => code.set(R8, family.header_bytes()),
    }
    code.load(Width::Byte, R9, FRAME, IP_HEADER + family.protocol());
    let (icmp, types): (u8, &[_]) = match family {
        Family::V4 => (ip::ICMP, &[ICMP_UNREACHABLE]),
        Family::V6 => (ip::ICMPV6, &[ICMPV6_ERRORS, ICMPV6_ADVERTISEMENT]),
    };
    for (protocol, ports, local) in [
        (ip::TCP, &share.ports.tcp, share.ports.local.clone()),
        (ip::UDP, &share.ports.udp, None),
    ] {
        let not = code.label();
        code.jump_unless(R9, protocol.into(), not);
        code.copy(R2, R8);
        load_bytes_from_r2(code, TCP_HEADER, 4, other);
        code.load(Width::Half, R0, FRAME, TCP_HEADER + 2);
        code.in_host_order(R0);
        for port in ports {
            code.jump_if(R0, u32::from(*port), ours);
        }
        if let Some(local) = local {
            jump_if_within(
                code,
                R0,
                (*local.start()).into(),
                (*local.end()).into(),
                ours,
            );
        }
        code.jump(other);
        code.place(not);
    }
    code.jump_unless(R9, icmp.into(), other);
    code.copy(R2, R8);
    load_bytes_from_r2(code, TCP_HEADER, 1, other);
    code.load(Width::Byte, R0, FRAME, TCP_HEADER);
    for range in types {
        jump_if_within(
            code,
            R0,
            (*range.start()).into(),
            (*range.end()).into(),
            read,
        );
    }
    code.jump(other);
}

fn jump_if_within(code: &mut Assembler, of: Register, start: u32, end: u32, label: Label) {
    let outside = code.label();
    code.jump_if_below(of, start, outside);
    code.jump_if_above(of, end, outside);
    code.jump(label);
    code.place(outside);
}

/// Jumps unless the address at this offset in the IP header is in the set.
fn look_up_address(
    code: &mut Assembler,
    family: Family,
    share: Share<'_>,
    offset: i16,
    otherwise: Label,
) {
    let words = match family {
        Family::V4 => {
            let prefix = [0, 0, u32::from(u16::MAX).to_be()];
            for (word, value) in (0i16..).zip(prefix) {
                code.set(R0, value);
                code.store(FRAME, SET_KEY + 4 * word, R0);
            }
            3..4
        }
        Family::V6 => 0..4,
    };
    let first = words.start;
    for word in words {
        code.load(
            Width::Word,
            R0,
            FRAME,
            IP_HEADER + offset + 4 * (word - first),
        );
        code.store(FRAME, SET_KEY + 4 * word, R0);
    }
    code.load_map(R1, share.addresses.as_raw_fd());
    code.copy(R2, FRAME);
    code.move_by(R2, SET_KEY.into());
    code.call(MAP_LOOKUP_ELEM);
    code.jump_if_null(R0, otherwise);
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use wire::arp;
    use wire::datagram::DatagramHeader;
    use wire::frame::TcpTemplate;
    use wire::icmp::Echo;
    use wire::tcp::{Flags, Header};
    use wire::{icmpv4, icmpv6};

    use super::super::{Protocol, SteeringMap, create_map};
    use super::*;

    /// The hardware address of the loopback device, on which test runs arrive.
    const HERE: [u8; 6] = [0; 6];
    const PEER: [u8; 6] = [2, 0, 0, 0, 0, 9];

    fn ports() -> SharedPorts {
        SharedPorts {
            tcp: vec![80, 443],
            udp: vec![443],
            local: Some(61_000..=61_999),
        }
    }

    fn segment(mac: [u8; 6], from: &str, to: &str) -> Vec<u8> {
        let [source, destination]: [SocketAddr; 2] = [from, to].map(|it| it.parse().unwrap());
        let header = Header {
            flags: Flags::SYN,
            ..Header::default()
        };
        TcpTemplate::new(PEER, mac, source, destination).to_frame(&header, &[])
    }

    fn datagram(from: &str, to: &str) -> Vec<u8> {
        let [source, destination]: [SocketAddr; 2] = [from, to].map(|it| it.parse().unwrap());
        let header = DatagramHeader {
            source_mac: PEER,
            destination_mac: HERE,
            source,
            destination,
            ecn: wire::ip::Ecn::NotEct,
        };
        header.to_frame(b"datagram").expect("ends of one family")
    }

    /// Whether the kernel and the stack get it.
    fn who(share: Share<'_>, frame: &[u8]) -> (bool, bool) {
        let ingress = bpf::load(bpf::PROG_TYPE_SCHED_CLS, &ingress_program(share)).unwrap();
        let filter = load(share, None, None).unwrap();
        let verdict = bpf::tests::run(&ingress, frame);
        assert!([TCX_NEXT, TCX_DROP].contains(&verdict), "{verdict}");
        let taken = bpf::tests::run(&filter, frame);
        (verdict == TCX_NEXT, taken == u32::MAX)
    }

    const KERNEL: (bool, bool) = (true, false);
    const STACK: (bool, bool) = (false, true);
    const BOTH: (bool, bool) = (true, true);
    const NOBODY_WHO_LISTENS: (bool, bool) = KERNEL;

    fn set() -> AddressSet {
        let set = AddressSet::new().unwrap();
        for own in ["192.0.2.5", "2001:db8::5"] {
            set.insert(own.parse().unwrap()).unwrap();
        }
        set
    }

    #[test]
    fn each_segment_and_each_datagram_is_for_one_of_the_two() {
        let (set, ports) = (set(), ports());
        let share = Share {
            addresses: set.descriptor().as_fd(),
            ports: &ports,
        };
        for [own, peer, other] in [
            ["192.0.2.5", "198.51.100.9", "192.0.2.6"],
            ["[2001:db8::5]", "[2001:db8::9]", "[2001:db8::6]"],
        ] {
            let from = format!("{peer}:40000");
            for (port, tcp, udp) in [
                (80, STACK, KERNEL),
                (443, STACK, STACK),
                (22, KERNEL, KERNEL),
                (442, KERNEL, KERNEL),
                (60_999, KERNEL, KERNEL),
                (61_000, STACK, KERNEL),
                (61_999, STACK, KERNEL),
                (62_000, KERNEL, KERNEL),
            ] {
                let to = format!("{own}:{port}");
                assert_eq!(who(share, &segment(HERE, &from, &to)), tcp, "TCP to {to}");
                assert_eq!(who(share, &datagram(&from, &to)), udp, "UDP to {to}");
            }
            let to = format!("{other}:80");
            assert_eq!(who(share, &segment(HERE, &from, &to)), KERNEL, "{to}");
            let to = format!("{own}:80");
            let elsewhere = segment([2, 0, 0, 0, 0, 7], &from, &to);
            assert_eq!(who(share, &elsewhere), NOBODY_WHO_LISTENS);
        }
    }

    #[test]
    fn an_address_counts_while_it_is_in_the_set() {
        let (set, ports) = (set(), ports());
        let share = Share {
            addresses: set.descriptor().as_fd(),
            ports: &ports,
        };
        let frame = segment(HERE, "198.51.100.9:40000", "192.0.2.6:80");
        let new = "192.0.2.6".parse().unwrap();
        set.insert(new).unwrap();
        assert_eq!(who(share, &frame), STACK);
        set.remove(new).unwrap();
        assert_eq!(who(share, &frame), KERNEL);
        assert!(set.remove(new).is_err(), "it is not in the set");
    }

    #[test]
    fn the_kernel_keeps_ping_and_both_read_errors_and_neighbours() {
        let (set, ports) = (set(), ports());
        let share = Share {
            addresses: set.descriptor().as_fd(),
            ports: &ports,
        };
        let echo = Echo {
            reply: false,
            ident: 1,
            seq_no: 1,
            data: b"ping",
        };
        let [own, peer] = ["192.0.2.5", "198.51.100.9"].map(|it| it.parse().unwrap());
        let ping = icmpv4::echo_frame(PEER, HERE, peer, own, &echo);
        assert_eq!(who(share, &ping), KERNEL);
        // From the IP header on.
        let quoted = &segment(HERE, "192.0.2.5:80", "198.51.100.9:40000")[14..];
        let error = icmpv4::port_unreachable_frame(PEER, HERE, peer, own, quoted);
        assert_eq!(who(share, &error), BOTH);
        let request = arp::Packet {
            operation: arp::Operation::Request,
            sender_mac: PEER,
            sender: peer,
            target_mac: HERE,
            target: own,
        };
        assert_eq!(who(share, &request.to_frame(HERE)), BOTH);

        let [own, peer] = ["2001:db8::5", "2001:db8::9"].map(|it| it.parse().unwrap());
        let ping = icmpv6::echo_frame(PEER, HERE, peer, own, &echo);
        assert_eq!(who(share, &ping), KERNEL);
        let quoted = &segment(HERE, "[2001:db8::5]:80", "[2001:db8::9]:40000")[14..];
        let error = icmpv6::port_unreachable_frame(PEER, HERE, peer, own, quoted);
        assert_eq!(who(share, &error), BOTH);
        for (neighbor, expected) in [
            (
                icmpv6::Neighbor::Advertisement {
                    target: peer,
                    target_mac: Some(PEER),
                    router: false,
                    solicited: true,
                    override_cached: true,
                },
                BOTH,
            ),
            (
                icmpv6::Neighbor::Solicitation {
                    target: own,
                    source_mac: Some(PEER),
                },
                KERNEL,
            ),
        ] {
            let frame = icmpv6::neighbor_frame(PEER, HERE, peer, own, &neighbor);
            assert_eq!(who(share, &frame), expected, "{neighbor:?}");
        }
    }

    /// Options of IPv4 move the ports; later fragments have none.
    #[test]
    fn ports_are_found_behind_options_and_in_first_fragments() {
        let (set, ports) = (set(), ports());
        let share = Share {
            addresses: set.descriptor().as_fd(),
            ports: &ports,
        };
        let plain = segment(HERE, "198.51.100.9:40000", "192.0.2.5:80");
        let mut with_options = plain.clone();
        with_options[14] = 0x46;
        with_options.splice(34..34, [1, 1, 1, 1]);
        assert_eq!(who(share, &with_options), STACK);
        let (mut first, mut later) = (plain.clone(), plain);
        first[20] |= 0x20;
        later[21] = 1;
        assert_eq!(who(share, &first), STACK);
        assert_eq!(who(share, &later), KERNEL);
        let mut extended = segment(HERE, "[2001:db8::9]:40000", "[2001:db8::5]:80");
        extended[20] = 0;
        extended.splice(54..54, [ip::TCP, 0, 1, 4, 0, 0, 0, 0]);
        assert_eq!(who(share, &extended), KERNEL);
    }

    #[test]
    fn a_worker_gets_its_flows_and_the_host_all_else() {
        let (set, ports) = (set(), ports());
        let share = Share {
            addresses: set.descriptor().as_fd(),
            ports: &ports,
        };
        let map = create_map().unwrap();
        let steering = SteeringMap::open(map.as_fd(), *b"a key of a hash.").unwrap();
        let target = Target::new(7).unwrap();
        steering.set_flow_target(3, Some(target));
        let [local, remote] =
            ["192.0.2.5:80", "198.51.100.9:40000"].map(|it| it.parse::<SocketAddr>().unwrap());
        assert!(steering.list_flow(Protocol::Tcp, local, remote, 3));
        let filters =
            [None, Some(target)].map(|target| load(share, Some(map.as_fd()), target).unwrap());
        for (from, by_worker) in [("198.51.100.9:40000", true), ("198.51.100.9:40001", false)] {
            let frame = segment(HERE, from, "192.0.2.5:80");
            let taken = filters.each_ref().map(|it| bpf::tests::run(it, &frame) > 0);
            assert_eq!(taken, [!by_worker, by_worker], "{from}");
        }
    }
}
