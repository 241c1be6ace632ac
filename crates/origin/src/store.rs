//! Versions of objects on disk, cut into segments, and their eviction.
//!
//! ```text
//! CACHE/objects/boot                 boot ID of the last use
//!               3f/9a…3f/            a version
//!                        meta       what it is, in JSON; the start deletes versions without it
//!                        sums       checksums of its segments
//!                        00000000   its segments: complete, and never changed
//!                        00000001
//! ```
//!
//! If the cache is full, the least recently requested version is evicted. Versions with readers go
//! last, and segment by segment: segments that a client still needs are fetched again.
//!
//! Content about to be written is *promised* first. It counts from then on, so every write has
//! room.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::boot;
use crate::disk::{Disk, META, SUMS, read_file};
use crate::fields::Fields;
use crate::freshness::Freshness;
use crate::message::segment_name;
use crate::validator::Validators;
use crate::vary::{Names, Variant};

/// Directory of all versions, below the cache directory.
pub const OBJECTS: &str = "objects";

/// Version of the metadata's format; the start deletes versions of another format. Formats before
/// the third lack some of the origin's header fields, and a 304 would never complete them.
const FORMAT: u32 = 3;

/// Overhead of a version, in bytes: a directory, `meta`, `sums`, and its memory. Bounds the number
/// of versions, however small the objects are.
pub(crate) const VERSION_BYTES: u64 = 12 << 10;

/// Most segments checked at once after one is missing: as a rule, others are missing as well.
const LOOK_MAX: usize = 64;

/// Limits of a cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) bytes_max: u64,
    pub(crate) segment_bytes: u64,
    /// Overhead counted for each version, in bytes.
    pub(crate) version_bytes: u64,
}

/// Key of a request: the origin's URL, the target there, and the variant.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) origin: Arc<str>,
    pub(crate) target: String,
    pub(crate) variant: Variant,
}

/// A unique number of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct VersionId(u64);

impl VersionId {
    /// Its directory, below the cache directory.
    pub(crate) fn directory(self) -> String {
        format!("{OBJECTS}/{:02x}/{:016x}", self.0 & 0xff, self.0)
    }

    /// The version of a directory; `None` if the name is none of [`VersionId::directory`].
    pub(crate) fn of_directory(directory: &str) -> Option<VersionId> {
        let (_, number) = directory.rsplit_once('/')?;
        let id = VersionId(u64::from_str_radix(number, 16).ok()?);
        (id.directory() == directory).then_some(id)
    }
}

/// Metadata of a version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Meta {
    /// `None` until the whole content has come.
    pub(crate) size_bytes: Option<u64>,
    pub(crate) validators: Validators,
    /// The origin serves ranges of the object.
    pub(crate) takes_ranges: bool,
    pub(crate) freshness: Freshness,
    /// The origin's header fields for clients.
    pub(crate) fields: Fields,
    /// The same of its trailers, once the whole content has come.
    #[serde(default, skip_serializing_if = "Fields::is_empty")]
    pub(crate) trailers: Fields,
}

impl Meta {
    /// Whether the same version can be requested again as a whole.
    pub(crate) fn can_come_again(&self) -> bool {
        self.size_bytes.is_some() && self.validators.strong().is_some()
    }

    /// The request fields by which the origin selected the version.
    pub(crate) fn varies_by(&self) -> Names {
        Names::of(self.fields.values("vary"))
    }

    /// Whether parts of the same version can be requested.
    pub(crate) fn is_in_parts(&self) -> bool {
        self.takes_ranges && self.can_come_again()
    }
}

/// The content of `meta`.
#[derive(Serialize, Deserialize)]
struct Record {
    format: u32,
    segment_bytes: u64,
    origin: String,
    target: String,
    #[serde(default, skip_serializing_if = "Variant::is_plain")]
    variant: Variant,
    /// See [`Version::is_passing`].
    #[serde(default)]
    is_passing: bool,
    meta: Meta,
}

/// The part of a [`Record`] that all formats share.
#[derive(Deserialize)]
struct RecordFormat {
    format: u32,
}

/// Metadata of a version on its way to disk, to survive a restart.
#[derive(Debug)]
pub(crate) struct Recording {
    disk: Disk,
    content: Bytes,
    number: u64,
    /// Room that must remain on the disk after the write, in bytes.
    room_bytes: u64,
}

impl Recording {
    /// Writes `meta`, unless the version was removed or a later one exists. Blocks on the disk.
    pub(crate) fn write(&self) -> io::Result<()> {
        self.disk.write_meta(self.number, &self.content)?;
        if self.room_bytes > 0
            && room(self.disk.directory())?.is_some_and(|it| it < self.room_bytes)
        {
            return Err(rustix::io::Errno::NOSPC.into());
        }
        Ok(())
    }
}

/// Bytes available on the disk to this user; `None` if the file system does not report them.
fn room(directory: &Path) -> io::Result<Option<u64>> {
    let disk = rustix::fs::statvfs(directory)?;
    Ok((disk.f_blocks > 0).then(|| disk.f_bavail.saturating_mul(disk.f_frsize)))
}

/// A version, complete or partial.
#[derive(Debug)]
pub(crate) struct Version {
    pub(crate) key: Key,
    pub(crate) meta: Meta,
    /// Present segments.
    segments: BTreeMap<u64, Segment>,
    /// Promised content, in bytes.
    promised: u64,
    used: u64,
    /// Tickets that read the version.
    pub(crate) readers: usize,
    /// The version is for one client, or was superseded: it is removed with its last reader.
    pub(crate) is_passing: bool,
    /// There is room for the version, and its metadata is on disk: clients may get it.
    pub(crate) is_settled: bool,
    /// The response had no length.
    pub(crate) is_unsized: bool,
    disk: Disk,
}

