//! Datagrams of no connection: other versions, addresses that are to be proven, state that is lost,
//! ports that nothing listens on.

use std::net::SocketAddr;
use std::num::NonZeroU16;

use contract::tls::Cipher;
use netdev::Frame;
use wire::datagram::DatagramHeader;
use wire::frame::{self, Received};
use wire::ip;

use crate::world::{CLIENT_MAC, Setup, World, server_address, settings};

fn steady(below: u64) -> u64 {
    below / 2
}

fn stranger(v6: bool) -> SocketAddr {
    let ip = if v6 { "fd77::1" } else { "10.77.0.1" };
    SocketAddr::new(ip.parse().unwrap(), 7777)
}

#[test]
fn an_address_is_proven_where_there_are_many_connections() {
    let mut random = steady;
    let mut settings = settings();
    settings.limits.retry_above = 1;
    let setup = Setup {
        settings,
        ..Setup::default()
    };
    let mut world = World::with(setup, &mut random);
    world.connected();
    let without = world.stack.counters().quic_datagrams_sent;
    for (number, v6) in (1..).zip([false, true]) {
        let client = world.connect(Cipher::Aes128Gcm, v6);
        world.run_until(|world| world.peers[client].client.is_connected);
        // A Retry each.
        assert_eq!(
            world.stack.counters().quic_datagrams_sent,
            without * (number + 1) + number
        );
        world.request(client, 100_000, (0, 100_000), 0);
        world.run_until_finished();
    }
    assert_eq!(world.stack.counters().quic_connections_accepted, 3);
    world.close();
}

/// Covers: RFC 9000 §6.1
#[test]
fn another_version_is_answered_with_those_that_there_are() {
    for v6 in [false, true] {
        let mut random = steady;
        let mut world = World::new(&mut random);
        let mut initial = vec![0xc0, 0x0a, 0x1a, 0x2a, 0x3a, 8];
        initial.extend([1; 8]);
        initial.extend([4, 2, 2, 2, 2]);
        initial.resize(1200, 0);
        world.send(stranger(v6), server_address(v6), &initial);
        world.run_until(|world| !world.strays.is_empty());
        let (to, answer) = world.strays.remove(0);
        assert_eq!(to, stranger(v6));
        assert_eq!(answer[0] & 0x80, 0x80);
        assert_eq!(answer[1..5], [0; 4], "version negotiation");
        // The connection IDs, the other way round, and then the versions.
        assert_eq!(answer[5..10], [4, 2, 2, 2, 2]);
        assert_eq!(answer[10..19], [8, 1, 1, 1, 1, 1, 1, 1, 1]);
        assert!(
            answer[19..]
                .chunks(4)
                .any(|version| version == [0, 0, 0, 1])
        );
        world.close();
    }
}

/// Covers: RFC 9000 §10.3
#[test]
fn a_host_that_has_lost_its_state_resets_connections() {
    let mut random = steady;
    let mut world = World::new(&mut random);
    let client = world.connected();
    world.request(client, 3_000_000, (0, 3_000_000), 0);
    world.run_for(40_000);
    world.replace_host(&Setup::default());
    world.peers[client].transfers.clear();
    world.run_until(|world| world.peers[client].client.lost.is_some());
    let lost = world.peers[client].client.lost.clone().expect("a reason");
    assert!(lost.contains("reset"), "{lost}");
    world.close();
}

fn datagram(source: SocketAddr, destination: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let header = DatagramHeader {
        source_mac: CLIENT_MAC,
        destination_mac: [2, 0, 0, 0, 0, 1],
        source,
        destination,
        ecn: ip::Ecn::NotEct,
    };
    header.to_frame(payload).expect("one family")
}

/// Covers: RFC 1122 §4.1.3.1, RFC 4443 §3.1
#[test]
fn a_port_that_nothing_listens_on_is_unreachable() {
    for v6 in [false, true] {
        let mut random = steady;
        let mut world = World::new(&mut random);
        let mut to = server_address(v6);
        to.set_port(9);
        for len in [0, 10, 1400] {
            let payload: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let sent = datagram(stranger(v6), to, &payload);
            world.inject(&sent);
            world.run_until(|world| !world.icmp.is_empty());
            let answer = world.icmp.remove(0);
            assert!(matches!(
                frame::parse(&answer, false),
                Ok(Received::Icmp4(_) | Received::Icmp6(_))
            ));
            let (icmp_at, code, most) = if v6 {
                (54, [1, 4], 1280)
            } else {
                (34, [3, 3], 576)
            };
            assert_eq!(answer[icmp_at..icmp_at + 2], code);
            assert!(answer.len() - 14 <= most);
            let quoted = &answer[icmp_at + 8..];
            assert_eq!(*quoted, sent[14..14 + quoted.len()]);
            let all = sent.len() - 14;
            assert_eq!(quoted.len(), all.min(most - (icmp_at - 14) - 8));
        }
        assert_eq!(world.stack.counters().port_unreachables, 3);
        world.close();
    }
}

