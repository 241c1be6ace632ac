//! Requests that are malformed, and those that only look so (RFC 9114 §4.1.2, §4.2, §4.3).

use host::app::QuicConnection;
use server::{Config, ExtraField, Rule};

use crate::http3::client::{
    DATA, HEADERS, SETTINGS, frame, get, headers, raw_section, request, response, section, varint,
};
use crate::lab::Lab;

const MESSAGE_ERROR: u64 = 0x10e;
const REQUEST_INCOMPLETE: u64 = 0x10d;

type Field = (&'static str, &'static str);

const METHOD: Field = (":method", "GET");
const SCHEME: Field = (":scheme", "https");
const AUTHORITY: Field = (":authority", "example.org");
const PATH: Field = (":path", "/a");

fn lab() -> Lab {
    let mut lab = Lab::new();
    lab.file("a", "content");
    lab
}

/// Sends a request; returns with which code the stream was reset, or the status of the response.
/// The connection goes on.
fn outcome(bytes: &[u8]) -> Result<u16, u64> {
    let mut lab = lab();
    let connection = lab.http3();
    let stream = lab.send_all(connection, bytes);
    let outcome = match lab.reset_code(stream) {
        Some(code) => {
            assert!(lab.is_closed(stream));
            assert_eq!(lab.counters().http3_stream_errors, 1);
            Err(code)
        }
        None => Ok(lab.response3(stream).status),
    };
    assert_eq!(lab.quic_closed(connection), None);
    assert_eq!(lab.ask3(connection, &get("/a")).body, b"content");
    assert_eq!(lab.files_left_open(), 0);
    outcome
}

fn of(fields: &[Field]) -> Result<u16, u64> {
    outcome(&headers(fields))
}

fn with(more: &[Field]) -> Result<u16, u64> {
    outcome(&request("GET", "/a", more))
}

/// Covers: RFC 9114 §4.3, RFC 9114 §4.3.1
#[test]
fn pseudo_header_fields_are_there_once_and_come_first() {
    let malformed = Err(MESSAGE_ERROR);
    assert_eq!(of(&[METHOD, SCHEME, AUTHORITY, PATH]), Ok(200));
    assert_eq!(
        of(&[PATH, AUTHORITY, SCHEME, METHOD]),
        Ok(200),
        "in any order"
    );
    assert_eq!(of(&[]), malformed);
    assert_eq!(of(&[SCHEME, AUTHORITY, PATH]), malformed);
    assert_eq!(of(&[METHOD, AUTHORITY, PATH]), malformed);
    assert_eq!(of(&[METHOD, SCHEME, PATH]), malformed);
    assert_eq!(of(&[METHOD, SCHEME, AUTHORITY]), malformed);
    for twice in [METHOD, SCHEME, AUTHORITY, PATH] {
        assert_eq!(of(&[METHOD, SCHEME, AUTHORITY, PATH, twice]), malformed);
        assert_eq!(of(&[twice, METHOD, SCHEME, AUTHORITY, PATH]), malformed);
    }
    let field = ("accept", "*/*");
    assert_eq!(of(&[METHOD, SCHEME, AUTHORITY, PATH, field]), Ok(200));
    assert_eq!(of(&[METHOD, SCHEME, AUTHORITY, field, PATH]), malformed);
    assert_eq!(of(&[field, METHOD, SCHEME, AUTHORITY, PATH]), malformed);
    for unknown in [
        (":status", "200"),
        (":protocol", "websocket"),
        (":x", ""),
        (":", ""),
    ] {
        assert_eq!(of(&[METHOD, SCHEME, AUTHORITY, PATH, unknown]), malformed);
    }
}

