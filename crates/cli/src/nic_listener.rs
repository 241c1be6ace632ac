//! `splitway nic`: waits on a Unix socket for host stacks and serves one after the other, each with a NIC
//! process of its own. So a host stack meets fresh memory, and a crash ends one session, not the service.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, SocketFlags};

use crate::args::NicArgs;
use crate::child::Child;
use crate::error::Failure;
use crate::family::{Family, Happening, Role};
use crate::link::Inventory;
use crate::messages::Message;
use crate::serve::{check_root, option};
use crate::signals::EndSignals;
use crate::{features, privileges, say, socket};

/// How long a host stack may wait for the one before it: longer than a session takes to end, shorter than
/// a host stack waits for the hello.
const WAITING_MAX: Duration = Duration::from_secs(2);

/// Runs until the user ends it.
pub(crate) fn run(args: &NicArgs, log: &str) -> Result<(), Failure> {
    check_root(&args.root)?;
    Inventory::take()?.device(&args.dev)?;
    features::require()?;
    privileges::require(
        &format!("sending packets on {}", args.dev),
        privileges::FOR_DEVICE,
    )?;

    let mut family = Family::new(EndSignals::catch()?);
    let listener = Listener::bind(&args.socket)?;
    say(&format!("listening on {}\n", args.socket.display()));
    let result = serve(&mut family, &listener, args, log);
    let ended = family.end(&[Role::Nic]);
    result.and(ended)
}

fn serve(
    family: &mut Family,
    listener: &Listener,
    args: &NicArgs,
    log: &str,
) -> Result<(), Failure> {
    let mut waiting: Option<Visitor> = None;
    loop {
        if family.pid(Role::Nic).is_none()
            && let Some(visitor) = waiting.take()
        {
            match Child::spawn("NIC process", session_arguments(args, log), visitor.socket) {
                Ok(child) => {
                    say(&format!(
                        "nic process {}: serves a host stack\n",
                        child.pid()
                    ));
                    family.adopt(Role::Nic, child);
                }
                Err(failure) => tracing::error!("{failure}"),
            }
        }
        // One waits; the others stay in the socket's queue.
        let accepting = waiting.is_none().then(|| listener.socket.as_fd());
        let deadline = waiting.as_ref().map(|visitor| visitor.until);
        match family.next_or_readable(accepting, deadline)? {
            Happening::Signal => return Ok(()),
            Happening::Readable => waiting = listener.accept(),
            Happening::Nothing => {
                // Closing the connection is the answer: the host stack tells its user.
                waiting = None;
                tracing::warn!("refused a host stack: another one is being served");
            }
            Happening::Said(Message::Failed(failure)) => tracing::error!("{failure}"),
            Happening::Said(_) => {}
            Happening::Ended => {
                if let Err(failure) = family.end(&[Role::Nic]) {
                    tracing::error!("{failure}");
                }
                family.dismiss(Role::Nic);
                say("the host stack is gone; waiting for the next one\n");
            }
        }
    }
}

/// A host stack that has connected and is not served yet.
struct Visitor {
    socket: OwnedFd,
    until: Instant,
}

fn session_arguments(args: &NicArgs, log: &str) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = ["nic", "--control-stdin", "--log", log, "--workers"]
        .map(OsString::from)
        .into();
    arguments.push(args.workers.to_string().into());
    if let Some(buffers) = args.buffers {
        arguments.extend(["--buffers".into(), buffers.to_string().into()]);
    }
    arguments.extend(args.measuring.arguments());
    arguments.push(option("--dev", args.dev.as_ref()));
    arguments.push(option("--root", args.root.as_os_str()));
    arguments
}

/// A listening socket in the file system; the file goes with it.
struct Listener {
    socket: OwnedFd,
    path: PathBuf,
}

impl Listener {
    /// Listens on `path`, for processes of this user only. A socket that a dead process has left there
    /// is replaced; anything else stays.
    fn bind(path: &Path) -> Result<Self, Failure> {
        let what = format!("NIC socket {}", path.display());
        let failed = |errno| match errno {
            Errno::NOENT => Failure::input(&what, "its directory does not exist"),
            Errno::ACCESS | Errno::ROFS => Failure::input(&what, errno)
                .remedy("Choose a place where this user may write with --socket."),
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
                            .remedy("End it, or choose another path with --socket."),
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

    /// The next host stack, unless it has gone again.
    fn accept(&self) -> Option<Visitor> {
        let socket = rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC).ok()?;
        let mut fds = [PollFd::new(&socket, PollFlags::RDHUP)];
        let here = matches!(poll(&mut fds, Some(&Timespec::default())), Ok(0));
        here.then(|| Visitor {
            socket,
            until: Instant::now() + WAITING_MAX,
        })
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

    #[test]
    fn the_socket_is_private_and_goes_with_its_owner() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nic.sock");
        let listener = Listener::bind(&path).unwrap();
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
        let listener = Listener::bind(&path).unwrap();
        let failure = Listener::bind(&path).map(|_| ()).unwrap_err();
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
        Listener::bind(&path).unwrap();
    }

    #[test]
    fn what_is_not_a_socket_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("precious");
        std::fs::write(&path, "data").unwrap();
        let failure = Listener::bind(&path).map(|_| ()).unwrap_err();
        assert!(failure.to_string().contains("not a socket"), "{failure}");
        assert_eq!(std::fs::read(&path).unwrap(), b"data");
        let failure = Listener::bind(&directory.path().join("no/such/place"))
            .map(|_| ())
            .unwrap_err();
        assert!(
            failure.to_string().contains("directory does not exist"),
            "{failure}"
        );
    }
}
