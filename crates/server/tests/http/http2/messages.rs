//! Requests and responses as HTTP/2 frames them, and those that are malformed.

use std::time::Duration;

use server::{Config, ExtraField, Rule, Site};

use crate::http2::client::{
    COMPRESSION_ERROR, CONTINUATION, Client, DATA, END_HEADERS, END_STREAM, HEADERS, NO_ERROR,
    PADDED, PREFACE, PRIORITIZED, PROTOCOL_ERROR, RST_STREAM, block, content, frame, request,
    settings, window_update,
};
use crate::lab::Lab;

const INTERNAL_ERROR: u32 = 2;

type Field = (&'static str, &'static str);

const METHOD: Field = (":method", "GET");
const SCHEME: Field = (":scheme", "https");
const AUTHORITY: Field = (":authority", "example.org");
const PATH: Field = (":path", "/a");

fn lab() -> Lab {
    let mut lab = Lab::alone(Config::default());
    lab.file("a", "content");
    lab.file("large", content(300_000));
    lab
}

/// Sends a request with this field block; returns the code with which the stream was reset, or the
/// status of the response. The connection goes on, and its dynamic tables are in step.
fn outcome(block: &[u8]) -> Result<u16, u32> {
    let mut lab = lab();
    let mut client = Client::open(&mut lab);
    let id = client.next_id();
    client.send_block(&mut lab, id, END_STREAM, block);
    let outcome = match client.reset_code(&lab, id) {
        Some(code) => {
            assert_eq!(lab.counters().http2_stream_errors, 1);
            Err(code)
        }
        None => Ok(client.response(&mut lab, id).status),
    };
    assert_eq!(client.goaway(&lab), None);
    assert_eq!(client.get(&mut lab, "/a").body, b"content");
    assert_eq!(lab.files_left_open(), 0);
    outcome
}

fn of(fields: &[Field]) -> Result<u16, u32> {
    outcome(&block(fields))
}

fn with(more: &[Field]) -> Result<u16, u32> {
    outcome(&block(&request("GET", "/a", more)))
}

const MALFORMED: Result<u16, u32> = Err(PROTOCOL_ERROR);

/// Covers: RFC 9113 §8.3, RFC 9113 §8.3.1
#[test]
fn pseudo_header_fields_are_there_once_and_come_first() {
    assert_eq!(of(&[METHOD, SCHEME, AUTHORITY, PATH]), Ok(200));
    assert_eq!(
        of(&[PATH, AUTHORITY, SCHEME, METHOD]),
        Ok(200),
        "in any order"
    );
    assert_eq!(of(&[]), MALFORMED);
    assert_eq!(of(&[SCHEME, AUTHORITY, PATH]), MALFORMED);
    assert_eq!(of(&[METHOD, AUTHORITY, PATH]), MALFORMED);
    assert_eq!(of(&[METHOD, SCHEME, PATH]), MALFORMED);
    assert_eq!(of(&[METHOD, SCHEME, AUTHORITY]), MALFORMED);
    for twice in [METHOD, SCHEME, AUTHORITY, PATH] {
        assert_eq!(of(&[METHOD, SCHEME, AUTHORITY, PATH, twice]), MALFORMED);
        assert_eq!(of(&[twice, METHOD, SCHEME, AUTHORITY, PATH]), MALFORMED);
    }
    let field = ("accept", "*/*");
    assert_eq!(of(&[METHOD, SCHEME, AUTHORITY, PATH, field]), Ok(200));
    assert_eq!(of(&[METHOD, SCHEME, AUTHORITY, field, PATH]), MALFORMED);
    assert_eq!(of(&[field, METHOD, SCHEME, AUTHORITY, PATH]), MALFORMED);
    for unknown in [
        (":status", "200"),
        (":protocol", "websocket"),
        (":x", ""),
        (":", ""),
    ] {
        assert_eq!(of(&[METHOD, SCHEME, AUTHORITY, PATH, unknown]), MALFORMED);
    }
}