/// A present segment.
#[derive(Clone, Copy, Debug)]
struct Segment {
    /// Clock of its last request, or of its arrival.
    used: u64,
    /// The write that stored it; zero for segments from before the start.
    write: u64,
}

impl Version {
    fn new(key: Key, meta: Meta, disk: Disk) -> Version {
        Version {
            key,
            is_unsized: meta.size_bytes.is_none(),
            meta,
            segments: BTreeMap::new(),
            promised: 0,
            used: 0,
            readers: 0,
            is_passing: false,
            is_settled: false,
            disk,
        }
    }

    /// Number of present segments.
    pub(crate) fn segments(&self) -> u64 {
        self.segments.len() as u64
    }

    pub(crate) fn has(&self, segment: u64) -> bool {
        self.segments.contains_key(&segment)
    }

    /// Runs of present segments.
    pub(crate) fn runs(&self, runs_max: usize) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for &segment in self.segments.keys() {
            let continued = runs.last_mut().filter(|(_, end)| *end == segment);
            if let Some((_, end)) = continued {
                *end += 1;
            } else if runs.len() == runs_max {
                break;
            } else {
                runs.push((segment, segment + 1));
            }
        }
        runs
    }

    /// The first present segment at or after this one.
    pub(crate) fn next_there(&self, segment: u64) -> Option<u64> {
        self.segments
            .range(segment..)
            .next()
            .map(|(&there, _)| there)
    }
}

/// See the [module documentation](self).
#[derive(Debug)]
pub(crate) struct Store {
    root: PathBuf,
    bytes_max: u64,
    pub(crate) segment_bytes: u64,
    version_bytes: u64,
    versions: HashMap<VersionId, Version>,
    by_use: BTreeMap<u64, VersionId>,
    /// All segments, by the clock of their last request or arrival.
    segments_by_use: BTreeSet<(u64, VersionId, u64)>,
    bytes: u64,
    /// Header fields of all versions, in bytes.
    fields_bytes: u64,
    /// Promised content of all versions, in bytes.
    promised: u64,
    clock: u64,
    random: RandomState,
    pub(crate) evicted_bytes: u64,
    pub(crate) evicted_objects: u64,
    /// Segments found damaged at the start, by origin.
    pub(crate) damaged: BTreeMap<Arc<str>, u64>,
    /// Versions of another format found at the start.
    outdated: u64,
    removals: JoinSet<()>,
}

impl Store {
    /// Creates the cache directory's structure, and checks that it is writable: the operator gets
    /// the error at the start, not the first client.
    pub(crate) fn prepare(root: &Path) -> io::Result<()> {
        let objects = root.join(OBJECTS);
        if fs::symlink_metadata(&objects).is_ok_and(|it| it.is_symlink()) {
            return Err(io::Error::other(format!(
                "{OBJECTS} in it is a symbolic link, and what it leads to can neither be written \
                 nor served; mount there what is to hold the cache"
            )));
        }
        fs::create_dir_all(&objects)?;
        let trial = objects.join(".trial");
        fs::write(&trial, "x")?;
        fs::remove_file(&trial)
    }

    /// Loads the versions of the known origins from the cache directory, and removes everything
    /// else. After a reboot, all content is verified against its checksums.
    pub(crate) fn open(
        root: &Path,
        limits: Limits,
        origins: &[Arc<str>],
        boot_id: &str,
    ) -> io::Result<Store> {
        let objects = root.join(OBJECTS);
        let is_doubted = boot::has_started_since(&objects, boot_id);
        if is_doubted {
            tracing::info!(
                "the machine was started since the cache directory was last used: its content is \
                 compared with its checksums before the origin cache is in use"
            );
        }
        let mut store = Store {
            root: root.to_owned(),
            bytes_max: limits.bytes_max,
            segment_bytes: limits.segment_bytes,
            version_bytes: limits.version_bytes,
            versions: HashMap::new(),
            by_use: BTreeMap::new(),
            segments_by_use: BTreeSet::new(),
            bytes: 0,
            fields_bytes: 0,
            promised: 0,
            clock: 0,
            random: RandomState::new(),
            evicted_bytes: 0,
            evicted_objects: 0,
            damaged: BTreeMap::new(),
            outdated: 0,
            removals: JoinSet::new(),
        };
        for shard in fs::read_dir(&objects)? {
            let shard = shard?;
            let (kind, shard) = (shard.file_type()?, shard.path());
            if kind.is_file() && shard.ends_with(boot::BOOT) {
                continue;
            }
            let versions = if kind.is_dir() {
                fs::read_dir(&shard).ok()
            } else {
                None
            };
            let Some(versions) = versions else {
                sweep(&shard);
                continue;
            };
            for version in versions {
                let version = version?;
                let (kind, path) = (version.file_type()?, version.path());
                if !kind.is_dir() || store.adopt(&path, origins, is_doubted).is_none() {
                    sweep(&path);
                }
            }
        }
        boot::note(&objects, boot_id)?;
        if store.outdated > 0 {
            tracing::info!(
                "{} objects in the cache directory are removed: another version of this program \
                 has written them in another format; they are fetched again on demand",
                store.outdated
            );
        }
        for (origin, count) in &store.damaged {
            tracing::warn!(
                %origin,
                "{count} segments of the cache are damaged; they are fetched again on demand"
            );
        }
        store.make_room(0);
        Ok(store)
    }

