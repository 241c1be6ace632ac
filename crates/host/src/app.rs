//! The in-process stream interface on which servers stand.
//!
//! An [`Application`] gets [`AppEvent`]s and acts through [`Io`]. Everything runs on the shard's
//! own thread; nothing here blocks.

use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use contract::Growth;

use crate::nics::nic_stacks::NicSet;

pub use contract::listing::{Entries, Entry, EntryKind};
pub use tls::{Agreed as TlsAgreed, Cipher as TlsCipher, Version as TlsVersion};

/// A connection, as applications name it. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u64);

/// A file opened for a stream, as applications name it. Never reused while the application holds
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileHandle(pub u64);

/// Metadata of an open file, kept on the host: answering `fstat` needs no command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileMeta {
    /// Size, in bytes.
    pub size: u64,
    /// Last modification, in nanoseconds since the epoch.
    pub mtime_ns: i64,
    /// Inode number.
    pub inode: u64,
    /// Device number.
    pub device: u64,
    /// Last status change, in nanoseconds since the epoch.
    pub ctime_ns: i64,
    /// The content may change and leave all of this as it is: a weak validator (RFC 9110 §8.8.1).
    pub is_weak: bool,
}

/// Where a listing goes on: what the part before has said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListPlace {
    /// The NIC stack.
    pub(crate) nic: usize,
    /// Its place; zero for its beginning.
    pub(crate) from: u64,
    /// What it said of the directory before.
    pub(crate) version: Option<contract::FileMeta>,
    /// NIC stacks of which there is nothing left to tell.
    pub(crate) told: NicSet,
}

impl ListPlace {
    /// A place in what the first NIC stack has, which is what an application is given where there
    /// is no other: for those who play the host stack.
    pub fn at(from: u64) -> ListPlace {
        ListPlace {
            nic: 0,
            from,
            version: None,
            told: NicSet::default(),
        }
    }
}

/// Part of what is in a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListPart {
    /// Some entries, in no order; perhaps none, though there are more.
    pub entries: Entries,
    /// Where to go on; `None`: nowhere, that was all.
    pub next: Option<ListPlace>,
    /// The directory has changed since the part before: entries may be missing or told twice,
    /// unless the listing is begun again.
    pub has_changed: bool,
}

/// Why a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// Both directions were closed in order.
    Finished,
    /// The peer reset the connection.
    Reset,
    /// The peer stopped answering.
    TimedOut,
    /// The peer has refused the connection (`ECONNREFUSED`).
    Refused,
    /// No way leads to the peer, while the connection was being opened (`EHOSTUNREACH`).
    Unreachable,
    /// This side aborted it: [`Io::abort`].
    Aborted,
    /// The NIC stack could not read what was to be sent, or is gone.
    DataPlaneFailed,
    /// TLS has ended it: what the peer sent made no sense, or it said that it is over.
    TlsFailed,
}

/// Why a connection could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectError {
    /// The stack does not have this address, or none of the peer's family (`EADDRNOTAVAIL`).
    NoAddress,
    /// A connection from this port to the same peer exists (`EADDRINUSE`).
    PortInUse,
    /// Every port has a connection to the same peer (`EADDRNOTAVAIL`).
    NoPort,
    /// There are too many connections (`ENOBUFS`).
    TooManyConnections,
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ConnectError::NoAddress => "the stack has no such address",
            ConnectError::PortInUse => "a connection from this port to this peer exists",
            ConnectError::NoPort => "every port has a connection to this peer",
            ConnectError::TooManyConnections => "there are too many connections",
        })
    }
}

impl std::error::Error for ConnectError {}

/// An event of a stream, for an application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppEvent {
    /// A connection was established by a peer; on a port that speaks TLS, the handshake of TLS is
    /// over, too. The stream is new.
    Accepted {
        /// Address and port of the peer.
        peer: SocketAddr,
        /// What was agreed upon, if the stream speaks TLS.
        tls: Option<Box<TlsAgreed>>,
    },
    /// A connection that [`Io::connect`] has begun is established.
    Connected,
    /// Bytes have arrived: read until [`Io::read`] returns 0.
    Readable,
    /// The peer will send no more; what it sent before can still be read.
    PeerFinished,
    /// After a short [`Io::write`]: there is room again.
    Writable,
    /// Everything queued has been acknowledged by the peer.
    Drained,
    /// [`Io::open`] has succeeded.
    Opened {
        /// The file.
        file: FileHandle,
        /// Its metadata.
        meta: FileMeta,
    },
    /// [`Io::open`], or [`Io::list`], has failed; the handle is gone.
    OpenFailed {
        /// The file.
        file: FileHandle,
        /// `errno` of Linux; `EISDIR` for a directory. Of a listing, `ENOTDIR` for what is none,
        /// and `ESTALE` if it cannot go on where it was, and may be begun again.
        errno: u16,
    },
    /// [`Io::list`] has succeeded; the handle is gone.
    Listed {
        /// The directory.
        file: FileHandle,
        /// Some of what is in it.
        part: Box<ListPart>,
    },
    /// The time set by [`Io::set_timer`] has come.
    Timer,
    /// The stream is over; its id means nothing any more, its files are closed.
    Closed {
        /// Why.
        reason: CloseReason,
        /// What [`Io::acknowledged`] would have said last.
        acknowledged: u64,
        /// The same of [`Io::retransmissions`].
        retransmissions: u32,
    },
}

