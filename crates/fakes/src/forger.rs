//! A TLS client that sends arbitrary records once its handshake is complete.

use std::sync::Arc;

use tls::Suite;

use crate::keys::{Keys, expand};
use crate::site::Site;
use crate::tls_pair::{Pair, Secrets};
use crate::tls_server::TlsServer;

/// A client that has done the handshake, and sends arbitrary records from then on.
pub struct Forger {
    /// The server with its sealer.
    pub server: TlsServer,
    /// Keys of the client's records.
    pub tx: Keys,
    /// Number of the client's next record.
    pub tx_number: u64,
    rx: Keys,
    rx_number: u64,
    /// The client's traffic secret, with TLS 1.3.
    tx_secret: Option<Vec<u8>>,
}

impl Forger {
    /// Returns a client that has done the handshake with `site` in `suite`.
    pub fn new(site: &Site, suite: Suite) -> Self {
        let mut config = site.client_config(suite);
        let secrets = Arc::new(Secrets::default());
        config.key_log = Arc::clone(&secrets) as Arc<dyn rustls::KeyLog>;
        let mut pair = Pair::new(site, Arc::new(config));
        pair.pump().unwrap();
        assert_eq!(pair.agreed().suite, suite);
        let extracted = pair.client.dangerous_extract_secrets().unwrap();
        let tx = Keys::extracted(suite, &extracted.tx.1);
        let rx = Keys::extracted(suite, &extracted.rx.1);
        let tx_secret = secrets.0.lock().unwrap().remove("CLIENT_TRAFFIC_SECRET_0");
        pair.server.events.clear();
        Self {
            server: pair.server,
            tx,
            tx_number: extracted.tx.0,
            rx,
            rx_number: extracted.rx.0,
            tx_secret,
        }
    }

    /// Sends a record, and returns the records of the response.
    pub fn send(&mut self, content_type: u8, content: &[u8]) -> Vec<(u8, Vec<u8>)> {
        let record = self.tx.seal(self.tx_number, content_type, content);
        self.tx_number += 1;
        self.send_raw(&record)
    }

    /// Sends bytes, which need not form a record, and returns the records of the response.
    pub fn send_raw(&mut self, bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
        self.server.receive(bytes);
        let bytes = self.server.transmit();
        let mut records = Vec::new();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let length = usize::from(u16::from_be_bytes([rest[3], rest[4]]));
            let (record, behind) = rest.split_at(5 + length);
            records.push(self.rx.open(self.rx_number, record));
            self.rx_number += 1;
            rest = behind;
        }
        records
    }

    /// Switches to the keys after the client's KeyUpdate (RFC 8446 §7.2).
    pub fn next_tx(&mut self) {
        let cipher = self.tx.suite.cipher;
        let secret = self.tx_secret.take().unwrap();
        let secret = expand(cipher, &secret, b"traffic upd", secret.len() as u16);
        self.tx = Keys::derived(cipher, &secret);
        self.tx_number = 0;
        self.tx_secret = Some(secret);
    }

    /// Switches to the server's keys of `epoch`, after its KeyUpdate.
    pub fn next_rx(&mut self, epoch: u16) {
        self.rx = self.server.nic.keys[&epoch].clone();
        self.rx_number = 0;
    }
}
