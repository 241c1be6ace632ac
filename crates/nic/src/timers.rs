//! Due times of the entries of a table, each of which has one timer at most.

use std::collections::BTreeSet;

use crate::slab::Key;

/// No time: nothing is due.
pub(crate) const NEVER_US: u64 = u64::MAX;

/// Timers by time, in microseconds. An entry remembers the time of its own timer.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    by_time: BTreeSet<(u64, u64)>,
}

impl Timers {
    /// Moves the timer of an entry from a time to another.
    pub(crate) fn change(&mut self, key: Key, before_us: u64, due_us: u64) {
        if before_us == due_us {
            return;
        }
        self.remove(key, before_us);
        if due_us != NEVER_US {
            self.by_time.insert((due_us, key.to_bits()));
        }
    }

    /// Removes the timer of an entry.
    pub(crate) fn remove(&mut self, key: Key, before_us: u64) {
        self.by_time.remove(&(before_us, key.to_bits()));
    }

    /// Returns the first time.
    pub(crate) fn next_us(&self) -> Option<u64> {
        self.by_time.first().map(|&(due_us, _)| due_us)
    }

    /// Takes an entry whose time has come; its timer is removed.
    pub(crate) fn take_due(&mut self, now_us: u64) -> Option<Key> {
        let &(due_us, bits) = self.by_time.first()?;
        if due_us > now_us {
            return None;
        }
        self.by_time.pop_first();
        Some(Key::from_bits(bits))
    }
}
