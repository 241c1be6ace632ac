//! Listeners whose SYNs NIC workers answer: what workers are given, which SYNs they get, and what
//! becomes of the ACK.

use std::net::SocketAddr;

use contract::Event;
use contract::setup::SetupScope;
use host::OffloadPolicy;
use host::app::{Bind, Owner, StreamOptions};
use netdev::steering::{Arrived, Decision, PacketType, SteeringMap, Target};
use netdev::{Offload, Port, Superpacket};
use tcp::{Config, Instant, IsnGenerator, SynCookies};
use wire::frame::{TcpTemplate, parse_segment};
use wire::tcp::{Flags, Header};

use crate::rig::{Rig, SERVER, answer};

const SECOND_US: u64 = 1_000_000;

/// A host whose SYNs NIC workers answer, before any has said that it is ready.
fn offering() -> Rig {
    let mut rig = Rig::with(|config| config.setup_offload = OffloadPolicy::On);
    rig.client_is_mute = true;
    rig.step();
    rig.client_is_mute = false;
    rig
}

/// The same whose worker is ready.
fn set_up() -> Rig {
    let mut rig = offering();
    rig.client_is_mute = true;
    ready(&mut rig, 0);
    rig.client_is_mute = false;
    rig
}

/// The worker is ready for the last SETUP.
fn ready(rig: &mut Rig, steering: u32) {
    let epoch = rig.nic.setups.last().expect("a SETUP").epoch;
    tell(rig, &Event::SetupReady { epoch, steering });
}

fn tell(rig: &mut Rig, event: &Event) {
    rig.nic.channel.send(event).expect("room for an event");
    rig.nic.channel.flush();
    rig.step();
}

fn server() -> SocketAddr {
    SERVER.parse().unwrap()
}

/// Answers the SYNs that the host has handed on, as a NIC worker does; returns how many.
fn workers_answer(rig: &mut Rig) -> usize {
    let frames = std::mem::take(&mut rig.nic.frames);
    for bytes in &frames {
        let packet = parse_segment(bytes, true).expect("a segment");
        assert_eq!(packet.segment.header.flags, Flags::SYN);
        let remote = SocketAddr::new(packet.source, packet.segment.header.source_port);
        let setup = rig.nic.setups.last().expect("a SETUP");
        let mss = setup.listeners[0].mss_v4;
        let config = Config {
            mss,
            ..Config::default()
        };
        let cookies = SynCookies::new(setup.cookie_key);
        let ts_offset = IsnGenerator::new([7; 16]).ts_offset(server(), remote);
        let now = Instant::from_us(rig.now_us);
        let syn = &packet.segment;
        let syn_ack = cookies.syn_ack(&config, server(), remote, syn, ts_offset, now);
        let way = TcpTemplate::new(rig.port.mac(), packet.source_mac, server(), remote);
        let frame = way.to_frame(&syn_ack.expect("a plain SYN"), &[]);
        let packet = Superpacket {
            header: &frame,
            payload: &[],
            offload: Offload::None,
        };
        rig.port.send(&packet).unwrap();
    }
    frames.len()
}

/// The client has asked for a file, and gets it on a connection whose SYN a worker has answered.
fn served(rig: &mut Rig) {
    rig.ask(&["3000"]);
    rig.run_until(|rig| !rig.nic.frames.is_empty());
    assert_eq!(workers_answer(rig), 1);
    rig.run_until(|rig| rig.received.len() == answer(3000).len());
    assert_eq!(rig.received, answer(3000));
}

#[test]
fn a_worker_is_given_listeners_and_a_key() {
    let rig = offering();
    let [setup] = &rig.nic.setups[..] else {
        panic!("{:?}", rig.nic.setups);
    };
    assert_eq!(setup.epoch, 1);
    let [listener] = setup.listeners[..] else {
        panic!("{setup:?}");
    };
    assert_eq!((listener.scope, listener.port), (SetupScope::All, 80));
    assert_eq!((listener.mss_v4, listener.mss_v6), (1460, 1440));
    assert_ne!(setup.cookie_key, [7; 16], "not the secret of the stack");
    assert_eq!(rig.stack.syn_path(), None);
}

#[test]
fn without_the_switch_no_worker_is_given_anything() {
    let mut rig = Rig::new();
    rig.ask(&["3000"]);
    rig.run_until(|rig| rig.received.len() == answer(3000).len());
    assert_eq!(rig.nic.setups, []);
    // What a worker was not asked makes no sense.
    let ready = Event::SetupReady {
        epoch: 1,
        steering: 0,
    };
    tell(&mut rig, &ready);
    assert_eq!(rig.stack.counters().events_invalid, 1);
    assert_eq!(rig.stack.syn_path(), None);
}

