//! Requirements on every reader of real files. Each test runs on threads and on io_uring (where it
//! is allowed), directly and through the page cache.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use contract::listing::Part;
use contract::{Growth, PassedId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use tempfile::TempDir;

use super::pool::{Opener, PoolReader};
use super::uring::UringReader;
use super::{Completion, FileToken, Opened, Read, ReadToken, Reader};
use crate::buffer::{Arena, BLOCK_BYTES, Buffer};
use crate::passed::PassedFiles;
use crate::root::RootDir;

/// Long enough for the slowest machine; nothing waits for it to pass.
const PATIENCE: Timespec = Timespec {
    tv_sec: 60,
    tv_nsec: 0,
};

fn each_reader(root: &Path, test: impl Fn(&str, &mut dyn Reader)) {
    each_reader_with(root, &[], test);
}

/// The same; these descriptors were passed, with their places as numbers.
fn each_reader_with(root: &Path, passed: &[&File], test: impl Fn(&str, &mut dyn Reader)) {
    let passed = passed.iter().map(|file| file.try_clone().unwrap().into());
    let passed = Arc::new(Passed(passed.map(Arc::new).collect()));
    for direct in [false, true] {
        let opener = || Opener {
            root: Arc::new(RootDir::open(root).expect("the root")),
            passed: Some(Arc::clone(&passed) as Arc<dyn PassedFiles>),
            direct,
        };
        let mut pool = PoolReader::new(opener(), 3).expect("a pool");
        test(&format!("threads, direct {direct}"), &mut pool);
        match UringReader::new(opener()) {
            Ok(mut uring) => test(&format!("io_uring, direct {direct}"), &mut uring),
            Err(error) => eprintln!("io_uring is not tested here: {error}"),
        }
    }
}

/// Descriptors by their places.
#[derive(Debug)]
struct Passed(Vec<Arc<OwnedFd>>);

impl PassedFiles for Passed {
    fn descriptor(&self, passed: PassedId) -> Option<Arc<OwnedFd>> {
        self.0.get(passed.0 as usize).cloned()
    }
}

/// Waits for a completion.
pub(super) fn next(reader: &mut dyn Reader) -> Completion {
    loop {
        reader.submit();
        if let Some(completion) = reader.next() {
            return completion;
        }
        let fds = reader.wake_fds();
        let mut fds: Vec<PollFd<'_>> = fds
            .iter()
            .flatten()
            .map(|fd| PollFd::new(fd, PollFlags::IN))
            .collect();
        let ready = poll(&mut fds, Some(&PATIENCE)).expect("poll");
        assert!(ready > 0, "nothing has woken who waits for the reader");
    }
}

fn open(reader: &mut dyn Reader, token: u64, path: &[u8]) -> Result<Opened, u16> {
    reader.open(FileToken(token), path, Growth::Forbidden);
    match next(reader) {
        Completion::Opened { file, result } => {
            assert_eq!(file, FileToken(token));
            result
        }
        other => panic!("{other:?}"),
    }
}

fn open_passed(reader: &mut dyn Reader, token: u64, passed: u64) -> Result<Opened, u16> {
    reader.open_passed(FileToken(token), PassedId(passed));
    match next(reader) {
        Completion::Opened { file, result } => {
            assert_eq!(file, FileToken(token));
            result
        }
        other => panic!("{other:?}"),
    }
}

fn start(reader: &mut dyn Reader, token: u32, file: u64, offset: u64, len: usize) {
    let mut buffer = Buffer::alone();
    buffer.fill(0xee);
    reader.read(Read {
        token: ReadToken(token),
        file: FileToken(file),
        offset,
        len,
        buffer,
    });
}

fn read(reader: &mut dyn Reader, offset: u64, len: usize) -> (Vec<u8>, Option<u16>) {
    read_of(reader, 1, offset, len)
}

/// The same of any file.
fn read_of(reader: &mut dyn Reader, file: u64, offset: u64, len: usize) -> (Vec<u8>, Option<u16>) {
    start(reader, 5, file, offset, len);
    match next(reader) {
        Completion::Read {
            token,
            buffer,
            valid,
            failure,
        } => {
            assert_eq!(token, ReadToken(5));
            (buffer[..valid].to_vec(), failure)
        }
        other => panic!("{other:?}"),
    }
}

fn errno(errno: Errno) -> u16 {
    errno.raw_os_error() as u16
}

fn content(len: usize) -> Vec<u8> {
    (0..len as u32)
        .flat_map(|i| i.wrapping_mul(0x9e37_79b9).to_le_bytes())
        .take(len)
        .collect()
}

#[test]
fn opens_of_one_version_share_a_descriptor() {
    let root = TempDir::new().unwrap();
    let name = |number: u64| format!("{:02}", number % 10);
    for number in 0..10 {
        fs::write(root.path().join(name(number)), content(100)).unwrap();
    }
    each_reader(root.path(), |which, reader| {
        let open_now = || fs::read_dir("/proc/self/fd").unwrap().count();
        // The other tests of this process open few at a time.
        let before = open_now();
        for token in 0..2000 {
            open(reader, token, name(token).as_bytes()).unwrap();
        }
        assert!(open_now() < before + 1000, "{which}");
        for token in (0..2000).filter(|token| *token != 1) {
            reader.close(FileToken(token));
        }
        assert_eq!(read(reader, 0, 100).0, content(100), "{which}");
    });
}

#[test]
fn a_descriptor_is_not_shared_with_another_version() {
    let root = TempDir::new().unwrap();
    let path = root.path().join("f");
    each_reader(root.path(), |which, reader| {
        fs::write(&path, content(100)).unwrap();
        let old = open(reader, 2, b"f").unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, content(200)).unwrap();
        let new = open(reader, 1, b"f").unwrap();
        assert_ne!(old.meta, new.meta, "{which}");
        assert_eq!(read(reader, 0, 200).0, content(200), "{which}");
        reader.close(FileToken(1));
        reader.close(FileToken(2));
    });
}

