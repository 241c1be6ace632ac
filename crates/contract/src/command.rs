//! Commands: host stack to NIC stack.

use crate::file::Growth;
use crate::ids::{FileId, FlowId, PassedId, SendId};
use crate::parting::Part;
use crate::quic::{Prepare, QuicConnectionId, QuicKey, QuicReceiveKey, QuicSend};
use crate::segment::Segments;
use crate::setup::Setup;
use crate::splicing::{Splice, UnspliceKind};
use crate::tls::{Key, Records};

/// What the host stack asks of the NIC stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// Open a regular file below the root. Answered by `Opened` or `OpenFailed`.
    /// A SEND may name the file before the answer has come.
    Open {
        /// The host's name for the file from now on.
        file: FileId,
        /// Whether the file may become longer while it is open.
        growth: Growth,
        /// Path relative to the root: any bytes but zero, not empty, no leading `/`.
        path: &'a [u8],
    },
    /// OPENPASSED: open a regular file of which the NIC stack was passed a descriptor, wherever it
    /// lies. It must not grow. Answered like `Open`, and with `ENOENT` if there is no such
    /// descriptor, `EOPNOTSUPP` if its file system may make a reader wait.
    OpenPassed {
        /// The host's name for the file from now on.
        file: FileId,
        /// The descriptor.
        passed: PassedId,
    },
    /// LIST: tell what is in a directory below the root, or some of it. Answered by `Listed` or
    /// `OpenFailed`, and then the id is free again: a directory is not kept open, and nothing is
    /// remembered of it.
    List {
        /// The host's name for the directory, until the answer has come.
        file: FileId,
        /// Where to begin: zero, or where the part before has ended
        /// ([`crate::listing::Part::next`]).
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
    /// ACKD: the peer has acknowledged the flow's stream up to here; what was retained may go.
    Acked {
        /// The flow.
        flow: FlowId,
        /// Stream offset (as in [`Send::stream_offset`]) of the first byte not acknowledged.
        stream_offset: u64,
        /// The flow is over: drop all that is queued or retained for it, and its keys.
        last: bool,
    },
    /// KEY: installs a key for a flow's records.
    Key(Key<'a>),
    /// KEYGONE: no more records will be defined under the key. It is removed, and its memory
    /// overwritten, as soon as all that were have been acknowledged.
    KeyGone {
        /// The flow.
        flow: FlowId,
        /// The key's epoch.
        epoch: u16,
    },
    /// RECORDS: defines records of a flow, which SENDs then name by their place in the stream.
    Records(Records<'a>),
    /// FRAME: a frame has arrived at the host's port that belongs to a connection that was parted
    /// with, to a leg of a splice, or to a flow with a QRXKEY, or is a SYN that SETUP is about. May
    /// be lost, as frames may.
    Frame {
        /// From the Ethernet header on, at most [`crate::limits::FRAME_BYTES_MAX`]. The host has
        /// verified its checksums.
        bytes: &'a [u8],
    },
    /// PART: run what is left of a connection.
    Part(Part<'a>),
    /// PARTGONE: forget a connection that was parted with. Nothing is sent for it any more.
    PartGone {
        /// The flow in its PART.
        flow: FlowId,
    },
    /// SPLICE: join two connections.
    Splice(Splice<'a>),
    /// SPLICEMSS: packets of a splice have to be shorter from now on. Without effect if there is no
    /// such splice.
    SpliceMss {
        /// The flow in its SPLICE.
        flow: FlowId,
        /// As [`crate::splicing::SpliceLeg::mss`], of each leg. Not zero.
        mss: [u16; 2],
    },
    /// UNSPLICE: give the two connections back, or reset both peers. Answered with `Unspliced` or
    /// `SpliceEnded`; without an answer if there is no such splice.
    Unsplice {
        /// The flow in its SPLICE.
        flow: FlowId,
        /// What is to become of it.
        kind: UnspliceKind,
    },
    /// SETUP: answer SYNs to listeners.
    Setup(Setup<'a>),
    /// QKEY: installs a key for the packets of a QUIC connection.
    QuicKey(QuicKey<'a>),
    /// QKEYGONE: no more packets come under the key. It is removed, and its memory overwritten, as
    /// soon as all that were before this have departed.
    QuicKeyGone {
        /// The flow.
        flow: FlowId,
        /// The key's generation.
        generation: u32,
    },
    /// QSEND: seal packets of a QUIC connection and send them.
    QuicSend(QuicSend<'a>),
    /// PREPARE: have a range of a file in memory.
    Prepare(Prepare),
    /// QRELEASE: the peer has acknowledged this range, or will not get it; what was retained of it
    /// for the flow may go.
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
    /// QRXKEY: open the packets that the peer of a QUIC connection sends.
    QuicReceiveKey(QuicReceiveKey<'a>),
    /// QCID: the peer calls a flow by this connection ID. Without effect if the flow has no QRXKEY,
    /// or another flow is called so.
    QuicConnectionId {
        /// The flow.
        flow: FlowId,
        /// The connection ID.
        id: QuicConnectionId,
    },
    /// QRXKEYGONE: open no more packets of a flow. What its QRXKEY has opened is reported first;
    /// then the key is removed and its memory overwritten, and the flow has no connection ID any
    /// more. The next QRXKEY of the flow is like its first. Without effect if the flow has none.
    QuicReceiveKeyGone {
        /// The flow.
        flow: FlowId,
    },
}

/// SEND: a finished packet header and what follows it.
///
/// The NIC stack cuts the payload into superpackets of at most its port's size. The header is that
/// of the first; each further one advances the sequence number. FIN and PSH go on the last. Length
/// fields and checksums are the NIC stack's work; their value in `header` is ignored.
///
/// `S` is how it has its segments: in place, or as an iterator for
/// [`HostChannel::send_segments`](crate::channel::HostChannel::send_segments).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Send<'a, S = Segments<'a>> {
    /// Comes back in the departure.
    pub id: SendId,
    /// SENDs of a flow depart in the order in which they were issued.
    pub flow: FlowId,
    /// Stream offset of the first payload byte: counts from the first byte after the SYN, without
    /// wrap.
    pub stream_offset: u64,
    /// What an ACKD would say: stream offset of the first byte of the flow that the peer has not
    /// acknowledged. While data flows, no other command is needed.
    pub acked_offset: u64,
    /// When the host issued the SEND: microseconds of the host's monotonic clock.
    pub issued_us: u64,
    /// Pacing: the first packet leaves no earlier than this, on the same clock; 0, or any time
    /// before `issued_us`: at once. SENDs of the flow that come later wait behind it. Reading need
    /// not wait.
    ///
    /// A NIC stack holds a SEND for at most `not_before_us - issued_us` after it has taken it, so a
    /// clock that differs from the host's cannot hold it for longer than was meant, and never for
    /// longer than [`crate::limits::HOLD_US_MAX`]. A transport between machines translates all
    /// times on its way, so that neither stack sees a clock but the host's.
    pub not_before_us: u64,
    /// Microseconds already elapsed, at `issued_us`, within the millisecond that the header's
    /// timestamp option names (IO-TCP §3.5). Below 1000.
    pub tsval_fraction_us: u16,
    /// How many bytes of the last segment's file the stream goes on with behind this SEND, as far
    /// as the host knows and at least: the NIC stack may read them already. Zero if it does not, if
    /// the last segment is inline or sealed ([`Records::follow_bytes`] says it there), and for a
    /// retransmission.
    pub follow_bytes: u32,
    /// Largest TCP payload of one packet on the wire, in bytes. Not zero.
    pub mss: u16,
    /// Ethernet, IP and TCP header, complete with options; at most
    /// [`crate::limits::HEADER_BYTES_MAX`].
    pub header: &'a [u8],
    /// The payload, in order. May be empty: then the header goes alone (a FIN that must stay in
    /// order).
    pub segments: S,
}
