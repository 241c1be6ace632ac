//! Text that has arrived ahead of its turn (RFC 9293 §3.10.7.4, seventh; RFC 5681 §4.2).

use std::collections::VecDeque;
use std::ops::Range;

#[derive(Debug)]
struct Fragment {
    /// Position of the first byte.
    start: u64,
    bytes: Vec<u8>,
}

impl Fragment {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    fn range(&self) -> Range<u64> {
        self.start..self.end()
    }
}

/// Fragments in order, not empty and without overlap. Where the peer sends different bytes for one
/// position, those that came first stay. The number of bytes is bounded by the window, since text
/// beyond it is cut off before it gets here; the number of fragments by the caller.
#[derive(Debug, Default)]
pub(crate) struct Reassembly {
    fragments: VecDeque<Fragment>,
}

impl Reassembly {
    pub(crate) fn is_empty(&self) -> bool {
        self.fragments.is_empty()
    }

    /// Returns the memory held for text, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let texts = self.fragments.iter();
        let texts: usize = texts.map(|fragment| fragment.bytes.capacity()).sum();
        texts + self.fragments.capacity() * size_of::<Fragment>()
    }

    /// Returns the position behind the last byte held.
    pub(crate) fn end(&self) -> Option<u64> {
        self.fragments.back().map(Fragment::end)
    }

    /// Returns the blocks of held text, adjacent fragments merged.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = Range<u64>> {
        let mut fragments = self.fragments.iter().peekable();
        std::iter::from_fn(move || {
            let Range { start, mut end } = fragments.next()?.range();
            while let Some(next) = fragments.next_if(|next| next.start == end) {
                end = next.end();
            }
            Some(start..end)
        })
    }

    /// Keeps the new part of the text, as far as `fragments_max` allows.
    pub(crate) fn insert(&mut self, mut start: u64, mut bytes: &[u8], fragments_max: usize) {
        let mut index = self.fragments.partition_point(|f| f.end() < start);
        while !bytes.is_empty() {
            // Invariant: fragments before `index` end before `start`.
            let Some(fragment) = self.fragments.get_mut(index) else {
                self.add(index, start, bytes, fragments_max);
                return;
            };
            if start < fragment.start {
                let gap = (fragment.start - start).min(bytes.len() as u64) as usize;
                let (head, tail) = bytes.split_at(gap);
                if !self.add(index, start, head, fragments_max) {
                    return;
                }
                (start, bytes) = (start + gap as u64, tail);
                index += 1;
                continue;
            }
            // The text begins within the fragment or where it ends: skip the known part, and append
            // the part up to the next fragment.
            let known = ((fragment.end() - start).min(bytes.len() as u64)) as usize;
            (start, bytes) = (start + known as u64, &bytes[known..]);
            let next_start = self
                .fragments
                .get(index + 1)
                .map_or(u64::MAX, |next| next.start);
            let room = (next_start - start).min(bytes.len() as u64) as usize;
            let (head, tail) = bytes.split_at(room);
            self.fragments[index].bytes.extend_from_slice(head);
            (start, bytes) = (start + room as u64, tail);
            index += 1;
        }
    }

    fn add(&mut self, index: usize, start: u64, bytes: &[u8], fragments_max: usize) -> bool {
        let room = self.fragments.len() < fragments_max;
        if room {
            self.fragments.insert(
                index,
                Fragment {
                    start,
                    bytes: bytes.to_vec(),
                },
            );
        }
        room
    }

    /// Takes the fragment that continues the text at `nxt`, if there is one, and returns the number
    /// of old bytes at its start. Drops fragments that are old altogether.
    pub(crate) fn pop(&mut self, nxt: u64) -> Option<(usize, Vec<u8>)> {
        while let Some(fragment) = self.fragments.front() {
            if fragment.start > nxt {
                return None;
            }
            let fragment = self.fragments.pop_front()?;
            if fragment.end() > nxt {
                return Some(((nxt - fragment.start) as usize, fragment.bytes));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn held(reassembly: &Reassembly) -> Vec<(u64, &[u8])> {
        reassembly
            .fragments
            .iter()
            .map(|f| (f.start, f.bytes.as_slice()))
            .collect()
    }

    #[test]
    fn fragments_grow_at_their_end_and_keep_their_order() {
        let mut reassembly = Reassembly::default();
        reassembly.insert(20, b"uvw", 8);
        reassembly.insert(10, b"klm", 8);
        reassembly.insert(13, b"no", 8);
        reassembly.insert(30, b"E", 8);
        assert_eq!(
            held(&reassembly),
            [(10, &b"klmno"[..]), (20, b"uvw"), (30, b"E")]
        );
        assert_eq!(reassembly.end(), Some(31));
    }

    #[test]
    fn bytes_that_came_first_stay() {
        let mut reassembly = Reassembly::default();
        reassembly.insert(12, b"BB", 8);
        reassembly.insert(16, b"DD", 8);
        reassembly.insert(10, b"xxxxxxxxxx", 8);
        let all: Vec<u8> = held(&reassembly)
            .into_iter()
            .flat_map(|(_, bytes)| bytes.to_vec())
            .collect();
        assert_eq!(all, b"xxBBxxDDxx");
        let (skip, bytes) = reassembly.pop(10).expect("the first fragment");
        assert_eq!((skip, bytes.as_slice()), (0, &b"xx"[..]));
    }

    #[test]
    fn more_fragments_than_allowed_are_not_kept() {
        let mut reassembly = Reassembly::default();
        reassembly.insert(10, b"a", 2);
        reassembly.insert(20, b"b", 2);
        reassembly.insert(30, b"c", 2);
        reassembly.insert(21, b"c", 2);
        assert_eq!(held(&reassembly), [(10, &b"a"[..]), (20, b"bc")]);
    }

    #[test]
    fn pop_takes_what_has_its_turn_and_drops_what_is_old() {
        let mut reassembly = Reassembly::default();
        reassembly.insert(10, b"abc", 8);
        reassembly.insert(20, b"uvw", 8);
        assert_eq!(reassembly.pop(9), None);
        assert_eq!(reassembly.pop(12), Some((2, b"abc".to_vec())));
        reassembly.insert(15, b"p", 8);
        assert_eq!(reassembly.pop(19), None);
        assert_eq!(reassembly.pop(30), None);
        assert!(reassembly.is_empty());
    }

    #[test]
    fn any_order_of_overlapping_pieces_gives_the_text() {
        let text: Vec<u8> = (0..200u8).collect();
        let mut random = Random::new(1);
        let mut below = |n| random.below(n);
        for _ in 0..500 {
            let mut reassembly = Reassembly::default();
            let mut have = [false; 200];
            for _ in 0..below(30) {
                let start = below(200) as usize;
                let end = (start + below(40) as usize).min(200);
                reassembly.insert(start as u64, &text[start..end], 1000);
                have[start..end].fill(true);
            }
            let mut got = [false; 200];
            for (start, bytes) in held(&reassembly) {
                for (i, byte) in bytes.iter().enumerate() {
                    assert_eq!(*byte, text[start as usize + i]);
                    assert!(!got[start as usize + i], "held twice");
                    got[start as usize + i] = true;
                }
            }
            assert_eq!(got, have);
        }
    }
}
