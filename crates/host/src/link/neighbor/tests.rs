//! The cache and its packets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use wire::frame::{self, Icmp6Packet, Received};
use wire::icmpv6::{Message, Neighbor};
use wire::{arp, ethernet};

use super::*;

const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const MAC_A: [u8; 6] = [2, 0, 0, 0, 0, 0xa];
const MAC_B: [u8; 6] = [2, 0, 0, 0, 0, 0xb];
const OUR_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const A_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 10);
const GATEWAY_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const ELSEWHERE_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const OUR_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);
const A_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0x12, 0x3456);
const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0xa);
const SECOND: u64 = 1_000_000;

fn neighbors() -> Neighbors {
    let addresses = [(OUR_V4.into(), 24), (OUR_V6.into(), 64)];
    Neighbors::new(OUR_MAC, &addresses, &[GATEWAY_V4.into()])
}

fn arp(operation: arp::Operation, mac: [u8; 6], sender: Ipv4Addr, target: Ipv4Addr) -> arp::Packet {
    arp::Packet {
        operation,
        sender_mac: mac,
        sender,
        target_mac: [0; 6],
        target,
    }
}

fn request(mac: [u8; 6], sender: Ipv4Addr, target: Ipv4Addr) -> arp::Packet {
    arp(arp::Operation::Request, mac, sender, target)
}

fn reply(mac: [u8; 6], sender: Ipv4Addr) -> arp::Packet {
    arp(arp::Operation::Reply, mac, sender, OUR_V4)
}

fn ndisc(source: Ipv6Addr, message: Neighbor) -> Icmp6Packet<'static> {
    Icmp6Packet {
        source_mac: MAC_A,
        source,
        destination: OUR_V6,
        message: Message::Neighbor(message),
    }
}

fn solicitation(source: Ipv6Addr, source_mac: Option<[u8; 6]>) -> Icmp6Packet<'static> {
    let target = OUR_V6;
    ndisc(source, Neighbor::Solicitation { target, source_mac })
}

fn advertisement(
    target_mac: Option<[u8; 6]>,
    solicited: bool,
    override_cached: bool,
) -> Icmp6Packet<'static> {
    let message = Neighbor::Advertisement {
        target: A_V6,
        target_mac,
        router: false,
        solicited,
        override_cached,
    };
    ndisc(A_V6, message)
}

/// The question in a frame: who is asked for, and over which hardware address.
fn question(frame: &[u8]) -> (IpAddr, [u8; 6]) {
    let destination_mac = *frame.first_chunk().unwrap();
    match frame::parse(frame, false).unwrap() {
        Received::Arp(packet) => {
            assert_eq!(packet.operation, arp::Operation::Request);
            assert_eq!((packet.sender, packet.sender_mac), (OUR_V4, OUR_MAC));
            (packet.target.into(), destination_mac)
        }
        Received::Icmp6(packet) => {
            assert_eq!((packet.source, packet.source_mac), (OUR_V6, OUR_MAC));
            match packet.message {
                Message::Neighbor(Neighbor::Solicitation { target, source_mac }) => {
                    assert_eq!(source_mac, Some(OUR_MAC));
                    (target.into(), destination_mac)
                }
                other => panic!("{other:?}"),
            }
        }
        other => panic!("{other:?}"),
    }
}

fn asked(neighbors: &mut Neighbors) -> Option<(IpAddr, [u8; 6])> {
    let frame = neighbors.poll_frame()?;
    assert_eq!(neighbors.poll_frame(), None);
    Some(question(&frame))
}

fn v4(address: Ipv4Addr) -> IpAddr {
    address.into()
}

#[test]
fn unknown_neighbour_is_asked_for_by_arp() {
    let mut n = neighbors();
    assert_eq!(n.resolve(0, v4(A_V4)), Resolution::Pending);
    assert_eq!(asked(&mut n), Some((A_V4.into(), ethernet::BROADCAST)));
    assert_eq!(n.resolve(0, v4(A_V4)), Resolution::Pending);
    assert_eq!(asked(&mut n), None);
    assert_eq!(n.on_arp(1000, &reply(MAC_A, A_V4)), None);
    assert_eq!(n.resolve(1000, v4(A_V4)), Resolution::Known(MAC_A));
}