#[test]
fn the_ack_makes_the_connection_and_the_host_has_kept_nothing_before() {
    let mut rig = set_up();
    assert_eq!(rig.stack.syn_path(), Some("handed on"));
    rig.run_until(|rig| !rig.nic.frames.is_empty());
    assert_eq!((rig.stack.half_open(), rig.stack.connections()), (0, 0));
    served(&mut rig);
    let counters = rig.stack.counters();
    assert_eq!(
        (counters.syns_handed_on, counters.connections_set_up),
        (1, 1)
    );
    assert_eq!(
        (counters.syns_received, counters.syn_cookies_accepted),
        (0, 0)
    );
}

#[test]
fn before_a_worker_is_ready_the_host_answers() {
    let mut rig = offering();
    rig.ask(&["3000"]);
    rig.run_until(|rig| rig.received.len() == answer(3000).len());
    assert_eq!(rig.stack.counters().syns_received, 1);
    let invented = Event::SetupReady {
        epoch: 2,
        steering: 0,
    };
    tell(&mut rig, &invented);
    assert_eq!(rig.stack.counters().events_invalid, 1);
    assert_eq!(rig.stack.syn_path(), None);
}

#[test]
fn what_a_worker_hands_up_the_host_answers() {
    let mut rig = set_up();
    rig.ask(&["3000"]);
    rig.run_until(|rig| !rig.nic.frames.is_empty());
    let bytes = rig.nic.frames.remove(0).into();
    tell(&mut rig, &Event::Frame { bytes });
    rig.run_until(|rig| rig.received.len() == answer(3000).len());
    let counters = rig.stack.counters();
    assert_eq!((counters.syns_handed_on, counters.syns_received), (1, 1));
    assert_eq!(counters.connections_set_up, 0);
}

#[test]
fn a_nic_stack_that_is_lost_gets_no_syns_and_its_successor_gets_setup() {
    let mut rig = set_up();
    rig.client_is_mute = true;
    rig.lose_nic(0);
    assert_eq!(rig.stack.syn_path(), None);
    rig.inject_syn("10.77.0.1:50000".parse().unwrap());
    rig.step();
    assert_eq!(rig.stack.half_open(), 1);
    rig.bring_nic(0);
    rig.step();
    assert_eq!(rig.nic.setups.len(), 1, "it knows nothing");
    assert_eq!(rig.stack.syn_path(), None);
    ready(&mut rig, 0);
    rig.client_is_mute = false;
    rig.reconnect();
    served(&mut rig);
}

#[test]
fn a_full_ring_leaves_syns_to_the_host() {
    let mut rig = set_up();
    rig.nic_takes = false;
    let source =
        |number: usize| SocketAddr::from(([10, 1, (number >> 8) as u8, number as u8], 4000));
    let mut sent = 0;
    while rig.stack.counters().syns_received == 0 {
        for _ in 0..100 {
            rig.inject_syn(source(sent));
            sent += 1;
        }
        rig.step();
        assert!(sent < 60_000, "{:?}", rig.stack.counters());
    }
    assert!(rig.stack.counters().syns_handed_on > 1_000);
}

/// The key before is tried for as long as a cookie of it can be good.
#[test]
fn the_key_changes_with_time_and_the_one_before_opens_connections() {
    let mut rig = set_up();
    let first = rig.nic.setups[0].clone();
    assert!(first.valid_us > 512 * SECOND_US && first.valid_us < 600 * SECOND_US);
    rig.now_us = 512 * SECOND_US - 50;
    rig.ask(&["3000"]);
    rig.reconnect();
    rig.ask(&["3000"]);
    let before = rig.nic.setups.len();
    rig.run_until(|rig| !rig.nic.frames.is_empty());
    // The worker has not taken the next SETUP yet.
    rig.nic.setups.truncate(before);
    workers_answer(&mut rig);
    rig.run_until(|rig| rig.received.len() == answer(3000).len());
    assert_eq!(rig.stack.counters().connections_set_up, 1);
    rig.run_until(|rig| rig.nic.setups.len() > before || rig.stack.counters().setups > 1);
    assert_eq!(rig.stack.counters().setups, 2);
    assert!(rig.stack.next_timeout_us().is_some());
}

#[test]
fn workers_hear_of_listeners_that_come_and_go() {
    let mut rig = set_up();
    let mut bind = Bind::new(Owner(9), "0.0.0.0:8080".parse().unwrap());
    bind.reuse_address = true;
    let binding = rig.stack.bind(&bind).unwrap();
    rig.step();
    assert_eq!(rig.nic.setups.len(), 1, "it does not listen");
    let options = StreamOptions {
        mss_max: Some(1000),
        ..StreamOptions::default()
    };
    rig.stack.listen(binding, options).unwrap();
    rig.step();
    let ports = |rig: &Rig| -> Vec<(u16, u16)> {
        let last = rig.nic.setups.last().expect("a SETUP");
        let ports = last.listeners.iter();
        ports
            .map(|listener| (listener.port, listener.mss_v4))
            .collect()
    };
    assert_eq!(ports(&rig), [(80, 1460), (8080, 1000)]);
    rig.stack.release(binding);
    rig.step();
    assert_eq!(ports(&rig), [(80, 1460)]);
    rig.stack.stop_listening();
    rig.step();
    assert_eq!(ports(&rig), []);
    let epochs: Vec<u64> = rig.nic.setups.iter().map(|setup| setup.epoch).collect();
    assert_eq!(epochs, [1, 2, 3, 4]);
}

