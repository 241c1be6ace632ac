//! Received bytes as frames (RFC 9113 §4, §6).
//!
//! Payloads are taken as they arrive: of DATA and unknown frames the reader keeps nothing, of
//! HEADERS and CONTINUATION the field block, and frames of the connection are small.

use crate::code::{Code, Fault};
use crate::frame::{self, HEADER_BYTES, Header, PAYLOAD_BYTES_MAX, flag, kind};

/// Longest field block, in bytes. A longer one ends the connection, since the dynamic table needs
/// whole blocks.
const BLOCK_BYTES_MAX: usize = 64 << 10;

/// Most CONTINUATION frames of a field block.
const CONTINUATIONS_MAX: u32 = 16;

/// Length of a priority, in bytes.
pub const PRIORITY_BYTES: u32 = 5;

/// Longest payload of a frame that is taken whole, in bytes: 42 settings.
const WHOLE_BYTES_MAX: usize = 252;

/// A frame, or the field block of several.
#[derive(Debug, PartialEq, Eq)]
pub enum Incoming {
    /// DATA. Padding counts for flow control only.
    Data {
        /// The stream's ID.
        stream: u32,
        /// Length for flow control, in bytes.
        payload_bytes: u32,
        /// Length without padding, in bytes.
        data_bytes: u32,
        /// END_STREAM is set.
        ends_stream: bool,
    },
    /// A field block, which is in [`FrameReader::block`].
    Block {
        /// The stream's ID.
        stream: u32,
        /// END_STREAM is set.
        ends_stream: bool,
        /// The stream depends on itself (RFC 7540 §5.3.1).
        depends_on_itself: bool,
    },
    /// A frame whose payload is in [`FrameReader::payload`].
    Whole(Header),
    /// A frame of an unknown type, whose payload is skipped.
    Unknown(Header),
}

/// The result of a step.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// More bytes must arrive first.
    Partial,
    /// These bytes are consumed.
    Consumed(usize),
    /// These bytes are consumed, and are content of the last [`Incoming::Data`].
    Content(usize),
    /// These bytes are consumed. They complete a frame, or begin DATA, whose content follows.
    Frame(usize, Incoming),
}

/// A field block that is not complete, or the last one.
#[derive(Debug, Default)]
struct Block {
    stream: u32,
    ends_stream: bool,
    depends_on_itself: bool,
    continuations: u32,
    bytes: Vec<u8>,
}

/// See the [module documentation](self).
#[derive(Debug, Default)]
pub struct FrameReader {
    /// Content of the present DATA that has not arrived, in bytes.
    content_bytes: u32,
    /// Payload bytes to discard after the content.
    skip_bytes: u32,
    /// Bytes of the present fragment of a field block that have not arrived.
    fragment_bytes: u32,
    /// Padding after the fragment, in bytes.
    padding_bytes: u32,
    /// The present fragment is the block's last one.
    ends_block: bool,
    /// CONTINUATION must follow.
    is_in_block: bool,
    block: Block,
    payload: Vec<u8>,
}

impl FrameReader {
    /// The field block of the last [`Incoming::Block`].
    pub fn block(&self) -> &[u8] {
        &self.block.bytes
    }

    /// The payload of the last [`Incoming::Whole`].
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// The block is decoded: gives its memory back.
    pub fn release_block(&mut self) {
        self.block.bytes = Vec::new();
    }

    /// Part of a frame or of a field block has arrived.
    pub fn is_within_frame(&self) -> bool {
        self.is_in_block || self.fragment_bytes + self.content_bytes + self.skip_bytes > 0
    }

