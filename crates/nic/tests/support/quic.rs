//! What a host says of QUIC packets, and what must come out of it: opened by an implementation that
//! is not the NIC stack's.

use std::net::SocketAddr;

use aws_lc_rs::aead::quic::{AES_128, HeaderProtectionKey};
use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use contract::quic::{Prepare, QuicKey, QuicPacket, QuicSend};
use contract::tls::{Cipher, TAG_BYTES};
use contract::{Command, Event, FileId, FlowId, RejectReason, Segment, SendId};
use wire::datagram::{DatagramHeader, HEADERS_BYTES_MAX};
use wire::ip::Ecn;

use super::{Stage, range};

/// Bytes of a short header: a connection ID of eight, a number of four.
const HEADER_BYTES: usize = 13;

/// What [`packet`] has around the bytes of its file: header, frame and tag.
pub const AROUND_BYTES: usize = HEADER_BYTES + FRAME.len() + TAG_BYTES;

/// What stands in front of file bytes in each packet.
pub const FRAME: &[u8] = b"header of a frame ";

const IV: [u8; 12] = [2; 12];
const HEADER_KEY: [u8; 16] = [3; 16];

/// The keys of all flows, by generation.
const KEYS: [[u8; 16]; 6] = [[1; 16], [4; 16], [5; 16], [6; 16], [7; 16], [8; 16]];

pub fn quic_key(flow: u64, generation: u32, floor: u64) -> QuicKey<'static> {
    QuicKey {
        flow: FlowId(flow),
        generation,
        cipher: Cipher::Aes128Gcm,
        key: &KEYS[generation as usize],
        iv: IV,
        header_key: &HEADER_KEY,
        floor,
    }
}

/// Ethernet, IP and UDP header of a flow, as the host makes it.
pub fn udp_header(flow: u64, ipv6: bool) -> Vec<u8> {
    let [source, destination]: [SocketAddr; 2] = if ipv6 {
        ["[fd77::2]:443", "[fd77::1]:1"]
    } else {
        ["10.77.0.2:443", "10.77.0.1:1"]
    }
    .map(|end| end.parse().unwrap());
    let destination = SocketAddr::new(destination.ip(), flow as u16);
    let header = DatagramHeader {
        source_mac: [2, 0, 0, 0, 0, 2],
        destination_mac: [2, 0, 0, 0, 0, 1],
        source,
        destination,
        ecn: Ecn::Ect0,
    };
    let mut buffer = [0; HEADERS_BYTES_MAX];
    let len = header.write(&mut buffer).expect("it fits");
    buffer[..len].to_vec()
}

/// A packet that is to be sealed.
#[derive(Clone, Debug)]
pub struct Plain {
    pub number: u64,
    pub generation: u32,
    pub prefix: &'static [u8],
    pub segments: Vec<Segment<'static>>,
}

/// A packet of a frame and a range of a file.
pub fn packet(number: u64, file: u32, offset: u64, len: u32) -> Plain {
    Plain {
        number,
        generation: 0,
        prefix: b"",
        segments: vec![Segment::Inline(FRAME), range(file, offset, len)],
    }
}

/// Packets with consecutive numbers that a range of a file is spread over, `each` bytes in one.
pub fn packets(number: u64, file: u32, offset: u64, len: u32, each: u32) -> Vec<Plain> {
    let starts = (0..len).step_by(each as usize);
    let packets = (number..).zip(starts).map(|(number, start)| {
        let len = each.min(len - start);
        packet(number, file, offset + u64::from(start), len)
    });
    packets.collect()
}

/// A QSEND that is about to be issued.
#[derive(Clone, Debug)]
pub struct Qsend {
    pub flow: u64,
    pub packets: Vec<Plain>,
    pub ipv6: bool,
    /// How long after it is issued it may leave; 0 for at once.
    pub held_us: u64,
}

impl Qsend {
    pub fn new(flow: u64, packets: impl Into<Vec<Plain>>) -> Qsend {
        Qsend {
            flow,
            packets: packets.into(),
            ipv6: false,
            held_us: 0,
        }
    }

