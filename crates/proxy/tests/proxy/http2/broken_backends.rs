//! Backends of HTTP/2 that refuse, leave, fail, or break the protocol.

use std::time::Duration;

use http2::frame::{self, kind};

use super::backends::{OK, to_http2};
use super::client::{Client, GET, POST};
use crate::world::{GET as GET_1, World};

/// A backend of a pool of two, and the other's port.
fn first_of_two(world: &mut World) -> (Client, u16) {
    let port = match world.accepted(8080).is_empty() {
        true => 8081,
        false => 8080,
    };
    (Client::backend(world, port, &[]).0, 8080 + 8081 - port)
}

/// Covers: RFC 9113 §8.7
#[test]
fn a_refused_request_goes_to_another_backend_with_its_body() {
    let mut world = World::new(to_http2(&[8080, 8081]), &[8080, 8081]);
    let mut client = Client::new(&mut world, &[]);
    client.request(&mut world, 1, &POST, false);
    let (mut backend, other) = first_of_two(&mut world);
    client.data(&mut world, 1, &[b'a'; 10_000], false);
    client.data(&mut world, 1, &[b'b'; 10_000], false);
    backend.hear(&mut world);
    assert_eq!(backend.heard(1).content.len(), 20_000);
    backend.refuse(&mut world, 1, 7);
    let (mut second, _) = Client::backend(&mut world, other, &[]);
    client.data(&mut world, 1, b"c", true);
    second.hear(&mut world);
    let heard = second.heard(1);
    let body = [&[b'a'; 10_000][..], &[b'b'; 10_000], b"c"].concat();
    assert!(heard.has_ended && heard.content == body);
    second.request(&mut world, 1, &OK, true);
    client.hear(&mut world);
    assert!(client.heard(1).has_ended);
    let counters = world.counters();
    assert_eq!(
        (counters.retries, counters.backend_http2_unprocessed),
        (1, 1)
    );
    assert_eq!(
        world.records(),
        ["200 b".to_owned() + &other.to_string() + " 1 0 POST / HTTP/2.0"]
    );
    assert!(
        world.heard(backend.stream).closed.is_none(),
        "the connection stays"
    );
}

#[test]
fn a_refused_request_whose_body_is_too_long_to_keep_gets_503() {
    let mut world = World::new(to_http2(&[8080, 8081]), &[8080, 8081]);
    let mut client = Client::new(&mut world, &[]);
    client.request(&mut world, 1, &POST, false);
    let (mut backend, other) = first_of_two(&mut world);
    for _ in 0..7 {
        client.data(&mut world, 1, &[b'a'; 10_000], false);
        backend.hear(&mut world);
        let windows = std::mem::take(&mut backend.updates);
        drop(windows);
        backend.update(&mut world, 1, 10_000);
        backend.update(&mut world, 0, 10_000);
    }
    backend.refuse(&mut world, 1, 7);
    client.hear(&mut world);
    let blocks = &client.heard(1).blocks;
    assert!(blocks[0].starts_with(":status: 503\n"), "{blocks:?}");
    assert!(world.accepted(other).is_empty());
}

#[test]
fn all_backends_refuse_and_so_does_the_proxy() {
    let mut world = World::new(to_http2(&[8080]), &[8080]);
    let client = world.client(GET_1);
    let (backend, _) = Client::backend(&mut world, 8080, &[]);
    backend.refuse(&mut world, 1, 7);
    let text = world.take(client);
    assert!(text.starts_with("HTTP/1.1 503 "), "{text}");
    assert!(
        text.ends_with("the backend has refused the request\n"),
        "{text}"
    );
}

