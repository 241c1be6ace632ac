//! The program that the processes are started from: an executable that stays the same although its file may be
//! replaced.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::error::Failure;

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
            .map_err(|error| Failure::broken("finding the own program", error))?;
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
                .remedy("The new program must lie where the old one lay when the server started.")),
        }
    }

    /// Where it was found.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What to execute for exactly this one, whatever lies at its path.
    pub(crate) fn image(&self) -> PathBuf {
        // Of the process that executes it, between fork and exec: it has inherited the descriptor.
        format!("/proc/self/fd/{}", self.image.as_raw_fd()).into()
    }
}
