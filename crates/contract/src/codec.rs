//! Commands and events as bytes.
//!
//! Every message is a record of fixed size, followed by its variable part. All integers are
//! little-endian. A record begins with its length, its kind, and the id that a rejection names:
//!
//! | Offset | Bytes | What |
//! |---|---|---|
//! | 0 | 4 | length of the message, record and variable part, in bytes |
//! | 4 | 1 | kind: commands 1–9, 13–19 and 24–31, events 129–148, 150 and 151 |
//! | 5 | 3 | zero |
//! | 8 | 4 or 8 | id: of the file, the command or the flow |
//!
//! The id is that of
//!
//! - the file in OPEN, OPENPASSED, LIST and CLOS;
//! - the SEND, QSEND or PREPARE;
//! - the flow in QKEY, QKEYGONE, QRELEASE, QRXKEY, QCID, QRXKEYGONE, QRX, ACKD, KEY, KEYGONE,
//!   RECORDS, PART, PARTGONE, part refused, SPLICE, SPLICEMSS, UNSPLICE, splice refused, splice mss
//!   reduced, splice ended and unspliced.
//!
//! | Message | Variable part |
//! |---|---|
//! | OPEN, LIST | the path |
//! | SEND | one record of 24 bytes per segment; the packet header; the inline segments' bytes |
//! | RECORDS | one record of 24 bytes per segment; 16 bytes per tag; the inline segments' bytes |
//! | sealed | 16 bytes per tag |
//! | listed | one record of 20 bytes per entry, each with the name behind it |
//! | FRAME, frame | the frame |
//! | PART | the packet header |
//! | part ended | one record of 16 bytes per end |
//! | SPLICE | the packet headers of both legs |
//! | splice progress | one record of 24 bytes per splice |
//! | SETUP | one record of 24 bytes per listener |
//! | QSEND | one record of 16 bytes per packet; one of 16 per segment; the packet header; |
//! | ... | of each packet its prefix, its header and its inline segments' bytes |
//! | QRX | one record of 16 bytes per packet; their plaintexts |
//! | all others | none |
//!
//! Decoding accepts exactly the output of encoding: reserved bytes must be zero, lengths must fit
//! without a byte to spare, and all bounds of [`crate::limits`] hold.

mod parting;
mod quic;
mod quic_receive;
mod setup;
mod splicing;
mod tls;

use std::fmt;

use shm::memory::WORD_BYTES;
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::command::{Command, Send};
use crate::event::{Event, RejectReason};
use crate::file::{FileMeta, Growth};
use crate::ids::{FileId, FlowId, PassedId, SendId};
use crate::limits::{
    FLOWS_TAKEN_MAX, FRAME_BYTES_MAX, HEADER_BYTES_MAX, INLINE_BYTES_MAX, LISTED_ENTRIES_BYTES_MAX,
    MESSAGE_BYTES_MAX, PART_ENDS_MAX, PATH_BYTES_MAX, QUIC_INLINE_BYTES_MAX, QUIC_PACKETS_MAX,
    QUIC_RECEIVED_BYTES_MAX, QUIC_RECEIVED_PACKETS_MAX, QUIC_SEGMENTS_MAX, RECORDS_MAX,
    SEALED_TAGS_MAX, SEGMENTS_MAX, SEND_BYTES_MAX, SETUP_LISTENERS_MAX, SPLICE_PROGRESS_MAX,
};
use crate::listing::{self, Entries};
use crate::parting::Part;
use crate::quic::{Prepare, QuicKey, QuicReceived, QuicSend};
use crate::segment::{Segment, Segments};
use crate::setup::{SETUP_LISTENER_BYTES, Setup};
use crate::tls::{Key, Records, TAG_BYTES};

/// The bytes are not a valid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The bytes at the id's place; zero if there were none.
    pub id: u64,
    /// The rule that is broken.
    pub rule: &'static str,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed message (id {}): {}", self.id, self.rule)
    }
}

impl std::error::Error for Malformed {}

const OPEN: u8 = 1;
const CLOSE: u8 = 2;
const SEND: u8 = 3;
const ACKED: u8 = 4;
const KEY: u8 = 5;
const KEY_GONE: u8 = 6;
const RECORDS: u8 = 7;
const LIST: u8 = 8;
const OPEN_PASSED: u8 = 9;
const FRAME: u8 = 13;
const PART: u8 = 14;
const PART_GONE: u8 = 15;
const SPLICE: u8 = 16;
const UNSPLICE: u8 = 17;
const SETUP: u8 = 18;
const SPLICE_MSS: u8 = 19;
const QUIC_KEY: u8 = 24;
const QUIC_KEY_GONE: u8 = 25;
const QUIC_SEND: u8 = 26;
const PREPARE: u8 = 27;
const QUIC_RELEASE: u8 = 28;
const QUIC_RECEIVE_KEY: u8 = 29;
const QUIC_CONNECTION_ID: u8 = 30;
const QUIC_RECEIVE_KEY_GONE: u8 = 31;
const OPENED: u8 = 129;
const OPEN_FAILED: u8 = 130;
const DEPARTED: u8 = 131;
const READ_FAILED: u8 = 132;
const REJECTED: u8 = 133;
const SEALED: u8 = 134;
const SEAL_MISMATCH: u8 = 135;
const ENDED: u8 = 136;
const LISTED: u8 = 137;
const LOAD: u8 = 138;
const FRAME_UP: u8 = 139;
const PART_REFUSED: u8 = 140;
const PART_ENDED: u8 = 141;
const SPLICE_REFUSED: u8 = 142;
const SPLICE_PROGRESS: u8 = 143;
const SPLICE_ENDED: u8 = 144;
const UNSPLICED: u8 = 145;
const SETUP_READY: u8 = 146;
const FLOWS_TAKEN: u8 = 147;
const SPLICE_MSS_REDUCED: u8 = 148;
const READY: u8 = 150;
const QUIC_RECEIVED: u8 = 151;

const SEGMENT_INLINE: u8 = 1;
const SEGMENT_FILE: u8 = 2;
const SEGMENT_SEALED: u8 = 3;