/// Covers: RFC 9114 §4.3.1
#[test]
fn their_values_are_what_they_must_be() {
    let malformed = Err(MESSAGE_ERROR);
    for (method, expected) in [
        ("HEAD", Ok(200)),
        ("get", Ok(501)),
        ("PATCH", Ok(405)),
        ("", malformed),
        ("GE T", malformed),
        ("G\nT", malformed),
        ("GET:", malformed),
    ] {
        let result = of(&[(":method", method), SCHEME, AUTHORITY, PATH]);
        // A response to HEAD has no body, which the client has to know.
        assert_eq!(result, expected, "{method:?}");
    }
    for (scheme, expected) in [
        ("http", Ok(200)),
        ("HTTPS", Ok(200)),
        ("ftp", Ok(400)),
        ("", Ok(400)),
    ] {
        let result = of(&[METHOD, (":scheme", scheme), AUTHORITY, PATH]);
        assert_eq!(result, expected, "{scheme:?}");
    }
    for (path, expected) in [
        ("/a?b", Ok(200)),
        ("/%61", Ok(200)),
        ("/\u{e4}", Ok(404)),
        ("", malformed),
        ("a", malformed),
        ("*", malformed),
        ("http://example.org/a", malformed),
        ("/a b", malformed),
        ("/a\r\nx: y", malformed),
        ("/a\0", malformed),
        ("/a\x7f", malformed),
        ("/a#b", Ok(400)),
    ] {
        let result = of(&[METHOD, SCHEME, AUTHORITY, (":path", path)]);
        assert_eq!(result, expected, "{path:?}");
    }
    for (authority, expected) in [
        ("example.org:443", Ok(200)),
        ("[fd77::1]", Ok(200)),
        ("", malformed),
        ("a\nb", malformed),
        ("user@example.org", Ok(400)),
        ("a b", Ok(400)),
        ("a/b", Ok(400)),
    ] {
        let result = of(&[METHOD, SCHEME, (":authority", authority), PATH]);
        assert_eq!(result, expected, "{authority:?}");
    }
    let latin = raw_section(&[
        (b":method", b"GET"),
        (b":scheme", b"https"),
        (b":authority", b"h"),
        (b":path", b"/\xe4"),
    ]);
    assert_eq!(outcome(&frame(HEADERS, latin)), malformed);
}

/// Covers: RFC 9114 §4.3.1
#[test]
fn the_field_host_stands_in_for_the_authority_and_does_not_differ_from_it() {
    let host = ("host", "example.org");
    let malformed = Err(MESSAGE_ERROR);
    assert_eq!(of(&[METHOD, SCHEME, PATH, host]), Ok(200));
    assert_eq!(of(&[METHOD, SCHEME, PATH, host, host]), malformed);
    assert_eq!(of(&[METHOD, SCHEME, PATH, ("host", "")]), malformed);
    assert_eq!(of(&[METHOD, SCHEME, PATH, ("host", "a b")]), Ok(400));
    assert_eq!(with(&[host]), Ok(200));
    assert_eq!(with(&[("host", "example.net")]), malformed);
    assert_eq!(with(&[("host", "")]), malformed);
}

/// Covers: RFC 9114 §4.4
#[test]
fn connect_has_an_authority_only_and_is_not_allowed() {
    let connect = (":method", "CONNECT");
    let authority = (":authority", "example.org:443");
    assert_eq!(of(&[connect, authority]), Ok(405));
    let malformed = Err(MESSAGE_ERROR);
    assert_eq!(of(&[connect]), malformed);
    assert_eq!(of(&[connect, authority, PATH]), malformed);
    assert_eq!(of(&[connect, authority, SCHEME]), malformed);
}

/// Covers: RFC 9114 §4.2, RFC 9114 §10.3
#[test]
fn fields_that_no_request_may_have_make_it_malformed() {
    for field in [
        ("connection", "close"),
        ("keep-alive", "timeout=5"),
        ("proxy-connection", "close"),
        ("transfer-encoding", "chunked"),
        ("upgrade", "h2c"),
        ("te", "gzip"),
        ("te", "trailers, gzip"),
        ("Accept", "*/*"),
        ("x-Y", ""),
        ("", "empty"),
        ("a b", ""),
        ("a:b", ""),
        ("a\n", ""),
        ("x", "a\nb"),
        ("x", "a\rb"),
        ("x", "a\0b"),
        ("x", "a\x1fb"),
        ("x", "a\x7fb"),
        ("content-length", ""),
        ("content-length", "+1"),
        ("content-length", "1,1"),
        ("content-length", "0x0"),
    ] {
        assert_eq!(with(&[field]), Err(MESSAGE_ERROR), "{field:?}");
    }
    for field in [
        ("te", "trailers"),
        ("te", "Trailers"),
        ("x", "a\tb"),
        ("x", " spaces around "),
        ("x", "\u{e4}"),
        ("x", ""),
        ("content-length", "0"),
    ] {
        assert_eq!(with(&[field]), Ok(200), "{field:?}");
    }
    let length = ("content-length", "0");
    assert_eq!(with(&[length, length]), Err(MESSAGE_ERROR));
}

