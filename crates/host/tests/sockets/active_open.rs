//! Connections that an application opens.

use std::net::SocketAddr;

use host::app::{AppEvent, CloseReason, ConnectError, Owner, StreamId};

use crate::pair::Pair;

#[test]
fn a_connection_that_was_opened_carries_text_both_ways_and_ends() {
    let mut pair = Pair::new();
    pair.exchange();
    let counters = pair.client.stack.counters();
    assert_eq!(
        (counters.connections_opened, counters.connections_accepted),
        (1, 0)
    );
    assert_eq!(pair.server.stack.counters().connections_accepted, 1);
}

#[test]
fn what_is_lost_of_the_handshake_is_sent_again() {
    for lost in 1..6 {
        let mut pair = Pair::new();
        // ARP has its own retransmissions, and gives up earlier.
        pair.exchange();
        pair.lost = lost;
        pair.exchange();
    }
}

#[test]
fn a_port_that_no_server_has_refuses_and_an_address_without_a_machine_is_unreachable() {
    let mut pair = Pair::new();
    pair.connect("10.77.0.2:81").unwrap();
    pair.run_until(|pair| pair.client.app.server.closed().is_some());
    assert_eq!(pair.client.app.server.closed(), Some(CloseReason::Refused));
    assert!(!pair.client.app.server.has(&AppEvent::Connected));

    // On the link, and behind a gateway that there is not.
    for nowhere in ["10.77.0.9:80", "192.0.2.1:80"] {
        pair.client.app.server.events.clear();
        let begun_us = pair.now_us;
        pair.connect(nowhere).unwrap();
        pair.run_until(|pair| pair.client.app.server.closed().is_some());
        assert_eq!(
            pair.client.app.server.closed(),
            Some(CloseReason::Unreachable)
        );
        assert!(
            pair.now_us - begun_us < 10_000_000,
            "as soon as ARP gives up"
        );
    }
    assert_eq!(pair.client.stack.connections(), 0);
}

#[test]
fn a_server_that_does_not_answer_is_given_up() {
    let mut pair = Pair::new();
    // The neighbour is known.
    pair.exchange();
    pair.is_cut = true;
    pair.client.app.server.events.clear();
    pair.connect("10.77.0.2:80").unwrap();
    pair.run_until(|pair| pair.client.app.server.closed().is_some());
    assert!(matches!(
        pair.client.app.server.closed(),
        Some(CloseReason::TimedOut | CloseReason::Unreachable)
    ));
}

#[test]
fn ports_are_used_once_to_each_peer_and_again_after_time_wait() {
    let mut pair = Pair::new();
    let server = "10.77.0.2:80";
    for _ in 0..2 {
        pair.connect(server).unwrap();
    }
    assert_eq!(pair.connect(server), Err(ConnectError::NoPort));
    // To another peer, the same ports are free.
    pair.connect("10.77.0.2:81").unwrap();
    pair.run_until(|pair| {
        let connected = |(_, event): &&(StreamId, AppEvent)| *event == AppEvent::Connected;
        pair.client
            .app
            .server
            .events
            .iter()
            .filter(connected)
            .count()
            == 2
    });

    // This side closes first, so that TIME-WAIT is here: for a second nothing may follow, then the
    // timestamps tell both apart.
    let mut pair = Pair::new();
    pair.exchange();
    pair.exchange();
    assert_eq!(pair.connect(server), Err(ConnectError::NoPort));
    let until_us = pair.now_us + 1_100_000;
    pair.run_until(|pair| pair.now_us >= until_us);
    pair.exchange();
}

#[test]
fn where_an_address_has_no_port_left_another_one_of_its_network_has() {
    let mut pair = Pair::with_addresses(&["10.77.0.1", "10.99.0.1", "10.77.0.3"], 50_000..=50_001);
    let server = "10.77.0.2:80";
    for _ in 0..4 {
        pair.connect(server).unwrap();
    }
    assert_eq!(pair.connect(server), Err(ConnectError::NoPort));
    assert_eq!(pair.client.stack.counters().ports_exhausted, 1);
    pair.run_until(|pair| pair.server.stack.counters().connections_accepted == 4);
    let mut peers: Vec<String> = pair
        .server
        .app
        .server
        .events
        .iter()
        .filter_map(|(_, event)| match event {
            AppEvent::Accepted { peer, .. } => Some(peer.ip().to_string()),
            _ => None,
        })
        .collect();
    peers.sort();
    assert_eq!(peers, ["10.77.0.1", "10.77.0.1", "10.77.0.3", "10.77.0.3"]);
    // An address that the application names is the only one.
    let remote: SocketAddr = server.parse().unwrap();
    let named = "10.77.0.1:0".parse().unwrap();
    let now_us = pair.now_us;
    let stack = &mut pair.client.stack;
    let connected = stack.connect(now_us, Owner::SERVER, Some(named), remote);
    assert_eq!(connected, Err(ConnectError::NoPort));
}

#[test]
fn a_port_that_is_freed_is_used_at_once_where_there_was_none() {
    let mut pair = Pair::with_ports(50_000..=50_999);
    let server = "10.77.0.2:80";
    let streams: Vec<StreamId> = (0..1_000).map(|_| pair.connect(server).unwrap()).collect();
    for place in [700, 3] {
        for _ in 0..3 {
            assert_eq!(pair.connect(server), Err(ConnectError::NoPort));
        }
        let now_us = pair.now_us;
        pair.client.act(now_us, |io| io.abort(streams[place]));
        pair.run_until(|pair| pair.client.stack.connections() == 999);
        pair.connect(server).unwrap();
    }
}

#[test]
fn addresses_and_ports_that_are_named_are_used_or_refused() {
    let mut pair = Pair::new();
    let server: SocketAddr = "10.77.0.2:80".parse().unwrap();
    let mut connect = |local: &str, to: SocketAddr| {
        let local = local.parse().unwrap();
        pair.client
            .stack
            .connect(pair.now_us, Owner::SERVER, Some(local), to)
    };
    assert!(connect("10.77.0.1:4000", server).is_ok());
    assert_eq!(
        connect("0.0.0.0:4000", server),
        Err(ConnectError::PortInUse)
    );
    assert!(connect("0.0.0.0:4001", server).is_ok());
    assert_eq!(connect("10.77.0.3:0", server), Err(ConnectError::NoAddress));
    assert_eq!(connect("[::]:0", server), Err(ConnectError::NoAddress));
    assert_eq!(pair.connect("[fd77::2]:80"), Err(ConnectError::NoAddress));
    let info: Vec<_> = pair
        .client
        .stack
        .connections_from(0, pair.now_us)
        .filter_map(|(_, info)| info)
        .map(|info| info.local)
        .collect();
    let named = ["10.77.0.1:4000", "10.77.0.1:4001"].map(|text| text.parse().unwrap());
    assert_eq!(info, named);
}
