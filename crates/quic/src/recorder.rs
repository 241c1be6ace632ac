//! The recorder of a connection: it turns the packets that the engine finishes into descriptions.
//!
//! The engine calls its packet key with each packet's plaintext. The key seals packets of the
//! handshake at once. It parses a 1-RTT packet and records a description; the placeholder bytes are
//! never read again.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use contract::FileId;
use contract::tls::TAG_BYTES;

use crate::engine::allowance::FRAGMENT_BYTES;
use crate::extents::{Extents, NoExtent};
use crate::frames::{self, FrameError, PathToken};
use crate::received::Received;
use crate::trace::{PacketType, Trace};
use crate::types::{Described, Piece, SealKey};

/// Packets that a key keeps for the end of its connection: they say why it is closed.
const CLOSE_PACKETS: u64 = 32;

/// Why a packet cannot be described.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DescribeError {
    Frame(FrameError),
    NoExtent,
    /// It has a long header, or is too short for its header.
    Header,
    /// Its number is not above all earlier ones.
    Number,
    /// The engine's output does not consist of the packets that it finished.
    Layout,
    /// The key has sealed as many packets as it may: the peer has not followed a key update.
    KeyUsedUp,
}

impl From<FrameError> for DescribeError {
    fn from(error: FrameError) -> Self {
        Self::Frame(error)
    }
}

impl From<NoExtent> for DescribeError {
    fn from(_: NoExtent) -> Self {
        Self::NoExtent
    }
}

impl fmt::Display for DescribeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Frame(error) => error.fmt(f),
            Self::NoExtent => f.write_str("stream data belongs to no extent"),
            Self::Header => f.write_str("a 1-RTT packet has no short header"),
            Self::Number => f.write_str("a packet number does not ascend"),
            Self::KeyUsedUp => {
                f.write_str("a key has sealed as many packets as its cipher permits")
            }
            Self::Layout => f.write_str("a datagram does not consist of finished packets"),
        }
    }
}

/// The record of one transmission. All connections of an endpoint share it, so that idle ones hold
/// no memory for it.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    packets: Vec<Described>,
    pieces: Vec<Piece>,
    bytes: Vec<u8>,
}

impl Scratch {
    fn clear(&mut self) {
        self.packets.clear();
        self.pieces.clear();
        self.bytes.clear();
    }

    /// See [`Recorder::take`].
    fn take(
        &mut self,
        transmitted: &[u8],
        datagram_bytes: usize,
    ) -> Result<Datagrams, DescribeError> {
        let count = transmitted.len().div_ceil(datagram_bytes);
        let first = count.checked_sub(self.packets.len());
        let sealed = first.ok_or(DescribeError::Layout)? * datagram_bytes;
        let sealed = sealed.min(transmitted.len());
        let datagrams = transmitted[sealed..].chunks(datagram_bytes);
        for (at, (datagram, packet)) in datagrams.zip(&mut self.packets).enumerate() {
            let prefix = datagram.len().checked_sub(packet.datagram_bytes);
            let prefix = prefix.ok_or(DescribeError::Layout)?;
            let header = &datagram[prefix..prefix + packet.header.len()];
            let only_first = prefix == 0 || at == 0;
            if !only_first || *header != self.bytes[packet.header.clone()] {
                return Err(DescribeError::Layout);
            }
            packet.prefix = self.bytes.len()..self.bytes.len() + prefix;
            packet.inline_bytes += prefix;
            packet.datagram_bytes += prefix;
            self.bytes.extend_from_slice(&datagram[..prefix]);
        }
        Ok(Datagrams {
            sealed,
            packets: self.packets.clone(),
            pieces: self.pieces.clone(),
            bytes: self.bytes.clone(),
        })
    }
}

/// Datagrams of one transmission.
#[derive(Debug, Default)]
pub(crate) struct Datagrams {
    /// Bytes of the sealed datagrams, which come first.
    pub(crate) sealed: usize,
    pub(crate) packets: Vec<Described>,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) bytes: Vec<u8>,
}

