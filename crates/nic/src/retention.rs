//! The blocks that a flow has sent and not seen acknowledged (IO-TCP §3.5): it pins them, so that a
//! retransmission does not read again.

use std::collections::VecDeque;

use crate::blocks::{BlockRef, Blocks};

/// Most entries of a flow. Each stands for a block, and the window of a flow is some blocks; more
/// means that the host never acknowledges, and then the oldest entries are dropped.
const ENTRIES_MAX: usize = 4096;

/// The blocks that a flow pins.
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
    /// Pins `block`, which holds the last of the bytes up to `stream_end` that have departed.
    pub(crate) fn keep(&mut self, stream_end: u64, block: BlockRef, blocks: &mut Blocks) {
        if self.entries.len() == ENTRIES_MAX
            && let Some(oldest) = self.entries.pop_front()
        {
            blocks.unpin(oldest.block);
        }
        let place = self
            .entries
            .partition_point(|entry| entry.stream_end < stream_end);
        // Successive superpackets share a block, and a retransmission names the same block again.
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
        blocks.pin(block);
        self.entries.insert(place, Entry { stream_end, block });
    }

    /// Unpins blocks whose last byte lies before the acknowledged `stream_offset`.
    pub(crate) fn acknowledge(&mut self, stream_offset: u64, blocks: &mut Blocks) {
        while let Some(first) = self.entries.front()
            && first.stream_end <= stream_offset
        {
            blocks.unpin(first.block);
            self.entries.pop_front();
        }
    }

    /// Unpins all blocks: the flow is over.
    pub(crate) fn clear(&mut self, blocks: &mut Blocks) {
        for entry in self.entries.drain(..) {
            blocks.unpin(entry.block);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use contract::FileMeta;

    use super::*;
    use crate::blocks::BlockName;
    use crate::buffer::{Arena, BLOCK_BYTES};
    use crate::reader::Opened;

    /// Blocks in use, which a flow can pin.
    struct Table {
        blocks: Blocks,
        references: Vec<BlockRef>,
    }

    impl Table {
        fn new(count: usize) -> Table {
            let mut blocks = Blocks::new(Arena::new(count).expect("memory"));
            let version = blocks
                .versions
                .open(&Opened::stub(FileMeta::default(), 0, true));
            let references = (0..count as u64)
                .map(|number| {
                    let name = BlockName { version, number };
                    let (index, buffer) = blocks.allocate(name, version);
                    blocks.complete(index, buffer, BLOCK_BYTES, None, &mut Vec::new());
                    blocks.to_pin(index).expect("it can be pinned")
                })
                .collect();
            Table { blocks, references }
        }

        fn keep(&mut self, retention: &mut Retention, stream_end: u64, block: usize) {
            retention.keep(stream_end, self.references[block], &mut self.blocks);
        }
    }

    fn ends(retention: &Retention) -> Vec<u64> {
        retention.entries.iter().map(|e| e.stream_end).collect()
    }

    #[test]
    fn a_block_that_several_superpackets_share_is_kept_once() {
        let mut table = Table::new(2);
        let mut retention = Retention::default();
        table.keep(&mut retention, 10, 0);
        table.keep(&mut retention, 20, 0);
        table.keep(&mut retention, 30, 1);
        assert_eq!(ends(&retention), [20, 30]);
        retention.acknowledge(19, &mut table.blocks);
        assert_eq!(ends(&retention), [20, 30]);
        retention.acknowledge(20, &mut table.blocks);
        assert_eq!(ends(&retention), [30]);
        retention.acknowledge(u64::MAX, &mut table.blocks);
        assert!(retention.is_empty());
    }

    #[test]
    fn a_retransmission_keeps_nothing_twice_and_the_order_stays() {
        let mut table = Table::new(3);
        let mut retention = Retention::default();
        for (stream_end, block) in [(100, 0), (200, 1), (300, 2), (50, 0), (150, 1), (200, 1)] {
            table.keep(&mut retention, stream_end, block);
        }
        assert_eq!(ends(&retention), [100, 200, 300]);
    }

    #[test]
    fn a_host_that_never_acknowledges_keeps_a_bounded_number() {
        let mut table = Table::new(2);
        let mut retention = Retention::default();
        for stream_end in 0..3 * ENTRIES_MAX as u64 {
            table.keep(&mut retention, stream_end, (stream_end % 2) as usize);
        }
        assert_eq!(retention.entries.len(), ENTRIES_MAX);
        assert!(ends(&retention).is_sorted());
        retention.clear(&mut table.blocks);
        assert!(retention.is_empty());
    }
}
