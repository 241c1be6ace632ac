//! Ends of descriptors and processes, which wait for the commands sent before them.
//!
//! The kernel reports an end at once, while commands wait in rings. Each end waits until the ring
//! of each process of its application was read up to the position at which the end was noticed:
//! within the budget of turns, whether or not the rings are full.

use std::collections::VecDeque;

use socket_channel::{ChannelId, HandleId};

/// A waiting end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The last copy of a descriptor is closed.
    Handle(HandleId),
    /// A process has ended.
    Process(ChannelId),
}

/// Waiting ends, in two groups: the rings' marks belong to the first.
#[derive(Debug, Default)]
pub(crate) struct Endings {
    marked: VecDeque<Ending>,
    later: VecDeque<Ending>,
}

impl Endings {
    /// Adds an end.
    pub(crate) fn push(&mut self, ending: Ending) {
        self.later.push_back(ending);
    }

    /// Reports whether no end waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.marked.is_empty() && self.later.is_empty()
    }

    /// Starts the next group if the previous one is done; true if the rings are to be marked.
    pub(crate) fn begin(&mut self) -> bool {
        if !self.marked.is_empty() || self.later.is_empty() {
            return false;
        }
        std::mem::swap(&mut self.marked, &mut self.later);
        true
    }

    /// Returns the next end of the group; the caller has checked that the marks were passed.
    pub(crate) fn next(&mut self) -> Option<Ending> {
        let ending = self.marked.pop_front();
        if self.marked.is_empty() {
            // An ending process closes all of its descriptors at once.
            self.marked.shrink_to_fit();
        }
        ending
    }

    /// Returns the descriptors whose ends wait.
    pub(crate) fn handles(&self) -> impl Iterator<Item = HandleId> {
        let all = self.marked.iter().chain(&self.later);
        all.filter_map(|ending| match ending {
            Ending::Handle(handle) => Some(*handle),
            Ending::Process(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_that_come_meanwhile_wait_for_marks_of_their_own() {
        let handle = |number| Ending::Handle(HandleId(number));
        let mut endings = Endings::default();
        assert!(!endings.begin() && endings.is_empty());
        endings.push(handle(1));
        endings.push(Ending::Process(ChannelId(1)));
        assert!(endings.begin());
        endings.push(handle(2));
        assert!(!endings.begin());
        assert!(endings.handles().eq([HandleId(1), HandleId(2)]));
        assert_eq!(endings.next(), Some(handle(1)));
        assert_eq!(endings.next(), Some(Ending::Process(ChannelId(1))));
        assert_eq!(endings.next(), None);
        assert!(endings.begin() && !endings.begin());
        assert_eq!(endings.next(), Some(handle(2)));
        assert!(endings.is_empty());
    }
}
