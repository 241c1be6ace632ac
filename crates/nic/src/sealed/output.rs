//! A superpacket's part of the sealed stream: from blocks to packet memory.
//!
//! Records are sealed whole, even if only a part leaves, each into its place in the output, from
//! where it leaves without being copied again. The record in which a superpacket ends goes to a
//! place of its own (`tails`), so that the next superpacket can continue it.

use std::io::IoSlice;
use std::ops::Range;

use contract::channel::NicChannel;
use contract::limits::{RECORD_PLAINTEXT_BYTES_MAX, RECORD_TAIL_BYTES_MAX, SEALED_TAGS_MAX};
use contract::tls::{Suite, Tag};
use contract::{Event, SendId};
use wire::ip::SUPERPACKET_BYTES_MAX;

use super::SealedStream;
use super::runs::Run;
use super::seal::{Plaintext, seal};
use super::tails::{TailSlot, Tails};
use crate::blocks::{BlockIndex, Blocks};
use crate::counters::Counters;
use crate::flow::{Flow, Piece};
use crate::slab::Key;

/// Most bytes of records that a superpacket may touch: it may begin and end within a record.
pub(crate) const OUTPUT_BYTES_MAX: usize = SUPERPACKET_BYTES_MAX + 2 * Suite::RECORD_BYTES_MAX;

/// Makes superpackets that have sealed bytes. There is one at a time; if the port is busy, it is
/// kept until it leaves.
#[derive(Debug)]
pub(crate) struct Sealer {
    /// Records one after the other. Empty until first used.
    output: Vec<u8>,
    /// Plaintext of a record whose pieces are not contiguous.
    gathered: Vec<u8>,
    /// Indices and tags of the records sealed in the current run.
    tags: Vec<(usize, Tag)>,
    tails: Tails,
    /// The superpacket that `slices` belong to.
    made: Option<Made>,
    slices: Vec<Slice>,
}

/// Identifies a superpacket: its flow, its SEND, and the SEND's payload bytes before it.
type Made = (Key, SendId, usize);

/// A piece of a superpacket's payload.
#[derive(Clone, Debug)]
enum Slice {
    Inline(Range<usize>),
    Block(BlockIndex, Range<usize>),
    Output(Range<usize>),
    Tail(TailSlot, Range<usize>),
}

/// A record would be sealed differently from the first time: its key and number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SealMismatch {
    pub(crate) epoch: u16,
    pub(crate) number: u64,
}

impl Sealer {
    pub(crate) fn new() -> Sealer {
        Sealer {
            output: Vec::new(),
            gathered: Vec::new(),
            tags: Vec::new(),
            tails: Tails::new(),
            made: None,
            slices: Vec::new(),
        }
    }

    /// Seals the records of a flow's first superpacket, unless that has been done.
    pub(crate) fn make(
        &mut self,
        key: Key,
        flow: &mut Flow,
        blocks: &Blocks,
        counters: &mut Counters,
    ) -> Result<(), SealMismatch> {
        let (Some(planned), Some(job), Some(stream)) =
            (flow.planned.front(), flow.jobs.front(), &mut flow.sealed)
        else {
            return Ok(());
        };
        let made = (key, job.id, planned.place.start);
        if self.made == Some(made) {
            return Ok(());
        }
        self.made = None;
        self.slices.clear();
        self.output.resize(OUTPUT_BYTES_MAX, 0);
        let mut superpacket = Superpacket {
            sealer: self,
            key,
            filled: 0,
            old_tail: stream.tail,
            new_tail: None,
            counters,
        };
        let mut sealed_end = None;
        let mut pieces = flow.pieces.range(..planned.pieces);
        while let Some(piece) = pieces.next() {
            match *piece {
                Piece::Sealed {
                    offset,
                    len,
                    plaintext,
                } => {
                    let plaintext = pieces.by_ref().take(plaintext);
                    superpacket.seal(stream, offset, len, plaintext, blocks)?;
                    sealed_end = Some(offset + len as u64);
                }
                Piece::Inline { start, len } => {
                    superpacket.push(Slice::Inline(start..start + len));
                }
                Piece::Block {
                    block, start, len, ..
                } => superpacket.push(Slice::Block(block, start..start + len)),
                Piece::PlainInline { .. } | Piece::PlainBlock { .. } | Piece::Missing { .. } => {}
            }
        }
        if let Some(end) = sealed_end {
            superpacket.move_tail(stream, end);
        }
        self.made = Some(made);
        Ok(())
    }

