//! Header fields of an origin's answers: kept, passed on, updated and bounded.

use std::time::Duration;

use origin::message::{Answer, Object, Refusal};
use origin::{FieldLimits, Fields};
use testbed::wait;
use testbed::web::{Reply, Web, content};

use crate::host::{Host, Outcome, config};

const ALL: &str = "Cache-Control: max-age=1000
Date: Sun, 06 Nov 1994 08:49:37 GMT
Link: </a>; rel=preload
X-Any: b\u{e9}\u{ff}
Link: </c>
Repr-Digest: sha-256=:aaaa:
Content-Security-Policy: default-src 'self'
Strict-Transport-Security: max-age=1
Access-Control-Allow-Origin: *
Content-Location: http://ORIGIN/x.txt
Server: origin/1
Accept-Ranges: none
Alt-Svc: h3=\":1\"
Keep-Alive: timeout=5
X-Hop: 1
Connection: keep-alive, x-hop
Proxy-Authenticate: Basic";

/// The fields in the order of their names, as a server gets them.
fn sorted(fields: &Fields) -> Vec<(String, Vec<u8>)> {
    let headers = fields.to_headers().unwrap().into_iter();
    let mut headers: Vec<_> = headers
        .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
        .collect();
    // Lines of one name stay in their order.
    headers.sort_by(|(one, _), (other, _)| one.cmp(other));
    headers
}

fn expected(lines: &[(&str, &str)]) -> Vec<(String, Vec<u8>)> {
    let lines = lines.iter();
    lines
        .map(|&(name, value)| (name.to_owned(), value.as_bytes().to_vec()))
        .collect()
}

fn object(host: &mut Host, target: &str) -> Object {
    let ticket = host.ask(target);
    let object = host.object(ticket).unwrap();
    host.done(ticket);
    object
}

fn refusal(host: &mut Host, ticket: u64) -> Refusal {
    match host.hear(ticket) {
        Answer::Refused { refusal, .. } => refusal,
        answer => panic!("{answer:?}"),
    }
}

/// RFC 9111 §3.1
#[test]
fn all_fields_but_those_of_the_connection_are_kept_also_after_a_restart() {
    let web = Web::new(|request| {
        let origin = request.field("host").unwrap();
        Reply::ok(&ALL.replace("ORIGIN", origin), &content(10, 1))
    });
    let expected = expected(&[
        ("access-control-allow-origin", "*"),
        ("cache-control", "max-age=1000"),
        ("content-location", "/x.txt"),
        ("content-security-policy", "default-src 'self'"),
        ("date", "Sun, 06 Nov 1994 08:49:37 GMT"),
        ("link", "</a>; rel=preload"),
        ("link", "</c>"),
        ("repr-digest", "sha-256=:aaaa:"),
        ("strict-transport-security", "max-age=1"),
        ("x-any", "b\u{e9}\u{ff}"),
    ]);
    let root = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let mut host = Host::new(root.path(), &web.url);
        let ticket = host.ask("/x");
        let object = host.object(ticket).unwrap();
        assert_eq!(sorted(&object.fields), expected);
        host.segment(ticket, &object, 0).unwrap();
        host.done(ticket);
        host.end();
    }
}

/// RFC 9110 §6.5.1, RFC 9110 §10.1.4
#[test]
fn trailers_are_kept_with_an_object_but_for_those_that_may_be_none() {
    let web = Web::new(|request| {
        assert_eq!(request.field("te"), Some("trailers"));
        assert_eq!(request.field("connection"), Some("TE"));
        let trailers = match &request.target[..] {
            "/large" => format!("X-Sum: {}\r\n", "x".repeat(12_000)),
            _ => "X-Sum: 1\r\nSet-Cookie: a=b\r\nContent-Length: 3\r\nX-Sum: 2\r\n\
                  Cache-Control: no-store\r\nDigest: c\r\n"
                .to_owned(),
        };
        Reply {
            is_chunked: true,
            trailers,
            ..Reply::ok("Cache-Control: max-age=1000", &content(2500, 1))
        }
    });
    let expected = expected(&[("digest", "c"), ("x-sum", "1"), ("x-sum", "2")]);
    let root = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let mut config = config(root.path(), &web.url);
        config.field_limits.bytes_max = 4000;
        let mut host = Host::with(config);
        for (target, expected) in [("/x", &expected[..]), ("/large", &[])] {
            let ticket = host.ask(target);
            let object = host.object(ticket).unwrap();
            assert_eq!(object.size_bytes, 2500);
            assert_eq!(sorted(&object.trailers), expected, "{target}");
            host.segment(ticket, &object, 0).unwrap();
            host.done(ticket);
        }
        host.end();
    }
    assert_eq!(
        web.requests().len(),
        2,
        "the second fetcher has them in its cache"
    );
}

