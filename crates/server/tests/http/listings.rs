//! Directories that have no index and are listed.

use std::num::NonZeroU64;
use std::time::Duration;

use server::{Config, Cors, Pace, Rule, SigningKeys, Site};

use crate::lab::{Lab, Response, get, get_with, head};

const JSON: (&str, &str) = ("Accept", "application/json");

/// RFC 9110 §5.6.7's example, in nanoseconds.
const THEN_NS: i64 = 784_111_777_000_000_000;

fn lab_with(site: Site) -> Lab {
    let mut lab = Lab::with(Config {
        sites: vec![site],
        hidden: Some("cache/objects".parse().unwrap()),
        ..Config::default()
    });
    for (path, bytes) in [
        ("top.txt", 3),
        ("d/b.txt", 1536),
        ("d/a&b.html", 5),
        ("d/sub/deep", 1),
        ("d/another/deep", 1),
        ("d/.hidden", 1),
        ("d/.git/config", 1),
        ("d/.git/objects/1", 1),
        ("d/.git/web/index.html", 4),
        ("indexed/index.html", 7),
        ("indexed/other", 1),
        ("cache/objects/1", 1),
        ("cache/notes", 1),
    ] {
        lab.file_of(path, vec![b'x'; bytes], THEN_NS);
    }
    for path in [
        "d",
        "d/sub",
        "d/another",
        "d/.git",
        "d/.git/objects",
        "indexed",
        "cache",
        "cache/objects",
    ] {
        lab.directory(path);
    }
    lab.directory("empty");
    lab.fails("closed", libc::EACCES);
    lab.fails("closed/index.html", libc::ENOENT);
    lab
}

fn listing() -> Site {
    Site {
        listing: true,
        ..Site::default()
    }
}

fn lab() -> Lab {
    lab_with(listing())
}

/// What links of a page lead to, but for its parent.
fn links(response: &Response) -> Vec<String> {
    assert_eq!(
        response.header("Content-Type"),
        Some("text/html; charset=utf-8")
    );
    let page = String::from_utf8(response.body.clone()).unwrap();
    let links = page.split("href=\"").skip(1);
    let links = links.map(|rest| rest.split('"').next().unwrap().to_owned());
    links.filter(|link| link != "../").collect()
}

fn json(response: &Response) -> serde_json::Value {
    assert_eq!(response.header("Content-Type"), Some("application/json"));
    serde_json::from_slice(&response.body).unwrap()
}

#[test]
fn a_directory_without_an_index_is_listed_if_that_is_asked_for() {
    let mut lab = lab();
    let page = lab.get("/d/");
    assert_eq!(page.status, 200);
    assert_eq!(links(&page), ["another/", "sub/", "a%26b.html", "b.txt"]);
    assert_eq!(page.header("Vary"), Some("Accept"));
    assert_eq!(page.header("Accept-Ranges"), None);
    assert_eq!(page.header("Listing-Truncated"), None);
    let text = String::from_utf8(page.body).unwrap();
    assert!(
        text.contains("<bdi>a&amp;b.html</bdi>") && text.contains("href=\"../\""),
        "{text}"
    );
    assert!(
        text.contains("1.5 KiB") && text.contains("1994-11-06 08:49"),
        "{text}"
    );

    assert_eq!(links(&lab.get("/empty/")), [""; 0]);
    assert_eq!(lab.get("/d").status, 301);
    let mut silent = lab_with(Site::default());
    assert_eq!(silent.get("/d/").status, 404);
    assert_eq!(silent.listed(), []);
}

#[test]
fn the_root_has_no_parent_and_hides_what_is_hidden() {
    let mut lab = lab();
    let page = lab.get("/");
    assert_eq!(
        links(&page),
        ["cache/", "closed/", "d/", "empty/", "indexed/", "top.txt"]
    );
    assert!(!String::from_utf8(page.body).unwrap().contains("../"));
    assert_eq!(links(&lab.get("/cache/")), ["notes"]);
    for target in ["/cache/objects/", "/cache/objects/1/"] {
        assert_eq!(lab.get(target).status, 404, "{target}");
    }
    let asked = lab.listed();
    assert!(
        asked.iter().all(|(path, _)| !path.starts_with("cache/")),
        "{asked:?}"
    );
}

