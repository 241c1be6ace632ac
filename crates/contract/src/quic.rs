//! QUIC across the split: the host stack numbers packets and says what they consist of; the NIC
//! stack reads the files, seals and sends (RFC 9000, RFC 9001).
//!
//! | Command | What it says |
//! |---|---|
//! | QKEY | the key of a generation: what a key update ends, the next one begins |
//! | QKEYGONE | no more packets come under a generation |
//! | PREPARE | have a range of a file in memory: answered by READY |
//! | QSEND | datagrams with one 1-RTT packet each, to be filled in, sealed and sent |
//! | QRELEASE | the peer has a range of a file, or will not get it |
//! | QRXKEY | open what the peer sends: the key of a generation |
//! | QCID | a connection ID by which the peer calls a flow |
//! | QRXKEYGONE | open no more packets of a flow |
//!
//! | Event | What it says |
//! |---|---|
//! | READY | a range of a file is in memory |
//! | QRX | packets of the peer, opened |
//!
//! # Packet numbers
//!
//! A packet number is sealed at most once under a key, whatever dies: two ciphertexts would give
//! away both plaintexts and, with GCM, the means to forge. The numbers of a flow ascend over all
//! generations. A NIC stack refuses a number that is not above all that it has sealed of the flow,
//! and one below the floor of its key. To another NIC stack the host gives the key again with a
//! floor above every number that it has given out: what may have left is never sealed again, but
//! found lost and sent under new numbers.
//!
//! # Read before numbering
//!
//! A packet counts as sent from the moment when the host numbers it. PREPARE has a range read
//! before that, so that a QSEND need not wait for a disk. It waits for nothing but its own reads:
//! neither for QSENDs of its flow, nor for other PREPAREs, which may be answered first.
//!
//! # Receiving
//!
//! The host opens all that arrives, unless it has given a NIC stack the key to: then frames of the
//! flow are steered to the worker, once it has said that it has the flow
//! ([`crate::Event::FlowsTaken`]), or go down by FRAME. QRX has what the worker has opened. What it
//! cannot open goes up as the frame that it was: the host can open every packet at any time, and
//! has all that it needs to, so that losing a worker, or a frame that comes to the wrong one, costs
//! nothing but the host's time. A worker that does not take the key says nothing.
//!
//! With QRXKEYGONE the host takes the key back. QRX of packets that were opened before may still be
//! on their way; they are before the departure of any QSEND that follows the QRXKEYGONE. A frame
//! that comes to the worker afterwards goes up as it is.
//!
//! # Key material
//!
//! As in [`crate::tls`]: `Debug` never prints it, and it is overwritten in the ring, in the copy,
//! and where it was used.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::ids::{FileId, FlowId, SendId};
use crate::limits::QUIC_CONNECTION_ID_BYTES_MAX;
use crate::segment::Segment;
use crate::tls::Cipher;

/// QKEY: a key for packets of a flow.
///
/// The generations of a flow ascend: none is used for a second key. The header key is the same for
/// all of them. A flow that has had a key lives until an ACKD with `last`.
#[derive(Clone, PartialEq, Eq)]
pub struct QuicKey<'a> {
    /// The flow.
    pub flow: FlowId,
    /// Counts key updates.
    pub generation: u32,
    /// What seals.
    pub cipher: Cipher,
    /// The AEAD key: [`Cipher::key_bytes`].
    pub key: &'a [u8],
    /// From which nonces are made (RFC 9001 §5.3).
    pub iv: [u8; 12],
    /// The key of header protection (RFC 9001 §5.4): [`Cipher::key_bytes`].
    pub header_key: &'a [u8],
    /// The lowest packet number that it may seal.
    pub floor: u64,
}

/// QSEND: datagrams of a flow, in the order in which they are to leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuicSend<'a> {
    /// Comes back in the departure.
    pub id: SendId,
    /// SENDs of a flow depart in the order in which they were issued.
    pub flow: FlowId,
    /// As [`crate::Send::issued_us`].
    pub issued_us: u64,
    /// As [`crate::Send::not_before_us`].
    pub not_before_us: u64,
    /// Ethernet, IP and UDP header; at most [`crate::limits::HEADER_BYTES_MAX`]. Length fields and
    /// checksums are the NIC stack's work.
    pub header: &'a [u8],
    /// The packets: 1 to [`crate::limits::QUIC_PACKETS_MAX`]. Their datagrams have the same length
    /// but for the last, which may be shorter.
    pub packets: Vec<QuicPacket<'a>>,
    /// What all packets consist of, in order: as many of each as it says. At most
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
    /// Packets of the handshake in front of it, sealed already; most often none.
    pub prefix: &'a [u8],
    /// The short header, which ends with the truncated packet number: 2 to
    /// [`crate::limits::QUIC_HEADER_BYTES_MAX`] bytes, without protection.
    pub header: &'a [u8],
    /// How many segments its plaintext has.
    pub segments: u8,
}

