//! The in-process stream interface on which servers stand.
//!
//! An [`Application`] gets [`AppEvent`]s and acts through [`Io`]. Everything runs on the shard's
//! own thread; nothing here blocks. `quic` has what streams of QUIC connections have beyond others.

mod quic;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use contract::{Growth, PassedId};

use crate::config::OffloadPolicy;
use crate::nics::nic_stacks::NicSet;
use crate::splicing::{SpliceError, SpliceEvent, SpliceLimits};

pub use contract::listing::{Entries, Entry, EntryKind};
pub use quic::{QuicCloseReason, QuicConnection, QuicEvent, QuicStream};
pub use tls::{Agreed as TlsAgreed, Cipher as TlsCipher, Suite as TlsSuite, Version as TlsVersion};

/// A connection, as applications name it. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u64);

impl StreamId {
    /// No connection.
    pub(crate) const NONE: StreamId = StreamId(u64::MAX);
}

/// A file opened for a stream, as applications name it. Never reused while the application holds
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileHandle(pub u64);

/// An application of the shard: what it binds and opens is its own. The application that was there
/// first, the server, is [`Owner::SERVER`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner(pub u32);

impl Owner {
    /// The server in the host process.
    pub const SERVER: Owner = Owner(0);
    /// The proxy in the host process. Applications in other processes are numbered from 1, and
    /// never come as far.
    pub const PROXY: Owner = Owner(u32::MAX);
}

/// A bound address, as applications name it. Never reused while the application holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BindingId(pub(crate) NonZeroU64);

/// What an application binds (bind(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The application.
    pub owner: Owner,
    /// One of the stack's addresses, a loopback address, or an unspecified one for all; a port of
    /// 0 is chosen.
    pub address: SocketAddr,
    /// An unspecified IPv6 address does not cover IPv4 (`IPV6_V6ONLY`).
    pub v6_only: bool,
    /// `SO_REUSEADDR`.
    pub reuse_address: bool,
    /// `SO_REUSEPORT`, and the group that may share the port: the user ID, as on Linux.
    pub reuse_port: Option<u32>,
}

impl Bind {
    /// Binds an address without options.
    pub fn new(owner: Owner, address: SocketAddr) -> Bind {
        Bind {
            owner,
            address,
            v6_only: false,
            reuse_address: false,
            reuse_port: None,
        }
    }
}

/// Why an address could not be bound, or not be listened on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindError {
    /// The stack does not have this address (`EADDRNOTAVAIL`).
    NoAddress,
    /// Another binding has it (`EADDRINUSE`).
    InUse,
    /// No port is free (`EADDRINUSE`).
    NoPort,
    /// The binding is gone (`EINVAL`).
    NoBinding,
    /// There are too many bindings (`ENOBUFS`).
    TooManyBindings,
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BindError::NoAddress => "the stack has no such address",
            BindError::InUse => "the address and port are in use",
            BindError::NoPort => "no port is free",
            BindError::NoBinding => "the address is not bound any more",
            BindError::TooManyBindings => "too many addresses are bound",
        })
    }
}

impl std::error::Error for BindError {}

/// What a listener's connections begin with, where it differs from the stack's configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamOptions {
    /// `TCP_NODELAY`.
    pub nodelay: Option<bool>,
    /// `SO_KEEPALIVE` and its times; `Some(None)` is off.
    pub keepalive: Option<Option<tcp::Keepalive>>,
    /// `TCP_USER_TIMEOUT`; `Some(None)` is off.
    pub user_timeout: Option<Option<Duration>>,
    /// `SO_RCVBUF`: a fixed size, in bytes.
    pub receive_buffer_bytes: Option<usize>,
    /// `SO_SNDBUF`: a fixed size, in bytes.
    pub send_buffer_bytes: Option<usize>,
    /// `TCP_CONGESTION`.
    pub congestion: Option<tcp::CongestionAlgorithm>,
    /// `TCP_MAXSEG`: the largest MSS, in bytes.
    pub mss_max: Option<u16>,
    /// `TCP_DEFER_ACCEPT`: the connection is accepted with its first data, or after so long.
    pub defer_accept: Option<Duration>,
    /// `TCP_FASTOPEN`: whether text of a SYN is taken, where the stack does so at all.
    pub fast_open: Option<bool>,
    /// Of its packets.
    pub traffic_class: TrafficClass,
    /// NIC stacks answer the listener's SYNs, where that is permitted.
    pub setup_offload: Option<bool>,
    /// NIC stacks run the end of its connections, where that is permitted.
    pub teardown_offload: Option<bool>,
}

