//! Names, roots and indices.

use server::{Config, Site};

use crate::lab::{Lab, get};

fn site(names: &[&str], root: &str, index: &[&str]) -> Site {
    Site {
        names: names.iter().map(|name| name.parse().unwrap()).collect(),
        root: root.parse().unwrap(),
        index: index.iter().map(|name| name.parse().unwrap()).collect(),
        ..Site::default()
    }
}

fn lab() -> Lab {
    let mut lab = Lab::with(Config {
        sites: vec![
            site(&[], "default", &["index.html"]),
            site(
                &["a.org", "*.a.org"],
                "a",
                &["index.html", "index.htm", "feed/index.xml"],
            ),
            site(&["b.org"], "", &[]),
        ],
        ..Config::default()
    });
    for path in [
        "default/index.html",
        "default/x",
        "a/index.html",
        "a/x",
        "a/old/index.htm",
        "a/blog/feed/index.xml",
        "x",
    ] {
        lab.file(path, path);
    }
    lab.directory("a/old");
    lab.directory("a/odd/index.html");
    lab.file("a/odd/index.htm", "after a directory");
    lab.fails("a/secret/index.html", libc::EACCES);
    lab.file("a/secret/index.htm", "not for you");
    lab
}

fn ask(lab: &mut Lab, host: &str, target: &str) -> String {
    let client = lab.connect();
    let response = lab.ask(
        client,
        &format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n"),
    );
    match response.status {
        200 => String::from_utf8(response.body).unwrap(),
        status => status.to_string(),
    }
}

#[test]
fn each_name_has_its_root() {
    let mut lab = lab();
    for (host, target, found) in [
        ("a.org", "/x", "a/x"),
        ("A.ORG:8080", "/x", "a/x"),
        ("www.a.org", "/", "a/index.html"),
        ("b.org", "/x", "x"),
        // Its root has the other ones within it.
        ("b.org", "/a/x", "a/x"),
        ("c.org", "/x", "default/x"),
        ("", "/", "default/index.html"),
        ("10.77.0.2", "/x", "default/x"),
        // RFC 9112 §3.2.2: the target's authority counts.
        ("b.org", "http://a.org/x", "a/x"),
        ("a.org", "https://elsewhere/x", "default/x"),
    ] {
        assert_eq!(ask(&mut lab, host, target), found, "{host} {target}");
    }
    let client = lab.connect();
    assert_eq!(
        lab.ask(client, "GET /x HTTP/1.0\r\n\r\n").body,
        b"default/x"
    );
}

#[test]
fn one_connection_may_ask_all_of_them() {
    let mut lab = lab();
    let client = lab.connect();
    let ask = |host| format!("GET /x HTTP/1.1\r\nHost: {host}\r\n\r\n");
    lab.send(client, ask("a.org") + &ask("b.org") + &ask("c.org"));
    for found in ["a/x", "x", "default/x"] {
        assert_eq!(lab.response(client).body, found.as_bytes());
    }
}

#[test]
fn no_site_leads_to_another_one() {
    let mut lab = lab();
    for (target, status) in [
        ("/../a/x", "400"),
        ("/%2e%2e/a/x", "400"),
        ("/y/../../a/x", "400"),
        ("/..%2fa/x", "404"),
    ] {
        assert_eq!(ask(&mut lab, "c.org", target), status, "{target}");
    }
    assert_eq!(lab.opened_paths(), [""; 0]);
}

#[test]
fn the_first_index_that_is_there_is_taken() {
    let mut lab = lab();
    for (target, found) in [
        ("/", "a/index.html"),
        ("/old/", "a/old/index.htm"),
        ("/blog/", "a/blog/feed/index.xml"),
        ("/odd/", "after a directory"),
        ("/none/", "404"),
        // What may not be read is not as if it were not there.
        ("/secret/", "403"),
    ] {
        assert_eq!(ask(&mut lab, "a.org", target), found, "{target}");
    }
    assert_eq!(ask(&mut lab, "b.org", "/"), "404", "it has no index");
    assert_eq!(lab.files_left_open(), 0);
}

#[test]
fn redirects_do_not_tell_where_files_are() {
    let mut lab = lab();
    let client = lab.connect();
    let response = lab.ask(client, "GET /old HTTP/1.1\r\nHost: a.org\r\n\r\n");
    assert_eq!(
        (response.status, response.header("Location")),
        (301, Some("/old/"))
    );
    assert_eq!(lab.ask(client, &get("/x")).body, b"default/x");
}
