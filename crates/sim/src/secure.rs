//! TLS on both sides: what the server is given, and what a client does with it.
//!
//! The handshake is rustls's, on both sides. What follows, the client opens and seals with an [oracle](crate::oracle).
//! Chance in a handshake is the system's: a seed decides how long everything is, and not what is in it. So the
//! certificate is of Ed25519, whose signatures are all of one length, and nobody resumes a session.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use tls::{
    Certificates, Cipher, Config, Files, Limits, RECORD_HEADER_BYTES, Settings, Suite, Version,
};

use crate::oracle::Records;
use crate::violation::{Violation, violation};

const NAME: &str = "sim";

/// Any time at which the certificate is valid.
const UNIX_TIME: Duration = Duration::from_secs(1_700_000_000);

const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;
const CLOSE_NOTIFY: [u8; 2] = [1, 0];

/// The suites that a seed may stand for.
pub(crate) const SUITES: [Suite; 6] = [
    suite(Version::Tls13, Cipher::Aes128Gcm),
    suite(Version::Tls13, Cipher::Aes256Gcm),
    suite(Version::Tls13, Cipher::ChaCha20Poly1305),
    suite(Version::Tls12, Cipher::Aes128Gcm),
    suite(Version::Tls12, Cipher::Aes256Gcm),
    suite(Version::Tls12, Cipher::ChaCha20Poly1305),
];

const fn suite(version: Version, cipher: Cipher) -> Suite {
    Suite { version, cipher }
}