/// State that a connection's keys share with the engine.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    pub(crate) extents: Extents,
    scratch: Scratch,
    error: Option<DescribeError>,
    /// The lowest number that the next packet may have.
    next_number: u64,
    /// The key of the last packet.
    current: Option<Arc<SealKey>>,
    /// Generations of the keys that the NIC stack has or is about to get, oldest first.
    known: Vec<u32>,
    /// The generation of the last packet's key, and how many packets it has.
    described_of: u32,
    described: u64,
    /// Keys that the NIC stack is to get, with their floors.
    keys: Vec<(Arc<SealKey>, u64)>,
    /// How far each stream has been sent, in bytes.
    sent: BTreeMap<u64, u64>,
    /// Present while the connection is traced.
    trace: Option<Box<Trace>>,
    /// The packet that the engine handles now, if a NIC stack opened it.
    mark: Option<Mark>,
    /// One more than the largest number of the peer's opened 1-RTT packets.
    opened_end: u64,
    /// The path challenge that the peer has yet to answer.
    awaited: Option<PathToken>,
    /// Fragments that the peer has sent and that were not taken.
    fragments: u32,
    kept: KeptAcks,
    pub(crate) received: Received,
}

/// Packets that only acknowledge, as far as quinn-proto keeps them: those since the last other
/// packet up to a bound, and those before it until a later packet is acknowledged.
#[derive(Debug, Default)]
struct KeptAcks {
    count: u32,
    since_other: u32,
    /// One more than the largest packet number that the peer has acknowledged.
    acknowledged_end: u64,
}

impl KeptAcks {
    /// quinn-proto's `MAX_UNACKED_NON_ACK_ELICTING_TAIL`.
    const SINCE_OTHER_MAX: u32 = 1000;

    fn on_sent(&mut self, is_ack_only: bool) {
        if !is_ack_only {
            self.since_other = 0;
        } else if self.since_other <= Self::SINCE_OTHER_MAX {
            self.since_other += 1;
            self.count += 1;
        }
    }

    /// `next`: the number of the next packet.
    fn on_acknowledged(&mut self, largest: u64, next: u64) {
        if largest >= self.acknowledged_end && largest < next {
            self.acknowledged_end = largest + 1;
            let left = u32::try_from(next - self.acknowledged_end).unwrap_or(u32::MAX);
            self.count = self.count.min(left);
            self.since_other = self.since_other.min(left);
        }
    }
}

/// Marks a packet that a NIC stack has opened. It travels beside the packet, never in it, so that
/// no received bytes can forge one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) generation: u32,
    pub(crate) number: u64,
    /// Length of the plaintext that the engine gets.
    pub(crate) plaintext_bytes: usize,
    /// The plaintext stands in for an ACK frame that the NIC stack removed.
    pub(crate) is_bare: bool,
}

impl Recorder {
    /// A 1-RTT packet is finished: header, plaintext, and room for the tag.
    pub(crate) fn on_plaintext(
        &mut self,
        key: &Arc<SealKey>,
        number: u64,
        packet: &[u8],
        header_bytes: usize,
    ) {
        if self.error.is_none() {
            self.error = self.describe(key, number, packet, header_bytes).err();
        }
        if self.trace.is_some() {
            self.trace_sent(key.generation, number, packet, header_bytes);
        }
    }

    #[cold]
    fn trace_sent(&mut self, generation: u32, number: u64, packet: &[u8], header_bytes: usize) {
        let plaintext_end = packet.len().saturating_sub(TAG_BYTES);
        let plaintext = packet.get(header_bytes..plaintext_end);
        if let (Some(trace), Some(plaintext)) = (&mut self.trace, plaintext) {
            trace.on_key(generation);
            trace.on_sent((PacketType::OneRtt, number), packet.len(), plaintext);
        }
    }

    /// The trace, if the connection is traced.
    pub(crate) fn trace(&mut self) -> Option<&mut Trace> {
        self.trace.as_deref_mut()
    }

    /// Starts a trace. `is_new`: the connection has sent nothing yet.
    pub(crate) fn begin_trace(&mut self, is_new: bool) {
        let generation = self.current.as_ref().map_or(0, |key| key.generation);
        let trace = match is_new {
            true => Trace::default(),
            false => Trace::amid(generation, self.next_number),
        };
        self.trace = Some(Box::new(trace));
    }

