//! Clients that hold or want all connections to a backend, and one beside them that must notice
//! little of it.

use std::num::NonZeroU32;
use std::time::Duration;

use host::app::{CloseReason, StreamId};
use proxy::{Config, Mode, Prefix};

use crate::world::{GET, OTHERS, World, config, listener, response};

/// Connections to a backend, and places in its queue.
const SLOTS: u32 = 16;
const ATTACKERS: usize = 64;
const THINK: Duration = Duration::from_millis(20);
const LIMIT: Duration = Duration::from_secs(5);

fn crowded() -> Config {
    let mut config = config(&[9001]);
    config.pools[0].connections_max = NonZeroU32::new(SLOTS).unwrap();
    config.pools[0].queue_max = SLOTS;
    config
}

/// A proxy, and how many clients are more than it has connections for.
struct Scale {
    config: Config,
    attackers: usize,
}

/// Few connections, and as many as there are by default.
fn scales() -> [Scale; 2] {
    let few = Scale {
        config: crowded(),
        attackers: ATTACKERS,
    };
    let default = Scale {
        config: config(&[9001]),
        attackers: 1100,
    };
    assert_eq!(default.config.pools[0].connections_max.get(), 1024);
    [few, default]
}

impl Scale {
    fn world(&self) -> World {
        world(self.config.clone())
    }

    /// Clients of one address that have sent this.
    fn attackers(&self, world: &mut World, text: &[u8]) -> Vec<StreamId> {
        attackers(world, self.attackers, text)
    }

    /// A client beside others, which send a byte now and then, has all its responses, nearly as
    /// fast as alone.
    #[track_caller]
    fn is_served_beside(&self, world: &mut World, attackers: &[StreamId]) {
        let quiet_us = latency_us(&mut self.world(), &[]);
        let us = latency_us(world, attackers);
        assert!(us < 10 * quiet_us && us < 250_000, "{us} and {quiet_us} us");
    }
}

fn world(config: Config) -> World {
    let mut world = World::new(config, &[9001]);
    world.apps.others.think = Some(THINK);
    world
}

fn post(bytes: usize, more: &str) -> String {
    format!("POST /7 HTTP/1.1\r\nHost: h\r\n{more}Content-Length: {bytes}\r\n\r\n")
}

/// So many clients of one address that have sent this.
fn attackers(world: &mut World, count: usize, text: &[u8]) -> Vec<StreamId> {
    let clients = world.connect_all_from(&format!("{}:0", OTHERS[0]), count);
    world.send_on_all(&clients, text);
    clients
}

/// The slowest of a hundred in microseconds, of a client that gets a response to each request.
/// Meanwhile the attackers send a byte each 60 ms.
fn latency_us(world: &mut World, attackers: &[StreamId]) -> u64 {
    let client = world.connect_from(&format!("{}:0", OTHERS[1]));
    let post = format!("{}{}", post(300, ""), "y".repeat(300));
    let latencies = (0..100).map(|number| {
        let request = if number % 2 == 0 { GET } else { &post };
        let (status, time_us) = world.exchange(client, request, LIMIT);
        assert_eq!(status, 200, "request {number}");
        let next = attackers.get(number * 7 % attackers.len().max(1));
        match next.filter(|attacker| !world.has_ended(**attacker)) {
            Some(attacker) => world.send(*attacker, "x"),
            None => world.pass(Duration::from_millis(10)),
        }
        time_us
    });
    latencies.max().unwrap()
}

#[test]
fn short_bodies_that_trickle_hold_no_connection_to_a_backend() {
    let chunked = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5;a=b\r\nx";
    for scale in scales() {
        let mut world = scale.world();
        let mut attackers = Vec::new();
        for text in [post(1000, "") + "x", chunked.to_owned()] {
            attackers.extend(scale.attackers(&mut world, text.as_bytes()));
        }
        assert!(world.accepted(9001).is_empty());
        scale.is_served_beside(&mut world, &attackers);
        let counters = world.counters();
        assert_eq!((counters.queued, counters.evictions), (0, 0));
    }
}