#[test]
fn unknown_neighbour_is_asked_for_by_neighbour_discovery() {
    let mut n = neighbors();
    assert_eq!(n.resolve(0, A_V6.into()), Resolution::Pending);
    let group_mac = [0x33, 0x33, 0xff, 0x12, 0x34, 0x56];
    assert_eq!(asked(&mut n), Some((A_V6.into(), group_mac)));
    // Without a hardware address it answers nothing.
    n.on_ndisc(1000, &advertisement(None, true, true));
    assert_eq!(n.resolve(1000, A_V6.into()), Resolution::Pending);
    n.on_ndisc(1000, &advertisement(Some(MAC_A), true, false));
    assert_eq!(n.resolve(1000, A_V6.into()), Resolution::Known(MAC_A));
}

#[test]
fn silent_neighbour_is_given_up_for_a_while() {
    for address in [v4(A_V4), A_V6.into()] {
        let mut n = neighbors();
        let mut questions = 0;
        n.resolve(0, address);
        while let Some(at) = n.next_timeout_us() {
            questions += usize::from(asked(&mut n).is_some());
            assert_eq!(n.resolve(at - 1, address), Resolution::Pending);
            n.on_timeout(at);
        }
        assert_eq!(questions, 3);
        assert_eq!(n.resolve(3 * SECOND, address), Resolution::Unreachable);
        assert_eq!(n.resolve(6 * SECOND - 1, address), Resolution::Unreachable);
        assert_eq!(asked(&mut n), None);
        assert_eq!(n.resolve(6 * SECOND, address), Resolution::Pending);
        assert!(asked(&mut n).is_some());
    }
}

#[test]
fn request_is_answered_and_its_sender_remembered() {
    let mut n = neighbors();
    let answer = n.on_arp(0, &request(MAC_A, A_V4, OUR_V4)).unwrap();
    assert_eq!(answer[..6], MAC_A);
    let Ok(Received::Arp(answer)) = frame::parse(&answer, false) else {
        panic!("not ARP");
    };
    assert_eq!(
        answer,
        arp::Packet {
            operation: arp::Operation::Reply,
            sender_mac: OUR_MAC,
            sender: OUR_V4,
            target_mac: MAC_A,
            target: A_V4,
        }
    );
    assert_eq!(n.resolve(0, v4(A_V4)), Resolution::Known(MAC_A));
}

#[test]
fn address_probe_is_answered_and_leaves_no_trace() {
    let mut n = neighbors();
    let probe = request(MAC_A, Ipv4Addr::UNSPECIFIED, OUR_V4);
    assert!(n.on_arp(0, &probe).is_some());
    assert!(n.entries.is_empty());
}

#[test]
fn requests_for_others_are_no_business_of_ours() {
    let mut n = neighbors();
    assert_eq!(n.on_arp(0, &request(MAC_A, A_V4, GATEWAY_V4)), None);
    assert!(n.entries.is_empty());
}

#[test]
fn only_those_on_the_link_are_remembered() {
    let mut n = neighbors();
    let everybody = Ipv4Addr::new(10, 77, 0, 255);
    for stranger in [ELSEWHERE_V4, everybody, Ipv4Addr::BROADCAST] {
        n.on_arp(0, &request(MAC_A, stranger, OUR_V4));
    }
    n.on_arp(0, &request(ethernet::BROADCAST, A_V4, OUR_V4));
    n.on_arp(0, &reply(MAC_A, A_V4));
    n.on_ndisc(0, &solicitation(Ipv6Addr::LOCALHOST, Some(MAC_A)));
    n.on_ndisc(0, &advertisement(Some(MAC_A), false, true));
    assert!(n.entries.is_empty(), "{:?}", n.entries);
}

#[test]
fn only_own_addresses_are_answered_for() {
    let mut n = neighbors();
    assert_eq!(n.on_arp(0, &request(MAC_A, OUR_V4, OUR_V4)), None);
    assert_eq!(n.on_ndisc(0, &solicitation(OUR_V6, Some(MAC_A))), None);
    assert!(n.entries.is_empty());
    assert_eq!(n.resolve(0, OUR_V4.into()), Resolution::Unreachable);
}

