//! Versions of objects on disk, cut into segments, and which of them make room for others.
//!
//! ```text
//! CACHE/objects/3f/9a…3f/            a version
//!                        meta       what it is, in JSON; versions without it are swept away at the start
//!                        00000000   its segments: complete, and never changed
//!                        00000001
//! ```
//!
//! When there is too much, the version goes that nobody has asked for for the longest time. One that is being read goes
//! last, and segment by segment: what a client needs of it is fetched again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::freshness::Freshness;
use crate::message::segment_name;
use crate::validator::Validators;

/// The directory of all versions, below the cache directory.
pub const OBJECTS: &str = "objects";

const META: &str = "meta";

/// Another number for each way to write things down: what is of another one is swept away.
const FORMAT: u32 = 1;

/// What a version takes beside its content, in bytes: a directory, `meta`, and what is known of it in memory. However
/// small objects are, there are no more of them than fit with this.
pub(crate) const VERSION_BYTES: u64 = 8 << 10;

/// How much a cache may hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) bytes_max: u64,
    pub(crate) segment_bytes: u64,
    /// What each version counts beside its content.
    pub(crate) version_bytes: u64,
}

/// What is asked for: an origin, by its URL, and a target there.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) origin: Arc<str>,
    pub(crate) target: String,
}

/// A version, by a number that no other has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct VersionId(u64);

impl VersionId {
    /// Where it lies, below the cache directory.
    pub(crate) fn directory(self) -> String {
        format!("{OBJECTS}/{:02x}/{:016x}", self.0 & 0xff, self.0)
    }

    /// The version that lies there; `None` if none does.
    pub(crate) fn of_directory(directory: &str) -> Option<VersionId> {
        let (_, number) = directory.rsplit_once('/')?;
        let id = VersionId(u64::from_str_radix(number, 16).ok()?);
        (id.directory() == directory).then_some(id)
    }
}

/// What is known of a version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Meta {
    /// `None` until all of it has come.
    pub(crate) size_bytes: Option<u64>,
    pub(crate) validators: Validators,
    /// It can be asked for in parts.
    pub(crate) takes_ranges: bool,
    pub(crate) freshness: Freshness,
    pub(crate) content: Vec<(String, String)>,
    pub(crate) caching: Vec<(String, String)>,
}

impl Meta {
    /// Any part of it can be fetched again, and nothing else in its place.
    pub(crate) fn is_in_parts(&self) -> bool {
        self.takes_ranges && self.size_bytes.is_some() && self.validators.strong().is_some()
    }
}

/// How it is written down.
#[derive(Serialize, Deserialize)]
struct Record {
    format: u32,
    segment_bytes: u64,
    origin: String,
    target: String,
    /// See [`Version::is_passing`].
    #[serde(default)]
    is_passing: bool,
    meta: Meta,
}

/// What has become of a version's `meta`: it is written, and the version removed, by other threads, in any order.
#[derive(Debug, Default)]
struct OnDisk {
    /// The number of the last one that was written.
    written: u64,
    is_gone: bool,
}

/// What is known of a version, to be written down so that it is there again after a restart.
#[derive(Debug)]
pub(crate) struct Recording {
    directory: PathBuf,
    content: Bytes,
    number: u64,
    on_disk: Arc<Mutex<OnDisk>>,
    /// There must be so much room besides, in bytes.
    room_bytes: u64,
}

impl Recording {
    /// Writes it, unless the version has gone, or a later one is there. Waits for the disk.
    pub(crate) fn write(&self) -> io::Result<()> {
        let mut on_disk = self.on_disk.lock().unwrap_or_else(PoisonError::into_inner);
        if on_disk.is_gone || on_disk.written > self.number {
            return Ok(());
        }
        put(
            &self.directory,
            META,
            0,
            std::slice::from_ref(&self.content),
        )?;
        on_disk.written = self.number;
        if self.room_bytes > 0 && room(&self.directory)?.is_some_and(|it| it < self.room_bytes) {
            return Err(rustix::io::Errno::NOSPC.into());
        }
        Ok(())
    }
}

/// Bytes that are left on the disk for this user, if it says so.
fn room(directory: &Path) -> io::Result<Option<u64>> {
    let disk = rustix::fs::statvfs(directory)?;
    Ok((disk.f_blocks > 0).then(|| disk.f_bavail.saturating_mul(disk.f_frsize)))
}