/// Covers: RFC 9113 §8.3.1
#[test]
fn pseudo_header_fields_have_values_of_their_kinds() {
    for (name, value, expected) in [
        (":method", "HEAD", Ok(200)),
        (":method", "get", Ok(501)),
        (":method", "PATCH", Ok(405)),
        (":method", "", MALFORMED),
        (":method", "GE T", MALFORMED),
        (":method", "G\nT", MALFORMED),
        (":scheme", "http", Ok(200)),
        (":scheme", "HTTPS", Ok(200)),
        (":scheme", "ftp", Ok(400)),
        (":scheme", "", Ok(400)),
        (":path", "/a?b", Ok(200)),
        (":path", "/%61", Ok(200)),
        (":path", "/\u{e4}", Ok(404)),
        (":path", "", MALFORMED),
        (":path", "a", MALFORMED),
        (":path", "*", MALFORMED),
        (":path", "http://example.org/a", MALFORMED),
        (":path", "/a b", MALFORMED),
        (":path", "/a\r\nx: y", MALFORMED),
        (":path", "/a\0", MALFORMED),
        (":path", "/a#b", Ok(400)),
        (":authority", "example.org:443", Ok(200)),
        (":authority", "[fd77::1]", Ok(200)),
        (":authority", "", MALFORMED),
        (":authority", "a\nb", MALFORMED),
        (":authority", "user@example.org", Ok(400)),
        (":authority", "a b", Ok(400)),
    ] {
        let mut fields = [METHOD, SCHEME, AUTHORITY, PATH];
        let place = fields.iter_mut().find(|(known, _)| *known == name);
        *place.expect("a field") = (name, value);
        assert_eq!(of(&fields), expected, "{name} {value:?}");
    }
}

/// Covers: RFC 9113 §8.3.1
#[test]
fn the_field_host_stands_in_for_the_authority_and_does_not_differ_from_it() {
    let host = ("host", "example.org");
    assert_eq!(of(&[METHOD, SCHEME, PATH, host]), Ok(200));
    assert_eq!(of(&[METHOD, SCHEME, PATH, host, host]), MALFORMED);
    assert_eq!(of(&[METHOD, SCHEME, PATH, ("host", "")]), MALFORMED);
    assert_eq!(of(&[METHOD, SCHEME, PATH, ("host", "a b")]), Ok(400));
    assert_eq!(with(&[host]), Ok(200));
    assert_eq!(with(&[("host", "example.net")]), MALFORMED);
    assert_eq!(with(&[("host", "")]), MALFORMED);
}

/// Covers: RFC 9113 §8.5
#[test]
fn connect_has_an_authority_only_and_is_not_allowed() {
    let connect = (":method", "CONNECT");
    let authority = (":authority", "example.org:443");
    assert_eq!(of(&[connect, authority]), Ok(405));
    assert_eq!(of(&[connect]), MALFORMED);
    assert_eq!(of(&[connect, authority, PATH]), MALFORMED);
    assert_eq!(of(&[connect, authority, SCHEME]), MALFORMED);
}

/// Covers: RFC 9113 §8.2.1, RFC 9113 §8.2.2
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
        ("x", "a\x7fb"),
        ("x", " a"),
        ("x", "a\t"),
        ("x", " "),
        ("content-length", ""),
        ("content-length", "+1"),
        ("content-length", "1,1"),
        ("content-length", "1"),
    ] {
        assert_eq!(with(&[field]), MALFORMED, "{field:?}");
    }
    for field in [
        ("te", "trailers"),
        ("te", "Trailers"),
        ("x", "a\tb"),
        ("x", "\u{e4}"),
        ("x", ""),
        ("content-length", "0"),
    ] {
        assert_eq!(with(&[field]), Ok(200), "{field:?}");
    }
    assert_eq!(
        with(&[("cookie", "a=1"), ("cookie", "b=2")]),
        Ok(200),
        "RFC 9113 §8.2.3"
    );
    let length = ("content-length", "0");
    assert_eq!(with(&[length, length]), MALFORMED);
}

