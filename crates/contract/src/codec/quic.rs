//! The encoding of QKEY, QKEYGONE, QSEND, PREPARE, QRELEASE and READY.

use zerocopy::{FromBytes, IntoBytes};

use super::{
    PREPARE, PrepareRecord, QUIC_KEY, QUIC_KEY_GONE, QUIC_RELEASE, QUIC_SEND, QuicKeyGoneRecord,
    QuicKeyRecord, QuicPacketRecord, QuicReleaseRecord, QuicSegmentRecord, QuicSendRecord, READY,
    ReadyRecord, SEGMENT_FILE, SEGMENT_INLINE, all_zero, check_segment, head, split, whole,
};
use crate::command::Command;
use crate::event::Event;
use crate::ids::{FileId, FlowId, SendId};
use crate::limits::{
    HEADER_BYTES_MAX, PREPARE_BYTES_MAX, QUIC_DATAGRAM_BYTES_MAX, QUIC_HEADER_BYTES_MAX,
    QUIC_INLINE_BYTES_MAX, QUIC_PACKETS_MAX, QUIC_SEGMENTS_MAX, QUIC_SEND_BYTES_MAX,
};
use crate::quic::{Prepare, QuicKey, QuicPacket, QuicSend};
use crate::segment::Segment;
use crate::tls::Cipher;

/// Smallest sum of number, plaintext and tag, in bytes: the sample of header protection lies in it
/// (RFC 9001 §5.4.2).
const SAMPLED_BYTES: u64 = 4 + 16;

/// The bound on packet numbers (RFC 9000 §12.3).
pub(super) const NUMBERS_END: u64 = 1 << 62;

/// Appends a command of this module; ignores others.
pub(super) fn encode(command: &Command<'_>, out: &mut Vec<u8>) {
    match *command {
        Command::QuicKey(ref key) => key.encode(out),
        Command::QuicKeyGone { flow, generation } => encode_key_gone(flow, generation, out),
        Command::QuicSend(ref send) => send.encode(out),
        Command::Prepare(ref prepare) => prepare.encode(out),
        Command::QuicRelease {
            flow,
            file,
            offset,
            len,
        } => encode_release(flow, (file, offset, len), out),
        _ => {}
    }
}

impl<'a> QuicKey<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        let at = out.len();
        let record = QuicKeyRecord {
            head: head(QUIC_KEY, size_of::<QuicKeyRecord>()),
            flow: self.flow.0.into(),
            floor: self.floor.into(),
            key: [0; 32],
            header_key: [0; 32],
            iv: self.iv,
            generation: self.generation.into(),
            cipher: cipher_byte(self.cipher, [self.key, self.header_key]),
            zero: [0; 7],
        };
        out.extend_from_slice(record.as_bytes());
        // Writes keys in place: no copy stays on the stack.
        if let Ok((record, _)) = QuicKeyRecord::mut_from_prefix(&mut out[at..]) {
            copy_key(&mut record.key, self.key);
            copy_key(&mut record.header_key, self.header_key);
        }
    }

    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, &'static str> {
        let record = whole::<QuicKeyRecord>(bytes)?;
        all_zero(&record.zero)?;
        let cipher = super::tls::cipher(record.cipher)?;
        Ok(QuicKey {
            flow: FlowId(record.flow.get()),
            generation: record.generation.get(),
            cipher,
            key: parse_key(&record.key, cipher)?,
            iv: record.iv,
            header_key: parse_key(&record.header_key, cipher)?,
            floor: record.floor.get(),
        })
    }

    pub(super) fn check(&self) -> Result<(), &'static str> {
        check_keys(self.cipher, [self.key, self.header_key])
    }
}

/// Checks that keys have the length for their cipher.
pub(super) fn check_keys(cipher: Cipher, keys: [&[u8]; 2]) -> Result<(), &'static str> {
    let wanted = cipher.key_bytes();
    if keys.iter().all(|key| key.len() == wanted) {
        Ok(())
    } else {
        Err("a key is as long as its cipher wants")
    }
}

/// The byte for a cipher: 0, which is invalid, if the keys have another length.
pub(super) fn cipher_byte(cipher: Cipher, keys: [&[u8]; 2]) -> u8 {
    check_keys(cipher, keys).map_or(0, |()| cipher as u8)
}

