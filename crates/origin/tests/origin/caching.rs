//! For how long, and for whom, an answer is used.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use testbed::wait;

use crate::host::{Host, Outcome, cached};
use origin::message::CacheStatus;
use testbed::web::{Reply, Web, content};

#[test]
fn what_is_stale_is_asked_for_again_and_304_costs_no_content() {
    let web = Web::new(|request| {
        Reply::in_parts(
            request,
            "\"v1\"",
            "Cache-Control: no-cache",
            &content(1500, 1),
        )
    });
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    for _ in 0..3 {
        assert!(host.get("/x") == Outcome::Content(content(1500, 1)));
    }
    let conditions: Vec<_> = web.requests();
    let conditions = conditions.iter().map(|it| it.field("if-none-match"));
    assert_eq!(
        conditions.collect::<Vec<_>>(),
        [None, Some("\"v1\""), Some("\"v1\"")]
    );
    // Another version takes its place.
    web.answers(|request| {
        Reply::in_parts(
            request,
            "\"v2\"",
            "Cache-Control: max-age=100",
            &content(2500, 2),
        )
    });
    for _ in 0..3 {
        assert!(host.get("/x") == Outcome::Content(content(2500, 2)));
    }
    assert_eq!(web.requests().len(), 4);
    let counters = host.end();
    assert_eq!(
        (counters.origins.revalidated, counters.origins.fetched_bytes),
        (2, 4000)
    );
    assert_eq!(counters.cache.cached_bytes, 2500);
}

#[test]
fn each_answer_says_how_it_has_come() {
    let root = tempfile::tempdir().unwrap();
    let web = Web::new(|_| Reply::status(404));
    let mut host = Host::new(root.path(), &web.url);
    for (fields, hows) in [
        (
            "max-age=100",
            [CacheStatus::Miss, CacheStatus::Hit, CacheStatus::Hit],
        ),
        (
            "no-cache",
            [
                CacheStatus::Miss,
                CacheStatus::Revalidated,
                CacheStatus::Expired,
            ],
        ),
        (
            "max-age=0, stale-while-revalidate=100",
            [
                CacheStatus::Miss,
                CacheStatus::Updating,
                CacheStatus::Updating,
            ],
        ),
        ("private", [CacheStatus::Bypass; 3]),
    ] {
        let target = format!("/{}", fields.len());
        for (how, version) in hows.into_iter().zip(["\"1\"", "\"1\"", "\"2\""]) {
            let fields = format!("Cache-Control: {fields}");
            web.answers(move |request| Reply::in_parts(request, version, &fields, b"x"));
            assert_eq!(host.how(&target), how, "{target} {version}");
        }
    }
    let stands_in = "Cache-Control: max-age=0, stale-if-error=100";
    web.answers(|request| Reply::in_parts(request, "\"1\"", stands_in, b"x"));
    assert_eq!(host.how("/stale"), CacheStatus::Miss);
    web.answers(|_| Reply::status(500));
    assert_eq!(host.how("/stale"), CacheStatus::Stale);
    web.answers(|_| Reply {
        status: 404,
        fields: "Cache-Control: max-age=100\r\n".to_owned(),
        ..Reply::default()
    });
    assert_eq!(
        [host.how("/none"), host.how("/none")],
        [CacheStatus::Miss, CacheStatus::Hit]
    );
    let counters = host.end();
    let asked = (
        counters.origins.asked,
        counters.origins.hits + counters.origins.misses,
    );
    assert_eq!(asked, (16, 16), "{counters:?}");
}

