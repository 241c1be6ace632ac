//! Windows, bounds and floods of HTTP/2.

use std::time::Duration;

use http2::frame::kind;

use super::client::{Client, GET, POST, with_http2};
use crate::world::{World, response};

/// Covers: RFC 9113 §5.2, RFC 9113 §6.9
#[test]
fn a_client_that_takes_nothing_holds_little_and_delays_no_other_stream() {
    let mut world = World::new(with_http2(&[8080]), &[8080]);
    let mut client = Client::new(&mut world, &[(4, 1000)]);
    let before = world.memory().0;
    client.request(&mut world, 1, &GET, true);
    let backend = world.backend(8080);
    world.send(
        backend,
        "HTTP/1.1 200 OK\r\nContent-Length: 50000000\r\n\r\n",
    );
    world.send(backend, vec![b'x'; 50_000_000]);
    client.hear(&mut world);
    assert_eq!(
        client.heard(1).content.len(),
        1000,
        "the window, to the byte"
    );
    let grown = world.memory().0.saturating_sub(before);
    assert!(grown < 2 << 20, "{grown} bytes are held");
    client.request(&mut world, 3, &GET, true);
    let other = world.backend(8080);
    world.send(other, response("short"));
    client.hear(&mut world);
    assert_eq!(client.heard(3).content, b"short");
    // What the window permits comes at once.
    client.update(&mut world, 1, 500);
    client.hear(&mut world);
    assert_eq!(client.heard(1).content.len(), 1500);
    client.update(&mut world, 0, 50_000_000);
    client.update(&mut world, 1, 50_000_000);
    for _ in 0..100 {
        world.pass(Duration::from_millis(100));
        client.hear(&mut world);
    }
    let heard = client.heard(1);
    assert_eq!((heard.content.len(), heard.has_ended), (50_000_000, true));
    assert!(heard.content.iter().all(|&byte| byte == b'x'));
}

#[test]
fn a_client_that_takes_nothing_for_a_minute_is_reset() {
    let mut world = World::new(with_http2(&[8080]), &[8080]);
    let mut client = Client::new(&mut world, &[(4, 10)]);
    client.request(&mut world, 1, &GET, true);
    let backend = world.backend(8080);
    // All of it is here, and the backend is free.
    world.send(backend, response(&"y".repeat(1000)));
    client.hear(&mut world);
    assert_eq!(client.heard(1).content.len(), 10);
    world.pass(Duration::from_secs(200));
    client.hear(&mut world);
    let heard = client.heard(1);
    assert!(heard.reset.is_some() && !heard.has_ended, "{heard:?}");
}

/// Covers: RFC 9113 §5.2, RFC 9113 §6.9
#[test]
fn a_backend_that_takes_nothing_closes_the_window() {
    let mut config = with_http2(&[8080]);
    config.pools[0].request_buffer_bytes = 0;
    let mut world = World::new(config, &[8080]);
    let mut client = Client::new(&mut world, &[]);
    let window = client.updates.remove(&0).unwrap_or(0) + 65_535;
    assert_eq!(window, 1 << 20, "the window of the connection");
    client.request(&mut world, 1, &POST, false);
    let backend = world.backend(8080);
    world.apps.others.stalled.insert(backend);
    let mut sent = 0;
    let mut left = 65_535;
    while left > 0 {
        let count = left.min(16_384);
        client.data(&mut world, 1, &vec![b'u'; count], false);
        sent += count;
        client.hear(&mut world);
        left = left - count + client.updates.remove(&1).unwrap_or(0) as usize;
        assert!(sent < 20 << 20, "the window stays open");
    }
    // More would be an error of the stream.
    client.data(&mut world, 1, b"!", false);
    client.hear(&mut world);
    assert_eq!(client.heard(1).reset, Some(3), "FLOW_CONTROL_ERROR");
    assert!(world.has_ended(backend) || world.heard(backend).closed.is_some());
}

#[test]
fn an_upload_goes_through_whole() {
    let mut world = World::new(with_http2(&[8080]), &[8080]);
    let mut client = Client::new(&mut world, &[]);
    client.request(
        &mut world,
        1,
        &[&POST[..], &[("content-length", "3000000")]].concat(),
        false,
    );
    let body: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    let (mut sent, mut window) = (0, 65_535);
    while sent < body.len() {
        let count = window.min(10_000).min(body.len() - sent);
        assert!(count > 0, "the window opens");
        let end = sent + count;
        client.data(&mut world, 1, &body[sent..end], end == body.len());
        sent = end;
        client.hear(&mut world);
        window = window - count + client.updates.remove(&1).unwrap_or(0) as usize;
    }
    let backend = world.backend(8080);
    let received = world.take_bytes(backend);
    let start = received
        .windows(4)
        .position(|it| it == b"\r\n\r\n")
        .unwrap()
        + 4;
    assert!(
        received[start..] == body,
        "{} bytes",
        received.len() - start
    );
}

