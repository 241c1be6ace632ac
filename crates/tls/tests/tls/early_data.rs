//! Early data (0-RTT), which is never accepted: it is skipped as RFC 8446 §4.2.10 says.

use std::io::Write;
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::{ClientConfig, ServerConfig, ServerConnection};
use tls::{AlertDescription, Cipher, Config, Error, Event, Settings, Version};

use fakes::keys::{Keys, suite};
use fakes::site::{Identity, Site, UNIX_TIME};
use fakes::tls_pair::{Pair, Secrets};

const EARLY_DATA_BYTES_MAX: usize = 16 << 10;
const CIPHERS: [Cipher; 3] = [
    Cipher::Aes128Gcm,
    Cipher::Aes256Gcm,
    Cipher::ChaCha20Poly1305,
];

/// A client with a ticket of another server of the same name, which has allowed early data.
fn client_with_ticket(
    site: &Site,
    identity: &Identity,
    cipher: Cipher,
    record_bytes: usize,
) -> ClientConfig {
    let mut client = site.client_config(suite(Version::Tls13, cipher));
    client.enable_early_data = true;
    client.max_fragment_size = Some(record_bytes + 5);
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![identity.certificate.der().clone()],
            identity.key.serialize_der().try_into().unwrap(),
        )
        .unwrap();
    server.max_early_data_size = 1 << 20;
    let mut server = ServerConnection::new(Arc::new(server)).unwrap();
    let name = "localhost".try_into().unwrap();
    let mut connection = rustls::ClientConnection::new(Arc::new(client.clone()), name).unwrap();
    for _ in 0..4 {
        let mut bytes = Vec::new();
        while connection.wants_write() {
            connection.write_tls(&mut bytes).unwrap();
        }
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            server.read_tls(&mut rest).unwrap();
            server.process_new_packets().unwrap();
        }
        bytes.clear();
        while server.wants_write() {
            server.write_tls(&mut bytes).unwrap();
        }
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            connection.read_tls(&mut rest).unwrap();
            connection.process_new_packets().unwrap();
        }
    }
    client
}

fn site_and_client(cipher: Cipher, record_bytes: usize) -> (Site, ClientConfig) {
    let identities = [Identity::ecdsa(&["localhost"])];
    let site = Site::new(&identities, &Settings::default());
    let client = client_with_ticket(&site, &identities[0], cipher, record_bytes);
    (site, client)
}

/// A client that has said so much before it hears of the server.
fn pair_with_early_data(site: &Site, client: ClientConfig, bytes: usize) -> Pair {
    let mut pair = Pair::new(site, Arc::new(client));
    let mut early = pair.client.early_data().expect("the ticket allows it");
    assert_eq!(early.write(&vec![b'e'; bytes]).unwrap(), bytes);
    pair
}

#[test]
fn rejected_early_data_is_skipped() {
    for cipher in CIPHERS {
        for record_bytes in [100, 1000, 8192, 9000, EARLY_DATA_BYTES_MAX] {
            let (site, client) = site_and_client(cipher, record_bytes);
            let mut pair = pair_with_early_data(&site, client, EARLY_DATA_BYTES_MAX);
            pair.pump().unwrap();
            assert!(!pair.client.is_early_data_accepted());
            assert!(!pair.agreed().is_resumed);
            assert_eq!(pair.server.received, b"");
            pair.download(3, 100_000);
        }
    }
}

#[test]
fn more_early_data_than_is_skipped_ends_the_handshake_with_an_alert() {
    for cipher in CIPHERS {
        let (site, client) = site_and_client(cipher, 1000);
        let mut pair = pair_with_early_data(&site, client, EARLY_DATA_BYTES_MAX + 1);
        let told = AlertDescription::UnexpectedMessage;
        // The alert is sealed with the key behind the server's Finished, and the client opens it.
        assert_eq!(pair.pump(), Err(rustls::Error::AlertReceived(told)));
        let error = Error::TooMany("bytes of early data");
        assert_eq!(pair.server.events, [Event::Failed(error)]);
    }
}

#[test]
fn early_data_before_a_second_hello_is_skipped() {
    let provider = CryptoProvider {
        kx_groups: vec![aws_lc_rs::kx_group::SECP384R1],
        ..aws_lc_rs::default_provider()
    };
    for (bytes, is_taken) in [
        (EARLY_DATA_BYTES_MAX, true),
        (EARLY_DATA_BYTES_MAX + 1, false),
    ] {
        let (mut site, client) = site_and_client(Cipher::Aes128Gcm, 1000);
        let certificates = Arc::clone(&site.certificates);
        let settings = Settings::default();
        site.config = Arc::new(
            Config::with_provider(certificates, &settings, UNIX_TIME, provider.clone(), None)
                .unwrap(),
        );
        let mut pair = pair_with_early_data(&site, client, bytes);
        let result = pair.pump();
        if is_taken {
            pair.download(3, 100_000)
        } else {
            let told = AlertDescription::UnexpectedMessage;
            assert_eq!(result, Err(rustls::Error::AlertReceived(told)));
        }
    }
}

/// What rustls has in part when it comes behind early data must not be taken for more of it.
#[test]
fn a_finished_in_two_records_behind_early_data() {
    let cipher = Cipher::Aes128Gcm;
    let (site, mut client) = site_and_client(cipher, 1000);
    let secrets = Arc::new(Secrets::default());
    client.key_log = Arc::clone(&secrets) as Arc<dyn rustls::KeyLog>;
    let mut pair = pair_with_early_data(&site, client, 5000);
    let mut bytes = Vec::new();
    while pair.client.wants_write() {
        pair.client.write_tls(&mut bytes).unwrap();
    }
    pair.server.receive(&bytes);
    let flight = pair.server.transmit();
    pair.client_receives(&flight).unwrap();
    bytes.clear();
    while pair.client.wants_write() {
        pair.client.write_tls(&mut bytes).unwrap();
    }
    let secret = secrets.0.lock().unwrap()["CLIENT_HANDSHAKE_TRAFFIC_SECRET"].clone();
    let keys = Keys::derived(cipher, &secret);
    assert_eq!(bytes[0], 23, "nothing but Finished");
    let (content_type, finished) = keys.open(0, &bytes);
    let (first, second) = finished.split_at(3);
    pair.server.receive(&keys.seal(0, content_type, first));
    assert_eq!(pair.server.events, []);
    pair.server.receive(&keys.seal(1, content_type, second));
    assert!(matches!(pair.server.events[..], [Event::Connected(_)]));
    let answer = pair.server.transmit();
    pair.client_receives(&answer).unwrap();
    pair.download(3, 100_000);
}
