//! Sets of descriptors by their numbers, without a lock: a bit for each number, in pages created on
//! demand and published when complete. A child of a fork never sees an incomplete page, and a
//! signal handler may call `has`.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use once_cell::race::OnceBox;

/// Covers as many descriptors as `fs.nr_open` allows by default.
const PAGES: usize = 1024;
const PAGE_WORDS: usize = 16;

type Page = [AtomicU64; PAGE_WORDS];

/// A set of descriptors by their numbers, without a lock.
#[derive(Debug)]
pub struct Numbers {
    pages: [OnceBox<Page>; PAGES],
}

/// Returns the position of a number: page, word and bit.
fn place(fd: RawFd) -> Option<(usize, usize, u64)> {
    let fd = usize::try_from(fd).ok()?;
    let (word, bit) = (fd / 64, fd % 64);
    let page = word / PAGE_WORDS;
    (page < PAGES).then_some((page, word % PAGE_WORDS, 1 << bit))
}

impl Default for Numbers {
    fn default() -> Self {
        Numbers::new()
    }
}

impl Numbers {
    /// Returns an empty set.
    pub const fn new() -> Numbers {
        Numbers {
            pages: [const { OnceBox::new() }; PAGES],
        }
    }

    /// Reports whether the set contains a number.
    pub fn has(&self, fd: RawFd) -> bool {
        let Some((page, word, bit)) = place(fd) else {
            return false;
        };
        let page = self.pages[page].get();
        page.is_some_and(|page| page[word].load(Ordering::Acquire) & bit != 0)
    }

    /// Adds a number; ignores one beyond the pages.
    pub fn insert(&self, fd: RawFd) {
        let Some((page, word, bit)) = place(fd) else {
            return;
        };
        let page = self.pages[page].get_or_init(Box::default);
        page[word].fetch_or(bit, Ordering::AcqRel);
    }

    /// Removes a number.
    pub fn remove(&self, fd: RawFd) {
        if let Some((page, word, bit)) = place(fd)
            && let Some(page) = self.pages[page].get()
        {
            page[word].fetch_and(!bit, Ordering::AcqRel);
        }
    }

    /// Removes all numbers.
    pub fn clear(&self) {
        let words = self.pages.iter().filter_map(OnceBox::get).flatten();
        words.for_each(|word| word.store(0, Ordering::Release));
    }

    /// Returns all numbers, in order.
    pub fn all(&self) -> Vec<RawFd> {
        let pages = self.pages.iter().enumerate();
        let pages = pages.filter_map(|(number, page)| Some((number * PAGE_WORDS, page.get()?)));
        let words = pages.flat_map(|(first, page)| (first..).zip(page.iter()));
        let numbers = words.flat_map(|(place, word)| {
            let word = word.load(Ordering::Acquire);
            let bits = (0..64).filter(move |bit| word & 1 << bit != 0);
            bits.map(move |bit| (place * 64 + bit) as RawFd)
        });
        numbers.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_there_until_it_is_removed() {
        let numbers = Numbers::new();
        let end = (PAGES * PAGE_WORDS * 64) as RawFd;
        for fd in [0, 63, 64, 5000, end - 1] {
            assert!(!numbers.has(fd));
            numbers.insert(fd);
            assert!(numbers.has(fd));
        }
        numbers.insert(end);
        numbers.insert(-1);
        assert_eq!(numbers.all(), [0, 63, 64, 5000, end - 1]);
        numbers.remove(63);
        numbers.remove(100_000);
        assert_eq!(numbers.all(), [0, 64, 5000, end - 1]);
        numbers.clear();
        assert_eq!(numbers.all(), []);
    }
}