/// RFC 8297 §2
#[test]
fn early_hints_reach_all_clients_that_wait() {
    let web = Web::new(|request| {
        let hint = |link: &str| format!("HTTP/1.1 103 X\r\nLink: {link}\r\nX-Other: 1\r\n\r\n");
        let mut reply = Reply::ok("Cache-Control: max-age=1000", &content(10, 1));
        reply.interim = match &request.target[..] {
            "/many" => hint("</a>").repeat(20),
            "/others" => "HTTP/1.1 102 X\r\nLink: </a>\r\n\r\nHTTP/1.1 103 X\r\n\r\n".to_owned(),
            _ => hint("</a>; rel=preload") + &hint("</b>\r\nLink: </c>"),
        };
        reply
    });
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    for (target, expected) in [
        ("/x", vec![vec!["</a>; rel=preload"], vec!["</b>", "</c>"]]),
        ("/x", Vec::new()),
        ("/many", vec![vec!["</a>"]; 4]),
        ("/others", Vec::new()),
    ] {
        let ticket = host.ask(target);
        let mut found = Vec::new();
        loop {
            match host.hear(ticket) {
                Answer::EarlyHints { links, .. } => found.push(links),
                Answer::Object { .. } => break,
                answer => panic!("{answer:?}"),
            }
        }
        assert_eq!(found, expected, "{target}");
        host.done(ticket);
    }
}

/// RFC 9111 §3.2
#[test]
fn a_304_updates_fields_but_not_those_about_the_stored_bytes() {
    let first = "Cache-Control: max-age=0
Content-Type: text/a
Content-Encoding: br
Repr-Digest: sha-256=:aaaa:
Content-Security-Policy: a
X-Old: 1
X-Old: 2";
    let web = Web::new(move |request| Reply::in_parts(request, "\"v\"", first, &content(10, 1)));
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    assert!(host.get("/x") == Outcome::Content(content(10, 1)));
    let second = "Cache-Control: max-age=1000
Date: Sun, 06 Nov 1994 08:49:37 GMT
Content-Type: text/b
Content-Encoding: gzip
Content-Digest: sha-256=:bbbb:
Repr-Digest: sha-256=:bbbb:
X-Old: 3
X-New: 4
Connection: x-hop
X-Hop: 5";
    web.answers(move |request| Reply::in_parts(request, "\"v\"", second, &content(10, 1)));
    let expected = expected(&[
        ("cache-control", "max-age=1000"),
        ("content-encoding", "br"),
        ("content-security-policy", "a"),
        ("content-type", "text/b"),
        ("date", "Sun, 06 Nov 1994 08:49:37 GMT"),
        ("repr-digest", "sha-256=:aaaa:"),
        ("x-new", "4"),
        ("x-old", "3"),
    ]);
    assert_eq!(sorted(&object(&mut host, "/x").fields), expected);
    assert_eq!(host.end().origins.revalidated, 1);
    let mut host = Host::new(root.path(), &web.url);
    assert_eq!(
        sorted(&object(&mut host, "/x").fields),
        expected,
        "after a restart"
    );
}

#[test]
fn redirects_and_refusals_come_with_what_the_origin_says_besides() {
    for (status, location) in [(301, Some("/y")), (404, None)] {
        let web = Web::new(move |_| Reply {
            status,
            ..Reply::ok(
                &format!(
                    "{}Cache-Control: max-age=1000
Date: Sat, 06 Nov 2094 08:49:37 GMT
Retry-After: 7
Content-Type: text/a
Content-Language: de
Content-Digest: sha-256=:aaaa:
Access-Control-Allow-Origin: *",
                    location.map_or(String::new(), |to| format!("Location: {to}\n")),
                ),
                b"what the origin says",
            )
        });
        let expected = expected(&[
            ("access-control-allow-origin", "*"),
            ("cache-control", "max-age=1000"),
            ("date", "Sat, 06 Nov 2094 08:49:37 GMT"),
            ("retry-after", "7"),
        ]);
        let root = tempfile::tempdir().unwrap();
        let mut host = Host::new(root.path(), &web.url);
        for _ in 0..2 {
            let ticket = host.ask("/x");
            let refusal = refusal(&mut host, ticket);
            assert_eq!(
                (refusal.status, refusal.location.as_deref()),
                (status, location)
            );
            assert_eq!(sorted(&refusal.fields), expected);
        }
        assert_eq!(web.requests().len(), 1);
    }
}

