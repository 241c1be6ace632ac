//! What hangs on the scheme and the version of a request.

use server::{Config, HttpVersion, Rule, Scheme, Site};

use crate::carriers::{CARRIERS, Carrier, ask};
use crate::lab::Lab;

fn rule(pattern: &str) -> Rule {
    Rule::new(pattern.parse().unwrap())
}

/// A server of one site, which takes HTTP/2 without TLS as well.
fn lab(site: Site) -> Lab {
    let mut lab = Lab::alone(Config {
        sites: vec![site],
        http2_prior_knowledge: true,
        ..Config::default()
    });
    lab.file_of("index.html", "index", 1);
    lab.file_of("a.css", "style", 1);
    lab
}

const GET: [&str; 3] = ["GET", "example.org", "/a.css"];

#[test]
fn the_connection_decides_which_rules_apply() {
    let marked = |mark: &'static str, scheme, versions: &[HttpVersion]| Rule {
        cache_control: Some(mark.parse().unwrap()),
        scheme,
        versions: versions.iter().copied().collect(),
        ..rule("*.css")
    };
    use HttpVersion::{Http1, Http2, Http3};
    let rules = vec![
        marked("plain", Some(Scheme::Http), &[Http1, Http3]),
        marked("late", None, &[Http3]),
        marked("secure", Some(Scheme::Https), &[Http1, Http2, Http3]),
        marked("rest", None, &HttpVersion::ALL),
    ];
    let mut lab = lab(Site {
        rules,
        ..Site::default()
    });
    let marks = CARRIERS.map(|carrier| {
        let response = ask(&mut lab, carrier, GET, &[]);
        assert_eq!((response.status, &response.body[..]), (200, &b"style"[..]));
        response.header("Cache-Control").unwrap().to_owned()
    });
    assert_eq!(marks, ["plain", "secure", "rest", "secure", "late"]);
    for carrier in CARRIERS {
        let other = ask(&mut lab, carrier, ["GET", "example.org", "/"], &[]);
        assert_eq!((other.status, other.header("Cache-Control")), (200, None));
    }
}

#[test]
fn http_1_0_is_a_request_of_http_1_1_to_rules() {
    let mut lab = lab(Site {
        rules: vec![Rule {
            cache_control: Some("old".parse().unwrap()),
            versions: [HttpVersion::Http1].into_iter().collect(),
            ..rule("*")
        }],
        ..Site::default()
    });
    let stream = lab.connect();
    let response = lab.ask(stream, "GET /a.css HTTP/1.0\r\n\r\n");
    assert_eq!(response.header("Cache-Control"), Some("old"));
    let carrier = Carrier(HttpVersion::Http2, Scheme::Http);
    let response = ask(&mut lab, carrier, GET, &[]);
    assert_eq!(response.header("Cache-Control"), None);
}
