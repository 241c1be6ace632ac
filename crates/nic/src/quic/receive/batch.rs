//! Packets of a flow on their way to the host.

use std::net::{IpAddr, SocketAddr};

use contract::FlowId;
use contract::limits::{QUIC_RECEIVED_BYTES_MAX, QUIC_RECEIVED_PACKETS_MAX};
use contract::quic::{QuicConnectionId, QuicReceived, QuicReceivedPacket};

use super::acks::AckOnly;

/// The fields that all packets of one QRX share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Path {
    pub(super) generation: u32,
    pub(super) id: QuicConnectionId,
    pub(super) remote: SocketAddr,
    pub(super) local: IpAddr,
}

/// Metadata of a packet, beside its number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meta {
    pub(super) arrived_us: u64,
    /// The first byte of its header.
    pub(super) first: u8,
    /// The ECN field of its IP header.
    pub(super) ecn: u8,
}

#[derive(Debug)]
struct Packet {
    number: u64,
    meta: Meta,
    len: usize,
}

/// Packets of one path, in order for the host.
#[derive(Debug, Default)]
pub(super) struct Batch {
    packets: Vec<Packet>,
    plaintext: Vec<u8>,
}

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Bytes of plaintext.
    pub(super) fn bytes(&self) -> usize {
        self.plaintext.len()
    }

    pub(super) fn push(&mut self, number: u64, meta: Meta, plaintext: &[u8]) {
        self.packets.push(Packet {
            number,
            meta,
            len: plaintext.len(),
        });
        self.plaintext.extend_from_slice(plaintext);
    }

    /// Takes everything as QRXs of a flow; returns how many ACK frames were left out.
    pub(super) fn take(
        &mut self,
        flow: FlowId,
        path: &Path,
        mut hand_up: impl FnMut(QuicReceived),
    ) -> u64 {
        let mut coalesced = 0;
        let mut rest = &self.packets[..];
        let mut plaintext = &self.plaintext[..];
        while !rest.is_empty() {
            let (mut count, mut bytes) = (0, 0);
            for packet in rest.iter().take(QUIC_RECEIVED_PACKETS_MAX) {
                // The first fits: it came in a frame small enough to hand up.
                if count > 0 && bytes + packet.len > QUIC_RECEIVED_BYTES_MAX {
                    break;
                }
                count += 1;
                bytes += packet.len;
            }
            let (packets, behind) = rest.split_at(count);
            let (text, text_behind) = plaintext.split_at(bytes);
            (rest, plaintext) = (behind, text_behind);
            let (received, left_out) = one(flow, path, packets, text);
            coalesced += left_out;
            hand_up(received);
        }
        self.packets.clear();
        self.plaintext.clear();
        coalesced
    }
}

fn one(flow: FlowId, path: &Path, packets: &[Packet], text: &[u8]) -> (QuicReceived, u64) {
    let is_left_out = superseded(packets, text);
    let arrivals = packets.iter().map(|packet| packet.meta.arrived_us);
    let arrived_us = arrivals.max().unwrap_or(0);
    let mut received = QuicReceived {
        flow,
        generation: path.generation,
        id: path.id,
        remote: path.remote,
        local: path.local,
        arrived_us,
        packets: Vec::with_capacity(packets.len()),
        plaintext: Vec::with_capacity(text.len()),
    };
    let mut rest = text;
    for (at, packet) in packets.iter().enumerate() {
        let (text, behind) = rest.split_at(packet.len);
        rest = behind;
        let kept = if is_left_out & 1 << at == 0 {
            text
        } else {
            &[]
        };
        received.plaintext.extend_from_slice(kept);
        let age_us = arrived_us - packet.meta.arrived_us;
        received.packets.push(QuicReceivedPacket {
            number: packet.number,
            age_us: u32::try_from(age_us).unwrap_or(u32::MAX),
            len: kept.len() as u16,
            first: packet.meta.first,
            ecn: packet.meta.ecn,
        });
    }
    (received, is_left_out.count_ones().into())
}

const _: () = assert!(QUIC_RECEIVED_PACKETS_MAX <= 32, "a bit for each");