#[test]
fn a_descriptor_that_was_passed_is_read_wherever_its_file_lies() {
    let root = TempDir::new().unwrap();
    let elsewhere = TempDir::new().unwrap();
    let path = elsewhere.path().join("f");
    fs::write(&path, content(70_001)).unwrap();
    let file = File::open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    each_reader_with(root.path(), &[&file], |which, reader| {
        let opened = open_passed(reader, 1, 0).unwrap();
        assert_eq!(opened.meta.size, 70_001, "{which}");
        assert_eq!(opened.meta.inode, file.metadata().unwrap().ino(), "{which}");
        for offset in [0, BLOCK_BYTES] {
            let len = BLOCK_BYTES.min(70_001 - offset);
            let (bytes, failure) = read(reader, offset as u64, len);
            assert_eq!(failure, None, "{which}");
            assert_eq!(bytes, &content(70_001)[offset..offset + len], "{which}");
        }
        reader.close(FileToken(1));
    });
}

#[test]
fn a_descriptor_that_was_passed_is_of_the_same_version_as_its_path() {
    let root = TempDir::new().unwrap();
    let path = root.path().join("f");
    fs::write(&path, content(100)).unwrap();
    let file = File::open(&path).unwrap();
    each_reader_with(root.path(), &[&file], |which, reader| {
        let by_path = open(reader, 1, b"f").unwrap();
        let passed = open_passed(reader, 2, 0).unwrap();
        // Time has passed between the two.
        let settled = by_path.settled;
        assert_eq!(Opened { settled, ..passed }, by_path, "{which}");
        for token in [1, 2] {
            assert_eq!(read_of(reader, token, 0, 100).0, content(100), "{which}");
            reader.close(FileToken(token));
        }
    });
}

#[test]
fn flags_of_a_descriptor_that_was_passed_are_its_owners() {
    let root = TempDir::new().unwrap();
    let path = root.path().join("f");
    fs::write(&path, content(5000)).unwrap();
    let file = File::open(&path).unwrap();
    each_reader_with(root.path(), &[&file], |which, reader| {
        let before = fcntl_getfl(&file).unwrap();
        open_passed(reader, 1, 0).unwrap();
        assert_eq!(fcntl_getfl(&file).unwrap(), before, "{which}");
        // An owner that turns direct reads on hurts no one: the file ends within a page.
        if fcntl_setfl(&file, before | OFlags::DIRECT).is_ok() {
            let (bytes, failure) = read(reader, 0, 5000);
            assert_eq!((bytes, failure), (content(5000), None), "{which}");
            fcntl_setfl(&file, before).unwrap();
        }
        reader.close(FileToken(1));
    });
}

