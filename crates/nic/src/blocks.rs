//! Blocks: pieces of files in memory, read once for all flows that send them.
//!
//! A block is [`BLOCK_BYTES`] of one file version, aligned to that size in the file, in a
//! preallocated buffer. At any time a block is
//!
//! * *in use*: a planned superpacket needs it, or the reader has its buffer. It is never evicted;
//! * *pinned*: some flow has sent it and not seen it acknowledged (IO-TCP §3.5), or has had it
//!   prepared. It stays for [`PIN_US`] after it was sent, even if memory is wanted; after that it
//!   may be evicted if no block is free or cached. While a flow waits for memory, sending the block
//!   again does not extend that time;
//! * *cached*: no flow needs it. [`S3Fifo`] decides which cached block is evicted first;
//! * *free*: the buffer holds nothing. Used last in, first out, because the last is warm in the
//!   CPU's cache, and from the beginning of the arena on, so that memory never needed is never
//!   touched.
//!
//! Readers give no bytes of a file that has become another version since it was opened; blocks read
//! before serve the flows that began with the old version.

use std::collections::HashMap;

use crate::buffer::{Arena, BLOCK_BYTES, Buffer};
use crate::counters::Counters;
use crate::s3fifo::{S3Fifo, Slot};
use crate::slab::Key;
use crate::versions::Versions;

/// Names a block in its table.
pub(crate) type BlockIndex = Slot;

/// Divisor that bounds read-ahead: at most this fraction of all blocks is read ahead and not needed
/// yet.
const AHEAD_PART: usize = 8;

/// How long a pin keeps a block in memory that others want, from when the block was last sent, in
/// microseconds.
///
/// Long enough for an acknowledgment, and for a retransmission that was lost, over any usual path.
/// But a peer that acknowledges nothing must not keep memory from others for the minutes that TCP
/// is patient with it. The bound also lets every flow go on when all blocks are pinned and no
/// pinned flow can send the bytes whose acknowledgment would unpin them. A flow that needs the
/// block later reads it again.
pub(crate) const PIN_US: u64 = 1_000_000;

/// The content of a block: a place in a file version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BlockName {
    /// Key of a version.
    pub(crate) version: Key,
    /// Position in the file, in blocks.
    pub(crate) number: u64,
}

/// A flow's reference to a block; meaningless once the block has been evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockRef {
    index: BlockIndex,
    generation: u32,
}

/// State of the content of a block in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// The reader has the buffer.
    Reading,
    /// The first `valid` bytes are there. If they are not the whole block, `failure` is the `errno`
    /// of the read.
    Ready { valid: usize, failure: Option<u16> },
}

/// Last use of a block before it is used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Before {
    /// The same flow has used it last.
    SameFlow,
    /// Another flow has used it last.
    OtherFlow,
    /// It was read ahead, and this is its first use.
    Ahead,
}

#[derive(Debug)]
struct Block {
    /// `None` while the reader has it.
    buffer: Option<Buffer>,
    /// `None` if the block is free, or if other flows must not find its content because the read
    /// failed.
    name: Option<BlockName>,
    content: Content,
    generation: u32,
    /// Planned superpackets that need it.
    users: u32,
    /// Flows that have sent it and not seen it acknowledged.
    pins: u32,
    /// The flow that has used it last, or for which it was read ahead.
    last_flow: Option<Key>,
    /// It was read ahead and has not been needed yet.
    ahead: bool,
    /// Flows to wake when the read completes.
    waiters: Vec<Key>,
    /// From when on a pin has [`PIN_US`]; `None` until the content has been used.
    since_us: Option<u64>,
    previous: BlockIndex,
    next: BlockIndex,
}

impl Block {
    /// No superpacket needs it and the reader does not have it.
    fn is_idle(&self) -> bool {
        self.users == 0 && self.content != Content::Reading
    }

    /// The block may go although it is pinned.
    fn is_stale(&self, now_us: u64) -> bool {
        self.stale_from_us() <= now_us
    }

    fn stale_from_us(&self) -> u64 {
        self.since_us
            .map_or(u64::MAX, |since_us| since_us.saturating_add(PIN_US))
    }

    /// It may go if it is stale.
    fn is_held_by_pins_only(&self) -> bool {
        self.is_idle() && self.pins > 0
    }
}

