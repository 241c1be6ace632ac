//! The keys of a flow, by generation.

use std::fmt;

use aws_lc_rs::aead::quic::{AES_128, AES_256, CHACHA20, HeaderProtectionKey};
use contract::RejectReason;
use contract::limits::KEYS_MAX;
use contract::quic::{QuicKey, QuicReceiveKey};
use contract::tls::Cipher;
use zeroize::Zeroizing;

use crate::sealed::CipherKey;

/// A key that seals or opens packets. Dropping it overwrites the memory of its ciphers and IV.
pub(super) struct PacketKey {
    pub(super) cipher: CipherKey,
    pub(super) header: HeaderProtectionKey,
    pub(super) iv: Zeroizing<[u8; 12]>,
}

impl PacketKey {
    /// `None` if a key does not have the cipher's length.
    pub(super) fn new(key: &QuicKey<'_>) -> Option<PacketKey> {
        PacketKey::of(key.cipher, key.key, key.iv, key.header_key)
    }

    /// The same for the peer's packets.
    pub(super) fn of_receiving(key: &QuicReceiveKey<'_>) -> Option<PacketKey> {
        PacketKey::of(key.cipher, key.key, key.iv, key.header_key)
    }

    fn of(cipher: Cipher, key: &[u8], iv: [u8; 12], header_key: &[u8]) -> Option<PacketKey> {
        let header = match cipher {
            Cipher::Aes128Gcm => &AES_128,
            Cipher::Aes256Gcm => &AES_256,
            Cipher::ChaCha20Poly1305 => &CHACHA20,
        };
        Some(PacketKey {
            cipher: CipherKey::new(cipher, key)?,
            header: HeaderProtectionKey::new(header, header_key).ok()?,
            iv: Zeroizing::new(iv),
        })
    }

    /// The nonce of a packet (RFC 9001 §5.3).
    pub(super) fn nonce(&self, number: u64) -> [u8; 12] {
        let mut nonce = *self.iv;
        for (byte, number) in nonce[4..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= number;
        }
        nonce
    }
}

struct Generation {
    number: u32,
    key: PacketKey,
    floor: u64,
    /// Accepted packets that have neither left nor been abandoned.
    waiting: usize,
    /// QKEYGONE has arrived: no further packets use the key.
    is_going: bool,
}

/// The keys of a flow.
#[derive(Default)]
pub(super) struct Keys {
    generations: Vec<Generation>,
    last: Option<u32>,
}

impl Keys {
    /// QKEY.
    pub(super) fn install(&mut self, key: &QuicKey<'_>) -> Result<(), RejectReason> {
        if self.last.is_some_and(|last| key.generation <= last) {
            return Err(RejectReason::KeyConflict);
        }
        if self.generations.len() >= KEYS_MAX {
            return Err(RejectReason::TooManyKeys);
        }
        let packet_key = PacketKey::new(key).ok_or(RejectReason::Malformed)?;
        self.last = Some(key.generation);
        self.generations.push(Generation {
            number: key.generation,
            key: packet_key,
            floor: key.floor,
            waiting: 0,
            is_going: false,
        });
        Ok(())
    }

    /// QKEYGONE.
    pub(super) fn let_go(&mut self, generation: u32) {
        if let Some(key) = self.find(generation) {
            key.is_going = true;
        }
        self.remove_unneeded();
    }

    fn find(&mut self, generation: u32) -> Option<&mut Generation> {
        let mut generations = self.generations.iter_mut();
        generations.find(|key| key.number == generation)
    }

    /// The lowest number that a key may seal, if it takes packets.
    pub(super) fn floor(&self, generation: u32) -> Option<u64> {
        let mut generations = self.generations.iter();
        let key = generations.find(|key| key.number == generation && !key.is_going)?;
        Some(key.floor)
    }

    /// Counts accepted packets.
    pub(super) fn acquire(&mut self, generation: u32, packets: usize) {
        if let Some(key) = self.find(generation) {
            key.waiting += packets;
        }
    }

    /// The key of an accepted packet.
    pub(super) fn get(&self, generation: u32) -> Option<&PacketKey> {
        let mut generations = self.generations.iter();
        let key = generations.find(|key| key.number == generation)?;
        Some(&key.key)
    }

    /// Accepted packets have left, or are abandoned.
    pub(super) fn release(&mut self, generation: u32, packets: usize) {
        if let Some(key) = self.find(generation) {
            key.waiting -= packets;
        }
        self.remove_unneeded();
    }

    fn remove_unneeded(&mut self) {
        self.generations
            .retain(|key| key.waiting > 0 || !key.is_going);
    }

    /// Removes all keys.
    pub(super) fn clear(&mut self) {
        self.generations.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.generations.len()
    }
}

/// Prints no keys.
impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers = self.generations.iter().map(|key| key.number);
        f.debug_list().entries(numbers).finish()
    }
}
