//! Other configurations, and the end.

use std::sync::atomic::Ordering;
use std::time::Duration;

use proxy::{Config, Mode};

use crate::world::{GET, World, config, listener, pool, response};

#[test]
fn another_configuration_holds_from_the_next_request_on() {
    let mut world = World::new(config(&[9001]), &[9001, 9002]);
    let client = world.client(GET);
    let idle = world.client(GET);
    let [busy, spare] = world.accepted(9001)[..] else {
        panic!("two connections");
    };
    world.send(spare, response("x"));
    assert!(world.take(idle).ends_with("x"));
    world.proxy().reconfigure(config(&[9002]));
    world.settle();
    assert!(world.has_ended(spare), "its backend is gone");
    world.send(busy, response("y"));
    assert!(
        world.take(client).ends_with("y"),
        "the request in hand goes on"
    );
    assert!(world.has_ended(busy));
    world.send(client, GET);
    assert_eq!(world.accepted(9002).len(), 1);
}

#[test]
fn a_backend_that_drains_gets_nothing_new_and_finishes_what_it_has() {
    let mut world = World::new(config(&[9001, 9002]), &[9001, 9002]);
    let client = world.client(GET);
    let mut drained = config(&[9001, 9002]);
    drained.pools[0].backends[0].drains = true;
    world.proxy().reconfigure(drained);
    for _ in 0..3 {
        world.client(GET);
    }
    let counts = [9001, 9002].map(|port| world.accepted(port).len());
    assert_eq!(counts, [1, 3]);
    let backend = world.backend(9001);
    world.send(backend, response("x"));
    assert!(world.take(client).ends_with("x") && world.has_ended(backend));
}

#[test]
fn a_pool_that_is_gone_has_no_backend_for_those_who_wait() {
    let mut first = config(&[9001]);
    first.pools[0].connections_max = std::num::NonZeroU32::MIN;
    let mut world = World::new(first, &[9001, 9002]);
    let (one, waits) = (world.client(GET), world.client(GET));
    let other = Config {
        pools: vec![pool("other", &[9002])],
        ..config(&[])
    };
    world.proxy().reconfigure(other);
    world.settle();
    assert!(
        world
            .take(waits)
            .starts_with("HTTP/1.1 503 Service Unavailable\r\n")
    );
    let backend = world.backend(9001);
    world.send(backend, response("x"));
    assert!(world.take(one).ends_with("x"));
    assert_eq!(world.accepted(9002).len(), 0);
}

#[test]
fn draining_ends_connections_between_requests_and_loses_no_response() {
    let mut world = World::new(config(&[9001]), &[9001]);
    let idle = world.client(GET);
    let backend = world.backend(9001);
    world.send(backend, response("x"));
    assert!(world.take(idle).ends_with("x"));
    let busy = world.client(GET);
    let is_empty = world.drain();
    assert!(world.has_ended(idle) && !world.has_ended(busy));
    assert!(!is_empty.load(Ordering::Relaxed));
    world.send(world.backend(9001), response("y"));
    let answer = world.take(busy);
    assert!(
        answer.contains("\r\nConnection: close\r\n") && answer.ends_with("y"),
        "{answer}"
    );
    assert!(world.has_ended(busy) && world.has_ended(backend));
    for client in [idle, busy] {
        world.finish(client);
    }
    world.pass(Duration::from_secs(1));
    assert!(is_empty.load(Ordering::Relaxed) && world.proxy().sessions() == 0);
}

#[test]
fn draining_lets_tunnels_end_by_themselves() {
    let tcp = Config {
        listeners: vec![listener(Mode::Tcp)],
        ..config(&[9001])
    };
    let mut world = World::new(tcp, &[9001]);
    let client = world.connect();
    let is_empty = world.drain();
    let backend = world.backend(9001);
    world.send(backend, "x");
    assert_eq!(world.take(client), "x");
    world.finish(client);
    world.finish(backend);
    world.pass(Duration::from_secs(1));
    assert!(is_empty.load(Ordering::Relaxed));
}

#[test]
fn a_client_that_goes_away_takes_its_request_along() {
    let mut world = World::new(config(&[9001]), &[9001]);
    let client = world.client(GET);
    let backend = world.backend(9001);
    world.abort(client);
    assert!(world.heard(backend).closed.is_some());
    assert_eq!(world.proxy().sessions(), 0);
    assert_eq!(world.records(), ["499 b9001 0 0 GET / HTTP/1.1"]);
}
