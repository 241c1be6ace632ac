//! Attachment: how a process gets its channel from the broker.
//!
//! The broker listens on a `SOCK_SEQPACKET` socket. A new application connects and sends Attach; a
//! forked child sends Adopt over the connection that it inherited, with one end of a new pair,
//! which becomes its own connection. The answer to either carries a segment, a channel and two
//! bells.
//!
//! A broker that has died has a successor at the same path, which learns its applications from the
//! host process: an attached process connects and sends Reattach, a child sends Join, both with the
//! key of their application. Until there is a successor, connections wait in the backlog.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::process::{Resource, getrlimit};
use rustix::thread::nanosleep;
use socket_channel::attach::{
    ATTACHED_DESCRIPTORS, Attached, BadPacket, HANDLES_MAX, Key, PACKET_BYTES_MAX, Reply, Request,
};
use socket_channel::channel::AppEnd;
use socket_channel::{AppId, ChannelId, Layout, Segment};

use super::own::move_up;
use super::timing::{Instant, timespec};

/// Default path of the broker's socket.
pub const DEFAULT_PATH: &str = "/run/splitway/sockets.sock";

/// Longest wait for the broker's answer; a slower broker counts as broken.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Shortest and longest wait of a process before it tries another broker.
const RETRY_WAIT_MIN: Duration = Duration::from_millis(1);
const RETRY_WAIT_MAX: Duration = Duration::from_millis(100);

/// The reason why a process is not attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachError {
    /// No broker answers at this path.
    Connect {
        /// The path.
        path: PathBuf,
        /// Error of the connection.
        errno: Errno,
    },
    /// The broker refuses.
    Refused {
        /// Reason: EACCES, EMFILE or another.
        errno: Errno,
    },
    /// The broker has ended.
    Gone,
    /// The broker is of another version.
    Version {
        /// Version of the broker.
        theirs: u16,
    },
    /// The broker has sent invalid data.
    Broken {
        /// Description of the error.
        why: String,
    },
    /// There is no address space for the memory that is shared with the host stack.
    NoMemory {
        /// Limit of the process's address space (`RLIMIT_AS`) in bytes, if there is one.
        limit_bytes: Option<u64>,
    },
    /// A system call failed.
    System {
        /// Action that failed.
        what: &'static str,
        /// Error of the call.
        errno: Errno,
    },
}

impl AttachError {
    /// Returns the `errno` for callers in C.
    pub fn errno(&self) -> Errno {
        match self {
            AttachError::Connect { errno, .. }
            | AttachError::Refused { errno }
            | AttachError::System { errno, .. } => *errno,
            AttachError::Gone => Errno::CONNRESET,
            AttachError::Version { .. } => Errno::PROTONOSUPPORT,
            AttachError::Broken { .. } => Errno::PROTO,
            AttachError::NoMemory { .. } => Errno::NOMEM,
        }
    }
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttachError::Connect { path, errno } => write!(
                f,
                "no broker answers at {}: {errno}; start `splitway serve` with [sockets], or set \
                 SPLITWAY_SOCKET",
                path.display()
            ),
            AttachError::Refused { errno } => write!(f, "the broker refuses: {errno}"),
            AttachError::Gone => f.write_str("the broker ends before it answers"),
            AttachError::Version { theirs } => write!(
                f,
                "the broker speaks version {theirs} of the channel, this library {}; install both \
                 from one release",
                socket_channel::attach::VERSION
            ),
            AttachError::Broken { why } => write!(f, "the broker makes no sense: {why}"),
            AttachError::NoMemory {
                limit_bytes: Some(limit),
            } => write!(
                f,
                "memory that is shared with the host stack does not fit into the {} MiB of address \
                 space that this process may have; raise RLIMIT_AS (`ulimit -v`)",
                limit >> 20
            ),
            AttachError::NoMemory { limit_bytes: None } => f.write_str(
                "there is no address space for memory that is shared with the host stack",
            ),
            AttachError::System { what, errno } => write!(f, "{what}: {errno}"),
        }
    }
}

impl std::error::Error for AttachError {}

impl From<BadPacket> for AttachError {
    fn from(bad: BadPacket) -> Self {
        match bad {
            BadPacket::Version { theirs } => AttachError::Version { theirs },
            BadPacket::Malformed => AttachError::Broken {
                why: bad.to_string(),
            },
        }
    }
}

