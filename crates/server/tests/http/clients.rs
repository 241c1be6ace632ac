//! Who the client is behind proxies: by the PROXY protocol, and by fields of its requests.

use std::num::NonZeroU64;

use host::app::StreamId;
use server::{Config, ForwardedField, NO_RESPONSE, Prefix};

use crate::http2::client::{Client, request};
use crate::http3::client::headers;
use crate::lab::{Lab, get, get_with};

/// The peer of connections, unless a test says otherwise.
const PEER: &str = "10.77.0.1";

fn networks(all: &[(&str, u8)]) -> Vec<Prefix> {
    let networks = all.iter().map(|(address, bits)| Prefix {
        address: address.parse().unwrap(),
        bits: *bits,
    });
    networks.collect()
}

/// Proxies of these networks name clients in this field.
fn trusting(field: ForwardedField) -> Config {
    Config {
        forwarded_from: networks(&[("10.77.0.0", 16), ("fd00::", 8)]),
        forwarded: field,
        ..Config::default()
    }
}

fn logging(config: Config) -> Lab {
    let mut lab = Lab::logging(config);
    lab.file("page.html", vec![7; 1_000_000]);
    lab
}

/// Client, proxy and status of each record.
fn records(lab: &mut Lab) -> Vec<(String, Option<String>, u16)> {
    let mut all = Vec::new();
    lab.records(|record| {
        let proxy = record.proxy.map(|proxy| proxy.to_string());
        all.push((record.client.to_string(), proxy, record.status));
    });
    all
}

fn of(client: &str, proxy: Option<&str>) -> [(String, Option<String>, u16); 1] {
    [(client.to_owned(), proxy.map(str::to_owned), 200)]
}

/// Requests over HTTP/1.1, HTTP/2 and HTTP/3, whose records are compared.
#[test]
fn trusted_proxies_name_the_client_of_each_request() {
    use ForwardedField::{Forwarded, XForwardedFor};
    let itself = "10.77.0.1:40000";
    for (field, fields, client, is_invalid) in [
        (XForwardedFor, &[][..], itself, false),
        (
            XForwardedFor,
            &[("X-Forwarded-For", "192.0.2.1")],
            "192.0.2.1:0",
            false,
        ),
        (
            XForwardedFor,
            &[
                ("x-forwarded-for", "127.0.0.1, 192.0.2.1"),
                ("X-Forwarded-For", "[fd00::1]:77, 10.77.9.9"),
            ],
            "192.0.2.1:0",
            false,
        ),
        (
            XForwardedFor,
            &[("X-Forwarded-For", "[2001:db8::1]:77")],
            "[2001:db8::1]:77",
            false,
        ),
        (
            XForwardedFor,
            &[("X-Forwarded-For", "192.0.2.1, nobody")],
            itself,
            true,
        ),
        // The client may write any other field.
        (
            XForwardedFor,
            &[("Forwarded", "for=192.0.2.1")],
            itself,
            false,
        ),
        (
            Forwarded,
            &[("X-Forwarded-For", "192.0.2.1")],
            itself,
            false,
        ),
        (
            Forwarded,
            &[(
                "Forwarded",
                "for=\"[2001:db8::1]:77\";proto=https, for=10.77.0.2",
            )],
            "[2001:db8::1]:77",
            false,
        ),
        (Forwarded, &[("Forwarded", "for=unknown")], itself, false),
    ] {
        let mut lab = logging(trusting(field));
        let stream = lab.connect();
        lab.ask(stream, &get_with("/page.html", fields));
        assert_eq!(records(&mut lab), of(client, Some(PEER)), "{fields:?}");
        let invalid = lab.counters().forwarded_invalid;
        assert_eq!(invalid, u64::from(is_invalid), "{fields:?}");
    }
}

#[test]
fn what_others_write_does_not_count() {
    let mut lab = logging(Config {
        forwarded_from: networks(&[("10.78.0.0", 16)]),
        ..Config::default()
    });
    let stream = lab.connect();
    let fields = [("X-Forwarded-For", "192.0.2.1, garbage")];
    lab.ask(stream, &get_with("/page.html", &fields));
    assert_eq!(records(&mut lab), of("10.77.0.1:40000", None));
    assert_eq!(lab.counters().forwarded_invalid, 0);
}