#[test]
fn descriptors_of_other_things_are_refused() {
    let root = TempDir::new().unwrap();
    let directory = File::open(root.path()).unwrap();
    let null = File::open("/dev/null").unwrap();
    let proc = File::open("/proc/self/status").unwrap();
    let passed = [&directory, &null, &proc];
    each_reader_with(root.path(), &passed, |which, reader| {
        for (number, why) in [
            (0, Errno::ISDIR),
            (1, Errno::ACCESS),
            // Its readers may wait.
            (2, Errno::OPNOTSUPP),
            (3, Errno::NOENT),
        ] {
            let refused = open_passed(reader, 1, number);
            assert_eq!(refused, Err(errno(why)), "{which}, {number}");
        }
    });
}

#[test]
fn files_of_all_sizes_are_read_whole() {
    let root = TempDir::new().unwrap();
    for size in [0, 1, 4095, 4096, 4097, 65_535, 65_536, 65_537, 200_000] {
        let name = size.to_string();
        fs::write(root.path().join(&name), content(size)).unwrap();
        each_reader(root.path(), |which, reader| {
            let opened = open(reader, 1, name.as_bytes()).unwrap();
            assert_eq!(opened.meta.size, size as u64, "{which}");
            let mut offset = 0;
            while offset < size {
                let len = BLOCK_BYTES.min(size - offset);
                let (bytes, failure) = read(reader, offset as u64, len);
                assert_eq!(failure, None, "{which}, {size}");
                assert_eq!(bytes, &content(size)[offset..offset + len], "{which}");
                offset += len;
            }
            reader.close(FileToken(1));
        });
    }
}

#[test]
fn directories_are_listed_beside_files() {
    let root = TempDir::new().unwrap();
    fs::create_dir(root.path().join("d")).unwrap();
    for name in ["a", "b", "c"] {
        fs::write(root.path().join("d").join(name), name).unwrap();
    }
    each_reader(root.path(), |which, reader| {
        for token in 0..100 {
            let path: &[u8] = [&b"d"[..], b"d/a"][token as usize % 2];
            reader.list(FileToken(token), path, 0);
        }
        let opened = open_amid(reader, 100, b"d/b");
        assert_eq!(opened.meta.size, 1, "{which}");
        let mut listed: Vec<u64> = Vec::new();
        while listed.len() < 100 {
            match next(reader) {
                Completion::Listed { file, result } => {
                    check_listing(file.0, result);
                    listed.push(file.0);
                }
                Completion::Opened { .. } | Completion::Read { .. } => panic!("{which}"),
            }
        }
        assert!(listed.is_sorted(), "{which}: one after the other");
        reader.close(FileToken(100));
    });

    /// Opens a file while listings are under way, whose answers may come before; the others come
    /// later.
    fn open_amid(reader: &mut dyn Reader, token: u64, path: &[u8]) -> Opened {
        // The path is known to the kernel, so that nothing waits.
        reader.open(FileToken(token), path, Growth::Forbidden);
        match reader.next() {
            Some(Completion::Opened { file, result }) => {
                assert_eq!(file, FileToken(token));
                result.unwrap()
            }
            other => panic!("{other:?}"),
        }
    }

    fn check_listing(token: u64, result: Result<Box<Part>, u16>) {
        let part = match token % 2 {
            0 => result.unwrap(),
            _ => return assert_eq!(result.err(), Some(errno(Errno::NOTDIR))),
        };
        let mut names: Vec<&[u8]> = part.entries.iter().map(|entry| entry.name).collect();
        names.sort_unstable();
        assert_eq!(names, [b"a", b"b", b"c"]);
        assert_eq!(part.next, 0);
    }
}

