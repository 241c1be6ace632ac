//! Read-ahead: what a flow is about to need is read while it still sends what comes before.
//!
//! The host says with a SEND how far the stream goes on in the same file ([`Send::follow_bytes`]):
//! so nothing is read beyond the end of a response, nor for a retransmission. How many blocks are
//! worth it is found out. A flow begins with one; whenever it comes to a block that is still on its
//! way, or that was left out, it gets twice as many; when one of its blocks goes without having
//! been needed, half as many. Blocks are asked for as SENDs are planned, so a flow that stops has
//! at most that many in memory for nothing, and those are the first to go.
//!
//! It never takes memory from a flow: a block is read ahead only into one that is free, or that one
//! flow has used once and no other since; not while any flow waits for memory; and all of them
//! together are bounded (`Blocks::allocate_ahead`).
//!
//! [`Send::follow_bytes`]: contract::Send::follow_bytes

use crate::blocks::BlockName;
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
    /// See [`ReadAhead::depth`].
    depth: u8,
}

impl ReadAhead {
    pub(crate) const START: ReadAhead = ReadAhead {
        next: None,
        first: 0,
        depth: 1,
    };

    /// The flow needs a block that was read ahead and is not there yet, or that would have been the
    /// next.
    pub(crate) fn on_late(&mut self) {
        self.depth = DEPTH_MAX.min(self.depth * 2);
    }

    /// A block that was read ahead for this flow has gone without having been needed.
    pub(crate) fn on_wasted(&mut self) {
        self.depth = (self.depth / 2).max(1);
    }

    /// How many blocks are to be in memory, or on their way, behind what is sent.
    pub(crate) fn depth(&self) -> u64 {
        self.depth.into()
    }

    /// Blocks of this version before `number` have been asked for.
    pub(crate) fn on_asked(&mut self, version: Key, number: u64) {
        self.next = Some(BlockName { version, number });
    }

    /// The flow has got to where `first` is the next block that it lacks. The first block that has
    /// not been asked for.
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
