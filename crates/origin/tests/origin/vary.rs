//! Variants of a target: which fields of the request select an answer (RFC 9111 §4.1).

use std::collections::HashSet;
use std::time::Duration;

use testbed::wait;
use testbed::web::{Reply, Request, Web, content};

use crate::host::{Host, Outcome, cached};

const FRESH: &str = "Cache-Control: max-age=100";

/// Selecting fields of a request.
type Fields<'a> = &'a [(&'a str, &'a str)];

const NONE: Fields<'_> = &[];
const A: Fields<'_> = &[("origin", "https://a.example")];
const B: Fields<'_> = &[("origin", "https://b.example")];

/// Content for each value of a field.
fn by(request: &Request, name: &str) -> Vec<u8> {
    let value = request.field(name).unwrap_or_default();
    let number = value.bytes().fold(7, |sum, byte| {
        u64::from(byte).wrapping_add(31u64.wrapping_mul(sum))
    });
    content(1500 + value.len(), number)
}

/// What [`by`] gives for these fields.
fn expected(fields: Fields<'_>) -> Vec<u8> {
    let value = fields.first().map_or("", |(_, value)| value);
    let number = value.bytes().fold(7, |sum, byte| {
        u64::from(byte).wrapping_add(31u64.wrapping_mul(sum))
    });
    content(1500 + value.len(), number)
}

/// An origin that answers by `Origin`, and says so.
fn by_origin() -> Web {
    Web::new(|request| {
        let fields = format!("{FRESH}\nVary: Origin");
        Reply::in_parts(request, "\"one\"", &fields, &by(request, "origin"))
    })
}

#[track_caller]
fn check(host: &mut Host, target: &str, fields: Fields<'_>) {
    let found = host.get_with(target, fields);
    assert!(
        found == Outcome::Content(expected(fields)),
        "{target} for {fields:?}"
    );
}

#[test]
fn each_variant_is_fetched_once_and_given_to_those_who_select_it() {
    let web = by_origin();
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    for fields in [A, B, NONE, A, B, NONE] {
        check(&mut host, "/x", fields);
    }
    // The first request is without the field: nothing had said yet that it selects.
    let sent: Vec<_> = web.requests();
    let sent: Vec<_> = sent.iter().map(|it| it.field("origin")).collect();
    assert_eq!(
        sent,
        [None, Some("https://a.example"), Some("https://b.example")]
    );
    // Of another target it is assumed.
    for _ in 0..2 {
        check(&mut host, "/y", A);
    }
    assert_eq!(web.requests().len(), 4);
    let tags: HashSet<u64> = [A, B, NONE]
        .map(|fields| {
            let ticket = host.ask_for("/x", fields);
            let tag = host.object(ticket).unwrap().tag;
            host.done(ticket);
            tag
        })
        .into();
    assert_eq!(tags.len(), 3, "the origin has one tag for all variants");
    assert_eq!(host.end().origins.passed, 0);
}

#[test]
fn variants_differ_among_requests_that_wait_for_one_answer() {
    let web = by_origin();
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    let fields = [A, B, NONE, B, A, NONE];
    let tickets = fields.map(|fields| (host.ask_for("/x", fields), fields));
    for (ticket, fields) in tickets {
        assert!(host.read(ticket) == Outcome::Content(expected(fields)));
        host.done(ticket);
    }
    assert_eq!(web.requests().len(), 3);
}

#[test]
fn variants_outlive_the_fetcher() {
    let web = by_origin();
    let root = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let mut host = Host::new(root.path(), &web.url);
        for fields in [A, B, NONE] {
            check(&mut host, "/x", fields);
        }
        host.end();
    }
    assert_eq!(web.requests().len(), 3);
}

/// Some origins name a field only where the request has it.
#[test]
fn a_field_that_has_selected_once_is_not_forgotten() {
    let web = Web::new(|request| {
        let vary = match request.field("origin") {
            Some(_) => "\nVary: Origin",
            None => "",
        };
        Reply::ok(&format!("{FRESH}{vary}"), &by(request, "origin"))
    });
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    // Another target of the origin shows that it selects.
    web.answers(|request| Reply::ok(&format!("{FRESH}\nVary: Origin"), &by(request, "origin")));
    check(&mut host, "/other", A);
    web.answers(|request| {
        let vary = match request.field("origin") {
            Some(_) => "\nVary: Origin",
            None => "",
        };
        Reply::ok(&format!("{FRESH}{vary}"), &by(request, "origin"))
    });
    for fields in [A, NONE, B, A, NONE] {
        check(&mut host, "/x", fields);
    }
}

#[test]
fn of_fields_that_are_never_sent_no_answer_depends() {
    for vary in ["Cookie, User-Agent", "Accept-Encoding", "X-Y"] {
        let web = Web::new(move |_| {
            let fields = format!("{FRESH}\nVary: {vary}");
            Reply::ok(&fields, &content(1500, 3))
        });
        let root = tempfile::tempdir().unwrap();
        let mut host = Host::new(root.path(), &web.url);
        for fields in [A, NONE, &[("cookie", "a=b")]] {
            assert!(host.get_with("/x", fields) == Outcome::Content(content(1500, 3)));
        }
        assert_eq!(web.requests().len(), 1, "{vary}");
        assert!(web.requests()[0].field("cookie").is_none());
    }
}

