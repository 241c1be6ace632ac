//! Files that lie beside themselves, compressed.

use server::{Coding, Config, Site};

use crate::lab::{Lab, Response, get_with};

fn lab() -> Lab {
    let mut lab = Lab::with(Config {
        sites: vec![Site {
            precompressed: Coding::ALL.into(),
            ..Site::default()
        }],
        ..Config::default()
    });
    for (name, content) in [
        ("style.css", "as it is"),
        ("style.css.br", "brotli"),
        ("style.css.gz", "gzip"),
        ("page.html", "only this"),
        ("clip.mp4", "video"),
        ("clip.mp4.gz", "nonsense"),
        ("gone.js.gz", "gzip"),
        ("index.html", "root"),
        ("index.html.zst", "zstd"),
    ] {
        lab.file_of(name, content, 1);
    }
    lab.directory("dir");
    lab
}

fn accepting(lab: &mut Lab, target: &str, codings: &str) -> Response {
    lab.get_with(target, &[("Accept-Encoding", codings)])
}

#[test]
fn the_client_gets_the_best_variant_that_there_is() {
    let mut lab = lab();
    for (target, codings, coding, body) in [
        (
            "/style.css",
            "gzip, deflate, br, zstd",
            Some("br"),
            "brotli",
        ),
        ("/style.css", "zstd, gzip", Some("gzip"), "gzip"),
        ("/style.css", "gzip;q=1, br;q=0.9", Some("gzip"), "gzip"),
        ("/style.css", "zstd", None, "as it is"),
        ("/style.css", "gzip;q=0", None, "as it is"),
        ("/style.css", "*", Some("br"), "brotli"),
        ("/style.css", "", None, "as it is"),
        ("/page.html", "gzip, br", None, "only this"),
        ("/gone.js", "gzip", Some("gzip"), "gzip"),
        ("/", "gzip, zstd", Some("zstd"), "zstd"),
        ("/", "gzip", None, "root"),
    ] {
        let response = accepting(&mut lab, target, codings);
        assert_eq!(
            (response.status, response.header("Content-Encoding")),
            (200, coding),
            "{target} {codings}"
        );
        assert_eq!(response.body, body.as_bytes());
        assert_eq!(response.header("Vary"), Some("Accept-Encoding"));
    }
    assert_eq!(lab.get("/style.css").body, b"as it is");
    assert_eq!(
        lab.get("/style.css").header("Vary"),
        Some("Accept-Encoding"),
        "caches must know that others get something else"
    );
    assert_eq!(lab.files_left_open(), 0);
}

#[test]
fn the_type_is_that_of_the_file_and_the_tag_that_of_the_variant() {
    let mut lab = lab();
    let plain = lab.get("/style.css");
    let brotli = accepting(&mut lab, "/style.css", "br");
    assert_eq!(
        brotli.header("Content-Type"),
        Some("text/css; charset=utf-8")
    );
    let (plain_tag, tag) = (
        plain.header("ETag").unwrap(),
        brotli.header("ETag").unwrap(),
    );
    assert_ne!(plain_tag, tag);
    let with = |tag: &str, codings: &str| {
        get_with(
            "/style.css",
            &[("If-None-Match", tag), ("Accept-Encoding", codings)],
        )
    };
    let client = lab.connect();
    let known = lab.ask(client, &with(tag, "br"));
    assert_eq!(
        (known.status, known.header("Vary")),
        (304, Some("Accept-Encoding"))
    );
    assert_eq!(lab.ask(client, &with(tag, "gzip")).status, 200);
    assert_eq!(lab.ask(client, &with(plain_tag, "br")).status, 200);
}

#[test]
fn what_is_asked_for_by_its_own_name_is_no_variant() {
    let mut lab = lab();
    let response = lab.get("/style.css.gz");
    assert_eq!(
        (
            response.header("Content-Encoding"),
            response.header("Content-Type")
        ),
        (None, Some("application/gzip"))
    );
}

fn tag(response: &Response) -> String {
    response.header("ETag").expect("a tag").to_owned()
}