#[test]
fn solicitation_is_answered_also_to_a_link_local_address() {
    let mut n = neighbors();
    for source in [A_V6, LINK_LOCAL] {
        let asked = solicitation(source, Some(MAC_A));
        let answer = n.on_ndisc(0, &asked).unwrap();
        assert_eq!(answer[..6], MAC_A);
        let Ok(Received::Icmp6(answer)) = frame::parse(&answer, false) else {
            panic!("not ICMPv6");
        };
        assert_eq!((answer.source, answer.destination), (OUR_V6, source));
        assert_eq!(
            answer.message,
            Message::Neighbor(Neighbor::Advertisement {
                target: OUR_V6,
                target_mac: Some(OUR_MAC),
                router: false,
                solicited: true,
                override_cached: true,
            })
        );
        assert_eq!(n.next_hop(source.into()), IpAddr::V6(source));
        assert_eq!(n.resolve(0, source.into()), Resolution::Known(MAC_A));
    }
}

#[test]
fn solicitation_without_hardware_address_is_answered_where_it_came_from() {
    let mut n = neighbors();
    let answer = n.on_ndisc(0, &solicitation(A_V6, None)).unwrap();
    assert_eq!(answer[..6], MAC_A);
    assert!(n.entries.is_empty());
}

#[test]
fn duplicate_address_detection_is_answered_to_all() {
    let mut n = neighbors();
    let probe = solicitation(Ipv6Addr::UNSPECIFIED, None);
    let answer = n.on_ndisc(0, &probe).unwrap();
    assert_eq!(answer[..6], [0x33, 0x33, 0, 0, 0, 1]);
    let Ok(Received::Icmp6(answer)) = frame::parse(&answer, false) else {
        panic!("not ICMPv6");
    };
    assert_eq!(answer.destination, "ff02::1".parse::<Ipv6Addr>().unwrap());
    assert!(matches!(
        answer.message,
        Message::Neighbor(Neighbor::Advertisement {
            target: OUR_V6,
            solicited: false,
            ..
        })
    ));
    assert!(n.entries.is_empty());
}

/// A neighbour that answered at time 0 and is used again after its time has run out.
fn used_when_stale() -> (Neighbors, u64) {
    let mut n = neighbors();
    n.resolve(0, v4(A_V4));
    n.on_arp(0, &reply(MAC_A, A_V4));
    n.poll_frame();
    n.on_timeout(SECOND);
    assert_eq!(n.next_timeout_us(), None);
    let now_us = 30 * SECOND;
    assert_eq!(n.resolve(now_us, v4(A_V4)), Resolution::Known(MAC_A));
    assert_eq!(n.next_timeout_us(), Some(35 * SECOND));
    (n, 35 * SECOND)
}

#[test]
fn traffic_confirms_a_neighbour() {
    let (mut n, at) = used_when_stale();
    n.confirm(at - 1, v4(A_V4));
    n.on_timeout(at);
    assert_eq!(asked(&mut n), None);
    assert_eq!(n.next_timeout_us(), None);
    assert_eq!(n.resolve(at, v4(A_V4)), Resolution::Known(MAC_A));
}

#[test]
fn stale_neighbour_is_asked_itself() {
    let (mut n, at) = used_when_stale();
    n.on_timeout(at);
    assert_eq!(asked(&mut n), Some((A_V4.into(), MAC_A)));
    n.on_arp(at + 1, &reply(MAC_A, A_V4));
    assert_eq!(n.resolve(at + 1, v4(A_V4)), Resolution::Known(MAC_A));
    n.on_timeout(at + SECOND);
    assert_eq!(asked(&mut n), None);
}

#[test]
fn neighbour_that_has_gone_is_forgotten_and_asked_for_again() {
    let (mut n, mut at) = used_when_stale();
    for _ in 0..3 {
        n.on_timeout(at);
        assert_eq!(asked(&mut n), Some((A_V4.into(), MAC_A)));
        assert_eq!(n.resolve(at, v4(A_V4)), Resolution::Known(MAC_A));
        at += SECOND;
    }
    n.on_timeout(at);
    assert_eq!(n.resolve(at, v4(A_V4)), Resolution::Pending);
    assert_eq!(asked(&mut n), Some((A_V4.into(), ethernet::BROADCAST)));
}

#[test]
fn of_two_answers_the_first_wins() {
    let mut n = neighbors();
    n.resolve(0, v4(A_V4));
    n.on_arp(1000, &reply(MAC_A, A_V4));
    n.on_arp(2000, &reply(MAC_B, A_V4));
    assert_eq!(n.resolve(2000, v4(A_V4)), Resolution::Known(MAC_A));
}

