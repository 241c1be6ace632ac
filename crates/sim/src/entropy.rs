//! Seeded randomness for cryptography: the same seed gives the same handshakes, to the last byte.
//!
//! rustls takes its random bytes and the secrets of key exchanges from here; the certificate's
//! algorithm, Ed25519, is deterministic. Each thread has a generator of its own, since rustls
//! requires a `'static` provider.

use std::cell::RefCell;
use std::sync::Arc;

use aws_lc_rs::agreement::{self, PrivateKey, UnparsedPublicKey, X25519};
use chacha20poly1305::aead::{Aead, KeyInit};
use chacha20poly1305::{ChaCha20Poly1305, Nonce};
use rustls::crypto::{
    ActiveKeyExchange, CryptoProvider, GetRandomFailed, SecureRandom, SharedSecret,
    SupportedKxGroup, aws_lc_rs as provided,
};
use rustls::server::ProducesTickets;
use rustls::{Error, NamedGroup, PeerMisbehaved};

use crate::random::Random;

thread_local! {
    static RANDOM: RefCell<Random> = RefCell::new(Random::new(0));
}

/// Sets this thread's generator.
pub(crate) fn begin(random: Random) {
    RANDOM.set(random);
}

fn fill(buffer: &mut [u8]) {
    RANDOM.with_borrow_mut(|random| {
        for chunk in buffer.chunks_mut(8) {
            chunk.copy_from_slice(&random.next().to_le_bytes()[..chunk.len()]);
        }
    });
}

/// Returns the provider of aws-lc, with its randomness replaced.
pub(crate) fn provider() -> CryptoProvider {
    CryptoProvider {
        secure_random: &Seeded,
        kx_groups: vec![&Seeded],
        ..provided::default_provider()
    }
}

/// The generator as a rustls `SecureRandom`, and X25519 with secrets from it.
#[derive(Debug)]
struct Seeded;

impl SecureRandom for Seeded {
    fn fill(&self, buffer: &mut [u8]) -> Result<(), GetRandomFailed> {
        fill(buffer);
        Ok(())
    }
}

impl SupportedKxGroup for Seeded {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        let failed = |_| Error::FailedToGetRandomBytes;
        let mut secret = [0; 32];
        fill(&mut secret);
        let private = PrivateKey::from_private_key(&X25519, &secret)
            .map_err(|_| Error::FailedToGetRandomBytes)?;
        let public = private.compute_public_key().map_err(failed)?;
        Ok(Box::new(Exchange {
            private,
            public: public.as_ref().to_vec(),
        }))
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::X25519
    }
}

struct Exchange {
    private: PrivateKey,
    public: Vec<u8>,
}

impl ActiveKeyExchange for Exchange {
    fn complete(self: Box<Self>, peer_pub_key: &[u8]) -> Result<SharedSecret, Error> {
        let peer = UnparsedPublicKey::new(&X25519, peer_pub_key);
        let error = Error::from(PeerMisbehaved::InvalidKeyShare);
        agreement::agree(&self.private, peer, error, |secret| {
            Ok(SharedSecret::from(secret))
        })
    }

    fn pub_key(&self) -> &[u8] {
        &self.public
    }

    fn group(&self) -> NamedGroup {
        NamedGroup::X25519
    }
}

/// Seals session tickets, with nonces from the same generator.
pub(crate) struct Tickets(ChaCha20Poly1305);

/// Bytes of the nonce at the start of a ticket.
const NONCE_BYTES: usize = 12;

impl Tickets {
    pub(crate) fn new() -> Arc<Tickets> {
        let mut key = [0; 32];
        fill(&mut key);
        Arc::new(Tickets(ChaCha20Poly1305::new(&key.into())))
    }
}

impl std::fmt::Debug for Tickets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tickets").finish_non_exhaustive()
    }
}

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        3_600
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let mut nonce = [0; NONCE_BYTES];
        fill(&mut nonce);
        let sealed = self.0.encrypt(&Nonce::from(nonce), plain).ok()?;
        Some([&nonce[..], &sealed].concat())
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        let (nonce, sealed) = cipher.split_first_chunk::<NONCE_BYTES>()?;
        self.0.decrypt(&Nonce::from(*nonce), sealed).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_leads_to_the_same_exchange_again_and_both_ends_agree() {
        let exchange = |seed| {
            begin(Random::new(seed));
            let client = Seeded.start().unwrap();
            let server = Seeded.start_and_complete(client.pub_key()).unwrap();
            let secret = client.complete(&server.pub_key).unwrap();
            assert_eq!(secret.secret_bytes(), server.secret.secret_bytes());
            secret.secret_bytes().to_vec()
        };
        assert_eq!(exchange(1), exchange(1));
        assert_ne!(exchange(1), exchange(2));
    }

    #[test]
    fn only_tickets_of_its_own_are_opened() {
        begin(Random::new(1));
        let tickets = Tickets::new();
        let mut ticket = tickets.encrypt(b"session").unwrap();
        assert_eq!(tickets.decrypt(&ticket), Some(b"session".to_vec()));
        assert_eq!(Tickets::new().decrypt(&ticket), None);
        ticket[20] ^= 1;
        assert_eq!(tickets.decrypt(&ticket), None);
        assert_eq!(tickets.decrypt(b"short"), None);
    }
}
