//! The encoding of QRXKEY, QCID, QRXKEYGONE and QRX.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use zerocopy::{FromBytes, IntoBytes};

use super::quic::{NUMBERS_END, check_keys, cipher_byte, copy_key, parse_key};
use super::{
    ConnectionIdRecord, QUIC_CONNECTION_ID, QUIC_RECEIVE_KEY, QUIC_RECEIVE_KEY_GONE, QUIC_RECEIVED,
    QuicConnectionIdRecord, QuicReceiveKeyGoneRecord, QuicReceiveKeyRecord,
    QuicReceivedPacketRecord, QuicReceivedRecord, all_zero, flag, head, split, whole,
};
use crate::command::Command;
use crate::ids::FlowId;
use crate::limits::{QUIC_HOLD_US_MAX, QUIC_RECEIVED_BYTES_MAX, QUIC_RECEIVED_PACKETS_MAX};
use crate::quic::{QuicConnectionId, QuicReceiveKey, QuicReceived, QuicReceivedPacket};

/// Set in the first byte of a long header (RFC 9000 §17.2).
const LONG_HEADER: u8 = 0x80;

/// Appends a command of this module; ignores others.
pub(super) fn encode(command: &Command<'_>, out: &mut Vec<u8>) {
    match *command {
        Command::QuicReceiveKey(ref key) => key.encode(out),
        Command::QuicConnectionId { flow, id } => {
            let record = QuicConnectionIdRecord {
                head: head(QUIC_CONNECTION_ID, size_of::<QuicConnectionIdRecord>()),
                flow: flow.0.into(),
                id: id_record(&id),
                zero: [0; 3],
            };
            out.extend_from_slice(record.as_bytes());
        }
        Command::QuicReceiveKeyGone { flow } => {
            let record = QuicReceiveKeyGoneRecord {
                head: head(QUIC_RECEIVE_KEY_GONE, size_of::<QuicReceiveKeyGoneRecord>()),
                flow: flow.0.into(),
            };
            out.extend_from_slice(record.as_bytes());
        }
        _ => {}
    }
}

fn id_record(id: &QuicConnectionId) -> ConnectionIdRecord {
    let from = id.as_bytes();
    let mut record = ConnectionIdRecord {
        bytes: [0; 20],
        len: from.len() as u8,
    };
    record.bytes[..from.len()].copy_from_slice(from);
    record
}

fn parse_id(record: &ConnectionIdRecord) -> Result<QuicConnectionId, &'static str> {
    let split = record.bytes.split_at_checked(record.len.into());
    let (id, unused) = split.ok_or("a connection ID has 1 to 20 bytes")?;
    all_zero(unused)?;
    QuicConnectionId::new(id).ok_or("a connection ID has 1 to 20 bytes")
}

/// Decodes the command of this kind.
pub(super) fn parse(kind: u8, bytes: &[u8]) -> Result<Command<'_>, &'static str> {
    match kind {
        QUIC_RECEIVE_KEY => QuicReceiveKey::parse(bytes).map(Command::QuicReceiveKey),
        QUIC_RECEIVE_KEY_GONE => parse_key_gone(bytes),
        _ => parse_connection_id(bytes),
    }
}

fn parse_key_gone(bytes: &[u8]) -> Result<Command<'_>, &'static str> {
    let record = whole::<QuicReceiveKeyGoneRecord>(bytes)?;
    Ok(Command::QuicReceiveKeyGone {
        flow: FlowId(record.flow.get()),
    })
}

fn parse_connection_id(bytes: &[u8]) -> Result<Command<'_>, &'static str> {
    let record = whole::<QuicConnectionIdRecord>(bytes)?;
    all_zero(&record.zero)?;
    Ok(Command::QuicConnectionId {
        flow: FlowId(record.flow.get()),
        id: parse_id(&record.id)?,
    })
}

impl<'a> QuicReceiveKey<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        let at = out.len();
        let record = QuicReceiveKeyRecord {
            head: head(QUIC_RECEIVE_KEY, size_of::<QuicReceiveKeyRecord>()),
            flow: self.flow.0.into(),
            next_number: self.next_number.into(),
            key: [0; 32],
            header_key: [0; 32],
            iv: self.iv,
            generation: self.generation.into(),
            hold_us: self.hold_us.into(),
            cipher: cipher_byte(self.cipher, [self.key, self.header_key]),
            zero: [0; 3],
        };
        out.extend_from_slice(record.as_bytes());
        // Writes keys in place: no copy stays on the stack.
        if let Ok((record, _)) = QuicReceiveKeyRecord::mut_from_prefix(&mut out[at..]) {
            copy_key(&mut record.key, self.key);
            copy_key(&mut record.header_key, self.header_key);
        }
    }

    fn parse(bytes: &'a [u8]) -> Result<Self, &'static str> {
        let record = whole::<QuicReceiveKeyRecord>(bytes)?;
        all_zero(&record.zero)?;
        let cipher = super::tls::cipher(record.cipher)?;
        Ok(QuicReceiveKey {
            flow: FlowId(record.flow.get()),
            generation: record.generation.get(),
            cipher,
            key: parse_key(&record.key, cipher)?,
            iv: record.iv,
            header_key: parse_key(&record.header_key, cipher)?,
            next_number: record.next_number.get(),
            hold_us: record.hold_us.get(),
        })
    }

    pub(super) fn check(&self) -> Result<(), &'static str> {
        check_keys(self.cipher, [self.key, self.header_key])?;
        if self.next_number >= NUMBERS_END || self.hold_us > QUIC_HOLD_US_MAX {
            Err("a packet number is below 2^62, and packets are held for QUIC_HOLD_US_MAX at most")
        } else {
            Ok(())
        }
    }
}