/// A certificate, as the server has it and as clients have it.
fn identity() -> &'static (Files, CertificateDer<'static>) {
    static IDENTITY: OnceLock<(Files, CertificateDer<'static>)> = OnceLock::new();
    IDENTITY.get_or_init(|| {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("random numbers");
        let mut parameters =
            rcgen::CertificateParams::new([NAME.to_owned()]).expect("a name of a host");
        // One that is drawn may be a byte shorter.
        parameters.serial_number = Some(vec![1; 16].into());
        let certificate = parameters.self_signed(&key).expect("a key that signs");
        let files = Files::from_pem(NAME, &certificate.pem(), &key.serialize_pem());
        (files, certificate.der().clone())
    })
}

/// What the server speaks: nothing but this suite.
pub(crate) fn server(suite: Suite) -> Arc<Config> {
    let certificates = Certificates::new(&[identity().0.clone()], UNIX_TIME).expect("it is valid");
    let settings = Settings {
        versions: vec![suite.version],
        ciphers: vec![suite.cipher],
        limits: Limits {
            // Longer than any spell of bad weather.
            handshake_us_max: 240_000_000,
            ..Limits::default()
        },
        ..Settings::default()
    };
    let config = Config::new(Arc::new(certificates), &settings, UNIX_TIME);
    Arc::new(config.expect("there is something to negotiate"))
}

fn client() -> Arc<ClientConfig> {
    static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    let config = CONFIG.get_or_init(|| {
        let mut roots = RootCertStore::empty();
        roots.add(identity().1.clone()).expect("a certificate");
        let mut config =
            ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
                .with_safe_default_protocol_versions()
                .expect("versions that the provider has")
                .with_root_certificates(roots)
                .with_no_client_auth();
        config.enable_secret_extraction = true;
        config.resumption = Resumption::disabled();
        Arc::new(config)
    });
    Arc::clone(config)
}

/// The TLS layer of a client's connection.
pub(crate) struct Secure {
    suite: Suite,
    state: State,
    /// The beginning of a record.
    incoming: Vec<u8>,
    /// What waits for the end of the handshake.
    requests: Vec<u8>,
    /// For TCP.
    pub(crate) outgoing: Vec<u8>,
    /// For the client.
    pub(crate) plaintext: Vec<u8>,
    /// The server has said close_notify.
    pub(crate) is_closed: bool,
}

enum State {
    Handshaking(Box<ClientConnection>),
    Open {
        tx: Records,
        rx: Records,
    },
    /// Between two states.
    Changing,
}

impl Secure {
    pub(crate) fn new(suite: Suite) -> Secure {
        let name = ServerName::try_from(NAME).expect("a name of a host");
        let connection = ClientConnection::new(client(), name).expect("random numbers");
        let mut secure = Secure {
            suite,
            state: State::Handshaking(Box::new(connection)),
            incoming: Vec::new(),
            requests: Vec::new(),
            outgoing: Vec::new(),
            plaintext: Vec::new(),
            is_closed: false,
        };
        secure.speak();
        secure
    }

    /// True if all that was written is for TCP, or has gone there.
    pub(crate) fn is_flushed(&self) -> bool {
        self.requests.is_empty() && self.outgoing.is_empty()
    }

    /// Says something, as soon as it can.
    pub(crate) fn write(&mut self, text: &[u8]) -> Result<(), Violation> {
        self.requests.extend_from_slice(text);
        self.flush()
    }

    /// Bytes of the stream have arrived.
    pub(crate) fn receive(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        self.incoming.extend_from_slice(bytes);
        let incoming = std::mem::take(&mut self.incoming);
        let mut rest = &incoming[..];
        while let Some(&[_, _, _, high, low]) = rest.first_chunk() {
            let len = RECORD_HEADER_BYTES + usize::from(u16::from_be_bytes([high, low]));
            let Some((record, behind)) = rest.split_at_checked(len) else {
                break;
            };
            self.on_record(record)?;
            rest = behind;
        }
        self.incoming = rest.to_vec();
        self.flush()
    }

    fn on_record(&mut self, record: &[u8]) -> Result<(), Violation> {
        if self.is_closed {
            return violation("something follows close_notify");
        }
        match &mut self.state {
            State::Handshaking(connection) => {
                let mut rest = record;
                let result = match connection.read_tls(&mut rest) {
                    Ok(_) => connection.process_new_packets(),
                    Err(error) => return violation(format!("the handshake: {error}")),
                };
                if let Err(error) = result {
                    return violation(format!("the handshake: {error}"));
                }
                self.speak();
                self.change_state()
            }
            State::Open { rx, .. } => match rx.open(record) {
                Some((APPLICATION_DATA, content)) => {
                    self.plaintext.extend(content);
                    Ok(())
                }
                // Tickets.
                Some((HANDSHAKE, _)) => Ok(()),
                Some((ALERT, content)) if content == CLOSE_NOTIFY => {
                    self.is_closed = true;
                    Ok(())
                }
                Some((content_type, content)) => {
                    violation(format!("a record of type {content_type}: {content:?}"))
                }
                None => violation("a record is not authentic"),
            },
            State::Changing => violation("no state"),
        }
    }

    /// What the handshake has to say.
    fn speak(&mut self) {
        if let State::Handshaking(connection) = &mut self.state {
            while connection.wants_write() {
                let written = connection.write_tls(&mut self.outgoing);
                debug_assert!(written.is_ok(), "memory does not fail");
            }
        }
    }

    /// The handshake may have ended.
    fn change_state(&mut self) -> Result<(), Violation> {
        let is_over =
            |state: &State| matches!(state, State::Handshaking(it) if !it.is_handshaking());
        if !is_over(&self.state) {
            return Ok(());
        }
        let State::Handshaking(connection) = std::mem::replace(&mut self.state, State::Changing)
        else {
            return Ok(());
        };
        let secrets = match connection.dangerous_extract_secrets() {
            Ok(secrets) => secrets,
            Err(error) => return violation(format!("no secrets: {error}")),
        };
        let records = |secrets| Records::new(self.suite, secrets);
        let (Some(tx), Some(rx)) = (records(secrets.tx), records(secrets.rx)) else {
            return violation("another suite was agreed upon");
        };
        self.state = State::Open { tx, rx };
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Violation> {
        let State::Open { tx, .. } = &mut self.state else {
            return Ok(());
        };
        for text in std::mem::take(&mut self.requests).chunks(1 << 14) {
            match tx.seal(APPLICATION_DATA, text) {
                Some(record) => self.outgoing.extend(record),
                None => return violation("a request cannot be sealed"),
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for Secure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let is_open = matches!(self.state, State::Open { .. });
        f.debug_struct("Secure")
            .field("suite", &self.suite)
            .field("is_open", &is_open)
            .field("is_closed", &self.is_closed)
            .finish_non_exhaustive()
    }
}