    /// Does something with the command, which keeps to the contract.
    pub fn with_command(&self, id: SendId, issued_us: u64, act: impl FnOnce(&Command<'_>)) {
        self.with_any_command(id, issued_us, |command| {
            assert_eq!(command.check(), Ok(()), "the test keeps to the contract");
            act(command);
        });
    }

    /// The same with one that may not.
    pub fn with_any_command(&self, id: SendId, issued_us: u64, act: impl FnOnce(&Command<'_>)) {
        let headers: Vec<Vec<u8>> = self.packets.iter().map(short_header).collect();
        let each = self.packets.iter().zip(&headers);
        let packets = each.map(|(packet, header)| QuicPacket {
            number: packet.number,
            generation: packet.generation,
            prefix: packet.prefix,
            header,
            segments: packet.segments.len() as u8,
        });
        let command = Command::QuicSend(QuicSend {
            id,
            flow: FlowId(self.flow),
            issued_us,
            not_before_us: match self.held_us {
                0 => 0,
                held_us => issued_us + held_us,
            },
            header: &udp_header(self.flow, self.ipv6),
            packets: packets.collect(),
            segments: self
                .packets
                .iter()
                .flat_map(|packet| packet.segments.clone())
                .collect(),
        });
        act(&command);
    }
}

impl Stage {
    pub fn tell_quic_key(&mut self, flow: u64, generation: u32, floor: u64) {
        self.tell(&Command::QuicKey(quic_key(flow, generation, floor)));
    }

    pub fn tell_key_gone(&mut self, flow: u64, generation: u32) {
        let flow = FlowId(flow);
        self.tell(&Command::QuicKeyGone { flow, generation });
    }

    /// Issues a QSEND; returns its id.
    pub fn quic_send(&mut self, flow: u64, packets: impl Into<Vec<Plain>>) -> SendId {
        self.issue(&Qsend::new(flow, packets))
    }

    pub fn issue(&mut self, send: &Qsend) -> SendId {
        self.sends += 1;
        let id = SendId(self.sends);
        let issued_us = self.now_us.get();
        send.with_command(id, issued_us, |command| self.tell(command));
        id
    }

    /// Issues a PREPARE; returns its id.
    pub fn prepare(&mut self, flow: u64, file: u32, offset: u64, len: u32) -> SendId {
        self.sends += 1;
        let id = SendId(self.sends);
        self.tell(&Command::Prepare(Prepare {
            id,
            flow: FlowId(flow),
            file: FileId(file),
            offset,
            len,
        }));
        id
    }

    pub fn release(&mut self, flow: u64, file: u32, offset: u64, len: u64) {
        self.tell(&Command::QuicRelease {
            flow: FlowId(flow),
            file: FileId(file),
            offset,
            len,
        });
    }

    /// The packets that have left since the last call, opened: their flow, number and plaintext.
    pub fn opened(&mut self) -> Vec<(u64, u64, Vec<u8>)> {
        let superpackets = self.wire.take_datagrams();
        let mut all = Vec::new();
        for superpacket in superpackets {
            for datagram in superpacket.each() {
                let (number, plaintext) = open(datagram);
                all.push((superpacket.flow().0, number, plaintext));
            }
        }
        all
    }
}

fn short_header(packet: &Plain) -> Vec<u8> {
    let mut header = vec![0x43; HEADER_BYTES - 4];
    header.extend_from_slice(&(packet.number as u32).to_be_bytes());
    header
}

/// Takes a datagram apart, whatever its generation: its number and its plaintext.
pub fn open(datagram: &[u8]) -> (u64, Vec<u8>) {
    let protection = HeaderProtectionKey::new(&AES_128, &HEADER_KEY).expect("a key");
    let number_at = HEADER_BYTES - 4;
    let sample = &datagram[number_at + 4..number_at + 20];
    let mask = protection.new_mask(sample).expect("a sample");
    let mut header = datagram[..HEADER_BYTES].to_vec();
    header[0] ^= mask[0] & 0x1f;
    for (byte, mask) in header[number_at..].iter_mut().zip(&mask[1..]) {
        *byte ^= mask;
    }
    assert_eq!(header[..number_at], [0x43; HEADER_BYTES - 4]);
    let number = u32::from_be_bytes(header[number_at..].try_into().expect("four bytes"));
    let opened = KEYS.iter().find_map(|key| {
        let mut nonce = IV;
        for (byte, number) in nonce[8..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= number;
        }
        let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, key).expect("a key"));
        let mut sealed = datagram[HEADER_BYTES..].to_vec();
        let nonce = Nonce::assume_unique_for_key(nonce);
        let opened = key.open_in_place(nonce, Aad::from(&header), &mut sealed);
        opened.ok().map(|plaintext| plaintext.to_vec())
    });
    (number.into(), opened.expect("a packet is authentic"))
}

/// What a packet of [`packet`] opens to.
pub fn plaintext(file: &[u8], offset: usize, len: usize) -> Vec<u8> {
    [FRAME, &file[offset..offset + len]].concat()
}

/// What [`packets`] open to.
pub fn plaintexts(
    (flow, number): (u64, u64),
    file: &[u8],
    offset: usize,
    each: usize,
) -> Vec<(u64, u64, Vec<u8>)> {
    let pieces = file[offset..].chunks(each);
    let pieces = pieces.map(|piece| [FRAME, piece].concat());
    let numbered = (number..).zip(pieces);
    numbered
        .map(|(number, plaintext)| (flow, number, plaintext))
        .collect()
}

/// A rejection, as the only event.
pub fn rejected(reason: RejectReason, id: u64) -> Vec<Event> {
    vec![Event::Rejected { reason, id }]
}

pub fn ready(prepare: SendId, flow: u64) -> Event {
    let flow = FlowId(flow);
    Event::Ready { prepare, flow }
}
