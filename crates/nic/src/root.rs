//! Files strictly below the root.
//!
//! The kernel resolves every path (`openat2`, `RESOLVE_BENEATH`): neither `..` nor a symbolic link
//! nor a racing rename leads out. Links that stay below the root are followed. Only regular files
//! are opened for reading; a path is first resolved without opening (`O_PATH`), because opening a
//! device can have effects and opening a FIFO can wait.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use contract::{FileMeta, Growth, PassedId};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Statx, StatxFlags, fcntl_setfl, makedev,
    openat2, statx,
};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use crate::buffer::PAGE_BYTES;
use crate::file_system::{FileSystem, Mount, Mounts};

/// Time after a change during which a further change may leave the timestamps as they are: the
/// kernel stamps files by a clock that advances with the scheduler's tick, every 10 ms at the least
/// frequent.
const SETTLED_AFTER_NS: i64 = 20_000_000;

/// The same time on file systems that keep whole seconds, or every second one as FAT does.
const SETTLED_AFTER_NS_COARSE: i64 = 2_000_000_000;

/// The same time on file systems whose timestamps are of another machine's clock.
const SETTLED_AFTER_NS_OTHER: i64 = 10_000_000_000;

/// Most repetitions of a resolution that loses races against renames.
const RACES_MAX: usize = 8;

/// The directory below which all files lie.
#[derive(Debug)]
pub struct RootDir {
    dir: OwnedFd,
    mounts: Mounts,
}

/// Reasons why a root cannot be used.
#[derive(Debug)]
pub enum RootError {
    /// It cannot be opened.
    Open {
        /// The root.
        path: PathBuf,
        /// The error of the open.
        source: std::io::Error,
    },
    /// It is not a directory.
    NotADirectory {
        /// The root.
        path: PathBuf,
    },
    /// The kernel, or a system call filter around this process, does not offer `openat2`.
    Unsupported {
        /// The kernel's error.
        source: std::io::Error,
    },
}

/// How far a path may be resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// Only in the kernel's memory: `EAGAIN` if a directory would have to be read. Does not wait.
    Cached,
    /// Completely. May wait for a disk or a server.
    Complete,
}

/// An open regular file.
#[derive(Debug)]
pub(crate) struct OpenFile {
    fd: Arc<OwnedFd>,
    pub(crate) meta: FileMeta,
    /// The mount in which it was found.
    pub(crate) mount: Mount,
    pub(crate) system: FileSystem,
    /// The timestamps are old enough that a change of content would show in them.
    pub(crate) settled: bool,
    /// Names that the file had when it was opened.
    links: u32,
    /// Whether it may become longer.
    pub(crate) growth: Growth,
    direct: AtomicBool,
    /// The descriptor was passed by another process, which may have it too.
    passed: Option<PassedId>,
}

/// Identity of an open file: two files with the same identity read the same bytes, so that one
/// descriptor suffices.
///
/// While the first of two such files is open its inode number is not reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    meta: FileMeta,
    mount: Mount,
    settled: bool,
    links: u32,
    growth: Growth,
    /// A passed file is read through its own descriptor alone.
    passed: Option<PassedId>,
}

/// Checks that the kernel can resolve paths below a root; [`RootDir::open`] does it too.
pub fn check_kernel() -> Result<(), RootError> {
    match openat2(
        CWD,
        ".",
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::BENEATH,
    ) {
        Err(errno @ (Errno::NOSYS | Errno::PERM | Errno::INVAL)) => Err(RootError::Unsupported {
            source: errno.into(),
        }),
        _ => Ok(()),
    }
}

impl AsFd for RootDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }
}

