//! Clients that break the rules get the alert that RFC 8446 §6 or RFC 5246 §7.2 has for it.

use std::sync::Arc;

use rustls::ClientConnection;
use rustls::pki_types::ServerName;
use tls::{AlertDescription, Error, Event, Limits, Settings, Suite, Version};

use fakes::forger::Forger;
use fakes::keys::SUITES;
use fakes::site::{Identity, Site};
use fakes::tls_pair::Pair;
use fakes::tls_server::TlsServer;

const UNEXPECTED_MESSAGE: u8 = 10;
const BAD_RECORD_MAC: u8 = 20;
const RECORD_OVERFLOW: u8 = 22;
const ILLEGAL_PARAMETER: u8 = 47;
const DECODE_ERROR: u8 = 50;
const PROTOCOL_VERSION: u8 = 70;
const INTERNAL_ERROR: u8 = 80;
const NO_RENEGOTIATION: u8 = 100;

/// Does something to a client of each suite, and expects one fatal alert, and nothing of a later
/// record.
fn refused(suites: &[Suite], alert: u8, misbehave: impl Fn(&mut Forger) -> Vec<(u8, Vec<u8>)>) {
    let site = Site::plain();
    for suite in suites {
        let mut forger = Forger::new(&site, *suite);
        forger.server.connection.write_range(9, 0, 1 << 30);
        // A response waits; the alert takes its place.
        let answers = misbehave(&mut forger);
        let sent = answers
            .iter()
            .filter(|(content_type, _)| *content_type == 21);
        let sent: Vec<_> = sent.map(|(_, content)| content.clone()).collect();
        assert_eq!(sent, [[2, alert]], "{suite:?}");
        assert_eq!(answers.len(), 1, "nothing of the response is sent");
        let [Event::Failed(error)] = &forger.server.events[..] else {
            panic!("{suite:?}: {:?}", forger.server.events);
        };
        assert_eq!(error.alert(), Some(AlertDescription::from(alert)));
        assert!(forger.server.connection.is_finished());
        assert_eq!(forger.server.connection.poll_released(), Some(9));
        assert_eq!(forger.send(23, b"later"), []);
        assert_eq!(forger.server.received, b"");
        assert_eq!(forger.server.connection.write(b"x"), 0);
    }
}

fn of(version: Version) -> Vec<Suite> {
    let suites = SUITES.into_iter();
    suites.filter(|suite| suite.version == version).collect()
}

#[test]
fn a_bad_tag() {
    refused(&SUITES, BAD_RECORD_MAC, |forger| {
        let mut record = forger.tx.seal(forger.tx_number, 23, b"GET");
        *record.last_mut().unwrap() ^= 1;
        forger.send_raw(&record)
    });
}

#[test]
fn a_changed_byte_anywhere_behind_the_header() {
    let site = Site::plain();
    for suite in SUITES {
        let bytes = Forger::new(&site, suite).tx.seal(0, 23, b"GET").len();
        for at in 5..bytes {
            let mut forger = Forger::new(&site, suite);
            let mut record = forger.tx.seal(forger.tx_number, 23, b"GET");
            record[at] ^= 0x40;
            assert_eq!(forger.send_raw(&record), [(21, vec![2, BAD_RECORD_MAC])]);
        }
    }
}

#[test]
fn a_record_out_of_order_or_twice() {
    refused(&SUITES, BAD_RECORD_MAC, |forger| {
        let record = forger.tx.seal(forger.tx_number + 1, 23, b"GET");
        forger.send_raw(&record)
    });
    let site = Site::plain();
    for suite in SUITES {
        let mut forger = Forger::new(&site, suite);
        let record = forger.tx.seal(forger.tx_number, 23, b"GET");
        assert_eq!(forger.send_raw(&record), []);
        assert_eq!(forger.send_raw(&record), [(21, vec![2, BAD_RECORD_MAC])]);
        assert_eq!(forger.server.received, b"GET");
    }
}

#[test]
fn a_record_too_short_to_be_authentic() {
    for length in [0, 1, 8, 15, 16, 23] {
        refused(&SUITES, BAD_RECORD_MAC, |forger| {
            let mut record = vec![23, 3, 3, 0, length];
            record.resize(5 + usize::from(length), 0);
            forger.send_raw(&record)
        });
    }
}