#[test]
fn a_file_that_may_grow_is_read_up_to_its_size_at_the_open() {
    let root = TempDir::new().unwrap();
    let path = root.path().join("log");
    each_reader(root.path(), |which, reader| {
        fs::write(&path, b"12345").unwrap();
        for (token, growth) in [(1, Growth::Allowed), (2, Growth::Forbidden)] {
            reader.open(FileToken(token), b"log", growth);
            let Completion::Opened { result, .. } = next(reader) else {
                panic!("{which}")
            };
            assert_eq!(result.unwrap().meta.size, 5, "{which}");
        }
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(b"67890", 5).unwrap();
        assert_eq!(read(reader, 0, 5), (b"12345".to_vec(), None), "{which}");
        let stale = (vec![], Some(errno(Errno::STALE)));
        assert_eq!(read_of(reader, 2, 0, 5), stale, "{which}");
        file.set_len(4).unwrap();
        assert_eq!(read(reader, 0, 4), stale, "{which}");
        for token in [1, 2] {
            reader.close(FileToken(token));
        }
    });
}

#[test]
fn metadata_is_the_kernels() {
    let root = TempDir::new().unwrap();
    let path = root.path().join("f");
    fs::write(&path, b"12345").unwrap();
    // Too young for as long as the test may take.
    let changed = SystemTime::now() + Duration::from_secs(3600);
    let file = File::options().write(true).open(&path).unwrap();
    file.set_modified(changed).unwrap();
    let known = fs::metadata(&path).unwrap();
    each_reader(root.path(), |which, reader| {
        let opened = open(reader, 1, b"f").unwrap();
        let meta = opened.meta;
        assert_eq!(meta.size, 5, "{which}");
        assert_eq!((meta.inode, meta.device), (known.ino(), known.dev()));
        assert_eq!(
            meta.mtime_ns,
            known.mtime() * 1_000_000_000 + known.mtime_nsec()
        );
        assert_eq!(
            meta.ctime_ns,
            known.ctime() * 1_000_000_000 + known.ctime_nsec()
        );
        assert!(!opened.settled);
    });
}

#[test]
fn holes_read_as_zeros() {
    let root = TempDir::new().unwrap();
    let file = File::create(root.path().join("sparse")).unwrap();
    let far = 5u64 << 30;
    file.write_all_at(b"end", far).unwrap();
    each_reader(root.path(), |which, reader| {
        assert_eq!(open(reader, 1, b"sparse").unwrap().meta.size, far + 3);
        assert_eq!(
            read(reader, 1 << 30, 8192),
            (vec![0; 8192], None),
            "{which}"
        );
        assert_eq!(read(reader, far, 3), (b"end".to_vec(), None), "{which}");
    });
}

#[test]
fn the_end_of_the_file_is_reported_with_what_there_is() {
    let root = TempDir::new().unwrap();
    for size in [0, 1, 4096, 5000] {
        fs::write(root.path().join("f"), content(size)).unwrap();
        each_reader(root.path(), |which, reader| {
            open(reader, 1, b"f").unwrap();
            let (bytes, failure) = read(reader, 0, BLOCK_BYTES);
            assert_eq!(bytes, content(size), "{which}");
            assert_eq!(failure, Some(errno(Errno::NODATA)), "{which}, {size}");
        });
    }
}

/// Writes a file whose last modification was long ago, so that the next one shows however coarse
/// the timestamps are.
fn write_old(path: &Path, content: &[u8]) -> File {
    let file = File::create(path).unwrap();
    file.write_all_at(content, 0).unwrap();
    file.set_modified(UNIX_EPOCH).unwrap();
    file
}

#[test]
fn nothing_is_given_of_a_file_that_has_changed_since_its_open() {
    let root = TempDir::new().unwrap();
    let path = root.path().join("f");
    type Change = fn(&File);
    let changes: [(&str, Change); 5] = [
        ("rewritten", |file| {
            file.write_all_at(&[7; 100_000], 0).unwrap()
        }),
        ("changed elsewhere", |file| {
            file.write_all_at(b"x", 99_999).unwrap()
        }),
        ("longer", |file| file.write_all_at(b"x", 100_000).unwrap()),
        ("shorter", |file| file.set_len(5000).unwrap()),
        ("rewritten as if it was not", |file| {
            let before = file.metadata().unwrap();
            while file.metadata().unwrap().ctime_nsec() == before.ctime_nsec() {
                file.write_all_at(&[7; 100_000], 0).unwrap();
                file.set_modified(before.modified().unwrap()).unwrap();
            }
        }),
    ];
    for (change, make) in changes {
        each_reader(root.path(), |which, reader| {
            let file = write_old(&path, &content(100_000));
            open(reader, 1, b"f").unwrap();
            assert_eq!(
                read(reader, 0, BLOCK_BYTES),
                (content(BLOCK_BYTES), None),
                "{which}, not {change} yet"
            );
            make(&file);
            assert_eq!(
                read(reader, 0, BLOCK_BYTES),
                (vec![], Some(errno(Errno::STALE))),
                "{which}, {change}"
            );
            // A new open sees one version again.
            open(reader, 1, b"f").unwrap();
            assert_eq!(read(reader, 0, 5000).1, None, "{which}, {change}");
        });
    }
}

