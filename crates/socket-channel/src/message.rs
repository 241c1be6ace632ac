//! Encoding of an application's commands and the host stack's events.
//!
//! Each message is a record of fixed size, little-endian; a path follows its record. It begins with
//! its kind and with the number of the request that it makes or answers:
//!
//! | Offset | Bytes | Content |
//! |---|---|---|
//! | 0 | 1 | kind: commands 1–22, events 129–132 |
//! | 1 | 3 | small numbers of the kind, or zero |
//! | 4 | 4 | request, chosen by the application, or number of a mark; otherwise zero |
//!
//! Decoding accepts exactly what encoding produces.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ids::{HandleId, SocketId};

/// Longest path of an OpenFile, in bytes: Linux's `PATH_MAX` without the final zero.
pub const PATH_BYTES_MAX: usize = 4095;

/// Longest command, in bytes.
pub const COMMAND_BYTES_MAX: usize = size_of::<OpenFileRecord>() + PATH_BYTES_MAX;

/// Longest event, in bytes.
pub const EVENT_BYTES_MAX: usize = size_of::<InfoRecord>();

/// Congestion controls, by the names of tcp(7), in the order of their codes.
pub const CONGESTIONS: [&str; 3] = ["reno", "cubic", "bbr"];

/// The bytes are no valid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a message does not decode")
    }
}

impl std::error::Error for Malformed {}

