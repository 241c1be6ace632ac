//! Packet ports on both ends of a veth pair, each test in a network namespace of its own.

use std::io::IoSlice;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use netdev::memory::{Link, pair};
use netdev::packet::{OpenError, PacketPort};
use netdev::{Offload, Port, SendError, Superpacket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use sha2::{Digest, Sha256};
use testbed::link;
use testbed::namespace::{isolated, isolated_unprivileged};
use testbed::process::{run, tool};
use testbed::wait;
use wire::frame::{HEADER_BYTES_MAX, HeaderMut, Received, TcpPacket, TcpTemplate, finish, parse};
use wire::tcp::{Flags, Header, Options, Timestamps};
use wire::{arp, ethernet, icmpv6};

const A: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1)),
];
const B: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2)),
    IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0x12, 0x3456)),
];
/// Long enough for anything that is going to happen.
const SOON: Duration = Duration::from_secs(10);

/// A veth pair with a port on each end. The kernel has no addresses there, and says nothing.
fn ports(mtu: usize) -> (PacketPort, PacketPort) {
    ip("link add va type veth peer name vb");
    for end in ["va", "vb"] {
        ip(&format!("link set {end} mtu {mtu} addrgenmode none"));
        ip(&format!("link set {end} up"));
    }
    link::await_ready(&["va", "vb"], &[]).unwrap();
    let a = PacketPort::open("va", &A).unwrap();
    let b = PacketPort::open("vb", &B).unwrap();
    assert_eq!((a.mtu(), b.mtu()), (mtu, mtu));
    (a, b)
}

fn ip(arguments: &str) {
    run(&mut tool(&format!("ip {arguments}"))).unwrap();
}

/// Lets `va` send 100 MB a second, and keeps up to `limit` on the way.
fn shape(limit: &str) {
    let arguments = format!("qdisc add dev va root tbf rate 800mbit burst 200kb limit {limit}");
    run(&mut tool(&format!("tc {arguments}"))).unwrap();
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i * 31 + i / 253 + seed * 17) as u8)
        .collect()
}

/// Header of a segment from `A` to `destination` with timestamps, as the stack sends them.
fn header(mac: [u8; 6], destination_mac: [u8; 6], destination: IpAddr, seq: u32) -> Vec<u8> {
    let source = A[usize::from(destination.is_ipv6())];
    let ends = [(source, 80), (destination, 5000)].map(SocketAddr::from);
    let header = Header {
        seq,
        ack: 1,
        flags: Flags::ACK | Flags::PSH,
        window: 1000,
        options: Options {
            timestamps: Some(Timestamps {
                value: 1,
                echo_reply: 2,
            }),
            ..Options::default()
        },
        ..Header::default()
    };
    let mut buffer = vec![0; HEADER_BYTES_MAX];
    let template = TcpTemplate::new(mac, destination_mac, ends[0], ends[1]);
    let len = template.write(&header, &mut buffer).unwrap();
    buffer.truncate(len);
    buffer
}

/// Largest payload of a packet behind [`header`].
fn mss(port: &PacketPort, destination: IpAddr) -> u16 {
    let headers = if destination.is_ipv6() { 72 } else { 52 };
    (port.mtu() - headers) as u16
}

/// Sends one superpacket, in slices of 4 KB.
fn send<P: Port>(port: &mut P, header: &[u8], payload: &[u8], mss: u16) -> Result<(), SendError> {
    let mut header = header.to_vec();
    finish(&mut header, payload.len()).unwrap();
    let parsed = HeaderMut::parse(&mut header).unwrap();
    let offload = Offload::Tcp {
        tcp_offset: parsed.tcp_offset() as u16,
        mss,
        ipv6: parsed.ipv6(),
    };
    let slices: Vec<IoSlice<'_>> = payload.chunks(4096).map(IoSlice::new).collect();
    port.send(&Superpacket {
        header: &header,
        payload: &slices,
        offload,
    })
}

/// The next frames, as they came: with what is said about their checksums.
fn receive<P: Port>(port: &mut P, count: usize) -> Vec<(Vec<u8>, bool)> {
    let mut frames = Vec::new();
    wait::until(SOON, "frames", || {
        port.receive(count - frames.len(), &mut |frame| {
            frames.push((frame.bytes.to_vec(), frame.checksum_valid));
        })
        .unwrap();
        (frames.len() == count).then_some(())
    })
    .unwrap();
    frames
}

