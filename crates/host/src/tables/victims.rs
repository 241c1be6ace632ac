//! Which connections go when something runs short: of the source that has most, the oldest first.

use std::cmp::Reverse;
use std::collections::HashMap;
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

/// At most `count` of these, the first to go last, each with the number of candidates that its
/// source has until it goes: of the source with most the oldest, and so on with what is left.
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

#[cfg(test)]
mod tests {
    use super::*;

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
