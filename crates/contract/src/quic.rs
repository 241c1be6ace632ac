//! QUIC across the split: the host stack numbers packets and defines their content; the NIC stack
//! reads the files, seals and sends (RFC 9000, RFC 9001).
//!
//! | Command | Meaning |
//! |---|---|
//! | QKEY | install the key of a generation; a key update begins the next one |
//! | QKEYGONE | no more packets use the key of a generation |
//! | PREPARE | read a range of a file into memory; answered by READY |
//! | QSEND | complete, seal and send datagrams with one 1-RTT packet each |
//! | QRELEASE | the peer has a range of a file, or will never need it |
//! | QRXKEY | open the peer's packets: the key of a generation |
//! | QCID | a connection ID with which the peer addresses a flow |
//! | QRXKEYGONE | open no more packets of a flow |
//!
//! | Event | Meaning |
//! |---|---|
//! | READY | a range of a file is in memory |
//! | QRX | opened packets of the peer |
//!
//! # Packet numbers
//!
//! A key seals a packet number at most once, whatever process dies: two ciphertexts would reveal
//! both plaintexts and, with GCM, allow forgeries. The numbers of a flow ascend over all
//! generations. A NIC stack refuses a number that is not above all it has sealed for the flow, or
//! is below the floor of its key. The host gives the key to another NIC stack with a floor above
//! every number it has issued: packets that may have left are never sealed again, but declared lost
//! and retransmitted under new numbers.
//!
//! # Read before numbering
//!
//! A packet counts as sent once the host numbers it. PREPARE reads a range before that, so that a
//! QSEND need not wait for a disk. It waits only for its own reads: neither for QSENDs of its flow,
//! nor for other PREPAREs, which may be answered first.
//!
//! # Receiving
//!
//! The host opens all packets unless it has given the key to a NIC stack. Then packet filters steer
//! frames of the flow to the worker once it has accepted the flow ([`crate::Event::FlowsTaken`]),
//! or the host passes them down by FRAME. QRX has the packets that the worker has opened. It hands
//! all others up as frames: the host can open every packet at any time, so a lost worker, or a
//! frame at the wrong worker, costs only time of the host. A worker that cannot take the key
//! ignores it.
//!
//! QRXKEYGONE takes the key back. QRX of packets opened earlier may still be in the ring; they
//! precede the departure of any QSEND after the QRXKEYGONE. Later frames go up unopened.
//!
//! # Key material
//!
//! As in [`crate::tls`]: `Debug` never prints it, and it is overwritten in the ring, in copies and
//! after use.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::ids::{FileId, FlowId, SendId};
use crate::limits::QUIC_CONNECTION_ID_BYTES_MAX;
use crate::segment::Segment;
use crate::tls::Cipher;

/// QKEY: a key for packets of a flow.
///
/// The generations of a flow ascend; each has one key. All share the header key. A flow that has
/// had a key lives until an ACKD with `last`.
#[derive(Clone, PartialEq, Eq)]
pub struct QuicKey<'a> {
    /// The flow.
    pub flow: FlowId,
    /// Counts key updates.
    pub generation: u32,
    /// The cipher that seals.
    pub cipher: Cipher,
    /// The AEAD key: [`Cipher::key_bytes`].
    pub key: &'a [u8],
    /// The IV, from which nonces derive (RFC 9001 §5.3).
    pub iv: [u8; 12],
    /// The key of header protection (RFC 9001 §5.4): [`Cipher::key_bytes`].
    pub header_key: &'a [u8],
    /// The lowest packet number that the key may seal.
    pub floor: u64,
}

/// QSEND: datagrams of a flow, in the order to send them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuicSend<'a> {
    /// Returned in the departure.
    pub id: SendId,
    /// SENDs of a flow depart in the order in which they were issued.
    pub flow: FlowId,
    /// As [`crate::Send::issued_us`].
    pub issued_us: u64,
    /// As [`crate::Send::not_before_us`].
    pub not_before_us: u64,
    /// Ethernet, IP and UDP header; at most [`crate::limits::HEADER_BYTES_MAX`]. The NIC stack
    /// fills in length fields and checksums.
    pub header: &'a [u8],
    /// The packets: 1 to [`crate::limits::QUIC_PACKETS_MAX`]. Their datagrams have the same length,
    /// but the last may be shorter.
    pub packets: Vec<QuicPacket<'a>>,
    /// The segments of all packets, in order; each packet has the number it states. At most
    /// [`crate::limits::QUIC_SEGMENTS_MAX`], none of them of records.
    pub segments: Vec<Segment<'a>>,
}

/// A 1-RTT packet, in a datagram of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuicPacket<'a> {
    /// Its number, in full.
    pub number: u64,
    /// The key that seals it.
    pub generation: u32,
    /// Sealed handshake packets in front of it; usually none.
    pub prefix: &'a [u8],
    /// The unprotected short header, including the truncated packet number: 2 to
    /// [`crate::limits::QUIC_HEADER_BYTES_MAX`] bytes.
    pub header: &'a [u8],
    /// The number of its segments.
    pub segments: u8,
}

/// PREPARE: read a range of a file into memory. Answered by READY, or `ReadFailed`, after which the
/// flow continues. A ready range is retained as if sent, until QRELEASE; under memory pressure it
/// may be evicted after a while, and a QSEND reads it again. Like a key, it makes a flow live until
/// an ACKD with `last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prepare {
    /// Returned in the answer.
    pub id: SendId,
    /// The flow.
    pub flow: FlowId,
    /// The file.
    pub file: FileId,
    /// Offset of the first byte.
    pub offset: u64,
    /// Length, in bytes: 1 to [`crate::limits::PREPARE_BYTES_MAX`].
    pub len: u32,
}

