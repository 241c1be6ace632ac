//! What rules ask of requests besides their path, how they add up, and what they serve instead of
//! what was asked for.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use server::{
    Config, Criteria, ExtraField, Fallback, MediaTypes, Method, Redirect, RequestLimit, Rule,
    RuleError, Site,
};

use crate::lab::{Lab, get_with};

fn rule(pattern: &str) -> Rule {
    Rule::new(pattern.parse().unwrap())
}

fn field(name: &str, value: &str) -> ExtraField {
    ExtraField::new(name, value).unwrap()
}

fn marked(pattern: &str, mark: &str) -> Rule {
    Rule {
        fields: vec![field("Mark", mark)],
        ..rule(pattern)
    }
}

fn lab_with(site: Site) -> Lab {
    let mut lab = Lab::with(Config {
        sites: vec![site],
        ..Config::default()
    });
    lab.file_of("index.html", "app", 1);
    lab.file_of("about.html", "about", 1);
    lab.file_of("new/a.css", "style", 1);
    lab.file_of("new/d/index.html", "inner", 1);
    lab.directory("new/d");
    lab.file_of("down.html", "<p>back soon", 1);
    lab
}

fn lab(rules: Vec<Rule>) -> Lab {
    lab_with(Site {
        rules,
        ..Site::default()
    })
}

fn fallback(pattern: &str, paths: &[&str]) -> Option<Fallback> {
    Some(Fallback {
        pattern: pattern.parse().unwrap(),
        paths: paths.iter().map(|path| path.parse().unwrap()).collect(),
    })
}

#[test]
fn rules_look_at_method_fields_and_query() {
    let with = |mark: &str, criteria: Criteria| Rule {
        criteria,
        ..marked("*", mark)
    };
    let Ok(avif) = "*image/avif*".parse();
    let Ok(any) = "*".parse();
    let mut lab = lab(vec![
        with(
            "head",
            Criteria {
                methods: vec![Method::Head],
                ..Criteria::default()
            },
        ),
        with(
            "avif",
            Criteria {
                fields: vec![("accept".parse().unwrap(), avif)],
                ..Criteria::default()
            },
        ),
        with(
            "version",
            Criteria {
                query: vec![("v".into(), any)],
                ..Criteria::default()
            },
        ),
    ]);
    for (target, accept, mark) in [
        ("/index.html", "text/html, Image/AVIF", Some("avif")),
        ("/index.html?v=1", "image/avif", Some("avif")),
        ("/index.html?v=1", "text/html", Some("version")),
        ("/index.html?w=1", "text/html", None),
    ] {
        let response = lab.get_with(target, &[("Accept", accept)]);
        assert_eq!(
            (response.status, response.header("Mark")),
            (200, mark),
            "{target} {accept}"
        );
        // Whatever the choice was: another `Accept` might have led to another.
        assert_eq!(response.values("Vary"), ["accept"]);
    }
    let client = lab.connect();
    let head = get_with("/index.html", &[]).replace("GET", "HEAD");
    lab.send(client, head);
    assert_eq!(lab.response_to_head(client).header("Mark"), Some("head"));
}

#[test]
fn rules_that_continue_add_up() {
    let mut lab = lab(vec![
        Rule {
            fields: vec![
                field("X-Content-Type-Options", "nosniff"),
                field("Mark", "all"),
            ],
            continues: true,
            ..rule("*")
        },
        Rule {
            cache_control: Some("max-age=60".parse().unwrap()),
            continues: true,
            ..marked("/new/*", "not seen")
        },
        Rule {
            redirect: Some(Redirect::new(301, "/new/*").unwrap()),
            ..rule("/old/*")
        },
        Rule {
            cache_control: Some("no-store".parse().unwrap()),
            ..rule("*.css")
        },
        marked("*", "not reached by style sheets"),
    ]);
    for (target, status, caching, location) in [
        ("/index.html", 200, None, None),
        ("/new/a.css", 200, Some("max-age=60"), None),
        ("/old/a.css", 301, None, Some("/new/a.css")),
        ("/none.css", 404, None, None),
    ] {
        let response = lab.get(target);
        assert_eq!(response.status, status, "{target}");
        assert_eq!(response.values("Mark"), ["all"], "{target}");
        assert_eq!(response.header("X-Content-Type-Options"), Some("nosniff"));
        assert_eq!(response.header("Cache-Control"), caching, "{target}");
        assert_eq!(response.header("Location"), location, "{target}");
    }
}