#[test]
fn who_began_with_a_version_gets_it_to_its_end() {
    let web = Web::new(|request| {
        Reply::in_parts(
            request,
            "\"v1\"",
            "Cache-Control: no-cache",
            &content(3000, 1),
        )
    });
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    assert!(host.get("/x") == Outcome::Content(content(3000, 1)));
    let ticket = host.ask("/x");
    let object = host.object(ticket).unwrap();
    web.answers(|request| {
        Reply::in_parts(
            request,
            "\"v2\"",
            "Cache-Control: no-cache",
            &content(3000, 2),
        )
    });
    assert!(host.get("/x") == Outcome::Content(content(3000, 2)));
    for segment in 0..3 {
        let start = segment as usize * 1000;
        let bytes = host.segment(ticket, &object, segment).unwrap();
        assert!(bytes == content(3000, 1)[start..start + 1000]);
    }
    host.done(ticket);
    assert_eq!(host.end().cache.cached_bytes, 3000);
}

#[test]
fn what_is_stale_is_served_while_it_is_asked_for() {
    let fields = "Cache-Control: max-age=0, stale-while-revalidate=1000";
    let web = Web::new(move |request| Reply::in_parts(request, "\"v1\"", fields, &content(10, 1)));
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    assert!(host.get("/x") == Outcome::Content(content(10, 1)));
    web.answers(move |request| Reply {
        is_silent: request.field("if-none-match").is_some(),
        ..Reply::default()
    });
    for _ in 0..3 {
        assert!(
            host.get("/x") == Outcome::Content(content(10, 1)),
            "no client waits"
        );
    }
    let again = || (web.requests().len() == 2).then_some(());
    wait::until(Duration::from_secs(20), "one request for all", again).unwrap();
    web.answers(move |request| Reply::in_parts(request, "\"v2\"", fields, &content(10, 2)));
    web.open_gate();
    wait::until(Duration::from_secs(20), "the new version", || {
        (host.get("/x") == Outcome::Content(content(10, 2))).then_some(())
    })
    .unwrap();
}

#[test]
fn what_is_for_one_client_is_given_to_no_other_and_not_kept() {
    for field in [
        "Cache-Control: private",
        "Cache-Control: no-store",
        "Set-Cookie: a=b\nCache-Control: max-age=100",
        "Vary: *\nCache-Control: max-age=100",
    ] {
        let count = AtomicUsize::new(0);
        let web = Web::new(move |_| {
            let number = count.fetch_add(1, Ordering::Relaxed) as u64;
            Reply::ok(field, &content(1500, number))
        });
        let root = tempfile::tempdir().unwrap();
        let mut host = Host::new(root.path(), &web.url);
        let tickets: Vec<u64> = (0..5).map(|_| host.ask("/x")).collect();
        let mut seen: Vec<Vec<u8>> = Vec::new();
        for ticket in tickets {
            let Outcome::Content(content) = host.read(ticket) else {
                panic!("{field}")
            };
            seen.push(content);
        }
        let mut expected: Vec<_> = (0..5).map(|number| content(1500, number)).collect();
        seen.sort();
        expected.sort();
        assert!(seen == expected, "{field}: each has an answer of its own");
        assert_eq!(host.end().cache.cached_bytes, 0);
        assert_eq!(cached(root.path()), (0, 0), "{field}");
    }
}

#[test]
fn compressed_for_others_or_not_it_is_one_answer() {
    let web = Web::new(|_| {
        Reply::ok(
            "Vary: Accept-Encoding\nCache-Control: max-age=100\nContent-Type: text/css",
            b"x",
        )
    });
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    for _ in 0..2 {
        let ticket = host.ask("/x");
        let object = host.object(ticket).unwrap();
        let fields = object.fields.iter().filter(|(name, _)| *name != "date");
        let expected = [
            ("cache-control", "max-age=100"),
            ("content-type", "text/css"),
            ("vary", "Accept-Encoding"),
        ];
        let mut fields: Vec<_> = fields.collect();
        fields.sort_unstable();
        assert_eq!(fields, expected);
        host.done(ticket);
    }
    assert_eq!(web.requests().len(), 1);
}

