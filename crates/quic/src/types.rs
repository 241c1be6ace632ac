//! Inputs and outputs of an endpoint.

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

/// A connection of an endpoint. No other connection gets the same handle while the endpoint lives.
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
    /// True if the stream is unidirectional.
    pub fn is_unidirectional(self) -> bool {
        self.0 & 2 != 0
    }

    /// True if the server opened it.
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

/// Where a datagram came from.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// The peer's address, without a flow label.
    pub remote: SocketAddr,
    /// The address at which it arrived.
    pub local_ip: Option<IpAddr>,
    /// The ECN codepoint in its IP header.
    pub ecn: Option<Ecn>,
}

/// A packet of the peer that a NIC stack has opened.
#[derive(Clone, Copy, Debug)]
pub struct Opened<'a> {
    /// When it arrived.
    pub arrived: Instant,
    /// The generation of the key that opened it.
    pub generation: u32,
    /// Its number, in full.
    pub number: u64,
    /// The connection ID in its header.
    pub id: &'a QuicConnectionId,
    /// The first byte of its short header, without header protection.
    pub first: u8,
    /// Its plaintext. Empty: it held only an ACK frame, and a later packet acknowledges the same.
    pub plaintext: &'a [u8],
}

/// Where datagrams go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The peer's address.
    pub remote: SocketAddr,
    /// The address from which they leave, if known.
    pub local_ip: Option<IpAddr>,
    /// The ECN codepoint in their IP header.
    pub ecn: Option<Ecn>,
}

/// The key of a key phase that seals the packets of this side. `Debug` does not print it, and
/// dropping overwrites it.
pub struct SealKey {
    /// Counts key updates: 0 is the first.
    pub generation: u32,
    /// Its cipher.
    pub cipher: Cipher,
    pub(crate) key: Zeroizing<Vec<u8>>,
    pub(crate) iv: Zeroizing<[u8; 12]>,
    pub(crate) header_key: Zeroizing<Vec<u8>>,
    /// Most packets that it may seal: the confidentiality limit of its cipher (RFC 9001 §6.6).
    pub(crate) packets_max: u64,
    /// The peer's key of the same generation.
    pub(crate) open: OpenKey,
}

/// The key of a key phase that opens the peer's packets. Dropping overwrites it.
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

    /// The IV from which nonces are made (RFC 9001 §5.3).
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
    /// Sealed packets of earlier spaces in the same datagram.
    pub(crate) prefix: Range<usize>,
    pub(crate) header: Range<usize>,
    pub(crate) pieces: Range<usize>,
    /// Bytes of prefix, header and pieces that the host has.
    pub(crate) inline_bytes: usize,
    /// Length of the datagram on the wire.
    pub(crate) datagram_bytes: usize,
}

/// Datagrams that the NIC stack fills in, seals and sends, in this order.
#[derive(Clone, Debug)]
pub struct Send {
    /// The connection.
    pub connection: Handle,
    /// Returned with the departure. Ascends.
    pub id: u64,
    /// Where they go.
    pub route: Route,
    /// They leave no earlier: the time at which the last counts as sent.
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

    /// Length of all datagrams together on the wire.
    pub fn datagram_bytes(&self) -> u64 {
        self.packets().map(|packet| packet.datagram_bytes()).sum()
    }

    /// Bytes of files in all of them.
    pub fn file_bytes(&self) -> u64 {
        self.packets().map(|packet| packet.file_bytes()).sum()
    }
}

/// A 1-RTT packet to be sealed, in a datagram of its own.
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

    /// Sealed handshake packets in front of it in the same datagram; mostly none.
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

    /// Length of the datagram on the wire, in bytes.
    pub fn datagram_bytes(&self) -> u64 {
        self.described.datagram_bytes as u64
    }

    /// How many of its bytes the host has: all but ranges of files and the tag.
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

/// What the caller is to do.
#[derive(Debug)]
pub enum Output {
    /// Send sealed datagrams: of a handshake, or of no connection.
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
    /// Remove a key from the NIC stack, once everything given to it before has left.
    KeyGone {
        /// The connection.
        connection: Handle,
        /// The key.
        generation: u32,
    },
    /// Have the NIC stack seal and send packets.
    Send(Send),
    /// The peer may use this connection ID from now on: a NIC stack that opens its packets must
    /// know it.
    ConnectionId {
        /// The connection.
        connection: Handle,
        /// The connection ID.
        id: QuicConnectionId,
    },
    /// The peer has acknowledged a range, or will not get it: none of it is retransmitted.
    Released {
        /// The connection.
        connection: Handle,
        /// The range.
        range: FileRange,
    },
}

/// An event of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The connection.
    pub connection: Handle,
    /// What happened.
    pub kind: EventKind,
}

/// The events of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The handshake is complete, or early data has arrived before it is.
    Connected {
        /// The negotiated application protocol.
        alpn: Option<Vec<u8>>,
        /// The server name that the client asked for.
        server_name: Option<String>,
        /// The negotiated cipher.
        cipher: Cipher,
        /// True if the client resumed a session.
        is_resumed: bool,
        /// True if early data is accepted, even if none arrives before the handshake is complete.
        takes_early_data: bool,
        /// True if the handshake is not complete. Data that arrives before
        /// [`HandshakeComplete`](EventKind::HandshakeComplete) may be a replay (RFC 8470 §2), and
        /// the peer's address may be spoofed.
        is_early: bool,
    },
    /// The handshake of a connection with early data is complete.
    HandshakeComplete,
    /// The peer has opened a stream.
    Opened(StreamId),
    /// The stream may have data to read, or its end.
    Readable(StreamId),
    /// The stream may have room to write.
    Writable(StreamId),
    /// The peer has acknowledged bytes of a stream, or they were abandoned because the stream was
    /// reset. Ranges of files count only in whole pieces of 256 KiB.
    Acknowledged {
        /// The stream.
        stream: StreamId,
        /// How many.
        bytes: u64,
        /// How many of them were real bytes.
        real_bytes: u64,
    },
    /// Everything written, and the stream's end, is acknowledged.
    Finished(StreamId),
    /// The peer wants nothing more of a stream.
    Stopped(StreamId, u64),
    /// The connection is over: no event follows, and its handle is unknown from now on.
    Closed(CloseReason),
}

/// Why a connection is over.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseReason {
    /// [`Endpoint::close`](crate::Endpoint::close) was called.
    Local,
    /// The peer's application closed it, with this code.
    Application(u64),
    /// The peer's transport closed it, with this code of RFC 9000 §20.1.
    Peer(u64),
    /// The peer broke the protocol, with this code of RFC 9000 §20.1.
    Protocol(u64, String),
    /// The peer sent a stateless reset.
    Reset,
    /// The idle timeout expired.
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
    /// No data yet; [`EventKind::Readable`] follows.
    Blocked,
    /// The stream's end.
    Finished,
}

/// Why an operation on a stream fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamError {
    /// The connection or stream does not exist any more, or the stream does not go this way.
    Unknown,
    /// The peer has sent STOP_SENDING, with this code.
    Stopped(u64),
    /// The peer has reset the stream, with this code.
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