/// Declares record types and asserts their size in bytes.
macro_rules! records {
    ($($(#[$doc:meta])* $name:ident: $bytes:literal { $($field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
        #[repr(C)]
        struct $name { $($field: $type,)* }
        const _: () = assert!(size_of::<$name>() == $bytes, "records never change within a \
            version");
    )*};
}

records! {
    /// The beginning of all records.
    Head: 8 { length: U32, kind: u8, zero: [u8; 3], }
    ListRecord: 24 { head: Head, file: U32, path_bytes: U16, zero: [u8; 2], from: U64, }
    OpenRecord: 16 { head: Head, file: U32, path_bytes: U16, may_grow: u8, zero: u8, }
    OpenPassedRecord: 24 { head: Head, file: U32, zero: [u8; 4], passed: U64, }
    CloseRecord: 16 { head: Head, file: U32, zero: [u8; 4], }
    SendRecord: 72 {
        head: Head,
        id: U64,
        flow: U64,
        stream_offset: U64,
        acked_offset: U64,
        issued_us: U64,
        not_before_us: U64,
        tsval_fraction_us: U16,
        mss: U16,
        header_bytes: U16,
        segments: U16,
        follow_bytes: U32,
        zero: [u8; 4],
    }
    /// Part of a SEND or of RECORDS. For inline and sealed bytes, `file` and `offset` are zero.
    SegmentRecord: 24 { offset: U64, len: U32, file: U32, kind: u8, zero: [u8; 7], }
    /// A SEND whose payload is one range of a file or of records, up to its packet header, which
    /// comes last.
    RangeRecord: 96 { send: SendRecord, segment: SegmentRecord, }
    AckedRecord: 32 { head: Head, flow: U64, stream_offset: U64, last: u8, zero: [u8; 7], }
    OpenedRecord: 56 {
        head: Head,
        file: U32,
        is_weak: u8,
        zero: [u8; 3],
        size: U64,
        inode: U64,
        device: U64,
        mtime_ns: I64,
        ctime_ns: I64,
    }
    ListedRecord: 64 {
        head: Head,
        file: U32,
        zero: [u8; 4],
        next: U64,
        size: U64,
        inode: U64,
        device: U64,
        mtime_ns: I64,
        ctime_ns: I64,
    }
    OpenFailedRecord: 16 { head: Head, file: U32, errno: U16, zero: [u8; 2], }
    DepartedRecord: 32 { head: Head, send: U64, flow: U64, departed_us: U64, }
    ReadFailedRecord: 40 {
        head: Head,
        send: U64,
        flow: U64,
        offset: U64,
        file: U32,
        errno: U16,
        zero: [u8; 2],
    }
    RejectedRecord: 24 { head: Head, id: U64, reason: u8, zero: [u8; 7], }
    /// The bytes behind a key of 16 bytes are zero.
    KeyRecord: 64 {
        head: Head,
        flow: U64,
        key: [u8; 32],
        iv: [u8; 12],
        epoch: U16,
        version: u8,
        cipher: u8,
    }
    KeyGoneRecord: 24 { head: Head, flow: U64, epoch: U16, zero: [u8; 6], }
    RecordsRecord: 48 {
        head: Head,
        flow: U64,
        stream_offset: U64,
        number: U64,
        follow_bytes: U32,
        epoch: U16,
        record_plaintext_bytes: U16,
        segments: U16,
        tags: U16,
        content_type: u8,
        zero: [u8; 3],
    }
    SealedRecord: 32 {
        head: Head,
        flow: U64,
        number: U64,
        epoch: U16,
        tags: U16,
        zero: [u8; 4],
    }
    SealMismatchRecord: 40 {
        head: Head,
        flow: U64,
        send: U64,
        number: U64,
        epoch: U16,
        zero: [u8; 6],
    }
    EndedRecord: 16 { head: Head, zero: [u8; 8], }
    LoadRecord: 16 { head: Head, busy_us: U32, elapsed_us: U32, }
    FrameRecord: 16 { head: Head, frame_bytes: U16, zero: [u8; 6], }
    PartRecord: 104 {
        head: Head,
        flow: U64,
        issued_us: U64,
        fin_seq: U32,
        rcv_nxt: U32,
        rcv_window_bytes: U32,
        snd_window_bytes: U32,
        snd_window_bytes_max: U32,
        ts_value: U32,
        ts_recent: U32,
        srtt_us: U32,
        rttvar_us: U32,
        rto_initial_ms: U32,
        rto_min_ms: U32,
        rto_max_ms: U32,
        user_timeout_ms: U32,
        time_wait_ms: U32,
        fin_wait_2_ms: U32,
        challenge_acks_interval_ms: U32,
        challenge_acks_max: U16,
        mss: U16,
        header_bytes: U16,
        stage: u8,
        owes_ack: u8,
        has_timestamps: u8,
        rcv_shift: u8,
        snd_shift: u8,
        backoff: u8,
        fin_retries: u8,
        zero: [u8; 3],
    }
    PartGoneRecord: 16 { head: Head, flow: U64, }
    PartRefusedRecord: 24 { head: Head, flow: U64, reason: u8, zero: [u8; 7], }
    FlowsTakenRecord: 16 { head: Head, flows: U16, zero: [u8; 6], }
    PartEndedRecord: 16 { head: Head, ends: U16, zero: [u8; 6], }
    /// The end of a connection.
    PartEndRecord: 16 { flow: U64, reason: u8, zero: [u8; 7], }
    SpliceRecord: 128 {
        head: Head,
        flow: U64,
        passed_bytes: [U64; 2],
        idle_ms: U32,
        life_ms: U32,
        legs: [SpliceLegRecord; 2],
        is_again: u8,
        zero: [u8; 7],
    }
    SpliceLegRecord: 40 {
        rcv_nxt: U32,
        snd_nxt: U32,
        snd_window_bytes: U32,
        rcv_window_bytes: U32,
        fin_end: U32,
        ts_value: U32,
        ts_recent: U32,
        mss: U16,
        header_bytes: U16,
        snd_shift: u8,
        rcv_shift: u8,
        sack: u8,
        ecn: u8,
        has_fin: u8,
        has_timestamps: u8,
        zero: [u8; 2],
    }
    /// SPLICEMSS, and its answer, which quotes no sequence number.
    SpliceMssRecord: 24 { head: Head, flow: U64, seq: U32, mss: U16, leg: u8, zero: u8, }
    UnspliceRecord: 24 { head: Head, flow: U64, kind: u8, zero: [u8; 7], }
    SpliceRefusedRecord: 24 { head: Head, flow: U64, reason: u8, zero: [u8; 7], }
    SplicesPassedRecord: 16 { head: Head, splices: U16, zero: [u8; 6], }
    /// Bytes that have passed a splice.
    SpliceProgressRecord: 32 {
        flow: U64,
        passed_bytes: [U64; 2],
        has_finished: [u8; 2],
        zero: [u8; 6],
    }
    /// The end of a splice, and its return.
    SpliceOutcomeRecord: 88 {
        head: Head,
        flow: U64,
        passed_bytes: [U64; 2],
        legs: [SpliceNumbersRecord; 2],
        reason: u8,
        zero: [u8; 7],
    }
    SpliceNumbersRecord: 24 {
        snd_nxt: U32,
        rcv_nxt: U32,
        snd_window_bytes: U32,
        rcv_window_bytes: U32,
        ts_value: U32,
        ts_recent: U32,
    }
    SetupRecord: 128 {
        head: Head,
        epoch: U64,
        issued_us: U64,
        host_us: U64,
        valid_us: U64,
        cookie_key: [u8; 16],
        ts_offset_key: [u8; 16],
        fast_open_keys: [[u8; 16]; 2],
        receive_buffer_bytes: U32,
        receive_buffer_bytes_max: U32,
        window_scaling: u8,
        timestamps: u8,
        sack: u8,
        ecn: u8,
        source_mac: [u8; 6],
        zero: [u8; 6],
    }
    SetupReadyRecord: 24 { head: Head, epoch: U64, steering: U32, zero: [u8; 4], }
    /// The bytes behind keys of 16 bytes are zero.
    QuicKeyRecord: 112 {
        head: Head,
        flow: U64,
        floor: U64,
        key: [u8; 32],
        header_key: [u8; 32],
        iv: [u8; 12],
        generation: U32,
        cipher: u8,
        zero: [u8; 7],
    }
    QuicKeyGoneRecord: 24 { head: Head, flow: U64, generation: U32, zero: [u8; 4], }
    QuicSendRecord: 48 {
        head: Head,
        id: U64,
        flow: U64,
        issued_us: U64,
        not_before_us: U64,
        packets: U16,
        segments: U16,
        header_bytes: U16,
        zero: [u8; 2],
    }
    /// A packet of a QSEND.
    QuicPacketRecord: 16 {
        number: U64,
        generation: U32,
        prefix_bytes: U16,
        header_bytes: u8,
        segments: u8,
    }
    /// Part of a packet. For inline bytes, `file` and `offset` are zero.
    QuicSegmentRecord: 16 { offset: U64, file: U32, len: U16, kind: u8, zero: u8, }
    PrepareRecord: 40 { head: Head, id: U64, flow: U64, offset: U64, file: U32, len: U32, }
    QuicReleaseRecord: 40 {
        head: Head,
        flow: U64,
        offset: U64,
        len: U64,
        file: U32,
        zero: [u8; 4],
    }
    ReadyRecord: 24 { head: Head, prepare: U64, flow: U64, }
    /// The bytes behind keys of 16 bytes are zero.
    QuicReceiveKeyRecord: 112 {
        head: Head,
        flow: U64,
        next_number: U64,
        key: [u8; 32],
        header_key: [u8; 32],
        iv: [u8; 12],
        generation: U32,
        hold_us: U32,
        cipher: u8,
        zero: [u8; 3],
    }
    QuicConnectionIdRecord: 40 { head: Head, flow: U64, id: ConnectionIdRecord, zero: [u8; 3], }
    QuicReceiveKeyGoneRecord: 16 { head: Head, flow: U64, }
    /// The bytes behind the ID are zero.
    ConnectionIdRecord: 21 { bytes: [u8; 20], len: u8, }
    /// The bytes behind addresses of 4 bytes are zero.
    QuicReceivedRecord: 88 {
        head: Head,
        flow: U64,
        arrived_us: U64,
        remote: [u8; 16],
        local: [u8; 16],
        generation: U32,
        remote_port: U16,
        packets: U16,
        plaintext_bytes: U16,
        id: ConnectionIdRecord,
        is_ipv6: u8,
    }
    /// A packet of a QRX.
    QuicReceivedPacketRecord: 16 { number: U64, age_us: U32, len: U16, first: u8, ecn: u8, }
}

/// Longest encoded event, in bytes.
pub const EVENT_BYTES_MAX: usize = size_of::<ListedRecord>() + LISTED_ENTRIES_BYTES_MAX;

const _: () = assert!(
    size_of::<SealedRecord>() + SEALED_TAGS_MAX * TAG_BYTES <= EVENT_BYTES_MAX
        && size_of::<FrameRecord>() + FRAME_BYTES_MAX <= EVENT_BYTES_MAX
        && size_of::<PartEndedRecord>() + PART_ENDS_MAX * size_of::<PartEndRecord>()
            <= EVENT_BYTES_MAX
        && size_of::<FlowsTakenRecord>() + FLOWS_TAKEN_MAX * size_of::<U64>() <= EVENT_BYTES_MAX
        && size_of::<SplicesPassedRecord>()
            + SPLICE_PROGRESS_MAX * size_of::<SpliceProgressRecord>()
            <= EVENT_BYTES_MAX
        && size_of::<QuicReceivedRecord>()
            + QUIC_RECEIVED_PACKETS_MAX * size_of::<QuicReceivedPacketRecord>()
            + QUIC_RECEIVED_BYTES_MAX
            <= EVENT_BYTES_MAX
        && EVENT_BYTES_MAX <= MESSAGE_BYTES_MAX,
    "no event is longer"
);

const RANGE_WORDS: usize = size_of::<RangeRecord>() / WORD_BYTES;

const _: () = assert!(
    size_of::<SendRecord>()
        + SEGMENTS_MAX * size_of::<SegmentRecord>()
        + HEADER_BYTES_MAX
        + INLINE_BYTES_MAX
        <= MESSAGE_BYTES_MAX,
    "the largest SEND fits into a message"
);
const _: () = assert!(
    size_of::<ListRecord>() + PATH_BYTES_MAX <= MESSAGE_BYTES_MAX
        && size_of::<OpenRecord>() <= size_of::<ListRecord>(),
    "the largest OPEN or LIST fits into a message"
);
const _: () = assert!(
    size_of::<RecordsRecord>()
        + SEGMENTS_MAX * size_of::<SegmentRecord>()
        + RECORDS_MAX * TAG_BYTES
        + INLINE_BYTES_MAX
        <= MESSAGE_BYTES_MAX,
    "the largest RECORDS fits into a message"
);
const _: () = assert!(
    size_of::<SetupRecord>() + SETUP_LISTENERS_MAX * SETUP_LISTENER_BYTES <= MESSAGE_BYTES_MAX,
    "the largest SETUP fits into a message"
);
const _: () = assert!(
    size_of::<QuicSendRecord>()
        + QUIC_PACKETS_MAX * size_of::<QuicPacketRecord>()
        + QUIC_SEGMENTS_MAX * size_of::<QuicSegmentRecord>()
        + HEADER_BYTES_MAX
        + QUIC_INLINE_BYTES_MAX
        <= MESSAGE_BYTES_MAX,
    "the largest QSEND fits into a message"
);

impl Command<'_> {
    /// Appends the command. One that breaks a rule ([`Command::check`]) makes bytes that do not
    /// decode.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Command::Open { file, growth, path } => {
                let record = OpenRecord {
                    head: head(OPEN, size_of::<OpenRecord>() + path.len()),
                    file: file.0.into(),
                    path_bytes: (path.len() as u16).into(),
                    may_grow: (growth == Growth::Allowed).into(),
                    zero: 0,
                };
                out.extend_from_slice(record.as_bytes());
                out.extend_from_slice(path);
            }
            Command::OpenPassed { file, passed } => {
                let record = OpenPassedRecord {
                    head: head(OPEN_PASSED, size_of::<OpenPassedRecord>()),
                    file: file.0.into(),
                    zero: [0; 4],
                    passed: passed.0.into(),
                };
                out.extend_from_slice(record.as_bytes());
            }
            Command::List { file, from, path } => {
                let record = ListRecord {
                    head: head(LIST, size_of::<ListRecord>() + path.len()),
                    file: file.0.into(),
                    path_bytes: (path.len() as u16).into(),
                    zero: [0; 2],
                    from: from.into(),
                };
                out.extend_from_slice(record.as_bytes());
                out.extend_from_slice(path);
            }
            Command::Close { file } => {
                let record = CloseRecord {
                    head: head(CLOSE, size_of::<CloseRecord>()),
                    file: file.0.into(),
                    zero: [0; 4],
                };
                out.extend_from_slice(record.as_bytes());
            }
            Command::Send(ref send) => send.encode(send.segments.iter().copied(), out),
            Command::Acked {
                flow,
                stream_offset,
                last,
            } => {
                let record = AckedRecord {
                    head: head(ACKED, size_of::<AckedRecord>()),
                    flow: flow.0.into(),
                    stream_offset: stream_offset.into(),
                    last: last.into(),
                    zero: [0; 7],
                };
                out.extend_from_slice(record.as_bytes());
            }
            Command::Key(ref key) => key.encode(out),
            Command::KeyGone { flow, epoch } => encode_key_gone(flow, epoch, out),
            Command::Records(ref records) => records.encode(out),
            Command::Frame { bytes } => parting::encode_frame(FRAME, bytes, out),
            Command::Part(ref part) => part.encode(out),
            Command::PartGone { flow } => parting::encode_gone(flow, out),
            Command::Splice(_) | Command::SpliceMss { .. } | Command::Unsplice { .. } => {
                splicing::encode(self, out);
            }
            Command::Setup(ref setup) => setup.encode(out),
            Command::QuicKey(_)
            | Command::QuicKeyGone { .. }
            | Command::QuicSend(_)
            | Command::Prepare(_)
            | Command::QuicRelease { .. } => quic::encode(self, out),
            Command::QuicReceiveKey(_)
            | Command::QuicConnectionId { .. }
            | Command::QuicReceiveKeyGone { .. } => quic_receive::encode(self, out),
        }
    }

    /// Reads a command out of exactly its bytes.
    pub fn decode(bytes: &[u8]) -> Result<Command<'_>, Malformed> {
        let parsed = Command::parse(bytes);
        // By reference, since to move a command costs more than to check it.
        let checked = parsed.as_ref().map_or(Ok(()), Command::check);
        let command = checked.and(parsed);
        command.map_err(|rule| malformed(bytes, rule))
    }

    fn parse(bytes: &[u8]) -> Result<Command<'_>, &'static str> {
        match kind(bytes)? {
            OPEN => {
                let (record, path) = split::<OpenRecord>(bytes)?;
                all_zero(&[record.zero])?;
                if path.len() != usize::from(record.path_bytes) {
                    return Err("the path fills the message");
                }
                Ok(Command::Open {
                    file: FileId(record.file.get()),
                    growth: Growth::from(flag(record.may_grow)?),
                    path,
                })
            }
            LIST => {
                let (record, path) = split::<ListRecord>(bytes)?;
                all_zero(&record.zero)?;
                if path.len() != usize::from(record.path_bytes) {
                    return Err("the path fills the message");
                }
                Ok(Command::List {
                    file: FileId(record.file.get()),
                    from: record.from.get(),
                    path,
                })
            }
            OPEN_PASSED => {
                let record = whole::<OpenPassedRecord>(bytes)?;
                all_zero(&record.zero)?;
                Ok(Command::OpenPassed {
                    file: FileId(record.file.get()),
                    passed: PassedId(record.passed.get()),
                })
            }
            CLOSE => {
                let record = whole::<CloseRecord>(bytes)?;
                all_zero(&record.zero)?;
                Ok(Command::Close {
                    file: FileId(record.file.get()),
                })
            }
            SEND => Send::parse(bytes).map(Command::Send),
            ACKED => {
                let record = whole::<AckedRecord>(bytes)?;
                all_zero(&record.zero)?;
                Ok(Command::Acked {
                    flow: FlowId(record.flow.get()),
                    stream_offset: record.stream_offset.get(),
                    last: flag(record.last)?,
                })
            }
            KEY => Key::parse(bytes).map(Command::Key),
            KEY_GONE => {
                let record = whole::<KeyGoneRecord>(bytes)?;
                all_zero(&record.zero)?;
                Ok(Command::KeyGone {
                    flow: FlowId(record.flow.get()),
                    epoch: record.epoch.get(),
                })
            }
            RECORDS => Records::parse(bytes).map(Command::Records),
            FRAME => parting::parse_frame(bytes).map(|bytes| Command::Frame { bytes }),
            PART => Part::parse(bytes).map(Command::Part),
            PART_GONE => {
                let record = whole::<PartGoneRecord>(bytes)?;
                Ok(Command::PartGone {
                    flow: FlowId(record.flow.get()),
                })
            }
            kind @ (SPLICE | SPLICE_MSS | UNSPLICE) => splicing::parse(kind, bytes),
            SETUP => Setup::parse(bytes).map(Command::Setup),
            QUIC_KEY => QuicKey::parse(bytes).map(Command::QuicKey),
            QUIC_KEY_GONE => quic::parse_key_gone(bytes),
            QUIC_SEND => QuicSend::parse(bytes).map(Command::QuicSend),
            PREPARE => Prepare::parse(bytes).map(Command::Prepare),
            QUIC_RELEASE => quic::parse_release(bytes),
            kind @ QUIC_RECEIVE_KEY..=QUIC_RECEIVE_KEY_GONE => quic_receive::parse(kind, bytes),
            _ => Err("the kind is a command's"),
        }
    }

    /// Checks the rules that the command's documentation states; the error is the rule that is
    /// broken. The peer rejects a command that breaks one.
    pub fn check(&self) -> Result<(), &'static str> {
        match self {
            Command::Open { path, .. } => {
                if path.is_empty() || path.len() > PATH_BYTES_MAX {
                    return Err("a path has 1 to PATH_BYTES_MAX bytes");
                }
                check_path(path)
            }
            Command::List { path, .. } => {
                if path.len() > PATH_BYTES_MAX {
                    return Err("a directory's path has at most PATH_BYTES_MAX bytes");
                }
                check_path(path)
            }
            Command::Send(send) => send.check(),
            Command::Key(key) => key.check(),
            Command::Records(records) => records.check(),
            Command::Frame { bytes } => parting::check_frame(bytes),
            Command::Part(part) => part.check(),
            Command::Splice(splice) => splice.check(),
            Command::SpliceMss { leg, mss, .. } => splicing::check_mss(*leg, *mss),
            Command::Setup(setup) => setup.check(),
            Command::QuicKey(key) => key.check(),
            Command::QuicSend(send) => send.check(),
            Command::Prepare(prepare) => prepare.check(),
            Command::QuicRelease { offset, len, .. } => quic::check_release(*offset, *len),
            Command::QuicReceiveKey(key) => key.check(),
            Command::OpenPassed { .. }
            | Command::Close { .. }
            | Command::Acked { .. }
            | Command::KeyGone { .. }
            | Command::PartGone { .. }
            | Command::Unsplice { .. }
            | Command::QuicKeyGone { .. }
            | Command::QuicConnectionId { .. }
            | Command::QuicReceiveKeyGone { .. } => Ok(()),
        }
    }
}

