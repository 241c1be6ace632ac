//! Who has which piece of the FIFO area: a buddy allocator, in the host stack's private memory.

use std::collections::BTreeSet;
use std::fmt;

use shm::memory::WORD_BYTES;

use crate::segment::{Block, Layout};

/// The smallest FIFO, in bytes.
pub const FIFO_BYTES_MIN: usize = 1 << FIFO_LOG2_MIN;

/// The largest FIFO, in bytes.
pub const FIFO_BYTES_MAX: usize = 1 << FIFO_LOG2_MAX;

const FIFO_LOG2_MIN: u8 = 12;
const FIFO_LOG2_MAX: u8 = 20;
const SIZES: usize = (FIFO_LOG2_MAX - FIFO_LOG2_MIN) as usize + 1;

/// No FIFO gets more than this part of what is free: sockets that come later get smaller ones
/// before there are none.
const PART_OF_FREE: u64 = 64;

/// See the [module documentation](self).
pub struct FifoArea {
    /// Free blocks by size, each by its first word.
    free: [BTreeSet<u32>; SIZES],
    free_bytes: u64,
    bytes: u64,
}

fn block_words(log2: u8) -> u32 {
    (1 << log2) / WORD_BYTES as u32
}

fn place(log2: u8) -> usize {
    usize::from(log2 - FIFO_LOG2_MIN)
}

impl FifoArea {
    /// The area of a segment, all of it free.
    pub fn new(layout: &Layout) -> FifoArea {
        let mut area = FifoArea {
            free: Default::default(),
            free_bytes: 0,
            bytes: layout.area_bytes(),
        };
        let words = layout.area_bytes() / WORD_BYTES as u64;
        let mut at = 0;
        for log2 in (FIFO_LOG2_MIN..=FIFO_LOG2_MAX).rev() {
            while at + u64::from(block_words(log2)) <= words {
                let Ok(word) = u32::try_from(at) else { break };
                area.free[place(log2)].insert(word);
                area.free_bytes += 1 << log2;
                at += u64::from(block_words(log2));
            }
        }
        area
    }

    /// A block for a FIFO that should hold `bytes`: a power of two from [`FIFO_BYTES_MIN`] to
    /// [`FIFO_BYTES_MAX`], and a smaller one the less is free. `None` if nothing is.
    pub fn allocate(&mut self, bytes: usize) -> Option<Block> {
        let share = usize::try_from(self.free_bytes / PART_OF_FREE).unwrap_or(FIFO_BYTES_MAX);
        // The share rounds down, what is wanted rounds up.
        let share = 1 << share.max(1).ilog2();
        let bytes = bytes.min(FIFO_BYTES_MAX).next_power_of_two();
        let bytes = bytes.min(share).clamp(FIFO_BYTES_MIN, FIFO_BYTES_MAX);
        let wanted = bytes.trailing_zeros() as u8;
        let (log2, word) = self.take(wanted)?;
        self.free_bytes -= 1 << log2;
        Some(Block { word, log2 })
    }

    /// The best fit of at most the wanted size, and its first word.
    fn take(&mut self, wanted: u8) -> Option<(u8, u32)> {
        let larger = (wanted..=FIFO_LOG2_MAX).find(|log2| !self.free[place(*log2)].is_empty());
        let Some(found) = larger else {
            let smaller = (FIFO_LOG2_MIN..wanted).rev();
            let mut smaller = smaller.filter_map(|log2| {
                let word = self.free[place(log2)].pop_first()?;
                Some((log2, word))
            });
            return smaller.next();
        };
        let word = self.free[place(found)].pop_first()?;
        // The upper halves stay free.
        for log2 in wanted..found {
            self.free[place(log2)].insert(word + block_words(log2));
        }
        Some((wanted, word))
    }

    /// Gives a block back, and joins it with its free neighbours.
    ///
    /// # Panics
    /// If it is free already.
    pub fn release(&mut self, block: Block) {
        let Block { mut word, mut log2 } = block;
        self.free_bytes += 1 << log2;
        while log2 < FIFO_LOG2_MAX {
            let buddy = word ^ block_words(log2);
            if !self.free[place(log2)].remove(&buddy) {
                break;
            }
            word = word.min(buddy);
            log2 += 1;
        }
        let is_new = self.free[place(log2)].insert(word);
        assert!(is_new, "block {block:?} is free already");
    }

    /// Bytes that no FIFO has.
    pub fn free_bytes(&self) -> u64 {
        self.free_bytes
    }

    /// Bytes of the area.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl fmt::Debug for FifoArea {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FifoArea")
            .field("free_bytes", &self.free_bytes)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}
