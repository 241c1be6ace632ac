//! Clients, files and streams that take their time.

use std::time::Duration;

use server::Config;

use crate::lab::{Lab, get};

const ALMOST: Duration = Duration::from_millis(1);

#[test]
fn a_head_that_comes_too_slowly_is_answered_408() {
    let config = Config::default();
    let mut lab = Lab::new();
    let client = lab.connect();
    lab.pass(Duration::from_secs(5));
    lab.send(client, "GET / HT");
    lab.pass(config.head_timeout - Duration::from_secs(5) - ALMOST);
    assert_eq!(lab.received(client), b"");
    lab.pass(ALMOST);
    let response = lab.response(client);
    assert_eq!(
        (response.status, response.header("Connection")),
        (408, Some("close"))
    );
    assert!(lab.is_shut_down(client));
    assert_eq!(lab.counters().head_timeouts, 1);
}

#[test]
fn a_byte_now_and_then_does_not_postpone_the_end() {
    let config = Config::default();
    let mut lab = Lab::new();
    let client = lab.connect();
    for byte in get("/").bytes().cycle().take(14) {
        lab.send(client, [byte]);
        lab.pass(config.head_timeout / 15);
    }
    assert!(!lab.is_shut_down(client));
    lab.pass(config.head_timeout / 15);
    assert_eq!(lab.response(client).status, 408);
}

#[test]
fn empty_lines_do_not_postpone_the_end() {
    let mut lab = Lab::new();
    let client = lab.connect();
    for _ in 0..15 {
        lab.send(client, "\r");
        lab.pass(Duration::from_millis(500));
        lab.send(client, "\n");
        lab.pass(Duration::from_millis(500));
    }
    assert!(lab.is_shut_down(client));
    assert_eq!(lab.received(client), b"", "nothing was asked");
}

#[test]
fn who_never_asks_is_closed_without_a_word() {
    let config = Config::default();
    let mut lab = Lab::new();
    let client = lab.connect();
    lab.pass(config.head_timeout);
    assert!(lab.is_shut_down(client));
    assert_eq!(lab.received(client), b"");
    lab.pass(config.linger_timeout);
    assert!(lab.is_aborted(client) && lab.is_closed(client));
}

#[test]
fn an_idle_connection_is_closed_after_its_time() {
    let config = Config::default();
    let mut lab = Lab::new();
    lab.file("a", "here");
    let client = lab.connect();
    for _ in 0..3 {
        lab.ask(client, &get("/a"));
        lab.pass(config.idle_timeout - ALMOST);
        assert!(!lab.is_shut_down(client));
    }
    lab.pass(ALMOST);
    assert!(lab.is_shut_down(client));
    assert_eq!(lab.received(client), b"");
    assert_eq!(lab.counters().idle_timeouts, 1);
    lab.finish(client);
    assert!(lab.is_closed(client) && !lab.is_aborted(client));
}

#[test]
fn a_further_request_has_the_whole_head_timeout() {
    let config = Config::default();
    let mut lab = Lab::new();
    lab.file("a", "here");
    let client = lab.connect();
    lab.ask(client, &get("/a"));
    lab.pass(config.idle_timeout - ALMOST);
    lab.send(client, "GET");
    lab.pass(config.head_timeout - ALMOST);
    assert_eq!(lab.received(client), b"");
    lab.pass(ALMOST);
    assert_eq!(lab.response(client).status, 408);
}

#[test]
fn a_body_that_comes_too_slowly_ends_the_connection_without_a_word() {
    let config = Config::default();
    let mut lab = Lab::new();
    lab.file("a", "here");
    let client = lab.connect();
    lab.send(
        client,
        "GET /a HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nx",
    );
    assert_eq!(lab.response(client).status, 200);
    lab.pass(config.head_timeout);
    assert!(lab.is_shut_down(client));
    assert_eq!(lab.received(client), b"");
}

#[test]
fn a_response_without_progress_is_aborted() {
    let config = Config::default();
    let mut lab = Lab::new();
    lab.file("a", vec![0; 1 << 20]);
    let client = lab.connect();
    lab.acknowledges(client, false);
    lab.send(client, get("/a"));
    lab.pass(config.stall_timeout - ALMOST);
    assert!(!lab.is_aborted(client));
    lab.pass(ALMOST);
    assert!(lab.is_aborted(client) && lab.is_closed(client));
    assert_eq!(lab.counters().stall_timeouts, 1);
}