/// Covers: RFC 9113 §8.1
#[test]
fn responses_without_a_body_are_one_frame() {
    let mut lab = lab();
    lab.file("empty", "");
    let mut client = Client::open(&mut lab);
    for (method, path, fields, status) in [
        ("HEAD", "/a", &[][..], 200),
        ("HEAD", "/none", &[], 404),
        ("HEAD", "/a", &[("range", "bytes=0-1")], 206),
        ("GET", "/empty", &[], 200),
        ("GET", "/a", &[("if-none-match", "*")], 304),
        ("OPTIONS", "/a", &[], 204),
    ] {
        let id = client.send_request(&mut lab, &request(method, path, fields), true);
        let status = if (method, status) == ("HEAD", 206) {
            200
        } else {
            status
        };
        assert_eq!(client.response(&mut lab, id).status, status);
        let frames = client.frames.iter();
        let frames: Vec<_> = frames.filter(|frame| frame.stream == id).collect();
        assert_eq!((frames.len(), frames[0].kind), (1, HEADERS));
        assert_eq!(frames[0].flags, END_STREAM | END_HEADERS);
    }
    assert_eq!(lab.files_left_open(), 0);
}

/// Covers: RFC 9113 §8.1
#[test]
fn bodies_come_byte_for_byte() {
    let mut lab = Lab::alone(Config {
        sites: vec![Site {
            listing: true,
            ..Site::default()
        }],
        ..Config::default()
    });
    lab.file("large", content(300_000));
    lab.directory("dir");
    (0..500).for_each(|at| lab.file(&format!("dir/{at:050}"), ""));
    let mut plain_bytes = |fields: &[(&str, &str)], path: &str| lab.get_with(path, fields);
    let ranges = [("range", "bytes=5-9, 100000-199999, -1")];
    let expected = plain_bytes(&ranges, "/large");
    let listing = plain_bytes(&[], "/dir/");
    assert!(listing.body.len() > 50_000);
    let mut client = Client::open(&mut lab);
    assert_eq!(client.get(&mut lab, "/large").body, content(300_000));
    assert_eq!(client.get(&mut lab, "/dir/").body, listing.body);
    let one = [("range", "bytes=1000-250000")];
    let id = client.send_request(&mut lab, &request("GET", "/large", &one), true);
    let response = client.response(&mut lab, id);
    assert_eq!(response.status, 206);
    assert!(response.body == content(300_000)[1000..=250_000]);
    let id = client.send_request(&mut lab, &request("GET", "/large", &ranges), true);
    let response = client.response(&mut lab, id);
    assert_eq!(
        (response.status, response.body.len()),
        (206, expected.body.len())
    );
    let parts = [
        &content(300_000)[5..10],
        &content(300_000)[100_000..200_000],
    ];
    for part in parts {
        let mut places = response.body.windows(part.len());
        assert!(places.any(|place| place == part));
    }
    let error = client.get(&mut lab, "/none");
    let length = error.header("content-length").map(|it| it.parse().unwrap());
    assert_eq!((error.status, length), (404, Some(error.body.len())));
    assert_eq!(lab.files_left_open(), 0);
}

/// Covers: RFC 9113 §8.1.1
#[test]
fn a_body_is_as_long_as_its_request_states() {
    for is_held in [true, false] {
        for (length, data, is_right) in [
            ("5", &["12345"][..], true),
            ("5", &["12", "", "345"], true),
            ("0", &[""], true),
            ("5", &["1234"], false),
            ("5", &["123", "456"], false),
            ("0", &["1"], false),
            ("1", &[""], false),
        ] {
            let mut lab = lab();
            let mut client = Client::open(&mut lab);
            if is_held {
                lab.hold_opens();
            }
            let fields = request("GET", "/a", &[("content-length", length)]);
            let id = client.send_request(&mut lab, &fields, false);
            let (last, before) = data.split_last().unwrap();
            before
                .iter()
                .for_each(|data| client.send(&mut lab, frame(DATA, 0, id, data)));
            client.send(&mut lab, frame(DATA, END_STREAM, id, last));
            lab.answer_opens();
            let expected = (!is_right).then_some(PROTOCOL_ERROR);
            assert_eq!(client.reset_code(&lab, id), expected, "{length} {data:?}");
            assert_eq!(client.get(&mut lab, "/a").body, b"content");
            assert_eq!(client.goaway(&lab), None);
            assert_eq!(lab.files_left_open(), 0);
        }
    }
}

