//! Blocks: pieces of files in memory, read once for all who send them.
//!
//! A block is [`BLOCK_BYTES`] of one file version, in a preallocated buffer. At any time a block is
//!
//! * *in use*: a planned superpacket needs it. It is never given up;
//! * *retained*: sent, and not acknowledged by some flow (IO-TCP §3.5). Given up when memory is wanted
//!   and nothing is cached, the longest unused first; a retransmission would then read again;
//! * *cached*: nobody needs it. Given up first, the longest unused first;
//! * *free*: the buffer holds nothing. Used last in, first out, because the last is warm in the CPU's
//!   cache.
//!
//! A file version is (device, inode, size, mtime, ctime). An open file whose timestamps are too young to
//! tell versions apart shares its blocks with nobody. Readers give no bytes of a file that has become another
//! version since it was opened; blocks read before serve those who began with them.

use std::collections::HashMap;

use contract::FileMeta;

use crate::buffer::{BLOCK_BYTES, Buffer};
use crate::slab::{Key, Slab};

/// Names a block in its table.
pub(crate) type BlockIndex = u32;

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BlockName {
    /// Key of a version.
    pub(crate) version: Key,
    /// Position in the file, in blocks.
    pub(crate) number: u64,
}

/// A block as a flow remembers it; means nothing once the block has been given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockRef {
    index: BlockIndex,
    generation: u32,
}

/// What can be said of a block in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// The reader has the buffer.
    Reading,
    /// The first `valid` bytes are there. If that is not all, `failure` is the `errno` that says why.
    Ready { valid: usize, failure: Option<u16> },
}

/// A version of a file, known while it is open or has blocks.
#[derive(Debug)]
struct Version {
    name: Option<VersionName>,
    opens: u32,
    blocks: u32,
}

/// The metadata that tells versions apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct VersionName {
    device: u64,
    inode: u64,
    size: u64,
    mtime_ns: i64,
    ctime_ns: i64,
}

#[derive(Debug)]
struct Block {
    /// `None` while the reader has it.
    buffer: Option<Box<Buffer>>,
    /// `None` if the block is free, or if its content is not to be found by others: reading it failed.
    name: Option<BlockName>,
    content: Content,
    generation: u32,
    /// Planned superpackets that need it.
    users: u32,
    /// Flows that have sent it and not seen it acknowledged.
    retainers: u32,
    /// Flows to be told when it has been read.
    waiters: Vec<Key>,
    previous: BlockIndex,
    next: BlockIndex,
}

/// End of a list.
const NONE: BlockIndex = BlockIndex::MAX;

/// Unused blocks, the longest unused first. Links are in the blocks.
#[derive(Debug)]
struct List {
    first: BlockIndex,
    last: BlockIndex,
    len: usize,
}

impl List {
    const EMPTY: List = List {
        first: NONE,
        last: NONE,
        len: 0,
    };

    fn push(&mut self, blocks: &mut [Block], index: BlockIndex) {
        blocks[index as usize].previous = self.last;
        blocks[index as usize].next = NONE;
        match self.last {
            NONE => self.first = index,
            last => blocks[last as usize].next = index,
        }
        self.last = index;
        self.len += 1;
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
        self.len -= 1;
    }
}

/// The lists that a block without users can be on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unused {
    Cached,
    Retained,
}

impl Unused {
    fn split(self, table: &mut Blocks) -> (&mut List, &mut [Block]) {
        match self {
            Unused::Cached => (&mut table.cached, &mut table.blocks),
            Unused::Retained => (&mut table.retained, &mut table.blocks),
        }
    }

    fn push_to(self, table: &mut Blocks, index: BlockIndex) {
        let (list, blocks) = self.split(table);
        list.push(blocks, index);
    }

    fn remove_from(self, table: &mut Blocks, index: BlockIndex) {
        let (list, blocks) = self.split(table);
        list.remove(blocks, index);
    }

    fn first(self, table: &Blocks) -> BlockIndex {
        match self {
            Unused::Cached => table.cached.first,
            Unused::Retained => table.retained.first,
        }
    }
}

