use super::*;
use netdev::packet::virtio::{GSO_TCPV4, GSO_UDP_L4, NEEDS_CSUM, VirtioNetHeader};
use proptest::prelude::*;
use std::net::SocketAddr;
use wire::datagram::{self, DatagramHeader};
use wire::frame::{HEADER_BYTES_MAX, Received, TcpTemplate, UdpHeaderMut, finish, parse};
use wire::ip;
use wire::tcp::{Flags, Header};

const MS: u64 = 1_000_000;

fn conditions(text: &str) -> Conditions {
    let changes: crate::conditions::Changes = text.parse().unwrap();
    changes.conditions().unwrap()
}

/// Returns a packet of `bytes` bytes that contains its number.
fn packet(number: usize, bytes: usize) -> Frame {
    let mut frame = vec![0; bytes];
    frame[..8].copy_from_slice(&number.to_be_bytes());
    Frame::new(&frame, VirtioNetHeader::default())
}

/// Returns the packets that leave, and their times.
fn departures(direction: &mut Direction) -> Vec<(u64, usize)> {
    let mut left = Vec::new();
    while let Some(at) = direction.next_departure_ns() {
        let departure = direction.depart(at).unwrap();
        assert_eq!(departure.due_ns, at);
        assert!(direction.next_departure_ns().is_none_or(|next| next >= at));
        let mut header = Vec::new();
        let (_, [bytes, _]) = departure.frame.run(departure.packets, &mut header);
        left.push((at, usize::from_be_bytes(bytes[..8].try_into().unwrap())));
    }
    left
}

/// Returns the departures of packets of 1,000 bytes, one each millisecond.
fn one_a_millisecond(direction: &mut Direction, count: usize) -> Vec<(u64, usize)> {
    for number in 0..count {
        direction.arrive(number as u64 * MS, packet(number, 1000));
    }
    departures(direction)
}

fn numbers(left: &[(u64, usize)]) -> Vec<usize> {
    left.iter().map(|(_, number)| *number).collect()
}

#[test]
fn a_link_without_conditions_passes_everything_at_once() {
    let mut direction = Direction::new(conditions("delay=0"), 1);
    let left = one_a_millisecond(&mut direction, 100);
    assert_eq!(
        left,
        (0..100).map(|n| (n as u64 * MS, n)).collect::<Vec<_>>()
    );
}

#[test]
fn packets_arrive_after_their_transmission_and_the_delay() {
    // 1,000 bytes take 8 ms.
    let mut direction = Direction::new(conditions("delay=20ms,rate=1mbit"), 1);
    for number in 0..3 {
        direction.arrive(0, packet(number, 1000));
    }
    direction.arrive(100 * MS, packet(3, 500));
    assert_eq!(
        departures(&mut direction),
        [(28 * MS, 0), (36 * MS, 1), (44 * MS, 2), (124 * MS, 3)]
    );
}

#[test]
fn a_full_queue_drops_what_comes_last() {
    let mut direction = Direction::new(conditions("rate=1mbit,queue=3000b"), 1);
    for number in 0..5 {
        direction.arrive(0, packet(number, 1000));
    }
    // Half a packet has left, so there is room for half a packet.
    direction.arrive(4 * MS, packet(5, 501));
    direction.arrive(4 * MS, packet(6, 500));
    assert_eq!(numbers(&departures(&mut direction)), [0, 1, 2, 6]);
    let Counters {
        queue_drops,
        queue_bytes_max,
        ..
    } = direction.counters();
    assert_eq!((queue_drops, queue_bytes_max), (3, 3000));
}

#[test]
fn a_packet_that_is_lost_takes_its_time_on_the_line() {
    let mut direction = Direction::new(conditions("rate=1mbit,loss=50%"), 7);
    for number in 0..10 {
        direction.arrive(0, packet(number, 1000));
    }
    let left = departures(&mut direction);
    assert!(left.len() < 10, "seed 7 loses some");
    for (at, number) in left {
        assert_eq!(at, (number as u64 + 1) * 8 * MS);
    }
}

