//! Events: NIC stack to host stack.

use crate::file::FileMeta;
use crate::ids::{FileId, FlowId, SendId};
use crate::listing::Part;
use crate::parting::{PartEnd, PartRefusal};
use crate::quic::QuicReceived;
use crate::splicing::{SpliceEndReason, SpliceOutcome, SpliceProgress, SpliceRefusal};
use crate::tls::Tag;

/// An event of the NIC stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// OPEN has succeeded.
    Opened {
        /// The file.
        file: FileId,
        /// The result of `fstat`.
        meta: FileMeta,
    },
    /// OPEN, or LIST, has failed; the id is free again.
    OpenFailed {
        /// The file.
        file: FileId,
        /// `errno` of Linux, such as `ENOENT`; `EISDIR` for a directory, `EACCES` for anything else
        /// that is not a regular file. For LIST, `ENOTDIR` if it is not a directory, and `EBUSY` if
        /// too many are being read.
        errno: u16,
    },
    /// LIST has succeeded; the id is free again.
    Listed {
        /// The directory.
        file: FileId,
        /// Its content, or part of its content: regular files and directories that OPEN and LIST
        /// could reach. A symbolic link appears as its target, unless that is missing or outside
        /// the root.
        part: Box<Part>,
    },
    /// The echo: all packets of a SEND have been handed to the port.
    Departed {
        /// The SEND.
        send: SendId,
        /// Its flow.
        flow: FlowId,
        /// Time of departure, in microseconds of the host's monotonic clock.
        departed_us: u64,
    },
    /// A SEND or QSEND has failed while reading. Some of its packets may have departed. Later SENDs
    /// of the flow are dropped silently until ACKD with `last`. A failed PREPARE has no such
    /// effect.
    ReadFailed {
        /// The SEND, QSEND or PREPARE.
        send: SendId,
        /// Its flow.
        flow: FlowId,
        /// The file.
        file: FileId,
        /// Where reading failed, in bytes from the start of the file.
        offset: u64,
        /// `errno` of Linux; `ENODATA` if the file ends within the range, `ESTALE` if the file has
        /// changed since OPEN.
        errno: u16,
    },
    /// Records have been sealed for the first time. The event is in the ring before any byte of the
    /// records leaves: a host that has read all events of a NIC stack that has ended knows the tag
    /// of every record that may have left in part. Over Ethernet the event can be lost with the
    /// session: then a record of a SEND without a tag must not be sealed again, unless the last
    /// event was [`Event::Ended`].
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
    /// A SEND has failed: sealing a record again would not reproduce its first sealing, because the
    /// file has changed. No byte of the second sealing has left, and later SENDs of the flow are
    /// dropped silently until ACKD with `last`.
    SealMismatch {
        /// The SEND. Some of its packets may have departed.
        send: SendId,
        /// Its flow.
        flow: FlowId,
        /// The key of the record.
        epoch: u16,
        /// Its number.
        number: u64,
    },
    /// The NIC stack has rejected a command.
    Rejected {
        /// Why.
        reason: RejectReason,
        /// The id in the command, of any kind; zero if it could not be read.
        id: u64,
    },
    /// The NIC stack has ended: it sends nothing more, and this is the worker's last event. The
    /// relay on its machine reports it instead, once all earlier events are on their way to the
    /// host. On one machine, the end of its socket reports it.
    Ended,
    /// The worker's load over the last [`crate::limits::LOAD_PERIOD_US`] or more. Reported while it
    /// is not zero, and once when it becomes zero.
    Load {
        /// Time with work, in microseconds; at most `elapsed_us`.
        busy_us: u32,
        /// Length of the period, in microseconds; not zero.
        elapsed_us: u32,
    },
    /// A frame for the host, from a FRAME or from the NIC stack's port. May be lost, as frames may.
    Frame {
        /// From the Ethernet header on: 1 to [`crate::limits::FRAME_BYTES_MAX`]. Its checksums were
        /// verified.
        bytes: Box<[u8]>,
    },
    /// The NIC stack refuses a parted connection, and returns it to the host unchanged.
    PartRefused {
        /// The flow in its PART.
        flow: FlowId,
        /// The reason.
        reason: PartRefusal,
    },
    /// The worker has accepted these flows of PART, SPLICE and QRXKEY, and has its own port: a
    /// packet filter may steer their frames there from now on. Precedes all other events of these
    /// flows.
    FlowsTaken {
        /// 1 to [`crate::limits::FLOWS_TAKEN_MAX`].
        flows: Box<[FlowId]>,
    },
    /// Parted connections have ended. Their ids are free again.
    PartEnded {
        /// The connections, and how they ended: 1 to [`crate::limits::PART_ENDS_MAX`].
        ends: Box<[PartEnd]>,
    },
    /// The NIC stack refuses to join two connections, and returns them to the host unchanged.
    SpliceRefused {
        /// The flow in its SPLICE.
        flow: FlowId,
        /// The reason.
        reason: SpliceRefusal,
    },
    /// Progress of splices: about once a second of each while bytes pass, each time that 256 MiB
    /// have passed, and at once on a FIN.
    SpliceProgress {
        /// The splices and their progress: 1 to [`crate::limits::SPLICE_PROGRESS_MAX`].
        progress: Box<[SpliceProgress]>,
    },
    /// A SPLICEMSS was accepted: packets to the peer of a leg are shorter from now on.
    SpliceMssReduced {
        /// The flow in its SPLICE.
        flow: FlowId,
        /// The leg: 0 or 1.
        leg: u8,
        /// As [`crate::splicing::SpliceLeg::mss`]. Not zero.
        mss: u16,
    },
    /// A splice has ended. Its id is free again.
    SpliceEnded {
        /// The bytes passed, and the state of each leg.
        outcome: Box<SpliceOutcome>,
        /// How it ended.
        reason: SpliceEndReason,
    },
    /// A splice is undone, and both connections are the host's again: all bytes passed are
    /// acknowledged.
    Unspliced {
        /// The bytes passed, and the state of each leg.
        outcome: Box<SpliceOutcome>,
    },
    /// The worker answers SYNs as SETUP defines.
    SetupReady {
        /// The epoch of the SETUP.
        epoch: u64,
        /// Id of the worker's port in packet filters, for SYNs and frames of flows. Zero if frames
        /// reach it only by FRAME.
        steering: u32,
    },
    /// READY: the range of a PREPARE is in memory.
    Ready {
        /// The PREPARE.
        prepare: SendId,
        /// Its flow.
        flow: FlowId,
    },
    /// QRX: opened packets of a QUIC connection. Their numbers may be out of order, and repeat.
    QuicReceived(Box<QuicReceived>),
}