/// RFC 9111 §7.3
#[test]
fn a_cookie_reaches_one_client() {
    for (status, rest) in [(200, ""), (302, "\nLocation: /y"), (404, "")] {
        let web = Web::new(move |_| {
            let fields = format!("Cache-Control: max-age=1000\nSet-Cookie: a=b{rest}");
            Reply {
                status,
                gate_at: Some(0),
                ..Reply::ok(&fields, &content(10, 1))
            }
        });
        let root = tempfile::tempdir().unwrap();
        let mut host = Host::new(root.path(), &web.url);
        let tickets: Vec<u64> = (0..3).map(|_| host.ask("/x")).collect();
        let fields: Vec<Fields> = tickets
            .iter()
            .map(|&ticket| match host.hear(ticket) {
                Answer::Object { object, .. } => object.fields,
                Answer::Refused { refusal, .. } => refusal.fields,
                answer => panic!("{answer:?}"),
            })
            .collect();
        for fields in fields {
            assert!(
                fields.iter().any(|field| field == ("set-cookie", "a=b")),
                "{fields:?}"
            );
        }
        assert_eq!(web.requests().len(), 3, "each from an answer of its own");
        web.open_gate();
    }
}

#[test]
fn an_answer_with_more_fields_than_are_kept_is_502_and_counted() {
    let limits = FieldLimits {
        bytes_max: 1024,
        count_max: 10,
    };
    let long = |bytes: usize| format!("X: {}", "y".repeat(bytes));
    let many = |count: usize| {
        (0..count)
            .map(|it| format!("X-{it}: y\n"))
            .collect::<String>()
    };
    for (fields, is_kept) in [
        (long(900), true),
        (long(1024), false),
        (many(9), true),
        (many(10), false),
        // More than is read of a head.
        (many(1000), false),
        (long(1 << 20), false),
    ] {
        for status in [200, 404] {
            let fields = fields.clone();
            let web = Web::new(move |_| Reply {
                status,
                ..Reply::ok(&fields, &content(10, 1))
            });
            let root = tempfile::tempdir().unwrap();
            let mut host = Host::with(origin::Config {
                field_limits: limits,
                ..config(root.path(), &web.url)
            });
            let outcome = host.get("/x");
            let expected = match (is_kept, status) {
                (true, 200) => Outcome::Content(content(10, 1)),
                (true, status) => Outcome::Refused(status),
                (false, _) => Outcome::Refused(502),
            };
            assert!(outcome == expected, "{outcome:?}");
            let asked = web.requests().len();
            assert_eq!(asked, 1, "it is not asked again for that");
            assert_eq!(host.end().origins.oversized_heads, u64::from(!is_kept));
        }
    }
}

#[test]
fn a_304_that_makes_fields_too_many_ends_the_version() {
    let fields = "Cache-Control: max-age=0\nX: y";
    let web = Web::new(move |request| Reply::in_parts(request, "\"v\"", fields, &content(10, 1)));
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::with(origin::Config {
        field_limits: FieldLimits {
            bytes_max: 200,
            count_max: 10,
        },
        ..config(root.path(), &web.url)
    });
    assert!(host.get("/x") == Outcome::Content(content(10, 1)));
    let long = format!("Cache-Control: max-age=0\nY: {}", "y".repeat(200));
    web.answers(move |request| Reply::in_parts(request, "\"v\"", &long, &content(10, 1)));
    assert_eq!(host.get("/x"), Outcome::Refused(502));
    web.answers(move |request| Reply::in_parts(request, "\"v\"", fields, &content(10, 1)));
    wait::until(Duration::from_secs(20), "it to be asked for again", || {
        (host.get("/x") == Outcome::Content(content(10, 1))).then_some(())
    })
    .unwrap();
}