/// These changes show only in the change time, as does a rewrite that sets the modification time
/// back.
#[test]
fn nothing_is_given_of_a_file_either_that_has_only_another_name_or_other_attributes() {
    let root = TempDir::new().unwrap();
    let path = root.path().join("f");
    let other = root.path().join("other");
    type Change = fn(&Path, &Path);
    let changes: [(&str, Change); 2] = [
        ("moved away", |path, other| {
            fs::rename(path, other).unwrap();
            fs::rename(other, path).unwrap();
        }),
        ("given another mode", |path, _| {
            fs::set_permissions(path, fs::Permissions::from_mode(0o640)).unwrap()
        }),
    ];
    for (change, make) in changes {
        each_reader(root.path(), |which, reader| {
            let file = write_old(&path, &content(100_000));
            open(reader, 1, b"f").unwrap();
            // However coarse the change time is.
            let before = file.metadata().unwrap();
            while file.metadata().unwrap().ctime_nsec() == before.ctime_nsec() {
                make(&path, &other);
            }
            assert_eq!(
                read(reader, 0, BLOCK_BYTES),
                (vec![], Some(errno(Errno::STALE))),
                "{which}, {change}"
            );
            // A new open can read it.
            open(reader, 1, b"f").unwrap();
            assert_eq!(
                read(reader, 0, BLOCK_BYTES),
                (content(BLOCK_BYTES), None),
                "{which}, {change}"
            );
        });
    }
}

#[test]
fn a_file_that_has_lost_its_name_is_read_to_the_end() {
    let root = TempDir::new().unwrap();
    let path = root.path().join("f");
    let other = root.path().join("other");
    type Removal = fn(&Path, &Path);
    let removals: [(&str, Removal); 2] = [
        ("replaced", |path, other| fs::rename(other, path).unwrap()),
        ("removed", |path, _| fs::remove_file(path).unwrap()),
    ];
    for (removal, make) in removals {
        each_reader(root.path(), |which, reader| {
            let file = write_old(&path, &content(100_000));
            write_old(&other, b"another");
            open(reader, 1, b"f").unwrap();
            // The change time shows it, however coarse.
            let before = file.metadata().unwrap();
            while file.metadata().unwrap().ctime_nsec() == before.ctime_nsec() {
                fs::hard_link(&path, root.path().join("link")).unwrap();
                fs::remove_file(root.path().join("link")).unwrap();
            }
            make(&path, &other);
            assert_eq!(
                read(reader, 0, BLOCK_BYTES),
                (content(BLOCK_BYTES), None),
                "{which}, {removal}"
            );
        });
    }
}

#[test]
fn reading_and_being_read_changes_nothing() {
    let root = TempDir::new().unwrap();
    let path = root.path().join("f");
    each_reader(root.path(), |which, reader| {
        write_old(&path, &content(100_000));
        open(reader, 1, b"f").unwrap();
        assert_eq!(read(reader, 0, 100), (content(100), None));
        assert_eq!(fs::read(&path).unwrap(), content(100_000));
        assert_eq!(read(reader, 0, 100), (content(100), None), "{which}");
    });
}

#[test]
fn many_reads_complete_each_with_its_own_bytes() {
    let root = TempDir::new().unwrap();
    const READS: usize = 300;
    let whole = content(READS * 4096);
    fs::write(root.path().join("f"), &whole).unwrap();
    each_reader(root.path(), |which, reader| {
        open(reader, 1, b"f").unwrap();
        for number in 0..READS {
            start(reader, number as u32, 1, number as u64 * 4096, 4096);
        }
        // Reads under way survive the close.
        reader.close(FileToken(1));
        let mut seen = [false; READS];
        for _ in 0..READS {
            let Completion::Read {
                token,
                buffer,
                valid,
                failure,
            } = next(reader)
            else {
                panic!("only reads were asked for");
            };
            let number = token.0 as usize;
            assert!(!std::mem::replace(&mut seen[number], true), "{which}");
            assert_eq!(failure, None);
            assert_eq!(&buffer[..valid], &whole[number * 4096..][..4096], "{which}");
        }
        assert!(reader.next().is_none());
    });
}

