//! Shared state of a socket: a record of [`RECORD_WORDS`] words in the segment.
//!
//! Positions are total counts of bytes or entries since the socket was made or disconnected. They
//! only grow.
//!
//! | Word | Written by | Content |
//! |---|---|---|
//! | 0 | host | `STATE`: generation << 32, [`Flags`]; stored last |
//! | 1 | host | `ERROR`: number of the error << 32, errno |
//! | 2 | host | `RX_TAIL`: bytes put into the rx FIFO |
//! | 3 | host | `TX_HEAD`: bytes taken out of the tx FIFO |
//! | 4 | host | `FILE_LIMIT`: file bytes that may have been queued |
//! | 5 | host | `EDGE`: grows with each change of readiness |
//! | 6 | host | `HELD`: bytes, or connections, that the host stack holds until a request |
//! | 7 | host | `TX_LIMIT`: usable bytes of the tx FIFO; 0: all |
//! | 8, 9 | host | `RX_FIFO`, `TX_FIFO`: first word in the FIFO area << 8, log2 of the bytes |
//! | 10 | host | `RX_ALARM`: kick when `RX_HEAD` passes this |
//! | 11 | host | `ACKED`: bytes of the stream that the peer has acknowledged |
//! | 12 | host | `ACCEPT_TAIL`: entries put into the accept queue |
//! | 13 | host | `DISCONNECTS`: number of disconnects |
//! | 14 | host | `TX_MAX`: bytes up to which the tx FIFO grows at a Room |
//! | 16–18 | host | `LOCAL`: family << 48, port << 32, scope; then 16 bytes of address |
//! | 19–21 | host | `PEER`: the same |
//! | 22–27 | host | `FILE_META`: size, mtime in ns, ctime in ns, inode, device, bit 0: weak |
//! | 28–31 | host | `OPTIONS`: values of options, if published: see [`OPTION_PLACES`] |
//! | 32 | application | `RX_HEAD`: bytes taken out of the rx FIFO |
//! | 33 | application | `TX_TAIL`: bytes put into the tx FIFO |
//! | 34 | both | `KICKED`: 1 while a Kick is on its way |
//! | 35 | both | `WANTS`: the channel to which a hint goes with the next change |
//! | 36 | application | `ERROR_TAKEN`: number of the last error that was reported |
//! | 37 | application | `FILE_QUEUED`: file bytes queued |
//! | 38 | application | `TX_MARKS`: marks put between the bytes of the tx FIFO |
//! | 39 | both | `TX_BLOCKED`: 1 while a writer waits for room in the tx FIFO or for file bytes |
//! | 40 | application | `RX_LOCK`: the thread that has it |
//! | 41 | both | `TX_LOCK`: the same; [`LOCKED_BY_HOST`] while the host replaces the tx FIFO |
//! | 42 | application | `APP_FLAGS`: free for the application |
//! | 43 | application | `TX_MORE`: more follows the bytes up to here; bit 63: until the last mark |
//! | 44 | application | `ACCEPT_HEAD`: entries taken out of the accept queue |
//! | 45 | both | `ACK_ALARM`: `EDGE` grows when `ACKED` reaches this; 0: it does not |
//! | 46 | application | `RX_LOWAT`: bytes from which the socket is readable; 0: any |
//! | 48 | host | `SPLICE`: number of its last report << 32, [`SpliceStage`] << 16, errno |
//! | 49 | host | `SPLICE_IN`: bytes that have come from the peer and passed to the other socket |
//! | 50 | host | `SPLICE_OUT`: bytes that have passed from the other socket to the peer |
//! | 51 | application | `SPLICE_SEEN`: number of the last report that was read |
//! | 52 | application | `SPLICE_TAKEN`: 1 + accounted bytes; 0: off; bit 63: return requested |
//!
//! The words of a request and its answer are in four cache lines.
//!
//! For a listener, `RX_FIFO` is the accept queue: a power of two of words, each the ID of a socket.
//!
//! # Kicks
//!
//! An application moves its index, and then swaps 1 into `KICKED`; it sends a Kick only if the old
//! value was 0. The host stack stores 0 before it reads the indices. A sequentially consistent
//! fence between the two steps, on both sides, excludes that both sides miss the other's write. A
//! process that dies before it sends the Kick leaves the 1 there, so the host stack examines all
//! sockets of an application when one of its channels ends.
//!
//! After reading, an application kicks only if its index passes `RX_ALARM`: the event index of
//! VIRTIO 1.2 §2.7.10, which costs nothing while all received bytes fit.
//!
//! # Modes
//!
//! If a mode is off, the host stack holds bytes until a Receive, and connections until an
//! AcceptNext. `HELD` is their number and counts as available, so readiness is the same in all
//! modes. `LOCAL`, `PEER` and `OPTIONS` of a connection are empty until they are requested.
//!
//! # Marks
//!
//! File ranges, and the end of the stream, have places between the bytes of the tx FIFO, and come
//! as commands. An application counts each in `TX_MARKS` before it writes the bytes that follow.
//! While the host stack has received fewer marks, it takes no new bytes: they may be behind a mark
//! that is still on its way.
//!
//! # Blocks
//!
//! A connection has no FIFO before the first byte in that direction, and the host stack takes back
//! the FIFOs of idle connections. Positions do not depend on the size of a FIFO, so one FIFO can
//! replace another.
//!
//! The rx FIFO is replaced only while it is empty. A reader, with the lock, loads `RX_FIFO` only
//! after it has seen the head behind the tail; the host stack replaces the FIFO only after it has
//! seen them equal, and until the next byte no reader loads it.
//!
//! The host stack replaces the tx FIFO with `TX_LOCK`, for which it never waits: while a writer has
//! the lock, the FIFO stays. Queued bytes are copied into the new one. A writer that finds no FIFO,
//! or too little room, sends a Room without the lock, and looks again at the Answer. So a program
//! that keeps the lock, or dies with it, keeps its own memory and delays no other. A process that
//! finds [`LOCKED_BY_HOST`] retries: the host holds the lock only for a copy.
//!
//! # Disconnecting
//!
//! A disconnected socket may be connected again. The host stack sets all positions to zero,
//! including those of the application, whose process has both locks meanwhile; a concurrent accept,
//! which takes no lock, finds its entry already taken. Before that, the host stack increments
//! `DISCONNECTS`: a position read before an increment is void.
//!
//! # Room
//!
//! `EDGE` does not grow with `TX_HEAD` and `FILE_LIMIT`: most writers always have room. A writer
//! that finds too little writes 1 into `TX_BLOCKED` and looks once more, as Linux sets
//! `SOCK_NOSPACE`. The host stack moves its index; if there is a 1 and enough room, it stores 0 and
//! lets `EDGE` grow. The same fence stands between the two steps, on both sides.
//!
//! # Acknowledgments
//!
//! An application that waits for an acknowledgment writes the position into `ACK_ALARM`, unless an
//! earlier one is there, and then reads `ACKED`. The host stack moves `ACKED`, and then clears an
//! alarm that it has reached. The same fence stands between the two steps, on both sides.
//!
//! # Splices
//!
//! While a socket is part of a splice, [`Flags::SPLICED`] is set: the application neither reads nor
//! writes, and the host stack moves `RX_HEAD` as it moves unread bytes to the other socket. The
//! requesting process has both locks of both sockets until the Answer. `SPLICE_IN` and `SPLICE_OUT`
//! are counted from there on; they are final once `SPLICE` reports the end or the return.
//!
//! A library can act as if the program moved the bytes. It writes 1 into `SPLICE_TAKEN` before it
//! requests the splice, and adds the bytes that the program accounts for without seeing them: while
//! `SPLICE_IN` is ahead, the socket is readable. It is writable as well, since a program may wait
//! for that before it passes bytes on; until the program sends bytes of its own, for which the
//! library requests the connection's return.
//!
//! # Hints
//!
//! An application that finds no work writes its channel into `WANTS` and looks once more. The host
//! stack changes the record, swaps 0 into `WANTS`, and sends Ready to the channel found there. The
//! same fence stands between the two steps, on both sides.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::ops::{BitOr, BitOrAssign, Sub};

