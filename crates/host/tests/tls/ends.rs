//! How connections end.

use host::app::{AppEvent, CloseReason};
use tls::AlertDescription;

use client_address::Prefix;
use host::{HeaderPort, Proxies};

use crate::client::Secured;
use crate::rig::answer;
use fakes::keys::SUITES;

#[test]
fn close_notify_comes_behind_the_response_and_fin_behind_that() {
    for suite in SUITES {
        let mut secured = Secured::new(suite);
        secured.ask(&["30000"]);
        secured.run_until(|secured| secured.received.len() == 30_002);
        secured.ask(&["quit"]);
        secured.run_until(|secured| secured.rig.client.state() == tcp::State::CloseWait);
        assert!(secured.is_closed && secured.broken.is_none());
        assert!(secured.received == answer(30_000));
        secured.client.send_close_notify();
        secured.exchange();
        secured.step();
        secured.rig.client.shutdown();
        secured.until_nothing_is_left();
        assert_eq!(secured.close_reason(), Some(CloseReason::Finished));
        let last: Vec<bool> = secured.rig.nic.ackds.iter().map(|ackd| ackd.2).collect();
        assert_eq!(
            last.iter().filter(|&&last| last).count(),
            1,
            "keys are gone"
        );
        assert_eq!(secured.rig.stack.counters().connections_finished, 1);
    }
}

/// HTTP says itself where a request ends.
#[test]
fn a_client_may_end_with_close_notify_or_with_fin_alone() {
    for says_so in [true, false] {
        let mut secured = Secured::new(SUITES[0]);
        secured.run_until(|secured| !secured.client.is_handshaking());
        secured.ask(&["30000"]);
        if says_so {
            secured.client.send_close_notify();
        }
        secured.exchange();
        secured.step();
        secured.rig.client.shutdown();
        secured.run_until(|secured| secured.received.len() == 30_002);
        assert!(secured.received == answer(30_000));
        let finished = |event: &AppEvent| matches!(event, AppEvent::PeerFinished);
        assert_eq!(secured.rig.app.count(finished), 1);
        let at = |kind: fn(&AppEvent) -> bool| secured.rig.app.events.iter().position(kind);
        let readable = at(|event| matches!(event, AppEvent::Readable));
        let finished = at(|event| matches!(event, AppEvent::PeerFinished));
        assert!(readable < finished, "first what it had to say");
        assert_eq!(secured.rig.stack.counters().tls_failed, 0);
    }
}

#[test]
fn a_client_that_says_what_is_no_record_gets_the_alert_and_then_the_end() {
    for suite in SUITES {
        let mut secured = Secured::new(suite);
        secured.ask(&["30000"]);
        secured.run_until(|secured| secured.received.len() == 30_002);
        secured.say_raw(&[23, 3, 3, 0, 30]);
        secured.say_raw(&[7; 30]);
        secured.run_until(|secured| secured.broken.is_some());
        let alert = rustls::Error::AlertReceived(AlertDescription::BadRecordMac);
        assert_eq!(secured.broken, Some(alert));
        secured.run_until(|secured| secured.rig.client.state() == tcp::State::CloseWait);
        secured.rig.client.shutdown();
        secured.until_nothing_is_left();
        assert_eq!(secured.close_reason(), Some(CloseReason::TlsFailed));
        let counters = secured.rig.stack.counters();
        assert_eq!((counters.tls_failed, counters.connections_broken), (1, 1));
    }
}

/// An alert may wait behind a response that the client does not take any more.
#[test]
fn last_words_that_are_not_read_are_given_up() {
    let mut secured = Secured::new(SUITES[1]);
    secured.ask(&["3000000"]);
    secured.run_until(|secured| secured.received.len() > 100_000);
    secured.say_raw(&[23, 3, 3, 0, 30]);
    secured.say_raw(&[7; 30]);
    secured.run_until(|secured| secured.rig.stack.counters().tls_failed == 1);
    secured.rig.nic_works = false;
    let took_us = secured.until_nothing_is_left();
    assert!((2_900_000..3_200_000).contains(&took_us), "{took_us}");
    assert_eq!(secured.close_reason(), Some(CloseReason::TlsFailed));
    assert!(answer(3_000_000).starts_with(&secured.received));
}