fn writable(port: &PacketPort, timeout: Duration) -> bool {
    let fd = port.send_fd().unwrap();
    let timeout = Timespec::try_from(timeout).unwrap();
    poll(&mut [PollFd::new(&fd, PollFlags::OUT)], Some(&timeout)).unwrap() > 0
}

fn readable(port: &PacketPort, timeout: Duration) -> bool {
    let fds = port.receive_fds();
    let mut fds: Vec<_> = fds
        .iter()
        .map(|fd| PollFd::new(fd, PollFlags::IN))
        .collect();
    let timeout = Timespec::try_from(timeout).unwrap();
    poll(&mut fds, Some(&timeout)).unwrap() > 0
}

fn payload_of(frame: &(Vec<u8>, bool)) -> Vec<u8> {
    match parse(&frame.0, frame.1) {
        Ok(Received::Tcp(TcpPacket { segment, .. })) => segment.payload.to_vec(),
        other => panic!("{other:?}"),
    }
}

fn digest<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> [u8; 32] {
    let mut hash = Sha256::new();
    pieces.into_iter().for_each(|piece| hash.update(piece));
    hash.finalize().into()
}

/// Superpackets of many sizes, up to the largest: all larger than a slot arrive by another way.
fn superpackets_pass(mtu: usize) {
    let (mut a, mut b) = ports(mtu);
    for destination in B {
        let header = header(a.mac(), b.mac(), destination, 7);
        let longest = a.superpacket_max(B[0].is_ipv6()) + 14 - header.len();
        let mss = mss(&a, destination);
        for len in [
            0,
            1,
            1000,
            1900,
            1901,
            2000,
            4096,
            9000,
            30_001,
            longest - 1,
            longest,
        ] {
            let payload = bytes(len, len);
            send(&mut a, &header, &payload, mss).unwrap();
            let frames = receive(&mut b, 1);
            assert!(
                frames[0].1,
                "the kernel vouches for what is on this machine"
            );
            assert_eq!(
                digest([&payload_of(&frames[0])[..]]),
                digest([&payload[..]])
            );
        }
    }
    assert_eq!(b.dropped().unwrap(), 0);
}

#[test]
fn superpackets_pass_with_mtu_1280() {
    isolated(|_| superpackets_pass(1280));
}

#[test]
fn superpackets_pass_with_mtu_1500() {
    isolated(|_| superpackets_pass(1500));
}

#[test]
fn superpackets_pass_with_mtu_9000() {
    isolated(|_| superpackets_pass(9000));
}

#[test]
fn superpackets_pass_without_privileges() {
    isolated_unprivileged(|_| superpackets_pass(1500));
}

/// What a NIC does: the checksum field holds the sum over the pseudo-header (virtio 1.2 §5.1.6.2).
fn complete_partial_checksum(frame: &mut [u8], ipv6: bool) {
    let tcp = &mut frame[if ipv6 { 54 } else { 34 }..];
    let checksum = wire::checksum::of(tcp);
    tcp[16..18].copy_from_slice(&checksum.to_be_bytes());
}

#[test]
fn kernel_cuts_as_we_do() {
    isolated(|_| {
        let (mut a, mut b) = ports(1500);
        // Superpackets that are too long for the link now: the kernel cuts them.
        ip("link set va gso_max_size 1600");
        let (mut memory_a, mut memory_b) = pair(Link {
            macs: [a.mac(), b.mac()],
            ..Link::default()
        });
        for destination in B {
            let mss = mss(&a, destination);
            for len in [2 * usize::from(mss), 10_000, 60_000] {
                let mut header = header(a.mac(), b.mac(), destination, 0xffff_f000);
                let mut edited = HeaderMut::parse(&mut header).unwrap();
                edited.set_identification(0xfffe);
                edited.set_flags(Flags::ACK | Flags::PSH | Flags::FIN | Flags::CWR);
                let payload = bytes(len, 1);
                let packets = len.div_ceil(mss.into());
                send(&mut a, &header, &payload, mss).unwrap();
                send(&mut memory_a, &header, &payload, mss).unwrap();
                let by_kernel = receive(&mut b, packets);
                let by_us = receive(&mut memory_b, packets);
                for (packet, (by_kernel, by_us)) in by_kernel.iter().zip(&by_us).enumerate() {
                    let mut complete = by_kernel.0.clone();
                    if by_kernel.1 {
                        complete_partial_checksum(&mut complete, destination.is_ipv6());
                    }
                    assert!(complete == by_us.0, "packet {packet} of {len} bytes");
                }
                let pieces: Vec<_> = by_kernel.iter().map(payload_of).collect();
                let received = digest(pieces.iter().map(|piece| &piece[..]));
                assert_eq!(received, digest([&payload[..]]));
            }
        }
    });
}

