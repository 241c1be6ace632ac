//! What is missing is fetched, once, and served while it arrives.

use std::time::Duration;

use origin::message::{Answer, HostRequest, Order};
use testbed::wait;

use crate::host::{Host, Outcome, SEGMENT_BYTES, cached, config};
use testbed::web::{Reply, Web, content};

const FRESH: &str = "Cache-Control: max-age=1000";

#[test]
fn objects_of_all_sizes_come_as_they_are_and_then_from_the_cache() {
    let sizes = [0, 1, 999, 1000, 1001, 2000, 54_321];
    let web = Web::new(|request| {
        let size: usize = request.target[1..].parse().unwrap();
        Reply::ok(FRESH, &content(size, 0))
    });
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    for round in 1..=2 {
        for size in sizes {
            let outcome = host.get(&format!("/{size}"));
            assert!(
                outcome == Outcome::Content(content(size, 0)),
                "{size}, {round}"
            );
        }
    }
    let request = web.requests()[0].clone();
    assert_eq!(request.field("accept-encoding"), Some("identity"));
    assert_eq!(web.requests().len(), sizes.len());
    assert_eq!(host.end().origins.hits, sizes.len() as u64);
    // And after a restart.
    let mut host = Host::new(root.path(), &web.url);
    assert!(host.get("/54321") == Outcome::Content(content(54_321, 0)));
    assert_eq!(web.requests().len(), sizes.len());
}

#[test]
fn a_thousand_who_ask_for_the_same_cost_one_request() {
    let body = content(5500, 1);
    let web = Web::new({
        let body = body.clone();
        move |_| Reply {
            gate_at: Some(2500),
            ..Reply::ok(FRESH, &body)
        }
    });
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    let first = host.ask("/x?y=z");
    let object = host.object(first).unwrap();
    // It is served while it arrives.
    assert!(host.segment(first, &object, 1).unwrap() == body[1000..2000]);
    let mut tickets: Vec<u64> = Vec::new();
    for _ in 0..999 {
        tickets.push(host.ask("/x?y=z"));
        // The socket holds fewer.
        let other = host.object(*tickets.last().unwrap()).unwrap();
        assert_eq!(
            (other.directory, other.tag),
            (object.directory.clone(), object.tag)
        );
    }
    for &ticket in &tickets {
        host.want(ticket, 5);
    }
    web.open_gate();
    for &ticket in &tickets {
        assert_eq!(host.hear(ticket), Answer::Segment { ticket, segment: 5 });
        host.done(ticket);
    }
    assert!(host.segment(first, &object, 5).unwrap() == body[5000..]);
    assert_eq!(web.requests().len(), 1);
    assert_eq!(web.requests()[0].target, "/x?y=z");
    assert_eq!(host.end().origins.requests, 1);
}

#[test]
fn those_who_wait_for_the_head_are_one_request_as_well() {
    let web = Web::new(|_| Reply::default());
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    web.answers(|_| Reply {
        is_chunked: true,
        gate_at: Some(100),
        ..Reply::ok(FRESH, &content(3100, 2))
    });
    // Its length is unknown until it has ended.
    let tickets: Vec<u64> = (0..200).map(|_| host.ask("/live")).collect();
    wait::until(Duration::from_secs(20), "a request", || {
        (!web.requests().is_empty()).then_some(())
    })
    .unwrap();
    web.open_gate();
    for ticket in tickets {
        assert!(host.read(ticket) == Outcome::Content(content(3100, 2)));
    }
    assert_eq!(web.requests().len(), 1);
}

#[test]
fn what_is_asked_for_in_the_middle_is_fetched_first() {
    let body = content(100_000, 3);
    let web = Web::new({
        let body = body.clone();
        move |request| {
            let reply = Reply::in_parts(request, "\"v1\"", FRESH, &body);
            Reply {
                // From the start, it stands still at once.
                gate_at: (reply.status == 200).then_some(1500),
                ..reply
            }
        }
    });
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    let ticket = host.ask("/film");
    let object = host.object(ticket).unwrap();
    for segment in [80, 81, 99, 40, 0] {
        let start = (segment * SEGMENT_BYTES) as usize;
        let bytes = host.segment(ticket, &object, segment).unwrap();
        assert!(bytes == body[start..start + 1000], "{segment}");
    }
    let ranges: Vec<_> = web.requests()[1..].to_vec();
    assert!(
        ranges
            .iter()
            .all(|it| it.field("if-range") == Some("\"v1\""))
    );
    assert_eq!(ranges[0].field("range"), Some("bytes=80000-99999"));
    web.open_gate();
    host.done(ticket);
    assert!(host.get("/film") == Outcome::Content(body));
}