/// Covers: RFC 9113 §8.1
#[test]
fn trailers_are_checked_and_ignored() {
    let with = |flags: u8, trailers: &[Field]| {
        let mut lab = lab();
        lab.hold_opens();
        let mut client = Client::open(&mut lab);
        let id = client.send_request(&mut lab, &request("GET", "/a", &[]), false);
        client.send(&mut lab, frame(DATA, 0, id, b"body"));
        client.send_block(&mut lab, id, flags, &block(trailers));
        lab.answer_opens();
        let code = client.reset_code(&lab, id);
        if code.is_none() {
            assert_eq!(client.response(&mut lab, id).body, b"content");
        }
        assert_eq!(client.get(&mut lab, "/a").body, b"content");
        code
    };
    assert_eq!(
        with(END_STREAM, &[("digest", "x"), ("range", "bytes=0-1")]),
        None
    );
    assert_eq!(with(END_STREAM, &[]), None);
    assert_eq!(with(0, &[("digest", "x")]), Some(PROTOCOL_ERROR));
    for field in [PATH, (":x", ""), ("X", ""), ("x", "\n")] {
        assert_eq!(
            with(END_STREAM, &[field]),
            Some(PROTOCOL_ERROR),
            "{field:?}"
        );
    }
}

/// The response does not wait for the end of the request.
///
/// Covers: RFC 9113 §8.1
#[test]
fn a_request_without_end_is_answered_and_its_rest_is_declined_after_a_time() {
    let mut lab = lab();
    let mut client = Client::open(&mut lab);
    let id = client.send_request(&mut lab, &request("GET", "/a", &[]), false);
    assert_eq!(client.response(&mut lab, id).body, b"content");
    lab.pass(Duration::from_secs(14));
    client.send(&mut lab, frame(DATA, 0, id, b"body"));
    assert_eq!(client.reset_code(&lab, id), None);
    lab.pass(Duration::from_secs(1));
    assert_eq!(client.reset_code(&lab, id), Some(NO_ERROR));
    client.send(&mut lab, frame(DATA, 0, id, b"body"));
    client.send_block(&mut lab, id, END_STREAM, &block(&[("x", "y")]));
    client.send_block(&mut lab, id, END_STREAM, &block(&[("X", "malformed")]));
    assert_eq!(client.frames_of(&lab, RST_STREAM).len(), 1);
    assert_eq!(client.goaway(&lab), None);
    let counters = lab.counters();
    assert_eq!(
        (counters.head_timeouts, counters.http2_stream_errors),
        (1, 0)
    );
}

/// Covers: RFC 9113 §6.2, RFC 9113 §6.10
#[test]
fn a_field_block_may_come_in_pieces_with_padding_and_priority() {
    let block = block(&request("GET", "/a", &[("x", &"y".repeat(300))]));
    for padding in [0, 1, 255] {
        for pieces in [1, 2, 5, 16] {
            let mut lab = lab();
            let mut client = Client::open(&mut lab);
            let id = client.next_id();
            let mut rest = block.chunks(block.len().div_ceil(pieces)).peekable();
            let first = rest.next().unwrap();
            let prefix = [&[padding][..], &[0, 0, 0, 9, 200]].concat();
            let payload = [&prefix, first, &vec![0; padding.into()]].concat();
            let ends = |is_last| if is_last { END_HEADERS } else { 0 };
            let flags = END_STREAM | PADDED | PRIORITIZED | ends(rest.peek().is_none());
            let mut bytes = frame(HEADERS, flags, id, payload);
            while let Some(piece) = rest.next() {
                bytes.extend(frame(CONTINUATION, ends(rest.peek().is_none()), id, piece));
            }
            client.send(&mut lab, bytes);
            assert_eq!(client.response(&mut lab, id).body, b"content");
        }
    }
    // Nothing but padding in HEADERS, and an empty end.
    let mut lab = lab();
    let mut client = Client::open(&mut lab);
    let pieces = [
        frame(HEADERS, END_STREAM | PADDED, 1, [2, 0, 0]),
        frame(CONTINUATION, 0, 1, &block),
        frame(CONTINUATION, END_HEADERS, 1, b""),
    ];
    client.send(&mut lab, pieces.concat());
    assert_eq!(client.response(&mut lab, 1).body, b"content");
}

