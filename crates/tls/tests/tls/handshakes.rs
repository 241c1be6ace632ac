//! Every version and suite, with resumption, several certificates and application protocols.

use std::sync::Arc;

use rustls::{AlertDescription, HandshakeKind};
use tls::{Cipher, ContentType, Error, Event, Settings, Version};

use fakes::keys::{Keys, SUITES, suite};
use fakes::site::{Identity, Site};
use fakes::tls_pair::{Pair, Secrets};
use fakes::tls_server::TlsServer;

const RESPONSE_BYTES: u64 = 300_000;

#[test]
fn every_suite_delivers_every_byte() {
    let site = Site::plain();
    for suite in SUITES {
        let mut pair = Pair::new(&site, Arc::new(site.client_config(suite)));
        pair.pump().unwrap();
        assert_eq!(pair.agreed().suite, suite);
        assert!(!pair.agreed().is_resumed);
        pair.download(1, RESPONSE_BYTES);
        pair.download(2, 1);
        pair.download(3, RESPONSE_BYTES);
        assert_eq!(pair.server.events.len(), 1, "{:?}", pair.server.events);
    }
}

#[test]
fn a_certificate_with_an_rsa_key_does_as_well() {
    let identity = Identity::new(&["localhost"], &rcgen::PKCS_RSA_SHA256);
    let site = Site::new(&[identity], &Settings::default());
    for suite in SUITES {
        let mut pair = Pair::new(&site, Arc::new(site.client_config(suite)));
        pair.pump().unwrap();
        pair.download(1, 100_000);
    }
}

#[test]
fn sessions_are_resumed() {
    let site = Site::plain();
    for suite in SUITES {
        let client = Arc::new(site.client_config(suite));
        let mut first = Pair::new(&site, Arc::clone(&client));
        first.pump().unwrap();
        first.download(1, 1000);
        for _ in 0..2 {
            let mut again = Pair::new(&site, Arc::clone(&client));
            again.pump().unwrap();
            assert_eq!(again.client.handshake_kind(), Some(HandshakeKind::Resumed));
            assert!(again.agreed().is_resumed);
            again.download(2, RESPONSE_BYTES);
        }
    }
}

/// Also when the session is resumed, and the client gets no certificate.
#[test]
fn a_connection_is_for_the_hosts_of_the_certificate_chosen() {
    let identities = [&["a.localhost", "b.localhost"][..], &["c.localhost"]];
    let site = Site::new(&identities.map(Identity::ecdsa), &Settings::default());
    for suite in SUITES {
        for (name, others) in [
            ("b.localhost", [true, true, false]),
            ("c.localhost", [false, false, true]),
        ] {
            let client = Arc::new(site.client_config(suite));
            for is_resumed in [false, true] {
                let mut pair = Pair::named(&site, Arc::clone(&client), name);
                pair.pump().unwrap();
                pair.download(1, 1000);
                let agreed = pair.agreed();
                assert_eq!(agreed.is_resumed, is_resumed);
                let identity = &agreed.identity;
                assert_eq!(identity.server_name(), Some(name));
                let hosts = ["a.localhost", "b.localhost", "c.localhost"];
                assert_eq!(hosts.map(|host| identity.is_for(host)), others, "{name}");
            }
        }
    }
}

#[test]
fn without_tickets_nothing_is_resumed() {
    let settings = Settings {
        tickets: 0,
        ..Settings::default()
    };
    let site = Site::new(&[Identity::ecdsa(&["localhost"])], &settings);
    for suite in SUITES {
        let client = Arc::new(site.client_config(suite));
        for _ in 0..2 {
            let mut pair = Pair::new(&site, Arc::clone(&client));
            pair.pump().unwrap();
            assert!(!pair.agreed().is_resumed);
            pair.download(1, 1000);
        }
    }
}

