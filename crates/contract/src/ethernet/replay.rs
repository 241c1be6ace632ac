//! No frame counts twice: a window over the numbers of the frames that have come (RFC 4303 §3.4.3).

/// How far a frame may be behind the highest one; older ones are taken for replayed.
const BEHIND_MAX: u64 = 1024;

const WORDS: usize = BEHIND_MAX as usize / 64;

/// Numbers that have been seen.
#[derive(Debug, Default)]
pub(super) struct ReplayWindow {
    /// The highest number plus one.
    next: u64,
    /// Bit `number % BEHIND_MAX`, for the last `BEHIND_MAX` numbers below `next`.
    seen: [u64; WORDS],
}

impl ReplayWindow {
    /// True if the number may be new. Asked before a frame is opened, since that costs more.
    pub(super) fn may_be_new(&self, number: u64) -> bool {
        number >= self.next
            || (self.next - number <= BEHIND_MAX && self.seen[word(number)] & bit(number) == 0)
    }

    /// Notes the number of a frame that has proved authentic.
    pub(super) fn note(&mut self, number: u64) {
        if number >= self.next {
            let skipped = (number - self.next).min(BEHIND_MAX);
            for old in number - skipped..number {
                self.seen[word(old)] &= !bit(old);
            }
            self.next = number.saturating_add(1);
        }
        self.seen[word(number)] |= bit(number);
    }

    /// The highest number noted.
    pub(super) fn largest(&self) -> u64 {
        self.next.saturating_sub(1)
    }
}

fn word(number: u64) -> usize {
    (number % BEHIND_MAX / 64) as usize
}

fn bit(number: u64) -> u64 {
    1 << (number % 64)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_number_counts_once_in_any_order() {
        let mut window = ReplayWindow::default();
        let mut seen = BTreeSet::new();
        // A walk that jumps ahead, falls behind and repeats itself.
        let (mut at, mut state) = (0u64, 1u64);
        for _ in 0..200_000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            at += state >> 61;
            let number = at.saturating_sub(state >> 40 & 0x7ff);
            let highest = seen.last().copied().unwrap_or(0);
            let expected = !seen.contains(&number) && number + BEHIND_MAX > highest;
            assert_eq!(
                window.may_be_new(number),
                expected,
                "{number} after {highest}"
            );
            if expected {
                window.note(number);
                seen.insert(number);
            }
        }
    }

    #[test]
    fn a_leap_forgets_what_lies_behind() {
        let mut window = ReplayWindow::default();
        window.note(5);
        window.note(u64::MAX - 1);
        assert!(!window.may_be_new(5) && !window.may_be_new(u64::MAX - 1));
        assert!(window.may_be_new(u64::MAX - 2) && window.may_be_new(u64::MAX));
        assert_eq!(window.largest(), u64::MAX - 1);
    }
}
