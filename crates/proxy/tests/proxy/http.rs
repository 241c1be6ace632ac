//! Requests and responses: framing, connections that are used again, upgrades, limits.

use std::time::Duration;

use proxy::{Config, Forwarded};

use crate::world::{GET, World, config, response};

#[test]
fn a_request_goes_on_and_its_response_comes_back() {
    let mut world = World::new(config(&[9001]), &[9001]);
    let client = world.client("GET /a?b HTTP/1.1\r\nHost: h\r\nX: y\r\n\r\n");
    let backend = world.backend(9001);
    let request = world.take(backend);
    assert_eq!(
        request,
        "GET /a?b HTTP/1.1\r\nHost: h\r\nX: y\r\nX-Forwarded-For: 10.77.0.2\r\n\r\n"
    );
    world.send(
        backend,
        "HTTP/1.1 200 Fine\r\nA: b\r\nConnection: X\r\nX: 1\r\nContent-Length: 5\r\n\r\nhel",
    );
    world.send(backend, "lo");
    let expected = "HTTP/1.1 200 Fine\r\nA: b\r\nContent-Length: 5\r\n\r\nhello";
    assert_eq!(world.take(client), expected);
    assert_eq!(world.records(), ["200 b9001 0 5 GET /a?b HTTP/1.1"]);
}

#[test]
fn connections_to_backends_are_used_again_also_by_other_clients() {
    let mut world = World::new(config(&[9001]), &[9001]);
    let (one, other) = (world.connect(), world.connect());
    for client in [one, one, other] {
        world.send(client, GET);
        let backend = world.backend(9001);
        assert!(world.take(backend).starts_with("GET / HTTP/1.1\r\n"));
        world.send(backend, response("x"));
        assert!(world.take(client).ends_with("\r\n\r\nx"));
    }
    assert_eq!(world.accepted(9001).len(), 1);
    assert_eq!(world.counters().backend_reuses, 2);
    world.pass(Duration::from_secs(31));
    assert!(
        world.has_ended(world.backend(9001)),
        "it was idle for too long"
    );
    assert!(!world.has_ended(one));
    world.pass(Duration::from_secs(60));
    assert!(world.has_ended(one) && world.has_ended(other));
}

#[test]
fn what_a_backend_says_unasked_is_no_response_to_the_next_request() {
    let mut world = World::new(config(&[9001]), &[9001]);
    let client = world.client(GET);
    let backend = world.backend(9001);
    world.send(
        backend,
        format!("{}HTTP/1.1 200 Smuggled\r\n\r\n", response("x")),
    );
    assert!(world.take(client).ends_with("x"));
    world.send(client, GET);
    assert_ne!(world.backend(9001), backend);
    assert!(world.take(client).is_empty());
    // Nor what comes while the connection waits.
    let backend = world.backend(9001);
    world.send(backend, response("y"));
    world.send(backend, response("stray"));
    world.take(client);
    world.send(client, GET);
    assert_ne!(world.backend(9001), backend);
    assert!(world.take(client).is_empty());
}

#[test]
fn pipelined_requests_are_answered_in_their_order() {
    let mut world = World::new(config(&[9001, 9002]), &[9001, 9002]);
    let client = world.client(&GET.repeat(3));
    for (port, body) in [(9001, "one"), (9002, "two"), (9001, "three")] {
        let backend = world.backend(port);
        world.send(backend, response(body));
        assert!(world.take(client).ends_with(body), "{body}");
    }
}

