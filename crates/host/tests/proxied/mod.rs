//! Connections that trusted proxies pass on, by a header of the PROXY protocol.

use std::net::SocketAddr;
use std::time::Duration;

use client_address::Prefix;
use client_address::proxy_protocol::{self, HEADER_BYTES_MAX, Version};
use host::app::{AppEvent, Proxied};
use host::{HeaderPort, Proxies};
use tcp::State;

use crate::rig::{CLIENT, Rig, answer};

const TIMEOUT: Duration = Duration::from_secs(15);

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn networks(address: &str, bits: u8) -> Vec<Prefix> {
    let address = address.parse().unwrap();
    vec![Prefix { address, bits }]
}

/// Proxies that send headers to port 80 from the network of the rig's client.
pub(crate) fn proxies() -> Proxies {
    Proxies {
        header_ports: vec![HeaderPort {
            port: 80,
            networks: networks(CLIENT, 24),
            timeout: TIMEOUT,
        }],
        forwarding: Vec::new(),
    }
}

fn rig() -> Rig {
    let mut rig = Rig::new();
    rig.stack.set_proxies(proxies());
    rig
}

pub(crate) fn header(version: Version, client: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let local = match client.starts_with('[') {
        true => "[2001:db8::2]:443",
        false => "192.0.2.2:443",
    };
    let addresses = Some((address(client), address(local)));
    proxy_protocol::build(version, addresses, &mut bytes);
    bytes
}

fn say(rig: &mut Rig, bytes: &[u8]) {
    assert_eq!(rig.client.write(bytes), bytes.len());
}

fn pass(rig: &mut Rig, steps: usize) {
    for _ in 0..steps {
        rig.step();
    }
}

fn accepted(rig: &Rig) -> Vec<(SocketAddr, Option<Proxied>)> {
    let events = rig.app.events.iter();
    let accepted = events.filter_map(|event| match event {
        AppEvent::Accepted { peer, proxied, .. } => Some((*peer, proxied.as_deref().copied())),
        _ => None,
    });
    accepted.collect()
}

#[test]
fn the_header_names_the_client_and_the_rest_is_for_the_application() {
    for version in [Version::V1, Version::V2] {
        for (client, local) in [
            ("192.0.2.7:4711", "192.0.2.2:443"),
            ("[2001:db8::7]:4711", "[2001:db8::2]:443"),
        ] {
            let mut rig = rig();
            say(&mut rig, &header(version, client));
            rig.ask(&["5000"]);
            rig.run_until(|rig| rig.received.len() == 5_002);
            assert!(rig.received == answer(5_000));
            let proxied = Proxied {
                client: address(client),
                local: address(local),
            };
            let peer = SocketAddr::new(CLIENT.parse().unwrap(), 40_000);
            assert_eq!(accepted(&rig), [(peer, Some(proxied))]);
            assert_eq!(rig.stack.counters().proxy_headers_invalid, 0);
        }
    }
}

#[test]
fn a_header_may_come_byte_by_byte_and_the_application_hears_nothing_before() {
    for version in [Version::V1, Version::V2] {
        let mut rig = rig();
        rig.run_until(|rig| rig.client.state() == State::Established);
        let bytes = header(version, "192.0.2.7:4711");
        for byte in bytes {
            pass(&mut rig, 20);
            assert_eq!(rig.app.events, []);
            say(&mut rig, &[byte]);
        }
        pass(&mut rig, 20);
        assert_eq!(accepted(&rig).len(), 1);
        rig.ask(&["10"]);
        rig.run_until(|rig| rig.received.len() == 12);
        assert_eq!(rig.received, answer(10));
    }
}

#[test]
fn the_longest_header_is_taken_and_a_longer_one_is_not() {
    let of = |rest: usize| {
        let mut bytes = header(Version::V2, "192.0.2.7:4711");
        bytes[14..16].copy_from_slice(&(rest as u16).to_be_bytes());
        bytes.resize(16 + rest, 0);
        bytes
    };
    let longest = HEADER_BYTES_MAX - 16;
    for (rest, is_good) in [(longest, true), (longest + 1, false)] {
        let mut rig = rig();
        say(&mut rig, &of(rest));
        rig.ask(&["10"]);
        match is_good {
            true => rig.run_until(|rig| rig.received.len() == 12),
            false => rig.run_until(|rig| rig.client_closed.is_some()),
        }
        let invalid = rig.stack.counters().proxy_headers_invalid;
        assert_eq!(invalid, u64::from(!is_good));
        assert_eq!(accepted(&rig).len(), usize::from(is_good));
    }
}

#[test]
fn a_header_of_the_proxys_own_connection_names_nobody() {
    for bytes in [&b"PROXY UNKNOWN\r\n"[..], b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"] {
        let mut rig = rig();
        say(&mut rig, bytes);
        rig.ask(&["10"]);
        rig.run_until(|rig| rig.received.len() == 12);
        let peer = SocketAddr::new(CLIENT.parse().unwrap(), 40_000);
        assert_eq!(accepted(&rig), [(peer, None)]);
    }
}

#[test]
fn a_connection_without_a_header_is_reset_and_counted() {
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"PROXY TCP4 192.0.2.7 192.0.2.2 1\r\n",
        b"\r\n\r\n\0\r\nQUIT\n\x31\x11\0\0",
    ] {
        let mut rig = rig();
        say(&mut rig, bytes);
        rig.run_until(|rig| rig.client_closed.is_some());
        assert_eq!(rig.client_closed, Some(tcp::CloseReason::Reset));
        pass(&mut rig, 5);
        assert_eq!(rig.app.events, []);
        assert_eq!(rig.stack.counters().proxy_headers_invalid, 1);
        assert_eq!(rig.stack.usage().connections, 0);
    }
}

