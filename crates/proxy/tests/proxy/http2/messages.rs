//! Requests of HTTP/2 at backends of HTTP/1.1, and their responses.

use std::sync::atomic::Ordering;
use std::time::Duration;

use http2::frame::kind;
use proxy::Forwarded;

use super::client::{Client, GET, POST, with_http2};
use crate::world::{World, response};

/// Covers: RFC 9113 §8.2.3, RFC 9113 §8.3.1
#[test]
fn a_request_becomes_one_of_http_1_1_and_its_response_frames() {
    let mut config = with_http2(&[8080]);
    (config.forwarded, config.via) = (Forwarded::Both, Some("p".to_owned()));
    let mut world = World::new(config, &[8080]);
    let mut client = Client::new(&mut world, &[]);
    let more = [
        ("cookie", "a=1"),
        ("x", "y"),
        ("cookie", "b=2"),
        ("te", "trailers"),
    ];
    client.request(&mut world, 1, &[&GET[..], &more].concat(), true);
    let backend = world.backend(8080);
    assert_eq!(
        world.take(backend),
        "GET / HTTP/1.1\r\nHost: h\r\nx: y\r\ncookie: a=1; b=2\r\n\
         X-Forwarded-For: 10.77.0.2\r\nForwarded: for=10.77.0.2;proto=http\r\nVia: 2.0 p\r\n\r\n"
    );
    world.send(
        backend,
        "HTTP/1.1 200 OK\r\nX-Own: 1\r\nConnection: x-hop\r\nX-Hop: 1\r\n",
    );
    world.send(backend, "Content-Length: 5\r\n\r\nhello");
    client.hear(&mut world);
    let heard = client.heard(1);
    let head = ":status: 200\nx-own: 1\nvia: 1.1 p\ncontent-length: 5\n";
    assert_eq!(heard.blocks, [head]);
    assert_eq!((&*heard.content, heard.has_ended), (&b"hello"[..], true));
    assert_eq!(heard.reset, None);
    let records = world.records();
    assert_eq!(records, ["200 b8080 0 5 GET / HTTP/2.0"]);
    assert_eq!(world.counters().http2_requests, 1);
}

#[test]
fn streams_share_a_connection_and_backends_are_reused() {
    let mut world = World::new(with_http2(&[8080]), &[8080]);
    world.apps.others.think = Some(Duration::from_millis(1));
    let mut client = Client::new(&mut world, &[]);
    for round in 0..3_u32 {
        let ids: Vec<u32> = (0..20).map(|at| 2 * (20 * round + at) + 1).collect();
        for &id in &ids {
            client.request(&mut world, id, &GET, true);
        }
        world.pass(Duration::from_millis(50));
        client.hear(&mut world);
        for id in ids {
            assert!(client.heard(id).has_ended, "{id}: {:?}", client.heard(id));
        }
    }
    assert!(world.accepted(8080).len() <= 20, "connections are reused");
    let counters = world.counters();
    assert_eq!((counters.http2_requests, counters.responses), (60, 60));
    assert_eq!(counters.connections_accepted, 1);
    assert_eq!(world.proxy().sessions(), 1, "the connection alone");
}

/// Covers: RFC 9113 §8.1, RFC 9110 §6.5.1
#[test]
fn interim_responses_and_trailers_pass() {
    let mut world = World::new(with_http2(&[8080]), &[8080]);
    let mut client = Client::new(&mut world, &[]);
    client.request(&mut world, 1, &GET, true);
    let backend = world.backend(8080);
    world.send(backend, "HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n");
    world.send(
        backend,
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    );
    world.send(backend, "3\r\nabc\r\n2\r\nde\r\n");
    client.hear(&mut world);
    assert!(!client.heard(1).has_ended);
    world.send(
        backend,
        "0\r\nGrpc-Status: 0\r\nContent-Length: 7\r\nSum: x y\r\n\r\n",
    );
    client.hear(&mut world);
    let heard = client.heard(1);
    let blocks = [
        ":status: 103\nlink: a\n",
        ":status: 200\n",
        "grpc-status: 0\nsum: x y\n",
    ];
    assert_eq!(heard.blocks, blocks);
    assert_eq!((&*heard.content, heard.has_ended), (&b"abcde"[..], true));
    // The connection to the backend is sound.
    client.request(&mut world, 3, &GET, true);
    assert_eq!(world.backend(8080), backend);
}

