//! Read-ahead: what a flow is about to need is read while it still sends what comes before.
//!
//! The host says with a SEND how far the stream goes on in the same file ([`Send::follow_bytes`]): so nothing is read
//! beyond the end of a response, nor for a retransmission. How many blocks are worth it is found out. A flow begins
//! with one; whenever it comes to a block that is still on its way, or that was left out, it gets twice as many; when
//! one of its blocks goes without having been needed, half as many. Blocks are asked for as SENDs are planned, so a
//! flow that stops has at most that many in memory for nothing, and those are the first to go.
//!
//! It never takes memory from a flow: a block is read ahead only into one that is free, or that one flow has used
//! once and no other since; not while any flow waits for memory; and all of them
//! together are bounded (`Blocks::allocate_ahead`).
//!
//! [`Send::follow_bytes`]: contract::Send::follow_bytes

use netdev::Port;

use crate::blocks::BlockName;
use crate::buffer::BLOCK_BYTES;
use crate::engine::Engine;
use crate::files::FileState;
use crate::reader::{FileToken, Read, ReadToken};
use crate::slab::Key;

/// Most blocks that a flow has ahead of what it sends: a mebibyte, which at 1 Gbit/s bridges 8 ms.
const DEPTH_MAX: u8 = 16;

/// How far a flow's reading has got.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadAhead {
    /// The first block of the file that has not been asked for ahead, if any has.
    next: Option<BlockName>,
    /// Where the flow was last: the first block behind what was sent.
    first: u64,
    /// How many blocks are to be in memory, or on their way, behind what is sent.
    depth: u8,
}

impl ReadAhead {
    pub(crate) const START: ReadAhead = ReadAhead {
        next: None,
        first: 0,
        depth: 1,
    };

    /// The flow needs a block that was read ahead and is not there yet, or that would have been the next.
    pub(crate) fn on_late(&mut self) {
        self.depth = DEPTH_MAX.min(self.depth * 2);
    }

    /// A block that was read ahead for this flow has gone without having been needed.
    pub(crate) fn on_wasted(&mut self) {
        self.depth = (self.depth / 2).max(1);
    }

    /// The flow has got to where `first` is the next block that it lacks. The first block that has not been asked for.
    fn go_on(&mut self, version: Key, first: u64) -> u64 {
        // It may have gone back: for another response from the same file.
        let goes_on = first >= std::mem::replace(&mut self.first, first);
        let asked = self
            .next
            .filter(|next| goes_on && next.version == version && next.number >= first);
        let number = asked.map_or(first, |next| next.number);
        self.next = Some(BlockName { version, number });
        number
    }

    /// True if this block was the next to be read ahead.
    pub(crate) fn would_be_next(&self, name: BlockName) -> bool {
        self.next == Some(name)
    }
}

/// What a stream goes on with behind a SEND.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Follow {
    /// The file.
    pub(crate) file: Key,
    /// Where in the file.
    pub(crate) offset: u64,
    /// How far at least, in bytes; not zero.
    pub(crate) bytes: u64,
}

impl<P: Port> Engine<P> {
    /// A SEND has been planned to its end: reads what follows it.
    pub(crate) fn read_ahead(&mut self, key: Key, follow: Follow) {
        for flow in self.blocks.take_wasted() {
            if let Some(flow) = self.flows.get_mut(flow) {
                flow.read_ahead.on_wasted();
            }
        }
        let Some(file) = self.files.get(follow.file) else {
            return;
        };
        let (FileState::Open { size, version }, Some(flow)) = (file.state, self.flows.get_mut(key))
        else {
            return;
        };
        let end = follow.offset.saturating_add(follow.bytes).min(size);
        // The block in which the SEND ends is there; one that begins where it ends is not.
        let first = follow.offset.div_ceil(BLOCK_BYTES as u64);
        let behind = first
            .saturating_add(flow.read_ahead.depth.into())
            .min(end.div_ceil(BLOCK_BYTES as u64));
        let from = flow.read_ahead.go_on(version, first);
        for number in from..behind {
            let name = BlockName { version, number };
            if self.blocks.find(name).is_none() {
                // Who needs memory now comes first.
                if !self.starved.is_empty() {
                    return;
                }
                let Some((index, buffer)) = self.blocks.allocate_ahead(name, key) else {
                    return;
                };
                let offset = number * BLOCK_BYTES as u64;
                self.counters.reads += 1;
                self.counters.blocks_ahead += 1;
                self.reader.read(Read {
                    token: ReadToken(index),
                    file: FileToken(follow.file.to_bits()),
                    offset,
                    len: (size - offset).min(BLOCK_BYTES as u64) as usize,
                    buffer,
                });
            }
            flow.read_ahead.next = Some(BlockName {
                version,
                number: number + 1,
            });
        }
    }
}
