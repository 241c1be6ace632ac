//! Events: NIC stack to host stack.

use crate::file::FileMeta;
use crate::ids::{FileId, FlowId, SendId};
use crate::listing::Part;
use crate::parting::{PartEnd, PartRefusal};
use crate::quic::QuicReceived;
use crate::splicing::{SpliceEndReason, SpliceOutcome, SpliceProgress, SpliceRefusal};
use crate::tls::Tag;

/// What the NIC stack reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// OPEN has succeeded.
    Opened {
        /// The file.
        file: FileId,
        /// What `fstat` said.
        meta: FileMeta,
    },
    /// OPEN, or LIST, has failed; the id is free again.
    OpenFailed {
        /// The file.
        file: FileId,
        /// `errno` of Linux, such as `ENOENT`; `EISDIR` for a directory, `EACCES` for anything else
        /// that is not a regular file. Of LIST, `ENOTDIR` for anything that is no directory, and
        /// `EBUSY` if too many are being read.
        errno: u16,
    },
    /// LIST has succeeded; the id is free again.
    Listed {
        /// The directory.
        file: FileId,
        /// What is in it, or some of that: regular files and directories that OPEN and LIST could
        /// reach. A symbolic link appears as what it leads to, unless that is out of the root or
        /// nothing.
        part: Box<Part>,
    },
    /// The echo: all packets of a SEND have been handed to the port.
    Departed {
        /// The SEND.
        send: SendId,
        /// Its flow.
        flow: FlowId,
        /// When, in microseconds of the host's monotonic clock.
        departed_us: u64,
    },
    /// A SEND or QSEND has failed while reading. Part of it may have departed. Later SENDs of the
    /// flow are dropped silently until ACKD with `last`. Or a PREPARE has failed, and no more than
    /// that.
    ReadFailed {
        /// The SEND, QSEND or PREPARE.
        send: SendId,
        /// Its flow.
        flow: FlowId,
        /// The file.
        file: FileId,
        /// Where reading failed, in bytes from the start of the file.
        offset: u64,
        /// `errno` of Linux; `ENODATA` if the file ends before the range does, `ESTALE` if the file
        /// has changed since it was opened.
        errno: u16,
    },
    /// Records have been sealed for the first time. Is in the ring before any byte of them leaves:
    /// a host that has read all events of a NIC stack that has ended knows the tag of every record
    /// of which anything has left. Over Ethernet the event can be lost with the session: there, a
    /// record of a SEND that has no tag must not be sealed again, unless the last event was
    /// [`Event::Ended`].
    Sealed {
        /// Their flow.
        flow: FlowId,
        /// Their key.
        epoch: u16,
        /// Number of the first.
        number: u64,
        /// Tags of this and the following records: 1 to [`crate::limits::SEALED_TAGS_MAX`].
        tags: Box<[Tag]>,
    },
    /// A SEND has failed: sealing a record again would not yield the bytes of its first sealing,
    /// because the file has changed. Nothing of the second sealing has left, and nothing of the
    /// flow will: later SENDs are dropped silently until ACKD with `last`.
    SealMismatch {
        /// The SEND. Part of it may have departed.
        send: SendId,
        /// Its flow.
        flow: FlowId,
        /// The key of the record.
        epoch: u16,
        /// Its number.
        number: u64,
    },
    /// A command that could not be carried out as it stands.
    Rejected {
        /// Why.
        reason: RejectReason,
        /// The id in the command, whatever its kind; zero if there was none to read.
        id: u64,
    },
    /// The NIC stack has ended: nothing leaves it any more, and this worker says nothing after
    /// this. The relay on its machine says so in its place, when all that it had said is on its way
    /// to the host. On one machine, the end of its socket says so.
    Ended,
    /// How busy the worker has been in the last [`crate::limits::LOAD_PERIOD_US`] or more. Comes
    /// again while that is something, and once more when it is nothing.
    Load {
        /// Time in which it had work, in microseconds; at most `elapsed_us`.
        busy_us: u32,
        /// All time that has passed, in microseconds; not zero.
        elapsed_us: u32,
    },
    /// A frame that the NIC stack was given, or that has arrived at its port, and that is the
    /// host's. May be lost, as frames may.
    Frame {
        /// From the Ethernet header on: 1 to [`crate::limits::FRAME_BYTES_MAX`]. Its checksums were
        /// verified.
        bytes: Box<[u8]>,
    },
    /// The NIC stack does not take a connection that the host has parted with: it is the host's
    /// again, as it was.
    PartRefused {
        /// The flow in its PART.
        flow: FlowId,
        /// Why.
        reason: PartRefusal,
    },
    /// The worker has these flows of PART, SPLICE and QRXKEY, and a port of its own: a packet
    /// filter may give it their frames from now on. Comes before anything else is said of them.
    FlowsTaken {
        /// 1 to [`crate::limits::FLOWS_TAKEN_MAX`].
        flows: Box<[FlowId]>,
    },
    /// Connections that the host has parted with have ended. Each id may be used again.
    PartEnded {
        /// Which, and how: 1 to [`crate::limits::PART_ENDS_MAX`].
        ends: Box<[PartEnd]>,
    },
    /// The NIC stack does not join two connections: they are the host's again, as they were.
    SpliceRefused {
        /// The flow in its SPLICE.
        flow: FlowId,
        /// Why.
        reason: SpliceRefusal,
    },
    /// What has passed of splices. Comes about once a second of each while something passes, and
    /// at once when a FIN has.
    SpliceProgress {
        /// Which, and how much: 1 to [`crate::limits::SPLICE_PROGRESS_MAX`].
        progress: Box<[SpliceProgress]>,
    },
    /// A splice has ended. Its id may be used again.
    SpliceEnded {
        /// What has passed, and where each leg is.
        outcome: Box<SpliceOutcome>,
        /// How it ended.
        reason: SpliceEndReason,
    },
    /// A splice is no more, and both connections are the host's again: all that has passed is
    /// acknowledged.
    Unspliced {
        /// What has passed, and where each leg is.
        outcome: Box<SpliceOutcome>,
    },
    /// The worker answers SYNs as SETUP says.
    SetupReady {
        /// That of the SETUP.
        epoch: u64,
        /// What a packet filter calls the worker's port: SYNs, and frames of flows, can be steered
        /// there. Zero if no frames reach it but by FRAME.
        steering: u32,
    },
    /// READY: what PREPARE has asked for is in memory.
    Ready {
        /// The PREPARE.
        prepare: SendId,
        /// Its flow.
        flow: FlowId,
    },
    /// QRX: packets of a QUIC connection have arrived, and are opened. Its numbers may come in any
    /// order, and again.
    QuicReceived(Box<QuicReceived>),
}