#[test]
fn the_cache_is_bounded_and_what_had_to_go_is_fetched_again() {
    let web = Web::new(|request| {
        let number: u64 = request.target[1..].parse().unwrap();
        Reply::in_parts(request, "\"v\"", FRESH, &content(10_000, number))
    });
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::with(origin::Config {
        bytes_max: 30_000,
        ..config(root.path(), &web.url)
    });
    for round in 0..3 {
        for number in 0..7 {
            let outcome = host.get(&format!("/{number}"));
            assert!(
                outcome == Outcome::Content(content(10_000, number)),
                "{number}, {round}"
            );
        }
    }
    let counters = host.end();
    assert!(counters.cache.cached_bytes <= 30_000, "{counters:?}");
    assert!(counters.cache.evicted_bytes > 0, "{counters:?}");
    assert!(cached(root.path()).1 <= 31_000, "{:?}", cached(root.path()));
}

#[test]
fn one_object_may_be_larger_than_the_cache() {
    let body = content(200_000, 4);
    let web = Web::new({
        let body = body.clone();
        move |request| Reply::in_parts(request, "\"v\"", FRESH, &body)
    });
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::with(origin::Config {
        bytes_max: 30_000,
        ..config(root.path(), &web.url)
    });
    assert!(host.get("/huge") == Outcome::Content(body));
    let counters = host.end();
    assert!(counters.origins.fetched_bytes < 400_000, "{counters:?}");
    assert!(cached(root.path()).1 <= 32_000, "{:?}", cached(root.path()));
}

#[test]
fn what_is_not_waited_for_any_more_is_not_fetched_to_its_end() {
    // More than sockets hold.
    let body = content(16 << 20, 5);
    let web = Web::new(move |request| Reply {
        gate_at: Some(2500),
        ..Reply::in_parts(request, "\"v\"", FRESH, &body)
    });
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    let ticket = host.ask("/x");
    let object = host.object(ticket).unwrap();
    for segment in 0..2 {
        host.segment(ticket, &object, segment).unwrap();
    }
    host.done(ticket);
    // That was heard before it goes on.
    let other = host.ask("/x");
    assert_eq!(host.object(other).unwrap().present, [(0, 2)]);
    host.done(other);
    web.open_gate();
    wait::until(Duration::from_secs(20), "the end", || {
        (web.refused() == 1).then_some(())
    })
    .unwrap();
    assert!(host.end().origins.fetched_bytes < 1 << 20);
}

#[test]
fn what_is_fetched_ahead_ends_when_its_last_reader_leaves() {
    // More than sockets hold, and than is fetched ahead.
    let body = content(16 << 20, 6);
    let web = Web::new(move |request| Reply::in_parts(request, "\"v\"", FRESH, &body));
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    let ticket = host.ask("/x");
    let object = host.object(ticket).unwrap();
    // As far as it has read, so much is fetched ahead.
    let read = (1 << 20) / SEGMENT_BYTES / 4;
    for segment in 0..read {
        host.segment(ticket, &object, segment).unwrap();
    }
    let (mut before, mut same) = (Vec::new(), 0);
    wait::until(Duration::from_secs(20), "as far as it goes", || {
        let other = host.ask("/x");
        let present = host.object(other).unwrap().present;
        host.done(other);
        same = if present == before { same + 1 } else { 0 };
        before = present;
        let is_far = before[0].1 == 2 * read;
        (is_far && same > 20).then_some(())
    })
    .unwrap();
    assert_eq!(web.refused(), 0);
    host.done(ticket);
    wait::until(Duration::from_secs(20), "the end", || {
        (web.refused() == 1).then_some(())
    })
    .unwrap();
    assert_eq!(web.requests().len(), 1);
}