pub(super) fn copy_key(to: &mut [u8; 32], from: &[u8]) {
    let len = from.len().min(to.len());
    to[..len].copy_from_slice(&from[..len]);
}

/// A key in a record: the bytes behind a short key must be zero.
pub(super) fn parse_key(record: &[u8; 32], cipher: Cipher) -> Result<&[u8], &'static str> {
    let (key, unused) = record.split_at(cipher.key_bytes());
    all_zero(unused)?;
    Ok(key)
}

fn encode_key_gone(flow: FlowId, generation: u32, out: &mut Vec<u8>) {
    let record = QuicKeyGoneRecord {
        head: head(QUIC_KEY_GONE, size_of::<QuicKeyGoneRecord>()),
        flow: flow.0.into(),
        generation: generation.into(),
        zero: [0; 4],
    };
    out.extend_from_slice(record.as_bytes());
}

pub(super) fn parse_key_gone(bytes: &[u8]) -> Result<Command<'_>, &'static str> {
    let record = whole::<QuicKeyGoneRecord>(bytes)?;
    all_zero(&record.zero)?;
    Ok(Command::QuicKeyGone {
        flow: FlowId(record.flow.get()),
        generation: record.generation.get(),
    })
}

fn inline<'a>(segment: &Segment<'a>) -> &'a [u8] {
    match segment {
        Segment::Inline(bytes) => bytes,
        Segment::File { .. } | Segment::Sealed { .. } => &[],
    }
}

