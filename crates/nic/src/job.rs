//! A SEND that has been accepted; or a QSEND, or a PREPARE.

use std::ops::Range;

use contract::limits::{HEADER_BYTES_MAX, HOLD_US_MAX, SEND_BYTES_MAX};
use contract::{FlowId, RejectReason, Segment, Send, SendId};
use wire::frame::HeaderMut;
use wire::ip::SUPERPACKET_BYTES_MAX;

use crate::files::{FileState, Files};
use crate::follow::Follow;
use crate::sealed::SealedStream;
use crate::slab::Key;

/// Command that a job carries out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobKind {
    /// A SEND: bytes of a stream.
    Stream,
    /// A QSEND: datagrams that are to be sealed.
    Datagrams,
    /// A PREPARE: its blocks are wanted, and nothing leaves.
    Prepare {
        /// The requesting flow. The job is in a flow of its own, so that no other job waits for it.
        asker: Key,
    },
}

/// A packet of a QSEND; its payload position is the position of its datagram.
#[derive(Clone, Debug)]
pub(crate) struct JobPacket {
    pub(crate) number: u64,
    pub(crate) generation: u32,
    /// Sealed packets of the handshake before the packet, in bytes.
    pub(crate) prefix_bytes: usize,
    pub(crate) header_bytes: usize,
    /// The contents of its datagram without the tag, as a range of [`Job::segments`].
    pub(crate) segments: Range<usize>,
}

/// A SEND on its way: an own copy of all that was inline in the command.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) kind: JobKind,
    pub(crate) id: SendId,
    pub(crate) flow: FlowId,
    pub(crate) stream_offset: u64,
    pub(crate) issued_us: u64,
    pub(crate) tsval_fraction_us: u16,
    /// Its first superpacket leaves no earlier, on the worker's clock; 0 once that has passed.
    pub(crate) not_before_us: u64,
    /// Payload bytes of each packet but the last: of each datagram, of a QSEND.
    pub(crate) mss: u16,
    header: [u8; HEADER_BYTES_MAX],
    header_len: usize,
    /// Payload bytes of all packets. For a QSEND, the datagrams as they leave: headers are inline,
    /// tags in no segment.
    pub(crate) payload_len: usize,
    /// Payload bytes in each superpacket but the last: a multiple of `mss` if there are several
    /// packets.
    pub(crate) superpacket_payload: usize,
    pub(crate) segments: Vec<JobSegment>,
    pub(crate) inline: Vec<u8>,
    /// Packets of a QSEND.
    pub(crate) packets: Vec<JobPacket>,
    pub(crate) cursor: Cursor,
    /// The stream's next bytes after the job, if they are in the same file.
    pub(crate) follow: Option<Follow>,
}

/// A piece of the payload.
#[derive(Clone, Copy, Debug)]
pub(crate) enum JobSegment {
    /// The next bytes of [`Job::inline`].
    Inline { start: usize, len: usize },
    /// A range of a file.
    File { file: Key, offset: u64, len: usize },
    /// The bytes of the flow's sealed stream at its position.
    Sealed { len: usize },
}

impl JobSegment {
    /// A range of a file that is open, or is being opened: then it may turn out to be shorter.
    pub(crate) fn of_file(
        files: &Files,
        file: Key,
        offset: u64,
        len: u32,
    ) -> Result<JobSegment, RejectReason> {
        let end = offset
            .checked_add(u64::from(len))
            .ok_or(RejectReason::RangePastEnd)?;
        if let Some(FileState::Open { size, .. }) = files.get(file).map(|f| f.state)
            && end > size
        {
            return Err(RejectReason::RangePastEnd);
        }
        let len = len as usize;
        Ok(JobSegment::File { file, offset, len })
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            JobSegment::Inline { len, .. }
            | JobSegment::File { len, .. }
            | JobSegment::Sealed { len } => *len,
        }
    }
}

/// How far a job has been cut into superpackets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// Payload bytes before it.
    pub(crate) payload: usize,
    /// The segment it is in.
    pub(crate) segment: usize,
    /// Bytes of the segment before the cursor.
    pub(crate) within: usize,
}

impl Job {
    /// An empty job, to be filled by [`Job::accept`].
    pub(crate) fn new() -> Box<Job> {
        Box::new(Job {
            kind: JobKind::Stream,
            id: SendId(0),
            flow: FlowId(0),
            stream_offset: 0,
            issued_us: 0,
            tsval_fraction_us: 0,
            not_before_us: 0,
            mss: 0,
            header: [0; HEADER_BYTES_MAX],
            header_len: 0,
            payload_len: 0,
            superpacket_payload: 0,
            segments: Vec::new(),
            inline: Vec::new(),
            packets: Vec::new(),
            cursor: Cursor::default(),
            follow: None,
        })
    }

    /// An empty job of another command.
    pub(crate) fn reset(&mut self, kind: JobKind, id: SendId, flow: FlowId, issued_us: u64) {
        self.kind = kind;
        self.id = id;
        self.flow = flow;
        self.stream_offset = 0;
        self.issued_us = issued_us;
        self.tsval_fraction_us = 0;
        self.not_before_us = 0;
        self.mss = 0;
        self.header_len = 0;
        self.payload_len = 0;
        self.superpacket_payload = 0;
        self.segments.clear();
        self.inline.clear();
        self.packets.clear();
        self.cursor = Cursor::default();
        self.follow = None;
    }

