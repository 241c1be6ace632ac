//! The peer's unidirectional streams (RFC 9114 §6.2, RFC 9204 §4.2).

use host::app::{Io, StreamId};

use crate::http3::code::{Code, Fault};
use crate::http3::frame::{self, Header, kind};
use crate::http3::settings;
use crate::http3::varint;
use http2::budget::{Budget, FRAME_TOKENS};
use http2::integer;
use http2::priority::Priority;

/// The type of a unidirectional stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Control,
    QpackEncoder,
    QpackDecoder,
}

/// A stream's report to its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// The stream has a type that may occur once.
    Is(Purpose),
    /// The stream has an unknown type, and is not read.
    Unknown,
    /// The longest field section that the peer accepts, in bytes (RFC 9114 §4.2.2).
    SectionMax(u64),
    /// The response on the stream with this ID gets this priority.
    Priority(u64, Priority),
}

/// Bytes per read.
const READ_BYTES: usize = 512;

/// Longest payload of a parsed frame, in bytes.
const PAYLOAD_BYTES_MAX: u64 = 1024;

/// A unidirectional stream of the peer.
#[derive(Debug, Default)]
pub(crate) struct Unidirectional {
    purpose: Option<Purpose>,
    /// Nothing more is read.
    is_unknown: bool,
    /// Bytes read and not consumed: part of a frame or an instruction.
    buffer: Vec<u8>,
    /// Remaining bytes of a discarded frame.
    skip_bytes: u64,
    has_settings: bool,
    goaway_id: Option<u64>,
    max_push_id: Option<u64>,
}