    /// Ends the trace and returns it.
    pub(crate) fn end_trace(&mut self) -> Option<Box<Trace>> {
        self.trace.take()
    }

    /// Continues a trace that began elsewhere.
    pub(crate) fn adopt_trace(&mut self, trace: Box<Trace>) {
        self.trace = Some(trace);
    }

    /// Lends the scratch of a transmission, or takes it back.
    pub(crate) fn swap_scratch(&mut self, scratch: &mut Scratch) {
        std::mem::swap(&mut self.scratch, scratch);
    }

    fn describe(
        &mut self,
        key: &Arc<SealKey>,
        number: u64,
        packet: &[u8],
        header_bytes: usize,
    ) -> Result<(), DescribeError> {
        let plaintext_end = packet.len().checked_sub(TAG_BYTES);
        let plaintext = plaintext_end.and_then(|end| packet.get(header_bytes..end));
        let plaintext = plaintext.ok_or(DescribeError::Header)?;
        if header_bytes == 0 || packet[0] & 0x80 != 0 {
            return Err(DescribeError::Header);
        }
        if number < self.next_number {
            return Err(DescribeError::Number);
        }
        if self.known.last() != Some(&key.generation) {
            self.keys.push((Arc::clone(key), number));
            self.known.push(key.generation);
            self.current = Some(Arc::clone(key));
        }
        if self.described_of != key.generation {
            (self.described_of, self.described) = (key.generation, 0);
        }
        self.described += 1;
        let left = key.packets_max.saturating_sub(self.described);
        if left == CLOSE_PACKETS || left == 0 {
            return Err(DescribeError::KeyUsedUp);
        }
        self.next_number = number + 1;
        self.kept.on_sent(frames::is_ack_only(plaintext));
        let scratch = &mut self.scratch;
        let (start, first) = (scratch.bytes.len(), scratch.pieces.len());
        scratch.bytes.extend_from_slice(&packet[..header_bytes]);
        self.cut(plaintext)?;
        let scratch = &mut self.scratch;
        scratch.packets.push(Described {
            number,
            generation: key.generation,
            prefix: 0..0,
            header: start..start + header_bytes,
            pieces: first..scratch.pieces.len(),
            inline_bytes: scratch.bytes.len() - start,
            datagram_bytes: packet.len(),
        });
        Ok(())
    }

    /// Adds the pieces of a plaintext: ranges of files, and all other bytes between them.
    fn cut(&mut self, plaintext: &[u8]) -> Result<(), DescribeError> {
        let Self {
            extents,
            scratch: Scratch { pieces, bytes, .. },
            sent,
            ..
        } = self;
        let first = pieces.len();
        let mut done = 0;
        let mut result = Ok(());
        let mut push_inline = |pieces: &mut Vec<Piece>, range: Range<usize>| {
            if !range.is_empty() {
                let start = bytes.len();
                bytes.extend_from_slice(&plaintext[range]);
                pieces.push(Piece::Inline(start..bytes.len()));
            }
        };
        frames::stream_data(plaintext, |data| {
            let mut place = data.at.start;
            let sent = sent.entry(data.stream).or_default();
            *sent = (*sent).max(data.offset + data.at.len() as u64);
            let cut = extents.cut(data.stream, data.offset, data.at, |piece| match piece {
                Piece::Inline(range) => place = range.end,
                Piece::File { file, offset, len } => {
                    push_inline(pieces, done..place);
                    place += len as usize;
                    done = place;
                    push_file(pieces, first, file, offset, len);
                }
            });
            result = result.and(cut);
        })?;
        result?;
        push_inline(pieces, done..plaintext.len());
        Ok(())
    }