/// A bit for each packet, set if a later one supersedes it.
fn superseded(packets: &[Packet], text: &[u8]) -> u32 {
    let mut superseded = 0;
    let (mut later, mut acks) = (AckOnly::default(), AckOnly::default());
    let mut has_later = false;
    let mut end = text.len();
    for (at, packet) in packets.iter().enumerate().rev() {
        let start = end - packet.len;
        if acks.read(&text[start..end]) {
            if has_later && later.supersedes(&acks) {
                superseded |= 1 << at;
            } else {
                std::mem::swap(&mut later, &mut acks);
                has_later = true;
            }
        }
        end = start;
    }
    superseded
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn path() -> Path {
        Path {
            generation: 0,
            id: QuicConnectionId::new(b"eight.by").expect("an ID"),
            remote: ([192, 0, 2, 1], 5000).into(),
            local: [192, 0, 2, 2].into(),
        }
    }

    fn meta(number: u64) -> Meta {
        Meta {
            arrived_us: 1000 + number,
            first: 0x40,
            ecn: (number % 4) as u8,
        }
    }

    fn taken(packets: &[Vec<u8>]) -> (Vec<QuicReceived>, u64) {
        let mut batch = Batch::default();
        for (number, text) in (0..).zip(packets) {
            batch.push(number, meta(number), text);
        }
        let mut all = Vec::new();
        let coalesced = batch.take(FlowId(7), &path(), |received| all.push(received));
        assert!(batch.is_empty() && batch.bytes() == 0);
        (all, coalesced)
    }

    /// ACK of the numbers from `first` to `last`.
    fn ack(first: u8, last: u8) -> Vec<u8> {
        vec![2, last, 0, 0, last - first]
    }

    #[test]
    fn an_ack_that_a_later_one_says_again_goes_up_without_its_frame() {
        let ping = b"\x01".to_vec();
        let packets = [ack(0, 3), ack(0, 5), ping, ack(2, 9), ack(0, 9), ack(7, 9)];
        let (all, coalesced) = taken(&packets);
        assert_eq!((all.len(), coalesced), (1, 3));
        let texts: Vec<&[u8]> = all[0].each().map(|(_, text)| text).collect();
        // The last, behind all others, covers fewer ranges.
        let said: [&[u8]; 6] = [b"", b"", b"\x01", b"", &ack(0, 9), &ack(7, 9)];
        assert_eq!(texts, said);
    }

    #[test]
    fn many_packets_are_several_events() {
        let packets = vec![vec![1; 700]; 60];
        let (all, coalesced) = taken(&packets);
        assert_eq!(coalesced, 0);
        assert!(all.iter().all(|it| it.packets.len() == 2), "no more fit");
        let small = vec![vec![1]; 100];
        let (all, _) = taken(&small);
        let counts: Vec<usize> = all.iter().map(|it| it.packets.len()).collect();
        assert_eq!(counts, [24, 24, 24, 24, 4]);
        assert_eq!(all[4].arrived_us, 1099);
        assert_eq!(all[4].packets[0].age_us, 3);
    }

    fn frames() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let one = (0..3u8, 0..20u8, 0..20u8).prop_map(|(kind, first, len)| match kind {
            0 => vec![1],
            _ => ack(first, first + len),
        });
        prop::collection::vec(one, 1..120)
    }

    /// The numbers that plaintexts acknowledge.
    fn acknowledged<'a>(texts: impl Iterator<Item = &'a [u8]>) -> BTreeSet<u8> {
        let acks = texts.filter(|text| text.len() == 5);
        acks.flat_map(|text| text[1] - text[4]..=text[1]).collect()
    }

    proptest! {
        /// Each QRX acknowledges the same numbers as its packets and has each packet, in order,
        /// with its metadata; it leaves out only ACK frames.
        #[test]
        fn coalescing_keeps_the_meaning(packets in frames()) {
            let (all, coalesced) = taken(&packets);
            let (mut at, mut left_out) = (0, 0);
            for received in &all {
                let end = at + received.packets.len();
                let before = acknowledged(packets[at..end].iter().map(|text| &text[..]));
                let after = acknowledged(received.each().map(|(_, text)| text));
                prop_assert_eq!(before, after);
                for (packet, text) in received.each() {
                    let meta = meta(at as u64);
                    prop_assert_eq!(packet.number, at as u64);
                    prop_assert_eq!(packet.ecn, meta.ecn);
                    let arrived_us = received.arrived_us - u64::from(packet.age_us);
                    prop_assert_eq!(arrived_us, meta.arrived_us);
                    if text.is_empty() {
                        prop_assert_eq!(packets[at].len(), 5);
                        left_out += 1;
                    } else {
                        prop_assert_eq!(text, &packets[at][..]);
                    }
                    at += 1;
                }
            }
            prop_assert_eq!(at, packets.len());
            prop_assert_eq!(left_out, coalesced);
        }
    }
}
