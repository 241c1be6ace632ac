//! Splices: two connections each that a NIC stack has joined, or is about to.

use std::collections::HashMap;

use contract::FlowId;
use slab::Slab;
use tcp::JoinNumbers;

use crate::app::StreamId;
use crate::splicing::SpliceLimits;
use crate::tables::sparsity::Sparsity;
use crate::tables::tuple::{Tuple, TupleMap};

/// One of the two connections of a splice.
pub(crate) type Side = usize;

/// The place of a splice in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(usize);

/// How far a splice has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The connections become quiet.
    Joining,
    /// A NIC worker has the connections.
    Joined,
    /// The NIC worker has to return the connections.
    Returning,
}

/// One of the two connections.
#[derive(Debug)]
pub(crate) struct Leg {
    pub(crate) stream: StreamId,
    pub(crate) tuple: Tuple,
    /// Hardware address of the next hop.
    pub(crate) mac: [u8; 6],
    /// Traffic class of its packets.
    pub(crate) traffic_class: u8,
    /// Its sequence numbers at the join.
    pub(crate) numbers: Option<JoinNumbers>,
    /// Sequence number behind a FIN of the peer that went to the NIC worker.
    pub(crate) fin_end: Option<u32>,
    /// The application's timer before the join.
    pub(crate) app_deadline_us: Option<u64>,
    /// The application has released it, and gets no more events.
    pub(crate) is_let_go: bool,
}

/// A splice.
#[derive(Debug)]
pub(crate) struct Splice {
    pub(crate) legs: [Leg; 2],
    pub(crate) stage: Stage,
    /// The NIC worker that has it.
    pub(crate) worker: usize,
    pub(crate) limits: SpliceLimits,
    /// Frames with new bytes or flags that arrived during the join, by leg.
    pub(crate) held: Vec<(Side, Box<[u8]>)>,
    /// Bytes of `held`.
    pub(crate) held_bytes: usize,
    /// Bytes of each leg that the host has moved to the other one.
    pub(crate) moved_bytes: [u64; 2],
    /// Bytes that the NIC stack has forwarded, per leg, in its last report.
    pub(crate) passed_bytes: [u64; 2],
    /// It was handed to a further NIC worker: more bytes may have passed than were reported.
    pub(crate) is_again: bool,
}

impl Splice {
    /// Its name in the contract.
    pub(crate) fn flow(&self) -> FlowId {
        FlowId(self.legs[0].stream.0)
    }

    /// Bytes of each leg that have gone to the other one.
    pub(crate) fn bytes(&self) -> [u64; 2] {
        [0, 1].map(|side| self.moved_bytes[side] + self.passed_bytes[side])
    }
}

/// All splices of a shard.
#[derive(Debug)]
pub(crate) struct Splices {
    splices: Slab<Box<Splice>>,
    by_stream: HashMap<StreamId, (Place, Side)>,
    by_tuple: TupleMap<(Place, Side)>,
    /// Bytes of all frames that are held.
    held_bytes: usize,
    sparsity: Sparsity,
}

/// Most bytes of frames that a splice holds: about a peer's burst within a round trip.
const HELD_BYTES_MAX: usize = 256 << 10;

/// Most bytes of frames that all splices hold.
const ALL_HELD_BYTES_MAX: usize = 16 << 20;

