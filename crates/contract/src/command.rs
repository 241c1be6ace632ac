//! Commands: host stack to NIC stack.

use std::fmt;
use std::ops::Deref;

use crate::ids::{FileId, FlowId, SendId};
use crate::limits::SEGMENTS_MAX;
use crate::tls::{Key, Records};

/// What becomes of reads from a file that has grown since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Growth {
    /// They fail, as after any other change: nothing tells an append from a rewrite that is longer.
    #[default]
    Forbidden,
    /// They go on, up to the size at the open: the file's writer is known to append and to rewrite nothing.
    Allowed,
}

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
    /// LIST: tell what is in a directory below the root, or some of it. Answered by `Listed` or `OpenFailed`, and then the
    /// id is free again: a directory is not kept open, and nothing is remembered of it.
    List {
        /// The host's name for the directory, until the answer has come.
        file: FileId,
        /// Where to begin: zero, or where the part before has ended ([`crate::listing::Part::next`]).
        from: u64,
        /// Path relative to the root: any bytes but zero, no leading `/`; empty for the root itself.
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
    /// KEYGONE: no more records will be defined under the key. It is removed, and its memory overwritten, as soon as
    /// all that were have been acknowledged.
    KeyGone {
        /// The flow.
        flow: FlowId,
        /// The key's epoch.
        epoch: u16,
    },
    /// RECORDS: defines records of a flow, which SENDs then name by their place in the stream.
    Records(Records<'a>),
}

/// SEND: a finished packet header and what follows it.
///
/// The NIC stack cuts the payload into superpackets of at most its port's size. The header is that of
/// the first; each further one advances the sequence number. FIN and PSH go on the last. Length
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
    /// Stream offset of the first payload byte: counts from the first byte after the SYN, without wrap.
    pub stream_offset: u64,
    /// What an ACKD would say: stream offset of the first byte of the flow that the peer has not acknowledged.
    /// While data flows, no other command is needed.
    pub acked_offset: u64,
    /// When the host issued the SEND: microseconds of the host's monotonic clock.
    pub issued_us: u64,
    /// Pacing: the first packet leaves no earlier than this, on the same clock; 0, or any time before
    /// `issued_us`: at once. SENDs of the flow that come later wait behind it. Reading need not wait.
    ///
    /// A NIC stack holds a SEND for at most `not_before_us - issued_us` after it has taken it, so a clock that
    /// differs from the host's cannot hold it for longer than was meant, and never for longer than
    /// [`crate::limits::HOLD_US_MAX`]. A transport between machines translates all times on its way, so that
    /// neither stack sees a clock but the host's.
    pub not_before_us: u64,
    /// Microseconds already elapsed, at `issued_us`, within the millisecond that the header's
    /// timestamp option names (IO-TCP §3.5). Below 1000.
    pub tsval_fraction_us: u16,
    /// How many bytes of the last segment's file the stream goes on with behind this SEND, as far as the host knows
    /// and at least: the NIC stack may read them already. Zero if it does not, if the last segment is inline or
    /// sealed ([`Records::follow_bytes`] says it there), and for a retransmission.
    pub follow_bytes: u32,
    /// Largest TCP payload of one packet on the wire, in bytes. Not zero.
    pub mss: u16,
    /// Ethernet, IP and TCP header, complete with options; at most [`crate::limits::HEADER_BYTES_MAX`].
    pub header: &'a [u8],
    /// The payload, in order. May be empty: then the header goes alone (a FIN that must stay in order).
    pub segments: S,
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
    /// A range of records that RECORDS has defined, in a SEND only: those that lie in this place of the stream. May
    /// begin and end within a record. Not empty.
    Sealed {
        /// Length, in bytes.
        len: u32,
    },
}

/// The segments of a SEND or of RECORDS, held in place: building or decoding one does not allocate.
/// Reads as a slice.
#[derive(Clone)]
pub struct Segments<'a> {
    len: usize,
    slots: [Segment<'a>; SEGMENTS_MAX],
}

/// A SEND has [`SEGMENTS_MAX`] segments already. Nothing was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManySegments;

impl<'a> Segments<'a> {
    /// No segments.
    pub const fn new() -> Self {
        Segments {
            len: 0,
            slots: [Segment::Inline(&[]); SEGMENTS_MAX],
        }
    }

    /// Appends a segment.
    pub fn push(&mut self, segment: Segment<'a>) -> Result<(), TooManySegments> {
        let slot = self.slots.get_mut(self.len).ok_or(TooManySegments)?;
        *slot = segment;
        self.len += 1;
        Ok(())
    }

    /// The segments, in order.
    pub fn as_slice(&self) -> &[Segment<'a>] {
        &self.slots[..self.len]
    }

    /// Payload bytes of all segments together.
    pub fn payload_bytes(&self) -> u64 {
        self.iter().map(|segment| u64::from(segment.len())).sum()
    }
}

impl Segment<'_> {
    /// Length, in bytes.
    #[expect(clippy::len_without_is_empty, reason = "segments are not collections")]
    pub fn len(&self) -> u32 {
        match self {
            Segment::Inline(bytes) => u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            Segment::File { len, .. } | Segment::Sealed { len } => *len,
        }
    }
}

impl Default for Segments<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a> Deref for Segments<'a> {
    type Target = [Segment<'a>];

    fn deref(&self) -> &Self::Target {
        self.as_slice()
    }
}

impl fmt::Debug for Segments<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().fmt(f)
    }
}

impl PartialEq for Segments<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Segments<'_> {}

impl<'a, const N: usize> From<[Segment<'a>; N]> for Segments<'a> {
    fn from(segments: [Segment<'a>; N]) -> Self {
        const { assert!(N <= SEGMENTS_MAX, "more segments than a SEND may have") };
        segments.into_iter().collect()
    }
}

impl<'a> FromIterator<Segment<'a>> for Segments<'a> {
    /// # Panics
    /// If there are more than [`SEGMENTS_MAX`]; where that can be, use [`Segments::push`].
    fn from_iter<I: IntoIterator<Item = Segment<'a>>>(segments: I) -> Self {
        let mut collected = Self::new();
        for segment in segments {
            collected
                .push(segment)
                .expect("at most SEGMENTS_MAX segments");
        }
        collected
    }
}

impl<'s, 'a> IntoIterator for &'s Segments<'a> {
    type Item = &'s Segment<'a>;
    type IntoIter = std::slice::Iter<'s, Segment<'a>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for TooManySegments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a SEND takes at most {SEGMENTS_MAX} segments")
    }
}

impl std::error::Error for TooManySegments {}
