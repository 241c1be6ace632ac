//! What is shared of a socket: a record of [`RECORD_WORDS`] words in the segment.
//!
//! Positions are total counts of bytes or entries since the socket was made, or disconnected. They
//! only grow.
//!
//! | Word | Written by | What |
//! |---|---|---|
//! | 0 | host | `STATE`: generation << 32, [`Flags`]; stored last |
//! | 1 | host | `ERROR`: number of the error << 32, errno |
//! | 2 | host | `RX_TAIL`: bytes put into the rx FIFO |
//! | 3 | host | `TX_HEAD`: bytes taken out of the tx FIFO |
//! | 4 | host | `FILE_LIMIT`: file bytes that may have been queued |
//! | 5 | host | `EDGE`: grows with each change of readiness |
//! | 6 | host | `HELD`: bytes, or connections, that the host stack holds until it is asked |
//! | 7 | host | `TX_LIMIT`: bytes of the tx FIFO that are used; 0: all |
//! | 8, 9 | host | `RX_FIFO`, `TX_FIFO`: first word in the FIFO area << 8, log2 of the bytes |
//! | 10 | host | `RX_ALARM`: kick when `RX_HEAD` passes this |
//! | 11 | host | `ACKED`: bytes of the stream that the peer has acknowledged |
//! | 12 | host | `ACCEPT_TAIL`: entries put into the accept queue |
//! | 13 | host | `DISCONNECTS`: how often the socket was disconnected |
//! | 14 | host | `TX_MAX`: bytes up to which the tx FIFO grows when a Room asks for that |
//! | 16–18 | host | `LOCAL`: family << 48, port << 32, scope; then 16 bytes of address |
//! | 19–21 | host | `PEER`: the same |
//! | 22–27 | host | `FILE_META`: size, mtime in ns, ctime in ns, inode, device, bit 0: weak |
//! | 28–31 | host | `OPTIONS`: values of options, if it tells them: see [`OPTION_PLACES`] |
//! | 32 | application | `RX_HEAD`: bytes taken out of the rx FIFO |
//! | 33 | application | `TX_TAIL`: bytes put into the tx FIFO |
//! | 34 | both | `KICKED`: 1 while a Kick is on its way |
//! | 35 | both | `WANTS`: the channel to which a hint goes with the next change |
//! | 36 | application | `ERROR_TAKEN`: number of the last error that was reported |
//! | 37 | application | `FILE_QUEUED`: file bytes queued |
//! | 38 | application | `TX_MARKS`: marks put between the bytes of the tx FIFO |
//! | 39 | both | `TX_BLOCKED`: 1 while a writer waits for room in the tx FIFO or for file bytes |
//! | 40 | application | `RX_LOCK`: the thread that has it |
//! | 41 | both | `TX_LOCK`: the same; [`LOCKED_BY_HOST`] while the host stack replaces the tx FIFO |
//! | 42 | application | `APP_FLAGS`: free for the application |
//! | 43 | application | `TX_MORE`: more follows on the bytes up to here; bit 63: the last mark ends it |
//! | 44 | application | `ACCEPT_HEAD`: entries taken out of the accept queue |
//! | 45 | both | `ACK_ALARM`: `EDGE` grows when `ACKED` reaches this; 0: it does not |
//! | 46 | application | `RX_LOWAT`: bytes from which the socket is readable; 0: any |
//! | 48 | host | `SPLICE`: number of its last news << 32, [`SpliceStage`] << 16, errno |
//! | 49 | host | `SPLICE_IN`: bytes that have come from the peer and passed to the other socket |
//! | 50 | host | `SPLICE_OUT`: bytes that have passed from the other socket to the peer |
//! | 51 | application | `SPLICE_SEEN`: number of the last news that was reported |
//! | 52 | application | `SPLICE_TAKEN`: one more than the bytes of `SPLICE_IN` that it has taken note of; 0: it takes none; bit 63: it wants the connection back |
//!
//! Those of a request and its answer are in four cache lines.
//!
//! For a listener, `RX_FIFO` is the accept queue: a power of two of words, each the name of a
//! socket.
//!
//! # Kicks
//!
//! An application moves its index, and then swaps 1 into `KICKED`; only if that was 0 it sends a
//! Kick. The host stack stores 0 before it looks at the indices. A sequentially consistent fence
//! between the two steps, on both sides, makes it impossible that both come too early. A process
//! that dies before it sends the Kick leaves the 1 there, so the host stack looks at all sockets of
//! an application when one of its channels ends.
//!
//! After reading, an application kicks only if its index passes `RX_ALARM`: the event index of
//! VIRTIO 1.2 §2.7.10, which costs nothing while all that arrives fits.
//!
//! # Modes
//!
//! Where a mode is off, the host stack holds what it would hand over: bytes until a Receive, and
//! connections until an AcceptNext. `HELD` says how much, and counts as what is there, so readiness
//! is the same in all modes. `LOCAL`, `PEER` and `OPTIONS` of a connection are empty until they are
//! asked for.
//!
//! # Marks
//!
//! Ranges of files, and the end of the stream, have places between the bytes of the tx FIFO, and
//! come as commands. An application counts each in `TX_MARKS` before it writes what follows. As
//! long as the host stack has not had as many marks, it takes no bytes that are new to it: they may
//! be behind one that is still on its way.
//!
//! # Blocks
//!
//! A connection has no FIFO before the first byte in that direction, and the host stack takes back
//! those of connections that are idle. A position does not depend on the size of a FIFO, so one can
//! take the place of another.
//!
//! The rx FIFO is replaced only while it is empty. A reader looks for it, with the lock, only after
//! it has seen that the head is behind the tail; the host stack replaces it only after it has seen
//! that they are equal, and from that to the next byte no reader looks for it.
//!
//! The tx FIFO is replaced by the host stack with `TX_LOCK`, which it only tries to take: as long
//! as a writer has it, the FIFO stays. What is queued is copied into the new one. A writer that
//! finds none, or too little room, sends a Room without the lock, and looks again at the answer.
//! So a program that keeps the lock, or dies with it, keeps its own memory and delays no one. Who
//! finds [`LOCKED_BY_HOST`] tries again: it is there for no longer than a copy takes.
//!
//! # Disconnecting
//!
//! A socket that is connected no more may be connected again. The host stack then sets all
//! positions to zero, those of the application too, whose process has both locks meanwhile; a
//! process that accepts, which takes no lock, finds the entry that it wants already taken. Before
//! all that, it counts in `DISCONNECTS`: a position means nothing once that has grown.
//!
//! # Room
//!
//! `EDGE` does not grow with `TX_HEAD` and `FILE_LIMIT`: most writers have room all the time. One
//! that finds too little writes 1 into `TX_BLOCKED` and looks once more, as Linux sets
//! `SOCK_NOSPACE`. The host stack moves its index, and if there is a 1 and room, it takes that away
//! and lets `EDGE` grow. The same fence stands between the two steps, on both sides.
//!
//! # Acknowledgments
//!
//! An application that waits for one writes the position into `ACK_ALARM`, unless an earlier one is
//! there, and then looks at `ACKED`. The host stack moves `ACKED`, and then takes an alarm away
//! that it has reached. The same fence stands between the two steps, on both sides.
//!
//! # Splices
//!
//! While a socket is part of a splice, [`Flags::SPLICED`] is set: the application neither reads nor
//! writes, and the host stack moves `RX_HEAD` as it moves what is unread to the other socket. The
//! process that asks for it has both locks of both sockets until the answer. `SPLICE_IN` and
//! `SPLICE_OUT` are counted from there on; they are those of the end, or of the return, once
//! `SPLICE` says so.
//!
//! A library can act as if the program had the bytes that pass. It writes 1 into `SPLICE_TAKEN`
//! before it asks for the splice, and moves it on as the program takes bytes that it never sees:
//! while `SPLICE_IN` is ahead, the socket is readable. It is writable as well, for a program may
//! wait for that before it passes on what it has taken; until it sends bytes of its own, for which
//! it wants the connection back.
//!
//! # Hints
//!
//! An application that finds nothing to do writes its channel into `WANTS` and looks once more. The
//! host stack changes the record, swaps 0 into `WANTS`, and sends Ready to whom it names. The same
//! fence stands between the two steps, on both sides.

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

