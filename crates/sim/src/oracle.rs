//! An independent implementation of the record layer, on RustCrypto: it shares no code with the
//! stacks' sealing and opening, and takes only the first keys from rustls.

use aes_gcm::aead::{AeadInPlace, KeyInit};
use aes_gcm::{Aes128Gcm, Aes256Gcm};
use chacha20poly1305::ChaCha20Poly1305;
use contract::tls::{Cipher, RECORD_HEADER_BYTES, Suite, TAG_BYTES, Version};
use hkdf::Hkdf;
use sha2::{Sha256, Sha384};

use crate::violation::{Violation, ensure, violation};

/// Most plaintext of a record, in bytes (RFC 8446 §5.1, RFC 5246 §6.2.1).
pub(crate) const PLAINTEXT_BYTES_MAX: usize = 1 << 14;

/// Records of one direction: its key, and the number of records under it.
pub(crate) struct Records {
    suite: Suite,
    aead: Aead,
    iv: [u8; 12],
    /// Secret from which the next key is derived, in TLS 1.3.
    secret: Vec<u8>,
    number: u64,
}

enum Aead {
    Aes128Gcm(Box<Aes128Gcm>),
    Aes256Gcm(Box<Aes256Gcm>),
    ChaCha20Poly1305(Box<ChaCha20Poly1305>),
}

impl Aead {
    fn new(cipher: Cipher, key: &[u8]) -> Option<Aead> {
        Some(match cipher {
            Cipher::Aes128Gcm => Aead::Aes128Gcm(Box::new(KeyInit::new_from_slice(key).ok()?)),
            Cipher::Aes256Gcm => Aead::Aes256Gcm(Box::new(KeyInit::new_from_slice(key).ok()?)),
            Cipher::ChaCha20Poly1305 => {
                Aead::ChaCha20Poly1305(Box::new(KeyInit::new_from_slice(key).ok()?))
            }
        })
    }
}

impl Records {
    /// Starts from a key and IV at record `number`.
    pub(crate) fn new(suite: Suite, key: &[u8], iv: &[u8], number: u64) -> Option<Records> {
        Some(Records {
            suite,
            aead: Aead::new(suite.cipher, key)?,
            iv: iv.try_into().ok()?,
            secret: Vec::new(),
            number,
        })
    }

    /// Starts from a traffic secret of TLS 1.3 (RFC 8446 §7.3) at record `number`.
    pub(crate) fn of_secret(suite: Suite, secret: Vec<u8>, number: u64) -> Option<Records> {
        let key = expand(suite.cipher, &secret, b"key", suite.cipher.key_bytes())?;
        let iv = expand(suite.cipher, &secret, b"iv", 12)?;
        let records = Records::new(suite, &key, &iv, number)?;
        Some(Records { secret, ..records })
    }

    /// Switches to the next key (RFC 8446 §7.2).
    pub(crate) fn update(&mut self) -> Option<()> {
        let next = expand(
            self.suite.cipher,
            &self.secret,
            b"traffic upd",
            self.secret.len(),
        )?;
        *self = Records::of_secret(self.suite, next, 0)?;
        Some(())
    }

    /// Appends a record, with `padding_bytes` of padding in TLS 1.3.
    pub(crate) fn seal(
        &mut self,
        content_type: u8,
        content: &[u8],
        padding_bytes: usize,
        into: &mut Vec<u8>,
    ) -> Result<(), Violation> {
        let nonce = self.nonce();
        let explicit = &nonce[12 - self.suite.explicit_nonce_bytes()..];
        let mut text = content.to_vec();
        let mut outer_type = content_type;
        if self.suite.version == Version::Tls13 {
            text.push(content_type);
            text.resize(text.len() + padding_bytes, 0);
            outer_type = 23;
        }
        let [high, low] = ((explicit.len() + text.len() + TAG_BYTES) as u16).to_be_bytes();
        let header = [outer_type, 3, 3, high, low];
        let aad = self.additional_data(header, text.len());
        let (aad, nonce_ref) = (&aad[..], (&nonce).into());
        let tag = match &self.aead {
            Aead::Aes128Gcm(aead) => aead.encrypt_in_place_detached(nonce_ref, aad, &mut text),
            Aead::Aes256Gcm(aead) => aead.encrypt_in_place_detached(nonce_ref, aad, &mut text),
            Aead::ChaCha20Poly1305(aead) => {
                aead.encrypt_in_place_detached(nonce_ref, aad, &mut text)
            }
        };
        let Ok(tag) = tag else {
            return violation("a client cannot seal a record");
        };
        self.number += 1;
        into.extend_from_slice(&header);
        into.extend_from_slice(explicit);
        into.extend_from_slice(&text);
        into.extend_from_slice(&tag);
        Ok(())
    }