#[test]
fn what_lies_below_a_name_with_a_dot_is_not_listed() {
    let mut lab = lab();
    for target in [
        "/d/.git/",
        "/d/%2egit/",
        "/d/.git/objects/",
        "/d/.git/objects/..",
        "/d/.git/objects/../../.git/",
    ] {
        assert_eq!(lab.get(target).status, 404, "{target}");
    }
    assert_eq!(lab.listed(), []);
    assert_eq!(lab.get("/d/.git/config").status, 200, "its name is known");
    assert_eq!(lab.get("/d/.git/web/").status, 200, "there is an index");
    assert_eq!(links(&lab.get("/d/.git/../")).len(), 4);
}

#[test]
fn who_prefers_json_gets_what_nginx_would_say() {
    let mut lab = lab();
    let then = "Sun, 06 Nov 1994 08:49:37 GMT";
    let answer = lab.get_with("/d/", &[JSON]);
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("Vary"), Some("Accept"));
    let epoch = "Thu, 01 Jan 1970 00:00:00 GMT";
    let expected = serde_json::json!([
        { "name": "another", "type": "directory", "mtime": epoch },
        { "name": "sub", "type": "directory", "mtime": epoch },
        { "name": "a&b.html", "type": "file", "mtime": then, "size": 5 },
        { "name": "b.txt", "type": "file", "mtime": then, "size": 1536 },
    ]);
    assert_eq!(json(&answer), expected);
}

#[test]
fn an_index_comes_before_a_listing() {
    let mut lab = lab();
    let answer = lab.get("/indexed/");
    assert_eq!((answer.status, &answer.body[..]), (200, &b"xxxxxxx"[..]));
    assert_eq!(answer.header("Vary"), None);
    assert_eq!(lab.listed(), []);
    let mut without = lab_with(Site {
        index: Vec::new(),
        ..listing()
    });
    assert_eq!(links(&without.get("/indexed/")), ["index.html", "other"]);
}

#[test]
fn what_is_no_directory_or_must_not_be_read_is_not_listed() {
    let mut lab = lab();
    for (target, status) in [
        ("/nothing/", 404),
        ("/nothing", 404),
        ("/top.txt/", 404),
        ("/closed/", 403),
    ] {
        assert_eq!(lab.get(target).status, status, "{target}");
    }
    lab.fails("indexed/index.html", libc::EACCES);
    assert_eq!(lab.get("/indexed/").status, 403, "there is an index");
}

#[test]
fn head_tells_what_get_would_bring() {
    let mut lab = lab();
    let client = lab.connect();
    let page = lab.ask(client, &get("/d/"));
    let told = lab.ask(client, &head("/d/"));
    assert_eq!((told.status, &told.body[..]), (200, &b""[..]));
    assert_eq!(told.headers, page.headers);
    let length = page.header("Content-Length").unwrap();
    assert_eq!(length, page.body.len().to_string());
}

#[test]
fn tags_are_of_what_is_listed_and_conditions_are_judged_by_them() {
    let mut lab = lab();
    let tag = |response: &Response| response.header("ETag").unwrap().to_owned();
    let (page, data) = (lab.get("/d/"), lab.get_with("/d/", &[JSON]));
    assert_ne!(tag(&page), tag(&data));
    assert!(tag(&page).starts_with('"'), "a strong one");
    let known = ("If-None-Match", &*tag(&page));
    let answer = lab.get_with("/d/", &[known]);
    assert_eq!(answer.status, 304);
    assert_eq!(answer.header("Vary"), Some("Accept"));
    assert_eq!(tag(&answer), tag(&page));
    assert_eq!(lab.get_with("/d/", &[known, JSON]).status, 200);
    assert_eq!(lab.get_with("/d/", &[("If-Match", "\"x\"")]).status, 412);
    let since = ("If-Modified-Since", "Sun, 06 Nov 2033 08:49:37 GMT");
    assert_eq!(
        lab.get_with("/d/", &[since]).status,
        200,
        "there is no date"
    );
    let whole = lab.get_with("/d/", &[("Range", "bytes=0-9")]);
    assert_eq!((whole.status, &whole.body), (200, &page.body));

    lab.file_of("d/new", "", THEN_NS);
    let answer = lab.get_with("/d/", &[known]);
    assert_eq!(answer.status, 200);
    assert_ne!(tag(&answer), tag(&page));
}

