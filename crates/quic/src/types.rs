//! What the endpoint and its caller say to each other.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;

use contract::FileId;
use contract::quic::QuicConnectionId;
use contract::tls::Cipher;
use tcp::Instant;
use zeroize::Zeroizing;

/// Most datagrams of one SEND.
pub(crate) const DATAGRAMS_MAX: usize = 44;

/// A connection of an endpoint. Never another one's while the endpoint lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle {
    pub(crate) serial: u64,
    pub(crate) index: usize,
}

impl Handle {
    /// A number that no other connection of the endpoint has, or will have.
    pub fn serial(self) -> u64 {
        self.serial
    }
}

/// A stream of a connection (RFC 9000 §2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u64);

impl StreamId {
    /// True if data goes one way only.
    pub fn is_unidirectional(self) -> bool {
        self.0 & 2 != 0
    }

    /// True if the server has opened it.
    pub fn is_of_server(self) -> bool {
        self.0 & 1 != 0
    }

    /// True if a server may send on it.
    pub(crate) fn is_sendable(self) -> bool {
        !self.is_unidirectional() || self.is_of_server()
    }

    /// True if a server may read from it.
    pub(crate) fn is_readable(self) -> bool {
        !self.is_unidirectional() || !self.is_of_server()
    }
}

/// A range of a file that the NIC stack can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileRange {
    /// The file.
    pub file: FileId,
    /// Offset of its first byte.
    pub offset: u64,
    /// Length, in bytes.
    pub len: u64,
}

/// Explicit congestion notification in an IP header (RFC 3168 §5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ecn {
    /// ECT(0)
    Ect0,
    /// ECT(1)
    Ect1,
    /// Congestion experienced.
    Ce,
}

/// Where a datagram has come from.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// The peer's address, without a flow label.
    pub remote: SocketAddr,
    /// The address at which it has arrived.
    pub local_ip: Option<IpAddr>,
    /// What its IP header says.
    pub ecn: Option<Ecn>,
}

/// A packet of a peer that a NIC stack has opened.
#[derive(Clone, Copy, Debug)]
pub struct Opened<'a> {
    /// When it has arrived.
    pub arrived: Instant,
    /// The key that has opened it.
    pub generation: u32,
    /// Its number, in full.
    pub number: u64,
    /// The connection ID in its header.
    pub id: &'a QuicConnectionId,
    /// The first byte of its header, without protection: a short header.
    pub first: u8,
    /// Its plaintext. Empty: it held nothing but an ACK frame, and a packet that follows says all
    /// that this did.
    pub plaintext: &'a [u8],
}

/// Where datagrams go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The peer's address.
    pub remote: SocketAddr,
    /// The address from which they leave, if the connection has been reached at one.
    pub local_ip: Option<IpAddr>,
    /// What their IP header says.
    pub ecn: Option<Ecn>,
}

/// The key of a key phase: it seals the packets that this side sends. `Debug` does not print it,
/// and it is overwritten when it is dropped.
pub struct SealKey {
    /// Counts key updates: 0 is the first.
    pub generation: u32,
    /// What it is for.
    pub cipher: Cipher,
    pub(crate) key: Zeroizing<Vec<u8>>,
    pub(crate) iv: Zeroizing<[u8; 12]>,
    pub(crate) header_key: Zeroizing<Vec<u8>>,
    /// The peer's of the same generation.
    pub(crate) open: OpenKey,
}

/// The key of a key phase that opens what the peer sends. Overwritten when it is dropped.
pub(crate) struct OpenKey {
    pub(crate) key: Zeroizing<Vec<u8>>,
    pub(crate) iv: Zeroizing<[u8; 12]>,
    pub(crate) header_key: Zeroizing<Vec<u8>>,
}

impl SealKey {
    /// The AEAD key: [`Cipher::key_bytes`].
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// From which nonces are made (RFC 9001 §5.3).
    pub fn iv(&self) -> &[u8; 12] {
        &self.iv
    }

    /// The key of header protection, the same for all generations: [`Cipher::key_bytes`].
    pub fn header_key(&self) -> &[u8] {
        &self.header_key
    }
}

impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealKey")
            .field("generation", &self.generation)
            .field("cipher", &self.cipher)
            .finish_non_exhaustive()
    }
}

