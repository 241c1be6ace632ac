//! The table: connections by flow, and by addresses and ports; and their due times.

use std::collections::HashMap;

use contract::FlowId;
use tcp::{Connection, Instant, TimeWait};
use wire::frame::TcpTemplate;

use crate::addresses::Addresses;
use crate::shrink;
use crate::slab::{Key, Slab};
use crate::timers::{NEVER_US, Timers};

/// A connection that was parted with.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) flow: FlowId,
    pub(crate) template: TcpTemplate,
    /// Time of its timer, in microseconds; [`NEVER_US`] if it has none.
    pub(crate) due_us: u64,
    pub(crate) rest: Rest,
}

/// Remaining state of a connection.
#[derive(Debug)]
pub(crate) enum Rest {
    /// One side has not closed, or has not acknowledged the other's FIN.
    Open(Box<Connection>),
    /// Old segments die out.
    TimeWait(TimeWait),
}

/// All parted connections of a worker.
#[derive(Debug)]
pub(crate) struct Table {
    entries: Slab<Entry>,
    by_flow: HashMap<FlowId, Key>,
    by_addresses: HashMap<Addresses, Key>,
    timers: Timers,
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
            timers: Timers::default(),
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

    /// True if there is no room for a connection that is not in TIME-WAIT.
    pub(crate) fn is_full(&self) -> bool {
        self.len() >= self.max || self.len() - self.time_waits >= self.open_max
    }

    pub(crate) fn by_flow(&self, flow: FlowId) -> Option<Key> {
        self.by_flow.get(&flow).copied()
    }

    pub(crate) fn by_addresses(&self, addresses: &Addresses) -> Option<Key> {
        self.by_addresses.get(addresses).copied()
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = Key> {
        self.by_flow.values().copied()
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut Entry> {
        self.entries.get_mut(key)
    }

    /// Adds an entry whose flow and addresses no other entry has.
    pub(crate) fn insert(&mut self, entry: Entry) -> Key {
        let (flow, addresses) = (entry.flow, Addresses::of(&entry.template));
        let key = self.entries.insert(entry);
        self.by_flow.insert(flow, key);
        self.by_addresses.insert(addresses, key);
        key
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<Entry> {
        let entry = self.entries.remove(key)?;
        self.timers.remove(key, entry.due_us);
        shrink::remove(&mut self.by_flow, &entry.flow);
        shrink::remove(&mut self.by_addresses, &Addresses::of(&entry.template));
        if let Rest::TimeWait(_) = entry.rest {
            self.time_waits -= 1;
        }
        Some(entry)
    }

    /// Moves a connection to TIME-WAIT.
    pub(crate) fn begin_time_wait(&mut self, key: Key, time_wait: TimeWait) {
        if let Some(entry) = self.entries.get_mut(key) {
            let before = std::mem::replace(&mut entry.rest, Rest::TimeWait(time_wait));
            self.time_waits += usize::from(matches!(before, Rest::Open(_)));
        }
    }

    /// Brings the timer of a connection up to date.
    pub(crate) fn arm(&mut self, key: Key) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        let due_us = match &entry.rest {
            Rest::Open(connection) => connection.next_timeout().map(Instant::as_us),
            Rest::TimeWait(time_wait) => Some(time_wait.expires().as_us()),
        };
        let due_us = due_us.unwrap_or(NEVER_US);
        let before_us = std::mem::replace(&mut entry.due_us, due_us);
        self.timers.change(key, before_us, due_us);
    }

    pub(crate) fn next_us(&self) -> Option<u64> {
        self.timers.next_us()
    }

    /// Takes a connection that is due; its timer is removed.
    pub(crate) fn take_due(&mut self, now_us: u64) -> Option<Key> {
        let key = self.timers.take_due(now_us)?;
        if let Some(entry) = self.entries.get_mut(key) {
            entry.due_us = NEVER_US;
        }
        Some(key)
    }
}