#[test]
fn links_lead_where_they_should_however_the_directory_was_named() {
    let mut lab = lab();
    for (target, location) in [
        ("/d/sub/..", Some("/d/")),
        ("/d/sub/%2e%2E?q=1", Some("/d/?q=1")),
        ("/d/.", Some("/d/")),
        ("/d/..", Some("/")),
        ("/d//sub/../?q", None),
        ("http://any.host", None),
    ] {
        let answer = lab.get(target);
        let expected = if location.is_some() { 301 } else { 200 };
        assert_eq!(answer.status, expected, "{target}");
        assert_eq!(answer.header("Location"), location, "{target}");
    }
}

#[test]
fn rules_say_where_and_how() {
    let mut keys = SigningKeys::default();
    keys.add("k", b"0123456789abcdef").unwrap();
    let mut lab = lab_with(Site {
        rules: vec![
            Rule {
                listing: Some(true),
                cache_control: Some("max-age=5".parse().unwrap()),
                cors: Some(Cors::these(&["https://a.org"], false).unwrap()),
                ..Rule::new("/d/".parse().unwrap())
            },
            Rule {
                listing: Some(true),
                signed: Some(keys),
                ..Rule::new("/indexed/*".parse().unwrap())
            },
        ],
        index: Vec::new(),
        ..Site::default()
    });
    let answer = lab.get("/d/");
    assert_eq!(links(&answer).len(), 4);
    assert_eq!(answer.header("Cache-Control"), Some("max-age=5"));
    let vary: Vec<_> = answer
        .headers
        .iter()
        .filter(|(name, _)| name == "Vary")
        .collect();
    let values: Vec<_> = vary.iter().map(|(_, value)| value.as_str()).collect();
    assert_eq!(values, ["Origin", "Accept"]);
    assert_eq!(lab.get("/d/sub/").status, 404, "the site lists nothing");
    assert_eq!(lab.get("/indexed/").status, 403, "it is not signed");

    let mut other = lab_with(Site {
        rules: vec![Rule {
            listing: Some(false),
            ..Rule::new("/d/*".parse().unwrap())
        }],
        ..listing()
    });
    assert_eq!([other.get("/d/").status, other.get("/").status], [404, 200]);
}

#[test]
fn many_entries_come_in_parts_and_in_order() {
    let mut lab = lab();
    lab.list_in_parts_of(7);
    let names: Vec<String> = (0..1000).map(|number| format!("{number:04}")).collect();
    for name in &names {
        lab.file(&format!("many/{name}"), "");
    }
    assert_eq!(links(&lab.get("/many/")), names);
    assert_eq!(lab.listed().len(), 1000_usize.div_ceil(7));
}

#[test]
fn a_directory_that_changes_meanwhile_is_read_again_but_not_for_ever() {
    for (changes, begins) in [(1, 2), (2, 3), (3, 4), (20, 4)] {
        let mut lab = lab();
        lab.list_in_parts_of(1);
        lab.directory_changes(changes);
        let page = lab.get("/d/");
        assert_eq!(links(&page), ["another/", "sub/", "a%26b.html", "b.txt"]);
        let asked = lab.listed();
        let begun = asked.iter().filter(|(_, is_first)| *is_first).count();
        assert_eq!(begun, begins, "{changes} changes");
    }
}

#[test]
fn a_listing_whose_nic_stack_is_gone_is_begun_again_elsewhere() {
    let mut lab = lab();
    lab.list_in_parts_of(1);
    lab.listing_is_lost(3);
    assert_eq!(links(&lab.get("/d/")).len(), 4);
    lab.listing_is_lost(4);
    assert_eq!(lab.get("/d/").status, 503);
    assert_eq!(lab.get("/d/").status, 200);
}

#[test]
fn one_listing_after_another_and_files_between_them_leave_a_connection_in_order() {
    let mut lab = lab();
    let client = lab.connect();
    let requests = [
        get("/d/"),
        get("/top.txt"),
        get_with("/", &[JSON]),
        get("/d/b.txt"),
    ];
    lab.send(client, requests.concat());
    let answers = [(); 4].map(|()| lab.response(client));
    assert_eq!(links(&answers[0]).len(), 4);
    assert_eq!(answers[1].body, b"xxx");
    assert_eq!(json(&answers[2]).as_array().unwrap().len(), 6);
    assert_eq!(answers[3].body.len(), 1536);
    assert_eq!(lab.files_left_open(), 0);
}

