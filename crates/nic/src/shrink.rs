//! Maps that give memory back.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};

/// Vacant places that a map keeps.
const PLACES_KEPT_MAX: usize = 1024;

/// Removes an entry, and shrinks the map if it has become far too large.
pub(crate) fn remove<K: Eq + Hash, V, S: BuildHasher>(
    map: &mut HashMap<K, V, S>,
    key: &K,
) -> Option<V> {
    let value = map.remove(key);
    if map.capacity() > PLACES_KEPT_MAX && map.len() < map.capacity() / 8 {
        // Twice the rest, so that the next shrinking is as many removals away.
        map.shrink_to(2 * map.len());
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_shrinks_with_its_entries() {
        let mut map: HashMap<u32, u32> = (0..100_000).map(|key| (key, key)).collect();
        for key in 1..100_000 {
            assert_eq!(remove(&mut map, &key), Some(key));
        }
        assert_eq!(map.get(&0), Some(&0));
        assert!(map.capacity() <= 2 * PLACES_KEPT_MAX, "{}", map.capacity());
    }
}
