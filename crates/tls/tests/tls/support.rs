//! A client, a stand-in for the NIC stack, and what both need.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aes_gcm::aead::{Aead, KeyInit, Payload};
use aes_gcm::{Aes128Gcm, Aes256Gcm};
use chacha20poly1305::ChaCha20Poly1305;
use hkdf::Hkdf;
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, ConnectionTrafficSecrets, RootCertStore};
use sha2::{Sha256, Sha384};
use tls::{
    Certificates, Cipher, Config, Connection, ContentType, Event, Files, Key, Piece, Run,
    RunLimits, Settings, Suite, Tag, Transmit, Version,
};

pub(crate) const LIMITS: RunLimits = RunLimits {
    records_max: 64,
    pieces_max: 32,
    real_bytes_max: 4096,
    outstanding_max: u64::MAX,
    keys_max: usize::MAX,
};

pub(crate) const SUITES: [Suite; 6] = [
    suite(Version::Tls13, Cipher::Aes128Gcm),
    suite(Version::Tls13, Cipher::Aes256Gcm),
    suite(Version::Tls13, Cipher::ChaCha20Poly1305),
    suite(Version::Tls12, Cipher::Aes128Gcm),
    suite(Version::Tls12, Cipher::Aes256Gcm),
    suite(Version::Tls12, Cipher::ChaCha20Poly1305),
];

pub(crate) const fn suite(version: Version, cipher: Cipher) -> Suite {
    Suite { version, cipher }
}

/// Now, by the clock of these tests: certificates of rcgen are valid then.
pub(crate) const UNIX_TIME: Duration = Duration::from_secs(1_800_000_000);

/// What object `object` holds at `offset`.
pub(crate) fn content(object: u32, offset: u64) -> u8 {
    let mixed = (offset ^ u64::from(object) << 40).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 56) as u8
}

/// A self-signed certificate.
pub(crate) struct Identity {
    pub(crate) certificate: rcgen::Certificate,
    pub(crate) key: rcgen::KeyPair,
}

impl Identity {
    pub(crate) fn new(names: &[&str], algorithm: &'static rcgen::SignatureAlgorithm) -> Self {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let key = rcgen::KeyPair::generate_for(algorithm).unwrap();
        let params = rcgen::CertificateParams::new(names).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Self { certificate, key }
    }

    pub(crate) fn ecdsa(names: &[&str]) -> Self {
        Self::new(names, &rcgen::PKCS_ECDSA_P256_SHA256)
    }

    pub(crate) fn files(&self) -> Files {
        Files::from_pem("test", &self.certificate.pem(), &self.key.serialize_pem())
    }
}

/// A listener, and what its clients trust.
pub(crate) struct Site {
    pub(crate) config: Arc<Config>,
    pub(crate) certificates: Arc<Certificates>,
    roots: RootCertStore,
}

impl Site {
    pub(crate) fn new(identities: &[Identity], settings: &Settings) -> Self {
        let files: Vec<_> = identities.iter().map(Identity::files).collect();
        let certificates = Arc::new(Certificates::new(&files, UNIX_TIME).unwrap());
        let config = Config::new(Arc::clone(&certificates), settings, UNIX_TIME).unwrap();
        let mut site = Self {
            config: Arc::new(config),
            certificates,
            roots: RootCertStore::empty(),
        };
        for identity in identities {
            site.trust(identity);
        }
        site
    }

    /// One that is there by default.
    pub(crate) fn plain() -> Self {
        Self::new(&[Identity::ecdsa(&["localhost"])], &Settings::default())
    }

    pub(crate) fn trust(&mut self, identity: &Identity) {
        self.roots.add(identity.certificate.der().clone()).unwrap();
    }

    pub(crate) fn server(&self) -> Connection {
        Connection::new(Arc::clone(&self.config), 0).unwrap()
    }

