//! Origins that are down, slow, lie, or change under us; and a cache that cannot be written to.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use origin::Timeouts;
use origin::message::{Answer, segment_name};
use testbed::wait;

use crate::host::{Host, Outcome, cached, config};
use testbed::web::{Reply, Web, content};

const FRESH: &str = "Cache-Control: max-age=1000";

#[test]
fn an_origin_that_is_down_is_502_and_then_left_alone() {
    // A port without a listener.
    let url = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &url);
    for _ in 0..10 {
        assert_eq!(host.get("/x"), Outcome::Refused(502));
    }
    assert_eq!(host.end().origins.failures, 10);
}

#[test]
fn an_origin_that_says_nothing_is_504() {
    let web = Web::new(|_| Reply {
        is_silent: true,
        ..Reply::default()
    });
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::with(origin::Config {
        timeouts: Timeouts {
            connect: Duration::from_millis(100),
            head: Duration::from_millis(100),
            ..Timeouts::default()
        },
        ..config(root.path(), &web.url)
    });
    assert_eq!(host.get("/x"), Outcome::Refused(504));
}

#[test]
fn a_failure_that_passes_is_not_noticed() {
    let count = AtomicUsize::new(0);
    let web = Web::new(move |request| match count.fetch_add(1, Ordering::Relaxed) {
        0 | 1 => Reply::status(503),
        // The body breaks off again and again, each time a little later.
        _ => Reply {
            cut_at: Some(2700),
            ..Reply::in_parts(request, "\"v\"", FRESH, &content(9000, 1))
        },
    });
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    assert!(host.get("/x") == Outcome::Content(content(9000, 1)));
}

#[test]
fn a_download_outlives_an_origin_that_is_left_alone_for_a_moment() {
    let count = AtomicUsize::new(0);
    let web = Web::new(move |request| {
        let reply = Reply::in_parts(request, "\"v\"", FRESH, &content(9000, 1));
        match count.fetch_add(1, Ordering::Relaxed) {
            0 => Reply {
                cut_at: Some(2700),
                ..reply
            },
            // No status at all, as often as it takes until the origin is not asked any more.
            1..=5 => Reply::status(1),
            _ => reply,
        }
    });
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    assert!(host.get("/x") == Outcome::Content(content(9000, 1)));
    assert_eq!(host.end().origins.failures, 3);
}

#[test]
fn targets_that_fail_are_left_alone_each_for_itself_and_their_origin_is_not() {
    let web = Web::new(|request| match request.target.as_str() {
        "/fine" => Reply::ok("Cache-Control: no-store", &content(10, 1)),
        "/nowhere" => Reply::status(302),
        "/unknown" => Reply::status(418),
        target => Reply::status(target[1..4].parse().unwrap()),
    });
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    let targets = [
        ("/503a", 503, 3),
        ("/503b", 503, 3),
        ("/503c", 503, 3),
        ("/502", 502, 3),
        ("/500", 502, 1),
        ("/nowhere", 502, 1),
        ("/unknown", 502, 1),
    ];
    let rounds = 20;
    for _ in 0..rounds {
        for (target, status, _) in targets {
            assert_eq!(host.get(target), Outcome::Refused(status), "{target}");
        }
        assert!(host.get("/fine") == Outcome::Content(content(10, 1)));
    }
    let requests = web.requests();
    for (target, _, attempts) in targets {
        let asked = requests.iter().filter(|it| it.target == target).count();
        // Once, and a few times more if this takes longer than it is remembered.
        let is_rare = asked >= attempts && asked <= attempts * rounds / 2;
        assert!(is_rare, "{target}: {asked}");
    }
    web.answers(|_| Reply::ok(FRESH, &content(20, 2)));
    for (target, ..) in targets {
        wait::until(Duration::from_secs(20), "it to be asked for again", || {
            (host.get(target) == Outcome::Content(content(20, 2))).then_some(())
        })
        .unwrap();
    }
}

#[test]
fn an_origin_that_is_asked_too_often_does_not_empty_the_cache() {
    let fields = "Cache-Control: max-age=0, stale-if-error=1000";
    let web = Web::new(move |request| Reply::in_parts(request, "\"v\"", fields, &content(10, 1)));
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    assert!(host.get("/x") == Outcome::Content(content(10, 1)));
    web.answers(|_| Reply::status(429));
    assert!(host.get("/x") == Outcome::Content(content(10, 1)));
    assert_eq!(host.get("/y"), Outcome::Refused(429));
}