#[test]
fn what_a_304_does_not_say_stays_as_it_was() {
    const OLD: &str = "Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT";
    for (first, again, requests, caching) in [
        // Of three clients, each makes a request, or the first two do.
        ("Cache-Control: no-cache", "", 3, "no-cache"),
        ("Cache-Control: max-age=600\nAge: 700", "", 2, "max-age=600"),
        (
            "Cache-Control: max-age=600\nAge: 700",
            "Vary: Accept-Encoding\r\n",
            2,
            "max-age=600",
        ),
        (
            "Cache-Control: no-cache",
            "Cache-Control: max-age=9\r\n",
            2,
            "max-age=9",
        ),
    ] {
        let web = Web::new(move |request| match request.field("if-none-match") {
            Some(_) => Reply {
                fields: format!("ETag: \"v\"\r\n{again}"),
                ..Reply::status(304)
            },
            None => {
                let fields = format!("{first}\n{OLD}");
                Reply::in_parts(request, "\"v\"", &fields, &content(1500, 1))
            }
        });
        let root = tempfile::tempdir().unwrap();
        let mut host = Host::new(root.path(), &web.url);
        for _ in 0..2 {
            assert!(host.get("/x") == Outcome::Content(content(1500, 1)));
        }
        let ticket = host.ask("/x");
        let object = host.object(ticket).unwrap();
        host.done(ticket);
        assert_eq!(web.requests().len(), requests, "{first}, then {again}");
        let mut fields = object.fields.iter();
        let said = fields.find(|(name, _)| *name == "cache-control");
        let expected = Some(("cache-control", caching));
        assert_eq!(said, expected, "{first}, then {again}");
        let has_vary = object.fields.iter().any(|(name, _)| name == "vary");
        assert_eq!(has_vary, again.starts_with("Vary"));
    }
}

#[test]
fn what_a_304_says_is_for_one_client_is_given_to_no_other() {
    for field in [
        "Cache-Control: private",
        "Cache-Control: no-store",
        "Vary: *",
    ] {
        let web = Web::new(move |request| match request.field("if-none-match") {
            Some(_) => Reply {
                fields: format!("{field}\r\n"),
                ..Reply::status(304)
            },
            None => {
                let fields = "Cache-Control: no-cache";
                Reply::in_parts(request, "\"v\"", fields, &content(1500, 1))
            }
        });
        let root = tempfile::tempdir().unwrap();
        let mut host = Host::new(root.path(), &web.url);
        assert!(host.get("/x") == Outcome::Content(content(1500, 1)));
        web.answers(move |request| match request.field("if-none-match") {
            Some(_) => Reply {
                fields: format!("{field}\r\n"),
                ..Reply::status(304)
            },
            None => Reply::ok(field, &content(1500, 2)),
        });
        assert!(host.get("/x") == Outcome::Content(content(1500, 1)));
        assert!(
            host.get("/x") == Outcome::Content(content(1500, 2)),
            "{field}: the next one asks without a condition"
        );
        assert_eq!(host.end().cache.cached_bytes, 0, "{field}");
    }
}

#[test]
fn redirects_and_what_is_not_there_are_passed_on_and_kept_if_that_is_said() {
    let web = Web::new(|request| match request.target.as_str() {
        "/gone" => Reply {
            fields: "Cache-Control: max-age=100\r\n".to_owned(),
            ..Reply::status(410)
        },
        "/moved" => Reply {
            fields: "Location: /elsewhere\r\n".to_owned(),
            ..Reply::status(302)
        },
        "/secret" => Reply::status(401),
        _ => Reply::status(404),
    });
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    for (target, status, requests) in [
        ("/gone", 410, 1),
        ("/moved", 302, 2),
        ("/none", 404, 2),
        // It is left alone for a moment.
        ("/secret", 502, 1),
    ] {
        let before = web.requests().len();
        for _ in 0..2 {
            assert_eq!(host.get(target), Outcome::Refused(status), "{target}");
        }
        assert_eq!(web.requests().len() - before, requests, "{target}");
    }
}