    /// Memory of unfinished frames, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.block.bytes.capacity() + self.payload.capacity()
    }

    /// Takes the next bytes.
    ///
    /// # Errors
    /// A frame that may not be there, or has another length.
    pub fn step(&mut self, bytes: &[u8]) -> Result<Step, Fault> {
        if self.fragment_bytes > 0 || self.is_in_block && self.ends_block {
            return Ok(self.take_fragment(bytes));
        }
        if self.content_bytes > 0 {
            let taken = bytes.len().min(self.content_bytes as usize);
            self.content_bytes -= taken as u32;
            return Ok(match taken {
                0 => Step::Partial,
                _ => Step::Content(taken),
            });
        }
        if self.skip_bytes > 0 {
            let skipped = bytes.len().min(self.skip_bytes as usize);
            self.skip_bytes -= skipped as u32;
            return Ok(match skipped {
                0 => Step::Partial,
                _ => Step::Consumed(skipped),
            });
        }
        let Some(header) = Header::read(bytes) else {
            return Ok(Step::Partial);
        };
        if header.payload_bytes as usize > PAYLOAD_BYTES_MAX {
            let why = "a frame longer than SETTINGS_MAX_FRAME_SIZE";
            return Err(Fault::Connection(Code::FRAME_SIZE_ERROR, why));
        }
        let continues = header.kind == kind::CONTINUATION;
        if self.is_in_block != continues || continues && header.stream != self.block.stream {
            let why = "a field block that other frames interrupt, or CONTINUATION without one";
            return Err(Fault::protocol(why));
        }
        let payload = &bytes[HEADER_BYTES..];
        match header.kind {
            kind::DATA => self.data(header, payload),
            kind::HEADERS => self.headers(header, payload),
            kind::CONTINUATION => self.continuation(header),
            kind::PRIORITY
            | kind::RST_STREAM
            | kind::SETTINGS
            | kind::PING
            | kind::GOAWAY
            | kind::WINDOW_UPDATE
            | kind::PRIORITY_UPDATE => self.whole(header, payload),
            kind::PUSH_PROMISE => Err(Fault::protocol(
                "PUSH_PROMISE, which this side does not permit",
            )),
            _ => {
                self.skip_bytes = header.payload_bytes;
                Ok(Step::Frame(HEADER_BYTES, Incoming::Unknown(header)))
            }
        }
    }

    /// The length of the padding, if the frame has any, and of its field; `None` if that has not
    /// arrived.
    fn padding(header: Header, payload: &[u8]) -> Option<(u32, u32)> {
        match header.has(flag::PADDED) {
            false => Some((0, 0)),
            true => Some(((*payload.first()?).into(), 1)),
        }
    }

    fn data(&mut self, header: Header, payload: &[u8]) -> Result<Step, Fault> {
        if header.stream == 0 {
            return Err(Fault::protocol("DATA on stream 0"));
        }
        if header.has(flag::PADDED) && header.payload_bytes == 0 {
            return Err(TOO_SHORT);
        }
        let Some((padding_bytes, field_bytes)) = Self::padding(header, payload) else {
            return Ok(Step::Partial);
        };
        let data_bytes = header
            .payload_bytes
            .checked_sub(field_bytes + padding_bytes);
        let data_bytes = data_bytes.ok_or(PADDING_TOO_LONG)?;
        (self.content_bytes, self.skip_bytes) = (data_bytes, padding_bytes);
        let data = Incoming::Data {
            stream: header.stream,
            payload_bytes: header.payload_bytes,
            data_bytes,
            ends_stream: header.has(flag::END_STREAM),
        };
        Ok(Step::Frame(HEADER_BYTES + field_bytes as usize, data))
    }

    fn headers(&mut self, header: Header, payload: &[u8]) -> Result<Step, Fault> {
        if header.stream == 0 {
            return Err(Fault::protocol("HEADERS on stream 0"));
        }
        let priority_bytes = match header.has(flag::PRIORITY) {
            true => PRIORITY_BYTES,
            false => 0,
        };
        let prefix_bytes = u32::from(header.has(flag::PADDED)) + priority_bytes;
        if header.payload_bytes < prefix_bytes {
            return Err(TOO_SHORT);
        }
        let Some((padding_bytes, field_bytes)) = Self::padding(header, payload) else {
            return Ok(Step::Partial);
        };
        let fragment_bytes = header
            .payload_bytes
            .checked_sub(prefix_bytes + padding_bytes);
        let fragment_bytes = fragment_bytes.ok_or(PADDING_TOO_LONG)?;
        let Some(prefix) = payload.get(..prefix_bytes as usize) else {
            return Ok(Step::Partial);
        };
        let dependency = frame::read_31_bits(&prefix[field_bytes as usize..]);
        self.block = Block {
            stream: header.stream,
            ends_stream: header.has(flag::END_STREAM),
            depends_on_itself: dependency == Some(header.stream),
            continuations: 0,
            bytes: Vec::new(),
        };
        self.is_in_block = true;
        self.fragment_bytes = fragment_bytes;
        self.padding_bytes = padding_bytes;
        self.ends_block = header.has(flag::END_HEADERS);
        self.skip_bytes = if fragment_bytes == 0 {
            padding_bytes
        } else {
            0
        };
        Ok(Step::Consumed(HEADER_BYTES + prefix_bytes as usize))
    }

    fn continuation(&mut self, header: Header) -> Result<Step, Fault> {
        self.block.continuations += 1;
        let bytes = self.block.bytes.len() + header.payload_bytes as usize;
        if self.block.continuations > CONTINUATIONS_MAX || bytes > BLOCK_BYTES_MAX {
            let why = "a field block of too many frames or bytes";
            return Err(Fault::Connection(Code::ENHANCE_YOUR_CALM, why));
        }
        self.fragment_bytes = header.payload_bytes;
        self.padding_bytes = 0;
        self.ends_block = header.has(flag::END_HEADERS);
        Ok(Step::Consumed(HEADER_BYTES))
    }

    /// Takes bytes of a field block, and completes it.
    fn take_fragment(&mut self, bytes: &[u8]) -> Step {
        let taken = bytes.len().min(self.fragment_bytes as usize);
        self.block.bytes.extend_from_slice(&bytes[..taken]);
        self.fragment_bytes -= taken as u32;
        if self.fragment_bytes > 0 {
            return match taken {
                0 => Step::Partial,
                _ => Step::Consumed(taken),
            };
        }
        self.skip_bytes = self.padding_bytes;
        if !self.ends_block {
            return Step::Consumed(taken);
        }
        (self.is_in_block, self.ends_block) = (false, false);
        let block = Incoming::Block {
            stream: self.block.stream,
            ends_stream: self.block.ends_stream,
            depends_on_itself: self.block.depends_on_itself,
        };
        Step::Frame(taken, block)
    }

    /// Takes a frame with its payload.
    fn whole(&mut self, header: Header, payload: &[u8]) -> Result<Step, Fault> {
        check(header)?;
        let payload_bytes = header.payload_bytes as usize;
        // Debug data of GOAWAY is of no interest, and neither is a PRIORITY of another length.
        let kept_bytes = match header.kind {
            kind::GOAWAY => payload_bytes.min(8),
            kind::PRIORITY => payload_bytes.min(PRIORITY_BYTES as usize),
            _ if payload_bytes > WHOLE_BYTES_MAX => {
                let why = "a frame with too many settings, or too long a priority";
                return Err(Fault::Connection(Code::ENHANCE_YOUR_CALM, why));
            }
            _ => payload_bytes,
        };
        let Some(kept) = payload.get(..kept_bytes) else {
            return Ok(Step::Partial);
        };
        self.payload.clear();
        self.payload.extend_from_slice(kept);
        self.skip_bytes = (payload_bytes - kept_bytes) as u32;
        let frame = Incoming::Whole(header);
        Ok(Step::Frame(HEADER_BYTES + kept_bytes, frame))
    }
}

