//! The traffic secrets of a TLS 1.3 handshake (RFC 8446 §7.1), once rustls has derived them.
//!
//! rustls offers them to a key log only. They serve two ends: to distinguish rejected early data
//! from the client's later records, and to seal the alert for an error that rustls does not detect,
//! or for which it has none.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use aws_lc_rs::aead::{Aad, Nonce};
use rustls::crypto::tls13::OkmBlock;
use rustls::{KeyLog, SupportedCipherSuite};
use zeroize::Zeroizing;

use crate::config::cipher;
use crate::content_type::ContentType;
use crate::error::Error;
use crate::key::Key;
use crate::opener::{Opener, aead_key};
use contract::tls::{Suite, TAG_BYTES, Version};

const CLIENT_HANDSHAKE: &str = "CLIENT_HANDSHAKE_TRAFFIC_SECRET";
const SERVER_APPLICATION: &str = "SERVER_TRAFFIC_SECRET_0";

type Secret = Zeroizing<Vec<u8>>;

/// Key log that collects the secrets.
pub(crate) struct TrafficSecrets {
    secrets: Mutex<Secrets>,
    /// The operator's key log, which gets everything, too.
    key_log: Arc<dyn KeyLog>,
}

#[derive(Default)]
struct Secrets {
    client_handshake: Option<Secret>,
    server_application: Option<Secret>,
}

impl TrafficSecrets {
    /// Passes everything on to `key_log`.
    pub(crate) fn new(key_log: Arc<dyn KeyLog>) -> Self {
        Self {
            secrets: Mutex::default(),
            key_log,
        }
    }

    /// Returns the opener of the client's records up to its Finished; `None` before ServerHello.
    pub(crate) fn handshake_opener(
        &self,
        suite: SupportedCipherSuite,
    ) -> Result<Option<Opener>, Error> {
        let secrets = self.secrets.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(secret) = &secrets.client_handshake else {
            return Ok(None);
        };
        Opener::new(&key(suite, secret)?, 0).map(Some)
    }

    /// Returns a fatal alert as the first record behind the server's Finished; `None` before that.
    ///
    /// No other record may have been sealed behind Finished: each has a number of its own.
    pub(crate) fn seal_alert(
        &self,
        suite: SupportedCipherSuite,
        alert: [u8; 2],
    ) -> Result<Option<Vec<u8>>, Error> {
        let secrets = self.secrets.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(secret) = &secrets.server_application else {
            return Ok(None);
        };
        let key = key(suite, secret)?;
        let mut inner = vec![alert[0], alert[1], ContentType::Alert as u8];
        let length = (inner.len() + TAG_BYTES) as u8;
        let header = [ContentType::ApplicationData as u8, 3, 3, 0, length];
        // The nonce of record 0 is the IV (RFC 8446 §5.3).
        let nonce = Nonce::assume_unique_for_key(*key.iv());
        aead_key(&key)?
            .seal_in_place_append_tag(nonce, Aad::from(header), &mut inner)
            .map_err(|_| Error::Unsupported)?;
        Ok(Some([&header[..], &inner].concat()))
    }
}

impl KeyLog for TrafficSecrets {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        if self.key_log.will_log(label) {
            self.key_log.log(label, client_random, secret);
        }
        let mut secrets = self.secrets.lock().unwrap_or_else(PoisonError::into_inner);
        let secret = Some(Zeroizing::new(secret.to_vec()));
        match label {
            CLIENT_HANDSHAKE => secrets.client_handshake = secret,
            SERVER_APPLICATION => secrets.server_application = secret,
            _ => {}
        }
    }

    fn will_log(&self, label: &str) -> bool {
        matches!(label, CLIENT_HANDSHAKE | SERVER_APPLICATION) || self.key_log.will_log(label)
    }
}

/// Without the secrets.
impl fmt::Debug for TrafficSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrafficSecrets").finish_non_exhaustive()
    }
}

/// The key that follows from a traffic secret (RFC 8446 §7.3).
fn key(suite: SupportedCipherSuite, secret: &[u8]) -> Result<Key, Error> {
    let cipher = cipher(&suite).ok_or(Error::Unsupported)?;
    let tls13 = suite.tls13().ok_or(Error::Unsupported)?;
    let expander = tls13.hkdf_provider.expander_for_okm(&OkmBlock::new(secret));
    // HKDF-Expand-Label without a context (§7.1).
    let expand = |label: &[u8], output: &mut [u8]| {
        let length = (output.len() as u16).to_be_bytes();
        let prefix = b"tls13 ";
        let label_length = [(prefix.len() + label.len()) as u8];
        let info = [&length[..], &label_length, prefix, label, &[0]];
        let expanded = expander.expand_slice(&info, output);
        expanded.map_err(|_| Error::Unsupported)
    };
    let mut bytes = Zeroizing::new(vec![0; tls13.aead_alg.key_len()]);
    let mut iv = Zeroizing::new([0; 12]);
    expand(b"key", &mut bytes)?;
    expand(b"iv", &mut *iv)?;
    let version = Version::Tls13;
    Ok(Key::from_parts(Suite { version, cipher }, bytes, iv))
}
