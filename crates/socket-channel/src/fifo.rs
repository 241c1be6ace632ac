//! A FIFO of bytes in shared memory, at arbitrary byte positions.
//!
//! Byte `p` of the stream is byte `p % size` of the block. Words are copied whole; the producer,
//! which alone writes data, merges a word that it fills in part. So neither side needs plain memory
//! accesses, and a consumer that reads overwritten data gets wrong bytes at worst.

use shm::memory::WORD_BYTES;
use shm::sync::{AtomicU64, Ordering};

/// Words of a FIFO; their number is a power of two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fifo<'a>(&'a [AtomicU64]);

impl<'a> Fifo<'a> {
    /// Returns `None` unless the number of words is a power of two.
    pub(crate) fn new(words: &'a [AtomicU64]) -> Option<Fifo<'a>> {
        words.len().is_power_of_two().then_some(Fifo(words))
    }

    /// Returns the size in bytes.
    pub(crate) fn bytes(self) -> u64 {
        (self.0.len() * WORD_BYTES) as u64
    }

    fn word(self, index: usize) -> &'a AtomicU64 {
        &self.0[index & (self.0.len() - 1)]
    }

    /// Returns the word, not wrapped, and the byte in it, of a position.
    fn place(self, position: u64) -> (usize, usize) {
        let byte = (position & (self.bytes() - 1)) as usize;
        (byte / WORD_BYTES, byte % WORD_BYTES)
    }

    /// Returns `words` words from `start` on as two runs: up to the end of the block, and from its
    /// start.
    fn runs(self, start: usize, words: usize) -> [&'a [AtomicU64]; 2] {
        let start = start & (self.0.len() - 1);
        let first = words.min(self.0.len() - start);
        [&self.0[start..start + first], &self.0[..words - first]]
    }

    /// Writes bytes from a position on, at most the block's size.
    pub(crate) fn put(self, position: u64, bytes: &[u8]) {
        let (mut at, offset) = self.place(position);
        let mut rest = bytes;
        if offset > 0 {
            let (first, others) = rest.split_at(rest.len().min(WORD_BYTES - offset));
            self.merge(at, offset, first);
            rest = others;
            at += 1;
        }
        let (words, last) = rest.as_chunks::<WORD_BYTES>();
        let [to_end, from_beginning] = self.runs(at, words.len());
        let (before, behind) = words.split_at(to_end.len());
        put_all(to_end, before);
        put_all(from_beginning, behind);
        if !last.is_empty() {
            self.merge(at + words.len(), 0, last);
        }
    }

    /// Reads bytes from a position on, at most the block's size.
    pub(crate) fn get(self, position: u64, bytes: &mut [u8]) {
        let (mut at, offset) = self.place(position);
        let mut rest = bytes;
        if offset > 0 {
            let len = rest.len().min(WORD_BYTES - offset);
            let (first, others) = rest.split_at_mut(len);
            first.copy_from_slice(&self.load(at)[offset..offset + len]);
            rest = others;
            at += 1;
        }
        let (words, last) = rest.as_chunks_mut::<WORD_BYTES>();
        let [to_end, from_beginning] = self.runs(at, words.len());
        let (before, behind) = words.split_at_mut(to_end.len());
        get_all(to_end, before);
        get_all(from_beginning, behind);
        let last_at = at + before.len() + behind.len();
        if !last.is_empty() {
            let word = self.load(last_at);
            last.copy_from_slice(&word[..last.len()]);
        }
    }

    fn load(self, at: usize) -> [u8; WORD_BYTES] {
        self.word(at).load(Ordering::Relaxed).to_ne_bytes()
    }

    /// Writes bytes into a word, and keeps its other bytes.
    fn merge(self, at: usize, offset: usize, bytes: &[u8]) {
        let mut word = self.load(at);
        word[offset..offset + bytes.len()].copy_from_slice(bytes);
        let word = u64::from_ne_bytes(word);
        self.word(at).store(word, Ordering::Relaxed);
    }
}

/// Stores four words per iteration: compilers do not unroll loops over atomics.
#[inline]
fn put_all(to: &[AtomicU64], words: &[[u8; WORD_BYTES]]) {
    let put = |to: &AtomicU64, word: [u8; WORD_BYTES]| {
        to.store(u64::from_ne_bytes(word), Ordering::Relaxed);
    };
    let (to, to_rest) = to.as_chunks::<4>();
    let (words, words_rest) = words.as_chunks::<4>();
    for ([a, b, c, d], [w, x, y, z]) in to.iter().zip(words) {
        put(a, *w);
        put(b, *x);
        put(c, *y);
        put(d, *z);
    }
    for (to, word) in to_rest.iter().zip(words_rest) {
        put(to, *word);
    }
}

/// Loads four words per iteration.
#[inline]
fn get_all(from: &[AtomicU64], words: &mut [[u8; WORD_BYTES]]) {
    let get = |from: &AtomicU64| from.load(Ordering::Relaxed).to_ne_bytes();
    let (from, from_rest) = from.as_chunks::<4>();
    let (words, words_rest) = words.as_chunks_mut::<4>();
    for ([a, b, c, d], words) in from.iter().zip(words) {
        *words = [get(a), get(b), get(c), get(d)];
    }
    for (from, word) in from_rest.iter().zip(words_rest) {
        *word = get(from);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;
    use shm::memory::Memory;

    use super::*;

    const BYTES: usize = 64;

    fn bytes_of(fifo: Fifo<'_>) -> Vec<u8> {
        (0..BYTES / WORD_BYTES)
            .flat_map(|at| fifo.load(at))
            .collect()
    }

    proptest! {
        /// Compares with a plain ring of bytes: bytes are at their positions, and no others change.
        #[test]
        fn bytes_go_where_their_position_says(
            writes in prop::collection::vec(
                (any::<u64>(), prop::collection::vec(any::<u8>(), 0..=BYTES)),
                1..20,
            ),
        ) {
            let memory = Memory::heap(BYTES / WORD_BYTES);
            let fifo = Fifo::new(memory.words()).unwrap();
            let mut circle = [0; BYTES];
            for (position, bytes) in writes {
                fifo.put(position, &bytes);
                for (i, byte) in bytes.iter().enumerate() {
                    circle[position.wrapping_add(i as u64) as usize % BYTES] = *byte;
                }
                prop_assert_eq!(bytes_of(fifo), circle);
                let mut read = vec![0; bytes.len()];
                fifo.get(position, &mut read);
                prop_assert_eq!(read, bytes);
            }
        }
    }

    #[test]
    fn only_a_power_of_two_of_words_is_a_fifo() {
        let memory = Memory::heap(16);
        let is_fifo = |words| Fifo::new(&memory.words()[..words]).is_some();
        let right: Vec<usize> = (0..=16).filter(|words| is_fifo(*words)).collect();
        assert_eq!(right, [1, 2, 4, 8, 16]);
    }
}
