//! Links that a browser gets before the response (RFC 8297).

use server::{Config, EarlyHint, HttpVersion, Redirect, Rule, Scheme, SigningKeys, Site};

use crate::carriers::{CARRIERS, Carrier, ask};
use crate::http2::client::{Client, request};
use crate::http3::client;
use crate::lab::Lab;

const STYLE: &str = "</style.css>; rel=preload; as=style";
const CDN: &str = "<https://cdn.example>; rel=preconnect";
const NAVIGATION: (&str, &str) = ("sec-fetch-mode", "navigate");

fn rule(pattern: &str) -> Rule {
    Rule {
        early_hints: [STYLE, CDN]
            .map(|text| EarlyHint::new(text).unwrap())
            .into(),
        ..Rule::new(pattern.parse().unwrap())
    }
}

fn lab() -> Lab {
    let moved = Rule {
        redirect: Redirect::new(302, "/").ok(),
        ..rule("/moved")
    };
    let mut keys = SigningKeys::default();
    keys.add("k", b"0123456789abcdef").unwrap();
    let signed = Rule {
        signed: Some(keys),
        ..rule("/signed")
    };
    let site = Site {
        rules: vec![moved, signed, rule("/*.html"), rule("/")],
        ..Site::default()
    };
    let mut lab = Lab::alone(Config {
        sites: vec![site],
        http2_prior_knowledge: true,
        ..Config::default()
    });
    lab.file_of("index.html", vec![b'x'; 100_000], 1);
    lab.file_of("a.css", "style", 1);
    lab
}

fn hints() -> Vec<(String, String)> {
    let fields = [(":status", "103"), ("link", STYLE), ("link", CDN)];
    fields
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
}

/// Covers: RFC 8297 §2, RFC 9113 §8.1, RFC 9114 §4.1
#[test]
fn a_navigation_gets_hints_before_its_response() {
    let mut lab = lab();
    for carrier in CARRIERS {
        let has_hints = carrier.0 != HttpVersion::Http1;
        let expected = if has_hints { vec![hints()] } else { Vec::new() };
        let before = lab.counters().responses_1xx;
        for (target, fields, status, has_links) in [
            ("/", &[][..], 200, true),
            ("/index.html", &[], 200, true),
            ("/index.html", &[("if-none-match", "*")], 304, false),
            ("/none.html", &[], 404, false),
        ] {
            let fields = [&[NAVIGATION], fields].concat();
            let response = ask(&mut lab, carrier, ["GET", "example.org", target], &fields);
            assert_eq!(response.status, status, "{carrier:?} {target}");
            assert_eq!(response.interim, expected, "{carrier:?} {target}");
            let links = if has_links { &[STYLE, CDN][..] } else { &[] };
            assert_eq!(response.values("link"), links, "{carrier:?} {target}");
            if status == 200 {
                assert!(response.body == vec![b'x'; 100_000]);
            }
        }
        let count = lab.counters().responses_1xx - before;
        assert_eq!(count, if has_hints { 4 } else { 0 });
    }
    assert_eq!(lab.files_left_open(), 0);
}

#[test]
fn other_requests_get_none() {
    let mut lab = lab();
    for carrier in CARRIERS {
        for ([method, target], fields, status) in [
            (["GET", "/"], &[][..], 200),
            (["GET", "/"], &[("sec-fetch-mode", "no-cors")], 200),
            (["HEAD", "/"], &[NAVIGATION], 200),
            (["OPTIONS", "/"], &[NAVIGATION], 204),
            (["POST", "/"], &[NAVIGATION], 405),
            (["GET", "/a.css"], &[NAVIGATION], 200),
            (["GET", "/moved"], &[NAVIGATION], 302),
            (["GET", "/signed"], &[NAVIGATION], 403),
            (["GET", "/%zz"], &[NAVIGATION], 400),
        ] {
            let request = [method, "example.org", target];
            let response = ask(&mut lab, carrier, request, fields);
            assert_eq!(response.status, status, "{carrier:?} {target}");
            assert!(response.interim.is_empty(), "{carrier:?} {target}");
        }
    }
    assert_eq!(lab.counters().responses_1xx, 0);
}

/// Hints leave while the file is being opened: that is what they are for.
#[test]
fn hints_do_not_wait_for_the_file() {
    let mut lab = lab();
    lab.hold_opens();
    let mut browser = Client::open(&mut lab);
    let id = browser.send_request(&mut lab, &request("GET", "/", &[NAVIGATION]), true);
    assert_eq!(browser.received(&lab, id).interim, [hints()]);
    let connection = lab.http3();
    let stream = lab.send_all(connection, &client::request("GET", "/", &[NAVIGATION]));
    let early = lab.received(stream);
    assert!(!early.is_empty() && !lab.is_shut_down(stream));
    lab.answer_opens();
    let response = lab.response3(stream);
    assert_eq!((response.status, response.interim), (200, vec![hints()]));
    assert!(lab.received(stream).starts_with(&early));
    assert_eq!(browser.response(&mut lab, id).status, 200);
}

/// A response that follows at once comes behind them, in whatever pieces the stream takes both.
#[test]
fn hints_precede_the_response_on_a_stream_that_is_full() {
    for queue_bytes in [1, 7, 100, 1000] {
        let mut lab = lab();
        let mut browser = Client::open(&mut lab);
        let stream = browser.stream;
        lab.limit_queue(stream, queue_bytes);
        let id = browser.send_request(&mut lab, &request("GET", "/", &[NAVIGATION]), true);
        let response = browser.response(&mut lab, id);
        assert_eq!((response.status, response.interim.len()), (200, 1));
        let connection = lab.http3();
        let stream = lab.begin(connection, b"");
        lab.limit_queue(stream, queue_bytes);
        lab.send(stream, client::request("GET", "/", &[NAVIGATION]));
        lab.finish(stream);
        let response = lab.response3(stream);
        assert_eq!((response.status, response.interim.len()), (200, 1));
        assert_eq!(lab.files_left_open(), 0);
    }
}

/// Covers: RFC 9113 §6.5.2
#[test]
fn a_client_that_takes_no_such_fields_gets_the_response_alone() {
    let mut lab = lab();
    lab.file_of("short.html", "x", 1);
    let mut browser = Client::connect(&mut lab, &[(6, 600)]);
    let id = browser.send_request(
        &mut lab,
        &request("GET", "/short.html", &[NAVIGATION]),
        true,
    );
    let whole = browser.response(&mut lab, id);
    assert_eq!((whole.status, whole.interim.len()), (200, 1));
    let mut browser = Client::connect(&mut lab, &[(6, 180)]);
    let id = browser.send_request(&mut lab, &request("GET", "/none.html", &[NAVIGATION]), true);
    assert!(browser.received(&lab, id).interim.is_empty());
}

/// The log has one record of a request, with the bytes of its body.
#[test]
fn the_access_log_notes_the_response_alone() {
    let mut lab = lab();
    lab.log_accesses();
    for carrier in [
        Carrier(HttpVersion::Http2, Scheme::Https),
        Carrier(HttpVersion::Http3, Scheme::Https),
    ] {
        ask(
            &mut lab,
            carrier,
            ["GET", "example.org", "/"],
            &[NAVIGATION],
        );
    }
    let mut noted = Vec::new();
    lab.own_records(|record| {
        noted.push((record.status, record.body_bytes, record.is_cut_short));
    });
    assert_eq!(noted, [(200, 100_000, false); 2]);
}