/// PREPARE: have a range of a file in memory. Answered by READY, or `ReadFailed`, after which the
/// flow goes on. What is ready is retained as if it had been sent, until QRELEASE; it stays for a
/// while, even if memory is wanted, and then may go: a QSEND reads it again. Like a key, it makes a
/// flow live until an ACKD with `last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prepare {
    /// Comes back in the answer.
    pub id: SendId,
    /// For which flow.
    pub flow: FlowId,
    /// The file.
    pub file: FileId,
    /// Offset of the first byte.
    pub offset: u64,
    /// Length, in bytes: 1 to [`crate::limits::PREPARE_BYTES_MAX`].
    pub len: u32,
}

/// QRXKEY: the key for packets that the peer sends.
///
/// It takes the place of the one before: packets of that one's key phase are the host's from then
/// on. It stays until a QRXKEYGONE, or an ACKD with `last`.
#[derive(Clone, PartialEq, Eq)]
pub struct QuicReceiveKey<'a> {
    /// The flow.
    pub flow: FlowId,
    /// Counts key updates. Its lowest bit is the key phase (RFC 9001 §6).
    pub generation: u32,
    /// What opens.
    pub cipher: Cipher,
    /// The AEAD key: [`Cipher::key_bytes`].
    pub key: &'a [u8],
    /// From which nonces are made (RFC 9001 §5.3).
    pub iv: [u8; 12],
    /// The key of header protection (RFC 9001 §5.4): [`Cipher::key_bytes`].
    pub header_key: &'a [u8],
    /// One more than the largest packet number that was opened: from which the next ones are
    /// decoded (RFC 9000 §A.3). Below 2⁶².
    pub next_number: u64,
    /// How long packets are held behind a gap in the packet numbers, in microseconds; at most
    /// [`crate::limits::QUIC_HOLD_US_MAX`].
    pub hold_us: u32,
}

/// A connection ID (RFC 9000 §5.1): 1 to [`QUIC_CONNECTION_ID_BYTES_MAX`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuicConnectionId {
    len: u8,
    /// Zero behind its length.
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

/// QRX: packets of a flow that were opened, in the order in which they are to be taken. All have
/// come from one address to another, under one connection ID and one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuicReceived {
    /// The flow.
    pub flow: FlowId,
    /// The key that has opened them.
    pub generation: u32,
    /// The connection ID in their headers.
    pub id: QuicConnectionId,
    /// Where they have come from.
    pub remote: SocketAddr,
    /// The address to which they were sent: of the same family.
    pub local: IpAddr,
    /// When the last of them has arrived, in microseconds of the host's monotonic clock.
    pub arrived_us: u64,
    /// The packets: 1 to [`crate::limits::QUIC_RECEIVED_PACKETS_MAX`].
    pub packets: Vec<QuicReceivedPacket>,
    /// Their plaintexts, one after the other: at most
    /// [`crate::limits::QUIC_RECEIVED_BYTES_MAX`].
    pub plaintext: Vec<u8>,
}

/// A packet that was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuicReceivedPacket {
    /// Its number, in full.
    pub number: u64,
    /// So much before [`QuicReceived::arrived_us`] it has arrived, in microseconds.
    pub age_us: u32,
    /// Length of its plaintext, in bytes. Zero: it held nothing but an ACK frame, and all that this
    /// said is said again by a packet behind it in the same QRX.
    pub len: u16,
    /// The first byte of its header, without protection: a short header.
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

/// Without the keys and the IV.
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

/// Without the keys and the IV.
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
    /// Length of its datagram as it leaves, in bytes.
    pub fn datagram_bytes(&self, segments: &[Segment<'_>]) -> u64 {
        let plaintext: u64 = segments.iter().map(|it| u64::from(it.len())).sum();
        let around = self.prefix.len() + self.header.len() + crate::tls::TAG_BYTES;
        around as u64 + plaintext
    }
}
