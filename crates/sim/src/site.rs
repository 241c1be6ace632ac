//! The server's certificate, and the TLS and QUIC settings of its listeners and clients.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use contract::tls::{Cipher, Suite, Version};
use host::{QuicListener, QuicPreferredAddress, QuicSecret, QuicSettings};
use quic::Crypto;
use rustls::client::Resumption;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, RootCertStore};
use tls::{Certificates, Config, Files, Limits, Settings};

use crate::addresses::{PREFERRED_V4, PREFERRED_V6, QUIC_PORT};
use crate::entropy::{self, Tickets};
use crate::random::Random;
use crate::scenario::Scenario;

/// Idle timeout of QUIC connections: longer than any period of faults.
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(240);

/// Name in the server's certificate.
const NAME: &str = "sim.example";

/// Time of day at virtual time zero, in seconds since 1970.
const UNIX_SECONDS: u64 = 1_700_000_000;

/// Returns the time of day.
pub(crate) fn unix_time(now_us: u64) -> Duration {
    Duration::from_secs(UNIX_SECONDS) + Duration::from_micros(now_us)
}

/// First bytes of an Ed25519 private key as PKCS #8 (RFC 8410 §7); the key follows.
const ED25519_PREFIX: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// The certificate, for the server and as the clients' trust anchor. It is constant.
struct Identity {
    certificates: Arc<Certificates>,
    der: CertificateDer<'static>,
}

/// Returns the constant certificate.
///
/// # Panics
/// If the certificate cannot be made.
fn identity() -> &'static Identity {
    static IDENTITY: OnceLock<Identity> = OnceLock::new();
    IDENTITY.get_or_init(|| {
        let secret = [&ED25519_PREFIX[..], b"the simulated server's secret..."].concat();
        let key = rcgen::KeyPair::from_pkcs8_der_and_sign_algo(
            &PrivatePkcs8KeyDer::from(secret),
            &rcgen::PKCS_ED25519,
        )
        .expect("a key");
        let certificate = rcgen::CertificateParams::new([NAME.to_owned()])
            .and_then(|params| params.self_signed(&key))
            .expect("a certificate");
        let files = Files::from_pem("simulation", &certificate.pem(), &key.serialize_pem());
        let certificates = Certificates::new(&[files]).expect("a valid certificate");
        Identity {
            certificates: Arc::new(certificates),
            der: certificate.der().clone(),
        }
    })
}

/// Returns the settings of a listener with a record limit per key.
///
/// # Panics
/// Never: the settings are always valid.
pub(crate) fn listener(versions: &[Version], records_per_key_max: u64) -> Arc<Config> {
    let mut settings = Settings {
        versions: versions.to_vec(),
        limits: Limits {
            // Longer than any period of faults.
            handshake_us_max: 240_000_000,
            records_per_key_max,
            ..Limits::default()
        },
        ..Settings::default()
    };
    settings.alpn.insert(0, b"h2".to_vec());
    let config = Config::with_provider(
        Arc::clone(&identity().certificates),
        &settings,
        unix_time(0),
        entropy::provider(),
        Some(Tickets::new()),
    );
    Arc::new(config.expect("versions and ciphers"))
}

fn preferred_address(scenario: &Scenario) -> QuicPreferredAddress {
    match scenario.has_preferred {
        true => QuicPreferredAddress {
            v4: Some(PREFERRED_V4),
            v6: Some(PREFERRED_V6),
            port: QUIC_PORT,
        },
        false => QuicPreferredAddress::default(),
    }
}

/// Returns the settings of the QUIC listener.
pub(crate) fn quic_listener(scenario: &Scenario, random: &mut Random) -> QuicListener {
    let mut draw = || {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&random.next().to_le_bytes());
        Some(bytes)
    };
    let mut settings = QuicSettings {
        congestion: scenario.congestion,
        early_data: scenario.early_data,
        preferred_address: preferred_address(scenario),
        idle_timeout: IDLE_TIMEOUT,
        secret: draw().map(QuicSecret::new),
        seed: draw(),
        crypto: Some(Crypto {
            provider: entropy::provider(),
            tickets: Tickets::new(),
        }),
        ..QuicSettings::default()
    };
    settings.limits.retry_above = scenario.retry_above;
    QuicListener {
        port: QUIC_PORT,
        certificates: Arc::clone(&identity().certificates),
        settings,
    }
}

/// A client's settings, with one cipher suite.
pub(crate) struct ClientTlsConfig {
    config: ClientConfig,
    clock: Arc<Clock>,
}

impl ClientTlsConfig {
    /// Makes the settings of a client of this application protocol.
    ///
    /// # Panics
    /// Never: the settings are always valid.
    pub(crate) fn new(suite: Suite, protocol: &str) -> ClientTlsConfig {
        let mut roots = RootCertStore::empty();
        roots.add(identity().der.clone()).expect("a certificate");
        let mut provider = entropy::provider();
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
        let clock = Arc::new(Clock::default());
        let mut config =
            ClientConfig::builder_with_details(Arc::new(provider), Arc::clone(&clock) as _)
                .with_protocol_versions(&[version])
                .expect("a version")
                .with_root_certificates(roots)
                .with_no_client_auth();
        config.enable_secret_extraction = true;
        config.resumption = Resumption::in_memory_sessions(8);
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        // Only tickets of QUIC sessions permit early data.
        config.enable_early_data = true;
        ClientTlsConfig { config, clock }
    }

    /// Returns the settings for a connection that begins now. Earlier sessions can be resumed.
    pub(crate) fn config(&self, now_us: u64) -> ClientConfig {
        let seconds = unix_time(now_us).as_secs();
        self.clock.0.store(seconds, Ordering::Relaxed);
        self.config.clone()
    }

    /// Returns the server's name.
    ///
    /// # Panics
    /// Never: the name is valid.
    pub(crate) fn name() -> ServerName<'static> {
        ServerName::try_from(NAME).expect("a name")
    }
}

impl fmt::Debug for ClientTlsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTlsConfig").finish_non_exhaustive()
    }
}

/// Virtual time, in seconds.
#[derive(Debug, Default)]
struct Clock(AtomicU64);

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = self.0.load(Ordering::Relaxed);
        Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
    }
}
