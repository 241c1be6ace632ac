//! The half of a NIC stack that the test plays which opens packets of clients: each goes up at
//! once, as an event of its own.

use std::collections::HashMap;

use aws_lc_rs::aead::quic::{AES_128, AES_256, CHACHA20, HeaderProtectionKey};
use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use contract::quic::{QuicConnectionId, QuicReceiveKey, QuicReceived, QuicReceivedPacket};
use contract::tls::Cipher;
use contract::{Event, FlowId};
use wire::datagram::{self, UdpPacket};

/// Connection IDs of the host's have so many bytes.
const ID_BYTES: usize = 8;

struct Key {
    generation: u32,
    packet: LessSafeKey,
    header: HeaderProtectionKey,
    iv: [u8; 12],
    next_number: u64,
}

#[derive(Default)]
pub(crate) struct Opener {
    keys: HashMap<FlowId, Key>,
    ids: HashMap<Vec<u8>, FlowId>,
    pub(crate) opened: u64,
    pub(crate) handed_up: u64,
    /// Keys that were taken back.
    pub(crate) taken_back: u64,
    /// What it says of the numbers of packets is wrong.
    pub(crate) lies: bool,
    /// It has no room for the key of another flow.
    pub(crate) is_full: bool,
}

impl Opener {
    /// A connection ID, its flow, and the generation of its key.
    pub(crate) fn known(&self) -> Option<(QuicConnectionId, FlowId, u32)> {
        let (id, flow) = self.ids.iter().next()?;
        let key = &self.keys[flow];
        Some((QuicConnectionId::new(id)?, *flow, key.generation))
    }

    /// Flows whose packets it opens.
    pub(crate) fn flows(&self) -> usize {
        self.keys.len()
    }

    /// QRXKEY. True if it is the first of the flow.
    pub(crate) fn install(&mut self, key: &QuicReceiveKey<'_>) -> bool {
        if self.is_full && !self.keys.contains_key(&key.flow) {
            return false;
        }
        let (packet, header) = match key.cipher {
            Cipher::Aes128Gcm => (&AES_128_GCM, &AES_128),
            Cipher::Aes256Gcm => (&AES_256_GCM, &AES_256),
            Cipher::ChaCha20Poly1305 => (&CHACHA20_POLY1305, &CHACHA20),
        };
        let made = Key {
            generation: key.generation,
            packet: LessSafeKey::new(UnboundKey::new(packet, key.key).unwrap()),
            header: HeaderProtectionKey::new(header, key.header_key).unwrap(),
            iv: key.iv,
            next_number: key.next_number,
        };
        self.keys.insert(key.flow, made).is_none()
    }

    /// QCID.
    pub(crate) fn name(&mut self, flow: FlowId, id: &QuicConnectionId) {
        if !self.keys.contains_key(&flow) {
            return;
        }
        assert_eq!(id.as_bytes().len(), ID_BYTES);
        let before = self.ids.insert(id.as_bytes().to_vec(), flow);
        assert!(before.is_none_or(|before| before == flow), "an ID is one's");
    }

    /// QRXKEYGONE.
    pub(crate) fn give_back(&mut self, flow: FlowId) {
        self.taken_back += u64::from(self.keys.contains_key(&flow));
        self.forget(flow);
    }

    /// The flow is over.
    pub(crate) fn forget(&mut self, flow: FlowId) {
        self.keys.remove(&flow);
        self.ids.retain(|_, named| *named != flow);
    }

    /// A frame has arrived: what the host hears.
    pub(crate) fn arrive(&mut self, now_us: u64, bytes: &[u8]) -> Event {
        let packet = datagram::parse(bytes, false).expect("a sound frame");
        let packet = packet.expect("a datagram");
        match self.open(now_us, &packet) {
            Some(received) => {
                self.opened += 1;
                Event::QuicReceived(Box::new(received))
            }
            None => {
                self.handed_up += 1;
                let bytes = bytes.into();
                Event::Frame { bytes }
            }
        }
    }

    fn open(&mut self, now_us: u64, packet: &UdpPacket<'_>) -> Option<QuicReceived> {
        let payload = packet.payload;
        let id = payload.get(1..1 + ID_BYTES)?;
        let flow = *self.ids.get(id).filter(|_| payload[0] & 0x80 == 0)?;
        let key = self.keys.get_mut(&flow)?;
        let number_at = 1 + ID_BYTES;
        let mask = key
            .header
            .new_mask(payload.get(number_at + 4..number_at + 20)?);
        let [first_mask, masks @ ..] = mask.ok()?;
        let first = payload[0] ^ (first_mask & 0x1f);
        if u32::from(first >> 2 & 1) != key.generation & 1 {
            return None;
        }
        let number_bytes = usize::from(first & 3) + 1;
        let mut header = payload[..number_at + number_bytes].to_vec();
        header[0] = first;
        let mut truncated = 0;
        for (byte, mask) in header[number_at..].iter_mut().zip(masks) {
            *byte ^= mask;
            truncated = truncated << 8 | u64::from(*byte);
        }
        // The closest to what is expected, by trying the three that it may be.
        let window = 1u64 << (8 * number_bytes);
        let base = key.next_number & !(window - 1);
        let candidates = [base.wrapping_sub(window), base, base + window];
        let candidates = candidates.map(|base| base.wrapping_add(truncated));
        let number = candidates
            .into_iter()
            .filter(|number| *number < 1 << 62)
            .min_by_key(|number| number.abs_diff(key.next_number))?;
        let mut nonce = key.iv;
        for (byte, number) in nonce[4..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= number;
        }
        let mut sealed = payload[header.len()..].to_vec();
        let nonce = Nonce::assume_unique_for_key(nonce);
        let opened = key
            .packet
            .open_in_place(nonce, Aad::from(&header), &mut sealed);
        let plaintext = opened.ok()?.to_vec();
        key.next_number = key.next_number.max(number + 1);
        Some(QuicReceived {
            flow,
            generation: key.generation + u32::from(self.lies),
            id: QuicConnectionId::new(id)?,
            remote: packet.source,
            local: packet.destination.ip(),
            arrived_us: now_us,
            packets: vec![QuicReceivedPacket {
                number,
                age_us: 0,
                len: plaintext.len() as u16,
                first,
                ecn: packet.ecn.mark(0),
            }],
            plaintext,
        })
    }
}