#[cold]
#[inline(never)]
fn encode_key_gone(flow: FlowId, epoch: u16, out: &mut Vec<u8>) {
    let record = KeyGoneRecord {
        head: head(KEY_GONE, size_of::<KeyGoneRecord>()),
        flow: flow.0.into(),
        epoch: epoch.into(),
        zero: [0; 6],
    };
    out.extend_from_slice(record.as_bytes());
}

fn check_path(path: &[u8]) -> Result<(), &'static str> {
    if path.first() == Some(&b'/') {
        return Err("a path is relative");
    }
    if path.contains(&0) {
        return Err("a path has no zero byte");
    }
    Ok(())
}

impl<'a, S> Send<'a, S> {
    fn record(&self, segments: usize, inline_bytes: usize) -> SendRecord {
        let length = size_of::<SendRecord>()
            + segments * size_of::<SegmentRecord>()
            + self.header.len()
            + inline_bytes;
        SendRecord {
            head: head(SEND, length),
            id: self.id.0.into(),
            flow: self.flow.0.into(),
            stream_offset: self.stream_offset.into(),
            acked_offset: self.acked_offset.into(),
            issued_us: self.issued_us.into(),
            not_before_us: self.not_before_us.into(),
            tsval_fraction_us: self.tsval_fraction_us.into(),
            mss: self.mss.into(),
            header_bytes: (self.header.len() as u16).into(),
            segments: (segments as u16).into(),
            follow_bytes: self.follow_bytes.into(),
            zero: [0; 4],
        }
    }

