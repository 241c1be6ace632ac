//! Backends of HTTP/2: streams on connections, and how these begin and end.

use std::time::Duration;

use proxy::{Check, CheckKind, Config, Pool, Protocol, Version};

use super::client::{Client, GET, POST, with_http2};
use crate::world::{GET as GET_1, World, config, response};

/// A proxy with one pool of backends that speak HTTP/2.
pub(super) fn to_http2(ports: &[u16]) -> Config {
    let mut config = with_http2(ports);
    config.pools[0].protocol = Protocol::H2c;
    config
}

pub(super) const OK: [(&str, &str); 1] = [(":status", "200")];

fn pool_of(world: &World, port: u16) -> proxy::BackendCounters {
    world.backends()[&("web".to_owned(), format!("b{port}"))]
}

#[test]
fn a_request_of_http_1_1_becomes_a_stream_and_its_response_returns() {
    let mut world = World::new(to_http2(&[8080]), &[8080]);
    let text = "POST /a?b HTTP/1.1\r\nHost: h\r\nX-Y: z\r\nTransfer-Encoding: chunked\r\n\r\n\
                3\r\nabc\r\n0\r\nSum: 7\r\n\r\n";
    let client = world.client(text);
    let (mut backend, _) = Client::backend(&mut world, 8080, &[]);
    let heard = backend.heard(1);
    let head = ":method: POST\n:scheme: http\n:authority: h\n:path: /a?b\nx-y: z\n\
                x-forwarded-for: 10.77.0.2\n";
    assert_eq!(heard.blocks, [head, "sum: 7\n"]);
    assert_eq!((&*heard.content, heard.has_ended), (&b"abc"[..], true));
    let interim = [(":status", "103"), ("link", "a")];
    backend.request(&mut world, 1, &interim, false);
    backend.request(&mut world, 1, &[&OK[..], &[("x", "y")]].concat(), false);
    backend.data(&mut world, 1, b"hello", false);
    backend.data(&mut world, 1, b" world", false);
    backend.request(&mut world, 1, &[("grpc-status", "0")], true);
    let expected = "HTTP/1.1 103 \r\nlink: a\r\n\r\n\
                    HTTP/1.1 200 \r\nx: y\r\nTransfer-Encoding: chunked\r\n\r\n\
                    5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n";
    assert_eq!(world.take(client), expected);
    // Another request has another stream on the same connection, and a length stays one.
    world.send(client, GET_1);
    backend.hear(&mut world);
    assert!(backend.heard(3).has_ended);
    let of_length = [&OK[..], &[("content-length", "2")]].concat();
    backend.request(&mut world, 3, &of_length, false);
    backend.data(&mut world, 3, b"ab", true);
    let expected = "HTTP/1.1 200 \r\nContent-Length: 2\r\n\r\nab";
    assert_eq!(world.take(client), expected);
    assert_eq!(world.accepted(8080).len(), 1);
    let counters = world.counters();
    assert_eq!((counters.backend_connects, counters.backend_reuses), (1, 1));
    assert_eq!(counters.backend_http2_streams, 2);
    let of_backend = pool_of(&world, 8080);
    let gauges = (of_backend.connections, of_backend.connections_idle);
    assert_eq!((gauges, of_backend.http2_connections), ((0, 1), 1));
    assert_eq!((of_backend.requests, of_backend.responses), (2, 2));
    let lines = world.records();
    assert_eq!(lines[0], "200 b8080 0 11 POST /a?b HTTP/1.1");
}

#[test]
fn heads_without_a_body_end_the_message() {
    let mut world = World::new(to_http2(&[8080]), &[8080]);
    let mut client = Client::new(&mut world, &[]);
    let mut head = GET;
    head[0].1 = "HEAD";
    client.request(&mut world, 1, &head, true);
    client.request(&mut world, 3, &GET, true);
    client.request(&mut world, 5, &GET, true);
    let (mut backend, _) = Client::backend(&mut world, 8080, &[]);
    let of_length = [&OK[..], &[("content-length", "5")]].concat();
    backend.request(&mut world, 1, &of_length, true);
    backend.request(&mut world, 3, &[(":status", "204")], true);
    backend.request(
        &mut world,
        5,
        &[(":status", "304"), ("content-length", "9")],
        true,
    );
    client.hear(&mut world);
    let blocks = [
        ":status: 200\ncontent-length: 5\n",
        ":status: 204\n",
        ":status: 304\ncontent-length: 9\n",
    ];
    for (id, block) in [1, 3, 5].into_iter().zip(blocks) {
        let heard = client.heard(id);
        assert_eq!(
            (heard.blocks.concat(), heard.has_ended),
            (block.to_owned(), true)
        );
    }
    assert_eq!(world.accepted(8080).len(), 1);
    backend.hear(&mut world);
    assert!(backend.streams.values().all(|heard| heard.reset.is_none()));
}