/// Of `SPLICE_TAKEN`: the connection is to come back.
pub(crate) const SPLICE_WANTED_BACK: u64 = 1 << 63;

/// The owner of `TX_LOCK` that is no thread: the host stack.
pub const LOCKED_BY_HOST: u32 = u32::MAX;

/// Of `TX_MORE`.
pub(crate) const MORE_ENDS_WITH_MARK: u64 = 1 << 63;

/// No index ever passes this.
pub(crate) const NEVER: u64 = u64::MAX;

/// What the peer has written makes no sense. The socket is unusable; no other is.
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
    /// Kind: a connection, or what may become one.
    pub const STREAM: Flags = Flags(1);
    /// Kind: it has an accept queue.
    pub const LISTENER: Flags = Flags(2);
    /// Kind: a file of the NIC stack.
    pub const FILE: Flags = Flags(4);
    /// A connection is being opened.
    pub const CONNECTING: Flags = Flags(8);
    /// The connection is established, or was.
    pub const CONNECTED: Flags = Flags(16);
    /// The peer has finished: the stream ends with what is in the rx FIFO.
    pub const PEER_FINISHED: Flags = Flags(32);
    /// The host stack has taken a shutdown for writing.
    pub const SHUT_WRITE: Flags = Flags(64);
    /// `ERROR` says why the connection, or the opening of the file, has failed.
    pub const FAILED: Flags = Flags(128);
    /// Nothing will come or go any more.
    pub const CLOSED: Flags = Flags(256);
    /// The file is open and `FILE_META` is there.
    pub const FILE_OPEN: Flags = Flags(512);
    /// The host stack serves this application no more.
    pub const DETACHED: Flags = Flags(1024);
    /// The peer is on the same stack: the connection takes no ranges of files.
    pub const LOOPED: Flags = Flags(2048);
    /// It has bound an address.
    pub const BOUND: Flags = Flags(4096);
    /// The peer has finished. Bytes before that may still be held: [`Flags::PEER_FINISHED`] follows
    /// when all are in the rx FIFO, and readiness waits for that.
    pub const FIN_RECEIVED: Flags = Flags(8192);
    /// It is part of a splice, or about to be: a NIC stack moves its bytes.
    pub const SPLICED: Flags = Flags(16_384);

    /// True if all of `flags` are set.
    pub const fn has(self, flags: Flags) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// True if nothing will come or go any more.
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