fn system(what: &'static str) -> impl Fn(Errno) -> AttachError {
    move |errno| AttachError::System { what, errno }
}

/// The descriptors and memory of an attached process.
#[derive(Debug)]
pub(crate) struct Attachment {
    /// The connection to the broker.
    pub(crate) broker: OwnedFd,
    pub(crate) attached: Attached,
    pub(crate) segment: Segment,
    pub(crate) channel: AppEnd,
    /// The bell that wakes this process: never read, watched for its edges.
    pub(crate) bell: OwnedFd,
}

/// Proof to another broker that a process belongs to an application.
#[derive(Clone, Debug)]
pub(crate) struct Membership {
    /// Path of the broker's socket.
    pub(crate) path: PathBuf,
    pub(crate) app: AppId,
    pub(crate) channel: ChannelId,
    pub(crate) key: Key,
}

/// Attaches this process as a new application.
pub(crate) fn attach(path: &Path, modes: u32) -> Result<Attachment, AttachError> {
    let broker = connect(path)?;
    send(&broker, &Request::Attach { modes }, &[])?;
    await_attached(broker, None)
}

/// Attaches this process to an existing application.
pub(crate) fn join(path: &Path, app: AppId, key: Key) -> Result<Attachment, AttachError> {
    let broker = connect(path)?;
    send(&broker, &Request::Join { app, key }, &[])?;
    await_attached(broker, None)
}

/// Connects this process, which is attached, to the current broker.
pub(crate) fn reattach(process: &Membership) -> Result<OwnedFd, AttachError> {
    let broker = connect(&process.path)?;
    let request = Request::Reattach {
        app: process.app,
        channel: process.channel,
        key: process.key,
    };
    send(&broker, &request, &[])?;
    match receive(&broker)? {
        (Reply::Reattached, _) => Ok(broker),
        (Reply::Refused { errno }, _) => Err(AttachError::Refused {
            errno: errno_of(errno),
        }),
        _ => Err(BadPacket::Malformed.into()),
    }
}

/// Retries with growing waits while brokers end before they answer, or refuse with EAGAIN because
/// of too many processes. Ends when the time is over, or when `check` fails.
pub(crate) fn retry<T>(
    check: impl Fn() -> rustix::io::Result<()>,
    mut attempt: impl FnMut() -> Result<T, AttachError>,
) -> Result<T, AttachError> {
    let until = Instant::now() + ANSWER_TIMEOUT;
    let mut wait = RETRY_WAIT_MIN;
    loop {
        let outcome = attempt();
        let may_succeed = matches!(
            outcome,
            Err(AttachError::Gone
                | AttachError::Refused {
                    errno: Errno::AGAIN
                })
        );
        if !may_succeed || Instant::now() + wait >= until || check().is_err() {
            return outcome;
        }
        // Not nanosleep of the C library: the program may have replaced it.
        let _ = nanosleep(&timespec(wait));
        wait = (2 * wait).min(RETRY_WAIT_MAX);
    }
}

/// Connects to the broker, with [`ANSWER_TIMEOUT`] as the timeout of both directions.
fn connect(path: &Path) -> Result<OwnedFd, AttachError> {
    let failed = |errno| AttachError::Connect {
        path: path.to_owned(),
        errno,
    };
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let broker = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None);
    let broker = move_up(broker.map_err(failed)?);
    for direction in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&broker, direction, Some(ANSWER_TIMEOUT))
            .map_err(system("setting a timeout"))?;
    }
    rustix::io::retry_on_intr(|| rustix::net::connect(&broker, &address)).map_err(failed)?;
    Ok(broker)
}

/// Attaches this process, a child of an attached one, over the connection that it inherited. It
/// uses the segment of its parent.
pub(crate) fn adopt(
    inherited: BorrowedFd<'_>,
    segment: Option<&Segment>,
) -> Result<Attachment, AttachError> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let pair = rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None);
    let (own, theirs) = pair.map_err(system("making a connection for this process"))?;
    let own = move_up(own);
    set_socket_timeout(&own, Timeout::Recv, Some(ANSWER_TIMEOUT))
        .map_err(system("setting a timeout"))?;
    send(inherited, &Request::Adopt, &[theirs.as_fd()])?;
    drop(theirs);
    await_attached(own, segment)
}

