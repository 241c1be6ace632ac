//! How connections end.

use std::io::ErrorKind;
use std::io::Read;
use std::sync::Arc;

use tls::{AlertDescription, Event};

use fakes::forger::Forger;
use fakes::keys::SUITES;
use fakes::site::Site;
use fakes::tls_pair::Pair;

#[test]
fn close_notify_follows_all_that_was_queued() {
    let site = Site::plain();
    for suite in SUITES {
        let mut pair = Pair::new(&site, Arc::new(site.client_config(suite)));
        pair.pump().unwrap();
        let connection = &mut pair.server.connection;
        connection.write_range(1, 0, 100_000);
        connection.close();
        assert_eq!(connection.write(b"more"), 0);
        assert!(!connection.write_range(1, 0, 1));
        assert!(!connection.is_finished());
        pair.pump().unwrap();
        assert!(pair.server.connection.is_finished());
        assert_eq!(pair.received.len(), 100_000);
        // The client knows that nothing is missing.
        assert_eq!(pair.client.reader().read(&mut [0]).unwrap(), 0);
    }
}

#[test]
fn a_client_that_has_closed_can_still_be_sent_to() {
    let site = Site::plain();
    for suite in SUITES {
        let mut pair = Pair::new(&site, Arc::new(site.client_config(suite)));
        pair.pump().unwrap();
        pair.client.send_close_notify();
        pair.pump().unwrap();
        let finished = Event::PeerFinished {
            is_truncated: false,
        };
        assert_eq!(pair.server.events[1..], [finished]);
        pair.server.connection.on_fin();
        assert_eq!(pair.server.connection.poll_event(), None);
        pair.server.connection.write_range(1, 0, 100_000);
        pair.pump().unwrap();
        assert_eq!(pair.received.len(), 100_000);
    }
}

#[test]
fn a_stream_that_ends_without_close_notify_is_truncated() {
    let site = Site::plain();
    for suite in SUITES {
        let mut forger = Forger::new(&site, suite);
        assert_eq!(forger.send(23, b"GET"), []);
        forger.server.connection.on_fin();
        assert_eq!(
            forger.server.connection.poll_event(),
            Some(Event::PeerFinished { is_truncated: true })
        );
        assert_eq!(forger.server.received, b"GET");
        // What the client asked for before is sent all the same.
        forger.server.connection.write(b"x");
        assert_eq!(forger.send_raw(&[]), [(23, b"x".to_vec())]);
    }
}

#[test]
fn what_follows_close_notify_is_ignored() {
    let site = Site::plain();
    for suite in SUITES {
        let mut forger = Forger::new(&site, suite);
        assert_eq!(forger.send(21, &[1, 0]), []);
        assert_eq!(forger.send_raw(b"anything"), []);
        assert_eq!(forger.server.events.len(), 1);
        assert_eq!(forger.server.received, b"");
    }
}

#[test]
fn a_clients_fatal_alert_ends_the_connection_in_silence() {
    let site = Site::plain();
    for suite in SUITES {
        let mut forger = Forger::new(&site, suite);
        forger.server.connection.write_range(1, 0, 1000);
        assert_eq!(forger.send(21, &[2, 42]), []);
        let alert = tls::Error::PeerAlert(AlertDescription::BadCertificate);
        assert_eq!(forger.server.events, [Event::Failed(alert)]);
        assert!(forger.server.connection.is_finished());
        assert_eq!(forger.server.connection.poll_released(), Some(1));
    }
}

#[test]
fn an_unfinished_response_looks_unfinished() {
    let site = Site::plain();
    let mut pair = Pair::new(&site, Arc::new(site.client_config(SUITES[0])));
    pair.pump().unwrap();
    pair.server.connection.write_range(1, 0, 1000);
    pair.pump().unwrap();
    let error = pair.client.reader().read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
}
