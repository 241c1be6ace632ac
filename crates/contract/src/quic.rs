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
//! # Key material
//!
//! As in [`crate::tls`]: `Debug` never prints it, and it is overwritten in the ring, in the copy,
//! and where it was used.

use std::fmt;

use crate::ids::{FileId, FlowId, SendId};
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
