//! The segment: memory that all processes of an application share with the host stack.
//!
//! | Words | Content |
//! |---|---|
//! | 0 | magic and version: [`MAGIC`] |
//! | 1 | words of the segment |
//! | 2 | maximum number of sockets |
//! | 3 | first word of the records, each of [`RECORD_WORDS`] |
//! | 4 | first word of the FIFO area |
//! | 5 | words of the FIFO area |
//!
//! All access is atomic, word by word. The header is written when the file is made; the host stack
//! never reads it.

#[cfg(not(loom))]
use std::ffi::CStr;
use std::fmt;
#[cfg(not(loom))]
use std::io;
#[cfg(not(loom))]
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use shm::memory::{Memory, WORD_BYTES};
use shm::sync::{Arc, AtomicU64, Ordering};

use crate::ids::SocketId;
#[cfg(not(loom))]
use crate::parts::Parts;
use crate::record::{RECORD_WORDS, Record};

/// Value of word 0: "swsegm", and the version of the layout.
pub const MAGIC: u64 = u64::from_be_bytes(*b"swsegm\0\x01");

/// Largest number of sockets of a segment.
pub const SOCKETS_MAX: u32 = 1 << 20;

/// Largest size of a segment, in bytes.
pub const SEGMENT_BYTES_MAX: u64 = 1 << 36;

/// Words of the header; the records follow, at a cache line of their own.
const HEADER_WORDS: usize = 64;

/// Bytes of a page: the FIFO area starts at a page.
const PAGE_BYTES: usize = 4096;
const PAGE_WORDS: usize = PAGE_BYTES / WORD_BYTES;

/// Limits granted to an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of sockets at a time.
    pub sockets_max: u32,
    /// Size of the segment, in bytes.
    pub segment_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            sockets_max: 65_536,
            segment_bytes: 256 << 20,
        }
    }
}

/// No segment with these limits can be laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadLayout;

/// Layout of a segment, in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    words: usize,
    sockets_max: u32,
    area: usize,
}

impl Layout {
    /// Computes the layout of a segment with these limits, on both sides. Fails without at least a
    /// socket and a page of FIFO area, and for limits beyond [`SOCKETS_MAX`] or
    /// [`SEGMENT_BYTES_MAX`].
    pub fn of(limits: Limits) -> Result<Layout, BadLayout> {
        let Limits {
            sockets_max,
            segment_bytes,
        } = limits;
        if !(1..=SOCKETS_MAX).contains(&sockets_max) || segment_bytes > SEGMENT_BYTES_MAX {
            return Err(BadLayout);
        }
        let words = usize::try_from(segment_bytes).map_err(|_| BadLayout)?;
        let words = words / PAGE_BYTES * PAGE_WORDS;
        let records = HEADER_WORDS + sockets_max as usize * RECORD_WORDS;
        let area = records.next_multiple_of(PAGE_WORDS);
        if area + PAGE_WORDS > words {
            return Err(BadLayout);
        }
        Ok(Layout {
            words,
            sockets_max,
            area,
        })
    }

    /// Returns the words of the segment.
    pub fn words(&self) -> usize {
        self.words
    }

    /// Returns the maximum number of sockets at a time.
    pub fn sockets_max(&self) -> u32 {
        self.sockets_max
    }

    /// Returns the size of the FIFO area, in bytes.
    pub fn area_bytes(&self) -> u64 {
        ((self.words - self.area) * WORD_BYTES) as u64
    }

    fn header(&self) -> [u64; 6] {
        let area_words = self.words - self.area;
        [
            MAGIC,
            self.words as u64,
            self.sockets_max.into(),
            HEADER_WORDS as u64,
            self.area as u64,
            area_words as u64,
        ]
    }
}

/// A piece of the FIFO area, whose size is a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Block {
    /// First word, counted from the beginning of the area.
    pub(crate) word: u32,
    /// Binary logarithm of its size in bytes.
    pub(crate) log2: u8,
}