    /// What a client that can do no other suite than this one wants.
    pub(crate) fn client_config(&self, suite: Suite) -> ClientConfig {
        let mut provider = aws_lc_rs::default_provider();
        let word = match suite.cipher {
            Cipher::Aes128Gcm => "AES_128_GCM",
            Cipher::Aes256Gcm => "AES_256_GCM",
            Cipher::ChaCha20Poly1305 => "CHACHA20",
        };
        provider
            .cipher_suites
            .retain(|suite| format!("{:?}", suite.suite()).contains(word));
        let version = match suite.version {
            Version::Tls12 => &rustls::version::TLS12,
            Version::Tls13 => &rustls::version::TLS13,
        };
        let mut config = ClientConfig::builder_with_details(Arc::new(provider), Arc::new(Clock))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(self.roots.clone())
            .with_no_client_auth();
        config.enable_secret_extraction = true;
        config.resumption = Resumption::in_memory_sessions(8);
        config
    }
}

#[derive(Debug)]
struct Clock;

impl rustls::time_provider::TimeProvider for Clock {
    fn current_time(&self) -> Option<rustls::pki_types::UnixTime> {
        Some(rustls::pki_types::UnixTime::since_unix_epoch(UNIX_TIME))
    }
}

/// Keys of one direction, as RustCrypto has them.
#[derive(Clone)]
pub(crate) struct Keys {
    pub(crate) suite: Suite,
    pub(crate) key: Vec<u8>,
    pub(crate) iv: [u8; 12],
}

impl Keys {
    pub(crate) fn of(key: &Key) -> Self {
        Self {
            suite: key.suite,
            key: key.key().to_vec(),
            iv: *key.iv(),
        }
    }

    /// Those that rustls has extracted.
    pub(crate) fn extracted(suite: Suite, secrets: &ConnectionTrafficSecrets) -> Self {
        let (key, iv) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv }
            | ConnectionTrafficSecrets::Aes256Gcm { key, iv }
            | ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (key, iv),
            _ => panic!("no such suite"),
        };
        Self {
            suite,
            key: key.as_ref().to_vec(),
            iv: iv.as_ref().try_into().unwrap(),
        }
    }

    /// Those that follow from a traffic secret (RFC 8446 §7.3).
    pub(crate) fn derived(cipher: Cipher, secret: &[u8]) -> Self {
        let key_bytes = match cipher {
            Cipher::Aes128Gcm => 16,
            _ => 32,
        };
        Self {
            suite: suite(Version::Tls13, cipher),
            key: expand(cipher, secret, b"key", key_bytes),
            iv: expand(cipher, secret, b"iv", 12).try_into().unwrap(),
        }
    }

    fn nonce(&self, number: u64) -> [u8; 12] {
        let mut nonce = self.iv;
        for (byte, number) in nonce[4..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= number;
        }
        nonce
    }

    /// A record, whatever its content.
    pub(crate) fn seal(&self, number: u64, content_type: u8, content: &[u8]) -> Vec<u8> {
        match self.suite.version {
            Version::Tls13 => {
                let inner = [content, &[content_type]].concat();
                self.seal_inner(number, &inner)
            }
            Version::Tls12 => {
                let nonce = self.nonce(number);
                let explicit = &nonce[12 - self.suite.explicit_nonce_bytes()..];
                let mut aad = number.to_be_bytes().to_vec();
                aad.extend([content_type, 3, 3]);
                aad.extend((content.len() as u16).to_be_bytes());
                let sealed = self.encrypt(&nonce, &aad, content);
                let length = (explicit.len() + sealed.len()) as u16;
                let header = [&[content_type, 3, 3][..], &length.to_be_bytes()].concat();
                [&header, explicit, &sealed].concat()
            }
        }
    }

    /// A record of TLS 1.3 with this as the TLSInnerPlaintext.
    pub(crate) fn seal_inner(&self, number: u64, inner: &[u8]) -> Vec<u8> {
        let length = (inner.len() + 16) as u16;
        let header = [&[23, 3, 3][..], &length.to_be_bytes()].concat();
        let sealed = self.encrypt(&self.nonce(number), &header, inner);
        [header, sealed].concat()
    }

    /// Content type and content of a record.
    pub(crate) fn open(&self, number: u64, record: &[u8]) -> (u8, Vec<u8>) {
        match self.suite.version {
            Version::Tls13 => {
                let mut inner = self.decrypt(&self.nonce(number), &record[..5], &record[5..]);
                let content_type = inner.pop().unwrap();
                (content_type, inner)
            }
            Version::Tls12 => {
                let explicit = self.suite.explicit_nonce_bytes();
                let mut nonce = self.nonce(number);
                nonce[12 - explicit..].copy_from_slice(&record[5..5 + explicit]);
                let sealed = &record[5 + explicit..];
                let mut aad = number.to_be_bytes().to_vec();
                aad.extend(&record[..3]);
                aad.extend((sealed.len() as u16 - 16).to_be_bytes());
                (record[0], self.decrypt(&nonce, &aad, sealed))
            }
        }
    }

    fn encrypt(&self, nonce: &[u8; 12], aad: &[u8], msg: &[u8]) -> Vec<u8> {
        let nonce = nonce.into();
        let payload = Payload { msg, aad };
        match self.suite.cipher {
            Cipher::Aes128Gcm => Aes128Gcm::new_from_slice(&self.key)
                .unwrap()
                .encrypt(nonce, payload),
            Cipher::Aes256Gcm => Aes256Gcm::new_from_slice(&self.key)
                .unwrap()
                .encrypt(nonce, payload),
            Cipher::ChaCha20Poly1305 => ChaCha20Poly1305::new_from_slice(&self.key)
                .unwrap()
                .encrypt(nonce, payload),
        }
        .unwrap()
    }

    fn decrypt(&self, nonce: &[u8; 12], aad: &[u8], msg: &[u8]) -> Vec<u8> {
        let nonce = nonce.into();
        let payload = Payload { msg, aad };
        match self.suite.cipher {
            Cipher::Aes128Gcm => Aes128Gcm::new_from_slice(&self.key)
                .unwrap()
                .decrypt(nonce, payload),
            Cipher::Aes256Gcm => Aes256Gcm::new_from_slice(&self.key)
                .unwrap()
                .decrypt(nonce, payload),
            Cipher::ChaCha20Poly1305 => ChaCha20Poly1305::new_from_slice(&self.key)
                .unwrap()
                .decrypt(nonce, payload),
        }
        .expect("the record is authentic")
    }
}