/// Covers: RFC 9113 §6.8
#[test]
fn streams_beyond_goaway_have_another_connection_and_the_others_go_on() {
    let mut world = World::new(to_http2(&[8080]), &[8080]);
    let mut client = Client::new(&mut world, &[]);
    client.request(&mut world, 1, &GET, true);
    client.request(&mut world, 3, &POST, false);
    let (mut old, _) = Client::backend(&mut world, 8080, &[]);
    client.data(&mut world, 3, b"body", true);
    old.hear(&mut world);
    assert!(old.heard(3).has_ended);
    old.goaway(&mut world, 1);
    let (mut new, _) = Client::backend(&mut world, 8080, &[]);
    assert_ne!(old.stream, new.stream);
    assert_eq!(new.heard(1).content, b"body");
    new.request(&mut world, 1, &OK, true);
    client.request(&mut world, 5, &GET, true);
    new.hear(&mut world);
    assert!(new.heard(3).has_ended, "nothing new on the old one");
    old.request(&mut world, 1, &OK, false);
    old.data(&mut world, 1, b"late", true);
    client.hear(&mut world);
    assert_eq!(client.heard(1).content, b"late");
    assert!(client.heard(3).has_ended);
    old.hear(&mut world);
    assert_eq!(old.goaways, [(0, 0)], "it is over");
    let of_backend = world.backends()[&("web".to_owned(), "b8080".to_owned())];
    assert_eq!((of_backend.requests_failed, of_backend.ejections), (0, 0));
    // A backend that leaves each time is not tried for ever.
    new.goaway(&mut world, 1);
    let (third, _) = Client::backend(&mut world, 8080, &[]);
    third.goaway(&mut world, 0);
    client.hear(&mut world);
    assert!(client.heard(5).blocks[0].starts_with(":status: 503\n"));
    assert_eq!(world.accepted(8080).len(), 3);
}

#[test]
fn a_connection_that_ends_between_requests_costs_no_get() {
    for ends in [World::finish, World::abort] {
        let mut world = World::new(to_http2(&[8080]), &[8080]);
        let client = world.client(GET_1);
        let (mut backend, _) = Client::backend(&mut world, 8080, &[]);
        backend.request(&mut world, 1, &OK, true);
        assert!(world.take(client).starts_with("HTTP/1.1 200 "));
        // The request meets the end of the connection.
        world.send(client, GET_1);
        backend.hear(&mut world);
        ends(&mut world, backend.stream);
        let (mut new, _) = Client::backend(&mut world, 8080, &[]);
        assert_ne!(new.stream, backend.stream);
        new.request(&mut world, 1, &OK, true);
        assert!(world.take(client).starts_with("HTTP/1.1 200 "));
        assert_eq!(world.counters().backend_failures, 0);
    }
}

#[test]
fn a_backend_that_dies_amid_responses_cuts_them_and_leaves_whole_ones() {
    for ends in [World::finish, World::abort] {
        let mut world = World::new(to_http2(&[8080]), &[8080]);
        let mut client = Client::new(&mut world, &[(4, 10)]);
        for id in [1, 3, 5] {
            client.request(&mut world, id, &GET, true);
        }
        client.request(&mut world, 7, &POST, false);
        let (mut backend, _) = Client::backend(&mut world, 8080, &[]);
        for (id, has_ended) in [(1, true), (3, false)] {
            backend.request(&mut world, id, &OK, false);
            backend.data(&mut world, id, b"0123456789abcdef", has_ended);
        }
        // The client's window holds the last bytes back.
        client.hear(&mut world);
        assert_eq!(client.heard(1).content, b"0123456789");
        ends(&mut world, backend.stream);
        client.update(&mut world, 1, 100);
        client.update(&mut world, 3, 100);
        client.hear(&mut world);
        let whole = client.heard(1);
        assert!(whole.has_ended && whole.reset.is_none(), "{whole:?}");
        assert_eq!(whole.content, b"0123456789abcdef");
        assert!(client.heard(3).reset.is_some() && !client.heard(3).has_ended);
        assert!(client.heard(5).blocks[0].starts_with(":status: 502\n"));
        assert!(client.heard(7).blocks[0].starts_with(":status: 502\n"));
    }
}

