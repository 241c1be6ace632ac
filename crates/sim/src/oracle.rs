//! The record layer of TLS as RustCrypto has it, which shares no code with what seals or opens records elsewhere
//! (RFC 8446 §5.2, RFC 5246 §6.2.3, RFC 5288 §3, RFC 7905 §2).

use aes_gcm::aead::{Aead, KeyInit, Payload};
use aes_gcm::{Aes128Gcm, Aes256Gcm};
use chacha20poly1305::ChaCha20Poly1305;
use rustls::ConnectionTrafficSecrets;
use tls::{Cipher, RECORD_HEADER_BYTES, Suite, TAG_BYTES, Version};

/// The keys of one direction, and how many records they have sealed or opened.
pub(crate) struct Records {
    suite: Suite,
    cipher: Box<dyn Sealing>,
    iv: [u8; 12],
    number: u64,
}

/// A cipher with its key.
trait Sealing {
    fn seal(&self, nonce: &[u8; 12], payload: Payload<'_, '_>) -> Option<Vec<u8>>;
    fn open(&self, nonce: &[u8; 12], payload: Payload<'_, '_>) -> Option<Vec<u8>>;
}

impl<A: Aead<NonceSize = aes_gcm::aead::consts::U12>> Sealing for A {
    fn seal(&self, nonce: &[u8; 12], payload: Payload<'_, '_>) -> Option<Vec<u8>> {
        self.encrypt(nonce.into(), payload).ok()
    }

    fn open(&self, nonce: &[u8; 12], payload: Payload<'_, '_>) -> Option<Vec<u8>> {
        self.decrypt(nonce.into(), payload).ok()
    }
}

impl Records {
    /// From record `number` on; `None` if the secrets are of another suite.
    pub(crate) fn new(
        suite: Suite,
        (number, secrets): (u64, ConnectionTrafficSecrets),
    ) -> Option<Records> {
        let (cipher, iv): (Box<dyn Sealing>, _) = match (suite.cipher, &secrets) {
            (Cipher::Aes128Gcm, ConnectionTrafficSecrets::Aes128Gcm { key, iv }) => {
                (Box::new(Aes128Gcm::new_from_slice(key.as_ref()).ok()?), iv)
            }
            (Cipher::Aes256Gcm, ConnectionTrafficSecrets::Aes256Gcm { key, iv }) => {
                (Box::new(Aes256Gcm::new_from_slice(key.as_ref()).ok()?), iv)
            }
            (Cipher::ChaCha20Poly1305, ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv }) => {
                let cipher = ChaCha20Poly1305::new_from_slice(key.as_ref()).ok()?;
                (Box::new(cipher), iv)
            }
            _ => return None,
        };
        let iv = iv.as_ref().try_into().ok()?;
        Some(Records {
            suite,
            cipher,
            iv,
            number,
        })
    }

    fn nonce(&self) -> [u8; 12] {
        let mut nonce = self.iv;
        for (byte, number) in nonce[4..].iter_mut().zip(self.number.to_be_bytes()) {
            *byte ^= number;
        }
        nonce
    }

    fn additional(&self, content_type: u8, len: usize) -> Vec<u8> {
        let header = header(content_type, len);
        match self.suite.version {
            Version::Tls13 => header.to_vec(),
            Version::Tls12 => [&self.number.to_be_bytes()[..], &header].concat(),
        }
    }

    /// The next record.
    pub(crate) fn seal(&mut self, content_type: u8, content: &[u8]) -> Option<Vec<u8>> {
        let nonce = self.nonce();
        let explicit = &nonce[12 - self.suite.explicit_nonce_bytes()..];
        let is_tls13 = self.suite.version == Version::Tls13;
        let (outer_type, inner) = match is_tls13 {
            true => (23, [content, &[content_type]].concat()),
            false => (content_type, content.to_vec()),
        };
        let sealed_len = explicit.len() + inner.len() + TAG_BYTES;
        let aad = match is_tls13 {
            true => self.additional(outer_type, sealed_len),
            false => self.additional(outer_type, inner.len()),
        };
        let (msg, aad) = (&inner[..], &aad[..]);
        let sealed = self.cipher.seal(&nonce, Payload { msg, aad })?;
        self.number += 1;
        Some([&header(outer_type, sealed_len)[..], explicit, &sealed].concat())
    }

    /// Content type and content of the next record, header included; `None` if it is not authentic.
    pub(crate) fn open(&mut self, record: &[u8]) -> Option<(u8, Vec<u8>)> {
        let explicit_bytes = self.suite.explicit_nonce_bytes();
        let (prefix, msg) = record.split_at_checked(RECORD_HEADER_BYTES + explicit_bytes)?;
        let mut nonce = self.nonce();
        nonce[12 - explicit_bytes..].copy_from_slice(&prefix[RECORD_HEADER_BYTES..]);
        let content_type = record[0];
        let aad = match self.suite.version {
            Version::Tls13 => self.additional(content_type, msg.len()),
            Version::Tls12 => self.additional(content_type, msg.len().checked_sub(TAG_BYTES)?),
        };
        let aad = &aad[..];
        let mut opened = self.cipher.open(&nonce, Payload { msg, aad })?;
        self.number += 1;
        match self.suite.version {
            Version::Tls12 => Some((content_type, opened)),
            Version::Tls13 => Some((opened.pop()?, opened)),
        }
    }
}

fn header(content_type: u8, len: usize) -> [u8; RECORD_HEADER_BYTES] {
    let [high, low] = (len as u16).to_be_bytes();
    [content_type, 3, 3, high, low]
}