impl Block {
    /// Returns the size in bytes.
    pub fn bytes(self) -> usize {
        1 << self.log2
    }

    /// Encodes the block for a record; never 0.
    pub(crate) fn to_raw(self) -> u64 {
        u64::from(self.word) << 8 | u64::from(self.log2)
    }

    /// Decodes a block of a record; `None` for 0, and for sizes that no area has.
    pub(crate) fn from_raw(raw: u64) -> Option<Block> {
        let log2 = raw as u8;
        let word = u32::try_from(raw >> 8).ok()?;
        (3..=40).contains(&log2).then_some(Block { word, log2 })
    }
}

/// A segment, as either side sees it. Clones share the memory.
#[derive(Clone, Debug)]
pub struct Segment {
    words: Arc<Words>,
    layout: Layout,
}

/// The memory of a segment.
#[derive(Debug)]
enum Words {
    Whole(Memory),
    #[cfg(not(loom))]
    Parts(Parts),
}

impl Segment {
    /// Makes a segment on the heap: for tests and simulation.
    pub fn in_memory(layout: Layout) -> Segment {
        let memory = Memory::heap(layout.words);
        let segment = Segment {
            words: Arc::new(Words::Whole(memory)),
            layout,
        };
        segment.write_header();
        segment
    }

    /// Makes one record and an area of `area_words`, without a header, since loom tracks each word.
    #[cfg(all(test, loom))]
    pub(crate) fn for_model(area_words: usize) -> Segment {
        let area = HEADER_WORDS + RECORD_WORDS;
        let layout = Layout {
            words: area + area_words,
            sockets_max: 1,
            area,
        };
        Segment {
            words: Arc::new(Words::Whole(Memory::heap(layout.words))),
            layout,
        }
    }

    /// Creates a memory file with an empty segment.
    #[cfg(not(loom))]
    pub fn create_file(layout: Layout) -> io::Result<OwnedFd> {
        const NAME: &CStr = c"splitway-segment";
        let file = shm::memory::create_file(NAME, layout.words)?;
        Segment::map(&file, layout)?.write_header();
        Ok(file)
    }

    /// Maps a segment's file for the host stack. A file of another size, or an unsealed one, fails
    /// with `InvalidData`.
    #[cfg(not(loom))]
    pub fn host_from_file(file: impl AsFd, layout: Layout) -> io::Result<Segment> {
        Segment::map(file, layout)
    }

    /// Maps a segment's file for an application with these limits. A header that differs from the
    /// layout, as of a host stack of another version, fails with `InvalidData`.
    #[cfg(not(loom))]
    pub fn app_from_file(file: impl AsFd, layout: Layout) -> io::Result<Segment> {
        Segment::map(file, layout)?.checked()
    }

    /// Maps a segment's file for an application with a limited address space: on demand, in parts
    /// of 256 KiB.
    #[cfg(not(loom))]
    pub fn app_in_parts(file: OwnedFd, layout: Layout) -> io::Result<Segment> {
        let parts = Parts::new(file, layout.words, layout.area);
        parts.map(0..HEADER_WORDS)?;
        let segment = Segment {
            words: Arc::new(Words::Parts(parts)),
            layout,
        };
        segment.checked()
    }

    #[cfg(not(loom))]
    fn checked(self) -> io::Result<Segment> {
        if !self.header_is_right() {
            let why = "the segment is laid out in another way";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(self)
    }

    /// Returns the file, if the segment is mapped in parts and needs it.
    #[cfg(not(loom))]
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        match &*self.words {
            Words::Whole(_) => None,
            Words::Parts(parts) => Some(parts.file()),
        }
    }

    /// Reports whether the segment is mapped in parts.
    pub(crate) fn is_in_parts(&self) -> bool {
        !matches!(&*self.words, Words::Whole(_))
    }

    /// Reports whether a part of the segment could not be mapped.
    pub(crate) fn is_short_of_memory(&self) -> bool {
        match &*self.words {
            Words::Whole(_) => false,
            #[cfg(not(loom))]
            Words::Parts(parts) => parts.is_short(),
        }
    }

