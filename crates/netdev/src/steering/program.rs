//! Programs for packet sockets: each takes the frames that
//! [`SteeringMap::decide`](super::SteeringMap::decide) gives to its port.
//!
//! | Register | Holds |
//! |---|---|
//! | 6 | the frame |
//! | 7 | its packet type, later the owner of a flow, and the target |
//! | 8 | the hash of addresses and ports |
//! | 9 | the first element of the map, later the port |
//!
//! The stack holds the IP header, the needed part of the TCP or UDP header, and a key of the map.

use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use wire::icmpv6::solicited_node;
use wire::tcp::Flags;

use super::assembler::{
    Assembler, FRAME, Instruction, Label, Op, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, Width,
};
use super::bpf;
use super::decide::SYN_MASK;
use super::map::{
    BUCKET_FLOWS_LOG2, BUCKETS_LOG2, ELEMENT_BITS_LOG2, ELEMENT_WORDS, FLOW_ADDRESSES_WORD,
    FLOW_OWNER_WORD, FLOW_PORTS_WORD, FLOW_TAG_BIT, FLOW_TARGETS_ELEMENT, FLOWS_ELEMENT,
    FLOWS_WORD, KNOWN_BITS_LOG2, KNOWN_ELEMENT, OWNER_FAMILY_BITS, OWNER_V4, OWNER_V6,
    OWNER_WORKER_BITS, PORTS_ELEMENT, Protocol, TAGS_ELEMENT, TARGETS, TARGETS_WORD, Target,
};
use super::siphash;
use crate::packet::ALL_NODES;

/// IP version that a socket is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

/// Loads a filter for the sockets of a port: the host's without `target`, else a NIC worker's.
pub(crate) fn load(
    map: BorrowedFd<'_>,
    family: Family,
    own: &[IpAddr],
    target: Option<Target>,
) -> io::Result<OwnedFd> {
    bpf::load(
        bpf::PROG_TYPE_SOCKET_FILTER,
        &program(map, family, own, target),
    )
}

/// Offsets in the kernel's `__sk_buff`.
const PACKET_TYPE: i16 = 4;
const VLAN_PRESENT: i16 = 20;

/// Helpers of the kernel (`enum bpf_func_id`).
pub(super) const MAP_LOOKUP_ELEM: i32 = 1;
const SKB_LOAD_BYTES_RELATIVE: i32 = 68;
/// `BPF_HDR_START_NET`.
const FROM_IP_HEADER: u32 = 1;

/// Places on the stack.
const KEY: i16 = -8;
pub(super) const TCP_HEADER: i16 = -40;
pub(super) const IP_HEADER: i16 = -80;

/// Bytes of a TCP header up to its flags, and as many of a datagram.
const TCP_BYTES: u32 = 14;

impl Family {
    pub(super) fn header_bytes(self) -> u32 {
        match self {
            Family::V4 => 20,
            Family::V6 => 40,
        }
    }

    /// Returns the offsets of source and destination in the IP header, in bytes.
    pub(super) fn addresses(self) -> [i16; 2] {
        match self {
            Family::V4 => [12, 16],
            Family::V6 => [8, 24],
        }
    }

    /// Returns the offset of the next protocol's number in the IP header, in bytes.
    pub(super) fn protocol(self) -> i16 {
        match self {
            Family::V4 => 9,
            Family::V6 => 6,
        }
    }

    /// Returns an address of this family as words of a packet.
    fn words(self, address: IpAddr) -> Option<Vec<u32>> {
        match (self, address) {
            (Family::V4, IpAddr::V4(ip)) => Some(vec![u32::from_ne_bytes(ip.octets())]),
            (Family::V6, IpAddr::V6(ip)) => Some(words_v6(ip)),
            _ => None,
        }
    }

    /// Returns its value in the owner of a flow.
    fn of_owner(self) -> u32 {
        match self {
            Family::V4 => OWNER_V4,
            Family::V6 => OWNER_V6,
        }
    }

    fn address_words(self) -> i16 {
        match self {
            Family::V4 => 1,
            Family::V6 => 4,
        }
    }
}

fn words_v6(ip: Ipv6Addr) -> Vec<u32> {
    let octets = ip.octets();
    let (words, _) = octets.as_chunks();
    words.iter().map(|word| u32::from_ne_bytes(*word)).collect()
}

/// Labels of the decisions.
pub(super) struct Ways {
    /// No port takes the frame.
    pub(super) drop: Label,
    /// The host takes the frame.
    pub(super) host: Label,
    /// The worker whose name is in register 7 takes the frame.
    worker: Label,
}

impl Ways {
    pub(super) fn new(code: &mut Assembler) -> Ways {
        Ways {
            drop: code.label(),
            host: code.label(),
            worker: code.label(),
        }
    }

