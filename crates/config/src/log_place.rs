//! Values of `[logs]`: destinations of logs.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use failure::Failure;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Destination of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogPlace {
    /// Standard output of `splitway serve`.
    StandardOutput,
    /// A file, to which lines are appended.
    File(PathBuf),
}

impl FromStr for LogPlace {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "-" => Self::StandardOutput,
            path => Self::File(path.into()),
        })
    }
}

impl fmt::Display for LogPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StandardOutput => f.write_str("-"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

impl LogPlace {
    /// The path, if it is a file.
    pub fn path_mut(&mut self) -> Option<&mut PathBuf> {
        match self {
            Self::StandardOutput => None,
            Self::File(path) => Some(path),
        }
    }

    /// Opens the destination for appending.
    pub fn open(&self, kind: &str) -> Result<OwnedFd, Failure> {
        match self {
            Self::StandardOutput => std::io::stdout()
                .as_fd()
                .try_clone_to_owned()
                .map_err(|error| Failure::broken(format!("{kind} on standard output"), error)),
            Self::File(path) => open(kind, path),
        }
    }
}

/// Opens a log for appending, and creates it if missing.
pub fn open(kind: &str, path: &Path) -> Result<OwnedFd, Failure> {
    // Opening a pipe without a reader must not block.
    let flags = OFlags::WRONLY
        | OFlags::APPEND
        | OFlags::CREATE
        | OFlags::CLOEXEC
        | OFlags::NOCTTY
        | OFlags::NONBLOCK;
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP;
    rustix::fs::open(path, flags, mode).map_err(|errno| {
        let failure = Failure::input(format!("{kind} {}", path.display()), errno);
        match errno {
            Errno::NOENT => failure.remedy("Make its directory first."),
            Errno::ACCESS | Errno::PERM => failure.remedy(
                "The user who runs the server must be allowed to write it, and to its directory if \
                 it is not there yet.",
            ),
            Errno::ISDIR => failure.remedy("Name a file in it."),
            Errno::ROFS => failure.remedy("Choose a file system that can be written to."),
            Errno::NOSPC | Errno::DQUOT => failure.remedy(
                "Make room there, or choose another \
                place.",
            ),
            Errno::NXIO => failure.remedy("It is a pipe without a reader: start its reader first."),
            _ => failure,
        }
    })
}

/// Opens the listener for operators.
pub fn listen(address: SocketAddr) -> Result<TcpListener, Failure> {
    let listen = || -> io::Result<TcpListener> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    listen().map_err(|error| {
        let failure = Failure::input(format!("--admin {address}"), &error);
        match error.kind() {
            io::ErrorKind::AddrInUse => failure.remedy(
                "Another program listens there: choose \
                    another port.",
            ),
            io::ErrorKind::AddrNotAvailable => failure.remedy(
                "It must be an address of this machine's kernel, not the stack's own: \
                     127.0.0.1 for this machine alone.",
            ),
            io::ErrorKind::PermissionDenied => failure.remedy(
                "Ports below 1024 need CAP_NET_BIND_SERVICE: choose a higher \
                        one.",
            ),
            _ => failure,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_opened_says_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let place = |name: &str| directory.path().join(name);
        for (path, remedy) in [
            (place("none/access.log"), "Make its directory"),
            (directory.path().to_owned(), "Name a file in it"),
        ] {
            let failure = open("access log", &path).unwrap_err();
            assert_eq!(failure.exit_code(), 2);
            let text = failure.to_string();
            assert!(
                text.contains(remedy) && text.contains("access log"),
                "{text}"
            );
        }
        open("access log", &place("access.log")).unwrap();
        assert!(place("access.log").exists());
    }
}