    /// Takes the datagrams that one call of the engine returned in `transmitted`, `datagram_bytes`
    /// each; the last may be shorter.
    ///
    /// A 1-RTT packet is the last of its datagram (RFC 9000 §12.2), and handshake datagrams come
    /// first, so the descriptions belong to the last datagrams.
    pub(crate) fn take(
        &mut self,
        transmitted: &[u8],
        datagram_bytes: usize,
    ) -> Result<Datagrams, DescribeError> {
        let taken = match self.error.take() {
            Some(error) => Err(error),
            None => self.scratch.take(transmitted, datagram_bytes),
        };
        self.scratch.clear();
        taken
    }

    /// Keys that the NIC stack must get before the datagrams taken.
    pub(crate) fn take_keys(&mut self) -> Vec<(Arc<SealKey>, u64)> {
        std::mem::take(&mut self.keys)
    }

    /// Discards the record of a call that returned nothing.
    pub(crate) fn discard(&mut self) -> Result<(), DescribeError> {
        self.scratch.clear();
        self.error.take().map_or(Ok(()), Err)
    }

    /// Another NIC stack, without keys, has replaced the last one.
    pub(crate) fn forget_keys(&mut self) {
        self.known.clear();
        self.keys.clear();
    }

    /// The engine is about to handle a packet that a NIC stack has opened.
    pub(crate) fn set_mark(&mut self, mark: Mark) {
        self.mark = Some(mark);
    }

    /// The engine is done with that packet. False if it took the packet, which it does once at
    /// most.
    pub(crate) fn take_mark(&mut self) -> bool {
        self.mark.take().is_some()
    }

    /// True while the engine handles such a packet and has not taken it.
    pub(crate) fn is_marked(&self) -> bool {
        self.mark.is_some()
    }

    /// Takes the mark for the packet that the engine opens, if it is for that one.
    pub(crate) fn open_marked(&mut self, generation: u32, number: u64) -> Option<Mark> {
        let is_wanted = |mark: &Mark| mark.generation == generation && mark.number == number;
        let mark = self.mark.take_if(|mark| is_wanted(mark))?;
        self.on_opened(number);
        Some(mark)
    }

    /// A packet of the peer was opened.
    pub(crate) fn on_opened(&mut self, number: u64) {
        self.opened_end = self.opened_end.max(number + 1);
    }

    /// Looks at the plaintext of an opened packet.
    pub(crate) fn on_received_plaintext(&mut self, plaintext: &[u8]) {
        self.awaited
            .take_if(|challenge| frames::answers(plaintext, *challenge));
        let received = &mut self.received;
        let looked = frames::look_through(plaintext, FRAGMENT_BYTES, |data| {
            let end = data.offset + data.at.len() as u64;
            received.on_data(data.stream, end, plaintext.len());
        });
        self.fragments += looked.fragments;
        if let Some(largest) = looked.acknowledged {
            self.kept.on_acknowledged(largest, self.next_number);
        }
    }

    /// How many packets that only acknowledge quinn-proto keeps.
    pub(crate) fn kept_acks(&self) -> u32 {
        self.kept.count
    }

    /// How many fragments the peer has sent since the last call.
    pub(crate) fn take_fragments(&mut self) -> u32 {
        std::mem::take(&mut self.fragments)
    }

    /// Sets the path challenge that the peer has yet to answer.
    pub(crate) fn set_awaited(&mut self, challenge: Option<PathToken>) {
        self.awaited = challenge;
    }

    /// False once the peer has answered the path challenge.
    pub(crate) fn awaits(&self) -> bool {
        self.awaited.is_some()
    }

    /// One more than the largest number of the peer's 1-RTT packets that were opened.
    pub(crate) fn opened_end(&self) -> u64 {
        self.opened_end
    }

