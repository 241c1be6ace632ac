//! Holders of and waiters for the connections of a pool, by source: an IPv4 address, or an IPv6
//! network of 64 bits.
//!
//! A slot is a connection that `connections_max` of a backend permits. A request takes one when its
//! body, or `request_buffer` bytes, have arrived; with `Expect: 100-continue`, which the backend
//! has to answer, or without a body, at once. It holds the slot until its response is handed to the
//! client's stream, whose buffer takes a small one whole; a tunnel holds it to its end. While a
//! client holds one, it has to send or take at least `rate_min`.
//!
//! Where all slots are taken, requests wait, and sources share:
//!
//! - A slot that becomes free goes to the source with the fewest; among equals, to the request
//!   that has waited longest. No newcomer passes a request that waits.
//! - Where the queue is full, a newcomer takes the place of the youngest request of the source
//!   with most places, if that has at least two more than the newcomer's: 503.
//! - Once a request has waited for `evict_after`, a session gives up its slot to it. It is one
//!   that waits for its client, such as an upload that stalls, a download that the client does not
//!   read, or an idle tunnel; and it belongs to the source with most slots that has at least two
//!   more than the source of the request. Of its sessions the slowest goes: with 503, or by a reset
//!   if its response has begun. A session that waits for its backend never goes; one that
//!   waits for its 100 (Continue) stays for three seconds.
//! - Where no source has that many, the slowest session of all goes, if it is slower than
//!   `rate_min` and no tunnel: a tunnel may be idle, and clients that come back would only change
//!   places.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use host::Source;

/// A backend, for as long as anything refers to it. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BackendId(pub(crate) u64);

/// A session, and the source of its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) session: u64,
    pub(crate) source: Source,
}

/// A session that waits for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) holder: Holder,
    /// The session has tried some backends already: room at one it has tried does not help.
    pub(crate) is_choosy: bool,
    /// Time since which the request waits, in microseconds.
    pub(crate) since_us: u64,
}

/// The result of queueing a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queued {
    Yes,
    /// The session has the place of this other one, which waits no more.
    InsteadOf(u64),
    No,
}

/// The sessions of one source.
#[derive(Debug, Default)]
struct OfSource {
    slots: BTreeMap<u64, BackendId>,
    /// Each with its number: lower numbers arrived earlier.
    waiting: VecDeque<(u64, Waiting)>,
}

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub(crate) struct Shares {
    sources: BTreeMap<Source, OfSource>,
    /// Waiting sources, by their slots and the number of their first request.
    by_need: BTreeSet<(usize, u64, Source)>,
    by_slots: BTreeSet<(usize, Source)>,
    by_waiting: BTreeSet<(usize, Source)>,
    waiting: usize,
    /// Waiting sessions that can use any room.
    unchoosy: usize,
    /// The next number.
    next: u64,
}

impl Shares {
    /// Notes that a session has a connection to a backend.
    pub(crate) fn take(&mut self, holder: Holder, backend: BackendId) {
        self.change(holder.source, |of| {
            of.slots.insert(holder.session, backend);
        });
    }

    /// Notes that a session has no connection any more.
    pub(crate) fn release(&mut self, holder: Holder) {
        self.change(holder.source, |of| {
            of.slots.remove(&holder.session);
        });
    }

    /// Queues a session behind the others of its source.
    pub(crate) fn enqueue(&mut self, waiting: Waiting, queue_max: usize) -> Queued {
        let source = waiting.holder.source;
        let mut queued = Queued::Yes;
        if self.waiting >= queue_max {
            let own = self.sources.get(&source).map_or(0, |of| of.waiting.len());
            let Some(&(most, largest)) = self.by_waiting.last() else {
                return Queued::No;
            };
            if most < own + 2 {
                return Queued::No;
            }
            let youngest = self.change(largest, |of| of.waiting.pop_back());
            let Some((_, youngest)) = youngest else {
                return Queued::No;
            };
            self.on_taken(&youngest);
            queued = Queued::InsteadOf(youngest.holder.session);
        }
        let number = self.next;
        self.next += 1;
        self.waiting += 1;
        self.unchoosy += usize::from(!waiting.is_choosy);
        self.change(source, |of| of.waiting.push_back((number, waiting)));
        queued
    }