/// What has become of a socket's last splice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpliceStage {
    /// There was none.
    #[default]
    None,
    /// It is being joined with the other socket.
    Joining,
    /// A NIC stack moves its bytes.
    Joined,
    /// It is the application's again.
    Returned,
    /// It has ended, and so have both connections.
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
    /// How far it has come.
    pub stage: SpliceStage,
    /// Why it was not joined, or has ended: an `errno`; 0 where there is nothing wrong.
    pub errno: u16,
    /// Bytes that have come from the peer and passed to the other socket.
    pub in_bytes: u64,
    /// Bytes that have passed from the other socket to the peer.
    pub out_bytes: u64,
}

/// What `SPLICE` says.
pub(crate) fn splice_to_word(news: u32, stage: SpliceStage, errno: u16) -> u64 {
    u64::from(news) << 32 | stage.code() << 16 | u64::from(errno)
}

/// The stage and the error in such a word; `None` if it makes no sense.
pub(crate) fn splice_from_word(word: u64) -> Option<(SpliceStage, u16)> {
    let stage = SpliceStage::from_code(word >> 16 & 0xffff)?;
    Some((stage, word as u16))
}

/// What poll(2) says of a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// Reading, or accepting, does not block: POLLIN.
    pub readable: bool,
    /// Writing does not block: POLLOUT.
    pub writable: bool,
    /// The peer will send no more: POLLRDHUP.
    pub peer_finished: bool,
    /// There is an error that has not been reported: POLLERR.
    pub error: bool,
    /// Nothing will come or go any more: POLLHUP.
    pub hangup: bool,
    /// Something has become of its splice that has not been reported: POLLPRI.
    pub priority: bool,
}

/// What readiness depends on: one look at a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// The state.
    pub flags: Flags,
    /// There is an error that has not been reported.
    pub error_is_new: bool,
    /// Bytes in the rx FIFO, or entries in the accept queue; with those that are held.
    pub waiting: u64,
    /// So many make it readable, but for the end of the stream.
    pub rx_lowat: u64,
    /// Bytes in the tx FIFO.
    pub unsent_bytes: u64,
    /// Size of the tx FIFO, in bytes, as far as it is used; 0 if there is none.
    pub tx_bytes: u64,
    /// All file bytes that may be queued so far have been.
    pub is_file_blocked: bool,
    /// Something has become of its splice that has not been reported.
    pub splice_is_new: bool,
    /// Bytes that have passed in its splice, of which the application has not taken note and will.
    pub spliced_bytes: u64,
    /// While it is part of a splice, the application acts as if the program moved the bytes.
    pub seems_copied: bool,
}

