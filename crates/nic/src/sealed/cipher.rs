//! The ciphers, by the library that is fastest on this CPU.
//!
//! That is aws-lc, but for AES-GCM on a CPU with wide AES instructions (VAES) and without AVX-512,
//! such as AMD's Zen 3: there only ring uses the wide instructions.

use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use contract::tls::{Cipher, TAG_BYTES};

#[cfg(target_arch = "x86_64")]
use super::vaes::VaesKey;

/// A key of a cipher. The cipher's memory is overwritten when it is dropped.
pub(crate) struct CipherKey(Library);

enum Library {
    AwsLc(LessSafeKey),
    #[cfg(target_arch = "x86_64")]
    Ring(VaesKey),
}

impl CipherKey {
    /// `None` if the key does not have the cipher's length.
    pub(crate) fn new(cipher: Cipher, key: &[u8]) -> Option<CipherKey> {
        #[cfg(target_arch = "x86_64")]
        if let Some(key) = VaesKey::new(cipher, key) {
            return Some(CipherKey(Library::Ring(key)));
        }
        CipherKey::of_aws_lc(cipher, key)
    }

    fn of_aws_lc(cipher: Cipher, key: &[u8]) -> Option<CipherKey> {
        let algorithm = match cipher {
            Cipher::Aes128Gcm => &aead::AES_128_GCM,
            Cipher::Aes256Gcm => &aead::AES_256_GCM,
            Cipher::ChaCha20Poly1305 => &aead::CHACHA20_POLY1305,
        };
        let key = UnboundKey::new(algorithm, key).ok()?;
        Some(CipherKey(Library::AwsLc(LessSafeKey::new(key))))
    }

    /// Seals `out` in place: plaintext, and room for `tail`, the end of the plaintext, and for the
    /// tag.
    ///
    /// # Panics
    /// If the room is not as long as `tail` and a tag, or `out` is longer than the cipher allows,
    /// which is far longer than any packet.
    pub(crate) fn seal_with_tail(
        &self,
        nonce: [u8; 12],
        additional: &[u8],
        out: &mut [u8],
        tail: &[u8],
    ) {
        let tail_at = out.len() - TAG_BYTES - tail.len();
        match &self.0 {
            // ChaCha20 is four times as slow on a tail, which aws-lc seals block by block; ring
            // seals in place only.
            Library::AwsLc(key) if *key.algorithm() != aead::CHACHA20_POLY1305 => {
                let (text, sealed_tail) = out.split_at_mut(tail_at);
                let nonce = Nonce::assume_unique_for_key(nonce);
                key.seal_in_place_scatter(nonce, Aad::from(additional), text, tail, sealed_tail)
                    .expect("the length is a packet's");
            }
            _ => {
                let (text, tag) = out.split_at_mut(tail_at + tail.len());
                text[tail_at..].copy_from_slice(tail);
                tag.copy_from_slice(&self.seal_in_place(nonce, additional, text));
            }
        }
    }

    /// Seals `text` in place. Returns the tag.
    fn seal_in_place(
        &self,
        nonce: [u8; 12],
        additional: &[u8],
        text: &mut [u8],
    ) -> [u8; TAG_BYTES] {
        match &self.0 {
            Library::AwsLc(key) => {
                let nonce = Nonce::assume_unique_for_key(nonce);
                let tag = key.seal_in_place_separate_tag(nonce, Aad::from(additional), text);
                let tag = tag.expect("the length is a packet's");
                let tag = tag.as_ref().try_into();
                tag.expect("the tags of these ciphers have 16 bytes")
            }
            #[cfg(target_arch = "x86_64")]
            Library::Ring(key) => key.seal_in_place(nonce, additional, text),
        }
    }

