//! Encoding of the packets between an application and the broker: each fits one `SOCK_SEQPACKET`
//! packet, little-endian. The owners of the sockets send and receive them.
//!
//! | Packet | Direction | Descriptors |
//! |---|---|---|
//! | Attach | to the broker | none |
//! | Adopt | to the broker | one end of a new `SOCK_SEQPACKET` pair, on which Attached comes |
//! | MoreHandles | to the broker | none |
//! | PassFile | to the broker | an open file |
//! | Reattach | to the broker | none |
//! | Join | to the broker | none |
//! | Attached | to the application | [`ATTACHED_DESCRIPTORS`]; none if it failed |
//! | Reattached | to the application | none |
//! | Handles | to the application | its `count` |
//! | Passed | to the application | none |
//!
//! After the death of a broker, its successor at the same path accepts Reattach from attached
//! processes, and Join from their children. Both prove with the [`Key`] that they belong to their
//! application.

use std::fmt;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ids::{AppId, ChannelId, HandleId};
use crate::segment::Limits;

/// First bytes of each packet.
const MAGIC: [u8; 8] = *b"swsocket";

/// Version of the packets, of the segment and of the messages. Both sides must have the same.
pub const VERSION: u16 = 6;

/// Most handles in one packet; `SCM_RIGHTS` takes 253 descriptors.
pub const HANDLES_MAX: u32 = 64;

/// Number of descriptors of a successful Attached: segment, channel, host bell, application bell.
pub const ATTACHED_DESCRIPTORS: usize = 4;

/// Most descriptors of a packet to the broker: one of an Adopt or a PassFile.
pub const REQUEST_DESCRIPTORS: usize = 1;

/// Longest packet, in bytes.
pub const PACKET_BYTES_MAX: usize = size_of::<AttachedRecord>();

/// Split-TCP of *TCP Servers* (Rangarajan et al., 2002): every call waits until the host stack has
/// done its part.
pub const MODE_SPLIT_TCP: u32 = 1;
/// AsyncSend: a send returns when its bytes are in the FIFO. Off: when the host stack has processed
/// them.
pub const MODE_ASYNC_SEND: u32 = 2;
/// Eager Receive: the host stack fills the receive FIFO without a request.
pub const MODE_EAGER_RECEIVE: u32 = 4;
/// Eager Accept: the host stack fills the accept queue without a request.
pub const MODE_EAGER_ACCEPT: u32 = 8;
/// Setup With Accept: an accepted connection comes with addresses, options and first bytes.
pub const MODE_SETUP_WITH_ACCEPT: u32 = 16;
/// Buffers On Demand: a connection has no FIFO before the first byte in that direction, FIFOs of
/// idle connections are taken back, and the tx FIFO grows with the writes. Off: a connection has
/// both FIFOs throughout.
pub const MODE_BUFFERS_ON_DEMAND: u32 = 32;
/// Names of the modes in configurations.
pub const MODE_NAMES: [(&str, u32); 6] = [
    ("split-tcp", MODE_SPLIT_TCP),
    ("async-send", MODE_ASYNC_SEND),
    ("eager-receive", MODE_EAGER_RECEIVE),
    ("eager-accept", MODE_EAGER_ACCEPT),
    ("setup-with-accept", MODE_SETUP_WITH_ACCEPT),
    ("buffers-on-demand", MODE_BUFFERS_ON_DEMAND),
];
/// All modes.
pub const MODES_ALL: u32 = 63;
/// Default modes, unless an application requests others.
pub const MODES_DEFAULT: u32 = MODES_ALL & !MODE_SPLIT_TCP;

/// Secret of an application, known only to its processes, the broker and the host process.
#[derive(Clone, Copy)]
pub struct Key([u8; Key::BYTES]);

impl Key {
    /// Length, in bytes.
    pub const BYTES: usize = 16;

    /// Makes a key of random bytes.
    pub const fn new(bytes: [u8; Key::BYTES]) -> Key {
        Key(bytes)
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> [u8; Key::BYTES] {
        self.0
    }
}

impl PartialEq for Key {
    /// Compares in constant time.
    fn eq(&self, other: &Key) -> bool {
        u128::from_ne_bytes(self.0) ^ u128::from_ne_bytes(other.0) == 0
    }
}

impl Eq for Key {}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

/// Request of an application to the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Attaches this process as a new application.
    Attach {
        /// Requested modes: a sum of the `MODE_` numbers.
        modes: u32,
    },
    /// Attaches another process of this application, which has the other end of the accompanying
    /// descriptor and gets the reply there.
    Adopt,
    /// Requests handles.
    MoreHandles {
        /// Number of handles, from 1 to [`HANDLES_MAX`].
        count: u32,
        /// Initial `O_NONBLOCK` of the handles.
        nonblocking: bool,
    },
    /// Passes the accompanying file to the NIC stacks, so that the application may open it by
    /// number (`OpenPassed`).
    PassFile,
    /// Reattaches a process whose broker is gone.
    Reattach {
        /// Its application.
        app: AppId,
        /// Its channel.
        channel: ChannelId,
        /// Secret of the application.
        key: Key,
    },
    /// Attaches another process of an application, like [`Request::Adopt`], when its inherited
    /// connection leads to a broker that is gone.
    Join {
        /// The application.
        app: AppId,
        /// Secret of the application.
        key: Key,
    },
}

