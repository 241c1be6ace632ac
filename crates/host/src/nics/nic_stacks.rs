//! The NIC stacks of a shard: their workers and their presence.

use std::fmt;
use std::ops::Range;

/// Most NIC stacks of a shard.
pub const NIC_STACKS_MAX: usize = 64;

/// How long a request for a file that only an absent NIC stack can have waits for it, in
/// microseconds: a NIC process that has died is back in less. Later the open fails.
const AWAY_US_MAX: u64 = 5_000_000;

/// Why a NIC stack is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NicRefusal {
    /// Workers that it has.
    pub workers: usize,
    /// Workers that it must have: connections stay with theirs.
    pub wanted: usize,
}

impl fmt::Display for NicRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NicRefusal { workers, wanted } = self;
        write!(f, "it has {workers} workers, and {wanted} are needed")
    }
}

/// A set of NIC stacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NicSet(u64);

impl NicSet {
    pub(crate) fn of(nic: usize) -> NicSet {
        NicSet(1 << nic)
    }

    pub(crate) fn insert(&mut self, nic: usize) {
        self.0 |= 1 << nic;
    }

    pub(crate) fn remove(&mut self, nic: usize) {
        self.0 &= !(1 << nic);
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn contains(self, nic: usize) -> bool {
        self.0 >> nic & 1 == 1
    }
}

/// See the [module documentation](self). NIC stacks are numbered from zero, as are all their
/// workers together.
#[derive(Debug)]
pub(crate) struct NicStacks {
    stacks: Vec<NicStack>,
    /// The NIC stack of each worker.
    of_workers: Vec<usize>,
}

#[derive(Clone, Debug, Default)]
struct NicStack {
    workers: Range<usize>,
    /// Number of workers in use: the first ones.
    in_use: usize,
    presence: Presence,
    /// It is on another machine.
    is_elsewhere: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Presence {
    There,
    /// It is expected back before this time, in microseconds.
    Away {
        until_us: u64,
    },
    /// It has not joined yet, or is no longer awaited.
    #[default]
    Missing,
}

impl NicStacks {
    /// Creates this number of NIC stacks, none of which has joined yet.
    ///
    /// # Panics
    /// If the number is zero, or above [`NIC_STACKS_MAX`].
    pub(crate) fn new(count: usize) -> NicStacks {
        assert!(
            (1..=NIC_STACKS_MAX).contains(&count),
            "1 to {NIC_STACKS_MAX} NIC stacks, not {count}"
        );
        NicStacks {
            stacks: vec![NicStack::default(); count],
            of_workers: Vec::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.stacks.len()
    }

    /// The NIC stack that a worker is of.
    pub(crate) fn of(&self, worker: usize) -> usize {
        self.of_workers[worker]
    }

    /// Returns its workers; none before it has joined for the first time.
    pub(crate) fn workers(&self, nic: usize) -> Range<usize> {
        self.stacks[nic].workers.clone()
    }

    /// Adds its workers when it joins for the first time; all are in use.
    pub(crate) fn introduce(&mut self, nic: usize, workers: usize) {
        let first = self.of_workers.len();
        self.of_workers.resize(first + workers, nic);
        self.stacks[nic].workers = first..first + workers;
        self.stacks[nic].in_use = workers;
    }

    /// Returns its workers in use, which get the connections.
    pub(crate) fn workers_in_use(&self, nic: usize) -> Range<usize> {
        let stack = &self.stacks[nic];
        stack.workers.start..stack.workers.start + stack.in_use
    }

    /// Sets the number of its workers in use.
    pub(crate) fn use_workers(&mut self, nic: usize, in_use: usize) {
        let stack = &mut self.stacks[nic];
        stack.in_use = in_use.clamp(1, stack.workers.len().max(1));
    }

    /// This worker is in use.
    pub(crate) fn is_in_use(&self, worker: usize) -> bool {
        self.workers_in_use(self.of(worker)).contains(&worker)
    }

    /// Returns a NIC stack that is present, or awaited, and not in `without`.
    pub(crate) fn another(&self, without: NicSet) -> Option<usize> {
        let may_be_asked = |nic: &usize| self.is_there(*nic) || self.is_awaited(*nic);
        (0..self.len()).find(|nic| may_be_asked(nic) && !without.contains(*nic))
    }

    pub(crate) fn is_there(&self, nic: usize) -> bool {
        self.stacks[nic].presence == Presence::There
    }

    /// True if it is away, and expected back.
    pub(crate) fn is_awaited(&self, nic: usize) -> bool {
        matches!(self.stacks[nic].presence, Presence::Away { .. })
    }

    /// True if it is on another machine: its last events can be lost on the way.
    pub(crate) fn is_elsewhere(&self, nic: usize) -> bool {
        self.stacks[nic].is_elsewhere
    }

    pub(crate) fn set_elsewhere(&mut self, nic: usize) {
        self.stacks[nic].is_elsewhere = true;
    }

    pub(crate) fn has_come(&mut self, nic: usize) {
        self.stacks[nic].presence = Presence::There;
    }

    pub(crate) fn has_gone(&mut self, nic: usize, now_us: u64) {
        let until_us = now_us.saturating_add(AWAY_US_MAX);
        self.stacks[nic].presence = Presence::Away { until_us };
    }

    /// When [`NicStacks::give_up`] should next be called, in microseconds.
    pub(crate) fn next_timeout_us(&self) -> Option<u64> {
        let times_us = self.stacks.iter().filter_map(|stack| match stack.presence {
            Presence::Away { until_us } => Some(until_us),
            Presence::There | Presence::Missing => None,
        });
        times_us.min()
    }

    /// Returns a NIC stack that is overdue; it is no longer awaited.
    pub(crate) fn give_up(&mut self, now_us: u64) -> Option<usize> {
        let late = self.stacks.iter().position(
            |stack| matches!(stack.presence, Presence::Away { until_us } if until_us <= now_us),
        )?;
        self.stacks[late].presence = Presence::Missing;
        Some(late)
    }

    /// Returns the workers in use of the present NIC stacks that are not in `without`.
    pub(crate) fn workers_to_choose(
        &self,
        without: NicSet,
    ) -> impl Iterator<Item = usize> + Clone + '_ {
        let workers = self.of_workers.iter().enumerate();
        let may_be_chosen = move |worker: usize, nic: usize| {
            let in_use = self.workers_in_use(nic);
            self.is_there(nic) && !without.contains(nic) && worker < in_use.end
        };
        workers
            .filter(move |&(worker, &nic)| may_be_chosen(worker, nic))
            .map(|(worker, _)| worker)
    }