/// HKDF-Expand-Label (RFC 8446 §7.1), without a context.
pub(crate) fn expand(cipher: Cipher, secret: &[u8], label: &[u8], bytes: u16) -> Vec<u8> {
    let length = bytes.to_be_bytes();
    let label_length = [6 + label.len() as u8];
    let info = [&length, &label_length[..], b"tls13 ", label, &[0]].concat();
    let mut output = vec![0; usize::from(bytes)];
    match cipher {
        Cipher::Aes256Gcm => Hkdf::<Sha384>::from_prk(secret)
            .unwrap()
            .expand(&info, &mut output),
        _ => Hkdf::<Sha256>::from_prk(secret)
            .unwrap()
            .expand(&info, &mut output),
    }
    .unwrap();
    output
}

/// What the NIC stack does with keys and runs.
#[derive(Default)]
pub(crate) struct Nic {
    pub(crate) keys: HashMap<u16, Keys>,
    /// Behind the last record of each epoch, and of the stream.
    numbers: HashMap<u16, u64>,
    stream_end: u64,
    pub(crate) records: Vec<(ContentType, usize)>,
}

impl Nic {
    /// Seals a run: the records, and their tags.
    pub(crate) fn seal(&mut self, run: &Run) -> (Vec<u8>, Vec<Tag>) {
        let keys = &self.keys[&run.epoch];
        let number = self.numbers.entry(run.epoch).or_insert(run.number);
        assert_eq!(run.number, *number, "numbers follow each other");
        assert_eq!(run.stream_offset, self.stream_end, "and so do the records");
        assert!(run.pieces.len() <= LIMITS.pieces_max);
        assert!(run.count() <= LIMITS.records_max as u64);
        let (bytes, tags) = seal(keys, run);
        self.stream_end += bytes.len() as u64;
        assert_eq!(self.stream_end, run.stream_end());
        *number += run.count();
        let each = usize::from(run.record_plaintext_bytes);
        let mut left = run.plaintext_bytes() as usize;
        while left > 0 {
            self.records.push((run.content_type, left.min(each)));
            left -= left.min(each);
        }
        (bytes, tags)
    }
}