impl RootDir {
    /// Opens the root. A later rename of the directory does not matter.
    pub fn open(path: &Path) -> Result<RootDir, RootError> {
        check_kernel()?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(dir) => {
                let mounts = Mounts::default();
                if let (Ok(stat), Ok(system)) = (glance(&dir), FileSystem::of(dir.as_fd())) {
                    mounts.insert(mount_in(&stat), system);
                }
                Ok(RootDir { dir, mounts })
            }
            Err(Errno::NOTDIR) => Err(RootError::NotADirectory { path: path.into() }),
            Err(errno) => Err(RootError::Open {
                path: path.into(),
                source: errno.into(),
            }),
        }
    }

    /// Opens a regular file for reading: directly if `direct` and the file system allows it.
    ///
    /// `EISDIR` for a directory, `EACCES` for anything else that is not a regular file, `EXDEV` for
    /// a path that leads out of the root.
    pub(crate) fn open_file(
        &self,
        path: &[u8],
        lookup: Lookup,
        direct: bool,
        growth: Growth,
    ) -> Result<OpenFile, Errno> {
        let place = self.resolve(path, OFlags::PATH, lookup)?;
        let stat = glance(&place)?;
        require_regular(FileType::from_raw_mode(u32::from(stat.stx_mode)))?;
        let (mount, system) = self.file_system(&place, &stat, lookup)?;
        // Between the two resolutions the name may have come to mean another file, so nothing here
        // waits (O_NONBLOCK) or takes a terminal, and the type is checked again.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = self.resolve(path, flags, lookup)?;
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::DIOALIGN | mount_id_wanted();
        let stat = statx(&fd, "", AtFlags::EMPTY_PATH | freshness(system), wanted)?;
        require_regular(FileType::from_raw_mode(u32::from(stat.stx_mode)))?;
        if mount_in(&stat) != mount {
            return Err(Errno::AGAIN);
        }
        let direct =
            direct && direct_read_possible(&stat) && fcntl_setfl(&fd, OFlags::DIRECT).is_ok();
        if !direct {
            fcntl_setfl(&fd, OFlags::empty())?;
        }
        let meta = FileMeta {
            is_weak: !timestamps_tell(system, &stat),
            ..meta_of(&stat)
        };
        Ok(OpenFile {
            fd: Arc::new(fd),
            settled: !meta.is_weak && is_settled(&meta, system, stamping_clock_ns()),
            meta,
            mount,
            system,
            links: stat.stx_nlink,
            growth,
            direct: AtomicBool::new(direct),
            passed: None,
        })
    }

    /// Takes a descriptor that was passed, of a regular file that may be read.
    ///
    /// The errors of [`RootDir::open_file`], and `EOPNOTSUPP` for a file system that may make its
    /// reader wait: the process that passed the descriptor could hold up the reader.
    pub(crate) fn open_passed(
        &self,
        passed: PassedId,
        fd: &Arc<OwnedFd>,
        lookup: Lookup,
    ) -> Result<OpenFile, Errno> {
        let stat = glance(fd)?;
        require_regular(FileType::from_raw_mode(u32::from(stat.stx_mode)))?;
        let (mount, system) = self.file_system(fd, &stat, lookup)?;
        if !system.is_local() {
            return Err(Errno::OPNOTSUPP);
        }
        let wanted = StatxFlags::BASIC_STATS | mount_id_wanted();
        let stat = statx(fd, "", AtFlags::EMPTY_PATH | freshness(system), wanted)?;
        let meta = FileMeta {
            is_weak: !timestamps_tell(system, &stat),
            ..meta_of(&stat)
        };
        Ok(OpenFile {
            fd: Arc::clone(fd),
            settled: !meta.is_weak && is_settled(&meta, system, stamping_clock_ns()),
            meta,
            mount,
            system,
            links: stat.stx_nlink,
            growth: Growth::Forbidden,
            direct: AtomicBool::new(true),
            passed: Some(passed),
        })
    }

    /// Returns the mount and the file system of a place. `EAGAIN` if `lookup` must not wait, and
    /// the file system may make it wait, or is not known.
    fn file_system(
        &self,
        place: &OwnedFd,
        stat: &Statx,
        lookup: Lookup,
    ) -> Result<(Mount, FileSystem), Errno> {
        let mount = mount_in(stat);
        let system = match (self.mounts.get(mount), lookup) {
            (None, Lookup::Cached) | (Some(FileSystem::Other), Lookup::Cached) => {
                return Err(Errno::AGAIN);
            }
            (Some(system), _) => system,
            (None, Lookup::Complete) => {
                let system = FileSystem::of(place.as_fd())?;
                self.mounts.insert(mount, system);
                system
            }
        };
        Ok((mount, system))
    }

    /// Returns the id of the mount that a path leads into, as far as the kernel knows without
    /// waiting.
    pub(crate) fn mount_towards(&self, path: &[u8]) -> u64 {
        let mut place = None;
        for component in path.split(|&byte| byte == b'/') {
            let from = place.as_ref().unwrap_or(&self.dir);
            match resolve_at(from, component, OFlags::PATH, Lookup::Cached) {
                Ok(next) => place = Some(next),
                Err(_) => break,
            }
        }
        glance(place.as_ref().unwrap_or(&self.dir)).map_or(0, |stat| stat.stx_mnt_id)
    }

    pub(crate) fn resolve(
        &self,
        path: &[u8],
        flags: OFlags,
        lookup: Lookup,
    ) -> Result<OwnedFd, Errno> {
        resolve_at(&self.dir, path, flags, lookup)
    }
}

