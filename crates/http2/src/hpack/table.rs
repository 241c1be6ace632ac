//! The dynamic table (RFC 7541 §2.3.2, §4).

use std::collections::VecDeque;

use super::static_table::STATIC_TABLE;
use crate::field::FIELD_BYTES;

/// An entry.
#[derive(Debug)]
struct Entry {
    /// The name, and the value after it.
    bytes: Box<[u8]>,
    name_bytes: usize,
}

impl Entry {
    fn size(&self) -> usize {
        self.bytes.len() + FIELD_BYTES
    }

    fn field(&self) -> (&[u8], &[u8]) {
        self.bytes.split_at(self.name_bytes)
    }
}

/// Entries, the newest first. Without any it takes no memory of its own.
#[derive(Debug)]
pub(super) struct Table {
    entries: VecDeque<Entry>,
    /// Size of the entries (RFC 7541 §4.1), in bytes.
    bytes: usize,
    bytes_max: usize,
}

impl Table {
    /// An empty table of at most this size, in bytes.
    pub(super) fn new(bytes_max: usize) -> Self {
        Table {
            entries: VecDeque::new(),
            bytes: 0,
            bytes_max,
        }
    }

    /// The field at an index of the address space (RFC 7541 §2.3.3).
    pub(super) fn field(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let place = index.checked_sub(1)?;
        match STATIC_TABLE.get(place) {
            Some((name, value)) => Some((name.as_bytes(), value.as_bytes())),
            None => {
                let entry = self.entries.get(place - STATIC_TABLE.len())?;
                Some(entry.field())
            }
        }
    }

    /// The index of an entry with this name and value.
    pub(super) fn index_of(&self, name: &[u8], value: &[u8]) -> Option<usize> {
        let is_it = |entry: &Entry| entry.field() == (name, value);
        let place = self.entries.iter().position(is_it)?;
        Some(place + STATIC_TABLE.len() + 1)
    }

    /// Adds an entry after it has made room; an entry larger than the table empties it (RFC 7541
    /// §4.4).
    pub(super) fn insert(&mut self, name: &[u8], value: &[u8]) {
        let size = name.len() + value.len() + FIELD_BYTES;
        self.evict(size);
        if size > self.bytes_max {
            return;
        }
        self.bytes += size;
        self.entries.push_front(Entry {
            bytes: [name, value].concat().into_boxed_slice(),
            name_bytes: name.len(),
        });
    }

    /// Changes the greatest size, in bytes.
    pub(super) fn resize(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
        self.evict(0);
        if self.entries.is_empty() {
            self.entries = VecDeque::new();
        }
    }

    /// Evicts entries until another one of this size fits.
    fn evict(&mut self, size: usize) {
        while self.bytes + size > self.bytes_max
            && let Some(entry) = self.entries.pop_back()
        {
            self.bytes -= entry.size();
        }
    }

    /// Greatest size, in bytes.
    pub(super) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Memory of the entries, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        let strings: usize = self.entries.iter().map(|entry| entry.bytes.len()).sum();
        strings + self.entries.capacity() * size_of::<Entry>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: RFC 7541 §2.3.2, RFC 7541 §2.3.3, RFC 7541 §4.1, RFC 7541 §4.2, RFC 7541 §4.4
    #[test]
    fn old_entries_make_room_for_new_ones() {
        let mut table = Table::new(100);
        table.insert(b"a", b"1");
        table.insert(b"b", b"22");
        assert_eq!(table.bytes, 34 + 35);
        assert_eq!(table.field(0), None);
        assert_eq!(table.field(2), Some((&b":method"[..], &b"GET"[..])));
        assert_eq!(table.field(62), Some((&b"b"[..], &b"22"[..])));
        assert_eq!(table.field(63), Some((&b"a"[..], &b"1"[..])));
        assert_eq!(table.field(64), None);
        assert_eq!(table.index_of(b"a", b"1"), Some(63));
        table.insert(b"c", b"");
        assert_eq!(table.field(63), Some((&b"b"[..], &b"22"[..])));
        assert_eq!(table.field(64), None, "evicted");
        table.resize(40);
        assert_eq!(table.index_of(b"c", b""), Some(62));
        assert_eq!(table.field(63), None);
        table.insert(b"long", b"12345");
        assert_eq!((table.field(62), table.bytes), (None, 0), "too large");
        table.insert(b"fits", b"1234");
        assert_eq!(table.bytes, 40);
        table.resize(0);
        assert_eq!((table.bytes, table.memory_bytes()), (0, 0));
    }
}
