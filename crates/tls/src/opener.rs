//! Opens the records that the client sends.

use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};

use crate::error::Error;
use crate::key::Key;
use contract::limits::RECORD_PLAINTEXT_BYTES_MAX;
use contract::tls::{Cipher, RECORD_HEADER_BYTES, Suite, TAG_BYTES, Version};

/// Converts a key for the AEAD library.
pub(crate) fn aead_key(key: &Key) -> Result<LessSafeKey, Error> {
    let algorithm = match key.suite.cipher {
        Cipher::Aes128Gcm => &AES_128_GCM,
        Cipher::Aes256Gcm => &AES_256_GCM,
        Cipher::ChaCha20Poly1305 => &CHACHA20_POLY1305,
    };
    let unbound = UnboundKey::new(algorithm, key.key()).map_err(|_| Error::Unsupported)?;
    Ok(LessSafeKey::new(unbound))
}

/// A key, and the number of records that it has opened.
pub(crate) struct Opener {
    suite: Suite,
    key: LessSafeKey,
    iv: [u8; 12],
    number: u64,
}

impl Opener {
    /// Opens records from number `number` on.
    pub(crate) fn new(key: &Key, number: u64) -> Result<Self, Error> {
        Ok(Self {
            suite: key.suite,
            key: aead_key(key)?,
            iv: *key.iv(),
            number,
        })
    }

    /// Returns the longest record length that a header may declare, header excluded, in bytes (RFC
    /// 8446 §5.2, RFC 5246 §6.2.3).
    pub(crate) fn length_max(&self) -> usize {
        RECORD_PLAINTEXT_BYTES_MAX
            + match self.suite.version {
                Version::Tls12 => 2048,
                Version::Tls13 => 256,
            }
    }

    /// Opens a record, header included, in place: its content type and content.
    ///
    /// # Errors
    /// [`Error::BadRecord`], or [`Error::OversizedRecord`] for content that is too long; in TLS 1.3
    /// [`Error::UnexpectedRecord`] if there is nothing but padding (RFC 8446 §5.4).
    pub(crate) fn open<'a>(&mut self, record: &'a mut [u8]) -> Result<(u8, &'a [u8]), Error> {
        let (header, body) = record
            .split_at_mut_checked(RECORD_HEADER_BYTES)
            .ok_or(Error::BadRecord)?;
        let (explicit, sealed) = body
            .split_at_mut_checked(self.suite.explicit_nonce_bytes())
            .ok_or(Error::BadRecord)?;
        let plaintext_bytes = sealed
            .len()
            .checked_sub(TAG_BYTES)
            .ok_or(Error::BadRecord)?;
        let mut nonce = self.iv;
        if explicit.is_empty() {
            for (byte, number) in nonce[4..].iter_mut().zip(self.number.to_be_bytes()) {
                *byte ^= number;
            }
        } else {
            nonce[4..].copy_from_slice(explicit)
        }
        let nonce = Nonce::assume_unique_for_key(nonce);
        let opened = match self.suite.version {
            Version::Tls13 => self.key.open_in_place(nonce, Aad::from(&*header), sealed),
            Version::Tls12 => {
                let mut aad = [0; 13];
                aad[..8].copy_from_slice(&self.number.to_be_bytes());
                aad[8..11].copy_from_slice(&header[..3]);
                aad[11..].copy_from_slice(&(plaintext_bytes as u16).to_be_bytes());
                self.key.open_in_place(nonce, Aad::from(aad), sealed)
            }
        };
        let opened = &*opened.map_err(|_| Error::BadRecord)?;
        // A client that gets here would have to send for centuries.
        self.number = self.number.checked_add(1).ok_or(Error::BadRecord)?;
        let (content_type, content) = match self.suite.version {
            Version::Tls12 => (header[0], opened),
            Version::Tls13 if opened.len() > RECORD_PLAINTEXT_BYTES_MAX + 1 => {
                return Err(Error::OversizedRecord);
            }
            Version::Tls13 => {
                let end = opened.iter().rposition(|&byte| byte != 0);
                let end = end.ok_or(Error::UnexpectedRecord { content_type: 0 })?;
                (opened[end], &opened[..end])
            }
        };
        if content.len() <= RECORD_PLAINTEXT_BYTES_MAX {
            Ok((content_type, content))
        } else {
            Err(Error::OversizedRecord)
        }
    }
}