/// Covers: RFC 9113 §5.1.2
#[test]
fn a_connection_has_as_many_streams_as_the_backend_permits() {
    let mut world = World::new(to_http2(&[8080]), &[8080]);
    let mut client = Client::new(&mut world, &[]);
    for id in [1, 3, 5] {
        client.request(&mut world, id, &GET, true);
    }
    assert_eq!(world.accepted(8080).len(), 1, "how many is not known yet");
    let (mut first, _) = Client::backend(&mut world, 8080, &[(3, 2)]);
    first.hear(&mut world);
    assert_eq!(first.streams.len(), 2);
    assert_eq!(world.accepted(8080).len(), 2);
    let (mut second, _) = Client::backend(&mut world, 8080, &[(3, 2)]);
    second.hear(&mut world);
    assert_eq!(second.streams.len(), 1);
    for (backend, ids) in [(&mut first, &[1, 3][..]), (&mut second, &[1])] {
        for id in ids {
            backend.request(&mut world, *id, &OK, true);
        }
    }
    client.hear(&mut world);
    assert!([1, 3, 5].iter().all(|id| client.heard(*id).has_ended));
    // The oldest connection with room is used again.
    client.request(&mut world, 7, &GET, true);
    first.hear(&mut world);
    assert_eq!(first.streams.len(), 3);
    assert_eq!(pool_of(&world, 8080).http2_connections, 2);
}

#[test]
fn a_thousand_streams_share_ten_connections() {
    let mut config = to_http2(&[8080]);
    config.http2_streams_max = 1000;
    let mut world = World::new(config, &[8080]);
    let mut client = Client::new(&mut world, &[]);
    let requests = (0..1000).map(|at| client.block(2 * at + 1, &GET, true));
    let requests: Vec<Vec<u8>> = requests.collect();
    world.send(client.stream, requests.concat());
    let mut backends: Vec<Client> = Vec::new();
    while let Some(&stream) = world.accepted(8080).get(backends.len()) {
        backends.push(Client::backend_of(&mut world, stream, &[]).0);
    }
    assert_eq!(backends.len(), 10);
    for backend in &mut backends {
        backend.hear(&mut world);
        assert_eq!(backend.streams.len(), 100);
        let ids: Vec<u32> = backend.streams.keys().copied().collect();
        for id in ids {
            backend.request(&mut world, id, &OK, false);
            backend.data(&mut world, id, &id.to_be_bytes(), true);
        }
    }
    client.hear(&mut world);
    assert_eq!(client.streams.len(), 1000);
    assert!(client.streams.values().all(|heard| heard.has_ended));
    let of_backend = pool_of(&world, 8080);
    let gauges = (of_backend.connections, of_backend.connections_idle);
    assert_eq!(gauges, (0, 10));
    world.pass(Duration::from_secs(31));
    for backend in &mut backends {
        backend.hear(&mut world);
        assert_eq!(backend.goaways, [(0, 0)], "idle for too long");
        world.finish(backend.stream);
        assert!(world.has_ended(backend.stream));
    }
    assert_eq!(pool_of(&world, 8080).http2_connections, 0);
}

#[test]
fn an_end_behind_content_of_a_length_is_awaited_and_cancels_nothing() {
    let mut world = World::new(to_http2(&[8080]), &[8080]);
    let mut client = Client::new(&mut world, &[]);
    client.request(&mut world, 1, &GET, true);
    client.request(&mut world, 3, &GET, true);
    let (mut backend, _) = Client::backend(&mut world, 8080, &[]);
    for (id, length) in [(1, "0"), (3, "4")] {
        let of_length = [&OK[..], &[("content-length", length)]].concat();
        backend.request(&mut world, id, &of_length, false);
    }
    backend.data(&mut world, 3, b"four", false);
    client.hear(&mut world);
    assert!(client.heard(1).has_ended && client.heard(3).has_ended);
    assert_eq!(pool_of(&world, 8080).connections, 0);
    backend.data(&mut world, 1, b"", true);
    backend.hear(&mut world);
    assert_eq!(backend.heard(1).reset, None);
    // One that never comes is not awaited for ever.
    world.pass(Duration::from_secs(61));
    backend.hear(&mut world);
    assert_eq!(backend.heard(3).reset, Some(8), "CANCEL");
}