    /// All of a SEND but its packet header, which follows, if `segments`, in the place of its own,
    /// are one range of a file, or of records.
    #[inline]
    pub(crate) fn of_one_range(
        &self,
        mut segments: impl Iterator<Item = Segment<'a>>,
    ) -> Option<[[u8; WORD_BYTES]; RANGE_WORDS]> {
        let (Some(segment @ (Segment::File { .. } | Segment::Sealed { .. })), None) =
            (segments.next(), segments.next())
        else {
            return None;
        };
        let record = RangeRecord {
            send: self.record(1, 0),
            segment: SegmentRecord::from(&segment),
        };
        Some(zerocopy::transmute!(record))
    }

    /// Appends the SEND, with `segments` in the place of its own.
    pub(crate) fn encode(
        &self,
        segments: impl Iterator<Item = Segment<'a>> + Clone,
        out: &mut Vec<u8>,
    ) {
        let (mut count, mut inline_bytes) = (0, 0);
        for segment in segments.clone() {
            count += 1;
            if let Segment::Inline(bytes) = segment {
                inline_bytes += bytes.len();
            }
        }
        out.extend_from_slice(self.record(count, inline_bytes).as_bytes());
        for segment in segments.clone() {
            out.extend_from_slice(SegmentRecord::from(&segment).as_bytes());
        }
        out.extend_from_slice(self.header);
        if inline_bytes > 0 {
            for segment in segments {
                if let Segment::Inline(bytes) = segment {
                    out.extend_from_slice(bytes);
                }
            }
        }
    }
}

