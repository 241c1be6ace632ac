//! Clients that may not connect.

use std::net::SocketAddr;

use client_address::proxy_protocol::{self, Version};
use client_address::{Networks, Prefix};
use host::app::{AppEvent, CloseReason};
use tcp::State;

use crate::proxied::proxies;
use crate::rig::{CLIENT, Rig, answer};

fn networks(texts: &[&str]) -> Networks<()> {
    let networks = texts.iter().map(|text| {
        let (address, bits) = text.split_once('/').unwrap();
        Prefix::network(address.parse().unwrap(), bits.parse().unwrap())
    });
    networks.collect()
}

fn client() -> Prefix {
    Prefix::network(CLIENT.parse().unwrap(), 32)
}

fn download(rig: &mut Rig) {
    rig.ask(&["1000"]);
    rig.run_until(|rig| rig.received.len() == answer(1000).len());
    assert!(rig.received == answer(1000), "every byte as in the file");
}

fn pass(rig: &mut Rig, steps: usize) {
    for _ in 0..steps {
        rig.step();
    }
}

/// The client tries to connect for a while, and hears nothing.
fn is_ignored(rig: &mut Rig) {
    rig.reconnect();
    rig.trace.clear();
    pass(rig, 20_000);
    assert_eq!(rig.client.state(), State::SynSent);
    assert_eq!(rig.trace, [], "neither SYN,ACK nor RST");
}

#[test]
fn who_is_denied_gets_no_answer_and_who_is_allowed_does() {
    let mut rig = Rig::new();
    for (allowed, denied, may) in [
        (None, &["10.77.0.0/24"][..], false),
        (Some(&["192.0.2.0/24"][..]), &[], false),
        (Some(&[]), &[], false),
        (None, &["192.0.2.0/24", "10.77.1.0/24"], true),
        (Some(&["10.77.0.0/24"]), &["10.77.0.128/25"], true),
        (Some(&["10.77.0.0/24"]), &["10.77.0.0/25"], false),
        (None, &[], true),
    ] {
        let refused = rig.stack.counters().clients_denied;
        let now_us = rig.now_us;
        (rig.stack).set_access(now_us, allowed.map(networks), networks(denied));
        if may {
            rig.reconnect();
            download(&mut rig);
            assert_eq!(rig.stack.counters().clients_denied, refused);
        } else {
            is_ignored(&mut rig);
            assert!(rig.stack.counters().clients_denied > refused);
        }
    }
}

#[test]
fn a_denial_ends_the_connections_of_its_network_and_no_other() {
    let mut rig = Rig::new();
    download(&mut rig);
    rig.reconnect_as(SocketAddr::new("10.77.0.9".parse().unwrap(), 40_000));
    download(&mut rig);
    assert_eq!(rig.stack.connections(), 2);
    let now_us = rig.now_us;
    assert_eq!(rig.stack.deny(now_us, client(), None), Ok(1));
    rig.received.clear();
    download(&mut rig);
    assert_eq!(rig.stack.connections(), 1);
    let closed = rig.app.events.iter().filter_map(|event| match event {
        AppEvent::Closed { reason, .. } => Some(*reason),
        _ => None,
    });
    assert_eq!(closed.collect::<Vec<_>>(), [CloseReason::Aborted]);

    // The peer gets RST, and nothing after that.
    let now_us = rig.now_us;
    let other = Prefix::network("10.77.0.9".parse().unwrap(), 32);
    assert_eq!(rig.stack.deny(now_us, other, None), Ok(1));
    rig.run_until(|rig| rig.client_closed.is_some());
    assert_eq!(rig.client_closed, Some(tcp::CloseReason::Reset));
}

#[test]
fn a_denial_is_over_when_its_time_is_or_when_it_is_taken_back() {
    let mut rig = Rig::new();
    let now_us = rig.now_us;
    rig.stack
        .deny(now_us, client(), Some(now_us + 3_000_000))
        .unwrap();
    is_ignored(&mut rig);
    // SYNs are repeated.
    rig.ask(&["1000"]);
    rig.run_until(|rig| rig.received == answer(1000));
    assert!(rig.now_us >= now_us + 3_000_000);

    let now_us = rig.now_us;
    rig.stack.deny(now_us, client(), None).unwrap();
    is_ignored(&mut rig);
    // A reload does not take it back.
    let now_us = rig.now_us;
    rig.stack.set_access(now_us, None, Networks::default());
    is_ignored(&mut rig);
    assert!(rig.stack.take_denial_back(rig.now_us, client()));
    rig.ask(&["1000"]);
    rig.run_until(|rig| rig.received == answer(1000));
}

#[test]
fn a_handshake_that_is_under_way_when_its_source_is_denied_opens_no_connection() {
    let mut rig = Rig::new();
    rig.client_is_mute = true;
    rig.ask(&["1000"]);
    let syn = rig.client.state();
    assert_eq!(syn, State::SynSent);
    rig.client_is_mute = false;
    rig.run_until(|rig| rig.stack.half_open() == 1);
    let now_us = rig.now_us;
    assert_eq!(rig.stack.deny(now_us, client(), None), Ok(0));
    pass(&mut rig, 1_000);
    assert_eq!(rig.stack.connections(), 0);
    assert!(rig.app.accepted.is_empty());
}

/// Says what a proxy says at the beginning of a connection of this client.
fn say(rig: &mut Rig, client: &str) {
    let (client, local) = (client.parse().unwrap(), "192.0.2.2:443".parse().unwrap());
    let mut bytes = Vec::new();
    proxy_protocol::build(Version::V2, Some((client, local)), &mut bytes);
    assert_eq!(rig.client.write(&bytes), bytes.len());
}

#[test]
fn clients_behind_a_proxy_are_denied_by_the_address_that_it_names() {
    let mut rig = Rig::new();
    rig.stack.set_proxies(proxies());
    let now_us = rig.now_us;
    (rig.stack).set_access(now_us, None, networks(&["192.0.2.0/25"]));
    say(&mut rig, "192.0.2.7:4711");
    rig.ask(&["1000"]);
    rig.run_until(|rig| rig.client_closed.is_some());
    assert_eq!(rig.client_closed, Some(tcp::CloseReason::Reset));
    assert!(rig.app.accepted.is_empty());
    assert_eq!(rig.stack.counters().clients_denied, 1);

    rig.reconnect();
    say(&mut rig, "192.0.2.200:4711");
    download(&mut rig);
    let (now_us, its) = (rig.now_us, networks(&["192.0.2.200/32"]));
    let (its, ()) = its.iter().next().unwrap();
    assert_eq!(rig.stack.deny(now_us, its, None), Ok(1));
    rig.run_until(|rig| rig.client_closed.is_some());
    assert_eq!(rig.stack.connections(), 0);
}

#[test]
fn connections_that_this_side_opens_are_none_of_its_clients() {
    let mut rig = Rig::new();
    let now_us = rig.now_us;
    let peer = SocketAddr::new(CLIENT.parse().unwrap(), 8_080);
    let stream = rig
        .stack
        .connect(now_us, host::app::Owner::SERVER, None, peer);
    assert!(stream.is_ok());
    assert_eq!(rig.stack.deny(now_us, client(), None), Ok(0));
    assert_eq!(rig.stack.connections(), 1);
}