#[test]
fn a_client_that_leaves_amid_the_handshake_is_let_go() {
    let mut secured = Secured::new(SUITES[0]);
    secured.exchange();
    secured.rig.client.shutdown();
    secured.run_until(|secured| secured.rig.client.state() == tcp::State::TimeWait);
    secured.until_nothing_is_left();
    assert_eq!(secured.rig.app.events, []);
    assert_eq!(
        secured.rig.stack.counters().tls_failed,
        0,
        "nothing was wrong"
    );
}

#[test]
fn a_peer_without_tls_gets_an_alert_and_the_application_never_hears_of_it() {
    let mut secured = Secured::new(SUITES[0]);
    secured
        .rig
        .run_until(|rig| rig.client.state() == tcp::State::Established);
    secured.rig.client.write(b"GET / HTTP/1.1\r\n\r\n");
    let rig = &mut secured.rig;
    rig.run_until(|rig| rig.client.state() == tcp::State::CloseWait);
    assert_eq!(rig.received, [21, 3, 3, 0, 2, 2, 10]);
    rig.client.shutdown();
    rig.run_until(|rig| rig.stack.usage().connections == 0);
    assert_eq!(rig.app.events, []);
    let counters = rig.stack.counters();
    assert_eq!((counters.tls_failed, counters.connections_accepted), (1, 0));
}

/// No RST overtakes the response, though the client has not sent all of its request.
#[test]
fn a_request_without_tls_gets_the_response_of_the_application() {
    let mut secured = Secured::new(SUITES[0]);
    let rig = &mut secured.rig;
    rig.app.plain_http = b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec();
    rig.run_until(|rig| rig.client.state() == tcp::State::Established);
    rig.client.write(b"POST / HTTP/1.1\r\n\r\n");
    rig.run_until(|rig| rig.client.state() == tcp::State::CloseWait);
    assert_eq!(rig.received, rig.app.plain_http);
    rig.client.write(&[b'x'; 2_000]);
    rig.client.shutdown();
    rig.run_until(|rig| rig.stack.usage().connections == 0);
    assert_eq!(rig.client_closed, Some(tcp::CloseReason::Finished));
    assert_eq!(rig.app.events, []);
    assert_eq!(rig.stack.counters().tls_failed, 1);
}

#[test]
fn a_client_that_finds_the_certificate_bad_ends_the_handshake() {
    let mut secured = Secured::new(SUITES[0]);
    let stranger = Secured::new(SUITES[0]);
    secured.client = stranger.client;
    secured.run_until(|secured| secured.broken.is_some());
    secured.exchange();
    secured.run_until(|secured| secured.rig.client_closed.is_some());
    assert_eq!(secured.rig.client_closed, Some(tcp::CloseReason::Reset));
    assert_eq!(secured.rig.app.events, []);
    assert_eq!(secured.rig.stack.counters().tls_failed, 1);
}

#[test]
fn a_handshake_that_takes_too_long_is_given_up() {
    let mut secured = Secured::new(SUITES[0]);
    secured
        .rig
        .run_until(|rig| rig.client.state() == tcp::State::Established);
    secured.rig.client.write(&[22, 3, 1]);
    let begun_us = secured.rig.now_us;
    secured.rig.run_until(|rig| rig.client_closed.is_some());
    let took_us = secured.rig.now_us - begun_us;
    assert!((9_900_000..10_200_000).contains(&took_us), "{took_us}");
    assert_eq!(secured.rig.client_closed, Some(tcp::CloseReason::Reset));
    assert_eq!(secured.rig.stack.usage().connections, 0);
    assert_eq!(secured.rig.app.events, []);
}

/// A connection whose handshake is not complete counts as silent, whatever it has sent.
#[test]
fn handshakes_under_way_are_bounded() {
    let settings = tls::Settings::default();
    let mut secured = Secured::with(SUITES[0], &settings, 1, |config| {
        config.admission.backlog_max = 2;
    });
    for _ in 0..2 {
        secured
            .rig
            .run_until(|rig| rig.client.state() == tcp::State::Established);
        secured.rig.client.write(&[22, 3, 1]);
        for _ in 0..10 {
            secured.rig.step();
        }
        secured.reconnect();
    }
    // The oldest makes room.
    secured.ask(&["100"]);
    secured.run_until(|secured| secured.received.len() == 102);
    assert_eq!(secured.rig.stack.counters().backlog_evictions, 1);
    assert_eq!(secured.agreed().len(), 1);
    // One that has shaken hands does not count any more.
    for _ in 0..2 {
        secured.reconnect();
        secured.ask(&["100"]);
        secured.run_until(|secured| secured.received.len() == 102);
    }
}

