//! Clients that break the rules of TLS get the alert that RFC 8446 §6 or RFC 5246 §7.2 has for it,
//! and no other client notices. What happens to every byte of a record is in
//! `tls/tests/tls/hostile.rs`; here it goes through the program.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use aes_gcm::Aes128Gcm;
use aes_gcm::aead::{Aead, KeyInit, Payload};
use rustls::ConnectionTrafficSecrets;
use testbed::http::{be_patient, request};
use testbed::namespace::isolated;
use testbed::site::KnownFile;

use crate::https::{Certificate, Choice, Client, HTTPS, finish, serve_tls};
use crate::stat::host_counted;

const CHANGE_CIPHER_SPEC: u8 = 20;
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;

const FATAL: u8 = 2;
const WARNING: u8 = 1;

const UNEXPECTED_MESSAGE: u8 = 10;
const BAD_RECORD_MAC: u8 = 20;
const RECORD_OVERFLOW: u8 = 22;
const HANDSHAKE_FAILURE: u8 = 40;
const ILLEGAL_PARAMETER: u8 = 47;
const DECODE_ERROR: u8 = 50;
const PROTOCOL_VERSION: u8 = 70;
const INAPPROPRIATE_FALLBACK: u8 = 86;
const NO_RENEGOTIATION: u8 = 100;
const NO_APPLICATION_PROTOCOL: u8 = 120;

/// Longest plaintext of a record.
const PLAINTEXT_MAX: usize = 1 << 14;

/// Keys of one direction, for AES-128-GCM.
struct Keys {
    is_13: bool,
    key: Vec<u8>,
    iv: [u8; 12],
    number: u64,
}

impl Keys {
    fn new(is_13: bool, (number, secrets): (u64, ConnectionTrafficSecrets)) -> Self {
        let ConnectionTrafficSecrets::Aes128Gcm { key, iv } = secrets else {
            panic!("another cipher");
        };
        Self {
            is_13,
            key: key.as_ref().to_vec(),
            iv: iv.as_ref().try_into().unwrap(),
            number,
        }
    }

    fn nonce(&self) -> [u8; 12] {
        let mut nonce = self.iv;
        for (byte, number) in nonce[4..].iter_mut().zip(self.number.to_be_bytes()) {
            *byte ^= number;
        }
        nonce
    }

    fn cipher(&self) -> Aes128Gcm {
        Aes128Gcm::new_from_slice(&self.key).unwrap()
    }

    /// The additional data of TLS 1.2 (RFC 5246 §6.2.3.3).
    fn aad_12(&self, content_type: u8, length: usize) -> Vec<u8> {
        let mut aad = self.number.to_be_bytes().to_vec();
        aad.extend([content_type, 3, 3]);
        aad.extend((length as u16).to_be_bytes());
        aad
    }

    /// The next record.
    fn seal(&mut self, content_type: u8, content: &[u8]) -> Vec<u8> {
        let nonce = self.nonce();
        let (outer_type, explicit, sealed) = if self.is_13 {
            let inner = [content, &[content_type]].concat();
            let length = (inner.len() + 16) as u16;
            let aad = [&[APPLICATION_DATA, 3, 3][..], &length.to_be_bytes()].concat();
            let payload = Payload {
                msg: &inner,
                aad: &aad,
            };
            let sealed = self.cipher().encrypt(&nonce.into(), payload).unwrap();
            (APPLICATION_DATA, &nonce[..0], sealed)
        } else {
            let aad = self.aad_12(content_type, content.len());
            let payload = Payload {
                msg: content,
                aad: &aad,
            };
            let sealed = self.cipher().encrypt(&nonce.into(), payload).unwrap();
            (content_type, &nonce[4..], sealed)
        };
        self.number += 1;
        let length = (explicit.len() + sealed.len()) as u16;
        [
            &[outer_type, 3, 3][..],
            &length.to_be_bytes(),
            explicit,
            &sealed,
        ]
        .concat()
    }

    /// Content type and content of the next record.
    fn open(&mut self, record: &[u8]) -> (u8, Vec<u8>) {
        let (header, body) = record.split_at(5);
        let mut nonce = self.nonce();
        let opened = if self.is_13 {
            let payload = Payload {
                msg: body,
                aad: header,
            };
            let mut inner = self.cipher().decrypt(&nonce.into(), payload).unwrap();
            (inner.pop().unwrap(), inner)
        } else {
            let (explicit, sealed) = body.split_at(8);
            nonce[4..].copy_from_slice(explicit);
            let aad = self.aad_12(header[0], sealed.len() - 16);
            let payload = Payload {
                msg: sealed,
                aad: &aad,
            };
            let opened = self.cipher().decrypt(&nonce.into(), payload).unwrap();
            (header[0], opened)
        };
        self.number += 1;
        opened
    }
}

