//! TLS across the split: the host stack numbers the records, the NIC stack seals them.
//!
//! KEY gives a flow a key, under an *epoch*. RECORDS defines a run of records under it: their
//! numbers, their place in the stream, and their plaintext. From then on that stretch of the stream
//! is *sealed*, and a SEND names any range of it, as [`Segment::Sealed`](crate::Segment::Sealed).
//!
//! A record is defined once. However often it is sent, and by any number of NIC stacks in
//! succession, the same bytes leave or none: the tag of its first sealing is reported
//! ([`Event::Sealed`](crate::Event::Sealed)) before any of its bytes leave, and every later sealing
//! must have the same tag. Sealing other plaintext under the same number would reveal both
//! plaintexts and, with GCM, allow forgeries.
//!
//! | | TLS 1.3 (RFC 8446 §5.2) | TLS 1.2, AES-GCM (RFC 5288 §3) | TLS 1.2, ChaCha20 (RFC 7905 §2) |
//! |---|---|---|---|
//! | header | 5 bytes, type 23 | 5 bytes | 5 bytes |
//! | explicit nonce | – | 8 bytes: the last of the nonce | – |
//! | content type | 1 byte, sealed | in the header | in the header |
//! | tag | 16 bytes | 16 bytes | 16 bytes |
//!
//! The nonce is always the 12 bytes of the IV, with the record number, big-endian, XORed into the
//! last 8. For TLS 1.2 with AES-GCM the IV is the 4 bytes of salt and any 8 bytes behind them.
//!
//! # Key material
//!
//! `Debug` never prints it. In the command ring it is overwritten as soon as it has been copied
//! out, and so is the copy, with the next message. The NIC stack's cipher overwrites its own when
//! it is removed.

use std::fmt;

use crate::ids::FlowId;
use crate::limits::RECORD_PLAINTEXT_BYTES_MAX;
use crate::segment::Segments;

/// Length of a tag, in bytes.
pub const TAG_BYTES: usize = 16;

/// Length of a record's header, in bytes.
pub const RECORD_HEADER_BYTES: usize = 5;

/// The authentication tag of a record.
pub type Tag = [u8; TAG_BYTES];

/// A version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Version {
    /// RFC 5246.
    Tls12 = 2,
    /// RFC 8446.
    Tls13 = 3,
}

/// An AEAD cipher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Cipher {
    /// AES-GCM with a key of 16 bytes.
    Aes128Gcm = 1,
    /// AES-GCM with a key of 32 bytes.
    Aes256Gcm = 2,
    /// ChaCha20-Poly1305; its key has 32 bytes.
    ChaCha20Poly1305 = 3,
}

impl Version {
    /// Name, as OpenSSL has it.
    pub fn name(self) -> &'static str {
        match self {
            Version::Tls12 => "TLSv1.2",
            Version::Tls13 => "TLSv1.3",
        }
    }
}

impl Cipher {
    /// Name, as operators know it.
    pub fn name(self) -> &'static str {
        match self {
            Cipher::Aes128Gcm => "AES-128-GCM",
            Cipher::Aes256Gcm => "AES-256-GCM",
            Cipher::ChaCha20Poly1305 => "CHACHA20-POLY1305",
        }
    }
}

/// How records are sealed, but for the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Suite {
    /// Determines the format of records.
    pub version: Version,
    /// Seals the records.
    pub cipher: Cipher,
}

/// Type of a record's content (RFC 8446 §5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ContentType {
    /// An alert.
    Alert = 21,
    /// Handshake messages, such as KeyUpdate.
    Handshake = 22,
    /// Application data.
    ApplicationData = 23,
}

/// KEY: a key for the records of a flow.
///
/// The epochs of a flow ascend: none is used for a second key. A flow that has had a key lives
/// until an ACKD with `last`.
#[derive(Clone, PartialEq, Eq)]
pub struct Key<'a> {
    /// The flow.
    pub flow: FlowId,
    /// The name of the key in RECORDS.
    pub epoch: u16,
    /// Version and cipher.
    pub suite: Suite,
    /// The key: [`Cipher::key_bytes`].
    pub key: &'a [u8],
    /// The static IV, from which each record's nonce is made.
    pub iv: [u8; 12],
}

