//! Connections that the application has closed, and that wait for their peers: their FIN has been
//! sent.
//!
//! An orphan waits for its peer: for the acknowledgment of the last bytes and of the FIN, and for
//! the peer's FIN. A peer that withholds these costs memory, retransmissions and retained content
//! until timers give up, minutes later (RFC 9293 §3.8.3, and FIN-WAIT-2 has no end at all there).
//! So their number is limited; beyond, those that have waited longest are aborted.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use crate::app::StreamId;

/// When a connection became an orphan: earlier ones have smaller numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Since(NonZeroU64);

/// All orphans, by age.
#[derive(Debug, Default)]
pub(crate) struct Orphans {
    by_age: BTreeMap<Since, StreamId>,
    last: u64,
}

impl Orphans {
    pub(crate) fn len(&self) -> usize {
        self.by_age.len()
    }

    /// A stream becomes an orphan.
    pub(crate) fn add(&mut self, stream: StreamId) -> Since {
        self.last += 1;
        let since = Since(NonZeroU64::new(self.last).expect("it counts from 1"));
        self.by_age.insert(since, stream);
        since
    }

    /// Removes an orphan that has ended.
    pub(crate) fn remove(&mut self, since: Since) {
        self.by_age.remove(&since);
    }

    /// Takes the one that has waited longest, if there are more than `max`.
    pub(crate) fn take_beyond(&mut self, max: usize) -> Option<StreamId> {
        let excess = self.by_age.len() > max;
        let (_, stream) = excess.then(|| self.by_age.pop_first()).flatten()?;
        Some(stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_the_limit_the_oldest_that_is_still_there_goes() {
        let mut orphans = Orphans::default();
        let since = [1, 2, 3, 4].map(|stream| orphans.add(StreamId(stream)));
        orphans.remove(since[0]);
        assert_eq!(orphans.take_beyond(2), Some(StreamId(2)));
        assert_eq!(orphans.take_beyond(2), None);
        // Removed twice: taken, and then forgotten.
        orphans.remove(since[1]);
        assert_eq!(orphans.len(), 2);
    }
}
