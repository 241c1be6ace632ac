//! A timing wheel for flows whose first SEND must not leave yet (Varghese and Lauck, 1987).
//!
//! One turn is longer than any SEND is held, as in Carousel (Saeed et al., 2017), so there are no
//! levels. Within a slot deadlines are compared exactly: no flow is ever called early, and slots
//! are only as narrow as keeps their lists short.

use std::num::NonZeroU32;

use contract::limits::HOLD_US_MAX;

use crate::slab::Key;

/// Time that a slot stands for, in microseconds.
const SLOT_US: u64 = 64;
const SLOTS: u64 = 1 << 15;

const _: () = assert!(
    (SLOTS - 1) * SLOT_US > HOLD_US_MAX,
    "whatever is held lies less than one turn ahead"
);

/// Key of a flow on the wheel: its place among the nodes, counting from 1.
pub(crate) type Handle = NonZeroU32;

/// The wheel. It knows no clock: times are microseconds of the caller's clock.
#[derive(Debug)]
pub(crate) struct Wheel {
    /// All slots before this one are empty. Slots are numbered from time 0 on and lie at that
    /// number modulo `SLOTS`.
    now_slot: u64,
    /// No deadline is earlier. It may have been the deadline of a flow removed since.
    next_us: u64,
    len: usize,
    /// First node of each slot.
    slots: Vec<Option<Handle>>,
    /// A bit for each slot that is not empty.
    occupied: Vec<u64>,
    nodes: Vec<Node>,
    vacant: Vec<Handle>,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    deadline_us: u64,
    flow: Key,
    /// Index of its slot.
    place: usize,
    /// Neighbours in the list of the slot.
    next: Option<Handle>,
    previous: Option<Handle>,
}

impl Wheel {
    pub(crate) fn new() -> Wheel {
        Wheel {
            now_slot: 0,
            next_us: u64::MAX,
            len: 0,
            slots: vec![None; SLOTS as usize],
            occupied: vec![0; SLOTS as usize / 64],
            nodes: Vec::new(),
            vacant: Vec::new(),
        }
    }

    /// Calls for `flow` with the first [`Wheel::expire`] from `deadline_us` on, which is not
    /// further away than [`HOLD_US_MAX`].
    pub(crate) fn insert(&mut self, deadline_us: u64, now_us: u64, flow: Key) -> Handle {
        if self.len == 0 {
            self.now_slot = now_us / SLOT_US;
            self.next_us = u64::MAX;
        }
        let handle = self.vacant.pop().unwrap_or_else(|| {
            self.nodes.push(Node {
                deadline_us,
                flow,
                place: 0,
                next: None,
                previous: None,
            });
            let count = u32::try_from(self.nodes.len()).ok();
            count.and_then(Handle::new).expect("fewer flows than 2^32")
        });
        self.len += 1;
        self.link(handle, deadline_us, flow);
        handle
    }

    /// Removes a flow that has not been called for.
    pub(crate) fn remove(&mut self, handle: Handle) {
        let node = *self.node(handle);
        if let Some(next) = node.next {
            self.node(next).previous = node.previous;
        }
        match node.previous {
            Some(previous) => self.node(previous).next = node.next,
            None => {
                self.slots[node.place] = node.next;
                if node.next.is_none() {
                    self.occupied[node.place / 64] &= !(1 << (node.place % 64));
                }
            }
        }
        self.vacant.push(handle);
        self.len -= 1;
    }

    /// When to call [`Wheel::expire`], in microseconds: no deadline is earlier. `None` if the wheel
    /// is empty.
    pub(crate) fn next_us(&self) -> Option<u64> {
        (self.len > 0).then_some(self.next_us)
    }

    /// Moves time on. Flows whose deadline has come are appended to `due`, and their handles are
    /// void.
    pub(crate) fn expire(&mut self, now_us: u64, due: &mut Vec<Key>) {
        if self.len == 0 || now_us < self.next_us {
            return;
        }
        let first = self.now_slot;
        self.now_slot = first.max(now_us / SLOT_US);
        let last = self.now_slot.min(first + SLOTS - 1);
        self.next_us = u64::MAX;
        let mut from = first;
        while let Some(slot) = self.next_occupied(from, last) {
            let place = (slot % SLOTS) as usize;
            self.occupied[place / 64] &= !(1 << (place % 64));
            let mut next = self.slots[place].take();
            while let Some(handle) = next {
                let node = *self.node(handle);
                next = node.next;
                if node.deadline_us <= now_us {
                    due.push(node.flow);
                    self.vacant.push(handle);
                    self.len -= 1;
                } else {
                    self.link(handle, node.deadline_us, node.flow);
                }
            }
            from = slot + 1;
        }
        // The earliest remaining deadline lies in the first slot that is not empty.
        let turn_end = self.now_slot + SLOTS - 1;
        if let Some(slot) = self.next_occupied(self.now_slot, turn_end) {
            let mut next = self.slots[(slot % SLOTS) as usize];
            while let Some(handle) = next {
                let node = *self.node(handle);
                self.next_us = self.next_us.min(node.deadline_us);
                next = node.next;
            }
        }
    }