/// A version, as far as it is there.
#[derive(Debug)]
pub(crate) struct Version {
    pub(crate) key: Key,
    pub(crate) meta: Meta,
    /// Those that are there, and when each was asked for or came.
    segments: BTreeMap<u64, u64>,
    used: u64,
    /// Tickets for it.
    pub(crate) readers: usize,
    /// It is for one client, or another one has taken its place: it goes with its last reader.
    pub(crate) is_passing: bool,
    /// It is known that there is room for it, and after a restart it will be there: clients may be told of it.
    pub(crate) is_settled: bool,
    /// It has come without a length.
    pub(crate) is_unsized: bool,
    on_disk: Arc<Mutex<OnDisk>>,
}

impl Version {
    fn new(key: Key, meta: Meta) -> Version {
        Version {
            key,
            is_unsized: meta.size_bytes.is_none(),
            meta,
            segments: BTreeMap::new(),
            used: 0,
            readers: 0,
            is_passing: false,
            is_settled: false,
            on_disk: Arc::default(),
        }
    }

    /// How many segments are there.
    pub(crate) fn segments(&self) -> u64 {
        self.segments.len() as u64
    }

    pub(crate) fn has(&self, segment: u64) -> bool {
        self.segments.contains_key(&segment)
    }

    /// Segments that are there, as runs.
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

    /// The first segment from here on that is there.
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
    /// When each segment was asked for or came.
    segments_by_use: BTreeSet<(u64, VersionId, u64)>,
    bytes: u64,
    clock: u64,
    random: RandomState,
    pub(crate) evicted_bytes: u64,
    pub(crate) evicted_objects: u64,
    removals: JoinSet<()>,
}

impl Store {
    /// Makes a cache directory one, and tries whether it can be written to: whoever cannot is told now, and not by the
    /// first client.
    pub(crate) fn prepare(root: &Path) -> io::Result<()> {
        let objects = root.join(OBJECTS);
        if fs::symlink_metadata(&objects).is_ok_and(|it| it.is_symlink()) {
            return Err(io::Error::other(format!(
                "{OBJECTS} in it is a symbolic link, and what it leads to can neither be written nor served; mount there \
                 what is to hold the cache"
            )));
        }
        fs::create_dir_all(&objects)?;
        let trial = objects.join(".trial");
        fs::write(&trial, "x")?;
        fs::remove_file(&trial)
    }

    /// The versions that a cache directory holds, of these origins; all else in it goes.
    pub(crate) fn open(root: &Path, limits: Limits, origins: &[Arc<str>]) -> io::Result<Store> {
        let mut store = Store {
            root: root.to_owned(),
            bytes_max: limits.bytes_max,
            segment_bytes: limits.segment_bytes,
            version_bytes: limits.version_bytes,
            versions: HashMap::new(),
            by_use: BTreeMap::new(),
            segments_by_use: BTreeSet::new(),
            bytes: 0,
            clock: 0,
            random: RandomState::new(),
            evicted_bytes: 0,
            evicted_objects: 0,
            removals: JoinSet::new(),
        };
        for shard in fs::read_dir(root.join(OBJECTS))? {
            let shard = shard?;
            let (kind, shard) = (shard.file_type()?, shard.path());
            let versions = match kind.is_dir() {
                true => fs::read_dir(&shard).ok(),
                false => None,
            };
            let Some(versions) = versions else {
                sweep(&shard);
                continue;
            };
            for version in versions {
                let version = version?;
                let (kind, path) = (version.file_type()?, version.path());
                if !kind.is_dir() || store.adopt(&path, origins).is_none() {
                    sweep(&path);
                }
            }
        }
        store.make_room(0);
        Ok(store)
    }

