//! A bounded map that forgets its older half when it is full.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::mem;

pub(super) struct Generations<K, V> {
    /// The newer and the older half, each at most half of the bound.
    last: HashMap<K, V>,
    before: HashMap<K, V>,
    generation_max: usize,
}

impl<K: Eq + Hash, V> Generations<K, V> {
    pub(super) fn new(max: usize) -> Self {
        Self {
            last: HashMap::new(),
            before: HashMap::new(),
            generation_max: (max / 2).max(1),
        }
    }

    pub(super) fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.last.get(key).or_else(|| self.before.get(key))
    }

    pub(super) fn remove<Q: Eq + Hash + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.last.remove(key).or_else(|| self.before.remove(key))
    }

    pub(super) fn len(&self) -> usize {
        self.last.len() + self.before.len()
    }

    /// Forgets the older half if there is no room for another. True if it has.
    pub(super) fn make_room(&mut self) -> bool {
        let is_full = self.last.len() >= self.generation_max;
        if is_full {
            self.before = mem::take(&mut self.last);
        }
        is_full
    }

    pub(super) fn insert(&mut self, key: K, value: V) {
        self.make_room();
        self.last.insert(key, value);
    }
}