impl<'a> Send<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, &'static str> {
        let (record, rest) = split::<SendRecord>(bytes)?;
        all_zero(&record.zero)?;
        let count = usize::from(record.segments);
        if count > SEGMENTS_MAX {
            return Err("a SEND has at most SEGMENTS_MAX segments");
        }
        let (records, rest) = <[SegmentRecord]>::ref_from_prefix_with_elems(rest, count)
            .map_err(|_| "the segments lie within the message")?;
        let (header, mut inline) = rest
            .split_at_checked(record.header_bytes.into())
            .ok_or("the header lies within the message")?;
        let mut send = Send {
            id: SendId(record.id.get()),
            flow: FlowId(record.flow.get()),
            stream_offset: record.stream_offset.get(),
            acked_offset: record.acked_offset.get(),
            issued_us: record.issued_us.get(),
            not_before_us: record.not_before_us.get(),
            tsval_fraction_us: record.tsval_fraction_us.get(),
            follow_bytes: record.follow_bytes.get(),
            mss: record.mss.get(),
            header,
            segments: Segments::new(),
        };
        parse_segments(records, &mut inline, &mut send.segments)?;
        Ok(send)
    }

    fn check(&self) -> Result<(), &'static str> {
        if self.mss == 0 {
            return Err("mss is not zero");
        }
        if self.tsval_fraction_us >= 1000 {
            return Err("tsval_fraction_us is below 1000");
        }
        if self.header.len() > HEADER_BYTES_MAX {
            return Err("a header has at most HEADER_BYTES_MAX bytes");
        }
        if inline_bytes(&self.segments) > INLINE_BYTES_MAX {
            return Err("a SEND has at most INLINE_BYTES_MAX inline bytes");
        }
        let payload_bytes = self.segments.payload_bytes();
        if payload_bytes > SEND_BYTES_MAX as u64 {
            return Err("a SEND has at most SEND_BYTES_MAX payload bytes");
        }
        if self.stream_offset.checked_add(payload_bytes).is_none() {
            return Err("a stream ends below 2^64");
        }
        self.segments.iter().try_for_each(check_segment)
    }
}