    /// Takes up a version that was left by a fetcher before.
    fn adopt(&mut self, path: &Path, origins: &[Arc<str>]) -> Option<()> {
        let id = u64::from_str_radix(path.file_name()?.to_str()?, 16).ok()?;
        let id = VersionId(id);
        if self.path(id) != *path {
            return None;
        }
        let record = read_meta(&path.join(META)).ok()?;
        let record: Record = serde_json::from_slice(&record).ok()?;
        let origin = origins.iter().find(|url| ***url == *record.origin)?;
        let size_bytes = record.meta.size_bytes?;
        if record.format != FORMAT || record.segment_bytes != self.segment_bytes {
            return None;
        }
        let mut segments = BTreeMap::new();
        let mut bytes = 0;
        for file in fs::read_dir(path).ok()? {
            let file = file.ok()?;
            let name = file.file_name();
            let number = u64::from_str_radix(name.to_str()?, 16).ok();
            let number = number.filter(|&number| segment_name(number) == *name.to_string_lossy());
            let expected = number.and_then(|number| self.segment_len(size_bytes, number));
            // Not of what a symbolic link leads to.
            let found = file.metadata().ok()?;
            let len = found.len();
            match (number, expected) {
                (Some(number), Some(expected)) if len == expected && found.is_file() => {
                    bytes += len;
                    segments.insert(number, 0);
                }
                _ if name == META => {}
                // A part of a segment, of a fetcher that was killed.
                _ => fs::remove_file(file.path()).ok()?,
            }
        }
        let is_whole = segments.len() as u64 == self.segments_of(size_bytes);
        if !is_whole && !record.meta.is_in_parts() {
            return None;
        }
        let key = Key {
            origin: Arc::clone(origin),
            target: record.target,
        };
        let version = Version {
            segments,
            is_passing: record.is_passing,
            is_settled: true,
            ..Version::new(key, record.meta)
        };
        self.bytes += bytes;
        let segments = version.segments.keys();
        self.segments_by_use
            .extend(segments.map(|&segment| (0, id, segment)));
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

    /// All content that is there, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The same, with what each version takes beside it.
    pub(crate) fn bytes_with_versions(&self) -> u64 {
        let versions = self.versions.len() as u64;
        self.bytes
            .saturating_add(versions.saturating_mul(self.version_bytes))
    }

    pub(crate) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// From now on it may hold so much; what makes room for that is told by [`Store::make_room`].
    pub(crate) fn set_bytes_max(&mut self, bytes_max: u64) {
        self.bytes_max = bytes_max;
    }

    /// How many versions there are.
    pub(crate) fn objects(&self) -> usize {
        self.versions.len()
    }

    /// All of it is there.
    pub(crate) fn is_whole(&self, version: &Version) -> bool {
        let segments = version.meta.size_bytes.map(|bytes| self.segments_of(bytes));
        segments.is_some_and(|count| count == 0 || version.runs(1) == [(0, count)])
    }

    /// A number for a version that is going to come.
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

    pub(crate) fn insert(&mut self, id: VersionId, key: Key, meta: Meta) {
        self.versions.insert(id, Version::new(key, meta));
        self.touch(id);
    }

    /// How many segments an object has. An empty one has none.
    pub(crate) fn segments_of(&self, size_bytes: u64) -> u64 {
        size_bytes.div_ceil(self.segment_bytes)
    }

    fn segment_len(&self, size_bytes: u64, segment: u64) -> Option<u64> {
        let start = segment.checked_mul(self.segment_bytes)?;
        let left = size_bytes.checked_sub(start).filter(|&left| left > 0)?;
        Some(left.min(self.segment_bytes))
    }

    /// It has been asked for.
    pub(crate) fn touch(&mut self, id: VersionId) {
        self.clock += 1;
        let Some(version) = self.versions.get_mut(&id) else {
            return;
        };
        self.by_use.remove(&version.used);
        version.used = self.clock;
        self.by_use.insert(self.clock, id);
    }

    /// A segment of it has been asked for.
    pub(crate) fn touch_segment(&mut self, id: VersionId, segment: u64) {
        self.touch(id);
        let clock = self.clock;
        let segments = self.versions.get_mut(&id).map(|it| &mut it.segments);
        if let Some(used) = segments.and_then(|segments| segments.get_mut(&segment)) {
            self.segments_by_use.remove(&(*used, id, segment));
            *used = clock;
            self.segments_by_use.insert((clock, id, segment));
        }
    }

    /// A segment has come, and lies there. Returns false if nobody knows its version any more.
    pub(crate) fn add(&mut self, id: VersionId, segment: u64, bytes: u64) -> bool {
        self.clock += 1;
        let clock = self.clock;
        let Some(version) = self.versions.get_mut(&id) else {
            return false;
        };
        match version.segments.insert(segment, clock) {
            Some(used) => drop(self.segments_by_use.remove(&(used, id, segment))),
            None => self.bytes += bytes,
        }
        self.segments_by_use.insert((clock, id, segment));
        true
    }

    /// Has others make room for so many bytes, until it has been made, or there is nothing left that may go. Returns the
    /// versions that have gone.
    pub(crate) fn make_room(&mut self, bytes: u64) -> Vec<(VersionId, Key)> {
        let mut gone = Vec::new();
        while self.bytes_with_versions().saturating_add(bytes) > self.bytes_max {
            let unread = |id: &&VersionId| self.versions.get(id).is_some_and(|it| it.readers == 0);
            if let Some(&id) = self.by_use.values().find(unread) {
                let key = self.versions.get(&id).map(|version| version.key.clone());
                self.remove(id);
                self.evicted_objects += 1;
                gone.extend(key.map(|key| (id, key)));
            } else if self.bytes.saturating_add(bytes) <= self.bytes_max || !self.remove_segment() {
                // What versions take that are read does not become less with their segments.
                break;
            }
        }
        gone
    }

    /// Of those that are read, the segment goes that nobody has asked for for the longest time.
    fn remove_segment(&mut self) -> bool {
        let is_in_parts = |(_, id, _): &&(u64, VersionId, u64)| {
            let version = self.versions.get(id);
            version.is_some_and(|version| version.meta.is_in_parts())
        };
        let oldest = self.segments_by_use.iter().find(is_in_parts);
        let Some(&(used, id, segment)) = oldest else {
            return false;
        };
        self.segments_by_use.remove(&(used, id, segment));
        let bytes = self.segment_bytes_of(id, segment);
        if let Some(version) = self.versions.get_mut(&id) {
            version.segments.remove(&segment);
        }
        self.bytes = self.bytes.saturating_sub(bytes);
        self.evicted_bytes += bytes;
        let path = self.path(id).join(segment_name(segment));
        self.discard(move || fs::remove_file(path));
        true
    }

    fn segment_bytes_of(&self, id: VersionId, segment: u64) -> u64 {
        let size_bytes = self.versions.get(&id).and_then(|it| it.meta.size_bytes);
        size_bytes
            .and_then(|size_bytes| self.segment_len(size_bytes, segment))
            .unwrap_or(self.segment_bytes)
    }

    /// Forgets a version, and removes it. Who has opened a segment can read it to its end.
    pub(crate) fn remove(&mut self, id: VersionId) {
        let path = self.path(id);
        let mut on_disk = Arc::default();
        if let Some(version) = self.versions.get(&id) {
            on_disk = Arc::clone(&version.on_disk);
            let segments = version.segments.keys();
            let bytes: u64 = segments.map(|&it| self.segment_bytes_of(id, it)).sum();
            self.by_use.remove(&version.used);
            self.bytes = self.bytes.saturating_sub(bytes);
            self.evicted_bytes += bytes;
            for (&segment, &used) in &version.segments {
                self.segments_by_use.remove(&(used, id, segment));
            }
            self.versions.remove(&id);
        }
        self.discard(move || {
            let mut on_disk = on_disk.lock().unwrap_or_else(PoisonError::into_inner);
            on_disk.is_gone = true;
            fs::remove_dir_all(path)
        });
    }

    /// Removes something, and does not wait for it.
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

    /// Says so when all is removed that is to be by now.
    pub(crate) fn tell_when_removed(&mut self, done: oneshot::Sender<()>) {
        let mut before = std::mem::take(&mut self.removals);
        self.removals.spawn(async move {
            while before.join_next().await.is_some() {}
            let _ = done.send(());
        });
    }

    /// Waits until all is removed that is to be.
    pub(crate) async fn settle(&mut self) {
        while self.removals.join_next().await.is_some() {}
    }

    /// What is known of a version, to be written down; `None` as long as its length is not known. While it has not been
    /// written down, that fails also if there is no room for the first of its segments.
    pub(crate) fn record(&mut self, id: VersionId) -> Option<Recording> {
        self.clock += 1;
        let version = self.versions.get(&id)?;
        let record = Record {
            format: FORMAT,
            segment_bytes: self.segment_bytes,
            origin: version.key.origin.to_string(),
            target: version.key.target.clone(),
            is_passing: version.is_passing,
            meta: version.meta.clone(),
        };
        let size_bytes = version.meta.size_bytes?;
        let needs_room = !version.is_settled && version.segments.is_empty();
        Some(Recording {
            directory: self.path(id),
            content: serde_json::to_vec(&record).ok()?.into(),
            number: self.clock,
            on_disk: Arc::clone(&version.on_disk),
            room_bytes: match needs_room {
                true => size_bytes.min(self.segment_bytes),
                false => 0,
            },
        })
    }
}

/// Removes what is no version; of a symbolic link, not what it leads to.
fn sweep(path: &Path) {
    if let Err(error) = fs::remove_dir_all(path).or_else(|_| fs::remove_file(path)) {
        tracing::warn!("removing {}: {error}", path.display());
    }
}

fn read_meta(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    let flags = OFlags::NOFOLLOW.bits().cast_signed();
    let mut file = fs::File::options()
        .read(true)
        .custom_flags(flags)
        .open(path)?;
    file.read_to_end(&mut content)?;
    Ok(content)
}

/// Writes a file under a name of this writer's own, and renames it when it is complete. Makes the directory.
fn put(directory: &Path, name: &str, writer: u64, content: &[Bytes]) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let unfinished = directory.join(format!(".{name}.{writer}"));
    let write = || -> io::Result<()> {
        let mut file = fs::File::create(&unfinished)?;
        for bytes in content {
            file.write_all(bytes)?;
        }
        fs::rename(&unfinished, directory.join(name))
    };
    write().inspect_err(|_| {
        let _ = fs::remove_file(&unfinished);
    })
}

