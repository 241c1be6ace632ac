//! Connections that peers have begun, until the handshake is complete (RFC 4987).

use std::collections::BTreeSet;

use slab::Slab;
use tcp::{HalfOpen, Instant};

use crate::tuple::{Tuple, TupleMap};

/// The SYN queue: half-open connections, found by their addresses and ports and by the next timeout. Its bound
/// is the caller's matter.
#[derive(Debug)]
pub(crate) struct SynQueue {
    entries: Slab<(Tuple, HalfOpen)>,
    by_tuple: TupleMap<usize>,
    timeouts: BTreeSet<(Instant, usize)>,
    /// Those whose SYN,ACK waits for a neighbour's address: no more than there are entries, some of which are gone.
    unsent: Vec<Tuple>,
}

impl SynQueue {
    pub(crate) fn new(secret: &[u8; 16]) -> SynQueue {
        SynQueue {
            entries: Slab::new(),
            by_tuple: TupleMap::new(secret),
            timeouts: BTreeSet::new(),
            unsent: Vec::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Adds one whose tuple is not in the queue.
    pub(crate) fn insert(&mut self, tuple: Tuple, half_open: HalfOpen) {
        let timeout = half_open.next_timeout();
        let index = self.entries.insert((tuple, half_open));
        self.by_tuple.insert(&tuple, index);
        self.timeouts.insert((timeout, index));
    }

    /// The half-open connection of these addresses and ports. A segment does not move its timeout.
    pub(crate) fn get_mut(&mut self, tuple: &Tuple) -> Option<&mut HalfOpen> {
        let &index = self.by_tuple.get(tuple)?;
        self.entries.get_mut(index).map(|(_, half_open)| half_open)
    }

    pub(crate) fn remove(&mut self, tuple: &Tuple) {
        if let Some(index) = self.by_tuple.remove(tuple) {
            let (_, half_open) = self.entries.remove(index);
            self.timeouts.remove(&(half_open.next_timeout(), index));
        }
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.by_tuple.clear();
        self.timeouts.clear();
        self.unsent.clear();
    }

    /// One that is due, out of the queue: [`SynQueue::insert`] puts it back.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<(Tuple, HalfOpen)> {
        let &(at, index) = self.timeouts.first()?;
        if at > now {
            return None;
        }
        self.timeouts.pop_first();
        let (tuple, half_open) = self.entries.remove(index);
        self.by_tuple.remove(&tuple);
        Some((tuple, half_open))
    }

    /// When [`SynQueue::take_due`] should next be asked.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.timeouts.first().map(|&(at, _)| at)
    }

    /// The SYN,ACK of an entry could not be sent for want of a neighbour's address. Where those that are gone take
    /// the room, its timeout repeats it.
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
