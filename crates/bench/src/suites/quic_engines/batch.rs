//! Datagrams sent together, and their sealing, as in QUIC (RFC 9001 §5.3).

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use testbed::{Failure, Result};

/// Bytes of a datagram, QUIC's largest on a link with an MTU of 1,500 after quinn's path MTU
/// discovery.
pub(super) const DATAGRAM_BYTES: usize = 1452;

/// Bytes of a short header: one, a connection id of 16, and a packet number of 4. The tag
/// authenticates them beside the plaintext.
const HEADER_BYTES: usize = 21;

/// Bytes of the tag.
const TAG_BYTES: usize = 16;

/// See the [module documentation](self).
pub(super) struct Batch {
    /// All datagrams, one behind the other.
    bytes: Vec<u8>,
    key: LessSafeKey,
    number: u64,
}

impl Batch {
    /// Returns a batch of `datagrams` datagrams.
    pub(super) fn new(datagrams: usize) -> Result<Batch> {
        let key = UnboundKey::new(&AES_128_GCM, &[0x5e; 16]);
        let key = key.map_err(|_| Failure::new("a key of AES-128-GCM"))?;
        let bytes = (0..datagrams * DATAGRAM_BYTES).map(|at| at as u8);
        Ok(Batch {
            bytes: bytes.collect(),
            key: LessSafeKey::new(key),
            number: 0,
        })
    }

    /// Returns the number of datagrams.
    pub(super) fn len(&self) -> usize {
        self.bytes.len() / DATAGRAM_BYTES
    }

    /// Returns the bytes of all datagrams.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the datagrams.
    pub(super) fn datagrams(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes.chunks_exact(DATAGRAM_BYTES)
    }

    /// Seals the current content between header and tag of each datagram, under the next packet
    /// numbers.
    pub(super) fn seal(&mut self) -> Result<()> {
        for datagram in self.bytes.chunks_exact_mut(DATAGRAM_BYTES) {
            let (header, rest) = datagram.split_at_mut(HEADER_BYTES);
            let (content, tag) = rest.split_at_mut(DATAGRAM_BYTES - HEADER_BYTES - TAG_BYTES);
            let sealed = self.key.seal_in_place_separate_tag(
                nonce(self.number),
                Aad::from(&*header),
                content,
            );
            let made = sealed.map_err(|_| Failure::new("sealing a datagram"))?;
            tag.copy_from_slice(made.as_ref());
            self.number += 1;
        }
        Ok(())
    }
}

fn nonce(number: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[NONCE_LEN - 8..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_datagram_is_sealed_under_a_number_of_its_own() {
        let mut batch = Batch::new(3).unwrap();
        let plain: Vec<Vec<u8>> = batch.datagrams().map(<[u8]>::to_vec).collect();
        assert_eq!((batch.len(), batch.bytes().len()), (3, 3 * DATAGRAM_BYTES));
        batch.seal().unwrap();
        let sealed: Vec<Vec<u8>> = batch.datagrams().map(<[u8]>::to_vec).collect();
        for (number, (plain, mut sealed)) in plain.into_iter().zip(sealed).enumerate() {
            let (header, body) = sealed.split_at_mut(HEADER_BYTES);
            assert_eq!(header, &plain[..HEADER_BYTES]);
            let opened = batch
                .key
                .open_in_place(nonce(number as u64), Aad::from(&*header), body)
                .unwrap();
            let content = HEADER_BYTES..DATAGRAM_BYTES - TAG_BYTES;
            assert_eq!(opened, &plain[content]);
        }
    }
}