    /// Memory for received stream data and the list of extents, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.extents.memory_bytes() + self.received.memory_bytes()
    }

    /// How many bytes of a stream have been sent at least once.
    pub(crate) fn sent(&self, stream: u64) -> u64 {
        self.sent.get(&stream).copied().unwrap_or(0)
    }

    /// The stream sends nothing more.
    pub(crate) fn forget_stream(&mut self, stream: u64) {
        self.sent.remove(&stream);
    }

    /// The key of the last packet, with its floor, if the NIC stack lacks it. From then on the key
    /// counts as given.
    pub(crate) fn take_current(&mut self) -> Option<(Arc<SealKey>, u64)> {
        if !self.known.is_empty() {
            return None;
        }
        let key = self.current.clone()?;
        self.known.push(key.generation);
        Some((key, self.next_number))
    }

    /// Takes the generations below this one, whose keys the NIC stack has and needs no more.
    pub(crate) fn take_known_below(&mut self, generation: u32) -> Vec<u32> {
        let count = self.known.partition_point(|known| *known < generation);
        self.known.drain(..count).collect()
    }

    /// Generations of the keys that the NIC stack has, oldest first.
    pub(crate) fn known(&self) -> &[u32] {
        &self.known
    }
}

/// Appends a range of a file; merges it with the previous range if it is contiguous.
fn push_file(pieces: &mut Vec<Piece>, first: usize, file: FileId, offset: u64, len: u32) {
    if pieces.len() > first
        && let Some(Piece::File {
            file: last,
            offset: at,
            len: before,
        }) = pieces.last_mut()
        && *last == file
        && *at + u64::from(*before) == offset
    {
        *before += len;
    } else {
        pieces.push(Piece::File { file, offset, len });
    }
}

#[cfg(test)]
mod tests {
    use contract::tls::Cipher;
    use zeroize::Zeroizing;

    use super::*;
    use crate::types::{FileRange, OpenKey};

    fn key(generation: u32) -> Arc<SealKey> {
        Arc::new(SealKey {
            generation,
            cipher: Cipher::Aes128Gcm,
            key: Zeroizing::new(vec![1; 16]),
            iv: Zeroizing::new([2; 12]),
            header_key: Zeroizing::new(vec![3; 16]),
            packets_max: PACKETS_MAX,
            open: OpenKey {
                key: Zeroizing::new(vec![4; 16]),
                iv: Zeroizing::new([5; 12]),
                header_key: Zeroizing::new(vec![6; 16]),
            },
        })
    }

    const PACKETS_MAX: u64 = 100;
    const HEADER: [u8; 4] = [0x41, 9, 9, 7];

    fn packet(plaintext: &[u8]) -> Vec<u8> {
        [&HEADER, plaintext, &[0; TAG_BYTES]].concat()
    }

    /// Stream 4 holds two real bytes, and then a file.
    fn recorder() -> (Recorder, Vec<bytes::Bytes>) {
        let mut recorder = Recorder::default();
        let extents = &mut recorder.extents;
        let real = extents.offer_real(4, 0, b"ab");
        let range = FileRange {
            file: FileId(7),
            offset: 500,
            len: 100,
        };
        let file = extents.offer_file(4, 2, range);
        let held = vec![real.bytes.clone(), file.bytes.clone()];
        extents.insert(real, 2);
        extents.insert(file, 100);
        (recorder, held)
    }

    fn describe(recorder: &mut Recorder, number: u64, packet: &[u8]) -> Option<DescribeError> {
        recorder.on_plaintext(&key(0), number, packet, HEADER.len());
        recorder.take(packet, packet.len()).err()
    }

    /// PING, then STREAM 4 from its beginning, two real bytes and three of the file, to the end.
    const PLAINTEXT: [u8; 8] = [0x01, 0x08, 4, b'a', b'b', 0, 0, 0];

    #[test]
    fn a_packet_is_described_behind_those_that_are_sealed() {
        let (mut recorder, _held) = recorder();
        let described = packet(&PLAINTEXT);
        recorder.on_plaintext(&key(3), 77, &described, HEADER.len());
        let size = described.len() + 5;
        // A datagram of the handshake, and one whose first five bytes are.
        let transmitted = [&vec![0xee; size + 5][..], &described].concat();
        let datagrams = recorder.take(&transmitted, size).expect("it is understood");
        assert_eq!(datagrams.sealed, size);
        let [only] = &datagrams.packets[..] else {
            panic!("one packet is described: {datagrams:?}");
        };
        assert_eq!((only.number, only.generation), (77, 3));
        assert_eq!(datagrams.bytes[only.prefix.clone()], [0xee; 5]);
        assert_eq!(datagrams.bytes[only.header.clone()], HEADER);
        let [Piece::Inline(inline), file] = &datagrams.pieces[..] else {
            panic!("real bytes, and a range of a file: {datagrams:?}");
        };
        assert_eq!(datagrams.bytes[inline.clone()], PLAINTEXT[..5]);
        let wanted = Piece::File {
            file: FileId(7),
            offset: 500,
            len: 3,
        };
        assert_eq!(*file, wanted);
        let keys = recorder.take_keys();
        assert_eq!(keys.len(), 1);
        assert_eq!((keys[0].0.generation, keys[0].1), (3, 77));
    }

