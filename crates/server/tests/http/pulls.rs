//! What comes from origins. The test plays who fetches it.

use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use host::app::StreamId;
use http::{HeaderName, HeaderValue, StatusCode};
use server::{
    CacheStatus, Config, Cors, ExtraField, Fallback, Hsts, Object, OriginEvent, Origins, Passed,
    Pull, Rule, RulePull, SigningKeys, Site, Ticket,
};

use crate::http2::client::{Client, request, window_update};
use crate::http3::client;
use crate::lab::{Lab, Response, START, get, get_with, head};

const SEGMENT_BYTES: usize = 1000;

const ORIGIN: &str = "http://a.example";

const LOST: OriginEvent = OriginEvent::Lost {
    status: StatusCode::BAD_GATEWAY,
};

/// What the server has said, and what it is going to hear.
#[derive(Default)]
struct Said {
    asks: Vec<(Ticket, String, String)>,
    /// Of the last of these.
    fields: Vec<(&'static str, String)>,
    wants: Vec<(Ticket, u64)>,
    /// The same, with those behind that are needed.
    needs: Vec<Range<u64>>,
    /// Of these, those that were said to be there.
    missing: Vec<u64>,
    done: Vec<Ticket>,
    news: Vec<(Ticket, OriginEvent)>,
}

struct Fake {
    said: Arc<Mutex<Said>>,
    bell: UnixStream,
}

impl Origins for Fake {
    fn selecting(&self) -> &'static [&'static str] {
        &["accept", "accept-language", "origin"]
    }

