//! However bytes are split, and however little a stream takes at once, the answers are the same.

use std::num::NonZeroU64;

use http::StatusCode;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use server::{Coding, Config, Cors, Pace, Redirect, Rule, SigningKeys, Site};

use crate::lab::{Lab, get};

/// What a client got, and how its connection stands.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    received: Vec<u8>,
    requests: u64,
    shut_down: bool,
    closed: bool,
    files_left_open: usize,
}

/// Small limits, so that they are met.
fn config() -> Config {
    Config {
        head_bytes_max: 300,
        request_line_bytes_max: 120,
        body_bytes_max: 40,
        responses_in_flight_max: 3,
        sites: vec![
            Site {
                precompressed: vec![Coding::Gzip],
                rules: vec![
                    Rule {
                        cors: Some(Cors::any()),
                        pace: Some(Pace {
                            bytes_per_second: NonZeroU64::MIN,
                            at_once_bytes: 5,
                        }),
                        ..Rule::new("/a".parse().unwrap())
                    },
                    Rule {
                        redirect: Some(Redirect::new(302, "/*").unwrap()),
                        ..Rule::new("/to/*".parse().unwrap())
                    },
                    Rule {
                        signed: Some(SigningKeys::default()),
                        ..Rule::new("/empty".parse().unwrap())
                    },
                ],
                error_pages: vec![(StatusCode::FORBIDDEN, "a".parse().unwrap())],
                ..Site::default()
            },
            Site {
                names: vec!["empty".parse().unwrap()],
                index: vec!["none".parse().unwrap(), "empty".parse().unwrap()],
                ..Site::default()
            },
        ],
        ..Config::default()
    }
}

fn run(pieces: &[&[u8]], finish: bool, queue_bytes_max: u64) -> Outcome {
    let mut lab = Lab::with(config());
    lab.file("a", "content of a");
    lab.file("empty", "");
    lab.file("index.html", "<p>");
    lab.file("index.html.gz", "gzip");
    lab.directory("dir");
    let client = lab.connect();
    lab.limit_queue(client, queue_bytes_max);
    for piece in pieces {
        lab.send(client, piece);
    }
    if finish {
        lab.finish(client);
    }
    Outcome {
        received: lab.received(client),
        requests: lab.counters().requests,
        shut_down: lab.is_shut_down(client),
        closed: lab.is_closed(client),
        files_left_open: lab.files_left_open(),
    }
}

/// Pieces of requests, right and wrong, whole and broken.
fn fragment() -> impl Strategy<Value = Vec<u8>> {
    let text = select(vec![
        "GET ",
        "HEAD ",
        "POST ",
        "get ",
        "GET /a HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /a HTTP/1.1\r\nHost: h\r\n",
        "HEAD / HTTP/1.1\nHost: h\n\n",
        "GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        "GET /empty HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nGET /",
        "GET / HTTP/1.1\r\n",
        "GET /dir HTTP/1.1\r\n",
        "/a",
        "/",
        "/%2e%2e",
        "/%",
        "*",
        " ",
        " HTTP/1.1\r\n",
        " HTTP/1.0\r\n",
        " HTTP/2.0\r\n",
        " HTTP/1.",
        " HTTP/1.x\r\n",
        "Host: h\r\n",
        "Host: empty\r\n",
        "OPTIONS ",
        "GET /a HTTP/1.1\r\nHost: h\r\nRange: bytes=1-2,5-\r\n\r\n",
        "GET /a HTTP/1.1\r\nHost: h\r\nIf-None-Match: *\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: empty\r\n\r\n",
        "/to/a",
        "/empty?expires=1&key=a&signature=",
        "Range: bytes=0-0,",
        "Range: bytes=-3\r\n",
        "If-Range: \"\"\r\n",
        "If-Match: W/\"\", *\r\n",
        "If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n",
        "Accept-Encoding: gzip;q=0.5, *;q=0\r\n",
        "Origin: null\r\n",
        "Access-Control-Request-Method: GET\r\n",
        "Content-Length: 3\r\n",
        "Content-Length: 41\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Connection: close\r\n",
        "Expect: 100-continue\r\n",
        "Expect: x\r\n",
        "X: y\r\n",
        " folded\r\n",
        "X : y\r\n",
        "\r\n",
        "\n",
        "\r",
        ":",
        "\0",
        "0\r\n\r\n",
    ]);
    prop_oneof![
        20 => text.prop_map(|text| text.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..20),
        1 => (select(vec![b'x', b' ', b'\n', b'%']), 0..400usize)
            .prop_map(|(byte, count)| vec![byte; count]),
    ]
}

fn cut<'a>(bytes: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    at.extend([0, bytes.len()]);
    at.sort_unstable();
    at.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn splitting_requests_does_not_change_the_answers(
        fragments in vec(fragment(), 0..12),
        cuts in vec(any::<prop::sample::Index>(), 0..20),
        finish in any::<bool>(),
        queue_bytes_max in prop_oneof![Just(u64::MAX), 1..500u64],
    ) {
        let bytes = fragments.concat();
        let whole = run(&[&bytes], finish, u64::MAX);
        prop_assert_eq!(whole.files_left_open, 0);
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        prop_assert_eq!(&run(&single, finish, u64::MAX), &whole);
        prop_assert_eq!(&run(&cut(&bytes, &cuts), finish, queue_bytes_max), &whole);
    }

    #[test]
    fn arbitrary_bytes_are_answered_or_waited_for(
        bytes in vec(any::<u8>(), 0..1000),
        cuts in vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let whole = run(&[&bytes], true, u64::MAX);
        prop_assert!(whole.closed);
        prop_assert_eq!(&run(&cut(&bytes, &cuts), true, u64::MAX), &whole);
    }
}

#[test]
fn a_request_may_come_byte_by_byte() {
    let mut lab = Lab::new();
    lab.file("a", "content of a");
    let client = lab.connect();
    let request = get("/a");
    for byte in request.bytes() {
        assert_eq!(lab.received(client), b"");
        lab.send(client, [byte]);
    }
    assert_eq!(lab.response(client).body, b"content of a");
}
