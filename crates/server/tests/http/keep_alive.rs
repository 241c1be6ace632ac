//! Connections that go on, connections that end, and bodies in between.

use crate::lab::{Lab, get};

#[test]
fn http_1_1_goes_on_until_told_otherwise() {
    let mut lab = Lab::new();
    lab.file("a", "here");
    let client = lab.connect();
    for _ in 0..3 {
        assert_eq!(lab.ask(client, &get("/a")).header("Connection"), None);
    }
    assert!(!lab.is_shut_down(client));
    let response = lab.ask(
        client,
        "GET /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
    );
    assert_eq!(
        (response.header("Connection"), &response.body[..]),
        (Some("close"), &b"here"[..])
    );
    assert!(lab.is_shut_down(client));
    lab.finish(client);
    assert!(lab.is_closed(client) && !lab.is_aborted(client));
}

#[test]
fn http_1_0_ends_unless_asked_to_go_on() {
    let mut lab = Lab::new();
    lab.file("a", "here");
    let client = lab.connect();
    let response = lab.ask(client, "GET /a HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n");
    assert_eq!(response.header("Connection"), Some("keep-alive"));
    assert!(!lab.is_shut_down(client));
    let response = lab.ask(client, "GET /a HTTP/1.0\r\n\r\n");
    assert_eq!(
        (response.header("Connection"), &response.body[..]),
        (Some("close"), &b"here"[..])
    );
    assert!(lab.is_shut_down(client));
}

#[test]
fn nothing_is_answered_after_close() {
    let mut lab = Lab::new();
    lab.file("a", "here");
    let client = lab.connect();
    lab.send(client, "GET /a HTTP/1.0\r\n\r\n".to_owned() + &get("/a"));
    lab.response(client);
    assert_eq!(lab.received(client), b"");
    assert_eq!(lab.counters().requests, 1);
}

#[test]
fn a_client_that_half_closes_gets_everything_it_asked_for() {
    let mut lab = Lab::new();
    lab.file("a", vec![1; 100_000]);
    lab.file("b", vec![2; 100_000]);
    let client = lab.connect();
    lab.hold_opens();
    lab.limit_queue(client, 50);
    lab.send(client, get("/a") + &get("/b") + "GET /c");
    lab.finish(client);
    assert!(!lab.is_shut_down(client));
    lab.answer_opens();
    assert_eq!(lab.response(client).body, vec![1; 100_000]);
    assert_eq!(lab.response(client).body, vec![2; 100_000]);
    assert_eq!(lab.received(client), b"", "half a request has no answer");
    assert!(lab.is_closed(client) && !lab.is_aborted(client));
    assert_eq!(lab.files_left_open(), 0);
}

#[test]
fn bodies_are_skipped() {
    let mut lab = Lab::new();
    lab.file("a", "here");
    let client = lab.connect();
    let body = get("/smuggled").repeat(2000);
    let body = &body[..60_000];
    for method in ["GET", "POST"] {
        let request = format!(
            "{method} /a HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let response = lab.ask(client, &request);
        assert_eq!(
            (response.status, response.header("Connection")),
            (if method == "GET" { 200 } else { 405 }, None)
        );
    }
    lab.send(
        client,
        "GET /a HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nGE",
    );
    assert_eq!(
        lab.response(client).status,
        200,
        "the answer does not wait for the body"
    );
    lab.send(client, "T".to_owned() + &get("/a"));
    assert_eq!(lab.response(client).body, b"here");
    assert_eq!(lab.received(client), b"");
    assert_eq!(lab.counters().requests, 4);
}

#[test]
fn a_body_that_may_never_come_ends_the_connection() {
    let mut lab = Lab::new();
    lab.file("a", "here");
    let client = lab.connect();
    lab.send(
        client,
        "GET /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n",
    );
    let response = lab.response(client);
    assert_eq!(
        (response.status, response.header("Connection")),
        (200, Some("close"))
    );
    assert!(lab.is_shut_down(client));
}

#[test]
fn empty_lines_before_a_request_are_ignored() {
    let mut lab = Lab::new();
    lab.file("a", "here");
    let client = lab.connect();
    assert_eq!(
        lab.ask(client, &("\r\n\n\r\n".to_owned() + &get("/a")))
            .body,
        b"here"
    );
    assert_eq!(
        lab.ask(client, &("\r\n".to_owned() + &get("/a"))).body,
        b"here"
    );
}

#[test]
fn a_client_that_resets_is_forgotten() {
    let mut lab = Lab::new();
    lab.file("a", "here");
    let client = lab.connect();
    lab.hold_opens();
    lab.send(client, get("/a"));
    lab.reset(client);
    // The answer to OPEN comes after the end.
    lab.answer_opens();
    assert_eq!(lab.received(client), b"");
    assert_eq!(lab.counters().connections_closed, 1);
}