#[test]
fn no_more_idle_connections_stay_than_the_pool_keeps() {
    for (idle_max, left) in [(0, 0), (1, 1)] {
        let mut config = to_http2(&[8080]);
        config.pools[0].idle_max = idle_max;
        let mut world = World::new(config, &[8080]);
        let mut client = Client::new(&mut world, &[]);
        client.request(&mut world, 1, &GET, true);
        let (mut first, _) = Client::backend(&mut world, 8080, &[(3, 1)]);
        client.request(&mut world, 3, &GET, true);
        let (mut second, _) = Client::backend(&mut world, 8080, &[(3, 1)]);
        for backend in [&mut first, &mut second] {
            backend.request(&mut world, 1, &OK, true);
            backend.hear(&mut world);
            if !backend.goaways.is_empty() {
                world.finish(backend.stream);
            }
        }
        assert_eq!(pool_of(&world, 8080).http2_connections, left);
    }
}

#[test]
fn a_connection_for_each_client_begins_with_the_proxy_protocol() {
    let mut config = to_http2(&[8080]);
    config.pools[0].send_proxy = Some(Version::V1);
    let mut world = World::new(config, &[8080]);
    let mut client = Client::new(&mut world, &[]);
    for id in [1, 3] {
        client.request(&mut world, id, &GET, true);
        let (mut backend, before) = Client::backend(&mut world, 8080, &[]);
        let before = String::from_utf8(before).unwrap();
        assert!(
            before.starts_with("PROXY TCP4 10.77.0.2 10.77.0.2 "),
            "{before}"
        );
        backend.request(&mut world, 1, &OK, true);
        backend.hear(&mut world);
        assert_eq!(backend.goaways, [(0, 0)], "it is for one request");
    }
    client.hear(&mut world);
    assert!(client.heard(1).has_ended && client.heard(3).has_ended);
}

#[test]
fn an_upgrade_is_refused_and_one_to_http_2_ignored() {
    let mut world = World::new(to_http2(&[8080]), &[8080]);
    let ask = "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: ";
    let client = world.client(&format!("{ask}websocket\r\n\r\n"));
    let text = world.take(client);
    assert!(text.starts_with("HTTP/1.1 501 "), "{text}");
    assert!(
        text.ends_with("the backend cannot change to another protocol\n"),
        "{text}"
    );
    assert!(world.accepted(8080).is_empty());
    world.client(&format!("{ask}h2c\r\n\r\n"));
    let (backend, _) = Client::backend(&mut world, 8080, &[]);
    assert!(!backend.heard(1).blocks[0].contains("upgrade"));
}

#[test]
fn a_check_of_http_is_a_request_of_http_2() {
    for version in [None, Some(Version::V1)] {
        let mut config = to_http2(&[8080, 8081]);
        config.pools[0].send_proxy = version;
        config.pools[0].check = Some(Check {
            kind: CheckKind::Http {
                path: "/health".to_owned(),
                host: "check".to_owned(),
                statuses: 200..=299,
            },
            interval: Duration::from_secs(1),
            timeout: Duration::from_millis(500),
            ..Check::default()
        });
        let mut world = World::new(config, &[8080, 8081]);
        world.settle();
        let (mut good, before) = Client::backend(&mut world, 8080, &[]);
        assert_eq!(before.is_empty(), version.is_none());
        let block = ":method: GET\n:scheme: http\n:authority: check\n:path: /health\n\
                     user-agent: splitway-check\n";
        assert_eq!(good.heard(1).blocks, [block]);
        good.request(&mut world, 1, &[(":status", "204")], true);
        good.hear(&mut world);
        assert_eq!(good.goaways, [(0, 0)], "the connection is the check's own");
        let (mut bad, _) = Client::backend(&mut world, 8081, &[]);
        bad.request(&mut world, 1, &[(":status", "500")], true);
        bad.hear(&mut world);
        let up_and_down = (world.counters().backends_up, world.counters().backends_down);
        assert_eq!(up_and_down, (1, 1));
        assert_eq!(world.failures(), ["last check: it answers 500"]);
        // Silence is a failure as well: of the whole connection, and of the request.
        world.pass(Duration::from_secs(1));
        let (_silent, _) = Client::backend(&mut world, 8081, &[]);
        world.pass(Duration::from_millis(600));
        assert_eq!(world.failures(), ["last check: no answer within 500ms"]);
        world.pass(Duration::from_millis(400));
        world.pass(Duration::from_millis(600));
        assert_eq!(world.failures(), ["last check: no connection within 500ms"]);
    }
}