/// Nothing that a field says may look like another field.
#[test]
fn no_value_becomes_a_line_of_its_own() {
    let path = "/a?\u{85}range:bytes=0-1";
    assert_eq!(outcome(&request("GET", path, &[])), Ok(200));
    let mut lab = lab();
    let connection = lab.http3();
    let bytes = request(
        "GET",
        "/a",
        &[("x-range", "bytes=0-1"), ("x", "range: bytes=0-1")],
    );
    assert_eq!(lab.ask3(connection, &bytes).body, b"content");
    let bytes = request("GET", "/a", &[("range", "  bytes=0-1\t")]);
    assert_eq!(lab.ask3(connection, &bytes).body, b"co");
}

/// Covers: RFC 9114 §4.1.2
#[test]
fn a_body_is_as_long_as_its_request_says() {
    let post = |length, data: &[&str]| {
        let mut bytes = request("GET", "/a", &[("content-length", length)]);
        for data in data {
            bytes.extend(frame(DATA, data));
        }
        outcome(&bytes)
    };
    assert_eq!(post("5", &["12345"]), Ok(200));
    assert_eq!(post("5", &["12", "", "345"]), Ok(200));
    assert_eq!(post("0", &[]), Ok(200));
    assert_eq!(post("0", &[""]), Ok(200));
    // The response may be over by then; that is no matter to a client that lies.
    for (length, data) in [
        ("5", &["1234"][..]),
        ("5", &["123", "456"]),
        ("0", &["1"]),
        ("1", &[]),
    ] {
        let mut lab = lab();
        let connection = lab.http3();
        let mut bytes = request("GET", "/a", &[("content-length", length)]);
        data.iter().for_each(|data| bytes.extend(frame(DATA, data)));
        let stream = lab.send_all(connection, &bytes);
        assert_eq!(
            lab.reset_code(stream),
            Some(MESSAGE_ERROR),
            "{length} {data:?}"
        );
        assert_eq!(lab.quic_closed(connection), None);
        assert_eq!(lab.files_left_open(), 0);
    }
}

/// Covers: RFC 9114 §4.1, RFC 9114 §4.3
#[test]
fn trailers_are_judged_and_ignored() {
    let with = |trailers: &[Field]| {
        let mut bytes = get("/a");
        bytes.extend(frame(DATA, "body"));
        bytes.extend(headers(trailers));
        let mut lab = lab();
        let connection = lab.http3();
        let stream = lab.send_all(connection, &bytes);
        assert_eq!(lab.quic_closed(connection), None);
        lab.reset_code(stream)
    };
    assert_eq!(with(&[("digest", "x"), ("range", "bytes=0-1")]), None);
    assert_eq!(with(&[]), None);
    for field in [PATH, (":x", ""), ("X", ""), ("x", "\n")] {
        assert_eq!(with(&[field]), Some(MESSAGE_ERROR), "{field:?}");
    }
    let mut lab = lab();
    let connection = lab.http3();
    let mut bytes = get("/a");
    bytes.extend(headers(&[("range", "bytes=0-1")]));
    let stream = lab.send_all(connection, &bytes);
    assert_eq!(response(&lab.received(stream)).body, b"content");
}

/// Covers: RFC 9114 §4.1
#[test]
fn a_stream_that_ends_before_its_request_is_incomplete() {
    assert_eq!(outcome(b""), Err(REQUEST_INCOMPLETE));
    assert_eq!(
        outcome(&frame(0x21, "only grease")),
        Err(REQUEST_INCOMPLETE)
    );
}