/// End of a list.
const NONE: BlockIndex = BlockIndex::MAX;

/// Blocks whose content has been used, ordered by `since_us`. Links are in the blocks.
#[derive(Debug)]
struct ByAge {
    first: BlockIndex,
    last: BlockIndex,
}

impl ByAge {
    fn push(&mut self, blocks: &mut [Block], index: BlockIndex) {
        blocks[index as usize].previous = self.last;
        blocks[index as usize].next = NONE;
        match self.last {
            NONE => self.first = index,
            last => blocks[last as usize].next = index,
        }
        self.last = index;
    }

    fn remove(&mut self, blocks: &mut [Block], index: BlockIndex) {
        let Block { previous, next, .. } = blocks[index as usize];
        match previous {
            NONE => self.first = next,
            previous => blocks[previous as usize].next = next,
        }
        match next {
            NONE => self.last = previous,
            next => blocks[next as usize].previous = previous,
        }
    }

    fn iter<'a>(&self, blocks: &'a [Block]) -> impl Iterator<Item = (BlockIndex, &'a Block)> {
        let mut index = self.first;
        std::iter::from_fn(move || {
            let block = blocks.get(index as usize)?;
            let this = index;
            index = block.next;
            Some((this, block))
        })
    }
}

/// All blocks of a worker, and the file versions that they belong to.
#[derive(Debug)]
pub(crate) struct Blocks {
    blocks: Vec<Block>,
    by_name: HashMap<BlockName, BlockIndex>,
    pub(crate) versions: Versions,
    free: Vec<BlockIndex>,
    by_age: ByAge,
    cached: S3Fifo,
    /// Blocks that some flow pins, idle or in use.
    pinned_count: usize,
    /// Blocks read ahead and not needed yet.
    ahead_count: usize,
    /// Flows for which blocks were read ahead that were evicted before any use.
    wasted: Vec<Key>,
    /// A flow waits for memory.
    wanted: bool,
    now_us: u64,
    ahead_used: u64,
    ahead_wasted: u64,
    evicted: u64,
    pins_broken: u64,
    pinned_peak: usize,
}

impl Blocks {
    /// Blocks in the buffers of an arena.
    pub(crate) fn new(arena: Arena) -> Blocks {
        let blocks: Vec<Block> = arena
            .into_buffers()
            .take(NONE as usize)
            .map(|buffer| Block {
                buffer: Some(buffer),
                name: None,
                content: Content::Reading,
                generation: 0,
                users: 0,
                pins: 0,
                last_flow: None,
                ahead: false,
                waiters: Vec::new(),
                since_us: None,
                previous: NONE,
                next: NONE,
            })
            .collect();
        let count = blocks.len();
        Blocks {
            blocks,
            by_name: HashMap::with_capacity(count),
            versions: Versions::new(),
            free: (0..count as BlockIndex).rev().collect(),
            by_age: ByAge {
                first: NONE,
                last: NONE,
            },
            cached: S3Fifo::new(count),
            pinned_count: 0,
            ahead_count: 0,
            wasted: Vec::new(),
            wanted: false,
            now_us: 0,
            ahead_used: 0,
            ahead_wasted: 0,
            evicted: 0,
            pins_broken: 0,
            pinned_peak: 0,
        }
    }

    /// Sets the time, in microseconds of the worker's clock.
    pub(crate) fn on_time(&mut self, now_us: u64) {
        self.now_us = self.now_us.max(now_us);
    }

    /// Records whether any flow waits for memory.
    pub(crate) fn want(&mut self, wanted: bool) {
        self.wanted = wanted;
    }

    /// All blocks.
    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Blocks that hold nothing.
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// Blocks that no flow needs.
    pub(crate) fn cached(&self) -> usize {
        self.cached.len()
    }

    /// Blocks that some flow has sent and not seen acknowledged.
    pub(crate) fn pinned(&self) -> usize {
        self.pinned_count
    }

    /// Blocks in use or pinned.
    pub(crate) fn occupied(&self) -> usize {
        self.blocks.len() - self.free.len() - self.cached.len()
    }