#[test]
fn a_body_is_chunked_without_a_length_and_plain_with_one() {
    let mut config = with_http2(&[8080]);
    config.pools[0].request_buffer_bytes = 0;
    let mut world = World::new(config, &[8080]);
    let mut client = Client::new(&mut world, &[]);
    client.request(&mut world, 1, &POST, false);
    let backend = world.backend(8080);
    client.data(&mut world, 1, b"abc", false);
    client.data(&mut world, 1, b"", false);
    client.data(&mut world, 1, b"defg", true);
    let text = world.take(backend);
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("\r\nTransfer-Encoding: chunked"), "{head}");
    assert_eq!(body, "3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n");
    world.send(backend, response(""));
    client.hear(&mut world);
    assert!(client.heard(1).has_ended && client.heard(1).content.is_empty());

    let of_length = [&POST[..], &[("content-length", "7")]].concat();
    client.request(&mut world, 3, &of_length, false);
    client.data(&mut world, 3, b"abcdefg", true);
    let backend = world.backend(8080);
    let text = world.take(backend);
    assert!(
        text.ends_with("\r\nContent-Length: 7\r\n\r\nabcdefg"),
        "{text}"
    );
    // A body that is not as long as it says is malformed.
    for (id, content, ends) in [(5, &b"abcdef"[..], true), (7, b"abcdefgh", false)] {
        client.request(&mut world, id, &of_length, false);
        client.data(&mut world, id, content, ends);
        client.hear(&mut world);
        assert_eq!(client.heard(id).reset, Some(1), "PROTOCOL_ERROR");
    }
    assert_eq!(world.counters().http2_stream_errors, 2);
}

#[test]
fn a_response_that_comes_early_ends_the_request() {
    let mut config = with_http2(&[8080]);
    config.pools[0].request_buffer_bytes = 0;
    let mut world = World::new(config, &[8080]);
    let mut client = Client::new(&mut world, &[]);
    client.request(&mut world, 1, &POST, false);
    client.data(&mut world, 1, b"abc", false);
    let backend = world.backend(8080);
    world.send(backend, response("no"));
    client.hear(&mut world);
    let heard = client.heard(1);
    assert_eq!((&*heard.content, heard.has_ended), (&b"no"[..], true));
    assert_eq!(heard.reset, Some(0), "NO_ERROR, after the response");
    // More of it was in flight.
    client.data(&mut world, 1, b"def", true);
    client.request(&mut world, 3, &GET, true);
    client.hear(&mut world);
    assert_eq!(client.goaways, []);
    assert_ne!(
        world.backend(8080),
        backend,
        "the other one may have the rest of a request"
    );
}

#[test]
fn refusals_of_the_proxy_are_responses() {
    let mut config = with_http2(&[8080]);
    config.head_bytes_max = 2000;
    config.request_line_bytes_max = 500;
    let mut world = World::new(config, &[]);
    let mut client = Client::new(&mut world, &[]);
    let long = "v".repeat(1990);
    let mut with_path = GET;
    let path = format!("/{}", "p".repeat(500));
    with_path[2].1 = &path;
    let mut connect = [(":method", "CONNECT"), (":authority", "h:1")].to_vec();
    for (id, fields, status) in [
        (1, GET.to_vec(), 502),
        (3, [&GET[..], &[("x", &long)]].concat(), 431),
        (5, with_path.to_vec(), 414),
        (7, std::mem::take(&mut connect), 501),
        (9, [&GET[..], &[("expect", "cake")]].concat(), 417),
    ] {
        client.request(&mut world, id, &fields, true);
        world.pass(Duration::from_secs(1));
        client.hear(&mut world);
        let heard = client.heard(id);
        let line = format!(":status: {status}\n");
        assert!(heard.blocks[0].starts_with(&line), "{heard:?}");
        assert!(heard.has_ended && heard.reset.is_none(), "{heard:?}");
    }
    // An upgrade is a field of a connection.
    let upgrade = [&GET[..], &[("upgrade", "websocket")]].concat();
    client.request(&mut world, 11, &upgrade, true);
    client.hear(&mut world);
    assert_eq!(client.heard(11).reset, Some(1));
}