/// The peer repeats what was lost, and opens its connection with that.
#[test]
fn what_follows_a_lost_ack_is_not_reset() {
    let mut rig = set_up();
    rig.client_is_mute = true;
    let from: SocketAddr = "10.77.0.1:50000".parse().unwrap();
    rig.inject_syn(from);
    rig.run_until(|rig| !rig.nic.frames.is_empty());
    workers_answer(&mut rig);
    rig.run_until(|rig| rig.strangers.contains_key(&50_000));
    let syn_ack = rig.strangers[&50_000];
    let segment = |seq, ack| Header {
        seq,
        ack,
        flags: Flags::ACK,
        window: 1000,
        ..Header::default()
    };
    let ack = syn_ack.seq.wrapping_add(1);
    rig.inject_segment(from, &segment(8 + 1000, ack), b"later");
    rig.step();
    let counters = rig.stack.counters();
    assert_eq!((counters.syn_cookies_early, counters.resets_sent), (1, 0));
    rig.inject_segment(from, &segment(8, ack), b"first");
    rig.step();
    assert_eq!(rig.stack.counters().connections_set_up, 1);
    // What acknowledges no cookie is reset as ever.
    let other: SocketAddr = "10.77.0.1:50001".parse().unwrap();
    rig.inject_segment(other, &segment(8, ack), b"none");
    rig.step();
    assert_eq!(rig.stack.counters().resets_sent, 1);
}

/// Where a SYN goes.
fn decision(map: &SteeringMap, from: SocketAddr) -> Decision {
    let header = Header {
        flags: Flags::SYN,
        ..Header::default()
    };
    let bytes = TcpTemplate::new([2; 6], [2; 6], from, server()).to_frame(&header, &[]);
    let arrived = Arrived {
        bytes: &bytes,
        packet_type: PacketType::Host,
        has_vlan: false,
    };
    map.decide(&[server().ip()], &arrived)
}

#[test]
fn a_map_gives_syns_to_the_workers_that_are_ready_but_those_of_known_connections() {
    let mut rig = offering();
    let map = SteeringMap::in_memory([3; 16]);
    rig.stack.steer_with(map.clone());
    let stranger: SocketAddr = "192.0.2.9:9".parse().unwrap();
    let step_and_decide = |rig: &mut Rig, from| {
        rig.step();
        decision(&map, from)
    };
    assert_eq!(step_and_decide(&mut rig, stranger), Decision::Host);
    ready(&mut rig, 5);
    let worker = Decision::Worker(Target::new(5).unwrap());
    assert_eq!(decision(&map, stranger), worker);
    assert_eq!(rig.stack.syn_path(), Some("steered"));
    // What reaches the host all the same is the host's.
    rig.ask(&["3000"]);
    rig.run_until(|rig| rig.received.len() == answer(3000).len());
    assert_eq!(rig.stack.counters().syns_received, 1);
    let client = rig.client_address();
    assert_eq!(decision(&map, client), Decision::Host);
    assert_eq!(decision(&map, stranger), worker);
    rig.lose_nic(0);
    assert_eq!(decision(&map, stranger), Decision::Host);
    rig.bring_nic(0);
    rig.step();
    assert_eq!(decision(&map, stranger), Decision::Host);
    ready(&mut rig, 6);
    let next = Decision::Worker(Target::new(6).unwrap());
    assert_eq!(decision(&map, stranger), next);
    rig.stack.stop_listening();
    assert_eq!(step_and_decide(&mut rig, stranger), Decision::Host);
}

/// What was noted of connections that have ended is forgotten, and those in TIME-WAIT are not.
#[test]
fn notes_of_connections_are_sorted_out() {
    let mut rig = offering();
    let map = SteeringMap::in_memory([3; 16]);
    rig.stack.steer_with(map.clone());
    ready(&mut rig, 5);
    let client = rig.client_address();
    rig.ask(&["quit"]);
    rig.run_until(|rig| rig.client.state() == tcp::State::CloseWait);
    rig.client.shutdown();
    rig.run_until(|rig| rig.stack.usage().time_waits == 1);
    let ended: SocketAddr = "192.0.2.9:9".parse().unwrap();
    map.note(server(), ended);
    assert_eq!(decision(&map, ended), Decision::Host);
    // Attaching the map again sorts out, as enough connections do.
    rig.stack.steer_with(map.clone());
    assert!(matches!(decision(&map, ended), Decision::Worker(_)));
    assert_eq!(decision(&map, client), Decision::Host);
}
