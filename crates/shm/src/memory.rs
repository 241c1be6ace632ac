//! Memory that two sides share, as a slice of atomic words.
//!
//! The peer may write at any time, even against the protocol. So nothing here ever hands out a
//! reference to plain bytes: every access is an atomic access to an aligned word, which is sound
//! under any writes of the other process, and compiles to an ordinary load or store.

use crate::sync::AtomicU64;

/// Bytes in a word.
pub const WORD_BYTES: usize = size_of::<u64>();

/// See the [module documentation](self).
#[derive(Debug)]
pub enum Memory {
    /// Memory of this process.
    Heap(Box<[AtomicU64]>),
    /// A memory file, shared with another process.
    #[cfg(not(loom))]
    Mapped(mapped::Mapping),
}

impl Memory {
    /// Returns zeroed memory of this process.
    pub fn heap(words: usize) -> Self {
        Memory::Heap((0..words).map(|_| AtomicU64::new(0)).collect())
    }

    /// Returns all words.
    #[inline]
    pub fn words(&self) -> &[AtomicU64] {
        match self {
            Memory::Heap(words) => words,
            #[cfg(not(loom))]
            Memory::Mapped(mapping) => mapping.words(),
        }
    }
}

#[cfg(not(loom))]
pub use mapped::{Mapping, create_file};

#[cfg(not(loom))]
mod mapped {
    use std::ffi::CStr;
    use std::io;
    use std::ops::Range;
    use std::os::fd::{AsFd, OwnedFd};
    use std::ptr::{self, NonNull};

    use rustix::fs::{MemfdFlags, SealFlags};
    use rustix::mm::{Advice, MapFlags, MlockFlags, ProtFlags};

    use super::WORD_BYTES;
    use crate::sync::AtomicU64;

    /// The file keeps its size for ever, so that no access can raise `SIGBUS`.
    const SEALS: SealFlags = SealFlags::SHRINK
        .union(SealFlags::GROW)
        .union(SealFlags::SEAL);

    /// Creates a sealed, zeroed memory file of `words` words; /proc shows it by `name`.
    pub fn create_file(name: &CStr, words: usize) -> io::Result<OwnedFd> {
        let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, (words * WORD_BYTES) as u64)?;
        rustix::fs::fcntl_add_seals(&file, SEALS)?;
        Ok(file)
    }

    /// A mapped memory file. A core dump of the process leaves it out.
    #[derive(Debug)]
    pub struct Mapping {
        start: NonNull<AtomicU64>,
        words: usize,
    }

    impl Mapping {
        /// Maps a memory file, which must have exactly `words` words and be sealed against any
        /// other size; if not, the error is of kind `InvalidData`.
        pub fn new(file: impl AsFd, words: usize) -> io::Result<Self> {
            Mapping::part(file, words, 0..words)
        }

        /// As [`Mapping::new`] for some words of a file of `words` words: the first begins a page.
        pub fn part(file: impl AsFd, words: usize, part: Range<usize>) -> io::Result<Self> {
            let bytes = words * WORD_BYTES;
            let refused = |why| Err(io::Error::new(io::ErrorKind::InvalidData, why));
            if part.is_empty() || part.end > words {
                return refused("the memory file has no such part");
            }
            match rustix::fs::fcntl_get_seals(&file) {
                Ok(seals) if seals.contains(SEALS) => {}
                Ok(_) => return refused("the memory file is not sealed"),
                Err(_) => return refused("not a memory file"),
            }
            if rustix::fs::fstat(&file)?.st_size != bytes as i64 {
                return refused("the memory file has another size");
            }
            let (offset, words) = ((part.start * WORD_BYTES) as u64, part.len());
            let bytes = words * WORD_BYTES;
            // SAFETY: a fresh mapping, at an address of the kernel's choice: it overlaps nothing.
            let start = unsafe {
                rustix::mm::mmap(
                    ptr::null_mut(),
                    bytes,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::SHARED,
                    file,
                    offset,
                )?
            };
            // SAFETY: a whole mapping of this process, of which the call changes no content.
            let _ = unsafe { rustix::mm::madvise(start, bytes, Advice::LinuxDontDump) };
            let start = NonNull::new(start.cast()).expect("mmap does not return the null page");
            Ok(Mapping { start, words })
        }

        /// As [`Mapping::new`] for memory that keys pass through: none of its pages goes to a swap
        /// device. If the process may not lock so large a memory, its pages stay unlocked.
        pub fn secret(file: impl AsFd, words: usize) -> io::Result<Self> {
            let mapping = Mapping::new(file, words)?;
            let (start, bytes) = (mapping.start.as_ptr().cast(), words * WORD_BYTES);
            // SAFETY: a whole mapping of this process, of which the call changes no content. Pages
            // are locked at first use, for rings are larger than their usual content.
            let _ = unsafe { rustix::mm::mlock_with(start, bytes, MlockFlags::ONFAULT) };
            Ok(mapping)
        }

        /// Returns all words.
        #[inline]
        pub fn words(&self) -> &[AtomicU64] {
            // SAFETY: `start` is page-aligned and maps `words` words until `self` is dropped; the
            // seals keep the file from shrinking below them. Any bits are a valid word, and other
            // processes' writes are no data race with atomic accesses.
            unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
        }
    }

    impl Drop for Mapping {
        fn drop(&mut self) {
            // SAFETY: the mapping belongs to `self` alone, and no borrow of `words` outlives
            // `self`. The call can only fail for arguments that `new` did not choose.
            let _ =
                unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.words * WORD_BYTES) };
        }
    }

    // SAFETY: the mapping belongs to the process, not to a thread.
    unsafe impl Send for Mapping {}
    // SAFETY: a shared reference gives access only to atomic words.
    unsafe impl Sync for Mapping {}
}