#[test]
fn jitter_is_within_bounds_and_keeps_the_order() {
    let mut direction = Direction::new(conditions("delay=20ms,jitter=5ms"), 3);
    let left = one_a_millisecond(&mut direction, 1000);
    assert!(numbers(&left).is_sorted() && left.len() == 1000);
    let delays: Vec<u64> = left.iter().map(|(at, n)| at - *n as u64 * MS).collect();
    let (least, most) = (delays.iter().min().unwrap(), delays.iter().max().unwrap());
    assert!((15 * MS..17 * MS).contains(least) && (23 * MS..=25 * MS).contains(most));
}

#[test]
fn a_packet_held_back_is_overtaken_and_delays_no_other() {
    let mut direction = Direction::new(conditions("delay=5ms,reorder=10%,reorder-by=2500us"), 9);
    let left = one_a_millisecond(&mut direction, 1000);
    let late: Vec<_> = left
        .iter()
        .filter(|(at, n)| *at != *n as u64 * MS + 5 * MS)
        .collect();
    assert!(
        late.iter()
            .all(|(at, n)| *at == *n as u64 * MS + 7 * MS + MS / 2)
    );
    assert!((70..130).contains(&late.len()), "{}", late.len());
    assert_eq!(direction.counters().reordered, late.len() as u64);
    assert!(!numbers(&left).is_sorted() && left.len() == 1000);
}

#[test]
fn a_duplicate_comes_right_behind() {
    let mut direction = Direction::new(conditions("duplicate=10%"), 5);
    let left = numbers(&one_a_millisecond(&mut direction, 1000));
    assert!(left.is_sorted());
    assert!((1070..1130).contains(&left.len()), "{}", left.len());
    let copies = left.windows(2).filter(|pair| pair[0] == pair[1]).count();
    assert_eq!(copies, left.len() - 1000);
}

#[test]
fn loss_is_as_frequent_and_bursts_are_as_long_as_asked_for() {
    for (text, share, mean) in [
        ("loss=5%", 0.05, 1.0 / 0.95),
        ("loss=5%,loss-burst=4", 0.05, 4.0),
    ] {
        let mut direction = Direction::new(conditions(text), 11);
        let left: std::collections::BTreeSet<_> =
            numbers(&one_a_millisecond(&mut direction, 100_000))
                .into_iter()
                .collect();
        let lost: Vec<bool> = (0..100_000).map(|n| !left.contains(&n)).collect();
        let losses = lost.iter().filter(|lost| **lost).count() as f64;
        let bursts = lost.windows(2).filter(|pair| !pair[0] && pair[1]).count() as f64;
        assert!(
            (losses / 1e5 / share - 1.0).abs() < 0.06,
            "{text}: {losses}"
        );
        assert!(
            (losses / bursts / mean - 1.0).abs() < 0.06,
            "{text}: {bursts}"
        );
    }
}

#[test]
fn what_is_lost_depends_on_the_seed_and_the_number_alone() {
    let lost = |text: &str, seed, gap_ns: u64| {
        let mut direction = Direction::new(conditions(text), seed);
        for number in 0..2000 {
            direction.arrive(number as u64 * gap_ns, packet(number, 100 + number % 900));
        }
        let left = numbers(&departures(&mut direction));
        (0..2000).filter(|n| !left.contains(n)).collect::<Vec<_>>()
    };
    let plain = lost("loss=3%", 42, MS);
    assert_eq!(lost("loss=3%", 42, 17), plain, "at another pace");
    let more = "loss=3%,delay=20ms,jitter=1ms,rate=10mbit,reorder=5%,duplicate=5%";
    assert_eq!(lost(more, 42, MS), plain, "under other conditions");
    assert_ne!(lost("loss=3%", 43, MS), plain, "by another seed");
}

const PAYLOAD_AT: usize = 54;