#[test]
fn address_that_moves_is_followed_and_verified() {
    let mut n = neighbors();
    n.resolve(0, v4(A_V4));
    n.poll_frame();
    n.on_arp(0, &reply(MAC_A, A_V4));
    n.on_arp(2 * SECOND, &request(MAC_B, A_V4, A_V4));
    assert_eq!(n.resolve(2 * SECOND, v4(A_V4)), Resolution::Known(MAC_B));
    n.on_timeout(7 * SECOND);
    assert_eq!(asked(&mut n), Some((A_V4.into(), MAC_B)));
}

#[test]
fn advertisements_obey_the_override_flag() {
    let known = || {
        let mut n = neighbors();
        n.resolve(0, A_V6.into());
        n.on_ndisc(0, &advertisement(Some(MAC_A), true, true));
        n
    };
    // RFC 4861 §7.2.5: no override, another address: only doubt remains.
    let mut n = known();
    n.on_ndisc(1, &advertisement(Some(MAC_B), true, false));
    assert_eq!(n.entries[&IpAddr::V6(A_V6)].state, State::Stale);
    assert_eq!(n.resolve(1, A_V6.into()), Resolution::Known(MAC_A));
    // Override, solicited: believed.
    let mut n = known();
    n.on_ndisc(1, &advertisement(Some(MAC_B), true, true));
    assert_eq!(n.entries[&IpAddr::V6(A_V6)].state, State::reachable(1));
    assert_eq!(n.resolve(1, A_V6.into()), Resolution::Known(MAC_B));
    // Override, not solicited: used, and verified.
    let mut n = known();
    n.on_ndisc(1, &advertisement(Some(MAC_B), false, true));
    assert_eq!(n.entries[&IpAddr::V6(A_V6)].state, State::Stale);
    assert_eq!(n.resolve(1, A_V6.into()), Resolution::Known(MAC_B));
    // Nothing new, not solicited: nothing changes.
    let mut n = known();
    n.on_ndisc(1, &advertisement(Some(MAC_A), false, true));
    assert_eq!(n.entries[&IpAddr::V6(A_V6)].state, State::reachable(0));
}

#[test]
fn what_is_not_on_the_link_goes_through_the_gateway() {
    let mut n = neighbors();
    assert_eq!(n.next_hop(A_V4.into()), v4(A_V4));
    assert_eq!(n.next_hop(ELSEWHERE_V4.into()), v4(GATEWAY_V4));
    // There is no gateway for IPv6.
    let elsewhere: IpAddr = "2001:db8::1".parse().unwrap();
    let next_hop = n.next_hop(elsewhere);
    assert_eq!(n.resolve(0, next_hop), Resolution::Unreachable);
    assert_eq!(asked(&mut n), None);
}

#[test]
fn gateway_may_lie_outside_every_prefix() {
    let gateway = v4(Ipv4Addr::new(169, 254, 1, 1));
    let mut n = Neighbors::new(OUR_MAC, &[(OUR_V4.into(), 32)], &[gateway]);
    assert_eq!(n.next_hop(A_V4.into()), gateway);
    assert_eq!(n.resolve(0, gateway), Resolution::Pending);
    assert_eq!(asked(&mut n), Some((gateway, ethernet::BROADCAST)));
}

#[test]
fn gateway_of_ipv6_may_lie_outside_every_prefix() {
    let own: IpAddr = "fd77::2".parse().unwrap();
    let elsewhere: IpAddr = "2001:db8:1::1".parse().unwrap();
    for gateway in ["2001:db8::1", "fe80::1"] {
        let gateway = gateway.parse().unwrap();
        let mut n = Neighbors::new(OUR_MAC, &[(own, 128)], &[gateway]);
        assert_eq!(n.next_hop(elsewhere), gateway);
        assert_eq!(n.resolve(0, gateway), Resolution::Pending);
        assert!(n.poll_frame().is_some());
    }
}

#[test]
fn prefixes_of_31_bits_have_no_broadcast_address() {
    let n = Neighbors::new(OUR_MAC, &[(OUR_V4.into(), 31)], &[]);
    assert!(n.is_on_link(Ipv4Addr::new(10, 77, 0, 3).into()));
    let n = Neighbors::new(OUR_MAC, &[(OUR_V4.into(), 30)], &[]);
    assert!(!n.is_on_link(Ipv4Addr::new(10, 77, 0, 3).into()));
}

