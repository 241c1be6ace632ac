//! A TLS listener, its certificates, and clients that trust them.

use std::sync::Arc;
use std::time::Duration;

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::{ClientConfig, RootCertStore};
use tls::{Certificates, Cipher, Config, Connection, Files, Settings, Suite, Version};

/// Name of the files of every [`Identity`].
pub const FILES: &str = "test";

/// Present time of tests, within the validity of rcgen's certificates.
pub const UNIX_TIME: Duration = Duration::from_secs(1_800_000_000);

/// A self-signed certificate.
pub struct Identity {
    /// Certificate.
    pub certificate: rcgen::Certificate,
    /// Private key.
    pub key: rcgen::KeyPair,
}

impl Identity {
    /// Returns a certificate for `names`.
    pub fn new(names: &[&str], algorithm: &'static rcgen::SignatureAlgorithm) -> Self {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let key = rcgen::KeyPair::generate_for(algorithm).unwrap();
        let params = rcgen::CertificateParams::new(names).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Self { certificate, key }
    }

    /// Returns a certificate with a key on P-256.
    pub fn ecdsa(names: &[&str]) -> Self {
        Self::new(names, &rcgen::PKCS_ECDSA_P256_SHA256)
    }

    /// Returns certificate and key as PEM files.
    pub fn files(&self) -> Files {
        Files::from_pem(FILES, &self.certificate.pem(), &self.key.serialize_pem())
    }

    /// Returns the certificate as the only one of a server.
    pub fn certificates(&self) -> Certificates {
        Certificates::new(&[self.files()]).unwrap()
    }
}

/// A listener, and its clients' trust store.
pub struct Site {
    /// Configuration of the listener.
    pub config: Arc<Config>,
    /// Its certificates.
    pub certificates: Arc<Certificates>,
    roots: RootCertStore,
}

impl Site {
    /// Returns a listener with these certificates, which clients trust.
    pub fn new(identities: &[Identity], settings: &Settings) -> Self {
        let files: Vec<_> = identities.iter().map(Identity::files).collect();
        let certificates = Arc::new(Certificates::new(&files).unwrap());
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

    /// Returns a listener with the default settings.
    pub fn plain() -> Self {
        Self::new(&[Identity::ecdsa(&["localhost"])], &Settings::default())
    }

    /// Makes clients trust another certificate.
    pub fn trust(&mut self, identity: &Identity) {
        self.roots.add(identity.certificate.der().clone()).unwrap();
    }

    /// Returns a connection of the listener.
    pub fn server(&self) -> Connection {
        Connection::new(Arc::clone(&self.config), 0).unwrap()
    }

    /// Returns a client's configuration with a key exchange whose share exceeds a QUIC datagram.
    pub fn long_client_config(&self, suite: Suite) -> ClientConfig {
        let mut provider = aws_lc_rs::default_provider();
        provider.kx_groups = vec![aws_lc_rs::kx_group::X25519MLKEM768];
        self.client_config_with(suite, provider)
    }

    /// Returns the configuration of a client that supports only this suite.
    pub fn client_config(&self, suite: Suite) -> ClientConfig {
        self.client_config_with(suite, aws_lc_rs::default_provider())
    }

    fn client_config_with(&self, suite: Suite, mut provider: CryptoProvider) -> ClientConfig {
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
