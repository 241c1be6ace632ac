//! Temporary directories with the lifetime of a process.
//!
//! A process keeps its directory locked, and the kernel releases the lock however the process ends.
//! So a later process can identify and remove the directories of dead processes.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use tempfile::TempDir;

/// Start and end of the names. Others are left alone: directories of earlier versions have no lock.
const PREFIX: &str = "splitway-";
const SUFFIX: &str = ".tmp";

/// Most attempts to make a directory: a sweep may remove one before it is locked.
const ATTEMPTS_MAX: usize = 16;

/// A directory that every user may read. Dropping the value removes it; after a crash of the
/// process, the next [`sweep`] does.
#[derive(Debug)]
pub struct TemporaryDirectory {
    directory: TempDir,
    _lock: Option<OwnedFd>,
}

impl TemporaryDirectory {
    /// Makes a directory among the temporary files.
    ///
    /// # Errors
    ///
    /// The directory cannot be made there.
    pub fn new() -> io::Result<Self> {
        Self::new_in(&std::env::temp_dir())
    }

    fn new_in(parent: &Path) -> io::Result<Self> {
        for _ in 0..ATTEMPTS_MAX {
            let mut builder = tempfile::Builder::new();
            let directory = builder.prefix(PREFIX).suffix(SUFFIX).tempdir_in(parent)?;
            let lock = match lock(directory.path()) {
                Ok(lock) => Some(lock),
                Err(Errno::AGAIN | Errno::NOENT) => continue,
                // The file system has no locks, so no sweep locks it either.
                Err(_) => None,
            };
            // Regardless of the umask: clients that read it may be of other users.
            fs::set_permissions(directory.path(), Permissions::from_mode(0o755))?;
            return Ok(Self {
                directory,
                _lock: lock,
            });
        }
        Err(io::Error::other("other processes remove it at once"))
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Removes directories of this user's dead processes.
pub fn sweep() {
    sweep_in(&std::env::temp_dir());
}

fn sweep_in(parent: &Path) {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| is_ours(&entry.file_name())) {
        let path = entry.path();
        let own = rustix::process::geteuid().as_raw();
        let is_own = rustix::fs::lstat(&path).is_ok_and(|found| {
            FileType::from_raw_mode(found.st_mode).is_dir() && found.st_uid == own
        });
        if !is_own {
            continue;
        }
        if let Ok(_lock) = lock(&path) {
            // A directory that cannot be removed does no harm.
            let _ = fs::remove_dir_all(&path);
        }
    }
}

fn is_ours(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(PREFIX.as_bytes()) && name.ends_with(SUFFIX.as_bytes())
}

/// Locks a directory. Fails with EAGAIN if another process holds the lock, and with ENOENT if it is
/// gone.
fn lock(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::open(path, flags, Mode::empty())?;
    rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive)?;
    // Removed before it was locked, and perhaps replaced.
    let (locked, there) = (rustix::fs::fstat(&directory)?, rustix::fs::lstat(path)?);
    if (locked.st_dev, locked.st_ino) != (there.st_dev, there.st_ino) {
        return Err(Errno::NOENT);
    }
    Ok(directory)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    /// Leaves a directory as a killed process does.
    fn leave_behind(parent: &Path) -> std::path::PathBuf {
        let TemporaryDirectory { directory, _lock } = TemporaryDirectory::new_in(parent).unwrap();
        directory.keep()
    }

    #[test]
    fn a_sweep_removes_those_of_the_dead_and_no_other() {
        let parent = tempfile::tempdir().unwrap();
        let live = TemporaryDirectory::new_in(parent.path()).unwrap();
        let dead = leave_behind(parent.path());
        fs::create_dir(dead.join("root")).unwrap();
        fs::write(dead.join("root/file"), "content").unwrap();
        let others = ["splitway-proxy-x1y2z3", "splitway-x1y2z3.tmp.d", "x.tmp"];
        for name in others {
            fs::create_dir(parent.path().join(name)).unwrap();
        }
        fs::write(parent.path().join("splitway-file.tmp"), "").unwrap();
        let link = parent.path().join("splitway-link.tmp");
        std::os::unix::fs::symlink(parent.path().join("x.tmp"), &link).unwrap();
        sweep_in(parent.path());
        assert!(!dead.exists());
        assert!(live.path().exists());
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 6);
        let mode = fs::metadata(live.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o755);
        let path = live.path().to_owned();
        drop(live);
        assert!(!path.exists());
    }

    #[test]
    fn one_that_is_being_made_is_not_taken_for_that_of_a_dead_process() {
        let parent = tempfile::tempdir().unwrap();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let sweeping = scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    sweep_in(parent.path());
                }
            });
            for _ in 0..200 {
                let made = TemporaryDirectory::new_in(parent.path()).unwrap();
                fs::write(made.path().join("file"), "content").unwrap();
                assert!(made.path().join("file").exists());
            }
            is_over.store(true, Ordering::Relaxed);
            sweeping.join().unwrap();
        });
    }
}