const PADDING_TOO_LONG: Fault = Fault::protocol("padding longer than its frame");

const TOO_SHORT: Fault = Fault::Connection(
    Code::FRAME_SIZE_ERROR,
    "a frame too short for its padding or priority",
);

/// Checks where a frame may be, and how long it is (RFC 9113 §6.3 to §6.9, RFC 9218 §7.1). Another
/// length of PRIORITY is an error of its stream, not of the connection.
fn check(header: Header) -> Result<(), Fault> {
    let length = header.payload_bytes;
    let is_ack = header.has(flag::ACK);
    let (is_of_connection, has_length) = match header.kind {
        kind::PRIORITY => (Some(false), true),
        kind::RST_STREAM => (Some(false), length == 4),
        kind::WINDOW_UPDATE => (None, length == 4),
        kind::SETTINGS => (
            Some(true),
            length.is_multiple_of(6) && (length == 0 || !is_ack),
        ),
        kind::PING => (Some(true), length == 8),
        kind::GOAWAY => (Some(true), length >= 8),
        _ => (Some(true), length >= 4),
    };
    if is_of_connection.is_some_and(|is| is != (header.stream == 0)) {
        let why = "a frame of a stream on the connection, or the other way round";
        return Err(Fault::protocol(why));
    }
    if !has_length {
        let why = "a frame of another length";
        return Err(Fault::Connection(Code::FRAME_SIZE_ERROR, why));
    }
    Ok(())
}