/// Why a command was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RejectReason {
    /// The record does not decode; or a packet of the QSEND needs more blocks of files than the NIC
    /// stack has memory for.
    Malformed = 1,
    /// The file id is not open.
    UnknownFile = 2,
    /// The file id is open already.
    FileInUse = 3,
    /// Too many files are open.
    TooManyFiles = 4,
    /// The file range reaches past the end of the file.
    RangePastEnd = 5,
    /// The packet header is not Ethernet, IPv4 or IPv6, and TCP; or of a QSEND, UDP.
    BadHeader = 6,
    /// Too many flows are in use.
    TooManyFlows = 7,
    /// RECORDS or QSEND names a key that the flow does not have, or that is going. From here on,
    /// the id is the flow's unless said otherwise; that of a QSEND is its own.
    UnknownKey = 8,
    /// KEY or QKEY names an epoch or a generation that is not above all that the flow has had.
    KeyConflict = 9,
    /// The flow has [`crate::limits::KEYS_MAX`] keys, or there is no memory for another.
    TooManyKeys = 10,
    /// RECORDS names a record number or a place in the stream that is not behind all that were
    /// defined, and is not the same definition again.
    RecordsConflict = 11,
    /// There are too many records defined and not acknowledged, for the flow or altogether.
    TooManyRecords = 12,
    /// The SEND (the id is its own) names a place in the stream where no record is defined.
    UnknownRecords = 13,
    /// RECORDS names a file that is not open, or a range that reaches past its end.
    RecordsOutOfFile = 14,
    /// The QSEND (the id is its own) has a packet number that is not above all that were sealed of
    /// the flow, or is below the floor of its key.
    NumberReused = 15,
    /// QKEY, QSEND or PREPARE has come to a NIC stack that does not send UDP.
    NoUdp = 16,
}