    /// Removes a session from the queue.
    pub(crate) fn dequeue(&mut self, holder: Holder) {
        let taken = self.change(holder.source, |of| {
            let mut waiting = of.waiting.iter();
            let at = waiting.position(|(_, known)| known.holder.session == holder.session);
            at.and_then(|at| of.waiting.remove(at))
        });
        if let Some((_, taken)) = taken {
            self.on_taken(&taken);
        }
    }

    /// Returns the number of the next session that begins to wait; later ones have higher numbers.
    pub(crate) fn next_number(&self) -> u64 {
        self.next
    }

    /// Takes the session that gets the next slot, among sessions with a number below `end`.
    pub(crate) fn take_next(&mut self, end: u64) -> Option<u64> {
        let mut sources = self.by_need.iter();
        let &(_, _, source) = sources.find(|(_, first, _)| *first < end)?;
        let (_, taken) = self.change(source, |of| of.waiting.pop_front())?;
        self.on_taken(&taken);
        Some(taken.holder.session)
    }

    /// Takes all waiting sessions, in the order in which they arrived.
    pub(crate) fn take_waiting(&mut self) -> Vec<u64> {
        let mut all = Vec::with_capacity(self.waiting);
        for of in self.sources.values_mut() {
            all.extend(of.waiting.drain(..));
        }
        self.by_need.clear();
        self.by_waiting.clear();
        self.sources.retain(|_, of| !of.slots.is_empty());
        (self.waiting, self.unchoosy) = (0, 0);
        all.sort_unstable_by_key(|(number, _)| *number);
        let sessions = all.into_iter();
        sessions
            .map(|(_, waiting)| waiting.holder.session)
            .collect()
    }

    pub(crate) fn is_any_waiting(&self) -> bool {
        self.waiting > 0
    }

    /// True if a session waits that can use any room.
    pub(crate) fn has_unchoosy(&self) -> bool {
        self.unchoosy > 0
    }

    /// Returns the source that gets a slot before others, and the number of its slots, among
    /// sources with a request that has waited since `until_us` or longer.
    pub(crate) fn neediest(&self, until_us: u64) -> Option<(usize, Source)> {
        let mut sources = self.by_need.iter();
        let &(slots, _, source) = sources.find(|(_, _, source)| {
            let waiting = self.sources.get(source).map(|of| &of.waiting);
            let mut waiting = waiting.into_iter().flatten();
            waiting.any(|(_, it)| !it.is_choosy && it.since_us <= until_us)
        })?;
        Some((slots, source))
    }

    /// Returns the sources with at least `slots_min` slots, those with most first.
    pub(crate) fn largest(&self, slots_min: usize) -> impl Iterator<Item = Source> {
        let sources = self.by_slots.iter().rev();
        let sources = sources.take_while(move |(slots, _)| *slots >= slots_min);
        sources.map(|(_, source)| *source)
    }

    /// Returns the sessions of a source that hold slots, with their backends.
    pub(crate) fn holders(&self, source: Source) -> impl Iterator<Item = (u64, BackendId)> {
        let of = self.sources.get(&source).into_iter();
        let slots = of.flat_map(|of| &of.slots);
        slots.map(|(&session, &backend)| (session, backend))
    }

    fn on_taken(&mut self, waiting: &Waiting) {
        self.waiting -= 1;
        self.unchoosy -= usize::from(!waiting.is_choosy);
    }