#[test]
fn who_gives_up_amid_a_listing_leaves_nothing_behind() {
    let mut lab = Lab::logging(Config {
        sites: vec![listing()],
        ..Config::default()
    });
    lab.file("d/a", "");
    lab.hold_lists();
    let client = lab.connect();
    lab.send(client, get("/d/"));
    lab.reset(client);
    let mut statuses = Vec::new();
    lab.records(|record| statuses.push((record.status, record.body_bytes)));
    assert_eq!(statuses, [(server::NO_RESPONSE, 0)]);
}

#[test]
fn a_listing_is_noted_like_any_other_response() {
    let mut lab = Lab::logging(Config {
        sites: vec![listing()],
        ..Config::default()
    });
    lab.file("d/a", "");
    let length = lab.get("/d/").body.len() as u64;
    let mut records = Vec::new();
    lab.records(|record| {
        let line = String::from_utf8_lossy(record.request_line).into_owned();
        records.push((
            line,
            record.status,
            record.body_bytes,
            record.offloaded_bytes,
        ));
    });
    let line = "GET /d/ HTTP/1.1".to_owned();
    assert_eq!(records, [(line, 200, length, 0)]);
}

#[test]
fn a_nic_stack_that_does_not_answer_leads_to_503() {
    let config = Config::default();
    let mut lab = lab();
    lab.hold_lists();
    let client = lab.connect();
    lab.send(client, get("/d/"));
    lab.pass(config.stall_timeout + config.stall_timeout / 4 + Duration::from_millis(1));
    assert_eq!(lab.response(client).status, 503);
    assert_eq!(lab.counters().open_timeouts, 1);
}

/// Entries whose names are as long as they can be, so that a page is as large as it gets.
fn long_names(lab: &mut Lab, count: usize) {
    for number in 0..count {
        lab.file(&format!("long/{number:0>250}"), "");
    }
    lab.list_in_parts_of(usize::MAX);
}

#[test]
fn who_does_not_take_what_he_asks_for_cannot_make_the_server_hold_ever_more() {
    let mut lab = lab();
    lab.without_twin();
    long_names(&mut lab, 4000);
    let slow: Vec<_> = (0..40)
        .map(|_| {
            let client = lab.connect();
            lab.limit_queue(client, 300);
            lab.acknowledges(client, false);
            lab.send(client, get("/long/"));
            client
        })
        .collect();
    assert_eq!(lab.get("/long/").status, 503);
    assert_eq!(lab.get("/d/b.txt").status, 200);
    for client in slow {
        lab.reset(client);
    }
    assert_eq!(lab.get("/long/").status, 200);
}

#[test]
fn entries_beyond_the_limit_are_left_out_and_the_listing_says_so() {
    let mut lab = lab();
    lab.list_in_parts_of(usize::MAX);
    for number in 1..=10_000 {
        lab.file(&format!("many/{number:05}"), "");
    }
    let whole = lab.get_with("/many/", &[JSON]);
    assert_eq!(whole.header("Listing-Truncated"), None);
    // The last that the file system has.
    lab.file("many/00000", "");
    let answer = lab.get_with("/many/", &[JSON]);
    assert_eq!(answer.header("Listing-Truncated"), Some("10000"));
    assert_eq!(json(&answer).as_array().unwrap().len(), 10_000);
    assert!(answer.body == whole.body);
    assert_ne!(answer.header("ETag"), whole.header("ETag"));
    let page = lab.get("/many/");
    assert_eq!(page.header("Listing-Truncated"), Some("10000"));
    assert_eq!(links(&page).len(), 10_000);
}

#[test]
fn a_listing_is_sent_no_faster_than_files() {
    let bytes_per_second = NonZeroU64::new(50_000).unwrap();
    let mut lab = lab_with(Site {
        rules: vec![Rule {
            pace: Some(Pace {
                bytes_per_second,
                at_once_bytes: 0,
            }),
            ..Rule::new("/d/*".parse().unwrap())
        }],
        ..listing()
    });
    let client = lab.connect();
    assert_eq!(lab.ask(client, &get("/d/")).status, 200);
    assert_eq!(lab.rate_max(client), Some(50_000));
}
