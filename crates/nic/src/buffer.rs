//! The memory that file content is read into and sent from: one mapping for each worker, cut into
//! buffers.

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Bytes in a buffer, and in a block of a file: the size of one read.
///
/// A superpacket of 64 KiB spans two blocks at most, and a direct read of this size costs about as
/// much as the device's own work.
pub const BLOCK_BYTES: usize = 64 << 10;

/// Alignment of direct reads: of memory, of file offsets and of lengths, in bytes.
pub const PAGE_BYTES: usize = 4096;

/// Bytes in a huge page. An arena of at least one huge page begins at a multiple of this size.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

const _: () = assert!(
    BLOCK_BYTES.is_multiple_of(PAGE_BYTES) && HUGE_PAGE_BYTES.is_multiple_of(BLOCK_BYTES),
    "a block is read directly, and lies in one huge page"
);

/// Kind of pages behind an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Huge pages that the administrator has set aside (`vm.nr_hugepages`).
    Huge,
    /// Ordinary memory, which the kernel makes huge pages of where it can.
    Transparent,
    /// Ordinary pages.
    Plain,
}

/// A mapping that is cut into [`Buffer`]s of [`BLOCK_BYTES`], one after the other.
///
/// The kernel allocates memory at the first write, so buffers never used cost nothing.
#[derive(Debug)]
pub struct Arena {
    region: Region,
    pages: Pages,
    too_few_huge: bool,
}

/// The place of an arena's buffers. The memory stays mapped while this, or a buffer, is held.
#[derive(Clone, Debug)]
pub struct Region(Arc<Mapping>);

/// Memory that was mapped; unmapped when it is dropped.
#[derive(Debug)]
struct Mapping {
    /// The whole mapping: the buffers, and the spare bytes before and behind them that alignment
    /// needs.
    whole: NonNull<u8>,
    whole_bytes: usize,
    /// The first buffer.
    base: NonNull<u8>,
    buffers: usize,
}

// SAFETY: The mapping itself is only an address; its memory is reached through buffers, and no two
// buffers overlap.
unsafe impl Send for Mapping {}
// SAFETY: As above: nothing can be read or written through a shared reference to the mapping.
unsafe impl Sync for Mapping {}

impl Arena {
    /// Maps memory for `buffers` buffers, in the largest pages available. Fails if the kernel does
    /// not give that much (`ENOMEM`).
    pub fn new(buffers: usize) -> io::Result<Arena> {
        Arena::with(buffers, |bytes, buffers| {
            let huge = MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB;
            Mapping::new(bytes, HUGE_PAGE_BYTES, buffers, huge)
        })
    }

    /// As [`Arena::new`]; `map_huge(bytes, buffers)` maps `bytes` of huge pages for `buffers`
    /// buffers.
    fn with(
        buffers: usize,
        map_huge: impl Fn(usize, usize) -> io::Result<Mapping>,
    ) -> io::Result<Arena> {
        let bytes = buffers.max(1).checked_mul(BLOCK_BYTES);
        let bytes = bytes.ok_or(io::ErrorKind::OutOfMemory)?;
        if bytes < HUGE_PAGE_BYTES {
            let mapping = Mapping::new(bytes, PAGE_BYTES, buffers, MapFlags::PRIVATE)?;
            return Ok(Arena::of(mapping, Pages::Plain, false));
        }
        let whole_pages = bytes
            .checked_next_multiple_of(HUGE_PAGE_BYTES)
            .ok_or(io::ErrorKind::OutOfMemory)?;
        // Fails at once if there are not that many, so it cannot fail later.
        if let Ok(mapping) = map_huge(whole_pages, buffers) {
            return Ok(Arena::of(mapping, Pages::Huge, false));
        }
        let too_few_huge = map_huge(HUGE_PAGE_BYTES, 1).is_ok();
        let mapping = Mapping::new(whole_pages, HUGE_PAGE_BYTES, buffers, MapFlags::PRIVATE)?;
        let pages = if mapping.prefer_huge_pages() {
            Pages::Transparent
        } else {
            Pages::Plain
        };
        Ok(Arena::of(mapping, pages, too_few_huge))
    }