#[test]
fn errors_of_the_origin_are_its_own() {
    for (said, status) in [
        (500, 502),
        (501, 502),
        (502, 502),
        (503, 503),
        (504, 504),
        (206, 502),
    ] {
        let web = Web::new(move |_| Reply::status(said));
        let root = tempfile::tempdir().unwrap();
        let mut host = Host::new(root.path(), &web.url);
        assert_eq!(host.get("/x"), Outcome::Refused(status), "{said}");
    }
}

#[test]
fn what_is_stale_stands_in_for_an_origin_that_fails() {
    let fields = "Cache-Control: max-age=0, stale-if-error=1000";
    let web = Web::new(move |request| Reply::in_parts(request, "\"v\"", fields, &content(10, 1)));
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    assert!(host.get("/x") == Outcome::Content(content(10, 1)));
    web.answers(|_| Reply::status(500));
    for _ in 0..3 {
        assert!(host.get("/x") == Outcome::Content(content(10, 1)));
    }
    assert_eq!(host.get("/y"), Outcome::Refused(502));
    assert_eq!(host.end().origins.stale, 3);
}

/// It has ended before its end, or before any client heard of it.
fn is_broken_off(outcome: &Outcome) -> bool {
    [Outcome::Lost, Outcome::Refused(502)].contains(outcome)
}

#[test]
fn one_that_lies_about_its_length_is_not_believed() {
    for (claims, is_in_parts) in [(5000, false), (5000, true)] {
        let web = Web::new(move |request| {
            let reply = if is_in_parts {
                Reply::in_parts(request, "\"v\"", FRESH, &content(2500, 1))
            } else {
                Reply::ok(FRESH, &content(2500, 1))
            };
            Reply {
                claims: Some(claims),
                ..reply
            }
        });
        let root = tempfile::tempdir().unwrap();
        let mut host = Host::new(root.path(), &web.url);
        assert!(is_broken_off(&host.get("/x")));
        // Nor does any client get what has come of it.
        web.answers(|_| Reply::ok(FRESH, &content(3500, 2)));
        assert!(host.get("/x") == Outcome::Content(content(3500, 2)));
        assert_eq!(host.end().cache.cached_bytes, 3500);
    }
}

#[test]
fn a_part_that_is_longer_than_it_said_is_not_believed() {
    let body = content(100_000, 1);
    let web = Web::new(move |request| {
        let mut reply = Reply::in_parts(request, "\"v\"", FRESH, &body);
        if reply.status == 206 {
            // Chunked, so that only the range says how long it is.
            reply.is_chunked = true;
            reply.body.extend(content(3000, 2));
        } else {
            reply.gate_at = Some(1500);
        }
        reply
    });
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    let ticket = host.ask("/x");
    let object = host.object(ticket).unwrap();
    assert_eq!(host.segment(ticket, &object, 99), Err(Outcome::Lost));
    let directory = root.path().join(&object.directory);
    let behind = segment_name(100);
    assert!(!directory.join(behind).exists(), "nor is it kept");
}

/// The origin is well: a client that has no head yet gets no 502.
#[test]
fn a_segment_that_the_cache_does_not_take_is_lost_with_503() {
    let web = Web::new(|request| Reply {
        gate_at: Some(1500),
        ..Reply::in_parts(request, "\"v\"", FRESH, &content(50_000, 1))
    });
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    let ticket = host.ask("/x");
    let object = host.object(ticket).unwrap();
    assert!(host.segment(ticket, &object, 0).unwrap() == content(50_000, 1)[..1000]);
    // Nothing can be put in its place.
    let place = path_of(root.path(), &object, 30);
    fs::create_dir(&place).unwrap();
    fs::write(place.join("file"), "").unwrap();
    web.answers(|request| Reply::in_parts(request, "\"v\"", FRESH, &content(50_000, 1)));
    host.want(ticket, 30);
    let status = 503;
    assert_eq!(host.hear(ticket), Answer::Lost { ticket, status });
}