    fn ask(
        &mut self,
        ticket: Ticket,
        origin: &Arc<str>,
        target: &str,
        fields: &[(&'static str, String)],
    ) {
        let mut said = self.said.lock().unwrap();
        said.fields = fields.to_vec();
        said.asks
            .push((ticket, origin.to_string(), target.to_owned()));
    }

    fn want(&mut self, ticket: Ticket, segments: Range<u64>) {
        let mut said = self.said.lock().unwrap();
        said.wants.push((ticket, segments.start));
        said.needs.push(segments);
    }

    fn want_again(&mut self, ticket: Ticket, segments: Range<u64>) {
        self.said.lock().unwrap().missing.push(segments.start);
        self.want(ticket, segments);
    }

    fn done(&mut self, ticket: Ticket) {
        self.said.lock().unwrap().done.push(ticket);
    }

    fn hear(&mut self) -> Option<(Ticket, OriginEvent)> {
        self.said.lock().unwrap().news.pop()
    }

    fn wake_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// A lab, and who fetches for its server.
struct Bench {
    lab: Lab,
    said: Arc<Mutex<Said>>,
    /// The same of the lab's twins.
    of_twins: [Arc<Mutex<Said>>; 2],
}

fn pull(pattern: &str) -> Pull {
    Pull {
        pattern: pattern.parse().unwrap(),
        origin: ORIGIN.into(),
    }
}

/// A site of which everything comes from an origin.
fn config() -> Config {
    Config {
        sites: vec![Site {
            pulls: vec![pull("/*")],
            ..Site::default()
        }],
        hidden: Some("cache".parse().unwrap()),
        files_come_first: false,
        ..Config::default()
    }
}

fn fields(fields: &[(&str, &str)]) -> Vec<(HeaderName, HeaderValue)> {
    let field = |&(name, value): &(&str, &str)| (name.parse().unwrap(), value.parse().unwrap());
    fields.iter().map(field).collect()
}

fn content(size_bytes: usize) -> Vec<u8> {
    (0..size_bytes)
        .map(|at| (at / 7 + at / 1000) as u8)
        .collect()
}

fn object(size_bytes: usize) -> Box<Object> {
    Box::new(Object {
        directory: "cache/ab/cd".parse().unwrap(),
        size_bytes: size_bytes as u64,
        segment_bytes: NonZeroU64::new(SEGMENT_BYTES as u64).unwrap(),
        tag: 0x123,
        last_modified_s: Some(START.as_secs() - 1000),
        passed: Passed {
            fields: fields(&[
                ("content-type", "text/x; charset=y"),
                ("content-language", "de"),
                ("cache-control", "max-age=9"),
                ("expires", "0"),
                ("date", "Sun, 06 Nov 1994 08:49:33 GMT"),
            ]),
            age_s: Some(4),
        },
        trailers: Vec::new(),
        present: Vec::new(),
        how: CacheStatus::Hit,
    })
}

impl Bench {
    fn new(config: Config) -> Bench {
        let all = [(), (), ()].map(|()| Arc::new(Mutex::new(Said::default())));
        let fakes = all.each_ref().map(|said| -> Box<dyn Origins> {
            let (bell, _) = UnixStream::pair().unwrap();
            let said = Arc::clone(said);
            Box::new(Fake { said, bell })
        });
        let [said, of_twins @ ..] = all;
        Bench {
            lab: Lab::with_origins(config, fakes),
            said,
            of_twins,
        }
    }

    /// The twins have wanted the same of their origins.
    #[track_caller]
    fn compare(&self) {
        if !self.lab.has_twins() {
            return;
        }
        for of_twin in &self.of_twins {
            let (own, other) = (self.said(), of_twin.lock().unwrap());
            assert_eq!(own.asks, other.asks);
            assert_eq!(own.fields, other.fields);
            assert_eq!((&own.needs, &own.missing), (&other.needs, &other.missing));
            let sorted = |done: &[Ticket]| {
                let mut done = done.to_vec();
                done.sort();
                done
            };
            assert_eq!(sorted(&own.done), sorted(&other.done));
        }
    }

    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap()
    }

    /// What was asked for last.
    fn asked(&self) -> (Ticket, String) {
        let (ticket, origin, target) = self.said().asks.last().expect("something").clone();
        assert_eq!(origin, ORIGIN);
        (ticket, target)
    }

    fn tell(&mut self, ticket: Ticket, news: OriginEvent) {
        for of_twin in &self.of_twins {
            let mut of_twin = of_twin.lock().unwrap();
            of_twin.news.push((ticket, news.clone()));
        }
        self.said().news.push((ticket, news));
        self.lab.wake();
        self.compare();
    }

    /// A segment of an object lies there.
    fn put(&mut self, size_bytes: usize, segment: usize) {
        let content = content(size_bytes);
        let end = size_bytes.min((segment + 1) * SEGMENT_BYTES);
        let bytes = &content[segment * SEGMENT_BYTES..end];
        self.lab.file(&format!("cache/ab/cd/{segment:08x}"), bytes);
    }

    fn put_all(&mut self, size_bytes: usize) {
        for segment in 0..size_bytes.div_ceil(SEGMENT_BYTES) {
            self.put(size_bytes, segment);
        }
    }

    /// Whatever is wanted is there.
    fn serve_all(&mut self) {
        while let Some((ticket, segment)) = { self.said().wants.pop() } {
            self.tell(ticket, OriginEvent::Segment(segment));
        }
    }

    /// A request that is answered with this object, all of which is there; its connection.
    fn ask(&mut self, request: &str, size_bytes: usize) -> StreamId {
        self.put_all(size_bytes);
        let stream = self.lab.connect();
        self.lab.send(stream, request);
        let (ticket, _) = self.asked();
        self.tell(ticket, OriginEvent::Object(object(size_bytes)));
        self.serve_all();
        stream
    }

    /// Nothing is left of what was asked for.
    #[track_caller]
    fn all_done(&self) {
        let mut done = self.said().done.clone();
        done.sort();
        let asked: Vec<Ticket> = self
            .said()
            .asks
            .iter()
            .map(|(ticket, ..)| *ticket)
            .collect();
        assert_eq!(done, asked);
        assert_eq!(self.lab.files_left_open(), 0);
        self.compare();
    }
}

#[test]
fn an_object_comes_with_what_its_origin_says_of_it() {
    let mut bench = Bench::new(config());
    let stream = bench.ask(&get("/a%20b/../x.css?y=z"), 3456);
    assert_eq!(bench.asked().1, "/x.css?y=z");
    let response = bench.lab.response(stream);
    assert_eq!(response.status, 200);
    assert!(response.body == content(3456));
    for (name, value) in [
        ("content-type", "text/x; charset=y"),
        ("content-language", "de"),
        ("content-length", "3456"),
        ("cache-control", "max-age=9"),
        ("expires", "0"),
        ("age", "4"),
        ("etag", "\"0000000000000123\""),
        ("last-modified", "Sun, 06 Nov 1994 08:32:57 GMT"),
        ("accept-ranges", "bytes"),
    ] {
        assert_eq!(response.header(name), Some(value), "{name}");
    }
    bench.all_done();
    assert!(
        bench.lab.has_twins(),
        "all of it went over HTTP/2 and HTTP/3 as well"
    );
}

/// Fields of an origin's answer, by the responses that have them: 200, 200 to HEAD, 206, 304, 416,
/// 412.
const PASSED: [(&str, &str, [bool; 6]); 15] = [
    ("x-any", "b\u{e9}\u{ff}", [true; 6]),
    ("link", "</a>", [true; 6]),
    ("link", "</b>", [true; 6]),
    ("content-security-policy", "default-src 'self'", [true; 6]),
    ("referrer-policy", "same-origin", [true; 6]),
    (
        "access-control-allow-origin",
        "https://a.example",
        [true; 6],
    ),
    ("vary", "Origin", [true; 6]),
    ("cache-control", "max-age=9", OF_OBJECT_AND_304),
    ("cdn-cache-control", "max-age=8", OF_OBJECT_AND_304),
    (
        "expires",
        "Sun, 06 Nov 1994 08:50:33 GMT",
        OF_OBJECT_AND_304,
    ),
    ("content-language", "de", OF_OBJECT),
    ("repr-digest", "sha-256=:a:", OF_OBJECT),
    ("content-location", "/y", OF_OBJECT_AND_304),
    ("content-digest", "sha-256=:b:", OF_WHOLE),
    ("content-md5", "c", OF_WHOLE),
];
const OF_OBJECT_AND_304: [bool; 6] = [true, true, true, true, false, false];
const OF_OBJECT: [bool; 6] = [true, true, true, false, false, false];
const OF_WHOLE: [bool; 6] = [true, false, false, false, false, false];
const DATE_OF_ORIGIN: &str = "Sun, 06 Nov 1994 08:49:33 GMT";

/// An object with those fields.
fn object_with_all(size_bytes: usize) -> Object {
    let fields = PASSED.iter().map(|(name, value, _)| {
        let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
        (name.parse().unwrap(), value)
    });
    let date = self::fields(&[("date", DATE_OF_ORIGIN)]);
    let passed = Passed {
        fields: fields.chain(date).collect(),
        age_s: Some(4),
    };
    Object {
        passed,
        ..*object(size_bytes)
    }
}

/// A 416 or 412 is made now, so a cache must not take the freshness of the object for its own.
///
/// RFC 9110 §15.4.5, RFC 9530 §2, RFC 9111 §3
#[test]
fn a_response_has_those_fields_of_the_origin_that_fit_it() {
    let tag = "\"0000000000000123\"";
    let requests = [
        (200, get("/x")),
        (200, head("/x")),
        (206, get_with("/x", &[("Range", "bytes=5-9")])),
        (304, get_with("/x", &[("If-None-Match", tag)])),
        (416, get_with("/x", &[("Range", "bytes=99-")])),
        (412, get_with("/x", &[("If-Match", "\"other\"")])),
    ];
    for (place, (status, request)) in requests.into_iter().enumerate() {
        let mut bench = Bench::new(config());
        bench.put_all(10);
        let stream = bench.lab.connect();
        bench.lab.send(stream, &request);
        let object = Box::new(object_with_all(10));
        bench.tell(bench.asked().0, OriginEvent::Object(object));
        bench.serve_all();
        let response = match place {
            1 | 3 => bench.lab.response_to_head(stream),
            _ => bench.lab.response(stream),
        };
        assert_eq!(response.status, status);
        let (age, date) = match place {
            0..4 => (Some("4"), DATE_OF_ORIGIN),
            _ => (None, "Sun, 06 Nov 1994 08:49:37 GMT"),
        };
        assert_eq!(response.header("age"), age, "of {status}");
        assert_eq!(response.values("date"), [date], "of {status}");
        for name in PASSED.map(|(name, ..)| name) {
            let of_name = PASSED.iter().filter(|(other, ..)| *other == name);
            let values = of_name.filter(|(.., places)| places[place]);
            let expected: Vec<&str> = values.map(|(_, value, _)| *value).collect();
            assert_eq!(response.values(name), expected, "{name} of {status}");
        }
        assert!(bench.lab.has_twins(), "HTTP/2 and HTTP/3 have the same");
        bench.all_done();
    }
}

/// A client over this version, which has asked for a path that comes from the origin.
enum Asking {
    Http1(StreamId),
    Http2(Box<Client>, u32),
    Http3(StreamId),
}

impl Asking {
    fn all(lab: &mut Lab, path: &str) -> [Asking; 3] {
        let first = lab.connect();
        lab.send(first, get(path));
        let mut browser = Client::open(lab);
        let id = browser.send_get(lab, path);
        let connection = lab.http3();
        let stream = lab.send_all(connection, &client::get(path));
        [
            Asking::Http1(first),
            Asking::Http2(Box::new(browser), id),
            Asking::Http3(stream),
        ]
    }

    fn response(self, lab: &mut Lab) -> Response {
        match self {
            Asking::Http1(stream) => lab.response(stream),
            Asking::Http2(mut browser, id) => browser.response(lab, id),
            Asking::Http3(stream) => lab.response3(stream),
        }
    }
}

/// Covers: RFC 8297 §2
#[test]
fn hints_of_an_origin_precede_its_response() {
    let mut bench = Bench::new(config());
    bench.lab.without_twin();
    bench.put_all(1500);
    let asking = Asking::all(&mut bench.lab, "/x");
    let tickets: Vec<Ticket> = bench
        .said()
        .asks
        .iter()
        .map(|(ticket, ..)| *ticket)
        .collect();
    for &ticket in &tickets {
        for link in ["</a>; rel=preload", "</b>; rel=preload"] {
            let links = vec![HeaderValue::from_static(link)];
            bench.tell(ticket, OriginEvent::EarlyHints(links));
        }
        bench.tell(ticket, OriginEvent::Object(object(1500)));
        // Too late.
        let links = vec![HeaderValue::from_static("</c>; rel=preload")];
        bench.tell(ticket, OriginEvent::EarlyHints(links));
    }
    bench.serve_all();
    for (asking, count) in asking.into_iter().zip([0, 2, 2]) {
        let response = asking.response(&mut bench.lab);
        assert_eq!(response.status, 200);
        assert!(response.body == content(1500));
        let links = response.interim.iter().map(|fields| &fields[1].1[..]);
        let expected = ["</a>; rel=preload", "</b>; rel=preload"];
        assert_eq!(links.collect::<Vec<_>>(), expected[..count]);
    }
    bench.all_done();
}

/// An object with these trailers.
fn object_with_trailers(size_bytes: usize) -> Box<Object> {
    Box::new(Object {
        trailers: fields(&[("x-sum", "1"), ("x-sum", "2"), ("server-timing", "a")]),
        ..*object(size_bytes)
    })
}

/// Covers: RFC 9110 §6.5, RFC 9113 §8.1, RFC 9114 §4.1
#[test]
fn trailers_of_an_origin_end_a_response_with_all_of_its_object() {
    for (size_bytes, path) in [(0, "/x"), (1, "/x"), (1000, "/x"), (100_000, "/x")] {
        let mut bench = Bench::new(config());
        bench.lab.without_twin();
        bench.lab.log_accesses();
        bench.put_all(size_bytes);
        let asking = Asking::all(&mut bench.lab, path);
        let tickets: Vec<Ticket> = bench
            .said()
            .asks
            .iter()
            .map(|(ticket, ..)| *ticket)
            .collect();
        for ticket in tickets {
            bench.tell(
                ticket,
                OriginEvent::Object(object_with_trailers(size_bytes)),
            );
        }
        bench.serve_all();
        for (asking, has_trailers) in asking.into_iter().zip([false, true, true]) {
            let response = asking.response(&mut bench.lab);
            assert_eq!(response.status, 200);
            assert!(response.body == content(size_bytes));
            let length = size_bytes.to_string();
            assert_eq!(response.header("content-length"), Some(&length[..]));
            let trailers = response.trailers.iter();
            let trailers: Vec<_> = trailers
                .map(|(name, value)| (&name[..], &value[..]))
                .collect();
            let expected = [("x-sum", "1"), ("x-sum", "2"), ("server-timing", "a")];
            assert_eq!(trailers, expected[..if has_trailers { 3 } else { 0 }]);
        }
        let mut noted = Vec::new();
        bench
            .lab
            .own_records(|record| noted.push((record.body_bytes, record.is_cut_short)));
        assert_eq!(noted, [(size_bytes as u64, false); 3]);
        bench.all_done();
    }
}

#[test]
fn other_responses_have_no_trailers() {
    let tag = "\"0000000000000123\"";
    for (method, more, status) in [
        ("HEAD", &[][..], 200),
        ("GET", &[("range", "bytes=1-2")], 206),
        ("GET", &[("range", "bytes=0-0,9-9")], 206),
        ("GET", &[("if-none-match", tag)], 304),
        ("GET", &[("if-match", "\"x\"")], 412),
        ("GET", &[("range", "bytes=99-")], 416),
    ] {
        let mut bench = Bench::new(config());
        bench.lab.without_twin();
        bench.put_all(10);
        let mut browser = Client::open(&mut bench.lab);
        let id = browser.send_request(&mut bench.lab, &request(method, "/x", more), true);
        let connection = bench.lab.http3();
        let head = client::request(method, "/x", more);
        let stream = bench.lab.send_all(connection, &head);
        let tickets: Vec<Ticket> = bench
            .said()
            .asks
            .iter()
            .map(|(ticket, ..)| *ticket)
            .collect();
        for ticket in tickets {
            bench.tell(ticket, OriginEvent::Object(object_with_trailers(10)));
        }
        bench.serve_all();
        let responses = [
            browser.response(&mut bench.lab, id),
            bench.lab.response3(stream),
        ];
        for response in responses {
            assert_eq!(response.status, status, "{method} {more:?}");
            assert!(response.trailers.is_empty(), "{method} {more:?}");
        }
        bench.all_done();
    }
}

/// The body has ended where the client's window closes: trailers need none.
///
/// Covers: RFC 9113 §6.9
#[test]
fn trailers_wait_for_the_body_and_for_no_window() {
    let mut bench = Bench::new(config());
    bench.lab.without_twin();
    bench.put_all(1500);
    let mut browser = Client::connect(&mut bench.lab, &[(4, 1000)]);
    let id = browser.send_get(&mut bench.lab, "/x");
    let ticket = bench.asked().0;
    bench.tell(ticket, OriginEvent::Object(object_with_trailers(1500)));
    bench.serve_all();
    let received = browser.received(&bench.lab, id);
    assert_eq!((received.body.len(), received.has_ended), (1000, false));
    assert!(received.trailers.is_empty());
    browser.send(&mut bench.lab, window_update(id, 500));
    let response = browser.response(&mut bench.lab, id);
    assert!(response.body == content(1500));
    assert_eq!(response.trailers.len(), 3);
    bench.all_done();
}

/// Covers: RFC 6797 §7.2
#[test]
fn strict_transport_security_of_an_origin_needs_tls_and_no_other() {
    let hsts = Hsts {
        max_age: Duration::from_secs(9),
        include_subdomains: false,
        preload: false,
    };
    for (own, is_tls, expected) in [
        (None, false, None),
        (None, true, Some("max-age=1")),
        (Some(hsts), false, None),
        (Some(hsts), true, Some("max-age=9")),
    ] {
        let mut config = config();
        config.sites[0].hsts = own;
        let mut bench = Bench::new(config);
        bench.lab.without_twin();
        bench.put_all(10);
        let stream = match is_tls {
            true => bench.lab.connect_with_alpn("http/1.1"),
            false => bench.lab.connect(),
        };
        bench.lab.send(stream, get("/x"));
        let mut object = object(10);
        let of_origin = fields(&[("strict-transport-security", "max-age=1")]);
        object.passed.fields.extend(of_origin);
        bench.tell(bench.asked().0, OriginEvent::Object(object));
        bench.serve_all();
        let response = bench.lab.response(stream);
        let found = response.header("strict-transport-security");
        assert_eq!((response.status, found), (200, expected));
    }
}

#[test]
fn a_rule_decides_before_the_origin() {
    for (origin, allowed) in [("https://b.example", true), ("https://a.example", false)] {
        let mut rule = Rule::new("/*".parse().unwrap());
        rule.cors = Some(Cors::these(&["https://b.example"], false).unwrap());
        rule.fields = vec![ExtraField::new("Link", "</own>").unwrap()];
        let mut config = config();
        config.sites[0].rules = vec![rule];
        let mut bench = Bench::new(config);
        bench.put_all(10);
        let stream = bench.lab.connect();
        bench
            .lab
            .send(stream, get_with("/x", &[("Origin", origin)]));
        let object = Box::new(object_with_all(10));
        bench.tell(bench.asked().0, OriginEvent::Object(object));
        bench.serve_all();
        let response = bench.lab.response(stream);
        let expected = allowed.then_some("https://b.example");
        assert_eq!(response.header("access-control-allow-origin"), expected);
        assert_eq!(response.values("link"), ["</own>"]);
        assert_eq!(response.values("vary"), ["Origin", "Origin"]);
        assert_eq!(response.values("x-any").len(), 1);
    }
}

#[test]
fn a_refusal_has_the_fields_of_the_origin_also_with_a_page_of_the_site() {
    for (status, location, has_page) in [
        (404, None, false),
        (404, None, true),
        (301, Some("/elsewhere"), false),
    ] {
        let mut config = config();
        if has_page {
            let page = (StatusCode::NOT_FOUND, "404.html".parse().unwrap());
            config.sites[0].error_pages = vec![page];
        }
        let mut bench = Bench::new(config);
        bench.lab.file("404.html", "a page");
        let stream = bench.lab.connect();
        bench.lab.send(stream, get("/x"));
        let passed = Passed {
            fields: fields(&[("cache-control", "max-age=60"), ("retry-after", "7")]),
            age_s: Some(9),
        };
        let news = OriginEvent::Refused {
            status: StatusCode::from_u16(status).unwrap(),
            location: location.map(HeaderValue::from_static),
            passed: Some(Box::new(passed)),
            how: CacheStatus::Hit,
        };
        bench.tell(bench.asked().0, news);
        let response = bench.lab.response(stream);
        assert_eq!(response.status, status);
        assert_eq!(response.body == b"a page", has_page);
        for (name, value) in [
            ("cache-control", "max-age=60"),
            ("retry-after", "7"),
            ("age", "9"),
        ] {
            assert_eq!(response.header(name), Some(value), "{name} of {status}");
        }
        // The next response has none of it.
        bench
            .lab
            .send(stream, "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(bench.lab.response(stream).header("retry-after"), None);
    }
}

#[test]
fn no_head_leaves_before_the_first_segment_is_there() {
    for request in [get("/x"), get_with("/x", &[("Range", "bytes=2500-3100")])] {
        let mut bench = Bench::new(config());
        let stream = bench.lab.connect();
        bench.lab.send(stream, &request);
        let ticket = bench.asked().0;
        bench.tell(ticket, OriginEvent::Object(object(10_000)));
        assert_eq!(bench.said().wants.len(), 1);
        assert_eq!(bench.lab.unacknowledged_bytes(stream), 0);
        let status = StatusCode::SERVICE_UNAVAILABLE;
        bench.tell(ticket, OriginEvent::Lost { status });
        assert_eq!(bench.lab.response(stream).status, 503);
        bench.lab.send(stream, get("/y"));
        assert_eq!(bench.asked().1, "/y", "and the connection goes on");
    }
}

/// What the origin sends is in memory until the response begins.
#[test]
fn fields_of_what_is_awaited_count_as_memory() {
    const VALUE_BYTES: usize = 20 << 10;
    let long = "x".repeat(VALUE_BYTES);
    let mut config = config();
    let page = (StatusCode::NOT_FOUND, "404.html".parse().unwrap());
    config.sites[0].error_pages = vec![page];
    let mut bench = Bench::new(config);
    bench.put_all(10);
    let stream = bench.lab.connect();
    bench.lab.send(stream, get("/x"));
    let idle_bytes = bench.lab.memory_bytes(stream);
    let mut awaited = object(10);
    awaited.passed.fields = fields(&[("x-any", &long)]);
    bench.tell(bench.asked().0, OriginEvent::Object(awaited));
    let bytes = bench.lab.memory_bytes(stream) - idle_bytes;
    assert!((VALUE_BYTES..2 * VALUE_BYTES).contains(&bytes), "{bytes}");
    bench.serve_all();
    assert_eq!(bench.lab.response(stream).status, 200);
    assert!(bench.lab.memory_bytes(stream) < VALUE_BYTES);
    // A refusal waits for the page that the site has for it.
    bench.lab.send(stream, get("/none"));
    bench.lab.hold_opens();
    let passed = Passed {
        fields: fields(&[("x-any", &long)]),
        age_s: Some(0),
    };
    let refused = OriginEvent::Refused {
        status: StatusCode::NOT_FOUND,
        location: None,
        passed: Some(Box::new(passed)),
        how: CacheStatus::Miss,
    };
    bench.tell(bench.asked().0, refused);
    let bytes = bench.lab.memory_bytes(stream) - idle_bytes;
    assert!((VALUE_BYTES..2 * VALUE_BYTES).contains(&bytes), "{bytes}");
}

#[test]
fn an_origin_gets_the_fields_that_may_select_a_variant_and_no_others() {
    let mut bench = Bench::new(config());
    let request = "GET /x HTTP/1.1\r\nHost: x\r\nCookie: a=b\r\nOrigin: https://a.example\r\n\
         Accept: image/avif\r\nUser-Agent: c\r\naccept:  image/webp \r\nAccept-Language: de\r\n\
         Accept-Encoding: gzip\r\n\r\n";
    bench.ask(request, 10);
    let fields = bench.said().fields.clone();
    let expected = [
        ("accept", "image/avif"),
        ("accept", "image/webp"),
        ("accept-language", "de"),
        ("origin", "https://a.example"),
    ];
    assert_eq!(
        fields,
        expected.map(|(name, value)| (name, value.to_owned()))
    );
}

#[test]
fn the_cache_status_is_sent_where_that_is_wanted() {
    for (how, value) in [
        (CacheStatus::Hit, "splitway; hit"),
        (
            CacheStatus::Revalidated,
            "splitway; fwd=stale; fwd-status=304",
        ),
    ] {
        for wanted in [true, false] {
            let mut bench = Bench::new(Config {
                cache_status: wanted,
                ..config()
            });
            bench.put_all(10);
            let stream = bench.lab.connect();
            bench.lab.send(stream, get("/x"));
            let object = Object { how, ..*object(10) };
            bench.tell(bench.asked().0, OriginEvent::Object(Box::new(object)));
            bench.serve_all();
            let response = bench.lab.response(stream);
            assert_eq!(response.header("cache-status"), wanted.then_some(value));
        }
    }
}

#[test]
fn the_access_log_gets_to_know_how_it_has_come() {
    let config = Config {
        files_come_first: true,
        ..config()
    };
    let mut bench = Bench::new(config);
    bench.lab.log_accesses();
    bench.lab.file("own.txt", "own");
    bench.put_all(10);
    let stream = bench.lab.connect();
    for target in ["/x", "/own.txt", "/none"] {
        bench.lab.send(stream, get(target));
        let news = match target {
            "/own.txt" => continue,
            "/x" => OriginEvent::Object(object(10)),
            _ => OriginEvent::Refused {
                status: StatusCode::NOT_FOUND,
                location: None,
                passed: None,
                how: CacheStatus::Stale,
            },
        };
        bench.tell(bench.asked().0, news);
        bench.serve_all();
    }
    let mut caches = Vec::new();
    bench.lab.records(|record| {
        caches.push((record.status, record.cache.map(str::to_owned)));
    });
    assert!(bench.lab.has_twins(), "whose log is the same");
    let told = |how: &str| Some(how.to_owned());
    assert_eq!(
        caches,
        [(200, told("hit")), (200, None), (404, told("stale"))]
    );
}

#[test]
fn what_is_asked_for_is_written_in_one_way() {
    for (target, asked) in [
        ("/", "/"),
        ("/d/", "/d/"),
        ("//d//x", "/d/x"),
        ("/%61/%7E/%3f?%3f&a", "/a/~/%3F?%3f&a"),
        ("/x?", "/x?"),
        ("http://h.example/x?y", "/x?y"),
        ("/na\u{ef}ve", "/na%C3%AFve"),
        ("/x?<a>=\"\u{ef}\"", "/x?%3Ca%3E=%22%C3%AF%22"),
        ("/x?%3ca%3e=%22%c3%af%22", "/x?%3ca%3e=%22%c3%af%22"),
        ("/x?a[]={'|'}\\^`%", "/x?a[]={'|'}\\^`%"),
    ] {
        let mut bench = Bench::new(config());
        bench.ask(&get(target), 10);
        assert_eq!(bench.asked().1, asked, "{target}");
    }
}

#[test]
fn ranges_and_conditions_are_as_with_files() {
    let mut bench = Bench::new(config());
    let tag = "\"0000000000000123\"";
    for (name, value, status, body) in [
        ("Range", "bytes=990-2009", 206, &content(3456)[990..2010]),
        ("Range", "bytes=-1", 206, &content(3456)[3455..]),
        ("Range", "bytes=3456-", 416, &[]),
        ("If-None-Match", tag, 304, &[]),
        (
            "If-Modified-Since",
            "Sun, 06 Nov 1994 08:32:57 GMT",
            304,
            &[],
        ),
        ("If-Match", "\"other\"", 412, &[]),
        ("If-Match", tag, 200, &content(3456)),
    ] {
        let stream = bench.ask(&get_with("/x", &[(name, value)]), 3456);
        let response = match status {
            304 => bench.lab.response_to_head(stream),
            _ => bench.lab.response(stream),
        };
        assert_eq!(response.status, status, "{name}: {value}");
        if status < 300 {
            assert!(response.body == body, "{name}: {value}");
            assert_eq!(response.header("etag"), Some(tag));
        }
        if status == 304 {
            assert_eq!(response.header("age"), Some("4"));
            assert_eq!(response.header("content-language"), None);
        }
    }
    bench.all_done();
    let stream = bench.ask(&head("/x"), 3456);
    let response = bench.lab.response_to_head(stream);
    assert_eq!(response.header("content-length"), Some("3456"));
    let stream = bench.ask(&get_with("/x", &[("Range", "bytes=5-9,2500-2509")]), 3456);
    let response = bench.lab.response(stream);
    let body = String::from_utf8_lossy(&response.body).into_owned();
    assert_eq!(
        body.matches("Content-Type: text/x; charset=y").count(),
        2,
        "{body}"
    );
    assert!(
        response
            .body
            .windows(10)
            .any(|it| it == &content(3456)[2500..2510])
    );
    bench.all_done();
}

#[test]
fn only_the_segments_of_a_range_are_wanted() {
    let mut bench = Bench::new(config());
    let stream = bench.lab.connect();
    bench
        .lab
        .send(stream, get_with("/x", &[("Range", "bytes=2500-3100")]));
    let ticket = bench.asked().0;
    bench.tell(ticket, OriginEvent::Object(object(10_000)));
    assert_eq!(bench.said().wants, [(ticket, 2)]);
    bench.put(10_000, 2);
    bench.put(10_000, 3);
    bench.tell(ticket, OriginEvent::Segment(2));
    assert_eq!(bench.said().wants, [(ticket, 2), (ticket, 3)]);
    assert_eq!(bench.lab.ranges(stream), vec![500..1000; 1]);
    bench.tell(ticket, OriginEvent::Segment(3));
    assert!(bench.lab.response(stream).body == content(10_000)[2500..3101]);
    assert_eq!(bench.said().needs, [2..4, 3..4]);
    bench.all_done();
}

#[test]
fn what_is_known_to_be_there_is_not_asked_for_unless_it_has_gone() {
    let mut bench = Bench::new(config());
    let stream = bench.lab.connect();
    bench.lab.send(stream, get("/x"));
    let ticket = bench.asked().0;
    bench.put(2500, 0);
    let object = Object {
        present: vec![(0, 3)],
        ..*object(2500)
    };
    bench.tell(ticket, OriginEvent::Object(Box::new(object)));
    // The second one has made room for others.
    assert_eq!(bench.said().wants, [(ticket, 1)]);
    assert_eq!(bench.said().missing, [1]);
    bench.put_all(2500);
    bench.serve_all();
    assert!(bench.lab.response(stream).body == content(2500));
    bench.all_done();
}

#[test]
fn an_object_is_kept_until_all_of_it_is_acknowledged() {
    let mut bench = Bench::new(config());
    bench.put_all(2500);
    let stream = bench.lab.connect();
    bench.lab.acknowledges(stream, false);
    for number in 1..=2 {
        bench.lab.send(stream, get("/x"));
        let (ticket, _) = bench.asked();
        bench.tell(ticket, OriginEvent::Object(object(2500)));
        bench.serve_all();
        assert_eq!(bench.said().asks.len(), number);
    }
    let queued = bench.lab.unacknowledged_bytes(stream);
    assert!(queued > 5000, "both responses are queued");
    bench.lab.acknowledge(stream, queued / 2);
    bench
        .lab
        .send(stream, "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n");
    let first = bench.said().asks[0].0;
    assert_eq!(
        bench.said().done,
        [first],
        "the second one may be sent again"
    );
    let rest = bench.lab.unacknowledged_bytes(stream);
    bench.lab.acknowledge(stream, rest);
    bench.all_done();
    // Who leaves has acknowledged all that he is going to.
    bench.lab.send(stream, get("/x"));
    let (ticket, _) = bench.asked();
    bench.tell(ticket, OriginEvent::Object(object(2500)));
    bench.serve_all();
    bench.lab.reset(stream);
    bench.all_done();
}

#[test]
fn a_slow_client_keeps_few_segments_open() {
    const SIZE_BYTES: usize = 5_000_000;
    const LARGE_BYTES: usize = 100_000;
    let mut bench = Bench::new(config());
    let whole = content(SIZE_BYTES);
    for (segment, bytes) in whole.chunks(LARGE_BYTES).enumerate() {
        bench.lab.file(&format!("cache/ab/cd/{segment:08x}"), bytes);
    }
    let stream = bench.lab.connect();
    bench.lab.acknowledges(stream, false);
    bench.lab.send(stream, get("/x"));
    let ticket = bench.asked().0;
    let object = Object {
        segment_bytes: NonZeroU64::new(LARGE_BYTES as u64).unwrap(),
        ..*object(SIZE_BYTES)
    };
    bench.tell(ticket, OriginEvent::Object(Box::new(object)));
    for _ in 0..5 {
        bench.serve_all();
        let waiting = bench.lab.unacknowledged_bytes(stream);
        assert!(
            (1 << 20..(1 << 20) + 103_000).contains(&waiting),
            "{waiting}"
        );
        assert!(bench.lab.files_left_open() <= 1);
        bench.lab.acknowledge(stream, 500_000);
    }
    bench.lab.acknowledges(stream, true);
    bench.serve_all();
    assert!(bench.lab.response(stream).body == whole);
    bench.all_done();
}

#[test]
fn refusals_and_redirects_of_the_origin_reach_clients() {
    for (status, location) in [(404, None), (502, None), (302, Some("/elsewhere"))] {
        let mut bench = Bench::new(config());
        let stream = bench.lab.connect();
        bench.lab.send(stream, get("/x"));
        let ticket = bench.asked().0;
        let news = OriginEvent::Refused {
            status: StatusCode::from_u16(status).unwrap(),
            location: location.map(HeaderValue::from_static),
            passed: None,
            how: CacheStatus::Miss,
        };
        bench.tell(ticket, news);
        let response = bench.lab.response(stream);
        assert_eq!(response.status, status);
        assert_eq!(response.header("location"), location);
        // And the connection goes on.
        let again = get("/y");
        bench.lab.send(stream, again);
        assert_eq!(bench.asked().1, "/y");
    }
}

#[test]
fn a_response_whose_rest_is_not_to_be_had_is_cut_off() {
    for is_late in [false, true] {
        let mut bench = Bench::new(config());
        let stream = bench.lab.connect();
        bench.lab.send(stream, get("/x"));
        let ticket = bench.asked().0;
        if is_late {
            bench.put(2500, 0);
            bench.tell(ticket, OriginEvent::Object(object(2500)));
            bench.tell(ticket, OriginEvent::Segment(0));
            bench.tell(ticket, LOST);
            assert!(bench.lab.is_aborted(stream));
            assert_eq!(bench.lab.counters().contents_lost, 1);
        } else {
            bench.tell(ticket, LOST);
            assert_eq!(bench.lab.response(stream).status, 502);
        }
    }
}

#[test]
fn a_segment_of_another_length_is_asked_for_again_and_not_served() {
    for comes_again in [true, false] {
        let mut bench = Bench::new(config());
        let stream = bench.lab.connect();
        bench.lab.file("cache/ab/cd/00000000", "short");
        bench.lab.send(stream, get("/x"));
        let ticket = bench.asked().0;
        bench.tell(ticket, OriginEvent::Object(object(2500)));
        bench.tell(ticket, OriginEvent::Segment(0));
        assert_eq!(bench.said().missing, [0]);
        if comes_again {
            bench.put_all(2500);
            bench.serve_all();
            assert!(bench.lab.response(stream).body == content(2500));
            bench.all_done();
        } else {
            // It is said to be there again and again, and is not.
            bench.serve_all();
            assert!(bench.lab.is_aborted(stream));
            assert_eq!(bench.said().missing.len(), 7);
            assert_eq!(bench.lab.files_left_open(), 0);
        }
    }
}

#[test]
fn who_goes_away_leaves_nothing_behind() {
    for step in 0..3 {
        let mut bench = Bench::new(config());
        bench.put(2500, 0);
        let stream = bench.lab.connect();
        bench.lab.send(stream, get("/x"));
        let ticket = bench.asked().0;
        if step > 0 {
            bench.tell(ticket, OriginEvent::Object(object(2500)));
        }
        if step > 1 {
            bench.tell(ticket, OriginEvent::Segment(0));
        }
        bench.lab.reset(stream);
        bench.all_done();
        // Late answers have no request.
        bench.tell(ticket, OriginEvent::Segment(1));
    }
}

#[test]
fn an_origin_that_never_answers_is_504() {
    let mut bench = Bench::new(config());
    let stream = bench.lab.connect();
    bench.lab.send(stream, get("/x"));
    bench.lab.pass(Duration::from_secs(76));
    assert_eq!(bench.lab.response(stream).status, 504);
    bench.all_done();
}

#[test]
fn who_acknowledges_nothing_and_waits_for_an_origin_is_cut_off_and_leaves_nothing_behind() {
    let mut bench = Bench::new(config());
    let stream = bench.lab.connect();
    bench.lab.acknowledges(stream, false);
    bench
        .lab
        .send(stream, "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n");
    bench.lab.send(stream, get("/x"));
    bench.lab.pass(Duration::from_secs(76));
    assert!(bench.lab.is_aborted(stream));
    bench.all_done();
}

#[test]
fn files_come_first_where_that_is_wanted_and_the_cache_is_no_place_to_ask_for() {
    let mut config = config();
    config.files_come_first = true;
    config.sites[0].precompressed = vec![server::Coding::Gzip];
    let mut bench = Bench::new(config);
    bench.lab.file("own.txt", "own");
    assert_eq!(bench.lab.get("/own.txt").body, b"own");
    assert!(bench.said().asks.is_empty());
    for target in ["/other.txt", "/cachet"] {
        bench.ask(&get(target), 10);
        assert_eq!(bench.asked().1, target);
    }
    let asks = bench.said().asks.len();
    bench.put(2500, 0);
    for target in [
        "/cache/ab/cd/00000000",
        "/x/../cache/ab/cd/00000000",
        "/%63ache/ab/cd/00000000",
    ] {
        assert_eq!(bench.lab.get(target).status, 404, "{target}");
    }
    assert_eq!(bench.said().asks.len(), asks);
}

#[test]
fn a_rule_may_name_another_origin_or_none() {
    let mut config = config();
    config.files_come_first = true;
    let other = "http://b.example";
    let rules = [
        ("/other/*", Some(RulePull::From(other.into()))),
        ("/own/*", Some(RulePull::Off)),
        ("/plain/*", None),
        ("*", Some(RulePull::From("http://never.example".into()))),
    ];
    config.sites[0].rules = Vec::from(rules.map(|(path, pull)| Rule {
        pull,
        ..Rule::new(path.parse().unwrap())
    }));
    config.sites.push(Site {
        names: vec!["b.org".parse().unwrap()],
        pulls: vec![Pull {
            origin: other.into(),
            ..pull("/vod/*")
        }],
        ..Site::default()
    });
    let mut bench = Bench::new(config);
    for (host, path, origin) in [
        ("a.org", "/other/x", Some(other)),
        ("a.org", "/own/x", None),
        ("a.org", "/plain/x", Some(ORIGIN)),
        ("a.org", "/x", Some("http://never.example")),
        ("b.org", "/vod/x", Some(other)),
        ("b.org", "/x", None),
    ] {
        let asks = bench.said().asks.len();
        let stream = bench.lab.connect();
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        bench.lab.send(stream, request);
        let asked = bench.said().asks.get(asks).cloned();
        let asked = asked.map(|(_, origin, _)| origin);
        assert_eq!(asked.as_deref(), origin, "{host}{path}");
        if origin.is_none() {
            assert_eq!(bench.lab.response(stream).status, 404);
        }
    }
}

#[test]
fn a_rule_about_the_path_counts_as_well_and_signatures_are_not_the_origins_business() {
    let mut keys = SigningKeys::default();
    keys.add("k", b"0123456789abcdef").unwrap();
    let mut config = config();
    let mut rule = Rule::new("/paid/*".parse().unwrap());
    rule.cache_control = Some(HeaderValue::from_static("private"));
    let signed = keys.sign("/paid/x?a=b", "k", START.as_secs() + 10).unwrap();
    rule.signed = Some(keys);
    config.sites[0].rules = vec![rule];
    let mut bench = Bench::new(config);
    assert_eq!(bench.lab.get("/paid/x?a=b").status, 403);
    assert!(bench.said().asks.is_empty());
    let stream = bench.ask(&get(&signed), 10);
    assert_eq!(bench.asked().1, "/paid/x?a=b");
    let response = bench.lab.response(stream);
    assert_eq!(response.header("cache-control"), Some("private"));
    assert_eq!(response.header("expires"), None);
}

/// Streams of HTTP/3 take objects, and lose them, each for itself.
///
/// Covers: RFC 9114 §4.1.1
#[test]
fn objects_go_over_http3_as_well() {
    const INTERNAL_ERROR: u64 = 0x102;
    let mut bench = Bench::new(config());
    let connection = bench.lab.http3();
    let stream = bench.lab.send_all(connection, &client::get("/x?y"));
    assert_eq!(bench.asked().1, "/x?y");
    bench.put_all(2500);
    bench.tell(bench.asked().0, OriginEvent::Object(object(2500)));
    let lost = bench.lab.send_all(connection, &client::get("/lost"));
    bench.tell(bench.asked().0, OriginEvent::Object(object(2500)));
    bench.tell(bench.asked().0, OriginEvent::Segment(0));
    bench.tell(bench.asked().0, LOST);
    assert_eq!(bench.lab.reset_code(lost), Some(INTERNAL_ERROR));
    assert_eq!(bench.lab.counters().contents_lost, 1);
    bench.said().wants.retain(|(ticket, _)| ticket.0 == 1);
    bench.serve_all();
    let response = bench.lab.response3(stream);
    assert_eq!(response.body, content(2500));
    assert_eq!(response.header("content-type"), Some("text/x; charset=y"));
    assert_eq!(response.header("age"), Some("4"));
    let refused = bench.lab.send_all(connection, &client::get("/refused"));
    let (status, how) = (StatusCode::FOUND, CacheStatus::Miss);
    let location = Some(HeaderValue::from_static("/y"));
    let news = OriginEvent::Refused {
        status,
        location,
        passed: None,
        how,
    };
    bench.tell(bench.asked().0, news);
    let response = bench.lab.response3(refused);
    assert_eq!(
        (response.status, response.header("location")),
        (302, Some("/y"))
    );
    // Who goes away, and who waits in vain.
    let gone = bench.lab.begin(connection, &client::get("/gone"));
    bench.lab.peer_resets(gone, 0x10c);
    let late = bench.lab.send_all(connection, &client::get("/late"));
    bench.lab.pass(Duration::from_secs(76));
    assert_eq!(bench.lab.response3(late).status, 504);
    assert_eq!(bench.lab.quic_closed(connection), None);
    assert_eq!(bench.lab.files_left_open(), 0);
    let done: Vec<u64> = bench.said().done.iter().map(|ticket| ticket.0).collect();
    // Of those that were lost or refused, the fetcher knows.
    assert!(
        [1, 4, 5].iter().all(|ticket| done.contains(ticket)),
        "{done:?}"
    );
}

/// A copy of early data would have the origin asked once more; a file can be sent any number of
/// times.
///
/// Covers: RFC 8470 §3, RFC 8470 §5.2
#[test]
fn an_origin_is_not_asked_before_the_handshake_is_complete() {
    let config = Config {
        files_come_first: true,
        ..config()
    };
    let mut bench = Bench::new(config);
    bench.lab.file("own.txt", "own");
    let connection = bench.lab.open_early();
    let own = bench.lab.send_all(connection, &client::get("/own.txt"));
    assert_eq!(bench.lab.response3(own).body, b"own");
    let pulled = bench.lab.send_all(connection, &client::get("/x?y"));
    let stopped = bench.lab.begin(connection, &client::get("/stopped"));
    bench.lab.peer_resets(stopped, 0x10c);
    assert_eq!(bench.lab.connection_info(pulled).unwrap().phase, "deferred");
    assert!(bench.said().asks.is_empty());
    bench.lab.complete_handshake(connection);
    assert_eq!(bench.asked().1, "/x?y");
    bench.put_all(2500);
    bench.tell(bench.asked().0, OriginEvent::Object(object(2500)));
    bench.serve_all();
    assert_eq!(bench.lab.response3(pulled).body, content(2500));
    // From then on it is as ever.
    bench.lab.send_all(connection, &client::get("/next"));
    assert_eq!(bench.asked().1, "/next");
    let asks = bench.said().asks.len();
    // A client that was a copy never completes its handshake.
    let copy = bench.lab.open_early();
    let late = bench.lab.send_all(copy, &client::get("/x?y"));
    let lost = bench.lab.open_early();
    bench.lab.send_all(lost, &client::get("/x?y"));
    bench.lab.lose_quic(lost);
    bench.lab.pass(Duration::from_secs(76));
    assert_eq!(bench.lab.response3(late).status, 425);
    assert_eq!(bench.said().asks.len(), asks);
    assert_eq!(bench.lab.files_left_open(), 0);
}

/// A server in front of this one has it as early data, and sends it again once it is none.
///
/// Covers: RFC 8470 §5.2
#[test]
fn an_origin_is_not_asked_for_what_is_early_data_elsewhere() {
    let config = Config {
        files_come_first: true,
        ..config()
    };
    let mut bench = Bench::new(config);
    bench.lab.file("own.txt", "own");
    let early = &[("early-data", "1")];
    let connection = bench.lab.http3();
    for (path, status) in [("/own.txt", 200), ("/x", 425)] {
        let stream = bench.lab.connect();
        bench.lab.send(stream, get_with(path, early));
        assert_eq!(bench.lab.response(stream).status, status);
        let request = client::request("GET", path, early);
        let stream = bench.lab.send_all(connection, &request);
        assert_eq!(bench.lab.response3(stream).status, status);
    }
    assert!(bench.said().asks.is_empty());
    bench.lab.send_all(connection, &client::get("/x"));
    assert_eq!(bench.asked().1, "/x");
}

/// What waits for the handshake is asked for once that is complete, and the connection ends then.
#[test]
fn early_requests_are_answered_before_a_server_ends() {
    let mut bench = Bench::new(config());
    let connection = bench.lab.open_early();
    let stream = bench.lab.send_all(connection, &client::get("/x"));
    bench.lab.drain();
    bench.lab.complete_handshake(connection);
    bench.put_all(2500);
    bench.tell(bench.asked().0, OriginEvent::Object(object(2500)));
    bench.serve_all();
    assert_eq!(bench.lab.response3(stream).body, content(2500));
    bench.lab.pass(Duration::from_secs(1));
    assert_eq!(bench.lab.quic_closed(connection), Some(0x100));
}

/// An origin may send coded content to a fetcher that asks for none: a client that decodes cannot
/// decode a part of it.
#[test]
fn a_client_that_decodes_gets_a_part_of_coded_content_only_if_it_has_another() {
    let mut bench = Bench::new(config());
    let range = ("Range", "bytes=2-4");
    let decodes = ("Accept-Encoding", "gzip");
    for (fields, status, len) in [
        (&[decodes][..], 200, 3456),
        (&[range], 206, 3),
        (&[range, decodes], 200, 3456),
        (
            &[range, decodes, ("If-Range", "\"0000000000000123\"")],
            206,
            3,
        ),
        (
            &[range, decodes, ("If-Match", "\"0000000000000123\"")],
            206,
            3,
        ),
        (&[range, decodes, ("If-Range", "\"x\"")], 200, 3456),
        (&[("Range", "bytes=0-0,3000-3000")], 200, 3456),
    ] {
        bench.put_all(3456);
        let stream = bench.lab.connect();
        bench.lab.send(stream, get_with("/x.csv", fields));
        let mut coded = object(3456);
        coded.passed.fields = self::fields(&[("content-encoding", "gzip")]);
        bench.tell(bench.asked().0, OriginEvent::Object(coded));
        bench.serve_all();
        let response = bench.lab.response(stream);
        let got = (response.status, response.body.len());
        assert_eq!(got, (status, len), "{fields:?}");
        assert_eq!(response.header("Content-Encoding"), Some("gzip"));
    }
    bench.all_done();
}

#[test]
fn an_object_that_stands_in_for_a_missing_file_varies_as_the_file_does() {
    let mut config = config();
    config.files_come_first = true;
    config.sites[0].precompressed = vec![server::Coding::Gzip];
    let mut bench = Bench::new(config);
    for (target, expected) in [("/x.css", Some("Accept-Encoding")), ("/x.mp4", None)] {
        let stream = bench.ask(&get(target), 10);
        let response = bench.lab.response(stream);
        assert_eq!((response.status, response.header("Vary")), (200, expected));
        bench.lab.send(stream, get(target));
        let refusal = OriginEvent::Refused {
            status: StatusCode::NOT_FOUND,
            location: None,
            how: CacheStatus::Miss,
            passed: None,
        };
        bench.tell(bench.asked().0, refusal);
        let response = bench.lab.response(stream);
        assert_eq!((response.status, response.header("Vary")), (404, expected));
    }
}

#[test]
fn an_origin_gets_the_rewritten_path_and_clients_no_fields_that_the_rule_removes() {
    let mut rule = Rule::new("/old/*".parse().unwrap());
    rule.rewrite = Some("/new/*".parse().unwrap());
    rule.fallback = Some(Fallback {
        pattern: rule.pattern.clone(),
        paths: vec!["/none.html".parse().unwrap()],
    });
    rule.removed_fields = vec![HeaderName::from_static("x-any")];
    for files_come_first in [true, false] {
        let mut config = config();
        config.files_come_first = files_come_first;
        config.sites[0].rules = vec![rule.clone()];
        let mut bench = Bench::new(config);
        bench.put_all(10);
        let stream = bench.lab.connect();
        bench.lab.send(stream, get("/old/a%20b.css?q"));
        let (ticket, target) = bench.asked();
        assert_eq!(target, "/new/a%20b.css?q");
        bench.tell(ticket, OriginEvent::Object(Box::new(object_with_all(10))));
        bench.serve_all();
        let response = bench.lab.response(stream);
        assert_eq!(response.status, 200);
        assert_eq!(response.header("x-any"), None);
        assert_eq!(response.values("link").len(), 2, "others come along");
    }
}
