//! Outputs as commands of the contract.

use contract::limits::{
    QUIC_DATAGRAM_BYTES_MAX, QUIC_HOLD_US_MAX, QUIC_INLINE_BYTES_MAX, QUIC_PACKETS_MAX,
    QUIC_SEGMENTS_MAX, QUIC_SEND_BYTES_MAX,
};
use contract::quic::{QuicKey, QuicPacket, QuicReceiveKey, QuicSend};
use contract::{FlowId, SendId};

use crate::types::{Packet, SealKey, Segment, Send};

/// The fields that all QSENDs of a [`Send`] share.
#[derive(Clone, Copy, Debug)]
pub struct Framing<'a> {
    /// The connection's flow.
    pub flow: FlowId,
    /// The id of the first QSEND; later ones count up from it.
    pub id: SendId,
    /// As [`QuicSend::issued_us`].
    pub issued_us: u64,
    /// As [`QuicSend::not_before_us`].
    pub not_before_us: u64,
    /// Ethernet, IP and UDP header.
    pub header: &'a [u8],
}

impl SealKey {
    /// QKEY.
    pub fn command(&self, flow: FlowId, floor: u64) -> QuicKey<'_> {
        QuicKey {
            flow,
            generation: self.generation,
            cipher: self.cipher,
            key: self.key(),
            iv: *self.iv(),
            header_key: self.header_key(),
            floor,
        }
    }

    /// QRXKEY: has a NIC stack open what the peer sends.
    pub fn receive_command(
        &self,
        flow: FlowId,
        next_number: u64,
        hold_us: u32,
    ) -> QuicReceiveKey<'_> {
        QuicReceiveKey {
            flow,
            generation: self.generation,
            cipher: self.cipher,
            key: &self.open.key,
            iv: *self.open.iv,
            header_key: &self.open.header_key,
            next_number,
            hold_us: hold_us.min(QUIC_HOLD_US_MAX),
        }
    }
}

/// How full a QSEND is.
#[derive(Default)]
struct Filled {
    inline_bytes: usize,
    bytes: u64,
    first: u64,
    last: u64,
}

impl Send {
    /// QSENDs, in order: one, unless the host's bytes exceed what one takes. When the last has
    /// departed, all have.
    pub fn commands<'a>(&'a self, framing: Framing<'a>) -> Vec<QuicSend<'a>> {
        let mut sends: Vec<QuicSend<'a>> = Vec::new();
        let mut filled = Filled::default();
        for packet in self.packets() {
            let next = match sends.last_mut() {
                Some(send) if filled.takes(send, packet) => send,
                _ => {
                    filled = Filled::default();
                    sends.push(self.empty(framing, sends.len() as u64));
                    sends.last_mut().expect("one was pushed")
                }
            };
            filled.push(next, packet);
        }
        sends
    }

    /// A QSEND with capacity for the whole `Send`, which most often fits.
    fn empty<'a>(&self, framing: Framing<'a>, number: u64) -> QuicSend<'a> {
        QuicSend {
            id: SendId(framing.id.0 + number),
            flow: framing.flow,
            issued_us: framing.issued_us,
            not_before_us: framing.not_before_us,
            header: framing.header,
            packets: Vec::with_capacity(self.packets.len()),
            segments: Vec::with_capacity(self.pieces.len()),
        }
    }
}

impl Filled {
    /// True if `send` has room for the packet.
    fn takes(&self, send: &QuicSend<'_>, packet: Packet<'_>) -> bool {
        let bytes = packet.datagram_bytes();
        let segments = send.segments.len() + packet.segment_count();
        send.packets.len() < QUIC_PACKETS_MAX
            && segments <= QUIC_SEGMENTS_MAX
            && self.inline_bytes + packet.inline_bytes() <= QUIC_INLINE_BYTES_MAX
            && self.bytes + bytes <= QUIC_SEND_BYTES_MAX as u64
            && self.last == self.first
            && bytes <= self.first
    }