#[test]
fn a_record_that_says_it_is_too_long() {
    refused(&of(Version::Tls13), RECORD_OVERFLOW, |forger| {
        let [high, low] = ((1_u16 << 14) + 257).to_be_bytes();
        forger.send_raw(&[23, 3, 3, high, low])
    });
    refused(&of(Version::Tls12), RECORD_OVERFLOW, |forger| {
        let [high, low] = ((1_u16 << 14) + 2049).to_be_bytes();
        forger.send_raw(&[23, 3, 3, high, low])
    });
}

#[test]
fn a_record_whose_content_is_too_long() {
    refused(&SUITES, RECORD_OVERFLOW, |forger| {
        forger.send(23, &[b'x'; (1 << 14) + 1])
    });
    let site = Site::plain();
    for suite in SUITES {
        let mut forger = Forger::new(&site, suite);
        assert_eq!(forger.send(23, &[b'x'; 1 << 14]), []);
        assert_eq!(forger.server.received, [b'x'; 1 << 14]);
    }
}

#[test]
fn padding_that_is_too_long_and_nothing_but_padding() {
    refused(&of(Version::Tls13), RECORD_OVERFLOW, |forger| {
        let mut inner = vec![0; (1 << 14) + 2];
        inner[0] = b'x';
        inner[1] = 23;
        let record = forger.tx.seal_inner(forger.tx_number, &inner);
        forger.send_raw(&record)
    });
    refused(&of(Version::Tls13), UNEXPECTED_MESSAGE, |forger| {
        let record = forger.tx.seal_inner(forger.tx_number, &[0; 100]);
        forger.send_raw(&record)
    });
}

#[test]
fn padding_is_taken_off() {
    let site = Site::plain();
    for suite in of(Version::Tls13) {
        let mut forger = Forger::new(&site, suite);
        let record = forger.tx.seal_inner(forger.tx_number, b"GET\0\x17\0\0\0");
        assert_eq!(forger.send_raw(&record), []);
        assert_eq!(forger.server.received, b"GET\0");
    }
}

#[test]
fn a_record_that_is_not_sealed() {
    for content_type in [0, 20, 21, 22, 24, 80, 255] {
        refused(&of(Version::Tls13), UNEXPECTED_MESSAGE, |forger| {
            forger.send_raw(&[content_type, 3, 3, 0, 1, 1])
        });
    }
    // In TLS 1.2 the type says nothing about that.
    for content_type in [20, 21, 22, 23, 24] {
        refused(&of(Version::Tls12), BAD_RECORD_MAC, |forger| {
            forger.send_raw(&[content_type, 3, 3, 0, 1, 1])
        });
    }
}

#[test]
fn a_record_of_a_type_that_may_not_come() {
    for content_type in [0, 20, 24, 255] {
        refused(&of(Version::Tls12), UNEXPECTED_MESSAGE, |forger| {
            forger.send(content_type, &[1])
        });
    }
    for content_type in [20, 24, 255] {
        refused(&of(Version::Tls13), UNEXPECTED_MESSAGE, |forger| {
            forger.send(content_type, &[1])
        });
    }
}

#[test]
fn a_record_of_another_version() {
    refused(&of(Version::Tls12), PROTOCOL_VERSION, |forger| {
        let mut record = forger.tx.seal(forger.tx_number, 23, b"GET");
        record[2] = 4;
        forger.send_raw(&record)
    });
}

#[test]
fn renegotiation_is_refused_once_with_a_warning_and_then_for_good() {
    let hello = [&[1, 0, 0x50, 0][..], &[7; 0x5000]].concat();
    let site = Site::plain();
    for suite in of(Version::Tls12) {
        let mut forger = Forger::new(&site, suite);
        let (first, second) = hello.split_at(0x3000);
        assert_eq!(forger.send(22, first), [(21, vec![1, NO_RENEGOTIATION])]);
        assert_eq!(forger.send(22, second), []);
        assert_eq!(forger.send(23, b"GET"), []);
        assert_eq!(forger.server.received, b"GET");
        assert_eq!(forger.server.events, []);
        assert_eq!(forger.send(22, first), [(21, vec![2, UNEXPECTED_MESSAGE])]);
    }
    refused(&of(Version::Tls13), UNEXPECTED_MESSAGE, |forger| {
        forger.send(22, &hello[..0x3000])
    });
}

