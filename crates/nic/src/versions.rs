//! File versions: the identity of the content of blocks.
//!
//! A version is (mount, device, inode, size, mtime, ctime), and whether the file may grow. Two
//! opens of the same version share blocks; an open file whose timestamps are too young to
//! distinguish versions shares its blocks with no other.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use contract::Growth;

use crate::reader::Opened;
use crate::shrink;
use crate::slab::{Key, Slab};

/// Known versions: the ones that are open, or have blocks.
#[derive(Debug)]
pub(crate) struct Versions {
    versions: Slab<Version>,
    by_meta: HashMap<Meta, Key>,
    /// Number of versions so far that share blocks with no other.
    unsettled: u64,
}

#[derive(Debug)]
struct Version {
    meta: Option<Meta>,
    fingerprint: u64,
    opens: u32,
    blocks: u32,
}

/// The metadata that distinguishes versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Meta {
    mount: u64,
    device: u64,
    inode: u64,
    size: u64,
    mtime_ns: i64,
    ctime_ns: i64,
    /// Blocks of a file that may grow are read with fewer checks, so only opens that allow growth
    /// share them.
    growth: Growth,
}

impl Versions {
    pub(crate) fn new() -> Versions {
        Versions {
            versions: Slab::new(),
            by_meta: HashMap::new(),
            unsettled: 0,
        }
    }

    /// Returns the version of a file that has been opened.
    pub(crate) fn open(&mut self, opened: &Opened) -> Key {
        let meta = &opened.meta;
        let meta = opened.settled.then_some(Meta {
            mount: opened.mount,
            device: meta.device,
            inode: meta.inode,
            size: meta.size,
            mtime_ns: meta.mtime_ns,
            ctime_ns: meta.ctime_ns,
            growth: opened.growth,
        });
        if let Some(known) = meta.and_then(|meta| self.by_meta.get(&meta)) {
            if let Some(version) = self.versions.get_mut(*known) {
                version.opens += 1;
            }
            return *known;
        }
        let alone = meta.is_none().then(|| {
            self.unsettled += 1;
            self.unsettled
        });
        let key = self.versions.insert(Version {
            meta,
            fingerprint: fingerprint(&(meta, alone)),
            opens: 1,
            blocks: 0,
        });
        if let Some(meta) = meta {
            self.by_meta.insert(meta, key);
        }
        key
    }

    /// The inverse of [`Versions::open`].
    pub(crate) fn close(&mut self, key: Key) {
        if let Some(version) = self.versions.get_mut(key) {
            version.opens -= 1;
        }
        self.drop_unused(key);
    }

    /// Counts a block that begins to hold a piece of the version.
    pub(crate) fn add_block(&mut self, key: Key) {
        if let Some(version) = self.versions.get_mut(key) {
            version.blocks += 1;
        }
    }

    /// The inverse of [`Versions::add_block`].
    pub(crate) fn remove_block(&mut self, key: Key) {
        if let Some(version) = self.versions.get_mut(key) {
            version.blocks -= 1;
        }
        self.drop_unused(key);
    }

    /// True if a file of the version is open, or may be opened again: then its blocks can be of
    /// use.
    pub(crate) fn can_be_found(&self, key: Key) -> bool {
        let version = self.versions.get(key);
        version.is_some_and(|version| version.opens > 0 || version.meta.is_some())
    }

    /// Returns a number for a block of a version which stays the same when the version is forgotten
    /// and comes back. Two blocks may share one, though hardly ever do.
    pub(crate) fn fingerprint(&self, key: Key, number: u64) -> u64 {
        let version = self.versions.get(key);
        fingerprint(&(version.map(|version| version.fingerprint), number))
    }

    fn drop_unused(&mut self, key: Key) {
        if let Some(version) = self.versions.get(key)
            && version.opens == 0
            && version.blocks == 0
        {
            if let Some(meta) = version.meta {
                shrink::remove(&mut self.by_meta, &meta);
            }
            self.versions.remove(key);
        }
    }
}

/// The same in every run.
fn fingerprint(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use contract::FileMeta;

    use super::*;

    fn meta(inode: u64) -> FileMeta {
        FileMeta {
            size: 1 << 30,
            inode,
            ..FileMeta::default()
        }
    }

    #[test]
    fn a_version_outlives_its_file_by_its_blocks_and_no_more() {
        let mut versions = Versions::new();
        let version = versions.open(&Opened::stub(meta(1), 0, true));
        let fingerprint = versions.fingerprint(version, 7);
        versions.add_block(version);
        versions.close(version);
        assert_eq!(versions.open(&Opened::stub(meta(1), 0, true)), version);
        versions.close(version);

        versions.remove_block(version);
        let again = versions.open(&Opened::stub(meta(1), 0, true));
        assert_ne!(again, version);
        assert_eq!(versions.fingerprint(again, 7), fingerprint);
    }

    #[test]
    fn a_file_of_another_mount_is_another_version() {
        let mut versions = Versions::new();
        let version = versions.open(&Opened::stub(meta(1), 7, true));
        assert_ne!(versions.open(&Opened::stub(meta(1), 8, true)), version);
        assert_eq!(versions.open(&Opened::stub(meta(1), 7, true)), version);
    }

    #[test]
    fn a_file_that_may_grow_shares_no_blocks_with_one_that_may_not() {
        let mut versions = Versions::new();
        let fixed = Opened::stub(meta(1), 0, true);
        let version = versions.open(&fixed);
        let growing = Opened {
            growth: Growth::Allowed,
            ..fixed
        };
        assert_ne!(versions.open(&growing), version);
    }

    #[test]
    fn any_difference_makes_another_version() {
        let mut versions = Versions::new();
        let one = meta(1);
        let others = [
            FileMeta { inode: 2, ..one },
            FileMeta { device: 2, ..one },
            FileMeta { size: 2, ..one },
            FileMeta { mtime_ns: 2, ..one },
            FileMeta { ctime_ns: 2, ..one },
        ];
        let version = versions.open(&Opened::stub(one, 0, true));
        for other in others {
            let other = versions.open(&Opened::stub(other, 0, true));
            assert_ne!(other, version);
            assert_ne!(
                versions.fingerprint(other, 0),
                versions.fingerprint(version, 0)
            );
        }
    }

    #[test]
    fn one_whose_timestamps_are_too_young_is_like_no_other() {
        let mut versions = Versions::new();
        let [first, second] = [0, 1].map(|_| versions.open(&Opened::stub(meta(1), 0, false)));
        assert_ne!(first, second);
        assert_ne!(
            versions.fingerprint(first, 0),
            versions.fingerprint(second, 0)
        );
        assert_ne!(versions.open(&Opened::stub(meta(1), 0, true)), first);
    }
}
