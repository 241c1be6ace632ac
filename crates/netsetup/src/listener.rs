//! Unix sockets in the file system on which Splitway waits for processes of its own user.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, SocketFlags};

use crate::seqpacket;
use failure::Failure;

/// Longest wait for other processes that read or change the same directory. Their work takes
/// microseconds.
const LOCK_WAIT: Duration = Duration::from_secs(1);

/// Connections that wait to be accepted, for sockets of this user and of all users.
const BACKLOG: i32 = 16;
const BACKLOG_FOR_ALL: i32 = 256;

/// Time between two attempts to lock the directory.
const LOCK_RETRY: Duration = Duration::from_millis(2);

/// A listening socket in the file system; the file goes with it.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Identity of the socket's file: device and inode.
    file: (u64, u64),
}

impl Listener {
    /// Listens on `path`, for processes of this user only. A socket that a dead process has left
    /// there is replaced; any other file stays. `name` is its name in error messages, `option` the
    /// option that chooses another path.
    pub fn bind(name: &str, path: &Path, option: &str) -> Result<Self, Failure> {
        let own = Mode::RUSR | Mode::WUSR;
        Self::bind_with(name, path, option, own, BACKLOG)
    }

    /// The same for processes of every user.
    pub fn bind_for_all(name: &str, path: &Path, option: &str) -> Result<Self, Failure> {
        let all = Mode::from_raw_mode(0o666);
        Self::bind_with(name, path, option, all, BACKLOG_FOR_ALL)
    }

    fn bind_with(
        name: &str,
        path: &Path,
        option: &str,
        mode: Mode,
        backlog: i32,
    ) -> Result<Self, Failure> {
        let what = format!("{name} {}", path.display());
        let failed = |errno| match errno {
            Errno::AGAIN => Failure::input(&what, "another process keeps its directory locked"),
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
        // Of two processes that start together, one would else take the other's socket, bound and
        // not yet listened on, for that of a dead process.
        let _lock = lock_directory(path).map_err(failed)?;
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
        let socket = seqpacket::non_blocking().map_err(failed)?;
        // Write permission lets a process connect. Linux creates the file with the socket's mode
        // before `bind`, so that at no time can a user connect whom the mode excludes.
        rustix::fs::fchmod(&socket, mode).map_err(failed)?;
        let is_for_all = mode.contains(Mode::WOTH);
        let mask = is_for_all.then(|| rustix::process::umask(Mode::empty()));
        let bound = rustix::net::bind(&socket, &address);
        if let Some(mask) = mask {
            rustix::process::umask(mask);
        }
        bound.map_err(failed)?;
        let listener = Self {
            socket,
            path: path.to_owned(),
            file: file_at(path).map_err(failed)?,
        };
        rustix::net::listen(&listener.socket, backlog).map_err(failed)?;
        Ok(listener)
    }

    /// Removes the sockets that dead processes have left in `directory`, if `is_ours` accepts their
    /// names.
    pub fn sweep(directory: &Path, is_ours: impl Fn(&OsStr) -> bool) {
        let sweep = || -> std::io::Result<()> {
            // No other process gets between binding and listening meanwhile.
            let _lock = lock(directory)?;
            for entry in std::fs::read_dir(directory)?.flatten() {
                let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
                if !is_ours(&entry.file_name()) || !is_socket {
                    continue;
                }
                let path = entry.path();
                let owner = SocketAddrUnix::new(&path).and_then(|address| owner(&address));
                // A file that has gone meanwhile, or cannot be removed, does no harm to others.
                if owner == Err(Errno::CONNREFUSED)
                    && let Err(error) = rustix::fs::unlink(&path)
                {
                    tracing::debug!(%error, "{} remains", path.display());
                }
            }
            Ok(())
        };
        if let Err(error) = sweep() {
            let directory = directory.display();
            tracing::debug!(%error, "sockets of dead processes may remain in {directory}");
        }
    }

    /// Accepts the next connection, unless its client has gone again.
    pub fn accept(&self) -> Option<OwnedFd> {
        let socket = rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC).ok()?;
        let mut fds = [PollFd::new(&socket, PollFlags::RDHUP)];
        let here = matches!(poll(&mut fds, Some(&Timespec::default())), Ok(0));
        here.then_some(socket)
    }