fn address_bytes(ip: IpAddr) -> [u8; 16] {
    let mut bytes = [0; 16];
    match ip {
        IpAddr::V4(ip) => bytes[..4].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => bytes = ip.octets(),
    }
    bytes
}

fn parse_address(bytes: [u8; 16], is_ipv6: bool) -> Result<IpAddr, &'static str> {
    if is_ipv6 {
        return Ok(Ipv6Addr::from(bytes).into());
    }
    let [a, b, c, d, unused @ ..] = bytes;
    all_zero(&unused)?;
    Ok(Ipv4Addr::new(a, b, c, d).into())
}

impl QuicReceived {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let length = size_of::<QuicReceivedRecord>()
            + self.packets.len() * size_of::<QuicReceivedPacketRecord>()
            + self.plaintext.len();
        let record = QuicReceivedRecord {
            head: head(QUIC_RECEIVED, length),
            flow: self.flow.0.into(),
            arrived_us: self.arrived_us.into(),
            remote: address_bytes(self.remote.ip()),
            local: address_bytes(self.local),
            generation: self.generation.into(),
            remote_port: self.remote.port().into(),
            packets: (self.packets.len() as u16).into(),
            plaintext_bytes: (self.plaintext.len() as u16).into(),
            id: id_record(&self.id),
            is_ipv6: self.remote.is_ipv6().into(),
        };
        out.extend_from_slice(record.as_bytes());
        for packet in &self.packets {
            let record = QuicReceivedPacketRecord {
                number: packet.number.into(),
                age_us: packet.age_us.into(),
                len: packet.len.into(),
                first: packet.first,
                ecn: packet.ecn,
            };
            out.extend_from_slice(record.as_bytes());
        }
        out.extend_from_slice(&self.plaintext);
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        let (record, rest) = split::<QuicReceivedRecord>(bytes)?;
        let packets = usize::from(record.packets.get());
        if packets == 0 || packets > QUIC_RECEIVED_PACKETS_MAX {
            return Err("a QRX has 1 to QUIC_RECEIVED_PACKETS_MAX packets");
        }
        let (packets, plaintext) =
            <[QuicReceivedPacketRecord]>::ref_from_prefix_with_elems(rest, packets)
                .map_err(|_| "the packets lie within the message")?;
        let packets: Vec<QuicReceivedPacket> =
            packets.iter().map(parse_packet).collect::<Result<_, _>>()?;
        let counted: usize = packets.iter().map(|packet| usize::from(packet.len)).sum();
        let claimed = usize::from(record.plaintext_bytes.get());
        if counted != plaintext.len() || claimed != counted || counted > QUIC_RECEIVED_BYTES_MAX {
            return Err("the plaintexts fill the message, at most QUIC_RECEIVED_BYTES_MAX");
        }
        let is_ipv6 = flag(record.is_ipv6)?;
        let remote = parse_address(record.remote, is_ipv6)?;
        Ok(QuicReceived {
            flow: FlowId(record.flow.get()),
            generation: record.generation.get(),
            id: parse_id(&record.id)?,
            remote: SocketAddr::new(remote, record.remote_port.get()),
            local: parse_address(record.local, is_ipv6)?,
            arrived_us: record.arrived_us.get(),
            packets,
            plaintext: plaintext.to_vec(),
        })
    }
}

fn parse_packet(record: &QuicReceivedPacketRecord) -> Result<QuicReceivedPacket, &'static str> {
    if record.number.get() >= NUMBERS_END || record.ecn > 3 {
        return Err("a packet number is below 2^62, and an ECN field has two bits");
    }
    if record.first & LONG_HEADER != 0 {
        return Err("a header is short");
    }
    Ok(QuicReceivedPacket {
        number: record.number.get(),
        age_us: record.age_us.get(),
        len: record.len.get(),
        first: record.first,
        ecn: record.ecn,
    })
}