impl<'a> QuicSend<'a> {
    /// Inline bytes of packets: prefixes, headers and inline segments.
    fn inline_bytes(&self) -> usize {
        let of_packets = self.packets.iter();
        let of_packets: usize = of_packets
            .map(|packet| packet.prefix.len() + packet.header.len())
            .sum();
        let of_segments: usize = self.segments.iter().map(|it| inline(it).len()).sum();
        of_packets + of_segments
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let length = size_of::<QuicSendRecord>()
            + self.packets.len() * size_of::<QuicPacketRecord>()
            + self.segments.len() * size_of::<QuicSegmentRecord>()
            + self.header.len()
            + self.inline_bytes();
        let record = QuicSendRecord {
            head: head(QUIC_SEND, length),
            id: self.id.0.into(),
            flow: self.flow.0.into(),
            issued_us: self.issued_us.into(),
            not_before_us: self.not_before_us.into(),
            packets: (self.packets.len() as u16).into(),
            segments: (self.segments.len() as u16).into(),
            header_bytes: (self.header.len() as u16).into(),
            zero: [0; 2],
        };
        out.extend_from_slice(record.as_bytes());
        for packet in &self.packets {
            let record = QuicPacketRecord {
                number: packet.number.into(),
                generation: packet.generation.into(),
                prefix_bytes: (packet.prefix.len() as u16).into(),
                header_bytes: packet.header.len() as u8,
                segments: packet.segments,
            };
            out.extend_from_slice(record.as_bytes());
        }
        for segment in &self.segments {
            let (kind, file, offset) = match *segment {
                // Invalid on purpose: lengths that do not fit, and ranges of records.
                _ if segment.len() > u16::MAX.into() => (0, 0, 0),
                Segment::Sealed { .. } => (0, 0, 0),
                Segment::Inline(_) => (SEGMENT_INLINE, 0, 0),
                Segment::File { file, offset, .. } => (SEGMENT_FILE, file.0, offset),
            };
            let record = QuicSegmentRecord {
                offset: offset.into(),
                file: file.into(),
                len: (segment.len() as u16).into(),
                kind,
                zero: 0,
            };
            out.extend_from_slice(record.as_bytes());
        }
        out.extend_from_slice(self.header);
        for (packet, segments) in self.each() {
            out.extend_from_slice(packet.prefix);
            out.extend_from_slice(packet.header);
            segments
                .iter()
                .for_each(|segment| out.extend_from_slice(inline(segment)));
        }
    }

    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, &'static str> {
        let (record, rest) = split::<QuicSendRecord>(bytes)?;
        all_zero(&record.zero)?;
        let (packets, segments) = (record.packets.get().into(), record.segments.get().into());
        if packets > QUIC_PACKETS_MAX || segments > QUIC_SEGMENTS_MAX {
            return Err("a QSEND has at most QUIC_PACKETS_MAX packets, QUIC_SEGMENTS_MAX segments");
        }
        let (packet_records, rest) =
            <[QuicPacketRecord]>::ref_from_prefix_with_elems(rest, packets)
                .map_err(|_| "the packets lie within the message")?;
        let (segment_records, rest) =
            <[QuicSegmentRecord]>::ref_from_prefix_with_elems(rest, segments)
                .map_err(|_| "the segments lie within the message")?;
        let (header, mut inline) = rest
            .split_at_checked(record.header_bytes.into())
            .ok_or("the header lies within the message")?;
        let mut send = QuicSend {
            id: SendId(record.id.get()),
            flow: FlowId(record.flow.get()),
            issued_us: record.issued_us.get(),
            not_before_us: record.not_before_us.get(),
            header,
            packets: Vec::with_capacity(packets),
            segments: Vec::with_capacity(segments),
        };
        let mut segment_records = segment_records.iter();
        for record in packet_records {
            let packet = parse_packet(record, &mut inline)?;
            for _ in 0..packet.segments {
                let record = segment_records.next();
                let record = record.ok_or("a packet's segments are there")?;
                send.segments.push(parse_segment(record, &mut inline)?);
            }
            send.packets.push(packet);
        }
        if segment_records.next().is_some() {
            return Err("a segment is a packet's");
        }
        if inline.is_empty() {
            Ok(send)
        } else {
            Err("inline bytes fill the message")
        }
    }

    pub(super) fn check(&self) -> Result<(), &'static str> {
        if self.packets.is_empty() || self.packets.len() > QUIC_PACKETS_MAX {
            return Err("a QSEND has 1 to QUIC_PACKETS_MAX packets");
        }
        let counted = self.packets.iter().map(|it| usize::from(it.segments));
        if self.segments.len() > QUIC_SEGMENTS_MAX || counted.sum::<usize>() != self.segments.len()
        {
            return Err("a QSEND has the segments of its packets, at most QUIC_SEGMENTS_MAX");
        }
        if self.header.len() > HEADER_BYTES_MAX {
            return Err("a header has at most HEADER_BYTES_MAX bytes");
        }
        if self.inline_bytes() > QUIC_INLINE_BYTES_MAX {
            return Err("a QSEND has at most QUIC_INLINE_BYTES_MAX bytes of packets");
        }
        let mut bytes = 0;
        let mut sizes = self
            .each()
            .map(|(packet, segments)| packet.datagram_bytes(segments));
        let first = sizes.next().unwrap_or(0);
        let mut last = first;
        for size in sizes {
            if last != first || size > first {
                return Err("only the last datagram is shorter");
            }
            bytes += last;
            last = size;
        }
        if first > QUIC_DATAGRAM_BYTES_MAX as u64 || bytes + last > QUIC_SEND_BYTES_MAX as u64 {
            return Err("datagrams have QUIC_DATAGRAM_BYTES_MAX, all of them QUIC_SEND_BYTES_MAX");
        }
        self.each()
            .try_for_each(|(packet, segments)| check_packet(packet, segments))?;
        let ascend = |pair: &[QuicPacket<'_>]| pair[0].number < pair[1].number;
        if self.packets.windows(2).all(ascend) {
            Ok(())
        } else {
            Err("packet numbers ascend")
        }
    }
}

fn parse_packet<'a>(
    record: &QuicPacketRecord,
    inline: &mut &'a [u8],
) -> Result<QuicPacket<'a>, &'static str> {
    let mut take = |len: usize| {
        let bytes = inline.split_off(..len);
        bytes.ok_or("the packets' bytes lie within the message")
    };
    Ok(QuicPacket {
        number: record.number.get(),
        generation: record.generation.get(),
        prefix: take(record.prefix_bytes.into())?,
        header: take(record.header_bytes.into())?,
        segments: record.segments,
    })
}

fn parse_segment<'a>(
    record: &QuicSegmentRecord,
    inline: &mut &'a [u8],
) -> Result<Segment<'a>, &'static str> {
    all_zero(&[record.zero])?;
    let len = record.len.get();
    match record.kind {
        SEGMENT_INLINE if record.file.get() != 0 || record.offset.get() != 0 => {
            Err("only a file range has a file")
        }
        SEGMENT_INLINE => {
            let bytes = inline.split_off(..usize::from(len));
            let bytes = bytes.ok_or("the packets' bytes lie within the message")?;
            Ok(Segment::Inline(bytes))
        }
        SEGMENT_FILE => Ok(Segment::File {
            file: FileId(record.file.get()),
            offset: record.offset.get(),
            len: len.into(),
        }),
        _ => Err("a segment of a packet is inline or of a file"),
    }
}