    /// Opens `sealed`, which ends with its tag, in place, and returns the plaintext. `None` if it
    /// is not authentic; its content is then undefined.
    pub(crate) fn open_in_place<'a>(
        &self,
        nonce: [u8; 12],
        additional: &[u8],
        sealed: &'a mut [u8],
    ) -> Option<&'a [u8]> {
        match &self.0 {
            Library::AwsLc(key) => {
                let nonce = Nonce::assume_unique_for_key(nonce);
                let opened = key.open_in_place(nonce, Aad::from(additional), sealed);
                opened.ok().map(|plaintext| &*plaintext)
            }
            #[cfg(target_arch = "x86_64")]
            Library::Ring(key) => key.open_in_place(nonce, additional, sealed),
        }
    }

    /// Writes the sealed `plaintext` and its short `tail` to `out`, followed by the tag.
    ///
    /// # Panics
    /// If `out` is not as long as `plaintext`, `tail` and the tag together.
    pub(super) fn seal(
        &self,
        nonce: [u8; 12],
        additional: &[u8],
        plaintext: &[u8],
        tail: &[u8],
        out: &mut [u8],
    ) {
        match &self.0 {
            Library::AwsLc(key) => {
                let (ciphertext, suffix) = out.split_at_mut(plaintext.len());
                key.seal_out_of_place_scatter(
                    Nonce::assume_unique_for_key(nonce),
                    Aad::from(additional),
                    plaintext,
                    ciphertext,
                    tail,
                    suffix,
                )
                .expect("the lengths are a record's");
            }
            #[cfg(target_arch = "x86_64")]
            Library::Ring(key) => {
                let (text, tag) = out.split_at_mut(out.len() - TAG_BYTES);
                let (text_start, text_end) = text.split_at_mut(plaintext.len());
                text_start.copy_from_slice(plaintext);
                text_end.copy_from_slice(tail);
                tag.copy_from_slice(&key.seal_in_place(nonce, additional, text));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use fakes::seeds::each_seed;

    use super::*;

    const CIPHERS: [Cipher; 3] = [
        Cipher::Aes128Gcm,
        Cipher::Aes256Gcm,
        Cipher::ChaCha20Poly1305,
    ];

    fn random_bytes(len: u64, random: &mut dyn FnMut(u64) -> u64) -> Vec<u8> {
        (0..len).map(|_| random(256) as u8).collect()
    }

    /// Returns a key of each library that has the cipher.
    fn keys(cipher: Cipher, key: &[u8]) -> Vec<CipherKey> {
        let aws_lc = CipherKey::of_aws_lc(cipher, key);
        #[cfg(target_arch = "x86_64")]
        let ring = VaesKey::of(cipher, key).map(|key| CipherKey(Library::Ring(key)));
        #[cfg(not(target_arch = "x86_64"))]
        let ring = None;
        aws_lc.into_iter().chain(ring).collect()
    }

    #[test]
    fn a_tail_is_sealed_to_what_it_would_be_in_place() {
        each_seed(300, |random| {
            let cipher = CIPHERS[random(3) as usize];
            let key = random_bytes(cipher.key_bytes() as u64, random);
            let nonce: [u8; 12] = std::array::from_fn(|_| random(256) as u8);
            let header_bytes = random(30);
            let header = random_bytes(header_bytes, random);
            let [text_bytes, tail_bytes] = [0, 1].map(|_| {
                let bytes_max = [1, 20, 300, 2000][random(4) as usize];
                random(bytes_max)
            });
            let text = random_bytes(text_bytes, random);
            let tail = random_bytes(tail_bytes, random);

            let reference = CipherKey::of_aws_lc(cipher, &key).expect("a key");
            let mut wanted = [&text[..], &tail].concat();
            let tag = reference.seal_in_place(nonce, &header, &mut wanted);
            wanted.extend_from_slice(&tag);
            for key in keys(cipher, &key) {
                // The initial bytes in the room for the tail and the tag do not matter.
                let mut sealed = text.clone();
                sealed.extend(random_bytes(tail_bytes + TAG_BYTES as u64, random));
                key.seal_with_tail(nonce, &header, &mut sealed, &tail);
                assert!(
                    sealed == wanted,
                    "{cipher:?}, {text_bytes} and {tail_bytes}"
                );
                let opened = key.open_in_place(nonce, &header, &mut sealed);
                assert_eq!(opened, Some(&[text.as_slice(), &tail].concat()[..]));
            }
        });
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn both_libraries_seal_alike() {
        for cipher in [Cipher::Aes128Gcm, Cipher::Aes256Gcm] {
            let key: Vec<u8> = (1..=cipher.key_bytes() as u8).collect();
            let ring = CipherKey(Library::Ring(VaesKey::of(cipher, &key).expect("a key")));
            let aws_lc = CipherKey::of_aws_lc(cipher, &key).expect("a key");
            let tails = [(0, &[23][..]), (1, &[]), (16_384, &[23]), (16_384, &[])];
            for (len, tail) in tails.into_iter().chain([(16_375, &[7; 10][..])]) {
                let plaintext: Vec<u8> = (0..len).map(|index| (index * 7) as u8).collect();
                let sealed = |key: &CipherKey| {
                    let mut out = vec![0; len + tail.len() + TAG_BYTES];
                    key.seal([5; 12], b"header", &plaintext, tail, &mut out);
                    out
                };
                assert_eq!(sealed(&ring), sealed(&aws_lc), "{cipher:?}, {len} bytes");
                let in_place = |key: &CipherKey| {
                    let mut text = plaintext.clone();
                    let tag = key.seal_in_place([5; 12], b"header", &mut text);
                    (text, tag)
                };
                assert_eq!(
                    in_place(&ring),
                    in_place(&aws_lc),
                    "{cipher:?}, {len} bytes"
                );
            }
            assert!(CipherKey::new(cipher, &key[1..]).is_none());
        }
    }
}
