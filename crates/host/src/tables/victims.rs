//! Which connections go when something runs short: of the source that has most, the oldest first,
//! or the one that holds most.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::net::IpAddr;

use crate::app::StreamId;
use crate::tables::sources::Source;

/// Something that a connection holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) stream: StreamId,
    pub(crate) remote: IpAddr,
    /// Since when, on any clock that all candidates have in common.
    pub(crate) since: u64,
}

/// Returns at most `count` of the candidates, the first to go last, each with the number of
/// candidates that its source has until then: each time the oldest of the source with most.
pub(crate) fn choose(mut candidates: Vec<Candidate>, count: usize) -> Vec<(usize, StreamId)> {
    candidates.sort_unstable_by_key(|candidate| Reverse((candidate.since, candidate.stream)));
    // A candidate goes when all older ones of its source have gone.
    let mut seen: HashMap<Source, usize> = HashMap::new();
    let mut ranked: Vec<_> = candidates
        .into_iter()
        .map(|candidate| {
            let left = seen.entry(Source::from(candidate.remote)).or_default();
            *left += 1;
            (*left, Reverse(candidate.since), candidate.stream)
        })
        .collect();
    ranked.sort_unstable();
    let excess = ranked.len().saturating_sub(count);
    ranked.drain(..excess);
    ranked
        .into_iter()
        .map(|(left, _, stream)| (left, stream))
        .collect()
}

/// A connection, and the memory that it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder<T> {
    pub(crate) id: T,
    pub(crate) source: Source,
    pub(crate) bytes: usize,
    /// As [`Candidate::since`].
    pub(crate) since: u64,
}

/// Returns the holders that go to free `excess_bytes`, at most `count`, in their order, each with
/// the bytes that its source has until then: each time the largest of the source with most, of
/// equals the oldest.
pub(crate) fn choose_largest<T>(
    holders: Vec<Holder<T>>,
    excess_bytes: usize,
    count: usize,
) -> Vec<(usize, Holder<T>)> {
    let mut sources: HashMap<Source, (usize, Vec<Holder<T>>)> = HashMap::new();
    for holder in holders.into_iter().filter(|holder| holder.bytes > 0) {
        let (bytes, of_source) = sources.entry(holder.source).or_default();
        *bytes += holder.bytes;
        of_source.push(holder);
    }
    let mut sources: Vec<_> = sources.into_values().collect();
    let largest = sources.iter().enumerate();
    let mut largest: BinaryHeap<_> = largest
        .map(|(at, (bytes, _))| (*bytes, at, false))
        .collect();
    let mut chosen = Vec::new();
    let mut left = excess_bytes;
    while left > 0
        && chosen.len() < count
        && let Some((bytes, at, is_sorted)) = largest.pop()
    {
        let of_source = &mut sources[at].1;
        if !is_sorted {
            // The first to go comes last.
            of_source.sort_unstable_by_key(|it| (it.bytes, Reverse(it.since)));
        }
        let Some(holder) = of_source.pop() else {
            continue;
        };
        largest.push((bytes - holder.bytes, at, true));
        left = left.saturating_sub(holder.bytes);
        chosen.push((bytes, holder));
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(id: u64, source: u8, bytes: usize) -> Holder<u64> {
        Holder {
            id,
            source: Source::from(IpAddr::from([192, 0, 2, source])),
            bytes,
            since: id,
        }
    }

    #[test]
    fn the_source_that_holds_most_loses_its_largest() {
        // Source 1 has the largest connection, source 2 most in all.
        let all = vec![
            holder(1, 1, 100),
            holder(2, 2, 30),
            holder(3, 2, 40),
            holder(4, 2, 40),
            holder(5, 3, 0),
        ];
        let choose = |excess_bytes, count| {
            let chosen = choose_largest(all.clone(), excess_bytes, count);
            chosen
                .into_iter()
                .map(|(bytes, it)| (bytes, it.id))
                .collect::<Vec<_>>()
        };
        let order = [(110, 3), (100, 1), (70, 4), (30, 2)];
        assert_eq!(choose(usize::MAX, 10), order);
        assert_eq!(choose(40, 10), order[..1]);
        assert_eq!(choose(41, 10), order[..2]);
        assert_eq!(choose(usize::MAX, 3), order[..3]);
        assert_eq!(choose(0, 10), []);
    }

    fn candidate(stream: u64, source: u8, since: u64) -> Candidate {
        Candidate {
            stream: StreamId(stream),
            remote: IpAddr::from([192, 0, 2, source]),
            since,
        }
    }

    #[test]
    fn the_oldest_of_the_largest_source_goes_first() {
        let all = vec![
            candidate(1, 1, 10),
            candidate(2, 2, 50),
            candidate(3, 2, 40),
            candidate(4, 2, 60),
            candidate(5, 3, 30),
            candidate(6, 3, 70),
        ];
        let mut order = choose(all.clone(), 10);
        order.reverse();
        // Source 2 has three, then 2 and 3 have two each, then all have one.
        let expected = [(3, 3), (2, 5), (2, 2), (1, 1), (1, 4), (1, 6)];
        let expected = expected.map(|(left, stream)| (left, StreamId(stream)));
        assert_eq!(order, expected);
        let mut first = choose(all, 2);
        first.reverse();
        assert_eq!(first, expected[..2]);
        assert_eq!(choose(Vec::new(), 2), []);
    }
}