/// The records of a run and their tags.
pub(crate) fn seal(keys: &Keys, run: &Run) -> (Vec<u8>, Vec<Tag>) {
    let mut plaintext = Vec::new();
    for piece in &run.pieces {
        match piece {
            Piece::Real(bytes) => plaintext.extend_from_slice(bytes),
            Piece::Virtual {
                object,
                offset,
                len,
                ..
            } => plaintext.extend((*offset..offset + len).map(|at| content(*object, at))),
        }
    }
    let mut bytes = Vec::new();
    let mut tags = Vec::new();
    for (number, content) in
        (run.number..).zip(plaintext.chunks(usize::from(run.record_plaintext_bytes)))
    {
        let record = keys.seal(number, run.content_type as u8, content);
        tags.push(*record.last_chunk().unwrap());
        bytes.extend(record);
    }
    (bytes, tags)
}

/// A server with its NIC stack; what it sends is bytes.
pub(crate) struct Server {
    pub(crate) connection: Connection,
    pub(crate) nic: Nic,
    pub(crate) now_us: u64,
    pub(crate) events: Vec<Event>,
    pub(crate) received: Vec<u8>,
}

impl Server {
    pub(crate) fn new(site: &Site) -> Self {
        Self {
            connection: site.server(),
            nic: Nic::default(),
            now_us: 0,
            events: Vec::new(),
            received: Vec::new(),
        }
    }

    pub(crate) fn receive(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let taken = self.connection.received(self.now_us, rest);
            rest = &rest[taken..];
            let read = self.read();
            assert!(taken + read > 0, "neither side goes on");
        }
        self.read();
        self.events
            .extend(std::iter::from_fn(|| self.connection.poll_event()));
    }

    fn read(&mut self) -> usize {
        let mut buffer = [0; 1000];
        let mut total = 0;
        loop {
            match self.connection.read(&mut buffer) {
                0 => return total,
                count => self.received.extend(&buffer[..count]),
            }
            total += 1;
        }
    }

    /// All that it has to say.
    pub(crate) fn transmit(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while let Some(transmit) = self.connection.poll_transmit(self.now_us, &LIMITS) {
            match transmit {
                Transmit::Raw(raw) => {
                    self.nic.stream_end += raw.len() as u64;
                    bytes.extend(raw);
                }
                Transmit::Key(key) => {
                    self.nic.keys.insert(key.epoch, Keys::of(key));
                }
                Transmit::Run(run) => {
                    let (epoch, number) = (run.epoch, run.number);
                    let (sealed, tags) = self.nic.seal(run);
                    bytes.extend(sealed);
                    self.connection.on_sealed(epoch, number, &tags).unwrap();
                }
            }
        }
        self.events
            .extend(std::iter::from_fn(|| self.connection.poll_event()));
        bytes
    }
}

/// A client and a server.
pub(crate) struct Pair {
    pub(crate) client: ClientConnection,
    pub(crate) server: Server,
    /// What the client has received.
    pub(crate) received: Vec<u8>,
}

impl Pair {
    pub(crate) fn new(site: &Site, client: Arc<ClientConfig>) -> Self {
        Self::named(site, client, "localhost")
    }

    pub(crate) fn named(site: &Site, client: Arc<ClientConfig>, name: &str) -> Self {
        let name = ServerName::try_from(name.to_owned()).unwrap();
        Self {
            client: ClientConnection::new(client, name).unwrap(),
            server: Server::new(site),
            received: Vec::new(),
        }
    }

