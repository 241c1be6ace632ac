//! The end of HTTP/3 connections, seen by a client on quinn: it learns which requests were not
//! processed before the connection closes (RFC 9114 §5.2).
#![forbid(unsafe_code)]

mod world;

use std::time::Duration;

use server::Config;
use world::World;

/// H3_NO_ERROR and H3_REQUEST_REJECTED (RFC 9114 §8.1).
const NO_ERROR: &str = "256";
const REQUEST_REJECTED: u64 = 0x10b;

/// The ID of the first GOAWAY: no new requests, but those in flight are accepted.
const ALL: u64 = (1 << 62) - 4;

const SECOND_US: u64 = 1_000_000;

const HEAD_TIMEOUT: Duration = Duration::from_secs(3);
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

fn world() -> World {
    World::new(Config {
        head_timeout: HEAD_TIMEOUT,
        idle_timeout: IDLE_TIMEOUT,
        ..Config::default()
    })
}

/// The same, after the client has downloaded a file.
fn served() -> World {
    let mut world = world();
    let stream = world.ask();
    world.run_until(|world| world.open() == 0);
    assert!(world.responses[&stream].len() > 1000);
    world
}

/// Runs until the connection closes at the client, without an error.
fn run_until_closed(world: &mut World) {
    world.run_until(|world| world.client.lost.is_some());
    let lost = world.client.lost.clone().expect("a reason");
    assert!(lost.contains(NO_ERROR), "{lost}");
    assert_eq!(world.server.connections(), 0);
}

/// Covers: RFC 9114 §5.1, RFC 9114 §5.2
#[test]
fn an_idle_client_hears_which_requests_were_processed() {
    let mut world = served();
    run_until_closed(&mut world);
    assert_eq!(world.goaways(), [4]);
    assert_eq!(world.server.counters().idle_timeouts, 1);
    let mut world = self::world();
    run_until_closed(&mut world);
    assert_eq!(world.goaways(), [0]);
    assert_eq!(world.server.counters().head_timeouts, 1);
}

/// Covers: RFC 9114 §5.2
#[test]
fn a_client_hears_which_requests_were_processed_before_the_server_ends() {
    let mut world = served();
    world.server.drain(|| {});
    run_until_closed(&mut world);
    assert_eq!(world.goaways(), [ALL, 4]);
}

/// Runs until the server sends the last GOAWAY, before it reaches the client.
fn run_until_goaway(world: &mut World, is_drained: bool) {
    let begun_us = world.now_us;
    let quiet_us = match is_drained {
        true => {
            world.server.drain(|| {});
            world.run_until(|world| world.goaways() == [ALL]);
            begun_us + SECOND_US / 2
        }
        false => begun_us + 4 * SECOND_US,
    };
    let mut sent = world.sent;
    world.run_until(|world| {
        if world.now_us < quiet_us {
            sent = world.sent;
        }
        world.sent > sent
    });
    assert!(world.goaways().iter().all(|id| *id == ALL));
    assert_eq!(world.server.connections(), 1);
}

/// Covers: RFC 9114 §5.2, RFC 9114 §4.1.1
#[test]
fn a_request_that_crosses_the_last_goaway_is_rejected() {
    for is_drained in [true, false] {
        let mut world = served();
        run_until_goaway(&mut world, is_drained);
        let crossing = world.ask();
        run_until_closed(&mut world);
        assert_eq!(world.goaways().last(), Some(&4));
        assert_eq!(world.resets.get(&crossing), Some(&REQUEST_REJECTED));
        assert_eq!(world.server.counters().requests, 1);
    }
}

#[test]
fn a_goaway_that_is_lost_is_sent_again_before_the_end() {
    for is_drained in [true, false] {
        let mut world = served();
        run_until_goaway(&mut world, is_drained);
        world.lose_what_is_on_its_way();
        world.deaf_until_us = world.now_us + 200_000;
        run_until_closed(&mut world);
        assert_eq!(world.goaways().last(), Some(&4));
    }
}

#[test]
fn a_client_that_is_gone_is_waited_for_no_longer_than_a_second() {
    for is_drained in [true, false] {
        let mut world = served();
        run_until_goaway(&mut world, is_drained);
        world.lose_what_is_on_its_way();
        world.deaf_until_us = u64::MAX;
        let begun_us = world.now_us;
        world.run_until(|world| world.server.connections() == 0);
        let waited_us = world.now_us - begun_us;
        assert!((900_000..=1_001_000).contains(&waited_us), "{waited_us}");
    }
}