    #[test]
    fn what_is_not_understood_is_not_described() {
        use DescribeError::{Frame, Header, Layout, NoExtent, Number};
        let unknown = packet(&[0x01, 0x21, 0, 0]);
        let beyond = packet(&[0x0c, 4, 0x40, 100, 0, 0, 0]);
        let elsewhere = packet(&[0x08, 8, 0]);
        let mut long = packet(&PLAINTEXT);
        long[0] |= 0x80;
        let cases = [
            (unknown, Frame(FrameError::UnknownType(0x21))),
            (beyond, NoExtent),
            (elsewhere, NoExtent),
            (long, Header),
            (vec![0x41; HEADER.len() + TAG_BYTES - 1], Header),
        ];
        for (packet, error) in cases {
            let (mut recorder, _held) = recorder();
            assert_eq!(describe(&mut recorder, 0, &packet), Some(error));
            // Nothing of the failed packet is left.
            assert_eq!(describe(&mut recorder, 1, &self::packet(&PLAINTEXT)), None);
        }
        let (mut recorder, held) = recorder();
        let packet = packet(&PLAINTEXT);
        assert_eq!(describe(&mut recorder, 5, &packet), None);
        assert_eq!(describe(&mut recorder, 5, &packet), Some(Number));
        recorder.on_plaintext(&key(0), 6, &packet, HEADER.len());
        let others = vec![0xee; packet.len()];
        assert_eq!(recorder.take(&others, others.len()).err(), Some(Layout));
        drop(held);
        recorder.extents.release(|_| {});
        assert_eq!(describe(&mut recorder, 7, &packet), Some(NoExtent));
    }

    #[test]
    fn a_key_seals_no_more_packets_than_it_may() {
        let (mut recorder, _taken) = recorder();
        let ping = packet(&[0x01]);
        for generation in 0..2 {
            let key = key(generation);
            let first = u64::from(generation) * 200;
            for number in 1..2 * PACKETS_MAX {
                recorder.on_plaintext(&key, first + number, &ping, HEADER.len());
                let taken = recorder.take(&ping, ping.len());
                // The first error closes the connection, of which some packets are to say why.
                let is_right = match number {
                    n if n == PACKETS_MAX - CLOSE_PACKETS || n >= PACKETS_MAX => {
                        matches!(taken, Err(DescribeError::KeyUsedUp))
                    }
                    _ => taken.is_ok(),
                };
                assert!(is_right, "{generation}, {number}");
            }
        }
    }

    #[test]
    fn a_key_is_given_once_and_again_to_another_nic_stack() {
        let (mut recorder, _held) = recorder();
        let packet = packet(&PLAINTEXT);
        for number in [10, 11] {
            assert_eq!(describe(&mut recorder, number, &packet), None);
        }
        assert_eq!(recorder.take_keys().len(), 1);
        recorder.forget_keys();
        assert_eq!(describe(&mut recorder, 12, &packet), None);
        let keys = recorder.take_keys();
        assert_eq!(
            keys.iter().map(|(_, floor)| *floor).collect::<Vec<_>>(),
            [12]
        );
        // Or before the next packet.
        assert!(recorder.take_current().is_none());
        recorder.forget_keys();
        let current = recorder.take_current().map(|(_, floor)| floor);
        assert_eq!(current, Some(13));
        assert_eq!(describe(&mut recorder, 13, &packet), None);
        assert_eq!(recorder.take_keys().len(), 0);
    }
}