    #[cfg(not(loom))]
    fn map(file: impl AsFd, layout: Layout) -> io::Result<Segment> {
        let mapping = shm::memory::Mapping::new(file, layout.words)?;
        Ok(Segment {
            words: Arc::new(Words::Whole(Memory::Mapped(mapping))),
            layout,
        })
    }

    /// Returns the layout.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns all words, for tests of misbehaving sides; none if the segment is mapped in parts.
    pub fn words(&self) -> &[AtomicU64] {
        match &*self.words {
            Words::Whole(memory) => memory.words(),
            #[cfg(not(loom))]
            Words::Parts(_) => &[],
        }
    }

    /// Returns `words` words from `start` on; `None` if they are outside the segment, or cannot be
    /// mapped.
    fn range(&self, start: usize, words: usize) -> Option<&[AtomicU64]> {
        let range = start..start.checked_add(words)?;
        match &*self.words {
            Words::Whole(memory) => memory.words().get(range),
            #[cfg(not(loom))]
            Words::Parts(parts) => parts.get(range),
        }
    }

    /// Returns the record of a socket; `None` if there is no such place.
    pub(crate) fn record(&self, id: SocketId) -> Option<Record<'_>> {
        if id.index >= self.layout.sockets_max {
            return None;
        }
        let start = HEADER_WORDS + id.index as usize * RECORD_WORDS;
        self.range(start, RECORD_WORDS)?.first_chunk().map(Record)
    }

    /// Returns the words of a block; `None` if it is outside the area.
    pub(crate) fn block(&self, block: Block) -> Option<&[AtomicU64]> {
        let start = self.layout.area.checked_add(block.word as usize)?;
        self.range(start, block.bytes() / WORD_BYTES)
    }

    fn write_header(&self) {
        for (word, value) in self.words().iter().zip(self.layout.header()) {
            word.store(value, Ordering::Relaxed);
        }
    }

    #[cfg_attr(
        loom,
        allow(dead_code, reason = "nothing is mapped under the model checker")
    )]
    fn header_is_right(&self) -> bool {
        let header = self.layout.header();
        let words = self.range(0, header.len()).into_iter().flatten();
        words.map(|word| word.load(Ordering::Relaxed)).eq(header)
    }
}

impl fmt::Display for BadLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a segment needs room for a socket and a page of FIFO behind the records")
    }
}