#[test]
fn a_rewritten_request_is_served_from_another_path() {
    let mut lab = lab(vec![
        Rule {
            rewrite: Some("/new/*".parse().unwrap()),
            ..rule("/old/*")
        },
        // Rules are not looked for again.
        Rule {
            redirect: Some(Redirect::new(301, "/elsewhere").unwrap()),
            ..rule("/new/*")
        },
    ]);
    for (target, status, body) in [
        ("/old/a.css", 200, "style"),
        ("/old/a%2ecss?q", 200, "style"),
        ("/old/../old/d/", 200, "inner"),
        ("/old/none", 404, ""),
    ] {
        let response = lab.get(target);
        assert_eq!(response.status, status, "{target}");
        if status == 200 {
            assert_eq!(response.body, body.as_bytes(), "{target}");
        }
    }
    assert_eq!(
        lab.get("/old/a.css").header("Content-Type"),
        Some("text/css; charset=utf-8")
    );
    // A directory without its slash stays below the path that the client knows.
    let response = lab.get("/old/d");
    assert_eq!(
        (response.status, response.header("Location")),
        (301, Some("/old/d/"))
    );
    let known = lab.get("/old/a.css").header("ETag").unwrap().to_owned();
    let response = lab.get_with("/old/a.css", &[("If-None-Match", &known)]);
    assert_eq!(response.status, 304);
}

#[test]
fn what_is_missing_has_fallbacks_with_status_200() {
    let mut lab = lab(vec![
        Rule {
            fallback: fallback("/api/*", &[]),
            ..rule("/api/*")
        },
        Rule {
            fallback: fallback("/*", &["/*.html", "/none/*", "/index.html"]),
            ..marked("/*", "app")
        },
    ]);
    for (target, status, body) in [
        ("/new/a.css", 200, "style"),
        ("/about", 200, "about"),
        ("/about?q", 200, "about"),
        ("/some/route", 200, "app"),
        ("/new/none/", 200, "app"),
        ("/", 200, "app"),
        ("/api/x", 404, ""),
    ] {
        let response = lab.get(target);
        assert_eq!(response.status, status, "{target}");
        if status == 200 {
            assert_eq!(response.body, body.as_bytes(), "{target}");
            assert_eq!(response.header("Mark"), Some("app"), "{target}");
        }
    }
    assert_eq!(
        lab.get("/some/a.css").header("Content-Type"),
        Some("text/html; charset=utf-8")
    );
    let response = lab.get_with("/some/route", &[("Range", "bytes=1-")]);
    assert_eq!((response.status, &response.body[..]), (206, &b"pp"[..]));
    assert_eq!(lab.files_left_open(), 0);
}

#[test]
fn when_all_fallbacks_are_missing_so_is_the_answer() {
    let mut lab = lab(vec![
        Rule {
            rewrite: Some("/none/*".parse().unwrap()),
            fallback: fallback("/x/*", &["/no.html", "/nor/*/this"]),
            ..rule("/x/*")
        },
        Rule {
            fallback: fallback("/y", &["/new/d", "/about.html"]),
            ..rule("/y")
        },
    ]);
    assert_eq!(lab.get("/x/a").status, 404);
    let opened = lab.opened_paths();
    let expected = ["none/a", "no.html", "nor/a/this"];
    assert!(
        opened.windows(3).any(|three| three == expected),
        "{opened:?}"
    );
    // A directory is no file, and the requested path is none either.
    assert_eq!(lab.get("/y").body, b"about");
}