#[test]
fn handshake_messages_that_may_not_come() {
    for handshake_type in [0, 2, 4, 5, 8, 11, 13, 15, 20, 25, 254] {
        refused(&SUITES, UNEXPECTED_MESSAGE, |forger| {
            forger.send(22, &[handshake_type, 0, 0, 1, 0])
        });
    }
    refused(&SUITES, UNEXPECTED_MESSAGE, |forger| forger.send(22, &[]));
}

#[test]
fn malformed_key_updates() {
    let suites = of(Version::Tls13);
    refused(&suites, DECODE_ERROR, |forger| {
        forger.send(22, &[24, 0, 0, 2, 0, 0])
    });
    refused(&suites, DECODE_ERROR, |forger| {
        forger.send(22, &[24, 0, 0, 0])
    });
    refused(&suites, ILLEGAL_PARAMETER, |forger| {
        forger.send(22, &[24, 0, 0, 1, 2])
    });
    // Another message behind it in the record, and another record amid it.
    refused(&suites, UNEXPECTED_MESSAGE, |forger| {
        forger.send(22, &[24, 0, 0, 1, 0, 24, 0, 0, 1, 0])
    });
    refused(&suites, UNEXPECTED_MESSAGE, |forger| {
        let mut both = forger.tx.seal(forger.tx_number, 22, &[24, 0]);
        both.extend(forger.tx.seal(forger.tx_number + 1, 23, b"GET"));
        forger.send_raw(&both)
    });
}

#[test]
fn malformed_alerts_and_too_many_useless_records() {
    refused(&SUITES, UNEXPECTED_MESSAGE, |forger| forger.send(21, &[]));
    for content in [&[1][..], &[1, 0, 0]] {
        refused(&SUITES, DECODE_ERROR, |forger| forger.send(21, content));
    }
    refused(&of(Version::Tls12), ILLEGAL_PARAMETER, |forger| {
        forger.send(21, &[3, 42])
    });
    let site = Site::plain();
    for suite in SUITES {
        // Nothing, and user_canceled.
        for (content_type, content) in [(23, &[][..]), (21, &[1, 90])] {
            let mut forger = Forger::new(&site, suite);
            for _ in 0..32 {
                assert_eq!(forger.send(content_type, content), []);
            }
            let alert = forger.send(content_type, content);
            assert_eq!(alert, [(21, vec![2, UNEXPECTED_MESSAGE])]);
        }
    }
}

#[test]
fn what_is_no_tls() {
    let site = Site::plain();
    for bytes in [
        &b"SSH-2.0-OpenSSH_9.7\r\n"[..],
        b"\x16\x02\x00\x00\x10xxx",
        &[23; 9],
    ] {
        let mut server = TlsServer::new(&site);
        server.receive(bytes);
        assert_eq!(server.transmit(), [21, 3, 3, 0, 2, 2, UNEXPECTED_MESSAGE]);
        assert_eq!(server.events, [Event::Failed(Error::NotTls)]);
        assert!(server.connection.is_finished());
    }
}

#[test]
fn a_request_without_tls_gets_an_alert_or_a_response() {
    let site = Site::plain();
    for (request, is_head) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], false),
        (b"HEAD / HTTP/1.1\r\n\r\n", true),
    ] {
        for response in [None, Some(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec())] {
            let mut server = TlsServer::new(&site);
            for byte in request {
                server.receive(&[*byte]);
            }
            assert_eq!(server.events, [Event::Failed(Error::PlainHttp { is_head })]);
            let expected = response.clone();
            if let Some(response) = response {
                server.connection.answer_plain_http(response);
            }
            let alert = vec![21, 3, 3, 0, 2, 2, UNEXPECTED_MESSAGE];
            assert_eq!(server.transmit(), expected.unwrap_or(alert));
            assert!(server.connection.is_finished());
        }
    }
}

#[test]
fn a_first_record_that_is_too_long() {
    let site = Site::plain();
    let mut server = TlsServer::new(&site);
    server.receive(&[22, 3, 1, 0xff, 0xff]);
    assert_eq!(server.transmit(), [21, 3, 3, 0, 2, 2, RECORD_OVERFLOW]);
}