#[test]
fn a_range_is_of_the_plain_file_unless_the_client_has_a_part_of_a_variant() {
    let mut lab = lab();
    let plain = tag(&lab.get("/style.css"));
    let gzip = tag(&accepting(&mut lab, "/style.css", "gzip"));
    let brotli = tag(&accepting(&mut lab, "/style.css", "br"));
    let weak = format!("W/{brotli}");
    let date = "Thu, 01 Jan 1970 00:00:00 GMT";
    let both = "br, gzip";
    for (codings, condition, expected) in [
        (both, None, (206, None, "s i")),
        // Chromium's, for a playlist.
        ("gzip, identity;q=1, *;q=0", None, (206, None, "s i")),
        (both, Some(("If-Range", &plain[..])), (206, None, "s i")),
        (both, Some(("If-Range", date)), (206, None, "s i")),
        (both, Some(("If-Range", &brotli)), (206, Some("br"), "rot")),
        (both, Some(("If-Range", &gzip)), (206, Some("gzip"), "zip")),
        (both, Some(("If-Match", &gzip)), (206, Some("gzip"), "zip")),
        ("gzip", Some(("If-Range", &brotli)), (200, None, "as it is")),
        (both, Some(("If-Range", &weak)), (200, Some("br"), "brotli")),
        (both, Some(("If-Range", "\"x\"")), (200, None, "as it is")),
        (both, Some(("If-None-Match", &gzip)), (304, None, "")),
        (both, Some(("If-None-Match", &plain)), (304, None, "")),
        (both, Some(("If-None-Match", "\"x\"")), (206, None, "s i")),
        (
            both,
            Some(("If-None-Match", "\"0000000000000000-gzip\"")),
            (200, Some("gzip"), "gzip"),
        ),
    ] {
        let mut fields = vec![("Accept-Encoding", codings), ("Range", "bytes=1-3")];
        fields.extend(condition);
        let response = lab.get_with("/style.css", &fields);
        let body = String::from_utf8(response.body.clone()).unwrap();
        let coding = response.header("Content-Encoding");
        assert_eq!((response.status, coding, &body[..]), expected, "{fields:?}");
        assert_eq!(response.header("Vary"), Some("Accept-Encoding"));
    }
    // A multipart of coded parts would be ambiguous.
    let fields = [
        ("Accept-Encoding", "br"),
        ("Range", "bytes=0-0,5-5"),
        ("If-Range", &brotli),
    ];
    assert_eq!(lab.get_with("/style.css", &fields).body, b"brotli");
    assert_eq!(lab.files_left_open(), 0);
}

#[test]
fn a_range_that_makes_no_sense_changes_nothing() {
    let mut lab = lab();
    for value in ["bytes=x", "lines=1-2", "bytes=", "bytes=5-1"] {
        let fields = [("Accept-Encoding", "br"), ("Range", value)];
        let response = lab.get_with("/style.css", &fields);
        assert_eq!((response.status, &response.body[..]), (200, &b"brotli"[..]));
    }
    let client = lab.connect();
    let request = "HEAD /style.css HTTP/1.1\r\nHost: h\r\nAccept-Encoding: br\r\n\
        Range: bytes=0-1\r\n\r\n";
    let response = lab.ask(client, request);
    assert_eq!(response.header("Content-Encoding"), Some("br"));
}

/// As wget2 does with `--chunk-size`: the ranges are those of the plain file.
#[test]
fn a_client_that_asks_for_the_length_first_does_not_get_that_of_a_variant() {
    let mut lab = lab();
    let client = lab.connect();
    for (codings, length) in [("br", None), ("zstd", Some("8")), ("", Some("8"))] {
        let request =
            format!("HEAD /style.css HTTP/1.1\r\nHost: h\r\nAccept-Encoding: {codings}\r\n\r\n");
        let response = lab.ask(client, &request);
        assert_eq!(response.header("Content-Length"), length, "{codings}");
        assert_eq!(response.status, 200);
    }
    let length = accepting(&mut lab, "/style.css", "br");
    assert_eq!(length.header("Content-Length"), Some("6"));
}

#[test]
fn where_only_a_variant_is_there_a_range_gets_the_whole_of_it() {
    let mut lab = lab();
    let fields = [("Accept-Encoding", "gzip"), ("Range", "bytes=1-2")];
    let response = lab.get_with("/gone.js", &fields);
    assert_eq!(
        (response.status, response.header("Content-Encoding")),
        (200, Some("gzip"))
    );
    assert_eq!(response.body, b"gzip");
    let with_tag = [fields[0], fields[1], ("If-Range", &tag(&response)[..])];
    let rest = lab.get_with("/gone.js", &with_tag);
    assert_eq!((rest.status, &rest.body[..]), (206, &b"zi"[..]));
    for (codings, status) in [("gzip, identity;q=0", 200), ("br", 404), ("*;q=0", 406)] {
        let fields = [("Accept-Encoding", codings), ("Range", "bytes=1-2")];
        let response = lab.get_with("/gone.js", &fields);
        assert_eq!(response.status, status, "{codings}");
    }
}