#[test]
fn a_check_of_tcp_stays_a_connection() {
    let mut config = to_http2(&[8080]);
    config.pools[0].check = Some(Check::default());
    let mut world = World::new(config, &[8080]);
    world.settle();
    assert_eq!(world.counters().checks_passed, 1);
    assert_eq!(world.counters().backend_http2_streams, 0);
}

fn answered(world: &mut World, backend: &mut Client, id: u32) {
    backend.hear(world);
    assert!(backend.heard(id).has_ended);
    backend.request(world, id, &OK, false);
    backend.data(world, id, b"whole", true);
}

#[test]
fn another_protocol_or_no_backend_leaves_old_connections_and_their_streams() {
    let change = |change: fn(&mut Pool)| {
        let mut config = to_http2(&[8080]);
        change(&mut config.pools[0]);
        config
    };
    let to_http1 = change(|pool| pool.protocol = Protocol::Http1);
    let without = change(|pool| pool.backends.clear());
    let drained = change(|pool| pool.backends[0].drains = true);
    for (other, is_http1) in [(to_http1, true), (without, false), (drained, false)] {
        let mut world = World::new(to_http2(&[8080]), &[8080]);
        let mut client = Client::new(&mut world, &[]);
        client.request(&mut world, 1, &GET, true);
        let (mut backend, _) = Client::backend(&mut world, 8080, &[]);
        world.proxy().reconfigure(other);
        world.settle();
        client.request(&mut world, 3, &GET, true);
        if is_http1 {
            let new = world.backend(8080);
            assert!(world.take(new).starts_with("GET / HTTP/1.1\r\n"));
            world.send(new, response("new"));
        }
        answered(&mut world, &mut backend, 1);
        client.hear(&mut world);
        assert_eq!(client.heard(1).content, b"whole");
        let status = if is_http1 { "200" } else { "503" };
        assert!(client.heard(3).blocks[0].starts_with(&format!(":status: {status}\n")));
        backend.hear(&mut world);
        assert_eq!(backend.goaways, [(0, 0)]);
    }
    // An idle connection ends at once, and the same configuration changes nothing.
    let mut world = World::new(config(&[8080]), &[8080]);
    world.proxy().reconfigure(to_http2(&[8080]));
    let client = world.client(GET_1);
    let (mut backend, _) = Client::backend(&mut world, 8080, &[]);
    answered(&mut world, &mut backend, 1);
    assert!(world.take(client).ends_with("whole\r\n0\r\n\r\n"));
    world.proxy().reconfigure(to_http2(&[8080]));
    world.settle();
    backend.hear(&mut world);
    assert!(backend.goaways.is_empty());
    world.proxy().reconfigure(config(&[8080]));
    world.settle();
    backend.hear(&mut world);
    assert_eq!(backend.goaways, [(0, 0)]);
}

#[test]
fn a_drain_says_goodbye_to_backends_after_the_last_response() {
    let mut world = World::new(to_http2(&[8080]), &[8080]);
    let mut client = Client::new(&mut world, &[]);
    client.request(&mut world, 1, &GET, true);
    let (mut backend, _) = Client::backend(&mut world, 8080, &[]);
    let is_empty = world.drain();
    backend.hear(&mut world);
    assert!(backend.goaways.is_empty());
    answered(&mut world, &mut backend, 1);
    backend.hear(&mut world);
    assert_eq!(backend.goaways, [(0, 0)]);
    client.hear(&mut world);
    assert_eq!(client.heard(1).content, b"whole");
    world.pass(Duration::from_secs(2));
    world.finish(client.stream);
    world.pass(Duration::from_millis(300));
    assert!(is_empty.load(std::sync::atomic::Ordering::Relaxed));
}