#[test]
fn tiny_frames_become_large_chunks() {
    let mut config = with_http2(&[8080]);
    config.pools[0].request_buffer_bytes = 0;
    let mut world = World::new(config, &[8080]);
    let mut client = Client::new(&mut world, &[]);
    client.request(&mut world, 1, &POST, false);
    let mut many = Vec::new();
    for byte in b"tiny frames".iter().cycle().take(1000) {
        http2::frame::data(&mut many, 1, &[*byte], false);
    }
    world.send(client.stream, many);
    client.data(&mut world, 1, b"", true);
    let backend = world.backend(8080);
    let text = world.take(backend);
    let body = text.split_once("\r\n\r\n").unwrap().1;
    assert!(body.len() < 1200, "{} bytes of 1000", body.len());
    assert!(body.ends_with("0\r\n\r\n"), "{body}");
}

#[test]
fn further_streams_than_permitted_are_refused() {
    let mut config = with_http2(&[8080]);
    config.http2_streams_max = 2;
    let mut world = World::new(config, &[8080]);
    let mut client = Client::new(&mut world, &[]);
    for id in [1, 3, 5] {
        client.request(&mut world, id, &GET, true);
    }
    client.hear(&mut world);
    assert_eq!(client.heard(5).reset, Some(7), "REFUSED_STREAM");
    let backend = world.accepted(8080)[0];
    world.send(backend, response("a"));
    client.request(&mut world, 7, &GET, true);
    client.hear(&mut world);
    assert!(!client.streams.contains_key(&7), "it waits for its backend");
}

/// Covers: RFC 9113 §10.5
#[test]
fn floods_end_the_connection() {
    let unknown: (u8, u32, &[u8]) = (0x55, 0, b"");
    for (kind, stream, payload) in [
        (kind::PING, 0, &[0; 8][..]),
        (kind::SETTINGS, 0, b""),
        (kind::PRIORITY_UPDATE, 0, &[0, 0, 0, 1, b'u']),
        (kind::WINDOW_UPDATE, 0, &[0, 0, 0, 1]),
        unknown,
    ] {
        let mut world = World::new(with_http2(&[8080]), &[8080]);
        let mut client = Client::new(&mut world, &[]);
        for _ in 0..1100 {
            client.frame(&mut world, kind, stream, payload);
            if client.goaways.is_empty() {
                client.hear(&mut world);
            }
        }
        // Time passes between frames, and earns tokens: what counts is that there is an end.
        for _ in 0..40 {
            let mut many = Vec::new();
            for _ in 0..100 {
                let header = http2::frame::Header {
                    payload_bytes: payload.len() as u32,
                    kind,
                    flags: 0,
                    stream,
                };
                header.write(&mut many);
                many.extend_from_slice(payload);
            }
            world.send(client.stream, many);
        }
        client.hear(&mut world);
        assert_eq!(
            client.goaways.last().map(|it| it.1),
            Some(0xb),
            "kind {kind}"
        );
        assert_eq!(world.counters().http2_excessive_loads, 1);
    }
}

/// Covers: RFC 9113 §10.5
#[test]
fn cancelled_requests_are_bounded() {
    let mut world = World::new(with_http2(&[8080]), &[8080]);
    let mut client = Client::new(&mut world, &[]);
    let mut many = Vec::new();
    for at in 0..400 {
        many.extend(client.block(2 * at + 1, &GET, true));
        let header = http2::frame::Header {
            payload_bytes: 4,
            kind: kind::RST_STREAM,
            flags: 0,
            stream: 2 * at + 1,
        };
        header.write(&mut many);
        many.extend_from_slice(&[0, 0, 0, 8]);
    }
    world.send(client.stream, many);
    client.hear(&mut world);
    assert_eq!(
        client.goaways.last().map(|it| it.1),
        Some(0xb),
        "ENHANCE_YOUR_CALM"
    );
    let begun = world.counters().http2_requests;
    assert!((200..300).contains(&begun), "{begun}");
    world.pass(Duration::from_secs(10));
    assert_eq!(world.proxy().sessions(), 0);
}

#[test]
fn an_idle_client_and_one_that_says_nothing_are_closed() {
    let mut world = World::new(with_http2(&[8080]), &[8080]);
    let mut client = Client::new(&mut world, &[]);
    world.pass(Duration::from_secs(60));
    client.hear(&mut world);
    assert_eq!(client.goaways, []);
    world.pass(Duration::from_secs(16));
    client.hear(&mut world);
    assert_eq!(client.goaways, [(0, 0)]);
    let silent = world.client("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    world.pass(Duration::from_secs(30));
    assert!(world.has_ended(silent));
    world.pass(Duration::from_secs(10));
    assert_eq!(world.proxy().sessions(), 0);
}
