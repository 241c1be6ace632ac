//! The root: the directory whose files are served.

use std::path::{Path, PathBuf, absolute};

use failure::Failure;
use rustix::fs::{Access, AtFlags, CWD};
use rustix::io::Errno;

/// Fails unless `root` is a directory whose files can be listed and opened.
pub fn check_root(root: &Path) -> Result<(), Failure> {
    let what = format!("root {}", root.display());
    let stat = rustix::fs::stat(root).map_err(|errno| match errno {
        Errno::NOENT => Failure::input(&what, "no such directory"),
        errno => Failure::input(&what, errno),
    })?;
    if !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() {
        return Err(Failure::input(what, "not a directory")
            .remedy("Give the directory that holds the file."));
    }
    rustix::fs::accessat(
        CWD,
        root,
        Access::READ_OK | Access::EXEC_OK,
        AtFlags::EACCESS,
    )
    .map_err(|errno| {
        Failure::input(what, format!("not readable: {errno}"))
            .remedy("This user needs permission to read and to search it.")
    })
}

/// Identity of a directory, independent of its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    /// The identity of the directory at a path. While a process has it open, no other directory has
    /// the same.
    pub fn of(path: &Path) -> Result<Self, Errno> {
        let stat = rustix::fs::stat(path)?;
        Ok(Self {
            device: stat.st_dev,
            inode: stat.st_ino,
        })
    }
}

/// The directory that a root leads to.
pub fn follow(root: &Path) -> Result<PathBuf, Failure> {
    check_root(root)?;
    root.canonicalize()
        .map_err(|error| Failure::input(format!("root {}", root.display()), error))
}

/// Whether the real path of a root differs from its path.
pub fn is_link(root: &Path) -> bool {
    match (absolute(root), root.canonicalize()) {
        (Ok(path), Ok(leads_to)) => path != leads_to,
        _ => false,
    }
}