#[test]
fn flood_of_requests_does_not_push_out_who_we_talk_to() {
    let mut n = Neighbors::new(OUR_MAC, &[(OUR_V4.into(), 8)], &[]);
    n.resolve(0, v4(A_V4));
    n.on_arp(0, &reply(MAC_A, A_V4));
    for i in 0..3 * ENTRIES_MAX as u32 {
        let sender = Ipv4Addr::from_bits(0x0a01_0000 + i);
        n.on_arp(SECOND, &request(MAC_B, sender, OUR_V4));
    }
    assert_eq!(n.entries.len(), ENTRIES_MAX);
    assert_eq!(n.resolve(SECOND, v4(A_V4)), Resolution::Known(MAC_A));
}

#[test]
fn flood_of_absent_neighbours_does_not_push_out_present_ones() {
    let mut n = Neighbors::new(OUR_MAC, &[(OUR_V4.into(), 8)], &[]);
    n.on_arp(0, &request(MAC_A, A_V4, OUR_V4));
    for i in 0..3 * ENTRIES_MAX as u32 {
        n.resolve(SECOND, Ipv4Addr::from_bits(0x0a01_0000 + i).into());
    }
    assert_eq!(n.entries.len(), INCOMPLETE_MAX + 1);
    assert!(n.frames.len() <= ENTRIES_MAX);
    assert_eq!(n.resolve(SECOND, v4(A_V4)), Resolution::Known(MAC_A));
}

#[test]
fn packets_to_a_flood_of_absent_neighbours_fail() {
    let mut n = Neighbors::new(OUR_MAC, &[(OUR_V4.into(), 8)], &[]);
    let mut absent: Vec<(IpAddr, bool)> = (0..3 * ENTRIES_MAX as u32)
        .map(|i| (Ipv4Addr::from_bits(0x0a01_0000 + i).into(), false))
        .collect();
    let mut questions = 0;
    for second in 0..=10 {
        n.on_timeout(second * SECOND);
        for (address, told) in &mut absent {
            *told |= n.resolve(second * SECOND, *address) == Resolution::Unreachable;
        }
        questions += n.frames.drain(..).count();
        absent.reverse();
    }
    let waiting = absent.iter().filter(|(_, told)| !told).count();
    assert_eq!(waiting, 0, "still waiting after 10 s");
    assert_eq!(questions, 11 * INCOMPLETE_MAX, "one a second for each");
}

#[test]
fn neighbour_asked_for_is_not_forgotten_for_others() {
    let mut n = Neighbors::new(OUR_MAC, &[(OUR_V4.into(), 8)], &[]);
    assert_eq!(n.resolve(0, v4(A_V4)), Resolution::Pending);
    for i in 0..2 * ENTRIES_MAX as u32 {
        let other = Ipv4Addr::from_bits(0x0a01_0000 + i);
        n.on_arp(1, &request(MAC_B, other, OUR_V4));
        assert_eq!(n.resolve(1, v4(other)), Resolution::Known(MAC_B));
    }
    assert_eq!(n.entries.len(), ENTRIES_MAX);
    for second in 1..=3 {
        n.on_timeout(second * SECOND);
    }
    assert_eq!(n.resolve(3 * SECOND, v4(A_V4)), Resolution::Unreachable);
}

