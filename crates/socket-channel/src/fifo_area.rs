//! Allocation of the FIFO area: a buddy allocator, in the host stack's private memory.
//!
//! Room for FIFOs of the smallest size can be promised: it stays free until the promise is kept or
//! withdrawn, and larger FIFOs come from the rest. No block is smaller than the smallest FIFO, so
//! fragmentation cannot break a promise.

use std::collections::BTreeSet;
use std::fmt;

use shm::memory::WORD_BYTES;

use crate::segment::{Block, Layout};

/// The smallest FIFO, in bytes.
pub const FIFO_BYTES_MIN: usize = 1 << FIFO_LOG2_MIN;

/// The largest FIFO, in bytes.
pub const FIFO_BYTES_MAX: usize = 1 << FIFO_LOG2_MAX;

/// Default size of a FIFO, unless the application requests another or memory is short, in bytes.
pub const FIFO_BYTES_USUAL: usize = 64 << 10;

const FIFO_LOG2_MIN: u8 = 9;
const FIFO_LOG2_MAX: u8 = 22;
const SIZES: usize = (FIFO_LOG2_MAX - FIFO_LOG2_MIN) as usize + 1;

/// Divisor of the spare bytes that bounds a FIFO's size: later sockets get smaller FIFOs before the
/// memory runs out.
const PART_OF_FREE: u64 = 32;

/// See the [module documentation](self).
pub struct FifoArea {
    /// Free blocks by size, each by its first word.
    free: [BTreeSet<u32>; SIZES],
    free_bytes: u64,
    /// Part of the free bytes that is promised.
    promised_bytes: u64,
    bytes: u64,
}

fn block_words(log2: u8) -> u32 {
    (1 << log2) / WORD_BYTES as u32
}

fn place(log2: u8) -> usize {
    usize::from(log2 - FIFO_LOG2_MIN)
}

