//! The program that the processes are started from: an executable that stays the same although its
//! file may be replaced.

use std::fs::File;
use std::marker::PhantomData;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use failure::Failure;

/// An executable.
#[derive(Debug)]
pub(crate) struct Program {
    /// Where it was found. Another may be there now.
    path: PathBuf,
    image: File,
}

impl Program {
    /// The one that this process runs.
    pub(crate) fn own() -> Result<Self, Failure> {
        // Not to be found by path where that lies out of reach by now.
        let path = std::env::current_exe()
            .map_err(|error| Failure::broken("finding this program", error))?;
        Self::open(path, Path::new("/proc/self/exe"))
    }

    /// The one that is found now where this one was.
    pub(crate) fn newest(&self) -> Result<Self, Failure> {
        Self::open(self.path.clone(), &self.path)
    }

    fn open(path: PathBuf, image: &Path) -> Result<Self, Failure> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        match rustix::fs::open(image, flags, Mode::empty()) {
            Ok(image) => Ok(Self {
                path,
                image: image.into(),
            }),
            Err(errno) => Err(Failure::input(format!("program {}", path.display()), errno)
                .remedy("The new program must be at the path from which the server was started.")),
        }
    }

    /// Where it was found.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// True if it still lies where it was found, so that executing the path has executed this one.
    pub(crate) fn is_in_place(&self) -> bool {
        let [found, there] = [rustix::fs::fstat(&self.image), rustix::fs::stat(&self.path)]
            .map(|stat| stat.map(|stat| (stat.st_dev, stat.st_ino)));
        found.is_ok() && found == there
    }

    /// What to execute for exactly this one, whatever lies at its path.
    pub(crate) fn image(&self) -> Image<'_> {
        // Of the process that executes it, between fork and exec: it has inherited the descriptor.
        Image {
            path: format!("/proc/self/fd/{}", self.image.as_raw_fd()).into(),
            _program: PhantomData,
        }
    }
}

/// A path that leads to a program as long as its descriptor is open.
#[derive(Debug)]
pub(crate) struct Image<'a> {
    path: PathBuf,
    _program: PhantomData<&'a Program>,
}

impl Deref for Image<'_> {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_was_replaced_or_removed_is_not_in_place() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("program");
        std::fs::write(&path, "old").unwrap();
        let old = Program::open(path.clone(), &path).unwrap();
        assert!(old.is_in_place());
        let next = directory.path().join("next");
        std::fs::write(&next, "new").unwrap();
        std::fs::rename(&next, &path).unwrap();
        assert!(!old.is_in_place());
        let new = old.newest().unwrap();
        assert!(new.is_in_place());
        std::fs::remove_file(&path).unwrap();
        assert!(!new.is_in_place());
    }
}
