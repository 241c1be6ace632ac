//! Choice of a connection's NIC worker: one in use with the fewest connections. The connection
//! stays there to its end, unless another NIC stack has the file that it needs, its own is gone, or
//! the load is rebalanced among the workers in use ([`rebalance`](super::rebalance)).
//!
//! A hash of the addresses alone would do for very many connections. Of 300, though, the fullest of
//! 16 workers would get about 27, where 19 are its share.

/// How many connections each worker has.
#[derive(Debug, Default)]
pub(crate) struct Balance {
    connections: Vec<usize>,
}

impl Balance {
    /// Returns the worker with the fewest connections; `None` if there are no `workers`. `hash`
    /// decides between equals, under a key that no peer knows: no peer can choose with which others
    /// to share a worker.
    pub(crate) fn choose(
        &self,
        workers: impl Iterator<Item = usize> + Clone,
        hash: impl FnOnce() -> u64,
    ) -> Option<usize> {
        let mut others = workers.clone();
        let only = others.next()?;
        if others.next().is_none() {
            return Some(only);
        }
        let count = workers.clone().count();
        let first = (hash() % count as u64) as usize;
        let from_first = workers.clone().skip(first).chain(workers.take(first));
        from_first.min_by_key(|&worker| self.connections_of(worker))
    }

    /// A connection begins at this worker.
    pub(crate) fn connections_of(&self, worker: usize) -> usize {
        self.connections.get(worker).copied().unwrap_or(0)
    }

    pub(crate) fn add(&mut self, worker: usize) {
        if self.connections.len() <= worker {
            self.connections.resize(worker + 1, 0);
        }
        self.connections[worker] += 1;
    }

    /// A connection of this worker is over, or goes on elsewhere.
    pub(crate) fn remove(&mut self, worker: usize) {
        self.connections[worker] -= 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn add(balance: &mut Balance, workers: usize, hash: u64) -> usize {
        let worker = balance.choose(0..workers, || hash).unwrap();
        balance.add(worker);
        worker
    }

    /// The most that a worker has beyond another.
    fn difference(balance: &Balance, workers: usize) -> usize {
        let mut connections = balance.connections.clone();
        connections.resize(workers, 0);
        connections.iter().max().unwrap() - connections.iter().min().unwrap()
    }

    proptest! {
        #[test]
        fn workers_have_equally_many_whatever_the_hashes(
            workers in 1..65usize,
            hashes in prop::collection::vec(any::<u64>(), 1..500),
        ) {
            let mut balance = Balance::default();
            for hash in hashes {
                let worker = add(&mut balance, workers, hash);
                prop_assert!(worker < workers);
                prop_assert!(difference(&balance, workers) <= 1);
            }
        }
    }

    #[test]
    fn a_worker_that_has_lost_its_connections_gets_the_next_ones() {
        let mut balance = Balance::default();
        let workers: Vec<usize> = (0..40).map(|hash| add(&mut balance, 4, hash)).collect();
        for worker in workers.into_iter().filter(|&worker| worker == 2) {
            balance.remove(worker);
        }
        assert_eq!(balance.connections, [10, 10, 0, 10]);
        for hash in 0..10 {
            assert_eq!(add(&mut balance, 4, hash), 2);
        }
        assert_eq!(balance.connections, [10; 4]);
    }

    #[test]
    fn only_those_that_are_asked_for_are_chosen() {
        let mut balance = Balance::default();
        assert_eq!(balance.choose(0..0, || 3), None);
        for hash in 0..10 {
            let worker = balance.choose([1, 4].into_iter(), || hash).unwrap();
            balance.add(worker);
        }
        assert_eq!(balance.connections, [0, 5, 0, 0, 5]);
    }

    #[test]
    fn among_equals_the_hash_decides() {
        for hash in [0, 5, 10, u64::MAX] {
            let mut balance = Balance::default();
            assert_eq!(add(&mut balance, 4, hash), (hash % 4) as usize);
        }
    }
}