impl FifoArea {
    /// Makes the free area of a segment.
    pub fn new(layout: &Layout) -> FifoArea {
        let mut area = FifoArea {
            free: Default::default(),
            free_bytes: 0,
            promised_bytes: 0,
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

    /// Allocates a block for a FIFO of about `bytes`: a power of two from [`FIFO_BYTES_MIN`] to
    /// [`FIFO_BYTES_MAX`], smaller if little is free beyond the promises. `None` if no unpromised
    /// block is free.
    pub fn allocate(&mut self, bytes: usize) -> Option<Block> {
        let spare = self.spare_bytes();
        if spare < FIFO_BYTES_MIN as u64 {
            return None;
        }
        let share = usize::try_from(spare / PART_OF_FREE).unwrap_or(FIFO_BYTES_MAX);
        // The share is rounded down, the wanted size up.
        let share = 1 << share.max(1).ilog2();
        let bytes = bytes.min(FIFO_BYTES_MAX).next_power_of_two();
        let bytes = bytes.min(share).clamp(FIFO_BYTES_MIN, FIFO_BYTES_MAX);
        let wanted = bytes.trailing_zeros() as u8;
        let (log2, word) = self.take(wanted)?;
        self.free_bytes -= 1 << log2;
        Some(Block { word, log2 })
    }

    /// Allocates a block of the default size [`FIFO_BYTES_USUAL`], or of half of it when less than
    /// half of the unpromised memory is free, a quarter below a quarter, and so on. So thousands of
    /// connections fit into an application's default memory.
    pub fn allocate_usual(&mut self) -> Option<Block> {
        let all = self.bytes - self.promised_bytes;
        let halvings = (all / self.spare_bytes().max(1)).max(1).ilog2();
        self.allocate(FIFO_BYTES_USUAL.checked_shr(halvings).unwrap_or(0))
    }

    /// Promises `fifos` FIFOs of the smallest size. False if there is no room.
    pub fn promise(&mut self, fifos: u64) -> bool {
        let has_room = self.spare_fifos() >= fifos;
        if has_room {
            self.promised_bytes += fifos * FIFO_BYTES_MIN as u64;
        }
        has_room
    }

    /// Withdraws promises of `fifos` FIFOs. Called before a promised FIFO is allocated, it
    /// guarantees the allocation.
    ///
    /// # Panics
    /// If fewer were promised.
    pub fn withdraw(&mut self, fifos: u64) {
        let promised = self
            .promised_bytes
            .checked_sub(fifos * FIFO_BYTES_MIN as u64);
        self.promised_bytes = promised.expect("a promise is withdrawn once");
    }

    /// Returns the number of FIFOs of the smallest size that can still be promised.
    pub fn spare_fifos(&self) -> u64 {
        self.spare_bytes() / FIFO_BYTES_MIN as u64
    }

    /// Reports whether more than half of the unpromised memory is free.
    pub fn is_half_free(&self) -> bool {
        self.spare_bytes() > (self.bytes - self.promised_bytes) / 2
    }

    /// Returns the bytes that are neither allocated nor promised.
    pub fn spare_bytes(&self) -> u64 {
        self.free_bytes - self.promised_bytes
    }

    /// Takes the best fit of at most the wanted size; returns its size and first word.
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

    /// Frees a block, and merges it with its free neighbours.
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

    /// Returns the unallocated bytes.
    pub fn free_bytes(&self) -> u64 {
        self.free_bytes
    }

    /// Returns the size of the area, in bytes.
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

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::segment::Limits;

    fn area(bytes: u64) -> FifoArea {
        let limits = Limits {
            sockets_max: 1,
            // The header and the record take a page.
            segment_bytes: bytes + 4096,
        };
        let area = FifoArea::new(&Layout::of(limits).unwrap());
        assert_eq!((area.bytes(), area.free_bytes()), (bytes, bytes));
        area
    }

    #[derive(Clone, Debug)]
    enum Step {
        Allocate(usize),
        /// The used block at this place, modulo the number of used blocks.
        Release(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0..2 * FIFO_BYTES_MAX).prop_map(Step::Allocate),
            2 => any::<usize>().prop_map(Step::Release),
        ]
    }

    fn overlap(a: Block, b: Block) -> bool {
        let words = |block: Block| block.word..block.word + block_words(block.log2);
        words(a).start < words(b).end && words(b).start < words(a).end
    }

    proptest! {
        /// Compares with a list of used blocks.
        #[test]
        fn blocks_never_overlap_and_all_space_comes_back(
            pages in 1..5000u64,
            steps in prop::collection::vec(step(), 0..200),
        ) {
            let bytes = pages * 4096;
            let mut area = area(bytes);
            let fresh = area.free.clone();
            let mut used: Vec<Block> = Vec::new();
            for step in steps {
                match step {
                    Step::Allocate(wanted) => {
                        let Some(block) = area.allocate(wanted) else {
                            prop_assert_eq!(area.free_bytes(), 0);
                            continue;
                        };
                        prop_assert!(block.bytes() >= FIFO_BYTES_MIN);
                        prop_assert!(block.bytes() <= FIFO_BYTES_MAX);
                        let most = wanted.next_power_of_two().max(FIFO_BYTES_MIN);
                        prop_assert!(block.bytes() <= most);
                        let end = u64::from(block.word) * 8 + block.bytes() as u64;
                        prop_assert!(end <= bytes);
                        prop_assert!(!used.iter().any(|other| overlap(*other, block)));
                        used.push(block);
                    }
                    Step::Release(place) if !used.is_empty() => {
                        area.release(used.swap_remove(place % used.len()));
                    }
                    Step::Release(_) => {}
                }
                let in_use: u64 = used.iter().map(|block| block.bytes() as u64).sum();
                prop_assert_eq!(area.free_bytes() + in_use, bytes);
            }
            for block in used {
                area.release(block);
            }
            prop_assert_eq!(&area.free, &fresh, "all neighbours are joined");
        }
    }

    #[test]
    fn fifos_get_smaller_before_there_are_none() {
        let mut area = area(256 << 20);
        let mut sizes = Vec::new();
        let mut last = FIFO_BYTES_MAX;
        while let Some(block) = area.allocate(FIFO_BYTES_MAX) {
            assert!(block.bytes() <= last);
            last = block.bytes();
            sizes.push(last);
        }
        sizes.dedup();
        let all: Vec<usize> = (FIFO_LOG2_MIN..=FIFO_LOG2_MAX)
            .rev()
            .map(|log2| 1 << log2)
            .collect();
        assert_eq!(sizes, all);
        assert_eq!(area.free_bytes(), 0);
    }

    #[test]
    fn thousands_of_connections_find_room_in_what_an_application_usually_has() {
        let limits = Limits {
            sockets_max: 65_536,
            segment_bytes: 256 << 20,
        };
        let mut area = FifoArea::new(&Layout::of(limits).unwrap());
        let sizes: Vec<usize> = std::iter::from_fn(|| area.allocate_usual())
            .map(Block::bytes)
            .collect();
        assert_eq!(
            sizes[2 * 500],
            64 << 10,
            "the first have all that they want"
        );
        assert!(sizes.len() / 2 > 4_500, "{}", sizes.len());
        // A larger request is granted while memory suffices.
        let mut area = FifoArea::new(&Layout::of(limits).unwrap());
        assert_eq!(area.allocate(1 << 20).map(Block::bytes), Some(1 << 20));
    }

    #[test]
    fn what_is_promised_is_there_however_the_rest_is_cut_up() {
        let mut area = area(1 << 20);
        assert!(area.promise(2000) && !area.promise(49));
        assert_eq!(area.spare_fifos(), 48);
        let mut taken = Vec::new();
        while let Some(block) = area.allocate(1 << 20) {
            taken.push(block);
        }
        assert_eq!(area.spare_bytes(), 0);
        for _ in 0..2000 {
            area.withdraw(1);
            let block = area.allocate(1 << 20).expect("it was promised");
            assert_eq!(block.bytes(), FIFO_BYTES_MIN);
        }
        assert_eq!(area.free_bytes(), 0);
        taken.into_iter().for_each(|block| area.release(block));
        assert_eq!(area.spare_fifos(), 48);
    }

    #[test]
    fn what_is_wanted_is_rounded_up() {
        let mut area = area(256 << 20);
        let cases = [
            (usize::MAX / 2, FIFO_BYTES_MAX),
            (0, 512),
            (513, 1024),
            (87_380, 131_072),
        ];
        for (wanted, bytes) in cases {
            assert_eq!(area.allocate(wanted).map(Block::bytes), Some(bytes));
        }
    }

    #[test]
    #[should_panic(expected = "is free already")]
    fn a_block_is_given_back_once() {
        let mut area = area(1 << 20);
        let _other = area.allocate(4096).unwrap();
        let block = area.allocate(4096).unwrap();
        area.release(block);
        area.release(block);
    }
}