#[test]
fn buffers_may_be_made_known_and_others_still_work() {
    let root = TempDir::new().unwrap();
    let whole = content(4 * BLOCK_BYTES);
    fs::write(root.path().join("f"), &whole).unwrap();
    each_reader(root.path(), |which, reader| {
        let arena = Arena::new(4).unwrap();
        reader.prepare(arena.region());
        open(reader, 1, b"f").unwrap();
        let known = (0..).zip(arena.into_buffers());
        let unknown = (0..6).map(|token| (token, Buffer::alone()));
        for (token, buffer) in known.chain(unknown) {
            let block = token as usize % 4;
            reader.read(Read {
                token: ReadToken(token),
                file: FileToken(1),
                offset: (block * BLOCK_BYTES) as u64,
                len: BLOCK_BYTES,
                buffer,
            });
        }
        for _ in 0..10 {
            let Completion::Read { token, buffer, .. } = next(reader) else {
                panic!("only reads were asked for");
            };
            let block = token.0 as usize % 4;
            assert_eq!(
                buffer[..],
                whole[block * BLOCK_BYTES..][..BLOCK_BYTES],
                "{which}"
            );
        }
    });
}

#[test]
fn a_read_of_a_file_that_is_not_open_fails() {
    let root = TempDir::new().unwrap();
    each_reader(root.path(), |which, reader| {
        let (bytes, failure) = read(reader, 0, 100);
        assert_eq!(
            (bytes.len(), failure),
            (0, Some(errno(Errno::BADF))),
            "{which}"
        );
    });
}

#[test]
fn a_reader_may_be_dropped_with_reads_under_way() {
    let root = TempDir::new().unwrap();
    fs::write(root.path().join("f"), content(1 << 20)).unwrap();
    each_reader(root.path(), |_, reader| {
        open(reader, 1, b"f").unwrap();
        for number in 0..200 {
            start(reader, number, 1, u64::from(number % 16) * 65_536, 65_536);
        }
        reader.submit();
    });
}

