//! A memory file that is mapped in parts, each at its first use: for a process with a limited
//! address space (`RLIMIT_AS`), into which the whole file does not fit.
//!
//! A part stays mapped as long as this lives, so that its words may be borrowed.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use shm::memory::{Mapping, WORD_BYTES};
use shm::sync::AtomicU64;

/// Words of a part: 256 KiB.
const PART_WORDS: usize = (256 << 10) / WORD_BYTES;

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Parts {
    file: OwnedFd,
    words: usize,
    /// Start of the second of two regions, from which its parts are counted; the first starts at 0.
    second: usize,
    parts: [Box<[OnceLock<Mapping>]>; 2],
    /// Mappings of ranges that cross parts.
    large: OnceLock<Box<Large>>,
    is_short: AtomicBool,
}

/// Node of a list that only grows.
#[derive(Debug)]
struct Large {
    range: Range<usize>,
    mapping: Mapping,
    next: OnceLock<Box<Large>>,
}

impl Parts {
    /// Prepares a file of `words` words in two regions: the second starts a page.
    pub(crate) fn new(file: OwnedFd, words: usize, second: usize) -> Parts {
        let parts = |words: usize| {
            let count = words.div_ceil(PART_WORDS);
            (0..count).map(|_| OnceLock::new()).collect()
        };
        Parts {
            file,
            words,
            second,
            parts: [parts(second), parts(words - second)],
            large: OnceLock::new(),
            is_short: AtomicBool::new(false),
        }
    }

    /// Returns the file.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Reports whether a part could not be mapped.
    pub(crate) fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Relaxed)
    }

    /// Returns a range of words; `None` if it is outside the file, or cannot be mapped.
    pub(crate) fn get(&self, range: Range<usize>) -> Option<&[AtomicU64]> {
        self.map(range).ok()
    }

    /// Returns a range of words, or the error.
    pub(crate) fn map(&self, range: Range<usize>) -> io::Result<&[AtomicU64]> {
        if range.is_empty() || range.end > self.words {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let (region, start) = if range.start < self.second {
            (0, 0)
        } else {
            (1, self.second)
        };
        let end = [self.second, self.words][region];
        let (from, len) = (range.start - start, range.len());
        let (place, within) = (from / PART_WORDS, from % PART_WORDS);
        if within + len > PART_WORDS || range.end > end {
            return self.map_large(range);
        }
        let part = &self.parts[region][place];
        let mapping = match part.get() {
            Some(mapping) => mapping,
            None => {
                let first = start + place * PART_WORDS;
                let mapping = self.map_part(first..(first + PART_WORDS).min(end))?;
                // Another thread may have been faster.
                part.get_or_init(|| mapping)
            }
        };
        Ok(&mapping.words()[within..within + len])
    }

    fn map_large(&self, range: Range<usize>) -> io::Result<&[AtomicU64]> {
        let mut link = &self.large;
        loop {
            let found = match link.get() {
                Some(found) => found,
                None => {
                    let new = Large {
                        range: range.clone(),
                        mapping: self.map_part(range.clone())?,
                        next: OnceLock::new(),
                    };
                    link.get_or_init(|| Box::new(new))
                }
            };
            if found.range == range {
                return Ok(found.mapping.words());
            }
            link = &found.next;
        }
    }

    fn map_part(&self, range: Range<usize>) -> io::Result<Mapping> {
        let mapped = Mapping::part(&self.file, self.words, range);
        mapped.inspect_err(|_| self.is_short.store(true, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE_WORDS: usize = 4096 / WORD_BYTES;

    #[test]
    fn each_word_is_the_same_whatever_part_it_is_found_in() {
        let (second, words) = (PART_WORDS + PAGE_WORDS, 4 * PART_WORDS);
        let file = shm::memory::create_file(c"parts", words).unwrap();
        let whole = Mapping::new(&file, words).unwrap();
        for (place, word) in whole.words().iter().enumerate() {
            word.store(place as u64, Ordering::Relaxed);
        }
        let parts = Parts::new(file, words, second);
        let ranges = [
            0..6,
            PART_WORDS..second,
            second..second + PART_WORDS,
            // Beyond a part, twice; and up to the end.
            second..second + 2 * PART_WORDS,
            second..second + 2 * PART_WORDS,
            second + PART_WORDS..second + 2 * PART_WORDS,
            words - PAGE_WORDS..words,
        ];
        for range in ranges {
            let found = parts.get(range.clone()).unwrap();
            let found = found.iter().map(|word| word.load(Ordering::Relaxed));
            assert!(
                found.eq(range.clone().map(|place| place as u64)),
                "{range:?}"
            );
        }
        assert!(!parts.is_short());
        for beyond in [0..0, words - 1..words + 1, words..words + 1] {
            assert!(parts.get(beyond).is_none());
        }
    }

    #[test]
    fn only_what_is_used_is_mapped() {
        let words = 4096 * PART_WORDS;
        let file = shm::memory::create_file(c"parts", words).unwrap();
        let parts = Parts::new(file, words, PART_WORDS);
        let is_mapped = || {
            let of_region = parts.parts.iter().flatten();
            of_region.filter(|part| part.get().is_some()).count()
        };
        assert_eq!(is_mapped(), 0);
        parts.get(0..1).unwrap();
        parts.get(1000 * PART_WORDS..1000 * PART_WORDS + 1).unwrap();
        assert_eq!(is_mapped(), 2);
    }
}