proptest! {
    #[test]
    fn books_stay_balanced(
        steps in prop::collection::vec((0u8..7, 0u32..600, any::<u8>(), 0..8 * SECOND), 1..400),
    ) {
        let mut n = Neighbors::new(OUR_MAC, &[(OUR_V4.into(), 8), (OUR_V6.into(), 64)], &[]);
        let mut now_us = 0;
        for (kind, who, mac, elapsed_us) in steps {
            now_us += elapsed_us;
            let address = Ipv4Addr::from_bits(0x0a01_0000 + who);
            let mac = [2, 0, 0, 0, 1, mac];
            match kind {
                0 => drop(n.on_arp(now_us, &request(mac, address, OUR_V4))),
                1 => drop(n.on_arp(now_us, &reply(mac, address))),
                2 => drop(n.resolve(now_us, address.into())),
                3 => drop(n.resolve(now_us, A_V6.into())),
                4 => {
                    let advertised = advertisement(Some(mac), who % 2 == 0, who % 3 == 0);
                    drop(n.on_ndisc(now_us, &advertised));
                }
                5 => n.confirm(now_us, address.into()),
                _ => n.on_timeout(now_us),
            }
            let incomplete = n.entries.values().filter(|e| e.state.is_incomplete()).count();
            prop_assert_eq!(n.incomplete, incomplete);
            let failed = n.entries.values().filter(|e| e.state.is_failed()).count();
            prop_assert_eq!(n.failed, failed);
            prop_assert!(incomplete <= INCOMPLETE_MAX && n.entries.len() <= ENTRIES_MAX);
            let earliest = n.entries.values().filter_map(|e| e.state.timeout_us()).min();
            if let Some(earliest) = earliest {
                prop_assert!(n.next_timeout_us().is_some_and(|at| at <= earliest));
            }
        }
    }
}

#[test]
fn own_addresses_are_announced_three_times() {
    let mut neighbors = neighbors();
    assert_eq!(neighbors.next_timeout_us(), None);
    neighbors.announce(7);
    let mut rounds = 0;
    let mut now_us = 7;
    loop {
        let frames: Vec<_> = std::iter::from_fn(|| neighbors.poll_frame()).collect();
        let [report, announcement, advertisement] = &frames[..] else {
            panic!("{frames:?}");
        };
        // MLD: to all routers that hear it, with the router alert and one record, which joins the
        // group.
        assert_eq!(report[..6], [0x33, 0x33, 0, 0, 0, 0x16]);
        assert_eq!(report[14 + 7], 1, "hop limit");
        assert_eq!(report[54..62], [58, 0, 5, 2, 0, 0, 1, 0]);
        assert_eq!((report[62], report[69], report[70]), (143, 1, 4));
        let group = wire::icmpv6::solicited_node(OUR_V6);
        assert_eq!(report[74..], group.octets());
        let mut sum = wire::checksum::Checksum::pseudo_header(
            Ipv6Addr::UNSPECIFIED.into(),
            Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16).into(),
            58,
            28,
        );
        sum.add(&report[62..]);
        assert_eq!(sum.finish(), 0, "the checksum is right");

        assert_eq!(announcement[..6], ethernet::BROADCAST);
        assert_eq!(
            frame::parse(announcement, false),
            Ok(Received::Arp(request(OUR_MAC, OUR_V4, OUR_V4)))
        );
        let Ok(Received::Icmp6(packet)) = frame::parse(advertisement, false) else {
            panic!("{advertisement:?}");
        };
        assert_eq!(packet.destination, "ff02::1".parse::<Ipv6Addr>().unwrap());
        assert_eq!(
            packet.message,
            Message::Neighbor(Neighbor::Advertisement {
                target: OUR_V6,
                target_mac: Some(OUR_MAC),
                router: false,
                solicited: false,
                override_cached: true,
            })
        );
        rounds += 1;
        let Some(next_us) = neighbors.next_timeout_us() else {
            break;
        };
        assert_eq!(next_us, now_us + 2 * SECOND);
        neighbors.on_timeout(next_us - 1);
        assert_eq!(neighbors.poll_frame(), None, "it is not due");
        now_us = next_us;
        neighbors.on_timeout(now_us);
    }
    assert_eq!(rounds, 3);
}

/// RFC 5227 §2.4
#[test]
fn an_own_address_that_another_machine_claims_is_counted_and_defended_now_and_then() {
    let mut neighbors = neighbors();
    let frames = |neighbors: &mut Neighbors| -> Vec<_> {
        std::iter::from_fn(|| neighbors.poll_frame()).collect()
    };
    let announcement = request(OUR_MAC, OUR_V4, OUR_V4).to_frame(ethernet::BROADCAST);
    // What comes back to us is no conflict.
    assert_eq!(neighbors.on_arp(7, &request(OUR_MAC, OUR_V4, OUR_V4)), None);
    assert_eq!(neighbors.take_conflicts(), 0);
    for claim in [
        request(MAC_A, OUR_V4, OUR_V4),
        request(MAC_A, OUR_V4, A_V4),
        reply(MAC_B, OUR_V4),
    ] {
        assert_eq!(neighbors.on_arp(7, &claim), None);
    }
    assert_eq!(neighbors.take_conflicts(), 3);
    assert_eq!(frames(&mut neighbors), std::slice::from_ref(&announcement));
    let claim = reply(MAC_A, OUR_V4);
    neighbors.on_arp(7 + 10 * SECOND - 1, &claim);
    assert_eq!(frames(&mut neighbors), [] as [Vec<u8>; 0]);
    neighbors.on_arp(7 + 10 * SECOND, &claim);
    assert_eq!(frames(&mut neighbors), [announcement]);
    neighbors.on_arp(7 + 11 * SECOND, &claim);
    assert_eq!(frames(&mut neighbors), [] as [Vec<u8>; 0]);
}