    /// Ends the program of the host's port, or of a worker's.
    pub(super) fn end(&self, code: &mut Assembler, target: Option<Target>) {
        let take = code.label();
        // A worker's frame. The kernel takes no program with instructions that are never reached.
        if code.is_used(self.worker) {
            code.place(self.worker);
            match target {
                Some(target) => code.jump_if(R7, target.get(), take),
                None => code.jump(self.drop),
            }
        }
        if target.is_some() {
            // A worker's program drops the host's frames.
            code.place(self.host);
        }
        code.place(self.drop);
        code.set(R0, 0);
        code.exit();
        if target.is_none() {
            code.place(self.host);
        }
        code.place(take);
        code.set(R0, u32::MAX);
        code.exit();
    }
}

fn program(
    map: BorrowedFd<'_>,
    family: Family,
    own: &[IpAddr],
    target: Option<Target>,
) -> Vec<Instruction> {
    let mut code = Assembler::default();
    let ways = Ways::new(&mut code);
    look_at_addresses(&mut code, family, own, &ways);
    let is_own = |code: &mut Assembler, ways: &Ways| jump_if_own_source(code, family, own, ways);
    look_for_worker(&mut code, map, family, is_own, &ways);
    ways.end(&mut code, target);
    code.finish()
}

/// Decides which port gets a frame for the stack. `jump_if_own_source` jumps to the host with a
/// frame from an own address.
pub(super) fn look_for_worker(
    code: &mut Assembler,
    map: BorrowedFd<'_>,
    family: Family,
    jump_if_own_source: impl Fn(&mut Assembler, &Ways),
    ways: &Ways,
) {
    look_for_segment(code, family, ways);
    load_first_element(code, map, ways);
    look_whether_to_hash(code, family, ways);
    siphash::hash(code, &tuple_words(family));
    look_for_flow(code, map, family, ways);
    // A SYN from another machine.
    jump_unless_syn(code, family, ways.host);
    jump_if_own_source(code, ways);
    look_up_target(code, map, ways);
    code.jump(ways.worker);
}

/// Continues with a frame that was sent to this machine, not by it; its IP header is on the stack.
pub(super) fn look_at_type(code: &mut Assembler, family: Family, drop: Label) {
    code.copy(R6, R1);
    code.load(Width::Word, R7, R6, PACKET_TYPE);
    code.jump_if(R7, u32::from(libc::PACKET_OTHERHOST), drop);
    code.jump_if(R7, u32::from(libc::PACKET_OUTGOING), drop);
    code.load(Width::Word, R0, R6, VLAN_PRESENT);
    code.jump_unless(R0, 0, drop);
    load_bytes(code, 0, IP_HEADER, family.header_bytes(), drop);
}

/// Continues with a frame to an own address.
fn look_at_addresses(code: &mut Assembler, family: Family, own: &[IpAddr], ways: &Ways) {
    look_at_type(code, family, ways.drop);
    let is_own = code.label();
    let [_, destination] = family.addresses();
    for address in own {
        if let Some(words) = family.words(*address) {
            jump_if_words(code, IP_HEADER + destination, &words, is_own);
        }
        if let (Family::V6, IpAddr::V6(address)) = (family, address) {
            let group = words_v6(solicited_node(*address));
            jump_if_words(code, IP_HEADER + destination, &group, ways.host);
        }
    }
    if family == Family::V6 {
        let group = words_v6(ALL_NODES);
        jump_if_words(code, IP_HEADER + destination, &group, ways.host);
    }
    code.jump(ways.drop);
    code.place(is_own);
}

/// Continues with a TCP segment or a datagram that was sent to this machine alone.
fn look_for_segment(code: &mut Assembler, family: Family, ways: &Ways) {
    code.jump_unless(R7, u32::from(libc::PACKET_HOST), ways.host);
    match family {
        Family::V4 => {
            code.load(Width::Byte, R0, FRAME, IP_HEADER);
            code.jump_unless(R0, 0x45, ways.host);
            // More fragments, or an offset.
            for (at, mask) in [(6, 0x3f), (7, 0xff)] {
                code.load(Width::Byte, R0, FRAME, IP_HEADER + at);
                code.with(Op::And, R0, mask);
                code.jump_unless(R0, 0, ways.host);
            }
        }
        Family::V6 => {}
    }
    let is_steered = code.label();
    code.load(Width::Byte, R0, FRAME, IP_HEADER + family.protocol());
    code.jump_if(R0, Protocol::Tcp.number().into(), is_steered);
    code.jump_unless(R0, Protocol::Udp.number().into(), ways.host);
    code.place(is_steered);
    load_bytes(
        code,
        family.header_bytes(),
        TCP_HEADER,
        TCP_BYTES,
        ways.host,
    );
}

/// Loads the first element of the map into register 9.
fn load_first_element(code: &mut Assembler, map: BorrowedFd<'_>, ways: &Ways) {
    code.set(R1, 0);
    look_up_element(code, map, ways.host);
    code.copy(R9, R0);
}