impl Unidirectional {
    /// Memory for unconsumed bytes, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.buffer.capacity()
    }

    /// The stream must not end (RFC 9114 §6.2.1, RFC 9204 §4.2).
    pub(crate) fn is_critical(&self) -> bool {
        self.purpose.is_some()
    }

    /// The stream's type is not known yet.
    pub(crate) fn is_untyped(&self) -> bool {
        self.purpose.is_none() && !self.is_unknown
    }

    /// Reads from the stream; returns the number of bytes.
    pub(crate) fn fill(&mut self, io: &mut dyn Io, stream: StreamId) -> usize {
        if self.is_unknown {
            return 0;
        }
        let mut bytes = [0; READ_BYTES];
        let count = io.read(stream, &mut bytes).min(READ_BYTES);
        let skipped = usize::try_from(self.skip_bytes)
            .unwrap_or(usize::MAX)
            .min(count);
        self.skip_bytes -= skipped as u64;
        self.buffer.extend_from_slice(&bytes[skipped..count]);
        count
    }

    /// The next notice in the bytes read.
    ///
    /// # Errors
    /// The fault in the stream.
    pub(crate) fn next(
        &mut self,
        now_us: u64,
        budget: &mut Budget,
    ) -> Result<Option<Notice>, Fault> {
        match self.purpose {
            None if self.is_unknown => Ok(None),
            None => self.begin(),
            Some(Purpose::Control) => self.next_frame(now_us, budget),
            Some(Purpose::QpackEncoder) => self.encoder_instructions(now_us, budget),
            Some(Purpose::QpackDecoder) => self.decoder_instructions(now_us, budget),
        }
    }

    fn begin(&mut self) -> Result<Option<Notice>, Fault> {
        let Some((kind, bytes)) = varint::read(&self.buffer) else {
            return Ok(None);
        };
        self.buffer.drain(..bytes);
        let purpose = match kind {
            0x0 => Purpose::Control,
            // RFC 9114 §6.2.2
            0x1 => {
                let why = "only servers push";
                return Err(Fault::Connection(Code::STREAM_CREATION_ERROR, why));
            }
            0x2 => Purpose::QpackEncoder,
            0x3 => Purpose::QpackDecoder,
            _ => {
                self.is_unknown = true;
                self.buffer = Vec::new();
                return Ok(Some(Notice::Unknown));
            }
        };
        self.purpose = Some(purpose);
        Ok(Some(Notice::Is(purpose)))
    }

    /// The next notice in the frames of a control stream.
    fn next_frame(&mut self, now_us: u64, budget: &mut Budget) -> Result<Option<Notice>, Fault> {
        while let Some((header, header_bytes)) = Header::read(&self.buffer) {
            self.check_place(header)?;
            if !is_understood(header.kind) {
                budget.spend_frame(now_us, header.payload_bytes)?;
                let at_hand = self.buffer.len() - header_bytes;
                let skipped = usize::try_from(header.payload_bytes).unwrap_or(usize::MAX);
                let skipped = skipped.min(at_hand);
                self.buffer.drain(..header_bytes + skipped);
                self.skip_bytes = header.payload_bytes - skipped as u64;
                continue;
            }
            if header.payload_bytes > PAYLOAD_BYTES_MAX {
                let why = "a frame that is too long";
                return Err(Fault::Connection(Code::EXCESSIVE_LOAD, why));
            }
            let end = header_bytes + header.payload_bytes as usize;
            if self.buffer.len() < end {
                break;
            }
            budget.spend(now_us, FRAME_TOKENS)?;
            let frame: Vec<u8> = self.buffer.drain(..end).collect();
            if let Some(notice) = self.take_frame(header.kind, &frame[header_bytes..])? {
                return Ok(Some(notice));
            }
        }
        Ok(None)
    }

    /// RFC 9114 §7: which frames a control stream may have, and where.
    fn check_place(&self, header: Header) -> Result<(), Fault> {
        if !self.has_settings && header.kind != kind::SETTINGS {
            let why = "a control stream begins with SETTINGS";
            return Err(Fault::Connection(Code::MISSING_SETTINGS, why));
        }
        let is_second = self.has_settings && header.kind == kind::SETTINGS;
        let is_of_requests = matches!(header.kind, kind::DATA | kind::HEADERS | kind::PUSH_PROMISE);
        if is_second || is_of_requests || frame::is_of_http2(header.kind) {
            let why = "a frame that a control stream cannot have";
            return Err(Fault::Connection(Code::FRAME_UNEXPECTED, why));
        }
        Ok(())
    }

    fn take_frame(&mut self, kind: u64, payload: &[u8]) -> Result<Option<Notice>, Fault> {
        if kind == kind::SETTINGS {
            self.has_settings = true;
            return settings::read(payload).map(|max| max.map(Notice::SectionMax));
        }
        let id = varint::read(payload);
        let is_priority = matches!(kind, kind::PRIORITY_UPDATE | kind::PRIORITY_UPDATE_PUSH);
        let (id, rest) = match id {
            Some((id, bytes)) if is_priority || bytes == payload.len() => (id, &payload[bytes..]),
            _ => {
                return Err(Fault::Connection(
                    Code::FRAME_ERROR,
                    "a frame of another length",
                ));
            }
        };
        let wrong_id = Err(Fault::Connection(Code::ID_ERROR, "an ID that cannot be"));
        match kind {
            // RFC 9114 §5.2: IDs must not increase.
            kind::GOAWAY if self.goaway_id.is_some_and(|known| id > known) => wrong_id,
            kind::GOAWAY => {
                self.goaway_id = Some(id);
                Ok(None)
            }
            // RFC 9114 §7.2.7: IDs must not decrease.
            kind::MAX_PUSH_ID if self.max_push_id.is_some_and(|known| id < known) => wrong_id,
            kind::MAX_PUSH_ID => {
                self.max_push_id = Some(id);
                Ok(None)
            }
            // Requests use client-initiated bidirectional streams (RFC 9218 §7.2).
            kind::PRIORITY_UPDATE if id % 4 == 0 => {
                Ok(Some(Notice::Priority(id, Priority::parse(rest))))
            }
            // The server pushes nothing to which other frames could refer.
            _ => wrong_id,
        }
    }

    /// Without a dynamic table, the only valid instruction sets its capacity to 0 (RFC 9204 §3.2.3,
    /// §4.3).
    fn encoder_instructions(
        &mut self,
        now_us: u64,
        budget: &mut Budget,
    ) -> Result<Option<Notice>, Fault> {
        let fault = Fault::Connection(
            Code::QPACK_ENCODER_STREAM_ERROR,
            "the dynamic table has no room",
        );
        while let Some(&first) = self.buffer.first() {
            if first >> 5 != 0b001 {
                return Err(fault);
            }
            match integer::read(&self.buffer, 5) {
                Ok((0, bytes)) => self.buffer.drain(..bytes),
                Err(integer::NoInteger::Partial) => break,
                Ok(_) | Err(integer::NoInteger::TooLarge) => return Err(fault),
            };
            budget.spend(now_us, FRAME_TOKENS)?;
        }
        Ok(None)
    }

    /// This side sent nothing to acknowledge: only stream cancellations are valid (RFC 9204 §4.4).
    fn decoder_instructions(
        &mut self,
        now_us: u64,
        budget: &mut Budget,
    ) -> Result<Option<Notice>, Fault> {
        let fault = Fault::Connection(
            Code::QPACK_DECODER_STREAM_ERROR,
            "there is nothing to acknowledge",
        );
        while let Some(&first) = self.buffer.first() {
            if first >> 6 != 0b01 {
                return Err(fault);
            }
            match integer::read(&self.buffer, 6) {
                Ok((_, bytes)) => self.buffer.drain(..bytes),
                Err(integer::NoInteger::Partial) => break,
                Err(integer::NoInteger::TooLarge) => return Err(fault),
            };
            budget.spend(now_us, FRAME_TOKENS)?;
        }
        Ok(None)
    }
}

/// True if frames of this type are parsed.
fn is_understood(kind: u64) -> bool {
    matches!(
        kind,
        kind::SETTINGS
            | kind::GOAWAY
            | kind::MAX_PUSH_ID
            | kind::CANCEL_PUSH
            | kind::PRIORITY_UPDATE
            | kind::PRIORITY_UPDATE_PUSH
    )
}