#[test]
fn a_rule_answers_with_an_error_and_its_page() {
    let mut lab = lab_with(Site {
        rules: vec![
            Rule {
                error: Some(RuleError {
                    status: StatusCode::GONE,
                    page: None,
                }),
                ..rule("/gone")
            },
            Rule {
                error: Some(RuleError {
                    status: StatusCode::SERVICE_UNAVAILABLE,
                    page: Some("down.html".parse().unwrap()),
                }),
                fields: vec![field("Retry-After", "600")],
                ..rule("/shop/*")
            },
        ],
        error_pages: vec![
            (
                StatusCode::SERVICE_UNAVAILABLE,
                "about.html".parse().unwrap(),
            ),
            (StatusCode::NOT_FOUND, "about.html".parse().unwrap()),
        ],
        ..Site::default()
    });
    let response = lab.get("/shop/cart");
    assert_eq!(
        (response.status, &response.body[..]),
        (503, &b"<p>back soon"[..])
    );
    assert_eq!(response.header("Retry-After"), Some("600"));
    let response = lab.get("/gone");
    assert_eq!(response.status, 410);
    assert!(response.body.starts_with(b"<!doctype html>"));
    assert_eq!(lab.get("/missing").body, b"about");
}

#[test]
fn media_types_of_the_configuration_come_first() {
    let mut types = MediaTypes::default();
    types.add("css", "text/x-style").unwrap();
    types.add("html", "text/html; charset=iso-8859-1").unwrap();
    let mut lab = lab_with(Site {
        media_types: Arc::new(types),
        ..Site::default()
    });
    for (target, expected) in [
        ("/new/a.css", "text/x-style; charset=utf-8"),
        ("/about.html", "text/html; charset=iso-8859-1"),
    ] {
        assert_eq!(
            lab.get(target).header("Content-Type"),
            Some(expected),
            "{target}"
        );
    }
}

#[test]
fn a_client_that_makes_too_many_requests_waits() {
    let limited = |number, by: Option<&str>| {
        Some(RequestLimit {
            number,
            requests: NonZeroU32::new(60).unwrap(),
            per: Duration::from_secs(60),
            burst: NonZeroU32::new(2).unwrap(),
            by: by.map(|name| name.parse().unwrap()),
        })
    };
    let mut lab = lab_with(Site {
        rules: vec![
            Rule {
                request_limit: limited(0, Some("x-api-key")),
                ..rule("/new/*")
            },
            Rule {
                request_limit: limited(1, None),
                ..rule("/about.html")
            },
        ],
        error_pages: vec![(StatusCode::TOO_MANY_REQUESTS, "down.html".parse().unwrap())],
        ..Site::default()
    });
    // The twins have one address.
    lab.without_twin();
    let ask = |lab: &mut Lab, address: &str, target: &str, fields: &[(&str, &str)]| {
        let client = lab.connect_from(address);
        let response = lab.ask(client, &get_with(target, fields));
        let wait = response.header("Retry-After").map(str::to_owned);
        (response.status, wait)
    };
    let (good, wait) = ((200, None), (429, Some("1".to_owned())));
    for expected in [&good, &good, &wait] {
        assert_eq!(ask(&mut lab, "192.0.2.7", "/about.html", &[]), *expected);
    }
    assert_eq!(ask(&mut lab, "192.0.2.8", "/about.html", &[]), good);
    assert_eq!(
        ask(&mut lab, "192.0.2.7", "/index.html", &[]),
        good,
        "no limit here"
    );
    let known: [(&str, &str); 1] = [("X-Api-Key", "k")];
    for (address, expected) in [
        ("192.0.2.7", &good),
        ("192.0.2.8", &good),
        ("192.0.2.9", &wait),
    ] {
        assert_eq!(ask(&mut lab, address, "/new/a.css", &known), *expected);
    }
    assert_eq!(
        ask(&mut lab, "192.0.2.7", "/new/a.css", &[]),
        good,
        "without a key by address"
    );
    let client = lab.connect_from("192.0.2.7");
    let response = lab.ask(client, &get_with("/about.html", &[]));
    assert_eq!(
        (response.status, &response.body[..]),
        (429, &b"<p>back soon"[..])
    );
    lab.pass(Duration::from_secs(1));
    assert_eq!(ask(&mut lab, "192.0.2.7", "/about.html", &[]), good);
    assert_eq!(lab.counters().requests_over_limit, 3);
}