/// Covers: RFC 9113 §6.9, RFC 9113 §5.2
#[test]
fn a_client_that_takes_nothing_delays_no_other_stream_of_the_connection() {
    let mut world = World::new(to_http2(&[8080]), &[8080]);
    let slow_client = |world: &mut World| {
        let mut client = Client::new(world, &[(4, 0)]);
        client.request(world, 1, &GET, true);
        client
    };
    let mut slow = vec![slow_client(&mut world)];
    let (mut backend, _) = Client::backend(&mut world, 8080, &[]);
    slow.extend((1..99).map(|_| slow_client(&mut world)));
    let window = 65_535 + backend.updates.remove(&0).unwrap_or(0);
    assert_eq!(window, 100 * 65_535);
    let before = world.memory().0;
    for at in 0..99 {
        backend.request(&mut world, 2 * at + 1, &OK, false);
        // A window of each stream, and what the session takes out of it.
        let mut left = 65_535;
        while left > 0 {
            let bytes = left.min(16_384);
            backend.data(&mut world, 2 * at + 1, &vec![b'x'; bytes as usize], false);
            left -= bytes;
            backend.hear(&mut world);
            left += backend.updates.remove(&(2 * at + 1)).unwrap_or(0);
        }
    }
    let held = world.memory().0.saturating_sub(before);
    assert!(held < 99 * (300 << 10), "{held} bytes are held");
    assert_eq!(world.accepted(8080).len(), 1);
    let quick = world.client(GET_1);
    backend.hear(&mut world);
    backend.request(&mut world, 199, &OK, false);
    for _ in 0..100 {
        backend.data(&mut world, 199, &[b'q'; 10_000], false);
        backend.hear(&mut world);
        assert!(backend.updates.remove(&199).is_none_or(|update| update > 0));
    }
    backend.data(&mut world, 199, b"", true);
    let text = world.take(quick);
    assert_eq!(world.accepted(8080).len(), 1);
    assert!(
        text.ends_with("\r\n0\r\n\r\n"),
        "{} {:?} {:?}",
        text.len(),
        backend.goaways,
        backend.streams.get(&199)
    );
    assert_eq!(text.matches('q').count(), 1_000_000);
    // Slow ones that leave give back what they held.
    for client in &slow {
        world.abort(client.stream);
    }
    world.settle();
    backend.hear(&mut world);
    let cancelled = backend
        .streams
        .values()
        .filter(|heard| heard.reset == Some(8));
    assert_eq!(cancelled.count(), 99, "CANCEL");
    assert!(backend.goaways.is_empty());
    let of_backend = pool_of(&world, 8080);
    let gauges = (of_backend.connections, of_backend.connections_idle);
    assert_eq!(gauges, (0, 1));
}

/// Covers: RFC 9113 §6.9.2
#[test]
fn a_backend_that_takes_nothing_closes_the_windows_of_its_clients() {
    let mut world = World::new(to_http2(&[8080]), &[8080]);
    let mut client = Client::new(&mut world, &[]);
    client.request(&mut world, 1, &POST, false);
    let (mut backend, _) = Client::backend(&mut world, 8080, &[(4, 10)]);
    let mut sent = 0;
    let mut left = 65_535;
    while left > 0 {
        let bytes = left.min(16_384);
        client.data(&mut world, 1, &vec![b'y'; bytes as usize], false);
        (sent, left) = (sent + bytes, left - bytes);
        client.hear(&mut world);
        left += client.updates.remove(&1).unwrap_or(0);
        assert!(sent < 1 << 20, "the client's window closes");
    }
    backend.hear(&mut world);
    assert_eq!(backend.heard(1).content.len(), 10);
    // Others go on.
    client.request(&mut world, 3, &GET, true);
    answered(&mut world, &mut backend, 3);
    client.hear(&mut world);
    assert!(client.heard(3).has_ended);
    // A window that never opens is the backend's fault.
    world.pass(Duration::from_secs(80));
    client.hear(&mut world);
    let blocks = &client.heard(1).blocks;
    assert!(blocks[0].starts_with(":status: 504\n"), "{blocks:?}");
    backend.hear(&mut world);
    assert_eq!(backend.heard(1).reset, Some(8), "CANCEL");
    assert!(world.heard(backend.stream).closed.is_none());
}
