//! What stands for the NIC stack: fills packets in, seals them, protects their headers. It has the
//! keys that it was given, and refuses a number that is not above all before it.

use std::collections::HashMap;

use aws_lc_rs::aead::quic::{AES_128, AES_256, CHACHA20, HeaderProtectionKey};
use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use contract::tls::Cipher;
use fakes::content::content;
use quic::{Packet, SealKey, Segment};

struct Key {
    packet: LessSafeKey,
    header: HeaderProtectionKey,
    iv: [u8; 12],
    /// The lowest number that it seals.
    floor: u64,
    /// Names the key to the checker of nonces.
    raw: Vec<u8>,
}

/// A NIC stack's keys of one connection.
#[derive(Default)]
pub(crate) struct Sealer {
    keys: HashMap<u32, Key>,
    next_number: u64,
}

/// Every (key, packet number) and what was sealed under it, over all NIC stacks.
#[derive(Default)]
pub(crate) struct Nonces(HashMap<(Vec<u8>, u64), Vec<u8>>);

impl Sealer {
    pub(crate) fn give(&mut self, key: &SealKey, floor: u64) {
        let (packet, header) = match key.cipher {
            Cipher::Aes128Gcm => (&AES_128_GCM, &AES_128),
            Cipher::Aes256Gcm => (&AES_256_GCM, &AES_256),
            Cipher::ChaCha20Poly1305 => (&CHACHA20_POLY1305, &CHACHA20),
        };
        let made = Key {
            packet: LessSafeKey::new(UnboundKey::new(packet, key.key()).unwrap()),
            header: HeaderProtectionKey::new(header, key.header_key()).unwrap(),
            iv: *key.iv(),
            floor,
            raw: key.key().to_vec(),
        };
        assert!(self.keys.insert(key.generation, made).is_none());
    }

    pub(crate) fn take(&mut self, generation: u32) {
        self.keys.remove(&generation);
    }

    pub(crate) fn keys(&self) -> usize {
        self.keys.len()
    }

    /// The datagram.
    pub(crate) fn seal(&mut self, packet: Packet<'_>, nonces: &mut Nonces) -> Vec<u8> {
        let number = packet.number();
        assert!(
            number >= self.next_number,
            "number {number} is not above the last"
        );
        self.next_number = number + 1;
        let key = &self.keys[&packet.generation()];
        assert!(number >= key.floor, "number {number} is below the floor");
        let mut sealed = Vec::new();
        for segment in packet.segments() {
            match segment {
                Segment::Inline(bytes) => sealed.extend_from_slice(bytes),
                Segment::File { file, offset, len } => {
                    let offsets = offset..offset + u64::from(len);
                    sealed.extend(offsets.map(|offset| content(file.0.into(), offset)));
                }
            }
        }
        let mut nonce = key.iv;
        for (byte, number) in nonce[4..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= number;
        }
        let nonce = Nonce::assume_unique_for_key(nonce);
        let aad = Aad::from(packet.header());
        key.packet
            .seal_in_place_append_tag(nonce, aad, &mut sealed)
            .unwrap();
        let before = nonces.0.insert((key.raw.clone(), number), sealed.clone());
        assert!(before.is_none(), "two ciphertexts under number {number}");
        let mut datagram = packet.prefix().to_vec();
        let at = datagram.len();
        datagram.extend_from_slice(packet.header());
        let number_bytes = usize::from(packet.header()[0] & 3) + 1;
        let number_at = packet.header().len() - number_bytes;
        datagram.extend(sealed);
        assert_eq!(datagram.len() as u64, packet.datagram_bytes());
        let short = &mut datagram[at..];
        let mask = key.header.new_mask(&short[number_at + 4..number_at + 20]);
        let mask = mask.unwrap();
        short[0] ^= mask[0] & 0x1f;
        for (byte, mask) in short[number_at..][..number_bytes]
            .iter_mut()
            .zip(&mask[1..])
        {
            *byte ^= mask;
        }
        datagram
    }
}
