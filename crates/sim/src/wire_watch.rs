//! Opens each 1-RTT packet of QUIC with the flows' keys. No two packets may have been sealed under
//! the same key and number, by any NIC stacks of the run, and none may consist of zeros only, which
//! are placeholders for file ranges to be filled in.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use aws_lc_rs::aead::quic::{AES_128, AES_256, CHACHA20, HeaderProtectionKey};
use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use contract::quic::QuicKey;
use contract::tls::Cipher;
use contract::{Command, FlowId};
use fakes::quic_client::CONNECTION_ID_BYTES;
use wire::datagram;

use crate::router;
use crate::violation::{Check, Violation, ensure, violation};

/// A key.
struct Known {
    raw: Vec<u8>,
    packet: LessSafeKey,
    header: HeaderProtectionKey,
    iv: [u8; 12],
}

/// See the [module documentation](self).
#[derive(Default)]
pub struct WireWatch {
    /// Keys of each flow, by generation.
    keys: HashMap<FlowId, Vec<Known>>,
    /// The flow of each peer's address.
    remotes: HashMap<SocketAddr, FlowId>,
    /// The highest packet number of each flow.
    highest: HashMap<FlowId, u64>,
    /// Packet numbers sealed under each key.
    sealed: HashMap<Vec<u8>, HashSet<u64>>,
    /// 1-RTT packets that were opened.
    pub packets: u64,
}

impl WireWatch {
    /// Tracks a command that is about to reach a worker.
    pub(crate) fn on_command(&mut self, command: &Command<'_>) {
        match command {
            Command::QuicKey(key) => self.on_key(key),
            Command::QuicSend(send) => {
                if let Some(remote) = router::udp_destination(send.header) {
                    self.remotes.insert(remote, send.flow);
                }
            }
            _ => {}
        }
    }

    /// Checks a frame that leaves a NIC worker.
    pub(crate) fn on_frame(&mut self, frame: &[u8]) -> Check {
        let packet = datagram::parse(frame, false);
        let packet = packet.map_err(|error| Violation(format!("a worker's datagram: {error}")))?;
        let Some(packet) = packet else {
            return Ok(());
        };
        match self.remotes.get(&packet.destination) {
            Some(&flow) => self.on_datagram(flow, CONNECTION_ID_BYTES, packet.payload),
            None => violation(format!("nothing was to be sent to {}", packet.destination)),
        }
    }

    /// Records a key of a NIC stack.
    ///
    /// # Panics
    /// If its length does not match its cipher.
    pub fn on_key(&mut self, key: &QuicKey<'_>) {
        let (packet, header) = match key.cipher {
            Cipher::Aes128Gcm => (&AES_128_GCM, &AES_128),
            Cipher::Aes256Gcm => (&AES_256_GCM, &AES_256),
            Cipher::ChaCha20Poly1305 => (&CHACHA20_POLY1305, &CHACHA20),
        };
        let keys = self.keys.entry(key.flow).or_default();
        if keys.iter().any(|known| known.raw == key.key) {
            return;
        }
        keys.push(Known {
            raw: key.key.to_vec(),
            packet: LessSafeKey::new(UnboundKey::new(packet, key.key).expect("a key")),
            header: HeaderProtectionKey::new(header, key.header_key).expect("a key"),
            iv: key.iv,
        });
    }

    /// Returns the number of keys of all flows.
    pub fn keys(&self) -> usize {
        self.keys.values().map(Vec::len).sum()
    }

    /// Checks a datagram to the client of a flow, whose connection ID has `client_id_bytes`.
    ///
    /// # Errors
    /// If the datagram breaks a rule.
    pub fn on_datagram(
        &mut self,
        flow: FlowId,
        client_id_bytes: usize,
        datagram: &[u8],
    ) -> Result<(), Violation> {
        let short = &datagram[long_headers(datagram)..];
        if short.is_empty() {
            return Ok(());
        }
        let keys = self.keys.get(&flow).map_or(&[][..], Vec::as_slice);
        let highest = self.highest.get(&flow).copied();
        let opened = keys.iter().rev().find_map(|key| {
            let (number, plaintext) = open(key, client_id_bytes, highest, short)?;
            Some((key.raw.clone(), number, plaintext))
        });
        let Some((raw, number, plaintext)) = opened else {
            return violation(format!("no key of {flow:?} opens a packet of it"));
        };
        self.packets += 1;
        let highest = self.highest.entry(flow).or_default();
        *highest = (*highest).max(number);
        let is_new = self.sealed.entry(raw).or_default().insert(number);
        ensure(is_new, || {
            format!("number {number} was sealed twice under a key")
        })?;
        ensure(plaintext.iter().any(|byte| *byte != 0), || {
            format!("packet {number} is nothing but zeros")
        })
    }
}

/// Returns the length of the leading packets with long headers (RFC 9000 §17.2), in bytes.
fn long_headers(datagram: &[u8]) -> usize {
    let mut at = 0;
    while datagram.get(at).is_some_and(|first| first & 0x80 != 0) {
        let is_initial = datagram[at] & 0x30 == 0;
        at += 5;
        for _ in 0..2 {
            at += 1 + usize::from(datagram[at]);
        }
        // In an Initial packet, a token; then the rest.
        for _ in 0..1 + usize::from(is_initial) {
            let (len, bytes) = varint(datagram, at);
            at += bytes + len as usize;
        }
    }
    at
}

/// Returns a varint (RFC 9000 §16) and its length, in bytes.
fn varint(bytes: &[u8], at: usize) -> (u64, usize) {
    let len = 1usize << (bytes[at] >> 6);
    let first = u64::from(bytes[at] & 0x3f);
    let rest = bytes[at + 1..at + len].iter();
    let value = rest.fold(first, |value, byte| value << 8 | u64::from(*byte));
    (value, len)
}

/// Opens a packet; returns its number and plaintext.
fn open(
    key: &Known,
    id_bytes: usize,
    highest: Option<u64>,
    packet: &[u8],
) -> Option<(u64, Vec<u8>)> {
    let mut packet = packet.to_vec();
    let number_at = 1 + id_bytes;
    let sample = packet.get(number_at + 4..number_at + 20)?;
    let mask = key.header.new_mask(sample).ok()?;
    packet[0] ^= mask[0] & 0x1f;
    let number_bytes = usize::from(packet[0] & 3) + 1;
    for at in 0..number_bytes {
        packet[number_at + at] ^= mask[1 + at];
    }
    let truncated = packet[number_at..number_at + number_bytes].iter();
    let truncated = truncated.fold(0, |number, byte| number << 8 | u64::from(*byte));
    // RFC 9000 A.3
    let window = 1u64 << (8 * number_bytes);
    let expected = highest.map_or(0, |highest| highest + 1);
    let candidate = (expected & !(window - 1)) | truncated;
    let number = if candidate + window / 2 <= expected {
        candidate + window
    } else if candidate > expected + window / 2 && candidate >= window {
        candidate - window
    } else {
        candidate
    };
    let mut nonce = key.iv;
    for (byte, number) in nonce[4..].iter_mut().zip(number.to_be_bytes()) {
        *byte ^= number;
    }
    let (header, sealed) = packet.split_at_mut(number_at + number_bytes);
    let nonce = Nonce::assume_unique_for_key(nonce);
    let opened = key.packet.open_in_place(nonce, Aad::from(&*header), sealed);
    Some((number, opened.ok()?.to_vec()))
}