#[test]
fn nothing_is_answered_that_would_multiply() {
    let mut random = steady;
    let mut world = World::new(&mut random);
    let mut to = server_address(false);
    to.set_port(9);
    let groups = ["224.0.0.251:5353", "255.255.255.255:9", "[ff02::fb]:5353"];
    for group in groups {
        let group: SocketAddr = group.parse().unwrap();
        world.inject(&datagram(stranger(group.is_ipv6()), group, b"x"));
    }
    for source in ["224.0.0.1:1", "127.0.0.1:1", "0.0.0.0:1", "10.77.0.2:1"] {
        world.inject(&datagram(source.parse().unwrap(), to, b"x"));
    }
    let mut broadcast = datagram(stranger(false), to, b"x");
    broadcast[..6].fill(0xff);
    world.inject(&broadcast);
    world.run_for(1_000_000);
    assert_eq!(world.icmp.len(), 0);
    world.close();
}

#[test]
fn answers_are_limited() {
    let mut random = steady;
    let mut world = World::new(&mut random);
    let mut to = server_address(false);
    to.set_port(9);
    for _ in 0..3000 {
        world.inject(&datagram(stranger(false), to, b"x"));
    }
    world.run_for(1000);
    assert!(
        (1000..1010).contains(&world.icmp.len()),
        "{}",
        world.icmp.len()
    );
    assert!(world.stack.counters().echo_replies_suppressed > 1900);
    world.close();
}

#[test]
fn datagrams_that_were_merged_are_counted() {
    let mut random = steady;
    let mut world = World::new(&mut random);
    for (bytes, count) in [(1472, 0), (1473, 1)] {
        let frame = datagram(stranger(false), server_address(false), &vec![0x40; bytes]);
        let frame = Frame {
            bytes: &frame,
            checksum_valid: false,
            segment_bytes: None,
        };
        world.stack.on_frame(world.now_us, frame);
        assert_eq!(world.stack.counters().datagrams_merged, count);
    }
    world.close();
}

/// A client on the same machine, whose datagrams come in superpackets.
#[test]
fn datagrams_that_were_merged_are_split_where_the_port_says_so() {
    const REQUESTS: u64 = 20;
    for v6 in [false, true] {
        let mut random = steady;
        let mut world = World::new(&mut random);
        let client = world.connect(Cipher::Aes128Gcm, v6);
        world.run_until(|world| world.stack.counters().quic_connections_accepted == 1);
        // It fills the first datagram, so that the requests are in others.
        let long = world.peers[client].client.open(b"idle ").expect("a stream");
        assert!(world.peers[client].client.fill(long) > 10_000);
        for _ in 0..REQUESTS {
            world.request(client, 100_000, (50_000, 5000), 100);
        }
        let now_us = world.now_us;
        let peer = &mut world.peers[client];
        let (mut sent, mut split) = (0, 0);
        while let Some((payload, each)) = peer.client.poll_superpacket(now_us) {
            let datagrams = payload.len().div_ceil(each) as u64;
            let bytes = datagram(peer.client.local, peer.server, &payload);
            let segment_bytes = NonZeroU16::new(each as u16).filter(|_| datagrams > 1);
            let frame = Frame {
                bytes: &bytes,
                checksum_valid: false,
                segment_bytes,
            };
            let before = world.stack.counters().datagrams_received;
            world.stack.on_frame(now_us, frame);
            let counters = world.stack.counters();
            assert_eq!(counters.datagrams_received - before, datagrams);
            sent += datagrams;
            split += if datagrams > 1 { datagrams } else { 0 };
        }
        let counters = world.stack.counters();
        assert_eq!(
            (counters.datagrams_split, counters.datagrams_merged),
            (split, 0)
        );
        assert!(split >= 4, "{split} of {sent}");
        // Before the client could have sent any of it again.
        world.run_for(1000);
        let counters = world.stack.counters();
        assert_eq!(counters.quic_streams_accepted, 1 + REQUESTS);
        world.run_until_finished();
        world.close();
    }
}

#[test]
fn damaged_datagrams_are_dropped() {
    let mut random = steady;
    let mut world = World::new(&mut random);
    let good = datagram(stranger(false), server_address(false), &[0x40; 100]);
    for at in 34..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        world.inject(&bad);
    }
    world.run_for(1000);
    let counters = world.stack.counters();
    assert_eq!(counters.datagrams_received, 0);
    assert_eq!(counters.frames_malformed, good.len() as u64 - 34);
    world.close();
}

#[test]
fn a_client_whose_link_address_is_not_known_is_asked_for() {
    let mut random = steady;
    let mut world = World::new(&mut random);
    world.hides = true;
    let client = world.connect(Cipher::Aes128Gcm, false);
    world.run_for(500_000);
    assert!(!world.peers[client].client.is_connected);
    world.hides = false;
    world.run_until(|world| world.peers[client].client.is_connected);
    world.close();
}