#[test]
fn what_the_origin_denies_is_not_served_and_not_thrown_away() {
    let fields = "Cache-Control: max-age=0, stale-if-error=1000, stale-while-revalidate=0";
    for (denied, told) in [(400, 400), (401, 502), (402, 402), (403, 403), (409, 409)] {
        let good = move |request: &_| Reply::in_parts(request, "\"v\"", fields, &content(2500, 1));
        let web = Web::new(good);
        let root = tempfile::tempdir().unwrap();
        let mut host = Host::new(root.path(), &web.url);
        assert!(host.get("/x") == Outcome::Content(content(2500, 1)));
        web.answers(move |_| Reply::status(denied));
        assert_eq!(host.get("/x"), Outcome::Refused(told));
        // Nor does it stand in from then on, also after a restart.
        web.answers(|_| Reply::status(500));
        host.end();
        let mut host = Host::new(root.path(), &web.url);
        assert_eq!(host.get("/x"), Outcome::Refused(502));
        // But when the origin says that it is still the same, none of it comes again.
        web.answers(good);
        wait::until(Duration::from_secs(20), "it to be asked for again", || {
            (host.get("/x") == Outcome::Content(content(2500, 1))).then_some(())
        })
        .unwrap();
        assert_eq!(host.end().origins.fetched_bytes, 0, "{denied}");
    }
}

#[test]
fn what_is_denied_while_it_is_served_stale_is_served_no_more() {
    let fields = "Cache-Control: max-age=0, stale-while-revalidate=1000";
    let web = Web::new(move |request| Reply::in_parts(request, "\"v\"", fields, &content(10, 1)));
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    assert!(host.get("/x") == Outcome::Content(content(10, 1)));
    web.answers(|_| Reply::status(403));
    wait::until(Duration::from_secs(20), "what the origin says", || {
        (host.get("/x") == Outcome::Refused(403)).then_some(())
    })
    .unwrap();
}

#[test]
fn what_has_gone_has_gone() {
    let fields = "Cache-Control: max-age=0, stale-if-error=1000";
    for gone in [404, 410, 451] {
        let good = move |request: &_| Reply::in_parts(request, "\"v\"", fields, &content(2500, 1));
        let web = Web::new(good);
        let root = tempfile::tempdir().unwrap();
        let mut host = Host::new(root.path(), &web.url);
        assert!(host.get("/x") == Outcome::Content(content(2500, 1)));
        web.answers(move |_| Reply::status(gone));
        assert_eq!(host.get("/x"), Outcome::Refused(gone));
        web.answers(good);
        assert!(host.get("/x") == Outcome::Content(content(2500, 1)));
        assert_eq!(host.end().origins.fetched_bytes, 5000, "{gone}");
    }
}

#[test]
fn a_version_that_is_not_the_latest_does_not_come_back_with_a_restart() {
    let web = Web::new(|request| {
        let fields = "Cache-Control: max-age=0";
        Reply::in_parts(request, "\"v1\"", fields, &content(1500, 1))
    });
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    let targets: Vec<String> = (0..8).map(|number| format!("/{number}")).collect();
    // They are read until the fetcher ends.
    for target in &targets {
        let ticket = host.ask(target);
        let object = host.object(ticket).unwrap();
        host.segment(ticket, &object, 1).unwrap();
    }
    web.answers(|request| {
        let fields = "Cache-Control: max-age=1000";
        Reply::in_parts(request, "\"v2\"", fields, &content(1500, 2))
    });
    for target in &targets {
        assert!(host.get(target) == Outcome::Content(content(1500, 2)));
    }
    host.end();
    let requests = web.requests().len();
    let mut host = Host::new(root.path(), &web.url);
    for target in &targets {
        assert!(host.get(target) == Outcome::Content(content(1500, 2)));
    }
    assert_eq!(web.requests().len(), requests);
}