#[test]
fn ring_goes_round_and_keeps_order() {
    isolated(|_| {
        let (mut a, mut b) = ports(1500);
        let headers = B.map(|destination| header(a.mac(), b.mac(), destination, 0));
        let mut expected = [0u32; 2];
        // More than twice what a ring holds, every seventh larger than a slot.
        for burst in 0..20u32 {
            for number in burst * 500..(burst + 1) * 500 {
                let mut payload = number.to_be_bytes().to_vec();
                payload.resize(if number % 7 == 0 { 3000 } else { 100 }, 0xaa);
                for header in &headers {
                    send(&mut a, header, &payload, 1400).unwrap();
                }
            }
            for frame in receive(&mut b, 1000) {
                let Ok(Received::Tcp(packet)) = parse(&frame.0, frame.1) else {
                    panic!("not TCP");
                };
                let number = u32::from_be_bytes(*packet.segment.payload.first_chunk().unwrap());
                let expected = &mut expected[usize::from(packet.source.is_ipv6())];
                assert_eq!(number, *expected);
                *expected += 1;
            }
        }
        assert_eq!(b.dropped().unwrap(), 0);
        assert_eq!(b.receive(1, &mut |_| panic!("one too many")).unwrap(), 0);
    });
}

#[test]
fn what_does_not_fit_into_the_ring_is_counted() {
    isolated(|_| {
        let (mut a, mut b) = ports(1500);
        let header = header(a.mac(), b.mac(), B[0], 0);
        for _ in 0..5000 {
            send(&mut a, &header, b"x", 1400).unwrap();
        }
        let mut received = 0;
        while b.receive(1000, &mut |_| received += 1).unwrap() > 0 {}
        assert_eq!(received, 4096);
        assert_eq!(b.dropped().unwrap(), 5000 - 4096);
        send(&mut a, &header, b"y", 1400).unwrap();
        assert_eq!(payload_of(&receive(&mut b, 1)[0]), b"y");
    });
}

#[test]
fn large_frames_beyond_the_buffer_are_counted_and_then_pass_again() {
    isolated(|_| {
        let (mut a, mut b) = ports(1500);
        let header = header(a.mac(), b.mac(), B[0], 0);
        let payload = bytes(60_000, 3);
        for _ in 0..500 {
            send(&mut a, &header, &payload, 1400).unwrap();
        }
        let mut received = 0;
        let mut handle = |frame: netdev::Frame<'_>| {
            received += 1;
            let frame = (frame.bytes.to_vec(), frame.checksum_valid);
            assert_eq!(payload_of(&frame), payload);
        };
        while b.receive(1000, &mut handle).unwrap() == 1000 {}
        assert!(received > 1 && received < 500, "{received}");
        assert_eq!(b.dropped().unwrap(), 500 - received);
        send(&mut a, &header, &payload, 1400).unwrap();
        assert_eq!(payload_of(&receive(&mut b, 1)[0]), payload);
    });
}

