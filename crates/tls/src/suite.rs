//! Versions, ciphers, and how large records are with them.

use crate::error::Error;

/// Length of a tag, in bytes.
pub const TAG_BYTES: usize = 16;

/// Length of a record's header, in bytes.
pub const RECORD_HEADER_BYTES: usize = 5;

/// Longest plaintext of a record, in bytes (RFC 8446 §5.1).
pub const RECORD_PLAINTEXT_BYTES_MAX: usize = 1 << 14;

/// What authenticates a record.
pub type Tag = [u8; TAG_BYTES];

/// A version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// RFC 5246.
    Tls12,
    /// RFC 8446.
    Tls13,
}

/// An AEAD cipher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cipher {
    /// AES-GCM with a key of 16 bytes.
    Aes128Gcm,
    /// AES-GCM with a key of 32 bytes.
    Aes256Gcm,
    /// ChaCha20-Poly1305; its key has 32 bytes.
    ChaCha20Poly1305,
}

/// How records are sealed, but for the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Suite {
    /// Decides how a record looks.
    pub version: Version,
    /// Seals it.
    pub cipher: Cipher,
}

impl Suite {
    /// Length of the nonce that a record of TLS 1.2 carries (RFC 5288 §3), in bytes.
    pub const fn explicit_nonce_bytes(self) -> usize {
        match (self.version, self.cipher) {
            (Version::Tls12, Cipher::Aes128Gcm | Cipher::Aes256Gcm) => 8,
            _ => 0,
        }
    }

    /// By how much a record is longer than its plaintext, in bytes: header, explicit nonce, the content type that
    /// TLS 1.3 seals with the content, tag.
    pub const fn overhead_bytes(self) -> usize {
        let sealed_type = match self.version {
            Version::Tls12 => 0,
            Version::Tls13 => 1,
        };
        RECORD_HEADER_BYTES + self.explicit_nonce_bytes() + sealed_type + TAG_BYTES
    }
}

/// What a record carries (RFC 8446 §5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ContentType {
    /// The change of keys of TLS 1.2; means nothing in TLS 1.3.
    ChangeCipherSpec = 20,
    /// An alert.
    Alert = 21,
    /// Handshake messages, such as KeyUpdate.
    Handshake = 22,
    /// Application data.
    ApplicationData = 23,
}

impl TryFrom<u8> for ContentType {
    type Error = Error;

    fn try_from(value: u8) -> Result<Self, Error> {
        match value {
            20 => Ok(ContentType::ChangeCipherSpec),
            21 => Ok(ContentType::Alert),
            22 => Ok(ContentType::Handshake),
            23 => Ok(ContentType::ApplicationData),
            content_type => Err(Error::UnexpectedRecord { content_type }),
        }
    }
}