    /// Returns all workers, whether their NIC stacks are present or not.
    pub(crate) fn all_workers(&self) -> Range<usize> {
        0..self.of_workers.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there(stacks: &NicStacks, without: NicSet) -> Vec<usize> {
        stacks.workers_to_choose(without).collect()
    }

    #[test]
    fn workers_are_numbered_in_the_order_in_which_their_nic_stacks_come() {
        let mut stacks = NicStacks::new(3);
        for (nic, workers) in [(2, 2), (0, 1)] {
            stacks.introduce(nic, workers);
            stacks.has_come(nic);
        }
        assert_eq!([0, 1, 2].map(|worker| stacks.of(worker)), [2, 2, 0]);
        assert_eq!([0, 1, 2].map(|nic| stacks.workers(nic)), [2..3, 0..0, 0..2]);
        assert_eq!(there(&stacks, NicSet::default()), [0, 1, 2]);
        assert_eq!(there(&stacks, NicSet::of(2)), [2]);
        stacks.has_gone(0, 7);
        assert_eq!(there(&stacks, NicSet::default()), [0, 1]);
    }

    #[test]
    fn the_first_workers_are_in_use() {
        let mut stacks = NicStacks::new(2);
        for (nic, workers) in [(0, 3), (1, 2)] {
            stacks.introduce(nic, workers);
            stacks.has_come(nic);
        }
        stacks.use_workers(0, 1);
        assert_eq!(there(&stacks, NicSet::default()), [0, 3, 4]);
        assert_eq!([0, 1].map(|nic| stacks.workers_in_use(nic)), [0..1, 3..5]);
        assert_eq!(
            [0, 1, 3].map(|worker| stacks.is_in_use(worker)),
            [true, false, true]
        );
        stacks.use_workers(0, 9);
        stacks.use_workers(1, 0);
        assert_eq!(there(&stacks, NicSet::default()), [0, 1, 2, 3]);
    }

    #[test]
    fn one_that_stays_away_is_awaited_for_a_while() {
        let mut stacks = NicStacks::new(2);
        assert!(!stacks.is_awaited(0), "it has not come yet");
        stacks.has_gone(0, 1_000);
        stacks.has_gone(1, 2_000);
        assert_eq!(stacks.next_timeout_us(), Some(1_000 + AWAY_US_MAX));
        assert_eq!(stacks.give_up(AWAY_US_MAX), None);
        assert_eq!(stacks.give_up(AWAY_US_MAX + 1_500), Some(0));
        assert_eq!(stacks.give_up(AWAY_US_MAX + 1_500), None);
        assert_eq!([0, 1].map(|nic| stacks.is_awaited(nic)), [false, true]);
        stacks.has_come(1);
        assert_eq!(stacks.next_timeout_us(), None);
    }
}
