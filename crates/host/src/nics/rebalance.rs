//! Which connections go to another worker, so that all in use have about the same to send.
//!
//! Longest processing time first (Graham 1969): the busiest connections are placed before the
//! others, each from where it is to the worker with least, unless the load would rather change
//! places with it: one that makes for more than three quarters of the difference between the two
//! stays, so that none goes to and fro.

/// Workers that differ by less than one part in this number are balanced.
const TOLERANCE: u64 = 8;

/// A connection that could go elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Candidate<C> {
    /// Bytes sent lately.
    pub(crate) bytes: u64,
    /// Its name.
    pub(crate) connection: C,
    /// Where it is, as an index into the workers.
    pub(crate) worker: usize,
}

/// Returns the connections to move, each with its new worker. `bytes` has the bytes that each
/// worker has sent lately, for these connections and all others.
pub(crate) fn plan<C: Copy + Ord>(
    bytes: &mut [u64],
    mut candidates: Vec<Candidate<C>>,
) -> Vec<(C, usize)> {
    candidates.sort_unstable_by(|one, other| other.cmp(one));
    let sum: u64 = bytes.iter().sum();
    let tolerated = sum / (bytes.len().max(1) as u64) / TOLERANCE;
    let mut moves = Vec::new();
    for candidate in candidates {
        let least = (0..bytes.len()).min_by_key(|&worker| bytes[worker]);
        let (Some(to), from) = (least, candidate.worker) else {
            break;
        };
        let difference = bytes[from].saturating_sub(bytes[to]);
        if difference > tolerated && candidate.bytes <= difference / 4 * 3 {
            bytes[from] -= candidate.bytes;
            bytes[to] += candidate.bytes;
            moves.push((candidate.connection, to));
        }
    }
    moves
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn candidates(loads: &[(usize, u64)]) -> Vec<Candidate<usize>> {
        let numbered = loads.iter().enumerate();
        let candidates = numbered.map(|(connection, &(worker, bytes))| Candidate {
            bytes,
            connection,
            worker,
        });
        candidates.collect()
    }

    fn sums(workers: usize, loads: &[(usize, u64)]) -> Vec<u64> {
        let mut sums = vec![0; workers];
        for &(worker, bytes) in loads {
            sums[worker] += bytes;
        }
        sums
    }

    #[test]
    fn a_new_worker_gets_half_of_what_there_is() {
        let loads = [(0, 10), (0, 10), (0, 10), (0, 10)];
        let mut bytes = sums(2, &loads);
        assert_eq!(plan(&mut bytes, candidates(&loads)), [(3, 1), (2, 1)]);
        assert_eq!(bytes, [20, 20]);
    }

    #[test]
    fn the_busiest_go_first() {
        let loads = [(0, 1), (0, 50), (0, 1), (0, 48)];
        let mut bytes = sums(2, &loads);
        assert_eq!(plan(&mut bytes, candidates(&loads)), [(1, 1)]);
    }

    #[test]
    fn what_would_only_change_places_stays() {
        let loads = [(0, 100)];
        let mut bytes = sums(2, &loads);
        assert_eq!(plan(&mut bytes, candidates(&loads)), []);
        // All others go away from it.
        let loads = [(0, 100), (0, 10), (0, 10), (1, 10)];
        let mut bytes = sums(2, &loads);
        assert_eq!(plan(&mut bytes, candidates(&loads)), [(2, 1), (1, 1)]);
    }

    #[test]
    fn small_differences_move_nothing() {
        let loads = [(0, 50), (0, 4), (1, 50)];
        let mut bytes = sums(2, &loads);
        assert_eq!(plan(&mut bytes, candidates(&loads)), []);
        assert_eq!(plan::<usize>(&mut [], Vec::new()), []);
    }

    proptest! {
        #[test]
        fn the_busiest_worker_never_gets_more_and_a_second_plan_moves_nothing_back(
            workers in 1..9usize,
            loads in prop::collection::vec((0..8usize, 0..1_000u64), 0..100),
        ) {
            let mut loads: Vec<_> =
                loads.into_iter().map(|(worker, bytes)| (worker % workers, bytes)).collect();
            let before = sums(workers, &loads);
            let mut bytes = before.clone();
            let moves = plan(&mut bytes, candidates(&loads));
            for &(connection, to) in &moves {
                prop_assert_ne!(loads[connection].0, to);
                loads[connection].0 = to;
            }
            prop_assert_eq!(&bytes, &sums(workers, &loads));
            prop_assert_eq!(bytes.iter().sum::<u64>(), before.iter().sum::<u64>());
            prop_assert!(bytes.iter().max() <= before.iter().max());
            let mut named: Vec<_> = moves.iter().map(|&(connection, _)| connection).collect();
            named.sort_unstable();
            named.dedup();
            prop_assert_eq!(named.len(), moves.len(), "each once at most");
        }
    }
}
