//! A table whose keys do not outlive their entries.
//!
//! Queues and waiting lists hold keys of flows and files that may be gone by the time a key is
//! looked up; the generation in the key shows that.

/// Key of an entry of a [`Slab`]. A key of a removed entry finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    index: u32,
    generation: u32,
}

impl Key {
    /// Returns the key as one number, for code that only carries it.
    pub(crate) fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// The inverse of [`Key::to_bits`].
    pub(crate) fn from_bits(bits: u64) -> Key {
        Key {
            index: bits as u32,
            generation: (bits >> 32) as u32,
        }
    }
}

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

/// Entries in reused places.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    entries: Vec<Entry<T>>,
    vacant: Vec<u32>,
    /// Generation of new places: no place that was given back has had it.
    generation_min: u32,
    /// Entries removed since places were given back.
    removed: usize,
}

/// Places that are kept when they are vacant.
const PLACES_KEPT_MAX: usize = 1024;

impl<T> Slab<T> {
    pub(crate) fn new() -> Self {
        Slab {
            entries: Vec::new(),
            vacant: Vec::new(),
            generation_min: 0,
            removed: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.vacant.len()
    }

    /// # Panics
    /// With 2^32 entries; every user of the table has a far lower bound.
    pub(crate) fn insert(&mut self, value: T) -> Key {
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.entries.push(Entry {
                generation: self.generation_min,
                value: None,
            });
            u32::try_from(self.entries.len() - 1).expect("fewer than 2^32 entries")
        });
        let entry = &mut self.entries[index as usize];
        entry.value = Some(value);
        Key {
            index,
            generation: entry.generation,
        }
    }

    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let entry = self.entries.get(key.index as usize)?;
        entry
            .value
            .as_ref()
            .filter(|_| entry.generation == key.generation)
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let entry = self.entries.get_mut(key.index as usize)?;
        let current = entry.generation == key.generation;
        entry.value.as_mut().filter(|_| current)
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        self.get(key)?;
        let entry = &mut self.entries[key.index as usize];
        entry.generation = entry.generation.wrapping_add(1);
        self.vacant.push(key.index);
        let value = entry.value.take();
        self.removed += 1;
        let places = self.entries.len();
        if places > PLACES_KEPT_MAX && self.len() < places / 8 && self.removed >= self.len() {
            self.shrink();
        }
        value
    }

    /// Gives back the places behind the last entry.
    #[cold]
    fn shrink(&mut self) {
        self.removed = 0;
        let last = self.entries.iter().rposition(|entry| entry.value.is_some());
        let kept = last.map_or(0, |last| last + 1);
        let given_back = self.entries.drain(kept..).map(|entry| entry.generation);
        if let Some(generation) = given_back.max() {
            self.generation_min = self.generation_min.max(generation);
        }
        self.entries.shrink_to_fit();
        self.vacant.retain(|&index| (index as usize) < kept);
        self.vacant.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_dies_with_its_entry_even_if_the_place_is_reused() {
        let mut slab = Slab::new();
        let first = slab.insert("first");
        assert_eq!(slab.remove(first), Some("first"));
        let second = slab.insert("second");
        assert_eq!(slab.len(), 1);
        assert_eq!(slab.get(first), None);
        assert_eq!(slab.get_mut(first), None);
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.get(Key::from_bits(second.to_bits())), Some(&"second"));
    }

    #[test]
    fn the_places_of_a_crowd_are_given_back_and_its_keys_find_nothing() {
        const CROWD: usize = 10_000;
        let mut slab = Slab::new();
        let staying = slab.insert(0);
        let mut keys = Vec::new();
        for round in 1..4 {
            keys.extend((0..CROWD).map(|_| slab.insert(round)));
            for key in &keys[keys.len() - CROWD..] {
                assert_eq!(slab.remove(*key), Some(round));
            }
            let places = slab.entries.capacity();
            assert!(places <= 2 * PLACES_KEPT_MAX, "{places}");
            assert_eq!((slab.len(), slab.get(staying)), (1, Some(&0)));
        }
        let again: Vec<_> = (0..CROWD).map(|_| slab.insert(9)).collect();
        assert!(keys.iter().all(|key| slab.get(*key).is_none()));
        assert!(again.iter().all(|key| slab.get(*key) == Some(&9)));
    }
}