/// RFC 4862 §5.4.4
#[test]
fn an_advertisement_of_another_machine_for_an_own_address_is_a_conflict() {
    let mut neighbors = neighbors();
    for (target_mac, conflicts) in [(Some(OUR_MAC), 0), (Some(MAC_B), 1), (None, 1)] {
        let advertisement = Neighbor::Advertisement {
            target: OUR_V6,
            target_mac,
            router: false,
            solicited: false,
            override_cached: true,
        };
        assert_eq!(neighbors.on_ndisc(7, &ndisc(OUR_V6, advertisement)), None);
        assert_eq!(neighbors.take_conflicts(), conflicts, "{target_mac:?}");
    }
    let frame = neighbors.poll_frame().unwrap();
    let Ok(Received::Icmp6(packet)) = frame::parse(&frame, false) else {
        panic!("{frame:?}");
    };
    assert_eq!(packet.source, OUR_V6);
    assert_eq!(packet.destination, "ff02::1".parse::<Ipv6Addr>().unwrap());
    assert_eq!(neighbors.poll_frame(), None);
}

#[test]
fn a_shared_address_is_the_kernels_to_answer_for_and_to_reach() {
    let mut shared = neighbors();
    shared.share();
    assert_eq!(shared.on_arp(0, &request(MAC_A, A_V4, OUR_V4)), None);
    assert_eq!(shared.on_ndisc(0, &solicitation(A_V6, Some(MAC_A))), None);
    // The kernel's own packets are no claims.
    assert_eq!(shared.on_arp(0, &reply(MAC_B, OUR_V4)), None);
    assert_eq!(shared.take_conflicts(), 0);
    shared.announce(0);
    assert_eq!(shared.poll_frame(), None);
    for own in [
        IpAddr::V4(OUR_V4),
        IpAddr::V6(OUR_V6),
        Ipv4Addr::LOCALHOST.into(),
        Ipv6Addr::LOCALHOST.into(),
    ] {
        let mut route = shared.route(own);
        assert!(!route.is_looped());
        assert_eq!(
            shared.resolve_route(0, &mut route),
            Resolution::Known(LOOPBACK_MAC)
        );
    }
    // Neighbours are resolved as ever.
    assert_eq!(
        shared.resolve(0, ELSEWHERE_V4.into()),
        Resolution::Unreachable
    );
    let next_hop = shared.next_hop(ELSEWHERE_V4.into());
    assert_eq!(shared.resolve(0, next_hop), Resolution::Pending);
    assert!(shared.poll_frame().is_some());
    shared.on_arp(SECOND, &reply(MAC_B, GATEWAY_V4));
    assert_eq!(shared.resolve(SECOND, next_hop), Resolution::Known(MAC_B));
}

#[test]
fn neighbours_stay_known_when_addresses_change() {
    let mut shared = neighbors();
    shared.share();
    shared.resolve(0, A_V4.into());
    shared.on_arp(SECOND, &reply(MAC_A, A_V4));
    let new = Ipv4Addr::new(10, 78, 0, 2);
    let gateway = Ipv4Addr::new(10, 78, 0, 1);
    shared.set_addresses(&[(new.into(), 24)], &[gateway.into()]);
    assert_eq!(
        shared.resolve(SECOND, A_V4.into()),
        Resolution::Known(MAC_A),
        "for the RST of a connection of the old address"
    );
    assert_eq!(shared.next_hop(ELSEWHERE_V4.into()), gateway);
    assert_eq!(shared.source_for(ELSEWHERE_V4.into()), Some(new.into()));
    assert_eq!(
        shared.resolve(SECOND, new.into()),
        Resolution::Known(LOOPBACK_MAC)
    );
}
