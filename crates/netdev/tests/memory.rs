//! Two ports joined in memory.

use std::io::IoSlice;
use std::net::SocketAddr;

use netdev::fault::{Faults, FaultyPort};
use netdev::memory::{Delivery, Link, pair};
use netdev::{Offload, Port, SendError, Superpacket};
use proptest::prelude::*;
use wire::frame::{HEADER_BYTES_MAX, Received, TcpPacket, TcpTemplate, finish, parse};
use wire::tcp::{Flags, Header};

const ENDS: [[&str; 2]; 2] = [
    ["10.77.0.1:80", "10.77.0.2:5000"],
    ["[fd77::1]:80", "[fd77::2]:5000"],
];

fn ends(ipv6: bool) -> [SocketAddr; 2] {
    ENDS[usize::from(ipv6)].map(|end| end.parse().unwrap())
}

fn header() -> Header {
    Header {
        seq: 0xffff_ff00,
        ack: 1,
        flags: Flags::ACK | Flags::PSH | Flags::FIN | Flags::CWR,
        window: 100,
        ..Header::default()
    }
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

/// Sends `payload` in uneven slices.
fn send<P: Port>(port: &mut P, ipv6: bool, payload: &[u8], mss: u16) -> Result<(), SendError> {
    let [source, destination] = ends(ipv6);
    let template = TcpTemplate::new(port.mac(), [2, 0, 0, 0, 0, 2], source, destination);
    let mut buffer = [0; HEADER_BYTES_MAX];
    let len = template.write(&header(), &mut buffer).unwrap();
    finish(&mut buffer[..len], payload.len()).unwrap();
    let slices: Vec<IoSlice<'_>> = payload.chunks(1001).map(IoSlice::new).collect();
    port.send(&Superpacket {
        header: &buffer[..len],
        payload: &slices,
        offload: Offload::Tcp {
            tcp_offset: template.tcp_offset() as u16,
            mss,
            ipv6,
        },
    })
}

/// All frames that have arrived, parsed: sequence number, flags and payload.
fn receive<P: Port>(port: &mut P) -> Vec<(u32, Flags, Vec<u8>)> {
    let mut segments = Vec::new();
    port.receive(
        usize::MAX,
        &mut |frame| match parse(frame.bytes, frame.checksum_valid) {
            Ok(Received::Tcp(TcpPacket { segment, .. })) => {
                let header = segment.header;
                segments.push((header.seq, header.flags, segment.payload.to_vec()));
            }
            other => panic!("{other:?}"),
        },
    )
    .unwrap();
    segments
}

#[test]
fn superpacket_arrives_in_packets() {
    for ipv6 in [false, true] {
        let (mut a, mut b) = pair(Link::default());
        let payload = bytes(10_000);
        send(&mut a, ipv6, &payload, 1400).unwrap();
        let segments = receive(&mut b);
        assert_eq!(segments.len(), 8);
        let mut seq = header().seq;
        for (i, (at, flags, piece)) in segments.iter().enumerate() {
            assert_eq!(*at, seq);
            assert_eq!(flags.contains(Flags::CWR), i == 0);
            assert_eq!(flags.contains(Flags::FIN | Flags::PSH), i == 7);
            seq = seq.wrapping_add(piece.len() as u32);
        }
        let received: Vec<u8> = segments
            .into_iter()
            .flat_map(|(_, _, piece)| piece)
            .collect();
        assert_eq!(received, payload);
    }
}

#[test]
fn superpacket_arrives_whole() {
    for ipv6 in [false, true] {
        let delivery = Delivery::Whole;
        let (mut a, mut b) = pair(Link {
            delivery,
            ..Link::default()
        });
        let payload = bytes(60_000);
        send(&mut a, ipv6, &payload, 1400).unwrap();
        assert_eq!(receive(&mut b), [(header().seq, header().flags, payload)]);
    }
}

#[test]
fn both_directions_are_separate() {
    let (mut a, mut b) = pair(Link::default());
    send(&mut a, false, b"to b", 1400).unwrap();
    send(&mut b, false, b"to a", 1400).unwrap();
    assert_eq!(receive(&mut a)[0].2, b"to a");
    assert_eq!(receive(&mut b)[0].2, b"to b");
}

#[test]
fn full_queue_drops() {
    let (mut a, mut b) = pair(Link {
        queue_max: 3,
        ..Link::default()
    });
    // Two packets, then two more of which one fits.
    send(&mut a, false, &bytes(2000), 1400).unwrap();
    let result = send(&mut a, false, &bytes(2000), 1400);
    assert!(matches!(result, Err(SendError::Dropped)));
    assert_eq!(receive(&mut b).len(), 3);
}

#[test]
fn what_the_link_cannot_carry_fails() {
    let (mut a, _b) = pair(Link {
        superpacket_max: 60_000,
        ..Link::default()
    });
    for (len, mss) in [(1461, 1461), (1461, 65_000), (59_961, 1400), (1, 0)] {
        let result = send(&mut a, false, &bytes(len), mss);
        assert!(
            matches!(result, Err(SendError::Failed(_))),
            "{len} by {mss}"
        );
    }
    send(&mut a, false, &bytes(1460), 1460).unwrap();
    send(&mut a, false, &bytes(59_960), 1460).unwrap();
}

#[test]
fn ports_may_live_on_different_threads() {
    let (mut a, mut b) = pair(Link::default());
    let payload = bytes(50_000);
    let sent = payload.clone();
    let sender = std::thread::spawn(move || send(&mut a, true, &sent, 1400).unwrap());
    let mut received = Vec::new();
    while received.len() < payload.len() {
        received.extend(receive(&mut b).into_iter().flat_map(|(_, _, piece)| piece));
    }
    sender.join().unwrap();
    assert_eq!(received, payload);
}

#[test]
fn budget_is_kept() {
    let (mut a, mut b) = pair(Link::default());
    send(&mut a, false, &bytes(5000), 1000).unwrap();
    assert_eq!(b.receive(2, &mut |_| {}).unwrap(), 2);
    assert_eq!(b.receive(9, &mut |_| {}).unwrap(), 3);
    assert_eq!(b.receive(9, &mut |_| {}).unwrap(), 0);
}

/// Sends numbered packets through a faulty port; returns what arrived: the number, or `None` for a
/// frame that does not parse.
fn through_faults(faults: Faults, seed: u64, count: u32) -> Vec<Option<u32>> {
    let queue_max = usize::MAX;
    let (mut a, b) = pair(Link {
        queue_max,
        ..Link::default()
    });
    let mut b = FaultyPort::new(b, faults, seed);
    for number in 0..count {
        send(&mut a, false, &number.to_be_bytes(), 1400).unwrap();
    }
    let mut arrived = Vec::new();
    let mut handle = |frame: netdev::Frame<'_>| {
        arrived.push(match parse(frame.bytes, frame.checksum_valid) {
            Ok(Received::Tcp(packet)) => packet
                .segment
                .payload
                .try_into()
                .ok()
                .map(u32::from_be_bytes),
            _ => None,
        });
    };
    while b.receive(7, &mut handle).unwrap() > 0 {}
    arrived
}