    /// True if [`Blocks::allocate`] would find `count` blocks.
    pub(crate) fn has_room(&self, count: usize) -> bool {
        let more = count.saturating_sub(self.free.len() + self.cached.len());
        more == 0 || self.stale().take(more).count() == more
    }

    /// Returns when more blocks become evictable than now, if nothing else happens, in
    /// microseconds.
    pub(crate) fn next_stale_us(&self) -> Option<u64> {
        let mut by_age = self.by_age.iter(&self.blocks);
        let (_, fresh) = by_age
            .find(|(_, block)| block.is_held_by_pins_only() && !block.is_stale(self.now_us))?;
        Some(fresh.stale_from_us())
    }

    fn stale(&self) -> impl Iterator<Item = BlockIndex> {
        self.by_age
            .iter(&self.blocks)
            .take_while(|(_, block)| block.is_stale(self.now_us))
            .filter(|(_, block)| block.is_held_by_pins_only())
            .map(|(index, _)| index)
    }

    /// The block of this name, if it is in memory or on its way.
    pub(crate) fn find(&self, name: BlockName) -> Option<BlockIndex> {
        self.by_name.get(&name).copied()
    }

    /// True if the block may be evicted: [`Blocks::has_room`] counts it.
    pub(crate) fn may_go(&self, index: BlockIndex) -> bool {
        let block = &self.blocks[index as usize];
        block.is_idle() && (block.pins == 0 || block.is_stale(self.now_us))
    }

    /// True if a flow that waits for memory could not have the block for a while, even if no flow
    /// used it again: it is being read, or its pins are fresh.
    pub(crate) fn is_bound(&self, index: BlockIndex) -> bool {
        let block = &self.blocks[index as usize];
        block.content == Content::Reading || (block.pins > 0 && !block.is_stale(self.now_us))
    }

    /// Adds a superpacket of `flow` as a user of a block that was found. Returns the block's last
    /// use.
    pub(crate) fn use_again(&mut self, index: BlockIndex, flow: Key) -> Before {
        let block = &self.blocks[index as usize];
        if block.is_idle() && block.pins == 0 {
            let was_used = block.since_us.is_some();
            self.cached.remove(index);
            if was_used {
                // A flow takes a cached block when its turn has come, if others wait for memory.
                self.refresh(index);
            }
        }
        let block = &mut self.blocks[index as usize];
        block.users += 1;
        let is_same = block.last_flow.replace(flow) == Some(flow);
        if std::mem::take(&mut block.ahead) {
            self.ahead_count -= 1;
            self.ahead_used += 1;
            Before::Ahead
        } else if is_same {
            Before::SameFlow
        } else {
            self.cached.on_use(index);
            Before::OtherFlow
        }
    }

    /// Takes a block for content that a superpacket of `flow` needs; the reader fills the buffer.
    ///
    /// # Panics
    /// If there is no [room](Blocks::has_room).
    pub(crate) fn allocate(&mut self, name: BlockName, flow: Key) -> (BlockIndex, Buffer) {
        let index = self
            .free
            .pop()
            .or_else(|| self.evict())
            .or_else(|| self.break_pins())
            .expect("room has been checked");
        let fingerprint = self.versions.fingerprint(name.version, name.number);
        self.cached.admit(index, fingerprint);
        self.blocks[index as usize].users = 1;
        (index, self.hand_over(index, name, flow))
    }

    /// Takes a block for content that `flow` is likely to need soon; the reader fills the buffer.
    /// `None` if enough blocks are read ahead already, or if only blocks are left whose content a
    /// flow could miss.
    pub(crate) fn allocate_ahead(
        &mut self,
        name: BlockName,
        flow: Key,
    ) -> Option<(BlockIndex, Buffer)> {
        if self.ahead_count >= self.blocks.len() / AHEAD_PART {
            return None;
        }
        let index = self.free.pop().or_else(|| {
            let blocks = &self.blocks;
            let cold = self
                .cached
                .evict_cold(|slot| !blocks[slot as usize].ahead)?;
            self.evicted += 1;
            self.forget(cold);
            Some(cold)
        })?;
        let fingerprint = self.versions.fingerprint(name.version, name.number);
        self.cached.admit_unasked(index, fingerprint);
        self.blocks[index as usize].ahead = true;
        self.ahead_count += 1;
        Some((index, self.hand_over(index, name, flow)))
    }

