//! Parts of files.

use std::ops::Range;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use server::Config;

use crate::lab::{Lab, Response, START, get, get_with};

/// A thousand bytes, no two neighbours of which are alike.
fn content() -> Vec<u8> {
    (0..1000u32).map(|at| (at * 7 % 251) as u8).collect()
}

fn lab() -> Lab {
    let mut lab = Lab::new();
    lab.file_of("clip.mp4", content(), 1);
    lab
}

fn part(lab: &mut Lab, range: &str) -> Response {
    lab.get_with("/clip.mp4", &[("Range", range)])
}

#[test]
fn a_range_is_answered_with_just_that() {
    let mut lab = lab();
    for (value, range) in [
        ("bytes=0-0", 0..1),
        ("bytes=0-", 0..1000),
        ("bytes=500-599", 500..600),
        ("bytes=999-999", 999..1000),
        ("bytes=500-99999", 500..1000),
        ("bytes=-1", 999..1000),
        ("bytes=-300", 700..1000),
        ("bytes=-99999", 0..1000),
        ("BYTES=1-2", 1..3),
    ] {
        let response = part(&mut lab, value);
        let content_range = format!("bytes {}-{}/1000", range.start, range.end - 1);
        assert_eq!(response.status, 206, "{value}");
        assert_eq!(response.body, content()[range.clone()], "{value}");
        assert_eq!(
            response.header("Content-Range"),
            Some(content_range.as_str())
        );
        assert_eq!(response.header("Content-Type"), Some("video/mp4"));
        for name in ["ETag", "Last-Modified", "Date", "Accept-Ranges"] {
            assert!(response.header(name).is_some(), "{name}");
        }
    }
    assert_eq!(lab.files_left_open(), 0);
}

#[test]
fn a_range_is_a_range_for_the_nic_stack_too() {
    let mut lab = lab();
    let client = lab.connect();
    lab.ask(
        client,
        &get_with("/clip.mp4", &[("Range", "bytes=500-599")]),
    );
    assert!(matches!(&lab.ranges(client)[..], [range] if *range == (500..600)));
    assert_eq!(lab.counters().virtual_bytes, 100);
}

#[test]
fn ranges_beyond_four_gigabytes() {
    const SIZE: u64 = 5 << 30;
    let mut lab = Lab::new();
    lab.zeros("huge", SIZE);
    for (value, range) in [
        ("bytes=4294967295-4294967296", (1 << 32) - 1..(1 << 32) + 1),
        ("bytes=4294967296-", 1 << 32..SIZE),
        ("bytes=-4294967297", SIZE - (1 << 32) - 1..SIZE),
        ("bytes=5368709119-", SIZE - 1..SIZE),
    ] {
        let client = lab.connect();
        lab.send(client, get_with("/huge", &[("Range", value)]));
        assert_eq!(lab.ranges(client), [range], "{value}");
    }
    let client = lab.connect();
    lab.send(
        client,
        get_with("/huge", &[("Range", "bytes=0-0,5368709119-")]),
    );
    assert_eq!(lab.ranges(client), [0..1, SIZE - 1..SIZE]);
    assert_eq!(
        lab.get_with("/huge", &[("Range", "bytes=5368709120-")])
            .status,
        416
    );
}

#[test]
fn what_is_not_there_cannot_be_had_in_part() {
    let mut lab = lab();
    lab.file("empty", "");
    for value in [
        "bytes=1000-",
        "bytes=1000-2000",
        "bytes=-0",
        "bytes=5000-,2000-",
    ] {
        let response = part(&mut lab, value);
        assert_eq!(
            (response.status, response.header("Content-Range")),
            (416, Some("bytes */1000")),
            "{value}"
        );
    }
    let response = lab.get_with("/empty", &[("Range", "bytes=0-0")]);
    assert_eq!(
        (response.status, response.header("Content-Range")),
        (416, Some("bytes */0"))
    );
    for all in ["bytes=0-", "bytes=-5"] {
        let response = lab.get_with("/empty", &[("Range", all)]);
        assert_eq!((response.status, response.body), (200, Vec::new()), "{all}");
    }
    assert_eq!(lab.files_left_open(), 0);
}

#[test]
fn what_makes_no_sense_is_answered_with_the_whole() {
    let mut lab = lab();
    for value in ["bytes=2-1", "bytes=x-", "bytes=", "lines=1-2", "1-2", ""] {
        let response = part(&mut lab, value);
        assert_eq!(
            (response.status, response.body.len()),
            (200, 1000),
            "{value}"
        );
    }
    let fields = [("Range", "bytes=1-2"), ("Range", "bytes=3-4")];
    assert_eq!(lab.get_with("/clip.mp4", &fields).status, 200);
}

#[test]
fn head_knows_no_ranges() {
    let mut lab = lab();
    for value in ["bytes=0-0", "bytes=5000-", "bytes=0-0,900-"] {
        let client = lab.connect();
        let request = format!("HEAD /clip.mp4 HTTP/1.1\r\nHost: h\r\nRange: {value}\r\n\r\n");
        let response = lab.ask(client, &request);
        assert_eq!(
            (response.status, response.header("Content-Length")),
            (200, Some("1000"))
        );
        assert_eq!(response.header("Accept-Ranges"), Some("bytes"));
    }
    assert_eq!(lab.files_left_open(), 0);
}