use shm::sync::{AtomicU64, Ordering, fence};

use crate::ids::ChannelId;
use crate::message::SocketOption;

/// Words of a record.
pub const RECORD_WORDS: usize = 64;

pub(crate) const STATE: usize = 0;
pub(crate) const ERROR: usize = 1;
pub(crate) const RX_TAIL: usize = 2;
pub(crate) const TX_HEAD: usize = 3;
pub(crate) const FILE_LIMIT: usize = 4;
pub(crate) const EDGE: usize = 5;
pub(crate) const HELD: usize = 6;
pub(crate) const TX_LIMIT: usize = 7;
pub(crate) const RX_FIFO: usize = 8;
pub(crate) const TX_FIFO: usize = 9;
pub(crate) const RX_ALARM: usize = 10;
pub(crate) const ACKED: usize = 11;
pub(crate) const ACCEPT_TAIL: usize = 12;
pub(crate) const DISCONNECTS: usize = 13;
pub(crate) const TX_MAX: usize = 14;
pub(crate) const LOCAL: usize = 16;
pub(crate) const PEER: usize = 19;
pub(crate) const FILE_META: usize = 22;
pub(crate) const OPTIONS: usize = 28;
pub(crate) const RX_HEAD: usize = 32;
pub(crate) const TX_TAIL: usize = 33;
pub(crate) const KICKED: usize = 34;
pub(crate) const WANTS: usize = 35;
pub(crate) const ERROR_TAKEN: usize = 36;
pub(crate) const FILE_QUEUED: usize = 37;
pub(crate) const TX_MARKS: usize = 38;
pub(crate) const TX_BLOCKED: usize = 39;
pub(crate) const RX_LOCK: usize = 40;
pub(crate) const TX_LOCK: usize = 41;
pub(crate) const APP_FLAGS: usize = 42;
pub(crate) const TX_MORE: usize = 43;
pub(crate) const ACCEPT_HEAD: usize = 44;
pub(crate) const ACK_ALARM: usize = 45;
pub(crate) const RX_LOWAT: usize = 46;
pub(crate) const SPLICE: usize = 48;
pub(crate) const SPLICE_IN: usize = 49;
pub(crate) const SPLICE_OUT: usize = 50;
pub(crate) const SPLICE_SEEN: usize = 51;
pub(crate) const SPLICE_TAKEN: usize = 52;

