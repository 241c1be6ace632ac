//! Packets held behind a gap.

use std::collections::VecDeque;

use crate::config::Reorder;

/// How far ahead of the next number a held packet may be.
pub(super) const SLOTS: u64 = 1024;

/// Slots kept when no packet is held.
const SLOTS_KEPT: usize = 32;

/// Held packets, by number.
#[derive(Debug)]
pub(super) enum Held<T> {
    /// A slot for each number from the next one on: a packet goes straight into its slot.
    Ring {
        slots: VecDeque<Option<T>>,
        count: usize,
    },
    /// A list by number, searched from its end: a baseline for measurements of the ring.
    Linear(Vec<(u64, T)>),
}

impl<T> Held<T> {
    pub(super) fn new(reorder: Reorder) -> Held<T> {
        match reorder {
            Reorder::Linear => Held::Linear(Vec::new()),
            Reorder::Ring | Reorder::Off => Held::Ring {
                slots: VecDeque::new(),
                count: 0,
            },
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            Held::Ring { count, .. } => *count == 0,
            Held::Linear(list) => list.is_empty(),
        }
    }

    /// Holds a packet. Its number is above `next` by less than [`SLOTS`], and not held yet.
    pub(super) fn insert(&mut self, next: u64, number: u64, packet: T) {
        match self {
            Held::Ring { slots, count } => {
                let slot = (number - next) as usize;
                if slots.len() <= slot {
                    slots.resize_with(slot + 1, || None);
                }
                slots[slot] = Some(packet);
                *count += 1;
            }
            Held::Linear(list) => {
                let mut at = list.len();
                while at > 0 && list[at - 1].0 > number {
                    at -= 1;
                }
                list.insert(at, (number, packet));
            }
        }
    }

    /// The first held packet, with its number.
    pub(super) fn first(&self, next: u64) -> Option<(u64, &T)> {
        match self {
            Held::Ring { count: 0, .. } => None,
            Held::Ring { slots, .. } => {
                let mut slots = (next..).zip(slots);
                slots.find_map(|(number, slot)| Some((number, slot.as_ref()?)))
            }
            Held::Linear(list) => list.first().map(|(number, packet)| (*number, packet)),
        }
    }

    /// Changes the next number; no held packet is below it.
    pub(super) fn advance(&mut self, before: u64, next: u64) {
        if let Held::Ring { slots, .. } = self {
            let passed = usize::try_from(next - before).unwrap_or(usize::MAX);
            slots.drain(..passed.min(slots.len()));
            if slots.is_empty() && slots.capacity() > SLOTS_KEPT {
                slots.shrink_to(SLOTS_KEPT);
            }
        }
    }

    /// Takes the packet with the next number, if it is held. The number after it is next then.
    pub(super) fn take_next(&mut self, next: u64) -> Option<T> {
        match self {
            Held::Ring { slots, count } => {
                let packet = slots.front_mut()?.take()?;
                slots.pop_front();
                *count -= 1;
                Some(packet)
            }
            Held::Linear(list) => {
                let (number, _) = list.first()?;
                (*number == next).then(|| list.remove(0).1)
            }
        }
    }
}