/// Continues if there are flows, or if the frame may be a SYN: else the hash is not needed.
fn look_whether_to_hash(code: &mut Assembler, family: Family, ways: &Ways) {
    let needs_hash = code.label();
    code.load(Width::Word, R1, R9, 4 * FLOWS_WORD as i16);
    code.jump_unless(R1, 0, needs_hash);
    jump_unless_syn(code, family, ways.host);
    code.place(needs_hash);
}

/// Returns the places on the stack of the hashed words: addresses and ports.
fn tuple_words(family: Family) -> Vec<i16> {
    let [source, _] = family.addresses();
    // Source and destination stand side by side.
    let addresses = (0..2 * family.address_words()).map(|word| IP_HEADER + source + 4 * word);
    addresses.chain([TCP_HEADER]).collect()
}

/// Jumps to the worker with a frame of a flow; the target is in register 7.
fn look_for_flow(code: &mut Assembler, map: BorrowedFd<'_>, family: Family, ways: &Ways) {
    let (found, none) = (code.label(), code.label());
    code.load(Width::Word, R1, R9, 4 * FLOWS_WORD as i16);
    code.jump_if(R1, 0, none);

    code.copy_word(R1, R8);
    code.with(Op::Rsh, R1, 32 - BUCKETS_LOG2);
    code.with(Op::Add, R1, TAGS_ELEMENT);
    look_up_element(code, map, ways.host);
    code.copy_word(R2, R8);
    code.with(Op::Or, R2, FLOW_TAG_BIT);
    for place in 0..1 << BUCKET_FLOWS_LOG2 {
        code.set(R3, place);
        code.load(Width::Word, R1, R0, 4 * place as i16);
        code.with_register(Op::Xor, R1, R2);
        code.jump_if(R1, 0, found);
    }
    code.jump(none);

    code.place(found);
    code.copy_word(R1, R8);
    code.with(Op::Rsh, R1, 32 - BUCKETS_LOG2);
    code.with(Op::Lsh, R1, BUCKET_FLOWS_LOG2);
    code.with_register(Op::Add, R1, R3);
    code.with(Op::Add, R1, FLOWS_ELEMENT);
    look_up_element(code, map, ways.host);
    code.load(Width::Word, R7, R0, 4 * FLOW_OWNER_WORD as i16);
    code.copy_word(R1, R7);
    code.with(Op::Rsh, R1, OWNER_WORKER_BITS);
    code.load(Width::Byte, R2, FRAME, IP_HEADER + family.protocol());
    code.with(Op::Lsh, R2, OWNER_FAMILY_BITS);
    code.with(Op::Or, R2, family.of_owner());
    code.with_register(Op::Xor, R1, R2);
    code.jump_unless(R1, 0, none);
    jump_unless_same(code, FLOW_PORTS_WORD, TCP_HEADER, none);
    // Source and destination stand side by side.
    let [source, _] = family.addresses();
    for word in 0..2 * family.address_words() {
        let of_flow = FLOW_ADDRESSES_WORD + word as usize;
        jump_unless_same(code, of_flow, IP_HEADER + source + 4 * word, none);
    }
    code.set(R1, FLOW_TARGETS_ELEMENT);
    look_up_element(code, map, ways.host);
    code.with(Op::And, R7, (1 << OWNER_WORKER_BITS) - 1);
    code.with(Op::Lsh, R7, 2);
    code.move_by_register(R0, R7);
    code.load(Width::Word, R7, R0, 0);
    code.jump_if(R7, 0, ways.host);
    code.jump(ways.worker);
    code.place(none);
}

/// Jumps unless a word of the element in register 0 equals one on the stack.
fn jump_unless_same(code: &mut Assembler, word: usize, at: i16, otherwise: Label) {
    code.load(Width::Word, R1, R0, 4 * word as i16);
    code.load(Width::Word, R2, FRAME, at);
    code.with_register(Op::Xor, R1, R2);
    code.jump_unless(R1, 0, otherwise);
}

fn jump_if_own_source(code: &mut Assembler, family: Family, own: &[IpAddr], ways: &Ways) {
    let [source, _] = family.addresses();
    for words in own.iter().filter_map(|address| family.words(*address)) {
        jump_if_words(code, IP_HEADER + source, &words, ways.host);
    }
}

/// Jumps unless it is a plain SYN of TCP.
fn jump_unless_syn(code: &mut Assembler, family: Family, otherwise: Label) {
    code.load(Width::Byte, R0, FRAME, IP_HEADER + family.protocol());
    code.jump_unless(R0, Protocol::Tcp.number().into(), otherwise);
    code.load(Width::Byte, R0, FRAME, TCP_HEADER + 13);
    code.with(Op::And, R0, SYN_MASK.into());
    code.jump_unless(R0, Flags::SYN.0.into(), otherwise);
}