/// Bit of `SPLICE_TAKEN`: the connection's return is requested.
pub(crate) const SPLICE_WANTED_BACK: u64 = 1 << 63;

/// Owner of `TX_LOCK` that is no thread: the host stack.
pub const LOCKED_BY_HOST: u32 = u32::MAX;

/// Bit of `TX_MORE`.
pub(crate) const MORE_ENDS_WITH_MARK: u64 = 1 << 63;

/// Value that no index ever passes.
pub(crate) const NEVER: u64 = u64::MAX;

/// The peer's words are invalid. Only this socket is unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonsense;

impl std::fmt::Display for Nonsense {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the socket's indices make no sense")
    }
}

impl std::error::Error for Nonsense {}

/// The state of a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u32);

impl Flags {
    /// Kind: a connection, or a socket that may become one.
    pub const STREAM: Flags = Flags(1);
    /// Kind: a listener, which has an accept queue.
    pub const LISTENER: Flags = Flags(2);
    /// Kind: a file of the NIC stack.
    pub const FILE: Flags = Flags(4);
    /// A connection is being opened.
    pub const CONNECTING: Flags = Flags(8);
    /// The connection is established, or was.
    pub const CONNECTED: Flags = Flags(16);
    /// The peer has finished: the stream ends with the bytes in the rx FIFO.
    pub const PEER_FINISHED: Flags = Flags(32);
    /// The host stack has executed a shutdown for writing.
    pub const SHUT_WRITE: Flags = Flags(64);
    /// The connection, or the opening of the file, has failed; `ERROR` has the reason.
    pub const FAILED: Flags = Flags(128);
    /// Both directions have ended.
    pub const CLOSED: Flags = Flags(256);
    /// The file is open and `FILE_META` is valid.
    pub const FILE_OPEN: Flags = Flags(512);
    /// The host stack no longer serves this application.
    pub const DETACHED: Flags = Flags(1024);
    /// The peer is on the same stack: the connection takes no file ranges.
    pub const LOOPED: Flags = Flags(2048);
    /// The socket has bound an address.
    pub const BOUND: Flags = Flags(4096);
    /// The peer has finished. Earlier bytes may still be held: [`Flags::PEER_FINISHED`] follows
    /// when all are in the rx FIFO, and readiness waits for it.
    pub const FIN_RECEIVED: Flags = Flags(8192);
    /// The socket is part of a splice, or about to be: a NIC stack moves its bytes.
    pub const SPLICED: Flags = Flags(16_384);
    /// Another process has looked up the socket's handle, so it has a copy of the descriptor.
    pub const LOOKED_UP: Flags = Flags(32_768);

    /// Reports whether all of `flags` are set.
    pub const fn has(self, flags: Flags) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Reports whether the socket is closed, failed or detached.
    pub const fn is_over(self) -> bool {
        self.has(Flags::CLOSED) || self.has(Flags::FAILED) || self.has(Flags::DETACHED)
    }
}