fn check_packet(packet: &QuicPacket<'_>, segments: &[Segment<'_>]) -> Result<(), &'static str> {
    let header = packet.header;
    let number_bytes = usize::from(header.first().copied().unwrap_or(0) & 3) + 1;
    if header.len() <= number_bytes || header.len() > QUIC_HEADER_BYTES_MAX {
        return Err("a header holds its packet number and QUIC_HEADER_BYTES_MAX bytes at most");
    }
    if header[0] & 0x80 != 0 {
        return Err("a header is short");
    }
    let number = header[header.len() - number_bytes..].iter();
    let truncated = number.fold(0, |number, byte| number << 8 | u64::from(*byte));
    let mask = (1 << (8 * number_bytes)) - 1;
    if packet.number & mask != truncated || packet.number >= NUMBERS_END {
        return Err("a header ends with the packet number, which is below 2^62");
    }
    for segment in segments {
        if let Segment::Sealed { .. } = segment {
            return Err("a segment of a packet is inline or of a file");
        }
        check_segment(segment)?;
    }
    let around = (packet.prefix.len() + header.len() - number_bytes) as u64;
    if packet.datagram_bytes(segments) - around < SAMPLED_BYTES {
        return Err("a packet is as long as the sample of header protection wants");
    }
    Ok(())
}

impl Prepare {
    fn encode(&self, out: &mut Vec<u8>) {
        let record = PrepareRecord {
            head: head(PREPARE, size_of::<PrepareRecord>()),
            id: self.id.0.into(),
            flow: self.flow.0.into(),
            offset: self.offset.into(),
            file: self.file.0.into(),
            len: self.len.into(),
        };
        out.extend_from_slice(record.as_bytes());
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        let record = whole::<PrepareRecord>(bytes)?;
        Ok(Prepare {
            id: SendId(record.id.get()),
            flow: FlowId(record.flow.get()),
            file: FileId(record.file.get()),
            offset: record.offset.get(),
            len: record.len.get(),
        })
    }

    pub(super) fn check(&self) -> Result<(), &'static str> {
        if self.len == 0 || self.len as usize > PREPARE_BYTES_MAX {
            return Err("PREPARE has 1 to PREPARE_BYTES_MAX bytes");
        }
        check_end(self.offset, self.len.into())
    }
}

fn check_end(offset: u64, len: u64) -> Result<(), &'static str> {
    match offset.checked_add(len) {
        Some(_) => Ok(()),
        None => Err("a file range ends below 2^64"),
    }
}

fn encode_release(flow: FlowId, (file, offset, len): (FileId, u64, u64), out: &mut Vec<u8>) {
    let record = QuicReleaseRecord {
        head: head(QUIC_RELEASE, size_of::<QuicReleaseRecord>()),
        flow: flow.0.into(),
        offset: offset.into(),
        len: len.into(),
        file: file.0.into(),
        zero: [0; 4],
    };
    out.extend_from_slice(record.as_bytes());
}

pub(super) fn parse_release(bytes: &[u8]) -> Result<Command<'_>, &'static str> {
    let record = whole::<QuicReleaseRecord>(bytes)?;
    all_zero(&record.zero)?;
    Ok(Command::QuicRelease {
        flow: FlowId(record.flow.get()),
        file: FileId(record.file.get()),
        offset: record.offset.get(),
        len: record.len.get(),
    })
}

pub(super) fn check_release(offset: u64, len: u64) -> Result<(), &'static str> {
    if len == 0 {
        return Err("a file range is not empty");
    }
    check_end(offset, len)
}

pub(super) fn encode_ready(prepare: SendId, flow: FlowId, out: &mut Vec<u8>) {
    let record = ReadyRecord {
        head: head(READY, size_of::<ReadyRecord>()),
        prepare: prepare.0.into(),
        flow: flow.0.into(),
    };
    out.extend_from_slice(record.as_bytes());
}

pub(super) fn parse_ready(bytes: &[u8]) -> Result<Event, &'static str> {
    let record = whole::<ReadyRecord>(bytes)?;
    Ok(Event::Ready {
        prepare: SendId(record.prepare.get()),
        flow: FlowId(record.flow.get()),
    })
}
