//! The rolling replacement of all NIC processes: while one is replaced, the others serve. It ends
//! with the first failure, since the next would fare no better.

use std::collections::VecDeque;

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub(crate) struct Rolling {
    waiting: VecDeque<usize>,
    under_way: Option<usize>,
}

impl Rolling {
    /// Schedules the replacement of NIC stacks in the order of their `numbers`.
    pub(crate) fn begin(&mut self, numbers: impl IntoIterator<Item = usize>) {
        self.waiting = numbers.into_iter().collect();
        self.under_way = None;
    }

    /// Returns the NIC stack to replace now; `None` while another is being replaced, and at the
    /// end.
    pub(crate) fn next(&mut self) -> Option<usize> {
        if self.under_way.is_some() {
            return None;
        }
        self.under_way = self.waiting.pop_front();
        self.under_way
    }

    /// Records the outcome at a NIC stack. Returns those that are not replaced because it failed.
    pub(crate) fn on_outcome(&mut self, number: usize, is_done: bool) -> Vec<usize> {
        if self.under_way != Some(number) {
            return Vec::new();
        }
        self.under_way = None;
        if is_done {
            Vec::new()
        } else {
            std::mem::take(&mut self.waiting).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_waits_for_the_one_before() {
        let mut rolling = Rolling::default();
        assert_eq!(rolling.next(), None);
        rolling.begin(0..3);
        assert_eq!((rolling.next(), rolling.next()), (Some(0), None));
        // A NIC stack that was lost meanwhile and serves again is not counted.
        assert!(rolling.on_outcome(1, true).is_empty());
        assert_eq!(rolling.next(), None);
        assert!(rolling.on_outcome(0, true).is_empty());
        assert_eq!((rolling.next(), rolling.next()), (Some(1), None));
    }

    #[test]
    fn the_first_failure_ends_it() {
        let mut rolling = Rolling::default();
        rolling.begin(0..3);
        assert_eq!(rolling.next(), Some(0));
        assert_eq!(rolling.on_outcome(0, false), [1, 2]);
        assert_eq!(rolling.next(), None);
    }
}