impl BitOr for Flags {
    type Output = Flags;
    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

impl BitOrAssign for Flags {
    fn bitor_assign(&mut self, other: Flags) {
        self.0 |= other.0;
    }
}

impl Sub for Flags {
    type Output = Flags;
    fn sub(self, other: Flags) -> Flags {
        Flags(self.0 & !other.0)
    }
}

/// Stage of a socket's last splice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpliceStage {
    /// There was no splice.
    #[default]
    None,
    /// The socket is being joined with the other.
    Joining,
    /// A NIC stack moves its bytes.
    Joined,
    /// The application has the socket again.
    Returned,
    /// The splice has ended, and so have both connections.
    Ended,
}

impl SpliceStage {
    fn code(self) -> u64 {
        match self {
            SpliceStage::None => 0,
            SpliceStage::Joining => 1,
            SpliceStage::Joined => 2,
            SpliceStage::Returned => 3,
            SpliceStage::Ended => 4,
        }
    }

    fn from_code(code: u64) -> Option<SpliceStage> {
        Some(match code {
            0 => SpliceStage::None,
            1 => SpliceStage::Joining,
            2 => SpliceStage::Joined,
            3 => SpliceStage::Returned,
            4 => SpliceStage::Ended,
            _ => return None,
        })
    }
}

/// A socket's last splice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpliceState {
    /// Stage of the splice.
    pub stage: SpliceStage,
    /// Reason for a failed join or for the end: an `errno`; 0 if there was no error.
    pub errno: u16,
    /// Bytes received from the peer and passed to the other socket.
    pub in_bytes: u64,
    /// Bytes passed from the other socket to the peer.
    pub out_bytes: u64,
}

/// Encodes `SPLICE`.
pub(crate) fn splice_to_word(news: u32, stage: SpliceStage, errno: u16) -> u64 {
    u64::from(news) << 32 | stage.code() << 16 | u64::from(errno)
}

/// Decodes stage and error of `SPLICE`; `None` if it is invalid.
pub(crate) fn splice_from_word(word: u64) -> Option<(SpliceStage, u16)> {
    let stage = SpliceStage::from_code(word >> 16 & 0xffff)?;
    Some((stage, word as u16))
}

/// Readiness of a socket, as in poll(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// Reading, or accepting, does not block: POLLIN.
    pub readable: bool,
    /// Writing does not block: POLLOUT.
    pub writable: bool,
    /// The peer will send no more: POLLRDHUP.
    pub peer_finished: bool,
    /// There is an unreported error: POLLERR.
    pub error: bool,
    /// Both directions have ended: POLLHUP.
    pub hangup: bool,
    /// There is an unreported change of its splice: POLLPRI.
    pub priority: bool,
}

/// Values that readiness depends on, from one look at a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// The state.
    pub flags: Flags,
    /// There is an unreported error.
    pub error_is_new: bool,
    /// Bytes in the rx FIFO, or entries in the accept queue, including held ones.
    pub waiting: u64,
    /// Number of bytes that makes it readable, except at the end of the stream.
    pub rx_lowat: u64,
    /// Bytes in the tx FIFO.
    pub unsent_bytes: u64,
    /// Usable size of the tx FIFO, in bytes; 0 if there is none.
    pub tx_bytes: u64,
    /// The file credit is used up.
    pub is_file_blocked: bool,
    /// There is an unreported change of its splice.
    pub splice_is_new: bool,
    /// Bytes passed in its splice that the application has yet to account for.
    pub spliced_bytes: u64,
    /// While it is part of a splice, the application acts as if the program moved the bytes.
    pub seems_copied: bool,
}

impl Look {
    /// Reports whether a writer must wait: more than three quarters of the tx FIFO are used, or the
    /// file credit is used up.
    ///
    /// In Linux (`sk_stream_is_writeable`) a connection is writable when a third of its buffer is
    /// free; here a quarter suffices, so that a writer is not woken for every ACK either.
    pub(crate) fn is_blocked(&self) -> bool {
        self.unsent_bytes > self.tx_bytes / 4 * 3 || self.is_file_blocked
    }