    /// Loads a version that an earlier fetcher left.
    fn adopt(&mut self, path: &Path, origins: &[Arc<str>], is_doubted: bool) -> Option<()> {
        let id = u64::from_str_radix(path.file_name()?.to_str()?, 16).ok()?;
        let id = VersionId(id);
        if self.path(id) != *path {
            return None;
        }
        let record = read_file(&path.join(META)).ok()?;
        let RecordFormat { format } = serde_json::from_slice(&record).ok()?;
        if format != FORMAT {
            self.outdated += 1;
            return None;
        }
        let record: Record = serde_json::from_slice(&record).ok()?;
        let origin = origins.iter().find(|url| ***url == *record.origin)?;
        let size_bytes = record.meta.size_bytes?;
        if record.segment_bytes != self.segment_bytes {
            return None;
        }
        let disk = Disk::new(path.to_owned());
        let sums = is_doubted.then(|| disk.sums());
        let is_whole_file = |number| {
            let sums = sums.as_ref();
            sums.is_none_or(|sums| disk.is_as_written(number, sums).unwrap_or(false))
        };
        let mut segments = BTreeMap::new();
        let (mut bytes, mut damaged) = (0, 0);
        for file in fs::read_dir(path).ok()? {
            let file = file.ok()?;
            let name = file.file_name();
            let number = u64::from_str_radix(name.to_str()?, 16).ok();
            let number = number.filter(|&number| segment_name(number) == *name.to_string_lossy());
            let expected = number.and_then(|number| self.segment_len(size_bytes, number));
            // The metadata of a symbolic link itself, not of its target.
            let found = file.metadata().ok()?;
            let len = found.len();
            match (number, expected) {
                (Some(number), Some(expected))
                    if len == expected && found.is_file() && is_whole_file(number) =>
                {
                    bytes += len;
                    segments.insert(number, Segment { used: 0, write: 0 });
                }
                _ if name == META || name == SUMS => {}
                // A damaged segment, or an unfinished one of a fetcher that was killed.
                _ => {
                    damaged += u64::from(expected.is_some());
                    fs::remove_file(file.path()).ok()?;
                }
            }
        }
        if damaged > 0 {
            *self.damaged.entry(Arc::clone(origin)).or_default() += damaged;
        }
        let is_whole = segments.len() as u64 == self.segments_of(size_bytes);
        if !is_whole && !record.meta.is_in_parts() {
            return None;
        }
        let key = Key {
            origin: Arc::clone(origin),
            target: record.target,
            variant: record.variant,
        };
        let version = Version {
            segments,
            is_passing: record.is_passing,
            is_settled: true,
            ..Version::new(key, record.meta, disk)
        };
        self.bytes += bytes;
        let segments = version.segments.keys();
        self.segments_by_use
            .extend(segments.map(|&segment| (0, id, segment)));
        self.fields_bytes += version.meta.fields.bytes() as u64;
        self.versions.insert(id, version);
        self.touch(id);
        Some(())
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = (VersionId, &Key)> {
        self.versions
            .iter()
            .map(|(&id, version)| (id, &version.key))
    }

    pub(crate) fn get(&self, id: VersionId) -> Option<&Version> {
        self.versions.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: VersionId) -> Option<&mut Version> {
        self.versions.get_mut(&id)
    }

    pub(crate) fn path(&self, id: VersionId) -> PathBuf {
        self.root.join(id.directory())
    }

    /// The directory of a version, existing or not.
    pub(crate) fn disk(&self, id: VersionId) -> Disk {
        match self.versions.get(&id) {
            Some(version) => version.disk.clone(),
            None => Disk::new(self.path(id)),
        }
    }

    /// Present content, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Present and promised content with the overhead of all versions, in bytes.
    pub(crate) fn bytes_with_versions(&self) -> u64 {
        let versions = self.versions.len() as u64;
        self.content_bytes()
            .saturating_add(self.fields_bytes)
            .saturating_add(versions.saturating_mul(self.version_bytes))
    }

    /// Present and promised content, in bytes.
    fn content_bytes(&self) -> u64 {
        self.bytes.saturating_add(self.promised)
    }

    /// Whether this content would fit once [`Store::make_room`] has evicted all it can.
    pub(crate) fn fits(&self, bytes: u64) -> bool {
        self.content_bytes().saturating_add(bytes) <= self.bytes_max
    }

    /// Promises content of a version.
    pub(crate) fn promise(&mut self, id: VersionId, bytes: u64) {
        if let Some(version) = self.versions.get_mut(&id) {
            version.promised += bytes;
            self.promised += bytes;
        }
    }

    /// Releases promised content, after its write or without one.
    pub(crate) fn release(&mut self, id: VersionId, bytes: u64) {
        if let Some(version) = self.versions.get_mut(&id) {
            let bytes = bytes.min(version.promised);
            version.promised -= bytes;
            self.promised -= bytes;
        }
    }

    /// Missing content of a version, in bytes; zero while its length is unknown.
    pub(crate) fn missing_bytes(&self, id: VersionId) -> u64 {
        let Some(version) = self.versions.get(&id) else {
            return 0;
        };
        let segments = version.segments.keys();
        let there: u64 = segments.map(|&it| self.segment_bytes_of(id, it)).sum();
        version.meta.size_bytes.unwrap_or(0).saturating_sub(there)
    }

    /// Present and promised content of a version, in bytes. While its length is unknown, the last
    /// segment counts as a full one.
    pub(crate) fn version_bytes_of(&self, version: &Version) -> u64 {
        let segments = version.segments().saturating_mul(self.segment_bytes);
        segments.saturating_add(version.promised)
    }

    pub(crate) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Changes the limit; [`Store::make_room`] removes the excess.
    pub(crate) fn set_bytes_max(&mut self, bytes_max: u64) {
        self.bytes_max = bytes_max;
    }

    /// Number of versions.
    pub(crate) fn objects(&self) -> usize {
        self.versions.len()
    }

    /// Whether all segments of the version are present.
    pub(crate) fn is_whole(&self, version: &Version) -> bool {
        let segments = version.meta.size_bytes.map(|bytes| self.segments_of(bytes));
        segments.is_some_and(|count| count == 0 || version.runs(1) == [(0, count)])
    }

    /// An unused number for a new version.
    pub(crate) fn new_id(&mut self) -> VersionId {
        loop {
            self.clock += 1;
            let mut hasher = self.random.build_hasher();
            hasher.write_u64(self.clock);
            let id = VersionId(hasher.finish());
            if !self.versions.contains_key(&id) {
                return id;
            }
        }
    }

    pub(crate) fn insert(&mut self, id: VersionId, key: Key, meta: Meta, disk: Disk) {
        self.fields_bytes += meta.fields.bytes() as u64;
        self.versions.insert(id, Version::new(key, meta, disk));
        self.touch(id);
    }

    /// Replaces the metadata of a version.
    pub(crate) fn update(&mut self, id: VersionId, meta: Meta) {
        if let Some(version) = self.versions.get_mut(&id) {
            self.fields_bytes -= version.meta.fields.bytes() as u64;
            self.fields_bytes += meta.fields.bytes() as u64;
            version.meta = meta;
        }
    }

    /// Number of segments of an object, zero for an empty one.
    pub(crate) fn segments_of(&self, size_bytes: u64) -> u64 {
        size_bytes.div_ceil(self.segment_bytes)
    }

    fn segment_len(&self, size_bytes: u64, segment: u64) -> Option<u64> {
        let start = segment.checked_mul(self.segment_bytes)?;
        let left = size_bytes.checked_sub(start).filter(|&left| left > 0)?;
        Some(left.min(self.segment_bytes))
    }

    /// Marks a version as the most recently requested.
    pub(crate) fn touch(&mut self, id: VersionId) {
        self.clock += 1;
        let Some(version) = self.versions.get_mut(&id) else {
            return;
        };
        self.by_use.remove(&version.used);
        version.used = self.clock;
        self.by_use.insert(self.clock, id);
    }

    /// Marks a segment as the most recently requested.
    pub(crate) fn touch_segment(&mut self, id: VersionId, segment: u64) {
        self.touch(id);
        let clock = self.clock;
        let segments = self.versions.get_mut(&id).map(|it| &mut it.segments);
        if let Some(known) = segments.and_then(|segments| segments.get_mut(&segment)) {
            self.segments_by_use.remove(&(known.used, id, segment));
            known.used = clock;
            self.segments_by_use.insert((clock, id, segment));
        }
    }

    /// Adds a segment that this write stored. Returns false if its version is unknown.
    pub(crate) fn add(&mut self, id: VersionId, segment: u64, bytes: u64, write: u64) -> bool {
        self.clock += 1;
        let clock = self.clock;
        let Some(version) = self.versions.get_mut(&id) else {
            return false;
        };
        let known = version.segments.get(&segment).copied();
        let write = known.map_or(write, |known| known.write.max(write));
        let used = clock;
        version.segments.insert(segment, Segment { used, write });
        match known {
            Some(known) => drop(self.segments_by_use.remove(&(known.used, id, segment))),
            None => self.bytes += bytes,
        }
        self.segments_by_use.insert((clock, id, segment));
        // A version promised as a whole is promised once: a segment written again releases nothing.
        if known.is_none() || !self.is_promised_whole(id) {
            self.release(id, bytes);
        }
        true
    }

    /// Whether the whole version is promised at once: its length is known, and the origin serves no
    /// ranges.
    pub(crate) fn is_promised_whole(&self, id: VersionId) -> bool {
        let meta = self.versions.get(&id).map(|version| &version.meta);
        meta.is_some_and(|meta| meta.size_bytes.is_some() && !meta.is_in_parts())
    }

    /// Evicts until this many bytes have room, or nothing may be evicted any more. Returns the
    /// evicted versions.
    pub(crate) fn make_room(&mut self, bytes: u64) -> Vec<(VersionId, Key)> {
        let mut gone = Vec::new();
        while self.bytes_with_versions().saturating_add(bytes) > self.bytes_max {
            let unread = |id: &&VersionId| self.versions.get(id).is_some_and(|it| it.readers == 0);
            if let Some(&id) = self.by_use.values().find(unread) {
                let key = self.versions.get(&id).map(|version| version.key.clone());
                self.remove(id);
                self.evicted_objects += 1;
                gone.extend(key.map(|key| (id, key)));
            } else if self.fits(bytes) || !self.remove_segment() {
                // The overhead of versions with readers does not shrink with their segments.
                break;
            }
        }
        gone
    }

    /// Evicts this many bytes of versions without readers, since the disk is full. If there are
    /// none, removes segments of the version being written; versions with other readers stay.
    /// Returns the evicted versions.
    pub(crate) fn make_disk_room(
        &mut self,
        bytes: u64,
        writing: Option<VersionId>,
    ) -> Vec<(VersionId, Key)> {
        let before = self.evicted_bytes;
        let mut gone = Vec::new();
        while self.evicted_bytes - before < bytes {
            let unread = |id: &&VersionId| {
                let version = self.versions.get(id);
                version.is_some_and(|it| it.readers == 0 && Some(**id) != writing)
            };
            let Some(&id) = self.by_use.values().find(unread) else {
                break;
            };
            let key = self.versions.get(&id).map(|version| version.key.clone());
            self.remove(id);
            self.evicted_objects += 1;
            gone.extend(key.map(|key| (id, key)));
        }
        if let Some(id) = writing.filter(|_| self.evicted_bytes == before) {
            self.remove_segments_of(id, bytes);
        }
        gone
    }

    /// Removes this many bytes of a version, the least recently requested segments first.
    fn remove_segments_of(&mut self, id: VersionId, bytes: u64) {
        let version = self.versions.get(&id);
        let Some(version) = version.filter(|version| version.meta.is_in_parts()) else {
            return;
        };
        let mut segments: Vec<_> = version.segments.iter().collect();
        segments.sort_by_key(|(_, known)| known.used);
        let segments: Vec<u64> = segments.into_iter().map(|(&segment, _)| segment).collect();
        let before = self.evicted_bytes;
        for segment in segments {
            if self.evicted_bytes - before >= bytes {
                break;
            }
            self.evicted_bytes += self.forget_segment(id, segment);
        }
    }

    /// Removes the least recently requested segment of all versions that are served in parts.
    fn remove_segment(&mut self) -> bool {
        let is_in_parts = |(_, id, _): &&(u64, VersionId, u64)| {
            let version = self.versions.get(id);
            version.is_some_and(|version| version.meta.is_in_parts())
        };
        let oldest = self.segments_by_use.iter().find(is_in_parts);
        let Some(&(_, id, segment)) = oldest else {
            return false;
        };
        self.evicted_bytes += self.forget_segment(id, segment);
        true
    }

    /// Forgets a segment, and removes its file. Returns its length in bytes.
    fn forget_segment(&mut self, id: VersionId, segment: u64) -> u64 {
        let bytes = self.segment_bytes_of(id, segment);
        let Some(version) = self.versions.get_mut(&id) else {
            return 0;
        };
        let Some(Segment { used, write }) = version.segments.remove(&segment) else {
            return 0;
        };
        let disk = version.disk.clone();
        self.segments_by_use.remove(&(used, id, segment));
        self.bytes = self.bytes.saturating_sub(bytes);
        self.discard(move || disk.remove_segment(segment, write));
        bytes
    }

    /// Checks the file of a segment and those after it, up to the first intact one. Forgets
    /// segments that are missing or of a wrong length; returns their number.
    pub(crate) fn forget_missing(&mut self, id: VersionId, segment: u64) -> u64 {
        let mut missing = 0;
        for segment in (segment..).take(LOOK_MAX) {
            let Some(version) = self.versions.get(&id).filter(|it| it.has(segment)) else {
                break;
            };
            if version
                .disk
                .has_segment(segment, self.segment_bytes_of(id, segment))
            {
                break;
            }
            self.forget_segment(id, segment);
            missing += 1;
        }
        missing
    }

    fn segment_bytes_of(&self, id: VersionId, segment: u64) -> u64 {
        let size_bytes = self.versions.get(&id).and_then(|it| it.meta.size_bytes);
        size_bytes
            .and_then(|size_bytes| self.segment_len(size_bytes, segment))
            .unwrap_or(self.segment_bytes)
    }

    /// Forgets and removes a version. Open segment files stay readable to their end.
    pub(crate) fn remove(&mut self, id: VersionId) {
        let disk = self.disk(id);
        if let Some(version) = self.versions.get(&id) {
            let segments = version.segments.keys();
            let bytes: u64 = segments.map(|&it| self.segment_bytes_of(id, it)).sum();
            self.by_use.remove(&version.used);
            self.bytes = self.bytes.saturating_sub(bytes);
            self.promised = self.promised.saturating_sub(version.promised);
            let fields_bytes = version.meta.fields.bytes() as u64;
            self.fields_bytes = self.fields_bytes.saturating_sub(fields_bytes);
            self.evicted_bytes += bytes;
            for (&segment, known) in &version.segments {
                self.segments_by_use.remove(&(known.used, id, segment));
            }
            self.versions.remove(&id);
        }
        self.discard(move || disk.remove());
    }

    /// Removes files in the background.
    fn discard(&mut self, remove: impl FnOnce() -> io::Result<()> + Send + 'static) {
        let remove = move || match remove() {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!("removing from the cache directory: {error}");
            }
            _ => {}
        };
        while self.removals.try_join_next().is_some() {}
        match tokio::runtime::Handle::try_current() {
            Ok(_) => drop(self.removals.spawn_blocking(remove)),
            Err(_) => remove(),
        }
    }