/// The reason for rejecting a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RejectReason {
    /// The record does not decode, or a packet of the QSEND needs more file blocks than the NIC
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
    /// The packet header is not Ethernet, IPv4 or IPv6, and TCP (of a QSEND, UDP).
    BadHeader = 6,
    /// Too many flows are in use.
    TooManyFlows = 7,
    /// RECORDS or QSEND names a key that the flow does not have, or that is being removed. From
    /// here on, the id is the flow's unless stated; that of a QSEND is its own.
    UnknownKey = 8,
    /// KEY or QKEY names an epoch or a generation that is not above all earlier ones of the flow.
    KeyConflict = 9,
    /// The flow has [`crate::limits::KEYS_MAX`] keys, or there is no memory for another.
    TooManyKeys = 10,
    /// RECORDS names a record number or stream offset that is not behind all definitions, and does
    /// not repeat one.
    RecordsConflict = 11,
    /// Too many records are defined and unacknowledged, for the flow or altogether.
    TooManyRecords = 12,
    /// The SEND (the id is its own) names a stream offset without a record.
    UnknownRecords = 13,
    /// RECORDS names a file that is not open, or a range past its end.
    RecordsOutOfFile = 14,
    /// The QSEND (the id is its own) has a packet number not above all sealed for the flow, or
    /// below the floor of its key.
    NumberReused = 15,
    /// QKEY, QSEND or PREPARE reached a NIC stack without UDP.
    NoUdp = 16,
}