fn resolve_at(dir: &OwnedFd, path: &[u8], flags: OFlags, lookup: Lookup) -> Result<OwnedFd, Errno> {
    let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    if lookup == Lookup::Cached {
        resolve |= ResolveFlags::CACHED;
    }
    let mut races = 0;
    loop {
        let opened = openat2(dir, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve);
        match opened {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if lookup == Lookup::Complete && races < RACES_MAX => races += 1,
            // RESOLVE_CACHED is younger than openat2 (Linux 5.12).
            Err(Errno::INVAL) if lookup == Lookup::Cached => return Err(Errno::AGAIN),
            other => return other,
        }
    }
}

/// Returns type and mount of a place, without querying its file system.
fn glance(place: &OwnedFd) -> Result<Statx, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    statx(place, "", flags, StatxFlags::TYPE | mount_id_wanted())
}

/// Returns the mount of an open file, without querying its file system.
pub(crate) fn mount_of(file: &OwnedFd) -> Result<Mount, Errno> {
    glance(file).map(|stat| mount_in(&stat))
}

fn mount_in(stat: &Statx) -> Mount {
    Mount {
        id: stat.stx_mnt_id,
        device: makedev(stat.stx_dev_major, stat.stx_dev_minor),
    }
}

/// Returns whether attributes must be fetched, or may come from the kernel's cache.
fn freshness(system: FileSystem) -> AtFlags {
    if system.is_local() {
        AtFlags::STATX_DONT_SYNC
    } else {
        AtFlags::STATX_FORCE_SYNC
    }
}

/// False if content may change without any change of timestamps.
fn timestamps_tell(system: FileSystem, stat: &Statx) -> bool {
    match system {
        FileSystem::Disk => true,
        FileSystem::Memory => false,
        // Some have no times, and some no change time: they report the time of modification as
        // both.
        FileSystem::Other => mtime_ns(stat) > 0,
    }
}

impl OpenFile {
    pub(crate) fn identity(&self) -> Identity {
        Identity {
            meta: self.meta,
            mount: self.mount,
            settled: self.settled,
            links: self.links,
            growth: self.growth,
            passed: self.passed,
        }
    }

    /// True if reads must be aligned to [`PAGE_BYTES`].
    pub(crate) fn is_direct(&self) -> bool {
        self.direct.load(Ordering::Relaxed)
    }

    /// Switches to the page cache, since the file system refuses direct reads after all. `EINVAL`
    /// for a passed descriptor, whose flags belong to another process.
    pub(crate) fn make_buffered(&self) -> Result<(), Errno> {
        if self.passed.is_some() {
            return Err(Errno::INVAL);
        }
        fcntl_setfl(&*self.fd, OFlags::empty())?;
        self.direct.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Checks that all bytes read until now are of the version that was opened; else `ESTALE`.
    ///
    /// A write sets the timestamps before it changes bytes, so a check after the read is enough.
    /// Two changes escape: the rest of a write that was under way at the open, and a change to the
    /// same size within the timestamps' grain of the last one before the open.
    ///
    /// The change time catches writers that set the modification time back. It also changes when
    /// the file loses or gains a name, which its link count shows: a file may be replaced by a
    /// rename, or removed, while it is sent, and only a writer that rewrites such a file *and* sets
    /// the modification time back escapes. A rename to another name, or a change of owner, mode or
    /// extended attributes, shows in nothing else. It looks like a rewrite in disguise, and is
    /// treated as one: a response that could be of two versions is worse than one that ends early.
    ///
    /// Where growth is allowed, the file's writer is known to append only, and only a loss of bytes
    /// counts.
    pub(crate) fn check_version(&self) -> Result<(), Errno> {
        let flags = AtFlags::EMPTY_PATH | freshness(self.system);
        let stat = statx(&*self.fd, "", flags, StatxFlags::BASIC_STATS)?;
        let now = meta_of(&stat);
        let same = match self.growth {
            Growth::Allowed => now.size >= self.meta.size,
            Growth::Forbidden => self.is_unchanged(&now, stat.stx_nlink),
        };
        if same { Ok(()) } else { Err(Errno::STALE) }
    }

    fn is_unchanged(&self, now: &FileMeta, links: u32) -> bool {
        now.size == self.meta.size
            && now.mtime_ns == self.meta.mtime_ns
            && (now.ctime_ns == self.meta.ctime_ns || links != self.links)
    }
}

impl AsFd for OpenFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Requests `STATX_MNT_ID_UNIQUE` and `STATX_MNT_ID`: a kernel that does not know the first gives
/// the second.
fn mount_id_wanted() -> StatxFlags {
    const MNT_ID_UNIQUE: u32 = 0x4000;
    StatxFlags::MNT_ID | StatxFlags::from_bits_retain(MNT_ID_UNIQUE)
}

fn require_regular(kind: FileType) -> Result<(), Errno> {
    match kind {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(Errno::ISDIR),
        _ => Err(Errno::ACCESS),
    }
}

/// False only if the kernel reports that direct reads need more alignment than buffers have.
fn direct_read_possible(stat: &Statx) -> bool {
    if stat.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return true;
    }
    let fits = |align: u32| align.is_power_of_two() && align as usize <= PAGE_BYTES;
    fits(stat.stx_dio_mem_align) && fits(stat.stx_dio_offset_align)
}

