//! What is not served, and what becomes of the connection.

use server::Config;

use crate::lab::{Lab, get};

#[test]
fn methods_that_change_things_are_refused_and_the_connection_goes_on() {
    let mut lab = Lab::new();
    lab.file("a", "here");
    let client = lab.connect();
    for (method, status) in [
        ("POST", 405),
        ("PUT", 405),
        ("DELETE", 405),
        ("BREW", 501),
        ("get", 501),
    ] {
        let response = lab.ask(client, &format!("{method} /a HTTP/1.1\r\nHost: h\r\n\r\n"));
        assert_eq!(response.status, status, "{method}");
        assert_eq!(
            response.header("Allow"),
            (status == 405).then_some("GET, HEAD, OPTIONS"),
            "{method}"
        );
    }
    assert_eq!(lab.ask(client, &get("/a")).body, b"here");
}

/// The answer to a request after which nothing more is answered.
#[track_caller]
fn refused(request: &str) -> u16 {
    let mut lab = Lab::new();
    lab.file("a", "smuggled");
    let client = lab.connect();
    lab.send(client, request);
    lab.send(client, get("/a"));
    let response = lab.response(client);
    assert_eq!(response.header("Connection"), Some("close"));
    assert_eq!(lab.received(client), b"", "nothing follows");
    assert!(lab.is_shut_down(client) && !lab.is_aborted(client));
    assert_eq!(lab.opened_paths(), [""; 0], "nothing else was asked");
    assert_eq!(
        lab.unread_bytes(client),
        0,
        "what the client still sends is taken, so that no RST is due"
    );
    lab.finish(client);
    assert!(lab.is_closed(client) && !lab.is_aborted(client));
    response.status
}

#[test]
fn what_is_not_http_is_refused() {
    assert_eq!(refused("\u{16}\u{3}\u{1}\u{2}\0\u{1}\0"), 400);
    assert_eq!(refused("GET /\r\n"), 400);
    assert_eq!(
        refused("GET / HTTP/1.1\r\nHost: h\r\nno colon\r\n\r\n"),
        400
    );
    assert_eq!(
        refused("GET / HTTP/1.1\r\nHost: h\r\nA: b\r\n folded\r\n\r\n"),
        400
    );
    assert_eq!(refused("GET / HTTP/3.0\r\nHost: h\r\n\r\n"), 505);
    assert_eq!(refused("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 505);
}

#[test]
fn a_request_without_one_host_is_refused() {
    assert_eq!(refused("GET / HTTP/1.1\r\n\r\n"), 400);
    assert_eq!(refused("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"), 400);
    assert_eq!(refused("GET / HTTP/1.1\r\nHost: a b\r\n\r\n"), 400);
}

#[test]
fn requests_that_others_may_frame_differently_are_refused() {
    let chunks = "0\r\n\r\n";
    for fields in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
        "Content-Length: 5\r\nContent-Length: 0",
        "Content-Length: 0, 5",
        "Content-Length: +5",
        "Transfer-Encoding : chunked",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding:\u{b}chunked",
    ] {
        assert_eq!(
            refused(&format!(
                "GET / HTTP/1.1\r\nHost: h\r\n{fields}\r\n\r\n{chunks}"
            )),
            400,
            "{fields}"
        );
    }
    assert_eq!(
        refused(&format!(
            "GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}"
        )),
        400
    );
    assert_eq!(
        refused(&format!(
            "GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n{chunks}"
        )),
        501
    );
}

#[test]
fn bodies_without_a_length_are_refused() {
    assert_eq!(
        refused(
            "GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"
        ),
        411
    );
    assert_eq!(
        refused("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        405
    );
}

#[test]
fn bodies_beyond_the_bound_are_refused() {
    assert_eq!(
        refused("GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 65537\r\n\r\n"),
        413
    );
    assert_eq!(
        refused("GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999999999999999\r\n\r\n"),
        413
    );
    assert_eq!(
        refused("PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: 65537\r\n\r\n"),
        405
    );
}

#[test]
fn expectations_other_than_continue_are_refused() {
    assert_eq!(
        refused("GET / HTTP/1.1\r\nHost: h\r\nExpect: the-unexpected\r\n\r\n"),
        417
    );
}

#[test]
fn oversized_heads_are_refused() {
    let config = Config::default();
    let long = "x".repeat(config.head_bytes_max);
    assert_eq!(
        refused(&format!("GET /{long} HTTP/1.1\r\nHost: h\r\n\r\n")),
        414
    );
    assert_eq!(
        refused(&format!("GET / HTTP/1.1\r\nHost: h\r\nX: {long}\r\n\r\n")),
        431
    );
    assert_eq!(
        refused(&format!(
            "GET / HTTP/1.1\r\nHost: h\r\n{}\r\n",
            "a: b\r\n".repeat(100)
        )),
        431
    );
    // A method that never ends is a request line that is too long.
    assert_eq!(refused(&long), 414);
}

#[test]
fn a_client_that_uploads_on_is_read_up_to_a_bound() {
    let config = Config {
        linger_bytes_max: 100_000,
        ..Config::default()
    };
    let mut lab = Lab::with(config.clone());
    let client = lab.connect();
    lab.send(
        client,
        "PUT /a HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000000\r\n\r\n",
    );
    assert_eq!(lab.response(client).status, 405);
    for _ in 0..50 {
        lab.send(client, [0; 10_000]);
    }
    assert!(!lab.is_aborted(client));
    let taken = 500_000 - lab.unread_bytes(client);
    assert!(
        (100_000..100_000 + config.head_bytes_max).contains(&taken),
        "{taken} bytes were read"
    );
    lab.pass(config.linger_timeout);
    assert!(lab.is_aborted(client) && lab.is_closed(client));
    assert_eq!(lab.counters().linger_timeouts, 1);
}
