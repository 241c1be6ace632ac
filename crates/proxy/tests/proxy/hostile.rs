//! Peers that say too much, too little or nothing, at the worst time.

use std::time::Duration;

use proxy::{Mode, Prefix, Rule};

use crate::world::{GET, World, config, listener, response};

/// A body in which each place can be told from others.
fn body(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at / 7) as u8).collect()
}

fn post(bytes: usize) -> String {
    format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {bytes}\r\n\r\n")
}

#[test]
fn what_stands_behind_a_response_ends_its_connection_wherever_a_read_has_ended() {
    const READS: [usize; 4] = [100, 16 << 10, (16 << 10) + (64 << 10), 4096];
    for whole in READS {
        let mut world = World::new(config(&[9001]), &[9001]);
        let client = world.client(GET);
        let backend = world.backend(9001);
        let head = |length| format!("HTTP/1.1 200 OK\r\nContent-Length: {length:06}\r\n\r\n");
        let length = whole - head(0).len();
        let stray = "HTTP/1.1 200 Stray\r\nContent-Length: 0\r\n\r\n";
        world.send(
            backend,
            [head(length).into_bytes(), body(length), stray.into()].concat(),
        );
        world.send(client, GET);
        assert!(world.backend(9001) != backend && world.has_ended(backend));
        let received = &world.heard(client).received;
        assert!(received.ends_with(&body(length)), "{whole}");
    }
}

/// So many bytes of a body are on their way to a backend that takes nothing.
fn bytes_on_their_way() -> usize {
    let mut world = World::new(config(&[9001]), &[9001]);
    world.apps.others.is_stalled = true;
    let client = world.client(&post(20_000_000));
    world.send(client, body(20_000_000));
    let bytes = world.counters().bytes_in as usize;
    assert!(bytes < 10_000_000, "{bytes} bytes wait");
    bytes
}

#[test]
fn a_connection_whose_backend_has_not_taken_the_request_is_not_used_again() {
    // All of the request has come, and a part of it waits.
    let length = bytes_on_their_way() - 1000;
    let mut world = World::new(config(&[9001]), &[9001]);
    world.apps.others.is_stalled = true;
    let client = world.client(&post(length));
    world.send(client, body(length));
    assert_eq!(world.counters().bytes_in as usize, length);
    let backend = world.backend(9001);
    world.send(backend, response("early"));
    world.resume();
    assert!(world.take(client).ends_with("early"));
    assert!(world.has_ended(backend));
    world.client(GET);
    let again = world.backend(9001);
    assert_ne!(again, backend);
    assert!(world.take(again).starts_with("GET / "));
}

#[test]
fn a_slow_backend_bounds_what_is_read_of_the_client() {
    for in_chunks in [false, true] {
        let mut world = World::new(config(&[9001]), &[9001]);
        world.apps.others.is_stalled = true;
        let body = body(20_000_000);
        let client = if in_chunks {
            let head = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
            let client = world.client(head);
            let size = format!("{:x}\r\n", body.len());
            world.send(client, [size.as_bytes(), &body, b"\r\n0\r\n\r\n"].concat());
            client
        } else {
            let client = world.client(&post(body.len()));
            world.send(client, &body);
            client
        };
        let moved = world.counters().bytes_in;
        assert!(moved < 10_000_000, "{moved} bytes wait");
        world.resume();
        world.pass(Duration::from_secs(5));
        assert_eq!(world.counters().bytes_in as usize, body.len());
        let backend = world.backend(9001);
        world.send(backend, response("x"));
        assert!(world.take(client).ends_with("x"));
    }
}

#[test]
fn a_backend_that_takes_nothing_is_late_and_not_its_client() {
    let length = bytes_on_their_way() + 1000;
    let mut world = World::new(config(&[9001]), &[9001]);
    world.apps.others.is_stalled = true;
    let client = world.client(&post(length));
    world.send(client, body(length));
    world.pass(Duration::from_secs(130));
    world.resume();
    let answer = world.take(client);
    assert!(
        answer.starts_with("HTTP/1.1 504 Gateway Timeout\r\n"),
        "{answer}"
    );
    assert_eq!(world.counters().backend_failures, 1);
}

#[test]
fn a_client_that_takes_little_at_a_time_gets_all_of_it() {
    for end in ["", "Connection: close\r\n"] {
        let mut world = World::new(config(&[9001]), &[9001]);
        let client = world.client(&format!("GET / HTTP/1.1\r\nHost: h\r\n{end}\r\n"));
        let backend = world.backend(9001);
        world.apps.others.is_stalled = true;
        let body = body(3_000_000);
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        world.send(backend, [head.as_bytes(), &body].concat());
        // Ten minutes.
        while world.heard(client).received.len() < head.len() + body.len() {
            world.receive(client, 100_000);
            let heard = world.heard(client);
            let count = heard.received.len();
            assert!(heard.closed.is_none(), "{end:?}: {count} bytes");
            world.pass(Duration::from_secs(20));
        }
        assert!(world.heard(client).received.ends_with(&body));
    }
}