    /// Takes the flows whose read-ahead blocks were evicted unused since the last call.
    pub(crate) fn take_wasted(&mut self) -> impl Iterator<Item = Key> {
        self.wasted.drain(..)
    }

    /// Names a block that is in no list, and takes its buffer for the reader.
    fn hand_over(&mut self, index: BlockIndex, name: BlockName, flow: Key) -> Buffer {
        let block = &mut self.blocks[index as usize];
        block.name = Some(name);
        block.content = Content::Reading;
        block.last_flow = Some(flow);
        self.by_name.insert(name, index);
        self.versions.add_block(name.version);
        block.buffer.take().expect("an idle block has its buffer")
    }

    /// Evicts a cached block, which is then neither free nor found.
    fn evict(&mut self) -> Option<BlockIndex> {
        let index = self.cached.evict()?;
        self.evicted += 1;
        self.forget(index);
        Some(index)
    }

    /// Evicts a stale pinned block, which is then neither free nor found, and whose pins end.
    fn break_pins(&mut self) -> Option<BlockIndex> {
        let index = self.stale().next()?;
        self.pins_broken += 1;
        self.forget(index);
        Some(index)
    }

    /// Registers `flow` to be woken when the block has been read.
    pub(crate) fn wait(&mut self, index: BlockIndex, flow: Key) {
        let waiters = &mut self.blocks[index as usize].waiters;
        if waiters.last() != Some(&flow) {
            waiters.push(flow);
        }
    }

    /// Completes a read. Moves the flows that waited for it to `waiters`.
    pub(crate) fn complete(
        &mut self,
        index: BlockIndex,
        buffer: Buffer,
        valid: usize,
        failure: Option<u16>,
        waiters: &mut Vec<Key>,
    ) {
        let Some(block) = self.blocks.get_mut(index as usize) else {
            return;
        };
        block.buffer = Some(buffer);
        block.content = Content::Ready {
            valid: valid.min(BLOCK_BYTES),
            failure,
        };
        waiters.append(&mut block.waiters);
        let idle = block.users == 0;
        if failure.is_some() {
            self.forget_name(index);
        }
        if idle {
            self.put_idle(index);
        }
    }

    /// Returns the state of the content of a block in use.
    pub(crate) fn content(&self, index: BlockIndex) -> Content {
        self.blocks[index as usize].content
    }

    /// Returns the bytes of a block that has been read.
    pub(crate) fn bytes(&self, index: BlockIndex) -> &[u8] {
        let block = &self.blocks[index as usize];
        match (&block.buffer, block.content) {
            (Some(buffer), Content::Ready { valid, .. }) => &buffer[..valid],
            _ => &[],
        }
    }

    /// Removes a superpacket from the block's users.
    pub(crate) fn release(&mut self, index: BlockIndex) {
        let block = &mut self.blocks[index as usize];
        block.users -= 1;
        let idle = block.is_idle();
        if !self.wanted || block.since_us.is_none() {
            self.refresh(index);
        }
        if idle {
            self.put_idle(index);
        }
    }

    /// Starts the full time of a pin again.
    fn refresh(&mut self, index: BlockIndex) {
        if self.blocks[index as usize].since_us.is_some() {
            self.by_age.remove(&mut self.blocks, index);
        }
        self.blocks[index as usize].since_us = Some(self.now_us);
        self.by_age.push(&mut self.blocks, index);
    }

    /// Returns a reference with which a flow that sends the block can pin it; `None` if the read
    /// failed.
    pub(crate) fn to_pin(&self, index: BlockIndex) -> Option<BlockRef> {
        let block = &self.blocks[index as usize];
        block.name.map(|_| BlockRef {
            index,
            generation: block.generation,
        })
    }

    /// Pins the block for a flow that uses it.
    pub(crate) fn pin(&mut self, BlockRef { index, generation }: BlockRef) {
        let block = &mut self.blocks[index as usize];
        debug_assert!(block.users > 0, "it is in use, and so not cached");
        if block.generation == generation {
            self.pinned_count += usize::from(block.pins == 0);
            self.pinned_peak = self.pinned_peak.max(self.pinned_count);
            block.pins += 1;
        }
    }

