//! Connections in teardown by NIC stacks: their records in the host.
//!
//! A record suffices to forward a connection's frames, to hand its teardown to a successor, and to
//! take it back. It does not change until it goes: the NIC stack has the current state.

use std::collections::{VecDeque, hash_map};
use std::net::{IpAddr, SocketAddr};

use contract::FlowId;
use rustc_hash::FxHashMap;
use slab::Slab;
use tcp::Remainder;

use crate::tables::sparsity::Sparsity;
use crate::tables::tuple::{Tuple, TupleMap};

/// Lifetime of a record without a reported end, in microseconds: FIN is given up after a few
/// minutes, and FIN-WAIT-2 and TIME-WAIT take one each.
const LIFE_US_MAX: u64 = 1_800_000_000;

/// The record of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    /// The flow under which the NIC stack knows it.
    pub(crate) flow: FlowId,
    pub(crate) remainder: Remainder,
    since_us: u64,
    local: IpAddr,
    remote: IpAddr,
    ports: [u16; 2],
    /// The NIC worker that has it.
    worker: u16,
    /// Hardware address of the next hop.
    pub(crate) mac: [u8; 6],
    /// Traffic class of its packets.
    pub(crate) traffic_class: u8,
}

const _: () = assert!(size_of::<Record>() <= 128, "a hundred thousand take 13 MB");

impl Record {
    pub(crate) fn new(
        now_us: u64,
        flow: FlowId,
        tuple: &Tuple,
        mac: [u8; 6],
        worker: usize,
        remainder: Remainder,
    ) -> Record {
        Record {
            flow,
            remainder,
            since_us: now_us,
            local: tuple.local.ip(),
            remote: tuple.remote.ip(),
            ports: [tuple.local.port(), tuple.remote.port()],
            // The number fits: each NIC stack has few workers, and there are few NIC stacks.
            worker: worker as u16,
            mac,
            traffic_class: 0,
        }
    }

    pub(crate) fn tuple(&self) -> Tuple {
        Tuple {
            local: SocketAddr::new(self.local, self.ports[0]),
            remote: SocketAddr::new(self.remote, self.ports[1]),
        }
    }

    pub(crate) fn worker(&self) -> usize {
        self.worker.into()
    }
}

/// All records.
#[derive(Debug)]
pub(crate) struct Parted {
    records: Slab<Record>,
    by_flow: FxHashMap<FlowId, usize>,
    by_tuple: TupleMap<usize>,
    /// Oldest first. One that is gone is skipped.
    by_age: VecDeque<(u64, FlowId)>,
    sparsity: Sparsity,
}