    /// Signals when all removals requested so far are complete.
    pub(crate) fn tell_when_removed(&mut self, done: oneshot::Sender<()>) {
        let mut before = std::mem::take(&mut self.removals);
        self.removals.spawn(async move {
            while before.join_next().await.is_some() {}
            let _ = done.send(());
        });
    }

    /// Waits until all pending removals are complete.
    pub(crate) async fn settle(&mut self) {
        while self.removals.join_next().await.is_some() {}
    }

    /// The metadata of a version to be written; `None` while its length is unknown. The first write
    /// of a version also fails if its first segment has no room on the disk.
    pub(crate) fn record(&mut self, id: VersionId) -> Option<Recording> {
        self.clock += 1;
        let version = self.versions.get(&id)?;
        let record = Record {
            format: FORMAT,
            segment_bytes: self.segment_bytes,
            origin: version.key.origin.to_string(),
            target: version.key.target.clone(),
            variant: version.key.variant.clone(),
            is_passing: version.is_passing,
            meta: version.meta.clone(),
        };
        let size_bytes = version.meta.size_bytes?;
        let needs_room = !version.is_settled && version.segments.is_empty();
        Some(Recording {
            disk: version.disk.clone(),
            content: serde_json::to_vec(&record).ok()?.into(),
            number: self.clock,
            room_bytes: if needs_room {
                size_bytes.min(self.segment_bytes)
            } else {
                0
            },
        })
    }
}