#[test]
fn chunked_bodies_are_framed_again_both_ways() {
    let mut world = World::new(config(&[9001]), &[9001]);
    let client = world
        .client("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5;evil=1\r\nhel");
    world.send(client, "lo\r\n0\r\nTrailer: no\r\n\r\n");
    let backend = world.backend(9001);
    let request = world.take(backend);
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    assert!(head.ends_with("\r\nTransfer-Encoding: chunked"), "{head}");
    assert_eq!(body, "5\r\nhello\r\n0\r\n\r\n");
    assert_eq!(world.counters().bodies_awaited, 1);
    world.send(
        backend,
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n003\r\nabc\r\n0\r\n\r\n",
    );
    let response = world.take(client);
    assert!(
        response.ends_with("\r\n\r\n3\r\nabc\r\n0\r\n\r\n"),
        "{response}"
    );
    // Both connections go on.
    world.send(client, GET);
    assert_eq!(world.accepted(9001).len(), 1);
}

#[test]
fn a_body_until_the_end_is_chunked_for_the_client() {
    let mut world = World::new(config(&[9001]), &[9001]);
    let client = world.client(GET);
    let backend = world.backend(9001);
    world.send(backend, "HTTP/1.1 200 OK\r\n\r\nabc");
    world.finish(backend);
    let response = world.take(client);
    assert!(
        response.ends_with("Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"),
        "{response}"
    );
    // A client of HTTP/1.0 has the end of the connection instead.
    let client = world.client("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    let backend = world.backend(9001);
    assert!(world.take(backend).contains("\r\nHost: 10.77.0.2:80\r\n"));
    world.send(
        backend,
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    );
    let response = world.take(client);
    assert_eq!(response, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc");
    assert!(world.has_ended(client));
}

#[test]
fn responses_without_a_body_have_none() {
    let mut world = World::new(config(&[9001]), &[9001]);
    let client = world.client("HEAD / HTTP/1.1\r\nHost: h\r\n\r\n");
    let backend = world.backend(9001);
    let heads = [
        "HTTP/1.1 200 OK\r\nContent-Length: 700\r\n\r\n",
        "HTTP/1.1 204 No Content\r\n\r\n",
        "HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n",
    ];
    for head in heads {
        world.send(backend, head);
        assert_eq!(world.take(client), head);
        world.send(client, GET);
    }
    assert_eq!(world.accepted(9001).len(), 1);
}

#[test]
fn interim_responses_go_first_and_not_to_http_1_0() {
    let mut world = World::new(config(&[9001]), &[9001]);
    let head = "PUT / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n";
    let client = world.client(head);
    let backend = world.backend(9001);
    let request = world.take(backend);
    assert!(
        request.contains("\r\nExpect: 100-continue\r\n"),
        "{request}"
    );
    world.send(backend, "HTTP/1.1 100 Continue\r\n\r\n");
    assert_eq!(world.take(client), "HTTP/1.1 100 Continue\r\n\r\n");
    world.send(client, "abc");
    assert_eq!(world.take(backend), "abc");
    world.send(
        backend,
        format!(
            "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n{}",
            response("y")
        ),
    );
    let answer = world.take(client);
    assert!(
        answer.starts_with("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\n"),
        "{answer}"
    );
    let old = world.client("GET / HTTP/1.0\r\n\r\n");
    let backend = world.backend(9001);
    world.send(
        backend,
        format!("HTTP/1.1 103 Early Hints\r\n\r\n{}", response("y")),
    );
    assert!(world.take(old).starts_with("HTTP/1.1 200 OK\r\n"));
}

#[test]
fn a_103_with_framing_fields_ends_at_its_head() {
    let mut world = World::new(config(&[9001]), &[9001]);
    let client = world.client(GET);
    let backend = world.backend(9001);
    let hints = "HTTP/1.1 103 Early Hints\r\nLink: x\r\n";
    let framing = "Content-Length: 7\r\nTransfer-Encoding: chunked\r\n\r\n";
    world.send(backend, format!("{hints}{framing}{}", response("y")));
    let expected = format!("{hints}\r\n{}", response("y"));
    assert_eq!(world.take(client), expected);
    world.send(client, GET);
    assert!(world.take(backend).starts_with("GET / "));
}

#[test]
fn a_space_before_the_colon_of_a_response_field_goes_no_further() {
    let mut world = World::new(config(&[9001]), &[9001]);
    let client = world.client(GET);
    let backend = world.backend(9001);
    let text =
        "HTTP/1.1 200 OK\r\nA : b\r\nConnection : X\r\nX\t: 1\r\nContent-Length : 1\r\n\r\ny";
    world.send(backend, text);
    let expected = "HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: 1\r\n\r\ny";
    assert_eq!(world.take(client), expected);
    // Nor does it hide the second of two lengths.
    world.send(client, GET);
    let both = "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding : chunked\r\n\r\n";
    world.send(world.backend(9001), both);
    assert!(world.take(client).starts_with("HTTP/1.1 502 "));
}

#[test]
fn an_upgrade_becomes_a_tunnel() {
    let mut world = World::new(config(&[9001]), &[9001]);
    let client = world.client(
        "GET /chat HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nearly",
    );
    let backend = world.backend(9001);
    assert!(
        world
            .take(backend)
            .contains("\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n")
    );
    world.send(
        backend,
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
         Connection: Upgrade\r\n\r\nhello",
    );
    let answer = world.take(client);
    assert!(
        answer.starts_with("HTTP/1.1 101 Switching Protocols\r\n"),
        "{answer}"
    );
    assert!(
        answer.ends_with("\r\nConnection: Upgrade\r\n\r\nhello"),
        "{answer}"
    );
    assert_eq!(world.take(backend), "early");
    world.send(client, "\u{1}\u{2}");
    assert_eq!(world.take(backend), "\u{1}\u{2}");
    world.finish(client);
    assert!(world.heard(backend).has_finished && !world.heard(client).has_finished);
    world.send(backend, "rest");
    world.finish(backend);
    assert_eq!(world.take(client), "rest");
    assert!(world.heard(client).has_finished);
    assert_eq!(
        (world.counters().upgrades, world.proxy().sessions()),
        (1, 0)
    );
    assert_eq!(
        world.records(),
        ["101 b9001 0 0 GET /chat HTTP/1.1"].map(|line| {
            // The tunnel's bytes to the client: the head, and what followed.
            line.replacen(
                " 0 GET",
                &format!(" {} GET", answer.len() + "rest".len()),
                1,
            )
        })
    );
}

#[test]
fn requests_in_doubt_are_refused_and_end_the_connection() {
    let mut world = World::new(config(&[9001]), &[9001]);
    for (text, status) in [
        (
            "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            400,
        ),
        ("GET / HTTP/1.1\r\nHost: h\r\nX: a\r\n folded\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/3.0\r\n\r\n", 505),
        (
            &format!("GET / HTTP/1.1\r\nHost: h\r\nX: {}", "x".repeat(20_000)),
            431,
        ),
        (&format!("GET /{}", "x".repeat(9000)), 414),
        ("CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\n\r\n", 501),
    ] {
        let client = world.client(text);
        let answer = world.take(client);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{text}: {answer}"
        );
        assert!(answer.contains("\r\nConnection: close\r\n") && world.has_ended(client));
    }
    assert_eq!(
        (world.accepted(9001).len(), world.counters().refused_4xx),
        (0, 5)
    );
}

#[test]
fn a_chunk_in_doubt_ends_the_request() {
    let mut world = World::new(config(&[9001]), &[9001]);
    for chunk in [
        "+5\r\nhello\r\n",
        "5\nhello\r\n",
        "5\r\nhelloX",
        "ffffffffffffffff\r\n",
    ] {
        let head = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
        let client = world.client(head);
        world.send(client, chunk);
        let answer = world.take(client);
        assert!(
            answer.starts_with("HTTP/1.1 400 Bad Request\r\n"),
            "{chunk:?}: {answer}"
        );
        assert!(world.accepted(9001).is_empty(), "it is read before");
    }
    // Beyond what is waited for, the backend has a part already.
    let size = 100_000;
    let body = [format!("{size:x}\r\n").into_bytes(), vec![b'x'; size]].concat();
    let head = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
    let client = world.client(head);
    world.send(client, body);
    let backend = world.backend(9001);
    assert!(world.heard(backend).closed.is_none());
    world.send(client, "X");
    assert!(
        world
            .take(client)
            .starts_with("HTTP/1.1 400 Bad Request\r\n")
    );
    let closed = world.heard(backend).closed;
    assert!(closed.is_some(), "it must not wait for the rest");
}

#[test]
fn responses_in_doubt_are_a_bad_gateway_and_those_cut_short_a_reset() {
    let mut world = World::new(config(&[9001]), &[9001]);
    for text in [
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 101 Why\r\n\r\n",
        "what?\r\n\r\n",
    ] {
        let client = world.client(GET);
        let backend = world.backend(9001);
        world.send(backend, text);
        let answer = world.take(client);
        assert!(
            answer.starts_with("HTTP/1.1 502 Bad Gateway\r\n"),
            "{text}: {answer}"
        );
    }
    for text in [
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    ] {
        let client = world.client(GET);
        let backend = world.backend(9001);
        world.send(backend, text);
        world.finish(backend);
        assert!(world.heard(client).closed.is_some(), "{text}");
        assert!(!world.take(client).ends_with("0\r\n\r\n"));
    }
}

#[test]
fn a_slow_receiver_bounds_what_is_read_of_the_sender() {
    let mut world = World::new(config(&[9001]), &[9001]);
    let client = world.client(GET);
    let backend = world.backend(9001);
    world.apps.others.is_stalled = true;
    let body: Vec<u8> = (0..20_000_000u32).map(|at| (at / 7) as u8).collect();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    world.send(backend, [head.as_bytes(), &body].concat());
    let moved = world.counters().bytes_out;
    assert!(
        moved < 10_000_000,
        "{moved} bytes wait in the proxy and its stack"
    );
    world.resume();
    world.pass(Duration::from_secs(5));
    let received = &world.heard(client).received;
    assert!(received.ends_with(&body) && received.len() == head.len() + body.len());
}

#[test]
fn fields_say_where_a_request_came_from() {
    let config = Config {
        forwarded: Forwarded::Forwarded,
        via: Some("edge".to_owned()),
        ..config(&[9001])
    };
    let mut world = World::new(config, &[9001]);
    let client = world.client("GET / HTTP/1.1\r\nHost: h\r\nForwarded: for=10.1.1.1\r\n\r\n");
    let backend = world.backend(9001);
    let request = world.take(backend);
    assert!(
        request.contains("\r\nForwarded: for=10.1.1.1, for=10.77.0.2;proto=http\r\n"),
        "{request}"
    );
    assert!(request.contains("\r\nVia: 1.1 edge\r\n"), "{request}");
    world.send(backend, response(""));
    assert!(world.take(client).contains("\r\nVia: 1.1 edge\r\n"));
}

#[test]
fn each_wait_has_its_end() {
    let mut world = World::new(config(&[9001]), &[9001]);
    let silent = world.connect();
    let slow = world.client("GET / HT");
    world.pass(Duration::from_secs(16));
    assert!(world.has_ended(silent) && world.take(silent).is_empty());
    assert!(
        world
            .take(slow)
            .starts_with("HTTP/1.1 408 Request Timeout\r\n")
    );
    let client = world.client(GET);
    world.pass(Duration::from_secs(61));
    assert!(
        world
            .take(client)
            .starts_with("HTTP/1.1 504 Gateway Timeout\r\n")
    );
    // A body that stands still.
    let upload = world.client("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nabc");
    let download = world.client(GET);
    let backend = world.backend(9001);
    world.send(backend, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc");
    world.pass(Duration::from_secs(45));
    assert!(!world.has_ended(upload) && !world.has_ended(download));
    world.pass(Duration::from_secs(16));
    assert!(
        world
            .take(upload)
            .starts_with("HTTP/1.1 408 Request Timeout\r\n")
    );
    assert!(world.heard(download).closed.is_some());
}
