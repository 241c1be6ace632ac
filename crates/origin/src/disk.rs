//! The files of a version: writing, removing, verifying.
//!
//! ```text
//! meta       what the version is, in JSON
//! sums       a checksum of each segment, eight bytes each, at the place of its number
//! 00000000   the segments
//! ```
//!
//! Threads write and remove these files in any order. Each write of a segment has a number, and a
//! removal names the write to undo: a segment written again since then stays.

use std::collections::HashMap;
use std::fs;
use std::hash::Hasher;
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use rustix::fs::OFlags;
use siphasher::sip::SipHasher13;

use crate::message::segment_name;

pub(crate) const META: &str = "meta";
pub(crate) const SUMS: &str = "sums";

/// Length of a checksum in [`SUMS`], in bytes.
const SUM_BYTES: u64 = 8;

/// Size of a read while a segment is verified, in bytes.
const READ_BYTES: usize = 256 << 10;

/// The directory of a version. Clones share its state.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    directory: PathBuf,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// Number of the last `meta` written.
    meta: u64,
    is_gone: bool,
    /// Number of the last segment write.
    writes: u64,
    /// Last write of each segment; segments from before the start have no entry.
    segments: HashMap<u64, u64>,
}

impl Disk {
    pub(crate) fn new(directory: PathBuf) -> Disk {
        Disk {
            directory,
            state: Arc::default(),
        }
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes `meta`, unless the version was removed or a `meta` with a later number exists. Blocks
    /// on the disk.
    pub(crate) fn write_meta(&self, number: u64, content: &Bytes) -> io::Result<()> {
        let mut state = self.state();
        if state.is_gone || state.meta > number {
            return Ok(());
        }
        let unfinished = self.put(META, 0, std::slice::from_ref(content))?;
        unfinished.finish(|| Ok(()))?;
        state.meta = number;
        Ok(())
    }

    /// Whether `meta` exists.
    pub(crate) fn has_meta(&self) -> bool {
        self.directory.join(META).exists()
    }

    /// Writes a segment and its checksum; concurrent writers have distinct numbers. Returns the
    /// number of the write. Blocks on the disk.
    pub(crate) fn write_segment(
        &self,
        segment: u64,
        writer: u64,
        content: &[Bytes],
    ) -> io::Result<u64> {
        let mut sum = Sum::of(segment);
        for bytes in content {
            sum.add(bytes);
        }
        let unfinished = self.put(&segment_name(segment), writer, content)?;
        let mut state = self.state();
        unfinished.finish(|| match state.is_gone {
            true => Err(io::ErrorKind::NotFound.into()),
            // A checksum without its segment does no harm.
            false => self.write_sum(segment, sum.value()),
        })?;
        state.writes += 1;
        let write = state.writes;
        state.segments.insert(segment, write);
        Ok(write)
    }

    fn write_sum(&self, segment: u64, sum: u64) -> io::Result<()> {
        let place = segment.checked_mul(SUM_BYTES);
        let place = place.ok_or(io::ErrorKind::FileTooLarge)?;
        let file = fs::File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .custom_flags(no_follow())
            .open(self.directory.join(SUMS))?;
        file.write_all_at(&sum.to_le_bytes(), place)
    }

    /// Writes a temporary file whose name is the writer's own. Creates the directory.
    fn put(&self, name: &str, writer: u64, content: &[Bytes]) -> io::Result<Unfinished> {
        fs::create_dir_all(&self.directory)?;
        let unfinished = Unfinished {
            path: self.directory.join(format!(".{name}.{writer}")),
            finished: self.directory.join(name),
        };
        let write = || {
            let mut file = fs::File::create(&unfinished.path)?;
            content.iter().try_for_each(|bytes| file.write_all(bytes))
        };
        match write() {
            Ok(()) => Ok(unfinished),
            Err(error) => Err(unfinished.drop(error)),
        }
    }

    /// Removes a segment, unless it was written again after `write`. Blocks on the disk.
    pub(crate) fn remove_segment(&self, segment: u64, write: u64) -> io::Result<()> {
        let mut state = self.state();
        if state.segments.get(&segment).is_some_and(|&it| it > write) {
            return Ok(());
        }
        state.segments.remove(&segment);
        fs::remove_file(self.directory.join(segment_name(segment)))
    }

    /// Removes the version, and fails its later writes. Blocks on the disk.
    pub(crate) fn remove(&self) -> io::Result<()> {
        let mut state = self.state();
        state.is_gone = true;
        fs::remove_dir_all(&self.directory)
    }

    /// Whether the segment exists with this length.
    pub(crate) fn has_segment(&self, segment: u64, len: u64) -> bool {
        let found = fs::symlink_metadata(self.directory.join(segment_name(segment)));
        found.is_ok_and(|found| found.is_file() && found.len() == len)
    }

    /// The content of `sums`, empty if unreadable.
    pub(crate) fn sums(&self) -> Vec<u8> {
        read_file(&self.directory.join(SUMS)).unwrap_or_default()
    }

    /// Whether a segment matches its checksum. Reads the whole segment.
    pub(crate) fn is_as_written(&self, segment: u64, sums: &[u8]) -> io::Result<bool> {
        let start = usize::try_from(segment.saturating_mul(SUM_BYTES)).unwrap_or(usize::MAX);
        let Some(expected) = sums.get(start..).and_then(<[u8]>::first_chunk) else {
            return Ok(false);
        };
        let mut file = open_file(&self.directory.join(segment_name(segment)))?;
        let mut sum = Sum::of(segment);
        let mut buffer = vec![0; READ_BYTES];
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(sum.value() == u64::from_le_bytes(*expected)),
                bytes => sum.add(&buffer[..bytes]),
            }
        }
    }
}