impl Parted {
    pub(crate) fn new(secret: &[u8; 16]) -> Parted {
        Parted {
            records: Slab::new(),
            by_flow: FxHashMap::default(),
            by_tuple: TupleMap::new(secret),
            by_age: VecDeque::new(),
            sparsity: Sparsity::default(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    pub(crate) fn contains(&self, tuple: &Tuple) -> bool {
        self.len() > 0 && self.by_tuple.get(tuple).is_some()
    }

    /// Returns the tuples of all records.
    pub(crate) fn tuples(&self) -> impl Iterator<Item = Tuple> {
        self.records.iter().map(|(_, record)| record.tuple())
    }

    /// The record of a tuple.
    #[inline(never)]
    pub(crate) fn by_tuple(&self, tuple: &Tuple) -> Option<&Record> {
        self.records.get(*self.by_tuple.get(tuple)?)
    }

    pub(crate) fn by_flow(&self, flow: FlowId) -> Option<&Record> {
        self.records.get(*self.by_flow.get(&flow)?)
    }

    /// Adds a record with a new flow and tuple.
    pub(crate) fn insert(&mut self, record: Record) {
        let place = self.records.insert(record);
        self.by_flow.insert(record.flow, place);
        self.by_tuple.insert(&record.tuple(), place);
        if self.by_age.len() > 2 * self.records.len() + 1024 {
            let Parted {
                by_age, by_flow, ..
            } = self;
            by_age.retain(|(_, flow)| by_flow.contains_key(flow));
        }
        self.by_age.push_back((record.since_us, record.flow));
    }

    pub(crate) fn remove(&mut self, flow: FlowId) -> Option<Record> {
        self.remove_if(flow, |_| true)
    }

    /// Removes the record of a flow if it `is_one`.
    pub(crate) fn remove_if(
        &mut self,
        flow: FlowId,
        is_one: impl FnOnce(&Record) -> bool,
    ) -> Option<Record> {
        let hash_map::Entry::Occupied(found) = self.by_flow.entry(flow) else {
            return None;
        };
        if !is_one(self.records.get(*found.get())?) {
            return None;
        }
        let place = found.remove();
        let record = self.records.remove(place);
        self.by_tuple.remove(&record.tuple());
        let by_flow = &self.by_flow;
        if (self.by_age.pop_front_if(|(_, oldest)| *oldest == flow)).is_some() {
            let is_gone = |(_, oldest): &mut (u64, FlowId)| !by_flow.contains_key(oldest);
            // Behind it may be some that went before: a few at a time.
            for _ in 0..2 {
                if self.by_age.pop_front_if(is_gone).is_none() {
                    break;
                }
            }
        }
        if (self.sparsity).on_removed(self.records.len(), self.records.capacity()) {
            self.records.shrink_to_fit();
            self.by_flow.shrink_to_fit();
            self.by_tuple.shrink();
            self.by_age.shrink_to_fit();
        }
        Some(record)
    }

    /// The flows that these workers have.
    pub(crate) fn of_workers(&self, is_one: impl Fn(usize) -> bool) -> Vec<FlowId> {
        let records = self.records.iter().map(|(_, record)| record);
        let theirs = records.filter(|record| is_one(record.worker()));
        theirs.map(|record| record.flow).collect()
    }

    /// Another worker has it from now on.
    pub(crate) fn change_worker(&mut self, flow: FlowId, worker: usize) {
        if let Some(&place) = self.by_flow.get(&flow)
            && let Some(record) = self.records.get_mut(place)
        {
            record.worker = worker as u16;
        }
    }

    /// Takes out a record whose end was not reported in time.
    pub(crate) fn take_overdue(&mut self, now_us: u64) -> Option<Record> {
        while let Some(&(since_us, flow)) = self.by_age.front()
            && now_us.saturating_sub(since_us) >= LIFE_US_MAX
        {
            let is_there = (self.by_flow(flow)).is_some_and(|record| record.since_us == since_us);
            self.by_age.pop_front();
            if is_there {
                return self.remove(flow);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use tcp::Stage;

    use super::*;

    fn tuple(number: u32) -> Tuple {
        let [_, a, b, c] = number.to_be_bytes();
        Tuple {
            local: SocketAddr::from(([10, 0, 0, 1], 80)),
            remote: SocketAddr::from(([10, a, b, c], 4000)),
        }
    }

    fn record(number: u32, worker: usize) -> Record {
        let remainder = Remainder {
            stage: Stage::LastAck,
            owes_ack: false,
            fin_seq: number,
            rcv_nxt: 0,
            rcv_window_bytes: 0,
            rcv_shift: 0,
            snd_window_bytes: 0,
            snd_window_bytes_max: 0,
            snd_shift: 0,
            timestamps: None,
            srtt_us: 0,
            rttvar_us: 0,
            backoff: 0,
            user_timeout_ms: 0,
        };
        let flow = FlowId(number.into());
        Record::new(
            number.into(),
            flow,
            &tuple(number),
            [2; 6],
            worker,
            remainder,
        )
    }

    #[test]
    fn a_record_is_found_by_flow_and_tuple_until_it_goes() {
        let mut parted = Parted::new(&[7; 16]);
        for number in 0..100 {
            parted.insert(record(number, number as usize % 2));
        }
        assert_eq!(parted.of_workers(|worker| worker == 1).len(), 50);
        parted.change_worker(FlowId(7), 0);
        assert_eq!(parted.of_workers(|worker| worker == 1).len(), 49);
        let found = parted.by_tuple(&tuple(8)).unwrap();
        assert_eq!((found.flow, found.tuple()), (FlowId(8), tuple(8)));
        assert!(parted.remove(FlowId(8)).is_some());
        assert!(parted.remove(FlowId(8)).is_none());
        assert!(!parted.contains(&tuple(8)) && parted.by_flow(FlowId(8)).is_none());
        assert_eq!(parted.len(), 99);
    }

    #[test]
    fn who_is_never_heard_of_again_is_forgotten() {
        let mut parted = Parted::new(&[7; 16]);
        for number in 0..10 {
            parted.insert(record(number, 0));
        }
        parted.remove(FlowId(0));
        assert!(parted.take_overdue(LIFE_US_MAX).is_none());
        let overdue: Vec<u64> = std::iter::from_fn(|| parted.take_overdue(LIFE_US_MAX + 3))
            .map(|record| record.flow.0)
            .collect();
        assert_eq!(overdue, [1, 2, 3]);
        assert_eq!(parted.len(), 6);
    }

    #[test]
    fn the_memory_of_a_crowd_is_given_back() {
        let mut parted = Parted::new(&[7; 16]);
        for round in 0..3 {
            for number in 0..20_000 {
                parted.insert(record(round * 20_000 + number, 0));
            }
            for number in 0..20_000 {
                parted.remove(FlowId((round * 20_000 + number).into()));
            }
        }
        assert_eq!(parted.len(), 0);
        assert!(
            parted.records.capacity() <= 2048,
            "{}",
            parted.records.capacity()
        );
        parted.insert(record(1, 0));
        assert!(parted.by_age.len() < 25_000, "{}", parted.by_age.len());
    }
}
