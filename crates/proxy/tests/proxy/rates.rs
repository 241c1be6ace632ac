//! Clients that send or take a body slower than the least rate, or just fast enough.

use std::num::NonZeroU64;
use std::time::Duration;

use host::app::StreamId;

use crate::world::{World, config, response};

const EVERY: Duration = Duration::from_secs(5);

/// Sends so many bytes every five seconds, until there is a response or all are sent.
fn trickle(world: &mut World, client: StreamId, bytes: usize, times: usize) -> usize {
    for time in 0..times {
        if !world.heard(client).received.is_empty() {
            return time;
        }
        world.send(client, vec![b'x'; bytes]);
        world.pass(EVERY);
    }
    times
}

fn post(bytes: usize) -> String {
    format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {bytes}\r\n\r\n")
}

#[test]
fn a_body_that_trickles_gets_408_and_no_backend_until_it_is_long_enough() {
    let mut world = World::new(config(&[9001]), &[9001]);
    let client = world.client(&post(1000));
    let times = trickle(&mut world, client, 1, 60);
    assert!((6..=10).contains(&times), "{times}");
    assert!(world.take(client).starts_with("HTTP/1.1 408 "));
    assert!(world.has_ended(client) && world.accepted(9001).is_empty());
    assert_eq!(world.counters().rate_timeouts, 1);
    // One that has a backend already.
    let client = world.client(&post(200_000));
    world.send(client, vec![b'x'; 100_000]);
    let backend = world.backend(9001);
    trickle(&mut world, client, 1, 60);
    assert!(world.take(client).starts_with("HTTP/1.1 408 "));
    assert!(world.heard(backend).closed.is_some());
    assert_eq!(world.counters().rate_timeouts, 2);
    assert_eq!(world.counters().backend_failures, 0);
}

#[test]
fn a_client_that_is_just_fast_enough_is_served() {
    let mut world = World::new(config(&[9001]), &[9001]);
    let client = world.client(&post(90_000));
    assert_eq!(trickle(&mut world, client, 3000, 30), 30);
    let backend = world.backend(9001);
    assert!(world.take(backend).ends_with(&"x".repeat(90_000)));
    world.send(backend, response("x"));
    assert!(world.take(client).ends_with("x"));
    assert_eq!(world.counters().rate_timeouts, 0);
}

#[test]
fn a_client_that_takes_a_response_too_slowly_is_reset_and_its_backend_free() {
    // So much that the client's window opens now and then.
    let mut config = config(&[9001]);
    config.bytes_per_second_min = NonZeroU64::new(40_000);
    for (bytes, is_served) in [(20_000, false), (400_000, true)] {
        let mut world = World::new(config.clone(), &[9001]);
        let client = world.client("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        let backend = world.backend(9001);
        world.apps.others.stalled.insert(client);
        let body = "x".repeat(16_000_000);
        world.send(backend, response(&body));
        for _ in 0..30 {
            world.receive(client, bytes);
            world.pass(EVERY);
        }
        let is_open = world.heard(client).closed.is_none();
        let timeouts = u64::from(!is_served);
        assert_eq!(
            (is_open, world.counters().rate_timeouts),
            (is_served, timeouts)
        );
        assert_eq!(world.heard(backend).closed.is_none(), is_served);
    }
}

#[test]
fn a_slow_backend_is_no_slow_client() {
    let mut world = World::new(config(&[9001]), &[9001]);
    let client = world.client("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    let backend = world.backend(9001);
    world.send(backend, "HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n");
    for _ in 0..30 {
        world.send(backend, "x");
        world.pass(EVERY);
    }
    assert!(world.take(client).ends_with(&"x".repeat(30)));
    assert_eq!(world.counters().rate_timeouts, 0);
}
