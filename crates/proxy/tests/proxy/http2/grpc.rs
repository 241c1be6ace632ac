//! Calls of gRPC at backends of HTTP/2: messages in both directions, metadata, and their ends.

use std::time::Duration;

use super::backends::{OK, to_http2};
use super::client::{Client, GET, POST, with_http2};
use crate::world::World;

const CALL: [(&str, &str); 9] = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/pkg.Service/Method"),
    (":authority", "h"),
    ("te", "trailers"),
    ("content-type", "application/grpc+proto"),
    ("grpc-timeout", "90S"),
    ("grpc-encoding", "identity"),
    ("some-bin", "AAEC/w=="),
];

const RESPONSE: [(&str, &str); 3] = [
    (":status", "200"),
    ("content-type", "application/grpc+proto"),
    ("more-bin", "//8="),
];

const TRAILERS: [(&str, &str); 3] = [
    ("grpc-status", "0"),
    ("grpc-message", "all%20well"),
    ("last-bin", "AA=="),
];

/// A client and a backend of a call that has begun.
fn call(world: &mut World) -> (Client, Client) {
    let mut client = Client::new(world, &[]);
    client.request(world, 1, &CALL, false);
    let (backend, _) = Client::backend(world, 8080, &[]);
    (client, backend)
}

#[test]
fn metadata_and_trailers_pass_in_both_directions() {
    let mut world = World::new(to_http2(&[8080]), &[8080]);
    let (mut client, mut backend) = call(&mut world);
    client.data(&mut world, 1, b"\0\0\0\0\x01x", false);
    client.request(&mut world, 1, &[("checksum", "5"), ("host", "evil")], true);
    backend.hear(&mut world);
    let heard = backend.heard(1);
    let head = ":method: POST\n:scheme: http\n:authority: h\n:path: /pkg.Service/Method\n\
                content-type: application/grpc+proto\ngrpc-timeout: 90S\n\
                grpc-encoding: identity\nsome-bin: AAEC/w==\nx-forwarded-for: 10.77.0.2\n\
                te: trailers\n";
    assert_eq!(heard.blocks, [head, "checksum: 5\n"]);
    assert!(heard.has_ended && heard.content == b"\0\0\0\0\x01x");
    backend.request(&mut world, 1, &RESPONSE, false);
    backend.data(&mut world, 1, b"\0\0\0\0\0", false);
    backend.request(&mut world, 1, &TRAILERS, true);
    client.hear(&mut world);
    let heard = client.heard(1);
    let blocks = [
        ":status: 200\ncontent-type: application/grpc+proto\nmore-bin: //8=\n",
        "grpc-status: 0\ngrpc-message: all%20well\nlast-bin: AA==\n",
    ];
    assert_eq!(heard.blocks, blocks);
    assert!(heard.has_ended && heard.reset.is_none() && heard.content == [0; 5]);
    assert_eq!(world.counters().bodies_awaited, 0);
}

#[test]
fn a_response_of_trailers_only_ends_the_call_at_once() {
    let mut world = World::new(to_http2(&[8080]), &[8080]);
    let (mut client, mut backend) = call(&mut world);
    client.data(&mut world, 1, b"\0\0\0\0\0", true);
    let only = [&RESPONSE[..2], &[("grpc-status", "12")]].concat();
    backend.request(&mut world, 1, &only, true);
    client.hear(&mut world);
    let heard = client.heard(1);
    let block = &heard.blocks[0];
    assert!(
        block.contains("grpc-status: 12\n") && heard.blocks.len() == 1,
        "{block}"
    );
    assert!(heard.has_ended && heard.content.is_empty() && heard.reset.is_none());
    // One that comes before the request's end ends the request as well.
    client.request(&mut world, 3, &CALL, false);
    backend.request(&mut world, 3, &only, true);
    backend.refuse(&mut world, 3, 0);
    client.hear(&mut world);
    let heard = client.heard(3);
    assert!(
        heard.has_ended && heard.blocks[0].contains("grpc-status: 12\n"),
        "{heard:?}"
    );
    assert_eq!(heard.reset, Some(0), "NO_ERROR: the rest is not wanted");
    assert_eq!(world.accepted(8080).len(), 1);
}

#[test]
fn each_message_passes_before_the_next_one_is_sent() {
    let mut world = World::new(to_http2(&[8080]), &[8080]);
    let (mut client, mut backend) = call(&mut world);
    backend.request(&mut world, 1, &RESPONSE, false);
    client.hear(&mut world);
    assert_eq!(client.heard(1).blocks.len(), 1, "the head goes ahead");
    for round in 0..50_u8 {
        let message = [0, 0, 0, 0, 1, round];
        client.data(&mut world, 1, &message, false);
        backend.hear(&mut world);
        assert!(
            backend.heard(1).content.ends_with(&message),
            "round {round}"
        );
        backend.data(&mut world, 1, &message, false);
        client.hear(&mut world);
        assert!(client.heard(1).content.ends_with(&message), "round {round}");
    }
    // The client has said all, the backend has not.
    client.data(&mut world, 1, b"", true);
    backend.hear(&mut world);
    assert!(backend.heard(1).has_ended && !client.heard(1).has_ended);
    backend.data(&mut world, 1, b"last", false);
    backend.request(&mut world, 1, &TRAILERS, true);
    client.hear(&mut world);
    let (sent, received) = (backend.heard(1), client.heard(1));
    assert_eq!(sent.content.len(), 300);
    assert_eq!(received.content, [&sent.content[..], b"last"].concat());
    assert!(received.has_ended && received.reset.is_none());
}