impl std::error::Error for BadLayout {}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn limits(sockets_max: u32, segment_bytes: u64) -> Limits {
        Limits {
            sockets_max,
            segment_bytes,
        }
    }

    #[test]
    fn the_default_has_most_of_its_memory_for_fifos() {
        let layout = Layout::of(Limits::default()).unwrap();
        assert_eq!(layout.words(), (256 << 20) / 8);
        assert_eq!(layout.sockets_max(), 65_536);
        let records = 65_536 * RECORD_WORDS as u64 * 8;
        assert_eq!(layout.area_bytes(), (256 << 20) - records - 4096);
    }

    #[test]
    fn limits_that_leave_no_room_or_are_too_large_are_refused() {
        assert!(Layout::of(limits(1, 8192)).is_ok());
        let wrong = [
            limits(0, 8192),
            limits(1, 8191),
            limits(8, 8192),
            limits(SOCKETS_MAX + 1, SEGMENT_BYTES_MAX),
            limits(1, SEGMENT_BYTES_MAX + 1),
            limits(u32::MAX, u64::MAX),
            limits(SOCKETS_MAX, 512 << 20),
        ];
        for limits in wrong {
            assert_eq!(Layout::of(limits), Err(BadLayout), "{limits:?}");
        }
    }

    #[test]
    fn places_are_inside_and_do_not_overlap() {
        let layout = Layout::of(limits(3, 64 << 10)).unwrap();
        let segment = Segment::in_memory(layout);
        let address = |word: &AtomicU64| std::ptr::from_ref(word).addr();
        let start = address(&segment.words()[0]);
        let mut last = start + HEADER_WORDS * 8;
        for index in 0..3 {
            let id = SocketId {
                index,
                generation: 1,
            };
            let Record(words) = segment.record(id).unwrap();
            assert_eq!(address(&words[0]), last);
            last += RECORD_WORDS * 8;
        }
        let beyond = SocketId {
            index: 3,
            generation: 1,
        };
        assert!(segment.record(beyond).is_none());
        let whole = Block { word: 0, log2: 15 };
        assert!(address(&segment.block(whole).unwrap()[0]) >= last);
        let beyond = [(0, 16), (4096, 15), (u32::MAX, 40)];
        for (word, log2) in beyond {
            assert!(segment.block(Block { word, log2 }).is_none(), "{word}");
        }
    }

    #[test]
    fn a_segment_of_another_layout_or_an_unsealed_file_is_refused() {
        let layout = Layout::of(limits(3, 64 << 10)).unwrap();
        let file = Segment::create_file(layout).unwrap();
        let host = Segment::host_from_file(&file, layout).unwrap();
        let app = Segment::app_from_file(&file, layout).unwrap();
        app.words()[4000].store(7, Ordering::Relaxed);
        assert_eq!(host.words()[4000].load(Ordering::Relaxed), 7);

        let kind = |result: io::Result<Segment>| result.err().map(|error| error.kind());
        let invalid = Some(io::ErrorKind::InvalidData);
        let other = Layout::of(limits(2, 64 << 10)).unwrap();
        assert_eq!(kind(Segment::app_from_file(&file, other)), invalid);
        let longer = Layout::of(limits(3, 128 << 10)).unwrap();
        assert_eq!(kind(Segment::host_from_file(&file, longer)), invalid);
        let flags = rustix::fs::MemfdFlags::ALLOW_SEALING;
        let unsealed = rustix::fs::memfd_create(c"unsealed", flags).unwrap();
        rustix::fs::ftruncate(&unsealed, 64 << 10).unwrap();
        assert_eq!(kind(Segment::host_from_file(&unsealed, layout)), invalid);
        app.words()[0].store(MAGIC + 1, Ordering::Relaxed);
        assert_eq!(kind(Segment::app_from_file(&file, layout)), invalid);
    }

    #[test]
    fn a_segment_in_parts_is_the_same_memory() {
        let layout = Layout::of(limits(1000, 2 << 20)).unwrap();
        let file = Segment::create_file(layout).unwrap();
        let host = Segment::host_from_file(&file, layout).unwrap();
        let app = Segment::app_in_parts(file, layout).unwrap();
        let id = SocketId {
            index: 999,
            generation: 1,
        };
        let (Record(ours), Record(its)) = (host.record(id).unwrap(), app.record(id).unwrap());
        its[5].store(7, Ordering::Relaxed);
        assert_eq!(ours[5].load(Ordering::Relaxed), 7);
        // One within a part, and one that crosses parts.
        for (word, log2) in [(0, 12), (1 << 16, 17), (0, 20)] {
            let block = Block { word, log2 };
            let (ours, its) = (host.block(block).unwrap(), app.block(block).unwrap());
            assert_eq!(ours.len(), its.len());
            for place in [0, its.len() - 1] {
                let value = u64::from(log2);
                its[place].store(value, Ordering::Relaxed);
                assert_eq!(ours[place].load(Ordering::Relaxed), value);
            }
        }
        let beyond = Block { word: 0, log2: 21 };
        assert!(app.block(beyond).is_none());
        assert!(!app.is_short_of_memory());
    }

    #[test]
    fn a_block_survives_its_word_and_garbage_is_none() {
        let block = Block {
            word: u32::MAX,
            log2: 20,
        };
        assert_eq!(Block::from_raw(block.to_raw()), Some(block));
        for raw in [0, 2, 41, 255, u64::MAX, 12 | 1 << 40] {
            assert_eq!(Block::from_raw(raw), None, "{raw}");
        }
    }
}
