//! What a peer of a QUIC connection sends: sealed by an implementation that is not the NIC stack's.

use std::net::SocketAddr;

use aws_lc_rs::aead::quic::{AES_128, HeaderProtectionKey};
use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use contract::quic::{QuicConnectionId, QuicReceiveKey, QuicReceived};
use contract::tls::Cipher;
use contract::{Command, Event, FlowId};
use wire::datagram::DatagramHeader;
use wire::ip::Ecn;

use super::Stage;

const IV: [u8; 12] = [9; 12];
const HEADER_KEY: [u8; 16] = [10; 16];

/// The keys of the peers of all flows, by generation.
const KEYS: [[u8; 16]; 4] = [[11; 16], [12; 16], [13; 16], [14; 16]];

/// How long packets are held behind a gap, in microseconds.
pub const HOLD_US: u32 = 2_000;

pub fn receive_key(flow: u64, generation: u32) -> QuicReceiveKey<'static> {
    QuicReceiveKey {
        flow: FlowId(flow),
        generation,
        cipher: Cipher::Aes128Gcm,
        key: &KEYS[generation as usize],
        iv: IV,
        header_key: &HEADER_KEY,
        next_number: 0,
        hold_us: HOLD_US,
    }
}

/// A connection ID of a flow.
pub fn id(flow: u64, number: u8) -> QuicConnectionId {
    let mut bytes = [number; 8];
    bytes[..2].copy_from_slice(&(flow as u16).to_be_bytes());
    QuicConnectionId::new(&bytes).expect("eight bytes")
}

/// The peer of a flow.
#[derive(Clone, Debug)]
pub struct Peer {
    pub id: QuicConnectionId,
    pub generation: u32,
    pub remote: SocketAddr,
    pub ecn: Ecn,
    /// The fixed bit of its packets is not set.
    pub greases: bool,
}

impl Peer {
    pub fn new(flow: u64) -> Peer {
        Peer {
            id: id(flow, 1),
            generation: 0,
            remote: SocketAddr::new("10.77.0.1".parse().unwrap(), flow as u16),
            ecn: Ecn::Ect0,
            greases: false,
        }
    }

    /// The first byte of a header, without protection: the number has two bytes.
    pub fn first(&self) -> u8 {
        let fixed = if self.greases { 0 } else { 0x40 };
        fixed | 0x01 | (self.generation as u8 & 1) << 2
    }

    /// A packet, sealed.
    pub fn packet(&self, number: u64, plaintext: &[u8]) -> Vec<u8> {
        let mut packet = vec![self.first()];
        packet.extend_from_slice(self.id.as_bytes());
        let number_at = packet.len();
        packet.extend_from_slice(&(number as u16).to_be_bytes());
        let header = packet.clone();
        let mut nonce = IV;
        for (byte, number) in nonce[4..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= number;
        }
        let key = UnboundKey::new(&AES_128_GCM, &KEYS[self.generation as usize]).expect("a key");
        let mut sealed = plaintext.to_vec();
        LessSafeKey::new(key)
            .seal_in_place_append_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(header),
                &mut sealed,
            )
            .expect("a packet");
        packet.extend(sealed);
        let protection = HeaderProtectionKey::new(&AES_128, &HEADER_KEY).expect("a key");
        let sample = &packet[number_at + 4..][..16];
        let mask = protection.new_mask(sample).expect("a sample");
        packet[0] ^= mask[0] & 0x1f;
        packet[number_at] ^= mask[1];
        packet[number_at + 1] ^= mask[2];
        packet
    }

    /// A frame of a datagram.
    pub fn datagram(&self, payload: &[u8]) -> Vec<u8> {
        let local = if self.remote.is_ipv6() {
            "[fd77::2]:443"
        } else {
            "10.77.0.2:443"
        };
        let header = DatagramHeader {
            source_mac: [2, 0, 0, 0, 0, 1],
            destination_mac: [2, 0, 0, 0, 0, 2],
            source: self.remote,
            destination: local.parse().unwrap(),
            ecn: self.ecn,
        };
        header.to_frame(payload).expect("it fits")
    }

    /// A frame of a packet.
    pub fn frame(&self, number: u64, plaintext: &[u8]) -> Vec<u8> {
        self.datagram(&self.packet(number, plaintext))
    }
}

impl Stage {
    /// A flow receives.
    pub fn tell_receive(&mut self, flow: u64, generation: u32) {
        self.tell(&Command::QuicReceiveKey(receive_key(flow, generation)));
        self.tell_id(flow, 1);
    }

    pub fn tell_id(&mut self, flow: u64, number: u8) {
        self.tell(&Command::QuicConnectionId {
            flow: FlowId(flow),
            id: id(flow, number),
        });
    }

    /// A flow no longer receives.
    pub fn tell_receive_gone(&mut self, flow: u64) {
        self.tell(&Command::QuicReceiveKeyGone { flow: FlowId(flow) });
    }

    /// What has come up since the last call: QRX, and frames.
    pub fn received(&mut self) -> (Vec<QuicReceived>, Vec<Vec<u8>>) {
        let (mut received, mut frames) = (Vec::new(), Vec::new());
        for event in self.take_events() {
            match event {
                Event::QuicReceived(it) => received.push(*it),
                Event::Frame { bytes } => frames.push(bytes.to_vec()),
                Event::FlowsTaken { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        (received, frames)
    }

    /// The numbers and plaintexts that have come up since the last call, and no frame.
    pub fn packets(&mut self) -> Vec<(u64, Vec<u8>)> {
        let (received, frames) = self.received();
        assert_eq!(frames, Vec::<Vec<u8>>::new());
        packets_of(&received)
    }
}

pub fn packets_of(received: &[QuicReceived]) -> Vec<(u64, Vec<u8>)> {
    let packets = received.iter().flat_map(QuicReceived::each);
    packets
        .map(|(packet, text)| (packet.number, text.to_vec()))
        .collect()
}
