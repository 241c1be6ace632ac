//! Sealing one packet (RFC 9001 §5.3) and protecting its header (RFC 9001 §5.4).

use super::keys::PacketKey;

/// Length of the header protection sample, in bytes (RFC 9001 §5.4.2).
const SAMPLE_BYTES: usize = 16;

/// Seals `packet`, which is a header, plaintext, and room for `tail`, the end of the plaintext, and
/// for the tag.
///
/// # Panics
/// If the packet is too short for the header protection sample.
pub(super) fn seal(
    key: &PacketKey,
    number: u64,
    header_bytes: usize,
    packet: &mut [u8],
    tail: &[u8],
) {
    let nonce = key.nonce(number);
    let (header, payload) = packet.split_at_mut(header_bytes);
    key.cipher.seal_with_tail(nonce, header, payload, tail);
    protect(key, header_bytes, packet);
}

fn protect(key: &PacketKey, header_bytes: usize, packet: &mut [u8]) {
    let number_bytes = usize::from(packet[0] & 3) + 1;
    let number_at = header_bytes - number_bytes;
    let sample = &packet[number_at + 4..][..SAMPLE_BYTES];
    let mask = key.header.new_mask(sample);
    let [first, number @ ..] = mask.expect("the sample has the length that the cipher wants");
    // A short header has 5 protected bits, a long one 4.
    let bits = if packet[0] & 0x80 == 0 { 0x1f } else { 0x0f };
    packet[0] ^= first & bits;
    let masked = packet[number_at..header_bytes].iter_mut().zip(number);
    masked.for_each(|(byte, mask)| *byte ^= mask);
}

#[cfg(test)]
mod tests {
    use contract::FlowId;
    use contract::quic::QuicKey;
    use contract::tls::{Cipher, TAG_BYTES};

    use super::*;

    fn bytes(digits: &str) -> Vec<u8> {
        let digits: Vec<char> = digits.chars().filter(|c| !c.is_whitespace()).collect();
        let pairs = digits.chunks(2).map(|pair| pair.iter().collect::<String>());
        pairs
            .map(|pair| u8::from_str_radix(&pair, 16).expect("a byte"))
            .collect()
    }

    fn sealed(
        cipher: Cipher,
        [key, iv, header_key]: [&str; 3],
        number: u64,
        [header, plaintext]: [&str; 2],
    ) -> Vec<u8> {
        let (key, header_key) = (bytes(key), bytes(header_key));
        let key = PacketKey::new(&QuicKey {
            flow: FlowId(1),
            generation: 0,
            cipher,
            key: &key,
            iv: bytes(iv).try_into().expect("twelve bytes"),
            header_key: &header_key,
            floor: 0,
        });
        let key = key.expect("keys");
        let (header, plaintext) = (bytes(header), bytes(plaintext));
        let of_tail = |tail_bytes: usize| {
            let (text, tail) = plaintext.split_at(plaintext.len() - tail_bytes);
            let mut packet = [&header[..], text].concat();
            packet.resize(header.len() + plaintext.len() + TAG_BYTES, 0xaa);
            seal(&key, number, header.len(), &mut packet, tail);
            packet
        };
        let packet = of_tail(0);
        for tail_bytes in 1..=plaintext.len() {
            assert_eq!(of_tail(tail_bytes), packet, "a tail of {tail_bytes} bytes");
        }
        packet
    }

    /// Covers: RFC 9001 §A.5
    #[test]
    fn a_packet_with_a_short_header_by_chacha20_poly1305() {
        let keys = [
            "c6d98ff3441c3fe1b2182094f69caa2ed4b716b65488960a7a984979fb23e1c8",
            "e0459b3474bdd0e44a41c144",
            "25a282b9e82f06f21f488917a4fc8f1b73573685608597d0efcb076b0ab7a7a4",
        ];
        let packet = sealed(
            Cipher::ChaCha20Poly1305,
            keys,
            654_360_564,
            ["4200bff4", "01"],
        );
        let wanted = bytes("4cfe4189655e5cd55c41f69080575d7999c25a5bfb");
        assert_eq!(packet, wanted);
    }

    /// Covers: RFC 9001 §A.3
    #[test]
    fn an_initial_packet_by_aes_128_gcm() {
        let keys = [
            "cf3a5331653c364c88f0f379b6067e37",
            "0ac1493ca1905853b0bba03e",
            "c206b8d9b9f0f37644430b490eeaa314",
        ];
        let plaintext = "02000000000600405a020000560303eefce7f7b37ba1d1632e96677825ddf73988cf\
            c79825df566dc5430b9a045a1200130100002e00330024001d00209d3c940d89690b84d08a60993c144eca\
            684d1081287c834d5311bcf32bb9da1a002b00020304";
        let header = "c1000000010008f067a5502a4262b50040750001";
        let packet = sealed(Cipher::Aes128Gcm, keys, 1, [header, plaintext]);
        let wanted = bytes(
            "cf000000010008f067a5502a4262b5004075c0d95a482cd0991cd25b0aac406a5816b6394100f37a1c69\
            797554780bb38cc5a99f5ede4cf73c3ec2493a1839b3dbcba3f6ea46c5b7684df3548e7ddeb9c3bf9c73\
            cc3f3bded74b562bfb19fb84022f8ef4cdd93795d77d06edbb7aaf2f58891850abbdca3d20398c276456\
            cbc42158407dd074ee",
        );
        assert_eq!(packet, wanted);
    }
}
