//! Several requests at once, and streams that take little at once.

use server::Config;

use crate::lab::{Lab, get, head};

#[test]
fn pipelined_requests_are_answered_in_order() {
    let mut lab = Lab::new();
    for name in 0..100 {
        lab.file(&format!("{name}"), format!("content of {name}"));
    }
    let client = lab.connect();
    let all: String = (0..100).map(|name| get(&format!("/{name}"))).collect();
    lab.send(client, all);
    for name in 0..100 {
        assert_eq!(
            lab.response(client).body,
            format!("content of {name}").as_bytes()
        );
    }
    assert_eq!(lab.received(client), b"");
    assert_eq!(lab.files_left_open(), 0);
}

#[test]
fn heads_errors_and_files_mix() {
    let mut lab = Lab::new();
    lab.file("a", "here");
    lab.file("empty", "");
    let client = lab.connect();
    lab.send(
        client,
        head("/a") + &get("/missing") + &get("/empty") + &get("/%") + &get("/a"),
    );
    assert_eq!(lab.response_to_head(client).status, 200);
    assert_eq!(lab.response(client).status, 404);
    assert_eq!(lab.response(client).body, b"");
    assert_eq!(lab.response(client).status, 400);
    assert_eq!(lab.response(client).body, b"here");
    assert_eq!(lab.received(client), b"");
}

#[test]
fn one_file_is_opened_at_a_time() {
    let mut lab = Lab::new();
    let client = lab.connect();
    lab.hold_opens();
    lab.send(client, get("/a") + &get("/b"));
    assert_eq!(lab.opened_paths(), ["a"]);
    lab.answer_opens();
    assert_eq!(lab.opened_paths(), ["a", "b"]);
}

#[test]
fn responses_in_flight_are_bounded() {
    let config = Config {
        responses_in_flight_max: 4,
        ..Config::default()
    };
    let mut lab = Lab::with(config);
    lab.file("a", vec![0; 1000]);
    let client = lab.connect();
    lab.acknowledges(client, false);
    lab.send(client, get("/a").repeat(20));
    assert_eq!(lab.counters().requests, 4);

    // Once the first response is acknowledged, one more may go, as soon as there is reason to look.
    let first = lab.unacknowledged_bytes(client) / 4;
    lab.acknowledge(client, first - 1);
    lab.send(client, get("/a"));
    assert_eq!(lab.counters().requests, 4);
    lab.acknowledge(client, 1);
    lab.send(client, get("/a"));
    assert_eq!(lab.counters().requests, 5);

    lab.acknowledges(client, true);
    assert_eq!(lab.counters().requests, 22);
    for _ in 0..22 {
        assert_eq!(lab.response(client).body, [0; 1000]);
    }
}

#[test]
fn a_client_that_only_sends_fills_its_own_window() {
    let config = Config {
        responses_in_flight_max: 4,
        ..Config::default()
    };
    let mut lab = Lab::with(config.clone());
    lab.file("a", "here");
    let client = lab.connect();
    lab.acknowledges(client, false);
    for _ in 0..100 {
        lab.send(client, get("/a").repeat(100));
    }
    assert_eq!(lab.counters().requests, 4);
    let sent = 100 * 100 * get("/a").len();
    assert!(sent - lab.unread_bytes(client) <= config.head_bytes_max + 4 * get("/a").len());
}

#[test]
fn streams_that_take_little_at_once_get_all() {
    for queue_bytes_max in [1, 2, 7, 100, 1000] {
        let mut lab = Lab::new();
        lab.file("a", "content of a");
        let client = lab.connect();
        lab.limit_queue(client, queue_bytes_max);
        lab.send(
            client,
            get("/a") + &get("/missing") + &head("/a") + &get("/a"),
        );
        assert_eq!(lab.response(client).body, b"content of a");
        assert_eq!(lab.response(client).status, 404);
        assert_eq!(
            lab.response_to_head(client).header("Content-Length"),
            Some("12")
        );
        assert_eq!(lab.response(client).body, b"content of a");
        assert_eq!(lab.received(client), b"");
        assert_eq!(lab.files_left_open(), 0);
    }
}

#[test]
fn a_full_stream_is_left_alone_until_it_has_room() {
    let mut lab = Lab::new();
    lab.file("a", vec![3; 5000]);
    let client = lab.connect();
    lab.acknowledges(client, false);
    lab.limit_queue(client, 100);
    lab.send(
        client,
        "GET /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
    );
    assert_eq!(lab.received(client).len(), 100);
    assert!(!lab.is_shut_down(client), "no FIN before the end");
    lab.acknowledge(client, 60);
    assert_eq!(lab.received(client).len(), 160);
    lab.acknowledges(client, true);
    assert_eq!(lab.response(client).body, [3; 5000]);
    assert!(lab.is_shut_down(client));
}

#[test]
fn connections_do_not_disturb_each_other() {
    let mut lab = Lab::new();
    let clients: Vec<_> = (0..1000).map(|_| lab.connect()).collect();
    lab.hold_opens();
    for (number, &client) in clients.iter().enumerate() {
        lab.file(&format!("{number}"), format!("content of {number}"));
        lab.send(client, get(&format!("/{number}")));
    }
    lab.answer_opens();
    for (number, &client) in clients.iter().enumerate() {
        assert_eq!(
            lab.response(client).body,
            format!("content of {number}").as_bytes()
        );
    }
}

/// A client that pipelines and does not read holds one file at a time.
#[test]
fn a_pipelined_request_is_taken_up_when_the_response_before_it_is_nearly_sent() {
    let mut lab = Lab::new();
    lab.file("large", vec![7; 1 << 20]);
    lab.file("small", "8");
    let client = lab.connect();
    lab.acknowledges(client, false);
    lab.send(client, (get("/large") + &get("/small")).repeat(16));
    assert_eq!(lab.counters().requests, 1);
    lab.acknowledge(client, (1 << 20) - (100 << 10));
    assert_eq!(lab.counters().requests, 1);
    lab.acknowledge(client, 40 << 10);
    // The small one fits beside what is left, and the next large one.
    assert_eq!(lab.counters().requests, 3);
    lab.acknowledges(client, true);
    for _ in 0..16 {
        assert_eq!(lab.response(client).body.len(), 1 << 20);
        assert_eq!(lab.response(client).body, b"8");
    }
}