impl Look {
    /// More than three quarters of the tx FIFO are used, or all file bytes that may be queued: a
    /// writer waits.
    ///
    /// Linux (`sk_stream_is_writeable`) has a connection writable when a third of its buffer is
    /// free; here a quarter is enough, so that a writer is not woken for every ACK either.
    pub(crate) fn is_blocked(&self) -> bool {
        self.unsent_bytes > self.tx_bytes / 4 * 3 || self.is_file_blocked
    }

    /// What poll(2) says, as `tcp_poll` of Linux has it.
    pub fn readiness(&self) -> Readiness {
        let flags = self.flags;
        let any = |among: Flags| flags.0 & among.0 != 0;
        let is_over = any(Flags::FAILED | Flags::CLOSED | Flags::DETACHED);
        let is_at_end = any(Flags::PEER_FINISHED) || is_over;
        let shut_write = any(Flags::SHUT_WRITE);
        let is_stream = any(Flags::STREAM);
        // It hangs up, and writing to it does not block: it fails.
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
            // Not before the last byte is in the FIFO: programs such as HAProxy take a read that
            // comes short after POLLRDHUP for the end.
            peer_finished: is_stream && is_at_end,
            error: self.error_is_new,
            hangup: is_over || is_idle || (is_at_end && shut_write),
            priority: self.splice_is_new,
        }
    }
}

/// Words of a record that hold the values of options.
pub const OPTION_WORDS: usize = 4;

/// Set in the first of them once they hold any.
pub(crate) const OPTIONS_TOLD: u64 = 1 << 63;

/// Where the values of options are: the word, the lowest bit, and how many bits. Other options are
/// asked for.
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

/// The words that say what `value` says of each option.
pub(crate) fn options_to_words(value: impl Fn(SocketOption) -> u64) -> [u64; OPTION_WORDS] {
    let mut words = [0; OPTION_WORDS];
    words[0] = OPTIONS_TOLD;
    for (option, word, low, bits) in OPTION_PLACES {
        words[word] |= (value(option) & u64::MAX >> (64 - bits)) << low;
    }
    words
}

/// What words say of an option; `None` if they do not.
pub fn option_from_words(words: [u64; OPTION_WORDS], option: SocketOption) -> Option<u64> {
    if words[0] & OPTIONS_TOLD == 0 {
        return None;
    }
    let mut places = OPTION_PLACES.iter();
    let (_, word, low, bits) = places.find(|(known, ..)| *known == option)?;
    Some(words[*word] >> low & u64::MAX >> (64 - bits))
}

/// Metadata of an open file, as the NIC stack has reported it.
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
    /// The content may change and leave all of this as it is.
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

/// To whom a hint goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// No process waits for this socket.
    None,
    /// One process does.
    By(ChannelId),
    /// Several do: all processes of the application look.
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

/// An address as three words; zeros for none.
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

/// The address that three words hold, if any.
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

/// The words of a record.
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

    /// Application: after it has moved an index. True if it must send a Kick.
    pub(crate) fn kick(self) -> bool {
        fence(Ordering::SeqCst);
        // A 1 that the load sees is no old one: the host stack would have looked after the fence.
        self.get(KICKED) == 0 && self.word(KICKED).swap(1, Ordering::Relaxed) == 0
    }

    /// Host stack: before it looks at the indices.
    pub(crate) fn unkick(self) {
        self.set(KICKED, 0);
        fence(Ordering::SeqCst);
    }

    /// Application: asks for a hint with the next change. It looks again after this.
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

    /// Host stack: to whom a hint of the changes made so far goes.
    pub(crate) fn take_wanted(self) -> Wanted {
        fence(Ordering::SeqCst);
        if self.get(WANTS) == 0 {
            return Wanted::None;
        }
        Wanted::from_raw(self.word(WANTS).swap(0, Ordering::Relaxed))
    }
}
