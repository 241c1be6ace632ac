//! Commands: host stack to NIC stack.

use crate::ids::{FileId, FlowId, SendId};

/// What the host stack asks of the NIC stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// Open a regular file below the root. Answered by `Opened` or `OpenFailed`.
    /// A SEND may name the file before the answer has come.
    Open {
        /// The host's name for the file from now on.
        file: FileId,
        /// Path relative to the root: any bytes but zero, not empty, no leading `/`.
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
        /// The flow is over: drop all that is queued or retained for it.
        last: bool,
    },
}

/// SEND: a finished packet header and what follows it.
///
/// The NIC stack cuts the payload into superpackets of at most its port's size. The header is that of
/// the first; each further one advances the sequence number. FIN and PSH go on the last. Length
/// fields and checksums are the NIC stack's work; their value in `header` is ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Send<'a> {
    /// Comes back in the departure.
    pub id: SendId,
    /// SENDs of a flow depart in the order in which they were issued.
    pub flow: FlowId,
    /// Stream offset of the first payload byte: counts from the first byte after the SYN, without wrap.
    pub stream_offset: u64,
    /// When the host issued the SEND: microseconds of the host's monotonic clock.
    pub issued_us: u64,
    /// Microseconds already elapsed, at `issued_us`, within the millisecond that the header's
    /// timestamp option names (IO-TCP §3.5). Below 1000.
    pub tsval_fraction_us: u16,
    /// Largest TCP payload of one packet on the wire, in bytes. Not zero.
    pub mss: u16,
    /// Ethernet, IP and TCP header, complete with options; at most [`crate::limits::HEADER_BYTES_MAX`].
    pub header: &'a [u8],
    /// The payload, in order. May be empty: then the header goes alone (a FIN that must stay in order).
    pub segments: Vec<Segment<'a>>,
}

/// A piece of a SEND's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segment<'a> {
    /// Bytes that the host has.
    Inline(&'a [u8]),
    /// A range of an open file. Not empty.
    File {
        /// The file.
        file: FileId,
        /// Offset of the first byte.
        offset: u64,
        /// Length, in bytes.
        len: u32,
    },
}