fn await_attached(broker: OwnedFd, known: Option<&Segment>) -> Result<Attachment, AttachError> {
    let (reply, descriptors) = receive(&broker)?;
    let attached = match reply {
        Reply::Attached(attached) => attached,
        Reply::Refused { errno } => {
            return Err(AttachError::Refused {
                errno: errno_of(errno),
            });
        }
        Reply::Reattached | Reply::Handles { .. } | Reply::Passed { .. } => {
            return Err(BadPacket::Malformed.into());
        }
    };
    let broken = |why: &dyn fmt::Display| AttachError::Broken {
        why: why.to_string(),
    };
    let wrong = |error: io::Error| match Errno::from_io_error(&error) {
        Some(Errno::NOMEM) => AttachError::NoMemory {
            limit_bytes: getrlimit(Resource::As).current,
        },
        Some(errno) => system("mapping memory of the host stack")(errno),
        None => broken(&error),
    };
    let descriptors = <[OwnedFd; ATTACHED_DESCRIPTORS]>::try_from(descriptors)
        .map_err(|_| broken(&"descriptors are missing"))?;
    let [segment, channel, host_bell, app_bell] = descriptors;
    let layout = Layout::of(attached.limits).map_err(|bad| broken(&bad))?;
    let segment = match known {
        Some(known) if *known.layout() == layout => Ok(known.clone()),
        // The rest of the limited address space is the program's.
        _ if getrlimit(Resource::As).current.is_some() => {
            Segment::app_in_parts(move_up(segment), layout)
        }
        _ => Segment::app_from_file(segment, layout),
    };
    let segment = segment.map_err(wrong)?;
    let bell = fcntl_dupfd_cloexec(&app_bell, 0).map_err(system("duplicating the bell"))?;
    let (app_bell, host_bell) = (move_up(app_bell), move_up(host_bell));
    let channel = AppEnd::from_files(channel, app_bell, host_bell).map_err(wrong)?;
    Ok(Attachment {
        broker,
        attached,
        segment,
        channel,
        bell,
    })
}

/// Converts an `errno` from a message; an invalid one becomes EIO.
pub(crate) fn errno_of(raw: u32) -> Errno {
    match i32::try_from(raw) {
        Ok(raw @ 1..=4095) => Errno::from_raw_os_error(raw),
        _ => Errno::IO,
    }
}

/// Sends a request to the broker, with descriptors.
pub(crate) fn send(
    broker: impl AsFd,
    request: &Request,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), AttachError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        let pushed = ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
        debug_assert!(pushed, "there is space for one");
    }
    let packet = request.encode();
    let packet = [IoSlice::new(&packet)];
    let sent = rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(&broker, &packet, &mut ancillary, SendFlags::NOSIGNAL)
    });
    match sent {
        Ok(_) => Ok(()),
        Err(Errno::PIPE | Errno::CONNRESET) => Err(AttachError::Gone),
        Err(errno) => Err(system("asking the broker")(errno)),
    }
}

/// Receives the broker's next answer with its descriptors. EMFILE if some are missing because this
/// process may have no more.
pub(crate) fn receive(broker: &OwnedFd) -> Result<(Reply, Vec<OwnedFd>), AttachError> {
    const SPACE: usize = rustix::cmsg_space!(ScmRights(HANDLES_MAX as usize));
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut packet = [0; PACKET_BYTES_MAX + 1];
    let received = rustix::io::retry_on_intr(|| {
        let pieces = &mut [IoSliceMut::new(&mut packet)];
        rustix::net::recvmsg(broker, pieces, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    });
    let received = match received {
        Ok(received) => received,
        Err(Errno::CONNRESET) => return Err(AttachError::Gone),
        Err(Errno::AGAIN) => return Err(system("waiting for the broker")(Errno::TIMEDOUT)),
        Err(errno) => return Err(system("waiting for the broker")(errno)),
    };
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            descriptors.extend(passed);
        }
    }
    if received.bytes == 0 {
        return Err(AttachError::Gone);
    }
    let reply = Reply::decode(&packet[..received.bytes])?;
    if received.flags.contains(ReturnFlags::CTRUNC) && descriptors.len() < reply.descriptors() {
        return Err(AttachError::System {
            what: "taking the broker's descriptors",
            errno: Errno::MFILE,
        });
    }
    if descriptors.len() != reply.descriptors() {
        return Err(BadPacket::Malformed.into());
    }
    Ok((reply, descriptors))
}