#[test]
fn who_reads_little_makes_little_come() {
    let body = content(16 << 20, 7);
    let web = Web::new({
        let body = body.clone();
        move |request| Reply::in_parts(request, "\"v\"", FRESH, &body)
    });
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::with(origin::Config {
        bytes_max: 1 << 30,
        ..config(root.path(), &web.url)
    });
    let settled = |host: &mut Host, expected: &[(u64, u64)]| {
        wait::until(Duration::from_secs(20), "what is to be there", || {
            let ticket = host.ask("/x");
            let present = host.object(ticket).unwrap().present;
            host.done(ticket);
            let far = present.last().map_or(0, |run| run.1);
            assert!(far <= expected.last().unwrap().1, "{present:?}");
            (present == expected).then_some(())
        })
        .unwrap();
    };
    // A thousand bytes in the middle.
    let ticket = host.ask("/x");
    let object = host.object(ticket).unwrap();
    host.want_to(ticket, 900..901);
    assert_eq!(
        host.hear(ticket),
        Answer::Segment {
            ticket,
            segment: 900
        }
    );
    let requests = web.requests();
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[1].field("range"), Some("bytes=900000-900999"));
    settled(&mut host, &[(900, 901)]);
    host.done(ticket);
    // A client that begins to read all of it, and another one that goes on to its tenth segment.
    let (first, second) = (host.ask("/x"), host.ask("/x"));
    host.object(first).unwrap();
    host.object(second).unwrap();
    assert!(host.segment(first, &object, 0).unwrap() == body[..1000]);
    settled(&mut host, &[(0, 3), (900, 901)]);
    for segment in 0..10 {
        let start = segment as usize * 1000;
        let bytes = host.segment(second, &object, segment).unwrap();
        assert!(bytes == body[start..start + 1000], "{segment}");
    }
    settled(&mut host, &[(0, 20), (900, 901)]);
    host.done(first);
    host.done(second);
    let counters = host.end();
    assert_eq!(counters.origins.fetched_bytes, 21_000, "{counters:?}");
}

#[test]
fn what_is_not_waited_for_any_more_is_not_asked_for() {
    let web = Web::new(|request| match request.target.as_str() {
        "/last" => Reply::ok(FRESH, &content(1500, 1)),
        _ => Reply {
            is_silent: true,
            ..Reply::default()
        },
    });
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    for number in 0..1000 {
        let ticket = host.ask(&format!("/{number}"));
        if number >= 200 {
            host.done(ticket);
        }
    }
    // They wait behind those that have come first, and never get that far.
    for ticket in 1..=200 {
        host.done(ticket);
    }
    assert!(host.get("/last") == Outcome::Content(content(1500, 1)));
    let requests = web.requests();
    let is_late = |target: &str| target[1..].parse::<u32>().is_ok_and(|number| number >= 200);
    assert!(!requests.iter().any(|it| is_late(&it.target)));
}

#[test]
fn an_origin_is_known_by_its_url_whatever_its_place() {
    let [one, other] = [1, 2].map(|seed| {
        Web::new(move |request| Reply::in_parts(request, "\"v\"", FRESH, &content(1500, seed)))
    });
    let root = tempfile::tempdir().unwrap();
    for order in [[&one, &other, &one], [&other, &one, &other]] {
        let mut host = Host::with(origin::Config {
            origins: order.map(|it| it.url.parse().unwrap()).to_vec(),
            ..config(root.path(), &one.url)
        });
        let mut tags = Vec::new();
        for (web, seed) in [(&one, 1), (&other, 2)] {
            let ticket = host.ask_of(&web.url, "/x");
            tags.push(host.object(ticket).unwrap().tag);
            let ticket = host.ask_of(&web.url, "/x");
            assert!(host.read(ticket) == Outcome::Content(content(1500, seed)));
        }
        assert_ne!(tags[0], tags[1], "what has the same tag there has not here");
        host.end();
    }
    assert_eq!([one.requests().len(), other.requests().len()], [1, 1]);
}

