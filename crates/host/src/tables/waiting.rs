//! Connections that wait for the same thing, in the order in which they began to wait.

use std::collections::VecDeque;

use crate::tables::connections::ConnectionHandle;

/// Places in the table of connections, each at most once: the queue never has more entries than the
/// table has places.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    queue: VecDeque<ConnectionHandle>,
    /// Whether a place is in the queue.
    queued: Vec<bool>,
}

impl Waiting {
    /// The connection at this place waits. If it ends, the next one at its place waits instead,
    /// which does no harm.
    pub(crate) fn add(&mut self, connection: ConnectionHandle) {
        let place = connection.place();
        if self.queued.len() <= place {
            self.queued.resize(place + 1, false);
        }
        if !std::mem::replace(&mut self.queued[place], true) {
            self.queue.push_back(connection);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Removes and returns the connection that has waited longest.
    pub(crate) fn take(&mut self) -> Option<ConnectionHandle> {
        let connection = self.queue.pop_front()?;
        self.queued[connection.place()] = false;
        Some(connection)
    }

    pub(crate) fn contains(&self, connection: ConnectionHandle) -> bool {
        self.queued.get(connection.place()) == Some(&true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_again_keeps_its_turn_and_has_no_other() {
        let at = ConnectionHandle::at;
        let mut waiting = Waiting::default();
        for place in [5, 2, 5, 5, 2, 9] {
            waiting.add(at(place));
        }
        assert!(waiting.contains(at(5)));
        assert!(!waiting.contains(at(3)) && !waiting.contains(at(99)));
        assert_eq!(waiting.take(), Some(at(5)));
        assert!(!waiting.contains(at(5)));
        waiting.add(at(5));
        let rest: Vec<_> = std::iter::from_fn(|| waiting.take()).collect();
        assert_eq!(rest, [2, 9, 5].map(at));
    }
}