    /// Returns the readiness, as `tcp_poll` of Linux does.
    pub fn readiness(&self) -> Readiness {
        let flags = self.flags;
        let any = |among: Flags| flags.0 & among.0 != 0;
        let is_over = any(Flags::FAILED | Flags::CLOSED | Flags::DETACHED);
        let is_at_end = any(Flags::PEER_FINISHED) || is_over;
        let shut_write = any(Flags::SHUT_WRITE);
        let is_stream = any(Flags::STREAM);
        // An unconnected socket hangs up, and writing does not block: it fails.
        let is_idle = is_stream && !any(Flags::CONNECTING | Flags::CONNECTED);
        let is_spliced = any(Flags::SPLICED);
        let has_room = !self.is_blocked() && !is_spliced || is_spliced && self.seems_copied;
        let can_write = any(Flags::CONNECTED) && (has_room || shut_write);
        Readiness {
            readable: self.waiting >= self.rx_lowat.max(1) && !is_spliced
                || self.spliced_bytes > 0
                || is_at_end
                || any(Flags::FILE_OPEN),
            writable: is_stream && (can_write || is_over || is_idle),
            // Not before the last byte is in the FIFO: programs such as HAProxy interpret a short
            // read after POLLRDHUP as the end.
            peer_finished: is_stream && is_at_end,
            error: self.error_is_new,
            hangup: is_over || is_idle || (is_at_end && shut_write),
            priority: self.splice_is_new,
        }
    }
}

/// Words of a record that hold the values of options.
pub const OPTION_WORDS: usize = 4;

/// Bit of the first option word, set once the words hold values.
pub(crate) const OPTIONS_TOLD: u64 = 1 << 63;

/// Places of option values: the word, the lowest bit, and the number of bits. Other options are
/// requested.
pub const OPTION_PLACES: [(SocketOption, usize, u32, u32); 12] = [
    (SocketOption::NoDelay, 0, 0, 1),
    (SocketOption::Cork, 0, 1, 1),
    (SocketOption::KeepAlive, 0, 2, 1),
    (SocketOption::QuickAck, 0, 3, 1),
    (SocketOption::KeepCount, 0, 8, 8),
    (SocketOption::KeepIdleSeconds, 0, 16, 16),
    (SocketOption::KeepIntervalSeconds, 0, 32, 16),
    (SocketOption::UserTimeoutMs, 1, 0, 32),
    (SocketOption::DeferAcceptSeconds, 1, 32, 32),
    (SocketOption::ReceiveBufferBytes, 2, 0, 32),
    (SocketOption::SendBufferBytes, 2, 32, 32),
    (SocketOption::LingerMs, 3, 0, 64),
];

/// Encodes the values that `value` returns for the options.
pub(crate) fn options_to_words(value: impl Fn(SocketOption) -> u64) -> [u64; OPTION_WORDS] {
    let mut words = [0; OPTION_WORDS];
    words[0] = OPTIONS_TOLD;
    for (option, word, low, bits) in OPTION_PLACES {
        words[word] |= (value(option) & u64::MAX >> (64 - bits)) << low;
    }
    words
}

/// Decodes an option; `None` if the words do not have it.
pub fn option_from_words(words: [u64; OPTION_WORDS], option: SocketOption) -> Option<u64> {
    if words[0] & OPTIONS_TOLD == 0 {
        return None;
    }
    let mut places = OPTION_PLACES.iter();
    let (_, word, low, bits) = places.find(|(known, ..)| *known == option)?;
    Some(words[*word] >> low & u64::MAX >> (64 - bits))
}

/// Metadata of an open file, as reported by the NIC stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileMeta {
    /// Size, in bytes.
    pub size: u64,
    /// Last modification, in nanoseconds since the epoch.
    pub mtime_ns: i64,
    /// Last status change, in nanoseconds since the epoch.
    pub ctime_ns: i64,
    /// Inode number.
    pub inode: u64,
    /// Device number.
    pub device: u64,
    /// The content may change without a change of the other fields.
    pub is_weak: bool,
}

impl FileMeta {
    pub(crate) fn to_words(self) -> [u64; 6] {
        [
            self.size,
            self.mtime_ns as u64,
            self.ctime_ns as u64,
            self.inode,
            self.device,
            self.is_weak.into(),
        ]
    }

    pub(crate) fn from_words(words: [u64; 6]) -> FileMeta {
        let [size, mtime_ns, ctime_ns, inode, device, bits] = words;
        FileMeta {
            size,
            mtime_ns: mtime_ns as i64,
            ctime_ns: ctime_ns as i64,
            inode,
            device,
            is_weak: bits & 1 != 0,
        }
    }
}

/// Receivers of a hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// No process waits for this socket.
    None,
    /// One process waits.
    By(ChannelId),
    /// Several processes wait: all processes of the application get the hint.
    BySeveral,
}