    fn push<'a>(&mut self, send: &mut QuicSend<'a>, packet: Packet<'a>) {
        let bytes = packet.datagram_bytes();
        debug_assert!(bytes <= QUIC_DATAGRAM_BYTES_MAX as u64);
        if send.packets.is_empty() {
            self.first = bytes;
        }
        self.last = bytes;
        self.bytes += bytes;
        self.inline_bytes += packet.inline_bytes();
        let before = send.segments.len();
        send.segments
            .extend(packet.segments().map(|segment| match segment {
                Segment::Inline(bytes) => contract::Segment::Inline(bytes),
                Segment::File { file, offset, len } => {
                    contract::Segment::File { file, offset, len }
                }
            }));
        send.packets.push(QuicPacket {
            number: packet.number(),
            generation: packet.generation(),
            prefix: packet.prefix(),
            header: packet.header(),
            segments: (send.segments.len() - before) as u8,
        });
    }
}

#[cfg(test)]
mod tests {
    use contract::{Command, FileId};

    use super::*;
    use contract::tls::TAG_BYTES;

    use crate::types::{Described, Handle, Piece, Route};

    /// Packets with these plaintexts: real bytes, and bytes of a file.
    fn send(plaintexts: &[(usize, u32)]) -> Send {
        let mut send = Send {
            connection: Handle {
                serial: 0,
                index: 0,
            },
            id: 0,
            route: Route {
                remote: "192.0.2.1:5000".parse().expect("an address"),
                local_ip: None,
                ecn: None,
            },
            not_before: tcp::Instant::from_us(0),
            packets: Vec::new(),
            pieces: Vec::new(),
            bytes: vec![0; 5000],
        };
        for (number, (inline, file)) in (0u8..).zip(plaintexts) {
            let header = send.bytes.len();
            send.bytes.extend([0x40, 9, number]);
            let first = send.pieces.len();
            send.pieces.push(Piece::Inline(0..*inline));
            if *file > 0 {
                send.pieces.push(Piece::File {
                    file: FileId(1),
                    offset: 0,
                    len: *file,
                });
            }
            send.packets.push(Described {
                number: number.into(),
                generation: 0,
                prefix: 0..0,
                header: header..header + 3,
                pieces: first..send.pieces.len(),
                inline_bytes: 3 + *inline,
                datagram_bytes: 3 + *inline + *file as usize + TAG_BYTES,
            });
        }
        send
    }

    /// How many packets each QSEND has.
    fn counts(send: &Send) -> Vec<usize> {
        let commands = send.commands(Framing {
            flow: FlowId(7),
            id: SendId(100),
            issued_us: 1,
            not_before_us: 2,
            header: b"to the client",
        });
        let mut numbers = Vec::new();
        let mut counts = Vec::new();
        for (id, command) in (100..).zip(commands) {
            assert_eq!((command.id, command.flow), (SendId(id), FlowId(7)));
            counts.push(command.packets.len());
            numbers.extend(command.packets.iter().map(|packet| packet.number));
            assert_eq!(Command::QuicSend(command).check(), Ok(()));
        }
        assert!(numbers.iter().copied().eq(0..send.packets.len() as u64));
        counts
    }

    #[test]
    fn what_fits_is_one_command() {
        assert_eq!(counts(&send(&[(20, 1400); 44])), [44]);
        assert_eq!(counts(&send(&[(20, 0)])), [1]);
        let mut with_a_short_one = vec![(20, 1400); 10];
        with_a_short_one.push((20, 7));
        assert_eq!(counts(&send(&with_a_short_one)), [11]);
    }

    #[test]
    fn what_does_not_fit_is_several() {
        // Real bytes.
        assert_eq!(counts(&send(&[(1400, 0); 7])), [2, 2, 2, 1]);
        // A datagram behind a shorter one, and one that is longer.
        assert_eq!(counts(&send(&[(20, 1400), (20, 7), (20, 7)])), [2, 1]);
        assert_eq!(counts(&send(&[(20, 7), (20, 1400)])), [1, 1]);
        // Datagrams of 3,000 bytes.
        assert_eq!(counts(&send(&[(20, 3000); 30])), [21, 9]);
    }
}