/// Reads a record, header included; `None` if there is none any more.
fn read_record(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut record = vec![0; 5];
    match stream.read_exact(&mut record) {
        Ok(()) => {}
        Err(error)
            if [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset].contains(&error.kind()) =>
        {
            return None;
        }
        Err(error) => panic!("reading a record: {error}"),
    }
    let length = u16::from_be_bytes([record[3], record[4]]);
    record.resize(5 + usize::from(length), 0);
    stream.read_exact(&mut record[5..]).unwrap();
    Some(record)
}

/// A client that has done the handshake, and sends what it likes from then on.
struct Forger {
    stream: TcpStream,
    tx: Keys,
    rx: Keys,
}

impl Forger {
    /// rustls does the handshake, a record at a time, so that nothing of what follows is taken.
    fn new(trusted: &Certificate, is_13: bool) -> Self {
        let client = Client::new(&[trusted], Choice::Aes128 { is_13 });
        let (mut tls, mut stream) = client.connect(HTTPS[0], "localhost").unwrap();
        loop {
            while tls.wants_write() {
                tls.write_tls(&mut stream).unwrap();
            }
            if !tls.is_handshaking() {
                break;
            }
            let record = read_record(&mut stream).expect("a handshake");
            let mut rest = &record[..];
            while !rest.is_empty() {
                tls.read_tls(&mut rest).unwrap();
                tls.process_new_packets().unwrap();
            }
        }
        let secrets = tls.dangerous_extract_secrets().unwrap();
        Self {
            stream,
            tx: Keys::new(is_13, secrets.tx),
            rx: Keys::new(is_13, secrets.rx),
        }
    }

    fn send(&mut self, content_type: u8, content: &[u8]) {
        let record = self.tx.seal(content_type, content);
        self.send_raw(&record);
    }

    fn send_raw(&mut self, bytes: &[u8]) {
        // The server may have had enough already.
        let _ = self.stream.write_all(bytes);
    }

    /// The next record that is no ticket.
    fn receive(&mut self) -> Option<(u8, Vec<u8>)> {
        loop {
            let record = read_record(&mut self.stream)?;
            let (content_type, content) = self.rx.open(&record);
            if content_type != HANDSHAKE {
                return Some((content_type, content));
            }
        }
    }

    /// Downloads a file.
    fn get(&mut self, file: &KnownFile) {
        self.send(APPLICATION_DATA, request("GET", file.name()).as_bytes());
        let mut received = Vec::new();
        let head = loop {
            if let Some(end) = received.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                break end + 4;
            }
            received.extend(self.application_data());
        };
        while received.len() < head + file.size() as usize {
            received.extend(self.application_data());
        }
        assert_eq!(file.check(0, &received[head..]), Ok(()));
    }

    fn application_data(&mut self) -> Vec<u8> {
        let (content_type, content) = self.receive().expect("a record");
        assert_eq!(content_type, APPLICATION_DATA, "{content:?}");
        content
    }

    /// Asserts that it gets this alert, and that the connection is over.
    #[track_caller]
    fn ends_with(mut self, alert: u8, what: &str) {
        let last = self.receive();
        assert_eq!(last, Some((ALERT, vec![FATAL, alert])), "{what}");
        assert_eq!(self.receive(), None, "{what}: nothing comes after it");
    }
}

/// What is done to a connection by the version of which it is; the alert that it brings; what it is
/// called.
type Case = (&'static str, &'static [bool], u8, fn(&mut Forger));

const BOTH: &[bool] = &[true, false];
const TLS13: &[bool] = &[true];
const TLS12: &[bool] = &[false];

/// A ClientHello that comes in the midst of a connection.
const HELLO: [u8; 8] = [1, 0, 0, 4, 3, 3, 0, 0];