#[test]
fn each_request_of_a_connection_has_its_own_client() {
    let mut lab = Lab::alone(trusting(ForwardedField::XForwardedFor));
    lab.log_accesses();
    lab.file("page.html", "short");
    let stream = lab.connect();
    lab.acknowledges(stream, false);
    let from = |client| get_with("/page.html", &[("X-Forwarded-For", client)]);
    let broken = "GET /page.html\r\nX-Forwarded-For: 192.0.2.9\r\n\r\n".to_owned();
    let all = [
        from("192.0.2.1"),
        from("192.0.2.2"),
        get("/page.html"),
        broken,
    ];
    lab.send(stream, all.concat());
    assert_eq!(lab.memory_client(stream), Some(PEER.parse().unwrap()));
    lab.acknowledges(stream, true);
    let clients: Vec<_> = records(&mut lab)
        .into_iter()
        .map(|(client, _, status)| (client, status))
        .collect();
    let expected = [
        ("192.0.2.1:0", 200),
        ("192.0.2.2:0", 200),
        ("10.77.0.1:40000", 200),
        ("10.77.0.1:40000", 400),
    ];
    assert_eq!(
        clients,
        expected.map(|(client, status)| (client.to_owned(), status))
    );
}

#[test]
fn a_request_that_is_answered_late_or_not_at_all_keeps_its_client() {
    let config = trusting(ForwardedField::XForwardedFor);
    let timeout = config.stall_timeout;
    for is_late in [true, false] {
        let mut lab = Lab::alone(config.clone());
        lab.log_accesses();
        lab.file("page.html", "short");
        lab.hold_opens();
        let stream = lab.connect();
        lab.send(
            stream,
            get_with("/page.html", &[("X-Forwarded-For", "192.0.2.1")]),
        );
        assert_eq!(
            lab.memory_client(stream),
            Some("192.0.2.1".parse().unwrap())
        );
        match is_late {
            true => lab.pass(timeout * 2),
            false => lab.reset(stream),
        }
        let status = if is_late { 503 } else { NO_RESPONSE };
        let expected = ("192.0.2.1:0".to_owned(), Some(PEER.to_owned()), status);
        assert_eq!(records(&mut lab), [expected]);
    }
}

#[test]
fn the_proxy_protocol_names_the_client_of_a_connection() {
    for prior_knowledge in [false, true] {
        let mut lab = Lab::alone(Config {
            http2_prior_knowledge: prior_knowledge,
            ..Config::default()
        });
        lab.log_accesses();
        lab.file("page.html", "short");
        let stream = lab.connect_for(PEER, "[2001:db8::7]:4711");
        // Nobody may name another one in a field.
        lab.ask(
            stream,
            &get_with("/page.html", &[("X-Forwarded-For", "192.0.2.1")]),
        );
        assert_eq!(records(&mut lab), of("[2001:db8::7]:4711", Some(PEER)));
        if prior_knowledge {
            let mut client = Client::open_on(&mut lab, |lab| {
                Client::on(lab.connect_for(PEER, "192.0.2.7:4711"))
            });
            assert_eq!(client.get(&mut lab, "/page.html").status, 200);
            assert_eq!(records(&mut lab), of("192.0.2.7:4711", Some(PEER)));
        }
    }
}

#[test]
fn a_proxy_behind_a_proxy_names_the_client_if_it_is_trusted() {
    let mut config = trusting(ForwardedField::XForwardedFor);
    config.forwarded_from = networks(&[("192.0.2.0", 24)]);
    for (proxied, client) in [
        ("192.0.2.7:4711", "198.51.100.1:0"),
        ("203.0.113.7:4711", "203.0.113.7:4711"),
    ] {
        let mut lab = Lab::alone(config.clone());
        lab.log_accesses();
        lab.file("page.html", "short");
        let stream = lab.connect_for(PEER, proxied);
        let fields = [("X-Forwarded-For", "198.51.100.1")];
        lab.ask(stream, &get_with("/page.html", &fields));
        assert_eq!(records(&mut lab), of(client, Some(PEER)));
    }
}

