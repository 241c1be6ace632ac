//! TCP mode: tunnels, server names, the PROXY protocol.

use std::time::Duration;

use proxy::{Config, Mode, Prefix, Rule, Version};

use crate::world::{GET, World, config, listener, pool, response};

fn tcp(ports: &[u16]) -> Config {
    Config {
        listeners: vec![listener(Mode::Tcp)],
        ..config(ports)
    }
}

#[test]
fn bytes_and_ends_go_both_ways() {
    let mut world = World::new(tcp(&[9001]), &[9001]);
    // Servers may speak first.
    let client = world.connect();
    let backend = world.backend(9001);
    world.send(backend, "220 hello\r\n");
    assert_eq!(world.take(client), "220 hello\r\n");
    world.send(client, "EHLO");
    world.finish(client);
    assert_eq!(world.take(backend), "EHLO");
    assert!(world.heard(backend).has_finished && !world.heard(client).has_finished);
    world.send(backend, "250 ok");
    world.finish(backend);
    assert_eq!(world.take(client), "250 ok");
    assert!(world.heard(client).has_finished);
    assert_eq!((world.proxy().sessions(), world.counters().tunnels), (0, 1));
    assert_eq!(world.records(), ["200 b9001 0 17 "]);
}

#[test]
fn a_reset_of_either_side_reaches_the_other() {
    let mut world = World::new(tcp(&[9001]), &[9001]);
    for is_client in [true, false] {
        let client = world.connect();
        let backend = world.backend(9001);
        world.abort(if is_client { client } else { backend });
        let other = if is_client { backend } else { client };
        assert!(world.heard(other).closed.is_some());
        assert_eq!(world.proxy().sessions(), 0);
    }
}

#[test]
fn a_client_without_a_backend_is_reset_and_the_next_backend_is_tried_first() {
    let mut world = World::new(tcp(&[9001, 9002]), &[9002]);
    world.connect();
    assert_eq!(
        (world.accepted(9002).len(), world.counters().retries),
        (1, 1)
    );
    let mut world = World::new(tcp(&[9001]), &[]);
    let client = world.connect();
    assert!(world.heard(client).closed.is_some());
    assert_eq!(world.records(), ["502 - 0 0 "]);
}

#[test]
fn what_comes_before_an_end_is_not_lost_when_its_receiver_is_slow() {
    for is_upload in [false, true] {
        for size in (1..20).map(|step| step * 100_000) {
            let mut world = World::new(tcp(&[9001]), &[9001]);
            let client = world.connect();
            let backend = world.backend(9001);
            let (from, to) = match is_upload {
                true => (client, backend),
                false => (backend, client),
            };
            // The other direction has ended, so that the sender's connection is over with its FIN.
            world.finish(to);
            world.apps.others.is_stalled = true;
            let bytes: Vec<u8> = (0..size).map(|at: u32| (at / 5) as u8).collect();
            world.send(from, &bytes);
            world.finish(from);
            world.pass(Duration::from_secs(1));
            world.resume();
            world.pass(Duration::from_secs(5));
            let heard = world.heard(to);
            assert!(
                heard.received == bytes,
                "{} of {size}",
                heard.received.len()
            );
            assert!(heard.has_finished && world.proxy().sessions() == 0);
        }
    }
}

/// Both ends of each connection are on the stack here, and no NIC stack has such a one.
#[test]
fn a_tunnel_that_cannot_be_spliced_is_copied_and_asked_for_once() {
    let config = Config {
        splice: true,
        ..tcp(&[9001])
    };
    let mut world = World::new(config, &[9001]);
    let client = world.connect();
    let backend = world.backend(9001);
    let bytes: Vec<u8> = (0..300_000u32).map(|at| (at / 7) as u8).collect();
    let (short, rest) = bytes.split_at(1000);
    world.send(client, short);
    world.pass(Duration::from_secs(1));
    let counters = world.counters();
    assert_eq!((counters.splices, counters.splices_refused), (0, 0));
    world.send(client, rest);
    world.finish(client);
    world.pass(Duration::from_secs(5));
    assert!(world.heard(backend).received == bytes);
    assert!(world.heard(backend).has_finished);
    let counters = world.counters();
    assert_eq!((counters.splices, counters.splices_refused), (0, 1));
    assert_eq!(counters.spliced_bytes, 0);
}

#[test]
fn an_idle_tunnel_ends() {
    let config = Config {
        tunnel_timeout: Duration::from_secs(10),
        ..tcp(&[9001])
    };
    let mut world = World::new(config, &[9001]);
    let client = world.connect();
    let backend = world.backend(9001);
    for _ in 0..3 {
        world.pass(Duration::from_secs(8));
        world.send(backend, "x");
    }
    assert_eq!(world.take(client), "xxx");
    world.pass(Duration::from_secs(11));
    assert!(world.heard(client).closed.is_some() && world.heard(backend).closed.is_some());
}

