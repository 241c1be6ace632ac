//! Backends that fail before a response.

use std::num::NonZeroU32;
use std::time::Duration;

use proxy::Config;

use crate::world::{GET, World, config, response};

#[test]
fn a_backend_that_refuses_is_passed_over() {
    let mut world = World::new(config(&[9001, 9002]), &[9002]);
    let client = world.client(GET);
    let backend = world.backend(9002);
    world.send(backend, response("x"));
    assert!(world.take(client).ends_with("x"));
    assert_eq!(world.records(), ["200 b9002 1 1 GET / HTTP/1.1"]);
    // Whatever the method is: nothing was sent.
    let client = world.client("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc");
    let backend = world.backend(9002);
    assert!(world.take(backend).ends_with("\r\n\r\nabc"));
    world.send(backend, response("y"));
    assert!(world.take(client).ends_with("y"));
}

#[test]
fn where_all_refuse_the_gateway_is_bad() {
    let mut world = World::new(config(&[9001, 9002, 9003, 9004]), &[]);
    let client = world.client(GET);
    let answer = world.take(client);
    assert!(
        answer.starts_with("HTTP/1.1 502 Bad Gateway\r\n"),
        "{answer}"
    );
    assert!(answer.ends_with("no backend could be reached\n"));
    let counters = world.counters();
    assert_eq!((counters.backend_connects, counters.retries), (3, 2));
    // The client's connection goes on.
    world.listen(9004);
    world.send(client, GET);
    assert_eq!(world.accepted(9004).len(), 1);
}

#[test]
fn what_may_be_sent_twice_is_when_a_backend_dies_before_a_response() {
    let mut world = World::new(config(&[9001, 9002]), &[9001, 9002]);
    let client = world.client(GET);
    let dead = world.backend(9001);
    world.abort(dead);
    let backend = world.backend(9002);
    assert!(world.take(backend).starts_with("GET / "));
    world.finish(backend);
    let answer = world.take(client);
    assert!(
        answer.starts_with("HTTP/1.1 502 Bad Gateway\r\n"),
        "{answer}"
    );
    assert!(answer.ends_with("without a response\n"), "{answer}");
    assert_eq!(world.counters().backend_failures, 2);
}

#[test]
fn what_may_not_be_sent_twice_is_not() {
    for text in [
        "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n",
        "PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc",
    ] {
        let mut world = World::new(config(&[9001, 9002]), &[9001, 9002]);
        let client = world.client(text);
        let dead = world.backend(9001);
        world.abort(dead);
        assert!(world.accepted(9002).is_empty(), "{text}");
        assert!(
            world
                .take(client)
                .starts_with("HTTP/1.1 502 Bad Gateway\r\n")
        );
    }
}

#[test]
fn a_response_that_has_begun_is_not_asked_for_again() {
    let mut world = World::new(config(&[9001, 9002]), &[9001, 9002]);
    let client = world.client(GET);
    let backend = world.backend(9001);
    world.send(backend, "HTTP/1.1 200");
    world.abort(backend);
    assert!(world.accepted(9002).is_empty());
    assert!(
        world
            .take(client)
            .starts_with("HTTP/1.1 502 Bad Gateway\r\n")
    );
}

#[test]
fn a_connection_that_was_closed_while_it_waited_costs_no_backend() {
    let mut config = config(&[9001]);
    config.pools[0].retries = 0;
    let mut world = World::new(config, &[9001]);
    let client = world.client(GET);
    let first = world.backend(9001);
    world.send(first, response("x"));
    world.take(client);
    // The request and the end of the connection cross.
    world.send(client, GET);
    world.abort(first);
    let second = world.backend(9001);
    assert_ne!(second, first);
    world.send(second, response("y"));
    assert!(world.take(client).ends_with("y"));
    assert_eq!(world.counters().backend_failures, 0);
}

#[test]
fn what_cannot_be_sent_twice_goes_only_where_a_response_has_just_ended() {
    let mut world = World::new(config(&[9001]), &[9001]);
    let client = world.client(GET);
    let first = world.backend(9001);
    world.send(first, response("x"));
    let post = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc";
    world.pass(Duration::from_millis(500));
    world.send(client, post);
    assert_eq!(world.backend(9001), first);
    world.send(first, response("y"));
    world.pass(Duration::from_millis(1100));
    world.send(client, post);
    let second = world.backend(9001);
    assert_ne!(second, first);
    world.send(second, response("z"));
    // A GET may be sent twice, and goes where any response has ended.
    world.pass(Duration::from_millis(1100));
    world.send(client, GET);
    assert_eq!(world.accepted(9001).len(), 2);
}

#[test]
fn requests_wait_for_a_backend_that_is_full_and_not_for_ever() {
    let mut base = config(&[9001]);
    base.pools[0].connections_max = NonZeroU32::MIN;
    base.pools[0].queue_max = 2;
    base.pools[0].queue_timeout = Duration::from_secs(3);
    let mut world = World::new(Config { ..base }, &[9001]);
    let clients: Vec<_> = (0..4).map(|_| world.client(GET)).collect();
    let answer = world.take(clients[3]);
    assert!(
        answer.starts_with("HTTP/1.1 503 Service Unavailable\r\n"),
        "{answer}"
    );
    assert!(answer.ends_with("too many requests wait for a backend\n"));
    let backend = world.backend(9001);
    assert!(world.take(backend).starts_with("GET"));
    world.send(backend, response("one"));
    assert!(world.take(clients[0]).ends_with("one"));
    assert!(
        world.take(backend).starts_with("GET"),
        "the next one goes on the same connection"
    );
    world.pass(Duration::from_secs(4));
    assert!(
        world
            .take(clients[2])
            .ends_with("no backend has become free in time\n")
    );
    world.send(backend, response("two"));
    assert!(world.take(clients[1]).ends_with("two"));
    let counters = world.counters();
    assert_eq!((counters.queued, counters.queue_timeouts), (2, 1));
    assert_eq!(world.accepted(9001).len(), 1);
}
