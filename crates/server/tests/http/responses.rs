//! What a request for a file, a directory or nothing is answered.

use host::app::FileMeta;

use crate::lab::{Lab, START, get, head};

#[test]
fn a_file_is_served_whole_with_its_metadata() {
    let mut lab = Lab::new();
    let meta = FileMeta {
        mtime_ns: 1_000_000_000_000_000_000,
        ..FileMeta::default()
    };
    lab.version("a/page.html", "<p>hello", meta);
    let response = lab.get("/a/page.html");
    let expected = [
        ("Date", "Sun, 06 Nov 1994 08:49:37 GMT"),
        ("Server", "splitway"),
        ("Content-Length", "8"),
        ("Content-Type", "text/html; charset=utf-8"),
        // The file claims 2001; RFC 9110 §8.8.2.1 lets no date be later than the response's own.
        ("Last-Modified", "Sun, 06 Nov 1994 08:49:37 GMT"),
        ("ETag", "\"a3113f9d874cd7be\""),
        ("Accept-Ranges", "bytes"),
    ];
    assert_eq!(response.status, 200);
    assert_eq!(response.body, b"<p>hello");
    let headers: Vec<_> = response
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    assert_eq!(headers, expected);
    assert_eq!(lab.files_left_open(), 0);
}

#[test]
fn last_modified_is_the_files_own() {
    let mut lab = Lab::new();
    lab.file_of("old", "x", 86_400_999_999_999);
    lab.file_of("ancient", "x", -1);
    assert_eq!(
        lab.get("/old").header("Last-Modified"),
        Some("Fri, 02 Jan 1970 00:00:00 GMT")
    );
    assert_eq!(lab.get("/ancient").header("Last-Modified"), None);
}

#[test]
fn date_follows_the_clock() {
    let mut lab = Lab::new();
    lab.file("a", "x");
    let client = lab.connect();
    assert_eq!(
        lab.ask(client, &get("/a")).header("Date"),
        Some("Sun, 06 Nov 1994 08:49:37 GMT")
    );
    lab.pass(std::time::Duration::from_secs(2));
    assert_eq!(
        lab.ask(client, &get("/a")).header("Date"),
        Some("Sun, 06 Nov 1994 08:49:39 GMT")
    );
    assert_eq!(START.as_secs(), 784_111_777);
}

#[test]
fn head_is_get_without_the_body() {
    let mut lab = Lab::new();
    lab.file("a.mp4", vec![7; 10_000]);
    lab.directory("dir");
    for target in ["/a.mp4", "/missing", "/dir", "/%00"] {
        let of_get = lab.get(target);
        let client = lab.connect();
        let of_head = lab.ask(client, &head(target));
        assert_eq!(
            (of_head.status, &of_head.headers),
            (of_get.status, &of_get.headers),
            "{target}"
        );
        assert_eq!(lab.received(client), b"", "{target}");
    }
    assert_eq!(lab.files_left_open(), 0);
}

#[test]
fn a_broken_head_has_no_body_either() {
    let mut lab = Lab::new();
    let client = lab.connect();
    lab.send(client, "HEAD / HTTP/1.1\r\n\r\n");
    assert_eq!(lab.response_to_head(client).status, 400);
    assert_eq!(lab.received(client), b"");
}

#[test]
fn types_follow_extensions() {
    let mut lab = Lab::new();
    for (name, media_type) in [
        ("style.css", "text/css; charset=utf-8"),
        ("video.mp4", "video/mp4"),
        ("split.svg", "image/svg+xml"),
        ("data.json", "application/json"),
        ("README", "application/octet-stream"),
    ] {
        lab.file(name, "x");
        assert_eq!(
            lab.get(&format!("/{name}")).header("Content-Type"),
            Some(media_type),
            "{name}"
        );
    }
}

#[test]
fn an_empty_file_has_length_zero() {
    let mut lab = Lab::new();
    lab.file("empty", "");
    let client = lab.connect();
    let response = lab.ask(client, &get("/empty"));
    assert_eq!(
        (response.status, response.header("Content-Length")),
        (200, Some("0"))
    );
    assert_eq!(lab.received(client), b"");
    assert_eq!(lab.files_left_open(), 0);
}

#[test]
fn a_file_beyond_four_gigabytes_is_one_range() {
    let mut lab = Lab::new();
    lab.zeros("huge", 5 << 30);
    let client = lab.connect();
    lab.send(client, get("/huge"));
    assert!(matches!(&lab.ranges(client)[..], [range] if *range == (0..5 << 30)));
    assert_eq!(lab.counters().virtual_bytes, 5 << 30);
}