/// A complete file under its temporary name.
struct Unfinished {
    path: PathBuf,
    finished: PathBuf,
}

impl Unfinished {
    /// Renames the file to its final name, if `prepare` succeeds.
    fn finish(self, prepare: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let finished = prepare().and_then(|()| fs::rename(&self.path, &self.finished));
        finished.map_err(|error| self.drop(error))
    }

    fn drop(self, error: io::Error) -> io::Error {
        let _ = fs::remove_file(&self.path);
        error
    }
}

/// A checksum of a segment, against accidental damage only: its key is not secret.
struct Sum(SipHasher13);

impl Sum {
    fn of(segment: u64) -> Sum {
        let mut hasher = SipHasher13::new();
        hasher.write_u64(segment);
        Sum(hasher)
    }

    fn add(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    /// The checksum, never zero: a hole in `sums` reads as zero.
    fn value(&self) -> u64 {
        self.0.finish().max(1)
    }
}

fn no_follow() -> i32 {
    OFlags::NOFOLLOW.bits().cast_signed()
}

fn open_file(path: &Path) -> io::Result<fs::File> {
    let mut options = fs::File::options();
    options.read(true).custom_flags(no_follow()).open(path)
}

/// Reads a whole file, unless it is a symbolic link.
pub(crate) fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    open_file(path)?.read_to_end(&mut content)?;
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(content: &[u8]) -> [Bytes; 2] {
        let (first, second) = content.split_at(content.len() / 2);
        [first, second].map(Bytes::copy_from_slice)
    }

    #[test]
    fn a_removal_spares_what_was_written_again_since() {
        let root = tempfile::tempdir().unwrap();
        let disk = Disk::new(root.path().join("version"));
        let first = disk.write_segment(7, 1, &bytes(b"abcd")).unwrap();
        let second = disk.write_segment(7, 2, &bytes(b"abcd")).unwrap();
        disk.remove_segment(7, first).unwrap();
        assert!(disk.has_segment(7, 4), "the removal is of an earlier write");
        disk.remove_segment(7, second).unwrap();
        assert!(!disk.has_segment(7, 4));
        // A segment from before the start.
        let again = Disk::new(root.path().join("version"));
        fs::write(again.directory().join(segment_name(1)), "abcd").unwrap();
        again.remove_segment(1, 0).unwrap();
        assert!(!again.has_segment(1, 4));
    }

    #[test]
    fn nothing_is_written_to_a_version_that_has_gone() {
        let root = tempfile::tempdir().unwrap();
        let disk = Disk::new(root.path().join("version"));
        disk.write_segment(0, 1, &bytes(b"abcd")).unwrap();
        disk.remove().unwrap();
        let error = disk.write_segment(0, 1, &bytes(b"abcd")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        disk.write_meta(9, &Bytes::from_static(b"{}")).unwrap();
        assert!(!disk.has_segment(0, 4) && !disk.has_meta());
    }

    #[test]
    fn a_checksum_tells_a_segment_from_any_other_content_and_place() {
        let root = tempfile::tempdir().unwrap();
        let disk = Disk::new(root.path().to_owned());
        let content = vec![0; 3 * READ_BYTES / 2];
        for segment in [0, 5] {
            disk.write_segment(segment, 1, &bytes(&content)).unwrap();
        }
        let sums = disk.sums();
        assert_eq!(sums.len() as u64, 6 * SUM_BYTES);
        assert!(disk.is_as_written(0, &sums).unwrap() && disk.is_as_written(5, &sums).unwrap());
        assert!(!disk.is_as_written(0, &[]).unwrap(), "nothing is known");
        let path = |segment| disk.directory().join(segment_name(segment));
        // A file as after a power failure that lost its checksum.
        fs::write(path(1), &content).unwrap();
        assert!(
            !disk.is_as_written(1, &sums).unwrap(),
            "a hole is no checksum"
        );
        let mut damaged = content.clone();
        damaged[READ_BYTES + 1] = 1;
        fs::write(path(5), damaged).unwrap();
        assert!(!disk.is_as_written(5, &sums).unwrap());
        fs::write(path(0), &content[1..]).unwrap();
        assert!(!disk.is_as_written(0, &sums).unwrap());
    }
}