/// Appends the segments that `records` name; the bytes of the inline ones are all of `inline`.
// Where they stay, since to move them costs more than to read them.
fn parse_segments<'a>(
    records: &[SegmentRecord],
    inline: &mut &'a [u8],
    segments: &mut Segments<'a>,
) -> Result<(), &'static str> {
    for record in records {
        all_zero(&record.zero)?;
        let len = record.len.get();
        let is_of_file = record.kind == SEGMENT_FILE;
        if !is_of_file && (record.file.get() != 0 || record.offset.get() != 0) {
            return Err("only a file range has a file");
        }
        let segment = match record.kind {
            SEGMENT_INLINE => {
                let bytes = inline
                    .split_off(..len as usize)
                    .ok_or("inline bytes lie within the message")?;
                Segment::Inline(bytes)
            }
            SEGMENT_FILE => Segment::File {
                file: FileId(record.file.get()),
                offset: record.offset.get(),
                len,
            },
            SEGMENT_SEALED => Segment::Sealed { len },
            _ => return Err("a segment is inline, of a file, or sealed"),
        };
        segments
            .push(segment)
            .map_err(|_| "there are at most SEGMENTS_MAX segments")?;
    }
    if inline.is_empty() {
        Ok(())
    } else {
        Err("inline bytes fill the message")
    }
}

fn check_segment(segment: &Segment<'_>) -> Result<(), &'static str> {
    match *segment {
        Segment::File { len: 0, .. } => Err("a file range is not empty"),
        Segment::File { offset, len, .. } if offset.checked_add(len.into()).is_none() => {
            Err("a file range ends below 2^64")
        }
        Segment::Sealed { len: 0 } => Err("a sealed range is not empty"),
        _ => Ok(()),
    }
}

fn inline_bytes(segments: &[Segment<'_>]) -> usize {
    let of = |segment: &Segment<'_>| match segment {
        Segment::Inline(bytes) => bytes.len(),
        Segment::File { .. } | Segment::Sealed { .. } => 0,
    };
    segments.iter().map(of).sum()
}

impl From<&Segment<'_>> for SegmentRecord {
    fn from(segment: &Segment<'_>) -> Self {
        let (kind, file, offset) = match *segment {
            Segment::Inline(_) => (SEGMENT_INLINE, 0, 0),
            Segment::File { file, offset, .. } => (SEGMENT_FILE, file.0, offset),
            Segment::Sealed { .. } => (SEGMENT_SEALED, 0, 0),
        };
        SegmentRecord {
            offset: offset.into(),
            len: segment.len().into(),
            file: file.into(),
            kind,
            zero: [0; 7],
        }
    }
}

impl Event {
    /// True if this is, or is meant to be, the record of [`Event::Ended`].
    pub fn is_ended(record: &[u8]) -> bool {
        kind(record) == Ok(ENDED)
    }