#[test]
fn counters_are_reported_by_origin() {
    let [one, other] = [1, 2].map(|seed| Web::new(move |_| Reply::ok(FRESH, &content(1500, seed))));
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::with(origin::Config {
        origins: [&one, &other].map(|it| it.url.parse().unwrap()).to_vec(),
        ..config(root.path(), &one.url)
    });
    for web in [&one, &other, &other] {
        let ticket = host.ask_of(&web.url, "/x");
        host.read(ticket);
    }
    let told = loop {
        let told = host.told();
        let total: u64 = told.iter().map(|(_, counters)| counters.asked).sum();
        if total == 3 {
            break told;
        }
    };
    for (web, hits) in [(&one, 0), (&other, 1)] {
        let of_it = told.iter().find(|(url, _)| *url == web.url).unwrap();
        let (hits_told, bytes) = (of_it.1.hits, of_it.1.fetched_bytes);
        assert_eq!((hits_told, bytes), (hits, 1500));
    }
    let total = host.end();
    assert_eq!(
        (
            total.origins.asked,
            total.origins.hits,
            total.origins.misses
        ),
        (3, 1, 2)
    );
    assert_eq!(
        (total.cache.cached_objects, total.cache.cached_bytes),
        (2, 3000)
    );
}

#[test]
fn an_origin_may_become_known_and_the_cache_smaller_while_it_is_at_work() {
    let [one, other] = [1, 2].map(|seed| {
        Web::new(move |request| Reply::in_parts(request, "\"v\"", FRESH, &content(9000, seed)))
    });
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &one.url);
    assert!(host.get("/x") == Outcome::Content(content(9000, 1)));
    let ticket = host.ask_of(&other.url, "/x");
    assert_eq!(host.read(ticket), Outcome::Refused(503), "it is not known");
    host.order(&Order::Use {
        origins: vec![one.url.clone(), other.url.clone(), "nonsense".to_owned()],
        bytes_max: 20_000,
        variants_max: 16,
        head_bytes_max: 16 << 10,
        fields_max: 128,
    });
    let ticket = host.ask_of(&other.url, "/x");
    assert!(host.read(ticket) == Outcome::Content(content(9000, 2)));
    assert!(host.get("/x") == Outcome::Content(content(9000, 1)));
    let requests = [one.requests().len(), other.requests().len()];
    assert!(requests[0] <= 2 && requests[1] == 1, "{requests:?}");
    assert!(host.end().cache.cached_bytes <= 20_000);
}

#[test]
fn one_that_retires_waits_for_what_the_next_one_could_not_go_on_with() {
    let web = Web::new(|request| match request.target.as_str() {
        "/whole" => Reply {
            gate_at: Some(2500),
            ..Reply::ok(FRESH, &content(5000, 1))
        },
        _ => Reply::in_parts(request, "\"v\"", FRESH, &content(5000, 2)),
    });
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    let [part, whole] = ["/part", "/whole"].map(|target| {
        let ticket = host.ask(target);
        (ticket, host.object(ticket).unwrap())
    });
    host.order(&Order::Retire);
    let (ticket, object) = whole;
    assert!(host.segment(ticket, &object, 1).unwrap() == content(5000, 1)[1000..2000]);
    // This is for the next one, which may know of it.
    let late = [host.ask("/part"), host.ask_of("http://b.example", "/x")];
    host.want(ticket, 4);
    host.segment(part.0, &part.1, 0).unwrap();
    assert!(!host.has_ended());
    web.open_gate();
    assert_eq!(host.hear(ticket), Answer::Segment { ticket, segment: 4 });
    wait::until(Duration::from_secs(20), "its end", || {
        host.has_ended().then_some(())
    })
    .unwrap();
    assert!(host.said_nothing_to(&late));
    let mut next = Host::new(root.path(), &web.url);
    assert!(next.get("/whole") == Outcome::Content(content(5000, 1)));
    assert!(next.get("/part") == Outcome::Content(content(5000, 2)));
    assert!(
        web.requests()
            .iter()
            .filter(|it| it.target == "/whole")
            .count()
            == 1
    );
}

#[test]
fn a_slow_origin_does_not_keep_another_waiting() {
    let slow = Web::new(|_| Reply {
        is_silent: true,
        ..Reply::default()
    });
    let web = Web::new(|_| Reply::ok(FRESH, &content(1500, 1)));
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::with(origin::Config {
        origins: [&slow, &web].map(|it| it.url.parse().unwrap()).to_vec(),
        ..config(root.path(), &web.url)
    });
    for number in 0..300 {
        host.ask(&format!("/{number}"));
    }
    let ticket = host.ask_of(&web.url, "/x");
    assert!(host.read(ticket) == Outcome::Content(content(1500, 1)));
}