/// Covers: RFC 9113 §4.1
#[test]
fn bytes_split_anywhere_mean_the_same() {
    let padded = [
        &[3][..],
        &block(&request("GET", "/a", &[("x", "y")])),
        &[0; 3],
    ]
    .concat();
    let bytes = [
        PREFACE,
        &settings(&[(4, 100), (1, 0)]),
        &frame(HEADERS, END_HEADERS | PADDED, 1, padded),
        &frame(DATA, PADDED, 1, [1, b'x', 0]),
        &frame(0xb, 0, 0, b"grease"),
        &frame(HEADERS, END_STREAM, 3, block(&[METHOD, SCHEME])),
        &frame(CONTINUATION, END_HEADERS, 3, block(&[AUTHORITY, PATH])),
        &window_update(3, 70),
        &frame(HEADERS, END_STREAM | END_HEADERS, 1, b""),
        &frame(
            HEADERS,
            END_STREAM | END_HEADERS,
            5,
            block(&request("GET", "/large", &[])),
        ),
        &window_update(5, 1),
        &frame(7, 0, 0, [0; 12]),
    ]
    .concat();
    let run = |pieces: &[&[u8]]| {
        let mut lab = lab();
        lab.hold_opens();
        let client = Client::silent(&mut lab);
        pieces.iter().for_each(|piece| client.send(&mut lab, piece));
        lab.answer_opens();
        (
            lab.received(client.stream),
            lab.counters().requests,
            lab.unread_bytes(client.stream),
        )
    };
    let expected = run(&[&bytes]);
    assert_eq!((expected.1, expected.2), (3, 0));
    for split in 1..bytes.len() {
        let (before, after) = bytes.split_at(split);
        assert!(run(&[before, after]) == expected, "at {split}");
    }
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert!(run(&single) == expected, "byte by byte");
}

/// A site whose responses below `/long` have this many bytes of fields of their own.
fn long_heads(bytes: usize) -> Lab {
    let mut rule = Rule::new("/long*".parse().unwrap());
    let field = |at, bytes| ExtraField::new(&format!("X-Long-{at}"), &"x".repeat(bytes)).unwrap();
    rule.fields = vec![field(1, bytes / 2), field(2, bytes / 2)];
    let mut config = Config::default();
    config.sites[0].rules = vec![rule];
    let mut lab = Lab::alone(config);
    lab.file("long", "content");
    lab.file("short", "content");
    lab
}

/// Covers: RFC 9113 §4.3, RFC 9113 §6.10
#[test]
fn long_response_heads_are_continued() {
    for bytes in [16_000, 16_200, 16_384, 20_000, 33_000, 70_000] {
        let mut lab = long_heads(bytes);
        let mut client = Client::open(&mut lab);
        let response = client.get(&mut lab, "/long");
        assert_eq!(response.body, b"content");
        assert_eq!(
            response.header("x-long-2"),
            Some(&"x".repeat(bytes / 2)[..])
        );
        let pieces = client.frames.iter();
        let pieces = pieces.filter(|frame| [HEADERS, CONTINUATION].contains(&frame.kind));
        let lengths: Vec<usize> = pieces.map(|frame| frame.payload.len()).collect();
        let (last, full) = lengths.split_last().unwrap();
        assert!(full.iter().all(|&length| length == 16_384));
        assert!((1..=16_384).contains(last));
        let total: usize = lengths.iter().sum();
        assert!((bytes..bytes + 400).contains(&total));
        assert_eq!(client.get(&mut lab, "/short").status, 200);
    }
}

/// Covers: RFC 9113 §6.5.2
#[test]
fn a_head_is_no_longer_than_the_client_accepts() {
    let mut lab = long_heads(2000);
    let mut free = Client::open(&mut lab);
    let long = free.get(&mut lab, "/long");
    let fields = long.headers.iter();
    let bytes: usize = fields
        .map(|(name, value)| name.len() + value.len() + 32)
        .sum();
    let exact = (bytes + ":status200".len() + 32) as u32;
    for (bytes_max, is_accepted) in [(1000, false), (exact - 1, false), (exact, true)] {
        let mut client = Client::connect(&mut lab, &[(6, bytes_max)]);
        let response = client.get(&mut lab, "/long");
        assert_eq!(
            response.status == 200,
            is_accepted,
            "{bytes_max} of {exact}"
        );
        if !is_accepted {
            assert_eq!((response.status, response.header("x-long-1")), (502, None));
            assert!(!response.body.is_empty());
        }
        assert_eq!(client.get(&mut lab, "/short").body, b"content");
    }
    let mut client = Client::connect(&mut lab, &[(6, 100)]);
    let id = client.send_get(&mut lab, "/short");
    assert_eq!(client.reset_code(&lab, id), Some(INTERNAL_ERROR));
    assert_eq!(client.goaway(&lab), None);
    assert_eq!(lab.counters().oversized_heads, 3);
    assert_eq!(lab.files_left_open(), 0);
}