#[test]
fn only_what_is_for_this_port_arrives() {
    isolated(|_| {
        let (mut a, mut b) = ports(1500);
        let macs = [a.mac(), b.mac()];
        let unicast =
            |mac, destination: &str| header(macs[0], mac, destination.parse().unwrap(), 0);
        for not_for_us in [
            unicast(macs[1], "10.77.0.3"),
            unicast(macs[1], "fd77::12:3457"),
            unicast([2, 3, 4, 5, 6, 7], "10.77.0.2"),
            unicast([2, 3, 4, 5, 6, 7], "fd77::12:3456"),
        ] {
            send(&mut a, &not_for_us, b"not for us", 1400).unwrap();
        }
        let question = arp::Packet {
            operation: arp::Operation::Request,
            sender_mac: macs[0],
            sender: Ipv4Addr::new(10, 77, 0, 1),
            target_mac: [0; 6],
            target: Ipv4Addr::new(10, 77, 0, 2),
        };
        let target = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0x12, 0x3456);
        let group = icmpv6::solicited_node(target);
        let group_mac = ethernet::multicast_mac(group);
        let source_mac = Some(macs[0]);
        let solicitation = icmpv6::Neighbor::Solicitation { target, source_mac };
        let link_local = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
        let complete = [
            question.to_frame(ethernet::BROADCAST),
            icmpv6::neighbor_frame(macs[0], group_mac, link_local, group, &solicitation),
        ];
        for frame in &complete {
            a.send(&Superpacket {
                header: frame,
                payload: &[],
                offload: Offload::None,
            })
            .unwrap();
        }
        let arrived: Vec<_> = receive(&mut b, 2)
            .into_iter()
            .map(|(bytes, _)| bytes)
            .collect();
        assert!(complete.iter().all(|frame| arrived.contains(frame)));
        assert_eq!(b.receive(10, &mut |_| panic!("one too many")).unwrap(), 0);
        // Nor does a port hear itself.
        assert_eq!(a.receive(10, &mut |_| panic!("one's own")).unwrap(), 0);
    });
}

#[test]
fn port_that_only_sends_receives_nothing() {
    isolated(|_| {
        let (mut a, mut b) = ports(1500);
        let mut worker = PacketPort::send_only("va").unwrap();
        assert!(worker.receive_fds().is_empty());
        let header = header(worker.mac(), b.mac(), B[0], 0);
        send(&mut worker, &header, b"from the worker", 1400).unwrap();
        assert_eq!(payload_of(&receive(&mut b, 1)[0]), b"from the worker");
        assert_eq!(worker.receive(1, &mut |_| panic!("received")).unwrap(), 0);
        assert_eq!(a.receive(1, &mut |_| panic!("received")).unwrap(), 0);
    });
}

#[test]
fn arrival_wakes_a_sleeper() {
    isolated(|_| {
        let (mut a, mut b) = ports(1500);
        assert!(!readable(&b, Duration::ZERO));
        for destination in B {
            for len in [10, 30_000] {
                let header = header(a.mac(), b.mac(), destination, 0);
                let mss = mss(&a, destination);
                send(&mut a, &header, &bytes(len, 0), mss).unwrap();
                assert!(readable(&b, SOON));
                receive(&mut b, 1);
                assert!(!readable(&b, Duration::ZERO));
            }
        }
    });
}