macro_rules! numbered {
    ($(#[$about:meta])* $name:ident: $number:ty {
        $($(#[$doc:meta])* $variant:ident = $value:literal,)*
    }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$doc])* $variant = $value,)*
        }

        impl $name {
            /// All values.
            pub const ALL: &[$name] = &[$($name::$variant,)*];

            /// Returns the code in messages.
            pub const fn code(self) -> $number {
                self as $number
            }

            /// Returns the value of a code.
            pub const fn from_code(code: $number) -> Option<$name> {
                match code {
                    $($value => Some($name::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

numbered! {
    /// Family of the addresses of a socket.
    Family: u8 {
        /// `AF_INET`.
        V4 = 4,
        /// `AF_INET6`.
        V6 = 6,
    }
}

numbered! {
    /// Directions to shut down.
    How: u8 {
        /// `SHUT_RD`.
        Read = 1,
        /// `SHUT_WR`.
        Write = 2,
        /// `SHUT_RDWR`.
        Both = 3,
    }
}

numbered! {
    /// Socket options. Values are those of Linux, with the units in the names.
    SocketOption: u8 {
        /// `TCP_NODELAY`.
        NoDelay = 1,
        /// `TCP_CORK`.
        Cork = 2,
        /// `SO_KEEPALIVE`.
        KeepAlive = 3,
        /// `TCP_KEEPIDLE`, in seconds.
        KeepIdleSeconds = 4,
        /// `TCP_KEEPINTVL`, in seconds.
        KeepIntervalSeconds = 5,
        /// `TCP_KEEPCNT`.
        KeepCount = 6,
        /// `TCP_USER_TIMEOUT`, in milliseconds.
        UserTimeoutMs = 7,
        /// `SO_LINGER`, in milliseconds; `u64::MAX` is off.
        LingerMs = 8,
        /// `TCP_QUICKACK`.
        QuickAck = 9,
        /// `TCP_DEFER_ACCEPT`, in seconds.
        DeferAcceptSeconds = 10,
        /// `SO_RCVBUF`, in bytes, as set.
        ReceiveBufferBytes = 11,
        /// `SO_SNDBUF`, in bytes, as set.
        SendBufferBytes = 12,
        /// `TCP_CONGESTION`: an index into [`CONGESTIONS`].
        Congestion = 13,
        /// `TCP_MAXSEG`, in bytes; set before there is a connection, 0 for none.
        MaxSegmentBytes = 14,
        /// `TCP_NOTSENT_LOWAT`, in bytes.
        NotSentLowWaterBytes = 15,
        /// `SO_REUSEADDR`.
        ReuseAddress = 16,
        /// `SO_REUSEPORT`.
        ReusePort = 17,
        /// `IPV6_V6ONLY`.
        V6Only = 18,
        /// `SW_SETUP_OFFLOAD`.
        SetupOffload = 19,
        /// `SW_TEARDOWN_OFFLOAD`.
        TeardownOffload = 20,
        /// `TCP_FASTOPEN`: number of connections that may wait with data in their SYNs; 0: off.
        FastOpenQueue = 21,
        /// `IP_TOS`.
        TypeOfService = 22,
        /// `IPV6_TCLASS`.
        TrafficClass = 23,
    }
}

numbered! {
    /// An end of a connection.
    Side: u8 {
        /// The local end: getsockname(2).
        Local = 1,
        /// The remote end: getpeername(2).
        Peer = 2,
    }
}

/// Set of flags for Bind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BindFlags(u8);

impl BindFlags {
    /// The empty set.
    pub const NONE: BindFlags = BindFlags(0);
    /// `SO_REUSEADDR`.
    pub const REUSE_ADDR: BindFlags = BindFlags(1);
    /// `SO_REUSEPORT`.
    pub const REUSE_PORT: BindFlags = BindFlags(2);
    /// `IPV6_V6ONLY`.
    pub const V6_ONLY: BindFlags = BindFlags(4);

    const ALL: u8 = 7;

    /// Returns the union.
    pub const fn with(self, other: BindFlags) -> BindFlags {
        BindFlags(self.0 | other.0)
    }

    /// Reports whether all of `flags` are set.
    pub const fn has(self, flags: BindFlags) -> bool {
        self.0 & flags.0 == flags.0
    }
}

/// Command of an application to the host stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// Makes a socket for a handle. The Answer has its ID.
    Open {
        /// Echoed in the Answer.
        request: u32,
        /// Descriptor that determines its lifetime.
        handle: HandleId,
        /// Family of its addresses.
        family: Family,
    },
    /// Binds a socket; port 0 is any. The record has the address before the Answer.
    Bind {
        /// Echoed in the Answer.
        request: u32,
        /// The socket.
        socket: SocketId,
        /// Address to bind.
        address: SocketAddr,
        /// Flags of the binding.
        flags: BindFlags,
    },
    /// Makes a bound socket a listener.
    Listen {
        /// Echoed in the Answer.
        request: u32,
        /// The socket.
        socket: SocketId,
        /// Most connections that may wait.
        backlog: u32,
    },
    /// Disconnects a connection or a listener: connect(2) to `AF_UNSPEC`. The sender has both locks
    /// of the socket.
    Disconnect {
        /// Echoed in the Answer.
        request: u32,
        /// The socket.
        socket: SocketId,
    },
    /// Opens a connection. The Answer reports the start; the record reports the result.
    Connect {
        /// Echoed in the Answer.
        request: u32,
        /// The socket.
        socket: SocketId,
        /// Address of the peer.
        address: SocketAddr,
    },
    /// Gives a handle to a connection that was taken out of an accept queue. No Answer.
    Accept {
        /// The connection.
        socket: SocketId,
        /// Descriptor that determines its lifetime.
        handle: HandleId,
    },
    /// Announces that bytes were written or read. No Answer.
    Kick {
        /// The socket.
        socket: SocketId,
    },
    /// Ends a direction of a connection. No Answer.
    Shutdown {
        /// The socket.
        socket: SocketId,
        /// Direction.
        how: How,
        /// Number among the marks of the stream; unused if only reading ends.
        mark: u32,
        /// Position in the tx FIFO up to which bytes are still sent.
        at: u64,
    },
    /// Sets an option.
    SetOption {
        /// Echoed in the Answer.
        request: u32,
        /// The socket.
        socket: SocketId,
        /// Option to set.
        option: SocketOption,
        /// Value to set.
        value: u64,
    },
    /// Requests the value of an option.
    GetOption {
        /// Echoed in the Answer.
        request: u32,
        /// The socket.
        socket: SocketId,
        /// Requested option.
        option: SocketOption,
    },
    /// Requests `TCP_INFO`. An Info answers, or an Answer with an error.
    GetInfo {
        /// Echoed in the Answer.
        request: u32,
        /// The socket.
        socket: SocketId,
    },
    /// Reports the close of a handle's last descriptor ahead of its hang-up. No Answer.
    Close {
        /// The handle.
        handle: HandleId,
    },
    /// Closes the socket of a handle, as Close does. The descriptor stays open: the process uses
    /// the handle for another socket, and no other process may look that up before a Share. No
    /// Answer; only the process that got the handle may reuse it.
    Reuse {
        /// The handle.
        handle: HandleId,
    },
    /// Lets other processes look up the socket of a reused handle: its descriptor is passed on. The
    /// Answer is EBADF unless the handle still is that socket's.
    Share {
        /// Echoed in the Answer.
        request: u32,
        /// The socket.
        socket: SocketId,
        /// Its handle.
        handle: HandleId,
    },
    /// Opens a file of the NIC stack. The Answer has its socket; the record reports the result.
    OpenFile {
        /// Echoed in the Answer.
        request: u32,
        /// Descriptor that determines its lifetime.
        handle: HandleId,
        /// Path below the root; at most [`PATH_BYTES_MAX`] bytes.
        path: &'a [u8],
    },
    /// Opens a file whose descriptor the application has passed. The Answer has its socket; the
    /// record reports the result.
    OpenPassed {
        /// Echoed in the Answer.
        request: u32,
        /// Descriptor that determines its lifetime.
        handle: HandleId,
        /// The broker's number of the descriptor.
        file: u32,
    },
    /// Queues a range of a file. No Answer.
    SendFile {
        /// The connection.
        socket: SocketId,
        /// The file; its opening may still be in progress.
        file: SocketId,
        /// Start of the range in the file, in bytes.
        offset: u64,
        /// Length of the range, in bytes.
        len: u64,
        /// Number among the marks of the stream.
        mark: u32,
        /// Position in the tx FIFO that precedes the range.
        at: u64,
    },
    /// Does the same as a Kick; the Answer follows the host stack's look.
    Look {
        /// Echoed in the Answer.
        request: u32,
        /// The socket.
        socket: SocketId,
    },
    /// Requests held bytes. They are in the rx FIFO before the Answer.
    Receive {
        /// Echoed in the Answer.
        request: u32,
        /// The connection.
        socket: SocketId,
        /// Number of bytes that the rx FIFO should have, at most.
        bytes: u64,
    },
    /// Requests room in the tx FIFO, or a tx FIFO if there is none. The room is there before the
    /// Answer, but may not suffice for all bytes.
    Room {
        /// Echoed in the Answer.
        request: u32,
        /// The connection.
        socket: SocketId,
        /// Number of bytes to be written.
        bytes: u64,
    },
    /// Requests a held connection of a listener, for a handle. The Answer has its ID; EAGAIN if
    /// there is none.
    AcceptNext {
        /// Echoed in the Answer.
        request: u32,
        /// The listener.
        socket: SocketId,
        /// Descriptor that determines the connection's lifetime.
        handle: HandleId,
    },
    /// Requests an address of a connection, which the record has before the Answer.
    GetAddress {
        /// Echoed in the Answer.
        request: u32,
        /// The connection.
        socket: SocketId,
        /// End of the connection.
        side: Side,
    },
    /// Requests the socket of a handle whose descriptor came from another process image. The Answer
    /// has its ID; EBADF if there is no such handle, EAGAIN if it has no socket.
    LookUp {
        /// Echoed in the Answer.
        request: u32,
        /// The handle.
        handle: HandleId,
    },
    /// Joins two connections in a NIC stack. The sender has both locks of both. The Answer reports
    /// the start; the records report the progress.
    Splice {
        /// Echoed in the Answer.
        request: u32,
        /// First connection.
        first: SocketId,
        /// Second connection.
        second: SocketId,
        /// Idle time after which they end, in milliseconds; 0: no limit.
        idle_ms: u32,
        /// Time from the join after which they end, in milliseconds; 0: no limit.
        life_ms: u32,
    },
    /// Requests the return of both connections of a splice. The records report the return.
    Unsplice {
        /// Echoed in the Answer.
        request: u32,
        /// Either connection of the splice.
        socket: SocketId,
    },
}

/// Event of the host stack to an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Answers a command.
    Answer {
        /// Request number of the command.
        request: u32,
        /// Error of the command: an `errno`; 0 if it succeeded.
        errno: u32,
        /// Socket that the command made or requested.
        socket: Option<SocketId>,
        /// Value that the command requested.
        value: u64,
    },
    /// Hints that a record has changed.
    Ready {
        /// Socket of the record.
        socket: SocketId,
    },
    /// Reports lost hints: any record may have changed.
    ScanAll,
    /// Answers GetInfo.
    Info {
        /// Request number of the command.
        request: u32,
        /// The requested information.
        info: Info,
    },
}

/// `TCP_INFO`: fields of Linux's `struct tcp_info`, by the same names. Times are in microseconds,
/// windows in segments.
#[derive(
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
)]
#[repr(C)]
#[allow(missing_docs, reason = "tcp(7) describes them")]
pub struct Info {
    pub state: u8,
    pub ca_state: u8,
    pub retransmits: u8,
    pub probes: u8,
    pub backoff: u8,
    pub options: u8,
    pub snd_wscale: u8,
    pub rcv_wscale: u8,
    pub rto: U32,
    pub ato: U32,
    pub snd_mss: U32,
    pub rcv_mss: U32,
    pub unacked: U32,
    pub sacked: U32,
    pub lost: U32,
    pub retrans: U32,
    pub last_data_sent_ms: U32,
    pub last_data_recv_ms: U32,
    pub pmtu: U32,
    pub rcv_ssthresh: U32,
    pub rtt: U32,
    pub rttvar: U32,
    pub snd_ssthresh: U32,
    pub snd_cwnd: U32,
    pub advmss: U32,
    pub rcv_rtt: U32,
    pub rcv_space: U32,
    pub total_retrans: U32,
    pub pacing_rate: U64,
    pub bytes_acked: U64,
    pub bytes_received: U64,
    pub segs_out: U32,
    pub segs_in: U32,
    pub notsent_bytes: U32,
    pub min_rtt: U32,
    pub delivery_rate: U64,
    pub bytes_sent: U64,
    pub bytes_retrans: U64,
    pub snd_wnd: U32,
    pub rcv_wnd: U32,
}

const OPEN: u8 = 1;
const BIND: u8 = 2;
const LISTEN: u8 = 3;
const CONNECT: u8 = 4;
const ACCEPT: u8 = 5;
const KICK: u8 = 6;
const SHUTDOWN: u8 = 7;
const SET_OPTION: u8 = 8;
const GET_OPTION: u8 = 9;
const GET_INFO: u8 = 10;
const CLOSE: u8 = 11;
const OPEN_FILE: u8 = 12;
const SEND_FILE: u8 = 13;
const OPEN_PASSED: u8 = 14;
const DISCONNECT: u8 = 15;
const LOOK: u8 = 16;
const RECEIVE: u8 = 17;
const ACCEPT_NEXT: u8 = 18;
const GET_ADDRESS: u8 = 19;
const LOOK_UP: u8 = 20;
const SPLICE: u8 = 21;
const UNSPLICE: u8 = 22;
const ROOM: u8 = 23;
const REUSE: u8 = 24;
const SHARE: u8 = 25;
const ANSWER: u8 = 129;
const READY: u8 = 130;
const SCAN_ALL: u8 = 131;
const INFO: u8 = 132;

/// Head of every message.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct Head {
    kind: u8,
    /// A small number of the kind: family, flags, how, option or side.
    small: u8,
    reserved: U16,
    request: U32,
}