/// A cache must not give one client the outcome of another's `Accept-Encoding` (RFC 9110 §12.5.5,
/// RFC 9111 §4.1).
#[test]
fn each_outcome_that_depends_on_codings_says_so() {
    let mut lab = lab();
    lab.fails("secret.css", libc::EACCES);
    let of_plain = tag(&lab.get("/style.css"));
    let vary = Some("Accept-Encoding");
    for (target, fields, status, expected) in [
        ("/gone.js", &[("Accept-Encoding", "gzip")][..], 200, vary),
        ("/gone.js", &[], 404, vary),
        ("/none.js", &[("Accept-Encoding", "gzip")], 404, vary),
        ("/style.css", &[("Accept-Encoding", "*;q=0")], 406, vary),
        ("/style.css", &[("If-None-Match", &of_plain)], 304, vary),
        ("/style.css", &[("If-Match", "\"x\"")], 412, vary),
        ("/style.css", &[("Range", "bytes=99-")], 416, vary),
        ("/secret.css", &[], 403, vary),
        ("/dir", &[], 301, vary),
        ("/dir/", &[], 404, vary),
        // Formats with compression of their own, and targets for which no file is tried.
        ("/none.mp4", &[("Accept-Encoding", "gzip")], 404, None),
        ("/clip.mp4", &[("Range", "bytes=99-")], 416, None),
        ("/%00", &[], 400, None),
    ] {
        let response = lab.get_with(target, fields);
        assert_eq!(response.status, status, "{target} {fields:?}");
        assert_eq!(response.header("Vary"), expected, "{target} {fields:?}");
    }
}

#[test]
fn the_page_of_an_error_says_so_too() {
    let mut lab = Lab::with(Config {
        sites: vec![Site {
            precompressed: vec![Coding::Gzip],
            error_pages: vec![(404.try_into().unwrap(), "404.html".parse().unwrap())],
            ..Site::default()
        }],
        ..Config::default()
    });
    lab.file("404.html", "not there");
    for (target, expected) in [("/a.js", Some("Accept-Encoding")), ("/a.mp4", None)] {
        let response = lab.get(target);
        assert_eq!(
            (response.status, &response.body[..]),
            (404, &b"not there"[..])
        );
        assert_eq!(response.header("Vary"), expected, "{target}");
    }
}

#[test]
fn what_is_compressed_is_not_negotiated() {
    let mut lab = lab();
    for codings in ["gzip", "identity;q=0", "*;q=0"] {
        let response = accepting(&mut lab, "/clip.mp4", codings);
        assert_eq!((response.status, &response.body[..]), (200, &b"video"[..]));
        assert_eq!(
            (response.header("Vary"), response.header("Content-Encoding")),
            (None, None)
        );
    }
    assert_eq!(lab.opened_paths(), ["clip.mp4"; 3]);
}

#[test]
fn who_takes_nothing_that_there_is_gets_406() {
    let mut lab = lab();
    for (target, codings, status) in [
        ("/style.css", "identity;q=0", 406),
        ("/style.css", "*;q=0", 406),
        ("/page.html", "gzip, identity;q=0", 406),
        ("/style.css", "gzip, identity;q=0", 200),
        ("/style.css", "gzip, *;q=0", 200),
    ] {
        let client = lab.connect();
        let request = get_with(target, &[("Accept-Encoding", codings)]);
        assert_eq!(
            lab.ask(client, &request).status,
            status,
            "{target} {codings}"
        );
        assert_eq!(
            lab.ask(client, &request).status,
            status,
            "the connection goes on"
        );
    }
}

#[test]
fn directories_and_failures_are_what_they_are_without_variants() {
    let mut lab = lab();
    lab.fails("busy.css", libc::EMFILE);
    lab.fails("secret.css", libc::EACCES);
    lab.fails("secret.css.br", libc::EACCES);
    for (target, status) in [
        ("/dir", 301),
        ("/missing.css", 404),
        ("/busy.css", 503),
        ("/secret.css", 403),
    ] {
        assert_eq!(
            accepting(&mut lab, target, "gzip, br").status,
            status,
            "{target}"
        );
    }
}

#[test]
fn a_coding_that_is_offered_twice_takes_the_place_of_no_other() {
    let mut lab = Lab::with(Config {
        sites: vec![Site {
            precompressed: vec![Coding::Brotli, Coding::Brotli, Coding::Zstd, Coding::Gzip],
            ..Site::default()
        }],
        ..Config::default()
    });
    lab.file("style.css.gz", "gzip");
    let response = accepting(&mut lab, "/style.css", "br, gzip");
    assert_eq!((response.status, &response.body[..]), (200, &b"gzip"[..]));
    assert_eq!(lab.opened_paths(), ["style.css.br", "style.css.gz"]);
}

#[test]
fn variants_are_looked_for_only_if_told_so() {
    let mut lab = Lab::new();
    lab.file("style.css", "as it is");
    lab.file("style.css.gz", "gzip");
    let response = accepting(&mut lab, "/style.css", "gzip, identity;q=0");
    assert_eq!(
        (response.status, &response.body[..], response.header("Vary")),
        (200, &b"as it is"[..], None)
    );
    assert_eq!(lab.opened_paths(), ["style.css"]);
}