    /// Passes bytes to and fro until neither side has anything to send.
    pub(crate) fn pump(&mut self) -> Result<(), rustls::Error> {
        loop {
            let mut to_server = Vec::new();
            while self.client.wants_write() {
                self.client.write_tls(&mut to_server).unwrap();
            }
            self.server.receive(&to_server);
            let to_client = self.server.transmit();
            if to_server.is_empty() && to_client.is_empty() {
                return Ok(());
            }
            self.client_receives(&to_client)?;
        }
    }

    pub(crate) fn client_receives(&mut self, bytes: &[u8]) -> Result<(), rustls::Error> {
        let mut rest = bytes;
        while !rest.is_empty() {
            self.client.read_tls(&mut rest).unwrap();
            self.client.process_new_packets()?;
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = self.client.reader().read(&mut buffer) {
                self.received.extend(&buffer[..count]);
            }
        }
        Ok(())
    }

    pub(crate) fn agreed(&self) -> &tls::Agreed {
        match &self.server.events[0] {
            Event::Connected(agreed) => agreed,
            event => panic!("{event:?}"),
        }
    }

    /// The client asks, the server answers with a header and a file, and the client has it right.
    pub(crate) fn download(&mut self, object: u32, len: u64) {
        self.client
            .writer()
            .write_all(b"GET / HTTP/1.1\r\n\r\n")
            .unwrap();
        self.pump().unwrap();
        assert!(self.server.received.ends_with(b"GET / HTTP/1.1\r\n\r\n"));
        let before = self.received.len();
        let header = format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n");
        let connection = &mut self.server.connection;
        assert_eq!(connection.write(header.as_bytes()), header.len());
        assert!(connection.write_range(object, 0, len));
        self.pump().unwrap();
        let (got_header, body) = self.received[before..].split_at(header.len());
        assert_eq!(got_header, header.as_bytes());
        assert_eq!(body.len() as u64, len);
        let wrong = body
            .iter()
            .zip(0..)
            .find(|&(&byte, at)| byte != content(object, at));
        assert_eq!(wrong, None, "the first wrong byte and where it is");
    }
}

/// The traffic secrets of TLS 1.3, by what RFC 8446 §7.1 calls them in short.
#[derive(Debug, Default)]
pub(crate) struct Secrets(pub(crate) Mutex<HashMap<String, Vec<u8>>>);

impl rustls::KeyLog for Secrets {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        let mut secrets = self.0.lock().unwrap();
        secrets.insert(label.to_owned(), secret.to_vec());
    }
}

/// A client that has done the handshake, and sends what it likes from then on.
pub(crate) struct Forger {
    pub(crate) server: Server,
    pub(crate) tx: Keys,
    pub(crate) tx_number: u64,
    rx: Keys,
    rx_number: u64,
    /// Of TLS 1.3.
    tx_secret: Option<Vec<u8>>,
}

impl Forger {
    pub(crate) fn new(site: &Site, suite: Suite) -> Self {
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

    /// Sends a record, and answers what comes back.
    pub(crate) fn send(&mut self, content_type: u8, content: &[u8]) -> Vec<(u8, Vec<u8>)> {
        let record = self.tx.seal(self.tx_number, content_type, content);
        self.tx_number += 1;
        self.send_raw(&record)
    }

    pub(crate) fn send_raw(&mut self, bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
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

    /// The keys behind the client's KeyUpdate, as RFC 8446 §7.2 has them.
    pub(crate) fn next_tx(&mut self) {
        let cipher = self.tx.suite.cipher;
        let secret = self.tx_secret.take().unwrap();
        let secret = expand(cipher, &secret, b"traffic upd", secret.len() as u16);
        self.tx = Keys::derived(cipher, &secret);
        self.tx_number = 0;
        self.tx_secret = Some(secret);
    }

    /// The server's, when it has said KeyUpdate.
    pub(crate) fn next_rx(&mut self, epoch: u16) {
        self.rx = self.server.nic.keys[&epoch].clone();
        self.rx_number = 0;
    }
}

impl Server {
    /// Stream offset behind all that was sent.
    pub(crate) fn nic_stream_end(&self) -> u64 {
        self.nic.stream_end
    }
}
