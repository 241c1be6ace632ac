//! Raw keys. rustls makes QUIC keys through a [`quic::Algorithm`]; ours wraps that of rustls and
//! records the raw input. The key schedule, key updates included, stays rustls's own, and no key
//! log is needed.

use std::cell::RefCell;
use std::sync::LazyLock;

use contract::tls::Cipher;
use rustls::crypto::CryptoProvider;
use rustls::crypto::cipher::{AeadKey, Iv};
use rustls::quic::{self, HeaderProtectionKey, PacketKey};
use rustls::{CipherSuite, CipherSuiteCommon, SupportedCipherSuite, Tls13CipherSuite};
use zeroize::Zeroizing;

/// The raw input of a key.
pub(super) struct Raw {
    pub(super) key: Zeroizing<Vec<u8>>,
    /// For packet keys only.
    pub(super) iv: Zeroizing<[u8; 12]>,
    /// The address of rustls's key, its only identity.
    address: usize,
}

thread_local! {
    /// While [`capturing`] runs: keys made since.
    static CAPTURED: RefCell<Option<Vec<Raw>>> = const { RefCell::new(None) };
}

/// Keys made while a closure ran.
pub(super) struct Captured(Vec<Raw>);

/// Runs `make` and captures the keys that it makes.
pub(super) fn capturing<T>(make: impl FnOnce() -> T) -> (T, Captured) {
    CAPTURED.set(Some(Vec::new()));
    let made = make();
    (made, Captured(CAPTURED.take().unwrap_or_default()))
}

impl Captured {
    /// The raw input of a packet key.
    pub(super) fn packet(&mut self, key: &dyn PacketKey) -> Option<Raw> {
        self.take(packet_address(key))
    }

    /// The raw input of a header protection key.
    pub(super) fn header(&mut self, key: &dyn HeaderProtectionKey) -> Option<Raw> {
        self.take(header_address(key))
    }

    fn take(&mut self, address: usize) -> Option<Raw> {
        let at = self.0.iter().position(|raw| raw.address == address)?;
        Some(self.0.swap_remove(at))
    }
}

fn packet_address(key: &dyn PacketKey) -> usize {
    std::ptr::from_ref(key).cast::<()>().addr()
}

fn header_address(key: &dyn HeaderProtectionKey) -> usize {
    std::ptr::from_ref(key).cast::<()>().addr()
}

fn note(address: usize, key: &[u8], iv: [u8; 12]) {
    let raw = || Raw {
        key: Zeroizing::new(key.to_vec()),
        iv: Zeroizing::new(iv),
        address,
    };
    CAPTURED.with_borrow_mut(|captured| {
        if let Some(captured) = captured {
            captured.push(raw());
        }
    });
}

/// The algorithm of a provider, wrapped to record its inputs.
struct Noting(&'static dyn quic::Algorithm);

impl quic::Algorithm for Noting {
    fn packet_key(&self, key: AeadKey, iv: Iv) -> Box<dyn PacketKey> {
        let mut raw_iv = [0; 12];
        raw_iv.copy_from_slice(iv.as_ref());
        let raw_key = Zeroizing::new(key.as_ref().to_vec());
        let made = self.0.packet_key(key, iv);
        note(packet_address(&*made), &raw_key, raw_iv);
        made
    }

    fn header_protection_key(&self, key: AeadKey) -> Box<dyn HeaderProtectionKey> {
        let raw_key = Zeroizing::new(key.as_ref().to_vec());
        let made = self.0.header_protection_key(key);
        note(header_address(&*made), &raw_key, [0; 12]);
        made
    }

    fn aead_key_len(&self) -> usize {
        self.0.aead_key_len()
    }

    fn fips(&self) -> bool {
        self.0.fips()
    }
}

/// The TLS 1.3 suites for QUIC, with recording algorithms. rustls needs them to be `'static`, so
/// the process makes them once.
static SUITES: LazyLock<Vec<(Cipher, &'static Tls13CipherSuite)>> = LazyLock::new(|| {
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let suites = provider.cipher_suites.iter();
    suites
        .filter_map(|suite| Some((cipher(suite.suite())?, noting(suite.tls13()?)?)))
        .collect()
});

fn noting(suite: &'static Tls13CipherSuite) -> Option<&'static Tls13CipherSuite> {
    let algorithm: &'static Noting = Box::leak(Box::new(Noting(suite.quic?)));
    Some(Box::leak(Box::new(Tls13CipherSuite {
        common: CipherSuiteCommon {
            suite: suite.common.suite,
            hash_provider: suite.common.hash_provider,
            confidentiality_limit: suite.common.confidentiality_limit,
        },
        hkdf_provider: suite.hkdf_provider,
        aead_alg: suite.aead_alg,
        quic: Some(algorithm),
    })))
}

/// The cipher of a suite of TLS 1.3.
pub(super) fn cipher(suite: CipherSuite) -> Option<Cipher> {
    match suite {
        CipherSuite::TLS13_AES_128_GCM_SHA256 => Some(Cipher::Aes128Gcm),
        CipherSuite::TLS13_AES_256_GCM_SHA384 => Some(Cipher::Aes256Gcm),
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => Some(Cipher::ChaCha20Poly1305),
        _ => None,
    }
}

/// A provider like `base`, with these ciphers of aws-lc, in this order.
pub(super) fn provider(ciphers: &[Cipher], base: CryptoProvider) -> CryptoProvider {
    let suite = |wanted: &Cipher| {
        let mut suites = SUITES.iter();
        suites.find(|(cipher, _)| cipher == wanted)
    };
    let suites = ciphers.iter().filter_map(suite);
    CryptoProvider {
        cipher_suites: suites
            .map(|(_, suite)| SupportedCipherSuite::Tls13(suite))
            .collect(),
        ..base
    }
}

/// The suite of Initial packets (RFC 9001 §5.2), which is not negotiated.
pub(super) fn initial_suite() -> Option<quic::Suite> {
    let mut suites = SUITES.iter();
    let (_, suite) = suites.find(|(cipher, _)| *cipher == Cipher::Aes128Gcm)?;
    suite.quic_suite()
}
