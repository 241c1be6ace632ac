//! Which stream writes next (RFC 9218 §10).

use std::collections::BTreeSet;

/// Place of a stream among those that are ready: the negated priority, its turn among streams of
/// its priority, and its ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place(i64, u64, u32);

/// Streams that may have something to write.
#[derive(Debug, Default)]
pub struct Scheduler {
    ready: BTreeSet<Place>,
    turns: u64,
}

impl Scheduler {
    /// A stream of this priority is ready, and comes after the others of its priority.
    pub fn add(&mut self, stream: u32, priority: i32) -> Place {
        self.turns += 1;
        let place = Place(-i64::from(priority), self.turns, stream);
        self.ready.insert(place);
        place
    }

    /// A stream is not ready any more.
    pub fn remove(&mut self, place: Place) {
        self.ready.remove(&place);
    }

    /// The stream whose turn it is; it is not ready any more.
    pub fn pop(&mut self) -> Option<u32> {
        self.ready.pop_first().map(|Place(_, _, stream)| stream)
    }

    /// No stream is ready.
    pub fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: RFC 9218 §10
    #[test]
    fn higher_priorities_come_first_and_equal_ones_take_turns() {
        let mut scheduler = Scheduler::default();
        let gone = scheduler.add(9, 7);
        for (stream, priority) in [(1, 0), (3, 5), (5, 0), (7, i32::MIN)] {
            scheduler.add(stream, priority);
        }
        scheduler.remove(gone);
        assert_eq!(scheduler.pop(), Some(3));
        assert_eq!(scheduler.pop(), Some(1));
        scheduler.add(1, 0);
        assert_eq!(scheduler.pop(), Some(5));
        assert_eq!(scheduler.pop(), Some(1));
        assert_eq!(scheduler.pop(), Some(7));
        assert!(scheduler.is_empty() && scheduler.pop().is_none());
    }
}
