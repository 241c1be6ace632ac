//! Blocks that a flow has prepared or sent and the host has not released. The flow pins them, so
//! that neither the QSEND nor a retransmission reads again.

use std::collections::BTreeMap;

use contract::FileId;

use crate::blocks::{BlockRef, Blocks};
use crate::buffer::BLOCK_BYTES;

/// Most entries of a flow, one per block. A flow's window is a few blocks; more means that the host
/// never releases, and then the first blocks of a file go.
const ENTRIES_MAX: usize = 4096;

/// Bytes per bit of [`Parts`]. A release may free a little more than it names, up to the next
/// multiple, which costs at worst a read.
const PART_BYTES: usize = BLOCK_BYTES / 64;

/// Parts of a block.
type Parts = u64;

/// The parts of a block that a byte range covers. `len` is not zero.
pub(super) fn parts(start: usize, len: usize) -> Parts {
    let first = start / PART_BYTES;
    let last = (start + len - 1) / PART_BYTES;
    (Parts::MAX >> (63 - last)) & (Parts::MAX << first)
}

/// The blocks that a flow pins, by file and position in it, in blocks.
#[derive(Debug, Default)]
pub(super) struct Retained {
    entries: BTreeMap<(FileId, u64), Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    block: BlockRef,
    /// Prepared or sent, and not released.
    parts: Parts,
}

impl Retained {
    /// Pins a block in use, of which the flow needs `parts`.
    pub(super) fn keep(
        &mut self,
        file: FileId,
        number: u64,
        parts: Parts,
        block: BlockRef,
        blocks: &mut Blocks,
    ) {
        let mut entry = Entry { block, parts };
        if let Some(known) = self.entries.get_mut(&(file, number)) {
            if known.block == block {
                known.parts |= parts;
                return;
            }
            // The block was evicted, or the id names another file now.
            blocks.unpin(known.block);
            entry.parts |= known.parts;
        } else if self.entries.len() >= ENTRIES_MAX
            && let Some((_, first)) = self.entries.pop_first()
        {
            blocks.unpin(first.block);
        }
        blocks.pin(block);
        self.entries.insert((file, number), entry);
    }

    /// Releases a range of a file. `len` is not zero.
    pub(super) fn release(&mut self, file: FileId, offset: u64, len: u64, blocks: &mut Blocks) {
        let block_bytes = BLOCK_BYTES as u64;
        let last = offset.saturating_add(len - 1);
        let behind = last / block_bytes + 1;
        let mut from = offset / block_bytes;
        while let Some((&name, entry)) = self.entries.range_mut((file, from)..(file, behind)).next()
        {
            let (_, number) = name;
            let start = offset.max(number * block_bytes) - number * block_bytes;
            let end = (last - number * block_bytes).min(block_bytes - 1) + 1;
            entry.parts &= !parts(start as usize, (end - start) as usize);
            if entry.parts == 0 {
                blocks.unpin(entry.block);
                self.entries.remove(&name);
            }
            from = number + 1;
        }
    }

    /// The flow is over.
    pub(super) fn clear(&mut self, blocks: &mut Blocks) {
        for (_, entry) in std::mem::take(&mut self.entries) {
            blocks.unpin(entry.block);
        }
    }
}

#[cfg(test)]
mod tests {
    use contract::FileMeta;

    use super::*;
    use crate::blocks::BlockName;
    use crate::buffer::Arena;
    use crate::reader::Opened;

    const BLOCK: u64 = BLOCK_BYTES as u64;
    const FILE: FileId = FileId(5);

    /// Blocks in use, which a flow can pin.
    fn table(count: usize) -> (Blocks, Vec<BlockRef>) {
        let mut blocks = Blocks::new(Arena::new(count).expect("memory"));
        let version = blocks
            .versions
            .open(&Opened::stub(FileMeta::default(), 0, true));
        let references = (0..count as u64)
            .map(|number| {
                let name = BlockName { version, number };
                let (index, buffer) = blocks.allocate(name, crate::slab::Key::from_bits(0));
                blocks.complete(index, buffer, BLOCK_BYTES, None, &mut Vec::new());
                blocks.to_pin(index).expect("it can be pinned")
            })
            .collect();
        (blocks, references)
    }

    #[test]
    fn parts_are_those_that_the_bytes_lie_in() {
        assert_eq!(parts(0, 1), 1);
        assert_eq!(parts(0, PART_BYTES), 1);
        assert_eq!(parts(PART_BYTES - 1, 2), 3);
        assert_eq!(parts(BLOCK_BYTES - 1, 1), 1 << 63);
        assert_eq!(parts(0, BLOCK_BYTES), u64::MAX);
    }

    #[test]
    fn a_block_stays_until_all_that_was_sent_of_it_is_released() {
        let (mut blocks, references) = table(2);
        let mut retained = Retained::default();
        retained.keep(FILE, 0, parts(0, 3000), references[0], &mut blocks);
        retained.keep(FILE, 0, parts(3000, 3000), references[0], &mut blocks);
        retained.keep(FILE, 1, parts(0, BLOCK_BYTES), references[1], &mut blocks);
        assert_eq!(blocks.pinned(), 2);
        // The middle, another file, and a range never sent.
        retained.release(FILE, 1024, 1024, &mut blocks);
        retained.release(FileId(6), 0, u64::MAX, &mut blocks);
        retained.release(FILE, 2 * BLOCK, 1000, &mut blocks);
        assert_eq!(blocks.pinned(), 2);
        retained.release(FILE, 0, 1024, &mut blocks);
        retained.release(FILE, 2048, 3952, &mut blocks);
        assert_eq!(blocks.pinned(), 1);
        retained.release(FILE, BLOCK / 2, BLOCK, &mut blocks);
        assert_eq!(blocks.pinned(), 1);
        retained.release(FILE, 0, u64::MAX, &mut blocks);
        assert_eq!(blocks.pinned(), 0);
        assert!(retained.entries.is_empty());
    }

    #[test]
    fn another_block_in_its_place_takes_over_what_is_not_released() {
        let (mut blocks, references) = table(2);
        let mut retained = Retained::default();
        retained.keep(FILE, 0, parts(0, 1024), references[0], &mut blocks);
        retained.keep(FILE, 0, parts(1024, 1024), references[1], &mut blocks);
        assert_eq!(blocks.pinned(), 1);
        retained.release(FILE, 1024, 1024, &mut blocks);
        assert_eq!(blocks.pinned(), 1);
        retained.release(FILE, 0, 1024, &mut blocks);
        assert_eq!(blocks.pinned(), 0);
    }

    #[test]
    fn a_host_that_never_releases_keeps_a_bounded_number() {
        let (mut blocks, references) = table(1);
        let mut retained = Retained::default();
        for number in 0..2 * ENTRIES_MAX as u64 {
            retained.keep(FILE, number, 1, references[0], &mut blocks);
        }
        assert_eq!(retained.entries.len(), ENTRIES_MAX);
        retained.clear(&mut blocks);
        assert_eq!(blocks.pinned(), 0);
    }
}