const CASES: &[Case] = &[
    ("a bad tag", BOTH, BAD_RECORD_MAC, |forger| {
        let mut record = forger.tx.seal(APPLICATION_DATA, b"GET");
        *record.last_mut().unwrap() ^= 1;
        forger.send_raw(&record);
    }),
    (
        "a record of which the middle is missing",
        BOTH,
        BAD_RECORD_MAC,
        |forger| {
            let mut record = forger.tx.seal(APPLICATION_DATA, &[b'x'; 100]);
            record.drain(40..60);
            record[4] -= 20;
            forger.send_raw(&record);
        },
    ),
    (
        "a record too short to be authentic",
        BOTH,
        BAD_RECORD_MAC,
        |forger| {
            forger.send_raw(&[APPLICATION_DATA, 3, 3, 0, 4, 1, 2, 3, 4]);
        },
    ),
    (
        "a record that comes before its time",
        BOTH,
        BAD_RECORD_MAC,
        |forger| {
            forger.tx.number += 1;
            forger.send(APPLICATION_DATA, b"GET");
        },
    ),
    (
        "a record that comes twice",
        BOTH,
        BAD_RECORD_MAC,
        |forger| {
            let record = forger.tx.seal(APPLICATION_DATA, b"GET");
            forger.send_raw(&record);
            forger.send_raw(&record);
        },
    ),
    (
        "a record that says it is too long",
        BOTH,
        RECORD_OVERFLOW,
        |forger| {
            forger.send_raw(&[APPLICATION_DATA, 3, 3, 0xff, 0xff]);
        },
    ),
    (
        "a record whose content is too long",
        BOTH,
        RECORD_OVERFLOW,
        |forger| {
            forger.send(APPLICATION_DATA, &[b'x'; PLAINTEXT_MAX + 1]);
        },
    ),
    (
        "a record that is not sealed",
        TLS13,
        UNEXPECTED_MESSAGE,
        |forger| {
            forger.send_raw(&[ALERT, 3, 3, 0, 2, 1, 0]);
        },
    ),
    (
        "a record that is not sealed",
        TLS12,
        BAD_RECORD_MAC,
        |forger| {
            forger.send_raw(&[ALERT, 3, 3, 0, 2, 1, 0]);
        },
    ),
    ("a change of ciphers", BOTH, UNEXPECTED_MESSAGE, |forger| {
        forger.send(CHANGE_CIPHER_SPEC, &[1]);
    }),
    ("a heartbeat", BOTH, UNEXPECTED_MESSAGE, |forger| {
        forger.send(24, &[1, 0, 0]);
    }),
    (
        "another version in mid-stream",
        TLS12,
        PROTOCOL_VERSION,
        |forger| {
            let mut record = forger.tx.seal(APPLICATION_DATA, b"GET");
            record[2] = 1;
            forger.send_raw(&record);
        },
    ),
    ("another handshake", TLS13, UNEXPECTED_MESSAGE, |forger| {
        forger.send(HANDSHAKE, &HELLO);
    }),
    (
        "another handshake, again and again",
        TLS12,
        UNEXPECTED_MESSAGE,
        |forger| {
            forger.send(HANDSHAKE, &HELLO);
            let refused = (ALERT, vec![WARNING, NO_RENEGOTIATION]);
            assert_eq!(forger.receive(), Some(refused));
            forger.send(HANDSHAKE, &HELLO);
        },
    ),
    (
        "a message that may not come",
        BOTH,
        UNEXPECTED_MESSAGE,
        |forger| {
            forger.send(HANDSHAKE, &[11, 0, 0, 0]);
        },
    ),
    (
        "a KeyUpdate of the wrong length",
        TLS13,
        DECODE_ERROR,
        |forger| {
            forger.send(HANDSHAKE, &[24, 0, 0, 2, 0, 0]);
        },
    ),
    (
        "a KeyUpdate with a wrong value",
        TLS13,
        ILLEGAL_PARAMETER,
        |forger| {
            forger.send(HANDSHAKE, &[24, 0, 0, 1, 2]);
        },
    ),
    (
        "an alert of the wrong length",
        BOTH,
        DECODE_ERROR,
        |forger| {
            forger.send(ALERT, &[FATAL]);
        },
    ),
];