#[test]
fn long_bodies_that_trickle_give_way() {
    let text = [post(1_000_000, "").as_bytes(), &[b'x'; 70_000]].concat();
    for scale in scales() {
        let mut world = scale.world();
        let attackers = scale.attackers(&mut world, &text);
        world.pass(Duration::from_secs(2));
        scale.is_served_beside(&mut world, &attackers);
        let evictions = world.counters().evictions;
        assert!(evictions > 0, "{:?}", world.counters());
        let refused = attackers.iter().filter(|client| {
            let received = &world.heard(**client).received;
            received.ends_with(b"the request is too slow while others wait\n")
        });
        assert_eq!(refused.count() as u64, evictions);
    }
}

#[test]
fn bodies_that_wait_for_100_and_never_come_give_way() {
    let text = post(1000, "Expect: 100-continue\r\n");
    for scale in scales() {
        let mut world = scale.world();
        scale.attackers(&mut world, text.as_bytes());
        // Those that hold slots, and those that wait behind them, get three seconds each.
        world.pass(Duration::from_secs(7));
        scale.is_served_beside(&mut world, &[]);
        assert!(world.counters().evictions > 0);
    }
}

#[test]
fn a_client_is_not_blamed_for_the_time_its_backend_takes_to_send_100() {
    let mut config = crowded();
    config.pools[0].connections_max = NonZeroU32::MIN;
    let mut world = World::new(config, &[9001]);
    let uploader = world.client(&post(3, "Expect: 100-continue\r\n"));
    let backend = world.backend(9001);
    let other = world.connect_from(&format!("{}:0", OTHERS[1]));
    world.send(other, GET);
    world.pass(Duration::from_secs(2));
    world.send(backend, "HTTP/1.1 100 Continue\r\n\r\n");
    // The client gets a second from then on, as others do from the head on.
    world.pass(Duration::from_millis(900));
    assert!(world.take(uploader).starts_with("HTTP/1.1 100 Continue"));
    world.send(uploader, "abc");
    assert!(world.take(backend).ends_with("abc"));
    world.send(backend, response("done"));
    assert!(world.take(uploader).ends_with("done"));
    world.send(world.backend(9001), response("other"));
    assert!(world.take(other).ends_with("other"));
    assert_eq!(world.counters().evictions, 0);
}

#[test]
fn a_client_that_sends_no_body_after_100_gives_way() {
    let mut config = crowded();
    config.pools[0].connections_max = NonZeroU32::MIN;
    let mut world = World::new(config, &[9001]);
    let uploader = world.client(&post(3, "Expect: 100-continue\r\n"));
    world.send(world.backend(9001), "HTTP/1.1 100 Continue\r\n\r\n");
    let other = world.connect_from(&format!("{}:0", OTHERS[1]));
    world.send(other, GET);
    world.pass(Duration::from_secs(2));
    assert!(world.take(uploader).contains("HTTP/1.1 503"));
    assert_eq!(world.counters().evictions, 1);
}

#[test]
fn readers_that_take_little_give_way_by_a_reset() {
    for scale in scales() {
        let mut world = scale.world();
        let clients = scale.attackers(&mut world, b"");
        world.apps.others.stalled.extend(&clients);
        world.send_on_all(&clients, "GET /4000000 HTTP/1.1\r\nHost: h\r\n\r\n");
        world.pass(Duration::from_secs(2));
        scale.is_served_beside(&mut world, &[]);
        // The many are more than the account of memory has room for.
        let (evictions, (_, of_memory)) = (world.counters().evictions, world.memory());
        assert!(evictions + of_memory > 0, "{:?}", world.counters());
        let is_reset =
            |client: &&StreamId| world.heard(**client).closed == Some(CloseReason::Reset);
        let resets = clients.iter().filter(is_reset).count() as u64;
        assert!((evictions..=evictions + of_memory).contains(&resets));
    }
}