#[test]
fn a_cache_that_takes_long_to_read_does_not_hold_up_the_start() {
    let web = Web::new(|_| Reply::ok(FRESH, &content(1500, 1)));
    let root = tempfile::tempdir().unwrap();
    let version = root.path().join("objects/05/0000000000000005");
    std::fs::create_dir_all(&version).unwrap();
    // A reader waits until there is a writer.
    let meta = version.join("meta");
    let (kind, mode) = (rustix::fs::FileType::Fifo, 0o600.into());
    rustix::fs::mknodat(rustix::fs::CWD, &meta, kind, mode, 0).unwrap();
    let mut host = Host::new(root.path(), &web.url);
    host.ready();
    let ticket = host.ask("/x");
    drop(std::fs::OpenOptions::new().write(true).open(&meta).unwrap());
    assert!(host.read(ticket) == Outcome::Content(content(1500, 1)));
}

/// A fetcher after the one that `root` is from.
fn next(root: &std::path::Path, web: &Web) -> Host {
    let host = Host::new(root, &web.url);
    host.ready();
    host
}

#[test]
fn a_fetcher_that_follows_another_goes_on_with_what_is_read_and_asks_no_origin() {
    let body = content(5500, 1);
    for field in [
        "Cache-Control: max-age=0",
        "Cache-Control: max-age=0, must-revalidate",
        // For one client, and that is he who goes on.
        "Cache-Control: no-store",
        "Set-Cookie: a=b",
    ] {
        let web = Web::new({
            let body = body.clone();
            move |request| Reply::in_parts(request, "W/\"whole\"", field, &body)
        });
        let root = tempfile::tempdir().unwrap();
        let mut host = Host::new(root.path(), &web.url);
        let ticket = host.ask("/x");
        let object = host.object(ticket).unwrap();
        assert!(host.segment(ticket, &object, 5).unwrap() == body[5000..]);
        host.end();
        web.answers(|_| Reply::status(500));
        let requests = web.requests().len();
        let mut host = next(root.path(), &web);
        let (again, other) = (
            host.again("/x", &object.directory),
            host.again("/y", &object.directory),
        );
        let nowhere = host.again("/x", "objects/00/0000000000000000");
        host.say(&HostRequest::Settled);
        assert!(
            host.read(again) == Outcome::Content(body.clone()),
            "{field}"
        );
        for ticket in [other, nowhere] {
            assert_eq!(host.read(ticket), Outcome::Lost);
        }
        assert_eq!(web.requests().len(), requests);
        assert_eq!(host.get("/x"), Outcome::Refused(502), "{field}");
        host.end();
    }
}

#[test]
fn what_is_read_of_a_version_that_is_not_the_latest_outlives_its_fetcher() {
    let fields = "Cache-Control: no-cache";
    let web =
        Web::new(move |request| Reply::in_parts(request, "\"v1\"", fields, &content(2500, 1)));
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    assert!(host.get("/x") == Outcome::Content(content(2500, 1)));
    let ticket = host.ask("/x");
    let object = host.object(ticket).unwrap();
    web.answers(move |request| Reply::in_parts(request, "\"v2\"", fields, &content(3500, 2)));
    assert!(host.get("/x") == Outcome::Content(content(3500, 2)));
    host.end();
    let mut host = next(root.path(), &web);
    let again = host.again("/x", &object.directory);
    host.say(&HostRequest::Settled);
    assert!(host.read(again) == Outcome::Content(content(2500, 1)));
    assert!(host.get("/x") == Outcome::Content(content(3500, 2)));
    host.end();
    assert_eq!(
        cached(root.path()),
        (4, 3500),
        "the old one went with its reader"
    );
}

#[test]
fn what_no_client_goes_on_with_and_no_other_may_have_goes() {
    let web = Web::new(|_| Reply::ok("Cache-Control: private", &content(2500, 1)));
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    let ticket = host.ask("/x");
    let object = host.object(ticket).unwrap();
    host.segment(ticket, &object, 2).unwrap();
    host.end();
    let host = next(root.path(), &web);
    host.say(&HostRequest::Settled);
    wait::until(Duration::from_secs(20), "nothing to be left", || {
        (cached(root.path()) == (0, 0)).then_some(())
    })
    .unwrap();
    host.end();
}
