//! The in-process stream interface on which servers stand.
//!
//! An [`Application`] gets [`AppEvent`]s and acts through [`Io`]. Everything runs on the shard's
//! own thread; nothing here blocks. `quic` adds the types that only QUIC streams need.

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
pub use tls::{
    Agreed as TlsAgreed, Cipher as TlsCipher, Identity as TlsIdentity, Suite as TlsSuite,
    Version as TlsVersion,
};

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

/// An application of the shard; each binding, stream and file has one owner. The server in the host
/// process is [`Owner::SERVER`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner(pub u32);

impl Owner {
    /// The server in the host process.
    pub const SERVER: Owner = Owner(0);
    /// The proxy in the host process. Applications in other processes are numbered from 1 and never
    /// reach this number.
    pub const PROXY: Owner = Owner(u32::MAX);
}

/// A bound address, as applications name it. Never reused while the application holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BindingId(pub(crate) NonZeroU64);

/// Arguments of [`Io::bind`] (bind(2)).
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

/// Initial options of a listener's connections; `None` keeps the stack's configuration.
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
    /// `TCP_DEFER_ACCEPT`: the connection is accepted with its first data, or after this time.
    pub defer_accept: Option<Duration>,
    /// `TCP_FASTOPEN`: accepts text in SYNs, if the stack does so at all.
    pub fast_open: Option<bool>,
    /// `IP_TOS` and `IPV6_TCLASS`.
    pub traffic_class: TrafficClass,
    /// NIC stacks answer the listener's SYNs, where that is permitted.
    pub setup_offload: Option<bool>,
    /// NIC stacks run the end of its connections, where that is permitted.
    pub teardown_offload: Option<bool>,
}

/// An option that an application may change on a live stream.
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
    /// A NIC stack runs the connection's end, where that is permitted. Without effect on
    /// connections that this side has opened.
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

/// Offloads to NIC stacks that the configuration permits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads {
    /// Answer SYNs.
    pub setup: OffloadPolicy,
    /// Run the end of connections.
    pub teardown: OffloadPolicy,
}

impl StreamOptions {
    /// True if the listener and the stack both accept text in SYNs.
    pub(crate) fn takes_syn_text(&self, stack_does: bool) -> bool {
        stack_does && self.fast_open.unwrap_or(true)
    }

    /// Overrides the options of `config` that a handshake may begin with. Buffer sizes follow
    /// later: the window scale must not change between SYN,ACK and ACK.
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
    /// The content may change while all these fields stay the same: a weak validator (RFC 9110
    /// §8.8.1).
    pub is_weak: bool,
}

/// The place where a listing continues, as its previous part returned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListPlace {
    /// The NIC stack.
    pub(crate) nic: usize,
    /// The place within that NIC stack's listing; zero is the beginning.
    pub(crate) from: u64,
    /// The directory's metadata in the previous part.
    pub(crate) version: Option<contract::FileMeta>,
    /// NIC stacks whose part of the listing is complete.
    pub(crate) told: NicSet,
}

impl ListPlace {
    /// Returns a place in the first NIC stack's listing, as applications get it with one NIC stack:
    /// for tests that act as the host stack.
    pub fn at(from: u64) -> ListPlace {
        ListPlace {
            nic: 0,
            from,
            version: None,
            told: NicSet::default(),
        }
    }
}

/// One part of a directory listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListPart {
    /// Some entries, in no order; perhaps none, though there are more.
    pub entries: Entries,
    /// Where the listing continues; `None` at its end.
    pub next: Option<ListPlace>,
    /// The directory has changed since the previous part: entries may be missing or repeated unless
    /// the listing starts over.
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
    /// This side aborted the stream: [`Io::abort`].
    Aborted,
    /// The NIC stack could not read the bytes to send, or is gone.
    DataPlaneFailed,
    /// TLS ended the connection: the peer sent an alert, or invalid records.
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

/// The ends of a client's connection to a proxy, by the header of the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proxied {
    /// The client.
    pub client: SocketAddr,
    /// The address that it has connected to.
    pub local: SocketAddr,
}