impl Splices {
    pub(crate) fn new(secret: &[u8; 16]) -> Splices {
        Splices {
            splices: Slab::new(),
            by_stream: HashMap::new(),
            by_tuple: TupleMap::new(secret),
            held_bytes: 0,
            sparsity: Sparsity::default(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.splices.len()
    }

    pub(crate) fn contains(&self, tuple: &Tuple) -> bool {
        self.len() > 0 && self.by_tuple.get(tuple).is_some()
    }

    /// Both connections of each.
    pub(crate) fn tuples(&self) -> impl Iterator<Item = Tuple> {
        let splices = self.splices.iter();
        splices.flat_map(|(_, splice)| splice.legs.each_ref().map(|leg| leg.tuple))
    }

    pub(crate) fn by_tuple(&self, tuple: &Tuple) -> Option<(Place, Side)> {
        self.by_tuple.get(tuple).copied()
    }

    pub(crate) fn by_stream(&self, stream: StreamId) -> Option<(Place, Side)> {
        self.by_stream.get(&stream).copied()
    }

    /// The splice of this name.
    pub(crate) fn by_flow(&self, flow: FlowId) -> Option<Place> {
        let (place, side) = self.by_stream(StreamId(flow.0))?;
        (side == 0).then_some(place)
    }

    pub(crate) fn get(&self, place: Place) -> Option<&Splice> {
        self.splices.get(place.0).map(Box::as_ref)
    }

    pub(crate) fn get_mut(&mut self, place: Place) -> Option<&mut Splice> {
        self.splices.get_mut(place.0).map(Box::as_mut)
    }

    /// Adds one whose streams and tuples no other has.
    pub(crate) fn insert(&mut self, splice: Splice) -> Place {
        let place = Place(self.splices.vacant_key());
        for (side, leg) in splice.legs.iter().enumerate() {
            self.by_stream.insert(leg.stream, (place, side));
            self.by_tuple.insert(&leg.tuple, (place, side));
        }
        self.splices.insert(Box::new(splice));
        place
    }

    pub(crate) fn remove(&mut self, place: Place) -> Option<Box<Splice>> {
        let splice = self.splices.try_remove(place.0)?;
        for leg in &splice.legs {
            self.by_stream.remove(&leg.stream);
            self.by_tuple.remove(&leg.tuple);
        }
        self.held_bytes -= splice.held_bytes;
        if (self.sparsity).on_removed(self.splices.len(), self.splices.capacity()) {
            self.splices.shrink_to_fit();
            self.by_stream.shrink_to_fit();
            self.by_tuple.shrink();
        }
        Some(splice)
    }

    /// Holds a frame of a leg. False if there is no room: it is as if it had been lost.
    pub(crate) fn hold(&mut self, place: Place, side: Side, frame: &[u8]) -> bool {
        let Some(splice) = self.splices.get_mut(place.0) else {
            return false;
        };
        let has_room = splice.held_bytes + frame.len() <= HELD_BYTES_MAX
            && self.held_bytes + frame.len() <= ALL_HELD_BYTES_MAX;
        if has_room {
            splice.held.push((side, frame.into()));
            splice.held_bytes += frame.len();
            self.held_bytes += frame.len();
        }
        has_room
    }

    /// The frames that a splice has held, in order.
    pub(crate) fn take_held(&mut self, place: Place) -> Vec<(Side, Box<[u8]>)> {
        let Some(splice) = self.splices.get_mut(place.0) else {
            return Vec::new();
        };
        self.held_bytes -= std::mem::take(&mut splice.held_bytes);
        std::mem::take(&mut splice.held)
    }

    /// Those that NIC workers have.
    pub(crate) fn of_workers(&self, is_one: impl Fn(usize) -> bool) -> Vec<Place> {
        let splices = self.splices.iter();
        splices
            .filter(|(_, splice)| splice.stage != Stage::Joining && is_one(splice.worker))
            .map(|(place, _)| Place(place))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(port: u16) -> Tuple {
        Tuple {
            local: ([10, 0, 0, 2], 80).into(),
            remote: ([10, 0, 0, 1], port).into(),
        }
    }

    /// One whose clients have these ports.
    fn splice(ports: [u16; 2]) -> Splice {
        let leg = |port: u16| Leg {
            stream: StreamId(port.into()),
            tuple: tuple(port),
            mac: [2; 6],
            traffic_class: 0,
            numbers: None,
            fin_end: None,
            app_deadline_us: None,
            is_let_go: false,
        };
        Splice {
            legs: ports.map(leg),
            stage: Stage::Joining,
            worker: 0,
            limits: SpliceLimits::default(),
            held: Vec::new(),
            held_bytes: 0,
            moved_bytes: [0; 2],
            passed_bytes: [0; 2],
            is_again: false,
        }
    }

    #[test]
    fn the_tuples_are_those_of_both_legs_while_the_splice_is_there() {
        let mut splices = Splices::new(&[7; 16]);
        let place = splices.insert(splice([1, 2]));
        let tuples: Vec<Tuple> = splices.tuples().collect();
        assert_eq!(tuples, [tuple(1), tuple(2)]);
        splices.remove(place);
        assert_eq!(splices.tuples().count(), 0);
    }

    #[test]
    fn what_all_hold_is_bounded_and_given_back() {
        let frame = vec![0; 64 << 10];
        let mut splices = Splices::new(&[7; 16]);
        let places: Vec<Place> = (0..65)
            .map(|index| splices.insert(splice([2 * index, 2 * index + 1])))
            .collect();
        let (last, others) = places.split_last().expect("some");
        for place in others {
            let taken = [0; 5].map(|_| splices.hold(*place, 0, &frame));
            assert_eq!(taken, [true, true, true, true, false], "256 KiB of each");
        }
        assert!(!splices.hold(*last, 0, &frame), "16 MiB of all");
        assert_eq!(splices.take_held(others[0]).len(), 4);
        assert!(splices.hold(*last, 1, &frame));
        splices.remove(*last);
        splices.remove(others[1]);
        assert_eq!(splices.held_bytes, ALL_HELD_BYTES_MAX - (512 << 10));
    }
}
