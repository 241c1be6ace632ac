//! Lists directories below the root.
//!
//! No state is kept from one LIST to the next: the directory is opened again, and the file system
//! seeks to the end of the previous part (`d_off` of getdents(2)). That is exact while the
//! directory does not change, and the metadata in each part shows whether it has.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use contract::listing::{Entry, EntryKind, Part, is_name};
use rustix::fs::{AtFlags, FileType, OFlags, RawDir, SeekFrom, Statx, StatxFlags, seek, statx};
use rustix::io::Errno;

use crate::root::{Lookup, RootDir, meta_of, mtime_ns};

/// Buffer of getdents(2), in bytes: room for about as many names as an answer has.
const BUFFER_BYTES: usize = 4096;

/// Most names looked at for one answer, so that none takes long: a directory of sockets yields no
/// entries.
const NAMES_MAX: usize = 256;

impl RootDir {
    /// Returns some of a directory's entries, from a position on. May wait for a disk or a server.
    ///
    /// `ENOTDIR` if the path is no directory, `EXDEV` if it leads out of the root.
    pub(crate) fn list(&self, path: &[u8], from: u64) -> Result<Part, Errno> {
        // Fails without opening anything but a directory.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let own = if path.is_empty() { b"." } else { path };
        let directory = self.resolve(own, flags, Lookup::Complete)?;
        let stat = statx(&directory, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
        if from != 0 {
            seek(&directory, SeekFrom::Start(from))?;
        }
        let mut part = Part {
            directory: meta_of(&stat),
            next: from,
            ..Part::default()
        };
        let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
        let mut names = RawDir::new(&directory, &mut buffer);
        for _ in 0..NAMES_MAX {
            let name = match names.next() {
                None => {
                    part.next = 0;
                    break;
                }
                Some(Err(Errno::INTR)) => continue,
                Some(name) => name?,
            };
            if let Some(found) = self.look_at(&directory, path, name.file_name(), name.file_type())
                && part.entries.push(&found).is_err()
            {
                break;
            }
            part.next = name.next_entry_cookie();
        }
        Ok(part)
    }

    /// Returns an entry, if OPEN or LIST could reach it.
    fn look_at<'a>(
        &self,
        directory: &OwnedFd,
        path: &[u8],
        name: &'a CStr,
        kind: FileType,
    ) -> Option<Entry<'a>> {
        // Not every file system reports the type in the entry.
        let may_be = matches!(
            kind,
            FileType::RegularFile | FileType::Directory | FileType::Symlink | FileType::Unknown
        );
        if !may_be || !is_name(name.to_bytes()) {
            return None;
        }
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let mut stat = look(directory, name, flags)?;
        if kind_of(&stat) == FileType::Symlink {
            let mut whole = path.to_vec();
            if !whole.is_empty() {
                whole.push(b'/');
            }
            whole.extend_from_slice(name.to_bytes());
            let place = self.resolve(&whole, OFlags::PATH, Lookup::Complete).ok()?;
            stat = look(&place, c"", AtFlags::EMPTY_PATH)?;
        }
        let kind = match kind_of(&stat) {
            FileType::RegularFile => EntryKind::File,
            FileType::Directory => EntryKind::Directory,
            _ => return None,
        };
        Some(Entry {
            kind,
            size: stat.stx_size,
            mtime_ns: mtime_ns(&stat),
            name: name.to_bytes(),
        })
    }
}

fn look(place: impl AsFd, name: &CStr, flags: AtFlags) -> Option<Statx> {
    let wanted = StatxFlags::TYPE | StatxFlags::SIZE | StatxFlags::MTIME;
    statx(place, name, flags, wanted).ok()
}

