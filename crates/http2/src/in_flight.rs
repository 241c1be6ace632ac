//! Bytes of streams that are in the TCP stream, and not acknowledged.

use std::collections::VecDeque;

/// Entries from which on an empty ledger gives its memory back.
const KEPT_ENTRIES: usize = 64;

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Where they end in the TCP stream.
    end: u64,
    stream: u32,
    /// Bytes as the stream's user counts them.
    bytes: u64,
}

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub struct InFlight {
    entries: VecDeque<Entry>,
}

impl InFlight {
    /// True if every byte is acknowledged.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Notes bytes of a stream that end here in the TCP stream. Ends never decrease.
    pub fn note(&mut self, end: u64, stream: u32, bytes: u64) {
        let entry = Entry { end, stream, bytes };
        self.entries.push_back(entry);
    }

    /// Returns the next stream whose bytes are among those that the peer has acknowledged, and
    /// their number.
    pub fn acknowledge(&mut self, acknowledged: u64) -> Option<(u32, u64)> {
        let first = self
            .entries
            .pop_front_if(|first| first.end <= acknowledged)?;
        if self.entries.is_empty() && self.entries.capacity() > KEPT_ENTRIES {
            self.entries = VecDeque::new();
        }
        Some((first.stream, first.bytes))
    }

    /// Allocated bytes.
    pub fn memory_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_settled_in_order_and_memory_is_given_back() {
        let mut in_flight = InFlight::default();
        for at in 0..100 {
            in_flight.note(10 * (at + 1), at as u32, at);
        }
        assert_eq!(in_flight.acknowledge(9), None);
        assert_eq!(in_flight.acknowledge(20), Some((0, 0)));
        assert_eq!(in_flight.acknowledge(20), Some((1, 1)));
        assert_eq!(in_flight.acknowledge(20), None);
        while in_flight.acknowledge(1000).is_some() {}
        assert!(in_flight.is_empty());
        assert_eq!(in_flight.memory_bytes(), 0);
    }
}