#[test]
fn a_session_of_the_old_certificate_is_resumed_after_a_reload() {
    let mut site = Site::plain();
    let client = Arc::new(site.client_config(SUITES[0]));
    let mut before = Pair::new(&site, Arc::clone(&client));
    before.pump().unwrap();
    before.download(1, 1000);

    let renewed = Identity::ecdsa(&["localhost"]);
    let files = [renewed.files()];
    site.certificates.replace(&files).unwrap();
    site.trust(&renewed);
    before.download(2, RESPONSE_BYTES);
    let mut resumed = Pair::new(&site, client);
    resumed.pump().unwrap();
    assert!(resumed.agreed().is_resumed);

    let mut again = Pair::new(&site, Arc::new(site.client_config(SUITES[0])));
    again.pump().unwrap();
    let presented = again.client.peer_certificates().unwrap();
    assert_eq!(presented[0], *renewed.certificate.der());
}

/// The handshake's own records count: Finished in TLS 1.2; in TLS 1.3 the tickets, which are one
/// record together.
#[test]
fn records_are_numbered_behind_those_of_the_handshake() {
    for (suite, tickets, first) in [
        (SUITES[0], 2, 1),
        (SUITES[0], 0, 0),
        (SUITES[3], 2, 1),
        (SUITES[5], 0, 1),
    ] {
        let settings = Settings {
            tickets,
            ..Settings::default()
        };
        let site = Site::new(&[Identity::ecdsa(&["localhost"])], &settings);
        let mut pair = Pair::new(&site, Arc::new(site.client_config(suite)));
        pair.pump().unwrap();
        pair.server.connection.write(b"x");
        let transmit = pair
            .server
            .connection
            .poll_transmit(0, &fakes::run_sealer::LIMITS);
        let Some(tls::Transmit::Run(run)) = transmit else {
            panic!("{transmit:?}");
        };
        assert_eq!(run.number, first, "{suite:?} with {tickets} tickets");
    }
}

/// The key is what the key schedule of RFC 8446 §7 makes of the client's secret.
#[test]
fn keys_are_those_of_the_key_schedule() {
    let site = Site::plain();
    for suite in &SUITES[..3] {
        let secrets = Arc::new(Secrets::default());
        let mut client = site.client_config(*suite);
        client.key_log = Arc::clone(&secrets) as Arc<dyn rustls::KeyLog>;
        let mut pair = Pair::new(&site, Arc::new(client));
        pair.pump().unwrap();
        let secrets = secrets.0.lock().unwrap();
        let derived = Keys::derived(suite.cipher, &secrets["SERVER_TRAFFIC_SECRET_0"]);
        let installed = &pair.server.nic.keys[&0];
        assert_eq!(installed.key, derived.key);
        assert_eq!(installed.iv, derived.iv);
    }
}

#[test]
fn each_name_gets_its_certificate_and_strangers_the_first() {
    let identities = [
        Identity::ecdsa(&["localhost"]),
        Identity::ecdsa(&["a.example", "*.b.example"]),
        Identity::new(&["a.example"], &rcgen::PKCS_ED25519),
    ];
    let der: Vec<_> = identities
        .iter()
        .map(|identity| identity.certificate.der().clone())
        .collect();
    let site = Site::new(&identities, &Settings::default());
    let client = Arc::new(site.client_config(SUITES[0]));
    for (name, expected) in [
        ("localhost", 0),
        ("a.example", 1),
        ("A.Example", 1),
        ("x.b.example", 1),
    ] {
        let mut pair = Pair::named(&site, Arc::clone(&client), name);
        pair.pump().unwrap();
        let presented = pair.client.peer_certificates().unwrap();
        assert_eq!(presented[0], der[expected], "{name}");
    }
    for stranger in ["c.example", "x.y.b.example", "b.example"] {
        let mut pair = Pair::named(&site, Arc::clone(&client), stranger);
        let error = pair.pump().unwrap_err();
        assert!(
            format!("{error:?}").contains("localhost"),
            "{stranger}: {error:?}"
        );
    }
}