/// An event of a stream, for an application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppEvent {
    /// A peer's connection is established, on a TLS port including its TLS handshake. The stream is
    /// new.
    Accepted {
        /// Address and port of the peer.
        peer: SocketAddr,
        /// The client, if the peer is a trusted proxy that names it.
        proxied: Option<Box<Proxied>>,
        /// Negotiated TLS parameters, if the stream speaks TLS.
        tls: Option<Box<TlsAgreed>>,
    },
    /// A connection that [`Io::connect`] has begun is established.
    Connected,
    /// Bytes have arrived: read until [`Io::read`] returns 0.
    Readable,
    /// The peer will send no more; bytes received before can still be read.
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
        /// `errno` of Linux; `EISDIR` for a directory. A listing fails with `ENOTDIR` if the path
        /// is no directory, and with `ESTALE` if it cannot continue but may start over.
        errno: u16,
    },
    /// [`Io::list`] has succeeded; the handle is gone.
    Listed {
        /// The directory.
        file: FileHandle,
        /// Some of its entries.
        part: Box<ListPart>,
    },
    /// The time set by [`Io::set_timer`] has come.
    Timer,
    /// Outcome of a splice whose first stream this is.
    Splice(SpliceEvent),
    /// The peer abandons its side of a QUIC stream (RFC 9000 §19.4): nothing more can be read.
    PeerReset {
        /// The application's error code.
        code: u64,
    },
    /// The peer stops reading a QUIC stream (RFC 9000 §19.5): bytes written from now on are
    /// discarded.
    PeerStopped {
        /// The application's error code.
        code: u64,
    },
    /// The stream is over; its id means nothing any more, its files are closed.
    Closed {
        /// Why.
        reason: CloseReason,
        /// Last value of [`Io::acknowledged`].
        acknowledged: u64,
        /// Last value of [`Io::retransmissions`].
        retransmissions: u32,
    },
}

