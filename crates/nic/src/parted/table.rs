//! The table: connections by flow, and by addresses and ports; and when something is due.

use std::collections::{BTreeSet, HashMap};

use contract::FlowId;
use tcp::{Connection, Instant, TimeWait};
use wire::frame::TcpTemplate;

use crate::addresses::Addresses;
use crate::shrink;
use crate::slab::{Key, Slab};

/// A connection that was parted with.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) flow: FlowId,
    pub(crate) template: TcpTemplate,
    /// For when it is among the timers, in microseconds; `u64::MAX` if it is not.
    pub(crate) due_us: u64,
    pub(crate) rest: Rest,
}

/// What is left of it.
#[derive(Debug)]
pub(crate) enum Rest {
    /// One side has not closed, or not acknowledged that the other has.
    Open(Box<Connection>),
    /// Old segments die out.
    TimeWait(TimeWait),
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Table {
    entries: Slab<Entry>,
    by_flow: HashMap<FlowId, Key>,
    by_addresses: HashMap<Addresses, Key>,
    timers: BTreeSet<(u64, u64)>,
    time_waits: usize,
    max: usize,
    open_max: usize,
}

impl Table {
    pub(crate) fn new(max: usize, open_max: usize) -> Table {
        Table {
            entries: Slab::new(),
            by_flow: HashMap::new(),
            by_addresses: HashMap::new(),
            timers: BTreeSet::new(),
            time_waits: 0,
            max,
            open_max,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn time_waits(&self) -> usize {
        self.time_waits
    }

    /// True if there is no room for one that is not in TIME-WAIT.
    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.max || self.len() - self.time_waits >= self.open_max
    }

    pub(crate) fn by_flow(&self, flow: FlowId) -> Option<Key> {
        self.by_flow.get(&flow).copied()
    }

    pub(crate) fn by_addresses(&self, addresses: &Addresses) -> Option<Key> {
        self.by_addresses.get(addresses).copied()
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut Entry> {
        self.entries.get_mut(key)
    }

    /// Adds one whose flow and addresses no other has.
    pub(crate) fn insert(&mut self, entry: Entry) -> Key {
        let (flow, addresses) = (entry.flow, Addresses::of(&entry.template));
        let key = self.entries.insert(entry);
        self.by_flow.insert(flow, key);
        self.by_addresses.insert(addresses, key);
        key
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<Entry> {
        let entry = self.entries.remove(key)?;
        self.timers.remove(&(entry.due_us, key.to_bits()));
        shrink::remove(&mut self.by_flow, &entry.flow);
        shrink::remove(&mut self.by_addresses, &Addresses::of(&entry.template));
        if let Rest::TimeWait(_) = entry.rest {
            self.time_waits -= 1;
        }
        Some(entry)
    }

    /// One is in TIME-WAIT from now on.
    pub(crate) fn begin_time_wait(&mut self, key: Key, time_wait: TimeWait) {
        if let Some(entry) = self.entries.get_mut(key) {
            let before = std::mem::replace(&mut entry.rest, Rest::TimeWait(time_wait));
            self.time_waits += usize::from(matches!(before, Rest::Open(_)));
        }
    }

    /// Brings the timer of one up to date.
    pub(crate) fn arm(&mut self, key: Key) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        let due_us = match &entry.rest {
            Rest::Open(connection) => connection.next_timeout().map(Instant::as_us),
            Rest::TimeWait(time_wait) => Some(time_wait.expires().as_us()),
        };
        let due_us = due_us.unwrap_or(u64::MAX);
        let before_us = std::mem::replace(&mut entry.due_us, due_us);
        if before_us != due_us {
            self.timers.remove(&(before_us, key.to_bits()));
            if due_us != u64::MAX {
                self.timers.insert((due_us, key.to_bits()));
            }
        }
    }

    pub(crate) fn next_us(&self) -> Option<u64> {
        self.timers.first().map(|&(due_us, _)| due_us)
    }

    /// One for which something is due; its timer is no more.
    pub(crate) fn take_due(&mut self, now_us: u64) -> Option<Key> {
        let &(due_us, bits) = self.timers.first()?;
        if due_us > now_us {
            return None;
        }
        self.timers.pop_first();
        let key = Key::from_bits(bits);
        if let Some(entry) = self.entries.get_mut(key) {
            entry.due_us = u64::MAX;
        }
        Some(key)
    }
}
