//! Encryption and authentication of frames: ChaCha20-Poly1305 (RFC 8439), one key for each
//! direction of a session, a frame's number as nonce. It needs no new key however many frames a
//! session has, and no special instructions of the processor.

use aws_lc_rs::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};

use super::key::KEY_BYTES;

/// Bytes of an authentication tag.
pub(super) const TAG_BYTES: usize = 16;

/// A key of one direction.
pub(super) struct SealKey(LessSafeKey);

impl SealKey {
    pub(super) fn new(key: &[u8; KEY_BYTES]) -> SealKey {
        let key =
            UnboundKey::new(&CHACHA20_POLY1305, key).expect("the key has the length of its kind");
        SealKey(LessSafeKey::new(key))
    }

    /// Encrypts the frame from `plain_bytes` on, and appends the tag, which covers the whole frame.
    /// `number` must not have been used with this key.
    pub(super) fn seal(&self, number: u64, frame: &mut Vec<u8>, plain_bytes: usize) {
        let (plain, secret) = frame.split_at_mut(plain_bytes);
        let tag = self
            .0
            .seal_in_place_separate_tag(nonce(number), Aad::from(&*plain), secret)
            .expect("a frame is shorter than what may be encrypted at once");
        frame.extend_from_slice(tag.as_ref());
    }

    /// Checks the tag at the end of the frame and decrypts; returns the decrypted bytes, or `None`
    /// if the frame was not sealed with this key and number.
    pub(super) fn open<'a>(
        &self,
        number: u64,
        frame: &'a mut [u8],
        plain_bytes: usize,
    ) -> Option<&'a mut [u8]> {
        let (plain, sealed) = frame.split_at_mut_checked(plain_bytes)?;
        self.0
            .open_in_place(nonce(number), Aad::from(&*plain), sealed)
            .ok()
    }
}

impl std::fmt::Debug for SealKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SealKey(…)")
    }
}

fn nonce(number: u64) -> Nonce {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&number.to_le_bytes());
    Nonce::assume_unique_for_key(nonce)
}
