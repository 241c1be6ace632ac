//! Seeded random numbers.

use std::ops::Range;

/// SplitMix64 (Steele, Lea and Flood, 2014). The seed determines all its numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Starts the generator of a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Splits off a generator for one subsystem, so that its draws do not shift those of others.
    pub fn fork(&mut self) -> Random {
        Random(self.next())
    }

    /// Returns a uniform number.
    #[expect(
        clippy::should_implement_trait,
        reason = "it never ends, and is no iterator"
    )]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number in `range`; its start if it is empty.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        let span = range.end.saturating_sub(range.start).max(1);
        range.start + self.next() % span
    }

    /// Returns a number in `range`, with all orders of magnitude equally likely.
    pub fn across(&mut self, range: Range<u64>) -> u64 {
        let bits = |value: u64| 64 - value.max(1).leading_zeros();
        let top = self.within(bits(range.start).into()..u64::from(bits(range.end - 1)) + 1);
        let upper = 1u64.checked_shl(top as u32).unwrap_or(u64::MAX);
        self.within((upper / 2).max(range.start)..upper.min(range.end))
    }

    /// Returns true with a probability of `ppm` in a million.
    pub fn happens(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.next() % 1_000_000 < u64::from(ppm)
    }

    /// Returns true with a probability of one in `of`.
    pub fn one_in(&mut self, of: u64) -> bool {
        self.next().is_multiple_of(of.max(1))
    }

    /// Returns a random item of `from`, which must not be empty.
    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.within(0..from.len() as u64) as usize].clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_stay_within_their_range() {
        let mut random = Random::new(1);
        for _ in 0..10_000 {
            assert!((3..9).contains(&random.within(3..9)));
            assert!((5..70_000).contains(&random.across(5..70_000)));
        }
    }

    #[test]
    fn every_order_of_magnitude_is_drawn() {
        let mut random = Random::new(2);
        let drawn: Vec<u64> = (0..1000).map(|_| random.across(1..1_000_000)).collect();
        for power in [10, 1_000, 100_000] {
            assert!(drawn.iter().filter(|&&value| value < power).count() > 50);
        }
    }
}