/// Reply of the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The process is attached; four descriptors go along.
    Attached(Attached),
    /// The process keeps its channel.
    Reattached,
    /// The process is not attached.
    Refused {
        /// The reason: an `errno`, never 0.
        errno: u32,
    },
    /// Handles go along.
    Handles {
        /// Number of the first handle.
        first: HandleId,
        /// Number of handles, at most [`HANDLES_MAX`].
        count: u32,
        /// Reason for a smaller number than requested: an `errno`; 0 if there is none.
        errno: u32,
    },
    /// Reply to PassFile.
    Passed {
        /// Number of the file, or an `errno`: `EOPNOTSUPP` if no NIC stack accepts descriptors,
        /// `EBADF` if the file was not opened for reading, `EMFILE` if the application has passed
        /// its maximum, `EBUSY` if descriptors cannot be accepted now.
        file: Result<u32, u32>,
    },
}

/// Parameters of an attached process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    /// The application.
    pub app: AppId,
    /// The channel of this process.
    pub channel: ChannelId,
    /// Limits that determine the segment's layout.
    pub limits: Limits,
    /// Active modes.
    pub modes: u32,
    /// Secret of the application.
    pub key: Key,
}

impl Reply {
    /// Returns the number of descriptors that go along.
    pub fn descriptors(&self) -> usize {
        match self {
            Reply::Attached(_) => ATTACHED_DESCRIPTORS,
            Reply::Reattached | Reply::Refused { .. } | Reply::Passed { .. } => 0,
            Reply::Handles { count, .. } => *count as usize,
        }
    }
}

impl Request {
    /// Returns the number of descriptors that go along.
    pub fn descriptors(&self) -> usize {
        match self {
            Request::Adopt | Request::PassFile => REQUEST_DESCRIPTORS,
            Request::Attach { .. }
            | Request::MoreHandles { .. }
            | Request::Reattach { .. }
            | Request::Join { .. } => 0,
        }
    }
}

/// Reason why a packet does not decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadPacket {
    /// The other side has another version.
    Version {
        /// Its version.
        theirs: u16,
    },
    /// The packet has no valid encoding.
    Malformed,
}

impl fmt::Display for BadPacket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadPacket::Version { theirs } => {
                write!(f, "the other side speaks version {theirs}, not {VERSION}")
            }
            BadPacket::Malformed => f.write_str("a packet does not decode"),
        }
    }
}

impl std::error::Error for BadPacket {}