/// curl closes its socket with close_notify unread: its kernel answers that with RST.
#[test]
fn a_reset_after_the_response_was_delivered_breaks_no_connection() {
    for suite in SUITES {
        let mut secured = Secured::new(suite);
        secured.ask(&["30000"]);
        secured.run_until(|secured| secured.received.len() == 30_002);
        secured.ask(&["quit"]);
        secured.run_until(|secured| secured.rig.client.state() == tcp::State::CloseWait);
        assert!(secured.received == answer(30_000));
        secured.rig.client.abort();
        secured.until_nothing_is_left();
        assert_eq!(secured.close_reason(), Some(CloseReason::Reset));
        let counters = secured.rig.stack.counters();
        let ended = (counters.connections_finished, counters.connections_broken);
        assert_eq!(ended, (1, 0));
        // Nothing was lost.
        assert_eq!(counters.retransmitted_bytes, 0);
    }
}

#[test]
fn a_reset_amid_a_response_breaks_the_connection() {
    for suite in SUITES {
        let mut secured = Secured::new(suite);
        secured.ask(&["3000000"]);
        secured.run_until(|secured| secured.received.len() > 30_000);
        secured.ask(&["quit"]);
        secured.step();
        secured.rig.client.abort();
        secured.until_nothing_is_left();
        let counters = secured.rig.stack.counters();
        let ended = (counters.connections_finished, counters.connections_broken);
        assert_eq!(ended, (0, 1));
    }
}

/// The header of a proxy comes before TLS, with which it may share a segment.
#[test]
fn a_header_of_the_proxy_protocol_comes_before_the_handshake() {
    for splits in [false, true] {
        for header in [
            "PROXY TCP4 192.0.2.7 192.0.2.2 4711 443\r\n",
            "PROXY UNKNOWN\r\n",
        ] {
            let mut secured = Secured::new(SUITES[0]);
            secured.rig.stack.set_proxies(proxies());
            let (first, second) = header.split_at(if splits { 9 } else { 0 });
            assert_eq!(secured.rig.client.write(first.as_bytes()), first.len());
            (0..30).for_each(|_| secured.rig.step());
            assert_eq!(secured.rig.app.events, []);
            secured.say_raw(second.as_bytes());
            secured.ask(&["30000"]);
            secured.run_until(|secured| secured.received.len() == 30_002);
            assert!(secured.received == answer(30_000));
            let [AppEvent::Accepted { proxied, tls, .. }, ..] = &secured.rig.app.events[..] else {
                panic!("it is accepted first");
            };
            let client = proxied.as_ref().map(|proxied| proxied.client.to_string());
            let named = header
                .contains("192.0.2.7")
                .then(|| "192.0.2.7:4711".to_owned());
            assert_eq!((client, tls.is_some()), (named, true));
            let counters = secured.rig.stack.counters();
            assert_eq!(
                (counters.tls_failed, counters.proxy_headers_invalid),
                (0, 0)
            );
        }
    }
}

#[test]
fn a_handshake_without_the_header_is_reset() {
    let mut secured = Secured::new(SUITES[0]);
    secured.rig.stack.set_proxies(proxies());
    secured.run_until(|secured| secured.rig.client_closed.is_some());
    assert_eq!(secured.rig.client_closed, Some(tcp::CloseReason::Reset));
    assert_eq!(secured.rig.app.events, []);
    let counters = secured.rig.stack.counters();
    assert_eq!(
        (counters.tls_failed, counters.proxy_headers_invalid),
        (0, 1)
    );
}

fn proxies() -> Proxies {
    Proxies {
        header_ports: vec![HeaderPort {
            port: 80,
            networks: vec![Prefix {
                address: "10.77.0.0".parse().unwrap(),
                bits: 24,
            }],
            timeout: std::time::Duration::from_secs(15),
        }],
        forwarding: Vec::new(),
    }
}
