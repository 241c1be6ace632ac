//! Requests for hosts that their connection is not for.

use server::{Config, HttpVersion, Rule, Scheme, Site};

use crate::carriers::{CARRIERS, Carrier, ask};
use crate::http2::client::{Client, request};
use crate::lab::Lab;

fn lab(config: Config) -> Lab {
    let mut lab = Lab::alone(Config {
        http2_prior_knowledge: true,
        ..config
    });
    lab.file_of("index.html", "index", 1);
    lab
}

/// Versions of which a connection serves several hosts.
fn coalesces(Carrier(version, scheme): Carrier) -> bool {
    version != HttpVersion::Http1 && scheme == Scheme::Https
}

/// Covers: RFC 9110 §7.4, RFC 9110 §15.5.20, RFC 9113 §9.1.1, RFC 9114 §3.3
#[test]
fn a_connection_serves_hosts_of_its_certificate_and_of_its_server_name() {
    let mut lab = lab(Config::default());
    lab.identify(Some("own.example"), &["a.org", "*.b.org", "192.0.2.7"]);
    let mut refused = 0;
    for carrier in CARRIERS {
        for (host, is_for) in [
            ("own.example", true),
            ("OWN.example:8443", true),
            ("a.org", true),
            ("a.org.:443", true),
            ("x.b.org", true),
            ("192.0.2.7:443", true),
            ("x.y.b.org", false),
            ("b.org", false),
            ("c.org", false),
            ("192.0.2.8", false),
            ("[2001:db8::1]:443", false),
        ] {
            let response = ask(&mut lab, carrier, ["GET", host, "/"], &[]);
            let is_refused = coalesces(carrier) && !is_for;
            let expected = if is_refused { 421 } else { 200 };
            assert_eq!(response.status, expected, "{carrier:?} {host}");
            refused += u64::from(is_refused);
        }
    }
    assert_eq!(lab.counters().misdirected_requests, refused);
    assert_eq!(lab.files_left_open(), 0);
}

#[test]
fn a_client_without_a_server_name_may_ask_for_any_host() {
    let mut lab = lab(Config::default());
    lab.identify(None, &["a.org"]);
    for carrier in CARRIERS {
        let response = ask(&mut lab, carrier, ["GET", "192.0.2.9", "/"], &[]);
        assert_eq!(response.status, 200, "{carrier:?}");
    }
}

#[test]
fn an_operator_can_serve_all_hosts_on_every_connection() {
    let mut lab = lab(Config {
        rejects_misdirected: false,
        ..Config::default()
    });
    lab.identify(Some("origin.internal"), &["origin.internal"]);
    for carrier in CARRIERS {
        let response = ask(&mut lab, carrier, ["GET", "a.org", "/"], &[]);
        assert_eq!(response.status, 200, "{carrier:?}");
    }
    assert_eq!(lab.counters().misdirected_requests, 0);
}

/// The response is of no site: the host's has nothing to say on such a connection.
#[test]
fn a_misdirected_request_gets_no_field_of_the_site_that_it_means() {
    let site = Site {
        names: vec!["c.org".parse().unwrap()],
        rules: vec![Rule {
            fields: vec![server::ExtraField::new("A", "b").unwrap()],
            ..Rule::new("*".parse().unwrap())
        }],
        ..Site::default()
    };
    let mut lab = lab(Config {
        sites: vec![Site::default(), site],
        ..Config::default()
    });
    lab.identify(Some("a.org"), &["a.org"]);
    for carrier in CARRIERS.into_iter().filter(|&it| coalesces(it)) {
        let response = ask(&mut lab, carrier, ["GET", "c.org", "/"], &[]);
        assert_eq!((response.status, response.header("A")), (421, None));
        let head = ask(&mut lab, carrier, ["HEAD", "c.org", "/"], &[]);
        assert_eq!((head.status, &head.body[..]), (421, &b""[..]));
    }
}

/// Other requests of the connection go on.
#[test]
fn a_misdirected_request_ends_its_stream_alone() {
    let mut lab = lab(Config::default());
    lab.identify(Some("example.org"), &["example.org"]);
    let mut client = Client::open(&mut lab);
    for _ in 0..3 {
        let fields = [
            (":method", "POST"),
            (":scheme", "https"),
            (":authority", "c.org"),
            (":path", "/"),
            ("content-length", "3"),
        ];
        let id = client.send_request(&mut lab, &fields, false);
        assert_eq!(client.response(&mut lab, id).status, 421);
        let id = client.send_request(&mut lab, &request("GET", "/", &[]), true);
        assert_eq!(client.response(&mut lab, id).body, b"index");
    }
}
