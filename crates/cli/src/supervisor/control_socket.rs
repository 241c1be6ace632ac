//! The control socket of a server, for its user.
//!
//! A connection carries one request and one answer, each a line of text in a packet of its own
//! (`SOCK_SEQPACKET`): the name of a command; then `ok` or `error`, a space, and a text that may
//! have several lines. An answer may carry descriptors from which the client reads more. Only the
//! user who runs the server, and root, may ask.

use std::ffi::OsStr;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fmt, fs};

use failure::Failure;
use netsetup::listener::Listener;
use netsetup::seqpacket;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::process::{Uid, geteuid};

use config::socket_values::AddressRange;
use config::text::Time;
use processes::ipc::capture_request::CaptureRequest;
use processes::ipc::qlog_request::QlogRequest;

/// Longest request, and longest answer, in bytes.
pub(crate) const LINE_BYTES_MAX: usize = 64 << 10;

/// Most descriptors in an answer.
pub(crate) const DESCRIPTORS_MAX: usize = 4;

/// Their size in a control message, in bytes.
pub(crate) const DESCRIPTORS_SPACE: usize = rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX));

/// Longest time in which a connected client sends its request.
const PATIENCE: Duration = Duration::from_secs(2);

/// A client's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Replaces each NIC process by one started from the newest program.
    RestartNic,
    /// Asks for the state of each NIC stack, a line each.
    Nics,
    /// Reads the configuration and certificates again.
    Reload,
    /// Refuses new connections; the server ends when the others have.
    Drain,
    /// Opens the logs again.
    Reopen,
    /// Detaches the program with this process.
    Detach(u32),
    /// Denies a network for a time, or until it is allowed.
    Deny(AddressRange, Option<Time>),
    /// Takes a denial back.
    Allow(AddressRange),
    /// Asks for the denials: the answer comes with a file that lists them, if there are any.
    Denied,
    /// Asks for the connections: the answer comes with a pipe that delivers them.
    Stat,
    /// Asks for packets: the answer comes with sockets that deliver them.
    Capture(CaptureRequest),
    /// Traces QUIC connections: the answer comes with a pipe that delivers the events.
    Qlog(QlogRequest),
}

const CAPTURE: &str = "capture";
const QLOG: &str = "qlog";
const DETACH: &str = "detach";
const DENY: &str = "deny";
const ALLOW: &str = "allow";

impl Request {
    /// Requests that consist of one word.
    const ALL: [Self; 7] = [
        Self::RestartNic,
        Self::Nics,
        Self::Reload,
        Self::Drain,
        Self::Reopen,
        Self::Stat,
        Self::Denied,
    ];

    fn parse(line: &[u8]) -> Option<Self> {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let of_a_word = Self::ALL
            .into_iter()
            .find(|request| request.name().as_bytes() == line);
        of_a_word.or_else(|| {
            let (name, arguments) = std::str::from_utf8(line).ok()?.split_once(' ')?;
            match name {
                CAPTURE => Some(Self::Capture(arguments.parse().ok()?)),
                QLOG => Some(Self::Qlog(arguments.parse().ok()?)),
                DENY => {
                    let (network, time) = match arguments.split_once(' ') {
                        Some((network, time)) => (network, Some(time.parse().ok()?)),
                        None => (arguments, None),
                    };
                    Some(Self::Deny(network.parse().ok()?, time))
                }
                ALLOW => Some(Self::Allow(arguments.parse().ok()?)),
                DETACH => Some(Self::Detach(arguments.parse::<NonZeroU32>().ok()?.get())),
                _ => None,
            }
        })
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::RestartNic => "restart-nic",
            Self::Nics => "nics",
            Self::Reload => "reload",
            Self::Drain => "drain",
            Self::Reopen => "reopen",
            Self::Stat => "stat",
            Self::Capture(_) => CAPTURE,
            Self::Qlog(_) => QLOG,
            Self::Detach(_) => DETACH,
            Self::Deny(..) => DENY,
            Self::Allow(_) => ALLOW,
            Self::Denied => "denied",
        }
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Capture(wanted) => write!(f, "{CAPTURE} {wanted}"),
            Self::Qlog(wanted) => write!(f, "{QLOG} {wanted}"),
            Self::Detach(pid) => write!(f, "{DETACH} {pid}"),
            Self::Deny(network, None) => write!(f, "{DENY} {network}"),
            Self::Deny(network, Some(time)) => write!(f, "{DENY} {network} {time}"),
            Self::Allow(network) => write!(f, "{ALLOW} {network}"),
            _ => f.write_str(self.name()),
        }
    }
}

