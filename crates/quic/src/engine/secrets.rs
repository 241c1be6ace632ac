//! What the endpoint derives from its secret: keys of tokens and of stateless resets, connection
//! IDs, and random seeds.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hmac;
use quinn_proto::crypto::{AeadKey, CryptoError, HandshakeTokenKey, HmacKey};
use quinn_proto::{ConnectionId, ConnectionIdGenerator};
use zeroize::Zeroizing;

/// Length of the connection IDs of this endpoint, in bytes.
const CONNECTION_ID_BYTES: usize = 8;

/// A secret of 32 bytes. An endpoint with the same secret accepts this one's tokens, and can reset
/// this one's connections.
pub(super) struct Secret(Zeroizing<[u8; 32]>);

impl Secret {
    pub(super) fn new(secret: [u8; 32]) -> Self {
        Self(Zeroizing::new(secret))
    }

    /// Derives a separate secret for each label.
    fn derive(&self, label: &[u8]) -> Zeroizing<[u8; 32]> {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0[..]);
        let mut derived = Zeroizing::new([0; 32]);
        derived.copy_from_slice(hmac::sign(&key, label).as_ref());
        derived
    }

    fn hmac(&self, label: &[u8]) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.derive(label)[..])
    }

    pub(super) fn reset_key(&self) -> Arc<dyn HmacKey> {
        Arc::new(ResetKey(self.hmac(b"reset")))
    }

    pub(super) fn token_key(&self) -> Arc<dyn HandshakeTokenKey> {
        Arc::new(TokenKey(self.hmac(b"token")))
    }

    /// `serial`: tells apart endpoints that have the same secret.
    pub(super) fn connection_ids(&self, serial: [u8; 32]) -> ConnectionIds {
        let own = Self(self.derive(b"connection id"));
        ConnectionIds {
            key: own.hmac(&serial),
            count: 0,
            issued: Issued::default(),
        }
    }
}

struct ResetKey(hmac::Key);

impl HmacKey for ResetKey {
    fn sign(&self, data: &[u8], signature: &mut [u8]) {
        signature.copy_from_slice(hmac::sign(&self.0, data).as_ref());
    }

    fn signature_len(&self) -> usize {
        32
    }

    fn verify(&self, data: &[u8], signature: &[u8]) -> Result<(), CryptoError> {
        hmac::verify(&self.0, data, signature).map_err(|_| CryptoError)
    }
}

struct TokenKey(hmac::Key);

impl HandshakeTokenKey for TokenKey {
    fn aead_from_hkdf(&self, random: &[u8]) -> Box<dyn AeadKey> {
        let mut key = Zeroizing::new([0; 32]);
        key.copy_from_slice(hmac::sign(&self.0, random).as_ref());
        let key = UnboundKey::new(&aead::AES_256_GCM, &key[..]);
        Box::new(OneToken(key.ok().map(LessSafeKey::new)))
    }
}

/// The key of one token: its nonce is zero, since the key is used once.
struct OneToken(Option<LessSafeKey>);

impl AeadKey for OneToken {
    fn seal(&self, data: &mut Vec<u8>, additional_data: &[u8]) -> Result<(), CryptoError> {
        let key = self.0.as_ref().ok_or(CryptoError)?;
        let nonce = Nonce::assume_unique_for_key([0; 12]);
        key.seal_in_place_append_tag(nonce, Aad::from(additional_data), data)
            .map_err(|_| CryptoError)
    }

    fn open<'a>(
        &self,
        data: &'a mut [u8],
        additional_data: &[u8],
    ) -> Result<&'a mut [u8], CryptoError> {
        let key = self.0.as_ref().ok_or(CryptoError)?;
        let nonce = Nonce::assume_unique_for_key([0; 12]);
        key.open_in_place(nonce, Aad::from(additional_data), data)
            .map_err(|_| CryptoError)
    }
}

/// Connection IDs that look random to all who lack the key (RFC 9000 §5.1).
#[derive(Clone)]
pub(super) struct ConnectionIds {
    key: hmac::Key,
    count: u64,
    issued: Issued,
}

/// Connection IDs made since the endpoint last took them.
#[derive(Clone, Default)]
pub(super) struct Issued(Arc<Mutex<Vec<ConnectionId>>>);

impl Issued {
    /// Takes them.
    pub(super) fn take(&self) -> Vec<ConnectionId> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<ConnectionId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionIds {
    /// The list of IDs made by this generator and its clones.
    pub(super) fn issued(&self) -> Issued {
        self.issued.clone()
    }
}

impl ConnectionIdGenerator for ConnectionIds {
    fn generate_cid(&mut self) -> ConnectionId {
        self.count += 1;
        let tag = hmac::sign(&self.key, &self.count.to_le_bytes());
        let id = ConnectionId::new(&tag.as_ref()[..CONNECTION_ID_BYTES]);
        self.issued.lock().push(id);
        id
    }

    fn cid_len(&self) -> usize {
        CONNECTION_ID_BYTES
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}