    /// Returns the largest valid length field of a record, in bytes: without padding, and no longer
    /// than necessary.
    pub(crate) fn length_max(&self) -> usize {
        PLAINTEXT_BYTES_MAX + self.suite.overhead_bytes() - RECORD_HEADER_BYTES
    }

    /// Opens the next record, header included; returns its content type and content.
    pub(crate) fn open<'a>(&mut self, record: &'a mut [u8]) -> Result<(u8, &'a [u8]), Violation> {
        let number = self.number;
        let Some((&mut header, body)) = record.split_first_chunk_mut::<RECORD_HEADER_BYTES>()
        else {
            return violation("a record without a header");
        };
        let explicit_bytes = self.suite.explicit_nonce_bytes();
        ensure(body.len() >= explicit_bytes + TAG_BYTES, || {
            format!("record {number} is too short: {} bytes", body.len())
        })?;
        let (explicit, sealed) = body.split_at_mut(explicit_bytes);
        let (text, tag) = sealed.split_at_mut(sealed.len() - TAG_BYTES);
        let mut nonce = self.nonce();
        nonce[12 - explicit_bytes..].copy_from_slice(explicit);
        let aad = self.additional_data(header, text.len());
        let (aad, nonce, tag) = (&aad[..], (&nonce).into(), (&*tag).into());
        let opened = match &self.aead {
            Aead::Aes128Gcm(aead) => aead.decrypt_in_place_detached(nonce, aad, text, tag),
            Aead::Aes256Gcm(aead) => aead.decrypt_in_place_detached(nonce, aad, text, tag),
            Aead::ChaCha20Poly1305(aead) => aead.decrypt_in_place_detached(nonce, aad, text, tag),
        };
        ensure(opened.is_ok(), || {
            format!("record {number} of {} bytes is not authentic", text.len())
        })?;
        self.number += 1;
        if self.suite.version == Version::Tls12 {
            return Ok((header[0], text));
        }
        match text.split_last() {
            Some((&content_type, content)) if content_type > 0 => Ok((content_type, content)),
            _ => violation(format!("record {number} has padding")),
        }
    }

    /// Returns the nonce: RFC 8446 §5.3, which TLS 1.2 with ChaCha20 follows (RFC 7905 §2); with
    /// AES-GCM, RFC 5288 §3 permits this choice of the explicit part.
    fn nonce(&self) -> [u8; 12] {
        let mut nonce = self.iv;
        for (byte, number) in nonce[4..].iter_mut().zip(self.number.to_be_bytes()) {
            *byte ^= number;
        }
        nonce
    }

    /// Returns the additional data: RFC 8446 §5.2; RFC 5246 §6.2.3.3.
    fn additional_data(&self, header: [u8; 5], text_bytes: usize) -> Vec<u8> {
        match self.suite.version {
            Version::Tls13 => header.to_vec(),
            Version::Tls12 => {
                let mut aad = self.number.to_be_bytes().to_vec();
                aad.extend_from_slice(&header[..3]);
                aad.extend_from_slice(&(text_bytes as u16).to_be_bytes());
                aad
            }
        }
    }
}