/// Covers: RFC 9113 §6.5.2
#[test]
fn a_smaller_limit_on_heads_holds_for_open_requests() {
    let mut lab = long_heads(2000);
    let mut client = Client::open(&mut lab);
    lab.hold_opens();
    let ids = ["/long", "/short"].map(|path| client.send_get(&mut lab, path));
    client.send(&mut lab, settings(&[(6, 1000)]));
    lab.answer_opens();
    let statuses = ids.map(|id| client.response(&mut lab, id).status);
    assert_eq!(statuses, [502, 200]);
    assert_eq!(lab.counters().oversized_heads, 1);
    assert_eq!(lab.files_left_open(), 0);
}

/// A head that HTTP/1.1 would take is taken, and another one is refused alike.
///
/// Covers: RFC 9113 §10.5.1
#[test]
fn request_heads_are_as_long_as_with_other_versions() {
    let long = |bytes: usize| "x".repeat(bytes);
    let head = |value: &str| outcome(&block(&request("GET", "/a", &[("x", value)])));
    let rest = "GET /a HTTP/2.0\nhost: example.org\nx: \n".len();
    assert_eq!(head(&long((16 << 10) - rest)), Ok(200));
    assert_eq!(head(&long((16 << 10) - rest + 1)), Ok(431));
    assert_eq!(head(&long(60_000)), Ok(431));
    let fields = |count| outcome(&block(&request("GET", "/a", &vec![("a", "b"); count])));
    assert_eq!(fields(100), Ok(200));
    assert_eq!(fields(101), Ok(431));
    let line = "GET  HTTP/1.1\r\n".len();
    let path = |bytes| format!("/a?{}", long(bytes - line - 3));
    let path = |bytes| outcome(&block(&request("GET", &path(bytes), &[])));
    assert_eq!(path(8 << 10), Ok(200));
    assert_eq!(path((8 << 10) + 1), Ok(414));
}

/// A literal that enters the dynamic table (RFC 7541 §6.2.1); lengths below 127.
fn indexed(name: &str, value: &str) -> Vec<u8> {
    let lengths = [name.len() as u8, value.len() as u8];
    [
        &[0x40, lengths[0]],
        name.as_bytes(),
        &lengths[1..],
        value.as_bytes(),
    ]
    .concat()
}

/// GET, https and the authority `h`.
const GET_H: &[u8] = &[0x82, 0x87, 0x01, 1, b'h'];

/// Covers: RFC 7541 §2.3.2, RFC 7541 §4.3, RFC 7541 §4.4
#[test]
fn the_dynamic_table_lasts_from_request_to_request() {
    let mut lab = lab();
    let mut client = Client::open(&mut lab);
    let mut ask = |block: &[u8]| {
        let id = client.next_id();
        client.send_block(&mut lab, id, END_STREAM, block);
        let goaway = client.goaway(&lab).map(|(_, code)| code);
        match goaway {
            Some(code) => Err(code),
            None => Ok(client.response(&mut lab, id).body),
        }
    };
    let both = [
        GET_H,
        &indexed(":path", "/a"),
        &indexed("range", "bytes=0-2"),
    ]
    .concat();
    assert_eq!(ask(&both), Ok(b"con".to_vec()));
    // The range is the newest entry.
    assert_eq!(ask(&[GET_H, &[0xbf, 0xbe]].concat()), Ok(b"con".to_vec()));
    assert_eq!(ask(&[GET_H, &[0xbf]].concat()), Ok(b"content".to_vec()));
    let other = [GET_H, &[0xbf], &[0x7e, 9], b"bytes=1-1"].concat();
    assert_eq!(ask(&other), Ok(b"o".to_vec()), "a name of the table");
    let evicts = [&[0x20, 0x3f, 0x20][..], GET_H, &indexed(":path", "/a")].concat();
    assert_eq!(ask(&evicts), Ok(b"content".to_vec()), "a table of 63 bytes");
    assert_eq!(ask(&[GET_H, &[0xbe]].concat()), Ok(b"content".to_vec()));
    let replaced = [GET_H, &[0xbe], &indexed("range", "bytes=0-2")].concat();
    assert_eq!(ask(&replaced), Ok(b"con".to_vec()));
    assert_eq!(
        ask(&[GET_H, &[0x04, 2], b"/a", &[0xbe]].concat()),
        Ok(b"con".to_vec())
    );
    assert_eq!(
        ask(&[GET_H, &[0xbf]].concat()),
        Err(COMPRESSION_ERROR),
        "evicted"
    );
}

