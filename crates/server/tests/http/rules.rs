//! What is special about some paths, and what may be done with them.

use std::time::Duration;

use http::StatusCode;
use server::{Config, Cors, ExtraField, Redirect, Rule, Site};

use crate::lab::{Lab, Response, get, get_with};

fn rule(pattern: &str) -> Rule {
    Rule::new(pattern.parse().unwrap())
}

fn lab_with(site: Site) -> Lab {
    let mut lab = Lab::with(Config {
        sites: vec![site],
        ..Config::default()
    });
    lab.file_of("a.css", "style", 1);
    lab.file_of("live/a.m3u8", "list", 1);
    lab.file_of("live/a.mp4", vec![1; 1000], 1);
    lab.file_of("index.html", "index", 1);
    lab.directory("live");
    lab
}

fn lab(rules: Vec<Rule>) -> Lab {
    lab_with(Site {
        rules,
        ..Site::default()
    })
}

#[test]
fn the_first_rule_that_is_about_a_path_counts() {
    let of = |pattern: &str, value: &'static str| Rule {
        cache_control: Some(value.parse().unwrap()),
        ..rule(pattern)
    };
    let mut lab = lab(vec![
        of("*.m3u8", "no-cache"),
        of("/live/*", "max-age=10"),
        of("/", "max-age=60"),
    ]);
    for (target, value) in [
        ("/live/a.m3u8", Some("no-cache")),
        ("/live/%61.m3u8?q.mp4", Some("no-cache")),
        ("/x/../live/a.mp4", Some("max-age=10")),
        ("/", Some("max-age=60")),
        ("/index.html", None),
        ("/a.css", None),
    ] {
        let response = lab.get(target);
        assert_eq!(
            (response.status, response.header("Cache-Control")),
            (200, value),
            "{target}"
        );
    }
}

#[test]
fn what_may_be_kept_is_a_file_a_redirect_or_304() {
    let mut lab = lab(vec![
        Rule {
            redirect: Some(Redirect::new(308, "/a.css").unwrap()),
            cache_control: Some("max-age=1".parse().unwrap()),
            ..rule("/old")
        },
        Rule {
            cache_control: Some("public".parse().unwrap()),
            expires: Some(Duration::from_secs(3600)),
            ..rule("*")
        },
    ]);
    let later = Some("Sun, 06 Nov 1994 09:49:37 GMT");
    for (target, fields, status) in [
        ("/a.css", &[][..], 200),
        ("/a.css", &[("Range", "bytes=1-1")], 206),
        ("/a.css", &[("If-None-Match", "*")], 304),
    ] {
        let response = lab.get_with(target, fields);
        assert_eq!(response.status, status);
        assert_eq!(response.header("Cache-Control"), Some("public"), "{status}");
        assert_eq!(response.header("Expires"), later, "{status}");
    }
    assert_eq!(lab.get("/old").header("Cache-Control"), Some("max-age=1"));
    for (target, fields) in [
        ("/missing", &[][..]),
        ("/a.css", &[("If-Match", "\"x\"")]),
        ("/a.css", &[("Range", "bytes=99-")]),
    ] {
        let response = lab.get_with(target, fields);
        assert!(response.status >= 400);
        assert_eq!(
            (response.header("Cache-Control"), response.header("Expires")),
            (None, None)
        );
    }
}