#[test]
fn a_target_that_does_not_vary_is_one_object_beside_others_that_do() {
    let web = Web::new(|request| match request.target.as_str() {
        "/varies" => Reply::ok(&format!("{FRESH}\nVary: Origin"), &by(request, "origin")),
        "/missing" => Reply {
            fields: format!("{FRESH}\r\n"),
            ..Reply::status(404)
        },
        _ => Reply::ok(FRESH, &content(1500, 9)),
    });
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    check(&mut host, "/varies", A);
    let before = web.requests().len();
    for fields in [A, B, NONE, A, B] {
        assert!(host.get_with("/same", fields) == Outcome::Content(content(1500, 9)));
    }
    assert_eq!(web.requests().len(), before + 1);
    for fields in [A, B, NONE] {
        assert!(matches!(
            host.get_with("/missing", fields),
            Outcome::Refused(_)
        ));
    }
    assert_eq!(web.requests().len(), before + 2);
}

#[test]
fn a_variant_is_revalidated_and_fetched_in_parts_with_its_own_fields() {
    let web = Web::new(|request| {
        let tag = format!("\"{}\"", request.field("accept-language").unwrap_or("-"));
        let fields = "Cache-Control: no-cache\nVary: Accept-Language";
        Reply::in_parts(request, &tag, fields, &by(request, "accept-language"))
    });
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    for language in ["de", "fr", "de", "fr"] {
        check(&mut host, "/x", &[("accept-language", language)]);
    }
    for request in web.requests() {
        if let Some(condition) = request.field("if-none-match") {
            let language = request.field("accept-language").unwrap();
            assert_eq!(condition, format!("\"{language}\""));
        }
    }
    assert_eq!(host.end().origins.revalidated, 2);
}

/// A failure says nothing of fields, and what other targets vary by is no more than assumed until
/// the origin answers.
#[test]
fn a_target_that_has_failed_first_is_one_object_if_it_does_not_vary() {
    let web =
        Web::new(|request| Reply::ok(&format!("{FRESH}\nVary: Origin"), &by(request, "origin")));
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    check(&mut host, "/varies", A);
    web.answers(|_| Reply::status(503));
    assert!(matches!(host.get_with("/same", A), Outcome::Refused(_)));
    web.answers(|_| Reply::ok(FRESH, &content(1500, 9)));
    let same = |outcome| outcome == Outcome::Content(content(1500, 9));
    wait::until(Duration::from_secs(20), "the origin's answer", || {
        same(host.get_with("/same", A)).then_some(())
    })
    .unwrap();
    let before = web.requests().len();
    for fields in [A, B, NONE] {
        assert!(same(host.get_with("/same", fields)));
    }
    assert_eq!(web.requests().len(), before);
}

/// An origin whose latest answer names fewer fields than those before.
#[test]
fn names_that_keys_are_made_of_outlive_the_fetcher() {
    let web = Web::new(|request| {
        let vary = match request.field("origin") {
            Some(_) => "Origin, Accept-Language",
            None => "Accept-Language",
        };
        let fields = format!("{FRESH}\nVary: {vary}");
        Reply::ok(&fields, &by(request, "accept-language"))
    });
    let root = tempfile::tempdir().unwrap();
    let fields = [("accept-language", "de"), ("origin", "https://a.example")];
    let mut requests = 0;
    for _ in 0..2 {
        let mut host = Host::new(root.path(), &web.url);
        let expected = Outcome::Content(expected(&[("accept-language", "de")]));
        assert!(host.get_with("/x", &fields) == expected);
        host.end();
        requests = requests.max(web.requests().len());
    }
    assert_eq!(web.requests().len(), requests);
    assert!(requests <= 2, "{requests}");
}

/// Each answer names the field that the request lacks, and may not be kept.
#[test]
fn an_answer_that_names_another_field_each_time_is_given_in_the_end() {
    let web = Web::new(|request| {
        let vary = match (request.field("accept"), request.field("origin")) {
            (Some(_), Some(_)) | (None, None) => "Accept",
            (Some(_), None) => "Origin",
            (None, Some(_)) => "Accept",
        };
        let fields = format!("Cache-Control: private\nVary: {vary}");
        Reply::ok(&fields, &content(1500, 3))
    });
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    let fields = [("accept", "a"), ("origin", "b")];
    assert!(host.get_with("/x", &fields) == Outcome::Content(content(1500, 3)));
    assert!(web.requests().len() <= 3);
}

#[test]
fn of_too_many_variants_the_one_goes_that_was_asked_for_least_recently() {
    let web = by_origin();
    let root = tempfile::tempdir().unwrap();
    let mut host = Host::new(root.path(), &web.url);
    let origins: Vec<String> = (0..40).map(|number| format!("https://{number}")).collect();
    check(&mut host, "/x", NONE);
    for origin in &origins {
        check(&mut host, "/x", &[("origin", origin)]);
        check(&mut host, "/x", A);
    }
    let counters = host.end();
    // 40 of these, the one that is asked for again and again, and the one without the field.
    assert_eq!(counters.origins.evicted_variants, 42 - 16);
    // Two segments each.
    assert_eq!(cached(root.path()).0, 2 * 16);
    assert_eq!(web.requests().len(), 42);
}