/// A piece of a packet's plaintext.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment<'a> {
    /// Bytes that the host has.
    Inline(&'a [u8]),
    /// A range of a file.
    File {
        /// The file.
        file: FileId,
        /// Offset of the first byte.
        offset: u64,
        /// Length, in bytes.
        len: u32,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    Inline(Range<usize>),
    File { file: FileId, offset: u64, len: u32 },
}

#[derive(Clone, Debug)]
pub(crate) struct Described {
    pub(crate) number: u64,
    pub(crate) generation: u32,
    /// Packets of earlier spaces that share the datagram, sealed.
    pub(crate) prefix: Range<usize>,
    pub(crate) header: Range<usize>,
    pub(crate) pieces: Range<usize>,
    /// Of prefix, header and pieces, those that the host has, in bytes.
    pub(crate) inline_bytes: usize,
    /// Of the datagram as it leaves.
    pub(crate) datagram_bytes: usize,
}

/// Datagrams that the NIC stack fills in, seals and sends, in this order.
#[derive(Clone, Debug)]
pub struct Send {
    /// The connection.
    pub connection: Handle,
    /// Comes back with the departure. Ascends.
    pub id: u64,
    /// Where they go.
    pub route: Route,
    /// They leave no earlier: it is the time at which the last is taken for sent.
    pub not_before: Instant,
    pub(crate) packets: Vec<Described>,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) bytes: Vec<u8>,
}

impl Send {
    /// The datagrams: one 1-RTT packet each.
    pub fn packets(&self) -> impl ExactSizeIterator<Item = Packet<'_>> {
        self.packets.iter().map(|described| Packet {
            send: self,
            described,
        })
    }

    /// Bytes of all datagrams together, as they leave.
    pub fn datagram_bytes(&self) -> u64 {
        self.packets().map(|packet| packet.datagram_bytes()).sum()
    }

    /// Bytes of files in all of them.
    pub fn file_bytes(&self) -> u64 {
        self.packets().map(|packet| packet.file_bytes()).sum()
    }
}

/// A 1-RTT packet that is to be sealed, in a datagram of its own.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    send: &'a Send,
    described: &'a Described,
}

impl<'a> Packet<'a> {
    /// The packet number, in full. Ascends over all generations.
    pub fn number(&self) -> u64 {
        self.described.number
    }

    /// The key that seals it.
    pub fn generation(&self) -> u32 {
        self.described.generation
    }

    /// Packets of the handshake in front of it in the same datagram, sealed already; most often
    /// none.
    pub fn prefix(&self) -> &'a [u8] {
        &self.send.bytes[self.described.prefix.clone()]
    }

    /// The short header with the truncated packet number at its end, without header protection.
    pub fn header(&self) -> &'a [u8] {
        &self.send.bytes[self.described.header.clone()]
    }

    /// The plaintext.
    pub fn segments(&self) -> impl Iterator<Item = Segment<'a>> + use<'a> {
        let send = self.send;
        let pieces = send.pieces[self.described.pieces.clone()].iter();
        pieces.map(|piece| match piece {
            Piece::Inline(range) => Segment::Inline(&send.bytes[range.clone()]),
            Piece::File { file, offset, len } => Segment::File {
                file: *file,
                offset: *offset,
                len: *len,
            },
        })
    }

    /// Length of the datagram as it leaves, in bytes.
    pub fn datagram_bytes(&self) -> u64 {
        self.described.datagram_bytes as u64
    }

    /// What the host has of it, in bytes: all but ranges of files, and the tag.
    pub(crate) fn inline_bytes(&self) -> usize {
        self.described.inline_bytes
    }

    /// How many of its bytes are ranges of files.
    fn file_bytes(&self) -> u64 {
        let Described {
            inline_bytes,
            datagram_bytes,
            ..
        } = self.described;
        (datagram_bytes - inline_bytes - contract::tls::TAG_BYTES) as u64
    }

    /// How many segments it has.
    pub(crate) fn segment_count(&self) -> usize {
        self.described.pieces.len()
    }
}