#[test]
fn a_plaintext_record_that_is_too_long() {
    let site = Site::plain();
    let [high, low] = ((1_u16 << 14) + 1).to_be_bytes();
    for bytes in [
        vec![22, 3, 1, high, low],
        vec![22, 3, 1, 0, 1, 1, 22, 3, 3, high, low],
        vec![22, 3, 1, 0, 1, 1, 21, 3, 3, high, low],
        vec![22, 3, 1, 0, 1, 1, 20, 3, 3, high, low],
    ] {
        let mut server = TlsServer::new(&site);
        server.receive(&bytes);
        assert_eq!(server.transmit(), [21, 3, 3, 0, 2, 2, RECORD_OVERFLOW]);
        assert_eq!(server.events, [Event::Failed(Error::OversizedRecord)]);
    }
}

/// What goes wrong behind the server's Finished is said under its key, or in the clear by TLS 1.2.
#[test]
fn a_record_that_is_too_long_before_the_clients_finished() {
    let site = Site::plain();
    for suite in SUITES {
        for (content_type, length) in [(22, (1 << 14) + 1), (23, (1 << 14) + 257_u16)] {
            let mut pair = Pair::new(&site, Arc::new(site.client_config(suite)));
            let mut hello = Vec::new();
            pair.client.write_tls(&mut hello).unwrap();
            pair.server.receive(&hello);
            let [high, low] = length.to_be_bytes();
            pair.server.receive(&[content_type, 3, 3, high, low]);
            let said = pair.server.transmit();
            let told = AlertDescription::RecordOverflow;
            assert_eq!(
                pair.client_receives(&said),
                Err(rustls::Error::AlertReceived(told)),
                "{suite:?}"
            );
            assert_eq!(pair.server.events, [Event::Failed(Error::OversizedRecord)]);
        }
    }
}

#[test]
fn errors_that_rustls_has_no_alert_for() {
    let site = Site::plain();
    // A message whose second part is of another type (RFC 8446 §5.1).
    for other in [
        &[20, 3, 3, 0, 1, 1][..],
        &[21, 3, 3, 0, 2, 2, 10],
        &[23, 3, 3, 0, 1, 0],
    ] {
        let bytes = [&[22, 3, 1, 0, 4, 1, 0, 0, 50], other].concat();
        let mut server = TlsServer::new(&site);
        server.receive(&bytes);
        assert_eq!(server.transmit(), [21, 3, 3, 0, 2, 2, UNEXPECTED_MESSAGE]);
        let [Event::Failed(Error::Untold(error))] = &server.events[..] else {
            panic!("{:?}", server.events);
        };
        assert!(
            matches!(error, rustls::Error::PeerMisbehaved(_)),
            "{error:?}"
        );
        assert!(server.connection.is_finished());
    }
}

#[test]
fn a_hello_that_makes_no_sense() {
    let site = Site::plain();
    let mut server = TlsServer::new(&site);
    server.receive(&[22, 3, 1, 0, 8, 1, 0, 0, 4, 3, 3, 0, 0]);
    assert_eq!(server.transmit(), [21, 3, 3, 0, 2, 2, DECODE_ERROR]);
    assert!(server.connection.is_finished());
}

/// rustls looks twice at what it cannot take apart, if it is let.
#[test]
fn a_hello_that_is_damaged_or_comes_twice_gets_one_alert() {
    let site = Site::plain();
    for suite in SUITES {
        let mut hello = Vec::new();
        let name = ServerName::try_from("localhost").unwrap();
        let mut client = ClientConnection::new(Arc::new(site.client_config(suite)), name).unwrap();
        client.write_tls(&mut hello).unwrap();
        let damaged = (5..hello.len()).map(|at| {
            let mut damaged = hello.clone();
            damaged[at] ^= 0x41;
            damaged
        });
        let mut alerts = 0;
        for bytes in damaged.chain([hello.repeat(2)]) {
            let mut server = TlsServer::new(&site);
            server.receive(&bytes);
            let said = server.transmit();
            let mut rest = &said[..];
            let mut own = 0;
            while let [content_type, _, _, high, low, behind @ ..] = rest {
                own += usize::from(*content_type == 21);
                rest = &behind[usize::from(u16::from_be_bytes([*high, *low]))..];
            }
            assert!(own <= 1, "{bytes:?}");
            assert!(own == 0 || server.connection.is_finished());
            alerts += own;
        }
        assert!(alerts > 20, "{alerts}");
    }
}