/// A head that HTTP/1.1 would take is taken, and one that it would not is refused alike.
///
/// RFC 9114 §4.2.2
#[test]
fn heads_are_as_long_as_with_the_other_version() {
    let long = |bytes: usize| "x".repeat(bytes);
    // Shorter than its lines of text: half of the fields are indices.
    let head = |value: &str| {
        let fields = raw_section(&[(b"x", value.as_bytes())]);
        let pseudo = b"\0\0\xd1\xd7\x50\x0bexample.org\x51\x02/a";
        frame(HEADERS, [pseudo, &fields[2..]].concat())
    };
    let rest = "GET /a HTTP/3.0\nhost: example.org\nx: \n".len();
    assert_eq!(outcome(&head(&long((16 << 10) - rest))), Ok(200));
    assert_eq!(outcome(&head(&long((16 << 10) - rest + 1))), Ok(431));
    // More than is read at all, of which the end is not waited for.
    assert_eq!(outcome(&head(&long(100_000))), Ok(431));
    let fields = |count| vec![("a", "b"); count];
    assert_eq!(outcome(&request("GET", "/a", &fields(100))), Ok(200));
    assert_eq!(outcome(&request("GET", "/a", &fields(101))), Ok(431));
    let line = "GET  HTTP/1.1\r\n".len();
    let path = |bytes| format!("/a?{}", long(bytes - line - 3));
    assert_eq!(outcome(&request("GET", &path(8 << 10), &[])), Ok(200));
    assert_eq!(outcome(&request("GET", &path((8 << 10) + 1), &[])), Ok(414));
}

#[test]
fn a_refused_head_of_which_nothing_is_known_is_answered_as_a_get_and_a_known_one_as_it_asks() {
    let mut lab = lab();
    let connection = lab.http3();
    let fields = vec![("a", "b"); 200];
    let response = lab.ask3(connection, &request("HEAD", "/a", &fields));
    assert_eq!((response.status, response.body.len()), (431, 0));
    assert_ne!(response.header("content-length"), Some("0"));
    let long = "x".repeat(100_000);
    let response = lab.ask3(connection, &request("HEAD", "/a", &[("x", &long)]));
    assert_eq!((response.status, response.body.len()), (431, 0));
    let section = section(&[("x", &long)]);
    let stream = lab.begin(connection, &frame(HEADERS, &section));
    assert!(!lab.response3(stream).body.is_empty());
    assert_eq!(lab.stop_code(stream), Some(0x100), "the rest is not wanted");
}

/// A client that accepts field sections of this size.
fn accepting(lab: &mut Lab, bytes_max: u64) -> QuicConnection {
    let connection = lab.open_quic(false);
    accept(lab, connection, bytes_max);
    connection
}

/// The client says so now.
fn accept(lab: &mut Lab, connection: QuicConnection, bytes_max: u64) {
    let settings = [varint(6), varint(bytes_max)].concat();
    let stream = [&[0][..], &frame(SETTINGS, &settings)].concat();
    lab.unidirectional(connection, &stream);
}

/// RFC 9114 §4.2.2
#[test]
fn a_head_is_no_longer_than_its_client_accepts() {
    const INTERNAL_ERROR: u64 = 0x102;
    let mut rule = Rule::new("/long*".parse().unwrap());
    rule.fields = vec![ExtraField::new("X-Long", &"x".repeat(2000)).unwrap()];
    let mut config = Config::default();
    config.sites[0].rules = vec![rule];
    let mut lab = Lab::alone(config);
    for path in ["long", "short"] {
        lab.file(path, "content");
    }
    let free = lab.http3();
    let long = lab.ask3(free, &get("/long"));
    let fields = long.headers.iter();
    let bytes: usize = fields
        .map(|(name, value)| name.len() + value.len() + 32)
        .sum();
    let exact = (bytes + ":status".len() + "200".len() + 32) as u64;
    for (bytes_max, is_accepted) in [(1000, false), (exact - 1, false), (exact, true)] {
        let connection = accepting(&mut lab, bytes_max);
        let response = lab.ask3(connection, &get("/long"));
        assert_eq!(
            response.status == 200,
            is_accepted,
            "{bytes_max} of {exact}"
        );
        if !is_accepted {
            assert_eq!((response.status, response.header("x-long")), (502, None));
            assert!(!response.body.is_empty());
        }
        let response = lab.ask3(connection, &get("/short"));
        assert_eq!(
            (response.status, &response.body[..]),
            (200, &b"content"[..])
        );
    }
    let connection = accepting(&mut lab, 100);
    let stream = lab.send_all(connection, &get("/short"));
    assert_eq!(lab.reset_code(stream), Some(INTERNAL_ERROR));
    // The settings may come after the request.
    lab.hold_opens();
    let connection = lab.open_quic(false);
    let stream = lab.send_all(connection, &get("/long"));
    accept(&mut lab, connection, 1000);
    lab.answer_opens();
    assert_eq!(lab.response3(stream).status, 502);
    assert_eq!(lab.counters().oversized_heads, 4);
    assert_eq!(lab.files_left_open(), 0);
}