/// All blocks of a worker, and the file versions that they belong to.
#[derive(Debug)]
pub(crate) struct Blocks {
    blocks: Vec<Block>,
    by_name: HashMap<BlockName, BlockIndex>,
    versions: Slab<Version>,
    by_meta: HashMap<VersionName, Key>,
    free: Vec<BlockIndex>,
    retained: List,
    cached: List,
    cached_max: usize,
}

impl Blocks {
    /// `count` blocks, of which at most `cached_max` stay cached while nobody needs them.
    pub(crate) fn new(count: usize, cached_max: usize) -> Blocks {
        let count = count.min(NONE as usize);
        let blocks = (0..count)
            .map(|_| Block {
                buffer: Some(Buffer::new()),
                name: None,
                content: Content::Reading,
                generation: 0,
                users: 0,
                retainers: 0,
                waiters: Vec::new(),
                previous: NONE,
                next: NONE,
            })
            .collect();
        Blocks {
            blocks,
            by_name: HashMap::with_capacity(count),
            versions: Slab::new(),
            by_meta: HashMap::new(),
            free: (0..count as BlockIndex).rev().collect(),
            retained: List::EMPTY,
            cached: List::EMPTY,
            cached_max,
        }
    }

    /// All buffers, in the order of their blocks; to be called before any is allocated.
    pub(crate) fn buffers(&mut self) -> impl Iterator<Item = &mut Buffer> {
        self.blocks
            .iter_mut()
            .filter_map(|block| block.buffer.as_deref_mut())
    }

    /// Blocks that [`Blocks::allocate`] would find.
    pub(crate) fn available(&self) -> usize {
        self.free.len() + self.cached.len + self.retained.len
    }

    /// All blocks.
    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Blocks in use, being read or retained.
    pub(crate) fn occupied(&self) -> usize {
        self.blocks.len() - self.free.len() - self.cached.len
    }

    /// A file has been opened: which version it is.
    pub(crate) fn open_version(&mut self, meta: &FileMeta, settled: bool) -> Key {
        let name = settled.then_some(VersionName {
            device: meta.device,
            inode: meta.inode,
            size: meta.size,
            mtime_ns: meta.mtime_ns,
            ctime_ns: meta.ctime_ns,
        });
        if let Some(known) = name.and_then(|name| self.by_meta.get(&name)) {
            if let Some(version) = self.versions.get_mut(*known) {
                version.opens += 1;
            }
            return *known;
        }
        let key = self.versions.insert(Version {
            name,
            opens: 1,
            blocks: 0,
        });
        if let Some(name) = name {
            self.by_meta.insert(name, key);
        }
        key
    }

    /// The inverse of [`Blocks::open_version`]. What is cached stays cached.
    pub(crate) fn close_version(&mut self, key: Key) {
        if let Some(version) = self.versions.get_mut(key) {
            version.opens -= 1;
        }
        self.drop_unused_version(key);
    }

    fn drop_unused_version(&mut self, key: Key) {
        if let Some(version) = self.versions.get(key)
            && version.opens == 0
            && version.blocks == 0
        {
            if let Some(name) = version.name {
                self.by_meta.remove(&name);
            }
            self.versions.remove(key);
        }
    }

    /// The block of this name, if it is in memory or on its way, now with one user more.
    pub(crate) fn find(&mut self, name: BlockName) -> Option<BlockIndex> {
        let index = *self.by_name.get(&name)?;
        self.use_again(index);
        Some(index)
    }

    fn use_again(&mut self, index: BlockIndex) {
        let block = &mut self.blocks[index as usize];
        block.users += 1;
        if block.users == 1 && block.content != Content::Reading {
            self.list_of(index).remove_from(self, index);
        }
    }

    /// A block for content to be read, with one user; the reader fills the buffer.
    ///
    /// # Panics
    /// If none is [available](Blocks::available).
    pub(crate) fn allocate(&mut self, name: BlockName) -> (BlockIndex, Box<Buffer>) {
        let index = self
            .free
            .pop()
            .or_else(|| self.give_up_first(Unused::Cached))
            .or_else(|| self.give_up_first(Unused::Retained))
            .expect("availability has been checked");
        let block = &mut self.blocks[index as usize];
        block.name = Some(name);
        block.content = Content::Reading;
        block.users = 1;
        let buffer = block.buffer.take().expect("an unused block has its buffer");
        self.by_name.insert(name, index);
        if let Some(version) = self.versions.get_mut(name.version) {
            version.blocks += 1;
        }
        (index, buffer)
    }