/// A server.
pub trait Application {
    /// Called for each event of a stream, in order.
    fn on_event(&mut self, io: &mut dyn Io, stream: StreamId, event: AppEvent);

    /// Called in every turn of the shard, after its events: what they have left to be done for all
    /// of them at once.
    fn on_turn(&mut self, _io: &mut dyn Io, _now_us: u64) {}

    /// When [`Application::on_turn`] is to be called though nothing else happens, in microseconds
    /// of the host's clock.
    fn next_timeout_us(&self) -> Option<u64> {
        None
    }

    /// A descriptor by which others than peers reach the application. It does not change.
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// [`Application::wake_fd`] is readable. While there is other work, that is noticed some
    /// milliseconds late.
    fn on_wake(&mut self, _io: &mut dyn Io, _now_us: u64) {}
}

/// What an application may do. A stream or file that is gone is ignored or answers 0: a `Closed`
/// event is on its way.
pub trait Io {
    /// Opens a connection to a peer, from an own address and port; what is unspecified of them is
    /// chosen. `Connected` or `Closed` follows. What is written until then is sent afterwards.
    fn connect(
        &mut self,
        local: Option<SocketAddr>,
        remote: SocketAddr,
    ) -> Result<StreamId, ConnectError>;
    /// Takes received bytes out of the stream; returns how many, 0 if there are none.
    fn read(&mut self, stream: StreamId, buffer: &mut [u8]) -> usize;
    /// Queues bytes; returns how many were taken. After a short write, `Writable` follows.
    fn write(&mut self, stream: StreamId, bytes: &[u8]) -> usize;
    /// Queues a range of a file, without touching it; returns how many bytes were virtually queued:
    /// all, or 0 if the queue is full (`Writable` follows) or the range reaches past the end.
    fn write_file(&mut self, stream: StreamId, file: FileHandle, range: Range<u64>) -> u64;
    /// Asks the NIC stack to open a file below its root, for this stream. The path is relative,
    /// without a leading `/`. `growth` says whether a file that becomes longer can still be sent,
    /// up to its size at the open. `Opened` or `OpenFailed` follows.
    fn open(&mut self, stream: StreamId, path: &[u8], growth: Growth) -> FileHandle;
    /// Asks the NIC stack for what is in a directory below its root, for this stream: from its
    /// beginning, or from the place where a part before has ended. The path is relative, without a
    /// leading `/`; empty for the root. `Listed` or `OpenFailed` follows. Where several NIC stacks
    /// have files that are no copies, each is asked, one after the other.
    fn list(&mut self, stream: StreamId, path: &[u8], from: Option<ListPlace>) -> FileHandle;
    /// The application is done with the file. What is queued of it is still sent.
    fn close_file(&mut self, file: FileHandle);
    /// Sends FIN after all that is queued, in TLS close_notify before that. Reading goes on.
    fn shutdown(&mut self, stream: StreamId);
    /// Sends RST and forgets the stream; `Closed` follows.
    fn abort(&mut self, stream: StreamId);
    /// Calls back with `Timer` after `after`, replacing an earlier timer; `None` cancels it.
    fn set_timer(&mut self, stream: StreamId, after: Option<Duration>);
    /// The stream waits for nothing but another request of its peer, or no longer does. Where there
    /// are too many connections, idle ones are aborted first.
    fn set_idle(&mut self, stream: StreamId, is_idle: bool);
    /// Bounds the rate at which the stream sends, in bytes of payload per second; `None` takes the
    /// bound away. The congestion control may be slower. What has been handed to the NIC stack
    /// already, a few milliseconds ahead, still leaves as it was meant to.
    fn set_max_pacing_rate(&mut self, stream: StreamId, bytes_per_second: Option<u64>);
    /// `Writable` follows, once, when no more than so many bytes are queued and not sent yet: at
    /// once, if that is so already. What `TCP_NOTSENT_LOWAT` of Linux is.
    fn set_notsent_lowat(&mut self, stream: StreamId, bytes: u64);
    /// Bytes of the stream that the peer has acknowledged so far; in TLS, of what was queued.
    fn acknowledged(&self, stream: StreamId) -> u64;
    /// Bytes queued and not acknowledged yet.
    fn unacknowledged(&self, stream: StreamId) -> u64;
    /// Bytes queued and not sent yet.
    fn unsent(&self, stream: StreamId) -> u64;
    /// True if the peer alone delays the stream: bytes are unacknowledged, and everything that was
    /// issued has departed, so that neither the NIC stack nor pacing holds it back.
    fn waits_for_peer(&self, stream: StreamId) -> bool;
    /// Packets and SENDs of the stream so far that repeated bytes.
    fn retransmissions(&self, stream: StreamId) -> u32;
    /// Microseconds of the host's clock, when the turn began.
    fn now_us(&self) -> u64;
    /// Time since the epoch, for `Date`; may lag by up to a second.
    fn unix_time(&self) -> Duration;
}