#[test]
fn a_header_that_does_not_come_in_time_or_ends_too_soon_is_none() {
    for bytes in [&b""[..], b"PROXY TCP4 ", b"\r\n\r\n\0"] {
        let mut rig = rig();
        say(&mut rig, bytes);
        let begun_us = rig.now_us;
        rig.run_until(|rig| rig.client_closed.is_some());
        let waited = Duration::from_micros(rig.now_us - begun_us);
        assert!((TIMEOUT..TIMEOUT * 2).contains(&waited), "{waited:?}");
        assert_eq!(rig.stack.counters().proxy_headers_invalid, 1);

        rig.reconnect();
        say(&mut rig, bytes);
        rig.client.shutdown();
        let is_over = |rig: &Rig| rig.client.state() == State::TimeWait;
        rig.run_until(|rig| rig.client_closed.is_some() || is_over(rig));
        pass(&mut rig, 5);
        assert_eq!(rig.stack.usage().connections, 0);
        assert_eq!(rig.app.events, []);
        // A connection without a byte is a health check.
        let invalid = 1 + u64::from(!bytes.is_empty());
        assert_eq!(rig.stack.counters().proxy_headers_invalid, invalid);
        let ends_in_order = rig.client_closed != Some(tcp::CloseReason::Reset);
        assert_eq!(ends_in_order, bytes.is_empty());
    }
}

#[test]
fn others_are_served_as_they_come() {
    let mut rig = Rig::new();
    rig.stack.set_proxies(Proxies {
        header_ports: vec![
            HeaderPort {
                port: 80,
                networks: networks("10.78.0.0", 16),
                timeout: TIMEOUT,
            },
            HeaderPort {
                port: 81,
                networks: networks(CLIENT, 24),
                timeout: TIMEOUT,
            },
        ],
        forwarding: Vec::new(),
    });
    rig.ask(&["10"]);
    rig.run_until(|rig| rig.received.len() == 12);
    // The line is one of its requests.
    say(&mut rig, &header(Version::V1, "192.0.2.7:4711"));
    pass(&mut rig, 50);
    let peer = SocketAddr::new(CLIENT.parse().unwrap(), 40_000);
    assert_eq!(accepted(&rig), [(peer, None)]);
    assert_eq!(rig.stack.counters().proxy_headers_invalid, 0);
}

#[test]
fn a_change_is_for_connections_that_begin_then() {
    let mut rig = rig();
    rig.run_until(|rig| rig.client.state() == State::Established);
    pass(&mut rig, 5);
    rig.stack.set_proxies(Proxies::default());
    say(&mut rig, &header(Version::V2, "192.0.2.7:4711"));
    rig.ask(&["10"]);
    rig.run_until(|rig| rig.received.len() == 12);
    assert!(accepted(&rig)[0].1.is_some());
    rig.reconnect();
    rig.ask(&["10"]);
    rig.run_until(|rig| rig.received.len() == 12);
    assert!(accepted(&rig)[1].1.is_none());
}

#[test]
fn clients_count_as_sources_and_the_proxy_does_not() {
    let mut rig = Rig::with(|config| config.admission.connections_per_source = Some(1));
    rig.stack.set_proxies(proxies());
    let ask = |rig: &mut Rig, client: &str| {
        say(rig, &header(Version::V1, client));
        rig.ask(&["10"]);
    };
    for client in ["192.0.2.7:1", "192.0.2.8:1", "[2001:db8::7]:1"] {
        ask(&mut rig, client);
        rig.run_until(|rig| rig.received.len() == 12);
        rig.reconnect();
    }
    ask(&mut rig, "192.0.2.7:2");
    rig.run_until(|rig| rig.client_closed.is_some());
    let counters = rig.stack.counters();
    assert_eq!(
        (counters.sources_refused, counters.proxy_headers_invalid),
        (1, 0)
    );
    // When it ends, another may come.
    let first = rig.app.accepted[0];
    rig.app.does = Some(Box::new(move |io| io.abort(first)));
    rig.reconnect();
    ask(&mut rig, "192.0.2.9:1");
    rig.run_until(|rig| rig.received.len() == 12);
    pass(&mut rig, 5);
    rig.reconnect();
    ask(&mut rig, "192.0.2.7:3");
    rig.run_until(|rig| rig.received.len() == 12);
    assert_eq!(rig.stack.counters().sources_refused, 1);
}

#[test]
fn a_proxy_that_names_clients_in_requests_may_have_many_connections() {
    let mut rig = Rig::with(|config| config.admission.connections_per_source = Some(1));
    for (forwarding, is_accepted) in [(networks(CLIENT, 32), true), (Vec::new(), false)] {
        rig.stack.set_proxies(Proxies {
            header_ports: Vec::new(),
            forwarding,
        });
        if is_accepted {
            rig.ask(&["10"]);
            rig.run_until(|rig| rig.received.len() == 12);
            rig.reconnect();
        }
        rig.ask(&["10"]);
        match is_accepted {
            true => rig.run_until(|rig| rig.received.len() == 12),
            false => pass(&mut rig, 1000),
        }
        assert_eq!(rig.client.state() == State::Established, is_accepted);
        rig.reconnect();
    }
}
