//! Clients that say what they have already.

use std::time::Duration;

use host::app::FileMeta;
use server::Config;

use crate::lab::{Lab, START, get, get_with};

/// RFC 9110 §5.6.7's example, an hour before the lab's clock begins.
const MODIFIED: &str = "Sun, 06 Nov 1994 07:49:37 GMT";
const A_SECOND_BEFORE: &str = "Sun, 06 Nov 1994 07:49:36 GMT";

fn modified_ns() -> i64 {
    (START - Duration::from_secs(3600)).as_nanos() as i64
}

fn lab() -> Lab {
    let mut lab = Lab::new();
    lab.file_of("a", "the whole of it", modified_ns());
    lab
}

fn tag(lab: &mut Lab, target: &str) -> String {
    lab.get(target).header("ETag").expect("a tag").to_owned()
}

#[test]
fn a_client_that_has_it_already_gets_304_and_no_body() {
    let mut lab = lab();
    let tag = tag(&mut lab, "/a");
    let weak = format!("W/{tag}");
    let several = format!("\"x\", {tag}");
    for fields in [
        &[("If-None-Match", tag.as_str())][..],
        &[("If-None-Match", &weak)],
        &[("If-None-Match", &several)],
        &[("If-None-Match", "*")],
        &[("If-None-Match", "\"x\""), ("If-None-Match", &tag)],
        &[("If-Modified-Since", MODIFIED)],
        &[
            ("If-None-Match", &tag),
            ("If-Modified-Since", A_SECOND_BEFORE),
        ],
        &[("If-None-Match", &tag), ("Range", "bytes=0-1")],
        &[("If-None-Match", &tag), ("Range", "bytes=99-")],
    ] {
        let client = lab.connect();
        let response = lab.ask(client, &get_with("/a", fields));
        assert_eq!(response.status, 304, "{fields:?}");
        let names: Vec<_> = response
            .headers
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        assert_eq!(names, ["Date", "Server", "Last-Modified", "ETag"]);
        assert_eq!(response.header("ETag"), Some(tag.as_str()));
        assert_eq!(lab.received(client), b"", "no body");
        assert_eq!(lab.ask(client, &get("/a")).body, b"the whole of it");
    }
    assert_eq!(lab.files_left_open(), 0);
}

#[test]
fn who_has_another_one_gets_it() {
    let mut lab = lab();
    let tag = tag(&mut lab, "/a");
    for fields in [
        &[("If-None-Match", "\"x\"")][..],
        &[("If-None-Match", "\"x\""), ("If-Modified-Since", MODIFIED)],
        &[("If-Modified-Since", A_SECOND_BEFORE)],
        &[("If-Modified-Since", "a date")],
        &[("If-Match", &tag)],
        &[("If-Match", "*")],
        &[("If-Unmodified-Since", MODIFIED)],
        &[("If-Unmodified-Since", "a date")],
    ] {
        let response = lab.get_with("/a", fields);
        assert_eq!(
            (response.status, &response.body[..]),
            (200, &b"the whole of it"[..]),
            "{fields:?}"
        );
    }
}

#[test]
fn who_wants_another_one_is_refused() {
    let mut lab = lab();
    let tag = tag(&mut lab, "/a");
    let weak = format!("W/{tag}");
    for fields in [
        &[("If-Match", "\"x\"")][..],
        &[("If-Match", &weak)],
        &[("If-Match", "\"x\""), ("If-Unmodified-Since", MODIFIED)],
        &[("If-Match", "\"x\""), ("If-None-Match", &tag)],
        &[("If-Match", "\"x\""), ("Range", "bytes=0-1")],
        &[("If-Unmodified-Since", A_SECOND_BEFORE)],
    ] {
        let client = lab.connect();
        let response = lab.ask(client, &get_with("/a", fields));
        assert_eq!(response.status, 412, "{fields:?}");
        assert!(response.body.starts_with(b"<!doctype html>"));
        assert_eq!(
            lab.ask(client, &get("/a")).status,
            200,
            "the connection goes on"
        );
    }
    assert_eq!(lab.files_left_open(), 0);
}

#[test]
fn head_has_the_same_conditions() {
    let mut lab = lab();
    let tag = tag(&mut lab, "/a");
    for (field, status) in [
        (format!("If-None-Match: {tag}"), 304),
        (format!("If-Match: {tag}"), 200),
        ("If-Match: \"x\"".to_owned(), 412),
    ] {
        let client = lab.connect();
        let request = format!("HEAD /a HTTP/1.1\r\nHost: h\r\n{field}\r\n\r\n");
        assert_eq!(lab.ask(client, &request).status, status, "{field}");
        assert_eq!(lab.received(client), b"");
    }
}

#[test]
fn what_is_not_there_has_no_conditions() {
    let mut lab = lab();
    lab.directory("dir");
    for (target, status) in [("/missing", 404), ("/dir", 301), ("/%", 400)] {
        for field in ["If-None-Match", "If-Match"] {
            assert_eq!(lab.get_with(target, &[(field, "*")]).status, status);
        }
    }
}

#[test]
fn a_tag_changes_with_the_version() {
    let mut lab = lab();
    let old = tag(&mut lab, "/a");
    assert_eq!(tag(&mut lab, "/a"), old);
    // Same bytes, same times, another file in its place.
    lab.file_of("a", "the whole of it", modified_ns());
    assert_ne!(tag(&mut lab, "/a"), old);
    let response = lab.get_with("/a", &[("If-None-Match", &old)]);
    assert_eq!(response.status, 200);
}

