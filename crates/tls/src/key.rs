//! Keys that seal or open records.

use std::fmt;

use rustls::{ConnectionTrafficSecrets, ProtocolVersion};
use zeroize::Zeroizing;

use crate::error::Error;
use contract::tls::{Cipher, Suite, Version};

/// A key for the records of one direction.
///
/// The nonce of a record is the IV with the record's number, big-endian, XORed into its last 8
/// bytes. With TLS 1.2 and AES-GCM the last 8 bytes of the nonce are written into the record (RFC
/// 5288 §3); the IV is the salt and 8 bytes of the key block behind it, so that no nonce is that of
/// a Finished message.
#[derive(Clone)]
pub struct Key {
    /// Number of earlier keys of this direction; runs refer to the key by it.
    pub epoch: u16,
    /// Version and cipher.
    pub suite: Suite,
    key: Zeroizing<Vec<u8>>,
    iv: Zeroizing<[u8; 12]>,
}

impl Key {
    /// Creates a key from the secrets of a handshake or a KeyUpdate.
    ///
    /// # Errors
    /// If rustls negotiated a cipher unknown to this crate, which its configuration rules out.
    pub(crate) fn new(
        epoch: u16,
        version: Version,
        secrets: &ConnectionTrafficSecrets,
    ) -> Result<Self, Error> {
        let (cipher, key, iv) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (Cipher::Aes128Gcm, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (Cipher::Aes256Gcm, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => {
                (Cipher::ChaCha20Poly1305, key, iv)
            }
            _ => return Err(Error::Unsupported),
        };
        let iv = iv.as_ref().try_into().map_err(|_| Error::Unsupported)?;
        Ok(Self {
            epoch,
            suite: Suite { version, cipher },
            key: Zeroizing::new(key.as_ref().to_vec()),
            iv: Zeroizing::new(iv),
        })
    }

    /// The first key of a direction, from its bytes.
    pub(crate) fn from_parts(
        suite: Suite,
        key: Zeroizing<Vec<u8>>,
        iv: Zeroizing<[u8; 12]>,
    ) -> Self {
        Self {
            epoch: 0,
            suite,
            key,
            iv,
        }
    }

    /// The key, 16 or 32 bytes.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The static IV.
    pub fn iv(&self) -> &[u8; 12] {
        &self.iv
    }
}

/// Without the key and the IV.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key")
            .field("epoch", &self.epoch)
            .field("suite", &self.suite)
            .finish_non_exhaustive()
    }
}

/// The version, if it is one that this crate knows.
pub(crate) fn version(negotiated: ProtocolVersion) -> Result<Version, Error> {
    match negotiated {
        ProtocolVersion::TLSv1_2 => Ok(Version::Tls12),
        ProtocolVersion::TLSv1_3 => Ok(Version::Tls13),
        _ => Err(Error::Unsupported),
    }
}
