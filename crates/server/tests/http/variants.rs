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

#[test]
fn ranges_are_those_of_the_variant() {
    let mut lab = lab();
    let fields = [("Accept-Encoding", "br"), ("Range", "bytes=1-2")];
    let response = lab.get_with("/style.css", &fields);
    assert_eq!(
        (
            response.status,
            response.header("Content-Range"),
            &response.body[..]
        ),
        (206, Some("bytes 1-2/6"), &b"ro"[..])
    );
    assert_eq!(response.header("Content-Encoding"), Some("br"));
    // A multipart of coded parts would be ambiguous.
    let fields = [("Accept-Encoding", "br"), ("Range", "bytes=0-0,5-5")];
    assert_eq!(lab.get_with("/style.css", &fields).status, 200);
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