/// Returns the default directory of this user's control sockets; `None` if there is none.
pub(crate) fn directory() -> Option<PathBuf> {
    let run = if geteuid().is_root() {
        PathBuf::from("/run")
    } else {
        PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR")?)
    };
    run.is_absolute().then(|| run.join("splitway"))
}

/// Returns the directories of this user's control sockets: `base` or, if others may write there, as
/// to a volume of Kubernetes, its subdirectory named by the user ID.
pub(crate) fn places(base: &Path) -> [PathBuf; 2] {
    let own = base.join(geteuid().as_raw().to_string());
    [base.to_owned(), own]
}

/// Fails unless this is a directory into which only this user may write.
pub(crate) fn check_own(directory: &Path) -> Result<(), String> {
    let found = fs::symlink_metadata(directory).map_err(|error| error.to_string())?;
    if !found.is_dir() {
        return Err("it is not a directory".to_owned());
    }
    if found.uid() != geteuid().as_raw() {
        return Err(format!("it belongs to another user ({})", found.uid()));
    }
    match found.mode() & 0o022 {
        0 => Ok(()),
        _ => Err(format!(
            "others may write there (mode {:o})",
            found.mode() & 0o7777
        )),
    }
}

/// A control socket.
#[derive(Debug)]
pub(crate) struct Control {
    listener: Listener,
    client: Option<Client>,
}

#[derive(Debug)]
struct Client {
    socket: OwnedFd,
    until: Instant,
    /// Whether its request has arrived and awaits the answer.
    waits: bool,
}

impl Control {
    /// Listens on `path`.
    pub(crate) fn bind(path: &Path) -> Result<Self, Failure> {
        Ok(Self {
            listener: Listener::bind("control socket", path, "--control-socket")?,
            client: None,
        })
    }

    /// Listens in the default directory, under the ID of this process.
    pub(crate) fn bind_in_usual_place() -> Result<Self, Failure> {
        let base = directory().ok_or_else(|| {
            Failure::input(
                "control socket",
                "XDG_RUNTIME_DIR does not say where to put it",
            )
        })?;
        Self::bind_below(&base)
    }

    /// Listens in this directory if only this user may write there, and else in a subdirectory.
    fn bind_below(base: &Path) -> Result<Self, Failure> {
        let failed = |directory: &Path, error: &dyn fmt::Display| {
            Failure::input(format!("directory {}", directory.display()), error)
        };
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(base).map_err(|error| failed(base, &error))?;
        if check_own(base).is_ok() {
            return Self::bind_in(base);
        }
        let [_, own] = places(base);
        builder.create(&own).map_err(|error| failed(&own, &error))?;
        check_own(&own).map_err(|error| failed(&own, &error))?;
        Self::bind_in(&own)
    }

    /// Listens in this directory, and removes the sockets of killed servers.
    fn bind_in(directory: &Path) -> Result<Self, Failure> {
        Listener::sweep(directory, |name| {
            let name = Path::new(name);
            let stem = name.file_stem().and_then(OsStr::to_str);
            name.extension() == Some(OsStr::new("sock"))
                && stem.is_some_and(|stem| stem.parse::<u32>().is_ok())
        });
        Self::bind(&directory.join(format!("{}.sock", std::process::id())))
    }

    pub(crate) fn path(&self) -> &Path {
        self.listener.path()
    }