#[test]
fn a_stream_that_is_reset_cuts_its_response_or_has_502() {
    let mut world = World::new(to_http2(&[8080]), &[8080]);
    let mut client = Client::new(&mut world, &[]);
    for id in [1, 3] {
        client.request(&mut world, id, &GET, true);
    }
    let (mut backend, _) = Client::backend(&mut world, 8080, &[]);
    backend.request(&mut world, 1, &OK, false);
    backend.data(&mut world, 1, b"some", false);
    backend.refuse(&mut world, 1, 2);
    backend.refuse(&mut world, 3, 2);
    client.hear(&mut world);
    assert!(client.heard(1).reset.is_some() && !client.heard(1).has_ended);
    assert!(client.heard(3).blocks[0].starts_with(":status: 502\n"));
    assert_eq!(world.accepted(8080).len(), 1, "the connection stays");
    backend.hear(&mut world);
    assert!(backend.goaways.is_empty());
}

/// nginx 1.22.1 ends responses without content twice.
///
/// Covers: RFC 9113 §5.1
#[test]
fn an_empty_frame_that_ends_a_stream_again_is_no_error_and_content_is() {
    for (content, has_end, code) in [
        (&b""[..], true, None),
        (b"", false, Some(5)),
        (b"x", true, Some(5)),
    ] {
        let mut world = World::new(to_http2(&[8080]), &[8080]);
        let mut client = Client::new(&mut world, &[]);
        // The request goes on, so that the stream stays.
        client.request(&mut world, 1, &POST, false);
        let (mut backend, _) = Client::backend(&mut world, 8080, &[]);
        let mut frames = backend.block(1, &[(":status", "204")], true);
        frame::data(&mut frames, 1, content, has_end);
        world.send(backend.stream, frames);
        client.hear(&mut world);
        assert_eq!(client.heard(1).blocks, [":status: 204\n"]);
        backend.hear(&mut world);
        let errors = world.counters().backend_http2_stream_errors;
        assert_eq!(errors, u64::from(code.is_some()), "{content:?} {has_end}");
        if let Some(code) = code {
            assert_eq!(backend.heard(1).reset, Some(code));
        }
        assert!(backend.goaways.is_empty());
    }
}

/// Covers: RFC 9113 §8.1.1, RFC 9113 §8.2.2, RFC 9113 §8.3.2
#[test]
fn malformed_responses_are_502_or_a_reset() {
    let ok = (":status", "200");
    let heads: [&[(&str, &str)]; 5] = [
        &[("x", "y")],
        &[ok, ("connection", "close")],
        &[ok, ("X", "y")],
        &[(":status", "101")],
        &[ok, ("content-length", "x")],
    ];
    for head in heads {
        let mut world = World::new(to_http2(&[8080]), &[8080]);
        let mut client = Client::new(&mut world, &[]);
        client.request(&mut world, 1, &GET, true);
        let (mut backend, _) = Client::backend(&mut world, 8080, &[]);
        backend.request(&mut world, 1, head, false);
        client.hear(&mut world);
        let blocks = &client.heard(1).blocks;
        assert!(
            blocks[0].starts_with(":status: 502\n"),
            "{head:?} {blocks:?}"
        );
        backend.hear(&mut world);
        assert_eq!(backend.heard(1).reset, Some(1), "PROTOCOL_ERROR");
        assert_eq!(world.counters().backend_http2_stream_errors, 1);
        assert!(world.heard(backend.stream).closed.is_none());
    }
    // Content before a head, of another length than it says, or that nothing permits; a second
    // head; trailers that do not end.
    let of_length = [ok, ("content-length", "5")];
    type Rest = fn(&mut World, &mut Client);
    let rests: [(&[(&str, &str)], Rest); 5] = [
        (&[], |world, backend| backend.data(world, 1, b"x", true)),
        (&of_length, |world, backend| {
            backend.data(world, 1, b"four", true)
        }),
        (&of_length, |world, backend| {
            backend.data(world, 1, b"sixsix", false)
        }),
        (&[(":status", "204")], |world, backend| {
            backend.data(world, 1, b"x", true)
        }),
        (&OK, |world, backend| backend.request(world, 1, &OK, false)),
    ];
    for (at, (head, rest)) in rests.into_iter().enumerate() {
        let mut world = World::new(to_http2(&[8080]), &[8080]);
        let mut client = Client::new(&mut world, &[]);
        client.request(&mut world, 1, &GET, true);
        let (mut backend, _) = Client::backend(&mut world, 8080, &[]);
        if !head.is_empty() {
            backend.request(&mut world, 1, head, false);
        }
        rest(&mut world, &mut backend);
        client.hear(&mut world);
        let heard = client.heard(1);
        let is_502 = heard
            .blocks
            .first()
            .is_some_and(|it| it.starts_with(":status: 502\n"));
        let is_204 = heard
            .blocks
            .first()
            .is_some_and(|it| it.starts_with(":status: 204\n"));
        assert!(heard.reset.is_some() || is_502 || is_204, "{at}: {heard:?}");
        backend.hear(&mut world);
        // A stream whose both sides have ended cannot be reset.
        assert_eq!(backend.heard(1).reset.is_some(), at != 1, "{at}");
        assert!(backend.goaways.is_empty(), "{at}");
    }
}