#[test]
fn each_fault_does_what_it_says() {
    let some = 100_000;
    let none = Faults::default();
    let all: Vec<_> = (0..1000).map(Some).collect();
    assert_eq!(through_faults(none, 1, 1000), all);

    let dropped = through_faults(
        Faults {
            drop_ppm: some,
            ..none
        },
        1,
        1000,
    );
    assert!((850..950).contains(&dropped.len()) && dropped.is_sorted());

    let mut twice = through_faults(
        Faults {
            duplicate_ppm: some,
            ..none
        },
        1,
        1000,
    );
    assert!((1050..1150).contains(&twice.len()) && twice.is_sorted());
    twice.dedup();
    assert_eq!(twice, all);

    let mut reordered = through_faults(
        Faults {
            reorder_ppm: some,
            ..none
        },
        1,
        1000,
    );
    assert!(!reordered.is_sorted());
    reordered.sort();
    assert_eq!(reordered, all);

    let damaged = through_faults(
        Faults {
            damage_ppm: some,
            ..none
        },
        1,
        1000,
    );
    let broken = damaged.iter().filter(|frame| frame.is_none()).count();
    assert_eq!(damaged.len(), 1000);
    assert!((40..120).contains(&broken));
}

proptest! {
    #[test]
    fn seed_decides_the_faults(seed: u64) {
        let faults = Faults {
            drop_ppm: 50_000,
            duplicate_ppm: 50_000,
            reorder_ppm: 50_000,
            damage_ppm: 50_000,
        };
        let first = through_faults(faults, seed, 100);
        prop_assert_eq!(&first, &through_faults(faults, seed, 100));
    }

    #[test]
    fn bytes_survive_cutting(len in 0usize..65_000, mss in 600u16..=1440, ipv6: bool) {
        let (mut a, mut b) = pair(Link::default());
        let payload = bytes(len);
        send(&mut a, ipv6, &payload, mss).unwrap();
        let segments = receive(&mut b);
        prop_assert!(segments.iter().all(|(_, _, piece)| piece.len() <= mss.into()));
        let received: Vec<u8> = segments.into_iter().flat_map(|(_, _, piece)| piece).collect();
        prop_assert_eq!(received, payload);
    }
}

#[test]
fn ends_know_their_hardware_addresses() {
    let (a, b) = pair(Link::default());
    assert_eq!([a.mac(), b.mac()], Link::default().macs);
    assert_eq!((a.mtu(), a.superpacket_max(false)), (1500, 65_535));
}
