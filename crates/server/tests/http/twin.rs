//! A server that gets over HTTP/2 or HTTP/3 the requests that another one gets over HTTP/1.1: the
//! responses differ in nothing but their framing.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use host::app::{QuicConnection, StreamId};
use server::{AccessRecord, Config};

use crate::http2::client::Client;
use crate::http3::client::headers;
use crate::lab::{Lab, Response};

/// The version over which a twin gets its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    Http2,
    Http3,
}

impl Over {
    pub(crate) const ALL: [Over; 2] = [Over::Http2, Over::Http3];
}

/// Where a twin has sent a request.
enum Asked {
    Http2(Box<Client>, u32),
    Http3(QuicConnection, StreamId),
}

/// See the [module documentation](self).
pub(crate) struct Twin {
    over: Over,
    pub(crate) lab: Lab,
    /// It is sent what is sent over HTTP/1.1, when that is sent.
    pub(crate) follows: bool,
    /// Requests over HTTP/1.1 without a response yet, by connection, and their counterparts here.
    asked: BTreeMap<StreamId, VecDeque<(String, Asked)>>,
    /// It was not asked all, or not alike: access logs differ.
    is_partial: bool,
}

/// What an access log notes of a response that does not hang on the version: line, status, bytes of
/// the body, and of those the offloaded ones, whether it was cut short, and whatever else.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Noted {
    line: String,
    status: u16,
    bytes: [u64; 2],
    is_cut_short: bool,
    names: [Option<String>; 3],
    fields: [Option<String>; 4],
    /// The client, if a proxy has named it.
    client: Option<(SocketAddr, IpAddr)>,
}

/// See [`Noted`].
pub(crate) fn noted(record: &AccessRecord<'_>) -> Noted {
    let line = String::from_utf8_lossy(record.request_line);
    let line = line.rsplit_once(' ').map_or(&line[..], |(line, _)| line);
    Noted {
        line: line.to_owned(),
        status: record.status,
        bytes: [record.body_bytes, record.offloaded_bytes],
        is_cut_short: record.is_cut_short,
        names: [record.coding, record.cache, record.site].map(|it| it.map(str::to_owned)),
        fields: [record.host, record.range, record.referer, record.user_agent]
            .map(|it| it.map(|bytes| String::from_utf8_lossy(bytes).into_owned())),
        client: record.proxy.map(|proxy| (record.client, proxy)),
    }
}

/// Fields about a connection of HTTP/1.1.
const OF_CONNECTIONS: [&str; 3] = ["connection", "keep-alive", "transfer-encoding"];

impl Twin {
    pub(crate) fn new(over: Over, config: Config) -> Self {
        Twin {
            follows: false,
            ..Twin::following(over, Lab::alone(config))
        }
    }

    /// One that is sent what is sent over HTTP/1.1.
    pub(crate) fn following(over: Over, lab: Lab) -> Self {
        Twin {
            over,
            lab,
            follows: true,
            asked: BTreeMap::new(),
            is_partial: false,
        }
    }

    /// These bytes are sent on a connection of HTTP/1.1. False if other versions have no
    /// counterpart.
    pub(crate) fn send(&mut self, stream: StreamId, bytes: &[u8]) -> bool {
        let text = std::str::from_utf8(bytes).ok();
        let request = text.and_then(|it| Some((it, translated(it)?)));
        let Some((request, fields)) = request else {
            return false;
        };
        let asked = self.begin(&fields);
        let waiting = self.asked.entry(stream).or_default();
        waiting.push_back((request.to_owned(), asked));
        true
    }

    /// Sends a request on a connection of its own.
    fn begin(&mut self, fields: &[(String, String)]) -> Asked {
        let fields: Vec<_> = fields
            .iter()
            .map(|(name, value)| (&name[..], &value[..]))
            .collect();
        match self.over {
            Over::Http2 => {
                let mut client = Client::open(&mut self.lab);
                let id = client.send_request(&mut self.lab, &fields, true);
                Asked::Http2(Box::new(client), id)
            }
            Over::Http3 => {
                let connection = self.lab.http3();
                let stream = self.lab.send_all(connection, &headers(&fields));
                Asked::Http3(connection, stream)
            }
        }
    }

    /// The access log that is compared is not whole.
    pub(crate) fn log_differs(&mut self) {
        self.is_partial = true;
    }

    /// A connection of HTTP/1.1 is reset.
    pub(crate) fn reset(&mut self, stream: StreamId) {
        for (_, asked) in self.asked.remove(&stream).into_iter().flatten() {
            match asked {
                Asked::Http2(client, _) => self.lab.reset(client.stream),
                Asked::Http3(connection, _) => self.lab.lose_quic(connection),
            }
        }
    }