    /// Changes the state of a source, and its place in the orders.
    fn change<T>(&mut self, source: Source, change: impl FnOnce(&mut OfSource) -> T) -> T {
        let of = self.sources.entry(source).or_default();
        let first = |of: &OfSource| of.waiting.front().map(|(number, _)| *number);
        if let Some(first) = first(of) {
            self.by_need.remove(&(of.slots.len(), first, source));
        }
        self.by_slots.remove(&(of.slots.len(), source));
        self.by_waiting.remove(&(of.waiting.len(), source));
        let result = change(of);
        if let Some(first) = first(of) {
            self.by_need.insert((of.slots.len(), first, source));
            self.by_waiting.insert((of.waiting.len(), source));
        }
        if !of.slots.is_empty() {
            self.by_slots.insert((of.slots.len(), source));
        } else if of.waiting.is_empty() {
            self.sources.remove(&source);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(source: u32, session: u64) -> Holder {
        Holder {
            session,
            source: Source::V4(source),
        }
    }

    fn waiting(source: u32, session: u64) -> Waiting {
        Waiting {
            holder: holder(source, session),
            is_choosy: false,
            since_us: session,
        }
    }

    fn queue(shares: &mut Shares, source: u32, sessions: &[u64], queue_max: usize) -> Vec<Queued> {
        let sessions = sessions.iter();
        sessions
            .map(|session| shares.enqueue(waiting(source, *session), queue_max))
            .collect()
    }

    #[test]
    fn the_source_with_fewest_slots_is_next_and_among_equals_the_longest_waiting() {
        let mut shares = Shares::default();
        shares.take(holder(1, 1), BackendId(1));
        queue(&mut shares, 1, &[10, 11], 9);
        queue(&mut shares, 2, &[12, 13], 9);
        queue(&mut shares, 3, &[14], 9);
        let mut order = Vec::new();
        while let Some(session) = shares.take_next(u64::MAX) {
            let source = [1, 1, 2, 2, 3][session as usize - 10];
            shares.take(holder(source, session), BackendId(1));
            order.push(session);
        }
        assert_eq!(order, [12, 14, 10, 13, 11]);
        assert!(!shares.is_any_waiting() && !shares.has_unchoosy());
        assert_eq!(shares.largest(2).count(), 2);
        for (source, session) in [(1, 1), (1, 10), (1, 11), (2, 12), (2, 13), (3, 14)] {
            shares.release(holder(source, session));
        }
        assert!(shares.sources.is_empty() && shares.by_slots.is_empty());
        assert!(shares.by_need.is_empty() && shares.by_waiting.is_empty());
    }

    #[test]
    fn a_full_queue_has_room_for_a_source_with_fewer_places() {
        let mut shares = Shares::default();
        assert_eq!(queue(&mut shares, 1, &[1, 2, 3], 3), [Queued::Yes; 3]);
        assert_eq!(queue(&mut shares, 1, &[4], 3), [Queued::No]);
        let queued = queue(&mut shares, 2, &[5, 6], 3);
        assert_eq!(queued, [Queued::InsteadOf(3), Queued::No]);
        assert_eq!(queue(&mut shares, 3, &[7], 3), [Queued::InsteadOf(2)]);
        assert_eq!(queue(&mut shares, 4, &[8], 3), [Queued::No]);
        shares.dequeue(holder(2, 5));
        assert_eq!(queue(&mut shares, 4, &[9], 3), [Queued::Yes]);
        assert_eq!(shares.take_waiting(), [1, 7, 9]);
        assert_eq!(queue(&mut shares, 1, &[10], 0), [Queued::No]);
        assert!(shares.sources.is_empty());
    }

    #[test]
    fn those_that_came_later_and_those_that_have_not_waited_long_are_passed_over() {
        let mut shares = Shares::default();
        queue(&mut shares, 1, &[5], 9);
        let end = shares.next_number();
        queue(&mut shares, 2, &[7], 9);
        shares.take(holder(1, 1), BackendId(1));
        assert_eq!(shares.neediest(4), None);
        assert_eq!(shares.neediest(5), Some((1, Source::V4(1))));
        assert_eq!(shares.neediest(7), Some((0, Source::V4(2))));
        assert_eq!(shares.take_next(end), Some(5));
        assert_eq!(shares.take_next(end), None);
    }

    #[test]
    fn a_choosy_request_hides_no_other_of_its_source() {
        let mut shares = Shares::default();
        let choosy = Waiting {
            is_choosy: true,
            ..waiting(1, 5)
        };
        shares.enqueue(choosy, 9);
        assert_eq!(shares.neediest(9), None);
        queue(&mut shares, 1, &[6], 9);
        assert_eq!(shares.neediest(5), None);
        assert_eq!(shares.neediest(6), Some((0, Source::V4(1))));
    }
}