#[test]
fn sender_that_is_faster_than_the_link_has_to_wait() {
    isolated(|_| {
        let (mut a, mut b) = ports(1500);
        shape("100mb");
        let header = header(a.mac(), b.mac(), B[0], 0);
        let payload = bytes(60_000, 0);
        let mut sent = 0;
        let outcome = loop {
            match send(&mut a, &header, &payload, 1400) {
                Ok(()) => sent += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(outcome, SendError::WouldBlock), "{outcome:?}");
        assert!(sent > 20, "only {sent} superpackets were on the way");
        assert!(!writable(&a, Duration::ZERO));
        for frame in receive(&mut b, sent) {
            assert!(payload_of(&frame) == payload);
        }
        assert!(writable(&a, SOON));
        send(&mut a, &header, &payload, 1400).unwrap();
    });
}

#[test]
fn full_queue_on_the_way_drops() {
    isolated(|_| {
        let (mut a, b) = ports(1500);
        shape("250kb");
        let header = header(a.mac(), b.mac(), B[1], 0);
        let payload = bytes(60_000, 0);
        let outcome = (0..100).find_map(|_| send(&mut a, &header, &payload, 1400).err());
        assert!(matches!(outcome, Some(SendError::Dropped)), "{outcome:?}");
    });
}

#[test]
fn packets_that_the_link_cannot_carry_fail() {
    isolated(|_| {
        let (mut a, b) = ports(1500);
        let header = header(a.mac(), b.mac(), B[0], 0);
        let mss = mss(&a, B[0]);
        let longest = a.superpacket_max(B[0].is_ipv6()) + 14 - header.len();
        for (len, mss) in [(2000, 2000), (3000, mss + 1), (longest + 1, mss), (10, 0)] {
            let result = send(&mut a, &header, &bytes(len, 0), mss);
            assert!(
                matches!(result, Err(SendError::Failed(_))),
                "{len} by {mss}"
            );
        }
    });
}

#[test]
fn superpackets_stay_within_what_the_link_says() {
    isolated(|_| {
        let (a, _b) = ports(1500);
        // 65536 with the Ethernet header is the first length that the kernel would cut by itself.
        let both = |port: &PacketPort| [false, true].map(|ipv6| port.superpacket_max(ipv6));
        assert_eq!(both(&a), [65_521, 65_521]);
        // For IPv4 that is another setting, unless it is made smaller. IPv6 has its length field.
        ip("link set va gso_max_size 200000");
        assert_eq!(
            both(&PacketPort::send_only("va").unwrap()),
            [65_521, 65_535]
        );
        ip("link set va gso_max_size 30000");
        assert_eq!(
            both(&PacketPort::send_only("va").unwrap()),
            [29_985, 29_985]
        );
    });
}

#[test]
fn link_that_goes_down_may_come_up_again() {
    isolated(|_| {
        let (mut a, mut b) = ports(1500);
        let header = header(a.mac(), b.mac(), B[0], 0);
        ip("link set vb down");
        // The kernel wakes sleepers to tell them; they go on sleeping.
        for _ in 0..1000 {
            assert_eq!(b.receive(1, &mut |_| panic!("received")).unwrap(), 0);
        }
        assert!(!readable(&b, Duration::ZERO));
        ip("link set va down");
        let result = send(&mut a, &header, b"x", 1400);
        assert!(matches!(result, Err(SendError::Failed(_))));
        for end in ["va", "vb"] {
            ip(&format!("link set {end} up"));
        }
        // The kernel drops packets until it has noticed that both ends are up, which is a moment
        // later.
        let again = wait::until(SOON, "a frame", || {
            send(&mut a, &header, b"again", 1400).unwrap();
            let mut come = None;
            b.receive(1, &mut |frame| {
                come = Some((frame.bytes.to_vec(), frame.checksum_valid));
            })
            .unwrap();
            come
        });
        assert_eq!(payload_of(&again.unwrap()), b"again");
    });
}

#[test]
fn link_that_is_gone_is_an_error() {
    isolated(|_| {
        let (mut a, mut b) = ports(1500);
        let header = header(a.mac(), b.mac(), B[0], 0);
        ip("link delete va");
        assert!(matches!(
            send(&mut a, &header, b"x", 1400),
            Err(SendError::Failed(_))
        ));
        let error = wait::until(SOON, "an error", || b.receive(1, &mut |_| {}).err()).unwrap();
        assert_eq!(error.to_string(), "network interface vb is gone");
    });
}

#[test]
fn opening_says_what_is_wrong() {
    isolated(|_| {
        ip("link add va type veth peer name vb");
        let open = |interface: &str| PacketPort::open(interface, &A).unwrap_err();
        let error = open("eth7");
        match &error {
            OpenError::NoSuchInterface { existing, .. } => {
                assert!(
                    ["lo", "va", "vb"]
                        .iter()
                        .all(|name| existing.iter().any(|e| e == name))
                );
            }
            other => panic!("{other:?}"),
        }
        assert!(
            error
                .to_string()
                .contains("there is no network interface eth7")
        );
        assert!(matches!(open("lo"), OpenError::NotEthernet { .. }));
        let error = open("va");
        assert!(matches!(error, OpenError::Down { .. }));
        assert!(error.to_string().contains("ip link set va up"));

        ip("link set va up");
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::NET_RAW);
        set_capabilities(None, sets).unwrap();
        let error = open("va");
        assert!(matches!(error, OpenError::NotPermitted { .. }), "{error:?}");
        assert!(error.to_string().contains("setcap cap_net_raw+ep"));
    });
}
