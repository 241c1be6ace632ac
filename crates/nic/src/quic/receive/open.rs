//! Opens single packets.

use contract::quic::QuicReceiveKey;
use contract::tls::TAG_BYTES;

use super::number;
use crate::quic::keys::PacketKey;

/// Sample of header protection (RFC 9001 §5.4.2), in bytes.
const SAMPLE_BYTES: usize = 16;

/// Longest packet number, in bytes.
const NUMBER_BYTES_MAX: usize = 4;

/// Bits of the first byte of a header (RFC 9000 §17.2, §17.3.1).
const LONG_HEADER: u8 = 0x80;
const KEY_PHASE: u8 = 0x04;

/// True if a datagram may begin with a packet of a flow. The fixed bit does not matter: peers
/// grease it (RFC 9287), and the tag authenticates it.
pub(super) fn has_short_header(datagram: &[u8]) -> bool {
    datagram
        .first()
        .is_some_and(|first| first & LONG_HEADER == 0)
}

/// Opens packets of one generation.
pub(super) struct OpenKey {
    key: PacketKey,
    generation: u32,
}

/// A packet without header protection.
pub(super) struct Unprotected {
    pub(super) number: u64,
    /// The first byte of its header.
    pub(super) first: u8,
    header: [u8; NUMBER_BYTES_MAX],
    header_bytes: usize,
}

impl OpenKey {
    /// `None` if a key's length does not suit the cipher.
    pub(super) fn new(key: &QuicReceiveKey<'_>) -> Option<OpenKey> {
        Some(OpenKey {
            key: PacketKey::of_receiving(key)?,
            generation: key.generation,
        })
    }

    pub(super) fn generation(&self) -> u32 {
        self.generation
    }

    /// Removes header protection of a packet with a connection ID of this length. The result is not
    /// authenticated yet. `next_number` is the expected one. `None` if the packet is too short, or
    /// of another key phase.
    pub(super) fn unprotect(
        &self,
        packet: &[u8],
        id_bytes: usize,
        next_number: u64,
    ) -> Option<Unprotected> {
        let number_at = 1 + id_bytes;
        let rest = packet.get(number_at..)?;
        let sample = rest.get(NUMBER_BYTES_MAX..NUMBER_BYTES_MAX + SAMPLE_BYTES)?;
        let [mask, masks @ ..] = self.key.header.new_mask(sample).ok()?;
        let first = packet[0] ^ (mask & 0x1f);
        if u32::from(first & KEY_PHASE != 0) != self.generation & 1 {
            return None;
        }
        let number_bytes = usize::from(first & 3) + 1;
        let mut header = [0; NUMBER_BYTES_MAX];
        let mut truncated = 0;
        for ((to, from), mask) in header.iter_mut().zip(&rest[..number_bytes]).zip(masks) {
            *to = from ^ mask;
            truncated = truncated << 8 | u32::from(*to);
        }
        Some(Unprotected {
            number: number::decode(truncated, number_bytes, next_number),
            first,
            header,
            header_bytes: number_at + number_bytes,
        })
    }

    /// Opens a copy of a packet in `scratch` and returns the plaintext. `None` if it is not
    /// authentic; the copy is then garbage.
    pub(super) fn open<'a>(
        &self,
        unprotected: &Unprotected,
        scratch: &'a mut [u8],
    ) -> Option<&'a [u8]> {
        let header_bytes = unprotected.header_bytes;
        let number_bytes = usize::from(unprotected.first & 3) + 1;
        scratch[0] = unprotected.first;
        scratch[header_bytes - number_bytes..header_bytes]
            .copy_from_slice(&unprotected.header[..number_bytes]);
        let (header, sealed) = scratch.split_at_mut_checked(header_bytes)?;
        if sealed.len() < TAG_BYTES {
            return None;
        }
        let nonce = self.key.nonce(unprotected.number);
        self.key.cipher.open_in_place(nonce, header, sealed)
    }
}

#[cfg(test)]
mod tests {
    use contract::FlowId;
    use contract::tls::Cipher;

    use super::*;

    fn bytes(digits: &str) -> Vec<u8> {
        let digits: Vec<char> = digits.chars().collect();
        let pairs = digits.chunks(2).map(|pair| pair.iter().collect::<String>());
        pairs
            .map(|pair| u8::from_str_radix(&pair, 16).expect("a byte"))
            .collect()
    }

    fn key(generation: u32) -> OpenKey {
        let key = bytes("c6d98ff3441c3fe1b2182094f69caa2ed4b716b65488960a7a984979fb23e1c8");
        let header_key = bytes("25a282b9e82f06f21f488917a4fc8f1b73573685608597d0efcb076b0ab7a7a4");
        let key = OpenKey::new(&QuicReceiveKey {
            flow: FlowId(1),
            generation,
            cipher: Cipher::ChaCha20Poly1305,
            key: &key,
            iv: bytes("e0459b3474bdd0e44a41c144")
                .try_into()
                .expect("twelve bytes"),
            header_key: &header_key,
            next_number: 0,
            hold_us: 0,
        });
        key.expect("keys")
    }

    /// Covers: RFC 9001 §A.5
    #[test]
    fn a_packet_with_a_short_header_by_chacha20_poly1305() {
        let packet = bytes("4cfe4189655e5cd55c41f69080575d7999c25a5bfb");
        let key = key(0);
        let expected = 654_360_564;
        let unprotected = key.unprotect(&packet, 0, expected + 3).expect("it is one");
        assert_eq!((unprotected.number, unprotected.first), (expected, 0x42));
        let mut scratch = packet.clone();
        assert_eq!(key.open(&unprotected, &mut scratch), Some(&[1][..]));
        // One flipped bit, and another number.
        for damaged in 0..packet.len() {
            let mut scratch = packet.clone();
            scratch[damaged] ^= 0x01;
            let unprotected = key.unprotect(&scratch, 0, expected);
            let opened = unprotected.and_then(|it| key.open(&it, &mut scratch).map(<[u8]>::to_vec));
            assert_eq!(opened, None, "byte {damaged}");
        }
        let far = key
            .unprotect(&packet, 0, expected + (1 << 24))
            .expect("it is one");
        assert_eq!(far.number, expected + (1 << 24));
        assert_eq!(key.open(&far, &mut packet.clone()), None);
    }

    #[test]
    fn another_key_phase_and_short_packets_are_none() {
        let packet = bytes("4cfe4189655e5cd55c41f69080575d7999c25a5bfb");
        assert!(key(1).unprotect(&packet, 0, 0).is_none());
        assert!(key(2).unprotect(&packet, 0, 0).is_some());
        for len in 1..packet.len() {
            assert!(key(0).unprotect(&packet[..len], 0, 0).is_none(), "{len}");
        }
        assert!(key(0).unprotect(&packet, 20, 0).is_none());
        assert!(!has_short_header(&[0xc0]) && !has_short_header(&[]));
        assert!(has_short_header(&[0x40]) && has_short_header(&[0x3f]));
    }
}
