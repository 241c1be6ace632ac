//! Connections that wait for the same thing: who has waited longest comes first.

use std::collections::VecDeque;

/// Places in the table of connections, each at most once: however often one asks, and however long
/// it takes, there are no more of them than the table has places.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    queue: VecDeque<usize>,
    /// Whether a place is in the queue.
    queued: Vec<bool>,
}

impl Waiting {
    /// The connection at this place waits. If it ends, the next one at its place waits instead,
    /// which does no harm.
    pub(crate) fn add(&mut self, index: usize) {
        if self.queued.len() <= index {
            self.queued.resize(index + 1, false);
        }
        if !std::mem::replace(&mut self.queued[index], true) {
            self.queue.push_back(index);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Who has waited longest, and does no more.
    pub(crate) fn take(&mut self) -> Option<usize> {
        let index = self.queue.pop_front()?;
        self.queued[index] = false;
        Some(index)
    }

    pub(crate) fn contains(&self, index: usize) -> bool {
        self.queued.get(index) == Some(&true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_again_keeps_its_turn_and_has_no_other() {
        let mut waiting = Waiting::default();
        for index in [5, 2, 5, 5, 2, 9] {
            waiting.add(index);
        }
        assert!(waiting.contains(5) && !waiting.contains(3) && !waiting.contains(99));
        assert_eq!(waiting.take(), Some(5));
        assert!(!waiting.contains(5));
        waiting.add(5);
        let rest: Vec<usize> = std::iter::from_fn(|| waiting.take()).collect();
        assert_eq!(rest, [2, 9, 5]);
    }
}
