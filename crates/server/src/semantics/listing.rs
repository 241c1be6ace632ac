//! Listings of directories without an index, where listings are enabled.
//!
//! The NIC stack reports the entries in parts, and knows no policy: entries hidden from clients are
//! removed here. A directory that changes between two parts is read again, a few times; one that
//! keeps changing is listed as found, each name once.

pub(crate) mod format;
mod html;
mod json;

use host::app::{Entry, EntryKind, ListPart, ListPlace};

use self::format::Format;
use crate::semantics::relative_path::RelativePath;

/// Most entries of a listing, in the file system's order.
pub(crate) const ENTRIES_MAX: usize = 10_000;

/// Most bytes of all names together.
const NAMES_BYTES_MAX: usize = 1 << 20;

/// Most parts requested: in a directory of sockets, all parts may be empty.
const PARTS_MAX: u32 = 4096;

/// Most times that a changing directory is read from its start.
const BEGINS_MAX: u8 = 4;

/// Memory for the listings of all connections of a server, in bytes, at most; beyond: 503.
pub(crate) const HELD_BYTES_MAX: usize = 64 << 20;

/// A listing being gathered.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    rows: Vec<Row>,
    /// All names, concatenated.
    names: Vec<u8>,
    parts: u32,
    /// Number of restarts.
    begun_again: u8,
    is_truncated: bool,
}

/// An entry, whose name is in `names`.
#[derive(Clone, Copy, Debug)]
struct Row {
    kind: EntryKind,
    name_bytes: u16,
    name_at: u32,
    size: u64,
    mtime_ns: i64,
}

/// The next step of a listing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Request the part at this place; `None`: the first part, again.
    Ask(Option<ListPlace>),
    /// Answer with the listing, which is complete or has reached a limit.
    Tell,
}

/// A request for a listing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DirectoryRequest<'a> {
    /// Path of the directory below its site's root; empty for the root itself.
    pub(crate) path: &'a [u8],
    pub(crate) format: Format,
}

impl Listing {
    /// Adds a part. `hidden` is a name that no listing shows.
    pub(crate) fn take(&mut self, part: &ListPart, hidden: Option<&[u8]>) -> Step {
        if part.has_changed && self.begin_again() {
            return Step::Ask(None);
        }
        self.parts += 1;
        for entry in &part.entries {
            if entry.name.starts_with(b".") || hidden == Some(entry.name) {
                continue;
            }
            if !self.has_room(&entry) {
                self.is_truncated = true;
                return Step::Tell;
            }
            self.push(&entry);
        }
        match part.next {
            None => Step::Tell,
            Some(_) if self.parts >= PARTS_MAX => {
                self.is_truncated = true;
                Step::Tell
            }
            next => Step::Ask(next),
        }
    }

    /// Discards the entries, to read the directory again; false after too many restarts.
    pub(crate) fn begin_again(&mut self) -> bool {
        let may = self.begun_again < BEGINS_MAX - 1;
        if may {
            *self = Listing {
                begun_again: self.begun_again + 1,
                ..Listing::default()
            };
        }
        may
    }

    /// Memory use, in bytes.
    pub(crate) fn held_bytes(&self) -> usize {
        self.names.capacity() + self.rows.capacity() * size_of::<Row>()
    }

    fn has_room(&self, entry: &Entry<'_>) -> bool {
        self.rows.len() < ENTRIES_MAX && self.names.len() + entry.name.len() <= NAMES_BYTES_MAX
    }

    fn push(&mut self, entry: &Entry<'_>) {
        self.rows.push(Row {
            kind: entry.kind,
            name_bytes: entry.name.len() as u16,
            name_at: self.names.len() as u32,
            size: entry.size,
            mtime_ns: entry.mtime_ns,
        });
        self.names.extend_from_slice(entry.name);
    }

    fn name(&self, row: &Row) -> &[u8] {
        &self.names[row.name_at as usize..][..usize::from(row.name_bytes)]
    }

    /// Sorts directories first, each kind by name. A repeated name stays once, as a directory if it
    /// was reported as both.
    fn sort(&mut self) {
        let names = &self.names;
        let name = |row: &Row| &names[row.name_at as usize..][..usize::from(row.name_bytes)];
        let is_file = |row: &Row| row.kind == EntryKind::File;
        let key = |row: &Row| (name(row), is_file(row));
        self.rows.sort_by(|one, other| key(one).cmp(&key(other)));
        self.rows.dedup_by(|one, other| name(one) == name(other));
        self.rows.sort_by_key(is_file);
    }

    /// Writes the listing; returns the number of its entries if the directory has more.
    pub(crate) fn write(mut self, told: DirectoryRequest<'_>, out: &mut Vec<u8>) -> Option<usize> {
        self.sort();
        match told.format {
            Format::Html => html::write(&self, told.path, out),
            Format::Json => json::write(&self, out),
        }
        self.is_truncated.then_some(self.rows.len())
    }

    fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        self.rows.iter().map(|row| Entry {
            kind: row.kind,
            size: row.size,
            mtime_ns: row.mtime_ns,
            name: self.name(row),
        })
    }
}

/// True if a path has a name that no listing shows: nothing below such a name is listed.
pub(crate) fn has_dot_name(path: &[u8]) -> bool {
    path.split(|&byte| byte == b'/')
        .any(|name| name.starts_with(b"."))
}

/// Returns the name of `hidden` in a directory, if `hidden` lies directly in it.
pub(crate) fn hidden_name<'a>(hidden: &'a RelativePath, directory: &[u8]) -> Option<&'a [u8]> {
    let below = hidden.as_bytes().strip_prefix(directory)?;
    let name = match directory {
        b"" => below,
        _ => below.strip_prefix(b"/")?,
    };
    (!name.is_empty() && !name.contains(&b'/')).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn part(entries: &[(EntryKind, &str, u64, i64)]) -> ListPart {
        let mut part = ListPart::default();
        for &(kind, name, size, mtime_ns) in entries {
            let entry = Entry {
                kind,
                size,
                mtime_ns,
                name: name.as_bytes(),
            };
            part.entries.push(&entry).unwrap();
        }
        part
    }

    fn files(names: &[&str]) -> ListPart {
        let entries: Vec<_> = names
            .iter()
            .map(|name| (EntryKind::File, *name, 1, 0))
            .collect();
        part(&entries)
    }

    fn names(mut listing: Listing) -> Vec<String> {
        listing.sort();
        let names = listing.entries();
        names
            .map(|entry| String::from_utf8(entry.name.to_vec()).unwrap())
            .collect()
    }

    #[test]
    fn directories_come_first_and_each_name_once() {
        let mut listing = Listing::default();
        let first = part(&[
            (EntryKind::File, "b", 1, 0),
            (EntryKind::Directory, "z", 1, 0),
            (EntryKind::File, "B", 1, 0),
            (EntryKind::File, ".hidden", 1, 0),
            (EntryKind::File, "secret", 1, 0),
            (EntryKind::Directory, "c", 1, 0),
            (EntryKind::File, "b", 1, 0),
            (EntryKind::File, "c", 1, 0),
        ]);
        assert_eq!(listing.take(&first, Some(b"secret")), Step::Tell);
        assert_eq!(names(listing), ["c", "z", "B", "b"]);
    }

    #[test]
    fn a_directory_that_changes_is_begun_again_and_listed_as_it_is_if_it_never_rests() {
        let mut listing = Listing::default();
        let changed = ListPart {
            has_changed: true,
            ..files(&["new"])
        };
        for _ in 1..BEGINS_MAX {
            listing.take(&files(&["old"]), None);
            assert_eq!(listing.take(&changed, None), Step::Ask(None));
        }
        listing.take(&files(&["old"]), None);
        assert_eq!(listing.take(&changed, None), Step::Tell);
        assert_eq!(names(listing), ["new", "old"]);
    }

    #[test]
    fn there_is_a_limit_and_beyond_it_the_listing_says_so() {
        let all: Vec<String> = (0..=ENTRIES_MAX).map(|number| number.to_string()).collect();
        for (count, truncated) in [(ENTRIES_MAX, None), (ENTRIES_MAX + 1, Some(ENTRIES_MAX))] {
            let mut listing = Listing::default();
            let mut steps = all[..count].chunks(50).map(|chunk| {
                let chunk: Vec<&str> = chunk.iter().map(String::as_str).collect();
                listing.take(&files(&chunk), None)
            });
            assert!(steps.all(|step| step == Step::Tell));
            let mut out = Vec::new();
            let told = DirectoryRequest {
                path: b"",
                format: Format::Html,
            };
            assert_eq!(listing.write(told, &mut out), truncated);
            let page = String::from_utf8(out).unwrap();
            assert_eq!(
                page.contains("only 10000 of its entries"),
                truncated.is_some()
            );
            assert_eq!(page.matches("<tr>").count(), ENTRIES_MAX + 1);
        }
    }

    #[test]
    fn what_is_hidden_is_hidden_where_it_lies() {
        let hidden: RelativePath = "a/b/objects".parse().unwrap();
        for (directory, name) in [
            ("a/b", Some("objects")),
            ("a", None),
            ("", None),
            ("a/b/objects", None),
            ("a/b/o", None),
        ] {
            let found = hidden_name(&hidden, directory.as_bytes());
            assert_eq!(found, name.map(str::as_bytes), "{directory}");
        }
        let hidden: RelativePath = "objects".parse().unwrap();
        assert_eq!(hidden_name(&hidden, b""), Some(&b"objects"[..]));
    }
}