#[test]
fn the_application_protocol_is_agreed_upon_or_refused() {
    let site = Site::plain();
    for suite in [SUITES[0], SUITES[3]] {
        let mut client = site.client_config(suite);
        client.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let mut pair = Pair::new(&site, Arc::new(client.clone()));
        pair.pump().unwrap();
        assert_eq!(pair.agreed().alpn.as_deref(), Some(&b"http/1.1"[..]));

        // RFC 7301 §6 registers http/1.0 as well; the better one of both is chosen.
        client.alpn_protocols = vec![b"http/1.0".to_vec()];
        let mut pair = Pair::new(&site, Arc::new(client.clone()));
        pair.pump().unwrap();
        assert_eq!(pair.agreed().alpn.as_deref(), Some(&b"http/1.0"[..]));
        client.alpn_protocols = vec![b"http/1.0".to_vec(), b"http/1.1".to_vec()];
        let mut pair = Pair::new(&site, Arc::new(client.clone()));
        pair.pump().unwrap();
        assert_eq!(pair.agreed().alpn.as_deref(), Some(&b"http/1.1"[..]));

        client.alpn_protocols = vec![b"h2".to_vec()];
        let mut pair = Pair::new(&site, Arc::new(client));
        assert_eq!(
            pair.pump().unwrap_err(),
            rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol)
        );
    }
}

#[test]
fn a_client_with_nothing_in_common_gets_an_alert() {
    for (settings, alert) in [
        (
            Settings {
                versions: vec![Version::Tls13],
                ..Settings::default()
            },
            AlertDescription::ProtocolVersion,
        ),
        (
            Settings {
                ciphers: vec![Cipher::ChaCha20Poly1305],
                ..Settings::default()
            },
            AlertDescription::HandshakeFailure,
        ),
    ] {
        let site = Site::new(&[Identity::ecdsa(&["localhost"])], &settings);
        let client = site.client_config(suite(Version::Tls12, Cipher::Aes128Gcm));
        let mut pair = Pair::new(&site, Arc::new(client));
        assert_eq!(
            pair.pump().unwrap_err(),
            rustls::Error::AlertReceived(alert)
        );
        assert!(pair.server.connection.is_finished());
        assert!(matches!(
            pair.server.events[..],
            [Event::Failed(Error::Handshake(_))]
        ));
    }
}

#[test]
fn what_is_written_before_the_end_of_the_handshake_follows_it() {
    let site = Site::plain();
    for suite in SUITES {
        let mut pair = Pair::new(&site, Arc::new(site.client_config(suite)));
        pair.server.connection.write(b"hello");
        pair.pump().unwrap();
        assert_eq!(pair.received, b"hello");
    }
}

#[test]
fn a_handshake_that_takes_too_long_ends_the_connection() {
    let site = Site::plain();
    let mut server = TlsServer::new(&site);
    server.receive(&[22, 3, 1]);
    let deadline_us = server.connection.deadline_us().unwrap();
    assert_eq!(deadline_us, 10_000_000);
    server.connection.on_timeout(deadline_us - 1);
    assert_eq!(server.connection.poll_event(), None);
    server.connection.on_timeout(deadline_us);
    assert_eq!(
        server.connection.poll_event(),
        Some(Event::Failed(Error::HandshakeTimedOut))
    );
    assert!(server.connection.is_finished());
    assert_eq!(server.connection.deadline_us(), None);
}

#[test]
fn an_established_connection_has_no_deadline() {
    let site = Site::plain();
    let mut pair = Pair::new(&site, Arc::new(site.client_config(SUITES[0])));
    pair.pump().unwrap();
    assert_eq!(pair.server.connection.deadline_us(), None);
    pair.server.connection.on_timeout(u64::MAX);
    pair.download(1, 10);
}

#[test]
fn a_response_is_cut_into_few_records() {
    let site = Site::plain();
    let mut pair = Pair::new(&site, Arc::new(site.client_config(SUITES[1])));
    pair.pump().unwrap();
    pair.download(1, 500_000);
    let records = &pair.server.nic.records;
    // 60 KiB in records of 4 KiB, then up to the next multiple of 16 KiB, whole ones, the rest.
    assert_eq!(records.len(), 15 + 1 + 26 + 1);
    assert!(
        records
            .iter()
            .all(|(content_type, _)| *content_type == ContentType::ApplicationData)
    );
}
