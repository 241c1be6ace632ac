//! Read-ahead: the next blocks of a flow are read while it still sends the bytes before.
//!
//! Each SEND carries the length of the stream's continuation in the same file
//! ([`Send::follow_bytes`]): so nothing is read beyond the end of a response, nor for a
//! retransmission. The number of blocks adapts. A flow begins with one; whenever it needs a block
//! that is still being read, or that was left out, the number doubles; when one of its blocks is
//! evicted unused, the number is halved. Blocks are requested as SENDs are planned, so a flow that
//! stops has at most that number in memory for nothing, and those are the first to go.
//!
//! It never takes memory from a flow: a block is read ahead only into one that is free, or that one
//! flow has used once and no other since; not while any flow waits for memory; and the total is
//! bounded (`Blocks::allocate_ahead`).
//!
//! [`Send::follow_bytes`]: contract::Send::follow_bytes

use crate::blocks::BlockName;
use crate::slab::Key;

/// Most blocks that are read ahead of a flow's sends: a mebibyte, which at 1 Gbit/s bridges 8 ms.
const DEPTH_MAX: u8 = 16;

/// State of a flow's read-ahead.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadAhead {
    /// The first block of the file that has not been requested ahead, if any has.
    next: Option<BlockName>,
    /// The flow's last position: the first block behind the sent bytes.
    first: u64,
    /// See [`ReadAhead::depth`].
    depth: u8,
}

impl ReadAhead {
    pub(crate) const START: ReadAhead = ReadAhead {
        next: None,
        first: 0,
        depth: 1,
    };

    /// Counts a block that the flow needs and that was read ahead but is not there yet, or would
    /// have been read next.
    pub(crate) fn on_late(&mut self) {
        self.depth = DEPTH_MAX.min(self.depth * 2);
    }

    /// Counts a block that was read ahead for this flow and evicted unused.
    pub(crate) fn on_wasted(&mut self) {
        self.depth = (self.depth / 2).max(1);
    }

    /// Returns the number of blocks to have in memory, or on their way, behind the sent bytes.
    pub(crate) fn depth(&self) -> u64 {
        self.depth.into()
    }

    /// Records that blocks of this version before `number` have been requested.
    pub(crate) fn on_asked(&mut self, version: Key, number: u64) {
        self.next = Some(BlockName { version, number });
    }

    /// Moves the flow to `first`, the next block that it lacks. Returns the first block that has
    /// not been requested.
    pub(crate) fn go_on(&mut self, version: Key, first: u64) -> u64 {
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