    /// Compares the next response on a connection of HTTP/1.1, if that was asked for.
    pub(crate) fn compare_next(&mut self, stream: StreamId, expected: &Response) {
        let waiting = self.asked.get_mut(&stream);
        if let Some((request, asked)) = waiting.and_then(VecDeque::pop_front) {
            let response = match asked {
                Asked::Http2(client, id) => whole(&mut self.lab, *client, id),
                Asked::Http3(_, stream) => self.lab.response3(stream),
            };
            compare(&request, &response, expected);
        }
    }

    /// A response that is cut off on a connection of HTTP/1.1 is one here.
    pub(crate) fn compare_end(&self, stream: StreamId, is_aborted: bool) {
        let waiting = self.asked.get(&stream).and_then(VecDeque::front);
        if let Some((request, asked)) = waiting {
            let is_reset = match asked {
                Asked::Http2(client, id) => client.is_reset(&self.lab, *id),
                Asked::Http3(_, stream) => self.lab.reset_code(*stream).is_some(),
            };
            assert_eq!(is_reset, is_aborted, "{request}");
        }
    }

    /// Compares what was noted of all responses since the last call.
    pub(crate) fn compare_records(&mut self, expected: &[Noted]) {
        let mut got = Vec::new();
        self.lab.own_records(|record| got.push(noted(&record)));
        if !self.is_partial {
            assert_eq!(got, expected);
        }
    }

    /// Sends a request of HTTP/1.1, if this version has a counterpart, and compares the responses.
    /// Returns whether it has one.
    pub(crate) fn compare(&mut self, request: &str, expected: &Response) -> bool {
        let Some(fields) = translated(request) else {
            self.is_partial = true;
            return false;
        };
        let response = match self.begin(&fields) {
            Asked::Http2(client, id) => whole(&mut self.lab, *client, id),
            Asked::Http3(_, stream) => self.lab.response3(stream),
        };
        compare(request, &response, expected);
        true
    }
}

/// A response over HTTP/2, which a rate may delay: the connection itself paces its streams.
fn whole(lab: &mut Lab, mut client: Client, id: u32) -> Response {
    for _ in 0..100 {
        if client.received(lab, id).has_ended {
            break;
        }
        lab.pass(Duration::from_secs(1));
    }
    client.response(lab, id)
}

fn compare(request: &str, response: &Response, expected: &Response) {
    let (got, wanted) = (comparable(response), comparable(expected));
    let shown: String = request.chars().take(200).collect();
    assert_eq!((got.0, got.1), (wanted.0, wanted.1), "{shown}");
    let differs = got
        .2
        .iter()
        .zip(&wanted.2)
        .position(|(one, other)| one != other);
    let lengths = (got.2.len(), wanted.2.len());
    assert!(
        got.2 == wanted.2,
        "{shown}: {lengths:?} bytes, differ at {differs:?}"
    );
}

/// The fields of a request of HTTP/1.1 in a later version; `None` if it has no counterpart.
fn translated(request: &str) -> Option<Vec<(String, String)>> {
    let (head, body) = request.split_once("\r\n\r\n")?;
    let mut lines = head.split("\r\n");
    let line: Vec<&str> = lines.next()?.split(' ').collect();
    let [method, target, "HTTP/1.1"] = line[..] else {
        return None;
    };
    let is_target = target.starts_with('/') || (method, target) == ("OPTIONS", "*");
    if !body.is_empty() || !is_target {
        return None;
    }
    let mut authority = None;
    let mut fields = Vec::new();
    for line in lines {
        let (name, value) = line.split_once(':')?;
        let (name, value) = (name.to_ascii_lowercase(), value.trim());
        match &name[..] {
            "host" if authority.is_some() || value.is_empty() => return None,
            "host" => authority = Some(value),
            "transfer-encoding" | "content-length" => return None,
            name if OF_CONNECTIONS.contains(&name) => {}
            _ if line.starts_with([' ', '\t']) => return None,
            _ => fields.push((name, value)),
        }
    }
    let pseudo = [
        (":method", method),
        (":scheme", "https"),
        (":authority", authority?),
        (":path", target),
    ];
    let pseudo = pseudo.map(|(name, value)| (name.to_owned(), value));
    let all = pseudo.into_iter().chain(fields);
    Some(all.map(|(name, value)| (name, value.to_owned())).collect())
}