/// A ClientHello with a server name, as short as may be.
fn hello(name: &str) -> Vec<u8> {
    let with_length = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat();
    let name = [&[0][..], &with_length(name.as_bytes())].concat();
    let extension = [&[0, 0][..], &with_length(&with_length(&name))].concat();
    let body = [
        &[3, 3][..],
        &[7; 32],
        &[0, 0, 2, 0x13, 1, 1, 0],
        &with_length(&extension),
    ]
    .concat();
    let message = [&[1, 0][..], &with_length(&body)].concat();
    [&[22, 3, 1][..], &with_length(&message)].concat()
}

#[test]
fn the_server_name_of_tls_finds_the_pool_and_tls_is_left_alone() {
    let mut listener = listener(Mode::Tcp);
    listener.rules = vec![Rule {
        hosts: vec!["*.a.org".parse().unwrap()],
        path_prefixes: Vec::new(),
        pool: 1,
    }];
    let config = Config {
        listeners: vec![listener],
        pools: vec![pool("rest", &[9001]), pool("a", &[9002])],
        ..Config::default()
    };
    let mut world = World::new(config, &[9001, 9002]);
    for (bytes, port) in [
        (hello("www.A.org"), 9002),
        (hello("a.org"), 9001),
        (b"SSH-2.0-x\r\n".to_vec(), 9001),
    ] {
        let client = world.connect();
        let (first, rest) = bytes.split_at(bytes.len() / 2);
        world.send(client, first);
        world.send(client, rest);
        let backend = world.backend(port);
        assert_eq!(
            std::mem::take(&mut world.apps.others.heard.get_mut(&backend).unwrap().received),
            bytes
        );
    }
}

pub(crate) fn trusting(mut config: Config, bits: u8) -> Config {
    config.listeners[0].proxy_from = vec![Prefix {
        address: "10.77.0.0".parse().unwrap(),
        bits,
    }];
    config
}

#[test]
fn a_proxy_header_of_a_trusted_source_names_the_client() {
    for version in [Version::V1, Version::V2] {
        let mut config = trusting(tcp(&[9001]), 24);
        config.pools[0].send_proxy = Some(version);
        let mut world = World::new(config, &[9001]);
        let client = world.client("PROXY TCP4 192.0.2.7 10.77.0.9 4711 443\r\nhello");
        let backend = world.backend(9001);
        let bytes =
            std::mem::take(&mut world.apps.others.heard.get_mut(&backend).unwrap().received);
        let header = match version {
            Version::V1 => b"PROXY TCP4 192.0.2.7 10.77.0.9 4711 443\r\n".to_vec(),
            Version::V2 => [
                &b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"[..],
                &[192, 0, 2, 7, 10, 77, 0, 9],
                &4711u16.to_be_bytes(),
                &443u16.to_be_bytes(),
            ]
            .concat(),
        };
        assert_eq!(bytes, [&header[..], b"hello"].concat());
        world.abort(client);
    }
    // Over HTTP, the fields name it as well, and connections are not shared.
    let mut config = trusting(config(&[9001]), 24);
    config.pools[0].send_proxy = Some(Version::V1);
    let mut world = World::new(config, &[9001]);
    for source in ["192.0.2.7", "192.0.2.8"] {
        let client = world.client(&format!("PROXY TCP4 {source} 10.77.0.9 4711 80\r\n{GET}"));
        let backend = world.backend(9001);
        let request = world.take(backend);
        assert!(request.starts_with(&format!("PROXY TCP4 {source} 10.77.0.9 4711 80\r\nGET / ")));
        assert!(
            request.contains(&format!("\r\nX-Forwarded-For: {source}\r\n")),
            "{request}"
        );
        world.send(backend, response("x"));
        assert!(world.take(client).ends_with("x"));
    }
    assert_eq!(world.accepted(9001).len(), 2);
}

#[test]
fn a_proxy_header_of_others_is_none() {
    let header = "PROXY TCP4 192.0.2.7 10.77.0.9 4711 443\r\n";
    let mut world = World::new(trusting(config(&[9001]), 32), &[9001]);
    let client = world.client(&format!("{header}{GET}"));
    assert!(
        world
            .take(client)
            .starts_with("HTTP/1.1 400 Bad Request\r\n")
    );
    let mut world = World::new(trusting(config(&[9001]), 24), &[9001]);
    let client = world.client(GET);
    assert!(world.heard(client).closed.is_some() && world.take(client).is_empty());
    assert_eq!(world.stack_counters().proxy_headers_invalid, 1);
}