/// Requests that get no response, or an error, enter their fields as well.
///
/// Covers: RFC 9113 §4.3, RFC 7541 §2.3.2
#[test]
fn requests_that_fail_leave_the_dynamic_table_in_step() {
    let entry = indexed("range", "bytes=0-2");
    let too_large = [GET_H, &[0x04, 2], b"/a", &block(&[("x", "y"); 200]), &entry].concat();
    let too_long = {
        let long = "x".repeat(20_000);
        [&block(&request("GET", "/a", &[("x", &long)]))[..], &entry].concat()
    };
    let malformed = [GET_H, &[0x04, 2], b"/a", &block(&[("X", "")]), &entry].concat();
    for first in [too_large, too_long, malformed] {
        let mut lab = lab();
        let mut client = Client::open(&mut lab);
        let id = client.next_id();
        client.send_block(&mut lab, id, END_STREAM, &first);
        let id = client.next_id();
        let second = [GET_H, &[0x04, 2], b"/a", &[0xbe]].concat();
        client.send_block(&mut lab, id, END_STREAM, &second);
        assert_eq!(client.response(&mut lab, id).body, b"con");
    }
    // Trailers of a stream that is open, and of one that the server has reset.
    let mut lab = lab();
    let mut client = Client::open(&mut lab);
    let open = client.send_request(&mut lab, &request("GET", "/a", &[]), false);
    let reset = client.send_request(&mut lab, &request("GET", "/a", &[]), false);
    client.send(&mut lab, window_update(reset, 0));
    assert_eq!(client.reset_code(&lab, reset), Some(PROTOCOL_ERROR));
    client.send_block(&mut lab, open, END_STREAM, &indexed("x", "y"));
    client.send_block(&mut lab, reset, END_STREAM, &entry);
    let id = client.next_id();
    let block = [GET_H, &[0x04, 2], b"/a", &[0xbe, 0xbf]].concat();
    client.send_block(&mut lab, id, END_STREAM, &block);
    assert_eq!(client.response(&mut lab, id).body, b"con");
}

/// Covers: RFC 7541 §4.2, RFC 9113 §4.3.1, RFC 9113 §6.5.2
#[test]
fn responses_follow_the_table_size_of_the_client() {
    let mut lab = lab();
    let mut client = Client::open(&mut lab);
    let head_bytes = |lab: &mut Lab, client: &mut Client| {
        let response = client.get(lab, "/a");
        assert_eq!(
            (response.status, response.header("server")),
            (200, Some("splitway"))
        );
        client.frames_of(lab, HEADERS).last().unwrap().payload.len()
    };
    let first = head_bytes(&mut lab, &mut client);
    let second = head_bytes(&mut lab, &mut client);
    assert!(second + 20 < first, "{second} after {first} bytes");
    client.send(&mut lab, settings(&[(1, 0)]));
    let without = head_bytes(&mut lab, &mut client);
    assert!(without > second + 20);
    assert_eq!(head_bytes(&mut lab, &mut client) + 1, without);
    client.send(
        &mut lab,
        [settings(&[(1, 0)]), settings(&[(1, u32::MAX)])].concat(),
    );
    let again = head_bytes(&mut lab, &mut client);
    assert_eq!(
        head_bytes(&mut lab, &mut client),
        second,
        "{again} bytes before"
    );
}