/// Memory that an application uses for a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamMemory {
    /// Allocated bytes.
    pub bytes: usize,
    /// The stream that this one serves, if any: the memory of both counts as that stream's.
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

    /// Returns the plaintext response to a plaintext request on a TLS port, after which the
    /// connection ends; empty for an alert. `is_head` if the method is HEAD.
    fn on_plain_http(&mut self, _unix_time: Duration, _is_head: bool) -> Vec<u8> {
        Vec::new()
    }

    /// Returns the memory that the application uses for one of its streams, as allocated. Called
    /// occasionally, and more often when memory is short.
    fn memory(&self, _owner: Owner, _stream: StreamId) -> StreamMemory {
        StreamMemory::default()
    }

    /// The same for all streams of a QUIC connection, in bytes.
    fn quic_memory_bytes(&self, _connection: QuicConnection) -> usize {
        0
    }

    /// Called in every turn of the shard, after its events, for deferred work that covers several
    /// events and for requests from other processes. Returns true if there were requests: the shard
    /// then polls again before it rests.
    fn on_turn(&mut self, _io: &mut dyn Io, _now_us: u64) -> bool {
        false
    }

    /// Time at which [`Application::on_turn`] must be called even without events, in microseconds
    /// of the host's clock.
    fn next_timeout_us(&self) -> Option<u64> {
        None
    }

    /// Descriptors by which other processes reach the application. They do not change.
    fn wake_fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// One of [`Application::wake_fds`] is readable. While the shard has other work, it notices
    /// this some milliseconds late.
    fn on_wake(&mut self, _io: &mut dyn Io, _now_us: u64) {}

    /// An epoll set whose edge-triggered events end a sleep: other processes ring it when they have
    /// written to shared memory, which the next turn reads. It does not change, and its events may
    /// stay.
    fn ring_set(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The shard is about to sleep: requests a wake-up for new entries in shared memory. Returns
    /// false if there are entries already.
    fn prepare_sleep(&mut self) -> bool {
        true
    }

    /// The shard has slept.
    fn finish_sleep(&mut self) {}

    /// An epoll set whose events end a rest: another process waits for the application's answer.
    /// The rest consumes the events; the first may stem from before the rest.
    fn hurry_set(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Longest rest without a wake-up while the NIC stack has nothing to do, in microseconds: other
    /// processes may wait for the application. While the NIC stack has work, it would carry out
    /// their requests no earlier.
    fn moderation_us_max(&self) -> u64 {
        u64::MAX
    }
}

/// Operations of an application. Those on a closed stream or file do nothing or return 0: a
/// `Closed` event is on its way.
pub trait Io {
    /// Binds an address and port. The connections of an [`Io`] without a network of its own come
    /// from elsewhere: it has no address.
    fn bind(&mut self, _bind: &Bind) -> Result<BindingId, BindError> {
        Err(BindError::NoAddress)
    }
    /// Accepts connections to a bound address from now on, with these options; a second call
    /// changes the options of later connections.
    fn listen(&mut self, _binding: BindingId, _options: StreamOptions) -> Result<(), BindError> {
        Err(BindError::NoBinding)
    }
    /// Permits or forbids other bindings of the same address: see [`Bind::reuse_address`].
    fn reuse_address(&mut self, _binding: BindingId, _reuses: bool) {}
    /// Permits or forbids other bindings of a group: see [`Bind::reuse_port`].
    fn reuse_port(&mut self, _binding: BindingId, _group: Option<u32>) {}
    /// Limits the further connections that the application accepts from this listener, including
    /// those on their way to it; unlimited by default. While no listener of an address has room,
    /// its SYNs and the ACKs that complete handshakes are dropped, as on Linux; peers repeat them.
    fn set_listener_room(&mut self, _binding: BindingId, _room: usize) {}
    /// Permits or refuses connections from a source to an application's listeners. A refused
    /// source's SYNs, and its ACKs that complete handshakes, are dropped as if no listener had
    /// room. A source is an IPv4 address or an IPv6 /64.
    fn set_source_room(&mut self, _owner: Owner, _source: IpAddr, _has_room: bool) {}
    /// Releases a bound address and stops accepting connections there.
    fn release(&mut self, _binding: BindingId) {}
    /// Returns the number of addresses that an application has bound.
    fn bindings(&self, _owner: Owner) -> usize {
        0
    }
    /// Stops accepting connections at a bound address, which stays bound.
    fn unlisten(&mut self, _binding: BindingId) {}
    /// Returns the address of a binding, with the chosen port.
    fn bound_address(&self, _binding: BindingId) -> Option<SocketAddr> {
        None
    }
    /// Returns the application that owns a stream, also during the stream's last event.
    fn owner(&self, _stream: StreamId) -> Option<Owner> {
        None
    }
    /// Returns the listener that accepted a stream, also if the listener is gone.
    fn listener(&self, _stream: StreamId) -> Option<BindingId> {
        None
    }
    /// Returns the local and the peer's address of a stream.
    fn addresses(&self, _stream: StreamId) -> Option<(SocketAddr, SocketAddr)> {
        None
    }
    /// Opens a connection to a peer from a local address and port; the stack chooses unspecified
    /// ones. `Connected` or `Closed` follows. Bytes written until then are sent afterwards.
    fn connect(
        &mut self,
        _owner: Owner,
        _local: Option<SocketAddr>,
        _remote: SocketAddr,
    ) -> Result<StreamId, ConnectError> {
        Err(ConnectError::NoAddress)
    }
    /// Takes received bytes out of the stream; returns their number, 0 if there are none.
    fn read(&mut self, stream: StreamId, buffer: &mut [u8]) -> usize;
    /// Queues bytes; returns the number accepted. After a short write, `Writable` follows.
    fn write(&mut self, stream: StreamId, bytes: &[u8]) -> usize;
    /// Queues a range of a file without reading it; returns the number of bytes virtually queued:
    /// all, or 0 if the queue is full (`Writable` follows), the range reaches past the end, or the
    /// stream [is looped](Io::is_looped).
    fn write_file(&mut self, stream: StreamId, file: FileHandle, range: Range<u64>) -> u64;
    /// True if the peer is on this stack, too: no NIC stack sends for such a stream, so it accepts
    /// no files.
    fn is_looped(&self, _stream: StreamId) -> bool {
        false
    }
    /// Asks the NIC stack to open a file below its root for this stream. The path is relative,
    /// without a leading `/`. With [`Growth::Allowed`], a file that becomes longer can still be
    /// sent, up to its size at the open. `Opened` or `OpenFailed` follows.
    fn open(&mut self, stream: StreamId, path: &[u8], growth: Growth) -> FileHandle;
    /// Asks the NIC stacks for the metadata of a file below their roots, for no stream, like
    /// stat(2). [`Application::on_looked_up`] follows. Returns `None` if too many files are open
    /// (`EMFILE`) or the path is invalid (`EINVAL`).
    fn look_up(&mut self, _path: &[u8]) -> Option<FileHandle> {
        None
    }
    /// Opens, like [`Io::open`], a file whose descriptor was passed to the NIC stack. The file must
    /// not grow.
    fn open_passed(&mut self, stream: StreamId, passed: PassedId) -> FileHandle;
    /// Looks up, like [`Io::look_up`], a file whose descriptor was passed to a NIC stack.
    fn look_up_passed(&mut self, _passed: PassedId) -> Option<FileHandle> {
        None
    }
    /// True while bytes of a file with a passed descriptor may have to be sent, or sent again.
    /// [`Io::take_released_passed`] reports the end.
    fn uses_passed(&self, _passed: PassedId) -> bool {
        false
    }
    /// Returns the passed files whose use has ended since the last call.
    fn take_released_passed(&mut self) -> Vec<PassedId> {
        Vec::new()
    }
    /// Asks the NIC stack to list a directory below its root for this stream: from the beginning,
    /// or from the end of the previous part. The path is relative, without a leading `/`; empty for
    /// the root. `Listed` or `OpenFailed` follows. If several NIC stacks have files that are no
    /// copies, each is asked, one after the other.
    fn list(&mut self, stream: StreamId, path: &[u8], from: Option<ListPlace>) -> FileHandle;
    /// Releases the file. Bytes queued from the file are still sent.
    fn close_file(&mut self, file: FileHandle);
    /// Sends FIN after all queued bytes, preceded by close_notify in TLS. Reading continues.
    fn shutdown(&mut self, stream: StreamId);
    /// Sends RST and forgets the stream; `Closed` follows.
    fn abort(&mut self, stream: StreamId);
    /// Releases the stream: queued bytes are still sent, then FIN; a peer that sends more gets RST
    /// (RFC 9293 §3.10.4). No event follows, and the stream's id becomes invalid.
    fn close(&mut self, stream: StreamId) {
        self.abort(stream);
    }
    /// Joins two streams in a NIC stack: each peer's bytes and end go to the other peer, and none
    /// reach the application. Bytes that the application has read from one stream must have been
    /// written to the other before; unread and queued bytes are forwarded. Until the streams return
    /// with [`SpliceEvent::Returned`], reading and writing do nothing, and timers do not fire. An
    /// abort of either resets both peers. [`AppEvent::Splice`] reports the outcome on the first
    /// stream.
    fn splice(
        &mut self,
        _first: StreamId,
        _second: StreamId,
        _limits: SpliceLimits,
    ) -> Result<(), SpliceError> {
        Err(SpliceError::NoNicStack)
    }
    /// Requests a splice's streams back from the NIC stack. A splice of which a peer has closed
    /// already stays.
    fn unsplice(&mut self, _stream: StreamId) {}
    /// Returns the QUIC stream behind a stream, if any; also during its first and last events.
    fn quic_stream(&self, _stream: StreamId) -> Option<QuicStream> {
        None
    }
    /// True if the client with this address, whom a proxy has named in a request, may not connect;
    /// then it is counted.
    fn refuses_client(&mut self, _client: IpAddr) -> bool {
        false
    }
    /// Opens a unidirectional stream to the peer, if the peer permits another one.
    fn open_unidirectional(&mut self, _connection: QuicConnection) -> Option<StreamId> {
        None
    }
    /// Returns the number of bidirectional streams that the peer may have opened by now (RFC 9000
    /// §4.6): their IDs are less than four times this. 0 if the connection is over.
    fn peer_streams_max(&mut self, _connection: QuicConnection) -> u64 {
        0
    }
    /// Abandons the bytes written on a QUIC stream (RESET_STREAM). Reading continues.
    fn reset_stream(&mut self, _stream: StreamId, _code: u64) {}
    /// Refuses further bytes of the peer on a QUIC stream (STOP_SENDING). Writing continues.
    fn stop_sending(&mut self, _stream: StreamId, _code: u64) {}
    /// Sets a stream's priority within its QUIC connection: higher priorities are sent first;
    /// streams of the same priority take turns. All begin with 0.
    fn prioritize(&mut self, _stream: StreamId, _priority: i32) {}
    /// Closes a QUIC connection with an application error code. `Closed` follows, first of its
    /// streams.
    fn close_quic(&mut self, _connection: QuicConnection, _code: u64, _reason: &[u8]) {}
    /// Returns the offloads that the configuration permits for the listeners and connections of
    /// applications.
    fn offloads(&self) -> Offloads {
        Offloads::default()
    }
    /// Changes an option of a stream.
    fn set_option(&mut self, _stream: StreamId, _option: StreamOption) {}
    /// Returns the state of a stream's TCP.
    fn info(&self, _stream: StreamId) -> Option<tcp::Info> {
        None
    }
    /// Returns the congestion window, in bytes.
    fn congestion_window(&self, _stream: StreamId) -> u64 {
        0
    }
    /// Returns the number of bytes received and not read.
    fn unread(&self, _stream: StreamId) -> usize {
        0
    }
    /// Returns the bytes received and not read; only during the `Closed` event.
    fn take_unread(&mut self, _stream: StreamId) -> Vec<u8> {
        Vec::new()
    }
    /// Calls back with `Timer` after `after`, replacing an earlier timer; `None` cancels it.
    fn set_timer(&mut self, stream: StreamId, after: Option<Duration>);
    /// Marks whether the stream only waits for its peer's next request. If there are too many
    /// connections, idle ones are aborted first.
    fn set_idle(&mut self, stream: StreamId, is_idle: bool);
    /// Bounds the stream's sending rate, in payload bytes per second; `None` removes the bound. The
    /// congestion control may be slower. SENDs already handed to the NIC stack, a few milliseconds
    /// ahead, keep their departure times.
    fn set_max_pacing_rate(&mut self, stream: StreamId, bytes_per_second: Option<u64>);
    /// `Writable` follows once when at most this number of bytes are queued and unsent: immediately
    /// if that is so already. Like `TCP_NOTSENT_LOWAT` of Linux.
    fn set_notsent_lowat(&mut self, stream: StreamId, bytes: u64);
    /// Returns the number of stream bytes that the peer has acknowledged; in TLS, of the queued
    /// plaintext.
    fn acknowledged(&self, stream: StreamId) -> u64;
    /// Returns the number of bytes queued and not acknowledged yet.
    fn unacknowledged(&self, stream: StreamId) -> u64;
    /// Returns the number of bytes queued and not sent yet.
    fn unsent(&self, stream: StreamId) -> u64;
    /// Returns how many bytes TCP may send at once now: the usable window of RFC 9293 §3.8.6.2.1,
    /// as far as congestion window and pacing permit; 0 for QUIC.
    fn usable_window(&self, stream: StreamId) -> u64;
    /// True if only the peer delays the stream: bytes are unacknowledged, and all issued bytes have
    /// departed, so that neither the NIC stack nor pacing holds the stream back.
    fn waits_for_peer(&self, stream: StreamId) -> bool;
    /// Returns the number of packets and SENDs of the stream that repeated bytes.
    fn retransmissions(&self, stream: StreamId) -> u32;
    /// Returns the time at which the turn began, in microseconds of the host's clock.
    fn now_us(&self) -> u64;
    /// Returns the time since the epoch, for `Date`; may lag by up to a second.
    fn unix_time(&self) -> Duration;
}