    /// Returns the descriptor to watch for the next request; `None` while an answer is due.
    pub(crate) fn watch(&self) -> Option<BorrowedFd<'_>> {
        match &self.client {
            Some(client) => (!client.waits).then(|| client.socket.as_fd()),
            None => Some(self.listener.as_fd()),
        }
    }

    /// Returns when to call [`Control::next`] at the latest.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let silent = self.client.as_ref().filter(|client| !client.waits);
        silent.map(|client| client.until)
    }

    /// Returns the next request, if any. Further requests wait until it is answered.
    pub(crate) fn next(&mut self) -> Option<Request> {
        let Some(client) = &mut self.client else {
            let socket = self.listener.accept()?;
            let until = Instant::now() + PATIENCE;
            self.client = Some(Client {
                socket,
                until,
                waits: false,
            });
            return None;
        };
        if client.waits {
            return None;
        }
        let mut line = [0; LINE_BYTES_MAX];
        let flags = RecvFlags::DONTWAIT;
        let line = match rustix::io::retry_on_intr(|| {
            rustix::net::recv(&client.socket, &mut line[..], flags)
        }) {
            Ok((_, length)) if length > 0 => line.get(..length).unwrap_or_default(),
            Err(Errno::AGAIN) if Instant::now() < client.until => return None,
            // The client has closed the connection, or sends nothing.
            _ => {
                self.client = None;
                return None;
            }
        };
        client.waits = true;
        match seqpacket::peer_user(&client.socket) {
            Ok(user) if may_ask(user, geteuid()) => {}
            _ => {
                self.answer(Err("only the user who runs the server may ask".to_owned()));
                return None;
            }
        }
        let request = Request::parse(line);
        if request.is_none() {
            let known = Request::ALL.map(|request| request.to_string()).join(", ");
            let asked = String::from_utf8_lossy(line);
            let asked = asked.trim();
            self.answer(Err(format!(
                "unknown command {asked:?}: this server knows {known}, {DENY}, {ALLOW}, {DETACH}, \
                 {CAPTURE}, {QLOG}"
            )));
        }
        request
    }

    /// Answers the current request, if any.
    pub(crate) fn answer(&mut self, answer: Result<String, String>) {
        self.answer_with(answer, &[]);
    }

    /// Answers the current request with at most [`DESCRIPTORS_MAX`] descriptors.
    pub(crate) fn answer_with(
        &mut self,
        answer: Result<String, String>,
        descriptors: &[BorrowedFd<'_>],
    ) {
        let Some(client) = self.client.take_if(|client| client.waits) else {
            return;
        };
        let mut line = match answer {
            Ok(text) => format!("ok {text}"),
            Err(text) => format!("error {text}"),
        };
        line.truncate(line.floor_char_boundary(LINE_BYTES_MAX));
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let mut space = [MaybeUninit::uninit(); DESCRIPTORS_SPACE];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            let pushed = ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
            debug_assert!(pushed, "there is space for as many");
        }
        let line = [IoSlice::new(line.as_bytes())];
        if let Err(errno) = rustix::net::sendmsg(&client.socket, &line, &mut ancillary, flags) {
            tracing::debug!("the client no longer waits for its answer: {errno}");
        }
    }
}

/// Returns whether `user` may control a server that `owner` runs. The socket's mode restricts this
/// too, but can be changed.
fn may_ask(user: Uid, owner: Uid) -> bool {
    user.is_root() || user == owner
}

#[cfg(test)]
mod tests {
    use rustix::net::SocketAddrUnix;

    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Sends `line` to a server that answers every request; returns the request and the answer.
    fn ask(line: &[u8]) -> (Option<Request>, String) {
        let directory = tempfile::tempdir().unwrap();
        let mut control = Control::bind(&directory.path().join("control")).unwrap();
        let client = seqpacket::connect(&SocketAddrUnix::new(control.path()).unwrap()).unwrap();
        assert_eq!(control.next(), None, "it has connected");
        assert_eq!(control.next(), None, "it has said nothing yet");
        assert!(control.deadline().is_some());
        rustix::net::send(&client, line, SendFlags::empty()).unwrap();
        let request = control.next();
        if request.is_some() {
            assert!(control.watch().is_none(), "the answer is due");
            control.answer(Ok("done".to_owned()));
        }
        assert!(control.watch().is_some());
        let mut answer = [0; LINE_BYTES_MAX];
        let (_, length) = rustix::net::recv(&client, &mut answer[..], RecvFlags::DONTWAIT).unwrap();
        (
            request,
            String::from_utf8_lossy(&answer[..length]).into_owned(),
        )
    }

    #[test]
    fn only_the_user_who_runs_the_server_and_root_may_ask() {
        let [root, owner, other] = [0, 1000, 1001].map(Uid::from_raw);
        assert!(may_ask(root, owner) && may_ask(owner, owner) && may_ask(root, root));
        assert!(!may_ask(other, owner) && !may_ask(other, root));
    }

    #[test]
    fn a_request_is_a_line_and_so_is_its_answer() {
        for line in [&b"restart-nic\n"[..], b"restart-nic"] {
            assert_eq!(ask(line), (Some(Request::RestartNic), "ok done".to_owned()));
        }
        let network = "192.0.2.0/24".parse().unwrap();
        for request in [
            Request::Detach(4711),
            Request::Deny(network, None),
            Request::Deny(network, Some(Time::from_secs(90))),
            Request::Allow(network),
        ] {
            assert_eq!(ask(request.to_string().as_bytes()).0, Some(request));
        }
    }