    /// Reports the first superpacket's records that were sealed for the first time, so that the
    /// host can see them. False if the ring has no room for all: then the superpacket has to wait.
    pub(crate) fn report(flow: &mut Flow, channel: &mut NicChannel) -> bool {
        let (Some(planned), Some(stream)) = (flow.planned.front(), &mut flow.sealed) else {
            return true;
        };
        let mut is_complete = true;
        let mut any = false;
        for piece in flow.pieces.range(..planned.pieces) {
            let Piece::Sealed { offset, len, .. } = *piece else {
                continue;
            };
            let Some(run) = stream.run_at_mut(offset) else {
                continue;
            };
            let first = run.index_at(offset);
            let records = run.index_at(offset + len as u64 - 1) + 1 - first;
            while let Some((index, tags)) = run.unreported(first, records, SEALED_TAGS_MAX) {
                let count = tags.len();
                if !channel.has_room() {
                    is_complete = false;
                    break;
                }
                let sealed = Event::Sealed {
                    flow: flow.id,
                    epoch: run.epoch,
                    number: run.number + index as u64,
                    tags: tags.into(),
                };
                if channel.send(&sealed).is_err() {
                    is_complete = false;
                    break;
                }
                any = true;
                run.on_reported(index, count);
            }
        }
        if any {
            channel.publish();
        }
        is_complete
    }

    /// Writes the slices of the last superpacket's payload, and returns their number. `inline`
    /// holds the SEND's own bytes.
    pub(crate) fn payload<'a>(
        &'a self,
        inline: &'a [u8],
        blocks: &'a Blocks,
        slices: &mut [IoSlice<'a>],
    ) -> usize {
        for (slice, made) in slices.iter_mut().zip(&self.slices) {
            *slice = IoSlice::new(match made {
                Slice::Inline(range) => &inline[range.clone()],
                Slice::Block(block, range) => &blocks.bytes(*block)[range.clone()],
                Slice::Output(range) => &self.output[range.clone()],
                Slice::Tail(slot, range) => &self.tails.bytes(*slot)[range.clone()],
            });
        }
        self.slices.len().min(slices.len())
    }

    /// Records that the superpacket has left: a SEND of the same id is another one.
    pub(crate) fn on_departed(&mut self) {
        self.made = None;
    }

    /// Ends a flow.
    pub(super) fn forget(&mut self, key: Key, stream: &mut SealedStream) {
        if let Some(slot) = stream.tail.take() {
            self.tails.release(slot, key);
        }
        if self.made.is_some_and(|(flow, ..)| flow == key) {
            self.made = None;
        }
    }
}

/// A superpacket being made.
struct Superpacket<'a> {
    sealer: &'a mut Sealer,
    key: Key,
    /// Bytes of the output in use.
    filled: usize,
    /// The record in which the previous superpacket ended.
    old_tail: Option<TailSlot>,
    /// The place of the record in which this superpacket ends.
    new_tail: Option<TailSlot>,
    counters: &'a mut Counters,
}