#[test]
fn a_backend_of_another_protocol_or_of_no_word_gets_no_request() {
    let mut world = World::new(to_http2(&[8080]), &[8080]);
    let client = world.client(GET_1);
    let backend = world.backend(8080);
    world.send(
        backend,
        "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
    );
    let text = world.take(client);
    assert!(text.starts_with("HTTP/1.1 502 "), "{text}");
    assert_eq!(world.counters().backend_http2_connection_errors, 1);
    let client = world.client(GET_1);
    let backend = world.backend(8080);
    let sent = world.take_bytes(backend);
    assert!(sent.starts_with(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"));
    assert!(
        !sent.windows(4).any(|it| it[..] == [0, 1, 5, 0]),
        "no HEADERS"
    );
    world.pass(Duration::from_secs(6));
    let text = world.take(client);
    assert!(text.starts_with("HTTP/1.1 504 "), "{text}");
    assert!(world.heard(backend).closed.is_some());
    // One that closes at once.
    let client = world.client(GET_1);
    let backend = world.backend(8080);
    world.finish(backend);
    let text = world.take(client);
    assert!(text.starts_with("HTTP/1.1 502 "), "{text}");
    // One that permits no stream.
    let client = world.client(GET_1);
    Client::backend(&mut world, 8080, &[(3, 0)]);
    let text = world.take(client);
    assert!(text.starts_with("HTTP/1.1 502 "), "{text}");
    assert_eq!(world.counters().refused_5xx, 4);
}

/// Covers: RFC 9113 §10.5, RFC 9113 §8.4
#[test]
fn floods_and_broken_frames_end_the_connection() {
    type Flood = fn(&mut Client) -> Vec<u8>;
    let floods: [(Flood, u32); 9] = [
        (|_| Client::raw(kind::PING, 0, &[0; 8]), 11),
        (|_| Client::raw(kind::SETTINGS, 0, &[]), 11),
        (|_| Client::raw(kind::DATA, 1, &[]), 11),
        (|_| Client::raw(kind::WINDOW_UPDATE, 0, &[0, 0, 0, 1]), 11),
        (|it| it.block(1, &[(":status", "103")], false), 11),
        (|_| Client::raw(kind::PUSH_PROMISE, 1, &[0, 0, 0, 2]), 1),
        (|it| it.block(3, &OK, true), 1),
        (|it| it.block(2, &OK, true), 1),
        // CONTINUATION is due, and another frame comes.
        (|_| Client::raw(kind::HEADERS, 1, &[0x3f]), 1),
    ];
    for (at, (flood, code)) in floods.into_iter().enumerate() {
        let mut world = World::new(to_http2(&[8080]), &[8080]);
        let mut client = Client::new(&mut world, &[]);
        client.request(&mut world, 1, &GET, true);
        let (mut backend, _) = Client::backend(&mut world, 8080, &[]);
        if at == 2 {
            backend.request(&mut world, 1, &OK, false);
        }
        let frames: Vec<Vec<u8>> = (0..1500).map(|_| flood(&mut backend)).collect();
        world.send(backend.stream, frames.concat());
        backend.hear(&mut world);
        assert_eq!(backend.goaways, [(0, code)], "{at}");
        assert_eq!(world.counters().backend_http2_connection_errors, 1);
        client.hear(&mut world);
        let heard = client.heard(1);
        assert!(
            heard.reset.is_some() || heard.blocks.last().unwrap().contains("502"),
            "{at}"
        );
        // The next request has another connection.
        client.request(&mut world, 3, &GET, true);
        let (mut next, _) = Client::backend(&mut world, 8080, &[]);
        next.request(&mut world, 1, &OK, true);
        client.hear(&mut world);
        assert!(client.heard(3).has_ended, "{at}");
    }
}

#[test]
fn the_client_leaves_at_each_stage_and_nothing_stays() {
    for stage in 0..4 {
        let mut world = World::new(to_http2(&[8080]), &[8080]);
        let mut client = Client::new(&mut world, &[]);
        client.request(&mut world, 1, &POST, false);
        let mut backend = None;
        if stage > 0 {
            backend = Some(Client::backend(&mut world, 8080, &[]).0);
            client.data(&mut world, 1, b"some", false);
        }
        if let Some(backend) = &mut backend {
            backend.hear(&mut world);
            if stage > 1 {
                backend.request(&mut world, 1, &OK, false);
            }
            if stage > 2 {
                backend.data(&mut world, 1, b"some", false);
            }
        }
        world.abort(client.stream);
        assert_eq!(world.proxy().sessions(), 0, "{stage}");
        let mut backend = backend.unwrap_or_else(|| Client::backend(&mut world, 8080, &[]).0);
        backend.hear(&mut world);
        let reset = backend.streams.get(&1).map(|heard| heard.reset);
        assert_eq!(reset, (stage > 0).then_some(Some(8)), "{stage}");
        let of_backend = world.backends()[&("web".to_owned(), "b8080".to_owned())];
        let gauges = (of_backend.connections, of_backend.connections_idle);
        assert_eq!(gauges, (0, 1), "{stage}");
        let client = world.client(GET_1);
        backend.hear(&mut world);
        let id = *backend.streams.keys().last().unwrap();
        backend.request(&mut world, id, &OK, true);
        assert!(world.take(client).starts_with("HTTP/1.1 200 "), "{stage}");
    }
}

#[test]
fn a_connection_that_takes_nothing_carries_no_further_stream() {
    let mut world = World::new(to_http2(&[8080]), &[8080]);
    let mut client = Client::new(&mut world, &[]);
    client.request(&mut world, 1, &POST, false);
    let (mut old, _) = Client::backend(&mut world, 8080, &[(4, 1 << 30)]);
    old.update(&mut world, 0, 1 << 30);
    client.request(&mut world, 3, &GET, true);
    assert_eq!(world.accepted(8080).len(), 1);
    // Its side of TCP is full.
    world.apps.others.stalled.insert(old.stream);
    let mut left = 65_535;
    while left > 0 {
        let count = left.min(16_384);
        client.data(&mut world, 1, &vec![b'x'; count], false);
        client.hear(&mut world);
        left = left - count + client.updates.remove(&1).unwrap_or(0) as usize;
    }
    world.pass(Duration::from_secs(4));
    client.request(&mut world, 5, &GET, true);
    let (mut new, _) = Client::backend(&mut world, 8080, &[]);
    assert_ne!(new.stream, old.stream);
    new.request(&mut world, 1, &OK, true);
    client.hear(&mut world);
    assert!(client.heard(5).has_ended);
    // It goes on where it was.
    world.resume();
    world.apps.others.stalled.clear();
    world.pass(Duration::from_secs(2));
    old.hear(&mut world);
    old.request(&mut world, 3, &OK, true);
    client.hear(&mut world);
    assert!(client.heard(3).has_ended);
}