#[test]
fn a_directory_is_its_index() {
    let mut lab = Lab::new();
    lab.file("index.html", "root");
    lab.file("a/index.html", "of a");
    assert_eq!(lab.get("/").body, b"root");
    assert_eq!(lab.get("/a/").body, b"of a");
    assert_eq!(lab.get("/a/b/..").body, b"of a");
    assert_eq!(
        lab.get("/a/").header("Content-Type"),
        Some("text/html; charset=utf-8")
    );
    assert_eq!(lab.get("/b/").status, 404);
}

#[test]
fn a_directory_without_its_slash_is_redirected() {
    let mut lab = Lab::new();
    lab.directory("a b");
    lab.directory("evil.example");
    let response = lab.get("/a%20b?q=1&r");
    assert_eq!(
        (response.status, response.header("Location")),
        (301, Some("/a%20b/?q=1&r"))
    );
    assert_eq!(response.header("Connection"), None);
    assert_eq!(
        lab.get("//evil.example").header("Location"),
        Some("/evil.example/")
    );
    assert_eq!(lab.get("http://elsewhere//evil.example/.?q").status, 404);
}

#[test]
fn an_index_that_is_a_directory_is_not_found() {
    let mut lab = Lab::new();
    lab.directory("a/index.html");
    assert_eq!(lab.get("/a/").status, 404);
}

#[test]
fn errno_decides_the_status() {
    for (errno, status) in [
        (libc::ENOENT, 404),
        (libc::ENOTDIR, 404),
        (libc::ENAMETOOLONG, 404),
        (libc::ESTALE, 404),
        (libc::EACCES, 403),
        (libc::EPERM, 403),
        (libc::ELOOP, 403),
        (libc::EXDEV, 403),
        (libc::EMFILE, 503),
        (libc::ENFILE, 503),
        (libc::ENOMEM, 503),
        (libc::EAGAIN, 503),
        (libc::EIO, 500),
        (libc::ENODATA, 500),
        (0, 500),
        (65_535, 500),
    ] {
        let mut lab = Lab::new();
        lab.fails("a", errno);
        lab.file("b", "still here");
        let client = lab.connect();
        let response = lab.ask(client, &get("/a"));
        assert_eq!(response.status, status, "errno {errno}");
        assert_eq!(
            response.header("Content-Type"),
            Some("text/html; charset=utf-8")
        );
        let page = String::from_utf8(response.body).expect("text");
        assert!(page.contains(&format!("<h1>{status} ")), "{page}");
        assert_eq!(
            lab.ask(client, &get("/b")).body,
            b"still here",
            "the connection goes on"
        );
    }
}

#[test]
fn targets_become_paths_below_the_root() {
    let mut lab = Lab::new();
    for target in [
        "/a%20b/%63",
        "/x/./y/../z",
        "http://other.example/abs?q",
        "/%e2%82%ac",
        "//a//b",
    ] {
        lab.get(target);
    }
    assert_eq!(lab.opened_paths(), ["a b/c", "x/z", "abs", "€", "a/b"]);
}

#[test]
fn targets_that_leave_the_root_open_nothing() {
    let mut lab = Lab::new();
    for (target, status) in [
        ("/../etc/passwd", 400),
        ("/%2e%2e/etc/passwd", 400),
        ("/a/../../b", 400),
        ("/..%2fetc", 404),
        ("/a%00", 400),
    ] {
        assert_eq!(lab.get(target).status, status, "{target}");
    }
    assert_eq!(lab.opened_paths(), [""; 0]);
}

#[test]
fn counters_tell_what_happened() {
    let mut lab = Lab::new();
    lab.file("a", "12345");
    lab.get("/a");
    lab.get("/missing");
    let client = lab.connect();
    lab.ask(client, "nonsense\r\n\r\n");
    lab.reset(client);
    let counters = lab.counters();
    assert_eq!(
        (
            counters.connections_accepted,
            counters.connections_closed,
            counters.requests
        ),
        (3, 1, 3)
    );
    assert_eq!((counters.responses_2xx, counters.responses_4xx), (1, 2));
    let others = counters.responses_1xx + counters.responses_3xx + counters.responses_5xx;
    assert_eq!(others, 0);
    assert_eq!(counters.virtual_bytes, 5);
    assert!(counters.real_bytes > 3 * 100);
}