/// What an application may change about a stream while it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamOption {
    /// `TCP_NODELAY`.
    NoDelay(bool),
    /// `TCP_CORK`.
    Cork(bool),
    /// `TCP_QUICKACK`.
    QuickAck(bool),
    /// `SO_KEEPALIVE` and its times; `None` is off.
    Keepalive(Option<tcp::Keepalive>),
    /// `TCP_USER_TIMEOUT`; `None` is off.
    UserTimeout(Option<Duration>),
    /// `SO_RCVBUF`: a fixed size, in bytes.
    ReceiveBufferBytes(usize),
    /// `SO_SNDBUF`: a fixed size, in bytes.
    SendBufferBytes(usize),
    /// `TCP_CONGESTION`.
    Congestion(tcp::CongestionAlgorithm),
    /// `TCP_MAXSEG`: the largest MSS, in bytes. Without effect once SYN was sent.
    MssMax(u16),
    /// `IP_TOS` and `IPV6_TCLASS`, for the packets that follow.
    TrafficClass(TrafficClass),
    /// A NIC stack runs its end, where that is permitted. Without effect if this side has opened
    /// the connection.
    TeardownOffload(bool),
}

/// The traffic class of a connection's packets, by the family of its addresses. The ECN field (RFC
/// 3168 §5) is TCP's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficClass {
    /// `IP_TOS`.
    pub v4: u8,
    /// `IPV6_TCLASS`.
    pub v6: u8,
}

impl TrafficClass {
    pub(crate) fn of(self, address: SocketAddr) -> u8 {
        match address {
            SocketAddr::V4(_) => self.v4,
            SocketAddr::V6(_) => self.v6,
        }
    }
}

/// What NIC stacks may do by themselves for applications that ask for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// Answer SYNs.
    pub setup: OffloadPolicy,
    /// Run the end of connections.
    pub teardown: OffloadPolicy,
}

impl StreamOptions {
    /// True if text of SYNs is taken, where the stack does so or not.
    pub(crate) fn takes_syn_text(&self, stack_does: bool) -> bool {
        stack_does && self.fast_open.unwrap_or(true)
    }

    /// Lays over the stack's configuration what a handshake may begin with. The sizes of buffers
    /// come later: a window scale must not change between SYN,ACK and ACK.
    pub(crate) fn apply(&self, config: &mut tcp::Config) {
        config.nodelay = self.nodelay.unwrap_or(config.nodelay);
        config.keepalive = self.keepalive.unwrap_or(config.keepalive);
        config.user_timeout = self.user_timeout.unwrap_or(config.user_timeout);
        config.congestion = self.congestion.unwrap_or(config.congestion);
        config.mss = self.mss_max.map_or(config.mss, |mss| mss.min(config.mss));
    }
}

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
    /// Another application has the port, or a connection from it to the same peer exists
    /// (`EADDRINUSE`).
    PortInUse,
    /// From a loopback address, only the stack's own are reached (`EINVAL`).
    LoopbackOnly,
    /// Every port has a connection to the same peer (`EADDRNOTAVAIL`).
    NoPort,
    /// There are too many connections (`ENOBUFS`).
    TooManyConnections,
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ConnectError::NoAddress => "the stack has no such address",
            ConnectError::PortInUse => "the port is in use",
            ConnectError::LoopbackOnly => "a loopback address reaches no other machine",
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
    /// Something has become of a splice of which this is the first stream.
    Splice(SpliceEvent),
    /// The peer abandons what it sends on a stream of QUIC (RFC 9000 §19.4): nothing more can be
    /// read.
    PeerReset {
        /// The application's error code.
        code: u64,
    },
    /// The peer does not want what is sent on a stream of QUIC (RFC 9000 §19.5): what is written
    /// from now on is thrown away.
    PeerStopped {
        /// The application's error code.
        code: u64,
    },
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