#[test]
fn a_handshake_that_never_ends() {
    let settings = Settings {
        limits: Limits {
            handshake_bytes_max: 20_000,
            ..Limits::default()
        },
        ..Settings::default()
    };
    let site = Site::new(&[Identity::ecdsa(&["localhost"])], &settings);
    let mut server = TlsServer::new(&site);
    // A hello of 40 kB, in records of a few bytes.
    server.receive(&[22, 3, 1, 0, 4, 1, 0, 0x9c, 0x40]);
    for _ in 0..2000 {
        server.receive(&[22, 3, 1, 0, 5, 3, 3, 3, 3, 3]);
    }
    assert_eq!(server.events, [Event::Failed(Error::HandshakeTooLong)]);
    assert_eq!(server.transmit(), [21, 3, 3, 0, 2, 2, INTERNAL_ERROR]);
}

/// A ClientHello of TLS 1.2 with these suites.
fn hello(suites: &[[u8; 2]], extensions: &[u8]) -> Vec<u8> {
    let suites = suites.concat();
    let body = [
        &[3, 3][..],
        &[9; 32],
        &[0],
        &(suites.len() as u16).to_be_bytes(),
        &suites,
        &[1, 0],
        &(extensions.len() as u16).to_be_bytes(),
        extensions,
    ]
    .concat();
    let length = (body.len() as u32).to_be_bytes();
    let message = [&[1], &length[1..], &body[..]].concat();
    let length = (message.len() as u16).to_be_bytes();
    [&[22, 3, 1], &length[..], &message[..]].concat()
}

#[test]
fn a_fallback_to_tls_1_2_is_noticed() {
    const SCSV: [u8; 2] = [0x56, 0];
    const ECDHE_ECDSA_AES_128_GCM: [u8; 2] = [0xc0, 0x2b];
    const INAPPROPRIATE_FALLBACK: u8 = 86;
    let site = Site::plain();
    let mut server = TlsServer::new(&site);
    server.receive(&hello(&[ECDHE_ECDSA_AES_128_GCM, SCSV], &[]));
    assert_eq!(
        server.transmit(),
        [21, 3, 3, 0, 2, 2, INAPPROPRIATE_FALLBACK]
    );
    assert_eq!(server.events, [Event::Failed(Error::InappropriateFallback)]);

    // Nor is it missed in pieces: records are not authentic yet.
    let whole = hello(&[ECDHE_ECDSA_AES_128_GCM, SCSV], &[]);
    for cut in [1, 3, 4, 5, 40, whole.len() - 6] {
        let mut server = TlsServer::new(&site);
        let (first, second) = whole[5..].split_at(cut);
        for piece in [first, second] {
            let header = [22, 3, 1, 0, piece.len() as u8];
            server.receive(&[&header, piece].concat());
        }
        assert_eq!(server.events, [Event::Failed(Error::InappropriateFallback)]);
    }

    // Not by a server that has nothing better itself, nor if the client offers TLS 1.3 all the
    // same.
    let settings = Settings {
        versions: vec![Version::Tls12],
        ..Settings::default()
    };
    let old = Site::new(&[Identity::ecdsa(&["localhost"])], &settings);
    let versions = [0, 43, 0, 5, 4, 3, 4, 3, 3];
    for (site, extensions) in [(&old, &[][..]), (&site, &versions)] {
        let mut server = TlsServer::new(site);
        server.receive(&hello(&[ECDHE_ECDSA_AES_128_GCM, SCSV], extensions));
        assert!(
            !server
                .events
                .contains(&Event::Failed(Error::InappropriateFallback))
        );
    }
}

#[test]
fn versions_that_are_too_old() {
    let site = Site::plain();
    for version in [0, 1, 2] {
        let mut server = TlsServer::new(&site);
        let mut hello = hello(&[[0xc0, 0x2b]], &[]);
        hello[10] = version;
        server.receive(&hello);
        assert_eq!(server.transmit(), [21, 3, 3, 0, 2, 2, PROTOCOL_VERSION]);
        let version = 0x0300 + u16::from(version);
        assert_eq!(server.events, [Event::Failed(Error::OldVersion(version))]);
    }
}