const ATTACH: u16 = 1;
const ADOPT: u16 = 2;
const MORE_HANDLES: u16 = 3;
/// Bit in the value of MoreHandles, beside the count.
const NONBLOCKING: u32 = 1 << 31;
const PASS_FILE: u16 = 4;
const REATTACH: u16 = 5;
const JOIN: u16 = 6;
const ATTACHED: u16 = 129;
const REFUSED: u16 = 130;
const HANDLES: u16 = 131;
const PASSED: u16 = 132;
const REATTACHED: u16 = 133;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct Head {
    magic: [u8; 8],
    version: U16,
    kind: U16,
    /// Modes, a count, the number of a file, or an errno.
    value: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct AttachedRecord {
    head: Head,
    app: U32,
    channel: U32,
    segment_bytes: U64,
    sockets_max: U32,
    reserved: U32,
    key: [u8; Key::BYTES],
}

/// Body of Reattach, and of Join with channel 0.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct ReattachRecord {
    head: Head,
    app: U32,
    channel: U32,
    key: [u8; Key::BYTES],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct HandlesRecord {
    head: Head,
    first: U32,
    errno: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct PassedRecord {
    head: Head,
    errno: U32,
}

fn head(kind: u16, value: u32) -> Head {
    Head {
        magic: MAGIC,
        version: VERSION.into(),
        kind: kind.into(),
        value: value.into(),
    }
}

/// Returns kind and value of a packet.
fn kind_of(packet: &[u8]) -> Result<(u16, u32), BadPacket> {
    let (head, _) = Head::ref_from_prefix(packet).map_err(|_| BadPacket::Malformed)?;
    if head.magic != MAGIC {
        return Err(BadPacket::Malformed);
    }
    match head.version.get() {
        VERSION => Ok((head.kind.get(), head.value.get())),
        theirs => Err(BadPacket::Version { theirs }),
    }
}

fn record<T: FromBytes + KnownLayout + Immutable + Unaligned>(
    packet: &[u8],
) -> Result<&T, BadPacket> {
    T::ref_from_bytes(packet).map_err(|_| BadPacket::Malformed)
}

impl Request {
    /// Encodes the packet.
    pub fn encode(&self) -> Vec<u8> {
        let reattach = |kind, app: AppId, channel: u32, key: Key| {
            let record = ReattachRecord {
                head: head(kind, 0),
                app: app.0.into(),
                channel: channel.into(),
                key: key.bytes(),
            };
            record.as_bytes().to_vec()
        };
        let head = match *self {
            Request::Attach { modes } => head(ATTACH, modes),
            Request::Adopt => head(ADOPT, 0),
            Request::MoreHandles { count, nonblocking } => {
                let nonblocking = if nonblocking { NONBLOCKING } else { 0 };
                head(MORE_HANDLES, count | nonblocking)
            }
            Request::PassFile => head(PASS_FILE, 0),
            Request::Reattach { app, channel, key } => {
                return reattach(REATTACH, app, channel.0, key);
            }
            Request::Join { app, key } => return reattach(JOIN, app, 0, key),
        };
        head.as_bytes().to_vec()
    }

    /// Decodes a packet. The caller checks the number of its descriptors against
    /// [`Request::descriptors`].
    pub fn decode(packet: &[u8]) -> Result<Request, BadPacket> {
        let (kind, value) = kind_of(packet)?;
        if let (REATTACH | JOIN, 0) = (kind, value) {
            return Request::decode_reattach(kind, packet);
        }
        let _: &Head = record(packet)?;
        match (kind, value) {
            (ATTACH, modes) => Ok(Request::Attach { modes }),
            (ADOPT, 0) => Ok(Request::Adopt),
            (MORE_HANDLES, value) => match value & !NONBLOCKING {
                count @ 1..=HANDLES_MAX => Ok(Request::MoreHandles {
                    count,
                    nonblocking: value & NONBLOCKING != 0,
                }),
                _ => Err(BadPacket::Malformed),
            },
            (PASS_FILE, 0) => Ok(Request::PassFile),
            _ => Err(BadPacket::Malformed),
        }
    }

    fn decode_reattach(kind: u16, packet: &[u8]) -> Result<Request, BadPacket> {
        let record: &ReattachRecord = record(packet)?;
        let (app, key) = (AppId(record.app.get()), Key::new(record.key));
        match (kind, record.channel.get()) {
            (JOIN, 0) => Ok(Request::Join { app, key }),
            (REATTACH, channel) => Ok(Request::Reattach {
                app,
                channel: ChannelId(channel),
                key,
            }),
            _ => Err(BadPacket::Malformed),
        }
    }
}

impl Reply {
    /// Encodes the packet.
    pub fn encode(&self) -> Vec<u8> {
        match *self {
            Reply::Attached(attached) => AttachedRecord {
                head: head(ATTACHED, attached.modes),
                app: attached.app.0.into(),
                channel: attached.channel.0.into(),
                segment_bytes: attached.limits.segment_bytes.into(),
                sockets_max: attached.limits.sockets_max.into(),
                reserved: 0.into(),
                key: attached.key.bytes(),
            }
            .as_bytes()
            .to_vec(),
            Reply::Reattached => head(REATTACHED, 0).as_bytes().to_vec(),
            Reply::Refused { errno } => head(REFUSED, errno).as_bytes().to_vec(),
            Reply::Handles {
                first,
                count,
                errno,
            } => HandlesRecord {
                head: head(HANDLES, count),
                first: first.0.into(),
                errno: errno.into(),
            }
            .as_bytes()
            .to_vec(),
            Reply::Passed { file } => PassedRecord {
                head: head(PASSED, file.unwrap_or(0)),
                errno: file.err().unwrap_or(0).into(),
            }
            .as_bytes()
            .to_vec(),
        }
    }

    /// Decodes a packet. The caller checks the number of its descriptors against
    /// [`Reply::descriptors`].
    pub fn decode(packet: &[u8]) -> Result<Reply, BadPacket> {
        let (kind, value) = kind_of(packet)?;
        match (kind, value) {
            (ATTACHED, modes) => {
                let record: &AttachedRecord = record(packet)?;
                if record.reserved.get() != 0 {
                    return Err(BadPacket::Malformed);
                }
                Ok(Reply::Attached(Attached {
                    app: AppId(record.app.get()),
                    channel: ChannelId(record.channel.get()),
                    limits: Limits {
                        sockets_max: record.sockets_max.get(),
                        segment_bytes: record.segment_bytes.get(),
                    },
                    modes,
                    key: Key::new(record.key),
                }))
            }
            (REATTACHED, 0) => {
                let _: &Head = record(packet)?;
                Ok(Reply::Reattached)
            }
            (REFUSED, errno @ 1..) => {
                let _: &Head = record(packet)?;
                Ok(Reply::Refused { errno })
            }
            (HANDLES, count @ 0..=HANDLES_MAX) => {
                let record: &HandlesRecord = record(packet)?;
                Ok(Reply::Handles {
                    first: HandleId(record.first.get()),
                    count,
                    errno: record.errno.get(),
                })
            }
            (PASSED, number) => {
                let record: &PassedRecord = record(packet)?;
                let file = match (number, record.errno.get()) {
                    (1.., 0) => Ok(number),
                    (0, errno @ 1..) => Err(errno),
                    _ => return Err(BadPacket::Malformed),
                };
                Ok(Reply::Passed { file })
            }
            _ => Err(BadPacket::Malformed),
        }
    }
}