#[test]
fn parts_of_two_versions_are_never_mixed() {
    let web = Web::new(|request| Reply {
        gate_at: Some(1500),
        ..Reply::in_parts(request, "\"v1\"", FRESH, &content(50_000, 1))
    });
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    let ticket = host.ask("/x");
    let object = host.object(ticket).unwrap();
    assert!(host.segment(ticket, &object, 0).unwrap() == content(50_000, 1)[..1000]);
    web.answers(|request| Reply::in_parts(request, "\"v2\"", FRESH, &content(50_000, 2)));
    assert_eq!(host.segment(ticket, &object, 30), Err(Outcome::Lost));
    assert!(host.get("/x") == Outcome::Content(content(50_000, 2)));
}

#[test]
fn without_validators_what_breaks_off_is_lost_and_fetched_again() {
    let web = Web::new(|_| Reply {
        cut_at: Some(2500),
        ..Reply::ok(FRESH, &content(5000, 1))
    });
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    assert!(is_broken_off(&host.get("/x")));
    web.answers(|_| Reply::ok(FRESH, &content(5000, 2)));
    assert!(host.get("/x") == Outcome::Content(content(5000, 2)));
    // Of unknown length, nothing had been promised yet.
    web.answers(|_| Reply {
        cut_at: Some(2500),
        is_chunked: true,
        ..Reply::ok(FRESH, &content(5000, 1))
    });
    assert_eq!(host.get("/y"), Outcome::Refused(502));
    assert_eq!(host.end().cache.cached_bytes, 5000);
}

#[test]
fn what_is_larger_than_the_cache_and_comes_only_whole_is_refused() {
    for is_chunked in [false, true] {
        let web = Web::new(move |_| Reply {
            is_chunked,
            ..Reply::ok(FRESH, &content(50_000, 1))
        });
        let root = tempfile::tempdir().unwrap();
        let mut host = Host::with(origin::Config {
            bytes_max: 20_000,
            ..config(root.path(), &web.url)
        });
        assert_eq!(host.get("/x"), Outcome::Refused(503));
        // What was being written by then goes as well.
        wait::until(Duration::from_secs(20), "nothing to be left", || {
            (cached(root.path()) == (0, 0)).then_some(())
        })
        .unwrap();
        assert_eq!(host.end().cache.cached_bytes, 0);
    }
}

#[test]
fn answers_without_a_length_share_half_of_the_cache() {
    let web = Web::new(|request| Reply {
        is_chunked: true,
        gate_at: Some(8500),
        ..Reply::ok(FRESH, &content(9500, u64::from(request.target == "/b")))
    });
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::with(origin::Config {
        bytes_max: 30_000,
        ..config(root.path(), &web.url)
    });
    // Neither is too long by itself.
    let first = host.ask("/a");
    wait::until(Duration::from_secs(20), "most of the first one", || {
        (cached(root.path()) == (8, 8000)).then_some(())
    })
    .unwrap();
    assert_eq!(host.get("/b"), Outcome::Refused(503));
    web.open_gate();
    assert!(host.read(first) == Outcome::Content(content(9500, 0)));
    // One that is not read any more makes room.
    wait::until(Duration::from_secs(20), "it to be asked for again", || {
        (host.get("/b") == Outcome::Content(content(9500, 1))).then_some(())
    })
    .unwrap();
}

#[test]
fn what_does_not_come_in_parts_has_room_before_it_is_written() {
    let number = |target: &str| target[1..].parse().unwrap();
    let web = Web::new(move |request| Reply::ok(FRESH, &content(12_000, number(&request.target))));
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::with(origin::Config {
        bytes_max: 30_000,
        ..config(root.path(), &web.url)
    });
    // Two of them fit, and are read.
    let read: Vec<u64> = (0..2)
        .map(|number| host.ask(&format!("/{number}")))
        .collect();
    let objects: Vec<_> = read.iter().map(|&it| host.object(it).unwrap()).collect();
    for number in 2..40 {
        assert_eq!(host.get(&format!("/{number}")), Outcome::Refused(503));
    }
    for (number, (&ticket, object)) in read.iter().zip(&objects).enumerate() {
        let body = content(12_000, number as u64);
        for (index, expected) in body.chunks(1000).enumerate() {
            let found = host.segment(ticket, object, index as u64).unwrap();
            assert!(found == expected, "{number}, {index}");
        }
    }
    assert_eq!(cached(root.path()), (24, 24_000));
    // When one is not read any more, another one takes its room.
    host.done(read[0]);
    assert!(host.get("/50") == Outcome::Content(content(12_000, 50)));
    let counters = host.end();
    assert_eq!(
        (counters.origins.no_room, counters.origins.failures),
        (38, 0)
    );
    assert!(counters.cache.cached_bytes <= 30_000, "{counters:?}");
}