    /// The inverse of [`Blocks::pin`], at any time.
    pub(crate) fn unpin(&mut self, BlockRef { index, generation }: BlockRef) {
        let block = &mut self.blocks[index as usize];
        if block.generation != generation || block.pins == 0 {
            return;
        }
        block.pins -= 1;
        if block.pins > 0 {
            return;
        }
        self.pinned_count -= 1;
        if block.is_idle() {
            self.put_idle(index);
        }
    }

    /// Adds the table's counts to `counters`.
    pub(crate) fn count_into(&self, counters: &mut Counters) {
        counters.blocks_evicted += self.evicted;
        counters.pins_broken += self.pins_broken;
        counters.blocks_ahead_used += self.ahead_used;
        counters.blocks_ahead_wasted += self.ahead_wasted;
        counters.blocks_pinned_max += self.pinned_peak as u64;
    }

    /// Frees or caches a block that is no longer in use, unless it is pinned.
    fn put_idle(&mut self, index: BlockIndex) {
        let block = &self.blocks[index as usize];
        let is_lost = block
            .name
            .is_none_or(|name| block.pins == 0 && !self.versions.can_be_found(name.version));
        if is_lost {
            self.forget(index);
            self.free.push(index);
        } else if block.pins == 0 {
            self.cached.push(index);
        }
    }

    /// Discards the block's content and its pins.
    fn forget(&mut self, index: BlockIndex) {
        self.forget_name(index);
        let block = &mut self.blocks[index as usize];
        block.generation = block.generation.wrapping_add(1);
        self.pinned_count -= usize::from(block.pins > 0);
        block.pins = 0;
        if block.since_us.take().is_some() {
            self.by_age.remove(&mut self.blocks, index);
        }
        let block = &mut self.blocks[index as usize];
        if std::mem::take(&mut block.ahead) {
            self.ahead_count -= 1;
            self.ahead_wasted += 1;
            self.wasted.extend(block.last_flow);
        }
    }