/// Returns a superpacket of TCP over IPv4, its payload counting up.
fn superpacket(payload: usize, mss: u16, flags: Flags) -> Frame {
    let ends = [1, 2].map(|host| SocketAddr::from(([10, 0, 0, host], 80)));
    let mut frame = vec![0; HEADER_BYTES_MAX];
    let header = Header {
        seq: u32::MAX - 1000,
        ack: 1,
        flags,
        window: 100,
        ..Header::default()
    };
    let template = TcpTemplate::new([2; 6], [4; 6], ends[0], ends[1]);
    let len = template.write(&header, &mut frame).unwrap();
    assert_eq!(len, PAYLOAD_AT);
    frame.truncate(len);
    finish(&mut frame, payload).unwrap();
    frame.extend((0..payload).map(|at| (at / 7) as u8));
    let unfinished = VirtioNetHeader {
        flags: NEEDS_CSUM,
        gso_type: GSO_TCPV4,
        gso_size: mss,
        // The kernel sets the length before the pages, which may include a part of the payload.
        hdr_len: (PAYLOAD_AT + payload.min(3000)) as u16,
        csum_start: 34,
        csum_offset: 16,
    };
    Frame::new(&frame, unfinished)
}

const DATAGRAM_PAYLOAD_AT: usize = 42;

/// Returns a superpacket of UDP over IPv4, its payload counting up.
fn superpacket_of_datagrams(payload_bytes: usize, datagram_bytes: u16) -> Frame {
    let [source, destination] = [1, 2].map(|host| SocketAddr::from(([10, 0, 0, host], 443)));
    let header = DatagramHeader {
        source_mac: [2; 6],
        destination_mac: [4; 6],
        source,
        destination,
        ecn: ip::Ecn::Ect0,
    };
    let mut frame = header.to_frame(&[]).expect("it is short");
    frame.truncate(DATAGRAM_PAYLOAD_AT);
    let mut changed = UdpHeaderMut::parse(&mut frame).unwrap();
    changed.set_identification(u16::MAX);
    changed.finish(payload_bytes).unwrap();
    frame.extend((0..payload_bytes).map(|at| (at / 7) as u8));
    let unfinished = VirtioNetHeader {
        flags: NEEDS_CSUM,
        gso_type: GSO_UDP_L4,
        gso_size: datagram_bytes,
        hdr_len: DATAGRAM_PAYLOAD_AT as u16,
        csum_start: 34,
        csum_offset: 6,
    };
    Frame::new(&frame, unfinished)
}

#[test]
fn each_packet_of_a_superpacket_has_its_own_place_in_the_queue() {
    // Ten packets of 1,054 bytes and one of 554; five fit.
    let mut direction = Direction::new(conditions("rate=8432kbit,queue=5500b"), 1);
    direction.arrive(0, superpacket(10_500, 1000, Flags::ACK));
    let counters = direction.counters();
    assert_eq!((counters.packets, counters.bytes), (11, 10 * 1054 + 554));
    // One each millisecond, and none with those behind it unless both are due.
    assert_eq!(direction.next_departure_ns(), Some(MS));
    assert!(direction.depart(MS - 1).is_none());
    assert_eq!(direction.depart(MS).unwrap().packets, 0..1);
    assert_eq!(direction.depart(3 * MS).unwrap().packets, 1..3);
    assert_eq!(direction.depart(9 * MS).unwrap().packets, 3..5);
    assert!(direction.next_departure_ns().is_none());
    assert_eq!(direction.counters().queue_drops, 6);
}

proptest! {
    /// However a superpacket is taken apart, the stream that arrives has every byte in its place,
    /// and FIN and PSH only at its end.
    #[test]
    fn the_parts_of_a_superpacket_are_the_whole(
        payload in 1usize..60_000,
        mss in 100u16..9000,
        loss in 0u32..60,
        seed: u64,
    ) {
        let mut direction = Direction::new(conditions(&format!("loss={loss}%,duplicate=5%")), seed);
        let flags = Flags::ACK | Flags::PSH | Flags::FIN;
        let whole = superpacket(payload, mss, flags);
        let count = whole.packets();
        prop_assert_eq!(count as usize, payload.div_ceil(mss.into()));
        direction.arrive(0, whole);
        let mut arrived = 0;
        let mut header = Vec::new();
        while let Some(departure) = direction.depart(0) {
            let last = departure.packets.end == count;
            let packets = departure.packets.clone();
            let (unfinished, pieces) = departure.frame.run(departure.packets, &mut header);
            let bytes = pieces.concat();
            prop_assert!(usize::from(unfinished.hdr_len) <= bytes.len(), "the kernel refuses that");
            let Ok(Received::Tcp(tcp)) = parse(&bytes, true) else {
                return Err(TestCaseError::fail("not a TCP packet"));
            };
            let offset = tcp.segment.header.seq.wrapping_sub(u32::MAX - 1000) as usize;
            prop_assert_eq!(offset, packets.start as usize * usize::from(mss));
            let mut bytes = tcp.segment.payload.iter().enumerate();
            prop_assert!(bytes.all(|(at, byte)| *byte == ((offset + at) / 7) as u8));
            let end = if last { payload } else { packets.end as usize * usize::from(mss) };
            prop_assert_eq!(offset + tcp.segment.payload.len(), end);
            prop_assert_eq!(tcp.segment.header.flags == flags, last);
            prop_assert_eq!(unfinished.gso_type != 0, count == 1 || packets.len() > 1);
            arrived += packets.len() as u64;
        }
        let counters = direction.counters();
        prop_assert_eq!(arrived, counters.packets - counters.lost + counters.duplicated);
    }
}

