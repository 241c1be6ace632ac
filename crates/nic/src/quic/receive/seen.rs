//! Recently received packet numbers, to detect duplicates.

const WORDS: usize = 16;

/// The window, in packet numbers. Older packets are passed on: the host detects duplicates.
const WINDOW: u64 = 64 * WORDS as u64;

/// The last [`WINDOW`] packet numbers.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// One more than the largest number received.
    end: u64,
    /// A bit for each number below `end`, at its remainder.
    bits: [u64; WORDS],
}

fn place(number: u64) -> (usize, u64) {
    let bit = number % WINDOW;
    ((bit / 64) as usize, 1 << (bit % 64))
}

impl Seen {
    /// True if a number is known to be received.
    pub(super) fn contains(&self, number: u64) -> bool {
        let (word, bit) = place(number);
        number < self.end && self.end - number <= WINDOW && self.bits[word] & bit != 0
    }

    /// Records a number.
    pub(super) fn insert(&mut self, number: u64) {
        let (word, bit) = place(number);
        if number >= self.end {
            if number - self.end >= WINDOW {
                self.bits = [0; WORDS];
            } else {
                for passed in self.end..number {
                    let (word, bit) = place(passed);
                    self.bits[word] &= !bit;
                }
            }
            self.end = number + 1;
        } else if self.end - number > WINDOW {
            return;
        }
        self.bits[word] |= bit;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_has_come_is_known_until_it_is_old() {
        let mut seen = Seen::default();
        assert!(!seen.contains(0));
        seen.insert(0);
        seen.insert(5);
        assert!(seen.contains(0) && seen.contains(5) && !seen.contains(3) && !seen.contains(6));
        seen.insert(WINDOW - 1);
        assert!(seen.contains(0));
        seen.insert(WINDOW);
        assert!(!seen.contains(0), "it is forgotten");
        assert!(seen.contains(5));
        seen.insert(100 * WINDOW + 5);
        assert!(!seen.contains(5) && !seen.contains(99 * WINDOW + 6));
        seen.insert(5);
        assert!(!seen.contains(5), "what is older is not remembered");
    }

    proptest! {
        /// A set of all numbers within the window behaves the same.
        #[test]
        fn it_is_a_set_with_a_window(
            steps in prop::collection::vec((any::<bool>(), 0..3000u64), 1..400),
        ) {
            let (mut seen, mut model, mut end) = (Seen::default(), BTreeSet::new(), 0u64);
            for (is_back, by) in steps {
                let number = if is_back { end.saturating_sub(by) } else { end + by % 70 };
                let is_known = model.contains(&number) && end - number <= WINDOW;
                prop_assert_eq!(seen.contains(number), is_known);
                seen.insert(number);
                model.insert(number);
                end = end.max(number + 1);
            }
        }
    }
}
