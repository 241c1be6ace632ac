//! Who is let in, and what outsiders can do to those who are.

use std::net::{Ipv4Addr, SocketAddr};

use host::StackConfig;
use host::app::{AppEvent, StreamMemory};
use tcp::State;
use wire::tcp::{Flags, Header, Timestamps};

use crate::rig::{CLIENT, Rig, answer};

fn client(port: u16) -> SocketAddr {
    SocketAddr::new(CLIENT.parse().unwrap(), port)
}

/// An address drawn at random: from all of IPv4's unicast range but the stack's own link, and
/// loopback addresses, which are martians.
fn random_source(n: u64) -> SocketAddr {
    let word = (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let ip = Ipv4Addr::from_bits((word >> 32) as u32 % 0xbfff_ffff + 0x1000_0000);
    let [first, rest @ ..] = ip.octets();
    let first = if ip.is_loopback() { 16 } else { first };
    let ip = Ipv4Addr::new(first, rest[0], rest[1], rest[2]);
    SocketAddr::new(ip.into(), word as u16)
}

/// SYNs from everywhere, until the queue is full and beyond.
fn flood(rig: &mut Rig, from: u64, count: u64) {
    for n in from..from + count {
        rig.inject_syn(random_source(n));
        if n % 64 == 0 {
            rig.step();
        }
    }
    rig.step();
}

/// Covers: RFC 4987 §3.3, RFC 4987 §3.6
#[test]
fn a_hundred_thousand_syns_take_a_bounded_place_of_their_own() {
    let mut rig = Rig::with(|config| config.connections_max = 1000);
    rig.ask(&["1000"]);
    rig.run_until(|rig| rig.received.len() == 1002);
    for round in 0..10 {
        flood(&mut rig, round * 10_000, 10_000);
        assert!(rig.stack.half_open() <= 4096);
        // The established one has not suffered,
        let before = rig.received.len();
        rig.ask(&["2000"]);
        rig.run_until(|rig| rig.received.len() == before + 2002);
    }
    let counters = rig.stack.counters();
    assert_eq!(rig.stack.half_open(), 4096);
    assert_eq!(rig.stack.connections(), 1);
    assert_eq!(counters.syns_received, 1 + 100_000);
    assert_eq!(counters.syn_cookies_sent, 100_000 - 4096);
    // and new ones come through, by cookies.
    for n in 1..=20 {
        flood(&mut rig, 100_000 + n * 100, 100);
        rig.reconnect();
        rig.ask(&["30000"]);
        rig.run_until(|rig| rig.received.len() == 30_002);
        assert!(rig.received == answer(30_000));
        assert_eq!(rig.stack.counters().syn_cookies_accepted, n);
    }
    assert_eq!(rig.stack.counters().syn_cookies_invalid, 0);
    assert_eq!(rig.stack.counters().connections_refused, 0);
}

/// Covers: RFC 4987 §3.3
#[test]
fn when_a_flood_is_over_the_queue_empties_itself() {
    let mut rig = Rig::with(|config| config.admission.half_open_max = 10);
    flood(&mut rig, 0, 1000);
    assert_eq!(rig.stack.half_open(), 10);
    while let Some(at_us) = rig
        .stack
        .next_timeout_us()
        .filter(|_| rig.stack.half_open() > 0)
    {
        rig.now_us = rig.now_us.max(at_us);
        rig.step();
    }
    let counters = rig.stack.counters();
    assert_eq!(counters.half_open_expired, 10);
    // SYN,ACKs are repeated six times, and none of the cookies.
    assert_eq!(counters.retransmissions, 60);
    // Two minutes later no client can have a cookie: guesses are not even looked at.
    rig.now_us += tcp::SynCookies::LIFETIME_US_MAX;
    let guess = Header {
        flags: Flags::ACK,
        ..Header::default()
    };
    let invalid = rig.stack.counters().syn_cookies_invalid;
    rig.inject_segment(random_source(0), &guess, &[]);
    rig.step();
    let counters = rig.stack.counters();
    assert_eq!(
        (counters.syn_cookies_invalid, counters.resets_sent),
        (invalid, 1)
    );
}

/// Covers: RFC 4987 §3.6
#[test]
fn a_cookie_is_good_although_the_syn_has_come_again_and_found_room() {
    let mut rig = Rig::with(|config| config.admission.half_open_max = 1);
    let first = random_source(0);
    rig.inject_syn(first);
    rig.run_until(|rig| !rig.trace.is_empty());
    assert!(rig.stack.counters().syn_cookies_sent > 0);
    let (cookie, _) = *rig.trace.last().expect("the client has its SYN,ACK");
    // The one that was in the way goes, and the client's SYN comes again, before its ACK.
    let segment = |flags, seq| Header {
        seq,
        flags,
        window: 1000,
        ..Header::default()
    };
    rig.inject_segment(first, &segment(Flags::RST, 8), &[]);
    let again = segment(Flags::SYN, cookie.ack.wrapping_sub(1));
    rig.inject_segment(rig.client_address(), &again, &[]);
    rig.ask(&["1000"]);
    rig.run_until(|rig| rig.received.len() == 1002);
    assert_eq!(rig.stack.counters().syn_cookies_accepted, 1);
    assert_eq!(rig.stack.half_open(), 0);
}

/// A client that has missed the reset, and asks again, is not to get another answer with the same
/// sequence numbers.
#[test]
fn a_cookie_opens_no_second_connection_once_the_first_is_broken_off() {
    let mut rig = Rig::with(|config| config.admission.half_open_max = 1);
    rig.inject_syn(random_source(0));
    rig.run_until(|rig| !rig.trace.is_empty());
    let (cookie, _) = *rig.trace.last().expect("the client has its SYN,ACK");
    rig.ask(&["1000"]);
    rig.run_until(|rig| rig.received.len() == 1002);
    assert_eq!(rig.stack.counters().syn_cookies_accepted, 1);
    let segment = |flags, seq, ack| Header {
        seq,
        ack,
        flags,
        window: 1000,
        ..Header::default()
    };
    let (last, _) = *rig.trace.last().expect("the answer");
    let reset = segment(Flags::RST, last.ack, 0);
    rig.inject_segment(rig.client_address(), &reset, &[]);
    rig.step();
    assert_eq!(rig.stack.connections(), 0);
    let mut first = segment(Flags::ACK, cookie.ack, cookie.seq.wrapping_add(1));
    // Part of the cookie.
    first.options.timestamps = cookie.options.timestamps.map(|sent| Timestamps {
        value: sent.echo_reply,
        echo_reply: sent.value,
    });
    rig.inject_segment(rig.client_address(), &first, b"1000\n");
    rig.step();
    assert_eq!(rig.stack.connections(), 0);
    assert_eq!(rig.stack.counters().syn_cookies_accepted, 1);
    let (answer, _) = rig.trace.last().expect("an answer");
    assert!(answer.flags.contains(Flags::RST));
    // What it begins again is as good as any.
    rig.reconnect_from(rig.client_address().port());
    rig.ask(&["2000"]);
    rig.run_until(|rig| rig.received.len() == 2002);
}

/// Covers: RFC 4987 §3.6
#[test]
fn an_ack_that_was_guessed_during_a_flood_opens_nothing() {
    let mut rig = Rig::with(|config| config.admission.half_open_max = 10);
    flood(&mut rig, 0, 11);
    for n in 0..10_000u32 {
        let guess = Header {
            seq: n,
            ack: n.wrapping_mul(0x9e37_79b9),
            flags: Flags::ACK,
            window: 1000,
            ..Header::default()
        };
        rig.inject_segment(random_source(50_000), &guess, b"GET");
        if n % 64 == 0 {
            rig.step();
        }
    }
    rig.step();
    assert_eq!(rig.stack.connections(), 1, "that of the rig's own client");
    let counters = rig.stack.counters();
    let (invalid, early) = (counters.syn_cookies_invalid, counters.syn_cookies_early);
    assert_eq!(invalid + early, 10_000);
    // Half of a hash is right once in 4,096 times: that is not answered, and opens nothing.
    assert!(early < 20, "{early}");
}

#[test]
fn the_first_client_on_a_link_waits_for_its_address_and_not_for_a_timer() {
    let mut rig = Rig::new();
    rig.ask(&["1000"]);
    let begun_us = rig.now_us;
    rig.run_until(|rig| rig.received.len() == 1002);
    assert!(rig.now_us - begun_us < 100_000, "{}", rig.now_us - begun_us);
}

#[test]
fn a_connection_that_the_table_has_no_room_for_waits_until_there_is() {
    let mut rig = Rig::with(|config| config.connections_max = 1);
    rig.ask(&["1000"]);
    rig.run_until(|rig| rig.received.len() == 1002);
    rig.inject_syn(client(1));
    rig.step();
    assert_eq!(rig.stack.half_open(), 0);
    assert_eq!(rig.stack.counters().connections_refused, 1);
    // The first one goes, and makes room.
    let reset = Header {
        flags: Flags::RST,
        seq: rig.trace.last().unwrap().0.ack,
        ..Header::default()
    };
    rig.inject_segment(rig.client_address(), &reset, &[]);
    rig.reconnect();
    rig.ask(&["2000"]);
    rig.run_until(|rig| rig.received.len() == 2002);
    assert_eq!(rig.stack.connections(), 1);
}

/// The peers of all connections, in order.
fn remotes(rig: &Rig) -> Vec<SocketAddr> {
    let mut remotes: Vec<_> = rig
        .stack
        .connection_views()
        .map(|view| view.remote)
        .collect();
    remotes.sort_unstable();
    remotes
}

/// Covers: RFC 4987 §3.2
#[test]
fn the_oldest_of_too_many_silent_connections_is_reset_for_a_new_one() {
    let mut rig = Rig::with(|config| config.admission.backlog_max = 3);
    let mut silent = Vec::new();
    for _ in 0..3 {
        rig.run_until(|rig| rig.client.state() == State::Established);
        rig.step();
        silent.push(rig.client_address());
        rig.reconnect();
    }
    assert_eq!(rig.stack.connections(), 3);
    rig.ask(&["1000"]);
    rig.run_until(|rig| rig.received.len() == 1002);
    assert!(rig.received == answer(1000));
    assert_eq!(rig.stack.counters().backlog_evictions, 1);
    assert_eq!(
        remotes(&rig),
        [silent[1], silent[2], rig.client_address()],
        "the oldest is gone"
    );
}

/// A flood of handshakes without their last ACK takes no place from one that is completed within a
/// second.
#[test]
fn half_open_connections_whose_answer_was_repeated_make_room() {
    let mut rig = Rig::with(|config| config.admission.half_open_max = 100);
    let mut sent = 0;
    for round in 1..=10 {
        // 90 SYNs per second.
        let started_us = rig.now_us;
        while rig.now_us < started_us + 1_100_000 {
            if rig.now_us >= started_us + (sent % 90) * 11_000 && sent < round * 90 {
                rig.inject_syn(random_source(sent));
                sent += 1;
            }
            rig.step();
        }
        rig.reconnect();
        rig.ask(&["1000"]);
        rig.run_until(|rig| rig.received.len() == 1002);
    }
    let counters = rig.stack.counters();
    assert!(counters.half_open_evicted > 0);
    assert_eq!(counters.syn_cookies_sent, 0);
}

/// A full table ends the connection that has been idle longest.
#[test]
fn an_idle_connection_is_reset_for_a_new_one_when_the_table_is_full() {
    let mut rig = Rig::with(|config| config.connections_max = 3);
    let mut idle = Vec::new();
    for _ in 0..3 {
        rig.ask(&["10"]);
        rig.run_until(|rig| rig.received.len() == 12);
        rig.ask(&["idle"]);
        rig.run_until(|rig| rig.client.queued_bytes() == 0);
        idle.push(rig.client_address());
        rig.reconnect();
    }
    for (number, client) in idle.iter().enumerate() {
        rig.ask(&["1000"]);
        rig.run_until(|rig| rig.received.len() == 1002);
        assert!(!remotes(&rig).contains(client), "{client} was idle longest");
        assert_eq!(remotes(&rig).len(), 3);
        assert_eq!(rig.stack.counters().idle_evictions, number as u64 + 1);
        rig.reconnect();
    }
    // Those that are left are not idle: the newcomer waits.
    let started_us = rig.now_us;
    rig.ask(&["1000"]);
    while rig.now_us < started_us + 2_000_000 {
        rig.step();
    }
    assert_eq!(rig.client.state(), State::SynSent);
    assert!(rig.stack.counters().connections_refused > 0);
}

/// Opens connections that ask for a file each, and take nothing of it after its first bytes.
fn hold_files(rig: &mut Rig, count: usize) -> Vec<SocketAddr> {
    let mut holders = Vec::new();
    for _ in 0..count {
        rig.ask(&["1000000"]);
        rig.run_until(|rig| rig.received.len() > 1000);
        holders.push(rig.client_address());
        rig.reconnect();
    }
    holders
}

/// Where descriptors run short, the source that holds most gives up its oldest to one that holds
/// less, and is refused itself.
#[test]
fn the_source_with_most_files_gives_one_up_for_another_source() {
    let mut rig = Rig::new();
    rig.nic.files_max = 3;
    let holders = hold_files(&mut rig, 3);
    assert_eq!(rig.nic.sizes.len(), 3);

    // The same source again.
    rig.ask(&["1000"]);
    rig.run_until(|rig| rig.received.len() == 2);
    assert_eq!(rig.received, b"no");
    assert_eq!(rig.stack.counters().file_evictions, 0);

    let other = SocketAddr::new("10.77.0.9".parse().unwrap(), 40_000);
    rig.reconnect_as(other);
    rig.ask(&["1000"]);
    rig.run_until(|rig| rig.received.len() == 1002);
    assert!(rig.received == answer(1000));
    assert_eq!(rig.stack.counters().file_evictions, 1);
    let left = remotes(&rig);
    assert!(!left.contains(&holders[0]), "the oldest is gone");
    assert!(left.contains(&holders[1]) && left.contains(&holders[2]));
}

/// What clients send, and an application does not read, is held within a bound: windows shrink, and
/// then those that hold most are reset.
#[test]
fn connections_that_hold_most_memory_are_reset_at_the_bound() {
    const BYTES_MAX: usize = 400_000;
    let mut rig = Rig::with(|config| {
        config.connection_memory_bytes_max = BYTES_MAX;
        config.connections_max = 1000;
    });
    rig.app.deaf = true;
    let mut least_held = usize::MAX;
    for _ in 0..80 {
        rig.run_until(|rig| rig.client.state() == State::Established);
        let sent = rig.client.write(&[b'x'; 60_000]);
        let started_us = rig.now_us;
        while rig.now_us < started_us + 1_000_000 {
            rig.step();
            let bytes = rig.stack.connection_memory_bytes();
            assert!(bytes < BYTES_MAX + 150_000, "{bytes}");
        }
        assert_eq!(rig.client.state(), State::Established, "the oldest goes");
        let held = sent - rig.client.queued_bytes() as usize;
        least_held = least_held.min(held);
        rig.reconnect();
    }
    assert!((1..20_000).contains(&least_held), "{least_held}");
    assert!(rig.stack.counters().memory_evictions > 0);
    // One that is heard at once holds little.
    rig.app.deaf = false;
    rig.ask(&["1000"]);
    rig.run_until(|rig| rig.received.len() == 1002);
    assert!(rig.received == answer(1000));
}

/// A connection to a backend fills with what its client does not take.
#[test]
fn memory_of_a_connection_that_serves_another_counts_with_that_one() {
    let mut rig = Rig::with(|config| config.connection_memory_bytes_max = 400_000);
    for address in ["10.77.0.8", "10.77.0.9"] {
        rig.reconnect_as(SocketAddr::new(address.parse().unwrap(), 40_000));
        rig.run_until(|rig| rig.client.state() == State::Established);
        rig.step();
    }
    let [.., client, backend] = rig.app.accepted[..] else {
        panic!("{:?}", rig.app.accepted);
    };
    let bytes_of = |bytes, serves| StreamMemory {
        bytes,
        serves,
        client: None,
    };
    rig.app.memory.insert(client, bytes_of(60_000, None));
    rig.app
        .memory
        .insert(backend, bytes_of(350_000, Some(client)));
    let is_over = |event: &AppEvent| matches!(event, AppEvent::Closed { .. });
    rig.run_until(|rig| rig.app.count(is_over) > 0);
    rig.step();
    assert_eq!(rig.stack.counters().memory_evictions, 1);
    let left = remotes(&rig);
    let is_left = |address: &str| left.iter().any(|it| it.ip().to_string() == address);
    assert!(!is_left("10.77.0.8") && is_left("10.77.0.9"), "{left:?}");
}

/// The same where the host's own table is full.
#[test]
fn a_full_table_of_files_makes_room_for_a_source_with_fewer() {
    let mut rig = Rig::with(|config| config.admission.files_max = 3);
    let holders = hold_files(&mut rig, 3);
    rig.ask(&["1000"]);
    rig.run_until(|rig| rig.received.len() == 2);
    assert_eq!(rig.received, b"no");

    rig.reconnect_as(SocketAddr::new("10.77.0.9".parse().unwrap(), 40_000));
    rig.ask(&["1000"]);
    rig.run_until(|rig| rig.received.len() == 1002);
    assert!(rig.received == answer(1000));
    assert_eq!(rig.stack.counters().file_evictions, 1);
    assert!(!remotes(&rig).contains(&holders[0]), "the oldest is gone");
}

/// A directory that is listed takes a place like a file.
#[test]
fn a_full_table_of_files_makes_room_for_a_listing_too() {
    let mut rig = Rig::with(|config| config.admission.files_max = 3);
    rig.nic.names = vec!["a", "b"];
    hold_files(&mut rig, 3);
    rig.ask(&["list"]);
    rig.run_until(|rig| rig.received.len() == 2);
    assert_eq!(rig.received, b"no");

    rig.reconnect_as(SocketAddr::new("10.77.0.9".parse().unwrap(), 40_000));
    rig.ask(&["list"]);
    rig.run_until(|rig| rig.received.ends_with(b"."));
    assert_eq!(rig.received, b"a b .");
    assert_eq!(rig.stack.counters().file_evictions, 1);
}

#[test]
fn a_source_has_so_many_connections_and_another_one_its_own() {
    let mut rig = Rig::with(|config| config.admission.connections_per_source = Some(2));
    for _ in 0..2 {
        rig.ask(&["10"]);
        rig.run_until(|rig| rig.received.len() == 12);
        rig.reconnect();
    }
    for _ in 0..1000 {
        rig.step();
    }
    assert_eq!(rig.client.state(), State::SynSent);
    assert_eq!(rig.stack.counters().sources_refused, 1);
    rig.inject_syn(random_source(1));
    rig.step();
    assert_eq!(rig.stack.half_open(), 1);
}

/// The change that puts this limit in use.
fn limited(connections_per_source: Option<u32>) -> host::Changeable {
    let config = StackConfig::new(Vec::new(), Vec::new(), [0; 16]);
    host::Changeable {
        connections_per_source,
        ..host::Changeable::from(&config)
    }
}

#[test]
fn a_limit_of_a_source_that_comes_later_counts_its_connections_and_ends_none() {
    let mut rig = Rig::new();
    for _ in 0..2 {
        rig.ask(&["10"]);
        rig.run_until(|rig| rig.received.len() == 12);
        rig.reconnect();
    }
    rig.ask(&["10"]);
    rig.run_until(|rig| rig.received.len() == 12);
    rig.stack.change(&limited(Some(1)));
    rig.ask(&["2000"]);
    rig.run_until(|rig| rig.received.len() == 12 + 2002);
    assert_eq!(rig.stack.connections(), 3);
    rig.reconnect();
    for _ in 0..1000 {
        rig.step();
    }
    assert_eq!(rig.client.state(), State::SynSent);
    assert_eq!(rig.stack.counters().sources_refused, 1);
    assert_eq!(rig.stack.connections(), 3);
    rig.stack.change(&limited(None));
    rig.reconnect();
    rig.ask(&["10"]);
    rig.run_until(|rig| rig.received.len() == 12);
    assert_eq!(rig.stack.counters().sources_refused, 1);
}

#[test]
fn handshakes_begun_before_the_limit_was_reached_are_refused_at_their_end() {
    let mut rig = Rig::with(|config| config.admission.connections_per_source = Some(1));
    rig.inject_syn(client(7));
    rig.ask(&["10"]);
    rig.run_until(|rig| rig.received.len() == 12);
    assert_eq!(rig.stack.half_open(), 1);
    // The rig's client does not look at what is for port 7: its peer, who sees the SYN,ACK, is
    // played here.
    let isn = tcp::IsnGenerator::new([7; 16]);
    let server: SocketAddr = crate::rig::SERVER.parse().unwrap();
    let ack = Header {
        seq: 8,
        ack: isn
            .isn(server, client(7), tcp::Instant::from_us(1_000_100))
            .wrapping_add(1),
        flags: Flags::ACK,
        window: 1000,
        ..Header::default()
    };
    rig.inject_segment(client(7), &ack, &[]);
    rig.step();
    let counters = rig.stack.counters();
    assert_eq!((counters.sources_refused, counters.resets_sent), (1, 1));
    assert_eq!((rig.stack.half_open(), rig.stack.connections()), (0, 1));
}

/// What an attacker who cannot see the connection may send to it.
/// Covers: RFC 5961 §3.2, RFC 5961 §4.2, RFC 5961 §5.2, RFC 5961 §7
#[test]
fn blind_resets_syns_and_data_leave_a_connection_alive() {
    let mut rig = Rig::new();
    rig.ask(&["1000"]);
    rig.run_until(|rig| rig.received.len() == 1002);
    let peer = rig.client_address();
    for n in 0..4096u32 {
        // A step below the window of 128 KiB: some hit it, none its edge.
        let seq = n.wrapping_mul(1 << 20).wrapping_add(12_345);
        for flags in [
            Flags::RST,
            Flags::RST | Flags::ACK,
            Flags::SYN,
            Flags::SYN | Flags::ACK,
            Flags::FIN | Flags::ACK,
            Flags::ACK,
            Flags::PSH,
        ] {
            let header = Header {
                seq,
                ack: seq.rotate_left(7),
                flags,
                window: 1,
                ..Header::default()
            };
            let payload: &[u8] = if flags.contains(Flags::ACK) {
                b"GET /evil HTTP/1.1\r\n\r\n"
            } else {
                &[]
            };
            rig.inject_segment(peer, &header, payload);
        }
        if n % 16 == 0 {
            rig.step();
        }
    }
    rig.step();
    assert_eq!(rig.client.state(), State::Established);
    assert_eq!(rig.stack.connections(), 1);
    rig.received.clear();
    rig.ask(&["100000"]);
    rig.run_until(|rig| rig.received.len() == 100_002);
    assert!(rig.received == answer(100_000));
    assert_eq!(rig.stack.counters().opens, 2, "no forgery was believed");
    let answers = rig
        .trace
        .iter()
        .filter(|(header, len)| *len == 0 && header.flags == Flags::ACK);
    assert!(answers.count() < 100, "challenge ACKs are limited");
}

/// What an ICMP error quotes of a segment of ours.
fn quoted(peer: SocketAddr, seq: u32) -> Vec<u8> {
    let server: SocketAddr = crate::rig::SERVER.parse().unwrap();
    let mut quoted = vec![0x45, 0, 2, 0, 0, 0, 0x40, 0, 64, 6, 0, 0];
    quoted.extend([10, 77, 0, 2, 10, 77, 0, 1]);
    quoted.extend([server, peer].map(|at| at.port().to_be_bytes()).concat());
    quoted.extend(seq.to_be_bytes());
    quoted
}

/// Covers: RFC 1122 §4.2.3.9, RFC 5927 §5.2
#[test]
fn no_icmp_error_ends_a_half_open_connection() {
    let mut rig = Rig::new();
    let server: SocketAddr = crate::rig::SERVER.parse().unwrap();
    rig.ask(&["10"]);
    rig.run_until(|rig| rig.received.len() == 12);
    rig.inject_syn(client(7));
    rig.step();
    let isn = tcp::IsnGenerator::new([7; 16]);
    let seq = isn.isn(server, client(7), tcp::Instant::from_us(rig.now_us));
    for code in 0..16 {
        // The SYN,ACK itself is quoted.
        let frame = rig.unreachable(code, 576, &quoted(client(7), seq));
        rig.inject(&frame);
        rig.step();
        assert_eq!(rig.stack.half_open(), 1, "{code}");
    }
    let ack = Header {
        seq: 8,
        ack: seq.wrapping_add(1),
        flags: Flags::ACK,
        window: 1000,
        ..Header::default()
    };
    rig.inject_segment(client(7), &ack, &[]);
    rig.step();
    assert_eq!((rig.stack.half_open(), rig.stack.connections()), (0, 2));
}

/// Covers: RFC 5927 §4.1, RFC 5927 §7.2
#[test]
fn forged_icmp_errors_neither_end_a_connection_nor_shrink_its_packets() {
    let mut rig = Rig::new();
    rig.ask(&["1000"]);
    rig.run_until(|rig| rig.received.len() == 1002);
    let peer = rig.client_address();
    for n in 0..4096u32 {
        let seq = n.wrapping_mul(1 << 20).wrapping_add(12_345);
        // Every code: no such port, fragmentation needed, prohibited, ...
        let frame = rig.unreachable((n % 16) as u8, 576, &quoted(peer, seq));
        rig.inject(&frame);
        if n % 64 == 0 {
            rig.step();
        }
    }
    rig.step();
    assert_eq!(rig.stack.connections(), 1);
    rig.trace.clear();
    rig.received.clear();
    rig.ask(&["100000"]);
    rig.run_until(|rig| rig.received.len() == 100_002);
    assert!(rig.received == answer(100_000));
    let longest = rig.trace.iter().map(|(_, len)| *len).max();
    assert_eq!(longest, Some(1448), "as long as the link allows");
}

/// Covers: RFC 9293 §3.10.7.2 (fourth)
#[test]
fn a_listener_drops_what_neither_begins_nor_acknowledges_anything() {
    let mut rig = Rig::new();
    for (number, flags) in [Flags::default(), Flags::FIN, Flags::PSH, Flags::RST]
        .into_iter()
        .enumerate()
    {
        let header = Header {
            flags,
            window: 1000,
            ..Header::default()
        };
        rig.inject_segment(client(1 + number as u16), &header, b"x");
        rig.step();
    }
    assert_eq!(rig.stack.counters().resets_sent, 0);
    let syn_and_fin = Header {
        flags: Flags::SYN | Flags::FIN,
        window: 1000,
        ..Header::default()
    };
    rig.inject_segment(client(9), &syn_and_fin, &[]);
    rig.step();
    assert_eq!(rig.stack.half_open(), 1);
}

/// Covers: RFC 5961 §10
#[test]
fn resets_are_limited_to_so_many_per_second() {
    let mut rig = Rig::with(|config| config.resets_per_second = 50);
    let stray = Header {
        flags: Flags::ACK,
        ..Header::default()
    };
    for n in 0..1000 {
        rig.inject_segment(random_source(n), &stray, &[]);
    }
    rig.step();
    let counters = rig.stack.counters();
    assert_eq!(counters.resets_sent, 50);
    assert_eq!(counters.resets_suppressed, 950);
    rig.now_us += 1_000_000;
    for n in 0..1000 {
        rig.inject_segment(random_source(n), &stray, &[]);
    }
    rig.step();
    assert_eq!(rig.stack.counters().resets_sent, 100);
}
