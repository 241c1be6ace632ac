//! Unix sockets in the file system on which Splitway waits for processes of its own user.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, SocketFlags};

use crate::error::Failure;
use crate::socket;

/// A listening socket in the file system; the file goes with it.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: OwnedFd,
    path: PathBuf,
}

impl Listener {
    /// Listens on `path`, for processes of this user only. A socket that a dead process has left there
    /// is replaced; anything else stays.
    /// `name` is what people call it, `option` what chooses another path.
    pub(crate) fn bind(name: &str, path: &Path, option: &str) -> Result<Self, Failure> {
        let what = format!("{name} {}", path.display());
        let failed = |errno| match errno {
            Errno::NOENT => Failure::input(&what, "its directory does not exist"),
            Errno::ACCESS | Errno::ROFS => Failure::input(&what, errno).remedy(format!(
                "Choose a place where this user may write with {option}."
            )),
            errno => Failure::input(&what, errno),
        };
        let address = SocketAddrUnix::new(path).map_err(|_| {
            Failure::input(
                &what,
                "the path is too long for a socket: 107 bytes at most",
            )
        })?;
        if let Ok(stat) = rustix::fs::lstat(path) {
            if !FileType::from_raw_mode(stat.st_mode).is_socket() {
                return Err(Failure::input(
                    &what,
                    "there is a file of that name, and it is not a socket",
                ));
            }
            match owner(&address) {
                Err(Errno::CONNREFUSED) => rustix::fs::unlink(path).map_err(failed)?,
                Err(errno) => return Err(failed(errno)),
                Ok(pid) => {
                    let by = pid.map_or_else(String::new, |pid| format!(" (process {pid})"));
                    return Err(
                        Failure::input(&what, format!("in use by another splitway{by}"))
                            .remedy(format!("End it, or choose another path with {option}.")),
                    );
                }
            }
        }
        let socket = socket::non_blocking().map_err(failed)?;
        // Whoever may write to it may connect. Linux creates the file with the mode that the socket has
        // before: not even for a moment can anybody else.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        rustix::net::bind(&socket, &address).map_err(failed)?;
        let listener = Self {
            socket,
            path: path.to_owned(),
        };
        rustix::net::listen(&listener.socket, 16).map_err(failed)?;
        Ok(listener)
    }

    /// Who has connected next, unless it has gone again.
    pub(crate) fn accept(&self) -> Option<OwnedFd> {
        let socket = rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC).ok()?;
        let mut fds = [PollFd::new(&socket, PollFlags::RDHUP)];
        let here = matches!(poll(&mut fds, Some(&Timespec::default())), Ok(0));
        here.then_some(socket)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for Listener {
    /// Readable when somebody has connected.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = rustix::fs::unlink(&self.path);
    }
}

/// The process that listens there (`None`: one that cannot be named), or the error of connecting to it.
fn owner(address: &SocketAddrUnix) -> rustix::io::Result<Option<i32>> {
    let socket = socket::non_blocking()?;
    match rustix::net::connect(&socket, address) {
        Ok(()) => Ok(socket::peer_pid(&socket)),
        // Too many wait already: it lives.
        Err(Errno::AGAIN) => Ok(None),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn bind(path: &Path) -> Result<Listener, Failure> {
        Listener::bind("NIC socket", path, "--socket")
    }

    #[test]
    fn the_socket_is_private_and_goes_with_its_owner() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nic.sock");
        let listener = bind(&path).unwrap();
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn a_living_owner_keeps_it_and_a_dead_one_loses_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nic.sock");
        let listener = bind(&path).unwrap();
        let failure = bind(&path).map(|_| ()).unwrap_err();
        assert!(
            failure
                .to_string()
                .contains(&format!("(process {})", std::process::id())),
            "{failure}"
        );

        // As after a SIGKILL: the socket is closed, its file remains.
        drop(listener);
        let left_behind = socket::non_blocking().unwrap();
        rustix::net::bind(&left_behind, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        drop(left_behind);
        assert!(path.exists());
        bind(&path).unwrap();
    }

    #[test]
    fn what_is_not_a_socket_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("precious");
        std::fs::write(&path, "data").unwrap();
        let failure = bind(&path).map(|_| ()).unwrap_err();
        assert!(failure.to_string().contains("not a socket"), "{failure}");
        assert_eq!(std::fs::read(&path).unwrap(), b"data");
        let failure = bind(&directory.path().join("no/such/place"))
            .map(|_| ())
            .unwrap_err();
        assert!(
            failure.to_string().contains("directory does not exist"),
            "{failure}"
        );
    }
}