/// Removes anything that is not a version; of a symbolic link, only the link.
fn sweep(path: &Path) {
    if let Err(error) = fs::remove_dir_all(path).or_else(|_| fs::remove_file(path)) {
        tracing::warn!("removing {}: {error}", path.display());
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, StatusCode};

    use super::*;

    const ORIGIN: &str = "http://a.example";

    fn limits(bytes_max: u64) -> Limits {
        Limits {
            bytes_max,
            segment_bytes: 100,
            version_bytes: 0,
        }
    }

    fn open(root: &Path, bytes_max: u64) -> Store {
        open_in(root, bytes_max, "this")
    }

    /// Opens the store under this boot ID.
    fn open_in(root: &Path, bytes_max: u64, boot_id: &str) -> Store {
        Store::prepare(root).unwrap();
        Store::open(root, limits(bytes_max), &[ORIGIN.into()], boot_id).unwrap()
    }

    fn meta(size_bytes: u64, etag: &str) -> Meta {
        let mut fields = HeaderMap::new();
        fields.insert("etag", etag.parse().unwrap());
        Meta {
            size_bytes: Some(size_bytes),
            validators: Validators::of(&fields, 0),
            takes_ranges: true,
            freshness: Freshness::of(StatusCode::OK, &fields, 0, 0),
            fields: Fields::default(),
            trailers: Fields::default(),
        }
    }

    fn key(target: &str) -> Key {
        Key {
            origin: ORIGIN.into(),
            target: target.to_owned(),
            variant: Variant::default(),
        }
    }

    /// A version of 250 bytes with these segments of its three.
    fn put_version(store: &mut Store, target: &str, etag: &str, segments: &[u64]) -> VersionId {
        let id = store.new_id();
        let disk = store.disk(id);
        store.insert(id, key(target), meta(250, etag), disk);
        store.record(id).unwrap().write().unwrap();
        for &segment in segments {
            put_segment(store, id, segment);
        }
        id
    }

    fn put_segment(store: &mut Store, id: VersionId, segment: u64) {
        let len = store.segment_len(250, segment).unwrap();
        let content = [Bytes::from(vec![segment as u8; len as usize])];
        let write = store.disk(id).write_segment(segment, 1, &content).unwrap();
        assert!(store.add(id, segment, len, write));
    }

    #[test]
    fn after_a_start_of_the_machine_content_is_compared_with_its_checksums() {
        let root = tempfile::tempdir().unwrap();
        let mut store = open_in(root.path(), 10_000, "first");
        let part = put_version(&mut store, "/part", "\"strong\"", &[0, 1, 2]);
        let whole = put_version(&mut store, "/whole", "W/\"weak\"", &[0, 1, 2]);
        let intact = put_version(&mut store, "/intact", "W/\"weak\"", &[0, 1, 2]);
        for id in [part, whole] {
            // It has its length, and not its content.
            fs::write(store.path(id).join(segment_name(1)), [0; 100]).unwrap();
        }
        drop(store);
        let store = open_in(root.path(), 10_000, "first");
        assert_eq!(store.bytes(), 750, "the kernel has not lost anything");
        drop(store);
        for _ in 0..2 {
            let store = open_in(root.path(), 10_000, "second");
            assert_eq!(store.get(part).unwrap().runs(9), [(0, 1), (2, 3)]);
            assert!(store.get(whole).is_none() && !store.path(whole).exists());
            assert_eq!(store.get(intact).unwrap().runs(9), [(0, 3)]);
        }
        let store = open_in(root.path(), 10_000, "third");
        assert!(store.damaged.is_empty(), "{:?}", store.damaged);
        fs::remove_file(store.path(intact).join(SUMS)).unwrap();
        drop(store);
        let store = open_in(root.path(), 10_000, "fourth");
        assert_eq!(store.damaged, [(ORIGIN.into(), 3)].into());
    }

    #[test]
    fn segments_that_others_have_removed_or_cut_are_forgotten() {
        let root = tempfile::tempdir().unwrap();
        let mut store = open(root.path(), 10_000);
        let id = put_version(&mut store, "/a", "\"x\"", &[0, 1, 2]);
        assert_eq!(store.forget_missing(id, 0), 0);
        fs::remove_file(store.path(id).join(segment_name(0))).unwrap();
        fs::write(store.path(id).join(segment_name(1)), "short").unwrap();
        assert_eq!(store.forget_missing(id, 0), 2);
        assert_eq!(store.get(id).unwrap().runs(9), [(2, 3)]);
        assert_eq!(store.bytes(), 50);
        put_segment(&mut store, id, 1);
        assert_eq!(store.forget_missing(id, 1), 0);
    }

    #[tokio::test]
    async fn what_is_fetched_again_while_it_is_being_removed_stays() {
        let root = tempfile::tempdir().unwrap();
        let mut store = open(root.path(), 250);
        let id = put_version(&mut store, "/a", "\"x\"", &[0, 1, 2]);
        store.get_mut(id).unwrap().readers = 1;
        // Another thread removes the first one: before it is there again, or behind that.
        assert_eq!(store.make_room(100), []);
        assert!(!store.get(id).unwrap().has(0));
        put_segment(&mut store, id, 0);
        store.settle().await;
        assert!(store.disk(id).has_segment(0, 100));
    }

    #[test]
    fn a_restart_finds_what_is_complete_or_can_be_completed() {
        let root = tempfile::tempdir().unwrap();
        let mut store = open(root.path(), 10_000);
        let whole = put_version(&mut store, "/whole", "W/\"weak\"", &[0, 1, 2]);
        let part = put_version(&mut store, "/part", "\"strong\"", &[0, 2]);
        let lost = put_version(&mut store, "/lost", "W/\"weak\"", &[0, 2]);
        let torn = put_version(&mut store, "/torn", "\"strong\"", &[0, 1]);
        fs::write(store.path(torn).join(segment_name(1)), "too short").unwrap();
        fs::write(store.path(torn).join(".00000002"), "unfinished").unwrap();
        let unknown = put_version(&mut store, "/unknown", "\"strong\"", &[0]);
        fs::remove_file(store.path(unknown).join(META)).unwrap();
        drop(store);

        let store = open(root.path(), 10_000);
        assert_eq!(store.bytes(), 250 + 150 + 100);
        assert_eq!(store.get(whole).unwrap().runs(9), [(0, 3)]);
        assert_eq!(store.get(part).unwrap().runs(9), [(0, 1), (2, 3)]);
        assert_eq!(store.get(part).unwrap().key, key("/part"));
        assert_eq!(store.get(torn).unwrap().runs(9), [(0, 1)]);
        assert!(!store.path(torn).join(".00000002").exists());
        for gone in [lost, unknown] {
            assert!(store.get(gone).is_none() && !store.path(gone).exists());
        }
        drop(store);
        let others = ["http://b.example".into()];
        let store = Store::open(root.path(), limits(10_000), &others, "this").unwrap();
        assert_eq!(store.bytes(), 0, "of another origin");
    }

    #[test]
    fn what_was_written_in_another_format_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let mut store = open(root.path(), 10_000);
        let [known, before, after] =
            ["/a", "/b", "/c"].map(|target| put_version(&mut store, target, "\"x\"", &[0, 1, 2]));
        for (id, format) in [(before, 2), (after, FORMAT + 1)] {
            let path = store.path(id).join(META);
            let mut record: serde_json::Value =
                serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            record["format"] = format.into();
            let meta = record["meta"].as_object_mut().unwrap();
            meta.remove("fields").unwrap();
            fs::write(&path, serde_json::to_vec(&record).unwrap()).unwrap();
        }
        drop(store);
        let store = open(root.path(), 10_000);
        assert_eq!((store.bytes(), store.outdated), (250, 2));
        assert!(store.get(known).is_some());
        assert!(!store.path(before).exists() && !store.path(after).exists());
    }

    #[test]
    fn header_fields_count_as_well() {
        let root = tempfile::tempdir().unwrap();
        let mut store = open(root.path(), 1_000);
        let fields = |bytes: usize| -> Fields {
            let line = format!("x:{}\n", "y".repeat(bytes - 3));
            serde_json::from_value(line.into()).unwrap()
        };
        let id = put_version(&mut store, "/a", "\"x\"", &[0, 1, 2]);
        assert_eq!(store.bytes_with_versions(), 250);
        let renewed = Meta {
            fields: fields(100),
            ..meta(250, "\"x\"")
        };
        store.update(id, renewed.clone());
        store.record(id).unwrap().write().unwrap();
        assert_eq!(store.bytes_with_versions(), 350);
        drop(store);
        let mut store = open(root.path(), 1_000);
        assert_eq!(store.bytes_with_versions(), 350, "after a restart");
        let other = store.new_id();
        let disk = store.disk(other);
        store.insert(
            other,
            key("/b"),
            Meta {
                fields: fields(700),
                ..renewed
            },
            disk,
        );
        assert_eq!(store.make_room(0), [(id, key("/a"))]);
        assert_eq!(store.bytes_with_versions(), 700);
        store.remove(other);
        assert_eq!(store.bytes_with_versions(), 0);
    }

    #[test]
    fn what_is_known_is_written_in_any_order_and_not_after_the_version_has_gone() {
        let root = tempfile::tempdir().unwrap();
        let mut store = open(root.path(), 10_000);
        let id = put_version(&mut store, "/a", "\"x\"", &[0, 1, 2]);
        let before = store.record(id).unwrap();
        store.get_mut(id).unwrap().is_passing = true;
        store.record(id).unwrap().write().unwrap();
        before.write().unwrap();
        let late = store.record(id).unwrap();
        drop(store);
        let mut store = open(root.path(), 10_000);
        assert!(store.get(id).unwrap().is_passing, "the later one counts");
        store.remove(id);
        assert!(!store.path(id).exists());
        let again = put_version(&mut store, "/b", "\"x\"", &[0]);
        let late_again = store.record(again).unwrap();
        store.remove(again);
        late_again.write().unwrap();
        assert!(!store.path(again).exists());
        drop(late);
    }

    #[test]
    fn what_there_is_no_room_for_is_not_promised() {
        let root = tempfile::tempdir().unwrap();
        let mut store = open(root.path(), 10_000);
        let id = store.new_id();
        let disk = store.disk(id);
        store.insert(id, key("/a"), meta(250, "\"x\""), disk);
        let mut record = store.record(id).unwrap();
        assert_eq!(record.room_bytes, 100, "of the first segment");
        record.write().unwrap();
        record.room_bytes = u64::MAX;
        let error = record.write().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        store.get_mut(id).unwrap().is_settled = true;
        assert_eq!(store.record(id).unwrap().room_bytes, 0);
    }

    #[test]
    fn symbolic_links_are_removed_and_not_followed() {
        let (root, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut store = open(root.path(), 10_000);
        let id = put_version(&mut store, "/a", "\"x\"", &[0, 1]);
        let linked = put_version(&mut store, "/b", "\"x\"", &[0, 1, 2]);
        let directory = store.path(id);
        drop(store);
        let file = elsewhere.path().join("00000005");
        fs::write(&file, [7; 100]).unwrap();
        let link = |to: &Path, at: PathBuf| {
            std::os::unix::fs::symlink(to, &at).unwrap();
            at
        };
        let moved = elsewhere.path().join("version");
        fs::rename(root.path().join(linked.directory()), &moved).unwrap();
        let links = [
            link(elsewhere.path(), root.path().join(OBJECTS).join("zz")),
            link(&file, root.path().join(OBJECTS).join("file")),
            link(elsewhere.path(), directory.with_file_name("5")),
            link(&moved, root.path().join(linked.directory())),
            // As long as the segment should be.
            link(Path::new(&"x".repeat(50)), directory.join(segment_name(2))),
        ];
        let store = open(root.path(), 10_000);
        for link in links {
            assert!(fs::symlink_metadata(&link).is_err(), "{}", link.display());
        }
        assert_eq!(fs::read(&file).unwrap(), [7; 100]);
        assert!(moved.join(META).exists());
        assert_eq!(store.get(id).unwrap().runs(9), [(0, 2)]);
        assert!(store.get(linked).is_none());
        drop(store);
        let objects = root.path().join(OBJECTS);
        fs::rename(&objects, elsewhere.path().join(OBJECTS)).unwrap();
        link(&elsewhere.path().join(OBJECTS), objects);
        let error = Store::prepare(root.path()).unwrap_err().to_string();
        assert!(
            error.contains("symbolic link") && error.contains("mount"),
            "{error}"
        );
    }

    #[test]
    fn the_version_whose_last_request_is_oldest_makes_room_and_what_is_read_goes_last() {
        let root = tempfile::tempdir().unwrap();
        let mut store = open(root.path(), 750);
        let [a, b, c] =
            ["/a", "/b", "/c"].map(|target| put_version(&mut store, target, "\"x\"", &[0, 1, 2]));
        assert_eq!(store.make_room(0), []);
        store.touch(a);
        store.get_mut(b).unwrap().readers = 1;
        assert_eq!(store.make_room(100), [(c, key("/c"))]);
        assert_eq!(store.make_room(500), [(a, key("/a"))]);
        assert_eq!(store.bytes(), 250);
        // Versions with readers lose segments, the least recently requested first.
        store.touch_segment(b, 0);
        assert_eq!(store.make_room(600), []);
        assert_eq!(store.get(b).unwrap().runs(9), [(0, 1), (2, 3)]);
        assert_eq!(store.bytes(), 150);
        assert!(!store.path(b).join(segment_name(1)).exists());
        assert!(!store.path(a).exists() && !store.path(c).exists());
        assert_eq!((store.evicted_bytes, store.evicted_objects), (600, 2));
    }

    #[test]
    fn a_full_disk_takes_nothing_that_is_served_to_others() {
        let root = tempfile::tempdir().unwrap();
        let mut store = open(root.path(), 10_000);
        let [a, b, c] =
            ["/a", "/b", "/c"].map(|target| put_version(&mut store, target, "\"x\"", &[0, 1, 2]));
        for id in [a, b] {
            store.get_mut(id).unwrap().readers = 1;
        }
        // It has no reader, so that it goes first, even if that is more than wanted.
        assert_eq!(store.make_disk_room(100, Some(a)), [(c, key("/c"))]);
        assert_eq!(store.make_disk_room(100, None), []);
        assert_eq!(
            store.bytes(),
            500,
            "nothing goes for what is known of a version"
        );
        store.touch_segment(a, 0);
        assert_eq!(store.make_disk_room(150, Some(a)), []);
        assert_eq!(store.get(a).unwrap().runs(9), [(0, 1)]);
        assert_eq!(store.get(b).unwrap().runs(9), [(0, 3)]);
    }

    #[test]
    fn small_and_empty_objects_are_bounded_as_well() {
        let root = tempfile::tempdir().unwrap();
        let limits = Limits {
            version_bytes: 50,
            ..limits(1000)
        };
        Store::prepare(root.path()).unwrap();
        let mut store = Store::open(root.path(), limits, &[ORIGIN.into()], "this").unwrap();
        for number in 0..100 {
            let id = store.new_id();
            let disk = store.disk(id);
            store.insert(id, key(&format!("/{number}")), meta(0, "\"x\""), disk);
            store.make_room(0);
        }
        assert_eq!((store.ids().count(), store.bytes()), (20, 0));
        let read: Vec<_> = store.ids().map(|(id, _)| id).collect();
        for id in read {
            store.get_mut(id).unwrap().readers = 1;
        }
        let id = put_version(&mut store, "/read", "\"x\"", &[0]);
        store.get_mut(id).unwrap().readers = 1;
        assert_eq!(store.make_room(100), []);
        assert_eq!(store.get(id).unwrap().runs(9), [(0, 1)], "that is no help");
    }

    #[test]
    fn what_is_read_and_cannot_be_fetched_in_parts_stays() {
        let root = tempfile::tempdir().unwrap();
        let mut store = open(root.path(), 100);
        let id = put_version(&mut store, "/a", "W/\"weak\"", &[0, 1, 2]);
        store.get_mut(id).unwrap().readers = 1;
        assert_eq!(store.make_room(0), []);
        assert_eq!(store.get(id).unwrap().runs(9), [(0, 3)]);
        assert_eq!(store.get(id).unwrap().next_there(1), Some(1));
        store.get_mut(id).unwrap().readers = 0;
        assert_eq!(store.make_room(0), [(id, key("/a"))]);
        assert_eq!(store.bytes(), 0);
    }
}