const WANTED: u64 = 1 << 63;
const BY_SEVERAL: u64 = 1 << 62;

impl Wanted {
    fn from_raw(raw: u64) -> Wanted {
        if raw & WANTED == 0 {
            Wanted::None
        } else if raw & BY_SEVERAL != 0 {
            Wanted::BySeveral
        } else {
            Wanted::By(ChannelId(raw as u32))
        }
    }
}

/// Encodes an address as three words; zeros for none.
pub(crate) fn address_to_words(address: Option<SocketAddr>) -> [u64; 3] {
    let Some(address) = address else {
        return [0; 3];
    };
    let mut bytes = [0; 16];
    let (family, scope) = match address {
        SocketAddr::V4(address) => {
            bytes[..4].copy_from_slice(&address.ip().octets());
            (4, 0)
        }
        SocketAddr::V6(address) => {
            bytes = address.ip().octets();
            (6, address.scope_id())
        }
    };
    let (words, _) = bytes.as_chunks();
    let first = family << 48 | u64::from(address.port()) << 32 | u64::from(scope);
    [
        first,
        u64::from_ne_bytes(words[0]),
        u64::from_ne_bytes(words[1]),
    ]
}

/// Decodes an address of three words, if any.
pub(crate) fn address_from_words(words: [u64; 3]) -> Option<SocketAddr> {
    let [first, a, b] = words;
    let (port, scope) = ((first >> 32) as u16, first as u32);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&a.to_ne_bytes());
    bytes[8..].copy_from_slice(&b.to_ne_bytes());
    match first >> 48 {
        4 => {
            let [a, b, c, d, ..] = bytes;
            Some((IpAddr::from(Ipv4Addr::new(a, b, c, d)), port).into())
        }
        6 => Some(SocketAddrV6::new(Ipv6Addr::from(bytes), port, 0, scope).into()),
        _ => None,
    }
}

/// Words of a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a>(pub(crate) &'a [AtomicU64; RECORD_WORDS]);

impl<'a> Record<'a> {
    pub(crate) fn word(self, at: usize) -> &'a AtomicU64 {
        &self.0[at]
    }

    pub(crate) fn get(self, at: usize) -> u64 {
        self.0[at].load(Ordering::Relaxed)
    }

    pub(crate) fn get_acquire(self, at: usize) -> u64 {
        self.0[at].load(Ordering::Acquire)
    }

    pub(crate) fn set(self, at: usize, value: u64) {
        self.0[at].store(value, Ordering::Relaxed);
    }

    pub(crate) fn set_release(self, at: usize, value: u64) {
        self.0[at].store(value, Ordering::Release);
    }

    pub(crate) fn set_all<const N: usize>(self, at: usize, words: [u64; N]) {
        for (at, word) in (at..).zip(words) {
            self.set(at, word);
        }
    }

    pub(crate) fn get_all<const N: usize>(self, at: usize) -> [u64; N] {
        std::array::from_fn(|i| self.get(at + i))
    }

    /// Application: sets `KICKED` after it has moved an index. True if it must send a Kick.
    pub(crate) fn kick(self) -> bool {
        fence(Ordering::SeqCst);
        // A loaded 1 is current: otherwise the host stack will look after the fence.
        self.get(KICKED) == 0 && self.word(KICKED).swap(1, Ordering::Relaxed) == 0
    }

    /// Host stack: clears `KICKED` before it reads the indices.
    pub(crate) fn unkick(self) {
        self.set(KICKED, 0);
        fence(Ordering::SeqCst);
    }

    /// Application: requests a hint for the next change. The caller must look again after it.
    pub(crate) fn want(self, channel: ChannelId) {
        let own = WANTED | u64::from(channel.0);
        let word = self.word(WANTS);
        let mut before = self.get(WANTS);
        loop {
            let after = match Wanted::from_raw(before) {
                Wanted::None => own,
                Wanted::By(other) if other == channel => break,
                Wanted::By(_) => WANTED | BY_SEVERAL,
                Wanted::BySeveral => break,
            };
            match word.compare_exchange(before, after, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => before = now,
            }
        }
        fence(Ordering::SeqCst);
    }

    /// Host stack: takes the receivers of a hint about the changes made so far.
    pub(crate) fn take_wanted(self) -> Wanted {
        fence(Ordering::SeqCst);
        if self.get(WANTS) == 0 {
            return Wanted::None;
        }
        Wanted::from_raw(self.word(WANTS).swap(0, Ordering::Relaxed))
    }
}