/// Memory that an application has for a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamMemory {
    /// Allocated bytes.
    pub bytes: usize,
    /// The stream that this one serves, if it serves another: their memory counts as one
    /// connection's, which is that one.
    pub serves: Option<StreamId>,
    /// The client's address, if the peer passes on connections of others.
    pub client: Option<IpAddr>,
}

/// A server.
pub trait Application {
    /// Called for each event of a stream, in order.
    fn on_event(&mut self, io: &mut dyn Io, stream: StreamId, event: AppEvent);

    /// [`Io::look_up`] has found the file, or failed with this `errno`; the handle is gone.
    fn on_looked_up(&mut self, _io: &mut dyn Io, _file: FileHandle, _found: Result<FileMeta, u16>) {
    }

    /// Called for each event of a QUIC connection: before those of its streams if it is new, after
    /// them if it is over.
    fn on_quic(&mut self, _io: &mut dyn Io, _connection: QuicConnection, _event: QuicEvent) {}

    /// A client sends a request without TLS to a port that speaks TLS: the response, also without,
    /// after which the connection ends. Empty for an alert. `is_head` if the method is HEAD.
    fn on_plain_http(&mut self, _unix_time: Duration, _is_head: bool) -> Vec<u8> {
        Vec::new()
    }

    /// Memory that the application has for one of its streams, as allocated. Asked now and then,
    /// and more often when memory is short.
    fn memory(&self, _owner: Owner, _stream: StreamId) -> StreamMemory {
        StreamMemory::default()
    }

    /// The same for all streams of a QUIC connection, in bytes.
    fn quic_memory_bytes(&self, _connection: QuicConnection) -> usize {
        0
    }

    /// Called in every turn of the shard, after its events: what they have left to be done for all
    /// of them at once, and what others than peers ask for. Returns true if anything was asked: the
    /// shard then looks again before it rests.
    fn on_turn(&mut self, _io: &mut dyn Io, _now_us: u64) -> bool {
        false
    }

    /// When [`Application::on_turn`] is to be called though nothing else happens, in microseconds
    /// of the host's clock.
    fn next_timeout_us(&self) -> Option<u64> {
        None
    }

    /// Descriptors by which others than peers reach the application. They do not change.
    fn wake_fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// One of [`Application::wake_fds`] is readable. While there is other work, that is noticed
    /// some milliseconds late.
    fn on_wake(&mut self, _io: &mut dyn Io, _now_us: u64) {}