#[test]
fn only_regular_files_below_the_root_open() {
    let outside = TempDir::new().unwrap();
    fs::write(outside.path().join("secret"), b"secret").unwrap();
    let root = TempDir::new().unwrap();
    let at = |name: &str| root.path().join(name);
    let long = "n".repeat(255);

    fs::create_dir(at("dir")).unwrap();
    fs::write(at("dir/file"), b"in a directory").unwrap();
    fs::write(at("with space"), b"spaced").unwrap();
    fs::write(at(&long), b"long").unwrap();
    fs::write(at("\u{1f980}\n"), b"odd").unwrap();
    symlink("dir/file", at("link-inside")).unwrap();
    symlink("../dir/file", at("dir/link-up-and-down")).unwrap();
    symlink(outside.path().join("secret"), at("link-absolute")).unwrap();
    let up = Path::new("..")
        .join(outside.path().file_name().unwrap())
        .join("secret");
    symlink(&up, at("link-outside")).unwrap();
    symlink("/proc/self/fd", at("link-magic")).unwrap();
    symlink("loop", at("loop")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        at("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    let _socket = UnixListener::bind(at("socket")).unwrap();
    // Only the superuser can make one.
    let device = rustix::fs::mknodat(
        rustix::fs::CWD,
        at("device"),
        rustix::fs::FileType::CharacterDevice,
        rustix::fs::Mode::RWXU,
        rustix::fs::makedev(1, 5),
    );

    each_reader(root.path(), |which, reader| {
        let mut opens = |path: &[u8]| {
            let result = open(reader, 1, path);
            if result.is_ok() {
                reader.close(FileToken(1));
            }
            result.map(|opened| opened.meta.size)
        };
        assert_eq!(opens(b"dir/file"), Ok(14), "{which}");
        assert_eq!(opens(b"dir/../dir/file"), Ok(14));
        assert_eq!(opens(b"./dir//file"), Ok(14));
        assert_eq!(opens(b"with space"), Ok(6));
        assert_eq!(opens(long.as_bytes()), Ok(4));
        assert_eq!(opens("\u{1f980}\n".as_bytes()), Ok(3));
        assert_eq!(opens(b"link-inside"), Ok(14));
        assert_eq!(opens(b"dir/link-up-and-down"), Ok(14));

        let beyond = errno(Errno::XDEV);
        assert_eq!(opens(b".."), Err(beyond), "{which}");
        assert_eq!(opens(up.to_str().unwrap().as_bytes()), Err(beyond));
        assert_eq!(opens(b"dir/../../etc/passwd"), Err(beyond));
        assert_eq!(opens(b"/etc/passwd"), Err(beyond));
        assert_eq!(opens(b"link-absolute"), Err(beyond));
        assert_eq!(opens(b"link-outside"), Err(beyond));
        assert_eq!(opens(b"link-magic/0"), Err(beyond));

        let special = errno(Errno::ACCESS);
        assert_eq!(opens(b"fifo"), Err(special), "{which}");
        assert_eq!(opens(b"socket"), Err(special));
        if device.is_ok() {
            assert_eq!(opens(b"device"), Err(special));
        }
        assert_eq!(opens(b"dir"), Err(errno(Errno::ISDIR)));
        assert_eq!(opens(b"."), Err(errno(Errno::ISDIR)));
        assert_eq!(opens(b"dir/"), Err(errno(Errno::ISDIR)));
        assert_eq!(opens(b"dir/file/"), Err(errno(Errno::NOTDIR)));
        assert_eq!(opens(b"dir/file/x"), Err(errno(Errno::NOTDIR)));
        assert_eq!(opens(b"none"), Err(errno(Errno::NOENT)));
        assert_eq!(opens(b""), Err(errno(Errno::NOENT)));
        assert_eq!(opens(b"loop"), Err(errno(Errno::LOOP)));
        assert_eq!(opens(&[b'n'; 256]), Err(errno(Errno::NAMETOOLONG)));
        assert_eq!(opens(&[b'/'; 5000]), Err(errno(Errno::NAMETOOLONG)));
        assert_eq!(opens(b"with\0zero"), Err(errno(Errno::INVAL)));
    });
}

#[test]
fn what_may_not_be_read_does_not_open() {
    if rustix::process::geteuid().is_root() {
        return; // Who may do everything learns nothing here.
    }
    let root = TempDir::new().unwrap();
    let path = root.path().join("private");
    fs::write(&path, b"x").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    each_reader(root.path(), |which, reader| {
        assert_eq!(
            open(reader, 1, b"private"),
            Err(errno(Errno::ACCESS)),
            "{which}"
        );
    });
}

#[test]
fn a_path_that_the_kernel_has_forgotten_is_resolved_elsewhere() {
    // RESOLVE_CACHED finds nothing under /proc/self without asking, so this opens in a thread.
    each_reader(Path::new("/proc"), |which, reader| {
        let opened = open(reader, 1, b"self/status").unwrap();
        assert_eq!(opened.meta.size, 0, "{which}");
    });
}

/// A directory in memory, for a test with the privilege to mount; `None` without it.
fn memory_directory() -> Option<TempDir> {
    let directory = TempDir::new_in("/dev/shm").ok()?;
    let magic = rustix::fs::statfs(directory.path()).ok()?.f_type as u32;
    (magic == 0x0102_1994).then_some(directory)
}

#[test]
fn timestamps_of_files_in_memory_are_not_trusted() {
    let Some(root) = memory_directory() else {
        eprintln!("not tested here: /dev/shm is no tmpfs");
        return;
    };
    let path = root.path().join("f");
    fs::write(&path, content(100)).unwrap();
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_modified(UNIX_EPOCH + Duration::from_secs(1_000_000_007))
        .unwrap();
    each_reader(root.path(), |which, reader| {
        let opened = open(reader, 1, b"f").unwrap();
        assert!(opened.meta.is_weak && !opened.settled, "{which}");
        assert_eq!(read(reader, 0, 100).0, content(100), "{which}");
    });
}
