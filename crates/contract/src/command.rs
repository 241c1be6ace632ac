//! Commands: host stack to NIC stack.

use crate::file::Growth;
use crate::ids::{FileId, FlowId, PassedId, SendId};
use crate::parting::Part;
use crate::quic::{Prepare, QuicConnectionId, QuicKey, QuicReceiveKey, QuicSend};
use crate::segment::Segments;
use crate::setup::Setup;
use crate::splicing::{Splice, UnspliceKind};
use crate::tls::{Key, Records};

/// A command of the host stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// Open a regular file below the root. Answered by `Opened` or `OpenFailed`. A SEND may name
    /// the file before the answer.
    Open {
        /// The host's id for the file from now on.
        file: FileId,
        /// Whether the file may grow while it is open.
        growth: Growth,
        /// Path relative to the root: any bytes but zero, not empty, no leading `/`.
        path: &'a [u8],
    },
    /// OPENPASSED: open a regular file by a descriptor passed to the NIC stack, wherever the file
    /// is. It must not grow. Answered like `Open`; with `ENOENT` if there is no such descriptor,
    /// and `EOPNOTSUPP` if its file system may block readers.
    OpenPassed {
        /// The host's id for the file from now on.
        file: FileId,
        /// The descriptor.
        passed: PassedId,
    },
    /// LIST: list a directory below the root, or part of one. Answered by `Listed` or `OpenFailed`,
    /// which frees the id: the NIC stack does not keep the directory open, nor any other state.
    List {
        /// The host's id for the directory, until the answer.
        file: FileId,
        /// Where to begin: zero, or the end of the last part ([`crate::listing::Part::next`]).
        from: u64,
        /// Path relative to the root: any bytes but zero, no leading `/`; empty for the root
        /// itself.
        path: &'a [u8],
    },
    /// Forget a file. SENDs accepted before still complete.
    Close {
        /// The file.
        file: FileId,
    },
    /// Send bytes of a flow.
    Send(Send<'a>),
    /// ACKD: the peer has acknowledged the flow's stream up to here; retained data before it may
    /// go.
    Acked {
        /// The flow.
        flow: FlowId,
        /// Stream offset (as in [`Send::stream_offset`]) of the first byte not acknowledged.
        stream_offset: u64,
        /// The flow is over: drop all its queued and retained data, and its keys.
        last: bool,
    },
    /// KEY: installs a key for a flow's records.
    Key(Key<'a>),
    /// KEYGONE: no more records will use the key. It is removed, and its memory overwritten, once
    /// all its records have been acknowledged.
    KeyGone {
        /// The flow.
        flow: FlowId,
        /// The key's epoch.
        epoch: u16,
    },
    /// RECORDS: defines records of a flow, which SENDs then name by stream offset.
    Records(Records<'a>),
    /// FRAME: a frame has arrived at the host's port that belongs to a parted connection, to a leg
    /// of a splice, or to a flow with a QRXKEY, or is a SYN covered by SETUP. May be lost, as
    /// frames may.
    Frame {
        /// From the Ethernet header on, at most [`crate::limits::FRAME_BYTES_MAX`]. The host has
        /// verified its checksums.
        bytes: &'a [u8],
    },
    /// PART: run the rest of a connection.
    Part(Part<'a>),
    /// PARTGONE: forget a parted connection, and send nothing more for it.
    PartGone {
        /// The flow in its PART.
        flow: FlowId,
    },
    /// SPLICE: join two connections.
    Splice(Splice<'a>),
    /// SPLICEMSS: a router has found a packet to the peer of a leg too big. If the message quotes
    /// data in flight (RFC 5927 §4), packets to that peer are shorter from now on, and
    /// `SpliceMssReduced` is the answer. Else, or if there is no such splice, without effect.
    SpliceMss {
        /// The flow in its SPLICE.
        flow: FlowId,
        /// The leg: 0 or 1.
        leg: u8,
        /// As [`crate::splicing::SpliceLeg::mss`]. Not zero.
        mss: u16,
        /// The sequence number quoted.
        seq: u32,
    },
    /// UNSPLICE: give the two connections back, or reset both peers. Answered with `Unspliced` or
    /// `SpliceEnded`; without an answer if there is no such splice.
    Unsplice {
        /// The flow in its SPLICE.
        flow: FlowId,
        /// What becomes of the connections.
        kind: UnspliceKind,
    },
    /// SETUP: answer SYNs to listeners.
    Setup(Setup<'a>),
    /// QKEY: installs a key for the packets of a QUIC connection.
    QuicKey(QuicKey<'a>),
    /// QKEYGONE: no more packets use the key. It is removed, and its memory overwritten, once all
    /// earlier QSENDs have departed.
    QuicKeyGone {
        /// The flow.
        flow: FlowId,
        /// The key's generation.
        generation: u32,
    },
    /// QSEND: seal packets of a QUIC connection and send them.
    QuicSend(QuicSend<'a>),
    /// PREPARE: read a range of a file into memory.
    Prepare(Prepare),
    /// QRELEASE: the peer has acknowledged this range, or will never need it; the NIC stack need
    /// not retain it for the flow.
    QuicRelease {
        /// The flow.
        flow: FlowId,
        /// The file.
        file: FileId,
        /// Offset of the first byte.
        offset: u64,
        /// Length, in bytes. Not zero.
        len: u64,
    },
    /// QRXKEY: open packets from the peer of a QUIC connection.
    QuicReceiveKey(QuicReceiveKey<'a>),
    /// QCID: the peer addresses a flow by this connection ID. Without effect if the flow has no
    /// QRXKEY, or another flow has the ID.
    QuicConnectionId {
        /// The flow.
        flow: FlowId,
        /// The connection ID.
        id: QuicConnectionId,
    },
    /// QRXKEYGONE: open no more packets of a flow. Packets already opened are reported first; then
    /// the key is removed, its memory overwritten, and the flow's connection IDs forgotten. The
    /// next QRXKEY of the flow is like its first. Without effect if the flow has none.
    QuicReceiveKeyGone {
        /// The flow.
        flow: FlowId,
    },
}

/// SEND: a finished packet header and its payload.
///
/// The NIC stack cuts the payload into superpackets of at most its port's size. `header` is that of
/// the first; each further one advances the sequence number. The last carries FIN and PSH. The NIC
/// stack fills in length fields and checksums, and ignores their values in `header`.
///
/// `S` is the form of its segments: in place, or an iterator for
/// [`HostChannel::send_segments`](crate::channel::HostChannel::send_segments).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Send<'a, S = Segments<'a>> {
    /// Returned in the departure.
    pub id: SendId,
    /// SENDs of a flow depart in the order in which they were issued.
    pub flow: FlowId,
    /// Stream offset of the first payload byte: counts from the first byte after the SYN, without
    /// wrap.
    pub stream_offset: u64,
    /// As in ACKD: stream offset of the flow's first unacknowledged byte. While data flows, no ACKD
    /// is needed.
    pub acked_offset: u64,
    /// When the host issued the SEND: microseconds of the host's monotonic clock.
    pub issued_us: u64,
    /// Pacing: the first packet leaves no earlier than this, on the same clock; 0, or any time
    /// before `issued_us`: at once. Later SENDs of the flow wait behind it. Reading need not wait.
    ///
    /// A NIC stack holds a SEND for at most `not_before_us - issued_us` after taking it, so a clock
    /// that differs from the host's cannot prolong the hold; and never for longer than
    /// [`crate::limits::HOLD_US_MAX`]. A transport between machines translates all times in
    /// transit, so that both stacks see only the host's clock.
    pub not_before_us: u64,
    /// Microseconds since the start of the millisecond in the header's timestamp option, at
    /// `issued_us` (IO-TCP §3.5). Below 1000.
    pub tsval_fraction_us: u16,
    /// Lower bound on the bytes of the last segment's file that follow this SEND in the stream: the
    /// NIC stack may read ahead. Zero if none follow, if the last segment is inline or sealed (then
    /// [`Records::follow_bytes`] has it), and for a retransmission.
    pub follow_bytes: u32,
    /// Largest TCP payload of one packet on the wire, in bytes. Not zero.
    pub mss: u16,
    /// Ethernet, IP and TCP header, complete with options; at most
    /// [`crate::limits::HEADER_BYTES_MAX`].
    pub header: &'a [u8],
    /// The payload, in order. If empty, the header goes alone (a FIN that must stay in order).
    pub segments: S,
}