#[test]
fn a_silent_call_lasts_as_long_as_a_tunnel() {
    for (fields, lasts) in [(&CALL[..], true), (&POST[..], false)] {
        let mut config = to_http2(&[8080]);
        config.tunnel_timeout = Duration::from_secs(3600);
        let mut world = World::new(config, &[8080]);
        let mut client = Client::new(&mut world, &[]);
        client.request(&mut world, 1, fields, false);
        let (mut backend, _) = Client::backend(&mut world, 8080, &[]);
        let alive = |world: &mut World, client: &mut Client| {
            client.hear(world);
            let heard = client.streams.get(&1);
            heard.is_none_or(|it| it.reset.is_none() && !it.has_ended)
        };
        // Neither side has said anything, and the client a message now and then.
        world.pass(Duration::from_secs(1000));
        assert_eq!(alive(&mut world, &mut client), lasts);
        if !lasts {
            continue;
        }
        for _ in 0..10 {
            client.data(&mut world, 1, b"\0\0\0\0\x01x", false);
            world.pass(Duration::from_secs(100));
        }
        backend.request(&mut world, 1, &RESPONSE, false);
        world.pass(Duration::from_secs(3000));
        assert!(alive(&mut world, &mut client));
        client.data(&mut world, 1, b"", true);
        world.pass(Duration::from_secs(3000));
        assert!(alive(&mut world, &mut client));
        world.pass(Duration::from_secs(700));
        assert!(!alive(&mut world, &mut client), "an hour of silence");
        backend.hear(&mut world);
        assert_eq!(backend.heard(1).reset, Some(8), "CANCEL");
    }
}

#[test]
fn a_client_that_cancels_ends_its_stream_alone() {
    let mut world = World::new(to_http2(&[8080]), &[8080]);
    let (mut client, mut backend) = call(&mut world);
    client.request(&mut world, 3, &CALL, false);
    client.request(&mut world, 5, &CALL, false);
    backend.request(&mut world, 3, &RESPONSE, false);
    backend.data(&mut world, 3, b"some", false);
    client.hear(&mut world);
    client.reset(&mut world, 1);
    client.reset(&mut world, 3);
    backend.hear(&mut world);
    assert_eq!(backend.heard(1).reset, Some(8), "CANCEL");
    assert_eq!(backend.heard(3).reset, Some(8), "CANCEL");
    // What was in flight is no error.
    backend.data(&mut world, 3, b"more", false);
    backend.request(&mut world, 3, &TRAILERS, true);
    backend.request(&mut world, 5, &OK, true);
    client.hear(&mut world);
    assert!(client.heard(5).has_ended);
    assert!(backend.goaways.is_empty() && world.accepted(8080).len() == 1);
    // A client that is gone cancels all.
    client.request(&mut world, 7, &CALL, false);
    backend.hear(&mut world);
    world.abort(client.stream);
    backend.hear(&mut world);
    assert_eq!(backend.heard(7).reset, Some(8), "CANCEL");
}

#[test]
fn pings_that_measure_the_path_cost_no_budget() {
    let mut world = World::new(to_http2(&[8080]), &[8080]);
    let (mut client, mut backend) = call(&mut world);
    backend.request(&mut world, 1, &RESPONSE, false);
    for _ in 0..3000 {
        backend.data(&mut world, 1, b"x", false);
        client.hear(&mut world);
        client.frame(&mut world, 6, 0, &[1; 8]);
        client.data(&mut world, 1, b"y", false);
        backend.hear(&mut world);
        backend.frame(&mut world, 6, 0, &[2; 8]);
    }
    client.hear(&mut world);
    backend.hear(&mut world);
    assert_eq!((client.pings, backend.pings), (3000, 3000));
    assert_eq!(client.heard(1).content, vec![b'x'; 3000]);
    assert!(client.goaways.is_empty() && backend.goaways.is_empty());
}

#[test]
fn a_backend_of_http_1_1_gets_neither_te_nor_trailers() {
    let mut config = with_http2(&[8080]);
    config.pools[0].request_buffer_bytes = 0;
    let mut world = World::new(config, &[8080]);
    let mut client = Client::new(&mut world, &[]);
    client.request(&mut world, 1, &CALL, false);
    client.data(&mut world, 1, b"abc", false);
    client.request(&mut world, 1, &[("checksum", "5")], true);
    let backend = world.backend(8080);
    let text = world.take(backend);
    assert!(!text.to_ascii_lowercase().contains("\r\nte:"), "{text}");
    assert!(text.ends_with("\r\n\r\n3\r\nabc\r\n0\r\n\r\n"), "{text}");
}

#[test]
fn a_long_trailer_section_is_an_error_and_one_of_a_length_has_no_place() {
    let mut world = World::new(to_http2(&[8080]), &[8080]);
    let (mut client, mut backend) = call(&mut world);
    let long = "v".repeat(9000);
    backend.request(&mut world, 1, &RESPONSE, false);
    backend.request(
        &mut world,
        1,
        &[("grpc-status", "0"), ("long", &long)],
        true,
    );
    client.hear(&mut world);
    assert!(client.heard(1).reset.is_some() && !client.heard(1).has_ended);
    client.request(&mut world, 3, &GET, true);
    let of_length = [&OK[..], &[("content-length", "1")]].concat();
    backend.request(&mut world, 3, &of_length, false);
    backend.data(&mut world, 3, b"x", false);
    backend.request(&mut world, 3, &[("sum", "0")], true);
    client.hear(&mut world);
    let heard = client.heard(3);
    assert_eq!(heard.blocks, [":status: 200\ncontent-length: 1\n"]);
    assert!(heard.has_ended && heard.content == b"x");
}