    /// Copies the header; returns the copy.
    pub(crate) fn set_header(&mut self, header: &[u8]) -> Result<&mut [u8], RejectReason> {
        self.header_len = header.len();
        let copy = self.header.get_mut(..header.len());
        let copy = copy.ok_or(RejectReason::BadHeader)?;
        copy.copy_from_slice(header);
        Ok(copy)
    }

    /// Takes over a SEND, if it can be carried out by a port that cuts packets of at most
    /// `superpacket_max(ipv6)` bytes. Does not acquire the files and the sealed ranges yet.
    pub(crate) fn accept(
        &mut self,
        send: &Send<'_>,
        superpacket_max: impl Fn(bool) -> usize,
        files: &Files,
        sealed: Option<&SealedStream>,
    ) -> Result<(), RejectReason> {
        if send.mss == 0 {
            return Err(RejectReason::Malformed);
        }
        self.reset(JobKind::Stream, send.id, send.flow, send.issued_us);
        self.stream_offset = send.stream_offset;
        self.tsval_fraction_us = send.tsval_fraction_us.min(999);
        self.mss = send.mss;

        let header = self.set_header(send.header)?;
        let header = HeaderMut::parse(header).map_err(|_| RejectReason::BadHeader)?;
        let mss = usize::from(send.mss);
        let ip_bytes_max = superpacket_max(header.ipv6()).min(SUPERPACKET_BYTES_MAX);
        let payload_max = header.payload_max(ip_bytes_max);
        // A port whose limit is below one host packet has a smaller link below it, which will
        // report that.
        self.superpacket_payload = (payload_max - payload_max % mss).max(mss.min(payload_max));

        for segment in send.segments.iter() {
            let segment = match *segment {
                Segment::Inline(bytes) => {
                    let start = self.inline.len();
                    self.inline.extend_from_slice(bytes);
                    let len = bytes.len();
                    JobSegment::Inline { start, len }
                }
                Segment::File { file, offset, len } => {
                    let file = files.find(file).ok_or(RejectReason::UnknownFile)?;
                    JobSegment::of_file(files, file, offset, len)?
                }
                Segment::Sealed { len } => {
                    let len = len as usize;
                    let start = send.stream_offset.saturating_add(self.payload_len as u64);
                    if !sealed.is_some_and(|sealed| sealed.covers(start, len)) {
                        return Err(RejectReason::UnknownRecords);
                    }
                    JobSegment::Sealed { len }
                }
            };
            self.payload_len += segment.len();
            if self.payload_len > SEND_BYTES_MAX {
                return Err(RejectReason::Malformed);
            }
            self.segments.push(segment);
        }
        if self.payload_len > 0 && self.superpacket_payload == 0 {
            return Err(RejectReason::BadHeader);
        }
        self.follow = match (self.segments.last(), send.follow_bytes) {
            (Some(&JobSegment::File { file, offset, len }), bytes @ 1..) => Some(Follow {
                file,
                offset: offset + len as u64,
                bytes: bytes.into(),
            }),
            _ => None,
        };
        Ok(())
    }

    /// Holds the job until `not_before_us`. True if it asks for a longer hold than is granted.
    pub(crate) fn hold(&mut self, not_before_us: u64, now_us: u64) -> bool {
        let asked_us = not_before_us.saturating_sub(self.issued_us);
        let granted_us = asked_us.min(HOLD_US_MAX);
        self.not_before_us = not_before_us.min(now_us.saturating_add(granted_us));
        granted_us < asked_us
    }

    /// The header as the host sent it, with the room behind it, and its length in bytes.
    #[inline]
    pub(crate) fn header_and_room(&self) -> (&[u8; HEADER_BYTES_MAX], usize) {
        (&self.header, self.header_len)
    }

    /// The start of the header as the host sent it, with room behind it if it is shorter.
    #[inline]
    pub(crate) fn header_start<const BYTES: usize>(&self) -> &[u8; BYTES] {
        const { assert!(BYTES <= HEADER_BYTES_MAX) };
        self.header.first_chunk().expect("it is no longer")
    }

    /// The header as the host sent it.
    pub(crate) fn header(&self) -> &[u8] {
        &self.header[..self.header_len]
    }

    /// Returns the files that the job needs, once for each run of segments of the same file.
    pub(crate) fn files(&self) -> impl Iterator<Item = Key> {
        let mut last = None;
        self.segments
            .iter()
            .filter_map(move |segment| match segment {
                JobSegment::File { file, .. } if last.replace(*file) != Some(*file) => Some(*file),
                _ => None,
            })
    }

    /// The ranges of the sealed stream that the job needs: where they begin, and their length.
    pub(crate) fn sealed(&self) -> impl Iterator<Item = (u64, usize)> {
        let mut offset = self.stream_offset;
        self.segments.iter().filter_map(move |segment| {
            let start = offset;
            offset += segment.len() as u64;
            match *segment {
                JobSegment::Sealed { len } => Some((start, len)),
                JobSegment::Inline { .. } | JobSegment::File { .. } => None,
            }
        })
    }

    /// True if the job ends with sealed bytes.
    pub(crate) fn ends_sealed(&self) -> bool {
        matches!(self.segments.last(), Some(JobSegment::Sealed { .. }))
    }
}