/// Returns when a file was modified last, in nanoseconds since the epoch.
pub(crate) fn mtime_ns(stat: &Statx) -> i64 {
    nanoseconds(stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec)
}

fn nanoseconds(seconds: i64, nanoseconds: u32) -> i64 {
    seconds
        .saturating_mul(1_000_000_000)
        .saturating_add(i64::from(nanoseconds))
}

pub(crate) fn meta_of(stat: &Statx) -> FileMeta {
    FileMeta {
        size: stat.stx_size,
        inode: stat.stx_ino,
        device: makedev(stat.stx_dev_major, stat.stx_dev_minor),
        mtime_ns: mtime_ns(stat),
        ctime_ns: nanoseconds(stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec),
        is_weak: false,
    }
}

/// Returns the time, in nanoseconds of the clock that the kernel stamps files by.
fn stamping_clock_ns() -> i64 {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    now.tv_sec
        .saturating_mul(1_000_000_000)
        .saturating_add(now.tv_nsec)
}

/// True if a change from now on would show in the timestamps.
fn is_settled(meta: &FileMeta, system: FileSystem, now_ns: i64) -> bool {
    let changed_ns = meta.mtime_ns.max(meta.ctime_ns);
    let after_ns = match changed_ns % 1_000_000_000 {
        _ if !system.is_local() => SETTLED_AFTER_NS_OTHER,
        // One timestamp in a million is a whole second on a finer file system too, and has to wait
        // as well.
        0 => SETTLED_AFTER_NS_COARSE,
        _ => SETTLED_AFTER_NS,
    };
    now_ns.saturating_sub(changed_ns) > after_ns
}

impl fmt::Display for RootError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RootError::Open { path, source } => {
                write!(f, "cannot open the root {}: {source}", path.display())
            }
            RootError::NotADirectory { path } => {
                write!(f, "the root {} is not a directory", path.display())
            }
            RootError::Unsupported { source } => write!(
                f,
                "this kernel does not offer openat2 ({source}): files could not be kept below the \
                 root. Linux 5.6 or later is needed, and a system call filter must allow openat2"
            ),
        }
    }
}

impl std::error::Error for RootError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            RootError::Open { source, .. } | RootError::Unsupported { source } => Some(source),
            RootError::NotADirectory { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: i64 = 1_000_000_000;

    fn changed_at(mtime_ns: i64, ctime_ns: i64) -> FileMeta {
        FileMeta {
            mtime_ns,
            ctime_ns,
            ..FileMeta::default()
        }
    }

    #[test]
    fn timestamps_settle_within_ticks_where_they_are_fine_and_seconds_where_they_are_not() {
        let fine = changed_at(0, 7 * SECOND_NS + 1);
        let moment_ns = 7 * SECOND_NS + 1 + SETTLED_AFTER_NS;
        assert!(!is_settled(&fine, FileSystem::Disk, moment_ns));
        assert!(is_settled(&fine, FileSystem::Disk, moment_ns + 1));

        let coarse = changed_at(8 * SECOND_NS, 6 * SECOND_NS);
        assert!(!is_settled(&coarse, FileSystem::Disk, 10 * SECOND_NS));
        assert!(is_settled(&coarse, FileSystem::Disk, 10 * SECOND_NS + 1));
    }

    #[test]
    fn timestamps_in_the_future_are_not_settled() {
        assert!(!is_settled(&changed_at(i64::MAX, 0), FileSystem::Disk, 0));
        assert!(!is_settled(
            &changed_at(9 * SECOND_NS + 5, 0),
            FileSystem::Disk,
            9 * SECOND_NS
        ));
    }
}