/// HKDF-Expand-Label (RFC 8446 §7.1), without a context.
fn expand(cipher: Cipher, secret: &[u8], label: &[u8], bytes: usize) -> Option<Vec<u8>> {
    let length = (bytes as u16).to_be_bytes();
    let label_length = [6 + label.len() as u8];
    let info = [&length, &label_length[..], b"tls13 ", label, &[0]].concat();
    let mut output = vec![0; bytes];
    match cipher {
        Cipher::Aes256Gcm => {
            let hkdf = Hkdf::<Sha384>::from_prk(secret).ok()?;
            hkdf.expand(&info, &mut output).ok()?;
        }
        Cipher::Aes128Gcm | Cipher::ChaCha20Poly1305 => {
            let hkdf = Hkdf::<Sha256>::from_prk(secret).ok()?;
            hkdf.expand(&info, &mut output).ok()?;
        }
    }
    Some(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUITES: [(Version, Cipher); 6] = [
        (Version::Tls13, Cipher::Aes128Gcm),
        (Version::Tls13, Cipher::Aes256Gcm),
        (Version::Tls13, Cipher::ChaCha20Poly1305),
        (Version::Tls12, Cipher::Aes128Gcm),
        (Version::Tls12, Cipher::Aes256Gcm),
        (Version::Tls12, Cipher::ChaCha20Poly1305),
    ];

    fn records((version, cipher): (Version, Cipher)) -> Records {
        let suite = Suite { version, cipher };
        let key = [7; 32];
        Records::new(suite, &key[..cipher.key_bytes()], &[9; 12], 0).unwrap()
    }

    #[test]
    fn records_are_opened_in_their_order_and_no_other() {
        for suite in SUITES {
            let mut stream = Vec::new();
            let mut sealer = records(suite);
            sealer.seal(23, b"first", 0, &mut stream).unwrap();
            let first = stream.len();
            sealer.seal(21, b"second", 0, &mut stream).unwrap();
            let (first, second) = stream.split_at_mut(first);
            assert!(records(suite).open(&mut second.to_vec()).is_err());
            let mut opener = records(suite);
            assert_eq!(opener.open(first), Ok((23, &b"first"[..])));
            assert_eq!(opener.open(second), Ok((21, &b"second"[..])));
        }
    }

    #[test]
    fn a_record_with_a_bit_flipped_anywhere_is_refused() {
        for suite in SUITES {
            let mut record = Vec::new();
            records(suite).seal(23, b"text", 0, &mut record).unwrap();
            for bit in 0..record.len() * 8 {
                // The length field delimits the record, and is checked first.
                if (24..40).contains(&bit) {
                    continue;
                }
                let mut wrong = record.clone();
                wrong[bit / 8] ^= 1 << (bit % 8);
                assert!(records(suite).open(&mut wrong).is_err(), "bit {bit}");
            }
        }
    }

    /// RFC 8448 §3: the server's application traffic secret, and the keys derived from it.
    #[test]
    fn keys_follow_from_secrets_as_in_the_example_of_the_rfc() {
        let bytes = |hex: &str| -> Vec<u8> {
            let digits: Vec<u8> = hex
                .chars()
                .filter_map(|c| c.to_digit(16))
                .map(|d| d as u8)
                .collect();
            digits
                .chunks(2)
                .map(|pair| pair[0] << 4 | pair[1])
                .collect()
        };
        let secret = bytes(
            "a1 1a f9 f0 55 31 f8 56 ad 47 11 6b 45 a9 50 32 82 04 b4 f4 4b fb 6b 3a 4b 4f 1f 3f \
             cb 63 16 43",
        );
        let expanded = |label, len| expand(Cipher::Aes128Gcm, &secret, label, len).unwrap();
        assert_eq!(
            expanded(b"key", 16),
            bytes("9f 02 28 3b 6c 9c 07 ef c2 6b b9 f2 ac 92 e3 56")
        );
        assert_eq!(
            expanded(b"iv", 12),
            bytes("cf 78 2b 88 dd 83 54 9a ad f1 e9 84")
        );
    }
}