    fn forget_name(&mut self, index: BlockIndex) {
        if let Some(name) = self.blocks[index as usize].name.take() {
            self.by_name.remove(&name);
            self.versions.remove_block(name.version);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use contract::FileMeta;
    use proptest::prelude::*;

    use super::*;
    use crate::reader::Opened;

    /// Returns a table of `count` blocks, and a version of a file.
    fn table(count: usize) -> (Blocks, Key) {
        let mut blocks = Blocks::new(Arena::new(count).unwrap());
        let version = blocks
            .versions
            .open(&Opened::stub(FileMeta::default(), 0, true));
        (blocks, version)
    }

    fn name(version: Key, number: u64) -> BlockName {
        BlockName { version, number }
    }

    fn flow(number: u64) -> Key {
        Key::from_bits(number)
    }

    /// Allocates a block and has it read, with its number as content.
    fn read(blocks: &mut Blocks, name: BlockName) -> BlockIndex {
        let (index, mut buffer) = blocks.allocate(name, flow(0));
        buffer[..8].copy_from_slice(&name.number.to_le_bytes());
        blocks.complete(index, buffer, BLOCK_BYTES, None, &mut Vec::new());
        index
    }

    /// Has a block read, sent, and not acknowledged.
    fn read_and_pin(blocks: &mut Blocks, name: BlockName) -> BlockRef {
        let index = read(blocks, name);
        let reference = blocks.to_pin(index).unwrap();
        blocks.pin(reference);
        blocks.release(index);
        reference
    }

    #[test]
    fn a_cached_block_that_is_pinned_stays_for_its_full_time_even_if_memory_is_wanted() {
        let (mut blocks, version) = table(2);
        blocks.on_time(1);
        let index = read(&mut blocks, name(version, 0));
        blocks.release(index);
        blocks.want(true);
        let later_us = 10 * PIN_US;
        blocks.on_time(later_us);
        let index = blocks.find(name(version, 0)).unwrap();
        blocks.use_again(index, flow(1));
        blocks.pin(blocks.to_pin(index).unwrap());
        blocks.release(index);
        blocks.on_time(later_us + PIN_US - 1);
        assert!(blocks.is_bound(index));
        assert_eq!(blocks.next_stale_us(), Some(later_us + PIN_US));
        // To use it again while it is pinned gives it no more time.
        blocks.use_again(index, flow(2));
        blocks.release(index);
        blocks.on_time(later_us + PIN_US);
        assert!(blocks.may_go(index));
    }

    #[test]
    fn a_block_is_found_until_its_memory_is_wanted() {
        let (mut blocks, version) = table(3);
        for number in 0..3 {
            let index = read(&mut blocks, name(version, number));
            blocks.release(index);
        }
        // Another flow wants the first.
        let first = blocks.find(name(version, 0)).unwrap();
        blocks.use_again(first, flow(1));
        blocks.release(first);
        read(&mut blocks, name(version, 3));
        assert_eq!(blocks.find(name(version, 1)), None);
        assert!(blocks.find(name(version, 0)).is_some());
        assert!(blocks.find(name(version, 2)).is_some());
        assert_eq!((blocks.cached(), blocks.occupied()), (2, 1));
    }

    #[test]
    fn what_could_not_be_found_again_is_not_cached() {
        let (mut blocks, _) = table(2);
        let young = blocks
            .versions
            .open(&Opened::stub(FileMeta::default(), 0, false));
        let pinned = read_and_pin(&mut blocks, name(young, 0));
        let index = read(&mut blocks, name(young, 1));
        blocks.release(index);
        assert_eq!(
            blocks.cached(),
            1,
            "who has the file open may want it again"
        );
        blocks.use_again(index, flow(0));

        blocks.versions.close(young);
        blocks.release(index);
        assert_eq!((blocks.cached(), blocks.free(), blocks.pinned()), (0, 1, 1));
        blocks.unpin(pinned);
        assert_eq!((blocks.cached(), blocks.free(), blocks.pinned()), (0, 2, 0));
    }

    #[test]
    fn cached_blocks_go_before_pinned_ones_and_those_in_use_never() {
        let (mut blocks, version) = table(3);
        blocks.on_time(5);
        let reference = read_and_pin(&mut blocks, name(version, 0));
        let cached = read(&mut blocks, name(version, 1));
        blocks.release(cached);
        let _in_use = read(&mut blocks, name(version, 2));
        assert!(blocks.has_room(1) && !blocks.has_room(2));

        read(&mut blocks, name(version, 3));
        assert_eq!(blocks.find(name(version, 1)), None, "cached");
        assert!(!blocks.has_room(1), "one is pinned, and two are in use");

        // A pin holds for a second.
        assert_eq!(blocks.next_stale_us(), Some(5 + PIN_US));
        blocks.on_time(5 + PIN_US - 1);
        assert!(!blocks.has_room(1));
        blocks.on_time(5 + PIN_US);
        assert!(blocks.has_room(1) && !blocks.has_room(2));
        assert_eq!(blocks.next_stale_us(), None);
        assert_eq!(blocks.pinned(), 1);
        read(&mut blocks, name(version, 4));
        assert_eq!(blocks.find(name(version, 0)), None, "pinned");
        assert_eq!(blocks.pinned(), 0);
        // The flow's reference is stale: unpinning harms no other flow.
        blocks.unpin(reference);
        assert_eq!((blocks.pinned(), blocks.occupied()), (0, 3));
    }

    #[test]
    fn a_block_that_is_sent_again_is_pinned_afresh() {
        let (mut blocks, version) = table(1);
        read_and_pin(&mut blocks, name(version, 0));
        blocks.on_time(PIN_US - 1);
        let index = blocks.find(name(version, 0)).unwrap();
        blocks.use_again(index, flow(0));
        blocks.release(index);
        blocks.on_time(PIN_US);
        assert!(!blocks.has_room(1));
        assert_eq!(blocks.next_stale_us(), Some(2 * PIN_US - 1));
    }

    #[test]
    fn while_a_flow_waits_a_block_that_is_sent_again_gets_no_more_time() {
        let (mut blocks, version) = table(2);
        read_and_pin(&mut blocks, name(version, 0));
        blocks.want(true);
        blocks.on_time(PIN_US - 1);
        // A block that was not in memory before gets its full time.
        read_and_pin(&mut blocks, name(version, 1));
        let first = blocks.find(name(version, 0)).unwrap();
        assert!(blocks.is_bound(first));
        blocks.use_again(first, flow(0));
        blocks.on_time(PIN_US);
        assert!(!blocks.is_bound(first) && !blocks.has_room(1), "in use");
        blocks.release(first);
        assert!(blocks.has_room(1) && !blocks.has_room(2));
        assert_eq!(blocks.next_stale_us(), Some(2 * PIN_US - 1));

        blocks.want(false);
        blocks.use_again(first, flow(0));
        blocks.release(first);
        assert!(blocks.is_bound(first) && !blocks.has_room(1));
    }

    #[test]
    fn a_pinned_block_is_cached_when_the_last_flow_lets_go() {
        let (mut blocks, version) = table(1);
        let reference = read_and_pin(&mut blocks, name(version, 0));
        let index = blocks.find(name(version, 0)).unwrap();
        blocks.use_again(index, flow(1));
        blocks.pin(reference);
        blocks.release(index);
        blocks.unpin(reference);
        assert_eq!((blocks.pinned(), blocks.cached()), (1, 0));
        blocks.unpin(reference);
        assert_eq!((blocks.pinned(), blocks.cached()), (0, 1));
        assert_eq!(blocks.find(name(version, 0)), Some(index));
    }

    #[test]
    fn a_failed_block_is_not_found_again() {
        let (mut blocks, version) = table(1);
        let (index, buffer) = blocks.allocate(name(version, 0), flow(0));
        blocks.wait(index, flow(0));
        let mut waiters = Vec::new();
        blocks.complete(index, buffer, 100, Some(5), &mut waiters);
        assert_eq!(waiters, [flow(0)]);
        assert_eq!(blocks.bytes(index).len(), 100);
        assert_eq!(blocks.find(name(version, 0)), None);
        assert_eq!(blocks.to_pin(index), None);
        assert!(!blocks.has_room(1), "it is still referred to");
        blocks.release(index);
        assert!(blocks.has_room(1));
    }

    #[test]
    fn a_read_that_no_flow_waits_for_any_more_is_not_wasted() {
        let (mut blocks, version) = table(1);
        let (index, buffer) = blocks.allocate(name(version, 0), flow(0));
        blocks.release(index);
        assert!(!blocks.has_room(1), "the reader has the buffer");
        blocks.complete(index, buffer, 10, None, &mut Vec::new());
        assert!(blocks.has_room(1));
        assert_eq!(blocks.find(name(version, 0)), Some(index));
    }

    #[test]
    fn the_blocks_of_a_file_that_one_flow_reads_once_leave_those_of_a_popular_one_alone() {
        let (mut blocks, version) = table(100);
        let popular = blocks.versions.open(&Opened::stub(
            FileMeta {
                inode: 1,
                ..FileMeta::default()
            },
            0,
            true,
        ));
        for number in 0..50 {
            let index = read(&mut blocks, name(popular, number));
            blocks.use_again(index, flow(1));
            blocks.release(index);
            blocks.release(index);
        }
        for number in 0..10_000 {
            let index = read(&mut blocks, name(version, number));
            // Its window ends within the block, and something is lost: it needs the block again and
            // again.
            for _ in 0..5 {
                blocks.use_again(index, flow(0));
                blocks.release(index);
            }
            blocks.release(index);
        }
        assert!((0..50).all(|number| blocks.find(name(popular, number)).is_some()));
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// Finds or allocates.
        Use(u64),
        /// Completes a read; one in a few fails.
        Complete(prop::sample::Index, bool),
        Release(prop::sample::Index),
        Pin(prop::sample::Index),
        Unpin(prop::sample::Index),
        Later(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let index = any::<prop::sample::Index>;
        prop_oneof![
            4 => (0..12u64).prop_map(Step::Use),
            4 => (index(), prop::bool::weighted(0.2))
                .prop_map(|(i, fails)| Step::Complete(i, fails)),
            3 => index().prop_map(Step::Release),
            2 => index().prop_map(Step::Pin),
            2 => index().prop_map(Step::Unpin),
            1 => (0..PIN_US).prop_map(Step::Later),
        ]
    }

    fn take<T>(from: &mut Vec<T>, index: prop::sample::Index) -> Option<T> {
        (!from.is_empty()).then(|| from.swap_remove(index.index(from.len())))
    }

    proptest! {
        #![proptest_config(
            ProptestConfig {
                failure_persistence: None,
                ..ProptestConfig::default()
            }
        )]

        /// After any sequence of operations, a block in use keeps its content, a recently pinned
        /// block is still found, and every block is accounted for.
        #[test]
        fn blocks_in_use_stay_what_they_are(steps in prop::collection::vec(step(), 0..200)) {
            const COUNT: usize = 5;
            let (mut blocks, version) = table(COUNT);
            let mut now_us = 0;
            let mut users: Vec<(BlockIndex, u64)> = Vec::new();
            let mut reads: Vec<(BlockIndex, u64, Buffer)> = Vec::new();
            // With the number of the block.
            let mut pins: Vec<(BlockRef, u64)> = Vec::new();
            let mut broken: Vec<BlockRef> = Vec::new();
            let mut used_us = [0; 12];
            for step in steps {
                match step {
                    Step::Use(number) => {
                        if let Some(index) = blocks.find(name(version, number)) {
                            blocks.use_again(index, flow(number % 3));
                            users.push((index, number));
                        } else if blocks.has_room(1) {
                            let (index, buffer) = blocks.allocate(name(version, number), flow(0));
                            users.push((index, number));
                            reads.push((index, number, buffer));
                        }
                    }
                    Step::Complete(which, fails) => {
                        if let Some((index, number, mut buffer)) = take(&mut reads, which) {
                            buffer[..8].copy_from_slice(&number.to_le_bytes());
                            let (valid, failure) =
                                if fails { (8, Some(5)) } else { (BLOCK_BYTES, None) };
                            blocks.complete(index, buffer, valid, failure, &mut Vec::new());
                        }
                    }
                    Step::Release(which) => {
                        if let Some((index, number)) = take(&mut users, which) {
                            // One whose read failed may still be in use while another has its
                            // number.
                            if blocks.find(name(version, number)) == Some(index) {
                                used_us[number as usize] = now_us;
                            }
                            blocks.release(index);
                        }
                    }
                    Step::Pin(which) => {
                        if !users.is_empty() {
                            let (index, number) = users[which.index(users.len())];
                            let ready = matches!(blocks.content(index), Content::Ready { .. });
                            if let Some(reference) = blocks.to_pin(index).filter(|_| ready) {
                                blocks.pin(reference);
                                pins.push((reference, number));
                            }
                        }
                    }
                    Step::Unpin(which) => {
                        if let Some((reference, _)) = take(&mut pins, which) {
                            blocks.unpin(reference);
                        }
                    }
                    Step::Later(us) => {
                        now_us += us;
                        blocks.on_time(now_us);
                    }
                }

                for (index, number) in &users {
                    if let Content::Ready { .. } = blocks.content(*index) {
                        prop_assert_eq!(&blocks.bytes(*index)[..8], &number.to_le_bytes());
                    }
                }
                let mut stay: HashSet<BlockIndex> = users.iter().map(|(index, _)| *index).collect();
                stay.extend(reads.iter().map(|(index, ..)| *index));
                let (whole, torn): (Vec<_>, Vec<_>) = pins
                    .into_iter()
                    .partition(|(reference, _)| blocks.to_pin(reference.index) == Some(*reference));
                pins = whole;
                for (reference, number) in torn {
                    prop_assert!(used_us[number as usize] + PIN_US <= now_us, "block {number} was \
                        fresh");
                    broken.push(reference);
                }
                for (reference, number) in &pins {
                    if used_us[*number as usize] + PIN_US > now_us {
                        stay.insert(reference.index);
                    }
                }
                prop_assert!(blocks.has_room(COUNT - stay.len()));
                prop_assert!(!blocks.has_room(COUNT - stay.len() + 1));
            }

            // After all users and pins are gone, every block is available, and none is pinned.
            for (index, _) in users {
                blocks.release(index);
            }
            for reference in pins.into_iter().map(|(reference, _)| reference).chain(broken) {
                blocks.unpin(reference);
            }
            for (index, _, buffer) in reads {
                blocks.complete(index, buffer, 8, Some(5), &mut Vec::new());
            }
            prop_assert!(blocks.has_room(COUNT));
            prop_assert_eq!((blocks.occupied(), blocks.pinned()), (0, 0));
        }
    }
}
