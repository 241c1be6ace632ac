//! AES-GCM by ring, where its wide AES instructions make it the fastest.
//!
//! ring keeps a key in the value itself and does not overwrite it, so this module does.

use std::hint::black_box;

use contract::tls::{Cipher, TAG_BYTES};
use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, Algorithm, LessSafeKey, Nonce, UnboundKey};

/// Bytes of stack below the caller in which the creation of a key may leave copies.
const STACK_BYTES: usize = 8 << 10;

/// A key that ring seals under. Overwritten when it is dropped.
pub(super) struct VaesKey {
    /// In a place of its own: a move would leave a copy behind.
    key: Box<LessSafeKey>,
    algorithm: &'static Algorithm,
}

impl VaesKey {
    /// `None` if another library is faster, or the key does not have the cipher's length.
    pub(super) fn new(cipher: Cipher, key: &[u8]) -> Option<VaesKey> {
        if is_best() {
            VaesKey::of(cipher, key)
        } else {
            None
        }
    }

    /// As [`VaesKey::new`], even if another library is faster.
    pub(super) fn of(cipher: Cipher, key: &[u8]) -> Option<VaesKey> {
        let algorithm = match cipher {
            Cipher::Aes128Gcm => &AES_128_GCM,
            Cipher::Aes256Gcm => &AES_256_GCM,
            Cipher::ChaCha20Poly1305 => return None,
        };
        let key = expanded(algorithm, key);
        overwrite_stack();
        Some(VaesKey {
            key: key?,
            algorithm,
        })
    }

    /// Seals `text` where it is. Returns the tag.
    pub(super) fn seal_in_place(
        &self,
        nonce: [u8; 12],
        additional: &[u8],
        text: &mut [u8],
    ) -> [u8; TAG_BYTES] {
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = self
            .key
            .seal_in_place_separate_tag(nonce, Aad::from(additional), text)
            .expect("the length is a record's");
        tag.as_ref()
            .try_into()
            .expect("the tags of these ciphers have 16 bytes")
    }
}

impl VaesKey {
    /// Opens `sealed`, which ends with its tag, in place, and returns the plaintext. `None` if it
    /// is not authentic; its content is then undefined.
    pub(super) fn open_in_place<'a>(
        &self,
        nonce: [u8; 12],
        additional: &[u8],
        sealed: &'a mut [u8],
    ) -> Option<&'a [u8]> {
        let nonce = Nonce::assume_unique_for_key(nonce);
        let opened = self.key.open_in_place(nonce, Aad::from(additional), sealed);
        opened.ok().map(|plaintext| &*plaintext)
    }
}

/// True with wide AES instructions, unless the CPU has AVX-512, with which aws-lc is faster still.
fn is_best() -> bool {
    is_x86_feature_detected!("vaes")
        && is_x86_feature_detected!("vpclmulqdq")
        && is_x86_feature_detected!("avx2")
        && !is_x86_feature_detected!("avx512f")
}

#[inline(never)]
fn expanded(algorithm: &'static Algorithm, key: &[u8]) -> Option<Box<LessSafeKey>> {
    let key = UnboundKey::new(algorithm, key).ok()?;
    Some(Box::new(LessSafeKey::new(key)))
}

/// Overwrites the stack memory that earlier calls have used below this frame.
#[inline(never)]
fn overwrite_stack() {
    black_box(&mut [0u8; STACK_BYTES]);
}

impl Drop for VaesKey {
    fn drop(&mut self) {
        const ZEROS: [u8; 32] = [0; 32];
        // A key of the same algorithm lies in the same bytes.
        let zeros = &ZEROS[..self.algorithm.key_len()];
        if let Ok(key) = UnboundKey::new(self.algorithm, zeros) {
            *self.key = LessSafeKey::new(key);
        }
        // The memory is about to be freed: without a reader the write might be left out.
        black_box(&mut *self.key);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::FileExt;

    use super::*;

    /// Returns the number of occurrences in this process's memory of the key whose complement is
    /// `masked`. ring keeps the key unchanged: it begins the key schedule (FIPS 197 §5.2).
    fn occurrences(masked: &[u8; 32]) -> usize {
        let memory = fs::File::open("/proc/self/mem").expect("memory");
        let maps = fs::read_to_string("/proc/self/maps").expect("maps");
        let mut found = 0;
        for line in maps.lines() {
            let mut words = line.split(' ');
            let (range, rights) = (words.next().expect("a range"), words.next());
            if !rights.is_some_and(|rights| rights.starts_with("rw")) {
                continue;
            }
            let (from, to) = range.split_once('-').expect("from and to");
            let [from, to] = [from, to].map(|it| u64::from_str_radix(it, 16).expect("an address"));
            let mut bytes = vec![0; (to - from) as usize];
            // The kernel's own pages, such as vvar, cannot be read.
            let Ok(len) = memory.read_at(&mut bytes, from) else {
                continue;
            };
            let is_key = |window: &&[u8]| window.iter().zip(masked).all(|(byte, it)| *byte == !it);
            found += bytes[..len].windows(32).filter(is_key).count();
            // Otherwise the next search would find this copy.
            bytes.fill(0);
            black_box(&mut bytes);
        }
        found
    }

    #[test]
    fn a_key_is_nowhere_when_it_has_been_dropped() {
        // A key that no other test has, and that is in the program's text only as its complement.
        let masked: [u8; 32] = std::array::from_fn(|index| (index as u8).wrapping_mul(37) ^ 0x5a);
        let key = install(&masked);
        assert!(occurrences(&masked) >= 1, "this is how to find it");
        drop(key);
        assert_eq!(occurrences(&masked), 0);
    }

    #[inline(never)]
    fn install(masked: &[u8; 32]) -> VaesKey {
        let mut plain = *masked;
        plain.iter_mut().for_each(|byte| *byte = !*byte);
        let key = VaesKey::of(Cipher::Aes256Gcm, &plain).expect("a key");
        plain.fill(0);
        black_box(&mut plain);
        key
    }
}