/// RECORDS: defines a run of records that follow each other in number and in the stream.
///
/// The runs of a flow are defined in the order of the stream and of their numbers, without
/// overlapping. A definition stays until an ACKD passes the end of the run. Until then the same run
/// may be defined again, which changes nothing; for a new NIC stack this is required before a SEND
/// names the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Records<'a> {
    /// The flow.
    pub flow: FlowId,
    /// The key that seals them.
    pub epoch: u16,
    /// Number of the first record: the count of records sealed before with this key.
    pub number: u64,
    /// Stream offset (as in [`crate::Send::stream_offset`]) of the first record's first byte.
    pub stream_offset: u64,
    /// Type of the records' content.
    pub content_type: ContentType,
    /// Plaintext of each record but the last, which has the rest: 1 to
    /// [`RECORD_PLAINTEXT_BYTES_MAX`] bytes.
    pub record_plaintext_bytes: u16,
    /// As [`crate::Send::follow_bytes`] for the last segment: how far the plaintext behind this run
    /// continues in the same file.
    pub follow_bytes: u32,
    /// The plaintext of all records, in order, inline or of files: not empty, and not more than
    /// [`crate::limits::RECORDS_MAX`] records hold.
    pub segments: Segments<'a>,
    /// Tags of the first records, as far as known from an earlier NIC stack; at most one per
    /// record.
    pub tags: &'a [Tag],
}

impl Cipher {
    /// Length of a key, in bytes.
    pub const fn key_bytes(self) -> usize {
        match self {
            Cipher::Aes128Gcm => 16,
            Cipher::Aes256Gcm | Cipher::ChaCha20Poly1305 => 32,
        }
    }
}

impl Suite {
    /// Length of the nonce that a record of TLS 1.2 carries (RFC 5288 §3), in bytes.
    pub const fn explicit_nonce_bytes(self) -> usize {
        match (self.version, self.cipher) {
            (Version::Tls12, Cipher::Aes128Gcm | Cipher::Aes256Gcm) => 8,
            _ => 0,
        }
    }

    /// Length of the bytes before the ciphertext: header and explicit nonce.
    pub const fn prefix_bytes(self) -> usize {
        RECORD_HEADER_BYTES + self.explicit_nonce_bytes()
    }

    /// Length of the bytes behind the ciphertext of the plaintext: content type and tag.
    pub const fn suffix_bytes(self) -> usize {
        match self.version {
            Version::Tls12 => TAG_BYTES,
            Version::Tls13 => 1 + TAG_BYTES,
        }
    }

    /// Returns how much longer a record is than its plaintext, in bytes.
    pub const fn overhead_bytes(self) -> usize {
        self.prefix_bytes() + self.suffix_bytes()
    }

    /// The maximum of [`Suite::overhead_bytes`].
    pub const OVERHEAD_BYTES_MAX: usize = RECORD_HEADER_BYTES + 8 + TAG_BYTES;

    /// Longest record, in bytes.
    pub const RECORD_BYTES_MAX: usize = RECORD_PLAINTEXT_BYTES_MAX + Suite::OVERHEAD_BYTES_MAX;
}

impl Records<'_> {
    /// Returns the plaintext of all records, in bytes.
    pub fn plaintext_bytes(&self) -> u64 {
        self.segments.payload_bytes()
    }

    /// Returns the number of records.
    pub fn count(&self) -> u64 {
        let each = u64::from(self.record_plaintext_bytes).max(1);
        self.plaintext_bytes().div_ceil(each)
    }

    /// Returns the length of the records in the stream, in bytes.
    pub fn stream_bytes(&self, suite: Suite) -> u64 {
        self.plaintext_bytes() + self.count() * suite.overhead_bytes() as u64
    }
}

/// Without the key and the IV.
impl fmt::Debug for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key")
            .field("flow", &self.flow)
            .field("epoch", &self.epoch)
            .field("suite", &self.suite)
            .finish_non_exhaustive()
    }
}