#[test]
fn further_fields_come_with_every_answer() {
    let mut lab = lab(vec![Rule {
        fields: vec![
            ExtraField::new("X-Content-Type-Options", "nosniff").unwrap(),
            ExtraField::new("Server-Timing", "a, b").unwrap(),
        ],
        ..rule("/live/*")
    }]);
    for (target, status) in [("/live/a.mp4", 200), ("/live/b", 404), ("/live/", 404)] {
        let response = lab.get(target);
        assert_eq!(response.status, status);
        assert_eq!(response.header("X-Content-Type-Options"), Some("nosniff"));
        assert_eq!(response.header("Server-Timing"), Some("a, b"));
        let mut names = response.headers.iter().map(|(name, _)| name.as_str());
        assert!(
            names.any(|name| name == "X-Content-Type-Options"),
            "as written"
        );
    }
    for (request, status) in [
        ("POST /live/b HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), 405),
        (get_with("/live/a.mp4", &[("If-Match", "\"x\"")]), 412),
        (get_with("/live/a.mp4", &[("Range", "bytes=9999-")]), 416),
    ] {
        let client = lab.connect();
        let response = lab.ask(client, &request);
        assert_eq!(response.status, status);
        assert_eq!(response.header("X-Content-Type-Options"), Some("nosniff"));
    }
    assert_eq!(lab.get("/a.css").header("X-Content-Type-Options"), None);
    assert_eq!(lab.get("/live").header("X-Content-Type-Options"), None);
}

#[test]
fn redirects_take_along_what_was_asked_for() {
    let to = |pattern: &str, status, to| Rule {
        redirect: Some(Redirect::new(status, to).unwrap()),
        ..rule(pattern)
    };
    let mut lab = lab(vec![
        to("/old/*", 301, "/new/*"),
        to("/gone", 302, "https://example.org/why?not"),
        to("/x*", 307, "/*"),
    ]);
    for (target, status, location) in [
        ("/old/a%20b/c?q=1", 301, "/new/a%20b/c?q=1"),
        ("/old/", 301, "/new/"),
        ("/gone?q", 302, "https://example.org/why?not"),
        ("/x/evil.example", 307, "/evil.example"),
        ("/x%5cevil.example", 307, "/%5Cevil.example"),
        (
            "/old/%0d%0aSet-Cookie:%20a",
            301,
            "/new/%0D%0ASet-Cookie:%20a",
        ),
        // Not a rule's: a directory without its slash.
        ("/live", 301, "/live/"),
    ] {
        let client = lab.connect();
        let response = lab.ask(client, &get(target));
        assert_eq!(
            (response.status, response.header("Location")),
            (status, Some(location)),
            "{target}"
        );
        assert_eq!(lab.ask(client, &get("/a.css")).status, 200);
    }
    assert!(
        !lab.opened_paths()
            .iter()
            .any(|path| path.starts_with("old"))
    );
}

#[test]
fn an_error_has_the_page_of_its_site() {
    let mut lab = lab_with(Site {
        root: "site".parse().unwrap(),
        error_pages: vec![
            (StatusCode::NOT_FOUND, "errors/404.html".parse().unwrap()),
            (
                StatusCode::METHOD_NOT_ALLOWED,
                "errors/404.html".parse().unwrap(),
            ),
            (
                StatusCode::PRECONDITION_FAILED,
                "errors/404.html".parse().unwrap(),
            ),
            (StatusCode::BAD_REQUEST, "errors/404.html".parse().unwrap()),
            (StatusCode::FORBIDDEN, "errors/none.html".parse().unwrap()),
        ],
        ..Site::default()
    });
    lab.file_of("site/errors/404.html", "<p>not here", 1);
    lab.file("site/a", "here");
    lab.fails("site/secret", libc::EACCES);
    let client = lab.connect();
    for fields in [
        &[][..],
        &[("Range", "bytes=0-0")],
        &[("If-None-Match", "*")],
        &[("If-Match", "\"x\"")],
    ] {
        let response = lab.ask(client, &get_with("/missing.css", fields));
        assert_eq!(
            (response.status, &response.body[..]),
            (404, &b"<p>not here"[..])
        );
        assert_eq!(
            response.header("Content-Type"),
            Some("text/html; charset=utf-8")
        );
        for name in ["ETag", "Last-Modified", "Accept-Ranges", "Content-Range"] {
            assert_eq!(response.header(name), None, "{name}");
        }
    }
    let response = lab.ask(client, "HEAD /missing HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(
        (response.status, response.header("Content-Length")),
        (404, Some("11"))
    );
    for (request, status) in [
        ("POST /a HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(), 405),
        (get_with("/a", &[("If-Match", "\"x\"")]), 412),
        (get("/%"), 400),
    ] {
        let response = lab.ask(client, &request);
        assert_eq!(
            (response.status, &response.body[..]),
            (status, &b"<p>not here"[..])
        );
        let allowed = (status == 405).then_some("GET, HEAD, OPTIONS");
        assert_eq!(response.header("Allow"), allowed);
    }
    let broken = lab.connect();
    let response = lab.ask(broken, "GET\r\n\r\n");
    assert!(response.status == 400 && response.body.starts_with(b"<!doctype html>"));
    let response = lab.ask(client, &get("/secret"));
    assert!(response.status == 403 && response.body.starts_with(b"<!doctype html>"));
    assert_eq!(lab.ask(client, &get("/a")).body, b"here");
    // The page itself is a page like any other.
    assert_eq!(lab.ask(client, &get("/errors/404.html")).status, 200);
    assert_eq!(
        lab.ask(client, &get("/errors/none.html")).body,
        b"<p>not here"
    );
    assert_eq!(lab.received(client), b"");
    assert_eq!(lab.files_left_open(), 0);
}

#[test]
fn a_page_that_takes_too_long_is_done_without() {
    let config = Config::default();
    let mut lab = lab_with(Site {
        error_pages: vec![(StatusCode::SERVICE_UNAVAILABLE, "503.html".parse().unwrap())],
        ..Site::default()
    });
    lab.hold_opens();
    let client = lab.connect();
    lab.send(client, get("/a.css"));
    lab.pass(config.stall_timeout);
    assert_eq!(lab.response(client).status, 503);
    assert!(lab.is_shut_down(client));
}

fn options(lab: &mut Lab, target: &str, fields: &[(&str, &str)]) -> Response {
    let client = lab.connect();
    let request = get_with(target, fields).replacen("GET", "OPTIONS", 1);
    let response = lab.ask(client, &request);
    assert_eq!(lab.received(client), b"", "no body");
    assert_eq!(
        lab.ask(client, &get("/a.css")).status,
        200,
        "the connection goes on"
    );
    response
}

#[test]
fn options_tells_what_may_be_done() {
    let mut lab = lab(Vec::new());
    for target in ["*", "/", "/a.css", "/missing"] {
        let response = options(&mut lab, target, &[]);
        assert_eq!(
            (response.status, response.header("Allow")),
            (204, Some("GET, HEAD, OPTIONS"))
        );
        assert_eq!(response.header("Content-Length"), None, "RFC 9110 §8.6");
    }
    assert_eq!(options(&mut lab, "/../x", &[]).status, 400);
    assert_eq!(lab.get("*").status, 400);
    // A preflight that nothing allows.
    let fields = [
        ("Origin", "https://b.org"),
        ("Access-Control-Request-Method", "GET"),
    ];
    let response = options(&mut lab, "/a.css", &fields);
    assert_eq!(response.header("Access-Control-Allow-Origin"), None);
}

#[test]
fn pages_of_any_origin_may_play() {
    let mut lab = lab(vec![Rule {
        cors: Some(Cors::any()),
        ..rule("/live/*")
    }]);
    let origin = ("Origin", "https://player.example");
    for (target, fields, status) in [
        ("/live/a.mp4", &[origin, ("Range", "bytes=0-9")][..], 206),
        ("/live/a.mp4", &[origin], 200),
        ("/live/a.mp4", &[], 200),
        ("/live/none", &[origin], 404),
        ("/live/a.mp4", &[origin, ("If-None-Match", "*")], 304),
    ] {
        let response = lab.get_with(target, fields);
        assert_eq!(response.status, status);
        assert_eq!(response.header("Access-Control-Allow-Origin"), Some("*"));
        let exposed = response.header("Access-Control-Expose-Headers").unwrap();
        assert!(exposed.contains("content-range"), "{exposed}");
        assert_eq!(response.header("Vary"), None);
    }
    assert_eq!(
        lab.get("/a.css").header("Access-Control-Allow-Origin"),
        None
    );

    let asks = [
        origin,
        ("Access-Control-Request-Method", "GET"),
        ("Access-Control-Request-Headers", "range"),
    ];
    let response = options(&mut lab, "/live/a.mp4", &asks);
    assert_eq!(response.status, 204);
    for (name, value) in [
        ("Access-Control-Allow-Origin", "*"),
        ("Access-Control-Allow-Methods", "GET, HEAD, OPTIONS"),
        ("Access-Control-Max-Age", "86400"),
    ] {
        assert_eq!(response.header(name), Some(value));
    }
    assert!(
        response
            .header("Access-Control-Allow-Headers")
            .unwrap()
            .starts_with("range")
    );
}

#[test]
fn pages_of_chosen_origins_may_and_caches_keep_them_apart() {
    let mut lab = lab_with(Site {
        rules: vec![Rule {
            cors: Some(Cors::these(&["https://a.org"], true).unwrap()),
            ..rule("*")
        }],
        precompressed: vec![server::Coding::Gzip],
        ..Site::default()
    });
    for (origin, allowed) in [
        ("https://a.org", Some("https://a.org")),
        ("https://b.org", None),
        ("null", None),
    ] {
        let fields = [("Origin", origin), ("Range", "bytes=0-0")];
        let response = lab.get_with("/live/a.mp4", &fields);
        assert_eq!(response.header("Access-Control-Allow-Origin"), allowed);
        assert_eq!(
            response.header("Access-Control-Allow-Credentials"),
            allowed.map(|_| "true")
        );
        assert_eq!(response.header("Vary"), Some("Origin"));
        let response = lab.get_with("/a.css", &fields);
        assert_eq!(response.header("Vary"), Some("Accept-Encoding, Origin"));
    }
    assert_eq!(lab.get("/missing.mp4").header("Vary"), Some("Origin"));
}
