//! A table whose keys do not outlive what they name.
//!
//! Queues and waiting lists hold keys of flows and files that may be gone by the time a key is looked
//! up; the generation in the key tells.

/// Names an entry of a [`Slab`]. A key of a removed entry finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    index: u32,
    generation: u32,
}

impl Key {
    /// The key as one number, for those who only carry it.
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
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Self {
        Slab {
            entries: Vec::new(),
            vacant: Vec::new(),
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
                generation: 0,
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
        entry.value.take()
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
}