/// QRXKEY: the key for packets from the peer.
///
/// It replaces the key before: the host opens packets of the former key phase from then on. It
/// stays until a QRXKEYGONE, or an ACKD with `last`.
#[derive(Clone, PartialEq, Eq)]
pub struct QuicReceiveKey<'a> {
    /// The flow.
    pub flow: FlowId,
    /// Counts key updates. Its lowest bit is the key phase (RFC 9001 §6).
    pub generation: u32,
    /// The cipher that opens.
    pub cipher: Cipher,
    /// The AEAD key: [`Cipher::key_bytes`].
    pub key: &'a [u8],
    /// The IV, from which nonces derive (RFC 9001 §5.3).
    pub iv: [u8; 12],
    /// The key of header protection (RFC 9001 §5.4): [`Cipher::key_bytes`].
    pub header_key: &'a [u8],
    /// One more than the largest packet number opened, to decode the next ones (RFC 9000 §A.3).
    /// Below 2⁶².
    pub next_number: u64,
    /// How long packets are held behind a gap in the packet numbers, in microseconds; at most
    /// [`crate::limits::QUIC_HOLD_US_MAX`].
    pub hold_us: u32,
}

/// A connection ID (RFC 9000 §5.1): 1 to [`QUIC_CONNECTION_ID_BYTES_MAX`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuicConnectionId {
    len: u8,
    /// Zero beyond its length.
    bytes: [u8; QUIC_CONNECTION_ID_BYTES_MAX],
}

impl QuicConnectionId {
    /// `None` if it is empty or too long.
    pub fn new(id: &[u8]) -> Option<Self> {
        let mut bytes = [0; QUIC_CONNECTION_ID_BYTES_MAX];
        bytes.get_mut(..id.len())?.copy_from_slice(id);
        let len = id.len() as u8;
        (len > 0).then_some(Self { len, bytes })
    }

    /// Its bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// QRX: opened packets of a flow, in order. All have the same addresses, connection ID and key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuicReceived {
    /// The flow.
    pub flow: FlowId,
    /// Generation of the key that opened them.
    pub generation: u32,
    /// The connection ID in their headers.
    pub id: QuicConnectionId,
    /// Their source.
    pub remote: SocketAddr,
    /// Their destination address, of the same family.
    pub local: IpAddr,
    /// Arrival of the last, in microseconds of the host's monotonic clock.
    pub arrived_us: u64,
    /// The packets: 1 to [`crate::limits::QUIC_RECEIVED_PACKETS_MAX`].
    pub packets: Vec<QuicReceivedPacket>,
    /// Their plaintexts, concatenated: at most [`crate::limits::QUIC_RECEIVED_BYTES_MAX`].
    pub plaintext: Vec<u8>,
}

/// An opened packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuicReceivedPacket {
    /// Its number, in full.
    pub number: u64,
    /// Its arrival, in microseconds before [`QuicReceived::arrived_us`].
    pub age_us: u32,
    /// Length of its plaintext, in bytes. Zero: it had only an ACK frame, which a later packet of
    /// the same QRX supersedes.
    pub len: u16,
    /// The first byte of its short header, unprotected.
    pub first: u8,
    /// The ECN field of its IP header (RFC 3168 §5): 0 to 3.
    pub ecn: u8,
}

impl QuicReceived {
    /// Each packet, with its plaintext.
    pub fn each(&self) -> impl Iterator<Item = (&QuicReceivedPacket, &[u8])> {
        let mut rest = &self.plaintext[..];
        self.packets.iter().map(move |packet| {
            let (plaintext, behind) = rest.split_at(rest.len().min(packet.len.into()));
            rest = behind;
            (packet, plaintext)
        })
    }
}

/// Omits the keys and the IV.
impl fmt::Debug for QuicReceiveKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuicReceiveKey")
            .field("flow", &self.flow)
            .field("generation", &self.generation)
            .field("cipher", &self.cipher)
            .field("next_number", &self.next_number)
            .field("hold_us", &self.hold_us)
            .finish_non_exhaustive()
    }
}

/// Omits the keys and the IV.
impl fmt::Debug for QuicKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuicKey")
            .field("flow", &self.flow)
            .field("generation", &self.generation)
            .field("cipher", &self.cipher)
            .field("floor", &self.floor)
            .finish_non_exhaustive()
    }
}

impl<'a> QuicSend<'a> {
    /// Each packet, with its segments.
    pub fn each(&self) -> impl Iterator<Item = (&QuicPacket<'a>, &[Segment<'a>])> {
        let mut rest = &self.segments[..];
        self.packets.iter().map(move |packet| {
            let count = usize::from(packet.segments).min(rest.len());
            let (segments, behind) = rest.split_at(count);
            rest = behind;
            (packet, segments)
        })
    }
}

impl QuicPacket<'_> {
    /// Length of its sealed datagram, in bytes.
    pub fn datagram_bytes(&self, segments: &[Segment<'_>]) -> u64 {
        let plaintext: u64 = segments.iter().map(|it| u64::from(it.len())).sum();
        let around = self.prefix.len() + self.header.len() + crate::tls::TAG_BYTES;
        around as u64 + plaintext
    }
}