    /// Asks that `flow` be told when the block has been read.
    pub(crate) fn wait(&mut self, index: BlockIndex, flow: Key) {
        let waiters = &mut self.blocks[index as usize].waiters;
        if waiters.last() != Some(&flow) {
            waiters.push(flow);
        }
    }

    /// A read has completed. Moves who waited for it to `waiters`.
    pub(crate) fn complete(
        &mut self,
        index: BlockIndex,
        buffer: Box<Buffer>,
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
        let unused = block.users == 0;
        if failure.is_some() {
            self.forget_name(index);
        }
        if unused {
            self.put_unused(index);
        }
    }

    /// What is known of a block in use.
    pub(crate) fn content(&self, index: BlockIndex) -> Content {
        self.blocks[index as usize].content
    }

    /// The bytes of a block that has been read.
    pub(crate) fn bytes(&self, index: BlockIndex) -> &[u8] {
        let block = &self.blocks[index as usize];
        match (&block.buffer, block.content) {
            (Some(buffer), Content::Ready { valid, .. }) => &buffer[..valid],
            _ => &[],
        }
    }

    /// A planned superpacket needs the block no more: it was not sent.
    pub(crate) fn release(&mut self, index: BlockIndex) {
        let block = &mut self.blocks[index as usize];
        block.users -= 1;
        if block.users == 0 && block.content != Content::Reading {
            self.put_unused(index);
        }
    }

    /// The block as it will be remembered by a flow that sends it; `None` if it cannot be retained.
    pub(crate) fn to_retain(&self, index: BlockIndex) -> Option<BlockRef> {
        let block = &self.blocks[index as usize];
        block.name.map(|_| BlockRef {
            index,
            generation: block.generation,
        })
    }

    /// A flow retains the block from now on.
    pub(crate) fn retain(&mut self, block: BlockRef) {
        self.change_retainers(block, 1);
    }

    /// A flow retains the block no more.
    pub(crate) fn let_go(&mut self, block: BlockRef) {
        self.change_retainers(block, -1);
    }

    fn change_retainers(&mut self, block: BlockRef, by: i32) {
        let BlockRef { index, generation } = block;
        if self.blocks[index as usize].generation != generation {
            return;
        }
        let unused = self.is_unused(index);
        if unused {
            self.list_of(index).remove_from(self, index);
        }
        let block = &mut self.blocks[index as usize];
        block.retainers = block.retainers.saturating_add_signed(by);
        if unused {
            self.put_unused(index);
        }
    }

    fn is_unused(&self, index: BlockIndex) -> bool {
        let block = &self.blocks[index as usize];
        block.users == 0 && block.content != Content::Reading
    }

    /// Puts a block where blocks without users belong.
    fn put_unused(&mut self, index: BlockIndex) {
        if self.blocks[index as usize].name.is_none() {
            self.make_free(index);
            return;
        }
        self.list_of(index).push_to(self, index);
        if self.cached.len > self.cached_max
            && let Some(oldest) = self.give_up_first(Unused::Cached)
        {
            self.free.push(oldest);
        }
    }

    fn make_free(&mut self, index: BlockIndex) {
        let block = &mut self.blocks[index as usize];
        block.generation = block.generation.wrapping_add(1);
        block.retainers = 0;
        self.free.push(index);
    }

    /// Takes the longest unused block off a list; it is neither free nor found any more.
    fn give_up_first(&mut self, list: Unused) -> Option<BlockIndex> {
        let index = list.first(self);
        if index == NONE {
            return None;
        }
        list.remove_from(self, index);
        self.forget_name(index);
        let block = &mut self.blocks[index as usize];
        block.generation = block.generation.wrapping_add(1);
        block.retainers = 0;
        Some(index)
    }

    fn forget_name(&mut self, index: BlockIndex) {
        if let Some(name) = self.blocks[index as usize].name.take() {
            self.by_name.remove(&name);
            if let Some(version) = self.versions.get_mut(name.version) {
                version.blocks -= 1;
            }
            self.drop_unused_version(name.version);
        }
    }