#[test]
fn a_client_that_breaks_the_rules_gets_an_alert_and_no_other_notices() {
    isolated(|site| {
        let file = site.file("file", 30_000_000).unwrap();
        let small = site.file("small", 50_000).unwrap();
        let certificate = Certificate::new(site.outside(), "server", "ec", &["localhost"]);
        let _splitway = serve_tls(&site, &[&certificate], &[]);
        let others = Client::new(&[&certificate], Choice::Any);
        let mut undisturbed = others.open(HTTPS[1]).unwrap();
        undisturbed.send_get(file.name()).unwrap();
        undisturbed.read_file_head(&file).unwrap();
        let part = file.size() / (2 * CASES.len() as u64);
        let mut at = 0;
        for (what, versions, alert, misbehave) in CASES {
            for is_13 in *versions {
                let mut forger = Forger::new(&certificate, *is_13);
                forger.get(&small);
                misbehave(&mut forger);
                forger.ends_with(*alert, &format!("{what}, TLS 1.3: {is_13}"));
                undisturbed.read_file_part(&file, at..at + part).unwrap();
                at += part;
            }
        }
        undisturbed.read_file_part(&file, at..file.size()).unwrap();
        undisturbed.get(&small).unwrap();
        finish(undisturbed).unwrap();
    });
}

#[test]
fn a_refused_renegotiation_leaves_the_connection_as_it_was() {
    isolated(|site| {
        let file = site.file("file", 50_000).unwrap();
        let certificate = Certificate::new(site.outside(), "server", "ec", &["localhost"]);
        let _splitway = serve_tls(&site, &[&certificate], &[]);
        let mut forger = Forger::new(&certificate, false);
        forger.send(HANDSHAKE, &HELLO);
        let refused = (ALERT, vec![WARNING, NO_RENEGOTIATION]);
        assert_eq!(forger.receive(), Some(refused));
        forger.get(&file);
    });
}

#[test]
fn an_alert_takes_the_place_of_what_was_still_to_come() {
    isolated(|site| {
        let file = site.file("file", 20_000_000).unwrap();
        let small = site.file("small", 50_000).unwrap();
        let certificate = Certificate::new(site.outside(), "server", "ec", &["localhost"]);
        let _splitway = serve_tls(&site, &[&certificate], &[]);
        for is_13 in [true, false] {
            let mut forger = Forger::new(&certificate, is_13);
            forger.get(&small);
            forger.send(APPLICATION_DATA, request("GET", file.name()).as_bytes());
            forger.application_data();
            let mut record = forger.tx.seal(APPLICATION_DATA, b"GET");
            *record.last_mut().unwrap() ^= 1;
            forger.send_raw(&record);
            let mut received = 0;
            let alert = loop {
                match forger.receive().expect("an alert") {
                    (APPLICATION_DATA, content) => received += content.len() as u64,
                    (content_type, content) => break (content_type, content),
                }
            };
            assert_eq!(alert, (ALERT, vec![FATAL, BAD_RECORD_MAC]));
            assert!(received < file.size(), "it is cut off");
            assert_eq!(forger.receive(), None);
        }
    });
}

