//! Connection IDs and their flows.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use contract::limits::QUIC_CONNECTION_ID_BYTES_MAX;
use contract::quic::QuicConnectionId;

use crate::shrink;
use crate::slab::Key;

/// Flows by connection ID.
#[derive(Debug, Default)]
pub(super) struct Names {
    flows: HashMap<QuicConnectionId, Key>,
    /// The number of IDs of each length.
    lengths: [usize; QUIC_CONNECTION_ID_BYTES_MAX + 1],
}

impl Names {
    /// Assigns an ID to a flow. False if the ID is taken.
    pub(super) fn insert(&mut self, id: QuicConnectionId, flow: Key) -> bool {
        match self.flows.entry(id) {
            Entry::Occupied(_) => false,
            Entry::Vacant(entry) => {
                entry.insert(flow);
                self.lengths[id.as_bytes().len()] += 1;
                true
            }
        }
    }

    /// Removes an ID.
    pub(super) fn remove(&mut self, id: &QuicConnectionId) {
        if shrink::remove(&mut self.flows, id).is_some() {
            self.lengths[id.as_bytes().len()] -= 1;
        }
    }

    /// Returns the ID at the start of a short header's `bytes`, and its flow. The header does not
    /// contain the ID's length: the shortest match wins.
    pub(super) fn find(&self, bytes: &[u8]) -> Option<(QuicConnectionId, Key)> {
        let lengths = self.lengths.iter().enumerate();
        let lengths = lengths.filter(|(_, count)| **count > 0);
        lengths
            .filter_map(|(len, _)| bytes.get(..len))
            .find_map(|id| {
                let id = QuicConnectionId::new(id)?;
                Some((id, *self.flows.get(&id)?))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_any_length_are_found() {
        let mut names = Names::default();
        let id = |bytes: &[u8]| QuicConnectionId::new(bytes).expect("an ID");
        let [first, second] = [1, 2].map(Key::from_bits);
        assert_eq!(names.find(b"abcdefgh..."), None);
        assert!(names.insert(id(b"abcdefgh"), first));
        assert!(!names.insert(id(b"abcdefgh"), second), "it is taken");
        assert!(names.insert(id(b"xyz"), second));
        assert_eq!(names.find(b"abcdefgh..."), Some((id(b"abcdefgh"), first)));
        assert_eq!(names.find(b"xyz"), Some((id(b"xyz"), second)));
        assert_eq!(names.find(b"abcdefg"), None);
        assert_eq!(names.find(b""), None);
        names.remove(&id(b"abcdefgh"));
        names.remove(&id(b"abcdefgh"));
        assert_eq!(names.find(b"abcdefgh..."), None);
        assert_eq!(names.find(b"xyz..."), Some((id(b"xyz"), second)));
    }
}
