//! A client that sends what it likes once its handshake is complete: it seals 1-RTT packets with
//! the client's keys.

use aws_lc_rs::aead::quic::{AES_128, HeaderProtectionKey};
use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use contract::tls::Cipher;
use fakes::http3::varint;
use fakes::keys::expand;

use crate::support::World;

const CIPHER: Cipher = Cipher::Aes128Gcm;

/// Above all numbers that the client itself has used.
const FIRST_NUMBER: u64 = 1000;

/// Length of the server's connection IDs, in bytes.
const ID_BYTES: usize = 8;

pub(crate) struct Forger {
    secret: Vec<u8>,
    header: HeaderProtectionKey,
    /// The server's connection ID.
    id: [u8; ID_BYTES],
    next: u64,
    phase: bool,
}

impl Forger {
    /// In place of the client of `world`, which has used this cipher alone.
    pub(crate) fn new(world: &World<'_>) -> Self {
        let secrets = world.secrets.0.lock().expect("no thread has panicked");
        let secret = secrets["CLIENT_TRAFFIC_SECRET_0"].clone();
        let header = expand(CIPHER, &secret, b"quic hp", 16);
        let short = world.said.iter().rfind(|it| it[0] & 0x80 == 0);
        let id = short.expect("an acknowledgment")[1..=ID_BYTES].try_into();
        Self {
            header: HeaderProtectionKey::new(&AES_128, &header).expect("16 bytes"),
            secret,
            id: id.expect("eight bytes"),
            next: FIRST_NUMBER,
            phase: false,
        }
    }

    /// Goes on with the next keys (RFC 9001 §6.1).
    pub(crate) fn update_keys(&mut self) {
        self.secret = expand(CIPHER, &self.secret, b"quic ku", 32);
        self.phase = !self.phase;
    }

    /// Leaves a packet number out.
    pub(crate) fn skip(&mut self) {
        self.next += 1;
    }

    /// A datagram with these frames.
    pub(crate) fn packet(&mut self, frames: &[u8]) -> Vec<u8> {
        let key = expand(CIPHER, &self.secret, b"quic key", 16);
        let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &key).expect("16 bytes"));
        let mut nonce = [0; 12];
        nonce.copy_from_slice(&expand(CIPHER, &self.secret, b"quic iv", 12));
        let number = self.next;
        self.next += 1;
        for (byte, number) in nonce[4..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= number;
        }
        let first = 0x43 | u8::from(self.phase) << 2;
        let mut packet = [&[first], &self.id[..], &(number as u32).to_be_bytes()].concat();
        let number_at = 1 + ID_BYTES;
        let mut sealed = frames.to_vec();
        let nonce = Nonce::assume_unique_for_key(nonce);
        key.seal_in_place_append_tag(nonce, Aad::from(&packet), &mut sealed)
            .expect("a packet is short");
        let mask = self.header.new_mask(&sealed[..16]).expect("16 bytes");
        packet[0] ^= mask[0] & 0x1f;
        for (byte, mask) in packet[number_at..].iter_mut().zip(&mask[1..]) {
            *byte ^= mask;
        }
        packet.extend(sealed);
        packet
    }
}

/// A frame whose fields are all varints.
pub(crate) fn frame(frame_type: u8, fields: &[u64]) -> Vec<u8> {
    let fields = fields.iter().flat_map(|field| varint(*field));
    [frame_type].into_iter().chain(fields).collect()
}

/// STREAM with offset and length (RFC 9000 §19.8).
pub(crate) fn stream(id: u64, offset: u64, data: &[u8]) -> Vec<u8> {
    let mut bytes = frame(0x0e, &[id, offset, data.len() as u64]);
    bytes.extend(data);
    bytes
}

/// ACK of these numbers, ascending (RFC 9000 §19.3).
pub(crate) fn ack(numbers: &[u64]) -> Vec<u8> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for &number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let Some((mut first, last)) = ranges.pop() else {
        return Vec::new();
    };
    let mut fields = vec![last, 0, ranges.len() as u64, last - first];
    while let Some((start, end)) = ranges.pop() {
        fields.extend([first - end - 2, end - start]);
        first = start;
    }
    frame(0x02, &fields)
}