/// A ClientHello of TLS 1.2 with these suites.
fn hello(version: u8, suites: &[[u8; 2]], extensions: &[u8]) -> Vec<u8> {
    let suites = suites.concat();
    let body = [
        &[3, version][..],
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
    [&[HANDSHAKE, 3, 1], &length[..], &message[..]].concat()
}

const ECDHE_ECDSA_AES_128_GCM: [u8; 2] = [0xc0, 0x2b];
const RSA_AES_128_CBC: [u8; 2] = [0x00, 0x2f];
const FALLBACK_SCSV: [u8; 2] = [0x56, 0x00];

/// Curve P-256, ECDSA with it, and extended master secret.
const EXTENSIONS: &[u8] = &[
    0, 10, 0, 4, 0, 2, 0, 23, 0, 13, 0, 4, 0, 2, 4, 3, 0, 23, 0, 0,
];

#[test]
fn hellos_that_are_refused() {
    isolated(|site| {
        let file = site.file("file", 50_000).unwrap();
        let certificate = Certificate::new(site.outside(), "server", "ec", &["localhost"]);
        let _splitway = serve_tls(&site, &[&certificate], &[]);
        let spdy = [EXTENSIONS, &[0, 16, 0, 7, 0, 5, 4], b"spdy"].concat();
        for (what, bytes, alert) in [
            (
                "a fallback",
                hello(3, &[ECDHE_ECDSA_AES_128_GCM, FALLBACK_SCSV], EXTENSIONS),
                INAPPROPRIATE_FALLBACK,
            ),
            (
                "TLS 1.1",
                hello(2, &[ECDHE_ECDSA_AES_128_GCM], EXTENSIONS),
                PROTOCOL_VERSION,
            ),
            (
                "TLS 1.0",
                hello(1, &[ECDHE_ECDSA_AES_128_GCM], EXTENSIONS),
                PROTOCOL_VERSION,
            ),
            (
                "SSL 3.0",
                hello(0, &[ECDHE_ECDSA_AES_128_GCM], &[]),
                PROTOCOL_VERSION,
            ),
            (
                "old ciphers",
                hello(3, &[RSA_AES_128_CBC], EXTENSIONS),
                HANDSHAKE_FAILURE,
            ),
            (
                "another protocol",
                hello(3, &[ECDHE_ECDSA_AES_128_GCM], &spdy),
                NO_APPLICATION_PROTOCOL,
            ),
            (
                "a hello that is cut off",
                vec![HANDSHAKE, 3, 1, 0, 8, 1, 0, 0, 4, 3, 3, 0, 0],
                DECODE_ERROR,
            ),
            (
                "a record that is too long",
                vec![HANDSHAKE, 3, 1, 0xff, 0xff],
                RECORD_OVERFLOW,
            ),
            (
                "text",
                b"SSH-2.0-OpenSSH_9.7\r\n".to_vec(),
                UNEXPECTED_MESSAGE,
            ),
            (
                "data before a handshake",
                vec![APPLICATION_DATA, 3, 3, 0, 1, 1],
                UNEXPECTED_MESSAGE,
            ),
        ] {
            let mut stream = TcpStream::connect(HTTPS[0]).unwrap();
            be_patient(&stream).unwrap();
            stream.write_all(&bytes).unwrap();
            let mut record = read_record(&mut stream).expect(what);
            // Whichever version was agreed upon before it failed.
            record[2] = 3;
            assert_eq!(record, [ALERT, 3, 3, 0, 2, FATAL, alert], "{what}");
            assert_eq!(read_record(&mut stream), None, "{what}");
        }
        let client = Client::new(&[&certificate], Choice::Any);
        client.download(HTTPS[0], &file).unwrap();
    });
}

/// A reset would take the response from clients that still send.
#[test]
fn a_request_without_tls_is_answered_in_plain_text() {
    const BODY_BYTES: usize = 1 << 20;

    isolated(|site| {
        let file = site.file("file", 100_000).unwrap();
        let certificate = Certificate::new(site.outside(), "server", "ec", &["localhost"]);
        let _splitway = serve_tls(&site, &[&certificate], &[]);
        for address in HTTPS {
            for (method, body_bytes) in [("GET", 0), ("HEAD", 0), ("POST", BODY_BYTES)] {
                let mut stream = TcpStream::connect(address).unwrap();
                be_patient(&stream).unwrap();
                stream
                    .write_all(request(method, file.name()).as_bytes())
                    .unwrap();
                stream.write_all(&vec![b'x'; body_bytes]).unwrap();
                let mut response = String::new();
                stream.read_to_string(&mut response).unwrap();
                let (head, body) = response.split_once("\r\n\r\n").unwrap();
                assert!(head.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{head}");
                assert!(head.contains("\r\nConnection: close"), "{head}");
                assert_eq!(body.contains("https://"), method != "HEAD", "{body}");
            }
        }
        assert_eq!(host_counted("http_responses_4xx"), 6);
        let client = Client::new(&[&certificate], Choice::Any);
        client.download(HTTPS[0], &file).unwrap();
    });
}

#[test]
fn a_download_that_is_cut_off_does_not_look_whole() {
    isolated(|site| {
        let file = site.file("file", 20_000_000).unwrap();
        let certificate = Certificate::new(site.outside(), "server", "ec", &["localhost"]);
        let mut splitway = serve_tls(&site, &[&certificate], &[]);
        let client = Client::new(&[&certificate], Choice::Any);
        let mut connection = client.open(HTTPS[0]).unwrap();
        connection.send_get(file.name()).unwrap();
        connection.read_file_head(&file).unwrap();
        connection.read_file_part(&file, 0..1_000_000).unwrap();
        // The file is another one now, and what was to come of it can never come.
        let path = site.root().join(file.name());
        std::fs::write(&path, vec![0x5a; 20_000_000]).unwrap();
        let failure = connection
            .read_file_part(&file, 1_000_000..file.size())
            .unwrap_err()
            .to_string();
        assert!(!failure.contains("wrong byte"), "{failure}");
        assert!(
            !failure.contains("the server finished"),
            "no close_notify: {failure}"
        );
        splitway.end_with(rustix::process::Signal::TERM).unwrap();
    });
}
