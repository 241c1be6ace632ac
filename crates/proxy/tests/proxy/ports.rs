//! Local ports of connections to backends.

use std::time::Duration;

use host::app::CloseReason;
use proxy::{Check, Version};

use crate::world::{GET, World, config};

const POST: &str = "POST /5 HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc";
const SOON: Duration = Duration::from_secs(1);

/// A world of so few ports, without timestamps, by which TIME-WAIT could be cut short.
fn world(config: proxy::Config, ports: u16) -> World {
    let mut world = World::with(config, &[9001], |stack| {
        stack.ephemeral_ports = 50_000..=50_000 + ports - 1;
        stack.tcp.timestamps = false;
    });
    world.apps.others.think = Some(Duration::from_micros(100));
    world
}

#[test]
fn many_more_posts_than_ports_are_all_answered() {
    for version in [None, Some(Version::V1)] {
        for idle_max in [0, 64] {
            let mut config = config(&[9001]);
            config.pools[0].send_proxy = version;
            config.pools[0].idle_max = idle_max;
            let mut world = world(config, 8);
            let client = world.connect();
            for number in 0..100 {
                let (status, _) = world.exchange(client, POST, SOON);
                assert_eq!(status, 200, "{version:?}, {idle_max}: {number}");
            }
            let is_reused = version.is_none() && idle_max > 0;
            let connects = if is_reused { 1 } else { 100 };
            assert_eq!(world.counters().backend_connects, connects);
            assert_eq!(world.counters().backend_ports_exhausted, 0);
        }
    }
}

#[test]
fn an_idle_connection_ends_by_a_reset_and_one_that_its_backend_closes_in_order() {
    let mut world = world(config(&[9001]), 8);
    let client = world.connect();
    world.exchange(client, GET, SOON);
    let backend = world.backend(9001);
    world.pass(Duration::from_secs(31));
    assert_eq!(world.heard(backend).closed, Some(CloseReason::Reset));
    world.exchange(client, GET, SOON);
    let backend = world.backend(9001);
    world.finish(backend);
    assert_eq!(world.heard(backend).closed, Some(CloseReason::Finished));
}

#[test]
fn without_a_port_a_request_is_refused_and_no_backend_to_blame() {
    let mut config = config(&[9001]);
    let interval = Duration::from_millis(500);
    config.pools[0].check = Some(Check {
        interval,
        fall: 1,
        ..Check::default()
    });
    let mut world = world(config, 2);
    world.apps.others.think = None;
    world.pass(interval);
    let clients: Vec<_> = (1000..1002)
        .map(|port| {
            let client = world.connect_from(&format!("10.77.0.3:{port}"));
            world.send(client, GET);
            client
        })
        .collect();
    let refused = world.connect_from("10.77.0.3:1002");
    world.send(refused, GET);
    let answer = world.take(refused);
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.ends_with("no port is left for a connection to a backend\n"));
    world.pass(4 * interval);
    let counters = world.counters();
    assert!(counters.backend_ports_exhausted > 1, "checks included");
    assert_eq!((counters.backends_up, counters.checks_failed), (1, 0));
    // A port becomes free.
    world.abort(clients[0]);
    world.send(refused, GET);
    assert!(world.take(refused).is_empty());
    assert!(world.accepted(9001).len() > 2);
}