impl Head {
    fn new(kind: u8, small: u8, request: u32) -> Head {
        Head {
            kind,
            small,
            reserved: 0.into(),
            request: request.into(),
        }
    }
}

/// An address; bytes that its family does not use are zero.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct AddressRecord {
    family: u8,
    reserved: u8,
    port: U16,
    scope: U32,
    bytes: [u8; 16],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct HandleRecord {
    head: Head,
    handle: U32,
    reserved: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct SocketRecord {
    head: Head,
    socket: U64,
}

/// A socket and a number: backlog, handle, position or value.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct ValueRecord {
    head: Head,
    socket: U64,
    value: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct AddressedRecord {
    head: Head,
    socket: U64,
    address: AddressRecord,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct OpenFileRecord {
    head: Head,
    handle: U32,
    path_bytes: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct OpenPassedRecord {
    head: Head,
    handle: U32,
    file: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct SendFileRecord {
    head: Head,
    socket: U64,
    file: U64,
    offset: U64,
    len: U64,
    at: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct SpliceRecord {
    head: Head,
    first: U64,
    second: U64,
    idle_ms: U32,
    life_ms: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct AnswerRecord {
    head: Head,
    errno: U32,
    reserved: U32,
    socket: U64,
    value: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct InfoRecord {
    head: Head,
    info: Info,
}

impl From<SocketAddr> for AddressRecord {
    fn from(address: SocketAddr) -> Self {
        let mut bytes = [0; 16];
        let (family, scope) = match address {
            SocketAddr::V4(address) => {
                bytes[..4].copy_from_slice(&address.ip().octets());
                (Family::V4, 0)
            }
            SocketAddr::V6(address) => {
                bytes = address.ip().octets();
                (Family::V6, address.scope_id())
            }
        };
        AddressRecord {
            family: family.code(),
            reserved: 0,
            port: address.port().into(),
            scope: scope.into(),
            bytes,
        }
    }
}

impl AddressRecord {
    fn decode(&self) -> Result<SocketAddr, Malformed> {
        let port = self.port.get();
        let family = Family::from_code(self.family).filter(|_| self.reserved == 0);
        match family.ok_or(Malformed)? {
            Family::V4 => {
                let [a, b, c, d, rest @ ..] = self.bytes;
                if rest != [0; 12] || self.scope.get() != 0 {
                    return Err(Malformed);
                }
                Ok((Ipv4Addr::new(a, b, c, d), port).into())
            }
            Family::V6 => {
                let ip = Ipv6Addr::from(self.bytes);
                Ok(SocketAddrV6::new(ip, port, 0, self.scope.get()).into())
            }
        }
    }
}

fn socket(raw: U64) -> Result<SocketId, Malformed> {
    SocketId::from_raw(raw.get()).ok_or(Malformed)
}

fn record<T: FromBytes + KnownLayout + Immutable + Unaligned>(
    message: &[u8],
) -> Result<&T, Malformed> {
    T::ref_from_bytes(message).map_err(|_| Malformed)
}

fn is(right: bool) -> Result<(), Malformed> {
    if right { Ok(()) } else { Err(Malformed) }
}

fn u32_of(value: U64) -> Result<u32, Malformed> {
    u32::try_from(value.get()).map_err(|_| Malformed)
}

fn append(message: &mut Vec<u8>, record: &(impl IntoBytes + Immutable)) {
    message.extend_from_slice(record.as_bytes());
}

impl<'a> Command<'a> {
    /// Appends the bytes of the command.
    ///
    /// # Panics
    /// If a path is longer than [`PATH_BYTES_MAX`].
    pub fn encode(&self, message: &mut Vec<u8>) {
        match *self {
            Command::Open {
                request,
                handle,
                family,
            } => append(
                message,
                &handle_record(OPEN, family.code(), request, handle),
            ),
            Command::Bind {
                request,
                socket,
                address,
                flags,
            } => append(message, &addressed(BIND, flags.0, request, socket, address)),
            Command::Listen {
                request,
                socket,
                backlog,
            } => append(
                message,
                &value_record(Head::new(LISTEN, 0, request), socket, backlog.into()),
            ),
            Command::Connect {
                request,
                socket,
                address,
            } => append(message, &addressed(CONNECT, 0, request, socket, address)),
            Command::Accept { socket, handle } => append(
                message,
                &value_record(Head::new(ACCEPT, 0, 0), socket, handle.0.into()),
            ),
            Command::Kick { socket } => append(message, &socket_record(KICK, 0, 0, socket)),
            Command::Shutdown {
                socket,
                how,
                mark,
                at,
            } => append(
                message,
                &value_record(Head::new(SHUTDOWN, how.code(), mark), socket, at),
            ),
            Command::SetOption {
                request,
                socket,
                option,
                value,
            } => {
                let head = Head::new(SET_OPTION, option.code(), request);
                append(message, &value_record(head, socket, value));
            }
            Command::GetOption {
                request,
                socket,
                option,
            } => append(
                message,
                &socket_record(GET_OPTION, option.code(), request, socket),
            ),
            Command::GetInfo { request, socket } => {
                append(message, &socket_record(GET_INFO, 0, request, socket));
            }
            Command::Disconnect { request, socket } => {
                append(message, &socket_record(DISCONNECT, 0, request, socket));
            }
            Command::Close { handle } => append(message, &handle_record(CLOSE, 0, 0, handle)),
            Command::OpenFile { .. } | Command::OpenPassed { .. } | Command::SendFile { .. } => {
                self.encode_file(message);
            }
            Command::Look { .. }
            | Command::Receive { .. }
            | Command::Room { .. }
            | Command::AcceptNext { .. }
            | Command::LookUp { .. }
            | Command::GetAddress { .. } => self.encode_held(message),
            Command::Reuse { .. } | Command::Share { .. } => self.encode_reuse(message),
            Command::Splice { .. } | Command::Unsplice { .. } => self.encode_splice(message),
        }
    }

    fn encode_held(&self, message: &mut Vec<u8>) {
        match *self {
            Command::LookUp { request, handle } => {
                append(message, &handle_record(LOOK_UP, 0, request, handle));
            }
            Command::Look { request, socket } => {
                append(message, &socket_record(LOOK, 0, request, socket));
            }
            Command::Receive {
                request,
                socket,
                bytes,
            } => append(
                message,
                &value_record(Head::new(RECEIVE, 0, request), socket, bytes),
            ),
            Command::Room {
                request,
                socket,
                bytes,
            } => append(
                message,
                &value_record(Head::new(ROOM, 0, request), socket, bytes),
            ),
            Command::AcceptNext {
                request,
                socket,
                handle,
            } => append(
                message,
                &value_record(Head::new(ACCEPT_NEXT, 0, request), socket, handle.0.into()),
            ),
            Command::GetAddress {
                request,
                socket,
                side,
            } => append(
                message,
                &socket_record(GET_ADDRESS, side.code(), request, socket),
            ),
            _ => unreachable!("commands for what is held"),
        }
    }

    fn encode_reuse(&self, message: &mut Vec<u8>) {
        match *self {
            Command::Reuse { handle } => append(message, &handle_record(REUSE, 0, 0, handle)),
            Command::Share {
                request,
                socket,
                handle,
            } => append(
                message,
                &value_record(Head::new(SHARE, 0, request), socket, handle.0.into()),
            ),
            _ => unreachable!("commands about reused handles"),
        }
    }

    fn encode_splice(&self, message: &mut Vec<u8>) {
        match *self {
            Command::Splice {
                request,
                first,
                second,
                idle_ms,
                life_ms,
            } => append(
                message,
                &SpliceRecord {
                    head: Head::new(SPLICE, 0, request),
                    first: first.to_raw().into(),
                    second: second.to_raw().into(),
                    idle_ms: idle_ms.into(),
                    life_ms: life_ms.into(),
                },
            ),
            Command::Unsplice { request, socket } => {
                append(message, &socket_record(UNSPLICE, 0, request, socket));
            }
            _ => unreachable!("commands about splices"),
        }
    }

    fn encode_file(&self, message: &mut Vec<u8>) {
        match *self {
            Command::OpenFile {
                request,
                handle,
                path,
            } => {
                assert!(path.len() <= PATH_BYTES_MAX, "a path is too long");
                let record = OpenFileRecord {
                    head: Head::new(OPEN_FILE, 0, request),
                    handle: handle.0.into(),
                    path_bytes: (path.len() as u32).into(),
                };
                append(message, &record);
                message.extend_from_slice(path);
            }
            Command::OpenPassed {
                request,
                handle,
                file,
            } => {
                let record = OpenPassedRecord {
                    head: Head::new(OPEN_PASSED, 0, request),
                    handle: handle.0.into(),
                    file: file.into(),
                };
                append(message, &record);
            }
            Command::SendFile {
                socket,
                file,
                offset,
                len,
                mark,
                at,
            } => {
                let record = SendFileRecord {
                    head: Head::new(SEND_FILE, 0, mark),
                    socket: socket.to_raw().into(),
                    file: file.to_raw().into(),
                    offset: offset.into(),
                    len: len.into(),
                    at: at.into(),
                };
                append(message, &record);
            }
            _ => unreachable!("commands about files"),
        }
    }

    /// Decodes a command.
    pub fn decode(message: &'a [u8]) -> Result<Command<'a>, Malformed> {
        let (head, _) = Head::ref_from_prefix(message).map_err(|_| Malformed)?;
        let request = head.request.get();
        is(head.reserved.get() == 0)?;
        match head.kind {
            OPEN | CLOSE | REUSE | LOOK_UP => Command::decode_handle(head, record(message)?),
            KICK | GET_OPTION | GET_INFO | DISCONNECT | LOOK | GET_ADDRESS | UNSPLICE => {
                Command::decode_socket(head, record(message)?)
            }
            LISTEN | ACCEPT | SHUTDOWN | SET_OPTION | RECEIVE | ROOM | ACCEPT_NEXT | SHARE => {
                Command::decode_value(head, record(message)?)
            }
            BIND => {
                let record: &AddressedRecord = record(message)?;
                is(head.small & !BindFlags::ALL == 0)?;
                Ok(Command::Bind {
                    request,
                    socket: socket(record.socket)?,
                    address: record.address.decode()?,
                    flags: BindFlags(head.small),
                })
            }
            CONNECT => {
                let record: &AddressedRecord = record(message)?;
                is(head.small == 0)?;
                Ok(Command::Connect {
                    request,
                    socket: socket(record.socket)?,
                    address: record.address.decode()?,
                })
            }
            OPEN_FILE => {
                let record = OpenFileRecord::ref_from_prefix(message);
                let (record, path) = record.map_err(|_| Malformed)?;
                let len = record.path_bytes.get() as usize;
                is(head.small == 0 && path.len() == len && len <= PATH_BYTES_MAX)?;
                Ok(Command::OpenFile {
                    request,
                    handle: HandleId(record.handle.get()),
                    path,
                })
            }
            OPEN_PASSED => {
                let record: &OpenPassedRecord = record(message)?;
                is(head.small == 0)?;
                Ok(Command::OpenPassed {
                    request,
                    handle: HandleId(record.handle.get()),
                    file: record.file.get(),
                })
            }
            SEND_FILE => {
                let record: &SendFileRecord = record(message)?;
                is(head.small == 0)?;
                Ok(Command::SendFile {
                    socket: socket(record.socket)?,
                    file: socket(record.file)?,
                    offset: record.offset.get(),
                    len: record.len.get(),
                    mark: request,
                    at: record.at.get(),
                })
            }
            SPLICE => {
                let record: &SpliceRecord = record(message)?;
                is(head.small == 0)?;
                Ok(Command::Splice {
                    request,
                    first: socket(record.first)?,
                    second: socket(record.second)?,
                    idle_ms: record.idle_ms.get(),
                    life_ms: record.life_ms.get(),
                })
            }
            _ => Err(Malformed),
        }
    }

    fn decode_handle(head: &Head, record: &HandleRecord) -> Result<Command<'a>, Malformed> {
        let (request, handle) = (head.request.get(), HandleId(record.handle.get()));
        is(record.reserved.get() == 0)?;
        if head.kind == CLOSE || head.kind == REUSE {
            is(head.small == 0 && request == 0)?;
            return Ok(match head.kind {
                CLOSE => Command::Close { handle },
                _ => Command::Reuse { handle },
            });
        }
        if head.kind == LOOK_UP {
            is(head.small == 0)?;
            return Ok(Command::LookUp { request, handle });
        }
        Ok(Command::Open {
            request,
            handle,
            family: Family::from_code(head.small).ok_or(Malformed)?,
        })
    }

    fn decode_socket(head: &Head, record: &SocketRecord) -> Result<Command<'a>, Malformed> {
        let (request, socket) = (head.request.get(), socket(record.socket)?);
        match head.kind {
            GET_OPTION => Ok(Command::GetOption {
                request,
                socket,
                option: SocketOption::from_code(head.small).ok_or(Malformed)?,
            }),
            GET_INFO => {
                is(head.small == 0)?;
                Ok(Command::GetInfo { request, socket })
            }
            DISCONNECT => {
                is(head.small == 0)?;
                Ok(Command::Disconnect { request, socket })
            }
            LOOK => {
                is(head.small == 0)?;
                Ok(Command::Look { request, socket })
            }
            UNSPLICE => {
                is(head.small == 0)?;
                Ok(Command::Unsplice { request, socket })
            }
            GET_ADDRESS => Ok(Command::GetAddress {
                request,
                socket,
                side: Side::from_code(head.small).ok_or(Malformed)?,
            }),
            _ => {
                is(head.small == 0 && request == 0)?;
                Ok(Command::Kick { socket })
            }
        }
    }

    fn decode_value(head: &Head, record: &ValueRecord) -> Result<Command<'a>, Malformed> {
        let (request, socket) = (head.request.get(), socket(record.socket)?);
        match head.kind {
            LISTEN => {
                is(head.small == 0)?;
                Ok(Command::Listen {
                    request,
                    socket,
                    backlog: u32_of(record.value)?,
                })
            }
            ACCEPT => {
                is(head.small == 0 && request == 0)?;
                Ok(Command::Accept {
                    socket,
                    handle: HandleId(u32_of(record.value)?),
                })
            }
            SHUTDOWN => Ok(Command::Shutdown {
                socket,
                how: How::from_code(head.small).ok_or(Malformed)?,
                mark: request,
                at: record.value.get(),
            }),
            RECEIVE => {
                is(head.small == 0)?;
                Ok(Command::Receive {
                    request,
                    socket,
                    bytes: record.value.get(),
                })
            }
            ROOM => {
                is(head.small == 0)?;
                Ok(Command::Room {
                    request,
                    socket,
                    bytes: record.value.get(),
                })
            }
            ACCEPT_NEXT => {
                is(head.small == 0)?;
                Ok(Command::AcceptNext {
                    request,
                    socket,
                    handle: HandleId(u32_of(record.value)?),
                })
            }
            SHARE => {
                is(head.small == 0)?;
                Ok(Command::Share {
                    request,
                    socket,
                    handle: HandleId(u32_of(record.value)?),
                })
            }
            _ => Ok(Command::SetOption {
                request,
                socket,
                option: SocketOption::from_code(head.small).ok_or(Malformed)?,
                value: record.value.get(),
            }),
        }
    }
}

fn handle_record(kind: u8, small: u8, request: u32, handle: HandleId) -> HandleRecord {
    HandleRecord {
        head: Head::new(kind, small, request),
        handle: handle.0.into(),
        reserved: 0.into(),
    }
}

fn socket_record(kind: u8, small: u8, request: u32, socket: SocketId) -> SocketRecord {
    SocketRecord {
        head: Head::new(kind, small, request),
        socket: socket.to_raw().into(),
    }
}

fn value_record(head: Head, socket: SocketId, value: u64) -> ValueRecord {
    ValueRecord {
        head,
        socket: socket.to_raw().into(),
        value: value.into(),
    }
}

fn addressed(
    kind: u8,
    small: u8,
    request: u32,
    socket: SocketId,
    address: SocketAddr,
) -> AddressedRecord {
    AddressedRecord {
        head: Head::new(kind, small, request),
        socket: socket.to_raw().into(),
        address: address.into(),
    }
}

impl Event {
    /// Appends the bytes of the event.
    pub fn encode(&self, message: &mut Vec<u8>) {
        match *self {
            Event::Answer {
                request,
                errno,
                socket,
                value,
            } => append(
                message,
                &AnswerRecord {
                    head: Head::new(ANSWER, 0, request),
                    errno: errno.into(),
                    reserved: 0.into(),
                    socket: socket.map_or(0, SocketId::to_raw).into(),
                    value: value.into(),
                },
            ),
            Event::Ready { socket } => append(message, &socket_record(READY, 0, 0, socket)),
            Event::ScanAll => append(message, &Head::new(SCAN_ALL, 0, 0)),
            Event::Info { request, info } => append(
                message,
                &InfoRecord {
                    head: Head::new(INFO, 0, request),
                    info,
                },
            ),
        }
    }

    /// Decodes an event.
    pub fn decode(message: &[u8]) -> Result<Event, Malformed> {
        let (head, _) = Head::ref_from_prefix(message).map_err(|_| Malformed)?;
        let request = head.request.get();
        is(head.reserved.get() == 0 && head.small == 0)?;
        match head.kind {
            ANSWER => {
                let record: &AnswerRecord = record(message)?;
                let raw = record.socket.get();
                let named = SocketId::from_raw(raw);
                is(record.reserved.get() == 0 && (raw == 0 || named.is_some()))?;
                Ok(Event::Answer {
                    request,
                    errno: record.errno.get(),
                    socket: named,
                    value: record.value.get(),
                })
            }
            READY => {
                let record: &SocketRecord = record(message)?;
                is(request == 0)?;
                Ok(Event::Ready {
                    socket: socket(record.socket)?,
                })
            }
            SCAN_ALL => {
                let _: &Head = record(message)?;
                is(request == 0)?;
                Ok(Event::ScanAll)
            }
            INFO => {
                let record: &InfoRecord = record(message)?;
                Ok(Event::Info {
                    request,
                    info: record.info,
                })
            }
            _ => Err(Malformed),
        }
    }
}
