//! What hangs on the scheme and the version of a request.

use std::num::NonZeroU16;
use std::time::Duration;

use server::{Config, ExtraField, Hsts, HttpVersion, Redirect, Rule, Scheme, Site};

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

/// A redirect to `https`, as a configuration puts it behind the rules for `http`.
fn to_https(port: u16) -> Rule {
    Rule {
        scheme: Some(Scheme::Http),
        redirect: Redirect::to_https(308, NonZeroU16::new(port).unwrap()).ok(),
        ..rule("*")
    }
}

/// Covers: RFC 9110 §15.4.9
#[test]
fn http_is_redirected_to_https_at_the_same_host_and_target() {
    let challenges = Rule {
        scheme: Some(Scheme::Http),
        ..rule("/.well-known/acme-challenge/*")
    };
    for (port, shown) in [(443, ""), (8443, ":8443")] {
        let mut lab = lab(Site {
            rules: vec![challenges.clone(), to_https(port)],
            ..Site::default()
        });
        lab.file_of(".well-known/acme-challenge/token", "proof", 1);
        for carrier in CARRIERS {
            let request = ["GET", "a.org:80", "/a.css?x=%20&y"];
            let response = ask(&mut lab, carrier, request, &[]);
            if carrier.1 == Scheme::Https {
                assert_eq!(response.status, 200, "{carrier:?}");
                assert_eq!(response.header("Location"), None);
                continue;
            }
            let location = format!("https://a.org{shown}/a.css?x=%20&y");
            assert_eq!(response.status, 308, "{carrier:?}");
            assert_eq!(response.header("Location"), Some(&location[..]));
            let head = ask(&mut lab, carrier, ["HEAD", "[fd00::1]", "/none/"], &[]);
            let location = format!("https://[fd00::1]{shown}/none/");
            assert_eq!(head.header("Location"), Some(&location[..]));
            let request = ["GET", "a.org", "/.well-known/acme-challenge/token"];
            let proof = ask(&mut lab, carrier, request, &[]);
            assert_eq!((proof.status, &proof.body[..]), (200, &b"proof"[..]));
        }
    }
}

#[test]
fn a_request_without_a_host_is_redirected_to_the_name_of_the_site() {
    for (names, expected) in [
        (&["*.b.org", "a.org"][..], (308, Some("https://a.org/x"))),
        (&["*.b.org"], (400, None)),
    ] {
        let mut lab = lab(Site {
            names: names.iter().map(|name| name.parse().unwrap()).collect(),
            rules: vec![to_https(443)],
            ..Site::default()
        });
        let stream = lab.connect();
        let response = lab.ask(stream, "GET /x HTTP/1.0\r\n\r\n");
        assert_eq!((response.status, response.header("Location")), expected);
    }
}

fn hsts() -> Hsts {
    Hsts {
        max_age: Duration::from_secs(60),
        include_subdomains: true,
        preload: false,
    }
}

/// Covers: RFC 6797 §7.1, RFC 6797 §7.2
#[test]
fn strict_transport_security_comes_with_every_response_over_tls_alone() {
    let mut lab = lab(Site {
        hsts: Some(hsts()),
        rules: vec![Rule {
            redirect: Redirect::new(302, "/a.css").ok(),
            ..rule("/moved")
        }],
        error_pages: vec![(http::StatusCode::FORBIDDEN, "a.css".parse().unwrap())],
        ..Site::default()
    });
    lab.fails("secret", libc::EACCES);
    lab.directory("below");
    for carrier in CARRIERS {
        let expected = (carrier.1 == Scheme::Https).then_some("max-age=60; includeSubDomains");
        for ([method, target], fields, status) in [
            (["GET", "/a.css"], &[][..], 200),
            (["HEAD", "/a.css"], &[], 200),
            (["GET", "/a.css"], &[("range", "bytes=1-2")], 206),
            (["GET", "/a.css"], &[("range", "bytes=90-")], 416),
            (["GET", "/a.css"], &[("if-none-match", "*")], 304),
            (["GET", "/a.css"], &[("if-match", "\"x\"")], 412),
            (["GET", "/moved"], &[], 302),
            (["GET", "/below"], &[], 301),
            (["GET", "/none"], &[], 404),
            (["GET", "/secret"], &[], 403),
            (["POST", "/a.css"], &[], 405),
            (["OPTIONS", "/a.css"], &[], 204),
        ] {
            let request = [method, "example.org", target];
            let response = ask(&mut lab, carrier, request, fields);
            assert_eq!(response.status, status, "{carrier:?} {target}");
            let found = response.header("Strict-Transport-Security");
            assert_eq!(found, expected, "{carrier:?} {status}");
        }
    }
}

/// Covers: RFC 6797 §7.2
#[test]
fn a_field_of_a_rule_is_not_sent_without_tls_either() {
    let of_rule = ExtraField::new("Strict-Transport-Security", "max-age=1").unwrap();
    let mut lab = lab(Site {
        rules: vec![Rule {
            fields: vec![of_rule, ExtraField::new("A", "b").unwrap()],
            ..rule("*")
        }],
        ..Site::default()
    });
    for carrier in CARRIERS {
        let response = ask(&mut lab, carrier, GET, &[]);
        let expected = (carrier.1 == Scheme::Https).then_some("max-age=1");
        assert_eq!(response.header("Strict-Transport-Security"), expected);
        assert_eq!(response.header("A"), Some("b"));
    }
}
