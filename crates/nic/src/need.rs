//! Needs of a superpacket: pieces of payload and the blocks that hold them; their maximum numbers.

use contract::limits::{
    PREPARE_BYTES_MAX, QUIC_SEGMENTS_MAX, RECORD_PLAINTEXT_BYTES_MAX, SEGMENTS_MAX,
};
use wire::ip::SUPERPACKET_BYTES_MAX;

use crate::blocks::{BlockIndex, BlockName};
use crate::buffer::BLOCK_BYTES;
use crate::flow::Piece;
use crate::slab::Key;

/// Most blocks that a superpacket can need, and most pieces of its payload: each segment may begin
/// and end in the midst of a block. A superpacket whose records need more is cut sooner.
pub(crate) const PIECES_MAX: usize = 2 * SEGMENTS_MAX + SUPERPACKET_BYTES_MAX.div_ceil(BLOCK_BYTES);

const _: () = assert!(
    RECORD_PLAINTEXT_BYTES_MAX <= BLOCK_BYTES && 2 * SEGMENTS_MAX <= PIECES_MAX,
    "a record needs two blocks for each segment of its run at most"
);

const _: () = assert!(
    PREPARE_BYTES_MAX.div_ceil(BLOCK_BYTES) < PIECES_MAX,
    "a PREPARE needs no more blocks than a superpacket"
);

/// Most blocks that a packet of a QSEND can need, in a table that has as many: each segment may
/// begin and end in another one. Further packets are in the same superpacket if all packets
/// together need no more than [`PIECES_MAX`].
pub(crate) const PACKET_BLOCKS_MAX: usize = 2 * QUIC_SEGMENTS_MAX;

/// Most pieces of a superpacket of stream, including those of plaintext.
pub(crate) const NEEDS_MAX: usize = 4 * PIECES_MAX;

/// A piece of a superpacket, before its block is taken.
#[derive(Debug)]
pub(crate) struct Need {
    pub(crate) piece: Piece,
    pub(crate) block: Option<BlockNeed>,
}

impl Need {
    /// Adds up to `wanted` bytes at `offset` of a file, if they continue the need in its block.
    /// Returns the number added.
    pub(crate) fn extend(&mut self, file: Key, offset: u64, wanted: usize) -> usize {
        let (
            Piece::Block {
                start, len, origin, ..
            },
            Some(block),
        ) = (&mut self.piece, &self.block)
        else {
            return 0;
        };
        let end = *start + *len;
        if block.file != file || origin.offset + end as u64 != offset {
            return 0;
        }
        let added = wanted.min(block.len - end);
        *len += added;
        added
    }
}

/// The block of a piece that comes from a file.
#[derive(Debug)]
pub(crate) struct BlockNeed {
    pub(crate) name: BlockName,
    pub(crate) file: Key,
    /// Bytes of the file in the block.
    pub(crate) len: usize,
    pub(crate) found: Option<BlockIndex>,
    /// The same superpacket needs the block for another piece, a little before.
    pub(crate) again: bool,
}

/// The last blocks that a superpacket has needed, and their indices if they are in memory:
/// successive packets need few.
#[derive(Debug, Default)]
pub(crate) struct RecentBlocks {
    /// Up to eight: the latest replaces the oldest.
    blocks: Vec<(BlockName, Option<BlockIndex>)>,
    next: usize,
}

impl RecentBlocks {
    const BLOCKS_MAX: usize = 8;

    /// Forgets all blocks, before another superpacket.
    pub(crate) fn clear(&mut self) {
        self.blocks.clear();
        self.next = 0;
    }

    /// Returns the index of a block, and true if the block is a recent one; otherwise the result of
    /// `find`, and the block becomes a recent one.
    pub(crate) fn get_or(
        &mut self,
        name: BlockName,
        find: impl FnOnce() -> Option<BlockIndex>,
    ) -> (Option<BlockIndex>, bool) {
        let mut known = self.blocks.iter();
        if let Some((_, found)) = known.find(|(known, _)| *known == name) {
            return (*found, true);
        }
        let found = find();
        match self.blocks.get_mut(self.next) {
            Some(oldest) => *oldest = (name, found),
            None => self.blocks.push((name, found)),
        }
        self.next = (self.next + 1) % Self::BLOCKS_MAX;
        (found, false)
    }
}
