//! Connections that peers have begun, until the handshake is complete (RFC 4987).

use std::collections::{BTreeMap, BTreeSet};

use slab::Slab;
use tcp::{HalfOpen, Instant};

use crate::tables::tuple::{Tuple, TupleMap};

/// A half-open connection whose timeout has come.
#[derive(Debug)]
pub(crate) struct Due {
    pub(crate) tuple: Tuple,
    pub(crate) half_open: HalfOpen,
    repeated: Option<u64>,
}

#[derive(Debug)]
struct Entry {
    tuple: Tuple,
    half_open: HalfOpen,
    /// Its place among those whose SYN,ACK was repeated.
    repeated: Option<u64>,
}

/// The SYN queue: half-open connections, found by their addresses and ports and by the next
/// timeout. Its bound is the caller's matter.
#[derive(Debug)]
pub(crate) struct SynQueue {
    entries: Slab<Entry>,
    by_tuple: TupleMap<usize>,
    timeouts: BTreeSet<(Instant, usize)>,
    /// Those whose SYN,ACK was repeated, the oldest first.
    repeated: BTreeMap<u64, usize>,
    repeated_next: u64,
    /// Those whose SYN,ACK waits for a neighbour's address: no more than there are entries, some of
    /// which are gone.
    unsent: Vec<Tuple>,
}

impl SynQueue {
    pub(crate) fn new(secret: &[u8; 16]) -> SynQueue {
        SynQueue {
            entries: Slab::new(),
            by_tuple: TupleMap::new(secret),
            timeouts: BTreeSet::new(),
            repeated: BTreeMap::new(),
            repeated_next: 0,
            unsent: Vec::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds one whose tuple is not in the queue.
    pub(crate) fn insert(&mut self, tuple: Tuple, half_open: HalfOpen) {
        self.put(tuple, half_open, None);
    }

    /// Puts one back that was due, and whose SYN,ACK is repeated.
    pub(crate) fn insert_repeated(&mut self, due: Due) {
        let repeated = due.repeated.unwrap_or_else(|| {
            self.repeated_next += 1;
            self.repeated_next
        });
        self.put(due.tuple, due.half_open, Some(repeated));
    }

    fn put(&mut self, tuple: Tuple, half_open: HalfOpen, repeated: Option<u64>) {
        let timeout = half_open.next_timeout();
        let index = self.entries.insert(Entry {
            tuple,
            half_open,
            repeated,
        });
        self.by_tuple.insert(&tuple, index);
        self.timeouts.insert((timeout, index));
        if let Some(repeated) = repeated {
            self.repeated.insert(repeated, index);
        }
    }

    /// Removes the oldest entry whose SYN,ACK was repeated; false if there is none. A live peer
    /// answers within a round trip, before the first repetition: the other entries belong to a
    /// flood, or to a path that loses packets.
    pub(crate) fn evict_repeated(&mut self) -> bool {
        let oldest = self.repeated.first_key_value();
        let Some(tuple) = oldest.and_then(|(_, &index)| Some(self.entries.get(index)?.tuple))
        else {
            return false;
        };
        self.remove(&tuple);
        true
    }

    pub(crate) fn contains(&self, tuple: &Tuple) -> bool {
        self.by_tuple.get(tuple).is_some()
    }

    /// Returns the half-open connection of a tuple. A segment does not move its timeout.
    pub(crate) fn get_mut(&mut self, tuple: &Tuple) -> Option<&mut HalfOpen> {
        let &index = self.by_tuple.get(tuple)?;
        self.entries
            .get_mut(index)
            .map(|entry| &mut entry.half_open)
    }

    pub(crate) fn remove(&mut self, tuple: &Tuple) {
        if let Some(index) = self.by_tuple.remove(tuple) {
            let entry = self.entries.remove(index);
            self.timeouts
                .remove(&(entry.half_open.next_timeout(), index));
            if let Some(repeated) = entry.repeated {
                self.repeated.remove(&repeated);
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.by_tuple.clear();
        self.timeouts.clear();
        self.repeated.clear();
        self.unsent.clear();
    }

    /// One that is due, out of the queue: [`SynQueue::insert_repeated`] puts it back.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<Due> {
        let &(at, index) = self.timeouts.first()?;
        if at > now {
            return None;
        }
        self.timeouts.pop_first();
        let entry = self.entries.remove(index);
        self.by_tuple.remove(&entry.tuple);
        if let Some(repeated) = entry.repeated {
            self.repeated.remove(&repeated);
        }
        Some(Due {
            tuple: entry.tuple,
            half_open: entry.half_open,
            repeated: entry.repeated,
        })
    }

    /// When [`SynQueue::take_due`] should next be asked.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.timeouts.first().map(|&(at, _)| at)
    }

    /// The SYN,ACK of an entry could not be sent for want of a neighbour's address. Where those
    /// that are gone take the room, its timeout repeats it.
    pub(crate) fn wait_for_neighbor(&mut self, tuple: Tuple) {
        if self.unsent.len() < self.entries.len() {
            self.unsent.push(tuple);
        }
    }

    /// Those that have waited for a neighbour's address, some of which may be gone.
    pub(crate) fn take_waiting(&mut self) -> Vec<Tuple> {
        std::mem::take(&mut self.unsent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_a_neighbour_is_bounded_by_what_is_half_open() {
        let tuple = Tuple {
            local: "192.0.2.1:80".parse().unwrap(),
            remote: "192.0.2.7:40000".parse().unwrap(),
        };
        let syn = wire::tcp::Segment {
            header: wire::tcp::Header {
                flags: wire::tcp::Flags::SYN,
                ..Default::default()
            },
            payload: &[],
            ecn: wire::ip::Ecn::NotEct,
        };
        let mut queue = SynQueue::new(&[1; 16]);
        for _ in 0..1000 {
            let config = tcp::Config::default();
            let half_open = HalfOpen::open(&config, &syn, 1, 0, Instant::from_us(0));
            let (half_open, _) = half_open.expect("it is a SYN");
            queue.insert(tuple, half_open);
            queue.wait_for_neighbor(tuple);
            queue.remove(&tuple);
        }
        assert_eq!(queue.take_waiting(), [tuple]);
    }
}