/// Continues with a SYN of no known connection, to a port of the map; the target is in register 7.
fn look_up_target(code: &mut Assembler, map: BorrowedFd<'_>, ways: &Ways) {
    const _: () = assert!(TARGETS.is_power_of_two() && ELEMENT_WORDS.is_power_of_two());
    code.copy_word(R1, R8);
    code.with(Op::And, R1, TARGETS as u32 - 1);
    code.with(Op::Lsh, R1, 2);
    code.move_by_register(R9, R1);
    code.load(Width::Word, R7, R9, 4 * TARGETS_WORD as i16);
    code.jump_if(R7, 0, ways.host);

    code.load(Width::Half, R9, FRAME, TCP_HEADER + 2);
    code.in_host_order(R9);
    look_up_bit(code, map, PORTS_ELEMENT, ways);
    code.jump_if(R1, 0, ways.host);

    code.copy_word(R9, R8);
    code.with(Op::Rsh, R9, 32 - KNOWN_BITS_LOG2);
    look_up_bit(code, map, KNOWN_ELEMENT, ways);
    code.jump_unless(R1, 0, ways.host);
}

/// Loads a bit, 0 or 1, into register 1; register 9 has its number, counted from an element.
fn look_up_bit(code: &mut Assembler, map: BorrowedFd<'_>, element: u32, ways: &Ways) {
    code.copy_word(R1, R9);
    code.with(Op::Rsh, R1, ELEMENT_BITS_LOG2);
    code.with(Op::Add, R1, element);
    look_up_element(code, map, ways.host);
    code.copy_word(R1, R9);
    code.with(Op::Rsh, R1, 5);
    code.with(Op::And, R1, ELEMENT_WORDS as u32 - 1);
    code.with(Op::Lsh, R1, 2);
    code.move_by_register(R0, R1);
    code.load(Width::Word, R1, R0, 0);
    code.copy_word(R2, R9);
    code.with(Op::And, R2, 31);
    code.with_register(Op::Rsh, R1, R2);
    code.with(Op::And, R1, 1);
}

/// Loads the element whose number is in register 1 into register 0.
fn look_up_element(code: &mut Assembler, map: BorrowedFd<'_>, otherwise: Label) {
    code.store(FRAME, KEY, R1);
    code.load_map(R1, map.as_raw_fd());
    code.copy(R2, FRAME);
    code.move_by(R2, KEY.into());
    code.call(MAP_LOOKUP_ELEM);
    code.jump_if_null(R0, otherwise);
}

/// Copies `count` bytes of the frame, from its IP header on, to the stack.
fn load_bytes(code: &mut Assembler, from: u32, to: i16, count: u32, otherwise: Label) {
    code.set(R2, from);
    load_bytes_from_r2(code, to, count, otherwise);
}

/// Copies `count` bytes of the frame to the stack, from the offset in register 2 on, counted from
/// the IP header.
pub(super) fn load_bytes_from_r2(code: &mut Assembler, to: i16, count: u32, otherwise: Label) {
    code.copy(R1, R6);
    code.copy(R3, FRAME);
    code.move_by(R3, to.into());
    code.set(R4, count);
    code.set(R5, FROM_IP_HEADER);
    code.call(SKB_LOAD_BYTES_RELATIVE);
    code.jump_if_negative(R0, otherwise);
}

