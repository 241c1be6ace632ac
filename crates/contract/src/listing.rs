//! Directory listings: the answer to LIST, with its entries in their encoded form.

use std::fmt;

use zerocopy::little_endian::{I64, U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::file::FileMeta;
use crate::limits::{LISTED_ENTRIES_BYTES_MAX, NAME_BYTES_MAX};

/// Part of a directory listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// The directory's `fstat` before reading: parts with different metadata may be of different
    /// versions.
    pub directory: FileMeta,
    /// Where another LIST to the same NIC stack continues, in any epoch; zero at the end.
    pub next: u64,
    /// Some entries; perhaps none, even if more follow.
    pub entries: Entries,
}

/// An entry of a directory, symbolic links followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Its kind.
    pub kind: EntryKind,
    /// Size, in bytes; of a directory, as its file system reports it.
    pub size: u64,
    /// Last modification, in nanoseconds since the epoch.
    pub mtime_ns: i64,
    /// The name; see [`is_name`].
    pub name: &'a [u8],
}

/// Kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EntryKind {
    /// A regular file.
    File = 1,
    /// A directory.
    Directory = 2,
}

/// Entries of a directory, in the order of its file system: as many as fit into an event.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Entries {
    /// Records, each followed by its name; always valid.
    bytes: Vec<u8>,
}

/// An event has no room for another entry; no entry was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntriesFull;

/// Record of an entry; its name follows.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct EntryRecord {
    size: U64,
    mtime_ns: I64,
    name_bytes: U16,
    kind: u8,
    zero: u8,
}

const _: () = assert!(
    size_of::<EntryRecord>() == 20,
    "records never change within a version"
);
const _: () = assert!(
    size_of::<EntryRecord>() + NAME_BYTES_MAX <= LISTED_ENTRIES_BYTES_MAX,
    "the longest entry fits into an event"
);

/// True for a valid name of an entry: 1 to [`NAME_BYTES_MAX`] bytes, none of them zero or a slash,
/// and neither `.` nor `..`.
pub fn is_name(name: &[u8]) -> bool {
    let is_long = !(1..=NAME_BYTES_MAX).contains(&name.len());
    let is_own = matches!(name, b"." | b"..");
    !is_long && !is_own && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}

impl Entries {
    /// Adds an entry. An invalid name ([`is_name`]) makes an event that does not decode.
    pub fn push(&mut self, entry: &Entry<'_>) -> Result<(), EntriesFull> {
        let bytes = size_of::<EntryRecord>() + entry.name.len();
        if self.bytes.len() + bytes > LISTED_ENTRIES_BYTES_MAX {
            return Err(EntriesFull);
        }
        let record = EntryRecord {
            size: entry.size.into(),
            mtime_ns: entry.mtime_ns.into(),
            name_bytes: (entry.name.len() as u16).into(),
            kind: entry.kind as u8,
            zero: 0,
        };
        self.bytes.extend_from_slice(record.as_bytes());
        self.bytes.extend_from_slice(entry.name);
        Ok(())
    }

    /// The entries, in order.
    pub fn iter(&self) -> Iter<'_> {
        Iter { rest: &self.bytes }
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the encoded form.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Parses the encoded form; the error is the rule that is broken.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        if bytes.len() > LISTED_ENTRIES_BYTES_MAX {
            return Err("entries have at most LISTED_ENTRIES_BYTES_MAX bytes");
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let (entry, zero) = split_entry(&mut rest).ok_or("entries fill the message")?;
            let entry = entry.ok_or("an entry is a file or a directory")?;
            if zero != 0 {
                return Err("what is reserved is zero");
            }
            if !is_name(entry.name) {
                return Err("an entry has a name");
            }
        }
        Ok(Entries {
            bytes: bytes.into(),
        })
    }
}

/// Takes an entry off, if it is complete: the entry, if its kind is known, and its reserved byte.
fn split_entry<'a>(rest: &mut &'a [u8]) -> Option<(Option<Entry<'a>>, u8)> {
    let (record, behind) = EntryRecord::ref_from_prefix(rest).ok()?;
    let (name, behind) = behind.split_at_checked(record.name_bytes.get().into())?;
    *rest = behind;
    let kind = match record.kind {
        1 => Some(EntryKind::File),
        2 => Some(EntryKind::Directory),
        _ => None,
    };
    let entry = kind.map(|kind| Entry {
        kind,
        size: record.size.get(),
        mtime_ns: record.mtime_ns.get(),
        name,
    });
    Some((entry, record.zero))
}

/// See [`Entries::iter`].
#[derive(Clone)]
pub struct Iter<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Iter<'a> {
    type Item = Entry<'a>;

    fn next(&mut self) -> Option<Entry<'a>> {
        split_entry(&mut self.rest)?.0
    }
}

impl<'a> IntoIterator for &'a Entries {
    type Item = Entry<'a>;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl fmt::Debug for Entries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self
            .iter()
            .map(|entry| entry.name.escape_ascii().to_string());
        f.debug_list().entries(names).finish()
    }
}

impl fmt::Display for EntriesFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an event has no room for another entry")
    }
}

impl std::error::Error for EntriesFull {}