#[test]
fn a_change_of_the_trusted_is_for_connections_that_begin_then() {
    let trusting = trusting(ForwardedField::XForwardedFor);
    let mut lab = Lab::alone(trusting.clone());
    lab.log_accesses();
    lab.file("page.html", "short");
    let [before, after] = [true, false].map(|is_before| {
        if !is_before {
            lab.reconfigure(Config::default());
        }
        lab.connect()
    });
    let ask = get_with("/page.html", &[("X-Forwarded-For", "192.0.2.1, 10.77.0.9")]);
    lab.ask(after, &ask);
    assert_eq!(records(&mut lab), of("10.77.0.1:40000", None));
    // The list is the new one, and the connection still a proxy's.
    lab.ask(before, &ask);
    assert_eq!(records(&mut lab), of("10.77.0.9:0", Some(PEER)));
}

const TOTAL: u64 = 600_000;

fn limited() -> Config {
    Config {
        source_bytes_per_second_max: NonZeroU64::new(TOTAL),
        ..trusting(ForwardedField::XForwardedFor)
    }
}

#[test]
fn clients_behind_a_proxy_have_rates_of_their_own() {
    let mut lab = logging(limited());
    let [a, b, c] = [(); 3].map(|()| lab.connect());
    let ask = |lab: &mut Lab, stream: StreamId, client: &str| {
        lab.acknowledges(stream, false);
        lab.send(
            stream,
            get_with("/page.html", &[("X-Forwarded-For", client)]),
        );
    };
    let rates = |lab: &Lab| [a, b, c].map(|stream| lab.rate_max(stream));
    ask(&mut lab, a, "192.0.2.1");
    ask(&mut lab, b, "192.0.2.2");
    assert_eq!(rates(&lab), [Some(TOTAL), Some(TOTAL), None]);
    ask(&mut lab, c, "192.0.2.1");
    assert_eq!(rates(&lab), [Some(TOTAL / 2), Some(TOTAL), Some(TOTAL / 2)]);
    // A connection that goes on for another client leaves its share.
    lab.acknowledges(a, true);
    ask(&mut lab, a, "192.0.2.3");
    assert_eq!(rates(&lab), [Some(TOTAL); 3]);
    for stream in [a, b, c] {
        lab.reset(stream);
    }
    // By the PROXY protocol likewise.
    let [a, b, c] = ["192.0.2.1:1", "192.0.2.2:1", "192.0.2.1:2"]
        .map(|client| lab.connect_for("10.99.0.1", client));
    for stream in [a, b, c] {
        lab.acknowledges(stream, false);
        lab.send(stream, get("/page.html"));
    }
    let rates = [a, b, c].map(|stream| lab.rate_max(stream));
    assert_eq!(rates, [Some(TOTAL / 2), Some(TOTAL), Some(TOTAL / 2)]);
}

#[test]
fn streams_of_a_connection_have_the_rates_of_their_clients() {
    for (clients, expected) in [
        (["192.0.2.1", "192.0.2.2"], TOTAL),
        (["192.0.2.1", "192.0.2.1"], TOTAL / 2),
    ] {
        // With a limit of the connection as well, which is no lower.
        for connection_max in [None, NonZeroU64::new(4 * TOTAL)] {
            let mut lab = Lab::alone(Config {
                connection_bytes_per_second_max: connection_max,
                ..limited()
            });
            lab.file("page.html", vec![7; 1_000_000]);
            let connection = lab.http3();
            let streams = clients.map(|client| {
                let fields = request("GET", "/page.html", &[("x-forwarded-for", client)]);
                let stream = lab.open_stream(connection, false);
                lab.acknowledges(stream, false);
                lab.send(stream, headers(&fields));
                stream
            });
            let rates = streams.map(|stream| lab.rate_max(stream));
            assert_eq!(rates, [Some(expected); 2], "{clients:?}");
        }
    }
}
