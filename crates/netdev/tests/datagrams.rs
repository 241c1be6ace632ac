//! Superpackets of datagrams: through memory, and over a veth pair to and from a UDP socket of the
//! kernel.

use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use netdev::memory::{Delivery, Link, pair};
use netdev::packet::PacketPort;
use netdev::{Frame, Offload, Port, SendError, Superpacket};
use nix::sys::socket::{setsockopt, sockopt};
use proptest::prelude::*;
use testbed::link;
use testbed::namespace::{isolated, isolated_unprivileged};
use testbed::process::{run, tool};
use testbed::wait;
use wire::datagram::{self, DatagramHeader, HEADERS_BYTES_MAX};
use wire::frame::UdpHeaderMut;
use wire::ip;

const ENDS: [[&str; 2]; 2] = [
    ["10.77.0.1:443", "10.77.0.2:5000"],
    ["[fd77::1]:443", "[fd77::2]:5000"],
];

/// Long enough for anything that is going to happen.
const SOON: Duration = Duration::from_secs(10);

fn ends(ipv6: bool) -> [SocketAddr; 2] {
    ENDS[usize::from(ipv6)].map(|end| end.parse().unwrap())
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// Sends `payload` in uneven slices, as datagrams of `payload_bytes`.
fn send<P: Port>(
    port: &mut P,
    destination_mac: [u8; 6],
    ipv6: bool,
    payload: &[u8],
    payload_bytes: u16,
) -> Result<(), SendError> {
    let [source, destination] = ends(ipv6);
    let header = DatagramHeader {
        source_mac: port.mac(),
        destination_mac,
        source,
        destination,
        ecn: ip::Ecn::NotEct,
    };
    let mut buffer = [0; HEADERS_BYTES_MAX];
    let len = header.write(&mut buffer).unwrap();
    let mut header = UdpHeaderMut::parse(&mut buffer[..len]).unwrap();
    header.set_identification(0xfffe);
    header.finish(payload.len()).unwrap();
    let offload = Offload::Udp {
        udp_offset: header.udp_offset() as u16,
        payload_bytes,
        ipv6,
    };
    let slices: Vec<IoSlice<'_>> = payload.chunks(1001).map(IoSlice::new).collect();
    port.send(&Superpacket {
        header: &buffer[..len],
        payload: &slices,
        offload,
    })
}

/// The payload of a datagram between the ends, of which lengths and checksums are right.
fn payload_of(frame: &[u8], checksum_valid: bool, ipv6: bool) -> Vec<u8> {
    let datagram = datagram::parse(frame, checksum_valid).expect("sound");
    let datagram = datagram.expect("a datagram");
    assert_eq!([datagram.source, datagram.destination], ends(ipv6));
    if !checksum_valid {
        let at = frame.len() - datagram.payload.len() - 2;
        assert_ne!(frame[at..at + 2], [0, 0], "a datagram has a checksum");
    }
    datagram.payload.to_vec()
}

fn receive<P: Port>(port: &mut P, ipv6: bool) -> Vec<Vec<u8>> {
    let mut datagrams = Vec::new();
    port.receive(usize::MAX, &mut |frame| {
        datagrams.push(payload_of(frame.bytes, frame.checksum_valid, ipv6));
    })
    .unwrap();
    datagrams
}

fn cut(payload: &[u8], payload_bytes: u16) -> Vec<Vec<u8>> {
    let pieces = payload.chunks(payload_bytes.into());
    pieces.map(<[u8]>::to_vec).collect()
}

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

#[test]
fn a_superpacket_arrives_in_datagrams_however_frames_are_delivered() {
    for delivery in [Delivery::Cut, Delivery::Whole] {
        for ipv6 in [false, true] {
            let (mut a, mut b) = pair(Link {
                delivery,
                ..Link::default()
            });
            for len in [1, 1200, 1201, 50_000] {
                let payload = bytes(len);
                send(&mut a, MAC, ipv6, &payload, 1200).unwrap();
                assert!(receive(&mut b, ipv6) == cut(&payload, 1200), "{len} bytes");
            }
        }
    }
}

#[test]
fn what_cannot_be_cut_fails() {
    let (mut a, _b) = pair(Link {
        superpacket_max: 1 << 18,
        ..Link::default()
    });
    for (len, payload_bytes) in [(1473, 1473), (3000, 1473), (1, 0)] {
        let sent = send(&mut a, MAC, false, &bytes(len), payload_bytes);
        assert!(matches!(sent, Err(SendError::Failed(_))), "{len} bytes");
    }
    send(&mut a, MAC, false, &bytes(65_507), 1472).unwrap();
    let (mut a, _b) = pair(Link {
        superpacket_max: 10_000,
        ..Link::default()
    });
    send(&mut a, MAC, true, &bytes(9952), 1000).unwrap();
    let sent = send(&mut a, MAC, true, &bytes(9953), 1000);
    assert!(matches!(sent, Err(SendError::Failed(_))));
}

proptest! {
    #[test]
    fn every_byte_survives_cutting(len in 1usize..60_000, each in 1u16..=1440, ipv6: bool) {
        let (mut a, mut b) = pair(Link {
            queue_max: usize::MAX,
            ..Link::default()
        });
        let payload = bytes(len);
        send(&mut a, MAC, ipv6, &payload, each).unwrap();
        prop_assert!(receive(&mut b, ipv6) == cut(&payload, each));
    }
}

fn ip(arguments: &str) {
    run(&mut tool(&format!("ip {arguments}"))).unwrap();
}

/// A port on one end of a veth pair, the kernel's addresses on the other, which is `vb`.
fn port_and_kernel() -> (PacketPort, [u8; 6]) {
    ip("link add va type veth peer name vb");
    ip("link set va addrgenmode none");
    for end in ["va", "vb"] {
        ip(&format!("link set {end} up"));
    }
    for ipv6 in [false, true] {
        let destination = ends(ipv6)[1].ip();
        let (length, flag) = if ipv6 { (64, "nodad") } else { (24, "") };
        ip(&format!("addr add {destination}/{length} dev vb {flag}"));
    }
    let addresses = [false, true].map(|ipv6| ends(ipv6)[1].ip());
    link::await_ready(&["va", "vb"], &addresses).unwrap();
    let kernel = PacketPort::send_only("vb").unwrap().mac();
    let own = [false, true].map(|ipv6| ends(ipv6)[0].ip());
    (PacketPort::open("va", &own as &[IpAddr]).unwrap(), kernel)
}

fn sockets() -> [UdpSocket; 2] {
    [false, true].map(|ipv6| {
        let socket = UdpSocket::bind(ends(ipv6)[1]).unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        socket
    })
}

/// The next datagrams that a socket of the kernel has received.
fn received(socket: &UdpSocket, count: usize, ipv6: bool) -> Vec<Vec<u8>> {
    let mut buffer = vec![0; 65_536];
    let mut next = || {
        let (len, source) = socket.recv_from(&mut buffer).unwrap();
        assert_eq!(source, ends(ipv6)[0]);
        buffer[..len].to_vec()
    };
    (0..count).map(|_| next()).collect()
}

fn the_kernel_receives_every_datagram() {
    let (mut port, kernel) = port_and_kernel();
    for (ipv6, socket) in [false, true].into_iter().zip(sockets()) {
        for payload_bytes in [100, 1200, 1452] {
            let each = usize::from(payload_bytes);
            for len in [
                1,
                each - 1,
                each,
                each + 1,
                3 * each,
                44 * each,
                44 * each + 7,
            ] {
                let payload = bytes(len);
                send(&mut port, kernel, ipv6, &payload, payload_bytes).unwrap();
                let wanted = cut(&payload, payload_bytes);
                let datagrams = received(&socket, wanted.len(), ipv6);
                assert!(datagrams == wanted, "{len} bytes by {payload_bytes}");
            }
        }
    }
}

#[test]
fn a_socket_of_the_kernel_receives_every_datagram() {
    isolated(|_| the_kernel_receives_every_datagram());
}

#[test]
fn a_socket_of_the_kernel_receives_every_datagram_without_privileges() {
    isolated_unprivileged(|_| the_kernel_receives_every_datagram());
}

/// More than the kernel takes at once (`UDP_MAX_SEGMENTS`): the port cuts them, and goes on to
/// leave to the kernel what it takes.
#[test]
fn what_the_kernel_refuses_is_cut_by_the_port() {
    isolated(|_| {
        let (mut port, kernel) = port_and_kernel();
        for (ipv6, socket) in [false, true].into_iter().zip(sockets()) {
            for datagrams in [129, 140, 64] {
                let payload = bytes(datagrams * 100 - 1);
                send(&mut port, kernel, ipv6, &payload, 100).unwrap();
                let wanted = cut(&payload, 100);
                assert_eq!(wanted.len(), datagrams);
                assert!(received(&socket, datagrams, ipv6) == wanted);
            }
        }
    });
}

/// Takes the next frame, by one of the two ways.
fn next_frame<T>(
    port: &mut PacketPort,
    is_copied: bool,
    mut look: impl FnMut(Frame<'_>) -> T,
) -> Option<T> {
    if is_copied {
        let mut buffer = Vec::new();
        return port.receive_into(&mut buffer).unwrap().map(look);
    }
    let mut seen = None;
    port.receive(1, &mut |frame| seen = Some(look(frame)))
        .unwrap();
    seen
}

/// What a UDP socket of the kernel sends with `UDP_SEGMENT` crosses the pair in one frame, which
/// fits into a slot of the ring or does not.
fn the_port_says_where_datagrams_end() {
    let (mut port, _) = port_and_kernel();
    let [a, b, c, d, e, f] = port.mac();
    let mac = format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}");
    for (ipv6, socket) in [false, true].into_iter().zip(sockets()) {
        let [own, kernel] = ends(ipv6);
        ip(&format!("neigh replace {} lladdr {mac} dev vb", own.ip()));
        for (each, is_copied) in [(100, false), (1200, false), (1452, true), (100, true)] {
            setsockopt(&socket, sockopt::UdpGsoSegment, &(each as i32)).unwrap();
            for len in [
                0,
                1,
                each,
                each + 1,
                10 * each,
                17 * each - 1,
                44 * each + 7,
            ] {
                let payload = bytes(len);
                assert_eq!(socket.send_to(&payload, own).unwrap(), len);
                let (segment, brought) = wait::until(SOON, "a frame", || {
                    next_frame(&mut port, is_copied, |frame| {
                        assert!(frame.checksum_valid, "its sender is on this machine");
                        let parsed = datagram::parse(frame.bytes, true).expect("sound");
                        let datagram = parsed.expect("a datagram");
                        assert_eq!([datagram.source, datagram.destination], [kernel, own]);
                        (frame.segment_bytes, datagram.payload.to_vec())
                    })
                })
                .unwrap();
                assert!(brought == payload, "{len} bytes by {each}");
                let segment = segment.map(|bytes| usize::from(bytes.get()));
                assert_eq!(segment, (len > each).then_some(each), "{len} bytes");
            }
        }
    }
    assert_eq!(port.dropped().unwrap(), 0);
}

#[test]
fn where_datagrams_end_that_the_kernel_sends_is_said() {
    isolated(|_| the_port_says_where_datagrams_end());
}

#[test]
fn where_datagrams_end_that_the_kernel_sends_is_said_without_privileges() {
    isolated_unprivileged(|_| the_port_says_where_datagrams_end());
}

#[test]
fn the_kernel_cuts_as_the_port_does() {
    isolated(|_| {
        ip("link add va type veth peer name vb");
        for end in ["va", "vb"] {
            ip(&format!("link set {end} addrgenmode none"));
            ip(&format!("link set {end} up"));
        }
        link::await_ready(&["va", "vb"], &[]).unwrap();
        let to = [false, true].map(|ipv6| ends(ipv6)[1].ip());
        let mut a = PacketPort::open("va", &[]).unwrap();
        let mut b = PacketPort::open("vb", &to).unwrap();
        // Superpackets that are too long for the link now: the kernel cuts them.
        ip("link set va gso_max_size 1600");
        let (mut memory_a, mut memory_b) = pair(Link {
            macs: [a.mac(), b.mac()],
            ..Link::default()
        });
        for ipv6 in [false, true] {
            for (len, each) in [(2400, 1200), (60_000, 1452), (50_001, 1000)] {
                let payload = bytes(len);
                send(&mut a, b.mac(), ipv6, &payload, each).unwrap();
                send(&mut memory_a, b.mac(), ipv6, &payload, each).unwrap();
                let mut by_us = Vec::new();
                let keep = &mut |frame: Frame<'_>| by_us.push(frame.bytes.to_vec());
                memory_b.receive(usize::MAX, keep).unwrap();
                let mut by_kernel = Vec::new();
                wait::until(SOON, "frames", || {
                    b.receive(by_us.len() - by_kernel.len(), &mut |frame| {
                        by_kernel.push((frame.bytes.to_vec(), frame.checksum_valid));
                    })
                    .unwrap();
                    (by_kernel.len() == by_us.len()).then_some(())
                })
                .unwrap();
                for (packet, ((mut frame, is_partial), by_us)) in
                    by_kernel.into_iter().zip(by_us).enumerate()
                {
                    if is_partial {
                        complete_partial_checksum(&mut frame, ipv6);
                    }
                    assert!(frame == by_us, "packet {packet} of {len} bytes");
                }
            }
        }
    });
}

/// What a NIC does: the checksum field holds the sum over the pseudo-header (virtio 1.2 §5.1.6.2).
fn complete_partial_checksum(frame: &mut [u8], ipv6: bool) {
    let datagram = &mut frame[if ipv6 { 54 } else { 34 }..];
    let checksum = match wire::checksum::of(datagram) {
        0 => u16::MAX,
        checksum => checksum,
    };
    datagram[6..8].copy_from_slice(&checksum.to_be_bytes());
}
