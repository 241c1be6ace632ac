//! The table: splices by flow, legs by addresses and ports, and due times.

use std::collections::HashMap;

use contract::FlowId;
use contract::splicing::SpliceProgress;

use super::splice::{Side, Splice};
use crate::addresses::Addresses;
use crate::shrink;
use crate::slab::{Key, Slab};
use crate::timers::{NEVER_US, Timers};

/// A splice and its times, in microseconds; [`NEVER_US`] for never.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) flow: FlowId,
    pub(super) splice: Splice,
    /// Time of its timer. The splice may be due later meanwhile.
    due_us: u64,
    /// Time of the last segment that has passed.
    pub(super) passed_us: u64,
    pub(super) idle_us: u64,
    /// The end of its life.
    pub(super) overdue_us: u64,
    /// Time of the next report to the host.
    pub(super) report_us: u64,
    /// Bytes passed since the last report.
    pub(super) unreported_bytes: u64,
    /// End of the time in which it lingers after a RST, or has to return.
    pub(super) until_us: u64,
    /// Time before which no SYN is answered.
    pub(super) challenge_us: u64,
    /// Time of the next probe of silent peers, and the interval after that probe.
    pub(super) ask_us: u64,
    pub(super) ask_after_us: u64,
}

impl Entry {
    pub(super) fn new(flow: FlowId, splice: Splice, now_us: u64) -> Entry {
        Entry {
            flow,
            splice,
            due_us: NEVER_US,
            passed_us: now_us,
            idle_us: NEVER_US,
            overdue_us: NEVER_US,
            report_us: NEVER_US,
            unreported_bytes: 0,
            until_us: NEVER_US,
            challenge_us: 0,
            ask_us: NEVER_US,
            ask_after_us: NEVER_US,
        }
    }

    /// Returns the progress for a report to the host, which is then not due any more.
    pub(super) fn report(&mut self) -> SpliceProgress {
        self.report_us = NEVER_US;
        self.unreported_bytes = 0;
        SpliceProgress {
            flow: self.flow,
            passed_bytes: self.splice.passed_bytes(),
            has_finished: self.splice.has_finished(),
        }
    }

    fn next_us(&self) -> u64 {
        self.passed_us
            .saturating_add(self.idle_us)
            .min(self.overdue_us)
            .min(self.report_us)
            .min(self.until_us)
            .min(self.ask_us)
    }

    fn addresses(&self) -> [Addresses; 2] {
        [0, 1].map(|side| Addresses::of(self.splice.template(side)))
    }
}

/// All splices of a worker.
#[derive(Debug)]
pub(super) struct Table {
    entries: Slab<Entry>,
    by_flow: HashMap<FlowId, Key>,
    by_addresses: HashMap<Addresses, (Key, Side)>,
    timers: Timers,
    max: usize,
}

impl Table {
    pub(super) fn new(max: usize) -> Table {
        Table {
            entries: Slab::new(),
            by_flow: HashMap::new(),
            by_addresses: HashMap::new(),
            timers: Timers::default(),
            max,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= self.max
    }

    pub(super) fn by_flow(&self, flow: FlowId) -> Option<Key> {
        self.by_flow.get(&flow).copied()
    }

    pub(super) fn by_addresses(&self, addresses: &Addresses) -> Option<(Key, Side)> {
        self.by_addresses.get(addresses).copied()
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = Key> {
        self.by_flow.values().copied()
    }

    pub(super) fn get(&self, key: Key) -> Option<&Entry> {
        self.entries.get(key)
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut Entry> {
        self.entries.get_mut(key)
    }

    /// Adds an entry whose flow and addresses no other entry has.
    pub(super) fn insert(&mut self, entry: Entry) -> Key {
        let (flow, addresses) = (entry.flow, entry.addresses());
        let key = self.entries.insert(entry);
        self.by_flow.insert(flow, key);
        for (side, addresses) in addresses.into_iter().enumerate() {
            self.by_addresses.insert(addresses, (key, side));
        }
        self.arm(key);
        key
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<Entry> {
        let entry = self.entries.remove(key)?;
        self.timers.remove(key, entry.due_us);
        shrink::remove(&mut self.by_flow, &entry.flow);
        for addresses in entry.addresses() {
            shrink::remove(&mut self.by_addresses, &addresses);
        }
        Some(entry)
    }

    /// Brings the timer of an entry forward, if it is due earlier. If it is due later, the timer
    /// moves only when it fires, so that a packet moves no timer.
    pub(super) fn arm(&mut self, key: Key) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        let due_us = entry.next_us();
        if due_us < entry.due_us {
            self.timers.change(key, entry.due_us, due_us);
            entry.due_us = due_us;
        }
    }

    pub(super) fn next_us(&self) -> Option<u64> {
        self.timers.next_us()
    }

    /// Takes an entry that may be due; its timer is removed.
    pub(super) fn take_due(&mut self, now_us: u64) -> Option<Key> {
        let key = self.timers.take_due(now_us)?;
        if let Some(entry) = self.entries.get_mut(key) {
            entry.due_us = NEVER_US;
        }
        Some(key)
    }
}
