//! Configuration shared by all connections of a listener.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::UnixTime;
use rustls::server::{NoServerSessionStorage, ProducesTickets, ResolvesServerCert};
use rustls::time_provider::TimeProvider;
use rustls::version::{TLS12, TLS13};
use rustls::{KeyLog, ServerConfig};

use crate::certificates::Certificates;
use contract::tls::{Cipher, Version};

/// Limits on a client's use of memory, time and keys.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes that a client may send before the handshake's end.
    pub handshake_bytes_max: usize,
    /// Time that a handshake may take, in microseconds.
    pub handshake_us_max: u64,
    /// Received plaintext that waits for [`crate::Connection::read`], apart from one more record,
    /// in bytes.
    pub received_bytes_max: usize,
    /// Real plaintext that waits to be cut into records, in bytes.
    pub real_bytes_max: usize,
    /// Ranges of objects, and stretches of real plaintext between them, that wait to be cut into
    /// records.
    pub extents_max: usize,
    /// Records that one key seals. AES-GCM allows 2^24 (RFC 8446 §5.5).
    pub records_per_key_max: u64,
    /// Time that one key of TLS 1.3 seals, in microseconds.
    pub key_us_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            handshake_bytes_max: 64 << 10,
            handshake_us_max: 10_000_000,
            received_bytes_max: 64 << 10,
            real_bytes_max: 64 << 10,
            extents_max: 256,
            records_per_key_max: 1 << 23,
            key_us_max: 3_600_000_000,
        }
    }
}

/// Settings of a listener.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Versions, at least one.
    pub versions: Vec<Version>,
    /// Ciphers, at least one.
    pub ciphers: Vec<Cipher>,
    /// Application protocols, best first; a client that asks for others only is refused. Empty: not
    /// negotiated.
    pub alpn: Vec<Vec<u8>>,
    /// Session tickets after a handshake of TLS 1.3; 0: sessions are not resumed.
    pub tickets: usize,
    /// Receiver of each connection's secrets, for debugging, if any.
    pub key_log: Option<Arc<dyn KeyLog>>,
    /// Bounds.
    pub limits: Limits,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            versions: vec![Version::Tls13, Version::Tls12],
            ciphers: vec![
                Cipher::Aes256Gcm,
                Cipher::Aes128Gcm,
                Cipher::ChaCha20Poly1305,
            ],
            alpn: vec![b"http/1.1".to_vec(), b"http/1.0".to_vec()],
            tickets: 2,
            key_log: None,
            limits: Limits::default(),
        }
    }
}

/// Configuration shared by all connections of a listener, with the keys of their tickets: a session
/// can be resumed only with the same `Config`.
#[derive(Debug)]
pub struct Config {
    pub(crate) rustls: Arc<ServerConfig>,
    pub(crate) certificates: Arc<Certificates>,
    pub(crate) limits: Limits,
    pub(crate) has_tls13: bool,
    clock: Arc<Clock>,
}

impl Config {
    /// Serves with these certificates, which may be replaced later ([`Certificates::replace`]).
    ///
    /// # Errors
    /// If the settings leave nothing to negotiate, or the system provides no random numbers.
    pub fn new(
        certificates: Arc<Certificates>,
        settings: &Settings,
        unix_time: Duration,
    ) -> Result<Self, rustls::Error> {
        let ticketer = if settings.tickets > 0 {
            Some(aws_lc_rs::Ticketer::new()?)
        } else {
            None
        };
        let provider = aws_lc_rs::default_provider();
        Self::with_provider(certificates, settings, unix_time, provider, ticketer)
    }

    /// As [`Config::new`], with another source of randomness, for reproducible simulations.
    ///
    /// # Errors
    /// As [`Config::new`].
    pub fn with_provider(
        certificates: Arc<Certificates>,
        settings: &Settings,
        unix_time: Duration,
        mut provider: CryptoProvider,
        ticketer: Option<Arc<dyn ProducesTickets>>,
    ) -> Result<Self, rustls::Error> {
        provider
            .cipher_suites
            .retain(|suite| cipher(suite).is_some_and(|cipher| settings.ciphers.contains(&cipher)));
        let versions: Vec<_> = settings
            .versions
            .iter()
            .map(|version| match version {
                Version::Tls12 => &TLS12,
                Version::Tls13 => &TLS13,
            })
            .collect();
        let clock = Arc::new(Clock(AtomicU64::new(unix_time.as_secs())));
        let provider: Arc<CryptoProvider> = Arc::new(provider);
        let mut rustls = ServerConfig::builder_with_details(
            provider,
            Arc::clone(&clock) as Arc<dyn TimeProvider>,
        )
        .with_protocol_versions(&versions)?
        .with_no_client_auth()
        .with_cert_resolver(Arc::clone(&certificates) as Arc<dyn ResolvesServerCert>);
        rustls.enable_secret_extraction = true;
        rustls.alpn_protocols.clone_from(&settings.alpn);
        // A server that keeps sessions in memory could be made to fill it; tickets cost it nothing.
        rustls.session_storage = Arc::new(NoServerSessionStorage {});
        rustls.send_tls13_tickets = settings.tickets;
        if let Some(ticketer) = ticketer {
            rustls.ticketer = ticketer;
        }
        if let Some(key_log) = &settings.key_log {
            rustls.key_log = Arc::clone(key_log);
        }
        Ok(Self {
            rustls: Arc::new(rustls),
            certificates,
            limits: settings.limits,
            has_tls13: settings.versions.contains(&Version::Tls13),
            clock,
        })
    }

    /// Sets the time, which decides whether tickets have expired. Exact to a second is enough.
    pub fn set_unix_time(&self, unix_time: Duration) {
        self.clock.0.store(unix_time.as_secs(), Ordering::Relaxed);
    }
}

/// The time that rustls gets, in seconds since the epoch.
struct Clock(AtomicU64);

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = self.0.load(Ordering::Relaxed);
        Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

pub(crate) fn cipher(suite: &rustls::SupportedCipherSuite) -> Option<Cipher> {
    use rustls::CipherSuite as Suite;
    match suite.suite() {
        Suite::TLS13_AES_128_GCM_SHA256
        | Suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
        | Suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 => Some(Cipher::Aes128Gcm),
        Suite::TLS13_AES_256_GCM_SHA384
        | Suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384
        | Suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 => Some(Cipher::Aes256Gcm),
        Suite::TLS13_CHACHA20_POLY1305_SHA256
        | Suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
        | Suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 => Some(Cipher::ChaCha20Poly1305),
        _ => None,
    }
}