    #[test]
    fn what_is_no_request_is_answered_with_those_there_are() {
        let detach = [
            &b"detach"[..],
            b"detach 0",
            b"detach -1",
            b"detach 4711 4712",
        ];
        let others = [&b"restart"[..], b"\n", b"\xff\xfe", &[b'x'; 4000]];
        for line in others.into_iter().chain(detach) {
            let (request, answer) = ask(line);
            assert_eq!(request, None);
            assert!(answer.starts_with("error unknown command"), "{answer}");
            assert!(answer.len() <= LINE_BYTES_MAX);
        }
    }

    #[test]
    fn who_has_asked_nothing_yet_is_not_told_the_outcome_of_something_else() {
        let directory = tempfile::tempdir().unwrap();
        let mut control = Control::bind(&directory.path().join("control")).unwrap();
        let client = seqpacket::connect(&SocketAddrUnix::new(control.path()).unwrap()).unwrap();
        assert_eq!(control.next(), None, "it has connected");
        rustix::net::send(&client, b"restart-nic", SendFlags::empty()).unwrap();
        control.answer(Ok("a crash was mended".to_owned()));
        let mut answer = [0; LINE_BYTES_MAX];
        let heard = rustix::net::recv(&client, &mut answer[..], RecvFlags::DONTWAIT);
        assert_eq!(heard.unwrap_err(), Errno::AGAIN, "nothing is said");

        assert_eq!(control.next(), Some(Request::RestartNic));
        control.answer(Ok("what was asked for".to_owned()));
        let (_, length) = rustix::net::recv(&client, &mut answer[..], RecvFlags::DONTWAIT).unwrap();
        assert_eq!(&answer[..length], b"ok what was asked for");
    }

    #[test]
    fn sockets_of_killed_servers_are_swept_away_and_no_others() {
        let directory = tempfile::tempdir().unwrap();
        let place = |name: &str| directory.path().join(name);
        // IDs that this process does not have.
        let [killed, other, file, living] = [1, 2, 3, 4].map(|n| std::process::id() + n);
        let killed = format!("{killed}.sock");
        let other = format!("{other}.old");
        let file = format!("{file}.sock");
        let living = format!("{living}.sock");
        for dead in [&killed, "own-name.sock", &other] {
            let left_behind = seqpacket::non_blocking().unwrap();
            let address = SocketAddrUnix::new(place(dead)).unwrap();
            rustix::net::bind(&left_behind, &address).unwrap();
        }
        fs::write(place(&file), "no socket").unwrap();
        let _living = Control::bind(&place(&living)).unwrap();
        let control = Control::bind_in(directory.path()).unwrap();
        let own = format!("{}.sock", std::process::id());
        assert_eq!(control.path(), place(&own));
        let mut left: Vec<String> = fs::read_dir(directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| *name != own)
            .collect();
        left.sort();
        let mut expected = [other, file, living, "own-name.sock".to_owned()];
        expected.sort();
        assert_eq!(left, expected);
    }

    #[test]
    fn where_others_may_write_a_server_has_a_subdirectory_of_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().join("splitway");
        fs::create_dir(&base).unwrap();
        let allow = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode));
        let own = base.join(geteuid().as_raw().to_string());
        for mode in [0o1777, 0o777] {
            allow(&base, mode).unwrap();
            let control = Control::bind_below(&base).unwrap();
            assert_eq!(control.path().parent(), Some(own.as_path()));
            assert_eq!(fs::metadata(&own).unwrap().mode() & 0o7777, 0o700);
        }
        // A subdirectory made by others is no better.
        allow(&own, 0o777).unwrap();
        let failure = Control::bind_below(&base).unwrap_err().to_string();
        assert!(
            failure.contains("others may write there (mode 777)"),
            "{failure}"
        );
        fs::remove_dir(&own).unwrap();
        std::os::unix::fs::symlink("/tmp", &own).unwrap();
        let failure = Control::bind_below(&base).unwrap_err().to_string();
        assert!(failure.contains("not a directory"), "{failure}");
        allow(&base, 0o700).unwrap();
        let control = Control::bind_below(&base).unwrap();
        assert_eq!(control.path().parent(), Some(base.as_path()));
    }

    #[test]
    fn who_goes_again_is_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let mut control = Control::bind(&directory.path().join("control")).unwrap();
        let address = SocketAddrUnix::new(control.path()).unwrap();
        let client = seqpacket::connect(&address).unwrap();
        assert_eq!(control.next(), None);
        drop(client);
        assert_eq!(control.next(), None);
        assert_eq!(control.deadline(), None);
        assert!(!control.path().as_os_str().is_empty());
    }
}