    /// An epoll set in which each event that comes ends a sleep: something has come in memory,
    /// which the next turn looks at. It does not change, and its events may stay.
    fn ring_set(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The shard is about to sleep: asks to be woken by what comes in memory. False if something
    /// has come already.
    fn prepare_sleep(&mut self) -> bool {
        true
    }

    /// The shard has slept.
    fn finish_sleep(&mut self) {}

    /// An epoll set that ends a rest when it has events: someone waits for the application to
    /// answer. The rest takes the events, of which one may be of a ring before it.
    fn hurry_set(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Longest rest without a wake-up while the NIC stack has nothing to do, in microseconds:
    /// others than peers may wait for the application. What they ask for while it has leaves no
    /// later.
    fn moderation_us_max(&self) -> u64 {
        u64::MAX
    }
}

/// What an application may do. A stream or file that is gone is ignored or answers 0: a `Closed`
/// event is on its way.
pub trait Io {
    /// Binds an address and port. The connections of an [`Io`] without a network of its own come
    /// from elsewhere: it has no address.
    fn bind(&mut self, _bind: &Bind) -> Result<BindingId, BindError> {
        Err(BindError::NoAddress)
    }
    /// Accepts connections to a bound address from now on, with these options; again, changes the
    /// options of those to come.
    fn listen(&mut self, _binding: BindingId, _options: StreamOptions) -> Result<(), BindError> {
        Err(BindError::NoBinding)
    }
    /// Whether a bound address may be shared with others that want it too: see
    /// [`Bind::reuse_address`].
    fn reuse_address(&mut self, _binding: BindingId, _reuses: bool) {}
    /// Has a bound address be shared with others of a group ([`Bind::reuse_port`]).
    fn join_group(&mut self, _binding: BindingId, _group: u32) {}
    /// So many more connections of this listener the application can hold now, those on their way
    /// to it included; without a word, any number. While no listener of an address has room, SYNs
    /// are dropped, and ACKs that complete handshakes, as Linux does; peers repeat them.
    fn set_listener_room(&mut self, _binding: BindingId, _room: usize) {}
    /// The listeners of an application accept connections from a source, or do not: then its SYNs
    /// are dropped, and ACKs that complete handshakes, as if no listener had room. A source is an
    /// address of IPv4, or a network of 64 bits of IPv6.
    fn set_source_room(&mut self, _owner: Owner, _source: IpAddr, _has_room: bool) {}
    /// Lets go of a bound address, and accepts no more connections there.
    fn release(&mut self, _binding: BindingId) {}
    /// Addresses that an application has bound.
    fn bindings(&self, _owner: Owner) -> usize {
        0
    }
    /// Accepts no more connections at a bound address, which stays bound.
    fn unlisten(&mut self, _binding: BindingId) {}
    /// The address of a binding, with the port that was chosen.
    fn bound_address(&self, _binding: BindingId) -> Option<SocketAddr> {
        None
    }
    /// The application to which a stream belongs, also with its last event.
    fn owner(&self, _stream: StreamId) -> Option<Owner> {
        None
    }
    /// The listener that a stream has come from, also if it is gone.
    fn listener(&self, _stream: StreamId) -> Option<BindingId> {
        None
    }
    /// Own and peer's address of a stream.
    fn addresses(&self, _stream: StreamId) -> Option<(SocketAddr, SocketAddr)> {
        None
    }
    /// Opens a connection to a peer, from an own address and port; what is unspecified of them is
    /// chosen. `Connected` or `Closed` follows. What is written until then is sent afterwards.
    fn connect(
        &mut self,
        _owner: Owner,
        _local: Option<SocketAddr>,
        _remote: SocketAddr,
    ) -> Result<StreamId, ConnectError> {
        Err(ConnectError::NoAddress)
    }
    /// Takes received bytes out of the stream; returns how many, 0 if there are none.
    fn read(&mut self, stream: StreamId, buffer: &mut [u8]) -> usize;
    /// Queues bytes; returns how many were taken. After a short write, `Writable` follows.
    fn write(&mut self, stream: StreamId, bytes: &[u8]) -> usize;
    /// Queues a range of a file, without touching it; returns how many bytes were virtually queued:
    /// all, or 0 if the queue is full (`Writable` follows), the range reaches past the end, or the
    /// stream [is looped](Io::is_looped).
    fn write_file(&mut self, stream: StreamId, file: FileHandle, range: Range<u64>) -> u64;
    /// True if the peer is on this stack, too: no NIC stack sends for such a stream, so that it
    /// takes no files.
    fn is_looped(&self, _stream: StreamId) -> bool {
        false
    }
    /// Asks the NIC stack to open a file below its root, for this stream. The path is relative,
    /// without a leading `/`. `growth` says whether a file that becomes longer can still be sent,
    /// up to its size at the open. `Opened` or `OpenFailed` follows.
    fn open(&mut self, stream: StreamId, path: &[u8], growth: Growth) -> FileHandle;
    /// Asks the NIC stacks for the metadata of a file below their roots, for no stream, like
    /// stat(2). [`Application::on_looked_up`] follows. `None` if too many files are open
    /// (`EMFILE`), or if the path makes no sense (`EINVAL`).
    fn look_up(&mut self, _path: &[u8]) -> Option<FileHandle> {
        None
    }
    /// The same as [`Io::open`] with a file of which the NIC stack was passed a descriptor. It must
    /// not grow.
    fn open_passed(&mut self, stream: StreamId, passed: PassedId) -> FileHandle;
    /// The same as [`Io::look_up`] with a file of which a NIC stack was passed a descriptor.
    fn look_up_passed(&mut self, _passed: PassedId) -> Option<FileHandle> {
        None
    }
    /// True while bytes of a file of which a NIC stack was passed a descriptor may have to be sent,
    /// or sent again. When that is over, [`Io::take_released_passed`] says so.
    fn uses_passed(&self, _passed: PassedId) -> bool {
        false
    }
    /// Which of those files are not used any more, since the last call.
    fn take_released_passed(&mut self) -> Vec<PassedId> {
        Vec::new()
    }
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
    /// The application is gone: what is queued still goes, then FIN; a peer that sends more gets
    /// RST (RFC 9293 §3.10.4). No event follows, and the stream's id means nothing any more.
    fn close(&mut self, stream: StreamId) {
        self.abort(stream);
    }
    /// Joins two streams in a NIC stack: what the peer of one sends goes to the peer of the other,
    /// end included, and neither reaches the application. What it has read of either, it has
    /// written to the other before; what is unread or queued goes its way. Until the streams come
    /// back by [`SpliceEvent::Returned`], reading and writing do nothing, and timers do not fire.
    /// An abort of either resets both peers. What becomes of it, [`AppEvent::Splice`] says of the
    /// first.
    fn splice(
        &mut self,
        _first: StreamId,
        _second: StreamId,
        _limits: SpliceLimits,
    ) -> Result<(), SpliceError> {
        Err(SpliceError::NoNicStack)
    }
    /// Has the NIC stack give back the streams of a splice, of which this is one. If a peer has
    /// closed already, it stays.
    fn unsplice(&mut self, _stream: StreamId) {}
    /// Which stream of QUIC a stream is, if it is one: also with its first event and its last.
    fn quic_stream(&self, _stream: StreamId) -> Option<QuicStream> {
        None
    }
    /// Opens a stream that goes to the peer only, if the peer permits another one.
    fn open_unidirectional(&mut self, _connection: QuicConnection) -> Option<StreamId> {
        None
    }
    /// How many streams of both directions the peer may have opened by now (RFC 9000 §4.6): their
    /// IDs are less than four times that. 0 if the connection is over.
    fn peer_streams_max(&mut self, _connection: QuicConnection) -> u64 {
        0
    }
    /// Abandons what was written on a stream of QUIC (RESET_STREAM). Reading goes on.
    fn reset_stream(&mut self, _stream: StreamId, _code: u64) {}
    /// Wants nothing more of what the peer sends on a stream of QUIC (STOP_SENDING). Writing goes
    /// on.
    fn stop_sending(&mut self, _stream: StreamId, _code: u64) {}
    /// Of the streams of a QUIC connection, those of higher priority are sent first; streams of
    /// the same priority take turns. All begin with 0.
    fn prioritize(&mut self, _stream: StreamId, _priority: i32) {}
    /// Closes a QUIC connection, with an error code of the application. `Closed` follows, of its
    /// streams first.
    fn close_quic(&mut self, _connection: QuicConnection, _code: u64, _reason: &[u8]) {}
    /// What NIC stacks may do for the listeners and connections of applications.
    fn offloads(&self) -> Offloads {
        Offloads::default()
    }
    /// Changes an option of a stream.
    fn set_option(&mut self, _stream: StreamId, _option: StreamOption) {}
    /// What is known of a stream's TCP.
    fn info(&self, _stream: StreamId) -> Option<tcp::Info> {
        None
    }
    /// The congestion window, in bytes.
    fn congestion_window(&self, _stream: StreamId) -> u64 {
        0
    }
    /// Bytes received and not read.
    fn unread(&self, _stream: StreamId) -> usize {
        0
    }
    /// With `Closed`, and not later: what was received and not read.
    fn take_unread(&mut self, _stream: StreamId) -> Vec<u8> {
        Vec::new()
    }
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