    /// Puts a node in front of the list of its slot.
    fn link(&mut self, handle: Handle, deadline_us: u64, flow: Key) {
        // If time has passed without a call, a deadline can seem to lie beyond the turn: it is
        // checked again when the last slot is.
        let turn_end = self.now_slot + SLOTS - 1;
        let slot = (deadline_us / SLOT_US).clamp(self.now_slot, turn_end);
        let place = (slot % SLOTS) as usize;
        let next = self.slots[place].replace(handle);
        if let Some(next) = next {
            self.node(next).previous = Some(handle);
        }
        *self.node(handle) = Node {
            deadline_us,
            flow,
            place,
            next,
            previous: None,
        };
        self.occupied[place / 64] |= 1 << (place % 64);
        self.next_us = self.next_us.min(deadline_us);
    }

    /// The first slot in `first..=last` that is not empty. They span one turn at most.
    fn next_occupied(&self, first: u64, last: u64) -> Option<u64> {
        let mut slot = first;
        while slot <= last {
            let place = (slot % SLOTS) as usize;
            let ahead = self.occupied[place / 64] >> (place % 64);
            if ahead != 0 {
                let found = slot + u64::from(ahead.trailing_zeros());
                return (found <= last).then_some(found);
            }
            slot += 64 - slot % 64;
        }
        None
    }

    fn node(&mut self, handle: Handle) -> &mut Node {
        &mut self.nodes[handle.get() as usize - 1]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn flow(number: u64) -> Key {
        Key::from_bits(number)
    }

    fn expired(wheel: &mut Wheel, now_us: u64) -> Vec<u64> {
        let mut due = Vec::new();
        wheel.expire(now_us, &mut due);
        let mut due: Vec<u64> = due.into_iter().map(Key::to_bits).collect();
        due.sort_unstable();
        due
    }

    #[test]
    fn nothing_is_called_a_microsecond_early() {
        let mut wheel = Wheel::new();
        assert_eq!(wheel.next_us(), None);
        wheel.insert(1_000_010, 1_000_000, flow(1));
        wheel.insert(1_000_011, 1_000_000, flow(2));
        wheel.insert(1_500_000, 1_000_000, flow(3));
        assert_eq!(wheel.next_us(), Some(1_000_010));
        assert_eq!(expired(&mut wheel, 1_000_009), []);
        assert_eq!(expired(&mut wheel, 1_000_010), [1]);
        assert_eq!(wheel.next_us(), Some(1_000_011));
        assert_eq!(expired(&mut wheel, 1_000_011), [2]);
        assert_eq!(wheel.next_us(), Some(1_500_000));
        assert_eq!(expired(&mut wheel, 1_499_999), []);
        assert_eq!(expired(&mut wheel, 9_999_999), [3]);
        assert_eq!(wheel.next_us(), None);
    }

    #[test]
    fn what_is_removed_is_not_called_for() {
        let mut wheel = Wheel::new();
        let handles: Vec<Handle> = (0..5)
            .map(|n| wheel.insert(100 + n % 2, 0, flow(n)))
            .collect();
        wheel.remove(handles[2]);
        wheel.remove(handles[4]);
        wheel.remove(handles[0]);
        assert_eq!(expired(&mut wheel, 200), [1, 3]);
        assert_eq!(wheel.next_us(), None);
    }

    #[test]
    fn a_wheel_that_has_slept_for_long_goes_on() {
        let mut wheel = Wheel::new();
        wheel.insert(HOLD_US_MAX, 0, flow(1));
        // An hour without a look.
        let now_us = 3_600_000_000;
        wheel.insert(now_us + HOLD_US_MAX, now_us, flow(2));
        wheel.insert(now_us + 7, now_us, flow(3));
        assert_eq!(expired(&mut wheel, now_us), [1]);
        assert_eq!(expired(&mut wheel, now_us + 7), [3]);
        assert_eq!(expired(&mut wheel, now_us + HOLD_US_MAX - 1), []);
        assert_eq!(expired(&mut wheel, now_us + HOLD_US_MAX), [2]);
    }

    /// Against a map that is looked through each time.
    #[test]
    fn any_order_of_calls_gives_what_a_sorted_list_gives() {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut random = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let mut wheel = Wheel::new();
        let mut model: BTreeMap<u64, (u64, Handle)> = BTreeMap::new();
        let mut now_us = 123_456_789;
        for number in 0..200_000 {
            match random(4) {
                0 | 1 => {
                    let reach_us = [50, 5_000, HOLD_US_MAX][random(3) as usize];
                    let deadline_us = now_us + random(reach_us + 1);
                    let handle = wheel.insert(deadline_us, now_us, flow(number));
                    model.insert(number, (deadline_us, handle));
                }
                2 if !model.is_empty() => {
                    let from = random(number);
                    let chosen = model.range(from..).next().or(model.iter().next());
                    let (&number, &(_, handle)) = chosen.expect("not empty");
                    wheel.remove(handle);
                    model.remove(&number);
                }
                _ => {
                    let far = random(1000) == 0;
                    now_us += random(if far { 5_000_000 } else { 200 });
                    let due = expired(&mut wheel, now_us);
                    let expected: Vec<u64> = model
                        .iter()
                        .filter(|(_, (deadline_us, _))| *deadline_us <= now_us)
                        .map(|(&number, _)| number)
                        .collect();
                    assert_eq!(due, expected, "at step {number}");
                    model.retain(|_, (deadline_us, _)| *deadline_us > now_us);
                }
            }
            let next_us = model.values().map(|&(deadline_us, _)| deadline_us).min();
            match (wheel.next_us(), next_us) {
                (Some(called_us), Some(next_us)) => assert!(called_us <= next_us),
                (called, next) => assert_eq!(called, next),
            }
        }
        assert!(model.len() < 100_000 && wheel.nodes.len() < 150_000);
    }
}