proptest! {
    /// However a superpacket of datagrams is taken apart, each datagram arrives whole, with no
    /// other's bytes.
    #[test]
    fn the_parts_of_a_superpacket_of_datagrams_are_datagrams(
        payload_bytes in 1usize..60_000,
        datagram_bytes in 100u16..9000,
        loss in 0u32..60,
        seed: u64,
    ) {
        let mut direction = Direction::new(conditions(&format!("loss={loss}%,duplicate=5%")), seed);
        let whole = superpacket_of_datagrams(payload_bytes, datagram_bytes);
        let count = whole.packets();
        let each = usize::from(datagram_bytes);
        prop_assert_eq!(count as usize, payload_bytes.div_ceil(each));
        direction.arrive(0, whole);
        let mut arrived = 0;
        let mut header = Vec::new();
        while let Some(departure) = direction.depart(0) {
            let packets = departure.packets.clone();
            let (unfinished, pieces) = departure.frame.run(departure.packets, &mut header);
            let bytes = pieces.concat();
            let Ok(Some(packet)) = datagram::parse(&bytes, true) else {
                return Err(TestCaseError::fail("not a UDP packet"));
            };
            let start = packets.start as usize * each;
            let end = payload_bytes.min(packets.end as usize * each);
            prop_assert_eq!(packet.payload.len(), end - start);
            let mut bytes = packet.payload.iter().enumerate();
            prop_assert!(bytes.all(|(at, byte)| *byte == ((start + at) / 7) as u8));
            prop_assert_eq!(packet.ecn, ip::Ecn::Ect0);
            // The kernel cuts the rest, and completes checksums.
            prop_assert_eq!(unfinished.flags & NEEDS_CSUM, NEEDS_CSUM);
            let is_several = count == 1 || packets.len() > 1;
            prop_assert_eq!(unfinished.gso_type == GSO_UDP_L4, is_several);
            prop_assert_eq!(unfinished.gso_size, if is_several { datagram_bytes } else { 0 });
            arrived += packets.len() as u64;
        }
        let counters = direction.counters();
        prop_assert_eq!(arrived, counters.packets - counters.lost + counters.duplicated);
    }
}

#[test]
fn what_claims_to_be_a_superpacket_and_is_none_passes_whole() {
    let odd = |bytes: usize, gso_type, csum_start| {
        let header = VirtioNetHeader {
            flags: NEEDS_CSUM,
            gso_type,
            gso_size: 10,
            csum_start,
            ..VirtioNetHeader::default()
        };
        let bytes = vec![0xff; bytes];
        let frame = Frame::new(&bytes, header);
        assert_eq!(frame.packets(), 1);
        assert_eq!(frame.packet_bytes(0), bytes.len());
        let mut header = Vec::new();
        assert_eq!(frame.run(0..1, &mut header).1.concat(), bytes);
    };
    for bytes in [0, 1, 13, 14, 34, 60, 2000] {
        for csum_start in [0, 14, 34, 54, u16::MAX] {
            odd(bytes, GSO_TCPV4, csum_start);
            odd(bytes, GSO_UDP_L4, csum_start);
        }
    }
}
