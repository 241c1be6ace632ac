//! Maglev's consistent hashing (Eisenbud et al., NSDI 2016, §3.4): a table whose slots backends
//! fill in turns, each in the order of a permutation of its own.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;

/// Numbers of slots, all primes. The paper recommends more than a hundred for each backend.
const SLOTS: [usize; 4] = [2_039, 16_381, 65_537, 655_373];

/// Fewest slots for each backend.
const SLOTS_PER_BACKEND: usize = 100;

/// Several proxies must agree, so the keys are not secret.
const OFFSET_KEY: u64 = 0x6f66_6673_6574;
const SKIP_KEY: u64 = 0x736b_6970;

/// A filled table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    slots: Vec<u16>,
}

/// Hashes bytes to a key, which is the same in each process, and in each proxy of the same pool.
pub(crate) fn hash(key: u64, bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(key, 0);
    hasher.write(bytes);
    hasher.finish()
}

impl Table {
    /// Creates the table for backends with their numbers and names.
    pub(crate) fn new(backends: &[(u16, &str)]) -> Self {
        let wanted = backends.len() * SLOTS_PER_BACKEND;
        let count = SLOTS.into_iter().find(|slots| *slots >= wanted);
        let count = count.unwrap_or(SLOTS[SLOTS.len() - 1]);
        if backends.is_empty() {
            return Table { slots: Vec::new() };
        }
        let mut turns: Vec<(u16, u64, u64)> = backends
            .iter()
            .map(|(number, name)| {
                let offset = hash(OFFSET_KEY, name.as_bytes()) % count as u64;
                let skip = hash(SKIP_KEY, name.as_bytes()) % (count as u64 - 1) + 1;
                (*number, offset, skip)
            })
            .collect();
        let mut slots = vec![u16::MAX; count];
        let mut left = count;
        'fill: loop {
            for (number, next, skip) in &mut turns {
                // Its permutation visits every slot, since the count is a prime.
                while slots[*next as usize] != u16::MAX {
                    *next = (*next + *skip) % count as u64;
                }
                slots[*next as usize] = *number;
                left -= 1;
                if left == 0 {
                    break 'fill;
                }
            }
        }
        Table { slots }
    }

    /// Returns the backend of a key, or the next eligible one in the table.
    pub(crate) fn find(&self, key: u64, is_eligible: impl Fn(usize) -> bool) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        let at = (key % self.slots.len() as u64) as usize;
        let (before, from) = self.slots.split_at(at);
        let mut found = from.iter().chain(before).map(|&number| usize::from(number));
        found.find(|&number| is_eligible(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(numbers: impl Iterator<Item = u16>) -> Table {
        let names: Vec<(u16, String)> = numbers
            .map(|number| (number, format!("10.0.0.{number}:80")))
            .collect();
        let names: Vec<(u16, &str)> = names.iter().map(|(at, name)| (*at, &**name)).collect();
        Table::new(&names)
    }

    #[test]
    fn each_backend_gets_its_share() {
        for count in [1u16, 2, 7, 100, 300] {
            let table = table(0..count);
            let mut shares = vec![0usize; usize::from(count)];
            for slot in &table.slots {
                shares[usize::from(*slot)] += 1;
            }
            let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
            // §5.3: at most one percent apart with a hundred slots for each.
            assert!(most - least <= 1, "{count}: {least} to {most}");
        }
    }

    #[test]
    fn few_keys_move_when_a_backend_goes() {
        for count in [2u16, 5, 20, 100] {
            let (before, after) = (table(0..count), table((0..count).filter(|at| *at != 1)));
            assert_eq!(before.slots.len(), after.slots.len());
            let slots = before.slots.iter().zip(&after.slots);
            let moved = slots
                .filter(|(one, other)| one != other && **one != 1)
                .count();
            // Slots of others that change hands: few beside the share of the one that has gone.
            let total = before.slots.len();
            assert!(moved * 10 <= total, "{count}: {moved} of {total}");
        }
    }

    #[test]
    fn a_key_whose_backend_cannot_be_used_goes_to_another() {
        let table = table(0..3);
        for key in 0..1000 {
            let first = table.find(key, |_| true).unwrap();
            assert_eq!(table.find(key, |_| true), Some(first));
            let other = table.find(key, |at| at != first).unwrap();
            assert_ne!(other, first);
            assert_eq!(table.find(key, |_| false), None);
        }
        assert_eq!(Table::new(&[]).find(1, |_| true), None);
    }
}
