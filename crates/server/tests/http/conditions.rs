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

#[test]
fn a_file_that_may_change_unseen_is_never_taken_for_the_same() {
    let mut lab = Lab::new();
    lab.file_of("a", "first", START.as_nanos() as i64 - 1);
    let weak = tag(&mut lab, "/a");
    assert!(weak.starts_with("W/"), "{weak}");
    for field in ["If-None-Match", "If-Range"] {
        let response = lab.get_with("/a", &[(field, &weak), ("Range", "bytes=0-1")]);
        assert_ne!(response.status, 304);
        assert!(field != "If-Range" || response.status == 200);
    }
    // A moment later it would show.
    lab.pass(Duration::from_secs(1));
    let strong = tag(&mut lab, "/a");
    for (known, status) in [(&weak, 200), (&strong, 304)] {
        let response = lab.get_with("/a", &[("If-None-Match", known)]);
        assert_eq!(response.status, status, "{known}");
    }
}