    fn of(mapping: Mapping, pages: Pages, too_few_huge: bool) -> Arena {
        Arena {
            region: Region(Arc::new(mapping)),
            pages,
            too_few_huge,
        }
    }

    /// Returns the kind of the memory's pages.
    pub fn pages(&self) -> Pages {
        self.pages
    }

    /// True if there are free [`Pages::Huge`], but not as many as the arena would have needed.
    pub fn too_few_huge_pages(&self) -> bool {
        self.too_few_huge
    }

    /// Returns the place of the buffers, for registration with a device.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Cuts the arena into its buffers, in order.
    pub fn into_buffers(self) -> impl Iterator<Item = Buffer> {
        let region = self.region;
        (0..region.0.buffers).map(move |number| {
            // SAFETY: The mapping has `buffers` times BLOCK_BYTES from `base` on.
            let start = unsafe { region.0.base.add(number * BLOCK_BYTES) };
            Buffer {
                start,
                _region: region.clone(),
            }
        })
    }
}

impl Region {
    /// Returns the address of the first buffer; a multiple of [`PAGE_BYTES`].
    pub fn base(&self) -> *mut u8 {
        self.0.base.as_ptr()
    }

    /// Returns the length of all buffers together, in bytes. They follow each other without a gap.
    pub fn bytes(&self) -> usize {
        self.0.buffers * BLOCK_BYTES
    }
}

