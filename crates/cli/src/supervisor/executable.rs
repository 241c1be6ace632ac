//! The program of the processes: an open executable, which stays the same when its file is
//! replaced.

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
    /// Path at which it was found; its file may be another by now.
    path: PathBuf,
    image: File,
}

impl Program {
    /// Opens the program that this process runs.
    pub(crate) fn own() -> Result<Self, Failure> {
        // The path may be out of reach by now, so the image is opened through /proc.
        let path = std::env::current_exe()
            .map_err(|error| Failure::broken("finding this program", error))?;
        Self::open(path, Path::new("/proc/self/exe"))
    }

    /// Opens the program that is at the path now.
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

    /// Returns the path at which it was found.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether the path still leads to it, so that executing the path has executed this
    /// program.
    pub(crate) fn is_in_place(&self) -> bool {
        let [found, there] = [rustix::fs::fstat(&self.image), rustix::fs::stat(&self.path)]
            .map(|stat| stat.map(|stat| (stat.st_dev, stat.st_ino)));
        found.is_ok() && found == there
    }

    /// Returns a path that executes exactly this program, even if its file was replaced.
    pub(crate) fn image(&self) -> Image<'_> {
        // Resolved in the process that executes it, between fork and exec: the descriptor is
        // inherited.
        Image {
            path: format!("/proc/self/fd/{}", self.image.as_raw_fd()).into(),
            _program: PhantomData,
        }
    }
}

/// A path to a program, valid as long as its descriptor is open.
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