    /// Appends the event.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Event::Opened { file, meta } => {
                let record = OpenedRecord {
                    head: head(OPENED, size_of::<OpenedRecord>()),
                    file: file.0.into(),
                    is_weak: meta.is_weak.into(),
                    zero: [0; 3],
                    size: meta.size.into(),
                    inode: meta.inode.into(),
                    device: meta.device.into(),
                    mtime_ns: meta.mtime_ns.into(),
                    ctime_ns: meta.ctime_ns.into(),
                };
                out.extend_from_slice(record.as_bytes());
            }
            Event::Listed { file, ref part } => {
                let listing::Part {
                    directory,
                    next,
                    entries,
                } = &**part;
                let entries = entries.as_bytes();
                let record = ListedRecord {
                    head: head(LISTED, size_of::<ListedRecord>() + entries.len()),
                    file: file.0.into(),
                    zero: [0; 4],
                    next: (*next).into(),
                    size: directory.size.into(),
                    inode: directory.inode.into(),
                    device: directory.device.into(),
                    mtime_ns: directory.mtime_ns.into(),
                    ctime_ns: directory.ctime_ns.into(),
                };
                out.extend_from_slice(record.as_bytes());
                out.extend_from_slice(entries);
            }
            Event::OpenFailed { file, errno } => {
                let record = OpenFailedRecord {
                    head: head(OPEN_FAILED, size_of::<OpenFailedRecord>()),
                    file: file.0.into(),
                    errno: errno.into(),
                    zero: [0; 2],
                };
                out.extend_from_slice(record.as_bytes());
            }
            Event::Departed {
                send,
                flow,
                departed_us,
            } => {
                let record = DepartedRecord {
                    head: head(DEPARTED, size_of::<DepartedRecord>()),
                    send: send.0.into(),
                    flow: flow.0.into(),
                    departed_us: departed_us.into(),
                };
                out.extend_from_slice(record.as_bytes());
            }
            Event::ReadFailed {
                send,
                flow,
                file,
                offset,
                errno,
            } => {
                let record = ReadFailedRecord {
                    head: head(READ_FAILED, size_of::<ReadFailedRecord>()),
                    send: send.0.into(),
                    flow: flow.0.into(),
                    offset: offset.into(),
                    file: file.0.into(),
                    errno: errno.into(),
                    zero: [0; 2],
                };
                out.extend_from_slice(record.as_bytes());
            }
            Event::Rejected { reason, id } => {
                let record = RejectedRecord {
                    head: head(REJECTED, size_of::<RejectedRecord>()),
                    id: id.into(),
                    reason: reason as u8,
                    zero: [0; 7],
                };
                out.extend_from_slice(record.as_bytes());
            }
            Event::Sealed {
                flow,
                epoch,
                number,
                ref tags,
            } => {
                let tags = tags.as_bytes();
                let record = SealedRecord {
                    head: head(SEALED, size_of::<SealedRecord>() + tags.len()),
                    flow: flow.0.into(),
                    number: number.into(),
                    epoch: epoch.into(),
                    tags: ((tags.len() / TAG_BYTES) as u16).into(),
                    zero: [0; 4],
                };
                out.extend_from_slice(record.as_bytes());
                out.extend_from_slice(tags);
            }
            Event::SealMismatch {
                send,
                flow,
                epoch,
                number,
            } => {
                let record = SealMismatchRecord {
                    head: head(SEAL_MISMATCH, size_of::<SealMismatchRecord>()),
                    flow: flow.0.into(),
                    send: send.0.into(),
                    number: number.into(),
                    epoch: epoch.into(),
                    zero: [0; 6],
                };
                out.extend_from_slice(record.as_bytes());
            }
            Event::Ended => {
                let record = EndedRecord {
                    head: head(ENDED, size_of::<EndedRecord>()),
                    zero: [0; 8],
                };
                out.extend_from_slice(record.as_bytes());
            }
            Event::Load {
                busy_us,
                elapsed_us,
            } => {
                let record = LoadRecord {
                    head: head(LOAD, size_of::<LoadRecord>()),
                    busy_us: busy_us.into(),
                    elapsed_us: elapsed_us.into(),
                };
                out.extend_from_slice(record.as_bytes());
            }
            Event::Frame { ref bytes } => parting::encode_frame(FRAME_UP, bytes, out),
            Event::PartRefused { flow, reason } => {
                let record = PartRefusedRecord {
                    head: head(PART_REFUSED, size_of::<PartRefusedRecord>()),
                    flow: flow.0.into(),
                    reason: reason as u8,
                    zero: [0; 7],
                };
                out.extend_from_slice(record.as_bytes());
            }
            Event::FlowsTaken { ref flows } => parting::encode_taken(flows, out),
            Event::PartEnded { ref ends } => parting::encode_ends(ends, out),
            Event::SpliceRefused { flow, reason } => splicing::encode_refused(flow, reason, out),
            Event::SpliceProgress { ref progress } => splicing::encode_progress(progress, out),
            Event::SpliceMssReduced { flow, leg, mss } => {
                splicing::encode_mss(SPLICE_MSS_REDUCED, flow, (leg, mss, 0), out);
            }
            Event::SpliceEnded {
                ref outcome,
                reason,
            } => splicing::encode_outcome(outcome, Some(reason), out),
            Event::Unspliced { ref outcome } => splicing::encode_outcome(outcome, None, out),
            Event::SetupReady { epoch, steering } => setup::encode_ready(epoch, steering, out),
            Event::Ready { prepare, flow } => quic::encode_ready(prepare, flow, out),
            Event::QuicReceived(ref received) => received.encode(out),
        }
    }

    /// Reads an event out of exactly its bytes.
    pub fn decode(bytes: &[u8]) -> Result<Event, Malformed> {
        Event::parse(bytes).map_err(|rule| malformed(bytes, rule))
    }

    #[inline]
    fn parse(bytes: &[u8]) -> Result<Event, &'static str> {
        match kind(bytes)? {
            DEPARTED => {
                let record = whole::<DepartedRecord>(bytes)?;
                Ok(Event::Departed {
                    send: SendId(record.send.get()),
                    flow: FlowId(record.flow.get()),
                    departed_us: record.departed_us.get(),
                })
            }
            kind => Event::parse_rare(kind, bytes),
        }
    }

    /// Parses the events that are rare compared with departures.
    #[inline(never)]
    fn parse_rare(kind: u8, bytes: &[u8]) -> Result<Event, &'static str> {
        match kind {
            OPENED => {
                let record = whole::<OpenedRecord>(bytes)?;
                all_zero(&record.zero)?;
                Ok(Event::Opened {
                    file: FileId(record.file.get()),
                    meta: FileMeta {
                        size: record.size.get(),
                        inode: record.inode.get(),
                        device: record.device.get(),
                        mtime_ns: record.mtime_ns.get(),
                        ctime_ns: record.ctime_ns.get(),
                        is_weak: flag(record.is_weak)?,
                    },
                })
            }
            LISTED => {
                let (record, entries) = split::<ListedRecord>(bytes)?;
                all_zero(&record.zero)?;
                let part = listing::Part {
                    directory: FileMeta {
                        size: record.size.get(),
                        inode: record.inode.get(),
                        device: record.device.get(),
                        mtime_ns: record.mtime_ns.get(),
                        ctime_ns: record.ctime_ns.get(),
                        is_weak: false,
                    },
                    next: record.next.get(),
                    entries: Entries::parse(entries)?,
                };
                Ok(Event::Listed {
                    file: FileId(record.file.get()),
                    part: Box::new(part),
                })
            }
            OPEN_FAILED => {
                let record = whole::<OpenFailedRecord>(bytes)?;
                all_zero(&record.zero)?;
                Ok(Event::OpenFailed {
                    file: FileId(record.file.get()),
                    errno: record.errno.get(),
                })
            }
            READ_FAILED => {
                let record = whole::<ReadFailedRecord>(bytes)?;
                all_zero(&record.zero)?;
                Ok(Event::ReadFailed {
                    send: SendId(record.send.get()),
                    flow: FlowId(record.flow.get()),
                    file: FileId(record.file.get()),
                    offset: record.offset.get(),
                    errno: record.errno.get(),
                })
            }
            REJECTED => {
                let record = whole::<RejectedRecord>(bytes)?;
                all_zero(&record.zero)?;
                Ok(Event::Rejected {
                    reason: RejectReason::from_byte(record.reason).ok_or("the reason is known")?,
                    id: record.id.get(),
                })
            }
            SEALED => {
                let (record, tags) = split::<SealedRecord>(bytes)?;
                all_zero(&record.zero)?;
                let tags = tls::tags(tags, record.tags)?;
                if tags.is_empty() || tags.len() > SEALED_TAGS_MAX {
                    return Err("there are 1 to SEALED_TAGS_MAX tags");
                }
                Ok(Event::Sealed {
                    flow: FlowId(record.flow.get()),
                    epoch: record.epoch.get(),
                    number: record.number.get(),
                    tags: tags.into(),
                })
            }
            SEAL_MISMATCH => parse_seal_mismatch(bytes),
            ENDED => {
                let record = whole::<EndedRecord>(bytes)?;
                all_zero(&record.zero)?;
                Ok(Event::Ended)
            }
            LOAD => parse_load(bytes),
            FRAME_UP => Ok(Event::Frame {
                bytes: parting::parse_frame(bytes)?.into(),
            }),
            PART_REFUSED => {
                let record = whole::<PartRefusedRecord>(bytes)?;
                all_zero(&record.zero)?;
                Ok(Event::PartRefused {
                    flow: FlowId(record.flow.get()),
                    reason: parting::refusal(record.reason)?,
                })
            }
            FLOWS_TAKEN => parting::parse_taken(bytes),
            PART_ENDED => parting::parse_ends(bytes),
            SPLICE_REFUSED => splicing::parse_refused(bytes),
            SPLICE_PROGRESS => splicing::parse_progress(bytes),
            SPLICE_MSS_REDUCED => splicing::parse_mss_reduced(bytes),
            SPLICE_ENDED => splicing::parse_ended(bytes),
            UNSPLICED => splicing::parse_unspliced(bytes),
            SETUP_READY => setup::parse_ready(bytes),
            READY => quic::parse_ready(bytes),
            QUIC_RECEIVED => {
                QuicReceived::parse(bytes).map(|received| Event::QuicReceived(Box::new(received)))
            }
            _ => Err("the kind is an event's"),
        }
    }
}

fn parse_seal_mismatch(bytes: &[u8]) -> Result<Event, &'static str> {
    let record = whole::<SealMismatchRecord>(bytes)?;
    all_zero(&record.zero)?;
    Ok(Event::SealMismatch {
        send: SendId(record.send.get()),
        flow: FlowId(record.flow.get()),
        epoch: record.epoch.get(),
        number: record.number.get(),
    })
}

fn parse_load(bytes: &[u8]) -> Result<Event, &'static str> {
    let record = whole::<LoadRecord>(bytes)?;
    let (busy_us, elapsed_us) = (record.busy_us.get(), record.elapsed_us.get());
    if elapsed_us == 0 || busy_us > elapsed_us {
        return Err("a worker is busy for a part of the time");
    }
    Ok(Event::Load {
        busy_us,
        elapsed_us,
    })
}