fn kind_of(stat: &Statx) -> FileType {
    FileType::from_raw_mode(u32::from(stat.stx_mode))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ffi::OsStr;
    use std::fs;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;
    use std::path::Path;

    use super::*;

    type Found = BTreeMap<Vec<u8>, (EntryKind, u64, i64)>;

    /// Returns all entries of a directory, and the number of parts.
    fn all(root: &Path, path: &[u8]) -> Result<(Found, usize), Errno> {
        let root = RootDir::open(root).unwrap();
        let (mut found, mut from, mut parts) = (Found::new(), 0, 0);
        loop {
            let part = root.list(path, from)?;
            parts += 1;
            for entry in &part.entries {
                let known = found.insert(
                    entry.name.to_vec(),
                    (entry.kind, entry.size, entry.mtime_ns),
                );
                assert_eq!(known, None, "{} twice", entry.name.escape_ascii());
            }
            if part.next == 0 {
                return Ok((found, parts));
            }
            from = part.next;
        }
    }

    fn kinds(found: &Found) -> Vec<(&[u8], EntryKind)> {
        let kinds = found.iter();
        kinds.map(|(name, (kind, ..))| (&name[..], *kind)).collect()
    }

    #[test]
    fn ten_thousand_entries_come_in_parts_and_each_once() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("d")).unwrap();
        let mut expected = Found::new();
        for number in 0..10_000u64 {
            let name = format!("{number:05}-{}", "x".repeat(number as usize % 200));
            let path = root.path().join("d").join(&name);
            let file = fs::File::create(path).unwrap();
            file.set_len(number * 3).unwrap();
            let modified = std::time::UNIX_EPOCH + std::time::Duration::from_nanos(number * 1_001);
            file.set_modified(modified).unwrap();
            let entry = (EntryKind::File, number * 3, number as i64 * 1_001);
            expected.insert(name.into_bytes(), entry);
        }
        let (found, parts) = all(root.path(), b"d").unwrap();
        assert!(found == expected, "{} of them", found.len());
        assert!(parts > 300, "{parts} parts");
    }

    #[test]
    fn names_may_be_any_bytes() {
        let root = tempfile::tempdir().unwrap();
        let names: [&[u8]; 7] = [
            b"\xff\xfe",
            b"<a href=\"x\">&amp;",
            b"line\nbreak\r",
            b".hidden",
            b"...",
            "grüße 日本".as_bytes(),
            &[b'n'; 255],
        ];
        for name in names {
            fs::write(root.path().join(OsStr::from_bytes(name)), "").unwrap();
        }
        let (found, _) = all(root.path(), b"").unwrap();
        let mut expected: Vec<&[u8]> = names.to_vec();
        expected.sort_unstable();
        assert_eq!(found.keys().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn links_are_what_they_lead_to_and_what_open_refuses_is_not_told() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(outside.path().join("secret"), "secret").unwrap();
        let at = |name: &str| root.path().join(name);
        fs::create_dir_all(at("d/sub")).unwrap();
        fs::write(at("file"), "12345").unwrap();
        fs::write(at("d/own"), "1").unwrap();
        // Out of the directory and still below the root.
        symlink("../file", at("d/to-file")).unwrap();
        symlink("sub", at("d/to-directory")).unwrap();
        symlink(outside.path().join("secret"), at("d/out")).unwrap();
        symlink(outside.path(), at("d/out-directory")).unwrap();
        symlink("../../../../../etc/passwd", at("d/far-out")).unwrap();
        symlink("nothing", at("d/dangling")).unwrap();
        symlink("loop", at("d/loop")).unwrap();
        symlink("/proc/self/root", at("d/magic")).unwrap();
        let _socket = UnixListener::bind(at("d/socket")).unwrap();
        symlink("socket", at("d/to-socket")).unwrap();
        rustix::fs::mkfifoat(
            rustix::fs::CWD,
            at("d/fifo"),
            rustix::fs::Mode::from_raw_mode(0o600),
        )
        .unwrap();

        let (found, _) = all(root.path(), b"d").unwrap();
        assert_eq!(
            kinds(&found),
            [
                (&b"own"[..], EntryKind::File),
                (b"sub", EntryKind::Directory),
                (b"to-directory", EntryKind::Directory),
                (b"to-file", EntryKind::File),
            ]
        );
        assert_eq!(found[&b"to-file"[..]].1, 5, "the size of the file");
        let through = all(root.path(), b"d/to-directory").unwrap().0;
        assert_eq!(through, Found::new());
    }

    #[test]
    fn what_is_no_directory_or_leads_out_of_the_root_is_an_error() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let at = |name: &str| root.path().join(name);
        fs::write(at("file"), "").unwrap();
        symlink(outside.path(), at("out")).unwrap();
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, at("fifo"), mode).unwrap();
        for (path, errno) in [
            ("file", Errno::NOTDIR),
            ("file/below", Errno::NOTDIR),
            ("fifo", Errno::NOTDIR),
            ("nothing", Errno::NOENT),
            ("out", Errno::XDEV),
            ("..", Errno::XDEV),
        ] {
            assert_eq!(
                all(root.path(), path.as_bytes()).err(),
                Some(errno),
                "{path}"
            );
        }
        let root = RootDir::open(root.path()).unwrap();
        assert!(root.list(b"", u64::MAX).is_err(), "no place in a directory");
    }

    #[test]
    fn a_change_shows_in_the_metadata_of_the_next_part() {
        let root = tempfile::tempdir().unwrap();
        for number in 0..100 {
            fs::write(root.path().join(format!("{number:064}")), "").unwrap();
        }
        let dir = RootDir::open(root.path()).unwrap();
        let first = dir.list(b"", 0).unwrap();
        assert_ne!(first.next, 0);
        let second = dir.list(b"", first.next).unwrap();
        assert_eq!(first.directory, second.directory);
        // Not within the grain of the timestamps.
        let modified = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1);
        fs::File::open(root.path())
            .unwrap()
            .set_modified(modified)
            .unwrap();
        let second = dir.list(b"", first.next).unwrap();
        assert_ne!(first.directory, second.directory);
    }

    #[test]
    fn a_directory_that_only_root_may_read_is_refused_to_others() {
        use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
        let root = tempfile::tempdir().unwrap();
        let closed = root.path().join("closed");
        fs::create_dir(&closed).unwrap();
        fs::write(closed.join("file"), "").unwrap();
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
        let path = root.path().to_owned();
        // Capabilities are the thread's own.
        let answer = std::thread::spawn(move || {
            let now = capabilities(None).unwrap();
            let none = CapabilitySets {
                effective: now.effective
                    - (CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH),
                ..now
            };
            set_capabilities(None, none).unwrap();
            (all(&path, b"closed").err(), all(&path, b"").unwrap().0)
        });
        let (errno, found) = answer.join().unwrap();
        assert_eq!(errno, Some(Errno::ACCESS));
        assert_eq!(kinds(&found), [(&b"closed"[..], EntryKind::Directory)]);
    }
}