    fn list_of(&self, index: BlockIndex) -> Unused {
        match self.blocks[index as usize].retainers {
            0 => Unused::Cached,
            _ => Unused::Retained,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn meta(inode: u64) -> FileMeta {
        FileMeta {
            size: 1 << 30,
            inode,
            ..FileMeta::default()
        }
    }

    fn name(version: Key, number: u64) -> BlockName {
        BlockName { version, number }
    }

    /// Allocates a block and has it read, with its number as content.
    fn read(blocks: &mut Blocks, name: BlockName) -> BlockIndex {
        let (index, mut buffer) = blocks.allocate(name);
        buffer[..8].copy_from_slice(&name.number.to_le_bytes());
        blocks.complete(index, buffer, BLOCK_BYTES, None, &mut Vec::new());
        index
    }

    #[test]
    fn a_block_is_found_until_its_memory_is_wanted() {
        let mut blocks = Blocks::new(3, 3);
        let version = blocks.open_version(&meta(1), true);
        for number in 0..3 {
            let index = read(&mut blocks, name(version, number));
            blocks.release(index);
        }
        // Using the first again makes the second the longest unused.
        let first = blocks.find(name(version, 0)).unwrap();
        blocks.release(first);
        read(&mut blocks, name(version, 3));
        assert_eq!(blocks.find(name(version, 1)), None);
        assert!(blocks.find(name(version, 0)).is_some());
        assert!(blocks.find(name(version, 2)).is_some());
        assert_eq!(blocks.available(), 0);
    }

    #[test]
    fn cached_blocks_go_before_retained_ones_and_those_in_use_never() {
        let mut blocks = Blocks::new(3, 3);
        let version = blocks.open_version(&meta(1), true);
        let retained = read(&mut blocks, name(version, 0));
        let reference = blocks.to_retain(retained).unwrap();
        blocks.retain(reference);
        blocks.release(retained);
        let cached = read(&mut blocks, name(version, 1));
        blocks.release(cached);
        let _in_use = read(&mut blocks, name(version, 2));

        read(&mut blocks, name(version, 3));
        assert_eq!(blocks.find(name(version, 1)), None, "cached");
        assert_eq!(blocks.available(), 1);
        read(&mut blocks, name(version, 4));
        assert_eq!(blocks.find(name(version, 0)), None, "retained");
        assert_eq!(blocks.available(), 0);
        // The flow that retained it learns nothing, and harms nobody.
        blocks.let_go(reference);
        assert_eq!(blocks.available(), 0);
    }

    #[test]
    fn a_failed_block_is_not_found_again() {
        let mut blocks = Blocks::new(1, 1);
        let version = blocks.open_version(&meta(1), true);
        let (index, buffer) = blocks.allocate(name(version, 0));
        blocks.wait(index, version);
        let mut waiters = Vec::new();
        blocks.complete(index, buffer, 100, Some(5), &mut waiters);
        assert_eq!(waiters, [version]);
        assert_eq!(blocks.bytes(index).len(), 100);
        assert_eq!(blocks.find(name(version, 0)), None);
        assert_eq!(blocks.to_retain(index), None);
        assert_eq!(blocks.available(), 0, "somebody still looks at it");
        blocks.release(index);
        assert_eq!(blocks.available(), 1);
    }

    #[test]
    fn a_read_that_nobody_waits_for_any_more_is_not_wasted() {
        let mut blocks = Blocks::new(1, 1);
        let version = blocks.open_version(&meta(1), true);
        let (index, buffer) = blocks.allocate(name(version, 0));
        blocks.release(index);
        assert_eq!(blocks.available(), 0, "the reader has the buffer");
        blocks.complete(index, buffer, 10, None, &mut Vec::new());
        assert_eq!(blocks.available(), 1);
        assert_eq!(blocks.find(name(version, 0)), Some(index));
    }

    #[test]
    fn a_version_outlives_its_file_by_its_blocks_and_no_more() {
        let mut blocks = Blocks::new(2, 2);
        let version = blocks.open_version(&meta(1), true);
        let index = read(&mut blocks, name(version, 0));
        blocks.release(index);
        blocks.close_version(version);
        assert_eq!(blocks.open_version(&meta(1), true), version);
        blocks.close_version(version);

        let other = blocks.open_version(&meta(2), true);
        for number in 0..2 {
            read(&mut blocks, name(other, number));
        }
        assert_ne!(blocks.open_version(&meta(1), true), version);
        // One without settled timestamps is never the same.
        assert_ne!(blocks.open_version(&meta(2), false), other);
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// Finds or allocates.
        Use(u64),
        /// Completes a read; one in a few fails.
        Complete(prop::sample::Index, bool),
        Release(prop::sample::Index),
        Retain(prop::sample::Index),
        LetGo(prop::sample::Index),
    }

    fn step() -> impl Strategy<Value = Step> {
        let index = any::<prop::sample::Index>;
        prop_oneof![
            4 => (0..12u64).prop_map(Step::Use),
            4 => (index(), prop::bool::weighted(0.2)).prop_map(|(i, fails)| Step::Complete(i, fails)),
            3 => index().prop_map(Step::Release),
            2 => index().prop_map(Step::Retain),
            2 => index().prop_map(Step::LetGo),
        ]
    }

    fn take<T>(from: &mut Vec<T>, index: prop::sample::Index) -> Option<T> {
        (!from.is_empty()).then(|| from.swap_remove(index.index(from.len())))
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever is done in whatever order: a block in use keeps its content, and every block is
        /// accounted for.
        #[test]
        fn blocks_in_use_stay_what_they_are(
            steps in prop::collection::vec(step(), 0..200),
            cached_max in 0..6usize,
        ) {
            const COUNT: usize = 5;
            let mut blocks = Blocks::new(COUNT, cached_max);
            let version = blocks.open_version(&meta(1), true);
            let mut users: Vec<(BlockIndex, u64)> = Vec::new();
            let mut reads: Vec<(BlockIndex, u64, Box<Buffer>)> = Vec::new();
            let mut references: Vec<BlockRef> = Vec::new();
            for step in steps {
                match step {
                    Step::Use(number) => {
                        if let Some(index) = blocks.find(name(version, number)) {
                            users.push((index, number));
                        } else if blocks.available() > 0 {
                            let (index, buffer) = blocks.allocate(name(version, number));
                            users.push((index, number));
                            reads.push((index, number, buffer));
                        }
                    }
                    Step::Complete(which, fails) => {
                        if let Some((index, number, mut buffer)) = take(&mut reads, which) {
                            buffer[..8].copy_from_slice(&number.to_le_bytes());
                            let (valid, failure) = if fails { (8, Some(5)) } else { (BLOCK_BYTES, None) };
                            blocks.complete(index, buffer, valid, failure, &mut Vec::new());
                        }
                    }
                    Step::Release(which) => {
                        if let Some((index, _)) = take(&mut users, which) {
                            blocks.release(index);
                        }
                    }
                    Step::Retain(which) => {
                        if !users.is_empty() {
                            let (index, _) = users[which.index(users.len())];
                            let ready = matches!(blocks.content(index), Content::Ready { .. });
                            if let Some(reference) = blocks.to_retain(index).filter(|_| ready) {
                                blocks.retain(reference);
                                references.push(reference);
                            }
                        }
                    }
                    Step::LetGo(which) => {
                        if let Some(reference) = take(&mut references, which) {
                            blocks.let_go(reference);
                        }
                    }
                }

                for (index, number) in &users {
                    if let Content::Ready { .. } = blocks.content(*index) {
                        prop_assert_eq!(&blocks.bytes(*index)[..8], &number.to_le_bytes());
                    }
                }
                let mut busy: HashMap<BlockIndex, ()> = users.iter().map(|(i, _)| (*i, ())).collect();
                busy.extend(reads.iter().map(|(index, ..)| (*index, ())));
                prop_assert_eq!(blocks.available(), COUNT - busy.len());
                prop_assert!(blocks.cached.len <= cached_max);
            }

            // When all have let go, every block can be had, and nothing is retained.
            for (index, _) in users {
                blocks.release(index);
            }
            for reference in references {
                blocks.let_go(reference);
            }
            for (index, _, buffer) in reads {
                blocks.complete(index, buffer, 8, Some(5), &mut Vec::new());
            }
            prop_assert_eq!(blocks.available(), COUNT);
            prop_assert_eq!(blocks.occupied(), 0);
        }
    }
}