    /// Returns the path to connect to.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for Listener {
    /// Readable when a client has connected.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // After the file was removed, another server may listen there.
        let _lock = lock_directory(&self.path);
        if file_at(&self.path) == Ok(self.file) {
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

/// Returns device and inode of the file at `path`.
fn file_at(path: &Path) -> rustix::io::Result<(u64, u64)> {
    let stat = rustix::fs::lstat(path)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Locks the directory of `path` against other processes that do the same, until dropped.
fn lock_directory(path: &Path) -> rustix::io::Result<OwnedFd> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    lock(directory)
}

/// Locks the directory itself.
fn lock(directory: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory, flags, Mode::empty())?;
    let until = Instant::now() + LOCK_WAIT;
    loop {
        // Any user who may read the directory may lock it, for as long as it likes: the wait is
        // bounded.
        let locked = rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive);
        match locked {
            Err(Errno::AGAIN) if Instant::now() < until => std::thread::sleep(LOCK_RETRY),
            Err(Errno::INTR) => {}
            _ => return locked.map(|()| directory),
        }
    }
}

/// Returns the process that listens at the address (`None`: one that cannot be named), or the error
/// of connecting to it.
fn owner(address: &SocketAddrUnix) -> rustix::io::Result<Option<i32>> {
    let socket = seqpacket::non_blocking()?;
    match rustix::net::connect(&socket, address) {
        Ok(()) => Ok(seqpacket::peer_pid(&socket)),
        // The backlog is full: the process lives.
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
    fn a_socket_for_all_is_for_all_whatever_the_mask() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sockets");
        let _listener = Listener::bind_for_all("sockets", &path, "--sockets").unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o666);
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

        drop(listener);
        leave_behind(&path);
        assert!(path.exists());
        bind(&path).unwrap();
    }

    /// As after a SIGKILL: the socket is closed, its file remains.
    fn leave_behind(path: &Path) {
        let left_behind = seqpacket::non_blocking().unwrap();
        rustix::net::bind(&left_behind, &SocketAddrUnix::new(path).unwrap()).unwrap();
    }

    #[test]
    fn of_many_that_start_at_once_one_listens() {
        const ALL: usize = 4;
        let directory = tempfile::tempdir().unwrap();
        for round in 0..100 {
            let path = directory.path().join(format!("{round}.sock"));
            leave_behind(&path);
            let start = std::sync::Barrier::new(ALL);
            let listeners: Vec<_> = std::thread::scope(|scope| {
                let bind = || {
                    start.wait();
                    bind(&path)
                };
                let threads = [(); ALL].map(|()| scope.spawn(bind));
                threads.map(|thread| thread.join().unwrap()).into()
            });
            assert_eq!(listeners.iter().flatten().count(), 1, "{listeners:?}");
            let reached = owner(&SocketAddrUnix::new(&path).unwrap());
            assert_eq!(reached, Ok(Some(std::process::id().cast_signed())));
        }
    }

    #[test]
    fn while_another_looks_at_what_a_dead_process_left_it_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nic.sock");
        leave_behind(&path);
        let left = file_at(&path);
        let lock = lock_directory(&path).unwrap();
        let failure = bind(&path).map(|_| ()).unwrap_err();
        assert!(failure.to_string().contains("locked"), "{failure}");
        assert_eq!(file_at(&path), left);
        drop(lock);
        bind(&path).unwrap();
    }

    #[test]
    fn the_socket_of_a_successor_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nic.sock");
        let first = bind(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let second = bind(&path).unwrap();
        drop(first);
        assert!(owner(&SocketAddrUnix::new(&path).unwrap()).is_ok());
        drop(second);
        assert!(!path.exists());
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