impl RejectReason {
    fn from_byte(byte: u8) -> Option<Self> {
        use RejectReason::*;
        [
            Malformed,
            UnknownFile,
            FileInUse,
            TooManyFiles,
            RangePastEnd,
            BadHeader,
            TooManyFlows,
            UnknownKey,
            KeyConflict,
            TooManyKeys,
            RecordsConflict,
            TooManyRecords,
            UnknownRecords,
            RecordsOutOfFile,
            NumberReused,
            NoUdp,
        ]
        .into_iter()
        .find(|reason| *reason as u8 == byte)
    }
}

/// Adds `us` to the times in a SEND, a QSEND, a PART, a SETUP, a departure or a QRX; all other
/// bytes and messages stay unchanged. A SEND that may leave at once still may.
pub(crate) fn shift_times(message: &mut [u8], us: i64) {
    let shifted = |time: U64| time.get().wrapping_add_signed(us).into();
    match kind(message) {
        Ok(SEND) => {
            if let Ok((record, _)) = SendRecord::mut_from_prefix(message) {
                record.issued_us = shifted(record.issued_us);
                if record.not_before_us != 0 {
                    record.not_before_us = shifted(record.not_before_us);
                }
            }
        }
        Ok(QUIC_SEND) => {
            if let Ok((record, _)) = QuicSendRecord::mut_from_prefix(message) {
                record.issued_us = shifted(record.issued_us);
                if record.not_before_us != 0 {
                    record.not_before_us = shifted(record.not_before_us);
                }
            }
        }
        Ok(PART) => {
            if let Ok((record, _)) = PartRecord::mut_from_prefix(message) {
                record.issued_us = shifted(record.issued_us);
            }
        }
        Ok(SETUP) => {
            if let Ok((record, _)) = SetupRecord::mut_from_prefix(message) {
                record.issued_us = shifted(record.issued_us);
            }
        }
        Ok(DEPARTED) => {
            if let Ok((record, _)) = DepartedRecord::mut_from_prefix(message) {
                record.departed_us = shifted(record.departed_us);
            }
        }
        Ok(QUIC_RECEIVED) => {
            if let Ok((record, _)) = QuicReceivedRecord::mut_from_prefix(message) {
                record.arrived_us = shifted(record.arrived_us);
            }
        }
        _ => {}
    }
}

/// Replaces the Ethernet source address in the headers of a SEND, a QSEND, a PART or a SPLICE, and
/// in SETUP; all other bytes and messages stay unchanged.
pub(crate) fn set_source_mac(message: &mut [u8], mac: [u8; 6]) {
    const SOURCE: std::ops::Range<usize> = 6..12;
    let set = |header: Option<&mut [u8]>| {
        if let Some(source) = header.and_then(|header| header.get_mut(SOURCE)) {
            source.copy_from_slice(&mac);
        }
    };
    match kind(message) {
        Ok(SEND) => {
            if let Ok((record, rest)) = SendRecord::mut_from_prefix(message) {
                let segments = usize::from(record.segments) * size_of::<SegmentRecord>();
                set(rest.get_mut(segments..segments + usize::from(record.header_bytes)));
            }
        }
        Ok(QUIC_SEND) => {
            if let Ok((record, rest)) = QuicSendRecord::mut_from_prefix(message) {
                let packets = usize::from(record.packets) * size_of::<QuicPacketRecord>();
                let segments = usize::from(record.segments) * size_of::<QuicSegmentRecord>();
                let start = packets + segments;
                set(rest.get_mut(start..start + usize::from(record.header_bytes)));
            }
        }
        Ok(PART) => {
            if let Ok((_, header)) = PartRecord::mut_from_prefix(message) {
                set(Some(header));
            }
        }
        Ok(SPLICE) => {
            if let Ok((record, headers)) = SpliceRecord::mut_from_prefix(message) {
                let [first, second] = &record.legs;
                let (first, second) = (first.header_bytes.get(), second.header_bytes.get());
                let first = usize::from(first);
                set(headers.get_mut(..first));
                set(headers.get_mut(first..first + usize::from(second)));
            }
        }
        Ok(SETUP) => {
            if let Ok((record, _)) = SetupRecord::mut_from_prefix(message) {
                record.source_mac = mac;
            }
        }
        _ => {}
    }
}

/// True if the message contains keys, which must be erased after use.
pub(crate) fn is_secret(message: &[u8]) -> bool {
    matches!(
        message.get(4),
        Some(&(KEY | SETUP | QUIC_KEY | QUIC_RECEIVE_KEY))
    )
}

fn head(kind: u8, length: usize) -> Head {
    Head {
        length: (length as u32).into(),
        kind,
        zero: [0; 3],
    }
}

/// Checks the head; returns the kind.
fn kind(bytes: &[u8]) -> Result<u8, &'static str> {
    let (head, _) = split::<Head>(bytes)?;
    if bytes.len() > MESSAGE_BYTES_MAX || head.length.get() as usize != bytes.len() {
        return Err("the length is the message's");
    }
    all_zero(&head.zero)?;
    Ok(head.kind)
}

/// The record in front, and the variable part.
fn split<T: FromBytes + Immutable + KnownLayout + Unaligned>(
    bytes: &[u8],
) -> Result<(&T, &[u8]), &'static str> {
    T::ref_from_prefix(bytes).map_err(|_| "the message holds its record")
}

/// The record, alone.
fn whole<T: FromBytes + Immutable + KnownLayout + Unaligned>(
    bytes: &[u8],
) -> Result<&T, &'static str> {
    T::ref_from_bytes(bytes).map_err(|_| "the message is its record")
}

fn all_zero(reserved: &[u8]) -> Result<(), &'static str> {
    if reserved.iter().all(|byte| *byte == 0) {
        Ok(())
    } else {
        Err("what is reserved is zero")
    }
}

fn flag(byte: u8) -> Result<bool, &'static str> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err("a flag is 0 or 1"),
    }
}

fn malformed(bytes: &[u8], rule: &'static str) -> Malformed {
    // The kind, at offset 4, determines the width of the id at offset 8.
    let wide = bytes.get(8..16).and_then(|id| id.try_into().ok());
    let narrow = bytes.get(8..12).and_then(|id| id.try_into().ok());
    let id = match bytes.get(4) {
        Some(&(OPEN | OPEN_PASSED | CLOSE | LIST)) => {
            narrow.map(u32::from_le_bytes).map_or(0, u64::from)
        }
        _ => wide.map_or(0, u64::from_le_bytes),
    };
    Malformed { id, rule }
}
