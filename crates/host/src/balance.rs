//! Which NIC worker a new connection goes to: one with the fewest. It stays there to its end.
//!
//! A hash of the addresses alone would do for very many connections. Of 300, though, the fullest of 16 workers would
//! get about 27, where 19 are its share.

/// How many connections each worker has.
#[derive(Debug, Default)]
pub(crate) struct Balance {
    connections: Vec<usize>,
}

impl Balance {
    /// Counts a connection and returns its worker, one of `workers`. Which of several with equally few, `hash` decides,
    /// under a key that no peer knows: none can choose whom to share a worker with.
    pub(crate) fn add(&mut self, workers: usize, hash: u64) -> usize {
        let workers = workers.max(1);
        self.connections.resize(workers, 0);
        let first = (hash % workers as u64) as usize;
        let worker = (first..workers)
            .chain(0..first)
            .min_by_key(|&worker| self.connections[worker])
            .unwrap_or(first);
        self.connections[worker] += 1;
        worker
    }

    /// A connection of this worker is over.
    pub(crate) fn remove(&mut self, worker: usize) {
        self.connections[worker] -= 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The most that a worker has beyond another.
    fn difference(balance: &Balance) -> usize {
        let [most, least] = [
            balance.connections.iter().max(),
            balance.connections.iter().min(),
        ];
        most.unwrap() - least.unwrap()
    }

    proptest! {
        #[test]
        fn workers_have_equally_many_whatever_the_hashes(
            workers in 1..65usize,
            hashes in prop::collection::vec(any::<u64>(), 1..500),
        ) {
            let mut balance = Balance::default();
            for hash in hashes {
                let worker = balance.add(workers, hash);
                prop_assert!(worker < workers);
                prop_assert!(difference(&balance) <= 1);
            }
        }
    }

    #[test]
    fn a_worker_that_has_lost_its_connections_gets_the_next_ones() {
        let mut balance = Balance::default();
        let workers: Vec<usize> = (0..40).map(|hash| balance.add(4, hash)).collect();
        for worker in workers.into_iter().filter(|&worker| worker == 2) {
            balance.remove(worker);
        }
        assert_eq!(balance.connections, [10, 10, 0, 10]);
        for hash in 0..10 {
            assert_eq!(balance.add(4, hash), 2);
        }
        assert_eq!(balance.connections, [10; 4]);
    }

    #[test]
    fn among_equals_the_hash_decides() {
        for hash in [0, 5, 10, u64::MAX] {
            let mut balance = Balance::default();
            assert_eq!(balance.add(4, hash), (hash % 4) as usize);
        }
    }
}
