//! What the access log gets to know.

use std::time::Duration;

use server::{AccessRecord, Coding, Config, NO_RESPONSE, Site};

use crate::lab::{Lab, get, get_with};

fn logging() -> Lab {
    let mut lab = Lab::logging(Config::default());
    lab.file("clip.mp4", vec![7; 10_000]);
    lab
}

/// The only record there is, but for its clock.
#[track_caller]
fn only(lab: &mut Lab, look: impl Fn(AccessRecord<'_>)) {
    let mut seen = 0;
    lab.records(|record| {
        seen += 1;
        look(record);
    });
    assert_eq!(seen, 1);
}

/// Line, status, bytes of the body, and whether it was cut short, of each record.
fn summaries(lab: &mut Lab) -> Vec<(String, u16, u64, bool)> {
    let mut all = Vec::new();
    lab.records(|record| {
        let line = String::from_utf8_lossy(record.request_line).into_owned();
        all.push((line, record.status, record.body_bytes, record.is_cut_short));
    });
    all
}

#[test]
fn a_response_is_noted_with_all_that_is_known_of_it() {
    let site = Site {
        names: vec!["example.org".parse().unwrap()],
        precompressed: vec![Coding::Gzip],
        ..Site::default()
    };
    let config = Config {
        sites: vec![Site::default(), site],
        ..Config::default()
    };
    let mut lab = Lab::logging(config);
    lab.file("page.html.gz", "packed");
    lab.hold_opens();
    let stream = lab.connect_from("2001:db8::7");
    lab.acknowledges(stream, false);
    lab.retransmits(stream, 3);
    let fields = [
        ("accept-encoding", "gzip"),
        ("REFERER", " https://example.net/ "),
        ("User-Agent", "a \"b\""),
        ("User-Agent", "another"),
        ("Range", "bytes=-4"),
        ("X-Referer", "no"),
    ];
    lab.send(stream, get_with("/page.html?q", &fields));
    lab.pass(Duration::from_micros(700));
    lab.answer_opens();
    lab.pass(Duration::from_micros(300));
    let unacknowledged = lab.unacknowledged_bytes(stream);
    lab.acknowledge(stream, unacknowledged - 1);
    assert_eq!(lab.records(|record| panic!("{record:?}")), 0);
    let now_us = 1_000;
    lab.acknowledge(stream, 1);
    only(&mut lab, |record| {
        let expected = AccessRecord {
            client: "[2001:db8::7]:40000".parse().unwrap(),
            proxy: None,
            connection: stream.0,
            request: 1,
            ended_us: now_us,
            total_us: 1_000,
            first_byte_us: Some(700),
            status: 200,
            body_bytes: 6,
            offloaded_bytes: 6,
            retransmissions: 3,
            is_cut_short: false,
            tls: None,
            coding: Some("gzip"),
            cache: None,
            backend: None,
            retries: 0,
            site: Some("example.org"),
            request_line: b"GET /page.html?q HTTP/1.1",
            host: Some(b"example.org"),
            range: Some(b"bytes=-4"),
            referer: Some(b"https://example.net/"),
            user_agent: Some(b"a \"b\""),
        };
        assert_eq!(record, expected);
    });
}

#[test]
fn what_is_not_there_is_not_noted() {
    let mut lab = logging();
    let stream = lab.connect();
    lab.ask(stream, "HEAD /clip.mp4 HTTP/1.0\r\n\r\n");
    only(&mut lab, |record| {
        assert_eq!((record.status, record.body_bytes), (200, 0));
        assert_eq!((record.host, record.range), (None, None));
        assert_eq!((record.referer, record.user_agent), (None, None));
        assert_eq!((record.site, record.coding, record.tls), (None, None, None));
    });
}

#[test]
fn each_of_several_on_a_connection_is_noted_when_it_is_acknowledged() {
    let mut lab = logging();
    let stream = lab.connect();
    lab.acknowledges(stream, false);
    lab.send(stream, [get("/clip.mp4"), get("/missing")].concat());
    let first = lab.response(stream);
    let head_bytes = lab.unacknowledged_bytes(stream) - lab.received(stream).len() as u64 - 10_000;
    assert_eq!(first.body.len(), 10_000);
    lab.acknowledge(stream, head_bytes + 10_000);
    // Nothing tells of an acknowledgment but what comes with it.
    lab.send(stream, get("/clip.mp4"));
    let line = |target: &str| format!("GET {target} HTTP/1.1");
    assert_eq!(
        summaries(&mut lab),
        [(line("/clip.mp4"), 200, 10_000, false)]
    );
    let second = lab.response(stream);
    lab.acknowledges(stream, true);
    assert_eq!(
        summaries(&mut lab),
        [
            (line("/missing"), 404, second.body.len() as u64, false),
            (line("/clip.mp4"), 200, 10_000, false),
        ]
    );
}

#[test]
fn what_a_client_did_not_wait_for_is_cut_short() {
    let mut lab = logging();
    let stream = lab.connect();
    lab.acknowledges(stream, false);
    lab.send(stream, [get("/clip.mp4"), get("/clip.mp4")].concat());
    lab.response(stream);
    let head_bytes = lab.unacknowledged_bytes(stream) / 2 - 10_000;
    lab.acknowledge(stream, head_bytes + 1_234);
    lab.reset(stream);
    let line = || "GET /clip.mp4 HTTP/1.1".to_owned();
    assert_eq!(
        summaries(&mut lab),
        [(line(), 200, 1_234, true), (line(), 200, 0, true)]
    );
}

#[test]
fn one_that_was_never_answered_has_a_status_of_its_own() {
    let mut lab = logging();
    lab.hold_opens();
    let stream = lab.connect();
    lab.send(stream, get("/clip.mp4"));
    lab.pass(Duration::from_micros(50));
    lab.reset(stream);
    only(&mut lab, |record| {
        assert_eq!((record.status, record.body_bytes), (NO_RESPONSE, 0));
        assert_eq!((record.first_byte_us, record.total_us), (None, 50));
        assert!(record.is_cut_short && record.host == Some(b"example.org"));
    });
}

#[test]
fn what_could_not_be_read_is_noted_as_it_came() {
    let mut lab = logging();
    for (request, line, status) in [
        ("nonsense\r\n\r\n", "nonsense", 400),
        ("\r\n\nGET / HTTP/9.9\r\n\r\n", "GET / HTTP/9.9", 505),
    ] {
        let stream = lab.connect();
        let body = lab.ask(stream, request).body.len() as u64;
        lab.finish(stream);
        assert_eq!(
            summaries(&mut lab),
            [(line.to_owned(), status, body, false)]
        );
    }
    let stream = lab.connect();
    lab.send(stream, "GET /slow HT");
    lab.pass(Config::default().head_timeout);
    lab.finish(stream);
    let late = summaries(&mut lab);
    assert_eq!((late[0].0.as_str(), late[0].1), ("GET /slow HT", 408));
}

#[test]
fn of_several_ranges_only_the_file_went_past_the_host() {
    let mut lab = logging();
    let stream = lab.connect();
    let request = get_with("/clip.mp4", &[("Range", "bytes=0-9,5000-5019")]);
    let body_bytes = lab.ask(stream, &request).body.len() as u64;
    only(&mut lab, |record| {
        assert_eq!(record.body_bytes, body_bytes);
        assert_eq!(record.offloaded_bytes, 30);
        assert!(body_bytes > 30);
    });
}

#[test]
fn a_log_that_is_behind_delays_no_response_and_what_is_lost_is_counted() {
    let mut lab = logging();
    let stream = lab.connect();
    lab.ask(stream, &get("/clip.mp4"));
    assert_eq!(summaries(&mut lab).len(), 1);
    lab.keeper_is_behind(true);
    let request = get_with("/clip.mp4", &[("User-Agent", &"x".repeat(1_500))]);
    for _ in 0..1_000 {
        lab.ask(stream, &request);
        lab.settle_log();
    }
    lab.keeper_is_behind(false);
    let mut kept = 0;
    lab.records(|record| {
        assert_eq!(record.user_agent.map(<[u8]>::len), Some(1_500));
        kept += 1;
    });
    assert!((200..999).contains(&kept), "{kept}");
    lab.ask(stream, &request);
    let mut last = 0;
    let lost = lab.records(|record| last = record.request);
    assert_eq!((last, lost), (1_002, 1_000 - kept));
}