/// Writes a segment of the version in this directory, unless it is there; of several writers each has its own number.
/// Waits for the disk.
pub(crate) fn write_segment(
    directory: &Path,
    segment: u64,
    writer: u64,
    content: &[Bytes],
) -> io::Result<()> {
    let name = segment_name(segment);
    match directory.join(&name).exists() {
        true => Ok(()),
        false => put(directory, &name, writer, content),
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
        Store::prepare(root).unwrap();
        Store::open(root, limits(bytes_max), &[ORIGIN.into()]).unwrap()
    }

    fn meta(size_bytes: u64, etag: &str) -> Meta {
        let mut fields = HeaderMap::new();
        fields.insert("etag", etag.parse().unwrap());
        Meta {
            size_bytes: Some(size_bytes),
            validators: Validators::of(&fields, 0),
            takes_ranges: true,
            freshness: Freshness::of(StatusCode::OK, &fields, 0, 0),
            content: Vec::new(),
            caching: Vec::new(),
        }
    }

    fn key(target: &str) -> Key {
        Key {
            origin: ORIGIN.into(),
            target: target.to_owned(),
        }
    }

    /// A version of 250 bytes with these segments of its three.
    fn put_version(store: &mut Store, target: &str, etag: &str, segments: &[u64]) -> VersionId {
        let id = store.new_id();
        store.insert(id, key(target), meta(250, etag));
        store.record(id).unwrap().write().unwrap();
        for &segment in segments {
            let len = store.segment_len(250, segment).unwrap();
            let content = [Bytes::from(vec![segment as u8; len as usize])];
            write_segment(&store.path(id), segment, 1, &content).unwrap();
            assert!(store.add(id, segment, len));
        }
        id
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
        let store = Store::open(root.path(), limits(10_000), &others).unwrap();
        assert_eq!(store.bytes(), 0, "of another origin");
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
        store.insert(id, key("/a"), meta(250, "\"x\""));
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
    fn what_nobody_has_asked_for_longest_makes_room_and_what_is_read_goes_last() {
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
        // Of what is read, segments go, and those first that were asked for first.
        store.touch_segment(b, 0);
        assert_eq!(store.make_room(600), []);
        assert_eq!(store.get(b).unwrap().runs(9), [(0, 1), (2, 3)]);
        assert_eq!(store.bytes(), 150);
        assert!(!store.path(b).join(segment_name(1)).exists());
        assert!(!store.path(a).exists() && !store.path(c).exists());
        assert_eq!((store.evicted_bytes, store.evicted_objects), (600, 2));
    }

    #[test]
    fn small_and_empty_objects_are_bounded_as_well() {
        let root = tempfile::tempdir().unwrap();
        let limits = Limits {
            version_bytes: 50,
            ..limits(1000)
        };
        Store::prepare(root.path()).unwrap();
        let mut store = Store::open(root.path(), limits, &[ORIGIN.into()]).unwrap();
        for number in 0..100 {
            let id = store.new_id();
            store.insert(id, key(&format!("/{number}")), meta(0, "\"x\""));
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