#[test]
fn a_client_that_takes_nothing_is_reset() {
    for length in [100_000, 20_000_000] {
        let mut world = World::new(config(&[9001]), &[9001]);
        world.client("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        let backend = world.backend(9001);
        world.apps.others.is_stalled = true;
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
        world.send(backend, [head.as_bytes(), &body(length)].concat());
        world.pass(Duration::from_secs(130));
        assert_eq!(world.proxy().sessions(), 0, "{length}");
    }
}

#[test]
fn a_response_that_a_reset_has_cut_short_is_never_whole() {
    for version in ["1.1", "1.0"] {
        for text in [
            "HTTP/1.1 200 OK\r\n\r\nabc",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nabc\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabc",
        ] {
            let mut world = World::new(config(&[9001]), &[9001]);
            let client = world.client(&format!("GET / HTTP/{version}\r\nHost: h\r\n\r\n"));
            let backend = world.backend(9001);
            world.send(backend, text);
            world.abort(backend);
            let heard = world.heard(client);
            assert!(heard.closed.is_some() && !heard.has_finished, "{text}");
            assert!(!world.take(client).ends_with("0\r\n\r\n"), "{text}");
            assert_eq!(world.proxy().sessions(), 0);
        }
    }
}

#[test]
fn a_slow_client_has_all_of_a_response_or_a_reset_when_its_backend_vanishes() {
    let mut whole = 0;
    for size in (1..24).map(|step| step * 50_000) {
        for head in [
            format!("Content-Length: {size}\r\n"),
            "Transfer-Encoding: chunked\r\n".to_owned(),
            String::new(),
        ] {
            let mut world = World::new(config(&[9001]), &[9001]);
            let client = world.client("GET / HTTP/1.0\r\n\r\n");
            let backend = world.backend(9001);
            world.apps.others.is_stalled = true;
            let mut message = format!("HTTP/1.1 200 OK\r\n{head}\r\n").into_bytes();
            let body = body(size);
            let is_chunked = head.starts_with("Transfer");
            if is_chunked {
                message.extend(format!("{size:x}\r\n").bytes());
            }
            message.extend(&body);
            if is_chunked {
                message.extend(b"\r\n0\r\n\r\n");
            }
            world.send(backend, message);
            if head.is_empty() {
                world.finish(backend);
            }
            world.abort(backend);
            world.resume();
            world.pass(Duration::from_secs(5));
            let heard = world.heard(client);
            if heard.has_finished {
                assert!(heard.received.ends_with(&body), "{size} {head:?}");
                whole += 1;
            } else {
                assert!(heard.closed.is_some(), "{size} {head:?}");
            }
        }
    }
    assert!(whole > 3, "{whole}");
}

#[test]
fn after_an_interim_response_there_is_no_other_backend() {
    let mut world = World::new(config(&[9001, 9002]), &[9001, 9002]);
    let client = world.client(GET);
    let backend = world.backend(9001);
    world.send(backend, "HTTP/1.1 103 Early Hints\r\n\r\n");
    world.abort(backend);
    let answer = world.take(client);
    assert!(
        answer.starts_with("HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 502 Bad Gateway\r\n"),
        "{answer}"
    );
    assert!(world.accepted(9002).is_empty());
}

#[test]
fn requests_before_the_end_of_a_client_are_all_answered() {
    let mut world = World::new(config(&[9001]), &[9001]);
    let client = world.connect();
    world.send(client, GET.repeat(3));
    world.finish(client);
    for round in 0..3 {
        assert!(!world.has_ended(client), "{round}");
        let backend = world.backend(9001);
        assert!(world.take(backend).starts_with("GET / "));
        world.send(backend, response("x"));
        let answer = world.take(client);
        assert!(answer.ends_with("x"), "{answer}");
        assert_eq!(answer.contains("Connection: close"), round == 2);
    }
    assert!(world.has_ended(client));
}

#[test]
fn a_smuggled_request_reaches_no_backend() {
    let smuggled = "GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n";
    for (head, body) in [
        (
            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
            "0\r\n\r\n",
        ),
        (
            "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
            "0\r\n\r\n",
        ),
        ("Content-Length: 0\r\nContent-Length: 50\r\n", ""),
        ("Content-Length: 0, 50\r\n", ""),
        ("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n"),
        ("Transfer-Encoding: chunked, identity\r\n", "0\r\n\r\n"),
        ("Transfer-Encoding:\u{b}chunked\r\n", "0\r\n\r\n"),
        ("Transfer-Encoding : chunked\r\n", "0\r\n\r\n"),
        ("X: y\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
        ("X: y\r\n Transfer-Encoding: chunked\r\n", "0\r\n\r\n"),
        ("X: y\rTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
        ("Content-Length: 0x5\r\n", "hello"),
        ("Transfer-Encoding: chunked\r\n", "0\n\r\n\r\n"),
        ("Transfer-Encoding: chunked\r\n", "5 \r\nhello\r\n0\r\n\r\n"),
    ] {
        let mut world = World::new(config(&[9001]), &[9001]);
        let client = world.client(&format!(
            "POST / HTTP/1.1\r\nHost: h\r\n{head}\r\n{body}{smuggled}"
        ));
        let answer = world.take(client);
        assert!(answer.starts_with("HTTP/1.1 400 "), "{head:?}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1").count(), 1);
        assert!(world.has_ended(client));
        for backend in world.accepted(9001) {
            assert!(!world.take(backend).contains("smuggled"), "{head:?}");
        }
    }
}

#[test]
fn a_response_head_is_bounded() {
    let mut world = World::new(config(&[9001]), &[9001]);
    for head in [
        format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(20_000)),
        format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: y\r\n".repeat(101)),
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx".to_owned(),
    ] {
        let client = world.client(GET);
        let backend = world.backend(9001);
        world.send(backend, head);
        assert!(world.take(client).starts_with("HTTP/1.1 502 "));
        assert!(world.heard(backend).closed.is_some());
    }
}

#[test]
fn a_connection_without_a_whole_proxy_header_is_reset() {
    let mut config = config(&[9001]);
    config.listeners[0].proxy_from = vec![Prefix {
        address: "10.77.0.0".parse().unwrap(),
        bits: 24,
    }];
    let mut world = World::new(config, &[9001]);
    let signature = b"\r\n\r\n\0\r\nQUIT\n";
    let v2 = |rest: &[u8]| [&signature[..], rest].concat();
    for bytes in [
        b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2 3\r\n".to_vec(),
        b"PROXY TCP4 1.2.3.4 ::1 1 2\r\n".to_vec(),
        b"PROXY TCP4 1.2.3.256 5.6.7.8 1 2\r\n".to_vec(),
        b"PROXY TCP4 1.2.3.4 5.6.7.8 1 70000\r\n".to_vec(),
        b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\n".to_vec(),
        b"PROXY \xff\r\n".to_vec(),
        [&b"PROXY UNKNOWN "[..], &[b'x'; 200]].concat(),
        v2(&[0x11, 0x11, 0, 12]),
        v2(&[0x2f, 0x11, 0, 12]),
        v2(&[0x21, 0x11, 0xff, 0xff]),
        [&v2(&[0x21, 0x11, 0, 4])[..], &[1, 2, 3, 4]].concat(),
    ] {
        let client = world.connect();
        world.send(client, &bytes);
        assert!(world.heard(client).closed.is_some(), "{bytes:?}");
    }
    // One that does not come, or ends too soon.
    for bytes in [&b""[..], b"PROXY TCP4", &signature[..5]] {
        let client = world.connect();
        world.send(client, bytes);
        assert!(world.heard(client).closed.is_none());
        world.finish(client);
        assert!(world.heard(client).closed.is_some());
        let client = world.connect();
        world.send(client, bytes);
        world.pass(Duration::from_secs(16));
        assert!(world.heard(client).closed.is_some());
    }
    assert!(world.accepted(9001).is_empty());
    assert_eq!(world.proxy().sessions(), 0);
}

#[test]
fn the_end_of_a_client_before_its_backend_is_found_goes_on() {
    let mut config = config(&[9001]);
    config.listeners = vec![listener(Mode::Tcp)];
    config.listeners[0].rules = vec![Rule {
        hosts: vec!["a.org".parse().unwrap()],
        path_prefixes: Vec::new(),
        pool: 0,
    }];
    let mut world = World::new(config, &[9001]);
    let client = world.client("\u{16}\u{3}");
    assert!(world.accepted(9001).is_empty());
    world.finish(client);
    let backend = world.backend(9001);
    assert_eq!(world.take(backend), "\u{16}\u{3}");
    assert!(world.heard(backend).has_finished);
    world.send(backend, "bye");
    world.finish(backend);
    assert_eq!(world.take(client), "bye");
}

#[test]
fn a_forwarded_field_that_would_swallow_the_next_one_goes_no_further() {
    let mut config = config(&[9001]);
    config.forwarded = proxy::Forwarded::Forwarded;
    let mut world = World::new(config, &[9001]);
    for (sent, prefix) in [
        ("for=\"x", ""),
        ("for=\"x\\\"", ""),
        ("for=\"[::1]\"", "for=\"[::1]\", "),
    ] {
        world.client(&format!(
            "GET / HTTP/1.1\r\nHost: h\r\nForwarded: {sent}\r\n\r\n"
        ));
        let backend = world.backend(9001);
        let request = world.take(backend);
        let expected = format!("\r\nForwarded: {prefix}for=10.77.0.2;proto=http\r\n");
        assert!(request.contains(&expected), "{request}");
    }
}