#[test]
fn answers_without_a_length_are_counted_before_they_are_written() {
    let web = Web::new(|_| Reply {
        is_chunked: true,
        gate_at: Some(1000),
        ..Reply::ok(FRESH, &content(9500, 1))
    });
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::with(origin::Config {
        bytes_max: 30_000,
        ..config(root.path(), &web.url)
    });
    let tickets: Vec<u64> = (0..40).map(|it| host.ask(&format!("/{it}"))).collect();
    // So many have begun as half of the cache has room for; the others are refused before anything
    // is written.
    let is_refused = |answer: &Result<_, _>| matches!(answer, Err(Outcome::Refused(503)));
    let full = wait::until(Duration::from_secs(20), "half of the cache", || {
        let (count, bytes) = cached(root.path());
        assert!(bytes <= 15_000, "{bytes}");
        (count == 15 && bytes == 15_000).then_some(())
    });
    full.unwrap();
    web.open_gate();
    let outcomes = tickets.iter().map(|&it| host.object(it));
    assert!(outcomes.filter(is_refused).count() >= 25);
}

#[test]
fn a_cache_that_cannot_be_written_to_is_503_and_well_again_when_it_can() {
    let web = Web::new(|request| Reply {
        is_chunked: request.target == "/chunked",
        ..Reply::ok(FRESH, &content(2500, 1))
    });
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    assert!(host.get("/a") == Outcome::Content(content(2500, 1)));
    // For any user, root included, no directory can be made where a file is.
    let objects = root.path().join("objects");
    let aside = root.path().join("aside");
    fs::rename(&objects, &aside).unwrap();
    fs::write(&objects, "in the way").unwrap();
    for target in ["/b", "/chunked"] {
        assert_eq!(host.get(target), Outcome::Refused(503));
    }
    fs::remove_file(&objects).unwrap();
    fs::rename(&aside, &objects).unwrap();
    for target in ["/b", "/chunked"] {
        assert!(host.get(target) == Outcome::Content(content(2500, 1)));
    }
    assert!(host.get("/a") == Outcome::Content(content(2500, 1)));
}

/// The path of a segment that was fetched.
fn path_of(root: &std::path::Path, object: &origin::message::Object, segment: u64) -> PathBuf {
    root.join(&object.directory).join(segment_name(segment))
}

#[test]
fn segments_that_are_missing_or_cut_are_fetched_again_for_the_client_that_notices() {
    let body = content(9500, 3);
    let tag = "\"v\"";
    for is_in_parts in [true, false] {
        let web = Web::new({
            let body = body.clone();
            move |request| {
                if is_in_parts {
                    Reply::in_parts(request, tag, FRESH, &body)
                } else {
                    Reply::ok(&format!("{FRESH}\nETag: {tag}"), &body)
                }
            }
        });
        let root = tempfile::tempdir().unwrap();
        let mut host = Host::new(root.path(), &web.url);
        assert!(host.get("/x") == Outcome::Content(body.clone()));
        let before = web.requests().len();
        let ticket = host.ask("/x");
        let object = host.object(ticket).unwrap();
        fs::remove_file(path_of(root.path(), &object, 3)).unwrap();
        fs::write(path_of(root.path(), &object, 4), "short").unwrap();
        fs::remove_file(path_of(root.path(), &object, 9)).unwrap();
        for segment in [3, 4, 9] {
            host.missing(ticket, segment);
            let answer = Answer::Segment { ticket, segment };
            assert_eq!(host.hear(ticket), answer, "in parts: {is_in_parts}");
            let start = segment as usize * 1000;
            let expected = &body[start..(start + 1000).min(9500)];
            let found = fs::read(path_of(root.path(), &object, segment)).unwrap();
            assert!(found == expected, "{segment}, in parts: {is_in_parts}");
        }
        // One that is there is not fetched again, whatever a host process says.
        host.missing(ticket, 0);
        assert_eq!(host.hear(ticket), Answer::Segment { ticket, segment: 0 });
        let requests = web.requests().len() - before;
        let expected = if is_in_parts { 2 } else { 1 };
        assert_eq!(requests, expected, "in parts: {is_in_parts}");
        // Nor are its neighbours worse for it, and all that is known of it is there after a
        // restart.
        fs::remove_dir_all(root.path().join(&object.directory)).unwrap();
        for segment in 0..10 {
            host.missing(ticket, segment);
            host.hear(ticket);
        }
        host.done(ticket);
        assert!(host.get("/x") == Outcome::Content(body.clone()));
        let before = web.requests().len();
        // Those that one request has brought meanwhile are there again.
        assert!(host.end().origins.damaged_segments >= 4);
        let mut host = Host::new(root.path(), &web.url);
        assert!(host.get("/x") == Outcome::Content(body.clone()));
        assert_eq!(web.requests().len(), before, "in parts: {is_in_parts}");
    }
}