#[test]
fn a_download_goes_on_only_with_the_same_version() {
    let mut lab = lab();
    let whole = lab.get("/clip.mp4");
    let date = "Thu, 01 Jan 1970 00:00:00 GMT";
    assert_eq!(whole.header("Last-Modified"), Some(date));
    let tag = whole.header("ETag").unwrap();
    let weak = format!("W/{tag}");
    for (validator, status) in [
        (tag, 206),
        (date, 206),
        (&weak, 200),
        ("\"x\"", 200),
        ("Thu, 01 Jan 1970 00:00:01 GMT", 200),
        ("nonsense", 200),
        ("", 200),
    ] {
        let fields = [("If-Range", validator), ("Range", "bytes=100-")];
        assert_eq!(
            lab.get_with("/clip.mp4", &fields).status,
            status,
            "{validator}"
        );
        // The end of what the client has, which is that of another version.
        let fields = [("If-Range", validator), ("Range", "bytes=1000-")];
        let beyond = if status == 206 { 416 } else { 200 };
        assert_eq!(
            lab.get_with("/clip.mp4", &fields).status,
            beyond,
            "{validator}"
        );
    }
    let alone = lab.get_with("/clip.mp4", &[("If-Range", tag)]);
    assert_eq!(alone.status, 200);
}

#[test]
fn a_file_of_this_second_is_no_version_by_its_date() {
    let mut lab = Lab::new();
    lab.file_of("a", content(), START.as_nanos() as i64 + 1);
    let fields = [
        ("If-Range", "Sun, 06 Nov 1994 08:49:37 GMT"),
        ("Range", "bytes=1-1"),
    ];
    assert_eq!(lab.get_with("/a", &fields).status, 200);
    lab.pass(Duration::from_secs(1));
    assert_eq!(lab.get_with("/a", &fields).status, 206);
}

/// The parts of a multipart body (RFC 2046 §5.1): content type, range and bytes of each.
fn parts_of(response: &Response) -> Vec<(String, Range<u64>, Vec<u8>)> {
    let content_type = response.header("Content-Type").unwrap();
    let boundary = content_type
        .strip_prefix("multipart/byteranges; boundary=")
        .unwrap();
    let delimiter = format!("\r\n--{boundary}");
    let mut rest = &response.body[..];
    let mut parts = Vec::new();
    loop {
        rest = rest.strip_prefix(delimiter.as_bytes()).unwrap();
        if rest == b"--\r\n" {
            return parts;
        }
        rest = rest.strip_prefix(b"\r\n").unwrap();
        let end = rest
            .windows(4)
            .position(|bytes| bytes == b"\r\n\r\n")
            .unwrap();
        let head = String::from_utf8(rest[..end].to_vec()).unwrap();
        let field = |name: &str| {
            let line = head.split("\r\n").find_map(|line| line.strip_prefix(name));
            line.unwrap().to_owned()
        };
        let range = field("Content-Range: bytes ");
        let (first, range) = range.split_once('-').unwrap();
        let (last, size) = range.split_once('/').unwrap();
        assert!(size.parse::<u64>().unwrap() >= last.parse().unwrap());
        let range = first.parse().unwrap()..last.parse::<u64>().unwrap() + 1;
        let (body, after) = rest[end + 4..].split_at((range.end - range.start) as usize);
        parts.push((field("Content-Type: "), range, body.to_vec()));
        rest = after;
    }
}

#[test]
fn several_ranges_are_parts_of_one_body() {
    let mut lab = lab();
    for (value, ranges) in [
        ("bytes=0-9,500-599", &[0..10, 500..600][..]),
        ("bytes=500-599,0-9", &[500..600, 0..10]),
        ("bytes=-1,0-0,500-500", &[999..1000, 0..1, 500..501]),
        ("bytes=0-0,5000-,900-", &[0..1, 900..1000]),
        ("bytes=0-0,100-100,302-302", &[0..101, 302..303]),
    ] {
        let client = lab.connect();
        let response = lab.ask(client, &get_with("/clip.mp4", &[("Range", value)]));
        assert_eq!(
            (response.status, response.header("Content-Range")),
            (206, None)
        );
        let parts = parts_of(&response);
        let found: Vec<_> = parts.iter().map(|(_, range, _)| range.clone()).collect();
        assert_eq!(found, ranges, "{value}");
        for (content_type, range, body) in parts {
            assert_eq!(content_type, "video/mp4");
            assert_eq!(body, content()[range.start as usize..range.end as usize]);
        }
        assert_eq!(lab.ask(client, &get("/clip.mp4")).body, content());
    }
    assert_eq!(lab.files_left_open(), 0);
}