/// Jumps if these words are on the stack.
fn jump_if_words(code: &mut Assembler, at: i16, words: &[u32], label: Label) {
    let other = code.label();
    for (i, word) in (0i16..).zip(words) {
        code.load(Width::Word, R0, FRAME, at + 4 * i);
        code.jump_unless(R0, *word, other);
    }
    code.jump(label);
    code.place(other);
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv6Addr, SocketAddr};
    use std::os::fd::AsFd;

    use wire::datagram::DatagramHeader;
    use wire::ethernet;
    use wire::frame::TcpTemplate;
    use wire::ip::Ecn;
    use wire::tcp::Header;

    use super::super::{
        Arrived, Decision, KEY_BYTES, PacketType, Protocol, SteeringMap, create_map,
    };
    use super::*;

    const FRAMES: usize = 16_000;

    const KEY: [u8; KEY_BYTES] = *b"a key of a hash.";

    fn key_of(seed: u64) -> [u8; KEY_BYTES] {
        u128::from(seed).wrapping_mul(u128::MAX / 7).to_ne_bytes()
    }

    /// xorshift64*
    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % bound
        }

        fn happens_once_in(&mut self, times: u64) -> bool {
            self.below(times) == 0
        }

        fn pick<T: Copy>(&mut self, from: &[T]) -> T {
            from[self.below(from.len() as u64) as usize]
        }
    }

    fn seed() -> u64 {
        let from = std::env::var("STEERING_SEED").ok();
        let seed = from.and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| u64::from(std::process::id()) << 20 | 0x5eed);
        println!("STEERING_SEED={seed}");
        seed
    }

    fn own() -> Vec<IpAddr> {
        ["10.0.0.2", "10.1.0.2", "fd77::12:3456", "2001:db8::77"]
            .map(|address| address.parse().unwrap())
            .to_vec()
    }

    /// The loopback device, on which test runs arrive, has the address zero.
    const TO: [([u8; 6], PacketType); 4] = [
        ([0; 6], PacketType::Host),
        ([0xff; 6], PacketType::Group),
        ([0x33, 0x33, 0, 0, 0, 1], PacketType::Group),
        ([2, 0, 0, 0, 0, 9], PacketType::OtherHost),
    ];

    const PROTOCOLS: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];

    const PORTS: [u16; 5] = [80, 81, 0, 65_535, 33_333];

    fn address(random: &mut Random, ipv6: bool) -> IpAddr {
        let v4 = ["10.0.0.2", "10.1.0.2", "10.0.0.3", "192.0.2.1"];
        let v6 = [
            "fd77::12:3456",
            "2001:db8::77",
            "2001:db8::78",
            "ff02::1:ff12:3456",
            "ff02::1",
        ];
        let from = if ipv6 { &v6[..] } else { &v4[..] };
        random.pick(from).parse().unwrap()
    }

    /// Returns the ends of a flow, possibly changed in one part.
    fn near_miss(random: &mut Random, [local, remote]: [SocketAddr; 2]) -> [SocketAddr; 2] {
        let ipv6 = local.is_ipv6();
        let (mut local, mut remote) = (local, remote);
        match random.below(10) {
            0 => (local, remote) = (remote, local),
            1 => local.set_port(random.pick(&PORTS)),
            2 => remote.set_port(remote.port() ^ 1 << random.below(16)),
            3 => local.set_ip(address(random, ipv6)),
            4 => remote.set_ip(address(random, ipv6)),
            _ => {}
        }
        [local, remote]
    }

    /// Returns the ends of a possible connection: local and remote.
    fn ends(random: &mut Random, ipv6: bool) -> [SocketAddr; 2] {
        let local = match (random.below(4), ipv6) {
            (0, _) => address(random, ipv6),
            (_, false) => own()[random.below(2) as usize],
            (_, true) => own()[2 + random.below(2) as usize],
        };
        let remote_port = 40_000 + random.below(64) as u16;
        [
            SocketAddr::new(local, random.pick(&PORTS)),
            SocketAddr::new(address(random, ipv6), remote_port),
        ]
    }

    /// Returns a frame that is steered or nearly so, and its packet type.
    fn frame(random: &mut Random, flows: &[(Protocol, [SocketAddr; 2])]) -> (Vec<u8>, PacketType) {
        let ipv6 = random.happens_once_in(2);
        let (mac, packet_type) = match random.below(8) {
            0 => random.pick(&TO),
            _ => TO[0],
        };
        let (protocol, ends) = match random.happens_once_in(2) && !flows.is_empty() {
            true => {
                let (protocol, flow) = random.pick(flows);
                (protocol, near_miss(random, flow))
            }
            false => (random.pick(&PROTOCOLS), ends(random, ipv6)),
        };
        let [destination, source] = ends;
        let protocol = match random.below(8) {
            0 => random.pick(&PROTOCOLS),
            _ => protocol,
        };
        let ipv6 = destination.is_ipv6();
        let flags = match random.below(3) {
            0 => Flags::SYN,
            1 => Flags(random.below(256) as u8),
            _ => random.pick(&[Flags::SYN, Flags::ACK]),
        };
        let header = Header {
            flags,
            ..Header::default()
        };
        let mut bytes = match protocol {
            Protocol::Tcp => {
                TcpTemplate::new([2; 6], mac, source, destination).to_frame(&header, &[])
            }
            Protocol::Udp => {
                let header = DatagramHeader {
                    source_mac: [2; 6],
                    destination_mac: mac,
                    source,
                    destination,
                    ecn: Ecn::NotEct,
                };
                let payload = [2; 20];
                let payload = &payload[..random.below(20) as usize];
                header.to_frame(payload).expect("ends of one family")
            }
        };
        for _ in 0..random.below(3) {
            if random.happens_once_in(3) {
                // Keeps the link address, which decides the packet type.
                let at = 12 + random.below(bytes.len() as u64 - 12) as usize;
                bytes[at] ^= 1 << random.below(8);
            }
        }
        if random.happens_once_in(8) {
            // Test runs take no less than an IP header.
            let least = if ipv6 { 54 } else { 34 };
            bytes.truncate(least + random.below(bytes.len() as u64 - least as u64) as usize);
        }
        (bytes, packet_type)
    }

    /// Returns programs of the host and of two workers, for each family.
    fn programs(map: BorrowedFd<'_>) -> Vec<(Family, Option<Target>, OwnedFd)> {
        let targets = [None, Target::new(7), Target::new(0x8000_0009)];
        let all = targets.iter().flat_map(|target| {
            [Family::V4, Family::V6].map(|family| {
                let program = load(map, family, &own(), *target);
                (family, *target, program.expect("the kernel takes it"))
            })
        });
        all.collect()
    }

    /// Returns a map, unless `bpf(2)` is forbidden here: then nothing is steered, and there is no
    /// test.
    fn map() -> Option<(OwnedFd, SteeringMap)> {
        match create_map() {
            Ok(fd) => {
                let map = SteeringMap::open(fd.as_fd(), KEY).unwrap();
                Some((fd, map))
            }
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
                println!("not tested: {error}");
                None
            }
        }
    }

    /// Changes the content of the map, and its flows.
    fn change(
        random: &mut Random,
        map: &SteeringMap,
        flows: &mut Vec<(Protocol, [SocketAddr; 2])>,
    ) {
        let (a, b) = (Target::new(7), Target::new(0x8000_0009));
        let targets: Vec<Target> = match random.below(4) {
            0 => Vec::new(),
            1 => a.into_iter().collect(),
            _ => a.into_iter().chain(b).collect(),
        };
        map.set_targets(&targets);
        let none_is_steered = random.happens_once_in(8);
        map.set_ports(PORTS.into_iter().skip(if none_is_steered { 5 } else { 1 }));
        map.note_only(std::iter::empty());
        for _ in 0..200 {
            let ipv6 = random.happens_once_in(2);
            let [local, remote] = ends(random, ipv6);
            map.note(local, remote);
        }
        for (worker, target) in [(0, a), (1, b), (2, None), (15, a)] {
            map.set_flow_target(worker, target.filter(|_| !random.happens_once_in(4)));
        }
        for (protocol, [local, remote]) in flows.drain(..) {
            assert!(map.clear_flow(protocol, local, remote), "{local} {remote}");
        }
        assert_eq!(map.flows(), 0);
        for _ in 0..random.below(400) {
            let ipv6 = random.happens_once_in(2);
            let [local, remote] = ends(random, ipv6);
            let worker = random.pick(&[0, 1, 2, 15]);
            let protocol = random.pick(&PROTOCOLS);
            if map.list_flow(protocol, local, remote, worker) {
                flows.push((protocol, [local, remote]));
            } else {
                let ends = [local, remote];
                assert!(flows.iter().any(|(_, flow)| *flow == ends), "{ends:?}");
            }
        }
        assert_eq!(map.flows(), flows.len());
    }

    #[test]
    fn each_frame_goes_where_the_decision_says_and_nowhere_else() {
        let Some((fd, map)) = map() else {
            return;
        };
        let programs = programs(fd.as_fd());
        let mut random = Random(seed());
        let mut flows = Vec::new();
        let (mut decided, mut of_flows) = ([0; 4], [0; 4]);
        for number in 0..FRAMES {
            if number % 500 == 0 {
                change(&mut random, &map, &mut flows);
            }
            let (bytes, packet_type) = frame(&mut random, &flows);
            let arrived = Arrived {
                bytes: &bytes,
                packet_type,
                has_vlan: false,
            };
            let decision = map.decide(&own(), &arrived);
            let ether_type = u16::from_be_bytes([bytes[12], bytes[13]]);
            for (family, target, program) in &programs {
                // A socket gets frames of its own EtherType.
                let bound = match family {
                    Family::V4 => ethernet::IPV4,
                    Family::V6 => ethernet::IPV6,
                };
                if bound != ether_type {
                    continue;
                }
                let expected = match decision {
                    Decision::Drop => false,
                    Decision::Host => target.is_none(),
                    Decision::Worker(worker) => *target == Some(worker),
                };
                let taken = super::super::bpf::tests::run(program, &bytes);
                assert_eq!(
                    taken,
                    if expected { u32::MAX } else { 0 },
                    "frame {number}: {decision:?}, {family:?}, {target:?}: {bytes:02x?}"
                );
            }
            decided[match decision {
                Decision::Drop => 0,
                Decision::Host => 1,
                Decision::Worker(target) if target.get() == 7 => 2,
                Decision::Worker(_) => 3,
            }] += 1;
            let ipv6 = ether_type == ethernet::IPV6;
            let (protocol_at, tcp_at) = if ipv6 { (20, 54) } else { (23, 34) };
            let is_udp = bytes[protocol_at] == Protocol::Udp.number();
            if let (Decision::Worker(_), Some(flags)) = (decision, bytes.get(tcp_at + 13))
                && (is_udp || flags & SYN_MASK != Flags::SYN.0)
            {
                of_flows[usize::from(ipv6) + 2 * usize::from(is_udp)] += 1;
            }
        }
        println!("{decided:?} {of_flows:?}");
        assert!(decided.iter().all(|count| *count > 200), "{decided:?}");
        assert!(of_flows.iter().all(|count| *count > 100), "{of_flows:?}");
    }

    /// With as many flows as a map can hold, nearly all are listed, and no other connection is.
    #[test]
    fn a_full_map_refuses_flows_and_mistakes_none() {
        let map = SteeringMap::in_memory(key_of(seed()));
        let targets = [1, 2].map(|target| Target::new(target).unwrap());
        for (worker, target) in targets.into_iter().enumerate() {
            map.set_flow_target(worker, Some(target));
        }
        let ends = |number: usize| -> [SocketAddr; 2] {
            let port = 1024 + (number >> 1 & 0x3fff) as u16;
            let number = (number >> 15) as u8;
            match number & 1 {
                0 => [
                    ([10, 0, 0, 2], 80).into(),
                    ([198, 18, 0, number], port).into(),
                ],
                _ => {
                    let remote = format!("[2001:db8::{number:x}]:{port}");
                    [
                        "[fd77::12:3456]:80".parse().unwrap(),
                        remote.parse().unwrap(),
                    ]
                }
            }
        };
        let distinct = (0..4 * SteeringMap::FLOWS_MAX).step_by(2);
        let all: Vec<[SocketAddr; 2]> = distinct.map(ends).collect();
        let (first, others) = all.split_at(SteeringMap::FLOWS_MAX);
        let list = |number: usize| {
            let [local, remote] = first[number];
            map.list_flow(Protocol::Tcp, local, remote, number % 2)
        };
        let half: Vec<bool> = (0..first.len() / 2).map(list).collect();
        let refused = half.iter().filter(|listed| !**listed).count();
        assert!(refused * 100 < half.len(), "{refused} of {}", half.len());
        let rest = (first.len() / 2..first.len()).map(list);
        let listed: Vec<bool> = half.into_iter().chain(rest).collect();
        let refused = listed.iter().filter(|listed| !**listed).count();
        assert!(refused * 5 < listed.len(), "{refused} of {}", listed.len());
        assert_eq!(map.flows(), listed.len() - refused);

        let decide = |[local, remote]: [SocketAddr; 2]| {
            let header = Header {
                flags: Flags::ACK,
                ..Header::default()
            };
            let bytes = TcpTemplate::new([2; 6], [0; 6], remote, local).to_frame(&header, b"");
            map.decide(
                &own(),
                &Arrived {
                    bytes: &bytes,
                    packet_type: PacketType::Host,
                    has_vlan: false,
                },
            )
        };
        for (number, ends) in first.iter().enumerate() {
            let expected = match listed[number] {
                true => Decision::Worker(targets[number % 2]),
                false => Decision::Host,
            };
            assert_eq!(decide(*ends), expected, "{ends:?}");
        }
        for ends in others {
            assert_eq!(decide(*ends), Decision::Host, "{ends:?}");
        }
        map.set_flow_target(0, None);
        assert_eq!(decide(first[0]), Decision::Host, "its worker is gone");
        for (number, [local, remote]) in first.iter().enumerate() {
            assert_eq!(
                map.clear_flow(Protocol::Tcp, *local, *remote),
                listed[number]
            );
        }
        assert_eq!(map.flows(), 0);
        let [local, remote] = first[0];
        assert!(!map.list_flow(Protocol::Tcp, local, remote, SteeringMap::FLOW_WORKERS));
    }

    fn syn(from: &str, to: &str) -> Vec<u8> {
        let header = Header {
            flags: Flags::SYN,
            ..Header::default()
        };
        let [from, to] = [from, to].map(|end| end.parse().unwrap());
        TcpTemplate::new([2; 6], [0; 6], from, to).to_frame(&header, b"")
    }

    /// Returns a program that returns the hash of a segment.
    fn hash_program(map: BorrowedFd<'_>, family: Family) -> OwnedFd {
        let mut code = Assembler::default();
        let ways = Ways::new(&mut code);
        code.copy(R6, R1);
        load_bytes(&mut code, 0, IP_HEADER, family.header_bytes(), ways.drop);
        let at = family.header_bytes();
        load_bytes(&mut code, at, TCP_HEADER, TCP_BYTES, ways.drop);
        load_first_element(&mut code, map, &ways);
        siphash::hash(&mut code, &tuple_words(family));
        code.copy(R0, R8);
        code.exit();
        code.place(ways.drop);
        code.place(ways.host);
        code.set(R0, 0);
        code.exit();
        bpf::load(bpf::PROG_TYPE_SOCKET_FILTER, &code.finish()).expect("the kernel takes it")
    }

    #[test]
    fn programs_hash_as_the_map_does() {
        let mut random = Random(seed());
        for number in 0..8 {
            let Ok(fd) = create_map() else {
                println!("not tested: no map");
                return;
            };
            let map = SteeringMap::open(fd.as_fd(), key_of(random.below(u64::MAX))).unwrap();
            let ipv6 = number % 2 == 1;
            let family = if ipv6 { Family::V6 } else { Family::V4 };
            let program = hash_program(fd.as_fd(), family);
            for _ in 0..1_000 {
                let mut octets = [[0; 16]; 2];
                octets
                    .as_flattened_mut()
                    .fill_with(|| random.below(256) as u8);
                let [local, remote] = octets.map(|octets| {
                    let ip: IpAddr = match ipv6 {
                        true => octets.into(),
                        false => [octets[0], octets[1], octets[2], octets[3]].into(),
                    };
                    SocketAddr::new(ip, random.below(1 << 16) as u16)
                });
                let template = TcpTemplate::new([2; 6], [0; 6], remote, local);
                let bytes = template.to_frame(&Header::default(), b"");
                let hash = super::super::bpf::tests::run(&program, &bytes);
                assert_eq!(hash, map.hash(local, remote), "{local} {remote}");
            }
        }
    }

    /// Differences that collide under a hash that multiplies and shifts, with any seed: these bits
    /// of one word change one bit of the state, and these of the next word change it back.
    #[test]
    fn no_difference_of_addresses_collides_under_every_key() {
        let local: SocketAddr = "[fd77::12:3456]:80".parse().unwrap();
        let mut random = Random(seed());
        for _ in 0..1_000 {
            let map = SteeringMap::in_memory(key_of(random.below(u64::MAX)));
            let octets: [u8; 16] = std::array::from_fn(|_| random.below(256) as u8);
            for first in [0, 4, 8] {
                let mut other = octets;
                for (at, bits) in [(3, 0x80), (6, 0x01), (7, 0x80)] {
                    other[first + at] ^= bits;
                }
                let hash = |octets: [u8; 16]| map.hash(local, (octets, 5000).into());
                assert_ne!(hash(octets), hash(other), "{octets:x?}");
            }
        }
    }

    /// Addresses with these differences once fell into one bucket, which has room for sixteen.
    #[test]
    fn flows_with_chosen_addresses_leave_room_for_others() {
        let map = SteeringMap::in_memory(key_of(seed()));
        let target = Target::new(7).unwrap();
        map.set_flow_target(0, Some(target));
        let local: SocketAddr = "[fd77::12:3456]:80".parse().unwrap();
        // Each of three differences or not, under many ports.
        for number in 0..8192_u16 {
            let mut octets = [0x20; 16];
            for first in [0, 4, 8]
                .into_iter()
                .filter(|at| number >> (at / 4) & 1 == 1)
            {
                for (at, bits) in [(3, 0x80), (6, 0x01), (7, 0x80)] {
                    octets[first + at] ^= bits;
                }
            }
            let chosen = (octets, 1024 + number / 8).into();
            map.list_flow(Protocol::Tcp, local, chosen, 0);
        }
        let others =
            (0..1000_u16).map(|number| SocketAddr::from((Ipv6Addr::LOCALHOST, 1024 + number)));
        let listed = others.filter(|other| map.list_flow(Protocol::Tcp, local, *other, 0));
        assert_eq!(listed.count(), 1000);
    }

    #[test]
    fn a_map_that_says_nothing_leaves_all_to_the_host() {
        let map = SteeringMap::in_memory(KEY);
        let bytes = syn("192.0.2.1:4000", "10.0.0.2:80");
        let mut arrived = Arrived {
            bytes: &bytes,
            packet_type: PacketType::Host,
            has_vlan: false,
        };
        let target = Target::new(3).unwrap();
        assert_eq!(map.decide(&own(), &arrived), Decision::Host);
        map.set_targets(&[target]);
        assert_eq!(map.decide(&own(), &arrived), Decision::Host);
        map.set_ports([80]);
        assert_eq!(map.decide(&own(), &arrived), Decision::Worker(target));
        let [local, remote] = ["10.0.0.2:80", "192.0.2.1:4000"].map(|end| end.parse().unwrap());
        map.note(local, remote);
        assert_eq!(map.decide(&own(), &arrived), Decision::Host);
        map.note_only(std::iter::empty());
        assert_eq!(map.decide(&own(), &arrived), Decision::Worker(target));
        arrived.has_vlan = true;
        assert_eq!(map.decide(&own(), &arrived), Decision::Drop);
    }

    /// With as many known connections as a full host has, the targets share nearly all other SYNs.
    #[test]
    fn few_syns_are_the_hosts_for_nothing() {
        let map = SteeringMap::in_memory(key_of(seed()));
        let targets = [1, 2, 3].map(|target| Target::new(target).unwrap());
        map.set_targets(&targets);
        map.set_ports([80]);
        let remote = |number: usize| {
            let [_, a, b, c] = (number as u32).to_be_bytes();
            SocketAddr::from(([198, a, b, c], 4000 + (number % 50) as u16))
        };
        let local: SocketAddr = "10.0.0.2:80".parse().unwrap();
        let known = SteeringMap::NOTES_MAX;
        for number in 0..known {
            map.note(local, remote(number));
        }
        let mut decided = [0; 4];
        for number in known..known + 10_000 {
            let bytes = syn(&remote(number).to_string(), "10.0.0.2:80");
            let arrived = Arrived {
                bytes: &bytes,
                packet_type: PacketType::Host,
                has_vlan: false,
            };
            match map.decide(&own(), &arrived) {
                Decision::Worker(target) => decided[target.get() as usize] += 1,
                _ => decided[0] += 1,
            }
        }
        assert!(decided[0] < 1_000, "{decided:?}");
        assert!(
            decided[1..].iter().all(|count| *count > 2_000),
            "{decided:?}"
        );
    }
}