#[test]
fn a_response_with_slow_progress_goes_on_for_hours_without_a_least_rate() {
    let config = Config {
        bytes_per_second_min: None,
        ..Config::default()
    };
    let mut lab = Lab::with(config.clone());
    lab.file("a", vec![0; 1 << 20]);
    let client = lab.connect();
    lab.acknowledges(client, false);
    lab.send(
        client,
        "GET /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
    );
    for _ in 0..200 {
        lab.pass(config.stall_timeout - ALMOST);
        lab.acknowledge(client, 1);
    }
    assert!(!lab.is_aborted(client));
    // Then the client vanishes. It may take one look more to notice.
    lab.pass(config.stall_timeout * 5 / 4);
    assert!(lab.is_aborted(client));
}

#[test]
fn a_client_below_the_least_rate_is_aborted_and_one_above_it_is_not() {
    let config = Config::default();
    let mut lab = Lab::new();
    lab.file("a", vec![0; 1 << 20]);
    let [fast, slow] = [15_000, 14_999].map(|bytes| {
        let client = lab.connect();
        lab.acknowledges(client, false);
        lab.send(client, get("/a"));
        (client, bytes)
    });
    for _ in 0..20 {
        lab.pass(config.rate_period);
        for (client, bytes) in [fast, slow] {
            if !lab.is_aborted(client) {
                lab.acknowledge(client, bytes);
            }
        }
    }
    assert!(!lab.is_aborted(fast.0));
    assert!(lab.is_aborted(slow.0) && lab.is_closed(slow.0));
    assert_eq!(lab.counters().rate_timeouts, 1);
}

#[test]
fn a_stream_that_never_has_room_is_aborted() {
    let config = Config::default();
    let mut lab = Lab::new();
    let client = lab.connect();
    lab.limit_queue(client, 0);
    lab.send(client, get("/"));
    lab.pass(config.stall_timeout);
    assert!(lab.is_aborted(client));
}

#[test]
fn a_file_that_takes_too_long_to_open_is_answered_503() {
    let config = Config::default();
    let mut lab = Lab::new();
    lab.file("a", "here");
    let client = lab.connect();
    lab.hold_opens();
    lab.send(client, get("/a"));
    lab.pass(config.stall_timeout - ALMOST);
    assert_eq!(lab.received(client), b"");
    lab.pass(ALMOST);
    let response = lab.response(client);
    assert_eq!(
        (response.status, response.header("Connection")),
        (503, Some("close"))
    );
    assert_eq!(lab.counters().open_timeouts, 1);
    assert!(lab.is_shut_down(client));
    // A file that is opened too late is closed, and not sent.
    lab.answer_opens();
    assert_eq!(lab.received(client), b"");
    assert_eq!(lab.files_left_open(), 0);
}

#[test]
fn a_response_has_its_own_time_however_long_open_took() {
    let config = Config::default();
    let mut lab = Lab::new();
    lab.file("a", "here");
    let client = lab.connect();
    lab.acknowledges(client, false);
    lab.hold_opens();
    lab.send(client, get("/a"));
    lab.pass(config.stall_timeout - ALMOST);
    lab.answer_opens();
    lab.pass(config.stall_timeout - ALMOST);
    assert!(!lab.is_aborted(client));
    lab.pass(ALMOST);
    assert!(lab.is_aborted(client));
}

#[test]
fn who_does_not_close_after_the_last_response_is_aborted() {
    let config = Config::default();
    let mut lab = Lab::new();
    lab.file("a", "here");
    let client = lab.connect();
    lab.ask(client, "GET /a HTTP/1.0\r\n\r\n");
    lab.pass(config.linger_timeout - ALMOST);
    assert!(lab.is_shut_down(client) && !lab.is_aborted(client));
    lab.pass(ALMOST);
    assert!(lab.is_aborted(client));
    assert_eq!(lab.counters().linger_timeouts, 1);
}