#[test]
fn a_backend_that_dies_is_tried_again_before_and_resets_after_the_head() {
    let mut world = World::new(with_http2(&[8080, 8081]), &[8080, 8081]);
    let mut client = Client::new(&mut world, &[]);
    client.request(&mut world, 1, &GET, true);
    let first = world.backend(8080);
    world.abort(first);
    let second = world.backend(8081);
    world.send(second, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc");
    client.hear(&mut world);
    assert_eq!(client.heard(1).content, b"abc");
    world.abort(second);
    client.hear(&mut world);
    assert_eq!(client.heard(1).reset, Some(2), "INTERNAL_ERROR");
    // The connection lives on.
    client.request(&mut world, 3, &GET, true);
    let backend = world.backend(8080);
    world.send(backend, response("yes"));
    client.hear(&mut world);
    assert_eq!(client.heard(3).content, b"yes");
}

#[test]
fn a_cancelled_request_leaves_its_backend() {
    let mut world = World::new(with_http2(&[8080]), &[8080]);
    let mut client = Client::new(&mut world, &[]);
    client.request(&mut world, 1, &GET, true);
    let backend = world.backend(8080);
    client.reset(&mut world, 1);
    assert!(world.has_ended(backend), "the backend need not answer");
    assert_eq!(world.proxy().sessions(), 1);
    // So does a client that goes.
    client.request(&mut world, 3, &GET, true);
    let backend = world.backend(8080);
    world.abort(client.stream);
    assert!(world.has_ended(backend));
    assert_eq!(world.proxy().sessions(), 0);
    let counters = world.counters();
    assert_eq!(
        (counters.connections_accepted, counters.connections_closed),
        (1, 1)
    );
}

/// Covers: RFC 9113 §6.8
#[test]
fn a_drain_completes_responses_and_says_so_twice() {
    let mut world = World::new(with_http2(&[8080]), &[8080]);
    let mut client = Client::new(&mut world, &[]);
    client.request(&mut world, 1, &GET, true);
    let first = world.backend(8080);
    let is_empty = world.drain();
    client.hear(&mut world);
    assert_eq!(client.goaways, [(u32::MAX >> 1, 0)]);
    // A request was in flight.
    client.request(&mut world, 3, &GET, true);
    let second = world.backend(8080);
    assert_ne!(first, second);
    world.pass(Duration::from_millis(1100));
    client.hear(&mut world);
    assert_eq!(client.goaways[1..], [(3, 0)]);
    client.request(&mut world, 5, &GET, true);
    client.hear(&mut world);
    assert_eq!(client.heard(5).reset, Some(7), "REFUSED_STREAM");
    for (id, backend) in [(1, first), (3, second)] {
        assert!(!is_empty.load(Ordering::Relaxed));
        world.send(backend, response("bye"));
        client.hear(&mut world);
        let heard = client.heard(id);
        assert_eq!((&*heard.content, heard.has_ended), (&b"bye"[..], true));
    }
    world.pass(Duration::from_millis(200));
    assert!(world.has_ended(client.stream));
    world.finish(client.stream);
    world.pass(Duration::from_millis(200));
    assert!(is_empty.load(Ordering::Relaxed));
}

#[test]
fn other_clients_still_speak_http_1_1() {
    let mut world = World::new(with_http2(&[8080]), &[8080]);
    let client = world.client("PRI");
    world.send(client, "NT / HTTP/1.1\r\nHost: h\r\n\r\n");
    let backend = world.backend(8080);
    assert!(world.take(backend).starts_with("PRINT / HTTP/1.1\r\n"));
    // Where HTTP/2 is not permitted, its preface is a request of an unknown version.
    let mut world = World::new(crate::world::config(&[8080]), &[8080]);
    let client = world.client("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    assert!(world.take(client).starts_with("HTTP/1.1 505 "));
}

/// Covers: RFC 9113 §5.1.1
#[test]
fn a_request_on_an_id_that_was_skipped_ends_the_connection() {
    let mut world = World::new(with_http2(&[8080]), &[8080]);
    let mut client = Client::new(&mut world, &[]);
    for id in [1, 7] {
        client.request(&mut world, id, &GET, true);
        let backend = world.backend(8080);
        world.send(backend, response("x"));
    }
    client.hear(&mut world);
    assert!(client.heard(7).has_ended && client.goaways.is_empty());
    client.request(&mut world, 5, &GET, true);
    client.hear(&mut world);
    assert_eq!(client.goaways, [(7, 1)], "PROTOCOL_ERROR");
}

/// Covers: RFC 7541 §4.2
#[test]
fn a_table_that_shrinks_and_grows_between_two_blocks_is_announced_twice() {
    for settings in [
        vec![vec![(1, 0), (1, 4096)]],
        vec![vec![(1, 0)], vec![(1, 4096)]],
    ] {
        let mut world = World::new(with_http2(&[8080]), &[8080]);
        let mut client = Client::new(&mut world, &[]);
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nCache-Control: no-store\r\n\r\n";
        client.request(&mut world, 1, &GET, true);
        let backend = world.backend(8080);
        world.send(backend, head);
        client.hear(&mut world);
        for values in settings {
            let value =
                |&(id, value): &(u16, u32)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat();
            let payload: Vec<u8> = values.iter().flat_map(value).collect();
            client.frame(&mut world, kind::SETTINGS, 0, &payload);
        }
        client.hear(&mut world);
        client.request(&mut world, 3, &GET, true);
        let backend = world.backend(8080);
        world.send(backend, head);
        let bytes = world.take_bytes(client.stream);
        // HEADERS, with the sizes 0 and 4096 before the first field.
        let header = [kind::HEADERS, 5, 0, 0, 0, 3, 0x20, 0x3f, 0xe1, 0x1f];
        assert!(bytes.windows(10).any(|it| it == header), "{bytes:x?}");
    }
}