impl Superpacket<'_> {
    /// Appends a range of a run. `plaintext` holds the plaintext of all records that the range
    /// touches.
    fn seal<'p>(
        &mut self,
        stream: &mut SealedStream,
        offset: u64,
        len: usize,
        plaintext: impl Iterator<Item = &'p Piece>,
        blocks: &Blocks,
    ) -> Result<(), SealMismatch> {
        let end = offset + len as u64;
        let index = stream
            .index_at(offset)
            .expect("a run that a SEND needs is kept");
        self.sealer.tags.clear();
        let run = &stream.runs[index];
        let sealing_key = stream
            .keys
            .get(run.epoch)
            .expect("a key that a run needs is kept");
        let mut plaintexts = Plaintexts {
            pieces: plaintext,
            rest: &[],
            run,
            blocks,
        };
        for record in run.records(offset, len) {
            let record_end = record.stream_offset + record.len as u64;
            let from = (offset.max(record.stream_offset) - record.stream_offset) as usize;
            let to = (end.min(record_end) - record.stream_offset) as usize;
            let mut gathered = std::mem::take(&mut self.sealer.gathered);
            let plaintext = plaintexts.next(record.plaintext_len, &mut gathered);
            if let Some(slot) = self.old_tail
                && self
                    .sealer
                    .tails
                    .holds(slot, self.key, record.stream_offset)
            {
                self.counters.records_from_tail += 1;
                self.push(Slice::Tail(slot, from..to));
            } else {
                // A retransmission leaves the tail of the last new superpacket alone.
                let is_tail = to < record.len
                    && self.new_tail.is_none()
                    && record.stream_offset >= stream.tail_offset;
                let out = if is_tail {
                    let tails = &mut self.sealer.tails;
                    let slot = tails.take(self.key, record.stream_offset, self.old_tail);
                    self.new_tail = Some(slot);
                    self.push(Slice::Tail(slot, from..to));
                    &mut self.sealer.tails.bytes_mut(slot)[..record.len]
                } else {
                    let at = self.filled;
                    self.filled += record.len;
                    self.push(Slice::Output(at + from..at + to));
                    &mut self.sealer.output[at..self.filled]
                };
                let number = run.number + record.index as u64;
                let tag = seal(sealing_key, number, run.content_type, &plaintext, out);
                self.sealer.tags.push((record.index, tag));
                self.counters.sealed_bytes += record.len as u64;
            }
            self.sealer.gathered = gathered;
        }

        let run = &mut stream.runs[index];
        for (index, tag) in self.sealer.tags.drain(..) {
            match run.on_sealed(index, tag) {
                Ok(true) => self.counters.records_sealed += 1,
                Ok(false) => self.counters.records_sealed_again += 1,
                Err(_) => {
                    return Err(SealMismatch {
                        epoch: run.epoch,
                        number: run.number + index as u64,
                    });
                }
            }
        }
        Ok(())
    }

    /// Updates the stream's tail, for a superpacket whose sealed bytes end at `end`.
    fn move_tail(&mut self, stream: &mut SealedStream, end: u64) {
        let Some(run) = stream.run_at(end - 1) else {
            return;
        };
        let last = run.record(run.index_at(end - 1));
        let is_whole = end == last.stream_offset + last.len as u64;
        let slot = self.new_tail;
        if last.stream_offset < stream.tail_offset || (!is_whole && slot.is_none()) {
            return;
        }
        // The old tail may be part of this superpacket, and keeps its content until another
        // superpacket is made.
        if let Some(old) = stream.tail.take().filter(|old| Some(*old) != slot) {
            self.sealer.tails.release(old, self.key);
        }
        stream.tail = slot;
        stream.tail_offset = last.stream_offset;
    }

    fn push(&mut self, slice: Slice) {
        let slices = &mut self.sealer.slices;
        match (slices.last_mut(), &slice) {
            (Some(Slice::Output(last)), Slice::Output(next)) if last.end == next.start => {
                last.end = next.end;
            }
            _ => slices.push(slice),
        }
    }
}

/// Plaintext of successive records.
struct Plaintexts<'a, I> {
    pieces: I,
    /// Unused rest of the last piece.
    rest: &'a [u8],
    run: &'a Run,
    blocks: &'a Blocks,
}

impl<'a, 'p, I: Iterator<Item = &'p Piece>> Plaintexts<'a, I> {
    /// Returns the next `len` bytes: in place, but for a short tail, or copied together.
    fn next<'o>(&mut self, len: usize, gathered: &'o mut Vec<u8>) -> Plaintext<'o>
    where
        'a: 'o,
    {
        if self.rest.is_empty() {
            self.advance();
        }
        gathered.clear();
        if let Some((text, rest)) = self.rest.split_at_checked(len) {
            self.rest = rest;
            return Plaintext { text, tail: &[] };
        }
        if len - self.rest.len() <= RECORD_TAIL_BYTES_MAX {
            let text = std::mem::take(&mut self.rest);
            self.gather(len - text.len(), gathered);
            let tail = gathered;
            return Plaintext { text, tail };
        }
        self.gather(len, gathered);
        Plaintext {
            text: gathered,
            tail: &[],
        }
    }

    /// Copies the next `len` bytes together.
    fn gather(&mut self, len: usize, gathered: &mut Vec<u8>) {
        gathered.reserve_exact(RECORD_PLAINTEXT_BYTES_MAX);
        while gathered.len() < len {
            if self.rest.is_empty() && !self.advance() {
                break;
            }
            let (plaintext, rest) = self
                .rest
                .split_at(self.rest.len().min(len - gathered.len()));
            gathered.extend_from_slice(plaintext);
            self.rest = rest;
        }
    }

    fn advance(&mut self) -> bool {
        let Some(piece) = self.pieces.next() else {
            return false;
        };
        self.rest = match *piece {
            Piece::PlainInline { start, len } => &self.run.inline[start..start + len],
            Piece::PlainBlock {
                block, start, len, ..
            } => &self.blocks.bytes(block)[start..start + len],
            _ => &[],
        };
        true
    }
}

impl SealedStream {
    fn run_at_mut(&mut self, stream_offset: u64) -> Option<&mut Run> {
        let index = self.index_at(stream_offset)?;
        self.runs.get_mut(index)
    }
}