#[test]
fn ranges_that_run_together_are_one_range_and_no_multipart() {
    let mut lab = lab();
    for (value, content_range) in [
        ("bytes=0-99,100-199", "bytes 0-199/1000"),
        ("bytes=0-,0-,0-,0-", "bytes 0-999/1000"),
        ("bytes=5000-,0-9", "bytes 0-9/1000"),
    ] {
        let response = part(&mut lab, value);
        assert_eq!(
            (response.status, response.header("Content-Range")),
            (206, Some(content_range)),
            "{value}"
        );
    }
}

/// A request of so many ranges of a byte, `apart` bytes from each other, the last one first.
fn crumbs(count: usize, apart: usize) -> String {
    let specs: Vec<String> = (0..count)
        .rev()
        .map(|at| format!("{0}-{0}", at * apart))
        .collect();
    format!("bytes={}", specs.join(","))
}

#[test]
fn too_many_ranges_get_the_whole_file_and_are_counted() {
    let mut lab = lab();
    let limit = Config::default().ranges_max;
    assert!(limit >= 255, "zchunk asks for as many");
    assert_eq!(part(&mut lab, &crumbs(limit, 3)).status, 206);
    assert_eq!(lab.counters().ranges_over_limit, 0);
    for (count, value) in [
        crumbs(limit + 1, 3),
        format!("bytes={}", "0-,".repeat(2000)),
        format!("bytes={}", "1-1,".repeat(2000)),
    ]
    .iter()
    .enumerate()
    {
        let response = part(&mut lab, value);
        assert_eq!((response.status, response.body.len()), (200, 1000));
        assert_eq!(lab.counters().ranges_over_limit, count as u64 + 1);
    }
}

/// RFC 9110 §17.15: the heads of parts cost no more than the bytes between them would.
#[test]
fn no_request_makes_more_than_the_file_of_it() {
    let mut lab = Lab::new();
    let size_bytes = 50_000;
    lab.file("a.txt", vec![b'x'; size_bytes]);
    for count in [2, 16, 100, 255, 256] {
        for apart in [2, 100, 120, 150, 170, 190] {
            let fields = [("Range", &crumbs(count, apart)[..])];
            let response = lab.get_with("/a.txt", &fields);
            assert_eq!(response.status, 206);
            assert!(
                response.body.len() <= size_bytes + 200,
                "{count} bytes {apart} apart: {}",
                response.body.len()
            );
            let length = response.body.len().to_string();
            assert_eq!(response.header("Content-Length"), Some(&length[..]));
        }
    }
}

#[test]
fn hundreds_of_parts_come_in_their_order_and_their_heads_are_not_kept() {
    let mut lab = Lab::new();
    let bytes: Vec<u8> = (0..300_000u32).map(|at| (at * 7 % 251) as u8).collect();
    lab.file("a.bin", bytes.clone());
    let request = get_with("/a.bin", &[("Range", &crumbs(255, 1000))]);
    let client = lab.connect();
    lab.limit_queue(client, 1000);
    lab.acknowledges(client, false);
    lab.send(client, &request);
    let written = lab.counters().real_bytes;
    assert!(
        written <= 1000,
        "{written} bytes for a client that takes none"
    );
    lab.acknowledges(client, true);
    let response = lab.response(client);
    let parts = parts_of(&response);
    let found: Vec<_> = parts.iter().map(|(_, range, _)| range.start).collect();
    let expected: Vec<_> = (0..255).rev().map(|at| at * 1000).collect();
    assert_eq!(found, expected);
    for (_, range, body) in parts {
        assert_eq!(body, bytes[range.start as usize..range.end as usize]);
    }
    assert_eq!(lab.files_left_open(), 0);
}

#[test]
fn no_two_responses_have_the_same_boundary() {
    let mut lab = lab();
    let request = get_with("/clip.mp4", &[("Range", "bytes=0-0,500-500")]);
    let mut seen = Vec::new();
    for _ in 0..3 {
        let client = lab.connect();
        for _ in 0..3 {
            let response = lab.ask(client, &request);
            let boundary = response.header("Content-Type").unwrap().to_owned();
            assert!(!seen.contains(&boundary), "{boundary}");
            seen.push(boundary);
        }
    }
}

proptest! {
    #[test]
    fn streams_that_take_little_at_once_get_all_parts(
        ranges in vec((0..1000u64, 0..200u64), 1..8),
        queue_bytes_max in 1..400u64,
    ) {
        let specs: Vec<String> = ranges
            .iter()
            .map(|(first, more)| format!("{first}-{}", first + more))
            .collect();
        let request = get_with("/clip.mp4", &[("Range", &format!("bytes={}", specs.join(",")))]);
        let mut lab = lab();
        let client = lab.connect();
        let at_once = lab.ask(client, &request);
        let hurried = lab.received(client);
        let patient = lab.connect();
        lab.limit_queue(patient, queue_bytes_max);
        lab.send(patient, &request);
        let little_by_little = lab.response(patient);
        prop_assert_eq!(hurried, b"");
        prop_assert_eq!(at_once.status, 206);
        if at_once.header("Content-Range").is_some() {
            prop_assert_eq!(&at_once.body, &little_by_little.body);
        } else {
            prop_assert_eq!(parts_of(&at_once), parts_of(&little_by_little));
        }
        prop_assert_eq!(lab.files_left_open(), 0);
    }
}
