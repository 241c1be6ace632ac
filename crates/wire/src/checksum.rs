//! The Internet checksum (RFC 1071).

use std::net::IpAddr;

/// A ones' complement sum over 16-bit words in network order, of any number of pieces.
///
/// Pieces are concatenated: one of odd length shifts the following ones by a byte.
#[derive(Clone, Copy, Debug, Default)]
pub struct Checksum {
    /// Sum of words as this machine loads them. The sum does not depend on byte order if the result
    /// is stored as it was loaded (RFC 1071 §2 B).
    sum: u64,
    odd: bool,
}

impl Checksum {
    /// The empty sum.
    pub const fn new() -> Checksum {
        Checksum { sum: 0, odd: false }
    }

    /// The sum over the pseudo-header of TCP, UDP or ICMPv6 (RFC 9293 §3.1, RFC 768, RFC 8200
    /// §8.1). `len` counts the upper-layer header and payload, in bytes.
    pub fn pseudo_header(source: IpAddr, destination: IpAddr, protocol: u8, len: u32) -> Checksum {
        let mut checksum = Checksum::new();
        for address in [source, destination] {
            match address {
                IpAddr::V4(address) => checksum.add(&address.octets()),
                IpAddr::V6(address) => checksum.add(&address.octets()),
            }
        }
        checksum.add(&len.to_be_bytes());
        checksum.add(&[0, protocol]);
        checksum
    }

    /// Appends a piece.
    pub fn add(&mut self, bytes: &[u8]) {
        let sum = sum_words(bytes);
        // A piece that starts at an odd offset has its bytes in the other half of each word.
        self.sum += u64::from(if self.odd { sum.swap_bytes() } else { sum });
        self.odd ^= bytes.len() % 2 == 1;
    }

    /// Returns the sum, not complemented: for partial checksum offload, the value of the checksum
    /// field if the sum is that of the pseudo-header. In host order, to be stored in network order.
    pub fn partial(self) -> u16 {
        u16::from_be(fold(self.sum))
    }

    /// Returns the checksum to store in the header, in host order, to be stored in network order.
    /// Zero if the sum was taken over bytes that include a correct checksum.
    pub fn finish(self) -> u16 {
        !self.partial()
    }
}

/// Returns the checksum of one run of bytes.
#[inline]
pub fn of(bytes: &[u8]) -> u16 {
    !u16::from_be(sum_words(bytes))
}

/// Returns the folded sum of `bytes` as 16-bit words in native order, zero-padded.
#[inline]
fn sum_words(bytes: &[u8]) -> u16 {
    // 32-bit words into a 64-bit sum: no overflow below 16 GB, and the compiler vectorizes the
    // loop.
    let (words, rest) = bytes.as_chunks::<4>();
    let mut sum: u64 = words
        .iter()
        .map(|word| u64::from(u32::from_ne_bytes(*word)))
        .sum();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    sum += u64::from(u32::from_ne_bytes(last));
    fold(sum)
}

/// Adds the halves with their carries, of 32 bits and then of 16.
fn fold(sum: u64) -> u16 {
    let (half, carries) = (sum as u32).overflowing_add((sum >> 32) as u32);
    let half = half + u32::from(carries);
    // Both halves are added twice, so that the carry of the lower sum goes into the upper one.
    (half.wrapping_add(half.rotate_left(16)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RFC 1071 §4.1, word by word.
    fn reference(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }

    #[test]
    fn example_of_rfc_1071() {
        // §3: these words sum to ddf2.
        let mut checksum = Checksum::new();
        checksum.add(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(checksum.partial(), 0xddf2);
    }

    proptest! {
        #[test]
        fn agrees_with_the_word_by_word_sum(bytes: Vec<u8>) {
            prop_assert_eq!(of(&bytes), reference(&bytes));
        }

        #[test]
        fn pieces_add_up_to_the_whole(pieces: Vec<Vec<u8>>) {
            let mut checksum = Checksum::new();
            for piece in &pieces {
                checksum.add(piece);
            }
            prop_assert_eq!(checksum.finish(), reference(&pieces.concat()));
        }
    }
}