impl Mapping {
    /// Maps `bytes` whose first is at a multiple of `align`; the first `buffers` times
    /// [`BLOCK_BYTES`] are used.
    fn new(
        bytes: usize,
        align: usize,
        buffers: usize,
        flags: MapFlags,
    ) -> Result<Mapping, io::Error> {
        // Huge pages are aligned by themselves, and are too many by one otherwise.
        let spare = if align == PAGE_BYTES || flags.contains(MapFlags::HUGETLB) {
            0
        } else {
            align
        };
        let whole_bytes = bytes + spare;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: A new mapping at an address of the kernel's choice overlaps nothing that is in
        // use.
        let whole = unsafe { mmap_anonymous(ptr::null_mut(), whole_bytes, protection, flags) }?;
        let whole = NonNull::new(whole.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let skipped = whole.as_ptr().align_offset(align);
        debug_assert!(skipped <= spare && buffers * BLOCK_BYTES <= bytes);
        // SAFETY: `skipped` is at most `spare`, so `bytes` of the mapping are left behind it.
        let base = unsafe { whole.add(skipped) };
        Ok(Mapping {
            whole,
            whole_bytes,
            base,
            buffers,
        })
    }

    /// Asks for huge pages where the kernel can make them. True if the kernel accepts the advice.
    fn prefer_huge_pages(&self) -> bool {
        let bytes = (self.buffers * BLOCK_BYTES).next_multiple_of(HUGE_PAGE_BYTES);
        // SAFETY: The range is within the mapping (`Arena::new` has rounded it up), and the advice
        // changes nothing about its content.
        unsafe { madvise(self.base.as_ptr().cast(), bytes, Advice::LinuxHugepage) }.is_ok()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `whole` and `whole_bytes` are the mapping made in `new`. Every buffer holds the
        // mapping by an `Arc`, so no buffer is left.
        let unmapped = unsafe { munmap(self.whole.as_ptr().cast(), self.whole_bytes) };
        debug_assert!(unmapped.is_ok(), "what was mapped can be unmapped");
    }
}

/// [`BLOCK_BYTES`] of an [`Arena`], page-aligned, zero at first.
///
/// It has one owner at a time: the block table, or the reader while a read is under way. So no code
/// can look at memory that a device is still writing to.
pub struct Buffer {
    start: NonNull<u8>,
    _region: Region,
}

// SAFETY: A buffer is the only way to its bytes, like a box.
unsafe impl Send for Buffer {}
// SAFETY: Through a shared reference its bytes can only be read, like those of a box.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// A buffer in an arena of its own, for tests.
    ///
    /// # Panics
    /// If the kernel has no memory for it.
    pub fn alone() -> Buffer {
        let mut buffers = Arena::new(1).expect("memory").into_buffers();
        buffers.next().expect("an arena has a buffer")
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: The mapping has BLOCK_BYTES there, readable and zeroed or written since, and the
        // region keeps it. They belong to this buffer alone (`Arena::into_buffers` cuts each once).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), BLOCK_BYTES) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: As in `deref`, and `self` is borrowed for as long.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), BLOCK_BYTES) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Buffer")
    }
}

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Pages::Huge => "huge pages",
            Pages::Transparent => "transparent huge pages",
            Pages::Plain => "ordinary pages",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_adjacent_and_zero() {
        for count in [1, 3, 32, 33, 100] {
            let arena = Arena::new(count).unwrap();
            let base = arena.region().base() as usize;
            let bytes = arena.region().bytes();
            assert_eq!(bytes, count * BLOCK_BYTES);
            if bytes >= HUGE_PAGE_BYTES {
                assert!(base.is_multiple_of(HUGE_PAGE_BYTES));
            }
            let buffers: Vec<Buffer> = arena.into_buffers().collect();
            assert_eq!(buffers.len(), count);
            for (number, buffer) in buffers.iter().enumerate() {
                assert_eq!(buffer.as_ptr() as usize, base + number * BLOCK_BYTES);
                assert!(base.is_multiple_of(PAGE_BYTES));
                assert!(buffer.iter().all(|byte| *byte == 0));
            }
        }
    }

    #[test]
    fn a_buffer_outlives_its_arena_and_its_neighbours() {
        let mut buffers = Arena::new(40).unwrap().into_buffers();
        let (first, mut second) = (buffers.next().unwrap(), buffers.next().unwrap());
        drop(buffers);
        second.fill(7);
        drop(first);
        let second = std::thread::spawn(move || second).join().unwrap();
        assert!(second.iter().all(|byte| *byte == 7));
    }

    #[test]
    fn memory_that_is_never_used_is_never_taken() {
        let resident_pages = || -> usize {
            let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
            statm.split(' ').nth(1).unwrap().parse().unwrap()
        };
        let before = resident_pages();
        let mut buffers: Vec<Buffer> = Arena::new(8192).unwrap().into_buffers().collect();
        buffers[0].fill(1);
        // Of half a gigabyte; other tests run at the same time.
        assert!(resident_pages() < before + (256 << 20) / PAGE_BYTES);
    }

    #[test]
    fn huge_pages_are_all_or_none_and_too_few_are_noticed() {
        // Behaves as the kernel with `free` huge pages.
        let arena = |free: usize| {
            let map_huge = |bytes, buffers| {
                if bytes <= free * HUGE_PAGE_BYTES {
                    Mapping::new(bytes, HUGE_PAGE_BYTES, buffers, MapFlags::PRIVATE)
                } else {
                    Err(io::ErrorKind::OutOfMemory.into())
                }
            };
            let arena = Arena::with(3 * HUGE_PAGE_BYTES / BLOCK_BYTES, map_huge).unwrap();
            (arena.pages() == Pages::Huge, arena.too_few_huge_pages())
        };
        assert_eq!(arena(3), (true, false));
        assert_eq!(arena(2), (false, true));
        assert_eq!(arena(1), (false, true));
        assert_eq!(arena(0), (false, false));
    }

    #[test]
    fn more_than_there_can_be_is_an_error() {
        for buffers in [usize::MAX, 1 << 40] {
            let error = Arena::new(buffers).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::OutOfMemory, "{error}");
        }
    }
}