/// What is to be done outside.
#[derive(Debug)]
pub enum Output {
    /// Send datagrams that are sealed: of the handshake, or of no connection.
    Datagrams {
        /// Where they go.
        route: Route,
        /// One after the other; the last may be shorter.
        datagram_bytes: usize,
        /// The datagrams.
        bytes: Vec<u8>,
    },
    /// Give the NIC stack a key: packets sealed with it follow.
    Key {
        /// The connection.
        connection: Handle,
        /// The key.
        key: Arc<SealKey>,
        /// The lowest packet number that it may seal.
        floor: u64,
    },
    /// Take a key from the NIC stack, once what was given to it before has left.
    KeyGone {
        /// The connection.
        connection: Handle,
        /// The key.
        generation: u32,
    },
    /// Have the NIC stack seal and send packets.
    Send(Send),
    /// The peer may call the connection by this ID from now on: a NIC stack that opens what it
    /// sends has to know.
    ConnectionId {
        /// The connection.
        connection: Handle,
        /// The connection ID.
        id: QuicConnectionId,
    },
    /// The peer has acknowledged a range, or will not get it: nothing of it is sent again.
    Released {
        /// The connection.
        connection: Handle,
        /// The range.
        range: FileRange,
    },
}

/// Something has happened to a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The connection.
    pub connection: Handle,
    /// What.
    pub kind: EventKind,
}

/// What happens to a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The handshake is complete, or early data has come before it is.
    Connected {
        /// The application protocol that was agreed upon.
        alpn: Option<Vec<u8>>,
        /// The name that the client has asked for.
        server_name: Option<String>,
        /// What seals.
        cipher: Cipher,
        /// True if an earlier session was resumed.
        is_resumed: bool,
        /// True if early data is accepted, even if none comes before the handshake is complete.
        takes_early_data: bool,
        /// True if the handshake is not complete. What comes before
        /// [`HandshakeComplete`](EventKind::HandshakeComplete) may be a copy of what another
        /// connection has brought (RFC 8470 §2), and the peer's address may be another's.
        is_early: bool,
    },
    /// The handshake of a connection with early data is complete.
    HandshakeComplete,
    /// The peer has opened a stream.
    Opened(StreamId),
    /// There may be something to read, or the stream's end.
    Readable(StreamId),
    /// There may be room to write.
    Writable(StreamId),
    /// The peer has acknowledged bytes of a stream: of a range of a file not before all of a piece
    /// of 256 KiB is. Or they were given up, since the stream was reset.
    Acknowledged {
        /// The stream.
        stream: StreamId,
        /// How many.
        bytes: u64,
        /// As many of them were real.
        real_bytes: u64,
    },
    /// All that was written, and the end, is acknowledged.
    Finished(StreamId),
    /// The peer wants nothing more of a stream.
    Stopped(StreamId, u64),
    /// The connection is over: nothing else follows, and its handle is unknown from now on.
    Closed(CloseReason),
}

/// Why a connection is over.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseReason {
    /// [`Endpoint::close`](crate::Endpoint::close) was called.
    Local,
    /// The peer's application has closed it, with this code.
    Application(u64),
    /// The peer's transport has closed it, with this code of RFC 9000 §20.1.
    Peer(u64),
    /// The peer has broken the protocol, which this code of RFC 9000 §20.1 says.
    Protocol(u64, String),
    /// The peer has lost its state.
    Reset,
    /// Nothing has come for too long.
    TimedOut,
    /// A packet could not be described to the NIC stack.
    Undescribable,
    /// There was no room for it.
    Refused,
}

/// What a read yields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// The stream's next bytes.
    Bytes(bytes::Bytes),
    /// Nothing yet; [`EventKind::Readable`] follows.
    Blocked,
    /// The stream's end.
    Finished,
}

/// Why a stream does not do what it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamError {
    /// There is no such connection, or no such stream any more, or it does not go this way.
    Unknown,
    /// The peer wants nothing more of it.
    Stopped(u64),
    /// The peer will send nothing more on it.
    Reset(u64),
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("the stream is not open"),
            Self::Stopped(code) => write!(f, "the peer has stopped the stream with code {code}"),
            Self::Reset(code) => write!(f, "the peer has reset the stream with code {code}"),
        }
    }
}

impl std::error::Error for StreamError {}
