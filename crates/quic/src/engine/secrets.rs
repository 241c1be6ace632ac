//! What the endpoint derives from its secret: keys of tokens and of stateless resets, connection
//! IDs, and random seeds.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hmac;
use quinn_proto::crypto::{AeadKey, CryptoError, HandshakeTokenKey, HmacKey};
use quinn_proto::{ConnectionId, ConnectionIdGenerator};
use zeroize::Zeroizing;

use crate::secret::Secret;

/// Length of the connection IDs of this endpoint, in bytes.
const CONNECTION_ID_BYTES: usize = 8;

impl Secret {
    pub(super) fn reset_key(&self) -> Arc<dyn HmacKey> {
        Arc::new(ResetKey(self.derive(b"reset").key()))
    }

    pub(super) fn token_key(&self) -> Arc<dyn HandshakeTokenKey> {
        Arc::new(TokenKey(self.derive(b"token").key()))
    }

    /// `serial` distinguishes endpoints with the same secret.
    pub(super) fn connection_ids(&self, serial: [u8; 32]) -> ConnectionIds {
        ConnectionIds {
            key: self.derive(b"connection id").derive(&serial).key(),
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

/// A key for one token. It seals once, so its nonce is zero.
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

/// Connection IDs that look random without the key (RFC 9000 §5.1).
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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn endpoints_with_the_same_secret_make_other_connection_ids() {
        let secret = Secret::new([7; 32]);
        let mut made = HashSet::new();
        for serial in 0..10 {
            let mut ids = secret.connection_ids([serial; 32]);
            assert!((0..1000).all(|_| made.insert(ids.generate_cid())));
        }
    }
}