#[test]
fn where_nothing_tells_versions_apart_a_missing_segment_costs_one_response() {
    let web = Web::new(|_| Reply::ok(FRESH, &content(5000, 1)));
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    assert!(host.get("/x") == Outcome::Content(content(5000, 1)));
    let ticket = host.ask("/x");
    let object = host.object(ticket).unwrap();
    fs::remove_file(path_of(root.path(), &object, 2)).unwrap();
    web.answers(|_| Reply::ok(FRESH, &content(5000, 2)));
    host.missing(ticket, 2);
    let status = 503;
    assert_eq!(host.hear(ticket), Answer::Lost { ticket, status });
    assert!(host.get("/x") == Outcome::Content(content(5000, 2)));
}

#[test]
fn what_a_power_failure_has_damaged_is_fetched_again() {
    let body = content(9500, 4);
    let web = Web::new({
        let body = body.clone();
        move |request| Reply::in_parts(request, "\"v\"", FRESH, &body)
    });
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    assert!(host.get("/x") == Outcome::Content(body.clone()));
    let ticket = host.ask("/x");
    let object = host.object(ticket).unwrap();
    host.end();
    fs::write(path_of(root.path(), &object, 5), [0; 1000]).unwrap();
    let mut host = Host::with(origin::Config {
        boot_id: "another".to_owned(),
        ..config(root.path(), &web.url)
    });
    assert!(host.get("/x") == Outcome::Content(body));
    let asked = web.requests().last().unwrap().clone();
    assert_eq!(asked.field("range"), Some("bytes=5000-5999"));
    assert_eq!(host.end().origins.damaged_segments, 1);
}

#[test]
fn a_host_process_that_makes_no_sense_harms_only_itself() {
    let web = Web::new(|_| Reply::ok(FRESH, &content(2500, 1)));
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    host.want(77, 1);
    host.done(77);
    for target in ["", "x", "http://elsewhere.example/"] {
        assert_eq!(host.get(target), Outcome::Refused(503), "{target}");
    }
    let ticket = host.ask("/x");
    host.object(ticket).unwrap();
    host.want(ticket, u64::MAX);
    assert_eq!(host.read(ticket), Outcome::Lost);
    assert!(host.get("/x") == Outcome::Content(content(2500, 1)));
}

#[test]
fn a_redirect_to_more_than_any_client_follows_is_502_and_ends_nothing() {
    let web = Web::new(|request| {
        let bytes = match request.target.as_str() {
            "/long" => 9_000,
            // More than a message can hold, and more than a socket takes.
            "/longer" => 100_000,
            "/longest" => 300_000,
            _ => return Reply::ok(FRESH, &content(100, 1)),
        };
        Reply {
            fields: format!("Location: /{}\r\n", "x".repeat(bytes)),
            ..Reply::status(302)
        }
    });
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    for target in ["/long", "/longer", "/longest"] {
        assert_eq!(host.get(target), Outcome::Refused(502), "{target}");
        assert!(host.get("/fine") == Outcome::Content(content(100, 1)));
    }
}
