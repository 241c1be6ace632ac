//! A flow: SENDs that depart in order, independent of all other flows.
//!
//! ```text
//!  jobs      [ A ][ B ][ C ]          SENDs accepted, in order
//!  planned   [a0][a1][b0]             superpackets cut, their blocks in memory or on their way
//!  pieces    . . . . . . .            what they consist of; of datagrams, ranges of files only
//! ```
//!
//! Planning runs ahead of departure, so that reads overlap; departure takes from the front.

use std::collections::VecDeque;

use contract::{FileId, FlowId};

use crate::blocks::{BlockIndex, Blocks, Content};
use crate::departed::Departed;
use crate::job::{Job, JobKind};
use crate::quic::QuicFlow;
use crate::read_ahead::ReadAhead;
use crate::retention::Retention;
use crate::sealed::SealedStream;
use crate::segment::Place;
use crate::wheel;

/// State of a flow.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) id: FlowId,
    /// SENDs whose last superpacket has not departed.
    pub(crate) jobs: VecDeque<Box<Job>>,
    /// Index in `jobs` of the one being cut.
    pub(crate) cutting: usize,
    pub(crate) planned: VecDeque<Planned>,
    pub(crate) pieces: VecDeque<Piece>,
    pub(crate) retention: Retention,
    pub(crate) read_ahead: ReadAhead,
    /// From the first KEY on.
    pub(crate) sealed: Option<Box<SealedStream>>,
    /// From the first QKEY or PREPARE on.
    pub(crate) quic: Option<Box<QuicFlow>>,
    /// How far its stream has departed, from the first SEND on.
    pub(crate) departed: Option<Box<Departed>>,
    /// The peer has acknowledged its stream up to here.
    pub(crate) acked_offset: u64,
    /// A SEND has failed: commands until ACKD with `last` are dropped.
    pub(crate) failed: bool,
    /// It is in the queue of flows to plan.
    pub(crate) wants_to_plan: bool,
    /// It is in the queue of flows to send.
    pub(crate) wants_to_send: bool,
    /// It is on the wheel: its first superpacket could depart, but must not yet.
    pub(crate) held: Option<wheel::Handle>,
}

/// A superpacket that has been cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planned {
    pub(crate) place: Place,
    /// Number of the flow's pieces that it has.
    pub(crate) pieces: usize,
    /// Some of the pieces are sealed.
    pub(crate) sealed: bool,
}

/// A piece of a superpacket's payload.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Piece {
    /// Bytes of the job's own.
    Inline { start: usize, len: usize },
    /// Bytes of a block, which has the superpacket as a user.
    Block {
        block: BlockIndex,
        start: usize,
        len: usize,
        /// For the report if reading has failed.
        origin: Origin,
    },
    /// A range of one run of records. The next pieces are the plaintext of all records that it lies
    /// in.
    Sealed {
        /// Offset in the stream.
        offset: u64,
        len: usize,
        /// Number of pieces.
        plaintext: usize,
    },
    /// Plaintext: bytes of the run's own.
    PlainInline { start: usize, len: usize },
    /// Plaintext: bytes of a block, which has the superpacket as a user.
    PlainBlock {
        block: BlockIndex,
        start: usize,
        len: usize,
        /// For the report if reading has failed.
        origin: Origin,
        /// Where the last record that needs the block ends in the stream.
        record_end: u64,
    },
    /// Unavailable bytes: the file is not open, or ends before.
    Missing { origin: Origin, errno: u16 },
}

/// The origin of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) file: FileId,
    /// Offset in the file: of the block for a piece of a block, else of the byte that is missing.
    pub(crate) offset: u64,
}

/// The state of a flow's first superpacket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Front {
    /// Nothing has been planned.
    Empty,
    /// A read is under way.
    Waiting,
    /// It can depart.
    Ready,
    /// It never can.
    Failed { origin: Origin, errno: u16 },
}

const _: () = assert!(
    size_of::<Flow>() <= 256,
    "idle connections by the hundred thousand have a flow each"
);

impl Flow {
    pub(crate) fn new(id: FlowId) -> Flow {
        Flow {
            id,
            jobs: VecDeque::new(),
            cutting: 0,
            planned: VecDeque::new(),
            pieces: VecDeque::new(),
            retention: Retention::default(),
            read_ahead: ReadAhead::START,
            sealed: None,
            quic: None,
            departed: None,
            acked_offset: 0,
            failed: false,
            wants_to_plan: false,
            wants_to_send: false,
            held: None,
        }
    }

    /// True if nothing would be lost by forgetting the flow.
    pub(crate) fn is_idle(&self) -> bool {
        self.jobs.is_empty()
            && self.retention.is_empty()
            && self.sealed.is_none()
            && self.quic.is_none()
            && !self.failed
    }

    /// Returns the kind of its first job.
    pub(crate) fn kind(&self) -> Option<JobKind> {
        self.jobs.front().map(|job| job.kind)
    }

    /// True if the first SEND has departed in part.
    pub(crate) fn has_begun(&self) -> bool {
        match (self.planned.front(), self.jobs.front()) {
            (Some(next), _) => next.place.start > 0,
            (None, Some(job)) => job.cursor.payload > 0,
            (None, None) => false,
        }
    }

    /// True if there is something to cut.
    pub(crate) fn has_uncut(&self) -> bool {
        self.cutting < self.jobs.len()
    }

    /// Returns the state of the first superpacket.
    pub(crate) fn front(&self, blocks: &Blocks) -> Front {
        let Some(planned) = self.planned.front() else {
            return Front::Empty;
        };
        for piece in self.pieces.range(..planned.pieces) {
            match *piece {
                Piece::Inline { .. } | Piece::Sealed { .. } | Piece::PlainInline { .. } => {}
                Piece::Missing { origin, errno } => return Front::Failed { origin, errno },
                Piece::Block {
                    block,
                    start,
                    len,
                    origin,
                }
                | Piece::PlainBlock {
                    block,
                    start,
                    len,
                    origin,
                    ..
                } => match blocks.content(block) {
                    Content::Reading => return Front::Waiting,
                    Content::Ready { valid, failure } if valid < start + len => {
                        let offset = origin.offset + valid.max(start) as u64;
                        return Front::Failed {
                            origin: Origin { offset, ..origin },
                            errno: failure.unwrap_or(0),
                        };
                    }
                    Content::Ready { .. } => {}
                },
            }
        }
        Front::Ready
    }

    /// Records that a job has departed completely.
    #[inline]
    pub(crate) fn on_job_departed(&mut self, job: &Job) {
        match &mut self.departed {
            _ if job.kind != JobKind::Stream => {}
            Some(departed) => departed.advance(job),
            None => self.on_first_departed(job),
        }
    }

    #[cold]
    fn on_first_departed(&mut self, job: &Job) {
        let departed = Departed::of(job, job.payload_len as u32);
        self.departed = Some(Box::new(departed));
    }

    /// Returns how far the stream has departed, including the SEND that is departing. `None` if no
    /// byte has departed.
    pub(crate) fn departed(&self) -> Option<Departed> {
        let so_far = self.departed.as_deref().cloned();
        let begun = self.jobs.front().filter(|job| job.kind == JobKind::Stream);
        let Some(job) = begun.filter(|_| self.has_begun()) else {
            return so_far;
        };
        let next = self.planned.front().map(|planned| planned.place.start);
        let bytes = next.unwrap_or(job.cursor.payload);
        let departing = Departed::of(job, bytes as u32).without_fin();
        match so_far {
            Some(so_far) if so_far.end_offset() >= departing.end_offset() => Some(so_far),
            _ => Some(departing),
        }
    }
}