#[test]
fn replicas_agree_about_tags() {
    let mut lab = Lab::with(Config {
        roots_are_replicas: true,
        ..Config::default()
    });
    let modified = FileMeta {
        mtime_ns: modified_ns(),
        ..FileMeta::default()
    };
    lab.version(
        "a",
        "0123456789",
        FileMeta {
            device: 1,
            ..modified
        },
    );
    let tag = tag(&mut lab, "/a");
    lab.version(
        "a",
        "0123456789",
        FileMeta {
            device: 2,
            ctime_ns: 5,
            ..modified
        },
    );
    let response = lab.get_with("/a", &[("If-Range", &tag), ("Range", "bytes=3-4")]);
    assert_eq!((response.status, &response.body[..]), (206, &b"34"[..]));
    lab.version(
        "a",
        "9876543210",
        FileMeta {
            mtime_ns: 7,
            ..modified
        },
    );
    let response = lab.get_with("/a", &[("If-Range", &tag), ("Range", "bytes=3-4")]);
    assert_eq!(
        (response.status, &response.body[..]),
        (200, &b"9876543210"[..])
    );
}

/// Without a tag and a date nothing can take it for the same.
#[test]
fn a_file_that_may_change_unseen_has_neither_tag_nor_date() {
    let mut lab = Lab::new();
    let modified = "Sun, 06 Nov 1994 08:49:36 GMT";
    lab.file_of("a", "first", START.as_nanos() as i64 - 1);
    let fresh = lab.get("/a");
    assert_eq!(
        (fresh.header("ETag"), fresh.header("Last-Modified")),
        (None, None)
    );
    for (field, value, status) in [
        ("If-None-Match", "\"x\"", 206),
        ("If-None-Match", "*", 304),
        ("If-Match", "\"x\"", 412),
        ("If-Match", "*", 206),
        ("If-Range", "\"x\"", 200),
        ("If-Range", modified, 200),
    ] {
        let response = lab.get_with("/a", &[(field, value), ("Range", "bytes=0-1")]);
        assert_eq!(response.status, status, "{field}: {value}");
        assert_eq!(response.header("ETag"), None);
    }
    // A moment later it would show.
    lab.pass(Duration::from_secs(1));
    let settled = lab.get("/a");
    assert_eq!(settled.header("Last-Modified"), Some(modified));
    let tag = settled.header("ETag").unwrap();
    assert_eq!(lab.get_with("/a", &[("If-None-Match", tag)]).status, 304);
}

/// As in tmpfs: clients take a weak tag for a strong one and fail, so they go by the date.
#[test]
fn where_changes_may_leave_no_trace_only_the_date_is_sent() {
    let mut lab = Lab::new();
    let meta = FileMeta {
        mtime_ns: modified_ns(),
        ctime_ns: modified_ns(),
        is_weak: true,
        ..FileMeta::default()
    };
    lab.version("a", "the whole of it", meta);
    for (fields, status) in [
        (&[][..], 200),
        (&[("Range", "bytes=0-2")], 206),
        (
            &[("Range", "bytes=0-2"), ("If-Unmodified-Since", MODIFIED)],
            206,
        ),
        (&[("If-Unmodified-Since", A_SECOND_BEFORE)], 412),
        (&[("If-Modified-Since", MODIFIED)], 304),
        (&[("If-Modified-Since", A_SECOND_BEFORE)], 200),
        (&[("If-None-Match", "*")], 304),
        (&[("If-None-Match", "W/\"0123456789abcdef\"")], 200),
        (&[("If-Match", "*")], 200),
        (&[("If-Match", "\"0123456789abcdef\"")], 412),
        // The bytes may be others in spite of the date.
        (&[("Range", "bytes=0-2"), ("If-Range", MODIFIED)], 200),
    ] {
        let response = lab.get_with("/a", fields);
        assert_eq!(response.status, status, "{fields:?}");
        assert_eq!(response.header("ETag"), None, "{fields:?}");
        let date = (status != 412).then_some(MODIFIED);
        assert_eq!(response.header("Last-Modified"), date, "{fields:?}");
    }
    let client = lab.connect();
    let response = lab.ask(client, "HEAD /a HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(
        (response.header("ETag"), response.header("Last-Modified")),
        (None, Some(MODIFIED))
    );
}

/// A playlist in tmpfs may be replaced several times a second.
#[test]
fn where_only_the_date_tells_versions_apart_it_is_sent_once_its_second_is_over() {
    let mut lab = Lab::new();
    let half_ns = START.as_nanos() as i64 + 500_000_000;
    let meta = FileMeta {
        mtime_ns: half_ns + 1,
        ctime_ns: half_ns + 1,
        is_weak: true,
        ..FileMeta::default()
    };
    lab.version("live.m3u8", "first", meta);
    lab.pass(Duration::from_millis(900));
    assert_eq!(lab.get("/live.m3u8").header("Last-Modified"), None);
    lab.pass(Duration::from_millis(100));
    assert_eq!(
        lab.get("/live.m3u8").header("Last-Modified"),
        Some("Sun, 06 Nov 1994 08:49:37 GMT")
    );
}