/// What does not hang on the version: boundaries between parts hang on the stream.
fn comparable(response: &Response) -> (u16, Vec<(String, String)>, Vec<u8>) {
    let mut body = response.body.clone();
    let mut headers: Vec<(String, String)> = response
        .headers
        .iter()
        .map(|(name, value)| (name.to_ascii_lowercase(), value.clone()))
        .filter(|(name, _)| !OF_CONNECTIONS.contains(&&name[..]))
        .collect();
    for (name, value) in &mut headers {
        if name == "content-type"
            && let Some((kind, boundary)) = value.split_once("; boundary=")
        {
            let (boundary, same) = (boundary.to_owned(), "-".repeat(boundary.len()));
            *value = format!("{kind}; boundary={same}");
            for at in 0..body.len() {
                if body[at..].starts_with(boundary.as_bytes()) {
                    body[at..at + boundary.len()].copy_from_slice(same.as_bytes());
                }
            }
        }
    }
    (response.status, headers, body)
}

/// Requests of each kind: method and target, and further fields.
const REQUESTS: &[(&str, &str)] = &[
    ("GET /", ""),
    ("HEAD /", ""),
    ("GET /video.mp4", ""),
    ("HEAD /video.mp4", "Range: bytes=0-1\r\n"),
    ("GET /video.mp4", "Range: bytes=10-19\r\n"),
    ("GET /video.mp4", "Range: bytes=-5\r\n"),
    ("GET /video.mp4", "Range: bytes=0-9,1000-1999,-10\r\n"),
    ("GET /video.mp4", "Range: bytes=200000-\r\n"),
    ("GET /video.mp4", "Range: lines=1-2\r\n"),
    ("GET /video.mp4", "If-None-Match: *\r\n"),
    ("GET /video.mp4", "If-Match: \"other\"\r\n"),
    (
        "GET /index.html",
        "If-Modified-Since: Mon, 07 Nov 1994 08:49:37 GMT\r\n",
    ),
    ("GET /empty", ""),
    ("GET /page.css", "Accept-Encoding: gzip\r\n"),
    ("GET /page.css", "Accept-Encoding: identity\r\n"),
    ("GET /page.css", "Accept-Encoding: *;q=0\r\n"),
    ("GET /below", ""),
    ("GET /listed/", ""),
    ("GET /listed/", "Accept: application/json\r\n"),
    ("GET /large", ""),
    ("GET /none", ""),
    ("HEAD /none", ""),
    ("GET /../up", ""),
    ("GET /a%00b", ""),
    ("GET /%zz", ""),
    ("OPTIONS *", ""),
    (
        "OPTIONS /",
        "Origin: https://a.org\r\nAccess-Control-Request-Method: GET\r\n",
    ),
    ("POST /", ""),
    ("DELETE /video.mp4", ""),
    ("BREW /", ""),
    ("GET /", "Expect: teapot\r\n"),
];

/// The files that these are about.
fn fill(lab: &mut Lab) {
    lab.file_of("index.html", "<title>Home</title>", 1_000_000_000);
    let video: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    lab.file_of("video.mp4", video, 5);
    lab.file("empty", "");
    lab.file("page.css", "a {}");
    lab.file("page.css.gz", "coded");
    lab.directory("below");
    lab.file("below/one", "1");
    lab.directory("listed");
    lab.file("listed/two", "22");
    lab.zeros("large", 1 << 20);
}

/// Each request once over each version.
///
/// Covers: RFC 9113 §8.1, RFC 9113 §8.3.2, RFC 9114 §4.1, RFC 9114 §4.3.2
#[test]
fn requests_over_each_version_have_equal_responses() {
    let config = Config {
        sites: vec![server::Site {
            listing: true,
            precompressed: vec!["gzip".parse().unwrap()],
            ..server::Site::default()
        }],
        ..Config::default()
    };
    let mut plain = Lab::alone(config.clone());
    let mut twins = Over::ALL.map(|over| Twin::new(over, config.clone()));
    fill(&mut plain);
    twins.iter_mut().for_each(|twin| fill(&mut twin.lab));
    let mut count = 0;
    for (line, fields) in REQUESTS {
        let stream = plain.connect();
        let request = format!("{line} HTTP/1.1\r\nHost: example.org\r\n{fields}\r\n");
        let response = plain.ask(stream, &request);
        for twin in &mut twins {
            assert!(twin.compare(&request, &response), "{request}");
        }
        count += 1;
    }
    let own = plain.counters();
    for twin in &twins {
        let counters = twin.lab.counters();
        assert_eq!(counters.requests, own.requests);
        assert_eq!(counters.virtual_bytes, own.virtual_bytes);
        assert_eq!(counters.responses_2xx, own.responses_2xx);
        assert_eq!(counters.responses_4xx, own.responses_4xx);
        let expected = match twin.over {
            Over::Http2 => [count, 0],
            Over::Http3 => [0, count],
        };
        assert_eq!([counters.http2_requests, counters.http3_requests], expected);
        assert_eq!(twin.lab.files_left_open(), 0);
    }
}
