//! What a flow has sent and not seen acknowledged (IO-TCP §3.5): it stays in memory, so that a
//! retransmission does not read again.

use std::collections::VecDeque;

use crate::blocks::{BlockRef, Blocks};

/// Most entries of a flow. Each stands for a block, and the window of a flow is some blocks; more means
/// that the host never acknowledges, and then the oldest go.
const ENTRIES_MAX: usize = 4096;

/// The blocks that a flow retains.
#[derive(Debug, Default)]
pub(crate) struct Retention {
    /// Ordered by `stream_end`.
    entries: VecDeque<Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Stream offset behind the last byte that was sent from the block.
    stream_end: u64,
    block: BlockRef,
}

impl Retention {
    /// Bytes up to `stream_end` have departed, the last of them from `block`.
    pub(crate) fn keep(&mut self, stream_end: u64, block: BlockRef, blocks: &mut Blocks) {
        if self.entries.len() == ENTRIES_MAX
            && let Some(oldest) = self.entries.pop_front()
        {
            blocks.let_go(oldest.block);
        }
        let place = self
            .entries
            .partition_point(|entry| entry.stream_end < stream_end);
        // Superpackets that follow each other share a block, and a retransmission names the same again.
        if let Some(after) = self.entries.get(place)
            && after.block == block
        {
            return;
        }
        if let Some(before) = place.checked_sub(1)
            && self.entries[before].block == block
        {
            self.entries[before].stream_end = stream_end;
            return;
        }
        blocks.retain(block);
        self.entries.insert(place, Entry { stream_end, block });
    }

    /// All bytes before `stream_offset` have been acknowledged.
    pub(crate) fn acknowledge(&mut self, stream_offset: u64, blocks: &mut Blocks) {
        while let Some(first) = self.entries.front()
            && first.stream_end <= stream_offset
        {
            blocks.let_go(first.block);
            self.entries.pop_front();
        }
    }

    /// The flow is over.
    pub(crate) fn clear(&mut self, blocks: &mut Blocks) {
        for entry in self.entries.drain(..) {
            blocks.let_go(entry.block);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}