#[test]
fn the_slowest_of_many_sources_give_way() {
    let mut config = crowded();
    config.listeners[0].proxy_from = vec![Prefix {
        address: OTHERS[0].parse().unwrap(),
        bits: 32,
    }];
    let mut world = world(config);
    for number in 0..SLOTS {
        let client = world.connect_from(&format!("{}:0", OTHERS[0]));
        world.send(
            client,
            format!("PROXY TCP4 192.0.2.{number} 10.77.0.2 1 80\r\n"),
        );
        let text = [post(1_000_000, "").as_bytes(), &[b'x'; 66_000]].concat();
        world.send(client, text);
    }
    assert_eq!(world.accepted(9001).len(), SLOTS as usize);
    world.pass(Duration::from_secs(5));
    let few = &scales()[0];
    few.is_served_beside(&mut world, &[]);
    assert!(world.counters().evictions > 0);
}

#[test]
fn idle_tunnels_of_one_source_give_way_to_another() {
    let mut config = crowded();
    config.listeners = vec![listener(Mode::Tcp)];
    let mut world = World::new(config, &[9001]);
    let attackers = attackers(&mut world, ATTACKERS, b"hello");
    assert_eq!(world.accepted(9001).len(), SLOTS as usize);
    world.pass(Duration::from_secs(5));
    let client = world.connect_from(&format!("{}:0", OTHERS[1]));
    world.send(client, "ping");
    world.pass(Duration::from_millis(100));
    let backend = world.backend(9001);
    assert_eq!(world.take(backend), "ping");
    world.send(backend, "pong");
    assert_eq!(world.take(client), "pong");
    assert_eq!(world.counters().evictions, 1);
    let is_over = |it: &&StreamId| world.heard(**it).closed.is_some();
    // Others found the queue full, or have waited too long.
    assert!(attackers.iter().filter(is_over).count() > 1);
    // The client has one, and the source of the others has more of them: it keeps that.
    world.pass(Duration::from_secs(5));
    assert!(world.heard(client).closed.is_none());
}

#[test]
fn who_waits_for_a_backend_is_not_evicted_and_the_next_connection_goes_to_who_has_few() {
    let mut world = world(crowded());
    world.apps.others.think = Some(Duration::from_secs(1));
    // All connections are in use, and the queue is full.
    let attackers = attackers(&mut world, ATTACKERS, b"");
    world.send_on_all(&attackers, GET);
    assert_eq!(world.accepted(9001).len(), SLOTS as usize);
    let client = world.connect_from(&format!("{}:0", OTHERS[1]));
    let (status, time_us) = world.exchange(client, GET, LIMIT);
    assert_eq!(status, 200);
    assert!(time_us < 2_000_000, "{time_us} us");
    let counters = world.counters();
    assert_eq!((counters.evictions, counters.queue_evictions), (0, 1));
    world.pass(LIMIT);
    let answers = attackers.iter().map(|client| world.heard(*client));
    let texts: Vec<_> = answers
        .map(|it| String::from_utf8_lossy(&it.received))
        .collect();
    let count = |status: &str| texts.iter().filter(|it| it.contains(status)).count();
    let slots = SLOTS as usize;
    assert_eq!(count("HTTP/1.1 200"), 2 * slots - 1);
    assert_eq!(count("HTTP/1.1 503"), ATTACKERS - (2 * slots - 1));
}

#[test]
fn a_client_that_pipelines_passes_no_request_that_waits() {
    let mut config = crowded();
    config.pools[0].connections_max = NonZeroU32::MIN;
    let mut world = World::new(config, &[9001]);
    let greedy = world.client(&GET.repeat(5));
    let client = world.connect_from(&format!("{}:0", OTHERS[1]));
    world.send(client, GET);
    for (receiver, body) in [(greedy, "one"), (client, "two"), (greedy, "three")] {
        let backend = world.backend(9001);
        world.send(backend, response(body));
        assert!(world.take(receiver).ends_with(body), "{body}");
    }
}
